/* See split_scene.h. */
#include "split_scene.h"

#include "attention_double.h"

#include "support/test.h"

#include <gpu/core_image.h>
#include <gpu/core_kernels.h>
#include <kvant/kit/view.h>
#include <kvant/kvant.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xFF, MORE = 2 }; /* a NaN everywhere; jobs that could come, and do not */

#define OK(call)                                                                                             \
    do {                                                                                                     \
        if ((call) != KVANT_OK) fail_msg("%s: %s", #call, diag.message);                                     \
    } while (0)

static void *room_for(size_t size) {
    void *memory = malloc(size);
    assert_non_null(memory);
    memset(memory, POISON, size);
    return memory;
}

/* Where a row of an item begins, in floats: items lie on boundaries of 256 bytes. */
static size_t place(const split_scene *c, size_t stride, uint32_t item, uint32_t row) {
    return item * ((c->rows * stride + 63) / 64 * 64) + row * stride;
}

/* ---- Device -------------------------------------------------------------------------------------------- */

void split_room_begin(split_room *room, uint32_t architecture) {
    const kvant_plugin *plugin = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    gpu_rig_begin(&room->rig, "kivi", architecture);
    OK(kvant_plugin_find("raw", &plugin, &diag));
    const kvant_gpu *gpu = plugin->extension(KVANT_EXT_GPU);
    assert_non_null(gpu);
    OK(gpu_module_load(&room->rig.device, "raw", gpu, &room->raw, &diag));
    OK(gpu_module_load(&room->rig.device, "core", core_gpu_table(), &room->core, &diag));
    OK(gpu_device_enter(&room->rig.device, &diag));
    OK(gpu_launchable_open(&room->core, "kvant_core_soften", CORE_SOFTEN_THREADS, 0, &room->soften, &diag));
    gpu_device_leave(&room->rig.device);
}

void split_room_end(split_room *room) {
    gpu_module_unload(&room->core);
    gpu_module_unload(&room->raw);
    gpu_rig_end(&room->rig);
}

/* ---- The sequence -------------------------------------------------------------------------------------- */

/* Some blocks live whole, some from a token on, some up to one, some not at all. */
static void choose_live(split_scene *c, uint64_t *seed) {
    const uint32_t block = c->shape.block;
    for (uint32_t b = 0; b < c->shape.blocks; b++) {
        kvant_gpu_reference *r = &c->references[b];
        uint64_t kind = c->shape.whole ? 0 : kvant_test_random(seed) % 6;
        r->first_position = SPLIT_FIRST_POSITION + (uint64_t)b * block;
        r->live_first = kind == 1 || kind == 2 ? (uint32_t)(kvant_test_random(seed) % block) : 0;
        r->live_count = block - r->live_first;
        if (kind == 2 || kind == 3) r->live_count = (uint32_t)(kvant_test_random(seed) % r->live_count);
        if (kind == 4 && b % 3 == 1) r->live_count = 0;
        for (uint32_t t = 0; t < block; t++)
            c->live[b * block + t] = t >= r->live_first && t - r->live_first < r->live_count;
    }
}

/* The token at the newest query position. */
static uint32_t newest_token(const split_scene *c) {
    return c->tokens - c->shape.ahead - 1;
}

static void fill_infinite(const split_scene *c, uint8_t *row, uint32_t dim) {
    for (uint32_t i = 0; i < dim; i++)
        kvant_store_element(row + i * kvant_element_bytes(c->shape.dtype), c->shape.dtype, INFINITY);
}

/* What no row sees may be anything: raw's rows are made NaN there. */
static void spoil(const split_scene *c, uint32_t side, uint32_t b, uint8_t *extent) {
    const split_shape *s = &c->shape;
    const kvant_test_codec *cpu = c->cpu[side];
    size_t head = cpu->layout.size_min / s->heads, row = cpu->layout.payload_bits / 8 / s->heads / s->block;
    if (strcmp(s->sides[side].plugin, "raw") != 0) return;
    for (uint32_t t = 0; t < s->block; t++) {
        uint32_t token = b * s->block + t, newest = newest_token(c);
        for (uint32_t h = 0; h < s->heads; h++) {
            uint8_t *at = extent + h * head + t * row;
            if (s->spoilt && token == newest && side == 1)
                fill_infinite(c, at, s->sides[1].dim);
            else if (!c->live[token] || token > newest || (s->spoilt && token == newest))
                memset(at, 0xFF, row);
        }
    }
}

/* Encodes the blocks of a side into a pool in scattered order. */
static void make_side(split_scene *c, uint32_t side, uint64_t *seed) {
    const split_shape *s = &c->shape;
    kvant_test_codec *cpu = c->cpu[side];
    const uint32_t dim = s->sides[side].dim;
    const uint32_t extents = s->blocks + 2 + ((s->blocks + 2) % 7 == 0); /* no multiple of 7 */
    size_t block = (size_t)s->block * s->heads * dim, element = kvant_element_bytes(s->dtype);
    size_t stride = (cpu->layout.size_min + 63) / 64 * 64;
    unsigned char *rows = calloc(block, element), *pool = room_for(extents * stride);
    c->decoded[side] = room_for(s->blocks * block * sizeof(float));
    assert_non_null(rows);
    for (uint32_t b = 0; b < s->blocks; b++) {
        uint32_t at = (b * 7 + 3 + side) % extents;
        for (size_t i = 0; i < block; i++) {
            double x = kvant_test_normal(seed) + (i % dim % 13 == 2 ? 3.0 : 0.2);
            if (s->wide && i % dim % 16 == 5) x = kvant_test_random(seed) % 2 == 0 ? 65504 : -65504;
            kvant_store_element(rows + i * element, s->dtype, (float)x);
        }
        kvant_test_codec_encode(cpu, rows, block);
        float *decoded = kvant_test_codec_decode(cpu, KVANT_DTYPE_F32);
        memcpy(c->decoded[side] + b * block, decoded, block * sizeof(float));
        free(decoded);
        memcpy(pool + at * stride, cpu->extent, cpu->size);
        spoil(c, side, b, pool + at * stride);
        if (side == 0)
            c->references[b].key_index = at;
        else
            c->references[b].value_index = at;
    }
    c->pools[side] = gpu_rig_to_device(&c->room->rig, pool, extents * stride);
    free(pool);
    free(rows);
}

static void make_queries(split_scene *c, uint64_t *seed) {
    const split_shape *s = &c->shape;
    uint32_t q_heads = s->heads * s->group, dim = s->sides[0].dim;
    size_t count = (size_t)s->positions * q_heads * dim, element = kvant_element_bytes(s->dtype);
    unsigned char *dense = calloc(count, element);
    c->queries = calloc(count, sizeof(float));
    c->center = calloc((size_t)s->heads * dim, sizeof(float));
    c->query_rows = gpu_rows_of(s->queries, s->dtype, s->positions, q_heads, dim);
    c->query_memory = room_for(c->query_rows.bytes);
    assert_true(dense != NULL && c->queries != NULL && c->center != NULL);
    for (size_t i = 0; i < count; i++) {
        double x = kvant_test_normal(seed) * (s->wide ? 1e-4 : 1);
        kvant_store_element(dense + i * element, s->dtype, (float)x);
        c->queries[i] = kvant_load_element(dense + i * element, s->dtype);
    }
    for (uint32_t i = 0; i < s->heads * dim; i++) c->center[i] = (float)kvant_test_normal(seed);
    gpu_rows_scatter(&c->query_rows, dense, c->query_memory);
    c->query_at = gpu_rig_to_device(&c->room->rig, c->query_memory, c->query_rows.bytes);
    c->center_at = gpu_rig_to_device(&c->room->rig, c->center, s->heads * dim * sizeof(float));
    free(dense);
}

void split_scene_open(split_scene *c, split_room *room, const split_shape *shape, uint64_t seed) {
    const split_shape *s = shape;
    kvant_diag diag = {.struct_size = sizeof diag};
    *c = (split_scene){.room = room,
                       .shape = *shape,
                       .tokens = s->blocks * s->block,
                       .rows = s->positions * s->group,
                       .items = (s->blocks + s->span - 1) / s->span * s->heads};
    c->references = calloc(s->blocks, sizeof *c->references);
    c->live = calloc(c->tokens, sizeof *c->live);
    assert_true(c->references != NULL && c->live != NULL);
    choose_live(c, &seed);
    for (uint32_t side = 0; side < 2; side++) {
        const kvant_setup setup = {.side = side,
                                   .dtype = s->dtype,
                                   .block_tokens = s->block,
                                   .kv_heads = s->heads,
                                   .head_dim = s->sides[side].dim,
                                   .q_heads = s->heads * s->group};
        bool raw = strcmp(s->sides[side].plugin, "raw") == 0;
        c->cpu[side] = kvant_test_codec_open_setup(s->sides[side].plugin, &setup, s->sides[side].parameters);
        OK(gpu_codec_open(raw ? &room->raw : &room->rig.module, &c->cpu[side]->setup, &c->cpu[side]->layout,
                          c->cpu[side]->state, room->rig.stream, &c->codecs[side], &diag));
        make_side(c, side, &seed);
    }
    make_queries(c, &seed);
    for (uint32_t i = s->blocks; i-- > 1;) { /* references in any order */
        uint32_t j = (uint32_t)(kvant_test_random(&seed) % (i + 1));
        kvant_gpu_reference r = c->references[i];
        c->references[i] = c->references[j];
        c->references[j] = r;
    }
    c->references_at = gpu_rig_to_device(&room->rig, c->references, s->blocks * sizeof(kvant_gpu_reference));
    const core_attend_state state = {.dtype = s->dtype,
                                     .kv_heads = s->heads,
                                     .key_dim = s->sides[0].dim,
                                     .value_dim = s->sides[1].dim,
                                     .block_tokens = s->block};
    c->state_at = gpu_rig_to_device(&room->rig, &state, sizeof state);
    /* Strides of fours, as a host would choose them, or not. */
    c->logit_stride = (size_t)s->span * s->block + (seed % 2 == 0 ? 4 - s->span * s->block % 4 : 3);
    c->partial_stride = 2 + s->sides[1].dim + seed % 3;
    c->accumulator_stride = (s->sides[1].dim + 15) / 16 * 16;
    c->logits = room_for(place(c, c->logit_stride, c->items, 0) * sizeof(float));
    c->partials = room_for(place(c, c->partial_stride, c->items, 0) * sizeof(float));
    c->accumulators = room_for(place(c, c->accumulator_stride, c->items, 0) * sizeof(float));
}

void split_scene_close(split_scene *c) {
    gpu_rig *rig = &c->room->rig;
    gpu_rig_from_device(rig, c->state_at, NULL, 0);
    gpu_rig_from_device(rig, c->references_at, NULL, 0);
    gpu_rig_from_device(rig, c->center_at, NULL, 0);
    gpu_rig_from_device(rig, c->query_at, NULL, 0);
    for (uint32_t side = 0; side < 2; side++) {
        gpu_rig_from_device(rig, c->pools[side], NULL, 0);
        gpu_codec_close(&c->codecs[side]);
        kvant_test_codec_close(c->cpu[side]);
        free(c->decoded[side]);
    }
    free(c->accumulators);
    free(c->partials);
    free(c->logits);
    free(c->query_memory);
    free(c->center);
    free(c->queries);
    free(c->live);
    free(c->references);
}

/* ---- Three launches ------------------------------------------------------------------------------------ */

static float scale_of(const split_scene *c) {
    return 0.4f / sqrtf((float)c->shape.sides[0].dim);
}

static uint64_t query_position(const split_scene *c) {
    return SPLIT_FIRST_POSITION + c->tokens - c->shape.positions - c->shape.ahead;
}

static kvant_gpu_layer layer_of(const split_scene *c) {
    uint64_t strides[2];
    for (uint32_t side = 0; side < 2; side++) strides[side] = (c->cpu[side]->layout.size_min + 63) / 64 * 64;
    return (kvant_gpu_layer){.key_base = c->pools[0],
                             .key_stride = strides[0],
                             .value_base = c->pools[1],
                             .value_stride = strides[1],
                             .center = c->shape.center ? c->center_at : 0,
                             .scale = scale_of(c),
                             .soft_cap = c->shape.soft_cap,
                             .window = c->shape.window,
                             .q_heads = c->shape.heads * c->shape.group};
}

static void make_jobs(const split_scene *c, gpu_address logits, gpu_address partials,
                      gpu_address accumulators, kvant_gpu_item *jobs) {
    const split_shape *s = &c->shape;
    const gpu_rows *q = &c->query_rows;
    for (uint32_t i = 0; i < c->items; i++) {
        uint32_t first = i / s->heads * s->span, left = s->blocks - first;
        jobs[i] = (kvant_gpu_item){
            .queries = {c->query_at + q->offset, q->token_stride, q->head_stride, q->channel_stride},
            .references = c->references_at + first * sizeof *c->references,
            .reference_count = left < s->span ? left : s->span,
            .logits = logits + 4 * place(c, c->logit_stride, i, 0),
            .logit_stride = c->logit_stride,
            .partial = partials + 4 * place(c, c->partial_stride, i, 0),
            .partial_stride = c->partial_stride,
            .query_position = query_position(c),
            .positions = s->positions,
            .kv_head = i % s->heads};
        if (!s->accumulators) continue;
        jobs[i].accumulators = accumulators + 4 * place(c, c->accumulator_stride, i, 0);
        jobs[i].accumulator_stride = c->accumulator_stride;
    }
}

void split_scene_attend(split_scene *c) {
    gpu_rig *rig = &c->room->rig;
    kvant_diag diag = {.struct_size = sizeof diag};
    size_t sizes[] = {place(c, c->logit_stride, c->items, 0) * sizeof(float),
                      place(c, c->partial_stride, c->items, 0) * sizeof(float),
                      place(c, c->accumulator_stride, c->items, 0) * sizeof(float)};
    float *memory[] = {c->logits, c->partials, c->accumulators};
    gpu_address at[3];
    kvant_gpu_item *jobs = room_for((c->items + MORE) * sizeof *jobs);
    const kvant_gpu_layer layer = layer_of(c);
    for (uint32_t i = 0; i < 3; i++) {
        memset(memory[i], POISON, sizes[i]);
        at[i] = gpu_rig_to_device(rig, memory[i], sizes[i]);
    }
    make_jobs(c, at[0], at[1], at[2], jobs);
    const gpu_batch batch = {.jobs = gpu_rig_to_device(rig, jobs, (c->items + MORE) * sizeof *jobs),
                             .job_count = gpu_rig_to_device(rig, &c->items, sizeof c->items),
                             .layer = gpu_rig_to_device(rig, &layer, sizeof layer),
                             .jobs_most = c->items + MORE};
    const kvant_gpu_call soften = {
        .state = c->state_at, .jobs = batch.jobs, .job_count = batch.job_count, .layer = batch.layer};
    OK(gpu_codec_launch(&c->codecs[0], KVANT_GPU_SCORE, &batch, rig->stream, &diag));
    c->counters[SPLIT_SCORE] = gpu_fake_device.counters;
    OK(gpu_device_enter(&rig->device, &diag));
    OK(gpu_launchable_launch(&c->room->core, &c->room->soften, batch.jobs_most, &soften, rig->stream, &diag));
    gpu_device_leave(&rig->device);
    c->counters[SPLIT_SOFTEN] = gpu_fake_device.counters;
    OK(gpu_codec_launch(&c->codecs[1], KVANT_GPU_MIX, &batch, rig->stream, &diag));
    c->counters[SPLIT_MIX] = gpu_fake_device.counters;
    gpu_rig_from_device(rig, batch.layer, NULL, 0);
    gpu_rig_from_device(rig, batch.job_count, NULL, 0);
    gpu_rig_from_device(rig, batch.jobs, NULL, 0);
    for (uint32_t i = 0; i < 3; i++) gpu_rig_from_device(rig, at[i], memory[i], sizes[i]);
    free(jobs);
}

/* ---- Comparison ---------------------------------------------------------------------------------------- */

static void assert_poison(const float *memory, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        uint32_t bits;
        memcpy(&bits, memory + i, sizeof bits);
        if (bits != 0xFFFFFFFFu) fail_msg("float %zu behind a row was written", i - from);
    }
}

/* The values of a partial, wherever they went; what belongs to nobody is as it was. */
static const float *values_of(const split_scene *c, uint32_t item, uint32_t row) {
    const uint32_t dim = c->shape.sides[1].dim;
    uint32_t first = item / c->shape.heads * c->shape.span, left = c->shape.blocks - first;
    const float *partial = c->partials + place(c, c->partial_stride, item, row);
    const float *accumulator = c->accumulators + place(c, c->accumulator_stride, item, row);
    assert_poison(c->logits + place(c, c->logit_stride, item, row),
                  (left < c->shape.span ? left : c->shape.span) * c->shape.block, c->logit_stride);
    assert_poison(partial, 2 + dim, c->partial_stride);
    assert_poison(accumulator, c->shape.accumulators ? dim : 0, c->accumulator_stride);
    if (!c->shape.accumulators) return partial + 2;
    for (uint32_t i = 0; i < dim; i++) assert_true(partial[2 + i] == 0);
    return accumulator;
}

/* A row's partials, joined in the order of its items. */
static double join(const split_scene *c, uint32_t head, uint32_t row, double *out) {
    const uint32_t dim = c->shape.sides[1].dim;
    double most = -INFINITY, sum = 0;
    for (uint32_t i = head; i < c->items; i += c->shape.heads) {
        double largest = (double)c->partials[place(c, c->partial_stride, i, row)];
        if (largest > most) most = largest;
    }
    memset(out, 0, dim * sizeof *out);
    for (uint32_t i = head; i < c->items; i += c->shape.heads) {
        const float *partial = c->partials + place(c, c->partial_stride, i, row);
        const float *values = values_of(c, i, row);
        if (partial[0] == -INFINITY || partial[1] == 0) { /* no token seen */
            assert_true(partial[0] == -INFINITY && partial[1] == 0);
            for (uint32_t v = 0; v < dim; v++) assert_true(values[v] == 0);
            continue;
        }
        double factor = exp((double)partial[0] - most);
        sum += factor * (double)partial[1];
        for (uint32_t v = 0; v < dim; v++) out[v] += factor * (double)values[v];
    }
    for (uint32_t v = 0; v < dim && sum > 0; v++) out[v] /= sum;
    return sum == 0 ? -INFINITY : most + log(sum);
}

void split_scene_compare(const split_scene *c) {
    const split_shape *s = &c->shape;
    const uint32_t dim = s->sides[1].dim;
    double *out = calloc(3 * (size_t)dim, sizeof *out), *want = out + dim, *absolute = out + 2 * dim;
    const attention_double a = {.tokens = c->tokens,
                                .heads = s->heads,
                                .group = s->group,
                                .key_dim = s->sides[0].dim,
                                .value_dim = dim,
                                .rows = {c->decoded[0], c->decoded[1]},
                                .live = c->live,
                                .queries = c->queries,
                                .center = s->center ? c->center : NULL,
                                .first_position = SPLIT_FIRST_POSITION,
                                .query_position = query_position(c),
                                .window = s->window,
                                .scale = scale_of(c),
                                .soft_cap = s->soft_cap};
    assert_non_null(out);
    for (uint32_t head = 0; head < s->heads; head++)
        for (uint32_t row = 0; row < c->rows; row++) {
            double got = join(c, head, row, out);
            if (s->spoilt && row / s->group + 1 == s->positions) { /* and says so */
                assert_true(isnan(got));
                continue;
            }
            double log_sum =
                attention_double_row(&a, row / s->group, head * s->group + row % s->group, want, absolute);
            if (log_sum == -INFINITY) {
                assert_true(got == -INFINITY);
                continue;
            }
            kvant_assert_close(got, log_sum, 2e-5 * (1 + fabs(log_sum)));
            for (uint32_t v = 0; v < dim; v++) kvant_assert_close(out[v], want[v], 2e-5 * absolute[v] + 1e-9);
        }
    free(out);
}
