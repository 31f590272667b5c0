/* The whole plane of plain quantization: every format, granularity, symmetry, type of scale and source of
 * scales, on both sides, against a quantizer in double precision that is written here from the formula
 * alone. Errors must agree both ways within 2 %, every instruction set must give the reference's bytes and
 * floats, and what is not legal must be refused by name. The rows of the literature's error table are
 * checked as numbers besides. */
#include "support/test_codec.h"
#include "support/test.h"

#include <kvant/kit/half.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 64, HEADS = 2, DIM = 100, GROUP = 32, COUNT = TOKENS * HEADS * DIM };

static const char *const formats[] = {"e4m3", "e5m2", "int8", "int4", "int3", "int2", "int1"};
static const uint32_t format_bits[] = {8, 8, 8, 4, 3, 2, 1};
static const char *const granularities[] = {"tensor", "head",           "channel",
                                            "token",  "group_channels", "group_tokens"};
static const char *const scales[] = {"f32", "f16", "bf16", "e8m0"};
enum { FORMATS = 7, GRANULARITIES = 6, SCALES = 4 };

typedef struct cell {
    uint32_t format, granularity, asymmetric, scale, fixed;
} cell;

/* ---- The quantizer in double precision ----------------------------------------------------------------- */

/* To the nearest number of `digits` binary digits, ties to even, not finer than 2^least, at most
 * `largest`. */
static double rounded(double x, int digits, int least, double largest) {
    int exponent;
    if (x == 0) return 0;
    (void)frexp(x, &exponent);
    int step = exponent - digits > least ? exponent - digits : least;
    double y = ldexp(nearbyint(ldexp(x, -step)), step);
    return y > largest ? largest : y < -largest ? -largest : y;
}

static double as_stored(double x, uint32_t scale, bool minimum) {
    switch (scale) {
    case 0:
        return (double)(float)x;
    case 1:
        return rounded(x, 11, -24, 65504);
    case 2:
        return rounded(x, 8, -133, 0x1.fep127);
    default:
        return minimum ? rounded(x, 8, -133, 0x1.fep127) : x <= 0x1p-127 ? 0 : exp2(ceil(log2(x)));
    }
}

static size_t index_of(uint32_t t, uint32_t h, uint32_t c) {
    return ((size_t)t * HEADS + h) * DIM + c;
}

/* Number of the group of an element. */
static size_t group_of(const cell *k, uint32_t t, uint32_t h, uint32_t c) {
    switch (k->granularity) {
    case 0:
        return 0;
    case 1:
        return h;
    case 2:
        return index_of(0, h, c);
    case 3:
        return (size_t)t * HEADS + h;
    case 4:
        return index_of(t, h, c / GROUP);
    default:
        return index_of(t / GROUP, h, c);
    }
}

typedef struct group {
    double low, high, magnitude, sum;
    uint32_t count;
} group;

static double quantized(const cell *k, const group *g, double fixed_scale, double fixed_min, double x) {
    uint32_t bits = format_bits[k->format];
    double steps = (double)((1 << bits) - 1), half = (double)(1 << (bits - 1));
    double scale = fixed_scale, low = fixed_min;
    bool flat = false;
    if (k->format < 2) {
        double largest = k->format == 0 ? 448 : 57344;
        if (!k->fixed) scale = as_stored(g->magnitude / largest, k->scale, false);
        if (scale == 0) return 0;
        return k->format == 0 ? rounded(x / scale, 4, -9, 448) * scale
                              : rounded(x / scale, 3, -16, 57344) * scale;
    }
    if (k->format == 6 && !k->asymmetric) {
        if (!k->fixed) scale = as_stored(g->sum / g->count, k->scale, false);
        return x >= 0 ? scale : -scale;
    }
    if (!k->asymmetric) {
        if (!k->fixed) scale = as_stored(g->magnitude / (half - 1), k->scale, false);
        if (scale == 0) return 0;
        return fmin(fmax(nearbyint(x / scale), 1 - half), half - 1) * scale;
    }
    if (!k->fixed) {
        scale = as_stored((g->high - g->low) / steps, k->scale, false);
        low = as_stored(g->low, k->scale, true);
        flat = g->high == g->low;
    }
    if (scale == 0 || flat) return low;
    return fmin(fmax(nearbyint((x - low) / scale), 0), steps) * scale + low;
}

/* Sum of squared errors; also how far `got` is from our values: the number of elements that differ by more
 * than 1e-3 of the error's root mean square. Some do, where a quotient or a scale lies next to a tie:
 * float steps round twice. */
static double model_error(const cell *k, const float *x, double fixed_scale, double fixed_min,
                          const float *got, uint32_t *different) {
    group *groups = calloc(COUNT, sizeof *groups);
    assert_non_null(groups);
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < HEADS; h++)
            for (uint32_t c = 0; c < DIM; c++) {
                group *g = &groups[group_of(k, t, h, c)];
                double e = (double)x[index_of(t, h, c)];
                g->low = g->count == 0 || e < g->low ? e : g->low;
                g->high = g->count == 0 || e > g->high ? e : g->high;
                g->magnitude = fmax(g->magnitude, fabs(e));
                g->sum += fabs(e);
                g->count++;
            }
    double error = 0;
    double *values = calloc(COUNT, sizeof *values);
    assert_non_null(values);
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < HEADS; h++)
            for (uint32_t c = 0; c < DIM; c++) {
                size_t i = index_of(t, h, c);
                double e = (double)x[i];
                values[i] = quantized(k, &groups[group_of(k, t, h, c)], fixed_scale, fixed_min, e);
                error += (values[i] - e) * (values[i] - e);
            }
    double tolerance = 1e-3 * sqrt(error / COUNT);
    *different = 0;
    for (size_t i = 0; i < COUNT; i++) *different += fabs(values[i] - (double)got[i]) > tolerance;
    free(values);
    free(groups);
    return error;
}

/* ---- Data ---------------------------------------------------------------------------------------------- */

/* Normal numbers; one channel 20 times as large, one around +8; one token small, one of zeros; a constant
 * channel. */
static void fill(float *x, uint64_t seed) {
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < HEADS; h++)
            for (uint32_t c = 0; c < DIM; c++) {
                double e = kvant_test_normal(&seed);
                if (c == 5) e *= 20;
                if (c == 70) e += 8;
                if (c == 33) e = 1.5;
                if (t == 9) e *= 1e-4;
                if (t == 10) e = 0;
                x[index_of(t, h, c)] = (float)e;
            }
}

static void words_of(const cell *k, char *text, size_t capacity) {
    snprintf(text, capacity, "format=%s granularity=%s%s symmetry=%s scale=%s%s", formats[k->format],
             granularities[k->granularity], k->granularity >= 4 ? " group=32" : "",
             k->asymmetric ? "asymmetric" : "symmetric", scales[k->scale],
             !k->fixed       ? ""
             : k->asymmetric ? " scaling=static static_scale=0.4375 static_min=-3.25"
                             : " scaling=static static_scale=0.4375");
}

/* ---- Every cell ---------------------------------------------------------------------------------------- */

static void check_cell(const cell *k, uint32_t side, const char *parameters, const float *x) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    uint8_t *bytes = NULL;
    float *values = NULL;
    uint64_t saturated = 0;
    for (uint32_t i = 0; i < isa_count; i++) {
        kvant_test_codec *codec =
            kvant_test_codec_open("uniform", side, KVANT_DTYPE_F32, TOKENS, HEADS, DIM, isas[i], parameters);
        assert_int_equal(codec->layout.isa, isas[i]);
        kvant_test_codec_encode(codec, x, COUNT);
        assert_int_equal(codec->size, codec->layout.size_min);
        float *got = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
        if (i == 0) {
            bytes = malloc(codec->size);
            assert_non_null(bytes);
            memcpy(bytes, codec->extent, codec->size);
            values = got;
            saturated = codec->saturated;
        } else {
            if (memcmp(bytes, codec->extent, codec->size) != 0 ||
                memcmp(values, got, COUNT * sizeof *got) != 0)
                print_error("%s, isa %u:\n", parameters, isas[i]);
            kvant_assert_bytes(codec->extent, bytes, codec->size);
            kvant_assert_bytes(got, values, COUNT * sizeof *got);
            assert_int_equal(codec->saturated, saturated);
            free(got);
        }
        kvant_test_codec_close(codec);
    }
    double error = 0;
    for (size_t i = 0; i < COUNT; i++) error += pow((double)x[i] - (double)values[i], 2);
    uint32_t different;
    /* E8M0 rounds a static scale up. */
    double want =
        model_error(k, x, k->scale == 3 ? 0.5 : 0.4375, k->asymmetric ? -3.25 : 0, values, &different);
    if (fabs(error / want - 1) > 0.02 || different > COUNT / 50)
        fail_msg("%s: squared error %g, in double precision %g; %u elements differ", parameters, error, want,
                 different);
    free(bytes);
    free(values);
}

static void every_cell(void **state) {
    float *x = malloc(COUNT * sizeof *x);
    uint32_t legal = 0, refused = 0;
    (void)state;
    assert_non_null(x);
    for (cell k = {0}; k.format < FORMATS; k.format++)
        for (k.granularity = 0; k.granularity < GRANULARITIES; k.granularity++)
            for (k.asymmetric = 0; k.asymmetric < 2; k.asymmetric++)
                for (k.scale = 0; k.scale < SCALES; k.scale++)
                    for (k.fixed = 0; k.fixed < 2; k.fixed++) {
                        char parameters[192];
                        kvant_layout layout;
                        kvant_diag diag = {.struct_size = sizeof diag};
                        words_of(&k, parameters, sizeof parameters);
                        kvant_status status =
                            kvant_test_codec_plan("uniform", k.scale & 1, KVANT_DTYPE_F32, TOKENS, HEADS, DIM,
                                                  parameters, &layout, &diag);
                        const char *key = k.format < 2 && k.asymmetric    ? "symmetry"
                                          : k.fixed && k.granularity != 0 ? "granularity"
                                                                          : "";
                        if (key[0] != '\0') {
                            assert_int_equal(status, KVANT_ERROR_CONFLICT);
                            assert_string_equal(diag.key, key);
                            refused++;
                            continue;
                        }
                        legal++;
                        fill(x, 1 + legal);
                        for (uint32_t side = 0; side < 2; side++) check_cell(&k, side, parameters, x);
                    }
    free(x);
    assert_int_equal(legal,
                     12 * (6 + 1) * 4); /* 5 formats with two symmetries, 2 with one; scales; sources */
    assert_int_equal(legal + refused, 7 * 6 * 2 * 4 * 2);
}

/* ---- Rows of the error table --------------------------------------------------------------------------- */

typedef struct band {
    const char *parameters;
    double bits; /* an element, with everything */
    /* Relative L2: N(0,1); one of 64 channels times 20; one of 64 channels +8. 0 = not in the table. */
    double error[3];
} band;

static const band bands[] = {
    {"format=int8 granularity=group_channels group=32", 8.5, {0.0054, 0.0119, 0.0094}},
    {"format=e4m3 granularity=tensor scaling=static static_scale=1", 8, {0.0266, 0.0266, 0.0274}},
    {"format=e4m3 granularity=token scale=f32", 8.25, {0.0257, 0.0144, 0.0216}},
    {"format=e5m2 granularity=tensor scaling=static static_scale=1", 8, {0.0528, 0.0522, 0.0547}},
    {"format=int4 symmetry=asymmetric granularity=group_channels group=32", 5, {0.078, 0.110, 0.102}},
    {"format=int4 symmetry=asymmetric granularity=group_channels group=64", 4.5, {0.090, 0.156, 0.139}},
    {"format=int4 symmetry=asymmetric granularity=group_channels group=128", 4.25, {0.100, 0.229, 0.151}},
    {"format=int4 granularity=group_channels group=32", 4.5, {0.097, 0.166, 0.171}},
    {"format=int3 symmetry=asymmetric granularity=group_channels group=32", 4, {0.168, 0.255, 0.219}},
    {"format=int3 symmetry=asymmetric granularity=group_channels group=128", 3.25, {0.214, 0.523, 0.324}},
    {"format=int2 symmetry=asymmetric granularity=group_channels group=32", 3, {0.393, 0.459, 0.543}},
    {"format=int2 symmetry=asymmetric granularity=group_channels group=128", 2.25, {0.502, 1.11, 0.790}},
    /* The same data quantized per channel: outlier channels cost nothing. */
    {"format=int2 symmetry=asymmetric granularity=group_tokens group=32", 3, {0.393, 0, 0}},
    {"format=int4 symmetry=asymmetric granularity=group_tokens group=32", 5, {0.078, 0.078, 0}},
};

enum { BLOCKS = 16, BAND_HEADS = 8, BAND_DIM = 128, BAND_COUNT = TOKENS * BAND_HEADS * BAND_DIM };

static double band_error(kvant_test_codec *codec, uint32_t kind) {
    double error = 0, energy = 0;
    uint64_t seed = 77 + kind;
    float *x = malloc(BAND_COUNT * sizeof *x);
    assert_non_null(x);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        for (size_t i = 0; i < BAND_COUNT; i++) {
            double e = kvant_test_normal(&seed);
            if (kind == 1 && i % 64 == 0) e *= 20;
            if (kind == 2 && i % 64 == 3) e += 8;
            x[i] = (float)e;
        }
        kvant_test_codec_encode(codec, x, BAND_COUNT);
        float *got = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
        for (size_t i = 0; i < BAND_COUNT; i++) {
            error += pow((double)x[i] - (double)got[i], 2);
            energy += pow((double)x[i], 2);
        }
        free(got);
    }
    free(x);
    return sqrt(error / energy);
}

static void error_bands(void **state) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    (void)state;
    for (size_t i = 0; i < sizeof bands / sizeof bands[0]; i++) {
        kvant_test_codec *codec = kvant_test_codec_open("uniform", i & 1, KVANT_DTYPE_F32, TOKENS, BAND_HEADS,
                                                        BAND_DIM, isas[isa_count - 1], bands[i].parameters);
        kvant_assert_close(8.0 * (double)codec->layout.size_min / BAND_COUNT, bands[i].bits, 1e-12);
        for (uint32_t kind = 0; kind < 3; kind++) {
            if (bands[i].error[kind] == 0) continue;
            double error = band_error(codec, kind);
            /* The table's last digit is rounded: 0.0054 stands for 0.00535 to 0.00545. */
            double slack = bands[i].error[kind] < 0.01 ? 0.02 + 0.00005 / bands[i].error[kind] : 0.02;
            if (fabs(error / bands[i].error[kind] - 1) > slack) print_error("%s:\n", bands[i].parameters);
            kvant_assert_within(error, bands[i].error[kind], slack);
        }
        kvant_test_codec_close(codec);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(every_cell), cmocka_unit_test(error_bands)};
    return kvant_run_tests(tests, argc, argv);
}
