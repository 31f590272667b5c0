/* A cache and its store under pressure: blocks that are evicted come back, a full store or pool is a refusal
 * that leaves everything as it was, and what windows have released is never shown. */
#include "support/cache_place.h"
#include "support/scratch.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32 }; /* of rig_kivi */

static kvant_sequence *from_match(rig *r, const uint64_t *ids, uint32_t count) {
    kvant_match *match = rig_lookup(r, ids, NULL, count, NULL, count);
    kvant_sequence *s = NULL;
    rig_ok(kvant_sequence_create_from(match, &s, &rig_diag));
    kvant_match_release(match);
    return s;
}

static void evict_all(rig *r) {
    rig_ok(kvant_cache_evict(r->cache, rig_report(r).capacity, NULL, &rig_diag));
    assert_int_equal(rig_report(r).indexed, 0);
}

static void evicted_and_back(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < PLACE_KINDS; kind++) {
        place p = place_make(kind);
        uint64_t *ids = rig_ids(215 + PLACE_MORE, 1);
        rig *r = rig_open(&(rig_wish){.store = p.store}), *twin = rig_open(&(rig_wish){0});
        kvant_sequence *s = rig_sequence(r), *t = rig_sequence(twin);
        rig_grow(r, s, ids, 215, 100);
        rig_grow(twin, t, ids, 215, 100);
        kvant_sequence_free(s);
        for (uint32_t round = 1; round <= 2; round++) { /* the second time nothing is written */
            evict_all(r);
            kvant_cache_report report = rig_report(r);
            assert_int_equal(report.evictions, 6 * round);
            assert_int_equal(report.spilled, 6 * round);
            assert_int_equal(report.spill_failures, 0);
            assert_int_equal(report.bytes.payload + report.bytes.metadata + report.bytes.raw, 0);
            assert_int_equal(test_store_stats(p.store).puts, 6);
            s = from_match(r, ids, 215);
            assert_int_equal(rig_info(s).length, 192);
            assert_int_equal(rig_report(r).stored_hits, 6 * round);
            rig_assert_rows(r, s, ids);
            if (round == 1) kvant_sequence_free(s);
        }
        rig_ok(kvant_sequence_truncate(t, 192, &rig_diag));
        place_go_on(twin, t, r, s, ids, NULL);
        kvant_sequence_free(s);
        kvant_sequence_free(t);
        rig_close(r);
        rig_close(twin);
        place_remove(&p);
        free(ids);
    }
}

/* The salt of block 0 goes with it: it is found again with it, and not without. */
static void evicted_with_its_salt(void **state) {
    (void)state;
    place p = place_make(PLACE_DIRECTORY);
    uint64_t *ids = rig_ids(150, 2);
    rig *r = rig_open(&(rig_wish){.store = p.store});
    kvant_sequence *s = NULL;
    rig_ok(kvant_sequence_create(r->cache, "tenant", 6, &s, &rig_diag));
    rig_grow(r, s, ids, 150, 150);
    kvant_sequence_free(s);
    for (uint32_t round = 0; round < 2; round++) {
        kvant_store_key keys[8];
        evict_all(r);
        assert_int_equal(rig_report(r).spill_failures, 0);
        assert_int_equal(place_keys(&p, keys, 8), 4);
        assert_int_equal(rig_found(r, ids, NULL, 150, NULL), 0);
        assert_int_equal(rig_found(r, ids, NULL, 150, "another"), 0);
        assert_int_equal(rig_found(r, ids, NULL, 150, "tenant"), 128);
        /* What came out of the store has the salt with it: it can be put there once more. */
        for (uint32_t i = 0; i < 4; i++) rig_ok(kvant_store_remove(p.store, &keys[i], &rig_diag));
    }
    rig_close(r);
    place_remove(&p);
    free(ids);
}

/* A store that takes nothing: blocks are evicted all the same, and counted. */
static void store_that_refuses(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    const kvant_store_options options = {.struct_size = sizeof options, .record_max = 300};
    kvant_store *store = NULL;
    rig_ok(kvant_store_open_directory(directory, &options, &store, &rig_diag));
    rig *r = rig_open(&(rig_wish){.store = store});
    uint64_t *ids = rig_ids(150, 3);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, 150, 150);
    rig_refused(kvant_sequence_save(s, store, NULL, &rig_diag), KVANT_ERROR_CAPACITY, "300");
    rig_assert_rows(r, s, ids);
    kvant_sequence_free(s);
    evict_all(r);
    kvant_cache_report report = rig_report(r);
    assert_int_equal(report.evictions, 4);
    assert_int_equal(report.spilled, 0);
    assert_int_equal(report.spill_failures, 4);
    assert_int_equal(rig_found(r, ids, NULL, 150, NULL), 0);
    rig_close(r);
    kvant_store_close(store);
    free(ids);
    free(directory);
    kvant_scratch_remove(folder);
}

/* ---- Full stores --------------------------------------------------------------------------------------- */

/* f32 raw rows: a block of all layers takes some 30 KB. */
static const char heavy[] =
    "[pipeline]\nblock_tokens = 32\nsinks = 3\nrecent = 20\n[layers]\nkey = raw\nvalue = "
    "raw\n";

/* What can be loaded of the prompt: a beginning, and right. */
static uint32_t load_some(place *p, const rig_wish *wish, const uint64_t *ids, uint32_t count) {
    rig *fresh = rig_open(wish);
    uint32_t reason = UINT32_MAX;
    kvant_sequence *s = place_load(p, fresh, &(place_prefix){.ids = ids, .count = count}, &reason);
    uint32_t length = (uint32_t)rig_info(s).length;
    rig_assert_rows(fresh, s, ids);
    assert_int_equal(reason, length == count ? KVANT_STORE_FOUND : KVANT_STORE_ABSENT);
    kvant_sequence_free(s);
    rig_close(fresh);
    return length;
}

/* A sequence larger than the store is not called saved, and what is left of it is right; then sequences that
 * fit, one after the other: the newest is always there. */
static void full_store(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < 2; kind++) {
        const rig_wish wish = {.text = heavy, .dtype = KVANT_DTYPE_F32};
        place p = place_make_small(kind, 1 << 20);
        rig *r = rig_open(&wish);
        uint64_t *ids = rig_ids(2000, 4), *others[12];
        kvant_sequence *s = rig_sequence(r);
        rig_grow(r, s, ids, 1900, 1900);
        kvant_saved saved = {.struct_size = sizeof saved, .tokens = 4711};
        rig_refused(kvant_sequence_save(s, p.store, &saved, &rig_diag), KVANT_ERROR_NO_SPACE, "evicted");
        assert_int_equal(saved.tokens, 4711);
        assert_true(test_store_stats(p.store).evictions > 0);
        (void)load_some(&p, &wish, ids, 1900);
        kvant_sequence_free(s);
        for (uint32_t i = 0; i < 12; i++) {
            others[i] = rig_ids(300, 40 + i);
            if (i % 2 == 1)
                memcpy(others[i], others[i - 1], 100 * sizeof *ids); /* three blocks of one before */
            s = rig_sequence(r);
            rig_grow(r, s, others[i], 250, 250);
            place_assert_saved(&p, s, 250);
            kvant_sequence_free(s);
            place_restart(&p);
            assert_int_equal(load_some(&p, &wish, others[i], 250), 250);
        }
        assert_true(load_some(&p, &wish, others[0], 250) < 250);
        for (uint32_t i = 0; i < 12; i++) free(others[i]);
        rig_close(r);
        place_remove(&p);
        free(ids);
    }
}

/* The pool holds two prompts, the store five, of nine that are asked for in turns. */
static void full_pool_and_full_store(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < 2; kind++) {
        place p = place_make_small(kind, 1 << 20);
        rig *r =
            rig_open(&(rig_wish){.text = heavy, .dtype = KVANT_DTYPE_F32, .bytes = 450000, .store = p.store});
        uint64_t *ids[9], seed = 5, found = 0;
        for (uint32_t i = 0; i < 9; i++) ids[i] = rig_ids(260, 50 + i);
        for (uint32_t round = 0; round < 80; round++) {
            const uint64_t *prompt = ids[kvant_test_random(&seed) % 9];
            kvant_sequence *s = from_match(r, prompt, 250);
            found += rig_info(s).length;
            rig_assert_rows(r, s, prompt);
            rig_grow(r, s, prompt, 250, 250);
            rig_assert_rows(r, s, prompt);
            kvant_sequence_free(s);
        }
        kvant_cache_report report = rig_report(r);
        assert_true(report.stored_hits > 20);
        assert_true(report.spilled > 60);
        assert_int_equal(report.spill_failures, 0);
        assert_true(test_store_stats(p.store).evictions > 0);
        assert_int_equal(found, report.found_tokens);
        for (uint32_t i = 0; i < 9; i++) free(ids[i]);
        rig_close(r);
        place_remove(&p);
    }
}

/* A pool that somebody else has: a load of blocks or of a tail that do not fit is refused and takes nothing.
 */
static void full_pool(void **state) {
    (void)state;
    place p = place_make(PLACE_CALLS);
    uint64_t *ids = rig_ids(260, 6), *own = rig_ids(2000, 60);
    const rig_wish wish = {.text = heavy, .dtype = KVANT_DTYPE_F32};
    rig *r = rig_open(&wish);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, 250, 250);
    place_assert_saved(&p, s, 250);
    uint64_t takes = rig_bytes(s).raw + rig_bytes(s).payload + rig_bytes(s).metadata + rig_bytes(s).padding;
    kvant_sequence_free(s);
    rig_close(r);
    bool all = false, none = false;
    for (uint64_t bytes = takes + 4096; !all; bytes += 4096) {
        rig *small = rig_open(&(rig_wish){.text = heavy, .dtype = KVANT_DTYPE_F32, .bytes = bytes});
        kvant_sequence *other = rig_sequence(small), *loaded = NULL;
        rig_grow(small, other, own, 100, 100);
        kvant_cache_report before = rig_report(small);
        const kvant_prefix prefix = {.struct_size = sizeof prefix, .ids = ids, .count = 250};
        kvant_status status = kvant_sequence_load(small->cache, p.store, &prefix, &loaded, NULL, &rig_diag);
        if (status == KVANT_OK) {
            assert_int_equal(rig_info(loaded).length, 250);
            rig_assert_rows(small, loaded, ids);
            all = true;
        } else {
            assert_int_equal(status, KVANT_ERROR_NO_SPACE);
            kvant_assert_contains(rig_diag.message, "pool has no room");
            none = true;
            assert_null(loaded);
        }
        kvant_sequence_free(loaded);
        (void)kvant_cache_evict(small->cache, bytes, NULL, NULL);
        kvant_cache_report after = rig_report(small);
        assert_int_equal(after.free, before.free);
        assert_int_equal(after.blocks, before.blocks);
        assert_int_equal(after.sequences, before.sequences);
        rig_assert_rows(small, other, own);
        kvant_sequence_free(other);
        rig_close(small);
    }
    assert_true(none);
    free(ids);
    free(own);
    place_remove(&p);
}

/* What one load has brought is there for the next, which reads the tail alone. */
static void loaded_once(void **state) {
    (void)state;
    place p = place_make(PLACE_LMDB);
    uint64_t *ids = rig_ids(215 + PLACE_MORE, 7);
    rig *r = rig_open(&(rig_wish){0}), *fresh = rig_open(&(rig_wish){0});
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, 215, 215);
    place_assert_saved(&p, s, 215);
    uint64_t hits[3];
    kvant_sequence *loaded[2];
    for (uint32_t i = 0; i < 2; i++) {
        hits[i] = test_store_stats(p.store).hits;
        loaded[i] =
            place_expect(&p, fresh, &(place_prefix){.ids = ids, .count = 215}, 215, KVANT_STORE_FOUND);
    }
    hits[2] = test_store_stats(p.store).hits;
    assert_int_equal(hits[1] - hits[0], 7);
    assert_int_equal(hits[2] - hits[1], 1);
    assert_int_equal(rig_report(fresh).blocks, 6);
    assert_int_equal(rig_found(fresh, ids, NULL, 215, NULL), 192);
    place_go_on(r, s, fresh, loaded[0], ids, NULL); /* tails are their own */
    rig_assert_rows(fresh, loaded[1], ids);
    for (uint32_t i = 0; i < 2; i++) kvant_sequence_free(loaded[i]);
    kvant_sequence_free(s);
    rig_close(r);
    rig_close(fresh);
    place_remove(&p);
    free(ids);
}

/* ---- Windows ------------------------------------------------------------------------------------------- */

static const kvant_layer_geometry windowed[] = {{.struct_size = sizeof windowed[0],
                                                 .kv_heads = 2,
                                                 .q_heads = 4,
                                                 .total_kv_heads = 2,
                                                 .key_dim = 16,
                                                 .value_dim = 8},
                                                {.struct_size = sizeof windowed[0],
                                                 .kv_heads = 1,
                                                 .q_heads = 3,
                                                 .total_kv_heads = 1,
                                                 .key_dim = 8,
                                                 .value_dim = 24,
                                                 .window = 40},
                                                {.struct_size = sizeof windowed[0],
                                                 .kv_heads = 1,
                                                 .q_heads = 1,
                                                 .total_kv_heads = 1,
                                                 .key_dim = 8,
                                                 .value_dim = 8,
                                                 .window = 5}};
static const rig_wish slides = {.text = "[pipeline]\nblock_tokens = 8\nsinks = 2\nrecent = 11\n"
                                        "[layers]\nkey = uniform\nvalue = raw\n",
                                .layers = windowed,
                                .layer_count = 3};

/* A long sequence is saved without what its windows have passed. It comes back as it was; a beginning of it
 * does not come back, because what its next token sees is gone: until somebody saves that beginning. */
static void windows_are_kept(void **state) {
    (void)state;
    enum { LONG = 200, SHORT = 61 };
    for (uint32_t kind = 0; kind < PLACE_KINDS; kind++) {
        place p = place_make(kind);
        uint64_t *ids = rig_ids(LONG + PLACE_MORE, 8);
        rig *r = rig_open(&slides), *cold = rig_open(&slides), *fresh = rig_open(&slides);
        kvant_sequence *s = rig_sequence(r), *c = rig_sequence(cold);
        rig_grow(r, s, ids, LONG, 13);
        rig_grow(cold, c, ids, SHORT, 13);
        place_assert_saved(&p, s, LONG);
        uint64_t payload = rig_bytes(s).payload;
        kvant_sequence *none =
            place_expect(&p, fresh, &(place_prefix){.ids = ids, .count = SHORT}, 0, KVANT_STORE_ABSENT);
        kvant_sequence_free(none);
        assert_int_equal(rig_found(fresh, ids, NULL, SHORT, NULL), 0);
        kvant_sequence *all =
            place_expect(&p, fresh, &(place_prefix){.ids = ids, .count = LONG}, LONG, KVANT_STORE_FOUND);
        rig_assert_alike(r, s, fresh, all);
        rig_refused(kvant_sequence_truncate(all, SHORT, &rig_diag), KVANT_ERROR_UNSUPPORTED, "layer");
        /* The short one's blocks are there already, but for what windows have passed. */
        place_assert_saved(&p, c, SHORT);
        place_restart(&p);
        kvant_sequence *some =
            place_expect(&p, fresh, &(place_prefix){.ids = ids, .count = SHORT}, SHORT, KVANT_STORE_FOUND);
        place_go_on(cold, c, fresh, some, ids, NULL);
        place_go_on(r, s, fresh, all, ids, NULL);
        kvant_sequence_free(some);
        kvant_sequence_free(all);
        /* Into an empty pool both come too, in either order. */
        rig *empty = rig_open(&slides);
        some = place_expect(&p, empty, &(place_prefix){.ids = ids, .count = SHORT}, SHORT, KVANT_STORE_FOUND);
        all = place_expect(&p, empty, &(place_prefix){.ids = ids, .count = LONG}, LONG, KVANT_STORE_FOUND);
        rig_assert_rows(empty, some, ids);
        rig_assert_rows(empty, all, ids);
        kvant_sequence_free(some); /* what it alone still saw goes with it */
        assert_int_equal(rig_bytes(all).payload, payload);
        kvant_sequence_free(all);
        rig_close(empty);
        kvant_sequence_free(s);
        kvant_sequence_free(c);
        rig_close(r);
        rig_close(cold);
        rig_close(fresh);
        place_remove(&p);
        free(ids);
    }
}

/* The same through eviction: what is put there for a short sequence has all that windows show of it. */
static void windows_and_eviction(void **state) {
    (void)state;
    place p = place_make(PLACE_LMDB);
    uint64_t *ids = rig_ids(200, 11);
    rig *r = rig_open(&slides), *other = rig_open(&(rig_wish){.text = slides.text,
                                                              .layers = slides.layers,
                                                              .layer_count = slides.layer_count,
                                                              .store = p.store});
    kvant_sequence *s = rig_sequence(r), *t = rig_sequence(other);
    rig_grow(r, s, ids, 200, 50);
    place_assert_saved(&p, s, 200);
    rig_grow(other, t, ids, 60, 60);
    kvant_sequence_free(t);
    uint64_t found = rig_found(other, ids, NULL, 60, NULL);
    assert_int_equal(found, 48);
    evict_all(other);
    assert_int_equal(rig_report(other).spill_failures, 0);
    assert_int_equal(rig_found(other, ids, NULL, 60, NULL), found);
    kvant_sequence_free(s);
    rig_close(r);
    rig_close(other);
    place_remove(&p);
    free(ids);
}

/* Tokens dropped far back: what lies before them is not loaded where windows have released it, and is not
 * called saved either. */
static void windows_before_a_cut(void **state) {
    (void)state;
    /* tail_first is 184: the window of 5 has released all up to 176. */
    static const struct { uint32_t dropped, tokens; } cases[] = {{190, 190}, {184, 184}, {180, 0}, {60, 0}};
    for (uint32_t i = 0; i < 4; i++) {
        place p = place_make(PLACE_DIRECTORY);
        uint64_t *ids = rig_ids(200, 9);
        rig *r = rig_open(&slides), *fresh = rig_open(&slides);
        kvant_sequence *s = rig_sequence(r);
        rig_grow(r, s, ids, 200, 50);
        assert_int_equal(rig_info(s).tail_first, 184);
        rig_ok(kvant_sequence_drop(s, cases[i].dropped, 3, &rig_diag));
        place_assert_saved(&p, s, cases[i].tokens);
        kvant_sequence *loaded = place_expect(&p, fresh, &(place_prefix){.ids = ids, .count = 200},
                                              cases[i].tokens, KVANT_STORE_ABSENT);
        rig_assert_rows(fresh, loaded, ids);
        kvant_sequence_free(loaded);
        kvant_sequence_free(s);
        rig_close(r);
        rig_close(fresh);
        place_remove(&p);
        free(ids);
    }
}

/* Windows are not part of the fingerprint: caches that have others share records. A record without the
 * extents of a layer that sees everything here is a miss. */
static void windows_that_differ(void **state) {
    (void)state;
    kvant_layer_geometry wide[3];
    memcpy(wide, windowed, sizeof wide);
    wide[1].window = wide[2].window = 0;
    const rig_wish sees_all = {.text = slides.text, .layers = wide, .layer_count = 3};
    place p = place_make(PLACE_LMDB);
    uint64_t *ids = rig_ids(300, 10);
    rig *narrow = rig_open(&slides), *open = rig_open(&sees_all);
    kvant_sequence *s = rig_sequence(narrow);
    rig_grow(narrow, s, ids, 100, 10);
    place_assert_saved(&p, s, 100);
    kvant_sequence *t = place_expect(&p, open, &(place_prefix){.ids = ids, .count = 100}, 0, KVANT_STORE_KEY);
    rig_grow(open, t, ids, 100, 100);
    place_assert_saved(&p, t, 100); /* with what was missing */
    rig *again = rig_open(&sees_all), *small = rig_open(&slides);
    kvant_sequence *u =
        place_expect(&p, again, &(place_prefix){.ids = ids, .count = 100}, 100, KVANT_STORE_FOUND);
    rig_assert_alike(open, t, again, u);
    kvant_sequence *v =
        place_expect(&p, small, &(place_prefix){.ids = ids, .count = 100}, 100, KVANT_STORE_FOUND);
    rig_assert_alike(narrow, s, small, v);
    assert_int_equal(rig_bytes(v).payload, rig_bytes(s).payload); /* what windows have passed is let go */
    kvant_sequence_free(s);
    kvant_sequence_free(t);
    kvant_sequence_free(u);
    kvant_sequence_free(v);
    rig_close(narrow);
    rig_close(open);
    rig_close(again);
    rig_close(small);
    place_remove(&p);
    free(ids);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(evicted_and_back),
        cmocka_unit_test(evicted_with_its_salt),
        cmocka_unit_test(store_that_refuses),
        cmocka_unit_test(full_store),
        cmocka_unit_test(full_pool_and_full_store),
        cmocka_unit_test(full_pool),
        cmocka_unit_test(loaded_once),
        cmocka_unit_test(windows_are_kept),
        cmocka_unit_test(windows_before_a_cut),
        cmocka_unit_test(windows_that_differ),
        cmocka_unit_test(windows_and_eviction),
    };
    test_store_quick_disk();
    return kvant_run_tests(tests, argc, argv);
}
