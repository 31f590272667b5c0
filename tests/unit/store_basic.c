/* What every store does: put, get, read, contains, remove, iterate, count; over both that the library has and
 * one that the test brings. */
#include "support/scratch.h"
#include "support/store_records.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static kvant_diag diag = {.struct_size = sizeof diag};

/* Runs body on a new store of each kind. */
static void on_each(void (*body)(kvant_store *store)) {
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
        kvant_store *store = test_store_open(kind, directory, 0, KVANT_STORE_PACK_NONE);
        body(store);
        kvant_store_close(store);
        free(directory);
        kvant_scratch_remove(folder);
    }
}

/* ---- Put and get --------------------------------------------------------------------------------------- */

static void come_back(kvant_store *store) {
    enum { COUNT = 40 };
    test_record records[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        test_record_wish wish = {.payload = 1 + i * i * 37, .random = i % 2, .kind = 1 + i % 2};
        records[i] = test_record_make(i, &wish);
        assert_int_equal(test_store_ask(store, &records[i]), KVANT_STORE_ABSENT);
        test_store_put(store, &records[i]);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_int_equal(test_store_ask(store, &records[i]), KVANT_STORE_FOUND);
        assert_int_equal(kvant_store_contains(store, &records[i].key, &diag), KVANT_OK);
    }
    kvant_store_stats stats = test_store_stats(store);
    assert_int_equal(stats.records, COUNT);
    assert_int_equal(stats.puts, COUNT);
    assert_int_equal(stats.hits, COUNT);
    assert_int_equal(stats.reasons[KVANT_STORE_FOUND], COUNT);
    assert_int_equal(stats.reasons[KVANT_STORE_ABSENT], COUNT);
    assert_int_equal(stats.evictions, 0);
    assert_int_equal(stats.capacity, 1 << 30);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < COUNT; i++) bytes += records[i].size;
    assert_true(stats.bytes >= bytes && stats.bytes < bytes + COUNT * 4096 * 2);
    for (uint32_t i = 0; i < COUNT; i++) test_record_free(&records[i]);
}

static void records_come_back(void **state) {
    (void)state;
    on_each(come_back);
}

/* F43: the tail of n tokens and the block of the same n have one key; neither hides the other. */
static void tails_and_blocks(kvant_store *store) {
    test_record block = test_record_make(1, NULL),
                tail = test_record_make(1, &(test_record_wish){.kind = KVANT_STORE_TAIL});
    kvant_assert_bytes(block.key.key, tail.key.key, 32);
    test_store_put(store, &tail);
    assert_int_equal(test_store_ask(store, &block), KVANT_STORE_ABSENT);
    test_store_put(store, &block);
    assert_int_equal(test_store_ask(store, &tail), KVANT_STORE_FOUND);
    assert_int_equal(test_store_ask(store, &block), KVANT_STORE_FOUND);
    assert_int_equal(kvant_store_remove(store, &tail.key, &diag), KVANT_OK);
    assert_int_equal(test_store_ask(store, &block), KVANT_STORE_FOUND);
    assert_int_equal(test_store_ask(store, &tail), KVANT_STORE_ABSENT);
    test_record_free(&block);
    test_record_free(&tail);
}

static void f43_tail_and_block_of_one_key(void **state) {
    (void)state;
    on_each(tails_and_blocks);
}

static void into_memory(kvant_store *store) {
    test_record r = test_record_make(3, NULL);
    unsigned char *buffer = malloc(r.size + 8);
    assert_non_null(buffer);
    size_t size = 77;
    uint32_t reason = 77;
    memset(buffer, 0xee, r.size + 8);
    assert_int_equal(kvant_store_read(store, &r.key, buffer, r.size, &size, &reason, &diag),
                     KVANT_ERROR_MISSING);
    assert_int_equal(reason, KVANT_STORE_ABSENT);
    kvant_assert_contains(diag.message, "absent");
    test_store_put(store, &r);
    assert_int_equal(kvant_store_read(store, &r.key, buffer, r.size - 1, &size, &reason, &diag),
                     KVANT_ERROR_CAPACITY);
    assert_int_equal(size, r.size);
    for (size_t i = 0; i < r.size + 8; i++) assert_int_equal(buffer[i], 0xee);
    assert_int_equal(kvant_store_read(store, &r.key, buffer, r.size, &size, &reason, &diag), KVANT_OK);
    assert_int_equal(reason, KVANT_STORE_FOUND);
    kvant_assert_bytes(buffer, r.bytes, r.size);
    for (size_t i = r.size; i < r.size + 8; i++) assert_int_equal(buffer[i], 0xee);
    free(buffer);
    test_record_free(&r);
}

static void reads_into_memory(void **state) {
    (void)state;
    on_each(into_memory);
}

/* The store is called from inside of a get: another get, a put, a remove. */
static kvant_store *inner_store;
static test_record inner_record;
static kvant_status from_inside(void *context, const void *record, size_t size) {
    (void)record;
    (void)size;
    test_store_put(inner_store, &inner_record);
    assert_int_equal(test_store_ask(inner_store, &inner_record), KVANT_STORE_FOUND);
    assert_int_equal(kvant_store_remove(inner_store, &inner_record.key, &diag), KVANT_OK);
    *(int *)context += 1;
    return KVANT_ERROR_CONFLICT; /* whatever the user says comes back */
}

static void nested(kvant_store *store) {
    test_record r = test_record_make(4, NULL);
    int calls = 0;
    uint32_t reason = 0;
    inner_store = store;
    inner_record = test_record_make(5, NULL);
    test_store_put(store, &r);
    assert_int_equal(kvant_store_get(store, &r.key, from_inside, &calls, &reason, &diag),
                     KVANT_ERROR_CONFLICT);
    assert_int_equal(reason, KVANT_STORE_FOUND);
    assert_int_equal(calls, 1);
    assert_int_equal(test_store_ask(store, &inner_record), KVANT_STORE_ABSENT);
    test_record_free(&r);
    test_record_free(&inner_record);
}

static void callback_may_call_the_store(void **state) {
    (void)state;
    on_each(nested);
}

/* ---- Refusals of put ----------------------------------------------------------------------------------- */

static void refuses(kvant_store *store, const kvant_store_key *key, const void *bytes, size_t size,
                    kvant_status status, const char *says) {
    diag.message[0] = '\0';
    assert_int_equal(kvant_store_put(store, key, bytes, size, &diag), status);
    kvant_assert_contains(diag.message, says);
}

static void bad_puts(kvant_store *store) {
    test_record r = test_record_make(6, NULL), other = test_record_make(7, NULL),
                scheme = test_record_make(6, &(test_record_wish){.scheme = 1}),
                salted = test_record_make(6, &(test_record_wish){.salt = "tenant"});
    refuses(store, &r.key, r.bytes, r.size - 64, KVANT_ERROR_CORRUPT, "cut off");
    refuses(store, &r.key, r.bytes, 0, KVANT_ERROR_CORRUPT, "cut off");
    refuses(store, &other.key, r.bytes, r.size, KVANT_ERROR_MISMATCH, "another record");
    refuses(store, &scheme.key, r.bytes, r.size, KVANT_ERROR_MISMATCH, "scheme");
    kvant_store_key key = salted.key;
    key.salt = "other1";
    refuses(store, &key, salted.bytes, salted.size, KVANT_ERROR_MISMATCH, "salt");
    key.salt = NULL;
    refuses(store, &key, salted.bytes, salted.size, KVANT_ERROR_ARGUMENT, "salt");
    key = r.key;
    key.kind = 3;
    refuses(store, &key, r.bytes, r.size, KVANT_ERROR_ARGUMENT, "kind");
    key.kind = KVANT_STORE_TAIL;
    refuses(store, &key, r.bytes, r.size, KVANT_ERROR_MISMATCH, "kinds");
    r.bytes[r.size - 1] ^= 1;
    refuses(store, &r.key, r.bytes, r.size, KVANT_ERROR_CORRUPT, "checksum");
    r.bytes[r.size - 1] ^= 1;
    r.bytes[8] = 9;
    refuses(store, &r.key, r.bytes, r.size, KVANT_ERROR_VERSION, "version");
    r.bytes[8] = 1;
    kvant_store_stats stats = test_store_stats(store);
    assert_int_equal(stats.records, 0);
    assert_int_equal(stats.puts, 0);
    for (uint32_t i = 0; i < KVANT_STORE_REASONS; i++) assert_int_equal(stats.reasons[i], 0);
    test_store_put(store, &r);
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
    test_record_free(&r);
    test_record_free(&other);
    test_record_free(&scheme);
    test_record_free(&salted);
}

static void put_takes_only_what_it_could_hand_out(void **state) {
    (void)state;
    on_each(bad_puts);
}

/* Salts, schemes and models apart: each finds its own and nothing else. */
static void apart(kvant_store *store) {
    static const test_record_wish wishes[] = {
        {0}, {.salt = "a"}, {.salt = "b"}, {.scheme = 1}, {.scheme = 1, .salt = "a"}};
    enum { COUNT = sizeof wishes / sizeof wishes[0] };
    test_record records[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        records[i] = test_record_make(8, &wishes[i]);
        for (uint32_t j = i; j < COUNT; j++) {
            test_record later = test_record_make(8, &wishes[j]);
            assert_int_equal(test_store_ask(store, &later), KVANT_STORE_ABSENT);
            test_record_free(&later);
        }
        test_store_put(store, &records[i]);
    }
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(test_store_ask(store, &records[i]), KVANT_STORE_FOUND);
    /* The right key with another's salt or scheme: whole, and not for them. */
    kvant_store_key key = records[1].key;
    key.salt = "b";
    uint32_t reason = 0;
    size_t size = 0;
    assert_int_equal(kvant_store_read(store, &key, NULL, 0, &size, &reason, &diag), KVANT_ERROR_MISSING);
    assert_int_equal(reason, KVANT_STORE_KEY);
    memcpy(key.fingerprint, records[3].key.fingerprint, 32);
    key.salt = "a";
    assert_int_equal(kvant_store_read(store, &key, NULL, 0, &size, &reason, &diag), KVANT_ERROR_MISSING);
    assert_int_equal(reason, KVANT_STORE_FINGERPRINT);
    for (uint32_t i = 0; i < COUNT; i++) test_record_free(&records[i]);
}

static void schemes_and_salts_never_meet(void **state) {
    (void)state;
    on_each(apart);
}

/* ---- Remove, iterate ----------------------------------------------------------------------------------- */

typedef struct listing {
    uint32_t count, stop_after;
    uint8_t keys[16][32];
    uint64_t bytes;
} listing;

static kvant_status list(void *context, const kvant_store_entry *entry) {
    listing *l = context;
    assert_int_equal(entry->struct_size, sizeof *entry);
    assert_int_equal(entry->kind, KVANT_STORE_BLOCK);
    memcpy(l->keys[l->count++], entry->key, 32);
    l->bytes += entry->bytes;
    return l->count == l->stop_after ? KVANT_ERROR_CONFLICT : KVANT_OK;
}

static void removed(kvant_store *store) {
    enum { COUNT = 10 };
    test_record records[COUNT];
    uint64_t bytes = 0;
    listing l = {0};
    assert_int_equal(kvant_store_iterate(store, list, &l, &diag), KVANT_OK);
    assert_int_equal(l.count, 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        records[i] = test_record_make(i, NULL);
        bytes += records[i].size;
        test_store_put(store, &records[i]);
    }
    assert_int_equal(kvant_store_iterate(store, list, &l, &diag), KVANT_OK);
    assert_int_equal(l.count, COUNT);
    assert_int_equal(l.bytes, bytes);
    for (uint32_t i = 0; i < COUNT; i++) kvant_assert_bytes(l.keys[i], records[i].key.key, 32);
    l = (listing){.stop_after = 3};
    assert_int_equal(kvant_store_iterate(store, list, &l, &diag), KVANT_ERROR_CONFLICT);
    assert_int_equal(l.count, 3);
    assert_int_equal(kvant_store_remove(store, &records[4].key, &diag), KVANT_OK);
    assert_int_equal(kvant_store_remove(store, &records[4].key, &diag), KVANT_ERROR_MISSING);
    assert_int_equal(kvant_store_contains(store, &records[4].key, &diag), KVANT_ERROR_MISSING);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(test_store_ask(store, &records[i]), i == 4 ? KVANT_STORE_ABSENT : KVANT_STORE_FOUND);
    assert_int_equal(test_store_stats(store).records, COUNT - 1);
    test_store_put(store, &records[4]);
    assert_int_equal(test_store_ask(store, &records[4]), KVANT_STORE_FOUND);
    for (uint32_t i = 0; i < COUNT; i++) test_record_free(&records[i]);
}

static void remove_and_iterate(void **state) {
    (void)state;
    on_each(removed);
}

/* The same record put twice is one record, and costs nothing the second time. */
static void twice(kvant_store *store) {
    test_record r = test_record_make(9, &(test_record_wish){.payload = 9000});
    test_store_put(store, &r);
    uint64_t bytes = test_store_stats(store).bytes;
    for (uint32_t i = 0; i < 5; i++) test_store_put(store, &r);
    assert_int_equal(test_store_stats(store).bytes, bytes);
    assert_int_equal(test_store_stats(store).records, 1);
    assert_int_equal(test_store_stats(store).puts, 6);
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
    test_record_free(&r);
}

static void put_twice(void **state) {
    (void)state;
    on_each(twice);
}

/* ---- Open ---------------------------------------------------------------------------------------------- */

static void opens_again(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
        test_record r[3];
        for (uint32_t i = 0; i < 3; i++) {
            kvant_store *store = test_store_open(kind, directory, 0, i % 2);
            r[i] = test_record_make(i, &(test_record_wish){.payload = 5000});
            test_store_put(store, &r[i]);
            for (uint32_t j = 0; j <= i; j++)
                assert_int_equal(test_store_ask(store, &r[j]), KVANT_STORE_FOUND);
            assert_int_equal(test_store_stats(store).records, i + 1);
            kvant_store_close(store);
        }
        for (uint32_t i = 0; i < 3; i++) test_record_free(&r[i]);
        free(directory);
        kvant_scratch_remove(folder);
    }
    kvant_store_close(NULL);
}

static void must_not_open(uint32_t kind, const char *directory, const kvant_store_options *options,
                          kvant_status status, const char *says) {
    kvant_store *store = NULL;
    diag.message[0] = '\0';
    assert_int_equal(test_store_try(kind, directory, options, &store, &diag), status);
    assert_null(store);
    kvant_assert_contains(diag.message, says);
}

static void refuses_to_open(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
        char *file = kvant_scratch_path(folder, "file"), *deep = kvant_scratch_path(folder, "a/b");
        kvant_store_options options = {.struct_size = sizeof options, .capacity = 1000};
        must_not_open(kind, directory, &options, KVANT_ERROR_VALUE, "1000");
        options = (kvant_store_options){.struct_size = sizeof options, .pack = 7};
        must_not_open(kind, directory, &options, KVANT_ERROR_VALUE, "pack 7");
        options = (kvant_store_options){.struct_size = sizeof options, .pack_level = 20};
        must_not_open(kind, directory, &options, KVANT_ERROR_VALUE, "pack_level 20");
        options = (kvant_store_options){0};
        must_not_open(kind, directory, &options, KVANT_ERROR_ARGUMENT, "struct_size");
        must_not_open(kind, deep, NULL, KVANT_ERROR_IO, "No such file");
        kvant_scratch_write(file, "x", 1);
        must_not_open(kind, file, NULL, KVANT_ERROR_IO, "directory");
        assert_int_equal(mkdir(directory, 0777), 0);
        assert_int_equal(chmod(directory, 0777), 0);
        must_not_open(kind, directory, NULL, KVANT_ERROR_IO, "chmod o-w");
        assert_int_equal(chmod(directory, 0755), 0);
        /* Neither takes the other's directory. */
        kvant_store_close(test_store_open(1 - kind, directory, 0, 0));
        must_not_open(kind, directory, NULL, KVANT_ERROR_MISMATCH, "holds a store");
        free(deep);
        free(file);
        free(directory);
        kvant_scratch_remove(folder);
    }
}

static void record_max_is_kept(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
        test_record r = test_record_make(1, &(test_record_wish){.payload = 20000});
        kvant_store_options options = {.struct_size = sizeof options, .record_max = r.size - 1};
        kvant_store *store = NULL;
        assert_int_equal(test_store_try(kind, directory, &options, &store, &diag), KVANT_OK);
        refuses(store, &r.key, r.bytes, r.size, KVANT_ERROR_CAPACITY, "at most");
        kvant_store_close(store);
        options.record_max++;
        assert_int_equal(test_store_try(kind, directory, &options, &store, &diag), KVANT_OK);
        test_store_put(store, &r);
        assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
        kvant_store_close(store);
        test_record_free(&r);
        free(directory);
        kvant_scratch_remove(folder);
    }
}

/* ---- A store of the application's ---------------------------------------------------------------------- */

typedef struct shelf { /* holds one record, and lies on demand */
    uint8_t name[KVANT_STORE_NAME_BYTES];
    unsigned char bytes[8192];
    size_t size;
    kvant_status put_fails, get_fails;
    int hands_out_nothing, touched, closed;
} shelf;

static kvant_status shelf_put(void *state, const uint8_t *name, const void *bytes, size_t size,
                              kvant_diag *d) {
    shelf *s = state;
    (void)d;
    if (s->put_fails != KVANT_OK) return s->put_fails;
    memcpy(s->name, name, sizeof s->name);
    memcpy(s->bytes, bytes, size);
    s->size = size;
    return KVANT_OK;
}
static kvant_status shelf_get(void *state, const uint8_t *name, kvant_store_use *use, void *context,
                              kvant_diag *d) {
    shelf *s = state;
    (void)d;
    if (s->get_fails != KVANT_OK) return s->get_fails;
    if (s->hands_out_nothing) return KVANT_OK;
    return memcmp(s->name, name, sizeof s->name) == 0 ? use(context, s->bytes, s->size) : KVANT_ERROR_MISSING;
}
static void shelf_touch(void *state, const uint8_t *name) {
    (void)name;
    ((shelf *)state)->touched++;
}
static kvant_status shelf_contains(void *state, const uint8_t *name, kvant_diag *d) {
    (void)d;
    return memcmp(((shelf *)state)->name, name, KVANT_STORE_NAME_BYTES) == 0 ? KVANT_OK : KVANT_ERROR_MISSING;
}
static kvant_status shelf_iterate(void *state,
                                  kvant_status (*visit)(void *context, const uint8_t *name, uint64_t bytes),
                                  void *context, kvant_diag *d) {
    (void)d;
    return visit(context, ((shelf *)state)->name, ((shelf *)state)->size);
}
static kvant_status shelf_usage(void *state, kvant_store_usage *usage, kvant_diag *d) {
    (void)d;
    usage->records = ((shelf *)state)->size > 0;
    usage->evictions = 5;
    return KVANT_OK;
}
static void shelf_close(void *state) {
    ((shelf *)state)->closed++;
}

static void own_store(void **state) {
    (void)state;
    kvant_store_calls calls = {.struct_size = sizeof calls,
                               .put = shelf_put,
                               .get = shelf_get,
                               .touch = shelf_touch,
                               .contains = shelf_contains,
                               .remove = shelf_contains,
                               .iterate = shelf_iterate,
                               .usage = shelf_usage,
                               .close = shelf_close};
    shelf s = {0};
    kvant_store *store = NULL;
    test_record r = test_record_make(1, NULL);
    assert_int_equal(kvant_store_open_calls(&calls, &s, NULL, &store, &diag), KVANT_OK);
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_ABSENT);
    s.put_fails = KVANT_ERROR_NO_SPACE;
    assert_int_equal(kvant_store_put(store, &r.key, r.bytes, r.size, &diag), KVANT_ERROR_NO_SPACE);
    assert_int_equal(test_store_count(store, KVANT_STORE_FULL), 1);
    s.put_fails = KVANT_ERROR_DEVICE;
    assert_int_equal(kvant_store_put(store, &r.key, r.bytes, r.size, &diag), KVANT_ERROR_DEVICE);
    assert_int_equal(test_store_count(store, KVANT_STORE_UNREADABLE), 1);
    s.put_fails = KVANT_OK;
    test_store_put(store, &r);
    assert_int_equal(s.name[32], KVANT_STORE_BLOCK);
    assert_int_equal(s.touched, 0);
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
    assert_int_equal(s.touched, 1);
    s.bytes[400] ^= 4;
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_CHECKSUM);
    s.get_fails = KVANT_ERROR_DEVICE;
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_UNREADABLE);
    s.get_fails = KVANT_OK;
    s.hands_out_nothing = 1;
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_UNREADABLE);
    assert_int_equal(s.touched, 1);
    assert_int_equal(test_store_stats(store).evictions, 5);
    assert_int_equal(test_store_stats(store).records, 1);
    kvant_store_close(store);
    assert_int_equal(s.closed, 1);
    calls.usage = NULL;
    store = NULL;
    assert_int_equal(kvant_store_open_calls(&calls, &s, NULL, &store, &diag), KVANT_ERROR_ARGUMENT);
    assert_null(store);
    test_record_free(&r);
}

static void reasons_have_texts(void **state) {
    (void)state;
    for (uint32_t i = 0; i < KVANT_STORE_REASONS; i++)
        for (uint32_t j = 0; j <= i; j++)
            assert_int_equal(strcmp(kvant_store_reason_text(i), kvant_store_reason_text(j)) == 0, i == j);
    assert_string_equal(kvant_store_reason_text(KVANT_STORE_REASONS), "unknown reason");
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_back),
        cmocka_unit_test(f43_tail_and_block_of_one_key),
        cmocka_unit_test(reads_into_memory),
        cmocka_unit_test(callback_may_call_the_store),
        cmocka_unit_test(put_takes_only_what_it_could_hand_out),
        cmocka_unit_test(schemes_and_salts_never_meet),
        cmocka_unit_test(remove_and_iterate),
        cmocka_unit_test(put_twice),
        cmocka_unit_test(opens_again),
        cmocka_unit_test(refuses_to_open),
        cmocka_unit_test(record_max_is_kept),
        cmocka_unit_test(own_store),
        cmocka_unit_test(reasons_have_texts),
    };
    return kvant_run_tests(tests, argc, argv);
}
