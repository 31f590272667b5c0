/* A driver table (core/gpu/gpu_driver.h) without a driver: one device, whose memory is the interpreter's and
 * whose kernels are PTX. Of a PTX image it runs the text that it was given; of a fat binary, which only a GPU
 * can run, the PTX that the build left for the device's architecture.
 *
 * One device at a time, for one thread. Whatever a kernel does wrong fails the test with the interpreter's
 * report. */
#ifndef KVANT_TEST_GPU_FAKE_H
#define KVANT_TEST_GPU_FAKE_H

#include <gpu/gpu_driver.h>
#include <ptx/ptx.h>

#include <stdbool.h>

typedef struct gpu_fake {
    /* What the device is; set before gpu_fake_begin. */
    uint32_t major, minor;
    const char *ptx; /* "<folder>/<plugin>": for a fat binary, <ptx>.compute_<architecture>.ptx is read */
    uint32_t checks; /* PTX_CHECK_* */
    uint32_t seed;   /* of the order of warps and blocks */
    uint32_t shared_most; /* 0 = 227 KiB */
    int resident;         /* blocks on a multiprocessor; 0 = 2 */
    /* What fails next: the call of this name, with this result. */
    const char *fail;
    gpu_result fail_with;
    int driver_version; /* 0 = 13000 */
    int devices;        /* -1 = none, 0 = one */

    /* What happened. */
    ptx_machine *machine;
    uint32_t launches, allocations, retained;
    uint32_t contexts; /* on the stack */
    bool was_ptx;      /* the image loaded last was PTX text */
    gpu_launch_config last;
    ptx_counters counters; /* of the last launch; with PTX_CHECK_COUNT whole */
} gpu_fake;

extern gpu_fake gpu_fake_device;

/* With the members that are set in `device`. */
const gpu_driver *gpu_fake_begin(const gpu_fake *device);
/* Fails the test if memory, contexts or libraries are left. */
void gpu_fake_end(void);

#endif
