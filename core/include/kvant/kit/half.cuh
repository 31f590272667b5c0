/* kvant/kit/half.cuh: kit/half.h for kernels: the same numbers, by the device's own conversions.
 *
 * Instructions of PTX stand here, one a function, and not in kernels. Encoding rounds to nearest even,
 * overflow goes to infinity, NaN becomes 7FFF.
 */
#ifndef KVANT_KIT_HALF_CUH
#define KVANT_KIT_HALF_CUH

#include "../types.h"

__device__ __forceinline__ float kvant_f16_to_f32(uint16_t half) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
    return x;
}

__device__ __forceinline__ uint16_t kvant_f32_to_f16(float x) {
    uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

__device__ __forceinline__ float kvant_bf16_to_f32(uint16_t half) {
    return __uint_as_float((uint32_t)half << 16);
}

__device__ __forceinline__ uint16_t kvant_f32_to_bf16(float x) {
    uint16_t half;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
}

/* One rounding to the named type, back in float. */
__device__ __forceinline__ float kvant_round(uint32_t dtype, float x) {
    if (dtype == KVANT_DTYPE_F32) return x;
    return dtype == KVANT_DTYPE_F16 ? kvant_f16_to_f32(kvant_f32_to_f16(x))
                                    : kvant_bf16_to_f32(kvant_f32_to_bf16(x));
}

/* The largest finite number of the type: FLT_MAX, 65504 or 2^128 - 2^120. */
__device__ __forceinline__ float kvant_largest(uint32_t dtype) {
    return __uint_as_float(dtype == KVANT_DTYPE_F32   ? 0x7f7fffffu
                           : dtype == KVANT_DTYPE_F16 ? 0x477fe000u
                                                      : 0x7f7f0000u);
}

/* A finite number beyond the type's range becomes its largest; infinity and NaN stay. */
__device__ __forceinline__ float kvant_saturate(uint32_t dtype, float x) {
    float largest = kvant_largest(dtype), magnitude = fabsf(x);
    return magnitude > largest && magnitude < __uint_as_float(0x7f800000u) ? copysignf(largest, x) : x;
}

__device__ __forceinline__ bool kvant_is_finite(float x) {
    return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

#endif
