/* Stored bytes that are not the record that was asked for: each is a miss with its reason, never wrong bytes,
 * and a put mends it. */
#include "support/store_damage.h"
#include "store/bytes.h"
#include "store/record.h"
#include "support/data.h"
#include "support/scratch.h"
#include "support/test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

/* ---- A store in memory, for the many cases ------------------------------------------------------------- */

typedef struct box {
    const unsigned char *bytes;
    size_t size;
} box;

static kvant_status box_put(void *state, const uint8_t *name, const void *bytes, size_t size, kvant_diag *d) {
    (void)state, (void)name, (void)bytes, (void)size, (void)d;
    return KVANT_ERROR_UNSUPPORTED;
}
/* Hands out a copy that ends where it ends. */
static kvant_status box_get(void *state, const uint8_t *name, kvant_store_use *use, void *context,
                            kvant_diag *d) {
    const box *b = state;
    (void)name, (void)d;
    unsigned char *copy = malloc(b->size > 0 ? b->size : 1);
    assert_non_null(copy);
    memcpy(copy, b->bytes, b->size);
    kvant_status status = use(context, copy, b->size);
    free(copy);
    return status;
}
static kvant_status box_find(void *state, const uint8_t *name, kvant_diag *d) {
    (void)state, (void)name, (void)d;
    return KVANT_OK;
}
static kvant_status box_iterate(void *state,
                                kvant_status (*visit)(void *context, const uint8_t *name, uint64_t bytes),
                                void *context, kvant_diag *d) {
    (void)state, (void)visit, (void)context, (void)d;
    return KVANT_OK;
}
static kvant_status box_usage(void *state, kvant_store_usage *usage, kvant_diag *d) {
    (void)state, (void)usage, (void)d;
    return KVANT_OK;
}
static void box_close(void *state) {
    (void)state;
}

static kvant_store *box_open(box *b) {
    static const kvant_store_calls calls = {.struct_size = sizeof calls,
                                            .put = box_put,
                                            .get = box_get,
                                            .contains = box_find,
                                            .remove = box_find,
                                            .iterate = box_iterate,
                                            .usage = box_usage,
                                            .close = box_close};
    kvant_store *store = NULL;
    assert_int_equal(kvant_store_open_calls(&calls, b, NULL, &store, NULL), KVANT_OK);
    return store;
}

static unsigned char *copy_of(const unsigned char *bytes, size_t size) {
    unsigned char *copy = malloc(size + 64);
    assert_non_null(copy);
    memcpy(copy, bytes, size);
    return copy;
}

/* The record as a store keeps it, packed or not. */
static unsigned char *stored_form(const test_record *r, uint32_t pack, size_t *size) {
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    kvant_store *store = test_store_open(TEST_STORE_DIRECTORY, directory, 0, pack);
    test_store_put(store, r);
    kvant_store_close(store);
    unsigned char *bytes = test_store_stored(TEST_STORE_DIRECTORY, directory, &r->key, size);
    free(directory);
    kvant_scratch_remove(folder);
    return bytes;
}

static void every_flipped_bit(void **state) {
    (void)state;
    for (uint32_t pack = 0; pack < 2; pack++) {
        test_record r = test_record_make(1, &(test_record_wish){.payload = 1500});
        box b = {0};
        unsigned char *bytes = stored_form(&r, pack, &b.size);
        assert_int_equal(b.size < r.size, pack);
        b.bytes = bytes;
        kvant_store *store = box_open(&b);
        assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
        for (size_t i = 0; i < b.size; i++)
            for (unsigned bit = 0; bit < 8; bit++) {
                bytes[i] ^= (unsigned char)(1u << bit);
                uint32_t reason = test_store_ask(store, &r);
                uint32_t wanted = i < 8    ? KVANT_STORE_FOREIGN
                                  : i < 12 ? KVANT_STORE_VERSION
                                           : KVANT_STORE_CHECKSUM;
                bool longer = i >= 16 && i < 24 && reason == KVANT_STORE_TRUNCATED;
                if (reason != wanted && !longer)
                    fail_msg("byte %zu bit %u: %s", i, bit, kvant_store_reason_text(reason));
                bytes[i] ^= (unsigned char)(1u << bit);
            }
        assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
        kvant_store_stats stats = test_store_stats(store);
        assert_int_equal(stats.hits, 2);
        assert_int_equal(stats.reasons[KVANT_STORE_FOREIGN], 64);
        assert_int_equal(stats.reasons[KVANT_STORE_VERSION], 32);
        assert_int_equal(stats.reasons[KVANT_STORE_CHECKSUM] + stats.reasons[KVANT_STORE_TRUNCATED],
                         b.size * 8 - 96);
        assert_in_range(stats.reasons[KVANT_STORE_TRUNCATED], 30, 64);
        kvant_store_close(store);
        free(bytes);
        test_record_free(&r);
    }
}

static void f44_every_length(void **state) {
    (void)state;
    for (uint32_t pack = 0; pack < 2; pack++) {
        test_record r = test_record_make(2, &(test_record_wish){.payload = 1500});
        box b = {0};
        size_t size = 0;
        unsigned char *bytes = stored_form(&r, pack, &size);
        b.bytes = bytes;
        kvant_store *store = box_open(&b);
        for (b.size = 0; b.size < size; b.size++)
            if (test_store_ask(store, &r) != KVANT_STORE_TRUNCATED) fail_msg("%zu bytes", b.size);
        assert_int_equal(test_store_count(store, KVANT_STORE_TRUNCATED), size);
        assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
        kvant_store_close(store);
        free(bytes);
        test_record_free(&r);
    }
}

/* ---- One fault after the other, in every store --------------------------------------------------------- */

typedef struct fault {
    const char *what;
    uint32_t reason;
    unsigned char *bytes;
    size_t size;
} fault;

/* A copy of the record with a field of `width` bytes changed and the checksums put right. */
static fault with_field(const test_record *r, const char *what, uint32_t reason, size_t at, unsigned width,
                        uint64_t value) {
    fault f = {.what = what, .reason = reason, .bytes = copy_of(r->bytes, r->size), .size = r->size};
    if (width == 8)
        kvant_put64(f.bytes + at, value);
    else
        kvant_put32(f.bytes + at, (uint32_t)value);
    test_record_reseal(f.bytes, f.size);
    return f;
}

static fault whole(const char *what, uint32_t reason, test_record record, size_t size) {
    return (fault){what, reason, copy_of(record.bytes, record.size), size};
}

static fault swapped(const test_record *r) {
    static const size_t words[] = {8, 12, 144, 148, 152, 156}, longs[] = {16, 24, 128, 136, 160};
    fault f = {"other_endian", KVANT_STORE_ENDIAN, copy_of(r->bytes, r->size), r->size};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        kvant_put32(f.bytes + words[i], __builtin_bswap32(kvant_get32(f.bytes + words[i])));
    for (size_t i = 0; i < sizeof longs / sizeof longs[0]; i++)
        kvant_put64(f.bytes + longs[i], __builtin_bswap64(kvant_get64(f.bytes + longs[i])));
    return f;
}

/* A row of the part table of the record: layer 0, key. */
enum { AT_TABLE = 192 };

static uint32_t make_faults(const test_record *r, fault *faults) {
    uint32_t n = 0;
    test_record other = test_record_make(77, NULL),
                scheme = test_record_make(20, &(test_record_wish){.scheme = 4}),
                tail = test_record_make(20, &(test_record_wish){.kind = KVANT_STORE_TAIL}),
                salted = test_record_make(20, &(test_record_wish){.salt = "x"});
    assert_int_equal(scheme.size, r->size);
    uint64_t huge = UINT64_C(1) << 63;
    faults[n++] = whole("f44_empty", KVANT_STORE_TRUNCATED, *r, 0);
    faults[n++] = whole("f44_one_byte", KVANT_STORE_TRUNCATED, *r, 1);
    faults[n++] = whole("f44_header_only", KVANT_STORE_TRUNCATED, *r, 384);
    faults[n++] = whole("f48_a_line_short", KVANT_STORE_TRUNCATED, *r, r->size - 64);
    faults[n++] = whole("f48_a_byte_longer", KVANT_STORE_CHECKSUM, *r, r->size);
    faults[n - 1].bytes[faults[n - 1].size++] = 0;
    faults[n++] = whole("f41_other_scheme_of_equal_size", KVANT_STORE_FINGERPRINT, scheme, scheme.size);
    faults[n++] = whole("renamed", KVANT_STORE_KEY, other, other.size);
    faults[n++] = whole("renamed_tail", KVANT_STORE_KEY, tail, tail.size);
    faults[n++] = whole("other_salt", KVANT_STORE_KEY, salted, salted.size);
    faults[n++] = with_field(r, "forged_key", KVANT_STORE_KEY, 96, 8, 5);
    faults[n++] = with_field(r, "forged_fingerprint", KVANT_STORE_FINGERPRINT, 32, 8, 5);
    faults[n++] = with_field(r, "later_version", KVANT_STORE_VERSION, 8, 4, 2);
    faults[n++] = with_field(r, "no_version", KVANT_STORE_VERSION, 8, 4, 0);
    faults[n++] = swapped(r);
    faults[n++] = with_field(r, "no_record", KVANT_STORE_FOREIGN, 0, 8, 0x2020202020202020);
    faults[n++] = with_field(r, "f49_record_bytes", KVANT_STORE_TRUNCATED, 16, 8, huge);
    faults[n++] = with_field(r, "f49_record_bytes_wrap", KVANT_STORE_TRUNCATED, 16, 8, UINT64_MAX);
    faults[n++] = with_field(r, "f49_header_bytes", KVANT_STORE_CHECKSUM, 24, 8, huge);
    faults[n++] = with_field(r, "f49_tokens", KVANT_STORE_CHECKSUM, 144, 4, UINT32_MAX);
    faults[n++] = with_field(r, "f49_layers", KVANT_STORE_CHECKSUM, 148, 4, UINT32_MAX);
    faults[n++] = with_field(r, "f49_extent_offset", KVANT_STORE_CHECKSUM, AT_TABLE, 8, huge);
    faults[n++] = with_field(r, "f49_extent_bytes", KVANT_STORE_CHECKSUM, AT_TABLE + 8, 8, UINT64_MAX - 63);
    faults[n++] = with_field(r, "f49_overlap", KVANT_STORE_CHECKSUM, AT_TABLE + 32, 8,
                             kvant_get64(r->bytes + AT_TABLE));
    faults[n++] = with_field(r, "sinks", KVANT_STORE_CHECKSUM, 152, 4, 8);
    faults[n++] = with_field(r, "f47_dtype", KVANT_STORE_CHECKSUM, 156, 4, KVANT_DTYPE_U8);
    faults[n++] = with_field(r, "first_token_id", KVANT_STORE_KEY, AT_TABLE + 128, 8, 1);
    for (uint32_t i = 0; i < n; i++) assert_true(faults[i].size <= r->size + 64);
    test_record_free(&other);
    test_record_free(&scheme);
    test_record_free(&tail);
    test_record_free(&salted);
    return n;
}

/* Those whose name begins so; "" = the others than those that have a number. */
static void each_fault_named(const char *prefix) {
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
        test_record r = test_record_make(20, NULL), neighbour = test_record_make(21, NULL);
        fault faults[40];
        uint32_t count = make_faults(&r, faults);
        assert_true(count > 20);
        kvant_store *store = test_store_open(kind, directory, 0, 0);
        test_store_put(store, &r);
        test_store_put(store, &neighbour);
        kvant_store_close(store);
        uint32_t ran = 0;
        for (uint32_t i = 0; i < count; i++) {
            bool numbered = faults[i].what[0] == 'f' && faults[i].what[1] == '4';
            if (prefix[0] == '\0' ? numbered : strncmp(faults[i].what, prefix, strlen(prefix)) != 0) {
                free(faults[i].bytes);
                continue;
            }
            ran++;
            test_store_plant(kind, directory, &r.key, faults[i].bytes, faults[i].size);
            store = test_store_open(kind, directory, 0, 0);
            uint32_t reason = test_store_ask(store, &r);
            if (reason != faults[i].reason)
                fail_msg("%s, %s: %s", test_store_names[kind], faults[i].what,
                         kvant_store_reason_text(reason));
            assert_int_equal(test_store_count(store, reason), 1);
            assert_int_equal(test_store_count(store, KVANT_STORE_FOUND), 0);
            assert_int_equal(test_store_ask(store, &neighbour), KVANT_STORE_FOUND);
            test_store_put(store, &r); /* mends it */
            assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
            assert_int_equal(test_store_stats(store).records, 2);
            kvant_store_close(store);
            free(faults[i].bytes);
        }
        assert_true(ran > 0);
        test_record_free(&r);
        test_record_free(&neighbour);
        free(directory);
        kvant_scratch_remove(folder);
    }
}

#define FAULTS(name, prefix)                                                                                 \
    static void name(void **state) {                                                                         \
        (void)state;                                                                                         \
        each_fault_named(prefix);                                                                            \
    }
FAULTS(f41_other_scheme_of_equal_size, "f41")
FAULTS(f44_next_to_nothing, "f44")
FAULTS(f47_dtype_of_raw_rows, "f47")
FAULTS(f48_wrong_size, "f48")
FAULTS(f49_crafted_sizes, "f49")
FAULTS(each_other_fault_is_a_miss, "")

/* Every 97th byte, in records large enough to have pages of their own, packed and not. */
static void sampled_flips_in_the_stores(void **state) {
    (void)state;
    for (uint32_t run = 0; run < TEST_STORES * 2; run++) {
        uint32_t kind = run / 2, pack = run % 2;
        char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
        test_record r = test_record_make(30, &(test_record_wish){.payload = 2500});
        kvant_store *store = test_store_open(kind, directory, 0, pack);
        test_store_put(store, &r);
        kvant_store_close(store);
        size_t size = 0, count = 0;
        unsigned char *bytes = test_store_stored(kind, directory, &r.key, &size);
        for (size_t at = 3; at < size; at += 97, count++) {
            bytes[at] ^= 0x10;
            test_store_plant(kind, directory, &r.key, bytes, size);
            bytes[at] ^= 0x10;
            store = test_store_open(kind, directory, 0, pack);
            uint32_t reason = test_store_ask(store, &r);
            assert_int_equal(reason, at < 8 ? KVANT_STORE_FOREIGN : KVANT_STORE_CHECKSUM);
            kvant_store_close(store);
        }
        assert_true(count > (pack ? 5 : 80));
        test_store_plant(kind, directory, &r.key, bytes, size);
        store = test_store_open(kind, directory, 0, pack);
        assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
        kvant_store_close(store);
        free(bytes);
        test_record_free(&r);
        free(directory);
        kvant_scratch_remove(folder);
    }
}

/* ---- Files of the plain store that are no files of it -------------------------------------------------- */

static void unreadable_files(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    test_record r = test_record_make(40, NULL);
    kvant_store *store = test_store_open(TEST_STORE_DIRECTORY, directory, 0, 0);
    test_store_put(store, &r);
    char *file = test_store_file(directory, &r.key), *aside = kvant_scratch_path(folder, "aside");
    assert_int_equal(chmod(file, 0666), 0);
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_UNREADABLE);
    assert_int_equal(chmod(file, 0644), 0);
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
    char *inner = strdup(file);
    assert_non_null(inner);
    *strrchr(inner, '/') = '\0';
    assert_int_equal(chmod(inner, 0777), 0);
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_UNREADABLE);
    assert_int_equal(chmod(inner, 0755), 0);
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
    assert_int_equal(rename(file, aside), 0);
    assert_int_equal(symlink(aside, file), 0);
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_UNREADABLE);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(mkdir(file, 0755), 0);
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_UNREADABLE);
    assert_int_equal(rmdir(file), 0);
    assert_int_equal(mkfifo(file, 0644), 0); /* must not wait for a writer */
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_UNREADABLE);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_ABSENT);
    assert_int_equal(rename(aside, file), 0);
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
    assert_int_equal(test_store_count(store, KVANT_STORE_UNREADABLE), 5);
    kvant_store_close(store);
    free(inner);
    free(aside);
    free(file);
    test_record_free(&r);
    free(directory);
    kvant_scratch_remove(folder);
}

/* Files that are not the store's own are neither counted nor evicted, nor in the way. */
static void other_files_stay(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    test_record r = test_record_make(41, NULL);
    kvant_store *store = test_store_open(TEST_STORE_DIRECTORY, directory, 1 << 20, 0);
    test_store_put(store, &r);
    char *file = test_store_file(directory, &r.key), *copy = malloc(strlen(file) + 8);
    assert_non_null(copy);
    (void)sprintf(copy, "%s.bak", file);
    kvant_scratch_copy(file, copy, SIZE_MAX);
    char *note = kvant_scratch_path(directory, "notes");
    kvant_scratch_write(note, "x", 1);
    kvant_store_close(store);
    char *account = kvant_scratch_path(directory, "account");
    assert_int_equal(unlink(account), 0); /* counted anew */
    store = test_store_open(TEST_STORE_DIRECTORY, directory, 1 << 20, 0);
    assert_int_equal(test_store_stats(store).records, 1);
    for (uint32_t i = 0; i < 12; i++) {
        test_record big = test_record_make(100 + i, &(test_record_wish){.payload = 50000});
        test_store_put(store, &big);
        test_record_free(&big);
    }
    assert_true(test_store_stats(store).evictions > 5);
    assert_int_equal(access(note, F_OK), 0);
    assert_int_equal(access(copy, F_OK), 0);
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_ABSENT);
    kvant_store_close(store);
    free(account);
    free(note);
    free(copy);
    free(file);
    test_record_free(&r);
    free(directory);
    kvant_scratch_remove(folder);
}

/* What the account says, after one of its numbers was changed and its checksum put right. */
static kvant_store_stats with_account(const char *directory, size_t at, uint64_t value) {
    char *file = kvant_scratch_path(directory, "account");
    kvant_test_bytes account = kvant_test_read(file);
    assert_int_equal(account.size, 48);
    kvant_put64(account.bytes + 16, 1000); /* records: a lie */
    if (at == 12)
        kvant_put32(account.bytes + at, (uint32_t)value);
    else
        kvant_put64(account.bytes + at, value);
    if (at != 40) kvant_put64(account.bytes + 40, XXH3_64bits(account.bytes, 40));
    kvant_scratch_write(file, account.bytes, account.size);
    free(account.bytes);
    free(file);
    kvant_store *store = test_store_open(TEST_STORE_DIRECTORY, directory, 0, 0);
    kvant_store_stats stats = test_store_stats(store);
    kvant_store_close(store);
    return stats;
}

/* The account of the plain store is believed where nothing speaks against it, and only there. */
static void account(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    test_record r = test_record_make(42, &(test_record_wish){.payload = 3000});
    kvant_store *store = test_store_open(TEST_STORE_DIRECTORY, directory, 0, 0), *other = NULL;
    test_store_put(store, &r);
    kvant_store_close(store);
    assert_int_equal(with_account(directory, 24, 77).records, 1000); /* it is what counts */
    assert_int_equal(with_account(directory, 12, 1).records, 1);     /* somebody died */
    assert_int_equal(with_account(directory, 32, 77).records, 1);    /* another boot */
    assert_int_equal(with_account(directory, 40, 77).records, 1);    /* a wrong checksum */
    assert_int_equal(with_account(directory, 12, 1).bytes, (r.size + 4095) / 4096 * 4096);
    char *file = kvant_scratch_path(directory, "account");
    kvant_test_bytes bytes = kvant_test_read(file);
    bytes.bytes[8] = 2;
    kvant_put64(bytes.bytes + 40, XXH3_64bits(bytes.bytes, 40));
    kvant_scratch_write(file, bytes.bytes, bytes.size);
    assert_int_equal(kvant_store_open_directory(directory, NULL, &other, NULL), KVANT_ERROR_VERSION);
    kvant_scratch_write(file, "", 0);
    store = test_store_open(TEST_STORE_DIRECTORY, directory, 0, 0);
    assert_int_equal(test_store_stats(store).records, 1);
    kvant_store_close(store);
    free(bytes.bytes);
    free(file);
    test_record_free(&r);
    free(directory);
    kvant_scratch_remove(folder);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_flipped_bit),
        cmocka_unit_test(f44_every_length),
        cmocka_unit_test(f41_other_scheme_of_equal_size),
        cmocka_unit_test(f44_next_to_nothing),
        cmocka_unit_test(f47_dtype_of_raw_rows),
        cmocka_unit_test(f48_wrong_size),
        cmocka_unit_test(f49_crafted_sizes),
        cmocka_unit_test(each_other_fault_is_a_miss),
        cmocka_unit_test(sampled_flips_in_the_stores),
        cmocka_unit_test(unreadable_files),
        cmocka_unit_test(other_files_stay),
        cmocka_unit_test(account),
    };
    test_store_quick_disk();
    return kvant_run_tests(tests, argc, argv);
}
