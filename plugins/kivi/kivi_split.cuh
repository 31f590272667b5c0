/* Unpacking for kit/split.cuh. The numbers of kivi_codes.cuh but for their rounding: one instead of two,
 * which attention allows. With one no product overflows, so that a group whose top lies beyond the largest of
 * the rows' type is cut there without arithmetic in double. Only such a group: a minimum that rounded beyond
 * the largest stays what decode makes of it. */
#ifndef KVANT_KIVI_SPLIT_CUH
#define KVANT_KIVI_SPLIT_CUH

#include "kivi_codes.cuh"

/* Byte `index` of four codes as a number: 2^23 + code is 4B0000xx. */
__device__ __forceinline__ float split_code(uint32_t codes, uint32_t index) {
    return __uint_as_float(__byte_perm(codes, 0x4b000000u, 0x7650u + index)) - 0x1p23f;
}

__device__ __forceinline__ float split_cut(float x, float largest) {
    return fminf(fmaxf(x, -largest), largest);
}

/* Eight scales or minima, of which `count` exist. `whole`: all do, on a boundary of 16 bytes. */
__device__ __forceinline__ void split_octet(uint32_t meta, uint64_t at, uint32_t count, bool whole,
                                            float (&x)[8]) {
    if (whole && meta != KVANT_DTYPE_F32) {
        const uint4 a = *kvant_global<const uint4>(at);
        const uint32_t pairs[4] = {a.x, a.y, a.z, a.w};
        if (meta == KVANT_DTYPE_F16) {
#pragma unroll
            for (uint32_t k = 0; k < 8; k++)
                x[k] = kvant_f16_to_f32((uint16_t)(pairs[k / 2] >> 16 * (k % 2)));
        } else {
#pragma unroll
            for (uint32_t k = 0; k < 8; k++)
                x[k] = kvant_bf16_to_f32((uint16_t)(pairs[k / 2] >> 16 * (k % 2)));
        }
        return;
    }
    const uint32_t bytes = kvant_element_bytes(meta);
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) x[k] = k < count ? kvant_load_element(meta, at + k * bytes) : 0.0f;
}

/* Four of consecutive tokens, of which `count` exist. */
__device__ __forceinline__ void split_quad(uint32_t meta, uint64_t at, uint32_t count, bool whole,
                                           float (&x)[4]) {
    if (whole && meta != KVANT_DTYPE_F32) {
        const uint2 a = *kvant_global<const uint2>(at);
        x[0] = kvant_half_to_f32(meta, a.x & 0xffffu);
        x[1] = kvant_half_to_f32(meta, a.x >> 16);
        x[2] = kvant_half_to_f32(meta, a.y & 0xffffu);
        x[3] = kvant_half_to_f32(meta, a.y >> 16);
        return;
    }
    const uint32_t bytes = kvant_element_bytes(meta);
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) x[j] = j < count ? kvant_load_element(meta, at + j * bytes) : 0.0f;
}

/* An octet of a set of planes, one code a byte: two neighbouring units, which share a word unless codes have
 * eight bits. Codes of channels that do not exist are 0 in it. */
__device__ __forceinline__ uint2 split_planes(const kivi_gpu_state &s, uint64_t base, uint32_t bits,
                                              uint32_t token, uint32_t octet) {
    const uint32_t words = kvant_planar_words(s.head_dim, bits);
    if (bits == 8) {
        const bool both = 8 * octet + 4 < s.head_dim;
        const uint64_t at = base + kvant_planar_at(words, token, 2 * octet);
        return make_uint2(*kvant_global<const uint32_t>(at),
                          both ? *kvant_global<const uint32_t>(at + 64) : 0); /* the next word's line */
    }
    const uint32_t part = (octet >= words) + (octet >= 2 * words) + (octet >= 3 * words);
    const uint32_t packed =
        *kvant_global<const uint32_t>(base + kvant_planar_at(words, token, octet - part * words));
    return make_uint2(kvant_planar_codes(packed, bits, 2 * part),
                      kvant_planar_codes(packed, bits, 2 * part + 1));
}

/* Codes of a token's octet. `head`: the head's first byte. */
__device__ __forceinline__ uint2 split_key_codes(const kivi_gpu_state &s, uint64_t head, uint32_t token,
                                                 uint32_t octet) {
    if (s.bits != 3) return split_planes(s, head, s.bits, token, octet);
    const uint2 low = split_planes(s, head, 2, token, octet);
    const uint2 high = split_planes(s, head + kvant_planar_bytes(s.tokens, s.head_dim, 2), 1, token, octet);
    return make_uint2(low.x | high.x << 2, low.y | high.y << 2);
}

struct kivi_split_codes {
    const kivi_gpu_state *s;
    uint32_t tokens, heads, head_dim, dtype;

    __device__ __forceinline__ kivi_split_codes(uint64_t state) {
        s = kvant_global<const kivi_gpu_state>(state);
        tokens = s->tokens;
        heads = s->heads;
        head_dim = s->head_dim;
        dtype = s->dtype;
    }

    __device__ __forceinline__ void key(uint64_t extent, uint32_t head, uint32_t token, uint32_t octet,
                                        float (&x)[8]) const {
        const float levels = (float)s->levels, largest = kvant_largest(dtype);
        const uint32_t c = octet * 8, count = head_dim - c;
        const uint64_t base = extent + head * s->head_bytes;
        const uint64_t index = ((uint64_t)(token / s->group) * s->plane_row + c) * s->meta_bytes;
        const uint2 codes = split_key_codes(*s, base, token, octet);
        float scales[8], minima[8];
        split_octet(s->meta, base + s->scale_offset + index, count, head_dim % 8 == 0, scales);
        split_octet(s->meta, base + s->min_offset + index, count, head_dim % 8 == 0, minima);
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            x[k] = __fmaf_rn(split_code(k < 4 ? codes.x : codes.y, k % 4), scales[k], minima[k]);
            if (fabsf(__fmaf_rn(levels, scales[k], minima[k])) > largest) x[k] = split_cut(x[k], largest);
        }
    }

    __device__ __forceinline__ void value(uint64_t extent, uint32_t head, uint32_t token, uint32_t octet,
                                          float (&x)[4][8]) const {
        const float levels = (float)s->levels, largest = kvant_largest(dtype);
        const uint64_t base = extent + head * s->head_bytes;
        const uint32_t c = octet * 8, count = tokens - token;
        const bool whole = tokens % 4 == 0, straddles = s->group % 8 != 0 && s->groups > 1;
        uint32_t codes[8];
        float scales[4], minima[4];
        bool wide[4] = {false, false, false, false};
        value_codes(*s, base, token / KIVI_GPU_TOKENS, token % KIVI_GPU_TOKENS / 4, c, codes);
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            if (k == 0 || straddles) {
                const uint32_t group = min(c + k, head_dim - 1) / s->group;
                const uint64_t at = base + ((uint64_t)group * s->plane_row + token) * s->meta_bytes;
                split_quad(s->meta, at + s->scale_offset, count, whole, scales);
                split_quad(s->meta, at + s->min_offset, count, whole, minima);
#pragma unroll
                for (uint32_t j = 0; j < 4; j++)
                    wide[j] = fabsf(__fmaf_rn(levels, scales[j], minima[j])) > largest;
            }
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                x[j][k] = __fmaf_rn(split_code(codes[k], j), scales[j], minima[j]);
                if (wide[j]) x[j][k] = split_cut(x[j][k], largest);
            }
        }
    }
};

#endif
