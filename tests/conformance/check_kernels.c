/* `kvant check --gpu`: kivi's kernels keep their promises on the interpreter, and lies about kernels are
 * named. The command finds the interpreter's driver in its search path. Without nvcc there are no kernels. */
#include "support/run_command.h"
#include "support/sanitized.h"
#include "support/test.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef KVANT_HAVE_NVCC
#define KVANT_HAVE_NVCC         0
#define KVANT_TEST_ARCHITECTURE 80 /* of a cubin */
#endif

#define DRIVER "LD_LIBRARY_PATH=" KVANT_TEST_BUILD_DIR "/tests/gpu/driver"

enum { WORDS = 24 };

/* kvant check with these words, on a device of this compute capability; NULL = the interpreter's own. */
static int check_on(const char *device, const char *const words[], char **out, char **err) {
    char setting[64];
    const char *argv[WORDS] = {"env", DRIVER};
    size_t count = 2;
    (void)snprintf(setting, sizeof setting, "KVANT_PTX_DEVICE=%s", device != NULL ? device : "11.0");
    argv[count++] = setting;
    argv[count++] = KVANT_TEST_COMMAND;
    argv[count++] = "check";
    for (size_t i = 0; words[i] != NULL && count + 1 < WORDS; i++) argv[count++] = words[i];
    return kvant_run(argv, out, err);
}

#define CHECK_ON(device, out, err, ...)                                                                      \
    check_on((device), (const char *const[]){__VA_ARGS__, NULL}, (out), (err))

static void need_kernels(void) {
    if (KVANT_HAVE_NVCC) return;
    print_message("skipped: built without nvcc, so no plugin has kernels\n");
    skip();
}

static json_t *parse(const char *text) {
    json_error_t error;
    json_t *root = json_loads(text, 0, &error);
    if (root == NULL) fail_msg("%s: %s", error.text, text);
    return root;
}

static long long tally(json_t *report, const char *check, const char *member) {
    json_t *checks = json_object_get(report, "checks");
    return (long long)json_integer_value(json_object_get(json_object_get(checks, check), member));
}

/* ---- The honest ---------------------------------------------------------------------------------------- */

static const char *const kernel_checks[] = {"gpu-plan",   "gpu-upload", "gpu-encode", "gpu-finite",
                                            "gpu-decode", "gpu-attend", "gpu-hostile"};

/* `attends`: it has a kernel for a pair. */
static void keeps(const char *device, const char *codec, bool attends, const char *fraction,
                  const char *kind) {
    char *out, *err;
    need_kernels();
    int status = CHECK_ON(device, &out, &err, codec, "--gpu", "--seed", "1", "--json", "--fraction", fraction,
                          "--timeout", "300");
    if (status != 0) print_message("%s%s", out, err);
    assert_int_equal(status, 0);
    json_t *report = parse(out);
    long long configurations = json_integer_value(json_object_get(report, "configurations"));
    kvant_assert_contains(json_string_value(json_object_get(report, "device")), kind);
    for (size_t i = 0; i < sizeof kernel_checks / sizeof kernel_checks[0]; i++) {
        long long passed = tally(report, kernel_checks[i], "passed");
        assert_int_equal(tally(report, kernel_checks[i], "failed"), 0);
        if (!attends && strcmp(kernel_checks[i], "gpu-attend") == 0) {
            assert_int_equal(passed, 0);
            continue;
        }
        assert_int_equal(passed + tally(report, kernel_checks[i], "refused"), configurations);
        assert_true(passed > configurations / 2);
    }
    /* One of keys, one of values. */
    assert_int_equal(tally(report, "gpu-score", "passed") + tally(report, "gpu-mix", "passed"),
                     configurations);
    assert_int_equal(tally(report, "encode", "passed"), 0); /* the CPU's own checks are another command's */
    print_message("%s: %lld configurations on %s\n", codec, configurations,
                  json_string_value(json_object_get(report, "device")));
    json_decref(report);
    free(out);
    free(err);
}

/* All pairs of values, on the PTX that ships; a few where every access of ours is looked at too. */
static void kivi_keeps_its_promises(void **state) {
    (void)state;
    keeps(NULL, "kivi", true, KVANT_TEST_SANITIZED ? "0.03" : "1", "compute capability 11.0, PTX");
}

static void raw_keeps_its_promises(void **state) {
    (void)state;
    keeps(NULL, "raw", false, KVANT_TEST_SANITIZED ? "0.04" : "0.5", "PTX");
}

static void so_do_cubins(void **state) {
    (void)state;
    char device[16];
    (void)snprintf(device, sizeof device, "%d.%d", KVANT_TEST_ARCHITECTURE / 10,
                   KVANT_TEST_ARCHITECTURE % 10);
    keeps(device, "kivi", true, KVANT_TEST_SANITIZED ? "0.02" : "0.1", ", cubin");
}

static void lie_file(char file[1024], const char *kind) {
    (void)snprintf(file, 1024, "%s/tests/bad_plugins/%s/kvant_kivi.so", KVANT_TEST_BUILD_DIR, kind);
}

/* What lies are made of is none. */
static void so_does_the_honest(void **state) {
    char file[1024];
    (void)state;
    lie_file(file, "gpu_honest");
    keeps(NULL, file, true, KVANT_TEST_SANITIZED ? "0.02" : "0.1", "PTX");
}

/* ---- Lies ---------------------------------------------------------------------------------------------- */

static const struct {
    const char *kind;
    const char *promise; /* that it breaks */
    const char *said;
    const char *needs_device; /* "--gpu"; "--verbose" = plan and upload show it without one */
} lies[] = {
    {"gpu_name", "gpu-plan", "names kernel kivi_decode_", "--verbose"},
    {"gpu_mute", "gpu-plan", "the diag was not filled", "--verbose"},
    {"gpu_counter", "gpu-upload", "uploads from two equal codecs differ", "--verbose"},
    {"gpu_address", "gpu-upload", "holds an address of the host", "--verbose"},
    {"gpu_name", "gpu-plan", "names kernel kivi_decode_", "--gpu"},
    {"gpu_kernel", "gpu-encode", "the CPU writes", "--gpu"},
    {"gpu_offset", "gpu-encode", "the CPU writes", "--gpu"},
    {"gpu_offset", "gpu-decode", "is not the CPU's", "--gpu"},
    {"gpu_offset", "gpu-attend", "away from attention on decoded rows", "--gpu"},
    {"gpu_size", "gpu-encode", "status.size is", "--gpu"},
    {"gpu_fault", "gpu-attend", "lie_fault", "--gpu"},
    {"gpu_idle", "gpu-encode", "the CPU writes", "--gpu"},
    {"gpu_idle", "gpu-finite", "are not finite, and status.first_not_finite is -1", "--gpu"},
    {"gpu_idle", "gpu-decode", "is not the CPU's", "--gpu"},
    {"gpu_idle", "gpu-attend", "kv head", "--gpu"},
    {"gpu_idle", "gpu-score", "the error of its logits is", "--gpu"},
    {"gpu_idle", "gpu-mix", "the error of the mix is", "--gpu"},
    {"gpu_offset", "gpu-mix", "the error of the mix is", "--gpu"},
    {"gpu_zeros", "gpu-attend", "kv head", "--gpu"},
};

static void lies_are_named(void **state) {
    (void)state;
    need_kernels();
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        char file[1024], line[64], *out, *err;
        lie_file(file, lies[i].kind);
        /* Few configurations, and not fewer under a sanitizer: not every one shows every lie. */
        int status = CHECK_ON(NULL, &out, &err, file, lies[i].needs_device, "--verbose", "--seed", "1",
                              "--fraction", "0.08", "--only", lies[i].promise, "--timeout", "300");
        (void)snprintf(line, sizeof line, "\n  %-12s FAIL", lies[i].promise);
        if (status != 1 || strstr(out, line) == NULL || strstr(out, lies[i].said) == NULL)
            print_message("%s: exit status %d\n%s%s", lies[i].kind, status, out, err);
        assert_int_equal(status, 1);
        kvant_assert_contains(out, line);
        kvant_assert_contains(out, lies[i].said);
        free(out);
        free(err);
    }
}

/* A failure comes again by its number; what does not lie in these kernels is found all right beside it, also
 * when the device was lost on the way. */
static void a_fault_is_one_failure(void **state) {
    char file[1024], number[32], *out, *err;
    (void)state;
    need_kernels();
    lie_file(file, "gpu_fault");
    assert_int_equal(CHECK_ON(NULL, &out, &err, file, "--gpu", "--json", "--seed", "5", "--fraction", "0.04",
                              "--timeout", "300"),
                     1);
    json_t *report = parse(out);
    json_t *failure = json_array_get(json_object_get(report, "failures"), 0);
    assert_string_equal(json_string_value(json_object_get(failure, "check")), "gpu-attend");
    kvant_assert_contains(json_string_value(json_object_get(failure, "message")), "lie_fault");
    assert_int_equal(tally(report, "gpu-decode", "failed"), 0);
    assert_true(tally(report, "gpu-decode", "passed") > 0);
    (void)snprintf(number, sizeof number, "%lld",
                   (long long)json_integer_value(json_object_get(failure, "case")));
    free(out);
    free(err);
    assert_int_equal(CHECK_ON(NULL, &out, &err, file, "--gpu", "--json", "--seed", "5", "--case", number,
                              "--only", "gpu-attend", "--timeout", "300"),
                     1);
    json_t *again = parse(out);
    json_t *same = json_array_get(json_object_get(again, "failures"), 0);
    assert_true(
        json_equal(json_object_get(same, "configuration"), json_object_get(failure, "configuration")));
    json_decref(again);
    json_decref(report);
    free(out);
    free(err);
}

/* ---- Without ------------------------------------------------------------------------------------------- */

static void refusals_are_clear(void **state) {
    static const struct {
        const char *words[4];
        const char *device;
        int status;
        const char *said;
    } wrong[] = {
        {{KVANT_TEST_BUILD_DIR "/tests/bad_plugins/honest/kvant_honest.so", "--gpu"},
         NULL,
         3,
         "codec honest has no GPU code"},
        {{"kivi", "--gpu"}, "7.5", 3, "no image for a device of compute capability 7.5"},
        {{"kivi", "--only", "gpu-encode"}, NULL, 2, "the check \"gpu-encode\" runs kernels: it needs --gpu"},
        {{"kivi", "--gpu", "--set", "tokens=2"}, NULL, 2, "there is no such value"},
        {{"kivi", "--set", "gqa=2"}, NULL, 2, "kivi has no parameter \"gqa\""},
    };
    (void)state;
    need_kernels();
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char *out, *err;
        int status = CHECK_ON(wrong[i].device, &out, &err, wrong[i].words[0], wrong[i].words[1],
                              wrong[i].words[2], wrong[i].words[3]);
        if (status != wrong[i].status) print_message("%d: %s%s", status, out, err);
        assert_int_equal(status, wrong[i].status);
        assert_string_equal(out, "");
        kvant_assert_contains(err, wrong[i].said);
        free(out);
        free(err);
    }
}

/* Not on a machine that has a driver. */
static void no_driver_is_one_error(void **state) {
    char *out, *err;
    (void)state;
    need_kernels();
    int status = kvant_run(
        (const char *const[]){KVANT_TEST_COMMAND, "check", "kivi", "--gpu", "--fraction", "0.01", NULL}, &out,
        &err);
    if (status == 3) {
        kvant_assert_contains(err, "driver");
        assert_string_equal(out, "");
    }
    free(out);
    free(err);
}

/* plan and upload are looked at in every check, on no device. */
static void the_host_part_needs_no_device(void **state) {
    char *out, *err;
    (void)state;
    need_kernels();
    assert_int_equal(kvant_run((const char *const[]){KVANT_TEST_COMMAND, "check", "kivi", "--json", "--seed",
                                                     "1", "--fraction", "0.05", "--only", "gpu-upload", NULL},
                               &out, &err),
                     0);
    json_t *report = parse(out);
    assert_true(tally(report, "gpu-upload", "passed") > 3);
    assert_string_equal(json_string_value(json_object_get(report, "device")), "");
    json_decref(report);
    free(out);
    free(err);
}

static void settings_pin_axes_of_kernels(void **state) {
    char file[1024], *out, *err;
    (void)state;
    need_kernels();
    lie_file(file, "gpu_zeros");
    assert_int_equal(CHECK_ON(NULL, &out, &err, file, "--gpu", "--json", "--seed", "1", "--fraction", "0.05",
                              "--only", "gpu-attend", "--set", "gqa=5", "--set", "tokens=block+1", "--set",
                              "sight=window", "--set", "other_dim=48"),
                     1);
    json_t *report = parse(out);
    json_t *failure = json_array_get(json_object_get(report, "failures"), 0);
    kvant_assert_contains(json_string_value(json_object_get(failure, "configuration")),
                          "gqa=5 tokens=block+1 sight=window other_dim=48");
    json_decref(report);
    free(out);
    free(err);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(kivi_keeps_its_promises),
        cmocka_unit_test(raw_keeps_its_promises),
        cmocka_unit_test(so_do_cubins),
        cmocka_unit_test(so_does_the_honest),
        cmocka_unit_test(lies_are_named),
        cmocka_unit_test(a_fault_is_one_failure),
        cmocka_unit_test(refusals_are_clear),
        cmocka_unit_test(no_driver_is_one_error),
        cmocka_unit_test(the_host_part_needs_no_device),
        cmocka_unit_test(settings_pin_axes_of_kernels),
    };
    return kvant_run_tests(tests, argc, argv);
}
