/* Captures and graphs. A graph is the list of what was captured, in the order of calls, which respects every
 * dependency there is; a launch runs it from first to last.
 *
 * Streams join a capture by waiting for an event that was recorded in it, and must be waited for before it
 * ends: for each stream is known how many operations of each other one come before its next. */
#include "sim_state.h"

#include <stdlib.h>
#include <string.h>

enum { MODE_GLOBAL, MODE_THREAD, MODE_RELAXED, ILLEGAL_STATE = 401, CAPTURE_MERGE = 902 };
enum { STATUS_NONE, STATUS_ACTIVE, STATUS_INVALIDATED };

/* ---- Captures ------------------------------------------------------------------------------------------ */

gpu_result sim_capture_spoil(sim_capture *capture, gpu_result result, const char *what) {
    capture->is_invalid = true;
    return sim_misuse(result, "%s while a stream is being captured: the capture is invalid", what);
}

bool sim_capture_forbids(sim_capture **capture) {
    for (sim_capture *c = sim.captures; c != NULL; c = c->next) {
        *capture = c;
        if (c->mode == MODE_GLOBAL) return true;
        if (c->mode == MODE_THREAD && pthread_equal(c->thread, pthread_self())) return true;
    }
    return false;
}

sim_capture *sim_capture_of_legacy(void) {
    for (sim_capture *c = sim.captures; c != NULL; c = c->next)
        for (gpu_stream s = sim.streams; s != NULL; s = s->next)
            if (s->capture == c && s->is_blocking) return c;
    return NULL;
}

gpu_result sim_capture_add(gpu_stream stream, sim_operation *operation) {
    sim_capture *capture = stream->capture;
    if (operation->kind == SIM_GRAPH)
        (void)sim_capture_spoil(capture, SIM_ERROR_CAPTURE_UNSUPPORTED,
                                "cuGraphLaunch, which is not simulated,");
    if (capture->is_invalid) {
        gpu_result result =
            operation->kind == SIM_GRAPH ? SIM_ERROR_CAPTURE_UNSUPPORTED : SIM_ERROR_CAPTURE_INVALIDATED;
        sim_operation_free(operation);
        return result;
    }
    operation->is_captured = true;
    *capture->end = operation;
    capture->end = &operation->next;
    capture->graph->count++;
    capture->seen[stream->capture_index][stream->capture_index]++;
    return GPU_SUCCESS;
}

gpu_result sim_capture_record(gpu_stream stream, gpu_event event) {
    sim_capture *capture = stream->capture;
    if (capture->is_invalid) return SIM_ERROR_CAPTURE_INVALIDATED;
    event->is_captured = true;
    event->capture = capture;
    memcpy(event->seen, capture->seen[stream->capture_index], sizeof event->seen);
    return GPU_SUCCESS;
}

static gpu_result join(gpu_stream stream, gpu_event event) {
    sim_capture *capture = event->capture;
    if (stream == &sim.legacy)
        return sim_capture_spoil(capture, SIM_ERROR_CAPTURE_IMPLICIT,
                                 "the NULL stream waits for an event recorded");
    if (capture->stream_count == SIM_CAPTURE_STREAMS)
        return sim_capture_spoil(capture, SIM_ERROR_NOT_SUPPORTED, "more streams than are simulated join");
    stream->capture = capture;
    stream->capture_index = capture->stream_count++;
    memcpy(capture->seen[stream->capture_index], event->seen, sizeof event->seen);
    return GPU_SUCCESS;
}

gpu_result sim_capture_wait(gpu_stream stream, gpu_event event) {
    sim_capture *capture = stream->capture;
    if (event->is_captured && event->capture == NULL)
        return sim_misuse(SIM_ERROR_CAPTURED_EVENT,
                          "cuStreamWaitEvent: the event was recorded in a capture that ended");
    if (event->is_captured && event->capture->is_invalid) return SIM_ERROR_CAPTURE_INVALIDATED;
    if (capture == NULL) return join(stream, event);
    if (capture->is_invalid) return SIM_ERROR_CAPTURE_INVALIDATED;
    if (!event->is_captured && event->id == 0) return GPU_SUCCESS;
    if (!event->is_captured)
        return sim_capture_spoil(capture, SIM_ERROR_CAPTURE_ISOLATION,
                                 "a wait for an event of another stream");
    if (event->capture != capture)
        return sim_capture_spoil(capture, CAPTURE_MERGE, "a wait for an event of another capture");
    uint32_t *seen = capture->seen[stream->capture_index];
    for (uint32_t i = 0; i < SIM_CAPTURE_STREAMS; i++)
        if (seen[i] < event->seen[i]) seen[i] = event->seen[i];
    return GPU_SUCCESS;
}

SIM_CALL(SIM_WORK, capture_begin, (gpu_stream stream, int mode), (stream, mode)) {
    gpu_result result = sim_find_stream(&stream);
    if (result != GPU_SUCCESS) return result;
    if (mode < MODE_GLOBAL || mode > MODE_RELAXED) return GPU_ERROR_INVALID_VALUE;
    if (stream == &sim.legacy)
        return sim_misuse(SIM_ERROR_CAPTURE_UNSUPPORTED,
                          "cuStreamBeginCapture: the NULL stream cannot be captured");
    if (stream->capture != NULL)
        return sim_misuse(ILLEGAL_STATE, "cuStreamBeginCapture: the stream is being captured");
    sim_capture *capture = calloc(1, sizeof *capture);
    gpu_graph graph = calloc(1, sizeof *graph);
    if (capture == NULL || graph == NULL) {
        free(capture);
        free(graph);
        return GPU_ERROR_OUT_OF_MEMORY;
    }
    capture->graph = graph;
    capture->end = &graph->first;
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->stream_count = 1;
    capture->next = sim.captures;
    sim.captures = capture;
    stream->capture = capture;
    stream->capture_index = 0;
    return GPU_SUCCESS;
}

static void free_operations(sim_operation *first) {
    while (first != NULL) {
        sim_operation *next = first->next;
        sim_operation_free(first);
        first = next;
    }
}

static void free_graph(gpu_graph graph) {
    free_operations(graph->first);
    free(graph);
}

/* The streams are as they were before; the graph is nobody's. */
static gpu_graph end_capture(sim_capture *capture) {
    gpu_graph graph = capture->graph;
    for (gpu_stream s = sim.streams; s != NULL; s = s->next)
        if (s->capture == capture) s->capture = NULL;
    for (gpu_event e = sim.events; e != NULL; e = e->next)
        if (e->capture == capture) e->capture = NULL;
    for (sim_capture **link = &sim.captures; *link != NULL; link = &(*link)->next)
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    free(capture);
    return graph;
}

SIM_CALL(SIM_WORK, capture_end, (gpu_stream stream, gpu_graph *graph), (stream, graph)) {
    gpu_result result = sim_find_stream(&stream);
    *graph = NULL;
    if (result != GPU_SUCCESS) return result;
    sim_capture *capture = stream->capture;
    if (capture == NULL)
        return sim_misuse(ILLEGAL_STATE, "cuStreamEndCapture: the stream is not being captured");
    if (capture->origin != stream)
        return sim_capture_spoil(capture, SIM_ERROR_CAPTURE_UNMATCHED,
                                 "cuStreamEndCapture of a stream that joined");
    if (capture->mode != MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return sim_misuse(SIM_ERROR_CAPTURE_WRONG_THREAD,
                          "cuStreamEndCapture: another thread began the capture");
    if (capture->is_invalid) result = SIM_ERROR_CAPTURE_INVALIDATED;
    for (uint32_t i = 1; i < capture->stream_count && result == GPU_SUCCESS; i++)
        if (capture->seen[0][i] != capture->seen[i][i])
            result = sim_misuse(SIM_ERROR_CAPTURE_UNJOINED,
                                "cuStreamEndCapture: a stream that joined has work that nobody waits for");
    gpu_graph made = end_capture(capture);
    if (result != GPU_SUCCESS) {
        free_graph(made);
        return result;
    }
    made->next = sim.graphs;
    sim.graphs = *graph = made;
    return GPU_SUCCESS;
}

SIM_CALL(SIM_WORK, capture_status, (gpu_stream stream, int *status), (stream, status)) {
    gpu_result result = sim_find_stream(&stream);
    if (result != GPU_SUCCESS) return result;
    if (stream == &sim.legacy && sim_capture_of_legacy() != NULL) return SIM_ERROR_CAPTURE_IMPLICIT;
    *status = stream->capture == NULL       ? STATUS_NONE
              : stream->capture->is_invalid ? STATUS_INVALIDATED
                                            : STATUS_ACTIVE;
    return GPU_SUCCESS;
}

/* ---- Graphs -------------------------------------------------------------------------------------------- */

static gpu_result need_graph(gpu_graph graph) {
    for (gpu_graph g = sim.graphs; g != NULL; g = g->next)
        if (g == graph) return GPU_SUCCESS;
    return sim_misuse(GPU_ERROR_INVALID_VALUE, "%p is no graph", (void *)graph);
}

static gpu_result need_exec(gpu_graph_exec exec) {
    for (gpu_graph_exec e = sim.execs; e != NULL; e = e->next)
        if (e == exec && !e->is_gone) return GPU_SUCCESS;
    return sim_misuse(GPU_ERROR_INVALID_VALUE, "%p is no graph that was instantiated", (void *)exec);
}

/* How many there are, and their handles, where there is room. */
SIM_CALL(SIM_ANYHOW, graph_nodes, (gpu_graph graph, gpu_graph_node *nodes, size_t *count),
         (graph, nodes, count)) {
    gpu_result result = need_graph(graph);
    if (result != GPU_SUCCESS) return result;
    size_t room = nodes != NULL ? *count : 0, i = 0;
    for (sim_operation *o = graph->first; o != NULL && i < room; o = o->next)
        nodes[i++] = (gpu_graph_node)(void *)o;
    *count = nodes != NULL ? i : graph->count;
    return GPU_SUCCESS;
}

static sim_operation *copy_operation(const sim_operation *operation) {
    sim_operation *copy = malloc(sizeof *copy);
    if (copy == NULL) return NULL;
    *copy = *operation;
    copy->next = NULL;
    if (operation->bytes == NULL) return copy;
    copy->bytes = malloc(operation->size);
    if (copy->bytes == NULL) {
        free(copy);
        return NULL;
    }
    memcpy(copy->bytes, operation->bytes, operation->size);
    return copy;
}

SIM_CALL(SIM_WORK | SIM_UNSAFE, graph_instantiate,
         (gpu_graph_exec * exec, gpu_graph graph, unsigned long long flags), (exec, graph, flags)) {
    gpu_result result = need_graph(graph);
    if (result == GPU_SUCCESS && flags != 0)
        result =
            sim_misuse(SIM_ERROR_NOT_SUPPORTED, "cuGraphInstantiate: flags %llu are not simulated", flags);
    if (result != GPU_SUCCESS) return result;
    gpu_graph_exec made = calloc(1, sizeof *made);
    if (made == NULL) return GPU_ERROR_OUT_OF_MEMORY;
    sim_operation **end = &made->first;
    for (const sim_operation *o = graph->first; o != NULL; o = o->next) {
        *end = copy_operation(o);
        if (*end == NULL) {
            free_operations(made->first);
            free(made);
            return GPU_ERROR_OUT_OF_MEMORY;
        }
        end = &(*end)->next;
    }
    made->users = 1;
    made->next = sim.execs;
    sim.execs = *exec = made;
    return GPU_SUCCESS;
}

SIM_CALL(SIM_WORK, graph_launch, (gpu_graph_exec exec, gpu_stream stream), (exec, stream)) {
    gpu_result result = sim_find_stream(&stream);
    if (result == GPU_SUCCESS) result = need_exec(exec);
    if (result != GPU_SUCCESS) return result;
    sim_operation *launch = sim_operation_new(SIM_GRAPH);
    if (launch == NULL) return GPU_ERROR_OUT_OF_MEMORY;
    launch->exec = exec;
    exec->users++;
    return sim_put(stream, launch, NULL);
}

SIM_CALL(SIM_WORK, graph_upload, (gpu_graph_exec exec, gpu_stream stream), (exec, stream)) {
    gpu_result result = sim_find_stream(&stream);
    return result == GPU_SUCCESS ? need_exec(exec) : result;
}

void sim_exec_release(gpu_graph_exec exec) {
    if (--exec->users > 0) return;
    for (gpu_graph_exec *link = &sim.execs; *link != NULL; link = &(*link)->next)
        if (*link == exec) {
            *link = exec->next;
            break;
        }
    free_operations(exec->first);
    free(exec);
}

/* Launches that wait still happen. */
SIM_CALL(SIM_STICKY, graph_exec_destroy, (gpu_graph_exec exec), (exec)) {
    gpu_result result = need_exec(exec);
    if (result != GPU_SUCCESS) return result;
    exec->is_gone = true;
    sim_exec_release(exec);
    return GPU_SUCCESS;
}

SIM_CALL(SIM_STICKY, graph_destroy, (gpu_graph graph), (graph)) {
    gpu_result result = need_graph(graph);
    if (result != GPU_SUCCESS) return result;
    for (gpu_graph *link = &sim.graphs; *link != NULL; link = &(*link)->next)
        if (*link == graph) {
            *link = graph->next;
            break;
        }
    free_graph(graph);
    return GPU_SUCCESS;
}

/* After the streams: what waits there uses graphs. */
void sim_graph_end(void) {
    while (sim.captures != NULL) free_graph(end_capture(sim.captures));
    while (sim.graphs != NULL) {
        gpu_graph graph = sim.graphs;
        sim.graphs = graph->next;
        free_graph(graph);
    }
    while (sim.execs != NULL) {
        gpu_graph_exec exec = sim.execs;
        sim.execs = exec->next;
        free_operations(exec->first);
        free(exec);
    }
}
