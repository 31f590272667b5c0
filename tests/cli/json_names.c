/* docs/json.md promises field names: whatever `--json` prints is named there. */
#include "support/run_command.h"
#include "support/scratch.h"
#include "support/test.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLE     KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors"
#define SAMPLE_PRE KVANT_TEST_SOURCE_DIR "/samples/sample_pre.safetensors"

static char *document; /* docs/json.md */

/* The part of the document under "## `kvant COMMAND". */
static char *section_of(const char *command) {
    char heading[64];
    (void)snprintf(heading, sizeof heading, "\n## `kvant %s ", command);
    const char *start = strstr(document, heading);
    if (start == NULL) fail_msg("docs/json.md has no section on kvant %s", command);
    start += strlen(heading);
    const char *end = strstr(start, "\n## ");
    return strndup(start, end != NULL ? (size_t)(end - start) : strlen(start));
}

/* `name` or "name" */
static bool is_named(const char *section, const char *name) {
    char marked[128];
    (void)snprintf(marked, sizeof marked, "`%s`", name);
    if (strstr(section, marked) != NULL) return true;
    (void)snprintf(marked, sizeof marked, "\"%s\"", name);
    return strstr(section, marked) != NULL;
}

/* Objects whose keys are names of parameters, metadata, sides or checks, and not of fields. */
static bool has_free_keys(const char *name) {
    static const char *const names[] = {"parameters", "metadata", "bits", "checks", "misses"};
    for (int i = 0; i < 5; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

static int check_names(const char *section, json_t *value, bool free_keys) {
    const char *key;
    size_t index;
    json_t *child;
    int fields = 0;
    json_array_foreach(value, index, child) fields += check_names(section, child, false);
    json_object_foreach(value, key, child) {
        if (!free_keys && !is_named(section, key))
            fail_msg("docs/json.md does not name the field \"%s\"", key);
        fields += 1 + check_names(section, child, has_free_keys(key) && json_is_object(child));
    }
    return fields;
}

static void check_command(const char *const argv[]) {
    char *out, *err, *section = section_of(argv[1]);
    json_error_t error;
    int status = kvant_run(argv, &out, &err);
    if (status != 0 && strcmp(argv[1], "check") != 0) fail_msg("kvant %s: %d: %s", argv[1], status, err);
    json_t *root = json_loads(out, 0, &error);
    if (root == NULL) fail_msg("kvant %s: %s in: %.300s", argv[1], error.text, out);
    assert_true(check_names(section, root, false) > 8);
    json_decref(root);
    free(section);
    free(out);
    free(err);
}

#define CHECK(...) check_command((const char *const[]){KVANT_TEST_COMMAND, __VA_ARGS__, "--json", NULL})

static void every_field_is_documented(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *records = kvant_scratch_path(folder, "sample.kvant");
    char *artifact = kvant_scratch_path(folder, "a.safetensors"),
         *store = kvant_scratch_path(folder, "store");
    CHECK("eval", "kivi", "uniform", SAMPLE, SAMPLE_PRE);
    CHECK("list");
    CHECK("info", "kivi", "--geometry",
          "layers=2,kv_heads=2,q_heads=2,head_dim=64,dtype=f16,rope=neox:10000");
    CHECK("info", "uniform");
    CHECK("resolve", "kivi", SAMPLE);
    CHECK("encode", "kivi", SAMPLE, "-o", records);
    CHECK("inspect", records);
    CHECK("inspect", records, "--layer", "1", "--side", "value");
    CHECK("inspect", SAMPLE);
    CHECK("calibrate", KVANT_TEST_SOURCE_DIR "/pipelines/int4-g32-centered.ini", SAMPLE, "-o", artifact);
    CHECK("replay", KVANT_TEST_SOURCE_DIR "/samples/agent.jsonl", "raw", SAMPLE, "--bytes", "8M", "--store",
          store);
    CHECK("check", "raw", "--seed", "1", "--fraction", "0.001");
    free(records);
    free(artifact);
    free(store);
    kvant_scratch_remove(folder);
}

/* And what is documented of eval's results is there. */
static void documented_fields_of_eval_exist(void **state) {
    (void)state;
    static const char *const fields[] = {"pipeline",
                                         "source",
                                         "dump",
                                         "block_tokens",
                                         "sinks",
                                         "recent",
                                         "tokens",
                                         "coded_tokens",
                                         "raw_fraction",
                                         "coded_under_90_percent",
                                         "payload_bits",
                                         "all_in_bits",
                                         "bytes",
                                         "bytes_per_token",
                                         "key_size",
                                         "value_size",
                                         "key_nmse",
                                         "value_nmse",
                                         "key_cosine",
                                         "value_cosine",
                                         "attention_key_only",
                                         "attention_value_only",
                                         "attention_both",
                                         "attention_recent",
                                         "attention_kl",
                                         "worst_head",
                                         "encode_gb_per_second",
                                         "decode_gb_per_second",
                                         "device_attention_rms",
                                         "device_encode_gb_per_second",
                                         "device_decode_gb_per_second",
                                         "layers"};
    char *out, *section = section_of("eval");
    assert_int_equal(
        kvant_run((const char *const[]){KVANT_TEST_COMMAND, "eval", "kivi", SAMPLE, "--json", NULL}, &out,
                  NULL),
        0);
    json_t *root = json_loads(out, 0, NULL);
    const json_t *result = json_array_get(json_object_get(root, "results"), 0);
    assert_int_equal(json_object_size(result), sizeof fields / sizeof fields[0]);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        assert_non_null(json_object_get(result, fields[i]));
        assert_true(is_named(section, fields[i]));
    }
    json_decref(root);
    free(section);
    free(out);
}

static char *read_document(void) {
    FILE *stream = fopen(KVANT_TEST_SOURCE_DIR "/docs/json.md", "rb");
    enum { MOST = 1 << 20 };
    char *text = calloc(1, MOST + 1);
    if (stream == NULL || text == NULL || fread(text, 1, MOST, stream) == 0) exit(1);
    (void)fclose(stream);
    return text;
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_is_documented),
        cmocka_unit_test(documented_fields_of_eval_exist),
    };
    document = read_document();
    int failures = kvant_run_tests(tests, argc, argv);
    free(document);
    return failures;
}
