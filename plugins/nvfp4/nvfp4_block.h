/* The bytes of an NVFP4 or MXFP4 extent, and the one function that computes where they lie.
 *
 *     extent   | head 0 | head 1 | ... | head H-1 | globals |     heads are head_bytes long, a multiple of 64
 *
 *     head     0               codes      E2M1, planar order, a multiple of 64 bytes
 *              scale_offset    scales     one byte each, [blocks][tokens]: per block of channels, the tokens
 *                                         side by side; E4M3 (nvfp4) or E8M0 (mxfp4)
 *              ...             zeros      up to a multiple of 64
 *
 *     globals  f32, little endian: what decoding multiplies by; one, or one for each head; then zeros up to a
 *              multiple of 64. Only where the global scale is taken from each extent's data.
 *
 *     keys     codes           one matrix: free = tokens, summed = channels
 *     values   codes           a run of matrices, matrix_bytes apart, one for every 64 tokens (the last may
 *                              have fewer): free = channels, summed = tokens
 *
 * A block is 16 (nvfp4) or 32 (mxfp4) consecutive channels of one token and head, from channel 0 on; the last
 * one is short where that does not divide head_dim, and holds real channels only.
 *
 * For example keys, nvfp4, 64 tokens, head_dim 64, two heads:
 *
 *     0       2048     2304    4352     4608      4672
 *     | codes | scales | codes | scales | globals |           2048 = 64 * 64 / 2,  256 = 4 blocks * 64 tokens
 */
#ifndef KVANT_NVFP4_BLOCK_H
#define KVANT_NVFP4_BLOCK_H

#include <kvant/kit/planar.h>
#include <kvant/types.h>

#include <stdbool.h>

enum {
    NVFP4_BITS = 4,
    NVFP4_MATRIX_TOKENS = 64, /* tokens of a value's code matrix */
    NVFP4_ALIGN = 64
};

typedef struct nvfp4_block {
    uint32_t side;
    uint32_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t width;   /* channels of a block of one scale */
    uint32_t blocks;  /* of one token and head */
    uint32_t globals; /* stored: 0, 1 or heads */
    size_t matrix_bytes;
    size_t scale_offset;
    size_t head_bytes;
    size_t global_offset;
    size_t bytes; /* of the extent */
} nvfp4_block;

static inline size_t nvfp4_round_up(size_t size, size_t multiple) {
    return (size + multiple - 1) / multiple * multiple;
}

/* Fills `block`. The caller has checked ranges: head_dim at most 2^16, every count at least 1. False where
 * that is too much to address. */
static inline bool nvfp4_block_make(nvfp4_block *block, uint32_t side, uint32_t tokens, uint32_t heads,
                                    uint32_t head_dim, uint32_t width, uint32_t globals) {
    /* 2^40 numbers a head and 2^56 bytes an extent: nothing that is computed from them, in bits or padded,
     * wraps. */
    if (sizeof(size_t) < 8 || (uint64_t)tokens * head_dim > (uint64_t)1 << 40) return false;
    *block = (nvfp4_block){.side = side,
                           .tokens = tokens,
                           .heads = heads,
                           .head_dim = head_dim,
                           .width = width,
                           .blocks = (head_dim + width - 1) / width,
                           .globals = globals};
    if (side == KVANT_SIDE_KEY) {
        block->scale_offset = block->matrix_bytes = kvant_planar_bytes(tokens, head_dim, NVFP4_BITS);
    } else {
        uint32_t rest = tokens % NVFP4_MATRIX_TOKENS;
        block->matrix_bytes = kvant_planar_bytes(head_dim, NVFP4_MATRIX_TOKENS, NVFP4_BITS);
        block->scale_offset = tokens / NVFP4_MATRIX_TOKENS * block->matrix_bytes;
        if (rest > 0) block->scale_offset += kvant_planar_bytes(head_dim, rest, NVFP4_BITS);
    }
    block->head_bytes = nvfp4_round_up(block->scale_offset + (size_t)block->blocks * tokens, NVFP4_ALIGN);
    if (block->head_bytes > ((size_t)1 << 56) / heads) return false;
    block->global_offset = block->head_bytes * heads;
    block->bytes = block->global_offset + nvfp4_round_up(sizeof(float) * (size_t)globals, NVFP4_ALIGN);
    return true;
}

/* The matrix that holds a token, and how many tokens or channels it sums over. */
typedef struct nvfp4_matrix {
    size_t offset; /* from the head's first byte */
    uint32_t free_count;
    uint32_t summed_count;
    uint32_t first_token; /* of the matrix */
} nvfp4_matrix;

static inline nvfp4_matrix nvfp4_matrix_of(const nvfp4_block *block, uint32_t token) {
    if (block->side == KVANT_SIDE_KEY) return (nvfp4_matrix){0, block->tokens, block->head_dim, 0};
    uint32_t index = token / NVFP4_MATRIX_TOKENS, first = index * NVFP4_MATRIX_TOKENS;
    uint32_t left = block->tokens - first;
    return (nvfp4_matrix){index * block->matrix_bytes, block->head_dim,
                          left < NVFP4_MATRIX_TOKENS ? left : NVFP4_MATRIX_TOKENS, first};
}

/* One code. `head`: the head's first byte. */
static inline void nvfp4_code_put(const nvfp4_block *block, uint8_t *head, uint32_t token, uint32_t channel,
                                  uint32_t code) {
    nvfp4_matrix m = nvfp4_matrix_of(block, token);
    bool key = block->side == KVANT_SIDE_KEY;
    kvant_planar_put(head + m.offset, m.summed_count, NVFP4_BITS, key ? token : channel,
                     key ? channel : token - m.first_token, code);
}

static inline uint32_t nvfp4_code_get(const nvfp4_block *block, const uint8_t *head, uint32_t token,
                                      uint32_t channel) {
    nvfp4_matrix m = nvfp4_matrix_of(block, token);
    bool key = block->side == KVANT_SIDE_KEY;
    return kvant_planar_get(head + m.offset, m.summed_count, NVFP4_BITS, key ? token : channel,
                            key ? channel : token - m.first_token);
}

/* Index of a scale within its plane. */
static inline size_t nvfp4_scale_index(const nvfp4_block *block, uint32_t token, uint32_t channel) {
    return (size_t)(channel / block->width) * block->tokens + token;
}

#endif
