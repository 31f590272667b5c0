/* kit/attend_codes.cuh and kit/attend.cuh with kivi's codes, against attention in double precision over
 * decoded rows. */
#include "gpu_rig.h"

#include "support/test.h"

#include <kivi/kivi_block.h>
#include <kvant/kit/view.h>
#include <kvant/kvant.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    uint32_t key_dim, value_dim, heads, group, positions;
    uint32_t block, tokens; /* of the sequence; whole blocks are coded, the rest is a raw run */
    uint32_t key_bits, key_group, value_bits, value_group, dtype;
    uint32_t sinks;  /* first tokens, raw */
    uint32_t window; /* 0 = all */
    uint32_t dead;   /* tokens of the first block, before the live ones, beyond the sinks */
    float soft_cap;
    bool center;
    uint32_t tensor; /* the kernel that serves it: kivi_attend_codes_128, _256, or 0: kivi_attend */
    uint32_t span;   /* references of an item; 0 = SPAN */
    double key_size, value_size; /* rows are this many times a normal one; 0 = 1 */
    double wild;                 /* every 50th element is this many times larger; 0 = none */
} shape;

enum { SPAN = 3 };

typedef struct scene {
    const shape *s;
    gpu_rig rig; /* keys */
    kvant_test_codec *value;
    gpu_codec value_codec;
    uint32_t blocks, extents;
    float *rows[2]; /* [tokens, heads, dim], as a reader sees them: decoded, or raw */
    void *raw[2];   /* the rows given, of the dtype */
    float *center;  /* [heads, key_dim] */
    void *queries;  /* [positions, heads * group, key_dim] */
    gpu_address pool[2], raw_at[2], queries_at, center_at;
    uint32_t *index[2]; /* of each block's extent in its pool */
} scene;

static uint32_t dim_of(const scene *c, uint32_t side) {
    return side == 0 ? c->s->key_dim : c->s->value_dim;
}

static void *random_rows(uint32_t dtype, size_t count, uint32_t dim, double size, double wild,
                         uint64_t *seed) {
    double most = dtype == KVANT_DTYPE_F16 ? 65504 : 3e38;
    unsigned char *rows = calloc(count, 4);
    assert_non_null(rows);
    for (size_t i = 0; i < count; i++) {
        double x = kvant_test_normal(seed) + (i % dim % 13 == 2 ? 3.0 : 0.2);
        if (size != 0) x *= size;
        if (wild != 0 && i % 53 == 7) x *= wild;
        x = x > most ? most : x < -most ? -most : x;
        kvant_store_element(rows + i * kvant_element_bytes(dtype), dtype, (float)x);
    }
    return rows;
}

/* Scales and minima of the first block's tokens that do not live become NaN: times a weight of 0 they would
 * still be seen. Of values alone; a key's are shared with tokens that live. */
static void poison_dead(const scene *c, unsigned char *extent) {
    const shape *s = c->s;
    kivi_block block = {0};
    assert_true(kivi_block_make(&block, KVANT_SIDE_VALUE, s->value_bits, s->value_group, s->dtype, s->dtype,
                                s->block, s->heads, s->value_dim));
    for (uint32_t head = 0; head < s->heads; head++)
        for (uint32_t i = 0; i < block.groups * (s->sinks + s->dead); i++) {
            uint32_t group = i / (s->sinks + s->dead), token = i % (s->sinks + s->dead);
            size_t index = kivi_plane_index(&block, token, group * block.group) * block.meta_bytes;
            memset(extent + head * block.head_bytes + block.scale_offset + index, 0xff, block.meta_bytes);
            memset(extent + head * block.head_bytes + block.min_offset + index, 0xff, block.meta_bytes);
        }
}

/* Encodes the blocks of a side into a pool in scattered order and decodes them again. */
static void make_side(scene *c, uint32_t side, uint64_t *seed) {
    const shape *s = c->s;
    kvant_test_codec *codec = side == 0 ? c->rig.cpu : c->value;
    size_t row = (size_t)s->heads * dim_of(c, side), element = kvant_element_bytes(s->dtype);
    size_t block = row * s->block, size = codec->layout.size_min;
    unsigned char *pool = malloc(c->extents * size);
    c->raw[side] = random_rows(s->dtype, row * s->tokens, dim_of(c, side),
                               side == 0 ? s->key_size : s->value_size, s->wild, seed);
    c->rows[side] = calloc(row * s->tokens, sizeof(float));
    c->index[side] = calloc(c->blocks + 1, sizeof(uint32_t));
    assert_true(pool != NULL && c->rows[side] != NULL && c->index[side] != NULL);
    memset(pool, 0xff, c->extents * size);
    for (size_t i = 0; i < row * s->tokens; i++)
        c->rows[side][i] = kvant_load_element((unsigned char *)c->raw[side] + i * element, s->dtype);
    for (uint32_t b = 0; b < c->blocks; b++) {
        uint32_t at = (b * 7 + 3 + side) % c->extents;
        kvant_test_codec_encode(codec, (unsigned char *)c->raw[side] + b * block * element, block);
        memcpy(pool + at * size, codec->extent, size);
        c->index[side][b] = at;
        float *decoded = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
        for (size_t i = 0; i < block; i++)
            if (b * s->block + i / row >= s->sinks) c->rows[side][b * block + i] = decoded[i];
        free(decoded);
    }
    if (side == 1 && c->blocks > 0) poison_dead(c, pool + c->index[side][0] * size);
    c->pool[side] = gpu_rig_to_device(&c->rig, pool, c->extents * size);
    c->raw_at[side] = gpu_rig_to_device(&c->rig, c->raw[side], row * s->tokens * element);
    free(pool);
}

static kvant_gpu_run run_of(const scene *c, uint32_t first, uint32_t tokens) {
    kvant_gpu_run run = {.first_position = first, .tokens = tokens};
    kvant_gpu_view *views[2] = {&run.keys, &run.values};
    for (uint32_t side = 0; side < 2; side++) {
        int64_t element = kvant_element_bytes(c->s->dtype), row = element * dim_of(c, side);
        views[side]->channel_stride = element;
        views[side]->head_stride = row;
        views[side]->token_stride = row * c->s->heads;
        views[side]->data = c->raw_at[side] + first * (uint64_t)views[side]->token_stride;
    }
    return run;
}

/* ---- The two answers ----------------------------------------------------------------------------------- */

static bool lives(const scene *c, uint32_t token) {
    const shape *s = c->s;
    return token < s->sinks || token >= s->sinks + s->dead || token >= c->blocks * s->block;
}

static double float_of(const scene *c, const void *rows, size_t index) {
    return (double)kvant_load_element((const unsigned char *)rows + index * kvant_element_bytes(c->s->dtype),
                                      c->s->dtype);
}

/* Output, log of the sum of exponentials, and the sum of weights times |value|, of one row. */
static double reference(const scene *c, uint32_t position, uint32_t q_head, float scale, double *out,
                        double *absolute) {
    const shape *s = c->s;
    uint32_t head = q_head / s->group, own = s->tokens - s->positions + position;
    double *logits = calloc(s->tokens, sizeof *logits), most = -INFINITY, sum = 0;
    assert_non_null(logits);
    for (uint32_t t = 0; t < s->tokens; t++) {
        logits[t] = -INFINITY;
        if (t > own || !lives(c, t) || (s->window != 0 && own - t >= s->window)) continue;
        bool coded = t >= s->sinks && t < c->blocks * s->block;
        double dot = 0;
        for (uint32_t k = 0; k < s->key_dim; k++) {
            double key = (double)c->rows[0][((size_t)t * s->heads + head) * s->key_dim + k];
            if (coded && s->center) key += (double)c->center[head * s->key_dim + k];
            dot += key * float_of(c, c->queries,
                                  ((size_t)position * s->heads * s->group + q_head) * s->key_dim + k);
        }
        logits[t] = dot * (double)scale;
        if (s->soft_cap > 0) logits[t] = (double)s->soft_cap * tanh(logits[t] / (double)s->soft_cap);
        most = logits[t] > most ? logits[t] : most;
    }
    for (uint32_t v = 0; v < s->value_dim; v++) out[v] = absolute[v] = 0;
    for (uint32_t t = 0; t < s->tokens; t++) {
        if (!(logits[t] > -INFINITY)) continue;
        double weight = exp(logits[t] - most);
        sum += weight;
        for (uint32_t v = 0; v < s->value_dim; v++) {
            double x = weight * (double)c->rows[1][((size_t)t * s->heads + head) * s->value_dim + v];
            out[v] += x;
            absolute[v] += fabs(x);
        }
    }
    for (uint32_t v = 0; v < s->value_dim; v++) {
        out[v] /= sum;
        absolute[v] /= sum;
    }
    free(logits);
    return most + log(sum);
}

/* L2 norm of a row's difference over that of its absolute sums: what layout.attend_tolerance speaks of. */
static const double TOLERANCE = 1e-6;
static double worst; /* of what was compared since it was set to 0 */

/* Merges a row's partials in the order of its items and compares. */
static void compare(const scene *c, const float *partials, uint32_t items, size_t stride, float scale) {
    const shape *s = c->s;
    uint32_t rows = s->positions * s->group;
    double *want = calloc(2 * s->value_dim, sizeof *want), *got = calloc(s->value_dim, sizeof *got);
    assert_true(want != NULL && got != NULL);
    for (uint32_t head = 0; head < s->heads; head++)
        for (uint32_t row = 0; row < rows; row++) {
            double most = -INFINITY, sum = 0;
            for (uint32_t i = 0; i < items; i++) {
                const float *p = partials + (((size_t)i * s->heads + head) * rows + row) * stride;
                if ((double)p[0] > most) most = (double)p[0];
            }
            memset(got, 0, s->value_dim * sizeof *got);
            for (uint32_t i = 0; i < items; i++) {
                const float *p = partials + (((size_t)i * s->heads + head) * rows + row) * stride;
                double factor = p[0] > -INFINITY ? exp((double)p[0] - most) : 0;
                if (factor == 0 && p[1] == 0) {
                    for (uint32_t v = 0; v < s->value_dim; v++) assert_true(p[2 + v] == 0);
                    continue;
                }
                sum += factor * (double)p[1];
                for (uint32_t v = 0; v < s->value_dim; v++) got[v] += factor * (double)p[2 + v];
            }
            double lse = reference(c, row / s->group, head * s->group + row % s->group, scale, want,
                                   want + s->value_dim);
            double error = 0, size = 0;
            for (uint32_t v = 0; v < s->value_dim; v++) {
                error += pow(got[v] / sum - want[v], 2);
                size += pow(want[s->value_dim + v], 2);
            }
            error = sqrt(error / size);
            if (!(error <= TOLERANCE && fabs(most + log(sum) - lse) <= TOLERANCE * (1 + fabs(lse))))
                fail_msg("head %u row %u: mix is off by %g of absolute sums, log of the sum by %g of %g",
                         head, row, error, most + log(sum) - lse, lse);
            if (error > worst) worst = error;
        }
    free(got);
    free(want);
}

/* ---- Scenes -------------------------------------------------------------------------------------------- */

static void attend(scene *c, float scale) {
    const shape *s = c->s;
    kvant_diag diag = {.struct_size = sizeof diag};
    uint32_t length = s->span > 0 ? s->span : SPAN, spans = c->blocks / length + 1,
             rows = s->positions * s->group, items = spans * s->heads;
    size_t stride = 2 + s->value_dim + 3, element = kvant_element_bytes(s->dtype);
    kvant_gpu_reference *references = calloc(c->blocks + 1, sizeof *references);
    kvant_gpu_run runs[2];
    kvant_gpu_item *jobs = calloc(items, sizeof *jobs);
    float *partials = malloc(items * rows * stride * sizeof *partials);
    assert_true(references != NULL && jobs != NULL && partials != NULL);
    memset(partials, 0xee, items * rows * stride * sizeof *partials);
    memset(runs, 0, sizeof runs);
    for (uint32_t b = 0; b < c->blocks; b++) {
        uint32_t first = b == 0 ? s->sinks + s->dead : 0;
        references[b] = (kvant_gpu_reference){.first_position = (uint64_t)b * s->block,
                                              .key_index = c->index[0][b],
                                              .value_index = c->index[1][b],
                                              .live_first = first,
                                              .live_count = s->block - first};
    }
    uint32_t tail = c->blocks * s->block;
    runs[0] = run_of(c, 0, c->blocks > 0 ? s->sinks : 0);
    runs[1] = run_of(c, tail, s->tokens - tail);
    gpu_address references_at = gpu_rig_to_device(&c->rig, references, (c->blocks + 1) * sizeof *references);
    gpu_address runs_at = gpu_rig_to_device(&c->rig, runs, sizeof runs);
    gpu_address partials_at = gpu_rig_to_device(&c->rig, partials, items * rows * stride * sizeof *partials);
    for (uint32_t i = 0; i < items; i++) {
        uint32_t span = i / s->heads, first = span * length, left = c->blocks - first;
        bool last = span + 1 == spans;
        jobs[i] =
            (kvant_gpu_item){.queries = {c->queries_at, (int64_t)(s->heads * s->group * s->key_dim * element),
                                         (int64_t)(s->key_dim * element), (int64_t)element},
                             .references = references_at + first * sizeof *references,
                             .reference_count = left < length ? left : length,
                             .runs = span == 0 ? runs_at : runs_at + sizeof *runs,
                             .run_count = (span == 0 ? 1u : 0u) + (last ? 1u : 0u),
                             .partial = partials_at + (uint64_t)i * rows * stride * sizeof *partials,
                             .partial_stride = stride,
                             .query_position = s->tokens - s->positions,
                             .positions = s->positions,
                             .kv_head = i % s->heads};
    }
    const kvant_gpu_layer layer = {.key_base = c->pool[0],
                                   .key_stride = c->rig.cpu->layout.size_min,
                                   .value_base = c->pool[1],
                                   .value_stride = c->value->layout.size_min,
                                   .value_state = c->value_codec.state,
                                   .center = c->center_at,
                                   .scale = scale,
                                   .soft_cap = s->soft_cap,
                                   .window = s->window,
                                   .q_heads = s->heads * s->group};
    const gpu_batch batch = {.jobs = gpu_rig_to_device(&c->rig, jobs, items * sizeof *jobs),
                             .job_count = gpu_rig_to_device(&c->rig, &items, sizeof items),
                             .layer = gpu_rig_to_device(&c->rig, &layer, sizeof layer),
                             .jobs_most = items + 2};
    if (gpu_codec_launch(&c->rig.codec, KVANT_GPU_ATTEND, &batch, c->rig.stream, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    gpu_rig_from_device(&c->rig, partials_at, partials, items * rows * stride * sizeof *partials);
    compare(c, partials, spans, stride, scale);
    for (uint32_t i = 0; i < items * rows; i++) /* nothing behind a partial */
        assert_int_equal(((unsigned char *)(partials + i * stride + 2 + s->value_dim))[0], 0xee);
    gpu_rig_from_device(&c->rig, batch.layer, NULL, 0);
    gpu_rig_from_device(&c->rig, batch.job_count, NULL, 0);
    gpu_rig_from_device(&c->rig, batch.jobs, NULL, 0);
    gpu_rig_from_device(&c->rig, runs_at, NULL, 0);
    gpu_rig_from_device(&c->rig, references_at, NULL, 0);
    free(partials);
    free(jobs);
    free(references);
}

static void play(gpu_rig *rig, const shape *s, uint64_t seed) {
    char keys[64], values[64];
    kvant_diag diag = {.struct_size = sizeof diag};
    scene c = {.s = s, .rig = *rig, .blocks = s->tokens / s->block};
    c.extents = c.blocks + 2;
    (void)snprintf(keys, sizeof keys, "bits=%u group=%u", s->key_bits, s->key_group);
    (void)snprintf(values, sizeof values, "bits=%u group=%u", s->value_bits, s->value_group);
    kvant_setup key = {.side = KVANT_SIDE_KEY,
                       .dtype = s->dtype,
                       .block_tokens = s->block,
                       .kv_heads = s->heads,
                       .head_dim = s->key_dim,
                       .q_heads = s->heads * s->group};
    kvant_setup value = key;
    value.side = KVANT_SIDE_VALUE;
    value.head_dim = s->value_dim;
    gpu_rig_open(&c.rig, "kivi", &key, keys);
    c.value = kvant_test_codec_open_setup("kivi", &value, values);
    if (gpu_codec_open(&c.rig.module, &c.value->setup, &c.value->layout, c.value->state, c.rig.stream,
                       &c.value_codec, &diag) != KVANT_OK ||
        gpu_codec_pair(&c.rig.codec, &c.rig.cpu->setup, &c.value->setup, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    const kvant_plugin *plugin = NULL;
    kvant_gpu_kernel kernel;
    char name[32] = "kivi_attend";
    if (s->tensor != 0) (void)snprintf(name, sizeof name, "kivi_attend_codes_%u", s->tensor);
    assert_int_equal(kvant_plugin_find("kivi", &plugin, &diag), KVANT_OK);
    const kvant_gpu *gpu = plugin->extension(KVANT_EXT_GPU);
    assert_int_equal(gpu->pair(&c.rig.cpu->setup, &c.value->setup, &kernel, &diag), KVANT_OK);
    assert_string_equal(kernel.name, name);
    for (uint32_t side = 0; side < 2; side++) make_side(&c, side, &seed);
    size_t queries = (size_t)s->positions * s->heads * s->group * s->key_dim;
    c.queries = random_rows(s->dtype, queries, s->key_dim, 0, 0, &seed);
    c.queries_at = gpu_rig_to_device(&c.rig, c.queries, queries * kvant_element_bytes(s->dtype));
    c.center = calloc((size_t)s->heads * s->key_dim, sizeof(float));
    assert_non_null(c.center);
    for (uint32_t i = 0; i < s->heads * s->key_dim; i++) c.center[i] = (float)kvant_test_normal(&seed);
    if (s->center)
        c.center_at = gpu_rig_to_device(&c.rig, c.center, (size_t)s->heads * s->key_dim * sizeof(float));
    double spread =
        sqrt((double)s->key_dim) * (s->key_size != 0 ? s->key_size : 1) * (s->wild != 0 ? s->wild : 1);
    attend(&c, (float)(0.4 / spread));
    if (s->center) gpu_rig_from_device(&c.rig, c.center_at, NULL, 0);
    gpu_rig_from_device(&c.rig, c.queries_at, NULL, 0);
    for (uint32_t side = 0; side < 2; side++) {
        gpu_rig_from_device(&c.rig, c.raw_at[side], NULL, 0);
        gpu_rig_from_device(&c.rig, c.pool[side], NULL, 0);
        free(c.index[side]);
        free(c.rows[side]);
        free(c.raw[side]);
    }
    free(c.center);
    free(c.queries);
    gpu_codec_close(&c.value_codec);
    kvant_test_codec_close(c.value);
    gpu_rig_close(&c.rig);
}

enum { F32 = KVANT_DTYPE_F32, F16 = KVANT_DTYPE_F16, BF16 = KVANT_DTYPE_BF16 };
static const shape shapes[] = {
    /* dims, heads, group, positions; block, tokens; key, value codes, dtype; sinks window dead cap center;
     * kernel */
    {32, 32, 1, 1, 1, 32, 1, 2, 32, 2, 32, F16, 0, 0, 0, 0, false, .tensor = 128},
    {64, 64, 2, 3, 1, 64, 63, 4, 32, 4, 64, BF16, 0, 0, 0, 0, false, .tensor = 128},
    {64, 96, 1, 4, 1, 64, 64, 2, 64, 8, 32, F16, 0, 0, 0, 0, false, .tensor = 128},
    {128, 64, 1, 8, 1, 64, 65, 8, 32, 1, 32, F32, 4, 0, 0, 0, true, .tensor = 128},
    {80, 80, 2, 4, 2, 32, 327, 4, 32, 2, 32, F16, 4, 0, 0, 0, true, .tensor = 128},
    {96, 128, 1, 3, 3, 64, 200, 3, 32, 3, 32, BF16, 2, 70, 5, 0, false, .tensor = 128},
    {128, 256, 1, 1, 4, 128, 300, 1, 128, 4, 128, F16, 0, 0, 9, 20, false, .tensor = 256},
    {256, 32, 1, 8, 2, 32, 150, 2, 32, 2, 8, F32, 1, 40, 0, 5, true, .tensor = 128},
    {36, 20, 3, 2, 1, 24, 250, 4, 8, 2, 7, F16, 0, 33, 3, 0, false, .tensor = 0},
    /* Tiles of 64 and of 16 tokens, groups across them; scale rows of 4 tokens; a wide head */
    {72, 40, 1, 4, 1, 80, 175, 2, 40, 1, 20, BF16, 0, 0, 0, 0, false, .tensor = 128},
    {256, 256, 1, 8, 1, 64, 140, 3, 64, 8, 64, F16, 0, 0, 0, 0, false, .tensor = 0},
    {256, 248, 1, 5, 1, 128, 140, 4, 64, 3, 16, BF16, 0, 50, 17, 0, false, .tensor = 256},
    {64, 128, 1, 2, 3, 192, 400, 8, 96, 2, 12, F16, 5, 0, 30, 0, true, .tensor = 128},
    {128, 128, 1, 8, 2, 64, 200, 1, 8, 4, 8, F16, 0, 0, 0, 30, true, .tensor = 128},
};

/* Numbers far from 1, and groups whose numbers do not fit their type as code * scale + min. */
static const shape extremes[] = {
    {64, 64, 1, 4, 1, 64, 140, 4, 32, 4, 32, F16, .tensor = 128, .key_size = 1e-6, .value_size = 1e-6},
    {64, 64, 1, 4, 1, 64, 140, 2, 32, 2, 32, F16, .tensor = 128, .key_size = 1e4, .value_size = 1e4},
    {64, 32, 1, 8, 1, 64, 140, 4, 32, 2, 32, F16, .tensor = 128, .key_size = 3e4, .value_size = 4e4},
    {128, 96, 1, 3, 1, 64, 140, 2, 32, 3, 32, F16, .tensor = 128, .wild = 4e4},
    {64, 64, 1, 4, 1, 64, 140, 4, 32, 4, 32, BF16, .tensor = 128, .key_size = 1e30, .value_size = 1e30},
    {64, 96, 1, 5, 1, 64, 140, 2, 32, 4, 32, BF16, .tensor = 128, .key_size = 1e-25, .value_size = 1e-25},
    {96, 64, 1, 4, 1, 64, 140, 4, 32, 4, 32, BF16, .tensor = 128, .value_size = 1e35},
    {64, 64, 1, 4, 1, 64, 140, 8, 32, 8, 64, F32, .tensor = 128, .key_size = 1e15, .value_size = 1e-20,
     .wild = 1e4},
};

static void play_all(const shape *all, size_t count, uint32_t architecture) {
    gpu_rig rig;
    gpu_rig_begin(&rig, "kivi", architecture);
    for (uint32_t i = 0; i < count; i++) {
        worst = 0;
        play(&rig, &all[i], i + 1);
        if (getenv("KVANT_GPU_VERBOSE") != NULL)
            print_message("  shape %u: %.2g of absolute sums\n", i, worst);
    }
    gpu_rig_end(&rig);
}

static void stated_shapes(void **state) {
    (void)state;
    play_all(shapes, sizeof shapes / sizeof shapes[0], 110);
}

static void extreme_numbers(void **state) {
    (void)state;
    play_all(extremes, sizeof extremes / sizeof extremes[0], 110);
}

static void ptx_of_cubins(void **state) {
    static const uint32_t architectures[] = {80, 90, 100, 120};
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        gpu_rig rig;
        gpu_rig_begin(&rig, "kivi", architectures[i]);
        play(&rig, &shapes[5], i + 1);
        play(&rig, &shapes[8], i + 1);
        play(&rig, &shapes[7], i + 1);
        gpu_rig_end(&rig);
    }
}

/* What a usual shape costs: codes are fetched once for all heads of a group, shared memory has no bank
 * conflicts. */
static void traffic(void **state) {
    /* Instructions an element at most; two-sided, so that what is said in docs/gpu.md stays true. */
    static const struct {
        shape s;
        double least, most;
    } usual[] = {
        {{128, 128, 1, 4, 1, 64, 2048, 4, 32, 4, 32, F16, .tensor = 128, .span = 32}, .22, .27},
        {{128, 128, 1, 4, 1, 64, 2048, 2, 32, 2, 32, BF16, .tensor = 128, .span = 32}, .22, .27},
    };
    (void)state;
    (void)unsetenv("KVANT_GPU");
    for (uint32_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        const shape *s = &usual[i].s;
        gpu_rig rig;
        gpu_rig_begin(&rig, "kivi", 110);
        gpu_fake_device.checks = PTX_CHECK_COUNT;
        play(&rig, s, 1);
        const ptx_counters *n = &gpu_fake_device.counters;
        double elements = 2.0 * s->heads * s->tokens * s->key_dim; /* keys and values */
        double useful = elements * (s->key_bits + 32.0 / s->key_group) / 8;
        double fetched = (double)n->load.block_sectors * 32 / useful;
        double passes = (double)n->shared_load.wavefronts / (double)n->shared_load.ideal;
        double stores = (double)n->shared_store.wavefronts / (double)n->shared_store.ideal;
        double each = (double)n->warp_instructions / elements;
        print_message(
            "%u bits: codes fetched %.3f times, %.3f and %.3f of the least shared wavefronts, %.3f warp "
            "instructions an element of keys and values\n",
            s->key_bits, fetched, passes, stores, each);
        assert_true(fetched < 1.1 && passes < 1.2 && stores < 1.2);
        kvant_assert_within(each, usual[i].least, usual[i].most);
        gpu_rig_end(&rig);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(stated_shapes),
                                              cmocka_unit_test(extreme_numbers),
                                              cmocka_unit_test(ptx_of_cubins), cmocka_unit_test(traffic)};
    return kvant_run_tests(tests, argc, argv);
}
