/* See gpu_graph.h. */
#include "gpu_graph.h"

#include <kvant/kit/diag.h>

#include <dlfcn.h>

enum { DRIVER_VERSION = 12000, CAPTURE_GLOBAL = 0 };

typedef gpu_result get_address(const char *name, void **function, int version, uint64_t flags, int *found);

/* One name per member of gpu_graph_calls, in its order. */
static const char *const names[] = {
    "cuEventElapsedTime",          "cuMemGetInfo",  "cuStreamBeginCapture", "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags", "cuGraphLaunch", "cuGraphExecDestroy",   "cuGraphDestroy",
};

_Static_assert(sizeof names / sizeof names[0] == sizeof(gpu_graph_calls) / sizeof(void (*)(void)),
               "a name for each");

kvant_status gpu_graph_find(gpu_graph_calls *calls, kvant_diag *diag) {
    get_address *find;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); /* stays open, as the driver does */
    void *symbol = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (symbol == NULL)
        return kvant_fail(diag, KVANT_ERROR_DEVICE, "", "no CUDA driver of CUDA 12.0 or newer");
    memcpy(&find, &symbol, sizeof find);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *function = NULL;
        int found = 0;
        gpu_result result = find(names[i], &function, DRIVER_VERSION, 0, &found);
        if (result != GPU_SUCCESS || function == NULL)
            return kvant_fail(diag, KVANT_ERROR_DEVICE, "", "the driver has no %s (error %d)", names[i],
                              result);
        memcpy((unsigned char *)calls + i * sizeof function, &function, sizeof function);
    }
    return KVANT_OK;
}

kvant_status gpu_graph_capture(const gpu_driver *driver, const gpu_graph_calls *calls, gpu_stream stream,
                               kvant_status (*launch)(void *context, gpu_stream stream, kvant_diag *diag),
                               void *context, gpu_graph_exec *exec, kvant_diag *diag) {
    gpu_graph graph = NULL;
    *exec = NULL;
    kvant_status status =
        gpu_check(driver, calls->begin_capture(stream, CAPTURE_GLOBAL), "cuStreamBeginCapture", diag);
    if (status != KVANT_OK) return status;
    status = launch(context, stream, diag);
    gpu_result ended =
        calls->end_capture(stream, &graph); /* also after a failed launch, to have the stream back */
    if (status == KVANT_OK) status = gpu_check(driver, ended, "cuStreamEndCapture", diag);
    if (status == KVANT_OK)
        status = gpu_check(driver, calls->instantiate(exec, graph, 0), "cuGraphInstantiateWithFlags", diag);
    if (graph != NULL) (void)calls->graph_destroy(graph);
    return status;
}
