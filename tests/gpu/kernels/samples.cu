/* Kernels of the kinds that codecs need, for the interpreter's own test (ptx_nvcc.c). */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define EXPORT extern "C" __global__ void __launch_bounds__(128)

/* Minimum and sum of each row of 128 by shuffles and shared memory. */
EXPORT reduce_rows(const float *__restrict__ x, float *__restrict__ smallest, float *__restrict__ sum) {
    __shared__ float lows[4], sums[4];
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float v = x[blockIdx.x * 128 + threadIdx.x], low = v, total = v;
    for (int o = 16; o; o >>= 1) {
        low = fminf(low, __shfl_xor_sync(~0u, low, o));
        total = __fadd_rn(total, __shfl_down_sync(~0u, total, o));
    }
    if (lane == 0) {
        lows[warp] = low;
        sums[warp] = total;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        smallest[blockIdx.x] = fminf(fminf(lows[0], lows[1]), fminf(lows[2], lows[3]));
        sum[blockIdx.x] = __fadd_rn(__fadd_rn(sums[0], sums[1]), __fadd_rn(sums[2], sums[3]));
    }
}

__device__ static uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}
__device__ static void copy_16(void *to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(bytes));
}

/* C[16][8] = A[16][64] B[8][64]^T per warp, in a pipeline of two stages of 16 columns. */
EXPORT tile_f16(const __half *__restrict__ a, const __half *__restrict__ b, float *__restrict__ c) {
    __shared__ __align__(16) __half sa[4][2][16][24], sb[4][2][8][24];
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, tile = blockIdx.x * 4 + warp;
    a += tile * 1024;
    b += tile * 512;
    auto stage = [&](int s) {
        copy_16(&sa[warp][s & 1][lane / 2][lane % 2 * 8], a + lane / 2 * 64 + s * 16 + lane % 2 * 8, 16);
        if (lane < 16)
            copy_16(&sb[warp][s & 1][lane / 2][lane % 2 * 8], b + lane / 2 * 64 + s * 16 + lane % 2 * 8, 16);
        asm volatile("cp.async.commit_group;");
    };
    float acc[4] = {0, 0, 0, 0};
    stage(0);
    for (int s = 0; s < 4; s++) {
        if (s < 3) {
            stage(s + 1);
            asm volatile("cp.async.wait_group 1;");
        } else {
            asm volatile("cp.async.wait_group 0;");
        }
        __syncwarp();
        uint32_t fa[4], fb[2];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3])
                     : "r"(shared_address(&sa[warp][s & 1][lane % 16][lane / 16 * 8])));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                     : "=r"(fb[0]), "=r"(fb[1])
                     : "r"(shared_address(&sb[warp][s & 1][lane % 8][lane / 8 % 2 * 8])));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                     "{%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                     : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
        __syncwarp();
    }
    for (int i = 0; i < 4; i++) c[tile * 128 + (lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = acc[i];
}

/* The same product by integers of 8 bits, rows of 32. */
EXPORT tile_s8(const int8_t *__restrict__ a, const uint8_t *__restrict__ b, int *__restrict__ c) {
    uint32_t lane = threadIdx.x & 31, tile = blockIdx.x * 4 + (threadIdx.x >> 5), g = lane / 4, t = lane % 4;
    const uint32_t *wa = (const uint32_t *)(a + tile * 512), *wb = (const uint32_t *)(b + tile * 256);
    int acc[4] = {1, 2, 3, 4};
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+r"(acc[0]), "+r"(acc[1]), "+r"(acc[2]), "+r"(acc[3])
                 : "r"(wa[g * 8 + t]), "r"(wa[(g + 8) * 8 + t]), "r"(wa[g * 8 + 4 + t]),
                   "r"(wa[(g + 8) * 8 + 4 + t]), "r"(wb[g * 8 + t]), "r"(wb[g * 8 + 4 + t]));
    for (int i = 0; i < 4; i++) c[tile * 128 + (g + i / 2 * 8) * 8 + t * 2 + i % 2] = acc[i];
}

__device__ __noinline__ static uint32_t collatz(uint32_t n, uint32_t limit) {
    uint32_t steps = 0;
    while (n != 1 && steps < limit) {
        n = n & 1 ? 3 * n + 1 : n / 2;
        steps++;
    }
    return steps;
}

__device__ static uint32_t factorial(uint32_t n) {
    return n < 2 ? 1 : n * factorial(n - 1);
}

/* Loops of lengths that differ from lane to lane, a switch, a recursive call. */
EXPORT diverge(const uint32_t *__restrict__ x, uint32_t *__restrict__ y, uint32_t n) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint32_t v = x[i], r = collatz(v, 1000);
    switch (v % 7) {
    case 0:
        r += 1;
        break;
    case 1:
        r *= 3;
        break;
    case 2:
        r ^= 0x55;
        break;
    case 3:
        r = __brev(r);
        break;
    case 4:
        r -= v;
        break;
    case 5:
        r = r / ((v & 7) + 1);
        break;
    default:
        for (uint32_t k = 0; k < v % 5; k++) {
            if (k == 3) continue;
            r = r * 5 + k;
        }
    }
    y[i] = r + factorial(v % 6);
}

/* Local memory, constant memory, atomics, dynamic shared memory, vectors, the generic space. */
__constant__ float weights[8] = {1, -2, 4, -8, 16, -32, 64, -128};
__device__ uint32_t done;
EXPORT spaces(const float4 *__restrict__ x, float *__restrict__ y, uint32_t *__restrict__ histogram,
              uint32_t choose) {
    extern __shared__ float4 rows[];
    __shared__ uint32_t bins[16];
    float keep[16];
    uint32_t t = threadIdx.x;
    if (t < 16) bins[t] = 0;
    rows[t] = x[blockIdx.x * 128 + t];
    __syncthreads();
    float4 other = rows[t ^ 5];
#pragma unroll 1
    for (uint32_t k = 0; k < 16; k++) keep[k] = (&other.x)[k & 3] * weights[(k + t) & 7];
    float sum = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < 16; k++) sum += keep[(k * choose + t) & 15];
    const float *either = t & 1 ? &rows[t].y : &x[t].z;
    y[blockIdx.x * 128 + t] = sum + *either;
    atomicAdd(&bins[(uint32_t)fabsf(other.x) & 15], 1u);
    __syncthreads();
    if (t < 16) atomicAdd(&histogram[t], bins[t]);
    __threadfence();
    if (t == 0) atomicInc(&done, 0xffffffffu);
}
