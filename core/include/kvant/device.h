/* kvant/device.h: the codec and attention floors on a GPU, part of kvant.h. Extents hold the bytes that they
 * hold in the host's memory: what one encodes the other decodes, stores keep, loads give back.
 *
 *     kvant_device_open(0, &device, &diag);
 *     kvant_device_layer_open(device, attention, &layer, &diag);              // the codecs of a layer, there
 *     kvant_device_work_open(layer, &limits, 0, &work, &diag);                // room for the largest batch
 *     kvant_device_encode_prepare(work, KVANT_SIDE_KEY, blocks, n, stream, &diag);    // each step
 *     kvant_device_encode_launch(work, KVANT_SIDE_KEY, stream, &diag);
 *     kvant_device_attend_prepare(work, sequences, n, &options, stream, &diag);
 *     kvant_device_attend_launch(work, stream, &diag);
 *
 * Two halves: `prepare` checks, and writes job lists into device memory in stream order. `launch` puts
 * kernels into the stream, always the same ones with the same arguments: it may be captured into a CUDA graph
 * once, and the graph be launched after every prepare. Neither half allocates. `prepare` waits for the lists
 * of the prepare before the last one, `launch` for nothing.
 *
 * Addresses of rows, extents and outputs are device addresses, in views cast to pointers; the library does
 * not read them, and cannot check them. Lists (blocks, references, runs, tags) lie in the host's memory and
 * are free again when prepare returns. `stream` is a CUstream of the device's context; NULL = the default
 * one.
 *
 * Context: a device is opened in the primary context of its number, or in that of a stream; none is created,
 * and the thread's current context is afterwards what it was.
 *
 * Threads: a device may be used by any number of threads, a layer likewise; a work by one at a time.
 *
 * Errors beside those of kvant.h: DEVICE (no driver, no such device, a driver older than an image, an
 * architecture without an image, a launch that failed), MEMORY (the device's or the host's), UNSUPPORTED (the
 * codec's plugin carries no kernels, or none for this setup). Nothing falls back to the CPU. */
#ifndef KVANT_DEVICE_H
#define KVANT_DEVICE_H

#include "kvant.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Device -------------------------------------------------------------------------------------------- */

typedef struct kvant_device kvant_device;

/* Device `ordinal` of the driver. */
KVANT_API kvant_status kvant_device_open(uint32_t ordinal, kvant_device **device, kvant_diag *diag);

/* The device and context of a CUstream, which outlives what is opened here. */
KVANT_API kvant_status kvant_device_open_stream(void *stream, kvant_device **device, kvant_diag *diag);

/* After everything that was opened on it. NULL is fine. */
KVANT_API void kvant_device_close(kvant_device *device);

typedef struct kvant_device_info {
    uint32_t struct_size;
    uint32_t major; /* compute capability */
    uint32_t minor;
    uint32_t multiprocessors;
    char name[128];
} kvant_device_info;

/* The caller sets info->struct_size. */
KVANT_API kvant_status kvant_device_describe(const kvant_device *device, kvant_device_info *info);

/* ---- Memory -------------------------------------------------------------------------------------------- */

/* For callers without an allocator of their own. Aligned to 256 bytes; 0 is no address. */
KVANT_API kvant_status kvant_device_alloc(kvant_device *device, uint64_t bytes, uint64_t *address,
                                          kvant_diag *diag);
KVANT_API void kvant_device_free(kvant_device *device,
                                 uint64_t address); /* waits for the device; 0 is fine */

/* In stream order; the host's memory may be used again, or holds what was copied, when these return. */
KVANT_API kvant_status kvant_device_write(kvant_device *device, uint64_t to, const void *from, uint64_t bytes,
                                          void *stream, kvant_diag *diag);
KVANT_API kvant_status kvant_device_read(kvant_device *device, void *to, uint64_t from, uint64_t bytes,
                                         void *stream, kvant_diag *diag);

/* ---- Layer --------------------------------------------------------------------------------------------- */

/* How a layer attends; the results are within the same tolerances. */
enum {
    KVANT_DEVICE_ATTEND_FUSED = 1, /* one kernel of the plugin's for both sides' codes */
    KVANT_DEVICE_ATTEND_SPLIT =
        2,                       /* score, softmax, mix one after another: codecs of two plugins, say; 4 bytes
                                      of scratch for each token and query row are written and read twice */
    KVANT_DEVICE_ATTEND_ROWS = 3 /* blocks are decoded to scratch, then attended */
};

typedef struct kvant_device_layer kvant_device_layer;

/* Loads the plugins' images that fit the device, makes every kernel resident, uploads what the codecs
 * learned; waits for the device. `attention` outlives the layer. UNSUPPORTED where keys that are given are
 * before RoPE. */
KVANT_API kvant_status kvant_device_layer_open(kvant_device *device, const kvant_attention *attention,
                                               kvant_device_layer **layer, kvant_diag *diag);
KVANT_API void kvant_device_layer_close(kvant_device_layer *layer);

typedef struct kvant_device_layer_info {
    uint32_t struct_size;
    uint32_t attends; /* KVANT_DEVICE_ATTEND_* */
    uint32_t jit[2];  /* of the key's, the value's plugin: 1 = the driver compiled PTX, for want of a cubin */
} kvant_device_layer_info;

/* The caller sets info->struct_size. */
KVANT_API kvant_status kvant_device_layer_describe(const kvant_device_layer *layer,
                                                   kvant_device_layer_info *info);

/* ---- Work ---------------------------------------------------------------------------------------------- */

/* The largest batch. A call that is 0 is not asked for. */
typedef struct kvant_device_limits {
    uint32_t struct_size;
    uint32_t blocks;           /* of one side that one call encodes or decodes */
    uint32_t sequences;        /* of one attention, as all that follow */
    uint32_t positions;        /* with queries, of all sequences */
    uint32_t positions_of_one; /* of the sequence that has most; 0 = positions */
    uint32_t reserved;         /* 0 */
    uint32_t runs;             /* raw ones, of all */
    uint32_t span_tokens; /* a sequence is cut into spans of this many tokens for each of its positions with
                             queries, rounded up to blocks: what one thread block attends. 0 = 512. Results
                             depend on it, and on nothing else of the limits */
    uint64_t references;  /* of all */
} kvant_device_limits;

typedef struct kvant_device_work kvant_device_work;

/* Device bytes of a work: its lists, and its scratch. */
KVANT_API kvant_status kvant_device_work_bytes(const kvant_device_layer *layer,
                                               const kvant_device_limits *limits, uint64_t *lists,
                                               uint64_t *scratch, kvant_diag *diag);

/* scratch: 0, or an address of that many bytes, aligned to 256: works whose launches follow one another in
 * one stream may share the largest scratch of them. */
KVANT_API kvant_status kvant_device_work_open(kvant_device_layer *layer, const kvant_device_limits *limits,
                                              uint64_t scratch, kvant_device_work **work, kvant_diag *diag);
KVANT_API void kvant_device_work_close(kvant_device_work *work);

/* ---- Encode and decode --------------------------------------------------------------------------------- */

/* An array of these is walked by its first element's struct_size. */
typedef struct kvant_device_block {
    uint32_t struct_size;
    uint32_t reserved;      /* 0 */
    const kvant_view *rows; /* [block_tokens, kv_heads, head_dim] of the geometry's dtype, device memory */
    uint64_t extent; /* device address, aligned to the layout's alignment; kvant_codec_extent_max bytes */
    uint64_t first_position;
    const uint8_t *tags; /* [block_tokens]; NULL = all zero */
} kvant_device_block;

/* Up to limits.blocks blocks. Same bytes as kvant_codec_encode. */
KVANT_API kvant_status kvant_device_encode_prepare(kvant_device_work *work, uint32_t side,
                                                   const kvant_device_block *blocks, uint32_t count,
                                                   void *stream, kvant_diag *diag);
KVANT_API kvant_status kvant_device_encode_launch(kvant_device_work *work, uint32_t side, void *stream,
                                                  kvant_diag *diag);

/* Waits for the stream; what became of the blocks of the last launch, in their order. reports: [count],
 * walked by the first one's struct_size, set by the caller. NOT_FINITE names block, token, head and channel
 * of the first element that is NaN or infinite; all reports are written, and that block's has size 0. */
KVANT_API kvant_status kvant_device_encode_finish(kvant_device_work *work, uint32_t side,
                                                  kvant_encode_report *reports, uint32_t count, void *stream,
                                                  kvant_diag *diag);

/* An array of these is walked by its first element's struct_size. */
typedef struct kvant_device_extent {
    uint32_t struct_size;
    uint32_t first_token; /* rows->tokens tokens from this one, rows->heads heads from first_head on */
    uint32_t first_head;
    uint32_t reserved;              /* 0 */
    uint64_t extent;                /* device address */
    uint64_t size;                  /* as encode said */
    uint64_t first_position;        /* of token 0 of the block */
    const kvant_mutable_view *rows; /* F32, F16 or BF16, device memory */
} kvant_device_extent;

/* Up to limits.blocks extents. Same floats as kvant_codec_decode. */
KVANT_API kvant_status kvant_device_decode_prepare(kvant_device_work *work, uint32_t side,
                                                   const kvant_device_extent *extents, uint32_t count,
                                                   void *stream, kvant_diag *diag);
KVANT_API kvant_status kvant_device_decode_launch(kvant_device_work *work, uint32_t side, void *stream,
                                                  kvant_diag *diag);

/* ---- Attention ----------------------------------------------------------------------------------------- */

/* The part of one sequence in a call. Query row r stands at position query_position + r and sees tokens up to
 * itself, or the newest `window` of them. An array of these is walked by its first element's struct_size. */
typedef struct kvant_device_sequence {
    uint32_t struct_size;
    uint32_t reference_count;
    uint32_t run_count;
    uint32_t reserved;                     /* 0 */
    const kvant_gpu_reference *references; /* in the order of their positions */
    const kvant_raw_run *runs;             /* likewise; views of device memory */
    const kvant_view *queries;             /* [positions, q_heads, key_dim] of the geometry's dtype */
    const kvant_mutable_view *outputs;     /* [positions, q_heads, value_dim], F32, F16 or BF16 */
    uint64_t log_sum_exp;    /* device address of floats [positions, q_heads], as in kvant_attention_sequence;
                                0 = not asked for */
    uint64_t query_position; /* of row 0 */
} kvant_device_sequence;

typedef struct kvant_device_attend_options {
    uint32_t struct_size;
    uint32_t window;     /* 0 = all */
    float scale;         /* not 0 */
    float soft_cap;      /* 0 = none */
    uint64_t key_base;   /* extents of references lie at base + index * stride: one's own block table */
    uint64_t key_stride; /* bytes */
    uint64_t value_base;
    uint64_t value_stride;
} kvant_device_attend_options;

/* Same numbers as kvant_attention_run but for what attention on codes adds (layout.attend_tolerance) and
 * 2^-18 of the sums of absolute products: plugin_gpu.h says of what it is made. The same bits for the same
 * sequence whatever else is in the call. */
KVANT_API kvant_status kvant_device_attend_prepare(kvant_device_work *work,
                                                   const kvant_device_sequence *sequences, uint32_t count,
                                                   const kvant_device_attend_options *options, void *stream,
                                                   kvant_diag *diag);
KVANT_API kvant_status kvant_device_attend_launch(kvant_device_work *work, void *stream, kvant_diag *diag);

#ifdef __cplusplus
}
#endif

#endif
