/* Is this the record that was asked for? One place decides, for every kind of store. */
#include "bytes.h"
#include "store.h"

#include <string.h>

enum { MAGIC_BYTES = 8, AT_VERSION = 8, AT_RECORD_BYTES = 16, FIXED_BYTES = 192 };
static const char magic[] = "KVANTREC";

static uint32_t swapped(uint32_t x) {
    return x << 24 | (x & 0xff00u) << 8 | (x >> 8 & 0xff00u) | x >> 24;
}

/* What is wrong with bytes that kvant_record_read refuses. */
static uint32_t classify(const unsigned char *bytes, size_t size) {
    if (memcmp(bytes, magic, size < MAGIC_BYTES ? size : MAGIC_BYTES) != 0) return KVANT_STORE_FOREIGN;
    if (size < FIXED_BYTES) return KVANT_STORE_TRUNCATED;
    uint32_t version = kvant_get32(bytes + AT_VERSION);
    if (swapped(version) == KVANT_RECORD_VERSION) return KVANT_STORE_ENDIAN;
    if (version != KVANT_RECORD_VERSION) return KVANT_STORE_VERSION;
    return kvant_get64(bytes + AT_RECORD_BYTES) > size ? KVANT_STORE_TRUNCATED : KVANT_STORE_CHECKSUM;
}

uint32_t kvant_store_verify(const kvant_store_key *key, const void *bytes, size_t size, const char **why) {
    kvant_record record;
    if (kvant_record_read(bytes, size, &record, why) != KVANT_OK) {
        uint32_t reason = classify(bytes, size);
        if (reason == KVANT_STORE_ENDIAN) *why = "its numbers are in the other byte order";
        return reason;
    }
    if (record.size != size) {
        *why = "bytes follow the record";
        return KVANT_STORE_CHECKSUM;
    }
    if (memcmp(record.head.fingerprint, key->fingerprint, sizeof key->fingerprint) != 0) {
        *why = "another scheme wrote it (fingerprints differ)";
        return KVANT_STORE_FINGERPRINT;
    }
    if (record.head.kind != key->kind || memcmp(record.head.key, key->key, sizeof key->key) != 0) {
        *why = "it is another record (keys or kinds differ)";
        return KVANT_STORE_KEY;
    }
    kvant_status status = kvant_record_check_key(&record, key->salt, (size_t)key->salt_bytes);
    if (status == KVANT_OK) return KVANT_STORE_FOUND;
    *why = status == KVANT_ERROR_MISMATCH ? "its key is not that of its tokens, classes and the salt"
                                          : "out of memory";
    return status == KVANT_ERROR_MISMATCH ? KVANT_STORE_KEY : KVANT_STORE_UNREADABLE;
}

void kvant_store_name(const kvant_store_key *key, uint8_t name[KVANT_STORE_NAME_BYTES]) {
    memcpy(name, key->key, KVANT_STORE_KEY_BYTES);
    name[KVANT_STORE_KEY_BYTES] = (uint8_t)key->kind;
}
