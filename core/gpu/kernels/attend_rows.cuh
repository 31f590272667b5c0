/* kvant_core_attend: flash decoding over raw rows: an item's runs, no references. Liveness, windows, soft cap
 * and partials are those of plugin_gpu.h; center is not looked at, since what it corrects is coded.
 *
 * A block takes an item, CORE_ATTEND_ROWS query rows at a time, so that a key or value is loaded once for a
 * group of up to so many query heads; and it walks the runs 64 tokens at a time:
 *
 *     score     a thread takes one token and half of the channels, for all rows
 *     softmax   sixteen lanes a row: largest logit so far, weights exp(logit - largest)
 *     mix       a thread takes eight channels and every slice-th pair of tokens; sums stay in registers
 *               and are joined in the order of slices when all tokens are done
 *
 * Whose turn it is depends on the shape alone, so the same item gives the same bits.
 */
#ifndef KVANT_CORE_ATTEND_ROWS_CUH
#define KVANT_CORE_ATTEND_ROWS_CUH

#include "gpu/core_kernels.h"

#include <kvant/kit/rows.cuh>
#include <kvant/kit/sum.cuh>

enum { CORE_ATTEND_TILE = 64 /* tokens */, CORE_ATTEND_LANES = CORE_ATTEND_THREADS / CORE_ATTEND_ROWS };

extern __shared__ uint4 core_attend_dynamic[];

struct core_attend_shared {
    float logits[2][CORE_ATTEND_ROWS][CORE_ATTEND_TILE]; /* of the halves of the channels; weights later */
    float join[CORE_ATTEND_THREADS][9];                  /* nine, so that rows lie in different banks */
    float largest[CORE_ATTEND_ROWS], sum[CORE_ATTEND_ROWS], shrink[CORE_ATTEND_ROWS];
};

/* Up to 64 tokens side by side. */
struct core_attend_tile {
    const kvant_gpu_run *run;
    uint32_t first, count; /* tokens of the run */
    uint64_t position;     /* of the first */
};

/* Query rows that a block has in hand. */
struct core_attend_rows {
    uint32_t first, count, group;
    uint64_t position; /* of row 0 of the item */
    uint32_t window;
};

__device__ __forceinline__ uint64_t core_attend_position(const core_attend_rows &rows, uint32_t row) {
    return rows.position + (rows.first + row) / rows.group;
}

__device__ __forceinline__ bool core_attend_sees(const core_attend_rows &rows, uint32_t row,
                                                 uint64_t position) {
    uint64_t own = core_attend_position(rows, row);
    return row < rows.count && position <= own && (rows.window == 0 || own - position < rows.window);
}

/* Whether some row of these sees some token of the tile. */
__device__ __forceinline__ bool core_attend_is_seen(const core_attend_rows &rows,
                                                    const core_attend_tile &tile) {
    uint64_t least = core_attend_position(rows, 0), most = core_attend_position(rows, rows.count - 1);
    uint64_t last = tile.position + tile.count - 1;
    return tile.position <= most && (rows.window == 0 || last >= least || least - last < rows.window);
}

/* Queries with the scale in; rows that do not exist are zeros. */
__device__ __forceinline__ void core_attend_load(const core_attend_state &state, const kvant_gpu_layer &layer,
                                                 const kvant_gpu_item &item, const core_attend_rows &rows,
                                                 float *queries, core_attend_shared &shared) {
    const uint32_t dim = state.key_dim;
    for (uint32_t i = threadIdx.x; i < CORE_ATTEND_ROWS * dim; i += CORE_ATTEND_THREADS) {
        uint32_t row = i / dim, c = i % dim, all = rows.first + row;
        float x = 0;
        if (row < rows.count)
            x = kvant_load_element(
                state.dtype,
                item.queries.data +
                    (uint64_t)(item.queries.token_stride * (all / rows.group) +
                               item.queries.head_stride * (item.kv_head * rows.group + all % rows.group) +
                               item.queries.channel_stride * c));
        queries[i] = __fmul_rn(x, layer.scale);
    }
    if (threadIdx.x < CORE_ATTEND_ROWS) {
        shared.largest[threadIdx.x] = __uint_as_float(0xff800000u);
        shared.sum[threadIdx.x] = 0;
    }
}

__device__ __forceinline__ void core_attend_score(const core_attend_state &state,
                                                  const core_attend_tile &tile, uint32_t kv_head,
                                                  const float *queries, core_attend_shared &shared) {
    const uint32_t dim = state.key_dim, octets = (dim + 7) / 8, middle = (octets + 1) / 2;
    const uint32_t token = threadIdx.x % CORE_ATTEND_TILE, half = threadIdx.x / CORE_ATTEND_TILE;
    const kvant_gpu_view &keys = tile.run->keys;
    const int64_t stride = keys.channel_stride;
    uint64_t at =
        keys.data + (uint64_t)(keys.token_stride * (tile.first + token) + keys.head_stride * kv_head);
    float dot[CORE_ATTEND_ROWS];
#pragma unroll
    for (uint32_t r = 0; r < CORE_ATTEND_ROWS; r++) dot[r] = 0;
    for (uint32_t octet = half * middle; octet < (half == 0 ? middle : octets) && token < tile.count;
         octet++) {
        float x[8];
        kvant_load_octet(state.dtype, at + (uint64_t)(stride * (octet * 8)), stride, dim - octet * 8, x);
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            if (octet * 8 + k < dim) {
#pragma unroll
                for (uint32_t r = 0; r < CORE_ATTEND_ROWS; r++)
                    dot[r] = __fmaf_rn(queries[r * dim + octet * 8 + k], x[k], dot[r]);
            }
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < CORE_ATTEND_ROWS; r++) shared.logits[half][r][token] = dot[r];
}

/* Sixteen lanes a row, four tokens a lane. Weights replace the first half's logits. */
__device__ __forceinline__ void core_attend_soften(const kvant_gpu_layer &layer, const core_attend_rows &rows,
                                                   const core_attend_tile &tile, core_attend_shared &shared) {
    const float nothing = __uint_as_float(0xff800000u);
    const uint32_t row = threadIdx.x / CORE_ATTEND_LANES, lane = threadIdx.x % CORE_ATTEND_LANES;
    float logit[4], before = shared.largest[row], most = before, sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t token = CORE_ATTEND_LANES * i + lane;
        float x = __fadd_rn(shared.logits[0][row][token], shared.logits[1][row][token]);
        if (layer.soft_cap > 0) x = layer.soft_cap * tanhf(x / layer.soft_cap);
        logit[i] = token < tile.count && core_attend_sees(rows, row, tile.position + token) ? x : nothing;
        most = fmaxf(most, logit[i]);
    }
    __syncwarp();
    most = kvant_lanes_max(most, CORE_ATTEND_LANES);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        float weight = logit[i] > nothing ? expf(logit[i] - most) : 0.0f;
        shared.logits[0][row][CORE_ATTEND_LANES * i + lane] = weight;
        sum += logit[i] == logit[i] ? weight : logit[i]; /* a row with a NaN says so */
    }
    __syncwarp(); /* also: all lanes have read `largest` */
#pragma unroll
    for (uint32_t half = CORE_ATTEND_LANES / 2; half >= 1; half /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, half));
    if (lane == 0) {
        float shrink = before > nothing ? expf(before - most) : 0.0f;
        shared.shrink[row] = shrink;
        shared.largest[row] = most;
        shared.sum[row] = __fadd_rn(__fmul_rn(shared.sum[row], shrink), sum);
    }
}

__device__ __forceinline__ void core_attend_mix(const core_attend_state &state, const core_attend_tile &tile,
                                                uint32_t kv_head, uint32_t octet, uint32_t slice,
                                                uint32_t slices, const core_attend_shared &shared,
                                                float (&sums)[CORE_ATTEND_ROWS][8]) {
    const uint32_t dim = state.value_dim;
    const kvant_gpu_view &values = tile.run->values;
    const int64_t stride = values.channel_stride;
    uint64_t at =
        values.data + (uint64_t)(values.head_stride * kv_head + values.channel_stride * (octet * 8));
#pragma unroll
    for (uint32_t r = 0; r < CORE_ATTEND_ROWS; r++) {
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) sums[r][k] = __fmul_rn(sums[r][k], shared.shrink[r]);
    }
    if (slice >= slices) return;
    for (uint32_t token = 2 * slice; token < tile.count; token += 2 * slices) {
        float x[2][8];
#pragma unroll
        for (uint32_t j = 0; j < 2; j++)
            kvant_load_octet(state.dtype, at + (uint64_t)(values.token_stride * (tile.first + token + j)),
                             stride, token + j < tile.count ? dim - octet * 8 : 0, x[j]);
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
#pragma unroll
            for (uint32_t r = 0; r < CORE_ATTEND_ROWS; r++) {
                float weight = shared.logits[0][r][token + j];
                if (weight > 0) {
#pragma unroll
                    for (uint32_t k = 0; k < 8; k++) sums[r][k] = __fmaf_rn(weight, x[j][k], sums[r][k]);
                }
            }
        }
    }
}

/* Joins the slices' sums and writes the rows' partials. */
__device__ __forceinline__ void core_attend_write(const kvant_gpu_item &item, const core_attend_rows &rows,
                                                  uint32_t dim, uint32_t octets, uint32_t slices,
                                                  core_attend_shared &shared,
                                                  const float (&sums)[CORE_ATTEND_ROWS][8]) {
#pragma unroll
    for (uint32_t r = 0; r < CORE_ATTEND_ROWS; r++) {
        if (r < rows.count) {
            uint64_t partial = item.partial + 4 * item.partial_stride * (rows.first + r);
            __syncthreads();
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) shared.join[threadIdx.x][k] = sums[r][k];
            __syncthreads();
            for (uint32_t c = threadIdx.x; c < dim; c += CORE_ATTEND_THREADS) {
                float sum = shared.join[c / 8][c % 8];
                for (uint32_t slice = 1; slice < slices; slice++)
                    sum = __fadd_rn(sum, shared.join[slice * octets + c / 8][c % 8]);
                *kvant_global<float>(partial + 4 * (2 + c)) = sum;
            }
            if (threadIdx.x == 0) {
                *kvant_global<float>(partial) = shared.largest[r];
                *kvant_global<float>(partial + 4) = shared.sum[r];
            }
        }
    }
}

__device__ __forceinline__ void core_attend(const kvant_gpu_call &call) {
    __shared__ core_attend_shared shared;
    float *queries = (float *)core_attend_dynamic; /* [ROWS][key dim] */
    const core_attend_state state = *kvant_global<const core_attend_state>(call.state);
    const kvant_gpu_layer &layer = *kvant_global<const kvant_gpu_layer>(call.layer);
    const uint32_t octets = (state.value_dim + 7) / 8, slices = CORE_ATTEND_THREADS / octets;
    const uint32_t octet = threadIdx.x % octets, slice = threadIdx.x / octets;
    const uint32_t count = *kvant_global<const uint32_t>(call.job_count);
    for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
        const kvant_gpu_item &item = kvant_global<const kvant_gpu_item>(call.jobs)[i];
        const kvant_gpu_run *runs = kvant_global<const kvant_gpu_run>(item.runs);
        core_attend_rows rows = {0, 0, layer.q_heads / state.kv_heads, item.query_position, layer.window};
        for (; rows.first < item.positions * rows.group; rows.first += CORE_ATTEND_ROWS) {
            rows.count = min(item.positions * rows.group - rows.first, (uint32_t)CORE_ATTEND_ROWS);
            float sums[CORE_ATTEND_ROWS][8];
#pragma unroll
            for (uint32_t r = 0; r < CORE_ATTEND_ROWS; r++) {
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) sums[r][k] = 0;
            }
            core_attend_load(state, layer, item, rows, queries, shared);
            __syncthreads();
            for (uint32_t number = 0; number < item.run_count; number++) {
                core_attend_tile tile = {&runs[number], 0, 0, 0};
                for (; tile.first < tile.run->tokens; tile.first += CORE_ATTEND_TILE) {
                    tile.count = min(tile.run->tokens - tile.first, (uint32_t)CORE_ATTEND_TILE);
                    tile.position = tile.run->first_position + tile.first;
                    if (!core_attend_is_seen(rows, tile)) continue;
                    core_attend_score(state, tile, item.kv_head, queries, shared);
                    __syncthreads();
                    core_attend_soften(layer, rows, tile, shared);
                    __syncthreads();
                    core_attend_mix(state, tile, item.kv_head, octet, slice, slices, shared, sums);
                    __syncthreads();
                }
            }
            core_attend_write(item, rows, state.value_dim, octets, slices, shared, sums);
            __syncthreads();
        }
    }
}

#endif
