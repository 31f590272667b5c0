/* Attention on a device: sequences to items and merges. See kvant/device.h and device_internal.h. */
#include "device/device_attend.h"

#include "pipeline/codec_floor.h"

#include <kvant/kit/diag.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

const kvant_device_sequence *device_sequence_at(const kvant_device_sequence *sequences, uint32_t index) {
    return (const kvant_device_sequence *)(const void *)((const char *)sequences +
                                                         (size_t)index * sequences[0].struct_size);
}

/* ---- Lists --------------------------------------------------------------------------------------------- */

static kvant_gpu_view view_of(const kvant_view *v) {
    return device_view(v->data, v->token_stride, v->head_stride, v->channel_stride);
}

/* The references that some row sees something of: with a window the first ones may lie before it. */
static uint32_t first_seen(const attend_list *l, const kvant_device_sequence *s) {
    uint64_t from = 0;
    uint32_t i = 0;
    if (l->options->window != 0 && s->query_position >= l->options->window)
        from = s->query_position - l->options->window + 1;
    while (i < s->reference_count &&
           s->references[i].first_position + s->references[i].live_first + s->references[i].live_count <=
               from)
        i++;
    return i;
}

static kvant_gpu_item item_of(const attend_list *l, const kvant_device_sequence *s, uint32_t head,
                              uint32_t first, uint32_t positions) {
    const kvant_view *q = s->queries;
    kvant_gpu_item item = {.queries = view_of(q),
                           .query_position = s->query_position + first,
                           .partial_stride = l->at->partial_stride,
                           .kv_head = head,
                           .positions = positions};
    item.queries.data += (uint64_t)(q->token_stride * (int64_t)first);
    return item;
}

/* Where partial `slot` of a head's rows from position `first` on lies. */
static gpu_address partial_of(const attend_list *l, const kvant_device_sequence *s, uint32_t head,
                              uint32_t slots, uint32_t slot, uint32_t first) {
    const kvant_attention *a = l->work->layer->attention;
    uint64_t rows = (uint64_t)s->queries->tokens * a->group;
    uint64_t row = l->partial_row + ((uint64_t)head * slots + slot) * rows + (uint64_t)first * a->group;
    return l->scratch + l->at->partials + row * l->at->partial_stride * sizeof(float);
}

/* Items on one span, references [from, from + count) of the list. */
static void add_coded(attend_list *l, const kvant_device_sequence *s, uint32_t head, uint32_t slots,
                      uint32_t slot, uint32_t from, uint32_t count) {
    const kvant_attention *a = l->work->layer->attention;
    uint32_t step = device_item_positions(l->work->layer), positions = s->queries->tokens;
    for (uint32_t first = 0; first < positions; first += step) {
        uint32_t n = positions - first < step ? positions - first : step;
        kvant_gpu_item item = item_of(l, s, head, first, n);
        item.partial = partial_of(l, s, head, slots, slot, first);
        if (l->work->layer->attends == KVANT_DEVICE_ATTEND_ROWS) {
            item.queries = l->float_queries;
            item.queries.data += (uint64_t)(item.queries.token_stride * (int64_t)first);
            item.runs = l->list + l->at->tile_runs + from * sizeof(kvant_gpu_run);
            item.run_count = count;
        } else {
            item.references = l->list + l->at->references + from * sizeof(kvant_gpu_reference);
            item.reference_count = count;
        }
        if (l->work->layer->attends == KVANT_DEVICE_ATTEND_SPLIT) {
            item.logits = l->scratch + l->at->logits + l->logits * sizeof(float);
            item.logit_stride = (uint64_t)count * a->block_tokens;
            l->logits += ((uint64_t)n * a->group * item.logit_stride + 3) / 4 * 4;
        }
        l->coded_items[l->counts[DEVICE_COUNT_CODED]++] = item;
    }
}

static void add_raw(attend_list *l, const kvant_device_sequence *s, uint32_t head, uint32_t slots,
                    uint32_t runs_from) {
    bool fused = l->work->layer->attends == KVANT_DEVICE_ATTEND_FUSED;
    uint32_t step = device_item_positions(l->work->layer), positions = s->queries->tokens;
    for (uint32_t first = 0; first < positions; first += step) {
        kvant_gpu_item item = item_of(l, s, head, first, positions - first < step ? positions - first : step);
        item.partial = partial_of(l, s, head, slots, slots - 1, first);
        item.runs = l->list + l->at->runs + runs_from * sizeof(kvant_gpu_run);
        item.run_count = s->run_count;
        if (fused)
            l->coded_items[l->counts[DEVICE_COUNT_CODED]++] = item;
        else
            l->raw_items[l->counts[DEVICE_COUNT_RAW]++] = item;
    }
}

static void add_merge(attend_list *l, const kvant_device_sequence *s, uint32_t head, uint32_t slots) {
    const kvant_attention *a = l->work->layer->attention;
    const kvant_mutable_view *o = s->outputs;
    l->merges[l->counts[DEVICE_COUNT_MERGES]++] =
        (core_merge_job){.partial = partial_of(l, s, head, slots, 0, 0),
                         .partial_step = (uint64_t)s->queries->tokens * a->group * l->at->partial_stride,
                         .partial_stride = l->at->partial_stride,
                         .outputs = device_view(o->data, o->token_stride, o->head_stride, o->channel_stride),
                         .log_sum_exp = s->log_sum_exp,
                         .count = slots,
                         .positions = s->queries->tokens,
                         .group = a->group,
                         .kv_head = head,
                         .q_heads = a->q_heads,
                         .value_dim = a->value_dim,
                         .dtype = o->dtype};
}

static void add_runs(attend_list *l, const kvant_device_sequence *s) {
    for (uint32_t i = 0; i < s->run_count; i++)
        l->runs[l->run_count++] = (kvant_gpu_run){.keys = view_of(s->runs[i].keys),
                                                  .values = view_of(s->runs[i].values),
                                                  .first_position = s->runs[i].first_position,
                                                  .tokens = s->runs[i].keys->tokens};
}

static void add_sequence(attend_list *l, const kvant_device_sequence *s) {
    const kvant_attention *a = l->work->layer->attention;
    uint32_t seen = first_seen(l, s), count = s->reference_count - seen, positions = s->queries->tokens;
    uint32_t from = l->reference_count, runs_from = l->run_count;
    uint64_t span = device_span_references(l->work, positions > 0 ? positions : 1);
    uint32_t slots = (uint32_t)((count + span - 1) / span) + (s->run_count > 0);
    if (positions == 0) return;
    if (count > 0) memcpy(l->references + from, s->references + seen, count * sizeof *l->references);
    l->reference_count += count;
    add_runs(l, s);
    if (l->work->layer->attends == KVANT_DEVICE_ATTEND_ROWS) device_tiles_add(l, s, from, count);
    for (uint32_t head = 0; head < a->kv_heads; head++) {
        for (uint32_t slot = 0, first = 0; first < count; slot++, first += (uint32_t)span)
            add_coded(l, s, head, slots, slot, from + first,
                      (uint32_t)(count - first < span ? count - first : span));
        if (s->run_count > 0) add_raw(l, s, head, slots, runs_from);
        add_merge(l, s, head, slots);
    }
    l->partial_row += (uint64_t)a->q_heads * slots * positions;
}

static kvant_gpu_layer layer_of(const attend_list *l) {
    const kvant_device_attend_options *o = l->options;
    const kvant_device_layer *layer = l->work->layer;
    return (kvant_gpu_layer){.key_base = o->key_base,
                             .key_stride = o->key_stride,
                             .value_base = o->value_base,
                             .value_stride = o->value_stride,
                             .value_state = layer->sides[KVANT_SIDE_VALUE].gpu.state,
                             .center = layer->sides[KVANT_SIDE_KEY].center,
                             .scale = o->scale,
                             .soft_cap = o->soft_cap,
                             .window = o->window,
                             .q_heads = layer->attention->q_heads};
}

/* ---- Prepare ------------------------------------------------------------------------------------------- */

static kvant_status write_list(kvant_device_work *work, const attend_list *l, void *stream,
                               kvant_diag *diag) {
    const device_attend_places *at = l->at;
    const kvant_gpu_layer layer = layer_of(l);
    const core_rows_head heads[2] = {
        {.jobs = l->query_jobs, .units = device_rows_units(work->limits.positions)},
        {.jobs = l->key_jobs, .units = device_rows_units(work->layer->attention->block_tokens)}};
    for (uint32_t i = 0; i < 2; i++) memcpy(l->pinned + at->heads[i], &heads[i], sizeof heads[i]);
    memcpy(l->pinned + at->counts, l->counts, sizeof l->counts);
    memcpy(l->pinned + at->layer, &layer, sizeof layer);
    uint64_t decodes = l->counts[DEVICE_COUNT_DECODES];
    uint64_t turns =
        device_turn_doubles(&work->layer->sides[KVANT_SIDE_KEY], work->layer->attention->block_tokens);
    const device_segment written[] = {
        {at->heads[0], sizeof heads[0]},
        {at->heads[1], sizeof heads[1]},
        {at->counts, sizeof l->counts},
        {at->layer, sizeof layer},
        {at->coded_items, l->counts[DEVICE_COUNT_CODED] * sizeof(kvant_gpu_item)},
        {at->raw_items, l->counts[DEVICE_COUNT_RAW] * sizeof(kvant_gpu_item)},
        {at->merges, l->counts[DEVICE_COUNT_MERGES] * sizeof(core_merge_job)},
        {at->references, l->reference_count * sizeof(kvant_gpu_reference)},
        {at->runs, l->run_count * sizeof(kvant_gpu_run)},
        {at->tile_runs, decodes * sizeof(kvant_gpu_run)},
        {at->decodes[0], decodes * sizeof(kvant_gpu_decode_job)},
        {at->decodes[1], decodes * sizeof(kvant_gpu_decode_job)},
        {at->query_jobs, l->query_jobs * sizeof(core_rows_job)},
        {at->key_jobs, l->key_jobs * sizeof(core_rows_job)},
        {at->turn_bases, decodes * turns * sizeof(double)}};
    return device_list_end(work->layer->device, &work->attend, written, sizeof written / sizeof written[0],
                           stream, diag);
}

kvant_status kvant_device_attend_prepare(kvant_device_work *work, const kvant_device_sequence *sequences,
                                         uint32_t count, const kvant_device_attend_options *options,
                                         void *stream, kvant_diag *diag) {
    kvant_status status = device_attend_check(work, sequences, count, options, diag);
    if (status != KVANT_OK || work->limits.sequences == 0) return status;
    attend_list l = {.work = work,
                     .at = &work->attend_at,
                     .options = options,
                     .list = work->attend.address,
                     .scratch = work->scratch};
    status = device_list_begin(work->layer->device, &work->attend, &l.pinned, diag);
    if (status != KVANT_OK) return status;
    l.coded_items = (kvant_gpu_item *)(void *)(l.pinned + l.at->coded_items);
    l.raw_items = (kvant_gpu_item *)(void *)(l.pinned + l.at->raw_items);
    l.merges = (core_merge_job *)(void *)(l.pinned + l.at->merges);
    l.references = (kvant_gpu_reference *)(void *)(l.pinned + l.at->references);
    l.runs = (kvant_gpu_run *)(void *)(l.pinned + l.at->runs);
    for (uint32_t i = 0; i < count; i++) add_sequence(&l, device_sequence_at(sequences, i));
    return write_list(work, &l, stream, diag);
}

/* ---- Launch -------------------------------------------------------------------------------------------- */

static kvant_status launch_codec(const kvant_device_work *work, uint32_t side, uint32_t call, uint64_t jobs,
                                 uint32_t count, uint32_t most, void *stream, kvant_diag *diag) {
    const device_attend_places *at = &work->attend_at;
    gpu_address list = work->attend.address;
    const gpu_batch batch = {.jobs = list + jobs,
                             .job_count = list + at->counts + count * sizeof(uint32_t),
                             .scratch = work->scratch + at->codec[side],
                             .layer = list + at->layer,
                             .jobs_most = most};
    return gpu_codec_launch(&work->layer->sides[side].gpu, call, &batch, stream, diag);
}

/* A kernel of the core's over a list of items or merges. */
static kvant_status launch_core(const kvant_device_work *work, const gpu_launchable *kernel,
                                gpu_address state, uint64_t jobs, uint64_t count, uint64_t units,
                                void *stream, kvant_diag *diag) {
    kvant_device *device = work->layer->device;
    gpu_address list = work->attend.address;
    const kvant_gpu_call call = {.state = state,
                                 .jobs = list + jobs,
                                 .job_count = list + count,
                                 .layer = list + work->attend_at.layer};
    kvant_status status = gpu_device_enter(&device->gpu, diag);
    if (status != KVANT_OK) return status;
    status = gpu_launchable_launch(&device->core.module, kernel, units, &call, stream, diag);
    gpu_device_leave(&device->gpu);
    return status;
}

static kvant_status launch_split(const kvant_device_work *work, void *stream, kvant_diag *diag) {
    const device_attend_places *at = &work->attend_at;
    kvant_status status = launch_codec(work, KVANT_SIDE_KEY, KVANT_GPU_SCORE, at->coded_items,
                                       DEVICE_COUNT_CODED, at->coded_room, stream, diag);
    if (status == KVANT_OK)
        status =
            launch_core(work, &work->layer->soften, work->layer->rows_state, at->coded_items,
                        at->counts + DEVICE_COUNT_CODED * sizeof(uint32_t), at->coded_room, stream, diag);
    if (status == KVANT_OK)
        status = launch_codec(work, KVANT_SIDE_VALUE, KVANT_GPU_MIX, at->coded_items, DEVICE_COUNT_CODED,
                              at->coded_room, stream, diag);
    return status;
}

static kvant_status launch_rows(const kvant_device_work *work, void *stream, kvant_diag *diag) {
    const device_attend_places *at = &work->attend_at;
    const kvant_device_layer *layer = work->layer;
    const kvant_device_limits *limits = &work->limits;
    kvant_status status = KVANT_OK;
    for (uint32_t side = 0; side < 2 && status == KVANT_OK; side++)
        status = launch_codec(work, side, KVANT_GPU_DECODE, at->decodes[side], DEVICE_COUNT_DECODES,
                              (uint32_t)limits->references, stream, diag);
    if (status == KVANT_OK && layer->sides[KVANT_SIDE_KEY].changes)
        status =
            launch_core(work, &layer->device->rows, 0, at->key_jobs, at->heads[1],
                        limits->references * device_rows_units(layer->attention->block_tokens), stream, diag);
    if (status == KVANT_OK)
        status =
            launch_core(work, &layer->device->rows, 0, at->query_jobs, at->heads[0],
                        (uint64_t)limits->sequences * device_rows_units(limits->positions), stream, diag);
    if (status == KVANT_OK)
        status =
            launch_core(work, &layer->attend_rows, layer->float_state, at->coded_items,
                        at->counts + DEVICE_COUNT_CODED * sizeof(uint32_t), at->coded_room, stream, diag);
    return status;
}

kvant_status kvant_device_attend_launch(kvant_device_work *work, void *stream, kvant_diag *diag) {
    if (work == NULL || work->limits.sequences == 0)
        return REFUSE(KVANT_ERROR_ARGUMENT, "",
                      "kvant_device_attend_launch: work is NULL, or was opened for no sequences");
    const device_attend_places *at = &work->attend_at;
    const kvant_device_layer *layer = work->layer;
    uint64_t rows = (uint64_t)layer->attention->q_heads * work->limits.positions;
    kvant_status status = KVANT_OK;
    if (layer->attends == KVANT_DEVICE_ATTEND_FUSED)
        status = launch_codec(work, KVANT_SIDE_KEY, KVANT_GPU_ATTEND, at->coded_items, DEVICE_COUNT_CODED,
                              at->coded_room, stream, diag);
    else if (at->coded_room > 0)
        status = layer->attends == KVANT_DEVICE_ATTEND_SPLIT ? launch_split(work, stream, diag)
                                                             : launch_rows(work, stream, diag);
    if (status == KVANT_OK && layer->attends != KVANT_DEVICE_ATTEND_FUSED)
        status = launch_core(work, &layer->attend_rows, layer->rows_state, at->raw_items,
                             at->counts + DEVICE_COUNT_RAW * sizeof(uint32_t), at->raw_room, stream, diag);
    if (status == KVANT_OK)
        status = launch_core(work, &layer->device->merge, 0, at->merges,
                             at->counts + DEVICE_COUNT_MERGES * sizeof(uint32_t), rows, stream, diag);
    return status;
}
