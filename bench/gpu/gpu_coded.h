/* A codec on a device, through kvant/device.h: encode, decode and attention over several sets of buffers. */
#ifndef KVANT_BENCH_GPU_CODED_H
#define KVANT_BENCH_GPU_CODED_H

#include "gpu_data.h"

#include <kvant/kvant.h>

enum { CODED_BLOCK = 64, CODED_DIM = 128 };

typedef struct gpu_coded {
    gpu_clock *clock;
    kvant_device *device;
    uint32_t kv_heads, group, dtype;
    kvant_plan *plan;
    kvant_attention *attention;
    kvant_device_layer *layer;
    uint64_t extent_bytes[2], stride[2]; /* of both sides; what the codec needs at most */
} gpu_coded;

/* A codec on both sides; parameters: lines of its section in an INI file. */
kvant_status gpu_coded_open(gpu_clock *clock, kvant_device *device, const char *plugin,
                            const char *parameters, uint32_t kv_heads, uint32_t group, uint32_t dtype,
                            gpu_coded *coded, kvant_diag *diag);
void gpu_coded_close(gpu_coded *coded);

/* Blocks of one side, to and fro. */
typedef struct gpu_coded_blocks {
    const gpu_coded *coded;
    uint32_t side, blocks, sets;
    uint64_t bytes;            /* of the rows and extents of a set */
    kvant_device_work **works; /* [sets] */
    gpu_address rows, decoded, extents;
    gpu_timed encode, decode;
} gpu_coded_blocks;

/* Rows are random; they are encoded once. */
kvant_status gpu_coded_blocks_open(const gpu_coded *coded, gpu_room *room, uint32_t side, uint32_t tokens,
                                   uint32_t sets, gpu_coded_blocks *made, kvant_diag *diag);
void gpu_coded_blocks_close(gpu_coded_blocks *made);

/* One query position of each sequence. */
typedef struct gpu_coded_step {
    const gpu_coded *coded;
    uint32_t sequences, tokens, sets;
    uint32_t span_tokens;
    uint64_t bytes;            /* of the extents of a set */
    kvant_device_work **works; /* [sets] */
    gpu_address extents[2], queries, outputs, scratch;
    uint64_t scratch_bytes;
    gpu_timed timed;
} gpu_coded_step;

/* rows: [sequence, token, kv head, channel] of keys, then of values; 0 = random ones. span_tokens: 0 = chosen
 * by a glance, among those that give every multiprocessor about 1, 2, 4, 8 spans. */
kvant_status gpu_coded_step_open(const gpu_coded *coded, gpu_room *room, uint32_t sequences, uint32_t tokens,
                                 uint32_t sets, uint32_t span_tokens, gpu_address rows, gpu_coded_step *made,
                                 kvant_diag *diag);
void gpu_coded_step_close(gpu_coded_step *made);

/* Over a few sequences, against double precision over bf16 rows before they are coded: the largest ||o -
 * o'|| / sum of p ||v|| of a row. */
kvant_status gpu_coded_check(const gpu_coded *coded, double *error, kvant_diag *diag);

#endif
