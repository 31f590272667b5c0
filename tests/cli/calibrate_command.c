/* kvant calibrate: the real command on the shipped samples, with pipelines that the test writes. */
#include "support/data.h"
#include "support/session.h"
#include "support/test.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SAMPLE       KVANT_TEST_SOURCE_DIR "/samples/sample.safetensors"
#define SAMPLE_PRE   KVANT_TEST_SOURCE_DIR "/samples/sample_pre.safetensors"
#define SAMPLE_PROSE KVANT_TEST_SOURCE_DIR "/samples/sample_prose.safetensors"

static const char centred[] = "[pipeline]\nname = centred\nsinks = 4\nkey_center = artifact\nartifact = "
                              "c.safetensors\n[layers]\nkey = uniform\nvalue = uniform\n";

static const char *write_text(const char *name, const char *text) {
    kvant_test_write(path(name), text, strlen(text));
    return path(name);
}

static int exists(const char *file) {
    struct stat status;
    return stat(file, &status) == 0;
}

static void learns_and_is_used(void **state) {
    (void)state;
    const char *pipeline = write_text("centred.ini", centred);
    refused(KVANT("eval", pipeline, SAMPLE), "c.safetensors"); /* not learned yet */
    must(KVANT("calibrate", pipeline, SAMPLE_PROSE, "-o", path("c.safetensors")));
    assert_string_equal(err, ""); /* no progress but on a terminal, and nothing to advise */
    kvant_assert_contains(out, "c.safetensors: 4 tensors, ");
    kvant_assert_contains(out, "learned from 380 tokens of 1 text\n");
    kvant_assert_contains(out, "key means of 4 layers");
    must(KVANT("eval", pipeline, SAMPLE));
    must(KVANT("resolve", pipeline, SAMPLE));
    kvant_assert_contains(out, "(centred)");
    must(KVANT("encode", pipeline, SAMPLE, "-o", path("r.kvant")));
    must(KVANT("decode", path("r.kvant"), "-o", path("back.safetensors")));
}

static void same_bytes_every_time(void **state) {
    (void)state;
    const char *pipeline = write_text("centred.ini", centred);
    must(KVANT("calibrate", pipeline, SAMPLE_PROSE, SAMPLE, "--output", path("1.safetensors")));
    must(KVANT("calibrate", "-o", path("2.safetensors"), pipeline, SAMPLE_PROSE, SAMPLE));
    must(KVANT("calibrate", pipeline, SAMPLE_PROSE, "-o", path("3.safetensors")));
    kvant_test_bytes a = kvant_test_read(path("1.safetensors")), b = kvant_test_read(path("2.safetensors")),
                     c = kvant_test_read(path("3.safetensors"));
    assert_int_equal(a.size, b.size);
    kvant_assert_bytes(a.bytes, b.bytes, a.size);
    assert_true(a.size != c.size || memcmp(a.bytes, c.bytes, c.size) != 0);
    free(a.bytes);
    free(b.bytes);
    free(c.bytes);
}

static double number(const json_t *object, const char *key) {
    assert_true(json_is_number(json_object_get(object, key)));
    return json_number_value(json_object_get(object, key));
}

static void reports_json(void **state) {
    (void)state;
    must(KVANT("calibrate", write_text("centred.ini", centred), SAMPLE_PROSE, SAMPLE, "-o",
               path("j.safetensors"), "--json"));
    json_t *root = json_loads(out, 0, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "file")), path("j.safetensors"));
    assert_string_equal(json_string_value(json_object_get(root, "pipeline")), "centred");
    assert_int_equal(number(root, "layers"), 4);
    assert_int_equal(number(root, "tokens"), 2 * 380);
    assert_int_equal(number(root, "tensors"), 4);
    assert_int_equal(number(root, "centered_layers"), 4);
    struct stat file;
    assert_int_equal(stat(path("j.safetensors"), &file), 0);
    assert_int_equal(number(root, "bytes"), file.st_size);
    const json_t *texts = json_object_get(root, "texts");
    assert_int_equal(json_array_size(texts), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(texts, 1), "file")), SAMPLE);
    assert_int_equal(number(json_array_get(texts, 1), "tokens"), 384);
    assert_int_equal(strlen(json_string_value(json_object_get(json_array_get(texts, 1), "digest"))), 64);
    assert_int_equal(json_array_size(json_object_get(root, "codecs")), 0);
    /* The digest is the one that the pipeline then shows. */
    char *digest = strdup(json_string_value(json_object_get(root, "digest")));
    json_decref(root);
    must(KVANT("calibrate", write_text("centred.ini", centred), SAMPLE_PROSE, SAMPLE, "-o",
               path("c.safetensors")));
    must(KVANT("resolve", path("centred.ini"), SAMPLE, "--json"));
    root = json_loads(out, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(root, "artifact")), digest);
    free(digest);
    json_decref(root);
}

static void advises_where_the_pipeline_names_another(void **state) {
    (void)state;
    const char *pipeline = write_text("centred.ini", centred);
    (void)remove(path("c.safetensors"));
    must(KVANT("calibrate", pipeline, SAMPLE_PROSE, "-o", path("elsewhere.safetensors")));
    kvant_assert_contains(err, "the pipeline names the artifact ");
    kvant_assert_contains(err, "c.safetensors");
    assert_false(exists(path("c.safetensors")));
}

/* Nothing is written, and what was there stays, where something is refused. */
static void refusals_write_nothing(void **state) {
    (void)state;
    const char *pipeline = write_text("centred.ini", centred);
    const char *output = write_text("old.safetensors", "what was there");
    unsigned before = kvant_test_file_count(kvant_test_directory());
    refused(KVANT("calibrate", "kivi", SAMPLE_PROSE, "-o", output),
            "pipeline kivi: there is nothing to learn");
    refused(KVANT("calibrate", pipeline, SAMPLE_PROSE, SAMPLE_PRE, "-o", output), "keys \"before RoPE\"");
    refused(KVANT("calibrate", pipeline, "/nowhere/d.safetensors", "-o", output), "/nowhere/d.safetensors");
    refused(KVANT("calibrate", "/nowhere/p.ini", SAMPLE_PROSE, "-o", output), "/nowhere/p.ini");
    refused(KVANT("calibrate", pipeline, pipeline, "-o", output), "safetensors");
    refused(KVANT("calibrate", pipeline, SAMPLE_PROSE, "-o", "/nowhere/a.safetensors"),
            "/nowhere/a.safetensors");
    assert_int_equal(kvant_test_file_count(kvant_test_directory()), before);
    kvant_test_bytes left = kvant_test_read(output);
    assert_int_equal(left.size, strlen("what was there"));
    free(left.bytes);
    kvant_test_bytes dump = kvant_test_read(SAMPLE_PROSE);
    kvant_test_write(path("dump.safetensors"), dump.bytes, dump.size);
    refused(KVANT("calibrate", pipeline, path("dump.safetensors"), "-o", path("dump.safetensors")),
            "would replace the input");
    refused(KVANT("calibrate", pipeline, path("dump.safetensors"), "-o", pipeline),
            "would replace the input");
    free(dump.bytes);
}

static void wrong_usage(void **state) {
    (void)state;
    const char *pipeline = write_text("centred.ini", centred);
    assert_int_equal(KVANT("calibrate", pipeline, SAMPLE_PROSE), 2);
    kvant_assert_contains(err, "-o ARTIFACT is missing");
    assert_int_equal(KVANT("calibrate", pipeline, "-o", path("x.safetensors")), 2);
    kvant_assert_contains(err, "it takes a pipeline and one dump or more");
    assert_int_equal(KVANT("calibrate", pipeline, SAMPLE_PROSE, "-o"), 2);
    kvant_assert_contains(err, "takes a value");
    assert_int_equal(KVANT("calibrate", pipeline, SAMPLE_PROSE, "--layers", "-o", path("x.safetensors")), 2);
    kvant_assert_contains(err, "there is no option --layers");
    must(KVANT("help", "calibrate"));
    kvant_assert_contains(out, "usage: kvant calibrate PIPELINE DUMP... -o ARTIFACT");
    assert_false(exists(path("x.safetensors")));
}

/* Keys from before RoPE are turned to the codec's side before their mean is taken. */
static void means_do_not_depend_on_the_side_of_rope(void **state) {
    (void)state;
    const char *pipeline = write_text("centred.ini", centred);
    must(KVANT("calibrate", pipeline, SAMPLE, "-o", path("post.safetensors")));
    must(KVANT("calibrate", pipeline, SAMPLE_PRE, "-o", path("c.safetensors")));
    must(KVANT("eval", pipeline, SAMPLE, "--json"));
    json_t *pre = json_loads(out, 0, NULL);
    must(KVANT("eval", pipeline, SAMPLE_PRE)); /* and the artifact serves both */
    assert_int_equal(rename(path("post.safetensors"), path("c.safetensors")), 0);
    must(KVANT("eval", pipeline, SAMPLE, "--json"));
    json_t *post = json_loads(out, 0, NULL);
    const char *const part = "attention_key_only";
    double a = number(json_object_get(json_array_get(json_object_get(pre, "results"), 0), part), "median");
    double b = number(json_object_get(json_array_get(json_object_get(post, "results"), 0), part), "median");
    kvant_assert_within(a, b, 0.02);
    json_decref(pre);
    json_decref(post);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(learns_and_is_used),
                                              cmocka_unit_test(same_bytes_every_time),
                                              cmocka_unit_test(reports_json),
                                              cmocka_unit_test(advises_where_the_pipeline_names_another),
                                              cmocka_unit_test(refusals_write_nothing),
                                              cmocka_unit_test(wrong_usage),
                                              cmocka_unit_test(means_do_not_depend_on_the_side_of_rope)};
    return kvant_run_tests(tests, argc, argv);
}
