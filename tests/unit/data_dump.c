/* Dumps: every rule of kvant-kv/1, one at a time. */
#include "data/dump.h"
#include "support/data.h"
#include "support/draft.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void accept(const kvant_draft *d) {
    kvant_text text = kvant_draft_pack(d);
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_dump *dump = NULL;
    if (kvant_dump_parse(text.data, text.size, "good", &dump, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    kvant_dump_close(dump);
    kvant_text_free(&text);
}

static void refuse(const kvant_draft *d, kvant_status want, const char *part) {
    kvant_text text = kvant_draft_pack(d);
    kvant_diag diag = {.struct_size = sizeof diag}, again = {.struct_size = sizeof again};
    kvant_dump *dump = NULL;
    kvant_status status = kvant_dump_parse(text.data, text.size, "bad.safetensors", &dump, &diag);
    if (status == KVANT_OK) fail_msg("accepted, and \"%s\" was to be the reason for not", part);
    kvant_assert_refused(status, &diag, "bad.safetensors");
    kvant_assert_contains(diag.message, part);
    assert_int_equal(status, want);
    /* The same of arrays that are yet to be written; the order of tensors is another, so the place may be
     * too. */
    assert_int_not_equal(kvant_dump_of_arrays(d->arrays, d->count, d->metadata, d->metadata_count,
                                              "bad.safetensors", &dump, &again),
                         KVANT_OK);
    kvant_assert_refused(status, &again, "bad.safetensors");
    kvant_text_free(&text);
}

static kvant_dump *open_draft(const kvant_text *text, const char *name) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_dump *dump = NULL;
    if (kvant_dump_parse(text->data, text->size, name, &dump, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    return dump;
}

/* ---- Right dumps --------------------------------------------------------------------------------------- */

static void reads_everything(void **state) {
    (void)state;
    kvant_draft d = kvant_draft_dump();
    kvant_text text = kvant_draft_pack(&d);
    kvant_dump *dump = open_draft(&text, "some/where.safetensors");
    const kvant_geometry *g = kvant_dump_geometry(dump);
    const kvant_dump_info *info = kvant_dump_describe(dump);
    assert_string_equal(info->file, "some/where.safetensors");
    assert_string_equal(info->name, "where");
    assert_int_equal(info->tokens, 10);
    assert_int_equal(info->query_tokens, 4);
    assert_int_equal(info->query_start, 6);
    kvant_assert_close(info->scale, 0.25, 0);
    assert_true(info->has_keys && info->has_values && info->has_queries);
    assert_true(info->tags != NULL && info->turn != NULL && info->token_ids != NULL);
    assert_int_equal((uintptr_t)info->token_ids % 4, 0);
    assert_int_equal(g->layer_count, 2);
    assert_int_equal(g->dtype, KVANT_DTYPE_BF16);
    assert_int_equal(g->keys, KVANT_KEYS_BEFORE_ROPE);
    assert_string_equal(g->model, "m");
    static const uint32_t want[2][6] = {{2, 6, 8, 6, 0, 4}, {3, 3, 12, 5, 5, 12}};
    for (uint32_t l = 0; l < 2; l++) {
        const kvant_layer_geometry *layer = &g->layers[l];
        assert_int_equal(layer->struct_size, sizeof *layer);
        assert_int_equal(layer->kv_heads, want[l][0]);
        assert_int_equal(layer->total_kv_heads, want[l][0]);
        assert_int_equal(layer->first_kv_head, 0);
        assert_int_equal(layer->q_heads, want[l][1]);
        assert_int_equal(layer->key_dim, want[l][2]);
        assert_int_equal(layer->value_dim, want[l][3]);
        assert_int_equal(layer->window, want[l][4]);
        assert_non_null(layer->rope);
        assert_int_equal(layer->rope->style, KVANT_ROPE_GPTJ);
        assert_int_equal(layer->rope->rotary_dim, want[l][5]);
        kvant_assert_close(layer->rope->magnitude, 1, 0);
        double theta = l == 0 ? 10000 : 500000.5;
        for (uint32_t i = 0; i < want[l][5] / 2; i++)
            kvant_assert_within(layer->rope->inverse_frequency[i], pow(theta, -2.0 * i / want[l][5]), 1e-14);
    }
    kvant_view view;
    assert_true(kvant_dump_view(dump, 1, KVANT_DUMP_QUERY, &view));
    assert_int_equal(view.dtype, KVANT_DTYPE_F32);
    assert_int_equal(view.tokens, 4);
    assert_int_equal(view.heads, 3);
    assert_int_equal(view.head_dim, 12);
    assert_int_equal(view.channel_stride, 4);
    assert_int_equal(view.head_stride, 48);
    assert_int_equal(view.token_stride, 144);
    kvant_view slice = kvant_view_slice(&view, 1, 2);
    assert_int_equal((const char *)slice.data - (const char *)view.data, 144);
    assert_int_equal(slice.tokens, 2);
    assert_false(kvant_dump_view(dump, 2, KVANT_DUMP_KEY, &view));
    assert_false(kvant_dump_view(dump, 0, 3, &view));
    assert_string_equal(kvant_safetensors_metadata(kvant_dump_file(dump), "whatever"), "kept");
    kvant_dump_close(dump);
    kvant_text_free(&text);
}

static void fills_in_what_is_not_said(void **state) {
    (void)state;
    kvant_draft d = {0};
    kvant_draft_put(&d, "layers.0.key", KVANT_DTYPE_F16, 10, 2, 16);
    kvant_draft_say(&d, "format", "kvant-kv/1");
    kvant_text text = kvant_draft_pack(&d);
    kvant_dump *dump = open_draft(&text, "x");
    const kvant_geometry *g = kvant_dump_geometry(dump);
    assert_null(g->model);
    assert_null(g->layers[0].rope);
    assert_int_equal(g->keys, KVANT_KEYS_AFTER_ROPE);
    assert_int_equal(g->layers[0].q_heads, 2);
    assert_int_equal(g->layers[0].value_dim, 16);
    kvant_assert_close(kvant_dump_describe(dump)->scale, 0.25, 0);
    assert_false(kvant_dump_describe(dump)->has_values);
    kvant_dump_close(dump);
    kvant_text_free(&text);

    /* Values alone: no keys, so nothing turns; the key's metadata are not held against the values. */
    d = kvant_draft_dump();
    kvant_draft_drop(&d, "layers.0.key");
    kvant_draft_drop(&d, "layers.1.key");
    kvant_draft_drop(&d, "layers.0.query");
    kvant_draft_drop(&d, "layers.1.query");
    text = kvant_draft_pack(&d);
    dump = open_draft(&text, "x");
    g = kvant_dump_geometry(dump);
    assert_int_equal(g->layers[1].key_dim, 5);
    assert_int_equal(g->layers[0].q_heads, 6);
    assert_null(g->layers[1].rope);
    kvant_dump_close(dump);
    kvant_text_free(&text);

    d = kvant_draft_dump();
    kvant_draft_say(&d, "query_start", NULL); /* the last tokens' */
    kvant_draft_say(&d, "window", "7");       /* of every layer */
    kvant_draft_say(&d, "rotary_dim", NULL);  /* the whole head */
    text = kvant_draft_pack(&d);
    dump = open_draft(&text, "x");
    assert_int_equal(kvant_dump_describe(dump)->query_start, 6);
    assert_int_equal(kvant_dump_geometry(dump)->layers[1].window, 7);
    assert_int_equal(kvant_dump_geometry(dump)->layers[0].rope->rotary_dim, 8);
    kvant_dump_close(dump);
    kvant_text_free(&text);
}

/* ---- Wrong metadata ------------------------------------------------------------------------------------ */

static void refuses_bad_metadata(void **state) {
    (void)state;
    kvant_draft good = kvant_draft_dump();
    accept(&good);
    static const struct {
        const char *key, *value;
        kvant_status status;
        const char *part;
    } bad[] = {
        {"format", NULL, KVANT_ERROR_VERSION, "is missing"},
        {"format", "kvant-kv/2", KVANT_ERROR_VERSION, "kvant-kv/2"},
        {"layers", "3", KVANT_ERROR_MISMATCH, "\"layers\" says 3"},
        {"layers", "2.0", KVANT_ERROR_VALUE, "\"layers\""},
        {"layers", "two", KVANT_ERROR_VALUE, "\"layers\""},
        {"layers", "", KVANT_ERROR_VALUE, "\"layers\""},
        {"kv_heads", "2", KVANT_ERROR_MISMATCH, "layer 1 say 3"},
        {"kv_heads", "2,3,4", KVANT_ERROR_VALUE, "\"kv_heads\""},
        {"kv_heads", "0", KVANT_ERROR_VALUE, "\"kv_heads\""},
        {"q_heads", "6", KVANT_ERROR_MISMATCH, "layer 1 say 3"},
        {"head_dim", "8,13", KVANT_ERROR_MISMATCH, "layer 1 say 12"},
        {"value_dim", "5,5", KVANT_ERROR_MISMATCH, "layer 0 say 6"},
        {"key_rope", "before", KVANT_ERROR_VALUE, "pre or post"},
        {"key_rope", "", KVANT_ERROR_VALUE, "pre or post"},
        {"rope_style", "half", KVANT_ERROR_VALUE, "neox, gptj or none"},
        {"rope_style", NULL, KVANT_ERROR_CONFLICT, "not \"rope_style\""},
        {"rope_theta", NULL, KVANT_ERROR_MISSING, "not \"rope_theta\""},
        {"rope_theta", "0", KVANT_ERROR_VALUE, "\"rope_theta\""},
        {"rope_theta", "-10000", KVANT_ERROR_VALUE, "\"rope_theta\""},
        {"rope_theta", "1e99", KVANT_ERROR_VALUE, "\"rope_theta\""},
        {"rope_theta", "nan", KVANT_ERROR_VALUE, "\"rope_theta\""},
        {"rope_theta", "1,2,3", KVANT_ERROR_VALUE, "\"rope_theta\""},
        {"rotary_dim", "5", KVANT_ERROR_VALUE, "5 is odd"},
        {"rotary_dim", "10", KVANT_ERROR_VALUE, "above the head_dim 8"},
        {"rotary_dim", "0", KVANT_ERROR_VALUE, "\"rotary_dim\""},
        {"scale", "0", KVANT_ERROR_VALUE, "\"scale\""},
        {"scale", "-1", KVANT_ERROR_VALUE, "\"scale\""},
        {"scale", "1/8", KVANT_ERROR_VALUE, "\"scale\""},
        {"scale", "0.1,0.2", KVANT_ERROR_VALUE, "\"scale\""},
        {"scale", NULL, KVANT_ERROR_MISSING, "\"scale\""},
        {"window", "-1", KVANT_ERROR_VALUE, "\"window\""},
        {"window", "1,2,3", KVANT_ERROR_VALUE, "\"window\""},
        {"window", "99999999999", KVANT_ERROR_VALUE, "\"window\""},
        {"query_start", "7", KVANT_ERROR_GEOMETRY, "positions 7 to 10"},
        {"query_start", "-1", KVANT_ERROR_VALUE, "\"query_start\""},
        {"query_start", "6,6", KVANT_ERROR_VALUE, "\"query_start\""},
        {"query_start", "6\n", KVANT_OK, ""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvant_draft d = kvant_draft_dump();
        kvant_draft_say(&d, bad[i].key, bad[i].value);
        if (bad[i].status == KVANT_OK)
            accept(&d);
        else
            refuse(&d, bad[i].status, bad[i].part);
    }
    kvant_draft d = kvant_draft_dump(); /* before RoPE, and no word on how keys turn */
    kvant_draft_say(&d, "rope_style", NULL);
    kvant_draft_say(&d, "rope_theta", NULL);
    kvant_draft_say(&d, "rotary_dim", NULL);
    refuse(&d, KVANT_ERROR_CONFLICT, "how keys turn");
    kvant_draft_say(&d, "rotary_dim", "4,12");
    refuse(&d, KVANT_ERROR_CONFLICT, "\"rotary_dim\" and not \"rope_style\"");
    d = kvant_draft_dump(); /* q_heads without queries must still be a multiple */
    kvant_draft_drop(&d, "layers.0.query");
    kvant_draft_drop(&d, "layers.1.query");
    kvant_draft_say(&d, "q_heads", "6,4");
    refuse(&d, KVANT_ERROR_GEOMETRY, "4 is not a multiple of the 3 kv heads of layer 1");
}

/* ---- Wrong tensors ------------------------------------------------------------------------------------- */

static void refuses_missing_tensors(void **state) {
    (void)state;
    static const char *const dropped[] = {"layers.0.key", "layers.0.value", "layers.0.query",
                                          "layers.1.key", "layers.1.value", "layers.1.query"};
    for (size_t i = 0; i < sizeof dropped / sizeof dropped[0]; i++) {
        kvant_draft d = kvant_draft_dump();
        kvant_draft_drop(&d, dropped[i]);
        refuse(&d, KVANT_ERROR_MISSING, dropped[i]);
    }
    kvant_draft d = {0};
    kvant_draft_say(&d, "format", "kvant-kv/1");
    refuse(&d, KVANT_ERROR_MISSING, "no tensor is called");
    kvant_draft_put(&d, "layers.0.keys", KVANT_DTYPE_F16, 10, 1, 8);
    refuse(&d, KVANT_ERROR_MISSING, "there is layers.0.keys");
    kvant_draft_put(&d, "layers.0.query", KVANT_DTYPE_F16, 10, 1, 8);
    refuse(&d, KVANT_ERROR_MISSING, "neither keys nor values");
    kvant_draft_put(&d, "layers.2.key", KVANT_DTYPE_F16, 10, 1, 8);
    refuse(&d, KVANT_ERROR_MISSING, "layer 1 has no tensor, and the highest layer is 2");
    kvant_draft_put(&d, "layers.4000000000.key", KVANT_DTYPE_F16, 10, 1, 8);
    refuse(&d, KVANT_ERROR_MISSING, "layer 1 has no tensor, and the highest layer is 4000000000");
    static const char *const names[] = {"layers.00.key",
                                        "layers.01.key",
                                        "layers.-1.key",
                                        "layers..key",
                                        "layers.0.",
                                        "layers.0",
                                        "layers.x.key",
                                        "layers.1 .key",
                                        "layers.0x1.key",
                                        "layers.4294967295.key",
                                        "layers.18446744073709551616.key"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        d = kvant_draft_dump();
        kvant_draft_put(&d, names[i], KVANT_DTYPE_F16, 10, 1, 8);
        refuse(&d, KVANT_ERROR_CORRUPT, names[i]);
    }
}

static void refuses_bad_shapes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint32_t dtype;
        uint64_t shape[3];
        kvant_status status;
        const char *part;
    } bad[] = {
        {"layers.0.key", KVANT_DTYPE_BF16, {9, 2, 8}, KVANT_ERROR_GEOMETRY, "tokens"},
        {"layers.1.key",
         KVANT_DTYPE_BF16,
         {9, 3, 12},
         KVANT_ERROR_GEOMETRY,
         "9 tokens, and \"layers.0.key\" has 10"},
        {"layers.1.value", KVANT_DTYPE_BF16, {11, 3, 5}, KVANT_ERROR_GEOMETRY, "11 tokens"},
        {"layers.1.value",
         KVANT_DTYPE_BF16,
         {10, 1, 5},
         KVANT_ERROR_GEOMETRY,
         "1 heads, and \"layers.1.key\" has 3"},
        {"layers.1.query", KVANT_DTYPE_F32, {5, 3, 12}, KVANT_ERROR_GEOMETRY, "5 tokens"},
        {"layers.1.query", KVANT_DTYPE_F32, {4, 3, 11}, KVANT_ERROR_GEOMETRY, "11 channels"},
        {"layers.1.query", KVANT_DTYPE_F32, {4, 4, 12}, KVANT_ERROR_GEOMETRY, "multiple of the 3"},
        {"layers.1.query", KVANT_DTYPE_F16, {4, 3, 12}, KVANT_ERROR_DTYPE, "F16"},
        {"layers.1.key",
         KVANT_DTYPE_F16,
         {10, 3, 12},
         KVANT_ERROR_DTYPE,
         "F16, and \"layers.0.key\" is BF16"},
        {"layers.1.value", KVANT_DTYPE_F32, {10, 3, 5}, KVANT_ERROR_DTYPE, "F32"},
        {"layers.0.key", KVANT_DTYPE_F64, {10, 2, 8}, KVANT_ERROR_DTYPE, "F64 is not"},
        {"layers.0.key", KVANT_DTYPE_U8, {10, 2, 8}, KVANT_ERROR_DTYPE, "U8 is not"},
        {"layers.0.key", KVANT_DTYPE_BF16, {10, 16, 0}, KVANT_ERROR_GEOMETRY, "rank 2"},
        {"tokens", KVANT_DTYPE_I32, {9, 0, 0}, KVANT_ERROR_GEOMETRY, "\"tokens\""},
        {"tokens", KVANT_DTYPE_I64, {10, 0, 0}, KVANT_ERROR_GEOMETRY, "I32 [10]"},
        {"tokens", KVANT_DTYPE_I32, {10, 1, 0}, KVANT_ERROR_GEOMETRY, "\"tokens\""},
        {"tags", KVANT_DTYPE_I8, {10, 0, 0}, KVANT_ERROR_GEOMETRY, "U8 [10]"},
        {"turn", KVANT_DTYPE_I32, {11, 0, 0}, KVANT_ERROR_GEOMETRY, "\"turn\""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        kvant_draft d = kvant_draft_dump();
        kvant_draft_drop(&d, bad[i].name);
        kvant_draft_put(&d, bad[i].name, bad[i].dtype, bad[i].shape[0], bad[i].shape[1], bad[i].shape[2]);
        refuse(&d, bad[i].status, bad[i].part);
    }
    /* Nothing along one axis. */
    for (uint32_t axis = 0; axis < 3; axis++) {
        static const char *const parts[3] = {"0 tokens", "0 heads", "0 head_dim"};
        kvant_draft d = {0};
        kvant_draft_say(&d, "format", "kvant-kv/1");
        kvant_draft_put(&d, "layers.0.key", KVANT_DTYPE_F16, 10, 1, 8);
        d.arrays[0].shape[axis] = 0;
        d.arrays[0].bytes = 0;
        refuse(&d, KVANT_ERROR_GEOMETRY, parts[axis]);
    }
    kvant_draft d = kvant_draft_dump();
    for (uint32_t i = 0; i < d.count; i++)
        if (strstr(d.arrays[i].name, "query") != NULL) {
            d.arrays[i].shape[0] = 11;
            assert_true(kvant_array_size(d.arrays[i].dtype, d.arrays[i].shape, 3, &d.arrays[i].bytes));
        }
    refuse(&d, KVANT_ERROR_GEOMETRY, "11 queries and only 10 tokens");
}

static void survives_every_bit_flip(void **state) {
    (void)state;
    kvant_draft d = kvant_draft_dump();
    kvant_text text = kvant_draft_pack(&d);
    size_t header = 0;
    for (unsigned i = 0; i < 8; i++) header |= (size_t)(unsigned char)text.data[i] << 8 * i;
    for (size_t bit = 0; bit < (8 + header) * 8; bit++) {
        unsigned char *copy = malloc(text.size);
        assert_non_null(copy);
        memcpy(copy, text.data, text.size);
        copy[bit / 8] ^= (unsigned char)(1u << bit % 8);
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_dump *dump = NULL;
        kvant_status status = kvant_dump_parse(copy, text.size, "bad", &dump, &diag);
        if (status != KVANT_OK) kvant_assert_refused(status, &diag, "bad");
        kvant_dump_close(dump);
        free(copy);
    }
    kvant_text_free(&text);
}

/* ---- The samples --------------------------------------------------------------------------------------- */

static void reads_the_samples(void **state) {
    (void)state;
    static const struct {
        const char *file;
        int values, queries, tags, pre;
    } files[] = {{"sample", 1, 1, 1, 0}, {"sample_pre", 0, 0, 1, 1}, {"sample_prose", 1, 1, 0, 0}};
    for (size_t i = 0; i < 3; i++) {
        char path[512];
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_dump *dump = NULL;
        (void)snprintf(path, sizeof path, "%s/samples/%s.safetensors", KVANT_TEST_SOURCE_DIR, files[i].file);
        if (kvant_dump_open(path, &dump, &diag) != KVANT_OK) fail_msg("%s", diag.message);
        const kvant_dump_info *info = kvant_dump_describe(dump);
        assert_string_equal(info->name, files[i].file);
        assert_int_equal(info->tokens, 384);
        assert_int_equal(info->has_values, files[i].values);
        assert_int_equal(info->has_queries, files[i].queries);
        assert_int_equal(info->tags != NULL, files[i].tags);
        assert_int_equal(kvant_dump_geometry(dump)->keys == KVANT_KEYS_BEFORE_ROPE, files[i].pre);
        assert_int_equal(kvant_dump_geometry(dump)->layer_count, 4);
        assert_int_equal(kvant_dump_geometry(dump)->layers[3].q_heads, 9);
        kvant_dump_close(dump);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_everything),     cmocka_unit_test(fills_in_what_is_not_said),
        cmocka_unit_test(refuses_bad_metadata), cmocka_unit_test(refuses_missing_tensors),
        cmocka_unit_test(refuses_bad_shapes),   cmocka_unit_test(survives_every_bit_flip),
        cmocka_unit_test(reads_the_samples)};
    return kvant_run_tests(tests, argc, argv);
}
