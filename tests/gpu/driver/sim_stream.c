/* Streams and events. Deferred, an operation waits in the list of all that are pending until somebody waits
 * for it, which is later than on any device. Two operations are in order where the driver says that they are:
 * in one stream, in the legacy stream and one that blocks with it, or across a wait for an event. */
#include "sim_state.h"

#include <stdlib.h>
#include <string.h>

enum { PENDING_MOST = 1024, WAIT_FLAGS = 0, EVENT_FLAGS = 7 };

/* ---- What is pending ----------------------------------------------------------------------------------- */

/* Whether `later` must wait for `first`, which was called before it. */
static bool is_ordered(const sim_operation *first, const sim_operation *later) {
    if (first->stream == later->stream) return true;
    if (first->stream == &sim.legacy && later->stream->is_blocking) return true;
    if (later->stream == &sim.legacy && first->stream->is_blocking) return true;
    return later->kind == SIM_WAIT && later->awaited == first->id;
}

static void forget_stream(gpu_stream stream) {
    for (const sim_operation *o = sim.pending; o != NULL; o = o->next)
        if (o->stream == stream) return;
    for (gpu_stream *link = &sim.streams; *link != NULL; link = &(*link)->next)
        if (*link == stream) {
            *link = stream->next;
            free(stream);
            return;
        }
}

/* Takes the operation at `link` out of the list and runs it. */
static gpu_result run_pending(sim_operation **link) {
    sim_operation *operation = *link;
    *link = operation->next;
    if (operation->next == NULL) sim.pending_end = link;
    gpu_result result = sim_run(operation);
    gpu_stream stream = operation->stream;
    sim_operation_free(operation);
    if (stream->is_gone) forget_stream(stream);
    return result;
}

static uint32_t pending_count(void) {
    uint32_t count = 0;
    for (const sim_operation *o = sim.pending; o != NULL; o = o->next) count++;
    return count;
}

static bool is_pending(uint64_t id) {
    for (const sim_operation *o = sim.pending; o != NULL; o = o->next)
        if (o->id == id) return true;
    return false;
}

/* Which of the pending operations the last of `count` waits for, itself included. */
static void mark_needed(sim_operation *const *operations, bool *needed, uint32_t count) {
    memset(needed, 0, count * sizeof *needed);
    for (uint32_t i = count; i-- > 0;) {
        needed[i] = i + 1 == count;
        for (uint32_t j = i + 1; j < count && !needed[i]; j++)
            needed[i] = needed[j] && is_ordered(operations[i], operations[j]);
    }
}

gpu_result sim_finish(uint64_t id) {
    gpu_result result = GPU_SUCCESS;
    if (id == 0) {
        while (sim.pending != NULL) {
            gpu_result one = run_pending(&sim.pending);
            if (one != GPU_SUCCESS) result = one;
        }
        return result;
    }
    sim_operation *operations[PENDING_MOST + 1];
    bool needed[PENDING_MOST + 1];
    uint32_t count = 0;
    if (!is_pending(id)) return GPU_SUCCESS;
    for (sim_operation *o = sim.pending; o != NULL && o->id <= id; o = o->next) operations[count++] = o;
    mark_needed(operations, needed, count);
    sim_operation **link = &sim.pending;
    for (uint32_t i = 0; i < count; i++) {
        if (!needed[i]) {
            link = &(*link)->next;
            continue;
        }
        gpu_result one = run_pending(link);
        if (one != GPU_SUCCESS) result = one;
    }
    return result;
}

gpu_result sim_finish_stream(gpu_stream stream) {
    uint64_t id = 0;
    for (const sim_operation *o = sim.pending; o != NULL; o = o->next)
        if (o->stream == stream || (stream == &sim.legacy && o->stream->is_blocking)) id = o->id;
    if (stream != &sim.legacy) return id != 0 ? sim_finish(id) : GPU_SUCCESS;
    gpu_result result = GPU_SUCCESS;
    for (sim_operation **link = &sim.pending; *link != NULL;) {
        sim_operation *o = *link;
        if (!o->stream->is_blocking) {
            link = &o->next;
            continue;
        }
        /* It may wait for operations of streams that do not block. */
        gpu_result one = sim_finish(o->id);
        if (one != GPU_SUCCESS) result = one;
        link = &sim.pending;
    }
    return result;
}

static uint64_t next_random(void) {
    sim.random = sim.random * 6364136223846793005u + 1442695040888963407u;
    return sim.random >> 33;
}

/* Some operation that waits for nothing. */
static void run_any(void) {
    sim_operation **ready[PENDING_MOST + 1];
    uint32_t count = 0;
    for (sim_operation **link = &sim.pending; *link != NULL; link = &(*link)->next) {
        bool waits = false;
        for (const sim_operation *o = sim.pending; o != *link && !waits; o = o->next)
            waits = is_ordered(o, *link);
        if (!waits) ready[count++] = link;
    }
    if (count > 0) (void)run_pending(ready[next_random() % count]);
}

void sim_wander(void) {
    while (sim.config.deferred && sim.config.seed != 0 && sim.pending != NULL && next_random() % 4 == 0)
        run_any();
}

gpu_result sim_put(gpu_stream stream, sim_operation *operation, uint64_t *id) {
    operation->id = ++sim.last_id;
    operation->stream = stream;
    if (id != NULL) *id = operation->id;
    if (sim.broken != GPU_SUCCESS) {
        sim_operation_free(operation);
        return sim.broken;
    }
    if (stream->capture != NULL) return sim_capture_add(stream, operation);
    if (stream == &sim.legacy && sim_capture_of_legacy() != NULL) {
        sim_operation_free(operation);
        return sim_capture_spoil(sim_capture_of_legacy(), SIM_ERROR_CAPTURE_IMPLICIT,
                                 "work in the NULL stream");
    }
    if (!sim.config.deferred) {
        gpu_result result = sim_run(operation);
        sim_operation_free(operation);
        return result;
    }
    gpu_result result = GPU_SUCCESS;
    if (pending_count() == PENDING_MOST) result = run_pending(&sim.pending);
    *sim.pending_end = operation;
    sim.pending_end = &operation->next;
    return result;
}

/* ---- Streams ------------------------------------------------------------------------------------------- */

gpu_result sim_find_stream(gpu_stream *stream) {
    if (*stream == NULL || (uintptr_t)*stream == 1) *stream = &sim.legacy;
    if (*stream == &sim.legacy) return GPU_SUCCESS;
    for (gpu_stream s = sim.streams; s != NULL; s = s->next)
        if (s == *stream && !s->is_gone) return GPU_SUCCESS;
    return sim_misuse(SIM_ERROR_INVALID_HANDLE, "%p is no stream", (void *)*stream);
}

SIM_CALL(SIM_WORK, stream_create, (gpu_stream * stream, unsigned flags), (stream, flags)) {
    if (flags > SIM_STREAM_NON_BLOCKING) return GPU_ERROR_INVALID_VALUE;
    gpu_stream made = calloc(1, sizeof *made);
    if (made == NULL) return GPU_ERROR_OUT_OF_MEMORY;
    made->is_blocking = flags != SIM_STREAM_NON_BLOCKING;
    made->next = sim.streams;
    sim.streams = *stream = made;
    sim.totals.streams++;
    return GPU_SUCCESS;
}

/* What is left in it still happens. */
SIM_CALL(SIM_WORK, stream_destroy, (gpu_stream stream), (stream)) {
    gpu_result result = sim_find_stream(&stream);
    if (result != GPU_SUCCESS || stream == &sim.legacy)
        return result != GPU_SUCCESS ? result : GPU_ERROR_INVALID_VALUE;
    if (stream->capture != NULL)
        return sim_capture_spoil(stream->capture, SIM_ERROR_CAPTURE_UNSUPPORTED, "cuStreamDestroy");
    stream->is_gone = true;
    sim.totals.streams--;
    forget_stream(stream);
    return GPU_SUCCESS;
}

SIM_CALL(SIM_ANYHOW, stream_context, (gpu_stream stream, gpu_context *context), (stream, context)) {
    gpu_result result = sim_find_stream(&stream);
    if (result == GPU_SUCCESS && stream == &sim.legacy && sim_state()->contexts == 0)
        return sim_misuse(SIM_ERROR_INVALID_CONTEXT,
                          "cuStreamGetCtx of the NULL stream without a current context");
    *context = &sim.context;
    return result;
}

static gpu_result forbid_waiting(gpu_stream stream, const char *call) {
    if (stream->capture != NULL)
        return sim_capture_spoil(stream->capture, SIM_ERROR_CAPTURE_UNSUPPORTED, call);
    if (stream == &sim.legacy && sim_capture_of_legacy() != NULL)
        return sim_capture_spoil(sim_capture_of_legacy(), SIM_ERROR_CAPTURE_IMPLICIT, call);
    return GPU_SUCCESS;
}

SIM_CALL(SIM_WORK, stream_synchronize, (gpu_stream stream), (stream)) {
    gpu_result result = sim_find_stream(&stream);
    if (result != GPU_SUCCESS) return result;
    result = forbid_waiting(stream, "cuStreamSynchronize");
    if (result != GPU_SUCCESS) return result;
    return sim_finish_stream(stream);
}

/* Asking makes progress, so that who asks again and again comes to an end. */
SIM_CALL(SIM_WORK, stream_query, (gpu_stream stream), (stream)) {
    gpu_result result = sim_find_stream(&stream);
    if (result != GPU_SUCCESS) return result;
    result = forbid_waiting(stream, "cuStreamQuery");
    if (result != GPU_SUCCESS) return result;
    for (const sim_operation *o = sim.pending; o != NULL; o = o->next)
        if (o->stream == stream || (stream == &sim.legacy && o->stream->is_blocking)) {
            result = sim_finish(o->id);
            return result == GPU_SUCCESS ? SIM_ERROR_NOT_READY : result;
        }
    return GPU_SUCCESS;
}

/* ---- Events -------------------------------------------------------------------------------------------- */

static gpu_result need_event(gpu_event event) {
    for (gpu_event e = sim.events; e != NULL; e = e->next)
        if (e == event) return GPU_SUCCESS;
    return sim_misuse(SIM_ERROR_INVALID_HANDLE, "%p is no event", (void *)event);
}

SIM_CALL(SIM_WORK, event_create, (gpu_event * event, unsigned flags), (event, flags)) {
    if (flags > EVENT_FLAGS) return GPU_ERROR_INVALID_VALUE;
    gpu_event made = calloc(1, sizeof *made);
    if (made == NULL) return GPU_ERROR_OUT_OF_MEMORY;
    made->has_time = (flags & GPU_EVENT_DISABLE_TIMING) == 0;
    made->is_done = true; /* one that was never recorded is not waited for */
    made->next = sim.events;
    sim.events = *event = made;
    sim.totals.events++;
    return GPU_SUCCESS;
}

SIM_CALL(SIM_WORK, event_destroy, (gpu_event event), (event)) {
    gpu_result result = need_event(event);
    if (result != GPU_SUCCESS) return result;
    for (sim_operation *o = sim.pending; o != NULL; o = o->next)
        if (o->event == event) o->event = NULL;
    for (gpu_event *link = &sim.events; *link != NULL; link = &(*link)->next)
        if (*link == event) {
            *link = event->next;
            break;
        }
    free(event);
    sim.totals.events--;
    return GPU_SUCCESS;
}

SIM_CALL(SIM_WORK, event_record, (gpu_event event, gpu_stream stream), (event, stream)) {
    gpu_result result = sim_find_stream(&stream);
    if (result == GPU_SUCCESS) result = need_event(event);
    if (result != GPU_SUCCESS) return result;
    if (stream->capture != NULL) return sim_capture_record(stream, event);
    sim_operation *record = sim_operation_new(SIM_RECORD);
    if (record == NULL) return GPU_ERROR_OUT_OF_MEMORY;
    record->event = event;
    event->is_captured = false;
    event->is_done = false;
    event->id = sim.last_id + 1;
    return sim_put(stream, record, NULL);
}

SIM_CALL(SIM_WORK, stream_wait, (gpu_stream stream, gpu_event event, unsigned flags),
         (stream, event, flags)) {
    gpu_result result = sim_find_stream(&stream);
    if (result == GPU_SUCCESS) result = need_event(event);
    if (result == GPU_SUCCESS && flags != WAIT_FLAGS) result = GPU_ERROR_INVALID_VALUE;
    if (result != GPU_SUCCESS) return result;
    if (stream->capture != NULL || event->is_captured) return sim_capture_wait(stream, event);
    sim_operation *wait = sim_operation_new(SIM_WAIT);
    if (wait == NULL) return GPU_ERROR_OUT_OF_MEMORY;
    wait->awaited = event->id;
    return sim_put(stream, wait, NULL);
}

static gpu_result need_recorded(gpu_event event, const char *call) {
    gpu_result result = need_event(event);
    if (result == GPU_SUCCESS && event->is_captured)
        result = sim_misuse(SIM_ERROR_CAPTURED_EVENT, "%s: the event was recorded in a stream being captured",
                            call);
    return result;
}

SIM_CALL(SIM_STICKY, event_synchronize, (gpu_event event), (event)) {
    gpu_result result = need_recorded(event, "cuEventSynchronize");
    return result == GPU_SUCCESS && !event->is_done ? sim_finish(event->id) : result;
}

SIM_CALL(SIM_STICKY | SIM_UNSAFE, event_query, (gpu_event event), (event)) {
    gpu_result result = need_recorded(event, "cuEventQuery");
    if (result != GPU_SUCCESS || event->is_done) return result;
    result = sim_finish(event->id);
    return result == GPU_SUCCESS ? SIM_ERROR_NOT_READY : result;
}

/* Of the host's clock: what the interpreter took. */
SIM_CALL(SIM_STICKY, event_elapsed, (float *milliseconds, gpu_event start, gpu_event end),
         (milliseconds, start, end)) {
    gpu_result result = need_recorded(start, "cuEventElapsedTime");
    if (result == GPU_SUCCESS) result = need_recorded(end, "cuEventElapsedTime");
    if (result != GPU_SUCCESS) return result;
    if (!start->has_time || !end->has_time || start->id == 0 || end->id == 0) return SIM_ERROR_INVALID_HANDLE;
    if (!start->is_done || !end->is_done) return SIM_ERROR_NOT_READY;
    *milliseconds = (float)(1000 * (end->at - start->at));
    return GPU_SUCCESS;
}

void sim_stream_end(void) {
    while (sim.pending != NULL) {
        sim_operation *operation = sim.pending;
        sim.pending = operation->next;
        sim_operation_free(operation);
    }
    while (sim.streams != NULL) {
        gpu_stream stream = sim.streams;
        sim.streams = stream->next;
        free(stream);
    }
    while (sim.events != NULL) {
        gpu_event event = sim.events;
        sim.events = event->next;
        free(event);
    }
}
