/* kvant/kit/attend.cuh: flash decoding over a work list of kvant.gpu/1, for codecs whose rows can be unpacked
 * eight channels at a time. A plugin says how; tiles are never written to memory.
 *
 *     struct my_codes {
 *         __device__ my_codes(uint64_t state);
 *         uint32_t tokens, heads, head_dim, dtype;         of a block; dtype of raw rows
 *         __device__ void key(uint64_t extent, uint32_t head, uint32_t token, uint32_t octet, float (&x)[8]);
 *         __device__ void value(uint64_t extent, uint32_t head, uint32_t token, uint32_t octet,
 *                               float (&x)[4][8]);         tokens token to token + 3, token a multiple of 4
 *     };
 *     kvant_attend_items<my_codes>(call);                  the whole kernel, of KVANT_ATTEND_THREADS threads
 *
 * A block takes an item, its rows ROWS at a time, so that codes are unpacked once for a group of up to ROWS
 * query heads. It walks the references, then the raw runs, 64 tokens at a time:
 *
 *     score     a thread takes one token and half of the channels, for all rows
 *     softmax   sixteen lanes a row: largest logit so far, weights exp(logit - largest)
 *     mix       a thread takes eight channels and every slice-th unit of four tokens; sums stay in registers
 *               and are joined in the order of slices when all tokens are done
 *
 * Whose turn it is depends on the shape alone, so the same item gives the same bits. A token that a row does
 * not see, by liveness, position or window, is not added to its sums, not even times zero. Weights of
 * coded values go to `partial`: a codec with a finish kernel needs another kernel than this.
 *
 * Dynamic shared memory: kvant_attend_shared_bytes(key dim). Value dims up to 1024.
 */
#ifndef KVANT_KIT_ATTEND_CUH
#define KVANT_KIT_ATTEND_CUH

#include "../plugin_gpu.h"
#include "rows.cuh"
#include "sum.cuh"

enum {
    KVANT_ATTEND_THREADS = 128,
    KVANT_ATTEND_ROWS = 8, /* query rows that share one unpacking */
    KVANT_ATTEND_TILE = 64 /* tokens */
};

extern __shared__ uint4 kvant_attend_dynamic[];

struct kvant_attend_shared {
    float logits[2][KVANT_ATTEND_ROWS][KVANT_ATTEND_TILE]; /* of the halves of the channels; weights later */
    float join[KVANT_ATTEND_THREADS][9];                   /* nine, so that rows lie in different banks */
    float largest[KVANT_ATTEND_ROWS], sum[KVANT_ATTEND_ROWS], shrink[KVANT_ATTEND_ROWS];
    float bias[KVANT_ATTEND_ROWS]; /* query . mean of centred keys */
};

/* Up to 64 tokens side by side, coded or raw. */
struct kvant_attend_tile {
    bool coded;
    uint64_t key, value;      /* extents */
    const kvant_gpu_run *run; /* raw */
    uint32_t first;           /* token of the block or run that is token 0 of the tile */
    uint32_t lo, hi;          /* tokens of the tile that live */
    uint64_t position;        /* of token 0 of the tile */
};

struct kvant_attend_rows {
    uint32_t first, count, group;
    uint64_t position; /* of row 0 of the item */
    uint32_t window;
};

__device__ __forceinline__ uint64_t kvant_attend_row_position(const kvant_attend_rows &rows, uint32_t row) {
    return rows.position + (rows.first + row) / rows.group;
}

__device__ __forceinline__ bool kvant_attend_sees(const kvant_attend_rows &rows, uint32_t row,
                                                  uint64_t position) {
    uint64_t own = kvant_attend_row_position(rows, row);
    return row < rows.count && position <= own && (rows.window == 0 || own - position < rows.window);
}

/* Queries with the scale in, and the bias of each row. */
template <typename CODES>
__device__ void kvant_attend_load_queries(const CODES &codes, const kvant_gpu_layer &layer,
                                          const kvant_gpu_item &item, const kvant_attend_rows &rows,
                                          float *queries, kvant_attend_shared &shared) {
    const uint32_t dim = codes.head_dim;
    for (uint32_t i = threadIdx.x; i < KVANT_ATTEND_ROWS * dim; i += KVANT_ATTEND_THREADS) {
        uint32_t row = i / dim, c = i % dim, all = rows.first + row;
        float x = 0;
        if (row < rows.count)
            x = kvant_load_element(
                codes.dtype,
                item.queries.data +
                    (uint64_t)(item.queries.token_stride * (all / rows.group) +
                               item.queries.head_stride * (item.kv_head * rows.group + all % rows.group) +
                               item.queries.channel_stride * c));
        queries[i] = __fmul_rn(x, layer.scale);
    }
    __syncthreads();
    uint32_t row = threadIdx.x / 16, lane = threadIdx.x % 16;
    float bias = 0;
    if (layer.center != 0)
        for (uint32_t c = lane; c < dim; c += 16)
            bias += queries[row * dim + c] *
                    *kvant_global<const float>(layer.center + 4 * ((uint64_t)item.kv_head * dim + c));
#pragma unroll
    for (uint32_t half = 8; half >= 1; half /= 2) bias += __shfl_xor_sync(0xffffffffu, bias, half);
    if (lane == 0) {
        shared.bias[row] = bias;
        shared.largest[row] = __uint_as_float(0xff800000u);
        shared.sum[row] = 0;
    }
}

template <typename CODES>
__device__ __forceinline__ void kvant_attend_score(const CODES &codes, const kvant_attend_tile &tile,
                                                   uint32_t kv_head, const float *queries,
                                                   kvant_attend_shared &shared) {
    const uint32_t dim = codes.head_dim, octets = (dim + 7) / 8, middle = (octets + 1) / 2;
    uint32_t token = threadIdx.x % KVANT_ATTEND_TILE, half = threadIdx.x / KVANT_ATTEND_TILE;
    float dot[KVANT_ATTEND_ROWS];
#pragma unroll
    for (uint32_t r = 0; r < KVANT_ATTEND_ROWS; r++) dot[r] = 0;
    bool live = token >= tile.lo && token < tile.hi;
    for (uint32_t octet = half * middle; octet < (half == 0 ? middle : octets) && live; octet++) {
        float x[8];
        if (tile.coded)
            codes.key(tile.key, kv_head, tile.first + token, octet, x);
        else
            kvant_load_octet(codes.dtype,
                             tile.run->keys.data +
                                 (uint64_t)(tile.run->keys.token_stride * (tile.first + token) +
                                            tile.run->keys.head_stride * kv_head +
                                            tile.run->keys.channel_stride * (octet * 8)),
                             tile.run->keys.channel_stride, dim - octet * 8, x);
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            if (octet * 8 + k < dim) {
#pragma unroll
                for (uint32_t r = 0; r < KVANT_ATTEND_ROWS; r++)
                    dot[r] = __fmaf_rn(queries[r * dim + octet * 8 + k], x[k], dot[r]);
            }
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < KVANT_ATTEND_ROWS; r++) shared.logits[half][r][token] = dot[r];
}

/* Sixteen lanes a row, four tokens a lane. Weights replace the first half's logits. */
__device__ __forceinline__ void kvant_attend_soften(const kvant_gpu_layer &layer,
                                                    const kvant_attend_rows &rows,
                                                    const kvant_attend_tile &tile,
                                                    kvant_attend_shared &shared) {
    const float nothing = __uint_as_float(0xff800000u);
    uint32_t row = threadIdx.x / 16, lane = threadIdx.x % 16;
    float logit[4], before = shared.largest[row], most = before, sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t token = 16 * i + lane;
        bool seen =
            token >= tile.lo && token < tile.hi && kvant_attend_sees(rows, row, tile.position + token);
        float x = shared.logits[0][row][token] + shared.logits[1][row][token];
        if (tile.coded) x += shared.bias[row];
        if (layer.soft_cap > 0) x = layer.soft_cap * tanhf(x / layer.soft_cap);
        logit[i] = seen ? x : nothing;
        most = fmaxf(most, logit[i]);
    }
#pragma unroll
    for (uint32_t half = 8; half >= 1; half /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, half));
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        float weight = logit[i] > nothing ? expf(logit[i] - most) : 0.0f;
        shared.logits[0][row][16 * i + lane] = weight;
        sum += logit[i] == logit[i] ? weight : logit[i]; /* a row with a NaN says so */
    }
#pragma unroll
    for (uint32_t half = 8; half >= 1; half /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, half);
    __syncwarp(); /* all lanes have read `largest` */
    if (lane == 0) {
        float shrink = before > nothing ? expf(before - most) : 0.0f;
        shared.shrink[row] = shrink;
        shared.largest[row] = most;
        shared.sum[row] = shared.sum[row] * shrink + sum;
    }
}

template <typename CODES>
__device__ __forceinline__ void kvant_attend_mix(const CODES &codes, const kvant_attend_tile &tile,
                                                 uint32_t kv_head, uint32_t octet, uint32_t slice,
                                                 uint32_t slices, const kvant_attend_shared &shared,
                                                 float (&sums)[KVANT_ATTEND_ROWS][8]) {
    const uint32_t dim = codes.head_dim;
#pragma unroll
    for (uint32_t r = 0; r < KVANT_ATTEND_ROWS; r++) {
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) sums[r][k] = __fmul_rn(sums[r][k], shared.shrink[r]);
    }
    if (slice >= slices) return;
    for (uint32_t unit = tile.lo / 4 + slice; unit < (tile.hi + 3) / 4; unit += slices) {
        float x[4][8];
        if (tile.coded) {
            codes.value(tile.value, kv_head, tile.first + 4 * unit, octet, x);
        } else {
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                kvant_load_octet(codes.dtype,
                                 tile.run->values.data +
                                     (uint64_t)(tile.run->values.token_stride * (tile.first + 4 * unit + j) +
                                                tile.run->values.head_stride * kv_head +
                                                tile.run->values.channel_stride * (octet * 8)),
                                 tile.run->values.channel_stride,
                                 4 * unit + j < tile.hi ? dim - octet * 8 : 0, x[j]);
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
#pragma unroll
            for (uint32_t r = 0; r < KVANT_ATTEND_ROWS; r++) {
                float weight = shared.logits[0][r][4 * unit + j];
                if (weight > 0) {
#pragma unroll
                    for (uint32_t k = 0; k < 8; k++) sums[r][k] = __fmaf_rn(weight, x[j][k], sums[r][k]);
                }
            }
        }
    }
}

/* Joins the slices' sums and writes the rows' partials. */
__device__ __forceinline__ void kvant_attend_write(const kvant_gpu_item &item, const kvant_attend_rows &rows,
                                                   uint32_t dim, uint32_t octets, uint32_t slices,
                                                   kvant_attend_shared &shared,
                                                   const float (&sums)[KVANT_ATTEND_ROWS][8]) {
#pragma unroll
    for (uint32_t r = 0; r < KVANT_ATTEND_ROWS; r++) {
        if (r < rows.count) {
            uint64_t partial = item.partial + 4 * item.partial_stride * (rows.first + r);
            __syncthreads();
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) shared.join[threadIdx.x][k] = sums[r][k];
            __syncthreads();
            for (uint32_t c = threadIdx.x; c < dim; c += KVANT_ATTEND_THREADS) {
                float sum = shared.join[c / 8][c % 8];
                for (uint32_t slice = 1; slice < slices; slice++)
                    sum += shared.join[slice * octets + c / 8][c % 8];
                *kvant_global<float>(partial + 4 * (2 + c)) = sum;
            }
            if (threadIdx.x == 0) {
                *kvant_global<float>(partial) = shared.largest[r];
                *kvant_global<float>(partial + 4) = shared.sum[r];
            }
        }
    }
}

/* Tile `number` of the item, counted over its references and then its runs; false behind the last. */
template <typename CODES> struct kvant_attend_walk {
    uint32_t index, first; /* reference or run, token within it */

    __device__ __forceinline__ bool next(const CODES &keys, const kvant_gpu_layer &layer,
                                         const kvant_gpu_item &item, kvant_attend_tile &tile) {
        while (index < item.reference_count) {
            const kvant_gpu_reference &r = kvant_global<const kvant_gpu_reference>(item.references)[index];
            uint32_t end = r.live_first + r.live_count;
            tile.coded = true;
            tile.first = first;
            tile.position = r.first_position + first;
            tile.key = layer.key_base + (uint64_t)r.key_index * layer.key_stride;
            tile.value = layer.value_base + (uint64_t)r.value_index * layer.value_stride;
            tile.lo = r.live_first > first ? r.live_first - first : 0;
            tile.hi = end > first ? min(end - first, (uint32_t)KVANT_ATTEND_TILE) : 0;
            first += KVANT_ATTEND_TILE;
            if (first >= keys.tokens) {
                first = 0;
                index++;
            }
            if (tile.lo < tile.hi) return true;
        }
        while (index < item.reference_count + item.run_count) {
            const kvant_gpu_run &r =
                kvant_global<const kvant_gpu_run>(item.runs)[index - item.reference_count];
            tile.coded = false;
            tile.first = first;
            tile.position = r.first_position + first;
            tile.run = &r;
            tile.lo = 0;
            tile.hi = r.tokens > first ? min(r.tokens - first, (uint32_t)KVANT_ATTEND_TILE) : 0;
            first += KVANT_ATTEND_TILE;
            if (first >= r.tokens) {
                first = 0;
                index++;
            }
            if (tile.hi > 0) return true;
        }
        return false;
    }
};

/* Whether some row of these sees some token of the tile. */
__device__ __forceinline__ bool kvant_attend_tile_is_seen(const kvant_attend_rows &rows,
                                                          const kvant_attend_tile &tile) {
    uint64_t least = kvant_attend_row_position(rows, 0);
    uint64_t most = kvant_attend_row_position(rows, rows.count - 1);
    uint64_t from = tile.position + tile.lo, to = tile.position + tile.hi;
    return from <= most && (rows.window == 0 || to + rows.window > least + 1);
}

template <typename CODES> __device__ __forceinline__ void kvant_attend_items(const kvant_gpu_call &call) {
    __shared__ kvant_attend_shared shared;
    float *queries = (float *)kvant_attend_dynamic; /* [ROWS][key dim] */
    const kvant_gpu_layer &layer = *kvant_global<const kvant_gpu_layer>(call.layer);
    const CODES keys(call.state), values(layer.value_state);
    uint32_t octets = (values.head_dim + 7) / 8, slices = KVANT_ATTEND_THREADS / octets;
    uint32_t octet = threadIdx.x % octets, slice = threadIdx.x / octets;
    uint32_t count = *kvant_global<const uint32_t>(call.job_count);
    for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
        const kvant_gpu_item &item = kvant_global<const kvant_gpu_item>(call.jobs)[i];
        kvant_attend_rows rows;
        rows.group = layer.q_heads / keys.heads;
        rows.position = item.query_position;
        rows.window = layer.window;
        for (rows.first = 0; rows.first < item.positions * rows.group; rows.first += KVANT_ATTEND_ROWS) {
            rows.count = min(item.positions * rows.group - rows.first, (uint32_t)KVANT_ATTEND_ROWS);
            kvant_attend_load_queries(keys, layer, item, rows, queries, shared);
            float sums[KVANT_ATTEND_ROWS][8];
#pragma unroll
            for (uint32_t r = 0; r < KVANT_ATTEND_ROWS; r++) {
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) sums[r][k] = 0;
            }
            __syncthreads();
            kvant_attend_tile tile;
            kvant_attend_walk<CODES> walk = {0, 0};
            while (walk.next(keys, layer, item, tile)) {
                if (!kvant_attend_tile_is_seen(rows, tile)) continue;
                kvant_attend_score(keys, tile, item.kv_head, queries, shared);
                __syncthreads();
                kvant_attend_soften(layer, rows, tile, shared);
                __syncthreads();
                kvant_attend_mix(values, tile, item.kv_head, octet, slice, slices, shared, sums);
                __syncthreads();
            }
            kvant_attend_write(item, rows, values.head_dim, octets, slices, shared, sums);
            __syncthreads();
        }
    }
}

#endif
