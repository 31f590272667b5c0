/* The byte map of an extent, and the one place that computes its offsets.
 *
 *     kv head 0                                      kv head 1 ...
 *     +--------------------+----------------------+ +---
 *     | scales             | codes                | |
 *     | float32 [T]        | [T][row_bytes]       | |      T = block_tokens
 *     +--------------------+----------------------+ +---
 *     0                    4*T                    head_bytes (a multiple of 64, the rest is zero)
 *
 *     8 bits: row_bytes = head_dim, one int8 a channel
 *     4 bits: row_bytes = head_dim/2 rounded up; channel 2j in the low half of byte j, 2j+1 in the high half; an odd
 *             last half is zero. Codes are stored plus 8.
 */
#ifndef TEMPLATE_BLOCK_H
#define TEMPLATE_BLOCK_H

#include <stddef.h>
#include <stdint.h>

typedef struct template_block {
    uint32_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t bits;
    size_t row_bytes;  /* codes of one token and head */
    size_t codes;      /* offset of the codes within a head */
    size_t head_bytes; /* from one head to the next */
} template_block;

static inline template_block template_block_of(uint32_t tokens, uint32_t heads, uint32_t head_dim,
                                               uint32_t bits) {
    template_block b = {.tokens = tokens, .heads = heads, .head_dim = head_dim, .bits = bits};
    b.row_bytes = ((size_t)head_dim * bits + 7) / 8;
    b.codes = (size_t)tokens * sizeof(float);
    b.head_bytes = (b.codes + tokens * b.row_bytes + 63) / 64 * 64;
    return b;
}

#endif
