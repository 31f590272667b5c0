/* Artifacts in use: what must be as it was when they were learned, and what need not. */
#include "data/artifact_write.h"
#include "data/dump.h"
#include "data/safetensors.h"
#include "support/data.h"
#include "support/learner.h"
#include "support/learning.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char head[] = "artifact = a.safetensors\n";
static const char head_centred[] = "artifact = a.safetensors\nkey_center = artifact\n";

/* Learns a.safetensors. */
static void learn(const char *text, const kvant_test_dump *d) {
    learning l = learning_run(text, d, 1);
    if (kvant_calibration_write(l.calibration, learning_path("a.safetensors"), &l.diag) != KVANT_OK)
        fail_msg("%s", l.diag.message);
    learning_free(&l);
}

/* Resolves the text for a dump's geometry and opens every codec; says = NULL: must work. */
static void use(const char *text, const kvant_test_dump *d, kvant_status status, int line, const char *says) {
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    kvant_dump *dump = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_test_dump_write(d, learning_path("other.safetensors"));
    assert_int_equal(kvant_dump_open(learning_path("other.safetensors"), &dump, &diag), KVANT_OK);
    if (kvant_pipeline_parse(text, strlen(text), "p.ini", kvant_test_directory(), &pipeline, &diag) !=
        KVANT_OK)
        fail_msg("%s", diag.message);
    kvant_status got = kvant_pipeline_resolve(pipeline, kvant_dump_geometry(dump), &plan, &diag);
    for (uint32_t i = 0; i < 2 * d->layers && got == KVANT_OK; i++) {
        kvant_codec *codec = NULL;
        got = kvant_codec_open(plan, i / 2, i % 2, &codec, &diag);
        kvant_codec_close(codec);
    }
    if (got != status || (says != NULL && strstr(diag.message, says) == NULL) ||
        (line != 0 && diag.line != line))
        fail_msg("%s\nstatus %d, line %d: %s\nexpected %d, line %d, %s", text, (int)got, (int)diag.line,
                 diag.message, (int)status, line, says != NULL ? says : "success");
    kvant_plan_free(plan);
    kvant_pipeline_free(pipeline);
    kvant_dump_close(dump);
}

static void parameters_must_match(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    learn(learning_text(head, "bits = 4\n"), &d);
    use(learning_text(head, "bits = 4\n"), &d, KVANT_OK, 0, NULL);
    use(learning_text(head, ""), &d, KVANT_OK, 0, NULL); /* the default, said or not */
    use(learning_text(head, "taste = yes\n"), &d, KVANT_OK, 0, NULL);
    use(learning_text(head, "bits = 3\n"), &d, KVANT_ERROR_MISMATCH, 6,
        "layer 0 key: codec c (plugin learner): the artifact ");
    use(learning_text(head, "bits = 3\n"), &d, KVANT_ERROR_MISMATCH, 6,
        "a.safetensors was learned for bits=4, and the pipeline says bits=3");
    use(learning_text(head, "before = yes\n"), &d, KVANT_ERROR_MISMATCH, 6,
        "was learned for before=no, and the pipeline says before=yes");
    use(learning_text(head, "before = yes\nbits = 7\nsized = yes\n"), &d, KVANT_ERROR_MISMATCH, 6,
        "before=no");
    use("[pipeline]\nartifact = a.safetensors\n[layers]\nkey = learner\nvalue = kivi\n", &d, KVANT_OK, 0,
        NULL);
    use("[pipeline]\nartifact = a.safetensors\nsinks = 9\nblock_tokens = 128\nrecent = 3\n[layers]\nkey = "
        "learner\nvalue = raw\n",
        &d, KVANT_OK, 0, NULL);
}

static void centring_must_match(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    learn(learning_text(head_centred, ""), &d);
    use(learning_text(head_centred, ""), &d, KVANT_OK, 0, NULL);
    use(learning_text(head, ""), &d, KVANT_ERROR_MISMATCH, 0,
        "was learned for key_center=artifact, and the pipeline says key_center=none");
    /* The means themselves are of keys, and suit every codec. */
    use("[pipeline]\nkey_center = artifact\nartifact = a.safetensors\n[layers]\nkey = uniform\nvalue = raw\n",
        &d, KVANT_OK, 0, NULL);
    learn(learning_text(head, ""), &d);
    use(learning_text(head_centred, ""), &d, KVANT_ERROR_MISMATCH, 4,
        "was learned for key_center=none, and the pipeline says key_center=artifact");
}

static void model_and_geometry_must_match(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default(), other = d;
    learn(learning_text(head_centred, ""), &d);
    other.seed = 99; /* another text */
    other.tokens = 64;
    other.has_queries = false;
    use(learning_text(head_centred, ""), &other, KVANT_ERROR_MISMATCH, 0, "learned for q_heads = 6");
    other = d;
    other.seed = 99;
    use(learning_text(head_centred, ""), &other, KVANT_OK, 0, NULL);
    other.keys_before_rope = true; /* the caller's side of RoPE is the host's business */
    use(learning_text(head_centred, ""), &other, KVANT_OK, 0, NULL);
    other = d;
    other.model = NULL;
    use(learning_text(head_centred, ""), &other, KVANT_OK, 0, NULL);
    other.model = "test model, other weights";
    use(learning_text(head_centred, ""), &other, KVANT_ERROR_MISMATCH, 0,
        "learned from the model \"test model\", and this is \"test model, other weights\"");
    other = d;
    other.layers = 2;
    use(learning_text(head_centred, ""), &other, KVANT_ERROR_MISMATCH, 0, "learned for layers = 3");
    other = d;
    other.key_dim = 16;
    use(learning_text(head_centred, ""), &other, KVANT_ERROR_MISMATCH, 0, "learned for head_dim = 32");
    other = d;
    other.kv_heads = 1;
    use(learning_text(head_centred, ""), &other, KVANT_ERROR_MISMATCH, 0, "learned for kv_heads = 2");
    other = d;
    other.value_dim = 8;
    use(learning_text(head_centred, ""), &other, KVANT_ERROR_MISMATCH, 0, "learned for value_dim = 24");
}

static void a_missing_artifact_is_an_error(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    (void)remove(learning_path("a.safetensors"));
    use(learning_text(head, ""), &d, KVANT_ERROR_IO, 0, "there is no such artifact; `kvant calibrate ");
    use(learning_text("", ""), &d, KVANT_ERROR_MISSING, 0, "there is no tensor \"range\"");
    use(learning_text("", "sized = yes\n"), &d, KVANT_ERROR_MISSING, 0, "the sizes are in the artifact");
}

/* An artifact whose metadata say what they like of a row's codec. */
static void write_claim(const char *claim) {
    kvant_artifact_builder *builder = kvant_artifact_builder_new();
    kvant_text bytes = {0};
    float range[4] = {1, 2, 3, 4};
    kvant_array tensor = {.name = "range",
                          .data = range,
                          .shape = {2, 2},
                          .bytes = sizeof range,
                          .dtype = KVANT_DTYPE_F32,
                          .rank = 2};
    assert_non_null(builder);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(kvant_artifact_builder_add(builder, i / 2, i % 2, &tensor, NULL), KVANT_OK);
    if (claim != NULL) kvant_artifact_builder_say(builder, "layers.1.value.codec", "%s", claim);
    assert_int_equal(kvant_artifact_builder_pack(builder, "a", &bytes, NULL), KVANT_OK);
    kvant_test_write(learning_path("a.safetensors"), bytes.data, bytes.size);
    kvant_text_free(&bytes);
    kvant_artifact_builder_free(builder);
}

static void claims_of_files_are_not_trusted(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    static const struct {
        const char *claim, *says;
    } cases[] = {
        {NULL, NULL}, /* an artifact made by hand: its tensors are checked by the codec */
        {"\"LERN\" version=1 before=no bits=4 sized=no", NULL},
        {"\"LERN\" version=2 before=no bits=4 sized=no",
         "learned for version=2, and the pipeline says version=1"},
        {"\"KVQ1\" version=1 before=no bits=4 sized=no",
         "for the format \"KVQ1\", and this codec's is \"LERN\""},
        {"\"LERN\" version=1 before=no bits=4", "sized"},
        {"\"LERN\" version=1 before=no bits=4 sized=no more=1", "more=1, which the codec does not have now"},
        {"\"LERN\"", "version"},
        {"\"LERN\" ", "version"},
        {"\"LE", "the format \"LE"},
        {"", "the format "},
        {"\"LERN\" version=1 before=\033[31m bits=4 sized=no", "before=?[31m"},
        {"\"LERN\"  version=1  before=no bits=4 sized=no", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_claim(cases[i].claim);
        use(learning_text(head, ""), &d, cases[i].says == NULL ? KVANT_OK : KVANT_ERROR_MISMATCH, 0,
            cases[i].says);
        if (cases[i].says != NULL)
            use(learning_text(head, ""), &d, KVANT_ERROR_MISMATCH, 0, "layer 1 value: codec c");
    }
}

/* ---- The writer ---------------------------------------------------------------------------------------- */

static void the_writer_sorts_and_refuses(void **state) {
    (void)state;
    kvant_artifact_builder *builder = kvant_artifact_builder_new();
    uint8_t bytes[6] = {1, 2, 3, 4, 5, 6};
    kvant_array array = {
        .name = "b", .data = bytes, .shape = {6}, .bytes = 6, .dtype = KVANT_DTYPE_U8, .rank = 1};
    kvant_diag diag = {.struct_size = sizeof diag};
    static const uint32_t layers[] = {2, 10, 0};
    for (int i = 0; i < 3; i++)
        assert_int_equal(kvant_artifact_builder_add(builder, layers[i], KVANT_SIDE_VALUE, &array, &diag),
                         KVANT_OK);
    array.name = "a";
    assert_int_equal(kvant_artifact_builder_add(builder, 2, KVANT_SIDE_VALUE, &array, &diag), KVANT_OK);
    assert_int_equal(kvant_artifact_builder_add(builder, 2, KVANT_SIDE_VALUE, &array, &diag),
                     KVANT_ERROR_DUPLICATE);
    assert_int_equal(kvant_artifact_builder_add(builder, 2, KVANT_SIDE_KEY, &array, &diag), KVANT_OK);
    static const char *const names[] = {"", "A", "1a", "a.b", "a b", "a\"", "_a", NULL};
    for (int i = 0; i < 8; i++) {
        kvant_array wrong = array;
        wrong.name = names[i];
        assert_int_equal(kvant_artifact_builder_add(builder, 3, 0, &wrong, &diag), KVANT_ERROR_ARGUMENT);
    }
    kvant_array wrong = array;
    wrong.rank = 9;
    assert_int_equal(kvant_artifact_builder_add(builder, 3, 0, &wrong, &diag), KVANT_ERROR_ARGUMENT);
    wrong = array;
    wrong.data = NULL;
    assert_int_equal(kvant_artifact_builder_add(builder, 3, 0, &wrong, &diag), KVANT_ERROR_ARGUMENT);
    wrong = array;
    wrong.shape[0] = UINT64_MAX;
    wrong.dtype = KVANT_DTYPE_F64;
    assert_int_equal(kvant_artifact_builder_add(builder, 3, 0, &wrong, &diag), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_artifact_builder_count(builder), 5);
    kvant_artifact_builder_say(builder, "z", "%d", 7);
    memset(bytes, 0, sizeof bytes); /* the builder has copies */
    kvant_text text = {0};
    kvant_safetensors *st = NULL;
    assert_int_equal(kvant_artifact_builder_pack(builder, "x", &text, &diag), KVANT_OK);
    assert_int_equal(kvant_safetensors_parse(text.data, text.size, "x", &st, &diag), KVANT_OK);
    static const char *const sorted[] = {"layers.0.value.b", "layers.10.value.b", "layers.2.key.a",
                                         "layers.2.value.a", "layers.2.value.b"};
    for (uint32_t i = 0; i < 5; i++) {
        const kvant_array *got = kvant_safetensors_at(st, i);
        assert_string_equal(got->name, sorted[i]);
        kvant_assert_bytes(got->data, ((const uint8_t[]){1, 2, 3, 4, 5, 6}), 6);
        if (i > 0) assert_true(got->data > kvant_safetensors_at(st, i - 1)->data);
    }
    assert_string_equal(kvant_safetensors_metadata(st, "format"), "kvant-artifact/1");
    assert_string_equal(kvant_safetensors_metadata(st, "z"), "7");
    kvant_safetensors_close(st);
    kvant_text_free(&text);
    kvant_artifact_builder_free(builder);
    kvant_artifact_builder_free(NULL);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(parameters_must_match, learner_setup),
        cmocka_unit_test_setup(centring_must_match, learner_setup),
        cmocka_unit_test_setup(model_and_geometry_must_match, learner_setup),
        cmocka_unit_test_setup(a_missing_artifact_is_an_error, learner_setup),
        cmocka_unit_test_setup(claims_of_files_are_not_trusted, learner_setup),
        cmocka_unit_test(the_writer_sorts_and_refuses)};
    return kvant_run_tests(tests, argc, argv);
}
