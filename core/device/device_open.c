/* A device: found, opened, asked; and the code that plugins carry for it. See kvant/device.h. */
#include "device/device_internal.h"

#include "gpu/core_image.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

/* ---- Code ---------------------------------------------------------------------------------------------- */

static kvant_status load(kvant_device *device, device_module *made, const char *name, const kvant_gpu *gpu,
                         kvant_diag *diag) {
    kvant_diag why = {.struct_size = sizeof why};
    kvant_status status = gpu_module_load(&device->gpu, name, gpu, &made->module, &why);
    if (status == KVANT_OK) return KVANT_OK;
    bool named = strncmp(why.message, "codec ", 6) == 0;
    return REFUSE(status, why.key, "%s%s%s%s", named ? "" : "codec ", named ? "" : name, named ? "" : ": ",
                  why.message);
}

kvant_status device_module_find(kvant_device *device, const kvant_plugin *plugin, const gpu_module **module,
                                kvant_diag *diag) {
    const char *name = plugin->descriptor->name;
    const kvant_gpu *gpu = plugin->extension != NULL ? plugin->extension(KVANT_EXT_GPU) : NULL;
    if (gpu == NULL)
        return REFUSE(KVANT_ERROR_UNSUPPORTED, "", "codec %s carries no kernels for a device", name);
    kvant_status status = KVANT_OK;
    pthread_mutex_lock(&device->lock);
    device_module *found = device->modules;
    while (found != NULL && found->plugin != plugin) found = found->next;
    if (found == NULL) {
        found = calloc(1, sizeof *found);
        status = found != NULL ? load(device, found, name, gpu, diag)
                               : REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
        if (status == KVANT_OK) {
            found->plugin = plugin;
            found->next = device->modules;
            device->modules = found;
        } else {
            free(found);
        }
    }
    pthread_mutex_unlock(&device->lock);
    if (status == KVANT_OK) *module = &found->module;
    return status;
}

static kvant_status load_core(kvant_device *device, kvant_diag *diag) {
    const kvant_gpu *gpu = core_gpu_table();
    if (gpu == NULL)
        return REFUSE(KVANT_ERROR_UNSUPPORTED, "", "this library was built without nvcc: it has no kernels");
    kvant_status status = gpu_module_load(&device->gpu, "core", gpu, &device->core.module, diag);
    if (status == KVANT_OK)
        status = gpu_launchable_open(&device->core.module, "kvant_core_rows", CORE_ROWS_THREADS, 0,
                                     &device->rows, diag);
    if (status == KVANT_OK)
        status = gpu_launchable_open(&device->core.module, "kvant_core_merge", CORE_MERGE_THREADS, 0,
                                     &device->merge, diag);
    return status;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

/* Lists of row jobs, with a count before them. */
static kvant_status take_slots(kvant_device *device, kvant_diag *diag) {
    const gpu_driver *d = device->gpu.driver;
    size_t bytes = DEVICE_ALIGNMENT + DEVICE_ROWS_JOBS * sizeof(core_rows_job);
    kvant_status status = gpu_device_enter(&device->gpu, diag);
    if (status != KVANT_OK) return status;
    for (uint32_t i = 0; i < DEVICE_ROWS_SLOTS && status == KVANT_OK; i++) {
        device_rows_slot *slot = &device->slots[i];
        void *pinned = NULL;
        status = gpu_check(d, d->host_alloc(&pinned, bytes, 0), "cuMemHostAlloc", diag);
        slot->pinned = pinned;
        if (status == KVANT_OK)
            status = gpu_check(d, d->memory_alloc(&slot->list, bytes), "memory of row jobs", diag);
        if (status == KVANT_OK)
            status =
                gpu_check(d, d->event_create(&slot->done, GPU_EVENT_DISABLE_TIMING), "cuEventCreate", diag);
    }
    gpu_device_leave(&device->gpu);
    return status;
}

static void give_slots(kvant_device *device) {
    const gpu_driver *d = device->gpu.driver;
    if (gpu_device_enter(&device->gpu, NULL) != KVANT_OK) return;
    for (uint32_t i = 0; i < DEVICE_ROWS_SLOTS; i++) {
        device_rows_slot *slot = &device->slots[i];
        if (slot->used) (void)d->event_synchronize(slot->done);
        if (slot->done != NULL) (void)d->event_destroy(slot->done);
        if (slot->list != 0) (void)d->memory_free(slot->list);
        if (slot->pinned != NULL) (void)d->host_free(slot->pinned);
    }
    gpu_device_leave(&device->gpu);
}

static kvant_status open_on(kvant_device *made, kvant_device **device, kvant_diag *diag) {
    pthread_mutex_init(&made->lock, NULL);
    kvant_status status = load_core(made, diag);
    if (status == KVANT_OK) status = take_slots(made, diag);
    if (status == KVANT_OK)
        *device = made;
    else
        kvant_device_close(made);
    return status;
}

kvant_status kvant_device_open(uint32_t ordinal, kvant_device **device, kvant_diag *diag) {
    const gpu_driver *driver = NULL;
    if (device == NULL) return REFUSE(KVANT_ERROR_ARGUMENT, "", "kvant_device_open: device is NULL");
    if (ordinal > INT32_MAX)
        return REFUSE(KVANT_ERROR_ARGUMENT, "ordinal", "kvant_device_open: there is no device %u", ordinal);
    kvant_status status = gpu_driver_find(&driver, diag);
    if (status != KVANT_OK) return status;
    kvant_device *made = calloc(1, sizeof *made);
    if (made == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    status = gpu_device_open(driver, (int)ordinal, &made->gpu, diag);
    if (status == KVANT_OK) return open_on(made, device, diag);
    free(made);
    return status;
}

kvant_status kvant_device_open_stream(void *stream, kvant_device **device, kvant_diag *diag) {
    const gpu_driver *driver = NULL;
    if (device == NULL || stream == NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT, "", "kvant_device_open_stream: device or stream is NULL");
    kvant_status status = gpu_driver_find(&driver, diag);
    if (status != KVANT_OK) return status;
    kvant_device *made = calloc(1, sizeof *made);
    if (made == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    status = gpu_device_of_stream(driver, stream, &made->gpu, diag);
    if (status == KVANT_OK) return open_on(made, device, diag);
    free(made);
    return status;
}

void kvant_device_close(kvant_device *device) {
    if (device == NULL) return;
    give_slots(device);
    while (device->modules != NULL) {
        device_module *next = device->modules->next;
        gpu_module_unload(&device->modules->module);
        free(device->modules);
        device->modules = next;
    }
    gpu_module_unload(&device->core.module);
    gpu_device_close(&device->gpu);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

kvant_status kvant_device_describe(const kvant_device *device, kvant_device_info *info) {
    if (device == NULL || info == NULL || info->struct_size < sizeof *info) return KVANT_ERROR_ARGUMENT;
    info->major = device->gpu.major;
    info->minor = device->gpu.minor;
    info->multiprocessors = device->gpu.multiprocessors;
    _Static_assert(sizeof info->name == sizeof device->gpu.name, "one room for names");
    memcpy(info->name, device->gpu.name, sizeof info->name);
    return KVANT_OK;
}
