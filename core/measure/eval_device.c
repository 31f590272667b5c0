/* See eval_device.h: a layer on a device, opened, encoded, decoded. */
#include "device/device.h"
#include "measure/eval_device_internal.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stdlib.h>
#include <time.h>

enum { QUERIES_MOST = 64, EXTENT_ALIGNMENT = 4096 };

static const char *const side_names[2] = {"key", "value"};

kvant_status eval_device_blame(const eval_device *d, const char *what, kvant_status status,
                               kvant_diag *diag) {
    if (diag == NULL || strncmp(diag->message, "layer ", 6) == 0) return status;
    kvant_diag inner = *diag;
    return kvant_fail(diag, status, inner.key, "layer %u %s: %.1900s", d->layer, what,
                      inner.message[0] != '\0' ? inner.message : kvant_status_text(status));
}

static kvant_status blame_blocks(const eval_device *d, uint32_t side, uint32_t block, uint32_t count,
                                 kvant_status status, kvant_diag *diag) {
    char what[64];
    (void)snprintf(what, sizeof what, "%s, blocks %u to %u", side_names[side], block, block + count - 1);
    return eval_device_blame(d, what, status, diag);
}

static double wall_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static const void *pointer_of(uint64_t address) {
    return (const void *)(uintptr_t)address;
}

kvant_view eval_device_rows(uint64_t address, uint32_t dtype, uint32_t tokens, uint32_t heads, uint32_t dim) {
    return kvant_rows_view(pointer_of(address), dtype, tokens, heads, dim);
}

kvant_mutable_view eval_device_floats(uint64_t address, uint32_t tokens, uint32_t heads, uint32_t dim) {
    int64_t element = sizeof(float);
    return (kvant_mutable_view){.struct_size = sizeof(kvant_mutable_view),
                                .dtype = KVANT_DTYPE_F32,
                                .data = (void *)(uintptr_t)address,
                                .tokens = tokens,
                                .heads = heads,
                                .head_dim = dim,
                                .token_stride = element * heads * dim,
                                .head_stride = element * dim,
                                .channel_stride = element};
}

/* ---- Opening ------------------------------------------------------------------------------------------- */

static kvant_status alloc_host(eval_device *d, kvant_diag *diag) {
    uint32_t blocks = d->job->blocks.count;
    bool done = true;
    for (uint32_t side = 0; side < 2; side++) {
        d->sides[side].sizes = calloc(blocks + (size_t)1, sizeof(uint64_t));
        done = done && d->sides[side].sizes != NULL;
    }
    d->blocks = calloc(d->batch + (size_t)1, sizeof *d->blocks);
    d->extents = calloc(d->batch + (size_t)1, sizeof *d->extents);
    d->views = calloc(d->batch + (size_t)1, sizeof *d->views);
    d->mutable_views = calloc(d->batch + (size_t)1, sizeof *d->mutable_views);
    d->reports = calloc(d->batch + (size_t)1, sizeof *d->reports);
    d->references = calloc(blocks + (size_t)1, sizeof *d->references);
    done = done && d->blocks != NULL && d->extents != NULL && d->views != NULL && d->mutable_views != NULL &&
           d->reports != NULL && d->references != NULL;
    return done ? KVANT_OK : kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no memory");
}

/* As many query rows to a call as their scratch allows. */
static kvant_status open_work(eval_device *d, bool attends, kvant_diag *diag) {
    const kvant_blocks *blocks = &d->job->blocks;
    uint32_t rows = kvant_dump_describe(d->job->dump)->query_tokens;
    d->positions = attends ? (rows < QUERIES_MOST ? rows : QUERIES_MOST) : 0;
    for (;;) {
        kvant_device_limits limits = {.struct_size = sizeof limits,
                                      .blocks = blocks->count > 0 ? d->batch : 0};
        if (d->positions > 0) {
            limits.sequences = 1;
            limits.positions = d->positions;
            limits.runs = 2;
            limits.references = blocks->count;
        }
        uint64_t lists = 0, scratch = 0;
        kvant_status status = kvant_device_work_bytes(d->on_device, &limits, &lists, &scratch, diag);
        if (status != KVANT_OK) return status;
        if (scratch <= EVAL_DEVICE_SCRATCH || d->positions <= 1)
            return kvant_device_work_open(d->on_device, &limits, 0, &d->work, diag);
        d->positions = (d->positions + 1) / 2;
    }
}

/* Rows and extents of a side that the dump has. */
static kvant_status alloc_side(eval_device *d, uint32_t side, uint32_t run_tokens, kvant_diag *diag) {
    eval_device_side *s = &d->sides[side];
    const kvant_blocks *blocks = &d->job->blocks;
    uint64_t element = kvant_element_bytes(d->dtype), alignment = s->layout->alignment;
    uint64_t tokens = (uint64_t)d->batch * blocks->block_tokens;
    uint64_t floats = (run_tokens < blocks->block_tokens ? run_tokens : tokens) * s->row_elements;
    uint32_t raw = blocks->sinks + blocks->tail_tokens;
    kvant_status status = KVANT_OK;
    s->stride = (kvant_codec_extent_max(s->codec) + alignment - 1) / alignment * alignment;
    s->host = malloc(floats * sizeof(float) + 1);
    if (s->host == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no memory for decoded rows");
    if (blocks->count > 0) {
        status =
            kvant_device_alloc(d->device, blocks->count * s->stride + EXTENT_ALIGNMENT, &s->extents, diag);
        s->extents_at = (s->extents + alignment - 1) / alignment * alignment;
        if (status == KVANT_OK)
            status = kvant_device_alloc(d->device, tokens * s->row_elements * element, &s->input, diag);
        if (status == KVANT_OK)
            status = kvant_device_alloc(d->device, floats * sizeof(float), &s->decoded, diag);
    }
    if (status == KVANT_OK && raw > 0)
        status = kvant_device_alloc(d->device, raw * s->row_elements * element, &s->raw, diag);
    return status;
}

static kvant_status alloc_attention(eval_device *d, kvant_diag *diag) {
    const kvant_layer_geometry *g = d->geometry;
    uint64_t rows = (uint64_t)d->positions * g->q_heads;
    if (rows == 0) return KVANT_OK;
    d->host_outputs = malloc(rows * g->value_dim * sizeof(float));
    d->host_log_sum_exp = malloc(rows * sizeof(float));
    if (d->host_outputs == NULL || d->host_log_sum_exp == NULL)
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no memory for outputs");
    kvant_status status =
        kvant_device_alloc(d->device, rows * g->key_dim * kvant_element_bytes(d->dtype), &d->queries, diag);
    if (status == KVANT_OK)
        status = kvant_device_alloc(d->device, rows * g->value_dim * sizeof(float), &d->outputs, diag);
    if (status == KVANT_OK)
        status = kvant_device_alloc(d->device, rows * sizeof(float), &d->log_sum_exp, diag);
    return status;
}

static kvant_status open_layer(eval_device *d, uint32_t run_tokens, bool attends, kvant_diag *diag) {
    const kvant_blocks *blocks = &d->job->blocks;
    kvant_status status = kvant_attention_open(d->job->plan, d->layer, &d->attention, diag);
    if (status == KVANT_OK) status = kvant_device_layer_open(d->device, d->attention, &d->on_device, diag);
    if (status == KVANT_OK) status = kvant_device_layer_describe(d->on_device, &d->info);
    if (status != KVANT_OK) return status;
    uint64_t widest = 1;
    for (uint32_t side = 0; side < 2; side++) {
        eval_device_side *s = &d->sides[side];
        s->codec = kvant_attention_codec(d->attention, side);
        s->layout = kvant_codec_row(s->codec)->layout;
        s->heads = d->geometry->kv_heads;
        s->dim = side == KVANT_SIDE_KEY ? d->geometry->key_dim : d->geometry->value_dim;
        s->row_elements = (uint64_t)s->heads * s->dim;
        if (s->row_elements > widest) widest = s->row_elements;
    }
    uint64_t block = blocks->block_tokens * widest * sizeof(float), batch = EVAL_DEVICE_BATCH / block;
    if (run_tokens < blocks->block_tokens || batch == 0) batch = 1;
    if (batch > EVAL_DEVICE_BLOCKS) batch = EVAL_DEVICE_BLOCKS;
    d->batch = batch < blocks->count ? (uint32_t)batch : blocks->count;
    status = alloc_host(d, diag);
    if (status == KVANT_OK) status = open_work(d, attends, diag);
    const kvant_dump_info *info = kvant_dump_describe(d->job->dump);
    if (status == KVANT_OK && info->has_keys) status = alloc_side(d, KVANT_SIDE_KEY, run_tokens, diag);
    if (status == KVANT_OK && info->has_values) status = alloc_side(d, KVANT_SIDE_VALUE, run_tokens, diag);
    if (status == KVANT_OK) status = alloc_attention(d, diag);
    return status;
}

kvant_status eval_device_open(const eval_job *job, uint32_t layer, uint32_t run_tokens, bool attends,
                              eval_device **device, kvant_diag *diag) {
    eval_device *d = calloc(1, sizeof *d);
    if (d == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no memory for layer %u", layer);
    d->job = job;
    d->device = job->device;
    d->layer = layer;
    d->geometry = &kvant_dump_geometry(job->dump)->layers[layer];
    d->dtype = kvant_dump_geometry(job->dump)->dtype;
    d->info.struct_size = sizeof d->info;
    pthread_mutex_lock(job->device_lock);
    kvant_status status = open_layer(d, run_tokens, attends, diag);
    pthread_mutex_unlock(job->device_lock);
    if (status != KVANT_OK) {
        status = eval_device_blame(d, "on the device", status, diag);
        eval_device_close(d);
        return status;
    }
    *device = d;
    return KVANT_OK;
}

static void free_device(eval_device *d) {
    if (d->work != NULL) kvant_device_work_close(d->work);
    for (uint32_t side = 0; side < 2; side++) {
        const eval_device_side *s = &d->sides[side];
        kvant_device_free(d->device, s->extents);
        kvant_device_free(d->device, s->input);
        kvant_device_free(d->device, s->decoded);
        kvant_device_free(d->device, s->raw);
    }
    kvant_device_free(d->device, d->queries);
    kvant_device_free(d->device, d->outputs);
    kvant_device_free(d->device, d->log_sum_exp);
    if (d->on_device != NULL) kvant_device_layer_close(d->on_device);
}

void eval_device_close(eval_device *d) {
    if (d == NULL) return;
    pthread_mutex_lock(d->job->device_lock);
    free_device(d);
    pthread_mutex_unlock(d->job->device_lock);
    if (d->attention != NULL) kvant_attention_close(d->attention);
    for (uint32_t side = 0; side < 2; side++) {
        free(d->sides[side].sizes);
        free(d->sides[side].host);
    }
    free(d->host_outputs);
    free(d->host_log_sum_exp);
    free(d->blocks);
    free(d->extents);
    free(d->views);
    free(d->mutable_views);
    free(d->reports);
    free(d->references);
    free(d);
}

kvant_device_layer_info eval_device_describe(const eval_device *d) {
    return d->info;
}

/* ---- Encode and decode --------------------------------------------------------------------------------- */

kvant_status eval_device_time(eval_device *d, uint32_t side,
                              kvant_status (*launch)(kvant_device_work *, uint32_t, void *, kvant_diag *),
                              double *seconds, kvant_diag *diag) {
    kvant_status status = device_wait(d->device, NULL, diag);
    double start = wall_seconds();
    if (status == KVANT_OK) status = launch(d->work, side, NULL, diag);
    if (status == KVANT_OK) status = device_wait(d->device, NULL, diag);
    *seconds += wall_seconds() - start;
    return status;
}

static kvant_status encode_batch(eval_device *d, uint32_t side, const kvant_view *rows, uint32_t block,
                                 uint32_t count, double *seconds, kvant_diag *diag) {
    eval_device_side *s = &d->sides[side];
    uint32_t tokens = d->job->blocks.block_tokens;
    const uint8_t *tags = kvant_dump_describe(d->job->dump)->tags;
    uint64_t bytes = (uint64_t)tokens * s->row_elements * kvant_element_bytes(d->dtype);
    kvant_view from = kvant_view_slice(rows, block * tokens, count * tokens);
    kvant_status status = kvant_device_write(d->device, s->input, from.data, count * bytes, NULL, diag);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t first = (block + i) * tokens;
        d->views[i] = eval_device_rows(s->input + i * bytes, d->dtype, tokens, s->heads, s->dim);
        d->blocks[i] = (kvant_device_block){.struct_size = sizeof *d->blocks,
                                            .rows = &d->views[i],
                                            .extent = s->extents_at + (block + i) * s->stride,
                                            .first_position = first,
                                            .tags = tags != NULL ? tags + first : NULL};
        d->reports[i] = (kvant_encode_report){.struct_size = sizeof *d->reports};
    }
    if (status == KVANT_OK) status = kvant_device_encode_prepare(d->work, side, d->blocks, count, NULL, diag);
    if (status == KVANT_OK) status = eval_device_time(d, side, kvant_device_encode_launch, seconds, diag);
    if (status == KVANT_OK) status = kvant_device_encode_finish(d->work, side, d->reports, count, NULL, diag);
    return status;
}

/* Rows [first, first + count) of the dump as they stay raw. */
static kvant_status write_raw(eval_device *d, uint32_t side, const kvant_view *rows, bool replaced,
                              uint32_t first, uint32_t count, uint64_t to, kvant_diag *diag) {
    uint64_t bytes = d->sides[side].row_elements * kvant_element_bytes(d->dtype);
    kvant_view from = kvant_view_slice(rows, first, count);
    if (!replaced) return kvant_device_write(d->device, to, from.data, count * bytes, NULL, diag);
    char *row = malloc(bytes);
    kvant_status status = row != NULL ? KVANT_OK : kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no memory");
    for (uint32_t t = 0; t < count && status == KVANT_OK; t++) {
        kvant_view one = kvant_view_slice(&from, t, 1);
        kvant_rows_pack(&one, row);
        for (uint64_t i = 0; i < d->sides[side].row_elements; i++) {
            char *element = row + i * kvant_element_bytes(d->dtype);
            kvant_store_element(element, d->dtype,
                                eval_replacement(kvant_load_element(element, d->dtype), d->dtype));
        }
        status = kvant_device_write(d->device, to + t * bytes, row, bytes, NULL, diag);
    }
    free(row);
    return status;
}

static kvant_status raw_to_device(eval_device *d, uint32_t side, const kvant_view *rows, bool replaced,
                                  kvant_diag *diag) {
    const kvant_blocks *blocks = &d->job->blocks;
    eval_device_side *s = &d->sides[side];
    uint64_t tail = s->raw + blocks->sinks * s->row_elements * kvant_element_bytes(d->dtype);
    kvant_status status = KVANT_OK;
    if (blocks->sinks > 0) status = write_raw(d, side, rows, replaced, 0, blocks->sinks, s->raw, diag);
    if (status == KVANT_OK && blocks->tail_tokens > 0)
        status = write_raw(d, side, rows, replaced, blocks->tail_first, blocks->tail_tokens, tail, diag);
    return status != KVANT_OK ? eval_device_blame(d, side_names[side], status, diag) : KVANT_OK;
}

kvant_status eval_device_encode(eval_device *d, uint32_t side, const kvant_view *rows, bool replaced,
                                kvant_eval_side *result, kvant_diag *diag) {
    eval_device_side *s = &d->sides[side];
    const kvant_blocks *blocks = &d->job->blocks;
    pthread_mutex_lock(d->job->device_lock);
    kvant_status status = raw_to_device(d, side, rows, replaced, diag);
    pthread_mutex_unlock(d->job->device_lock);
    if (status != KVANT_OK) return status;
    for (uint32_t block = 0; block < blocks->count; block += d->batch) {
        uint32_t left = blocks->count - block, count = left < d->batch ? left : d->batch;
        pthread_mutex_lock(d->job->device_lock);
        status = encode_batch(d, side, rows, block, count, &result->device_encode_seconds, diag);
        pthread_mutex_unlock(d->job->device_lock);
        if (status != KVANT_OK) return blame_blocks(d, side, block, count, status, diag);
        for (uint32_t i = 0; i < count; i++) {
            s->sizes[block + i] = d->reports[i].size;
            result->saturated += d->reports[i].saturated;
            kvant_account_extent(&result->account, s->layout, d->reports[i].size,
                                 blocks->block_tokens * s->row_elements);
        }
    }
    return KVANT_OK;
}

/* Tokens [first, first + count) of `blocks` blocks, one after another. */
static kvant_status decode_batch(eval_device *d, uint32_t side, uint32_t block, uint32_t blocks,
                                 uint32_t first, uint32_t count, double *seconds, kvant_diag *diag) {
    eval_device_side *s = &d->sides[side];
    uint64_t bytes = count * s->row_elements * sizeof(float);
    /* All ones is NaN: what a decoder leaves out cannot pass for a number. */
    kvant_status status = device_set(d->device, s->decoded, 0xff, blocks * bytes, NULL, diag);
    for (uint32_t i = 0; i < blocks; i++) {
        d->mutable_views[i] = eval_device_floats(s->decoded + i * bytes, count, s->heads, s->dim);
        d->extents[i] =
            (kvant_device_extent){.struct_size = sizeof *d->extents,
                                  .first_token = first,
                                  .extent = s->extents_at + (block + i) * s->stride,
                                  .size = s->sizes[block + i],
                                  .first_position = (uint64_t)(block + i) * d->job->blocks.block_tokens,
                                  .rows = &d->mutable_views[i]};
    }
    if (status == KVANT_OK)
        status = kvant_device_decode_prepare(d->work, side, d->extents, blocks, NULL, diag);
    if (status == KVANT_OK) status = eval_device_time(d, side, kvant_device_decode_launch, seconds, diag);
    if (status == KVANT_OK)
        status = kvant_device_read(d->device, s->host, s->decoded, blocks * bytes, NULL, diag);
    return status;
}

kvant_status eval_device_decode(eval_device *d, uint32_t side, uint32_t block, uint32_t first, uint32_t count,
                                const float **rows, double *seconds, kvant_diag *diag) {
    eval_device_side *s = &d->sides[side];
    bool there = block >= s->block && block - s->block < s->blocks && first == s->first && count == s->count;
    if (!there) {
        bool whole = count == d->job->blocks.block_tokens;
        uint32_t left = d->job->blocks.count - block, blocks = left < d->batch ? left : d->batch;
        if (!whole) blocks = 1;
        s->blocks = 0;
        pthread_mutex_lock(d->job->device_lock);
        kvant_status status = decode_batch(d, side, block, blocks, first, count, seconds, diag);
        pthread_mutex_unlock(d->job->device_lock);
        if (status != KVANT_OK) return blame_blocks(d, side, block, blocks, status, diag);
        s->block = block;
        s->first = first;
        s->blocks = blocks;
        s->count = count;
    }
    *rows = s->host + (uint64_t)(block - s->block) * count * s->row_elements;
    return KVANT_OK;
}
