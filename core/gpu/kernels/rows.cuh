/* kvant_core_rows: rows from one place to another, and what the host does to them on the way
 * (pipeline/codec_rows.h), in the same floats.
 *
 * A thread takes two octets of channels of one token, in every head or in every slices-th one: two that
 * turn with each other (NEOX: 8 channels and their partners half the turning channels further on; GPTJ:
 * partners lie within an octet), or two that do not turn. So a token's cosines and sines, whose angles are
 * joined in double, are made once for all heads. Octets of neighbouring threads are neighbours.
 */
#ifndef KVANT_CORE_ROWS_CUH
#define KVANT_CORE_ROWS_CUH

#include "gpu/core_kernels.h"

#include <kvant/kit/rows.cuh>

enum { CORE_TURN_PERIOD = 64 }; /* KVANT_TURN_PERIOD of pipeline/turns.h */

__device__ __forceinline__ uint64_t core_address(const kvant_gpu_view &view, uint32_t token, uint32_t head,
                                                 uint32_t channel) {
    return view.data +
           (uint64_t)(view.token_stride * token + view.head_stride * head + view.channel_stride * channel);
}

/* ---- Parts of a row ------------------------------------------------------------------------------------ */

/* How a row is cut: the first `turning` parts turn, then come `still` ones. */
struct core_cut {
    uint32_t pairs, turning, still;
    bool neox;
};

__device__ __forceinline__ core_cut core_cut_of(const core_rows_job &job) {
    bool turns = (job.flags & (CORE_ROWS_TURN | CORE_ROWS_UNTURN)) != 0 && job.rope_style != KVANT_ROPE_NONE;
    core_cut cut;
    cut.neox = job.rope_style == KVANT_ROPE_NEOX;
    cut.pairs = turns ? job.rotary_dim / 2 : 0;
    cut.turning = (cut.pairs + 7) / 8;
    cut.still = (job.dim - 2 * cut.pairs + 15) / 16;
    return cut;
}

/* Two octets: first channels, how many channels they have (0 to 8), and the pairs of their first channels. */
struct core_part {
    uint32_t channel[2], count[2], pair[2];
    bool turns;
};

__device__ __forceinline__ core_part core_part_of(const core_rows_job &job, const core_cut &cut,
                                                  uint32_t index) {
    core_part part;
    part.turns = index < cut.turning;
    uint32_t begin = part.turns ? 0 : 2 * cut.pairs, end = part.turns ? 2 * cut.pairs : job.dim;
    uint32_t number = part.turns ? index : index - cut.turning;
    uint32_t step = part.turns && cut.neox ? cut.pairs : 8 * (part.turns ? cut.turning : cut.still);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t from = begin + 8 * number + i * step;
        uint32_t to = part.turns && cut.neox && i == 0 ? cut.pairs : end;
        part.channel[i] = from;
        part.count[i] = from < to ? min(to - from, 8u) : 0;
        part.pair[i] = cut.neox ? 8 * number : from / 2;
    }
    return part;
}

/* ---- Turns --------------------------------------------------------------------------------------------- */

/* Of each thread's eight pairs; it alone reads them again, so that they need no registers. */
struct core_turns {
    float cosine[8][CORE_ROWS_THREADS], sine[8][CORE_ROWS_THREADS];
};

/* Eight pairs: 8 from pair[0] on, or 4 from each. Those that do not exist turn by nothing. */
__device__ __forceinline__ void core_load_turns(const core_rows_job &job, const core_cut &cut,
                                                const core_part &part, uint64_t position, core_turns &turns) {
    uint64_t multiple = position / CORE_TURN_PERIOD - job.first_position / CORE_TURN_PERIOD;
    const double2 *base = kvant_global<const double2>(job.turn_bases) + multiple * cut.pairs;
    const double2 *offset =
        kvant_global<const double2>(job.turn_offsets) + position % CORE_TURN_PERIOD * cut.pairs;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
        uint32_t pair = cut.neox ? part.pair[0] + k : part.pair[k / 4] + k % 4;
        if (pair < cut.pairs) {
            double2 b = base[pair], o = offset[pair];
            turns.cosine[k][threadIdx.x] =
                __double2float_rn(__dsub_rn(__dmul_rn(b.x, o.x), __dmul_rn(b.y, o.y)));
            turns.sine[k][threadIdx.x] =
                __double2float_rn(__dadd_rn(__dmul_rn(b.y, o.x), __dmul_rn(b.x, o.y)));
        } else {
            turns.cosine[k][threadIdx.x] = 1;
            turns.sine[k][threadIdx.x] = 0;
        }
    }
}

__device__ __forceinline__ void core_turn_pair(bool back, float magnitude, float cosine, float sine, float &x,
                                               float &y) {
    float a = x, b = y;
    if (!back) {
        x = __fmul_rn(__fsub_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)), magnitude);
        y = __fmul_rn(__fadd_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine)), magnitude);
    } else {
        x = __fdiv_rn(__fadd_rn(__fmul_rn(a, cosine), __fmul_rn(b, sine)), magnitude);
        y = __fdiv_rn(__fsub_rn(__fmul_rn(b, cosine), __fmul_rn(a, sine)), magnitude);
    }
}

__device__ __forceinline__ void core_turn(const core_rows_job &job, const core_cut &cut,
                                          const core_turns &turns, float (&x)[2][8]) {
    bool back = (job.flags & CORE_ROWS_UNTURN) != 0;
    float magnitude = job.magnitude;
    if (cut.neox) {
#pragma unroll
        for (uint32_t k = 0; k < 8; k++)
            core_turn_pair(back, magnitude, turns.cosine[k][threadIdx.x], turns.sine[k][threadIdx.x], x[0][k],
                           x[1][k]);
    } else {
#pragma unroll
        for (uint32_t k = 0; k < 8; k++)
            core_turn_pair(back, magnitude, turns.cosine[k][threadIdx.x], turns.sine[k][threadIdx.x],
                           x[k / 4][k % 4 * 2], x[k / 4][k % 4 * 2 + 1]);
    }
}

/* ---- Numbers ------------------------------------------------------------------------------------------- */

/* What a thread has found. */
struct core_found {
    uint64_t first_not_finite;
    uint32_t replaced, saturated;
};

/* `index`: of the octet's first channel within the rows. */
__device__ __forceinline__ void core_look(const float (&x)[8], uint64_t index, core_found &found) {
    bool finite = true;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) finite = finite && kvant_is_finite(x[k]);
    if (finite) return;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
        if (!kvant_is_finite(x[k])) found.first_not_finite = min(found.first_not_finite, index + k);
}

__device__ __forceinline__ uint32_t core_replace(float (&x)[8], uint32_t dtype) {
    uint32_t largest = __float_as_uint(kvant_largest(dtype)), replaced = 0;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
        uint32_t bits = __float_as_uint(x[k]), magnitude = bits & 0x7fffffffu;
        if (magnitude < 0x7f800000u) continue;
        x[k] = __uint_as_float(magnitude > 0x7f800000u ? 0 : (bits & 0x80000000u) | largest);
        replaced++;
    }
    return replaced;
}

/* What rounds to an infinity of the type, infinity itself included. NaN stays. */
__device__ __forceinline__ uint32_t core_saturate(float (&x)[8], uint32_t dtype) {
    uint32_t largest = __float_as_uint(kvant_largest(dtype)), saturated = 0;
    uint32_t infinite = dtype == KVANT_DTYPE_F32   ? 0x7f800000u
                        : dtype == KVANT_DTYPE_F16 ? 0x477ff000u  /* 65520 */
                                                   : 0x7f7f8000u; /* 2^128 - 2^119 */
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
        uint32_t bits = __float_as_uint(x[k]), magnitude = bits & 0x7fffffffu;
        if (magnitude < infinite || magnitude > 0x7f800000u) continue;
        x[k] = __uint_as_float((bits & 0x80000000u) | largest);
        saturated++;
    }
    return saturated;
}

/* ---- Copies -------------------------------------------------------------------------------------------- */

template <typename WORD>
__device__ __forceinline__ void core_copy_words(uint64_t from, int64_t from_stride, uint64_t to,
                                                int64_t to_stride, uint32_t count) {
    for (uint32_t k = 0; k < count; k++)
        *kvant_global<WORD>(to + (uint64_t)(to_stride * k)) =
            *kvant_global<const WORD>(from + (uint64_t)(from_stride * k));
}

/* `count` elements as they are, 16 bytes at a time where they lie so. */
__device__ __forceinline__ void core_copy_octet(uint32_t dtype, uint64_t from, int64_t from_stride,
                                                uint64_t to, int64_t to_stride, uint32_t count) {
    uint32_t bytes = kvant_element_bytes(dtype);
    if (kvant_octet_is_whole(dtype, from, from_stride, count) &&
        kvant_octet_is_whole(dtype, to, to_stride, count)) {
        uint4 a = *kvant_global<const uint4>(from), b = make_uint4(0, 0, 0, 0);
        if (bytes == 4) b = *kvant_global<const uint4>(from + 16);
        *kvant_global<uint4>(to) = a;
        if (bytes == 4) *kvant_global<uint4>(to + 16) = b;
        return;
    }
    uint64_t all = from | to | (uint64_t)from_stride | (uint64_t)to_stride;
    if (bytes == 4 && all % 4 == 0) {
        core_copy_words<uint32_t>(from, from_stride, to, to_stride, count);
    } else if (bytes == 2 && all % 2 == 0) {
        core_copy_words<uint16_t>(from, from_stride, to, to_stride, count);
    } else {
        for (uint32_t i = 0; i < bytes; i++)
            core_copy_words<uint8_t>(from + i, from_stride, to + i, to_stride, count);
    }
}

/* ---- A unit of work ------------------------------------------------------------------------------------ */

__device__ __forceinline__ void core_add_means(const core_rows_job &job, const core_part &part, uint32_t head,
                                               float sign, float (&x)[2][8]) {
    const float *means = kvant_global<const float>(job.center) + (uint64_t)head * job.dim;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
#pragma unroll
        for (uint32_t k = 0; k < 8; k++)
            if (k < part.count[i]) x[i][k] = __fadd_rn(x[i][k], sign * means[part.channel[i] + k]);
    }
}

/* What the host does to rows of floats. */
__device__ __forceinline__ void core_change(const core_rows_job &job, const core_cut &cut,
                                            const core_part &part, const core_turns &turns, uint32_t head,
                                            float (&x)[2][8], core_found &found) {
    if (job.flags & CORE_ROWS_REPLACE) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) found.replaced += core_replace(x[i], job.from_dtype);
    }
    if (job.flags & CORE_ROWS_ADD) core_add_means(job, part, head, 1, x);
    if (part.turns) core_turn(job, cut, turns, x);
    if (job.flags & CORE_ROWS_SUBTRACT) core_add_means(job, part, head, -1, x);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) found.saturated += core_saturate(x[i], job.to_dtype);
}

/* One part of one token and head. `token` is where the row goes, `source` where it comes from. */
__device__ __forceinline__ void core_move(const core_rows_job &job, const core_cut &cut,
                                          const core_part &part, const core_turns &turns, uint32_t token,
                                          uint32_t source, uint32_t head, core_found &found) {
    bool plain = job.flags == 0 && job.from_dtype == job.to_dtype;
    float x[2][8];
    if (!plain || job.status != 0) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            kvant_load_octet(job.from_dtype, core_address(job.from, source, head, part.channel[i]),
                             job.from.channel_stride, part.count[i], x[i]);
            core_look(x[i], ((uint64_t)source * job.heads + head) * job.dim + part.channel[i], found);
        }
    }
    if (job.to.data == 0) return;
    if (!plain) {
        core_found again = found; /* what stands in is counted once */
        core_change(job, cut, part, turns, head, x, again);
        if (token == source) found = again;
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t to = core_address(job.to, token, head, part.channel[i]);
        if (plain)
            core_copy_octet(job.from_dtype, core_address(job.from, source, head, part.channel[i]),
                            job.from.channel_stride, to, job.to.channel_stride, part.count[i]);
        else
            kvant_store_octet(job.to_dtype, to, job.to.channel_stride, part.count[i], x[i]);
    }
}

__device__ __forceinline__ void core_report(const core_rows_job &job, const core_found &found) {
    if (job.status == 0) return;
    unsigned long long *status = kvant_global<unsigned long long>(job.status);
    if (found.replaced > 0) atomicAdd(&status[0], (unsigned long long)found.replaced);
    if (found.saturated > 0) atomicAdd(&status[1], (unsigned long long)found.saturated);
    if (found.first_not_finite != ~(uint64_t)0)
        atomicMin(&status[2], (unsigned long long)found.first_not_finite);
}

__device__ __forceinline__ void core_rows_unit(const core_rows_job &job, uint32_t first, core_turns &turns) {
    const core_cut cut = core_cut_of(job);
    uint32_t parts = cut.turning + cut.still;
    uint32_t tokens = min(job.tokens - first, (uint32_t)CORE_ROWS_CHUNK), items = tokens * parts;
    uint32_t slices = items < CORE_ROWS_THREADS ? min(CORE_ROWS_THREADS / items, job.heads) : 1;
    core_found found = {~(uint64_t)0, 0, 0};
    for (uint32_t i = threadIdx.x; i < items * slices; i += CORE_ROWS_THREADS) {
        uint32_t token = first + i / parts % tokens, source = max(token, job.stand_in);
        const core_part part = core_part_of(job, cut, i % parts);
        if (part.turns) core_load_turns(job, cut, part, job.first_position + source, turns);
        for (uint32_t head = i / items; head < job.heads; head += slices)
            core_move(job, cut, part, turns, token, source, head, found);
    }
    core_report(job, found);
}

__device__ __forceinline__ void core_rows(const kvant_gpu_call &call) {
    __shared__ core_rows_job job;
    __shared__ core_turns turns;
    static_assert(sizeof job % 8 == 0 && sizeof job / 8 <= CORE_ROWS_THREADS, "a word for each thread");
    const core_rows_head head = *kvant_global<const core_rows_head>(call.job_count);
    uint64_t all = (uint64_t)head.jobs * head.units;
    for (uint64_t unit = blockIdx.x; unit < all; unit += gridDim.x) {
        uint32_t number = (uint32_t)unit / head.units;
        uint32_t first = ((uint32_t)unit % head.units) * CORE_ROWS_CHUNK;
        __syncthreads();
        if (threadIdx.x < sizeof job / 8)
            ((uint64_t *)&job)[threadIdx.x] =
                kvant_global<const uint64_t>(call.jobs + number * sizeof job)[threadIdx.x];
        __syncthreads();
        if (first < job.tokens) core_rows_unit(job, first, turns);
    }
}

#endif
