/* See gpu_device.h: a plugin's code on a device, and launches of an opened codec. */
#include "gpu/gpu_device.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>

/* ---- Modules ------------------------------------------------------------------------------------------- */

/* What a refused image means, for a person who cannot see the driver. */
static kvant_status explain(const gpu_device *device, const char *plugin, bool is_ptx, gpu_result result,
                            kvant_diag *diag) {
    int version = 0;
    if (device->driver->driver_version(&version) != GPU_SUCCESS) version = 0;
    if (result == GPU_ERROR_UNSUPPORTED_PTX_VERSION || (is_ptx && result == GPU_ERROR_INVALID_PTX))
        return kvant_fail(diag, KVANT_ERROR_DEVICE, "",
                          "codec %s: the driver (CUDA %d.%d) is older than the plugin's PTX; no cubin of the "
                          "plugin fits %s (compute capability %u.%u)",
                          plugin, version / 1000, version % 1000 / 10, device->name, device->major,
                          device->minor);
    if (result == GPU_ERROR_NO_BINARY_FOR_GPU || result == GPU_ERROR_INVALID_IMAGE)
        return kvant_fail(
            diag, KVANT_ERROR_DEVICE, "",
            "codec %s: the driver (CUDA %d.%d) does not take the plugin's image for %s (compute "
            "capability %u.%u): it is older than the image, or the image is damaged (error %d)",
            plugin, version / 1000, version % 1000 / 10, device->name, device->major, device->minor, result);
    return gpu_check(device->driver, result, "cuLibraryLoadData", diag);
}

kvant_status gpu_module_load(const gpu_device *device, const char *plugin, const kvant_gpu *gpu,
                             gpu_module *module, kvant_diag *diag) {
    const kvant_gpu_image *image = NULL;
    char *bytes = NULL;
    size_t size = 0;
    *module = (gpu_module){.device = device, .gpu = gpu};
    kvant_status status = gpu_vet(gpu, diag);
    if (status == KVANT_OK) status = gpu_image_choose(gpu, device->major, device->minor, &image, diag);
    if (status == KVANT_OK) status = gpu_image_bytes(image, &bytes, &size, diag);
    if (status == KVANT_OK && (status = gpu_device_enter(device, diag)) == KVANT_OK) {
        gpu_result result =
            device->driver->library_load(&module->library, bytes, NULL, NULL, 0, NULL, NULL, 0);
        gpu_device_leave(device);
        module->is_jit = image->kind == KVANT_IMAGE_PTX;
        if (result != GPU_SUCCESS) status = explain(device, plugin, module->is_jit, result, diag);
    }
    if (status != KVANT_OK) module->library = NULL;
    free(bytes);
    return status;
}

void gpu_module_unload(gpu_module *module) {
    if (module->library != NULL && gpu_device_enter(module->device, NULL) == KVANT_OK) {
        (void)module->device->driver->library_unload(module->library);
        gpu_device_leave(module->device);
    }
    *module = (gpu_module){0};
}

/* ---- Codecs -------------------------------------------------------------------------------------------- */

static kvant_status make_resident(gpu_codec *codec, uint32_t index, kvant_diag *diag) {
    const kvant_gpu_kernel *k = &codec->plan.kernels[index];
    return gpu_launchable_open(codec->module, k->name, k->threads, k->shared_bytes, &codec->kernels[index],
                               diag);
}

static kvant_status upload(gpu_codec *codec, const void *state, gpu_stream stream, kvant_diag *diag) {
    const gpu_driver *d = codec->module->device->driver;
    uint64_t size = codec->plan.state_bytes;
    if (size == 0) return KVANT_OK;
    void *bytes = calloc(1, size);
    if (bytes == NULL)
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no room for %llu bytes", (unsigned long long)size);
    kvant_status status = codec->module->gpu->upload(state, &codec->plan, bytes);
    if (status != KVANT_OK) kvant_fail(diag, status, "", "kvant.gpu/1: upload failed: %d", status);
    if (status == KVANT_OK)
        status = gpu_check(d, d->memory_alloc(&codec->state, size), "memory of a codec's state", diag);
    if (status == KVANT_OK)
        status =
            gpu_check(d, d->copy_to_device(codec->state, bytes, size, stream), "cuMemcpyHtoDAsync", diag);
    if (status == KVANT_OK) status = gpu_check(d, d->stream_synchronize(stream), "cuStreamSynchronize", diag);
    free(bytes);
    return status;
}

kvant_status gpu_codec_open(const gpu_module *module, const kvant_setup *setup, const kvant_layout *layout,
                            const void *state, gpu_stream stream, gpu_codec *codec, kvant_diag *diag) {
    *codec = (gpu_codec){.module = module, .plan = {.struct_size = sizeof codec->plan}};
    kvant_status status = module->gpu->plan(setup, layout, &codec->plan, diag);
    if (status == KVANT_OK) status = gpu_plan_vet(&codec->plan, diag);
    if (status != KVANT_OK || (status = gpu_device_enter(module->device, diag)) != KVANT_OK) return status;
    for (uint32_t i = 0; i < codec->plan.kernel_count && status == KVANT_OK; i++)
        status = make_resident(codec, i, diag);
    if (status == KVANT_OK) status = upload(codec, state, stream, diag);
    gpu_device_leave(module->device);
    if (status != KVANT_OK) gpu_codec_close(codec);
    return status;
}

kvant_status gpu_codec_pair(gpu_codec *codec, const kvant_setup *key, const kvant_setup *value,
                            kvant_diag *diag) {
    const kvant_gpu *gpu = codec->module->gpu;
    kvant_gpu_plan one = {.struct_size = sizeof one, .kernel_count = 1};
    if (gpu->struct_size < offsetof(kvant_gpu, pair) + sizeof gpu->pair || gpu->pair == NULL ||
        codec->plan.kernel_count == KVANT_GPU_KERNELS)
        return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "", "the codec has no kernel for a pair");
    kvant_status status = gpu->pair(key, value, &one.kernels[0], diag);
    if (status == KVANT_OK) status = gpu_plan_vet(&one, diag);
    if (status == KVANT_OK && one.kernels[0].call != KVANT_GPU_ATTEND)
        status = kvant_fail(diag, KVANT_ERROR_PLUGIN_BROKEN, "", "the kernel of a pair serves call %u",
                            one.kernels[0].call);
    if (status != KVANT_OK || (status = gpu_device_enter(codec->module->device, diag)) != KVANT_OK)
        return status;
    uint32_t index = codec->plan.kernel_count;
    codec->plan.kernels[index] = one.kernels[0];
    status = make_resident(codec, index, diag);
    gpu_device_leave(codec->module->device);
    if (status == KVANT_OK) codec->plan.kernel_count++;
    return status;
}

void gpu_codec_close(gpu_codec *codec) {
    const gpu_module *module = codec->module;
    if (codec->state != 0 && gpu_device_enter(module->device, NULL) == KVANT_OK) {
        (void)module->device->driver->memory_free(codec->state);
        gpu_device_leave(module->device);
    }
    *codec = (gpu_codec){0};
}

bool gpu_codec_offers(const gpu_codec *codec, uint32_t call) {
    for (uint32_t i = 0; i < codec->plan.kernel_count; i++)
        if (codec->plan.kernels[i].call == call) return true;
    return false;
}

/* ---- Launches ------------------------------------------------------------------------------------------ */

/* A function of the batch's limit alone. */
static uint32_t grid_of(const gpu_codec *codec, uint32_t index, uint32_t jobs) {
    return gpu_launchable_grid(&codec->kernels[index], codec->plan.kernels[index].units * jobs);
}

/* Where the blocks' scratch begins: behind that of the jobs, which the kernels of a call share. */
static uint64_t job_scratch(const gpu_codec *codec, uint32_t call, uint32_t jobs) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < codec->plan.kernel_count; i++) {
        const kvant_gpu_kernel *k = &codec->plan.kernels[i];
        if (k->call == call && k->job_scratch_bytes > most) most = k->job_scratch_bytes;
    }
    return most * jobs;
}

uint64_t gpu_codec_scratch_bytes(const gpu_codec *codec, uint32_t call, uint32_t jobs) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < codec->plan.kernel_count; i++) {
        uint64_t bytes = codec->plan.kernels[i].block_scratch_bytes * grid_of(codec, i, jobs);
        if (codec->plan.kernels[i].call == call && bytes > most) most = bytes;
    }
    return job_scratch(codec, call, jobs) + most;
}

kvant_status gpu_codec_launch(const gpu_codec *codec, uint32_t call, const gpu_batch *batch,
                              gpu_stream stream, kvant_diag *diag) {
    const gpu_driver *d = codec->module->device->driver;
    if (!gpu_codec_offers(codec, call))
        return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "", "the codec has no kernel for call %u", call);
    if (batch->jobs_most == 0) return KVANT_OK;
    kvant_status status = gpu_device_enter(codec->module->device, diag);
    if (status != KVANT_OK) return status;
    uint64_t shared = job_scratch(codec, call, batch->jobs_most);
    if (shared > 0)
        status = gpu_check(d, d->memory_set(batch->scratch, 0, shared, stream), "cuMemsetD8Async", diag);
    for (uint32_t i = 0; i < codec->plan.kernel_count && status == KVANT_OK; i++) {
        const kvant_gpu_kernel *k = &codec->plan.kernels[i];
        if (k->call != call) continue;
        const kvant_gpu_call arguments = {.state = codec->state,
                                          .jobs = batch->jobs,
                                          .job_count = batch->job_count,
                                          .block_scratch = batch->scratch + shared,
                                          .job_scratch = batch->scratch,
                                          .layer = batch->layer};
        status = gpu_launchable_launch(codec->module, &codec->kernels[i], k->units * batch->jobs_most,
                                       &arguments, stream, diag);
    }
    gpu_device_leave(codec->module->device);
    return status;
}
