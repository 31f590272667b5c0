/* The CUDA driver as a table of functions: the few calls that this library makes. The real table is filled
 * from libcuda.so.1, which is looked for when a device is asked for and never linked; a test puts a table of
 * its own in its place. Types are the driver's, written out, so that nothing of the toolkit is needed to
 * build. */
#ifndef KVANT_GPU_GPU_DRIVER_H
#define KVANT_GPU_GPU_DRIVER_H

#include <kvant/types.h>

typedef int gpu_result; /* CUresult */
typedef int gpu_device_number;
typedef struct CUctx_st *gpu_context;
typedef struct CUstream_st *gpu_stream;
typedef struct CUlib_st *gpu_library;
typedef struct CUkern_st *gpu_kernel;
typedef struct CUfunc_st *gpu_function;
typedef struct CUevent_st *gpu_event;
typedef unsigned long long gpu_address; /* CUdeviceptr */

/* Results that are told apart; all others are named by the driver. */
enum {
    GPU_SUCCESS = 0,
    GPU_ERROR_INVALID_VALUE = 1,
    GPU_ERROR_OUT_OF_MEMORY = 2,
    GPU_ERROR_STUB_LIBRARY = 34,
    GPU_ERROR_NO_DEVICE = 100,
    GPU_ERROR_INVALID_IMAGE = 200,
    GPU_ERROR_NO_BINARY_FOR_GPU = 209,
    GPU_ERROR_INVALID_PTX = 218,
    GPU_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    GPU_ERROR_NOT_FOUND = 500,
    GPU_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
    GPU_ERROR_SYSTEM_DRIVER_MISMATCH = 803
};

enum {
    GPU_ATTRIBUTE_MULTIPROCESSORS = 16,
    GPU_ATTRIBUTE_MAJOR = 75,
    GPU_ATTRIBUTE_MINOR = 76,
    GPU_ATTRIBUTE_SHARED_OPTIN = 97, /* bytes of shared memory that a block may ask for */
    GPU_FUNCTION_ATTRIBUTE_MAX_DYNAMIC_SHARED = 8,
    GPU_EVENT_DISABLE_TIMING = 2
};

typedef struct gpu_launch_config { /* CUlaunchConfig */
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    gpu_stream stream;
    void *attributes;
    unsigned attribute_count;
} gpu_launch_config;

/* In the order of gpu_driver.c's list of names. */
typedef struct gpu_driver {
    gpu_result (*init)(unsigned flags);
    gpu_result (*driver_version)(int *version);
    gpu_result (*device_count)(int *count);
    gpu_result (*device_get)(gpu_device_number *device, int ordinal);
    gpu_result (*device_name)(char *name, int size, gpu_device_number device);
    gpu_result (*device_attribute)(int *value, int attribute, gpu_device_number device);
    gpu_result (*primary_retain)(gpu_context *context, gpu_device_number device);
    gpu_result (*primary_release)(gpu_device_number device);
    gpu_result (*context_push)(gpu_context context);
    gpu_result (*context_pop)(gpu_context *context);
    gpu_result (*context_device)(gpu_device_number *device); /* of the current context */
    gpu_result (*stream_context)(gpu_stream stream, gpu_context *context);
    gpu_result (*stream_create)(gpu_stream *stream, unsigned flags);
    gpu_result (*stream_destroy)(gpu_stream stream);
    gpu_result (*stream_synchronize)(gpu_stream stream);
    gpu_result (*memory_alloc)(gpu_address *address, size_t size);
    gpu_result (*memory_free)(gpu_address address);
    gpu_result (*host_alloc)(void **memory, size_t size, unsigned flags); /* page-locked: copies do not
                                                                             wait */
    gpu_result (*host_free)(void *memory);
    gpu_result (*copy_to_device)(gpu_address to, const void *from, size_t size, gpu_stream stream);
    gpu_result (*copy_to_host)(void *to, gpu_address from, size_t size, gpu_stream stream);
    gpu_result (*copy_on_device)(gpu_address to, gpu_address from, size_t size, gpu_stream stream);
    gpu_result (*memory_set)(gpu_address to, unsigned char value, size_t size, gpu_stream stream);
    gpu_result (*event_create)(gpu_event *event, unsigned flags);
    gpu_result (*event_record)(gpu_event event, gpu_stream stream);
    gpu_result (*event_synchronize)(gpu_event event);
    gpu_result (*event_destroy)(gpu_event event);
    gpu_result (*library_load)(gpu_library *library, const void *image, void *jit_options, void **jit_values,
                               unsigned jit_count, void *options, void **values, unsigned count);
    gpu_result (*library_unload)(gpu_library library);
    gpu_result (*library_kernel)(gpu_kernel *kernel, gpu_library library, const char *name);
    gpu_result (*kernel_function)(gpu_function *function, gpu_kernel kernel);
    gpu_result (*function_set_attribute)(gpu_function function, int attribute, int value);
    gpu_result (*occupancy)(int *blocks, gpu_function function, int threads, size_t dynamic_shared);
    gpu_result (*launch)(const gpu_launch_config *config, gpu_function function, void **arguments,
                         void **extra);
    gpu_result (*error_name)(gpu_result error, const char **name);
    gpu_result (*error_text)(gpu_result error, const char **text);
} gpu_driver;

/* The machine's driver, found and initialised at the first call that succeeds; the table lives as long as the
 * process. KVANT_ERROR_DEVICE: no driver, one that is too old, none of its devices. */
kvant_status gpu_driver_find(const gpu_driver **driver, kvant_diag *diag);

/* KVANT_OK on success; else a message "<what>: <the driver's name and text of the error>". Out of memory is
 * KVANT_ERROR_MEMORY, everything else KVANT_ERROR_DEVICE. */
kvant_status gpu_check(const gpu_driver *driver, gpu_result result, const char *what, kvant_diag *diag);

#endif
