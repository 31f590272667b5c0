/* Attention on a device: what each sequence sees (sight.c) is told to the device's attention, query rows some
 * at a time, as many sequences at once as the works have room for. See place_device.h. */
#include "cache/place_device.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stdlib.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

/* ---- Arguments ----------------------------------------------------------------------------------------- */

static kvant_status check_options(const kvant_cache *cache, uint32_t layer,
                                  const kvant_attention_options *options, kvant_diag *diag) {
    uint32_t heads = kvant_layer_at(&cache->plan->geometry, layer)->kv_heads;
    if (options->kv_heads != 0 && (options->first_kv_head != 0 || options->kv_heads != heads))
        return REFUSE(KVANT_ERROR_UNSUPPORTED, "kv_heads",
                      "a device attends all kv heads of a layer; %u of %u were asked for", options->kv_heads,
                      heads);
    if (!(options->scale != 0) || options->scale - options->scale != 0)
        return REFUSE(KVANT_ERROR_ARGUMENT, "scale", "the scale is 0 or not finite");
    if (!(options->soft_cap >= 0) || options->soft_cap - options->soft_cap != 0)
        return REFUSE(KVANT_ERROR_ARGUMENT, "soft_cap", "the soft cap is negative or not finite");
    return KVANT_OK;
}

/* Queries were looked at as far as their struct_size. */
static kvant_status check_views(const kvant_cache *cache, uint32_t layer, uint32_t index,
                                const kvant_view *queries, const kvant_mutable_view *outputs,
                                kvant_diag *diag) {
    const kvant_layer_geometry *l = kvant_layer_at(&cache->plan->geometry, layer);
    if (queries->data == NULL || outputs == NULL || outputs->struct_size < sizeof *outputs ||
        outputs->data == NULL)
        return REFUSE(
            KVANT_ERROR_ARGUMENT, "outputs",
            "sequence %u: outputs are NULL, hold no room, or their struct_size is not %zu; or queries "
            "hold no data",
            index, sizeof *outputs);
    if (queries->dtype != cache->plan->geometry.dtype)
        return REFUSE(KVANT_ERROR_DTYPE, "queries",
                      "sequence %u: queries of type %u, and on a device they are of the geometry's, %u",
                      index, queries->dtype, cache->plan->geometry.dtype);
    if (outputs->dtype != KVANT_DTYPE_F32 && outputs->dtype != KVANT_DTYPE_F16 &&
        outputs->dtype != KVANT_DTYPE_BF16)
        return REFUSE(KVANT_ERROR_DTYPE, "outputs",
                      "sequence %u: outputs of type %u; F32, F16 or BF16 are written", index, outputs->dtype);
    if (queries->heads != l->q_heads || queries->head_dim != l->key_dim)
        return REFUSE(KVANT_ERROR_ARGUMENT, "queries",
                      "sequence %u: queries of [%u, %u] for each token, and layer %u has [%u, %u]", index,
                      queries->heads, queries->head_dim, layer, l->q_heads, l->key_dim);
    if (outputs->tokens != queries->tokens || outputs->heads != l->q_heads ||
        outputs->head_dim != l->value_dim)
        return REFUSE(KVANT_ERROR_ARGUMENT, "outputs",
                      "sequence %u: outputs [%u, %u, %u], and [%u, %u, %u] are written", index,
                      outputs->tokens, outputs->heads, outputs->head_dim, queries->tokens, l->q_heads,
                      l->value_dim);
    return KVANT_OK;
}

/* The position of row 0 and the window whose causal ranges these are. A row that sees from 0 on says nothing
 * of the window: it is what another row says, or none. */
static kvant_status find_causal(const kvant_token_range *ranges, uint32_t rows, uint32_t index,
                                uint64_t *position, uint32_t *window, kvant_diag *diag) {
    *position = rows > 0 && ranges[0].to > 0 ? ranges[0].to - 1 : 0;
    *window = 0;
    for (uint32_t r = 0; r < rows && *window == 0; r++)
        if (ranges[r].from > 0 && ranges[r].from < ranges[r].to &&
            ranges[r].to - ranges[r].from <= UINT32_MAX)
            *window = (uint32_t)(ranges[r].to - ranges[r].from);
    for (uint32_t r = 0; r < rows; r++) {
        uint64_t to = *position + r + 1, from = *window != 0 && to > *window ? to - *window : 0;
        if (ranges[r].from != from || ranges[r].to != to)
            return REFUSE(
                KVANT_ERROR_UNSUPPORTED, "ranges",
                "kvant_cache_attend: part %u, row %u sees the positions from %llu to before %llu: on a "
                "device rows stand at consecutive positions and see up to themselves, or the newest of a "
                "window",
                index, r, (unsigned long long)ranges[r].from, (unsigned long long)ranges[r].to);
    }
    return KVANT_OK;
}

/* ---- Batches ------------------------------------------------------------------------------------------- */

enum { BATCH = 64 };

/* What one launch attends. */
typedef struct attend_batch {
    kvant_cache *cache;
    uint32_t layer, window;
    const kvant_attention_options *options;
    uint32_t count;
    cache_demand sum;
    kvant_device_sequence sequences[BATCH];
    kvant_view queries[BATCH];
    kvant_mutable_view outputs[BATCH];
} attend_batch;

/* Under the device's lock, as what follows. */
static kvant_status launch(attend_batch *b, kvant_diag *diag) {
    const cache_device *d = b->cache->device;
    uint64_t base = (uint64_t)(uintptr_t)kvant_pool_address(b->cache->pool, 0);
    uint64_t unit = kvant_pool_unit(b->cache->pool);
    const kvant_device_attend_options options = {.struct_size = sizeof options,
                                                 .window = b->window,
                                                 .scale = b->options->scale,
                                                 .soft_cap = b->options->soft_cap,
                                                 .key_base = base,
                                                 .key_stride = unit,
                                                 .value_base = base,
                                                 .value_stride = unit};
    if (b->count == 0) return KVANT_OK;
    kvant_device_work *work = d->works[b->layer];
    kvant_status status =
        kvant_device_attend_prepare(work, b->sequences, b->count, &options, d->stream, diag);
    if (status == KVANT_OK) status = kvant_device_attend_launch(work, d->stream, diag);
    b->count = 0;
    b->sum = (cache_demand){0};
    return status;
}

static bool fits(const attend_batch *b, const cache_demand *more) {
    const kvant_device_limits *limits = &b->cache->device->limits;
    return b->count < BATCH && more->of_one <= limits->positions_of_one &&
           b->sum.sequences + more->sequences <= limits->sequences &&
           b->sum.positions + more->positions <= limits->positions &&
           b->sum.runs + more->runs <= limits->runs &&
           b->sum.references + more->references <= limits->references;
}

/* Rows of one sequence. */
typedef struct attend_rows {
    const cache_sight *sight; /* its lists stay until the launch */
    const kvant_view *queries;
    const kvant_mutable_view *outputs;
    float *log_sum_exp; /* on the device */
    uint64_t position;
    uint32_t window;
} attend_rows;

static kvant_status add_rows(attend_batch *b, const attend_rows *rows, uint32_t first, uint32_t count,
                             kvant_diag *diag) {
    const cache_demand more = {.sequences = 1,
                               .positions = count,
                               .of_one = count,
                               .runs = rows->sight->run_count,
                               .references = rows->sight->reference_count};
    kvant_status status = KVANT_OK;
    if (!fits(b, &more) || b->window != rows->window) status = launch(b, diag);
    if (status == KVANT_OK && !fits(b, &more)) status = cache_works_grow(b->cache, more, diag);
    if (status != KVANT_OK) return status;
    uint32_t i = b->count++, q_heads = rows->queries->heads;
    b->window = rows->window;
    b->sum.sequences++;
    b->sum.positions += count;
    b->sum.runs += more.runs;
    b->sum.references += more.references;
    b->queries[i] = cache_view_part(rows->queries, first, count);
    b->outputs[i] = *rows->outputs;
    b->outputs[i].data = kvant_mutable_view_at(rows->outputs, first, 0);
    b->outputs[i].tokens = count;
    uint64_t sums = (uint64_t)(uintptr_t)rows->log_sum_exp;
    b->sequences[i] = (kvant_device_sequence){
        .struct_size = sizeof b->sequences[0],
        .reference_count = rows->sight->reference_count,
        .run_count = rows->sight->run_count,
        .references = rows->sight->gpu_references,
        .runs = rows->sight->runs,
        .queries = &b->queries[i],
        .outputs = &b->outputs[i],
        .log_sum_exp = sums != 0 ? sums + (uint64_t)first * q_heads * sizeof(float) : 0,
        .query_position = rows->position + first};
    return KVANT_OK;
}

static kvant_status add_sequence(attend_batch *b, const attend_rows *rows, kvant_diag *diag) {
    uint32_t chunk = b->cache->device->chunk, tokens = rows->queries->tokens;
    kvant_status status = KVANT_OK;
    for (uint32_t first = 0; first < tokens && status == KVANT_OK; first += chunk)
        status = add_rows(b, rows, first, tokens - first < chunk ? tokens - first : chunk, diag);
    return status;
}

static void start(attend_batch *b, kvant_cache *cache, uint32_t layer,
                  const kvant_attention_options *options) {
    b->cache = cache;
    b->layer = layer;
    b->window = 0;
    b->options = options;
    b->count = 0;
    b->sum = (cache_demand){0};
}

/* ---- kvant_cache_attend -------------------------------------------------------------------------------- */

static size_t part_bytes(const kvant_attend_part *part) {
    uint32_t references = 0, runs = 0;
    sight_room(part->sequence, &references, &runs);
    return sight_bytes(references, runs, 0);
}

static kvant_status find_rows(const kvant_cache *cache, uint32_t layer, const kvant_attend_part *part,
                              uint32_t index, attend_rows *rows, kvant_diag *diag) {
    *rows = (attend_rows){.queries = part->queries,
                          .outputs = part->outputs,
                          .log_sum_exp = part->log_sum_exp,
                          .window = cache->shape.layers[layer].window};
    kvant_status status = check_views(cache, layer, index, part->queries, part->outputs, diag);
    if (status != KVANT_OK) return status;
    if (part->ranges != NULL)
        return find_causal(part->ranges, part->queries->tokens, index, &rows->position, &rows->window, diag);
    rows->position = part->sequence->step->first;
    return KVANT_OK;
}

static kvant_status attend_parts(attend_batch *b, const kvant_attend_part *parts, uint32_t count,
                                 unsigned char *memory, kvant_diag *diag) {
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        const kvant_attend_part *part = attend_part_at(parts, i);
        uint32_t references = 0, runs = 0;
        attend_rows rows;
        status = find_rows(b->cache, b->layer, part, i, &rows, diag);
        if (status != KVANT_OK) break;
        sight_room(part->sequence, &references, &runs);
        cache_sight sight = sight_place(memory, references, runs, 0);
        sight_fill(part->sequence, b->layer, &sight);
        memory += part_bytes(part);
        rows.sight = &sight;
        status = add_sequence(b, &rows, diag);
    }
    return status == KVANT_OK ? launch(b, diag) : status;
}

kvant_status cache_device_attend(kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts,
                                 uint32_t count, const kvant_attention_options *options, void *scratch,
                                 size_t scratch_size, kvant_diag *diag) {
    cache_device *d = cache->device;
    size_t bytes = 0;
    (void)scratch;
    (void)scratch_size;
    kvant_status status = check_options(cache, layer, options, diag);
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        attend_rows rows;
        status = find_rows(cache, layer, attend_part_at(parts, i), i, &rows, diag);
        bytes += part_bytes(attend_part_at(parts, i));
    }
    if (status != KVANT_OK) return status;
    unsigned char *memory = aligned_alloc(64, bytes > 0 ? (bytes + 63) / 64 * 64 : 64);
    if (memory == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    attend_batch batch;
    start(&batch, cache, layer, options);
    pthread_mutex_lock(&d->lock);
    status = attend_parts(&batch, parts, count, memory, diag);
    pthread_mutex_unlock(&d->lock);
    free(memory);
    return status;
}

/* ---- kvant_step_attend --------------------------------------------------------------------------------- */

kvant_status cache_device_attend_steps(kvant_cache *cache, uint32_t layer, const kvant_step_rows *rows,
                                       uint32_t count, const kvant_attention_options *options,
                                       kvant_diag *diag) {
    cache_device *d = cache->device;
    kvant_attention_options all = *options;
    all.kv_heads = 0;
    kvant_status status = check_options(cache, layer, &all, diag);
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        const kvant_step_rows *r = step_rows_at(rows, i);
        status = check_views(cache, layer, i, r->queries, r->outputs, diag);
    }
    if (status != KVANT_OK) return status;
    attend_batch batch;
    start(&batch, cache, layer, &all);
    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        const kvant_step_rows *r = step_rows_at(rows, i);
        const cache_step *step = r->sequence->step;
        uint32_t references = (uint32_t)step->device->demand.references,
                 runs = (uint32_t)step->device->demand.runs;
        cache_sight sight = sight_place(step->buffer->bytes + step->sight_at, references, runs, 0);
        sight_fill(r->sequence, layer, &sight);
        const attend_rows of = {.sight = &sight,
                                .queries = r->queries,
                                .outputs = r->outputs,
                                .log_sum_exp = r->log_sum_exp,
                                .position = step->first,
                                .window = cache->shape.layers[layer].window};
        status = add_sequence(&batch, &of, diag);
    }
    if (status == KVANT_OK) status = launch(&batch, diag);
    pthread_mutex_unlock(&d->lock);
    return status;
}
