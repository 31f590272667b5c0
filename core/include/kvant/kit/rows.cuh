/* kvant/kit/rows.cuh: rows of any dtype, stride and alignment, eight channels at a time: an octet.
 *
 * Eight channels side by side on a 16-byte boundary move as 16 bytes (two times 16 of F32). Others move
 * element by element, and where not even elements are aligned, byte by byte, to the same numbers.
 */
#ifndef KVANT_KIT_ROWS_CUH
#define KVANT_KIT_ROWS_CUH

#include "half.cuh"

/* What lies at a device address, known to be global memory. */
template <typename T> __device__ __forceinline__ T *kvant_global(uint64_t address) {
    T *at = (T *)address;
    __builtin_assume(__isGlobal(at));
    return at;
}

__device__ __forceinline__ uint32_t kvant_element_bytes(uint32_t dtype) {
    return dtype == KVANT_DTYPE_F32 ? 4u : 2u;
}

__device__ __forceinline__ float kvant_half_to_f32(uint32_t dtype, uint32_t half) {
    return dtype == KVANT_DTYPE_F16 ? kvant_f16_to_f32((uint16_t)half) : kvant_bf16_to_f32((uint16_t)half);
}

__device__ __forceinline__ uint32_t kvant_f32_to_half(uint32_t dtype, float x) {
    return dtype == KVANT_DTYPE_F16 ? kvant_f32_to_f16(x) : kvant_f32_to_bf16(x);
}

/* ---- Elements ------------------------------------------------------------------------------------------ */

__device__ __forceinline__ float kvant_load_element(uint32_t dtype, uint64_t address) {
    const uint8_t *bytes = kvant_global<const uint8_t>(address);
    if (dtype == KVANT_DTYPE_F32) {
        if (address % 4 == 0) return *kvant_global<const float>(address);
        return __uint_as_float(bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
                               (uint32_t)bytes[3] << 24);
    }
    uint32_t half =
        address % 2 == 0 ? *kvant_global<const uint16_t>(address) : bytes[0] | (uint32_t)bytes[1] << 8;
    return kvant_half_to_f32(dtype, half);
}

/* Rounds once, saturating, as plugin.h asks of decode. */
__device__ __forceinline__ void kvant_store_element(uint32_t dtype, uint64_t address, float x) {
    uint8_t *bytes = kvant_global<uint8_t>(address);
    if (dtype == KVANT_DTYPE_F32) {
        uint32_t word = __float_as_uint(x);
        if (address % 4 == 0)
            *kvant_global<uint32_t>(address) = word;
        else
            for (uint32_t i = 0; i < 4; i++) bytes[i] = (uint8_t)(word >> 8 * i);
        return;
    }
    uint32_t half = kvant_f32_to_half(dtype, kvant_saturate(dtype, x));
    if (address % 2 == 0)
        *kvant_global<uint16_t>(address) = (uint16_t)half;
    else
        for (uint32_t i = 0; i < 2; i++) bytes[i] = (uint8_t)(half >> 8 * i);
}

/* ---- Octets -------------------------------------------------------------------------------------------- */

__device__ __forceinline__ bool kvant_octet_is_whole(uint32_t dtype, uint64_t address, int64_t stride,
                                                     uint32_t count) {
    return count >= 8 && address % 16 == 0 && stride == kvant_element_bytes(dtype);
}

/* `count` channels from `address` on, `stride` bytes apart; those from count on are 0. */
__device__ __forceinline__ void kvant_load_octet(uint32_t dtype, uint64_t address, int64_t stride,
                                                 uint32_t count, float (&x)[8]) {
    if (kvant_octet_is_whole(dtype, address, stride, count)) {
        const uint4 *words = kvant_global<const uint4>(address);
        uint4 a = words[0];
        if (dtype == KVANT_DTYPE_F32) {
            uint4 b = words[1];
            const uint32_t all[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) x[i] = __uint_as_float(all[i]);
        } else {
            const uint32_t pairs[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                x[i] = kvant_half_to_f32(dtype, pairs[i / 2] >> 16 * (i % 2) & 0xffffu);
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        x[i] = i < count ? kvant_load_element(dtype, address + (uint64_t)(stride * i)) : 0.0f;
}

__device__ __forceinline__ void kvant_store_octet(uint32_t dtype, uint64_t address, int64_t stride,
                                                  uint32_t count, const float (&x)[8]) {
    if (kvant_octet_is_whole(dtype, address, stride, count)) {
        uint4 *words = kvant_global<uint4>(address);
        if (dtype == KVANT_DTYPE_F32) {
            words[0] = make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                                  __float_as_uint(x[3]));
            words[1] = make_uint4(__float_as_uint(x[4]), __float_as_uint(x[5]), __float_as_uint(x[6]),
                                  __float_as_uint(x[7]));
        } else {
            uint32_t pairs[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                pairs[i] = kvant_f32_to_half(dtype, kvant_saturate(dtype, x[2 * i])) |
                           kvant_f32_to_half(dtype, kvant_saturate(dtype, x[2 * i + 1])) << 16;
            words[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        if (i < count) kvant_store_element(dtype, address + (uint64_t)(stride * i), x[i]);
}

#endif
