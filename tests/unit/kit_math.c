/* Sine, cosine, exponential and logarithm against libm's long double functions: within the errors that
 * kit/math.h states, on ordinary and on hard arguments, and the same bits on every run. */
#include "support/test.h"

#include <kvant/kit/math.h>

#include <float.h>
#include <math.h>

/* |got - want| in units of the last place of a double of want's size. */
static double ulps(double got, long double want) {
    int exponent = want == 0 ? -1074 : ilogbl(want) - 52;
    if (exponent < -1074) exponent = -1074;
    return (double)(fabsl((long double)got - want) / ldexpl(1, exponent));
}

/* 2^-a to 2^b, both signs. */
static double random_size(uint64_t *seed, int least, int greatest) {
    int exponent = least + (int)(kvant_test_random(seed) % (uint64_t)(greatest - least + 1));
    double mantissa = 1 + ldexp((double)(kvant_test_random(seed) >> 12), -52);
    return (kvant_test_random(seed) & 1 ? -1 : 1) * ldexp(mantissa, exponent);
}

static void check_angle(double x, double *worst) {
    long double sine = sinl((long double)x), cosine = cosl((long double)x);
    double got_sine = kvant_sin(x), got_cosine = kvant_cos(x);
    double sine_error = ulps(got_sine, sine), cosine_error = ulps(got_cosine, cosine);
    if (fabsl((long double)got_sine - sine) < 0x1p-100L) sine_error = 0;
    if (fabsl((long double)got_cosine - cosine) < 0x1p-100L) cosine_error = 0;
    if (!(sine_error <= 1) || !(cosine_error <= 1))
        fail_msg("%a: sine %a, not %La; cosine %a, not %La", x, got_sine, sine, got_cosine, cosine);
    if (sine_error > *worst) *worst = sine_error;
    if (cosine_error > *worst) *worst = cosine_error;
}

static void sine_and_cosine(void **state) {
    (void)state;
    uint64_t seed = 21;
    double worst = 0;
    for (int i = 0; i < 200000; i++) {
        check_angle(random_size(&seed, -30, 2), &worst);
        check_angle(random_size(&seed, 0, 40), &worst);
        check_angle(random_size(&seed, 40, 63), &worst);
    }
    /* The doubles nearest to multiples of pi/4, where one of the two is small or signs change. */
    const long double quarter_pi = 0.785398163397448309615660845819875721L;
    for (int k = -100000; k <= 100000; k++) {
        double x = (double)(k * quarter_pi);
        check_angle(x, &worst);
        check_angle(nextafter(x, 1e300), &worst);
        check_angle(nextafter(x, -1e300), &worst);
    }
    check_angle(0x1.921fb54442d18p+60, &worst);
    check_angle(-6381956970095103.0 * 512, &worst); /* close to a multiple of pi/2 */
    print_message("[          ] largest error %.3f ulp\n", worst);
    assert_true(worst > 0.4 && worst <= 0.9);
}

static void known_angles(void **state) {
    (void)state;
    assert_true(kvant_sin(0.0) == 0 && !signbit(kvant_sin(0.0)) && signbit(kvant_sin(-0.0)));
    assert_true(kvant_cos(0.0) == 1 && kvant_sin(0x1p-1074) == 0x1p-1074);
    kvant_assert_close(kvant_sin(1), 0.84147098480789650665, 1e-16);
    kvant_assert_close(kvant_cos(1), 0.54030230586813971740, 1e-16);
    kvant_assert_close(kvant_sin(1e15), 0.85827279317023583, 1e-15);
    assert_true(isnan(kvant_sin(INFINITY)) && isnan(kvant_cos(-INFINITY)) && isnan(kvant_sin(NAN)));
    assert_true(isnan(kvant_cos(0x1.1p64)) && isnan(kvant_sin(-0x1.1p64)));
    assert_true(fabs(kvant_sin(0x1p64)) <= 1 && fabs(kvant_cos(-0x1p64)) <= 1);
}

/* Angles of more than 53 bits, as positions times frequencies are. */
static void wide_angles(void **state) {
    (void)state;
    uint64_t seed = 22;
    for (int i = 0; i < 200000; i++) {
        kvant_double_double angle =
            kvant_two_product(random_size(&seed, 0, i % 2 ? 32 : 62), random_size(&seed, -20, 0));
        double sine, cosine;
        kvant_sin_cos(angle, &sine, &cosine);
        long double s = sinl((long double)angle.high), c = cosl((long double)angle.high), low = angle.low;
        long double want_sine = s * cosl(low) + c * sinl(low), want_cosine = c * cosl(low) - s * sinl(low);
        if (ulps(sine, want_sine) > 1 || ulps(cosine, want_cosine) > 1)
            fail_msg("%a + %a: sine %a, not %La; cosine %a, not %La", angle.high, angle.low, sine, want_sine,
                     cosine, want_cosine);
    }
}

static void exponential(void **state) {
    (void)state;
    uint64_t seed = 23;
    double worst = 0;
    for (int i = 0; i < 400000; i++) {
        double x = i % 2 == 0 ? random_size(&seed, -60, 3)
                              : (double)(kvant_test_random(&seed) >> 11) * 0x1p-53 * 1416 - 708;
        double error = ulps(kvant_exp(x), expl((long double)x));
        if (!(error <= 1)) fail_msg("exp(%a) is %a, not %La", x, kvant_exp(x), expl((long double)x));
        if (error > worst) worst = error;
    }
    print_message("[          ] largest error %.3f ulp\n", worst);
    assert_true(worst > 0.4);
    for (int i = 0; i < 20000; i++) {
        double x = -708.4 - (double)(kvant_test_random(&seed) >> 11) * 0x1p-53 * 37;
        assert_true(ulps(kvant_exp(x), expl((long double)x)) <= 2);
    }
    assert_true(kvant_exp(0) == 1 && kvant_exp(-0.0) == 1);
    assert_true(kvant_exp(709.9) == INFINITY && kvant_exp(INFINITY) == INFINITY &&
                kvant_exp(DBL_MAX) == INFINITY);
    assert_true(kvant_exp(-746) == 0 && kvant_exp(-INFINITY) == 0 && kvant_exp(-DBL_MAX) == 0);
    assert_true(kvant_exp(709.782712893384) < INFINITY && kvant_exp(-745) == 0x1p-1074);
    assert_true(isnan(kvant_exp(NAN)));
}

static void logarithm(void **state) {
    (void)state;
    uint64_t seed = 24;
    double worst = 0;
    for (int i = 0; i < 600000; i++) {
        double x = fabs(i % 3 == 0 ? random_size(&seed, -1074, 1023) : random_size(&seed, -2, 1));
        if (i % 3 == 2) x = 1 + random_size(&seed, -52, -3);
        long double want = logl((long double)x);
        double error = want == 0 ? (kvant_log(x) == 0 ? 0 : 1e9) : ulps(kvant_log(x), want);
        if (!(error <= 0.51)) fail_msg("log(%a) is %a, not %La: %.3f ulp", x, kvant_log(x), want, error);
        if (error > worst) worst = error;
    }
    print_message("[          ] largest error %.4f ulp\n", worst);
    assert_true(worst > 0.49);
    assert_true(kvant_log(1) == 0 && kvant_log(INFINITY) == INFINITY && kvant_log(0) == -INFINITY);
    assert_true(kvant_log(-0.0) == -INFINITY && isnan(kvant_log(-1)) && isnan(kvant_log(NAN)));
    kvant_assert_close(kvant_log(10000), 9.2103403719761836, 1e-15);
}

/* Bits that any machine must compute, whatever its libm. */
static void same_bits_everywhere(void **state) {
    (void)state;
    uint64_t seed = 25, hash = 0xcbf29ce484222325u;
    for (int i = 0; i < 20000; i++) {
        double angle = random_size(&seed, -20, 60);
        double power = random_size(&seed, -20, 9);
        double number = fabs(random_size(&seed, -900, 900));
        const double results[4] = {kvant_sin(angle), kvant_cos(angle), kvant_exp(power), kvant_log(number)};
        for (int k = 0; k < 4; k++) {
            uint64_t bits;
            memcpy(&bits, &results[k], sizeof bits);
            hash = (hash ^ bits) * 0x100000001b3u;
        }
    }
    if (hash != 0x2c7cf37acc562960u) fail_msg("hash of the results is %llx", (unsigned long long)hash);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(sine_and_cosine), cmocka_unit_test(known_angles),
        cmocka_unit_test(wide_angles),     cmocka_unit_test(exponential),
        cmocka_unit_test(logarithm),       cmocka_unit_test(same_bits_everywhere),
    };
    return kvant_run_tests(tests, argc, argv);
}
