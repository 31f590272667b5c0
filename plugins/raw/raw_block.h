/* The byte map of an extent of raw, and the one place that computes its offsets.
 *
 *     kv head 0                                                 kv head 1 ...
 *     +--------------+--------------+-----+--------------+-----+---
 *     | token 0      | token 1      | ... | token T-1    | pad |       T = block_tokens, D = head_dim
 *     | D elements   | D elements   |     | D elements   |  0  |
 *     +--------------+--------------+-----+--------------+-----+---
 *     0              D*E            2*D*E         T*D*E    head_bytes, a multiple of 64
 *
 *     E = 4 bytes for f32, 2 for f16 and bf16; little endian.
 */
#ifndef KVANT_RAW_BLOCK_H
#define KVANT_RAW_BLOCK_H

#include <kvant/types.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RAW_HEAD_ALIGN = 64 };

typedef struct raw_block {
    uint32_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t input;         /* dtype of the rows that encode gets */
    uint32_t format;        /* dtype of the stored elements */
    uint32_t element_bytes; /* of format */
    size_t row_bytes;       /* from one token to the next */
    size_t head_bytes;      /* from one head to the next */
    size_t bytes;           /* of an extent */
} raw_block;

/* False where the extent is too large to address. */
static inline bool raw_block_make(raw_block *block, uint32_t tokens, uint32_t heads, uint32_t head_dim,
                                  uint32_t input, uint32_t format) {
    block->tokens = tokens;
    block->heads = heads;
    block->head_dim = head_dim;
    block->input = input;
    block->format = format;
    block->element_bytes = format == KVANT_DTYPE_F32 ? 4 : 2;
    /* An eighth of the address space, so that the number of bits fits as well. */
    const size_t limit = PTRDIFF_MAX / 8;
    if (__builtin_mul_overflow((size_t)head_dim, block->element_bytes, &block->row_bytes) ||
        __builtin_mul_overflow(tokens, block->row_bytes, &block->head_bytes) || block->head_bytes > limit)
        return false;
    block->head_bytes = (block->head_bytes + RAW_HEAD_ALIGN - 1) / RAW_HEAD_ALIGN * RAW_HEAD_ALIGN;
    return !__builtin_mul_overflow(heads, block->head_bytes, &block->bytes) && block->bytes <= limit;
}

/* Where the elements of one row begin. */
static inline size_t raw_block_row(const raw_block *block, uint32_t token, uint32_t head) {
    return head * block->head_bytes + token * block->row_bytes;
}

/* Bytes of a head's part that hold elements; zeros follow up to head_bytes. */
static inline size_t raw_block_used(const raw_block *block) {
    return block->tokens * block->row_bytes;
}

#endif
