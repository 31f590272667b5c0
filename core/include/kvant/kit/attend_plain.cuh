/* kvant/kit/attend_plain.cuh: scores and mix of raw rows, and of codes one number at a time, in float32, by
 * one warp; and the softmax of a tile. For kit/attend_codes.cuh.
 */
#ifndef KVANT_KIT_ATTEND_PLAIN_CUH
#define KVANT_KIT_ATTEND_PLAIN_CUH

#include "attend.cuh"
#include "attend_fold.cuh"

/* ---- One number at a time ------------------------------------------------------------------------------ */

/* Logits of tokens [from, to) of a tile: sixteen tokens, even and odd octets. */
template <typename CODES>
__device__ __forceinline__ void kvant_attend_score_plainly(const CODES &codes, const kvant_attend_warp &w,
                                                           const kvant_attend_tile &tile, uint32_t kv_head,
                                                           uint32_t from, uint32_t to) {
    const uint32_t dim = codes.head_dim, half = w.lane / 16,
                   stride = kvant_attend_up(dim, KVANT_ATTEND_CHUNK) + 4;
#pragma unroll 1
    for (uint32_t begin = from; begin < to; begin += 16) {
        uint32_t token = begin + w.lane % 16;
        float dot[KVANT_ATTEND_ROWS];
#pragma unroll
        for (uint32_t r = 0; r < KVANT_ATTEND_ROWS; r++) dot[r] = 0;
        if (tile.coded) {
#pragma unroll 1
            for (uint32_t c = half; c < dim && token < to; c += 2) {
                float x = codes.key_number(tile.key, kv_head, tile.first + token, c);
#pragma unroll
                for (uint32_t r = 0; r < KVANT_ATTEND_ROWS; r++)
                    if (r < w.wide()) dot[r] = __fmaf_rn(w.queries()[r * stride + c], x, dot[r]);
            }
        } else {
            const kvant_gpu_view &rows = tile.run->keys;
#pragma unroll 1
            for (uint32_t c = 8 * half; c < dim && token < to; c += 16) {
                float x[8];
                kvant_load_octet(codes.dtype,
                                 rows.data + (uint64_t)(rows.token_stride * (tile.first + token) +
                                                        rows.head_stride * kv_head + rows.channel_stride * c),
                                 rows.channel_stride, dim - c, x);
#pragma unroll
                for (uint32_t r = 0; r < KVANT_ATTEND_ROWS; r++) {
                    if (r < w.wide()) {
                        const float *query = w.queries() + r * stride + c;
                        float4 a = ((const float4 *)query)[0], b = ((const float4 *)query)[1];
                        const float q[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
                        for (uint32_t k = 0; k < 8; k++) dot[r] = __fmaf_rn(q[k], x[k], dot[r]);
                    }
                }
            }
        }
        __syncwarp();
#pragma unroll
        for (uint32_t r = 0; r < KVANT_ATTEND_ROWS; r++) {
            float other = __shfl_xor_sync(0xffffffffu, dot[r], 16);
            if (token < (to + 3) / 4 * 4 && r < w.wide() && half == r % 2)
                w.weights(r)[token] = __fadd_rn(dot[r], other);
        }
    }
}

/* Adds x, of channel 32 pair + 4g + i, times weights to its sums. */
template <uint32_t PAIRS>
__device__ __forceinline__ void kvant_attend_put(float (&acc)[PAIRS][2][4], uint32_t pair, uint32_t i,
                                                 const float (&x)[2]) {
#pragma unroll
    for (uint32_t k = 0; k < PAIRS * 4; k++) {
        bool is_it = k == 4 * pair + i;
        acc[k / 4][0][k % 4] = __fadd_rn(acc[k / 4][0][k % 4], is_it ? x[0] : 0.0f);
        acc[k / 4][1][k % 4] = __fadd_rn(acc[k / 4][1][k % 4], is_it ? x[1] : 0.0f);
    }
}

/* Adds values of channels [from, to) times weights to the sums of the first column group. */
template <typename CODES, uint32_t PAIRS>
__device__ __forceinline__ void
kvant_attend_mix_plainly(const CODES &codes, const kvant_attend_warp &w, const kvant_attend_tile &tile,
                         uint32_t kv_head, uint32_t from, uint32_t to, float (&acc)[PAIRS][2][4]) {
    const float *weights = w.weights(w.sum_row());
#pragma unroll 1
    for (uint32_t pair = from / 32; 32 * pair < to; pair++) {
        uint32_t channel = 32 * pair + 4 * w.g();
        bool is_mine = channel >= from && channel < to && w.sum_slot() == 0;
        if (tile.coded) {
#pragma unroll 1
            for (uint32_t i = 0; i < 4; i++) {
                float part[2] = {0, 0};
#pragma unroll 1
                for (uint32_t token = tile.lo; token < tile.hi && is_mine; token++) {
                    float x = codes.value_number(tile.value, kv_head, tile.first + token, channel + i);
#pragma unroll
                    for (uint32_t c = 0; c < 2; c++) {
                        float weight = weights[c * KVANT_ATTEND_WEIGHTS + token];
                        if (weight > 0) part[c] = __fmaf_rn(weight, x, part[c]);
                    }
                }
                __syncwarp();
                kvant_attend_put(acc, pair, i, part);
            }
        } else {
            const kvant_gpu_view &rows = tile.run->values;
            const uint32_t first = channel / 8 * 8;
            float part[4][2];
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) part[i / 2][i % 2] = 0;
#pragma unroll 1
            for (uint32_t token = tile.lo; token < tile.hi && is_mine; token++) {
                float x[8];
                kvant_load_octet(codes.dtype,
                                 rows.data +
                                     (uint64_t)(rows.token_stride * (tile.first + token) +
                                                rows.head_stride * kv_head + rows.channel_stride * first),
                                 rows.channel_stride, codes.head_dim - first, x);
#pragma unroll
                for (uint32_t c = 0; c < 2; c++) {
                    float weight = weights[c * KVANT_ATTEND_WEIGHTS + token];
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++)
                        if (weight > 0)
                            part[i][c] = __fmaf_rn(weight, channel == first ? x[i] : x[4 + i], part[i][c]);
                }
            }
            __syncwarp();
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) kvant_attend_put(acc, pair, i, part[i]);
        }
    }
}

/* ---- Softmax ------------------------------------------------------------------------------------------- */

/* A row's largest logit and sum, known to the 32 / wide lanes that look after it. */
struct kvant_attend_state {
    float largest, sum, bias;
    uint64_t position;
};

/* Logits to weights. `shrink`: what earlier sums of the lane's row are worth now. */
__device__ __forceinline__ void kvant_attend_weigh(float soft_cap, const kvant_attend_rows &rows,
                                                   const kvant_attend_tile &tile, const kvant_attend_warp &w,
                                                   kvant_attend_state &state, float &shrink) {
    const float nothing = __uint_as_float(0xff800000u);
    const uint32_t lanes = 32 / w.wide(), row = w.lane / lanes, lane = w.lane % lanes;
    float *weights = w.weights(row);
    float x[4][4], before = state.largest, most = before, sum = 0;
    uint64_t own = state.position, end = tile.position + KVANT_ATTEND_TOKENS;
    bool all = tile.lo == 0 && tile.hi == KVANT_ATTEND_TOKENS && end <= own + 1 &&
               (rows.window == 0 || own - tile.position < rows.window);
    bool is_row = row < rows.count;
    float bias = tile.coded ? state.bias : 0.0f;
    if (soft_cap > 0) {
#pragma unroll 1
        for (uint32_t token = tile.lo + lane; token < tile.hi && is_row; token += lanes)
            weights[token] = soft_cap * tanhf(__fadd_rn(weights[token], bias) / soft_cap);
        bias = 0;
        __syncwarp();
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t token = (4 * lane + 4 * lanes * i + 12 * (row & 1)) % KVANT_ATTEND_TOKENS;
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) x[i][k] = nothing;
        if (i < w.wide() / 2 && is_row) {
            if (all || (token + 3 >= tile.lo && token < tile.hi)) {
                float4 a = *(const float4 *)(weights + token);
                x[i][0] = a.x, x[i][1] = a.y, x[i][2] = a.z, x[i][3] = a.w;
            }
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                x[i][k] = __fadd_rn(x[i][k], bias);
                if (!all) {
                    uint32_t at = token + k;
                    uint64_t position = tile.position + at;
                    bool seen = at >= tile.lo && at < tile.hi && position <= own &&
                                (rows.window == 0 || own - position < rows.window);
                    x[i][k] = seen ? x[i][k] : nothing;
                }
                most = fmaxf(most, x[i][k]);
            }
        }
    }
    for (uint32_t step = lanes / 2; step >= 1; step /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    float base = most > nothing ? most : 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t token = (4 * lane + 4 * lanes * i + 12 * (row & 1)) % KVANT_ATTEND_TOKENS;
        if (i < w.wide() / 2) {
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                x[i][k] = expf(__fsub_rn(x[i][k], base)); /* a row with a NaN says so */
                sum = __fadd_rn(sum, x[i][k]);
            }
            *(float4 *)(weights + token) = make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
        }
    }
    for (uint32_t step = lanes / 2; step >= 1; step /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, step));
    shrink = before > nothing ? expf(__fsub_rn(before, most)) : 1.0f;
    state.largest = most;
    state.sum = __fmaf_rn(state.sum, shrink, sum);
}

#endif
