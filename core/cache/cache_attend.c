/* Attention over sequences: what each sees (sight.c) is told to the attention floor. See step.h. */
#include "cache/step.h"

#include <kvant/kit/diag.h>

#include <string.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

/* Sequences that one call of the attention floor serves; what comes out does not depend on it. */
enum { BATCH = 32 };

static size_t rounded(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* The step's own queries: token t of the step at position first + t. */
static void own_ranges(const kvant_sequence *s, uint32_t layer, kvant_token_range *ranges) {
    kvant_token_range_causal(s->step->first, s->step->count, s->cache->shape.layers[layer].window, ranges);
}

static bool sees_step(const kvant_sequence *s, uint32_t layer) {
    return s->step != NULL && s->step->layers[layer].state == CACHE_LAYER_OPEN;
}

/* ---- kvant_cache_attend -------------------------------------------------------------------------------- */

static const kvant_attend_part *part_at(const kvant_attend_part *parts, uint32_t index) {
    return (const kvant_attend_part *)(const void *)((const char *)parts +
                                                     (size_t)index * parts[0].struct_size);
}

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
        kvant_status status = check_part(cache, layer, part_at(parts, i), i, diag);
        if (status != KVANT_OK) return status;
    }
    return KVANT_OK;
}

static size_t part_bytes(const kvant_attend_part *part) {
    uint32_t references = 0, runs = 0;
    sight_room(part->sequence, &references, &runs);
    return sight_bytes(references, runs, part->ranges == NULL ? part->queries->tokens : 0);
}

/* Scratch: the attention floor's | sights of a batch. */
static size_t scratch_bytes(const kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts,
                            uint32_t count, const kvant_attention_options *options, size_t *sights_at) {
    uint32_t rows = 1;
    size_t most = 0;
    for (uint32_t first = 0; first < count; first += BATCH) {
        size_t bytes = 0;
        for (uint32_t i = first; i < count && i < first + BATCH; i++) {
            const kvant_attend_part *part = part_at(parts, i);
            bytes += part_bytes(part);
            if (part->queries->tokens > rows) rows = part->queries->tokens;
        }
        if (bytes > most) most = bytes;
    }
    size_t attention = kvant_attention_scratch_bytes(cache->attention[layer], options->threads, rows);
    *sights_at = rounded(attention);
    return attention != 0 ? *sights_at + most : 0;
}

size_t kvant_cache_attend_scratch(const kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts,
                                  uint32_t count, const kvant_attention_options *options) {
    size_t sights_at = 0;
    if (check_parts(cache, layer, parts, count, options, NULL) != KVANT_OK) return 0;
    return scratch_bytes(cache, layer, parts, count, options, &sights_at);
}

/* One entry for the attention floor, its lists in memory. */
static kvant_attention_sequence describe_part(uint32_t layer, const kvant_attend_part *part, void *memory) {
    uint32_t references = 0, runs = 0;
    const kvant_sequence *s = part->sequence;
    sight_room(s, &references, &runs);
    cache_sight sight =
        sight_place(memory, references, runs, part->ranges == NULL ? part->queries->tokens : 0);
    sight_fill(s, layer, &sight);
    if (part->ranges == NULL) own_ranges(s, layer, sight.ranges);
    return (kvant_attention_sequence){.struct_size = sizeof(kvant_attention_sequence),
                                      .reference_count = sight.reference_count,
                                      .run_count = sight.run_count,
                                      .references = sight.references,
                                      .runs = sight.runs,
                                      .queries = part->queries,
                                      .ranges = part->ranges != NULL ? part->ranges : sight.ranges,
                                      .outputs = part->outputs,
                                      .log_sum_exp = part->log_sum_exp};
}

kvant_status kvant_cache_attend(const kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts,
                                uint32_t count, const kvant_attention_options *options, void *scratch,
                                size_t scratch_size, kvant_diag *diag) {
    kvant_status status = check_parts(cache, layer, parts, count, options, diag);
    if (status != KVANT_OK || count == 0) return status;
    size_t sights_at = 0, needed = scratch_bytes(cache, layer, parts, count, options, &sights_at);
    if (needed == 0 || scratch_size < needed)
        return REFUSE(KVANT_ERROR_CAPACITY, "scratch",
                      "kvant_cache_attend: scratch of %zu bytes, and the call takes %zu", scratch_size,
                      needed);
    if (scratch == NULL || ((uintptr_t)scratch & 63) != 0)
        return REFUSE(KVANT_ERROR_ARGUMENT, "scratch",
                      "kvant_cache_attend: scratch is NULL or not aligned to 64 bytes");
    for (uint32_t first = 0; first < count && status == KVANT_OK; first += BATCH) {
        kvant_attention_sequence batch[BATCH];
        unsigned char *at = (unsigned char *)scratch + sights_at;
        uint32_t in_batch = 0;
        for (; in_batch < BATCH && first + in_batch < count; in_batch++) {
            const kvant_attend_part *part = part_at(parts, first + in_batch);
            batch[in_batch] = describe_part(layer, part, at);
            at += part_bytes(part);
        }
        status =
            kvant_attention_run(cache->attention[layer], batch, in_batch, options, scratch, sights_at, diag);
    }
    return status;
}

/* ---- kvant_step_attend --------------------------------------------------------------------------------- */

static const kvant_step_rows *rows_at(const kvant_step_rows *rows, uint32_t index) {
    return (const kvant_step_rows *)(const void *)((const char *)rows + (size_t)index * rows[0].struct_size);
}

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
        const kvant_step_rows *r = rows_at(rows, i);
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

/* All of the batch at once, in the scratch of the sequence that has most. */
static kvant_status attend_batch(kvant_cache *cache, uint32_t layer, const kvant_step_rows *rows,
                                 uint32_t first, uint32_t count, const kvant_attention_options *given,
                                 kvant_diag *diag) {
    kvant_attention_sequence batch[BATCH];
    const cache_step *widest = rows_at(rows, first)->sequence->step;
    for (uint32_t i = 0; i < count; i++) {
        const kvant_step_rows *r = rows_at(rows, first + i);
        const cache_step *step = r->sequence->step;
        kvant_attend_part part = {.sequence = r->sequence,
                                  .queries = r->queries,
                                  .outputs = r->outputs,
                                  .log_sum_exp = r->log_sum_exp};
        batch[i] = describe_part(layer, &part, step->buffer->bytes + step->sight_at);
        if (step->attend_bytes > widest->attend_bytes) widest = step;
    }
    kvant_attention_options options = {.struct_size = sizeof options,
                                       .threads = cache->threads,
                                       .scale = given->scale,
                                       .soft_cap = given->soft_cap,
                                       .loop = cache->loop,
                                       .loop_context = cache->loop_context};
    return kvant_attention_run(cache->attention[layer], batch, count, &options,
                               widest->buffer->bytes + widest->attend_at, widest->attend_bytes, diag);
}

static kvant_status attend_steps(kvant_cache *cache, uint32_t layer, const kvant_step_rows *rows,
                                 uint32_t count, const kvant_attention_options *options, kvant_diag *diag) {
    kvant_status status = check_steps(cache, layer, rows, count, options, diag);
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        const kvant_step_rows *r = rows_at(rows, i);
        status = step_open_layer(r->sequence, layer, r->keys, r->values, diag);
    }
    for (uint32_t first = 0; first < count && status == KVANT_OK; first += BATCH)
        status = attend_batch(cache, layer, rows, first, count - first < BATCH ? count - first : BATCH,
                              options, diag);
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++)
        status = step_close_layer(rows_at(rows, i)->sequence, layer, diag);
    return status;
}

kvant_status kvant_step_attend(kvant_cache *cache, uint32_t layer, const kvant_step_rows *rows,
                               uint32_t count, const kvant_attention_options *options, kvant_diag *diag) {
    kvant_status status = attend_steps(cache, layer, rows, count, options, diag);
    if (status == KVANT_OK || rows == NULL || count == 0 || rows[0].struct_size < sizeof *rows) return status;
    for (uint32_t i = 0; i < count; i++) {
        kvant_sequence *sequence = rows_at(rows, i)->sequence;
        if (sequence != NULL && sequence->cache == cache) kvant_step_abort(sequence);
    }
    return status;
}
