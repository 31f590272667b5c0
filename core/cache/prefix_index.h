/* Which block continues which: blocks by key, and which of them may go first. A block's key is a hash over
 * the key of the block before it (block_key.h), so a prefix is found block by block from the first on.
 *
 * A block is evictable when nobody holds it and no block of the index continues it: so a prefix is lost from
 * its end, never in the middle. Of those the one used longest ago goes first.
 *
 * find is O(1), all else that moves an entry O(log evictable). Nothing but reserve allocates. Not locked:
 * under the cache's lock. */
#ifndef KVANT_CACHE_PREFIX_INDEX_H
#define KVANT_CACHE_PREFIX_INDEX_H

#include "store/block_key.h"

#include <stdbool.h>

/* Part of a block; its owner is found by the entry's address. Zeroed before the keys are set; all but the
 * keys is the index's, and `indexed`, `children`, `pins` and `used` may be read. */
typedef struct kvant_index_entry {
    uint8_t key[KVANT_BLOCK_KEY_BYTES];
    uint8_t parent[KVANT_BLOCK_KEY_BYTES]; /* zeros: of block 0 */
    bool indexed;
    struct kvant_index_entry *next;   /* in its chain of the table */
    struct kvant_index_entry *before; /* the entry of the parent; NULL = block 0, or not indexed */
    uint32_t children;                /* entries whose `before` this is */
    uint32_t pins;                    /* who holds the block */
    uint32_t place;                   /* in the heap of evictable ones, from 1; 0 = not evictable */
    uint64_t used;                    /* when it was last of use, in ticks of the index */
} kvant_index_entry;

typedef struct kvant_prefix_index kvant_prefix_index;

kvant_status kvant_prefix_index_open(kvant_prefix_index **index);

/* Forgets all entries, without a look at them: they may be gone. NULL is fine. */
void kvant_prefix_index_close(kvant_prefix_index *index);

/* NULL = none. */
kvant_index_entry *kvant_prefix_index_find(const kvant_prefix_index *index,
                                           const uint8_t key[KVANT_BLOCK_KEY_BYTES]);

/* Room for `count` more entries, in table and heap, so that add cannot fail for want of it. Room is counted:
 * what was reserved is used up by that many calls of add, or given back. MEMORY: nothing was reserved. */
kvant_status kvant_prefix_index_reserve(kvant_prefix_index *index, uint64_t count);
void kvant_prefix_index_unreserve(kvant_prefix_index *index, uint64_t count);

/* Adds an entry for which room was reserved; it is then the newest in use. It may be pinned. False, and the
 * room is given back: its key is there already, or it has a parent that is not. */
bool kvant_prefix_index_add(kvant_prefix_index *index, kvant_index_entry *entry);

/* Takes an entry without children out, pinned or not. Its pins stay counted in it. */
void kvant_prefix_index_remove(kvant_prefix_index *index, kvant_index_entry *entry);

/* One holder more, one less. Of entries that are not indexed too: only counts. unpin makes it the newest in
 * use. */
void kvant_prefix_index_pin(kvant_prefix_index *index, kvant_index_entry *entry);
void kvant_prefix_index_unpin(kvant_prefix_index *index, kvant_index_entry *entry);

/* The evictable entry that was used longest ago, left where it is; NULL = none. */
kvant_index_entry *kvant_prefix_index_oldest(const kvant_prefix_index *index);

typedef struct kvant_prefix_index_state {
    uint64_t entries;
    uint64_t pinned; /* of them */
    uint64_t table_bytes;
} kvant_prefix_index_state;
kvant_prefix_index_state kvant_prefix_index_describe(const kvant_prefix_index *index);

#endif
