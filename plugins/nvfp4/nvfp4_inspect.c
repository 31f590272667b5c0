/* kvant.inspect/1: codes and both levels of scales of one extent as plain arrays.
 *
 *     codes    u8               [tokens, heads, head_dim]      E2M1, sign in bit 3
 *     scale    E4M3 or E8M0     [tokens, heads, blocks]
 *     global   f32              [1] or [heads]                 nvfp4 only: what decoding multiplies by
 */
#include "nvfp4.h"

#include <string.h>

enum { ARRAY_CODES, ARRAY_SCALE, ARRAY_GLOBAL, ARRAY_COUNT };

static kvant_status describe(const void *memory, const kvant_extent *extent, uint32_t index,
                             kvant_array *array) {
    const nvfp4_state *state = memory;
    const nvfp4_block *block = &state->block;
    static const char *const names[ARRAY_COUNT] = {"codes", "scale", "global"};
    bool mx = state->config.format == NVFP4_FORMAT_MXFP4;
    (void)extent;
    if (index >= ARRAY_COUNT) return KVANT_ERROR_ARGUMENT;
    *array = (kvant_array){.name = names[index]};
    if (index == ARRAY_GLOBAL) {
        if (mx) return KVANT_OK;
        array->dtype = KVANT_DTYPE_F32;
        array->rank = 1;
        array->shape[0] = nvfp4_global_count(&state->config, block->heads);
        array->bytes = array->shape[0] * sizeof(float);
        return KVANT_OK;
    }
    array->rank = 3;
    array->dtype = index == ARRAY_CODES ? KVANT_DTYPE_U8 : mx ? KVANT_DTYPE_F8_E8M0 : KVANT_DTYPE_F8_E4M3;
    array->shape[0] = block->tokens;
    array->shape[1] = block->heads;
    array->shape[2] = index == ARRAY_CODES ? block->head_dim : block->blocks;
    array->bytes = array->shape[0] * array->shape[1] * array->shape[2];
    return KVANT_OK;
}

static void read_codes(const nvfp4_block *block, const uint8_t *extent, uint8_t *out) {
    for (uint32_t t = 0; t < block->tokens; t++)
        for (uint32_t h = 0; h < block->heads; h++)
            for (uint32_t c = 0; c < block->head_dim; c++)
                *out++ = (uint8_t)nvfp4_code_get(block, extent + h * block->head_bytes, t, c);
}

static void read_scales(const nvfp4_block *block, const uint8_t *extent, uint8_t *out) {
    for (uint32_t t = 0; t < block->tokens; t++)
        for (uint32_t h = 0; h < block->heads; h++)
            for (uint32_t b = 0; b < block->blocks; b++)
                *out++ = extent[h * block->head_bytes + block->scale_offset +
                                nvfp4_scale_index(block, t, b * block->width)];
}

static kvant_status read_array(const void *memory, const kvant_extent *extent, uint32_t index, void *data,
                               void *scratch) {
    const nvfp4_state *state = memory;
    (void)scratch;
    if (index >= ARRAY_COUNT) return KVANT_ERROR_ARGUMENT;
    if (index == ARRAY_CODES) {
        read_codes(&state->block, extent->bytes, data);
    } else if (index == ARRAY_SCALE) {
        read_scales(&state->block, extent->bytes, data);
    } else {
        uint32_t count = nvfp4_global_count(&state->config, state->block.heads);
        for (uint32_t i = 0; i < count; i++) {
            float multiplier = nvfp4_multiplier_of(state, extent->bytes, i);
            memcpy((char *)data + i * sizeof multiplier, &multiplier, sizeof multiplier);
        }
    }
    return KVANT_OK;
}

const kvant_inspect nvfp4_inspect = {.struct_size = sizeof(kvant_inspect),
                                     .array_count = ARRAY_COUNT,
                                     .describe = describe,
                                     .read = read_array};
