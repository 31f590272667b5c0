/* Attention over bf16 rows without compression, bound by memory: the other side of gpu_speed.c. One
 * query position, flash decoding: the tokens are split over blocks, a second kernel merges.
 *
 * Keys and values are read once for all query heads of a kv head, straight into the fragments of mma
 * m16n8k16, in 16-byte loads and without shared memory. Which channel (of keys) or token (of values) stands
 * for which k of a product is free as long as both operands agree, so a lane takes what lies side by side:
 *
 *     logits    k of steps 2c, 2c + 1, lane j of four: channels 32c + 8j ... 32c + 8j + 7 of both
 *     outputs   n of product e, lane g of eight: channel 8 (g + 8h) + e; two tokens of one channel, which lie
 *               in two rows, are put into one register by a byte permutation
 *
 * A warp takes 16 tokens at a time, the four warps of a block 64. Keys of the next 16 tokens are on their
 * way while these are worked on, values from before the logits on.
 */
#include "gpu_plain.h"

#include <kvant/kit/rows.cuh>

static __device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Two floats to bf16, `low` in the low half. */
static __device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

/* c += a b; rows 8 to 15 of a are 0. */
static __device__ __forceinline__ void multiply(float (&c)[4], uint32_t a0, uint32_t a2, uint32_t b0,
                                                uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(0u), "r"(a2), "r"(0u), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t word(const uint4 &four, uint32_t i) {
    return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

struct plain_shared {
    uint4 query[4][32]; /* fragments of the A operand, by lane: sixteen registers that the sums need */
    float sums[4][PLAIN_GROUP_MOST][PLAIN_DIM];
    float largest[4][PLAIN_GROUP_MOST], sum[4][PLAIN_GROUP_MOST];
};

/* 16-byte part `part` of a row. Tokens behind the last are the last once more. */
static __device__ __forceinline__ uint4 load(uint64_t rows, uint32_t token, uint32_t last, uint32_t part) {
    return __ldg(kvant_global<const uint4>(rows) + (uint64_t)min(token, last) * (PLAIN_DIM / 8) + part);
}

static __device__ __forceinline__ void load_keys(uint64_t rows, uint32_t token, uint32_t last,
                                                 uint4 (&keys)[2][4]) {
    uint32_t g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
    for (uint32_t tile = 0; tile < 2; tile++) {
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) keys[tile][c] = load(rows, token + 8 * tile + g, last, 4 * c + j);
    }
}

static __device__ __forceinline__ void load_values(uint64_t rows, uint32_t token, uint32_t last,
                                                   uint4 (&values)[2][4]) {
    uint32_t g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            values[h][i] = load(rows, token + 2 * j + (i / 2) * 8 + i % 2, last, g + 8 * h);
    }
}

extern "C" __global__ void __launch_bounds__(PLAIN_THREADS, 3) plain_attend(plain_call call) {
    __shared__ plain_shared shared;
    const float nothing = __uint_as_float(0xff800000u);
    uint32_t split = blockIdx.x % call.splits,
             head = blockIdx.x / call.splits; /* of all sequences' kv heads */
    uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
    uint32_t steps = (call.tokens + PLAIN_TOKENS - 1) / PLAIN_TOKENS;
    uint32_t span = (steps + call.splits - 1) / call.splits * PLAIN_TOKENS;
    uint32_t end = min(call.tokens, (split + 1) * span), last = call.tokens - 1;
    uint64_t keys_at = call.keys + (uint64_t)head * call.tokens * (2 * PLAIN_DIM);
    uint64_t values_at = call.values + (uint64_t)head * call.tokens * (2 * PLAIN_DIM);

    uint4 query = make_uint4(0, 0, 0, 0);
    if (g < call.group)
        query =
            kvant_global<const uint4>(call.queries)[((uint64_t)head * call.group + g) * 16 + 4 * warp + j];
    shared.query[warp][threadIdx.x % 32] = query;
    __syncthreads();

    float sums[16][4], largest = nothing, sum = 0, scale = call.scale * 1.4426950408889634f;
#pragma unroll
    for (uint32_t e = 0; e < 16; e++) {
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) sums[e][k] = 0;
    }
    uint4 keys[2][4], values[2][4];
    uint32_t token = split * span + 16 * warp;
    load_keys(keys_at, token, last, keys);
    for (; token < end; token += PLAIN_TOKENS) {
        load_values(values_at, token, last, values);
        float logits[2][4];
#pragma unroll
        for (uint32_t tile = 0; tile < 2; tile++) {
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) logits[tile][k] = 0;
#pragma unroll
            for (uint32_t c = 0; c < 4; c++) {
                const uint4 query_c = shared.query[c][threadIdx.x % 32];
                multiply(logits[tile], query_c.x, query_c.y, keys[tile][c].x, keys[tile][c].y);
                multiply(logits[tile], query_c.z, query_c.w, keys[tile][c].z, keys[tile][c].w);
            }
        }
        load_keys(keys_at, token + PLAIN_TOKENS, last, keys);

        float most = largest;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            float &x = logits[i / 2][i % 2];
            x = token + 8 * (i / 2) + 2 * j + i % 2 < end ? x * scale : nothing;
            most = fmaxf(most, x);
        }
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
        if (__any_sync(0xffffffffu, most > largest)) {
            float shrink = power_of_two(largest - most);
            sum *= shrink;
#pragma unroll
            for (uint32_t e = 0; e < 16; e++) {
                sums[e][0] *= shrink;
                sums[e][1] *= shrink;
            }
            largest = most;
        }
        float weights[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            weights[i] = power_of_two(logits[i / 2][i % 2] - largest);
            sum += weights[i];
        }
        uint32_t a0 = pack(weights[0], weights[1]), a2 = pack(weights[2], weights[3]);
#pragma unroll
        for (uint32_t e = 0; e < 16; e++) {
            uint32_t h = e / 8, w = e % 8 / 2, select = e % 2 == 0 ? 0x5410u : 0x7632u;
            multiply(sums[e], a0, a2, __byte_perm(word(values[h][0], w), word(values[h][1], w), select),
                     __byte_perm(word(values[h][2], w), word(values[h][3], w), select));
        }
    }

    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
#pragma unroll
    for (uint32_t e = 0; e < 16; e++) {
#pragma unroll
        for (uint32_t k = 0; k < 2; k++)
            shared.sums[warp][g][8 * (2 * j + k + 8 * (e / 8)) + e % 8] = sums[e][k];
    }
    if (j == 0) {
        shared.largest[warp][g] = largest;
        shared.sum[warp][g] = sum;
    }
    __syncthreads();
    for (uint32_t row = 0; row < call.group; row++) {
        float *partial = kvant_global<float>(call.partials) +
                         ((uint64_t)(head * call.group + row) * call.splits + split) * PLAIN_PARTIAL;
        float all = nothing, total = 0, x = 0;
#pragma unroll
        for (uint32_t w = 0; w < 4; w++) all = fmaxf(all, shared.largest[w][row]);
#pragma unroll
        for (uint32_t w = 0; w < 4; w++) {
            if (shared.largest[w][row] > nothing) {
                float shrink = power_of_two(shared.largest[w][row] - all);
                total += shrink * shared.sum[w][row];
                x += shrink * shared.sums[w][row][threadIdx.x];
            }
        }
        partial[2 + threadIdx.x] = x;
        if (threadIdx.x == 0) {
            partial[0] = all;
            partial[1] = total;
        }
    }
}

extern "C" __global__ void __launch_bounds__(PLAIN_THREADS, 8) plain_merge(plain_call call) {
    const float nothing = __uint_as_float(0xff800000u);
    const float *partial =
        kvant_global<const float>(call.partials) + (uint64_t)blockIdx.x * call.splits * PLAIN_PARTIAL;
    float most = nothing, total = 0, x = 0;
    for (uint32_t i = 0; i < call.splits; i++) most = fmaxf(most, partial[i * PLAIN_PARTIAL]);
#pragma unroll 4
    for (uint32_t i = 0; i < call.splits; i++) {
        float shrink = power_of_two(partial[i * PLAIN_PARTIAL] - most);
        total += shrink * partial[i * PLAIN_PARTIAL + 1];
        x += shrink * partial[i * PLAIN_PARTIAL + 2 + threadIdx.x];
    }
    kvant_global<float>(call.outputs)[(uint64_t)blockIdx.x * PLAIN_DIM + threadIdx.x] = x / total;
}
