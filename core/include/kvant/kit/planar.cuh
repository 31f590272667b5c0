/* kvant/kit/planar.cuh: kit/planar.h for kernels: where words and units of a packed matrix lie.
 *
 * Threads own whole words: a word holds codes of one free index only, so no two threads write one. Eight
 * consecutive c, an octet, are two neighbouring units: with 4, 2 and 1 bits they share a word, with 8 bits
 * they are two words.
 */
#ifndef KVANT_KIT_PLANAR_CUH
#define KVANT_KIT_PLANAR_CUH

#include <stddef.h>
#include <stdint.h>

/* 32-bit words of one row. */
__device__ __forceinline__ uint32_t kvant_planar_words(uint32_t summed_count, uint32_t bits) {
    return (summed_count * bits + 31) / 32;
}

__device__ __forceinline__ uint64_t kvant_planar_bytes(uint32_t free_count, uint32_t summed_count,
                                                       uint32_t bits) {
    return (uint64_t)((free_count + 15) / 16) * kvant_planar_words(summed_count, bits) * 64;
}

/* Byte offset of a row's word. */
__device__ __forceinline__ uint64_t kvant_planar_at(uint32_t words, uint32_t f, uint32_t word) {
    return ((uint64_t)(f / 16) * words + word) * 64 + f % 16 * 4;
}

/* The unit (c / 4) on a plane of a word. */
__device__ __forceinline__ uint32_t kvant_planar_unit(uint32_t words, uint32_t bits, uint32_t word,
                                                      uint32_t plane) {
    return bits == 8 ? word : plane / 2 * 2 * words + 2 * word + plane % 2;
}

/* The word and the plane of a unit. */
__device__ __forceinline__ uint32_t kvant_planar_word(uint32_t words, uint32_t bits, uint32_t unit) {
    return bits == 8 ? unit : unit % (2 * words) / 2;
}
__device__ __forceinline__ uint32_t kvant_planar_plane(uint32_t words, uint32_t bits, uint32_t unit) {
    return bits == 8 ? 0 : 2 * (unit / (2 * words)) + unit % 2;
}

/* The four codes of a plane, one a byte. */
__device__ __forceinline__ uint32_t kvant_planar_codes(uint32_t word, uint32_t bits, uint32_t plane) {
    return word >> bits * plane & ((1u << bits) - 1u) * 0x01010101u;
}

#endif
