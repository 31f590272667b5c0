/* Unpacking, eight channels at a time: what decode and attention share. */
#ifndef KVANT_KIVI_CODES_CUH
#define KVANT_KIVI_CODES_CUH

#include "kivi_group.cuh"

#include <kvant/kit/attend_codes.cuh>
#include <kvant/kit/planar.cuh>

/* Sets of planes of a code: one, or for 3 bits the low two bits and then the third. */
__device__ __forceinline__ uint32_t set_count(uint32_t bits) {
    return bits == 3 ? 2 : 1;
}
__device__ __forceinline__ uint32_t set_bits(uint32_t bits, uint32_t set) {
    return bits != 3 ? bits : 2 - set;
}

/* A scale or a minimum; they lie on boundaries of their own. */
__device__ __forceinline__ float load_number(const kivi_gpu_state &s, uint64_t at) {
    if (s.meta == KVANT_DTYPE_F32) return *kvant_global<const float>(at);
    return kvant_half_to_f32(s.meta, *kvant_global<const uint16_t>(at));
}

__device__ __forceinline__ void load_plane(const kivi_gpu_state &s, uint64_t plane, uint64_t index,
                                           uint32_t count, float (&x)[8]) {
    kvant_load_octet(s.meta, plane + index * s.meta_bytes, (int64_t)s.meta_bytes, count, x);
}

/* An octet of a key. `head`: the head's first byte. */
__device__ __forceinline__ void key_octet(const kivi_gpu_state &s, uint64_t head, uint32_t token,
                                          uint32_t octet, float (&x)[8]) {
    float levels = (float)s.levels, largest = kvant_largest(s.dtype);
    uint32_t c = octet * 8, codes[2] = {0, 0};
    uint64_t base = head;
    for (uint32_t set = 0; set < set_count(s.bits); set++) {
        uint32_t bits = set_bits(s.bits, set), words = kvant_planar_words(s.head_dim, bits);
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t unit = 2 * octet + half, word = kvant_planar_word(words, bits, unit);
            if (4 * unit >= s.head_dim) continue;
            uint32_t packed = *kvant_global<const uint32_t>(base + kvant_planar_at(words, token, word));
            codes[half] |= kvant_planar_codes(packed, bits, kvant_planar_plane(words, bits, unit)) << 2 * set;
        }
        base += kvant_planar_bytes(s.tokens, s.head_dim, bits);
    }
    float scales[8], minima[8];
    uint64_t index = (uint64_t)(token / s.group) * s.plane_row + c;
    load_plane(s, head + s.scale_offset, index, s.head_dim - c, scales);
    load_plane(s, head + s.min_offset, index, s.head_dim - c, minima);
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
        x[k] = kivi_value(levels, largest, scales[k], minima[k], codes[k / 4] >> k % 4 * 8 & 0xffu);
}

/* The codes of eight channels from c on, of the four tokens of a unit (byte j is token j). */
__device__ __forceinline__ void value_codes(const kivi_gpu_state &s, uint64_t head, uint32_t matrix,
                                            uint32_t unit, uint32_t c, uint32_t (&codes)[8]) {
    uint32_t tokens = min(s.tokens - matrix * KIVI_GPU_TOKENS, (uint32_t)KIVI_GPU_TOKENS);
    uint64_t base = head + matrix * s.matrix_bytes;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) codes[k] = 0;
    for (uint32_t set = 0; set < set_count(s.bits); set++) {
        uint32_t bits = set_bits(s.bits, set), words = kvant_planar_words(tokens, bits);
        uint32_t plane = kvant_planar_plane(words, bits, unit);
        const uint4 *line =
            kvant_global<const uint4>(base + kvant_planar_at(words, c, kvant_planar_word(words, bits, unit)));
        uint4 a = line[0], b = line[1];
        const uint32_t packed[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) codes[k] |= kvant_planar_codes(packed[k], bits, plane) << 2 * set;
        base += kvant_planar_bytes(s.head_dim, tokens, bits);
    }
}

/* One token of them. */
__device__ __forceinline__ void value_octet(const kivi_gpu_state &s, uint64_t head, uint32_t token,
                                            uint32_t c, const uint32_t (&codes)[8], uint32_t j,
                                            float (&x)[8]) {
    float levels = (float)s.levels, largest = kvant_largest(s.dtype), scale = 0, min = 0;
    uint32_t group = c / s.group, next = (group + 1) * s.group;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
        x[k] = 0;
        if (c + k < s.head_dim) {
            if (k == 0 || c + k == next) {
                group += k == 0 ? 0 : 1;
                next = (group + 1) * s.group;
                uint64_t at = head + ((uint64_t)group * s.plane_row + token) * s.meta_bytes;
                scale = load_number(s, at + s.scale_offset);
                min = load_number(s, at + s.min_offset);
            }
            x[k] = kivi_value(levels, largest, scale, min, codes[k] >> 8 * j & 0xffu);
        }
    }
}

/* For kit/attend.cuh and kit/attend_codes.cuh. */
struct kivi_codes {
    const kivi_gpu_state *s;
    uint32_t tokens, heads, head_dim, dtype;

    __device__ __forceinline__ kivi_codes(uint64_t state) {
        s = kvant_global<const kivi_gpu_state>(state);
        tokens = s->tokens;
        heads = s->heads;
        head_dim = s->head_dim;
        dtype = s->dtype;
    }
    __device__ __forceinline__ void key(uint64_t extent, uint32_t head, uint32_t token, uint32_t octet,
                                        float (&x)[8]) const {
        key_octet(*s, extent + head * s->head_bytes, token, octet, x);
    }
    __device__ __forceinline__ void value(uint64_t extent, uint32_t head, uint32_t token, uint32_t octet,
                                          float (&x)[4][8]) const {
        uint64_t base = extent + head * s->head_bytes;
        uint32_t codes[8];
        value_codes(*s, base, token / KIVI_GPU_TOKENS, token % KIVI_GPU_TOKENS / 4, octet * 8, codes);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            if (token + j < tokens) value_octet(*s, base, token + j, octet * 8, codes, j, x[j]);
        }
    }
    /* One number, where the rows of an octet are not what is wanted. */
    __device__ __forceinline__ float key_number(uint64_t extent, uint32_t head, uint32_t token,
                                                uint32_t channel) const {
        uint64_t base = extent + head * s->head_bytes;
        return number(base, base, tokens, head_dim, token, channel,
                      (uint64_t)(token / s->group) * s->plane_row + channel);
    }
    __device__ __forceinline__ float value_number(uint64_t extent, uint32_t head, uint32_t token,
                                                  uint32_t channel) const {
        uint64_t base = extent + head * s->head_bytes;
        uint32_t matrix = token / KIVI_GPU_TOKENS, first = matrix * KIVI_GPU_TOKENS;
        return number(base, base + matrix * s->matrix_bytes, head_dim,
                      min(tokens - first, (uint32_t)KIVI_GPU_TOKENS), channel, token - first,
                      (uint64_t)(channel / s->group) * s->plane_row + token);
    }
    __device__ __forceinline__ float number(uint64_t head, uint64_t matrix, uint32_t free_count,
                                            uint32_t summed_count, uint32_t f, uint32_t c,
                                            uint64_t index) const {
        uint32_t code = 0;
#pragma unroll 1
        for (uint32_t set = 0; set < set_count(s->bits); set++) {
            uint32_t bits = set_bits(s->bits, set), words = kvant_planar_words(summed_count, bits);
            uint64_t at = matrix + kvant_planar_at(words, f, kvant_planar_word(words, bits, c / 4)) + c % 4;
            code |= (*kvant_global<const uint8_t>(at) >> bits * kvant_planar_plane(words, bits, c / 4) &
                     ((1u << bits) - 1))
                    << 2 * set;
            matrix += kvant_planar_bytes(free_count, summed_count, bits);
        }
        uint64_t at = head + index * s->meta_bytes;
        return kivi_value((float)s->levels, kvant_largest(dtype), load_number(*s, at + s->scale_offset),
                          load_number(*s, at + s->min_offset), code);
    }
    __device__ __forceinline__ kvant_affine affine() const {
        kvant_affine a;
        a.shape.tokens = tokens;
        a.shape.head_dim = head_dim;
        a.shape.bits = s->bits;
        a.shape.group = s->group;
        a.shape.meta_bytes = s->meta_bytes;
        a.meta = s->meta;
        a.plane_stride = s->plane_row * s->meta_bytes;
        a.head_bytes = s->head_bytes;
        a.matrix_bytes = s->matrix_bytes;
        a.scale_offset = s->scale_offset;
        a.min_offset = s->min_offset;
        a.levels = (float)s->levels;
        a.largest = kvant_largest(dtype);
        return a;
    }
};

#endif
