/* See core_rig.h. */
#include "core_rig.h"

#include "support/test.h"

#include <gpu/core_image.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xA7, JOBS_BEHIND = 2 };

#define OK(call) check((call), &diag, #call)

static void check(kvant_status status, const kvant_diag *diag, const char *what) {
    if (status != KVANT_OK) fail_msg("%s: %d: %s", what, status, diag->message);
}

bool core_rig_is_real(void) {
    const char *where = getenv("KVANT_GPU");
    return where != NULL && strcmp(where, "real") == 0;
}

void core_rig_begin(gpu_rig *rig, uint32_t architecture) {
    kvant_diag diag = {.struct_size = sizeof diag};
    memset(rig, 0, sizeof *rig);
    const kvant_gpu *table = core_gpu_table();
    if (table == NULL) {
        print_message("skipped: the core was built without GPU code\n");
        skip();
    }
    rig->is_real = core_rig_is_real();
    if (rig->is_real) {
        OK(gpu_driver_find(&rig->driver, &diag));
    } else {
        rig->driver = gpu_fake_begin(&(gpu_fake){.major = architecture / 10,
                                                 .minor = architecture % 10,
                                                 .checks = PTX_CHECK_ALL & ~PTX_CHECK_COUNT,
                                                 .seed = architecture});
    }
    OK(gpu_device_open(rig->driver, 0, &rig->device, &diag));
    OK(gpu_module_load(&rig->device, "core", table, &rig->module, &diag));
    OK(gpu_device_enter(&rig->device, &diag));
    OK(gpu_check(rig->driver, rig->driver->stream_create(&rig->stream, 1), "cuStreamCreate", &diag));
    gpu_device_leave(&rig->device);
}

void core_rig_launch(gpu_rig *rig, const core_launch *l) {
    kvant_diag diag = {.struct_size = sizeof diag};
    gpu_launchable kernel;
    size_t bytes = l->count * l->job_bytes, all = bytes + JOBS_BEHIND * l->job_bytes;
    unsigned char *jobs = malloc(all);
    assert_non_null(jobs);
    memset(jobs, POISON, all);
    memcpy(jobs, l->jobs, bytes);
    if (!rig->is_real) gpu_fake_device.resident = l->resident;
    OK(gpu_launchable_open(&rig->module, l->kernel, l->threads, l->shared_bytes, &kernel, &diag));
    const kvant_gpu_call call = {
        .state = l->state != NULL ? gpu_rig_to_device(rig, l->state, l->state_bytes) : 0,
        .jobs = gpu_rig_to_device(rig, jobs, all),
        .job_count = gpu_rig_to_device(rig, l->head, l->head_bytes),
        .layer = l->layer != NULL ? gpu_rig_to_device(rig, l->layer, l->layer_bytes) : 0};
    OK(gpu_launchable_launch(&rig->module, &kernel, l->units, &call, rig->stream, &diag));
    if (call.layer != 0) gpu_rig_from_device(rig, call.layer, NULL, 0);
    gpu_rig_from_device(rig, call.job_count, NULL, 0);
    gpu_rig_from_device(rig, call.jobs, NULL, 0);
    if (call.state != 0) gpu_rig_from_device(rig, call.state, NULL, 0);
    free(jobs);
}
