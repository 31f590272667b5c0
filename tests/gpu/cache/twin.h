/* A cache in the host's memory and one on a device, given the same calls: everything that can be seen of
 * them, and every byte of their pools that somebody holds, must be the same. Outputs of attention are within
 * tolerance.
 *
 *     twin *t = twin_open(&(twin_wish){.rig = {.text = ini}});
 *     twin_sequence s = twin_create(t);
 *     twin_take(t, &(twin_step){.s = &s, .ids = ids, .count = 70}, 1);        one step of one sequence
 *     twin_assert_same(t, &s);
 *     twin_free(&s); twin_close(t);
 *
 * The driver is whatever is found: a real one, or the interpreter's libcuda.so.1 where the search path names
 * it. Calls that must work fail the test. */
#ifndef KVANT_TEST_GPU_CACHE_TWIN_H
#define KVANT_TEST_GPU_CACHE_TWIN_H

#include "support/cache_rig.h"

#include <kvant/kvant.h>

/* Device 0, once in a process; the test is skipped where this build has no kernels, and fails where there is
 * no driver. */
kvant_device *twin_device(void);
void twin_device_close(void);

typedef struct twin_wish {
    rig_wish rig;       /* of the host's cache */
    kvant_store *store; /* of the device's */
    uint64_t bytes;     /* of the device's pool; 0 = as the host's */
} twin_wish;

typedef struct twin {
    rig *host;
    kvant_device *device;
    kvant_cache *cache; /* there */
    double worst;       /* error of outputs, in parts of what is allowed */
} twin;

twin *twin_open(const twin_wish *wish);
void twin_close(twin *t);

typedef struct twin_sequence {
    kvant_sequence *host, *there;
} twin_sequence;

twin_sequence twin_create(twin *t);
void twin_free(twin_sequence *s);

/* How rows, queries and outputs lie in memory. */
enum { TWIN_DENSE = 0, TWIN_BACKWARDS = 1, TWIN_ODD = 2 };

typedef struct twin_step {
    twin_sequence *s;
    const uint64_t *ids; /* of the step's tokens */
    uint32_t count, tentative;
    uint32_t dropped; /* at commit */
    uint32_t layout;  /* TWIN_* */
    bool unknown;     /* the caches are not told the ids */
    bool quiet;       /* rows are put without queries */
    bool apart;       /* layer by layer: begin, attend, end */
    uint32_t spoiled; /* this many elements are not finite: the first is NaN, the others infinite */
    uint32_t spoiled_layer, spoiled_side, spoiled_at; /* from this element of the step's dense rows on */
} twin_step;

/* The same step of several sequences at once. */
void twin_take(twin *t, const twin_step *steps, uint32_t count);
void twin_begin(twin *t, const twin_step *step);
/* All layers; both, or the device's cache alone. */
void twin_put_there(twin *t, const twin_step *step);
void twin_layers(twin *t, const twin_step *steps, uint32_t count);
void twin_commit(twin *t, const twin_step *step);
/* ids in steps of at most `chunk` tokens; the first ones are there already. */
void twin_grow(twin *t, twin_sequence *s, const uint64_t *ids, uint32_t count, uint32_t chunk);

/* What is known and held of a sequence, byte for byte, and read of it in every dtype. */
void twin_assert_same(twin *t, const twin_sequence *s);
/* Counts and bytes of the caches. */
void twin_assert_reports(const twin *t);

/* Queries over both at the sequence's end, within a window; 0 = the layer's. */
void twin_probe(twin *t, const twin_sequence *s, uint32_t rows, uint32_t window);

/* Rows of a step in memory: dense ones, laid out anew. For the caller to free. */
typedef struct twin_rows {
    kvant_view host, there;
    void *memory;
    size_t size;
    uint64_t address;
} twin_rows;
twin_rows twin_lay_out(const twin *t, void *dense, uint32_t dtype, uint32_t tokens, uint32_t heads,
                       uint32_t dim, uint32_t layout);
void twin_rows_free(const twin *t, twin_rows *rows);

#endif
