/* The simulated driver where a program finds it: libcuda.so.1 in the search path, set up by the
 * environment. */
#include "support/run_command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH "LD_LIBRARY_PATH=" KVANT_DRIVER_DIR

static char *out, *err;

/* The program with one variable ("" = none), with what it tries; its exit status. */
static int try_with(const char *variable, const char *what, const char *with) {
    const char *more = variable[0] != '\0' ? variable : "KVANT_NOTHING=";
    free(out);
    free(err);
    return kvant_run((const char *const[]){"env", PATH, more, KVANT_DRIVER_PROGRAM, what, with, NULL}, &out,
                     &err);
}

#define PRINTS(variable, what, with, text)                                                                   \
    do {                                                                                                     \
        assert_int_equal(try_with(variable, what, with), 0);                                                 \
        assert_string_equal(out, text);                                                                      \
        assert_string_equal(err, "");                                                                        \
    } while (0)

static void is_found(void **state) {
    (void)state;
    PRINTS("", "describe", "0", "PTX interpreter 11.0\n");
    PRINTS("KVANT_PTX_DEVICE=9.0", "describe", "0", "PTX interpreter 9.0\n");
    PRINTS("KVANT_PTX_DEVICE=12.1", "describe", "0", "PTX interpreter 12.1\n");
    assert_int_equal(try_with("", "describe", "1"), 1);
    kvant_assert_contains(out, "there is no device 1; the driver has 1");
}

static void symbols(void **state) {
    (void)state;
    PRINTS("", "symbols", "", "1 0 0\n1 801 0 1 1 0 1 2 0 1 0 3\n");
}

static void bad_variables(void **state) {
    static const char *const cases[][2] = {
        {"KVANT_PTX_DEVICE=90", "KVANT_PTX_DEVICE=90: it is a compute capability, such as 9.0"},
        {"KVANT_PTX_DEVICE=9.0a", "such as 9.0"},
        {"KVANT_PTX_ORDER=late", "it is eager or deferred"},
        {"KVANT_PTX_CHECKS=registers,race", "it is all, none, or a list of shared-init,"},
        {"KVANT_PTX_CHECKS=", "it is all, none, or a list of"},
        {"KVANT_PTX_SEED=-1", "it is a number"},
        {"KVANT_PTX_SEED=4294967296", "it is a number"},
        {"KVANT_PTX_MEMORY=1G", "it is a number"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(try_with(cases[i][0], "describe", "0"), 1);
        kvant_assert_contains(err, "kvant's simulated driver: ");
        kvant_assert_contains(err, cases[i][1]);
        kvant_assert_contains(out, "find: cuInit: CUDA_ERROR_INVALID_VALUE (1)");
    }
}

/* Host code that looks before it waits is seen in one order only. */
static void order(void **state) {
    (void)state;
    PRINTS("", "run", "increase", "early\n1\n");
    PRINTS("KVANT_PTX_ORDER=eager", "run", "increase", "early\n1\n");
    PRINTS("KVANT_PTX_ORDER=deferred", "run", "increase", "late\n1\n");
}

static void defects(void **state) {
    (void)state;
    assert_int_equal(try_with("", "run", "stray"), 1);
    assert_string_equal(out, "call: launch: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch failure\n");
    kvant_assert_contains(err, "kvant's simulated driver: stray failed: a grid of (4,1,1)");
    kvant_assert_contains(err, "block (3,0,0) thread (63,0,0) writes 4 bytes");
    kvant_assert_contains(err, "st.global.f32 [%d1+4], %f0;");
    assert_int_equal(try_with("KVANT_PTX_ORDER=deferred", "run", "stray"), 1);
    assert_string_equal(out, "call: cuStreamSynchronize: CUDA_ERROR_LAUNCH_FAILED (719): unspecified launch "
                             "failure\n");
}

/* Checks that may be left out. */
static void checks(void **state) {
    static const char *const looks[] = {"", "KVANT_PTX_CHECKS=all", "KVANT_PTX_CHECKS=shared-init",
                                        "KVANT_PTX_CHECKS=global-race,shared-init"};
    (void)state;
    for (size_t i = 0; i < sizeof looks / sizeof looks[0]; i++) {
        assert_int_equal(try_with(looks[i], "run", "unwritten"), 1);
        kvant_assert_contains(err, "unwritten: uninitialised shared memory");
    }
    assert_int_equal(try_with("KVANT_PTX_CHECKS=none", "run", "unwritten"), 0);
    assert_int_equal(try_with("KVANT_PTX_CHECKS=global-race,shared-race,registers", "run", "unwritten"), 0);
}

static void memory(void **state) {
    (void)state;
    PRINTS("KVANT_PTX_MEMORY=100000", "allocate", "100000", "0\n");
    PRINTS("KVANT_PTX_MEMORY=100000", "allocate", "100001", "2\n");
    PRINTS("", "allocate", "4294967297", "2\n");
}

static void captured(void **state) {
    (void)state;
    PRINTS("", "capture", "", "4\n");
    PRINTS("KVANT_PTX_ORDER=deferred", "capture", "", "4\n");
}

static void counts(void **state) {
    char path[] = "/tmp/kvant-counts-XXXXXX", variable[64], text[2048] = "";
    int file = mkstemp(path);
    (void)state;
    assert_true(file >= 0);
    (void)snprintf(variable, sizeof variable, "KVANT_PTX_COUNTS=%s", path);
    PRINTS(variable, "capture", "", "4\n");
    assert_true(read(file, text, sizeof text - 1) > 0);
    kvant_assert_contains(text, "kernel\tlaunches\tblocks\twarp_instructions\t");
    kvant_assert_contains(text, "\nincrease\t4\t16\t"); /* 8 warps of 4 sectors each, 4 times */
    kvant_assert_contains(text, "\t128\t128\t128\t0\t0\t0\n");
    kvant_assert_contains(text, "\nnever\t1\t4\t");
    kvant_assert_contains(text, "# device memory: 1024 bytes at most, 1024 at the end in 1 allocations\n");
    (void)close(file);
    (void)unlink(path);
    assert_int_equal(try_with("KVANT_PTX_COUNTS=stderr", "capture", ""), 0);
    kvant_assert_contains(err, "\nincrease\t4\t16\t");
    assert_int_equal(try_with("KVANT_PTX_COUNTS=/nonexistent/file", "capture", ""), 0);
    kvant_assert_contains(err, "/nonexistent/file");
}

/* PTX that ships, and that of cubins, which is found beside them or not at all. */
static void images(void **state) {
    (void)state;
    if (!KVANT_HAVE_NVCC) {
        print_message("skipped: without nvcc plugins have no GPU code\n");
        skip();
    }
    PRINTS("", "load", "kivi", "ptx\n");
    PRINTS("KVANT_PTX_DEVICE=8.9", "load", "kivi", "cubin\n");
    assert_int_equal(try_with("KVANT_PTX_FOLDER=/nonexistent", "load", "kivi"), 0);
    char *path = NULL;
    assert_true(asprintf(&path, "%s", PATH) > 0);
    free(out);
    free(err);
    assert_int_equal(
        kvant_run((const char *const[]){"env", path, "KVANT_PTX_DEVICE=9.0", "KVANT_PTX_FOLDER=/tmp/no",
                                        KVANT_DRIVER_PROGRAM, "load", "kivi", NULL},
                  &out, &err),
        1);
    kvant_assert_contains(err, "below /tmp/no is this fat binary");
    kvant_assert_contains(err, "set KVANT_PTX_FOLDER");
    kvant_assert_contains(out, "the driver (CUDA 13.0) does not take the plugin's image for PTX interpreter");
    free(path);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_found), cmocka_unit_test(symbols),  cmocka_unit_test(bad_variables),
        cmocka_unit_test(order),    cmocka_unit_test(defects),  cmocka_unit_test(checks),
        cmocka_unit_test(memory),   cmocka_unit_test(captured), cmocka_unit_test(counts),
        cmocka_unit_test(images),
    };
    int result = kvant_run_tests(tests, argc, argv);
    free(out);
    free(err);
    return result;
}
