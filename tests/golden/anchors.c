/* `kvant eval` on the shipped samples against reference numbers that were computed apart from kvant, in
 * NumPy, from the definitions of the codecs: each number of each of the four layers, through the real
 * command. NMSE within 1 %, attention errors (both sides) within 3 %, beside the rounding of the printed
 * reference. */
#include "support/run_command.h"
#include "support/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 4, DUMPS = 2 };

typedef struct anchor {
    const char *name;
    const char *codec; /* parameters */
    double key_nmse[DUMPS][LAYERS];
    double value_nmse[DUMPS][LAYERS];
    double attention[DUMPS][LAYERS];
} anchor;

static const char *const dumps[DUMPS] = {"sample", "sample_prose"};

#define INTEGER(format, granularity, group)                                                                  \
    "format = " format "\ngranularity = " granularity "\ngroup = " group                                     \
    "\nsymmetry = asymmetric\nscale = f16\n"

static const anchor anchors[] = {
    {"int8-per-token",
     "format = int8\ngranularity = token\nscale = f16\n",
     {{7.09e-05, 1.22e-04, 1.67e-04, 1.39e-04}, {7.47e-05, 1.20e-04, 1.50e-04, 1.29e-04}},
     {{1.49e-04, 6.50e-05, 5.28e-05, 3.67e-05}, {1.50e-04, 6.70e-05, 4.70e-05, 4.29e-05}},
     {{0.008, 0.028, 0.035, 0.014}, {0.006, 0.022, 0.024, 0.011}}},
    {"e4m3-scale-1",
     "format = e4m3\ngranularity = tensor\nscaling = static\nstatic_scale = 1\n",
     {{7.19e-04, 6.35e-04, 6.22e-04, 6.99e-04}, {6.93e-04, 6.50e-04, 6.15e-04, 7.31e-04}},
     {{8.07e-04, 6.98e-04, 7.02e-04, 6.94e-04}, {7.70e-04, 7.09e-04, 7.03e-04, 7.03e-04}},
     {{0.012, 0.081, 0.075, 0.038}, {0.016, 0.057, 0.054, 0.045}}},
    {"int4-per-token-g32",
     INTEGER("int4", "group_channels", "32"),
     {{8.22e-03, 9.88e-03, 1.16e-02, 9.90e-03}, {8.18e-03, 9.73e-03, 1.12e-02, 9.56e-03}},
     {{1.07e-02, 7.79e-03, 7.03e-03, 6.19e-03}, {1.11e-02, 7.75e-03, 6.90e-03, 6.51e-03}},
     {{0.050, 0.210, 0.242, 0.125}, {0.066, 0.180, 0.198, 0.096}}},
    {"int4-per-token-g64",
     INTEGER("int4", "group_channels", "64"),
     {{1.22e-02, 1.75e-02, 2.08e-02, 1.86e-02}, {1.24e-02, 1.70e-02, 1.97e-02, 1.79e-02}},
     {{2.11e-02, 1.18e-02, 1.03e-02, 8.32e-03}, {2.06e-02, 1.18e-02, 9.60e-03, 8.99e-03}},
     {{0.079, 0.291, 0.371, 0.168}, {0.093, 0.204, 0.290, 0.145}}},
    {"int4-per-channel-g32",
     INTEGER("int4", "group_tokens", "32"),
     {{2.28e-03, 1.45e-03, 1.06e-03, 1.35e-03}, {2.36e-03, 1.52e-03, 1.08e-03, 1.32e-03}},
     {{3.53e-03, 5.06e-03, 4.44e-03, 5.23e-03}, {4.06e-03, 5.36e-03, 4.58e-03, 4.73e-03}},
     {{0.023, 0.106, 0.134, 0.083}, {0.020, 0.099, 0.108, 0.076}}},
    {"int2-per-token-g32",
     INTEGER("int2", "group_channels", "32"),
     {{2.08e-01, 2.60e-01, 3.15e-01, 2.62e-01}, {2.08e-01, 2.49e-01, 2.71e-01, 2.53e-01}},
     {{2.98e-01, 1.93e-01, 1.78e-01, 1.58e-01}, {3.16e-01, 1.96e-01, 1.75e-01, 1.64e-01}},
     {{0.304, 1.106, 1.190, 0.659}, {0.334, 0.968, 1.130, 0.683}}},
    {"int2-per-token-g64",
     INTEGER("int2", "group_channels", "64"),
     {{3.04e-01, 4.30e-01, 5.47e-01, 4.46e-01}, {3.05e-01, 4.20e-01, 4.67e-01, 4.20e-01}},
     {{5.76e-01, 2.90e-01, 2.57e-01, 2.07e-01}, {5.79e-01, 2.95e-01, 2.43e-01, 2.27e-01}},
     {{0.503, 1.648, 1.568, 0.979}, {0.533, 1.691, 1.428, 0.859}}},
    {"int2-per-channel-g32",
     INTEGER("int2", "group_tokens", "32"),
     {{5.72e-02, 3.73e-02, 2.77e-02, 3.44e-02}, {6.06e-02, 3.93e-02, 2.83e-02, 3.38e-02}},
     {{9.23e-02, 1.29e-01, 1.13e-01, 1.32e-01}, {1.07e-01, 1.35e-01, 1.16e-01, 1.20e-01}},
     {{0.102, 0.626, 0.631, 0.405}, {0.122, 0.655, 0.629, 0.383}}},
};
enum { ANCHORS = sizeof anchors / sizeof anchors[0] };

static void write_pipeline(const char *file, const anchor *a) {
    FILE *stream = fopen(file, "w");
    assert_non_null(stream);
    fprintf(stream,
            "[pipeline]\nname = %s\nblock_tokens = 64\nsinks = 0\nrecent = 0\n[codec c]\nplugin = uniform\n%s"
            "[layers]\nkey = c\nvalue = c\n",
            a->name, a->codec);
    assert_int_equal(fclose(stream), 0);
}

static double at(const json_t *layer, const char *part, const char *field) {
    const json_t *number = json_object_get(json_object_get(layer, part), field);
    assert_true(json_is_real(number));
    return json_real_value(number);
}

/* NMSE is printed with three digits, attention errors with three decimals. */
static void compare(const json_t *result, const anchor *a, int dump) {
    assert_string_equal(json_string_value(json_object_get(result, "pipeline")), a->name);
    assert_non_null(strstr(json_string_value(json_object_get(result, "dump")), dumps[dump]));
    const json_t *layers = json_object_get(result, "layers");
    assert_int_equal(json_array_size(layers), LAYERS);
    for (size_t l = 0; l < LAYERS; l++) {
        const json_t *layer = json_array_get(layers, l);
        kvant_assert_within(at(layer, "key", "nmse"), a->key_nmse[dump][l], 0.01 + 0.005);
        kvant_assert_within(at(layer, "value", "nmse"), a->value_nmse[dump][l], 0.01 + 0.005);
        double want = a->attention[dump][l];
        kvant_assert_close(at(layer, "attention", "both"), want, 0.03 * want + 0.0005);
    }
}

static void samples_have_their_reference_errors(void **state) {
    (void)state;
    char folder[] = "/tmp/kvant-anchors-XXXXXX", files[ANCHORS][64];
    assert_non_null(mkdtemp(folder));
    const char *argv[ANCHORS + DUMPS + 4] = {KVANT_TEST_COMMAND, "eval", "--json"};
    int argc = 3;
    for (int i = 0; i < ANCHORS; i++) {
        (void)snprintf(files[i], sizeof files[i], "%s/%d.ini", folder, i);
        write_pipeline(files[i], &anchors[i]);
        argv[argc++] = files[i];
    }
    argv[argc++] = KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors";
    argv[argc++] = KVANT_TEST_SOURCE_DIR "/samples/sample_prose.safetensors";
    char *out, *err;
    int status = kvant_run(argv, &out, &err);
    for (int i = 0; i < ANCHORS; i++) (void)unlink(files[i]);
    (void)rmdir(folder);
    if (status != 0) fail_msg("exit status %d: %s", status, err);
    json_t *root = json_loads(out, 0, NULL);
    const json_t *results = json_object_get(root, "results");
    assert_int_equal(json_array_size(results), ANCHORS * DUMPS);
    for (int dump = 0; dump < DUMPS; dump++)
        for (int i = 0; i < ANCHORS; i++)
            compare(json_array_get(results, (size_t)(dump * ANCHORS + i)), &anchors[i], dump);
    json_decref(root);
    free(out);
    free(err);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(samples_have_their_reference_errors)};
    return kvant_run_tests(tests, argc, argv);
}
