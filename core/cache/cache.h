/* The cache floor from within. Who owns what:
 *
 *     kvant_cache      plan, attention of every layer, pool, prefix index, store; one lock
 *       cache_block    one block's extents in all layers, its ids, tags, key; held by sequences, steps,
 *                      matches and (without a holder) by the index
 *       cache_page     block_tokens raw rows of all layers and sides, in the pool; held by sequences and, for
 *                      sinks, by block 0
 *       kvant_sequence its blocks, in order; pages of its tail; what was dropped; its step
 *
 *     positions   0           tail_first            length
 *                 | block | block | .. | page | page |..
 *
 * Blocks cover consecutive positions from 0 on but where a cut left a short one: block i holds the positions
 * [first_position, first_position of block i + 1, or tail_first). The tail's pages hold [tail_first, length).
 *
 * The lock guards pool, index, counts of holders and of needs, and the counters. Bytes of an extent or page
 * that somebody holds never change but by the one sequence that fills its own rows. Whoever touches such
 * bytes does it through place.h: they may lie on a device. */
#ifndef KVANT_CACHE_CACHE_H
#define KVANT_CACHE_CACHE_H

#include "cache/pool.h"
#include "cache/prefix_index.h"
#include "pipeline/plan.h"
#include "store/block_key.h"

#include <kvant/kvant.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Where one layer's and side's bytes of a block lie; index KVANT_POOL_NONE = released. */
typedef struct cache_extent {
    uint32_t index;
    uint32_t steps; /* size = layout.size_min + steps * layout.size_step */
} cache_extent;

/* Raw rows of all layers and sides, each [block_tokens (a page of sinks: sinks), kv_heads, dim] at its offset
 * (cache_shape). */
typedef struct cache_page {
    uint32_t index; /* in the pool */
    uint32_t holders;
    uint64_t bytes; /* there */
} cache_page;

typedef struct cache_block {
    kvant_index_entry entry; /* entry.pins = holders; first, so that an entry's address is its block's */
    uint64_t first_position;
    cache_page *sinks;     /* of block 0, if the plan has sinks; else NULL */
    cache_extent *extents; /* [layers][2] */
    uint32_t *needs; /* [layers]: holders whose windows have not passed this block; only of windowed ones */
    unsigned char *salt; /* of block 0: what its key was made with */
    uint64_t salt_bytes;
    bool counted;     /* in the cache's payload and metadata */
    uint64_t *ids;    /* [block_tokens] */
    uint8_t *tags;    /* [block_tokens] */
    uint8_t *classes; /* [block_tokens] */
    bool identified;  /* ids were given, and the key is set */
} cache_block;

/* Sizes that follow from the plan alone. */
typedef struct cache_layer {
    uint32_t window;
    uint64_t extent_max[2]; /* rounded to units */
    uint64_t row_bytes[2];  /* of one token */
    uint64_t page_at[2];    /* offset in a page */
    uint64_t sinks_at[2];   /* offset in a page of sinks */
} cache_layer;

typedef struct cache_shape {
    uint32_t layer_count;
    uint32_t block_tokens;
    uint32_t sinks;
    uint32_t recent;
    uint32_t alignment; /* of extents: the largest of all layouts */
    uint32_t windowed;  /* layers with a window */
    uint64_t page_bytes;
    uint64_t sinks_bytes;
    uint64_t smallest_extent;
    uint64_t encode_scratch; /* of one thread, for any layer and side */
    cache_layer *layers;
} cache_shape;

/* A buffer that steps take in turns, so that a step at a steady pace allocates nothing. */
typedef struct cache_buffer {
    struct cache_buffer *next;
    size_t size;          /* from `bytes` on */
    unsigned char *bytes; /* the place's, aligned to 4096 */
} cache_buffer;

enum { KVANT_CACHE_HASHERS = 16 };

typedef struct cache_place cache_place;   /* place.h */
typedef struct cache_device cache_device; /* place_device.h */

struct kvant_cache {
    kvant_plan *plan;            /* held */
    kvant_attention **attention; /* [layers] */
    const cache_place *place;
    cache_device *device; /* NULL = the pool lies in the host's memory */
    cache_shape shape;
    kvant_pool *pool;
    kvant_prefix_index *index;
    kvant_store *store;
    uint32_t threads;
    kvant_loop *loop;
    void *loop_context;
    uint8_t tag_class[256];      /* those that the plan's codecs tell apart */
    size_t attend_scratch[2];    /* for one row, for many */
    atomic_uint_fast64_t tables; /* bytes */

    pthread_mutex_t lock; /* guards what follows, pool and index */
    cache_buffer *buffers;
    kvant_block_hasher *hashers[KVANT_CACHE_HASHERS]; /* idle ones */
    uint32_t hasher_count;
    uint32_t sequences;
    uint64_t blocks;
    uint64_t payload, metadata, raw; /* bytes in the pool; raw as rounded */
    kvant_cache_report counters;     /* lookups .. replaced */
};

/* Positions [first, end). */
typedef struct cache_span {
    uint64_t first, end;
} cache_span;

typedef struct cache_step cache_step;

struct kvant_sequence {
    kvant_cache *cache;
    unsigned char *salt;
    uint64_t salt_bytes;
    cache_block **blocks;
    uint32_t block_count, block_room;
    cache_page **pages; /* page i: positions tail_first + i * block_tokens on */
    uint32_t page_count, page_room;
    uint64_t tail_first, length;
    uint64_t private_first;
    cache_span *dropped; /* in order, apart from each other, below length */
    uint32_t dropped_count, dropped_room;
    uint32_t *passed; /* [layers]: blocks before this one were passed by the layer's window */
    cache_step *step; /* NULL = none */
};

struct kvant_match {
    kvant_cache *cache;
    unsigned char *salt;
    uint64_t salt_bytes;
    cache_block **blocks; /* pinned */
    uint32_t block_count;
    uint32_t *passed; /* [layers], as a sequence's */
};

/* ---- Shape (cache_shape.c) ----------------------------------------------------------------------------- */

/* From the plan alone; frees nothing on failure but what it made. */
kvant_status cache_shape_make(const kvant_plan *plan, cache_shape *shape, kvant_diag *diag);
void cache_shape_free(cache_shape *shape);

/* Bytes of the pool that an extent of that many bytes takes. */
uint64_t cache_rounded(const cache_shape *shape, uint64_t bytes);

/* Whole bytes of an extent's payload and metadata. */
void cache_extent_parts(const kvant_layout *layout, uint64_t steps, uint64_t *payload, uint64_t *metadata);

/* How many lists' places for n entries: a power of two, so that a list's bytes follow from its length. */
uint32_t cache_list_room(uint64_t entries);

/* Pages that a tail has at most whose sequence grew without tentative tokens: room for them is made at once,
 * so that it does not depend on the steps. */
uint32_t cache_steady_pages(const cache_shape *shape);

/* Bytes beside the pool of one block, one page, one sequence with its lists. */
uint64_t cache_block_tables(const cache_shape *shape);
uint64_t cache_page_tables(const cache_shape *shape);
uint64_t cache_sequence_tables(const cache_shape *shape, uint64_t salt_bytes, uint32_t block_room,
                               uint32_t page_room, uint32_t dropped_room);

/* ---- Memory (cache_memory.c) --------------------------------------------------------------------------- */

/* Zeroed, counted as tables; NULL without memory. */
void *cache_take(kvant_cache *cache, uint64_t bytes);
void cache_give(kvant_cache *cache, void *memory, uint64_t bytes);

/* Room for `entries` in a list of pointers, spans, ..; moves nothing on failure. */
bool cache_list_reserve(kvant_cache *cache, void **list, uint32_t *room, uint64_t entries, size_t entry);

/* An idle buffer of that size, or a new one; NULL without memory. */
cache_buffer *cache_buffer_take(kvant_cache *cache, size_t size);
void cache_buffer_give(kvant_cache *cache, cache_buffer *buffer);

/* ---- Blocks and pages (cache_block.c, cache_page.c); under the lock unless said otherwise -------------- */

/* An extent of the pool, after evicting whatever nobody holds; the lock is left while a store writes.
 * NO_SPACE, or MEMORY of the pool's own tables. */
kvant_status cache_pool_take(kvant_cache *cache, uint64_t bytes, uint32_t *index);

/* A block of one holder with room for all of its extents at their largest size, or (sizes: [layers][2], 0 =
 * absent) as given, which then are counted; sinks: with a page for them. MEMORY or NO_SPACE. Takes the lock
 * itself. */
kvant_status cache_block_new(kvant_cache *cache, const uint64_t *sizes, bool sinks, cache_block **block);

/* One holder less; the last one frees a block that is not indexed. */
void cache_block_release(kvant_cache *cache, cache_block *block);

/* Payload and metadata of a block whose extents are encoded enter the cache's sums; once. */
void cache_block_count(kvant_cache *cache, cache_block *block);

/* The salt of block 0, copied. False without memory; takes no lock. */
bool cache_block_set_salt(kvant_cache *cache, cache_block *block, const void *salt, uint64_t bytes);

/* Frees what nobody holds and nobody finds. */
void cache_block_free(kvant_cache *cache, cache_block *block);

/* Bytes of an extent as encoded. */
uint64_t cache_extent_size(const kvant_cache *cache, const cache_block *block, uint32_t layer, uint32_t side);

/* One more, one less, who needs this block in a windowed layer; `leaves`: who needs it no longer because it
 * is about to give its pin back. When nobody needs it and somebody else, or a sequence that stays, holds it,
 * its extents of the layer are released. */
void cache_block_need(cache_block *block, uint32_t layer);
void cache_block_pass(kvant_cache *cache, cache_block *block, uint32_t layer, bool leaves);
bool cache_block_has(const cache_block *block, uint32_t layer);

/* Evicts one block; false if all are held. The lock is left while a store writes. */
bool cache_evict_one(kvant_cache *cache);

/* Room for `bytes` raw rows. MEMORY or NO_SPACE. Takes the lock itself. */
kvant_status cache_page_new(kvant_cache *cache, uint64_t bytes, cache_page **page);
void cache_page_release(kvant_cache *cache, cache_page *page);

uint64_t *cache_page_ids(cache_page *page);                           /* [block_tokens] */
uint8_t *cache_page_tags(const cache_shape *shape, cache_page *page); /* [block_tokens] */

/* Where rows of a page, or of a block's sinks, lie: no lock. */
kvant_mutable_view cache_page_rows(const kvant_cache *cache, const cache_page *page, uint32_t layer,
                                   uint32_t side, uint32_t first, uint32_t tokens);
kvant_mutable_view cache_sink_rows(const kvant_cache *cache, const cache_page *page, uint32_t layer,
                                   uint32_t side, uint32_t tokens);
kvant_view cache_view(kvant_mutable_view rows);

/* The first `tokens` rows of all layers and sides of a page, or of a page of sinks, to another page. */
kvant_status cache_page_copy(kvant_cache *cache, const cache_page *from, bool sinks, const cache_page *to,
                             uint32_t tokens, kvant_diag *diag);

/* The rows [first, first + tokens) of a view. */
kvant_view cache_view_part(const kvant_view *rows, uint32_t first, uint32_t tokens);

/* ---- Keys (cache_lookup.c) ----------------------------------------------------------------------------- */

/* Takes an idle hasher of the cache, or opens one; takes the lock itself. */
kvant_status cache_hasher_take(kvant_cache *cache, kvant_block_hasher **hasher);
void cache_hasher_give(kvant_cache *cache, kvant_block_hasher *hasher);

kvant_status cache_check_prefix(const kvant_cache *cache, const kvant_prefix *prefix, kvant_diag *diag);

/* A match of no blocks with places for `room`; NULL without memory. */
kvant_match *match_new(kvant_cache *cache, const kvant_prefix *prefix, uint32_t room);

/* Blocks were pinned and put into the match, in order: lets go of those behind which the next token would see
 * what a window released, and needs what it sees. Once; under the lock. */
void match_settle(kvant_match *match);

/* Releases a match that was not settled. */
void match_forget(kvant_match *match);

/* ---- Records (cache_record.c): blocks out and in; no lock is held by the caller ------------------------ */

/* Puts an identified block, which the caller holds, into a store, unless it is there. *bytes = of the record,
 * 0 if it was there. */
kvant_status cache_record_put(kvant_cache *cache, const cache_block *block, kvant_store *store,
                              const void *salt, uint64_t salt_bytes, uint64_t *bytes, kvant_diag *diag);

/* A block from a store, with one holder, not indexed, in the index's terms identified; *block = NULL and
 * *reason if it is a miss. NO_SPACE, MEMORY. `ids` and `tags`: [block_tokens], compared with the record's. */
kvant_status cache_record_get(kvant_cache *cache, kvant_store *store,
                              const uint8_t key[KVANT_BLOCK_KEY_BYTES], const uint8_t *parent,
                              uint64_t number, const uint64_t *ids, const uint8_t *tags, const void *salt,
                              uint64_t salt_bytes, cache_block **block, uint32_t *reason, kvant_diag *diag);

/* ---- Sequences ----------------------------------------------------------------------------------------- */

/* The position after the last one that block `index` of the sequence covers. */
uint64_t cache_block_end(const kvant_sequence *sequence, uint32_t index);

/* The first position whose key and value the token at `position` sees in a layer. */
uint64_t cache_window_first(const cache_shape *shape, uint32_t layer, uint64_t position);

#endif
