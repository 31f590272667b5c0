/* raw on a GPU: the bytes and floats of raw_reference.c, and the two sides of attention in three launches.
 * The smallest example of a plugin's kernels.
 *
 * A thread moves an octet, eight channels of a token; threads side by side read and write side by side. A
 * unit of work is 64 tokens of a head.
 */
#include "raw_gpu.h"

#include <kvant/kit/rows.cuh>
#include <kvant/kit/split.cuh>
#include <kvant/plugin_gpu.h>

/* ---- Octets -------------------------------------------------------------------------------------------- */

/* Eight channels from `channel` on. The head's last octet may have fewer: `count`. */
struct place {
    uint64_t address;
    int64_t stride; /* bytes from one channel to the next */
    uint32_t count;
};

__device__ __forceinline__ place place_of_rows(const raw_gpu_state &s, const kvant_gpu_view &rows,
                                               uint32_t token, uint32_t head, uint32_t channel) {
    place at;
    at.address = rows.data + (uint64_t)(rows.token_stride * token + rows.head_stride * head +
                                        rows.channel_stride * channel);
    at.stride = rows.channel_stride;
    at.count = s.head_dim - channel;
    return at;
}

__device__ __forceinline__ place place_of_extent(const raw_gpu_state &s, uint64_t extent, uint32_t token,
                                                 uint32_t head, uint32_t channel) {
    place at;
    at.address = extent + head * s.head_bytes + token * s.row_bytes + channel * s.element_bytes;
    at.stride = s.element_bytes;
    at.count = s.head_dim - channel;
    return at;
}

/* Bit for bit, whatever the bits mean. */
__device__ __forceinline__ void copy_octet(const place &from, const place &to, uint32_t element_bytes) {
    if (from.count >= 8 && from.stride == element_bytes && to.stride == element_bytes &&
        (from.address | to.address) % 16 == 0) {
        for (uint32_t i = 0; i < element_bytes / 2; i++)
            kvant_global<uint4>(to.address)[i] = kvant_global<const uint4>(from.address)[i];
        return;
    }
    for (uint32_t k = 0; k < 8 && k < from.count; k++) {
        uint64_t in = from.address + (uint64_t)(from.stride * k),
                 out = to.address + (uint64_t)(to.stride * k);
        if ((in | out) % element_bytes != 0)
            for (uint32_t i = 0; i < element_bytes; i++)
                kvant_global<uint8_t>(out)[i] = kvant_global<const uint8_t>(in)[i];
        else if (element_bytes == 4)
            *kvant_global<uint32_t>(out) = *kvant_global<const uint32_t>(in);
        else
            *kvant_global<uint16_t>(out) = *kvant_global<const uint16_t>(in);
    }
}

/* ---- Encode -------------------------------------------------------------------------------------------- */

__device__ void report_octet(const raw_gpu_state &s, const kvant_gpu_encode_job &job, uint32_t token,
                             uint32_t head, uint32_t channel, const float (&x)[8]) {
    kvant_gpu_status *status = kvant_global<kvant_gpu_status>(job.status);
    for (uint32_t k = 8; k-- > 0;) {
        unsigned long long element = ((uint64_t)token * s.heads + head) * s.head_dim + channel + k;
        if (!kvant_is_finite(x[k])) atomicMin((unsigned long long *)&status->first_not_finite, element);
    }
}

/* Returns how many elements left the format's range. */
__device__ __forceinline__ uint32_t encode_octet(const raw_gpu_state &s, const kvant_gpu_encode_job &job,
                                                 uint32_t token, uint32_t head, uint32_t channel) {
    const place from = place_of_rows(s, job.rows, token, head, channel);
    const place to = place_of_extent(s, job.extent, token, head, channel);
    float x[8];
    bool finite = true;
    uint32_t saturated = 0;
    kvant_load_octet(s.input, from.address, from.stride, from.count, x);
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
        finite = finite && kvant_is_finite(x[k]);
        saturated += kvant_is_finite(x[k]) && !kvant_is_finite(kvant_round(s.format, x[k]));
    }
    if (!finite) report_octet(s, job, token, head, channel, x);
    if (s.format == s.input)
        copy_octet(from, to, s.element_bytes);
    else
        kvant_store_octet(s.format, to.address, to.stride, to.count, x);
    return saturated;
}

extern "C" __global__ void __launch_bounds__(RAW_GPU_THREADS, 4)
    raw_encode(const __grid_constant__ kvant_gpu_call call) {
    const raw_gpu_state s = *kvant_global<const raw_gpu_state>(call.state);
    const uint32_t chunks = (s.tokens + RAW_GPU_TOKENS - 1) / RAW_GPU_TOKENS, octets = (s.head_dim + 7) / 8;
    const uint32_t units = s.heads * chunks, all = units * *kvant_global<const uint32_t>(call.job_count);
    for (uint32_t unit = blockIdx.x; unit < all; unit += gridDim.x) {
        const kvant_gpu_encode_job job = kvant_global<const kvant_gpu_encode_job>(call.jobs)[unit / units];
        kvant_gpu_status *status = kvant_global<kvant_gpu_status>(job.status);
        uint32_t head = unit % units / chunks, first = unit % chunks * RAW_GPU_TOKENS, saturated = 0;
        uint32_t tokens = min(s.tokens - first, (uint32_t)RAW_GPU_TOKENS);
        for (uint32_t i = threadIdx.x; i < tokens * octets; i += RAW_GPU_THREADS)
            saturated += encode_octet(s, job, first + i / octets, head, i % octets * 8);
        if (saturated > 0) atomicAdd((unsigned long long *)&status->saturated, (unsigned long long)saturated);
        if (first == 0) { /* the head's end */
            uint64_t at = s.tokens * s.row_bytes + threadIdx.x;
            if (at < s.head_bytes) *kvant_global<uint8_t>(job.extent + head * s.head_bytes + at) = 0;
        }
        if (unit % units == 0 && threadIdx.x == 0) status->size = s.bytes;
    }
}

/* ---- Decode -------------------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(RAW_GPU_THREADS, 4)
    raw_decode(const __grid_constant__ kvant_gpu_call call) {
    const raw_gpu_state s = *kvant_global<const raw_gpu_state>(call.state);
    const uint32_t chunks = (s.tokens + RAW_GPU_TOKENS - 1) / RAW_GPU_TOKENS, octets = (s.head_dim + 7) / 8;
    const uint32_t units = s.heads * chunks, all = units * *kvant_global<const uint32_t>(call.job_count);
    for (uint32_t unit = blockIdx.x; unit < all; unit += gridDim.x) {
        const kvant_gpu_decode_job job = kvant_global<const kvant_gpu_decode_job>(call.jobs)[unit / units];
        uint32_t head = unit % units / chunks, first = unit % chunks * RAW_GPU_TOKENS; /* of the rows */
        if (head >= job.heads || first >= job.tokens) continue;
        uint32_t tokens = min(job.tokens - first, (uint32_t)RAW_GPU_TOKENS);
        for (uint32_t i = threadIdx.x; i < tokens * octets; i += RAW_GPU_THREADS) {
            uint32_t token = first + i / octets, channel = i % octets * 8;
            const place from =
                place_of_extent(s, job.extent, job.first_token + token, job.first_head + head, channel);
            const place to = place_of_rows(s, job.rows, token, head, channel);
            float x[8];
            if (job.dtype == s.format) {
                copy_octet(from, to, s.element_bytes);
            } else {
                kvant_load_octet(s.format, from.address, from.stride, from.count, x);
                kvant_store_octet(job.dtype, to.address, to.stride, to.count, x);
            }
        }
    }
}

/* ---- Attention in three launches ----------------------------------------------------------------------- */

/* What FORMAT, the type of stored elements, decides is decided when compiling. */
template <uint32_t FORMAT> struct raw_codes {
    const raw_gpu_state *s;
    uint32_t tokens, heads, head_dim, dtype;

    __device__ __forceinline__ raw_codes(uint64_t state) {
        s = kvant_global<const raw_gpu_state>(state);
        tokens = s->tokens;
        heads = s->heads;
        head_dim = s->head_dim;
        dtype = s->input;
    }
    __device__ __forceinline__ void key(uint64_t extent, uint32_t head, uint32_t token, uint32_t octet,
                                        float (&x)[8]) const {
        const place at = place_of_extent(*s, extent, token, head, octet * 8);
        kvant_load_octet(FORMAT, at.address, kvant_element_bytes(FORMAT), at.count, x);
    }
    __device__ __forceinline__ void value(uint64_t extent, uint32_t head, uint32_t token, uint32_t octet,
                                          float (&x)[4][8]) const {
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if (token + j < tokens) key(extent, head, token + j, octet, x[j]);
    }
};

/* Channels lie side by side, so four lanes share a token's score. */
#define RAW_SPLIT(suffix, FORMAT)                                                                            \
    extern "C" __global__ void __launch_bounds__(KVANT_SPLIT_THREADS, 4)                                     \
        raw_score_##suffix(const __grid_constant__ kvant_gpu_call call) {                                    \
        kvant_score_items<raw_codes<FORMAT>, 4>(call);                                                       \
    }                                                                                                        \
    extern "C" __global__ void __launch_bounds__(KVANT_SPLIT_THREADS, 3)                                     \
        raw_mix_##suffix(const __grid_constant__ kvant_gpu_call call) {                                      \
        kvant_mix_items<raw_codes<FORMAT>>(call);                                                            \
    }

RAW_SPLIT(f32, KVANT_DTYPE_F32)
RAW_SPLIT(f16, KVANT_DTYPE_F16)
RAW_SPLIT(bf16, KVANT_DTYPE_BF16)
