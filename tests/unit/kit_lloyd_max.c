/* The quantizers of kit/lloyd_max.h by their definition, for laws that no table has: every centroid is the
 * mean of its cell, by a quadrature of our own; small dimensions, whose density ends in a corner, a pole or
 * a wall; and the distortion of the known tables. */
#include "support/test.h"

#include <kvant/kit/lloyd_max.h>

#include <math.h>

/* Densities with libm; the sphere's in the angle: t = sqrt(d) sin a, density ~ cos^(d-2) a. */
static void moments(uint32_t dimension, double low, double high, double *mass, double *mean) {
    const int steps = high - low > 0.1 ? 4000 : 600;
    double a = low, b = high, root = sqrt(dimension), m0 = 0, m1 = 0;
    if (dimension > 0) {
        a = asin(low <= -root ? -1 : low / root);
        b = asin(high >= root ? 1 : high / root);
    }
    for (int i = 0; i <= steps; i++) { /* Simpson */
        double x = a + (b - a) * i / steps, weight = i == 0 || i == steps ? 1 : i % 2 ? 4 : 2;
        double t = dimension > 0 ? root * sin(x) : x;
        double f = dimension > 0 ? pow(cos(x), dimension - 2) : exp(-x * x / 2);
        m0 += weight * f;
        m1 += weight * f * t;
    }
    *mass = (m0 * (b - a) / 3 / steps);
    *mean = m1 / m0;
}

static double distortion(uint32_t dimension, uint32_t bits, double tolerance) {
    double centroids[256], boundaries[256], all = 0, kept = 0;
    kvant_lloyd_max(dimension, bits, centroids, boundaries);
    uint32_t count = 1u << bits;
    for (uint32_t k = 0; k < count; k++) {
        double end = dimension > 0 && dimension < 144 ? sqrt(dimension) : 12, mass, mean;
        double low = k == 0 ? -end : boundaries[k - 1], high = k + 1 == count ? end : boundaries[k];
        assert_true(low < centroids[k] && centroids[k] < high);
        kvant_assert_close(centroids[k], -centroids[count - 1 - k], 0);
        moments(dimension, low, high, &mass, &mean);
        kvant_assert_close(centroids[k], mean, tolerance);
        if (k > 0) kvant_assert_close(boundaries[k - 1], 0.5 * (centroids[k - 1] + centroids[k]), 0);
        all += mass;
        kept += mass * mean * mean;
    }
    return 1 - kept / all;
}

static void centroids_are_means(void **state) {
    (void)state;
    static const uint32_t dimensions[] = {0, 2, 3, 4, 5, 7, 16, 17, 33, 64, 100, 200, 1000, 4096};
    for (size_t d = 0; d < sizeof dimensions / sizeof dimensions[0]; d++)
        for (uint32_t bits = 1; bits <= 8; bits += bits == 4 ? 4 : 1) distortion(dimensions[d], bits, 1e-9);
}

static void known_laws(void **state) {
    (void)state;
    double centroids[256], boundaries[256];
    kvant_lloyd_max(0, 1, centroids, boundaries);
    kvant_assert_close(centroids[1], 0.79788456080286535588, 1e-14); /* sqrt(2/pi) */
    kvant_lloyd_max(3, 8, centroids, boundaries); /* uniform on [-sqrt 3, sqrt 3]: equal steps */
    for (int k = 0; k < 256; k++)
        kvant_assert_close(centroids[k], 1.7320508075688772 * (2 * k - 255) / 256, 1e-12);
    kvant_assert_close(boundaries[127], 0, 0);
    assert_false(signbit(boundaries[127]));
    /* Mean squared errors of N(0,1) and of d = 128, from tables of 40 digits. */
    static const double gauss[] = {0.3633802276324187,     0.11748184782932929,   0.03454776078850373,
                                   0.009501008008191886,   0.0025046683556747993, 0.0006442396653172622,
                                   0.00016347822998023678, 4.1185082867117485e-05};
    static const double sphere[] = {0.3608885936869143, 0.11600007027511493, 0.03396592579390212,
                                    0.009314787953796096};
    for (uint32_t b = 1; b <= 8; b++) kvant_assert_within(distortion(0, b, 1e-9), gauss[b - 1], 1e-7);
    for (uint32_t b = 1; b <= 4; b++) kvant_assert_within(distortion(128, b, 1e-9), sphere[b - 1], 1e-7);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(centroids_are_means),
                                              cmocka_unit_test(known_laws)};
    return kvant_run_tests(tests, argc, argv);
}
