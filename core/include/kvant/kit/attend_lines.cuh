/* kvant/kit/attend_lines.cuh: a tile of codes in shared memory: how it gets there, and out of it in the order
 * that products want (mma.cuh); scales and minima beside it. For kit/attend_codes.cuh.
 */
#ifndef KVANT_KIT_ATTEND_LINES_CUH
#define KVANT_KIT_ATTEND_LINES_CUH

#include "attend_shape.h"
#include "mma.cuh"
#include "planar.cuh"
#include "rows.cuh"

/* Lines of 64 bytes: of 16 free indices a word each. Word w lies in line w ^ (w >> 2 & 1), its quarters four
 * free indices long and crossed where w & 2: so eight lanes that read four words, side by side or every other
 * one, touch all banks. */
__device__ __forceinline__ uint32_t kvant_tile_word(uint32_t word, uint32_t quarter) {
    return (word ^ (word >> 2 & 1)) * 64 + (quarter ^ (word & 2)) * 16;
}

/* Copies `rows` rows of `count` 16-byte pieces, by all lanes of a warp. LINES: as words of code lines; a
 * piece 32 further on is 8 words on, at the same place of its line. */
template <bool LINES>
__device__ __forceinline__ void kvant_tile_copy(uint32_t lane, uint32_t to, uint32_t to_stride, uint64_t from,
                                                uint32_t from_stride, uint32_t rows, uint32_t count) {
    uint32_t first = 0, abreast = 1, i = lane;
    if (count <= 16) {
        abreast = 32 / count;
        first = lane / count;
        i = first < abreast ? lane - first * count : count;
    }
    to += first * to_stride + (LINES ? kvant_tile_word(i / 4, i % 4) : i * 16);
    from += first * from_stride + i * 16;
#pragma unroll 1
    for (uint32_t row = first; row < rows; row += abreast) {
        uint32_t at = to;
        uint64_t source = from;
#pragma unroll 1
        for (uint32_t j = i; j < count; j += 32) {
            kvant_copy_async(at, source);
            at += 512;
            source += 512;
        }
        to += abreast * to_stride;
        from += abreast * from_stride;
    }
}

/* Codes of free indices [first, first + count) of a matrix of free_count x summed; first is a multiple of 16.
 * `room`: the summed indices that shared memory is laid out for. */
__device__ __forceinline__ void kvant_tile_copy_codes(uint32_t lane, uint32_t to, uint64_t from,
                                                      uint32_t first, uint32_t count, uint32_t free_count,
                                                      uint32_t summed, uint32_t room, uint32_t bits) {
    uint32_t rows = (count + 15) / 16, low = bits == 3 ? 2 : bits;
    uint32_t words = kvant_planar_words(summed, low), stride = kvant_attend_lines(room, low) * 64;
    kvant_tile_copy<true>(lane, to, stride, from + (uint64_t)(first / 16) * words * 64, words * 64, rows,
                          4 * words);
    if (bits != 3) return;
    from += kvant_planar_bytes(free_count, summed, 2);
    words = kvant_planar_words(summed, 1);
    kvant_tile_copy<true>(lane, to + rows * stride, kvant_attend_lines(room, 1) * 64,
                          from + (uint64_t)(first / 16) * words * 64, words * 64, rows, 4 * words);
}

/* Where an octet of the summed index lies in its row of lines, with the word's quarter 0, and the shift of
 * its first unit, in the upper half; y: of the third bits. */
__device__ __forceinline__ uint32_t kvant_tile_find(uint32_t summed, uint32_t bits, uint32_t octet) {
    uint32_t words = kvant_planar_words(summed, bits), part = octet / words;
    if (bits == 8) return kvant_tile_word(2 * octet, 0);
    return kvant_tile_word(octet - part * words, 0) | part * 2 * bits << 16;
}
__device__ __forceinline__ uint2 kvant_tile_octet(uint32_t summed, uint32_t bits, uint32_t octet) {
    return bits == 3 ? make_uint2(kvant_tile_find(summed, 2, octet), kvant_tile_find(summed, 1, octet))
                     : make_uint2(kvant_tile_find(summed, bits, octet), 0);
}

/* How codes of a side lie in shared memory. */
struct kvant_tile_codes {
    uint32_t bits, next, mask;    /* next: from a unit to the next one, in bits of a word */
    uint32_t stride, high_stride; /* bytes from a row of lines to the next; of third bits */
};
__device__ __forceinline__ kvant_tile_codes kvant_tile_codes_of(uint32_t room, uint32_t bits) {
    kvant_tile_codes c;
    c.bits = bits;
    c.next = bits == 3 ? 2 : bits;
    c.mask = ((1u << c.next) - 1) * 0x01010101u;
    c.stride = kvant_attend_lines(room, c.next) * 64;
    c.high_stride = kvant_attend_lines(room, 1) * 64;
    return c;
}

/* Where a lane finds its octet of four free indices, and how far the units are shifted. */
struct kvant_tile_place {
    uint32_t at, shift;
};
__device__ __forceinline__ kvant_tile_place kvant_tile_place_of(uint32_t octet, uint32_t quarter) {
    kvant_tile_place p = {(octet & 0xffffu) ^ quarter * 16, octet >> 16};
    return p;
}

/* An octet of four free indices: its first unit in a[0] to a[3], its second in a[4] to a[7]. `low`: their
 * row of lines; `high`: that of third bits, which are found by `octet`. */
__device__ __forceinline__ void kvant_tile_load(const unsigned char *low, const unsigned char *high,
                                                uint32_t bits, uint32_t mask, const kvant_tile_place &p,
                                                const uint2 *octet, uint32_t quarter, uint32_t (&a)[8]) {
    uint4 x = *(const uint4 *)(low + p.at);
    const uint32_t first[4] = {x.x, x.y, x.z, x.w};
    const uint32_t next = p.shift + (bits == 3 ? 2 : bits);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        a[i] = first[i] >> p.shift & mask;
        a[4 + i] = first[i] >> next & mask;
    }
    if ((bits & 3) == 3) {
        const kvant_tile_place third_place = kvant_tile_place_of(octet->y, quarter);
        uint4 y = *(const uint4 *)(high + third_place.at);
        const uint32_t third[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            a[i] |= third[i] >> third_place.shift << 2 & 0x04040404u;
            a[4 + i] |= third[i] >> (third_place.shift + 1) << 2 & 0x04040404u;
        }
    } else if (bits == 8) { /* an even word, and its neighbour */
        uint4 y = *(const uint4 *)(low + (p.at ^ 64));
        a[4] = y.x, a[5] = y.y, a[6] = y.z, a[7] = y.w;
    }
}

/* Eight numbers of a row of scales or minima of type META; UNSIGNED: none is negative. `most` keeps the
 * largest magnitude, of 16-bit types of two numbers side by side. */
template <uint32_t META, bool UNSIGNED>
__device__ __forceinline__ void kvant_tile_numbers(const unsigned char *at, float (&x)[8], uint32_t &most) {
    uint4 a = *(const uint4 *)at;
    const uint32_t pairs[4] = {a.x, a.y, a.z, a.w};
    if (META == KVANT_DTYPE_F32) {
        uint4 b = *(const uint4 *)(at + 16);
        const uint32_t all[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        float largest = __uint_as_float(most);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            x[i] = __uint_as_float(all[i]);
            largest = fmaxf(largest, fabsf(x[i]));
        }
        most = __float_as_uint(largest);
    } else if (META == KVANT_DTYPE_F16) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            kvant_f16x2_to_f32(pairs[i], x[2 * i], x[2 * i + 1]);
            most = kvant_max_f16x2(most, UNSIGNED ? pairs[i] : pairs[i] & 0x7fff7fffu);
        }
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            x[2 * i] = __uint_as_float(pairs[i] << 16);
            x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
            most = kvant_max_bf16x2(most, UNSIGNED ? pairs[i] : pairs[i] & 0x7fff7fffu);
        }
    }
}
__device__ __forceinline__ float kvant_tile_most(uint32_t meta, uint32_t most) {
    float low, high;
    if (meta == KVANT_DTYPE_F32) return __uint_as_float(most);
    if (meta == KVANT_DTYPE_F16) {
        kvant_f16x2_to_f32(most, low, high);
    } else {
        low = __uint_as_float(most << 16);
        high = __uint_as_float(most & 0xffff0000u);
    }
    return fmaxf(low, high);
}

#endif
