/* kvant/kit/sum.h: sums whose order does not depend on the width of a register.
 *
 * The halving tree over n numbers, with m the smallest power of two >= n and x[n] ... x[m-1] = +0:
 *
 *     for (half = m/2; half >= 1; half /= 2)
 *         x[i] += x[i + half]   for i < half            the sum is x[0]; of no numbers it is +0
 *
 * Each level is one vector operation, on a CPU of any width and in a warp butterfly alike, so that all
 * machines round the same sums. A codec that promises the same bytes everywhere adds floats in no other
 * order.
 */
#ifndef KVANT_KIT_SUM_H
#define KVANT_KIT_SUM_H

#include <stddef.h>
#include <stdint.h>

/* The smallest power of two >= n, the room that a sum of n needs; 1 for n = 0. n at most 2^31. */
static inline uint32_t kvant_sum_room(uint32_t n) {
    uint32_t room = 1;
    while (room < n) room *= 2;
    return room;
}

/* Destroys x, which has room for kvant_sum_room(n) floats. */
static inline float kvant_sum(float *x, uint32_t n) {
    uint32_t room = kvant_sum_room(n);
    for (uint32_t i = n; i < room; i++) x[i] = 0.0f;
    for (uint32_t half = room / 2; half >= 1; half /= 2) {
        float *upper = x + half;
        for (uint32_t i = 0; i < half; i++) x[i] += upper[i];
    }
    return x[0];
}

/* `width` sums at once: row i of x holds number i of each, rows are `width` floats apart. The sums are left
 * in row 0, the same floats that kvant_sum gives for each column. x has room for kvant_sum_room(n) rows and
 * is destroyed. */
static inline void kvant_sum_columns(float *x, uint32_t n, uint32_t width) {
    uint32_t room = kvant_sum_room(n);
    for (size_t i = (size_t)n * width; i < (size_t)room * width; i++) x[i] = 0.0f;
    for (uint32_t half = room / 2; half >= 1; half /= 2) {
        size_t count = (size_t)half * width;
        float *upper = x + count;
        for (size_t i = 0; i < count; i++) x[i] += upper[i];
    }
}

#endif
