/* Truncate and drop: tokens that go, without a copy and without touching what is encoded. See cache.h. */
#include "cache/place.h"
#include "cache/sequence.h"

#include <kvant/kit/diag.h>

#include <string.h>

#define REFUSE(status, ...) kvant_fail(diag, (status), "", __VA_ARGS__)

/* What follows a block that was cut short is not where blocks of other sequences are; what was computed after
 * tokens were dropped is not what others would compute. */
void sequence_settle_private(kvant_sequence *s) {
    if (s->private_first >= s->length) s->private_first = s->dropped_count > 0 ? s->length : UINT64_MAX;
    if (s->tail_first % s->cache->shape.block_tokens != 0 && s->tail_first < s->private_first)
        s->private_first = s->tail_first;
}

/* Counted from the first raw token, not from the newest: so what a lookup finds of this sequence up to its
 * last block is whole, and truncating among raw tokens exposes nothing. */
void sequence_pass_windows(kvant_sequence *s) {
    const cache_shape *shape = &s->cache->shape;
    for (uint32_t layer = 0; layer < shape->layer_count; layer++) {
        uint32_t window = shape->layers[layer].window;
        if (window == 0 || s->tail_first <= window) continue;
        while (s->passed[layer] < s->block_count &&
               cache_block_end(s, s->passed[layer]) <= s->tail_first - window)
            cache_block_pass(s->cache, s->blocks[s->passed[layer]++], layer, false);
    }
}

/* ---- Truncate ------------------------------------------------------------------------------------------ */

static uint32_t pages_for(const kvant_sequence *s, uint64_t length) {
    return (uint32_t)((length - s->tail_first + s->cache->shape.block_tokens - 1) /
                      s->cache->shape.block_tokens);
}

static void release_pages(kvant_sequence *s, uint32_t first) {
    for (uint32_t i = first; i < s->page_count; i++) cache_page_release(s->cache, s->pages[i]);
    if (first < s->page_count) s->page_count = first;
}

static void cut_dropped(kvant_sequence *s, uint64_t length) {
    while (s->dropped_count > 0 && s->dropped[s->dropped_count - 1].first >= length) s->dropped_count--;
    if (s->dropped_count > 0 && s->dropped[s->dropped_count - 1].end > length)
        s->dropped[s->dropped_count - 1].end = length;
}

/* Whether the token at `length` sees only what is there in windowed layers; what others still hold there is
 * needed again. `blocks`: as many as stay. Under the lock. */
static kvant_status check_windows(kvant_sequence *s, uint64_t length, uint32_t blocks, bool apply,
                                  kvant_diag *diag) {
    const cache_shape *shape = &s->cache->shape;
    for (uint32_t layer = 0; layer < shape->layer_count; layer++) {
        if (shape->layers[layer].window == 0) continue;
        uint64_t first = cache_window_first(shape, layer, length);
        uint32_t passed = s->passed[layer] < blocks ? s->passed[layer] : blocks;
        for (; passed > 0; passed--) {
            const cache_block *block = s->blocks[passed - 1];
            uint64_t end = cache_block_end(s, passed - 1);
            if ((end < length ? end : length) <= first) break;
            if (!cache_block_has(block, layer))
                return REFUSE(
                    KVANT_ERROR_UNSUPPORTED,
                    "cannot truncate to %llu tokens: layer %u sees %u tokens, and has released block %u "
                    "(positions %llu to %llu)",
                    (unsigned long long)length, layer, shape->layers[layer].window, passed - 1,
                    (unsigned long long)block->first_position, (unsigned long long)end - 1);
        }
        if (!apply) continue;
        for (uint32_t i = passed; i < s->passed[layer] && i < blocks; i++)
            cache_block_need(s->blocks[i], layer);
        if (passed < s->passed[layer]) s->passed[layer] = passed;
    }
    return KVANT_OK;
}

/* Lets go of all blocks but the first `blocks` and all pages but the first `pages`. */
static kvant_status cut_lists(kvant_sequence *s, uint64_t length, uint32_t blocks, uint32_t pages,
                              kvant_diag *diag) {
    pthread_mutex_lock(&s->cache->lock);
    kvant_status status = check_windows(s, length, blocks, false, diag);
    if (status == KVANT_OK) { /* what goes is let go of first: it was passed as far as `passed` says now */
        sequence_release_blocks(s, blocks);
        (void)check_windows(s, length, blocks, true, NULL);
        release_pages(s, pages);
    }
    pthread_mutex_unlock(&s->cache->lock);
    return status;
}

/* The first `length` sinks to a page. block: NULL = they were dropped with it, and nobody reads them. */
static kvant_status copy_sinks(kvant_cache *cache, const cache_block *block, const cache_page *page,
                               uint32_t length, kvant_diag *diag) {
    if (block != NULL) return cache_page_copy(cache, block->sinks, true, page, length, diag);
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < 2 * cache->shape.layer_count && status == KVANT_OK; i++) {
        kvant_mutable_view rows = cache_page_rows(cache, page, i / 2, i % 2, 0, length);
        uint64_t bytes = length * cache->shape.layers[i / 2].row_bytes[i % 2];
        status = cache->place->zero(cache, rows.data, bytes, diag);
    }
    return status;
}

/* Among the sinks: their raw rows become the tail again. Where block 0 is gone all of them were dropped. */
static kvant_status cut_sinks(kvant_sequence *s, uint64_t length, kvant_diag *diag) {
    kvant_cache *cache = s->cache;
    cache_page *page = NULL;
    if (!cache_list_reserve(cache, (void **)&s->pages, &s->page_room, 1, sizeof *s->pages))
        return REFUSE(KVANT_ERROR_MEMORY, "out of memory");
    kvant_status status = cache_page_new(cache, cache->shape.page_bytes, &page);
    if (status != KVANT_OK)
        return REFUSE(status, "cannot truncate to %llu tokens, which are sinks: %s for a page of raw rows",
                      (unsigned long long)length,
                      status == KVANT_ERROR_NO_SPACE ? "the pool has no room" : "out of memory");
    const cache_block *block = s->block_count > 0 && s->blocks[0]->first_position == 0 ? s->blocks[0] : NULL;
    status = copy_sinks(cache, block, page, (uint32_t)length, diag);
    if (status != KVANT_OK) {
        pthread_mutex_lock(&cache->lock);
        cache_page_release(cache, page);
        pthread_mutex_unlock(&cache->lock);
        return status;
    }
    if (block != NULL) {
        memcpy(cache_page_ids(page), block->ids, (size_t)length * sizeof *block->ids);
        memcpy(cache_page_tags(&cache->shape, page), block->tags, (size_t)length);
    }
    pthread_mutex_lock(&cache->lock);
    sequence_release_blocks(s, 0);
    release_pages(s, 0);
    pthread_mutex_unlock(&cache->lock);
    s->pages[s->page_count++] = page;
    s->tail_first = 0;
    return KVANT_OK;
}

static kvant_status cut(kvant_sequence *s, uint64_t length, kvant_diag *diag) {
    if (length == 0) {
        sequence_clear(s);
        return KVANT_OK;
    }
    if (length >= s->tail_first) return cut_lists(s, length, s->block_count, pages_for(s, length), diag);
    if (length <= s->cache->shape.sinks) return cut_sinks(s, length, diag);
    uint32_t blocks = 0; /* those with a token before the cut */
    while (blocks < s->block_count && s->blocks[blocks]->first_position < length) blocks++;
    kvant_status status = cut_lists(s, length, blocks, 0, diag);
    if (status == KVANT_OK) s->tail_first = length;
    return status;
}

kvant_status kvant_sequence_truncate(kvant_sequence *sequence, uint64_t length, kvant_diag *diag) {
    if (sequence == NULL) return REFUSE(KVANT_ERROR_ARGUMENT, "kvant_sequence_truncate: sequence is NULL");
    if (sequence->step != NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT,
                      "kvant_sequence_truncate: the sequence is in a step; commit or abort it first");
    if (length > sequence->length)
        return REFUSE(KVANT_ERROR_ARGUMENT, "cannot truncate to %llu tokens: the sequence has %llu",
                      (unsigned long long)length, (unsigned long long)sequence->length);
    if (length == sequence->length) return KVANT_OK;
    kvant_status status = cut(sequence, length, diag);
    if (status != KVANT_OK) return status;
    sequence->length = length;
    cut_dropped(sequence, length);
    sequence_settle_private(sequence);
    return KVANT_OK;
}

/* ---- Drop ---------------------------------------------------------------------------------------------- */

/* Adds a span to the list, which has room for one more, and joins what touches. */
static void add_span(kvant_sequence *s, cache_span span) {
    uint32_t at = 0;
    while (at < s->dropped_count && s->dropped[at].end < span.first) at++;
    uint32_t after = at;
    for (; after < s->dropped_count && s->dropped[after].first <= span.end; after++) {
        if (s->dropped[after].first < span.first) span.first = s->dropped[after].first;
        if (s->dropped[after].end > span.end) span.end = s->dropped[after].end;
    }
    memmove(s->dropped + at + 1, s->dropped + after, (s->dropped_count - after) * sizeof *s->dropped);
    s->dropped_count = s->dropped_count - (after - at) + 1;
    s->dropped[at] = span;
}

/* Blocks of which nothing lives are let go of, wherever they stand. */
static void release_dropped_blocks(kvant_sequence *s) {
    const cache_shape *shape = &s->cache->shape;
    uint32_t kept = 0, count = s->block_count;
    uint32_t *passed = s->passed;
    pthread_mutex_lock(&s->cache->lock);
    for (uint32_t i = 0, original = 0; original < count; original++) {
        cache_block *block = s->blocks[original];
        uint64_t end = block->first_position + shape->block_tokens;
        uint64_t next = original + 1 < count ? s->blocks[original + 1]->first_position : s->tail_first;
        if (!sequence_is_dropped(s, block->first_position, end < next ? end : next)) {
            s->blocks[kept++] = block;
            i++;
            continue;
        }
        for (uint32_t layer = 0; layer < shape->layer_count; layer++) {
            if (shape->layers[layer].window == 0) continue;
            if (i < passed[layer])
                passed[layer]--;
            else
                cache_block_pass(s->cache, block, layer, true);
        }
        cache_block_release(s->cache, block);
    }
    s->block_count = kept;
    pthread_mutex_unlock(&s->cache->lock);
}

kvant_status kvant_sequence_drop(kvant_sequence *sequence, uint64_t first, uint64_t count, kvant_diag *diag) {
    if (sequence == NULL) return REFUSE(KVANT_ERROR_ARGUMENT, "kvant_sequence_drop: sequence is NULL");
    if (sequence->step != NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT,
                      "kvant_sequence_drop: the sequence is in a step; commit or abort it first");
    if (first > sequence->length || count > sequence->length - first)
        return REFUSE(
            KVANT_ERROR_ARGUMENT, "cannot drop %llu tokens from position %llu on: the sequence has %llu",
            (unsigned long long)count, (unsigned long long)first, (unsigned long long)sequence->length);
    if (count == 0) return KVANT_OK;
    if (!cache_list_reserve(sequence->cache, (void **)&sequence->dropped, &sequence->dropped_room,
                            (uint64_t)sequence->dropped_count + 1, sizeof *sequence->dropped))
        return REFUSE(KVANT_ERROR_MEMORY, "out of memory");
    add_span(sequence, (cache_span){first, first + count});
    release_dropped_blocks(sequence);
    sequence_settle_private(sequence);
    return KVANT_OK;
}
