/* kvant/kit/half.h: exact conversions between float, IEEE half (F16) and bfloat16 (BF16).
 *
 *     F16   s eeeee mmmmmmmmmm         bias 15, subnormals are multiples of 2^-24, largest finite 65504
 *     BF16  s eeeeeeee mmmmmmm         the upper half of a float
 *
 * Encoding rounds to nearest, ties to even; overflow goes to infinity; NaN becomes 7FFF (sign and payload
 * dropped), as CUDA's conversions do. Decoding is exact; an F16 NaN becomes 7FFFFFFF, a BF16 NaN keeps its
 * bits.
 *
 * No conversion produces or reads a subnormal float, apart from BF16's shifts, so results do not depend on
 * the denormal mode. Each function is a straight line of integer operations, one float addition and selects:
 * a loop around it vectorises.
 */
#ifndef KVANT_KIT_HALF_H
#define KVANT_KIT_HALF_H

#include <stdint.h>
#include <string.h>

#ifdef __FAST_MATH__
#error "kvant's kit needs IEEE arithmetic: compile without -ffast-math"
#endif

static inline uint32_t kvant_float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float kvant_bits_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float kvant_f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    int32_t magnitude = half & 0x7fff;
    uint32_t normal = ((uint32_t)magnitude << 13) + 0x38000000u;
    /* 2^-14 + m 2^-24 is normal; taking 2^-14 off again is exact. */
    uint32_t subnormal = kvant_float_bits(kvant_bits_float(normal + 0x00800000u) - 0x1p-14f);
    uint32_t bits = sign | (magnitude < 0x400 ? subnormal : normal);
    bits = magnitude >= 0x7c00 ? sign | 0x7f800000u : bits;
    return kvant_bits_float(magnitude > 0x7c00 ? 0x7fffffffu : bits);
}

static inline uint16_t kvant_f32_to_f16(float x) {
    uint32_t bits = kvant_float_bits(x);
    int32_t magnitude = (int32_t)(bits & 0x7fffffffu);
    magnitude = magnitude < 0x47800000 ? magnitude : 0x47800000; /* 65536, which is infinity's 7C00 */
    int32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    /* Below 2^-14 the result is a multiple of 2^-24: adding 0.5 leaves it, rounded, in the low bits of the
     * sum. */
    int32_t subnormal = (int32_t)kvant_float_bits(kvant_bits_float((uint32_t)magnitude) + 0.5f) - 0x3f000000;
    uint32_t half = (bits >> 16 & 0x8000u) | (uint32_t)(magnitude < 0x38800000 ? subnormal : normal);
    return (uint16_t)(x != x ? 0x7fffu : half);
}

static inline float kvant_bf16_to_f32(uint16_t half) {
    return kvant_bits_float((uint32_t)half << 16);
}

static inline uint16_t kvant_f32_to_bf16(float x) {
    uint32_t bits = kvant_float_bits(x);
    uint32_t half = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)(x != x ? 0x7fffu : half);
}

/* The same, except that a finite number beyond the range becomes the largest of the type, 65504 or 2^128 -
 * 2^120. Infinity stays. */
static inline uint16_t kvant_f32_to_f16_sat(float x) {
    uint32_t bits = kvant_float_bits(x);
    int32_t magnitude = (int32_t)(bits & 0x7fffffffu);
    int32_t over = (magnitude > 0x477fe000) & (magnitude < 0x7f800000);
    return kvant_f32_to_f16(kvant_bits_float(over ? (bits & 0x80000000u) | 0x477fe000u : bits));
}

static inline uint16_t kvant_f32_to_bf16_sat(float x) {
    uint32_t bits = kvant_float_bits(x);
    int32_t magnitude = (int32_t)(bits & 0x7fffffffu);
    int32_t over = (magnitude > 0x7f7f0000) & (magnitude < 0x7f800000);
    return kvant_f32_to_bf16(kvant_bits_float(over ? (bits & 0x80000000u) | 0x7f7f0000u : bits));
}

/* One rounding to the named type, back in float: the arithmetic of that type, operation by operation. */
static inline float kvant_round_f16(float x) {
    return kvant_f16_to_f32(kvant_f32_to_f16(x));
}

static inline float kvant_round_bf16(float x) {
    return kvant_bf16_to_f32(kvant_f32_to_bf16(x));
}

#endif
