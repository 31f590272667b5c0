/* A few vector operations, as wide as the instruction set that this is compiled for: 4, 8 or 16 floats.
 *
 * Arithmetic is written with operators (GCC's and clang's vector types); what those lack is here. Intrinsics
 * stand where GCC 12 does not find the instruction by itself: minima, half floats, and bytes to and from
 * floats. Each operation gives the very bits of its scalar counterpart in kivi_group.h and kvant/kit/half.h
 * for all finite numbers.
 */
#ifndef KVANT_KIVI_LANES_H
#define KVANT_KIVI_LANES_H

#include <kvant/kit/half.h>
#include <kvant/types.h>

#include <float.h>
#include <stdbool.h>
#include <string.h>

#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

#define KIVI_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define KIVI_LANES 16
#elif defined(__AVX2__)
#define KIVI_LANES 8
#else
#define KIVI_LANES 4
#endif

typedef float kivi_floats __attribute__((vector_size(4 * KIVI_LANES)));
typedef int32_t kivi_ints __attribute__((vector_size(4 * KIVI_LANES)));
typedef uint16_t kivi_halves __attribute__((vector_size(2 * KIVI_LANES)));
typedef uint8_t kivi_bytes __attribute__((vector_size(KIVI_LANES)));

KIVI_INLINE kivi_floats kivi_splat(float x) {
    kivi_floats zero = {0};
    return zero + x;
}

/* Where mask is all ones a, where it is all zeros b. */
KIVI_INLINE kivi_ints kivi_select(kivi_ints mask, kivi_ints a, kivi_ints b) {
    return (a & mask) | (b & ~mask);
}

/* b < a ? b : a. Neither is NaN; which zero comes back does not matter to the callers. */
KIVI_INLINE kivi_floats kivi_least(kivi_floats a, kivi_floats b) {
#if defined(__AVX512F__)
    return _mm512_min_ps(b, a);
#elif defined(__AVX2__)
    return _mm256_min_ps(b, a);
#elif defined(__SSE4_1__)
    return _mm_min_ps(b, a);
#else
    return (kivi_floats)kivi_select(b < a, (kivi_ints)b, (kivi_ints)a);
#endif
}

/* b > a ? b : a; a where b is NaN. */
KIVI_INLINE kivi_floats kivi_most(kivi_floats a, kivi_floats b) {
#if defined(__AVX512F__)
    return _mm512_max_ps(b, a);
#elif defined(__AVX2__)
    return _mm256_max_ps(b, a);
#elif defined(__SSE4_1__)
    return _mm_max_ps(b, a);
#else
    return (kivi_floats)kivi_select(b > a, (kivi_ints)b, (kivi_ints)a);
#endif
}

/* ---- Half floats --------------------------------------------------------------------------------------- */

/* Halves as integers and back; they fit. */
KIVI_INLINE kivi_ints kivi_widen(kivi_halves half) {
#if defined(__AVX512F__)
    return (kivi_ints)_mm512_cvtepu16_epi32((__m256i)half);
#elif defined(__AVX2__)
    return (kivi_ints)_mm256_cvtepu16_epi32((__m128i)half);
#elif defined(__SSE4_1__)
    int64_t four;
    memcpy(&four, &half, sizeof four);
    return (kivi_ints)_mm_cvtepu16_epi32(_mm_cvtsi64_si128(four));
#else
    return __builtin_convertvector(half, kivi_ints);
#endif
}

KIVI_INLINE kivi_halves kivi_narrow(kivi_ints x) {
#if defined(__AVX512F__)
    return (kivi_halves)_mm512_cvtepi32_epi16((__m512i)x);
#elif defined(__AVX2__)
    __m256i all = (__m256i)x;
    return (kivi_halves)_mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
#elif defined(__SSE4_1__)
    int64_t four = _mm_cvtsi128_si64(_mm_packus_epi32((__m128i)x, (__m128i)x));
    kivi_halves half;
    memcpy(&half, &four, sizeof half);
    return half;
#else
    return __builtin_convertvector(x, kivi_halves);
#endif
}

/* The bits of a half, in an integer each, as a float. Adding to the exponent makes normal numbers, adding
 * twice infinity and NaN; 2^-14 + m 2^-24 minus 2^-14 makes those below 2^-14. */
KIVI_INLINE kivi_floats kivi_half_value(kivi_ints half) {
    kivi_ints magnitude = half & 0x7fff, normal = (magnitude << 13) + 0x38000000;
    kivi_ints subnormal = (kivi_ints)((kivi_floats)(normal + 0x00800000) - 0x1p-14f);
    kivi_ints finite = kivi_select(magnitude < 0x400, subnormal, normal);
    return (kivi_floats)((finite + ((magnitude >= 0x7c00) & 0x38000000)) | (half & 0x8000) << 16);
}

/* And back, rounded to nearest even; 65520 and above give infinity. */
KIVI_INLINE kivi_ints kivi_half_bits(kivi_floats x) {
    kivi_ints bits = (kivi_ints)x, magnitude = bits & 0x7fffffff, infinity = {0};
    infinity = infinity + 0x47800000; /* 65536 */
    magnitude = kivi_select(magnitude < infinity, magnitude, infinity);
    kivi_ints normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    kivi_ints subnormal = (kivi_ints)((kivi_floats)magnitude + 0.5f) - 0x3f000000;
    return kivi_select(magnitude < 0x38800000, subnormal, normal) | (bits >> 16 & 0x8000);
}

KIVI_INLINE kivi_floats kivi_from_f16(kivi_halves half) {
#if defined(__AVX512F__)
    return _mm512_cvtph_ps((__m256i)half);
#elif defined(__F16C__)
    return _mm256_cvtph_ps((__m128i)half);
#else
    return kivi_half_value(kivi_widen(half));
#endif
}

KIVI_INLINE kivi_halves kivi_to_f16(kivi_floats x) {
#if defined(__AVX512F__)
    return (kivi_halves)_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
    return (kivi_halves)_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
#else
    return kivi_narrow(kivi_half_bits(x));
#endif
}

KIVI_INLINE kivi_ints kivi_round_bf16_bits(kivi_floats x) {
    kivi_ints bits = (kivi_ints)x;
    return bits + 0x7fff + (bits >> 16 & 1);
}

/* Rounds once to the dtype, which is a constant in every use, as all dtypes below. */
KIVI_INLINE kivi_floats kivi_rounded(uint32_t dtype, kivi_floats x) {
#if defined(__F16C__)
    if (dtype == KVANT_DTYPE_F16) return kivi_from_f16(kivi_to_f16(x));
#else
    if (dtype == KVANT_DTYPE_F16) return kivi_half_value(kivi_half_bits(x));
#endif
    if (dtype == KVANT_DTYPE_BF16) return (kivi_floats)(kivi_round_bf16_bits(x) & (int32_t)0xffff0000u);
    return x;
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

/* KIVI_LANES elements, not aligned. */
KIVI_INLINE kivi_floats kivi_load(const void *from, uint32_t dtype) {
    if (dtype == KVANT_DTYPE_F32) {
        kivi_floats x;
        memcpy(&x, from, sizeof x);
        return x;
    }
    kivi_halves half;
    memcpy(&half, from, sizeof half);
    if (dtype == KVANT_DTYPE_F16) return kivi_from_f16(half);
    return (kivi_floats)(kivi_widen(half) << 16);
}

/* Rounds once; finite numbers beyond the type's range become its largest. */
KIVI_INLINE void kivi_store(void *to, uint32_t dtype, kivi_floats x) {
    if (dtype == KVANT_DTYPE_F32) {
        memcpy(to, &x, sizeof x);
        return;
    }
    const kivi_floats largest = kivi_splat(dtype == KVANT_DTYPE_F16 ? 65504.0f : 0x1.fep127f);
    kivi_halves half;
    x = kivi_most(-largest, kivi_least(largest, x));
    if (dtype == KVANT_DTYPE_F16)
        half = kivi_to_f16(x);
    else
        half = kivi_narrow(kivi_round_bf16_bits(x) >> 16 & 0xffff);
    memcpy(to, &half, sizeof half);
}

/* Codes from their floats plus 2^23, whose lowest byte they are. */
KIVI_INLINE void kivi_store_codes(uint8_t *to, kivi_floats x) {
    kivi_ints code = (kivi_ints)x & 0xff;
#if defined(__AVX512F__)
    kivi_bytes bytes = (kivi_bytes)_mm512_cvtepi32_epi8((__m512i)code);
#elif defined(__AVX2__)
    __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128((__m256i)code), _mm256_extracti128_si256((__m256i)code, 1));
    int64_t bytes = _mm_cvtsi128_si64(_mm_packus_epi16(words, words));
#elif defined(__SSE4_1__)
    __m128i words = _mm_packus_epi32((__m128i)code, (__m128i)code);
    int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
#else
    kivi_bytes bytes = __builtin_convertvector(code, kivi_bytes);
#endif
    _Static_assert(sizeof bytes == KIVI_LANES, "one byte a lane");
    memcpy(to, &bytes, sizeof bytes);
}

/* Four of them side by side. */
KIVI_INLINE void kivi_store_codes4(uint8_t *to, const kivi_floats x[4]) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i low = _mm256_set1_epi32(0xff), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i a =
        _mm256_packus_epi32(_mm256_and_si256((__m256i)x[0], low), _mm256_and_si256((__m256i)x[1], low));
    __m256i b =
        _mm256_packus_epi32(_mm256_and_si256((__m256i)x[2], low), _mm256_and_si256((__m256i)x[3], low));
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order));
#elif defined(__SSE4_1__) && !defined(__AVX512F__)
    const __m128i low = _mm_set1_epi32(0xff);
    __m128i a = _mm_packus_epi32(_mm_and_si128((__m128i)x[0], low), _mm_and_si128((__m128i)x[1], low));
    __m128i b = _mm_packus_epi32(_mm_and_si128((__m128i)x[2], low), _mm_and_si128((__m128i)x[3], low));
    _mm_storeu_si128((__m128i *)(void *)to, _mm_packus_epi16(a, b));
#else
    for (uint32_t k = 0; k < 4; k++) kivi_store_codes(to + k * KIVI_LANES, x[k]);
#endif
}

/* Codes as floats. */
KIVI_INLINE kivi_floats kivi_load_codes(const uint8_t *from) {
    kivi_bytes bytes;
    memcpy(&bytes, from, sizeof bytes);
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32((__m128i)bytes));
#elif defined(__AVX2__)
    int64_t eight;
    memcpy(&eight, &bytes, sizeof eight);
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(eight)));
#elif defined(__SSE4_1__)
    int32_t four;
    memcpy(&four, &bytes, sizeof four);
    return _mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four)));
#else
    return __builtin_convertvector(__builtin_convertvector(bytes, kivi_ints), kivi_floats);
#endif
}

/* ---- Across lanes -------------------------------------------------------------------------------------- */

KIVI_INLINE float kivi_least_lane(kivi_floats x) {
#if defined(__AVX512F__)
    return _mm512_reduce_min_ps(x);
#elif defined(__AVX2__)
    __m128 a = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    a = _mm_min_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_min_ss(a, _mm_movehdup_ps(a)));
#else
    float a = x[0] < x[2] ? x[0] : x[2], b = x[1] < x[3] ? x[1] : x[3];
    return a < b ? a : b;
#endif
}

KIVI_INLINE float kivi_most_lane(kivi_floats x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(x);
#elif defined(__AVX2__)
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
#else
    float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
    return a > b ? a : b;
#endif
}

/* All ones in lanes that are not within [-limit, limit]. */
KIVI_INLINE kivi_ints kivi_beyond(kivi_floats x, float limit) {
    return ~((x <= limit) & (x >= -limit));
}

KIVI_INLINE bool kivi_any(kivi_ints mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#elif defined(__SSE4_1__)
    return !_mm_testz_si128((__m128i)mask, (__m128i)mask);
#else
    int32_t any = 0;
    for (uint32_t i = 0; i < KIVI_LANES; i++) any |= mask[i];
    return any != 0;
#endif
}

#endif
