/* A few vector operations, as wide as the instruction set that this is compiled for: 4 or 8 floats.
 *
 * Arithmetic is written with operators (GCC's and clang's vector types); what those lack is here. Intrinsics
 * stand where GCC 12 does not find the instruction by itself. Each operation gives the very bits of its
 * scalar counterpart in hack_quantize.h for all finite numbers.
 */
#ifndef KVANT_HACK_LANES_H
#define KVANT_HACK_LANES_H

#include <kvant/kit/half.h>

#include <stdbool.h>
#include <string.h>

#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

#define HACK_INLINE static inline __attribute__((always_inline))

#if defined(__AVX2__)
#define HACK_WIDTH 8
#else
#define HACK_WIDTH 4
#endif

typedef float hack_floats __attribute__((vector_size(4 * HACK_WIDTH)));
typedef int32_t hack_ints __attribute__((vector_size(4 * HACK_WIDTH)));
typedef uint32_t hack_words __attribute__((vector_size(4 * HACK_WIDTH)));
typedef uint8_t hack_bytes __attribute__((vector_size(HACK_WIDTH)));

HACK_INLINE hack_floats hack_splat(float x) {
    hack_floats zero = {0};
    return zero + x;
}

HACK_INLINE hack_floats hack_load(const float *from) {
    hack_floats x;
    memcpy(&x, from, sizeof x);
    return x;
}

HACK_INLINE void hack_store(float *to, hack_floats x) {
    memcpy(to, &x, sizeof x);
}

/* b < a ? b : a and b > a ? b : a; a where b is NaN. */
HACK_INLINE hack_floats hack_least(hack_floats a, hack_floats b) {
#if defined(__AVX2__)
    return _mm256_min_ps(b, a);
#elif defined(__SSE4_1__)
    return _mm_min_ps(b, a);
#else
    hack_ints mask = b < a;
    return (hack_floats)(((hack_ints)b & mask) | ((hack_ints)a & ~mask));
#endif
}

HACK_INLINE hack_floats hack_most(hack_floats a, hack_floats b) {
#if defined(__AVX2__)
    return _mm256_max_ps(b, a);
#elif defined(__SSE4_1__)
    return _mm_max_ps(b, a);
#else
    hack_ints mask = b > a;
    return (hack_floats)(((hack_ints)b & mask) | ((hack_ints)a & ~mask));
#endif
}

/* Lanes 0 to HACK_WIDTH - 1 as numbers. */
HACK_INLINE hack_words hack_lane_numbers(void) {
#if HACK_WIDTH == 8
    return (hack_words){0, 1, 2, 3, 4, 5, 6, 7};
#else
    return (hack_words){0, 1, 2, 3};
#endif
}

HACK_INLINE hack_ints hack_truncate(hack_floats x) {
#if defined(__AVX2__)
    return (hack_ints)_mm256_cvttps_epi32(x);
#elif defined(__SSE4_1__)
    return (hack_ints)_mm_cvttps_epi32(x);
#else
    return __builtin_convertvector(x, hack_ints);
#endif
}

HACK_INLINE hack_floats hack_from_ints(hack_ints x) {
#if defined(__AVX2__)
    return _mm256_cvtepi32_ps((__m256i)x);
#elif defined(__SSE4_1__)
    return _mm_cvtepi32_ps((__m128i)x);
#else
    return __builtin_convertvector(x, hack_floats);
#endif
}

/* The lowest byte of every lane. */
HACK_INLINE void hack_store_bytes(uint8_t *to, hack_ints x) {
    x &= 0xff;
#if defined(__AVX2__)
    __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    int64_t bytes = _mm_cvtsi128_si64(_mm_packus_epi16(words, words));
#elif defined(__SSE4_1__)
    __m128i words = _mm_packus_epi32((__m128i)x, (__m128i)x);
    int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
#else
    hack_bytes bytes = __builtin_convertvector(x, hack_bytes);
#endif
    _Static_assert(sizeof bytes == HACK_WIDTH, "one byte a lane");
    memcpy(to, &bytes, sizeof bytes);
}

/* The lowest bytes of four vectors, side by side. */
HACK_INLINE void hack_store_bytes4(uint8_t *to, const hack_ints x[4]) {
#if defined(__AVX2__)
    const __m256i low = _mm256_set1_epi32(0xff), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i a =
        _mm256_packus_epi32(_mm256_and_si256((__m256i)x[0], low), _mm256_and_si256((__m256i)x[1], low));
    __m256i b =
        _mm256_packus_epi32(_mm256_and_si256((__m256i)x[2], low), _mm256_and_si256((__m256i)x[3], low));
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order));
#else
    for (uint32_t k = 0; k < 4; k++) hack_store_bytes(to + k * HACK_WIDTH, x[k]);
#endif
}

/* Bytes as floats. */
HACK_INLINE hack_floats hack_load_bytes(const uint8_t *from) {
    hack_bytes bytes;
    memcpy(&bytes, from, sizeof bytes);
#if defined(__AVX2__)
    int64_t eight;
    memcpy(&eight, &bytes, sizeof eight);
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(eight)));
#elif defined(__SSE4_1__)
    int32_t four;
    memcpy(&four, &bytes, sizeof four);
    return _mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four)));
#else
    return __builtin_convertvector(__builtin_convertvector(bytes, hack_ints), hack_floats);
#endif
}

/* Of all lanes; which of two zeros comes back does not matter to the callers. */
HACK_INLINE float hack_least_lane(hack_floats x) {
#if defined(__AVX2__)
    __m128 a = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    a = _mm_min_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_min_ss(a, _mm_movehdup_ps(a)));
#else
    float least = x[0];
    for (uint32_t i = 1; i < HACK_WIDTH; i++) least = x[i] < least ? x[i] : least;
    return least;
#endif
}

HACK_INLINE float hack_most_lane(hack_floats x) {
#if defined(__AVX2__)
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
#else
    float most = x[0];
    for (uint32_t i = 1; i < HACK_WIDTH; i++) most = x[i] > most ? x[i] : most;
    return most;
#endif
}

#endif
