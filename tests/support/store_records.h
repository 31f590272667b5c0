/* Records for tests of the stores, and both stores by one name. */
#ifndef KVANT_TEST_STORE_RECORDS_H
#define KVANT_TEST_STORE_RECORDS_H

#include <kvant/kvant.h>

typedef struct test_record {
    unsigned char *bytes;
    size_t size;
    kvant_store_key key; /* its salt is static text */
} test_record;

typedef struct test_record_wish {
    uint32_t kind;    /* 0 = KVANT_STORE_BLOCK */
    uint32_t tokens;  /* 0 = 8 */
    uint32_t payload; /* bytes of each extent; 0 = 500; raw rows of a tail are of the same size, nearly */
    uint32_t scheme;  /* of the fingerprint */
    const char *salt; /* static text; NULL = none */
    uint32_t random;  /* 1 = contents that do not pack */
} test_record_wish;

/* A whole record whose tokens and contents follow from `number`. Outside of cmocka's children too: it ends
 * the program where there is no memory. */
test_record test_record_make(uint32_t number, const test_record_wish *wish);
void test_record_free(test_record *record);

/* The stores of the library: 0 = LMDB, 1 = plain files. */
enum { TEST_STORE_LMDB = 0, TEST_STORE_DIRECTORY = 1, TEST_STORES = 2 };
extern const char *const test_store_names[TEST_STORES];
kvant_status test_store_try(uint32_t kind, const char *directory, const kvant_store_options *options,
                            kvant_store **store, kvant_diag *diag);

/* Must work; capacity 0 = the default. */
kvant_store *test_store_open(uint32_t kind, const char *directory, uint64_t capacity, uint32_t pack);

/* Puts; must work. */
void test_store_put(kvant_store *store, const test_record *record);

/* The reason of a miss; KVANT_STORE_FOUND only if what is handed out is this record, byte for byte: anything
 * else ends the program. */
uint32_t test_store_ask(kvant_store *store, const test_record *record);

/* For tests of many puts that no power failure will follow: lets kvant_scratch_make make folders in memory
 * where the machine has such a place. */
void test_store_quick_disk(void);

/* One counter, as the store tells it. */
uint64_t test_store_count(kvant_store *store, uint32_t reason);
kvant_store_stats test_store_stats(kvant_store *store);

#endif
