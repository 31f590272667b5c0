/* kvant/kit/attend_fold.cuh: scores and mix of a coded tile by one warp: scales folded into queries and
 * weights, products of digits with codes. For kit/attend_codes.cuh, which says what is computed and how
 * exactly.
 */
#ifndef KVANT_KIT_ATTEND_FOLD_CUH
#define KVANT_KIT_ATTEND_FOLD_CUH

#include "attend_lines.cuh"

struct kvant_affine {
    kvant_attend_side shape;
    uint32_t meta;         /* dtype of scales and minima */
    uint32_t plane_stride; /* bytes from a row of scales to the next */
    uint64_t head_bytes;   /* of an extent, from one kv head to the next */
    uint64_t matrix_bytes; /* values: of the codes of 64 tokens */
    uint64_t scale_offset; /* within a head; multiples of 16 */
    uint64_t min_offset;
    float levels;  /* the largest code */
    float largest; /* of the rows' type: a group is affine if levels * scale + min does not exceed it */

    /* From the above, by kvant_affine_place. */
    kvant_tile_codes tile;
    uint32_t room;   /* tokens of a tile at most */
    uint32_t groups; /* of channels; keys: of tokens of a tile at most */
    uint32_t code_bytes, plane_bytes;
    uint32_t at; /* of the tile in a warp's memory */
    uint32_t query_stride;
};

__device__ __forceinline__ void kvant_affine_place(kvant_affine &key, kvant_affine &value) {
    const kvant_attend_side &k = key.shape, &v = value.shape;
    key.room = kvant_attend_tile_tokens(&k);
    key.tile = kvant_tile_codes_of(k.head_dim, k.bits);
    key.groups = kvant_attend_key_groups(&k);
    key.code_bytes = kvant_attend_key_code_bytes(&k);
    key.plane_bytes = kvant_attend_key_plane_bytes(&k);
    key.at = kvant_attend_keys_at(&v);
    key.query_stride = kvant_attend_query_stride(&k);
    value.room = kvant_attend_tile_tokens(&v);
    value.tile = kvant_tile_codes_of(value.room, v.bits);
    value.groups = kvant_attend_value_groups(&v);
    value.code_bytes = kvant_attend_value_code_bytes(&v);
    value.plane_bytes = kvant_attend_value_plane_bytes(&v);
    value.at = kvant_attend_values_at(&k, &v);
    value.query_stride = key.query_stride;
}

/* ---- A warp -------------------------------------------------------------------------------------------- */

extern __shared__ uint4 kvant_attend_dynamic[];

/* x, of which the compiler knows nothing: what is computed from it is not kept in a register from one tile
 * to the next, where it would take the place of sums. */
__device__ __forceinline__ uint32_t kvant_attend_anew(uint32_t x) {
    uint32_t y;
    asm volatile("mov.b32 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Lane 4g + t. */
struct kvant_attend_warp {
    uint32_t lane;
    uint32_t log_wide; /* rows of a column group: 4 or 8 */
    uint32_t at;       /* of the warp's memory (attend_shape.h) */

    __device__ __forceinline__ kvant_attend_warp anew() const {
        kvant_attend_warp w = {kvant_attend_anew(lane), kvant_attend_anew(log_wide), kvant_attend_anew(at)};
        return w;
    }
    __device__ __forceinline__ const float *queries() const { /* [8][query_stride] */
        return (const float *)kvant_attend_dynamic;
    }
    __device__ __forceinline__ unsigned char *own() const {
        return (unsigned char *)kvant_attend_dynamic + at;
    }

    __device__ __forceinline__ uint32_t g() const { return lane / 4; }
    __device__ __forceinline__ uint32_t t() const { return lane % 4; }
    __device__ __forceinline__ uint32_t wide() const { return 1u << log_wide; }
    __device__ __forceinline__ uint32_t slots() const { /* groups side by side */
        return 8u >> log_wide;
    }
    /* Of column g, of which this lane makes B. */
    __device__ __forceinline__ uint32_t column_row() const { return g() & (wide() - 1); }
    __device__ __forceinline__ uint32_t column_slot() const { return g() >> log_wide; }
    /* Of column 2t, the first of two of which it has C; the other one is of the next row. */
    __device__ __forceinline__ uint32_t sum_row() const { return 2 * t() & (wide() - 1); }
    __device__ __forceinline__ uint32_t sum_slot() const { return 2 * t() >> log_wide; }
    __device__ __forceinline__ float *weights(uint32_t row) const { /* logits before */
        return (float *)own() + row * KVANT_ATTEND_WEIGHTS;
    }
    __device__ __forceinline__ float *minima() const { /* [passes][8]: sums of weights times minima */
        return (float *)(own() + kvant_attend_minima_at());
    }
    __device__ __forceinline__ unsigned char *tile(const kvant_affine &codes) const {
        return own() + codes.at;
    }
};

/* Broadcasts what column 2t and 2t+1's makers have. */
__device__ __forceinline__ void kvant_attend_columns(const kvant_attend_warp &w, float x, float (&two)[2]) {
    two[0] = __shfl_sync(0xffffffffu, x, 8 * w.t());
    two[1] = __shfl_sync(0xffffffffu, x, 8 * w.t() + 4);
}

__device__ __forceinline__ float kvant_attend_quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float kvant_attend_quad_sum(float x) {
    x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* A column's numbers times scales, on their way to digits, and what else a column needs. */
struct kvant_attend_fold {
    float product[KVANT_ATTEND_STEPS][8];
    float most;          /* |product| */
    float sum;           /* of numbers times minima */
    uint32_t scale, min; /* the largest, in magnitude: kvant_tile_numbers */
};

/* Octets t and 4 + t of a row of numbers, times a row of scales. From `count` on there are no scales, and
 * numbers are 0. */
template <uint32_t META, bool UNSIGNED>
__device__ __forceinline__ void kvant_attend_fold_as(kvant_attend_fold &f, uint32_t t, const float *numbers,
                                                     const unsigned char *scales, uint32_t plane_bytes,
                                                     uint32_t count) {
    f.most = f.sum = 0;
    f.scale = f.min = 0;
#pragma unroll
    for (uint32_t s = 0; s < KVANT_ATTEND_STEPS; s++) {
        uint32_t c = 32 * s + 8 * t;
        const unsigned char *at = scales + min(c, count - 8) * (META == KVANT_DTYPE_F32 ? 4 : 2);
        float x[8];
        float4 a = *(const float4 *)(numbers + c), b = *(const float4 *)(numbers + c + 4);
        const float number[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        kvant_tile_numbers<META, true>(at, x, f.scale);
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            f.product[s][k] = __fmul_rn(number[k], x[k]);
            f.most = fmaxf(f.most, UNSIGNED ? f.product[s][k] : fabsf(f.product[s][k]));
        }
        kvant_tile_numbers<META, false>(at + plane_bytes, x, f.min);
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) f.sum = __fmaf_rn(number[k], x[k], f.sum);
    }
}
template <bool UNSIGNED>
__device__ __forceinline__ void kvant_attend_fold_row(kvant_attend_fold &f, uint32_t meta, uint32_t t,
                                                      const float *numbers, const unsigned char *scales,
                                                      uint32_t plane_bytes, uint32_t count) {
    if (meta == KVANT_DTYPE_F16)
        kvant_attend_fold_as<KVANT_DTYPE_F16, UNSIGNED>(f, t, numbers, scales, plane_bytes, count);
    else if (meta == KVANT_DTYPE_BF16)
        kvant_attend_fold_as<KVANT_DTYPE_BF16, UNSIGNED>(f, t, numbers, scales, plane_bytes, count);
    else
        kvant_attend_fold_as<KVANT_DTYPE_F32, UNSIGNED>(f, t, numbers, scales, plane_bytes, count);
}

/* Joins what four lanes found of a column. False: some column of the warp cannot be done this way. */
__device__ __forceinline__ bool kvant_attend_fold_done(kvant_attend_fold &f, const kvant_affine &codes) {
    f.most = kvant_attend_quad_max(f.most);
    f.sum = kvant_attend_quad_sum(f.sum);
    float top =
        __fmaf_rn(codes.levels, kvant_tile_most(codes.meta, f.scale), kvant_tile_most(codes.meta, f.min));
    return __all_sync(0xffffffffu, top <= codes.largest && f.most < __uint_as_float(0x7f800000u));
}

/* Sums of the three digits for rows 4g + i, columns 2t and 2t+1 of a pair of products: low, middle, high. */
struct kvant_attend_sums {
    int32_t digit[3][2][4];
};
template <bool SIGNED>
__device__ __forceinline__ void kvant_attend_multiply(kvant_attend_sums &sums, bool first,
                                                      const uint32_t (&a)[8], const uint32_t (&b)[3][2]) {
    const int32_t zero[4] = {0, 0, 0, 0};
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t a0 = a[2 * i], a1 = a[2 * i + 1], a2 = a[4 + 2 * i], a3 = a[5 + 2 * i];
        if (first) {
            kvant_mma_bytes<false>(sums.digit[0][i], a0, a1, a2, a3, b[0][0], b[0][1], zero);
            kvant_mma_bytes<false>(sums.digit[1][i], a0, a1, a2, a3, b[1][0], b[1][1], zero);
            kvant_mma_bytes<SIGNED>(sums.digit[2][i], a0, a1, a2, a3, b[2][0], b[2][1], zero);
        } else {
            kvant_mma_bytes<false>(sums.digit[0][i], a0, a1, a2, a3, b[0][0], b[0][1], sums.digit[0][i]);
            kvant_mma_bytes<false>(sums.digit[1][i], a0, a1, a2, a3, b[1][0], b[1][1], sums.digit[1][i]);
            kvant_mma_bytes<SIGNED>(sums.digit[2][i], a0, a1, a2, a3, b[2][0], b[2][1], sums.digit[2][i]);
        }
    }
}
/* Of row 4g + i, column 2t + c. */
__device__ __forceinline__ float kvant_attend_joined(const kvant_attend_sums &sums, uint32_t i, uint32_t c) {
    uint32_t k = i % 2 * 2 + c;
    return kvant_join_digits(sums.digit[0][i / 2][k], sums.digit[1][i / 2][k], sums.digit[2][i / 2][k]);
}

/* Which octet a lane takes in a step. Behind the last its digits are 0. */
__device__ __forceinline__ uint32_t kvant_attend_octet(const kvant_attend_warp &w, uint32_t step,
                                                       uint32_t count) {
    return min(4 * step + w.t(), count / 8 - 1);
}

/* ---- Coded tiles --------------------------------------------------------------------------------------- */

/* Logits of the tokens of groups [base, base + slots) of a tile; false if they must be found otherwise.
 * [first_group, last_group]: of the tile, whose scales lie side by side. */
__device__ __forceinline__ bool kvant_attend_score_groups(const kvant_affine &codes,
                                                          const kvant_attend_warp &w, const uint2 *octets,
                                                          uint32_t first, uint32_t tokens, uint32_t base,
                                                          uint32_t first_group, uint32_t last_group) {
    const uint32_t dim = codes.shape.head_dim, group = codes.shape.group, bits = codes.tile.bits;
    const uint32_t bytes = codes.shape.meta_bytes, mask = codes.tile.mask;
    const unsigned char *scales = w.tile(codes) + codes.code_bytes +
                                  (min(base + w.column_slot(), last_group) - first_group) * dim * bytes;
    const float *query = w.queries() + w.column_row() * codes.query_stride;
    const uint32_t stride = codes.tile.stride, high_stride = codes.tile.high_stride;
    const unsigned char *high = w.tile(codes) + (tokens + 15) / 16 * stride;
    /* tokens of the tile that this lane's columns are about */
    const uint32_t mine = (base + w.sum_slot()) * group - first;
    const int32_t from = (int32_t)(base * group - first);
    const int32_t to = (int32_t)((min(base + w.slots() - 1, last_group) + 1) * group - first);
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < dim; chunk += KVANT_ATTEND_CHUNK) {
        const uint32_t count = min(dim - chunk, (uint32_t)KVANT_ATTEND_CHUNK);
        kvant_attend_fold fold;
        kvant_attend_fold_row<false>(fold, codes.meta, w.t(), query + chunk, scales + chunk * bytes,
                                     codes.plane_bytes, count);
        if (!kvant_attend_fold_done(fold, codes)) return false;
        kvant_exponent exponent = kvant_exponent_of(fold.most, 22);
        uint32_t b[KVANT_ATTEND_STEPS][3][2];
        kvant_tile_place place[KVANT_ATTEND_STEPS];
#pragma unroll
        for (uint32_t s = 0; s < KVANT_ATTEND_STEPS; s++) {
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                uint32_t v[4];
#pragma unroll
                for (uint32_t k = 0; k < 4; k++)
                    v[k] = kvant_fixed_signed(fold.product[s][4 * half + k], exponent.up);
                kvant_digits(v, b[s][0][half], b[s][1][half], b[s][2][half]);
            }
            place[s] = kvant_tile_place_of(octets[kvant_attend_octet(w, s, count) + chunk / 8].x, w.g() % 4);
        }
        float down[2], sum[2];
        kvant_attend_columns(w, exponent.down, down);
        kvant_attend_columns(w, fold.sum, sum);
#pragma unroll 1
        for (uint32_t pair = 0; pair < tokens; pair += 32) {
            if ((int32_t)pair + 32 <= from || (int32_t)pair >= to) continue;
            uint32_t row = min(pair / 16 + w.g() / 4, (tokens - 1) / 16);
            const unsigned char *low_row = w.tile(codes) + row * stride, *high_row = high + row * high_stride;
            kvant_attend_sums sums;
#pragma unroll
            for (uint32_t s = 0; s < KVANT_ATTEND_STEPS; s++) {
                uint32_t a[8];
                kvant_tile_load(low_row, high_row, bits, mask, place[s],
                                octets + chunk / 8 + kvant_attend_octet(w, s, count), w.g() % 4, a);
                kvant_attend_multiply<true>(sums, s == 0, a, b[s]);
            }
            uint32_t token = pair + 4 * w.g();
            if (token - mine >= group) continue; /* another group's, whose scales these are not */
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                float4 *out = (float4 *)(w.weights(w.sum_row() + c) + token);
                float x[4];
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    x[i] = __fmaf_rn(kvant_attend_joined(sums, i, c), down[c], sum[c]);
                if (chunk > 0) {
                    float4 y = *out;
                    x[0] = __fadd_rn(x[0], y.x);
                    x[1] = __fadd_rn(x[1], y.y);
                    x[2] = __fadd_rn(x[2], y.z);
                    x[3] = __fadd_rn(x[3], y.w);
                }
                *out = make_float4(x[0], x[1], x[2], x[3]);
            }
        }
    }
    return true;
}

/* Adds values of channel groups [base, base + slots) times weights to the sums. */
template <uint32_t PAIRS>
__device__ __forceinline__ bool kvant_attend_mix_groups(const kvant_affine &codes, const kvant_attend_warp &w,
                                                        const uint2 *octets, uint32_t tokens, uint32_t base,
                                                        float (&acc)[PAIRS][2][4]) {
    const uint32_t dim = codes.shape.head_dim, group = codes.shape.group, bits = codes.tile.bits;
    const uint32_t bytes = codes.shape.meta_bytes, mask = codes.tile.mask;
    const unsigned char *scales =
        w.tile(codes) + codes.code_bytes + min(base + w.column_slot(), codes.groups - 1) * codes.room * bytes;
    const float *weight = w.weights(w.column_row());
    kvant_attend_fold fold;
    kvant_attend_fold_row<true>(fold, codes.meta, w.t(), weight, scales, codes.plane_bytes, tokens);
    if (!kvant_attend_fold_done(fold, codes)) return false;
    kvant_exponent exponent = kvant_exponent_of(fold.most, 23);
    uint32_t b[KVANT_ATTEND_STEPS][3][2];
    kvant_tile_place place[KVANT_ATTEND_STEPS];
#pragma unroll
    for (uint32_t s = 0; s < KVANT_ATTEND_STEPS; s++) {
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t v[4];
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) v[k] = kvant_fixed(fold.product[s][4 * half + k], exponent.up);
            kvant_digits(v, b[s][0][half], b[s][1][half], b[s][2][half]);
        }
        place[s] = kvant_tile_place_of(octets[kvant_attend_octet(w, s, tokens)].x, w.g() % 4);
    }
    if (w.t() == 0) {
        float *sum = w.minima() + base / w.slots() * KVANT_ATTEND_COLUMNS + w.g();
        *sum = __fadd_rn(*sum, fold.sum);
    }
    float down[2];
    kvant_attend_columns(w, exponent.down, down);
    const uint32_t stride = codes.tile.stride, high_stride = codes.tile.high_stride;
    const unsigned char *high = w.tile(codes) + (dim + 15) / 16 * stride;
    const uint32_t from = base * group, to = min(from + w.slots() * group, dim);
    const uint32_t mine = from + w.sum_slot() * group;
#pragma unroll
    for (uint32_t p = 0; p < PAIRS; p++) {
        if (32 * p + 32 > from && 32 * p < to) {
            uint32_t row = min(2 * p + w.g() / 4, (dim - 1) / 16);
            const unsigned char *low_row = w.tile(codes) + row * stride, *high_row = high + row * high_stride;
            kvant_attend_sums sums;
#pragma unroll
            for (uint32_t s = 0; s < KVANT_ATTEND_STEPS; s++) {
                uint32_t a[8];
                kvant_tile_load(low_row, high_row, bits, mask, place[s],
                                octets + kvant_attend_octet(w, s, tokens), w.g() % 4, a);
                kvant_attend_multiply<false>(sums, s == 0, a, b[s]);
            }
            bool is_mine = 32 * p + 4 * w.g() - mine < group;
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                float unit = is_mine ? down[c] : 0;
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    acc[p][c][i] = __fmaf_rn(kvant_attend_joined(sums, i, c), unit, acc[p][c][i]);
            }
        }
    }
    return true;
}

#endif
