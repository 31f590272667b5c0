/* A disk that is full in earnest: a small file system in memory where the machine lets one be mounted, and a
 * limit on the size of files everywhere. Refusals are clean and counted, nothing acknowledged is lost. */
#include "support/scratch.h"
#include "support/store_records.h"
#include "support/test.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LIMIT = 400 << 10, RECORDS = 40, CANNOT_MOUNT = 77 };

typedef struct scene {
    uint32_t kind;
    const char *folder;
} scene;

static test_record nth(uint32_t i) {
    return test_record_make(i, &(test_record_wish){.payload = 200 + i % 3 * 6000, .random = 1});
}

static bool have(kvant_store *store, uint32_t i) {
    test_record r = nth(i);
    uint32_t reason = test_store_ask(store, &r);
    kvant_expect(reason == KVANT_STORE_FOUND || reason == KVANT_STORE_ABSENT);
    test_record_free(&r);
    return reason == KVANT_STORE_FOUND;
}

/* Puts until it is full and beyond; closes, opens, looks. */
static void fill_up(const scene *s) {
    char *directory = kvant_scratch_path(s->folder, "store");
    kvant_store *store = test_store_open(s->kind, directory, 0, 0);
    kvant_diag diag = {.struct_size = sizeof diag};
    bool there[RECORDS];
    uint32_t taken = 0, refused = 0;
    for (uint32_t i = 0; i < RECORDS; i++) {
        test_record r = nth(i);
        kvant_status status = kvant_store_put(store, &r.key, r.bytes, r.size, &diag);
        kvant_expect(status == KVANT_OK || status == KVANT_ERROR_NO_SPACE);
        there[i] = status == KVANT_OK;
        taken += there[i];
        refused += !there[i];
        kvant_expect(test_store_ask(store, &r) == (there[i] ? KVANT_STORE_FOUND : KVANT_STORE_ABSENT));
        test_record_free(&r);
    }
    kvant_expect(taken >= 10 && refused >= 3);
    kvant_expect(test_store_count(store, KVANT_STORE_FULL) == refused);
    kvant_expect(test_store_stats(store).evictions == 0);
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < RECORDS; i++) kvant_expect(have(store, i) == there[i]);
        kvant_expect(test_store_stats(store).records == taken);
        kvant_store_close(store);
        store = test_store_open(s->kind, directory, 0, 0);
    }
    kvant_store_close(store);
    free(directory);
}

static bool say(const char *file, const char *text) {
    int fd = open(file, O_WRONLY);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return done;
}

/* A small disk in `folder`, for this process only. Who is not root gets a name space where he is root. */
static void mount_disk(const char *folder, const char *size) {
    char map[64];
    unsigned user = getuid(), group = getgid();
    if (unshare(CLONE_NEWNS) != 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) _exit(CANNOT_MOUNT);
        (void)snprintf(map, sizeof map, "0 %u 1", user);
        if (!say("/proc/self/uid_map", map) || !say("/proc/self/setgroups", "deny")) _exit(CANNOT_MOUNT);
        (void)snprintf(map, sizeof map, "0 %u 1", group);
        if (!say("/proc/self/gid_map", map)) _exit(CANNOT_MOUNT);
    }
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) _exit(CANNOT_MOUNT);
    if (mount("kvant", folder, "tmpfs", 0, size) != 0) _exit(CANNOT_MOUNT);
    kvant_expect(chmod(folder, 0755) == 0);
}

static void on_a_small_disk(void *context) {
    const scene *s = context;
    mount_disk(s->folder, "size=768k");
    fill_up(s);
}

/* Not a byte is left before the store is made: an error, not a signal. */
static void on_a_full_disk(void *context) {
    const scene *s = context;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_store *store = NULL;
    mount_disk(s->folder, "size=256k");
    for (uint32_t left = 0; left < 40; left++) { /* pages of 4096 bytes that are left */
        char *filler = kvant_scratch_path(s->folder, "filler"),
             *directory = kvant_scratch_path(s->folder, "store");
        static const char page[4096] = {1};
        int fd = open(filler, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        off_t size = 0;
        while (write(fd, page, sizeof page) == sizeof page) size += (off_t)sizeof page;
        kvant_expect(ftruncate(fd, size > 4096 * (off_t)left ? size - 4096 * (off_t)left : 0) == 0);
        close(fd);
        kvant_status status = test_store_try(s->kind, directory, NULL, &store, &diag);
        if (status == KVANT_OK) {
            test_record r = nth(0);
            status = kvant_store_put(store, &r.key, r.bytes, r.size, &diag);
            kvant_expect(test_store_ask(store, &r) ==
                         (status == KVANT_OK ? KVANT_STORE_FOUND : KVANT_STORE_ABSENT));
            kvant_store_close(store);
            test_record_free(&r);
        }
        kvant_expect(status == KVANT_OK || status == KVANT_ERROR_NO_SPACE);
        kvant_expect(status != KVANT_OK || left > 0);
        kvant_expect(status == KVANT_OK || left < 38);
        kvant_expect(unlink(filler) == 0);
        free(filler);
        free(directory);
    }
}

static void with_a_limit(void *context) {
    const scene *s = context;
    struct rlimit limit = {.rlim_cur = LIMIT, .rlim_max = LIMIT};
    (void)signal(SIGXFSZ, SIG_IGN);
    kvant_expect(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    fill_up(s);
}

static void run(void (*body)(void *context), uint32_t kind) {
    char *folder = kvant_scratch_make();
    scene s = {kind, folder};
    int status = kvant_in_child(body, &s);
    kvant_scratch_remove(folder);
    if (status == CANNOT_MOUNT) skip();
    assert_int_equal(status, 0);
}

static void small_disk(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) run(on_a_small_disk, kind);
}

static void full_disk(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) run(on_a_full_disk, kind);
}

/* Records are smaller than the limit; LMDB's one file is not. */
static void limit_on_files(void **state) {
    (void)state;
    run(with_a_limit, TEST_STORE_LMDB);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(small_disk), cmocka_unit_test(full_disk),
                                              cmocka_unit_test(limit_on_files)};
    return kvant_run_tests(tests, argc, argv);
}
