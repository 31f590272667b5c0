/* `kvant inspect` as its users meet it. */
#include "data/dump.h"
#include "support/session.h"
#include "support/data.h"
#include "support/write_dump.h"
#include "support/test.h"

#include <kvant/kit/view.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors"

static json_t *parse(void) {
    json_error_t error;
    json_t *root = json_loads(out, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) fail_msg("not JSON: %s in %s", error.text, out);
    return root;
}

static json_int_t number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) fail_msg("no number \"%s\"", key);
    return json_integer_value(value);
}

static const char *text(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value)) fail_msg("no string \"%s\"", key);
    return json_string_value(value);
}

static const char *records(void) {
    static const char pipeline[] = "[pipeline]\nname = p\nblock_tokens = 64\nsinks = 2\nrecent = 10\n"
                                   "[codec k4]\nplugin = kivi\nbits = 4\ngroup = 32\n"
                                   "[layers]\nkey = k4\nvalue = raw\n";
    kvant_test_write(path("p.ini"), pipeline, sizeof pipeline - 1);
    must(KVANT("encode", path("p.ini"), SAMPLE, "-o", path("r.kvant")));
    return path("r.kvant");
}

static void shows_the_file(void **state) {
    (void)state;
    const char *file = records();
    must(KVANT("inspect", file));
    kvant_assert_contains(out, "SmolLM2-135M-Instruct");
    kvant_assert_contains(out, "5 blocks of 64, 2 sinks raw, a tail of 64");
    must(KVANT("inspect", file, "--json"));
    json_t *root = parse();
    assert_string_equal(text(root, "format"), "kvant-sequence/1");
    assert_int_equal(strlen(text(root, "fingerprint")), 64);
    assert_int_equal(number(root, "tokens"), 384);
    assert_int_equal(number(root, "blocks"), 5);
    assert_int_equal(number(root, "block_tokens"), 64);
    assert_int_equal(number(root, "sinks"), 2);
    assert_int_equal(number(root, "tail_tokens"), 64);
    const json_t *rows = json_object_get(root, "rows");
    assert_int_equal(json_array_size(rows), 8);
    for (size_t i = 0; i < 8; i++) {
        const json_t *row = json_array_get(rows, i);
        assert_int_equal(number(row, "layer"), i / 2);
        assert_string_equal(text(row, "side"), i % 2 == 0 ? "key" : "value");
        assert_int_equal(number(row, "extents"), 5);
        assert_int_equal(number(row, "raw_bytes"), (64 + 2) * 3 * 64 * 2);
        assert_int_equal(number(row, "extent_bytes"), 5 * number(row, "extent_bytes_min"));
        if (i % 2 == 1) assert_int_equal(number(row, "extent_bytes_min"), 64 * 3 * 64 * 2);
        if (i % 2 == 0) assert_true(number(row, "extent_bytes_min") < 64 * 3 * 64 * 2 / 3);
    }
    json_decref(root);
}

/* Codes, scales and minima give the decoded rows; those of the raw codec are the rows. */
static void explains_an_extent(void **state) {
    (void)state;
    const char *file = records();
    must(KVANT("decode", file, "-o", path("d.safetensors")));
    must(
        KVANT("inspect", file, "--layer", "2", "--side", "key", "--block", "3", "-o", path("e.safetensors")));
    kvant_assert_contains(out, "codec kivi bits=4 group=32");
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_safetensors *st = NULL;
    kvant_dump *dump = NULL;
    kvant_view view;
    assert_int_equal(kvant_safetensors_open(path("e.safetensors"), &st, &diag), KVANT_OK);
    assert_int_equal(kvant_dump_open(path("d.safetensors"), &dump, &diag), KVANT_OK);
    assert_true(kvant_dump_view(dump, 2, KVANT_SIDE_KEY, &view));
    const kvant_array *codes = kvant_safetensors_find(st, "codes"),
                      *scale = kvant_safetensors_find(st, "scale");
    const kvant_array *min = kvant_safetensors_find(st, "min");
    assert_true(codes != NULL && scale != NULL && min != NULL);
    assert_int_equal(codes->bytes, 64 * 3 * 64);
    assert_int_equal(scale->bytes, 2 * 3 * 64 * 2);
    assert_string_equal(kvant_safetensors_metadata(st, "block"), "3");
    for (uint32_t t = 0; t < 64; t++)
        for (uint32_t h = 0; h < 3; h++) {
            float row[64];
            kvant_load_row(&view, 192 + t, h, row);
            for (uint32_t c = 0; c < 64; c++) {
                size_t group = ((size_t)(t / 32) * 3 + h) * 64 + c;
                float s = kvant_load_element((const char *)scale->data + 2 * group, KVANT_DTYPE_F16);
                float m = kvant_load_element((const char *)min->data + 2 * group, KVANT_DTYPE_F16);
                float code = ((const unsigned char *)codes->data)[((size_t)t * 3 + h) * 64 + c];
                kvant_assert_close(row[c], kvant_round_f16(code * s + m),
                                   0.002 * (1 + (double)(m < 0 ? -m : m)));
            }
        }
    kvant_safetensors_close(st);
    kvant_dump_close(dump);

    must(KVANT("inspect", file, "--side", "value", "--json"));
    json_t *root = parse();
    assert_int_equal(number(root, "layer"), 0);
    assert_int_equal(number(root, "block"), 0);
    assert_int_equal(number(root, "bytes"), 64 * 3 * 64 * 2);
    assert_string_equal(text(root, "codec"), "raw");
    assert_int_equal(json_array_size(json_object_get(root, "arrays")), 1);
    json_decref(root);
}

static void shows_other_files(void **state) {
    (void)state;
    must(KVANT("inspect", SAMPLE));
    kvant_assert_contains(out, "kvant-kv/1");
    kvant_assert_contains(out, "layers.3.query");
    must(KVANT("--json", "inspect", SAMPLE));
    json_t *root = parse();
    assert_int_equal(json_array_size(json_object_get(root, "tensors")), 15);
    assert_string_equal(text(json_object_get(root, "metadata"), "rope_style"), "neox");
    json_decref(root);
    const float data[2] = {1, 2};
    const kvant_array array = {.name = "layers.0.key.t",
                               .data = data,
                               .shape = {2},
                               .bytes = 8,
                               .dtype = KVANT_DTYPE_F32,
                               .rank = 1};
    kvant_metadata format = {"format", "kvant-artifact/1"};
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(kvant_safetensors_write(path("a.safetensors"), &array, 1, &format, 1, &diag), KVANT_OK);
    must(KVANT("--json", "inspect", path("a.safetensors")));
    root = parse();
    assert_int_equal(strlen(text(root, "digest")), 64);
    json_decref(root);
    /* A dump or an artifact that breaks its rules says which. */
    format.value = "kvant-kv/1";
    assert_int_equal(kvant_safetensors_write(path("b.safetensors"), &array, 1, &format, 1, &diag), KVANT_OK);
    refused(KVANT("inspect", path("b.safetensors")), "no tensor is called");
}

static void refuses_bad_input(void **state) {
    (void)state;
    const char *file = records();
    refused(KVANT("inspect", file, "--layer", "4"), "no layer 4; there are 4");
    refused(KVANT("inspect", file, "--block", "5"), "no block 5; there are 5");
    refused(KVANT("inspect", SAMPLE, "--block", "0"), "not a file of records");
    refused(KVANT("inspect", path("none")), "none");
    refused(KVANT("inspect", KVANT_TEST_COMMAND), "not a safetensors file");
    kvant_test_dump d = kvant_test_dump_default();
    d.has_values = false;
    kvant_test_dump_write(&d, path("k.safetensors"));
    must(KVANT("encode", "raw", path("k.safetensors"), "-o", path("k.kvant")));
    refused(KVANT("inspect", path("k.kvant"), "--side", "value"), "hold no values");
    kvant_test_bytes all = kvant_test_read(file);
    all.bytes[all.size - 100] ^= 4;
    kvant_test_write(path("bad.kvant"), all.bytes, all.size);
    free(all.bytes);
    refused(KVANT("inspect", path("bad.kvant")), "checksum");
    assert_int_equal(KVANT("inspect"), 2);
    assert_int_equal(KVANT("inspect", file, file), 2);
    assert_int_equal(KVANT("inspect", file, "--layer", "-1"), 2);
    assert_int_equal(KVANT("inspect", file, "--layer", "x"), 2);
    assert_int_equal(KVANT("inspect", file, "--block", "99999999999"), 2);
    assert_int_equal(KVANT("inspect", file, "--side", "query"), 2);
    assert_int_equal(KVANT("inspect", file, "--what"), 2);
    /* Without the plugin the head can still be read, and an extent cannot. */
    assert_int_equal(run((const char *const[]){"env", "KVANT_PLUGIN_PATH=/nonexistent-plugins",
                                               KVANT_TEST_COMMAND, "inspect", file, NULL}),
                     0);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(shows_the_file), cmocka_unit_test(explains_an_extent),
        cmocka_unit_test(shows_other_files), cmocka_unit_test(refuses_bad_input)};
    return kvant_run_tests(tests, argc, argv);
}
