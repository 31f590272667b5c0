/* The exponential and the hyperbolic tangent of the softmax, in float, from + - * / alone and without
 * branches: loops around them vectorise, and every machine computes the same bits. Largest errors over all
 * floats of the stated range, against exact values: exp 1.0 ulp, tanh 1.5 ulp. */
#ifndef KVANT_ATTEND_MATH_H
#define KVANT_ATTEND_MATH_H

#include <kvant/kit/half.h>

/* e^x for x <= 0; 0 below -87, where results would leave the normal numbers; NaN for NaN.
 * x = k ln 2 + r with |r| <= ln(2)/2; minimax polynomial of degree 6 for e^r (Cephes, expf). */
static inline float kvant_attend_exp(float x) {
    float y = x < -87.0f ? -87.0f : x;
    float shifted = y * 0x1.715476p+0f + 0x1.8p23f; /* k in its low bits */
    float k = shifted - 0x1.8p23f;
    float r = (y - k * 0x1.63p-1f) + k * 0x1.bd0106p-13f; /* ln 2 in two parts; the first product is exact */
    float p = 0x1.a0d2cep-13f;
    p = p * r + 0x1.6e879cp-10f;
    p = p * r + 0x1.11121p-7f;
    p = p * r + 0x1.555382p-5f;
    p = p * r + 0x1.555554p-3f;
    p = p * r + 0.5f;
    float e = 1.0f + (r + r * r * p);
    float power = kvant_bits_float((kvant_float_bits(shifted) - 0x4b400000u + 127u) << 23); /* 2^k */
    float result = e * power;
    return x < -87.0f ? 0.0f : result;
}

/* Below 0.625 an odd polynomial (Cephes, tanhf), which keeps small numbers; above, (1 - t)/(1 + t) with
 * t = e^(-2|x|). */
static inline float kvant_attend_tanh(float x) {
    float magnitude = x < 0 ? -x : x, z = x * x;
    float p = -0x1.75e1d4p-8f;
    p = p * z + 0x1.52269cp-6f;
    p = p * z - 0x1.b83c5ap-5f;
    p = p * z + 0x1.110726p-3f;
    p = p * z - 0x1.555532p-2f;
    float small = x + x * z * p;
    float t = kvant_attend_exp(-2.0f * magnitude);
    float large = (1.0f - t) / (1.0f + t);
    large = x < 0 ? -large : large;
    return magnitude < 0.625f ? small : large;
}

#endif
