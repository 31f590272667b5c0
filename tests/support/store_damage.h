/* Puts arbitrary bytes where a store keeps a record, behind its back. */
#ifndef KVANT_TEST_STORE_DAMAGE_H
#define KVANT_TEST_STORE_DAMAGE_H

#include "support/store_records.h"

/* The store in `directory` is closed and has a record under `key`; its bytes are replaced. */
void test_store_plant(uint32_t kind, const char *directory, const kvant_store_key *key, const void *bytes,
                      size_t size);

/* What lies under the key, as it is stored; the caller frees. */
unsigned char *test_store_stored(uint32_t kind, const char *directory, const kvant_store_key *key,
                                 size_t *size);

/* The file of a record in the plain-directory store; the caller frees. */
char *test_store_file(const char *directory, const kvant_store_key *key);

/* Puts the checksums of a record right after its fields were changed; leaves it where its lengths do not
 * allow it. */
void test_record_reseal(unsigned char *bytes, size_t size);

#endif
