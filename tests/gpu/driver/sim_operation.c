/* What runs on the device, one operation at a time. */
#include "sim_state.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

sim_operation *sim_operation_new(sim_kind kind) {
    sim_operation *operation = calloc(1, sizeof *operation);
    if (operation != NULL) operation->kind = kind;
    return operation;
}

void sim_operation_free(sim_operation *operation) {
    if (operation == NULL) return;
    if (operation->exec != NULL) sim_exec_release(operation->exec);
    free(operation->bytes);
    free(operation);
}

static double seconds(void) {
    struct timespec now = {0, 0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A replayed graph may find its memory gone. */
static gpu_result need(bool there, const sim_operation *operation, const char *what) {
    if (there) return GPU_SUCCESS;
    sim.broken = SIM_ERROR_LAUNCH_FAILED;
    return sim_misuse(SIM_ERROR_LAUNCH_FAILED, "a copy or set of %zu bytes ran when its %s was gone",
                      operation->size, what);
}

static gpu_result run_memory(const sim_operation *o) {
    gpu_result result = GPU_SUCCESS;
    if (o->kind == SIM_TO_HOST || o->kind == SIM_ON_DEVICE)
        result = need(sim_is_on_device(o->from, o->size), o, "source");
    if (result == GPU_SUCCESS && o->kind != SIM_TO_HOST)
        result = need(sim_is_on_device(o->to, o->size), o, "destination");
    if (result == GPU_SUCCESS && o->is_captured && o->kind == SIM_TO_DEVICE)
        result = need(sim_is_page_locked(o->from, o->size), o, "source");
    if (result == GPU_SUCCESS && o->is_captured && o->kind == SIM_TO_HOST)
        result = need(sim_is_page_locked(o->to, o->size), o, "destination");
    if (result != GPU_SUCCESS) return result;
    if (o->kind == SIM_SET)
        memset((void *)o->to, o->value, o->size);
    else
        memcpy((void *)o->to, o->bytes != NULL ? o->bytes : (const void *)o->from, o->size);
    return GPU_SUCCESS;
}

gpu_result sim_run(const sim_operation *operation) {
    gpu_result result = sim.broken;
    if (result != GPU_SUCCESS) return result;
    switch (operation->kind) {
    case SIM_LAUNCH:
        return sim_run_launch(operation);
    case SIM_RECORD:
        if (operation->event != NULL && operation->event->id == operation->id) {
            operation->event->is_done = true;
            operation->event->at = seconds();
        }
        return GPU_SUCCESS;
    case SIM_WAIT:
        return GPU_SUCCESS;
    case SIM_GRAPH:
        for (const sim_operation *o = operation->exec->first; o != NULL && result == GPU_SUCCESS; o = o->next)
            result = sim_run(o);
        return result;
    default:
        return run_memory(operation);
    }
}
