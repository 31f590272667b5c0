/* tests/gpu/device.sh, whole, with the interpreter's driver in the place of a GPU's: what it packs, what it
 * runs, what it writes; and what it writes where things go wrong. */
#include "support/run_command.h"
#include "support/sanitized.h"
#include "support/test.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCRIPT KVANT_TEST_SOURCE_DIR "/tests/gpu/device.sh"

static char folder[] = "/tmp/kvant-device-XXXXXX";
static char packed[64], results[64];
static char *out, *err;

static int script(const char *const argv[]) {
    free(out);
    free(err);
    return kvant_run(argv, &out, &err);
}
#define SCRIPT_RUN(...) script((const char *const[]){"/bin/bash", SCRIPT, __VA_ARGS__, NULL})

static json_t *read_results(void) {
    char file[96];
    json_error_t error;
    (void)snprintf(file, sizeof file, "%s/device.json", results);
    json_t *root = json_load_file(file, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) fail_msg("%s:%d: %s\n%s%s", file, error.line, error.text, out, err);
    assert_string_equal(json_string_value(json_object_get(root, "format")), "kvant.device/1");
    return root;
}

static json_t *part_of(json_t *root, const char *name) {
    json_t *parts = json_object_get(root, "parts");
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *part = json_array_get(parts, i);
        if (strcmp(json_string_value(json_object_get(part, "name")), name) == 0) return part;
    }
    return NULL;
}

static const char *status_of(json_t *root, const char *name) {
    json_t *part = part_of(root, name);
    if (part == NULL) fail_msg("there is no part %s\n%s", name, out);
    return json_string_value(json_object_get(part, "status"));
}

static void assert_passed(json_t *root, const char *name) {
    if (strcmp(status_of(root, name), "passed") != 0)
        fail_msg("%s: %s\n%s", name, status_of(root, name), out);
}

static double number(json_t *object, const char *name) {
    json_t *value = json_object_get(object, name);
    if (!json_is_number(value)) fail_msg("%s is no number", name);
    return json_number_value(value);
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

static int make_folder(void **state) {
    (void)state;
    if (mkdtemp(folder) == NULL) return 1;
    (void)snprintf(packed, sizeof packed, "%s/packed", folder);
    (void)snprintf(results, sizeof results, "%s/results", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    (void)script((const char *const[]){"/bin/rm", "-rf", folder, NULL});
    free(out);
    free(err);
    return 0;
}

static void need_kernels(void) {
    if (KVANT_HAVE_NVCC && !KVANT_TEST_SANITIZED) return;
    print_message("skipped: %s\n",
                  KVANT_TEST_SANITIZED ? "what it runs is tested alone" : "built without nvcc");
    skip();
}

static void packs(void **state) {
    (void)state;
    need_kernels();
    int status = SCRIPT_RUN("pack", KVANT_TEST_BUILD_DIR, packed);
    if (status != 0) fail_msg("pack: %d: %s%s", status, out, err);
    static const char *const files[] = {"bin/kvant",
                                        "bin/gpu_speed",
                                        "bin/test_gpu_codec_kivi",
                                        "bin/compare_eval",
                                        "bin/test_gpu_graph_step",
                                        "plugins/kvant_kivi.so",
                                        "pipelines/kivi-2.ini",
                                        "samples/sample.safetensors",
                                        "manifest",
                                        "device.sh"};
    struct stat info;
    char file[128];
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        (void)snprintf(file, sizeof file, "%s/%s", packed, files[i]);
        if (stat(file, &info) != 0) fail_msg("%s is not packed", files[i]);
    }
    /* The interpreter's own tests stay behind, and so does libc. */
    (void)snprintf(file, sizeof file, "%s/bin/test_gpu_ptx_memory", packed);
    assert_int_not_equal(stat(file, &info), 0);
    (void)snprintf(file, sizeof file, "%s/lib/libc.so.6", packed);
    assert_int_not_equal(stat(file, &info), 0);
}

static void assert_speeds(json_t *speed) {
    json_t *attend = json_object_get(speed, "attend");
    assert_int_equal(json_array_size(json_object_get(speed, "errors")), 0);
    assert_int_equal(json_array_size(attend), 6); /* two cases: plain bf16, 4 bits, 2 bits */
    for (size_t i = 0; i < json_array_size(attend); i++) {
        json_t *one = json_array_get(attend, i);
        assert_true(number(one, "gb_per_second") > 0 && number(one, "of_copy") > 0 &&
                    number(one, "ns_per_token") > 0);
        assert_true(number(json_object_get(one, "graph_us"), "median") > 0);
        assert_true(number(json_object_get(one, "eager_us"), "median") > 0);
        assert_true(number(json_object_get(one, "copy_us"), "median") > 0);
    }
    assert_int_equal(json_array_size(json_object_get(speed, "encode")), 4);
    assert_int_equal(json_array_size(json_object_get(speed, "decode")), 4);
    json_t *check = json_object_get(speed, "check");
    assert_true(number(check, "plain bf16") < 4e-3);
    assert_true(number(check, "kivi 4") < number(check, "kivi 2"));
}

static void runs(void **state) {
    (void)state;
    need_kernels();
    int status = SCRIPT_RUN("run", "--dry", packed, results);
    json_t *root = read_results();
    static const char *const parts[] = {
        "command",           "device", "plain", "test_gpu_codec_kivi", "test_gpu_graph_step", "eval_kivi-2",
        "eval_kivi-2_equal", "speed"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) assert_passed(root, parts[i]);
    assert_int_equal(status, 0);
    assert_true(json_is_true(json_object_get(root, "passed")));
    assert_true(json_is_true(json_object_get(root, "whole")));
    assert_true(json_is_true(json_object_get(root, "dry")));
    json_t *device = json_object_get(json_object_get(part_of(root, "device"), "result"), "device");
    assert_int_equal(number(device, "major"), 9);
    assert_true(number(part_of(root, "test_gpu_codec_kivi"), "tests_passed") > 0);
    assert_speeds(json_object_get(part_of(root, "speed"), "result"));
    json_decref(root);
}

/* Puts a shell script in a program's place. */
static void replace(const char *program, const char *text) {
    char file[128], kept[140];
    (void)snprintf(file, sizeof file, "%s/bin/%s", packed, program);
    (void)snprintf(kept, sizeof kept, "%s.kept", file);
    assert_int_equal(rename(file, kept), 0);
    FILE *stream = fopen(file, "w");
    assert_non_null(stream);
    fprintf(stream, "#!/bin/bash\n%s\n", text);
    assert_int_equal(fclose(stream), 0);
    assert_int_equal(chmod(file, 0755), 0);
}

static void restore(const char *program) {
    char file[128], kept[140];
    (void)snprintf(file, sizeof file, "%s/bin/%s", packed, program);
    (void)snprintf(kept, sizeof kept, "%s.kept", file);
    assert_int_equal(rename(kept, file), 0);
}

/* A test that crashes, with output that no JSON may hold, one that does nothing, results cut short: the rest
 * is there, and right. */
static void survives(void **state) {
    (void)state;
    need_kernels();
    replace("test_gpu_codec_kivi", "printf 'a \"quote\"\\t\\\\ \\033 \\377\\nline two\\n'; kill -SEGV $$");
    replace("test_gpu_graph_step", "echo '[  SKIPPED ] fused'; echo '[  SKIPPED ] 1 test(s), listed below:'");
    replace("compare_eval", "echo numbers differ; exit 1");
    replace("gpu_speed", "while [ $# -gt 0 ]; do [ $1 = --out ] && echo '{\"attend\": [' >$2; "
                         "[ $1 = --describe ] && exec echo '{\"device\": {}}'; shift; done; exit 1");
    int status = SCRIPT_RUN("run", "--dry", packed, results);
    json_t *root = read_results();
    assert_int_equal(status, 1);
    assert_true(json_is_false(json_object_get(root, "passed")));
    assert_true(json_is_false(json_object_get(root, "whole")));
    assert_string_equal(status_of(root, "test_gpu_codec_kivi"), "crashed");
    const char *tail = json_string_value(json_object_get(part_of(root, "test_gpu_codec_kivi"), "tail"));
    kvant_assert_contains(tail, "a \"quote\"\t\\  \nline two");
    assert_string_equal(status_of(root, "test_gpu_graph_step"), "skipped");
    assert_string_equal(status_of(root, "eval_kivi-2"), "passed");
    assert_string_equal(status_of(root, "eval_kivi-2_equal"), "failed");
    assert_string_equal(status_of(root, "speed"), "failed");
    assert_true(json_is_null(json_object_get(part_of(root, "speed"), "result")));
    json_decref(root);
    restore("test_gpu_codec_kivi");
    restore("test_gpu_graph_step");
    restore("compare_eval");
    restore("gpu_speed");
}

/* Without a driver it stops early and says so; without time it says what was left out. */
static void stops(void **state) {
    (void)state;
    need_kernels();
    char *path = getenv("LD_LIBRARY_PATH"), *kept = path != NULL ? strdup(path) : NULL;
    assert_int_equal(unsetenv("LD_LIBRARY_PATH"), 0);
    if (SCRIPT_RUN("run", "--dry", packed, results) != 1) {
        print_message("there is a driver here beside the interpreter's\n");
    } else {
        json_t *root = read_results();
        assert_string_equal(status_of(root, "device"), "failed");
        kvant_assert_contains(json_string_value(json_object_get(part_of(root, "device"), "tail")),
                              "no CUDA driver");
        assert_null(part_of(root, "speed"));
        json_decref(root);
    }
    if (kept != NULL) assert_int_equal(setenv("LD_LIBRARY_PATH", kept, 1), 0);
    free(kept);

    assert_int_equal(setenv("KVANT_DEVICE_SECONDS", "6", 1), 0);
    int status = SCRIPT_RUN("run", "--dry", packed, results);
    assert_int_equal(unsetenv("KVANT_DEVICE_SECONDS"), 0);
    json_t *root = read_results();
    assert_int_not_equal(status, 0);
    assert_true(json_is_false(json_object_get(root, "whole")));
    json_decref(root);
}

static void refuses(void **state) {
    (void)state;
    assert_int_equal(SCRIPT_RUN("run", "/nonexistent", results), 2);
    kvant_assert_contains(err, "/nonexistent is missing: pack first");
    assert_int_equal(SCRIPT_RUN("pack", "/nonexistent", packed), 2);
    kvant_assert_contains(err, "/nonexistent/bin/kvant is missing: build first");
    assert_int_equal(SCRIPT_RUN("walk"), 2);
    kvant_assert_contains(err, "usage: ");
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(refuses), cmocka_unit_test(packs),
                                              cmocka_unit_test(runs), cmocka_unit_test(survives),
                                              cmocka_unit_test(stops)};
    (void)argc, (void)argv; /* tests need what the ones before made */
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
