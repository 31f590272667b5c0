/* kvant_core_attend against attention in double precision over the same rows. */
#include "core_rig.h"

#include "attention_double.h"

#include "support/sanitized.h"
#include "support/test.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xFF /* NaN in every gap */, RUNS = 4, SPANS = 3, MORE = 5 /* floats between partials */ };
enum { F32 = KVANT_DTYPE_F32, F16 = KVANT_DTYPE_F16, BF16 = KVANT_DTYPE_BF16 };
enum { DENSE = GPU_ROWS_DENSE, HEADS = GPU_ROWS_HEAD_MAJOR, ELEMENT = GPU_ROWS_ELEMENT, ODD = GPU_ROWS_ODD };
enum { SPREAD = GPU_ROWS_SPREAD, BACKWARD = GPU_ROWS_BACKWARD };

/* Runs of these lengths, with `hole` tokens that nobody has behind the first one. The queries stand at the
 * last positions, or `early` tokens before. */
typedef struct shape {
    uint32_t key_dim, value_dim, heads, group, positions, dtype;
    uint32_t runs[RUNS], hole, early, window;
    uint32_t key_kind, value_kind, query_kind; /* GPU_ROWS_* */
    float soft_cap;
    uint64_t first_position;
} shape;

/* One run's rows of one side on the device. */
typedef struct piece {
    gpu_rows rows;
    gpu_address at;
} piece;

typedef struct scene {
    const shape *s;
    gpu_rig *rig;
    uint32_t tokens, q_heads, rows; /* of the sequence, hole included; query rows of a kv head */
    bool *live;                     /* [tokens] */
    float *floats[3];               /* keys, values, queries: dense */
    piece pieces[2][RUNS], queries;
    float scale;
} scene;

static void *room(size_t size, int byte) {
    void *memory = malloc(size > 0 ? size : 1);
    assert_non_null(memory);
    memset(memory, byte, size);
    return memory;
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static float *random_floats(uint32_t dtype, size_t count, uint32_t dim, uint64_t *seed) {
    float *x = room(count * sizeof *x, 0);
    for (size_t i = 0; i < count; i++) {
        unsigned char element[4];
        double value = kvant_test_normal(seed) + (i % dim % 13 == 2 ? 3.0 : 0.2);
        kvant_store_element(element, dtype, (float)value);
        x[i] = kvant_load_element(element, dtype);
    }
    return x;
}

static piece to_device(gpu_rig *rig, uint32_t kind, uint32_t dtype, const float *x, uint32_t tokens,
                       uint32_t heads, uint32_t dim) {
    piece p = {.rows = gpu_rows_of(kind, dtype, tokens, heads, dim)};
    size_t count = (size_t)tokens * heads * dim, element = kvant_element_bytes(dtype);
    unsigned char *dense = room(count * element, 0), *memory = room(p.rows.bytes, POISON);
    for (size_t i = 0; i < count; i++) kvant_store_element(dense + i * element, dtype, x[i]);
    gpu_rows_scatter(&p.rows, dense, memory);
    p.at = gpu_rig_to_device(rig, memory, p.rows.bytes);
    free(memory);
    free(dense);
    return p;
}

static kvant_gpu_view view_of(const piece *p) {
    return (kvant_gpu_view){p->at + p->rows.offset, p->rows.token_stride, p->rows.head_stride,
                            p->rows.channel_stride};
}

/* Token of the sequence that is token 0 of a run. */
static uint32_t start_of(const shape *s, uint32_t run) {
    uint32_t start = run > 0 ? s->hole : 0;
    for (uint32_t i = 0; i < run; i++) start += s->runs[i];
    return start;
}

static uint32_t dim_of(const shape *s, uint32_t side) {
    return side == KVANT_SIDE_VALUE ? s->value_dim : s->key_dim;
}

static void begin(scene *c, const shape *s, gpu_rig *rig, uint64_t seed) {
    *c = (scene){.s = s,
                 .rig = rig,
                 .tokens = start_of(s, RUNS),
                 .q_heads = s->heads * s->group,
                 .rows = s->positions * s->group,
                 .scale = 0.5f / sqrtf((float)s->key_dim)};
    assert_true(s->positions + s->early <= c->tokens);
    c->live = room(c->tokens * sizeof *c->live, 0);
    for (uint32_t run = 0; run < RUNS; run++)
        for (uint32_t t = 0; t < s->runs[run]; t++) c->live[start_of(s, run) + t] = true;
    for (uint32_t side = 0; side < 2; side++) {
        size_t row = (size_t)s->heads * dim_of(s, side);
        c->floats[side] = random_floats(s->dtype, row * c->tokens, dim_of(s, side), &seed);
    }
    c->floats[2] = random_floats(s->dtype, (size_t)s->positions * c->q_heads * s->key_dim, s->key_dim, &seed);
}

static void send(scene *c) {
    const shape *s = c->s;
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t run = 0; run < RUNS; run++)
            if (s->runs[run] > 0)
                c->pieces[side][run] =
                    to_device(c->rig, side == KVANT_SIDE_KEY ? s->key_kind : s->value_kind, s->dtype,
                              c->floats[side] + (size_t)start_of(s, run) * s->heads * dim_of(s, side),
                              s->runs[run], s->heads, dim_of(s, side));
    c->queries =
        to_device(c->rig, s->query_kind, s->dtype, c->floats[2], s->positions, c->q_heads, s->key_dim);
}

static void end(scene *c) {
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t run = 0; run < RUNS; run++)
            if (c->pieces[side][run].at != 0) gpu_rig_from_device(c->rig, c->pieces[side][run].at, NULL, 0);
    gpu_rig_from_device(c->rig, c->queries.at, NULL, 0);
    for (uint32_t i = 0; i < 3; i++) free(c->floats[i]);
    free(c->live);
}

/* ---- The kernel ---------------------------------------------------------------------------------------- */

static uint64_t query_position(const scene *c) {
    return c->s->first_position + c->tokens - c->s->positions - c->s->early;
}

/* Partials [span, head, row]; span 0 has no run, 1 the first, 2 the others. Members that this kernel has no
 * business with say so by where they point. */
static float *attend(scene *c, size_t stride, int resident) {
    const shape *s = c->s;
    const uint64_t nowhere = 0xdead0000u;
    const uint32_t first[SPANS] = {0, 0, 1}, count[SPANS] = {0, 1, RUNS - 1}, items = SPANS * s->heads;
    size_t floats = items * c->rows * stride;
    float *partials = room(floats * sizeof *partials, POISON);
    kvant_gpu_run runs[RUNS];
    memset(runs, 0, sizeof runs);
    for (uint32_t run = 0; run < RUNS; run++)
        runs[run] = (kvant_gpu_run){.keys = view_of(&c->pieces[0][run]),
                                    .values = view_of(&c->pieces[1][run]),
                                    .first_position = s->first_position + start_of(s, run),
                                    .tokens = s->runs[run]};
    gpu_address runs_at = gpu_rig_to_device(c->rig, runs, sizeof runs);
    gpu_address partials_at = gpu_rig_to_device(c->rig, partials, floats * sizeof *partials);
    kvant_gpu_item *jobs = room(items * sizeof *jobs, 0);
    for (uint32_t i = 0; i < items; i++)
        jobs[i] = (kvant_gpu_item){.queries = view_of(&c->queries),
                                   .references = nowhere,
                                   .reference_count = 7,
                                   .runs = runs_at + first[i / s->heads] * sizeof *runs,
                                   .run_count = count[i / s->heads],
                                   .partial = partials_at + i * c->rows * stride * sizeof *partials,
                                   .partial_stride = stride,
                                   .query_position = query_position(c),
                                   .positions = s->positions,
                                   .kv_head = i % s->heads};
    const kvant_gpu_layer layer = {.key_base = nowhere,
                                   .value_base = nowhere,
                                   .value_state = nowhere,
                                   .center = nowhere,
                                   .scale = c->scale,
                                   .soft_cap = s->soft_cap,
                                   .window = s->window,
                                   .q_heads = c->q_heads};
    const core_attend_state state = {
        .dtype = s->dtype, .kv_heads = s->heads, .key_dim = s->key_dim, .value_dim = s->value_dim};
    core_rig_launch(c->rig,
                    &(core_launch){.kernel = "kvant_core_attend",
                                   .threads = CORE_ATTEND_THREADS,
                                   .shared_bytes = CORE_ATTEND_ROWS * s->key_dim * (uint32_t)sizeof(float),
                                   .units = items,
                                   .jobs = jobs,
                                   .job_bytes = sizeof *jobs,
                                   .count = items,
                                   .head = &items,
                                   .head_bytes = sizeof items,
                                   .state = &state,
                                   .state_bytes = sizeof state,
                                   .layer = &layer,
                                   .layer_bytes = sizeof layer,
                                   .resident = resident});
    gpu_rig_from_device(c->rig, partials_at, partials, floats * sizeof *partials);
    gpu_rig_from_device(c->rig, runs_at, NULL, 0);
    free(jobs);
    return partials;
}

/* ---- Comparison ---------------------------------------------------------------------------------------- */

static const float *partial_of(const scene *c, const float *partials, size_t stride, uint32_t span,
                               uint32_t head, uint32_t row) {
    return partials + (((size_t)span * c->s->heads + head) * c->rows + row) * stride;
}

/* Adds a row's partials up; returns its log-sum-exp. */
static double merge(const scene *c, const float *partials, size_t stride, uint32_t head, uint32_t row,
                    double *got) {
    double most = -INFINITY, sum = 0;
    memset(got, 0, c->s->value_dim * sizeof *got);
    for (uint32_t span = 0; span < SPANS; span++)
        most = fmax(most, (double)partial_of(c, partials, stride, span, head, row)[0]);
    for (uint32_t span = 0; span < SPANS; span++) {
        const float *p = partial_of(c, partials, stride, span, head, row);
        if (p[0] == -INFINITY && p[1] == 0) { /* saw nothing */
            for (uint32_t v = 0; v < c->s->value_dim; v++) assert_true(p[2 + v] == 0);
            continue;
        }
        double factor = exp((double)p[0] - most);
        sum += factor * (double)p[1];
        for (uint32_t v = 0; v < c->s->value_dim; v++) got[v] += factor * (double)p[2 + v];
    }
    for (uint32_t v = 0; v < c->s->value_dim && sum != 0; v++) got[v] /= sum;
    return most + log(sum);
}

/* Returns how many rows saw something. */
static uint32_t compare(const scene *c, const float *partials, size_t stride) {
    const shape *s = c->s;
    const attention_double exact = {.tokens = c->tokens,
                                    .heads = s->heads,
                                    .group = s->group,
                                    .key_dim = s->key_dim,
                                    .value_dim = s->value_dim,
                                    .rows = {c->floats[0], c->floats[1]},
                                    .live = c->live,
                                    .queries = c->floats[2],
                                    .first_position = s->first_position,
                                    .query_position = query_position(c),
                                    .window = s->window,
                                    .scale = c->scale,
                                    .soft_cap = s->soft_cap};
    double *want = room(2 * s->value_dim * sizeof *want, 0), *got = room(s->value_dim * sizeof *got, 0);
    uint32_t seen = 0;
    for (uint32_t head = 0; head < s->heads; head++)
        for (uint32_t row = 0; row < c->rows; row++) {
            double lse = attention_double_row(&exact, row / s->group, head * s->group + row % s->group, want,
                                              want + s->value_dim);
            double sum = merge(c, partials, stride, head, row, got);
            if (lse == -INFINITY) {
                assert_true(sum == -INFINITY);
                continue;
            }
            seen++;
            kvant_assert_close(sum, lse, 2e-6 * (4 + fabs(lse)));
            for (uint32_t v = 0; v < s->value_dim; v++)
                kvant_assert_close(got[v], want[v], 5e-6 * want[s->value_dim + v] + 1e-9);
        }
    for (uint32_t i = 0; i < SPANS * s->heads * c->rows; i++) /* nothing behind a partial */
        for (uint32_t k = 0; k < MORE * sizeof(float); k++)
            assert_int_equal(((const unsigned char *)(partials + i * stride + 2 + s->value_dim))[k], POISON);
    free(got);
    free(want);
    return seen;
}

/* The same partials from every grid. */
static void play(gpu_rig *rig, const shape *s, uint64_t seed) {
    scene c;
    size_t stride = 2 + s->value_dim + MORE;
    begin(&c, s, rig, seed);
    send(&c);
    float *partials = attend(&c, stride, 1 + (int)(seed % 2));
    uint32_t seen = compare(&c, partials, stride);
    assert_true(s->early == 0 ? seen == s->heads * c.rows : seen > 0);
    if (!KVANT_TEST_SANITIZED) {
        float *again = attend(&c, stride, 40);
        kvant_assert_bytes(again, partials, SPANS * s->heads * c.rows * stride * sizeof *partials);
        free(again);
    }
    free(partials);
    end(&c);
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

static const shape shapes[] = {
    /* dims, heads group positions, dtype; runs, hole early window; layouts of keys, values, queries; cap,
     * position */
    {32, 32, 1, 1, 1, F16, {1}, 0, 0, 0, DENSE, DENSE, DENSE, 0, 0},
    {128, 128, 2, 4, 1, F16, {4, 67, 64, 1}, 0, 0, 0, DENSE, HEADS, DENSE, 0, 0},
    {64, 96, 2, 3, 2, BF16, {3, 130, 0, 20}, 17, 0, 0, HEADS, DENSE, HEADS, 0, 1000},
    {80, 80, 1, 8, 1, F32, {65, 63, 128, 2}, 9, 0, 0, DENSE, DENSE, ELEMENT, 20, 0},
    {96, 64, 3, 1, 3, F16, {2, 60, 61, 5}, 40, 0, 50, ELEMENT, ODD, SPREAD, 0, (1ull << 33) - 70},
    {256, 128, 1, 5, 2, BF16, {4, 40, 30, 0}, 3, 0, 33, ODD, SPREAD, DENSE, 5, 0},
    {128, 256, 1, 12, 1, F16, {1, 100, 7, 9}, 0, 0, 0, BACKWARD, BACKWARD, BACKWARD, 0, 7},
    {576, 512, 1, 16, 1, BF16, {0, 70, 0, 0}, 0, 0, 0, DENSE, DENSE, DENSE, 0, 0},
    {1024, 1024, 1, 2, 1, F16, {5, 66, 0, 1}, 2, 0, 0, DENSE, DENSE, DENSE, 0, 0},
    {36, 20, 3, 2, 5, F16, {2, 33, 10, 70}, 5, 0, 75, SPREAD, ODD, ODD, 0, 3},
    {10, 7, 2, 3, 4, F32, {3, 20, 20, 20}, 30, 40, 9, ODD, ELEMENT, DENSE, 3, 1ull << 40},
    {64, 64, 1, 4, 9, F16, {0, 9, 0, 70}, 0, 4, 74, DENSE, DENSE, HEADS, 0, 0},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void stated_shapes(void **state) {
    gpu_rig rig;
    (void)state;
    core_rig_begin(&rig, 110);
    for (uint32_t i = 0; i < SHAPES; i++) play(&rig, &shapes[i], i);
    gpu_rig_end(&rig);
}

static void ptx_of_cubins(void **state) {
    static const uint32_t architectures[] = {80, 90, 100, 120};
    (void)state;
    for (uint32_t i = 0; i < (KVANT_TEST_SANITIZED ? 1 : 4); i++) {
        gpu_rig rig;
        core_rig_begin(&rig, architectures[i]);
        for (uint32_t j = 1 + i % 3; j < SHAPES; j += 3) play(&rig, &shapes[j], j);
        gpu_rig_end(&rig);
    }
}

/* A number that is none in a key or value that a row sees makes its sum or its mix NaN, in no other row. */
static void not_a_number(void **state) {
    static const shape s = {64, 64, 2, 2, 2, F16, {2, 30, 5, 0}, 0, 0, 0, DENSE, DENSE, DENSE, 0, 0};
    enum { TOKEN = 36, HEAD = 1, STRIDE = 64 + 2 };
    gpu_rig rig;
    (void)state;
    core_rig_begin(&rig, 110);
    for (uint32_t side = 0; side < 2; side++) {
        scene c;
        begin(&c, &s, &rig, side);
        c.floats[side][((size_t)TOKEN * s.heads + HEAD) * 64 + 5] =
            NAN; /* the last token: position 1 sees it */
        send(&c);
        float *partials = attend(&c, STRIDE, 2);
        for (uint32_t head = 0; head < s.heads; head++)
            for (uint32_t row = 0; row < c.rows; row++) {
                const float *p = partial_of(&c, partials, STRIDE, 2, head, row);
                bool bad = false, hit = head == HEAD && row / s.group == 1;
                for (uint32_t i = 1; i < 2 + s.value_dim; i++) bad = bad || isnan(p[i]);
                assert_int_equal(bad, hit);
                assert_true(isfinite(p[0]) && isnan(p[side == KVANT_SIDE_KEY ? 1 : 2 + 5]) == hit);
            }
        free(partials);
        end(&c);
    }
    gpu_rig_end(&rig);
}

/* Rows are fetched once for all query heads of a group. */
static void traffic(void **state) {
    static const shape usual = {128, 128, 2, 8, 1, F16, {0, 512, 0, 0}, 0, 0, 0, DENSE, DENSE, DENSE, 0, 0};
    gpu_rig rig;
    scene c;
    (void)state;
    if (core_rig_is_real()) skip();
    core_rig_begin(&rig, 110);
    gpu_fake_device.checks = PTX_CHECK_COUNT;
    begin(&c, &usual, &rig, 1);
    send(&c);
    free(attend(&c, 130, 2));
    const ptx_counters *n = &gpu_fake_device.counters;
    double elements = 2.0 * usual.heads * c.tokens * usual.key_dim; /* keys and values */
    double fetched = (double)n->load.block_sectors * 32 / (elements * 2);
    double passes = (double)n->shared_load.wavefronts / (double)n->shared_load.ideal;
    print_message("rows fetched %.3f times, %.3f of the least shared wavefronts, %.2f warp instructions an "
                  "element of keys and values\n",
                  fetched, passes, (double)n->warp_instructions / elements);
    assert_true(fetched < 1.1 && passes < 1.2);
    end(&c);
    gpu_rig_end(&rig);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(stated_shapes),
                                              cmocka_unit_test(ptx_of_cubins), cmocka_unit_test(not_a_number),
                                              cmocka_unit_test(traffic)};
    return kvant_run_tests(tests, argc, argv);
}
