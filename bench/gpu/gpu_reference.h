/* Attention of one query row in double precision, over bf16 rows in the host's memory. */
#ifndef KVANT_BENCH_GPU_REFERENCE_H
#define KVANT_BENCH_GPU_REFERENCE_H

#include <stddef.h>
#include <stdint.h>

typedef struct gpu_reference_rows {
    const uint16_t *keys, *values; /* of a kv head, token 0 */
    size_t stride;                 /* elements from one token to the next */
    uint32_t tokens, dim;
    double scale;
} gpu_reference_rows;

/* ||o - output|| / sum of p ||v||; NaN where `output` is. logits: [tokens], overwritten. dim <= 256. */
double gpu_reference_error(const gpu_reference_rows *rows, const uint16_t *query, const float *output,
                           double *logits);

#endif
