/* The arithmetic of KVQuant, one number at a time: the norm. Single precision, one rounding an operation.
 *
 *     group     a channel's tokens, or a token's channels over all heads
 *     range     [lower, upper] of the group; z = (upper + lower) / 2, r = (upper - lower) / 2
 *     value     v = book[code] * r + z
 *     outlier   an element x with x > high or x < low; kept as it was
 *
 *     simulated    a = (x - z) / r, code = nearest of book to a           outlier decodes to (x - z) + z
 *     deployed     code = nearest of the values book[i] * r + z to x      outlier decodes to v + (x - v)
 *
 * Nearest is the least magnitude of the float difference, the first of equals. Where r is 0 the code is 0 and
 * the value z.
 */
#ifndef KVANT_KVQUANT_MATH_H
#define KVANT_KVQUANT_MATH_H

#include "kvquant_block.h"

#include <float.h>
#include <math.h>

/* ---- Ranges -------------------------------------------------------------------------------------------- */

typedef struct kvquant_range {
    float middle; /* z */
    float half;   /* r */
} kvquant_range;

static inline bool kvquant_finite(float x) {
    return x >= -FLT_MAX && x <= FLT_MAX;
}

static inline kvquant_range kvquant_range_of(float upper, float lower) {
    float sum = upper + lower, difference = upper - lower;
    kvquant_range range = {sum / 2, difference / 2};
    if (!kvquant_finite(sum)) range.middle = upper / 2 + lower / 2;
    if (!kvquant_finite(difference)) range.half = upper / 2 - lower / 2;
    range.middle += 0.0f; /* -0 becomes +0 */
    return range;
}

/* Static ranges: the same in float16 arithmetic. What overflows it is computed in float and rounded once. */
static inline kvquant_range kvquant_range_of_f16(float upper, float lower) {
    float sum = kvant_round_f16(upper + lower), difference = kvant_round_f16(upper - lower);
    kvquant_range range = {kvant_round_f16(sum / 2), kvant_round_f16(difference / 2)};
    if (!kvquant_finite(sum)) range.middle = kvant_f16_to_f32(kvant_f32_to_f16_sat((upper + lower) / 2));
    if (!kvquant_finite(difference)) range.half = kvant_f16_to_f32(kvant_f32_to_f16_sat((upper - lower) / 2));
    range.middle += 0.0f;
    return range;
}

/* Rounds to the meta type; a number beyond it becomes its largest and is counted. */
static inline float kvquant_to_meta(uint32_t meta, float x, uint64_t *saturated) {
    if (meta == KVANT_DTYPE_F32) return x;
    float plain = meta == KVANT_DTYPE_F16 ? kvant_round_f16(x) : kvant_round_bf16(x);
    if (kvquant_finite(plain)) return plain;
    *saturated += 1;
    return meta == KVANT_DTYPE_F16 ? kvant_f16_to_f32(kvant_f32_to_f16_sat(x))
                                   : kvant_bf16_to_f32(kvant_f32_to_bf16_sat(x));
}

/* ---- Codes and values ---------------------------------------------------------------------------------- */

/* What a - z is divided by: NaN where r is 0, so that the code is 0. */
static inline float kvquant_divisor(float half) {
    return half > 0 ? half : NAN;
}

static inline uint32_t kvquant_nearest(const float *table, uint32_t levels, float x) {
    x = x > table[0] ? x : table[0]; /* far outside all differences would be alike */
    x = x < table[levels - 1] ? x : table[levels - 1];
    uint32_t code = 0;
    float least = fabsf(table[0] - x);
    for (uint32_t i = 1; i < levels; i++) {
        float distance = fabsf(table[i] - x);
        code = distance < least ? i : code;
        least = distance < least ? distance : least;
    }
    return code;
}

static inline float kvquant_value(float entry, kvquant_range range) {
    float x = entry * range.half + range.middle;
    x = x > -FLT_MAX ? x : -FLT_MAX;
    return x < FLT_MAX ? x : FLT_MAX;
}

static inline uint32_t kvquant_code_of(const kvquant_block *block, const float *book, kvquant_range range,
                                       float x) {
    if (!block->config.deployed)
        return kvquant_nearest(book, block->levels, (x - range.middle) / kvquant_divisor(range.half));
    float table[16] = {0};
    for (uint32_t i = 0; i < block->levels; i++) table[i] = kvquant_value(book[i], range);
    return kvquant_nearest(table, block->levels, x);
}

/* base + (x - base), which is x but for its last places; x itself where that overflows. */
static inline float kvquant_restored(float base, float x) {
    float difference = x - base, sum = base + difference;
    return kvquant_finite(difference) && kvquant_finite(sum) ? sum : x;
}

/* ---- Dynamic ranges ------------------------------------------------------------------------------------ */

/* Elements of a group above `high` or below `low` are outliers; `upper` and `lower` is the range of the
 * others. */
typedef struct kvquant_cut {
    float high, low;
    float upper, lower;
} kvquant_cut;

/* The next float up or down; from the largest to infinity. */
static inline float kvquant_above(float x) {
    x += 0.0f;
    uint32_t bits = kvant_float_bits(x);
    return x >= 0 ? kvant_bits_float(bits + 1) : kvant_bits_float(bits - 1) + 0.0f;
}

static inline float kvquant_below(float x) {
    return -kvquant_above(-x);
}

/* Where the quantile q of n ascending numbers lies: between those of index `index` and `next`. As torch
 * has it: q is rounded to float first, the weight after. */
typedef struct kvquant_place {
    uint32_t index, next;
    float weight;
} kvquant_place;

static inline kvquant_place kvquant_place_of(double q, uint32_t n) {
    double position = (double)(float)q * (double)(n - 1);
    kvquant_place place = {.index = (uint32_t)position};
    place.weight = (float)(position - (double)place.index);
    place.next = place.index + 1 < n ? place.index + 1 : place.index;
    return place;
}

/* torch's lerp with its fused multiply-add: the product is exact in double. */
static inline float kvquant_lerp(float a, float b, float weight) {
    double difference = (double)(b - a);
    if (!kvquant_finite(b - a)) return (float)((double)a + (double)weight * ((double)b - (double)a));
    return weight < 0.5f ? (float)((double)a + (double)weight * difference)
                         : (float)((double)b - (double)(1.0f - weight) * difference);
}

static inline double kvquant_upper_quantile(const kvquant_config *config) {
    return 1 - config->fraction / 2;
}

/* The cut by quantiles, from what was found in the group: the two quantiles; how many numbers are at or above
 * the higher and at or below the lower; the largest and least in between (upper < lower: none); the lower
 * median. The median stands in for outliers, so the range includes it. */
static inline kvquant_cut kvquant_cut_of(float high, float low, float upper, float lower, bool median_is_out,
                                         float median) {
    kvquant_cut cut = {kvquant_below(high), kvquant_above(low), upper, lower};
    if (median_is_out) {
        cut.upper = upper < lower || median > upper ? median : upper;
        cut.lower = upper < lower || median < lower ? median : lower;
    }
    /* A group without width: what equals it is exact already. */
    if (!(cut.upper > cut.lower)) cut.high = cut.low = cut.upper;
    return cut;
}

#endif
