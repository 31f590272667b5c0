/* The hack codec itself: noise that depends on nothing but place and seed, sums that are sums, sizes of the
 * artifact's pages, errors between two bounds, and what plan refuses. */
#include "support/test.h"
#include "support/test_codec.h"

#include <kvant/kit/view.h>
#include <kvant/kvant.h>
#include <plugin/fpenv.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *normal_rows(size_t count, uint64_t seed) {
    float *rows = malloc(count * sizeof *rows);
    assert_non_null(rows);
    for (size_t i = 0; i < count; i++) rows[i] = (float)kvant_test_normal(&seed);
    return rows;
}

static double nmse(const float *got, const float *want, size_t count) {
    double error = 0, energy = 0;
    for (size_t i = 0; i < count; i++) {
        double e = (double)got[i] - (double)want[i];
        error += e * e;
        energy += (double)want[i] * (double)want[i];
    }
    return error / energy;
}

/* ---- Noise --------------------------------------------------------------------------------------------- */

/* Codes of rows [tokens, heads, dim] that begin at a position, with heads from `first_head` on and a layer.
 */
static uint8_t *codes_at(uint32_t side, uint32_t tokens, uint32_t heads, uint32_t dim, uint32_t isa,
                         const char *parameters, const float *rows, uint64_t position, uint32_t first_head,
                         uint32_t layer) {
    kvant_array array;
    kvant_test_codec *c =
        kvant_test_codec_open("hack", side, KVANT_DTYPE_F32, tokens, heads, dim, isa, parameters);
    kvant_diag diag = {.struct_size = sizeof diag};
    c->setup.first_kv_head = first_head;
    c->setup.total_kv_heads = first_head + heads;
    c->setup.layer = layer;
    c->setup.layer_count = layer + 1;
    assert_int_equal(c->plugin->open(&c->setup, &c->layout, c->state, &diag), KVANT_OK);
    kvant_view view = kvant_test_view(rows, KVANT_DTYPE_F32, tokens, heads, dim);
    kvant_encode_args args = {.struct_size = sizeof args,
                              .rows = &view,
                              .first_position = position,
                              .extent = c->extent,
                              .scratch = c->scratch};
    kvant_fp_state saved = kvant_fp_enter();
    assert_int_equal(c->plugin->encode(c->state, &args), KVANT_OK);
    kvant_fp_leave(saved);
    c->size = args.size;
    uint8_t *codes = kvant_test_codec_inspect(c, "codes", &array);
    kvant_test_codec_close(c);
    return codes;
}

/* A block of two partitions and each of them as a block; two heads and the second alone. */
static void noise_depends_on_place_only(void **state) {
    (void)state;
    uint32_t isas[KVANT_TEST_ISA_MAX], count = kvant_test_isas(isas);
    enum { TOKENS = 64, HEADS = 2, DIM = 50, HALF = TOKENS / 2 * HEADS * DIM };
    const char *more[2] = {"rounding=stochastic seed=9 partition=64",
                           "rounding=stochastic seed=9 partition=64 axes=paper"};
    float *rows = normal_rows(2 * HALF * 2, 4);
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t k = 0; k < 2 * count; k++) {
            uint32_t isa = isas[k / 2];
            const char *p = more[k % 2];
            uint8_t *both = codes_at(side, 2 * TOKENS, HEADS, DIM, isa, p, rows, 1000, 3, 5);
            uint8_t *first = codes_at(side, TOKENS, HEADS, DIM, isa, p, rows, 1000, 3, 5);
            uint8_t *second =
                codes_at(side, TOKENS, HEADS, DIM, isa, p, rows + 2 * HALF, 1000 + TOKENS, 3, 5);
            kvant_assert_bytes(both, first, 2 * HALF);
            kvant_assert_bytes(both + 2 * HALF, second, 2 * HALF);

            float *one = malloc(HALF * sizeof *one);
            assert_non_null(one);
            for (size_t t = 0; t < TOKENS; t++)
                memcpy(one + t * DIM, rows + (t * HEADS + 1) * DIM, DIM * sizeof *one);
            uint8_t *alone = codes_at(side, TOKENS, 1, DIM, isa, p, one, 1000, 4, 5);
            for (size_t t = 0; t < TOKENS; t++)
                kvant_assert_bytes(alone + t * DIM, first + (t * HEADS + 1) * DIM, DIM);
            free(alone);
            free(one);
            free(both);
            free(first);
            free(second);
        }
    free(rows);
}

static void noise_depends_on_all_of_it(void **state) {
    (void)state;
    enum { TOKENS = 64, DIM = 64, COUNT = TOKENS * DIM };
    float *rows = normal_rows(COUNT, 4);
    const char *p = "rounding=stochastic seed=1";
    uint8_t *base = codes_at(0, TOKENS, 1, DIM, kvant_isa(), p, rows, 64, 1, 2);
    const struct {
        const char *parameters;
        uint64_t position;
        uint32_t head, layer;
    } others[] = {{"rounding=stochastic seed=2", 64, 1, 2}, {p, 65, 1, 2}, {p, 64, 2, 2}, {p, 64, 1, 3}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        uint8_t *other = codes_at(0, TOKENS, 1, DIM, kvant_isa(), others[i].parameters, rows,
                                  others[i].position, others[i].head, others[i].layer);
        size_t differ = 0;
        for (size_t k = 0; k < COUNT; k++) {
            differ += other[k] != base[k];
            assert_in_range((other[k] - base[k] + 1) & 0xff, 0, 2);
        }
        /* u mod 1 is about uniform: two draws differ in 2 r (1 - r), on average a third. */
        kvant_assert_within((double)differ / COUNT, 1.0 / 3, 0.12);
        free(other);
    }
    free(base);
    free(rows);
}

/* Rounding is unbiased: the mean over seeds comes back to the rows. */
static void stochastic_rounding_has_no_bias(void **state) {
    (void)state;
    enum { TOKENS = 64, DIM = 64, COUNT = TOKENS * DIM, SEEDS = 64 };
    float *rows = normal_rows(COUNT, 8), *mean = calloc(COUNT, sizeof *mean);
    double single = 0;
    assert_non_null(mean);
    for (uint32_t seed = 0; seed < SEEDS; seed++) {
        char parameters[64];
        (void)snprintf(parameters, sizeof parameters, "rounding=stochastic meta=f32 seed=%u", seed);
        kvant_test_codec *c = kvant_test_codec_open("hack", KVANT_SIDE_KEY, KVANT_DTYPE_F32, TOKENS, 1, DIM,
                                                    kvant_isa(), parameters);
        kvant_test_codec_encode(c, rows, COUNT);
        float *x = kvant_test_codec_decode(c, KVANT_DTYPE_F32);
        for (size_t i = 0; i < COUNT; i++) mean[i] += x[i] / SEEDS;
        single = nmse(x, rows, COUNT);
        free(x);
        kvant_test_codec_close(c);
    }
    /* Of 64 independent draws 1/64 is left. */
    kvant_assert_within(nmse(mean, rows, COUNT) / single, 1.0 / SEEDS, 0.15);
    free(mean);
    free(rows);
}

/* ---- Sums and sizes ------------------------------------------------------------------------------------ */

static uint32_t sum_at(const void *sums, const kvant_array *array, size_t i) {
    uint32_t x = 0, bytes = array->dtype == KVANT_DTYPE_U8 ? 1 : array->dtype == KVANT_DTYPE_I16 ? 2 : 4;
    memcpy(&x, (const char *)sums + i * bytes, bytes);
    return x;
}

static void check_sums(uint32_t side, uint32_t tokens, uint32_t dim, uint32_t part, uint32_t partition,
                       const char *parameters, uint32_t dtype, uint32_t isa) {
    enum { HEADS = 2 };
    kvant_array array, codes_array;
    float *rows = normal_rows((size_t)tokens * HEADS * dim, 6);
    kvant_test_codec *c =
        kvant_test_codec_open("hack", side, KVANT_DTYPE_F32, tokens, HEADS, dim, isa, parameters);
    kvant_test_codec_encode(c, rows, (size_t)tokens * HEADS * dim);
    uint8_t *codes = kvant_test_codec_inspect(c, "codes", &codes_array);
    void *sums = kvant_test_codec_inspect(c, "sums", &array);
    assert_int_equal(array.dtype, dtype);
    size_t parts = dim / part;
    uint32_t *want = calloc((size_t)tokens * HEADS * dim, sizeof *want);
    assert_non_null(want);
    for (size_t t = 0; t < tokens; t++)
        for (size_t h = 0; h < HEADS; h++)
            for (size_t d = 0; d < dim; d++)
                want[side == KVANT_SIDE_KEY ? (t * HEADS + h) * parts + d / part
                                            : (t / partition * HEADS + h) * dim + d] +=
                    codes[(t * HEADS + h) * dim + d];
    for (size_t i = 0; i < array.shape[0] * array.shape[1] * array.shape[2]; i++)
        assert_int_equal(sum_at(sums, &array, i), want[i]);
    free(want);
    free(sums);
    free(codes);
    free(rows);
    kvant_test_codec_close(c);
}

static void sums_are_sums(void **state) {
    (void)state;
    uint32_t isas[KVANT_TEST_ISA_MAX], count = kvant_test_isas(isas);
    for (uint32_t i = 0; i < count; i++) {
        check_sums(0, 64, 128, 64, 64, "bits=2", KVANT_DTYPE_U8, isas[i]);
        check_sums(1, 64, 128, 64, 64, "bits=2", KVANT_DTYPE_U8, isas[i]);
        check_sums(0, 128, 96, 48, 64, "bits=4 axes=paper", KVANT_DTYPE_I16, isas[i]);
        check_sums(1, 192, 80, 16, 64, "bits=8", KVANT_DTYPE_I16, isas[i]);
        check_sums(0, 256, 144, 144, 256, "bits=8 partition=256", KVANT_DTYPE_I32, isas[i]);
        check_sums(1, 256, 33, 33, 256, "bits=8 partition=256 axes=paper", KVANT_DTYPE_I32, isas[i]);
    }
}

/* Keys and values of 8 heads of 128 take the bytes of the artifact's page. */
static void sizes_are_those_of_pages(void **state) {
    (void)state;
    static const struct { uint32_t partition, bytes; } pages[] = {{32, 26624}, {64, 43008}, {128, 77824}};
    for (size_t i = 0; i < 3; i++) {
        char parameters[32];
        uint64_t bytes = 0;
        (void)snprintf(parameters, sizeof parameters, "partition=%u", pages[i].partition);
        for (uint32_t side = 0; side < 2; side++) {
            kvant_diag diag = {.struct_size = sizeof diag};
            kvant_layout layout;
            assert_int_equal(kvant_test_codec_plan("hack", side, KVANT_DTYPE_F16, pages[i].partition, 8, 128,
                                                   parameters, &layout, &diag),
                             KVANT_OK);
            assert_int_equal(layout.payload_bits, (uint64_t)pages[i].partition * 8 * 128 * 2);
            assert_int_equal(layout.payload_bits + layout.metadata_bits, 8 * layout.size_min);
            bytes += layout.size_min;
        }
        assert_int_equal(bytes, pages[i].bytes);
    }
}

/* ---- Errors -------------------------------------------------------------------------------------------- */

static double error_of(const char *parameters, uint32_t side, const float *rows, uint32_t tokens,
                       uint32_t dim) {
    kvant_test_codec *c =
        kvant_test_codec_open("hack", side, KVANT_DTYPE_F32, tokens, 1, dim, kvant_isa(), parameters);
    kvant_test_codec_encode(c, rows, (size_t)tokens * dim);
    float *x = kvant_test_codec_decode(c, KVANT_DTYPE_F32);
    double e = nmse(x, rows, (size_t)tokens * dim);
    free(x);
    kvant_test_codec_close(c);
    return e;
}

/* On N(0, 1) both sides and both conventions have the error of asymmetric codes in groups of that size. */
static void errors_on_a_normal_distribution(void **state) {
    (void)state;
    enum { TOKENS = 1024, DIM = 128 };
    float *rows = normal_rows((size_t)TOKENS * DIM, 12);
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t paper = 0; paper < 2; paper++) {
            static const struct {
                const char *parameters;
                double error;
            } bands[] = {{"bits=2 partition=32", .1544},  {"bits=2 partition=64", .2024},
                         {"bits=2 partition=128", .2507}, {"bits=4 partition=32", .00611},
                         {"bits=4 partition=64", .00804}, {"bits=4 partition=128", .00994}};
            for (size_t i = 0; i < sizeof bands / sizeof bands[0]; i++) {
                char parameters[96];
                (void)snprintf(parameters, sizeof parameters, "%s meta=f32 axes=%s", bands[i].parameters,
                               paper ? "paper" : "artifact");
                kvant_assert_within(error_of(parameters, side, rows, TOKENS, DIM), bands[i].error, 0.02);
            }
        }
    /* Twice the variance where rounding is stochastic; bf16 minima and scales cost little. */
    kvant_assert_within(error_of("bits=4 rounding=stochastic meta=f32", 0, rows, TOKENS, DIM), .01608, 0.03);
    kvant_assert_within(error_of("bits=2", 0, rows, TOKENS, DIM), .2024, 0.02);
    free(rows);
}

/* An outlier channel of keys is alone with itself in the artifact's convention and spoils its neighbours in
 * the paper's. */
static void conventions_differ_on_outlier_channels(void **state) {
    (void)state;
    enum { TOKENS = 512, DIM = 128 };
    float *rows = normal_rows((size_t)TOKENS * DIM, 21);
    for (size_t i = 0; i < (size_t)TOKENS * DIM; i++)
        if (i % DIM % 32 == 5) rows[i] = rows[i] * 2 + 12;
    double artifact = error_of("bits=2", 0, rows, TOKENS, DIM);
    double paper = error_of("bits=2 axes=paper", 0, rows, TOKENS, DIM);
    assert_true(artifact < 0.1 && paper > 5 * artifact);
    free(rows);
}

/* ---- Ends of the range --------------------------------------------------------------------------------- */

static void extremes_stay_finite(void **state) {
    (void)state;
    uint32_t isas[KVANT_TEST_ISA_MAX], count = kvant_test_isas(isas);
    enum { TOKENS = 64, DIM = 64, COUNT = TOKENS * DIM };
    static const char *const parameters[] = {"bits=2", "bits=8 meta=f16", "bits=4 meta=f32 axes=paper",
                                             "bits=2 rounding=stochastic meta=f16 axes=paper"};
    float *rows = normal_rows(COUNT, 3);
    for (size_t i = 0; i < COUNT; i++)
        if (i % 7 == 0) rows[i] = i % 2 ? 3.4e38f : -3.4e38f;
    for (size_t p = 0; p < 4; p++)
        for (uint32_t side = 0; side < 2; side++)
            for (uint32_t i = 0; i < count; i++) {
                kvant_test_codec *c = kvant_test_codec_open("hack", side, KVANT_DTYPE_F32, TOKENS, 1, DIM,
                                                            isas[i], parameters[p]);
                kvant_test_codec_encode(c, rows, COUNT);
                float *x = kvant_test_codec_decode(c, KVANT_DTYPE_F32);
                for (size_t k = 0; k < COUNT; k++) assert_true(isfinite(x[k]));
                assert_true((c->saturated > 0) == (strstr(parameters[p], "f16") != NULL || p == 0));
                if (strstr(parameters[p], "f32") != NULL) assert_true(nmse(x, rows, COUNT) < 0.3);
                free(x);
                kvant_test_codec_close(c);
            }
    free(rows);
}

static void constant_partitions(void **state) {
    (void)state;
    enum { TOKENS = 64, DIM = 64, COUNT = TOKENS * DIM };
    static const char *const parameters[] = {"meta=f32", "meta=f32 flat=one", "meta=f32 rounding=stochastic"};
    float *rows = malloc(COUNT * sizeof *rows);
    assert_non_null(rows);
    for (size_t i = 0; i < COUNT; i++) rows[i] = 1.0f / 3 * (float)(1 + i % DIM);
    for (size_t p = 0; p < 3; p++) {
        kvant_array array;
        kvant_test_codec *c = kvant_test_codec_open("hack", KVANT_SIDE_KEY, KVANT_DTYPE_F32, TOKENS, 1, DIM,
                                                    kvant_isa(), parameters[p]);
        kvant_test_codec_encode(c, rows, COUNT);
        float *x = kvant_test_codec_decode(c, KVANT_DTYPE_F32);
        float *scale = kvant_test_codec_inspect(c, "scale", &array);
        kvant_assert_bytes(x, rows, COUNT * sizeof *x);
        for (size_t i = 0; i < DIM; i++) assert_true(scale[i] == (p == 1 ? 1 : 0));
        free(scale);
        free(x);
        kvant_test_codec_close(c);
    }
    free(rows);
}

/* ---- Refusals ------------------------------------------------------------------------------------------ */

static void refusals(void **state) {
    (void)state;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_layout layout;
    for (uint32_t side = 0; side < 2; side++) {
        assert_int_equal(kvant_test_codec_plan("hack", side, KVANT_DTYPE_F32, 96, 1, 64, "", &layout, &diag),
                         KVANT_ERROR_BLOCK_TOKENS);
        assert_string_equal(diag.key, "partition");
        assert_int_equal(layout.block_multiple, 64);
        assert_int_equal(kvant_test_codec_plan("hack", side, KVANT_DTYPE_F32, 64, 1, 100, "", &layout, &diag),
                         KVANT_ERROR_GEOMETRY);
        assert_string_equal(diag.key, "partition");
        kvant_assert_contains(diag.message, "head_dim = 100");
        assert_int_equal(layout.block_multiple, 64);
        assert_int_equal(kvant_test_codec_plan("hack", side, KVANT_DTYPE_F32, 128, 1, 100, "partition=128",
                                               &layout, &diag),
                         KVANT_OK);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(noise_depends_on_place_only),
                                              cmocka_unit_test(noise_depends_on_all_of_it),
                                              cmocka_unit_test(stochastic_rounding_has_no_bias),
                                              cmocka_unit_test(sums_are_sums),
                                              cmocka_unit_test(sizes_are_those_of_pages),
                                              cmocka_unit_test(errors_on_a_normal_distribution),
                                              cmocka_unit_test(conventions_differ_on_outlier_channels),
                                              cmocka_unit_test(extremes_stay_finite),
                                              cmocka_unit_test(constant_partitions),
                                              cmocka_unit_test(refusals)};
    return kvant_run_tests(tests, argc, argv);
}
