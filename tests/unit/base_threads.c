/* The parallel loop: every index once, for any number of threads, and the first failure wins. */
#include "base/parallel.h"
#include "support/test.h"

#include <stdatomic.h>

enum { COUNT = 1000 };

typedef struct counts {
    atomic_uint done[COUNT];
    atomic_uint threads;
    uint32_t fail_from;
} counts;

static kvant_status body(void *context, uint32_t index, uint32_t thread) {
    counts *c = context;
    if (index >= c->fail_from) return -(kvant_status)(index + 1);
    atomic_fetch_add(&c->done[index], 1);
    atomic_fetch_or(&c->threads, 1u << (thread & 31));
    return KVANT_OK;
}

static void every_index_once(void **state) {
    (void)state;
    static const uint32_t threads[] = {0, 1, 2, 7, 2000};
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        counts c = {.fail_from = COUNT};
        assert_int_equal(kvant_parallel_for(threads[i], COUNT, body, &c), KVANT_OK);
        for (uint32_t j = 0; j < COUNT; j++) assert_int_equal(atomic_load(&c.done[j]), 1);
        if (threads[i] == 1) assert_int_equal(atomic_load(&c.threads), 1);
    }
    counts none = {.fail_from = 0};
    assert_int_equal(kvant_parallel_for(4, 0, body, &none), KVANT_OK);
}

static void first_failure(void **state) {
    (void)state;
    for (uint32_t threads = 1; threads < 5; threads++) {
        counts c = {.fail_from = 300};
        assert_int_equal(kvant_parallel_for(threads, COUNT, body, &c), -301);
        for (uint32_t j = 0; j < 300; j++) assert_int_equal(atomic_load(&c.done[j]), 1);
        assert_int_equal(atomic_load(&c.done[300]), 0);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(every_index_once),
                                              cmocka_unit_test(first_failure)};
    return kvant_run_tests(tests, argc, argv);
}
