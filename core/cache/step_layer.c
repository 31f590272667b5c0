/* One layer of a step: its rows are checked, seen by its queries, and then kept or encoded. See step.h. */
#include "cache/step.h"
#include "data/finite.h"
#include "pipeline/codec_rows.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stdlib.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

static const char *const side_names[2] = {"key", "value"};

/* ---- Arguments ----------------------------------------------------------------------------------------- */

static kvant_status check_rows(const kvant_sequence *s, uint32_t layer, uint32_t side, const kvant_view *rows,
                               kvant_diag *diag) {
    const kvant_geometry *geometry = &s->cache->plan->geometry;
    const kvant_layer_geometry *l = kvant_layer_at(geometry, layer);
    uint32_t dim = side == KVANT_SIDE_KEY ? l->key_dim : l->value_dim;
    if (rows == NULL || rows->struct_size < sizeof *rows || rows->data == NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT, side_names[side],
                      "layer %u %s: rows are NULL, hold no data, or their struct_size is not %zu", layer,
                      side_names[side], sizeof *rows);
    if (rows->dtype != geometry->dtype)
        return REFUSE(KVANT_ERROR_DTYPE, side_names[side],
                      "layer %u %s: rows of type %u, and the geometry says %u", layer, side_names[side],
                      rows->dtype, geometry->dtype);
    if (rows->tokens != s->step->count || rows->heads != l->kv_heads || rows->head_dim != dim)
        return REFUSE(KVANT_ERROR_ARGUMENT, side_names[side],
                      "layer %u %s: rows [%u, %u, %u], and the step's are [%u, %u, %u]", layer,
                      side_names[side], rows->tokens, rows->heads, rows->head_dim, s->step->count,
                      l->kv_heads, dim);
    return KVANT_OK;
}

static kvant_status refuse_place(const kvant_sequence *s, uint32_t layer, uint32_t side,
                                 const kvant_view *rows, kvant_place place, kvant_diag *diag) {
    float x = kvant_load_element(kvant_view_at(rows, place.token, place.head) +
                                     (int64_t)place.channel * rows->channel_stride,
                                 rows->dtype);
    uint32_t bits = kvant_float_bits(x);
    const char *what = (bits & 0x007fffffu) != 0 ? "NaN" : (bits >> 31) != 0 ? "-infinity" : "infinity";
    return REFUSE(KVANT_ERROR_NOT_FINITE, side_names[side],
                  "layer %u %s: token %u of the step (position %llu), head %u, channel %u is %s", layer,
                  side_names[side], place.token, (unsigned long long)(s->step->first + place.token),
                  place.head, place.channel, what);
}

/* A dense copy without NaN and infinities: the one thing that a step allocates after begin. */
static kvant_status replace(kvant_sequence *s, cache_step_layer *l, uint32_t side, const kvant_view *rows,
                            kvant_diag *diag) {
    uint64_t elements = (uint64_t)rows->tokens * rows->heads * rows->head_dim;
    uint64_t bytes = elements * kvant_element_bytes(rows->dtype);
    l->replaced[side] = bytes <= SIZE_MAX / 2 ? malloc((size_t)bytes) : NULL;
    if (l->replaced[side] == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    kvant_mutable_view copy =
        kvant_dense_mutable_view(l->replaced[side], rows->dtype, rows->tokens, rows->heads, rows->head_dim);
    cache_copy_rows(rows, &copy);
    s->step->replaced += kvant_replace_nonfinite(copy.data, copy.dtype, elements);
    l->rows[side] = cache_view(copy);
    return KVANT_OK;
}

kvant_status step_open_layer(kvant_sequence *s, uint32_t layer, const kvant_view *keys,
                             const kvant_view *values, kvant_diag *diag) {
    if (s->step == NULL) return REFUSE(KVANT_ERROR_ARGUMENT, "", "the sequence is in no step");
    if (layer >= s->cache->shape.layer_count)
        return REFUSE(KVANT_ERROR_ARGUMENT, "layer", "there is no layer %u", layer);
    cache_step_layer *l = &s->step->layers[layer];
    if (l->state != CACHE_LAYER_MISSING)
        return REFUSE(KVANT_ERROR_ARGUMENT, "layer", "layer %u was given in this step already", layer);
    const kvant_view *views[2] = {keys, values};
    for (uint32_t side = 0; side < 2; side++) {
        kvant_status status = check_rows(s, layer, side, views[side], diag);
        if (status != KVANT_OK) return status;
    }
    for (uint32_t side = 0; side < 2; side++) {
        kvant_place place;
        kvant_status status = KVANT_OK;
        l->rows[side] = *views[side];
        if (!kvant_find_not_finite(views[side], &place)) continue;
        if (s->cache->plan->on_nonfinite == KVANT_ON_NONFINITE_ERROR)
            return refuse_place(s, layer, side, views[side], place, diag);
        status = replace(s, l, side, views[side], diag);
        if (status != KVANT_OK) return status;
    }
    l->state = CACHE_LAYER_OPEN;
    return KVANT_OK;
}

/* ---- Close --------------------------------------------------------------------------------------------- */

/* The step's rows that stay raw, or complete a page. */
static void keep_rows(kvant_sequence *s, uint32_t layer) {
    const cache_step *step = s->step;
    uint32_t block_tokens = s->cache->shape.block_tokens;
    uint64_t place = (step->first - s->tail_first) / block_tokens;
    for (uint64_t base = s->tail_first + place * block_tokens; base < step->end;
         base += block_tokens, place++) {
        cache_page *page = step_page(s, (uint32_t)place);
        if (page == NULL) continue;
        uint64_t first = base > step->first ? base : step->first;
        uint64_t end = base + block_tokens < step->end ? base + block_tokens : step->end;
        for (uint32_t side = 0; side < 2; side++) {
            kvant_view from = step->layers[layer].rows[side];
            from.data = kvant_view_at(&from, (uint32_t)(first - step->first), 0);
            from.tokens = (uint32_t)(end - first);
            kvant_mutable_view to = cache_page_rows(s->cache, page, layer, side, (uint32_t)(first - base),
                                                    (uint32_t)(end - first));
            cache_copy_rows(&from, &to);
        }
    }
}

kvant_status step_close_layer(kvant_sequence *s, uint32_t layer, kvant_diag *diag) {
    cache_step *step = s->step;
    cache_step_layer *l = &step->layers[layer];
    keep_rows(s, layer);
    kvant_status status =
        step_encode(s, step->old_count, step->sealed_count - step->old_count, layer, 1, diag);
    l->state = CACHE_LAYER_DONE;
    for (uint32_t side = 0; side < 2; side++) {
        free(l->replaced[side]);
        l->replaced[side] = NULL;
    }
    return status;
}

/* ---- The calls ----------------------------------------------------------------------------------------- */

static kvant_status ended(kvant_sequence *s, kvant_status status) {
    if (status != KVANT_OK) kvant_step_abort(s);
    return status;
}

kvant_status kvant_step_layer_begin(kvant_sequence *sequence, uint32_t layer, const kvant_view *keys,
                                    const kvant_view *values, kvant_diag *diag) {
    if (sequence == NULL) return REFUSE(KVANT_ERROR_ARGUMENT, "", "kvant_step_layer_begin: sequence is NULL");
    return ended(sequence, step_open_layer(sequence, layer, keys, values, diag));
}

kvant_status kvant_step_layer_end(kvant_sequence *sequence, uint32_t layer, kvant_diag *diag) {
    if (sequence == NULL) return REFUSE(KVANT_ERROR_ARGUMENT, "", "kvant_step_layer_end: sequence is NULL");
    if (sequence->step == NULL || layer >= sequence->cache->shape.layer_count ||
        sequence->step->layers[layer].state != CACHE_LAYER_OPEN)
        return ended(sequence, REFUSE(KVANT_ERROR_ARGUMENT, "layer",
                                      "kvant_step_layer_end: layer %u is not open in a step", layer));
    return ended(sequence, step_close_layer(sequence, layer, diag));
}

kvant_status kvant_step_put(kvant_sequence *sequence, uint32_t layer, const kvant_view *keys,
                            const kvant_view *values, kvant_diag *diag) {
    if (sequence == NULL) return REFUSE(KVANT_ERROR_ARGUMENT, "", "kvant_step_put: sequence is NULL");
    kvant_status status = step_open_layer(sequence, layer, keys, values, diag);
    if (status == KVANT_OK) status = step_close_layer(sequence, layer, diag);
    return ended(sequence, status);
}
