/* kvant/plugin_gpu.h: kvant.gpu/1, a codec's kernels. Part of plugin.h, which includes it; a kernel's source
 * includes this file alone.
 *
 * A plugin carries device code and tables that say how to launch it. It calls no driver: the host finds the
 * driver, picks an image, loads it, owns every byte of device memory, and launches. So a plugin loads on a
 * machine without a GPU, and a test may run its kernels on something that is none.
 *
 *     plan     which kernels serve this setup, how they are launched, what memory they need     pure
 *     upload   the state as kernels read it                                                     once
 *
 * Bytes      encode writes the bytes that the CPU writes, decode gives the floats that the CPU gives: "same
 *            bytes" of plugin.h holds for kernels too. Attention: within
 *            layout.attend_tolerance, as plugin.h has it, and 2^-18 more of the same sums: additions in
 *            another order, folded queries and weights, the device's exp. The same bits for the same
 *            arguments on one device.
 * Launch     A kernel has one parameter, a struct of device addresses, by value. Its grid has one dimension
 *            and any size: blocks share the units of work among themselves (`for (u = blockIdx.x; u < jobs *
 *            units; u += gridDim.x)`), and no result depends on the grid. All that changes from step to step
 *            - how many jobs, where their rows and extents lie - is in device memory, so that a launch can
 *            be captured in a graph and replayed over other jobs. The host writes jobs, their count and
 *            fresh status words before the launch, in stream order.
 * Kernels    do not allocate, synchronise with the host, launch kernels, keep anything between launches
 *            besides what the host gave them, or wait for another block. They read only what a job names,
 *            and write only the extent, rows, status words and scratch that it names. On arbitrary bytes of
 *            an extent they end and stay within these bounds.
 * Addresses  Device addresses are uint64_t. State, scratch and job arrays are aligned to 256 bytes, what
 *            `partial`, `logits` and `accumulators` name to 16, extents to layout.alignment, rows to nothing.
 * Order      Kernels of one call run in the order of the plan's array, in one stream.
 *
 * Structs that kernels read are frozen, as is kvant_gpu_kernel.
 */
#ifndef KVANT_PLUGIN_GPU_H
#define KVANT_PLUGIN_GPU_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVANT_EXT_GPU "kvant.gpu/1"

struct kvant_setup;
struct kvant_layout;

/* ---- Images -------------------------------------------------------------------------------------------- */

enum {
    KVANT_IMAGE_FATBIN = 1, /* cubins of the architectures named, as `nvcc -fatbin` writes them; no PTX */
    KVANT_IMAGE_PTX = 2     /* PTX text of one architecture, for devices that no cubin fits */
};
enum {
    KVANT_PACKING_NONE = 0,
    KVANT_PACKING_ZSTD = 1 /* one zstd frame; whoever reads the image unpacks it */
};
enum {
    /* Beside a number of architectures[]: built for this architecture alone ("100a"). */
    KVANT_ARCHITECTURE_EXACT = 1u << 16
};

/* Device code. An array of these is walked by its first element's struct_size; the host takes the first
 * image that fits. A cubin of compute capability x.y (the number 10 x + y) runs on x.z with z >= y, an exact
 * one on x.y; PTX on everything from its architecture on. All images hold the same entry points. */
typedef struct kvant_gpu_image {
    uint32_t struct_size;
    uint32_t kind;    /* KVANT_IMAGE_* */
    uint32_t packing; /* KVANT_PACKING_* */
    uint32_t architecture_count;
    const uint32_t *architectures; /* 10 x + y, ascending; 80 = sm_80 */
    const void *bytes;
    const void *bytes_end; /* behind the last */
} kvant_gpu_image;

/* ---- Plan ---------------------------------------------------------------------------------------------- */

/* What a kernel does, and what its jobs are. */
enum {
    KVANT_GPU_ENCODE = 1, /* kvant_gpu_encode_job: a block of rows to an extent */
    KVANT_GPU_DECODE = 2, /* kvant_gpu_decode_job: part of an extent to rows */
    KVANT_GPU_QUERY = 3,  /* kvant_gpu_item: prepares query rows, once a step; keys */
    KVANT_GPU_SCORE = 4,  /* kvant_gpu_item: logits; keys */
    KVANT_GPU_MIX = 5,    /* kvant_gpu_item: weights times values; values */
    KVANT_GPU_FINISH = 6, /* kvant_gpu_item: from accumulators to outputs, once a step; values */
    KVANT_GPU_ATTEND = 7  /* kvant_gpu_item: scores, weighs and mixes at once; from `pair`, never in a plan */
};

/* One launch. Frozen. */
typedef struct kvant_gpu_kernel {
    char name[64];                /* of the entry point, in every image */
    uint32_t call;                /* KVANT_GPU_* */
    uint32_t threads;             /* of a block: a multiple of 32, at most 1024 */
    uint32_t shared_bytes;        /* dynamic shared memory of a block */
    uint32_t reserved;            /* 0 */
    uint64_t units;               /* of work in one job at most: more blocks than jobs * units are idle. The
                                     host keeps jobs * units below 2^31, by several launches if need be */
    uint64_t block_scratch_bytes; /* global memory of each block; a multiple of 256 */
    uint64_t job_scratch_bytes;   /* global memory of each job, kept from one kernel of a call to the next,
                                     which ask for the same; zeros when the first one begins; a multiple of
                                     256 */
} kvant_gpu_kernel;

enum { KVANT_GPU_KERNELS = 16 };

/* What plan answers. The host zeroes it and sets struct_size. The scratch of a call is grid *
 * block_scratch_bytes + jobs * job_scratch_bytes, largest over its kernels: a function of the largest batch,
 * so that it is allocated once. A call without a kernel is not offered; decode is what the host needs at
 * least, for attention on tiles of rows. */
typedef struct kvant_gpu_plan {
    uint32_t struct_size;
    uint32_t kernel_count;
    uint64_t state_bytes; /* of the state on the device */
    kvant_gpu_kernel kernels[KVANT_GPU_KERNELS];
} kvant_gpu_plan;

typedef struct kvant_gpu {
    uint32_t struct_size;
    uint32_t image_count;
    const kvant_gpu_image *images;

    /* [setup] Pure. `layout` is what the codec's plan said for this setup. KVANT_ERROR_UNSUPPORTED where no
     * kernel serves it: the host says so, it does not go on elsewhere. */
    kvant_status (*plan)(const struct kvant_setup *setup, const struct kvant_layout *layout,
                         kvant_gpu_plan *plan, kvant_diag *diag);

    /* [setup] Writes the device's state, plan.state_bytes zeroed bytes, from the codec's open state. It holds
     * no address, of host or device: places within it are offsets from its first byte. So it may lie
     * anywhere, be copied, and be shared by codecs whose states are equal. */
    kvant_status (*upload)(const void *state, const kvant_gpu_plan *plan, void *device_state);

    /* [setup] Pure. The kernel that attends on the codes of both sides of a layer at once, for two setups of
     * this plugin. NULL, or KVANT_ERROR_UNSUPPORTED: none; then, and for a pair from two plugins, the host
     * runs score, softmax and mix one after another. The host launches the plan's query kernel before it and
     * its finish kernel after it, where there are such. */
    kvant_status (*pair)(const struct kvant_setup *key, const struct kvant_setup *value,
                         kvant_gpu_kernel *kernel, kvant_diag *diag);
} kvant_gpu;

/* ---- What kernels read --------------------------------------------------------------------------------- */

/* The parameter of every kernel. Frozen. */
typedef struct kvant_gpu_call {
    uint64_t state;         /* of the codec */
    uint64_t jobs;          /* array of what the kernel's call says */
    uint64_t job_count;     /* address of a uint32_t */
    uint64_t block_scratch; /* [grid] of block_scratch_bytes */
    uint64_t job_scratch;   /* [jobs] of job_scratch_bytes */
    uint64_t layer;         /* query, score, mix, finish, attend: address of a kvant_gpu_layer; else 0 */
} kvant_gpu_call;

/* Rows: element (token, head, channel) at data + the strides' products, as in kvant_view. Frozen. */
typedef struct kvant_gpu_view {
    uint64_t data;
    int64_t token_stride;
    int64_t head_stride;
    int64_t channel_stride;
} kvant_gpu_view;

/* What became of a job. The host sets {0, 0, UINT64_MAX} before the launch and reads it at its next
 * synchronisation; until then it neither shares, stores nor shrinks the extent. Frozen. */
typedef struct kvant_gpu_status {
    uint64_t size;             /* encode: bytes used */
    uint64_t saturated;        /* encode: as in kvant_encode_args; added to, atomically */
    uint64_t first_not_finite; /* encode: the least (token * kv_heads + head) * head_dim + channel of an
                                  element that is NaN or infinite; the extent is worthless then */
    uint64_t reserved;
} kvant_gpu_status;

typedef struct kvant_gpu_encode_job { /* Frozen. */
    kvant_gpu_view rows;     /* [block_tokens, kv_heads, head_dim] of setup.dtype */
    uint64_t extent;         /* room for the largest size; contents undefined */
    uint64_t first_position; /* of token 0 */
    uint64_t classes;        /* [block_tokens] bytes; 0 without KVANT_REQUIRES_TAGS */
    uint64_t status;         /* a kvant_gpu_status */
} kvant_gpu_encode_job;

typedef struct kvant_gpu_decode_job { /* Frozen. */
    kvant_gpu_view rows; /* [tokens, heads, head_dim], written */
    uint64_t extent;
    uint64_t size; /* as encode chose it */
    uint64_t first_position;
    uint32_t dtype; /* of rows: F32, F16 or BF16 */
    uint32_t first_token;
    uint32_t tokens;
    uint32_t first_head;
    uint32_t heads;
    uint32_t reserved;
} kvant_gpu_decode_job;

/* ---- Attention ----------------------------------------------------------------------------------------- */

/* One block of a sequence, both sides. An extent lies at its side's base + (uint64_t)index * stride: an
 * engine's own block table serves as it is. An extent takes size_min + step * size_step bytes of its layout.
 * Tokens outside of the live range are not read into a sum. Frozen. */
typedef struct kvant_gpu_reference {
    uint64_t first_position;
    uint32_t key_index;
    uint32_t value_index;
    uint32_t key_step;
    uint32_t value_step;
    uint32_t live_first;
    uint32_t live_count;
} kvant_gpu_reference;

/* Raw rows of a sequence: sinks, the newest tokens. Frozen. */
typedef struct kvant_gpu_run {
    kvant_gpu_view keys;   /* [tokens, kv_heads, key dim] of setup.dtype, turned */
    kvant_gpu_view values; /* [tokens, kv_heads, value dim] of setup.dtype */
    uint64_t first_position;
    uint32_t tokens;
    uint32_t reserved;
} kvant_gpu_run;

/* What all items of a launch share. Frozen. */
typedef struct kvant_gpu_layer {
    uint64_t key_base;
    uint64_t key_stride;
    uint64_t value_base;
    uint64_t value_stride;
    uint64_t value_state;  /* attend: the value codec's */
    uint64_t center;       /* score, attend: float [kv_heads, key dim], times a query row to be added to
                              logits that come from codes; 0 = none */
    uint64_t offset_turns; /* as in kvant_score_args, floats [block_tokens, pairs, 2]; 0 = none */
    float scale;           /* of logits; applied when queries are loaded */
    float soft_cap;        /* logits become cap * tanh(logit / cap); 0 = none */
    uint32_t window;       /* a row sees the newest `window` tokens, its own included; 0 = all */
    uint32_t q_heads;
} kvant_gpu_layer;

/* Query rows of one sequence for one kv head - row = position * group + query head within the group - and
 * some consecutive tokens of the sequence. Codes of a token are read once for all rows. A row sees tokens up
 * to its own position. Members that a call does not use are 0. Frozen. */
typedef struct kvant_gpu_item {
    kvant_gpu_view queries;      /* query, attend: [positions, q_heads, key dim] of setup.dtype, turned */
    kvant_gpu_view outputs;      /* finish: [positions, q_heads, value dim] of setup.dtype */
    uint64_t query_state;        /* query writes, score and attend read: [rows] of layout.query_state_bytes; 0
                                    without a query kernel */
    uint64_t references;         /* kvant_gpu_reference [reference_count] */
    uint64_t runs;               /* attend: kvant_gpu_run [run_count] */
    uint64_t first_turns;        /* as in kvant_score_args, floats [reference_count, pairs, 2]; 0 = none */
    uint64_t logits;             /* score writes, mix reads (weights): float [rows, logit_stride], token t of
                                    reference r at r * block_tokens + t. Score may leave out tokens that no
                                    row sees: the host's softmax gives what a row does not see weight 0
                                    without a look at it */
    uint64_t accumulators;       /* mix and attend write, finish reads: float [rows, accumulator_stride],
                                    weights times coded values in the codec's space, layout.mix_width a row.
                                    0 without a finish kernel: attend and mix then write coded values to
                                    `partial` */
    uint64_t partial;            /* float [rows, partial_stride]: largest logit, sum of exp(logit - largest),
                                    weights times values. Partials of a row are merged in the order of its
                                    items. No token seen: -infinity, 0, zeros. attend writes all of it. Where
                                    score and mix run instead, the host's softmax writes the first two, and
                                    zeros behind them if there are accumulators; mix writes the rest if there
                                    are none. Nobody adds: neither array need be zero before */
    uint64_t query_position;     /* of the first position */
    uint64_t logit_stride;       /* floats */
    uint64_t accumulator_stride; /* floats, a multiple of 16; at least layout.mix_width */
    uint64_t partial_stride;     /* floats; at least 2 + value dim */
    uint32_t kv_head;
    uint32_t positions;
    uint32_t reference_count;
    uint32_t run_count;
} kvant_gpu_item;

#ifdef __cplusplus
}
#endif

#endif
