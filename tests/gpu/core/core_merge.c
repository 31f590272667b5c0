/* kvant_core_merge against sums in double precision, and against the order of additions that core_kernels.h
 * states, bit for bit. */
#include "core_rig.h"

#include "support/sanitized.h"
#include "support/test.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xFF /* NaN in every gap */, CASES = 4 };
enum { F32 = KVANT_DTYPE_F32, F16 = KVANT_DTYPE_F16, BF16 = KVANT_DTYPE_BF16 };
enum { DENSE = GPU_ROWS_DENSE, HEADS = GPU_ROWS_HEAD_MAJOR, ELEMENT = GPU_ROWS_ELEMENT, ODD = GPU_ROWS_ODD };
enum { SPREAD = GPU_ROWS_SPREAD, BACKWARD = GPU_ROWS_BACKWARD };

typedef enum numbers {
    USUAL,
    EQUAL, /* all logits of a row are alike, so that every weight is 1 */
    HUGE_, /* outputs beyond F16 */
    NAN_   /* some sums are NaN */
} numbers;

/* One sequence: a job for each kv head. */
typedef struct sequence {
    uint32_t count, positions, group, kv_heads, value_dim, dtype;
    uint32_t kind; /* GPU_ROWS_* of the outputs */
    bool by_row;   /* partials of a row lie side by side, else rows of a partial */
    bool no_sums;  /* nobody asks for log-sum-exp */
    numbers numbers;
} sequence;

typedef struct scene {
    const sequence *s;
    uint32_t rows, q_heads; /* of a job; of all */
    size_t stride, step, per_head, floats;
    float *partials;
    gpu_rows outputs;
    size_t sums; /* floats of log_sum_exp */
    gpu_address partials_at, outputs_at, sums_at;
} scene;

static void *room(size_t size, int byte) {
    void *memory = malloc(size > 0 ? size : 1);
    assert_non_null(memory);
    memset(memory, byte, size);
    return memory;
}

/* ---- Partials ------------------------------------------------------------------------------------------ */

static float *partial_of(const scene *c, uint32_t kv_head, uint32_t row, uint32_t i) {
    return c->partials + kv_head * c->per_head + row * c->stride + i * c->step;
}

static bool is_nan_row(const scene *c, uint32_t kv_head, uint32_t row) {
    return c->s->numbers == NAN_ && (row + kv_head) % 3 == 1 && c->s->count > 0;
}

static bool is_nothing_row(const scene *c, uint32_t kv_head, uint32_t row) {
    return c->s->count == 0 || (c->s->numbers != NAN_ && (row * 7 + kv_head) % 11 == 5);
}

/* A fifth of the partials saw nothing, and all of some rows. */
static void fill_row(const scene *c, uint32_t kv_head, uint32_t row, uint64_t *seed) {
    const sequence *s = c->s;
    uint32_t sure = (uint32_t)(kvant_test_random(seed) % (s->count + (s->count == 0)));
    for (uint32_t i = 0; i < s->count; i++) {
        float *p = partial_of(c, kv_head, row, i);
        bool nothing = is_nothing_row(c, kv_head, row) || (i != sure && kvant_test_random(seed) % 5 == 0);
        p[0] = nothing ? -INFINITY : s->numbers == EQUAL ? -3.25f : (float)(kvant_test_normal(seed) * 12 - 5);
        p[1] = nothing ? 0 : 1 + 30 * fabsf((float)kvant_test_normal(seed));
        for (uint32_t v = 0; v < s->value_dim; v++) {
            double x = kvant_test_normal(seed) + (v % 13 == 2 ? 3.0 : 0.2);
            if (s->numbers == HUGE_) x *= 1e5;
            p[2 + v] = nothing ? 0 : (float)x * p[1];
        }
    }
    if (!is_nan_row(c, kv_head, row)) return;
    if (row % 2 == 1) /* no logit of the row is a number */
        for (uint32_t i = 0; i < s->count; i++) {
            float *p = partial_of(c, kv_head, row, i);
            p[0] = -INFINITY;
            for (uint32_t k = 1; k < 2 + s->value_dim; k++) p[k] = 0;
        }
    partial_of(c, kv_head, row, s->count / 2)[1] = NAN;
}

static void begin(scene *c, const sequence *s, gpu_rig *rig, uint64_t *seed) {
    *c = (scene){.s = s, .rows = s->positions * s->group, .q_heads = s->kv_heads * s->group};
    size_t partial = 2 + s->value_dim + 3;
    c->stride = s->by_row ? partial * (s->count + 1) : partial;
    c->step = s->by_row ? partial : partial * (c->rows + 1);
    c->per_head = s->by_row ? c->stride * (c->rows + 1) : c->step * (s->count + 1);
    c->floats = c->per_head * s->kv_heads;
    c->partials = room(c->floats * sizeof(float), POISON);
    for (uint32_t head = 0; head < s->kv_heads; head++)
        for (uint32_t row = 0; row < c->rows; row++) fill_row(c, head, row, seed);
    c->outputs = gpu_rows_of(s->kind, s->dtype, s->positions + (s->positions == 0), c->q_heads, s->value_dim);
    c->sums = (size_t)c->outputs.tokens * c->q_heads;
    c->partials_at = gpu_rig_to_device(rig, c->partials, c->floats * sizeof(float));
}

/* ---- The kernel ---------------------------------------------------------------------------------------- */

static void jobs_of(const scene *c, core_merge_job *jobs) {
    const sequence *s = c->s;
    for (uint32_t head = 0; head < s->kv_heads; head++)
        jobs[head] = (core_merge_job){.partial = c->partials_at + head * c->per_head * sizeof(float),
                                      .partial_step = c->step,
                                      .partial_stride = c->stride,
                                      .outputs = {c->outputs_at + c->outputs.offset, c->outputs.token_stride,
                                                  c->outputs.head_stride, c->outputs.channel_stride},
                                      .log_sum_exp = c->sums_at,
                                      .count = s->count,
                                      .positions = s->positions,
                                      .group = s->group,
                                      .kv_head = head,
                                      .q_heads = c->q_heads,
                                      .value_dim = s->value_dim,
                                      .dtype = s->dtype};
}

/* All of them in one launch; what each of them wrote: memory of the outputs, then the sums. */
static void merge(gpu_rig *rig, scene *scenes, uint32_t count, int resident, unsigned char **results) {
    uint32_t all = 0, units = 0, at = 0;
    for (uint32_t i = 0; i < count; i++) {
        all += scenes[i].s->kv_heads;
        units += scenes[i].s->kv_heads * scenes[i].rows;
    }
    core_merge_job *jobs = room(all * sizeof *jobs, POISON);
    for (uint32_t i = 0; i < count; i++) {
        scene *c = &scenes[i];
        size_t bytes = c->outputs.bytes + c->sums * sizeof(float);
        results[i] = room(bytes, POISON);
        c->outputs_at = gpu_rig_to_device(rig, results[i], c->outputs.bytes);
        c->sums_at = c->s->no_sums ? 0 : gpu_rig_to_device(rig, results[i], c->sums * sizeof(float));
        jobs_of(c, jobs + at);
        at += c->s->kv_heads;
    }
    core_rig_launch(rig, &(core_launch){.kernel = "kvant_core_merge",
                                        .threads = CORE_MERGE_THREADS,
                                        .units = units,
                                        .jobs = jobs,
                                        .job_bytes = sizeof *jobs,
                                        .count = all,
                                        .head = &all,
                                        .head_bytes = sizeof all,
                                        .resident = resident});
    for (uint32_t i = 0; i < count; i++) {
        scene *c = &scenes[i];
        gpu_rig_from_device(rig, c->outputs_at, results[i], c->outputs.bytes);
        if (c->sums_at != 0)
            gpu_rig_from_device(rig, c->sums_at, results[i] + c->outputs.bytes, c->sums * sizeof(float));
    }
    free(jobs);
}

/* ---- Comparison ---------------------------------------------------------------------------------------- */

/* A row in double precision; returns its log-sum-exp. `absolute`: sums of |terms|, by which errors go. */
static double exact_row(const scene *c, uint32_t kv_head, uint32_t row, double *out, double *absolute) {
    double most = -INFINITY, sum = 0;
    uint32_t dim = c->s->value_dim;
    for (uint32_t i = 0; i < c->s->count; i++) most = fmax(most, (double)partial_of(c, kv_head, row, i)[0]);
    memset(out, 0, dim * sizeof *out);
    memset(absolute, 0, dim * sizeof *absolute);
    for (uint32_t i = 0; i < c->s->count && most > -INFINITY; i++) {
        const float *p = partial_of(c, kv_head, row, i);
        double factor = exp((double)p[0] - most);
        sum += factor * (double)p[1];
        for (uint32_t v = 0; v < dim; v++) {
            out[v] += factor * (double)p[2 + v];
            absolute[v] += factor * fabs((double)p[2 + v]);
        }
    }
    for (uint32_t v = 0; v < dim && sum != 0; v++) {
        out[v] /= sum;
        absolute[v] /= sum;
    }
    return most + log(sum);
}

/* The order of core_kernels.h, where every weight is 1. */
static float ordered(const scene *c, uint32_t kv_head, uint32_t row, uint32_t number) {
    uint32_t slice = (c->s->count + CORE_MERGE_WARPS - 1) / CORE_MERGE_WARPS;
    float all = 0;
    if (slice < CORE_MERGE_SLICE) slice = CORE_MERGE_SLICE;
    for (uint32_t from = 0; from < c->s->count; from += slice) {
        float sum = 0;
        for (uint32_t i = from; i < from + slice && i < c->s->count; i++)
            sum += partial_of(c, kv_head, row, i)[number];
        all = from == 0 ? sum : all + sum;
    }
    return all;
}

static double step_of(uint32_t dtype) {
    return dtype == F32 ? 0x1p-24 : dtype == F16 ? 0x1p-11 : 0x1p-8;
}

static double largest_of(uint32_t dtype) {
    return dtype == F32 ? 0x1.fffffep127 : dtype == F16 ? 65504 : 0x1.fep127;
}

static void compare_row(const scene *c, const unsigned char *result, uint32_t kv_head, uint32_t row,
                        double *want, double *absolute) {
    const sequence *s = c->s;
    uint32_t position = row / s->group, head = kv_head * s->group + row % s->group;
    const unsigned char *at = result + c->outputs.offset + (ptrdiff_t)position * c->outputs.token_stride +
                              (ptrdiff_t)head * c->outputs.head_stride;
    double sum = exact_row(c, kv_head, row, want, absolute), largest = largest_of(s->dtype);
    bool nothing = is_nothing_row(c, kv_head, row), nan = is_nan_row(c, kv_head, row);
    float got_sum = 0;
    memcpy(&got_sum, result + c->outputs.bytes + ((size_t)position * c->q_heads + head) * sizeof got_sum,
           sizeof got_sum);
    if (s->no_sums)
        assert_true(isnan(got_sum)); /* poison */
    else if (nothing)
        assert_true(got_sum == -INFINITY);
    else if (nan)
        assert_true(isnan(got_sum));
    else
        kvant_assert_close(got_sum, sum, 4e-7 * (2 + fabs(sum)));
    for (uint32_t v = 0; v < s->value_dim; v++) {
        float got = kvant_load_element(at + (ptrdiff_t)v * c->outputs.channel_stride, s->dtype);
        if (nan) {
            assert_true(isnan(got));
        } else if (s->numbers == EQUAL) {
            unsigned char element[4] = {0};
            float x = nothing ? 0 : ordered(c, kv_head, row, 2 + v) / ordered(c, kv_head, row, 1);
            kvant_store_element(element, s->dtype, x);
            kvant_assert_bytes(at + (ptrdiff_t)v * c->outputs.channel_stride, element,
                               kvant_element_bytes(s->dtype));
        } else {
            double x = fmin(fmax(nothing ? 0 : want[v], -largest), largest);
            kvant_assert_close(got, x, 3e-6 * absolute[v] + fabs(x) * step_of(s->dtype) + 1e-9);
        }
    }
}

/* Bytes that are no output are poison. */
static void check_gaps(const scene *c, const unsigned char *result) {
    const sequence *s = c->s;
    size_t elements = (size_t)c->outputs.tokens * c->q_heads * s->value_dim;
    unsigned char *marks = room(c->outputs.bytes, 0), *ones = room(elements * sizeof(float), 1);
    if (s->positions > 0) gpu_rows_scatter(&c->outputs, ones, marks);
    for (size_t i = 0; i < c->outputs.bytes; i++)
        if (marks[i] == 0) assert_int_equal(result[i], POISON);
    free(ones);
    free(marks);
}

/* The same bytes from every grid, and whatever else is in the launch. */
static void play(gpu_rig *rig, const sequence *sequences, uint32_t count, uint64_t seed) {
    scene scenes[CASES];
    unsigned char *results[CASES], *again[CASES];
    for (uint32_t i = 0; i < count; i++) begin(&scenes[i], &sequences[i], rig, &seed);
    merge(rig, scenes, count, 1, results);
    for (uint32_t i = 0; i < count; i++) {
        scene *c = &scenes[i];
        double *want = room(2 * c->s->value_dim * sizeof *want, 0);
        for (uint32_t head = 0; head < c->s->kv_heads; head++)
            for (uint32_t row = 0; row < c->rows; row++)
                compare_row(c, results[i], head, row, want, want + c->s->value_dim);
        check_gaps(c, results[i]);
        free(want);
    }
    for (uint32_t i = 0; i < count && !KVANT_TEST_SANITIZED; i++) {
        merge(rig, &scenes[i], 1, 2 + 30 * (int)(i % 2), &again[i]);
        kvant_assert_bytes(again[i], results[i], scenes[i].outputs.bytes + scenes[i].sums * sizeof(float));
        free(again[i]);
    }
    for (uint32_t i = 0; i < count; i++) {
        gpu_rig_from_device(rig, scenes[i].partials_at, NULL, 0);
        free(scenes[i].partials);
        free(results[i]);
    }
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

static const sequence stated[] = {
    /* count positions group kv heads value dim dtype, layout of outputs, by row, no sums, numbers */
    {1, 1, 1, 1, 32, F16, DENSE, false, false, USUAL},  {8, 3, 4, 2, 128, F16, DENSE, false, false, USUAL},
    {9, 1, 4, 2, 128, BF16, HEADS, true, false, USUAL}, {300, 1, 3, 2, 128, F32, DENSE, false, false, USUAL},
    {65, 2, 2, 1, 80, F16, ELEMENT, true, true, USUAL}, {70, 1, 8, 1, 576, BF16, ODD, false, false, USUAL},
    {5, 7, 3, 3, 20, F32, SPREAD, true, false, USUAL},  {1500, 1, 1, 2, 7, F16, BACKWARD, true, false, USUAL},
    {17, 2, 5, 2, 129, F32, DENSE, true, false, EQUAL}, {700, 1, 2, 2, 64, F32, HEADS, false, false, EQUAL},
    {7, 5, 4, 1, 256, BF16, DENSE, false, true, EQUAL}, {64, 2, 1, 1, 33, F16, ODD, true, false, EQUAL},
    {3, 4, 4, 2, 96, F16, DENSE, false, false, HUGE_},  {40, 1, 4, 1, 64, BF16, DENSE, false, false, HUGE_},
    {6, 6, 2, 2, 64, F16, HEADS, true, false, NAN_},    {33, 3, 2, 1, 40, F32, DENSE, false, false, NAN_},
    {0, 2, 2, 2, 50, F16, DENSE, false, false, USUAL},  {1, 40, 4, 1, 1024, F32, DENSE, false, false, USUAL},
};
enum { STATED = sizeof stated / sizeof stated[0] };

static void stated_sequences(void **state) {
    gpu_rig rig;
    (void)state;
    core_rig_begin(&rig, 110);
    for (uint32_t i = 0; i < STATED; i += CASES)
        play(&rig, &stated[i], STATED - i < CASES ? STATED - i : CASES, i);
    gpu_rig_end(&rig);
}

static void ptx_of_cubins(void **state) {
    static const uint32_t architectures[] = {80, 90, 100, 120};
    (void)state;
    for (uint32_t i = 0; i < (KVANT_TEST_SANITIZED ? 1 : 4); i++) {
        gpu_rig rig;
        core_rig_begin(&rig, architectures[i]);
        for (uint32_t j = 1 + i % 2; j + 2 <= STATED; j += 4) play(&rig, &stated[j], 2, j);
        gpu_rig_end(&rig);
    }
}

/* More jobs than a block has threads, with few and with many partials, some without rows. */
static void many_jobs(void **state) {
    sequence sequences[CASES];
    gpu_rig rig;
    (void)state;
    core_rig_begin(&rig, 110);
    for (uint32_t i = 0; i < CASES; i++)
        sequences[i] = (sequence){.count = 2 + 6 * i,
                                  .positions = i == 1 ? 0 : 1,
                                  .group = 1 + i,
                                  .kv_heads = 110 + 33 * i,
                                  .value_dim = 3,
                                  .dtype = F32,
                                  .numbers = i == 0 ? EQUAL : USUAL};
    play(&rig, sequences, CASES, 5);
    gpu_rig_end(&rig);
}

/* Partials are fetched once for the weights and once for the sums. */
static void traffic(void **state) {
    static const sequence usual = {256, 1, 4, 8, 128, F16, DENSE, false, false, USUAL};
    unsigned char *result = NULL;
    gpu_rig rig;
    scene c;
    uint64_t seed = 1;
    (void)state;
    if (core_rig_is_real()) skip();
    core_rig_begin(&rig, 110);
    gpu_fake_device.checks = PTX_CHECK_COUNT;
    begin(&c, &usual, &rig, &seed);
    merge(&rig, &c, 1, 2, &result);
    const ptx_counters *n = &gpu_fake_device.counters;
    double elements = (double)usual.count * usual.kv_heads * c.rows * usual.value_dim;
    double fetched = (double)n->load.block_sectors * 32 / (elements * 4);
    print_message("partials fetched %.3f times, %.2f warp instructions an element\n", fetched,
                  (double)n->warp_instructions / elements);
    assert_true(fetched < 1.1);
    free(result);
    free(c.partials);
    gpu_rig_from_device(&rig, c.partials_at, NULL, 0);
    gpu_rig_end(&rig);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(stated_sequences),
                                              cmocka_unit_test(ptx_of_cubins), cmocka_unit_test(many_jobs),
                                              cmocka_unit_test(traffic)};
    return kvant_run_tests(tests, argc, argv);
}
