/* A device's memory as a cache's place (place.h): its parts. Whatever is asked for is put into the cache's
 * stream and happens in its order, which is the order of the calls. So bytes that are given back may be used
 * again at once: whoever gets them comes later in the stream.
 *
 * One lock guards what prepares and launches: works, their scratch, idle memory. It is held while lists are
 * written and kernels are put into the stream, never while somebody waits for them. It comes after the
 * cache's lock, of which nothing is asked while it is held. */
#ifndef KVANT_CACHE_PLACE_DEVICE_H
#define KVANT_CACHE_PLACE_DEVICE_H

#include "cache/step.h"
#include "device/device.h"

/* Device memory that steps take in turns. */
typedef struct cache_memory {
    struct cache_memory *next;
    uint64_t size;
    uint64_t address;
} cache_memory;

/* What attention takes of the lists of a work. */
typedef struct cache_demand {
    uint64_t sequences;
    uint64_t positions;
    uint64_t of_one; /* positions of a sequence at once */
    uint64_t runs;
    uint64_t references;
} cache_demand;

struct cache_device {
    kvant_device *device;
    void *stream;
    uint64_t pool; /* as it was allocated */
    kvant_device_layer **layers;
    uint32_t chunk; /* query rows of a sequence that are attended at once */

    pthread_mutex_t lock;
    kvant_device_work **works; /* [layers], open for `limits` */
    kvant_device_limits limits;
    uint64_t scratch;  /* of all works */
    cache_demand open; /* of all steps under way */
    cache_memory *idle;
};

/* A step's part of it. */
typedef struct cache_device_step {
    cache_memory *memory; /* core_rows_status [layers][2] | rows of one layer, not finite ones replaced */
    uint64_t rows_at;     /* there */
    bool rows_taken;
    bool queued; /* the buffer is read or written in the stream */
    uint32_t layers_done;
    size_t encoded_at; /* in the buffer, behind what came back of `memory`: device_encode_status
                          [layers][2][sealed] */
    cache_demand demand;
} cache_device_step;

/* ---- place_device.c ------------------------------------------------------------------------------------ */

/* Idle memory of that size, or more from the device. Takes the lock. */
kvant_status cache_memory_take(kvant_cache *cache, uint64_t size, cache_memory **memory, kvant_diag *diag);
void cache_memory_give(kvant_cache *cache, cache_memory *memory);

enum {
    CACHE_BLOCKS = 64, /* that works encode or decode at once */
    /* What steps under way are attended together, at most; a single one may take more. */
    CACHE_TOGETHER_SEQUENCES = 128,
    CACHE_TOGETHER_POSITIONS = 4096,
    CACHE_TOGETHER_RUNS = 4096,
    CACHE_TOGETHER_REFERENCES = 1 << 15
};

/* Under the lock: opens the works for at least this much, which may wait for the stream. On failure they are
 * as before. */
kvant_status cache_works_grow(kvant_cache *cache, cache_demand demand, kvant_diag *diag);

/* Row jobs on their way to the stream. */
enum { CACHE_JOBS = 64 };
typedef struct cache_jobs {
    kvant_cache *cache;
    uint32_t count;
    core_rows_job jobs[CACHE_JOBS];
} cache_jobs;

kvant_status cache_jobs_add(cache_jobs *list, const core_rows_job *job, kvant_diag *diag);
kvant_status cache_jobs_put(cache_jobs *list, kvant_diag *diag);

/* Rows to where they go; to: NULL = they are only looked at. */
core_rows_job cache_rows_job(const kvant_view *from, const kvant_mutable_view *to);

/* ---- step_device.c ------------------------------------------------------------------------------------- */

kvant_status cache_device_begin(kvant_sequence *s, kvant_diag *diag);
void cache_device_end(kvant_sequence *s);
kvant_status cache_device_open_rows(kvant_sequence *s, uint32_t layer, kvant_diag *diag);
kvant_status cache_device_keep_rows(kvant_sequence *const *sequences, uint32_t count, uint32_t layer,
                                    kvant_diag *diag);
kvant_status cache_device_encode(kvant_sequence *s, uint32_t first, uint32_t count, uint32_t layer,
                                 uint32_t layers, kvant_diag *diag);
void cache_device_close_rows(kvant_sequence *s, uint32_t layer);
kvant_status cache_device_commit(kvant_sequence *s, kvant_diag *diag);

/* ---- attend_device.c ----------------------------------------------------------------------------------- */

kvant_status cache_device_attend(kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts,
                                 uint32_t count, const kvant_attention_options *options, void *scratch,
                                 size_t scratch_size, kvant_diag *diag);
kvant_status cache_device_attend_steps(kvant_cache *cache, uint32_t layer, const kvant_step_rows *rows,
                                       uint32_t count, const kvant_attention_options *options,
                                       kvant_diag *diag);

#endif
