/* The error of turboquant where it is known: unit vectors spread evenly, against distortions computed from
 * the codebooks; other head dims, and rows with structure, against what an independent program measured.
 * Every band has two sides: an encoder that does nothing fails, and so does one that knows too much. */
#include "support/test.h"
#include "support/test_codec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Squared error over squared length, and the mean of <x, decoded x> / <x, x>. */
typedef struct error {
    double relative, gain;
} error;

static error measure(uint32_t side, uint32_t dim, uint32_t count, const float *rows, const char *parameters) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    kvant_test_codec *codec = kvant_test_codec_open("turboquant", side, KVANT_DTYPE_F32, count, 1, dim,
                                                    isas[isa_count - 1], parameters);
    kvant_test_codec_encode(codec, rows, (size_t)count * dim);
    float *back = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
    double difference = 0, length = 0, gain = 0;
    for (size_t t = 0; t < count; t++) {
        double along = 0, own = 0;
        for (size_t i = t * dim; i < (t + 1) * dim; i++) {
            double x = (double)rows[i], y = (double)back[i];
            difference += (x - y) * (x - y);
            along += x * y;
            own += x * x;
        }
        length += own;
        gain += own > 0 ? along / own / count : 0;
    }
    free(back);
    kvant_test_codec_close(codec);
    return (error){difference / length, gain};
}

static float *normal_rows(uint32_t count, uint32_t dim, uint64_t seed, int unit) {
    float *x = malloc(sizeof *x * count * dim);
    assert_non_null(x);
    for (size_t t = 0; t < count; t++) {
        double length = 0;
        for (size_t i = 0; i < dim; i++) {
            double z = kvant_test_normal(&seed);
            x[t * dim + i] = (float)z;
            length += z * z;
        }
        for (size_t i = 0; unit && i < dim; i++)
            x[t * dim + i] = (float)((double)x[t * dim + i] / sqrt(length));
    }
    return x;
}

static void distortion_of_unit_vectors(void **state) {
    (void)state;
    enum { COUNT = 20000, DIM = 128 };
    static const double raw[] = {.360889, .116000, .033966, .009315};
    static const double corrected[] = {.4010, .1189, .0338, .0092};
    static const char *const codebooks[] = {"gauss", "sphere"};
    float *x = normal_rows(COUNT, DIM, 20250428, 1);
    for (uint32_t bits = 1; bits <= 4; bits++)
        for (uint32_t side = 0; side < 2; side++) {
            char text[80];
            snprintf(text, sizeof text, "bits=%u codebook=%s scale_mode=raw", bits, codebooks[side]);
            error e = measure(side, DIM, COUNT, x, text);
            print_message("[          ] %u bits, %s: raw %.5f", bits, codebooks[side], e.relative);
            kvant_assert_within(e.relative, raw[bits - 1], 0.01);
            kvant_assert_within(e.gain, 1 - raw[bits - 1], 0.005);
            snprintf(text, sizeof text, "bits=%u codebook=%s scale_mode=norm_corrected", bits,
                     codebooks[side]);
            e = measure(side, DIM, COUNT, x, text);
            print_message(", norm-corrected %.5f\n", e.relative);
            kvant_assert_within(e.relative, corrected[bits - 1], 0.01);
            kvant_assert_within(e.gain, sqrt(1 - raw[bits - 1]), 0.005);
            snprintf(text, sizeof text, "bits=%u codebook=%s scale_mode=unbiased", bits, codebooks[side]);
            e = measure(side, DIM, COUNT, x, text);
            kvant_assert_within(e.relative, raw[bits - 1] / (1 - raw[bits - 1]), 0.025);
            kvant_assert_within(e.gain, 1, 0.0005);
        }
    free(x);
}

/* Mean squared errors of the codebooks themselves; raw, 5 to 8 bits. */
static void many_bits(void **state) {
    (void)state;
    static const double sphere[] = {2.451460e-03, 6.299608e-04, 1.597739e-04, 4.024116e-05};
    float *x = normal_rows(4000, 128, 5, 0);
    for (uint32_t bits = 5; bits <= 8; bits++) {
        char text[80];
        snprintf(text, sizeof text, "bits=%u codebook=sphere scale_mode=raw scale_type=f32", bits);
        kvant_assert_within(measure(0, 128, 4000, x, text).relative, sphere[bits - 5], 0.02);
    }
    free(x);
}

/* N(0,1), one channel alone, four channels 30 times as large; 3 and 4 bits, norm-corrected. The last two
 * depend on the signs and orders that the seed gives. */
static void every_head_dim(void **state) {
    (void)state;
    static const struct {
        uint32_t dim;
        double want[3][2];
    } cases[] = {
        {64, {{.0332, .0090}, {0, 0}, {.0298, .0081}}},
        {80, {{.0331, .0090}, {.0331, .0088}, {.0351, .0094}}},
        {96, {{.0337, .0091}, {.0348, .0092}, {.0337, .0093}}},
        {192, {{.0342, .0092}, {.0340, .0093}, {.0340, .0093}}},
        {576, {{.0347, .0095}, {.0346, .0094}, {.0343, .0093}}},
    };
    enum { COUNT = 2304 };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (uint32_t kind = 0; kind < 3; kind++) {
            uint32_t dim = cases[c].dim;
            float *x = normal_rows(COUNT, dim, 31 + kind, 0);
            for (size_t t = 0; t < COUNT; t++)
                for (size_t i = 0; i < dim; i++) {
                    if (kind == 1) x[t * dim + i] = i == t % dim ? -3.5f : 0.0f;
                    if (kind == 2 && (i + t) % dim % (dim / 4) == 3) x[t * dim + i] *= 30;
                }
            for (uint32_t bits = 3; bits <= 4; bits++) {
                char text[16];
                snprintf(text, sizeof text, "bits=%u", bits);
                error e = measure(bits & 1, dim, COUNT, x, text);
                double want = cases[c].want[kind][bits - 3];
                if (want == 0)
                    assert_true(e.relative < 1e-6); /* flat after one rotation: the norm says all */
                else
                    kvant_assert_within(e.relative, want, kind == 0 ? 0.02 : 0.12);
            }
            free(x);
        }
}

/* What an unsigned transform loses: an offset of all channels, and a slow wave. Unsigned, 4 bits have .38 and
 * .21 here. */
static void smooth_rows(void **state) {
    (void)state;
    enum { COUNT = 2000, DIM = 128 };
    float *x = normal_rows(COUNT, DIM, 8, 0);
    for (size_t i = 0; i < COUNT * DIM; i++) x[i] += 2;
    kvant_assert_within(measure(0, DIM, COUNT, x, "bits=4").relative, .0095, 0.25);
    for (size_t i = 0; i < COUNT * DIM; i++)
        x[i] = (float)(10 * sin(0.1 * (double)(i % DIM) + 0.5 + 0.01 * (double)(i / DIM)));
    kvant_assert_within(measure(0, DIM, COUNT, x, "bits=4").relative, .0092, 0.1);
    free(x);
}

/* Rows of a few equal channels turn into coordinates of a few values; a second round turns them into many. */
static void few_channels(void **state) {
    (void)state;
    enum { COUNT = 2000, DIM = 128 };
    float *x = normal_rows(COUNT, DIM, 19, 0);
    for (size_t i = 0; i < COUNT * DIM; i++) x[i] = 0;
    for (size_t t = 0; t < COUNT; t++) x[t * DIM + t % DIM] = x[t * DIM + (t * 5 + 77) % DIM] = 4;
    double once = measure(0, DIM, COUNT, x, "bits=4").relative;
    double twice = measure(0, DIM, COUNT, x, "bits=4 rotation=double").relative;
    print_message("[          ] two channels: %.4f, double %.4f\n", once, twice);
    kvant_assert_within(once, .0104, 0.03);
    kvant_assert_within(twice, .0092, 0.05);
    free(x);
}

/* 2.25, 2.5 and 3.5 bits of rows with a few loud channels lie between the whole numbers, and a split that
 * finds the loud channels beats one bit less by far. */
static void outliers(void **state) {
    (void)state;
    enum { COUNT = 512, DIM = 128 };
    float *x = normal_rows(COUNT, DIM, 77, 0);
    for (size_t i = 0; i < COUNT * DIM; i++)
        if (i % DIM % 9 == 4) x[i] *= 12; /* 14 channels */
    double two = measure(0, DIM, COUNT, x, "bits=2").relative;
    double quarter = measure(0, DIM, COUNT, x, "bits=2 outliers=quarter").relative;
    double half = measure(0, DIM, COUNT, x, "bits=2 outliers=half").relative;
    double three = measure(0, DIM, COUNT, x, "bits=3").relative;
    double three_half = measure(0, DIM, COUNT, x, "bits=3 outliers=half").relative;
    print_message("[          ] 2, 2.25, 2.5, 3, 3.5 bits: %.4f %.4f %.4f %.4f %.4f\n", two, quarter, half,
                  three, three_half);
    kvant_assert_within(two, .109, 0.06);
    kvant_assert_within(three, .0310, 0.06);
    kvant_assert_within(quarter, .0326, 0.06);
    kvant_assert_within(half, .0325, 0.06);
    assert_true(three_half < three && half < two / 2 && quarter < two / 2);
    free(x);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(distortion_of_unit_vectors),
                                              cmocka_unit_test(many_bits),
                                              cmocka_unit_test(every_head_dim),
                                              cmocka_unit_test(smooth_rows),
                                              cmocka_unit_test(few_channels),
                                              cmocka_unit_test(outliers)};
    return kvant_run_tests(tests, argc, argv);
}
