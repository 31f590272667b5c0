/* The arithmetic of one partition, in scalar code: this is the norm, the fast code computes the same numbers
 * many at a time.
 *
 * HACK (arXiv 2502.03589, section 5; `quantize_partitions` of its code) quantizes a partition of numbers x to
 * codes 0 ... L, L = 2^bits - 1. All in float32, M rounds once to the type of scales and minima:
 *
 *     m = M(min)            a zero is +0
 *     s = M((max - m) / L)
 *     u = clamp((x - m) / s, 0, L)
 *     code = half_even(u)                               rounding = nearest
 *          = floor(u) + (noise < u - floor(u))          rounding = stochastic
 *     x^ = float(float(code * s) + m)
 *
 * The minimum is rounded before the scale is found, and codes are found against both as stored. Where that
 * leaves float32 or M:
 *
 *     s is not above 0              codes are 0, x^ = m; the scale is stored as 0, or as 1 (flat = one)
 *     max - m overflows             s and u in double precision
 *     m or s overflows              the largest finite number of M, counted as saturated
 *     L * s + m overflows           the whole partition decodes as double(code * s) + m, cut at +-FLT_MAX
 *
 * Queries and weights become codes of 8 bits by the same rule with m and s in float32 (hack_operand).
 */
#ifndef KVANT_HACK_QUANTIZE_H
#define KVANT_HACK_QUANTIZE_H

#include "hack_block.h"

#include <kvant/kit/half.h>

#include <float.h>
#include <math.h>

/* ---- Noise --------------------------------------------------------------------------------------------- */

/* 24 random bits in [0, 1) from a counter: the hash of the method's GPU kernels. */
static inline float hack_noise(uint32_t seed, uint32_t index) {
    uint32_t h = index * 0x9E3779B1u ^ seed;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    h ^= h >> 16;
    return (float)(h >> 8) * 0x1p-24f;
}

/* One to one; every bit of x changes about half of the result's. */
static inline uint64_t hack_mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static inline uint64_t hack_noise_base(uint64_t seed, uint32_t layer, uint32_t side) {
    return hack_mix(hack_mix(seed + 0x9E3779B97F4A7C15u) + ((uint64_t)layer << 1 | side));
}

/* The seed of a row's noise, whose index is the channel. `head` counts among the heads of all ranks. */
static inline uint32_t hack_noise_row(uint64_t base, uint64_t position, uint32_t head) {
    return (uint32_t)(hack_mix(hack_mix(base + position) + head) >> 32);
}

/* ---- Partitions of keys and values --------------------------------------------------------------------- */

static inline float hack_largest(uint32_t dtype) {
    if (dtype == KVANT_DTYPE_F32) return FLT_MAX;
    return dtype == KVANT_DTYPE_F16 ? 65504.0f : 0x1.fep127f;
}

/* Rounds to the dtype; what leaves its range becomes its end. */
static inline float hack_meta_round(uint32_t dtype, float x, uint64_t *saturated) {
    float largest = hack_largest(dtype);
    if (dtype == KVANT_DTYPE_F16) x = kvant_round_f16(x);
    if (dtype == KVANT_DTYPE_BF16) x = kvant_round_bf16(x);
    if (x >= -largest && x <= largest) return x;
    *saturated += 1;
    return x < 0 ? -largest : largest;
}

typedef struct hack_fit {
    float scale; /* as stored, or 0 */
    float min;   /* as stored */
    bool wide;   /* max - min overflows float32 */
} hack_fit;

/* From the least and the largest number of a partition. Its scale is 0 where it has no range. */
static inline hack_fit hack_fit_range(uint32_t meta, uint32_t levels, float low, float high,
                                      uint64_t *saturated) {
    float min = hack_meta_round(meta, low + 0.0f, saturated);
    float range = high - min;
    bool wide = range > FLT_MAX;
    float scale = wide ? (float)(((double)high - (double)min) / (double)levels) : range / (float)levels;
    scale = hack_meta_round(meta, scale, saturated);
    return (hack_fit){.scale = scale > 0 ? scale : 0, .min = min, .wide = wide};
}

/* As it is stored. */
static inline float hack_stored_scale(const hack_block *block, hack_fit fit) {
    return fit.scale > 0 ? fit.scale : block->flat;
}

/* noise: in [0, 1); below 0 for rounding to nearest. */
static inline uint32_t hack_code(hack_fit fit, uint32_t levels, float x, float noise) {
    if (!(fit.scale > 0)) return 0;
    double u, top = (double)levels;
    if (fit.wide)
        u = ((double)x - (double)fit.min) / (double)fit.scale;
    else
        u = (double)((x - fit.min) / fit.scale);
    u = u > 0 ? u : 0;
    u = u < top ? u : top;
    if (noise < 0) return (uint32_t)(u + 0x1p52 - 0x1p52);
    uint32_t whole = (uint32_t)u;
    return whole + ((double)noise < u - (double)whole);
}

/* True where the largest code would decode beyond float32. Also for scales that are not finite. */
static inline bool hack_overflows(uint32_t levels, float scale, float min) {
    float top = (float)levels * scale + min;
    return !(top >= -FLT_MAX && top <= FLT_MAX);
}

static inline float hack_value(uint32_t levels, float scale, float min, uint32_t code) {
    if (!hack_overflows(levels, scale, min)) return (float)code * scale + min;
    double x = (double)code * (double)scale + (double)min;
    x = x > (double)FLT_MAX ? (double)FLT_MAX : x;
    return (float)(x < -(double)FLT_MAX ? -(double)FLT_MAX : x);
}

/* ---- Queries and weights ------------------------------------------------------------------------------- */

enum { HACK_OPERAND_LEVELS = 255 };

/* x is about scale * code + min. */
typedef struct hack_operand {
    float scale;
    float min;
} hack_operand;

static inline hack_operand hack_operand_fit(float low, float high) {
    low += 0.0f;
    float scale = (high - low) / (float)HACK_OPERAND_LEVELS;
    return (hack_operand){.scale = scale > 0 ? scale : 0, .min = low};
}

/* Any x, also what is no number, gives a code of 8 bits. */
static inline uint32_t hack_operand_code(hack_operand o, float x) {
    float u = o.scale > 0 ? (x - o.min) / o.scale : 0;
    u = u > 0 ? u : 0;
    u = u < (float)HACK_OPERAND_LEVELS ? u : (float)HACK_OPERAND_LEVELS;
    return kvant_float_bits(u + 0x1p23f) & 0xffu;
}

#endif
