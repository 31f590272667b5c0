/* kvant/kit/split.h: kernels made with kvant/kit/split.cuh, as a plan names them. */
#ifndef KVANT_KIT_SPLIT_H
#define KVANT_KIT_SPLIT_H

#include "../plugin_gpu.h"

#include <stdio.h>
#include <string.h>

enum {
    KVANT_SPLIT_THREADS = 128,
    KVANT_SPLIT_ROWS = 8,        /* query rows that share one unpacking */
    KVANT_SPLIT_DIM_MOST = 1024, /* head_dim */
    /* Units of 16 bytes of shared memory that eight channels of ROWS queries take. Two more than they need,
     * so that four lanes with an octet each read from different banks. */
    KVANT_SPLIT_OCTET = 2 * KVANT_SPLIT_ROWS + 2
};

/* call: KVANT_GPU_SCORE or KVANT_GPU_MIX, with head_dim up to KVANT_SPLIT_DIM_MOST. */
static inline kvant_gpu_kernel kvant_split_kernel(const char *name, uint32_t call, uint32_t head_dim) {
    kvant_gpu_kernel kernel;
    memset(&kernel, 0, sizeof kernel);
    (void)snprintf(kernel.name, sizeof kernel.name, "%s", name);
    kernel.call = call;
    kernel.threads = KVANT_SPLIT_THREADS;
    kernel.units = 1;
    if (call == KVANT_GPU_SCORE) kernel.shared_bytes = (head_dim + 7) / 8 * KVANT_SPLIT_OCTET * 16;
    return kernel;
}

#endif
