/* The kernels of gpu_plain.cu, launched. */
#ifndef KVANT_BENCH_GPU_PLAIN_RUN_H
#define KVANT_BENCH_GPU_PLAIN_RUN_H

#include "gpu_data.h"
#include "gpu_plain.h"

typedef struct gpu_plain {
    gpu_clock *clock;
    gpu_module module;
    gpu_launchable attend, merge;
} gpu_plain;

kvant_status gpu_plain_open(gpu_clock *clock, gpu_plain *plain, kvant_diag *diag);
void gpu_plain_close(gpu_plain *plain);

/* One query position of `sequences` sequences of as many tokens. */
typedef struct gpu_plain_shape {
    uint32_t sequences, kv_heads, group, tokens;
} gpu_plain_shape;

typedef struct gpu_plain_sets {
    const gpu_plain *plain;
    gpu_plain_shape shape;
    plain_call *calls; /* [sets] */
    uint64_t bytes;    /* of keys and values of a set */
    gpu_timed timed;
} gpu_plain_sets;

/* Rows in the room's memory. Splits of the tokens: as many as fill the device `waves` times; or, to choose
 * among 1, 2 and 4, by a glance: waves = 0. */
kvant_status gpu_plain_sets_open(const gpu_plain *plain, gpu_room *room, const gpu_plain_shape *shape,
                                 uint32_t sets, uint32_t waves, gpu_plain_sets *made, kvant_diag *diag);
void gpu_plain_sets_close(gpu_plain_sets *made);

/* Against attention in double precision, over a few shapes: the largest ||o - o'|| / sum of p ||v||
 * of a row. */
kvant_status gpu_plain_check(const gpu_plain *plain, double *error, kvant_diag *diag);

#endif
