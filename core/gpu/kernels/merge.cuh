/* kvant_core_merge: partials of a row to its output, in the order that core_kernels.h states. Two passes over
 * the partials: their first numbers give the row's largest logit, then each is added times exp(its largest -
 * the row's). Where there are many, the block's warps take a slice each; else a warp takes a row of its own.
 *
 * In a warp a lane has four channels of 128, 32 apart; more channels take more rounds. The weights of 32
 * partials are computed at once, one in a lane.
 */
#ifndef KVANT_CORE_MERGE_CUH
#define KVANT_CORE_MERGE_CUH

#include "gpu/core_kernels.h"

#include <kvant/kit/rows.cuh>
#include <kvant/kit/sum.cuh>

enum { CORE_MERGE_LANE = 4, CORE_MERGE_ROUND = 32 * CORE_MERGE_LANE /* channels */ };

/* What a block's warps tell each other where they share a row. */
struct core_merge_shared {
    float largest[CORE_MERGE_WARPS], sum[CORE_MERGE_WARPS];
    float mixed[CORE_MERGE_WARPS][CORE_MERGE_ROUND];
    uint32_t begin[CORE_MERGE_WARPS]; /* units of jobs before a warp's, while units are dealt out */
};

/* Weighted sums of a slice: `sum` of the partials' sums, in every lane; `mixed` of four channels. */
struct core_merged {
    float sum, mixed[CORE_MERGE_LANE];
};

__device__ __forceinline__ float core_merge_largest(const core_merge_job &job, uint64_t at, uint32_t from,
                                                    uint32_t to) {
    float most = __uint_as_float(0xff800000u);
    for (uint32_t i = from + threadIdx.x % 32; i < to; i += 32)
        most = fmaxf(most, *kvant_global<const float>(at + 4 * (uint64_t)i * job.partial_step));
    __syncwarp();
    return kvant_lanes_max(most, 32);
}

/* Partials from to to - 1 of the row at `at`, channels first, first + 32, .. */
__device__ __forceinline__ core_merged core_merge_slice(const core_merge_job &job, uint64_t at, uint32_t from,
                                                        uint32_t to, float largest, uint32_t first) {
    core_merged merged = {0, {0, 0, 0, 0}};
    for (uint32_t begin = from; begin < to; begin += 32) {
        uint32_t mine = begin + threadIdx.x % 32, count = min(to - begin, 32u);
        float weight = 0, sum = 0;
        if (mine < to) {
            const float *head = kvant_global<const float>(at + 4 * (uint64_t)mine * job.partial_step);
            /* What saw nothing adds nothing, also where nothing was seen at all. */
            bool empty = head[0] == __uint_as_float(0xff800000u) && head[1] == 0;
            weight = empty ? 0.0f : expf(head[0] - largest);
            sum = head[1];
        }
        __syncwarp();
#pragma unroll 4
        for (uint32_t i = 0; i < count; i++) {
            const float *x = kvant_global<const float>(at + 4 * (uint64_t)(begin + i) * job.partial_step) + 2;
            float w = __shfl_sync(0xffffffffu, weight, i);
            merged.sum = __fmaf_rn(w, __shfl_sync(0xffffffffu, sum, i), merged.sum);
#pragma unroll
            for (uint32_t k = 0; k < CORE_MERGE_LANE; k++) {
                uint32_t c = first + 32 * k;
                if (c < job.value_dim) merged.mixed[k] = __fmaf_rn(w, x[c], merged.mixed[k]);
            }
        }
    }
    return merged;
}

/* Four channels of the output, and where they are the first ones the row's log-sum-exp. */
__device__ __forceinline__ void core_merge_write(const core_merge_job &job, uint32_t row, uint32_t first,
                                                 float largest, const core_merged &merged) {
    uint32_t position = row / job.group, head = job.kv_head * job.group + row % job.group;
    bool nothing = largest == __uint_as_float(0xff800000u) && merged.sum == 0;
    uint64_t at =
        job.outputs.data + (uint64_t)(job.outputs.token_stride * position + job.outputs.head_stride * head);
#pragma unroll
    for (uint32_t k = 0; k < CORE_MERGE_LANE; k++) {
        uint32_t c = first + 32 * k;
        if (c < job.value_dim)
            kvant_store_element(job.dtype, at + (uint64_t)(job.outputs.channel_stride * c),
                                nothing ? 0.0f : __fdiv_rn(merged.mixed[k], merged.sum));
    }
    if (first == 0 && job.log_sum_exp != 0)
        *kvant_global<float>(job.log_sum_exp + 4 * ((uint64_t)position * job.q_heads + head)) =
            nothing ? largest : (float)((double)largest + log((double)merged.sum));
}

__device__ __forceinline__ uint64_t core_merge_row_at(const core_merge_job &job, uint32_t row) {
    return job.partial + 4 * (uint64_t)row * job.partial_stride;
}

/* A warp alone. */
__device__ __forceinline__ void core_merge_few(const core_merge_job &job, uint32_t row) {
    uint64_t at = core_merge_row_at(job, row);
    float largest = core_merge_largest(job, at, 0, job.count);
    for (uint32_t round = 0; round < job.value_dim; round += CORE_MERGE_ROUND) {
        uint32_t first = round + threadIdx.x % 32;
        const core_merged merged = core_merge_slice(job, at, 0, job.count, largest, first);
        core_merge_write(job, row, first, largest, merged);
    }
}

/* All warps, a slice each. */
__device__ __forceinline__ void core_merge_many(const core_merge_job &job, uint32_t row,
                                                core_merge_shared &shared) {
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t slice = max((job.count + CORE_MERGE_WARPS - 1) / CORE_MERGE_WARPS, (uint32_t)CORE_MERGE_SLICE);
    uint32_t from = min(warp * slice, job.count), to = min(from + slice, job.count);
    uint64_t at = core_merge_row_at(job, row);
    float own = core_merge_largest(job, at, from, to), largest = own;
    if (lane == 0) shared.largest[warp] = own;
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < CORE_MERGE_WARPS; i++) largest = fmaxf(largest, shared.largest[i]);
    for (uint32_t round = 0; round < job.value_dim; round += CORE_MERGE_ROUND) {
        core_merged merged = core_merge_slice(job, at, from, to, largest, round + lane);
#pragma unroll
        for (uint32_t k = 0; k < CORE_MERGE_LANE; k++) shared.mixed[warp][32 * k + lane] = merged.mixed[k];
        if (lane == 0) shared.sum[warp] = merged.sum;
        __syncthreads();
        if (warp == 0) {
            for (uint32_t other = 1; other < CORE_MERGE_WARPS && other * slice < job.count; other++) {
                merged.sum = __fadd_rn(merged.sum, shared.sum[other]);
#pragma unroll
                for (uint32_t k = 0; k < CORE_MERGE_LANE; k++)
                    merged.mixed[k] = __fadd_rn(merged.mixed[k], shared.mixed[other][32 * k + lane]);
            }
            core_merge_write(job, row, round + lane, largest, merged);
        }
        __syncthreads();
    }
}

/* ---- Units --------------------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t core_merge_rows(const core_merge_job &job) {
    return job.positions * job.group;
}

__device__ __forceinline__ bool core_merge_is_few(const core_merge_job &job) {
    return job.count <= CORE_MERGE_SLICE;
}

__device__ __forceinline__ uint32_t core_merge_units(const core_merge_job &job) {
    uint32_t rows = core_merge_rows(job);
    return core_merge_is_few(job) ? (rows + CORE_MERGE_WARPS - 1) / CORE_MERGE_WARPS : rows;
}

__device__ __forceinline__ void core_merge_unit(const core_merge_job &job, uint32_t unit,
                                                core_merge_shared &shared) {
    if (core_merge_is_few(job)) {
        uint32_t row = unit * CORE_MERGE_WARPS + threadIdx.x / 32;
        if (row < core_merge_rows(job)) core_merge_few(job, row);
    } else {
        core_merge_many(job, unit, shared);
    }
}

/* Sum of `x` over this thread and those before it. */
__device__ __forceinline__ uint32_t core_merge_scan(uint32_t x, core_merge_shared &shared) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
        uint32_t before = __shfl_up_sync(0xffffffffu, x, step);
        if (lane >= step) x += before;
    }
    if (lane == 31) shared.begin[warp] = x;
    __syncthreads();
    for (uint32_t other = 0; other < warp; other++) x += shared.begin[other];
    return x;
}

/* Jobs have different numbers of units, and a block of the grid takes every gridDim.x-th unit of all of them:
 * of as many jobs at a time as there are threads the units are counted, and a unit's job is searched for. */
__device__ __forceinline__ void core_merge(const kvant_gpu_call &call) {
    __shared__ core_merge_shared shared;
    __shared__ uint32_t ends[CORE_MERGE_THREADS];
    const core_merge_job *jobs = kvant_global<const core_merge_job>(call.jobs);
    uint32_t count = *kvant_global<const uint32_t>(call.job_count), next = blockIdx.x;
    for (uint32_t base = 0; base < count; base += CORE_MERGE_THREADS) {
        uint32_t mine = base + threadIdx.x;
        uint32_t end = core_merge_scan(mine < count ? core_merge_units(jobs[mine]) : 0, shared);
        ends[threadIdx.x] = end;
        __syncthreads();
        uint32_t all = ends[CORE_MERGE_THREADS - 1];
        for (; next < all; next += gridDim.x) {
            uint32_t index = 0; /* of the first job that ends behind the unit */
#pragma unroll
            for (uint32_t step = CORE_MERGE_THREADS / 2; step >= 1; step /= 2)
                if (ends[index + step - 1] <= next) index += step;
            core_merge_unit(jobs[base + index], next - (index > 0 ? ends[index - 1] : 0), shared);
        }
        next -= all;
        __syncthreads();
    }
}

#endif
