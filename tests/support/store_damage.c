/* See store_damage.h. */
#include "support/store_damage.h"

#include "store/bytes.h"
#include "store/directory_scan.h"
#include "store/store.h"
#include "support/data.h"
#include "support/scratch.h"
#include "support/test.h"

#include <lmdb.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

char *test_store_file(const char *directory, const kvant_store_key *key) {
    uint8_t name[KVANT_STORE_NAME_BYTES];
    char path[KVANT_FILE_NAME_BYTES];
    kvant_store_name(key, name);
    kvant_file_name(name, path);
    return kvant_scratch_path(directory, path);
}

/* The value under a key of LMDB's records: replaced where `bytes` is given, else copied out. */
static unsigned char *lmdb_value(const char *directory, const kvant_store_key *key, const void *bytes,
                                 size_t *size) {
    uint8_t name[KVANT_STORE_NAME_BYTES];
    MDB_env *env = NULL;
    MDB_txn *txn = NULL;
    MDB_dbi records;
    kvant_store_name(key, name);
    MDB_val k = {.mv_size = sizeof name, .mv_data = name};
    MDB_val v = {.mv_size = *size, .mv_data = (void *)(uintptr_t)bytes};
    unsigned char *copy = NULL;
    assert_int_equal(mdb_env_create(&env), 0);
    assert_int_equal(mdb_env_set_maxdbs(env, 3), 0);
    assert_int_equal(mdb_env_open(env, directory, 0, 0664), 0);
    assert_int_equal(mdb_txn_begin(env, NULL, 0, &txn), 0);
    assert_int_equal(mdb_dbi_open(txn, "records", 0, &records), 0);
    if (bytes != NULL) {
        assert_int_equal(mdb_put(txn, records, &k, &v, 0), 0);
        assert_int_equal(mdb_txn_commit(txn), 0);
    } else {
        assert_int_equal(mdb_get(txn, records, &k, &v), 0);
        copy = malloc(v.mv_size + 1);
        assert_non_null(copy);
        memcpy(copy, v.mv_data, v.mv_size);
        *size = v.mv_size;
        mdb_txn_abort(txn);
    }
    mdb_env_close(env);
    return copy;
}

void test_store_plant(uint32_t kind, const char *directory, const kvant_store_key *key, const void *bytes,
                      size_t size) {
    if (kind == TEST_STORE_LMDB) {
        (void)lmdb_value(directory, key, bytes, &size);
        return;
    }
    char *file = test_store_file(directory, key);
    kvant_scratch_write(file, bytes, size);
    free(file);
}

unsigned char *test_store_stored(uint32_t kind, const char *directory, const kvant_store_key *key,
                                 size_t *size) {
    if (kind == TEST_STORE_LMDB) return lmdb_value(directory, key, NULL, size);
    char *file = test_store_file(directory, key);
    kvant_test_bytes bytes = kvant_test_read(file);
    free(file);
    *size = bytes.size;
    return bytes.bytes;
}

void test_record_reseal(unsigned char *bytes, size_t size) {
    if (size < 192) return;
    uint64_t record = kvant_get64(bytes + 16), header = kvant_get64(bytes + 24);
    if (header > size || header < 192) return;
    if (record <= size && record >= header)
        kvant_put64(bytes + 160, XXH3_64bits(bytes + header, (size_t)(record - header)));
    kvant_put64(bytes + header - 8, XXH3_64bits(bytes, (size_t)header - 8));
}
