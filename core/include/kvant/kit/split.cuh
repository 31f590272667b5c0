/* kvant/kit/split.cuh: score and mix of kvant.gpu/1, for codecs whose rows can be unpacked eight channels at
 * a time: what a side of a pair from two plugins needs. Between the two the core makes weights of logits.
 *
 *     struct my_codes {
 *         __device__ my_codes(uint64_t state);
 *         uint32_t tokens, heads, head_dim, dtype;         of a block; dtype of queries
 *         __device__ void key(uint64_t extent, uint32_t head, uint32_t token, uint32_t octet, float (&x)[8]);
 *         __device__ void value(uint64_t extent, uint32_t head, uint32_t token, uint32_t octet,
 *                               float (&x)[4][8]);         tokens token to token + 3, token a multiple of 4
 *     };
 *     kvant_score_items<my_codes>(call);                   whole kernels, launched as kit/split.h says
 *     kvant_mix_items<my_codes>(call);
 *
 * (the struct of kit/attend.cuh). Of a last octet the channels that do not exist must come out finite from
 * `key`; tokens that do not exist are not looked at.
 *
 * A block takes an item, its rows ROWS at a time: codes are unpacked once for up to ROWS query rows.
 *
 *     score     a warp takes 32 tokens of a reference. SIDE lanes share a token, whose octets they take in
 *               turn: 1 where tokens lie side by side in memory (planar codes), 4 where channels do (rows)
 *     mix       a thread takes eight channels and every slice-th four tokens of all references. Sums stay in
 *               registers and are joined in the order of slices
 *
 * Whose turn it is depends on the shape alone, so the same item gives the same bits. Logits of tokens that no
 * row sees are not written; a token of weight 0 is not added to a sum, not even times zero.
 */
#ifndef KVANT_KIT_SPLIT_CUH
#define KVANT_KIT_SPLIT_CUH

#include "../plugin_gpu.h"
#include "rows.cuh"
#include "split.h"

/* ---- What rows see ------------------------------------------------------------------------------------- */

struct kvant_span {
    uint32_t first, end; /* tokens of a block; none where end <= first */
};

/* Live tokens of a block that rows at positions `oldest` to `newest` see, some of them at least. */
__device__ __forceinline__ kvant_span kvant_seen(const kvant_gpu_reference &r, uint64_t oldest,
                                                 uint64_t newest, uint32_t window) {
    kvant_span span = {r.live_first, r.live_first + r.live_count};
    uint64_t from = window != 0 && oldest >= window ? oldest - window + 1 : 0;
    if (from > r.first_position) span.first = (uint32_t)max((uint64_t)span.first, from - r.first_position);
    if (from > r.first_position + span.end) span.end = 0;
    span.end =
        newest < r.first_position ? 0 : (uint32_t)min((uint64_t)span.end, newest - r.first_position + 1);
    return span;
}

/* Up to ROWS rows of an item. */
struct kvant_split_rows {
    uint32_t first, count, group;

    __device__ __forceinline__ uint64_t position(const kvant_gpu_item &item, uint32_t row) const {
        return item.query_position + (first + row) / group;
    }
};

/* ---- Score --------------------------------------------------------------------------------------------- */

extern __shared__ float4 kvant_split_queries[]; /* [octets][KVANT_SPLIT_OCTET]: two for each row */

/* Queries with the scale in; 0 behind the last channel. */
template <typename CODES>
__device__ __forceinline__ void kvant_split_load_queries(const CODES &codes, const kvant_gpu_layer &layer,
                                                         const kvant_gpu_item &item,
                                                         const kvant_split_rows &rows) {
    const uint32_t octets = (codes.head_dim + 7) / 8;
    for (uint32_t i = threadIdx.x; i < rows.count * octets; i += KVANT_SPLIT_THREADS) {
        uint32_t row = rows.first + i / octets, octet = i % octets;
        uint32_t head = item.kv_head * rows.group + row % rows.group;
        float x[8];
        kvant_load_octet(codes.dtype,
                         item.queries.data + (uint64_t)(item.queries.token_stride * (row / rows.group) +
                                                        item.queries.head_stride * head +
                                                        item.queries.channel_stride * (octet * 8)),
                         item.queries.channel_stride, codes.head_dim - octet * 8, x);
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) x[k] = __fmul_rn(x[k], layer.scale);
        float4 *at = kvant_split_queries + octet * KVANT_SPLIT_OCTET + 2 * (i / octets);
        at[0] = make_float4(x[0], x[1], x[2], x[3]);
        at[1] = make_float4(x[4], x[5], x[6], x[7]);
    }
}

/* query . mean of centred keys, sixteen lanes a row. */
template <typename CODES>
__device__ __forceinline__ void kvant_split_bias(const CODES &codes, const kvant_gpu_layer &layer,
                                                 const kvant_gpu_item &item, const kvant_split_rows &rows,
                                                 float *bias) {
    const uint32_t dim = codes.head_dim;
    const float *queries = (const float *)kvant_split_queries;
    uint32_t row = threadIdx.x / 16, lane = threadIdx.x % 16;
    float sum = 0;
    if (layer.center != 0 && row < rows.count)
        for (uint32_t c = lane; c < dim; c += 16)
            sum += queries[c / 8 * 4 * KVANT_SPLIT_OCTET + 8 * row + c % 8] *
                   *kvant_global<const float>(layer.center + 4 * ((uint64_t)item.kv_head * dim + c));
#pragma unroll
    for (uint32_t half = 8; half >= 1; half /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, half);
    if (lane == 0) bias[row] = sum;
}

/* The part of a lane in the logits of a token. */
template <typename CODES, uint32_t SIDE>
__device__ __forceinline__ void kvant_split_dot(const CODES &codes, uint64_t extent, uint32_t kv_head,
                                                uint32_t token, uint32_t rows,
                                                float (&dot)[KVANT_SPLIT_ROWS]) {
    const uint32_t octets = (codes.head_dim + 7) / 8;
    for (uint32_t octet = threadIdx.x % SIDE; octet < octets; octet += SIDE) {
        float x[8];
        codes.key(extent, kv_head, token, octet, x);
        const float4 *queries = kvant_split_queries + octet * KVANT_SPLIT_OCTET;
#pragma unroll
        for (uint32_t r = 0; r < KVANT_SPLIT_ROWS; r++) {
            if (r >= rows) break;
            float4 a = queries[2 * r], b = queries[2 * r + 1];
            const float q[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) dot[r] = __fmaf_rn(q[k], x[k], dot[r]);
        }
    }
}

/* 32 tokens from `first` on, of which those in `span` are seen. */
template <typename CODES, uint32_t SIDE>
__device__ __forceinline__ void kvant_split_score(const CODES &codes, uint64_t extent, uint64_t logits,
                                                  uint32_t first, kvant_span span, const kvant_gpu_item &item,
                                                  uint32_t rows, const float *bias) {
    uint32_t lane = threadIdx.x % 32;
    for (uint32_t step = 0; step < SIDE; step++) {
        uint32_t token = first + step * (32 / SIDE) + lane / SIDE;
        bool live = token >= span.first && token < span.end;
        float dot[KVANT_SPLIT_ROWS];
#pragma unroll
        for (uint32_t r = 0; r < KVANT_SPLIT_ROWS; r++) dot[r] = 0;
        if (live) kvant_split_dot<CODES, SIDE>(codes, extent, item.kv_head, token, rows, dot);
        __syncwarp();
#pragma unroll
        for (uint32_t r = 0; r < KVANT_SPLIT_ROWS; r++) {
            if (r < rows) {
#pragma unroll
                for (uint32_t half = SIDE / 2; half >= 1; half /= 2)
                    dot[r] += __shfl_xor_sync(0xffffffffu, dot[r], half);
                if (live && lane % SIDE == r % SIDE)
                    *kvant_global<float>(logits + 4 * (item.logit_stride * r + token)) = dot[r] + bias[r];
            }
        }
    }
}

template <typename CODES, uint32_t SIDE = 1>
__device__ __forceinline__ void kvant_score_items(const kvant_gpu_call &call) {
    __shared__ float bias[KVANT_SPLIT_ROWS];
    const kvant_gpu_layer &layer = *kvant_global<const kvant_gpu_layer>(call.layer);
    const CODES codes(call.state);
    const uint32_t warp = threadIdx.x / 32, warps = KVANT_SPLIT_THREADS / 32;
    const uint32_t units = (codes.tokens + 31) / 32, count = *kvant_global<const uint32_t>(call.job_count);
    for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
        const kvant_gpu_item &item = kvant_global<const kvant_gpu_item>(call.jobs)[i];
        kvant_split_rows rows;
        rows.group = layer.q_heads / codes.heads;
        for (rows.first = 0; rows.first < item.positions * rows.group; rows.first += KVANT_SPLIT_ROWS) {
            rows.count = min(item.positions * rows.group - rows.first, (uint32_t)KVANT_SPLIT_ROWS);
            kvant_split_load_queries(codes, layer, item, rows);
            __syncthreads();
            kvant_split_bias(codes, layer, item, rows, bias);
            __syncthreads();
            uint64_t oldest = rows.position(item, 0), newest = rows.position(item, rows.count - 1);
            uint64_t logits = item.logits + 4 * item.logit_stride * rows.first;
            uint32_t reference = warp / units, unit = warp % units;
            while (reference < item.reference_count) {
                const kvant_gpu_reference r =
                    kvant_global<const kvant_gpu_reference>(item.references)[reference];
                kvant_span span = kvant_seen(r, oldest, newest, layer.window);
                if (max(span.first, 32 * unit) < min(span.end, 32 * unit + 32))
                    kvant_split_score<CODES, SIDE>(codes,
                                                   layer.key_base + (uint64_t)r.key_index * layer.key_stride,
                                                   logits + 4 * (uint64_t)reference * codes.tokens, 32 * unit,
                                                   span, item, rows.count, bias);
                for (unit += warps; unit >= units; unit -= units) reference++;
            }
            __syncthreads();
        }
    }
}

/* ---- Mix ----------------------------------------------------------------------------------------------- */

/* Slices join in two buffers by turns: a barrier a row. Four more, so that channels lie in different
 * banks. */
typedef float kvant_split_join[2][8][KVANT_SPLIT_THREADS + 4];

/* Weights of four tokens from `token` on. `whole`: all of them exist, on a boundary of four floats. */
__device__ __forceinline__ void kvant_split_weights(uint64_t address, uint32_t token, uint32_t tokens,
                                                    bool whole, float (&weights)[4]) {
    if (whole) {
        float4 w = *kvant_global<const float4>(address);
        weights[0] = w.x, weights[1] = w.y, weights[2] = w.z, weights[3] = w.w;
        return;
    }
#pragma unroll
    for (uint32_t j = 0; j < 4; j++)
        weights[j] = token + j < tokens ? *kvant_global<const float>(address + 4 * j) : 0.0f;
}

/* A slice's sums over all references. */
template <typename CODES>
__device__ __forceinline__ void kvant_split_mix(const CODES &codes, const kvant_gpu_layer &layer,
                                                const kvant_gpu_item &item, const kvant_split_rows &rows,
                                                uint32_t octet, uint32_t slice, uint32_t slices,
                                                float (&sums)[KVANT_SPLIT_ROWS][8]) {
    const uint32_t tokens = codes.tokens, units = (tokens + 3) / 4;
    const bool whole = tokens % 4 == 0 && item.logit_stride % 4 == 0;
    const uint64_t oldest = rows.position(item, 0), newest = rows.position(item, rows.count - 1);
    uint32_t reference = slice / units, unit = slice % units;
    while (reference < item.reference_count) {
        const kvant_gpu_reference ref = kvant_global<const kvant_gpu_reference>(item.references)[reference];
        const kvant_span span = kvant_seen(ref, oldest, newest, layer.window);
        if (4 * unit + 4 > span.first && 4 * unit < span.end) {
            uint64_t at =
                item.logits + 4 * (item.logit_stride * rows.first + 4 * unit + (uint64_t)reference * tokens);
            float x[4][8];
            codes.value(layer.value_base + (uint64_t)ref.value_index * layer.value_stride, item.kv_head,
                        4 * unit, octet, x);
#pragma unroll
            for (uint32_t r = 0; r < KVANT_SPLIT_ROWS; r++) {
                if (r >= rows.count) break;
                float weights[4];
                kvant_split_weights(at + 4 * item.logit_stride * r, 4 * unit, tokens, whole, weights);
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) {
                    if (weights[j] > 0) {
#pragma unroll
                        for (uint32_t k = 0; k < 8; k++)
                            sums[r][k] = __fmaf_rn(weights[j], x[j][k], sums[r][k]);
                    }
                }
            }
        }
        for (unit += slices; unit >= units; unit -= units) reference++;
    }
}

/* Joins the slices' sums and writes them. `turn`: of the buffers, kept from call to call. */
__device__ __forceinline__ void kvant_split_write(const kvant_gpu_item &item, const kvant_split_rows &rows,
                                                  uint32_t dim, uint32_t octets, uint32_t slices,
                                                  kvant_split_join &join, uint32_t &turn,
                                                  const float (&sums)[KVANT_SPLIT_ROWS][8]) {
    uint64_t out = item.accumulators, stride = item.accumulator_stride;
    if (out == 0) {
        out = item.partial + 8; /* behind the largest logit and the sum */
        stride = item.partial_stride;
    }
#pragma unroll
    for (uint32_t r = 0; r < KVANT_SPLIT_ROWS; r++) {
        if (r < rows.count) {
            turn ^= 1;
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) join[turn][k][threadIdx.x] = sums[r][k];
            __syncthreads();
            for (uint32_t c = threadIdx.x; c < dim; c += KVANT_SPLIT_THREADS) {
                float sum = join[turn][c % 8][c / 8];
                for (uint32_t slice = 1; slice < slices; slice++)
                    sum += join[turn][c % 8][slice * octets + c / 8];
                *kvant_global<float>(out + 4 * (stride * (rows.first + r) + c)) = sum;
            }
        }
    }
}

template <typename CODES> __device__ __forceinline__ void kvant_mix_items(const kvant_gpu_call &call) {
    __shared__ kvant_split_join join;
    const kvant_gpu_layer &layer = *kvant_global<const kvant_gpu_layer>(call.layer);
    const CODES codes(call.state);
    const uint32_t octets = (codes.head_dim + 7) / 8, slices = KVANT_SPLIT_THREADS / octets;
    const uint32_t octet = threadIdx.x % octets, slice = threadIdx.x / octets;
    const uint32_t count = *kvant_global<const uint32_t>(call.job_count);
    uint32_t turn = 0;
    for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
        const kvant_gpu_item &item = kvant_global<const kvant_gpu_item>(call.jobs)[i];
        kvant_split_rows rows;
        rows.group = layer.q_heads / codes.heads;
        for (rows.first = 0; rows.first < item.positions * rows.group; rows.first += KVANT_SPLIT_ROWS) {
            rows.count = min(item.positions * rows.group - rows.first, (uint32_t)KVANT_SPLIT_ROWS);
            float sums[KVANT_SPLIT_ROWS][8];
#pragma unroll
            for (uint32_t r = 0; r < KVANT_SPLIT_ROWS; r++) {
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) sums[r][k] = 0;
            }
            if (slice < slices) kvant_split_mix(codes, layer, item, rows, octet, slice, slices, sums);
            kvant_split_write(item, rows, codes.head_dim, octets, slices, join, turn, sums);
        }
    }
}

#endif
