/* kvant/kit/hadamard.h: the Walsh-Hadamard transform.
 *
 *     y[i] = sum over j of (-1)^popcount(i & j) x[j]         Sylvester (natural) order, not normalised
 *
 * It is its own inverse up to the factor 1/n. The butterflies run from stride 1 up to n/2, each (a + b, a -
 * b): the order is part of the definition, for it decides how floats round.
 */
#ifndef KVANT_KIT_HADAMARD_H
#define KVANT_KIT_HADAMARD_H

#include <stdint.h>
#include <string.h>

typedef float kvant_f32x4 __attribute__((vector_size(16)));

/* Strides 1, 2, 4 and 8 of 16 floats. */
static inline void kvant_hadamard_16_(float *x) {
    kvant_f32x4 v[4];
    memcpy(v, x, sizeof v);
    for (uint32_t k = 0; k < 4; k++) {
        kvant_f32x4 swapped = __builtin_shufflevector(v[k], v[k], 1, 0, 3, 2);
        v[k] = __builtin_shufflevector(v[k] + swapped, swapped - v[k], 0, 5, 2, 7);
        swapped = __builtin_shufflevector(v[k], v[k], 2, 3, 0, 1);
        v[k] = __builtin_shufflevector(v[k] + swapped, swapped - v[k], 0, 1, 6, 7);
    }
    kvant_f32x4 a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
    v[0] = a + c;
    v[1] = b + d;
    v[2] = a - c;
    v[3] = b - d;
    memcpy(x, v, sizeof v);
}

/* One stride: two runs of `stride` floats. */
static inline void kvant_hadamard_2_(float *__restrict x0, float *__restrict x1, uint32_t stride) {
    for (uint32_t i = 0; i < stride; i++) {
        float a = x0[i], b = x1[i];
        x0[i] = a + b;
        x1[i] = a - b;
    }
}

/* A stride and its double at once: four runs. */
static inline void kvant_hadamard_4_(float *__restrict x0, float *__restrict x1, float *__restrict x2,
                                     float *__restrict x3, uint32_t stride) {
    for (uint32_t i = 0; i < stride; i++) {
        float a = x0[i] + x1[i], b = x0[i] - x1[i], c = x2[i] + x3[i], d = x2[i] - x3[i];
        x0[i] = a + c;
        x1[i] = b + d;
        x2[i] = a - c;
        x3[i] = b - d;
    }
}

/* In place. n is a power of two; 1 leaves x alone. */
static inline void kvant_hadamard(float *x, uint32_t n) {
    uint32_t stride = 1;
    if (n >= 16) {
        for (uint32_t start = 0; start < n; start += 16) kvant_hadamard_16_(x + start);
        stride = 16;
    }
    for (; stride < n / 2; stride *= 4)
        for (float *at = x; at < x + n; at += 4 * stride)
            kvant_hadamard_4_(at, at + stride, at + 2 * stride, at + 3 * stride, stride);
    if (stride < n)
        for (float *at = x; at < x + n; at += 2 * stride) kvant_hadamard_2_(at, at + stride, stride);
}

#endif
