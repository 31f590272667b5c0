/* The pool against a map of its units, kept by hand, and at its edges: full, beyond 4 GiB, beyond 2^32 units
 * of 64 bytes, without memory for its tables, and under wrong calls. */
#include "cache/pool.h"
#include "support/memory_faults.h"
#include "support/test.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cache/checked.h"

static kvant_pool *open_pool(uint64_t bytes, uint32_t alignment) {
    kvant_pool *pool;
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_pool_open(bytes, alignment, &pool, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    return pool;
}

static uint64_t largest_hole(const kvant_pool *pool) {
    return kvant_pool_describe(pool, 0).largest;
}

/* ---- Against a map ------------------------------------------------------------------------------------- */

enum { MAP_UNITS_MAX = 700 };

/* One number a unit: of the extent that has it, 0 = free. */
typedef struct map {
    uint32_t unit, units;
    uint32_t owner[MAP_UNITS_MAX];
    uint32_t size[MAP_UNITS_MAX]; /* of the extent that starts here, else 0 */
    uint32_t last;                /* number given to an extent */
    uint64_t used, peak;
} map;

static uint32_t hole_at(const map *m, uint32_t start) {
    uint32_t n = 0;
    while (start + n < m->units && m->owner[start + n] == 0) n++;
    return n;
}

/* Best fit by looking everywhere. */
static uint32_t map_find(const map *m, uint32_t units) {
    uint32_t best = KVANT_POOL_NONE, best_units = UINT32_MAX;
    for (uint32_t i = 0; i < m->units;) {
        uint32_t n = hole_at(m, i);
        if (n >= units && n < best_units) {
            best = i;
            best_units = n;
        }
        i += n > 0 ? n : 1;
    }
    return best;
}

static kvant_pool_state map_describe(const map *m, uint64_t smallest) {
    kvant_pool_state s = {
        .capacity = (uint64_t)m->units * m->unit, .used = m->used * m->unit, .peak = m->peak * m->unit};
    for (uint32_t i = 0; i < m->units;) {
        uint32_t n = hole_at(m, i);
        uint64_t bytes = (uint64_t)n * m->unit;
        if (bytes < smallest) s.unusable += bytes;
        if (bytes > s.largest) s.largest = bytes;
        if (m->size[i] > 0) s.extents++;
        i += n > 0 ? n : 1;
    }
    return s;
}

static void assert_same_state(const kvant_pool *pool, const map *m, uint64_t smallest) {
    kvant_pool_state got = kvant_pool_describe(pool, smallest), want = map_describe(m, smallest);
    assert_int_equal(got.capacity, want.capacity);
    assert_int_equal(got.used, want.used);
    assert_int_equal(got.peak, want.peak);
    assert_int_equal(got.unusable, want.unusable);
    assert_int_equal(got.largest, want.largest);
    assert_int_equal(got.extents, want.extents);
}

static void write_units(const kvant_pool *pool, const map *m, uint32_t start) {
    memset(kvant_pool_address(pool, start), (int)(m->owner[start] % 251 + 1),
           (size_t)m->size[start] * m->unit);
}

static void assert_written(const kvant_pool *pool, const map *m, uint32_t start) {
    const uint8_t *bytes = kvant_pool_address(pool, start);
    uint8_t want = (uint8_t)(m->owner[start] % 251 + 1);
    for (size_t i = 0; i < (size_t)m->size[start] * m->unit; i++)
        if (bytes[i] != want) fail_msg("byte %zu of extent %u is %u, not %u", i, start, bytes[i], want);
}

static void map_set(map *m, uint32_t start, uint32_t units, uint32_t owner) {
    for (uint32_t i = 0; i < units; i++) m->owner[start + i] = owner;
}

static void do_take(kvant_pool *pool, map *m, uint64_t bytes) {
    uint32_t units = (uint32_t)((bytes + m->unit - 1) / m->unit), want = map_find(m, units);
    assert_int_equal(kvant_pool_rounded(pool, bytes), (uint64_t)units * m->unit);
    uint32_t got = kvant_pool_take(pool, bytes);
    if (got != want) fail_msg("%u units taken at %u, not at %u", units, got, want);
    if (got == KVANT_POOL_NONE) return;
    map_set(m, got, units, ++m->last);
    m->size[got] = units;
    m->used += units;
    if (m->used > m->peak) m->peak = m->used;
    write_units(pool, m, got);
}

static void do_shrink(kvant_pool *pool, map *m, uint32_t start, uint64_t bytes) {
    uint32_t units = (uint32_t)((bytes + m->unit - 1) / m->unit);
    kvant_pool_shrink(pool, start, bytes);
    map_set(m, start + units, m->size[start] - units, 0);
    m->used -= m->size[start] - units;
    m->size[start] = units;
    assert_written(pool, m, start);
}

static void do_give(kvant_pool *pool, map *m, uint32_t start) {
    assert_written(pool, m, start);
    kvant_pool_give(pool, start);
    map_set(m, start, m->size[start], 0);
    m->used -= m->size[start];
    m->size[start] = 0;
}

static uint32_t some_extent(const map *m, uint64_t *seed) {
    uint32_t from = (uint32_t)(kvant_test_random(seed) % m->units);
    for (uint32_t i = 0; i < m->units; i++)
        if (m->size[(from + i) % m->units] > 0) return (from + i) % m->units;
    return KVANT_POOL_NONE;
}

/* How often the things happened that a walk is for. */
typedef struct tally {
    uint32_t refused, shrunk, given, ties;
} tally;

static uint64_t some_size(const map *m, uint64_t *seed) {
    uint64_t units = kvant_test_random(seed) % 4 == 0 ? kvant_test_random(seed) % (m->units / 4 + 1)
                                                      : kvant_test_random(seed) % 6;
    return units * m->unit + 1 + kvant_test_random(seed) % m->unit;
}

static void walk(uint32_t units, uint32_t alignment, uint64_t seed, uint32_t steps, tally *counts) {
    map m = {.unit = alignment > 64 ? alignment : 64, .units = units};
    kvant_pool *pool = open_pool((uint64_t)units * m.unit + m.unit - 1, alignment);
    for (uint32_t step = 0; step < steps; step++) {
        /* Phases of growth and of decay: full pools, and empty ones with few extents. */
        uint64_t dice = kvant_test_random(&seed) % 100, takes = step / 400 % 2 == 0 ? 60 : 35;
        uint32_t start = some_extent(&m, &seed);
        if (dice < takes || start == KVANT_POOL_NONE) {
            uint64_t extents = kvant_pool_describe(pool, 0).extents;
            do_take(pool, &m, some_size(&m, &seed));
            counts->refused += kvant_pool_describe(pool, 0).extents == extents;
        } else if (dice < takes + 10) {
            do_shrink(pool, &m, start, 1 + kvant_test_random(&seed) % ((uint64_t)m.size[start] * m.unit));
            counts->shrunk++;
        } else {
            do_give(pool, &m, start);
            counts->given++;
        }
        assert_same_state(pool, &m, kvant_test_random(&seed) % (16 * (uint64_t)m.unit));
    }
    for (uint32_t start; (start = some_extent(&m, &seed)) != KVANT_POOL_NONE;) do_give(pool, &m, start);
    assert_int_equal(largest_hole(pool), (uint64_t)units * m.unit);
    kvant_pool_close(pool);
}

static void agrees_with_a_map_of_units(void **state) {
    (void)state;
    static const struct {
        uint32_t units, alignment, steps;
    } cases[] = {
        {MAP_UNITS_MAX, 64, 20000}, {40, 1, 20000}, {7, 128, 5000}, {1, 64, 300}, {300, 16384, 2000}};
    tally counts = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            print_message("%u units aligned to %u, seed %u\n", cases[i].units, cases[i].alignment,
                          (unsigned)seed);
            walk(cases[i].units, cases[i].alignment, seed, cases[i].steps, &counts);
        }
    assert_true(counts.refused > 2000 && counts.shrunk > 5000 && counts.given > 20000);
}

/* ---- Rules one by one ---------------------------------------------------------------------------------- */

static void opens_what_it_can(void **state) {
    (void)state;
    static const struct {
        uint64_t bytes;
        uint32_t alignment;
        kvant_status status;
    } wrong[] = {{1 << 20, 0, KVANT_ERROR_ARGUMENT},
                 {1 << 20, 96, KVANT_ERROR_ARGUMENT},
                 {63, 1, KVANT_ERROR_ARGUMENT},
                 {4095, 4096, KVANT_ERROR_ARGUMENT},
                 {0, 64, KVANT_ERROR_ARGUMENT},
                 {UINT64_MAX, 64, KVANT_ERROR_MEMORY},
                 {UINT64_C(1) << 62, 64, KVANT_ERROR_MEMORY}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        kvant_pool *pool = (kvant_pool *)(uintptr_t)1;
        kvant_diag diag = {.struct_size = sizeof diag};
        assert_int_equal(kvant_pool_open(wrong[i].bytes, wrong[i].alignment, &pool, &diag), wrong[i].status);
        assert_null(pool);
        assert_true(diag.message[0] != '\0');
    }
    kvant_pool_close(NULL);
    for (uint32_t alignment = 1; alignment <= 1 << 21; alignment *= 2) {
        kvant_pool *pool = open_pool((UINT64_C(5) << 20) + 77, alignment);
        uint32_t a = kvant_pool_take(pool, 1), b = kvant_pool_take(pool, 1);
        uintptr_t at = (uintptr_t)kvant_pool_address(pool, a), next = (uintptr_t)kvant_pool_address(pool, b);
        assert_int_equal(at % alignment, 0);
        assert_int_equal(next - at, alignment > 64 ? alignment : 64);
        assert_int_equal(kvant_pool_describe(pool, 0).capacity,
                         ((UINT64_C(5) << 20) + 77) / (next - at) * (next - at));
        assert_int_equal(kvant_pool_rounded(pool, UINT64_MAX), UINT64_MAX - (next - at - 1));
        assert_int_equal(kvant_pool_rounded(pool, UINT64_MAX - (next - at)), UINT64_MAX - (next - at - 1));
        assert_int_equal(kvant_pool_rounded(pool, 0), 0);
        assert_int_equal(kvant_pool_take(pool, UINT64_MAX), KVANT_POOL_NONE);
        assert_int_equal(kvant_pool_take(pool, ((UINT64_C(1) << 32) + 1) * (next - at)), KVANT_POOL_NONE);
        kvant_pool_close(pool);
    }
}

/* Addresses of somebody else's: where they say that they are, and never touched, as there is nothing. */
static void addresses_of_somebody_else(void **state) {
    (void)state;
    const uintptr_t base = 0x7654300;
    kvant_pool *pool = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    void *at = (void *)base;
    assert_int_equal(kvant_pool_open_at(NULL, 1 << 20, 256, &pool, &diag), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_pool_open_at(at, 1 << 20, 512, &pool, &diag), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_pool_open_at(at, 1 << 20, 0, &pool, &diag), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_pool_open_at(at, 100, 256, &pool, &diag), KVANT_ERROR_ARGUMENT);
    assert_null(pool);
    assert_int_equal(kvant_pool_open_at(at, (1 << 20) + 99, 256, &pool, &diag), KVANT_OK);
    assert_int_equal(kvant_pool_unit(pool), 256);
    assert_int_equal(kvant_pool_describe(pool, 1).capacity, 1 << 20);
    uint32_t a = kvant_pool_take(pool, 1000), b = kvant_pool_take(pool, 300), c = kvant_pool_take(pool, 1);
    assert_int_equal((uintptr_t)kvant_pool_address(pool, a), base);
    assert_int_equal((uintptr_t)kvant_pool_address(pool, b), base + 1024);
    assert_int_equal((uintptr_t)kvant_pool_address(pool, c), base + 1024 + 512);
    kvant_pool_shrink(pool, a, 256);
    kvant_pool_give(pool, b);
    assert_int_equal(kvant_pool_take(pool, 1200), a + 1);
    kvant_pool_close(pool);
}

/* The last extent of a pool with nothing left is like the first. */
static void last_extent_of_a_full_pool(void **state) {
    (void)state;
    enum { COUNT = 37, BYTES = 3 * 64 };
    kvant_pool *pool = open_pool(COUNT * BYTES, 64);
    uint32_t at[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        at[i] = kvant_pool_take(pool, BYTES);
        assert_int_equal(at[i], 3 * i);
        memset(kvant_pool_address(pool, at[i]), (int)i + 1, BYTES);
    }
    kvant_pool_state full = kvant_pool_describe(pool, BYTES);
    assert_int_equal(full.used, full.capacity);
    assert_int_equal(full.largest, 0);
    assert_int_equal(full.unusable, 0);
    assert_int_equal(kvant_pool_take(pool, 1), KVANT_POOL_NONE);
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint8_t *bytes = kvant_pool_address(pool, at[i]);
        for (uint32_t j = 0; j < BYTES; j++) assert_int_equal(bytes[j], i + 1);
    }
    kvant_pool_shrink(pool, at[COUNT - 1], 128);
    assert_int_equal(kvant_pool_take(pool, 65), KVANT_POOL_NONE);
    assert_int_equal(kvant_pool_take(pool, 64), 3 * COUNT - 1);
    kvant_pool_give(pool, at[20]);
    assert_int_equal(kvant_pool_take(pool, BYTES + 1), KVANT_POOL_NONE);
    assert_int_equal(kvant_pool_take(pool, BYTES), at[20]);
    assert_int_equal(kvant_pool_describe(pool, 0).used, full.capacity);
    kvant_pool_close(pool);
}

/* Three neighbours between two that stay, given in any order, leave one hole. */
static void holes_become_one(void **state) {
    (void)state;
    static const uint32_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (uint32_t order = 0; order < 6; order++) {
        kvant_pool *pool = open_pool(100 * 64, 64);
        uint32_t first = kvant_pool_take(pool, 64), at[3];
        for (uint32_t i = 0; i < 3; i++) at[i] = kvant_pool_take(pool, (10 + i) * 64);
        uint32_t last = kvant_pool_take(pool, 66 * 64);
        for (uint32_t i = 0; i < 3; i++) kvant_pool_give(pool, at[orders[order][i]]);
        assert_int_equal(largest_hole(pool), 33 * 64);
        assert_int_equal(kvant_pool_take(pool, 33 * 64), first + 1);
        kvant_pool_give(pool, last);
        kvant_pool_give(pool, first + 1);
        kvant_pool_give(pool, first);
        assert_int_equal(largest_hole(pool), 100 * 64);
        kvant_pool_close(pool);
    }
}

static void small_holes_are_unusable(void **state) {
    (void)state;
    kvant_pool *pool = open_pool(64 * 64, 64);
    uint32_t at[32];
    for (uint32_t i = 0; i < 32; i++) at[i] = kvant_pool_take(pool, 128);
    for (uint32_t i = 0; i < 32; i += 4) kvant_pool_shrink(pool, at[i], 64);
    kvant_pool_give(pool, at[30]);
    assert_int_equal(kvant_pool_describe(pool, 64).unusable, 0);
    assert_int_equal(kvant_pool_describe(pool, 65).unusable,
                     8 * 64); /* an extent of 65 bytes takes two units */
    assert_int_equal(kvant_pool_describe(pool, 128).unusable, 8 * 64);
    assert_int_equal(kvant_pool_describe(pool, 129).unusable, 10 * 64);
    assert_int_equal(kvant_pool_describe(pool, UINT64_MAX).unusable, 10 * 64);
    assert_int_equal(kvant_pool_describe(pool, 0).largest, 128);
    kvant_pool_close(pool);
}

/* ---- Large --------------------------------------------------------------------------------------------- */

/* Writes two extents at the far end; between them and the base lies one that is never touched. */
static void use_far_end(uint64_t bytes, uint32_t unit) {
    kvant_pool *pool = open_pool(bytes, 64);
    assert_int_equal(kvant_pool_describe(pool, 0).capacity, bytes);
    const uint8_t *base = kvant_pool_address(pool, 0);
    uint32_t filler = kvant_pool_take(pool, bytes - 5000 * (uint64_t)unit);
    assert_int_equal(filler, 0);
    uint32_t a = kvant_pool_take(pool, 4000 * (uint64_t)unit),
             b = kvant_pool_take(pool, 1000 * (uint64_t)unit);
    assert_int_equal((uint64_t)a * unit, bytes - 5000 * (uint64_t)unit);
    assert_int_equal((uint64_t)b * unit, bytes - 1000 * (uint64_t)unit);
    uint8_t *at_a = kvant_pool_address(pool, a), *at_b = kvant_pool_address(pool, b);
    assert_true(at_a == base + (uint64_t)a * unit && at_b == base + (uint64_t)b * unit);
    memset(at_a, 0xA5, 4000 * (size_t)unit);
    memset(at_b, 0x5A, 1000 * (size_t)unit);
    for (size_t i = 0; i < 4000 * (size_t)unit; i++) assert_true(at_a[i] == 0xA5);
    assert_int_equal(kvant_pool_take(pool, 1), KVANT_POOL_NONE);
    kvant_pool_give(pool, a);
    assert_int_equal(largest_hole(pool), 4000 * (uint64_t)unit);
    kvant_pool_shrink(pool, filler, bytes - 5010 * (uint64_t)unit);
    assert_int_equal(largest_hole(pool), 4010 * (uint64_t)unit);
    assert_int_equal(kvant_pool_take(pool, 4010 * (uint64_t)unit), a - 10);
    assert_int_equal(kvant_pool_describe(pool, 0).used, bytes);
    for (size_t i = 0; i < 1000 * (size_t)unit; i++) assert_true(at_b[i] == 0x5A);
    kvant_pool_close(pool);
}

static void beyond_four_gib(void **state) {
    (void)state;
    use_far_end(UINT64_C(9) << 30, 64);
}

/* 2^32 units of 64 bytes are 256 GiB. */
static void units_grow_with_the_pool(void **state) {
    (void)state;
    kvant_pool *pool;
    kvant_status status = kvant_pool_open(UINT64_C(600) << 30, 64, &pool, NULL);
    if (status == KVANT_ERROR_MEMORY) {
        print_message("this system does not lend 600 GiB of addresses\n");
        skip();
    }
    assert_int_equal(status, KVANT_OK);
    kvant_pool_close(pool);
    for (uint32_t i = 0; i < 250; i++) { /* more than there are addresses, unless they are given back */
        assert_int_equal(kvant_pool_open(UINT64_C(600) << 30, 64, &pool, NULL), KVANT_OK);
        kvant_pool_close(pool);
    }
    use_far_end(UINT64_C(256) << 30, 128);
    use_far_end((UINT64_C(256) << 30) - 5 * 64, 64);
    use_far_end(UINT64_C(600) << 30, 256);
}

/* ---- Own memory ---------------------------------------------------------------------------------------- */

static void tables_stay_below_one_percent(void **state) {
    (void)state;
    enum { EXTENT = 4096, COUNT = 50000 };
    kvant_pool *pool = open_pool((uint64_t)COUNT * EXTENT, 64);
    for (uint32_t i = 0; i < COUNT; i++) {
        assert_true(kvant_pool_take(pool, EXTENT) != KVANT_POOL_NONE);
        uint64_t tables = kvant_pool_describe(pool, EXTENT).table_bytes, used = (uint64_t)(i + 1) * EXTENT;
        if (i > 500 && tables * 100 > used + used / 4)
            fail_msg("%u extents of 4 KiB, %u bytes of tables", i + 1, (unsigned)tables);
    }
    kvant_pool_close(pool);
}

/* Holes of one size that come and go in the order of their addresses, which is the worst for a tree that is
 * not balanced: a search that walks them one by one takes minutes. */
static void many_holes_are_quick(void **state) {
    (void)state;
    enum { COUNT = 200000 };
    kvant_pool *pool = open_pool((uint64_t)COUNT * 64, 64);
    clock_t start = clock();
    for (uint32_t i = 0; i < COUNT; i++) assert_int_equal(kvant_pool_take(pool, 64), i);
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < COUNT; i += 2) kvant_pool_give(pool, i);
        assert_int_equal(kvant_pool_describe(pool, 65).unusable, COUNT / 2 * 64);
        for (uint32_t i = 0; i < COUNT; i += 2) assert_int_equal(kvant_pool_take(pool, 64), i);
    }
    assert_true((double)(clock() - start) < 10.0 * CLOCKS_PER_SEC);
    kvant_pool_close(pool);
}

static void opens_or_has_no_memory(void **state) {
    (void)state;
    if (!MEMORY_FAULTS_WORK) skip();
    bool done = false;
    uint64_t nth = 0;
    for (; !done; nth++) {
        kvant_pool *pool;
        memory_faults_start(nth, false);
        kvant_status status = kvant_pool_open(1 << 20, 64, &pool, NULL);
        done = memory_faults_stop() <= nth;
        assert_int_equal(status, done ? KVANT_OK : KVANT_ERROR_MEMORY);
        assert_true((pool != NULL) == done);
        kvant_pool_close(pool);
    }
    assert_true(nth > 3);
}

/* Without memory for tables take refuses, and shrink and give go on as if nothing were. */
static void no_memory_for_tables(void **state) {
    (void)state;
    if (!MEMORY_FAULTS_WORK) skip();
    map *m = calloc(1, sizeof *m);
    *m = (map){.unit = 64, .units = MAP_UNITS_MAX};
    kvant_pool *pool = open_pool(MAP_UNITS_MAX * 64, 64);
    uint64_t seed = 5;
    for (uint32_t i = 0; i < 40; i++) do_take(pool, m, 64);
    memory_faults_start(0, true);
    uint32_t taken = 0;
    for (uint32_t at; (at = kvant_pool_take(pool, 64)) != KVANT_POOL_NONE; taken++) {
        map_set(m, at, 1, ++m->last);
        m->size[at] = 1;
        m->used++;
        write_units(pool, m, at);
    }
    memory_faults_stop();
    m->peak = m->used;
    assert_in_range(taken, 1, 200); /* there was room in the pool for more */
    assert_same_state(pool, m, 64);
    memory_faults_start(0, true);
    for (uint32_t i = 0; i < 20; i++) do_give(pool, m, some_extent(m, &seed));
    for (uint32_t i = 0; i < 20; i++) do_take(pool, m, 64); /* numbers of those that went */
    memory_faults_stop();
    assert_same_state(pool, m, 64);
    for (uint32_t i = 0; i < 400; i++) do_take(pool, m, 64);
    for (uint32_t start; (start = some_extent(m, &seed)) != KVANT_POOL_NONE;) do_give(pool, m, start);
    assert_same_state(pool, m, 64);
    kvant_pool_close(pool);
    free(m);
}

/* ---- Checks -------------------------------------------------------------------------------------------- */

static bool is_gone(const uint8_t *bytes, size_t size) {
#if KVANT_ASAN
    for (size_t i = 0; i < size; i++)
        if (!__asan_address_is_poisoned(bytes + i)) return false;
#else
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != KVANT_POISON) return false;
#endif
    return true;
}

static void what_is_freed_is_poisoned(void **state) {
    (void)state;
    if (!KVANT_CHECKED) skip();
    kvant_pool *pool = open_pool(1 << 16, 64);
    uint32_t a = kvant_pool_take(pool, 1000), b = kvant_pool_take(pool, 1000);
    uint8_t *at_a = kvant_pool_address(pool, a), *at_b = kvant_pool_address(pool, b);
    memset(at_a, 1, 1024);
    memset(at_b, 2, 1024);
    kvant_pool_give(pool, a);
    assert_true(is_gone(at_a, 1024));
    kvant_pool_shrink(pool, b, 100);
    assert_true(is_gone(at_b + 128, 1024 - 128));
    for (uint32_t i = 0; i < 128; i++) assert_int_equal(at_b[i], 2);
    assert_int_equal(kvant_pool_take(pool, 1000), a);
    assert_int_equal(kvant_pool_take(pool, 896), b + 2);
    memset(at_a, 3, 1024); /* and may be used again */
    memset(at_b + 128, 4, 896);
    kvant_pool_close(pool);
}

enum {
    GIVE_TWICE,
    GIVE_NEVER_TAKEN,
    GIVE_MIDDLE,
    GIVE_NONE,
    GROW,
    SHRINK_TO_NOTHING,
    TAKE_NOTHING,
    MISTAKES
};

static void make_mistake(kvant_pool *pool, uint32_t extent, uint32_t mistake) {
    switch (mistake) {
    case GIVE_TWICE:
        kvant_pool_give(pool, extent);
        kvant_pool_give(pool, extent);
        break;
    case GIVE_NEVER_TAKEN:
        kvant_pool_give(pool, extent + 40);
        break;
    case GIVE_MIDDLE:
        kvant_pool_give(pool, extent + 1);
        break;
    case GIVE_NONE:
        kvant_pool_give(pool, KVANT_POOL_NONE);
        break;
    case GROW:
        kvant_pool_shrink(pool, extent, 10 * 64 + 1);
        break;
    case SHRINK_TO_NOTHING:
        kvant_pool_shrink(pool, extent, 0);
        break;
    case TAKE_NOTHING:
        assert_int_equal(kvant_pool_take(pool, 0), KVANT_POOL_NONE);
        break;
    default:
        fail();
    }
}

static void mistakes_end_the_process(void **state) {
    (void)state;
    for (uint32_t mistake = 0; mistake < MISTAKES; mistake++) {
        kvant_pool *pool = open_pool(1 << 16, 64);
        assert_int_equal(kvant_pool_take(pool, 64), 0);
        uint32_t extent = kvant_pool_take(pool, 640);
        if (!KVANT_CHECKED) {
            make_mistake(pool, extent, mistake);
            assert_int_equal(kvant_pool_describe(pool, 0).used, mistake == GIVE_TWICE ? 64 : 704);
        } else {
            fflush(NULL);
            pid_t child = fork();
            if (child == 0) {
                signal(SIGABRT, SIG_DFL);
                if (freopen("/dev/null", "w", stderr) == NULL) _exit(2);
                make_mistake(pool, extent, mistake);
                _exit(1);
            }
            int status = 0;
            assert_int_equal(waitpid(child, &status, 0), child);
            if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
                fail_msg("mistake %u goes unnoticed", mistake);
        }
        kvant_pool_close(pool);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(agrees_with_a_map_of_units), cmocka_unit_test(opens_what_it_can),
        cmocka_unit_test(last_extent_of_a_full_pool), cmocka_unit_test(holes_become_one),
        cmocka_unit_test(small_holes_are_unusable),   cmocka_unit_test(beyond_four_gib),
        cmocka_unit_test(units_grow_with_the_pool),   cmocka_unit_test(tables_stay_below_one_percent),
        cmocka_unit_test(many_holes_are_quick),       cmocka_unit_test(opens_or_has_no_memory),
        cmocka_unit_test(no_memory_for_tables),       cmocka_unit_test(what_is_freed_is_poisoned),
        cmocka_unit_test(mistakes_end_the_process),   cmocka_unit_test(addresses_of_somebody_else),
    };
    return kvant_run_tests(tests, argc, argv);
}
