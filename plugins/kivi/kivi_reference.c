/* The reference: one number after another, as kivi_group.h and kivi_block.h define them. It is the scalar
 * level, the norm that every other level equals byte for byte, and meant to be read. */
#include "kivi.h"
#include "kivi_group.h"

#include <string.h>

/* One group of a head: `tokens` x `channels` numbers from (token, channel) on, one of the two being 1. */
typedef struct area {
    uint32_t token, channel;
    uint32_t tokens, channels;
} area;

static float row_at(const kvant_view *rows, uint32_t token, uint32_t head, uint32_t channel) {
    return kvant_load_element(kvant_view_at(rows, token, head) + (int64_t)channel * rows->channel_stride,
                              rows->dtype);
}

static kivi_group fit(const kivi_block *block, const kvant_view *rows, uint32_t head, area a,
                      uint64_t *saturated) {
    float min = row_at(rows, a.token, head, a.channel), max = min;
    for (uint32_t t = a.token; t < a.token + a.tokens; t++)
        for (uint32_t c = a.channel; c < a.channel + a.channels; c++) {
            float x = row_at(rows, t, head, c);
            min = x < min ? x : min;
            max = x > max ? x : max;
        }
    return kivi_group_fit(block, min, max, saturated);
}

static void encode_group(const kivi_block *block, const kvant_encode_args *args, uint32_t head, area a,
                         uint64_t *saturated) {
    uint8_t *base = (uint8_t *)args->extent + head * block->head_bytes;
    kivi_group group = fit(block, args->rows, head, a, saturated);
    size_t index = kivi_plane_index(block, a.token, a.channel);
    kivi_plane_store(block, base + block->scale_offset, index, group.scale);
    kivi_plane_store(block, base + block->min_offset, index, group.min);
    for (uint32_t t = a.token; t < a.token + a.tokens; t++)
        for (uint32_t c = a.channel; c < a.channel + a.channels; c++)
            kivi_code_put(block, base, t, c, kivi_group_code(block, group, row_at(args->rows, t, head, c)));
}

static void encode(const kivi_block *block, kvant_encode_args *args) {
    uint32_t tokens = block->side == KVANT_SIDE_KEY ? block->group : 1;
    uint32_t channels = block->side == KVANT_SIDE_KEY ? 1 : block->group;
    uint64_t saturated = 0;
    memset(args->extent, 0, block->bytes); /* padding is zero */
    for (uint32_t head = 0; head < block->heads; head++)
        for (uint32_t t = 0; t < block->tokens; t += tokens)
            for (uint32_t c = 0; c < block->head_dim; c += channels) {
                uint32_t left = block->head_dim - c; /* the last group of channels may be short */
                encode_group(block, args, head, (area){t, c, tokens, channels < left ? channels : left},
                             &saturated);
            }
    args->size = block->bytes;
    args->saturated = saturated;
}

static void decode(const kivi_block *block, const kvant_decode_args *args) {
    const kvant_mutable_view *rows = args->rows;
    for (uint32_t h = 0; h < rows->heads; h++) {
        const uint8_t *base =
            (const uint8_t *)args->extent->bytes + (args->first_head + h) * block->head_bytes;
        for (uint32_t t = 0; t < rows->tokens; t++)
            for (uint32_t c = 0; c < block->head_dim; c++) {
                uint32_t token = args->first_token + t;
                size_t index = kivi_plane_index(block, token, c);
                float scale = kivi_plane_load(block, base + block->scale_offset, index);
                float min = kivi_plane_load(block, base + block->min_offset, index);
                float x = kivi_group_value(block, scale, min, kivi_code_get(block, base, token, c));
                kvant_store_element(kvant_mutable_view_at(rows, t, h) + (int64_t)c * rows->channel_stride,
                                    rows->dtype, x);
            }
    }
}

static uint64_t scratch_bytes(const kivi_block *block) {
    (void)block;
    return 0;
}

const kivi_code kivi_code_reference = {KVANT_ISA_SCALAR, encode, decode, scratch_bytes};
