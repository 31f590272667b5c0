/* Sizes that follow from a plan alone: what estimates count is what a cache allocates. See cache.h. */
#include "cache/cache.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stdlib.h>

enum { SMALLEST_LIST = 8 };

static uint64_t round_up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/* Appends a part of rows * row_bytes, aligned to 64; false if the sum is beyond all sense. */
static bool place_rows(uint64_t *end, uint64_t *at, uint64_t rows, uint64_t row_bytes) {
    uint64_t bytes = 0;
    *at = *end;
    if (__builtin_mul_overflow(rows, row_bytes, &bytes) || bytes > SIZE_MAX / 8 || *end > SIZE_MAX / 8)
        return false;
    *end += round_up(bytes, 64);
    return true;
}

static bool shape_layer(const kvant_plan *plan, cache_shape *shape, uint32_t layer) {
    cache_layer *l = &shape->layers[layer];
    const kvant_layer_geometry *geometry = kvant_layer_at(&plan->geometry, layer);
    l->window = geometry->window;
    if (l->window != 0) shape->windowed++;
    for (uint32_t side = 0; side < 2; side++) {
        const kvant_layout *layout = &plan->entries[2 * (size_t)layer + side].layout;
        uint64_t dim = side == KVANT_SIDE_KEY ? geometry->key_dim : geometry->value_dim;
        l->row_bytes[side] = dim * geometry->kv_heads * kvant_element_bytes(plan->geometry.dtype);
        l->extent_max[side] = layout->size_min + layout->size_step * layout->size_steps;
        if (layout->size_min < shape->smallest_extent) shape->smallest_extent = layout->size_min;
        if (layout->alignment > shape->alignment) shape->alignment = layout->alignment;
        if (l->extent_max[side] > SIZE_MAX / 8 ||
            !place_rows(&shape->page_bytes, &l->page_at[side], shape->block_tokens, l->row_bytes[side]) ||
            !place_rows(&shape->sinks_bytes, &l->sinks_at[side], shape->sinks, l->row_bytes[side]))
            return false;
    }
    return true;
}

kvant_status cache_shape_make(const kvant_plan *plan, cache_shape *shape, kvant_diag *diag) {
    *shape = (cache_shape){.layer_count = plan->geometry.layer_count,
                           .block_tokens = plan->block_tokens,
                           .sinks = plan->sinks,
                           .recent = plan->recent,
                           .alignment = KVANT_POOL_UNIT,
                           .smallest_extent = UINT64_MAX};
    shape->layers = calloc(shape->layer_count, sizeof *shape->layers);
    if (shape->layers == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    bool fits = true;
    for (uint32_t layer = 0; layer < shape->layer_count && fits; layer++)
        fits = shape_layer(plan, shape, layer);
    if (fits) return KVANT_OK;
    cache_shape_free(shape);
    return kvant_fail(diag, KVANT_ERROR_MEMORY, "",
                      "a block of all layers does not fit into this machine's memory");
}

void cache_shape_free(cache_shape *shape) {
    free(shape->layers);
    shape->layers = NULL;
}

uint64_t cache_rounded(const cache_shape *shape, uint64_t bytes) {
    return round_up(bytes, shape->alignment);
}

void cache_extent_parts(const kvant_layout *layout, uint64_t steps, uint64_t *payload, uint64_t *metadata) {
    *payload = (layout->payload_bits + steps * layout->payload_bits_step + 7) / 8;
    *metadata = (layout->metadata_bits + steps * layout->metadata_bits_step + 7) / 8;
}

uint32_t cache_list_room(uint64_t entries) {
    uint64_t room = SMALLEST_LIST;
    while (room < entries) room *= 2;
    return (uint32_t)room;
}

uint32_t cache_steady_pages(const cache_shape *shape) {
    return (uint32_t)(((uint64_t)shape->recent + 2 * (uint64_t)shape->block_tokens - 2) /
                      shape->block_tokens);
}

uint64_t cache_block_tables(const cache_shape *shape) {
    return sizeof(cache_block) +
           (uint64_t)shape->layer_count * (2 * sizeof(cache_extent) + sizeof(uint32_t)) +
           shape->block_tokens * (sizeof(uint64_t) + 2);
}

uint64_t cache_page_tables(const cache_shape *shape) {
    return sizeof(cache_page) + shape->block_tokens * (sizeof(uint64_t) + 1);
}

uint64_t cache_sequence_tables(const cache_shape *shape, uint64_t salt_bytes, uint32_t block_room,
                               uint32_t page_room, uint32_t dropped_room) {
    return sizeof(kvant_sequence) + salt_bytes + shape->layer_count * sizeof(uint32_t) +
           ((uint64_t)block_room + page_room) * sizeof(void *) + dropped_room * sizeof(cache_span);
}

uint64_t cache_window_first(const cache_shape *shape, uint32_t layer, uint64_t position) {
    uint32_t window = shape->layers[layer].window;
    return window != 0 && position + 1 > window ? position + 1 - window : 0;
}
