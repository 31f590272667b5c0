/* kvant/kit/sum.cuh: the halving tree of kit/sum.h, and minima and maxima, across the lanes of a warp.
 *
 * With x[i] in lane i, kvant_warp_sum is kit/sum.h's sum of 32 numbers bit for bit; for fewer, the rest must
 * be +0. Longer rows: add halves in registers from the top down first, x[i] += x[i + half], as the tree does.
 * All lanes of the warp must call.
 */
#ifndef KVANT_KIT_SUM_CUH
#define KVANT_KIT_SUM_CUH

#include <stdint.h>

/* Every lane gets the sum: at each level lane i holds x[i] + x[i + half] for i < half, and its mirror the
 * same two numbers added the other way round, which rounds alike. */
__device__ __forceinline__ float kvant_warp_sum(float x) {
#pragma unroll
    for (uint32_t half = 16; half >= 1; half /= 2) x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, half));
    return x;
}

/* Among each `lanes` neighbours, a power of two. Of zeros of both signs either may come out. */
__device__ __forceinline__ float kvant_lanes_min(float x, uint32_t lanes) {
    for (uint32_t half = lanes / 2; half >= 1; half /= 2) x = fminf(x, __shfl_xor_sync(0xffffffffu, x, half));
    return x;
}

__device__ __forceinline__ float kvant_lanes_max(float x, uint32_t lanes) {
    for (uint32_t half = lanes / 2; half >= 1; half /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, half));
    return x;
}

#endif
