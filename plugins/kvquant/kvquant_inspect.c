/* kvant.inspect/1: codes, ranges and outliers of one extent as plain arrays.
 *
 *     codes           u8    [tokens, heads, head_dim]
 *     upper, lower    meta  as stored: [tokens], or with dynamic ranges of channels [heads, head_dim]; none
 *                           where they are static
 *     outlier_index   u32   [outliers]: (token * heads + head) * head_dim + channel, in the order of the
 *                           slots: by head, then token, then channel
 *     outlier_value   f32   [outliers]: as stored
 *     outlier_sparse  f32   [outliers]: the value minus what the code at its place decodes to, what a sparse
 *                           matrix beside the dense one holds
 */
#include "kvquant_state.h"

enum { CODES, UPPER, LOWER, OUTLIER_INDEX, OUTLIER_VALUE, OUTLIER_SPARSE, ARRAY_COUNT };

static bool has_ranges(const kvquant_block *block) {
    return kvquant_channel_ranges(block) || kvquant_token_ranges(block);
}

static uint64_t outliers_of(const kvquant_block *block, const kvant_extent *extent) {
    uint64_t count = 0;
    for (uint32_t h = 0; h < block->heads; h++) {
        kvquant_slots slots = kvquant_slots_of(block, extent->bytes, extent->size, h);
        count += slots.end - slots.first;
    }
    return count;
}

/* Arbitrary bytes may give slots to several heads: what is shown is bounded by the slots that there are. */
static uint64_t shown(const kvquant_block *block, const kvant_extent *extent) {
    uint64_t count = outliers_of(block, extent);
    uint64_t capacity = block->config.sparse ? kvquant_capacity(block, extent->size) : 0;
    return count < capacity ? count : capacity;
}

static kvant_status describe(const void *memory, const kvant_extent *extent, uint32_t index,
                             kvant_array *array) {
    const kvquant_block *block = &((const kvquant_state *)memory)->block;
    static const char *const names[ARRAY_COUNT] = {"codes",         "upper",         "lower",
                                                   "outlier_index", "outlier_value", "outlier_sparse"};
    if (index >= ARRAY_COUNT) return KVANT_ERROR_ARGUMENT;
    *array = (kvant_array){.name = names[index]};
    if (index == CODES) {
        array->rank = 3;
        array->dtype = KVANT_DTYPE_U8;
        array->shape[0] = block->tokens;
        array->shape[1] = block->heads;
        array->shape[2] = block->head_dim;
        array->bytes = (uint64_t)block->tokens * block->width;
    } else if (index == UPPER || index == LOWER) {
        array->dtype = block->meta;
        if (!has_ranges(block)) return KVANT_OK;
        bool channel = block->config.channel;
        array->rank = channel ? 2 : 1;
        array->shape[0] = channel ? block->heads : block->tokens;
        array->shape[1] = channel ? block->head_dim : 0;
        array->bytes = (uint64_t)(channel ? block->width : block->tokens) * block->meta_bytes;
    } else {
        array->dtype = index == OUTLIER_INDEX ? KVANT_DTYPE_U32 : KVANT_DTYPE_F32;
        uint64_t count = shown(block, extent);
        if (count == 0) return KVANT_OK;
        array->rank = 1;
        array->shape[0] = count;
        array->bytes = 4 * count;
    }
    return KVANT_OK;
}

static void read_codes(const kvquant_block *block, const uint8_t *bytes, uint8_t *out) {
    for (uint32_t t = 0; t < block->tokens; t++)
        for (uint32_t h = 0; h < block->heads; h++)
            for (uint32_t c = 0; c < block->head_dim; c++)
                *out++ = (uint8_t)kvquant_code_get(block, bytes + h * block->head_bytes, t, c);
}

static void read_ranges(const kvquant_block *block, const uint8_t *bytes, bool lower, uint8_t *out) {
    bool channel = block->config.channel;
    for (uint32_t i = 0; i < (channel ? block->heads : 1); i++) {
        uint32_t count;
        size_t at = kvquant_range_at(block, 0, i, 0, &count);
        size_t plane = (size_t)count * block->meta_bytes;
        memcpy(out + i * plane, bytes + at + (lower ? plane : 0), plane);
    }
}

static float sparse_of(const kvquant_state *state, const uint8_t *bytes, uint32_t head, uint32_t position,
                       float value) {
    const kvquant_block *block = &state->block;
    uint32_t token = position / block->head_dim, channel = position % block->head_dim;
    if (token >= block->tokens) return value; /* arbitrary bytes */
    kvquant_range range = block->config.is_static
                              ? kvquant_channel_range(block, &state->channels, head, channel)
                              : kvquant_stored_range(block, bytes, token, head, channel);
    uint32_t code = kvquant_code_get(block, bytes + head * block->head_bytes, token, channel);
    return value - kvquant_value(state->table[code], range);
}

static void read_outliers(const kvquant_state *state, const kvant_extent *extent, uint32_t index,
                          uint8_t *out) {
    const kvquant_block *block = &state->block;
    const uint8_t *bytes = extent->bytes;
    uint64_t left = shown(block, extent);
    for (uint32_t h = 0; h < block->heads; h++) {
        kvquant_slots slots = kvquant_slots_of(block, bytes, extent->size, h);
        for (uint64_t i = slots.first; i < slots.end && left > 0; i++, left--, out += 4) {
            uint32_t position = kvquant_slot_position(block, bytes, i);
            float value = kvquant_slot_value(block, bytes, i);
            uint32_t element = (position / block->head_dim * block->heads + h) * block->head_dim +
                               position % block->head_dim;
            if (index == OUTLIER_SPARSE) value = sparse_of(state, bytes, h, position, value);
            if (index == OUTLIER_INDEX)
                memcpy(out, &element, 4);
            else
                memcpy(out, &value, 4);
        }
    }
}

static kvant_status read_array(const void *memory, const kvant_extent *extent, uint32_t index, void *data,
                               void *scratch) {
    const kvquant_state *state = memory;
    (void)scratch;
    if (index >= ARRAY_COUNT) return KVANT_ERROR_ARGUMENT;
    if (index == CODES)
        read_codes(&state->block, extent->bytes, data);
    else if (index == UPPER || index == LOWER) {
        if (has_ranges(&state->block)) read_ranges(&state->block, extent->bytes, index == LOWER, data);
    } else {
        read_outliers(state, extent, index, data);
    }
    return KVANT_OK;
}

const kvant_inspect kvquant_inspect = {.struct_size = sizeof(kvant_inspect),
                                       .array_count = ARRAY_COUNT,
                                       .describe = describe,
                                       .read = read_array};
