/* Capacity: what was used longest ago goes first, the disk never holds more, and what cannot fit is refused
 * and costs nothing. */
#include "support/data.h"
#include "support/scratch.h"
#include "support/store_records.h"
#include "support/test.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CAPACITY = 1 << 20, MANY = 40 };

typedef struct ground {
    uint32_t kind;
    char *folder, *directory;
    kvant_store *store;
} ground;

static ground begin(uint32_t kind) {
    ground g = {.kind = kind, .folder = kvant_scratch_make()};
    g.directory = kvant_scratch_path(g.folder, "store");
    g.store = test_store_open(kind, g.directory, CAPACITY, 0);
    return g;
}

static void again(ground *g, uint64_t capacity) {
    kvant_store_close(g->store);
    g->store = test_store_open(g->kind, g->directory, capacity, 0);
}

static void end(ground *g) {
    kvant_store_close(g->store);
    free(g->directory);
    kvant_scratch_remove(g->folder);
}

static test_record big(uint32_t number) { /* about 60 KB */
    return test_record_make(number, &(test_record_wish){.payload = 15000});
}

static void put(ground *g, uint32_t number) {
    test_record r = big(number);
    test_store_put(g->store, &r);
    test_record_free(&r);
}

/* Without a use of it. */
static bool is_there(ground *g, uint32_t number) {
    test_record r = big(number);
    bool there = kvant_store_contains(g->store, &r.key, NULL) == KVANT_OK;
    test_record_free(&r);
    return there;
}

static uint32_t use(ground *g, uint32_t number) {
    test_record r = big(number);
    uint32_t reason = test_store_ask(g->store, &r);
    test_record_free(&r);
    return reason;
}

static uint64_t file_bytes(const ground *g) {
    char *file = kvant_scratch_path(g->directory, "data.mdb");
    struct stat info;
    uint64_t bytes = stat(file, &info) == 0 ? (uint64_t)info.st_size : 0;
    free(file);
    return bytes;
}

/* ---- Order --------------------------------------------------------------------------------------------- */

static void oldest_first(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        ground g = begin(kind);
        for (uint32_t i = 0; i < MANY; i++) {
            put(&g, i);
            kvant_store_stats stats = test_store_stats(g.store);
            assert_true(stats.bytes <= CAPACITY && file_bytes(&g) <= CAPACITY);
            assert_int_equal(stats.records + stats.evictions, i + 1);
            uint32_t first = (uint32_t)stats.evictions;
            for (uint32_t j = 0; j <= i; j++) assert_int_equal(is_there(&g, j), j >= first);
        }
        kvant_store_stats stats = test_store_stats(g.store);
        assert_in_range(stats.records, 9, 17); /* of 61 KB in 1 MiB */
        /* Of what was evicted not even a folder stays; beside the folders lies the account. */
        if (kind == TEST_STORE_DIRECTORY)
            assert_in_range(kvant_test_file_count(g.directory), stats.records / 2, stats.records + 1);
        for (uint32_t j = (uint32_t)stats.evictions; j < MANY; j++)
            assert_int_equal(use(&g, j), KVANT_STORE_FOUND);
        end(&g);
    }
}

/* A get, and a put of what is there, are uses; contains is none. A use is remembered across a restart. */
static void uses_count(void **state) {
    (void)state;
    for (uint32_t run = 0; run < TEST_STORES * 2; run++) {
        ground g = begin(run / 2);
        uint32_t full = 0;
        while (put(&g, full++), test_store_stats(g.store).evictions == 0) {
        }
        /* Record 0 went; 1, 2, 3 are the oldest. */
        assert_false(is_there(&g, 0));
        assert_int_equal(use(&g, 1), KVANT_STORE_FOUND);
        put(&g, 3);
        assert_true(is_there(&g, 2));
        if (run % 2 == 1) again(&g, CAPACITY);
        put(&g, full++);
        assert_true(is_there(&g, 1));
        assert_false(is_there(&g, 2));
        assert_true(is_there(&g, 3));
        assert_true(is_there(&g, 4));
        put(&g, full++);
        assert_false(is_there(&g, 4));
        for (uint32_t i = 5; i + 2 < full - 1; i++) put(&g, full + i); /* until 1 and 3 are the oldest */
        assert_int_equal(use(&g, 3), KVANT_STORE_FOUND);
        while (is_there(&g, 1)) put(&g, 1000 + full++);
        assert_true(is_there(&g, 3));
        end(&g);
    }
}

/* Far more reads between two puts than the order remembers: the last ones count. */
static void many_uses(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        ground g = begin(kind);
        uint32_t full = 0;
        while (put(&g, full++), test_store_stats(g.store).evictions == 0) {
        }
        for (uint32_t i = 0; i < 1500; i++) assert_int_equal(use(&g, 4 + i % 2), KVANT_STORE_FOUND);
        for (uint32_t i = 0; i < 1030; i++) assert_int_equal(use(&g, 1 + i % 3), KVANT_STORE_FOUND);
        for (uint32_t i = 0; i < 4; i++) put(&g, full++);
        for (uint32_t i = 1; i <= 3; i++) assert_true(is_there(&g, i));
        /* LMDB's order remembers 1024: those of 4 and 5 are forgotten. */
        uint32_t first = kind == TEST_STORE_LMDB ? 4 : 6;
        for (uint32_t i = first; i < first + 4; i++) assert_false(is_there(&g, i));
        end(&g);
    }
}

/* ---- Capacity ------------------------------------------------------------------------------------------ */

/* Records of every size between a few bytes and the largest, again and again: the gaps that they leave fit
 * nobody, and still every put works. */
static void every_size(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        ground g = begin(kind);
        uint64_t seed = 5;
        for (uint32_t i = 0; i < 600; i++) {
            uint64_t random = kvant_test_random(&seed);
            uint32_t payload = random % 4 == 0 ? 64700 : 1 + (uint32_t)(random >> 8) % (1u << random % 16);
            test_record r = test_record_make(i, &(test_record_wish){.payload = payload});
            assert_true(r.size <= CAPACITY / 4);
            test_store_put(g.store, &r);
            if (test_store_ask(g.store, &r) != KVANT_STORE_FOUND) fail_msg("record %u is gone", i);
            if (i % 100 == 50) again(&g, CAPACITY);
            test_record_free(&r);
            assert_true(test_store_stats(g.store).bytes <= CAPACITY && file_bytes(&g) <= CAPACITY);
        }
        assert_int_equal(test_store_count(g.store, KVANT_STORE_FULL), 0);
        assert_true(test_store_stats(g.store).records > 3);
        end(&g);
    }
}

static void too_large(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        ground g = begin(kind);
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_store_options options = {
            .struct_size = sizeof options, .capacity = CAPACITY, .record_max = 64 << 20};
        test_record r = test_record_make(1, &(test_record_wish){.payload = 400000});
        kvant_store_close(g.store);
        assert_int_equal(test_store_try(kind, g.directory, &options, &g.store, &diag), KVANT_OK);
        for (uint32_t i = 10; i < 15; i++) put(&g, i);
        assert_int_equal(kvant_store_put(g.store, &r.key, r.bytes, r.size, &diag), KVANT_ERROR_NO_SPACE);
        assert_true(diag.message[0] != '\0');
        assert_int_equal(test_store_count(g.store, KVANT_STORE_FULL), 1);
        assert_int_equal(test_store_stats(g.store).evictions, 0);
        for (uint32_t i = 10; i < 15; i++) assert_int_equal(use(&g, i), KVANT_STORE_FOUND);
        assert_int_equal(test_store_ask(g.store, &r), KVANT_STORE_ABSENT);
        test_record_free(&r);
        end(&g);
    }
}

/* A smaller capacity holds from the next put on, a larger one at once. */
static void other_capacity(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < TEST_STORES; kind++) {
        ground g = begin(kind);
        again(&g, 4 * CAPACITY);
        for (uint32_t i = 0; i < MANY; i++) put(&g, i);
        assert_int_equal(test_store_stats(g.store).records, MANY);
        again(&g, CAPACITY);
        assert_int_equal(test_store_stats(g.store).records, MANY);
        put(&g, MANY);
        assert_in_range(test_store_stats(g.store).records, 9, 17);
        assert_true(test_store_stats(g.store).bytes <= CAPACITY);
        assert_int_equal(use(&g, MANY), KVANT_STORE_FOUND);
        assert_int_equal(use(&g, MANY - 1), KVANT_STORE_FOUND);
        assert_int_equal(use(&g, 0), KVANT_STORE_ABSENT);
        again(&g, 4 * CAPACITY);
        for (uint32_t i = 100; i < 100 + MANY; i++) put(&g, i);
        assert_true(test_store_stats(g.store).records > MANY);
        end(&g);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(oldest_first), cmocka_unit_test(uses_count), cmocka_unit_test(many_uses),
        cmocka_unit_test(every_size),   cmocka_unit_test(too_large),  cmocka_unit_test(other_capacity),
    };
    test_store_quick_disk();
    return kvant_run_tests(tests, argc, argv);
}
