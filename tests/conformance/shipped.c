/* Every codec that is shipped keeps its promises: `kvant check` on each, on all pairs of values. The seed
 * is fixed, so that a change is blamed for what it did; KVANT_TEST_SEED sets another. */
#include "support/run_command.h"
#include "support/sanitized.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A tenth of the configurations where every access is looked at: those with new values come first. */
#define FRACTION (KVANT_TEST_SANITIZED ? "0.1" : "1")

static void check_codec(const char *name) {
    const char *seed = getenv("KVANT_TEST_SEED");
    char *out, *err;
    int status = kvant_run((const char *const[]){KVANT_TEST_COMMAND, "check", name, "--seed",
                                                 seed != NULL ? seed : "1", "--fraction", FRACTION,
                                                 "--timeout", "60", NULL},
                           &out, &err);
    if (status != 0)
        print_message("%s%s", out, err);
    else
        print_message("%.*s", (int)strcspn(strchr(out, '\n') + 1, "\n"), strchr(out, '\n') + 1);
    assert_int_equal(status, 0);
    kvant_assert_contains(out, "keeps its promises");
    free(out);
    free(err);
}

static void raw_keeps_its_promises(void **state) {
    (void)state;
    check_codec("raw");
}

static void uniform_keeps_its_promises(void **state) {
    (void)state;
    check_codec("uniform");
}

static void kivi_keeps_its_promises(void **state) {
    (void)state;
    check_codec("kivi");
}

static void hack_keeps_its_promises(void **state) {
    (void)state;
    check_codec("hack");
}

static void kvquant_keeps_its_promises(void **state) {
    (void)state;
    check_codec("kvquant");
}

static void nvfp4_keeps_its_promises(void **state) {
    (void)state;
    check_codec("nvfp4");
}

static void triaxial_keeps_its_promises(void **state) {
    (void)state;
    check_codec("triaxial");
}

static void turboquant_keeps_its_promises(void **state) {
    (void)state;
    check_codec("turboquant");
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(raw_keeps_its_promises),
        cmocka_unit_test(uniform_keeps_its_promises),
        cmocka_unit_test(kivi_keeps_its_promises),
        cmocka_unit_test(hack_keeps_its_promises),
        cmocka_unit_test(kvquant_keeps_its_promises),
        cmocka_unit_test(nvfp4_keeps_its_promises),
        cmocka_unit_test(triaxial_keeps_its_promises),
        cmocka_unit_test(turboquant_keeps_its_promises),
    };
    return kvant_run_tests(tests, argc, argv);
}
