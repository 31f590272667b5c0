/* Half floats: every pattern both ways, floats at random against a conversion in exact arithmetic and, where
 * the compiler has one, against its own. (tests/golden/scalar_formats.c compares with CUDA's.) */
#include "support/test.h"

#include <kvant/kit/half.h>

/* Rounds a finite x to `digits` bits and multiples of 2^least, in double arithmetic that is exact for
 * floats. */
static double rounded(float x, int digits, int least) {
    double magnitude = x < 0 ? -(double)x : (double)x;
    double unit = 1;
    while (unit > magnitude) unit /= 2;
    while (unit * 2 <= magnitude) unit *= 2; /* 2^floor(log2 x) */
    if (magnitude == 0) return 0;
    for (int i = 1; i < digits; i++) unit /= 2;
    double smallest = 1;
    for (int i = 0; i > least; i--) smallest /= 2;
    if (unit < smallest) unit = smallest;
    double below = (double)(int64_t)(magnitude / unit) * unit; /* at most 2^24 units */
    double rest = magnitude - below;
    int odd = (int64_t)(below / unit) % 2 != 0;
    if (rest > unit / 2 || (rest == unit / 2 && odd)) below += unit;
    return x < 0 ? -below : below;
}

static void every_half_comes_back(void **state) {
    (void)state;
    for (uint32_t half = 0; half < 65536; half++) {
        uint32_t f16 = kvant_f32_to_f16(kvant_f16_to_f32((uint16_t)half));
        uint32_t bf16 = kvant_f32_to_bf16(kvant_bf16_to_f32((uint16_t)half));
        if (f16 != ((half & 0x7fffu) > 0x7c00u ? 0x7fffu : half))
            fail_msg("f16 %04x comes back as %04x", half, f16);
        if (bf16 != ((half & 0x7fffu) > 0x7f80u ? 0x7fffu : half))
            fail_msg("bf16 %04x comes back as %04x", half, bf16);
    }
    assert_int_equal(kvant_float_bits(kvant_f16_to_f32(0xfe01)), 0x7fffffff);
    assert_int_equal(kvant_float_bits(kvant_bf16_to_f32(0xffc1)), 0xffc10000);
    kvant_assert_close(kvant_f16_to_f32(0x0001), 0x1p-24, 0);
    kvant_assert_close(kvant_f16_to_f32(0x83ff), -0x3ffp-24, 0);
    kvant_assert_close(kvant_f16_to_f32(0x3555), 0x555p-12, 0);
    kvant_assert_close(kvant_f16_to_f32(0xfbff), -65504, 0);
}

static void floats_round_to_nearest_even(void **state) {
    (void)state;
    uint64_t seed = 7;
    uint32_t finite = 0, subnormal = 0;
    for (int i = 0; i < 400000; i++) {
        uint32_t bits = (uint32_t)kvant_test_random(&seed);
        /* Half of them within F16's range, a quarter at or beside a tie. */
        if (i % 2 == 0) bits = (bits & 0x807fffffu) | (uint32_t)(95 + kvant_test_random(&seed) % 50) << 23;
        if (i % 8 == 0) bits = (bits & 0xffffe000u) + 0x1000u;
        if (i % 8 == 2) bits = (bits & 0xffffe000u) + 0x0fffu + 2 * (bits & 1u);
        float x = kvant_bits_float(bits);
        if ((bits & 0x7fffffffu) > 0x7f800000u) continue;
        if (x > -65520 && x < 65520) {
            finite++;
            subnormal += x > -0x1p-14f && x < 0x1p-14f && x != 0;
            float got = kvant_f16_to_f32(kvant_f32_to_f16(x));
            if ((double)got != rounded(x, 11, -24)) fail_msg("f16 of %a is %a", (double)x, (double)got);
            assert_int_equal(kvant_float_bits(got) >> 31, bits >> 31);
        } else {
            assert_int_equal(kvant_f32_to_f16(x), x < 0 ? 0xfc00 : 0x7c00);
        }
        if (x > -0x1.ffp127f && x < 0x1.ffp127f && !(x > -0x1p-100f && x < 0x1p-100f)) {
            float got = kvant_bf16_to_f32(kvant_f32_to_bf16(x));
            if ((double)got != rounded(x, 8, -1074)) fail_msg("bf16 of %a is %a", (double)x, (double)got);
        }
    }
    assert_true(finite > 200000 && subnormal > 20000);
    assert_int_equal(kvant_f32_to_bf16(0x1.fffp127f), 0x7f80);
    assert_int_equal(kvant_f32_to_bf16(-0x1p-149f), 0x8000);
    assert_int_equal(kvant_f32_to_bf16(0x1p-133f), 0x0001);
}

static void agrees_with_the_compiler(void **state) {
    (void)state;
#ifdef __FLT16_MANT_DIG__
    __extension__ typedef _Float16 half_float;
    uint64_t seed = 11;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t half = (uint16_t)i;
        half_float y;
        memcpy(&y, &half, sizeof half);
        float x = (float)y;
        if (x == x) assert_int_equal(kvant_float_bits(kvant_f16_to_f32(half)), kvant_float_bits(x));
    }
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)kvant_test_random(&seed);
        if (i % 2 == 0) bits = (bits & 0x807fffffu) | (uint32_t)(95 + kvant_test_random(&seed) % 50) << 23;
        float x = kvant_bits_float(bits);
        if (x != x) continue;
        half_float y = (half_float)x;
        uint16_t want;
        memcpy(&want, &y, sizeof want);
        if (kvant_f32_to_f16(x) != want)
            fail_msg("f16 of %a is %04x, not %04x", (double)x, kvant_f32_to_f16(x), want);
    }
#else
    skip();
#endif
}

static void rounding_is_one_conversion_there_and_back(void **state) {
    (void)state;
    kvant_assert_close(kvant_round_f16(1 + 0x1p-11f), 1, 0);
    kvant_assert_close(kvant_round_f16(1 + 0x1.8p-10f), 1 + 0x1p-9, 0);
    kvant_assert_close(kvant_round_bf16(3.0f + 0x1p-7f), 3, 0);
    kvant_assert_close(kvant_round_bf16(-3.0f - 0x1.1p-7f), -3 - 0x1p-6, 0);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_comes_back),
        cmocka_unit_test(floats_round_to_nearest_even),
        cmocka_unit_test(agrees_with_the_compiler),
        cmocka_unit_test(rounding_is_one_conversion_there_and_back),
    };
    return kvant_run_tests(tests, argc, argv);
}
