/* A sequence from memory and a store.
 *
 * First its blocks, one after the other, as many as there are: from the index, or from the store into pool
 * and index. Then its end. How many of its tokens the sequence that was saved had encoded is written nowhere,
 * and a tail is found only by the hash of its tokens; so ends are tried, the longest first, and of the same
 * length the one that a sequence has which only grew, then those with fewer blocks (tentative tokens were
 * kept), then those with more (tokens were cut off). For the length that was asked for every end is tried
 * that save writes; for shorter ones those up to 64 tokens from the usual.
 *
 *     usual blocks of t tokens = floor((t - recent) / block_tokens)
 *
 * An end is good where the next token sees nothing that windows have released. */
#include "cache/cache_record.h"
#include "cache/sequence.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>
#include <string.h>

enum { SLACK = 64 };

typedef struct load {
    kvant_cache *cache;
    kvant_store *store;
    const kvant_prefix *prefix;
    uint8_t *classes; /* [count] */
    kvant_block_hasher *hasher;
    kvant_sequence *sequence;
    uint32_t reason; /* of the first miss that says more than that nothing is there */
} load;

static void note(load *l, uint32_t reason) {
    if (l->reason == KVANT_STORE_FOUND || l->reason == KVANT_STORE_ABSENT) l->reason = reason;
}

static const uint8_t *key_before(const load *l, uint64_t block) {
    return block > 0 ? l->sequence->blocks[block - 1]->entry.key : NULL;
}

static const uint8_t *tags_from(const load *l, uint64_t first) {
    return l->prefix->tags != NULL ? l->prefix->tags + first : NULL;
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

static bool same_tokens(const load *l, const cache_block *block, uint64_t number) {
    uint32_t tokens = l->cache->shape.block_tokens;
    uint64_t first = number * tokens;
    return block->first_position == first &&
           memcmp(block->ids, l->prefix->ids + first, tokens * sizeof *block->ids) == 0 &&
           memcmp(block->classes, l->classes + first, tokens) == 0;
}

/* The block of that key, held; NULL if it is not there, or (a hash that collides) another's. Under the lock.
 */
static cache_block *hold_indexed(const load *l, const uint8_t *key, uint64_t number) {
    kvant_index_entry *entry = kvant_prefix_index_find(l->cache->index, key);
    cache_block *block = (cache_block *)(void *)entry;
    if (entry == NULL || !same_tokens(l, block, number)) return NULL;
    kvant_prefix_index_pin(l->cache->index, entry);
    return block;
}

static uint64_t usual_blocks(const cache_shape *shape, uint64_t tokens) {
    return tokens > shape->recent ? (tokens - shape->recent) / shape->block_tokens : 0;
}

/* Whether the block lacks what the windows of a usual sequence of all the tokens have not passed yet. */
static bool lacks(const load *l, const cache_block *block) {
    const cache_shape *shape = &l->cache->shape;
    uint64_t end = block->first_position + shape->block_tokens;
    uint64_t tail_first = usual_blocks(shape, l->prefix->count) * shape->block_tokens;
    for (uint32_t layer = 0; layer < shape->layer_count; layer++) {
        uint32_t window = shape->layers[layer].window;
        bool passed = tail_first > window && end <= tail_first - window;
        if (window != 0 && !passed && !cache_block_has(block, layer)) return true;
    }
    return false;
}

/* Others shall find it too. Where somebody else was quicker, theirs takes its place; one whose block before
 * is not in the index stays its sequence's own. Under the lock. */
static cache_block *share(const load *l, cache_block *block, uint64_t number) {
    kvant_prefix_index *index = l->cache->index;
    cache_block *other = hold_indexed(l, block->entry.key, number);
    if (other != NULL && !lacks(l, other)) {
        cache_block_release(l->cache, block);
        return other;
    }
    if (other != NULL) {
        cache_block_release(l->cache, other);
        return block;
    }
    if (kvant_prefix_index_reserve(index, 1) == KVANT_OK) (void)kvant_prefix_index_add(index, &block->entry);
    return block;
}

/* What is there of it stays there until the sequence's windows pass. Under the lock. */
static void need_in_all(const load *l, cache_block *block) {
    for (uint32_t layer = 0; layer < l->cache->shape.layer_count; layer++)
        if (l->cache->shape.layers[layer].window != 0) cache_block_need(block, layer);
}

/* The next block, held; *block = NULL where there is none. */
static kvant_status next_block(load *l, uint64_t number, cache_block **block, kvant_diag *diag) {
    uint32_t tokens = l->cache->shape.block_tokens, reason = KVANT_STORE_FOUND;
    uint64_t first = number * tokens;
    const kvant_prefix *prefix = l->prefix;
    uint8_t key[KVANT_BLOCK_KEY_BYTES];
    cache_block *stored = NULL;
    kvant_status status = kvant_block_key(l->hasher, key_before(l, number), prefix->ids + first,
                                          l->classes + first, tokens, prefix->salt, prefix->salt_bytes, key);
    if (status != KVANT_OK) return kvant_fail(diag, status, "", "out of memory");
    pthread_mutex_lock(&l->cache->lock);
    *block = hold_indexed(l, key, number);
    bool enough = *block != NULL && !lacks(l, *block);
    pthread_mutex_unlock(&l->cache->lock);
    if (!enough)
        status =
            cache_record_get(l->cache, l->store, key, key_before(l, number), number, prefix->ids + first,
                             tags_from(l, first), prefix->salt, prefix->salt_bytes, &stored, &reason, diag);
    if (*block == NULL) note(l, reason);
    pthread_mutex_lock(&l->cache->lock);
    if (*block != NULL && stored != NULL && lacks(l, stored)) { /* no better than what is in memory */
        cache_block_release(l->cache, stored);
        stored = NULL;
    }
    if (*block != NULL && (stored != NULL || status != KVANT_OK)) cache_block_release(l->cache, *block);
    if (stored != NULL) *block = share(l, stored, number);
    if (status == KVANT_OK && *block != NULL) need_in_all(l, *block);
    pthread_mutex_unlock(&l->cache->lock);
    return status;
}

static kvant_status load_blocks(load *l, kvant_diag *diag) {
    kvant_sequence *s = l->sequence;
    uint64_t most = l->prefix->count / l->cache->shape.block_tokens;
    kvant_status status = KVANT_OK;
    while (s->block_count < most && status == KVANT_OK) {
        cache_block *block = NULL;
        if (!cache_list_reserve(l->cache, (void **)&s->blocks, &s->block_room, (uint64_t)s->block_count + 1,
                                sizeof *s->blocks))
            return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
        status = next_block(l, s->block_count, &block, diag);
        if (status != KVANT_OK || block == NULL) break;
        s->blocks[s->block_count++] = block;
    }
    return status;
}

/* ---- The end ------------------------------------------------------------------------------------------- */

/* Whether the token after `tokens` tokens, of which `blocks` blocks are encoded, sees nothing that is absent.
 * The blocks are needed by the sequence in all layers: what is there stays. */
static bool sees_all(const load *l, uint64_t blocks, uint64_t tokens) {
    const cache_shape *shape = &l->cache->shape;
    for (uint32_t layer = 0; layer < shape->layer_count && shape->windowed > 0; layer++) {
        if (shape->layers[layer].window == 0) continue;
        uint64_t seen = cache_window_first(shape, layer, tokens);
        for (uint64_t i = blocks; i-- > 0 && (i + 1) * shape->block_tokens > seen;)
            if (!cache_block_has(l->sequence->blocks[i], layer)) return false;
    }
    return true;
}

/* Takes the tail behind `blocks` blocks, up to `tokens` tokens, if it is there. */
static kvant_status try_tail(load *l, uint64_t blocks, uint64_t tokens, bool *taken, kvant_diag *diag) {
    uint64_t first = blocks * l->cache->shape.block_tokens;
    uint8_t key[KVANT_BLOCK_KEY_BYTES];
    const kvant_prefix *prefix = l->prefix;
    cache_wanted wanted = {.cache = l->cache,
                           .kind = KVANT_STORE_TAIL,
                           .tokens = (uint32_t)(tokens - first),
                           .number = blocks,
                           .key = key,
                           .parent = key_before(l, blocks),
                           .ids = prefix->ids + first,
                           .tags = tags_from(l, first),
                           .salt = prefix->salt,
                           .salt_bytes = prefix->salt_bytes};
    if (!sees_all(l, blocks, tokens)) return KVANT_OK;
    kvant_status status = kvant_block_key(l->hasher, wanted.parent, wanted.ids, l->classes + first,
                                          wanted.tokens, prefix->salt, prefix->salt_bytes, key);
    if (status != KVANT_OK) return kvant_fail(diag, status, "", "out of memory");
    kvant_store_key asked =
        cache_store_key(l->cache, KVANT_STORE_TAIL, key, prefix->salt, prefix->salt_bytes);
    status = kvant_store_contains(l->store, &asked, NULL);
    if (status != KVANT_OK) {
        if (status != KVANT_ERROR_MISSING) note(l, KVANT_STORE_UNREADABLE);
        return KVANT_OK;
    }
    uint32_t reason = KVANT_STORE_FOUND;
    status = cache_tail_get(l->sequence, l->store, &wanted, &reason, diag);
    if (status != KVANT_OK) return status;
    note(l, reason);
    *taken = reason == KVANT_STORE_FOUND;
    return KVANT_OK;
}

/* The tails that end at `tokens`; *blocks: behind how many blocks the one that was taken lies. */
static kvant_status try_tails(load *l, uint64_t tokens, uint64_t *blocks, bool *taken, kvant_diag *diag) {
    const cache_shape *shape = &l->cache->shape;
    bool asked = tokens == l->prefix->count;
    uint64_t found = l->sequence->block_count, longest = cache_tail_max(shape);
    uint64_t most = (tokens - 1) / shape->block_tokens; /* a tail has tokens */
    uint64_t least =
        tokens > longest ? (tokens - longest + shape->block_tokens - 1) / shape->block_tokens : 0;
    uint64_t usual = usual_blocks(shape, tokens);
    if (!asked && usual_blocks(shape, tokens + SLACK) < most) most = usual_blocks(shape, tokens + SLACK);
    if (!asked && tokens > SLACK && usual_blocks(shape, tokens - SLACK) > least)
        least = usual_blocks(shape, tokens - SLACK);
    if (most > found) most = found;
    if (usual > most) usual = most;
    kvant_status status = KVANT_OK;
    for (uint64_t k = usual + 1; k-- > least && status == KVANT_OK && !*taken;) {
        *blocks = k;
        status = try_tail(l, k, tokens, taken, diag);
    }
    for (uint64_t k = usual + 1; k <= most && status == KVANT_OK && !*taken; k++) {
        *blocks = k;
        status = try_tail(l, k, tokens, taken, diag);
    }
    return status;
}

/* Whether the sequence can end with the block that ends at `tokens`; of 0 tokens it can. */
static bool ends_with_block(const load *l, uint64_t tokens, uint64_t *blocks) {
    *blocks = tokens / l->cache->shape.block_tokens;
    return tokens % l->cache->shape.block_tokens == 0 && *blocks <= l->sequence->block_count &&
           sees_all(l, *blocks, tokens);
}

static kvant_status find_end(load *l, kvant_diag *diag) {
    kvant_sequence *s = l->sequence;
    const cache_shape *shape = &l->cache->shape;
    uint64_t found = (uint64_t)s->block_count * shape->block_tokens, tokens = l->prefix->count, blocks = 0;
    uint64_t reach = found + shape->recent + shape->block_tokens - 1 + SLACK; /* of unusual tails */
    bool taken = false;
    for (;;) {
        kvant_status status = tokens > 0 ? try_tails(l, tokens, &blocks, &taken, diag) : KVANT_OK;
        if (status != KVANT_OK) return status;
        if (taken || ends_with_block(l, tokens, &blocks)) break;
        tokens = tokens > reach + 1 ? reach : tokens - 1;
    }
    pthread_mutex_lock(&l->cache->lock);
    sequence_release_blocks(s, (uint32_t)blocks);
    pthread_mutex_unlock(&l->cache->lock);
    s->tail_first = blocks * shape->block_tokens;
    s->length = tokens;
    return KVANT_OK;
}

/* The windows stand where those of the sequence that was saved stood: behind what is absent, and behind what
 * is older than they reach. */
static void settle_windows(load *l) {
    kvant_sequence *s = l->sequence;
    const cache_shape *shape = &l->cache->shape;
    pthread_mutex_lock(&l->cache->lock);
    for (uint32_t layer = 0; layer < shape->layer_count; layer++) {
        if (shape->layers[layer].window == 0) continue;
        uint32_t passed = s->block_count;
        while (passed > 0 && cache_block_has(s->blocks[passed - 1], layer)) passed--;
        for (; s->passed[layer] < passed; s->passed[layer]++)
            cache_block_pass(l->cache, s->blocks[s->passed[layer]], layer, false);
    }
    sequence_pass_windows(s);
    pthread_mutex_unlock(&l->cache->lock);
}

/* ---- All of it ----------------------------------------------------------------------------------------- */

static kvant_status check_arguments(const kvant_cache *cache, const kvant_store *store,
                                    const kvant_prefix *prefix, kvant_sequence *const *sequence,
                                    kvant_diag *diag) {
    if (cache == NULL || store == NULL || sequence == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "kvant_sequence_load: cache, store or sequence is NULL");
    return cache_check_prefix(cache, prefix, diag);
}

static kvant_status open_load(load *l, kvant_diag *diag) {
    const kvant_prefix *prefix = l->prefix;
    kvant_status status = cache_hasher_take(l->cache, &l->hasher);
    if (status != KVANT_OK) return kvant_fail(diag, status, "", "out of memory");
    l->classes = malloc((size_t)prefix->count + 1);
    l->sequence = sequence_new(l->cache, prefix->salt, prefix->salt_bytes);
    if (l->classes == NULL || l->sequence == NULL)
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    for (uint64_t t = 0; t < prefix->count; t++)
        l->classes[t] = l->cache->tag_class[prefix->tags != NULL ? prefix->tags[t] : 0];
    return KVANT_OK;
}

kvant_status kvant_sequence_load(kvant_cache *cache, kvant_store *store, const kvant_prefix *prefix,
                                 kvant_sequence **sequence, uint32_t *reason, kvant_diag *diag) {
    kvant_status status = check_arguments(cache, store, prefix, sequence, diag);
    if (status != KVANT_OK) return status;
    load l = {.cache = cache, .store = store, .prefix = prefix, .reason = KVANT_STORE_FOUND};
    status = open_load(&l, diag);
    if (status == KVANT_OK) status = load_blocks(&l, diag);
    if (status == KVANT_OK) status = find_end(&l, diag);
    if (status == KVANT_OK) settle_windows(&l);
    if (l.hasher != NULL) cache_hasher_give(cache, l.hasher);
    free(l.classes);
    if (status != KVANT_OK) {
        kvant_sequence_free(l.sequence);
        return status;
    }
    if (l.reason == KVANT_STORE_FOUND)
        l.reason = KVANT_STORE_ABSENT; /* there was nothing to be missed but an end */
    if (reason != NULL) *reason = l.sequence->length == prefix->count ? KVANT_STORE_FOUND : l.reason;
    *sequence = l.sequence;
    return KVANT_OK;
}
