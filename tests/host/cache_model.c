/* The cache floor against its naive model (support/cache_model.h): random operations, right ones and wrong
 * ones, on every setting, in pools that are large, small and tiny.
 *
 *     KVANT_TEST_SEED=N            another run; a failure prints the number that brings it back
 *     KVANT_TEST_OPERATIONS=N      of each setting and pool */
#include "support/cache_machine.h"
#include "support/sanitized.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In all. */
enum { OPERATIONS = KVANT_TEST_SANITIZED ? 20000 : 400000 };

typedef struct generator {
    uint64_t state, seed;
} generator;

static generator current;

static uint32_t below(void *context, uint32_t limit) {
    generator *g = context;
    return (uint32_t)((kvant_test_random(&g->state) >> 32) * limit >> 32);
}

static void end(void) {
    fprintf(stderr, "    again with KVANT_TEST_SEED=%llu\n", (unsigned long long)current.seed);
    fail();
}

static uint64_t number_of(const char *variable, uint64_t otherwise) {
    const char *text = getenv(variable);
    return text != NULL && *text != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

static void add(machine_counts *all, const machine_counts *more) {
    uint64_t *to = &all->operations;
    const uint64_t *from = &more->operations;
    for (size_t i = 0; i < sizeof *all / sizeof *to; i++) to[i] += from[i];
}

/* A pool with room for everything, for some of it, for little more than one sequence. */
static const uint32_t pools[] = {100, 40, 15};
enum { POOLS = sizeof pools / sizeof pools[0] };

static void run(const model_setting *setting, uint32_t percent, uint64_t operations, machine_counts *all) {
    model_setting tried = *setting;
    tried.blocks = setting->blocks * percent / 100;
    current.seed = number_of("KVANT_TEST_SEED", 1);
    current.state = model_hash(current.seed, model_hash(percent, (uint64_t)(setting - model_settings)));
    cache_machine *x = cache_machine_open(&tried, 0, below, &current);
    for (uint64_t i = 0; i < operations; i++) cache_machine_operation(x);
    add(all, cache_machine_counts(x));
    cache_machine_close(x);
}

static void operations_follow_the_model(void **state) {
    (void)state;
    machine_counts all = {0};
    uint64_t each = number_of("KVANT_TEST_OPERATIONS", OPERATIONS / (model_setting_count * POOLS));
    const char *only = getenv("KVANT_TEST_SETTING");
    cache_model_end = end;
    printf("seed %llu\n", (unsigned long long)number_of("KVANT_TEST_SEED", 1));
    for (uint32_t i = 0; i < model_setting_count; i++)
        for (uint32_t pool = 0; pool < POOLS; pool++)
            if (only == NULL || strcmp(only, model_settings[i].name) == 0)
                run(&model_settings[i], pools[pool], each, &all);
    printf("%llu operations: %llu steps, %llu commits, %llu aborts, %llu wrong calls within, %llu refused "
           "outside, %llu "
           "without space, %llu evictions, %llu hits, %llu attends, %llu reads\n",
           (unsigned long long)all.operations, (unsigned long long)all.steps, (unsigned long long)all.commits,
           (unsigned long long)all.aborts, (unsigned long long)all.injected, (unsigned long long)all.refused,
           (unsigned long long)all.no_space, (unsigned long long)all.evictions, (unsigned long long)all.hits,
           (unsigned long long)all.attends, (unsigned long long)all.reads);
    if (only != NULL) return;
    /* A run that never meets them tests nothing. */
    assert_true(all.commits > 10 && all.aborts > 10 && all.injected > 10 && all.no_space > 10);
    assert_true(all.evictions > 10 && all.hits > 10 && all.attends > 10 && all.reads > 10 &&
                all.refused > 10);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(operations_follow_the_model)};
    return kvant_run_tests(tests, argc, argv);
}
