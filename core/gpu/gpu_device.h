/* A device, a plugin's code on it, and an opened codec's launches. All of it works inside one context: the
 * one of the caller's stream, or a device's primary one, which is retained; none is created, and the thread's
 * current context is afterwards what it was. */
#ifndef KVANT_GPU_GPU_DEVICE_H
#define KVANT_GPU_GPU_DEVICE_H

#include "gpu/gpu_driver.h"
#include "gpu/gpu_image.h"
#include "gpu/gpu_launch.h"

/* ---- Device -------------------------------------------------------------------------------------------- */

typedef struct gpu_device {
    const gpu_driver *driver;
    gpu_context context;
    gpu_device_number number;
    bool is_retained;      /* the primary context, by us */
    uint32_t major, minor; /* compute capability */
    uint32_t multiprocessors;
    uint32_t shared_most; /* bytes of shared memory that a block may have */
    char name[128];
} gpu_device;

/* Device `ordinal` in its primary context. */
kvant_status gpu_device_open(const gpu_driver *driver, int ordinal, gpu_device *device, kvant_diag *diag);
/* The device and context of a stream. */
kvant_status gpu_device_of_stream(const gpu_driver *driver, gpu_stream stream, gpu_device *device,
                                  kvant_diag *diag);
void gpu_device_close(gpu_device *device);

/* Between these the device's context is current in this thread. */
kvant_status gpu_device_enter(const gpu_device *device, kvant_diag *diag);
void gpu_device_leave(const gpu_device *device);

/* ---- Code ---------------------------------------------------------------------------------------------- */

typedef struct gpu_module {
    const gpu_device *device;
    const kvant_gpu *gpu;
    gpu_library library;
    bool is_jit; /* PTX that the driver compiled, for want of a cubin */
} gpu_module;

/* `plugin`: its name, for messages. */
kvant_status gpu_module_load(const gpu_device *device, const char *plugin, const kvant_gpu *gpu,
                             gpu_module *module, kvant_diag *diag);
void gpu_module_unload(gpu_module *module);

/* ---- Codec --------------------------------------------------------------------------------------------- */

typedef struct gpu_codec {
    const gpu_module *module;
    kvant_gpu_plan plan;
    gpu_launchable kernels[KVANT_GPU_KERNELS]; /* of plan.kernels */
    gpu_address state;
} gpu_codec;

/* Plans, makes every kernel resident (a first use during a capture would be an error) and uploads the state.
 * `state` is the plugin's, open for this setup. Waits for the stream. */
kvant_status gpu_codec_open(const gpu_module *module, const kvant_setup *setup, const kvant_layout *layout,
                            const void *state, gpu_stream stream, gpu_codec *codec, kvant_diag *diag);
/* Adds the kernel that attends on both sides' codes to the key side's codec. UNSUPPORTED where the plugin has
 * none for this pair. */
kvant_status gpu_codec_pair(gpu_codec *codec, const kvant_setup *key, const kvant_setup *value,
                            kvant_diag *diag);
void gpu_codec_close(gpu_codec *codec);

bool gpu_codec_offers(const gpu_codec *codec, uint32_t call);

/* Device bytes that a call over at most `jobs` jobs needs beside its jobs. */
uint64_t gpu_codec_scratch_bytes(const gpu_codec *codec, uint32_t call, uint32_t jobs);

/* What a launch is made of. The arrays lie in device memory and may be filled in stream order up to the
 * launch. */
typedef struct gpu_batch {
    gpu_address jobs;
    gpu_address job_count; /* a uint32_t, at most jobs_most */
    gpu_address scratch;   /* of gpu_codec_scratch_bytes, aligned to 256 bytes; 0 where that is 0 */
    gpu_address layer;     /* a kvant_gpu_layer, or 0 */
    uint32_t jobs_most;
} gpu_batch;

/* Puts the call's kernels into the stream. The launches depend on the batch's addresses and jobs_most alone,
 * so a graph that captured them works on whatever jobs lie there when it runs. */
kvant_status gpu_codec_launch(const gpu_codec *codec, uint32_t call, const gpu_batch *batch,
                              gpu_stream stream, kvant_diag *diag);

#endif
