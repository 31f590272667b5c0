/* A step under way. Its tokens are [first, end) of the sequence; the tail's grid of pages goes on through it:
 *
 *     grid            0        1        2        3        4            each block_tokens positions
 *                     |  page  |  page  | pa.. step      |        |
 *     tail_first ^                          ^ first                ^ end
 *     sealed          <----- old ----><- own ->                        grid places 0 .. sealed_count - 1
 *
 * Old ones lie wholly in the tail and are encoded at begin. The one after them may hold rows of both: it has
 * a page, which the step's rows complete. What else is sealed goes from the caller's view into its extents.
 * Rows that stay raw go to pages: the last one of the tail (a copy of it, if others hold it too) and fresh
 * ones. */
#ifndef KVANT_CACHE_STEP_H
#define KVANT_CACHE_STEP_H

#include "cache/place.h"
#include "cache/sequence.h"

enum { CACHE_LAYER_MISSING = 0, CACHE_LAYER_OPEN = 1, CACHE_LAYER_DONE = 2 };

typedef struct cache_step_layer {
    uint32_t state;     /* CACHE_LAYER_* */
    kvant_view rows[2]; /* while open: the caller's, or what stands for them */
    void *replaced[2]; /* the place's: rows with what was not finite replaced; NULL = the caller's are used */
} cache_step_layer;

/* What the attention floor is told of one sequence. */
typedef struct cache_sight {
    kvant_reference *references;
    kvant_gpu_reference *gpu_references; /* in their place, where the cache lies on a device */
    kvant_raw_run *runs;
    kvant_view *views; /* two for each run */
    kvant_token_range *ranges;
    uint32_t reference_count, reference_room, run_count, run_room;
} cache_sight;

struct cache_step {
    uint64_t first, end;
    uint32_t count, tentative;
    bool identified;      /* ids were given */
    cache_block **sealed; /* [sealed_count] */
    uint32_t sealed_count, old_count;
    cache_page *copy; /* stands for the tail's last page, which others hold too; NULL = none */
    cache_page **fresh;
    uint32_t fresh_first, fresh_count; /* in places of the grid */
    uint32_t reserved;                 /* places in the index */
    cache_step_layer *layers;
    uint64_t saturated, replaced;
    cache_buffer *buffer; /* host: encode scratch of all threads | attention scratch | sight */
    size_t attend_at, attend_bytes, sight_at;
    struct cache_device_step *device; /* place_device.h; NULL on the host */
    uint64_t table_bytes;             /* of this struct with its arrays */
};

/* Places of the grid that hold positions before this one. */
uint32_t step_places(const kvant_sequence *s, uint64_t position);

/* The page at a place of the grid; NULL where the step needs none. */
cache_page *step_page(const kvant_sequence *s, uint32_t place);

extern const char *const step_side_names[2];

/* The layer's views as the step's rows, once they are known to be right. */
kvant_status step_open_layer(kvant_sequence *s, uint32_t layer, const kvant_view *keys,
                             const kvant_view *values, kvant_diag *diag);

/* The open layer's rows are kept or encoded, in sequences of one cache. */
kvant_status step_close_layers(kvant_sequence *const *sequences, uint32_t count, uint32_t layer,
                               kvant_diag *diag);

/* Which rows of the step go to the page at a place, of keys and of values; false if there is no page. The
 * place has tokens of the step. */
bool step_kept(const kvant_sequence *s, uint32_t place, uint32_t layer, cache_copy copies[2]);

/* ---- Sealed blocks (seal.c) ---------------------------------------------------------------------------- */

/* The rows of the block at a place: a page's, where it has rows from before the step, else the step's own. */
kvant_view step_block_rows(const kvant_sequence *s, uint32_t place, uint32_t layer, uint32_t side);

/* What the largest size reserved and the encoded one does not take goes back to the pool. Takes the lock. */
void step_shrink(kvant_sequence *s, uint32_t first, uint32_t count, uint32_t layer, uint32_t layers);

/* ---- Lists of callers, walked by the first entry's struct_size ----------------------------------------- */

static inline const kvant_attend_part *attend_part_at(const kvant_attend_part *parts, uint32_t index) {
    return (const kvant_attend_part *)(const void *)((const char *)parts +
                                                     (size_t)index * parts[0].struct_size);
}

static inline const kvant_step_rows *step_rows_at(const kvant_step_rows *rows, uint32_t index) {
    return (const kvant_step_rows *)(const void *)((const char *)rows + (size_t)index * rows[0].struct_size);
}

/* ---- What a layer's queries see (sight.c) -------------------------------------------------------------- */

/* Places in the lists that suffice for any layer of the sequence, its step included. */
void sight_room(const kvant_sequence *s, uint32_t *references, uint32_t *runs);

/* Bytes of lists of that many places, with ranges for `rows` rows. */
size_t sight_bytes(uint32_t references, uint32_t runs, uint32_t rows);
cache_sight sight_place(void *memory, uint32_t references, uint32_t runs, uint32_t rows);

/* Fills the lists: the sequence as of its last commit, or with its step where the layer is open. */
void sight_fill(const kvant_sequence *s, uint32_t layer, cache_sight *sight);

#endif
