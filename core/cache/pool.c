/* See pool.h.
 *
 * Every byte belongs to an extent: behind its own units an extent may have a gap, which is a hole of the
 * pool. So holes need no nodes of their own, two holes never touch, and shrinking and giving only move a
 * boundary; they cannot run out of anything.
 *
 *     | gap of FIRST | extent | extent | gap | extent | gap |        FIRST: no units, at 0, never given
 *
 * Extents are linked in the order of addresses, chained in a hash table by the index of their first unit
 * (which grows a bucket at a time), and those with a gap are nodes of a treap that is ordered by (gap, where
 * it starts): its first node that is large enough is the best fit. The treap's priorities are a hash of where
 * the gap starts, so that it takes no room and is the same whenever the holes are. */
#include "pool.h"

#include <kvant/kit/diag.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checked.h"

enum { NONE = 0, FIRST = 1, PAGE = 4096, POISONED_EARLY = 64 << 20 };
static const uint64_t units_max = UINT32_MAX - 2; /* numbers of extents, and one that is no index */

/* Links are numbers of other extents, NONE = 0. */
typedef struct pool_extent {
    uint32_t start; /* in units, as all of these */
    uint32_t units;
    uint32_t gap;
    uint32_t before, after;   /* in the order of addresses */
    uint32_t smaller, larger; /* children in the treap of gaps */
    uint32_t chain;           /* in its bucket, or in the list of unused numbers */
} pool_extent;

struct kvant_pool {
    unsigned char *base;
    unsigned unit_shift;
    uint32_t units;
    unsigned char *mapping; /* NULL = the bytes are somebody else's, and not ours to touch */
    size_t mapping_bytes;

    pool_extent *extents; /* [capacity]; the numbers below `fresh` were in use */
    uint32_t capacity;
    uint32_t fresh;
    uint32_t unused; /* list */
    uint32_t live;
    uint32_t gaps; /* root */

    uint32_t *buckets; /* [bucket_capacity], the first bucket_count in use */
    uint32_t bucket_count;
    uint32_t bucket_mask; /* the least 2^k - 1 that is not below bucket_count - 1 */
    uint32_t bucket_capacity;

    uint64_t used; /* units */
    uint64_t peak;

    uint32_t poisoned; /* no unit from here on was ever poisoned: a large pool's shadow is not all touched */
};

/* Also the end of the extent itself. */
static uint32_t gap_start(const pool_extent *e) {
    return e->start + e->units;
}

/* One to one, so that no two priorities are equal. */
static uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * UINT32_C(0x85ebca6b);
    x = (x ^ x >> 13) * UINT32_C(0xc2b2ae35);
    return x ^ x >> 16;
}

/* ---- Bytes --------------------------------------------------------------------------------------------- */

void *kvant_pool_address(const kvant_pool *pool, uint32_t index) {
    assert(index < pool->units);
    return pool->base + ((uint64_t)index << pool->unit_shift);
}

uint64_t kvant_pool_unit(const kvant_pool *pool) {
    return UINT64_C(1) << pool->unit_shift;
}

static void poison(kvant_pool *pool, uint32_t start, uint32_t units) {
    if (!KVANT_CHECKED || units == 0 || pool->mapping == NULL) return;
    size_t bytes = (size_t)units << pool->unit_shift;
    memset(kvant_pool_address(pool, start), KVANT_POISON, bytes);
    ASAN_POISON_MEMORY_REGION(kvant_pool_address(pool, start), bytes);
    if (start + units > pool->poisoned) pool->poisoned = start + units;
}

static void unpoison(kvant_pool *pool, uint32_t start, uint32_t units) {
    if (start >= pool->poisoned) return;
    if (units > pool->poisoned - start) units = pool->poisoned - start;
    ASAN_UNPOISON_MEMORY_REGION(kvant_pool_address(pool, start), (size_t)units << pool->unit_shift);
}

/* ---- Open ---------------------------------------------------------------------------------------------- */

static kvant_status map_region(kvant_pool *pool, size_t bytes, size_t alignment) {
    size_t slack = alignment > PAGE ? alignment : 0;
    pool->mapping_bytes = bytes + slack;
    void *mapping = mmap(NULL, pool->mapping_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return KVANT_ERROR_MEMORY;
    pool->mapping = mapping;
    pool->base = pool->mapping + (slack > 0 ? (alignment - (uintptr_t)mapping % alignment) % alignment : 0);
    return KVANT_OK;
}

static kvant_status open_tables(kvant_pool *pool) {
    pool->capacity = 64;
    pool->bucket_capacity = 16;
    pool->bucket_count = 1;
    pool->extents = malloc(pool->capacity * sizeof *pool->extents);
    pool->buckets = calloc(pool->bucket_capacity, sizeof *pool->buckets);
    if (pool->extents != NULL) pool->extents[FIRST] = (pool_extent){.gap = pool->units};
    if (pool->extents == NULL || pool->buckets == NULL) return KVANT_ERROR_MEMORY;
    pool->gaps = FIRST;
    pool->fresh = FIRST + 1;
    return KVANT_OK;
}

/* base: NULL = memory of the pool's own. */
static kvant_status open_pool(void *base, uint64_t bytes, uint32_t alignment, kvant_pool **out,
                              kvant_diag *diag) {
    *out = NULL;
    if (alignment == 0 || (alignment & (alignment - 1)) != 0)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "an alignment of %u is not a power of two",
                          alignment);
    unsigned shift = 0;
    while ((UINT64_C(1) << shift) < KVANT_POOL_UNIT || (UINT64_C(1) << shift) < alignment ||
           bytes >> shift > units_max)
        shift++;
    uint64_t size = bytes >> shift << shift;
    if (size == 0)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "a pool of %" PRIu64 " bytes is less than a unit of %" PRIu64, bytes,
                          UINT64_C(1) << shift);
    kvant_pool *pool = size > (uint64_t)PTRDIFF_MAX - alignment ? NULL : calloc(1, sizeof *pool);
    kvant_status status = pool == NULL ? KVANT_ERROR_MEMORY : KVANT_OK;
    if (status == KVANT_OK) {
        pool->unit_shift = shift;
        pool->units = (uint32_t)(size >> shift);
        pool->base = base;
        if (base == NULL) status = map_region(pool, (size_t)size, alignment);
    }
    if (status == KVANT_OK) status = open_tables(pool);
    if (status != KVANT_OK) {
        kvant_pool_close(pool);
        return kvant_fail(diag, status, "", "a pool of %" PRIu64 " bytes cannot be reserved", bytes);
    }
    uint32_t early = base == NULL ? (uint32_t)POISONED_EARLY >> shift : 0;
    pool->poisoned = early < pool->units ? early : pool->units;
    ASAN_POISON_MEMORY_REGION(pool->base, (size_t)pool->poisoned << shift);
    *out = pool;
    return KVANT_OK;
}

kvant_status kvant_pool_open(uint64_t bytes, uint32_t alignment, kvant_pool **pool, kvant_diag *diag) {
    return open_pool(NULL, bytes, alignment, pool, diag);
}

kvant_status kvant_pool_open_at(void *base, uint64_t bytes, uint32_t alignment, kvant_pool **pool,
                                kvant_diag *diag) {
    *pool = NULL;
    if (base == NULL || alignment == 0 || (uintptr_t)base % alignment != 0)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "",
                          "a pool's first address is 0, or not a multiple of %u", alignment);
    return open_pool(base, bytes, alignment, pool, diag);
}

void kvant_pool_close(kvant_pool *pool) {
    if (pool == NULL) return;
    /* The addresses will be somebody else's. */
    for (uint32_t at = pool->extents != NULL ? FIRST : NONE; at != NONE; at = pool->extents[at].after)
        unpoison(pool, gap_start(&pool->extents[at]), pool->extents[at].gap);
    if (pool->mapping != NULL) munmap(pool->mapping, pool->mapping_bytes);
    free(pool->extents);
    free(pool->buckets);
    free(pool);
}

/* ---- Gaps ---------------------------------------------------------------------------------------------- */

/* Whether the gap of a comes before (gap, start) in the treap's order. */
static bool gap_less(const pool_extent *a, uint32_t gap, uint32_t start) {
    return a->gap < gap || (a->gap == gap && gap_start(a) < start);
}

/* Gaps without units are not kept: for them both of these do nothing. */
static void gap_insert(kvant_pool *pool, uint32_t number) {
    pool_extent *all = pool->extents, *e = &all[number];
    if (e->gap == 0) return;
    uint32_t start = gap_start(e), priority = mix(start), *link = &pool->gaps;
    while (*link != NONE && mix(gap_start(&all[*link])) > priority)
        link = gap_less(&all[*link], e->gap, start) ? &all[*link].larger : &all[*link].smaller;
    /* Takes the place of what is there, which is cut in two. */
    uint32_t rest = *link, *smaller = &e->smaller, *larger = &e->larger;
    *link = number;
    while (rest != NONE) {
        pool_extent *r = &all[rest];
        if (gap_less(r, e->gap, start)) {
            *smaller = rest;
            smaller = &r->larger;
            rest = r->larger;
        } else {
            *larger = rest;
            larger = &r->smaller;
            rest = r->smaller;
        }
    }
    *smaller = NONE;
    *larger = NONE;
}

static void gap_remove(kvant_pool *pool, uint32_t number) {
    pool_extent *all = pool->extents, *e = &all[number];
    if (e->gap == 0) return;
    uint32_t start = gap_start(e), *link = &pool->gaps;
    while (*link != number) {
        assert(*link != NONE);
        link = gap_less(&all[*link], e->gap, start) ? &all[*link].larger : &all[*link].smaller;
    }
    /* Its two subtrees become one. */
    uint32_t a = e->smaller, b = e->larger;
    while (a != NONE && b != NONE) {
        if (mix(gap_start(&all[a])) > mix(gap_start(&all[b]))) {
            *link = a;
            link = &all[a].larger;
            a = all[a].larger;
        } else {
            *link = b;
            link = &all[b].smaller;
            b = all[b].smaller;
        }
    }
    *link = a != NONE ? a : b;
}

static uint32_t gap_best(const kvant_pool *pool, uint32_t units) {
    uint32_t best = NONE;
    for (uint32_t at = pool->gaps; at != NONE;) {
        const pool_extent *e = &pool->extents[at];
        if (e->gap >= units) best = at;
        at = e->gap >= units ? e->smaller : e->larger;
    }
    return best;
}

/* ---- Extents by index ---------------------------------------------------------------------------------- */

/* Linear hashing: a bucket that is not there yet is in the one that will be split for it. */
static uint32_t *bucket_of(const kvant_pool *pool, uint32_t start) {
    uint32_t bucket = mix(start) & pool->bucket_mask;
    return &pool->buckets[bucket < pool->bucket_count ? bucket : bucket & pool->bucket_mask >> 1];
}

/* One bucket more. Without memory for it chains only grow longer. */
static void split_bucket(kvant_pool *pool) {
    if (pool->bucket_count == pool->bucket_capacity) {
        uint32_t capacity = pool->bucket_capacity + pool->bucket_capacity / 4;
        uint32_t *buckets = realloc(pool->buckets, (size_t)capacity * sizeof *buckets);
        if (buckets == NULL) return;
        pool->buckets = buckets;
        pool->bucket_capacity = capacity;
    }
    uint32_t added = pool->bucket_count++;
    if (added > pool->bucket_mask) pool->bucket_mask = 2 * pool->bucket_mask + 1;
    uint32_t *from = &pool->buckets[added & pool->bucket_mask >> 1], *to = &pool->buckets[added];
    while (*from != NONE) {
        pool_extent *e = &pool->extents[*from];
        if (bucket_of(pool, e->start) == &pool->buckets[added]) {
            *to = *from;
            to = &e->chain;
            *from = e->chain;
        } else {
            from = &e->chain;
        }
    }
    *to = NONE;
}

/* The link to the extent whose index this is. */
static uint32_t *find(const kvant_pool *pool, uint32_t index) {
    uint32_t *link = bucket_of(pool, index);
    while (*link != NONE && pool->extents[*link].start != index) link = &pool->extents[*link].chain;
    return link;
}

/* NONE = no memory. */
static uint32_t new_extent(kvant_pool *pool) {
    uint32_t number = pool->unused;
    if (number != NONE) {
        pool->unused = pool->extents[number].chain;
        return number;
    }
    if (pool->fresh == pool->capacity) {
        uint64_t capacity = (uint64_t)pool->capacity + pool->capacity / 4;
        if (capacity > UINT32_MAX) capacity = UINT32_MAX;
        pool_extent *extents = realloc(pool->extents, (size_t)capacity * sizeof *extents);
        if (extents == NULL) return NONE;
        pool->extents = extents;
        pool->capacity = (uint32_t)capacity;
    }
    return pool->fresh++;
}

/* ---- Take, shrink, give -------------------------------------------------------------------------------- */

uint64_t kvant_pool_rounded(const kvant_pool *pool, uint64_t bytes) {
    uint64_t unit = UINT64_C(1) << pool->unit_shift;
    return bytes > UINT64_MAX - (unit - 1) ? UINT64_MAX - (unit - 1) : (bytes + (unit - 1)) / unit * unit;
}

/* 0 = more than the pool has. */
static uint32_t units_of(const kvant_pool *pool, uint64_t bytes) {
    uint64_t units = kvant_pool_rounded(pool, bytes) >> pool->unit_shift;
    return units <= pool->units ? (uint32_t)units : 0;
}

uint32_t kvant_pool_take(kvant_pool *pool, uint64_t bytes) {
    uint32_t units = units_of(pool, bytes);
    assert(bytes > 0);
    uint32_t hole = units > 0 ? gap_best(pool, units) : NONE;
    uint32_t number = hole != NONE ? new_extent(pool) : NONE;
    if (number == NONE) return KVANT_POOL_NONE;
    if (pool->live / 2 >= pool->bucket_count) split_bucket(pool);
    gap_remove(pool, hole);
    pool_extent *before = &pool->extents[hole], *e = &pool->extents[number];
    *e = (pool_extent){.start = gap_start(before),
                       .units = units,
                       .gap = before->gap - units,
                       .before = hole,
                       .after = before->after};
    before->gap = 0;
    before->after = number;
    if (e->after != NONE) pool->extents[e->after].before = number;
    gap_insert(pool, number);
    uint32_t *bucket = bucket_of(pool, e->start);
    e->chain = *bucket;
    *bucket = number;
    pool->live++;
    pool->used += units;
    if (pool->used > pool->peak) pool->peak = pool->used;
    unpoison(pool, e->start, units);
    return e->start;
}

void kvant_pool_shrink(kvant_pool *pool, uint32_t index, uint64_t bytes) {
    uint32_t number = *find(pool, index), units = units_of(pool, bytes);
    pool_extent *e = &pool->extents[number];
    bool ours = number != NONE && units > 0 && units <= e->units;
    assert(ours);
    if (!ours || units == e->units) return;
    uint32_t freed = e->units - units;
    gap_remove(pool, number);
    e->units = units;
    e->gap += freed;
    gap_insert(pool, number);
    pool->used -= freed;
    poison(pool, gap_start(e), freed);
}

void kvant_pool_give(kvant_pool *pool, uint32_t index) {
    uint32_t *link = find(pool, index), number = *link;
    assert(number != NONE);
    if (number == NONE) return;
    pool_extent *e = &pool->extents[number], *before = &pool->extents[e->before];
    *link = e->chain;
    gap_remove(pool, number);
    gap_remove(pool, e->before);
    before->gap += e->units + e->gap;
    before->after = e->after;
    if (e->after != NONE) pool->extents[e->after].before = e->before;
    gap_insert(pool, e->before);
    pool->live--;
    pool->used -= e->units;
    poison(pool, e->start, e->units);
    e->chain = pool->unused;
    pool->unused = number;
}

/* ---- Report -------------------------------------------------------------------------------------------- */

/* As deep as the treap. */
static uint64_t units_in_gaps_below(const kvant_pool *pool, uint32_t root, uint64_t units) {
    uint64_t sum = 0;
    while (root != NONE) {
        const pool_extent *e = &pool->extents[root];
        if (e->gap < units) sum += e->gap + units_in_gaps_below(pool, e->larger, units);
        root = e->smaller;
    }
    return sum;
}

kvant_pool_state kvant_pool_describe(const kvant_pool *pool, uint64_t smallest) {
    unsigned shift = pool->unit_shift;
    uint32_t largest = pool->gaps;
    while (largest != NONE && pool->extents[largest].larger != NONE) largest = pool->extents[largest].larger;
    uint64_t smallest_units = kvant_pool_rounded(pool, smallest) >> shift;
    return (kvant_pool_state){
        .capacity = (uint64_t)pool->units << shift,
        .used = pool->used << shift,
        .peak = pool->peak << shift,
        .unusable = units_in_gaps_below(pool, pool->gaps, smallest_units) << shift,
        .largest = largest != NONE ? (uint64_t)pool->extents[largest].gap << shift : 0,
        .extents = pool->live,
        .table_bytes = sizeof *pool + (uint64_t)pool->capacity * sizeof *pool->extents +
                       (uint64_t)pool->bucket_capacity * sizeof *pool->buckets,
    };
}
