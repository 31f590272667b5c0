/* A CUDA driver without a GPU: one device, whose memory is the PTX interpreter's and whose kernels are PTX.
 * Of a PTX image it runs the text that it was given; of a fat binary, which only a GPU can run, the PTX that
 * the build left beside it.
 *
 * libcuda.c makes a shared object of it, which takes a driver's place in the search path; gpu_fake.h puts it
 * into a test program. There is one device in a process, as the driver's calls name none. Any thread may call
 * it; one is served at a time. README.md says what it looks at and what it cannot see. */
#ifndef KVANT_TEST_SIM_H
#define KVANT_TEST_SIM_H

#include <gpu/gpu_driver.h>
#include <ptx/ptx.h>

#include <stdbool.h>

typedef struct sim_config {
    uint32_t major, minor; /* compute capability */
    int driver_version;    /* 0 = 13000 */
    bool no_device;
    uint64_t memory_most; /* bytes that may be allocated; 0 = 4 GiB */
    uint32_t shared_most; /* bytes of a block; 0 = what devices of this compute capability have */
    int resident;         /* blocks on one of the 3 multiprocessors; 0 = 2 */
    uint32_t checks;      /* PTX_CHECK_* */
    uint32_t seed;        /* of the order of warps and blocks and, deferred, of operations */
    /* Operations wait in their streams until somebody waits for them or, with a seed, for some later call. */
    bool deferred;
    const char *folders; /* "a:b": searched for <name>.fatbin and the <name>.compute_<nn>.ptx beside it */
    /* Hooks; each may be NULL. */
    bool (*before)(const char *call, gpu_result *result); /* true: the call does nothing but return this */
    void (*after)(const char *call);
    void (*complain)(const char *text); /* what a driver would not say: lines, with their ends */
} sim_config;

/* What happened since sim_begin. */
typedef struct sim_totals {
    ptx_machine *machine;
    uint32_t launches;         /* that ran */
    uint32_t allocations;      /* these five: there now */
    uint32_t host_allocations; /* page-locked */
    uint32_t streams, events;
    uint32_t retained; /* times that the primary context is */
    uint32_t contexts; /* on the calling thread's stack */
    uint64_t bytes, bytes_most;
    bool was_ptx; /* the image loaded last was PTX text */
    gpu_launch_config last;
    ptx_counters counters; /* of the last launch; with PTX_CHECK_COUNT whole */
} sim_totals;

/* False: out of memory. Strings of the configuration are copied. */
bool sim_begin(const sim_config *config);
/* Forgets everything; operations that nobody waited for never happen. */
void sim_end(void);
const sim_totals *sim_state(void);
/* checks, seed and resident may be changed between calls. */
sim_config *sim_settings(void);

/* The function of this name that a driver offers to programs written for CUDA `version` (12000 = 12.0), as
 * cuGetProcAddress finds it. NULL if there is none; *is_known says whether a later version has one. */
void (*sim_find(const char *name, int version, bool *is_known))(void);

/* The driver's functions that core/gpu calls. */
extern const gpu_driver sim_driver;

/* What kernels did since sim_begin, one line for each: launches, instructions, sectors, wavefronts. NULL: out
 * of memory. Frees with free(). */
char *sim_counts(void);

#endif
