/* Keys of blocks: SHA-256 of bytes written by hand here, known digests, and the keys that records carry. */
#include "store/block_key.h"
#include "data/digest.h"
#include "store/record.h"
#include "support/memory_faults.h"
#include "support/test.h"

#include <stdio.h>

static const uint8_t fingerprint[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                        16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

static kvant_block_hasher *open_hasher(const uint8_t *scheme) {
    kvant_block_hasher *hasher;
    assert_int_equal(kvant_block_hasher_open(scheme, &hasher), KVANT_OK);
    return hasher;
}

/* What goes into a key. */
typedef struct input {
    const uint8_t *parent;
    const uint64_t *ids;
    const uint8_t *classes;
    uint32_t tokens;
    const void *salt;
    uint64_t salt_bytes;
} input;

static void key_of(kvant_block_hasher *hasher, const input *in, uint8_t key[32]) {
    memset(key, 0xEE, 32);
    assert_int_equal(
        kvant_block_key(hasher, in->parent, in->ids, in->classes, in->tokens, in->salt, in->salt_bytes, key),
        KVANT_OK);
}

static void assert_hex(const uint8_t key[32], const char *want) {
    char text[65];
    for (unsigned i = 0; i < 32; i++) (void)snprintf(text + 2 * i, 3, "%02x", key[i]);
    assert_string_equal(text, want);
}

/* ---- Known --------------------------------------------------------------------------------------------- */

/* Digests by Python's hashlib:
 *
 *     def field(x): return len(x).to_bytes(8, 'little') + x
 *     def key(parent, ids, classes, salt):
 *         ids = b''.join(i.to_bytes(8, 'little') for i in ids)
 *         fields = (bytes(range(32)), parent, ids, bytes(classes), salt)
 *         return sha256(b''.join(map(field, fields))).hexdigest()
 *     first = key(bytes(32), [1, 2, 0x1122334455667788], [0, 3, 255], b'tenant')
 *     second = key(bytes.fromhex(first), [2**64 - 1, 0], [7, 7], b'')
 *     long = key(bytes(32), [i * i for i in range(300)], [i % 5 for i in range(300)], b's' * 2000) */
static void known_digests(void **state) {
    (void)state;
    kvant_block_hasher *hasher = open_hasher(fingerprint);
    uint8_t key[32], salt[2000], classes[300];
    uint64_t ids[300];
    memset(salt, 's', sizeof salt);
    for (uint32_t i = 0; i < 300; i++) {
        ids[i] = (uint64_t)i * i;
        classes[i] = (uint8_t)(i % 5);
    }
    for (int round = 0; round < 2; round++) { /* the hasher keeps nothing of the key before */
        key_of(hasher,
               &(input){.ids = (const uint64_t[]){1, 2, UINT64_C(0x1122334455667788)},
                        .classes = (const uint8_t[]){0, 3, 255},
                        .tokens = 3,
                        .salt = "tenant",
                        .salt_bytes = 6},
               key);
        assert_hex(key, "21d79c84fe409de77fd3cb928efe7fb4114281cf8b5fbe0222b7b769af2dac8f");
        /* The key may take its parent's place; the salt is the parent's affair. */
        assert_int_equal(kvant_block_key(hasher, key, (const uint64_t[]){UINT64_MAX, 0},
                                         (const uint8_t[]){7, 7}, 2, "tenant", 6, key),
                         KVANT_OK);
        assert_hex(key, "bca835413309d9e7b5cdb7531671450b1b5eeedc34cab5362a95246b07f33829");
        key_of(hasher,
               &(input){.ids = ids, .classes = classes, .tokens = 300, .salt = salt, .salt_bytes = 2000},
               key);
        assert_hex(key, "e062a2366e392ab0e1eecd13bbb58fd3f29b12749724a2b5a55196a5e855012e");
    }
    kvant_block_hasher_close(hasher);
}

/* ---- By hand ------------------------------------------------------------------------------------------- */

static size_t put_number(uint8_t *to, uint64_t x) {
    for (unsigned i = 0; i < 8; i++) to[i] = (uint8_t)(x >> 8 * i);
    return 8;
}

static size_t put_bytes(uint8_t *to, const void *bytes, size_t size) {
    if (size > 0) memcpy(to, bytes, size);
    return size;
}

static void by_hand(const uint8_t *scheme, const input *in, uint8_t key[32]) {
    uint64_t salt_bytes = in->parent == NULL ? in->salt_bytes : 0;
    uint8_t *text = calloc(1, 200 + (size_t)in->tokens * 9 + (size_t)salt_bytes);
    static const uint8_t zeros[32];
    size_t n = put_number(text, 32);
    n += put_bytes(text + n, scheme, 32);
    n += put_number(text + n, 32);
    n += put_bytes(text + n, in->parent != NULL ? in->parent : zeros, 32);
    n += put_number(text + n, (uint64_t)in->tokens * 8);
    for (uint32_t t = 0; t < in->tokens; t++) n += put_number(text + n, in->ids[t]);
    n += put_number(text + n, in->tokens);
    n += put_bytes(text + n, in->classes, in->tokens);
    n += put_number(text + n, salt_bytes);
    n += put_bytes(text + n, in->salt, (size_t)salt_bytes);
    assert_int_equal(kvant_sha256(text, n, key), KVANT_OK);
    free(text);
}

static void record_key(const uint8_t *scheme, const input *in, uint8_t key[32]) {
    kvant_record_head head = {.tokens = in->tokens, .block = in->parent != NULL};
    memcpy(head.fingerprint, scheme, 32);
    if (in->parent != NULL) memcpy(head.parent, in->parent, 32);
    assert_int_equal(kvant_record_key(&head, in->ids, in->classes, in->salt, (size_t)in->salt_bytes, key),
                     KVANT_OK);
}

/* Every number of tokens and salts of every length up to more than what is put together at a time. */
static void equals_bytes_by_hand(void **state) {
    (void)state;
    enum { TOKENS = 300, SALT = 1500 };
    uint64_t ids[TOKENS], seed = 17;
    uint8_t classes[TOKENS], salt[SALT], parent[32], scheme[32];
    for (uint32_t i = 0; i < TOKENS; i++) ids[i] = kvant_test_random(&seed) >> kvant_test_random(&seed) % 60;
    for (uint32_t i = 0; i < TOKENS; i++) classes[i] = (uint8_t)kvant_test_random(&seed);
    for (uint32_t i = 0; i < SALT; i++) salt[i] = (uint8_t)kvant_test_random(&seed);
    for (uint32_t i = 0; i < 32; i++) parent[i] = (uint8_t)kvant_test_random(&seed);
    for (uint32_t i = 0; i < 32; i++) scheme[i] = (uint8_t)kvant_test_random(&seed);
    kvant_block_hasher *hasher = open_hasher(scheme);
    for (uint32_t n = 0; n <= TOKENS; n++) {
        input in = {.parent = n % 3 == 0 ? NULL : parent,
                    .ids = ids + n % 7 * (n <= TOKENS - 7),
                    .classes = classes,
                    .tokens = n,
                    .salt = salt,
                    .salt_bytes = n * 5};
        uint8_t got[32], want[32], record[32];
        key_of(hasher, &in, got);
        by_hand(scheme, &in, want);
        kvant_assert_bytes(got, want, 32);
        record_key(scheme, &in, record);
        kvant_assert_bytes(record, want, 32);
    }
    kvant_block_hasher_close(hasher);
}

/* ---- What a key tells apart ---------------------------------------------------------------------------- */

/* Every field, and bytes that only moved from one field to the next. */
static void every_field_counts(void **state) {
    (void)state;
    const uint64_t ids[3] = {1, 2, 3}, last[3] = {1, 2, UINT64_C(3) << 56}, swapped[3] = {2, 1, 3};
    const uint8_t classes[3] = {0, 1, 0}, other[3] = {0, 0, 1}, early[32] = {1}, late[32] = {[31] = 1};
    const input inputs[] = {
        {NULL, ids, classes, 3, "ab", 2},     {NULL, last, classes, 3, "ab", 2},
        {NULL, swapped, classes, 3, "ab", 2}, {NULL, ids, other, 3, "ab", 2},
        {NULL, ids, classes, 2, "ab", 2},     {NULL, ids, classes, 0, "ab", 2},
        {NULL, ids, classes, 3, "ac", 2},     {NULL, ids, classes, 3, "ab", 1},
        {NULL, ids, classes, 3, NULL, 0},     {NULL, ids, classes, 3, "ab\0", 3},
        {NULL, ids, classes, 2, "\0ab", 3}, /* the last class is the first byte of the salt */
        {early, ids, classes, 3, "ab", 2},    {late, ids, classes, 3, "ab", 2},
    };
    enum { INPUTS = sizeof inputs / sizeof inputs[0] };
    uint8_t keys[INPUTS + 1][32], scheme[32];
    kvant_block_hasher *hasher = open_hasher(fingerprint);
    for (uint32_t i = 0; i < INPUTS; i++) key_of(hasher, &inputs[i], keys[i]);
    memcpy(scheme, fingerprint, 32);
    scheme[31] ^= 0x80;
    kvant_block_hasher *stranger = open_hasher(scheme);
    key_of(stranger, &inputs[0], keys[INPUTS]);
    for (uint32_t i = 0; i <= INPUTS; i++)
        for (uint32_t j = 0; j < i; j++)
            if (memcmp(keys[i], keys[j], 32) == 0) fail_msg("inputs %u and %u have one key", j, i);
    /* After block 0 the salt is in the parent alone. */
    key_of(hasher, &(input){early, ids, classes, 3, "another", 7}, keys[0]);
    key_of(hasher, &(input){early, ids, classes, 3, NULL, 0}, keys[1]);
    kvant_assert_bytes(keys[0], keys[1], 32);
    kvant_block_hasher_close(hasher);
    kvant_block_hasher_close(stranger);
}

/* OpenSSL can do without some of what it asks for, so that a failed allocation is not always a failure. */
static void opens_or_has_no_memory(void **state) {
    (void)state;
    if (!MEMORY_FAULTS_WORK) skip();
    const input in = {.ids = (const uint64_t[]){5, 6}, .classes = (const uint8_t[]){0, 1}, .tokens = 2};
    uint8_t want[32], got[32];
    by_hand(fingerprint, &in, want);
    uint64_t refused = 0;
    bool done = false;
    for (uint64_t nth = 0; !done; nth++) {
        kvant_block_hasher *hasher = (kvant_block_hasher *)(uintptr_t)1;
        memory_faults_start(nth, false);
        kvant_status status = kvant_block_hasher_open(fingerprint, &hasher);
        done = memory_faults_stop() <= nth;
        if (status == KVANT_OK) {
            key_of(hasher, &in, got);
            kvant_assert_bytes(got, want, 32);
        } else {
            assert_int_equal(status, KVANT_ERROR_MEMORY);
            assert_false(done);
            assert_null(hasher);
            refused++;
        }
        kvant_block_hasher_close(hasher);
    }
    assert_true(refused >= 2); /* the hasher, its context */
    kvant_block_hasher_close(NULL);
}

/* A key is right or refused, and the hasher goes on afterwards. */
static void hashes_or_has_no_memory(void **state) {
    (void)state;
    if (!MEMORY_FAULTS_WORK) skip();
    const input in = {.ids = (const uint64_t[]){5, 6}, .classes = (const uint8_t[]){0, 1}, .tokens = 2};
    uint8_t want[32], got[32];
    by_hand(fingerprint, &in, want);
    kvant_block_hasher *hasher = open_hasher(fingerprint);
    bool done = false;
    for (uint64_t nth = 0; !done; nth++)
        for (int for_good = 0; for_good < 2; for_good++) {
            memory_faults_start(nth, for_good);
            kvant_status status = kvant_block_key(hasher, NULL, in.ids, in.classes, in.tokens, NULL, 0, got);
            done = memory_faults_stop() <= nth;
            if (status == KVANT_OK) {
                kvant_assert_bytes(got, want, 32);
            } else {
                assert_int_equal(status, KVANT_ERROR_MEMORY);
                assert_false(done);
            }
            key_of(hasher, &in, got);
            kvant_assert_bytes(got, want, 32);
        }
    kvant_block_hasher_close(hasher);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_digests),           cmocka_unit_test(equals_bytes_by_hand),
        cmocka_unit_test(every_field_counts),      cmocka_unit_test(opens_or_has_no_memory),
        cmocka_unit_test(hashes_or_has_no_memory),
    };
    return kvant_run_tests(tests, argc, argv);
}
