/* The kernels of attend_kernels.h, compiled once for the build's own instruction set (suffix "base") and once
 * for each level of kit/isa.h.
 *
 * A sum of 16 lanes is one vector of the widest machine, or two, or four of the others. */
#include "attend/attend_kernels.h"

#include "attend/attend_math.h"

#include <kvant/kit/isa.h>
#include <kvant/kit/rope.h>
#include <kvant/kit/view.h>
#include <kvant/plugin.h>

#include <math.h>
#include <stdbool.h>

#ifdef KVANT_CPU_SUFFIX
#define KERNELS_ISA KVANT_CPU_ISA
#define NAME(name)  KVANT_CPU(name)
#else
#define KERNELS_ISA KVANT_ISA_SCALAR
#define NAME(name)  name##_base
#endif

#if defined(__AVX512F__)
enum { WIDTH = 16 };
#elif defined(__AVX__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
enum { LANES = KVANT_ATTEND_LANES, PARTS = LANES / WIDTH };

typedef float vector __attribute__((vector_size(4 * WIDTH)));
typedef float quad __attribute__((vector_size(16)));

#define INLINE static inline __attribute__((always_inline))

INLINE vector load(const float *from) {
    vector x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void store(float *to, vector x) {
    memcpy(to, &x, sizeof x);
}

INLINE vector splat(float x) {
    vector zero = {0};
    return zero + x;
}

/* 16 lanes to 4: lane i takes in lane i + 8, then lane i + 4. */
INLINE quad fold(const vector s[PARTS]) {
#if defined(__AVX512F__)
    typedef float half __attribute__((vector_size(32)));
    half h = __builtin_shufflevector(s[0], s[0], 0, 1, 2, 3, 4, 5, 6, 7) +
             __builtin_shufflevector(s[0], s[0], 8, 9, 10, 11, 12, 13, 14, 15);
    return __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
#elif defined(__AVX__)
    vector h = s[0] + s[1];
    return __builtin_shufflevector(h, h, 0, 1, 2, 3) + __builtin_shufflevector(h, h, 4, 5, 6, 7);
#else
    return (s[0] + s[2]) + (s[1] + s[3]);
#endif
}

/* The last two levels of the tree, of four sums at once. */
INLINE quad finish(quad a, quad b, quad c, quad d) {
    quad ab = __builtin_shufflevector(a, b, 0, 1, 4, 5) + __builtin_shufflevector(a, b, 2, 3, 6, 7);
    quad cd = __builtin_shufflevector(c, d, 0, 1, 4, 5) + __builtin_shufflevector(c, d, 2, 3, 6, 7);
    return __builtin_shufflevector(ab, cd, 0, 2, 4, 6) + __builtin_shufflevector(ab, cd, 1, 3, 5, 7);
}

INLINE quad dot_four(const float *query, const float *const row[4], uint32_t width) {
    vector s[4][PARTS] = {{{0}}};
    for (uint32_t c = 0; c < width; c += LANES)
        for (uint32_t p = 0; p < PARTS; p++) {
            vector q = load(query + c + p * WIDTH);
            for (uint32_t i = 0; i < 4; i++) s[i][p] += q * load(row[i] + c + p * WIDTH);
        }
    return finish(fold(s[0]), fold(s[1]), fold(s[2]), fold(s[3]));
}

static void dot(const float *query, const float *rows, uint32_t count, uint32_t width, float *products) {
    for (uint32_t t = 0; t < count; t += 4) {
        uint32_t left = count - t < 4 ? count - t : 4;
        const float *row[4];
        for (uint32_t i = 0; i < 4; i++) row[i] = rows + (size_t)(t + (i < left ? i : left - 1)) * width;
        quad four = dot_four(query, row, width);
        memcpy(products + t, &four, left * sizeof *products);
    }
}

/* ---- Softmax ------------------------------------------------------------------------------------------- */

static void cap(float *x, uint32_t count, float soft_cap) {
    for (uint32_t i = 0; i < count; i++) x[i] = soft_cap * kvant_attend_tanh(x[i] / soft_cap);
}

static float settle(float *x, uint32_t count, float bias, float soft_cap) {
    float most[LANES];
    for (uint32_t j = 0; j < LANES; j++) most[j] = -INFINITY;
    for (uint32_t i = 0; i < count; i++) x[i] += bias;
    if (soft_cap != 0) cap(x, count, soft_cap);
    uint32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (uint32_t j = 0; j < LANES; j++) most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
    for (uint32_t j = 0; i + j < count; j++) most[j] = x[i + j] > most[j] ? x[i + j] : most[j];
    for (uint32_t j = 1; j < LANES; j++) most[0] = most[j] > most[0] ? most[j] : most[0];
    return most[0];
}

static float weigh(float *x, uint32_t count, float largest) {
    float sums[LANES] = {0};
    for (uint32_t i = 0; i < count; i++) x[i] = kvant_attend_exp(x[i] - largest);
    uint32_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (uint32_t j = 0; j < LANES; j++) sums[j] += x[i + j];
    for (uint32_t j = 0; i + j < count; j++) sums[j] += x[i + j];
    for (uint32_t half = LANES / 2; half >= 1; half /= 2)
        for (uint32_t j = 0; j < half; j++) sums[j] += sums[j + half];
    return sums[0];
}

/* ---- Accumulators -------------------------------------------------------------------------------------- */

static void mix(float *into, const float *weights, const float *rows, uint32_t count, uint32_t width) {
    uint32_t t = 0;
    for (; t + 4 <= count; t += 4) {
        const float *a = rows + (size_t)t * width, *b = a + width, *c = b + width, *d = c + width;
        vector wa = splat(weights[t]), wb = splat(weights[t + 1]), wc = splat(weights[t + 2]),
               wd = splat(weights[t + 3]);
        for (uint32_t i = 0; i < width; i += WIDTH)
            store(into + i, load(into + i) + ((wa * load(a + i) + wb * load(b + i)) +
                                              (wc * load(c + i) + wd * load(d + i))));
    }
    for (; t < count; t++) {
        const float *a = rows + (size_t)t * width;
        vector w = splat(weights[t]);
        for (uint32_t i = 0; i < width; i += WIDTH) store(into + i, load(into + i) + w * load(a + i));
    }
}

static void scale(float *into, uint32_t count, float a) {
    for (uint32_t i = 0; i < count; i++) into[i] *= a;
}

static void merge(float *restrict into, float a, const float *restrict from, float b, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) into[i] = into[i] * a + from[i] * b;
}

/* ---- Raw rows ------------------------------------------------------------------------------------------ */

/* Rows of one head lie apart, on pages that no processor fetches ahead by itself. */
INLINE void fetch_ahead(const kvant_view *view, uint32_t token, uint32_t head) {
    enum { AHEAD = 12, LINE = 64 };
    if (view->tokens - token <= AHEAD) return;
    const char *row = kvant_view_at(view, token + AHEAD, head);
    for (uint32_t at = 0; at < view->head_dim * kvant_element_bytes(view->dtype); at += LINE)
        __builtin_prefetch(row + at);
}

static void load_rows(const kvant_view *view, uint32_t first, uint32_t count, uint32_t head, float *rows,
                      uint32_t width) {
    bool dense = view->channel_stride == (int64_t)kvant_element_bytes(view->dtype);
    for (uint32_t t = 0; t < count; t++) {
        if (dense) fetch_ahead(view, first + t, head);
        kvant_load_row(view, first + t, head, rows + (size_t)t * width);
    }
}

static void turn(const kvant_rope *rope, const float *turns, float *row) {
    kvant_rope_apply(rope, turns, row);
}

extern const kvant_attend_kernels NAME(kvant_attend_kernels);

const kvant_attend_kernels NAME(kvant_attend_kernels) = {.isa = KERNELS_ISA,
                                                         .dot = dot,
                                                         .settle = settle,
                                                         .weigh = weigh,
                                                         .mix = mix,
                                                         .scale = scale,
                                                         .merge = merge,
                                                         .load = load_rows,
                                                         .turn = turn};
