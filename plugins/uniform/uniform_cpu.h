/* What the vectorised files share. Each is compiled once per instruction set (kvant/kit/isa.h); every step in
 * them is element by element and gives, operation by operation, the floats of uniform_convention.c; ranges
 * are minima and maxima, which have no order, and means sum in the kit's tree. Between the steps lie small
 * arrays in scratch:
 *
 *     uniform_cpu_fit.c      tile of floats -> ranges -> planes of scales and offsets; what quotients take
 *     uniform_cpu_encode.c   rows -> tile -> (fit) -> codes, a byte each -> planar order
 *     uniform_cpu_decode.c   planar order -> codes, a byte each -> floats -> rows
 */
#ifndef KVANT_UNIFORM_CPU_H
#define KVANT_UNIFORM_CPU_H

#include "uniform_state.h"

#include <kvant/kit/view.h>

#include <float.h>
#include <math.h>
#include <string.h>

/* Flags that are constants where it is used: a loop has no choice in it. */
#define UNIFORM_INLINE static inline __attribute__((always_inline))

/* A head's rows lie apart, in the rows of all heads, where no prefetcher of the machine finds them in time:
 * the loops over tokens fetch the row of this many tokens later. */
enum { UNIFORM_AHEAD = 4 };

/* Two statements, two instructions; NaN becomes low. */
static inline float uniform_clamp(float x, float low, float high) {
    float y = x > low ? x : low;
    return y < high ? y : high;
}

static inline float uniform_round_half_even(float x) {
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

/* Floats in integer order, so that minima and maxima are those of integers: -0 comes just below +0. */
static inline int32_t uniform_key_of(float x) {
    int32_t bits = (int32_t)kvant_float_bits(x);
    return bits ^ (bits >> 31 & 0x7fffffff);
}

static inline float uniform_float_of(int32_t key) {
    return kvant_bits_float((uint32_t)(key ^ (key >> 31 & 0x7fffffff)));
}

/* Widens a range by n numbers: by their magnitudes, or by the numbers themselves, as sort keys. */
void KVANT_CPU(uniform_widen)(bool magnitude, const float *x, size_t n, int32_t *low, int32_t *high);

/* The one range of everything in the heads [first, first + heads): scratch->low_key[0] and high_key[0]. */
void KVANT_CPU(uniform_range_heads)(const uniform_state *state, uniform_scratch *scratch,
                                    const kvant_view *rows, uint32_t first, uint32_t heads);

/* The ranges of the tile's groups, where a group lies within a head's token or channel. */
void KVANT_CPU(uniform_range_tile)(const uniform_state *state, uniform_scratch *scratch);

/* uniform_fit for n groups of a head, from their ranges: writes the planes of the extent, and what the
 * quotients take. Returns how many numbers saturated. */
uint32_t KVANT_CPU(uniform_fit_planes)(const uniform_state *state, uniform_scratch *scratch, size_t n,
                                       uint8_t *extent, uint32_t head);

/* The same from static scales. */
void KVANT_CPU(uniform_fix_planes)(const uniform_state *state, uniform_scratch *scratch, size_t n,
                                   uint32_t head);

#endif
