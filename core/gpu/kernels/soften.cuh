/* The softmax of attention in three launches: logits of a score kernel become the weights of a mix kernel,
 * and the first two numbers of partials.
 *
 *     logits     [rows, logit_stride], token t of reference r at r * block_tokens + t: exp(logit - largest)
 *                in place of each, 0 where the row does not see the token
 *     partial    largest logit and sum of weights; where there are accumulators, zeros behind them, since mix
 *                writes elsewhere
 *
 * A warp takes a row, twice: for the largest logit, then for weights. What score did not write is not read.
 * The soft cap grows with its argument, so the largest logit is the cap of the largest before it.
 */
#ifndef KVANT_GPU_SOFTEN_CUH
#define KVANT_GPU_SOFTEN_CUH

#include "gpu/core_kernels.h"

#include <kvant/kit/split.cuh>
#include <kvant/kit/sum.cuh>

__device__ __forceinline__ float core_soften_cap(float logit, float cap) {
    return cap > 0 ? cap * tanhf(logit / cap) : logit;
}

__device__ __forceinline__ void core_soften_row(const core_attend_state &state, const kvant_gpu_layer &layer,
                                                const kvant_gpu_item &item, uint32_t row, uint64_t position) {
    const float nothing = __uint_as_float(0xff800000u);
    const kvant_gpu_reference *references = kvant_global<const kvant_gpu_reference>(item.references);
    const uint64_t at = item.logits + 4 * item.logit_stride * row;
    const uint32_t lane = threadIdx.x % 32, tokens = state.block_tokens;
    float most = nothing, sum = 0;
    bool any = false;
    for (uint32_t r = 0; r < item.reference_count; r++) {
        kvant_span span = kvant_seen(references[r], position, position, layer.window);
        const float *logits = kvant_global<const float>(at + 4 * (uint64_t)r * tokens);
        any = any || span.first < span.end;
        for (uint32_t t = span.first + lane; t < span.end; t += 32) most = fmaxf(most, logits[t]);
    }
    __syncwarp();
    most = kvant_lanes_max(most, 32);
    most = any ? core_soften_cap(most, layer.soft_cap) : nothing;
    for (uint32_t r = 0; r < item.reference_count; r++) {
        kvant_span span = kvant_seen(references[r], position, position, layer.window);
        float *logits = kvant_global<float>(at + 4 * (uint64_t)r * tokens);
        for (uint32_t t = lane; t < tokens; t += 32) {
            float weight = 0;
            if (t >= span.first && t < span.end) {
                float logit = core_soften_cap(logits[t], layer.soft_cap);
                if (logit > nothing) weight = expf(logit - most);
                sum += logit == logit ? weight : logit; /* a row with a NaN says so */
            }
            logits[t] = weight;
        }
    }
    __syncwarp();
    sum = kvant_warp_sum(sum);
    float *partial = kvant_global<float>(item.partial + 4 * item.partial_stride * row);
    if (lane == 0) {
        partial[0] = most;
        partial[1] = sum;
    }
    if (item.accumulators != 0)
        for (uint32_t c = lane; c < state.value_dim; c += 32) partial[2 + c] = 0;
}

/* For blocks of any whole number of warps. */
__device__ __forceinline__ void core_soften(const kvant_gpu_call &call) {
    const core_attend_state &state = *kvant_global<const core_attend_state>(call.state);
    const kvant_gpu_layer &layer = *kvant_global<const kvant_gpu_layer>(call.layer);
    const uint32_t count = *kvant_global<const uint32_t>(call.job_count), warps = blockDim.x / 32;
    const uint32_t group = layer.q_heads / state.kv_heads;
    for (uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
        const kvant_gpu_item &item = kvant_global<const kvant_gpu_item>(call.jobs)[i];
        for (uint32_t row = threadIdx.x / 32; row < item.positions * group; row += warps)
            core_soften_row(state, layer, item, row, item.query_position + row / group);
    }
}

#endif
