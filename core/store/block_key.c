/* See block_key.h. Short fields are put together in a buffer first, since a call of EVP costs as much as
 * hashing some tens of bytes; long ones are hashed where they are. */
#include "block_key.h"

#include <openssl/evp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER_BYTES = 256 };

struct kvant_block_hasher {
    EVP_MD *sha256;
    EVP_MD_CTX *context;
    bool failed;
    uint8_t fingerprint[32];
    size_t filled; /* 0 between keys */
    uint8_t buffer[BUFFER_BYTES];
};

kvant_status kvant_block_hasher_open(const uint8_t fingerprint[32], kvant_block_hasher **out) {
    *out = NULL;
    kvant_block_hasher *hasher = calloc(1, sizeof *hasher);
    if (hasher == NULL) return KVANT_ERROR_MEMORY;
    memcpy(hasher->fingerprint, fingerprint, sizeof hasher->fingerprint);
    hasher->sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    hasher->context = EVP_MD_CTX_new();
    if (hasher->sha256 == NULL || hasher->context == NULL) {
        kvant_block_hasher_close(hasher);
        return KVANT_ERROR_MEMORY;
    }
    *out = hasher;
    return KVANT_OK;
}

void kvant_block_hasher_close(kvant_block_hasher *hasher) {
    if (hasher == NULL) return;
    EVP_MD_CTX_free(hasher->context);
    EVP_MD_free(hasher->sha256);
    free(hasher);
}

static void update(kvant_block_hasher *hasher, const void *bytes, size_t size) {
    hasher->failed = hasher->failed || EVP_DigestUpdate(hasher->context, bytes, size) != 1;
}

static void flush(kvant_block_hasher *hasher) {
    update(hasher, hasher->buffer, hasher->filled);
    hasher->filled = 0;
}

/* bytes: NULL where there are none. */
static inline void add(kvant_block_hasher *hasher, const void *bytes, uint64_t size) {
    if (size == 0) return;
    if (size > BUFFER_BYTES - hasher->filled) flush(hasher);
    if (size > BUFFER_BYTES) {
        update(hasher, bytes, (size_t)size);
        return;
    }
    memcpy(hasher->buffer + hasher->filled, bytes, (size_t)size);
    hasher->filled += (size_t)size;
}

static void add64(kvant_block_hasher *hasher, uint64_t x) {
    uint8_t bytes[8];
    for (unsigned i = 0; i < 8; i++) bytes[i] = (uint8_t)(x >> 8 * i);
    add(hasher, bytes, sizeof bytes);
}

static void add_ids(kvant_block_hasher *hasher, const uint64_t *ids, uint32_t tokens) {
    if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
        add(hasher, ids, (uint64_t)tokens * 8);
    else
        for (uint32_t t = 0; t < tokens; t++) add64(hasher, ids[t]);
}

kvant_status kvant_block_key(kvant_block_hasher *hasher, const uint8_t *parent, const uint64_t *ids,
                             const uint8_t *classes, uint32_t tokens, const void *salt, uint64_t salt_bytes,
                             uint8_t key[KVANT_BLOCK_KEY_BYTES]) {
    static const uint8_t no_parent[KVANT_BLOCK_KEY_BYTES];
    if (parent != NULL) salt_bytes = 0;
    hasher->failed = EVP_DigestInit_ex2(hasher->context, hasher->sha256, NULL) != 1;
    add64(hasher, sizeof hasher->fingerprint);
    add(hasher, hasher->fingerprint, sizeof hasher->fingerprint);
    add64(hasher, KVANT_BLOCK_KEY_BYTES);
    add(hasher, parent != NULL ? parent : no_parent, KVANT_BLOCK_KEY_BYTES);
    add64(hasher, (uint64_t)tokens * 8);
    add_ids(hasher, ids, tokens);
    add64(hasher, tokens);
    add(hasher, classes, tokens);
    add64(hasher, salt_bytes);
    add(hasher, salt, salt_bytes);
    flush(hasher);
    hasher->failed = hasher->failed || EVP_DigestFinal_ex(hasher->context, key, NULL) != 1;
    return hasher->failed ? KVANT_ERROR_MEMORY : KVANT_OK;
}
