/* core/plugin/fpenv: inside, what plugin.h promises; outside, what the caller had. */
#include "support/test.h"

#include "plugin/fpenv.h"

#include <fenv.h>
#include <stdbool.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Kept from the compiler, which computes with the default mode. */
static volatile float tiny = 0x1p-130f, one = 1.0f, ulp_half = 0x1p-24f, three = 3.0f;

/* The rounding mode of floats: fegetround asks the x87 unit, which computes nothing here. */
static int rounding_mode(void) {
#if defined(__x86_64__)
    static const int modes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
    return modes[_mm_getcsr() >> 13 & 3];
#else
    return fegetround();
#endif
}

/* Functions of their own, since the compiler may move arithmetic across a change of the mode. */
__attribute__((noinline)) static bool flushes(void) {
    return tiny * one == 0.0f;
}

__attribute__((noinline)) static bool default_mode(void) {
    float sum = one + ulp_half, up = one + (ulp_half + 0x1p-40f), third = one / three;
    return tiny * one == 0x1p-130f && tiny + tiny == 0x1p-129f && sum == 1.0f && up == 1.0f + 0x1p-23f &&
           third == 0x1.555556p-2f && rounding_mode() == FE_TONEAREST && fegetround() == FE_TONEAREST;
}

static void rounding(void **state) {
    (void)state;
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(fesetround(modes[i]), 0);
        kvant_fp_state saved = kvant_fp_enter();
        bool inside = default_mode();
        kvant_fp_leave(saved);
        int outside = rounding_mode(), other_unit = fegetround();
        (void)fesetround(FE_TONEAREST);
        assert_true(inside);
        assert_int_equal(outside, modes[i]);
        assert_int_equal(other_unit, modes[i]);
    }
}

static void denormals(void **state) {
    (void)state;
#if defined(__x86_64__)
    unsigned before = _mm_getcsr(), flushed = (before | 0x8040) & ~0x3fu;
    _mm_setcsr(flushed);
    bool control = flushes(); /* the flags do something at all */
    _mm_setcsr(flushed);
    kvant_fp_state saved = kvant_fp_enter();
    bool inside = default_mode();
    kvant_fp_leave(saved);
    unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    assert_true(control);
    assert_true(inside);
    assert_int_equal(after, flushed);
#endif
}

/* What happens inside leaves no trace in the caller's flags, and traps that the caller asked for do not
 * fire inside. */
static void flags_and_traps(void **state) {
    (void)state;
    assert_int_equal(feclearexcept(FE_ALL_EXCEPT), 0);
    assert_true(feenableexcept(FE_DIVBYZERO | FE_INEXACT) >= 0);
    kvant_fp_state saved = kvant_fp_enter();
    volatile float zero = 0.0f, infinite = one / zero, third = one / three;
    (void)infinite, (void)third;
    kvant_fp_leave(saved);
    int trapped = fegetexcept(), raised = fetestexcept(FE_ALL_EXCEPT);
    (void)fedisableexcept(FE_ALL_EXCEPT);
    assert_int_equal(trapped, FE_DIVBYZERO | FE_INEXACT);
    assert_int_equal(raised, 0);
}

static void nested(void **state) {
    (void)state;
    (void)fesetround(FE_UPWARD);
    kvant_fp_state outer = kvant_fp_enter();
    kvant_fp_state inner = kvant_fp_enter();
    kvant_fp_leave(inner);
    bool inside = default_mode();
    kvant_fp_leave(outer);
    int outside = rounding_mode();
    (void)fesetround(FE_TONEAREST);
    assert_true(inside);
    assert_int_equal(outside, FE_UPWARD);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding),
        cmocka_unit_test(denormals),
        cmocka_unit_test(flags_and_traps),
        cmocka_unit_test(nested),
    };
    return kvant_run_tests(tests, argc, argv);
}
