/* See store_records.h. */
#include "support/store_records.h"

#include "store/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Noreturn void die(const char *what, const char *why) {
    (void)fprintf(stderr, "store_records: %s: %s\n", what, why);
    abort();
}

static uint64_t mix(uint64_t z) { /* splitmix64 */
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Never zero, and different everywhere. */
static void fill(unsigned char *to, size_t size, uint64_t seed, uint32_t random) {
    for (size_t i = 0; i < size; i++)
        to[i] = random ? (unsigned char)mix(seed * 1000003 + i) : (unsigned char)(1 + (seed + i / 8) % 255);
}

test_record test_record_make(uint32_t number, const test_record_wish *wish) {
    static const test_record_wish none = {0};
    enum { LAYERS = 2, TOKENS_MAX = 256 };
    if (wish == NULL) wish = &none;
    uint32_t kind = wish->kind != 0 ? wish->kind : KVANT_STORE_BLOCK,
             tokens = wish->tokens ? wish->tokens : 8;
    size_t payload = wish->payload > 0 ? wish->payload : 500;
    if (tokens > TOKENS_MAX) die("tokens", "too many");
    if (kind == KVANT_STORE_TAIL) payload = payload / (2 * tokens) * 2 * tokens;
    kvant_record_head head = {
        .kind = kind, .tokens = tokens, .layers = LAYERS, .dtype = KVANT_DTYPE_F16, .block = 0};
    uint64_t ids[TOKENS_MAX];
    unsigned char tags[TOKENS_MAX];
    memset(head.fingerprint, (int)(7 + wish->scheme), sizeof head.fingerprint);
    for (uint32_t t = 0; t < tokens; t++) {
        ids[t] = mix((uint64_t)number * 4096 + t);
        tags[t] = (unsigned char)(t % 3);
    }
    test_record r = {.key = {.struct_size = sizeof r.key, .kind = kind, .salt = wish->salt}};
    r.key.salt_bytes = wish->salt != NULL ? strlen(wish->salt) : 0;
    size_t capacity = kvant_record_size(tokens, LAYERS, LAYERS * 2 * ((uint64_t)payload + 64));
    r.bytes = malloc(capacity);
    if (r.bytes == NULL) die("memory", "out of it");
    kvant_record_writer writer;
    if (kvant_record_start(&writer, r.bytes, capacity, &head, ids, tags, tags, r.key.salt,
                           (size_t)r.key.salt_bytes) != KVANT_OK)
        die("record", "does not start");
    for (uint32_t i = 0; i < LAYERS * 2; i++) {
        unsigned char *room = kvant_record_room(&writer, payload);
        if (room == NULL) die("record", "no room");
        fill(room, payload, (uint64_t)number * 16 + i, wish->random);
        if (kind == KVANT_STORE_BLOCK)
            kvant_record_put_extent(&writer, i / 2, i % 2, payload);
        else
            kvant_record_put_raw(&writer, i / 2, i % 2, payload);
    }
    r.size = kvant_record_finish(&writer);
    memcpy(r.key.key, head.key, sizeof r.key.key);
    memcpy(r.key.fingerprint, head.fingerprint, sizeof r.key.fingerprint);
    return r;
}

void test_record_free(test_record *record) {
    free(record->bytes);
    record->bytes = NULL;
}

const char *const test_store_names[TEST_STORES] = {"lmdb", "directory"};

kvant_status test_store_try(uint32_t kind, const char *directory, const kvant_store_options *options,
                            kvant_store **store, kvant_diag *diag) {
    return kind == TEST_STORE_LMDB ? kvant_store_open_lmdb(directory, options, store, diag)
                                   : kvant_store_open_directory(directory, options, store, diag);
}

kvant_store *test_store_open(uint32_t kind, const char *directory, uint64_t capacity, uint32_t pack) {
    kvant_store_options options = {.struct_size = sizeof options, .capacity = capacity, .pack = pack};
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_store *store = NULL;
    if (test_store_try(kind, directory, &options, &store, &diag) != KVANT_OK) die("open", diag.message);
    return store;
}

void test_store_put(kvant_store *store, const test_record *record) {
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_store_put(store, &record->key, record->bytes, record->size, &diag) != KVANT_OK)
        die("put", diag.message);
}

static kvant_status compare(void *context, const void *bytes, size_t size) {
    const test_record *record = context;
    if (size != record->size || memcmp(bytes, record->bytes, size) != 0) die("get", "wrong bytes");
    return KVANT_OK;
}

uint32_t test_store_ask(kvant_store *store, const test_record *record) {
    kvant_diag diag = {.struct_size = sizeof diag};
    uint32_t reason = UINT32_MAX;
    test_record copy = *record;
    kvant_status status = kvant_store_get(store, &record->key, compare, &copy, &reason, &diag);
    if (status == KVANT_OK ? reason != KVANT_STORE_FOUND
                           : status != KVANT_ERROR_MISSING || reason == KVANT_STORE_FOUND ||
                                 reason >= KVANT_STORE_REASONS || diag.message[0] == '\0')
        die("get", "status, reason and message contradict each other");
    return reason;
}

void test_store_quick_disk(void) {
    if (access("/dev/shm", W_OK | X_OK) == 0) (void)setenv("TMPDIR", "/dev/shm", 0);
}

kvant_store_stats test_store_stats(kvant_store *store) {
    kvant_store_stats stats = {.struct_size = sizeof stats};
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_store_describe(store, &stats, &diag) != KVANT_OK) die("describe", diag.message);
    return stats;
}

uint64_t test_store_count(kvant_store *store, uint32_t reason) {
    return test_store_stats(store).reasons[reason];
}
