/* The names under which a driver offers its functions, and since which version of CUDA each has the signature
 * that it has here. */
#include "sim_state.h"

#include <string.h>

typedef void (*function)(void);

#define F(name) #name, (function)sim_##name

static const struct {
    const char *name;
    int version;
    const char *call;
    function function;
} names[] = {
    {"cuInit", 2000, F(init)},
    {"cuDriverGetVersion", 2020, F(driver_version)},
    {"cuDeviceGetCount", 2000, F(device_count)},
    {"cuDeviceGet", 2000, F(device_get)},
    {"cuDeviceGetName", 2000, F(device_name)},
    {"cuDeviceGetAttribute", 2000, F(device_attribute)},
    {"cuDeviceTotalMem", 3020, F(device_memory)},
    {"cuDevicePrimaryCtxRetain", 7000, F(primary_retain)},
    {"cuDevicePrimaryCtxRelease", 11000, F(primary_release)},
    {"cuCtxPushCurrent", 4000, F(context_push)},
    {"cuCtxPopCurrent", 4000, F(context_pop)},
    {"cuCtxSetCurrent", 4000, F(context_set)},
    {"cuCtxGetCurrent", 4000, F(context_get)},
    {"cuCtxGetDevice", 2000, F(context_device)},
    {"cuCtxSynchronize", 2000, F(context_synchronize)},
    {"cuGetErrorName", 6000, F(error_name)},
    {"cuGetErrorString", 6000, F(error_text)},
    {"cuMemAlloc", 3020, F(memory_alloc)},
    {"cuMemFree", 3020, F(memory_free)},
    {"cuMemGetInfo", 3020, F(memory_info)},
    {"cuMemHostAlloc", 2020, F(host_alloc)},
    {"cuMemFreeHost", 2000, F(host_free)},
    {"cuMemcpyHtoD", 3020, F(copy_to_device_now)},
    {"cuMemcpyDtoH", 3020, F(copy_to_host_now)},
    {"cuMemcpyHtoDAsync", 3020, F(copy_to_device)},
    {"cuMemcpyDtoHAsync", 3020, F(copy_to_host)},
    {"cuMemcpyDtoDAsync", 3020, F(copy_on_device)},
    {"cuMemsetD8", 3020, F(memory_set_now)},
    {"cuMemsetD8Async", 3020, F(memory_set)},
    {"cuStreamCreate", 2000, F(stream_create)},
    {"cuStreamDestroy", 4000, F(stream_destroy)},
    {"cuStreamGetCtx", 9020, F(stream_context)},
    {"cuStreamSynchronize", 2000, F(stream_synchronize)},
    {"cuStreamQuery", 2000, F(stream_query)},
    {"cuStreamWaitEvent", 3020, F(stream_wait)},
    {"cuEventCreate", 2000, F(event_create)},
    {"cuEventRecord", 2000, F(event_record)},
    {"cuEventSynchronize", 2000, F(event_synchronize)},
    {"cuEventQuery", 2000, F(event_query)},
    {"cuEventElapsedTime", 2000, F(event_elapsed)},
    {"cuEventDestroy", 4000, F(event_destroy)},
    {"cuLibraryLoadData", 12000, F(library_load)},
    {"cuLibraryUnload", 12000, F(library_unload)},
    {"cuLibraryGetKernel", 12000, F(library_kernel)},
    {"cuKernelGetFunction", 12000, F(kernel_function)},
    {"cuFuncSetAttribute", 9000, F(function_set_attribute)},
    {"cuFuncGetAttribute", 2020, F(function_attribute)},
    {"cuOccupancyMaxActiveBlocksPerMultiprocessor", 6050, F(occupancy)},
    {"cuLaunchKernel", 4000, F(launch_plain)},
    {"cuLaunchKernelEx", 11060, F(launch)},
    {"cuStreamBeginCapture", 10010, F(capture_begin)},
    {"cuStreamEndCapture", 10000, F(capture_end)},
    {"cuStreamIsCapturing", 10000, F(capture_status)},
    {"cuGraphGetNodes", 10000, F(graph_nodes)},
    {"cuGraphInstantiate", 12000, F(graph_instantiate)},
    {"cuGraphInstantiateWithFlags", 11040, F(graph_instantiate)},
    {"cuGraphUpload", 11010, F(graph_upload)},
    {"cuGraphLaunch", 10000, F(graph_launch)},
    {"cuGraphExecDestroy", 10000, F(graph_exec_destroy)},
    {"cuGraphDestroy", 10000, F(graph_destroy)},
};

void (*sim_find(const char *name, int version, bool *is_known))(void) {
    *is_known = false;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].name, name) != 0) continue;
        *is_known = true;
        return names[i].version <= version ? names[i].function : NULL;
    }
    return NULL;
}

const char *sim_call_name(const char *call) {
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i].call, call) == 0) return names[i].name;
    return call;
}

const gpu_driver sim_driver = {
    .init = sim_init,
    .driver_version = sim_driver_version,
    .device_count = sim_device_count,
    .device_get = sim_device_get,
    .device_name = sim_device_name,
    .device_attribute = sim_device_attribute,
    .primary_retain = sim_primary_retain,
    .primary_release = sim_primary_release,
    .context_push = sim_context_push,
    .context_pop = sim_context_pop,
    .context_device = sim_context_device,
    .stream_context = sim_stream_context,
    .stream_create = sim_stream_create,
    .stream_destroy = sim_stream_destroy,
    .stream_synchronize = sim_stream_synchronize,
    .memory_alloc = sim_memory_alloc,
    .memory_free = sim_memory_free,
    .host_alloc = sim_host_alloc,
    .host_free = sim_host_free,
    .copy_to_device = sim_copy_to_device,
    .copy_to_host = sim_copy_to_host,
    .copy_on_device = sim_copy_on_device,
    .memory_set = sim_memory_set,
    .event_create = sim_event_create,
    .event_record = sim_event_record,
    .event_synchronize = sim_event_synchronize,
    .event_destroy = sim_event_destroy,
    .library_load = sim_library_load,
    .library_unload = sim_library_unload,
    .library_kernel = sim_library_kernel,
    .kernel_function = sim_kernel_function,
    .function_set_attribute = sim_function_set_attribute,
    .occupancy = sim_occupancy,
    .launch = sim_launch,
    .error_name = sim_error_name,
    .error_text = sim_error_text,
};
