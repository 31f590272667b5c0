/* Attention over sequences: what is asked for is checked here; attend_host.c and attend_device.c do it. */
#include "cache/place.h"
#include "cache/step.h"

#include <kvant/kit/diag.h>

#include <string.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

/* Sequences whose layer is closed at once. */
enum { BATCH = 32 };

static bool sees_step(const kvant_sequence *s, uint32_t layer) {
    return s->step != NULL && s->step->layers[layer].state == CACHE_LAYER_OPEN;
}

/* ---- kvant_cache_attend -------------------------------------------------------------------------------- */

static kvant_status check_part(const kvant_cache *cache, uint32_t layer, const kvant_attend_part *part,
                               uint32_t index, kvant_diag *diag) {
    if (part->sequence == NULL || part->sequence->cache != cache)
        return REFUSE(KVANT_ERROR_ARGUMENT, "sequence",
                      "kvant_cache_attend: part %u: the sequence is NULL or of another cache", index);
    if (part->queries == NULL || part->queries->struct_size < sizeof *part->queries)
        return REFUSE(KVANT_ERROR_ARGUMENT, "queries",
                      "kvant_cache_attend: part %u: queries are NULL, or their struct_size is not %zu", index,
                      sizeof *part->queries);
    if (part->ranges != NULL) return KVANT_OK;
    if (!sees_step(part->sequence, layer))
        return REFUSE(KVANT_ERROR_ARGUMENT, "ranges",
                      "kvant_cache_attend: part %u has no ranges, and layer %u is not open in a step", index,
                      layer);
    if (part->queries->tokens != part->sequence->step->count)
        return REFUSE(
            KVANT_ERROR_ARGUMENT, "queries",
            "kvant_cache_attend: part %u has no ranges and %u query rows, and its step has %u tokens", index,
            part->queries->tokens, part->sequence->step->count);
    return KVANT_OK;
}

static kvant_status check_parts(const kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts,
                                uint32_t count, const kvant_attention_options *options, kvant_diag *diag) {
    if (cache == NULL || options == NULL || (count > 0 && parts == NULL))
        return REFUSE(KVANT_ERROR_ARGUMENT, "", "kvant_cache_attend: cache, parts or options are NULL");
    if (options->struct_size < sizeof *options)
        return REFUSE(KVANT_ERROR_ARGUMENT, "options",
                      "kvant_cache_attend: options.struct_size is %u, not %zu", options->struct_size,
                      sizeof *options);
    if (layer >= cache->shape.layer_count)
        return REFUSE(KVANT_ERROR_ARGUMENT, "layer", "kvant_cache_attend: there is no layer %u", layer);
    if (count > 0 && parts[0].struct_size < sizeof *parts)
        return REFUSE(KVANT_ERROR_ARGUMENT, "parts",
                      "kvant_cache_attend: struct_size of the first part is %u, not %zu",
                      parts[0].struct_size, sizeof *parts);
    for (uint32_t i = 0; i < count; i++) {
        kvant_status status = check_part(cache, layer, attend_part_at(parts, i), i, diag);
        if (status != KVANT_OK) return status;
    }
    return KVANT_OK;
}

size_t kvant_cache_attend_scratch(const kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts,
                                  uint32_t count, const kvant_attention_options *options) {
    if (check_parts(cache, layer, parts, count, options, NULL) != KVANT_OK) return 0;
    return cache->place->attend_scratch(cache, layer, parts, count, options);
}

kvant_status kvant_cache_attend(const kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts,
                                uint32_t count, const kvant_attention_options *options, void *scratch,
                                size_t scratch_size, kvant_diag *diag) {
    kvant_status status = check_parts(cache, layer, parts, count, options, diag);
    if (status != KVANT_OK || count == 0) return status;
    kvant_cache *own = (kvant_cache *)(uintptr_t)cache; /* what is idle in it is taken and given back */
    return cache->place->attend(own, layer, parts, count, options, scratch, scratch_size, diag);
}

/* ---- kvant_step_attend --------------------------------------------------------------------------------- */

static kvant_status check_steps(const kvant_cache *cache, uint32_t layer, const kvant_step_rows *rows,
                                uint32_t count, const kvant_attention_options *options, kvant_diag *diag) {
    if (cache == NULL || options == NULL || (count > 0 && rows == NULL))
        return REFUSE(KVANT_ERROR_ARGUMENT, "", "kvant_step_attend: cache, rows or options are NULL");
    if (options->struct_size < sizeof *options)
        return REFUSE(KVANT_ERROR_ARGUMENT, "options",
                      "kvant_step_attend: options.struct_size is %u, not %zu", options->struct_size,
                      sizeof *options);
    if (count > 0 && rows[0].struct_size < sizeof *rows)
        return REFUSE(KVANT_ERROR_ARGUMENT, "rows",
                      "kvant_step_attend: struct_size of the first rows is %u, not %zu", rows[0].struct_size,
                      sizeof *rows);
    if (layer >= cache->shape.layer_count)
        return REFUSE(KVANT_ERROR_ARGUMENT, "layer", "kvant_step_attend: there is no layer %u", layer);
    for (uint32_t i = 0; i < count; i++) {
        const kvant_step_rows *r = step_rows_at(rows, i);
        if (r->sequence == NULL || r->sequence->cache != cache)
            return REFUSE(KVANT_ERROR_ARGUMENT, "sequence",
                          "kvant_step_attend: sequence %u is NULL or of another cache", i);
        if (r->queries == NULL || r->queries->struct_size < sizeof *r->queries ||
            (r->sequence->step != NULL && r->queries->tokens != r->sequence->step->count))
            return REFUSE(
                KVANT_ERROR_ARGUMENT, "queries",
                "kvant_step_attend: sequence %u: queries are NULL, or not as many rows as the step has "
                "tokens",
                i);
    }
    return KVANT_OK;
}

static kvant_status attend_steps(kvant_cache *cache, uint32_t layer, const kvant_step_rows *rows,
                                 uint32_t count, const kvant_attention_options *options, kvant_diag *diag) {
    kvant_status status = check_steps(cache, layer, rows, count, options, diag);
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        const kvant_step_rows *r = step_rows_at(rows, i);
        status = step_open_layer(r->sequence, layer, r->keys, r->values, diag);
    }
    if (status == KVANT_OK && count > 0)
        status = cache->place->attend_steps(cache, layer, rows, count, options, diag);
    for (uint32_t first = 0; first < count && status == KVANT_OK; first += BATCH) {
        kvant_sequence *batch[BATCH];
        uint32_t in_batch = count - first < BATCH ? count - first : BATCH;
        for (uint32_t i = 0; i < in_batch; i++) batch[i] = step_rows_at(rows, first + i)->sequence;
        status = step_close_layers(batch, in_batch, layer, diag);
    }
    return status;
}

kvant_status kvant_step_attend(kvant_cache *cache, uint32_t layer, const kvant_step_rows *rows,
                               uint32_t count, const kvant_attention_options *options, kvant_diag *diag) {
    kvant_status status = attend_steps(cache, layer, rows, count, options, diag);
    if (status == KVANT_OK || rows == NULL || count == 0 || rows[0].struct_size < sizeof *rows) return status;
    for (uint32_t i = 0; i < count; i++) {
        kvant_sequence *sequence = step_rows_at(rows, i)->sequence;
        if (sequence != NULL && sequence->cache == cache) kvant_step_abort(sequence);
    }
    return status;
}
