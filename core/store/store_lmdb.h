/* The embedded store's parts for one another; store_lmdb.c has the map of it. */
#ifndef KVANT_STORE_STORE_LMDB_H
#define KVANT_STORE_STORE_LMDB_H

#include "store.h"

#include <lmdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum { KVANT_LMDB_NOTED_MAX = 1024 }; /* reads that the order remembers between two puts: the last ones */

typedef uint8_t kvant_lmdb_name[KVANT_STORE_NAME_BYTES];

typedef struct kvant_lmdb {
    char *directory;
    MDB_env *env;
    MDB_dbi main, records, ages, order;
    int guard;     /* open.lock */
    pid_t process; /* that opened it */
    uint64_t capacity;
    uint64_t capacity_pages;
    size_t page_bytes;
    const void *mapped;   /* where the map begins, for whoever writes; NULL = unknown */
    pthread_rwlock_t map; /* shared: a transaction; exclusive: the map grows because another process's did */
    pthread_mutex_t noted_lock;
    kvant_lmdb_name noted[KVANT_LMDB_NOTED_MAX]; /* a ring */
    uint32_t noted_first, noted_count;
    atomic_uint_fast64_t evictions;
    atomic_uint_fast64_t lingering; /* the snapshot of a reader that was waited for in vain */
} kvant_lmdb;

/* A transaction, and its end: commit if rc is 0, else abort. Both return LMDB's number. */
int kvant_lmdb_begin(kvant_lmdb *s, unsigned flags, MDB_txn **txn);
int kvant_lmdb_end(kvant_lmdb *s, MDB_txn *txn, int rc);

MDB_val kvant_lmdb_value(const void *bytes, size_t size);

/* Marks the version of the map, in the main database: a write of no further meaning. */
int kvant_lmdb_mark(const kvant_lmdb *s, MDB_txn *txn);
int kvant_lmdb_get_mark(const kvant_lmdb *s, MDB_txn *txn, MDB_val *value);
/* 0 if it is this version, MDB_VERSION_MISMATCH if another, MDB_NOTFOUND if the store is new. */
int kvant_lmdb_check_mark(const kvant_lmdb *s, MDB_txn *txn);

kvant_status kvant_lmdb_failed(const kvant_lmdb *s, int rc, const char *what, kvant_diag *diag);

/* Opens everything; the caller frees with kvant_lmdb_release whatever comes of it. */
kvant_status kvant_lmdb_open(const char *directory, uint64_t capacity, kvant_lmdb **s, kvant_diag *diag);
void kvant_lmdb_release(kvant_lmdb *s);

#endif
