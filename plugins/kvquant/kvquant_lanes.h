/* A few vector operations, as wide as the instruction set that this is compiled for: 4, 8 or 16 floats. Each
 * gives the very bits of its scalar counterpart in kvquant_math.h. */
#ifndef KVANT_KVQUANT_LANES_H
#define KVANT_KVQUANT_LANES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

#define KVQUANT_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define KVQUANT_LANES 16
#elif defined(__AVX2__)
#define KVQUANT_LANES 8
#else
#define KVQUANT_LANES 4
#endif

typedef float kvquant_floats __attribute__((vector_size(4 * KVQUANT_LANES)));
typedef int32_t kvquant_ints __attribute__((vector_size(4 * KVQUANT_LANES)));
typedef uint8_t kvquant_bytes __attribute__((vector_size(KVQUANT_LANES)));

KVQUANT_INLINE kvquant_floats kvquant_splat(float x) {
    kvquant_floats zero = {0};
    return zero + x;
}

KVQUANT_INLINE kvquant_floats kvquant_load(const void *from) {
    kvquant_floats x;
    memcpy(&x, from, sizeof x);
    return x;
}

KVQUANT_INLINE void kvquant_store(void *to, kvquant_floats x) {
    memcpy(to, &x, sizeof x);
}

/* Where mask is all ones a, where it is all zeros b. */
KVQUANT_INLINE kvquant_ints kvquant_select(kvquant_ints mask, kvquant_ints a, kvquant_ints b) {
    return (a & mask) | (b & ~mask);
}

KVQUANT_INLINE kvquant_floats kvquant_select_floats(kvquant_ints mask, kvquant_floats a, kvquant_floats b) {
    return (kvquant_floats)kvquant_select(mask, (kvquant_ints)a, (kvquant_ints)b);
}

/* a > b ? a : b, b where one is NaN. Which zero comes back does not matter. */
KVQUANT_INLINE kvquant_floats kvquant_most(kvquant_floats a, kvquant_floats b) {
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#elif defined(__SSE4_1__)
    return _mm_max_ps(a, b);
#else
    return kvquant_select_floats(a > b, a, b);
#endif
}

/* a < b ? a : b, likewise. */
KVQUANT_INLINE kvquant_floats kvquant_least(kvquant_floats a, kvquant_floats b) {
#if defined(__AVX512F__)
    return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_min_ps(a, b);
#elif defined(__SSE4_1__)
    return _mm_min_ps(a, b);
#else
    return kvquant_select_floats(a < b, a, b);
#endif
}

KVQUANT_INLINE kvquant_floats kvquant_magnitude(kvquant_floats x) {
    return (kvquant_floats)((kvquant_ints)x & 0x7fffffff);
}

/* Bit i: lane i of the mask is all ones. */
KVQUANT_INLINE uint32_t kvquant_bits_of(kvquant_ints mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask);
#elif defined(__AVX2__)
    return (uint32_t)_mm256_movemask_ps((__m256)mask);
#elif defined(__SSE4_1__)
    return (uint32_t)_mm_movemask_ps((__m128)mask);
#else
    uint32_t bits = 0;
    for (uint32_t i = 0; i < KVQUANT_LANES; i++) bits |= (uint32_t)(mask[i] & 1) << i;
    return bits;
#endif
}

KVQUANT_INLINE bool kvquant_any(kvquant_ints mask) {
    return kvquant_bits_of(mask) != 0;
}

/* Codes below 256 to one byte each. */
KVQUANT_INLINE void kvquant_store_codes(uint8_t *to, kvquant_ints code) {
#if defined(__AVX512F__)
    kvquant_bytes bytes = (kvquant_bytes)_mm512_cvtepi32_epi8((__m512i)code);
#elif defined(__AVX2__)
    __m128i words =
        _mm_packus_epi32(_mm256_castsi256_si128((__m256i)code), _mm256_extracti128_si256((__m256i)code, 1));
    int64_t bytes = _mm_cvtsi128_si64(_mm_packus_epi16(words, words));
#elif defined(__SSE4_1__)
    __m128i words = _mm_packus_epi32((__m128i)code, (__m128i)code);
    int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(words, words));
#else
    kvquant_bytes bytes = __builtin_convertvector(code, kvquant_bytes);
#endif
    _Static_assert(sizeof bytes == KVQUANT_LANES, "one byte a lane");
    memcpy(to, &bytes, sizeof bytes);
}

/* A table of `levels` (a constant: 4, 8, 16) floats in registers, and its entries at KVQUANT_LANES codes. */
typedef struct kvquant_registers {
#if defined(__AVX512F__)
    __m512 all;
#elif defined(__AVX2__)
    __m256 low, high;
#else
    const float *table;
#endif
} kvquant_registers;

KVQUANT_INLINE kvquant_registers kvquant_table_load(const float table[16]) {
#if defined(__AVX512F__)
    return (kvquant_registers){_mm512_loadu_ps(table)};
#elif defined(__AVX2__)
    return (kvquant_registers){_mm256_loadu_ps(table), _mm256_loadu_ps(table + 8)};
#else
    return (kvquant_registers){table};
#endif
}

KVQUANT_INLINE kvquant_floats kvquant_look_up(kvquant_registers registers, uint32_t levels,
                                              const uint8_t *codes) {
#if defined(__AVX512F__)
    (void)levels;
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)codes);
    return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(bytes), registers.all);
#elif defined(__AVX2__)
    int64_t eight;
    memcpy(&eight, codes, sizeof eight);
    __m256i index = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(eight));
    __m256 low = _mm256_permutevar8x32_ps(registers.low, index);
    if (levels <= 8) return low;
    __m256 high = _mm256_permutevar8x32_ps(registers.high, index);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
#else
    (void)levels;
    kvquant_floats x;
    for (uint32_t i = 0; i < KVQUANT_LANES; i++)
        x[i] = registers.table[codes[i] & 15]; /* also what pads a row */
    return x;
#endif
}

#endif
