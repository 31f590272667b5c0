/* Many threads: within one call, and calls on one attention at once, each thread with scratch of its own. The
 * numbers are those of one thread. */
#include "support/attend_bed.h"
#include "support/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 4, THREADS = 4, ROUNDS = 3 };

static void make_calls(const bed *b, bed_call *calls[CALLS]) {
    static const uint32_t tokens[CALLS] = {2300, 700, 30, 2200}, rows[CALLS] = {1, 20, 3, 2};
    for (size_t i = 0; i < CALLS; i++) calls[i] = bed_call_make(b, tokens[i], tokens[i] / 64 * 64, rows[i]);
}

static void compare(bed_call *const want[CALLS], bed_call *const got[CALLS]) {
    for (size_t i = 0; i < CALLS; i++) bed_assert_same(want[i], got[i]);
}

static void free_calls(bed_call *calls[CALLS]) {
    for (size_t i = 0; i < CALLS; i++) bed_call_free(calls[i]);
}

static bed *open_pair(int pair) {
    static const char *const codecs[][2] = {{"kivi", "raw"}, {"hack", "hack"}};
    return bed_open(
        &(bed_wish){.key = codecs[pair][0], .value = codecs[pair][1], .tokens = 2300, .seed = 11});
}

static void threads_within_a_call(void **state) {
    (void)state;
    for (int pair = 0; pair < 2; pair++) {
        bed *b = open_pair(pair);
        bed_call *want[CALLS], *got[CALLS];
        make_calls(b, want);
        make_calls(b, got);
        kvant_attention_options options = bed_options(b);
        bed_run(b, want, CALLS, &options);
        bed_assert_right(b, want[2], &options);
        static const uint32_t threads[] = {2, 5, 9};
        for (size_t t = 0; t < 3; t++) {
            options.threads = threads[t];
            bed_run(b, got, CALLS, &options);
            compare(want, got);
        }
        free_calls(want);
        free_calls(got);
        bed_close(b);
    }
}

typedef struct job {
    const bed *b;
    bed_call *calls[CALLS];
    uint32_t threads;
} job;

static void *work(void *context) {
    job *j = context;
    kvant_attention_options options = bed_options(j->b);
    options.threads = j->threads;
    for (int i = 0; i < ROUNDS; i++) bed_run(j->b, j->calls, CALLS, &options);
    return context;
}

static void calls_at_once(void **state) {
    (void)state;
    for (int pair = 0; pair < 2; pair++) {
        bed *b = open_pair(pair);
        job jobs[THREADS];
        bed_call *want[CALLS];
        pthread_t threads[THREADS];
        make_calls(b, want);
        kvant_attention_options options = bed_options(b);
        bed_run(b, want, CALLS, &options);
        for (uint32_t t = 0; t < THREADS; t++) {
            jobs[t] = (job){.b = b, .threads = 1 + t % 2};
            make_calls(b, jobs[t].calls);
        }
        for (uint32_t t = 0; t < THREADS; t++)
            assert_int_equal(pthread_create(&threads[t], NULL, work, &jobs[t]), 0);
        for (uint32_t t = 0; t < THREADS; t++) assert_int_equal(pthread_join(threads[t], NULL), 0);
        for (uint32_t t = 0; t < THREADS; t++) {
            compare(want, jobs[t].calls);
            free_calls(jobs[t].calls);
        }
        free_calls(want);
        bed_close(b);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_within_a_call),
        cmocka_unit_test(calls_at_once),
    };
    return kvant_run_tests(tests, argc, argv);
}
