/* The embedded store: an LMDB environment of three databases. One transaction a write.
 *
 *     DIRECTORY/data.mdb      LMDB's file: at most `capacity` bytes
 *     DIRECTORY/lock.mdb      LMDB's table of readers and the writer's lock
 *     DIRECTORY/open.lock     byte 2^40: somebody opens; byte PID: that process has it open
 *
 *     database   key                       value
 *     (main)     "kvant-store"             "1": version of this map
 *     records    name: 32 key, 1 kind      the record, as it is or packed (store_pack.h)
 *     ages       name                      8 bytes, big-endian: when it was used last, a number that grows
 *     order      that number               name
 *
 * Eviction takes the first of `order`. A get does not write: it notes the name in memory, and the next put,
 * or close, gives all noted names new numbers. LMDB never overwrites a page that a reader or the last two
 * commits can see, so a kill at any moment leaves the last commit whole. */
#include "store_lmdb.h"

#include "data/file.h"
#include "lmdb_check.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum {
    ROUNDS_MAX = 4,   /* of evicting more when the map is full */
    WAITS_MAX = 200,  /* milliseconds for readers to go on */
    SPARE_PAGES = 16, /* that a put may write beside its record's */
    AGE_BYTES = 8
};

kvant_status kvant_lmdb_failed(const kvant_lmdb *s, int rc, const char *what, kvant_diag *diag) {
    kvant_status status =
        rc == MDB_NOTFOUND                                                    ? KVANT_ERROR_MISSING
        : rc == MDB_MAP_FULL || rc == ENOSPC || rc == EDQUOT || rc == EFBIG   ? KVANT_ERROR_NO_SPACE
        : rc == ENOMEM                                                        ? KVANT_ERROR_MEMORY
        : rc == MDB_VERSION_MISMATCH                                          ? KVANT_ERROR_VERSION
        : rc == MDB_CORRUPTED || rc == MDB_INVALID || rc == MDB_PAGE_NOTFOUND ? KVANT_ERROR_CORRUPT
                                                                              : KVANT_ERROR_IO;
    return kvant_file_fail(diag, status, s->directory, "%s: %s", what, mdb_strerror(rc));
}

MDB_val kvant_lmdb_value(const void *bytes, size_t size) {
    return (MDB_val){.mv_size = size, .mv_data = (void *)(uintptr_t)bytes};
}

/* ---- Transactions -------------------------------------------------------------------------------------- */

/* Another process opened the store with a larger capacity and has used it. */
static int grow_map(kvant_lmdb *s) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    for (unsigned i = 0; i < 50; i++) {
        if (pthread_rwlock_trywrlock(&s->map) == 0) {
            int rc = mdb_env_set_mapsize(s->env, 0);
            (void)pthread_rwlock_unlock(&s->map);
            return rc;
        }
        /* Readers of this process are under way, this thread's own perhaps: then it cannot be done now. */
        (void)nanosleep(&pause, NULL);
    }
    return MDB_MAP_RESIZED;
}

/* Where the map begins LMDB does not tell; the page of the mark, which was checked when the store was opened,
 * does, until this transaction makes it one of its own. */
static void find_map(kvant_lmdb *s, MDB_txn *txn) {
    MDB_val mark;
    bool found = s->main != 0 && kvant_lmdb_get_mark(s, txn, &mark) == 0;
    s->mapped = found ? kvant_lmdb_map(mark.mv_data, s->page_bytes) : NULL;
}

int kvant_lmdb_begin(kvant_lmdb *s, unsigned flags, MDB_txn **txn) {
    for (unsigned tries = 0;; tries++) {
        (void)pthread_rwlock_rdlock(&s->map);
        int rc = mdb_txn_begin(s->env, NULL, flags, txn);
        if (rc == 0 && (flags & MDB_RDONLY) == 0) find_map(s, *txn);
        if (rc == 0) return 0;
        (void)pthread_rwlock_unlock(&s->map);
        int dead = 0;
        if (tries < 3 && rc == MDB_MAP_RESIZED)
            rc = grow_map(s);
        else if (tries < 3 && rc == MDB_READERS_FULL)
            rc = mdb_reader_check(s->env, &dead);
        else
            return rc;
        if (rc != 0) return rc;
    }
}

/* Commits if rc is 0, else aborts. */
int kvant_lmdb_end(kvant_lmdb *s, MDB_txn *txn, int rc) {
    if (rc == 0)
        rc = mdb_txn_commit(txn);
    else
        mdb_txn_abort(txn);
    (void)pthread_rwlock_unlock(&s->map);
    return rc;
}

/* Pages of the four trees. What is left of the file is free. */
static int used_pages(const kvant_lmdb *s, MDB_txn *txn, uint64_t *pages) {
    const MDB_dbi all[] = {s->main, s->records, s->ages, s->order};
    *pages = 0;
    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++) {
        MDB_stat stat;
        int rc = mdb_stat(txn, all[i], &stat);
        if (rc != 0) return rc;
        *pages += stat.ms_branch_pages + stat.ms_leaf_pages + stat.ms_overflow_pages;
    }
    return 0;
}

/* ---- Order --------------------------------------------------------------------------------------------- */

static void put_age(unsigned char *to, uint64_t age) {
    for (unsigned i = 0; i < AGE_BYTES; i++) to[i] = (unsigned char)(age >> 8 * (AGE_BYTES - 1 - i));
}

static int next_age(const kvant_lmdb *s, MDB_txn *txn, uint64_t *age) {
    MDB_cursor *cursor = NULL;
    MDB_val key, value;
    int rc = mdb_cursor_open(txn, s->order, &cursor);
    if (rc != 0) return rc;
    rc = mdb_cursor_get(cursor, &key, &value, MDB_LAST);
    *age = 1;
    if (rc == 0) {
        const unsigned char *bytes = key.mv_data;
        for (unsigned i = 0, shift = 56; i < AGE_BYTES; i++, shift -= 8) *age += (uint64_t)bytes[i] << shift;
    }
    mdb_cursor_close(cursor);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

/* Forgets when a name was used last; MDB_NOTFOUND if it is not stored. */
static int drop_age(const kvant_lmdb *s, MDB_txn *txn, const uint8_t *name) {
    unsigned char age[AGE_BYTES];
    MDB_val key = kvant_lmdb_value(name, KVANT_STORE_NAME_BYTES), value;
    int rc = mdb_get(txn, s->ages, &key, &value);
    if (rc != 0) return rc;
    if (value.mv_size != AGE_BYTES) return MDB_CORRUPTED;
    memcpy(age, value.mv_data, AGE_BYTES);
    rc = mdb_del(txn, s->ages, &key, NULL);
    MDB_val number = kvant_lmdb_value(age, AGE_BYTES);
    return rc != 0 ? rc : mdb_del(txn, s->order, &number, NULL);
}

static int set_age(const kvant_lmdb *s, MDB_txn *txn, const uint8_t *name, uint64_t age) {
    unsigned char bytes[AGE_BYTES];
    put_age(bytes, age);
    MDB_val key = kvant_lmdb_value(name, KVANT_STORE_NAME_BYTES), number = kvant_lmdb_value(bytes, AGE_BYTES);
    int rc = mdb_put(txn, s->ages, &key, &number, 0);
    key = kvant_lmdb_value(name, KVANT_STORE_NAME_BYTES);
    number = kvant_lmdb_value(bytes, AGE_BYTES);
    return rc != 0 ? rc : mdb_put(txn, s->order, &number, &key, MDB_APPEND);
}

static void lmdb_touch(void *state, const uint8_t *name) {
    kvant_lmdb *s = state;
    (void)pthread_mutex_lock(&s->noted_lock);
    uint32_t last = (s->noted_first + s->noted_count + KVANT_LMDB_NOTED_MAX - 1) % KVANT_LMDB_NOTED_MAX;
    if (s->noted_count == 0 || memcmp(s->noted[last], name, KVANT_STORE_NAME_BYTES) != 0) {
        memcpy(s->noted[(last + 1) % KVANT_LMDB_NOTED_MAX], name, KVANT_STORE_NAME_BYTES);
        if (s->noted_count < KVANT_LMDB_NOTED_MAX)
            s->noted_count++;
        else
            s->noted_first = (s->noted_first + 1) % KVANT_LMDB_NOTED_MAX;
    }
    (void)pthread_mutex_unlock(&s->noted_lock);
}

static bool take_noted(kvant_lmdb *s, uint8_t *name) {
    (void)pthread_mutex_lock(&s->noted_lock);
    bool any = s->noted_count > 0;
    if (any) {
        memcpy(name, s->noted[s->noted_first], KVANT_STORE_NAME_BYTES);
        s->noted_first = (s->noted_first + 1) % KVANT_LMDB_NOTED_MAX;
        s->noted_count--;
    }
    (void)pthread_mutex_unlock(&s->noted_lock);
    return any;
}

/* Gives what was read since the last put its place in the order; a name that is gone by now is passed
 * over. */
static int apply_noted(kvant_lmdb *s, MDB_txn *txn, uint64_t *age) {
    kvant_lmdb_name name;
    int rc = 0;
    for (unsigned i = 0; i < KVANT_LMDB_NOTED_MAX && rc == 0 && take_noted(s, name); i++) {
        rc = drop_age(s, txn, name);
        if (rc == MDB_NOTFOUND)
            rc = 0;
        else if (rc == 0)
            rc = set_age(s, txn, name, (*age)++);
    }
    return rc;
}

/* ---- Room ---------------------------------------------------------------------------------------------- */

static bool is_where_it_belongs(const kvant_lmdb *s, const MDB_val *value) {
    return s->mapped == NULL ||
           kvant_lmdb_large_is_sound(value->mv_data, value->mv_size, s->mapped, s->page_bytes);
}

/* Takes a record out. When LMDB gives the pages of a large record back, it believes the number and the
 * length that the first of them states: one that lies is left where it is, out of order and out of reach. */
static int erase(const kvant_lmdb *s, MDB_txn *txn, const uint8_t *name) {
    MDB_val key = kvant_lmdb_value(name, KVANT_STORE_NAME_BYTES), value;
    int rc = drop_age(s, txn, name);
    if (rc != 0) return rc;
    rc = mdb_get(txn, s->records, &key, &value);
    if (rc == 0 && is_where_it_belongs(s, &value)) rc = mdb_del(txn, s->records, &key, NULL);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

/* MDB_NOTFOUND: nothing is left. */
static int evict_first(kvant_lmdb *s, MDB_txn *txn) {
    kvant_lmdb_name name;
    MDB_cursor *cursor = NULL;
    MDB_val key, value;
    int rc = mdb_cursor_open(txn, s->order, &cursor);
    if (rc != 0) return rc;
    rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    if (rc == 0 && value.mv_size != sizeof name) rc = MDB_CORRUPTED;
    if (rc == 0) memcpy(name, value.mv_data, sizeof name);
    mdb_cursor_close(cursor);
    return rc == 0 ? erase(s, txn, name) : rc;
}

static int evict_down_to(kvant_lmdb *s, MDB_txn *txn, uint64_t pages, uint64_t *evicted) {
    for (;; ++*evicted) {
        uint64_t used = 0;
        int rc = used_pages(s, txn, &used);
        if (rc != 0 || used <= pages) return rc;
        rc = evict_first(s, txn);
        if (rc != 0) return rc;
    }
}

static uint64_t pages_of(const kvant_lmdb *s, size_t size) {
    return ((uint64_t)size + KVANT_LMDB_PAGE_HEADER + s->page_bytes - 1) / s->page_bytes;
}

/* Pages that records may use, so that one of `need` pages can be written: pages given back by the last two
 * commits are not free yet, nor do the gaps between records always fit. 0 = never. */
static uint64_t budget(const kvant_lmdb *s, uint64_t need) {
    uint64_t reserve = s->capacity_pages / 16 + 2 * need + 24;
    return s->capacity_pages > reserve + need ? s->capacity_pages - reserve - need : 0;
}

/* One line of LMDB's list: process, thread, number of the snapshot ("-": none). */
static int on_reader(const char *line, void *context) {
    uint64_t *oldest = context;
    int pid = 0;
    unsigned long long thread = 0, snapshot = 0;
    if (sscanf(line, "%d %llx %llu", &pid, &thread, &snapshot) == 3 && snapshot < *oldest) *oldest = snapshot;
    return 0;
}

/* When the map is full although the budget was kept, the free pages lie scattered: evicts a quarter, at least
 * what the record needs, and commits twice more so that the pages become free. */
static int evict_more(kvant_lmdb *s, uint64_t need) {
    uint64_t evicted = 0;
    for (unsigned i = 0; i < 3; i++) {
        MDB_txn *txn = NULL;
        uint64_t used = 0;
        int rc = kvant_lmdb_begin(s, 0, &txn);
        if (rc != 0) return rc;
        rc = used_pages(s, txn, &used);
        uint64_t give = used / 4 > 2 * need ? used / 4 : 2 * need;
        if (rc == 0 && i == 0) rc = evict_down_to(s, txn, used > give ? used - give : 0, &evicted);
        if (rc == MDB_NOTFOUND) rc = evicted > 0 ? 0 : MDB_MAP_FULL;
        if (rc == 0) rc = kvant_lmdb_mark(s, txn);
        rc = kvant_lmdb_end(s, txn, rc);
        if (rc != 0) return rc;
    }
    atomic_fetch_add(&s->evictions, evicted);
    return evicted > 0 ? 0 : MDB_MAP_FULL;
}

/* LMDB calls a write that was cut short EIO, whatever cut it: no room for `bytes` more on the disk or under
 * the limit on files is ENOSPC. */
static int explain_short_write(const kvant_lmdb *s, uint64_t bytes) {
    mdb_filehandle_t fd = -1;
    struct stat info;
    struct statvfs disk;
    struct rlimit limit;
    if (mdb_env_get_fd(s->env, &fd) != 0 || fstat(fd, &info) != 0) return EIO;
    if (fstatvfs(fd, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < bytes) return ENOSPC;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        (uint64_t)info.st_size + bytes > limit.rlim_cur)
        return ENOSPC;
    return EIO;
}

typedef struct effort {
    unsigned waits, rounds;
    bool held_back; /* in the end: somebody reads a snapshot so old that evicting gives no page back */
} effort;

/* After MDB_MAP_FULL: 0 = try again, MDB_MAP_FULL = give up. Most readers are gone in a moment; one that was
 * waited for in vain is not waited for again. */
static int make_way(kvant_lmdb *s, uint64_t need, effort *e) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    MDB_envinfo info;
    int dead = 0, rc = mdb_reader_check(s->env, &dead);
    if (rc == 0) rc = mdb_env_info(s->env, &info);
    if (rc != 0) return rc;
    uint64_t oldest = info.me_last_txnid;
    (void)mdb_reader_list(s->env, on_reader, &oldest);
    if (oldest < info.me_last_txnid) {
        e->held_back = oldest == atomic_load(&s->lingering) || e->waits++ == WAITS_MAX;
        if (e->held_back) atomic_store(&s->lingering, oldest);
        if (!e->held_back) (void)nanosleep(&pause, NULL);
        return e->held_back ? MDB_MAP_FULL : 0;
    }
    if (dead > 0) return 0;
    return e->rounds++ < ROUNDS_MAX ? evict_more(s, need) : MDB_MAP_FULL;
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

static int put_once(kvant_lmdb *s, const uint8_t *name, const void *bytes, size_t size) {
    MDB_txn *txn = NULL;
    MDB_val key = kvant_lmdb_value(name, KVANT_STORE_NAME_BYTES), value;
    uint64_t age = 0, evicted = 0;
    int rc = kvant_lmdb_begin(s, 0, &txn);
    if (rc != 0) return rc;
    if (mdb_get(txn, s->records, &key, &value) == 0 && value.mv_size == size &&
        memcmp(value.mv_data, bytes, size) == 0) {
        /* Whoever put it may have died before the last flush. */
        rc = mdb_env_sync(s->env, 1);
        (void)kvant_lmdb_end(s, txn, MDB_KEYEXIST);
        if (rc == 0) lmdb_touch(s, name);
        return rc;
    }
    rc = next_age(s, txn, &age);
    if (rc == 0) rc = apply_noted(s, txn, &age);
    if (rc == 0) rc = erase(s, txn, name);
    if (rc == MDB_NOTFOUND) rc = 0;
    if (rc == 0) {
        rc = evict_down_to(s, txn, budget(s, pages_of(s, size)), &evicted);
        if (rc == MDB_NOTFOUND) rc = MDB_MAP_FULL;
    }
    value = kvant_lmdb_value(bytes, size);
    if (rc == 0) rc = mdb_put(txn, s->records, &key, &value, MDB_NOOVERWRITE);
    if (rc == 0) rc = set_age(s, txn, name, age);
    rc = kvant_lmdb_end(s, txn, rc);
    if (rc == 0) atomic_fetch_add(&s->evictions, evicted);
    return rc;
}

static kvant_status lmdb_put(void *state, const uint8_t *name, const void *bytes, size_t size,
                             kvant_diag *diag) {
    kvant_lmdb *s = state;
    uint64_t need = pages_of(s, size);
    if (budget(s, need) == 0)
        return kvant_file_fail(diag, KVANT_ERROR_NO_SPACE, s->directory,
                               "a record of %zu bytes does not fit into a store of %llu", size,
                               (unsigned long long)s->capacity);
    effort e = {0};
    int rc = put_once(s, name, bytes, size);
    while (rc == MDB_MAP_FULL && (rc = make_way(s, need, &e)) == 0) rc = put_once(s, name, bytes, size);
    if (rc == EIO) rc = explain_short_write(s, (need + SPARE_PAGES) * s->page_bytes);
    if (e.held_back)
        return kvant_file_fail(diag, KVANT_ERROR_NO_SPACE, s->directory,
                               "full, and a reader holds on to what was evicted");
    if (rc == MDB_KEYEXIST)
        return kvant_file_fail(diag, KVANT_ERROR_CORRUPT, s->directory,
                               "the record under this key is damaged and cannot be replaced");
    return rc == 0 ? KVANT_OK : kvant_lmdb_failed(s, rc, "cannot put", diag);
}

static kvant_status lmdb_get(void *state, const uint8_t *name, kvant_store_use *use, void *context,
                             kvant_diag *diag) {
    kvant_lmdb *s = state;
    MDB_txn *txn = NULL;
    MDB_val key = kvant_lmdb_value(name, KVANT_STORE_NAME_BYTES), value;
    int rc = kvant_lmdb_begin(s, MDB_RDONLY, &txn);
    if (rc != 0) return kvant_lmdb_failed(s, rc, "cannot read", diag);
    rc = mdb_get(txn, s->records, &key, &value);
    kvant_status status =
        rc == 0 ? use(context, value.mv_data, value.mv_size) : kvant_lmdb_failed(s, rc, "cannot get", diag);
    (void)kvant_lmdb_end(s, txn, MDB_KEYEXIST);
    return status;
}

static kvant_status lmdb_contains(void *state, const uint8_t *name, kvant_diag *diag) {
    kvant_lmdb *s = state;
    MDB_txn *txn = NULL;
    MDB_val key = kvant_lmdb_value(name, KVANT_STORE_NAME_BYTES), value;
    int rc = kvant_lmdb_begin(s, MDB_RDONLY, &txn);
    if (rc != 0) return kvant_lmdb_failed(s, rc, "cannot read", diag);
    rc = mdb_get(txn, s->ages, &key, &value);
    (void)kvant_lmdb_end(s, txn, MDB_KEYEXIST);
    return rc == 0 ? KVANT_OK : kvant_lmdb_failed(s, rc, "cannot look", diag);
}

static kvant_status lmdb_remove(void *state, const uint8_t *name, kvant_diag *diag) {
    kvant_lmdb *s = state;
    MDB_txn *txn = NULL;
    int rc = kvant_lmdb_begin(s, 0, &txn);
    if (rc == 0) rc = kvant_lmdb_end(s, txn, erase(s, txn, name));
    return rc == 0 ? KVANT_OK : kvant_lmdb_failed(s, rc, "cannot remove", diag);
}

static kvant_status lmdb_iterate(void *state,
                                 kvant_status (*visit)(void *context, const uint8_t *name, uint64_t bytes),
                                 void *context, kvant_diag *diag) {
    kvant_lmdb *s = state;
    MDB_txn *txn = NULL;
    MDB_cursor *cursor = NULL;
    MDB_val number, name, value;
    kvant_status status = KVANT_OK;
    int rc = kvant_lmdb_begin(s, MDB_RDONLY, &txn);
    if (rc != 0) return kvant_lmdb_failed(s, rc, "cannot read", diag);
    rc = mdb_cursor_open(txn, s->order, &cursor);
    while (rc == 0 && status == KVANT_OK) {
        rc = mdb_cursor_get(cursor, &number, &name, MDB_NEXT);
        if (rc == 0) rc = mdb_get(txn, s->records, &name, &value);
        if (rc == 0) status = visit(context, name.mv_data, value.mv_size);
    }
    if (cursor != NULL) mdb_cursor_close(cursor);
    (void)kvant_lmdb_end(s, txn, MDB_KEYEXIST);
    return rc == 0 || rc == MDB_NOTFOUND ? status : kvant_lmdb_failed(s, rc, "cannot list", diag);
}

static kvant_status lmdb_usage(void *state, kvant_store_usage *usage, kvant_diag *diag) {
    kvant_lmdb *s = state;
    MDB_txn *txn = NULL;
    MDB_stat stat;
    uint64_t pages = 0;
    int rc = kvant_lmdb_begin(s, MDB_RDONLY, &txn);
    if (rc != 0) return kvant_lmdb_failed(s, rc, "cannot read", diag);
    rc = mdb_stat(txn, s->ages, &stat);
    if (rc == 0) rc = used_pages(s, txn, &pages);
    (void)kvant_lmdb_end(s, txn, MDB_KEYEXIST);
    if (rc != 0) return kvant_lmdb_failed(s, rc, "cannot read", diag);
    usage->records = stat.ms_entries;
    usage->bytes = pages * s->page_bytes;
    usage->capacity = s->capacity;
    usage->evictions = atomic_load(&s->evictions);
    return KVANT_OK;
}

static void lmdb_close(void *state) {
    kvant_lmdb *s = state;
    MDB_txn *txn = NULL;
    uint64_t age = 0;
    if (s->noted_count > 0 && s->process == getpid() && kvant_lmdb_begin(s, 0, &txn) == 0) {
        int rc = next_age(s, txn, &age);
        (void)kvant_lmdb_end(s, txn, rc == 0 ? apply_noted(s, txn, &age) : rc);
    }
    kvant_lmdb_release(s);
}

kvant_status kvant_store_open_lmdb(const char *directory, const kvant_store_options *options,
                                   kvant_store **store, kvant_diag *diag) {
    static const kvant_store_calls calls = {.struct_size = sizeof calls,
                                            .put = lmdb_put,
                                            .get = lmdb_get,
                                            .touch = lmdb_touch,
                                            .contains = lmdb_contains,
                                            .remove = lmdb_remove,
                                            .iterate = lmdb_iterate,
                                            .usage = lmdb_usage,
                                            .close = lmdb_close};
    kvant_store_options settled;
    if (directory == NULL || store == NULL)
        return kvant_file_fail(diag, KVANT_ERROR_ARGUMENT, "", "a directory and a place for the store");
    kvant_status status = kvant_store_settle(options, &settled, diag);
    if (status != KVANT_OK) return status;
    kvant_lmdb *s = NULL;
    status = kvant_lmdb_open(directory, settled.capacity, &s, diag);
    if (status == KVANT_OK) status = kvant_store_open_calls(&calls, s, &settled, store, diag);
    if (status != KVANT_OK) kvant_lmdb_release(s);
    return status;
}
