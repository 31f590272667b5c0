/* A sequence to a store. What can be saved is what others could have computed from the tokens alone: up to
 * the first token that is private or was dropped.
 *
 *     - Blocks of which every token lies before that, from block 0 on.
 *     - If these are all blocks of the sequence: the raw tail up to that token, as one record.
 *
 * So a sequence that was cut short among its raw tokens, or dropped some there, is saved as one that never
 * had them. A tail that is cut off at a page or in the middle of one makes no difference: rows are copied one
 * by one.
 *
 * Where windows have released extents, the beginning of a sequence alone may be of no use: what would have to
 * be seen after it is gone. Then less is saved: the longest that can be loaded. */
#include "cache/cache_record.h"

#include <kvant/kit/diag.h>

#include <string.h>

typedef struct save {
    const kvant_sequence *sequence;
    kvant_store *store;
    uint32_t blocks;
    uint32_t tail;
    kvant_store_key tail_key;
    kvant_saved saved;
} save;

/* Whether the token after `tokens` tokens, of which `blocks` blocks are encoded, sees nothing that was
 * released. Under the lock. */
static bool sees_all(const kvant_sequence *sequence, uint32_t blocks, uint64_t tokens) {
    const cache_shape *shape = &sequence->cache->shape;
    for (uint32_t layer = 0; layer < shape->layer_count; layer++) {
        if (shape->layers[layer].window == 0) continue;
        uint64_t seen = cache_window_first(shape, layer, tokens);
        for (uint32_t i = blocks; i-- > 0 && (uint64_t)(i + 1) * shape->block_tokens > seen;)
            if (!cache_block_has(sequence->blocks[i], layer)) return false;
    }
    return true;
}

static void find_limits(save *s) {
    const kvant_sequence *sequence = s->sequence;
    uint32_t block_tokens = sequence->cache->shape.block_tokens;
    uint64_t end = sequence->length, most = cache_tail_max(&sequence->cache->shape);
    if (sequence->private_first < end) end = sequence->private_first;
    if (sequence->dropped_count > 0 && sequence->dropped[0].first < end) end = sequence->dropped[0].first;
    for (uint32_t i = 0; i < sequence->block_count; i++, s->blocks++) {
        const cache_block *block = sequence->blocks[i];
        uint64_t first = (uint64_t)i * block_tokens;
        if (!block->identified || block->first_position != first ||
            cache_block_end(sequence, i) != first + block_tokens || first + block_tokens > end)
            break;
    }
    if (s->blocks == sequence->block_count && end > sequence->tail_first) {
        uint64_t tail = end - sequence->tail_first;
        s->tail = (uint32_t)(tail < most ? tail : most);
    }
    pthread_mutex_lock(&sequence->cache->lock);
    if (!sees_all(sequence, s->blocks, (uint64_t)s->blocks * block_tokens + s->tail)) {
        s->tail = 0;
        while (!sees_all(sequence, s->blocks, (uint64_t)s->blocks * block_tokens)) s->blocks--;
    }
    pthread_mutex_unlock(&sequence->cache->lock);
}

static kvant_status put_all(save *s, kvant_diag *diag) {
    const kvant_sequence *sequence = s->sequence;
    kvant_status status = KVANT_OK;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->blocks && status == KVANT_OK; i++) {
        status = cache_record_save(sequence->cache, sequence->blocks[i], s->store, sequence->salt,
                                   sequence->salt_bytes, &bytes, diag);
        s->saved.bytes += bytes;
    }
    if (status == KVANT_OK && s->tail > 0) {
        status = cache_tail_put(sequence, s->tail, s->store, &s->tail_key, &bytes, diag);
        s->saved.bytes += bytes;
    }
    s->saved.blocks = s->blocks;
    s->saved.tail_tokens = s->tail;
    s->saved.tokens = (uint64_t)s->blocks * sequence->cache->shape.block_tokens + s->tail;
    return status;
}

/* A store that is smaller than the sequence has made room for its end by evicting its beginning. */
static kvant_status look_again(const save *s, kvant_diag *diag) {
    const kvant_sequence *sequence = s->sequence;
    for (uint32_t i = 0; i < s->blocks; i++) {
        kvant_store_key key =
            cache_store_key(sequence->cache, KVANT_STORE_BLOCK, sequence->blocks[i]->entry.key,
                            sequence->salt, sequence->salt_bytes);
        if (kvant_store_contains(s->store, &key, NULL) == KVANT_ERROR_MISSING)
            return kvant_fail(
                diag, KVANT_ERROR_NO_SPACE, "capacity",
                "the store has evicted block %u of %u of this sequence before all of it was saved", i,
                s->blocks);
    }
    if (s->tail > 0 && kvant_store_contains(s->store, &s->tail_key, NULL) == KVANT_ERROR_MISSING)
        return kvant_fail(diag, KVANT_ERROR_NO_SPACE, "capacity",
                          "the store has evicted the raw tail of this sequence right after it was put");
    return KVANT_OK;
}

kvant_status kvant_sequence_save(const kvant_sequence *sequence, kvant_store *store, kvant_saved *saved,
                                 kvant_diag *diag) {
    if (sequence == NULL || store == NULL || (saved != NULL && saved->struct_size < sizeof *saved))
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "kvant_sequence_save: sequence or store is NULL, or struct_size is not set");
    if (sequence->step != NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "kvant_sequence_save: the sequence is in a step; commit or abort it first");
    uint8_t fingerprint[32];
    kvant_status status = kvant_plan_fingerprint(sequence->cache->plan, fingerprint, diag);
    if (status != KVANT_OK) return status;
    save s = {.sequence = sequence, .store = store};
    find_limits(&s);
    status = put_all(&s, diag);
    if (status == KVANT_OK) status = look_again(&s, diag);
    if (status != KVANT_OK) return status;
    if (saved != NULL) {
        s.saved.struct_size = saved->struct_size;
        *saved = s.saved;
    }
    return KVANT_OK;
}
