/* The simulated device from within. Everything here is under its lock. */
#ifndef KVANT_TEST_SIM_STATE_H
#define KVANT_TEST_SIM_STATE_H

#include "sim.h"
#include "sim_calls.h"

#include <pthread.h>

/* Results that core/gpu does not tell apart. */
enum {
    SIM_ERROR_NOT_INITIALIZED = 3,
    SIM_ERROR_INVALID_DEVICE = 101,
    SIM_ERROR_INVALID_CONTEXT = 201,
    SIM_ERROR_INVALID_HANDLE = 400,
    SIM_ERROR_NOT_READY = 600,
    SIM_ERROR_LAUNCH_FAILED = 719,
    SIM_ERROR_NOT_SUPPORTED = 801,
    SIM_ERROR_CAPTURE_UNSUPPORTED = 900,
    SIM_ERROR_CAPTURE_INVALIDATED = 901,
    SIM_ERROR_CAPTURE_UNMATCHED = 903,
    SIM_ERROR_CAPTURE_UNJOINED = 904,
    SIM_ERROR_CAPTURE_ISOLATION = 905,
    SIM_ERROR_CAPTURE_IMPLICIT = 906,
    SIM_ERROR_CAPTURED_EVENT = 907,
    SIM_ERROR_CAPTURE_WRONG_THREAD = 908
};

enum { SIM_SHARED_UNASKED = 48 << 10, SIM_STREAM_NON_BLOCKING = 1, SIM_CAPTURE_STREAMS = 8 };

struct CUctx_st {
    int unused;
};

/* ---- What waits in streams, and what graphs are made of
 * ------------------------------------------------- */

typedef enum sim_kind {
    SIM_LAUNCH,
    SIM_TO_DEVICE,
    SIM_TO_HOST,
    SIM_ON_DEVICE,
    SIM_SET,
    SIM_RECORD,
    SIM_WAIT,
    SIM_GRAPH
} sim_kind;

typedef struct sim_operation sim_operation;
struct sim_operation {
    sim_operation *next;
    uint64_t id; /* in the order of calls */
    sim_kind kind;
    gpu_stream stream;
    /* Copies and sets: addresses of the device or of the host. */
    uintptr_t to, from;
    size_t size; /* of these and of `bytes` */
    unsigned char value;
    unsigned char
        *bytes; /* SIM_TO_DEVICE: pageable memory as it was at the call; SIM_LAUNCH: the arguments */
    gpu_function function;
    gpu_launch_config config;
    gpu_event event;
    uint64_t awaited; /* SIM_WAIT: the operation that recorded the event */
    gpu_graph_exec exec;
    bool is_captured; /* into a graph */
};

struct CUstream_st {
    gpu_stream next;
    bool is_blocking; /* with the legacy stream */
    bool is_gone;     /* destroyed, with operations left */
    struct sim_capture *capture;
    uint32_t capture_index; /* among the streams of the capture */
};

struct CUevent_st {
    gpu_event next;
    bool has_time;
    bool is_captured; /* recorded last in a stream that was being captured */
    uint64_t id;      /* of the operation that records it; 0 = none */
    bool is_done;
    double at; /* seconds */
    struct sim_capture *capture;
    uint32_t seen[SIM_CAPTURE_STREAMS]; /* operations of each stream of the capture that are before it */
};

struct CUfunc_st {
    gpu_function next;
    gpu_library library;
    const ptx_kernel *kernel;
    char name[128];
    bool is_resident;
    size_t shared_bytes, dynamic_most;
    uint64_t launches, blocks;
    ptx_counters sums;
};

struct CUlib_st {
    gpu_library next;
    ptx_module *module; /* NULL: unloaded; what refers to it can say so */
    gpu_function functions;
};

struct CUgraph_st {
    gpu_graph next;
    sim_operation *first;
    size_t count;
};

struct CUgraphExec_st {
    gpu_graph_exec next;
    sim_operation *first;
    uint32_t users; /* the program, and launches that wait */
    bool is_gone;
};

/* Streams that are being captured into one graph. */
typedef struct sim_capture {
    struct sim_capture *next;
    gpu_graph graph;
    sim_operation **end;
    gpu_stream origin;
    int mode;
    pthread_t thread;
    bool is_invalid;
    uint32_t stream_count;
    uint32_t seen[SIM_CAPTURE_STREAMS]
                 [SIM_CAPTURE_STREAMS]; /* [s][r]: operations of r that s's next follows */
} sim_capture;

typedef struct sim_device {
    sim_config config;
    sim_totals totals;
    bool is_started;
    gpu_result broken; /* the error of a kernel: every call returns it from then on */
    struct CUctx_st context;
    struct CUstream_st legacy; /* the NULL stream */
    gpu_stream streams;
    gpu_event events;
    gpu_library libraries;
    gpu_graph graphs;
    gpu_graph_exec execs;
    sim_capture *captures;
    struct sim_block *blocks; /* device and page-locked memory */
    sim_operation *pending, **pending_end;
    uint64_t last_id, random;
    uint32_t allocation_number, library_number;
    char *complaint, *said;
} sim_device;

extern sim_device sim;

/* ---- Calls --------------------------------------------------------------------------------------------- */

enum {
    SIM_ANYHOW = 0,
    SIM_CONTEXT = 1, /* needs a current context */
    SIM_STICKY = 2,  /* returns the error of a kernel that failed earlier */
    SIM_UNSAFE = 4,  /* what a capture forbids */
    SIM_WORK = SIM_CONTEXT | SIM_STICKY
};

gpu_result sim_enter(const char *call, unsigned rules);
gpu_result sim_leave(const char *call, unsigned rules, gpu_result result);

/* Defines sim_<name>, whose body runs under the lock and by the rules. */
#define SIM_CALL(rules, name, parameters, arguments)                                                         \
    static gpu_result name##_locked parameters;                                                              \
    gpu_result sim_##name parameters {                                                                       \
        gpu_result result_ = sim_enter(#name, rules);                                                        \
        if (result_ == GPU_SUCCESS) result_ = name##_locked arguments;                                       \
        return sim_leave(#name, rules, result_);                                                             \
    }                                                                                                        \
    static gpu_result name##_locked parameters

/* The driver's name of a call. */
const char *sim_call_name(const char *call);

/* What the caller does wrong, or a kernel did, as one line; returns the result. */
gpu_result sim_misuse(gpu_result result, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- Parts --------------------------------------------------------------------------------------------- */

/* sim_memory.c */
bool sim_is_on_device(uintptr_t address, size_t size);
bool sim_is_page_locked(uintptr_t address, size_t size);
void sim_memory_end(void);

/* sim_stream.c. Takes the operation, which malloc gave, and fills in id and stream. */
gpu_result sim_put(gpu_stream stream, sim_operation *operation, uint64_t *id);
gpu_result sim_find_stream(gpu_stream *stream); /* NULL and 1 become the legacy stream */
sim_operation *sim_operation_new(sim_kind kind);
void sim_operation_free(sim_operation *operation);
gpu_result sim_finish(uint64_t id); /* runs the operation and what it waits for; 0 = everything */
gpu_result sim_finish_stream(gpu_stream stream);
void sim_wander(void); /* with a seed: some operations that could run at any time */
void sim_stream_end(void);

/* sim_code.c */
gpu_result sim_run_launch(const sim_operation *operation);
void sim_code_end(void);
/* sim_operation.c */
gpu_result sim_run(const sim_operation *operation);

/* sim_counts.c */
void sim_counts_add(gpu_function to, uint64_t launches, uint64_t blocks, const ptx_counters *counters);

/* sim_image.c. The PTX of an image, from malloc, and what to call it. */
gpu_result sim_image_text(const void *image, char **text, char *name, size_t name_size);

/* sim_graph.c */
gpu_result sim_capture_add(gpu_stream stream, sim_operation *operation);
gpu_result sim_capture_record(gpu_stream stream, gpu_event event);
gpu_result sim_capture_wait(gpu_stream stream, gpu_event event);
/* Something that may not be while the stream is being captured: the capture is invalid. */
gpu_result sim_capture_spoil(sim_capture *capture, gpu_result result, const char *what);
sim_capture *sim_capture_of_legacy(void);        /* one with a stream that blocks with the NULL stream */
bool sim_capture_forbids(sim_capture **capture); /* unsafe calls, of this thread */
void sim_exec_release(gpu_graph_exec exec);
void sim_graph_end(void);

#endif
