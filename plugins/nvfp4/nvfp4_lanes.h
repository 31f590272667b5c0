/* The functions of nvfp4_number.h for whole vectors of the widest registers of the instruction set, to the
 * same bits, where loops over them are not turned into such by themselves: those that end in bytes. Vector
 * extensions of gcc and clang, and instructions by name only where no operator means them.
 */
#ifndef KVANT_NVFP4_LANES_H
#define KVANT_NVFP4_LANES_H

#include "nvfp4_number.h"

#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__)
enum { NVFP4_LANES = 16 };
#elif defined(__AVX2__)
enum { NVFP4_LANES = 8 };
#else
enum { NVFP4_LANES = 4 };
#endif

enum { NVFP4_VECTORS = NVFP4_BLOCK_NV / NVFP4_LANES }; /* of 16 numbers */

typedef float nvfp4_floats __attribute__((vector_size(4 * NVFP4_LANES)));
typedef int32_t nvfp4_ints __attribute__((vector_size(4 * NVFP4_LANES)));
typedef uint8_t nvfp4_bytes __attribute__((vector_size(NVFP4_LANES)));

#define NVFP4_INLINE static inline __attribute__((always_inline))

NVFP4_INLINE nvfp4_floats nvfp4_splat(float x) {
    return x - (nvfp4_floats){0};
}

NVFP4_INLINE nvfp4_floats nvfp4_load(const float *from) {
    nvfp4_floats x;
    memcpy(&x, from, sizeof x);
    return x;
}

NVFP4_INLINE void nvfp4_store(float *to, nvfp4_floats x) {
    memcpy(to, &x, sizeof x);
}

NVFP4_INLINE nvfp4_ints nvfp4_choose(nvfp4_ints mask, nvfp4_ints yes, nvfp4_ints no) {
    return (mask & yes) | (~mask & no);
}

NVFP4_INLINE nvfp4_floats nvfp4_choose_floats(nvfp4_ints mask, nvfp4_floats yes, nvfp4_floats no) {
    return (nvfp4_floats)nvfp4_choose(mask, (nvfp4_ints)yes, (nvfp4_ints)no);
}

/* The lesser; the second where they do not compare. */
NVFP4_INLINE nvfp4_floats nvfp4_lesser(nvfp4_floats a, nvfp4_floats b) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    return (nvfp4_floats)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (nvfp4_floats)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE4_1__)
    return (nvfp4_floats)_mm_min_ps((__m128)a, (__m128)b);
#else
    return nvfp4_choose_floats(a < b, a, b);
#endif
}

/* The greater; the second where they do not compare. */
NVFP4_INLINE nvfp4_floats nvfp4_greater(nvfp4_floats a, nvfp4_floats b) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    return (nvfp4_floats)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (nvfp4_floats)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE4_1__)
    return (nvfp4_floats)_mm_max_ps((__m128)a, (__m128)b);
#else
    return nvfp4_choose_floats(a > b, a, b);
#endif
}

/* The greatest lane; no lane is NaN. */
NVFP4_INLINE float nvfp4_greatest_lane(nvfp4_floats x) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    return _mm512_reduce_max_ps((__m512)x);
#elif defined(__AVX2__)
    __m128 a = _mm_max_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
#else
    float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
    return a > b ? a : b;
#endif
}

NVFP4_INLINE nvfp4_floats nvfp4_absolute(nvfp4_floats x) {
    return (nvfp4_floats)((nvfp4_ints)x & 0x7fffffff);
}

/* ---- To E2M1 ------------------------------------------------------------------------------------------- */

/* Magnitudes of at most 6, rounded to those of E2M1: to multiples of 0.5 below 2, of 1 below 4, of 2 above.
 * Adding 1.5 * 2^23 steps rounds to a step; ties go to the even multiple, which has the even code. */
NVFP4_INLINE nvfp4_floats nvfp4_round_magnitude(nvfp4_floats a) {
    nvfp4_floats steps = nvfp4_choose_floats(a < 4.0f, nvfp4_splat(0x1.8p23f), nvfp4_splat(0x1.8p24f));
    steps = nvfp4_choose_floats(a < 2.0f, nvfp4_splat(0x1.8p22f), steps);
    return (a + steps) - steps;
}

/* x^ without its sign and both scales. */
NVFP4_INLINE nvfp4_floats nvfp4_rounded_magnitude(nvfp4_floats magnitude, nvfp4_floats factor) {
    return nvfp4_round_magnitude(nvfp4_lesser(magnitude * factor, nvfp4_splat(6.0f)));
}

/* nvfp4_code. A product that is not a number has magnitude 0. */
NVFP4_INLINE nvfp4_ints nvfp4_codes(nvfp4_floats x, nvfp4_floats factor) {
    nvfp4_floats y = nvfp4_absolute(x * factor);
    nvfp4_ints number = y == y;
    nvfp4_floats a = (nvfp4_floats)((nvfp4_ints)nvfp4_lesser(y, nvfp4_splat(6.0f)) & number);
    nvfp4_ints rounded = (nvfp4_ints)nvfp4_round_magnitude(a);
    /* The bits of 1 to 6 end in their code; 0 and 0.5 are apart. */
    nvfp4_ints code = (rounded - 0x3f000000) >> 22;
    nvfp4_ints small = (rounded == 0x3f000000) & 1;
    return nvfp4_choose(rounded < 0x3f800000, small, code) | ((nvfp4_ints)x >> 28 & 8);
}

/* Sixteen codes to bytes. */
NVFP4_INLINE void nvfp4_store_codes(uint8_t *to, const nvfp4_ints codes[NVFP4_VECTORS]) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    __m128i bytes = _mm512_cvtepi32_epi8((__m512i)codes[0]);
#elif defined(__AVX2__)
    __m256i words = _mm256_packus_epi32((__m256i)codes[0], (__m256i)codes[1]);
    words = _mm256_permute4x64_epi64(words, 0xd8);
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
#elif defined(__SSE4_1__)
    __m128i bytes = _mm_packus_epi16(_mm_packus_epi32((__m128i)codes[0], (__m128i)codes[1]),
                                     _mm_packus_epi32((__m128i)codes[2], (__m128i)codes[3]));
#else
    nvfp4_bytes bytes[NVFP4_VECTORS];
    for (uint32_t v = 0; v < NVFP4_VECTORS; v++) bytes[v] = __builtin_convertvector(codes[v], nvfp4_bytes);
#endif
    _Static_assert(sizeof bytes == NVFP4_BLOCK_NV, "a byte a code");
    memcpy(to, &bytes, sizeof bytes);
}

/* ---- Scales -------------------------------------------------------------------------------------------- */

/* E4M3 of numbers in [0, 448]. */
NVFP4_INLINE nvfp4_ints nvfp4_scale_codes(nvfp4_floats x) {
    nvfp4_ints bits = (nvfp4_ints)x;
    nvfp4_ints normal = (bits + 0x7ffff + (bits >> 20 & 1) - 0x3c000000) >> 20;
    nvfp4_ints subnormal = (nvfp4_ints)(x + 0x1p14f) - 0x46800000;
    return nvfp4_choose(bits < 0x3c800000, subnormal, normal);
}

/* And back, of codes 0 to 7E. */
NVFP4_INLINE nvfp4_floats nvfp4_scale_values(nvfp4_ints code) {
    nvfp4_floats normal = (nvfp4_floats)((code << 20) + 0x3c000000);
    nvfp4_floats subnormal = __builtin_convertvector(code, nvfp4_floats) * 0x1p-9f;
    return nvfp4_choose_floats(code < 8, subnormal, normal);
}

NVFP4_INLINE bool nvfp4_any(nvfp4_ints mask) {
#if defined(__AVX512F__) && defined(__AVX512BW__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#elif defined(__SSE4_1__)
    return !_mm_testz_si128((__m128i)mask, (__m128i)mask);
#else
    int32_t any = 0;
    for (uint32_t i = 0; i < NVFP4_LANES; i++) any |= mask[i];
    return any != 0;
#endif
}

/* ---- And back ------------------------------------------------------------------------------------------ */

/* Bytes as integers. */
NVFP4_INLINE nvfp4_ints nvfp4_load_codes(const uint8_t *from) {
    nvfp4_bytes bytes;
    memcpy(&bytes, from, sizeof bytes);
#if defined(__AVX512F__) && defined(__AVX512BW__)
    return (nvfp4_ints)_mm512_cvtepu8_epi32((__m128i)bytes);
#elif defined(__AVX2__)
    int64_t eight;
    memcpy(&eight, &bytes, sizeof eight);
    return (nvfp4_ints)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(eight));
#elif defined(__SSE4_1__)
    int32_t four;
    memcpy(&four, &bytes, sizeof four);
    return (nvfp4_ints)_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four));
#else
    return __builtin_convertvector(bytes, nvfp4_ints);
#endif
}

/* E2M1 as floats, by a table where the machine looks up eight floats at once. */
NVFP4_INLINE nvfp4_floats nvfp4_widen(nvfp4_ints code) {
    nvfp4_ints sign = code << 28 & (int32_t)0x80000000u;
#if defined(__AVX2__) && !(defined(__AVX512F__) && defined(__AVX512BW__))
    const __m256 values = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    nvfp4_ints bits = (nvfp4_ints)_mm256_permutevar8x32_ps(values, (__m256i)code); /* of the low 3 bits */
#else
    nvfp4_ints magnitude = code & 7;
    nvfp4_ints bits = (magnitude << 22) + 0x3f000000;
    bits = nvfp4_choose(magnitude < 2, (magnitude == 1) & 0x3f000000, bits);
#endif
    return (nvfp4_floats)(bits | sign);
}

/* nvfp4_value. */
NVFP4_INLINE nvfp4_floats nvfp4_values(nvfp4_ints code, nvfp4_floats scale, nvfp4_floats g) {
    const nvfp4_floats most = nvfp4_splat(NVFP4_FLOAT_MAX);
    return nvfp4_greater(nvfp4_lesser(nvfp4_widen(code) * scale * g, most), -most);
}

#endif
