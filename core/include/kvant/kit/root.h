/* kvant/kit/root.h: square roots, rounded once, without libm: a plugin links nothing, and without
 * optimisation compilers call the library where one instruction does it. */
#ifndef KVANT_KIT_ROOT_H
#define KVANT_KIT_ROOT_H

#if defined(__SSE2__)
#include <emmintrin.h>
#elif !defined(__aarch64__)
#include <math.h>
#endif

static inline float kvant_root_f32(float x) {
#if defined(__SSE2__)
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
#elif defined(__aarch64__)
    float y;
    __asm__("fsqrt %s0, %s1" : "=w"(y) : "w"(x));
    return y;
#else
    return sqrtf(x);
#endif
}

static inline double kvant_root(double x) {
#if defined(__SSE2__)
    return _mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(x)));
#elif defined(__aarch64__)
    double y;
    __asm__("fsqrt %d0, %d1" : "=w"(y) : "w"(x));
    return y;
#else
    return sqrt(x);
#endif
}

#endif
