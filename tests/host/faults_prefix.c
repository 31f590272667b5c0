/* Public faults of other projects: what is found again by its prefix. Each test is named after one; the
 * comment gives report and cause, the test what is right. */
#include "support/cache_rig.h"
#include "support/cache_shipped.h"
#include "support/scratch.h"
#include "support/store_records.h"
#include "support/test.h"

#include "cache/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *room_for(const rig *r, uint32_t tokens) {
    float *outputs = malloc((rig_outputs(r, tokens) + 1) * sizeof *outputs);
    assert_non_null(outputs);
    return outputs;
}

static kvant_sequence *sequence_from(rig *r, const uint64_t *ids, uint32_t count, uint64_t first_step_end) {
    kvant_match *match = rig_lookup(r, ids, NULL, count, NULL, first_step_end);
    kvant_sequence *s = NULL;
    rig_ok(kvant_sequence_create_from(match, &s, &rig_diag));
    kvant_match_release(match);
    return s;
}

/* A cold run with the steps [0, at), [at, end), then three single tokens; a warm one that finds [0, at). */
static void cold_and_warm(rig *cold, rig *warm, const uint64_t *ids, uint32_t at, uint32_t end) {
    float *x = room_for(cold, end - at), *y = room_for(warm, end - at);
    kvant_sequence *a = rig_sequence(cold), *b = sequence_from(warm, ids, end, end);
    assert_int_equal(rig_info(b).length, at);
    rig_take(cold, a, &(rig_step){.ids = ids, .count = at});
    for (uint32_t n = at; n < end + 3; n = n == at ? end : n + 1) {
        uint32_t count = n == at ? end - at : 1;
        rig_take(cold, a, &(rig_step){.ids = ids + n, .count = count, .outputs = x});
        rig_take(warm, b, &(rig_step){.ids = ids + n, .count = count, .outputs = y});
        kvant_assert_bytes(y, x, rig_outputs(cold, count) * sizeof *x);
    }
    rig_assert_alike(warm, b, cold, a);
    kvant_sequence_free(a);
    kvant_sequence_free(b);
    free(x);
    free(y);
}

/* F36 (sgl-project/sglang#24198, #19603): the path of a prefix hit left out the scales of keys and values:
 * the first request was right, the second wrong. Right: with the same steps the same outputs, to the bit. */
static void f36_warm_is_cold(void **state) {
    (void)state;
    enum { TOKENS = 400 };
    uint64_t *ids = rig_ids(TOKENS, 36);
    rig *warm = rig_open(&(rig_wish){0});
    kvant_sequence *s = rig_sequence(warm);
    rig_grow(warm, s, ids, TOKENS, 90);
    kvant_sequence_free(s);
    for (uint32_t end = 84; end <= 170; end += end % 5 + 1) {
        rig *cold = rig_open(&(rig_wish){0}); /* where nothing is found */
        cold_and_warm(cold, warm, ids, (end - 20) / 32 * 32, end);
        rig_close(cold);
    }
    assert_int_equal(rig_found(warm, ids, NULL, 51, NULL), 0);
    assert_int_equal(rig_found(warm, ids, NULL, 52, NULL), 32);
    free(ids);
    rig_close(warm);
}

/* F37 (vllm-project/vllm#49438): the key said "auto" for the type, so engines of FP16 and of BF16 shared
 * files of equal size. Right: whatever changes bytes is in the key; one store serves all, and none finds
 * another's. */
static void f37_schemes_never_meet(void **state) {
    (void)state;
    enum { TOKENS = 150 };
    static const char four[] =
        "[pipeline]\nblock_tokens = 32\nsinks = 3\nrecent = 20\n[codec k]\nplugin = kivi\n"
        "bits = 4\ngroup = 32\n[codec v]\nplugin = kivi\nbits = 2\ngroup = 8\n"
        "[layers]\nkey = k\nvalue = v\n";
    static const char two_sinks[] =
        "[pipeline]\nblock_tokens = 32\nsinks = 2\nrecent = 20\n[codec k]\n"
        "plugin = kivi\nbits = 2\ngroup = 32\n[codec v]\nplugin = kivi\nbits = 2\n"
        "group = 8\n[layers]\nkey = k\nvalue = v\n";
    static const char renamed[] = "[pipeline]\nname = other\nblock_tokens = 32\nsinks = 3\nrecent = 20\n"
                                  "[codec x]\nplugin = kivi\nbits = 2\ngroup = 32\n[codec y]\nplugin = kivi\n"
                                  "bits = 2\ngroup = 8\n[layers]\nkey = x\nvalue = y\n";
    static kvant_layer_geometry rank[2], still[2];
    static const kvant_rope none = {.struct_size = sizeof none}; /* said: keys do not turn */
    const rig_wish wishes[] = {
        {0},
        {.dtype = KVANT_DTYPE_BF16},
        {.dtype = KVANT_DTYPE_F32},
        {.model = "rig/model@2"},
        {.text = four},
        {.text = two_sinks},
        {.layers = still, .layer_count = 2, .keys = KVANT_KEYS_BEFORE_ROPE},
        {.layers = rank, .layer_count = 2}, /* the other rank's heads */
    };
    enum { WISHES = sizeof wishes / sizeof wishes[0] };
    rig *any = rig_open(&(rig_wish){0});
    memcpy(rank, any->layers, sizeof rank);
    memcpy(still, any->layers, sizeof still);
    rig_close(any);
    for (uint32_t l = 0; l < 2; l++) {
        rank[l].first_kv_head = rank[l].kv_heads;
        rank[l].total_kv_heads = 2 * rank[l].kv_heads;
        still[l].rope = &none;
    }
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    kvant_store *store = NULL;
    uint64_t *ids = rig_ids(TOKENS, 37);
    const kvant_prefix prefix = {.struct_size = sizeof prefix, .ids = ids, .count = TOKENS};
    rig_ok(kvant_store_open_directory(directory, NULL, &store, &rig_diag));
    for (uint32_t i = 0; i < WISHES; i++) {
        rig *r = rig_open(&wishes[i]);
        kvant_sequence *s = NULL;
        uint32_t reason = 99;
        rig_ok(kvant_sequence_load(r->cache, store, &prefix, &s, &reason, &rig_diag));
        assert_int_equal(rig_info(s).length, 0); /* of all the schemes before */
        assert_int_equal(reason, KVANT_STORE_ABSENT);
        rig_grow(r, s, ids, TOKENS, TOKENS);
        kvant_saved saved = {.struct_size = sizeof saved};
        rig_ok(kvant_sequence_save(s, store, &saved, &rig_diag));
        assert_int_equal(saved.tokens, TOKENS);
        kvant_sequence_free(s);
        rig_close(r);
    }
    rig *same = rig_open(&(rig_wish){.text = renamed}); /* names are not in the key */
    kvant_sequence *s = NULL;
    rig_ok(kvant_sequence_load(same->cache, store, &prefix, &s, NULL, &rig_diag));
    assert_int_equal(rig_info(s).length, TOKENS);
    rig_assert_rows(same, s, ids);
    kvant_sequence_free(s);
    rig_close(same);
    kvant_store_close(store);
    free(ids);
    free(directory);
    kvant_scratch_remove(folder);
}

/* The block of a prefix in the cache's index. */
static cache_block *block_of(rig *r, const uint64_t *ids) {
    kvant_sequence *s = sequence_from(r, ids, 100, 100);
    assert_true(rig_info(s).length >= 32);
    cache_block *block = s->blocks[0];
    kvant_sequence_free(s);
    return block;
}

/* F38 (vllm-project/vllm#12621, vllm#15297 = GHSA-rm76-4mrf-v9r8, InternLM/lmdeploy#3353): a weak hash; who
 * made two prompts collide got another user's keys and values. Right: SHA-256, and tokens are compared all
 * the same; here with two prompts whose hashes are made equal by force. */
static void f38_equal_hashes_other_tokens(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){0});
    uint64_t *ids = rig_ids(100, 38), *other = rig_ids(100, 38);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, 100, 100);
    kvant_sequence_free(s);
    assert_int_equal(rig_found(r, ids, NULL, 100, NULL), 64);
    /* Each token in each of its bytes, and what a concatenation would not tell apart. */
    for (uint32_t t = 0; t < 32; t++)
        for (uint32_t bit = 0; bit < 64; bit += 21) {
            other[t] ^= UINT64_C(1) << bit;
            assert_int_equal(rig_found(r, other, NULL, 100, NULL), 0);
            other[t] = ids[t];
        }
    other[40] ^= 1;
    assert_int_equal(rig_found(r, other, NULL, 100, NULL), 32);
    other[40] = ids[40];
    assert_int_equal(rig_found(r, ids, NULL, 100, "tenant"), 0);
    assert_int_equal(rig_found(r, ids, NULL, 100, "t"), 0);
    /* The block under the key of `ids` is now that of other tokens. */
    cache_block *block = block_of(r, ids);
    block->ids[31] ^= 1;
    assert_int_equal(rig_found(r, ids, NULL, 100, NULL), 0);
    block->ids[31] ^= 1;
    assert_int_equal(rig_found(r, ids, NULL, 100, NULL), 64);
    free(ids);
    free(other);
    rig_close(r);
}

/* Tenants: neither sees the other's, each its own. */
static void f38_salts_share_nothing(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){0});
    uint64_t *ids = rig_ids(100, 381);
    static const char *const salts[] = {"a", "b", "aa", NULL};
    for (uint32_t i = 0; i < 4; i++) {
        kvant_sequence *s = NULL;
        for (uint32_t k = 0; k < 4; k++)
            assert_int_equal(rig_found(r, ids, NULL, 100, salts[k]), k < i ? 64 : 0);
        rig_ok(kvant_sequence_create(r->cache, salts[i], salts[i] != NULL ? strlen(salts[i]) : 0, &s,
                                     &rig_diag));
        rig_grow(r, s, ids, 100, 100);
        kvant_sequence_free(s);
    }
    assert_int_equal(rig_report(r).indexed, 4 * 2);
    free(ids);
    rig_close(r);
}

/* Tokens that nobody named could be any: from there on nothing is found. */
static void f38_unknown_tokens_are_private(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){0});
    uint64_t *ids = rig_ids(200, 382), zeros[200] = {0};
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, 80, 80);
    assert_true(rig_info(s).private_first == UINT64_MAX);
    rig_take(r, s, &(rig_step){.ids = ids + 80, .count = 10, .unknown = true});
    rig_grow(r, s, ids, 200, 110);
    assert_int_equal(rig_info(s).private_first, 80);
    assert_int_equal(rig_info(s).tail_first, 160);
    rig_assert_rows(r, s, ids);
    assert_int_equal(rig_found(r, ids, NULL, 200, NULL), 64);
    memcpy(zeros, ids, 80 * sizeof *ids);
    memcpy(zeros + 90, ids + 90, 110 * sizeof *ids);
    assert_int_equal(rig_found(r, zeros, NULL, 200, NULL), 64);
    kvant_sequence *fork = NULL;
    rig_ok(kvant_sequence_fork(s, &fork, &rig_diag));
    assert_int_equal(rig_info(fork).private_first, 80);
    kvant_sequence_free(s);
    kvant_sequence_reset(fork);
    assert_true(rig_info(fork).private_first == UINT64_MAX);
    rig_grow(r, fork, ids, 200, 200);
    assert_int_equal(rig_found(r, ids, NULL, 200, NULL), 160);
    kvant_sequence_free(fork);
    free(ids);
    rig_close(r);
}

static void one_shipped(const rig_wish *wish, const char *name) {
    (void)name;
    rig *warm = rig_open(wish), *cold = rig_open(wish);
    uint32_t at = 2 * warm->block_tokens, end = at + (warm->recent > 0 ? warm->recent : 1) + 13;
    uint64_t *ids = rig_ids(end + 100, 39);
    kvant_sequence *s = rig_sequence(warm);
    rig_grow(warm, s, ids, end + 40, end + 40);
    rig_assert_rows(warm, s, ids);
    kvant_sequence_free(s);
    cold_and_warm(cold, warm, ids, at, end);
    free(ids);
    rig_close(warm);
    rig_close(cold);
}

/* F39 (vllm-project/vllm#3880): the path of prefixes did not know fp8. Right: every pipeline that ships. */
static void f39_every_codec_is_found_again(void **state) {
    (void)state;
    rig_each_shipped(KVANT_TEST_SOURCE_DIR, 20, one_shipped);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(f36_warm_is_cold),
        cmocka_unit_test(f37_schemes_never_meet),
        cmocka_unit_test(f38_equal_hashes_other_tokens),
        cmocka_unit_test(f38_salts_share_nothing),
        cmocka_unit_test(f38_unknown_tokens_are_private),
        cmocka_unit_test(f39_every_codec_is_found_again),
    };
    test_store_quick_disk();
    return kvant_run_tests(tests, argc, argv);
}
