/* A cache on a device against the naive model of tests/host/cache_model.c: the same random operations, right
 * ones and wrong ones, through on_device.h, in pools that are large and tiny.
 *
 *     KVANT_TEST_SEED=N            another run; a failure prints the number that brings it back
 *     KVANT_TEST_OPERATIONS=N      of each setting and pool */
#include "on_device.h"
#include "twin.h"

#include "support/cache_machine.h"
#include "support/sanitized.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPERATIONS = KVANT_TEST_SANITIZED ? 120 : 250 };

#define LAYERS(key, value) "[layers]\nkey = " key "\nvalue = " value "\n"

/* Block sizes that kivi's groups fill, windows, sinks; codes of one side and of both. */
static const model_setting settings[] = {
    {"kivi",
     "[pipeline]\nblock_tokens = 32\nrecent = 64\n" LAYERS("kivi", "kivi"),
     KVANT_DTYPE_BF16,
     {16, 16},
     {0, 0},
     false,
     0,
     24},
    {"window",
     "[pipeline]\nblock_tokens = 32\nsinks = 3\nrecent = 20\n" LAYERS("kivi", "kivi"),
     KVANT_DTYPE_F16,
     {16, 8},
     {0, 48},
     false,
     0,
     24},
    {"raw",
     "[pipeline]\nblock_tokens = 16\n" LAYERS("raw", "raw"),
     KVANT_DTYPE_F32,
     {16, 16},
     {0, 0},
     false,
     0,
     40},
    {"saturate",
     "[pipeline]\nblock_tokens = 32\nsinks = 3\nrecent = 1\non_nonfinite = saturate\n" LAYERS("kivi", "raw"),
     KVANT_DTYPE_F16,
     {16, 16},
     {0, 40},
     false,
     0,
     24},
};

static uint64_t seed;

static uint32_t below(void *context, uint32_t limit) {
    return (uint32_t)((kvant_test_random(context) >> 32) * limit >> 32);
}

static void end(void) {
    fprintf(stderr, "    again with KVANT_TEST_SEED=%llu\n", (unsigned long long)seed);
    fail();
}

static uint64_t number_of(const char *variable, uint64_t otherwise) {
    const char *text = getenv(variable);
    return text != NULL && *text != '\0' ? strtoull(text, NULL, 10) : otherwise;
}

/* Of the largest of a call's outputs. The device adds floats in another order. Infinities that were replaced
 * make logits of 1e5 and more, of which a float's last place is a hundredth. */
static float tolerance;

bool __wrap_model_same_floats(const float *a, const float *b, size_t count);
bool __wrap_model_same_floats(const float *a, const float *b, size_t count) {
    float largest = 1;
    for (size_t i = 0; i < count; i++)
        if (isfinite(b[i]) && fabsf(b[i]) > largest) largest = fabsf(b[i]);
    for (size_t i = 0; i < count; i++)
        if (!(fabsf(a[i] - b[i]) <= tolerance * largest) && !(a[i] == b[i])) return false;
    return true;
}

static void operations_follow_the_model(void **state) {
    (void)state;
    static const uint32_t pools[] = {100, 15};
    machine_counts all = {0};
    uint64_t each = number_of("KVANT_TEST_OPERATIONS", OPERATIONS);
    const char *only = getenv("KVANT_TEST_SETTING");
    on_device(twin_device());
    cache_model_end = end;
    seed = number_of("KVANT_TEST_SEED", 1);
    for (uint32_t i = 0; i < 2 * sizeof settings / sizeof settings[0]; i++) {
        model_setting tried = settings[i / 2];
        if (only != NULL && strcmp(only, tried.name) != 0) continue;
        tried.blocks = tried.blocks * pools[i % 2] / 100;
        tolerance = strcmp(tried.name, "saturate") == 0 ? 2e-2f : 4e-5f;
        uint64_t numbers = model_hash(seed, i);
        cache_machine *x = cache_machine_open(&tried, 0, below, &numbers);
        for (uint64_t n = 0; n < each; n++) cache_machine_operation(x);
        const uint64_t *more = &cache_machine_counts(x)->operations;
        for (size_t n = 0; n < sizeof all / sizeof *more; n++) (&all.operations)[n] += more[n];
        cache_machine_close(x);
    }
    printf("%llu operations: %llu commits, %llu aborts, %llu wrong calls, %llu without space, %llu "
           "evictions, %llu "
           "hits, %llu attends, %llu reads\n",
           (unsigned long long)all.operations, (unsigned long long)all.commits,
           (unsigned long long)all.aborts, (unsigned long long)all.injected, (unsigned long long)all.no_space,
           (unsigned long long)all.evictions, (unsigned long long)all.hits, (unsigned long long)all.attends,
           (unsigned long long)all.reads);
    on_device(NULL);
    twin_device_close();
    if (only != NULL || KVANT_TEST_SANITIZED) return;
    assert_true(all.commits > 10 && all.aborts > 5 && all.injected > 5 && all.no_space > 5 &&
                all.attends > 10 && all.reads > 10 && all.evictions > 0 && all.hits > 0);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(operations_follow_the_model)};
    return kvant_run_tests(tests, argc, argv);
}
