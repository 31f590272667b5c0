/* A bed (support/attend_bed.h) on a device: the same rows, blocks and calls there, through kvant/device.h.
 *
 * The driver is whatever is found: a real one, or the interpreter's libcuda.so.1 where the search path names
 * it. */
#ifndef KVANT_TEST_GPU_DEVICE_BED_H
#define KVANT_TEST_GPU_DEVICE_BED_H

#include "support/attend_bed.h"

#include <device/device_internal.h>

/* Device 0; the test is skipped where this build has no kernels, and fails where there is no driver. */
kvant_device *device_bed_device(void);

typedef struct device_bed {
    kvant_device *device;
    const bed *host;
    kvant_device_layer *layer;
    uint64_t raw[2];     /* the bed's rows there */
    uint64_t extents[2]; /* [blocks] extents, bed_extent_stride apart, poisoned */
    void *stream;
} device_bed;

/* attends: KVANT_DEVICE_ATTEND_*, instead of what the layer would choose; 0 = that. */
device_bed *device_bed_open(kvant_device *device, const bed *host, uint32_t attends);
void device_bed_close(device_bed *b);

/* Encodes all blocks of both sides, at most `batch` at a time, and compares every byte, padding and the room
 * behind extents with the host's. */
void device_bed_encode(device_bed *b, uint32_t batch);

/* The same, one block at a time, and nobody waits before all are in the stream. */
void device_bed_encode_at_once(device_bed *b);

/* A call of the bed's on the device: outputs and log-sum-exps come back into the call. Its queries are
 * rounded to the geometry's dtype first. Blocks are referred to in an order of their own in memory where
 * `shuffled`. */
typedef struct device_bed_options {
    uint32_t window;
    float soft_cap;
    uint32_t span_tokens;
    uint32_t output_dtype; /* 0 = F32 */
} device_bed_options;
void device_bed_run(device_bed *b, bed_call *const *calls, uint32_t count, const device_bed_options *options);

#endif
