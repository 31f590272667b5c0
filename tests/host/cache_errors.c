/* Every argument that breaks a rule of kvant/cache.h, but for steps and attention: the status, a message that
 * names place and rule, and a sequence that is as it was. */
#include "support/cache_rig.h"
#include "support/scratch.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENS = 100, STEP = 5 };

#define REFUSED(call, words) rig_refused((call), KVANT_ERROR_ARGUMENT, (words))

/* ---- Cache --------------------------------------------------------------------------------------------- */

static void opening(void **state) {
    (void)state;
    kvant_plan *plan = rig_plan(&(rig_wish){0});
    kvant_cache *cache = NULL;
    kvant_cache_options o = {.struct_size = sizeof o, .bytes = 1 << 20};
    REFUSED(kvant_cache_open(NULL, &o, &cache, &rig_diag), "plan");
    REFUSED(kvant_cache_open(plan, NULL, &cache, &rig_diag), "options");
    REFUSED(kvant_cache_open(plan, &o, NULL, &rig_diag), "cache");
    o.struct_size = 0;
    REFUSED(kvant_cache_open(plan, &o, &cache, &rig_diag), "struct_size");
    o.struct_size = sizeof o;
    o.threads = 100000;
    REFUSED(kvant_cache_open(plan, &o, &cache, &rig_diag), "100000 threads");
    o.threads = 0;
    o.bytes = 0;
    REFUSED(kvant_cache_open(plan, &o, &cache, &rig_diag), "0 bytes");
    /* The message says how much it takes; that is enough, a byte less is not. */
    char *digits = strstr(rig_diag.message, "take ");
    assert_non_null(digits);
    o.bytes = strtoull(digits + 5, NULL, 10) - 1;
    REFUSED(kvant_cache_open(plan, &o, &cache, &rig_diag), "take ");
    assert_null(cache);
    o.bytes++;
    rig_ok(kvant_cache_open(plan, &o, &cache, &rig_diag));
    kvant_cache_close(cache);
    kvant_cache_close(NULL);
    kvant_plan_free(plan);
}

static void questions_to_a_cache(void **state) {
    (void)state;
    rig_pair b = rig_pair_open(TOKENS, STEP);
    kvant_bytes least = {.struct_size = sizeof least}, most = least;
    kvant_cache_report report = {.struct_size = sizeof report};
    REFUSED(kvant_cache_estimate(NULL, 1, &least, &most, &rig_diag), "plan");
    REFUSED(kvant_cache_estimate(b.r->plan, 1, NULL, &most, &rig_diag), "least");
    REFUSED(kvant_cache_estimate(b.r->plan, 1, &least, NULL, &rig_diag), "most");
    REFUSED(kvant_cache_estimate(b.r->plan, UINT64_MAX, &least, &most, &rig_diag), "tokens");
    least.struct_size = 4;
    REFUSED(kvant_cache_estimate(b.r->plan, 1, &least, &most, &rig_diag), "struct_size");
    assert_int_equal(kvant_cache_describe(NULL, &report), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_cache_describe(b.r->cache, NULL), KVANT_ERROR_ARGUMENT);
    report.struct_size = 0;
    assert_int_equal(kvant_cache_describe(b.r->cache, &report), KVANT_ERROR_ARGUMENT);
    REFUSED(kvant_cache_evict(NULL, 1, NULL, &rig_diag), "cache");
    uint64_t freed = 99;
    rig_refused(kvant_cache_evict(b.r->cache, UINT64_MAX, &freed, &rig_diag), KVANT_ERROR_NO_SPACE, "held");
    assert_int_equal(freed, 0);
    assert_int_equal(kvant_cache_read_scratch(NULL), 0);
    rig_pair_close(&b);
}

/* ---- Prefixes, sequences ------------------------------------------------------------------------------- */

static void prefixes(void **state) {
    (void)state;
    rig_pair b = rig_pair_open(TOKENS, STEP);
    const kvant_prefix right = {
        .struct_size = sizeof right, .ids = b.ids, .count = TOKENS, .first_step_end = TOKENS};
    kvant_prefix p = right;
    kvant_match *match = NULL;
    REFUSED(kvant_cache_lookup(NULL, &p, &match, &rig_diag), "cache");
    REFUSED(kvant_cache_lookup(b.r->cache, NULL, &match, &rig_diag), "prefix");
    REFUSED(kvant_cache_lookup(b.r->cache, &p, NULL, &rig_diag), "match");
    p.struct_size = 8;
    REFUSED(kvant_cache_lookup(b.r->cache, &p, &match, &rig_diag), "struct_size");
    p = right;
    p.ids = NULL;
    REFUSED(kvant_cache_lookup(b.r->cache, &p, &match, &rig_diag), "ids");
    p = right;
    p.salt_bytes = 3;
    REFUSED(kvant_cache_lookup(b.r->cache, &p, &match, &rig_diag), "salt");
    p = right;
    p.first_step_end = 0;
    REFUSED(kvant_cache_lookup(b.r->cache, &p, &match, &rig_diag), "first_step_end");
    p = right;
    p.count = UINT64_MAX;
    REFUSED(kvant_cache_lookup(b.r->cache, &p, &match, &rig_diag), "tokens");
    assert_null(match);
    assert_int_equal(rig_report(b.r).lookups, 0);
    kvant_match_release(NULL);
    assert_int_equal(kvant_match_tokens(NULL), 0);

    kvant_sequence *s = NULL;
    REFUSED(kvant_sequence_create(NULL, NULL, 0, &s, &rig_diag), "cache");
    REFUSED(kvant_sequence_create(b.r->cache, NULL, 0, NULL, &rig_diag), "sequence");
    REFUSED(kvant_sequence_create(b.r->cache, NULL, 2, &s, &rig_diag), "salt");
    REFUSED(kvant_sequence_create_from(NULL, &s, &rig_diag), "match");
    match = rig_lookup(b.r, b.ids, NULL, TOKENS, NULL, TOKENS);
    REFUSED(kvant_sequence_create_from(match, NULL, &rig_diag), "sequence");
    kvant_match_release(match);
    assert_null(s);
    kvant_sequence_free(NULL);
    kvant_sequence_reset(NULL);
    rig_pair_close(&b);
}

/* Without a model there are no keys: nothing can be looked up, saved or loaded. */
static void without_a_model(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    kvant_store *store = NULL;
    rig_ok(kvant_store_open_directory(directory, NULL, &store, &rig_diag));
    rig *r = rig_open(&(rig_wish){.model = ""});
    uint64_t *ids = rig_ids(TOKENS, 8);
    kvant_sequence *s = rig_sequence(r), *fork = NULL, *loaded = NULL;
    kvant_match *match = NULL;
    const kvant_prefix p = {.struct_size = sizeof p, .ids = ids, .count = TOKENS, .first_step_end = TOKENS};
    rig_grow(r, s, ids, TOKENS, TOKENS);
    rig_refused(kvant_cache_lookup(r->cache, &p, &match, &rig_diag), KVANT_ERROR_MISSING, "model");
    rig_refused(kvant_sequence_save(s, store, NULL, &rig_diag), KVANT_ERROR_MISSING, "model");
    rig_refused(kvant_sequence_load(r->cache, store, &p, &loaded, NULL, &rig_diag), KVANT_ERROR_MISSING,
                "model");
    assert_true(match == NULL && loaded == NULL);
    rig_ok(kvant_sequence_fork(s, &fork, &rig_diag));
    rig_assert_rows(r, fork, ids);
    kvant_sequence_free(fork);
    kvant_sequence_free(s);
    free(ids);
    rig_close(r);
    kvant_store_close(store);
    free(directory);
    kvant_scratch_remove(folder);
}

static void cuts_and_forks(void **state) {
    (void)state;
    rig_pair b = rig_pair_open(TOKENS, STEP);
    kvant_sequence *fork = NULL;
    rig_picture *before = rig_look(b.r, b.s);
    REFUSED(kvant_sequence_fork(NULL, &fork, &rig_diag), "sequence");
    REFUSED(kvant_sequence_fork(b.s, NULL, &rig_diag), "fork");
    REFUSED(kvant_sequence_truncate(NULL, 0, &rig_diag), "sequence");
    REFUSED(kvant_sequence_truncate(b.s, TOKENS + 1, &rig_diag), "101");
    REFUSED(kvant_sequence_truncate(b.s, UINT64_MAX, &rig_diag), "100");
    REFUSED(kvant_sequence_drop(NULL, 0, 1, &rig_diag), "sequence");
    REFUSED(kvant_sequence_drop(b.s, TOKENS, 1, &rig_diag), "position 100");
    REFUSED(kvant_sequence_drop(b.s, 99, 2, &rig_diag), "position 99");
    REFUSED(kvant_sequence_drop(b.s, 5, UINT64_MAX, &rig_diag), "position 5");
    REFUSED(kvant_sequence_drop(b.s, UINT64_MAX, 5, &rig_diag), "has 100");
    kvant_sequence *mixed[2] = {b.s, b.foreign}, *twice[2] = {b.s, b.s}, *hole[2] = {b.s, NULL};
    const uint32_t sources[2] = {1, 0}, far[2] = {0, 2};
    REFUSED(kvant_sequence_reorder(NULL, sources, 2, &rig_diag), "NULL");
    REFUSED(kvant_sequence_reorder(mixed, NULL, 2, &rig_diag), "NULL");
    REFUSED(kvant_sequence_reorder(mixed, sources, 2, &rig_diag), "another cache");
    REFUSED(kvant_sequence_reorder(twice, sources, 2, &rig_diag), "sequences 0 and 1");
    REFUSED(kvant_sequence_reorder(hole, sources, 2, &rig_diag), "sequence 1");
    rig_ok(kvant_sequence_fork(b.s, &fork, &rig_diag));
    kvant_sequence *pair[2] = {b.s, fork};
    REFUSED(kvant_sequence_reorder(pair, far, 2, &rig_diag), "source 2");
    kvant_sequence_free(fork);
    kvant_sequence_info info = {.struct_size = sizeof info};
    kvant_bytes bytes = {.struct_size = sizeof bytes};
    assert_int_equal(kvant_sequence_describe(NULL, &info), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_sequence_describe(b.s, NULL), KVANT_ERROR_ARGUMENT);
    info.struct_size = 0;
    assert_int_equal(kvant_sequence_describe(b.s, &info), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_sequence_bytes(NULL, &bytes), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_sequence_bytes(b.s, NULL), KVANT_ERROR_ARGUMENT);
    bytes.struct_size = 8;
    assert_int_equal(kvant_sequence_bytes(b.s, &bytes), KVANT_ERROR_ARGUMENT);
    rig_assert_still(b.r, b.s, before);
    rig_pair_close(&b);
}

/* During a step the sequence is not to be cut, forked, saved; the step goes on all the same. */
static void during_a_step(void **state) {
    (void)state;
    rig_pair b = rig_pair_open(TOKENS, STEP);
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    kvant_store *store = NULL;
    rig_ok(kvant_store_open_directory(directory, NULL, &store, &rig_diag));
    kvant_sequence *fork = NULL, *second = rig_sequence(b.r), *pair[2] = {second, b.s};
    const uint32_t sources[2] = {1, 0};
    const rig_step step = {.ids = b.ids + TOKENS, .count = STEP};
    rig_ok(rig_begin(b.s, &step));
    assert_int_equal(rig_info(b.s).in_step, 1);
    assert_int_equal(rig_info(b.s).length, TOKENS);
    REFUSED(kvant_sequence_fork(b.s, &fork, &rig_diag), "step");
    REFUSED(kvant_sequence_truncate(b.s, 10, &rig_diag), "step");
    REFUSED(kvant_sequence_drop(b.s, 10, 1, &rig_diag), "step");
    REFUSED(kvant_sequence_reorder(pair, sources, 2, &rig_diag), "sequence 1");
    REFUSED(kvant_sequence_save(b.s, store, NULL, &rig_diag), "step");
    rig_layers(b.r, b.s, &step);
    rig_ok(kvant_step_commit(b.s, STEP, &rig_diag));
    assert_int_equal(rig_info(b.s).length, TOKENS + STEP);
    rig_assert_rows(b.r, b.s, b.ids);
    assert_null(fork);
    kvant_sequence_free(second);
    kvant_store_close(store);
    free(directory);
    kvant_scratch_remove(folder);
    rig_pair_close(&b);
}

static void saving_and_loading(void **state) {
    (void)state;
    rig_pair b = rig_pair_open(TOKENS, STEP);
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    kvant_store *store = NULL;
    rig_ok(kvant_store_open_directory(directory, NULL, &store, &rig_diag));
    kvant_saved saved = {.struct_size = 4};
    REFUSED(kvant_sequence_save(NULL, store, NULL, &rig_diag), "sequence");
    REFUSED(kvant_sequence_save(b.s, NULL, NULL, &rig_diag), "store");
    REFUSED(kvant_sequence_save(b.s, store, &saved, &rig_diag), "struct_size");
    const kvant_prefix right = {.struct_size = sizeof right, .ids = b.ids, .count = TOKENS};
    kvant_prefix p = right;
    kvant_sequence *s = NULL;
    REFUSED(kvant_sequence_load(NULL, store, &p, &s, NULL, &rig_diag), "cache");
    REFUSED(kvant_sequence_load(b.r->cache, NULL, &p, &s, NULL, &rig_diag), "store");
    REFUSED(kvant_sequence_load(b.r->cache, store, NULL, &s, NULL, &rig_diag), "prefix");
    REFUSED(kvant_sequence_load(b.r->cache, store, &p, NULL, NULL, &rig_diag), "sequence");
    p.struct_size = 4;
    REFUSED(kvant_sequence_load(b.r->cache, store, &p, &s, NULL, &rig_diag), "struct_size");
    p = right;
    p.ids = NULL;
    REFUSED(kvant_sequence_load(b.r->cache, store, &p, &s, NULL, &rig_diag), "ids");
    p = right;
    p.salt_bytes = 1;
    REFUSED(kvant_sequence_load(b.r->cache, store, &p, &s, NULL, &rig_diag), "salt");
    assert_null(s);
    assert_int_equal(rig_report(b.r).sequences, 1);
    kvant_store_close(store);
    free(directory);
    kvant_scratch_remove(folder);
    rig_pair_close(&b);
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

static void reading(void **state) {
    (void)state;
    static const kvant_layer_geometry windowed = {.struct_size = sizeof windowed,
                                                  .kv_heads = 2,
                                                  .q_heads = 2,
                                                  .total_kv_heads = 2,
                                                  .key_dim = 32,
                                                  .value_dim = 16,
                                                  .window = 40};
    rig *r = rig_open(&(rig_wish){.layers = &windowed, .layer_count = 1});
    uint64_t *ids = rig_ids(200, 9);
    kvant_sequence *s = rig_sequence(r);
    float rows[10 * 64];
    void *scratch = aligned_alloc(64, (kvant_cache_read_scratch(r->cache) + 128) / 64 * 64);
    const kvant_mutable_view right = rig_view(rows, KVANT_DTYPE_F32, 10, 2, 32);
    kvant_mutable_view v = right;
    rig_grow(r, s, ids, 200, 60);
    rig_ok(kvant_sequence_drop(s, 185, 3, &rig_diag));
    REFUSED(kvant_sequence_read(NULL, 0, 0, 190, &v, scratch, &rig_diag), "sequence");
    REFUSED(kvant_sequence_read(s, 1, 0, 190, &v, scratch, &rig_diag), "layer 1");
    REFUSED(kvant_sequence_read(s, 0, 2, 190, &v, scratch, &rig_diag), "side 2");
    REFUSED(kvant_sequence_read(s, 0, 0, 190, NULL, scratch, &rig_diag), "rows");
    REFUSED(kvant_sequence_read(s, 0, 0, 190, &v, NULL, &rig_diag), "scratch");
    REFUSED(kvant_sequence_read(s, 0, 0, 190, &v, (char *)scratch + 8, &rig_diag), "64");
    REFUSED(kvant_sequence_read(s, 0, 0, 191, &v, scratch, &rig_diag), "191");
    REFUSED(kvant_sequence_read(s, 0, 0, UINT64_MAX, &v, scratch, &rig_diag), "200");
    REFUSED(kvant_sequence_read(s, 0, 0, 180, &v, scratch, &rig_diag), "position 185 was dropped");
    REFUSED(kvant_sequence_read(s, 0, 0, 187, &v, scratch, &rig_diag), "position 187 was dropped");
    REFUSED(kvant_sequence_read(s, 0, 0, 20, &v, scratch, &rig_diag), "position 20 was released: layer 0");
    REFUSED(kvant_sequence_read(s, 0, 1, 190, &v, scratch, &rig_diag), "[2, 32]");
    v.data = NULL;
    REFUSED(kvant_sequence_read(s, 0, 0, 190, &v, scratch, &rig_diag), "data");
    v = right;
    v.struct_size = 4;
    REFUSED(kvant_sequence_read(s, 0, 0, 190, &v, scratch, &rig_diag), "struct_size");
    v = right;
    v.heads = 1;
    REFUSED(kvant_sequence_read(s, 0, 0, 190, &v, scratch, &rig_diag), "[1, 32]");
    v = right;
    v.dtype = KVANT_DTYPE_U8;
    rig_refused(kvant_sequence_read(s, 0, 0, 190, &v, scratch, &rig_diag), KVANT_ERROR_DTYPE, "type 7");
    rig_ok(kvant_sequence_read(s, 0, 0, 190, &right, scratch, &rig_diag));
    rig_ok(kvant_sequence_read(s, 0, 0, 175, &right, scratch, &rig_diag));
    free(scratch);
    free(ids);
    kvant_sequence_free(s);
    rig_close(r);
}

/* A diag may be NULL everywhere. */
static void without_a_diag(void **state) {
    (void)state;
    rig_pair b = rig_pair_open(TOKENS, STEP);
    kvant_cache *cache = NULL;
    kvant_sequence *s = NULL;
    kvant_match *match = NULL;
    assert_int_equal(kvant_cache_open(b.r->plan, NULL, &cache, NULL), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_cache_lookup(b.r->cache, NULL, &match, NULL), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_sequence_create(NULL, NULL, 0, &s, NULL), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_sequence_truncate(b.s, 1000, NULL), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_step_begin(b.s, NULL, NULL), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_step_commit(b.s, 1, NULL), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_step_attend(b.r->cache, 9, NULL, 0, NULL, NULL), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_cache_evict(b.r->cache, UINT64_MAX, NULL, NULL), KVANT_ERROR_NO_SPACE);
    assert_int_equal(kvant_sequence_load(b.r->cache, NULL, NULL, &s, NULL, NULL), KVANT_ERROR_ARGUMENT);
    rig_pair_close(&b);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening),
        cmocka_unit_test(questions_to_a_cache),
        cmocka_unit_test(prefixes),
        cmocka_unit_test(without_a_model),
        cmocka_unit_test(cuts_and_forks),
        cmocka_unit_test(during_a_step),
        cmocka_unit_test(saving_and_loading),
        cmocka_unit_test(reading),
        cmocka_unit_test(without_a_diag),
    };
    return kvant_run_tests(tests, argc, argv);
}
