/* A process that dies at any system call which changes a file, and a disk that fails at any of them: what was
 * acknowledged is there, everything that can be read is right, and the store goes on. */
#include "support/scratch.h"
#include "support/store_records.h"
#include "support/syscall_faults.h"
#include "support/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { RECORDS = 8, REMOVED = 1, CAPACITY = 1 << 20 };

/* Shared with the child. */
typedef struct shared {
    uint32_t acknowledged[RECORDS]; /* 1 = put returned KVANT_OK, 2 = remove did */
    uint32_t refused[RECORDS];      /* the status */
    uint32_t tried_remove;
} shared;

typedef struct scene {
    uint32_t kind, pack;
    uint32_t first; /* records [0, first) are put before the counting */
    uint64_t capacity;
    uint32_t payload[RECORDS];
    const char *directory;
    test_record *records;
    shared *shared;
} scene;

static void put_one(const scene *s, kvant_store *store, uint32_t i) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status status =
        kvant_store_put(store, &s->records[i].key, s->records[i].bytes, s->records[i].size, &diag);
    if (status == KVANT_OK)
        s->shared->acknowledged[i] = 1;
    else
        s->shared->refused[i] = (uint32_t)-status;
}

/* What the child does: opens, puts, reads, removes one, puts, closes. */
static void work(void *context) {
    const scene *s = context;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_store *store = NULL;
    kvant_store_options options = {.struct_size = sizeof options, .capacity = s->capacity, .pack = s->pack};
    if (s->first > 0) {
        store = test_store_open(s->kind, s->directory, s->capacity, s->pack);
        for (uint32_t i = 0; i < s->first; i++) put_one(s, store, i);
    }
    kvant_fault_begin();
    if (store == NULL && test_store_try(s->kind, s->directory, &options, &store, &diag) != KVANT_OK) return;
    for (uint32_t i = s->first; i < RECORDS; i++) {
        put_one(s, store, i);
        (void)test_store_ask(store, &s->records[i]); /* wrong bytes abort */
        if (i == RECORDS / 2 && s->first == 0) {
            s->shared->tried_remove = 1;
            if (kvant_store_remove(store, &s->records[REMOVED].key, &diag) == KVANT_OK)
                s->shared->acknowledged[REMOVED] = 2;
        }
    }
    kvant_store_close(store);
}

/* Puts and asks for everything that fits: the store is as good as new. */
static void goes_on(const scene *s, uint32_t at) {
    kvant_store *store = test_store_open(s->kind, s->directory, s->capacity, s->pack);
    uint64_t evictions = 0;
    for (uint32_t i = 0; i < RECORDS; i++) {
        test_store_put(store, &s->records[i]);
        if (test_store_ask(store, &s->records[i]) != KVANT_STORE_FOUND) fail_msg("at %u: put and gone", at);
        evictions = test_store_stats(store).evictions;
    }
    if (s->first == 0 && evictions > 0) fail_msg("at %u: evicted with room left", at);
    kvant_store_close(store);
}

/* After the fault. `floor`: acknowledged records below it may have been evicted. */
static void look(const scene *s, uint32_t at, uint32_t floor) {
    kvant_store *store = test_store_open(s->kind, s->directory, s->capacity, s->pack);
    uint32_t found = 0;
    for (uint32_t i = 0; i < RECORDS; i++) {
        uint32_t reason = test_store_ask(store, &s->records[i]), said = s->shared->acknowledged[i];
        if (reason != KVANT_STORE_FOUND && reason != KVANT_STORE_ABSENT)
            fail_msg("at %u: record %u is %s", at, i, kvant_store_reason_text(reason));
        bool gone_by_wish = i == REMOVED && s->shared->tried_remove;
        if (said == 1 && i >= floor && !gone_by_wish && reason != KVANT_STORE_FOUND)
            fail_msg("at %u: record %u was acknowledged and is %s", at, i, kvant_store_reason_text(reason));
        if (said == 2 && reason == KVANT_STORE_FOUND) fail_msg("at %u: removed and there", at);
        found += reason == KVANT_STORE_FOUND;
    }
    if (test_store_stats(store).records != found) fail_msg("at %u: the records are miscounted", at);
    kvant_store_close(store);
    char *orphan = kvant_scratch_path(s->directory, "new");
    struct stat info;
    if (stat(orphan, &info) == 0) fail_msg("at %u: a file is left over", at);
    free(orphan);
}

static uint32_t acknowledged(const scene *s) {
    uint32_t count = 0;
    for (uint32_t i = s->first; i < RECORDS; i++) count += s->shared->acknowledged[i] != 0;
    return count;
}

/* One fault in a new folder. */
static kvant_fault_result once(scene *s, const kvant_fault *fault, uint32_t floor) {
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    s->directory = directory;
    memset(s->shared, 0, sizeof *s->shared);
    kvant_fault_result r = kvant_with_fault(work, s, fault);
    look(s, fault->at, floor);
    goes_on(s, fault->at);
    free(directory);
    kvant_scratch_remove(folder);
    return r;
}

static scene set_up(uint32_t kind, uint32_t pack, bool crowded) {
    scene s = {.kind = kind, .pack = pack, .capacity = crowded ? CAPACITY : 0, .first = crowded ? 4 : 0};
    s.records = calloc(RECORDS, sizeof *s.records);
    s.shared = mmap(NULL, sizeof *s.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_non_null(s.records);
    assert_true(s.shared != MAP_FAILED);
    for (uint32_t i = 0; i < RECORDS; i++)
        s.records[i] = test_record_make(
            i, &(test_record_wish){.payload = crowded ? 40000 : 100 + 3000 * i, .random = !pack});
    return s;
}

static void tear_down(scene *s) {
    for (uint32_t i = 0; i < RECORDS; i++) test_record_free(&s->records[i]);
    free(s->records);
    (void)munmap(s->shared, sizeof *s->shared);
}

/* The first record that is still there after an undisturbed run. */
static uint32_t undisturbed_floor(scene *s, kvant_fault_result *r) {
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    s->directory = directory;
    memset(s->shared, 0, sizeof *s->shared);
    *r = kvant_with_fault(work, s, &(kvant_fault){0});
    assert_int_equal(r->status, 0);
    assert_int_equal(acknowledged(s), RECORDS - s->first);
    kvant_store *store = test_store_open(s->kind, directory, s->capacity, 0);
    uint32_t floor = 0;
    while (floor < RECORDS && test_store_ask(store, &s->records[floor]) != KVANT_STORE_FOUND) floor++;
    kvant_store_close(store);
    free(directory);
    kvant_scratch_remove(folder);
    return s->first > 0 ? floor : 0;
}

/* Dies at every call in turn. */
static void dies(uint32_t kind, uint32_t pack, bool crowded, uint32_t action) {
    scene s = set_up(kind, pack, crowded);
    kvant_fault_result r;
    uint32_t floor = undisturbed_floor(&s, &r), calls = r.count, some = 0, all = 0;
    assert_true(calls > 4 * (RECORDS - s.first));
    assert_true(!crowded || (floor > 0 && floor < RECORDS - 2));
    for (uint32_t at = 1; at <= calls; at++) {
        r = once(&s, &(kvant_fault){.action = action, .at = at}, floor);
        assert_true(r.hit);
        assert_int_equal(r.status, -SIGKILL);
        uint32_t count = acknowledged(&s);
        some += count > 0 && count < RECORDS - s.first;
        all += count == RECORDS - s.first;
    }
    assert_true(some > calls / 3);
    assert_true(all < calls / 2);
    tear_down(&s);
}

static void f45_killed_at_every_call(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        dies(kind, KVANT_STORE_PACK_NONE, false, KVANT_FAULT_KILL);
        dies(kind, KVANT_STORE_PACK_ZSTD, false, KVANT_FAULT_KILL);
    }
}

static void f45_killed_at_every_call_while_evicting(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++)
        dies(kind, KVANT_STORE_PACK_NONE, true, KVANT_FAULT_KILL);
}

static void f45_killed_after_half_a_write(void **state) {
    (void)state;
    if (!kvant_fault_can_change()) skip();
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        dies(kind, KVANT_STORE_PACK_NONE, false, KVANT_FAULT_HALF);
        dies(kind, KVANT_STORE_PACK_NONE, true, KVANT_FAULT_HALF);
    }
}

/* ---- A disk that fails --------------------------------------------------------------------------------- */

/* `once_only`: this one call; else everything after it as well. */
static void fails(uint32_t kind, uint32_t action, int error, uint32_t status) {
    scene s = set_up(kind, KVANT_STORE_PACK_NONE, false);
    kvant_fault_result r;
    (void)undisturbed_floor(&s, &r);
    uint32_t calls = r.count, refusals = 0;
    for (uint32_t at = 1; at <= calls; at++) {
        r = once(&s, &(kvant_fault){.action = action, .at = at, .error = error}, 0);
        assert_int_equal(r.status, 0);
        for (uint32_t i = 0; i < RECORDS; i++) {
            uint32_t said = s.shared->refused[i];
            if (said != 0 && said != status && said != (uint32_t)-KVANT_ERROR_IO)
                fail_msg("at %u: record %u was refused with -%u", at, i, said);
            refusals += said == status;
        }
    }
    assert_true(refusals > RECORDS);
    tear_down(&s);
}

static void full_disk_at_every_call(void **state) {
    (void)state;
    if (!kvant_fault_can_change()) skip();
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        fails(kind, KVANT_FAULT_FULL, ENOSPC, (uint32_t)-KVANT_ERROR_NO_SPACE);
        fails(kind, KVANT_FAULT_FAIL, ENOSPC, (uint32_t)-KVANT_ERROR_NO_SPACE);
    }
}

static void broken_disk_at_every_call(void **state) {
    (void)state;
    if (!kvant_fault_can_change()) skip();
    for (uint32_t kind = 0; kind < TEST_STORES; kind++)
        fails(kind, KVANT_FAULT_FAIL, EIO, (uint32_t)-KVANT_ERROR_IO);
}

/* ---- The order of the calls ---------------------------------------------------------------------------- */

/* A kill does not lose what the kernel has; a power failure does. So the order itself is looked at: the
 * record is flushed before it gets its name, and its folders after. */
static void f45_flushed_then_named_then_flushed(void **state) {
    (void)state;
    scene s = set_up(TEST_STORE_DIRECTORY, KVANT_STORE_PACK_NONE, false);
    kvant_fault_result r;
    s.first = RECORDS - 1;
    (void)undisturbed_floor(&s, &r);
    const char *name = strchr(r.calls, 'r');
    assert_non_null(name);
    const char *before = name;
    while (before > r.calls && *before != 's' && *before != 'w') before--;
    assert_int_equal(*before, 's');
    while (before > r.calls && *before == 's') before--;
    while (before > r.calls && *before == 'm') before--;
    assert_int_equal(*before, 'w');
    assert_true(strncmp(name, "rsss", 4) == 0); /* both folders and the root */
    tear_down(&s);
    s = set_up(TEST_STORE_LMDB, KVANT_STORE_PACK_NONE, false);
    s.first = RECORDS - 1;
    (void)undisturbed_floor(&s, &r);
    const char *flush =
        strchr(r.calls, 's'); /* pages, flush, head; the head's file is opened to write through */
    assert_non_null(flush);
    assert_true(flush > r.calls && flush[-1] == 'w' && flush[1] == 'w');
    tear_down(&s);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(f45_killed_at_every_call),
        cmocka_unit_test(f45_killed_at_every_call_while_evicting),
        cmocka_unit_test(f45_killed_after_half_a_write),
        cmocka_unit_test(full_disk_at_every_call),
        cmocka_unit_test(broken_disk_at_every_call),
        cmocka_unit_test(f45_flushed_then_named_then_flushed),
    };
    test_store_quick_disk();
    return kvant_run_tests(tests, argc, argv);
}
