/* kivi on a GPU: encode and decode, the bytes and floats of kivi_reference.c, and attention on the codes
 * (kvant/kit/attend_codes.cuh, attend.cuh with kivi_codes.cuh).
 *
 * Encoding takes two looks at the rows of a unit of work, the second one out of the caches: the first finds
 * scales and minima, which then lie in the extent and in shared memory; in the second each thread makes whole
 * words of codes. A word belongs to one token of a key or one channel of a value, so units may begin and end
 * anywhere in a line and no two threads write one word.
 *
 *     unit of work   encode keys     head, group of tokens
 *                    encode values   head, matrix of 64 tokens, 32 groups of channels
 *                    decode          head, 64 tokens
 */
#include "kivi_codes.cuh"
#include "kivi_split.cuh"

#include <kvant/kit/attend_codes.cuh>
#include <kvant/kit/split.cuh>
#include <kvant/kit/sum.cuh>
#include <kvant/plugin_gpu.h>

enum { THREADS = KIVI_GPU_THREADS, LANES_PER_GROUP = 4 };

extern __shared__ uint4 kivi_shared[];

/* ---- Parts --------------------------------------------------------------------------------------------- */

__device__ __forceinline__ uint64_t row_address(const kvant_gpu_view &rows, uint32_t token, uint32_t head,
                                                uint32_t channel) {
    return rows.data +
           (uint64_t)(rows.token_stride * token + rows.head_stride * head + rows.channel_stride * channel);
}

__device__ void report_not_finite(const kivi_gpu_state &s, const kvant_gpu_encode_job &job, uint32_t token,
                                  uint32_t head, uint32_t channel) {
    kvant_gpu_status *status = kvant_global<kvant_gpu_status>(job.status);
    unsigned long long element = ((uint64_t)token * s.heads + head) * s.head_dim + channel;
    atomicMin((unsigned long long *)&status->first_not_finite, element);
}

/* Minimum and maximum of an octet's first `count` channels, each for itself or all together. */
__device__ __forceinline__ bool octet_is_finite(const float (&x)[8]) {
    bool finite = true;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) finite = finite && kvant_is_finite(x[k]);
    return finite;
}

__device__ void report_octet(const kivi_gpu_state &s, const kvant_gpu_encode_job &job, uint32_t token,
                             uint32_t head, uint32_t channel, const float (&x)[8]) {
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
        if (!kvant_is_finite(x[k])) report_not_finite(s, job, token, head, channel + k);
}

__device__ __forceinline__ void zero_bytes(uint64_t head, uint64_t from, uint64_t to) {
    for (uint64_t i = from + threadIdx.x; i < to; i += THREADS) *kvant_global<uint8_t>(head + i) = 0;
}

/* What is neither code nor number: behind the scales and at the head's end. */
__device__ __forceinline__ void zero_gaps(const kivi_gpu_state &s, uint64_t head) {
    uint64_t plane = (uint64_t)s.groups * s.plane_row * s.meta_bytes;
    zero_bytes(head, s.scale_offset + plane, s.min_offset);
    zero_bytes(head, s.min_offset + plane, s.head_bytes);
}

__device__ __forceinline__ void store_fit(const kivi_gpu_state &s, uint64_t head, uint64_t index,
                                          kivi_fit fit) {
    uint64_t at = head + index * s.meta_bytes;
    kvant_store_element(s.meta, at + s.scale_offset, fabsf(fit.scale));
    kvant_store_element(s.meta, at + s.min_offset, fit.min);
}

__device__ __forceinline__ void add_saturated(const kvant_gpu_encode_job &job, uint32_t saturated) {
    if (saturated > 0)
        atomicAdd((unsigned long long *)&(kvant_global<kvant_gpu_status>(job.status))->saturated,
                  (unsigned long long)saturated);
}

/* ---- Keys: groups along the tokens of a channel -------------------------------------------------------- */

/* Threads share the channels' octets out among columns; where a head has fewer octets than there are
 * threads, several threads share a column's tokens, and the last step joins what they found. */
template <uint32_t DTYPE>
__device__ __forceinline__ void fit_keys(const kivi_gpu_state &s, const kvant_gpu_encode_job &job,
                                         uint64_t extent_head, uint32_t head, uint32_t group,
                                         kivi_fit *fits) {
    __shared__ float lows[8][THREADS], highs[8][THREADS];
    uint32_t octets = (s.head_dim + 7) / 8, columns = octets < THREADS ? octets : THREADS;
    uint32_t slices = THREADS / columns, saturated = 0;
    uint32_t column = threadIdx.x % columns, slice = threadIdx.x / columns;
    for (uint32_t first = 0; first < octets; first += columns) {
        float low[8], high[8];
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            low[k] = __uint_as_float(0x7f800000u);
            high[k] = __uint_as_float(0xff800000u);
        }
        uint32_t c = (first + column) * 8;
        for (uint32_t t = slice; t < s.group && slice < slices && c < s.head_dim; t += slices) {
            float x[8];
            uint32_t token = group * s.group + t;
            kvant_load_octet(DTYPE, row_address(job.rows, token, head, c), job.rows.channel_stride,
                             s.head_dim - c, x);
            if (!octet_is_finite(x)) report_octet(s, job, token, head, c, x);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) {
                low[k] = fminf(low[k], x[k]);
                high[k] = fmaxf(high[k], x[k]);
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            lows[k][threadIdx.x] = low[k];
            highs[k][threadIdx.x] = high[k];
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < 8 * columns; i += THREADS) {
            uint32_t k = i / columns, at = i % columns, channel = (first + at) * 8 + k;
            if (channel >= s.head_dim) continue;
            float min = lows[k][at], max = highs[k][at];
            for (uint32_t other = 1; other < slices; other++) {
                min = fminf(min, lows[k][other * columns + at]);
                max = fmaxf(max, highs[k][other * columns + at]);
            }
            fits[channel] = kivi_fit_group<DTYPE>(s, min, max, saturated);
            store_fit(s, extent_head, (uint64_t)group * s.plane_row + channel, fits[channel]);
        }
        __syncthreads();
    }
    add_saturated(job, saturated);
}

/* The codes of an octet, one a byte, in two words. */
template <uint32_t DTYPE>
__device__ __forceinline__ uint2 key_codes(const kivi_gpu_state &s, const kvant_gpu_encode_job &job,
                                           uint32_t token, uint32_t head, uint32_t octet,
                                           const kivi_fit *fits) {
    uint32_t c = octet * 8, codes[2] = {0, 0};
    if (c >= s.head_dim) return make_uint2(0, 0);
    float x[8], levels = (float)s.levels;
    kvant_load_octet(DTYPE, row_address(job.rows, token, head, c), job.rows.channel_stride, s.head_dim - c,
                     x);
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
        if (c + k < s.head_dim) codes[k / 4] |= kivi_code<DTYPE>(levels, fits[c + k], x[k]) << k % 4 * 8;
    return make_uint2(codes[0], codes[1]);
}

/* One set of planes of one token group; the last group also makes the words of tokens that do not exist. */
template <uint32_t DTYPE>
__device__ __forceinline__ void write_keys(const kivi_gpu_state &s, const kvant_gpu_encode_job &job,
                                           uint64_t extent_head, uint32_t head, uint32_t group, uint32_t set,
                                           const kivi_fit *fits) {
    uint32_t bits = set_bits(s.bits, set), words = kvant_planar_words(s.head_dim, bits);
    uint32_t begin = group * s.group, rows = s.group;
    if (group + 1 == s.groups) rows = (s.tokens + 15) / 16 * 16 - begin;
    uint64_t base = extent_head + (set == 1 ? kvant_planar_bytes(s.tokens, s.head_dim, 2) : 0);
    uint32_t mask = ((1u << bits) - 1u) * 0x01010101u, down = 2 * set;
    uint32_t slots = bits == 8 ? (words + 1) / 2 : words;
    for (uint32_t i = threadIdx.x; i < rows * slots; i += THREADS) {
        uint32_t token = begin + i % rows, slot = i / rows, word = 0;
        bool real = token < s.tokens;
        if (bits == 8) {
            uint2 codes = real ? key_codes<DTYPE>(s, job, token, head, slot, fits) : make_uint2(0, 0);
            *kvant_global<uint32_t>(base + kvant_planar_at(words, token, 2 * slot)) = codes.x;
            if (2 * slot + 1 < words)
                *kvant_global<uint32_t>(base + kvant_planar_at(words, token, 2 * slot + 1)) = codes.y;
            continue;
        }
        for (uint32_t part = 0; part < 4 / bits && real; part++) {
            uint2 codes = key_codes<DTYPE>(s, job, token, head, part * words + slot, fits);
            word |= (codes.x >> down & mask) << bits * 2 * part;
            word |= (codes.y >> down & mask) << bits * (2 * part + 1);
        }
        *kvant_global<uint32_t>(base + kvant_planar_at(words, token, slot)) = word;
    }
}

template <uint32_t DTYPE> __device__ __forceinline__ void encode_keys(const kvant_gpu_call &call) {
    const kivi_gpu_state s = *kvant_global<const kivi_gpu_state>(call.state);
    const kvant_gpu_encode_job *jobs = kvant_global<const kvant_gpu_encode_job>(call.jobs);
    kivi_fit *fits = (kivi_fit *)kivi_shared; /* [head_dim] */
    uint32_t units = s.heads * s.groups, all = units * *kvant_global<const uint32_t>(call.job_count);
    for (uint32_t unit = blockIdx.x; unit < all; unit += gridDim.x) {
        const kvant_gpu_encode_job job = jobs[unit / units];
        uint32_t head = unit % units / s.groups, group = unit % s.groups;
        uint64_t extent_head = job.extent + head * s.head_bytes;
        fit_keys<DTYPE>(s, job, extent_head, head, group, fits);
        for (uint32_t set = 0; set < set_count(s.bits); set++)
            write_keys<DTYPE>(s, job, extent_head, head, group, set, fits);
        if (group == 0) zero_gaps(s, extent_head);
        if (unit % units == 0 && threadIdx.x == 0)
            (kvant_global<kvant_gpu_status>(job.status))->size = s.bytes;
        __syncthreads();
    }
}

/* ---- Values: groups along the channels of a token ------------------------------------------------------ */

struct tile {
    uint64_t extent_head;
    uint32_t head;
    uint32_t matrix;
    uint32_t first_token, tokens; /* of the matrix */
    uint32_t first_group, groups; /* of the tile */
    uint32_t first_channel, end;  /* channels of the tile that exist */
};

/* Four lanes to a group of a token. */
template <uint32_t DTYPE>
__device__ __forceinline__ void fit_values(const kivi_gpu_state &s, const kvant_gpu_encode_job &job,
                                           const tile &w, kivi_fit *fits) {
    uint32_t pairs = w.tokens * w.groups, lane = threadIdx.x % LANES_PER_GROUP, saturated = 0;
    for (uint32_t first = 0; first < pairs; first += THREADS / LANES_PER_GROUP) {
        uint32_t pair = first + threadIdx.x / LANES_PER_GROUP;
        uint32_t t = pair / w.groups, group = w.first_group + pair % w.groups;
        uint32_t begin = group * s.group, end = begin + s.group < s.head_dim ? begin + s.group : s.head_dim;
        float low = __uint_as_float(0x7f800000u), high = __uint_as_float(0xff800000u);
        for (uint32_t c = begin + 8 * lane; pair < pairs && c < end; c += 8 * LANES_PER_GROUP) {
            float x[8];
            kvant_load_octet(DTYPE, row_address(job.rows, w.first_token + t, w.head, c),
                             job.rows.channel_stride, end - c, x);
            if (!octet_is_finite(x)) report_octet(s, job, w.first_token + t, w.head, c, x);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) {
                if (c + k < end) {
                    low = fminf(low, x[k]);
                    high = fmaxf(high, x[k]);
                }
            }
        }
        low = kvant_lanes_min(low, LANES_PER_GROUP);
        high = kvant_lanes_max(high, LANES_PER_GROUP);
        if (pair < pairs && lane == 0) {
            kivi_fit fit = kivi_fit_group<DTYPE>(s, low, high, saturated);
            fits[pair % w.groups * KIVI_GPU_TOKENS + t] = fit;
            store_fit(s, w.extent_head, (uint64_t)group * s.plane_row + w.first_token + t, fit);
        }
    }
    add_saturated(job, saturated);
}

/* One set of planes of a tile: a thread makes the words of eight channels for the tokens of one word. */
template <uint32_t DTYPE>
__device__ __forceinline__ void write_values(const kivi_gpu_state &s, const kvant_gpu_encode_job &job,
                                             const tile &w, uint32_t set, const kivi_fit *fits) {
    uint32_t bits = set_bits(s.bits, set), words = kvant_planar_words(w.tokens, bits);
    uint64_t base = w.extent_head + w.matrix * s.matrix_bytes +
                    (set == 1 ? kvant_planar_bytes(s.head_dim, w.tokens, 2) : 0);
    uint32_t first = w.first_channel / 8, octets = (w.end + 7) / 8 - first;
    uint32_t mask = (1u << bits) - 1u, down = 2 * set;
    float levels = (float)s.levels;
    if (w.end == s.head_dim) octets = (s.head_dim + 15) / 16 * 2 - first; /* channels that do not exist */
    for (uint32_t i = threadIdx.x; i < octets * words; i += THREADS) {
        uint32_t octet = first + i % octets, word = i / octets, c = octet * 8;
        uint32_t made[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (uint32_t plane = 0; plane < 8 / bits && c < w.end; plane++) {
            uint32_t unit = kvant_planar_unit(words, bits, word, plane);
            for (uint32_t j = 0; j < 4; j++) {
                uint32_t t = 4 * unit + j, shift = 8 * j + bits * plane;
                if (t >= w.tokens) break;
                float x[8];
                kvant_load_octet(DTYPE, row_address(job.rows, w.first_token + t, w.head, c),
                                 job.rows.channel_stride, w.end - c, x);
                uint32_t group = c / s.group, next = (group + 1) * s.group;
                kivi_fit fit = fits[(group - w.first_group) * KIVI_GPU_TOKENS + t];
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) {
                    if (c + k < w.end) {
                        if (c + k == next) {
                            next += s.group;
                            group++;
                            fit = fits[(group - w.first_group) * KIVI_GPU_TOKENS + t];
                        }
                        made[k] |= (kivi_code<DTYPE>(levels, fit, x[k]) >> down & mask) << shift;
                    }
                }
            }
        }
        uint4 *out = kvant_global<uint4>(base + kvant_planar_at(words, c, word));
        out[0] = make_uint4(made[0], made[1], made[2], made[3]);
        out[1] = make_uint4(made[4], made[5], made[6], made[7]);
    }
}

template <uint32_t DTYPE> __device__ __forceinline__ void encode_values(const kvant_gpu_call &call) {
    const kivi_gpu_state s = *kvant_global<const kivi_gpu_state>(call.state);
    const kvant_gpu_encode_job *jobs = kvant_global<const kvant_gpu_encode_job>(call.jobs);
    kivi_fit *fits = (kivi_fit *)kivi_shared; /* [KIVI_GPU_GROUPS][KIVI_GPU_TOKENS] */
    uint32_t matrices = (s.tokens + KIVI_GPU_TOKENS - 1) / KIVI_GPU_TOKENS, parts = matrices * s.tiles;
    uint32_t units = s.heads * parts, all = units * *kvant_global<const uint32_t>(call.job_count);
    for (uint32_t unit = blockIdx.x; unit < all; unit += gridDim.x) {
        const kvant_gpu_encode_job job = jobs[unit / units];
        uint32_t part = unit % parts;
        tile w;
        w.head = unit % units / parts;
        w.extent_head = job.extent + w.head * s.head_bytes;
        w.matrix = part / s.tiles;
        w.first_token = w.matrix * KIVI_GPU_TOKENS;
        w.tokens = min(s.tokens - w.first_token, (uint32_t)KIVI_GPU_TOKENS);
        w.first_group = part % s.tiles * KIVI_GPU_GROUPS;
        w.groups = min(s.groups - w.first_group, (uint32_t)KIVI_GPU_GROUPS);
        w.first_channel = w.first_group * s.group;
        w.end = min(w.first_channel + w.groups * s.group, s.head_dim);
        fit_values<DTYPE>(s, job, w, fits);
        __syncthreads();
        for (uint32_t set = 0; set < set_count(s.bits); set++) write_values<DTYPE>(s, job, w, set, fits);
        if (part == 0) zero_gaps(s, w.extent_head);
        if (unit % units == 0 && threadIdx.x == 0)
            (kvant_global<kvant_gpu_status>(job.status))->size = s.bytes;
        __syncthreads();
    }
}

/* ---- Decode -------------------------------------------------------------------------------------------- */

/* Tokens [begin, end) of a head, all within a chunk of 64. */
struct slice {
    uint64_t head; /* its first byte */
    uint32_t row_head;
    uint32_t begin, end;
};

/* A thread takes eight channels of a token. Sixteen tokens side by side read a line. */
__device__ __forceinline__ void decode_keys(const kivi_gpu_state &s, const kvant_gpu_decode_job &job,
                                            const slice &w) {
    uint32_t octets = (s.head_dim + 7) / 8, rows = w.end - w.begin;
    for (uint32_t i = threadIdx.x; i < rows * octets; i += THREADS) {
        uint32_t lines = (rows + 15) / 16, line = i / (16 * octets), left = rows - 16 * line;
        uint32_t width = line + 1 < lines ? 16 : left, rest = i - line * 16 * octets;
        uint32_t token = w.begin + 16 * line + rest % width, octet = rest / width, c = octet * 8;
        float x[8];
        key_octet(s, w.head, token, octet, x);
        kvant_store_octet(job.dtype, row_address(job.rows, token - job.first_token, w.row_head, c),
                          job.rows.channel_stride, s.head_dim - c, x);
    }
}

/* A thread takes eight channels of four tokens, a unit of each of eight words. */
__device__ __forceinline__ void decode_values(const kivi_gpu_state &s, const kvant_gpu_decode_job &job,
                                              const slice &w) {
    uint32_t matrix = w.begin / KIVI_GPU_TOKENS, first = matrix * KIVI_GPU_TOKENS;
    uint32_t octets = (s.head_dim + 7) / 8;
    uint32_t first_unit = (w.begin - first) / 4, units = (w.end - first + 3) / 4 - first_unit;
    for (uint32_t i = threadIdx.x; i < units * octets; i += THREADS) {
        uint32_t unit = first_unit + i / octets, c = i % octets * 8, codes[8];
        value_codes(s, w.head, matrix, unit, c, codes);
        for (uint32_t j = 0; j < 4; j++) {
            uint32_t token = first + 4 * unit + j;
            if (token < w.begin || token >= w.end) continue;
            float x[8];
            value_octet(s, w.head, token, c, codes, j, x);
            kvant_store_octet(job.dtype, row_address(job.rows, token - job.first_token, w.row_head, c),
                              job.rows.channel_stride, s.head_dim - c, x);
        }
    }
}

template <bool KEYS> __device__ __forceinline__ void decode(const kvant_gpu_call &call) {
    const kivi_gpu_state s = *kvant_global<const kivi_gpu_state>(call.state);
    const kvant_gpu_decode_job *jobs = kvant_global<const kvant_gpu_decode_job>(call.jobs);
    uint32_t chunks = (s.tokens + KIVI_GPU_TOKENS - 1) / KIVI_GPU_TOKENS;
    uint32_t units = s.heads * chunks, all = units * *kvant_global<const uint32_t>(call.job_count);
    for (uint32_t unit = blockIdx.x; unit < all; unit += gridDim.x) {
        const kvant_gpu_decode_job job = jobs[unit / units];
        uint32_t chunk = unit % chunks * KIVI_GPU_TOKENS;
        slice w;
        w.row_head = unit % units / chunks;
        w.head = job.extent + (job.first_head + w.row_head) * s.head_bytes;
        w.begin = max(chunk, job.first_token);
        w.end = min(min(chunk + KIVI_GPU_TOKENS, s.tokens), job.first_token + job.tokens);
        if (w.row_head >= job.heads || w.begin >= w.end) continue;
        if (KEYS)
            decode_keys(s, job, w);
        else
            decode_values(s, job, w);
    }
}

/* ---- Entry points -------------------------------------------------------------------------------------- */

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 4)

KERNEL kivi_encode_keys_f32(const __grid_constant__ kvant_gpu_call call) {
    encode_keys<KVANT_DTYPE_F32>(call);
}
KERNEL kivi_encode_keys_f16(const __grid_constant__ kvant_gpu_call call) {
    encode_keys<KVANT_DTYPE_F16>(call);
}
KERNEL kivi_encode_keys_bf16(const __grid_constant__ kvant_gpu_call call) {
    encode_keys<KVANT_DTYPE_BF16>(call);
}
KERNEL kivi_encode_values_f32(const __grid_constant__ kvant_gpu_call call) {
    encode_values<KVANT_DTYPE_F32>(call);
}
KERNEL kivi_encode_values_f16(const __grid_constant__ kvant_gpu_call call) {
    encode_values<KVANT_DTYPE_F16>(call);
}
KERNEL kivi_encode_values_bf16(const __grid_constant__ kvant_gpu_call call) {
    encode_values<KVANT_DTYPE_BF16>(call);
}
KERNEL kivi_decode_keys(const __grid_constant__ kvant_gpu_call call) {
    decode<true>(call);
}
KERNEL kivi_decode_values(const __grid_constant__ kvant_gpu_call call) {
    decode<false>(call);
}
extern "C" __global__ void __launch_bounds__(KVANT_ATTEND_THREADS, 2)
    kivi_attend(const __grid_constant__ kvant_gpu_call call) {
    kvant_attend_items<kivi_codes>(call);
}
extern "C" __global__ void __launch_bounds__(KVANT_ATTEND_THREADS, 3)
    kivi_attend_codes_128(const __grid_constant__ kvant_gpu_call call) {
    kvant_attend_codes<kivi_codes, 128>(call);
}
extern "C" __global__ void __launch_bounds__(KVANT_ATTEND_THREADS, 2)
    kivi_attend_codes_256(const __grid_constant__ kvant_gpu_call call) {
    kvant_attend_codes<kivi_codes, 256>(call);
}
extern "C" __global__ void __launch_bounds__(KVANT_SPLIT_THREADS, 4)
    kivi_score(const __grid_constant__ kvant_gpu_call call) {
    kvant_score_items<kivi_split_codes>(call);
}
extern "C" __global__ void __launch_bounds__(KVANT_SPLIT_THREADS, 3)
    kivi_mix(const __grid_constant__ kvant_gpu_call call) {
    kvant_mix_items<kivi_split_codes>(call);
}
