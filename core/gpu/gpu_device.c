/* See gpu_device.h: devices and contexts. */
#include "gpu/gpu_device.h"

#include <kvant/kit/diag.h>

static kvant_status attribute(const gpu_device *device, int attribute_id, uint32_t *value, kvant_diag *diag) {
    int got = 0;
    kvant_status status =
        gpu_check(device->driver, device->driver->device_attribute(&got, attribute_id, device->number),
                  "cuDeviceGetAttribute", diag);
    *value = got > 0 ? (uint32_t)got : 0;
    return status;
}

static kvant_status describe(gpu_device *device, kvant_diag *diag) {
    const gpu_driver *d = device->driver;
    kvant_status status = attribute(device, GPU_ATTRIBUTE_MAJOR, &device->major, diag);
    if (status == KVANT_OK) status = attribute(device, GPU_ATTRIBUTE_MINOR, &device->minor, diag);
    if (status == KVANT_OK)
        status = attribute(device, GPU_ATTRIBUTE_MULTIPROCESSORS, &device->multiprocessors, diag);
    if (status == KVANT_OK)
        status = attribute(device, GPU_ATTRIBUTE_SHARED_OPTIN, &device->shared_most, diag);
    if (status == KVANT_OK)
        status = gpu_check(d, d->device_name(device->name, sizeof device->name, device->number),
                           "cuDeviceGetName", diag);
    return status;
}

kvant_status gpu_device_open(const gpu_driver *driver, int ordinal, gpu_device *device, kvant_diag *diag) {
    int count = 0;
    *device = (gpu_device){.driver = driver};
    kvant_status status = gpu_check(driver, driver->device_count(&count), "cuDeviceGetCount", diag);
    if (status != KVANT_OK) return status;
    if (ordinal < 0 || ordinal >= count)
        return kvant_fail(diag, KVANT_ERROR_DEVICE, "device", "there is no device %d; the driver has %d",
                          ordinal, count);
    status = gpu_check(driver, driver->device_get(&device->number, ordinal), "cuDeviceGet", diag);
    if (status == KVANT_OK) status = describe(device, diag);
    if (status == KVANT_OK)
        status = gpu_check(driver, driver->primary_retain(&device->context, device->number),
                           "cuDevicePrimaryCtxRetain", diag);
    device->is_retained = status == KVANT_OK;
    return status;
}

kvant_status gpu_device_of_stream(const gpu_driver *driver, gpu_stream stream, gpu_device *device,
                                  kvant_diag *diag) {
    *device = (gpu_device){.driver = driver};
    kvant_status status =
        gpu_check(driver, driver->stream_context(stream, &device->context), "cuStreamGetCtx", diag);
    if (status == KVANT_OK) status = gpu_device_enter(device, diag);
    if (status != KVANT_OK) return status;
    status = gpu_check(driver, driver->context_device(&device->number), "cuCtxGetDevice", diag);
    if (status == KVANT_OK) status = describe(device, diag);
    gpu_device_leave(device);
    return status;
}

void gpu_device_close(gpu_device *device) {
    if (device->is_retained) (void)device->driver->primary_release(device->number);
    *device = (gpu_device){0};
}

kvant_status gpu_device_enter(const gpu_device *device, kvant_diag *diag) {
    return gpu_check(device->driver, device->driver->context_push(device->context), "cuCtxPushCurrent", diag);
}

void gpu_device_leave(const gpu_device *device) {
    gpu_context popped = NULL;
    (void)device->driver->context_pop(&popped);
}
