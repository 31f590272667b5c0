/* Calibration: what it does not learn from, and plugins that break kvant.calibrate/1. */
#include "support/data.h"
#include "support/learner.h"
#include "support/learning.h"
#include "support/test.h"

#include "data/dump.h"
#include "data/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char centred[] = "[pipeline]\nkey_center = artifact\nartifact = c.safetensors\n[layers]\nkey = "
                              "uniform\nvalue = uniform\n";

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static void rows_that_are_not_finite_are_named(void **state) {
    (void)state;
    static const struct {
        const char *tensor, *says;
        float poison;
    } cases[] = {
        {"layers.1.key", "layers.1.key: NaN at token 5, head 1, channel 3", NAN},
        {"layers.2.value", "layers.2.value: an infinity at token 5, head 1, channel 3", INFINITY},
        {"layers.0.query", "layers.0.query: an infinity at token 5, head 1, channel 3", -INFINITY}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvant_test_dump dumps[2] = {kvant_test_dump_default(), kvant_test_dump_default()};
        dumps[1].poisoned = cases[i].tensor;
        dumps[1].token = 5;
        dumps[1].head = 1;
        dumps[1].channel = 3;
        dumps[1].poison = cases[i].poison;
        learning_refused(learning_text("on_nonfinite = saturate\n", ""), dumps, 2, KVANT_ERROR_NOT_FINITE,
                         "text1.safetensors", cases[i].says);
        /* Centring learns from keys alone, and takes no text that is broken elsewhere either. */
        learning_refused(centred, dumps, 2, KVANT_ERROR_NOT_FINITE, "text1.safetensors", cases[i].says);
    }
}

/* The dump again, with zeros in one tensor from a token on. */
static void blank(const char *name, uint32_t layer, uint32_t side, uint32_t first) {
    kvant_test_bytes bytes = kvant_test_read(learning_path(name));
    kvant_dump *dump = NULL;
    kvant_view rows;
    assert_int_equal(kvant_dump_parse(bytes.bytes, bytes.size, name, &dump, NULL), KVANT_OK);
    assert_true(kvant_dump_view(dump, layer, side, &rows));
    size_t at = (size_t)((const unsigned char *)rows.data - bytes.bytes) + first * (size_t)rows.token_stride;
    memset(bytes.bytes + at, 0, (rows.tokens - first) * (size_t)rows.token_stride);
    kvant_dump_close(dump);
    kvant_test_write(learning_path(name), bytes.bytes, bytes.size);
    free(bytes.bytes);
}

static void zeros_teach_nothing(void **state) {
    (void)state;
    for (uint32_t side = 0; side < 2; side++) {
        kvant_test_dump d = kvant_test_dump_default();
        learning l = learning_run(learning_text("sinks = 4\n", ""), &d, 1);
        blank("text0.safetensors", 2, side, 4); /* the sinks are not looked at */
        kvant_dump_source source = {.struct_size = sizeof source, .name = learning_path("text0.safetensors")};
        kvant_calibration *learned = NULL;
        kvant_diag diag = {.struct_size = sizeof diag};
        assert_int_equal(kvant_calibration_run(l.pipeline, &source, 1, NULL, &learned, &diag),
                         KVANT_ERROR_VALUE);
        assert_null(learned);
        kvant_assert_contains(diag.file, "text0.safetensors");
        kvant_assert_contains(diag.message, side == KVANT_SIDE_KEY
                                                ? "layers.2.key: all zeros behind the sinks"
                                                : "layers.2.value: all zeros");
        learning_free(&l);
    }
}

static void too_few_tokens_teach_nothing(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    d.has_queries = false;
    d.tokens = 35;
    learning_refused(learning_text("sinks = 4\n", ""), &d, 1, KVANT_ERROR_MISSING, "text0.safetensors",
                     "too few tokens to learn from: 31 without sinks");
    learning_refused(centred, &d, 1, KVANT_OK, "", "");
    d.tokens = 31;
    learning_refused(centred, &d, 1, KVANT_ERROR_MISSING, "text0.safetensors", "too few tokens");
    kvant_test_dump texts[2] = {d, d};
    texts[1].tokens = 4;
    learning_refused(learning_text("sinks = 4\n", ""), texts, 2, KVANT_ERROR_MISSING, "text1.safetensors",
                     "4 tokens, and the first 4 are sinks");
    texts[1].tokens = 20; /* together they are enough */
    learning l = learning_run(learning_text("sinks = 4\n", ""), texts, 2);
    assert_int_equal(l.info.tokens, 27 + 16);
    learning_free(&l);
}

static void missing_tensors_are_named(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    d.has_values = false;
    learning_refused(learning_text("", ""), &d, 1, KVANT_ERROR_MISSING, "text0.safetensors",
                     "tensor \"layers.0.value\" is missing, and c learns from it");
    d.has_values = true;
    d.has_keys = d.has_queries = false;
    learning_refused(centred, &d, 1, KVANT_ERROR_MISSING, "text0.safetensors",
                     "tensor \"layers.0.key\" is missing, and key_center = artifact learns from it");
}

/* ---- Texts --------------------------------------------------------------------------------------------- */

static void texts_of_another_geometry_are_named(void **state) {
    (void)state;
    const kvant_test_dump d = kvant_test_dump_default();
    static const char *const says[] = {
        "2 layers, and ",
        "layer 0 has kv_heads = 3, and in ",
        "layer 0 has head_dim = 16, and in ",
        "value_dim = 25",
        "q_heads = 2, and in ",
        "rows of type \"F32\", and ",
        "window = 9",
        "keys \"before RoPE\", and ",
        "of the model \"another\", and ",
    };
    for (size_t i = 0; i < sizeof says / sizeof says[0]; i++) {
        kvant_test_dump texts[3] = {d, d, d};
        kvant_test_dump *t = &texts[2];
        if (i == 0) t->layers = 2;
        if (i == 1) t->kv_heads = 3;
        if (i == 2) t->key_dim = 16;
        if (i == 3) t->value_dim = 25;
        if (i == 4) t->q_heads = 2;
        if (i == 5) t->dtype = KVANT_DTYPE_F32;
        if (i == 6) t->window = 9;
        if (i == 7) t->keys_before_rope = true;
        if (i == 8) t->model = "another";
        texts[0].seed = 5;
        learning_refused(learning_text("", ""), texts, 3, KVANT_ERROR_MISMATCH, "text2.safetensors", says[i]);
        learning_refused(learning_text("", ""), texts, 3, KVANT_ERROR_MISMATCH, "text2.safetensors",
                         "text0.safetensors");
    }
    kvant_test_dump texts[2] = {d, d}; /* what one leaves open the other may say */
    texts[0].has_queries = false;
    texts[0].model = NULL;
    learning l = learning_run(learning_text("", ""), texts, 2);
    learning_free(&l);
}

/* ---- Pipelines ----------------------------------------------------------------------------------------- */

static void nothing_to_learn_is_an_error(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    learning_refused(
        "[layers]\nkey = kivi\nvalue = raw\n", &d, 1, KVANT_ERROR_UNSUPPORTED, "p.ini",
        "there is nothing to learn: none of its codecs needs an artifact, and key_center = none");
    learning_refused(
        "[pipeline]\nkey_center = artifact\nartifact = a.safetensors\n[layers]\nkey = raw\nvalue = "
        "kivi\n",
        &d, 1, KVANT_ERROR_UNSUPPORTED, "p.ini", "no key is centred");
    learning_refused(learning_text("key_center = artifact\nartifact = a.safetensors\n", "before = yes\n"), &d,
                     1, KVANT_ERROR_CONFLICT, "p.ini", "stores keys before RoPE");
}

/* The pipeline names an artifact that is not there, or is none: it is not looked at. */
static void the_old_artifact_does_not_matter(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    const char *text = learning_text("artifact = old.safetensors\n", "");
    learning without = learning_run(text, &d, 1);
    kvant_test_write(learning_path("old.safetensors"), "rubbish", 7);
    learning with = learning_run(text, &d, 1);
    assert_string_equal(without.info.digest, with.info.digest);
    unsigned before = kvant_test_file_count(kvant_test_directory());
    assert_int_equal(kvant_calibration_write(with.calibration, learning_path("old.safetensors"), &with.diag),
                     KVANT_OK);
    assert_int_equal(kvant_test_file_count(kvant_test_directory()), before); /* no temporary file is left */
    kvant_test_bytes file = kvant_test_read(learning_path("old.safetensors"));
    assert_int_equal(file.size, with.info.size);
    kvant_assert_bytes(file.bytes, with.info.bytes, file.size);
    free(file.bytes);
    assert_int_equal(kvant_calibration_write(with.calibration, "/nowhere/a.safetensors", &with.diag),
                     KVANT_ERROR_IO);
    kvant_assert_contains(with.diag.file, "/nowhere/a.safetensors");
    (void)remove(learning_path("old.safetensors"));
    learning_free(&without);
    learning_free(&with);
}

/* ---- Plugins that lie ---------------------------------------------------------------------------------- */

static void liars_are_named(void **state) {
    (void)state;
    static const struct {
        learner_lie lie;
        const char *says;
    } lies[] = {
        {LEARNER_TWICE,
         "codec c (plugin learner): end: layer 2 value: the tensor \"layers.2.value.range\" comes "
         "twice"},
        {LEARNER_WRONG_LAYER, "end: the tensor \"range\" is for layer 3, side 1, which it does not code"},
        {LEARNER_WRONG_SIDE, "end: the tensor \"range\" is for layer 2, side 2, which it does not code"},
        {LEARNER_NOTHING, "it needs an artifact, and end learned no tensor"},
        {LEARNER_ENDLESS, "it asks for the samples again after 64 passes"},
        {LEARNER_CENTER, "a tensor of keys is called \"center\", which is the host's name"},
        {LEARNER_NAME, "the tensor's name is not a letter followed by"},
        {LEARNER_SIZE, "has 15 bytes, and its shape takes another number"},
        {LEARNER_DTYPE, "has the dtype 99"},
        {LEARNER_STATUS, "feed returned a number that is no status"},
    };
    kvant_test_dump d = kvant_test_dump_default();
    d.tokens = 64;
    d.has_queries = false;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        learner.lie = lies[i].lie;
        const char *file = lies[i].lie == LEARNER_STATUS ? "text0.safetensors" : "";
        learning_refused(learning_text("", ""), &d, 1, KVANT_ERROR_PLUGIN_BROKEN, file, lies[i].says);
    }
    assert_int_equal(learner.passes, 64 + 2 * (sizeof lies / sizeof lies[0] - 2));
}

/* What the plugin itself refuses: while it learns, and when its artifact is loaded back. */
static void a_plugin_refuses(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    learner.refuse = KVANT_ERROR_CONFLICT;
    learning_refused(learning_text("", ""), &d, 1, KVANT_ERROR_CONFLICT, "text0.safetensors",
                     "codec c (plugin learner): layer 1: refused by the test");
    learner.refuse = KVANT_OK;
    learner.lie = LEARNER_SHAPE;
    learning_refused(
        learning_text("", ""), &d, 1, KVANT_ERROR_MISMATCH, "p.ini",
        "what was learned does not load back: layer 0 key: codec c: the tensor \"range\" is not F32");
}

static void arguments_are_checked(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    learning l = learning_run(learning_text("", ""), &d, 1);
    kvant_dump_source source = {.struct_size = sizeof source, .name = learning_path("text0.safetensors")};
    kvant_calibration *learned = NULL;
    assert_int_equal(kvant_calibration_run(NULL, &source, 1, NULL, &learned, NULL), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_calibration_run(l.pipeline, NULL, 1, NULL, &learned, NULL), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_calibration_run(l.pipeline, &source, 0, NULL, &learned, NULL),
                     KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_calibration_run(l.pipeline, &source, 1, NULL, NULL, NULL), KVANT_ERROR_ARGUMENT);
    kvant_dump_source wrong = source;
    wrong.struct_size = 4;
    assert_int_equal(kvant_calibration_run(l.pipeline, &wrong, 1, NULL, &learned, NULL),
                     KVANT_ERROR_ARGUMENT);
    wrong = source;
    wrong.name = NULL;
    assert_int_equal(kvant_calibration_run(l.pipeline, &wrong, 1, NULL, &learned, NULL),
                     KVANT_ERROR_ARGUMENT);
    kvant_calibration_options options = {.struct_size = 4};
    assert_int_equal(kvant_calibration_run(l.pipeline, &source, 1, &options, &learned, NULL),
                     KVANT_ERROR_ARGUMENT);
    wrong = source;
    wrong.name = "/nowhere/d.safetensors";
    assert_int_equal(kvant_calibration_run(l.pipeline, &wrong, 1, NULL, &learned, NULL), KVANT_ERROR_IO);
    assert_int_equal(kvant_calibration_write(l.calibration, NULL, NULL), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_calibration_describe(NULL, &l.info), KVANT_ERROR_ARGUMENT);
    assert_null(learned);
    kvant_calibration_free(NULL);
    learning_free(&l);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(rows_that_are_not_finite_are_named, learner_setup),
        cmocka_unit_test_setup(zeros_teach_nothing, learner_setup),
        cmocka_unit_test_setup(too_few_tokens_teach_nothing, learner_setup),
        cmocka_unit_test_setup(missing_tensors_are_named, learner_setup),
        cmocka_unit_test_setup(texts_of_another_geometry_are_named, learner_setup),
        cmocka_unit_test_setup(nothing_to_learn_is_an_error, learner_setup),
        cmocka_unit_test_setup(the_old_artifact_does_not_matter, learner_setup),
        cmocka_unit_test_setup(liars_are_named, learner_setup),
        cmocka_unit_test_setup(a_plugin_refuses, learner_setup),
        cmocka_unit_test_setup(arguments_are_checked, learner_setup)};
    return kvant_run_tests(tests, argc, argv);
}
