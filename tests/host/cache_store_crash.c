/* A process that dies at any system call that changes a file, while it saves sequences or evicts blocks into
 * a store: whatever can be loaded afterwards is a right beginning, what was acknowledged is all there, and
 * the store goes on. */
#include "support/cache_place.h"
#include "support/scratch.h"
#include "support/syscall_faults.h"
#include "support/test.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { STORIES = 3, LONGEST = 215, BLOCK = 32 };

/* The second goes on where the first ends, the third is another. */
static const uint32_t lengths[STORIES] = {101, LONGEST, 70};

/* Shared with the child. */
typedef struct shared {
    uint32_t acknowledged[STORIES];
    kvant_status refused[STORIES];
    uint32_t spilled; /* 1 = an eviction returned, with all blocks in the store */
} shared;

typedef struct scene {
    uint32_t kind;
    rig *r;
    kvant_sequence *stories[STORIES];
    uint64_t *ids[STORIES];
    const char *directory;
    shared *shared;
} scene;

static scene set_up(uint32_t kind) {
    scene s = {.kind = kind, .r = rig_open(&(rig_wish){0})};
    s.shared = mmap(NULL, sizeof *s.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s.shared != MAP_FAILED);
    for (uint32_t i = 0; i < STORIES; i++) {
        s.ids[i] = rig_ids(LONGEST + PLACE_MORE, i == 2 ? 7 : 6);
        s.stories[i] = rig_sequence(s.r);
        rig_grow(s.r, s.stories[i], s.ids[i], lengths[i], 64);
    }
    return s;
}

static void tear_down(scene *s) {
    for (uint32_t i = 0; i < STORIES; i++) {
        kvant_sequence_free(s->stories[i]);
        free(s->ids[i]);
    }
    rig_close(s->r);
    (void)munmap(s->shared, sizeof *s->shared);
}

static kvant_store *open_store(const scene *s) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_store *store = NULL;
    const kvant_store_options options = {.struct_size = sizeof options};
    return test_store_try(s->kind, s->directory, &options, &store, &diag) == KVANT_OK ? store : NULL;
}

/* ---- What the child does ------------------------------------------------------------------------------- */

/* No assertion of cmocka's here: it would go on with the next test in the child. */
static void save_all(void *context) {
    const scene *s = context;
    kvant_fault_begin();
    kvant_store *store = open_store(s);
    if (store == NULL) return;
    for (uint32_t i = 0; i < STORIES; i++) {
        kvant_saved saved = {.struct_size = sizeof saved};
        kvant_status status = kvant_sequence_save(s->stories[i], store, &saved, NULL);
        s->shared->refused[i] = status;
        s->shared->acknowledged[i] = status == KVANT_OK && saved.tokens == lengths[i];
        if (status == KVANT_OK) kvant_expect(saved.tokens == lengths[i]);
    }
    kvant_store_close(store);
}

static void evict_all(void *context) {
    const scene *s = context;
    kvant_store *store = open_store(s);
    kvant_expect(store != NULL);
    rig *r = rig_open(&(rig_wish){.store = store});
    kvant_sequence *story = rig_sequence(r);
    rig_grow(r, story, s->ids[1], lengths[1], 100);
    kvant_sequence_free(story);
    kvant_fault_begin();
    kvant_status status = kvant_cache_evict(r->cache, rig_report(r).capacity, NULL, NULL);
    kvant_expect(status == KVANT_OK);
    s->shared->spilled = rig_report(r).spilled == lengths[1] / BLOCK;
    kvant_store_close(store);
}

/* ---- What is there afterwards -------------------------------------------------------------------------- */

/* Whole blocks, or all of it with the tail. Returns how many tokens there are. */
static uint32_t look(const scene *s, uint32_t i, uint32_t at, bool goes_on) {
    kvant_store *store = open_store(s);
    if (store == NULL) fail_msg("at %u: the store does not open", at);
    rig *fresh = rig_open(&(rig_wish){0});
    const kvant_prefix prefix = {.struct_size = sizeof prefix, .ids = s->ids[i], .count = lengths[i]};
    kvant_sequence *loaded = NULL;
    uint32_t reason = UINT32_MAX;
    rig_ok(kvant_sequence_load(fresh->cache, store, &prefix, &loaded, &reason, &rig_diag));
    uint32_t length = (uint32_t)rig_info(loaded).length;
    /* The second may also end with the tail of the first. */
    if (length != lengths[i] && length % BLOCK != 0 && !(i == 1 && length == lengths[0]))
        fail_msg("at %u: %u tokens of story %u", at, length, i);
    if (length != lengths[i] && reason != KVANT_STORE_ABSENT)
        fail_msg("at %u: story %u is %s", at, i, kvant_store_reason_text(reason));
    rig_assert_rows(fresh, loaded, s->ids[i]);
    if (length == lengths[i]) rig_assert_alike(fresh, loaded, s->r, s->stories[i]);
    if (goes_on && length == lengths[i]) {
        kvant_sequence *twin = NULL;
        rig_ok(kvant_sequence_fork(s->stories[i], &twin, &rig_diag));
        place_go_on(s->r, twin, fresh, loaded, s->ids[i], NULL);
        kvant_sequence_free(twin);
    }
    kvant_sequence_free(loaded);
    rig_close(fresh);
    kvant_store_close(store);
    return length;
}

/* Saves everything once more, which must work and be complete. */
static void save_again(const scene *s, uint32_t at) {
    kvant_store *store = open_store(s);
    assert_non_null(store);
    for (uint32_t i = 0; i < STORIES; i++) {
        kvant_saved saved = {.struct_size = sizeof saved};
        rig_ok(kvant_sequence_save(s->stories[i], store, &saved, &rig_diag));
        if (saved.tokens != lengths[i]) fail_msg("at %u: story %u is not saved", at, i);
    }
    kvant_store_close(store);
    for (uint32_t i = 0; i < STORIES; i++) assert_int_equal(look(s, i, at, at % 5 == 1), lengths[i]);
}

static kvant_fault_result once(scene *s, void (*body)(void *context), const kvant_fault *fault, bool saves) {
    char *folder = kvant_scratch_make(), *directory = kvant_scratch_path(folder, "store");
    s->directory = directory;
    memset(s->shared, 0, sizeof *s->shared);
    kvant_fault_result result = kvant_with_fault(body, s, fault);
    for (uint32_t i = 0; i < STORIES; i++) {
        uint32_t length = look(s, i, fault->at, false);
        if (s->shared->acknowledged[i] && length != lengths[i])
            fail_msg("at %u: story %u was acknowledged, and %u tokens are there", fault->at, i, length);
        if (s->shared->spilled && i == 1 && length != lengths[i] / BLOCK * BLOCK)
            fail_msg("at %u: all blocks were spilled, and %u tokens are there", fault->at, length);
    }
    if (saves && fault->at % 3 == 1) save_again(s, fault->at);
    free(directory);
    kvant_scratch_remove(folder);
    return result;
}

/* ---- Tests --------------------------------------------------------------------------------------------- */

static void at_every_call(uint32_t kind, void (*body)(void *context), uint32_t action, int error) {
    scene s = set_up(kind);
    kvant_fault_result result = once(&s, body, &(kvant_fault){0}, false);
    assert_int_equal(result.status, 0);
    assert_true(body == evict_all ? s.shared->spilled : s.shared->acknowledged[STORIES - 1]);
    uint32_t calls = result.count, some = 0, refused = 0;
    assert_true(calls > 20 && calls < KVANT_FAULT_CALLS);
    for (uint32_t at = 1; at <= calls; at++) {
        result = once(&s, body, &(kvant_fault){.action = action, .at = at, .error = error}, true);
        assert_true(result.hit);
        assert_int_equal(result.status, error == 0 ? -SIGKILL : 0);
        some += s.shared->acknowledged[0] && !s.shared->acknowledged[STORIES - 1];
        for (uint32_t i = 0; i < STORIES; i++) refused += s.shared->refused[i] != KVANT_OK;
    }
    assert_true(body == evict_all || some > calls / 3);
    assert_true(error == 0 || body == evict_all || refused > STORIES);
    tear_down(&s);
}

static void f45_killed_while_saving(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) at_every_call(kind, save_all, KVANT_FAULT_KILL, 0);
}

static void f45_killed_after_half_a_write(void **state) {
    (void)state;
    if (!kvant_fault_can_change()) skip();
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) at_every_call(kind, save_all, KVANT_FAULT_HALF, 0);
}

static void killed_while_evicting(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) at_every_call(kind, evict_all, KVANT_FAULT_KILL, 0);
}

static void disk_full_from_any_call_on(void **state) {
    (void)state;
    if (!kvant_fault_can_change()) skip();
    for (uint32_t kind = 0; kind < TEST_STORES; kind++)
        at_every_call(kind, save_all, KVANT_FAULT_FULL, ENOSPC);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(f45_killed_while_saving),
        cmocka_unit_test(f45_killed_after_half_a_write),
        cmocka_unit_test(killed_while_evicting),
        cmocka_unit_test(disk_full_from_any_call_on),
    };
    test_store_quick_disk();
    return kvant_run_tests(tests, argc, argv);
}
