/* The simulated device (../driver/sim.h) in a test program, as a driver table (core/gpu/gpu_driver.h) without
 * a driver. Whatever a kernel or a caller does wrong fails the test with the device's report.
 *
 * One device at a time. Of a PTX image it runs the text that it was given; of a fat binary, which only a GPU
 * can run, the PTX that the build left for the device's architecture, whatever plugin or part it is of. */
#ifndef KVANT_TEST_GPU_FAKE_H
#define KVANT_TEST_GPU_FAKE_H

#include <gpu/gpu_driver.h>
#include <ptx/ptx.h>

#include <stdbool.h>

typedef struct gpu_fake {
    /* What the device is; set before gpu_fake_begin. */
    uint32_t major, minor;
    uint32_t shared_most; /* 0 = what devices of this compute capability have */
    uint64_t memory_most; /* bytes; 0 = 4 GiB */
    int driver_version;   /* 0 = 13000 */
    int devices;          /* -1 = none, 0 = one */
    bool deferred;        /* operations wait until somebody waits for them (sim.h) */
    /* May be changed at any time. */
    uint32_t checks; /* PTX_CHECK_* */
    uint32_t seed;   /* of the order of warps and blocks and, deferred, of operations */
    int resident;    /* blocks on a multiprocessor, of which there are 3; 0 = 2 */
    /* What fails next: the call of this name, a member of gpu_driver, with this result. */
    const char *fail;
    gpu_result fail_with;

    /* What happened. */
    ptx_machine *machine;
    uint32_t launches;
    uint32_t allocations, host_allocations, streams, events; /* there now */
    uint32_t retained, contexts;                             /* contexts: on the stack */
    bool was_ptx;                                            /* the image loaded last was PTX text */
    gpu_launch_config last;
    ptx_counters counters; /* of the last launch; with PTX_CHECK_COUNT whole */
} gpu_fake;

extern gpu_fake gpu_fake_device;

/* With the members that are set in `device`. */
const gpu_driver *gpu_fake_begin(const gpu_fake *device);
/* Fails the test if memory, streams, events or contexts are left. */
void gpu_fake_end(void);

#endif
