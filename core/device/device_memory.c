/* Memory of a device and copies into and out of it. See device.h. */
#include "device/device_internal.h"

#include <kvant/kit/diag.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

kvant_gpu_view device_view(const void *data, int64_t token_stride, int64_t head_stride,
                           int64_t channel_stride) {
    return (kvant_gpu_view){(uint64_t)(uintptr_t)data, token_stride, head_stride, channel_stride};
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

kvant_status kvant_device_alloc(kvant_device *device, uint64_t bytes, uint64_t *address, kvant_diag *diag) {
    if (device == NULL || address == NULL || bytes == 0 || bytes > SIZE_MAX / 2)
        return REFUSE(KVANT_ERROR_ARGUMENT, "",
                      "kvant_device_alloc: device or address is NULL, or %llu bytes are asked for",
                      (unsigned long long)bytes);
    const gpu_driver *d = device->gpu.driver;
    gpu_address made = 0;
    char what[64];
    (void)snprintf(what, sizeof what, "%llu bytes of device memory", (unsigned long long)bytes);
    kvant_status status = gpu_device_enter(&device->gpu, diag);
    if (status != KVANT_OK) return status;
    status = gpu_check(d, d->memory_alloc(&made, (size_t)bytes), what, diag);
    gpu_device_leave(&device->gpu);
    if (status == KVANT_OK) *address = made;
    return status;
}

void kvant_device_free(kvant_device *device, uint64_t address) {
    if (device == NULL || address == 0 || gpu_device_enter(&device->gpu, NULL) != KVANT_OK) return;
    (void)device->gpu.driver->memory_free(address);
    gpu_device_leave(&device->gpu);
}

void *device_pinned_take(kvant_device *device, size_t bytes) {
    void *made = NULL;
    if (gpu_device_enter(&device->gpu, NULL) != KVANT_OK) return NULL;
    if (device->gpu.driver->host_alloc(&made, bytes, 0) != GPU_SUCCESS) made = NULL;
    gpu_device_leave(&device->gpu);
    return made;
}

void device_pinned_give(kvant_device *device, void *memory) {
    if (memory == NULL || gpu_device_enter(&device->gpu, NULL) != KVANT_OK) return;
    (void)device->gpu.driver->host_free(memory);
    gpu_device_leave(&device->gpu);
}

/* ---- Copies -------------------------------------------------------------------------------------------- */

kvant_status device_copy_in(kvant_device *device, uint64_t to, const void *pinned, uint64_t bytes,
                            void *stream, kvant_diag *diag) {
    const gpu_driver *d = device->gpu.driver;
    kvant_status status = bytes > 0 ? gpu_device_enter(&device->gpu, diag) : KVANT_OK;
    if (bytes == 0 || status != KVANT_OK) return status;
    status = gpu_check(d, d->copy_to_device(to, pinned, (size_t)bytes, stream), "cuMemcpyHtoDAsync", diag);
    gpu_device_leave(&device->gpu);
    return status;
}

kvant_status device_copy_out(kvant_device *device, void *pinned, uint64_t from, uint64_t bytes, void *stream,
                             kvant_diag *diag) {
    const gpu_driver *d = device->gpu.driver;
    kvant_status status = bytes > 0 ? gpu_device_enter(&device->gpu, diag) : KVANT_OK;
    if (bytes == 0 || status != KVANT_OK) return status;
    status = gpu_check(d, d->copy_to_host(pinned, from, (size_t)bytes, stream), "cuMemcpyDtoHAsync", diag);
    gpu_device_leave(&device->gpu);
    return status;
}

kvant_status device_copy_within(kvant_device *device, uint64_t to, uint64_t from, uint64_t bytes,
                                void *stream, kvant_diag *diag) {
    const gpu_driver *d = device->gpu.driver;
    kvant_status status = bytes > 0 ? gpu_device_enter(&device->gpu, diag) : KVANT_OK;
    if (bytes == 0 || status != KVANT_OK) return status;
    status = gpu_check(d, d->copy_on_device(to, from, (size_t)bytes, stream), "cuMemcpyDtoDAsync", diag);
    gpu_device_leave(&device->gpu);
    return status;
}

kvant_status device_set(kvant_device *device, uint64_t to, unsigned char value, uint64_t bytes, void *stream,
                        kvant_diag *diag) {
    const gpu_driver *d = device->gpu.driver;
    kvant_status status = bytes > 0 ? gpu_device_enter(&device->gpu, diag) : KVANT_OK;
    if (bytes == 0 || status != KVANT_OK) return status;
    status = gpu_check(d, d->memory_set(to, value, (size_t)bytes, stream), "cuMemsetD8Async", diag);
    gpu_device_leave(&device->gpu);
    return status;
}

kvant_status device_wait(kvant_device *device, void *stream, kvant_diag *diag) {
    const gpu_driver *d = device->gpu.driver;
    kvant_status status = gpu_device_enter(&device->gpu, diag);
    if (status != KVANT_OK) return status;
    status = gpu_check(d, d->stream_synchronize(stream), "cuStreamSynchronize", diag);
    gpu_device_leave(&device->gpu);
    return status;
}

kvant_status kvant_device_write(kvant_device *device, uint64_t to, const void *from, uint64_t bytes,
                                void *stream, kvant_diag *diag) {
    if (device == NULL || to == 0 || (from == NULL && bytes > 0))
        return REFUSE(KVANT_ERROR_ARGUMENT, "", "kvant_device_write: device, to or from is NULL");
    kvant_status status = device_copy_in(device, to, from, bytes, stream, diag);
    return status == KVANT_OK ? device_wait(device, stream, diag) : status;
}

kvant_status kvant_device_read(kvant_device *device, void *to, uint64_t from, uint64_t bytes, void *stream,
                               kvant_diag *diag) {
    if (device == NULL || from == 0 || (to == NULL && bytes > 0))
        return REFUSE(KVANT_ERROR_ARGUMENT, "", "kvant_device_read: device, to or from is NULL");
    kvant_status status = device_copy_out(device, to, from, bytes, stream, diag);
    return status == KVANT_OK ? device_wait(device, stream, diag) : status;
}

/* ---- Lists --------------------------------------------------------------------------------------------- */

kvant_status device_list_begin(kvant_device *device, device_list *list, unsigned char **pinned,
                               kvant_diag *diag) {
    const gpu_driver *d = device->gpu.driver;
    list->turn ^= 1;
    if (list->used[list->turn]) {
        kvant_status status = gpu_device_enter(&device->gpu, diag);
        if (status != KVANT_OK) return status;
        status = gpu_check(d, d->event_synchronize(list->arrived[list->turn]), "cuEventSynchronize", diag);
        gpu_device_leave(&device->gpu);
        if (status != KVANT_OK) return status;
        list->used[list->turn] = false;
    }
    *pinned = list->pinned[list->turn];
    return KVANT_OK;
}

kvant_status device_list_end(kvant_device *device, device_list *list, const device_segment *segments,
                             uint32_t count, void *stream, kvant_diag *diag) {
    const gpu_driver *d = device->gpu.driver;
    const unsigned char *pinned = list->pinned[list->turn];
    kvant_status status = gpu_device_enter(&device->gpu, diag);
    if (status != KVANT_OK) return status;
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++)
        if (segments[i].bytes > 0)
            status = gpu_check(d,
                               d->copy_to_device(list->address + segments[i].at, pinned + segments[i].at,
                                                 (size_t)segments[i].bytes, stream),
                               "cuMemcpyHtoDAsync", diag);
    if (status == KVANT_OK)
        status = gpu_check(d, d->event_record(list->arrived[list->turn], stream), "cuEventRecord", diag);
    list->used[list->turn] = status == KVANT_OK;
    gpu_device_leave(&device->gpu);
    return status;
}
