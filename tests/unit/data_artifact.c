/* Artifacts: names, digest, and which geometry they fit. */
#include "data/artifact.h"
#include "data/digest.h"
#include "data/dump.h"
#include "support/data.h"
#include "support/draft.h"
#include "support/test.h"

#include <string.h>

static kvant_draft artifact_example(void) {
    kvant_draft d = {0};
    kvant_draft_put(&d, "layers.1.key.center", KVANT_DTYPE_F32, 3, 12, 0);
    kvant_draft_put(&d, "layers.1.key.a", KVANT_DTYPE_U8, 3, 0, 0);
    kvant_draft_put(&d, "layers.1.key.z.y", KVANT_DTYPE_F16, 1, 2, 3);
    kvant_draft_put(&d, "layers.0.value.scale", KVANT_DTYPE_F32, 2, 0, 0);
    kvant_draft_put(&d, "layers.10.value.scale", KVANT_DTYPE_F32, 2, 0, 0);
    kvant_draft_say(&d, "format", "kvant-artifact/1");
    kvant_draft_say(&d, "codec", "kvquant");
    return d;
}

static kvant_artifact *open_artifact(const kvant_draft *d, kvant_text *text, kvant_diag *diag) {
    kvant_artifact *artifact = NULL;
    *text = kvant_draft_pack(d);
    (void)kvant_artifact_parse(text->data, text->size, "a.safetensors", &artifact, diag);
    return artifact;
}

static void reads_artifacts(void **state) {
    (void)state;
    kvant_draft d = artifact_example();
    kvant_text text;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_artifact *artifact = open_artifact(&d, &text, &diag);
    assert_non_null(artifact);
    unsigned char digest[32];
    char hex[65];
    assert_int_equal(kvant_sha256(text.data, text.size, digest), KVANT_OK);
    kvant_hex(digest, 32, hex);
    assert_string_equal(kvant_artifact_digest(artifact), hex);
    uint32_t count;
    const kvant_array *tensors = kvant_artifact_tensors(artifact, 1, KVANT_SIDE_KEY, &count);
    assert_int_equal(count, 3);
    assert_string_equal(tensors[0].name, "a");
    assert_string_equal(tensors[1].name, "center");
    assert_string_equal(tensors[2].name, "z.y");
    assert_int_equal(tensors[2].shape[2], 3);
    tensors = kvant_artifact_tensors(artifact, 10, KVANT_SIDE_VALUE, &count);
    assert_int_equal(count, 1);
    assert_string_equal(tensors[0].name, "scale");
    assert_null(kvant_artifact_tensors(artifact, 1, KVANT_SIDE_VALUE, &count));
    assert_int_equal(count, 0);
    assert_string_equal(kvant_artifact_metadata(artifact, "codec"), "kvquant");
    kvant_artifact_close(artifact);
    kvant_text_free(&text);
    static const char *const names[] = {"x",
                                        "layers.0.x",
                                        "layers.0.key",
                                        "layers.0.key.",
                                        "layers.0.query.x",
                                        "layers.00.key.x",
                                        "layers.4294967295.key.x",
                                        "layer.0.key.x"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        d = artifact_example();
        kvant_draft_put(&d, names[i], KVANT_DTYPE_U8, 1, 0, 0);
        assert_null(open_artifact(&d, &text, &diag));
        kvant_assert_refused(KVANT_ERROR_CORRUPT, &diag, "a.safetensors");
        kvant_assert_contains(diag.message, names[i]);
        kvant_text_free(&text);
    }
    d = artifact_example();
    kvant_draft_say(&d, "format", "kvant-kv/1");
    assert_null(open_artifact(&d, &text, &diag));
    kvant_assert_contains(diag.message, "not an artifact");
    kvant_text_free(&text);
}

static void fits_artifacts(void **state) {
    (void)state;
    kvant_draft rows = kvant_draft_dump();
    kvant_text rows_text = kvant_draft_pack(&rows), text;
    kvant_dump *dump = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(kvant_dump_parse(rows_text.data, rows_text.size, "d", &dump, &diag), KVANT_OK);
    static const struct {
        const char *key, *value, *part; /* part = NULL: fits */
    } cases[] = {{"layers", "2", NULL},
                 {"kv_heads", "2,3", NULL},
                 {"q_heads", "6,3", NULL},
                 {"head_dim", "8,12", NULL},
                 {"value_dim", "6,5", NULL},
                 {"key_rope", "pre", NULL},
                 {"anything", "else", NULL},
                 {"layers", "3", "learned for layers = 3, and the model has 2"},
                 {"kv_heads", "2", "learned for kv_heads = 2, and layer 1 has 3"},
                 {"q_heads", "3,3", "learned for q_heads = 3"},
                 {"head_dim", "8", "learned for head_dim = 8"},
                 {"head_dim", "8,12,12", "3 numbers"},
                 {"value_dim", "6,x", "is not a whole number"},
                 {"key_rope", "post", "after RoPE"},
                 {"key_rope", "none", "not pre or post"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvant_draft d = artifact_example();
        kvant_draft_drop(&d, "layers.10.value.scale");
        kvant_draft_say(&d, cases[i].key, cases[i].value);
        kvant_artifact *artifact = open_artifact(&d, &text, &diag);
        assert_non_null(artifact);
        kvant_status status = kvant_artifact_check(artifact, kvant_dump_geometry(dump), &diag);
        if (cases[i].part == NULL) {
            if (status != KVANT_OK) fail_msg("%s", diag.message);
        } else {
            kvant_assert_refused(status, &diag, "a.safetensors");
            kvant_assert_contains(diag.message, cases[i].part);
        }
        kvant_artifact_close(artifact);
        kvant_text_free(&text);
    }
    kvant_draft d = artifact_example(); /* a layer that the model does not have */
    kvant_artifact *artifact = open_artifact(&d, &text, &diag);
    assert_int_equal(kvant_artifact_check(artifact, kvant_dump_geometry(dump), &diag), KVANT_ERROR_MISMATCH);
    kvant_assert_contains(diag.message, "layer 10");
    kvant_artifact_close(artifact);
    kvant_text_free(&text);
    kvant_dump_close(dump);
    kvant_text_free(&rows_text);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(reads_artifacts),
                                              cmocka_unit_test(fits_artifacts)};
    return kvant_run_tests(tests, argc, argv);
}
