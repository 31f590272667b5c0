/* LMDB's file under the embedded store: damaged and cut off pages, readers that died or linger, a map that
 * another process enlarged, a directory opened twice. */
#include "support/data.h"
#include "support/scratch.h"
#include "support/store_records.h"
#include "support/test.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CAPACITY = 1 << 20, PAGE = 4096 };

static kvant_diag diag = {.struct_size = sizeof diag};

/* ---- Damage -------------------------------------------------------------------------------------------- */

enum { SMALL = 120, LARGE = 12, ALL = SMALL + LARGE };

static test_record nth(uint32_t i) {
    return test_record_make(i, &(test_record_wish){.payload = i < SMALL ? 20 + i : 9000, .tokens = 4});
}

/* A store with trees of more than one level, pages of every kind and a list of free ones. */
static void build(const char *directory) {
    kvant_store *store = test_store_open(TEST_STORE_LMDB, directory, 8 * CAPACITY, 0);
    for (uint32_t i = 0; i < ALL; i++) {
        test_record r = nth(i);
        test_store_put(store, &r);
        test_record_free(&r);
    }
    for (uint32_t i = 0; i < ALL; i += 9) {
        test_record r = nth(i);
        assert_int_equal(kvant_store_remove(store, &r.key, NULL), KVANT_OK);
        test_record_free(&r);
    }
    kvant_store_close(store);
}

typedef struct damage {
    const char *file, *directory;
    const kvant_test_bytes *good;
    struct progress {
        uint64_t byte, refused, opened, found, missed, not_put;
        unsigned bit;
    } * progress; /* shared */
} damage;

static const test_record_wish newcomer = {.payload = 9000, .scheme = 3};

/* Opens and does a bit of everything; wrong bytes abort. */
static void try_all(const damage *d) {
    kvant_store *store = NULL;
    kvant_store_options options = {.struct_size = sizeof options, .capacity = 8 * CAPACITY};
    kvant_diag why = {.struct_size = sizeof why};
    kvant_status status = kvant_store_open_lmdb(d->directory, &options, &store, &why);
    if (status != KVANT_OK) {
        kvant_expect(status == KVANT_ERROR_CORRUPT || status == KVANT_ERROR_VERSION);
        kvant_expect(strstr(why.message, "remove the directory") != NULL);
        d->progress->refused++;
        return;
    }
    d->progress->opened++;
    for (uint32_t i = 0; i < ALL; i += 5) {
        test_record r = nth(i);
        uint32_t reason = test_store_ask(store, &r);
        d->progress->found += reason == KVANT_STORE_FOUND;
        d->progress->missed += reason != KVANT_STORE_FOUND && i % 9 != 0;
        test_record_free(&r);
    }
    for (uint32_t i = 0; i < 4; i++) {
        test_record r = test_record_make(i, &newcomer);
        if (kvant_store_put(store, &r.key, r.bytes, r.size, NULL) != KVANT_OK) d->progress->not_put++;
        (void)test_store_ask(store, &r);
        if (i == 2) (void)kvant_store_remove(store, &r.key, NULL);
        test_record_free(&r);
    }
    for (uint32_t i = SMALL - 4; i < SMALL + 4; i++) {
        test_record r = nth(i);
        (void)kvant_store_remove(store, &r.key, NULL);
        test_record_free(&r);
    }
    kvant_store_close(store);
}

static void restore(const damage *d, size_t size) {
    kvant_scratch_write(d->file, d->good->bytes, size);
}

static void flip_all(void *context) {
    const damage *d = context;
    uint64_t seed = 11;
    size_t pages = d->good->size / PAGE;
    for (size_t page = 0; page < pages; page++)
        for (uint32_t i = 0; i < 24; i++) {
            uint64_t random = kvant_test_random(&seed);
            /* Headers, offsets and the nodes at the end are where it matters. */
            size_t at = page * PAGE + (i < 16   ? i
                                       : i < 20 ? 16 + random % 64
                                                : PAGE - 1 - random % (i * 100u));
            d->progress->byte = at;
            d->progress->bit = (unsigned)(random >> 32) % 8;
            d->good->bytes[at] ^= (unsigned char)(1u << d->progress->bit);
            restore(d, d->good->size);
            d->good->bytes[at] ^= (unsigned char)(1u << d->progress->bit);
            try_all(d);
        }
}

static void cut_all(void *context) {
    const damage *d = context;
    for (size_t size = 0; size < d->good->size; size += size < 3 * PAGE ? 1111 : PAGE + 512) {
        d->progress->byte = size;
        restore(d, size);
        try_all(d);
    }
}

static struct progress run_damage(void (*body)(void *context)) {
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    build(directory);
    char *file = kvant_scratch_path(directory, "data.mdb");
    kvant_test_bytes good = kvant_test_read(file);
    struct progress *progress =
        mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(progress != MAP_FAILED);
    assert_true(good.size / PAGE > 30);
    damage d = {file, directory, &good, progress};
    restore(&d, good.size);
    try_all(&d); /* undamaged, here */
    assert_int_equal(progress->opened, 1);
    assert_int_equal(progress->missed, 0);
    assert_int_equal(progress->not_put, 0);
    int status = kvant_in_child(body, &d);
    if (status != 0)
        fail_msg("status %d at byte %llu (page %llu), bit %u", status, (unsigned long long)progress->byte,
                 (unsigned long long)progress->byte / PAGE, progress->bit);
    struct progress result = *progress;
    (void)munmap(progress, sizeof *progress);
    free(good.bytes);
    free(file);
    free(directory);
    kvant_scratch_remove(folder);
    return result;
}

static void flipped_bits_of_any_page(void **state) {
    (void)state;
    struct progress p = run_damage(flip_all);
    assert_true(p.refused > 300);
    assert_true(p.opened > 300);
    assert_true(p.missed > 20);
    assert_true(p.found > p.missed);
}

static void cut_off_anywhere(void **state) {
    (void)state;
    struct progress p = run_damage(cut_all);
    assert_true(p.refused > 20);
    assert_true(p.opened >= 1 + 8); /* shorter than two pages is as good as new */
}

static void something_else(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    kvant_store_close(test_store_open(TEST_STORE_LMDB, directory, CAPACITY, 0));
    static const char *const names[] = {"data.mdb", "lock.mdb", "open.lock"};
    kvant_store *store = NULL;
    for (uint32_t i = 0; i < 3; i++) {
        char *file = kvant_scratch_path(directory, names[i]);
        assert_int_equal(chmod(file, 0666), 0);
        assert_int_equal(kvant_store_open_lmdb(directory, NULL, &store, &diag), KVANT_ERROR_IO);
        kvant_assert_contains(diag.message, names[i]);
        assert_int_equal(chmod(file, 0644), 0);
        free(file);
    }
    char *file = kvant_scratch_path(directory, "data.mdb"), text[3 * PAGE];
    memset(text, 'x', sizeof text);
    kvant_scratch_write(file, text, sizeof text);
    assert_int_equal(kvant_store_open_lmdb(directory, NULL, &store, &diag), KVANT_ERROR_CORRUPT);
    kvant_assert_contains(diag.message, "data.mdb is damaged in page 0");
    assert_null(store);
    assert_int_equal(unlink(file), 0);
    assert_int_equal(mkfifo(file, 0644), 0);
    assert_int_equal(kvant_store_open_lmdb(directory, NULL, &store, &diag), KVANT_ERROR_IO);
    free(file);
    free(directory);
    kvant_scratch_remove(folder);
}

/* ---- Processes ----------------------------------------------------------------------------------------- */

static void twice_in_a_process(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    kvant_store *store = test_store_open(TEST_STORE_LMDB, directory, CAPACITY, 0), *second = NULL;
    test_record r = nth(1);
    test_store_put(store, &r);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(kvant_store_open_lmdb(directory, NULL, &second, &diag), KVANT_ERROR_UNSUPPORTED);
        kvant_assert_contains(diag.message, "already open in this process");
    }
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
    kvant_store_close(store);
    for (uint32_t i = 0; i < 300; i++)
        kvant_store_close(test_store_open(TEST_STORE_LMDB, directory, CAPACITY, 0));
    test_record_free(&r);
    free(directory);
    kvant_scratch_remove(folder);
}

/* A child of a fork that does nothing, or that opens the store itself, is not in the way. */
static void after_a_fork(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    kvant_store *store = test_store_open(TEST_STORE_LMDB, directory, CAPACITY, 0);
    test_record r = nth(1);
    test_store_put(store, &r);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        kvant_store *own = test_store_open(TEST_STORE_LMDB, directory, CAPACITY, 0);
        (void)test_store_ask(own, &r);
        (void)alarm(60); /* whatever becomes of the parent */
        (void)pause();
        _exit(0);
    }
    kvant_store_close(store);
    store = test_store_open(TEST_STORE_LMDB, directory, CAPACITY, 0);
    assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    kvant_store_close(store);
    test_record_free(&r);
    free(directory);
    kvant_scratch_remove(folder);
}

typedef struct reader {
    const char *directory;
    int ready[2], go[2]; /* pipes */
} reader;

/* Stays inside of a get until told to go on, or killed. */
static kvant_status linger(void *context, const void *record, size_t size) {
    const reader *r = context;
    char byte = 1;
    (void)record, (void)size;
    if (write(r->ready[1], &byte, 1) != 1 || read(r->go[0], &byte, 1) != 1) _exit(3);
    return KVANT_OK;
}

static pid_t start_reader(reader *r) {
    assert_true(pipe(r->ready) == 0 && pipe(r->go) == 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)alarm(60);
        kvant_store *store = test_store_open(TEST_STORE_LMDB, r->directory, CAPACITY, 0);
        test_record record = nth(0);
        if (kvant_store_get(store, &record.key, linger, r, NULL, NULL) != KVANT_OK) _exit(4);
        kvant_store_close(store);
        _exit(0);
    }
    char byte;
    assert_int_equal(read(r->ready[0], &byte, 1), 1);
    return child;
}

static uint32_t put_many(kvant_store *store, uint32_t first, uint32_t count) {
    uint32_t refused = 0;
    for (uint32_t i = first; i < first + count; i++) {
        test_record r = test_record_make(i, &(test_record_wish){.payload = 15000});
        kvant_status status = kvant_store_put(store, &r.key, r.bytes, r.size, &diag);
        assert_true(status == KVANT_OK || status == KVANT_ERROR_NO_SPACE);
        refused += status != KVANT_OK;
        if (status == KVANT_OK) assert_int_equal(test_store_ask(store, &r), KVANT_STORE_FOUND);
        test_record_free(&r);
    }
    return refused;
}

/* A reader that was killed inside of a get holds back pages no longer than until somebody needs them. */
static void dead_reader(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    kvant_store *store = test_store_open(TEST_STORE_LMDB, directory, CAPACITY, 0);
    test_record r = nth(0);
    test_store_put(store, &r);
    reader away = {.directory = directory};
    pid_t child = start_reader(&away);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(put_many(store, 1000, 60), 0);
    assert_int_equal(test_store_count(store, KVANT_STORE_FULL), 0);
    kvant_store_close(store);
    test_record_free(&r);
    free(directory);
    kvant_scratch_remove(folder);
}

/* One that lives and lingers: the map fills up, puts are refused and counted, what is there stays; once it
 * goes on, puts work again. */
static void lingering_reader(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    kvant_store *store = test_store_open(TEST_STORE_LMDB, directory, CAPACITY, 0);
    test_record r = nth(0);
    test_store_put(store, &r);
    reader slow = {.directory = directory};
    pid_t child = start_reader(&slow);
    uint32_t refused = put_many(store, 1000, 40);
    assert_in_range(refused, 10, 39);
    kvant_assert_contains(diag.message, "reader");
    kvant_store_stats stats = test_store_stats(store);
    assert_int_equal(stats.reasons[KVANT_STORE_FULL], refused);
    assert_true(stats.records >= 5);
    int status = -1;
    assert_int_equal(write(slow.go[1], "x", 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(put_many(store, 2000, 40), 0);
    kvant_store_close(store);
    test_record_free(&r);
    free(directory);
    kvant_scratch_remove(folder);
}

/* Opens with eight times the capacity and uses it. */
static void enlarge(void *context) {
    kvant_store *store = test_store_open(TEST_STORE_LMDB, context, 8 * CAPACITY, 0);
    if (put_many(store, 3000, 60) != 0) _exit(5);
    kvant_store_close(store);
}

static void enlarged_by_another(void **state) {
    (void)state;
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    kvant_store *store = test_store_open(TEST_STORE_LMDB, directory, CAPACITY, 0);
    assert_int_equal(put_many(store, 1, 3), 0);
    assert_int_equal(kvant_in_child(enlarge, directory), 0);
    test_record theirs = test_record_make(3030, &(test_record_wish){.payload = 15000});
    assert_int_equal(test_store_ask(store, &theirs), KVANT_STORE_FOUND);
    assert_int_equal(test_store_stats(store).records, 63);
    assert_int_equal(put_many(store, 100, 5), 0);
    assert_true(test_store_stats(store).bytes <= CAPACITY);
    kvant_store_close(store);
    test_record_free(&theirs);
    free(directory);
    kvant_scratch_remove(folder);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(flipped_bits_of_any_page),
        cmocka_unit_test(cut_off_anywhere),
        cmocka_unit_test(something_else),
        cmocka_unit_test(twice_in_a_process),
        cmocka_unit_test(after_a_fork),
        cmocka_unit_test(dead_reader),
        cmocka_unit_test(lingering_reader),
        cmocka_unit_test(enlarged_by_another),
    };
    test_store_quick_disk();
    return kvant_run_tests(tests, argc, argv);
}
