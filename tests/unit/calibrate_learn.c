/* Calibration: what is learned, from which rows, in which order, and that it comes back. */
#include "base/text.h"
#include "data/artifact.h"
#include "data/digest.h"
#include "data/dump.h"
#include "support/data.h"
#include "support/learner.h"
#include "support/learning.h"
#include "support/test.h"

#include <kvant/kit/rope.h>
#include <kvant/kit/view.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const kvant_array *tensor_of(const kvant_artifact *artifact, uint32_t layer, uint32_t side,
                                    const char *name) {
    uint32_t count;
    const kvant_array *tensors = kvant_artifact_tensors(artifact, layer, side, &count);
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(tensors[i].name, name) == 0) return &tensors[i];
    fail_msg("there is no tensor %s of layer %u, side %u", name, layer, side);
    return NULL;
}

static kvant_artifact *artifact_of(const learning *l) {
    kvant_artifact *artifact = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_artifact_parse(l->info.bytes, (size_t)l->info.size, "learned", &artifact, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    return artifact;
}

static float float_at(const kvant_array *array, size_t index) {
    float x;
    memcpy(&x, (const char *)array->data + 4 * index, sizeof x);
    return x;
}

static kvant_dump *open_text(const char *name) {
    kvant_dump *dump = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_dump_open(learning_path(name), &dump, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    return dump;
}

/* ---- Two passes over two texts ------------------------------------------------------------------------- */

/* What the learner must have learned, anew from both texts: mean of |x|, and the largest distance to it. */
static void check_range(const kvant_artifact *artifact, uint32_t layer, uint32_t side, uint32_t head) {
    const kvant_array *range = tensor_of(artifact, layer, side, "range");
    double sum = 0, count = 0, most = 0;
    for (int i = 0; i < 4; i++) { /* both texts, and again */
        kvant_dump *dump = open_text(i % 2 == 0 ? "text0.safetensors" : "text1.safetensors");
        kvant_view rows;
        assert_true(kvant_dump_view(dump, layer, side, &rows));
        for (uint32_t t = 3; t < rows.tokens; t++)
            for (uint32_t c = 0; c < rows.head_dim; c++) {
                double x = fabs((double)kvant_load_element(
                    kvant_view_at(&rows, t, head) + (int64_t)c * rows.channel_stride, rows.dtype));
                if (i < 2) {
                    sum += x;
                    count++;
                } else {
                    most = fmax(most, fabs(x - sum / count));
                }
            }
        kvant_dump_close(dump);
    }
    kvant_assert_close(float_at(range, 2 * head), sum / count, 1e-6);
    kvant_assert_close(float_at(range, 2 * head + 1), most, 1e-5);
}

static void two_passes_learn_from_all_texts(void **state) {
    (void)state;
    kvant_test_dump dumps[2] = {kvant_test_dump_default(), kvant_test_dump_default()};
    dumps[1].seed = 7;
    dumps[1].tokens = 90;
    dumps[1].has_queries = false;
    learning l = learning_run(learning_text("sinks = 3\n", ""), dumps, 2);
    assert_int_equal(learner.sessions, 1); /* one codec, both sides */
    assert_int_equal(learner.setups, 6);
    assert_int_equal(learner.passes, 2);
    assert_int_equal(l.info.passes, 2);
    assert_int_equal(l.info.text_count, 2);
    assert_int_equal(l.info.tokens, 150 + 90 - 2 * 3);
    assert_int_equal(l.info.tensor_count, 6);
    assert_int_equal(l.info.centered_layers, 0);
    kvant_artifact *artifact = artifact_of(&l);
    for (uint32_t layer = 0; layer < 3; layer++)
        for (uint32_t side = 0; side < 2; side++)
            for (uint32_t head = 0; head < 2; head++) check_range(artifact, layer, side, head);
    kvant_artifact_close(artifact);
    learning_free(&l);
}

static void metadata_say_what_it_was_learned_from(void **state) {
    (void)state;
    kvant_test_dump dumps[2] = {kvant_test_dump_default(), kvant_test_dump_default()};
    dumps[1].seed = 7;
    dumps[1].tokens = 90;
    dumps[1].has_queries = false;
    learning l = learning_run(learning_text("sinks = 3\n", ""), dumps, 2);
    kvant_artifact *artifact = artifact_of(&l);
    assert_string_equal(kvant_artifact_metadata(artifact, "text_tokens"), "150,90");
    assert_string_equal(kvant_artifact_metadata(artifact, "layers.2.value.codec"),
                        "\"LERN\" version=1 before=no bits=4 sized=no");
    assert_string_equal(kvant_artifact_metadata(artifact, "layers.2.key.codec"),
                        "\"LERN\" version=1 key_center=none before=no bits=4 sized=no");
    static const struct {
        const char *key, *value;
    } said[] = {{"format", "kvant-artifact/1"},
                {"pipeline", "p"},
                {"model", "test model"},
                {"layers", "3"},
                {"kv_heads", "2"},
                {"q_heads", "6"},
                {"head_dim", "32"},
                {"value_dim", "24"},
                {"sinks", "3"}};
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++)
        assert_string_equal(kvant_artifact_metadata(artifact, said[i].key), said[i].value);
    assert_null(kvant_artifact_metadata(artifact, "key_rope")); /* nothing depends on the caller's side */
    unsigned char digest[2][32];
    char want[160];
    for (int i = 0; i < 2; i++)
        assert_int_equal(kvant_sha256_file(learning_path(i == 0 ? "text0.safetensors" : "text1.safetensors"),
                                           digest[i], &l.diag),
                         KVANT_OK);
    kvant_hex(digest[0], 32, want);
    want[64] = ',';
    kvant_hex(digest[1], 32, want + 65);
    assert_string_equal(kvant_artifact_metadata(artifact, "text_sha256"), want);
    kvant_artifact_close(artifact);
    learning_free(&l);
}

/* ---- Samples ------------------------------------------------------------------------------------------- */

/* Layer by layer, and within one text by text; the second pass is the first again. */
static struct {
    uint32_t count, layers[64], texts[64];
    uint64_t sums[64];
} seen;

static uint64_t sum_of(const kvant_view *rows) {
    uint64_t sum = 1469598103934665603u;
    for (uint32_t t = 0; t < rows->tokens; t++)
        for (uint32_t h = 0; h < rows->heads; h++)
            for (uint32_t c = 0; c < rows->head_dim; c++) {
                float x = kvant_load_element(kvant_view_at(rows, t, h) + (int64_t)c * rows->channel_stride,
                                             rows->dtype);
                sum = (sum ^ kvant_float_bits(x)) * 1099511628211u;
            }
    return sum;
}

static void note(const kvant_sample *sample) {
    assert_true(seen.count < 64);
    seen.layers[seen.count] = sample->layer;
    seen.texts[seen.count] = sample->text;
    seen.sums[seen.count++] = sum_of(sample->keys) * 3 + sum_of(sample->values);
    assert_int_equal(sample->struct_size, sizeof *sample);
    assert_int_equal(sample->sinks, 2);
    assert_int_equal(sample->first_position, 0);
    assert_int_equal(sample->query_position, 141);
    assert_int_equal(sample->queries->tokens, 9);
    assert_int_equal(sample->queries->heads, 6);
    assert_int_equal(sample->window, 77);
    kvant_assert_close(sample->logit_scale, 1 / sqrt(32), 1e-15);
    kvant_assert_close(sample->soft_cap, 0, 0);
    assert_null(sample->tags);
    assert_null(sample->importance);
}

static void samples_come_layer_by_layer_and_again(void **state) {
    (void)state;
    kvant_test_dump dumps[2] = {kvant_test_dump_default(), kvant_test_dump_default()};
    dumps[0].window = dumps[1].window = 77;
    dumps[1].seed = 2;
    memset(&seen, 0, sizeof seen);
    learner.on_sample = note;
    learning l = learning_run(learning_text("sinks = 2\n", "before = yes\n"), dumps, 2);
    assert_int_equal(seen.count, 12);
    for (uint32_t i = 0; i < 12; i++) {
        assert_int_equal(seen.layers[i], i % 6 / 2);
        assert_int_equal(seen.texts[i], i % 2);
        assert_true(seen.sums[i] == seen.sums[i % 6]);
    }
    assert_true(seen.sums[0] != seen.sums[1]);
    learning_free(&l);
}

/* The keys of layer 1, copied out of the last sample. */
static float *fed_keys;

static void keep_keys(const kvant_sample *sample) {
    if (sample->layer != 1) return;
    assert_int_equal(sample->keys->dtype, KVANT_DTYPE_F16);
    size_t row = (size_t)sample->keys->heads * sample->keys->head_dim;
    fed_keys = realloc(fed_keys, sample->keys->tokens * row * sizeof *fed_keys);
    assert_non_null(fed_keys);
    for (uint32_t t = 0; t < sample->keys->tokens; t++)
        for (uint32_t h = 0; h < sample->keys->heads; h++)
            kvant_load_row(sample->keys, t, h, fed_keys + t * row + h * sample->keys->head_dim);
}

/* Bit for bit what encode gets, whatever the host does to the rows: the learner's extents show it. */
static void compare_with_encode(learning *l, const kvant_test_dump *d) {
    kvant_plan *plan = NULL;
    kvant_codec *codec = NULL;
    kvant_diag *diag = &l->diag;
    kvant_dump *dump = open_text("text0.safetensors");
    if (kvant_calibration_write(l->calibration, learning_path("learned.safetensors"), diag) != KVANT_OK ||
        kvant_pipeline_resolve(l->pipeline, kvant_dump_geometry(dump), &plan, diag) != KVANT_OK ||
        kvant_codec_open(plan, 1, KVANT_SIDE_KEY, &codec, diag) != KVANT_OK)
        fail_msg("%s", diag->message);
    size_t row = (size_t)d->kv_heads * d->key_dim;
    kvant_view keys;
    assert_true(kvant_dump_view(dump, 1, KVANT_SIDE_KEY, &keys));
    void *extent = aligned_alloc(64, (kvant_codec_extent_max(codec) + 63) / 64 * 64);
    void *scratch = aligned_alloc(64, (kvant_codec_scratch_bytes(codec) + 64) / 64 * 64);
    for (uint32_t block = 0; block < 4; block++) {
        kvant_view rows = kvant_view_slice(&keys, block * 32, 32);
        kvant_encode_report report = {.struct_size = sizeof report};
        if (kvant_codec_encode(codec, &rows, block * 32, NULL, extent, kvant_codec_extent_max(codec), scratch,
                               &report, diag) != KVANT_OK)
            fail_msg("%s", diag->message);
        uint32_t sinks = block == 0 ? 5 : 0;
        kvant_assert_bytes((const float *)extent + sinks * row, fed_keys + (block * 32 + sinks) * row,
                           (32 - sinks) * row * sizeof(float));
    }
    free(extent);
    free(scratch);
    kvant_codec_close(codec);
    kvant_plan_free(plan);
    kvant_dump_close(dump);
}

static void samples_are_what_encode_gets(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        bool dump_before = i & 1, codec_before = i & 2, centred = i & 4;
        if (codec_before && centred) continue; /* refused: see calibrate_refuse.c */
        kvant_test_dump d = kvant_test_dump_default();
        d.keys_before_rope = dump_before;
        learner.on_sample = keep_keys;
        learning l = learning_run(
            learning_text(centred ? "sinks = 5\nartifact = learned.safetensors\nkey_center = artifact\n"
                                  : "sinks = 5\nartifact = learned.safetensors\n",
                          codec_before ? "before = yes\n" : ""),
            &d, 1);
        compare_with_encode(&l, &d);
        learning_free(&l);
    }
    free(fed_keys);
    fed_keys = NULL;
}

/* A codec of values alone sees keys after RoPE, as queries are. */
static void keys_of_another_codec_are_context(void **state) {
    (void)state;
    static const char text[] =
        "[pipeline]\nblock_tokens = 32\nsinks = 5\n[layers]\nkey = raw\nvalue = learner\n";
    float *posts;
    kvant_test_dump d = kvant_test_dump_default();
    size_t count = (size_t)d.tokens * d.kv_heads * d.key_dim;
    learner.on_sample = keep_keys;
    learning l = learning_run(text, &d, 1);
    learning_free(&l);
    posts = fed_keys;
    fed_keys = NULL;
    d.keys_before_rope = true;
    l = learning_run(text, &d, 1);
    assert_int_equal(l.info.tensor_count, 3);
    learning_free(&l);
    double error = 0, energy = 0;
    for (size_t i = 0; i < count; i++) {
        error += (double)(posts[i] - fed_keys[i]) * (double)(posts[i] - fed_keys[i]);
        energy += (double)posts[i] * (double)posts[i];
    }
    assert_true(error < 1e-6 * energy && energy > 0); /* two roundings to f16 apart */
    free(posts);
    free(fed_keys);
    fed_keys = NULL;
}

/* The default dump with further tensors; the caller frees the bytes. */
static kvant_text with_tensors(const kvant_array *more, uint32_t count) {
    kvant_test_dump d = kvant_test_dump_default();
    kvant_safetensors *st = NULL;
    kvant_array arrays[16];
    kvant_metadata metadata[16];
    kvant_text text = {0};
    kvant_test_dump_write(&d, learning_path("text0.safetensors"));
    assert_int_equal(kvant_safetensors_open(learning_path("text0.safetensors"), &st, NULL), KVANT_OK);
    uint32_t own = kvant_safetensors_count(st), strings = kvant_safetensors_metadata_count(st);
    assert_true(own + count <= 16 && strings <= 16);
    for (uint32_t i = 0; i < own; i++) arrays[i] = *kvant_safetensors_at(st, i);
    for (uint32_t i = 0; i < count; i++) arrays[own + i] = more[i];
    for (uint32_t i = 0; i < strings; i++) {
        metadata[i].key = kvant_safetensors_metadata_key(st, i);
        metadata[i].value = kvant_safetensors_metadata(st, metadata[i].key);
    }
    assert_int_equal(kvant_safetensors_pack(&text, arrays, own + count, metadata, strings, "d", NULL),
                     KVANT_OK);
    kvant_safetensors_close(st);
    return text;
}

static uint32_t importance_seen;

static void look_at_importance(const kvant_sample *sample) {
    assert_non_null(sample->tags);
    for (uint32_t t = 0; t < 150; t++) assert_int_equal(sample->tags[t], t % 5);
    assert_int_equal(sample->importance_count, sample->layer == 1 ? 2 : 0);
    if (sample->layer != 1) return;
    importance_seen++;
    assert_string_equal(sample->importance[0].name, "key_squared_gradient");
    assert_int_equal(sample->importance[0].shape[0], 150);
    assert_string_equal(sample->importance[1].name, "something");
}

static kvant_status learn_with(const kvant_array *more, uint32_t count, kvant_diag *diag) {
    static const char text[] = "[pipeline]\nblock_tokens = 32\n[layers]\nkey = learner\nvalue = learner\n";
    kvant_text bytes = with_tensors(more, count);
    kvant_pipeline *pipeline = NULL;
    kvant_calibration *learned = NULL;
    kvant_dump_source source = {
        .struct_size = sizeof source, .name = "more", .bytes = bytes.data, .size = bytes.size};
    assert_int_equal(kvant_pipeline_parse(text, strlen(text), "p.ini", NULL, &pipeline, diag), KVANT_OK);
    kvant_status status = kvant_calibration_run(pipeline, &source, 1, NULL, &learned, diag);
    kvant_calibration_free(learned);
    kvant_pipeline_free(pipeline);
    kvant_text_free(&bytes);
    return status;
}

/* What else the dump has on a layer, by name; and the tags, as they are. */
static void tags_and_importance_are_handed_over(void **state) {
    (void)state;
    size_t size = (size_t)150 * 2 * 32 * sizeof(float);
    float *gradient = calloc(1, size);
    uint8_t tags[150], something[3] = {1, 2, 3};
    assert_non_null(gradient);
    for (uint32_t t = 0; t < 150; t++) tags[t] = (uint8_t)(t % 5);
    kvant_array more[3] = {
        {.name = "tags", .data = tags, .shape = {150}, .bytes = 150, .dtype = KVANT_DTYPE_U8, .rank = 1},
        {.name = "layers.1.key_squared_gradient",
         .data = gradient,
         .shape = {150, 2, 32},
         .bytes = size,
         .dtype = KVANT_DTYPE_F32,
         .rank = 3},
        {.name = "layers.1.something",
         .data = something,
         .shape = {3},
         .bytes = 3,
         .dtype = KVANT_DTYPE_U8,
         .rank = 1}};
    kvant_diag diag = {.struct_size = sizeof diag};
    importance_seen = 0;
    learner.on_sample = look_at_importance;
    if (learn_with(more, 3, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    assert_int_equal(importance_seen, 2);
    learner.on_sample = NULL;
    more[1].shape[1] = 32; /* as many elements in another shape */
    more[1].shape[2] = 2;
    assert_int_equal(learn_with(more, 3, &diag), KVANT_ERROR_GEOMETRY);
    kvant_assert_contains(diag.message, "tensor \"layers.1.key_squared_gradient\" is not [tokens, 2, 32]");
    free(gradient);
}

/* ---- Means of keys ------------------------------------------------------------------------------------- */

static void means_are_those_of_every_key_but_sinks(void **state) {
    (void)state;
    for (int before = 0; before < 2; before++) {
        kvant_test_dump dumps[3];
        for (int i = 0; i < 3; i++) {
            dumps[i] = kvant_test_dump_default();
            dumps[i].seed = 11 + (uint64_t)i;
            dumps[i].tokens = 40 + 7 * (uint32_t)i;
            dumps[i].has_queries = dumps[i].has_values = false;
            dumps[i].keys_before_rope = before != 0;
        }
        learning l = learning_run("[pipeline]\nsinks = 6\nkey_center = artifact\nartifact = m.safetensors\n"
                                  "[layers]\nkey = uniform\nvalue = uniform\n[layers 1]\nkey = raw\n",
                                  dumps, 3);
        assert_int_equal(learner.sessions, 0);
        assert_int_equal(l.info.passes, 1);
        assert_int_equal(l.info.centered_layers, 2); /* raw is lossless and not centred */
        assert_int_equal(l.info.tensor_count, 2);
        kvant_artifact *artifact = artifact_of(&l);
        const kvant_array *center = tensor_of(artifact, 2, KVANT_SIDE_KEY, "center");
        assert_int_equal(center->dtype, KVANT_DTYPE_F32);
        assert_int_equal(center->rank, 2);
        assert_int_equal(center->shape[0], 2);
        assert_int_equal(center->shape[1], 32);
        assert_null(kvant_artifact_metadata(artifact, "value_dim"));
        assert_null(kvant_artifact_metadata(artifact, "q_heads"));
        assert_null(kvant_artifact_metadata(artifact, "layers.2.key.codec"));
        double sums[64] = {0}, tokens = 0;
        float turns[32], row[32];
        for (int i = 0; i < 3; i++) {
            char name[32];
            (void)snprintf(name, sizeof name, "text%d.safetensors", i);
            kvant_dump *dump = open_text(name);
            kvant_view keys;
            assert_true(kvant_dump_view(dump, 2, KVANT_SIDE_KEY, &keys));
            for (uint32_t t = 6; t < keys.tokens; t++, tokens++)
                for (uint32_t h = 0; h < 2; h++) {
                    kvant_load_row(&keys, t, h, row);
                    kvant_rope_turns(kvant_dump_geometry(dump)->layers[2].rope, t, turns);
                    if (before) kvant_rope_apply(kvant_dump_geometry(dump)->layers[2].rope, turns, row);
                    for (uint32_t c = 0; c < 32; c++) sums[h * 32 + c] += (double)row[c];
                }
            kvant_dump_close(dump);
        }
        for (size_t i = 0; i < 64; i++) kvant_assert_close(float_at(center, i), sums[i] / tokens, 1e-6);
        assert_true(fabs((double)float_at(center, 31)) > 0.1); /* a slow pair keeps its offset */
        kvant_artifact_close(artifact);
        learning_free(&l);
    }
}

/* ---- Bytes --------------------------------------------------------------------------------------------- */

static void same_texts_same_bytes(void **state) {
    (void)state;
    static const char centred[] = "key_center = artifact\nartifact = x.safetensors\n";
    kvant_test_dump dumps[2] = {kvant_test_dump_default(), kvant_test_dump_default()};
    dumps[1].seed = 3;
    learning a = learning_run(learning_text(centred, "sized = yes\n"), dumps, 2);
    learning b = learning_run(learning_text(centred, "sized = yes\n"), dumps, 2);
    assert_int_equal(a.info.size, b.info.size);
    kvant_assert_bytes(a.info.bytes, b.info.bytes, (size_t)a.info.size);
    assert_string_equal(a.info.digest, b.info.digest);
    /* Tensors are sorted by name: layers.0.key.center, layers.0.key.range, layers.0.value.range, ... */
    kvant_safetensors *st = NULL;
    assert_int_equal(kvant_safetensors_parse(a.info.bytes, (size_t)a.info.size, "a", &st, NULL), KVANT_OK);
    assert_int_equal(kvant_safetensors_count(st), 9);
    for (uint32_t i = 1; i < 9; i++)
        assert_true((const char *)kvant_safetensors_at(st, i - 1)->data <
                    (const char *)kvant_safetensors_at(st, i)->data);
    kvant_safetensors_close(st);
    dumps[1].seed = 4;
    learning c = learning_run(learning_text(centred, "sized = yes\n"), dumps, 2);
    assert_string_not_equal(a.info.digest, c.info.digest);
    learning_free(&a);
    learning_free(&b);
    learning_free(&c);
}

static void texts_may_lie_in_memory(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    learning l = learning_run(learning_text("", ""), &d, 1);
    kvant_test_bytes bytes = kvant_test_read(learning_path("text0.safetensors"));
    kvant_dump_source source = {
        .struct_size = sizeof source, .name = "in memory", .bytes = bytes.bytes, .size = bytes.size};
    kvant_calibration *again = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_calibration_run(l.pipeline, &source, 1, NULL, &again, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    kvant_calibration_info info = {.struct_size = sizeof info};
    assert_int_equal(kvant_calibration_describe(again, &info), KVANT_OK);
    assert_string_equal(info.digest, l.info.digest);
    kvant_calibration_free(again);
    free(bytes.bytes);
    learning_free(&l);
}

static void count_progress(void *context, uint32_t pass, uint32_t layer, uint32_t layers) {
    uint32_t *calls = context;
    assert_int_equal(pass, *calls / 3 + 1);
    assert_int_equal(layer, *calls % 3);
    assert_int_equal(layers, 3);
    ++*calls;
}

static void progress_is_told(void **state) {
    (void)state;
    kvant_test_dump d = kvant_test_dump_default();
    learning l = learning_run(learning_text("", ""), &d, 1);
    uint32_t calls = 0;
    kvant_calibration_options options = {
        .struct_size = sizeof options, .progress = count_progress, .context = &calls};
    kvant_dump_source source = {.struct_size = sizeof source, .name = learning_path("text0.safetensors")};
    kvant_calibration *again = NULL;
    assert_int_equal(kvant_calibration_run(l.pipeline, &source, 1, &options, &again, NULL), KVANT_OK);
    assert_int_equal(calls, 6);
    kvant_calibration_free(again);
    learning_free(&l);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(two_passes_learn_from_all_texts, learner_setup),
        cmocka_unit_test_setup(metadata_say_what_it_was_learned_from, learner_setup),
        cmocka_unit_test_setup(samples_come_layer_by_layer_and_again, learner_setup),
        cmocka_unit_test_setup(samples_are_what_encode_gets, learner_setup),
        cmocka_unit_test_setup(keys_of_another_codec_are_context, learner_setup),
        cmocka_unit_test_setup(tags_and_importance_are_handed_over, learner_setup),
        cmocka_unit_test_setup(means_are_those_of_every_key_but_sinks, learner_setup),
        cmocka_unit_test_setup(same_texts_same_bytes, learner_setup),
        cmocka_unit_test_setup(texts_may_lie_in_memory, learner_setup),
        cmocka_unit_test_setup(progress_is_told, learner_setup)};
    return kvant_run_tests(tests, argc, argv);
}
