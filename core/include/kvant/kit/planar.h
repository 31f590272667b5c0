/* kvant/kit/planar.h: the order of packed codes that CPU and GPU read alike.
 *
 * A head's codes of one block are a matrix of a free index f (what stays: tokens of a key, channels of a
 * value) by a summed index c (what a dot product runs over: channels of a key, tokens of a value). Codes have
 * w = 1, 2, 4 or 8 bits; 3 bits are a matrix of 2-bit codes followed by one of 1-bit codes.
 *
 *   Unit   4 consecutive c of one f: a 4-byte dot product.
 *   Word   32 bits of one f. Its byte j holds codes with c mod 4 = j; plane p, bits w*p to w*p + w-1 of every
 *          byte, is one unit. One mask and one shift bring a unit to light.
 *   Line   64 bytes: the words of 16 consecutive f.
 *   Order  lines run over the words of a row, then over groups of 16 f.
 *
 *       byte of line   0    1    2    3     4    5    6    7    ...   60   61   62   63
 *                   +----+----+----+----++----+----+----+----+-----+----+----+----+----+
 *       f           |     16 g + 0      ||     16 g + 1      | ... |     16 g + 15     |
 *       c mod 4     | 0    1    2    3  || 0    1    2    3  | ... | 0    1    2    3  |
 *                   +----+----+----+----++----+----+----+----+-----+----+----+----+----+
 *
 *       byte, w = 4     7  6  5  4 | 3  2  1  0        plane 1 | plane 0
 *       byte, w = 2     7 6 | 5 4 | 3 2 | 1 0          planes 3 | 2 | 1 | 0
 *
 * Which unit u = c/4 lies where: a row has W words. Its units are cut into 4/w equal parts h of 2 W units
 * each, of which every word takes two neighbours, on planes 2h and 2h + 1:
 *
 *       W = summed_count * w / 32, rounded up
 *       w = 8:        word = u,                       plane = 0
 *       w = 4, 2, 1:  h = u / 2W,  v = u mod 2W:      word = v/2,  plane = 2h + v%2
 *       byte = ((f/16)*W + word)*64 + (f%16)*4 + c%4,   shift = w*plane
 *
 *       units of a row, w = 4    0 1 | 2 3 | ...      two neighbours a word, on planes 0 and 1
 *       units of a row, w = 2    0 1 | 2 3 | ...      on planes 0 and 1 of words 0, 1, ...
 *                               2W.. | ...            on planes 2 and 3 of words 0, 1, ...
 *
 * Padding, zero bits, only where free_count is no multiple of 16 or summed_count none of 32/w. Values are
 * stored in matrices of at most 64 summed tokens: a longer block is a run of 64-token matrices, one after
 * another.
 *
 * kvant_planar_put and kvant_planar_get follow the formula and are the reference; pack and unpack do whole
 * matrices.
 */
#ifndef KVANT_KIT_PLANAR_H
#define KVANT_KIT_PLANAR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kit/planar.h packs through words of little-endian machines"
#endif

/* 32-bit words of one row: W of the formula. */
static inline size_t kvant_planar_words(uint32_t summed_count, uint32_t bits) {
    size_t per_word = 32 / bits;
    return ((size_t)summed_count + per_word - 1) / per_word;
}

/* Bytes of a matrix, a multiple of 64. */
static inline size_t kvant_planar_bytes(uint32_t free_count, uint32_t summed_count, uint32_t bits) {
    size_t groups = ((size_t)free_count + 15) / 16;
    return groups * kvant_planar_words(summed_count, bits) * 64;
}

/* The byte that holds the code of (f, c). */
static inline size_t kvant_planar_byte(uint32_t summed_count, uint32_t bits, uint32_t f, uint32_t c) {
    size_t words = kvant_planar_words(summed_count, bits);
    size_t unit = c / 4;
    size_t word = bits == 8 ? unit : unit % (2 * words) / 2;
    return (f / 16 * words + word) * 64 + f % 16 * 4 + c % 4;
}

/* Its lowest bit within that byte. */
static inline uint32_t kvant_planar_shift(uint32_t summed_count, uint32_t bits, uint32_t f, uint32_t c) {
    (void)f;
    if (bits == 8) return 0;
    size_t words = kvant_planar_words(summed_count, bits);
    size_t unit = c / 4;
    return bits * (uint32_t)(2 * (unit / (2 * words)) + unit % 2);
}

/* Replaces one code; its neighbours in the byte stay. */
static inline void kvant_planar_put(uint8_t *base, uint32_t summed_count, uint32_t bits, uint32_t f,
                                    uint32_t c, uint32_t code) {
    uint8_t *byte = base + kvant_planar_byte(summed_count, bits, f, c);
    uint32_t shift = kvant_planar_shift(summed_count, bits, f, c);
    uint32_t mask = ((1u << bits) - 1u) << shift;
    *byte = (uint8_t)((*byte & ~mask) | (code << shift & mask));
}

static inline uint32_t kvant_planar_get(const uint8_t *base, uint32_t summed_count, uint32_t bits, uint32_t f,
                                        uint32_t c) {
    uint32_t byte = base[kvant_planar_byte(summed_count, bits, f, c)];
    return byte >> kvant_planar_shift(summed_count, bits, f, c) & ((1u << bits) - 1u);
}

/* ---- Vectors of 16 bytes --------------------------------------------------------------------- */

typedef uint8_t kvant_u8x16 __attribute__((vector_size(16)));
typedef uint16_t kvant_u16x8 __attribute__((vector_size(16)));
typedef uint32_t kvant_u32x4 __attribute__((vector_size(16)));
typedef uint64_t kvant_u64x2 __attribute__((vector_size(16)));

static inline kvant_u8x16 kvant_load_u8x16(const uint8_t *bytes) {
    kvant_u8x16 x;
    memcpy(&x, bytes, sizeof x);
    return x;
}

static inline void kvant_store_u8x16(uint8_t *bytes, kvant_u8x16 x) {
    memcpy(bytes, &x, sizeof x);
}

/* Four rows of four 32-bit words become four columns. */
static inline void kvant_transpose_u32x4(kvant_u32x4 *x) {
    kvant_u32x4 a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
    kvant_u32x4 b = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
    kvant_u32x4 c = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
    kvant_u32x4 d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
    x[0] = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    x[1] = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    x[2] = __builtin_shufflevector(c, d, 0, 1, 4, 5);
    x[3] = __builtin_shufflevector(c, d, 2, 3, 6, 7);
}

/* ---- Four rows along c ----------------------------------------------------------------------- */

/* The codes of a row from c on; those that keep[c] does not keep, if there is a keep, as zeros. */
static inline kvant_u8x16 kvant_planar_load_codes_(const uint8_t *row, const uint8_t *keep, size_t c) {
    kvant_u8x16 codes = kvant_load_u8x16(row + c);
    return keep != NULL ? codes & kvant_load_u8x16(keep + c) : codes;
}

/* Words i to i + 3 of a row of 32/bits * words codes. Two neighbouring units are 8 codes side by side. */
static inline kvant_u32x4 kvant_planar_pack_words_(size_t words, uint32_t bits, const uint8_t *row,
                                                   const uint8_t *keep, size_t i) {
    if (bits == 8) return (kvant_u32x4)kvant_planar_load_codes_(row, keep, 4 * i);
    kvant_u32x4 four = {0, 0, 0, 0};
    for (uint32_t h = 0; h < 4 / bits; h++) {
        size_t c = 8 * (h * words + i);
        kvant_u64x2 a = (kvant_u64x2)kvant_planar_load_codes_(row, keep, c);
        kvant_u64x2 b = (kvant_u64x2)kvant_planar_load_codes_(row, keep, c + 16);
        kvant_u32x4 low = (kvant_u32x4)(a | a >> (32 - bits));
        kvant_u32x4 high = (kvant_u32x4)(b | b >> (32 - bits));
        four |= __builtin_shufflevector(low, high, 0, 2, 4, 6) << 2 * h * bits;
    }
    return four;
}

/* Words are done four at a time, what is left of them once more in a last four. Rows of less than four words
 * are read and written as if they had four, which takes up to this many bytes behind them. */
enum { KVANT_PLANAR_BEHIND = 32 };

/* Words i to i + count - 1 of four f. */
static inline void kvant_planar_pack_four_(uint8_t *line, size_t words, uint32_t bits,
                                           const uint8_t *const *rows, const uint8_t *keep, size_t i,
                                           size_t count) {
    kvant_u32x4 x[4];
    for (uint32_t r = 0; r < 4; r++) x[r] = kvant_planar_pack_words_(words, bits, rows[r], keep, i);
    kvant_transpose_u32x4(x);
    for (size_t k = 0; k < count; k++) kvant_store_u8x16(line + 64 * (i + k), (kvant_u8x16)x[k]);
}

/* line: of the first word, from the first of the four f on. */
static inline void kvant_planar_pack_rows_(uint8_t *line, size_t words, uint32_t bits,
                                           const uint8_t *const *rows, const uint8_t *keep) {
    size_t i = 0;
    for (; i + 4 <= words; i += 4) kvant_planar_pack_four_(line, words, bits, rows, keep, i, 4);
    if (i == words) return;
    if (words >= 4)
        kvant_planar_pack_four_(line, words, bits, rows, keep, words - 4, 4);
    else
        kvant_planar_pack_four_(line, words, bits, rows, keep, 0, words);
}

/* Parts in ascending order: what a row of less than four words writes too much, the next part puts right. */
static inline void kvant_planar_unpack_words_(kvant_u32x4 four, size_t words, uint32_t bits, uint8_t *row,
                                              size_t i) {
    if (bits == 8) {
        kvant_store_u8x16(row + 4 * i, (kvant_u8x16)four);
        return;
    }
    const uint64_t mask = 0x0101010101010101u * ((1u << bits) - 1u);
    const kvant_u32x4 zero = {0, 0, 0, 0};
    for (uint32_t h = 0; h < 4 / bits; h++) {
        uint8_t *codes = row + 8 * (h * words + i);
        kvant_u32x4 shifted = four >> 2 * h * bits;
        kvant_u64x2 a = (kvant_u64x2)__builtin_shufflevector(shifted, zero, 0, 4, 1, 5);
        kvant_u64x2 b = (kvant_u64x2)__builtin_shufflevector(shifted, zero, 2, 4, 3, 5);
        kvant_store_u8x16(codes, (kvant_u8x16)((a | a << (32 - bits)) & mask));
        kvant_store_u8x16(codes + 16, (kvant_u8x16)((b | b << (32 - bits)) & mask));
    }
}

static inline void kvant_planar_unpack_four_(const uint8_t *line, size_t words, uint32_t bits,
                                             uint8_t *const *rows, size_t i, size_t count) {
    kvant_u32x4 x[4] = {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}};
    for (size_t k = 0; k < count; k++) x[k] = (kvant_u32x4)kvant_load_u8x16(line + 64 * (i + k));
    kvant_transpose_u32x4(x);
    for (uint32_t r = 0; r < 4; r++) kvant_planar_unpack_words_(x[r], words, bits, rows[r], i);
}

static inline void kvant_planar_unpack_rows_(const uint8_t *line, size_t words, uint32_t bits,
                                             uint8_t *const *rows) {
    size_t i = 0;
    for (; i + 4 <= words; i += 4) kvant_planar_unpack_four_(line, words, bits, rows, i, 4);
    if (i == words) return;
    if (words >= 4)
        kvant_planar_unpack_four_(line, words, bits, rows, words - 4, 4);
    else
        kvant_planar_unpack_four_(line, words, bits, rows, 0, words);
}

/* ---- Sixteen columns along f ----------------------------------------------------------------- */

/* The codes of a line, 16 f side by side: unit p of the line has c = 0 to 3 in rows `stride` bytes apart,
 * from first + p/2 * pair_step + p%2 * 4 * stride on. */
static inline void kvant_planar_pack_line_(uint8_t *line, uint32_t bits, const uint8_t *first, size_t stride,
                                           size_t pair_step) {
    kvant_u8x16 x[4];
    for (uint32_t j = 0; j < 4; j++) {
        /* From the highest plane down, so that no shift carries bits across a byte. */
        kvant_u8x16 row = {0};
        for (uint32_t p = 8 / bits; p-- > 0;) {
            kvant_u8x16 codes = kvant_load_u8x16(first + p / 2 * pair_step + (p % 2 * 4 + j) * stride);
            row = bits == 8 ? codes : (kvant_u8x16)((kvant_u16x8)row << bits) | codes;
        }
        x[j] = row;
    }
    kvant_u8x16 even_low =
        __builtin_shufflevector(x[0], x[1], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    kvant_u8x16 even_high =
        __builtin_shufflevector(x[0], x[1], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    kvant_u8x16 odd_low =
        __builtin_shufflevector(x[2], x[3], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    kvant_u8x16 odd_high =
        __builtin_shufflevector(x[2], x[3], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    kvant_u16x8 a = (kvant_u16x8)even_low, b = (kvant_u16x8)odd_low;
    kvant_u16x8 c = (kvant_u16x8)even_high, d = (kvant_u16x8)odd_high;
    kvant_store_u8x16(line, (kvant_u8x16)__builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11));
    kvant_store_u8x16(line + 16, (kvant_u8x16)__builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15));
    kvant_store_u8x16(line + 32, (kvant_u8x16)__builtin_shufflevector(c, d, 0, 8, 1, 9, 2, 10, 3, 11));
    kvant_store_u8x16(line + 48, (kvant_u8x16)__builtin_shufflevector(c, d, 4, 12, 5, 13, 6, 14, 7, 15));
}

static inline void kvant_planar_unpack_line_(const uint8_t *line, uint32_t bits, uint8_t *first,
                                             size_t stride, size_t pair_step) {
    kvant_u32x4 x[4];
    for (uint32_t k = 0; k < 4; k++) {
        kvant_u8x16 words = kvant_load_u8x16(line + 16 * k);
        x[k] = (kvant_u32x4)__builtin_shufflevector(words, words, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3,
                                                    7, 11, 15);
    }
    kvant_transpose_u32x4(x);
    const uint8_t mask = (uint8_t)((1u << bits) - 1u);
    for (uint32_t j = 0; j < 4; j++) {
        for (uint32_t p = 0; p < 8 / bits; p++) {
            kvant_u8x16 codes = (kvant_u8x16)((kvant_u16x8)x[j] >> p * bits);
            if (bits != 8) codes &= mask; /* also what a neighbouring byte shifted in */
            kvant_store_u8x16(first + p / 2 * pair_step + (p % 2 * 4 + j) * stride, codes);
        }
    }
}

/* The c of code k of a line, k = 4 * plane + c mod 4. */
static inline size_t kvant_planar_line_summed_(size_t words, uint32_t bits, size_t word, uint32_t k) {
    uint32_t plane = k / 4;
    return 4 * (bits == 8 ? word : 2 * words * (plane / 2) + 2 * word + plane % 2) + k % 4;
}

/* ---- Whole matrices -------------------------------------------------------------------------- */

/* memcpy for a few bytes, in pieces of 8: they come straight out of stores of 16 that are still under way. */
static inline void kvant_planar_copy_(uint8_t *__restrict out, const uint8_t *__restrict in, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint64_t eight;
        memcpy(&eight, in + i, 8);
        memcpy(out + i, &eight, 8);
    }
    if ((count & 4) != 0) {
        uint32_t four;
        memcpy(&four, in + i, 4);
        memcpy(out + i, &four, 4);
        i += 4;
    }
    for (; i < count; i++) out[i] = in[i];
}

/* Rows that lie along c and do not fill their words may have this many codes; longer ones go line by line. */
enum { KVANT_PLANAR_ROW = 1088 };

/* Where a row does not fill its words, or has less than four, the loads run over its end, into the next row,
 * and a mask drops what they find there; rows near the end of the codes are copied first. */
static inline void kvant_planar_pack_along_c_(uint8_t *base, uint32_t free_count, uint32_t summed_count,
                                              uint32_t bits, const uint8_t *codes, size_t free_stride) {
    const size_t words = kvant_planar_words(summed_count, bits);
    const size_t full = words * (32 / bits);
    const int exact = full == summed_count && words >= 4;
    const size_t end = free_count == 0 ? 0 : (free_count - 1) * free_stride + summed_count;
    uint8_t keep[KVANT_PLANAR_ROW + KVANT_PLANAR_BEHIND];
    uint8_t copies[4][KVANT_PLANAR_ROW + KVANT_PLANAR_BEHIND];
    const uint8_t *rows[4];
    if (!exact) {
        memset(keep, 255, summed_count);
        memset(keep + summed_count, 0, full - summed_count + KVANT_PLANAR_BEHIND);
    }
    for (size_t f = 0; f < ((size_t)free_count + 15) / 16 * 16; f += 4) {
        for (size_t r = 0; r < 4; r++) {
            const size_t at = (f + r) * free_stride;
            rows[r] = copies[r];
            if (f + r >= free_count) {
                memset(copies[r], 0, full + KVANT_PLANAR_BEHIND);
            } else if (exact || at + full + KVANT_PLANAR_BEHIND <= end) {
                rows[r] = codes + at;
            } else {
                memcpy(copies[r], codes + at, summed_count);
                memset(copies[r] + summed_count, 0, full - summed_count + KVANT_PLANAR_BEHIND);
            }
        }
        uint8_t *line = base + (f / 16 * words * 16 + f % 16) * 4;
        if (exact)
            kvant_planar_pack_rows_(line, words, bits, rows, NULL);
        else
            kvant_planar_pack_rows_(line, words, bits, rows, keep);
    }
}

/* Where a row does not fill its words, or has less than four, it is written to a copy first. */
static inline void kvant_planar_unpack_along_c_(const uint8_t *base, uint32_t free_count,
                                                uint32_t summed_count, uint32_t bits, uint8_t *codes,
                                                size_t free_stride) {
    const size_t words = kvant_planar_words(summed_count, bits);
    const int exact = words * (32 / bits) == summed_count && words >= 4;
    uint8_t copies[4][KVANT_PLANAR_ROW + KVANT_PLANAR_BEHIND];
    uint8_t *rows[4];
    for (size_t f = 0; f < free_count; f += 4) {
        for (size_t r = 0; r < 4; r++)
            rows[r] = exact && f + r < free_count ? codes + (f + r) * free_stride : copies[r];
        kvant_planar_unpack_rows_(base + (f / 16 * words * 16 + f % 16) * 4, words, bits, rows);
        for (size_t r = 0; r < 4 && f + r < free_count; r++)
            if (!exact) kvant_planar_copy_(codes + (f + r) * free_stride, copies[r], summed_count);
    }
}

/* Line by line. Codes that do not lie along f, or edges, pass through a tile of 32/bits rows of 16. */
static inline void kvant_planar_pack_lines_(uint8_t *base, uint32_t free_count, uint32_t summed_count,
                                            uint32_t bits, const uint8_t *codes, size_t free_stride,
                                            size_t summed_stride) {
    const size_t words = kvant_planar_words(summed_count, bits);
    const int whole = free_stride == 1 && words * (32 / bits) == summed_count;
    uint8_t tile[32][16];
    for (size_t group = 0; 16 * group < free_count; group++) {
        const uint8_t *corner = codes + 16 * group * free_stride;
        size_t here = free_count - 16 * group < 16 ? free_count - 16 * group : 16;
        for (size_t i = 0; i < words; i++) {
            uint8_t *line = base + (group * words + i) * 64;
            if (whole && here == 16) {
                const uint8_t *first = corner + kvant_planar_line_summed_(words, bits, i, 0) * summed_stride;
                kvant_planar_pack_line_(line, bits, first, summed_stride, 8 * words * summed_stride);
                continue;
            }
            memset(tile, 0, sizeof tile);
            for (uint32_t k = 0; k < 32 / bits; k++) {
                size_t c = kvant_planar_line_summed_(words, bits, i, k);
                if (c >= summed_count) continue;
                const uint8_t *row = corner + c * summed_stride;
                if (free_stride == 1)
                    kvant_planar_copy_(tile[k], row, here);
                else
                    for (size_t f = 0; f < here; f++) tile[k][f] = row[f * free_stride];
            }
            kvant_planar_pack_line_(line, bits, tile[0], 16, 8 * 16);
        }
    }
}

static inline void kvant_planar_unpack_lines_(const uint8_t *base, uint32_t free_count, uint32_t summed_count,
                                              uint32_t bits, uint8_t *codes, size_t free_stride,
                                              size_t summed_stride) {
    const size_t words = kvant_planar_words(summed_count, bits);
    const int whole = free_stride == 1 && words * (32 / bits) == summed_count;
    uint8_t tile[32][16];
    for (size_t group = 0; 16 * group < free_count; group++) {
        uint8_t *corner = codes + 16 * group * free_stride;
        size_t here = free_count - 16 * group < 16 ? free_count - 16 * group : 16;
        for (size_t i = 0; i < words; i++) {
            const uint8_t *line = base + (group * words + i) * 64;
            if (whole && here == 16) {
                uint8_t *first = corner + kvant_planar_line_summed_(words, bits, i, 0) * summed_stride;
                kvant_planar_unpack_line_(line, bits, first, summed_stride, 8 * words * summed_stride);
                continue;
            }
            kvant_planar_unpack_line_(line, bits, tile[0], 16, 8 * 16);
            for (uint32_t k = 0; k < 32 / bits; k++) {
                size_t c = kvant_planar_line_summed_(words, bits, i, k);
                if (c >= summed_count) continue;
                uint8_t *row = corner + c * summed_stride;
                if (free_stride == 1)
                    kvant_planar_copy_(row, tile[k], here);
                else
                    for (size_t f = 0; f < here; f++) row[f * free_stride] = tile[k][f];
            }
        }
    }
}

/* Rows of the matrix that the row-wise code can take. */
static inline int kvant_planar_is_along_c_(uint32_t free_count, uint32_t summed_count, uint32_t bits,
                                           size_t summed_stride) {
    size_t full = kvant_planar_words(summed_count, bits) * (32 / bits);
    return summed_stride == 1 && (full <= KVANT_PLANAR_ROW || (full == summed_count && free_count % 16 == 0));
}

static inline void kvant_planar_pack_bits_(uint8_t *base, uint32_t free_count, uint32_t summed_count,
                                           uint32_t bits, const uint8_t *codes, size_t free_stride,
                                           size_t summed_stride) {
    if (kvant_planar_is_along_c_(free_count, summed_count, bits, summed_stride))
        kvant_planar_pack_along_c_(base, free_count, summed_count, bits, codes, free_stride);
    else
        kvant_planar_pack_lines_(base, free_count, summed_count, bits, codes, free_stride, summed_stride);
}

static inline void kvant_planar_unpack_bits_(const uint8_t *base, uint32_t free_count, uint32_t summed_count,
                                             uint32_t bits, uint8_t *codes, size_t free_stride,
                                             size_t summed_stride) {
    if (kvant_planar_is_along_c_(free_count, summed_count, bits, summed_stride))
        kvant_planar_unpack_along_c_(base, free_count, summed_count, bits, codes, free_stride);
    else
        kvant_planar_unpack_lines_(base, free_count, summed_count, bits, codes, free_stride, summed_stride);
}

/* Packs a whole matrix: writes kvant_planar_bytes() bytes, padding as zeros. The code of (f, c) is codes[f *
 * free_stride + c * summed_stride], below 2^bits. base and codes do not overlap. Fast where one of the
 * strides is 1. */
static inline void kvant_planar_pack(uint8_t *base, uint32_t free_count, uint32_t summed_count, uint32_t bits,
                                     const uint8_t *codes, size_t free_stride, size_t summed_stride) {
    switch (bits) { /* a copy for each width, with shifts that are constants */
    case 1:
        kvant_planar_pack_bits_(base, free_count, summed_count, 1, codes, free_stride, summed_stride);
        break;
    case 2:
        kvant_planar_pack_bits_(base, free_count, summed_count, 2, codes, free_stride, summed_stride);
        break;
    case 4:
        kvant_planar_pack_bits_(base, free_count, summed_count, 4, codes, free_stride, summed_stride);
        break;
    default:
        kvant_planar_pack_bits_(base, free_count, summed_count, 8, codes, free_stride, summed_stride);
        break;
    }
}

/* Unpacks a whole matrix to one code a byte, at codes[f * free_stride + c * summed_stride]; writes nothing
 * else. Fast where one of the strides is 1. */
static inline void kvant_planar_unpack(const uint8_t *base, uint32_t free_count, uint32_t summed_count,
                                       uint32_t bits, uint8_t *codes, size_t free_stride,
                                       size_t summed_stride) {
    switch (bits) {
    case 1:
        kvant_planar_unpack_bits_(base, free_count, summed_count, 1, codes, free_stride, summed_stride);
        break;
    case 2:
        kvant_planar_unpack_bits_(base, free_count, summed_count, 2, codes, free_stride, summed_stride);
        break;
    case 4:
        kvant_planar_unpack_bits_(base, free_count, summed_count, 4, codes, free_stride, summed_stride);
        break;
    default:
        kvant_planar_unpack_bits_(base, free_count, summed_count, 8, codes, free_stride, summed_stride);
        break;
    }
}

#endif
