/* Public faults of other projects: tails, appends, windows, rollback. Each test is named after one; the
 * comment gives report and cause, the test what is right. */
#include "support/cache_rig.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where the codes of a sequence that only grew must end. */
static uint32_t coded(const rig *r, uint32_t length) {
    return (length > r->recent ? length - r->recent : 0) / r->block_tokens * r->block_tokens;
}

static kvant_bytes estimate(const rig *r, uint64_t tokens) {
    kvant_bytes least = {.struct_size = sizeof least}, most = {.struct_size = sizeof most};
    rig_ok(kvant_cache_estimate(r->plan, tokens, &least, &most, &rig_diag));
    assert_int_equal(least.total, most.total);
    return most;
}

/* F23 (rajveer43/VeloxQuant-MLX#89): KIVI aged tokens by the length of the call, so decoding one by one never
 * encoded anything. Right: what is raw follows from the sequence's length alone, and bytes shrink. */
static void f23_window_never_exceeds_recent(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){0});
    kvant_sequence *s = rig_sequence(r);
    uint64_t *ids = rig_ids(600, 23);
    rig_take(r, s, &(rig_step){.ids = ids, .count = 300});
    for (uint32_t n = 300; n < 600; n++) {
        rig_take(r, s, &(rig_step){.ids = ids + n, .count = 1});
        assert_int_equal(rig_info(s).tail_first, coded(r, n + 1));
        assert_int_equal(rig_bytes(s).raw, estimate(r, n + 1).raw);
    }
    rig_assert_rows(r, s, ids);
    uint64_t raw_rows = 0;
    for (uint32_t l = 0; l < r->geometry.layer_count; l++)
        raw_rows +=
            UINT64_C(2) * 600 * r->layers[l].kv_heads * (r->layers[l].key_dim + r->layers[l].value_dim);
    assert_true(rig_bytes(s).payload * 6 < raw_rows); /* 2 bits of 16, and the tail */
    kvant_sequence_free(s);
    free(ids);
    rig_close(r);
}

/* F24 (huggingface/transformers#35760, #35185): the first step's rows were quantized at once, a first step
 * of one token too. Right: `recent` holds from token 0 on. */
static void f24_one_token_first(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){0});
    kvant_sequence *s = rig_sequence(r);
    uint64_t *ids = rig_ids(120, 24);
    for (uint32_t n = 0; n < 120; n++) {
        rig_take(r, s, &(rig_step){.ids = ids + n, .count = 1});
        assert_int_equal(rig_info(s).tail_first, coded(r, n + 1));
        if (n < 3 || n % 13 == 0) rig_assert_rows(r, s, ids);
    }
    kvant_sequence *whole = rig_sequence(r); /* nor is a long first step encoded to its end */
    rig_take(r, whole, &(rig_step){.ids = ids, .count = 51});
    assert_int_equal(rig_info(whole).tail_first, 0);
    rig_assert_rows(r, whole, ids);
    kvant_sequence_free(whole);
    kvant_sequence_free(s);
    free(ids);
    rig_close(r);
}

/* F25 (KIVI, llama_kivi.py): asserts that the window holds R + 1 rows, so decoding takes one token a step
 * only. Right: any cut into steps, speculation at the edge of the window too, gives the same bytes. */
static void f25_any_chunking_same_bytes(void **state) {
    (void)state;
    enum { TOKENS = 333 };
    static const uint32_t chunks[] = {1, 3, 19, 20, 21, 31, 32, 33, 100};
    rig *r = rig_open(&(rig_wish){.model = ""});
    uint64_t *ids = rig_ids(TOKENS, 25);
    kvant_sequence *whole = rig_sequence(r);
    rig_take(r, whole, &(rig_step){.ids = ids, .count = TOKENS});
    rig_assert_rows(r, whole, ids);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++) {
        kvant_sequence *s = rig_sequence(r);
        rig_grow(r, s, ids, TOKENS, chunks[i]);
        rig_assert_alike(r, s, r, whole);
        kvant_sequence_free(s);
    }
    /* Three tokens a step, of which two are guesses and one is dropped again; guesses age nothing. */
    kvant_sequence *s = rig_sequence(r);
    for (uint32_t at = 0; at + 3 <= TOKENS; at += 2) {
        rig_take(r, s, &(rig_step){.ids = ids + at, .count = 3, .tentative = 2, .dropped = 1});
        assert_int_equal(rig_info(s).tail_first, coded(r, at + 1));
    }
    rig_grow(r, s, ids, TOKENS, 1);
    rig_assert_alike(r, s, r, whole);
    kvant_sequence_free(s);
    kvant_sequence_free(whole);
    free(ids);
    rig_close(r);
}

/* The same without a window: wrong guesses fill blocks, and are not in them. */
static void f25_guesses_are_never_encoded(void **state) {
    (void)state;
    enum { TOKENS = 133 };
    static const char text[] = "[pipeline]\nblock_tokens = 32\n[layers]\nkey = uniform\nvalue = uniform\n";
    rig *r = rig_open(&(rig_wish){.text = text, .model = ""});
    uint64_t *ids = rig_ids(TOKENS, 250);
    kvant_sequence *whole = rig_sequence(r), *s = rig_sequence(r);
    rig_take(r, whole, &(rig_step){.ids = ids, .count = TOKENS});
    for (uint32_t at = 0; at < TOKENS; at++) {
        const uint64_t guess[6] = {ids[at], 1, 2, 3, 4, 5};
        rig_take(r, s, &(rig_step){.ids = guess, .count = 6, .tentative = 5, .dropped = 5});
        assert_int_equal(rig_info(s).length, at + 1);
        assert_int_equal(rig_info(s).tail_first, coded(r, at + 1));
    }
    rig_assert_rows(r, s, ids);
    rig_assert_alike(r, s, r, whole);
    kvant_sequence_free(s);
    kvant_sequence_free(whole);
    free(ids);
    rig_close(r);
}

static const kvant_layer_geometry windowed[2] = {{.struct_size = sizeof windowed[0],
                                                  .kv_heads = 2,
                                                  .q_heads = 2,
                                                  .total_kv_heads = 2,
                                                  .key_dim = 16,
                                                  .value_dim = 16},
                                                 {.struct_size = sizeof windowed[0],
                                                  .kv_heads = 1,
                                                  .q_heads = 3,
                                                  .total_kv_heads = 1,
                                                  .key_dim = 16,
                                                  .value_dim = 24,
                                                  .window = 40}};

/* F26 (ml-explore/mlx-swift-lm#424, mlx#1427): once the ring had wrapped, trim() returned 0, which nobody
 * read. Right: exact, or an error that leaves everything as it was. */
static void f26_rollback_is_exact_or_refused(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){.layers = windowed, .layer_count = 2, .model = ""});
    kvant_sequence *s = rig_sequence(r), *shorter = rig_sequence(r);
    uint64_t *ids = rig_ids(400, 26);
    rig_grow(r, s, ids, 400, 7);
    rig_grow(r, shorter, ids, 398, 7);
    rig_ok(kvant_sequence_truncate(s, 398, &rig_diag));
    assert_int_equal(rig_info(s).length, 398);
    rig_assert_alike(r, s, r, shorter);
    rig_grow(r, s, ids, 400, 1);
    rig_assert_rows(r, s, ids);
    /* The next token would see positions 61 to 99 of layer 1: blocks 1 to 3 are gone there. */
    rig_picture *before = rig_look(r, s);
    rig_refused(kvant_sequence_truncate(s, 100, &rig_diag), KVANT_ERROR_UNSUPPORTED, "layer 1");
    assert_non_null(strstr(rig_diag.message, "block"));
    rig_assert_still(r, s, before);
    kvant_sequence_free(s);
    kvant_sequence_free(shorter);
    free(ids);
    rig_close(r);
}

/* F27 (Blaizzy/mlx-vlm#1446): "cannot be trimmed" was guessed from the kind of cache. Right: whatever the
 * codec, a cut to any length is exact, and what cannot be cut says so (F26). */
static void f27_every_codec_can_be_cut(void **state) {
    (void)state;
    static const char *const codecs[] = {"raw", "uniform", "kivi", "turboquant", "hack"};
    static const uint32_t cuts[] = {150, 129, 128, 127, 97, 40, 33, 1, 0};
    static const kvant_layer_geometry layer = {.struct_size = sizeof layer,
                                               .kv_heads = 2,
                                               .q_heads = 4,
                                               .total_kv_heads = 2,
                                               .key_dim = 64,
                                               .value_dim = 64};
    uint64_t *ids = rig_ids(192, 27);
    for (size_t i = 0; i < sizeof codecs / sizeof codecs[0]; i++) {
        char text[256];
        (void)snprintf(text, sizeof text,
                       "[pipeline]\nblock_tokens = 64\nrecent = 9\n[layers]\nkey = %s\nvalue = %s\n",
                       codecs[i], codecs[i]);
        rig *r = rig_open(&(rig_wish){.text = text, .layers = &layer, .layer_count = 1});
        kvant_sequence *s = rig_sequence(r);
        rig_grow(r, s, ids, 180, 50);
        for (size_t k = 0; k < sizeof cuts / sizeof cuts[0]; k++) {
            rig_ok(kvant_sequence_truncate(s, cuts[k], &rig_diag));
            assert_int_equal(rig_info(s).length, cuts[k]);
            assert_int_equal(rig_info(s).tail_first, cuts[k] < 128 ? cuts[k] : 128);
            rig_assert_rows(r, s, ids);
        }
        kvant_sequence_free(s);
        rig_close(r);
    }
    free(ids);
}

/* F28 (waybarrios/vllm-mlx#69): the trim after a prefix hit was skipped, and memory grew to what it was
 * without a cache. Right: bytes of what is cut off come back. */
static void f28_bytes_fall_when_cut(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){.model = ""});
    kvant_sequence *s = rig_sequence(r);
    uint64_t *ids = rig_ids(722, 28);
    rig_grow(r, s, ids, 116, 116); /* three blocks, and 20 tokens */
    uint64_t free_before = rig_report(r).free;
    rig_picture *before = rig_look(r, s);
    rig_grow(r, s, ids, 722, 50); /* 21 blocks, and 50 tokens in two pages */
    assert_true(rig_report(r).free < free_before);
    rig_ok(kvant_sequence_truncate(s, 96, &rig_diag));
    rig_grow(r, s, ids, 116, 20);
    rig_assert_still(r, s, before);
    assert_int_equal(rig_report(r).free, free_before);
    kvant_sequence_reset(s);
    assert_int_equal(rig_bytes(s).total - rig_bytes(s).tables, 0);
    assert_int_equal(rig_report(r).free, rig_report(r).capacity);
    kvant_sequence_free(s);
    free(ids);
    rig_close(r);
}

/* F29 (microsoft/onnxruntime#28059, review): the packed width was derived only where a past existed, so the
 * first prefill was laid out wrong. Right: the first call of a cache is like any other. */
static void f29_first_call_like_any_other(void **state) {
    (void)state;
    rig *fresh = rig_open(&(rig_wish){0}), *used = rig_open(&(rig_wish){0});
    uint64_t *ids = rig_ids(200, 29), *others = rig_ids(300, 290);
    float *outputs = malloc(rig_outputs(fresh, 200) * sizeof *outputs);
    assert_non_null(outputs);
    kvant_sequence *a = rig_sequence(fresh), *b = rig_sequence(used);
    rig_grow(used, b, others, 300, 41);
    kvant_sequence_free(b);
    b = rig_sequence(used);
    rig_take(fresh, a, &(rig_step){.ids = ids, .count = 200, .outputs = outputs});
    rig_take(used, b, &(rig_step){.ids = ids, .count = 200});
    rig_assert_outputs(fresh, ids, 0, 200, 0, outputs);
    rig_assert_rows(fresh, a, ids);
    rig_assert_alike(fresh, a, used, b);
    assert_int_equal(rig_bytes(a).total, rig_bytes(b).total);
    kvant_sequence_free(a);
    kvant_sequence_free(b);
    free(ids);
    free(others);
    free(outputs);
    rig_close(fresh);
    rig_close(used);
}

/* F30 (ggml-org/llama.cpp#4097): each shift of the context turned and requantized all keys, and the text
 * decayed. Right: dropping the oldest tokens, cutting and growing again encode nothing anew. */
static void f30_hundred_shifts(void **state) {
    (void)state;
    enum { TOKENS = 500, SHIFT = 3 };
    rig *r = rig_open(&(rig_wish){0});
    kvant_sequence *s = rig_sequence(r);
    uint64_t *ids = rig_ids(TOKENS + 100, 30);
    rig_grow(r, s, ids, TOKENS, 100);
    for (uint32_t i = 0; i < 100; i++) {
        uint32_t length = (uint32_t)rig_info(s).length;
        rig_ok(kvant_sequence_drop(s, 4 + SHIFT * i, SHIFT, &rig_diag));
        rig_take(r, s, &(rig_step){.ids = ids + length, .count = 1});
        assert_int_equal(rig_info(s).length, length + 1);
        assert_int_equal(rig_info(s).live_tokens, length + 1 - SHIFT * (i + 1));
    }
    uint32_t first = 4 + SHIFT * 100, count = TOKENS + 100 - first;
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t side = 0; side < 2; side++) {
            size_t row = (size_t)r->layers[l].kv_heads *
                         (side == KVANT_SIDE_KEY ? r->layers[l].key_dim : r->layers[l].value_dim);
            float *want = rig_expected(r, l, side, ids, TOKENS + 100, coded(r, TOKENS + 100));
            float *got = rig_read(r, s, l, side, first, count);
            kvant_assert_bytes(got, want + first * row, count * row * sizeof *got);
            free(want);
            free(got);
        }
    kvant_sequence_free(s);
    free(ids);
    rig_close(r);
}

/* F31 (huggingface/transformers, StaticLayer.get_seq_length): the length was inferred from rows that are not
 * zero. Right: a token is there because it was given. */
static void f31_rows_of_zeros_count(void **state) {
    (void)state;
    enum { TOKENS = 150 };
    static const kvant_layer_geometry layer = {.struct_size = sizeof layer,
                                               .kv_heads = 1,
                                               .q_heads = 1,
                                               .total_kv_heads = 1,
                                               .key_dim = 32,
                                               .value_dim = 32};
    rig *r = rig_open(&(rig_wish){.layers = &layer, .layer_count = 1});
    kvant_sequence *s = rig_sequence(r);
    uint64_t *ids = rig_ids(TOKENS, 31);
    uint16_t *zeros = calloc(TOKENS, 64);
    assert_non_null(zeros);
    const kvant_view rows = {sizeof rows, KVANT_DTYPE_F16, zeros, TOKENS, 1, 32, 0, 64, 64, 2};
    rig_ok(rig_begin(s, &(rig_step){.ids = ids, .count = TOKENS}));
    rig_ok(kvant_step_put(s, 0, &rows, &rows, &rig_diag));
    rig_ok(kvant_step_commit(s, TOKENS, &rig_diag));
    assert_int_equal(rig_info(s).length, TOKENS);
    assert_int_equal(rig_info(s).live_tokens, TOKENS);
    /* All weigh the same: the log-sum-exp counts them. */
    float query[32], output[32], log_sum_exp;
    for (uint32_t c = 0; c < 32; c++) query[c] = 1 + (float)c;
    const kvant_view q = {sizeof q, KVANT_DTYPE_F32, query, 1, 1, 32, 0, 128, 128, 4};
    const kvant_mutable_view o = rig_view(output, KVANT_DTYPE_F32, 1, 1, 32);
    const kvant_token_range range = {0, TOKENS};
    const kvant_attend_part part = {.struct_size = sizeof part,
                                    .sequence = s,
                                    .queries = &q,
                                    .ranges = &range,
                                    .outputs = &o,
                                    .log_sum_exp = &log_sum_exp};
    const kvant_attention_options options = {.struct_size = sizeof options, .scale = 1};
    size_t size = kvant_cache_attend_scratch(r->cache, 0, &part, 1, &options);
    void *scratch = aligned_alloc(64, (size + 64) / 64 * 64);
    rig_ok(kvant_cache_attend(r->cache, 0, &part, 1, &options, scratch, size, &rig_diag));
    kvant_assert_close(log_sum_exp, log(TOKENS), 1e-5);
    kvant_assert_close(output[7], 0, 0);
    free(scratch);
    free(zeros);
    free(ids);
    kvant_sequence_free(s);
    rig_close(r);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(f23_window_never_exceeds_recent),
        cmocka_unit_test(f24_one_token_first),
        cmocka_unit_test(f25_any_chunking_same_bytes),
        cmocka_unit_test(f25_guesses_are_never_encoded),
        cmocka_unit_test(f26_rollback_is_exact_or_refused),
        cmocka_unit_test(f27_every_codec_can_be_cut),
        cmocka_unit_test(f28_bytes_fall_when_cut),
        cmocka_unit_test(f29_first_call_like_any_other),
        cmocka_unit_test(f30_hundred_shifts),
        cmocka_unit_test(f31_rows_of_zeros_count),
    };
    return kvant_run_tests(tests, argc, argv);
}
