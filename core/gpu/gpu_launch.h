/* Kernels of a module, found and launched by name: a codec's (gpu_device.h), the core's (core_kernels.h). */
#ifndef KVANT_GPU_GPU_LAUNCH_H
#define KVANT_GPU_GPU_LAUNCH_H

#include "gpu/gpu_driver.h"

#include <kvant/plugin.h>

typedef struct gpu_module gpu_module; /* gpu_device.h */

/* A kernel that is resident, with how it is launched. */
typedef struct gpu_launchable {
    gpu_function function;
    uint32_t resident; /* blocks that the device holds at once */
    uint32_t threads;  /* of a block */
    uint32_t shared_bytes;
    char name[64];
} gpu_launchable;

/* Finds the kernel and makes it resident: a first use during a capture would be an error. PLUGIN_BROKEN: the
 * image has no such kernel. UNSUPPORTED: it does not fit onto the device. */
kvant_status gpu_launchable_open(const gpu_module *module, const char *name, uint32_t threads,
                                 uint32_t shared_bytes, gpu_launchable *kernel, kvant_diag *diag);

/* Blocks of a launch over at most `units` units of work: as many as have work, no more than run at once. */
uint32_t gpu_launchable_grid(const gpu_launchable *kernel, uint64_t units);

/* Puts one launch into the stream; none where units_most is 0. The same for the same arguments, so that it
 * may be captured. UNSUPPORTED: 2^31 units or more. */
kvant_status gpu_launchable_launch(const gpu_module *module, const gpu_launchable *kernel,
                                   uint64_t units_most, const kvant_gpu_call *call, gpu_stream stream,
                                   kvant_diag *diag);

#endif
