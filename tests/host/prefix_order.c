/* The prefix index against a list that is searched from end to end: what is found, what may go and in which
 * order, under keys that begin with the same bytes. */
#include "cache/prefix_index.h"
#include "support/memory_faults.h"
#include "support/test.h"

#include <stdio.h>
#include <time.h>

static kvant_prefix_index *open_index(void) {
    kvant_prefix_index *index;
    assert_int_equal(kvant_prefix_index_open(&index), KVANT_OK);
    return index;
}

static void set_key(uint8_t key[KVANT_BLOCK_KEY_BYTES], uint64_t first, uint64_t last) {
    memset(key, 0, KVANT_BLOCK_KEY_BYTES);
    memcpy(key, &first, sizeof first);
    memcpy(key + KVANT_BLOCK_KEY_BYTES - sizeof last, &last, sizeof last);
}

/* parent: NULL = block 0. */
static kvant_index_entry entry_of(uint64_t key, const kvant_index_entry *parent) {
    kvant_index_entry e = {.indexed = false};
    set_key(e.key, key, key);
    if (parent != NULL) memcpy(e.parent, parent->key, sizeof e.parent);
    return e;
}

static void add(kvant_prefix_index *index, kvant_index_entry *e) {
    assert_int_equal(kvant_prefix_index_reserve(index, 1), KVANT_OK);
    assert_true(kvant_prefix_index_add(index, e));
}

/* ---- Rules one by one ---------------------------------------------------------------------------------- */

/* Two keys of the same bucket and hash are two entries. */
static void same_hash_is_not_same_key(void **state) {
    (void)state;
    kvant_prefix_index *index = open_index();
    kvant_index_entry a = {.indexed = false}, b = {.indexed = false}, c = {.indexed = false};
    set_key(a.key, 7, 1);
    set_key(b.key, 7, 2);
    set_key(c.key, 7, 3);
    memcpy(c.parent, b.key, sizeof c.parent);
    add(index, &a);
    add(index, &b);
    add(index, &c);
    assert_ptr_equal(c.before, &b);
    assert_ptr_equal(kvant_prefix_index_find(index, a.key), &a);
    assert_ptr_equal(kvant_prefix_index_find(index, b.key), &b);
    uint8_t other[KVANT_BLOCK_KEY_BYTES];
    set_key(other, 7, 4);
    assert_null(kvant_prefix_index_find(index, other));
    for (unsigned byte = 0; byte < KVANT_BLOCK_KEY_BYTES; byte++) {
        memcpy(other, a.key, sizeof other);
        other[byte] ^= 0x10;
        assert_null(kvant_prefix_index_find(index, other));
    }
    kvant_prefix_index_remove(index, &a);
    assert_null(kvant_prefix_index_find(index, a.key));
    assert_ptr_equal(kvant_prefix_index_find(index, b.key), &b);
    assert_ptr_equal(kvant_prefix_index_find(index, c.key), &c);
    kvant_prefix_index_close(index);
}

static void adds_once_and_behind_its_parent(void **state) {
    (void)state;
    kvant_prefix_index *index = open_index();
    kvant_index_entry a = entry_of(1, NULL), twin = entry_of(1, NULL), orphan = entry_of(3, &a);
    orphan.parent[31] ^= 1;
    assert_int_equal(kvant_prefix_index_reserve(index, 3), KVANT_OK);
    assert_true(kvant_prefix_index_add(index, &a));
    assert_false(kvant_prefix_index_add(index, &twin));
    assert_false(kvant_prefix_index_add(index, &orphan));
    assert_false(twin.indexed || orphan.indexed);
    assert_ptr_equal(kvant_prefix_index_find(index, twin.key), &a);
    assert_null(kvant_prefix_index_find(index, orphan.key));
    assert_int_equal(a.children, 0);
    assert_int_equal(kvant_prefix_index_describe(index).entries, 1);
    /* What was not indexed may be pinned and let go. */
    kvant_prefix_index_pin(index, &twin);
    kvant_prefix_index_unpin(index, &twin);
    assert_int_equal(kvant_prefix_index_describe(index).pinned, 0);
    assert_ptr_equal(kvant_prefix_index_oldest(index), &a);
    kvant_prefix_index_close(index);
}

/* A chain is lost from its end, whatever was used when. */
static void leaves_go_first(void **state) {
    (void)state;
    kvant_prefix_index *index = open_index();
    kvant_index_entry chain[5], side;
    for (uint32_t i = 0; i < 5; i++) {
        chain[i] = entry_of(i + 1, i > 0 ? &chain[i - 1] : NULL);
        add(index, &chain[i]);
    }
    side = entry_of(50, &chain[1]);
    add(index, &side);
    for (uint32_t i = 5; i-- > 0;) { /* the first block was used last, the leaf longest ago */
        kvant_prefix_index_pin(index, &chain[i]);
        assert_true(kvant_prefix_index_oldest(index) != &chain[i]);
        kvant_prefix_index_unpin(index, &chain[i]);
    }
    const kvant_index_entry *const order[6] = {&side, &chain[4], &chain[3], &chain[2], &chain[1], &chain[0]};
    for (uint32_t i = 0; i < 6; i++) {
        kvant_index_entry *oldest = kvant_prefix_index_oldest(index);
        assert_ptr_equal(oldest, order[i]);
        kvant_prefix_index_remove(index, oldest);
        assert_false(oldest->indexed);
        assert_null(oldest->before);
    }
    assert_null(kvant_prefix_index_oldest(index));
    assert_int_equal(kvant_prefix_index_describe(index).entries, 0);
    kvant_prefix_index_close(index);
}

/* An inner block keeps the time of its last use while its children keep it. */
static void oldest_use_goes_first(void **state) {
    (void)state;
    kvant_prefix_index *index = open_index();
    kvant_index_entry a = entry_of(1, NULL), leaf = entry_of(2, &a), b = entry_of(3, NULL),
                      c = entry_of(4, NULL);
    add(index, &a);
    add(index, &leaf);
    add(index, &b);
    add(index, &c);
    kvant_prefix_index_pin(index, &leaf);
    kvant_prefix_index_unpin(index, &leaf);
    assert_ptr_equal(kvant_prefix_index_oldest(index), &b);
    kvant_prefix_index_remove(index, &leaf);
    assert_ptr_equal(kvant_prefix_index_oldest(index), &a);
    kvant_prefix_index_pin(index, &a);
    kvant_prefix_index_pin(index, &b);
    kvant_prefix_index_pin(index, &b);
    assert_int_equal(kvant_prefix_index_describe(index).pinned, 2);
    assert_ptr_equal(kvant_prefix_index_oldest(index), &c);
    kvant_prefix_index_pin(index, &c);
    assert_null(kvant_prefix_index_oldest(index));
    kvant_prefix_index_unpin(index, &b);
    assert_null(kvant_prefix_index_oldest(index)); /* one holder is left */
    kvant_prefix_index_unpin(index, &a);
    kvant_prefix_index_unpin(index, &b);
    assert_ptr_equal(kvant_prefix_index_oldest(index), &a);
    kvant_prefix_index_close(index);
}

/* A block may be indexed while a sequence holds it, and leave the index then. */
static void pins_before_and_after(void **state) {
    (void)state;
    kvant_prefix_index *index = open_index();
    kvant_index_entry a = entry_of(1, NULL), b = entry_of(2, &a);
    kvant_prefix_index_pin(index, &a);
    kvant_prefix_index_pin(index, &b);
    assert_int_equal(kvant_prefix_index_describe(index).pinned, 0);
    add(index, &a);
    add(index, &b);
    assert_int_equal(kvant_prefix_index_describe(index).pinned, 2);
    assert_null(kvant_prefix_index_oldest(index));
    kvant_prefix_index_unpin(index, &a);
    assert_null(kvant_prefix_index_oldest(index)); /* b continues it */
    kvant_prefix_index_remove(index, &b);
    assert_int_equal(kvant_prefix_index_describe(index).pinned, 0);
    assert_int_equal(b.pins, 1);
    assert_ptr_equal(kvant_prefix_index_oldest(index), &a);
    kvant_prefix_index_unpin(index, &b);
    add(index, &b);
    assert_ptr_equal(kvant_prefix_index_oldest(index), &b);
    kvant_prefix_index_close(index);
}

static void room_is_reserved_or_refused(void **state) {
    (void)state;
    if (!MEMORY_FAULTS_WORK) skip();
    enum { COUNT = 300 };
    kvant_prefix_index *index = open_index();
    kvant_index_entry *entries = calloc(COUNT, sizeof *entries);
    uint64_t before = kvant_prefix_index_describe(index).table_bytes, refused = 0;
    bool done = false;
    for (uint64_t nth = 0; !done; nth++) {
        memory_faults_start(nth, false);
        kvant_status status = kvant_prefix_index_reserve(index, COUNT);
        done = memory_faults_stop() <= nth;
        assert_int_equal(status, done ? KVANT_OK : KVANT_ERROR_MEMORY);
        refused += !done;
    }
    assert_true(refused >= 2); /* table and heap */
    assert_in_range(kvant_prefix_index_describe(index).table_bytes, before + COUNT * 8, before + COUNT * 32);
    memory_faults_start(0, true);
    for (uint32_t i = 0; i < COUNT; i++) {
        entries[i] = entry_of(i + 1, NULL);
        assert_true(kvant_prefix_index_add(index, &entries[i]));
    }
    assert_int_equal(memory_faults_stop(), 0);
    assert_int_equal(kvant_prefix_index_reserve(index, UINT64_MAX), KVANT_ERROR_MEMORY);
    assert_int_equal(kvant_prefix_index_reserve(index, UINT32_MAX), KVANT_ERROR_MEMORY);
    assert_int_equal(kvant_prefix_index_reserve(index, 0), KVANT_OK);
    /* Given back, it serves the next one. */
    assert_int_equal(kvant_prefix_index_reserve(index, 1000), KVANT_OK);
    uint64_t reserved = kvant_prefix_index_describe(index).table_bytes;
    kvant_prefix_index_unreserve(index, 1000);
    memory_faults_start(0, true);
    assert_int_equal(kvant_prefix_index_reserve(index, 1000), KVANT_OK);
    assert_int_equal(memory_faults_stop(), 0);
    assert_int_equal(kvant_prefix_index_describe(index).table_bytes, reserved);
    kvant_prefix_index_unreserve(index, 1000);
    /* What is added has used its room up, and what is refused too. */
    kvant_index_entry e = entry_of(COUNT + 1, NULL), twin = e;
    for (uint32_t i = 0; i < 2000; i++) {
        add(index, &e);
        assert_int_equal(kvant_prefix_index_reserve(index, 1), KVANT_OK);
        assert_false(kvant_prefix_index_add(index, &twin));
        kvant_prefix_index_remove(index, &e);
    }
    assert_int_equal(kvant_prefix_index_describe(index).table_bytes, reserved);
    kvant_prefix_index_close(index);
    free(entries);
}

static void opens_or_has_no_memory(void **state) {
    (void)state;
    if (!MEMORY_FAULTS_WORK) skip();
    bool done = false;
    uint64_t nth = 0;
    for (; !done; nth++) {
        kvant_prefix_index *index = (kvant_prefix_index *)(uintptr_t)1;
        memory_faults_start(nth, false);
        kvant_status status = kvant_prefix_index_open(&index);
        done = memory_faults_stop() <= nth;
        assert_int_equal(status, done ? KVANT_OK : KVANT_ERROR_MEMORY);
        assert_true((index != NULL) == done);
        kvant_prefix_index_close(index);
    }
    assert_true(nth > 1);
    kvant_prefix_index_close(NULL);
}

/* ---- Against a list ------------------------------------------------------------------------------------ */

enum { LIST = 160 };

/* Entry i is in the list while present[i]; parents are numbers, LIST = none. */
typedef struct list {
    kvant_index_entry entries[LIST];
    bool present[LIST];
    uint32_t parent[LIST], pins[LIST];
    uint64_t used[LIST], clock;
} list;

/* Keys of at most `hashes` beginnings. */
static void list_key(uint8_t key[KVANT_BLOCK_KEY_BYTES], uint32_t i, uint64_t hashes) {
    set_key(key, i % hashes, UINT64_C(0x9e3779b97f4a7c15) * (i + 1));
}

static bool has_child(const list *l, uint32_t i) {
    for (uint32_t j = 0; j < LIST; j++)
        if (l->present[j] && l->parent[j] == i) return true;
    return false;
}

static uint32_t list_oldest(const list *l) {
    uint32_t oldest = LIST;
    for (uint32_t i = 0; i < LIST; i++)
        if (l->present[i] && l->pins[i] == 0 && !has_child(l, i) &&
            (oldest == LIST || l->used[i] < l->used[oldest]))
            oldest = i;
    return oldest;
}

static void list_add(kvant_prefix_index *index, list *l, uint32_t i, uint32_t parent, uint64_t hashes) {
    kvant_index_entry *e = &l->entries[i];
    memset(e->parent, 0, sizeof e->parent);
    if (parent != LIST) list_key(e->parent, parent, hashes);
    bool want = parent == LIST || l->present[parent];
    assert_int_equal(kvant_prefix_index_reserve(index, 1), KVANT_OK);
    assert_int_equal(kvant_prefix_index_add(index, e), want);
    if (!want) return;
    l->present[i] = true;
    l->parent[i] = parent;
    l->used[i] = ++l->clock;
}

/* A copy of what is there is refused and changes nothing. */
static void list_add_again(kvant_prefix_index *index, const list *l, uint32_t i) {
    kvant_index_entry twin = {.indexed = false};
    memcpy(twin.key, l->entries[i].key, sizeof twin.key);
    memcpy(twin.parent, l->entries[i].parent, sizeof twin.parent);
    assert_int_equal(kvant_prefix_index_reserve(index, 1), KVANT_OK);
    assert_false(kvant_prefix_index_add(index, &twin));
}

static void assert_same(const kvant_prefix_index *index, const list *l) {
    uint32_t entries = 0, pinned = 0, oldest = list_oldest(l);
    for (uint32_t i = 0; i < LIST; i++) {
        const kvant_index_entry *e = &l->entries[i], *found = kvant_prefix_index_find(index, e->key);
        if (found != (l->present[i] ? e : NULL)) fail_msg("entry %u is not found as it should be", i);
        assert_int_equal(e->indexed, l->present[i]);
        assert_int_equal(e->pins, l->pins[i]);
        if (l->present[i])
            assert_ptr_equal(e->before, l->parent[i] == LIST ? NULL : &l->entries[l->parent[i]]);
        entries += l->present[i];
        pinned += l->present[i] && l->pins[i] > 0;
    }
    assert_ptr_equal(kvant_prefix_index_oldest(index), oldest == LIST ? NULL : &l->entries[oldest]);
    kvant_prefix_index_state got = kvant_prefix_index_describe(index);
    assert_int_equal(got.entries, entries);
    assert_int_equal(got.pinned, pinned);
}

typedef struct tally {
    uint32_t added, evicted, removed, orphans, chains;
} tally;

static void walk(uint64_t hashes, uint64_t seed, uint32_t steps, tally *counts) {
    kvant_prefix_index *index = open_index();
    list *l = calloc(1, sizeof *l);
    for (uint32_t i = 0; i < LIST; i++) list_key(l->entries[i].key, i, hashes);
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t i = (uint32_t)(kvant_test_random(&seed) % LIST),
                 dice = (uint32_t)(kvant_test_random(&seed) % 100);
        uint32_t growing = step / 500 % 2 == 0 ? 55 : 35;
        if (dice < growing) {
            uint32_t parent =
                kvant_test_random(&seed) % 5 == 0 ? LIST : (uint32_t)(kvant_test_random(&seed) % LIST);
            if (l->present[i])
                list_add_again(index, l, i);
            else if (parent != i)
                list_add(index, l, i, parent, hashes);
            counts->added += l->present[i];
            counts->orphans += !l->present[i];
            counts->chains += l->present[i] && l->parent[i] != LIST;
        } else if (dice < 70) {
            kvant_prefix_index_pin(index, &l->entries[i]);
            l->pins[i]++;
        } else if (dice < 88) {
            if (l->pins[i] == 0) continue;
            kvant_prefix_index_unpin(index, &l->entries[i]);
            l->pins[i]--;
            l->used[i] = ++l->clock;
        } else if (dice < 96) {
            kvant_index_entry *oldest = kvant_prefix_index_oldest(index);
            if (oldest == NULL) continue;
            kvant_prefix_index_remove(index, oldest);
            l->present[oldest - l->entries] = false;
            counts->evicted++;
        } else {
            if (!l->present[i] || has_child(l, i)) continue;
            kvant_prefix_index_remove(index, &l->entries[i]); /* pinned or not */
            l->present[i] = false;
            counts->removed++;
        }
        assert_same(index, l);
    }
    kvant_prefix_index_close(index);
    free(l);
}

static void agrees_with_a_list(void **state) {
    (void)state;
    static const uint64_t hashes[] = {1, 3, 40, UINT64_MAX};
    tally counts = {0};
    for (size_t i = 0; i < sizeof hashes / sizeof hashes[0]; i++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            print_message("at most %llu hashes, seed %u\n", (unsigned long long)hashes[i], (unsigned)seed);
            walk(hashes[i], seed, 4000, &counts);
        }
    assert_true(counts.added > 2000 && counts.orphans > 200 && counts.chains > 1000);
    assert_true(counts.evicted > 500 && counts.removed > 100);
}

static void leave_in_order(kvant_prefix_index *index, uint32_t count) {
    uint64_t last = 0;
    for (uint32_t i = 0; i < count; i++) {
        kvant_index_entry *e = kvant_prefix_index_oldest(index);
        assert_non_null(e);
        if (e->used <= last) fail_msg("entry %u left out of turn", i);
        last = e->used;
        assert_ptr_equal(kvant_prefix_index_find(index, e->key), e);
        kvant_prefix_index_remove(index, e);
    }
    assert_null(kvant_prefix_index_oldest(index));
}

/* Many entries, used in one order, leave in the same, also those that were held while others left. */
static void many_leave_in_order(void **state) {
    (void)state;
    enum { COUNT = 50000 };
    kvant_prefix_index *index = open_index();
    kvant_index_entry *entries = calloc(COUNT, sizeof *entries);
    uint64_t seed = 9;
    clock_t start = clock();
    for (uint32_t i = 0; i < COUNT; i++) {
        set_key(entries[i].key, kvant_test_random(&seed), i);
        add(index, &entries[i]);
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        kvant_index_entry *e = &entries[kvant_test_random(&seed) % COUNT];
        kvant_prefix_index_pin(index, e);
        kvant_prefix_index_unpin(index, e);
    }
    uint32_t held = 0;
    for (uint32_t i = 0; i < COUNT; i++)
        if (kvant_test_random(&seed) % 3 == 0) {
            kvant_prefix_index_pin(index, &entries[i]);
            held++;
        }
    leave_in_order(index, COUNT - held);
    for (uint32_t i = 0; i < COUNT; i++)
        if (entries[i].pins > 0) kvant_prefix_index_unpin(index, &entries[i]);
    leave_in_order(index, held);
    assert_true((double)(clock() - start) < 10.0 * CLOCKS_PER_SEC); /* all in one chain takes minutes */
    kvant_prefix_index_close(index);
    free(entries);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_hash_is_not_same_key), cmocka_unit_test(adds_once_and_behind_its_parent),
        cmocka_unit_test(leaves_go_first),           cmocka_unit_test(oldest_use_goes_first),
        cmocka_unit_test(pins_before_and_after),     cmocka_unit_test(room_is_reserved_or_refused),
        cmocka_unit_test(opens_or_has_no_memory),    cmocka_unit_test(agrees_with_a_list),
        cmocka_unit_test(many_leave_in_order),
    };
    return kvant_run_tests(tests, argc, argv);
}
