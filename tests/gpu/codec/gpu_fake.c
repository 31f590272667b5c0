/* See gpu_fake.h. */
#include "gpu_fake.h"

#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

gpu_fake gpu_fake_device;
#define fake gpu_fake_device

static int context_of_device; /* its address is the context */
#define FAKE_CONTEXT ((gpu_context)(void *)&context_of_device)

static bool fails(const char *call, gpu_result *result) {
    if (fake.fail == NULL || strcmp(fake.fail, call) != 0) return false;
    fake.fail = NULL;
    *result = fake.fail_with;
    return true;
}
#define MAY_FAIL(call)                                                                                       \
    do {                                                                                                     \
        gpu_result result_;                                                                                  \
        if (fails(call, &result_)) return result_;                                                           \
    } while (0)

/* Every call that works on a device needs a context. */
static void need_context(const char *call) {
    if (fake.contexts == 0) fail_msg("%s without a current context", call);
}

/* ---- Device -------------------------------------------------------------------------------------------- */

static gpu_result init(unsigned flags) {
    (void)flags;
    MAY_FAIL("init");
    return GPU_SUCCESS;
}

static gpu_result driver_version(int *version) {
    *version = fake.driver_version != 0 ? fake.driver_version : 13000;
    return GPU_SUCCESS;
}

static gpu_result device_count(int *count) {
    *count = fake.devices < 0 ? 0 : 1;
    return GPU_SUCCESS;
}

static gpu_result device_get(gpu_device_number *device, int ordinal) {
    *device = ordinal;
    return GPU_SUCCESS;
}

static gpu_result device_name(char *name, int size, gpu_device_number device) {
    (void)device;
    (void)snprintf(name, (size_t)size, "an interpreter");
    return GPU_SUCCESS;
}

static gpu_result device_attribute(int *value, int attribute, gpu_device_number device) {
    (void)device;
    switch (attribute) {
    case GPU_ATTRIBUTE_MAJOR:
        *value = (int)fake.major;
        return GPU_SUCCESS;
    case GPU_ATTRIBUTE_MINOR:
        *value = (int)fake.minor;
        return GPU_SUCCESS;
    case GPU_ATTRIBUTE_MULTIPROCESSORS:
        *value = 3;
        return GPU_SUCCESS;
    case GPU_ATTRIBUTE_SHARED_OPTIN:
        *value = fake.shared_most != 0 ? (int)fake.shared_most : 227 << 10;
        return GPU_SUCCESS;
    default:
        fail_msg("attribute %d", attribute);
    }
    return GPU_ERROR_INVALID_VALUE;
}

static gpu_result primary_retain(gpu_context *context, gpu_device_number device) {
    (void)device;
    MAY_FAIL("primary_retain");
    fake.retained++;
    *context = FAKE_CONTEXT;
    return GPU_SUCCESS;
}

static gpu_result primary_release(gpu_device_number device) {
    (void)device;
    fake.retained--;
    return GPU_SUCCESS;
}

static gpu_result context_push(gpu_context context) {
    if (context != FAKE_CONTEXT) fail_msg("a context that is none was made current");
    fake.contexts++;
    return GPU_SUCCESS;
}

static gpu_result context_pop(gpu_context *context) {
    need_context("cuCtxPopCurrent");
    fake.contexts--;
    *context = FAKE_CONTEXT;
    return GPU_SUCCESS;
}

static gpu_result context_device(gpu_device_number *device) {
    need_context("cuCtxGetDevice");
    *device = 0;
    return GPU_SUCCESS;
}

static gpu_result stream_context(gpu_stream stream, gpu_context *context) {
    (void)stream;
    *context = FAKE_CONTEXT;
    return GPU_SUCCESS;
}

static gpu_result stream_create(gpu_stream *stream, unsigned flags) {
    (void)flags;
    need_context("cuStreamCreate");
    *stream = NULL;
    return GPU_SUCCESS;
}

static gpu_result stream_nothing(gpu_stream stream) {
    (void)stream;
    return GPU_SUCCESS;
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static void *pointer(gpu_address address) {
    return (void *)(uintptr_t)address;
}

static gpu_result memory_alloc(gpu_address *address, size_t size) {
    need_context("cuMemAlloc");
    MAY_FAIL("memory_alloc");
    char name[32];
    (void)snprintf(name, sizeof name, "allocation %u", ++fake.allocations);
    void *memory = ptx_memory_alloc(fake.machine, size, name);
    *address = (uintptr_t)memory;
    return memory != NULL ? GPU_SUCCESS : GPU_ERROR_OUT_OF_MEMORY;
}

static gpu_result memory_free(gpu_address address) {
    need_context("cuMemFree");
    ptx_memory_free(fake.machine, pointer(address));
    fake.allocations--;
    return GPU_SUCCESS;
}

static void need_memory(gpu_address address, size_t size, const char *call) {
    if (!ptx_memory_contains(fake.machine, pointer(address), size))
        fail_msg("%s: %zu bytes that are no device memory", call, size);
}

static gpu_result copy_to_device(gpu_address to, const void *from, size_t size, gpu_stream stream) {
    (void)stream;
    need_memory(to, size, "cuMemcpyHtoDAsync");
    memcpy(pointer(to), from, size);
    return GPU_SUCCESS;
}

static gpu_result copy_to_host(void *to, gpu_address from, size_t size, gpu_stream stream) {
    (void)stream;
    need_memory(from, size, "cuMemcpyDtoHAsync");
    memcpy(to, pointer(from), size);
    return GPU_SUCCESS;
}

static gpu_result memory_set(gpu_address to, unsigned char value, size_t size, gpu_stream stream) {
    (void)stream;
    need_memory(to, size, "cuMemsetD8Async");
    memset(pointer(to), value, size);
    return GPU_SUCCESS;
}

/* ---- Code ---------------------------------------------------------------------------------------------- */

static char *read_ptx(char path[static 512]) {
    uint32_t architecture = 10 * fake.major + (fake.major == 8 ? 0 : fake.minor);
    (void)snprintf(path, 512, "%s.compute_%u.ptx", fake.ptx, architecture);
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail_msg("%s: no such file", path);
    (void)fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *text = calloc(1, (size_t)size + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, file), size);
    (void)fclose(file);
    return text;
}

static gpu_result library_load(gpu_library *library, const void *image, void *jit_options, void **jit_values,
                               unsigned jit_count, void *options, void **values, unsigned count) {
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    static const unsigned char fatbin[4] = {0x50, 0xed, 0x55, 0xba};
    need_context("cuLibraryLoadData");
    MAY_FAIL("library_load");
    fake.was_ptx = memcmp(image, fatbin, sizeof fatbin) != 0;
    char path[512] = "the plugin's PTX image";
    char *text = fake.was_ptx ? strdup(image) : read_ptx(path);
    ptx_module *module = ptx_module_load(fake.machine, path, text, strlen(text));
    free(text);
    if (module == NULL) fail_msg("%s", ptx_machine_message(fake.machine));
    *library = (gpu_library)(void *)module;
    return GPU_SUCCESS;
}

static gpu_result library_unload(gpu_library library) {
    need_context("cuLibraryUnload");
    ptx_module_unload((ptx_module *)(void *)library);
    return GPU_SUCCESS;
}

static gpu_result library_kernel(gpu_kernel *kernel, gpu_library library, const char *name) {
    const ptx_kernel *found = ptx_module_kernel((const ptx_module *)(const void *)library, name);
    *kernel = (gpu_kernel)(uintptr_t)found;
    return found != NULL ? GPU_SUCCESS : GPU_ERROR_NOT_FOUND;
}

static gpu_result kernel_function(gpu_function *function, gpu_kernel kernel) {
    need_context("cuKernelGetFunction");
    *function = (gpu_function)(void *)kernel;
    return GPU_SUCCESS;
}

static gpu_result function_set_attribute(gpu_function function, int attribute, int value) {
    (void)function, (void)attribute, (void)value;
    return GPU_SUCCESS;
}

static gpu_result occupancy(int *blocks, gpu_function function, int threads, size_t dynamic_shared) {
    (void)function, (void)threads, (void)dynamic_shared;
    *blocks = fake.resident != 0 ? fake.resident : 2;
    return GPU_SUCCESS;
}

static gpu_result launch(const gpu_launch_config *config, gpu_function function, void **arguments,
                         void **extra) {
    const ptx_launch how = {.grid = {config->grid[0], config->grid[1], config->grid[2]},
                            .block = {config->block[0], config->block[1], config->block[2]},
                            .dynamic_shared = config->shared_bytes,
                            .arguments = arguments,
                            .checks = fake.checks,
                            .seed = fake.seed};
    (void)extra;
    need_context("cuLaunchKernelEx");
    MAY_FAIL("launch");
    int result = ptx_kernel_launch(fake.machine, (const ptx_kernel *)(const void *)function, &how);
    if (result == PTX_REFUSED) fail_msg("%s", ptx_machine_message(fake.machine));
    if (result != PTX_OK) fail_msg("%s", ptx_machine_report(fake.machine));
    fake.launches++;
    fake.last = *config;
    fake.counters = *ptx_machine_counters(fake.machine);
    return GPU_SUCCESS;
}

static gpu_result error_name(gpu_result error, const char **name) {
    *name = error == GPU_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
    return GPU_SUCCESS;
}

static gpu_result error_text(gpu_result error, const char **text) {
    *text = error == GPU_ERROR_OUT_OF_MEMORY ? "out of memory" : "another error";
    return GPU_SUCCESS;
}

static const gpu_driver table = {init,
                                 driver_version,
                                 device_count,
                                 device_get,
                                 device_name,
                                 device_attribute,
                                 primary_retain,
                                 primary_release,
                                 context_push,
                                 context_pop,
                                 context_device,
                                 stream_context,
                                 stream_create,
                                 stream_nothing,
                                 stream_nothing,
                                 memory_alloc,
                                 memory_free,
                                 copy_to_device,
                                 copy_to_host,
                                 memory_set,
                                 library_load,
                                 library_unload,
                                 library_kernel,
                                 kernel_function,
                                 function_set_attribute,
                                 occupancy,
                                 launch,
                                 error_name,
                                 error_text};

const gpu_driver *gpu_fake_begin(const gpu_fake *device) {
    fake = *device;
    fake.machine = ptx_machine_create();
    assert_non_null(fake.machine);
    return &table;
}

void gpu_fake_end(void) {
    assert_int_equal(fake.contexts, 0);
    assert_int_equal(fake.retained, 0);
    assert_int_equal(fake.allocations, 0);
    ptx_machine_destroy(fake.machine);
    fake = (gpu_fake){0};
}
