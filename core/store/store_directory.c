/* The plain-directory store: a file for each record, which is the record and nothing else.
 *
 *     DIRECTORY/ab/cd/<key, 64 hex digits>.block   a record, as it is or packed (store_pack.h); ab and cd are
 *     DIRECTORY/ab/cd/<key>.tail                   the key's first digits; changed last = used last
 *     DIRECTORY/new                                the record that is being put
 *     DIRECTORY/account                            who holds its lock (flock) may put, evict, remove:
 *
 *     account, 48 bytes, all numbers little-endian
 *     0       8      magic "KVANTDIR"
 *     8       4      version = 1
 *     12      4      1 = somebody is changing the store, or died doing so; 0 = what follows is right
 *     16      8      records
 *     24      8      bytes they take, each in whole blocks of 4096
 *     32      8      XXH3-64 of the kernel's boot id: after a restart of the machine nothing is believed
 *     40      8      XXH3-64 of the 40 bytes before
 *
 * A record is written to `new`, flushed, given its name, and its folders are flushed: at any moment a name
 * has the old file, the whole new one, or none. Where the account is not right, the files are counted
 * again. */
#include "store.h"

#include "bytes.h"
#include "data/file.h"
#include "directory_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    ACCOUNT_BYTES = 48,
    VERSION = 1,
    SCANS_MAX = 3, /* of looking for something to evict while others use it */
    FILE_MODE = 0664,
    FOLDER_MODE = 0775
};
static const char magic[] = "KVANTDIR", new_file[] = "new";

typedef struct directory_store {
    char *directory;
    int root, account;    /* descriptors */
    pthread_mutex_t lock; /* flock does not keep threads apart */
    uint64_t capacity, record_max, boot;
    kvant_found_list oldest; /* of the last scan, those not yet looked at */
    atomic_uint_fast64_t evictions;
} directory_store;

/* What the account says. */
typedef struct account {
    uint64_t records, bytes;
} account;

static kvant_status failed(const directory_store *s, const char *what, int error, kvant_diag *diag) {
    return kvant_store_system_error(diag, s->directory, what, error);
}

/* ---- Account ------------------------------------------------------------------------------------------- */

static uint64_t boot_id(void) {
    char text[64];
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? read(fd, text, sizeof text) : 0;
    if (fd >= 0) close(fd);
    return size > 0 ? XXH3_64bits(text, (size_t)size) : 0;
}

/* Returns an errno. */
static int save_account(const directory_store *s, const account *a, bool changing) {
    unsigned char bytes[ACCOUNT_BYTES] = {0};
    memcpy(bytes, magic, 8);
    kvant_put32(bytes + 8, VERSION);
    kvant_put32(bytes + 12, changing);
    kvant_put64(bytes + 16, a->records);
    kvant_put64(bytes + 24, a->bytes);
    kvant_put64(bytes + 32, s->boot);
    kvant_put64(bytes + 40, XXH3_64bits(bytes, 40));
    ssize_t size = pwrite(s->account, bytes, sizeof bytes, 0);
    return size == ACCOUNT_BYTES ? 0 : size < 0 ? errno : ENOSPC;
}

/* Counts anew, and takes away what a put left that did not end. */
static int recount(directory_store *s, account *a) {
    if (unlinkat(s->root, new_file, 0) != 0 && errno != ENOENT) return errno;
    int error = kvant_scan(s->root, &s->oldest);
    *a = (account){0};
    if (error != 0) return error;
    a->records = s->oldest.count;
    for (size_t i = 0; i < s->oldest.count; i++) a->bytes += kvant_file_room(s->oldest.files[i].bytes);
    return save_account(s, a, false);
}

static int load_account(directory_store *s, account *a) {
    unsigned char bytes[ACCOUNT_BYTES];
    if (pread(s->account, bytes, sizeof bytes, 0) != ACCOUNT_BYTES || memcmp(bytes, magic, 8) != 0 ||
        kvant_get32(bytes + 8) != VERSION || kvant_get32(bytes + 12) != 0 ||
        kvant_get64(bytes + 32) != s->boot || kvant_get64(bytes + 40) != XXH3_64bits(bytes, 40))
        return recount(s, a);
    *a = (account){.records = kvant_get64(bytes + 16), .bytes = kvant_get64(bytes + 24)};
    return 0;
}

/* Alone in the store, among threads and processes. Returns an errno; unlock only after 0. */
static int lock_store(directory_store *s, account *a) {
    (void)pthread_mutex_lock(&s->lock);
    int error = 0;
    while (flock(s->account, LOCK_EX) != 0)
        if (errno != EINTR) {
            error = errno;
            break;
        }
    if (error == 0) {
        error = load_account(s, a);
        if (error != 0) (void)flock(s->account, LOCK_UN);
    }
    if (error != 0) (void)pthread_mutex_unlock(&s->lock);
    return error;
}

static void unlock_store(directory_store *s) {
    (void)flock(s->account, LOCK_UN);
    (void)pthread_mutex_unlock(&s->lock);
}

/* ---- Eviction ------------------------------------------------------------------------------------------ */

static bool same_time(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

/* Folders that are empty now go too, so that a scan does not walk through those of all that ever was. */
static void drop_folders(const directory_store *s, const char *path) {
    char inner[6] = {path[0], path[1], '/', path[3], path[4], '\0'}, outer[3] = {path[0], path[1], '\0'};
    if (unlinkat(s->root, inner, AT_REMOVEDIR) == 0) (void)unlinkat(s->root, outer, AT_REMOVEDIR);
}

/* A file is gone. */
static void forget(account *a, const struct stat *info) {
    uint64_t room = kvant_file_room((uint64_t)info->st_size);
    a->bytes -= room < a->bytes ? room : a->bytes;
    a->records -= a->records > 0;
}

/* Removes what was used longest ago until `need` bytes more fit. `keep` stays. The account counts as changing
 * before the first file goes. Returns an errno. */
static int make_room(directory_store *s, account *a, uint64_t need, const uint8_t *keep) {
    char path[KVANT_FILE_NAME_BYTES];
    struct stat info;
    for (unsigned scans = 0; a->bytes > s->capacity || need > s->capacity - a->bytes;) {
        if (s->oldest.next >= s->oldest.count) {
            int error = scans++ < SCANS_MAX ? kvant_scan(s->root, &s->oldest) : ENOSPC;
            if (error != 0) return error;
            if (s->oldest.count == 0) return ENOSPC;
        }
        const kvant_found *found = &s->oldest.files[s->oldest.next++];
        kvant_file_name(found->name, path);
        if (memcmp(found->name, keep, sizeof found->name) == 0) continue;
        if (fstatat(s->root, path, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (!same_time(&info.st_mtim, &found->used)) continue; /* used since: no longer the oldest */
        if (unlinkat(s->root, path, 0) != 0) return errno;
        drop_folders(s, path);
        forget(a, &info);
        atomic_fetch_add(&s->evictions, 1);
    }
    return 0;
}

/* ---- Files --------------------------------------------------------------------------------------------- */

static void use_now(int fd) {
    struct timespec now, times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
    if (clock_gettime(CLOCK_REALTIME, &now) == 0) times[1] = now; /* finer than the kernel's own stamp */
    (void)futimens(fd, times);
}

static int write_new(const directory_store *s, const void *bytes, size_t size) {
    const char *at = bytes;
    if (unlinkat(s->root, new_file, 0) != 0 && errno != ENOENT) return errno;
    int fd = openat(s->root, new_file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, FILE_MODE);
    if (fd < 0) return errno;
    int error = 0;
    while (size > 0 && error == 0) {
        ssize_t n = write(fd, at, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            error = n < 0 ? errno : EIO;
        else
            at += n, size -= (size_t)n;
    }
    use_now(fd);
    if (error == 0 && fsync(fd) != 0) error = errno;
    if (close(fd) != 0 && error == 0) error = errno;
    return error;
}

/* A folder that everybody may write to is none of ours. */
static int open_folder(int above, const char *name) {
    struct stat info;
    int fd = openat(above, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return -1;
    if (fstat(fd, &info) == 0 && (info.st_mode & S_IWOTH) == 0) return fd;
    close(fd);
    errno = EPERM;
    return -1;
}

/* The two folders of a path, made where they are missing. */
typedef struct folders {
    int outer, inner;
} folders;

static int open_folders(const directory_store *s, const char *path, bool make, folders *f) {
    char outer[3] = {path[0], path[1], '\0'}, inner[3] = {path[3], path[4], '\0'};
    *f = (folders){-1, -1};
    if (make && mkdirat(s->root, outer, FOLDER_MODE) != 0 && errno != EEXIST) return errno;
    f->outer = open_folder(s->root, outer);
    if (f->outer < 0) return errno;
    if (make && mkdirat(f->outer, inner, FOLDER_MODE) != 0 && errno != EEXIST) return errno;
    f->inner = open_folder(f->outer, inner);
    return f->inner < 0 ? errno : 0;
}

static void close_folders(const folders *f) {
    if (f->inner >= 0) close(f->inner);
    if (f->outer >= 0) close(f->outer);
}

/* The folders may be new, even if it was somebody else who made them and died: all are flushed. */
static int flush_folders(const directory_store *s, const folders *f) {
    const int all[] = {f->inner, f->outer, s->root};
    for (unsigned i = 0; i < 3; i++)
        if (fsync(all[i]) != 0 && errno != EINVAL) return errno; /* EINVAL: a file system that flushes none */
    return 0;
}

/* The file's contents in new memory. Returns an errno; ENOENT = there is none. */
static int read_file(const directory_store *s, const char *path, void **bytes, size_t *size) {
    folders f;
    struct stat info;
    int fd = -1, error = open_folders(s, path, false, &f);
    *bytes = NULL;
    if (error == 0) {
        fd = openat(f.inner, path + 6, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &info) != 0) error = errno;
    }
    if (error == 0 && (!S_ISREG(info.st_mode) || (info.st_mode & S_IWOTH) != 0)) error = EPERM;
    if (error == 0 && (uint64_t)info.st_size > s->record_max) error = EFBIG;
    if (error == 0) {
        *size = 0;
        *bytes = malloc((size_t)info.st_size + 1);
        if (*bytes == NULL) error = ENOMEM;
    }
    while (error == 0 && *size < (size_t)info.st_size) {
        ssize_t n = read(fd, (char *)*bytes + *size, (size_t)info.st_size - *size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) error = errno;
        if (n <= 0) break; /* cut off meanwhile: what is there is looked at */
        *size += (size_t)n;
    }
    if (fd >= 0) close(fd);
    close_folders(&f);
    if (error != 0) {
        free(*bytes);
        *bytes = NULL;
    }
    return error;
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

static void directory_touch(void *state, const uint8_t *name) {
    const directory_store *s = state;
    char path[KVANT_FILE_NAME_BYTES];
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}};
    kvant_file_name(name, path);
    if (clock_gettime(CLOCK_REALTIME, &times[1]) != 0) return;
    (void)utimensat(s->root, path, times, AT_SYMLINK_NOFOLLOW);
}

/* The very bytes are there already: then they only have to be on the disk. 0 = done, -1 = not the same. */
static int put_again(const directory_store *s, const char *path, const void *bytes, size_t size) {
    void *there = NULL;
    size_t there_size = 0;
    folders f = {-1, -1};
    if (read_file(s, path, &there, &there_size) != 0) return -1;
    bool same = there_size == size && memcmp(there, bytes, size) == 0;
    free(there);
    if (!same) return -1;
    int fd = openat(s->root, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0) use_now(fd);
    int error = fd < 0 || fsync(fd) != 0 ? errno : open_folders(s, path, false, &f);
    if (fd >= 0) close(fd);
    if (error == 0) error = flush_folders(s, &f);
    close_folders(&f);
    return error;
}

static int put_file(directory_store *s, account *a, const char *path, const void *bytes, size_t size,
                    uint64_t old_room, bool is_new) {
    folders f;
    int error = write_new(s, bytes, size);
    if (error == 0) {
        error = open_folders(s, path, true, &f);
        if (error == 0 && renameat(s->root, new_file, f.inner, path + 6) != 0) error = errno;
        if (error == 0) {
            a->bytes += kvant_file_room(size) - old_room;
            a->records += is_new;
            error = flush_folders(s, &f);
        }
        close_folders(&f);
    }
    if (error != 0) (void)unlinkat(s->root, new_file, 0);
    return error;
}

static int put_locked(directory_store *s, account *a, const uint8_t *name, const void *bytes, size_t size) {
    char path[KVANT_FILE_NAME_BYTES];
    struct stat info;
    kvant_file_name(name, path);
    int error = put_again(s, path, bytes, size);
    if (error == 0) return 0;
    bool is_new = fstatat(s->root, path, &info, AT_SYMLINK_NOFOLLOW) != 0;
    uint64_t room = kvant_file_room(size), old_room = is_new ? 0 : kvant_file_room((uint64_t)info.st_size);
    if (room > s->capacity) return ENOSPC;
    error = save_account(s, a, true);
    if (error == 0) error = make_room(s, a, room > old_room ? room - old_room : 0, name);
    if (error == 0) error = put_file(s, a, path, bytes, size, old_room, is_new);
    int saved = save_account(s, a, false);
    return error != 0 ? error : saved;
}

static kvant_status directory_put(void *state, const uint8_t *name, const void *bytes, size_t size,
                                  kvant_diag *diag) {
    directory_store *s = state;
    account a;
    int error = lock_store(s, &a);
    if (error != 0) return failed(s, "cannot lock", error, diag);
    error = put_locked(s, &a, name, bytes, size);
    unlock_store(s);
    return error == 0 ? KVANT_OK : failed(s, "cannot put", error, diag);
}

static kvant_status directory_get(void *state, const uint8_t *name, kvant_store_use *use, void *context,
                                  kvant_diag *diag) {
    const directory_store *s = state;
    char path[KVANT_FILE_NAME_BYTES];
    void *bytes = NULL;
    size_t size = 0;
    kvant_file_name(name, path);
    int error = read_file(s, path, &bytes, &size);
    if (error == ENOENT) return kvant_file_fail(diag, KVANT_ERROR_MISSING, s->directory, "no %s", path);
    if (error != 0) {
        failed(s, path, error, diag);
        return KVANT_ERROR_IO;
    }
    kvant_status status = use(context, bytes, size);
    free(bytes);
    return status;
}

static kvant_status directory_contains(void *state, const uint8_t *name, kvant_diag *diag) {
    const directory_store *s = state;
    char path[KVANT_FILE_NAME_BYTES];
    struct stat info;
    kvant_file_name(name, path);
    if (fstatat(s->root, path, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(info.st_mode)) return KVANT_OK;
    return kvant_file_fail(diag, KVANT_ERROR_MISSING, s->directory, "no %s", path);
}

static kvant_status directory_remove(void *state, const uint8_t *name, kvant_diag *diag) {
    directory_store *s = state;
    char path[KVANT_FILE_NAME_BYTES];
    struct stat info;
    account a;
    folders f = {-1, -1};
    kvant_file_name(name, path);
    int error = lock_store(s, &a);
    if (error != 0) return failed(s, "cannot lock", error, diag);
    error = open_folders(s, path, false, &f);
    if (error == 0 && fstatat(f.inner, path + 6, &info, AT_SYMLINK_NOFOLLOW) != 0) error = errno;
    if (error == 0) error = save_account(s, &a, true);
    if (error == 0) {
        if (unlinkat(f.inner, path + 6, 0) != 0 || (fsync(f.inner) != 0 && errno != EINVAL)) error = errno;
        if (error == 0) {
            forget(&a, &info);
            drop_folders(s, path);
            error = save_account(s, &a, false);
        }
    }
    close_folders(&f);
    unlock_store(s);
    if (error == ENOENT) return kvant_file_fail(diag, KVANT_ERROR_MISSING, s->directory, "no %s", path);
    return error == 0 ? KVANT_OK : failed(s, "cannot remove", error, diag);
}

static kvant_status
directory_iterate(void *state, kvant_status (*visit)(void *context, const uint8_t *name, uint64_t bytes),
                  void *context, kvant_diag *diag) {
    const directory_store *s = state;
    kvant_found_list list = {0};
    int error = kvant_scan(s->root, &list);
    if (error != 0) return failed(s, "cannot list", error, diag);
    kvant_status status = KVANT_OK;
    for (size_t i = 0; i < list.count && status == KVANT_OK; i++)
        status = visit(context, list.files[i].name, list.files[i].bytes);
    kvant_found_free(&list);
    return status;
}

static kvant_status directory_usage(void *state, kvant_store_usage *usage, kvant_diag *diag) {
    directory_store *s = state;
    account a;
    int error = lock_store(s, &a);
    if (error != 0) return failed(s, "cannot lock", error, diag);
    unlock_store(s);
    usage->records = a.records;
    usage->bytes = a.bytes;
    usage->capacity = s->capacity;
    usage->evictions = atomic_load(&s->evictions);
    return KVANT_OK;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static void directory_close(void *state) {
    directory_store *s = state;
    if (s->account >= 0) close(s->account);
    if (s->root >= 0) close(s->root);
    kvant_found_free(&s->oldest);
    (void)pthread_mutex_destroy(&s->lock);
    free(s->directory);
    free(s);
}

static kvant_status open_account(directory_store *s, kvant_diag *diag) {
    unsigned char bytes[ACCOUNT_BYTES];
    struct stat info;
    account a;
    s->account =
        openat(s->root, "account", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, FILE_MODE);
    if (s->account < 0) return failed(s, "account", errno, diag);
    if (fstat(s->account, &info) != 0 || !S_ISREG(info.st_mode) || (info.st_mode & S_IWOTH) != 0)
        return kvant_file_fail(diag, KVANT_ERROR_IO, s->directory,
                               "account: not a regular file, or everybody may write to it; chmod o-w it");
    if (pread(s->account, bytes, sizeof bytes, 0) == ACCOUNT_BYTES && memcmp(bytes, magic, 8) == 0 &&
        kvant_get64(bytes + 40) == XXH3_64bits(bytes, 40) && kvant_get32(bytes + 8) != VERSION)
        return kvant_file_fail(diag, KVANT_ERROR_VERSION, s->directory,
                               "a store of another version; remove the directory to start anew");
    int error = lock_store(s, &a);
    if (error != 0) return failed(s, "cannot count its records", error, diag);
    unlock_store(s);
    return KVANT_OK;
}

static kvant_status open_root(directory_store *s, kvant_diag *diag) {
    kvant_status status = kvant_store_make_directory(s->directory, diag);
    if (status != KVANT_OK) return status;
    s->root = open(s->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->root < 0) return failed(s, "cannot open", errno, diag);
    if (faccessat(s->root, "data.mdb", F_OK, 0) == 0)
        return kvant_file_fail(diag, KVANT_ERROR_MISMATCH, s->directory, "holds a store of LMDB's kind");
    return open_account(s, diag);
}

kvant_status kvant_store_open_directory(const char *directory, const kvant_store_options *options,
                                        kvant_store **store, kvant_diag *diag) {
    static const kvant_store_calls calls = {.struct_size = sizeof calls,
                                            .put = directory_put,
                                            .get = directory_get,
                                            .touch = directory_touch,
                                            .contains = directory_contains,
                                            .remove = directory_remove,
                                            .iterate = directory_iterate,
                                            .usage = directory_usage,
                                            .close = directory_close};
    kvant_store_options settled;
    if (directory == NULL || store == NULL)
        return kvant_file_fail(diag, KVANT_ERROR_ARGUMENT, "", "a directory and a place for the store");
    kvant_status status = kvant_store_settle(options, &settled, diag);
    if (status != KVANT_OK) return status;
    directory_store *s = calloc(1, sizeof *s);
    if (s == NULL) return kvant_file_fail(diag, KVANT_ERROR_MEMORY, directory, "out of memory");
    s->root = s->account = -1;
    s->capacity = settled.capacity;
    s->record_max = settled.record_max;
    s->boot = boot_id();
    (void)pthread_mutex_init(&s->lock, NULL);
    s->directory = strdup(directory);
    status = s->directory == NULL ? kvant_file_fail(diag, KVANT_ERROR_MEMORY, directory, "out of memory")
                                  : open_root(s, diag);
    if (status == KVANT_OK) status = kvant_store_open_calls(&calls, s, &settled, store, diag);
    if (status != KVANT_OK) directory_close(s);
    return status;
}
