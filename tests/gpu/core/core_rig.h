/* The core's own kernels on a device, one launch at a time, for tests that compare what they write. */
#ifndef KVANT_TEST_CORE_RIG_H
#define KVANT_TEST_CORE_RIG_H

#include "gpu_rig.h"

#include <gpu/core_kernels.h>
#include <stdbool.h>
#include <stddef.h>

/* As gpu_rig_begin, with the core's image in place of a plugin's; gpu_rig_end ends it. */
void core_rig_begin(gpu_rig *rig, uint32_t architecture);

typedef struct core_launch {
    const char *kernel;
    uint32_t threads, shared_bytes;
    uint64_t units;   /* at most */
    const void *jobs; /* in the device's memory poison follows, which no kernel may take for a job */
    size_t job_bytes, count;
    const void *head; /* what job_count points to */
    size_t head_bytes;
    const void *state, *layer; /* NULL = 0 */
    size_t state_bytes, layer_bytes;
    int resident; /* blocks on a multiprocessor of the interpreter's device; 0 = its own number */
} core_launch;

/* What a kernel does wrong fails the test. */
void core_rig_launch(gpu_rig *rig, const core_launch *launch);

/* Whether KVANT_GPU asks for a real device. */
bool core_rig_is_real(void);

#endif
