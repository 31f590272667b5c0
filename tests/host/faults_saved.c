/* Public faults of other projects: save, load, corruption, version, as far as it concerns sequences; those of
 * records and stores are in tests/unit/store_*.c. Each test is named after one; the comment gives report and
 * cause, the test what is right. */
#include "support/cache_rig.h"
#include "support/cache_shipped.h"
#include "support/scratch.h"
#include "support/store_records.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct place {
    char *folder, *directory;
    kvant_store *store;
} place;

static place open_place(void) {
    place p = {.folder = kvant_scratch_make()};
    p.directory = kvant_scratch_path(p.folder, "store");
    rig_ok(kvant_store_open_directory(p.directory, NULL, &p.store, &rig_diag));
    return p;
}

static void close_place(place *p) {
    kvant_store_close(p->store);
    free(p->directory);
    kvant_scratch_remove(p->folder);
}

static void reopen(place *p) {
    kvant_store_close(p->store);
    p->store = NULL;
    rig_ok(kvant_store_open_directory(p->directory, NULL, &p->store, &rig_diag));
}

static kvant_saved save(const kvant_sequence *s, kvant_store *store) {
    kvant_saved saved;
    memset(&saved, 0xee, sizeof saved);
    saved.struct_size = sizeof saved;
    rig_ok(kvant_sequence_save(s, store, &saved, &rig_diag));
    return saved;
}

static kvant_sequence *load(rig *r, kvant_store *store, const uint64_t *ids, uint32_t count,
                            uint32_t *reason) {
    const kvant_prefix prefix = {.struct_size = sizeof prefix, .ids = ids, .count = count};
    kvant_sequence *s = NULL;
    rig_ok(kvant_sequence_load(r->cache, store, &prefix, &s, reason, &rig_diag));
    return s;
}

/* Goes on with `b` as with `a`: a step of 5, then single tokens over a block's end, the same outputs. */
static void assert_go_on(rig *ra, kvant_sequence *a, rig *rb, kvant_sequence *b, const uint64_t *ids) {
    float *x = malloc((rig_outputs(ra, 5) + 1) * sizeof *x),
          *y = malloc((rig_outputs(rb, 5) + 1) * sizeof *y);
    assert_true(x != NULL && y != NULL);
    rig_assert_alike(rb, b, ra, a);
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t count = i == 0 ? 5 : 1, length = (uint32_t)rig_info(a).length;
        rig_take(ra, a, &(rig_step){.ids = ids + length, .count = count, .outputs = x});
        rig_take(rb, b, &(rig_step){.ids = ids + length, .count = count, .outputs = y});
        kvant_assert_bytes(y, x, rig_outputs(ra, count) * sizeof *x);
    }
    rig_assert_alike(rb, b, ra, a);
    free(x);
    free(y);
}

/* F41 (ggml-org/llama.cpp#6341, review): rows of equal size passed for rows of equal type. Right: two
 * pipelines whose extents have one size do not load each other's. */
static void f41_equal_size_is_not_equal_type(void **state) {
    (void)state;
    static const kvant_layer_geometry layer = {.struct_size = sizeof layer,
                                               .kv_heads = 2,
                                               .q_heads = 2,
                                               .total_kv_heads = 2,
                                               .key_dim = 64,
                                               .value_dim = 64};
    static const char *const texts[] = {
        "[pipeline]\nblock_tokens = 64\nrecent = 5\n[codec t]\nplugin = turboquant\nbits = 4\nseed = 1\n"
        "[layers]\nkey = t\nvalue = t\n",
        "[pipeline]\nblock_tokens = 64\nrecent = 5\n[codec t]\nplugin = turboquant\nbits = 4\nseed = 2\n"
        "[layers]\nkey = t\nvalue = t\n"};
    place p = open_place();
    uint64_t *ids = rig_ids(200, 41);
    rig *r[2];
    kvant_bytes bytes[2];
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t reason = 99;
        r[i] = rig_open(&(rig_wish){.text = texts[i], .layers = &layer, .layer_count = 1});
        kvant_sequence *s = load(r[i], p.store, ids, 200, &reason);
        assert_int_equal(rig_info(s).length, 0);
        assert_int_equal(reason, KVANT_STORE_ABSENT);
        rig_grow(r[i], s, ids, 200, 200);
        assert_int_equal(save(s, p.store).tokens, 200);
        bytes[i] = rig_bytes(s);
        kvant_sequence_free(s);
    }
    assert_int_equal(bytes[0].payload, bytes[1].payload);
    assert_int_equal(bytes[0].total, bytes[1].total);
    for (uint32_t i = 0; i < 2; i++) {
        kvant_sequence *s = load(r[i], p.store, ids, 200, NULL);
        assert_int_equal(rig_info(s).length, 200);
        rig_assert_rows(r[i], s, ids);
        kvant_sequence_free(s);
        rig_close(r[i]);
    }
    free(ids);
    close_place(&p);
}

/* F42 (kekzl/imp#1189): the prefix file had keys and values, and not the pool of scales: right as long as the
 * old pool was there. Right: a fresh cache, whose pool held other things before, goes on the same. */
static void f42_into_a_fresh_pool(void **state) {
    (void)state;
    enum { TOKENS = 215 };
    place p = open_place();
    rig *before = rig_open(&(rig_wish){0});
    uint64_t *ids = rig_ids(TOKENS + 100, 42), *others = rig_ids(600, 420);
    kvant_sequence *s = rig_sequence(before);
    rig_grow(before, s, ids, TOKENS, 60);
    kvant_saved saved = save(s, p.store);
    assert_int_equal(saved.tokens, TOKENS);
    assert_int_equal(saved.blocks, 6);
    assert_int_equal(saved.tail_tokens, TOKENS - 192);
    assert_true(saved.bytes > 0);
    assert_int_equal(save(s, p.store).blocks, 6);
    reopen(&p);
    rig *fresh = rig_open(&(rig_wish){.bytes = 300000});
    kvant_sequence *dirt = rig_sequence(fresh);
    rig_grow(fresh, dirt, others, 600, 600);
    kvant_sequence_free(dirt);
    uint64_t freed = 0;
    rig_ok(kvant_cache_evict(fresh->cache, rig_report(fresh).capacity, &freed, &rig_diag));
    uint32_t reason = 99;
    kvant_sequence *loaded = load(fresh, p.store, ids, TOKENS, &reason);
    assert_int_equal(rig_info(loaded).length, TOKENS);
    assert_int_equal(reason, KVANT_STORE_FOUND);
    rig_assert_rows(fresh, loaded, ids);
    assert_go_on(before, s, fresh, loaded, ids);
    kvant_sequence_free(s);
    kvant_sequence_free(loaded);
    rig_close(before);
    rig_close(fresh);
    free(ids);
    free(others);
    close_place(&p);
}

/* F43 (ggml-org/llama.cpp#26676): the restore reported success, and the slot stayed empty. Right: what is
 * reported is what is there; half of it missing is half of it loaded, with the reason. */
static void f43_what_is_loaded_is_usable(void **state) {
    (void)state;
    enum { TOKENS = 150 };
    place p = open_place();
    rig *r = rig_open(&(rig_wish){0});
    uint64_t *ids = rig_ids(TOKENS + 100, 43), *other = rig_ids(TOKENS, 430);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, TOKENS, TOKENS);
    (void)save(s, p.store);
    memcpy(other, ids, 70 * sizeof *ids);
    rig *fresh = rig_open(&(rig_wish){0});
    uint32_t reason = 99;
    kvant_sequence *part = load(fresh, p.store, other, TOKENS, &reason); /* parts with it at token 70 */
    assert_int_equal(rig_info(part).length, 64);
    assert_int_equal(reason, KVANT_STORE_ABSENT);
    rig_assert_rows(fresh, part, ids);
    rig_grow(fresh, part, other, TOKENS, 9);
    rig_assert_rows(fresh, part, other);
    assert_int_equal(rig_found(fresh, ids, NULL, TOKENS, NULL), 64); /* lookup finds what was loaded */
    kvant_sequence *none = load(fresh, p.store, other + 1, TOKENS - 1, &reason);
    assert_int_equal(rig_info(none).length, 0);
    assert_int_equal(reason, KVANT_STORE_ABSENT);
    kvant_sequence *all = load(fresh, p.store, ids, TOKENS, &reason);
    assert_int_equal(rig_info(all).length, TOKENS);
    assert_int_equal(reason, KVANT_STORE_FOUND);
    assert_go_on(r, s, fresh, all, ids);
    kvant_sequence_free(s);
    kvant_sequence_free(part);
    kvant_sequence_free(none);
    kvant_sequence_free(all);
    rig_close(r);
    rig_close(fresh);
    free(ids);
    free(other);
    close_place(&p);
}

/* A sequence that was cut inside a block has rows that its tokens do not tell: that much is said, and
 * saved. */
static void f43_a_private_part_is_not_saved(void **state) {
    (void)state;
    place p = open_place();
    rig *r = rig_open(&(rig_wish){0}), *fresh = rig_open(&(rig_wish){0});
    uint64_t *ids = rig_ids(200, 431);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, 150, 150);
    rig_ok(kvant_sequence_truncate(s, 70, &rig_diag));
    rig_grow(r, s, ids, 200, 10);
    kvant_saved saved = save(s, p.store);
    assert_int_equal(saved.tokens, 64);
    assert_int_equal(saved.blocks, 2);
    assert_int_equal(saved.tail_tokens, 0);
    uint32_t reason = 99;
    kvant_sequence *loaded = load(fresh, p.store, ids, 200, &reason);
    assert_int_equal(rig_info(loaded).length, 64);
    assert_int_equal(reason, KVANT_STORE_ABSENT);
    rig_assert_rows(fresh, loaded, ids);
    kvant_sequence_free(s);
    kvant_sequence_free(loaded);
    /* So has one with tokens that nobody named, among those that are raw. */
    s = rig_sequence(r);
    rig_grow(r, s, ids + 1, 70, 70);
    rig_take(r, s, &(rig_step){.ids = ids + 71, .count = 10, .unknown = true});
    saved = save(s, p.store);
    assert_int_equal(saved.tokens, 70);
    assert_int_equal(saved.tail_tokens, 70 - 32);
    loaded = load(fresh, p.store, ids + 1, 80, NULL);
    assert_int_equal(rig_info(loaded).length, 70);
    rig_assert_rows(fresh, loaded, ids + 1);
    kvant_sequence_free(s);
    kvant_sequence_free(loaded);
    rig_close(r);
    rig_close(fresh);
    free(ids);
    close_place(&p);
}

static void one_shipped(const rig_wish *wish, const char *name) {
    (void)name;
    place p = open_place();
    rig *r = rig_open(wish), *fresh = rig_open(wish);
    uint32_t tokens = 2 * r->block_tokens + r->recent + 13;
    uint64_t *ids = rig_ids(tokens + 100, 46);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, tokens, tokens);
    assert_int_equal(save(s, p.store).tokens, tokens);
    reopen(&p);
    kvant_sequence *loaded = load(fresh, p.store, ids, tokens, NULL);
    assert_int_equal(rig_info(loaded).length, tokens);
    assert_int_equal(rig_info(loaded).blocks, 2);
    rig_assert_rows(fresh, loaded, ids);
    assert_go_on(r, s, fresh, loaded, ids);
    kvant_sequence_free(s);
    kvant_sequence_free(loaded);
    rig_close(r);
    rig_close(fresh);
    free(ids);
    close_place(&p);
}

/* F46 (lablup/mlxcel#1330): a snapshot copied keys and values only, and what its codec kept beside them was
 * lost. Right: every pipeline that ships goes on after a restart as if there had been none. */
static void f46_every_codec_comes_back(void **state) {
    (void)state;
    rig_each_shipped(KVANT_TEST_SOURCE_DIR, 20, one_shipped);
}

/* A store that gives the record of another name: kvant/stores.h has to notice. */
typedef struct liar {
    unsigned char names[16][KVANT_STORE_NAME_BYTES];
    unsigned char *records[16];
    size_t sizes[16];
    uint32_t count;
    uint32_t shift; /* record i + shift is given for name i */
} liar;

static kvant_status liar_put(void *state, const uint8_t *name, const void *bytes, size_t size,
                             kvant_diag *diag) {
    liar *l = state;
    (void)diag;
    if (l->count == 16) return KVANT_ERROR_NO_SPACE;
    memcpy(l->names[l->count], name, KVANT_STORE_NAME_BYTES);
    l->records[l->count] = malloc(size);
    if (l->records[l->count] == NULL) return KVANT_ERROR_MEMORY;
    memcpy(l->records[l->count], bytes, size);
    l->sizes[l->count++] = size;
    return KVANT_OK;
}

static kvant_status liar_get(void *state, const uint8_t *name, kvant_store_use *use, void *context,
                             kvant_diag *diag) {
    liar *l = state;
    (void)diag;
    for (uint32_t i = 0; i < l->count; i++)
        if (memcmp(l->names[i], name, KVANT_STORE_NAME_BYTES) == 0)
            return use(context, l->records[(i + l->shift) % l->count], l->sizes[(i + l->shift) % l->count]);
    return KVANT_ERROR_MISSING;
}

static kvant_status liar_contains(void *state, const uint8_t *name, kvant_diag *diag) {
    liar *l = state;
    (void)diag;
    for (uint32_t i = 0; i < l->count; i++)
        if (memcmp(l->names[i], name, KVANT_STORE_NAME_BYTES) == 0) return KVANT_OK;
    return KVANT_ERROR_MISSING;
}

static kvant_status liar_remove(void *state, const uint8_t *name, kvant_diag *diag) {
    (void)state, (void)name, (void)diag;
    return KVANT_ERROR_MISSING;
}

static kvant_status liar_iterate(void *state,
                                 kvant_status (*visit)(void *context, const uint8_t *name, uint64_t bytes),
                                 void *context, kvant_diag *diag) {
    (void)state, (void)visit, (void)context, (void)diag;
    return KVANT_OK;
}

static kvant_status liar_usage(void *state, kvant_store_usage *usage, kvant_diag *diag) {
    liar *l = state;
    (void)diag;
    usage->records = l->count;
    return KVANT_OK;
}

static void liar_close(void *state) {
    liar *l = state;
    for (uint32_t i = 0; i < l->count; i++) free(l->records[i]);
}

/* F38 once more, in the store: equal names, other tokens. A lookup and a load take nothing of it. */
static void f38_a_store_that_mixes_up_names(void **state) {
    (void)state;
    static const kvant_store_calls calls = {.struct_size = sizeof calls,
                                            .put = liar_put,
                                            .get = liar_get,
                                            .contains = liar_contains,
                                            .remove = liar_remove,
                                            .iterate = liar_iterate,
                                            .usage = liar_usage,
                                            .close = liar_close};
    static liar l;
    kvant_store *store = NULL;
    rig_ok(kvant_store_open_calls(&calls, &l, NULL, &store, &rig_diag));
    rig *r = rig_open(&(rig_wish){.store = store});
    uint64_t *ids = rig_ids(150, 381);
    kvant_sequence *s = rig_sequence(r);
    rig_grow(r, s, ids, 150, 150);
    assert_int_equal(save(s, store).blocks, 4);
    kvant_sequence_free(s);
    rig_ok(kvant_cache_evict(r->cache, rig_report(r).capacity, NULL, &rig_diag));
    l.shift = 1;
    assert_int_equal(rig_found(r, ids, NULL, 150, NULL), 0);
    uint32_t reason = 99;
    s = load(r, store, ids, 150, &reason);
    assert_int_equal(rig_info(s).length, 0);
    assert_int_equal(reason, KVANT_STORE_KEY);
    kvant_sequence_free(s);
    l.shift = 0;
    assert_int_equal(rig_found(r, ids, NULL, 150, NULL), 128);
    free(ids);
    rig_close(r);
    kvant_store_close(store);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(f41_equal_size_is_not_equal_type), cmocka_unit_test(f42_into_a_fresh_pool),
        cmocka_unit_test(f43_what_is_loaded_is_usable),     cmocka_unit_test(f43_a_private_part_is_not_saved),
        cmocka_unit_test(f46_every_codec_comes_back),       cmocka_unit_test(f38_a_store_that_mixes_up_names),
    };
    test_store_quick_disk();
    return kvant_run_tests(tests, argc, argv);
}
