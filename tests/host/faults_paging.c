/* Public faults of other projects: paging, copy-on-write, lifetime. Each test is named after one; the comment
 * gives report and cause, the test what is right. */
#include "support/cache_rig.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

/* A story that a sequence lived through alone, in a cache of its own, to compare with. */
typedef struct twin {
    rig *r;
    kvant_sequence *s;
} twin;

/* ids[0, count) in steps that end at `first` and at `count`. */
static twin twin_of(const uint64_t *ids, uint32_t first, uint32_t count) {
    twin t = {.r = rig_open(&(rig_wish){0})};
    t.s = rig_sequence(t.r);
    rig_grow(t.r, t.s, ids, first, first);
    rig_grow(t.r, t.s, ids, count, count);
    return t;
}

static void assert_twin(rig *r, const kvant_sequence *s, const uint64_t *ids, uint32_t first,
                        uint32_t count) {
    twin t = twin_of(ids, first, count);
    rig_assert_alike(r, s, t.r, t.s);
    kvant_sequence_free(t.s);
    rig_close(t.r);
}

/* ids that go like `stem` up to `shared`. */
static uint64_t *branch_of(const uint64_t *stem, uint32_t shared, uint32_t count, uint64_t seed) {
    uint64_t *ids = rig_ids(count, seed);
    memcpy(ids, stem, shared * sizeof *ids);
    return ids;
}

static kvant_sequence *fork_of(const kvant_sequence *s) {
    kvant_sequence *fork = NULL;
    rig_ok(kvant_sequence_fork(s, &fork, &rig_diag));
    return fork;
}

/* F32 (sawfwair/mere-run#489): a fork shared mutable rows; what one branch appended overwrote the other's.
 * Right: both branches are what they would be alone, wherever the fork was. */
static void f32_branches_do_not_touch(void **state) {
    (void)state;
    static const uint32_t forks[] = {3, 31, 32, 40, 52, 70, 84, 96};
    rig *r = rig_open(&(rig_wish){0});
    for (size_t i = 0; i < sizeof forks / sizeof forks[0]; i++) {
        uint32_t at = forks[i];
        uint64_t *a_ids = rig_ids(at + 150, 32 + i), *b_ids = branch_of(a_ids, at, at + 150, 320 + i);
        kvant_sequence *a = rig_sequence(r);
        rig_grow(r, a, a_ids, at, at);
        kvant_sequence *b = fork_of(a);
        rig_picture *before = rig_look(r, b);
        rig_grow(r, a, a_ids, at + 9, 9);
        rig_assert_still(r, b, before);
        assert_twin(r, a, a_ids, at, at + 9);
        before = rig_look(r, a);
        rig_grow(r, b, b_ids, at + 2, 2);
        rig_assert_still(r, a, before);
        rig_grow(r, a, a_ids, at + 150, 13);
        rig_grow(r, b, b_ids, at + 150, 29);
        assert_twin(r, a, a_ids, at, at + 150);
        assert_twin(r, b, b_ids, at, at + 150);
        kvant_sequence_free(a);
        rig_assert_rows(r, b, b_ids);
        kvant_sequence_free(b);
        free(a_ids);
        free(b_ids);
    }
    assert_int_equal(rig_report(r).pinned, 0);
    rig_close(r);
}

/* F33 (vllm-project/vllm-ascend#16013): copy-on-write copied an allocation of several segments as one
 * matrix, and a cyclic exchange one after the other. Right: keys and values of every layer, all exchanged
 * at once. */
static void f33_exchange_is_simultaneous(void **state) {
    (void)state;
    enum { BEAMS = 3, AT = 75, END = 130 };
    static const uint32_t cycle[BEAMS] = {1, 2, 0}, one_twice[BEAMS] = {2, 2, 1};
    rig *r = rig_open(&(rig_wish){0});
    kvant_sequence *beams[BEAMS];
    uint64_t *ids[BEAMS], *ends[BEAMS];
    for (uint32_t i = 0; i < BEAMS; i++) {
        ids[i] = rig_ids(AT, 33 + i);
        beams[i] = rig_sequence(r);
        rig_grow(r, beams[i], ids[i], AT, AT);
    }
    rig_ok(kvant_sequence_reorder(beams, cycle, BEAMS, &rig_diag));
    for (uint32_t i = 0; i < BEAMS; i++) rig_assert_rows(r, beams[i], ids[(i + 1) % BEAMS]);
    /* Beams 0, 1, 2 now hold texts 1, 2, 0; then texts 0, 0, 2. */
    rig_ok(kvant_sequence_reorder(beams, one_twice, BEAMS, &rig_diag));
    static const uint32_t texts[BEAMS] = {0, 0, 2};
    for (uint32_t i = 0; i < BEAMS; i++) {
        ends[i] = branch_of(ids[texts[i]], AT, END, 330 + i);
        rig_grow(r, beams[i], ends[i], AT + 5, 5);
    }
    for (uint32_t i = 0; i < BEAMS; i++) {
        rig_grow(r, beams[i], ends[i], END, END);
        assert_twin(r, beams[i], ends[i], AT, END);
    }
    for (uint32_t i = 0; i < BEAMS; i++) {
        kvant_sequence_free(beams[i]);
        free(ids[i]);
        free(ends[i]);
    }
    rig_close(r);
}

/* F34 (vllm-project/vllm#49716): strides of scales came from the shape, not from the padded page; seen only
 * once the pool was full. Right: every block of a full pool, the last one too. */
static void f34_every_block_of_a_full_pool(void **state) {
    (void)state;
    enum { SEQUENCES = 400, TOKENS = 117 };
    rig *r = rig_open(&(rig_wish){.model = "", .bytes = 300000});
    kvant_sequence *all[SEQUENCES];
    uint64_t *ids[SEQUENCES];
    uint32_t count = 0;
    kvant_status status = KVANT_OK;
    for (; count < SEQUENCES && status == KVANT_OK; count++) {
        all[count] = rig_sequence(r);
        ids[count] = rig_ids(TOKENS, 340 + count);
        for (uint32_t n = 0; n < TOKENS && status == KVANT_OK; n++) {
            const rig_step step = {.ids = ids[count] + n, .count = 1};
            status = rig_begin(all[count], &step);
            if (status != KVANT_OK) break;
            rig_layers(r, all[count], &step);
            rig_ok(kvant_step_commit(all[count], 1, &rig_diag));
        }
    }
    assert_int_equal(status, KVANT_ERROR_NO_SPACE);
    assert_true(count > 4 && rig_report(r).bytes.padding > 0);
    assert_true(rig_report(r).peak > rig_report(r).capacity * 9 / 10);
    for (uint32_t i = 0; i < count; i++) rig_assert_rows(r, all[i], ids[i]);
    for (uint32_t i = 0; i < count; i++) {
        kvant_sequence_free(all[i]);
        free(ids[i]);
    }
    assert_int_equal(rig_report(r).free, rig_report(r).capacity);
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

/* Sequences of other texts until the pool has no room for another step; all stay. */
static uint32_t crowd(rig *r, kvant_sequence **all, uint32_t most, uint64_t seed) {
    uint64_t *ids = rig_ids(100, seed);
    uint32_t count = 0;
    for (; count < most; count++) {
        const rig_step step = {.ids = ids, .count = 100};
        ids[0] = count;
        all[count] = rig_sequence(r);
        if (rig_begin(all[count], &step) != KVANT_OK) break;
        rig_layers(r, all[count], &step);
        rig_ok(kvant_step_commit(all[count], 100, &rig_diag));
    }
    assert_true(count < most);
    free(ids);
    return count + 1;
}

/* F35 (vllm-project/vllm#50702, vllm#42273): entries of the block table outlived the window's eviction, and
 * with the pool full the blocks behind them were another's. Right: nobody sees what was released, however
 * often its bytes are used again. */
static void f35_released_bytes_are_nobodys(void **state) {
    (void)state;
    enum { MOST = 300, TOKENS = 400 };
    static kvant_sequence *others[MOST];
    rig *small = rig_open(&(rig_wish){.layers = windowed, .layer_count = 2, .bytes = 120000});
    rig *large = rig_open(&(rig_wish){.layers = windowed, .layer_count = 2});
    kvant_sequence *s = rig_sequence(small), *t = rig_sequence(large);
    uint64_t *ids = rig_ids(TOKENS, 35);
    float *outputs = malloc(rig_outputs(small, 1) * sizeof *outputs);
    assert_non_null(outputs);
    for (uint32_t at = 0; at < TOKENS; at += 20) {
        rig_take(small, s, &(rig_step){.ids = ids + at, .count = 19});
        rig_take(large, t, &(rig_step){.ids = ids + at, .count = 19});
        uint32_t count = crowd(small, others, MOST, at); /* takes every byte that s let go */
        rig_assert_alike(small, s, large, t);
        for (uint32_t i = 0; i < count; i++) kvant_sequence_free(others[i]);
        rig_take(small, s, &(rig_step){.ids = ids + at + 19, .count = 1, .outputs = outputs});
        rig_assert_outputs(small, ids, at + 19, 1, 0, outputs);
        rig_take(large, t, &(rig_step){.ids = ids + at + 19, .count = 1});
    }
    rig_assert_rows(small, s, ids);
    assert_true(rig_report(small).evictions > 0);
    kvant_sequence_free(s);
    kvant_sequence_free(t);
    free(ids);
    free(outputs);
    rig_close(small);
    rig_close(large);
}

/* F40 (mlx#1547): a trim into the shared prefix was clamped without a word. Right: exact, the others keep
 * theirs, and what is too long is an error. */
static void f40_cut_into_what_is_shared(void **state) {
    (void)state;
    rig *r = rig_open(&(rig_wish){0});
    uint64_t *ids = rig_ids(200, 40), *other = branch_of(ids, 37, 200, 400);
    kvant_sequence *a = rig_sequence(r);
    rig_grow(r, a, ids, 200, 200);
    kvant_sequence *b = fork_of(a);
    rig_picture *before = rig_look(r, a);
    rig_ok(kvant_sequence_truncate(b, 37, &rig_diag));
    assert_int_equal(rig_info(b).length, 37);
    assert_int_equal(rig_info(b).tail_first, 37);
    assert_int_equal(rig_info(b).private_first, 37);
    rig_assert_rows(r, b, ids);
    rig_grow(r, b, other, 120, 120);
    for (uint32_t l = 0; l < 2; l++) { /* 32 to 37 from the block that was cut, then the branch's own */
        float *stem = rig_read(r, a, l, KVANT_SIDE_KEY, 32, 5),
              *cut = rig_read(r, b, l, KVANT_SIDE_KEY, 32, 5);
        kvant_assert_bytes(cut, stem, 5 * sizeof *cut * r->layers[l].kv_heads * r->layers[l].key_dim);
        free(stem);
        free(cut);
    }
    rig_assert_still(r, a, before);
    assert_int_equal(rig_found(r, ids, NULL, 200, NULL), 160); /* 200 - 20 tokens, in whole blocks */
    assert_int_equal(rig_found(r, other, NULL, 200, NULL), 32);
    before = rig_look(r, b);
    rig_refused(kvant_sequence_truncate(b, 121, &rig_diag), KVANT_ERROR_ARGUMENT, "121");
    assert_non_null(strstr(rig_diag.message, "120"));
    rig_assert_still(r, b, before);
    kvant_sequence_free(a);
    kvant_sequence_free(b);
    free(ids);
    free(other);
    rig_close(r);
}

/* F58 (vllm-project/vllm#39702, vllm#42289): between looking up and taking, blocks were evicted. Right: a
 * match holds what it found. */
static void f58_a_match_holds_what_it_found(void **state) {
    (void)state;
    enum { MOST = 300 };
    static kvant_sequence *others[MOST];
    rig *r = rig_open(&(rig_wish){.bytes = 150000});
    uint64_t *ids = rig_ids(200, 58), *gone = rig_ids(200, 580);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, 200, 200);
    kvant_sequence_free(s);
    s = rig_sequence(r);
    rig_grow(r, s, gone, 200, 200);
    kvant_sequence_free(s);
    kvant_match *match = rig_lookup(r, ids, NULL, 200, NULL, 200);
    assert_int_equal(kvant_match_tokens(match), 160);
    assert_int_equal(rig_report(r).pinned, 5);
    rig_refused(kvant_cache_evict(r->cache, 150000, NULL, &rig_diag), KVANT_ERROR_NO_SPACE, "");
    uint32_t count = crowd(r, others, MOST, 581);
    assert_int_equal(rig_found(r, gone, NULL, 200, NULL), 0);
    for (uint32_t i = 0; i < count; i++) kvant_sequence_free(others[i]);
    kvant_sequence *twice[2];
    for (uint32_t i = 0; i < 2; i++) rig_ok(kvant_sequence_create_from(match, &twice[i], &rig_diag));
    kvant_match_release(match);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(rig_info(twice[i]).length, 160);
        rig_assert_rows(r, twice[i], ids);
        kvant_sequence_free(twice[i]);
    }
    uint64_t freed = 0;
    rig_ok(kvant_cache_evict(r->cache, rig_report(r).capacity, &freed, &rig_diag));
    assert_true(freed > 0);
    assert_int_equal(rig_report(r).blocks, 0);
    free(ids);
    free(gone);
    rig_close(r);
}

/* F59 (a TurboQuant fork of llama.cpp, llama-kv-cache.cpp): scales in a buffer of the process, so that
 * models and contexts bled into each other. Right: two caches with calibrations of their own, step by step
 * in turns. */
static void f59_two_caches_two_calibrations(void **state) {
    (void)state;
    enum { TOKENS = 150, DIM = 32 };
    static const kvant_layer_geometry layer = {.struct_size = sizeof layer,
                                               .kv_heads = 1,
                                               .q_heads = 2,
                                               .total_kv_heads = 1,
                                               .key_dim = DIM,
                                               .value_dim = DIM};
    static const char *const texts[2] = {
        "[pipeline]\nblock_tokens = 32\nrecent = 5\n[codec t]\nplugin = turboquant\nbits = 3\nseed = 1\n"
        "[layers]\nkey = t\nvalue = t\n",
        "[pipeline]\nblock_tokens = 32\nrecent = 5\n[codec t]\nplugin = turboquant\nbits = 3\nseed = 2\n"
        "[layers]\nkey = t\nvalue = t\n"};
    float centers[2][DIM];
    for (uint32_t c = 0; c < DIM; c++) {
        centers[0][c] = 0.5f + (float)(c % 5);
        centers[1][c] = -1.0f - (float)(c % 3);
    }
    uint64_t *ids = rig_ids(TOKENS + 1, 59);
    rig *both[2], *alone[2];
    kvant_sequence *s[2], *t[2];
    for (uint32_t i = 0; i < 2; i++) {
        const rig_wish wish = {.text = texts[i], .layers = &layer, .layer_count = 1, .center = centers[i]};
        alone[i] = rig_open(&wish);
        t[i] = rig_sequence(alone[i]);
        rig_grow(alone[i], t[i], ids, TOKENS, 11);
        both[i] = rig_open(&wish);
        s[i] = rig_sequence(both[i]);
    }
    for (uint32_t n = 11; n <= TOKENS; n += 11)
        for (uint32_t i = 0; i < 2; i++) rig_grow(both[i], s[i], ids, n, 11);
    for (uint32_t i = 0; i < 2; i++) {
        rig_grow(both[i], s[i], ids, TOKENS, 11);
        rig_assert_rows(both[i], s[i], ids);
        rig_assert_alike(both[i], s[i], alone[i], t[i]);
        float outputs[2 * DIM];
        rig_take(both[i], s[i], &(rig_step){.ids = ids + TOKENS, .count = 1, .outputs = outputs});
        rig_assert_outputs(both[i], ids, TOKENS, 1, 0, outputs);
    }
    float *x = rig_read(both[0], s[0], 0, KVANT_SIDE_KEY, 0, 96),
          *y = rig_read(both[1], s[1], 0, KVANT_SIDE_KEY, 0, 96);
    assert_memory_not_equal(x, y, 96 * DIM * sizeof *x); /* the calibrations do differ */
    free(x);
    free(y);
    for (uint32_t i = 0; i < 2; i++) {
        kvant_sequence_free(s[i]);
        kvant_sequence_free(t[i]);
        rig_close(both[i]);
        rig_close(alone[i]);
    }
    free(ids);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_branches_do_not_touch),       cmocka_unit_test(f33_exchange_is_simultaneous),
        cmocka_unit_test(f34_every_block_of_a_full_pool),  cmocka_unit_test(f35_released_bytes_are_nobodys),
        cmocka_unit_test(f40_cut_into_what_is_shared),     cmocka_unit_test(f58_a_match_holds_what_it_found),
        cmocka_unit_test(f59_two_caches_two_calibrations),
    };
    return kvant_run_tests(tests, argc, argv);
}
