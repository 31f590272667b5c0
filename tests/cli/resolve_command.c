/* kvant resolve: the real command, on pipelines that the test writes. */
#include "support/run_command.h"
#include "support/scratch.h"
#include "support/test.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GEOMETRY "layers=30,kv_heads=3,q_heads=9,head_dim=64,dtype=f16,rope=neox:100000"

static const char balanced[] = "; balanced.ini\n"
                               "[pipeline]\n"
                               "name         = balanced\n"
                               "block_tokens = 64\n"
                               "sinks        = 4\n"
                               "recent       = 64\n"
                               "[codec k2]                   ; a named codec\n"
                               "plugin = kivi\n"
                               "bits   = 2\n"
                               "group  = 32\n"
                               "[layers]\n"
                               "key   = k2\n"
                               "value = k2\n"
                               "[layers 0-1, -2, -1]\n"
                               "key   = raw\n"
                               "value = uniform\n";

/* Runs `kvant resolve FILE ARGUMENTS...` on a text; the caller frees out and err. */
static int resolve(const char *text, const char *const *arguments, char **out, char **err) {
    char *folder = kvant_scratch_make(), *file = kvant_scratch_path(folder, "p.ini");
    const char *argv[16] = {KVANT_TEST_COMMAND, "resolve", file};
    kvant_scratch_write(file, text, strlen(text));
    for (int i = 0; arguments[i] != NULL; i++) argv[3 + i] = arguments[i];
    int status = kvant_run(argv, out, err);
    free(file);
    kvant_scratch_remove(folder);
    return status;
}

static const char *string_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static double number_of(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static void layers_that_are_alike_are_told_once(void **state) {
    (void)state;
    char *out, *err;
    assert_int_equal(resolve(balanced, (const char *const[]){"--geometry", GEOMETRY, NULL}, &out, &err), 0);
    assert_string_equal(err, "");
    kvant_assert_contains(out, "pipeline     balanced\n");
    kvant_assert_contains(out, "64 tokens; sinks 4, recent 64");
    kvant_assert_contains(out, "\n0-1 ");
    kvant_assert_contains(out, "\n2-27 ");
    kvant_assert_contains(out, "\n28-29 ");
    kvant_assert_contains(out, "bits=2 group=32");
    kvant_assert_contains(out, "fingerprint  none: no model is named");
    assert_null(strstr(out, "\n3 "));
    free(out);
    free(err);
}

static void json_has_every_row(void **state) {
    (void)state;
    char *out, *err;
    assert_int_equal(resolve(balanced,
                             (const char *const[]){"--json", "--geometry", GEOMETRY, "--model", "m@1", NULL},
                             &out, &err),
                     0);
    json_t *document = json_loads(out, 0, NULL);
    assert_non_null(document);
    assert_string_equal(string_of(document, "pipeline"), "balanced");
    assert_string_equal(string_of(document, "model"), "m@1");
    assert_string_equal(string_of(document, "dtype"), "f16");
    assert_string_equal(string_of(document, "keys"), "after");
    assert_int_equal(strlen(string_of(document, "fingerprint")), 64);
    assert_true(json_is_null(json_object_get(document, "artifact")));
    const json_t *rows = json_object_get(document, "rows");
    assert_int_equal(json_array_size(rows), 60);
    double bytes = 0;
    for (size_t i = 0; i < 60; i++) {
        const json_t *row = json_array_get(rows, i);
        size_t layer = i / 2;
        bool outer = layer < 2 || layer >= 28;
        assert_int_equal(json_integer_value(json_object_get(row, "layer")), layer);
        assert_string_equal(string_of(row, "side"), i % 2 ? "value" : "key");
        assert_string_equal(string_of(row, "codec"), !outer ? "k2" : i % 2 ? "uniform" : "raw");
        assert_string_equal(string_of(row, "plugin"), !outer ? "kivi" : i % 2 ? "uniform" : "raw");
        if (!outer) {
            assert_string_equal(string_of(json_object_get(row, "parameters"), "bits"), "2");
            kvant_assert_close(number_of(row, "payload_bits"), 2, 0);
            kvant_assert_close(number_of(row, "all_in_bits"), 3, 0); /* two f16 a group of 32 */
            kvant_assert_close(number_of(row, "bytes_per_token"), 3 * 64 * 3.0 / 8, 0);
        } else if (i % 2 == 0) {
            kvant_assert_close(number_of(row, "all_in_bits"), 16, 0);
        }
        bytes += number_of(row, "bytes_per_token");
    }
    const json_t *total = json_object_get(document, "total");
    kvant_assert_close(number_of(total, "bytes_per_token"), bytes, 1e-9);
    kvant_assert_close(number_of(total, "raw_bytes_per_token"), 60 * 3 * 64 * 2, 0);
    kvant_assert_close(number_of(total, "all_in_bits"), 8 * bytes / (60 * 3 * 64), 1e-9);
    json_decref(document);
    free(out);
    free(err);
}

static void the_fingerprint_follows_the_model(void **state) {
    (void)state;
    char *out[3], *err;
    static const char *const models[] = {"a", "b", "a"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(resolve(balanced,
                                 (const char *const[]){"--geometry", GEOMETRY, "--model", models[i], NULL},
                                 &out[i], &err),
                         0);
        free(err);
    }
    assert_string_equal(out[0], out[2]);
    assert_string_not_equal(strstr(out[0], "fingerprint"), strstr(out[1], "fingerprint"));
    for (int i = 0; i < 3; i++) free(out[i]);
}

static void a_dump_gives_geometry_and_model(void **state) {
    (void)state;
    char *out, *err;
    static const char *const argv[] = {
        KVANT_TEST_COMMAND, "resolve", "kivi", KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors",
        "--json",           NULL};
    assert_int_equal(kvant_run(argv, &out, &err), 0);
    json_t *document = json_loads(out, 0, NULL);
    assert_non_null(document);
    assert_string_equal(string_of(document, "pipeline"), "kivi");
    kvant_assert_contains(string_of(document, "model"), "SmolLM2-135M");
    assert_int_equal(json_array_size(json_object_get(document, "rows")), 8);
    assert_true(json_is_string(json_object_get(document, "fingerprint")));
    json_decref(document);
    free(out);
    free(err);
}

static void bad_input_is_one_line_with_its_place(void **state) {
    (void)state;
    char *out, *err;
    assert_int_equal(resolve("[layers]\nkey = kivi\nvalu = kivi\n",
                             (const char *const[]){"--geometry", GEOMETRY, NULL}, &out, &err),
                     3);
    assert_string_equal(out, "");
    kvant_assert_contains(err, "/p.ini:3: [layers] has no key \"valu\"; did you mean \"value\"?\n");
    assert_ptr_equal(strchr(err, '\n'), err + strlen(err) - 1);
    free(out);
    free(err);
    assert_int_equal(resolve("[pipeline]\nblock_tokens = 48\n[layers]\nkey = kivi\nvalue = kivi\n",
                             (const char *const[]){"--geometry", GEOMETRY, NULL}, &out, &err),
                     3);
    kvant_assert_contains(err, "/p.ini:2: block_tokens = 48: ");
    kvant_assert_contains(err, "block_tokens = 32 is the least");
    free(out);
    free(err);
    assert_int_equal(resolve(balanced, (const char *const[]){"--geometry", "layers=3", NULL}, &out, &err), 3);
    free(out);
    free(err);
    assert_int_equal(resolve(balanced, (const char *const[]){"/nowhere.safetensors", NULL}, &out, &err), 3);
    kvant_assert_contains(err, "/nowhere.safetensors");
    free(out);
    free(err);
}

static void wrong_usage_is_told(void **state) {
    (void)state;
    static const char *const wrong[][6] = {{NULL},
                                           {"kivi", NULL},
                                           {"kivi", "a", "b", NULL},
                                           {"kivi", "a", "--geometry", GEOMETRY, NULL},
                                           {"kivi", "a", "--model", "m", NULL},
                                           {"kivi", "--geometry", NULL},
                                           {"kivi", "--geometri", GEOMETRY, NULL}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const char *argv[8] = {KVANT_TEST_COMMAND, "resolve"};
        char *out, *err;
        for (int k = 0; wrong[i][k] != NULL; k++) argv[2 + k] = wrong[i][k];
        assert_int_equal(kvant_run(argv, &out, &err), 2);
        kvant_assert_contains(err, "kvant help resolve");
        assert_string_equal(out, "");
        free(out);
        free(err);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_that_are_alike_are_told_once),
        cmocka_unit_test(json_has_every_row),
        cmocka_unit_test(the_fingerprint_follows_the_model),
        cmocka_unit_test(a_dump_gives_geometry_and_model),
        cmocka_unit_test(bad_input_is_one_line_with_its_place),
        cmocka_unit_test(wrong_usage_is_told),
    };
    return kvant_run_tests(tests, argc, argv);
}
