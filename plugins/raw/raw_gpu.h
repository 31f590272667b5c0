/* What raw's kernels know of a codec: its raw_block (see there for the byte map) in members of fixed size,
 * read by C and by CUDA. */
#ifndef KVANT_RAW_GPU_H
#define KVANT_RAW_GPU_H

#include <stdint.h>

enum {
    RAW_GPU_THREADS = 128,
    RAW_GPU_TOKENS = 64 /* of a unit of work, which is one head's */
};

typedef struct raw_gpu_state {
    uint32_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t input;  /* dtype of rows */
    uint32_t format; /* dtype of stored elements */
    uint32_t element_bytes;
    uint64_t row_bytes;
    uint64_t head_bytes;
    uint64_t bytes; /* of an extent */
} raw_gpu_state;

#endif
