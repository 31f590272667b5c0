/* See gpu_driver.h. Entry points are asked for by name and version, so that a driver that offers several
 * forms of a call gives the one whose signature stands in the table. */
#include "gpu/gpu_driver.h"

#include <kvant/kit/diag.h>

#include <dlfcn.h>
#include <pthread.h>

/* The oldest driver with the library calls (cuLibraryLoadData) that are used here. */
enum { DRIVER_LEAST = 12000 };

typedef gpu_result get_address(const char *name, void **function, int version, uint64_t flags, int *found);

/* One name per member of gpu_driver, in its order. */
static const char *const names[] = {
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuCtxGetDevice",
    "cuStreamGetCtx",
    "cuStreamCreate",
    "cuStreamDestroy",
    "cuStreamSynchronize",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync",
    "cuMemcpyDtoHAsync",
    "cuMemcpyDtoDAsync",
    "cuMemsetD8Async",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventDestroy",
    "cuLibraryLoadData",
    "cuLibraryUnload",
    "cuLibraryGetKernel",
    "cuKernelGetFunction",
    "cuFuncSetAttribute",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuLaunchKernelEx",
    "cuGetErrorName",
    "cuGetErrorString",
};

_Static_assert(sizeof names / sizeof names[0] == sizeof(gpu_driver) / sizeof(void (*)(void)),
               "a name for each member");

kvant_status gpu_check(const gpu_driver *driver, gpu_result result, const char *what, kvant_diag *diag) {
    const char *name = NULL, *text = NULL;
    if (result == GPU_SUCCESS) return KVANT_OK;
    if (driver->error_name == NULL || driver->error_name(result, &name) != GPU_SUCCESS) name = NULL;
    if (driver->error_text == NULL || driver->error_text(result, &text) != GPU_SUCCESS) text = NULL;
    return kvant_fail(diag, result == GPU_ERROR_OUT_OF_MEMORY ? KVANT_ERROR_MEMORY : KVANT_ERROR_DEVICE, "",
                      "%s: %s (%d): %s", what, name != NULL ? name : "error", result,
                      text != NULL ? text : "the driver does not know it");
}

static kvant_status fill(void *library, gpu_driver *driver, kvant_diag *diag) {
    get_address *find;
    void *symbol = dlsym(library, "cuGetProcAddress_v2");
    if (symbol == NULL)
        return kvant_fail(diag, KVANT_ERROR_DEVICE, "",
                          "libcuda.so.1 has no cuGetProcAddress_v2: the driver is older than CUDA %d.%d",
                          DRIVER_LEAST / 1000, DRIVER_LEAST % 1000 / 10);
    memcpy(&find, &symbol, sizeof find);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *function = NULL;
        int found = 0;
        gpu_result result = find(names[i], &function, DRIVER_LEAST, 0, &found);
        if (result != GPU_SUCCESS || function == NULL)
            return kvant_fail(diag, KVANT_ERROR_DEVICE, "",
                              "libcuda.so.1 has no %s of CUDA %d.%d: the driver is too old (error %d)",
                              names[i], DRIVER_LEAST / 1000, DRIVER_LEAST % 1000 / 10, result);
        memcpy((unsigned char *)driver + i * sizeof function, &function, sizeof function);
    }
    return KVANT_OK;
}

static kvant_status start(const gpu_driver *driver, kvant_diag *diag) {
    int version = 0, count = 0;
    gpu_result result = driver->init(0);
    if (result == GPU_ERROR_NO_DEVICE)
        return kvant_fail(diag, KVANT_ERROR_DEVICE, "", "the CUDA driver finds no device");
    if (result == GPU_ERROR_STUB_LIBRARY)
        return kvant_fail(diag, KVANT_ERROR_DEVICE, "",
                          "libcuda.so.1 is the toolkit's stub, not a driver: the search path finds it first");
    kvant_status status = gpu_check(driver, result, "cuInit", diag);
    if (status != KVANT_OK) return status;
    if (driver->driver_version(&version) != GPU_SUCCESS || version < DRIVER_LEAST)
        return kvant_fail(diag, KVANT_ERROR_DEVICE, "",
                          "the CUDA driver is of version %d.%d; %d.%d is the least that is used",
                          version / 1000, version % 1000 / 10, DRIVER_LEAST / 1000, DRIVER_LEAST % 1000 / 10);
    status = gpu_check(driver, driver->device_count(&count), "cuDeviceGetCount", diag);
    if (status == KVANT_OK && count == 0)
        status = kvant_fail(diag, KVANT_ERROR_DEVICE, "", "the CUDA driver finds no device");
    return status;
}

kvant_status gpu_driver_find(const gpu_driver **driver, kvant_diag *diag) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static gpu_driver found;
    static int is_found;
    kvant_status status = KVANT_OK;
    pthread_mutex_lock(&lock);
    if (!is_found) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library == NULL)
            status = kvant_fail(diag, KVANT_ERROR_DEVICE, "", "no CUDA driver: %s", dlerror());
        else if ((status = fill(library, &found, diag)) == KVANT_OK)
            status = start(&found, diag);
        is_found = status == KVANT_OK;
        if (library != NULL && !is_found) dlclose(library);
    }
    pthread_mutex_unlock(&lock);
    if (status == KVANT_OK) *driver = &found;
    return status;
}
