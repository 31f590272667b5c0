/* What launches on a device take, several subjects in turn: each round measures every subject once, so that
 * clocks and temperatures that change meanwhile are everybody's. A subject is launched over several sets of
 * buffers, one after another, together larger than the L2 cache, as the layers of a model are. */
#ifndef KVANT_BENCH_GPU_CLOCK_H
#define KVANT_BENCH_GPU_CLOCK_H

#include "gpu_graph.h"

#include <gpu/gpu_device.h>

#include <stdbool.h>

enum { CLOCK_ROUNDS_MOST = 64 };

typedef struct gpu_clock {
    gpu_device device;
    gpu_graph_calls calls;
    gpu_stream stream;
    gpu_event begin, end;
    uint64_t l2_bytes;
    bool is_patient; /* set by the caller: warms the device up, and glances more than once */
} gpu_clock;

/* Device `ordinal`, in its primary context, which stays current in this thread until close. */
kvant_status gpu_clock_open(uint32_t ordinal, gpu_clock *clock, kvant_diag *diag);
void gpu_clock_close(gpu_clock *clock);

typedef struct gpu_span { /* microseconds of one launch */
    double median, least, most;
    bool is_known;
} gpu_span;

typedef struct gpu_timed {
    /* Puts one launch over the buffers of a set into the stream. */
    kvant_status (*launch)(void *context, uint32_t set, gpu_stream stream, kvant_diag *diag);
    void *context;
    uint32_t sets;
    gpu_span graph;  /* answers: replayed from a graph of many launches, */
    gpu_span eager;  /* and called one by one */
    char fault[256]; /* why `graph` is not known; "" */

    gpu_graph_exec exec;
    uint32_t repeats; /* of all sets, within the graph */
    double samples[2][CLOCK_ROUNDS_MOST];
} gpu_timed;

/* Captures take launches until they last about `graph_us`. A failure of a launch ends it; one of a capture
 * is the subject's fault. */
kvant_status gpu_clock_measure(gpu_clock *clock, gpu_timed *const *subjects, uint32_t count, uint32_t rounds,
                               double graph_us, kvant_diag *diag);

/* Microseconds of one launch in a graph of one pass over the sets, the least of a few: to choose by. */
kvant_status gpu_clock_glance(gpu_clock *clock, gpu_timed *subject, double *microseconds, kvant_diag *diag);

#endif
