/* Sums, rotations and sketches in loops that vectorise, for turboquant_cpu.c: operation by operation those of
 * turboquant_reference.c. */
#ifndef KVANT_TURBOQUANT_LANES_H
#define KVANT_TURBOQUANT_LANES_H

#include "turboquant_scratch.h"

#include <kvant/kit/hadamard.h>

/* kvant_sum, its last levels without loops. x has room for 16. */
static inline float sum_of(float *x, uint32_t n) {
    uint32_t room = kvant_sum_room(n);
    if (room < 16) return kvant_sum(x, n);
    for (uint32_t i = n; i < room; i++) x[i] = 0.0f;
    for (uint32_t half = room / 2; half >= 8; half /= 2) {
        const float *upper = x + half;
        for (uint32_t i = 0; i < half; i++) x[i] += upper[i];
    }
    float four[4];
    for (uint32_t i = 0; i < 4; i++) four[i] = x[i] + x[i + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* ---- Rotations ----------------------------------------------------------------------------------------- */

static inline void transform_chunks(float *x, uint32_t dim) {
    while (dim > 0) {
        uint32_t chunk = 1u << (31 - (uint32_t)__builtin_clz(dim));
        kvant_hadamard(x, chunk);
        x += chunk;
        dim -= chunk;
    }
}

static inline void weigh(float *__restrict x, const float *__restrict weights, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) x[i] *= weights[i];
}

static inline void flip(float *__restrict x, const float *__restrict weights, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) x[i] = turboquant_flip(x[i], weights[i]);
}

static inline void shrink(float *__restrict x, const float *__restrict weights, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) x[i] = turboquant_shrink(x[i], weights[i]);
}

/* What is left of a rotation once the first round's signs are in. */
static inline void rotate_flipped(const turboquant_rotation *r, float *__restrict x, float *__restrict swap) {
    transform_chunks(x, r->dim);
    shrink(x, r->weights, r->dim);
    for (uint32_t round = 1; round < r->rounds; round++) {
        const float *weights = r->weights + (size_t)round * r->dim;
        if (r->reorders) {
            const uint32_t *order = r->order + (size_t)round * r->dim;
            for (uint32_t i = 0; i < r->dim; i++) swap[i] = turboquant_flip(x[order[i]], weights[i]);
            memcpy(x, swap, r->dim * sizeof *x);
        } else {
            flip(x, weights, r->dim);
        }
        transform_chunks(x, r->dim);
        shrink(x, weights, r->dim);
    }
}

/* All of the way back but the first round's weights. */
static inline void rotate_back_unweighed(const turboquant_rotation *r, float *__restrict x,
                                         float *__restrict swap) {
    for (uint32_t round = r->rounds; round-- > 1;) {
        const float *weights = r->weights + (size_t)round * r->dim;
        transform_chunks(x, r->dim);
        if (r->reorders) {
            const uint32_t *order = r->order + (size_t)round * r->dim;
            for (uint32_t i = 0; i < r->dim; i++) swap[order[i]] = x[i] * weights[i];
            memcpy(x, swap, r->dim * sizeof *x);
        } else {
            weigh(x, weights, r->dim);
        }
    }
    transform_chunks(x, r->dim);
}

/* ---- Sketch -------------------------------------------------------------------------------------------- */

/* Sums of TURBOQUANT_LANES columns of the matrix side by side. */
static inline void sketch(const turboquant_tables *t, uint32_t dim, float *e, const turboquant_scratch *s) {
    if (t->matrix == NULL) {
        flip(e, t->sketch.weights, dim);
        rotate_flipped(&t->sketch, e, s->swap);
        return;
    }
    for (uint32_t first = 0; first < dim; first += TURBOQUANT_LANES) {
        uint32_t width = dim - first < TURBOQUANT_LANES ? dim - first : TURBOQUANT_LANES;
        for (uint32_t i = 0; i < dim; i++) {
            const float *row = t->matrix + (size_t)i * dim + first;
            float *product = s->products + (size_t)i * TURBOQUANT_LANES;
            for (uint32_t j = 0; j < width; j++) product[j] = row[j] * e[i];
            for (uint32_t j = width; j < TURBOQUANT_LANES; j++) product[j] = 0.0f;
        }
        kvant_sum_columns(s->products, dim, TURBOQUANT_LANES);
        memcpy(s->swap + first, s->products, width * sizeof(float));
    }
    memcpy(e, s->swap, dim * sizeof *e);
}

static inline void sketch_back(const turboquant_tables *t, uint32_t dim, float *w,
                               const turboquant_scratch *s) {
    if (t->matrix == NULL) {
        rotate_back_unweighed(&t->sketch, w, s->swap);
        weigh(w, t->sketch.weights, dim);
        return;
    }
    for (uint32_t i = 0; i < dim; i++) {
        const float *row = t->matrix + (size_t)i * dim;
        for (uint32_t j = 0; j < dim; j++) s->terms[j] = row[j] * w[j];
        s->swap[i] = sum_of(s->terms, dim) * t->inverse_root;
    }
    memcpy(w, s->swap, dim * sizeof *w);
}

#endif
