/* The bytes of a KIVI extent, and the one function that computes where they lie.
 *
 *     extent   | head 0 | head 1 | ... | head H-1 |          each head_bytes long, a multiple of 64
 *
 *     head     0                codes      planar order, code_bytes long, a multiple of 64
 *              scale_offset     scales     meta type, little endian; scale_offset = code_bytes
 *              min_offset       minima     the same shape; min_offset is the next multiple of 16
 *              ...              zeros      up to a multiple of 64
 *
 *     keys     codes            one matrix: free = tokens, summed = channels
 *              scales, minima   [tokens / group][head_dim]: per group of tokens, the channels side by side
 *     values   codes            a run of matrices, matrix_bytes apart, one for every 64 tokens (the last
 *                               may have fewer): free = channels, summed = tokens
 *              scales, minima   [groups][tokens]: per group of channels, the tokens side by side
 *
 *     matrix   bits 1, 2, 4, 8  one set of planes, kvant/kit/planar.h
 *              bits 3           a 2-bit set (code & 3), then a 1-bit set (code >> 2)
 *
 * For example keys, 2 bits, groups of 32, 64 tokens, head_dim 64, scales in F16, one head:
 *
 *     0       1024       1280       1536
 *     | codes |  scales  |  minima  |           1024 = 64 * 64 * 2 / 8,  256 = 64/32 groups * 64 channels * 2
 *
 * Groups of channels count from channel 0; the last one is short where group does not divide head_dim, and
 * holds real channels only.
 */
#ifndef KVANT_KIVI_BLOCK_H
#define KVANT_KIVI_BLOCK_H

#include <kvant/kit/planar.h>
#include <kvant/kit/view.h>
#include <kvant/types.h>

#include <stdbool.h>

enum {
    KIVI_MATRIX_TOKENS = 64, /* tokens of a value's code matrix */
    KIVI_PLANE_ALIGN = 16, /* of the minima, so that a GPU lane's 16-byte load does not straddle two planes */
    KIVI_HEAD_ALIGN = 64
};

typedef struct kivi_block {
    uint32_t side;
    uint32_t bits;
    uint32_t levels; /* 2^bits - 1, the largest code */
    uint32_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t group;      /* keys: tokens; values: channels, at most head_dim */
    uint32_t groups;     /* keys: tokens / group; values: head_dim / group, rounded up */
    uint32_t dtype;      /* of the rows that encode gets */
    uint32_t meta;       /* dtype of scales and minima */
    uint32_t meta_bytes; /* of one scale */
    uint32_t plane_row;  /* scales in a row of the plane: keys head_dim, values tokens */
    size_t matrix_bytes; /* keys: = code_bytes; values: of a matrix of 64 tokens */
    size_t scale_offset; /* = code_bytes */
    size_t min_offset;
    size_t head_bytes;
    size_t bytes; /* of the extent */
} kivi_block;

static inline size_t kivi_round_up(size_t size, size_t multiple) {
    return (size + multiple - 1) / multiple * multiple;
}

/* Codes of a matrix of free_count x summed_count. */
static inline size_t kivi_matrix_bytes(const kivi_block *block, uint32_t free_count, uint32_t summed_count) {
    if (block->bits == 3)
        return kvant_planar_bytes(free_count, summed_count, 2) +
               kvant_planar_bytes(free_count, summed_count, 1);
    return kvant_planar_bytes(free_count, summed_count, block->bits);
}

/* Fills `block`. The caller has checked ranges: head_dim and group at most 2^16, every count at least 1, for
 * keys tokens a multiple of group False where that is too much to address. */
static inline bool kivi_block_make(kivi_block *block, uint32_t side, uint32_t bits, uint32_t group,
                                   uint32_t dtype, uint32_t meta, uint32_t tokens, uint32_t heads,
                                   uint32_t head_dim) {
    bool key = side == KVANT_SIDE_KEY;
    /* 2^40 numbers a head and 2^56 bytes an extent: nothing that is computed from them, in bits or padded,
     * wraps. */
    if (sizeof(size_t) < 8 || (uint64_t)tokens * head_dim > (uint64_t)1 << 40) return false;
    *block = (kivi_block){.side = side,
                          .bits = bits,
                          .levels = (1u << bits) - 1,
                          .tokens = tokens,
                          .heads = heads,
                          .head_dim = head_dim,
                          .group = !key && group > head_dim ? head_dim : group,
                          .dtype = dtype,
                          .meta = meta,
                          .meta_bytes = kvant_element_bytes(meta),
                          .plane_row = key ? head_dim : tokens};
    block->groups = key ? tokens / block->group : (head_dim + block->group - 1) / block->group;

    size_t code_bytes;
    if (key) {
        code_bytes = block->matrix_bytes = kivi_matrix_bytes(block, tokens, head_dim);
    } else {
        uint32_t rest = tokens % KIVI_MATRIX_TOKENS;
        block->matrix_bytes = kivi_matrix_bytes(block, head_dim, KIVI_MATRIX_TOKENS);
        code_bytes = tokens / KIVI_MATRIX_TOKENS * block->matrix_bytes;
        if (rest > 0) code_bytes += kivi_matrix_bytes(block, head_dim, rest);
    }
    size_t plane = (size_t)block->groups * block->plane_row * block->meta_bytes;
    block->scale_offset = code_bytes;
    block->min_offset = kivi_round_up(block->scale_offset + plane, KIVI_PLANE_ALIGN);
    block->head_bytes = kivi_round_up(block->min_offset + plane, KIVI_HEAD_ALIGN);
    if (block->head_bytes > ((size_t)1 << 56) / heads) return false;
    block->bytes = block->head_bytes * heads;
    return true;
}

/* The matrix that holds a token, how many tokens or channels it sums over, and the token's place in it. */
typedef struct kivi_matrix {
    size_t offset; /* from the head's first byte */
    uint32_t free_count;
    uint32_t summed_count;
    uint32_t first_token; /* of the matrix */
} kivi_matrix;

static inline kivi_matrix kivi_matrix_of(const kivi_block *block, uint32_t token) {
    if (block->side == KVANT_SIDE_KEY) return (kivi_matrix){0, block->tokens, block->head_dim, 0};
    uint32_t index = token / KIVI_MATRIX_TOKENS, first = index * KIVI_MATRIX_TOKENS;
    uint32_t left = block->tokens - first;
    return (kivi_matrix){index * block->matrix_bytes, block->head_dim,
                         left < KIVI_MATRIX_TOKENS ? left : KIVI_MATRIX_TOKENS, first};
}

/* One code, and where a 3-bit one is in two parts. `head`: the head's first byte. */
static inline void kivi_code_put(const kivi_block *block, uint8_t *head, uint32_t token, uint32_t channel,
                                 uint32_t code) {
    kivi_matrix m = kivi_matrix_of(block, token);
    bool key = block->side == KVANT_SIDE_KEY;
    uint32_t f = key ? token : channel, c = key ? channel : token - m.first_token;
    uint8_t *base = head + m.offset;
    kvant_planar_put(base, m.summed_count, block->bits == 3 ? 2 : block->bits, f, c, code);
    if (block->bits == 3)
        kvant_planar_put(base + kvant_planar_bytes(m.free_count, m.summed_count, 2), m.summed_count, 1, f, c,
                         code >> 2);
}

static inline uint32_t kivi_code_get(const kivi_block *block, const uint8_t *head, uint32_t token,
                                     uint32_t channel) {
    kivi_matrix m = kivi_matrix_of(block, token);
    bool key = block->side == KVANT_SIDE_KEY;
    uint32_t f = key ? token : channel, c = key ? channel : token - m.first_token;
    const uint8_t *base = head + m.offset;
    if (block->bits != 3) return kvant_planar_get(base, m.summed_count, block->bits, f, c);
    const uint8_t *high = base + kvant_planar_bytes(m.free_count, m.summed_count, 2);
    return kvant_planar_get(base, m.summed_count, 2, f, c) | kvant_planar_get(high, m.summed_count, 1, f, c)
                                                                 << 2;
}

/* Index of a scale and minimum within their planes. */
static inline size_t kivi_plane_index(const kivi_block *block, uint32_t token, uint32_t channel) {
    if (block->side == KVANT_SIDE_KEY) return (size_t)(token / block->group) * block->plane_row + channel;
    return (size_t)(channel / block->group) * block->plane_row + token;
}

#endif
