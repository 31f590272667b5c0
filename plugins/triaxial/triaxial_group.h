/* The arithmetic of one group, in scalar code: this is the norm, triaxial_cpu.c computes the same numbers
 * many at a time.
 *
 * A group of numbers x, in float32 whatever the rows' type, with L = 3 or 15 levels above 0. F rounds once to
 * F16:
 *
 *     encode    scale = (max - min) / L             a zero min' is +0
 *               scale' = F(scale), min' = F(min)    stored
 *               scale' = 1 where it would be 0      a constant group, or a range too small for F16
 *               code = half_even(clamp((x - min') / scale', 0, L))
 *     decode    x^ = code * scale' + min'           two roundings
 *
 * scale' and min' are what codes are found with, so what is stored is what was used. A scale or minimum
 * beyond F16 becomes +-65504 and is counted as saturated. Then every step above is finite.
 */
#ifndef KVANT_TRIAXIAL_GROUP_H
#define KVANT_TRIAXIAL_GROUP_H

#include <kvant/kit/half.h>
#include <kvant/kit/view.h>

#include <stdbool.h>

/* Where the fraction of a float below 2^22 has no room: adding it rounds to integers, ties to even. */
#define TRIAXIAL_ROUNDER 0x1p23f

typedef struct triaxial_group {
    float scale; /* as stored */
    float min;   /* as stored */
} triaxial_group;

static inline float triaxial_stored(float x, uint64_t *saturated) {
    if (!(x < 65520.0f && x > -65520.0f)) *saturated += 1; /* what rounds to 65504 does not count */
    x = x > 65504.0f ? 65504.0f : x;
    return kvant_round_f16(x < -65504.0f ? -65504.0f : x);
}

/* From the least and the largest number of a group. */
static inline triaxial_group triaxial_fit(uint32_t levels, float min, float max, uint64_t *saturated) {
    float scale = triaxial_stored((max - min) / (float)levels, saturated);
    return (triaxial_group){.scale = scale > 0 ? scale : 1.0f, .min = triaxial_stored(min, saturated) + 0.0f};
}

static inline uint32_t triaxial_code(uint32_t levels, triaxial_group group, float x) {
    float top = (float)levels, ratio = (x - group.min) / group.scale;
    ratio = ratio > 0 ? ratio : 0;
    return kvant_float_bits((ratio < top ? ratio : top) + TRIAXIAL_ROUNDER) & 0xffu;
}

static inline float triaxial_value(triaxial_group group, uint32_t code) {
    return (float)code * group.scale + group.min;
}

#endif
