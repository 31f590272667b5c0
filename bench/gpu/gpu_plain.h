/* Attention over uncompressed bf16 rows, what coded attention is measured against: parameters of the
 * kernels in gpu_plain.cu. C and CUDA read it. */
#ifndef KVANT_BENCH_GPU_PLAIN_H
#define KVANT_BENCH_GPU_PLAIN_H

#include <kvant/types.h>

enum {
    PLAIN_DIM = 128,      /* channels of a head */
    PLAIN_GROUP_MOST = 8, /* query heads of a kv head */
    PLAIN_THREADS = 128,
    PLAIN_TOKENS = 64,            /* of one step of a block */
    PLAIN_PARTIAL = 2 + PLAIN_DIM /* floats: largest logit in base 2, sum, weights times values */
};

/* plain_attend: grid sequences * kv_heads * splits. plain_merge: grid sequences * kv_heads * group. Addresses
 * are the device's, aligned to 16 bytes. */
typedef struct plain_call {
    uint64_t queries;  /* bf16 [sequences, kv_heads * group, DIM] */
    uint64_t keys;     /* bf16 [sequences, kv_heads, tokens, DIM] */
    uint64_t values;   /* likewise */
    uint64_t partials; /* float [sequences, kv_heads * group, splits, PARTIAL] */
    uint64_t outputs;  /* float [sequences, kv_heads * group, DIM] */
    uint32_t tokens;
    uint32_t kv_heads;
    uint32_t group;
    uint32_t splits; /* of the tokens, each a block's */
    float scale;     /* of logits */
    uint32_t reserved;
} plain_call;

#endif
