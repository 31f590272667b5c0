/* Records of a cache: what cache_record.c, cache_tail.c, cache_save.c and cache_load.c share. */
#ifndef KVANT_CACHE_CACHE_RECORD_H
#define KVANT_CACHE_CACHE_RECORD_H

#include "cache/cache.h"
#include "store/record.h"

/* What a record of this cache is put under and asked for with. */
kvant_store_key cache_store_key(const kvant_cache *cache, uint32_t kind,
                                const uint8_t key[KVANT_BLOCK_KEY_BYTES], const void *salt,
                                uint64_t salt_bytes);

/* The head of a record that begins at token number * block_tokens; parent: NULL = none. */
kvant_record_head cache_record_head(const kvant_cache *cache, uint32_t kind, uint64_t number, uint32_t tokens,
                                    const uint8_t *parent);

/* What a record must say to be taken: whose it is and which tokens it holds. */
typedef struct cache_wanted {
    kvant_cache *cache;
    uint32_t kind; /* KVANT_STORE_* */
    uint32_t tokens;
    uint64_t number;
    const uint8_t *key;    /* [32] */
    const uint8_t *parent; /* NULL = none */
    const uint64_t *ids;   /* [tokens] */
    const uint8_t *tags;   /* [tokens]; NULL = zeros. Only their classes are compared */
    const void *salt;
    uint64_t salt_bytes;
} cache_wanted;

/* A copy of a record, so that nothing of the store is held while the pool makes room. */
typedef struct cache_fetched {
    cache_buffer *buffer; /* NULL = a miss; given back by the caller */
    kvant_record record;
    uint32_t reason; /* KVANT_STORE_* */
} cache_fetched;

/* Fetches what is wanted, verified by the store and compared with what is wanted, and with the plan. A miss
 * is no error. Errors: MEMORY. */
kvant_status cache_fetch(kvant_store *store, const cache_wanted *wanted, cache_fetched *fetched);

/* Most tokens of a tail that is saved, and looked for: what the rule of sealing leaves raw, and 4096 tokens
 * that were tentative and kept by the last step. */
uint64_t cache_tail_max(const cache_shape *shape);

/* Puts the first `tokens` tokens of the tail, unless they are there; its key. *bytes = of the record, 0 if it
 * was there. */
kvant_status cache_tail_put(const kvant_sequence *sequence, uint32_t tokens, kvant_store *store,
                            kvant_store_key *key, uint64_t *bytes, kvant_diag *diag);

/* Pages of a tail from a store, whose sequence has room for them in its list; a miss leaves it as it is.
 * Errors: NO_SPACE, MEMORY. */
kvant_status cache_tail_get(kvant_sequence *sequence, kvant_store *store, const cache_wanted *wanted,
                            uint32_t *reason, kvant_diag *diag);

/* As cache_record_put, and what is there counts only if it is whole and has every extent that the block has
 * (a window may have passed the block when that was written). Being read, it is of use, and not evicted to
 * make room for the rest of the sequence. */
kvant_status cache_record_save(kvant_cache *cache, const cache_block *block, kvant_store *store,
                               const void *salt, uint64_t salt_bytes, uint64_t *bytes, kvant_diag *diag);

#endif
