/* See gpu_clock.h. */
#include "gpu_clock.h"

#include <kvant/kit/diag.h>

#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { ATTRIBUTE_L2_BYTES = 38, STREAM_NON_BLOCKING = 1, LAUNCHES_MOST = 4096 };

#define TRY(call, what) gpu_check(clock->device.driver, (call), (what), diag)

kvant_status gpu_clock_open(uint32_t ordinal, gpu_clock *clock, kvant_diag *diag) {
    const gpu_driver *driver = NULL;
    int l2 = 0;
    *clock = (gpu_clock){0};
    kvant_status status = gpu_driver_find(&driver, diag);
    if (status == KVANT_OK) status = gpu_graph_find(&clock->calls, diag);
    if (status == KVANT_OK) status = gpu_device_open(driver, (int)ordinal, &clock->device, diag);
    if (status == KVANT_OK) status = gpu_device_enter(&clock->device, diag);
    if (status != KVANT_OK) return status;
    if (driver->device_attribute(&l2, ATTRIBUTE_L2_BYTES, clock->device.number) == GPU_SUCCESS && l2 > 0)
        clock->l2_bytes = (uint64_t)l2;
    status = TRY(driver->stream_create(&clock->stream, STREAM_NON_BLOCKING), "cuStreamCreate");
    if (status == KVANT_OK) status = TRY(driver->event_create(&clock->begin, 0), "cuEventCreate");
    if (status == KVANT_OK) status = TRY(driver->event_create(&clock->end, 0), "cuEventCreate");
    return status;
}

void gpu_clock_close(gpu_clock *clock) {
    const gpu_driver *driver = clock->device.driver;
    if (driver == NULL) return;
    if (clock->begin != NULL) (void)driver->event_destroy(clock->begin);
    if (clock->end != NULL) (void)driver->event_destroy(clock->end);
    if (clock->stream != NULL) (void)driver->stream_destroy(clock->stream);
    gpu_device_leave(&clock->device);
    gpu_device_close(&clock->device);
}

/* ---- One sample ---------------------------------------------------------------------------------------- */

static kvant_status pass(const gpu_timed *subject, uint32_t repeats, gpu_stream stream, kvant_diag *diag) {
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < repeats; i++)
        for (uint32_t set = 0; set < subject->sets && status == KVANT_OK; set++)
            status = subject->launch(subject->context, set, stream, diag);
    return status;
}

static kvant_status put(gpu_clock *clock, const gpu_timed *subject, bool graph, kvant_diag *diag) {
    if (!graph) return pass(subject, 1, clock->stream, diag);
    return TRY(clock->calls.graph_launch(subject->exec, clock->stream), "cuGraphLaunch");
}

/* A first pass keeps the device busy while the host puts the second, which is measured, behind it: what the
 * host takes is in the measure only where it is slower than the device. */
static kvant_status sample(gpu_clock *clock, const gpu_timed *subject, bool graph, double *microseconds,
                           kvant_diag *diag) {
    const gpu_driver *d = clock->device.driver;
    float milliseconds = 0;
    kvant_status status = put(clock, subject, graph, diag);
    if (status == KVANT_OK) status = TRY(d->event_record(clock->begin, clock->stream), "cuEventRecord");
    if (status == KVANT_OK) status = put(clock, subject, graph, diag);
    if (status == KVANT_OK) status = TRY(d->event_record(clock->end, clock->stream), "cuEventRecord");
    if (status == KVANT_OK) status = TRY(d->stream_synchronize(clock->stream), "cuStreamSynchronize");
    if (status == KVANT_OK)
        status = TRY(clock->calls.elapsed(&milliseconds, clock->begin, clock->end), "cuEventElapsedTime");
    *microseconds = 1e3 * (double)milliseconds / subject->sets / (graph ? subject->repeats : 1);
    return status;
}

/* ---- All of them --------------------------------------------------------------------------------------- */

static kvant_status launch_captured(void *context, gpu_stream stream, kvant_diag *diag) {
    const gpu_timed *subject = context;
    return pass(subject, subject->repeats, stream, diag);
}

/* Without `exec`, and with `fault`, where it cannot be captured. */
static void capture(gpu_clock *clock, gpu_timed *subject, uint32_t repeats) {
    kvant_diag why = {.struct_size = sizeof why};
    subject->repeats = repeats;
    subject->fault[0] = '\0';
    if (gpu_graph_capture(clock->device.driver, &clock->calls, clock->stream, launch_captured, subject,
                          &subject->exec, &why) == KVANT_OK)
        return;
    (void)snprintf(subject->fault, sizeof subject->fault, "%.*s", (int)sizeof subject->fault - 1,
                   why.message);
    subject->exec = NULL;
}

static void drop(gpu_clock *clock, gpu_timed *subject) {
    if (subject->exec != NULL) (void)clock->calls.exec_destroy(subject->exec);
    subject->exec = NULL;
}

kvant_status gpu_clock_glance(gpu_clock *clock, gpu_timed *subject, double *microseconds, kvant_diag *diag) {
    uint32_t times = clock->is_patient ? 3 : 1;
    kvant_status status = KVANT_OK;
    *microseconds = INFINITY;
    capture(clock, subject, 1);
    for (uint32_t i = 0; i < times && status == KVANT_OK; i++) {
        double one = 0;
        status = sample(clock, subject, subject->exec != NULL, &one, diag);
        *microseconds = fmin(*microseconds, one);
    }
    drop(clock, subject);
    return status;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* An idle device runs at a fraction of its clock. */
static kvant_status warm(gpu_clock *clock, const gpu_timed *subject, kvant_diag *diag) {
    double until = now() + 0.1;
    kvant_status status = KVANT_OK;
    while (clock->is_patient && status == KVANT_OK && now() < until) {
        double one = 0;
        status = sample(clock, subject, false, &one, diag);
    }
    return status;
}

static kvant_status begin(gpu_clock *clock, gpu_timed *subject, double graph_us, kvant_diag *diag) {
    double one = 0;
    kvant_status status = gpu_clock_glance(clock, subject, &one, diag);
    if (status != KVANT_OK) return status;
    double repeats = one > 0 ? ceil(graph_us / (one * subject->sets)) : 1;
    capture(clock, subject, (uint32_t)fmax(1, fmin(repeats, (double)LAUNCHES_MOST / subject->sets)));
    return KVANT_OK;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static gpu_span span_of(double *samples, uint32_t count) {
    qsort(samples, count, sizeof *samples, compare);
    double median = count % 2 == 1 ? samples[count / 2] : (samples[count / 2 - 1] + samples[count / 2]) / 2;
    return (gpu_span){median, samples[0], samples[count - 1], true};
}

kvant_status gpu_clock_measure(gpu_clock *clock, gpu_timed *const *subjects, uint32_t count, uint32_t rounds,
                               double graph_us, kvant_diag *diag) {
    kvant_status status = KVANT_OK;
    if (rounds > CLOCK_ROUNDS_MOST) rounds = CLOCK_ROUNDS_MOST;
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++)
        status = begin(clock, subjects[i], graph_us, diag);
    if (status == KVANT_OK) status = warm(clock, subjects[0], diag);
    for (uint32_t round = 0; round < rounds; round++)
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t graph = 0; graph < 2 && status == KVANT_OK; graph++)
                if (graph == 0 || subjects[i]->exec != NULL)
                    status =
                        sample(clock, subjects[i], graph == 1, &subjects[i]->samples[graph][round], diag);
    for (uint32_t i = 0; i < count; i++) {
        if (status == KVANT_OK) {
            subjects[i]->eager = span_of(subjects[i]->samples[0], rounds);
            if (subjects[i]->exec != NULL) subjects[i]->graph = span_of(subjects[i]->samples[1], rounds);
        }
        drop(clock, subjects[i]);
    }
    return status;
}
