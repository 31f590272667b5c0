/* How the tokens of a sequence fall into blocks: whole blocks are encoded, the first `sinks` tokens stay
 * raw beside block 0, and what is left at the end (a part of a block, and the `recent` newest tokens) is
 * the raw tail.
 *
 *     token    0      sinks     block_tokens      2*block_tokens            tokens
 *              | sinks |  block 0     |    block 1      | ... |    tail        |
 *                raw      encoded          encoded                raw
 *
 * Sink rows do not enter the statistics of block 0: the codec floor puts the first row after them in their
 * place, and the raw rows override what the block decodes to. Everybody who cuts rows into blocks does it
 * through here. */
#ifndef KVANT_DATA_BLOCKS_H
#define KVANT_DATA_BLOCKS_H

#include <kvant/types.h>

typedef struct kvant_blocks {
    uint32_t tokens;
    uint32_t block_tokens;
    uint32_t sinks;       /* raw tokens beside block 0; 0 where there is no whole block */
    uint32_t count;       /* whole blocks */
    uint32_t tail_first;  /* = count * block_tokens */
    uint32_t tail_tokens; /* = tokens - tail_first */
} kvant_blocks;

/* block_tokens >= 1, sinks < block_tokens. A block is encoded once all its tokens are older than the
 * `recent` newest. */
kvant_blocks kvant_blocks_split(uint32_t tokens, uint32_t block_tokens, uint32_t sinks, uint32_t recent);

/* Block `index` < count of the rows of one layer and side. */
kvant_view kvant_blocks_view(const kvant_blocks *blocks, const kvant_view *rows, uint32_t index);

/* Copies rows element by element into a dense buffer of the same dtype, [tokens, heads, head_dim]. */
void kvant_rows_pack(const kvant_view *rows, void *dense);

/* Bytes of rows when dense. */
uint64_t kvant_rows_bytes(const kvant_view *rows);

/* A view of dense rows. */
kvant_view kvant_rows_view(const void *dense, uint32_t dtype, uint32_t tokens, uint32_t heads,
                           uint32_t head_dim);

#endif
