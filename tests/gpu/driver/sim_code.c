/* Libraries, kernels and launches. A function and its kernel are one object. */
#include "sim_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAUNCH_TEXT = 256 };

/* ---- Libraries ----------------------------------------------------------------------------------------- */

static gpu_result need_library(gpu_library library, const char *call) {
    for (gpu_library l = sim.libraries; l != NULL; l = l->next)
        if (l == library && l->module != NULL) return GPU_SUCCESS;
    return sim_misuse(SIM_ERROR_INVALID_HANDLE, "%s: %p is no library, or one that was unloaded", call,
                      (void *)library);
}

static gpu_result need_function(gpu_function function, const char *call) {
    for (gpu_library l = sim.libraries; l != NULL; l = l->next)
        for (gpu_function f = l->functions; f != NULL; f = f->next) {
            if (f != function) continue;
            if (l->module != NULL) return GPU_SUCCESS;
            return sim_misuse(SIM_ERROR_INVALID_HANDLE, "%s: the library of %s was unloaded", call, f->name);
        }
    return sim_misuse(SIM_ERROR_INVALID_HANDLE, "%s: %p is no function", call, (void *)function);
}

SIM_CALL(SIM_STICKY | SIM_UNSAFE, library_load,
         (gpu_library * library, const void *image, void *jit_options, void **jit_values, unsigned jit_count,
          void *options, void **values, unsigned count),
         (library, image, jit_options, jit_values, jit_count, options, values, count)) {
    char *text = NULL, name[512];
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    if (sim.broken != GPU_SUCCESS) return sim.broken;
    gpu_result result = sim_image_text(image, &text, name, sizeof name);
    if (result != GPU_SUCCESS) return result;
    gpu_library made = calloc(1, sizeof *made);
    if (made != NULL) made->module = ptx_module_load(sim.totals.machine, name, text, strlen(text));
    free(text);
    if (made == NULL) return GPU_ERROR_OUT_OF_MEMORY;
    if (made->module == NULL) {
        free(made);
        return sim_misuse(GPU_ERROR_INVALID_PTX, "%s", ptx_machine_message(sim.totals.machine));
    }
    made->next = sim.libraries;
    sim.libraries = *library = made;
    return GPU_SUCCESS;
}

/* Waits: what still runs may be its kernels. */
SIM_CALL(SIM_STICKY | SIM_UNSAFE, library_unload, (gpu_library library), (library)) {
    gpu_result result = need_library(library, "cuLibraryUnload");
    if (result != GPU_SUCCESS) return result;
    result = sim_finish(0);
    ptx_module_unload(library->module);
    library->module = NULL;
    for (gpu_function f = library->functions; f != NULL; f = f->next) f->kernel = NULL;
    return result;
}

void sim_code_end(void) {
    while (sim.libraries != NULL) {
        gpu_library library = sim.libraries;
        sim.libraries = library->next;
        while (library->functions != NULL) {
            gpu_function function = library->functions;
            library->functions = function->next;
            free(function);
        }
        free(library); /* the machine unloads its modules */
    }
}

/* ---- Kernels ------------------------------------------------------------------------------------------- */

SIM_CALL(SIM_STICKY, library_kernel, (gpu_kernel * kernel, gpu_library library, const char *name),
         (kernel, library, name)) {
    gpu_result result = need_library(library, "cuLibraryGetKernel");
    if (result != GPU_SUCCESS) return result;
    const ptx_kernel *found = ptx_module_kernel(library->module, name);
    if (found == NULL) return GPU_ERROR_NOT_FOUND;
    gpu_function function = library->functions;
    while (function != NULL && function->kernel != found) function = function->next;
    if (function == NULL) {
        function = calloc(1, sizeof *function);
        if (function == NULL) return GPU_ERROR_OUT_OF_MEMORY;
        function->library = library;
        function->kernel = found;
        function->shared_bytes = ptx_kernel_shared_bytes(found);
        function->dynamic_most =
            function->shared_bytes < SIM_SHARED_UNASKED ? SIM_SHARED_UNASKED - function->shared_bytes : 0;
        (void)snprintf(function->name, sizeof function->name, "%s", name);
        function->next = library->functions;
        library->functions = function;
    }
    *kernel = (gpu_kernel)(void *)function;
    return GPU_SUCCESS;
}

/* A kernel is loaded when it is first used, which a capture forbids. */
static gpu_result make_resident(gpu_function function) {
    sim_capture *capture = NULL;
    if (function->is_resident) return GPU_SUCCESS;
    if (sim_capture_forbids(&capture)) {
        char what[LAUNCH_TEXT];
        (void)snprintf(what, sizeof what, "the first use of %s", function->name);
        return sim_capture_spoil(capture, SIM_ERROR_CAPTURE_UNSUPPORTED, what);
    }
    function->is_resident = true;
    return GPU_SUCCESS;
}

SIM_CALL(SIM_WORK, kernel_function, (gpu_function * function, gpu_kernel kernel), (function, kernel)) {
    gpu_result result = need_function((gpu_function)(void *)kernel, "cuKernelGetFunction");
    if (result != GPU_SUCCESS) return result;
    *function = (gpu_function)(void *)kernel;
    return make_resident(*function);
}

SIM_CALL(SIM_WORK, function_set_attribute, (gpu_function function, int attribute, int value),
         (function, attribute, value)) {
    gpu_result result = need_function(function, "cuFuncSetAttribute");
    if (result != GPU_SUCCESS) return result;
    if (attribute == 9) return GPU_SUCCESS; /* how much of the cache is shared memory: a hint */
    if (attribute != GPU_FUNCTION_ATTRIBUTE_MAX_DYNAMIC_SHARED)
        return sim_misuse(GPU_ERROR_INVALID_VALUE, "cuFuncSetAttribute: attribute %d is not simulated",
                          attribute);
    if (value < 0 || (size_t)value + function->shared_bytes > sim.config.shared_most)
        return sim_misuse(
            GPU_ERROR_INVALID_VALUE,
            "cuFuncSetAttribute of %s: %d bytes of shared memory beside %zu static ones; a block has %u",
            function->name, value, function->shared_bytes, sim.config.shared_most);
    function->dynamic_most = (size_t)value;
    return GPU_SUCCESS;
}

/* Registers are not known: ptxas allots them. */
SIM_CALL(SIM_WORK, function_attribute, (int *value, int attribute, gpu_function function),
         (value, attribute, function)) {
    gpu_result result = need_function(function, "cuFuncGetAttribute");
    if (result != GPU_SUCCESS) return result;
    switch (attribute) {
    case 0: /* threads of a block */
        *value = (int)ptx_kernel_max_threads(function->kernel);
        return GPU_SUCCESS;
    case 1: /* bytes of static shared memory, of constants, of local memory */
        *value = (int)function->shared_bytes;
        return GPU_SUCCESS;
    case 2:
        *value = 0;
        return GPU_SUCCESS;
    case 3:
        *value = (int)ptx_kernel_local_bytes(function->kernel);
        return GPU_SUCCESS;
    case 4: /* registers */
        *value = 0;
        return GPU_SUCCESS;
    case 5: /* of PTX, of the binary */
    case 6:
        *value = (int)(10 * sim.config.major + sim.config.minor);
        return GPU_SUCCESS;
    case GPU_FUNCTION_ATTRIBUTE_MAX_DYNAMIC_SHARED:
        *value = (int)function->dynamic_most;
        return GPU_SUCCESS;
    default:
        return sim_misuse(GPU_ERROR_INVALID_VALUE, "cuFuncGetAttribute: attribute %d is not simulated",
                          attribute);
    }
}

SIM_CALL(SIM_WORK, occupancy, (int *blocks, gpu_function function, int threads, size_t dynamic_shared),
         (blocks, function, threads, dynamic_shared)) {
    gpu_result result = need_function(function, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    if (result != GPU_SUCCESS) return result;
    if (threads <= 0) return GPU_ERROR_INVALID_VALUE;
    bool fits = (uint32_t)threads <= ptx_kernel_max_threads(function->kernel) &&
                dynamic_shared <= function->dynamic_most;
    *blocks = fits ? sim.config.resident : 0;
    return GPU_SUCCESS;
}

/* ---- Launches ------------------------------------------------------------------------------------------ */

static gpu_result vet_launch(const gpu_launch_config *config, gpu_function function, void **extra) {
    uint64_t threads = 1;
    if (config->attribute_count != 0 || extra != NULL)
        return sim_misuse(SIM_ERROR_NOT_SUPPORTED, "launch of %s: %s", function->name,
                          extra != NULL ? "arguments in a buffer are not simulated"
                                        : "attributes are not simulated");
    for (uint32_t i = 0; i < 3; i++) {
        threads *= config->block[i];
        if (config->grid[i] == 0 || config->block[i] == 0 || config->block[i] > 1024)
            return sim_misuse(GPU_ERROR_INVALID_VALUE,
                              "launch of %s: a grid of (%u,%u,%u) blocks of (%u,%u,%u)", function->name,
                              config->grid[0], config->grid[1], config->grid[2], config->block[0],
                              config->block[1], config->block[2]);
    }
    if (threads > ptx_kernel_max_threads(function->kernel))
        return sim_misuse(GPU_ERROR_INVALID_VALUE, "launch of %s: %llu threads; it allows %u", function->name,
                          (unsigned long long)threads, ptx_kernel_max_threads(function->kernel));
    if (config->shared_bytes > function->dynamic_most)
        return sim_misuse(GPU_ERROR_INVALID_VALUE,
                          "launch of %s: %u bytes of dynamic shared memory; %zu were asked for with "
                          "cuFuncSetAttribute, or are there unasked",
                          function->name, config->shared_bytes, function->dynamic_most);
    return GPU_SUCCESS;
}

/* One after another; the last one's end is where the interpreter looks. */
static size_t argument_bytes(const ptx_kernel *kernel) {
    uint32_t count = ptx_kernel_parameter_count(kernel);
    return count == 0 ? 1
                      : ptx_kernel_parameter_offset(kernel, count - 1) +
                            ptx_kernel_parameter_size(kernel, count - 1);
}

SIM_CALL(SIM_WORK, launch,
         (const gpu_launch_config *config, gpu_function function, void **arguments, void **extra),
         (config, function, arguments, extra)) {
    gpu_stream stream = config->stream;
    gpu_result result = sim_find_stream(&stream);
    if (result == GPU_SUCCESS) result = need_function(function, "cuLaunchKernelEx");
    if (result == GPU_SUCCESS) result = vet_launch(config, function, extra);
    if (result == GPU_SUCCESS) result = make_resident(function);
    if (result != GPU_SUCCESS) return result;
    uint32_t count = ptx_kernel_parameter_count(function->kernel);
    if (count > 0 && arguments == NULL)
        return sim_misuse(GPU_ERROR_INVALID_VALUE, "launch of %s without arguments", function->name);
    sim_operation *launch = sim_operation_new(SIM_LAUNCH);
    if (launch != NULL) {
        launch->size = argument_bytes(function->kernel);
        launch->bytes = calloc(1, launch->size);
    }
    if (launch == NULL || launch->bytes == NULL) {
        sim_operation_free(launch);
        return GPU_ERROR_OUT_OF_MEMORY;
    }
    for (uint32_t i = 0; i < count; i++)
        memcpy(launch->bytes + ptx_kernel_parameter_offset(function->kernel, i), arguments[i],
               ptx_kernel_parameter_size(function->kernel, i));
    launch->function = function;
    launch->config = *config;
    return sim_put(stream, launch, NULL);
}

/* The form of older programs. */
gpu_result sim_launch_plain(gpu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                            gpu_stream stream, void **arguments, void **extra) {
    const gpu_launch_config config = {.grid = {grid_x, grid_y, grid_z},
                                      .block = {block_x, block_y, block_z},
                                      .shared_bytes = shared_bytes,
                                      .stream = stream};
    return sim_launch(&config, function, arguments, extra);
}

static void count_launch(gpu_function function, const gpu_launch_config *config) {
    const ptx_counters *counters = ptx_machine_counters(sim.totals.machine);
    sim.totals.launches++;
    sim.totals.last = *config;
    sim.totals.counters = *counters;
    sim_counts_add(function, 1, (uint64_t)config->grid[0] * config->grid[1] * config->grid[2], counters);
}

gpu_result sim_run_launch(const sim_operation *operation) {
    enum { PARAMETERS_MOST = 1024 }; /* 4 KiB of them at most */
    gpu_function function = operation->function;
    void *arguments[PARAMETERS_MOST];
    const gpu_launch_config *config = &operation->config;
    if (function->kernel == NULL) {
        sim.broken = SIM_ERROR_LAUNCH_FAILED;
        return sim_misuse(sim.broken, "a launch of %s, whose library was unloaded", function->name);
    }
    uint32_t count = ptx_kernel_parameter_count(function->kernel);
    if (count > PARAMETERS_MOST) return SIM_ERROR_NOT_SUPPORTED;
    for (uint32_t i = 0; i < count; i++)
        arguments[i] = operation->bytes + ptx_kernel_parameter_offset(function->kernel, i);
    const ptx_launch how = {.grid = {config->grid[0], config->grid[1], config->grid[2]},
                            .block = {config->block[0], config->block[1], config->block[2]},
                            .dynamic_shared = config->shared_bytes,
                            .arguments = arguments,
                            .checks = sim.config.checks,
                            .seed = sim.config.seed};
    int result = ptx_kernel_launch(sim.totals.machine, function->kernel, &how);
    if (result == PTX_OK) {
        count_launch(function, config);
        return GPU_SUCCESS;
    }
    sim.broken = SIM_ERROR_LAUNCH_FAILED;
    if (result == PTX_REFUSED) return sim_misuse(sim.broken, "%s", ptx_machine_message(sim.totals.machine));
    return sim_misuse(sim.broken,
                      "%s failed: a grid of (%u,%u,%u) blocks of (%u,%u,%u) threads, %u defects\n%s",
                      function->name, config->grid[0], config->grid[1], config->grid[2], config->block[0],
                      config->block[1], config->block[2], ptx_machine_defect_count(sim.totals.machine),
                      ptx_machine_report(sim.totals.machine));
}
