/* kvant.inspect/1: codes, scales and minima of one extent as plain arrays.
 *
 *     codes       u8     [tokens, heads, head_dim]
 *     scale, min  meta   keys [tokens / group, heads, head_dim], values [tokens, heads, groups]
 */
#include "kivi.h"

#include <string.h>

enum { ARRAY_CODES, ARRAY_SCALE, ARRAY_MIN, ARRAY_COUNT };

static kvant_status describe(const void *memory, const kvant_extent *extent, uint32_t index,
                             kvant_array *array) {
    const kivi_block *block = &((const kivi_state *)memory)->block;
    static const char *const names[ARRAY_COUNT] = {"codes", "scale", "min"};
    (void)extent;
    if (index >= ARRAY_COUNT) return KVANT_ERROR_ARGUMENT;
    bool key = block->side == KVANT_SIDE_KEY, codes = index == ARRAY_CODES;
    *array = (kvant_array){.name = names[index], .rank = 3, .dtype = codes ? KVANT_DTYPE_U8 : block->meta};
    array->shape[0] = key && !codes ? block->groups : block->tokens;
    array->shape[1] = block->heads;
    array->shape[2] = key || codes ? block->head_dim : block->groups;
    array->bytes = array->shape[0] * array->shape[1] * array->shape[2] * (codes ? 1 : block->meta_bytes);
    return KVANT_OK;
}

static void read_codes(const kivi_block *block, const uint8_t *extent, uint8_t *out) {
    for (uint32_t t = 0; t < block->tokens; t++)
        for (uint32_t h = 0; h < block->heads; h++)
            for (uint32_t c = 0; c < block->head_dim; c++)
                *out++ = (uint8_t)kivi_code_get(block, extent + h * block->head_bytes, t, c);
}

static void read_plane(const kivi_block *block, const uint8_t *extent, size_t plane, uint8_t *out) {
    bool key = block->side == KVANT_SIDE_KEY;
    uint32_t rows = key ? block->groups : block->tokens, columns = key ? block->head_dim : block->groups;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t h = 0; h < block->heads; h++)
            for (uint32_t c = 0; c < columns; c++) {
                size_t index = key ? (size_t)r * block->plane_row + c : (size_t)c * block->plane_row + r;
                memcpy(out, extent + h * block->head_bytes + plane + index * block->meta_bytes,
                       block->meta_bytes);
                out += block->meta_bytes;
            }
}

static kvant_status read_array(const void *memory, const kvant_extent *extent, uint32_t index, void *data,
                               void *scratch) {
    const kivi_block *block = &((const kivi_state *)memory)->block;
    (void)scratch;
    if (index >= ARRAY_COUNT) return KVANT_ERROR_ARGUMENT;
    if (index == ARRAY_CODES)
        read_codes(block, extent->bytes, data);
    else
        read_plane(block, extent->bytes, index == ARRAY_SCALE ? block->scale_offset : block->min_offset,
                   data);
    return KVANT_OK;
}

const kvant_inspect kivi_inspect = {.struct_size = sizeof(kvant_inspect),
                                    .array_count = ARRAY_COUNT,
                                    .describe = describe,
                                    .read = read_array};
