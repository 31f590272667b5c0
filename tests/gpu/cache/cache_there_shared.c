/* Sequences on a device that share blocks and pages, are cut, evicted, saved and loaded: beside the
 * host's. */
#include "twin.h"

#include "support/cache_place.h"
#include "support/sanitized.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

static twin_sequence fork_of(const twin_sequence *s) {
    twin_sequence f = {0};
    rig_ok(kvant_sequence_fork(s->host, &f.host, &rig_diag));
    rig_ok(kvant_sequence_fork(s->there, &f.there, &rig_diag));
    return f;
}

static void truncate_to(twin_sequence *s, uint64_t length) {
    rig_ok(kvant_sequence_truncate(s->host, length, &rig_diag));
    rig_ok(kvant_sequence_truncate(s->there, length, &rig_diag));
}

static void drop(twin_sequence *s, uint64_t first, uint64_t count) {
    rig_ok(kvant_sequence_drop(s->host, first, count, &rig_diag));
    rig_ok(kvant_sequence_drop(s->there, first, count, &rig_diag));
}

/* A fork writes to a page that both hold, which is copied first; then both go on. */
static void forks(void **state) {
    (void)state;
    twin *t = twin_open(&(twin_wish){0});
    uint64_t *ids = rig_ids(200, 21), *others = rig_ids(200, 22);
    twin_sequence s = twin_create(t);
    twin_grow(t, &s, ids, 75, 75);
    twin_sequence f = fork_of(&s);
    twin_take(t, &(twin_step){.s = &f, .ids = others, .count = 6}, 1);
    twin_assert_same(t, &f);
    twin_assert_same(t, &s);
    twin_step both[2] = {{.s = &s, .ids = ids + 75, .count = 30}, {.s = &f, .ids = others + 6, .count = 41}};
    twin_take(t, both, 2);
    twin_assert_same(t, &s);
    twin_assert_same(t, &f);
    twin_assert_reports(t);
    twin_free(&s);
    twin_assert_same(t, &f);
    twin_free(&f);
    twin_close(t);
    free(ids);
    free(others);
}

/* In a block, between blocks, among raw tokens, among sinks; gaps in blocks, sinks and tail; and on. */
static void cuts(void **state) {
    (void)state;
    static const uint64_t lengths[] = {110, 64, 50, 35, 2, 1};
    twin *t = twin_open(&(twin_wish){0});
    uint64_t *ids = rig_ids(300, 31), *others = rig_ids(300, 32);
    twin_sequence s = twin_create(t);
    twin_grow(t, &s, ids, 120, 60);
    for (uint32_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        twin_sequence f = fork_of(&s);
        truncate_to(&f, lengths[i]);
        twin_assert_same(t, &f);
        twin_take(t, &(twin_step){.s = &f, .ids = others, .count = 55}, 1);
        twin_assert_same(t, &f);
        twin_free(&f);
    }
    twin_sequence gaps = fork_of(&s);
    drop(&gaps, 1, 3);
    drop(&gaps, 40, 7);
    drop(&gaps, 100, 5);
    twin_assert_same(t, &gaps);
    twin_probe(t, &gaps, 2, 0);
    twin_take(t, &(twin_step){.s = &gaps, .ids = others, .count = 40}, 1);
    twin_assert_same(t, &gaps);
    drop(&gaps, 0, 40); /* block 0 and its sinks with it */
    truncate_to(&gaps, 2);
    twin_take(t, &(twin_step){.s = &gaps, .ids = others, .count = 9}, 1);
    twin_assert_same(t, &gaps);
    twin_free(&gaps);
    twin_free(&s);
    twin_close(t);
    free(ids);
    free(others);
}

static twin_sequence found(twin *t, const uint64_t *ids, uint32_t count, uint64_t *tokens) {
    const kvant_prefix prefix = {
        .struct_size = sizeof prefix, .ids = ids, .count = count, .first_step_end = count};
    twin_sequence s = {0};
    kvant_match *here = NULL, *there = NULL;
    rig_ok(kvant_cache_lookup(t->host->cache, &prefix, &here, &rig_diag));
    rig_ok(kvant_cache_lookup(t->cache, &prefix, &there, &rig_diag));
    *tokens = kvant_match_tokens(here);
    assert_int_equal(*tokens, kvant_match_tokens(there));
    rig_ok(kvant_sequence_create_from(here, &s.host, &rig_diag));
    rig_ok(kvant_sequence_create_from(there, &s.there, &rig_diag));
    kvant_match_release(here);
    kvant_match_release(there);
    return s;
}

static void prefixes(void **state) {
    (void)state;
    twin *t = twin_open(&(twin_wish){0});
    uint64_t *ids = rig_ids(200, 41), tokens = 0;
    twin_sequence s = twin_create(t);
    twin_grow(t, &s, ids, 150, 90);
    twin_sequence f = found(t, ids, 140, &tokens);
    assert_int_equal(tokens, 96);
    twin_take(t, &(twin_step){.s = &f, .ids = ids + 96, .count = 44}, 1);
    twin_assert_same(t, &f);
    twin_free(&s);
    twin_free(&f);
    s = found(t, ids, 200, &tokens); /* nobody held it */
    assert_int_equal(tokens, 128);
    twin_take(t, &(twin_step){.s = &s, .ids = ids + 128, .count = 3}, 1);
    twin_assert_same(t, &s);
    twin_assert_reports(t);
    twin_free(&s);
    twin_close(t);
    free(ids);
}

/* What is evicted goes into a store of each cache's own, and comes back into the other's. */
static void evictions(void **state) {
    (void)state;
    place mine = place_make(PLACE_CALLS), its = place_make(PLACE_CALLS);
    twin *t = twin_open(&(twin_wish){.rig = {.store = mine.store}, .store = its.store});
    uint64_t *ids = rig_ids(200, 51), tokens = 0, freed = 0;
    twin_sequence s = twin_create(t);
    twin_grow(t, &s, ids, 150, 150);
    twin_free(&s);
    kvant_cache_report report = {.struct_size = sizeof report};
    rig_ok(kvant_cache_describe(t->cache, &report));
    rig_ok(kvant_cache_evict(t->host->cache, rig_report(t->host).capacity, NULL, &rig_diag));
    rig_ok(kvant_cache_evict(t->cache, report.capacity, &freed, &rig_diag));
    assert_true(freed > 0);
    rig_ok(kvant_cache_describe(t->cache, &report));
    assert_int_equal(report.spilled, 4);
    assert_int_equal(report.spill_failures, 0);
    assert_int_equal(report.free, report.capacity);
    s = found(t, ids, 200, &tokens);
    assert_int_equal(tokens, 128);
    twin_assert_same(t, &s);
    twin_take(t, &(twin_step){.s = &s, .ids = ids + 128, .count = 20}, 1);
    twin_assert_same(t, &s);
    twin_free(&s);
    twin_close(t);
    /* Crosswise. */
    t = twin_open(&(twin_wish){.rig = {.store = its.store}, .store = mine.store});
    s = found(t, ids, 200, &tokens);
    assert_int_equal(tokens, 128);
    twin_assert_same(t, &s);
    twin_probe(t, &s, 2, 0);
    twin_free(&s);
    twin_close(t);
    place_remove(&mine);
    place_remove(&its);
    free(ids);
}

static kvant_sequence *load(kvant_cache *cache, place *p, const uint64_t *ids, uint32_t count) {
    const kvant_prefix prefix = {.struct_size = sizeof prefix, .ids = ids, .count = count};
    kvant_sequence *s = NULL;
    uint32_t reason = 99;
    rig_ok(kvant_sequence_load(cache, p->store, &prefix, &s, &reason, &rig_diag));
    assert_int_equal(reason, KVANT_STORE_FOUND);
    return s;
}

/* The record that one saves is the other's, byte for byte: what the second saves is there already. */
static void saved_here_loaded_there(void **state) {
    (void)state;
    enum { COUNT = 147 };
    static const kvant_layer_geometry layers[] = {{.struct_size = sizeof layers[0],
                                                   .kv_heads = 1,
                                                   .q_heads = 4,
                                                   .total_kv_heads = 1,
                                                   .key_dim = 32,
                                                   .value_dim = 32,
                                                   .window = 40},
                                                  {.struct_size = sizeof layers[0],
                                                   .kv_heads = 2,
                                                   .q_heads = 2,
                                                   .total_kv_heads = 2,
                                                   .key_dim = 64,
                                                   .value_dim = 32}};
    for (uint32_t there_first = 0; there_first < 2; there_first++)
        for (uint32_t windowed = 0; windowed < 2; windowed++) {
            rig_wish wish = {.dtype = windowed ? KVANT_DTYPE_BF16 : KVANT_DTYPE_F16,
                             .layers = windowed ? layers : NULL,
                             .layer_count = 2};
            place p = place_make(windowed ? PLACE_CALLS : PLACE_LMDB);
            uint64_t *ids = rig_ids(300, 61);
            twin *t = twin_open(&(twin_wish){.rig = wish});
            twin_sequence s = twin_create(t), l = {0};
            twin_grow(t, &s, ids, COUNT, 60);
            kvant_saved saved = {.struct_size = sizeof saved};
            rig_ok(kvant_sequence_save(there_first ? s.there : s.host, p.store, &saved, &rig_diag));
            assert_int_equal(saved.tokens, COUNT);
            assert_true(saved.bytes > 0);
            rig_ok(kvant_sequence_save(there_first ? s.host : s.there, p.store, &saved, &rig_diag));
            assert_int_equal(saved.bytes, 0);
            twin_free(&s);
            twin_close(t);
            place_restart(&p);
            t = twin_open(&(twin_wish){.rig = wish});
            l.host = load(t->host->cache, &p, ids, COUNT);
            l.there = load(t->cache, &p, ids, COUNT);
            twin_assert_same(t, &l);
            twin_take(t, &(twin_step){.s = &l, .ids = ids + COUNT, .count = 35}, 1);
            twin_take(t, &(twin_step){.s = &l, .ids = ids + COUNT + 35, .count = 1}, 1);
            twin_assert_same(t, &l);
            twin_assert_reports(t);
            twin_free(&l);
            twin_close(t);
            place_remove(&p);
            free(ids);
        }
}

static int leave(void **state) {
    (void)state;
    twin_device_close();
    return 0;
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(forks),
        cmocka_unit_test(cuts),
        cmocka_unit_test(prefixes),
        cmocka_unit_test(evictions),
        cmocka_unit_test_teardown(saved_here_loaded_there, leave),
    };
    return kvant_run_tests(tests, argc, argv);
}
