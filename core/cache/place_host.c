/* The host's memory as a cache's place: copies, searches, decodes. See place_host.h. */
#include "cache/place_host.h"
#include "data/finite.h"
#include "pipeline/codec_rows.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stdlib.h>
#include <string.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

/* ---- Memory -------------------------------------------------------------------------------------------- */

static kvant_status host_open(kvant_cache *cache, const kvant_cache_options *options, kvant_diag *diag) {
    return kvant_pool_open(options->bytes, cache->shape.alignment, &cache->pool, diag);
}

static void host_close(kvant_cache *cache) {
    (void)cache;
}

static void *host_take(kvant_cache *cache, size_t bytes) {
    (void)cache;
    return aligned_alloc(4096, bytes);
}

static void host_give(kvant_cache *cache, void *memory) {
    (void)cache;
    free(memory);
}

/* ---- Bytes --------------------------------------------------------------------------------------------- */

void host_copy_rows(const kvant_view *from, const kvant_mutable_view *to) {
    uint32_t element = kvant_element_bytes(from->dtype);
    size_t row = (size_t)from->head_dim * element;
    for (uint32_t t = 0; t < from->tokens; t++)
        for (uint32_t h = 0; h < from->heads; h++) {
            const char *source = kvant_view_at(from, t, h);
            char *target = kvant_mutable_view_at(to, t, h);
            if (from->channel_stride == (int64_t)element && to->channel_stride == (int64_t)element) {
                memcpy(target, source, row);
                continue;
            }
            for (uint32_t c = 0; c < from->head_dim; c++)
                memcpy(target + (int64_t)c * to->channel_stride, source + (int64_t)c * from->channel_stride,
                       element);
        }
}

static kvant_status host_copy(kvant_cache *cache, const cache_copy *copies, uint32_t count,
                              kvant_diag *diag) {
    (void)cache;
    (void)diag;
    for (uint32_t i = 0; i < count; i++) host_copy_rows(&copies[i].from, &copies[i].to);
    return KVANT_OK;
}

static kvant_status host_zero(kvant_cache *cache, void *pool, uint64_t bytes, kvant_diag *diag) {
    (void)cache;
    (void)diag;
    memset(pool, 0, (size_t)bytes);
    return KVANT_OK;
}

static kvant_status host_move(kvant_cache *cache, void *to, const void *from, uint64_t bytes,
                              kvant_diag *diag) {
    (void)cache;
    (void)diag;
    memcpy(to, from, (size_t)bytes);
    return KVANT_OK;
}

static kvant_status host_settle(kvant_cache *cache, kvant_diag *diag) {
    (void)cache;
    (void)diag;
    return KVANT_OK;
}

/* Rows as they are, into another dtype. */
static void read_raw(const cache_piece *piece, float *row) {
    if (piece->to.dtype == piece->raw.dtype) {
        host_copy_rows(&piece->raw, &piece->to);
        return;
    }
    for (uint32_t t = 0; t < piece->to.tokens; t++)
        for (uint32_t h = 0; h < piece->to.heads; h++) {
            kvant_load_row(&piece->raw, t, h, row);
            kvant_store_row(&piece->to, t, h, row);
        }
}

/* Scratch: the codec's | one row of floats. */
static kvant_status host_read(const kvant_sequence *s, uint32_t layer, uint32_t side,
                              const cache_piece *pieces, uint32_t count, void *scratch, kvant_diag *diag) {
    const kvant_cache *cache = s->cache;
    const kvant_codec *codec = kvant_attention_codec(cache->attention[layer], side);
    for (uint32_t i = 0; i < count; i++) {
        const cache_piece *piece = &pieces[i];
        if (piece->raw.struct_size != 0) {
            read_raw(piece, (float *)(void *)((char *)scratch + cache->shape.encode_scratch));
            continue;
        }
        const cache_block *block = piece->block;
        kvant_range range = {.struct_size = sizeof range, .first_token = piece->first_token};
        kvant_status status = kvant_codec_decode(
            codec, kvant_pool_address(cache->pool, block->extents[2 * (size_t)layer + side].index),
            (size_t)cache_extent_size(cache, block, layer, side), block->first_position, &range, &piece->to,
            scratch, diag);
        if (status != KVANT_OK) return status;
    }
    return KVANT_OK;
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

static kvant_status host_begin(kvant_sequence *s, kvant_diag *diag) {
    const kvant_cache *cache = s->cache;
    cache_step *step = s->step;
    uint32_t references = 0, runs = 0;
    (void)diag;
    sight_room(s, &references, &runs);
    step->attend_at = cache->threads * (size_t)cache->shape.encode_scratch;
    step->attend_bytes = cache->attend_scratch[step->count > 1];
    step->sight_at = step->attend_at + (step->attend_bytes + 63) / 64 * 64;
    step->buffer = cache_buffer_take(s->cache, step->sight_at + sight_bytes(references, runs, step->count));
    return step->buffer != NULL ? KVANT_OK : KVANT_ERROR_MEMORY;
}

static void host_close_rows(kvant_sequence *s, uint32_t layer) {
    cache_step_layer *l = &s->step->layers[layer];
    for (uint32_t side = 0; side < 2; side++) {
        free(l->replaced[side]);
        l->replaced[side] = NULL;
    }
}

static void host_end(kvant_sequence *s) {
    for (uint32_t layer = 0; layer < s->cache->shape.layer_count; layer++) host_close_rows(s, layer);
    cache_buffer_give(s->cache, s->step->buffer);
}

static kvant_status refuse_place(const kvant_sequence *s, uint32_t layer, uint32_t side,
                                 const kvant_view *rows, kvant_place place, kvant_diag *diag) {
    float x = kvant_load_element(kvant_view_at(rows, place.token, place.head) +
                                     (int64_t)place.channel * rows->channel_stride,
                                 rows->dtype);
    uint32_t bits = kvant_float_bits(x);
    const char *what = (bits & 0x007fffffu) != 0 ? "NaN" : (bits >> 31) != 0 ? "-infinity" : "infinity";
    return REFUSE(KVANT_ERROR_NOT_FINITE, step_side_names[side],
                  "layer %u %s: token %u of the step (position %llu), head %u, channel %u is %s", layer,
                  step_side_names[side], place.token, (unsigned long long)(s->step->first + place.token),
                  place.head, place.channel, what);
}

/* A dense copy without NaN and infinities: the one thing that a step allocates after begin. */
static kvant_status replace(kvant_sequence *s, cache_step_layer *l, uint32_t side, kvant_diag *diag) {
    const kvant_view *rows = &l->rows[side];
    uint64_t elements = (uint64_t)rows->tokens * rows->heads * rows->head_dim;
    uint64_t bytes = elements * kvant_element_bytes(rows->dtype);
    l->replaced[side] = bytes <= SIZE_MAX / 2 ? malloc((size_t)bytes) : NULL;
    if (l->replaced[side] == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    kvant_mutable_view copy =
        kvant_dense_mutable_view(l->replaced[side], rows->dtype, rows->tokens, rows->heads, rows->head_dim);
    host_copy_rows(rows, &copy);
    s->step->replaced += kvant_replace_nonfinite(copy.data, copy.dtype, elements);
    l->rows[side] = cache_view(copy);
    return KVANT_OK;
}

static kvant_status host_open_rows(kvant_sequence *s, uint32_t layer, kvant_diag *diag) {
    cache_step_layer *l = &s->step->layers[layer];
    for (uint32_t side = 0; side < 2; side++) {
        kvant_place place;
        if (!kvant_find_not_finite(&l->rows[side], &place)) continue;
        if (s->cache->plan->on_nonfinite == KVANT_ON_NONFINITE_ERROR)
            return refuse_place(s, layer, side, &l->rows[side], place, diag);
        kvant_status status = replace(s, l, side, diag);
        if (status != KVANT_OK) return status;
    }
    return KVANT_OK;
}

static kvant_status host_keep_rows(kvant_sequence *const *sequences, uint32_t count, uint32_t layer,
                                   kvant_diag *diag) {
    (void)diag;
    for (uint32_t i = 0; i < count; i++) {
        const kvant_sequence *s = sequences[i];
        const cache_step *step = s->step;
        uint32_t end = step_places(s, step->end);
        for (uint32_t place = (uint32_t)((step->first - s->tail_first) / s->cache->shape.block_tokens);
             place < end; place++) {
            cache_copy copies[2];
            if (!step_kept(s, place, layer, copies)) continue;
            for (uint32_t side = 0; side < 2; side++) host_copy_rows(&copies[side].from, &copies[side].to);
        }
    }
    return KVANT_OK;
}

static kvant_status host_commit(kvant_sequence *s, kvant_diag *diag) {
    (void)s;
    (void)diag;
    return KVANT_OK;
}

const cache_place cache_place_host = {
    .open = host_open,
    .close = host_close,
    .take = host_take,
    .give = host_give,
    .copy = host_copy,
    .zero = host_zero,
    .out = host_move,
    .in = host_move,
    .read = host_read,
    .settle = host_settle,
    .begin = host_begin,
    .end = host_end,
    .open_rows = host_open_rows,
    .keep_rows = host_keep_rows,
    .encode = host_encode,
    .close_rows = host_close_rows,
    .commit = host_commit,
    .attend_scratch = host_attend_scratch,
    .attend = host_attend,
    .attend_steps = host_attend_steps,
};
