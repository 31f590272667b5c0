/* A program that looks for a CUDA driver as the library does and tries one thing, for driver_search.c, which
 * runs it with a driver in the search path. Prints what it saw; ends with 1 where it could not get that
 * far. */
#include "driver_bed.h"

#include <gpu/gpu_device.h>
#include <kvant/kvant.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef gpu_result get_address(const char *name, void **function, int version, uint64_t flags, int *found);

static kvant_diag diag = {.struct_size = sizeof diag};
static const gpu_driver *driver;
static gpu_device device;
static gpu_library library;
static gpu_stream stream;
static gpu_address x;
static float *pinned;

static int failed(const char *what) {
    (void)printf("%s: %s\n", what, diag.message);
    return 1;
}

static int open_device(int ordinal) {
    if (gpu_driver_find(&driver, &diag) != KVANT_OK) return failed("find");
    if (gpu_device_open(driver, ordinal, &device, &diag) != KVANT_OK) return failed("open");
    return gpu_device_enter(&device, &diag) == KVANT_OK ? 0 : failed("enter");
}

static int works(gpu_result result, const char *what) {
    if (gpu_check(driver, result, what, &diag) == KVANT_OK) return 1;
    (void)failed("call");
    return 0;
}

static int prepare(void) {
    void *memory = NULL;
    if (open_device(0) != 0 || !works(driver->stream_create(&stream, 1), "cuStreamCreate") ||
        !works(driver->memory_alloc(&x, BED_BYTES), "cuMemAlloc") ||
        !works(driver->host_alloc(&memory, BED_BYTES, 0), "cuMemHostAlloc") ||
        !works(driver->memory_set(x, 0, BED_BYTES, stream), "cuMemsetD8Async") ||
        !works(driver->stream_synchronize(stream), "cuStreamSynchronize") ||
        !works(driver->library_load(&library, bed_ptx, NULL, NULL, 0, NULL, NULL, 0), "cuLibraryLoadData"))
        return 1;
    pinned = memory;
    return 0;
}

static gpu_result launch(const char *name) {
    gpu_kernel kernel = NULL;
    gpu_function function = NULL;
    uint32_t count = BED_FLOATS;
    void *arguments[] = {&x, &count};
    const gpu_launch_config config = {.grid = {4, 1, 1}, .block = {64, 1, 1}, .stream = stream};
    gpu_result result = driver->library_kernel(&kernel, library, name);
    if (result == GPU_SUCCESS) result = driver->kernel_function(&function, kernel);
    return result == GPU_SUCCESS ? driver->launch(&config, function, arguments, NULL) : result;
}

/* ---- What it tries ------------------------------------------------------------------------------------- */

static int describe(const char *ordinal) {
    if (open_device(atoi(ordinal)) != 0) return 1;
    (void)printf("%s %u.%u\n", device.name, device.major, device.minor);
    return 0;
}

/* A kernel, and one copy that nobody waits for before looking. */
static int run(const char *name) {
    if (prepare() != 0) return 1;
    if (!works(launch(name), "launch") ||
        !works(driver->copy_to_host(pinned, x, BED_BYTES, stream), "cuMemcpyDtoHAsync"))
        return 1;
    float before = pinned[0];
    if (!works(driver->stream_synchronize(stream), "cuStreamSynchronize")) return 1;
    (void)printf("%s\n%g\n", before == pinned[0] ? "early" : "late", (double)pinned[0]);
    return 0;
}

static int allocate(const char *bytes) {
    gpu_address address = 0;
    if (open_device(0) != 0) return 1;
    (void)printf("%d\n", driver->memory_alloc(&address, strtoull(bytes, NULL, 10)));
    return 0;
}

/* A plugin's image. */
static int load(const char *name) {
    const kvant_plugin *plugin = NULL;
    gpu_module module;
    if (kvant_plugin_find(name, &plugin, &diag) != KVANT_OK) return failed("plugin");
    const kvant_gpu *gpu = plugin->extension != NULL ? plugin->extension(KVANT_EXT_GPU) : NULL;
    if (gpu == NULL) return failed("no GPU code");
    if (open_device(0) != 0) return 1;
    gpu_device_leave(&device);
    if (gpu_module_load(&device, name, gpu, &module, &diag) != KVANT_OK) return failed("load");
    (void)printf("%s\n", module.is_jit ? "ptx" : "cubin");
    gpu_module_unload(&module);
    return 0;
}

/* What is not in the table of core/gpu, by the names of the driver. */
static int capture(const char *unused) {
    gpu_result (*begin)(gpu_stream, int);
    gpu_result (*end)(gpu_stream, void **);
    gpu_result (*instantiate)(void **, void *, unsigned long long);
    gpu_result (*replay)(void *, gpu_stream);
    get_address *find;
    void *graph = NULL, *exec = NULL;
    (void)unused;
    void *symbol = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
    if (symbol == NULL || prepare() != 0) return 1;
    memcpy(&find, &symbol, sizeof find);
#define FIND(function, name)                                                                                 \
    if (find(name, &symbol, 12000, 0, NULL) != GPU_SUCCESS || symbol == NULL) return failed(name);           \
    memcpy(&(function), &symbol, sizeof symbol)
    FIND(begin, "cuStreamBeginCapture");
    FIND(end, "cuStreamEndCapture");
    FIND(instantiate, "cuGraphInstantiate");
    FIND(replay, "cuGraphLaunch");
    if (!works(launch("never"), "launch") || !works(launch("increase"), "launch")) return 1;
    if (!works(begin(stream, 0), "cuStreamBeginCapture") || !works(launch("increase"), "launch") ||
        !works(driver->copy_to_host(pinned, x, BED_BYTES, stream), "cuMemcpyDtoHAsync") ||
        !works(end(stream, &graph), "cuStreamEndCapture") ||
        !works(instantiate(&exec, graph, 0), "cuGraphInstantiate"))
        return 1;
    for (int i = 0; i < 3; i++)
        if (!works(replay(exec, stream), "cuGraphLaunch") ||
            !works(driver->stream_synchronize(stream), "cuStreamSynchronize"))
            return 1;
    (void)printf("%g\n", (double)pinned[BED_FLOATS - 1]);
    return 0;
}

/* The one symbol, and what it answers. */
static int symbols(const char *unused) {
    void *handle = dlopen("libcuda.so.1", RTLD_NOW), *function = NULL;
    int found = -1, count = 0;
    (void)unused;
    if (handle == NULL) return failed(dlerror());
    void *symbol = dlsym(handle, "cuGetProcAddress_v2");
    get_address *find;
    memcpy(&find, &symbol, sizeof find);
    (void)printf("%d %d %d\n", symbol != NULL, dlsym(handle, "cuInit") != NULL,
                 dlsym(handle, "sim_init") != NULL);
    (void)printf("%d", find("cuMemAlloc", &function, 99000, 0, &found));  /* later than the driver */
    (void)printf(" %d", find("cuMemAlloc", &function, 12000, 2, &found)); /* streams of each thread */
    (void)printf(" %d", find("cuNothing", &function, 12000, 0, &found));
    (void)printf(" %d %d", function == NULL, found);
    (void)printf(" %d", find("cuLibraryLoadData", &function, 11080, 0, &found));
    (void)printf(" %d %d", function == NULL, found);
    (void)printf(" %d", find("cuDeviceGetCount", &function, 12000, 0, &found));
    (void)printf(" %d %d", function != NULL, found);
    gpu_result (*device_count)(int *);
    memcpy(&device_count, &function, sizeof function);
    (void)printf(" %d\n", device_count(&count)); /* before cuInit */
    return 0;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*function)(const char *);
    } tries[] = {{"describe", describe}, {"run", run},         {"allocate", allocate},
                 {"load", load},         {"capture", capture}, {"symbols", symbols}};
    for (size_t i = 0; argc == 3 && i < sizeof tries / sizeof tries[0]; i++)
        if (strcmp(tries[i].name, argv[1]) == 0) return tries[i].function(argv[2]);
    return 2;
}
