/* kvant/kit/float4.h: the OCP 4-bit float, as CUDA's cuda_fp4.h converts it. One code in the low nibble of a
 * byte.
 *
 *     E2M1  s ee m     bias 1:  0  0.5  1  1.5  2  3  4  6     and the same with a minus sign from 8 on
 *
 * Encoding rounds to nearest, ties to even, and saturates to 6; NaN encodes to 7. Signs of zeros are kept.
 * There is no NaN and no infinity. Loops around these functions vectorise.
 */
#ifndef KVANT_KIT_FLOAT4_H
#define KVANT_KIT_FLOAT4_H

#include "half.h"

/* Looks at the low nibble only. */
static inline float kvant_e2m1_to_f32(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 8u) << 28;
    uint32_t magnitude = code & 7u;
    uint32_t bits = (magnitude << 22) + 0x3f000000u;
    bits = magnitude == 1u ? 0x3f000000u : bits;
    return kvant_bits_float(sign | (magnitude == 0u ? 0u : bits));
}

static inline uint8_t kvant_f32_to_e2m1(float x) {
    uint32_t bits = kvant_float_bits(x);
    int32_t magnitude = (int32_t)(bits & 0x7fffffffu);
    magnitude = magnitude < 0x40c00000 ? magnitude : 0x40c00000; /* 6 */
    int32_t normal = (magnitude + 0x1fffff + (magnitude >> 22 & 1) - 0x3f000000) >> 22;
    /* Adding 2^22 leaves the rounded number of halves in the low bits. */
    int32_t subnormal =
        (int32_t)kvant_float_bits(kvant_bits_float((uint32_t)magnitude) + 0x1p22f) - 0x4a800000;
    uint32_t code = (bits >> 28 & 8u) | (uint32_t)(magnitude < 0x3f800000 ? subnormal : normal);
    return (uint8_t)(x != x ? 7u : code);
}

#endif
