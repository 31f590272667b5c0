/* Blocks of nvfp4 written out by hand, and its error on numbers whose error is known: two-sided bands. */
#include "support/test.h"
#include "support/test_codec.h"

#include <kvant/kit/float4.h>
#include <kvant/kit/float8.h>
#include <kvant/kit/half.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Bytes --------------------------------------------------------------------------------------------- */

typedef struct example {
    const char *global;
    uint8_t scale;
    uint8_t bytes[8]; /* two codes each, the even channel low */
    float x[16];
} example;

#define RAMP                                                                                                 \
    { -2, -1.75f, -1.5f, -1.25f, -1, -0.75f, -0.5f, -0.25f, 0, 0.25f, 0.5f, 0.75f, 1, 1.25f, 1.5f, 1.75f }
#define RAMP_1000                                                                                            \
    { -8000, -7000, -6000, -5000, -4000, -3000, -2000, -1000, 0, 1000, 2000, 3000, 4000, 5000, 6000, 7000 }
#define TIES                                                                                                 \
    { 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5, 6, -0.25f, -0.75f, -1.25f, -1.75f, -2.5f, -3.5f, -5, -6 }
#define ALTERNATING(x)                                                                                       \
    { x, -x, x, -x, x, -x, x, -x, x, -x, x, -x, x, -x, x, -x }
#define EACH(x)                                                                                              \
    { x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x }
#define ONES_BUT(x)                                                                                          \
    { 1, 1, 1, x, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 }

static void examples(void **state) {
    const example all[] = {
        {"1", 0x2b, {0xff, 0xee, 0xcd, 0x9b, 0x10, 0x43, 0x65, 0x76}, RAMP},
        {"0.000744047621", 0x7e, {0xff, 0xee, 0xcd, 0xab, 0x20, 0x43, 0x65, 0x76}, RAMP}, /* 2/2688 */
        {"0.00446428591", 0x69, {0xff, 0xee, 0xcd, 0xab, 0x20, 0x43, 0x65, 0x76}, RAMP},  /* 2/448 */
        {"1", 0x38, {0x20, 0x42, 0x64, 0x76, 0xa8, 0xca, 0xec, 0xfe}, TIES},
        {"1", 0x00, {0}, EACH(0.0f)},
        {"1", 0x00, {0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88}, EACH(-0.0f)},
        {"1", 0x00, {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80}, ALTERNATING(6 * 0x1p-10f)},
        {"1",
         0x01,
         {0xd5, 0xd5, 0xd5, 0xd5, 0xd5, 0xd5, 0xd5, 0xd5},
         ALTERNATING(kvant_round_bf16(6.1f * 0x1p-10f))},
        {"1", 0x7e, {0xff, 0xff, 0xff, 0xce, 0x40, 0x76, 0x77, 0x77}, RAMP_1000},
        {"1", 0x7e, {0x00, 0x70, 0, 0, 0, 0, 0, 0}, ONES_BUT(INFINITY)},
        {"1", 0x23, {0x77, 0x07, 0x77, 0x77, 0x77, 0x77, 0x77, 0x77}, ONES_BUT(NAN)},
    };
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    (void)state;
    for (uint32_t k = 0; k < isa_count; k++)
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            char parameters[80];
            kvant_array array;
            (void)snprintf(parameters, sizeof parameters, "global_scale=parameter global_value=%s",
                           all[i].global);
            kvant_test_codec *codec = kvant_test_codec_open("nvfp4", KVANT_SIDE_KEY, KVANT_DTYPE_F32, 1, 1,
                                                            16, isas[k], parameters);
            kvant_test_codec_encode(codec, all[i].x, 16);
            uint8_t *codes = kvant_test_codec_inspect(codec, "codes", &array);
            uint8_t *scale = kvant_test_codec_inspect(codec, "scale", &array), packed[8];
            for (size_t b = 0; b < 8; b++) packed[b] = (uint8_t)(codes[2 * b] | codes[2 * b + 1] << 4);
            assert_int_equal(*scale, all[i].scale);
            kvant_assert_bytes(packed, all[i].bytes, sizeof packed);
            free(codes);
            free(scale);
            kvant_test_codec_close(codec);
        }
}

/* Largest magnitudes that lie exactly between two scales, for many global scales: a division finds the tie,
 * which goes to the even scale; a product with a rounded reciprocal misses some. */
static void ties_of_scales(void **state) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    (void)state;
    for (uint32_t k = 0; k < isa_count; k++)
        for (int n = 3; n < 400; n += 2)
            for (int up = 0; up < 2; up++) {
                char parameters[80];
                kvant_array array;
                const float global = (float)n / 64;
                float rows[16] = {[9] = -(up ? 1.1875f : 1.0625f) * 6 * global};
                (void)snprintf(parameters, sizeof parameters, "global_scale=parameter global_value=%.9g",
                               (double)global);
                kvant_test_codec *codec = kvant_test_codec_open("nvfp4", KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 1,
                                                                1, 16, isas[k], parameters);
                kvant_test_codec_encode(codec, rows, 16);
                uint8_t *scale = kvant_test_codec_inspect(codec, "scale", &array);
                assert_int_equal(*scale, up ? 0x3a : 0x38);
                free(scale);
                kvant_test_codec_close(codec);
            }
}

/* Every scale byte with every code decodes to the product, rounded once by the global scale. */
static void every_product(void **state) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    const float global = 0.37f;
    (void)state;
    for (uint32_t k = 0; k < isa_count; k++) {
        kvant_test_codec *codec = kvant_test_codec_open("nvfp4", KVANT_SIDE_KEY, KVANT_DTYPE_F32, 127, 1, 16,
                                                        isas[k], "global_scale=parameter global_value=0.37");
        static float rows[127 * 16];
        for (uint32_t t = 0; t < 127; t++)
            for (uint32_t c = 0; c < 16; c++) {
                float value = kvant_e2m1_to_f32((uint8_t)c) * kvant_e4m3_to_f32((uint8_t)t);
                rows[t * 16 + c] = value * global;
            }
        kvant_test_codec_encode(codec, rows, 127 * 16);
        float *decoded = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
        kvant_assert_bytes(decoded, rows, sizeof rows);
        free(decoded);
        kvant_test_codec_close(codec);
    }
}

/* ---- Error --------------------------------------------------------------------------------------------- */

/* Relative L2 norm of the error on `rows`, 128 channels. */
static double error_of(const char *parameters, const float *rows, uint32_t tokens, uint64_t *saturated) {
    size_t count = (size_t)tokens * 128;
    double wrong = 0, all = 0;
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    kvant_test_codec *codec = kvant_test_codec_open("nvfp4", KVANT_SIDE_VALUE, KVANT_DTYPE_F32, tokens, 1,
                                                    128, isas[isa_count - 1], parameters);
    kvant_test_codec_encode(codec, rows, count);
    float *decoded = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
    for (size_t i = 0; i < count; i++) {
        double d = (double)decoded[i] - (double)rows[i];
        wrong += d * d;
        all += (double)rows[i] * (double)rows[i];
    }
    if (saturated != NULL) *saturated = codec->saturated;
    free(decoded);
    kvant_test_codec_close(codec);
    return sqrt(wrong / all);
}

enum { TOKENS = 8192 };

static float *normal_rows(void) {
    uint64_t seed = 1;
    float *rows = malloc(TOKENS * 128 * sizeof *rows);
    assert_non_null(rows);
    for (size_t i = 0; i < TOKENS * 128; i++) rows[i] = kvant_round_bf16((float)kvant_test_normal(&seed));
    return rows;
}

static double decibels(double db) {
    return pow(10, -db / 20);
}

/* N(0, 1), 2^20 numbers in BF16: the published signal-to-noise ratios. */
static void gaussian(void **state) {
    float *rows = normal_rows();
    uint64_t saturated;
    (void)state;
    kvant_assert_within(error_of("", rows, TOKENS, &saturated), 0.0951, 0.02);
    assert_int_equal(saturated, 0);
    kvant_assert_within(error_of("amax_divisor=448", rows, TOKENS, NULL), 0.0951, 0.02);
    kvant_assert_within(error_of("four_over_six=mse amax_divisor=1536", rows, TOKENS, NULL), decibels(21.22),
                        0.01);
    kvant_assert_within(error_of("format=mxfp4 exponent=floor", rows, TOKENS, NULL), decibels(18.80), 0.01);
    kvant_assert_within(error_of("format=mxfp4 exponent=rceil", rows, TOKENS, NULL), decibels(18.76), 0.01);
    kvant_assert_within(error_of("format=mxfp4 exponent=even", rows, TOKENS, NULL), decibels(19.03), 0.01);
    free(rows);
}

/* Four channels twelve times as large: blocks of 16 with fine scales lose nothing, powers of two do. */
static void outlier_channels(void **state) {
    float *rows = normal_rows();
    (void)state;
    for (size_t t = 0; t < TOKENS; t++)
        for (size_t c = 5; c < 128; c += 32) rows[t * 128 + c] *= 12.0f;
    kvant_assert_within(error_of("", rows, TOKENS, NULL), decibels(20.64), 0.02);
    kvant_assert_within(error_of("four_over_six=mse amax_divisor=1536", rows, TOKENS, NULL), decibels(20.69),
                        0.02);
    kvant_assert_within(error_of("format=mxfp4 exponent=floor", rows, TOKENS, NULL), decibels(14.86), 0.03);
    free(rows);
}

/* A global scale of 1, what engines use without calibration: from about 2^-5 down scales have few bits, and
 * at 2^-11 everything is lost; above 2688 numbers are clipped. */
static void fixed_scale(void **state) {
    float *rows = normal_rows();
    double error[3];
    uint64_t saturated[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        float *scaled = malloc(TOKENS * 128 * sizeof *scaled);
        assert_non_null(scaled);
        for (size_t k = 0; k < TOKENS * 128; k++) scaled[k] = ldexpf(rows[k], i == 0 ? 0 : i == 1 ? -11 : 12);
        error[i] = error_of("global_scale=parameter", scaled, TOKENS, &saturated[i]);
        free(scaled);
    }
    kvant_assert_within(error[0], 0.0951, 0.02);
    assert_true(error[1] > 0.5);
    assert_true(error[2] > 0.3);
    assert_int_equal(saturated[0], 0);
    assert_true(saturated[2] > 0);
    free(rows);
}

/* ---- Ends of the range --------------------------------------------------------------------------------- */

static void ends_of_the_range(void **state) {
    static const char *const settings[] = {"",
                                           "amax_divisor=448",
                                           "four_over_six=mse",
                                           "format=mxfp4",
                                           "format=mxfp4 exponent=ceil",
                                           "format=mxfp4 exponent=rceil",
                                           "global_scale=parameter",
                                           "global_scale=parameter global_value=1e36"};
    static const float magnitudes[] = {FLT_MAX, 0x1p127f, 3e38f, FLT_MIN, 0x1p-149f, 0x1p-127f, 1e-30f};
    (void)state;
    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++)
        for (size_t m = 0; m < sizeof magnitudes / sizeof magnitudes[0]; m++) {
            float rows[3 * 32];
            for (size_t i = 0; i < 96; i++) rows[i] = (i % 2 == 0 ? 1.0f : -0.97f) * magnitudes[m];
            kvant_test_codec *codec = kvant_test_codec_open("nvfp4", KVANT_SIDE_KEY, KVANT_DTYPE_F32, 3, 1,
                                                            32, KVANT_ISA_SCALAR, settings[s]);
            kvant_test_codec_encode(codec, rows, 96);
            float *decoded = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
            for (size_t i = 0; i < 96; i++) {
                assert_true(isfinite(decoded[i]));
                if (decoded[i] != 0.0f) assert_int_equal(signbit(decoded[i]) != 0, signbit(rows[i]) != 0);
                /* With a scale of their own, large numbers stay what they are. */
                if (s < 6 && m < 3) kvant_assert_within(decoded[i], rows[i], 0.26);
            }
            free(decoded);
            kvant_test_codec_close(codec);
        }
}

/* One number beyond 464 * 6 times the global scale: its block's scale, and the elements that lie beyond. */
static void counts_what_saturates(void **state) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    (void)state;
    for (uint32_t k = 0; k < isa_count; k++) {
        float rows[48] = {[3] = 2784.0f, [17] = -2785.0f, [18] = 2600.0f, [40] = 4000.0f, [41] = -3500.0f};
        kvant_test_codec *codec = kvant_test_codec_open("nvfp4", KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 1, 1, 48,
                                                        isas[k], "global_scale=parameter");
        kvant_test_codec_encode(codec, rows, 48);
        /* 2784 = 6 * 464 is the last tie; 2785 / 448 rounds to 6; 4000 and 3500 would round to 8. */
        assert_int_equal(codec->saturated, 0 + 1 + 3);
        kvant_test_codec_close(codec);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(examples),          cmocka_unit_test(ties_of_scales),
        cmocka_unit_test(every_product),     cmocka_unit_test(gaussian),
        cmocka_unit_test(outlier_channels),  cmocka_unit_test(fixed_scale),
        cmocka_unit_test(ends_of_the_range), cmocka_unit_test(counts_what_saturates)};
    return kvant_run_tests(tests, argc, argv);
}
