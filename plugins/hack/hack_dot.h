/* Integer dot products of planar codes with 8-bit operands: 16 free indices of one line, up to HACK_TILE
 * operands at once, so that codes are loaded and unpacked once for all of them.
 *
 * A byte of the operand is 0 to 255, a code at most 3 or 15: pmaddubsw multiplies them as unsigned by signed
 * and adds neighbours to 16 bits, which hold 40 of 2 bits and 8 of 4 bits before they must be widened. Codes
 * of 8 bits are widened first. Sums are exact, so that the order does not matter.
 */
#ifndef KVANT_HACK_DOT_H
#define KVANT_HACK_DOT_H

#include "hack_lanes.h"

#include <kvant/kit/planar.h>

enum { HACK_TILE = 4, HACK_LINE = 16 };

/* The codes of a line that take part: [first, first + count) of the summed index. `first` is a multiple of 8,
 * and so is count unless it reaches the last one; the operand then has zeros up to the next multiple of 32.
 */
typedef struct hack_run {
    const uint8_t *line;   /* first byte of the line's first word */
    uint32_t summed_count; /* of the matrix */
    uint32_t first, count;
} hack_run;

#if defined(__AVX2__)
typedef __m256i hack_vector;
#define HACK_OP(name) _mm256_##name
HACK_INLINE hack_vector hack_vector_load(const uint8_t *from) {
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}
HACK_INLINE void hack_vector_add_to(uint32_t *to, hack_vector x) {
    __m256i *at = (__m256i *)(void *)to;
    _mm256_storeu_si256(at, _mm256_add_epi32(_mm256_loadu_si256(at), x));
}
HACK_INLINE hack_vector hack_vector_and(hack_vector a, hack_vector b) {
    return _mm256_and_si256(a, b);
}
#elif defined(__SSE4_1__)
typedef __m128i hack_vector;
#define HACK_OP(name) _mm_##name
HACK_INLINE hack_vector hack_vector_load(const uint8_t *from) {
    return _mm_loadu_si128((const __m128i *)(const void *)from);
}
HACK_INLINE void hack_vector_add_to(uint32_t *to, hack_vector x) {
    __m128i *at = (__m128i *)(void *)to;
    _mm_storeu_si128(at, _mm_add_epi32(_mm_loadu_si128(at), x));
}
HACK_INLINE hack_vector hack_vector_and(hack_vector a, hack_vector b) {
    return _mm_and_si128(a, b);
}
#endif

#if defined(HACK_OP)

enum { HACK_VECTOR = sizeof(hack_vector) };

HACK_INLINE hack_vector hack_broadcast(const uint8_t *four) {
    int32_t word;
    memcpy(&word, four, sizeof word);
    return HACK_OP(set1_epi32)(word);
}

/* Two vectors of a line, 2 or 4 bits: f of `at` bytes / 4 and following. */
HACK_INLINE void hack_dot_narrow(const hack_run *run, uint32_t bits, uint32_t at, uint32_t rows,
                                 const uint8_t *const *operands, uint32_t *const *dots) {
    const uint32_t words = (uint32_t)kvant_planar_words(run->summed_count, bits);
    const uint32_t most = bits == 2 ? 8 : 2; /* pairs of units that 16 bits hold */
    const hack_vector mask = HACK_OP(set1_epi8)((char)((1 << bits) - 1)), ones = HACK_OP(set1_epi16)(1);
    uint32_t pair = run->first / 8, pairs = (run->count + 7) / 8, word = pair % words;
    uint32_t half = pair / words;
    const uint8_t *const line = run->line + at;
    for (uint32_t done = 0; done < pairs;) {
        hack_vector sum[HACK_TILE][2];
        uint32_t end = pairs - done < most ? pairs : done + most;
        for (uint32_t r = 0; r < rows; r++) sum[r][0] = sum[r][1] = HACK_OP(set1_epi8)(0);
        for (; done < end; done++) {
            hack_vector x0 = hack_vector_load(line + (size_t)word * 64);
            hack_vector x1 = hack_vector_load(line + (size_t)word * 64 + HACK_VECTOR);
            if (half != 0) { /* 2 bits: planes 2 and 3 */
                x0 = HACK_OP(srli_epi16)(x0, 4);
                x1 = HACK_OP(srli_epi16)(x1, 4);
            }
            hack_vector a0 = hack_vector_and(x0, mask), a1 = hack_vector_and(x1, mask);
            hack_vector b0 = hack_vector_and(HACK_OP(srli_epi16)(x0, (int)bits), mask);
            hack_vector b1 = hack_vector_and(HACK_OP(srli_epi16)(x1, (int)bits), mask);
            for (uint32_t r = 0; r < rows; r++) {
                const uint8_t *eight = operands[r] + (size_t)done * 8;
                hack_vector a = hack_broadcast(eight), b = hack_broadcast(eight + 4);
                hack_vector p0 =
                    HACK_OP(add_epi16)(HACK_OP(maddubs_epi16)(a, a0), HACK_OP(maddubs_epi16)(b, b0));
                hack_vector p1 =
                    HACK_OP(add_epi16)(HACK_OP(maddubs_epi16)(a, a1), HACK_OP(maddubs_epi16)(b, b1));
                sum[r][0] = HACK_OP(add_epi16)(sum[r][0], p0);
                sum[r][1] = HACK_OP(add_epi16)(sum[r][1], p1);
            }
            if (++word == words) {
                word = 0;
                half++;
            }
        }
        for (uint32_t r = 0; r < rows; r++) {
            hack_vector_add_to(dots[r] + at / 4, HACK_OP(madd_epi16)(sum[r][0], ones));
            hack_vector_add_to(dots[r] + (at + HACK_VECTOR) / 4, HACK_OP(madd_epi16)(sum[r][1], ones));
        }
    }
}

/* The same for codes of 8 bits: bytes 0 and 2 of every word, then 1 and 3. */
HACK_INLINE void hack_dot_wide(const hack_run *run, uint32_t at, uint32_t rows,
                               const uint8_t *const *operands, uint32_t *const *dots) {
    const hack_vector even = HACK_OP(set1_epi16)(0xff);
    uint32_t unit = run->first / 4, units = (run->count + 3) / 4;
    const uint8_t *line = run->line + at + (size_t)unit * 64;
    hack_vector sum[HACK_TILE][2];
    for (uint32_t r = 0; r < rows; r++) sum[r][0] = sum[r][1] = HACK_OP(set1_epi8)(0);
    for (uint32_t u = 0; u < units; u++, line += 64) {
        hack_vector x0 = hack_vector_load(line), x1 = hack_vector_load(line + HACK_VECTOR);
        hack_vector e0 = hack_vector_and(x0, even), e1 = hack_vector_and(x1, even);
        hack_vector o0 = HACK_OP(srli_epi16)(x0, 8), o1 = HACK_OP(srli_epi16)(x1, 8);
        for (uint32_t r = 0; r < rows; r++) {
            hack_vector q = hack_broadcast(operands[r] + (size_t)u * 4);
            hack_vector e = hack_vector_and(q, even), o = HACK_OP(srli_epi16)(q, 8);
            hack_vector p0 = HACK_OP(add_epi32)(HACK_OP(madd_epi16)(e, e0), HACK_OP(madd_epi16)(o, o0));
            hack_vector p1 = HACK_OP(add_epi32)(HACK_OP(madd_epi16)(e, e1), HACK_OP(madd_epi16)(o, o1));
            sum[r][0] = HACK_OP(add_epi32)(sum[r][0], p0);
            sum[r][1] = HACK_OP(add_epi32)(sum[r][1], p1);
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        hack_vector_add_to(dots[r] + at / 4, sum[r][0]);
        hack_vector_add_to(dots[r] + (at + HACK_VECTOR) / 4, sum[r][1]);
    }
}

HACK_INLINE void hack_dot_rows(const hack_run *run, uint32_t bits, uint32_t rows,
                               const uint8_t *const *operands, uint32_t *const *dots) {
    for (uint32_t at = 0; at < 64; at += 2 * HACK_VECTOR)
        if (bits == 8)
            hack_dot_wide(run, at, rows, operands, dots);
        else
            hack_dot_narrow(run, bits, at, rows, operands, dots);
}

#else

HACK_INLINE void hack_dot_rows(const hack_run *run, uint32_t bits, uint32_t rows,
                               const uint8_t *const *operands, uint32_t *const *dots) {
    uint8_t codes[HACK_LINE];
    for (uint32_t i = 0; i < run->count; i++) {
        for (uint32_t f = 0; f < HACK_LINE; f++)
            codes[f] = (uint8_t)kvant_planar_get(run->line, run->summed_count, bits, f, run->first + i);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t f = 0; f < HACK_LINE; f++) dots[r][f] += (uint32_t)codes[f] * operands[r][i];
    }
}

#endif

HACK_INLINE void hack_dot_bits(const hack_run *run, uint32_t bits, uint32_t rows,
                               const uint8_t *const *operands, uint32_t *const *dots) {
    switch (rows) {
    case 1:
        hack_dot_rows(run, bits, 1, operands, dots);
        break;
    case 2:
        hack_dot_rows(run, bits, 2, operands, dots);
        break;
    case 3:
        hack_dot_rows(run, bits, 3, operands, dots);
        break;
    default:
        hack_dot_rows(run, bits, 4, operands, dots);
        break;
    }
}

/* dots[r][f] += sum of codes times operands[r], for 1 to HACK_TILE rows. operands[r] points at the byte of
 * run->first. */
__attribute__((noinline)) static void hack_dot(const hack_run *run, uint32_t bits, uint32_t rows,
                                               const uint8_t *const *operands, uint32_t *const *dots) {
    switch (bits) {
    case 2:
        hack_dot_bits(run, 2, rows, operands, dots);
        break;
    case 4:
        hack_dot_bits(run, 4, rows, operands, dots);
        break;
    default:
        hack_dot_bits(run, 8, rows, operands, dots);
        break;
    }
}

#endif
