/* The host's float kernels of attention, one set per instruction set; all sets give the same bits.
 *
 * Rows are `width` floats apart, a multiple of 16; what lies past a row's own channels is 0. Sums over
 * channels and over weights run in 16 lanes, number i in lane i mod 16, and the lanes in the halving tree of
 * kit/sum.h. */
#ifndef KVANT_ATTEND_KERNELS_H
#define KVANT_ATTEND_KERNELS_H

#include <kvant/types.h>

enum { KVANT_ATTEND_LANES = 16 };

typedef struct kvant_attend_kernels {
    uint32_t isa;
    /* products[t] = query . rows[t], t < count */
    void (*dot)(const float *query, const float *rows, uint32_t count, uint32_t width, float *products);
    /* x = cap(x + bias) in place, with cap(x) = soft_cap tanh(x / soft_cap) unless soft_cap is 0; the
     * largest, which no NaN is; -infinity of nothing. */
    float (*settle)(float *x, uint32_t count, float bias, float soft_cap);
    /* x = exp(x - largest) in place; their sum. */
    float (*weigh)(float *x, uint32_t count, float largest);
    /* into += weights[t] rows[t], four tokens a turn: into + ((w0 r0 + w1 r1) + (w2 r2 + w3 r3)), what is
     * left one by one. */
    void (*mix)(float *into, const float *weights, const float *rows, uint32_t count, uint32_t width);
    /* into = into * a */
    void (*scale)(float *into, uint32_t count, float a);
    /* into = into * a + from * b */
    void (*merge)(float *into, float a, const float *from, float b, uint32_t count);
    /* Rows [first, first + count) of one head as floats; what lies past a row's channels is not written. */
    void (*load)(const kvant_view *view, uint32_t first, uint32_t count, uint32_t head, float *rows,
                 uint32_t width);
    /* One row turned in place, as kvant_rope_apply. */
    void (*turn)(const kvant_rope *rope, const float *turns, float *row);
} kvant_attend_kernels;

/* The best set at or below an instruction set. */
const kvant_attend_kernels *kvant_attend_kernels_for(uint32_t isa);

#endif
