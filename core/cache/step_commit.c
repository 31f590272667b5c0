/* The end of a step: published, or gone without a trace. See step.h. */
#include "cache/step.h"

#include <kvant/kit/diag.h>

/* Frees the step itself; what it held is somebody's or gone. */
static void forget(kvant_sequence *s) {
    cache_step *step = s->step;
    s->cache->place->end(s);
    cache_give(s->cache, step, step->table_bytes);
    s->step = NULL;
}

void kvant_step_abort(kvant_sequence *sequence) {
    if (sequence == NULL || sequence->step == NULL) return;
    kvant_cache *cache = sequence->cache;
    cache_step *step = sequence->step;
    pthread_mutex_lock(&cache->lock);
    for (uint32_t i = 0; i < step->sealed_count; i++)
        if (step->sealed[i] != NULL) cache_block_release(cache, step->sealed[i]);
    for (uint32_t i = 0; i < step->fresh_count; i++)
        if (step->fresh[i] != NULL) cache_page_release(cache, step->fresh[i]);
    if (step->copy != NULL) cache_page_release(cache, step->copy);
    if (step->reserved > 0) kvant_prefix_index_unreserve(cache->index, step->reserved);
    pthread_mutex_unlock(&cache->lock);
    forget(sequence);
}

/* ---- Commit -------------------------------------------------------------------------------------------- */

static kvant_status check(const kvant_sequence *s, uint32_t keep, kvant_diag *diag) {
    const cache_step *step = s->step;
    if (step == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_step_commit: the sequence is in no step");
    if (keep > step->count || keep < step->count - step->tentative)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "keep",
                          "kvant_step_commit: %u of %u tokens cannot be kept: %u of them are tentative", keep,
                          step->count, step->tentative);
    for (uint32_t layer = 0; layer < s->cache->shape.layer_count; layer++)
        if (step->layers[layer].state != CACHE_LAYER_DONE)
            return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "layer", "kvant_step_commit: layer %u %s", layer,
                              step->layers[layer].state == CACHE_LAYER_OPEN ? "is still open"
                                                                            : "got no keys and values");
    return KVANT_OK;
}

/* The sealed blocks become the sequence's. Under the lock. */
static void publish_blocks(kvant_sequence *s) {
    const cache_shape *shape = &s->cache->shape;
    for (uint32_t i = 0; i < s->step->sealed_count; i++) {
        cache_block *block = s->step->sealed[i];
        cache_block_count(s->cache, block);
        for (uint32_t layer = 0; layer < shape->layer_count; layer++)
            if (shape->layers[layer].window != 0) cache_block_need(block, layer);
        s->blocks[s->block_count++] = block;
    }
}

/* Blocks before the new ones that are not, or not any more, in the index: without them the new ones cannot be
 * found. */
static void index_ancestors(kvant_sequence *s, uint32_t first_new) {
    uint32_t first = first_new;
    while (first > 0 && s->blocks[first - 1]->identified &&
           kvant_prefix_index_find(s->cache->index, s->blocks[first - 1]->entry.key) == NULL)
        first--;
    for (; first < first_new; first++) {
        if (kvant_prefix_index_reserve(s->cache->index, 1) != KVANT_OK) return;
        if (!kvant_prefix_index_add(s->cache->index, &s->blocks[first]->entry)) return;
    }
}

/* So that lookups find them. Where another sequence has put the same tokens there first, its blocks stay. */
static void index_blocks(kvant_sequence *s) {
    uint32_t first = s->block_count - s->step->sealed_count;
    if (s->step->reserved == 0) return;
    index_ancestors(s, first);
    for (uint32_t i = first; i < s->block_count; i++)
        if (s->blocks[i]->identified) (void)kvant_prefix_index_add(s->cache->index, &s->blocks[i]->entry);
    s->step->reserved = 0;
}

/* Pages of what was sealed go, the others move up; fresh ones follow as far as tokens are kept. Under the
 * lock. */
static void publish_pages(kvant_sequence *s, uint64_t length) {
    cache_step *step = s->step;
    uint32_t block_tokens = s->cache->shape.block_tokens, kept = 0;
    uint32_t old_pages = s->page_count;
    if (step->copy != NULL) {
        cache_page_release(s->cache, s->pages[old_pages - 1]);
        s->pages[old_pages - 1] = step->copy;
        step->copy = NULL;
    }
    for (uint32_t place = 0; place < old_pages; place++) {
        if (place >= step->sealed_count)
            s->pages[kept++] = s->pages[place];
        else
            cache_page_release(s->cache, s->pages[place]);
    }
    for (uint32_t i = 0; i < step->fresh_count; i++) {
        if (s->tail_first + (uint64_t)(step->fresh_first + i) * block_tokens < length)
            s->pages[kept++] = step->fresh[i];
        else
            cache_page_release(s->cache, step->fresh[i]);
    }
    s->page_count = kept;
}

kvant_status kvant_step_commit(kvant_sequence *sequence, uint32_t keep, kvant_diag *diag) {
    if (sequence == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_step_commit: sequence is NULL");
    kvant_sequence *s = sequence;
    kvant_status status = check(s, keep, diag);
    if (status == KVANT_OK) status = s->cache->place->commit(s, diag);
    if (status != KVANT_OK) {
        kvant_step_abort(s);
        return status;
    }
    cache_step *step = s->step;
    pthread_mutex_lock(&s->cache->lock);
    publish_blocks(s);
    publish_pages(s, step->first + keep);
    index_blocks(s);
    s->tail_first += (uint64_t)step->sealed_count * s->cache->shape.block_tokens;
    s->length = step->first + keep;
    sequence_pass_windows(s);
    s->cache->counters.saturated += step->saturated;
    s->cache->counters.replaced += step->replaced;
    pthread_mutex_unlock(&s->cache->lock);
    if (!step->identified && keep > 0 && step->first < s->private_first) s->private_first = step->first;
    forget(s);
    return KVANT_OK;
}
