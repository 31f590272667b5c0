/* Opening of the embedded store (store_lmdb.c): one at a time, once in a process, on files that are what they
 * should be. */
#include "store_lmdb.h"

#include "data/file.h"
#include "lmdb_check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    LOCK_BYTES = 1 << 16, /* of lock.mdb: about a thousand readers at once */
    MAP_STEP = 1 << 16,
    MODE = 0664,
    FAILURES_MAX = 3, /* of a check, before it is believed */
    TRIES_MAX = 200
};
static const off_t opening_byte = (off_t)1 << 40;
static const char format_key[] = "kvant-store", format_value[] = "1";

int kvant_lmdb_mark(const kvant_lmdb *s, MDB_txn *txn) {
    MDB_val key = kvant_lmdb_value(format_key, sizeof format_key - 1),
            value = kvant_lmdb_value(format_value, sizeof format_value - 1);
    return mdb_put(txn, s->main, &key, &value, 0);
}

int kvant_lmdb_get_mark(const kvant_lmdb *s, MDB_txn *txn, MDB_val *value) {
    MDB_val key = kvant_lmdb_value(format_key, sizeof format_key - 1);
    return mdb_get(txn, s->main, &key, value);
}

int kvant_lmdb_check_mark(const kvant_lmdb *s, MDB_txn *txn) {
    MDB_val value;
    int rc = kvant_lmdb_get_mark(s, txn, &value);
    if (rc != 0) return rc;
    bool same =
        value.mv_size == sizeof format_value - 1 && memcmp(value.mv_data, format_value, value.mv_size) == 0;
    return same ? 0 : MDB_VERSION_MISMATCH;
}

/* Opens or makes one of the directory's files. */
static kvant_status file_in(const kvant_lmdb *s, const char *name, int *fd, kvant_diag *diag) {
    struct stat info;
    int directory = open(s->directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return kvant_store_system_error(diag, s->directory, "cannot open", errno);
    *fd = openat(directory, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, MODE);
    int error = errno;
    close(directory);
    if (*fd < 0) return kvant_store_system_error(diag, s->directory, name, error);
    if (fstat(*fd, &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & S_IWOTH) == 0) return KVANT_OK;
    close(*fd);
    *fd = -1;
    return kvant_file_fail(diag, KVANT_ERROR_IO, s->directory,
                           "%s: not a regular file, or everybody may write to it; chmod o-w it", name);
}

/* Locks of LMDB belong to the process: a second opening in one process would take them from the first when it
 * is closed. So each process holds the byte of its number. Locks of the open file, unlike the process's, see
 * one another there. The other byte lets one at a time open and create. */
static kvant_status guard(kvant_lmdb *s, kvant_diag *diag) {
    kvant_status status = file_in(s, "open.lock", &s->guard, diag);
    if (status != KVANT_OK) return status;
    struct flock mine = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = s->process, .l_len = 1};
    if (fcntl(s->guard, F_OFD_SETLK, &mine) != 0) {
        if (errno != EAGAIN && errno != EACCES)
            return kvant_store_system_error(diag, s->directory, "cannot lock open.lock", errno);
        return kvant_file_fail(diag, KVANT_ERROR_UNSUPPORTED, s->directory,
                               "already open in this process, or in one of the same number in another "
                               "container; a process opens a store once");
    }
    struct flock opening = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = opening_byte, .l_len = 1};
    while (fcntl(s->guard, F_OFD_SETLKW, &opening) != 0)
        if (errno != EINTR)
            return kvant_store_system_error(diag, s->directory, "cannot lock open.lock", errno);
    return KVANT_OK;
}

static void guard_done(const kvant_lmdb *s) {
    struct flock opening = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = opening_byte, .l_len = 1};
    (void)fcntl(s->guard, F_OFD_SETLK, &opening);
}

/* The table of readers is written through a map: on a full disk that would end the process by a signal, so
 * its blocks are taken before. */
static kvant_status reserve_lock_file(const kvant_lmdb *s, kvant_diag *diag) {
    struct stat info;
    int fd = -1;
    kvant_status status = file_in(s, "lock.mdb", &fd, diag);
    if (status != KVANT_OK) return status;
    if (fstat(fd, &info) != 0) {
        status = kvant_store_system_error(diag, s->directory, "cannot look at lock.mdb", errno);
    } else if (info.st_size < LOCK_BYTES || (uint64_t)info.st_blocks * 512 < LOCK_BYTES) {
        int error = posix_fallocate(fd, 0, LOCK_BYTES);
        if (error != 0) status = kvant_store_system_error(diag, s->directory, "no room for lock.mdb", error);
    }
    close(fd);
    return status;
}

/* LMDB writes its first two pages at once; a kill or a full disk in between leaves a file with nothing in
 * it. */
static kvant_status check_data_file(const kvant_lmdb *s, kvant_diag *diag) {
    struct stat info;
    int fd = -1;
    kvant_status status = file_in(s, "data.mdb", &fd, diag);
    if (status != KVANT_OK) return status;
    if (fstat(fd, &info) != 0 ||
        (info.st_size > 0 && info.st_size < KVANT_LMDB_FILE_MIN && ftruncate(fd, 0) != 0))
        status = kvant_store_system_error(diag, s->directory, "cannot look at data.mdb", errno);
    else if (info.st_size >= KVANT_LMDB_FILE_MIN)
        for (unsigned i = 0; i < FAILURES_MAX; i++) { /* one may be caught half written */
            status = kvant_lmdb_check_head(fd, s->directory, diag);
            if (status == KVANT_OK) break;
        }
    close(fd);
    return status;
}

static kvant_status check_structure(kvant_lmdb *s, kvant_diag *diag) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    mdb_filehandle_t fd = -1;
    unsigned failures = 0;
    int rc = mdb_env_get_fd(s->env, &fd);
    if (rc != 0) return kvant_lmdb_failed(s, rc, "cannot read", diag);
    /* The transaction keeps the pages of its snapshot from being used again. But another process may write
     * the next two heads before this one is read, or just while it is. */
    for (unsigned i = 0; i < TRIES_MAX; i++) {
        MDB_txn *txn = NULL;
        bool moved = false;
        rc = kvant_lmdb_begin(s, MDB_RDONLY, &txn);
        if (rc != 0) return kvant_lmdb_failed(s, rc, "cannot read", diag);
        kvant_status status = kvant_lmdb_check(fd, mdb_txn_id(txn), s->directory, &moved, diag);
        (void)kvant_lmdb_end(s, txn, MDB_KEYEXIST);
        if (status == KVANT_OK) return status;
        if (!moved && ++failures == FAILURES_MAX) return status;
        (void)nanosleep(&pause, NULL);
    }
    return kvant_file_fail(diag, KVANT_ERROR_IO, s->directory, "written too quickly to be looked at");
}

static int open_database(MDB_txn *txn, const char *name, unsigned flags, MDB_dbi *database, int rc) {
    return rc == 0 ? mdb_dbi_open(txn, name, flags, database) : rc;
}

/* The databases, made if this store is new. */
static kvant_status open_databases(kvant_lmdb *s, kvant_diag *diag) {
    for (unsigned create = 0; create < 2; create++) {
        MDB_txn *txn = NULL;
        int rc = kvant_lmdb_begin(s, create ? 0 : MDB_RDONLY, &txn);
        if (rc != 0) return kvant_lmdb_failed(s, rc, "cannot read", diag);
        unsigned flags = create ? MDB_CREATE : 0;
        rc = open_database(txn, NULL, 0, &s->main, 0);
        if (rc == 0) rc = create ? kvant_lmdb_mark(s, txn) : kvant_lmdb_check_mark(s, txn);
        rc = open_database(txn, "records", flags, &s->records, rc);
        rc = open_database(txn, "ages", flags, &s->ages, rc);
        rc = open_database(txn, "order", flags, &s->order, rc);
        rc = kvant_lmdb_end(s, txn, rc);
        if (rc == 0) return KVANT_OK;
        if (rc != MDB_NOTFOUND || create) return kvant_lmdb_failed(s, rc, "cannot open", diag);
    }
    return KVANT_OK;
}

static kvant_status open_environment(kvant_lmdb *s, kvant_diag *diag) {
    MDB_stat stat;
    int dead = 0;
    int rc = mdb_env_create(&s->env);
    if (rc == 0) rc = mdb_env_set_maxdbs(s->env, 3);
    if (rc == 0) rc = mdb_env_set_mapsize(s->env, (size_t)(s->capacity / MAP_STEP * MAP_STEP));
    if (rc == 0) rc = mdb_env_open(s->env, s->directory, MDB_NOTLS | MDB_NORDAHEAD, MODE);
    if (rc == 0) rc = mdb_env_stat(s->env, &stat);
    if (rc == 0) rc = mdb_reader_check(s->env, &dead);
    if (rc != 0) return kvant_lmdb_failed(s, rc, "cannot open", diag);
    s->page_bytes = stat.ms_psize;
    s->capacity_pages = s->capacity / s->page_bytes;
    return KVANT_OK;
}

/* Not the root of a store of plain files. */
static kvant_status check_kind(const kvant_lmdb *s, kvant_diag *diag) {
    int directory = open(s->directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    bool other = directory >= 0 && faccessat(directory, "account", F_OK, 0) == 0;
    if (directory >= 0) close(directory);
    return other ? kvant_file_fail(diag, KVANT_ERROR_MISMATCH, s->directory, "holds a store of plain files")
                 : KVANT_OK;
}

static kvant_status open_all(kvant_lmdb *s, kvant_diag *diag) {
    kvant_status status = kvant_store_make_directory(s->directory, diag);
    if (status == KVANT_OK) status = check_kind(s, diag);
    if (status == KVANT_OK) status = guard(s, diag);
    if (status == KVANT_OK) status = reserve_lock_file(s, diag);
    if (status == KVANT_OK) status = check_data_file(s, diag);
    if (status == KVANT_OK) status = open_environment(s, diag);
    if (status == KVANT_OK) status = check_structure(s, diag);
    if (status == KVANT_OK) status = open_databases(s, diag);
    if (status == KVANT_OK) status = kvant_store_flush_directory(s->directory, diag); /* data.mdb's name */
    if (status == KVANT_OK) guard_done(s);
    return status;
}

void kvant_lmdb_release(kvant_lmdb *s) {
    if (s == NULL) return;
    if (s->env != NULL) mdb_env_close(s->env);
    /* Not left to close: a child of a fork still has the file open. */
    struct flock mine = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = s->process, .l_len = 1};
    if (s->guard >= 0 && s->process == getpid()) (void)fcntl(s->guard, F_OFD_SETLK, &mine);
    if (s->guard >= 0) close(s->guard);
    (void)pthread_rwlock_destroy(&s->map);
    (void)pthread_mutex_destroy(&s->noted_lock);
    free(s->directory);
    free(s);
}

kvant_status kvant_lmdb_open(const char *directory, uint64_t capacity, kvant_lmdb **out, kvant_diag *diag) {
    kvant_lmdb *s = calloc(1, sizeof *s);
    *out = s;
    if (s == NULL) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, directory, "out of memory");
    s->guard = -1;
    s->process = getpid();
    s->capacity = capacity;
    atomic_init(&s->lingering, UINT64_MAX);
    s->directory = strdup(directory);
    (void)pthread_rwlock_init(&s->map, NULL);
    (void)pthread_mutex_init(&s->noted_lock, NULL);
    return s->directory == NULL ? kvant_file_fail(diag, KVANT_ERROR_MEMORY, directory, "out of memory")
                                : open_all(s, diag);
}
