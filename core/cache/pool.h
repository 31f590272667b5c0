/* The cache's bytes: one run of memory, cut into extents of any number of units. An extent is named by the
 * index of its first unit, so that 32 bits reach far: it lies at base + index * unit.
 *
 * Best fit: an extent is cut from the front of the smallest hole that is large enough, of equal ones from the
 * one with the lowest index. So where things lie depends on nothing but the calls before.
 *
 * Not locked: whoever takes and gives holds the cache's lock. Addresses may be asked for and bytes of live
 * extents used on any thread. take, shrink and give cost O(log extents); a table that must grow is moved.
 *
 * An index that was not taken, or was given back, and a shrink to more than there is are mistakes of ours:
 * where checks are on (checked.h) they end the process, elsewhere nothing happens. There, too, what is given
 * back is overwritten. */
#ifndef KVANT_CACHE_POOL_H
#define KVANT_CACHE_POOL_H

#include <kvant/types.h>

typedef struct kvant_pool kvant_pool;

enum { KVANT_POOL_UNIT = 64 };
#define KVANT_POOL_NONE UINT32_MAX /* no extent's index */

/* Reserves bytes rounded down to units; memory is touched as it is used. Every extent is aligned to
 * `alignment`, a power of two. The unit is the larger of KVANT_POOL_UNIT and `alignment`, doubled until 32
 * bits reach over the pool (256 GiB with units of 64 bytes). Errors: ARGUMENT (alignment; less bytes than a
 * unit), MEMORY. */
kvant_status kvant_pool_open(uint64_t bytes, uint32_t alignment, kvant_pool **pool, kvant_diag *diag);

/* The same over addresses of somebody else's, from `base` on, a multiple of the alignment: a device's. The
 * pool hands them out, and nothing of it reads or writes what lies there. They outlive the pool. */
kvant_status kvant_pool_open_at(void *base, uint64_t bytes, uint32_t alignment, kvant_pool **pool,
                                kvant_diag *diag);
void kvant_pool_close(kvant_pool *pool); /* NULL is fine */

/* bytes rounded up to units: what an extent of that many bytes takes. The largest multiple of the unit where
 * that overflows. */
uint64_t kvant_pool_rounded(const kvant_pool *pool, uint64_t bytes);

/* An extent of at least `bytes` > 0; KVANT_POOL_NONE where no hole is large enough, or memory for the pool's
 * own tables is out. Its contents are unspecified. */
uint32_t kvant_pool_take(kvant_pool *pool, uint64_t bytes);

/* Keeps the first `bytes` > 0 of an extent. Never fails. */
void kvant_pool_shrink(kvant_pool *pool, uint32_t index, uint64_t bytes);

/* Frees an extent. Never fails; neighbouring holes become one. */
void kvant_pool_give(kvant_pool *pool, uint32_t index);

void *kvant_pool_address(const kvant_pool *pool, uint32_t index);

/* Bytes from one index to the next. */
uint64_t kvant_pool_unit(const kvant_pool *pool);

/* In bytes, but for `extents`. */
typedef struct kvant_pool_state {
    uint64_t capacity;
    uint64_t used;        /* rounded to units, as all but table_bytes */
    uint64_t peak;        /* most that `used` ever was */
    uint64_t unusable;    /* free, in holes smaller than `smallest` */
    uint64_t largest;     /* hole */
    uint64_t extents;     /* that are live */
    uint64_t table_bytes; /* of the pool's own tables */
} kvant_pool_state;

/* smallest: of the extents that will be asked for; rounded up to units. Walks the holes below it: for
 * reports. */
kvant_pool_state kvant_pool_describe(const kvant_pool *pool, uint64_t smallest);

#endif
