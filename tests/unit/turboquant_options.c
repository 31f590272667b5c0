/* turboquant's parameters: what plan refuses and how it says so, sizes, bytes that every option changes, the
 * rotation of any head dim, ties, and rows at the ends of their types. */
#include "support/test.h"
#include "support/test_codec.h"

#include "turboquant/turboquant_state.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 70, HEADS = 2, DIM = 96, COUNT = TOKENS * HEADS * DIM };

static kvant_test_codec *open_best(uint32_t side, uint32_t tokens, uint32_t heads, uint32_t dim,
                                   const char *parameters) {
    uint32_t isas[KVANT_TEST_ISA_MAX], count = kvant_test_isas(isas);
    return kvant_test_codec_open("turboquant", side, KVANT_DTYPE_F32, tokens, heads, dim, isas[count - 1],
                                 parameters);
}

/* ---- Plan ---------------------------------------------------------------------------------------------- */

static void refused(uint32_t dim, const char *parameters, kvant_status status, const char *key,
                    const char *part) {
    kvant_layout layout;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status got = kvant_test_codec_plan("turboquant", KVANT_SIDE_KEY, KVANT_DTYPE_F32, TOKENS, HEADS,
                                             dim, parameters, &layout, &diag);
    assert_int_equal(got, status);
    assert_string_equal(diag.key, key);
    kvant_assert_contains(diag.message, part);
    assert_int_equal(layout.block_multiple, 1);
}

static void refusals(void **state) {
    (void)state;
    refused(64, "bits=8 outliers=half", KVANT_ERROR_CONFLICT, "outliers", "at most 8");
    refused(64, "sketch=gaussian", KVANT_ERROR_CONFLICT, "sketch", "mode = prod");
    refused(64, "mode=prod bits=1 scale_mode=raw", KVANT_ERROR_CONFLICT, "scale_mode", "no codebook");
    refused(64, "mode=prod bits=1 codebook=sphere", KVANT_ERROR_CONFLICT, "codebook", "no codebook");
    refused(1, "codebook=sphere", KVANT_ERROR_CONFLICT, "codebook", "at least 2");
    refused(3, "outliers=quarter", KVANT_ERROR_GEOMETRY, "outliers", "too few");
    refused(1, "outliers=half", KVANT_ERROR_GEOMETRY, "outliers", "too few");
    refused(4, "outliers=quarter codebook=sphere", KVANT_ERROR_GEOMETRY, "outliers", "too few");
    refused(1025, "mode=prod sketch=gaussian", KVANT_ERROR_GEOMETRY, "sketch", "1024");
    refused(4097, "", KVANT_ERROR_GEOMETRY, "", "4096");
}

static void size_of(uint32_t tokens, uint32_t heads, uint32_t dim, const char *parameters, uint64_t payload,
                    uint64_t metadata, uint64_t size) {
    for (uint32_t side = 0; side < 2; side++) {
        kvant_layout layout;
        kvant_diag diag = {.struct_size = sizeof diag};
        assert_int_equal(kvant_test_codec_plan("turboquant", side, KVANT_DTYPE_F16, tokens, heads, dim,
                                               parameters, &layout, &diag),
                         KVANT_OK);
        assert_int_equal(layout.payload_bits, payload);
        assert_int_equal(layout.metadata_bits, metadata);
        assert_int_equal(layout.size_min, size);
        assert_int_equal(layout.size_steps, 0);
    }
}

static void sizes(void **state) {
    (void)state;
    const uint64_t row = 64 * 64; /* elements of a head */
    size_of(64, 3, 64, "bits=4", 3 * row * 4, 3 * 64 * 16, 3 * (2048 + 128));
    size_of(64, 3, 64, "bits=3", 3 * row * 3, 3 * 64 * 16, 3 * (1536 + 128));
    size_of(64, 3, 64, "bits=2", 3 * row * 2, 3 * 64 * 16, 3 * (1024 + 128));
    size_of(64, 3, 64, "bits=7", 3 * row * 7, 3 * 64 * 16, 3 * (3584 + 128));
    size_of(64, 3, 64, "bits=4 scale_type=f32", 3 * row * 4, 3 * 64 * 32, 3 * (2048 + 256));
    size_of(64, 3, 64, "bits=4 mode=prod", 3 * row * 4, 3 * 64 * 32, 3 * (2048 + 256));
    size_of(64, 3, 64, "bits=1 mode=prod", 3 * row, 3 * 64 * 16, 3 * (512 + 128));
    /* 2.5 and 3.5 bits: two scales a token, and a bit a channel in a line of its own. */
    size_of(64, 1, 128, "bits=2 outliers=half", 64 * 320, 64 * 32 + 128, 2560 + 256 + 64);
    size_of(64, 1, 128, "bits=3 outliers=half", 64 * 448, 64 * 32 + 128, 3584 + 256 + 64);
    size_of(64, 1, 128, "bits=2 outliers=quarter", 64 * 288, 64 * 32 + 128, 2304 + 256 + 64);
}

/* ---- Bytes --------------------------------------------------------------------------------------------- */

static float *rows(uint64_t seed) {
    float *x = malloc(COUNT * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < COUNT; i++)
        x[i] = (float)(kvant_test_normal(&seed) * (i % DIM == 17 ? 20 : 1) + (i % DIM == 70 ? 8 : 0.5));
    return x;
}

static const char *const variants[] = {
    "",
    "bits=3",
    "bits=5",
    "mode=prod",
    "scale_mode=raw",
    "scale_mode=unbiased",
    "scale_type=bf16",
    "scale_type=f32",
    "codebook=sphere",
    "rotation=double",
    "seed=0",
    "seed=43",
    "seed=9223372036854775807",
    "outliers=quarter",
    "outliers=half",
    "mode=prod sketch=gaussian",
    "mode=prod scale_mode=raw",
    "mode=prod seed=1",
    "mode=prod outliers=half",
    "mode=prod bits=1",
    "mode=prod bits=1 seed=7",
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

/* No two of them say the same, in bytes or in values. */
static void options_change_bytes(void **state) {
    (void)state;
    float *x = rows(3), *values[VARIANTS];
    kvant_test_codec *codecs[VARIANTS];
    for (size_t i = 0; i < VARIANTS; i++) {
        codecs[i] = open_best(i & 1, TOKENS, HEADS, DIM, variants[i]);
        kvant_test_codec_close(codecs[i]);
        codecs[i] = open_best(KVANT_SIDE_VALUE, TOKENS, HEADS, DIM, variants[i]);
        kvant_test_codec_encode(codecs[i], x, COUNT);
        values[i] = kvant_test_codec_decode(codecs[i], KVANT_DTYPE_F32);
        for (size_t j = 0; j < i; j++) {
            if (codecs[i]->size == codecs[j]->size &&
                memcmp(codecs[i]->extent, codecs[j]->extent, codecs[i]->size) == 0)
                fail_msg("\"%s\" and \"%s\": the same bytes", variants[i], variants[j]);
            if (memcmp(values[i], values[j], COUNT * sizeof(float)) == 0)
                fail_msg("\"%s\" and \"%s\": the same values", variants[i], variants[j]);
        }
    }
    for (size_t i = 0; i < VARIANTS; i++) {
        free(values[i]);
        kvant_test_codec_close(codecs[i]);
    }
    free(x);
}

/* Every instruction set gives the reference's bytes and values: widths, ragged blocks, awkward dims. */
static void same_on_every_isa(void **state) {
    (void)state;
    static const uint32_t dims[] = {1, 2, 3, 5, 16, 31, 48, 64, 80, 100, 128, 192, 257, 576};
    static const char *const parameters[] = {"bits=1",
                                             "bits=2",
                                             "bits=3",
                                             "bits=4",
                                             "bits=5",
                                             "bits=6",
                                             "bits=7",
                                             "bits=8",
                                             "mode=prod bits=4",
                                             "mode=prod bits=2 sketch=gaussian",
                                             "bits=3 outliers=quarter",
                                             "mode=prod bits=1 outliers=half"};
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    uint64_t seed = 17;
    for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++)
        for (size_t p = 0; p < sizeof parameters / sizeof parameters[0]; p++) {
            uint32_t dim = dims[d], tokens = 1 + (uint32_t)(kvant_test_random(&seed) % 90),
                     side = (d + p) & 1;
            size_t count = (size_t)tokens * dim;
            if (dim < 4 && strstr(parameters[p], "outliers") != NULL) continue;
            float *x = malloc(count * sizeof *x), *want = NULL;
            kvant_test_codec *reference = NULL;
            for (size_t i = 0; i < count; i++) x[i] = (float)kvant_test_normal(&seed);
            for (uint32_t k = 0; k < isa_count; k++) {
                kvant_test_codec *codec = kvant_test_codec_open("turboquant", side, KVANT_DTYPE_F32, tokens,
                                                                1, dim, isas[k], parameters[p]);
                kvant_test_codec_encode(codec, x, count);
                float *got = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
                if (reference == NULL) {
                    reference = codec;
                    want = got;
                    continue;
                }
                kvant_assert_bytes(codec->extent, reference->extent, reference->size);
                kvant_assert_bytes(got, want, count * sizeof *got);
                free(got);
                kvant_test_codec_close(codec);
            }
            kvant_test_codec_close(reference);
            free(want);
            free(x);
        }
}

/* ---- Tables -------------------------------------------------------------------------------------------- */

/* x -> R x, in double, as the struct says. */
static void rotate(const turboquant_rotation *r, double *x) {
    double swap[640];
    for (uint32_t round = 0; round < r->rounds; round++) {
        for (uint32_t i = 0; i < r->dim; i++)
            swap[i] = x[r->reorders && round > 0 ? r->order[round * r->dim + i] : i] *
                      (double)r->weights[round * r->dim + i];
        for (uint32_t from = 0, chunk = 512; chunk > 0; chunk /= 2) {
            if ((r->dim & chunk) == 0) continue;
            for (uint32_t i = 0; i < chunk; i++) {
                x[from + i] = 0;
                for (uint32_t j = 0; j < chunk; j++)
                    x[from + i] += (__builtin_parity(i & j) ? -1 : 1) * swap[from + j];
            }
            from += chunk;
        }
    }
}

/* Columns of length 1, at right angles; no column of a reordered rotation keeps to a few coordinates. */
static void rotations_are_orthogonal(void **state) {
    (void)state;
    static const uint32_t dims[] = {1, 2, 3, 6, 7, 24, 33, 64, 80, 96, 112, 192, 320};
    static const char *const kinds[] = {"mode=prod", "mode=prod rotation=double"};
    static double columns[320][640];
    for (size_t d = 0; d < 2 * sizeof dims / sizeof dims[0]; d++) {
        uint32_t n = dims[d / 2];
        kvant_test_codec *codec = open_best(0, 1, 1, n, kinds[d % 2]);
        const turboquant_tables *t = &((const turboquant_state *)codec->state)->tables[0];
        for (int sketch = 0; sketch < 2; sketch++) {
            const turboquant_rotation *r = sketch ? &t->sketch : &t->rotation;
            for (uint32_t i = 0; i < n; i++) {
                double largest = 0;
                memset(columns[i], 0, sizeof columns[i]);
                columns[i][i] = 1;
                rotate(r, columns[i]);
                for (uint32_t j = 0; j < n; j++) largest = fmax(largest, fabs(columns[i][j]));
                assert_true(n < 24 || largest < 0.7);
                for (uint32_t k = 0; k <= i; k++) {
                    double dot = 0;
                    for (uint32_t j = 0; j < n; j++) dot += columns[i][j] * columns[k][j];
                    kvant_assert_close(dot, i == k, 1e-6);
                }
            }
        }
        if (n >= 24) assert_true(memcmp(t->rotation.weights, t->sketch.weights, n * sizeof(float)) != 0);
        kvant_test_codec_close(codec);
    }
}

/* ---- Edges --------------------------------------------------------------------------------------------- */

/* A zero row decodes to zeros and takes the upper of the two middle codes, whatever the signs of its zeros;
 * so does a coordinate that is 0 in a row that is not. */
static void zeros_and_ties(void **state) {
    (void)state;
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    for (uint32_t k = 0; k < isa_count * 8; k++) {
        uint32_t bits = k % 8 + 1;
        float x[3 * 64] = {0};
        char text[16];
        kvant_array array;
        for (size_t i = 64; i < 128; i += 2) x[i] = -0.0f;
        x[128] = 5; /* two equal channels: half of the coordinates cancel */
        x[129] = 5;
        snprintf(text, sizeof text, "bits=%u", bits);
        kvant_test_codec *codec =
            kvant_test_codec_open("turboquant", k & 1, KVANT_DTYPE_F32, 3, 1, 64, isas[k / 8], text);
        kvant_test_codec_encode(codec, x, 3 * 64);
        uint8_t *codes = kvant_test_codec_inspect(codec, "codes", &array);
        float *back = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
        uint32_t middle = 0;
        for (size_t i = 0; i < 128; i++) {
            assert_int_equal(codes[i], 1 << (bits - 1));
            assert_true(back[i] == 0);
        }
        for (size_t i = 128; i < 192; i++) middle += codes[i] == 1 << (bits - 1);
        assert_true(middle >= 32);
        free(codes);
        free(back);
        kvant_test_codec_close(codec);
    }
}

/* Rows of 2^k times the same numbers have the same codes, and scales 2^k as large, as far as types reach. */
static void ends_of_the_range(void **state) {
    (void)state;
    static const char *const parameters[] = {"bits=3 scale_type=f32", "bits=4 scale_type=bf16",
                                             "bits=3 mode=prod scale_type=f32",
                                             "bits=8 scale_type=f32 scale_mode=unbiased"};
    static const int exponents[] = {-120, -60, -3, 0, 9, 60, 120};
    enum { N = 80 };
    for (size_t p = 0; p < 4; p++) {
        uint8_t first[N];
        for (size_t e = 0; e < sizeof exponents / sizeof exponents[0]; e++) {
            float x[N];
            uint64_t seed = 4;
            kvant_array array;
            for (size_t i = 0; i < N; i++) x[i] = ldexpf((float)kvant_test_normal(&seed), exponents[e]);
            kvant_test_codec *codec = open_best(p & 1, 1, 1, N, parameters[p]);
            kvant_test_codec_encode(codec, x, N);
            uint8_t *codes = kvant_test_codec_inspect(codec, "codes", &array);
            float *back = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
            if (e == 0) memcpy(first, codes, N);
            kvant_assert_bytes(codes, first, N);
            assert_int_equal(codec->saturated, 0);
            double error = 0, length = 0;
            for (size_t i = 0; i < N; i++) {
                double a = ldexp((double)x[i], -exponents[e]), b = ldexp((double)back[i], -exponents[e]);
                error += (a - b) * (a - b);
                length += a * a;
            }
            assert_true(error > 0 && error < 0.2 * length);
            free(codes);
            free(back);
            kvant_test_codec_close(codec);
        }
    }
}

static void saturation(void **state) {
    (void)state;
    enum { N = 64 };
    float x[2 * N];
    uint64_t seed = 12;
    for (size_t i = 0; i < N; i++) {
        x[i] = (float)(kvant_test_normal(&seed) * 1e38); /* squares overflow, scales only in halves */
        x[N + i] = i % 2 ? 1e-45f : -3e-44f;
    }
    static const char *const types[] = {"scale_type=f16", "scale_type=bf16", "scale_type=f32"};
    for (size_t t = 0; t < 3; t++)
        for (uint32_t prod = 0; prod < 2; prod++) {
            char text[64];
            snprintf(text, sizeof text, "%s mode=%s", types[t], prod ? "prod" : "mse");
            kvant_test_codec *codec = open_best(prod, 2, 1, N, text);
            kvant_test_codec_encode(codec, x, 2 * N);
            float *back = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
            for (size_t i = 0; i < 2 * N; i++) assert_true(isfinite(back[i]));
            assert_int_equal(codec->saturated, t == 0 ? 1 + prod : 0);
            double error = 0, length = 0;
            for (size_t i = 0; i < N; i++) {
                double a = (double)x[i] / 1e38, b = (double)back[i] / 1e38;
                error += (a - b) * (a - b);
                length += a * a;
            }
            assert_true(t == 0 ? error > 0.9 * length : error < (prod ? 0.05 : 0.02) * length);
            free(back);
            kvant_test_codec_close(codec);
        }
    /* All in one coordinate: whatever is stored, what comes back is finite. */
    kvant_test_codec *codec = open_best(0, 1, 1, N, "bits=1 scale_type=f32 scale_mode=unbiased");
    const turboquant_state *s = codec->state;
    for (size_t i = 0; i < N; i++) x[i] = copysignf(3.4e38f, s->tables[0].rotation.weights[i]);
    kvant_test_codec_encode(codec, x, N);
    float *back = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
    for (size_t i = 0; i < N; i++) assert_true(isfinite(back[i]));
    assert_int_equal(codec->saturated, 1);
    free(back);
    kvant_test_codec_close(codec);
}

/* Rows whose sums are exact: constant, alternating, signs alone, small integers. Where they cancel the
 * coordinate is 0, whatever 1 / sqrt(dim) is, and its code that of a tie; others keep to their side. */
static void sums_that_cancel(void **state) {
    (void)state;
    enum { ROWS = 4, MOST = 512 };
    static const uint32_t dims[] = {2, 8, 32, 64, 128, 512};
    static float x[ROWS * MOST];
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas), cancelled = 0;
    uint64_t seed = 31;
    for (uint32_t k = 0; k < 2 * isa_count * 6; k++) {
        uint32_t n = dims[k % 6], bits = k % 6 + 1, half = 1u << (bits - 1);
        char text[48];
        kvant_array array;
        snprintf(text, sizeof text, "bits=%u seed=%u", bits, 100 + k);
        for (uint32_t i = 0; i < n; i++) {
            x[i] = 1.5f;
            x[n + i] = i % 2 ? -0.8125f : 0.8125f;
            x[2 * n + i] = kvant_test_normal(&seed) < 0 ? -3e4f : 3e4f;
            x[3 * n + i] = (float)(int)(2 * kvant_test_normal(&seed));
        }
        kvant_test_codec *codec =
            kvant_test_codec_open("turboquant", k / 6 % 2, KVANT_DTYPE_F32, ROWS, 1, n, isas[k / 12], text);
        const float *weights = ((const turboquant_state *)codec->state)->tables[0].rotation.weights;
        kvant_test_codec_encode(codec, x, ROWS * n);
        uint8_t *codes = kvant_test_codec_inspect(codec, "codes", &array);
        for (uint32_t i = 0; i < ROWS * n; i++) {
            double sum = 0;
            for (uint32_t j = 0; j < n; j++)
                sum += copysign(1, (double)weights[j]) * (double)x[i / n * n + j] *
                       (__builtin_parity(i % n & j) ? -1 : 1);
            if (sum < 0)
                assert_true(codes[i] < half);
            else if (sum > 0)
                assert_true(codes[i] >= half);
            else
                assert_int_equal(codes[i], half);
            cancelled += sum == 0;
        }
        free(codes);
        kvant_test_codec_close(codec);
    }
    assert_true(cancelled > 200);
}

/* The channels of most energy, a tie to the lower one. */
static void outlier_choice(void **state) {
    (void)state;
    float *x = rows(9);
    kvant_array array;
    for (size_t i = 0; i < COUNT; i++) {
        size_t c = i % DIM, h = i / DIM % HEADS;
        x[i] = (c * 7 + h) % DIM < 20 ? 3.0f : (c * 7 + h) % DIM < 30 ? -2.0f : 1.0f; /* 20, then 10 */
    }
    kvant_test_codec *codec = open_best(KVANT_SIDE_KEY, TOKENS, HEADS, DIM, "bits=2 outliers=quarter");
    kvant_test_codec_encode(codec, x, COUNT);
    uint8_t *outlier = kvant_test_codec_inspect(codec, "outlier", &array);
    assert_int_equal(array.bytes, HEADS * DIM);
    for (size_t h = 0; h < HEADS; h++)
        for (size_t c = 0, ties = 0; c < DIM; c++) {
            size_t k = (c * 7 + h) % DIM;
            bool tied = k >= 20 && k < 30;
            assert_int_equal(outlier[h * DIM + c], k < 20 || (tied && ties < DIM / 4 - 20));
            ties += tied;
        }
    free(outlier);
    free(x);
    kvant_test_codec_close(codec);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(refusals),
                                              cmocka_unit_test(sizes),
                                              cmocka_unit_test(options_change_bytes),
                                              cmocka_unit_test(same_on_every_isa),
                                              cmocka_unit_test(rotations_are_orthogonal),
                                              cmocka_unit_test(zeros_and_ties),
                                              cmocka_unit_test(sums_that_cancel),
                                              cmocka_unit_test(ends_of_the_range),
                                              cmocka_unit_test(saturation),
                                              cmocka_unit_test(outlier_choice)};
    return kvant_run_tests(tests, argc, argv);
}
