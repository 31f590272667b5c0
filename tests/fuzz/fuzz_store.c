/* Stored bytes, packed and not, through the layer that every store has: a hit is a whole record of the key
 * that was asked for, everything else a miss. Checksums would stop nearly every mutation, so each input is
 * also read with its checksums put right. */
#include "fuzz.h"
#include "store/bytes.h"
#include "store/record.h"
#include "store/store_pack.h"

#include <kvant/kvant.h>
#include <xxhash.h>

enum { RECORD_MAX = 1 << 20, HEAD_BYTES = 192, PACKED_HEAD = 64 };

typedef struct box {
    const uint8_t *bytes;
    size_t size;
} box;

static kvant_status box_put(void *state, const uint8_t *name, const void *bytes, size_t size,
                            kvant_diag *diag) {
    (void)state, (void)name, (void)diag;
    kvant_fuzz_touch(bytes, size);
    return KVANT_OK;
}
static kvant_status box_get(void *state, const uint8_t *name, kvant_store_use *use, void *context,
                            kvant_diag *diag) {
    const box *b = state;
    (void)name, (void)diag;
    return use(context, b->bytes, b->size);
}
static kvant_status box_find(void *state, const uint8_t *name, kvant_diag *diag) {
    (void)state, (void)name, (void)diag;
    return KVANT_OK;
}
static kvant_status box_iterate(void *state,
                                kvant_status (*visit)(void *context, const uint8_t *name, uint64_t bytes),
                                void *context, kvant_diag *diag) {
    (void)state, (void)visit, (void)context, (void)diag;
    return KVANT_OK;
}
static kvant_status box_usage(void *state, kvant_store_usage *usage, kvant_diag *diag) {
    (void)state, (void)usage, (void)diag;
    return KVANT_OK;
}
static void box_close(void *state) {
    (void)state;
}

/* What a user of a hit may rely on. */
static kvant_status use(void *context, const void *bytes, size_t size) {
    const kvant_store_key *key = context;
    kvant_record record;
    const char *reason = NULL;
    if (size > RECORD_MAX || kvant_record_read(bytes, size, &record, &reason) != KVANT_OK ||
        record.size != size || record.head.kind != key->kind || memcmp(record.head.key, key->key, 32) != 0 ||
        memcmp(record.head.fingerprint, key->fingerprint, 32) != 0 ||
        kvant_record_check_key(&record, key->salt, key->salt_bytes) != KVANT_OK)
        abort();
    kvant_fuzz_touch(bytes, size);
    return KVANT_OK;
}

static void ask(const uint8_t *data, size_t size) {
    static const kvant_store_calls calls = {.struct_size = sizeof calls,
                                            .put = box_put,
                                            .get = box_get,
                                            .contains = box_find,
                                            .remove = box_find,
                                            .iterate = box_iterate,
                                            .usage = box_usage,
                                            .close = box_close};
    const kvant_store_options options = {
        .struct_size = sizeof options, .record_max = RECORD_MAX, .pack = KVANT_STORE_PACK_ZSTD};
    box b = {data, size};
    kvant_store *store = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    uint32_t reason = UINT32_MAX;
    if (kvant_store_open_calls(&calls, &b, &options, &store, &diag) != KVANT_OK) abort();
    /* The key that the bytes claim, so that nothing but what is wrong with them keeps them out. */
    size_t head = kvant_store_is_packed(data, size) ? PACKED_HEAD : 0;
    kvant_store_key key = {.struct_size = sizeof key, .kind = KVANT_STORE_BLOCK};
    if (size >= head + HEAD_BYTES) {
        if (kvant_get32(data + head + 12) == KVANT_STORE_TAIL) key.kind = KVANT_STORE_TAIL;
        memcpy(key.fingerprint, data + head + 32, 32);
        memcpy(key.key, data + head + 96, 32);
    }
    kvant_status status = kvant_store_get(store, &key, use, &key, &reason, &diag);
    kvant_fuzz_check(status, &diag);
    if ((status == KVANT_OK) != (reason == KVANT_STORE_FOUND) || reason >= KVANT_STORE_REASONS) abort();
    status = kvant_store_put(store, &key, data, size, &diag);
    kvant_fuzz_check(status, &diag);
    kvant_store_close(store);
}

static void reseal(uint8_t *bytes, size_t size) {
    if (kvant_store_is_packed(bytes, size) && size >= PACKED_HEAD) {
        kvant_put64(bytes + 16, size);
        kvant_put64(bytes + 24, XXH3_64bits_withSeed(bytes + 32, size - 32, XXH3_64bits(bytes, 24)));
        return;
    }
    if (size < HEAD_BYTES) return;
    uint64_t record = kvant_get64(bytes + 16), header = kvant_get64(bytes + 24);
    if (record > size || header > record || header < HEAD_BYTES) return;
    kvant_put64(bytes + 160, XXH3_64bits(bytes + header, (size_t)(record - header)));
    kvant_put64(bytes + header - 8, XXH3_64bits(bytes, (size_t)header - 8));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ask(data, size);
    uint8_t *copy = malloc(size > 0 ? size : 1);
    if (copy == NULL) return 0;
    memcpy(copy, data, size);
    reseal(copy, size);
    ask(copy, size);
    free(copy);
    return 0;
}
