/* A codec on a device beside the same codec on the CPU, for tests that compare them.
 *
 * KVANT_GPU=interp (the default) runs the plugin's PTX in the interpreter, KVANT_GPU=real its image on device
 * 0. Everything that goes wrong fails the test. */
#ifndef KVANT_TEST_GPU_RIG_H
#define KVANT_TEST_GPU_RIG_H

#include "gpu_fake.h"

#include "support/test_codec.h"

#include <gpu/gpu_device.h>

typedef struct gpu_rig {
    const gpu_driver *driver;
    bool is_real;
    gpu_device device;
    gpu_module module;
    gpu_codec codec;
    kvant_test_codec *cpu;
    gpu_stream stream;
} gpu_rig;

/* The plugin's code on a device: with the interpreter, one of this compute capability (10 * major + minor).
 * Skips the test where the plugin has no GPU code. */
void gpu_rig_begin(gpu_rig *rig, const char *plugin, uint32_t architecture);
void gpu_rig_end(gpu_rig *rig);

void gpu_rig_open(gpu_rig *rig, const char *plugin, const kvant_setup *setup, const char *parameters);
void gpu_rig_close(gpu_rig *rig);

/* A copy of host memory on the device. */
gpu_address gpu_rig_to_device(gpu_rig *rig, const void *bytes, size_t size);
/* Reads it back (not where bytes is NULL) and frees it. */
void gpu_rig_from_device(gpu_rig *rig, gpu_address at, void *bytes, size_t size);

/* Where rows lie in memory: how element (token, head, channel) is found from `offset` on. */
enum {
    GPU_ROWS_DENSE,      /* token, head, channel; on a 16-byte boundary */
    GPU_ROWS_HEAD_MAJOR, /* head, token, channel, with a gap of 16 bytes after each row */
    GPU_ROWS_ELEMENT,    /* one element away from the boundary */
    GPU_ROWS_ODD,        /* no element on a boundary of its own */
    GPU_ROWS_SPREAD,     /* every other element */
    GPU_ROWS_BACKWARD,   /* tokens from the last to the first */
    GPU_ROWS_KINDS
};
typedef struct gpu_rows {
    uint32_t dtype, tokens, heads, head_dim;
    int64_t token_stride, head_stride, channel_stride;
    size_t offset, bytes; /* of the whole memory */
} gpu_rows;

gpu_rows gpu_rows_of(uint32_t kind, uint32_t dtype, uint32_t tokens, uint32_t heads, uint32_t head_dim);
/* From dense elements to their places; other bytes stay. */
void gpu_rows_scatter(const gpu_rows *rows, const void *dense, void *memory);

/* Encodes `count` blocks at once, dense rows of the setup's dtype one after another, laid out as `kind` says,
 * and compares each extent, its surroundings and its status with what the CPU writes. The last block's extent
 * stays in rig->cpu. */
void gpu_rig_encode(gpu_rig *rig, const void *dense, uint32_t count, uint32_t kind);

/* Decodes part of rig->cpu's extent and compares every byte of the rows' memory with the CPU's floats. */
void gpu_rig_decode(gpu_rig *rig, uint32_t dtype, uint32_t first_token, uint32_t tokens, uint32_t first_head,
                    uint32_t heads, uint32_t kind);

/* The status of one block that is encoded from these rows. */
kvant_gpu_status gpu_rig_status(gpu_rig *rig, const void *dense);

#endif
