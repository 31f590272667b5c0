/* Number formats by their definition, for tests: every code's value, and the nearest code by looking at all
 * of them. Independent of the interpreter's own conversions. */
#ifndef KVANT_TEST_PTX_FORMATS_H_
#define KVANT_TEST_PTX_FORMATS_H_

#include <math.h>
#include <stdint.h>

/* A format with sign, `exponent_bits`, `digit_bits`: value of a code whose exponent is not special. */
static inline double test_code_value(uint32_t code, int exponent_bits, int digit_bits, int bias) {
    uint32_t digits = code & ((1u << digit_bits) - 1),
             exponent = code >> digit_bits & ((1u << exponent_bits) - 1);
    double value = exponent == 0
                       ? ldexp((double)digits, 1 - bias - digit_bits)
                       : ldexp((double)(digits | 1u << digit_bits), (int)exponent - bias - digit_bits);
    return code >> (exponent_bits + digit_bits) & 1 ? -value : value;
}

/* The code of the nearest value, ties to the even code, beyond the largest clamped. x is no NaN. */
static inline uint32_t test_nearest_code(double x, int exponent_bits, int digit_bits, int bias,
                                         uint32_t largest) {
    double magnitude = fabs(x);
    uint32_t best = 0;
    for (uint32_t code = 1; code <= largest; code++) {
        double here = fabs(magnitude - test_code_value(code, exponent_bits, digit_bits, bias));
        double before = fabs(magnitude - test_code_value(best, exponent_bits, digit_bits, bias));
        if (here < before || (here == before && code % 2 == 0)) best = code;
    }
    if (magnitude > test_code_value(largest, exponent_bits, digit_bits, bias)) best = largest;
    return best | (signbit(x) ? 1u << (exponent_bits + digit_bits) : 0);
}

/* x rounded to `digits` digits and no finer than 2^least, ties to even; exact for the numbers of tests. */
static inline double test_rounded(double x, int digits, int least) {
    if (x == 0 || !isfinite(x)) return x;
    int exponent = ilogb(x) - digits + 1;
    if (exponent < least) exponent = least;
    return ldexp(rint(ldexp(x, -exponent)), exponent);
}
static inline double test_f16(double x) {
    double rounded = test_rounded(x, 11, -24);
    return fabs(rounded) > 65504 ? copysign(INFINITY, x) : rounded;
}
static inline double test_bf16(double x) {
    double rounded = test_rounded(x, 8, -133);
    return fabs(rounded) >= 0x1p128 ? copysign(INFINITY, x) : rounded;
}
static inline double test_f16_value(uint32_t h) {
    if ((h & 0x7c00) == 0x7c00) return h & 0x3ff ? (double)NAN : h & 0x8000 ? -INFINITY : INFINITY;
    return test_code_value(h, 5, 10, 15);
}
static inline double test_bf16_value(uint32_t h) {
    if ((h & 0x7f80) == 0x7f80) return h & 0x7f ? (double)NAN : h & 0x8000 ? -INFINITY : INFINITY;
    return test_code_value(h, 8, 7, 127);
}
/* The bits of a number that the format holds. */
static inline uint32_t test_bits(double x, int exponent_bits, int digit_bits, int bias) {
    uint32_t sign = (signbit(x) ? 1u : 0u) << (exponent_bits + digit_bits), top = ((1u << exponent_bits) - 1)
                                                                                  << digit_bits;
    if (x != x) return top | ((1u << digit_bits) - 1); /* the pattern that PTX calls canonical */
    if (isinf(x)) return sign | top;
    if (x == 0) return sign;
    int exponent = ilogb(x);
    if (exponent < 1 - bias) return sign | (uint32_t)ldexp(fabs(x), bias - 1 + digit_bits);
    uint32_t digits = (uint32_t)ldexp(fabs(x), digit_bits - exponent);
    return sign | (((uint32_t)(exponent + bias) << digit_bits) + digits - (1u << digit_bits));
}
static inline uint32_t test_f16_bits(double x) {
    return test_bits(x, 5, 10, 15);
}
static inline uint32_t test_bf16_bits(double x) {
    return test_bits(x, 8, 7, 127);
}

#endif
