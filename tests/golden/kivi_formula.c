/* KIVI against its formula, computed here in double precision, on data that shows faults: outlier channels,
 * offsets, constant groups, numbers away from zero, short last groups, head dims that nothing divides; and
 * against the error that the formula has on N(0,1). Every instruction set of this machine. */
#include "support/test_codec.h"
#include "support/test.h"

#include <kvant/kit/half.h>

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NORMAL, OUTLIER, OFFSET, AWAY, CONSTANT, MIXED, KINDS };

typedef struct shape {
    uint32_t side, tokens, heads, dim, bits, group;
} shape;

static size_t count_of(const shape *s) {
    return (size_t)s->tokens * s->heads * s->dim;
}

static float sample(int kind, uint64_t *seed, uint32_t token, uint32_t channel) {
    double x = kvant_test_normal(seed);
    switch (kind) {
    case OUTLIER:
        return (float)(channel % 16 == 3 ? 20 * x : x);
    case OFFSET:
        return (float)(channel % 16 == 5 ? x + 8 : x);
    case AWAY:
        return (float)(2 + tanh(x)); /* within [1, 3]: a lane taken for 0 would be the minimum */
    case CONSTANT:
        return token / 32 % 2 == 0 ? -3.25f : 9.0f;
    case MIXED:
        return (float)(channel % 8 == 1   ? 20 * x
                       : channel % 8 == 2 ? x + 8
                       : channel % 8 == 3 ? x / 16 - 3
                                          : x);
    default:
        return (float)x;
    }
}

static float *rows_of(const shape *s, int kind, uint64_t seed) {
    float *x = malloc(count_of(s) * sizeof *x);
    assert_non_null(x);
    for (uint32_t t = 0; t < s->tokens; t++)
        for (uint32_t h = 0; h < s->heads; h++)
            for (uint32_t c = 0; c < s->dim; c++)
                x[((size_t)t * s->heads + h) * s->dim + c] = sample(kind, &seed, t, c);
    return x;
}

/* The formula, in double: codes, and the error sum (x - x^)^2 of the same numbers. */
typedef struct formula {
    double *min, *scale; /* of each element's group */
    double error, energy;
} formula;

static void fit_group(const shape *s, const float *x, formula *f, uint32_t t0, uint32_t h, uint32_t c0) {
    uint32_t t1 = s->side == KVANT_SIDE_KEY ? t0 + s->group : t0 + 1;
    uint32_t c1 = s->side == KVANT_SIDE_KEY ? c0 + 1 : c0 + s->group;
    double low = INFINITY, high = -INFINITY, levels = (1 << s->bits) - 1;
    if (c1 > s->dim) c1 = s->dim;
    for (uint32_t t = t0; t < t1; t++)
        for (uint32_t c = c0; c < c1; c++) {
            double v = (double)x[((size_t)t * s->heads + h) * s->dim + c];
            low = fmin(low, v);
            high = fmax(high, v);
        }
    for (uint32_t t = t0; t < t1; t++)
        for (uint32_t c = c0; c < c1; c++) {
            size_t i = ((size_t)t * s->heads + h) * s->dim + c;
            f->min[i] = low;
            f->scale[i] = (high - low) / levels;
            double v = (double)x[i], code = high > low ? rint((v - low) / f->scale[i]) : 0;
            double e = v - (code * f->scale[i] + low);
            f->error += e * e;
            f->energy += v * v;
        }
}

static formula fit(const shape *s, const float *x) {
    formula f = {.min = malloc(count_of(s) * sizeof(double)), .scale = malloc(count_of(s) * sizeof(double))};
    uint32_t tokens = s->side == KVANT_SIDE_KEY ? s->group : 1,
             channels = s->side == KVANT_SIDE_KEY ? 1 : s->group;
    assert_true(f.min != NULL && f.scale != NULL);
    for (uint32_t h = 0; h < s->heads; h++)
        for (uint32_t t = 0; t < s->tokens; t += tokens)
            for (uint32_t c = 0; c < s->dim; c += channels) fit_group(s, x, &f, t, h, c);
    return f;
}

static kvant_test_codec *open_shape(const shape *s, uint32_t isa) {
    char parameters[64];
    (void)snprintf(parameters, sizeof parameters, "bits=%u group=%u", s->bits, s->group);
    return kvant_test_codec_open("kivi", s->side, KVANT_DTYPE_F32, s->tokens, s->heads, s->dim, isa,
                                 parameters);
}

/* ||x - x^||^2 / ||x||^2 of one round trip, and every element within half a scale of x. */
static double round_trip(const shape *s, const float *x, const formula *f, uint32_t isa) {
    kvant_test_codec *codec = open_shape(s, isa);
    kvant_array array;
    kvant_test_codec_encode(codec, x, count_of(s));
    float *y = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
    uint8_t *codes = kvant_test_codec_inspect(codec, "codes", &array);
    double error = 0, energy = 0;
    size_t other = 0;
    for (size_t i = 0; i < count_of(s); i++) {
        double e = (double)x[i] - (double)y[i],
               slack = 1e-6 * (fabs((double)x[i]) + fabs(f->min[i]) + f->scale[i]);
        if (!(fabs(e) <= f->scale[i] / 2 + slack))
            fail_msg("element %zu: %.9g became %.9g, scale %.9g", i, (double)x[i], (double)y[i], f->scale[i]);
        double code = f->scale[i] > 0 ? rint(((double)x[i] - f->min[i]) / f->scale[i]) : 0;
        if (fabs(code - codes[i]) > 1) fail_msg("element %zu: code %u, not %g", i, codes[i], code);
        other += code != codes[i];
        error += e * e;
        energy += (double)x[i] * (double)x[i];
    }
    assert_true(other <= count_of(s) / 1000 + 1); /* float32 against double: only next to a tie */
    free(codes);
    free(y);
    kvant_test_codec_close(codec);
    return energy > 0 ? error / energy : 0;
}

static void check_shape(const shape *s, int kind, uint64_t seed) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    float *x = rows_of(s, kind, seed);
    formula f = fit(s, x);
    for (uint32_t i = 0; i < isa_count; i++) {
        double nmse = round_trip(s, x, &f, isas[i]);
        if (f.error / f.energy > 1e-12)
            kvant_assert_within(nmse, f.error / f.energy, 0.02);
        else
            kvant_assert_close(nmse, 0, 1e-12);
    }
    free(f.min);
    free(f.scale);
    free(x);
}

static void every_width_on_every_kind_of_data(void **state) {
    static const uint32_t bits[] = {1, 2, 3, 4, 8};
    (void)state;
    for (int kind = 0; kind < KINDS; kind++)
        for (uint32_t b = 0; b < 5; b++)
            for (uint32_t side = 0; side < 2; side++)
                check_shape(&(shape){side, 64, 2, 64, bits[b], 32}, kind, 100 + (uint64_t)kind);
}

static void every_head_dim_and_group(void **state) {
    static const uint32_t dims[] = {1, 8, 46, 80, 96, 100, 112, 576};
    static const uint32_t key_groups[][2] = {
        {32, 64}, {5, 35}, {1, 3}, {48, 48}, {96, 288}}; /* group, tokens */
    static const uint32_t value_groups[][2] = {{32, 70}, {7, 5}, {1, 17}, {64, 129}, {4096, 3}};
    (void)state;
    for (uint32_t d = 0; d < sizeof dims / sizeof dims[0]; d++)
        for (uint32_t g = 0; g < 5; g++)
            for (uint32_t b = 0; b < 3; b++) {
                uint32_t bits = b == 0 ? 2 : b == 1 ? 3 : 4;
                check_shape(&(shape){KVANT_SIDE_KEY, key_groups[g][1], g % 2 ? 1 : 3, dims[d], bits,
                                     key_groups[g][0]},
                            d % 2 ? AWAY : MIXED, d * 10 + g);
                check_shape(&(shape){KVANT_SIDE_VALUE, value_groups[g][1], g % 2 ? 3 : 1, dims[d], bits,
                                     value_groups[g][0]},
                            d % 2 ? MIXED : AWAY, d * 10 + g);
            }
}

/* Published error of the rule on N(0,1): it depends on bits and group alone. */
static void error_on_normal_data(void **state) {
    static const struct {
        uint32_t bits, group;
        double nmse;
    } rows[] = {{2, 32, .1544},  {2, 64, .2024},  {2, 128, .2507},
                {4, 32, .00611}, {4, 64, .00804}, {4, 128, .00994}};
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    (void)state;
    for (uint32_t side = 0; side < 2; side++)
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            shape s = {side, 512, 4, 128, rows[r].bits, rows[r].group};
            float *x = rows_of(&s, NORMAL, 7 + r);
            formula f = fit(&s, x);
            for (uint32_t i = 0; i < isa_count; i++)
                kvant_assert_within(round_trip(&s, x, &f, isas[i]), rows[r].nmse, 0.02);
            free(f.min);
            free(f.scale);
            free(x);
        }
}

/* x_t = t/8 - 2, t = 0 ... 31, in float16: the worked example of the golden data. */
static void ramp(void **state) {
    static const uint32_t words2[] = {0x55555000u, 0xFFFAAAAAu};
    static const uint32_t words4[] = {0x33221100u, 0x77665544u, 0xBBAA9988u, 0xFFEEDDCCu};
    uint16_t x[32];
    (void)state;
    for (int t = 0; t < 32; t++) x[t] = kvant_f32_to_f16((float)t / 8 - 2);
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t bits = 2; bits <= 4; bits += 2) {
            bool key = side == KVANT_SIDE_KEY;
            kvant_array array;
            kvant_test_codec *codec =
                kvant_test_codec_open("kivi", side, KVANT_DTYPE_F16, key ? 32 : 1, 1, key ? 1 : 32,
                                      KVANT_ISA_SCALAR, bits == 2 ? "bits=2 group=32" : "bits=4 group=32");
            kvant_test_codec_encode(codec, x, 32);
            uint16_t *scale = kvant_test_codec_inspect(codec, "scale", &array);
            uint16_t *min = kvant_test_codec_inspect(codec, "min", &array);
            uint8_t *codes = kvant_test_codec_inspect(codec, "codes", &array);
            assert_int_equal(scale[0], bits == 2 ? 0x3D2B : 0x3422);
            assert_int_equal(min[0], 0xC000);
            for (uint32_t w = 0; w < bits; w++) {
                uint32_t word = 0;
                for (uint32_t j = 0; j < 32 / bits; j++)
                    word |= (uint32_t)codes[w * (32 / bits) + j] << bits * j;
                assert_int_equal(word, bits == 2 ? words2[w] : words4[w]);
            }
            free(codes);
            free(min);
            free(scale);
            kvant_test_codec_close(codec);
        }
}

/* What is stored in another type than the rows' is rounded once more, and codes are found from what is
 * stored. */
static void metadata_types(void **state) {
    static const char *const metas[] = {"f16", "bf16", "f32"};
    static const uint32_t dtypes[] = {KVANT_DTYPE_F16, KVANT_DTYPE_BF16, KVANT_DTYPE_F32};
    shape s = {KVANT_SIDE_VALUE, 64, 2, 96, 4, 32};
    float *x = rows_of(&s, MIXED, 3);
    formula f = fit(&s, x);
    (void)state;
    for (uint32_t m = 0; m < 3; m++) {
        char parameters[64];
        kvant_array array;
        (void)snprintf(parameters, sizeof parameters, "bits=4 group=32 meta=%s", metas[m]);
        kvant_test_codec *codec = kvant_test_codec_open("kivi", s.side, KVANT_DTYPE_F32, s.tokens, s.heads,
                                                        s.dim, KVANT_ISA_SCALAR, parameters);
        kvant_test_codec_encode(codec, x, count_of(&s));
        assert_int_equal(codec->saturated, 0);
        char *scale = kvant_test_codec_inspect(codec, "scale", &array);
        assert_int_equal(array.dtype, dtypes[m]);
        char *min = kvant_test_codec_inspect(codec, "min", &array);
        uint8_t *codes = kvant_test_codec_inspect(codec, "codes", &array);
        float *y = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
        for (size_t i = 0; i < count_of(&s); i++) {
            size_t g = i / 96 * 3 + i % 96 / 32, e = m == 2 ? 4 : 2;
            uint16_t half[2];
            float sc, mn, want_scale = (float)f.scale[i], want_min = (float)f.min[i];
            memcpy(half, scale + g * e, 2), memcpy(half + 1, min + g * e, 2);
            if (m == 0) {
                sc = kvant_f16_to_f32(half[0]), mn = kvant_f16_to_f32(half[1]);
                want_min = kvant_round_f16(want_min);
            } else if (m == 1) {
                sc = kvant_bf16_to_f32(half[0]), mn = kvant_bf16_to_f32(half[1]);
                want_min = kvant_round_bf16(want_min);
            } else {
                memcpy(&sc, scale + g * e, 4), memcpy(&mn, min + g * e, 4);
            }
            assert_true(mn == want_min);
            kvant_assert_close(sc, want_scale,
                               fabs((double)want_scale) * (m == 0   ? 0x1p-11
                                                           : m == 1 ? 0x1p-8
                                                                    : 1e-6));
            double code = rint(fmin(fmax(((double)x[i] - (double)mn) / (double)sc, 0), 15));
            kvant_assert_close(codes[i], code, 1);
            assert_true(y[i] == (float)codes[i] * sc + mn);
        }
        free(y);
        free(codes);
        free(min);
        free(scale);
        kvant_test_codec_close(codec);
    }
    free(f.min);
    free(f.scale);
    free(x);
}

static void check_extreme(const float *x, uint32_t dtype, const char *parameters, uint64_t saturated) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    uint16_t half[32];
    for (int i = 0; i < 32; i++)
        half[i] = dtype == KVANT_DTYPE_F16 ? kvant_f32_to_f16(x[i]) : kvant_f32_to_bf16(x[i]);
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t i = 0; i < isa_count; i++) {
            bool key = side == KVANT_SIDE_KEY;
            kvant_test_codec *codec = kvant_test_codec_open("kivi", side, dtype, key ? 32 : 1, 1,
                                                            key ? 1 : 32, isas[i], parameters);
            kvant_test_codec_encode(codec, dtype == KVANT_DTYPE_F32 ? (const void *)x : half, 32);
            if (codec->saturated != saturated)
                fail_msg("%s: dtype %u, side %u, isa %u: %u saturated, not %u", parameters, dtype, side,
                         isas[i], (unsigned)codec->saturated, (unsigned)saturated);
            float *y = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
            uint16_t *f16 = kvant_test_codec_decode(codec, KVANT_DTYPE_F16);
            uint16_t *bf16 = kvant_test_codec_decode(codec, KVANT_DTYPE_BF16);
            for (int k = 0; k < 32; k++) {
                double largest = dtype == KVANT_DTYPE_F16    ? 65504
                                 : dtype == KVANT_DTYPE_BF16 ? 0x1.fep127
                                                             : FLT_MAX;
                if (!(fabs((double)y[k]) <= largest))
                    fail_msg("%s: %g became %g", parameters, (double)x[k], (double)y[k]);
                double clamped =
                    fmin(fmax((double)y[k], -65504), 65504); /* beyond a type's range: its largest */
                assert_int_equal(f16[k], kvant_f32_to_f16((float)clamped));
                assert_true((bf16[k] & 0x7fff) < 0x7f80);
            }
            free(f16);
            free(bf16);
            free(y);
            kvant_test_codec_close(codec);
        }
}

/* Finite rows decode to finite numbers, also where scale, range or the rounded-up largest code leave the
 * type. */
static void extremes_stay_finite(void **state) {
    static const char *const widths[] = {"bits=1 group=32", "bits=2 group=32", "bits=3 group=32",
                                         "bits=4 group=32", "bits=8 group=32"};
    float x[32];
    (void)state;
    for (int w = 0; w < 5; w++) {
        for (int i = 0; i < 32; i++)
            x[i] = i % 2 ? 65504.0f : 0.0f; /* 65504/3 rounds up: 3 * 21840 is no half */
        check_extreme(x, KVANT_DTYPE_F16, widths[w], 0);
        for (int i = 0; i < 32; i++) x[i] = (i % 2 ? 65504.0f : -65504.0f) * (float)(i + 1) / 32;
        check_extreme(x, KVANT_DTYPE_F16, widths[w], w == 0 ? 1 : 0); /* 1 bit: the scale is the range */
        for (int i = 0; i < 32; i++) x[i] = (i % 2 ? 3.3e38f : -3.3e38f) * ((float)(i + 1) / 32);
        check_extreme(x, KVANT_DTYPE_F32, widths[w], w == 0 ? 1 : 0);
        check_extreme(x, KVANT_DTYPE_BF16, widths[w], w == 0 ? 1 : 0);
        for (int i = 0; i < 32; i++) x[i] = (float)i * 0x1p-149f;
        check_extreme(x, KVANT_DTYPE_F32, widths[w], 0);
        for (int i = 0; i < 32; i++) x[i] = (float)(i - 16) * 0x1p-24f;
        check_extreme(x, KVANT_DTYPE_F16, widths[w], 0);
    }
    for (int i = 0; i < 32; i++) x[i] = -1e6f + (float)i; /* the minimum does not fit f16 */
    check_extreme(x, KVANT_DTYPE_F32, "bits=4 group=32 meta=f16", 1);
    for (int i = 0; i < 32; i++) x[i] = i % 2 ? 1e9f : -1e9f; /* nor does the scale */
    check_extreme(x, KVANT_DTYPE_F32, "bits=4 group=32 meta=f16", 2);
    for (int i = 0; i < 32; i++)
        x[i] = i % 2 ? 3.3e38f : -3.3e38f; /* a scale beyond both types counts once */
    check_extreme(x, KVANT_DTYPE_F32, "bits=1 group=32 meta=f16", 2);
    for (int i = 0; i < 32; i++) x[i] = 65504.0f; /* as bf16 this is 65536 */
    check_extreme(x, KVANT_DTYPE_F16, "bits=4 group=32 meta=bf16", 0);
    for (int i = 0; i < 32; i++) x[i] = -3.4e38f; /* as bf16 this is infinity */
    check_extreme(x, KVANT_DTYPE_F32, "bits=4 group=32 meta=bf16", 1);
}

/* A group of one number, whatever it is, comes back exactly; a zero minimum is +0. */
static void constant_groups_are_exact(void **state) {
    static const float values[] = {9, -9, 65504, 1e-30f, 0, -0.0f, 0x1p-149f, -3.4028234e38f};
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    (void)state;
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t i = 0; i < isa_count; i++)
            for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
                float x[64 * 40];
                for (size_t k = 0; k < 64 * 40; k++) x[k] = values[v];
                kvant_test_codec *codec = kvant_test_codec_open("kivi", side, KVANT_DTYPE_F32, 64, 1, 40,
                                                                isas[i], "bits=2 group=32");
                kvant_test_codec_encode(codec, x, 64 * 40);
                float *y = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
                for (size_t k = 0; k < 64 * 40; k++)
                    assert_true(y[k] == values[v] && (values[v] != 0 || signbit(y[k]) == 0));
                free(y);
                kvant_test_codec_close(codec);
            }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(ramp),
        cmocka_unit_test(error_on_normal_data),
        cmocka_unit_test(every_width_on_every_kind_of_data),
        cmocka_unit_test(every_head_dim_and_group),
        cmocka_unit_test(metadata_types),
        cmocka_unit_test(extremes_stay_finite),
        cmocka_unit_test(constant_groups_are_exact),
    };
    return kvant_run_tests(tests, argc, argv);
}
