/* What the reference and the fast attention share: the query state, live ranges. */
#ifndef KVANT_HACK_ATTEND_H
#define KVANT_HACK_ATTEND_H

#include "hack_block.h"

#include <kvant/plugin.h>

/* Codes of a row of keys, and what stands behind them so that whole words of planar order can be read. */
static inline size_t hack_padded_dim(const hack_block *block) {
    return hack_round_up(block->head_dim, 32);
}

/* Bytes of one query row's state. Keys of axes = artifact hold the row itself, f32 [head_dim]; of axes =
 * paper what hack_query_parts says. */
static inline size_t hack_query_bytes(const hack_block *block) {
    if (block->per_channel) return hack_round_up(block->head_dim * sizeof(float), 64);
    return hack_round_up(3 * block->parts * sizeof(float) + hack_padded_dim(block), 64);
}

typedef struct hack_query_state {
    float *scale;   /* [parts] */
    float *min;     /* [parts] */
    uint32_t *sum;  /* [parts], of the codes */
    uint8_t *codes; /* [padded head_dim], zeros behind the last */
} hack_query_state;

static inline hack_query_state hack_query_parts(const hack_block *block, void *state) {
    float *scale = (float *)state;
    return (hack_query_state){scale, scale + block->parts,
                              (uint32_t *)(void *)(scale + 2 * (size_t)block->parts),
                              (uint8_t *)(scale + 3 * (size_t)block->parts)};
}

/* The live tokens of [first, first + count), as tokens of the extent; from = to where there are none. */
typedef struct hack_range {
    uint32_t from, to;
} hack_range;

static inline hack_range hack_live(const kvant_extent *extent, uint32_t first, uint32_t count) {
    uint32_t live_end = extent->live_first + extent->live_count, end = first + count;
    uint32_t from = extent->live_first > first ? extent->live_first : first;
    uint32_t to = live_end < end ? live_end : end;
    return from < to ? (hack_range){from, to} : (hack_range){first, first};
}

#endif
