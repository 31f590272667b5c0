/* The calls that the simulated driver offers, under the names of core/gpu/gpu_driver.h where it has them.
 * What each does is the CUDA driver API's to say. */
#ifndef KVANT_TEST_SIM_CALLS_H
#define KVANT_TEST_SIM_CALLS_H

#include <gpu/gpu_driver.h>

typedef struct CUgraph_st *gpu_graph;
typedef struct CUgraphExec_st *gpu_graph_exec;
typedef struct CUgraphNode_st *gpu_graph_node;

/* Devices and contexts (sim_device.c) */
gpu_result sim_init(unsigned flags);
gpu_result sim_driver_version(int *version);
gpu_result sim_device_count(int *count);
gpu_result sim_device_get(gpu_device_number *device, int ordinal);
gpu_result sim_device_name(char *name, int size, gpu_device_number device);
gpu_result sim_device_attribute(int *value, int attribute, gpu_device_number device);
gpu_result sim_device_memory(size_t *bytes, gpu_device_number device);
gpu_result sim_primary_retain(gpu_context *context, gpu_device_number device);
gpu_result sim_primary_release(gpu_device_number device);
gpu_result sim_context_push(gpu_context context);
gpu_result sim_context_pop(gpu_context *context);
gpu_result sim_context_set(gpu_context context);
gpu_result sim_context_get(gpu_context *context);
gpu_result sim_context_device(gpu_device_number *device);
gpu_result sim_context_synchronize(void);
gpu_result sim_error_name(gpu_result error, const char **name);
gpu_result sim_error_text(gpu_result error, const char **text);

/* Memory (sim_memory.c) */
gpu_result sim_memory_alloc(gpu_address *address, size_t size);
gpu_result sim_memory_free(gpu_address address);
gpu_result sim_memory_info(size_t *left, size_t *total);
gpu_result sim_host_alloc(void **memory, size_t size, unsigned flags);
gpu_result sim_host_free(void *memory);
gpu_result sim_copy_to_device(gpu_address to, const void *from, size_t size, gpu_stream stream);
gpu_result sim_copy_to_host(void *to, gpu_address from, size_t size, gpu_stream stream);
gpu_result sim_copy_on_device(gpu_address to, gpu_address from, size_t size, gpu_stream stream);
gpu_result sim_memory_set(gpu_address to, unsigned char value, size_t size, gpu_stream stream);
gpu_result sim_copy_to_device_now(gpu_address to, const void *from, size_t size);
gpu_result sim_copy_to_host_now(void *to, gpu_address from, size_t size);
gpu_result sim_memory_set_now(gpu_address to, unsigned char value, size_t size);

/* Streams and events (sim_stream.c) */
gpu_result sim_stream_create(gpu_stream *stream, unsigned flags);
gpu_result sim_stream_destroy(gpu_stream stream);
gpu_result sim_stream_context(gpu_stream stream, gpu_context *context);
gpu_result sim_stream_synchronize(gpu_stream stream);
gpu_result sim_stream_query(gpu_stream stream);
gpu_result sim_stream_wait(gpu_stream stream, gpu_event event, unsigned flags);
gpu_result sim_event_create(gpu_event *event, unsigned flags);
gpu_result sim_event_record(gpu_event event, gpu_stream stream);
gpu_result sim_event_synchronize(gpu_event event);
gpu_result sim_event_query(gpu_event event);
gpu_result sim_event_elapsed(float *milliseconds, gpu_event start, gpu_event end);
gpu_result sim_event_destroy(gpu_event event);

/* Code (sim_code.c) */
gpu_result sim_library_load(gpu_library *library, const void *image, void *jit_options, void **jit_values,
                            unsigned jit_count, void *options, void **values, unsigned count);
gpu_result sim_library_unload(gpu_library library);
gpu_result sim_library_kernel(gpu_kernel *kernel, gpu_library library, const char *name);
gpu_result sim_kernel_function(gpu_function *function, gpu_kernel kernel);
gpu_result sim_function_set_attribute(gpu_function function, int attribute, int value);
gpu_result sim_function_attribute(int *value, int attribute, gpu_function function);
gpu_result sim_occupancy(int *blocks, gpu_function function, int threads, size_t dynamic_shared);
gpu_result sim_launch(const gpu_launch_config *config, gpu_function function, void **arguments, void **extra);
gpu_result sim_launch_plain(gpu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                            gpu_stream stream, void **arguments, void **extra);

/* Graphs (sim_graph.c) */
gpu_result sim_capture_begin(gpu_stream stream, int mode);
gpu_result sim_capture_end(gpu_stream stream, gpu_graph *graph);
gpu_result sim_capture_status(gpu_stream stream, int *status);
gpu_result sim_graph_nodes(gpu_graph graph, gpu_graph_node *nodes, size_t *count);
gpu_result sim_graph_instantiate(gpu_graph_exec *exec, gpu_graph graph, unsigned long long flags);
gpu_result sim_graph_launch(gpu_graph_exec exec, gpu_stream stream);
gpu_result sim_graph_upload(gpu_graph_exec exec, gpu_stream stream);
gpu_result sim_graph_exec_destroy(gpu_graph_exec exec);
gpu_result sim_graph_destroy(gpu_graph graph);

#endif
