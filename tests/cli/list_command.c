/* kvant list, as the real command. */
#include "support/run_command.h"
#include "support/scratch.h"
#include "support/test.h"

#include <jansson.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define BAD KVANT_TEST_BUILD_DIR "/tests/bad_plugins"

static char *out, *err;

static int run(const char *const argv[]) {
    free(out);
    free(err);
    return kvant_run(argv, &out, &err);
}

static void table(void **state) {
    (void)state;
    assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, "--plugin-path",
                                               BAD "/honest:" BAD "/no_encode", "list", NULL}),
                     0);
    assert_string_equal(err, "");
    assert_int_equal(strncmp(out, "CODEC ", 6), 0);
    const char *line = strstr(out, "\nhonest ");
    assert_non_null(line);
    char *copy = strndup(line + 1, strcspn(line + 1, "\n"));
    kvant_assert_contains(copy, " 1.0.0 ");
    kvant_assert_contains(copy, " key value ");
    kvant_assert_contains(copy, " 8     8.25 ");
    kvant_assert_contains(copy, " f32 f16 bf16 ");
    kvant_assert_contains(copy, BAD "/honest/kvant_honest.so");
    free(copy);
    kvant_assert_contains(out, "\nREFUSED\n  " BAD "/no_encode/kvant_no_encode.so: plugin.encode is NULL");
    kvant_assert_contains(out, "\nGPU code: ");
    kvant_assert_contains(out, "\nsearched: " BAD "/honest\n          " BAD "/no_encode\n");
}

static void json(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *file = kvant_scratch_path(folder, "kvant_honest.so"), path[2048];
    kvant_scratch_write(file, "no", 2);
    (void)snprintf(path, sizeof path, BAD "/honest:%s:/no/where", folder);
    assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, "list", "--json", "--isa=scalar",
                                               "--plugin-path", path, NULL}),
                     0);
    json_t *all = json_loads(out, 0, NULL);
    assert_non_null(all);
    const char *name = NULL, *shadowed = NULL, *reason = NULL, *isa = NULL, *gpu = NULL, *fault = NULL;
    double payload = 0, all_in = 0;
    const json_t *codec = NULL;
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(all, "codecs"), i,
                       item) if (strcmp(json_string_value(json_object_get(item, "name")), "honest") == 0)
        codec = item;
    assert_non_null(codec);
    json_t *owned = json_deep_copy(codec);
    assert_int_equal(json_unpack(owned, "{s:s, s:{s:{s:f, s:f}}}", "name", &name, "bits", "value", "payload",
                                 &payload, "all_in", &all_in),
                     0);
    kvant_assert_close(payload, 8, 0);
    kvant_assert_close(all_in, 8.25, 0);
    assert_int_equal(json_unpack(all, "{s:[{s:s, s:s}], s:s, s:s}", "shadowed", "file", &shadowed, "reason",
                                 &reason, "isa", &isa, "gpu_code", &gpu),
                     0);
    assert_string_equal(shadowed, file);
    assert_string_equal(reason, "shadowed by " BAD "/honest/kvant_honest.so");
    assert_string_equal(isa, "scalar");
    assert_true(gpu[0] != '\0');
    json_array_foreach(json_object_get(all, "directories"), i,
                       item) if (strcmp(json_string_value(json_object_get(item, "path")), "/no/where") == 0)
        fault = json_string_value(json_object_get(item, "fault"));
    assert_string_equal(fault, "no such directory");
    json_decref(owned);
    json_decref(all);
    free(file);
    kvant_scratch_remove(folder);
}

/* Paths are bytes: one that is not UTF-8 must not make its entry vanish from a document that can only hold
 * UTF-8. */
static void odd_paths(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *odd = kvant_scratch_path(folder, "d\xff"),
         *file = kvant_scratch_path(odd, "kvant_x.so");
    assert_int_equal(mkdir(odd, 0755), 0);
    kvant_scratch_write(file, "no", 2);
    assert_int_equal(
        run((const char *const[]){KVANT_TEST_COMMAND, "list", "--json", "--plugin-path", odd, NULL}), 0);
    json_t *all = json_loads(out, 0, NULL);
    const char *got = NULL, *name = NULL;
    assert_int_equal(json_unpack(all, "{s:[{s:s, s:s}]}", "refused", "file", &got, "name", &name), 0);
    assert_string_equal(name, "x");
    kvant_assert_contains(got, "/d?/kvant_x.so");
    json_decref(all);
    free(odd);
    free(file);
    kvant_scratch_remove(folder);
}

/* The build's own codecs are found without any path: from where the command lies. */
static void installation(void **state) {
    (void)state;
    assert_int_equal(run((const char *const[]){"env", "-u", "KVANT_PLUGIN_PATH", "-C", "/",
                                               KVANT_TEST_COMMAND, "list", NULL}),
                     0);
    kvant_assert_contains(out, KVANT_TEST_BUILD_DIR "/lib/kvant");
}

static void errors(void **state) {
    (void)state;
    static const struct {
        const char *argv[8];
        int status;
        const char *part;
    } cases[] = {
        {{KVANT_TEST_COMMAND, "list", "extra"}, 2, "takes no argument, not \"extra\""},
        {{KVANT_TEST_COMMAND, "list", "--plugin-path", "relative/path"}, 3, "\"relative/path\" is relative"},
        {{KVANT_TEST_COMMAND, "list", "--plugin-path", "/a::/b"}, 3, "empty"},
        {{"env", "KVANT_PLUGIN_PATH=/a:b", KVANT_TEST_COMMAND, "list"},
         3,
         "KVANT_PLUGIN_PATH: \"b\" is relative"},
        {{"env", "KVANT_ISA=fast", KVANT_TEST_COMMAND, "list"},
         3,
         "KVANT_ISA: there is no instruction set \"fast\""},
        {{KVANT_TEST_COMMAND, "--isa", "fast", "list"}, 3, "there is no instruction set \"fast\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(run(cases[i].argv), cases[i].status);
        kvant_assert_contains(err, cases[i].part);
        assert_string_equal(out, "");
    }
}

static void help(void **state) {
    (void)state;
    assert_int_equal(run((const char *const[]){KVANT_TEST_COMMAND, "help", "list", NULL}), 0);
    kvant_assert_contains(out, "example: ");
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(table),  cmocka_unit_test(json),      cmocka_unit_test(installation),
        cmocka_unit_test(errors), cmocka_unit_test(odd_paths), cmocka_unit_test(help),
    };
    int result = kvant_run_tests(tests, argc, argv);
    free(out);
    free(err);
    return result;
}
