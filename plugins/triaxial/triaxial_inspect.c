/* kvant.inspect/1: one extent as plain arrays.
 *
 *     codes        u8     [tokens, heads, head_dim]
 *     bits         u8     [tokens]                  width of each token, after promotion
 *     scale2, min2 f16    narrow run: keys [n2 / group, heads, head_dim], values [n2, heads, groups]
 *     scale4, min4 f16    wide run: [n4, heads, groups]
 *
 * Rows of scales count places of their run, which are its tokens in the order of their positions. A run
 * without tokens has no arrays.
 */
#include "triaxial.h"

#include <string.h>

enum { ARRAY_CODES, ARRAY_BITS, ARRAY_SCALE2, ARRAY_MIN2, ARRAY_SCALE4, ARRAY_MIN4, ARRAY_COUNT };

static uint32_t wide_of(const triaxial_block *block, uint64_t size) {
    uint64_t step =
        (block->quantum_bytes[TRIAXIAL_WIDE] - block->quantum_bytes[TRIAXIAL_NARROW]) * block->heads;
    uint64_t least = triaxial_extent_bytes(block, 0), quanta = size > least ? (size - least) / step : 0;
    uint32_t most = block->tokens / block->group;
    return (uint32_t)(quanta < most ? quanta : most) * block->group;
}

static kvant_status describe(const void *memory, const kvant_extent *extent, uint32_t index,
                             kvant_array *array) {
    static const char *const names[ARRAY_COUNT] = {"codes", "bits", "scale2", "min2", "scale4", "min4"};
    const triaxial_block *block = &((const triaxial_state *)memory)->block;
    if (index >= ARRAY_COUNT) return KVANT_ERROR_ARGUMENT;
    *array = (kvant_array){.name = names[index], .dtype = KVANT_DTYPE_U8, .rank = 1, .bytes = block->tokens};
    array->shape[0] = block->tokens;
    if (index == ARRAY_BITS) return KVANT_OK;
    array->rank = 3;
    array->shape[1] = block->heads;
    array->shape[2] = block->head_dim;
    if (index != ARRAY_CODES) {
        triaxial_run runs[TRIAXIAL_WIDTHS];
        triaxial_runs(block, wide_of(block, extent->size), runs);
        const triaxial_run *run = &runs[index >= ARRAY_SCALE4 ? TRIAXIAL_WIDE : TRIAXIAL_NARROW];
        array->dtype = KVANT_DTYPE_F16;
        array->shape[0] = run->per_channel ? run->count / block->group : run->count;
        if (!run->per_channel) array->shape[2] = block->channel_groups;
    }
    array->bytes =
        array->shape[0] * array->shape[1] * array->shape[2] * (array->dtype == KVANT_DTYPE_F16 ? 2 : 1);
    if (array->bytes == 0) *array = (kvant_array){.name = names[index], .dtype = KVANT_DTYPE_F16};
    return KVANT_OK;
}

static void read_plane(const triaxial_block *block, const uint8_t *extent, uint32_t wide, uint32_t index,
                       uint8_t *out) {
    triaxial_run runs[TRIAXIAL_WIDTHS];
    triaxial_runs(block, wide, runs);
    const triaxial_run *run = &runs[index >= ARRAY_SCALE4 ? TRIAXIAL_WIDE : TRIAXIAL_NARROW];
    size_t plane = index == ARRAY_SCALE2 || index == ARRAY_SCALE4 ? run->scale_offset : run->min_offset;
    uint32_t places = run->per_channel ? block->group : 1, channels = run->per_channel ? 1 : block->group;
    for (uint32_t p = 0; p < run->count; p += places)
        for (uint32_t h = 0; h < block->heads; h++)
            for (uint32_t c = 0; c < block->head_dim; c += channels, out += 2)
                memcpy(out,
                       extent + block->map_bytes + h * triaxial_head_bytes(block, wide) + plane +
                           2 * triaxial_plane_index(block, run, p, c),
                       2);
}

static void read_codes(const triaxial_block *block, const uint8_t *extent, uint32_t wide,
                       const uint32_t *order, uint8_t *out) {
    triaxial_run runs[TRIAXIAL_WIDTHS];
    triaxial_runs(block, wide, runs);
    for (uint32_t i = 0; i < block->tokens; i++) {
        const triaxial_run *run = &runs[i < block->tokens - wide ? TRIAXIAL_NARROW : TRIAXIAL_WIDE];
        uint32_t place = i < block->tokens - wide ? i : i - (block->tokens - wide);
        for (uint32_t h = 0; h < block->heads; h++) {
            const uint8_t *codes =
                extent + block->map_bytes + h * triaxial_head_bytes(block, wide) + run->code_offset;
            uint8_t *row = out + ((size_t)order[i] * block->heads + h) * block->head_dim;
            for (uint32_t c = 0; c < block->head_dim; c++)
                row[c] = (uint8_t)triaxial_code_get(block, run, codes, place, c);
        }
    }
}

static kvant_status read_array(const void *memory, const kvant_extent *extent, uint32_t index, void *data,
                               void *scratch) {
    const triaxial_block *block = &((const triaxial_state *)memory)->block;
    if (index >= ARRAY_COUNT) return KVANT_ERROR_ARGUMENT;
    uint32_t *order = scratch, wide = triaxial_order_of_extent(block, extent->bytes, extent->size, order);
    if (index == ARRAY_CODES)
        read_codes(block, extent->bytes, wide, order, data);
    else if (index == ARRAY_BITS)
        for (uint32_t i = 0; i < block->tokens; i++)
            ((uint8_t *)data)[order[i]] = i < block->tokens - wide ? 2 : 4;
    else
        read_plane(block, extent->bytes, wide, index, data);
    return KVANT_OK;
}

const kvant_inspect triaxial_inspect = {.struct_size = sizeof(kvant_inspect),
                                        .array_count = ARRAY_COUNT,
                                        .describe = describe,
                                        .read = read_array};
