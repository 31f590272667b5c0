/* What kivi's kernels know of a codec: its kivi_block in members of fixed size, read by C and by CUDA. See
 * kivi_block.h for what they mean and for the byte map. */
#ifndef KVANT_KIVI_GPU_H
#define KVANT_KIVI_GPU_H

#include <stdint.h>

enum {
    KIVI_GPU_THREADS = 128,
    KIVI_GPU_TOKENS = 64, /* of a decode unit; of a value's matrix */
    KIVI_GPU_GROUPS = 32  /* of channels, of a value encode unit: a multiple of 8, so that units begin at
                             octets */
};

typedef struct kivi_gpu_state {
    uint32_t bits;
    uint32_t levels;
    uint32_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t group;
    uint32_t groups;
    uint32_t dtype;
    uint32_t meta;
    uint32_t meta_bytes;
    uint32_t plane_row;
    uint32_t tiles; /* values: units of KIVI_GPU_GROUPS groups in a matrix */
    uint64_t matrix_bytes;
    uint64_t scale_offset;
    uint64_t min_offset;
    uint64_t head_bytes;
    uint64_t bytes;
} kivi_gpu_state;

#endif
