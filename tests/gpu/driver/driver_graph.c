/* Captures and graphs of the simulated device: what is captured and replayed, and what a capture does not
 * allow. */
#include "driver_bed.h"

#include <pthread.h>
#include <string.h>

enum { GLOBAL, THREAD, RELAXED };

static driver_bed bed;
#define A bed.streams[0]
#define B bed.streams[1]

/* ---- Replay -------------------------------------------------------------------------------------------- */

static void replay(void **state) {
    gpu_graph graph = NULL;
    gpu_graph_exec exec = NULL;
    int status = -1;
    size_t nodes = 0;
    (void)state;
    for (int i = 0; i < 2; i++) {
        bed_begin(&bed, (sim_config){.deferred = i == 1});
        WORKS(sim_capture_begin(A, GLOBAL));
        WORKS(sim_capture_status(A, &status));
        assert_int_equal(status, 1);
        WORKS(sim_copy_to_device(bed.y, bed.pinned, BED_BYTES, A));
        WORKS(bed_launch(bed.increase, bed.y, A));
        WORKS(sim_copy_on_device(bed.x, bed.y, BED_BYTES, A));
        WORKS(sim_memory_set(bed.y, 0, BED_BYTES, A));
        WORKS(bed_launch(bed.twice, bed.x, A));
        WORKS(sim_copy_to_host(bed.pinned2, bed.x, BED_BYTES, A));
        WORKS(bed_launch(bed.increase, bed.x, B)); /* another stream is not captured */
        WORKS(
            bed_launch(bed.increase, bed.x, NULL)); /* nor is this one, which this capture does not forbid */
        WORKS(sim_capture_status(NULL, &status));
        assert_int_equal(status, 0);
        WORKS(sim_capture_end(A, &graph));
        WORKS(sim_capture_status(A, &status));
        assert_int_equal(status, 0);
        WORKS(sim_context_synchronize());
        assert_int_equal(sim_state()->launches, 2);
        assert_true(bed_peek(bed.x) == 2);
        WORKS(sim_graph_nodes(graph, NULL, &nodes));
        assert_int_equal(nodes, 6);
        WORKS(sim_graph_instantiate(&exec, graph, 0));
        WORKS(sim_graph_destroy(graph));
        for (int j = 0; j < 3; j++) {
            for (int k = 0; k < BED_FLOATS; k++) bed.pinned[k] = (float)(j + k);
            WORKS(sim_graph_launch(exec, B));
            if (i == 1) assert_true(bed.pinned2[7] != (float)(2 * (j + 8)));
            WORKS(sim_stream_synchronize(B));
            for (int k = 0; k < BED_FLOATS; k++) assert_true(bed.pinned2[k] == (float)(2 * (j + k + 1)));
            assert_true(bed_peek(bed.y) == 0);
        }
        assert_int_equal(sim_state()->launches, 8);
        WORKS(sim_graph_launch(exec, A));
        WORKS(sim_graph_exec_destroy(exec)); /* a launch that waits still happens */
        assert_int_equal(sim_state()->launches, i == 0 ? 10 : 8);
        WORKS(sim_stream_synchronize(A));
        assert_int_equal(sim_state()->launches, 10);
        bed_end(&bed);
    }
}

/* A graph holds addresses, not memory; kernels, not libraries. */
static void outlived(void **state) {
    static const char *const says[] = {"increase failed: a grid of (4,1,1)", "its destination was gone",
                                       "its source was gone", "whose library was unloaded"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        gpu_graph graph = NULL;
        gpu_graph_exec exec = NULL;
        gpu_address more = 0;
        void *locked = NULL;
        bed_begin(&bed, (sim_config){.deferred = false});
        WORKS(sim_memory_alloc(&more, BED_BYTES));
        WORKS(sim_host_alloc(&locked, BED_BYTES, 0));
        WORKS(sim_capture_begin(A, GLOBAL));
        if (i == 0) WORKS(bed_launch(bed.increase, more, A));
        if (i == 1) WORKS(sim_copy_on_device(more, bed.x, BED_BYTES, A));
        if (i == 2) WORKS(sim_copy_to_device(bed.x, locked, BED_BYTES, A));
        if (i == 3) WORKS(bed_launch(bed.increase, bed.x, A));
        WORKS(sim_capture_end(A, &graph));
        WORKS(sim_graph_instantiate(&exec, graph, 0));
        WORKS(sim_graph_launch(exec, A));
        WORKS(sim_memory_free(more));
        WORKS(sim_host_free(locked));
        if (i == 3) WORKS(sim_library_unload(bed.library));
        assert_int_equal(sim_graph_launch(exec, A), 719);
        kvant_assert_contains(bed_said(), says[i]);
        assert_int_equal(sim_graph_exec_destroy(exec), 719);
        assert_int_equal(sim_graph_destroy(graph), 719);
        if (i == 3) bed.library = NULL;
        bed_end(&bed);
    }
}

/* ---- What a capture does not allow --------------------------------------------------------------------- */

static gpu_address address;
static void *memory;
static gpu_event event;
static gpu_graph graph_before;
static gpu_graph_exec exec_before;
static gpu_kernel kernel_never;
static gpu_stream blocking;
static float pageable[BED_FLOATS];

#define ACTION(name, call)                                                                                   \
    static gpu_result name(void) {                                                                           \
        return call;                                                                                         \
    }
ACTION(does_alloc, sim_memory_alloc(&address, 64))
ACTION(does_free, sim_memory_free(bed.x))
ACTION(does_host_alloc, sim_host_alloc(&memory, 64, 0))
ACTION(does_host_free, sim_host_free(bed.pinned))
ACTION(does_wait_for_all, sim_context_synchronize())
ACTION(does_wait, sim_stream_synchronize(A))
ACTION(does_ask, sim_stream_query(A))
ACTION(does_ask_event, sim_event_query(event))
ACTION(does_load, sim_library_load(&bed.library, bed_ptx, NULL, NULL, 0, NULL, NULL, 0))
ACTION(does_unload, sim_library_unload(bed.library))
ACTION(does_use_first, sim_kernel_function(&(gpu_function){NULL}, kernel_never))
ACTION(does_launch_first, bed_launch((gpu_function)(void *)kernel_never, bed.x, A))
ACTION(does_copy_in, sim_copy_to_device(bed.x, pageable, BED_BYTES, A))
ACTION(does_copy_out, sim_copy_to_host(pageable, bed.x, BED_BYTES, A))
ACTION(does_copy_now, sim_copy_to_host_now(bed.pinned, bed.x, BED_BYTES))
ACTION(does_instantiate, sim_graph_instantiate(&(gpu_graph_exec){NULL}, graph_before, 0))
ACTION(does_launch_graph, sim_graph_launch(exec_before, A))
ACTION(does_destroy, sim_stream_destroy(A))
ACTION(does_null_stream, bed_launch(bed.increase, bed.x, NULL))
ACTION(does_null_wait, sim_stream_synchronize(NULL))
ACTION(does_wait_outside, sim_stream_wait(A, event, 0))

static void illegal(void **state) {
    static const struct {
        gpu_result (*action)(void);
        gpu_result result;
        const char *says;
        bool on_blocking;
    } cases[] = {{does_alloc, 900, "cuMemAlloc while", false},
                 {does_free, 900, "cuMemFree while", false},
                 {does_host_alloc, 900, "cuMemHostAlloc while", false},
                 {does_host_free, 900, "cuMemFreeHost while", false},
                 {does_wait_for_all, 900, "cuCtxSynchronize while", false},
                 {does_wait, 900, "cuStreamSynchronize while", false},
                 {does_ask, 900, "cuStreamQuery while", false},
                 {does_ask_event, 900, "cuEventQuery while", false},
                 {does_load, 900, "cuLibraryLoadData while", false},
                 {does_unload, 900, "cuLibraryUnload while", false},
                 {does_use_first, 900, "the first use of never while", false},
                 {does_launch_first, 900, "the first use of never while", false},
                 {does_copy_in, 900, "not page-locked while", false},
                 {does_copy_out, 900, "not page-locked while", false},
                 {does_copy_now, 900, "cuMemcpyDtoH while", false},
                 {does_instantiate, 900, "cuGraphInstantiate while", false},
                 {does_launch_graph, 900, "cuGraphLaunch, which is not simulated", false},
                 {does_destroy, 900, "cuStreamDestroy while", false},
                 {does_null_stream, 906, "work in the NULL stream while", true},
                 {does_null_wait, 906, "cuStreamSynchronize while", true},
                 {does_wait_outside, 905, "an event of another stream while", false}};
    (void)state;
    bed_begin(&bed, (sim_config){.deferred = true});
    WORKS(sim_stream_create(&blocking, 0));
    WORKS(sim_event_create(&event, 0));
    WORKS(sim_event_record(event, B));
    WORKS(sim_library_kernel(&kernel_never, bed.library, "never"));
    WORKS(sim_capture_begin(A, GLOBAL));
    WORKS(bed_launch(bed.increase, bed.x, A));
    WORKS(sim_capture_end(A, &graph_before));
    WORKS(sim_graph_instantiate(&exec_before, graph_before, 0));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        gpu_stream stream = cases[i].on_blocking ? blocking : A;
        gpu_graph graph = graph_before;
        int status = -1;
        WORKS(sim_capture_begin(stream, GLOBAL));
        WORKS(bed_launch(bed.increase, bed.x, stream));
        assert_int_equal(cases[i].action(), cases[i].result);
        const char *said = bed_said();
        kvant_assert_contains(said, cases[i].says);
        kvant_assert_contains(said, "the capture is invalid");
        WORKS(sim_capture_status(stream, &status));
        assert_int_equal(status, 2);
        assert_int_equal(bed_launch(bed.increase, bed.x, stream), 901);
        assert_int_equal(sim_capture_end(stream, &graph), 901);
        assert_null(graph);
    }
    /* The stream may be used as before. */
    WORKS(bed_launch(bed.increase, bed.x, A));
    WORKS(sim_context_synchronize());
    assert_true(bed_peek(bed.x) == 1);
    WORKS(sim_graph_exec_destroy(exec_before));
    WORKS(sim_graph_destroy(graph_before));
    WORKS(sim_event_destroy(event));
    WORKS(sim_stream_destroy(blocking));
    bed_end(&bed);
}

static void *allocates(void *result) {
    gpu_context context = NULL;
    (void)sim_context_push(bed.context);
    *(gpu_result *)result = sim_memory_alloc(&address, 64);
    (void)sim_context_pop(&context);
    return NULL;
}

static void *ends(void *result) {
    gpu_context context = NULL;
    gpu_graph graph = NULL;
    (void)sim_context_push(bed.context);
    *(gpu_result *)result = sim_capture_end(A, &graph);
    (void)sim_context_pop(&context);
    return NULL;
}

static gpu_result in_thread(void *(*body)(void *)) {
    gpu_result result = -1;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, body, &result), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return result;
}

/* Whom a capture forbids what. */
static void modes(void **state) {
    static const gpu_result here[] = {900, 900, 0}, there[] = {900, 0, 0};
    (void)state;
    bed_begin(&bed, (sim_config){.deferred = false});
    for (int mode = GLOBAL; mode <= RELAXED; mode++)
        for (int other = 0; other < 2; other++) {
            gpu_graph graph = NULL;
            gpu_result want = other ? there[mode] : here[mode], got = -1;
            WORKS(sim_capture_begin(A, mode));
            if (other)
                got = in_thread(allocates);
            else
                allocates(&got);
            assert_int_equal(got, want);
            (void)bed_said();
            assert_int_equal(in_thread(ends), mode != RELAXED ? 908 : GPU_SUCCESS);
            (void)bed_said();
            if (mode != RELAXED) assert_int_equal(sim_capture_end(A, &graph), want == 0 ? GPU_SUCCESS : 901);
            if (graph != NULL) WORKS(sim_graph_destroy(graph));
            if (want == 0) WORKS(sim_memory_free(address));
        }
    assert_int_equal(sim_capture_begin(NULL, GLOBAL), 900);
    assert_int_equal(sim_capture_begin(A, 3), GPU_ERROR_INVALID_VALUE);
    WORKS(sim_capture_begin(A, GLOBAL));
    assert_int_equal(sim_capture_begin(A, GLOBAL), 401);
    gpu_graph graph = NULL;
    WORKS(sim_capture_end(A, &graph));
    assert_int_equal(sim_capture_end(A, &graph), 401);
    assert_null(graph);
    (void)bed_said();
    bed_end(&bed);
}

/* ---- Streams that join --------------------------------------------------------------------------------- */

static void fork_and_join(void **state) {
    gpu_event forked = NULL, joined = NULL;
    gpu_graph graph = NULL;
    gpu_graph_exec exec = NULL;
    (void)state;
    for (int joins = 0; joins < 3; joins++) {
        bed_begin(&bed, (sim_config){.deferred = false});
        WORKS(sim_event_create(&forked, GPU_EVENT_DISABLE_TIMING));
        WORKS(sim_event_create(&joined, GPU_EVENT_DISABLE_TIMING));
        WORKS(sim_capture_begin(A, GLOBAL));
        WORKS(bed_launch(bed.increase, bed.x, A));
        WORKS(sim_event_record(forked, A));
        WORKS(sim_stream_wait(B, forked, 0));
        WORKS(bed_launch(bed.twice, bed.x, B));
        if (joins > 0) WORKS(sim_event_record(joined, B));
        if (joins == 1) WORKS(bed_launch(bed.twice, bed.x, B)); /* which A does not wait for */
        if (joins > 0) WORKS(sim_stream_wait(A, joined, 0));
        WORKS(bed_launch(bed.increase, bed.x, A));
        assert_int_equal(sim_event_synchronize(forked), 907);
        kvant_assert_contains(bed_said(), "cuEventSynchronize");
        assert_int_equal(sim_capture_end(A, &graph), joins == 2 ? GPU_SUCCESS : 904);
        if (joins != 2) kvant_assert_contains(bed_said(), "nobody waits for");
        WORKS(bed_launch(bed.increase, bed.y, B)); /* it is as it was */
        assert_true(bed_peek(bed.y) == 1);
        if (graph != NULL) {
            WORKS(sim_graph_instantiate(&exec, graph, 0));
            WORKS(sim_graph_launch(exec, A));
            assert_true(bed_peek(bed.x) == 3);
            WORKS(sim_graph_exec_destroy(exec));
            WORKS(sim_graph_destroy(graph));
        }
        assert_int_equal(sim_stream_wait(A, forked, 0), 907);
        (void)bed_said();
        WORKS(sim_event_record(forked, B)); /* an event as before */
        WORKS(sim_event_synchronize(forked));
        WORKS(sim_capture_begin(A, GLOBAL));
        WORKS(sim_event_record(forked, A));
        WORKS(sim_stream_wait(B, forked, 0));
        assert_int_equal(sim_capture_end(B, &graph), 903);
        assert_int_equal(sim_capture_end(A, &graph), 901);
        (void)bed_said();
        WORKS(sim_event_destroy(forked));
        WORKS(sim_event_destroy(joined));
        bed_end(&bed);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(replay), cmocka_unit_test(outlived),      cmocka_unit_test(illegal),
        cmocka_unit_test(modes),  cmocka_unit_test(fork_and_join),
    };
    return kvant_run_tests(tests, argc, argv);
}
