/* See eval_device.h: the device's own attention, over the extents and raw rows that lie there. */
#include "device/device.h"
#include "measure/eval_device_internal.h"

#include "pipeline/codec_floor.h"

#include <kvant/kit/view.h>

attend_allowance eval_device_allowance(const eval_device *d) {
    attend_allowance allowance = {.center = kvant_codec_center(d->sides[KVANT_SIDE_KEY].codec)};
    for (uint32_t side = 0; side < 2; side++) {
        bool codes = d->info.attends != KVANT_DEVICE_ATTEND_ROWS;
        allowance.tolerance[side] =
            EVAL_DEVICE_ROUNDING + (codes ? d->sides[side].layout->attend_tolerance : 0);
    }
    return allowance;
}

kvant_view eval_device_round_queries(const eval_device *d, const kvant_view *queries, void *rounded) {
    char *to = rounded;
    uint32_t element = kvant_element_bytes(d->dtype);
    for (uint32_t t = 0; t < queries->tokens; t++)
        for (uint32_t h = 0; h < queries->heads; h++) {
            const char *from = kvant_view_at(queries, t, h);
            for (uint32_t c = 0; c < queries->head_dim; c++, to += element)
                kvant_store_element(
                    to, d->dtype,
                    kvant_load_element(from + (int64_t)c * queries->channel_stride, queries->dtype));
        }
    return kvant_rows_view(rounded, d->dtype, queries->tokens, queries->heads, queries->head_dim);
}

static void refer(eval_device *d) {
    const kvant_blocks *blocks = &d->job->blocks;
    for (uint32_t b = 0; b < blocks->count; b++) {
        uint32_t steps[2], dead = b == 0 ? blocks->sinks : 0;
        for (uint32_t side = 0; side < 2; side++) {
            const eval_device_side *s = &d->sides[side];
            uint64_t beyond = s->sizes[b] - s->layout->size_min;
            steps[side] = s->layout->size_step > 0 ? (uint32_t)(beyond / s->layout->size_step) : 0;
        }
        d->references[b] = (kvant_gpu_reference){.first_position = (uint64_t)b * blocks->block_tokens,
                                                 .key_index = b,
                                                 .value_index = b,
                                                 .key_step = steps[KVANT_SIDE_KEY],
                                                 .value_step = steps[KVANT_SIDE_VALUE],
                                                 .live_first = dead,
                                                 .live_count = blocks->block_tokens - dead};
    }
}

/* The sinks, and the tail. */
static uint32_t raw_runs(const eval_device *d, kvant_view views[4], kvant_raw_run runs[2]) {
    const kvant_blocks *blocks = &d->job->blocks;
    const uint32_t tokens[2] = {blocks->sinks, blocks->tail_tokens}, first[2] = {0, blocks->tail_first};
    uint32_t count = 0;
    for (uint32_t i = 0; i < 2; i++) {
        if (tokens[i] == 0) continue;
        kvant_view *of = views + (size_t)2 * count;
        for (uint32_t side = 0; side < 2; side++) {
            const eval_device_side *s = &d->sides[side];
            uint64_t skip = i == 0 ? 0 : blocks->sinks * s->row_elements * kvant_element_bytes(d->dtype);
            of[side] = eval_device_rows(s->raw + skip, d->dtype, tokens[i], s->heads, s->dim);
        }
        runs[count++] = (kvant_raw_run){.keys = &of[0], .values = &of[1], .first_position = first[i]};
    }
    return count;
}

static kvant_status launch_attention(kvant_device_work *work, uint32_t side, void *stream, kvant_diag *diag) {
    (void)side;
    return kvant_device_attend_launch(work, stream, diag);
}

/* One call; `queries` starts with row `first` of the dump. */
static kvant_status attend_rows(eval_device *d, const kvant_view *queries, uint32_t first, double *seconds,
                                kvant_diag *diag) {
    const kvant_layer_geometry *g = d->geometry;
    const kvant_dump_info *info = kvant_dump_describe(d->job->dump);
    uint32_t count = queries->tokens;
    uint64_t rows = (uint64_t)count * g->q_heads;
    kvant_view there = eval_device_rows(d->queries, d->dtype, count, g->q_heads, g->key_dim), views[4];
    kvant_mutable_view outputs = eval_device_floats(d->outputs, count, g->q_heads, g->value_dim);
    kvant_raw_run runs[2];
    const kvant_device_sequence sequence = {.struct_size = sizeof sequence,
                                            .reference_count = d->job->blocks.count,
                                            .run_count = raw_runs(d, views, runs),
                                            .references = d->references,
                                            .runs = runs,
                                            .queries = &there,
                                            .outputs = &outputs,
                                            .log_sum_exp = d->log_sum_exp,
                                            .query_position = info->query_start + first};
    const kvant_device_attend_options how = {.struct_size = sizeof how,
                                             .window = g->window,
                                             .scale = (float)info->scale,
                                             .key_base = d->sides[KVANT_SIDE_KEY].extents_at,
                                             .key_stride = d->sides[KVANT_SIDE_KEY].stride,
                                             .value_base = d->sides[KVANT_SIDE_VALUE].extents_at,
                                             .value_stride = d->sides[KVANT_SIDE_VALUE].stride};
    kvant_status status =
        kvant_device_write(d->device, d->queries, queries->data, kvant_rows_bytes(queries), NULL, diag);
    /* What nobody writes is no number. */
    if (status == KVANT_OK)
        status = device_set(d->device, d->outputs, 0xff, rows * g->value_dim * sizeof(float), NULL, diag);
    if (status == KVANT_OK)
        status = device_set(d->device, d->log_sum_exp, 0xff, rows * sizeof(float), NULL, diag);
    if (status == KVANT_OK) status = kvant_device_attend_prepare(d->work, &sequence, 1, &how, NULL, diag);
    if (status == KVANT_OK) status = eval_device_time(d, 0, launch_attention, seconds, diag);
    if (status == KVANT_OK)
        status = kvant_device_read(d->device, d->host_outputs, d->outputs,
                                   rows * g->value_dim * sizeof(float), NULL, diag);
    if (status == KVANT_OK)
        status = kvant_device_read(d->device, d->host_log_sum_exp, d->log_sum_exp, rows * sizeof(float), NULL,
                                   diag);
    return status;
}

kvant_status eval_device_attend(eval_device *d, const kvant_view *queries, uint32_t first,
                                const attend_error *truth, attend_error_sums *sums, double *seconds,
                                kvant_diag *diag) {
    refer(d);
    for (uint32_t row = 0; row < queries->tokens; row += d->positions) {
        uint32_t left = queries->tokens - row, count = left < d->positions ? left : d->positions;
        kvant_view some = kvant_view_slice(queries, row, count);
        pthread_mutex_lock(d->job->device_lock);
        kvant_status status = attend_rows(d, &some, first + row, seconds, diag);
        pthread_mutex_unlock(d->job->device_lock);
        if (status != KVANT_OK) return eval_device_blame(d, "attention on the device", status, diag);
        attend_error_compare(truth, row, count, d->host_outputs, d->host_log_sum_exp, sums);
    }
    return KVANT_OK;
}
