/* Sequences that are saved, and after a restart go on as if there had been none: into every kind of store,
 * with every kind of block and tail. What is missing, damaged or another's is in cache_store_misses.c, the
 * end of the process in cache_store_crash.c. */
#include "support/cache_place.h"
#include "support/cache_shipped.h"
#include "support/test.h"
#include "support/tester.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32, SINKS = 3, RECENT = 20 }; /* of rig_kivi */

static uint8_t *some_tags(uint32_t count) {
    uint64_t seed = 77;
    uint8_t *tags = malloc(count + 1);
    assert_non_null(tags);
    for (uint32_t t = 0; t < count; t++) tags[t] = (uint8_t)(kvant_test_random(&seed) % 9);
    return tags;
}

static void grow(rig *r, kvant_sequence *s, const uint64_t *ids, const uint8_t *tags, uint32_t count,
                 uint32_t chunk) {
    for (uint32_t at = (uint32_t)rig_info(s).length; at < count; at += chunk)
        rig_take(r, s,
                 &(rig_step){.ids = ids + at,
                             .tags = tags != NULL ? tags + at : NULL,
                             .count = count - at < chunk ? count - at : chunk});
}

/* A pool in which other things lay before. */
static void soil(rig *r) {
    uint64_t *ids = rig_ids(400, 999);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, 400, 130);
    kvant_sequence_free(s);
    rig_ok(kvant_cache_evict(r->cache, rig_report(r).capacity, NULL, &rig_diag));
    free(ids);
}

/* Saved by one cache, which is closed with everything; the twin never was away. */
static void round_trip(uint32_t kind, const rig_wish *wish, uint32_t count, uint32_t chunk, bool tagged) {
    uint64_t *ids = rig_ids(count + PLACE_MORE, count);
    uint8_t *tags = tagged ? some_tags(count + PLACE_MORE) : NULL;
    place p = place_make(kind);
    rig *r = rig_open(wish), *twin = rig_open(wish);
    kvant_sequence *s = rig_sequence(r), *t = rig_sequence(twin);
    grow(r, s, ids, tags, count, chunk);
    grow(twin, t, ids, tags, count, chunk);
    kvant_sequence_info info = rig_info(s);
    kvant_saved saved = place_save(&p, s);
    assert_int_equal(saved.tokens, count);
    assert_int_equal(saved.blocks, info.blocks);
    assert_int_equal(saved.tail_tokens, count - info.tail_first);
    assert_true(saved.bytes > 0);
    assert_int_equal(place_save(&p, s).bytes, 0); /* all of it is there */
    kvant_sequence_free(s);
    rig_close(r);
    place_restart(&p);
    r = rig_open(wish);
    soil(r);
    s = place_expect(&p, r, &(place_prefix){.ids = ids, .tags = tags, .count = count}, count,
                     KVANT_STORE_FOUND);
    place_close(&p); /* nothing of the store is needed any more */
    place_go_on(twin, t, r, s, ids, tags);
    kvant_sequence_free(s);
    kvant_sequence_free(t);
    rig_close(r);
    rig_close(twin);
    place_remove(&p);
    free(ids);
    free(tags);
}

static void every_kind_of_store(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < PLACE_KINDS; kind++) round_trip(kind, &(rig_wish){0}, 215, 60, false);
}

/* Geometries of many sorts in one cache: global and windowed layers, GQA and MQA, odd dims. */
static const kvant_layer_geometry mixed[] = {{.struct_size = sizeof mixed[0],
                                              .kv_heads = 2,
                                              .q_heads = 4,
                                              .total_kv_heads = 2,
                                              .key_dim = 24,
                                              .value_dim = 40},
                                             {.struct_size = sizeof mixed[0],
                                              .kv_heads = 1,
                                              .q_heads = 3,
                                              .total_kv_heads = 1,
                                              .key_dim = 10,
                                              .value_dim = 6,
                                              .window = 50},
                                             {.struct_size = sizeof mixed[0],
                                              .kv_heads = 3,
                                              .q_heads = 3,
                                              .total_kv_heads = 3,
                                              .key_dim = 7,
                                              .value_dim = 16,
                                              .window = 8}};

static const char uniform[] = "[pipeline]\nblock_tokens = 16\nsinks = 2\nrecent = 40\n"
                              "[codec u]\nplugin = uniform\nformat = int4\n"
                              "[layers]\nkey = u\nvalue = u\n[layers -1]\nkey = raw\nvalue = raw\n";
static const char bare[] =
    "[pipeline]\nblock_tokens = 8\nsinks = 0\nrecent = 0\n[layers]\nkey = uniform\nvalue = "
    "raw\n";
static const char tags_count[] = "[pipeline]\nblock_tokens = 8\nsinks = 3\nrecent = 11\n"
                                 "[layers]\nkey = tester_tags\nvalue = tester_tags\n";

static void every_sort_of_cache(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        rig_wish wish = {.text = i % 2 == 0 ? uniform : bare, .dtype = KVANT_DTYPE_F32 + i % 3};
        if (i < 4) {
            wish.layers = mixed;
            wish.layer_count = 3;
        }
        round_trip(i % PLACE_KINDS, &wish, 137 + i, 50, i % 2 == 1);
    }
}

/* Extents shorter than the longest, and blocks that are told apart by tags. */
static void extents_of_many_sizes(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < PLACE_KINDS; kind++) {
        tester = (tester_behaviour){.size_steps = 5};
        round_trip(kind, &(rig_wish){.text = tags_count}, 60, 17, true);
        tester = (tester_behaviour){0};
    }
}

/* What was loaded is saved elsewhere: the records are the same, byte for byte, tags and all. */
static void copied_to_another_store(void **state) {
    (void)state;
    enum { COUNT = 60, RECORDS = 16 };
    place p = place_make(PLACE_LMDB), q = place_make(PLACE_DIRECTORY);
    const rig_wish wish = {.text = tags_count};
    uint64_t *ids = rig_ids(COUNT, 4);
    uint8_t *tags = some_tags(COUNT);
    rig *r = rig_open(&wish), *fresh = rig_open(&(rig_wish){.text = tags_count, .store = q.store});
    kvant_sequence *s = rig_sequence(r);
    grow(r, s, ids, tags, COUNT, 25);
    place_assert_saved(&p, s, COUNT);
    kvant_sequence *loaded = place_expect(
        &p, fresh, &(place_prefix){.ids = ids, .tags = tags, .count = COUNT}, COUNT, KVANT_STORE_FOUND);
    kvant_sequence *fork = NULL;
    rig_ok(kvant_sequence_fork(loaded, &fork, &rig_diag));
    rig_ok(kvant_sequence_truncate(fork, 2, &rig_diag)); /* among the sinks, whose tags come back with them */
    place_assert_saved(&q, fork, 2);
    kvant_sequence_free(fork);
    kvant_sequence_free(s);
    s = rig_sequence(r);
    grow(r, s, ids, tags, 2, 2);
    place_assert_saved(&p, s, 2);
    kvant_saved saved = place_save(&q, loaded);
    assert_int_equal(saved.tokens, COUNT);
    kvant_store_key keys[RECORDS];
    uint32_t count = place_keys(&p, keys, RECORDS);
    assert_int_equal(count, saved.blocks + 2);
    kvant_sequence_free(loaded);
    rig_close(fresh);
    for (uint32_t i = 0; i < count; i++) {
        size_t size[2];
        unsigned char *a = place_stored(&p, &keys[i], &size[0]), *b = place_stored(&q, &keys[i], &size[1]);
        assert_int_equal(size[0], size[1]);
        kvant_assert_bytes(b, a, size[0]);
        free(a);
        free(b);
    }
    kvant_sequence_free(s);
    rig_close(r);
    place_remove(&p);
    place_remove(&q);
    free(ids);
    free(tags);
}

/* ---- Tails --------------------------------------------------------------------------------------------- */

/* Every length: nothing, less than a block, a block to the token, several pages. One store for all. */
static void tails_of_every_length(void **state) {
    (void)state;
    static const char *const texts[] = {bare, tags_count,
                                        "[pipeline]\nblock_tokens = 8\nsinks = 5\nrecent = 30\n"
                                        "[layers]\nkey = uniform\nvalue = raw\n"};
    for (uint32_t i = 0; i < 3; i++) {
        enum { MOST = 60 };
        const rig_wish wish = {.text = texts[i]};
        uint64_t *ids = rig_ids(MOST + PLACE_MORE, 5);
        uint8_t *tags = i == 1 ? some_tags(MOST + PLACE_MORE) : NULL;
        place p = place_make(PLACE_CALLS);
        rig *r = rig_open(&wish);
        uint32_t whole_blocks = 0;
        for (uint32_t count = 1; count <= MOST; count++) {
            kvant_sequence *s = rig_sequence(r);
            grow(r, s, ids, tags, count, 7);
            kvant_saved saved = place_save(&p, s);
            assert_int_equal(saved.tokens, count);
            whole_blocks += saved.tail_tokens == 8;
            kvant_sequence_free(s);
        }
        assert_true(i == 0 || whole_blocks > 0);
        for (uint32_t count = 1; count <= MOST; count++) {
            rig *fresh = rig_open(&wish), *twin = rig_open(&wish);
            kvant_sequence *t = rig_sequence(twin);
            grow(twin, t, ids, tags, count, 7);
            kvant_sequence *s =
                place_expect(&p, fresh, &(place_prefix){.ids = ids, .tags = tags, .count = count}, count,
                             KVANT_STORE_FOUND);
            if (count % 9 == 0)
                place_go_on(twin, t, fresh, s, ids, tags);
            else
                rig_assert_alike(twin, t, fresh, s);
            kvant_sequence_free(s);
            kvant_sequence_free(t);
            rig_close(fresh);
            rig_close(twin);
        }
        rig_close(r);
        place_remove(&p);
        free(ids);
        free(tags);
    }
}

/* A prompt that begins with what was saved: the longest beginning is found, tail and all, though its length
 * is written nowhere. */
static void a_prompt_that_goes_on(void **state) {
    (void)state;
    place p = place_make(PLACE_LMDB);
    uint64_t *ids = rig_ids(700, 8);
    rig *r = rig_open(&(rig_wish){0});
    for (uint32_t count = 70; count <= 201; count += 131) {
        kvant_sequence *s = rig_sequence(r);
        rig_grow(r, s, ids, count, 200);
        place_assert_saved(&p, s, count);
        kvant_sequence_free(s);
        static const uint32_t more[] = {1, 2, 19, 32, 33, 400};
        for (uint32_t i = 0; i < 6; i++) {
            rig *fresh = rig_open(&(rig_wish){0}), *twin = rig_open(&(rig_wish){0});
            kvant_sequence *t = rig_sequence(twin);
            rig_grow(twin, t, ids, count, 200);
            s = place_expect(&p, fresh, &(place_prefix){.ids = ids, .count = count + more[i]}, count,
                             KVANT_STORE_ABSENT);
            place_go_on(twin, t, fresh, s, ids, NULL);
            kvant_sequence_free(s);
            kvant_sequence_free(t);
            rig_close(fresh);
            rig_close(twin);
        }
    }
    /* Between two that were saved: the blocks of the longer one, or the tail of the shorter, whichever
     * reaches farther. */
    rig *fresh = rig_open(&(rig_wish){0});
    kvant_sequence *s =
        place_expect(&p, fresh, &(place_prefix){.ids = ids, .count = 90}, 70, KVANT_STORE_ABSENT);
    kvant_sequence_free(s);
    s = place_expect(&p, fresh, &(place_prefix){.ids = ids, .count = 100}, 96, KVANT_STORE_ABSENT);
    kvant_sequence_free(s);
    rig_close(fresh);
    rig_close(r);
    free(ids);
    place_remove(&p);
}

/* Tentative tokens that were kept have sealed nothing yet, tokens cut off among raw ones leave more sealed
 * than usual: the split is found again, and not another one of the same tokens. */
static void unusual_tails(void **state) {
    (void)state;
    static const struct {
        uint32_t plain, tentative, cut; /* tokens; then a step of tentative ones that are kept; then cut to */
    } cases[] = {{100, 40, 0},  {60, 500, 0}, {117, 0, 97}, {117, 0, 98},
                 {200, 0, 192}, {0, 45, 0},   {5, 60, 64}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint32_t longer = 0; longer < 2; longer++) {
            place p = place_make(PLACE_DIRECTORY);
            uint64_t *ids = rig_ids(1200, 9);
            rig *r = rig_open(&(rig_wish){0});
            kvant_sequence *s = rig_sequence(r), *all = rig_sequence(r);
            rig_grow(r, all, ids, 600, 600); /* in memory and store are more blocks than the sequence has */
            if (longer) place_assert_saved(&p, all, 600);
            rig_grow(r, s, ids, cases[i].plain, 50);
            if (cases[i].tentative > 0)
                rig_take(r, s,
                         &(rig_step){.ids = ids + cases[i].plain,
                                     .count = cases[i].tentative,
                                     .tentative = cases[i].tentative});
            if (cases[i].cut > 0) rig_ok(kvant_sequence_truncate(s, cases[i].cut, &rig_diag));
            uint32_t count = (uint32_t)rig_info(s).length;
            place_assert_saved(&p, s, count);
            rig *fresh = rig_open(&(rig_wish){0});
            kvant_sequence *loaded = place_expect(&p, fresh, &(place_prefix){.ids = ids, .count = count},
                                                  count, KVANT_STORE_FOUND);
            assert_int_equal(rig_info(loaded).blocks, rig_info(s).blocks);
            place_go_on(r, s, fresh, loaded, ids, NULL);
            kvant_sequence_free(loaded);
            kvant_sequence_free(s);
            kvant_sequence_free(all);
            rig_close(fresh);
            rig_close(r);
            free(ids);
            place_remove(&p);
        }
}

/* Two that were saved with the same tokens, one of which has not encoded yet what tentative tokens had to
 * wait for: the one comes that a sequence is which only grew. */
static void two_tails_of_one_length(void **state) {
    (void)state;
    for (uint32_t order = 0; order < 2; order++) {
        place p = place_make(PLACE_CALLS);
        uint64_t *ids = rig_ids(120, 12);
        rig *r = rig_open(&(rig_wish){0}), *fresh = rig_open(&(rig_wish){0});
        for (uint32_t i = 0; i < 2; i++) {
            kvant_sequence *s = rig_sequence(r);
            rig_grow(r, s, ids, i == order ? 120 : 80, 80);
            if (i != order) rig_take(r, s, &(rig_step){.ids = ids + 80, .count = 40, .tentative = 40});
            assert_int_equal(rig_info(s).blocks, i == order ? 3 : 1);
            place_assert_saved(&p, s, 120);
            kvant_sequence_free(s);
        }
        kvant_sequence *s =
            place_expect(&p, fresh, &(place_prefix){.ids = ids, .count = 120}, 120, KVANT_STORE_FOUND);
        assert_int_equal(rig_info(s).blocks, 3);
        kvant_sequence_free(s);
        rig_close(r);
        rig_close(fresh);
        place_remove(&p);
        free(ids);
    }
}

/* ---- What cannot be saved ------------------------------------------------------------------------------ */

static void nothing(void **state) {
    (void)state;
    place p = place_make(PLACE_DIRECTORY);
    rig *r = rig_open(&(rig_wish){0});
    kvant_sequence *s = rig_sequence(r);
    kvant_saved saved = place_save(&p, s);
    assert_int_equal(saved.tokens + saved.blocks + saved.tail_tokens + saved.bytes, 0);
    kvant_sequence *loaded =
        place_expect(&p, r, &(place_prefix){.ids = NULL, .count = 0}, 0, KVANT_STORE_FOUND);
    kvant_sequence_free(loaded);
    rig_ok(kvant_sequence_save(s, p.store, NULL, &rig_diag));
    kvant_sequence_free(s);
    rig_close(r);
    place_remove(&p);
}

/* Dropped tokens, blocks cut in the middle, ids nobody knows: what lies before is saved. */
static void up_to_what_is_private(void **state) {
    (void)state;
    enum { COUNT = 215 };
    static const struct {
        uint32_t dropped, cut, unknown; /* where; 0 = not */
        uint32_t tokens; /* that are saved; of them a tail, if they are no multiple of a block */
    } cases[] = {{0, 0, 0, COUNT}, {200, 0, 0, 200}, {193, 0, 0, 193},  {192, 0, 0, 192},
                 {150, 0, 0, 128}, {5, 0, 0, 0},     {0, 170, 0, 160},  {0, 160, 0, 160},
                 {0, 205, 0, 205}, {0, 2, 0, 2},     {0, 20, 0, 0},     {0, 0, 210, 210},
                 {0, 0, 150, 128}, {0, 0, 1, 0},     {100, 205, 0, 96}, {210, 200, 0, 200}};
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        place p = place_make(PLACE_CALLS);
        uint64_t *ids = rig_ids(COUNT + PLACE_MORE, 10);
        rig *r = rig_open(&(rig_wish){0}), *fresh = rig_open(&(rig_wish){0});
        kvant_sequence *s = rig_sequence(r);
        uint32_t known = cases[i].unknown > 0 ? cases[i].unknown : COUNT;
        rig_grow(r, s, ids, known, 70);
        if (known < COUNT)
            rig_take(r, s, &(rig_step){.ids = ids + known, .count = COUNT - known, .unknown = true});
        if (cases[i].dropped > 0) rig_ok(kvant_sequence_drop(s, cases[i].dropped, 3, &rig_diag));
        if (cases[i].cut > 0) rig_ok(kvant_sequence_truncate(s, cases[i].cut, &rig_diag));
        kvant_saved saved = place_save(&p, s);
        uint32_t tokens = cases[i].tokens, before = (uint32_t)rig_info(s).length;
        if (saved.tokens != tokens)
            fail_msg("case %u: %llu tokens saved", i, (unsigned long long)saved.tokens);
        assert_int_equal(saved.blocks * BLOCK + saved.tail_tokens, tokens);
        kvant_sequence *loaded = place_expect(&p, fresh, &(place_prefix){.ids = ids, .count = before}, tokens,
                                              tokens == before ? KVANT_STORE_FOUND : KVANT_STORE_ABSENT);
        rig_assert_rows(fresh, loaded, ids);
        /* As the sequence is that is cut there. */
        if (tokens > 0 && rig_info(s).private_first >= tokens) {
            rig_ok(kvant_sequence_truncate(s, tokens, &rig_diag));
            place_go_on(r, s, fresh, loaded, ids, NULL);
        }
        kvant_sequence_free(loaded);
        kvant_sequence_free(s);
        rig_close(r);
        rig_close(fresh);
        free(ids);
        place_remove(&p);
    }
}

static void refuses(void **state) {
    (void)state;
    place p = place_make(PLACE_DIRECTORY);
    uint64_t *ids = rig_ids(50, 11);
    rig *r = rig_open(&(rig_wish){0}), *nameless = rig_open(&(rig_wish){.model = ""});
    kvant_sequence *s = rig_sequence(r), *n = rig_sequence(nameless), *out = NULL;
    kvant_prefix prefix = {.struct_size = sizeof prefix, .ids = ids, .count = 50};
    rig_grow(r, s, ids, 20, 20);
    rig_grow(nameless, n, ids, 20, 20);
    rig_refused(kvant_sequence_save(NULL, p.store, NULL, &rig_diag), KVANT_ERROR_ARGUMENT, "NULL");
    rig_refused(kvant_sequence_save(s, NULL, NULL, &rig_diag), KVANT_ERROR_ARGUMENT, "NULL");
    rig_refused(kvant_sequence_save(s, p.store, &(kvant_saved){0}, &rig_diag), KVANT_ERROR_ARGUMENT,
                "struct_size");
    rig_refused(kvant_sequence_save(n, p.store, NULL, &rig_diag), KVANT_ERROR_MISSING, "model");
    rig_refused(kvant_sequence_load(nameless->cache, p.store, &prefix, &out, NULL, &rig_diag),
                KVANT_ERROR_MISSING, "model");
    rig_refused(kvant_sequence_load(r->cache, NULL, &prefix, &out, NULL, &rig_diag), KVANT_ERROR_ARGUMENT,
                "NULL");
    rig_refused(kvant_sequence_load(r->cache, p.store, NULL, &out, NULL, &rig_diag), KVANT_ERROR_ARGUMENT,
                "NULL");
    prefix.ids = NULL;
    rig_refused(kvant_sequence_load(r->cache, p.store, &prefix, &out, NULL, &rig_diag), KVANT_ERROR_ARGUMENT,
                "NULL");
    rig_ok(rig_begin(s, &(rig_step){.ids = ids + 20, .count = 5}));
    rig_refused(kvant_sequence_save(s, p.store, NULL, &rig_diag), KVANT_ERROR_ARGUMENT, "step");
    kvant_step_abort(s);
    place_assert_saved(&p, s, 20);
    assert_null(out);
    kvant_sequence_free(s);
    kvant_sequence_free(n);
    rig_close(r);
    rig_close(nameless);
    free(ids);
    place_remove(&p);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_store),
        cmocka_unit_test(every_sort_of_cache),
        cmocka_unit_test(extents_of_many_sizes),
        cmocka_unit_test(copied_to_another_store),
        cmocka_unit_test(tails_of_every_length),
        cmocka_unit_test(a_prompt_that_goes_on),
        cmocka_unit_test(unusual_tails),
        cmocka_unit_test(two_tails_of_one_length),
        cmocka_unit_test(nothing),
        cmocka_unit_test(up_to_what_is_private),
        cmocka_unit_test(refuses),
    };
    test_store_quick_disk();
    tester_register();
    return kvant_run_tests(tests, argc, argv);
}
