/* kvant.inspect/1: codes, scales, minima and sums of one extent as plain arrays.
 *
 *     codes       u8               [tokens, heads, head_dim]
 *     scale, min  meta             partitions along tokens [tokens / partition, heads, head_dim],
 *                                  along channels [tokens, heads, parts]
 *     sums        u8, i16 or i32   keys [tokens, heads, parts], values [tokens / partition, heads, head_dim]
 */
#include "hack.h"

#include <string.h>

enum { ARRAY_CODES, ARRAY_SCALE, ARRAY_MIN, ARRAY_SUMS, ARRAY_COUNT };

/* True for an array with one entry per partition of tokens and channel. */
static bool is_per_channel(const hack_block *block, uint32_t index) {
    return index == ARRAY_SUMS ? block->side == KVANT_SIDE_VALUE : block->per_channel;
}

static kvant_status describe(const void *memory, const kvant_extent *extent, uint32_t index,
                             kvant_array *array) {
    const hack_block *block = &((const hack_state *)memory)->block;
    static const char *const names[ARRAY_COUNT] = {"codes", "scale", "min", "sums"};
    static const uint32_t sum_types[] = {0, KVANT_DTYPE_U8, KVANT_DTYPE_I16, 0, KVANT_DTYPE_I32};
    (void)extent;
    if (index >= ARRAY_COUNT) return KVANT_ERROR_ARGUMENT;
    bool per_channel = is_per_channel(block, index);
    uint64_t bytes = index == ARRAY_SUMS ? block->sum_bytes : block->meta_bytes;
    *array = (kvant_array){.name = names[index], .rank = 3};
    array->dtype = index == ARRAY_SUMS ? sum_types[block->sum_bytes] : block->meta;
    array->shape[0] = per_channel ? block->tokens / block->partition : block->tokens;
    array->shape[1] = block->heads;
    array->shape[2] = per_channel ? block->head_dim : block->parts;
    if (index == ARRAY_CODES) {
        array->dtype = KVANT_DTYPE_U8;
        array->shape[0] = block->tokens;
        array->shape[2] = block->head_dim;
        bytes = 1;
    }
    array->bytes = array->shape[0] * array->shape[1] * array->shape[2] * bytes;
    return KVANT_OK;
}

static void read_codes(const hack_block *block, const uint8_t *extent, uint8_t *out) {
    for (uint32_t t = 0; t < block->tokens; t++)
        for (uint32_t h = 0; h < block->heads; h++)
            for (uint32_t c = 0; c < block->head_dim; c++)
                *out++ = (uint8_t)hack_code_get(block, extent + h * block->head_bytes, t, c);
}

/* A plane of `size` bytes an entry, as [rows, heads, columns]. */
static void read_plane(const hack_block *block, const uint8_t *plane, uint32_t size, bool per_channel,
                       uint8_t *out) {
    uint32_t rows = per_channel ? block->tokens / block->partition : block->tokens;
    uint32_t columns = per_channel ? block->head_dim : block->parts;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t h = 0; h < block->heads; h++)
            for (uint32_t c = 0; c < columns; c++) {
                size_t index = per_channel ? (size_t)r * columns + c : (size_t)c * rows + r;
                memcpy(out, plane + h * block->head_bytes + index * size, size);
                out += size;
            }
}

static kvant_status read_array(const void *memory, const kvant_extent *extent, uint32_t index, void *data,
                               void *scratch) {
    const hack_block *block = &((const hack_state *)memory)->block;
    const uint8_t *bytes = extent->bytes;
    bool per_channel = is_per_channel(block, index);
    (void)scratch;
    switch (index) {
    case ARRAY_CODES:
        read_codes(block, bytes, data);
        return KVANT_OK;
    case ARRAY_SCALE:
        read_plane(block, bytes + block->scale_offset, block->meta_bytes, per_channel, data);
        return KVANT_OK;
    case ARRAY_MIN:
        read_plane(block, bytes + block->min_offset, block->meta_bytes, per_channel, data);
        return KVANT_OK;
    case ARRAY_SUMS:
        read_plane(block, bytes + block->sum_offset, block->sum_bytes, per_channel, data);
        return KVANT_OK;
    default:
        return KVANT_ERROR_ARGUMENT;
    }
}

const kvant_inspect hack_inspect = {.struct_size = sizeof(kvant_inspect),
                                    .array_count = ARRAY_COUNT,
                                    .describe = describe,
                                    .read = read_array};
