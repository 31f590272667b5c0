/* Attention on the host: what each sequence sees (sight.c) is told to the attention floor. See
 * place_host.h. */
#include "cache/place_host.h"

#include <kvant/kit/diag.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

/* Sequences that one call of the attention floor serves; what comes out does not depend on it. */
enum { BATCH = 32 };

static size_t rounded(size_t bytes) {
    return (bytes + 63) / 64 * 64;
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
            const kvant_attend_part *part = attend_part_at(parts, i);
            bytes += part_bytes(part);
            if (part->queries->tokens > rows) rows = part->queries->tokens;
        }
        if (bytes > most) most = bytes;
    }
    size_t attention = kvant_attention_scratch_bytes(cache->attention[layer], options->threads, rows);
    *sights_at = rounded(attention);
    return attention != 0 ? *sights_at + most : 0;
}

size_t host_attend_scratch(const kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts,
                           uint32_t count, const kvant_attention_options *options) {
    size_t sights_at = 0;
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
    if (part->ranges == NULL) /* token t of the step at position first + t */
        kvant_token_range_causal(s->step->first, s->step->count, s->cache->shape.layers[layer].window,
                                 sight.ranges);
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

kvant_status host_attend(kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts, uint32_t count,
                         const kvant_attention_options *options, void *scratch, size_t scratch_size,
                         kvant_diag *diag) {
    kvant_status status = KVANT_OK;
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
            const kvant_attend_part *part = attend_part_at(parts, first + in_batch);
            batch[in_batch] = describe_part(layer, part, at);
            at += part_bytes(part);
        }
        status =
            kvant_attention_run(cache->attention[layer], batch, in_batch, options, scratch, sights_at, diag);
    }
    return status;
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

/* All of the batch at once, in the scratch of the sequence that has most. */
static kvant_status attend_batch(kvant_cache *cache, uint32_t layer, const kvant_step_rows *rows,
                                 uint32_t first, uint32_t count, const kvant_attention_options *given,
                                 kvant_diag *diag) {
    kvant_attention_sequence batch[BATCH];
    const cache_step *widest = step_rows_at(rows, first)->sequence->step;
    for (uint32_t i = 0; i < count; i++) {
        const kvant_step_rows *r = step_rows_at(rows, first + i);
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

kvant_status host_attend_steps(kvant_cache *cache, uint32_t layer, const kvant_step_rows *rows,
                               uint32_t count, const kvant_attention_options *options, kvant_diag *diag) {
    kvant_status status = KVANT_OK;
    for (uint32_t first = 0; first < count && status == KVANT_OK; first += BATCH)
        status = attend_batch(cache, layer, rows, first, count - first < BATCH ? count - first : BATCH,
                              options, diag);
    return status;
}
