/* Attention where neither kernel works on codes: blocks are decoded to floats in scratch, which then are raw
 * runs. See device_attend.h. */
#include "device/device_attend.h"

/* A block's rows of one side, [block_tokens, kv_heads, dim] floats. */
static kvant_gpu_view tile_view(const device_side *side, gpu_address tiles, uint32_t index) {
    const kvant_setup *setup = &side->entry->setup;
    kvant_view dense =
        kvant_rows_view(NULL, KVANT_DTYPE_F32, setup->block_tokens, setup->kv_heads, setup->head_dim);
    kvant_gpu_view view = device_view(NULL, dense.token_stride, dense.head_stride, dense.channel_stride);
    view.data = tiles + (uint64_t)index * side->row_elements * sizeof(float);
    return view;
}

static void add_decode(attend_list *l, uint32_t side, uint32_t index) {
    const kvant_gpu_reference *r = &l->references[index];
    const device_side *s = &l->work->layer->sides[side];
    const kvant_layout *layout = &s->entry->layout;
    const kvant_device_attend_options *o = l->options;
    bool key = side == KVANT_SIDE_KEY;
    uint64_t base = key ? o->key_base : o->value_base, stride = key ? o->key_stride : o->value_stride;
    bool copies = key && s->changes;
    kvant_gpu_decode_job *jobs = (kvant_gpu_decode_job *)(void *)(l->pinned + l->at->decodes[side]);
    jobs[index] = (kvant_gpu_decode_job){
        .rows = tile_view(s, l->scratch + (copies ? l->at->decoded : l->at->tiles[side]), index),
        .extent = base + (uint64_t)(key ? r->key_index : r->value_index) * stride,
        .size = layout->size_min + layout->size_step * (key ? r->key_step : r->value_step),
        .first_position = r->first_position,
        .dtype = KVANT_DTYPE_F32,
        .tokens = s->entry->setup.block_tokens,
        .heads = s->entry->setup.kv_heads};
}

static void add_key_rows(attend_list *l, uint32_t index) {
    const device_side *s = &l->work->layer->sides[KVANT_SIDE_KEY];
    uint32_t tokens = s->entry->setup.block_tokens;
    uint64_t doubles = device_turn_doubles(s, tokens) * index, first = l->references[index].first_position;
    core_rows_job job = device_rows_job(s, device_flags_from_codec(s));
    job.from = tile_view(s, l->scratch + l->at->decoded, index);
    job.to = tile_view(s, l->scratch + l->at->tiles[KVANT_SIDE_KEY], index);
    job.from_dtype = job.to_dtype = KVANT_DTYPE_F32;
    job.first_position = first;
    job.tokens = tokens;
    if (job.turn_offsets != 0) {
        job.turn_bases = l->list + l->at->turn_bases + doubles * sizeof(double);
        device_turn_bases(s, first, tokens, (double *)(void *)(l->pinned + l->at->turn_bases) + doubles);
    }
    ((core_rows_job *)(void *)(l->pinned + l->at->key_jobs))[l->key_jobs++] = job;
}

static void add_queries(attend_list *l, const kvant_device_sequence *s) {
    const kvant_attention *a = l->work->layer->attention;
    const kvant_view *q = s->queries;
    kvant_view dense = kvant_rows_view(NULL, KVANT_DTYPE_F32, q->tokens, a->q_heads, a->key_dim);
    l->float_queries = device_view(NULL, dense.token_stride, dense.head_stride, dense.channel_stride);
    l->float_queries.data =
        l->scratch + l->at->queries + (uint64_t)l->query_positions * (uint64_t)dense.token_stride;
    l->query_positions += q->tokens;
    ((core_rows_job *)(void *)(l->pinned + l->at->query_jobs))[l->query_jobs++] =
        (core_rows_job){.from = device_view(q->data, q->token_stride, q->head_stride, q->channel_stride),
                        .to = l->float_queries,
                        .from_dtype = a->dtype,
                        .to_dtype = KVANT_DTYPE_F32,
                        .tokens = q->tokens,
                        .heads = a->q_heads,
                        .dim = a->key_dim,
                        .magnitude = 1};
}

void device_tiles_add(attend_list *l, const kvant_device_sequence *s, uint32_t from, uint32_t count) {
    const kvant_device_layer *layer = l->work->layer;
    kvant_gpu_run *runs = (kvant_gpu_run *)(void *)(l->pinned + l->at->tile_runs);
    if (count == 0) return;
    add_queries(l, s);
    for (uint32_t i = from; i < from + count; i++) {
        const kvant_gpu_reference *r = &l->references[i];
        for (uint32_t side = 0; side < 2; side++) add_decode(l, side, i);
        if (layer->sides[KVANT_SIDE_KEY].changes) add_key_rows(l, i);
        runs[i] = (kvant_gpu_run){
            .keys = tile_view(&layer->sides[KVANT_SIDE_KEY], l->scratch + l->at->tiles[KVANT_SIDE_KEY], i),
            .values =
                tile_view(&layer->sides[KVANT_SIDE_VALUE], l->scratch + l->at->tiles[KVANT_SIDE_VALUE], i),
            .first_position = r->first_position + r->live_first,
            .tokens = r->live_count};
        runs[i].keys.data += (uint64_t)(runs[i].keys.token_stride * (int64_t)r->live_first);
        runs[i].values.data += (uint64_t)(runs[i].values.token_stride * (int64_t)r->live_first);
    }
    l->counts[DEVICE_COUNT_DECODES] = from + count;
}
