/* The arithmetic of kivi_group.h on rows of numbers, KIVI_LANES at a time and one by one at the end of a row.
 *
 * Arguments called dtype and meta are constants in every use, so that no loop has a choice in it. Rows of
 * elements have no alignment; arrays of floats are the codec's own and have room up to the next multiple of
 * 64 bytes.
 */
#ifndef KVANT_KIVI_ROWS_H
#define KVANT_KIVI_ROWS_H

#include "kivi_group.h"
#include "kivi_lanes.h"

#include <math.h>

KIVI_INLINE const char *kivi_element(const char *row, size_t i, uint32_t dtype) {
    return row + i * kvant_element_bytes(dtype);
}

/* What is left at the end of a row goes through functions of their own, one for all types, so that it does
 * not swell the loops. */
#define KIVI_TAIL static __attribute__((noinline))

KIVI_TAIL float kivi_tail_element(const char *row, size_t i, uint32_t dtype) {
    return kvant_load_element(kivi_element(row, i, dtype), dtype);
}

KIVI_TAIL void kivi_tail_store(void *row, size_t i, uint32_t dtype, float x) {
    kvant_store_element((char *)row + i * kvant_element_bytes(dtype), dtype, x);
}

KIVI_TAIL uint8_t kivi_tail_code(const char *row, size_t i, uint32_t dtype, float min, float divisor,
                                 float levels) {
    float ratio = kivi_round(dtype, kivi_round(dtype, kivi_tail_element(row, i, dtype) - min) / divisor);
    ratio = ratio > 0 ? ratio : 0;
    return (uint8_t)kvant_float_bits((ratio < levels ? ratio : levels) + (float)KIVI_ROUNDER);
}

/* ---- Least and largest --------------------------------------------------------------------------------- */

/* Of each channel over four rows (keys), together with what low and high hold already unless they are
 * `fresh`. */
KIVI_INLINE void kivi_range_down(const char *const rows[4], uint32_t dtype, uint32_t count, bool fresh,
                                 float *low, float *high) {
    uint32_t i = 0;
    for (; i + KIVI_LANES <= count; i += KIVI_LANES) {
        kivi_floats x[4];
        for (uint32_t r = 0; r < 4; r++) x[r] = kivi_load(kivi_element(rows[r], i, dtype), dtype);
        kivi_floats least = kivi_least(kivi_least(x[0], x[1]), kivi_least(x[2], x[3]));
        kivi_floats most = kivi_most(kivi_most(x[0], x[1]), kivi_most(x[2], x[3]));
        if (!fresh) {
            least = kivi_least(least, kivi_load(low + i, KVANT_DTYPE_F32));
            most = kivi_most(most, kivi_load(high + i, KVANT_DTYPE_F32));
        }
        kivi_store(low + i, KVANT_DTYPE_F32, least);
        kivi_store(high + i, KVANT_DTYPE_F32, most);
    }
    for (; i < count; i++)
        for (uint32_t r = 0; r < 4; r++) {
            float x = kivi_tail_element(rows[r], i, dtype);
            bool only = fresh && r == 0;
            low[i] = only || x < low[i] ? x : low[i];
            high[i] = only || x > high[i] ? x : high[i];
        }
}

/* Of the channels [from, to) of a row (values). */
KIVI_INLINE void kivi_range_along(const char *row, uint32_t dtype, uint32_t from, uint32_t to, float *low,
                                  float *high) {
    float least, most;
    uint32_t i = from + KIVI_LANES;
    if (i <= to) {
        kivi_floats leasts = kivi_load(kivi_element(row, from, dtype), dtype), mosts = leasts;
        for (; i + KIVI_LANES <= to; i += KIVI_LANES) {
            kivi_floats x = kivi_load(kivi_element(row, i, dtype), dtype);
            leasts = kivi_least(leasts, x);
            mosts = kivi_most(mosts, x);
        }
        least = kivi_least_lane(leasts);
        most = kivi_most_lane(mosts);
    } else {
        least = most = kivi_tail_element(row, from, dtype);
        i = from + 1;
    }
    for (; i < to; i++) {
        float x = kivi_tail_element(row, i, dtype);
        least = x < least ? x : least;
        most = x > most ? x : most;
    }
    *low = least;
    *high = most;
}

/* ---- Scales -------------------------------------------------------------------------------------------- */

enum { KIVI_FIT_WIDE = 1, KIVI_FIT_SATURATED = 2 };

/* Scales and minima as they are stored, and what codes are divided by: the scale, or infinity where it is 0,
 * so that codes are 0. Returns KIVI_FIT_* if a group leaves the range of its types; its numbers are then not
 * to be used. Arrays are read and written up to the next multiple of KIVI_LANES. */
KIVI_INLINE uint32_t kivi_fit_row(uint32_t dtype, uint32_t meta, uint32_t count, float levels,
                                  const float *low, const float *high, float *scale, float *min,
                                  float *divisor) {
    kivi_ints wide = {0}, saturated = {0};
    const kivi_floats infinity = kivi_splat(INFINITY), zero = {0};
    for (uint32_t i = 0; i < count; i += KIVI_LANES) {
        kivi_floats least = kivi_load(low + i, KVANT_DTYPE_F32), most = kivi_load(high + i, KVANT_DTYPE_F32);
        kivi_floats range = kivi_rounded(dtype, most - least);
        kivi_floats s = kivi_rounded(meta, kivi_rounded(dtype, range / levels));
        kivi_floats m = kivi_rounded(meta, least + zero); /* -0 becomes +0 */
        wide |= kivi_beyond(range, kivi_largest(dtype));
        saturated |= kivi_beyond(s, kivi_largest(meta)) | kivi_beyond(m, kivi_largest(meta));
        kivi_store(scale + i, KVANT_DTYPE_F32, s);
        kivi_store(min + i, KVANT_DTYPE_F32, m);
        kivi_store(divisor + i, KVANT_DTYPE_F32,
                   (kivi_floats)kivi_select(s > zero, (kivi_ints)s, (kivi_ints)infinity));
    }
    return (kivi_any(wide) ? KIVI_FIT_WIDE : 0u) | (kivi_any(saturated) ? KIVI_FIT_SATURATED : 0u);
}

/* Numbers that are representable in `meta` to neighbours of a plane, and back. */
KIVI_INLINE void kivi_store_row(uint8_t *plane, uint32_t meta, const float *x, uint32_t count) {
    uint32_t i = 0, bytes = kvant_element_bytes(meta);
    for (; i + KIVI_LANES <= count; i += KIVI_LANES)
        kivi_store(plane + (size_t)i * bytes, meta, kivi_load(x + i, KVANT_DTYPE_F32));
    for (; i < count; i++) kivi_tail_store(plane, i, meta, x[i]);
}

KIVI_INLINE void kivi_load_row(const uint8_t *plane, uint32_t meta, float *x, uint32_t count) {
    uint32_t i = 0, bytes = kvant_element_bytes(meta);
    for (; i + KIVI_LANES <= count; i += KIVI_LANES)
        kivi_store(x + i, KVANT_DTYPE_F32, kivi_load(plane + (size_t)i * bytes, meta));
    for (; i < count; i++) x[i] = kivi_tail_element((const char *)plane, i, meta);
}

/* ---- Codes --------------------------------------------------------------------------------------------- */

/* Codes as floats with 2^23 on top. */
KIVI_INLINE kivi_floats kivi_ratio(const char *row, uint32_t i, uint32_t dtype, kivi_floats min,
                                   kivi_floats divisor, kivi_floats levels) {
    const kivi_floats zero = {0};
    kivi_floats x = kivi_rounded(dtype, kivi_load(kivi_element(row, i, dtype), dtype) - min);
    kivi_floats ratio = kivi_rounded(dtype, x / divisor);
    return kivi_least(levels, kivi_most(zero, ratio)) + (float)KIVI_ROUNDER;
}

/* The codes of the channels [from, to) of a row. `each`: every channel has its own minimum and divisor
 * (keys), otherwise one for all (values). */
KIVI_INLINE void kivi_code_row(const char *row, uint32_t dtype, uint32_t from, uint32_t to, bool each,
                               const float *min, const float *divisor, float levels, uint8_t *codes) {
    const kivi_floats top = kivi_splat(levels), one_min = kivi_splat(min[0]),
                      one_divisor = kivi_splat(divisor[0]);
    uint32_t i = from;
    for (; i + 4 * KIVI_LANES <= to; i += 4 * KIVI_LANES) {
        kivi_floats x[4];
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t at = i + k * KIVI_LANES;
            x[k] = kivi_ratio(row, at, dtype, each ? kivi_load(min + at, KVANT_DTYPE_F32) : one_min,
                              each ? kivi_load(divisor + at, KVANT_DTYPE_F32) : one_divisor, top);
        }
        kivi_store_codes4(codes + i, x);
    }
    for (; i + KIVI_LANES <= to; i += KIVI_LANES)
        kivi_store_codes(codes + i,
                         kivi_ratio(row, i, dtype, each ? kivi_load(min + i, KVANT_DTYPE_F32) : one_min,
                                    each ? kivi_load(divisor + i, KVANT_DTYPE_F32) : one_divisor, top));
    for (; i < to; i++)
        codes[i] = kivi_tail_code(row, i, dtype, min[each ? i : 0], divisor[each ? i : 0], levels);
}

/* And back, to elements of dtype. */
KIVI_INLINE void kivi_value_row(const uint8_t *codes, uint32_t from, uint32_t to, bool each,
                                const float *scale, const float *min, char *row, uint32_t dtype) {
    const kivi_floats one_scale = kivi_splat(scale[0]), one_min = kivi_splat(min[0]);
    uint32_t i = from, bytes = kvant_element_bytes(dtype);
    for (; i + 4 * KIVI_LANES <= to; i += 4 * KIVI_LANES)
        for (uint32_t k = i; k < i + 4 * KIVI_LANES; k += KIVI_LANES) {
            kivi_floats s = each ? kivi_load(scale + k, KVANT_DTYPE_F32) : one_scale;
            kivi_floats m = each ? kivi_load(min + k, KVANT_DTYPE_F32) : one_min;
            kivi_store(row + (size_t)k * bytes, dtype, kivi_load_codes(codes + k) * s + m);
        }
    for (; i + KIVI_LANES <= to; i += KIVI_LANES) {
        kivi_floats s = each ? kivi_load(scale + i, KVANT_DTYPE_F32) : one_scale;
        kivi_floats m = each ? kivi_load(min + i, KVANT_DTYPE_F32) : one_min;
        kivi_store(row + (size_t)i * bytes, dtype, kivi_load_codes(codes + i) * s + m);
    }
    for (; i < to; i++)
        kivi_tail_store(row, i, dtype, (float)codes[i] * scale[each ? i : 0] + min[each ? i : 0]);
}

#endif
