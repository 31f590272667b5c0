/* The bytes of a triaxial extent, and the one function that computes where they lie.
 *
 * A block has T tokens, T a multiple of the quantum G. Tokens of width 2 fill quanta of G in the order of
 * their positions; those of the last, incomplete quantum are promoted: they become tokens of width 4. So n2,
 * the number of tokens of width 2, is a multiple of G, and so is n4 = T - n2. The tokens of one width, in the
 * order of their positions, are a run.
 *
 *     extent   | map | head 0 | head 1 | ... | head H-1 |      size = size_min + n4 / G * size_step
 *
 *     map      bit t % 8 of byte t / 8 is 1 where token t has width 4; zeros up to a multiple of 64
 *
 *     head     | narrow codes | scales | minima | wide codes | scales | minima |
 *              |<--------- run of n2 -------->|<-------- run of n4 --------->|     a multiple of 64 each
 *
 *     codes    planar order (kvant/kit/planar.h), 2 bits in the narrow run, 4 in the wide one
 *              keys     one matrix: free = place in the run, summed = channel
 *              values   a run of matrices, one for every 64 places (the last may have fewer):
 *                       free = channel, summed = place
 *     scales   F16, little endian; minima the same shape, right behind
 *              keys, narrow       [n2 / G][head_dim rounded up to 16]   per channel, over the G tokens of a
 *                                                                       quantum
 *              all others         [head_dim / G, rounded up][n]         per token, over G channels; n the
 *                                                                       length of the run
 *
 * A quantum takes the same number of bytes wherever it lies in its run, so the size is linear in n4 / G. For
 * example keys, G = 32, head_dim 64, one head: 768 bytes a narrow quantum (512 codes, 2 * 128), 1280 a wide
 * one (1024 codes, 2 * 128).
 */
#ifndef KVANT_TRIAXIAL_BLOCK_H
#define KVANT_TRIAXIAL_BLOCK_H

#include <kvant/kit/planar.h>
#include <kvant/types.h>

#include <stdbool.h>

enum {
    TRIAXIAL_NARROW, /* 2 bits */
    TRIAXIAL_WIDE,   /* 4 bits */
    TRIAXIAL_WIDTHS,
    TRIAXIAL_MATRIX_TOKENS = 64, /* places of a value's code matrix */
    TRIAXIAL_ALIGN = 64
};

typedef struct triaxial_block {
    uint32_t side;
    uint32_t dtype; /* of the rows that encode gets */
    uint32_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t group;                        /* G */
    uint32_t channel_groups;               /* of a token: head_dim / G, rounded up */
    uint32_t plane_row;                    /* keys, narrow: scales of a quantum, with padding */
    size_t map_bytes;                      /* with padding */
    size_t quantum_bytes[TRIAXIAL_WIDTHS]; /* of a head */
} triaxial_block;

/* Where one run of a head lies. */
typedef struct triaxial_run {
    uint32_t bits;
    uint32_t levels; /* 2^bits - 1 */
    uint32_t count;  /* tokens */
    bool per_channel;
    size_t plane_row;    /* scales in a row of the plane */
    size_t code_offset;  /* from the head's first byte */
    size_t scale_offset; /* likewise */
    size_t min_offset;   /* likewise */
} triaxial_run;

static inline size_t triaxial_round_up(size_t size, size_t multiple) {
    return (size + multiple - 1) / multiple * multiple;
}

static inline size_t triaxial_code_bytes(const triaxial_block *block, uint32_t tokens, uint32_t bits) {
    if (block->side == KVANT_SIDE_KEY) return kvant_planar_bytes(tokens, block->head_dim, bits);
    return kvant_planar_bytes(block->head_dim, tokens, bits); /* matrices of 64 and their rest add up to it */
}

/* Scales of `tokens` tokens. */
static inline size_t triaxial_plane_bytes(const triaxial_block *block, uint32_t tokens, bool per_channel) {
    if (per_channel) return (size_t)tokens / block->group * block->plane_row * 2;
    return (size_t)block->channel_groups * tokens * 2;
}

/* Fills `block`. The caller has checked: group 32, 64 or 128, tokens a multiple of it, head_dim and tokens at
 * most 2^16, all at least 1. False where that is too much to address. */
static inline bool triaxial_block_make(triaxial_block *block, uint32_t side, uint32_t dtype, uint32_t group,
                                       uint32_t tokens, uint32_t heads, uint32_t head_dim) {
    *block = (triaxial_block){.side = side,
                              .dtype = dtype,
                              .tokens = tokens,
                              .heads = heads,
                              .head_dim = head_dim,
                              .group = group,
                              .channel_groups = (head_dim + group - 1) / group,
                              .plane_row = (uint32_t)triaxial_round_up(head_dim, 16)};
    block->map_bytes = triaxial_round_up((tokens + 7) / 8, TRIAXIAL_ALIGN);
    for (uint32_t w = 0; w < TRIAXIAL_WIDTHS; w++) {
        bool per_channel = side == KVANT_SIDE_KEY && w == TRIAXIAL_NARROW;
        block->quantum_bytes[w] =
            triaxial_code_bytes(block, group, 2u << w) + 2 * triaxial_plane_bytes(block, group, per_channel);
    }
    /* Bits of an extent never wrap. */
    return sizeof(size_t) >= 8 &&
           block->quantum_bytes[TRIAXIAL_WIDE] <= ((size_t)1 << 56) / heads / (tokens / group);
}

/* Bytes of a head, and of an extent, with `wide` tokens of width 4, a multiple of the group. */
static inline size_t triaxial_head_bytes(const triaxial_block *block, uint32_t wide) {
    return (size_t)(block->tokens - wide) / block->group * block->quantum_bytes[TRIAXIAL_NARROW] +
           (size_t)wide / block->group * block->quantum_bytes[TRIAXIAL_WIDE];
}

static inline size_t triaxial_extent_bytes(const triaxial_block *block, uint32_t wide) {
    return block->map_bytes + block->heads * triaxial_head_bytes(block, wide);
}

/* Both runs of a head. */
static inline void triaxial_runs(const triaxial_block *block, uint32_t wide,
                                 triaxial_run runs[TRIAXIAL_WIDTHS]) {
    size_t at = 0;
    for (uint32_t w = 0; w < TRIAXIAL_WIDTHS; w++) {
        triaxial_run *run = &runs[w];
        *run = (triaxial_run){.bits = 2u << w,
                              .levels = w == TRIAXIAL_NARROW ? 3 : 15,
                              .count = w == TRIAXIAL_NARROW ? block->tokens - wide : wide,
                              .per_channel = w == TRIAXIAL_NARROW && block->side == KVANT_SIDE_KEY};
        size_t plane = triaxial_plane_bytes(block, run->count, run->per_channel);
        run->plane_row = run->per_channel ? block->plane_row : run->count;
        run->code_offset = at;
        run->scale_offset = at + triaxial_code_bytes(block, run->count, run->bits);
        run->min_offset = run->scale_offset + plane;
        at = run->min_offset + plane;
    }
}

/* Index of a scale and minimum within their planes. */
static inline size_t triaxial_plane_index(const triaxial_block *block, const triaxial_run *run,
                                          uint32_t place, uint32_t channel) {
    if (run->per_channel) return (size_t)(place / block->group) * run->plane_row + channel;
    return (size_t)(channel / block->group) * run->plane_row + place;
}

/* Of values: the matrix that holds a place, from the run's codes on, and how many places it has. */
static inline size_t triaxial_matrix(const triaxial_block *block, const triaxial_run *run, uint32_t place,
                                     uint32_t *places) {
    uint32_t first = place - place % TRIAXIAL_MATRIX_TOKENS, left = run->count - first;
    *places = left < TRIAXIAL_MATRIX_TOKENS ? left : TRIAXIAL_MATRIX_TOKENS;
    return kvant_planar_bytes(block->head_dim, first, run->bits);
}

/* One code. `codes`: the first byte of the run's codes. */
static inline void triaxial_code_put(const triaxial_block *block, const triaxial_run *run, uint8_t *codes,
                                     uint32_t place, uint32_t channel, uint32_t code) {
    uint32_t places;
    if (block->side == KVANT_SIDE_KEY) {
        kvant_planar_put(codes, block->head_dim, run->bits, place, channel, code);
    } else {
        uint8_t *matrix = codes + triaxial_matrix(block, run, place, &places);
        kvant_planar_put(matrix, places, run->bits, channel, place % TRIAXIAL_MATRIX_TOKENS, code);
    }
}

static inline uint32_t triaxial_code_get(const triaxial_block *block, const triaxial_run *run,
                                         const uint8_t *codes, uint32_t place, uint32_t channel) {
    uint32_t places;
    if (block->side == KVANT_SIDE_KEY)
        return kvant_planar_get(codes, block->head_dim, run->bits, place, channel);
    const uint8_t *matrix = codes + triaxial_matrix(block, run, place, &places);
    return kvant_planar_get(matrix, places, run->bits, channel, place % TRIAXIAL_MATRIX_TOKENS);
}

/* ---- Which token has which width ----------------------------------------------------------------------- */

/* The tokens of the narrow run, then those of the wide one, to order[tokens]. classes: 0 = width 2, else 4.
 * Returns the number of wide tokens, after promotion. */
static inline uint32_t triaxial_order(const triaxial_block *block, const uint8_t *classes, uint32_t *order) {
    uint32_t narrow = 0, placed = 0;
    for (uint32_t t = 0; t < block->tokens; t++) narrow += classes[t] == 0;
    narrow -= narrow % block->group;
    uint32_t wide = narrow;
    for (uint32_t t = 0; t < block->tokens; t++) {
        if (classes[t] == 0 && placed < narrow)
            order[placed++] = t;
        else
            order[wide++] = t;
    }
    return block->tokens - narrow;
}

/* The same from the bytes of an extent of `size` bytes. Whatever they are, each token gets one place. */
static inline uint32_t triaxial_order_of_extent(const triaxial_block *block, const uint8_t *extent,
                                                uint64_t size, uint32_t *order) {
    uint64_t step =
        (block->quantum_bytes[TRIAXIAL_WIDE] - block->quantum_bytes[TRIAXIAL_NARROW]) * block->heads;
    uint64_t least = triaxial_extent_bytes(block, 0), quanta = size > least ? (size - least) / step : 0;
    uint32_t most = block->tokens / block->group;
    uint32_t narrow = block->tokens - (uint32_t)(quanta < most ? quanta : most) * block->group;
    uint32_t placed = 0, wide = narrow;
    for (uint32_t t = 0; t < block->tokens; t++) {
        bool is_wide = extent[t / 8] >> t % 8 & 1;
        if ((is_wide && wide < block->tokens) || placed == narrow)
            order[wide++] = t;
        else
            order[placed++] = t;
    }
    return block->tokens - narrow;
}

#endif
