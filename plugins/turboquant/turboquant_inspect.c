/* kvant.inspect/1: the symbols, scales and outliers of one extent as plain arrays.
 *
 *     codes             u8    [tokens, heads, head_dim]   codebook indices of the rotated coordinates,
 *                                                         part 0's before part 1's; 0 without codebook
 *     signs             u8    [tokens, heads, head_dim]   signs of the sketch, 1 = not negative; prod only
 *     scale             type  [tokens, heads]             of part 0
 *     residual          type  [tokens, heads]             of part 0; prod only
 *     outlier_scale     type  [tokens, heads]             of part 1; with outliers only
 *     outlier_residual  type  [tokens, heads]             likewise; prod only
 *     outlier           bool  [heads, head_dim]           which channels are part 1; with outliers only
 *
 * Scales and residuals are of the scale_type; a part without codebook (one bit, prod) has no scale.
 */
#include "turboquant_scratch.h"

enum {
    ARRAY_CODES,
    ARRAY_SIGNS,
    ARRAY_SCALE,
    ARRAY_RESIDUAL,
    ARRAY_OUTLIER_SCALE,
    ARRAY_OUTLIER_RESIDUAL,
    ARRAY_OUTLIER,
    ARRAY_COUNT
};

static bool exists(const turboquant_block *b, uint32_t index) {
    bool split = b->part_count > 1, codes = b->parts[0].code_bits > 0;
    switch (index) {
    case ARRAY_CODES:
        return codes || split;
    case ARRAY_SIGNS:
    case ARRAY_RESIDUAL:
        return b->prod != 0;
    case ARRAY_SCALE:
        return codes;
    case ARRAY_OUTLIER_RESIDUAL:
        return split && b->prod != 0;
    default:
        return split;
    }
}

static kvant_status describe(const void *memory, const kvant_extent *extent, uint32_t index,
                             kvant_array *array) {
    static const char *const names[ARRAY_COUNT] = {
        "codes", "signs", "scale", "residual", "outlier_scale", "outlier_residual", "outlier"};
    const turboquant_block *b = &((const turboquant_state *)memory)->block;
    (void)extent;
    if (index >= ARRAY_COUNT) return KVANT_ERROR_ARGUMENT;
    *array = (kvant_array){.name = names[index], .dtype = KVANT_DTYPE_U8};
    if (!exists(b, index)) return KVANT_OK;
    if (index == ARRAY_OUTLIER) {
        array->dtype = KVANT_DTYPE_BOOL;
        array->rank = 2;
        array->shape[0] = b->heads;
        array->shape[1] = b->head_dim;
        array->bytes = array->shape[0] * array->shape[1];
        return KVANT_OK;
    }
    bool symbols = index == ARRAY_CODES || index == ARRAY_SIGNS;
    if (!symbols) array->dtype = b->scale_type;
    array->rank = symbols ? 3 : 2;
    array->shape[0] = b->tokens;
    array->shape[1] = b->heads;
    if (symbols) array->shape[2] = b->head_dim;
    array->bytes = (uint64_t)b->tokens * b->heads * (symbols ? b->head_dim : b->scale_bytes);
    return KVANT_OK;
}

static void read_symbols(const turboquant_block *b, const uint8_t *extent, bool signs, uint8_t *out) {
    for (uint32_t t = 0; t < b->tokens; t++)
        for (uint32_t h = 0; h < b->heads; h++)
            for (uint32_t p = 0; p < b->part_count; p++)
                for (uint32_t i = 0; i < b->parts[p].dim; i++) {
                    const turboquant_part *part = &b->parts[p];
                    uint32_t symbol = turboquant_symbol_get(b, part, extent + h * b->head_bytes, t, i);
                    *out++ = (uint8_t)(signs ? symbol >> part->code_bits : symbol & (part->levels - 1));
                }
}

static void read_plane(const turboquant_block *b, const uint8_t *extent, size_t plane, uint8_t *out) {
    for (uint32_t t = 0; t < b->tokens; t++)
        for (uint32_t h = 0; h < b->heads; h++, out += b->scale_bytes)
            memcpy(out, extent + h * b->head_bytes + plane + (size_t)t * b->scale_bytes, b->scale_bytes);
}

static void read_outliers(const turboquant_block *b, const uint8_t *extent, uint8_t *out,
                          const turboquant_scratch *s) {
    memset(out, 0, (size_t)b->heads * b->head_dim);
    for (uint32_t h = 0; h < b->heads; h++, out += b->head_dim) {
        turboquant_channels_read(b, extent + h * b->head_bytes, s->channels);
        for (uint32_t i = b->parts[0].dim; i < b->head_dim; i++) out[s->channels[i]] = 1;
    }
}

static kvant_status read_array(const void *memory, const kvant_extent *extent, uint32_t index, void *data,
                               void *memory_scratch) {
    const turboquant_block *b = &((const turboquant_state *)memory)->block;
    turboquant_scratch s = turboquant_scratch_cut(b, memory_scratch);
    if (index >= ARRAY_COUNT) return KVANT_ERROR_ARGUMENT;
    if (!exists(b, index)) return KVANT_OK;
    switch (index) {
    case ARRAY_CODES:
    case ARRAY_SIGNS:
        read_symbols(b, extent->bytes, index == ARRAY_SIGNS, data);
        break;
    case ARRAY_SCALE:
    case ARRAY_OUTLIER_SCALE:
        read_plane(b, extent->bytes, b->parts[index == ARRAY_OUTLIER_SCALE].scale_offset, data);
        break;
    case ARRAY_RESIDUAL:
    case ARRAY_OUTLIER_RESIDUAL:
        read_plane(b, extent->bytes, b->parts[index == ARRAY_OUTLIER_RESIDUAL].residual_offset, data);
        break;
    default:
        read_outliers(b, extent->bytes, data, &s);
        break;
    }
    return KVANT_OK;
}

const kvant_inspect turboquant_inspect = {.struct_size = sizeof(kvant_inspect),
                                          .array_count = ARRAY_COUNT,
                                          .describe = describe,
                                          .read = read_array};
