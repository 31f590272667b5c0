/* One configuration while its checks run: what earlier checks made is what later ones look at. */
#ifndef KVANT_CHECK_CONTEXT_H
#define KVANT_CHECK_CONTEXT_H

#include "check_subject.h"

typedef struct check_context {
    check_worker *worker;
    check_row row;
    check_case configuration;
    kvant_layout layout;
    check_subject subject;
    size_t elements;     /* of a block */
    float *values;       /* [block_tokens, kv_heads, head_dim]: what is encoded */
    check_extent extent; /* encoded from the dense rows */
    uint32_t *decoded;   /* F32 bits of the whole extent */
    check_random random;
    bool has_kernels;           /* kvant.gpu/1 has a plan for it: */
    kvant_gpu_plan kernels;     /*   this one */
    struct check_sample *blocks; /* what kernels encode and decode: check_gpu.h */
    bool over; /* refused, or nothing to go on with */
} check_context;

#endif
