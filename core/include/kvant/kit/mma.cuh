/* kvant/kit/mma.cuh: products of small integers on tensor cores, and numbers as such integers.
 *
 * m16n8k32 of 8-bit integers: A is 16 rows of codes, unpacked to bytes as they lie in planar order
 * (kit/planar.h); B is eight columns of numbers that were brought to one exponent a column and cut into
 * digits of 8 bits, a product each. Sums are exact, so a result has the same bits on every device and in
 * every order.
 *
 *     lane l = 4g + t   A  a[0] row g, k = 4t...4t+3      a[2] the same row, k = 16+4t...
 *                          a[1] row g+8                   a[3]
 *                       B  b[0] column g, k = 4t...       b[1] k = 16+4t...
 *                       C  c[0], c[1] row g, columns 2t, 2t+1;   c[2], c[3] row g+8
 *
 * A lane's k are an octet, eight neighbours of the summed index; which octet lane t of step s takes is free
 * as long as A and B agree: 4s + t. Of a 16-byte load of codes, four neighbours of the free index, the first
 * two are rows g and g+8 of one product and the others of a second: a pair of products has rows 4g, ...,
 * 4g+3.
 */
#ifndef KVANT_KIT_MMA_CUH
#define KVANT_KIT_MMA_CUH

#include "half.cuh"

#include <stdint.h>

/* ---- Products ------------------------------------------------------------------------------------------ */

/* d = a * b + c; of A and B without signs, or of a signed B. */
template <bool SIGNED>
__device__ __forceinline__ void kvant_mma_bytes(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                                uint32_t a3, uint32_t b0, uint32_t b1,
                                                const int32_t (&c)[4]) {
    if (SIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%11,%12,%13};"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]),
              "r"(c[3]));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%11,%12,%13};"
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]),
              "r"(c[3]));
}

/* ---- Numbers in digits --------------------------------------------------------------------------------- */

/* The exponent of a column: its largest magnitude times `up` is in [2^(digits - 1), 2^digits), exactly, and
 * `down` = 1 / up. What is below 2^-104 counts as if that were the largest. */
struct kvant_exponent {
    float up, down;
};
__device__ __forceinline__ kvant_exponent kvant_exponent_of(float largest, uint32_t digits) {
    uint32_t e = max(__float_as_uint(largest) >> 23, 23u); /* biased */
    kvant_exponent x = {__uint_as_float((253 - e + digits) << 23), __uint_as_float((e + 1 - digits) << 23)};
    return x;
}

/* Signed, |x| up to 2^22, to an integer, ties to even. */
__device__ __forceinline__ uint32_t kvant_fixed_signed(float x, float up) {
    return __float_as_uint(__fmaf_rn(x, up, __uint_as_float(0x4b400000u))) - 0x4b400000u;
}
/* x from 0 to 2^23; the high byte is not part of it. */
__device__ __forceinline__ uint32_t kvant_fixed(float x, float up) {
    return __float_as_uint(__fmaf_rn(x, up, __uint_as_float(0x4b000000u)));
}

/* Bytes 0, 1 and 2 of four integers, side by side. */
__device__ __forceinline__ void kvant_digits(const uint32_t (&v)[4], uint32_t &low, uint32_t &middle,
                                             uint32_t &high) {
    uint32_t a = __byte_perm(v[0], v[1], 0x5140), b = __byte_perm(v[2], v[3], 0x5140);
    low = __byte_perm(a, b, 0x5410);
    middle = __byte_perm(a, b, 0x7632);
    high = __byte_perm(__byte_perm(v[0], v[1], 0x0062), __byte_perm(v[2], v[3], 0x0062), 0x5410);
}

/* The sum of products from those of the digits. low and middle fit 23 bits. */
__device__ __forceinline__ float kvant_join_digits(int32_t low, int32_t middle, int32_t high) {
    int32_t both;
    asm("mad.lo.s32 %0, %1, 256, %2;" : "=r"(both) : "r"(middle), "r"(low)); /* not a shift and an addition */
    return __fmaf_rn((float)high, 65536.0f, (float)both);
}

/* ---- Pairs of halves ----------------------------------------------------------------------------------- */

__device__ __forceinline__ void kvant_f16x2_to_f32(uint32_t pair, float &low, float &high) {
    uint16_t a, b;
    asm("mov.b32 {%0, %1}, %2;" : "=h"(a), "=h"(b) : "r"(pair));
    low = kvant_f16_to_f32(a);
    high = kvant_f16_to_f32(b);
}
__device__ __forceinline__ uint32_t kvant_max_f16x2(uint32_t a, uint32_t b) {
    uint32_t most;
    asm("max.f16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
    return most;
}
__device__ __forceinline__ uint32_t kvant_max_bf16x2(uint32_t a, uint32_t b) {
    uint32_t most;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
    return most;
}

/* ---- Copies to shared memory --------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t kvant_shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* 16 bytes. They may be read after a wait, by other lanes after a barrier behind it. */
__device__ __forceinline__ void kvant_copy_async(uint32_t to, uint64_t from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void kvant_copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* All but the newest group. */
__device__ __forceinline__ void kvant_copy_wait_but_one() {
    asm volatile("cp.async.wait_group 1;" ::: "memory");
}

#endif
