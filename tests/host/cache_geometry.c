/* What a cache may be made of: layers of different shape and window, types, sides of RoPE, centred keys,
 * sinks, tags, what is not finite, lengths around the borders, strides, cuts, threads. */
#include "support/cache_rig.h"
#include "support/scorer.h"
#include "support/scratch.h"
#include "support/test.h"
#include "support/tester.h"
#include "support/write_dump.h"

#include <kvant/kit/rope.h>
#include <kvant/kit/view.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYER(kv, q, k, v, ...)                                                                              \
    {                                                                                                        \
        .struct_size = sizeof(kvant_layer_geometry), .kv_heads = (kv), .q_heads = (q),                       \
        .total_kv_heads = (kv), .key_dim = (k), .value_dim = (v), __VA_ARGS__                                \
    }

static float *room_for(const rig *r, uint32_t tokens) {
    float *outputs = malloc((rig_outputs(r, tokens) + 1) * sizeof *outputs);
    assert_non_null(outputs);
    return outputs;
}

/* Steps of `chunk` tokens with attention, each checked; then all rows. */
static void walk(rig *r, const uint64_t *ids, uint32_t count, uint32_t chunk) {
    kvant_sequence *s = rig_sequence(r);
    float *outputs = room_for(r, chunk);
    for (uint32_t at = 0; at < count; at += chunk) {
        uint32_t n = count - at < chunk ? count - at : chunk;
        rig_take(r, s, &(rig_step){.ids = ids + at, .count = n, .outputs = outputs});
        rig_assert_outputs(r, ids, at, n, 0, outputs);
    }
    rig_assert_rows(r, s, ids);
    kvant_sequence_free(s);
    free(outputs);
}

/* ---- Shapes -------------------------------------------------------------------------------------------- */

/* GQA, MQA, MHA, key dim above and below the value's, odd dims, a window, each with a codec of its own. */
static void layers_of_different_shape(void **state) {
    (void)state;
    static const kvant_layer_geometry layers[] = {LAYER(2, 8, 32, 16, 0), LAYER(1, 7, 24, 40, 0),
                                                  LAYER(3, 3, 35, 13, 0), LAYER(2, 2, 64, 32, .window = 50),
                                                  LAYER(1, 1, 1, 1, 0)};
    static const char text[] =
        "[pipeline]\nblock_tokens = 32\nsinks = 2\nrecent = 17\n"
        "[codec k]\nplugin = kivi\nbits = 4\n[codec v]\nplugin = kivi\nbits = 2\ngroup = 8\n"
        "[layers]\nkey = k\nvalue = v\n"
        "[layers 2]\nkey = raw\nvalue = uniform\n"
        "[layers 3]\nkey = turboquant\nvalue = k\n"
        "[layers 4]\nkey = raw\nvalue = raw\n";
    uint64_t *ids = rig_ids(250, 1);
    rig *r = rig_open(&(rig_wish){.text = text, .layers = layers, .layer_count = 5});
    walk(r, ids, 250, 41);
    walk(r, ids + 1, 70, 1);
    rig_close(r);
    free(ids);
}

static void types_of_rows(void **state) {
    (void)state;
    static const uint32_t dtypes[] = {KVANT_DTYPE_F32, KVANT_DTYPE_F16, KVANT_DTYPE_BF16};
    uint64_t *ids = rig_ids(150, 2);
    for (uint32_t i = 0; i < 3; i++) {
        rig *r = rig_open(&(rig_wish){.dtype = dtypes[i]});
        walk(r, ids, 150, 37);
        rig_close(r);
    }
    free(ids);
}

/* Lengths around every border, each in one step and then one token more. */
static void lengths_around_the_borders(void **state) {
    (void)state;
    static const uint32_t lengths[] = {1, 2, 3, 4, 19, 20, 21, 31, 32, 33, 51, 52, 53, 64, 327};
    rig *r = rig_open(&(rig_wish){0}); /* blocks of 32, 3 sinks, 20 recent; 327 = ten blocks and 7 */
    uint64_t *ids = rig_ids(400, 3);
    float *outputs = room_for(r, 327);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        kvant_sequence *s = rig_sequence(r);
        uint32_t n = lengths[i];
        rig_take(r, s, &(rig_step){.ids = ids, .count = n, .outputs = outputs});
        rig_assert_outputs(r, ids, 0, n, 0, outputs);
        assert_int_equal(rig_info(s).length, n);
        assert_int_equal(rig_info(s).tail_first, n < 20 ? 0 : (n - 20) / 32 * 32);
        rig_assert_rows(r, s, ids);
        rig_take(r, s, &(rig_step){.ids = ids + n, .count = 1, .outputs = outputs});
        rig_assert_outputs(r, ids, n, 1, 0, outputs);
        rig_assert_rows(r, s, ids);
        kvant_sequence_free(s);
    }
    free(outputs);
    free(ids);
    rig_close(r);
}

static void an_empty_sequence(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){0});
    kvant_sequence *s = rig_sequence(r);
    kvant_sequence_info info = rig_info(s);
    assert_int_equal(info.length, 0);
    assert_int_equal(info.live_tokens, 0);
    assert_int_equal(info.blocks, 0);
    assert_true(info.private_first == UINT64_MAX);
    float query[6 * 32], output[6 * 16], log_sum_exp[6];
    for (size_t i = 0; i < 6 * 32; i++) query[i] = 1;
    memset(output, 0xff, sizeof output);
    const kvant_view q = {sizeof q, KVANT_DTYPE_F32, query, 1, 6, 32, 0, sizeof query, 128, 4};
    const kvant_mutable_view o = rig_view(output, KVANT_DTYPE_F32, 1, 6, 16);
    const kvant_token_range range = {0, 1000};
    const kvant_attend_part part = {.struct_size = sizeof part,
                                    .sequence = s,
                                    .queries = &q,
                                    .ranges = &range,
                                    .outputs = &o,
                                    .log_sum_exp = log_sum_exp};
    const kvant_attention_options options = {.struct_size = sizeof options, .scale = 1};
    size_t size = kvant_cache_attend_scratch(r->cache, 0, &part, 1, &options);
    void *scratch = aligned_alloc(64, (size + 64) / 64 * 64);
    rig_ok(kvant_cache_attend(r->cache, 0, &part, 1, &options, scratch, size, &rig_diag));
    for (uint32_t i = 0; i < 6 * 16; i++) assert_true(output[i] == 0);
    for (uint32_t h = 0; h < 6; h++) assert_true(isinf(log_sum_exp[h]) && log_sum_exp[h] < 0);
    free(scratch);
    kvant_sequence_free(s);
    rig_close(r);
}

/* ---- Windows ------------------------------------------------------------------------------------------- */

static const kvant_layer_geometry windowed[] = {LAYER(2, 4, 32, 16, .window = 40),
                                                LAYER(1, 2, 32, 16, .window = 90)};

/* Layer by layer, extents go when they lie `window` tokens before the first raw one, and not before. */
static void windows_release(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){.layers = windowed, .layer_count = 2, .model = ""});
    uint64_t *ids = rig_ids(500, 4);
    kvant_sequence *s = rig_sequence(r);
    uint64_t extents[2] = {0, 0};
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t side = 0; side < 2; side++) {
            kvant_row row = {.struct_size = sizeof row};
            rig_ok(kvant_plan_row(r->plan, l, side, &row));
            extents[l] += row.layout->payload_bits / 8;
        }
    for (uint32_t n = 1; n <= 500; n++) {
        rig_take(r, s, &(rig_step){.ids = ids + n - 1, .count = 1});
        uint64_t blocks = n > 20 ? (n - 20) / 32 : 0, gone[2], payload = 0;
        for (uint32_t l = 0; l < 2; l++) {
            uint64_t window = windowed[l].window;
            gone[l] = blocks * 32 > window ? (blocks * 32 - window) / 32 : 0;
            payload += (blocks - gone[l]) * extents[l];
        }
        assert_int_equal(rig_bytes(s).payload, payload);
        if (n % 61 == 0) rig_assert_rows(r, s, ids);
    }
    kvant_sequence_free(s);
    free(ids);
    rig_close(r);
}

/* A cut goes as far as what the next token sees is there; a message says which layer and block is in the
 * way. */
static void a_cut_never_exposes_what_is_gone(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){.layers = windowed, .layer_count = 2, .model = ""});
    uint64_t *ids = rig_ids(500, 5);
    float *outputs = room_for(r, 1);
    for (uint32_t length = 499; length > 0; length -= length > 380 ? 7 : length > 29 ? 29 : 1) {
        kvant_sequence *s = rig_sequence(r);
        rig_grow(r, s, ids, 500, 100);
        rig_picture *before = rig_look(r, s);
        rig_diag.message[0] = '\0';
        kvant_status status = kvant_sequence_truncate(s, length, &rig_diag);
        /* Codes end at 480. Gone are blocks that end at 480 - 40 or before in layer 0, so positions below
         * 416, and at 480 - 90 in layer 1, below 384; the next token sees those above length - 40 and
         * length - 90. Among the sinks all is raw. */
        bool here = length <= 3 || (length >= 416 + 39 && length >= 384 + 89);
        if (here) {
            assert_int_equal(status, KVANT_OK);
            rig_picture_free(before);
            rig_take(r, s, &(rig_step){.ids = ids + length, .count = 1, .outputs = outputs});
            rig_assert_outputs_over(r, ids, length, 1,
                                    length <= 3    ? 0
                                    : length < 480 ? length
                                                   : 480,
                                    outputs);
        } else {
            assert_int_equal(status, KVANT_ERROR_UNSUPPORTED);
            assert_non_null(strstr(rig_diag.message, "layer "));
            assert_non_null(strstr(rig_diag.message, "block "));
            rig_assert_still(r, s, before);
        }
        kvant_sequence_free(s);
    }
    free(outputs);
    free(ids);
    rig_close(r);
}

/* A match ends where an extent that the next token would see is absent, though the block itself is there.
 * Here one sequence of 200 tokens and one of 400 have released what they do not see any more. */
static void a_match_ends_where_an_extent_is_absent(void **state) {
    (void)state;
    enum { TOKENS = 400 };
    rig *r = rig_open(&(rig_wish){.layers = windowed, .layer_count = 2}), *cold = rig_open(&r->wish);
    uint64_t *ids = rig_ids(TOKENS, 6);
    float *x = room_for(r, TOKENS), *y = room_for(r, TOKENS);
    kvant_sequence *short_one = rig_sequence(r), *s = NULL;
    rig_grow(r, short_one, ids, 200, 100);
    rig_ok(kvant_sequence_fork(short_one, &s, &rig_diag));
    rig_grow(r, s, ids, TOKENS, 100);
    kvant_sequence_free(s);
    assert_int_equal(rig_report(r).indexed, (TOKENS - 20) / 32);
    for (uint32_t end = 60; end <= TOKENS; end += 12) {
        /* The end of either's codes can be gone on from: at 160 the next token sees positions above 120 of
         * layer 0 (kept from 96 on) and 70 of layer 1 (from 64 on), at 352 those above 312 (from 288 on) and
         * 262 (from 256 on). Between, something is missing. */
        uint32_t found = end < 160 + 20 ? 0 : end < 352 + 20 ? 160 : 352;
        kvant_match *match = rig_lookup(r, ids, NULL, end, NULL, end);
        assert_int_equal(kvant_match_tokens(match), found);
        rig_ok(kvant_sequence_create_from(match, &s, &rig_diag));
        kvant_match_release(match);
        kvant_sequence *t = rig_sequence(cold);
        if (found > 0) rig_take(cold, t, &(rig_step){.ids = ids, .count = found});
        rig_take(cold, t, &(rig_step){.ids = ids + found, .count = end - found, .outputs = x});
        rig_take(r, s, &(rig_step){.ids = ids + found, .count = end - found, .outputs = y});
        kvant_assert_bytes(y, x, rig_outputs(r, end - found) * sizeof *x);
        kvant_sequence_free(s);
        kvant_sequence_free(t);
    }
    kvant_sequence_free(short_one);
    free(x);
    free(y);
    free(ids);
    rig_close(r);
    rig_close(cold);
}

/* ---- Keys ---------------------------------------------------------------------------------------------- */

/* The caller's side of RoPE and the codec's, all four pairs; a whole and a partial rotation. */
static void both_sides_of_rope(void **state) {
    (void)state;
    static const char *const codecs[] = {"kivi", "scorer", "scorer_before"};
    double frequency[16];
    kvant_rope_inverse_frequency(10000, 32, frequency);
    const kvant_rope whole = {sizeof whole, KVANT_ROPE_NEOX, 32, 0, 1, frequency};
    const kvant_rope part = {sizeof part, KVANT_ROPE_GPTJ, 16, 0, 1, frequency};
    const kvant_layer_geometry layers[2] = {LAYER(2, 4, 32, 16, .rope = &whole),
                                            LAYER(1, 3, 32, 16, .rope = &part)};
    uint64_t *ids = rig_ids(120, 7);
    scorer_register();
    for (uint32_t i = 0; i < 6; i++) {
        char text[256];
        (void)snprintf(
            text, sizeof text,
            "[pipeline]\nblock_tokens = 32\nsinks = 2\nrecent = 9\n[layers]\nkey = %s\nvalue = raw\n",
            codecs[i % 3]);
        rig *r = rig_open(&(rig_wish){.text = text,
                                      .layers = layers,
                                      .layer_count = 2,
                                      .dtype = KVANT_DTYPE_F32,
                                      .keys = i / 3 ? KVANT_KEYS_BEFORE_ROPE : KVANT_KEYS_AFTER_ROPE});
        walk(r, ids, 120, 23);
        rig_close(r);
    }
    free(ids);
}

/* Means that a calibration learned from a text: rows and outputs are true ones, and codes differ. */
static void centred_keys(void **state) {
    (void)state;
    static const char plain[] = "[pipeline]\nblock_tokens = 32\nsinks = 2\nrecent = 9\n"
                                "[codec c]\nplugin = turboquant\nbits = 4\n[layers]\nkey = c\nvalue = raw\n";
    static const char text[] = "[pipeline]\nblock_tokens = 32\nsinks = 2\nrecent = 9\nkey_center = artifact\n"
                               "artifact = a.safetensors\n"
                               "[codec c]\nplugin = turboquant\nbits = 4\n[layers]\nkey = c\nvalue = raw\n";
    char *folder = kvant_scratch_make(), *dump_file = kvant_scratch_path(folder, "text.safetensors"),
         *artifact = kvant_scratch_path(folder, "a.safetensors");
    kvant_test_dump dump = kvant_test_dump_default();
    kvant_pipeline *pipeline = NULL;
    kvant_calibration *learned = NULL;
    const kvant_dump_source source = {.struct_size = sizeof source, .name = dump_file};
    dump.layers = 2;
    kvant_test_dump_write(&dump, dump_file);
    rig_ok(kvant_pipeline_parse(text, strlen(text), "c.ini", folder, &pipeline, &rig_diag));
    rig_ok(kvant_calibration_run(pipeline, &source, 1, NULL, &learned, &rig_diag));
    rig_ok(kvant_calibration_write(learned, artifact, &rig_diag));
    kvant_calibration_free(learned);
    kvant_pipeline_free(pipeline);

    double frequency[16];
    kvant_rope_inverse_frequency(10000, dump.key_dim, frequency);
    const kvant_rope rope = {sizeof rope, KVANT_ROPE_NEOX, dump.key_dim, 0, 1, frequency};
    const kvant_layer_geometry layers[2] = {
        LAYER(dump.kv_heads, dump.q_heads, dump.key_dim, dump.value_dim, .rope = &rope),
        LAYER(dump.kv_heads, dump.q_heads, dump.key_dim, dump.value_dim, .rope = &rope)};
    rig_wish wish = {
        .text = text, .directory = folder, .layers = layers, .layer_count = 2, .model = dump.model};
    uint64_t *ids = rig_ids(120, 8);
    rig *r = rig_open(&wish);
    walk(r, ids, 120, 17);
    wish.text = plain;
    rig *without = rig_open(&wish);
    kvant_sequence *a = rig_sequence(r), *b = rig_sequence(without);
    rig_grow(r, a, ids, 120, 120);
    rig_grow(without, b, ids, 120, 120);
    float *x = rig_read(r, a, 1, KVANT_SIDE_KEY, 0, 96), *y = rig_read(without, b, 1, KVANT_SIDE_KEY, 0, 96);
    assert_memory_not_equal(x, y, (size_t)96 * dump.kv_heads * dump.key_dim * sizeof *x);
    free(x);
    free(y);
    kvant_sequence_free(a);
    kvant_sequence_free(b);
    rig_close(r);
    rig_close(without);
    free(ids);
    free(dump_file);
    free(artifact);
    kvant_scratch_remove(folder);
}

/* ---- Sinks, tags, numbers that are not finite ---------------------------------------------------------- */

/* Sinks stay as they are and leave no trace in the codes beside them. */
static void sinks_stay_apart(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){0});
    uint64_t *ids = rig_ids(100, 9), *other = rig_ids(100, 9);
    for (uint32_t t = 0; t < 3; t++) other[t] += 1000;
    kvant_sequence *a = rig_sequence(r), *b = rig_sequence(r);
    rig_grow(r, a, ids, 100, 100);
    rig_grow(r, b, other, 100, 13);
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t side = 0; side < 2; side++) {
            size_t row = (size_t)r->layers[l].kv_heads *
                         (side == KVANT_SIDE_KEY ? r->layers[l].key_dim : r->layers[l].value_dim);
            float *x = rig_read(r, a, l, side, 0, 64), *y = rig_read(r, b, l, side, 0, 64);
            unsigned char *given = rig_rows(r, l, side, ids, 0, 3);
            assert_memory_not_equal(x, y, 3 * row * sizeof *x);
            kvant_assert_bytes(x + 3 * row, y + 3 * row, 61 * row * sizeof *x);
            for (size_t i = 0; i < 3 * row; i++)
                kvant_assert_close(x[i], kvant_load_element(given + 2 * i, KVANT_DTYPE_F16), 0);
            free(x);
            free(y);
            free(given);
        }
    rig_assert_rows(r, a, ids);
    /* Cut among the sinks: raw again, and as if it had never been longer. */
    rig_ok(kvant_sequence_truncate(a, 2, &rig_diag));
    assert_int_equal(rig_info(a).tail_first, 0);
    rig_grow(r, a, ids, 100, 100);
    rig_assert_rows(r, a, ids);
    kvant_sequence_free(a);
    kvant_sequence_free(b);
    free(ids);
    free(other);
    rig_close(r);
}

static const kvant_layer_geometry one_layer[] = {LAYER(2, 2, 16, 16, 0)};

/* A block is found where its tags are of the same classes: here tag % 7. */
static void tags_by_their_classes(void **state) {
    (void)state;
    static const char text[] = "[pipeline]\nblock_tokens = 16\n[layers]\nkey = tester_tags\nvalue = raw\n";
    rig *r = rig_open(&(rig_wish){.text = text, .layers = one_layer, .layer_count = 1});
    uint64_t *ids = rig_ids(100, 10);
    uint8_t tags[100], alike[100], other[100];
    for (uint32_t t = 0; t < 100; t++) {
        tags[t] = (uint8_t)(t % 5);
        alike[t] = other[t] = (uint8_t)(tags[t] + 7 * (t % 3));
    }
    other[37]++;
    kvant_sequence *s = rig_sequence(r);
    rig_take(r, s, &(rig_step){.ids = ids, .tags = tags, .count = 100});
    assert_int_equal(rig_found(r, ids, tags, 100, NULL), 96);
    assert_int_equal(rig_found(r, ids, alike, 100, NULL), 96);
    assert_int_equal(rig_found(r, ids, other, 100, NULL), 32);
    assert_int_equal(rig_found(r, ids, NULL, 100, NULL), 0);
    kvant_sequence_free(s);
    rig_close(r);
    /* Where no codec looks at tags, they do not matter. */
    r = rig_open(&(rig_wish){0});
    s = rig_sequence(r);
    rig_take(r, s, &(rig_step){.ids = ids, .tags = tags, .count = 100});
    assert_int_equal(rig_found(r, ids, other, 100, NULL), 64);
    kvant_sequence_free(s);
    free(ids);
    rig_close(r);
}

static kvant_view dense(const float *rows, uint32_t tokens) {
    return (kvant_view){sizeof(kvant_view), KVANT_DTYPE_F32, rows, tokens, 2, 16, 0, 128, 64, 4};
}

static void not_finite_is_refused(void **state) {
    (void)state;
    static const char text[] =
        "[pipeline]\nblock_tokens = 16\nrecent = 5\n[layers]\nkey = raw\nvalue = uniform\n";
    rig *r =
        rig_open(&(rig_wish){.text = text, .layers = one_layer, .layer_count = 1, .dtype = KVANT_DTYPE_F32});
    uint64_t *ids = rig_ids(60, 11);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, 20, 20);
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t token = 0; token < 40; token += 39) { /* one that is encoded at once, one that is not */
            rig_picture *before = rig_look(r, s);
            float rows[2][40 * 32];
            char place[64];
            for (uint32_t i = 0; i < 40 * 32; i++) rows[0][i] = rows[1][i] = (float)(i % 11);
            rows[side][token * 32 + 16 + 7] = token == 0 ? NAN : -INFINITY;
            kvant_view keys = dense(rows[0], 40), values = dense(rows[1], 40);
            rig_ok(rig_begin(s, &(rig_step){.ids = ids + 20, .count = 40}));
            rig_refused(kvant_step_put(s, 0, &keys, &values, &rig_diag), KVANT_ERROR_NOT_FINITE, "layer 0");
            (void)snprintf(place, sizeof place, "%u", 20 + token);
            assert_non_null(strstr(rig_diag.message, place));
            assert_non_null(strstr(rig_diag.message, side == KVANT_SIDE_KEY ? "key" : "value"));
            assert_non_null(strstr(rig_diag.message, "head 1"));
            assert_non_null(strstr(rig_diag.message, "channel 7"));
            rig_assert_still(r, s, before);
        }
    rig_grow(r, s, ids, 60, 40);
    rig_assert_rows(r, s, ids);
    kvant_sequence_free(s);
    free(ids);
    rig_close(r);
}

/* NaN becomes 0 and infinities the type's largest number, in codes; they are counted. */
static void not_finite_is_replaced(void **state) {
    (void)state;
    static const char text[] = "[pipeline]\nblock_tokens = 16\non_nonfinite = saturate\n"
                               "[layers]\nkey = raw\nvalue = raw\n";
    rig *r =
        rig_open(&(rig_wish){.text = text, .layers = one_layer, .layer_count = 1, .dtype = KVANT_DTYPE_F32});
    kvant_sequence *s = rig_sequence(r);
    float rows[2][16 * 32];
    for (uint32_t i = 0; i < 16 * 32; i++) rows[0][i] = rows[1][i] = (float)(i % 11);
    rows[0][5] = NAN;
    rows[0][77] = INFINITY;
    rows[1][300] = -INFINITY;
    kvant_view keys = dense(rows[0], 16), values = dense(rows[1], 16);
    rig_ok(rig_begin(s, &(rig_step){.count = 16, .unknown = true}));
    rig_ok(kvant_step_put(s, 0, &keys, &values, &rig_diag));
    rig_ok(kvant_step_commit(s, 16, &rig_diag));
    assert_int_equal(rig_info(s).tail_first, 16);
    assert_int_equal(rig_report(r).replaced, 3);
    rows[0][5] = 0;
    rows[0][77] = 3.402823466e38f;
    rows[1][300] = -3.402823466e38f;
    for (uint32_t side = 0; side < 2; side++) {
        float *got = rig_read(r, s, 0, side, 0, 16);
        kvant_assert_bytes(got, rows[side], sizeof rows[side]);
        free(got);
    }
    kvant_sequence_free(s);
    rig_close(r);
}

/* ---- Same rows, same bytes ----------------------------------------------------------------------------- */

/* A caller's loop: from the last index to the first, each with another thread's number. */
static void backwards(void *context, uint32_t count, uint32_t threads, kvant_loop_body *body,
                      void *argument) {
    uint32_t *calls = context;
    ++*calls;
    for (uint32_t i = count; i-- > 0;) body(argument, i, i % threads);
}

static void any_layout_cut_and_thread_count(void **state) {
    (void)state;
    enum { TOKENS = 300, LAST = 260 };
    static const kvant_layer_geometry layers[] = {LAYER(2, 6, 32, 16, 0), LAYER(3, 3, 32, 40, .window = 60)};
    uint64_t *ids = rig_ids(TOKENS, 12);
    uint32_t calls = 0;
    rig *plain = rig_open(&(rig_wish){.layers = layers, .layer_count = 2});
    kvant_sequence *s = rig_sequence(plain);
    float *want = room_for(plain, TOKENS - LAST), *got = room_for(plain, TOKENS - LAST);
    rig_take(plain, s, &(rig_step){.ids = ids, .count = LAST});
    rig_take(plain, s, &(rig_step){.ids = ids + LAST, .count = TOKENS - LAST, .outputs = want});
    for (uint32_t i = 0; i < 12; i++) {
        rig *r = rig_open(&(rig_wish){.layers = layers,
                                      .layer_count = 2,
                                      .threads = i % 4 == 0 ? 0 : 1 + i % 4,
                                      .loop = i % 4 == 3 ? backwards : NULL,
                                      .loop_context = &calls});
        kvant_sequence *t = rig_sequence(r);
        const uint32_t chunks[] = {LAST, 1, 7, 64}, chunk = chunks[i % 4 == 0 ? i / 4 : i % 3 + 1];
        for (uint32_t at = 0; at < LAST; at += chunk)
            rig_take(r, t,
                     &(rig_step){.ids = ids + at,
                                 .count = LAST - at < chunk ? LAST - at : chunk,
                                 .layout = i % 3,
                                 .outputs = NULL});
        rig_take(r, t,
                 &(rig_step){.ids = ids + LAST, .count = TOKENS - LAST, .layout = i / 4, .outputs = got});
        kvant_assert_bytes(got, want, rig_outputs(r, TOKENS - LAST) * sizeof *got);
        rig_assert_alike(r, t, plain, s);
        kvant_sequence_free(t);
        rig_close(r);
    }
    assert_true(calls > 0);
    kvant_sequence_free(s);
    rig_close(plain);
    free(want);
    free(got);
    free(ids);
}

static int setup(void **state) {
    (void)state;
    tester_register();
    tester = (tester_behaviour){0};
    return 0;
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_of_different_shape),
        cmocka_unit_test(types_of_rows),
        cmocka_unit_test(lengths_around_the_borders),
        cmocka_unit_test(an_empty_sequence),
        cmocka_unit_test(windows_release),
        cmocka_unit_test(a_cut_never_exposes_what_is_gone),
        cmocka_unit_test(a_match_ends_where_an_extent_is_absent),
        cmocka_unit_test(both_sides_of_rope),
        cmocka_unit_test(centred_keys),
        cmocka_unit_test(sinks_stay_apart),
        cmocka_unit_test_setup(tags_by_their_classes, setup),
        cmocka_unit_test(not_finite_is_refused),
        cmocka_unit_test(not_finite_is_replaced),
        cmocka_unit_test(any_layout_cut_and_thread_count),
    };
    return kvant_run_tests(tests, argc, argv);
}
