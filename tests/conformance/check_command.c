/* The `kvant check` command: its options, its exit statuses, and that a seed says everything. */
#include "support/run_command.h"
#include "support/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void usage_is_checked(void **state) {
    static const struct {
        const char *words[4];
        const char *said;
    } wrong[] = {
        {{NULL}, "which codec?"},
        {{"raw", "kivi"}, "one codec at a time"},
        {{"raw", "--seed", "minus"}, "--seed takes a number"},
        {{"raw", "--seed", "-1"}, "--seed takes a number"},
        {{"raw", "--fraction", "0"}, "--fraction takes a number above 0"},
        {{"raw", "--fraction", "1.5"}, "--fraction takes a number above 0"},
        {{"raw", "--timeout", "soon"}, "--timeout takes seconds"},
        {{"raw", "--only", "bits-and-bobs"}, "there is no check \"bits-and-bobs\""},
        {{"raw", "--set", "format"}, "--set takes KEY=VALUE"},
        {{"raw", "--set", "head_dims=64"}, "did you mean \"head_dim\"?"},
        {{"raw", "--set", "side=keys"}, "did you mean \"key\"?"},
        {{"raw", "--set", "head_dim=0"}, "it takes a number from 1"},
        {{"raw", "--set", "format=f8"}, "it takes input, f32, f16 or bf16"},
        {{"raw", "--case", "1000000"}, "configurations, from 0 on"},
        {{"raw", "--frobnicate"}, "unknown option"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char *out, *err;
        const char *argv[8] = {KVANT_TEST_COMMAND, "check"};
        for (size_t k = 0; k < 4 && wrong[i].words[k] != NULL; k++) argv[2 + k] = wrong[i].words[k];
        assert_int_equal(kvant_run(argv, &out, &err), 2);
        assert_string_equal(out, "");
        kvant_assert_contains(err, wrong[i].said);
        kvant_assert_contains(err, "kvant help check");
        free(out);
        free(err);
    }
}

static void an_unknown_codec_is_bad_input(void **state) {
    char *out, *err;
    (void)state;
    assert_int_equal(kvant_run((const char *const[]){KVANT_TEST_COMMAND, "check", "kivy", NULL}, &out, &err),
                     3);
    assert_string_equal(out, "");
    kvant_assert_contains(err, "kivy");
    free(out);
    free(err);
    assert_int_equal(
        kvant_run((const char *const[]){KVANT_TEST_COMMAND, "check", "./kvant_none.so", NULL}, &out, &err),
        3);
    kvant_assert_contains(err, "kvant_none.so");
    free(out);
    free(err);
}

static void the_list_names_every_check(void **state) {
    static const char *const names[] = {"load",   "options", "plan",        "slices", "arbitrary",
                                        "bounds", "error",   "environment", "isa",    "threads"};
    char *out, *err;
    (void)state;
    assert_int_equal(
        kvant_run((const char *const[]){KVANT_TEST_COMMAND, "check", "--list", NULL}, &out, &err), 0);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) kvant_assert_contains(out, names[i]);
    assert_string_equal(err, "");
    free(out);
    free(err);
}

/* A report without what differs from run to run. */
static json_t *report_of(const char *const argv[], int wanted) {
    char *out, *err;
    int status = kvant_run(argv, &out, &err);
    if (status != wanted) print_message("%s%s", out, err);
    assert_int_equal(status, wanted);
    json_error_t error;
    json_t *root = json_loads(out, 0, &error);
    if (root == NULL) print_message("%s: %s\n", error.text, out);
    assert_non_null(root);
    assert_int_equal(json_object_del(root, "seconds"), 0);
    free(out);
    free(err);
    return root;
}

static void liar(char file[1024], const char *kind) {
    (void)snprintf(file, 1024, "%s/tests/bad_plugins/%s/kvant_%s.so", KVANT_TEST_BUILD_DIR, kind, kind);
}

static void a_seed_reproduces(void **state) {
    char file[1024];
    (void)state;
    liar(file, "lie_head_range");
    const char *const three[] = {KVANT_TEST_COMMAND, "check", file, "--json", "--seed", "3",
                                 "--fraction",       "0.1",   NULL};
    const char *const alone[] = {KVANT_TEST_COMMAND, "check", "--threads",  "1",   file, "--json",
                                 "--seed",           "3",     "--fraction", "0.1", NULL};
    const char *const four[] = {KVANT_TEST_COMMAND, "check", file, "--json", "--seed", "4",
                                "--fraction",       "0.1",   NULL};
    json_t *first = report_of(three, 1), *second = report_of(three, 1), *third = report_of(alone, 1),
           *other = report_of(four, 1);
    assert_true(json_array_size(json_object_get(first, "failures")) > 0);
    assert_true(json_equal(first, second));
    assert_true(json_equal(first, third)); /* whatever the number of workers */
    assert_false(json_equal(json_object_get(first, "failures"), json_object_get(other, "failures")));
    json_decref(second);
    json_decref(third);
    json_decref(other);
    json_decref(first);
}

/* One failure of the whole run comes again alone, by its number and its check, and from its configuration. */
static void a_failure_comes_again(void **state) {
    char file[1024], number[32];
    (void)state;
    liar(file, "lie_token_range");
    json_t *all = report_of((const char *const[]){KVANT_TEST_COMMAND, "check", file, "--json", "--seed", "9",
                                                  "--fraction", "0.1", NULL},
                            1);
    json_t *failures = json_object_get(all, "failures");
    json_t *failure = json_array_get(failures, json_array_size(failures) - 1);
    (void)snprintf(number, sizeof number, "%lld",
                   (long long)json_integer_value(json_object_get(failure, "case")));
    json_t *one = report_of((const char *const[]){KVANT_TEST_COMMAND, "check", file, "--json", "--seed", "9",
                                                  "--case", number, "--only", "slices", NULL},
                            1);
    assert_int_equal(json_array_size(json_object_get(one, "failures")), 1);
    assert_true(json_equal(json_array_get(json_object_get(one, "failures"), 0), failure));
    json_t *here =
        report_of((const char *const[]){KVANT_TEST_COMMAND, "check", file, "--json", "--seed", "9", "--case",
                                        number, "--only", "slices", "--in-process", NULL},
                  1);
    assert_true(json_equal(json_array_get(json_object_get(here, "failures"), 0), failure));
    json_decref(all);
    json_decref(one);
    json_decref(here);
}

static void settings_pin_values(void **state) {
    char file[1024];
    (void)state;
    liar(file, "lie_token_range");
    json_t *report =
        report_of((const char *const[]){KVANT_TEST_COMMAND, "check", file, "--json", "--seed", "1", "--set",
                                        "head_dim=80", "--set", "side=value", "--set", "bits=4", "--set",
                                        "block_tokens=50", "--set", "kv_heads=2", NULL},
                  1);
    json_t *failures = json_object_get(report, "failures");
    assert_true(json_array_size(failures) > 0);
    for (size_t i = 0; i < json_array_size(failures); i++) {
        const char *text = json_string_value(json_object_get(json_array_get(failures, i), "configuration"));
        kvant_assert_contains(text, "side=value");
        kvant_assert_contains(text, "head_dim=80");
        kvant_assert_contains(text, "kv_heads=2");
        kvant_assert_contains(text, "block_tokens=50");
        kvant_assert_contains(text, "bits=4");
    }
    json_decref(report);
}

static void only_and_all(void **state) {
    char *out, *err;
    (void)state;
    assert_int_equal(kvant_run((const char *const[]){KVANT_TEST_COMMAND, "check", "raw", "--seed", "1",
                                                     "--only", "slices", "--fraction", "0.1", NULL},
                               &out, &err),
                     0);
    kvant_assert_contains(out, "\n  slices       ok");
    assert_null(strstr(out, "\n  isa "));
    free(out);
    free(err);
    assert_int_equal(kvant_run((const char *const[]){KVANT_TEST_COMMAND, "check", "raw", "--seed", "1",
                                                     "--all", "--set", "head_dim=8", "--set", "data=offset",
                                                     "--set", "block_tokens=4", "--only", "isa", NULL},
                               &out, &err),
                     0);
    kvant_assert_contains(out, "the full product has ");
    free(out);
    free(err);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_is_checked),
        cmocka_unit_test(an_unknown_codec_is_bad_input),
        cmocka_unit_test(the_list_names_every_check),
        cmocka_unit_test(a_seed_reproduces),
        cmocka_unit_test(a_failure_comes_again),
        cmocka_unit_test(settings_pin_values),
        cmocka_unit_test(only_and_all),
    };
    return kvant_run_tests(tests, argc, argv);
}
