/* Records that are not there, not whole, or somebody else's: each is a miss with its reason, the sequence
 * ends before it, and what is loaded is right. */
#include "support/cache_place.h"
#include "support/store_damage.h"
#include "support/test.h"
#include "support/tester.h"

#include "store/bytes.h"
#include "store/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 215, BLOCK = 32, BLOCKS = 6, RECORDS = BLOCKS + 1 }; /* rig_kivi: 6 blocks and a tail of 23 */

/* A sequence in a store: its records in order, as they lie there. */
typedef struct saved_records {
    place p;
    rig *r;
    kvant_sequence *s;
    uint64_t *ids;
    kvant_store_key keys[RECORDS]; /* the tail last */
    unsigned char *bytes[RECORDS];
    size_t sizes[RECORDS];
} saved_records;

static void save_records(saved_records *v, uint32_t kind, const rig_wish *wish) {
    kvant_store_key keys[RECORDS + 1];
    *v = (saved_records){.p = place_make(kind), .r = rig_open(wish), .ids = rig_ids(COUNT + PLACE_MORE, 3)};
    v->s = rig_sequence(v->r);
    rig_grow(v->r, v->s, v->ids, COUNT, 100);
    place_assert_saved(&v->p, v->s, COUNT);
    assert_int_equal(place_keys(&v->p, keys, RECORDS + 1), RECORDS);
    for (uint32_t i = 0; i < RECORDS; i++) {
        size_t size = 0;
        unsigned char *bytes = place_stored(&v->p, &keys[i], &size);
        const unsigned char *head = memcmp(bytes, "KVANTPAK", 8) == 0 ? bytes + 64 : bytes;
        uint64_t number = kvant_get64(head + 128);
        assert_true(number < RECORDS && v->bytes[number] == NULL);
        assert_int_equal(keys[i].kind, number == BLOCKS ? KVANT_STORE_TAIL : KVANT_STORE_BLOCK);
        memcpy(keys[i].fingerprint, head + 32, 32);
        v->keys[number] = keys[i];
        v->bytes[number] = bytes;
        v->sizes[number] = size;
    }
}

static void free_records(saved_records *v) {
    for (uint32_t i = 0; i < RECORDS; i++) free(v->bytes[i]);
    kvant_sequence_free(v->s);
    rig_close(v->r);
    free(v->ids);
    place_remove(&v->p);
}

/* With record `at` replaced, exactly what comes before it is loaded, for that reason; then it is saved once
 * more, which mends it. */
static void expect_miss(saved_records *v, uint32_t at, const void *bytes, size_t size, uint32_t reason,
                        const char *what) {
    place_plant(&v->p, &v->keys[at], bytes, size);
    rig *fresh = rig_open(&v->r->wish);
    const place_prefix prefix = {.ids = v->ids, .count = COUNT};
    uint32_t said = UINT32_MAX;
    kvant_sequence *s = place_load(&v->p, fresh, &prefix, &said);
    if (rig_info(s).length != at * BLOCK || said != reason)
        fail_msg("%s, record %u of %s: %llu tokens, %s; expected %s", what, at, place_names[v->p.kind],
                 (unsigned long long)rig_info(s).length, kvant_store_reason_text(said),
                 kvant_store_reason_text(reason));
    rig_assert_rows(fresh, s, v->ids);
    assert_true(test_store_stats(v->p.store).reasons[reason] > 0 || reason == KVANT_STORE_KEY);
    kvant_sequence_free(s);
    rig_close(fresh);
    kvant_saved saved = place_save(&v->p, v->s);
    assert_int_equal(saved.tokens, COUNT);
    if (saved.bytes != v->sizes[at]) fail_msg("%s, record %u: it was not put again", what, at);
    size_t now = 0;
    unsigned char *stored = place_stored(&v->p, &v->keys[at], &now);
    assert_int_equal(now, v->sizes[at]);
    kvant_assert_bytes(stored, v->bytes[at], now);
    free(stored);
}

/* ---- Damage -------------------------------------------------------------------------------------------- */

static const uint32_t victims[] = {0, 2, BLOCKS};

static unsigned char *copy_of(const saved_records *v, uint32_t at) {
    unsigned char *bytes = malloc(v->sizes[at]);
    assert_non_null(bytes);
    memcpy(bytes, v->bytes[at], v->sizes[at]);
    return bytes;
}

static void damaged(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < PLACE_PACKED; kind++) {
        saved_records v;
        save_records(&v, kind, &(rig_wish){0});
        for (uint32_t i = 0; i < 3; i++) {
            uint32_t at = victims[i];
            size_t size = v.sizes[at];
            unsigned char *bytes = copy_of(&v, at);
            expect_miss(&v, at, bytes, size / 2, KVANT_STORE_TRUNCATED, "half of it");
            expect_miss(&v, at, bytes, 100, KVANT_STORE_TRUNCATED, "100 bytes");
            expect_miss(&v, at, bytes, size - 1, KVANT_STORE_TRUNCATED, "one byte less");
            bytes[size - 70] ^= 0x10;
            expect_miss(&v, at, bytes, size, KVANT_STORE_CHECKSUM, "a bit of the payload");
            bytes[size - 70] ^= 0x10;
            bytes[144] ^= 1;
            expect_miss(&v, at, bytes, size, KVANT_STORE_CHECKSUM, "a bit of the header");
            bytes[144] ^= 1;
            kvant_put32(bytes + 8, 2);
            expect_miss(&v, at, bytes, size, KVANT_STORE_VERSION, "a later version");
            kvant_put32(bytes + 8, 1u << 24);
            expect_miss(&v, at, bytes, size, KVANT_STORE_ENDIAN, "the other byte order");
            memset(bytes, 'x', size);
            expect_miss(&v, at, bytes, size, KVANT_STORE_FOREIGN, "no record");
            expect_miss(&v, at, v.bytes[1], v.sizes[1], KVANT_STORE_KEY, "renamed");
            free(bytes);
        }
        free_records(&v);
    }
}

/* F44: nothing at all under the name. LMDB stores no empty value of this kind differently; a file can be
 * empty. */
static void f44_empty(void **state) {
    (void)state;
    saved_records v;
    save_records(&v, PLACE_DIRECTORY, &(rig_wish){0});
    expect_miss(&v, 3, "", 0, KVANT_STORE_TRUNCATED, "empty");
    expect_miss(&v, 3, "K", 1, KVANT_STORE_TRUNCATED, "one byte");
    free_records(&v);
}

/* Any record gone: what comes before it is there, and what comes after is of no use but for its blocks. */
static void removed(void **state) {
    (void)state;
    for (uint32_t at = 0; at < RECORDS; at++) {
        saved_records v;
        save_records(&v, PLACE_CALLS, &(rig_wish){0});
        rig_ok(kvant_store_remove(v.p.store, &v.keys[at], &rig_diag));
        rig *fresh = rig_open(&v.r->wish);
        kvant_sequence *s = place_expect(&v.p, fresh, &(place_prefix){.ids = v.ids, .count = COUNT},
                                         at * BLOCK, KVANT_STORE_ABSENT);
        rig_assert_rows(fresh, s, v.ids);
        kvant_sequence_free(s);
        rig_close(fresh);
        free_records(&v);
    }
}

/* Flips of any bit of a packed record. */
static void damaged_when_packed(void **state) {
    (void)state;
    saved_records v;
    save_records(&v, PLACE_PACKED,
                 &(rig_wish){.text = "[pipeline]\nblock_tokens = 32\nsinks = 3\nrecent = 20\n"
                                     "[layers]\nkey = raw\nvalue = raw\n"});
    uint64_t seed = 12;
    for (uint32_t i = 0; i < 60; i++) {
        uint32_t at = i % RECORDS, reason = UINT32_MAX;
        unsigned char *bytes = copy_of(&v, at);
        size_t bit = (size_t)(kvant_test_random(&seed) % (v.sizes[at] * 8));
        bytes[bit / 8] ^= (unsigned char)(1 << bit % 8);
        place_plant(&v.p, &v.keys[at], bytes, v.sizes[at]);
        rig *fresh = rig_open(&v.r->wish);
        kvant_sequence *s = place_load(&v.p, fresh, &(place_prefix){.ids = v.ids, .count = COUNT}, &reason);
        assert_int_equal(rig_info(s).length, at * BLOCK);
        assert_true(reason != KVANT_STORE_FOUND && reason != KVANT_STORE_ABSENT);
        rig_assert_rows(fresh, s, v.ids);
        kvant_sequence_free(s);
        rig_close(fresh);
        place_plant(&v.p, &v.keys[at], v.bytes[at], v.sizes[at]);
        free(bytes);
    }
    free_records(&v);
}

/* ---- Forgeries ----------------------------------------------------------------------------------------- */

/* What a forger changes in a record before it gets right checksums again. Its key stays right: it is a hash
 * of what is not changed here. */
typedef struct forgery {
    const char *what;
    uint32_t reason;
    uint32_t number, position, sinks, dtype; /* added */
    uint32_t tag;                            /* of token 5, instead */
    uint32_t shorter; /* bytes of the first value extent, or of its raw rows in a tail */
    bool without_value, tails_too;
} forgery;

static size_t forge(const saved_records *v, uint32_t at, const forgery *f, unsigned char *to, size_t room) {
    kvant_record record;
    kvant_record_writer writer;
    const char *why = "";
    assert_int_equal(kvant_record_read(v->bytes[at], v->sizes[at], &record, &why), KVANT_OK);
    kvant_record_head head = record.head;
    uint64_t ids[64];
    unsigned char tags[64];
    assert_true(head.tokens <= 64);
    for (uint32_t t = 0; t < head.tokens; t++) ids[t] = kvant_record_id(&record, t);
    memcpy(tags, record.tags, head.tokens);
    if (f->tag > 0) tags[5] = (unsigned char)f->tag;
    head.block += f->number;
    head.first_position += f->position;
    head.sinks -= f->sinks;
    head.dtype += f->dtype;
    rig_ok(kvant_record_start(&writer, to, room, &head, ids, tags, record.classes, NULL, 0));
    for (uint32_t i = 0; i < head.layers * 2; i++) {
        kvant_record_part extent = kvant_record_extent(&record, i / 2, i % 2);
        kvant_record_part raw = kvant_record_raw(&record, i / 2, i % 2);
        if (i == 1 && f->without_value) continue;
        if (i == 1 && extent.size > 0) extent.size -= f->shorter;
        if (i == 1 && extent.size == 0) raw.size -= f->shorter * head.tokens;
        if (f->sinks > 0) raw.size = raw.size / record.head.sinks * head.sinks;
        void *place_of = kvant_record_room(&writer, (size_t)extent.size);
        assert_non_null(place_of);
        memcpy(place_of, extent.bytes != NULL ? extent.bytes : (const unsigned char *)"",
               (size_t)extent.size);
        kvant_record_put_extent(&writer, i / 2, i % 2, (size_t)extent.size);
        place_of = kvant_record_room(&writer, (size_t)raw.size);
        assert_non_null(place_of);
        memcpy(place_of, raw.bytes != NULL ? raw.bytes : (const unsigned char *)"", (size_t)raw.size);
        kvant_record_put_raw(&writer, i / 2, i % 2, (size_t)raw.size);
    }
    size_t size = kvant_record_finish(&writer);
    assert_memory_equal(to + 96, v->bytes[at] + 96, 32); /* the key */
    return size;
}

static void forged(void **state) {
    (void)state;
    static const forgery forgeries[] = {
        {.what = "another number", .reason = KVANT_STORE_KEY, .number = 1, .tails_too = true},
        {.what = "another position", .reason = KVANT_STORE_KEY, .position = BLOCK, .tails_too = true},
        {.what = "another dtype", .reason = KVANT_STORE_KEY, .dtype = 1, .tails_too = true},
        {.what = "a tag of another class", .reason = KVANT_STORE_KEY, .tag = 3, .tails_too = true},
        {.what = "no values", .reason = KVANT_STORE_KEY, .without_value = true, .tails_too = true},
        {.what = "an extent of no size", .reason = KVANT_STORE_CHECKSUM, .shorter = 2},
        {.what = "a size below the least", .reason = KVANT_STORE_CHECKSUM, .shorter = 96},
    };
    const rig_wish wish = {.text = "[pipeline]\nblock_tokens = 32\nsinks = 0\nrecent = 20\n"
                                   "[layers]\nkey = tester_tags\nvalue = tester_tags\n"};
    tester = (tester_behaviour){.size_steps = 5};
    saved_records v;
    save_records(&v, PLACE_DIRECTORY, &wish);
    for (uint32_t i = 0; i < sizeof forgeries / sizeof forgeries[0]; i++)
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t at = k == 0 ? 2 : BLOCKS;
            if (k == 1 && !forgeries[i].tails_too) continue;
            size_t room = v.sizes[at] + 1024;
            unsigned char *bytes = malloc(room);
            assert_non_null(bytes);
            size_t size = forge(&v, at, &forgeries[i], bytes, room);
            place_plant(&v.p, &v.keys[at], bytes, size);
            rig *fresh = rig_open(&wish);
            uint32_t reason = UINT32_MAX;
            kvant_sequence *s =
                place_load(&v.p, fresh, &(place_prefix){.ids = v.ids, .count = COUNT}, &reason);
            if (rig_info(s).length != at * BLOCK || reason != forgeries[i].reason)
                fail_msg("%s, record %u: %llu tokens, %s", forgeries[i].what, at,
                         (unsigned long long)rig_info(s).length, kvant_store_reason_text(reason));
            kvant_sequence_free(s);
            rig_close(fresh);
            place_plant(&v.p, &v.keys[at], v.bytes[at], v.sizes[at]);
            free(bytes);
        }
    free_records(&v);
    /* Fewer sinks than the plan's, with block 0. */
    save_records(&v, PLACE_DIRECTORY, &(rig_wish){0});
    unsigned char *bytes = malloc(v.sizes[0]);
    assert_non_null(bytes);
    size_t size = forge(&v, 0, &(forgery){.sinks = 1}, bytes, v.sizes[0]);
    place_plant(&v.p, &v.keys[0], bytes, size);
    rig *fresh = rig_open(&v.r->wish);
    kvant_sequence *s =
        place_expect(&v.p, fresh, &(place_prefix){.ids = v.ids, .count = COUNT}, 0, KVANT_STORE_KEY);
    kvant_sequence_free(s);
    rig_close(fresh);
    free(bytes);
    free_records(&v);
    tester = (tester_behaviour){0};
}

/* ---- Others -------------------------------------------------------------------------------------------- */

static const kvant_layer_geometry rank0[] = {{.struct_size = sizeof rank0[0],
                                              .kv_heads = 2,
                                              .q_heads = 4,
                                              .total_kv_heads = 4,
                                              .key_dim = 32,
                                              .value_dim = 32}};
static const kvant_layer_geometry rank1[] = {{.struct_size = sizeof rank1[0],
                                              .kv_heads = 2,
                                              .q_heads = 4,
                                              .first_kv_head = 2,
                                              .total_kv_heads = 4,
                                              .key_dim = 32,
                                              .value_dim = 32}};
static const kvant_layer_geometry whole[] = {{.struct_size = sizeof whole[0],
                                              .kv_heads = 2,
                                              .q_heads = 4,
                                              .total_kv_heads = 2,
                                              .key_dim = 32,
                                              .value_dim = 32}};
#define PIPELINE(head, key)                                                                                  \
    "[pipeline]\nblock_tokens = 32\n" head "[layers]\nkey = " key "\nvalue = uniform\n"
static const rig_wish strangers[] = {
    {.text = PIPELINE("", "uniform"), .layers = whole, .layer_count = 1},
    {.text = PIPELINE("", "uniform"), .layers = whole, .layer_count = 1, .model = "rig/model@2"},
    {.text = PIPELINE("", "uniform"), .layers = whole, .layer_count = 1, .dtype = KVANT_DTYPE_BF16},
    {.text = PIPELINE("", "uniform"), .layers = rank0, .layer_count = 1},
    {.text = PIPELINE("", "uniform"), .layers = rank1, .layer_count = 1},
    {.text = PIPELINE("sinks = 2\n", "uniform"), .layers = whole, .layer_count = 1},
    {.text = PIPELINE("on_nonfinite = saturate\n", "uniform"), .layers = whole, .layer_count = 1},
    {.text = PIPELINE("", "raw"), .layers = whole, .layer_count = 1},
};
enum { STRANGERS = sizeof strangers / sizeof strangers[0] };

/* One store for all, the same prompt: everybody loads their own and nobody another's, under its own keys and,
 * where records are renamed to theirs, for a reason. */
static void strangers_never_meet(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < PLACE_KINDS; kind++) {
        place p = place_make(kind);
        uint64_t *ids = rig_ids(100, 20);
        kvant_store_key keys[STRANGERS];
        for (uint32_t i = 0; i < STRANGERS; i++) {
            rig *r = rig_open(&strangers[i]);
            kvant_sequence *s =
                place_expect(&p, r, &(place_prefix){.ids = ids, .count = 100}, 0, KVANT_STORE_ABSENT);
            rig_grow(r, s, ids, 100, 100);
            kvant_saved saved = place_save(&p, s);
            assert_int_equal(saved.tokens, 100);
            assert_true(saved.bytes > 0);
            const uint8_t *tags = NULL;
            uint8_t scratch[8192] __attribute__((aligned(64)));
            kvant_records *records = NULL;
            rig_ok(kvant_records_open(r->plan, &records, &rig_diag));
            const kvant_record_source source = {.struct_size = sizeof source,
                                                .kind = KVANT_STORE_BLOCK,
                                                .tokens = BLOCK,
                                                .ids = ids,
                                                .tags = tags};
            size_t bytes = kvant_records_scratch_bytes(records, BLOCK);
            void *room = bytes <= sizeof scratch ? (void *)scratch : aligned_alloc(64, bytes);
            assert_non_null(room);
            keys[i] = (kvant_store_key){.struct_size = sizeof keys[i], .kind = KVANT_STORE_BLOCK};
            rig_ok(kvant_records_key(records, &source, room, keys[i].key, &rig_diag));
            if (room != (void *)scratch) free(room);
            kvant_records_close(records);
            assert_int_equal(kvant_store_contains(p.store, &keys[i], NULL), KVANT_OK);
            kvant_sequence_free(s);
            rig_close(r);
        }
        for (uint32_t i = 0; i < STRANGERS; i++) {
            rig *r = rig_open(&strangers[i]);
            kvant_sequence *s =
                place_expect(&p, r, &(place_prefix){.ids = ids, .count = 100}, 100, KVANT_STORE_FOUND);
            rig_assert_rows(r, s, ids);
            kvant_sequence_free(s);
            rig_close(r);
            if (kind == PLACE_PACKED) continue;
            size_t size = 0;
            unsigned char *mine = place_stored(&p, &keys[i], &size), *theirs = NULL;
            size_t mine_size = size;
            theirs = place_stored(&p, &keys[(i + 1) % STRANGERS], &size);
            place_plant(&p, &keys[i], theirs, size);
            r = rig_open(&strangers[i]);
            s = place_expect(&p, r, &(place_prefix){.ids = ids, .count = 100}, 0, KVANT_STORE_FINGERPRINT);
            kvant_sequence_free(s);
            rig_close(r);
            place_plant(&p, &keys[i], mine, mine_size);
            free(mine);
            free(theirs);
        }
        place_remove(&p);
        free(ids);
    }
}

/* Salts and tags, through memory and through a store. */
static void tenants_never_meet(void **state) {
    (void)state;
    static const char *const salts[] = {NULL, "a", "b", "ab"};
    place p = place_make(PLACE_LMDB);
    uint64_t *ids = rig_ids(150, 21);
    rig *r = rig_open(&(rig_wish){0});
    for (uint32_t i = 0; i < 4; i++) {
        const place_prefix own = {.ids = ids, .count = 150, .salt = salts[i]};
        kvant_sequence *s = place_expect(&p, r, &own, 0, KVANT_STORE_ABSENT);
        rig_grow(r, s, ids, 150, 150);
        place_assert_saved(&p, s, 150);
        kvant_sequence_free(s);
        for (uint32_t k = i + 1; k < 4; k++) assert_int_equal(rig_found(r, ids, NULL, 150, salts[k]), 0);
    }
    rig *fresh = rig_open(&(rig_wish){0});
    for (uint32_t i = 0; i < 4; i++) {
        kvant_sequence *s = place_expect(
            &p, fresh, &(place_prefix){.ids = ids, .count = 150, .salt = salts[i]}, 150, KVANT_STORE_FOUND);
        rig_assert_rows(fresh, s, ids);
        kvant_sequence_free(s);
    }
    kvant_sequence *s = place_expect(&p, fresh, &(place_prefix){.ids = ids, .count = 150, .salt = "c"}, 0,
                                     KVANT_STORE_ABSENT);
    kvant_sequence_free(s);
    rig_close(r);
    rig_close(fresh);
    place_remove(&p);
    free(ids);
}

/* Tags that codecs do not tell apart are no difference; those that they do are a miss. */
static void tags_tell_apart(void **state) {
    (void)state;
    const rig_wish wish = {.text = "[pipeline]\nblock_tokens = 8\nrecent = 5\n"
                                   "[layers]\nkey = tester_tags\nvalue = raw\n"};
    place p = place_make(PLACE_DIRECTORY);
    uint64_t *ids = rig_ids(60, 22);
    uint8_t tags[60], alike[60], unlike[60];
    for (uint32_t t = 0; t < 60; t++) {
        tags[t] = (uint8_t)(t % 7);
        alike[t] = (uint8_t)(t % 7 + 7 * (t % 3));
        unlike[t] = tags[t];
    }
    unlike[20]++;
    rig *r = rig_open(&wish), *fresh = rig_open(&wish);
    kvant_sequence *s = rig_sequence(r);
    rig_take(r, s, &(rig_step){.ids = ids, .tags = tags, .count = 60});
    place_assert_saved(&p, s, 60);
    kvant_sequence *b = place_expect(&p, fresh, &(place_prefix){.ids = ids, .tags = unlike, .count = 60}, 16,
                                     KVANT_STORE_ABSENT);
    kvant_sequence *a = place_expect(&p, fresh, &(place_prefix){.ids = ids, .tags = alike, .count = 60}, 60,
                                     KVANT_STORE_FOUND);
    rig_assert_alike(r, s, fresh, a);
    kvant_sequence_free(a);
    kvant_sequence_free(b);
    kvant_sequence_free(s);
    rig_close(r);
    rig_close(fresh);
    place_remove(&p);
    free(ids);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged),
        cmocka_unit_test(f44_empty),
        cmocka_unit_test(removed),
        cmocka_unit_test(damaged_when_packed),
        cmocka_unit_test(forged),
        cmocka_unit_test(strangers_never_meet),
        cmocka_unit_test(tenants_never_meet),
        cmocka_unit_test(tags_tell_apart),
    };
    test_store_quick_disk();
    tester_register();
    return kvant_run_tests(tests, argc, argv);
}
