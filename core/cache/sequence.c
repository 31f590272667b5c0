/* Sequences: made, forked, freed, asked. See cache.h. */
#include "cache/sequence.h"

#include <kvant/kit/diag.h>

#include <stddef.h>
#include <string.h>

/* ---- Make and free ------------------------------------------------------------------------------------- */

kvant_sequence *sequence_new(kvant_cache *cache, const void *salt, uint64_t salt_bytes) {
    uint32_t layers = cache->shape.layer_count;
    kvant_sequence *s = cache_take(cache, sizeof *s);
    if (s == NULL) return NULL;
    s->cache = cache;
    s->private_first = UINT64_MAX;
    s->passed = cache_take(cache, layers * sizeof *s->passed);
    if (salt_bytes > 0) s->salt = cache_take(cache, salt_bytes);
    if (s->passed == NULL || (salt_bytes > 0 && s->salt == NULL)) {
        cache_give(cache, s->passed, layers * sizeof *s->passed);
        cache_give(cache, s->salt, salt_bytes);
        cache_give(cache, s, sizeof *s);
        return NULL;
    }
    if (salt_bytes > 0) memcpy(s->salt, salt, (size_t)salt_bytes);
    s->salt_bytes = salt_bytes;
    pthread_mutex_lock(&cache->lock);
    cache->sequences++;
    pthread_mutex_unlock(&cache->lock);
    return s;
}

void sequence_delete(kvant_sequence *s) {
    kvant_cache *cache = s->cache;
    cache_give(cache, s->blocks, s->block_room * sizeof *s->blocks);
    cache_give(cache, s->pages, s->page_room * sizeof *s->pages);
    cache_give(cache, s->dropped, s->dropped_room * sizeof *s->dropped);
    cache_give(cache, s->passed, cache->shape.layer_count * sizeof *s->passed);
    cache_give(cache, s->salt, s->salt_bytes);
    cache_give(cache, s, sizeof *s);
    pthread_mutex_lock(&cache->lock);
    cache->sequences--;
    pthread_mutex_unlock(&cache->lock);
}

void sequence_release_blocks(kvant_sequence *s, uint32_t first) {
    const cache_shape *shape = &s->cache->shape;
    for (uint32_t i = s->block_count;
         i-- > first;) { /* the last first: leaves of the index are used longest ago */
        for (uint32_t layer = 0; layer < shape->layer_count; layer++)
            if (shape->layers[layer].window != 0 && i >= s->passed[layer])
                cache_block_pass(s->cache, s->blocks[i], layer, true);
        cache_block_release(s->cache, s->blocks[i]);
    }
    if (first < s->block_count) s->block_count = first;
    for (uint32_t layer = 0; layer < shape->layer_count; layer++)
        if (s->passed[layer] > s->block_count) s->passed[layer] = s->block_count;
}

void sequence_clear(kvant_sequence *s) {
    pthread_mutex_lock(&s->cache->lock);
    sequence_release_blocks(s, 0);
    for (uint32_t i = 0; i < s->page_count; i++) cache_page_release(s->cache, s->pages[i]);
    pthread_mutex_unlock(&s->cache->lock);
    s->page_count = s->dropped_count = 0;
    s->tail_first = s->length = 0;
    s->private_first = UINT64_MAX;
}

kvant_status kvant_sequence_create(kvant_cache *cache, const void *salt, uint64_t salt_bytes,
                                   kvant_sequence **sequence, kvant_diag *diag) {
    if (cache == NULL || sequence == NULL || (salt == NULL && salt_bytes != 0))
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "kvant_sequence_create: cache, sequence or a salt of some bytes is NULL");
    kvant_sequence *made = sequence_new(cache, salt, salt_bytes);
    if (made == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    *sequence = made;
    return KVANT_OK;
}

void kvant_sequence_free(kvant_sequence *sequence) {
    if (sequence == NULL) return;
    kvant_step_abort(sequence);
    sequence_clear(sequence);
    sequence_delete(sequence);
}

void kvant_sequence_reset(kvant_sequence *sequence) {
    if (sequence == NULL) return;
    kvant_step_abort(sequence);
    sequence_clear(sequence);
}

/* ---- Fork ---------------------------------------------------------------------------------------------- */

void sequence_hold(const kvant_sequence *s) {
    const cache_shape *shape = &s->cache->shape;
    for (uint32_t i = 0; i < s->block_count; i++)
        kvant_prefix_index_pin(s->cache->index, &s->blocks[i]->entry);
    for (uint32_t layer = 0; layer < shape->layer_count; layer++)
        for (uint32_t i = s->passed[layer]; i < s->block_count && shape->layers[layer].window != 0; i++)
            cache_block_need(s->blocks[i], layer);
    for (uint32_t i = 0; i < s->page_count; i++) s->pages[i]->holders++;
}

kvant_sequence *sequence_copy(const kvant_sequence *s) {
    kvant_cache *cache = s->cache;
    kvant_sequence *copy = sequence_new(cache, s->salt, s->salt_bytes);
    if (copy == NULL) return NULL;
    if (!cache_list_reserve(cache, (void **)&copy->blocks, &copy->block_room, s->block_count,
                            sizeof *s->blocks) ||
        !cache_list_reserve(cache, (void **)&copy->pages, &copy->page_room, s->page_count,
                            sizeof *s->pages) ||
        !cache_list_reserve(cache, (void **)&copy->dropped, &copy->dropped_room, s->dropped_count,
                            sizeof *s->dropped)) {
        sequence_delete(copy);
        return NULL;
    }
    if (s->block_count > 0) memcpy(copy->blocks, s->blocks, s->block_count * sizeof *s->blocks);
    if (s->page_count > 0) memcpy(copy->pages, s->pages, s->page_count * sizeof *s->pages);
    if (s->dropped_count > 0) memcpy(copy->dropped, s->dropped, s->dropped_count * sizeof *s->dropped);
    memcpy(copy->passed, s->passed, cache->shape.layer_count * sizeof *s->passed);
    copy->block_count = s->block_count;
    copy->page_count = s->page_count;
    copy->dropped_count = s->dropped_count;
    copy->tail_first = s->tail_first;
    copy->length = s->length;
    copy->private_first = s->private_first;
    pthread_mutex_lock(&cache->lock);
    sequence_hold(copy);
    pthread_mutex_unlock(&cache->lock);
    return copy;
}

kvant_status kvant_sequence_fork(const kvant_sequence *sequence, kvant_sequence **fork, kvant_diag *diag) {
    if (sequence == NULL || fork == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_sequence_fork: sequence or fork is NULL");
    if (sequence->step != NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "kvant_sequence_fork: the sequence is in a step; commit or abort it first");
    kvant_sequence *made = sequence_copy(sequence);
    if (made == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    *fork = made;
    return KVANT_OK;
}

/* ---- Questions ----------------------------------------------------------------------------------------- */

uint64_t cache_block_end(const kvant_sequence *s, uint32_t index) {
    uint64_t next = index + 1 < s->block_count ? s->blocks[index + 1]->first_position : s->tail_first;
    uint64_t whole = s->blocks[index]->first_position + s->cache->shape.block_tokens;
    return whole < next ? whole : next;
}

void sequence_live(const kvant_sequence *s, uint64_t first, uint64_t end,
                   void (*visit)(void *context, uint64_t from, uint64_t to), void *context) {
    for (uint32_t i = 0; i < s->dropped_count && first < end; i++) {
        const cache_span *gap = &s->dropped[i];
        if (gap->end <= first) continue;
        if (gap->first >= end) break;
        if (gap->first > first) visit(context, first, gap->first);
        first = gap->end;
    }
    if (first < end) visit(context, first, end);
}

bool sequence_is_dropped(const kvant_sequence *s, uint64_t first, uint64_t end) {
    for (uint32_t i = 0; i < s->dropped_count; i++)
        if (s->dropped[i].first <= first && end <= s->dropped[i].end) return true;
    return false;
}

kvant_status kvant_sequence_describe(const kvant_sequence *sequence, kvant_sequence_info *info) {
    if (sequence == NULL || info == NULL || info->struct_size < offsetof(kvant_sequence_info, length))
        return KVANT_ERROR_ARGUMENT;
    uint64_t gone = 0;
    for (uint32_t i = 0; i < sequence->dropped_count; i++)
        gone += sequence->dropped[i].end - sequence->dropped[i].first;
    kvant_sequence_info all = {.struct_size = info->struct_size,
                               .in_step = sequence->step != NULL,
                               .length = sequence->length,
                               .live_tokens = sequence->length - gone,
                               .blocks = sequence->block_count,
                               .tail_first = sequence->tail_first,
                               .private_first = sequence->private_first};
    memcpy(info, &all, info->struct_size < sizeof all ? info->struct_size : sizeof all);
    return KVANT_OK;
}

static void add_extent(kvant_bytes *bytes, const kvant_cache *cache, const cache_block *block, uint32_t i) {
    const kvant_layout *layout = &cache->plan->entries[i].layout;
    if (block->extents[i].index == KVANT_POOL_NONE) return;
    uint64_t payload = 0, metadata = 0;
    cache_extent_parts(layout, block->extents[i].steps, &payload, &metadata);
    bytes->payload += payload;
    bytes->metadata += metadata;
    bytes->padding +=
        cache_rounded(&cache->shape, cache_extent_size(cache, block, i / 2, i % 2)) - payload - metadata;
}

kvant_status kvant_sequence_bytes(const kvant_sequence *sequence, kvant_bytes *bytes) {
    if (sequence == NULL || bytes == NULL || bytes->struct_size < sizeof *bytes) return KVANT_ERROR_ARGUMENT;
    kvant_cache *cache = sequence->cache;
    const cache_shape *shape = &cache->shape;
    kvant_bytes all = {.struct_size = bytes->struct_size};
    all.tables = cache_sequence_tables(shape, sequence->salt_bytes, sequence->block_room, sequence->page_room,
                                       sequence->dropped_room);
    pthread_mutex_lock(&cache->lock); /* windows of others may release extents */
    for (uint32_t b = 0; b < sequence->block_count; b++) {
        const cache_block *block = sequence->blocks[b];
        for (uint32_t i = 0; i < 2 * shape->layer_count; i++) add_extent(&all, cache, block, i);
        all.tables += cache_block_tables(shape) + block->salt_bytes;
        if (block->sinks == NULL) continue;
        all.raw += cache_rounded(shape, shape->sinks_bytes);
        all.tables += cache_page_tables(shape);
    }
    pthread_mutex_unlock(&cache->lock);
    all.raw += sequence->page_count * cache_rounded(shape, shape->page_bytes);
    all.tables += sequence->page_count * cache_page_tables(shape);
    all.total = all.payload + all.metadata + all.padding + all.raw + all.tables;
    *bytes = all;
    return KVANT_OK;
}
