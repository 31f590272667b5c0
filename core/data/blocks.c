/* See blocks.h. */
#include "blocks.h"
#include "dump.h"

#include <kvant/kit/view.h>

kvant_blocks kvant_blocks_split(uint32_t tokens, uint32_t block_tokens, uint32_t sinks, uint32_t recent) {
    uint32_t old = tokens > recent ? tokens - recent : 0;
    uint32_t count = old / block_tokens;
    kvant_blocks blocks = {.tokens = tokens,
                           .block_tokens = block_tokens,
                           .sinks = count > 0 ? sinks : 0,
                           .count = count,
                           .tail_first = count * block_tokens,
                           .tail_tokens = tokens - count * block_tokens};
    return blocks;
}

uint64_t kvant_rows_bytes(const kvant_view *rows) {
    return (uint64_t)rows->tokens * rows->heads * rows->head_dim * kvant_element_bytes(rows->dtype);
}

kvant_view kvant_rows_view(const void *dense, uint32_t dtype, uint32_t tokens, uint32_t heads,
                           uint32_t head_dim) {
    int64_t element = kvant_element_bytes(dtype);
    kvant_view view = {.struct_size = sizeof view,
                       .dtype = dtype,
                       .data = dense,
                       .tokens = tokens,
                       .heads = heads,
                       .head_dim = head_dim,
                       .token_stride = element * heads * head_dim,
                       .head_stride = element * head_dim,
                       .channel_stride = element};
    return view;
}

static void pack_row(const kvant_view *rows, uint32_t token, uint32_t head, char *dense) {
    size_t element = kvant_element_bytes(rows->dtype);
    const char *address = kvant_view_at(rows, token, head);
    if (rows->channel_stride == (int64_t)element) {
        memcpy(dense, address, element * rows->head_dim);
        return;
    }
    for (uint32_t c = 0; c < rows->head_dim; c++)
        memcpy(dense + c * element, address + (int64_t)c * rows->channel_stride, element);
}

void kvant_rows_pack(const kvant_view *rows, void *dense) {
    size_t row = (size_t)kvant_element_bytes(rows->dtype) * rows->head_dim;
    char *next = dense;
    for (uint32_t t = 0; t < rows->tokens; t++)
        for (uint32_t h = 0; h < rows->heads; h++, next += row) pack_row(rows, t, h, next);
}

kvant_view kvant_blocks_view(const kvant_blocks *blocks, const kvant_view *rows, uint32_t index) {
    return kvant_view_slice(rows, index * blocks->block_tokens, blocks->block_tokens);
}
