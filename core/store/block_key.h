/* The key of a block: SHA-256 of five fields, each behind its length in bytes as a little-endian u64:
 * fingerprint, key of the block before (zeros at block 0), token ids (8 bytes each, little-endian), classes
 * of the tags, salt (empty after block 0, which carries it on). Records carry it, the prefix index goes by
 * it. */
#ifndef KVANT_STORE_BLOCK_KEY_H
#define KVANT_STORE_BLOCK_KEY_H

#include <kvant/types.h>

enum { KVANT_BLOCK_KEY_BYTES = 32 };

/* A hash that is fetched once and used again and again; by one thread at a time. */
typedef struct kvant_block_hasher kvant_block_hasher;

/* MEMORY, also where the machine's OpenSSL has no SHA-256. */
kvant_status kvant_block_hasher_open(const uint8_t fingerprint[32], kvant_block_hasher **hasher);
void kvant_block_hasher_close(kvant_block_hasher *hasher); /* NULL is fine */

/* parent: NULL = block 0; of others the salt is not used. ids and classes: [tokens]. key may be parent.
 * MEMORY if the hash cannot be computed; key is then unspecified. */
kvant_status kvant_block_key(kvant_block_hasher *hasher, const uint8_t *parent, const uint64_t *ids,
                             const uint8_t *classes, uint32_t tokens, const void *salt, uint64_t salt_bytes,
                             uint8_t key[KVANT_BLOCK_KEY_BYTES]);

#endif
