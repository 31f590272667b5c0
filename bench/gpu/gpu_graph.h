/* Calls of the CUDA driver that only tests and benchmarks make: launches captured into a graph, and events
 * that tell the time. Beside the table of core/gpu/gpu_driver.h, and found as that one is. */
#ifndef KVANT_BENCH_GPU_GRAPH_H
#define KVANT_BENCH_GPU_GRAPH_H

#include <gpu/gpu_driver.h>

typedef struct CUgraph_st *gpu_graph;
typedef struct CUgraphExec_st *gpu_graph_exec;

typedef struct gpu_graph_calls {
    gpu_result (*elapsed)(float *milliseconds, gpu_event from, gpu_event to);
    gpu_result (*memory_info)(size_t *free_bytes, size_t *bytes);
    gpu_result (*begin_capture)(gpu_stream stream, int mode);
    gpu_result (*end_capture)(gpu_stream stream, gpu_graph *graph);
    gpu_result (*instantiate)(gpu_graph_exec *exec, gpu_graph graph, unsigned long long flags);
    gpu_result (*graph_launch)(gpu_graph_exec exec, gpu_stream stream);
    gpu_result (*exec_destroy)(gpu_graph_exec exec);
    gpu_result (*graph_destroy)(gpu_graph graph);
} gpu_graph_calls;

/* After gpu_driver_find. DEVICE: there is no such driver, or it has no call of a name. */
kvant_status gpu_graph_find(gpu_graph_calls *calls, kvant_diag *diag);

/* What `launch` puts into the stream, as a graph. No call of the driver's is allowed meanwhile that a
 * capture forbids, in any thread. The stream is not the default one. */
kvant_status gpu_graph_capture(const gpu_driver *driver, const gpu_graph_calls *calls, gpu_stream stream,
                               kvant_status (*launch)(void *context, gpu_stream stream, kvant_diag *diag),
                               void *context, gpu_graph_exec *exec, kvant_diag *diag);

#endif
