/* See gpu_coded.h. */
#include "gpu_coded.h"

#include <kvant/kit/diag.h>

#include <math.h>
#include <stdlib.h>

enum { ENCODED_AT_ONCE = 512, ALIGNMENT = 256 };

static void *pointer(gpu_address address) {
    return (void *)(uintptr_t)address;
}

static kvant_status no_memory(kvant_diag *diag) {
    return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
}

/* ---- Codec --------------------------------------------------------------------------------------------- */

kvant_status gpu_coded_open(gpu_clock *clock, kvant_device *device, const char *plugin,
                            const char *parameters, uint32_t kv_heads, uint32_t group, uint32_t dtype,
                            gpu_coded *coded, kvant_diag *diag) {
    char text[512];
    kvant_rope none = {.struct_size = sizeof none};
    kvant_layer_geometry layer = {.struct_size = sizeof layer,
                                  .kv_heads = kv_heads,
                                  .q_heads = kv_heads * group,
                                  .total_kv_heads = kv_heads,
                                  .key_dim = CODED_DIM,
                                  .value_dim = CODED_DIM,
                                  .rope = &none};
    kvant_geometry geometry = {
        .struct_size = sizeof geometry, .layer_count = 1, .dtype = dtype, .layers = &layer};
    kvant_pipeline *pipeline = NULL;
    *coded =
        (gpu_coded){.clock = clock, .device = device, .kv_heads = kv_heads, .group = group, .dtype = dtype};
    (void)snprintf(
        text, sizeof text,
        "[pipeline]\nblock_tokens = %d\n[codec c]\nplugin = %s\n%s\n[layers]\nkey = c\nvalue = c\n",
        CODED_BLOCK, plugin, parameters);
    kvant_status status = kvant_pipeline_parse(text, strlen(text), "gpu_speed", NULL, &pipeline, diag);
    if (status == KVANT_OK) status = kvant_pipeline_resolve(pipeline, &geometry, &coded->plan, diag);
    if (status == KVANT_OK) status = kvant_attention_open(coded->plan, 0, &coded->attention, diag);
    if (status == KVANT_OK) status = kvant_device_layer_open(device, coded->attention, &coded->layer, diag);
    kvant_pipeline_free(pipeline);
    for (uint32_t side = 0; side < 2 && status == KVANT_OK; side++) {
        coded->extent_bytes[side] = kvant_codec_extent_max(kvant_attention_codec(coded->attention, side));
        coded->stride[side] = (coded->extent_bytes[side] + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    if (status != KVANT_OK) gpu_coded_close(coded);
    return status;
}

void gpu_coded_close(gpu_coded *coded) {
    kvant_device_layer_close(coded->layer);
    kvant_attention_close(coded->attention);
    kvant_plan_free(coded->plan);
    *coded = (gpu_coded){0};
}

static uint64_t row_bytes(const gpu_coded *c) { /* of a token */
    return (uint64_t)c->kv_heads * CODED_DIM * (c->dtype == KVANT_DTYPE_F32 ? 4 : 2);
}

static kvant_view view_of(const gpu_coded *c, gpu_address rows, uint32_t tokens, uint32_t heads) {
    int64_t element = c->dtype == KVANT_DTYPE_F32 ? 4 : 2;
    return (kvant_view){.struct_size = sizeof(kvant_view),
                        .dtype = c->dtype,
                        .data = pointer(rows),
                        .tokens = tokens,
                        .heads = heads,
                        .head_dim = CODED_DIM,
                        .token_stride = element * heads * CODED_DIM,
                        .head_stride = element * CODED_DIM,
                        .channel_stride = element};
}

static kvant_mutable_view mutable_view_of(const gpu_coded *c, gpu_address rows, uint32_t tokens,
                                          uint32_t heads) {
    kvant_view v = view_of(c, rows, tokens, heads);
    return (kvant_mutable_view){.struct_size = sizeof(kvant_mutable_view),
                                .dtype = v.dtype,
                                .data = pointer(rows),
                                .tokens = tokens,
                                .heads = heads,
                                .head_dim = CODED_DIM,
                                .token_stride = v.token_stride,
                                .head_stride = v.head_stride,
                                .channel_stride = v.channel_stride};
}

static void close_works(kvant_device_work **works, uint32_t sets) {
    for (uint32_t set = 0; works != NULL && set < sets; set++) kvant_device_work_close(works[set]);
    free(works);
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

static kvant_status launch_encode(void *context, uint32_t set, gpu_stream stream, kvant_diag *diag) {
    const gpu_coded_blocks *b = context;
    return kvant_device_encode_launch(b->works[set], b->side, stream, diag);
}

static kvant_status launch_decode(void *context, uint32_t set, gpu_stream stream, kvant_diag *diag) {
    const gpu_coded_blocks *b = context;
    return kvant_device_decode_launch(b->works[set], b->side, stream, diag);
}

/* Block i's rows lie at rows + i * bytes of a block, its extent at extents + i * stride. */
static kvant_status prepare_encode(const gpu_coded *c, kvant_device_work *work, uint32_t side,
                                   gpu_address rows, gpu_address extents, uint32_t count, kvant_diag *diag) {
    kvant_view *views = calloc(count, sizeof *views);
    kvant_device_block *blocks = calloc(count, sizeof *blocks);
    kvant_status status = views != NULL && blocks != NULL ? KVANT_OK : no_memory(diag);
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        views[i] = view_of(c, rows + i * CODED_BLOCK * row_bytes(c), CODED_BLOCK, c->kv_heads);
        blocks[i] = (kvant_device_block){.struct_size = sizeof blocks[i],
                                         .rows = &views[i],
                                         .extent = extents + i * c->stride[side],
                                         .first_position = (uint64_t)i * CODED_BLOCK};
    }
    if (status == KVANT_OK)
        status = kvant_device_encode_prepare(work, side, blocks, count, c->clock->stream, diag);
    free(views);
    free(blocks);
    return status;
}

static kvant_status prepare_decode(const gpu_coded *c, kvant_device_work *work, uint32_t side,
                                   gpu_address rows, gpu_address extents, uint32_t count, kvant_diag *diag) {
    kvant_mutable_view *views = calloc(count, sizeof *views);
    kvant_device_extent *list = calloc(count, sizeof *list);
    kvant_status status = views != NULL && list != NULL ? KVANT_OK : no_memory(diag);
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        views[i] = mutable_view_of(c, rows + i * CODED_BLOCK * row_bytes(c), CODED_BLOCK, c->kv_heads);
        list[i] = (kvant_device_extent){.struct_size = sizeof list[i],
                                        .extent = extents + i * c->stride[side],
                                        .size = c->extent_bytes[side],
                                        .first_position = (uint64_t)i * CODED_BLOCK,
                                        .rows = &views[i]};
    }
    if (status == KVANT_OK)
        status = kvant_device_decode_prepare(work, side, list, count, c->clock->stream, diag);
    free(views);
    free(list);
    return status;
}

static kvant_status prepare_set(gpu_coded_blocks *b, uint32_t set, kvant_diag *diag) {
    const gpu_coded *c = b->coded;
    const kvant_device_limits limits = {.struct_size = sizeof limits, .blocks = b->blocks};
    uint64_t rows = set * (uint64_t)b->blocks * CODED_BLOCK * row_bytes(c);
    gpu_address extents = b->extents + set * (uint64_t)b->blocks * c->stride[b->side];
    kvant_status status = kvant_device_work_open(c->layer, &limits, 0, &b->works[set], diag);
    if (status == KVANT_OK)
        status = prepare_encode(c, b->works[set], b->side, b->rows + rows, extents, b->blocks, diag);
    if (status == KVANT_OK)
        status = kvant_device_encode_launch(b->works[set], b->side, c->clock->stream, diag);
    if (status == KVANT_OK)
        status = prepare_decode(c, b->works[set], b->side, b->decoded + rows, extents, b->blocks, diag);
    return status;
}

kvant_status gpu_coded_blocks_open(const gpu_coded *coded, gpu_room *room, uint32_t side, uint32_t tokens,
                                   uint32_t sets, gpu_coded_blocks *made, kvant_diag *diag) {
    uint64_t rows = (uint64_t)sets * tokens * row_bytes(coded);
    *made = (gpu_coded_blocks){.coded = coded,
                               .side = side,
                               .blocks = tokens / CODED_BLOCK,
                               .sets = sets,
                               .works = calloc(sets, sizeof(kvant_device_work *))};
    made->bytes = made->blocks * coded->extent_bytes[side] + tokens * row_bytes(coded);
    made->encode = (gpu_timed){.launch = launch_encode, .context = made, .sets = sets};
    made->decode = (gpu_timed){.launch = launch_decode, .context = made, .sets = sets};
    if (made->works == NULL) return no_memory(diag);
    kvant_status status = gpu_room_take(room, rows, &made->rows, diag);
    if (status == KVANT_OK) status = gpu_room_take(room, rows, &made->decoded, diag);
    if (status == KVANT_OK)
        status =
            gpu_room_take(room, (uint64_t)sets * made->blocks * coded->stride[side], &made->extents, diag);
    if (status == KVANT_OK) status = gpu_fill(coded->clock, made->rows, rows, coded->dtype, 17 + side, diag);
    for (uint32_t set = 0; set < sets && status == KVANT_OK; set++) status = prepare_set(made, set, diag);
    if (status != KVANT_OK) gpu_coded_blocks_close(made);
    return status;
}

void gpu_coded_blocks_close(gpu_coded_blocks *made) {
    close_works(made->works, made->sets);
    made->works = NULL;
}

/* ---- Attention ----------------------------------------------------------------------------------------- */

/* Of one side of all sequences into the first set, then as copies into the others. */
static kvant_status encode_side(gpu_coded_step *s, gpu_room *room, uint32_t side, gpu_address rows,
                                kvant_diag *diag) {
    const gpu_coded *c = s->coded;
    const gpu_driver *d = c->clock->device.driver;
    uint32_t count = s->sequences * s->tokens / CODED_BLOCK, at_once = rows != 0 ? 1 : ENCODED_AT_ONCE;
    if (at_once > count) at_once = count;
    const kvant_device_limits limits = {.struct_size = sizeof limits, .blocks = at_once};
    uint64_t all = count * c->stride[side];
    kvant_device_work *work = NULL;
    gpu_address random = 0;
    kvant_encode_report *reports = calloc(at_once, sizeof *reports);
    if (reports == NULL) return no_memory(diag);
    for (uint32_t i = 0; i < at_once; i++) reports[i].struct_size = sizeof *reports;
    kvant_status status = gpu_room_take(room, s->sets * all, &s->extents[side], diag);
    if (status == KVANT_OK && rows == 0) {
        uint64_t bytes = at_once * CODED_BLOCK * row_bytes(c);
        status = gpu_room_take(room, bytes, &random, diag);
        if (status == KVANT_OK) status = gpu_fill(c->clock, random, bytes, c->dtype, 23 + side, diag);
    }
    if (status == KVANT_OK) status = kvant_device_work_open(c->layer, &limits, 0, &work, diag);
    for (uint32_t i = 0; i < count && status == KVANT_OK; i += at_once) {
        uint32_t n = count - i < at_once ? count - i : at_once;
        gpu_address from = rows != 0 ? rows + i * CODED_BLOCK * row_bytes(c) : random;
        status = prepare_encode(c, work, side, from, s->extents[side] + i * c->stride[side], n, diag);
        if (status == KVANT_OK) status = kvant_device_encode_launch(work, side, c->clock->stream, diag);
        if (status == KVANT_OK)
            status = kvant_device_encode_finish(work, side, reports, n, c->clock->stream, diag);
    }
    kvant_device_work_close(work);
    free(reports);
    for (uint32_t set = 1; set < s->sets && status == KVANT_OK; set++)
        status = gpu_check(
            d, d->copy_on_device(s->extents[side] + set * all, s->extents[side], all, c->clock->stream),
            "cuMemcpyDtoDAsync", diag);
    return status;
}

static kvant_status launch_attend(void *context, uint32_t set, gpu_stream stream, kvant_diag *diag) {
    const gpu_coded_step *s = context;
    return kvant_device_attend_launch(s->works[set], stream, diag);
}

static kvant_device_limits limits_of(const gpu_coded_step *s, uint32_t span_tokens) {
    return (kvant_device_limits){.struct_size = sizeof(kvant_device_limits),
                                 .sequences = s->sequences,
                                 .positions = s->sequences,
                                 .span_tokens = span_tokens,
                                 .positions_of_one = 1,
                                 .references = (uint64_t)s->sequences * (s->tokens / CODED_BLOCK)};
}

/* A set's work with its lists: sequence i has the blocks from i * blocks of a sequence on. */
static kvant_status prepare_step(gpu_coded_step *s, uint32_t set, kvant_diag *diag) {
    const gpu_coded *c = s->coded;
    uint32_t blocks = s->tokens / CODED_BLOCK, count = s->sequences * blocks,
             q_heads = c->kv_heads * c->group;
    const kvant_device_limits limits = limits_of(s, s->span_tokens);
    kvant_gpu_reference *references = calloc(count, sizeof *references);
    kvant_device_sequence *sequences = calloc(s->sequences, sizeof *sequences);
    kvant_view *queries = calloc(s->sequences, sizeof *queries);
    kvant_mutable_view *outputs = calloc(s->sequences, sizeof *outputs);
    kvant_status status = KVANT_OK;
    if (references == NULL || sequences == NULL || queries == NULL || outputs == NULL)
        status = no_memory(diag);
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++)
        references[i] = (kvant_gpu_reference){.first_position = (uint64_t)(i % blocks) * CODED_BLOCK,
                                              .key_index = i,
                                              .value_index = i,
                                              .live_count = CODED_BLOCK};
    uint64_t row = q_heads * (row_bytes(c) / c->kv_heads);
    for (uint32_t i = 0; i < s->sequences && status == KVANT_OK; i++) {
        queries[i] = view_of(c, s->queries + i * row, 1, q_heads);
        outputs[i] = mutable_view_of(c, s->outputs + i * row, 1, q_heads);
        sequences[i] = (kvant_device_sequence){.struct_size = sizeof sequences[i],
                                               .reference_count = blocks,
                                               .references = references + (size_t)i * blocks,
                                               .queries = &queries[i],
                                               .outputs = &outputs[i],
                                               .query_position = s->tokens - 1};
    }
    const kvant_device_attend_options how = {.struct_size = sizeof how,
                                             .scale = 0.08838835f,
                                             .key_base = s->extents[0] + set * (uint64_t)count * c->stride[0],
                                             .key_stride = c->stride[0],
                                             .value_base =
                                                 s->extents[1] + set * (uint64_t)count * c->stride[1],
                                             .value_stride = c->stride[1]};
    if (status == KVANT_OK)
        status = kvant_device_work_open(c->layer, &limits, s->scratch, &s->works[set], diag);
    if (status == KVANT_OK)
        status =
            kvant_device_attend_prepare(s->works[set], sequences, s->sequences, &how, c->clock->stream, diag);
    free(references);
    free(sequences);
    free(queries);
    free(outputs);
    return status;
}

static kvant_status prepare_steps(gpu_coded_step *s, uint32_t span_tokens, uint32_t sets, kvant_diag *diag) {
    kvant_status status = KVANT_OK;
    s->span_tokens = span_tokens;
    s->timed.sets = sets;
    for (uint32_t set = 0; set < s->sets; set++) {
        kvant_device_work_close(s->works[set]);
        s->works[set] = NULL;
    }
    for (uint32_t set = 0; set < sets && status == KVANT_OK; set++) status = prepare_step(s, set, diag);
    return status;
}

/* So that about `per` spans come to a multiprocessor, in whole blocks. */
static uint32_t span_of(const gpu_coded_step *s, uint32_t per) {
    uint64_t all = (uint64_t)s->sequences * s->coded->kv_heads * s->tokens;
    uint64_t span = all / ((uint64_t)per * s->coded->clock->device.multiprocessors);
    span = (span + CODED_BLOCK - 1) / CODED_BLOCK * CODED_BLOCK;
    return span == 0 ? CODED_BLOCK : span > s->tokens ? s->tokens : (uint32_t)span;
}

static kvant_status choose(gpu_coded_step *s, kvant_diag *diag) {
    enum { CANDIDATES = 4, GLANCE_SETS = 16 };
    double best = INFINITY;
    uint32_t chosen = 0, sets = s->sets < GLANCE_SETS ? s->sets : GLANCE_SETS;
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < CANDIDATES && status == KVANT_OK; i++) {
        double one = 0;
        uint32_t span = span_of(s, 1u << i);
        if (i > 0 && span == s->span_tokens) continue;
        status = prepare_steps(s, span, sets, diag);
        if (status == KVANT_OK) status = gpu_clock_glance(s->coded->clock, &s->timed, &one, diag);
        if (status == KVANT_OK && one < best) {
            best = one;
            chosen = span;
        }
    }
    return status == KVANT_OK ? prepare_steps(s, chosen, s->sets, diag) : status;
}

kvant_status gpu_coded_step_open(const gpu_coded *coded, gpu_room *room, uint32_t sequences, uint32_t tokens,
                                 uint32_t sets, uint32_t span_tokens, gpu_address rows, gpu_coded_step *made,
                                 kvant_diag *diag) {
    uint64_t side_bytes = (uint64_t)sequences * tokens * row_bytes(coded);
    uint64_t query_bytes = sequences * coded->group * row_bytes(coded);
    *made = (gpu_coded_step){.coded = coded,
                             .sequences = sequences,
                             .tokens = tokens,
                             .sets = sets,
                             .works = calloc(sets, sizeof(kvant_device_work *))};
    made->bytes =
        (uint64_t)sequences * (tokens / CODED_BLOCK) * (coded->extent_bytes[0] + coded->extent_bytes[1]);
    made->timed = (gpu_timed){.launch = launch_attend, .context = made, .sets = sets};
    if (made->works == NULL) return no_memory(diag);
    kvant_status status = KVANT_OK;
    for (uint32_t side = 0; side < 2 && status == KVANT_OK; side++)
        status = encode_side(made, room, side, rows != 0 ? rows + side * side_bytes : 0, diag);
    if (status == KVANT_OK) status = gpu_room_take(room, query_bytes, &made->queries, diag);
    if (status == KVANT_OK) status = gpu_room_take(room, query_bytes, &made->outputs, diag);
    if (status == KVANT_OK)
        status = gpu_fill(coded->clock, made->queries, query_bytes, coded->dtype, 5, diag);
    /* Steps follow one another in one stream: they share scratch, that of the smallest span. */
    const kvant_device_limits most = limits_of(made, span_tokens != 0 ? span_tokens : span_of(made, 8));
    if (status == KVANT_OK)
        status = kvant_device_work_bytes(coded->layer, &most, NULL, &made->scratch_bytes, diag);
    if (status == KVANT_OK && made->scratch_bytes > 0)
        status = gpu_room_take(room, made->scratch_bytes, &made->scratch, diag);
    if (status == KVANT_OK)
        status = span_tokens != 0 ? prepare_steps(made, span_tokens, sets, diag) : choose(made, diag);
    if (status != KVANT_OK) gpu_coded_step_close(made);
    return status;
}

void gpu_coded_step_close(gpu_coded_step *made) {
    close_works(made->works, made->sets);
    made->works = NULL;
}
