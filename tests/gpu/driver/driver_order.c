/* The simulated device's streams and events: what happens when, eager and deferred. Deferred, what nobody
 * waited for has not happened. */
#include "driver_bed.h"

#include <string.h>

static driver_bed bed;
#define A bed.streams[0]
#define B bed.streams[1]

static const sim_config deferred = {.deferred = true}, eager = {.deferred = false};

static float poison(void) {
    float value;
    memset(&value, 0xA5, sizeof value);
    return value;
}

/* ---- Page-locked and pageable memory ------------------------------------------------------------------- */

/* The host reads what a copy will write, without waiting. */
static void hasty_read(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        bed_begin(&bed, i == 0 ? eager : deferred);
        const float old = poison();
        WORKS(bed_launch(bed.increase, bed.x, A));
        WORKS(sim_copy_to_host(bed.pinned, bed.x, BED_BYTES, A));
        kvant_assert_bytes(bed.pinned, i == 0 ? &(const float){1} : &old, sizeof old);
        assert_int_equal(sim_state()->launches, i == 0 ? 1 : 0);
        WORKS(sim_stream_synchronize(A));
        for (int j = 0; j < BED_FLOATS; j++) assert_true(bed.pinned[j] == 1);
        bed_end(&bed);
    }
}

/* The host writes to what a copy will read: page-locked memory is read late, pageable memory at the call. */
static void hasty_write(void **state) {
    static float pageable[BED_FLOATS];
    (void)state;
    bed_begin(&bed, deferred);
    pageable[0] = bed.pinned[0] = 5;
    WORKS(sim_copy_to_device(bed.x, bed.pinned, BED_BYTES, A));
    WORKS(sim_copy_to_device(bed.y, pageable, BED_BYTES, A));
    pageable[0] = bed.pinned[0] = 6;
    assert_true(bed_peek(bed.x) == 0 && bed_peek(bed.y) == 0);
    WORKS(sim_stream_synchronize(A));
    assert_true(bed_peek(bed.x) == 6);
    assert_true(bed_peek(bed.y) == 5);
    bed_end(&bed);
}

/* A copy to pageable memory waits for its stream, and for nothing else. */
static void pageable_read(void **state) {
    float got[BED_FLOATS] = {0};
    (void)state;
    bed_begin(&bed, deferred);
    WORKS(bed_launch(bed.increase, bed.y, B));
    WORKS(bed_launch(bed.increase, bed.x, A));
    WORKS(sim_copy_to_host(got, bed.x, BED_BYTES, A));
    assert_true(got[BED_FLOATS - 1] == 1);
    assert_int_equal(sim_state()->launches, 1);
    assert_true(bed_peek(bed.y) == 0);
    bed_end(&bed);
}

/* ---- Order between streams ----------------------------------------------------------------------------- */

static void events_order(void **state) {
    gpu_event event = NULL;
    (void)state;
    bed_begin(&bed, deferred);
    WORKS(sim_event_create(&event, GPU_EVENT_DISABLE_TIMING));
    WORKS(sim_stream_wait(B, event, 0)); /* never recorded: nothing to wait for */
    WORKS(bed_launch(bed.increase, bed.x, A));
    WORKS(sim_event_record(event, A));
    WORKS(bed_launch(bed.twice, bed.x, A));
    WORKS(bed_launch(bed.increase, bed.y, B));
    WORKS(sim_stream_wait(B, event, 0));
    WORKS(sim_copy_on_device(bed.y, bed.x, BED_BYTES, B));
    WORKS(sim_stream_synchronize(B));
    assert_true(bed_peek(bed.y) == 1);
    assert_int_equal(sim_state()->launches, 2); /* not twice, which comes after the event */
    WORKS(sim_event_synchronize(event));
    assert_int_equal(sim_state()->launches, 2);
    WORKS(sim_event_record(event, A));
    WORKS(sim_event_synchronize(event));
    assert_true(bed_peek(bed.x) == 2);
    WORKS(sim_event_destroy(event));
    bed_end(&bed);
}

/* The NULL stream and those that block with it wait for each other; others do not take part. */
static void null_stream(void **state) {
    gpu_stream blocking = NULL, other = NULL;
    (void)state;
    for (int through = 0; through < 2; through++) {
        bed_begin(&bed, deferred);
        WORKS(sim_stream_create(&blocking, 0));
        WORKS(sim_stream_create(&other, 0));
        WORKS(bed_launch(bed.increase, bed.y, A));
        WORKS(bed_launch(bed.increase, bed.x, blocking));
        WORKS(bed_launch(bed.twice, bed.x, through == 0 ? NULL : (gpu_stream)1));
        WORKS(bed_launch(bed.increase, bed.x, other));
        if (through == 0) {
            WORKS(sim_stream_synchronize(other));
            assert_int_equal(sim_state()->launches, 3);
        } else {
            WORKS(sim_stream_synchronize(NULL)); /* everything that blocks with it */
            assert_int_equal(sim_state()->launches, 3);
        }
        assert_true(bed_peek(bed.x) == 3);
        assert_true(bed_peek(bed.y) == 0);
        WORKS(sim_context_synchronize());
        assert_true(bed_peek(bed.y) == 1);
        WORKS(sim_stream_destroy(blocking));
        WORKS(sim_stream_destroy(other));
        bed_end(&bed);
    }
}

/* ---- Waiting ------------------------------------------------------------------------------------------- */

static void free_waits(void **state) {
    gpu_address more = 0;
    void *memory = NULL;
    (void)state;
    bed_begin(&bed, deferred);
    WORKS(sim_memory_alloc(&more, BED_BYTES));
    WORKS(sim_memory_set(more, 0, BED_BYTES, A));
    WORKS(bed_launch(bed.increase, more, A));
    WORKS(bed_launch(bed.increase, bed.x, B));
    WORKS(sim_memory_free(more));
    assert_int_equal(sim_state()->launches, 2);
    WORKS(sim_host_alloc(&memory, BED_BYTES, 0));
    WORKS(sim_copy_to_host(memory, bed.x, BED_BYTES, A));
    WORKS(sim_host_free(memory));
    bed_end(&bed);
}

/* Asking again and again comes to an end. */
static void queries(void **state) {
    gpu_event first = NULL, last = NULL;
    float milliseconds = -1;
    (void)state;
    bed_begin(&bed, deferred);
    WORKS(sim_event_create(&first, 0));
    WORKS(sim_event_create(&last, 0));
    WORKS(sim_event_query(first));
    assert_int_equal(sim_event_elapsed(&milliseconds, first, last), 400);
    WORKS(sim_event_record(first, A));
    WORKS(bed_launch(bed.increase, bed.x, A));
    WORKS(sim_event_record(last, A));
    assert_int_equal(sim_event_elapsed(&milliseconds, first, last), 600);
    assert_int_equal(sim_stream_query(A), 600);
    int asked = 0;
    while (sim_event_query(last) == 600) asked++;
    assert_true(asked > 0 && asked < 10);
    WORKS(sim_stream_query(A));
    WORKS(sim_event_elapsed(&milliseconds, first, last));
    assert_true(milliseconds > 0 && milliseconds < 10000);
    WORKS(sim_event_destroy(first));
    WORKS(sim_event_destroy(last));
    assert_string_equal(bed_said(), "");
    bed_end(&bed);
}

/* What is left in a stream that is destroyed still happens, and an event may go before it is reached. */
static void destroyed_early(void **state) {
    gpu_stream stream = NULL;
    gpu_event event = NULL;
    (void)state;
    bed_begin(&bed, deferred);
    WORKS(sim_stream_create(&stream, 1));
    WORKS(sim_event_create(&event, 0));
    WORKS(bed_launch(bed.increase, bed.x, stream));
    WORKS(sim_event_record(event, stream));
    WORKS(sim_stream_wait(A, event, 0));
    WORKS(sim_stream_destroy(stream));
    WORKS(sim_event_destroy(event));
    assert_int_equal(bed_launch(bed.increase, bed.x, stream), 400);
    kvant_assert_contains(bed_said(), "is no stream");
    assert_true(bed_peek(bed.x) == 0);
    WORKS(sim_stream_synchronize(A));
    assert_true(bed_peek(bed.x) == 1);
    bed_end(&bed);
}

/* More than a stream holds, and what nobody ever waits for. */
static void many(void **state) {
    (void)state;
    bed_begin(&bed, deferred);
    for (int i = 0; i < 3000; i++)
        WORKS(sim_memory_set(bed.x, (unsigned char)i, BED_BYTES, bed.streams[i % 2]));
    for (int i = 0; i < 10; i++) WORKS(bed_launch(bed.increase, bed.y, B));
    WORKS(sim_stream_synchronize(A));
    assert_true(bed_peek(bed.y) == 0);
    sim_end();
    bed_begin(&bed, deferred);
    bed_end(&bed);
}

/* With a seed, operations happen at some later call, in any order that is allowed. */
static void seeds(void **state) {
    bool seen[2] = {false, false};
    (void)state;
    for (uint32_t seed = 1; seed < 40; seed++) {
        size_t left = 0, total = 0;
        int calls = 0;
        bed_begin(&bed, (sim_config){.deferred = true, .seed = seed});
        WORKS(bed_launch(bed.increase, bed.x, A)); /* x + 1, or 1 after y = x doubles y */
        WORKS(bed_launch(bed.twice, bed.x, A));
        WORKS(bed_launch(bed.increase, bed.x, B));
        while (sim_state()->launches < 3 && calls++ < 1000) WORKS(sim_memory_info(&left, &total));
        assert_true(calls < 1000);
        float x = bed_peek(bed.x); /* 3: B's came last; 4: before twice */
        assert_true(x == 3 || x == 4);
        seen[x == 4] = true;
        bed_end(&bed);
    }
    assert_true(seen[0] && seen[1]);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(hasty_read),   cmocka_unit_test(hasty_write),     cmocka_unit_test(pageable_read),
        cmocka_unit_test(events_order), cmocka_unit_test(null_stream),     cmocka_unit_test(free_waits),
        cmocka_unit_test(queries),      cmocka_unit_test(destroyed_early), cmocka_unit_test(many),
        cmocka_unit_test(seeds),
    };
    return kvant_run_tests(tests, argc, argv);
}
