/* kvant/kit/math.h: sine, cosine, exponential and logarithm in double, from + - * / alone.
 *
 * Every machine computes the same bits (libm's differ between versions and processors), so that tables built
 * from these functions may enter encoded bytes. Errors, against exact values:
 *
 *     kvant_sin, kvant_cos   1 ulp, or 2^-100 where that is more; |x| <= 2^64, NaN beyond
 *     kvant_exp              1 ulp, two where the result is subnormal
 *     kvant_log              0.51 ulp
 *
 * Intermediate results of more than 53 bits are double-doubles: two doubles whose exact sum is meant, the
 * second at most half an ulp of the first (T. J. Dekker, A floating-point technique for extending the
 * available precision, 1971). They rely on round-to-nearest-even and on code that is compiled without
 * contraction to fused multiply-adds.
 */
#ifndef KVANT_KIT_MATH_H
#define KVANT_KIT_MATH_H

#include <stdint.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "kvant's kit needs IEEE arithmetic: compile without -ffast-math"
#endif

typedef struct kvant_double_double {
    double high;
    double low;
} kvant_double_double;

/* a + b without error. */
static inline kvant_double_double kvant_two_sum(double a, double b) {
    kvant_double_double sum;
    sum.high = a + b;
    double b_part = sum.high - a;
    sum.low = (a - (sum.high - b_part)) + (b - b_part);
    return sum;
}

/* a * b without error, where nothing overflows (|a|, |b| < 2^500) or falls below the normal range. */
static inline kvant_double_double kvant_two_product(double a, double b) {
    const double split = 134217729.0; /* 2^27 + 1: halves of 26 bits, whose products are exact */
    double a_high = split * a - (split * a - a);
    double b_high = split * b - (split * b - b);
    double a_low = a - a_high;
    double b_low = b - b_high;
    kvant_double_double product;
    product.high = a * b;
    product.low = ((a_high * b_high - product.high) + a_high * b_low + a_low * b_high) + a_low * b_low;
    return product;
}

/* x / d, to about 104 bits. */
static inline kvant_double_double kvant_double_double_divide(kvant_double_double x, double d) {
    double quotient = x.high / d;
    kvant_double_double back = kvant_two_product(quotient, d);
    return kvant_two_sum(quotient, (((x.high - back.high) - back.low) + x.low) / d);
}

/* To the nearest integer, for |x| < 2^51: the sum has no bits left for a fraction. */
static inline double kvant_nearest_(double x) {
    return (x + 0x1.8p52) - 0x1.8p52;
}

/* x without a multiple of 4, exact, in [-2, 2]. Doubles from 2^54 on are multiples of 4; those below take two
 * steps, so that kvant_nearest_ sees small numbers. */
static inline double kvant_modulo_4_(double x) {
    double magnitude = x < 0 ? -x : x;
    double rest = magnitude < 0x1p54 ? x : 0.0;
    rest -= 0x1p22 * kvant_nearest_(rest * 0x1p-22);
    return rest - 4 * kvant_nearest_(rest * 0.25);
}

/* The sine and cosine of angle.high + angle.low, radians, |angle.high| <= 2^64. Without branches, so that a
 * loop around it vectorises. */
__attribute__((always_inline)) static inline void kvant_sin_cos(kvant_double_double angle, double *sine,
                                                                double *cosine) {
    /* In quarter turns: times 2/pi to 160 bits. Whole circles, multiples of 4, leave every term before they
     * are added, so that no bit of the fraction is lost, however large the angle. */
    const double per_radian_1 = 0x1.45f306dc9c883p-1;
    const double per_radian_2 = -0x1.6b01ec5417056p-55;
    const double per_radian_3 = -0x1.6447e493ad4cep-109;
    kvant_double_double first = kvant_two_product(angle.high, per_radian_1);
    kvant_double_double second = kvant_two_product(angle.high, per_radian_2);
    kvant_double_double third = kvant_two_product(angle.low, per_radian_1);
    double tail = angle.high * per_radian_3 + angle.low * per_radian_2 + second.low + third.low;
    kvant_double_double sum = kvant_two_sum(kvant_modulo_4_(first.high), kvant_modulo_4_(first.low));
    tail += sum.low;
    sum = kvant_two_sum(sum.high, kvant_modulo_4_(second.high));
    tail += sum.low;
    sum = kvant_two_sum(sum.high, kvant_modulo_4_(third.high));
    tail += sum.low;

    double shifted = sum.high + 0x1.8p52;
    uint64_t quadrant;
    memcpy(&quadrant, &shifted, sizeof quadrant);
    kvant_double_double quarter = kvant_two_sum(sum.high - (shifted - 0x1.8p52), tail);

    /* Back to radians, |x| <= pi/4. */
    const double half_pi_1 = 0x1.921fb54442d18p+0;
    const double half_pi_2 = 0x1.1a62633145c07p-54;
    kvant_double_double radians = kvant_two_product(quarter.high, half_pi_1);
    double x = radians.high;
    double x_low = radians.low + (quarter.high * half_pi_2 + quarter.low * half_pi_1);

    /* Taylor series; the first term left out is below 2^-63 of the result. */
    double z = x * x;
    double s = 1 / 355687428096000.0; /* 1/17! */
    s = z * s - 1 / 1307674368000.0;
    s = z * s + 1 / 6227020800.0;
    s = z * s - 1 / 39916800.0;
    s = z * s + 1 / 362880.0;
    s = z * s - 1 / 5040.0;
    s = z * s + 1 / 120.0;
    s = z * s - 1 / 6.0;
    double sine_x = x + (x_low * (1 - 0.5 * z) + z * x * s);

    double c = -1 / 6402373705728000.0; /* 1/18! */
    c = z * c + 1 / 20922789888000.0;
    c = z * c - 1 / 87178291200.0;
    c = z * c + 1 / 479001600.0;
    c = z * c - 1 / 3628800.0;
    c = z * c + 1 / 40320.0;
    c = z * c - 1 / 720.0;
    c = z * c + 1 / 24.0;
    /* 1 - z/2 rounds; what it lost is added to the small terms. */
    double near_one = 1 - 0.5 * z;
    double cosine_x = near_one + (((1 - near_one) - 0.5 * z) + (z * z * c - x * x_low));

    double swapped_sine = (quadrant & 1) != 0 ? cosine_x : sine_x;
    double swapped_cosine = (quadrant & 1) != 0 ? sine_x : cosine_x;
    *sine = (quadrant & 2) != 0 ? -swapped_sine : swapped_sine;
    *cosine = ((quadrant + 1) & 2) != 0 ? -swapped_cosine : swapped_cosine;
}

static inline double kvant_sin(double x) {
    if (x > -0x1p-27 && x < 0x1p-27) return x;
    if (!(x >= -0x1p64 && x <= 0x1p64)) return (x - x) / (x - x); /* 0/0 */
    kvant_double_double angle = {x, 0.0};
    double sine, cosine;
    kvant_sin_cos(angle, &sine, &cosine);
    return sine;
}

static inline double kvant_cos(double x) {
    if (x > -0x1p-27 && x < 0x1p-27) return 1;
    if (!(x >= -0x1p64 && x <= 0x1p64)) return (x - x) / (x - x);
    kvant_double_double angle = {x, 0.0};
    double sine, cosine;
    kvant_sin_cos(angle, &sine, &cosine);
    return cosine;
}

/* 2^exponent, exponent in [-1022, 1023]. */
static inline double kvant_power_of_two_(int32_t exponent) {
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* e^(x.high + x.low). */
static inline double kvant_double_double_exp(kvant_double_double x) {
    if (x.high != x.high) return x.high;
    if (x.high > 710) return 0x1p1023 * 2; /* infinity */
    if (x.high < -746) return 0;
    /* x = k ln 2 + r, |r| <= ln(2)/2 */
    const double ln2_1 = 0x1.62e42fefa39efp-1;
    const double ln2_2 = 0x1.abc9e3b39803fp-56;
    double k = kvant_nearest_(x.high * 0x1.71547652b82fep+0);
    kvant_double_double whole = kvant_two_product(k, ln2_1);
    kvant_double_double rest = kvant_two_sum(x.high, -whole.high);
    rest = kvant_two_sum(rest.high, rest.low - whole.low - k * ln2_2 + x.low);
    double r = rest.high;
    /* Taylor series from r^2/2 to r^14/14! */
    double p = 1 / 87178291200.0;
    p = r * p + 1 / 6227020800.0;
    p = r * p + 1 / 479001600.0;
    p = r * p + 1 / 39916800.0;
    p = r * p + 1 / 3628800.0;
    p = r * p + 1 / 362880.0;
    p = r * p + 1 / 40320.0;
    p = r * p + 1 / 5040.0;
    p = r * p + 1 / 720.0;
    p = r * p + 1 / 120.0;
    p = r * p + 1 / 24.0;
    p = r * p + 1 / 6.0;
    p = r * p + 0.5;
    double e = 1 + (r + (r * r * p + rest.low * (1 + r)));
    int32_t exponent = (int32_t)k; /* -1076 to 1024: in two factors, each a normal double */
    return e * kvant_power_of_two_(exponent / 2) * kvant_power_of_two_(exponent - exponent / 2);
}

static inline double kvant_exp(double x) {
    kvant_double_double wide = {x, 0.0};
    return kvant_double_double_exp(wide);
}

/* ln x as a double-double, to about 2^-62 relative; x finite and > 0. */
static inline kvant_double_double kvant_double_double_log(double x) {
    int32_t exponent = -1023;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        exponent -= 54;
    }
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    exponent += (int32_t)(bits >> 52);
    bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 0x1.6a09e667f3bcdp+0) { /* sqrt(2): m in [sqrt(1/2), sqrt(2)] */
        m *= 0.5;
        exponent++;
    }
    /* ln m = 2 artanh s = 2 s (1 + z/3 + z^2/5 + ...), s = (m - 1)/(m + 1), z = s^2 <= 0.0295 */
    kvant_double_double below = kvant_two_sum(m, 1);
    double quotient = (m - 1) / below.high;
    kvant_double_double back = kvant_two_product(quotient, below.high);
    double remainder = (((m - 1) - back.high) - back.low) - quotient * below.low;
    kvant_double_double s = kvant_two_sum(quotient, remainder / below.high);
    kvant_double_double z = kvant_two_product(s.high, s.high);
    z.low += 2 * s.high * s.low;
    kvant_double_double third = kvant_two_product(z.high, 0x1.5555555555555p-2);
    third.low += z.high * 0x1.5555555555555p-56 + z.low * 0x1.5555555555555p-2;
    double t = 1 / 25.0; /* the first term left out is z^13/27 */
    t = z.high * t + 1 / 23.0;
    t = z.high * t + 1 / 21.0;
    t = z.high * t + 1 / 19.0;
    t = z.high * t + 1 / 17.0;
    t = z.high * t + 1 / 15.0;
    t = z.high * t + 1 / 13.0;
    t = z.high * t + 1 / 11.0;
    t = z.high * t + 1 / 9.0;
    t = z.high * t + 1 / 7.0;
    t = z.high * t + 1 / 5.0;
    kvant_double_double series = kvant_two_sum(third.high, third.low + z.high * z.high * t);
    kvant_double_double product = kvant_two_product(2 * s.high, series.high);
    product.low += 2 * (s.high * series.low + s.low * series.high);
    /* exponent * ln 2 + 2 s + 2 s * series */
    kvant_double_double whole = kvant_two_product(exponent, 0x1.62e42fefa39efp-1);
    kvant_double_double sum = kvant_two_sum(whole.high, 2 * s.high);
    double tail = sum.low + whole.low + exponent * 0x1.abc9e3b39803fp-56 + 2 * s.low + product.low;
    sum = kvant_two_sum(sum.high, product.high);
    return kvant_two_sum(sum.high, sum.low + tail);
}

static inline double kvant_log(double x) {
    if (x == 0) return -(0x1p1023 * 2);
    if (!(x > 0)) return (x - x) / (x - x); /* negative or NaN */
    if (x == x * 0.5) return x;             /* infinity */
    return kvant_double_double_log(x).high;
}

#endif
