/* Pages of raw rows: block_tokens tokens of all layers in one extent of the pool, or the sinks of block 0.
 * See cache.h. */
#include "cache/place.h"
#include "pipeline/codec_rows.h"

#include <kvant/kit/view.h>

kvant_status cache_page_new(kvant_cache *cache, uint64_t bytes, cache_page **page) {
    cache_page *made = cache_take(cache, cache_page_tables(&cache->shape));
    if (made == NULL) return KVANT_ERROR_MEMORY;
    pthread_mutex_lock(&cache->lock);
    kvant_status status = cache_pool_take(cache, bytes, &made->index);
    if (status == KVANT_OK) cache->raw += cache_rounded(&cache->shape, bytes);
    pthread_mutex_unlock(&cache->lock);
    if (status != KVANT_OK) {
        cache_give(cache, made, cache_page_tables(&cache->shape));
        return status;
    }
    made->holders = 1;
    made->bytes = bytes;
    *page = made;
    return KVANT_OK;
}

void cache_page_release(kvant_cache *cache, cache_page *page) {
    if (--page->holders != 0) return;
    cache->raw -= cache_rounded(&cache->shape, page->bytes);
    kvant_pool_give(cache->pool, page->index);
    cache_give(cache, page, cache_page_tables(&cache->shape));
}

uint64_t *cache_page_ids(cache_page *page) {
    return (uint64_t *)(void *)(page + 1);
}

uint8_t *cache_page_tags(const cache_shape *shape, cache_page *page) {
    return (uint8_t *)(cache_page_ids(page) + shape->block_tokens);
}

static kvant_mutable_view rows_at(const kvant_cache *cache, const cache_page *page, uint64_t at,
                                  uint32_t layer, uint32_t side, uint32_t tokens) {
    const kvant_layer_geometry *geometry = kvant_layer_at(&cache->plan->geometry, layer);
    unsigned char *base = kvant_pool_address(cache->pool, page->index);
    return kvant_dense_mutable_view(base + at, cache->plan->geometry.dtype, tokens, geometry->kv_heads,
                                    side == KVANT_SIDE_KEY ? geometry->key_dim : geometry->value_dim);
}

kvant_mutable_view cache_page_rows(const kvant_cache *cache, const cache_page *page, uint32_t layer,
                                   uint32_t side, uint32_t first, uint32_t tokens) {
    const cache_layer *l = &cache->shape.layers[layer];
    return rows_at(cache, page, l->page_at[side] + first * l->row_bytes[side], layer, side, tokens);
}

kvant_mutable_view cache_sink_rows(const kvant_cache *cache, const cache_page *page, uint32_t layer,
                                   uint32_t side, uint32_t tokens) {
    return rows_at(cache, page, cache->shape.layers[layer].sinks_at[side], layer, side, tokens);
}

kvant_view cache_view(kvant_mutable_view rows) {
    return (kvant_view){.struct_size = sizeof(kvant_view),
                        .dtype = rows.dtype,
                        .data = rows.data,
                        .tokens = rows.tokens,
                        .heads = rows.heads,
                        .head_dim = rows.head_dim,
                        .token_stride = rows.token_stride,
                        .head_stride = rows.head_stride,
                        .channel_stride = rows.channel_stride};
}

kvant_view cache_view_part(const kvant_view *rows, uint32_t first, uint32_t tokens) {
    kvant_view part = *rows;
    part.data = kvant_view_at(rows, first, 0);
    part.tokens = tokens;
    return part;
}

enum { COPIES = 16 };

kvant_status cache_page_copy(kvant_cache *cache, const cache_page *from, bool sinks, const cache_page *to,
                             uint32_t tokens, kvant_diag *diag) {
    uint32_t rows = 2 * cache->shape.layer_count;
    kvant_status status = KVANT_OK;
    for (uint32_t first = 0; first < rows && status == KVANT_OK; first += COPIES) {
        cache_copy copies[COPIES];
        uint32_t count = rows - first < COPIES ? rows - first : COPIES;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t layer = (first + i) / 2, side = (first + i) % 2;
            copies[i].from = cache_view(sinks ? cache_sink_rows(cache, from, layer, side, tokens)
                                              : cache_page_rows(cache, from, layer, side, 0, tokens));
            copies[i].to = cache_page_rows(cache, to, layer, side, 0, tokens);
        }
        status = cache->place->copy(cache, copies, count, diag);
    }
    return status;
}
