/* Sealed blocks: which rows they get, and what they take once they are encoded. See step.h. */
#include "cache/step.h"

kvant_view step_block_rows(const kvant_sequence *s, uint32_t place, uint32_t layer, uint32_t side) {
    const cache_step *step = s->step;
    uint32_t block_tokens = s->cache->shape.block_tokens;
    const cache_page *page = step_page(s, place);
    if (page != NULL) return cache_view(cache_page_rows(s->cache, page, layer, side, 0, block_tokens));
    uint64_t first = s->tail_first + (uint64_t)place * block_tokens - step->first;
    return cache_view_part(&step->layers[layer].rows[side], (uint32_t)first, block_tokens);
}

void step_shrink(kvant_sequence *s, uint32_t first, uint32_t count, uint32_t layer, uint32_t layers) {
    kvant_cache *cache = s->cache;
    pthread_mutex_lock(&cache->lock);
    for (uint32_t i = first; i < first + count; i++)
        for (uint32_t j = 2 * layer; j < 2 * (layer + layers); j++) {
            if (cache->plan->entries[j].layout.size_step == 0) continue;
            const cache_block *block = s->step->sealed[i];
            kvant_pool_shrink(cache->pool, block->extents[j].index,
                              cache_extent_size(cache, block, j / 2, j % 2));
        }
    pthread_mutex_unlock(&cache->lock);
}
