/* One layer of a step: its rows are checked, seen by its queries, and then kept or encoded. See step.h. */
#include "cache/place.h"
#include "cache/step.h"

#include <kvant/kit/diag.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

const char *const step_side_names[2] = {"key", "value"};

/* ---- Arguments ----------------------------------------------------------------------------------------- */

static kvant_status check_rows(const kvant_sequence *s, uint32_t layer, uint32_t side, const kvant_view *rows,
                               kvant_diag *diag) {
    const kvant_geometry *geometry = &s->cache->plan->geometry;
    const kvant_layer_geometry *l = kvant_layer_at(geometry, layer);
    uint32_t dim = side == KVANT_SIDE_KEY ? l->key_dim : l->value_dim;
    if (rows == NULL || rows->struct_size < sizeof *rows || rows->data == NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT, step_side_names[side],
                      "layer %u %s: rows are NULL, hold no data, or their struct_size is not %zu", layer,
                      step_side_names[side], sizeof *rows);
    if (rows->dtype != geometry->dtype)
        return REFUSE(KVANT_ERROR_DTYPE, step_side_names[side],
                      "layer %u %s: rows of type %u, and the geometry says %u", layer, step_side_names[side],
                      rows->dtype, geometry->dtype);
    if (rows->tokens != s->step->count || rows->heads != l->kv_heads || rows->head_dim != dim)
        return REFUSE(KVANT_ERROR_ARGUMENT, step_side_names[side],
                      "layer %u %s: rows [%u, %u, %u], and the step's are [%u, %u, %u]", layer,
                      step_side_names[side], rows->tokens, rows->heads, rows->head_dim, s->step->count,
                      l->kv_heads, dim);
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
    l->rows[KVANT_SIDE_KEY] = *keys;
    l->rows[KVANT_SIDE_VALUE] = *values;
    kvant_status status = s->cache->place->open_rows(s, layer, diag);
    if (status == KVANT_OK) l->state = CACHE_LAYER_OPEN;
    return status;
}

/* ---- Close --------------------------------------------------------------------------------------------- */

uint32_t step_places(const kvant_sequence *s, uint64_t position) {
    uint32_t block_tokens = s->cache->shape.block_tokens;
    return (uint32_t)((position - s->tail_first + block_tokens - 1) / block_tokens);
}

bool step_kept(const kvant_sequence *s, uint32_t place, uint32_t layer, cache_copy copies[2]) {
    const cache_step *step = s->step;
    uint32_t block_tokens = s->cache->shape.block_tokens;
    const cache_page *page = step_page(s, place);
    if (page == NULL) return false;
    uint64_t base = s->tail_first + (uint64_t)place * block_tokens;
    uint64_t first = base > step->first ? base : step->first;
    uint64_t end = base + block_tokens < step->end ? base + block_tokens : step->end;
    for (uint32_t side = 0; side < 2; side++) {
        copies[side].from = cache_view_part(&step->layers[layer].rows[side], (uint32_t)(first - step->first),
                                            (uint32_t)(end - first));
        copies[side].to =
            cache_page_rows(s->cache, page, layer, side, (uint32_t)(first - base), (uint32_t)(end - first));
    }
    return true;
}

kvant_status step_close_layers(kvant_sequence *const *sequences, uint32_t count, uint32_t layer,
                               kvant_diag *diag) {
    if (count == 0) return KVANT_OK;
    const cache_place *place = sequences[0]->cache->place;
    kvant_status status = place->keep_rows(sequences, count, layer, diag);
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        kvant_sequence *s = sequences[i];
        const cache_step *step = s->step;
        status = place->encode(s, step->old_count, step->sealed_count - step->old_count, layer, 1, diag);
        step->layers[layer].state = CACHE_LAYER_DONE;
        place->close_rows(s, layer);
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
    return ended(sequence, step_close_layers(&sequence, 1, layer, diag));
}

kvant_status kvant_step_put(kvant_sequence *sequence, uint32_t layer, const kvant_view *keys,
                            const kvant_view *values, kvant_diag *diag) {
    if (sequence == NULL) return REFUSE(KVANT_ERROR_ARGUMENT, "", "kvant_step_put: sequence is NULL");
    kvant_status status = step_open_layer(sequence, layer, keys, values, diag);
    if (status == KVANT_OK) status = step_close_layers(&sequence, 1, layer, diag);
    return ended(sequence, status);
}
