/* Device memory of a benchmark, freed all at once, and what is in it. */
#ifndef KVANT_BENCH_GPU_DATA_H
#define KVANT_BENCH_GPU_DATA_H

#include "gpu_clock.h"

/* Zeroed, with the clock set. */
typedef struct gpu_room {
    gpu_clock *clock;
    gpu_address *addresses;
    uint32_t count;
} gpu_room;

kvant_status gpu_room_take(gpu_room *room, uint64_t bytes, gpu_address *address, kvant_diag *diag);
/* Waits for the device. */
void gpu_room_free(gpu_room *room);

/* Numbers of a bell curve with variance 1, F32, F16 or BF16; the first 8 MiB repeat. Waits for the stream. */
kvant_status gpu_fill(gpu_clock *clock, gpu_address to, uint64_t bytes, uint32_t dtype, uint64_t seed,
                      kvant_diag *diag);

/* Bytes of the device in memory of the host, which the caller frees. Waits for the stream. */
kvant_status gpu_read(gpu_clock *clock, gpu_address from, size_t bytes, void **to, kvant_diag *diag);

/* A copy on the device that reads half of `bytes` and writes as many, for each of `sets` buffers. */
typedef struct gpu_copy {
    gpu_clock *clock;
    gpu_address at;
    uint64_t bytes;
    gpu_timed timed;
} gpu_copy;

kvant_status gpu_copy_open(gpu_room *room, uint64_t bytes, uint32_t sets, gpu_copy *copy, kvant_diag *diag);

#endif
