/* What the queries of a layer see: encoded blocks as references, sinks, tail and the step's rows as raw runs,
 * without what was dropped. See step.h. */
#include "cache/step.h"

#include <kvant/kit/view.h>

#include <string.h>

void sight_room(const kvant_sequence *s, uint32_t *references, uint32_t *runs) {
    uint32_t sealed = s->step != NULL ? s->step->sealed_count : 0;
    /* Every gap splits at most one reference or run more. */
    *references = s->block_count + sealed + s->dropped_count;
    *runs = s->page_count + 2 + s->dropped_count;
}

static size_t rounded(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

size_t sight_bytes(uint32_t references, uint32_t runs, uint32_t rows) {
    return rounded(references * sizeof(kvant_reference)) + rounded(runs * sizeof(kvant_raw_run)) +
           rounded(2 * (size_t)runs * sizeof(kvant_view)) + rounded(rows * sizeof(kvant_token_range));
}

cache_sight sight_place(void *memory, uint32_t references, uint32_t runs, uint32_t rows) {
    unsigned char *at = memory;
    cache_sight sight = {.reference_room = references, .run_room = runs};
    (void)rows;
    sight.references = (kvant_reference *)(void *)at;
    sight.gpu_references = (kvant_gpu_reference *)(void *)at;
    at += rounded(references * sizeof(kvant_reference));
    sight.runs = (kvant_raw_run *)(void *)at;
    at += rounded(runs * sizeof(kvant_raw_run));
    sight.views = (kvant_view *)(void *)at;
    at += rounded(2 * (size_t)runs * sizeof(kvant_view));
    sight.ranges = (kvant_token_range *)(void *)at;
    return sight;
}

typedef struct sight_walk {
    const kvant_cache *cache;
    cache_sight *sight;
    uint32_t layer;
    const cache_block *block; /* of references */
    kvant_view rows[2];       /* of runs, and the position of their first row */
    uint64_t position;
} sight_walk;

static void add_reference(void *context, uint64_t from, uint64_t to) {
    sight_walk *w = context;
    const cache_extent *extents = &w->block->extents[2 * (size_t)w->layer];
    uint32_t at = w->sight->reference_count++;
    if (w->cache->device != NULL) {
        w->sight->gpu_references[at] =
            (kvant_gpu_reference){.first_position = w->block->first_position,
                                  .key_index = extents[KVANT_SIDE_KEY].index,
                                  .value_index = extents[KVANT_SIDE_VALUE].index,
                                  .key_step = extents[KVANT_SIDE_KEY].steps,
                                  .value_step = extents[KVANT_SIDE_VALUE].steps,
                                  .live_first = (uint32_t)(from - w->block->first_position),
                                  .live_count = (uint32_t)(to - from)};
        return;
    }
    kvant_reference *r = &w->sight->references[at];
    *r = (kvant_reference){.key = kvant_pool_address(w->cache->pool, extents[KVANT_SIDE_KEY].index),
                           .value = kvant_pool_address(w->cache->pool, extents[KVANT_SIDE_VALUE].index),
                           .key_size = cache_extent_size(w->cache, w->block, w->layer, KVANT_SIDE_KEY),
                           .value_size = cache_extent_size(w->cache, w->block, w->layer, KVANT_SIDE_VALUE),
                           .first_position = w->block->first_position,
                           .live_first = (uint32_t)(from - w->block->first_position),
                           .live_count = (uint32_t)(to - from)};
}

static void add_run(void *context, uint64_t from, uint64_t to) {
    sight_walk *w = context;
    kvant_view *views = &w->sight->views[2 * (size_t)w->sight->run_count];
    for (uint32_t side = 0; side < 2; side++) {
        views[side] = w->rows[side];
        views[side].data = kvant_view_at(&w->rows[side], (uint32_t)(from - w->position), 0);
        views[side].tokens = (uint32_t)(to - from);
    }
    w->sight->runs[w->sight->run_count++] =
        (kvant_raw_run){.keys = &views[0], .values = &views[1], .first_position = from};
}

static void add_block(const kvant_sequence *s, sight_walk *w, const cache_block *block, uint64_t end) {
    uint64_t first = block->first_position, sinks = w->cache->shape.sinks;
    w->block = block;
    if (first == 0 && block->sinks != NULL) {
        for (uint32_t side = 0; side < 2; side++)
            w->rows[side] =
                cache_view(cache_sink_rows(w->cache, block->sinks, w->layer, side, (uint32_t)sinks));
        w->position = 0;
        sequence_live(s, 0, sinks, add_run, w);
        first = sinks;
    }
    sequence_live(s, first, end, add_reference, w);
}

static void add_page(const kvant_sequence *s, sight_walk *w, const cache_page *page, uint64_t first,
                     uint64_t end) {
    for (uint32_t side = 0; side < 2; side++)
        w->rows[side] =
            cache_view(cache_page_rows(w->cache, page, w->layer, side, 0, (uint32_t)(end - first)));
    w->position = first;
    sequence_live(s, first, end, add_run, w);
}

void sight_fill(const kvant_sequence *s, uint32_t layer, cache_sight *sight) {
    const cache_step *step =
        s->step != NULL && s->step->layers[layer].state == CACHE_LAYER_OPEN ? s->step : NULL;
    uint32_t block_tokens = s->cache->shape.block_tokens, old = step != NULL ? step->old_count : 0;
    sight_walk w = {.cache = s->cache, .sight = sight, .layer = layer};
    sight->reference_count = sight->run_count = 0;
    for (uint32_t i = s->passed[layer]; i < s->block_count; i++)
        add_block(s, &w, s->blocks[i], cache_block_end(s, i));
    for (uint32_t i = 0; i < old; i++)
        add_block(s, &w, step->sealed[i], step->sealed[i]->first_position + block_tokens);
    for (uint32_t i = old; i < s->page_count; i++) {
        uint64_t first = s->tail_first + (uint64_t)i * block_tokens;
        uint64_t end = first + block_tokens < s->length ? first + block_tokens : s->length;
        add_page(s, &w, s->pages[i], first, end);
    }
    if (step == NULL) return;
    for (uint32_t side = 0; side < 2; side++) w.rows[side] = step->layers[layer].rows[side];
    w.position = step->first;
    add_run(&w, step->first, step->end);
}
