/* Prefixes: which blocks of a prompt are here already, in memory or in the store. See cache.h. */
#include "cache/sequence.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>
#include <string.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

/* ---- Hashers ------------------------------------------------------------------------------------------- */

kvant_status cache_hasher_take(kvant_cache *cache, kvant_block_hasher **hasher) {
    *hasher = NULL;
    pthread_mutex_lock(&cache->lock);
    if (cache->hasher_count > 0) *hasher = cache->hashers[--cache->hasher_count];
    pthread_mutex_unlock(&cache->lock);
    return *hasher != NULL ? KVANT_OK : kvant_block_hasher_open(cache->plan->fingerprint, hasher);
}

void cache_hasher_give(kvant_cache *cache, kvant_block_hasher *hasher) {
    pthread_mutex_lock(&cache->lock);
    bool kept = cache->hasher_count < KVANT_CACHE_HASHERS;
    if (kept) cache->hashers[cache->hasher_count++] = hasher;
    pthread_mutex_unlock(&cache->lock);
    if (!kept) kvant_block_hasher_close(hasher);
}

/* ---- One block ----------------------------------------------------------------------------------------- */

typedef struct lookup {
    kvant_cache *cache;
    const kvant_prefix *prefix;
    kvant_match *match;
    kvant_block_hasher *hasher;
    uint32_t limit; /* blocks at most */
    uint8_t *tags;  /* [block_tokens] of the block at hand, and their classes */
    uint8_t *classes;
    uint64_t from_store;
} lookup;

static void set_tags(const lookup *l, uint32_t block) {
    const uint8_t *class_of = l->cache->tag_class;
    uint32_t block_tokens = l->cache->shape.block_tokens;
    uint8_t *tags = l->tags, *classes = l->classes;
    if (l->prefix->tags == NULL) { /* the same in every block */
        if (block > 0) return;
        memset(tags, 0, block_tokens);
        memset(classes, class_of[0], block_tokens);
        return;
    }
    const uint8_t *given = l->prefix->tags + (uint64_t)block * block_tokens;
    memcpy(tags, given, block_tokens);
    for (uint32_t t = 0; t < block_tokens; t++) classes[t] = class_of[given[t]];
}

/* Ids and classes, not only the hash of them. */
static bool is_same(const lookup *l, const cache_block *block, const uint64_t *ids) {
    uint32_t block_tokens = l->cache->shape.block_tokens;
    return memcmp(block->ids, ids, block_tokens * sizeof *ids) == 0 &&
           memcmp(block->classes, l->classes, block_tokens) == 0;
}

/* The block of that key, pinned; NULL = none in memory. */
static cache_block *find(const lookup *l, const uint8_t *key, const uint64_t *ids) {
    pthread_mutex_lock(&l->cache->lock);
    cache_block *block = (cache_block *)(void *)kvant_prefix_index_find(l->cache->index, key);
    if (block != NULL && is_same(l, block, ids))
        kvant_prefix_index_pin(l->cache->index, &block->entry);
    else
        block = NULL;
    pthread_mutex_unlock(&l->cache->lock);
    return block;
}

/* From the store into memory, where others find it from now on. If one of them was faster, theirs is
 * taken. */
static cache_block *fetch(lookup *l, const uint8_t *key, const uint8_t *parent, uint32_t number,
                          const uint64_t *ids) {
    kvant_cache *cache = l->cache;
    cache_block *block = NULL;
    uint32_t reason = 0;
    if (cache->store == NULL ||
        cache_record_get(cache, cache->store, key, parent, number, ids, l->tags, l->prefix->salt,
                         l->prefix->salt_bytes, &block, &reason, NULL) != KVANT_OK ||
        block == NULL)
        return NULL;
    pthread_mutex_lock(&cache->lock);
    if (kvant_prefix_index_reserve(cache->index, 1) == KVANT_OK)
        (void)kvant_prefix_index_add(cache->index, &block->entry);
    cache_block *other = (cache_block *)(void *)kvant_prefix_index_find(cache->index, key);
    if (other != NULL && other != block && is_same(l, other, ids)) {
        kvant_prefix_index_pin(cache->index, &other->entry);
        cache_block_release(cache, block);
        block = other;
    }
    pthread_mutex_unlock(&cache->lock);
    l->from_store++;
    return block;
}

static kvant_status find_blocks(lookup *l) {
    uint32_t block_tokens = l->cache->shape.block_tokens;
    const uint8_t *parent = NULL;
    for (uint32_t i = 0; i < l->limit; i++) {
        uint8_t key[KVANT_BLOCK_KEY_BYTES];
        const uint64_t *ids = l->prefix->ids + (uint64_t)i * block_tokens;
        set_tags(l, i);
        kvant_status status =
            kvant_block_key(l->hasher, parent, ids, l->classes, block_tokens, i == 0 ? l->prefix->salt : NULL,
                            i == 0 ? l->prefix->salt_bytes : 0, key);
        if (status != KVANT_OK) return status;
        cache_block *block = find(l, key, ids);
        if (block == NULL) block = fetch(l, key, parent, i, ids);
        if (block == NULL) return KVANT_OK;
        l->match->blocks[l->match->block_count++] = block;
        parent = block->entry.key;
    }
    return KVANT_OK;
}

/* ---- Windows ------------------------------------------------------------------------------------------- */

/* The first block that the token after `blocks` blocks sees in a layer. */
static uint32_t first_seen(const cache_shape *shape, uint32_t layer, uint32_t blocks) {
    return (uint32_t)(cache_window_first(shape, layer, (uint64_t)blocks * shape->block_tokens) /
                      shape->block_tokens);
}

/* The last of the first `blocks` blocks that the token after them sees in some layer and that was released
 * there; `blocks` if there is none. Layers without a window release nothing. */
static uint32_t last_released(const kvant_match *match, uint32_t blocks) {
    const cache_shape *shape = &match->cache->shape;
    uint32_t last = blocks;
    for (uint32_t layer = 0; layer < shape->layer_count && shape->windowed > 0; layer++) {
        if (shape->layers[layer].window == 0) continue;
        uint32_t from = last < blocks ? last + 1 : first_seen(shape, layer, blocks);
        if (from < first_seen(shape, layer, blocks)) from = first_seen(shape, layer, blocks);
        for (uint32_t i = blocks; i > from; i--)
            if (!cache_block_has(match->blocks[i - 1], layer)) {
                last = i - 1;
                break;
            }
    }
    return last;
}

void match_settle(kvant_match *match) {
    const cache_shape *shape = &match->cache->shape;
    uint32_t blocks = match->block_count;
    /* Whatever ends behind that block, and before `blocks`, sees it too. */
    for (uint32_t last; (last = last_released(match, blocks)) < blocks;) blocks = last;
    while (match->block_count > blocks)
        cache_block_release(match->cache, match->blocks[--match->block_count]);
    for (uint32_t layer = 0; layer < shape->layer_count; layer++) {
        match->passed[layer] = first_seen(shape, layer, blocks);
        for (uint32_t i = match->passed[layer]; i < blocks && shape->layers[layer].window != 0; i++)
            cache_block_need(match->blocks[i], layer);
    }
}

/* ---- The calls ----------------------------------------------------------------------------------------- */

kvant_status cache_check_prefix(const kvant_cache *cache, const kvant_prefix *prefix, kvant_diag *diag) {
    if (prefix == NULL || prefix->struct_size < sizeof *prefix)
        return REFUSE(KVANT_ERROR_ARGUMENT, "prefix", "the prefix is NULL, or its struct_size is not set");
    if ((prefix->ids == NULL && prefix->count != 0) || (prefix->salt == NULL && prefix->salt_bytes != 0))
        return REFUSE(KVANT_ERROR_ARGUMENT, "prefix",
                      "ids of some tokens, or a salt of some bytes, are NULL");
    if (prefix->count / cache->shape.block_tokens >= UINT32_MAX / 4)
        return REFUSE(KVANT_ERROR_ARGUMENT, "count", "a prefix of %llu tokens",
                      (unsigned long long)prefix->count);
    if (cache->plan->canonical == NULL)
        return REFUSE(KVANT_ERROR_MISSING, "model",
                      "blocks have no keys: the geometry names no model (weights, revision, adapters)");
    return KVANT_OK;
}

kvant_match *match_new(kvant_cache *cache, const kvant_prefix *prefix, uint32_t room) {
    kvant_match *match = calloc(1, sizeof *match);
    if (match == NULL) return NULL;
    match->cache = cache;
    match->blocks = calloc(room > 0 ? room : 1, sizeof(cache_block *));
    match->passed = calloc(cache->shape.layer_count, sizeof *match->passed);
    match->salt = malloc(prefix->salt_bytes > 0 ? (size_t)prefix->salt_bytes : 1);
    if (match->blocks == NULL || match->passed == NULL || match->salt == NULL) {
        kvant_match_release(match);
        return NULL;
    }
    if (prefix->salt_bytes > 0) memcpy(match->salt, prefix->salt, (size_t)prefix->salt_bytes);
    match->salt_bytes = prefix->salt_bytes;
    return match;
}

void kvant_match_release(kvant_match *match) {
    if (match == NULL) return;
    const cache_shape *shape = &match->cache->shape;
    pthread_mutex_lock(&match->cache->lock);
    for (uint32_t i = match->block_count; i-- > 0;) {
        for (uint32_t layer = 0; layer < shape->layer_count; layer++)
            if (shape->layers[layer].window != 0 && i >= match->passed[layer])
                cache_block_pass(match->cache, match->blocks[i], layer, true);
        cache_block_release(match->cache, match->blocks[i]);
    }
    pthread_mutex_unlock(&match->cache->lock);
    free(match->blocks);
    free(match->passed);
    free(match->salt);
    free(match);
}

uint64_t kvant_match_tokens(const kvant_match *match) {
    return match != NULL ? (uint64_t)match->block_count * match->cache->shape.block_tokens : 0;
}

kvant_status kvant_cache_lookup(kvant_cache *cache, const kvant_prefix *prefix, kvant_match **match,
                                kvant_diag *diag) {
    if (cache == NULL || match == NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT, "", "kvant_cache_lookup: cache or match is NULL");
    kvant_status status = cache_check_prefix(cache, prefix, diag);
    if (status != KVANT_OK) return status;
    if (prefix->first_step_end == 0)
        return REFUSE(KVANT_ERROR_ARGUMENT, "first_step_end", "kvant_cache_lookup: first_step_end is 0");
    uint64_t newest = cache->shape.recent > 0 ? cache->shape.recent : 1;
    uint64_t end = prefix->first_step_end > newest ? prefix->first_step_end - newest : 0;
    if (end > prefix->count) end = prefix->count;
    lookup l = {.cache = cache, .prefix = prefix, .limit = (uint32_t)(end / cache->shape.block_tokens)};
    l.match = match_new(cache, prefix, l.limit);
    l.tags = malloc(2 * (size_t)cache->shape.block_tokens);
    if (l.match == NULL || l.tags == NULL) status = KVANT_ERROR_MEMORY;
    if (l.tags != NULL) l.classes = l.tags + cache->shape.block_tokens;
    if (status == KVANT_OK) status = cache_hasher_take(cache, &l.hasher);
    if (status == KVANT_OK) status = find_blocks(&l);
    if (l.hasher != NULL) cache_hasher_give(cache, l.hasher);
    free(l.tags);
    if (status != KVANT_OK) {
        if (l.match != NULL) match_forget(l.match);
        return REFUSE(status, "", "out of memory");
    }
    pthread_mutex_lock(&cache->lock);
    match_settle(l.match);
    cache->counters.lookups++;
    cache->counters.asked_tokens += prefix->count;
    cache->counters.found_tokens += (uint64_t)l.match->block_count * cache->shape.block_tokens;
    cache->counters.stored_hits += l.from_store;
    pthread_mutex_unlock(&cache->lock);
    *match = l.match;
    return KVANT_OK;
}

/* Of a match that is not settled: no layer needs anything yet. */
void match_forget(kvant_match *match) {
    for (uint32_t layer = 0; layer < match->cache->shape.layer_count; layer++)
        match->passed[layer] = match->block_count;
    kvant_match_release(match);
}

kvant_status kvant_sequence_create_from(const kvant_match *match, kvant_sequence **sequence,
                                        kvant_diag *diag) {
    if (match == NULL || sequence == NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT, "", "kvant_sequence_create_from: match or sequence is NULL");
    kvant_cache *cache = match->cache;
    const cache_shape *shape = &cache->shape;
    kvant_sequence *made = sequence_new(cache, match->salt, match->salt_bytes);
    if (made == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    if (!cache_list_reserve(cache, (void **)&made->blocks, &made->block_room, match->block_count,
                            sizeof *made->blocks)) {
        sequence_delete(made);
        return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    }
    if (match->block_count > 0)
        memcpy(made->blocks, match->blocks, match->block_count * sizeof *made->blocks);
    memcpy(made->passed, match->passed, shape->layer_count * sizeof *made->passed);
    made->block_count = match->block_count;
    made->tail_first = made->length = (uint64_t)match->block_count * shape->block_tokens;
    pthread_mutex_lock(&cache->lock);
    sequence_hold(made);
    pthread_mutex_unlock(&cache->lock);
    *sequence = made;
    return KVANT_OK;
}
