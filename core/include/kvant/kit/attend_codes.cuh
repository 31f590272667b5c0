/* kvant/kit/attend_codes.cuh: flash decoding over a work list of kvant.gpu/1 on tensor cores, for codecs
 * whose numbers are code * scale + min with codes in planar order. Codes go from memory to the products as
 * they are; no number is ever decoded.
 *
 *     keys     one matrix: free = tokens, summed = channels. Groups of `group` tokens of a channel: scales
 *              and minima are rows of channels, a row a group
 *     values   a run of matrices of 64 tokens: free = channels, summed = tokens. Groups of `group` channels
 *              of a token: rows of tokens, a row a group
 *
 *     struct my_codes {
 *         __device__ my_codes(uint64_t state);
 *         uint32_t heads, head_dim, dtype;            dtype of raw rows and queries
 *         __device__ kvant_affine affine() const;     where codes, scales and minima lie (attend_fold.cuh)
 *         __device__ float key_number(uint64_t extent, uint32_t head, uint32_t token, uint32_t channel);
 *         __device__ float value_number(...);         the same: one number as decode gives it
 *     };
 *     kvant_attend_codes<my_codes, 128>(call);    the whole kernel; value dims up to 128 (or 256)
 *
 * Folding. A logit is sum q (code s + m) = sum (q s) code + sum q m. For each group, the query times the
 * group's scales is brought to integers of 22 bits and a sign, one exponent a row, and cut into three bytes
 * (mma.cuh); the products with codes are exact. Values the same way: a weight times its token's scale, never
 * negative, to 23 bits, one exponent for the 64 tokens of a tile; sums of weights times minima are added at
 * the end. An mma has eight columns: eight rows, or with four rows or fewer two groups side by side, folded
 * at once.
 *
 * A block takes an item, up to eight of its rows at a time. Its warps take tiles of 64 tokens in turn (of
 * raw runs 16), each with sums of its own, without a barrier: while a warp works on the keys of a tile its
 * values are on the way (cp.async), while it works on the values the keys of its next tile are. Whose turn
 * it is depends on the shape alone, so the same item gives the same bits.
 *
 * Not this way, but as attend.cuh does it, one number at a time in float32: raw runs; groups whose numbers
 * may lie beyond the largest of the rows' type, where `code * scale + min` is not the whole rule; rows with
 * a query that is no finite number. That is found out for each tile, by all lanes of its warp alike.
 *
 * Error of a logit against exact sums over decoded numbers, A the largest |q s| of the row among 64 channels
 * of a group: A * 2^-22 a product at most, half a unit of the integers, times the code; 2^-24 each of q s,
 * of sums of digits brought to float32, and of 16 additions of |q m| in a lane and 2 between lanes; and one
 * addition for each 64 channels. Of a mixed value the same with the weight in place of q, A * 2^-23 among 64
 * tokens, a float32 addition a tile, and the weights' own error (expf: 2 units of the last place). Measured
 * against double precision: 2e-7 of the L2 norm of absolute sums, 1e-6 where outliers are 1e4 times the
 * rest. A below 2^-104 counts as that, so products below 2^-126 may be lost. Decoding rounds a number twice;
 * here nothing is decoded.
 */
#ifndef KVANT_KIT_ATTEND_CODES_CUH
#define KVANT_KIT_ATTEND_CODES_CUH

#include "attend_plain.cuh"

enum { KVANT_ATTEND_OCTETS = 32 }; /* of 256 key channels */

/* ---- Work ---------------------------------------------------------------------------------------------- */

/* Shared by a block's warps. */
struct kvant_attend_block {
    kvant_affine key, value;
    kvant_gpu_layer layer;
    kvant_gpu_item item;
    kvant_attend_rows rows;
    uint64_t least, most;                           /* positions of the first and the last row */
    kvant_attend_tile tiles[KVANT_ATTEND_WARPS][2]; /* a warp's tile, and its next one */
    uint2 key_octets[KVANT_ATTEND_OCTETS];
    uint2 value_octets[2][KVANT_ATTEND_TOKENS / 8]; /* of a whole matrix and of a block's last */
    float bias[KVANT_ATTEND_ROWS];
    float largest[KVANT_ATTEND_WARPS][KVANT_ATTEND_ROWS], sum[KVANT_ATTEND_WARPS][KVANT_ATTEND_ROWS];
};

/* Tiles of an item, counted over its references and then its runs: every fourth is a warp's. */
struct kvant_attend_turns {
    uint32_t number;         /* of the next tile */
    uint32_t run, run_first; /* a run, and the number of its first tile */

    __device__ __forceinline__ bool is_seen(const kvant_attend_block &block,
                                            const kvant_attend_tile &tile) const {
        return tile.lo < tile.hi && tile.position + tile.lo <= block.most &&
               (block.rows.window == 0 || tile.position + tile.hi + block.rows.window > block.least + 1);
    }

    /* False behind the last. */
    __device__ __forceinline__ bool next(const kvant_attend_block &block, bool writes,
                                         kvant_attend_tile &out) {
        kvant_attend_tile tile;
        const uint32_t tokens = block.key.shape.tokens;
        const uint32_t per_block = (tokens + KVANT_ATTEND_TOKENS - 1) / KVANT_ATTEND_TOKENS;
        const uint32_t coded = block.item.reference_count * per_block;
        tile.run = NULL;
        tile.coded = true;
#pragma unroll 1
        for (; number < coded; number += KVANT_ATTEND_WARPS) {
            uint32_t index = per_block == 1 ? number : number / per_block;
            const kvant_gpu_reference &r =
                kvant_global<const kvant_gpu_reference>(block.item.references)[index];
            uint32_t end = r.live_first + r.live_count;
            tile.first = (number - index * per_block) * KVANT_ATTEND_TOKENS;
            tile.lo = r.live_first > tile.first ? r.live_first - tile.first : 0;
            tile.hi = end > tile.first ? min(end - tile.first, (uint32_t)KVANT_ATTEND_TOKENS) : 0;
            tile.position = r.first_position + tile.first;
            if (!is_seen(block, tile)) continue;
            tile.key = block.layer.key_base + (uint64_t)r.key_index * block.layer.key_stride;
            tile.value = block.layer.value_base + (uint64_t)r.value_index * block.layer.value_stride;
            if (writes) out = tile;
            number += KVANT_ATTEND_WARPS;
            return true;
        }
        if (run == 0) run_first = coded;
        tile.coded = false;
        tile.key = tile.value = 0;
        tile.lo = 0;
#pragma unroll 1
        for (; run < block.item.run_count; run++) {
            const kvant_gpu_run &r = kvant_global<const kvant_gpu_run>(block.item.runs)[run];
            uint32_t end = run_first + (r.tokens + KVANT_ATTEND_RAW - 1) / KVANT_ATTEND_RAW;
#pragma unroll 1
            for (; number < end; number += KVANT_ATTEND_WARPS) {
                tile.first = (number - run_first) * KVANT_ATTEND_RAW;
                tile.hi = min(r.tokens - tile.first, (uint32_t)KVANT_ATTEND_RAW);
                tile.position = r.first_position + tile.first;
                if (!is_seen(block, tile)) continue;
                tile.run = &r;
                if (writes) out = tile;
                number += KVANT_ATTEND_WARPS;
                return true;
            }
            run_first = end;
        }
        return false;
    }
};

__device__ __forceinline__ uint32_t kvant_attend_tokens_of(const kvant_affine &codes,
                                                           const kvant_attend_tile &tile) {
    return min(codes.shape.tokens - tile.first, (uint32_t)KVANT_ATTEND_TOKENS);
}

__device__ __forceinline__ void kvant_attend_fetch_keys(const kvant_affine &codes, const kvant_attend_warp &w,
                                                        const kvant_attend_tile &tile, uint32_t kv_head) {
    const kvant_attend_side &s = codes.shape;
    uint64_t head = tile.key + kv_head * codes.head_bytes;
    uint32_t tokens = kvant_attend_tokens_of(codes, tile), to = kvant_shared_address(w.tile(codes));
    kvant_tile_copy_codes(w.lane, to, head, tile.first, tokens, s.tokens, s.head_dim, s.head_dim, s.bits);
    uint32_t first = tile.first / s.group, last = (tile.first + tokens - 1) / s.group;
    uint32_t row = s.head_dim * s.meta_bytes, planes = to + codes.code_bytes;
    uint64_t from = head + first * codes.plane_stride;
    kvant_tile_copy<false>(w.lane, planes, row, from + codes.scale_offset, codes.plane_stride,
                           last - first + 1, row / 16);
    kvant_tile_copy<false>(w.lane, planes + codes.plane_bytes, row, from + codes.min_offset,
                           codes.plane_stride, last - first + 1, row / 16);
}

__device__ __forceinline__ void kvant_attend_fetch_values(const kvant_affine &codes,
                                                          const kvant_attend_warp &w,
                                                          const kvant_attend_tile &tile, uint32_t kv_head) {
    const kvant_attend_side &s = codes.shape;
    uint64_t head = tile.value + kv_head * codes.head_bytes;
    uint32_t tokens = kvant_attend_tokens_of(codes, tile), to = kvant_shared_address(w.tile(codes));
    uint32_t room = codes.room, groups = codes.groups;
    kvant_tile_copy_codes(w.lane, to, head + tile.first / KVANT_ATTEND_TOKENS * codes.matrix_bytes, 0,
                          s.head_dim, s.head_dim, tokens, room, s.bits);
    uint32_t row = tokens * s.meta_bytes, planes = to + codes.code_bytes;
    uint64_t from = head + tile.first * s.meta_bytes;
    kvant_tile_copy<false>(w.lane, planes, room * s.meta_bytes, from + codes.scale_offset, codes.plane_stride,
                           groups, row / 16);
    kvant_tile_copy<false>(w.lane, planes + codes.plane_bytes, room * s.meta_bytes, from + codes.min_offset,
                           codes.plane_stride, groups, row / 16);
}

/* Scales and minima of tokens that do not live become 0: not even their products with 0 are added. */
__device__ __forceinline__ void kvant_attend_bury(const kvant_affine &codes, const kvant_attend_warp &w,
                                                  const kvant_attend_tile &tile, uint32_t tokens) {
    uint32_t room = codes.room, bytes = codes.shape.meta_bytes;
    unsigned char *planes = w.tile(codes) + codes.code_bytes;
#pragma unroll 1
    for (uint32_t row = 0; row < 2 * codes.groups; row++, planes += room * bytes)
#pragma unroll 1
        for (uint32_t token = w.lane; token < tokens; token += 32)
            if (token < tile.lo || token >= tile.hi) {
                if (bytes == 4)
                    ((uint32_t *)planes)[token] = 0;
                else
                    ((uint16_t *)planes)[token] = 0;
            }
}

template <typename CODES>
__device__ __forceinline__ void
kvant_attend_score_tile(uint64_t state, const kvant_affine &codes, const kvant_attend_warp &w,
                        const uint2 *octets, const kvant_attend_tile &tile, uint32_t kv_head, bool plainly) {
    const uint32_t group = codes.shape.group, tokens = kvant_attend_tokens_of(codes, tile);
    uint32_t first = tile.first / group, last = (tile.first + tokens - 1) / group;
    if (!tile.coded) first = last = 0;
#pragma unroll 1
    for (uint32_t base = first; base <= last; base += w.slots()) {
        if (tile.coded && !plainly &&
            kvant_attend_score_groups(codes, w.anew(), octets, tile.first, tokens, base, first, last))
            continue;
        __syncwarp();
        uint32_t end = (min(base + w.slots() - 1, last) + 1) * group;
        uint32_t from = max(base * group, tile.first) - tile.first, to = min(end - tile.first, tokens);
        kvant_attend_score_plainly(CODES(state), w.anew(), tile, kv_head, tile.coded ? from : 0,
                                   tile.coded ? to : tile.hi);
    }
}

template <typename CODES, uint32_t PAIRS>
__device__ __forceinline__ void kvant_attend_mix_tile(uint64_t state, const kvant_affine &codes,
                                                      const kvant_attend_warp &w, const uint2 *octets,
                                                      const kvant_attend_tile &tile, uint32_t kv_head,
                                                      bool plainly, float (&acc)[PAIRS][2][4]) {
    const uint32_t dim = codes.shape.head_dim, tokens = kvant_attend_tokens_of(codes, tile);
    const uint32_t groups = tile.coded ? codes.groups : 1;
    if (tile.coded && (tile.lo > 0 || tile.hi < tokens)) {
        kvant_attend_bury(codes, w, tile, tokens);
        __syncwarp();
    }
    if (tokens < codes.room) octets += 8; /* the last matrix of a block is smaller */
#pragma unroll 1
    for (uint32_t base = 0; base < groups; base += w.slots()) {
        if (tile.coded && !plainly && kvant_attend_mix_groups(codes, w.anew(), octets, tokens, base, acc))
            continue;
        uint32_t from = base * codes.shape.group, to = min(from + w.slots() * codes.shape.group, dim);
        kvant_attend_mix_plainly(CODES(state), w.anew(), tile, kv_head, from, tile.coded ? to : dim, acc);
    }
}

/* ---- A block ------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void kvant_attend_find_octets(const kvant_attend_side &key,
                                                         const kvant_attend_side &value,
                                                         kvant_attend_block &block) {
    uint32_t i = threadIdx.x;
    if (i < key.head_dim / 8) block.key_octets[i] = kvant_tile_octet(key.head_dim, key.bits, i);
    uint32_t tokens = kvant_attend_tile_tokens(&value), rest = value.tokens % KVANT_ATTEND_TOKENS;
    if (i < tokens / 8) block.value_octets[0][i] = kvant_tile_octet(tokens, value.bits, i);
    if (i < rest / 8) block.value_octets[1][i] = kvant_tile_octet(rest, value.bits, i);
}

/* Queries with the scale in, 0 behind the last channel, and each row's product with the mean of centred keys.
 * True: all are finite. */
__device__ __forceinline__ bool kvant_attend_fetch_queries(uint32_t dtype, uint32_t wide, float *queries,
                                                           kvant_attend_block &block) {
    const uint32_t dim = block.key.shape.head_dim, row = threadIdx.x / 16;
    const kvant_gpu_view &view = block.item.queries;
    const uint32_t group = block.rows.group, all = block.rows.first + row;
    bool finite = true;
    float bias = 0;
    if (row >= wide) return true; /* whole warps */
    uint64_t from = view.data + (uint64_t)(view.token_stride * (all / group) +
                                           view.head_stride * (block.item.kv_head * group + all % group));
#pragma unroll 1
    for (uint32_t c = threadIdx.x % 16; c < kvant_attend_up(dim, KVANT_ATTEND_CHUNK); c += 16) {
        float x = 0;
        if (row < block.rows.count && c < dim)
            x = __fmul_rn(kvant_load_element(dtype, from + (uint64_t)(view.channel_stride * c)),
                          block.layer.scale);
        finite = finite && kvant_is_finite(x);
        queries[row * block.key.query_stride + c] = x;
        if (block.layer.center != 0 && c < dim)
            bias = __fmaf_rn(
                x,
                *kvant_global<const float>(block.layer.center + 4 * ((uint64_t)block.item.kv_head * dim + c)),
                bias);
    }
#pragma unroll
    for (uint32_t half = 8; half >= 1; half /= 2)
        bias = __fadd_rn(bias, __shfl_xor_sync(0xffffffffu, bias, half));
    if (threadIdx.x % 16 == 0) block.bias[row] = bias;
    return finite;
}

/* Adds the warps' sums, in their order, and writes partials. `sums`: [warps][8][value dim]. */
__device__ __forceinline__ void kvant_attend_merge(const unsigned char *sums, uint32_t warp_bytes,
                                                   const kvant_attend_block &block) {
    const float nothing = __uint_as_float(0xff800000u);
    const uint32_t dim = block.value.shape.head_dim;
#pragma unroll 1
    for (uint32_t r = 0; r < block.rows.count; r++) {
        float largest = nothing, sum = 0, factor[KVANT_ATTEND_WARPS];
#pragma unroll
        for (uint32_t i = 0; i < KVANT_ATTEND_WARPS; i++) largest = fmaxf(largest, block.largest[i][r]);
#pragma unroll
        for (uint32_t i = 0; i < KVANT_ATTEND_WARPS; i++) {
            factor[i] = block.largest[i][r] > nothing ? expf(__fsub_rn(block.largest[i][r], largest)) : 0.0f;
            sum = __fmaf_rn(block.sum[i][r], factor[i], sum);
        }
        uint64_t partial = block.item.partial + 4 * block.item.partial_stride * (block.rows.first + r);
#pragma unroll 1
        for (uint32_t c = threadIdx.x; c < dim; c += KVANT_ATTEND_THREADS) {
            float x = 0;
#pragma unroll
            for (uint32_t i = 0; i < KVANT_ATTEND_WARPS; i++)
                x = __fmaf_rn(((const float *)(sums + i * warp_bytes))[r * dim + c], factor[i], x);
            *kvant_global<float>(partial + 4 * (2 + c)) = x;
        }
        if (threadIdx.x == 0) {
            *kvant_global<float>(partial) = largest;
            *kvant_global<float>(partial + 4) = sum;
        }
    }
}

/* The sums of both column groups and of minima become one, in the warp's memory: [8][value dim]. */
template <uint32_t PAIRS>
__device__ __forceinline__ void kvant_attend_gather(const kvant_affine &codes, const kvant_attend_warp &w,
                                                    const float (&acc)[PAIRS][2][4]) {
    const uint32_t dim = codes.shape.head_dim;
    float least[PAIRS][2], *out = (float *)w.own();
#pragma unroll
    for (uint32_t p = 0; p < PAIRS; p++) {
        uint32_t channel = min(32 * p + 4 * w.g(), dim - 4), group = channel / codes.shape.group;
        const float *minima = w.minima() + group / w.slots() * KVANT_ATTEND_COLUMNS +
                              group % w.slots() * w.wide() + w.sum_row();
        least[p][0] = minima[0];
        least[p][1] = minima[1];
    }
    __syncwarp();
#pragma unroll
    for (uint32_t p = 0; p < PAIRS; p++) {
#pragma unroll
        for (uint32_t c = 0; c < 2; c++) {
            float x[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                float other = __shfl_xor_sync(0xffffffffu, acc[p][c][i], 2);
                x[i] = __fadd_rn(w.slots() == 2 ? __fadd_rn(acc[p][c][i], other) : acc[p][c][i], least[p][c]);
            }
            if (32 * p + 4 * w.g() < dim && w.sum_slot() == 0)
                *(float4 *)(out + (w.sum_row() + c) * dim + 32 * p + 4 * w.g()) =
                    make_float4(x[0], x[1], x[2], x[3]);
        }
    }
}

/* What a warp makes of its tiles, for one set of rows. */
template <typename CODES, uint32_t PAIRS>
__device__ __forceinline__ void kvant_attend_walk_tiles(const kvant_gpu_call &call,
                                                        const kvant_attend_warp &w, kvant_attend_block &block,
                                                        bool plainly) {
    const uint32_t log_lanes = 5 - w.log_wide, row = w.lane >> log_lanes; /* lanes that look after a row */
    float acc[PAIRS][2][4];
#pragma unroll
    for (uint32_t i = 0; i < PAIRS * 8; i++) acc[i / 8][i / 4 % 2][i % 4] = 0;
    const uint32_t minima = (block.value.groups + w.slots() - 1) / w.slots() * KVANT_ATTEND_COLUMNS;
    for (uint32_t i = w.lane; i < minima; i += 32) w.minima()[i] = 0;
    kvant_attend_state state = {__uint_as_float(0xff800000u), 0, block.bias[row],
                                kvant_attend_row_position(block.rows, row)};
    kvant_attend_turns turns = {threadIdx.x / 32, 0, 0};
    bool begun = false;
#pragma unroll 1
    for (uint32_t turn = 0;; turn ^= 1) {
        const kvant_attend_tile &tile = block.tiles[threadIdx.x / 32][turn];
        kvant_attend_tile &after = block.tiles[threadIdx.x / 32][turn ^ 1];
        bool more = turns.next(block, w.lane == 0, after);
        kvant_copy_wait_but_one();
        __syncwarp();
        if (begun)
            kvant_attend_score_tile<CODES>(call.state, block.key, w.anew(), block.key_octets, tile,
                                           block.item.kv_head, plainly);
        __syncwarp();
        if (more && after.coded) kvant_attend_fetch_keys(block.key, w.anew(), after, block.item.kv_head);
        kvant_copy_commit();
        if (begun) {
            float shrink;
            kvant_attend_weigh(block.layer.soft_cap, block.rows, tile, w.anew(), state, shrink);
            if (__any_sync(0xffffffffu, shrink < 1)) {
                float column[2];
#pragma unroll
                for (uint32_t c = 0; c < 2; c++)
                    column[c] = __shfl_sync(0xffffffffu, shrink, (w.sum_row() + c) << log_lanes);
                float mine = __shfl_sync(0xffffffffu, shrink, (w.lane & (w.wide() - 1)) << log_lanes);
#pragma unroll
                for (uint32_t i = 0; i < PAIRS * 8; i++)
                    acc[i / 8][i / 4 % 2][i % 4] = __fmul_rn(acc[i / 8][i / 4 % 2][i % 4], column[i / 4 % 2]);
#pragma unroll 1
                for (uint32_t i = w.lane; i < minima; i += 32) w.minima()[i] = __fmul_rn(w.minima()[i], mine);
            }
            kvant_copy_wait_but_one();
            __syncwarp();
            kvant_attend_mix_tile<CODES>(block.layer.value_state, block.value, w.anew(),
                                         block.value_octets[0], tile, block.item.kv_head, plainly, acc);
            __syncwarp();
        }
        if (more && after.coded) kvant_attend_fetch_values(block.value, w.anew(), after, block.item.kv_head);
        kvant_copy_commit();
        if (!more) break;
        begun = true;
    }
    if ((w.lane & ((1u << log_lanes) - 1)) == 0) {
        block.largest[threadIdx.x / 32][row] = state.largest;
        block.sum[threadIdx.x / 32][row] = state.sum;
    }
    kvant_attend_gather(block.value, w, acc);
}

template <typename CODES, uint32_t DIM>
__device__ __forceinline__ void kvant_attend_codes(const kvant_gpu_call &call) {
    __shared__ kvant_attend_block block;
    if (threadIdx.x == 0) {
        block.layer = *kvant_global<const kvant_gpu_layer>(call.layer);
        block.key = CODES(call.state).affine();
        block.value = CODES(block.layer.value_state).affine();
        kvant_affine_place(block.key, block.value);
    }
    __syncthreads();
    const uint32_t warp_bytes = kvant_attend_warp_bytes(&block.key.shape, &block.value.shape);
    unsigned char *dynamic = (unsigned char *)kvant_attend_dynamic;
    unsigned char *sums = dynamic + KVANT_ATTEND_ROWS * block.key.query_stride * 4;
    kvant_attend_warp w = {threadIdx.x % 32, 3, (uint32_t)(sums - dynamic) + threadIdx.x / 32 * warp_bytes};
    kvant_attend_find_octets(block.key.shape, block.value.shape, block);
#pragma unroll 1
    for (uint32_t i = blockIdx.x; i < *kvant_global<const uint32_t>(call.job_count); i += gridDim.x) {
        if (threadIdx.x == 0) {
            block.item = kvant_global<const kvant_gpu_item>(call.jobs)[i];
            block.rows.group = block.layer.q_heads / CODES(call.state).heads;
            block.rows.position = block.item.query_position;
            block.rows.window = block.layer.window;
        }
        __syncthreads();
        const uint32_t rows = block.item.positions * block.rows.group;
#pragma unroll 1
        for (uint32_t first = 0; first < rows; first += KVANT_ATTEND_ROWS) {
            const uint32_t count = min(rows - first, (uint32_t)KVANT_ATTEND_ROWS);
            if (threadIdx.x == 0) {
                block.rows.first = first;
                block.rows.count = count;
                block.least = kvant_attend_row_position(block.rows, 0);
                block.most = kvant_attend_row_position(block.rows, count - 1);
            }
            __syncthreads();
            w.log_wide = count <= 4 ? 2 : 3;
            bool finite =
                kvant_attend_fetch_queries(CODES(call.state).dtype, w.wide(), (float *)dynamic, block);
            bool plainly = __syncthreads_or(!finite);
            kvant_attend_walk_tiles<CODES, DIM / 32>(call, w, block, plainly);
            __syncthreads();
            kvant_attend_merge(sums, warp_bytes, block);
            __syncthreads();
        }
    }
}

#endif
