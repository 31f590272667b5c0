/* kvant_core_rows against the host's own kvant_rows_to_codec, kvant_rows_from_codec and
 * kvant_find_not_finite: every byte of the memory that rows lie in, and every count. */
#include "core_rig.h"

#include "support/sanitized.h"
#include "support/test.h"

#include <kvant/kit/rope.h>
#include <kvant/kit/view.h>
#include <pipeline/codec_rows.h>
#include <pipeline/turns.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xA7, JOBS = 3 };
enum { F32 = KVANT_DTYPE_F32, F16 = KVANT_DTYPE_F16, BF16 = KVANT_DTYPE_BF16 };
enum { NONE = KVANT_ROPE_NONE, NEOX = KVANT_ROPE_NEOX, GPTJ = KVANT_ROPE_GPTJ };

typedef enum direction {
    COPY,  /* bits as they are, with a look for what is not finite */
    BLIND, /* the same without a look */
    LOOK,  /* only the look */
    TO,    /* rows to a codec */
    FROM   /* rows from a codec */
} direction;

typedef struct sample {
    direction way;
    uint32_t from_dtype, to_dtype;
    uint32_t tokens, heads, dim;
    uint32_t from_kind, to_kind; /* GPU_ROWS_* */
    uint32_t stand_in;
    uint32_t style, rotary_dim;
    uint32_t turn; /* KVANT_TURN_* of the plan */
    bool centers, replaces;
    uint64_t position;
    double magnitude;
} sample;

/* A job, the memory that it works on, and what the host makes of it. */
typedef struct scene {
    const sample *s;
    gpu_rows from, to;
    unsigned char *given, *got, *want;
    double *frequency, *offsets, *bases;
    float *center;
    uint32_t first_head; /* of `center` */
    kvant_rope rope;
    core_rows_status status, wanted;
    gpu_address given_at, got_at, center_at, offsets_at, bases_at, status_at;
    core_rows_job job;
} scene;

static void *room(size_t size, int byte) {
    void *memory = malloc(size > 0 ? size : 1);
    assert_non_null(memory);
    memset(memory, byte, size);
    return memory;
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

/* Numbers away from zero, with an outlier channel; some at the edge of each dtype's range, small ones, zeros
 * of both signs; where it may be, NaN of several kinds and infinities. */
static float number(uint64_t *seed, size_t index, uint32_t dim, bool any) {
    static const float edge[] = {
        65504.0f, -65519.0f, 65520.0f, -70000.0f, 3.4e38f,         -3.38953139e38f,  3.395e38f, 0.0f,
        -0.0f,    6e-8f,     -1e-40f,  3e-5f,     0x1.fffffep127f, -0x1.fffffep127f, 1e-30f,    -0x1.ffp127f};
    static const uint32_t odd[] = {0x7fc00000u, 0xffc12345u, 0x7f812345u, 0x7f800000u, 0xff800000u};
    uint64_t dice = kvant_test_random(seed);
    if (dice % 23 == 0) return edge[dice / 23 % (sizeof edge / sizeof edge[0])];
    if (any && dice % 41 == 1) return kvant_bits_float(odd[dice / 41 % 5]);
    return (float)(kvant_test_normal(seed) * (index % dim % 11 == 3 ? 40 : 1) + 2.5);
}

static bool may_be_odd(const sample *s) {
    return s->way != TO || s->replaces;
}

static void fill(scene *c, uint64_t *seed) {
    const sample *s = c->s;
    size_t count = (size_t)s->tokens * s->heads * s->dim, element = kvant_element_bytes(s->from_dtype);
    unsigned char *dense = room(count * element, 0);
    for (size_t i = 0; i < count; i++) {
        float x = number(seed, i, s->dim, may_be_odd(s));
        kvant_store_element(dense + i * element, s->from_dtype, x);
        if (s->way <= LOOK && s->from_dtype != F32 && i % 17 == 0) { /* halves that no float becomes */
            uint16_t bits = (uint16_t)kvant_test_random(seed);
            memcpy(dense + i * element, &bits, sizeof bits);
        }
    }
    memset(c->given, POISON, c->from.bytes);
    gpu_rows_scatter(&c->from, dense, c->given);
    free(dense);
}

static kvant_view view_of(const gpu_rows *r, const unsigned char *memory) {
    return (kvant_view){.struct_size = sizeof(kvant_view),
                        .dtype = r->dtype,
                        .data = memory + r->offset,
                        .tokens = r->tokens,
                        .heads = r->heads,
                        .head_dim = r->head_dim,
                        .token_stride = r->token_stride,
                        .head_stride = r->head_stride,
                        .channel_stride = r->channel_stride};
}

static kvant_mutable_view mutable_view_of(const gpu_rows *r, unsigned char *memory) {
    return (kvant_mutable_view){.struct_size = sizeof(kvant_mutable_view),
                                .dtype = r->dtype,
                                .data = memory + r->offset,
                                .tokens = r->tokens,
                                .heads = r->heads,
                                .head_dim = r->head_dim,
                                .token_stride = r->token_stride,
                                .head_stride = r->head_stride,
                                .channel_stride = r->channel_stride};
}

static kvant_gpu_view gpu_view_of(const gpu_rows *r, gpu_address memory) {
    return (kvant_gpu_view){memory + r->offset, r->token_stride, r->head_stride, r->channel_stride};
}

/* ---- What the host does -------------------------------------------------------------------------------- */

static void copy_element(const scene *c, uint32_t source, uint32_t token, uint32_t head, uint32_t channel) {
    const kvant_view from = view_of(&c->from, c->given);
    const kvant_mutable_view to = mutable_view_of(&c->to, c->want);
    memcpy(kvant_mutable_view_at(&to, token, head) + channel * to.channel_stride,
           kvant_view_at(&from, source, head) + channel * from.channel_stride,
           kvant_element_bytes(from.dtype));
}

/* Rows of tokens before stand_in are that token's row, as it came out. */
static void repeat(const scene *c) {
    const kvant_mutable_view to = mutable_view_of(&c->to, c->want);
    for (uint32_t t = 0; t < c->s->stand_in; t++)
        for (uint32_t h = 0; h < to.heads; h++)
            for (uint32_t k = 0; k < to.head_dim; k++)
                memcpy(kvant_mutable_view_at(&to, t, h) + k * to.channel_stride,
                       kvant_mutable_view_at(&to, c->s->stand_in, h) + k * to.channel_stride,
                       kvant_element_bytes(to.dtype));
}

static void host(scene *c) {
    const sample *s = c->s;
    kvant_view from = view_of(&c->from, c->given);
    kvant_mutable_view to = mutable_view_of(&c->to, c->want);
    from.data = kvant_view_at(&from, s->stand_in, 0);
    to.data = kvant_mutable_view_at(&to, s->stand_in, 0);
    from.tokens = to.tokens = s->tokens - s->stand_in;
    kvant_place place;
    c->wanted = (core_rows_status){.first_not_finite = UINT64_MAX};
    if (kvant_find_not_finite(&from, &place))
        c->wanted.first_not_finite =
            ((uint64_t)(s->stand_in + place.token) * s->heads + place.head) * s->dim + place.channel;
    if (s->way == LOOK) return;
    if (s->way <= BLIND) {
        for (uint32_t t = s->stand_in; t < s->tokens; t++)
            for (uint32_t h = 0; h < s->heads; h++)
                for (uint32_t k = 0; k < s->dim; k++) copy_element(c, t, t, h, k);
        repeat(c);
        return;
    }
    const kvant_plan_entry entry = {.setup = {.rope = &c->rope},
                                    .center = s->centers ? c->center : NULL,
                                    .turn = s->turn,
                                    .turn_table = c->offsets};
    kvant_row_scratch scratch = {.row = room(s->dim * sizeof(float), POISON),
                                 .turns = room((s->rotary_dim + 2) * sizeof(float), POISON),
                                 .base = room((s->rotary_dim + 2) * sizeof(double), POISON)};
    uint64_t position = s->position + s->stand_in;
    if (s->way == TO)
        kvant_rows_to_codec(&entry, &from, &to, position, scratch, s->replaces ? &c->wanted.replaced : NULL,
                            &c->wanted.saturated);
    else
        kvant_rows_from_codec(&entry, &from, &to, position, c->first_head, scratch);
    free(scratch.base);
    free(scratch.turns);
    free(scratch.row);
    repeat(c);
}

/* ---- What the kernel does ------------------------------------------------------------------------------ */

static void make_tables(scene *c, uint64_t *seed) {
    const sample *s = c->s;
    uint32_t pairs = s->rotary_dim / 2;
    uint64_t first = s->position / KVANT_TURN_PERIOD;
    uint64_t multiples = (s->position + s->tokens - 1) / KVANT_TURN_PERIOD - first + 1;
    c->first_head = s->way == FROM ? 2 : 0;
    size_t means = (size_t)(c->first_head + s->heads) * s->dim;
    c->frequency = room(pairs * sizeof(double), 0);
    kvant_rope_inverse_frequency(10000.0, s->rotary_dim, c->frequency);
    c->rope = (kvant_rope){.struct_size = sizeof(kvant_rope),
                           .style = s->style,
                           .rotary_dim = s->rotary_dim,
                           .magnitude = s->magnitude,
                           .inverse_frequency = c->frequency};
    c->offsets = room(KVANT_TURN_PERIOD * 2 * pairs * sizeof(double), 0);
    c->bases = room(multiples * 2 * pairs * sizeof(double), 0);
    c->center = room(means * sizeof(float), 0);
    if (s->style != NONE) kvant_turn_table_fill(&c->rope, c->offsets);
    for (uint64_t m = 0; m < multiples; m++)
        kvant_turn_exact(&c->rope, (first + m) * KVANT_TURN_PERIOD, c->bases + m * 2 * pairs);
    /* 65504 - -16 is the least number that rounds to an infinity of F16. */
    for (size_t i = 0; i < means; i++) c->center[i] = i % 7 == 3 ? -16 : (float)kvant_test_normal(seed);
}

static uint32_t flags_of(const sample *s) {
    uint32_t flags = s->replaces ? CORE_ROWS_REPLACE : 0;
    if (s->way <= LOOK) return 0;
    if (s->centers) flags |= s->way == TO ? CORE_ROWS_SUBTRACT : CORE_ROWS_ADD;
    if (s->turn != KVANT_TURN_NONE)
        flags |= (s->turn == KVANT_TURN_APPLY) == (s->way == TO) ? CORE_ROWS_TURN : CORE_ROWS_UNTURN;
    return flags | CORE_ROWS_SATURATE;
}

static void begin(scene *c, const sample *s, gpu_rig *rig, uint64_t *seed) {
    *c = (scene){.s = s,
                 .from = gpu_rows_of(s->from_kind, s->from_dtype, s->tokens, s->heads, s->dim),
                 .to = gpu_rows_of(s->to_kind, s->to_dtype, s->tokens, s->heads, s->dim),
                 .status = {.first_not_finite = UINT64_MAX, .reserved = 77}};
    c->given = room(c->from.bytes, POISON);
    c->got = room(c->to.bytes, POISON);
    c->want = room(c->to.bytes, POISON);
    fill(c, seed);
    make_tables(c, seed);
    host(c);
    uint32_t pairs = s->rotary_dim / 2, flags = flags_of(s);
    uint64_t multiples =
        (s->position + s->tokens - 1) / KVANT_TURN_PERIOD - s->position / KVANT_TURN_PERIOD + 1;
    bool turns = pairs != 0 && (flags & (CORE_ROWS_TURN | CORE_ROWS_UNTURN)) != 0;
    c->given_at = gpu_rig_to_device(rig, c->given, c->from.bytes);
    c->got_at = gpu_rig_to_device(rig, c->got, c->to.bytes);
    if (s->way != BLIND) c->status_at = gpu_rig_to_device(rig, &c->status, sizeof c->status);
    if (s->centers)
        c->center_at = gpu_rig_to_device(rig, c->center + (size_t)c->first_head * s->dim,
                                         (size_t)s->heads * s->dim * sizeof(float));
    if (turns) {
        c->offsets_at = gpu_rig_to_device(rig, c->offsets, KVANT_TURN_PERIOD * 2 * pairs * sizeof(double));
        c->bases_at = gpu_rig_to_device(rig, c->bases, multiples * 2 * pairs * sizeof(double));
    }
    c->job = (core_rows_job){.from = gpu_view_of(&c->from, c->given_at),
                             .to = gpu_view_of(&c->to, c->got_at),
                             .center = c->center_at,
                             .turn_bases = c->bases_at,
                             .turn_offsets = c->offsets_at,
                             .status = c->status_at,
                             .first_position = s->position,
                             .flags = flags,
                             .from_dtype = s->from_dtype,
                             .to_dtype = s->to_dtype,
                             .tokens = s->tokens,
                             .heads = s->heads,
                             .dim = s->dim,
                             .stand_in = s->stand_in,
                             .rope_style = s->style,
                             .rotary_dim = s->rotary_dim,
                             .magnitude = (float)s->magnitude};
    if (s->way == LOOK) c->job.to = (kvant_gpu_view){0, 0, 0, 0};
}

/* Which NaN comes out of sums with a NaN is up to the processor. */
static void forgive_nans(const scene *c) {
    const kvant_mutable_view got = mutable_view_of(&c->to, c->got), want = mutable_view_of(&c->to, c->want);
    if (c->s->way <= LOOK || got.dtype != F32) return;
    for (uint32_t t = 0; t < got.tokens; t++)
        for (uint32_t h = 0; h < got.heads; h++)
            for (uint32_t k = 0; k < got.head_dim; k++) {
                float x, y;
                char *at = kvant_mutable_view_at(&got, t, h) + k * got.channel_stride;
                memcpy(&x, at, sizeof x);
                memcpy(&y, kvant_mutable_view_at(&want, t, h) + k * want.channel_stride, sizeof y);
                if (isnan(x) && isnan(y)) memcpy(at, &y, sizeof y);
            }
}

static void end(scene *c, gpu_rig *rig) {
    gpu_rig_from_device(rig, c->got_at, c->got, c->to.bytes);
    gpu_rig_from_device(rig, c->given_at, NULL, 0);
    if (c->status_at != 0) {
        gpu_rig_from_device(rig, c->status_at, &c->status, sizeof c->status);
        assert_int_equal(c->status.replaced, c->wanted.replaced);
        if (c->s->way == TO) assert_int_equal(c->status.saturated, c->wanted.saturated);
        assert_int_equal(c->status.first_not_finite, c->wanted.first_not_finite);
        assert_int_equal(c->status.reserved, 77);
    }
    forgive_nans(c);
    kvant_assert_bytes(c->got, c->want, c->to.bytes);
    if (c->center_at != 0) gpu_rig_from_device(rig, c->center_at, NULL, 0);
    if (c->offsets_at != 0) gpu_rig_from_device(rig, c->offsets_at, NULL, 0);
    if (c->bases_at != 0) gpu_rig_from_device(rig, c->bases_at, NULL, 0);
    free(c->center);
    free(c->bases);
    free(c->offsets);
    free(c->frequency);
    free(c->want);
    free(c->got);
    free(c->given);
}

/* Up to JOBS jobs in one launch. */
static void play(gpu_rig *rig, const sample *samples, uint32_t count, int resident, uint64_t seed) {
    scene scenes[JOBS];
    core_rows_job jobs[JOBS];
    core_rows_head head = {.jobs = count, .units = 1};
    assert_in_range(count, 1, JOBS);
    for (uint32_t i = 0; i < count; i++) {
        begin(&scenes[i], &samples[i], rig, &seed);
        jobs[i] = scenes[i].job;
        uint32_t units = (samples[i].tokens + CORE_ROWS_CHUNK - 1) / CORE_ROWS_CHUNK;
        if (units > head.units) head.units = units;
    }
    core_rig_launch(rig, &(core_launch){.kernel = "kvant_core_rows",
                                        .threads = CORE_ROWS_THREADS,
                                        .units = (uint64_t)count * head.units,
                                        .jobs = jobs,
                                        .job_bytes = sizeof *jobs,
                                        .count = count,
                                        .head = &head,
                                        .head_bytes = sizeof head,
                                        .resident = resident});
    for (uint32_t i = 0; i < count; i++) end(&scenes[i], rig);
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

enum { DENSE = GPU_ROWS_DENSE, HEADS = GPU_ROWS_HEAD_MAJOR, ELEMENT = GPU_ROWS_ELEMENT, ODD = GPU_ROWS_ODD };
enum { SPREAD = GPU_ROWS_SPREAD, BACKWARD = GPU_ROWS_BACKWARD };
enum { APPLY = KVANT_TURN_APPLY, UNDO = KVANT_TURN_UNDO };

static const sample stated[] = {
    /* way, dtypes, tokens heads dim, layouts, stand-in, style rotary turn, centers replaces, position,
     * magnitude */
    {TO, F16, F16, 37, 3, 128, DENSE, DENSE, 0, NEOX, 128, APPLY, true, true, 1000, 1},
    {TO, F16, F16, 64, 2, 128, HEADS, DENSE, 5, GPTJ, 128, UNDO, true, false, 61, 1.25},
    {TO, F32, F32, 17, 2, 80, ODD, ELEMENT, 3, NEOX, 52, UNDO, false, true, 4294967290u, 0.9},
    {TO, BF16, BF16, 33, 5, 96, SPREAD, DENSE, 0, GPTJ, 36, APPLY, true, true, (1ull << 41) + 5, 1},
    {TO, BF16, BF16, 16, 1, 33, DENSE, BACKWARD, 15, NONE, 0, 0, true, false, 0, 1},
    {TO, F16, F16, 1, 7, 10, ELEMENT, ODD, 0, NEOX, 10, APPLY, false, false, 63, 2},
    {TO, F32, F32, 130, 1, 256, DENSE, HEADS, 0, NEOX, 64, APPLY, true, false, 127, 1},
    {TO, F16, F16, 20, 2, 576, DENSE, DENSE, 0, GPTJ, 64, APPLY, false, true, 7, 1},
    {FROM, F32, F16, 37, 3, 128, DENSE, DENSE, 0, NEOX, 128, APPLY, true, false, 1000, 1},
    {FROM, F32, BF16, 40, 2, 64, DENSE, HEADS, 0, GPTJ, 64, UNDO, true, false, 4294967200u, 1.25},
    {FROM, F32, F32, 19, 3, 80, DENSE, ODD, 0, GPTJ, 28, APPLY, false, false, 50, 0.75},
    {FROM, F16, F32, 16, 2, 36, SPREAD, DENSE, 0, NONE, 0, 0, false, false, 0, 1},
    {FROM, BF16, F16, 31, 1, 100, ODD, SPREAD, 0, NEOX, 90, UNDO, true, false, 1ull << 33, 1},
    {COPY, F16, F16, 35, 3, 128, DENSE, HEADS, 0, NONE, 0, 0, false, false, 0, 1},
    {COPY, F32, F32, 20, 2, 33, ODD, DENSE, 2, NONE, 0, 0, false, false, 0, 1},
    {COPY, BF16, BF16, 9, 4, 72, BACKWARD, ODD, 0, NONE, 0, 0, false, false, 0, 1},
    {BLIND, F16, F16, 50, 1, 64, ELEMENT, SPREAD, 7, NONE, 0, 0, false, false, 0, 1},
    {BLIND, F32, F32, 16, 3, 128, DENSE, DENSE, 0, NONE, 0, 0, false, false, 0, 1},
    {LOOK, F32, F32, 70, 2, 30, DENSE, DENSE, 0, NONE, 0, 0, false, false, 0, 1},
    {LOOK, F16, F16, 48, 2, 128, HEADS, DENSE, 4, NONE, 0, 0, false, false, 0, 1},
    {LOOK, BF16, BF16, 21, 1, 50, ODD, DENSE, 0, NONE, 0, 0, false, false, 0, 1},
};
enum { STATED = sizeof stated / sizeof stated[0] };

/* Jobs of different sizes in one launch; grids of one, of a few blocks, and of more than there are units. */
static void stated_rows(void **state) {
    static const int resident[] = {1, 2, 40};
    gpu_rig rig;
    (void)state;
    core_rig_begin(&rig, 110);
    for (uint32_t i = 0; i < STATED; i += JOBS) {
        uint32_t count = STATED - i < JOBS ? STATED - i : JOBS;
        for (uint32_t r = 0; r < (KVANT_TEST_SANITIZED ? 1 : 3); r++)
            play(&rig, &stated[i], count, resident[r], i);
    }
    gpu_rig_end(&rig);
}

static uint32_t pick(uint64_t *seed, const uint32_t *choices, uint32_t count) {
    return choices[kvant_test_random(seed) % count];
}
#define PICK(...)                                                                                            \
    pick(seed, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static sample random_sample(uint64_t *seed) {
    static const uint64_t positions[] = {0, 1, 60, 64, 1000, 131071, 4294967280u, 1ull << 40, 1ull << 52};
    uint32_t dims[] = {1, 2, 7, 8, 10, 16, 31, 32, 64, 80, 96, 100, 128, 130, 192, 256};
    sample s = {.way = (direction)PICK(COPY, BLIND, LOOK, TO, TO, TO, FROM, FROM, FROM),
                .from_dtype = PICK(F32, F16, BF16),
                .to_dtype = PICK(F32, F16, BF16),
                .tokens = PICK(1, 2, 15, 16, 17, 31, 40, 65),
                .heads = PICK(1, 2, 3, 4, 8),
                .dim = pick(seed, dims, sizeof dims / sizeof dims[0]),
                .from_kind = PICK(DENSE, DENSE, HEADS, ELEMENT, ODD, SPREAD, BACKWARD),
                .to_kind = PICK(DENSE, DENSE, HEADS, ELEMENT, ODD, SPREAD, BACKWARD),
                .magnitude = PICK(0, 1) != 0 ? 1 : 1.1,
                .position = positions[kvant_test_random(seed) % (sizeof positions / sizeof positions[0])]};
    if (s.way != FROM) s.to_dtype = s.from_dtype;
    if (s.way != FROM) s.stand_in = PICK(0, 0, 1, 5) % s.tokens;
    if (s.way == TO) s.replaces = PICK(0, 1) != 0;
    if (s.way >= TO) {
        s.centers = PICK(0, 1) != 0;
        s.turn = PICK(KVANT_TURN_NONE, APPLY, UNDO);
        s.style = s.turn != KVANT_TURN_NONE ? PICK(NEOX, NEOX, GPTJ, GPTJ, NONE) : NONE;
        /* A rope of no style has pairs of which nothing is to be made. */
        if (s.turn != KVANT_TURN_NONE)
            s.rotary_dim = 2 * (uint32_t)(kvant_test_random(seed) % (s.dim / 2 + 1));
        if (s.turn != KVANT_TURN_NONE && PICK(0, 1) != 0) s.rotary_dim = s.dim / 2 * 2;
    }
    return s;
}

static void random_rows(void **state) {
    gpu_rig rig;
    uint64_t seed = 20;
    (void)state;
    core_rig_begin(&rig, 110);
    for (uint32_t i = 0; i < (KVANT_TEST_SANITIZED ? 4 : 80); i++) {
        sample samples[JOBS];
        for (uint32_t j = 0; j < JOBS; j++) samples[j] = random_sample(&seed);
        play(&rig, samples, JOBS, 1 + (int)(i % 3), i);
    }
    gpu_rig_end(&rig);
}

static void ptx_of_cubins(void **state) {
    static const uint32_t architectures[] = {80, 90, 100, 120};
    (void)state;
    for (uint32_t i = 0; i < (KVANT_TEST_SANITIZED ? 1 : 4); i++) {
        gpu_rig rig;
        core_rig_begin(&rig, architectures[i]);
        for (uint32_t j = i % 2; j < STATED; j += 2) play(&rig, &stated[j], 1, 2, j);
        gpu_rig_end(&rig);
    }
}

/* Rows that lie side by side move in whole lines, each once. */
static void traffic(void **state) {
    static const sample usual[] = {
        {BLIND, F16, F16, 64, 8, 128, DENSE, DENSE, 0, NONE, 0, 0, false, false, 0, 1},
        {TO, F16, F16, 64, 8, 128, DENSE, DENSE, 0, NEOX, 128, APPLY, false, false, 0, 1},
        {TO, F16, F16, 64, 8, 128, DENSE, DENSE, 0, GPTJ, 128, APPLY, true, false, 0, 1},
        {FROM, F32, F16, 64, 8, 128, DENSE, DENSE, 0, NONE, 0, 0, false, false, 0, 1}};
    gpu_rig rig;
    (void)state;
    if (core_rig_is_real()) skip();
    core_rig_begin(&rig, 110);
    gpu_fake_device.checks = PTX_CHECK_COUNT;
    for (uint32_t i = 0; i < sizeof usual / sizeof usual[0]; i++) {
        const sample *s = &usual[i];
        play(&rig, s, 1, 2, i);
        const ptx_counters *n = &gpu_fake_device.counters;
        double elements = (double)s->tokens * s->heads * s->dim;
        double tables = s->style != NONE ? (KVANT_TURN_PERIOD + 1.0) * s->rotary_dim * sizeof(double) : 0;
        double read = elements * kvant_element_bytes(s->from_dtype) + tables;
        double fetched = (double)n->load.block_sectors * 32 / read;
        double written = (double)n->store.sectors * 32 / (elements * kvant_element_bytes(s->to_dtype));
        print_message("fetched %.3f times, written %.3f times, %.2f warp instructions an element\n", fetched,
                      written, (double)n->warp_instructions / elements);
        assert_true(fetched < 1.15 && written < 1.01);
    }
    gpu_rig_end(&rig);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(stated_rows), cmocka_unit_test(random_rows),
                                              cmocka_unit_test(ptx_of_cubins), cmocka_unit_test(traffic)};
    return kvant_run_tests(tests, argc, argv);
}
