/* kvant.inspect/1 of raw: one array, "values", [block_tokens, kv_heads, head_dim] of the format's type. */
#include "raw.h"

#include <string.h>

static kvant_status describe(const void *memory, const kvant_extent *extent, uint32_t index,
                             kvant_array *array) {
    const raw_block *block = &((const raw_state *)memory)->block;
    (void)extent;
    if (index != 0) return KVANT_ERROR_ARGUMENT;
    *array = (kvant_array){.name = "values",
                           .dtype = block->format,
                           .rank = 3,
                           .shape = {block->tokens, block->heads, block->head_dim},
                           .bytes = (uint64_t)block->heads * raw_block_used(block)};
    return KVANT_OK;
}

static kvant_status read_array(const void *memory, const kvant_extent *extent, uint32_t index, void *data,
                               void *scratch) {
    const raw_block *block = &((const raw_state *)memory)->block;
    (void)scratch;
    if (index != 0) return KVANT_ERROR_ARGUMENT;
    uint8_t *out = data;
    for (uint32_t t = 0; t < block->tokens; t++) {
        for (uint32_t h = 0; h < block->heads; h++, out += block->row_bytes)
            memcpy(out, (const uint8_t *)extent->bytes + raw_block_row(block, t, h), block->row_bytes);
    }
    return KVANT_OK;
}

const kvant_inspect raw_inspect = {
    .struct_size = sizeof(kvant_inspect),
    .array_count = 1,
    .describe = describe,
    .read = read_array,
};
