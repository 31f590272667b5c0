/* Where a cache's bytes lie and who works on them: the one seam between what the cache knows (cache.h:
 * blocks, pages, sequences, who holds what) and bytes of the pool and of rows. Everything that reads or
 * writes such bytes goes through here; addresses are pool addresses (kvant_pool_address), which only a
 * place's own functions look behind.
 *
 *     place_host.c     the host's memory: what is asked for is done when a call returns
 *     place_device.c   a device's: what is asked for is put into the cache's stream, and is done in its
 *                      order. settle waits; nothing else does but what says so
 *
 * No lock of the cache is held by callers. */
#ifndef KVANT_CACHE_PLACE_H
#define KVANT_CACHE_PLACE_H

#include "cache/cache.h"

/* Rows of one dtype to others of it, as bits. */
typedef struct cache_copy {
    kvant_view from;
    kvant_mutable_view to;
} cache_copy;

/* Rows of a read that lie together: decoded from a block's extent, or raw ones as they are. */
typedef struct cache_piece {
    kvant_mutable_view to; /* of any dtype */
    kvant_view raw;        /* struct_size = 0: from the block */
    const cache_block *block;
    uint32_t first_token; /* of the block */
} cache_piece;

struct cache_place {
    /* The pool, after the layers' attention is open; what open leaves behind on failure close frees. */
    kvant_status (*open)(kvant_cache *cache, const kvant_cache_options *options, kvant_diag *diag);
    void (*close)(kvant_cache *cache);

    /* Memory of a cache_buffer, aligned to 4096. NULL without. */
    void *(*take)(kvant_cache *cache, size_t bytes);
    void (*give)(kvant_cache *cache, void *memory);

    /* ---- Bytes ---- */

    /* Copies do not overlap. */
    kvant_status (*copy)(kvant_cache *cache, const cache_copy *copies, uint32_t count, kvant_diag *diag);
    kvant_status (*zero)(kvant_cache *cache, void *pool, uint64_t bytes, kvant_diag *diag);

    /* Between the pool and a cache_buffer's bytes, which are used, or hold what was copied, until or after
     * settle. */
    kvant_status (*out)(kvant_cache *cache, void *buffer, const void *pool, uint64_t bytes, kvant_diag *diag);
    kvant_status (*in)(kvant_cache *cache, void *pool, const void *buffer, uint64_t bytes, kvant_diag *diag);

    /* Pieces of one layer and side. scratch: as kvant_sequence_read was given. */
    kvant_status (*read)(const kvant_sequence *sequence, uint32_t layer, uint32_t side,
                         const cache_piece *pieces, uint32_t count, void *scratch, kvant_diag *diag);
    kvant_status (*settle)(kvant_cache *cache, kvant_diag *diag);

    /* ---- Steps (step.h) ---- */

    /* What the step needs besides pages and blocks, which are counted: its buffer. MEMORY; DEVICE. */
    kvant_status (*begin)(kvant_sequence *sequence, kvant_diag *diag);
    /* Gives it back, with what open_rows took for any layer. The step may be unfinished. */
    void (*end)(kvant_sequence *sequence);

    /* Sees to numbers of the layer's rows that are not finite: refuses them (a device: at commit), or has the
     * layer's views point at a copy without them, counted. */
    kvant_status (*open_rows)(kvant_sequence *sequence, uint32_t layer, kvant_diag *diag);
    /* The sequences' rows that stay raw, or complete a page, go there. */
    kvant_status (*keep_rows)(kvant_sequence *const *sequences, uint32_t count, uint32_t layer,
                              kvant_diag *diag);
    /* Sealed blocks [first, first + count) of the step in the layers [layer, layer + layers), from pages or
     * from the open layer's views; each exactly once; and sinks of block 0. Sizes and counts are known on
     * return, or at commit. */
    kvant_status (*encode)(kvant_sequence *sequence, uint32_t first, uint32_t count, uint32_t layer,
                           uint32_t layers, kvant_diag *diag);
    /* The layer is done: gives back what open_rows took. */
    void (*close_rows)(kvant_sequence *sequence, uint32_t layer);
    /* All layers are done. Whatever was still unknown is known afterwards: sizes of extents, counts, and that
     * every number was finite. */
    kvant_status (*commit)(kvant_sequence *sequence, kvant_diag *diag);

    /* ---- Attention; arguments are as the calls of kvant/cache.h got them, and checked ---- */

    size_t (*attend_scratch)(const kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts,
                             uint32_t count, const kvant_attention_options *options);
    kvant_status (*attend)(kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts, uint32_t count,
                           const kvant_attention_options *options, void *scratch, size_t scratch_size,
                           kvant_diag *diag);
    /* The step's own queries, of sequences whose layer is open. Fails for no want of memory. */
    kvant_status (*attend_steps)(kvant_cache *cache, uint32_t layer, const kvant_step_rows *rows,
                                 uint32_t count, const kvant_attention_options *options, kvant_diag *diag);
};

extern const cache_place cache_place_host;
extern const cache_place cache_place_device;

#endif
