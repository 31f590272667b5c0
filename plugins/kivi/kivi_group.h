/* The arithmetic of one group, in scalar code: this is the norm, kivi_cpu.c computes the same numbers many at
 * a time.
 *
 * KIVI (arXiv 2402.02750, section 3) quantizes a group of numbers x to codes 0 ... L, L = 2^bits - 1, by its
 * minimum and its range. T rounds once to the dtype of the rows, M once to the dtype of scales and minima, D
 * is double:
 *
 *     encode    range = T(max - min)                scale = T(range / L)    a zero min or max is +0
 *               scale' = M(scale), min' = M(min)    stored
 *               code = half_even(clamp(T(T(x - min') / scale'), 0, L))
 *     decode    x^ = float(float(code * scale') + min')
 *
 * and where that leaves the numbers that T or M can hold:
 *
 *     scale' = 0 (constant group, or a range too small for the type)
 *                                  codes are 0, so that x^ = min'
 *     max - min overflows T        scale = T(D(D(max - min) / L))
 *                                  code = half_even(clamp(D(D(x - min') / scale'), 0, L))
 *     scale or min overflows       the largest finite number of its type, counted as saturated
 *     decoding: the largest        the whole group is x^ = float(D(D(code * scale') + min')), not beyond the
 *     code's value overflows T     largest finite number of T: a scale that was rounded up never turns a
 *                                  finite row into infinity
 */
#ifndef KVANT_KIVI_GROUP_H
#define KVANT_KIVI_GROUP_H

#include "kivi_block.h"

#include <kvant/kit/half.h>

#include <float.h>

/* Where the fraction of a float below 2^22 has no room: adding and subtracting it rounds to integers, ties to
 * even. */
#define KIVI_ROUNDER 0x1p23f

static inline float kivi_round(uint32_t dtype, float x) {
    if (dtype == KVANT_DTYPE_F32) return x;
    return dtype == KVANT_DTYPE_F16 ? kvant_round_f16(x) : kvant_round_bf16(x);
}

static inline float kivi_largest(uint32_t dtype) {
    if (dtype == KVANT_DTYPE_F32) return FLT_MAX;
    return dtype == KVANT_DTYPE_F16 ? 65504.0f : 0x1.fep127f;
}

typedef struct kivi_group {
    float scale; /* as stored */
    float min;   /* as stored */
    bool wide;   /* max - min overflows the rows' type */
} kivi_group;

static inline float kivi_saturate(float x, float largest, uint64_t *saturated) {
    if (x >= -largest && x <= largest) return x;
    *saturated += 1;
    return x < 0 ? -largest : largest;
}

/* From the least and the largest number of a group. */
static inline kivi_group kivi_group_fit(const kivi_block *block, float min, float max, uint64_t *saturated) {
    float range = kivi_round(block->dtype, max - min);
    bool wide = range > kivi_largest(block->dtype);
    float scale =
        wide ? (float)(((double)max - (double)min) / (double)block->levels) : range / (float)block->levels;
    uint64_t overflows = 0;
    scale = kivi_saturate(kivi_round(block->dtype, scale), kivi_largest(block->dtype), &overflows);
    scale = kivi_saturate(kivi_round(block->meta, scale), kivi_largest(block->meta), &overflows);
    *saturated += overflows > 0;
    min = kivi_saturate(kivi_round(block->meta, min + 0.0f), kivi_largest(block->meta), saturated);
    return (kivi_group){.scale = scale, .min = min, .wide = wide};
}

static inline uint32_t kivi_group_code(const kivi_block *block, kivi_group group, float x) {
    float top = (float)block->levels;
    if (!(group.scale > 0)) return 0;
    if (group.wide) {
        double ratio = ((double)x - (double)group.min) / (double)group.scale;
        ratio = ratio > 0 ? ratio : 0;
        return (uint32_t)((ratio < top ? ratio : top) + 0x1p52 - 0x1p52);
    }
    float ratio = kivi_round(block->dtype, kivi_round(block->dtype, x - group.min) / group.scale);
    ratio = ratio > 0 ? ratio : 0;
    return kvant_float_bits((ratio < top ? ratio : top) + KIVI_ROUNDER) & 0xffu;
}

/* True where the group's largest code would decode beyond the rows' type. Also for scales that are not
 * finite. */
static inline bool kivi_group_overflows(const kivi_block *block, float scale, float min) {
    float top = (float)block->levels * scale + min, largest = kivi_largest(block->dtype);
    return !(top >= -largest && top <= largest);
}

static inline float kivi_group_value(const kivi_block *block, float scale, float min, uint32_t code) {
    if (!kivi_group_overflows(block, scale, min)) return (float)code * scale + min;
    double largest = (double)kivi_largest(block->dtype);
    double x = (double)code * (double)scale + (double)min;
    x = x > largest ? largest : x;
    return (float)(x < -largest ? -largest : x);
}

/* One scale or minimum of a plane. */
static inline float kivi_plane_load(const kivi_block *block, const uint8_t *plane, size_t index) {
    return kvant_load_element(plane + index * block->meta_bytes, block->meta);
}

static inline void kivi_plane_store(const kivi_block *block, uint8_t *plane, size_t index, float x) {
    kvant_store_element(plane + index * block->meta_bytes, block->meta, x);
}

#endif
