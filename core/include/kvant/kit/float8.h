/* kvant/kit/float8.h: the two OCP 8-bit floats, as CUDA's cuda_fp8.h converts them.
 *
 *     E4M3  s eeee mmm  bias 7,  subnormals multiples of 2^-9,  largest 448 (7E), no infinity, NaN 7F, FF
 *     E5M2  s eeeee mm  bias 15, subnormals multiples of 2^-16, largest 57344 (7B), infinity 7C, NaN 7D-7F
 *
 * Encoding rounds to nearest, ties to even. The plain encoders saturate, infinities too; the _nosat ones go
 * to NaN (E4M3) or infinity (E5M2) past the last tie (464; 61440 itself overflows). NaN encodes to 7F, sign
 * and payload dropped, and decodes to 7FFFFFFF. Signs of zeros are kept. Loops around these functions
 * vectorise.
 */
#ifndef KVANT_KIT_FLOAT8_H
#define KVANT_KIT_FLOAT8_H

#include "half.h"

static inline float kvant_e4m3_to_f32(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    uint32_t magnitude = code & 0x7fu;
    uint32_t normal = (magnitude << 20) + 0x3c000000u;
    uint32_t subnormal = kvant_float_bits(kvant_bits_float((magnitude << 20) + 0x3c800000u) - 0x1p-6f);
    uint32_t bits = sign | ((int32_t)magnitude < 8 ? subnormal : normal);
    return kvant_bits_float(magnitude == 0x7fu ? 0x7fffffffu : bits);
}

/* NaN apart: the code of the magnitude, at most `largest`, with its sign. */
static inline uint32_t kvant_e4m3_code_(uint32_t bits, int32_t largest) {
    int32_t magnitude = (int32_t)(bits & 0x7fffffffu);
    magnitude = magnitude < largest ? magnitude : largest;
    int32_t normal = (magnitude + 0x7ffff + (magnitude >> 20 & 1) - 0x3c000000) >> 20;
    /* Adding 2^14 leaves the rounded multiple of 2^-9 in the low bits. */
    int32_t subnormal =
        (int32_t)kvant_float_bits(kvant_bits_float((uint32_t)magnitude) + 0x1p14f) - 0x46800000;
    return (bits >> 24 & 0x80u) | (uint32_t)(magnitude < 0x3c800000 ? subnormal : normal);
}

static inline uint8_t kvant_f32_to_e4m3(float x) {
    uint32_t code = kvant_e4m3_code_(kvant_float_bits(x), 0x43e00000); /* 448 */
    return (uint8_t)(x != x ? 0x7fu : code);
}

static inline uint8_t kvant_f32_to_e4m3_nosat(float x) {
    uint32_t code = kvant_e4m3_code_(kvant_float_bits(x), 0x43f00000); /* 480, which would be 7F */
    return (uint8_t)(x != x ? 0x7fu : code);
}

/* E5M2 is the upper half of an F16. */
static inline float kvant_e5m2_to_f32(uint8_t code) {
    return kvant_f16_to_f32((uint16_t)((uint32_t)code << 8));
}

static inline uint32_t kvant_e5m2_code_(uint32_t bits, int32_t largest) {
    int32_t magnitude = (int32_t)(bits & 0x7fffffffu);
    magnitude = magnitude < largest ? magnitude : largest;
    int32_t normal = (magnitude + 0xfffff + (magnitude >> 21 & 1) - 0x38000000) >> 21;
    /* Adding 2^7 leaves the rounded multiple of 2^-16 in the low bits. */
    int32_t subnormal =
        (int32_t)kvant_float_bits(kvant_bits_float((uint32_t)magnitude) + 0x1p7f) - 0x43000000;
    return (bits >> 24 & 0x80u) | (uint32_t)(magnitude < 0x38800000 ? subnormal : normal);
}

static inline uint8_t kvant_f32_to_e5m2(float x) {
    uint32_t code = kvant_e5m2_code_(kvant_float_bits(x), 0x47600000); /* 57344 */
    return (uint8_t)(x != x ? 0x7fu : code);
}

static inline uint8_t kvant_f32_to_e5m2_nosat(float x) {
    uint32_t code = kvant_e5m2_code_(kvant_float_bits(x), 0x47800000); /* 65536, which would be 7C */
    return (uint8_t)(x != x ? 0x7fu : code);
}

#endif
