/* Each plugin of tests/bad_plugins that loads and lies fails `kvant check`, with its lie named; those that
 * do not lie pass; and those that do not load are bad input. */
#include "support/run_command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A twentieth of the configurations: every value of every axis is in there. */
static int check_file(const char *kind, char **out, char **err) {
    char file[1024];
    (void)snprintf(file, sizeof file, "%s/tests/bad_plugins/%s/kvant_%s.so", KVANT_TEST_BUILD_DIR, kind,
                   kind);
    return kvant_run((const char *const[]){KVANT_TEST_COMMAND, "check", file, "--seed", "1", "--fraction",
                                           "0.05", "--timeout", "2", NULL},
                     out, err);
}

static void lies_are_named(void **state) {
    static const struct {
        const char *kind;
        const char *promise;
    } lies[] = {
        {"extra_export", "exports"},
        {"lie_alignment", "views"},
        {"lie_bias", "error"},
        {"lie_company", "attend"},
        {"lie_constant", "finite"},
        {"lie_counter", "repeat"},
        {"lie_crash", "encode"},
        {"lie_dead_token", "attend"},
        {"lie_dead_weight", "attend"},
#if defined(__x86_64__)
        {"lie_flush", "environment"},
        {"lie_fp_mode", "environment"},
#endif
        {"lie_gap", "encode"},
        {"lie_head_range", "slices"},
        {"lie_ignored_option", "options"},
        {"lie_image", "extension"},
        {"lie_input", "state"},
        {"lie_insatiable", "calibrate"},
        {"lie_isa", "layout"},
        {"lie_logits", "attend"},
        {"lie_loop", "arbitrary"},
        {"lie_mood", "calibrate"},
        {"lie_nothing", "error"},
        {"lie_outside", "arbitrary"},
        {"lie_overrun", "bounds"},
        {"lie_payload", "bits"},
        {"lie_plan", "plan"},
        {"lie_refusal", "plan"},
        {"lie_rounding", "rounding"},
        {"lie_scratch", "repeat"},
        {"lie_size", "encode"},
        {"lie_spill", "bounds"},
        {"lie_state", "state"},
        {"lie_stride", "views"},
        {"lie_thread", "threads"},
        {"lie_token_range", "slices"},
        {"lie_zeros", "calibrate"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        char *out, *err, line[64];
        int status = check_file(lies[i].kind, &out, &err);
        if (status != 1) print_message("%s: exit status %d\n%s%s", lies[i].kind, status, out, err);
        assert_int_equal(status, 1);
        (void)snprintf(line, sizeof line, "\n  %-12s FAIL", lies[i].promise);
        if (strstr(out, line) == NULL) print_message("%s:\n%s", lies[i].kind, out);
        kvant_assert_contains(out, line);
        free(out);
        free(err);
    }
}

/* A machine without FMA cannot show this one. */
static void fused_arithmetic_is_named(void **state) {
    char *out, *err;
    (void)state;
    int status = check_file("lie_fma", &out, &err);
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("fma")) {
        free(out);
        free(err);
        skip();
    }
#endif
    assert_int_equal(status, 1);
    kvant_assert_contains(out, "\n  isa          FAIL");
    free(out);
    free(err);
}

static void the_honest_pass(void **state) {
    static const char *const kinds[] = {"honest",       "honest_attends", "honest_learns",
                                        "higher_minor", "unknown_offer",  "flush_on_load"};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char *out, *err;
        int status = check_file(kinds[i], &out, &err);
        if (status != 0) print_message("%s:\n%s%s", kinds[i], out, err);
        assert_int_equal(status, 0);
        free(out);
        free(err);
    }
}

static void what_does_not_load_is_bad_input(void **state) {
    static const char *const kinds[] = {"no_symbol", "wrong_major", "no_encode", "duplicate_parameter"};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char *out, *err;
        assert_int_equal(check_file(kinds[i], &out, &err), 3);
        assert_string_equal(out, "");
        kvant_assert_contains(err, kinds[i]);
        free(out);
        free(err);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(lies_are_named),
        cmocka_unit_test(fused_arithmetic_is_named),
        cmocka_unit_test(the_honest_pass),
        cmocka_unit_test(what_does_not_load_is_bad_input),
    };
    return kvant_run_tests(tests, argc, argv);
}
