/* Attention of the hack codec: the integer path is the affine expansion of what it multiplies, at every
 * instruction set bit for bit; against decode-then-multiply it stays within the tolerance that plan states;
 * runs, rows, heads and live ranges do not change a number. */
#include "support/test.h"
#include "support/test_attend.h"

#include <hack/hack_attend.h>
#include <hack/hack_identity.h>
#include <kvant/kvant.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXTENTS = 2 };

typedef struct setting {
    uint32_t side, bits, partition, tokens, heads, dim, rows;
    const char *more; /* parameters */
} setting;

/* Shapes: head dims with one and several partitions of channels, odd ones, blocks of several partitions and
 * of several matrices, rows that fill a tile and that do not. */
static const setting settings[] = {
    {0, 2, 64, 64, 2, 128, 1, ""},
    {0, 2, 32, 64, 1, 64, 4, "meta=f16"},
    {0, 2, 64, 128, 2, 80, 3, ""},
    {0, 4, 64, 64, 1, 96, 5, ""},
    {0, 8, 32, 64, 2, 64, 7, ""},
    {0, 2, 128, 128, 1, 72, 2, "meta=f32"},
    {0, 4, 48, 96, 3, 40, 1, ""},
    {0, 8, 16, 16, 1, 1, 9, ""},
    {0, 2, 64, 64, 2, 128, 4, "axes=paper meta=f16"},
    {0, 4, 32, 96, 1, 96, 3, "axes=paper"},
    {0, 8, 64, 64, 1, 46, 2, "axes=paper meta=f32"},
    {0, 2, 256, 256, 1, 256, 2, "rounding=stochastic seed=3"},
    {1, 2, 64, 64, 2, 128, 1, ""},
    {1, 2, 32, 64, 1, 64, 4, "meta=f16"},
    {1, 2, 64, 128, 2, 80, 3, ""},
    {1, 4, 64, 64, 1, 96, 5, ""},
    {1, 8, 32, 64, 2, 64, 7, ""},
    {1, 2, 128, 256, 1, 72, 2, "meta=f32"},
    {1, 4, 48, 144, 3, 40, 1, ""},
    {1, 8, 16, 16, 1, 1, 9, ""},
    {1, 2, 96, 192, 1, 33, 6, ""},
    {1, 2, 64, 64, 2, 128, 4, "axes=paper meta=f16"},
    {1, 4, 32, 96, 1, 96, 3, "axes=paper"},
    {1, 8, 64, 192, 1, 46, 2, "axes=paper meta=f32"},
    {1, 2, 48, 96, 2, 48, 4, "axes=paper rounding=stochastic"},
    {0, 2, 1024, 1024, 1, 512, 4, ""},
    {1, 2, 1024, 1024, 1, 128, 4, ""},
    {1, 2, 256, 256, 1, 128, 4, ""},
    {1, 2, 4096, 4096, 1, 16, 4, ""},
    {1, 2, 1024, 1024, 1, 128, 4, "axes=paper"},
    {0, 2, 64, 64, 1, 128, 4, "flat=one"},
    {1, 2, 64, 64, 1, 128, 4, "flat=one"},
    {1, 8, 64, 64, 1, 128, 4, "flat=one"},
    {0, 8, 64, 64, 1, 128, 4, "flat=one"},
};

enum { SETTINGS = sizeof settings / sizeof settings[0] };

/* ---- Data ---------------------------------------------------------------------------------------------- */

/* Families of rows: what a range or a sum of codes can suffer from. */
enum { NORMAL, OUTLIER, OFFSET, POSITIVE, SPREAD, CONSTANT, SPARSE, FAMILIES };

static float element(uint32_t family, uint32_t t, uint32_t c, uint64_t *seed) {
    double x = kvant_test_normal(seed);
    switch (family) {
    case OUTLIER:
        x *= c % 32 == 5 ? 20 : 1;
        break;
    case OFFSET:
        x += c % 32 == 5 ? 8 : t % 16 == 3 ? -4 : 0;
        break;
    case POSITIVE:
        x = 1 + fabs(x);
        break;
    case SPREAD:
        x = ldexp(x, (int)(t * 7 % 13) - 6 + (c % 16 == 3 ? 3 : 0));
        break;
    case CONSTANT:
        x = t % 8 == 1 || c % 16 == 2 ? 1.0 / 3 : 0.01 * x;
        break;
    case SPARSE:
        x = t % 16 == 5 || c % 32 == 7 ? x : 0;
        break;
    default:
        break;
    }
    return (float)x;
}

/* Queries, and weights like those of a softmax: mild, peaked, flat, some of them hidden. */
static float operand(uint32_t side, uint32_t row, uint32_t i, uint64_t *seed) {
    double x = kvant_test_normal(seed);
    if (side == KVANT_SIDE_KEY)
        return (float)(row % 3 == 1 && i % 64 == 9 ? 12 * x : row % 3 == 2 ? exp(x) : x);
    if (row % 4 == 2 && i % 5 == 1) return 0;
    double y = exp((row % 4 == 1 ? 3 : row % 4 == 3 ? 0.3 : 1.5) * x) / exp(6);
    return (float)(y < 1 ? y : 1);
}

/* ---- A codec with two extents of different rows -------------------------------------------------------- */

typedef struct bench {
    const setting *s;
    kvant_test_codec *codec;
    kvant_extent extents[EXTENTS];
    float *decoded[EXTENTS]; /* [tokens, heads, dim] */
    uint8_t *codes[EXTENTS];
    float *input; /* [heads * rows, dim], or [heads * rows, EXTENTS * tokens] */
} bench;

static size_t input_width(const setting *s) {
    return s->side == KVANT_SIDE_KEY ? s->dim : (size_t)EXTENTS * s->tokens;
}

static size_t result_width(const setting *s) {
    return s->side == KVANT_SIDE_KEY ? (size_t)EXTENTS * s->tokens : s->dim;
}

static void bench_open(bench *b, const setting *s, uint32_t isa, uint32_t family, uint64_t seed) {
    char parameters[128];
    kvant_array array;
    size_t count = (size_t)s->tokens * s->heads * s->dim;
    float *rows = malloc(count * sizeof *rows);
    assert_non_null(rows);
    (void)snprintf(parameters, sizeof parameters, "bits=%u partition=%u %s", s->bits, s->partition, s->more);
    *b = (bench){.s = s};
    b->codec =
        kvant_test_codec_open("hack", s->side, KVANT_DTYPE_F32, s->tokens, s->heads, s->dim, isa, parameters);
    for (uint32_t e = 0; e < EXTENTS; e++) {
        for (size_t i = 0; i < count; i++)
            rows[i] = element(e == 0 ? family : (uint32_t)NORMAL, (uint32_t)(i / s->dim / s->heads),
                              (uint32_t)(i % s->dim), &seed);
        kvant_test_codec_encode(b->codec, rows, count);
        b->extents[e] = kvant_test_extent_copy(b->codec);
        b->decoded[e] = kvant_test_codec_decode(b->codec, KVANT_DTYPE_F32);
        b->codes[e] = kvant_test_codec_inspect(b->codec, "codes", &array);
    }
    free(rows);
    size_t all = (size_t)s->heads * s->rows;
    b->input = malloc(all * input_width(s) * sizeof *b->input);
    assert_non_null(b->input);
    for (size_t i = 0; i < all * input_width(s); i++)
        b->input[i] = operand(s->side, (uint32_t)(i / input_width(s)), (uint32_t)(i % input_width(s)), &seed);
}

static void bench_close(bench *b) {
    for (uint32_t e = 0; e < EXTENTS; e++) {
        kvant_test_extent_free(&b->extents[e]);
        free(b->decoded[e]);
        free(b->codes[e]);
    }
    free(b->input);
    kvant_test_codec_close(b->codec);
}

/* Logits or outputs over NaN. */
static float *attend(bench *b) {
    const setting *s = b->s;
    size_t count = (size_t)s->heads * s->rows * result_width(s);
    float *out = malloc(count * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < count; i++) out[i] = NAN;
    kvant_test_group group = {b->extents, EXTENTS, 0, s->heads, s->rows};
    if (s->side == KVANT_SIDE_KEY)
        kvant_test_score(b->codec, &group, b->input, out);
    else
        kvant_test_mix(b->codec, &group, b->input, out);
    return out;
}

static float decoded_at(const bench *b, uint32_t e, uint32_t t, uint32_t h, uint32_t c) {
    return b->decoded[e][((size_t)t * b->s->heads + h) * b->s->dim + c];
}

static bool lives(const bench *b, uint32_t e, uint32_t t) {
    return t >= b->extents[e].live_first && t < b->extents[e].live_first + b->extents[e].live_count;
}

/* ---- What it must be ----------------------------------------------------------------------------------- */

/* Result `i` of a row by decode-then-multiply in double, and of absolute products. */
static double multiply(const bench *b, size_t row, size_t i, double *absolute) {
    const setting *s = b->s;
    const float *in = b->input + row * input_width(s);
    uint32_t h = (uint32_t)(row / s->rows);
    double sum = 0;
    *absolute = 0;
    if (s->side == KVANT_SIDE_KEY) {
        for (uint32_t c = 0; c < s->dim; c++) {
            double p = (double)in[c] *
                       (double)decoded_at(b, (uint32_t)(i / s->tokens), (uint32_t)(i % s->tokens), h, c);
            sum += p;
            *absolute += fabs(p);
        }
        return sum;
    }
    for (uint32_t e = 0; e < EXTENTS; e++)
        for (uint32_t t = 0; t < s->tokens; t++) {
            if (!lives(b, e, t)) continue;
            double p = (double)in[e * s->tokens + t] * (double)decoded_at(b, e, t, h, (uint32_t)i);
            sum += p;
            *absolute += fabs(p);
        }
    return sum;
}

/* The largest error of a row over its sums of absolute products. */
static double worst_row(const bench *b, const float *out) {
    const setting *s = b->s;
    double worst = 0;
    for (size_t row = 0; row < (size_t)s->heads * s->rows; row++) {
        double error = 0, size = 0;
        for (size_t i = 0; i < result_width(s); i++) {
            double absolute, e = (double)out[row * result_width(s) + i] - multiply(b, row, i, &absolute);
            if (s->side == KVANT_SIDE_KEY && !lives(b, (uint32_t)(i / s->tokens), (uint32_t)(i % s->tokens)))
                continue;
            error += e * e;
            size += absolute * absolute;
        }
        double ratio = size > 0 ? sqrt(error / size) : sqrt(error);
        assert_true(isfinite(ratio));
        worst = ratio > worst ? ratio : worst;
    }
    return worst;
}

/* Keeps the measured errors of plan's tolerance in view: within it, and not far below it everywhere. */
static void within_tolerance(void **state) {
    (void)state;
    double most = 0;
    for (uint32_t i = 0; i < SETTINGS; i++)
        for (uint32_t family = 0; family < FAMILIES; family++) {
            bench b;
            bench_open(&b, &settings[i], kvant_isa(), family, family * 977 + i);
            float *out = attend(&b);
            double ratio = worst_row(&b, out), tolerance = b.codec->layout.attend_tolerance;
            if (!(ratio <= tolerance))
                fail_msg("setting %u, family %u: error %g, tolerance %g", i, family, ratio, tolerance);
            most = ratio / tolerance > most ? ratio / tolerance : most;
            free(out);
            bench_close(&b);
        }
    assert_true(most > 0.1);
}

/* ---- The identity -------------------------------------------------------------------------------------- */

/* Numbers of a partition as the codec inspects them. */
typedef struct stored {
    float *scale[EXTENTS], *min[EXTENTS];
} stored;

static void stored_open(const bench *b, stored *st) {
    kvant_array array;
    for (uint32_t e = 0; e < EXTENTS; e++) {
        memcpy(b->codec->extent, b->extents[e].bytes, b->codec->size);
        const char *names[2] = {"scale", "min"};
        for (uint32_t k = 0; k < 2; k++) {
            uint8_t *raw = kvant_test_codec_inspect(b->codec, names[k], &array);
            size_t bytes = kvant_element_bytes(array.dtype), count = array.bytes / bytes;
            float *x = malloc(count * sizeof *x);
            assert_non_null(x);
            for (size_t i = 0; i < count; i++) x[i] = kvant_load_element(raw + i * bytes, array.dtype);
            *(k == 0 ? &st->scale[e] : &st->min[e]) = x;
            free(raw);
        }
    }
}

static void stored_close(stored *st) {
    for (uint32_t e = 0; e < EXTENTS; e++) {
        free(st->scale[e]);
        free(st->min[e]);
    }
}

static bool per_channel(const setting *s) {
    return (s->side == KVANT_SIDE_KEY) == (strstr(s->more, "paper") == NULL);
}

static size_t group_at(const setting *s, uint32_t t, uint32_t h, uint32_t c) {
    uint32_t part = hack_part(s->partition, s->dim);
    if (per_channel(s)) return ((size_t)(t / s->partition) * s->heads + h) * s->dim + c;
    return ((size_t)t * s->heads + h) * (s->dim / part) + c / part;
}

/* x becomes what its 8-bit codes stand for. */
static void requantize(const float *x, uint32_t count, double *out) {
    float low = x[0], high = x[0];
    for (uint32_t i = 0; i < count; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    hack_operand o = hack_operand_fit(low, high);
    for (uint32_t i = 0; i < count; i++)
        out[i] = (double)o.scale * (double)hack_operand_code(o, x[i]) + (double)o.min;
}

/* Adds one product over a partition: operands a, at (t, c) or along the axis that is summed. */
static double expand(const bench *b, const stored *st, uint32_t e, uint32_t h, uint32_t t, uint32_t c,
                     uint32_t count, const float *a, double *absolute) {
    const setting *s = b->s;
    bool key = s->side == KVANT_SIDE_KEY, folded = per_channel(s) == key;
    float x[512];
    double quantized[512], sum = 0;
    assert_true(count <= 512);
    for (uint32_t i = 0; i < count; i++) {
        size_t g = group_at(s, key ? t : t + i, h, key ? c + i : c);
        x[i] = folded ? a[i] * st->scale[e][g] : a[i];
    }
    requantize(x, count, quantized);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t token = key ? t : t + i, channel = key ? c + i : c;
        size_t g = group_at(s, token, h, channel);
        double code = b->codes[e][((size_t)token * s->heads + h) * s->dim + channel];
        double min = (double)st->min[e][g];
        double term = quantized[i] * code * (folded ? 1 : (double)st->scale[e][g]);
        double rest = (folded ? (double)a[i] : quantized[i]) * min;
        sum += term + rest;
        *absolute += fabs(term) + fabs(rest);
    }
    return sum;
}

static double expand_result(const bench *b, const stored *st, size_t row, size_t i, double *absolute) {
    const setting *s = b->s;
    const float *in = b->input + row * input_width(s);
    uint32_t h = (uint32_t)(row / s->rows), part = hack_part(s->partition, s->dim);
    double sum = 0;
    *absolute = 0;
    if (s->side == KVANT_SIDE_KEY) {
        for (uint32_t c = 0; c < s->dim; c += part)
            sum += expand(b, st, (uint32_t)(i / s->tokens), h, (uint32_t)(i % s->tokens), c, part, in + c,
                          absolute);
        return sum;
    }
    for (uint32_t e = 0; e < EXTENTS; e++)
        for (uint32_t first = 0; first < s->tokens; first += s->partition) {
            hack_range live = hack_live(&b->extents[e], first, s->partition);
            if (live.from < live.to)
                sum += expand(b, st, e, h, live.from, (uint32_t)i, live.to - live.from,
                              in + e * s->tokens + live.from, absolute);
        }
    return sum;
}

/* Integers with corrections give what the affine expansion of codes gives, to the rounding of floats. */
static void check_identity(const bench *b, const float *out, const char *situation, uint32_t number) {
    const setting *s = b->s;
    /* A scale of 1 among small ones lets large floats cancel. */
    double unit = strstr(s->more, "flat=one") != NULL ? 1e-4 : 1e-5;
    stored st;
    stored_open(b, &st);
    for (size_t row = 0; row < (size_t)s->heads * s->rows; row++)
        for (size_t i = 0; i < result_width(s); i++) {
            if (s->side == KVANT_SIDE_KEY && !lives(b, (uint32_t)(i / s->tokens), (uint32_t)(i % s->tokens)))
                continue;
            double absolute, want = expand_result(b, &st, row, i, &absolute);
            double got = (double)out[row * result_width(s) + i];
            if (!(fabs(got - want) <= unit * absolute))
                fail_msg("setting %u, %s: row %zu, result %zu is %.9g, not %.9g (of %g)", number, situation,
                         row, i, got, want, absolute);
        }
    stored_close(&st);
}

static void is_the_identity(void **state) {
    (void)state;
    uint32_t isas[KVANT_TEST_ISA_MAX], count = kvant_test_isas(isas);
    for (uint32_t i = 0; i < SETTINGS; i++) {
        const setting *s = &settings[i];
        if (s->tokens > 256) continue;
        float *first = NULL;
        for (uint32_t k = 0; k < count; k++) {
            bench b;
            bench_open(&b, s, isas[k], i % FAMILIES, 31 + i);
            float *out = attend(&b);
            size_t bytes = (size_t)s->heads * s->rows * result_width(s) * sizeof *out;
            if (first == NULL)
                check_identity(&b, out, "all tokens", i);
            else
                kvant_assert_bytes(out, first, bytes); /* every level, the very bits */
            if (first == NULL)
                first = out;
            else
                free(out);
            bench_close(&b);
        }
        free(first);
    }
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

/* One row of one head alone. */
static void check_row_alone(bench *b, const float *all, uint32_t h, uint32_t r) {
    const setting *s = b->s;
    kvant_test_group group = {b->extents, EXTENTS, h, 1, 1};
    size_t row = (size_t)h * s->rows + r, width = result_width(s);
    float *out = malloc(width * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < width; i++) out[i] = NAN;
    if (s->side == KVANT_SIDE_KEY)
        kvant_test_score(b->codec, &group, b->input + row * input_width(s), out);
    else
        kvant_test_mix(b->codec, &group, b->input + row * input_width(s), out);
    kvant_assert_bytes(out, all + row * width, width * sizeof *out);
    free(out);
}

static void rows_and_heads_stand_alone(void **state) {
    (void)state;
    for (uint32_t i = 0; i < SETTINGS; i++) {
        if (settings[i].tokens > 256) continue;
        bench b;
        bench_open(&b, &settings[i], kvant_isa(), OUTLIER, 5 + i);
        float *all = attend(&b);
        for (uint32_t h = 0; h < settings[i].heads; h++)
            for (uint32_t r = 0; r < settings[i].rows; r++) check_row_alone(&b, all, h, r);
        free(all);
        bench_close(&b);
    }
}

/* Live ranges that cut partitions, lines and units; weights elsewhere are no numbers. */
static void live_ranges(void **state) {
    (void)state;
    uint32_t isas[KVANT_TEST_ISA_MAX], count = kvant_test_isas(isas);
    for (uint32_t i = 0; i < SETTINGS; i++) {
        const setting *s = &settings[i];
        if (s->tokens > 256) continue;
        const uint32_t ranges[][2] = {{0, s->tokens - 1}, {1, s->tokens - 1},     {s->tokens / 2 - 3, 5},
                                      {s->tokens - 1, 1}, {3, s->tokens / 2 + 2}, {0, 0}};
        for (size_t r = 0; r < sizeof ranges / sizeof ranges[0]; r++) {
            float *first = NULL;
            size_t bytes = 0;
            for (uint32_t k = 0; k < count; k++) {
                bench b;
                bench_open(&b, s, isas[k], (i + 3) % FAMILIES, 77 + i);
                b.extents[1].live_first = ranges[r][0];
                b.extents[1].live_count = ranges[r][1];
                for (size_t j = 0;
                     s->side == KVANT_SIDE_VALUE && j < (size_t)s->heads * s->rows * input_width(s); j++)
                    if (j % input_width(s) >= s->tokens && !lives(&b, 1, (uint32_t)(j % s->tokens)))
                        b.input[j] = NAN;
                float *out = attend(&b);
                bytes = (size_t)s->heads * s->rows * result_width(s) * sizeof *out;
                for (size_t j = 0; s->side == KVANT_SIDE_KEY && j < bytes / sizeof *out; j++) {
                    size_t at = j % result_width(s);
                    if (isnan(out[j]) == lives(&b, (uint32_t)(at / s->tokens), (uint32_t)(at % s->tokens)))
                        fail_msg("setting %u: logit %zu is wrong about the live range", i, j);
                }
                if (first == NULL) check_identity(&b, out, "some tokens", i);
                if (first != NULL) kvant_assert_bytes(out, first, bytes);
                if (first != NULL) free(out);
                if (first == NULL) first = out;
                bench_close(&b);
            }
            free(first);
        }
    }
}

/* A run is its extents one at a time, in order. */
static void runs(void **state) {
    (void)state;
    for (uint32_t i = 0; i < SETTINGS; i++) {
        const setting *s = &settings[i];
        if (s->tokens > 256 || s->side != KVANT_SIDE_KEY) continue;
        bench b;
        bench_open(&b, s, kvant_isa(), SPREAD, 11 + i);
        float *all = attend(&b);
        size_t rows = (size_t)s->heads * s->rows;
        float *one = malloc(rows * s->tokens * sizeof *one);
        assert_non_null(one);
        for (uint32_t e = 0; e < EXTENTS; e++) {
            kvant_test_group group = {&b.extents[e], 1, 0, s->heads, s->rows};
            kvant_test_score(b.codec, &group, b.input, one);
            for (size_t r = 0; r < rows; r++)
                kvant_assert_bytes(one + r * s->tokens, all + r * result_width(s) + e * s->tokens,
                                   s->tokens * sizeof *one);
        }
        free(one);
        free(all);
        bench_close(&b);
    }
}

/* The hand-made example: codes, sums and the four terms. */
static void by_hand(void **state) {
    (void)state;
    const float a[] = {0.5f, -1, 2, 0.25f}, x[] = {1, 0, -2, 0.4f};
    const uint32_t a_codes[] = {128, 0, 255, 106}, x_codes[] = {3, 2, 0, 2};
    hack_operand o = hack_operand_fit(-1, 2);
    uint64_t saturated = 0;
    hack_fit fit = hack_fit_range(KVANT_DTYPE_F32, 3, -2, 1, &saturated);
    kvant_assert_close(o.scale, 0.01176470588, 1e-9);
    assert_true(o.min == -1 && fit.scale == 1 && fit.min == -2 && saturated == 0);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(hack_operand_code(o, a[i]), a_codes[i]);
        assert_int_equal(hack_code(fit, 3, x[i], -1), x_codes[i]);
    }
    kvant_assert_close(hack_product(o, 489, fit.scale, fit.min, 7, 596, 4), -3.494117647, 2e-6);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(by_hand),
                                              cmocka_unit_test(is_the_identity),
                                              cmocka_unit_test(within_tolerance),
                                              cmocka_unit_test(live_ranges),
                                              cmocka_unit_test(runs),
                                              cmocka_unit_test(rows_and_heads_stand_alone)};
    return kvant_run_tests(tests, argc, argv);
}
