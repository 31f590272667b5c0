/* nvfp4 on the shipped samples, through `kvant eval` and `kvant calibrate`: the reference errors of the
 * method, computed apart from kvant in NumPy with one global scale for each layer and side; the presets'
 * errors; and the shipped artifact, which learning again must give byte for byte. */
#include "support/data.h"
#include "support/run_command.h"
#include "support/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, DUMPS = 2 };

#define SAMPLES   KVANT_TEST_SOURCE_DIR "/samples/"
#define PIPELINES KVANT_TEST_SOURCE_DIR "/pipelines/"

static json_t *eval(const char *const *pipelines, size_t count) {
    const char *argv[16] = {KVANT_TEST_COMMAND, "eval", "--json", "--layers"};
    char *out, *err;
    size_t argc = 4;
    for (size_t i = 0; i < count; i++) argv[argc++] = pipelines[i];
    argv[argc++] = SAMPLES "sample.safetensors";
    argv[argc++] = SAMPLES "sample_prose.safetensors";
    if (kvant_run(argv, &out, &err) != 0) fail_msg("%s", err);
    json_t *root = json_loads(out, 0, NULL);
    assert_non_null(root);
    free(out);
    free(err);
    return root;
}

static const json_t *result_of(const json_t *root, size_t index) {
    return json_array_get(json_object_get(root, "results"), index);
}

static double at(const json_t *object, const char *part, const char *field) {
    const json_t *number = json_object_get(json_object_get(object, part), field);
    assert_true(json_is_real(number));
    return json_real_value(number);
}

/* A block of all 384 tokens: its own global scale is the layer's. NMSE within 1 %, attention errors within
 * 3 %, beside the rounding of the printed reference. */
static void reference_errors(void **state) {
    static const double key_nmse[DUMPS][LAYERS] = {{8.43e-03, 8.68e-03, 8.45e-03, 8.23e-03},
                                                   {8.69e-03, 8.59e-03, 8.46e-03, 8.25e-03}};
    static const double value_nmse[DUMPS][LAYERS] = {{8.06e-03, 8.58e-03, 8.76e-03, 8.91e-03},
                                                     {8.50e-03, 8.49e-03, 8.81e-03, 8.81e-03}};
    static const double attention[DUMPS][LAYERS] = {{0.042, 0.241, 0.235, 0.129},
                                                    {0.048, 0.199, 0.201, 0.138}};
    static const char text[] =
        "[pipeline]\nblock_tokens = 384\nsinks = 0\nrecent = 0\n[layers]\nkey = nvfp4\n"
        "value = nvfp4\n";
    char file[256];
    const char *const pipelines[] = {file};
    (void)state;
    (void)snprintf(file, sizeof file, "%s/nvfp4-384.ini", kvant_test_directory());
    kvant_test_write(file, text, sizeof text - 1);
    json_t *root = eval(pipelines, 1);
    for (size_t dump = 0; dump < DUMPS; dump++) {
        const json_t *layers = json_object_get(result_of(root, dump), "layers");
        assert_int_equal(json_array_size(layers), LAYERS);
        for (size_t l = 0; l < LAYERS; l++) {
            const json_t *layer = json_array_get(layers, l);
            kvant_assert_within(at(layer, "key", "nmse"), key_nmse[dump][l], 0.01 + 0.001);
            kvant_assert_within(at(layer, "value", "nmse"), value_nmse[dump][l], 0.01 + 0.001);
            kvant_assert_close(at(layer, "attention", "both"), attention[dump][l],
                               0.03 * attention[dump][l] + 0.0005);
        }
    }
    json_decref(root);
}

/* Errors of the shipped pipelines on `sample`, both ways: a change of the arithmetic must show. */
static void presets(void **state) {
    static const struct {
        const char *file;
        double bits, key_nmse, value_nmse;
    } all[] = {{PIPELINES "nvfp4.ini", 4.5417, 8.42e-3, 8.70e-3},
               {PIPELINES "nvfp4-46.ini", 4.5417, 7.62e-3, 7.52e-3},
               {PIPELINES "nvfp4-46-centered.ini", 4.5417, 3.00e-3, 7.51e-3},
               {PIPELINES "mxfp4.ini", 4.25, 1.90e-2, 1.44e-2}};
    enum { COUNT = sizeof all / sizeof all[0] };
    const char *files[COUNT];
    (void)state;
    for (size_t i = 0; i < COUNT; i++) files[i] = all[i].file;
    json_t *root = eval(files, COUNT);
    for (size_t i = 0; i < COUNT; i++) {
        const json_t *result = result_of(root, i);
        double bits = json_real_value(json_object_get(result, "all_in_bits"));
        kvant_assert_within(bits, all[i].bits, 1e-4);
        kvant_assert_within(at(result, "key_nmse", "median"), all[i].key_nmse, 0.01);
        kvant_assert_within(at(result, "value_nmse", "median"), all[i].value_nmse, 0.01);
    }
    json_decref(root);
}

/* The artifact of nvfp4-46-centered, learned again; and scales that are learned serve another text. */
static void artifacts(void **state) {
    static const char text[] =
        "[pipeline]\nblock_tokens = 64\nsinks = 4\nrecent = 0\nartifact = learned.safetensors\n"
        "[codec c]\nplugin = nvfp4\nglobal_scale = artifact\namax_divisor = 448\n[layers]\n"
        "key = c\nvalue = c\n";
    char file[256], learned[256], *out, *err;
    const char *const shipped = PIPELINES "artifacts/nvfp4-46-centered.safetensors";
    (void)state;
    (void)snprintf(learned, sizeof learned, "%s/learned.safetensors", kvant_test_directory());
    const char *const again[] = {KVANT_TEST_COMMAND,
                                 "calibrate",
                                 PIPELINES "nvfp4-46-centered.ini",
                                 SAMPLES "sample_prose.safetensors",
                                 "-o",
                                 learned,
                                 NULL};
    if (kvant_run(again, &out, &err) != 0) fail_msg("%s", err);
    free(out);
    free(err);
    kvant_test_bytes got = kvant_test_read(learned), want = kvant_test_read(shipped);
    assert_int_equal(got.size, want.size);
    kvant_assert_bytes(got.bytes, want.bytes, want.size);
    free(got.bytes);
    free(want.bytes);

    (void)snprintf(file, sizeof file, "%s/static.ini", kvant_test_directory());
    kvant_test_write(file, text, sizeof text - 1);
    const char *const calibrate[] = {
        KVANT_TEST_COMMAND, "calibrate", file, SAMPLES "sample_prose.safetensors", "-o", learned, NULL};
    if (kvant_run(calibrate, &out, &err) != 0) fail_msg("%s", err);
    free(out);
    free(err);
    const char *const pipelines[] = {file};
    json_t *root = eval(pipelines, 1);
    const json_t *held_out = result_of(root, 0);
    kvant_assert_within(json_real_value(json_object_get(held_out, "all_in_bits")), 4.5, 1e-9);
    kvant_assert_within(at(held_out, "key_nmse", "median"), 8.4e-3, 0.03);
    kvant_assert_within(at(held_out, "value_nmse", "median"), 8.65e-3, 0.03);
    json_decref(root);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(reference_errors), cmocka_unit_test(presets),
                                              cmocka_unit_test(artifacts)};
    return kvant_run_tests(tests, argc, argv);
}
