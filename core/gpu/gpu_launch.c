/* See gpu_launch.h. */
#include "gpu/gpu_launch.h"

#include "gpu/gpu_device.h"

#include <kvant/kit/diag.h>

enum { SHARED_UNASKED = 48 << 10 }; /* dynamic shared memory that needs no attribute */

/* The context is entered. */
static kvant_status make_resident(const gpu_module *module, gpu_launchable *k, kvant_diag *diag) {
    const gpu_device *device = module->device;
    const gpu_driver *d = device->driver;
    gpu_kernel kernel = NULL;
    int blocks = 0;
    gpu_result result = d->library_kernel(&kernel, module->library, k->name);
    if (result == GPU_ERROR_NOT_FOUND)
        return kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, "", "the image has no kernel %s", k->name);
    if (k->shared_bytes > device->shared_most)
        return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "",
                          "kernel %s needs %u bytes of shared memory, and a block of %s has %u", k->name,
                          k->shared_bytes, device->name, device->shared_most);
    kvant_status status = gpu_check(d, result, "cuLibraryGetKernel", diag);
    if (status == KVANT_OK)
        status = gpu_check(d, d->kernel_function(&k->function, kernel), "cuKernelGetFunction", diag);
    if (status == KVANT_OK && k->shared_bytes > SHARED_UNASKED)
        status = gpu_check(d,
                           d->function_set_attribute(k->function, GPU_FUNCTION_ATTRIBUTE_MAX_DYNAMIC_SHARED,
                                                     (int)k->shared_bytes),
                           "cuFuncSetAttribute", diag);
    if (status == KVANT_OK)
        status = gpu_check(d, d->occupancy(&blocks, k->function, (int)k->threads, k->shared_bytes),
                           "cuOccupancyMaxActiveBlocksPerMultiprocessor", diag);
    if (status == KVANT_OK && blocks < 1)
        status = kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "", "kernel %s does not fit onto %s", k->name,
                            device->name);
    if (status == KVANT_OK) k->resident = (uint32_t)blocks * device->multiprocessors;
    return status;
}

kvant_status gpu_launchable_open(const gpu_module *module, const char *name, uint32_t threads,
                                 uint32_t shared_bytes, gpu_launchable *kernel, kvant_diag *diag) {
    *kernel = (gpu_launchable){.threads = threads, .shared_bytes = shared_bytes};
    (void)snprintf(kernel->name, sizeof kernel->name, "%s", name);
    kvant_status status = gpu_device_enter(module->device, diag);
    if (status != KVANT_OK) return status;
    status = make_resident(module, kernel, diag);
    gpu_device_leave(module->device);
    return status;
}

uint32_t gpu_launchable_grid(const gpu_launchable *kernel, uint64_t units) {
    return (uint32_t)(units < kernel->resident ? units : kernel->resident);
}

kvant_status gpu_launchable_launch(const gpu_module *module, const gpu_launchable *kernel,
                                   uint64_t units_most, const kvant_gpu_call *call, gpu_stream stream,
                                   kvant_diag *diag) {
    const gpu_driver *d = module->device->driver;
    if (units_most == 0) return KVANT_OK;
    if (units_most >> 31 != 0)
        return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "",
                          "%llu units of work are too many for one launch of %s",
                          (unsigned long long)units_most, kernel->name);
    kvant_status status = gpu_device_enter(module->device, diag);
    if (status != KVANT_OK) return status;
    kvant_gpu_call argument = *call;
    void *pointers[] = {&argument};
    const gpu_launch_config config = {.grid = {gpu_launchable_grid(kernel, units_most), 1, 1},
                                      .block = {kernel->threads, 1, 1},
                                      .shared_bytes = kernel->shared_bytes,
                                      .stream = stream};
    char what[96];
    (void)snprintf(what, sizeof what, "launch of %s", kernel->name);
    status = gpu_check(d, d->launch(&config, kernel->function, pointers, NULL), what, diag);
    gpu_device_leave(module->device);
    return status;
}
