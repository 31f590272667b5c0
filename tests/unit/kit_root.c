/* kit/root.h gives the bits of libm's square roots, which are rounded once: ordinary, subnormal and special
 * arguments. */
#include "support/test.h"

#include <kvant/kit/root.h>

#include <math.h>
#include <string.h>

static void same_bits(double x) {
    double got = kvant_root(x), want = sqrt(x);
    float single = (float)x, got_single = kvant_root_f32(single), want_single = sqrtf(single);
    if (isnan(want)) {
        assert_true(isnan(got) && isnan(got_single));
        return;
    }
    kvant_assert_bytes(&got, &want, sizeof got);
    kvant_assert_bytes(&got_single, &want_single, sizeof got_single);
}

static void roots(void **state) {
    (void)state;
    uint64_t seed = 6;
    static const double special[] = {0.0,      -0.0,           1,        2,  4,         0x1p-1074,
                                     0x1p-149, 0x1.fffffep127, INFINITY, -1, -INFINITY, NAN};
    for (size_t i = 0; i < sizeof special / sizeof special[0]; i++) same_bits(special[i]);
    for (int i = 0; i < 100000; i++)
        same_bits(ldexp(1 + (double)(kvant_test_random(&seed) >> 12) * 0x1p-52, (int)(i % 240) - 140));
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(roots)};
    return kvant_run_tests(tests, argc, argv);
}
