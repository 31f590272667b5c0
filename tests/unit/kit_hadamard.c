/* The Walsh-Hadamard transform against its definition, its rounding order, and its own inverse. */
#include "support/test.h"

#include <kvant/kit/hadamard.h>

#include <stdlib.h>

enum { LARGEST = 1024 };

static int sign(uint32_t i, uint32_t j) {
    return __builtin_popcount(i & j) % 2 == 0 ? 1 : -1;
}

/* Small integers: every sum is exact. */
static void equals_the_definition(void **state) {
    (void)state;
    uint64_t seed = 41;
    float x[LARGEST], y[LARGEST + 1];
    for (uint32_t n = 1; n <= LARGEST; n *= 2) {
        for (uint32_t i = 0; i < n; i++) y[i] = x[i] = (float)((int)(kvant_test_random(&seed) % 201) - 90);
        y[n] = 77;
        kvant_hadamard(y, n);
        assert_true(y[n] == 77);
        for (uint32_t i = 0; i < n; i++) {
            float want = 0;
            for (uint32_t j = 0; j < n; j++) want += (float)sign(i, j) * x[j];
            if (y[i] != want) fail_msg("n = %u: y[%u] is %g, not %g", n, i, (double)y[i], (double)want);
        }
        kvant_hadamard(y, n);
        for (uint32_t i = 0; i < n; i++) assert_true(y[i] == (float)n * x[i]);
    }
}

/* Rows of the matrix are orthogonal: H applied to a row of H is n at that row and 0 elsewhere. */
static void rows_are_orthogonal(void **state) {
    (void)state;
    float x[256];
    for (uint32_t row = 0; row < 256; row++) {
        for (uint32_t j = 0; j < 256; j++) x[j] = (float)sign(row, j);
        kvant_hadamard(x, 256);
        for (uint32_t i = 0; i < 256; i++) assert_true(x[i] == (i == row ? 256.0f : 0.0f));
    }
}

/* Butterflies of stride 1, 2, 4 ..., one rounding each. */
static void rounds_in_the_stated_order(void **state) {
    (void)state;
    uint64_t seed = 42;
    float x[LARGEST], want[LARGEST];
    for (uint32_t n = 2; n <= LARGEST; n *= 2) {
        for (int round = 0; round < 20; round++) {
            for (uint32_t i = 0; i < n; i++)
                want[i] = x[i] = (float)(kvant_test_normal(&seed) * (i % 17 == 3 ? 40 : 1) + 0.3);
            for (uint32_t bit = 1; bit < n; bit *= 2) {
                for (uint32_t i = 0; i < n; i++) {
                    if (i & bit) continue;
                    float sum = want[i] + want[i | bit], difference = want[i] - want[i | bit];
                    want[i] = sum;
                    want[i | bit] = difference;
                }
            }
            kvant_hadamard(x, n);
            kvant_assert_bytes(x, want, n * sizeof *x);
        }
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_definition),
        cmocka_unit_test(rows_are_orthogonal),
        cmocka_unit_test(rounds_in_the_stated_order),
    };
    return kvant_run_tests(tests, argc, argv);
}
