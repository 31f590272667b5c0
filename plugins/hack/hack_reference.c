/* The reference: one number after another, as hack_quantize.h and hack_block.h define them. It is the scalar
 * level, the norm that every other level equals byte for byte, and meant to be read. */
#include "hack.h"
#include "hack_quantize.h"

#include <string.h>

/* One partition of a head: `tokens` x `channels` numbers from (token, channel) on, one of the two being 1. */
typedef struct area {
    uint32_t token, channel;
    uint32_t tokens, channels;
} area;

static float row_at(const kvant_view *rows, uint32_t token, uint32_t head, uint32_t channel) {
    return kvant_load_element(kvant_view_at(rows, token, head) + (int64_t)channel * rows->channel_stride,
                              rows->dtype);
}

static hack_fit fit(const hack_block *block, const kvant_view *rows, uint32_t head, area a,
                    uint64_t *saturated) {
    float low = row_at(rows, a.token, head, a.channel), high = low;
    for (uint32_t t = a.token; t < a.token + a.tokens; t++)
        for (uint32_t c = a.channel; c < a.channel + a.channels; c++) {
            float x = row_at(rows, t, head, c);
            low = x < low ? x : low;
            high = x > high ? x : high;
        }
    return hack_fit_range(block->meta, block->levels, low, high, saturated);
}

static void encode_partition(const hack_block *block, const kvant_encode_args *args, uint32_t head, area a,
                             uint64_t *saturated) {
    uint8_t *base = (uint8_t *)args->extent + head * block->head_bytes;
    hack_fit f = fit(block, args->rows, head, a, saturated);
    size_t index = hack_meta_index(block, a.token, a.channel);
    hack_meta_store(block, base + block->scale_offset, index, hack_stored_scale(block, f));
    hack_meta_store(block, base + block->min_offset, index, f.min);
    for (uint32_t t = a.token; t < a.token + a.tokens; t++) {
        uint32_t seed = hack_noise_row(block->noise_base, args->first_position + t, block->first_head + head);
        for (uint32_t c = a.channel; c < a.channel + a.channels; c++) {
            float noise = block->rounding == HACK_STOCHASTIC ? hack_noise(seed, c) : -1.0f;
            uint32_t code = hack_code(f, block->levels, row_at(args->rows, t, head, c), noise);
            size_t sum = hack_sum_index(block, t, c);
            uint8_t *sums = base + block->sum_offset;
            hack_code_put(block, base, t, c, code);
            hack_sum_store(block, sums, sum, hack_sum_load(block, sums, sum) + code);
        }
    }
}

static void encode(const hack_block *block, kvant_encode_args *args) {
    uint32_t tokens = block->per_channel ? block->partition : 1;
    uint32_t channels = block->per_channel ? 1 : block->part;
    uint64_t saturated = 0;
    memset(args->extent, 0, block->bytes); /* padding is zero, and sums begin with it */
    for (uint32_t head = 0; head < block->heads; head++)
        for (uint32_t t = 0; t < block->tokens; t += tokens)
            for (uint32_t c = 0; c < block->head_dim; c += channels)
                encode_partition(block, args, head, (area){t, c, tokens, channels}, &saturated);
    args->size = block->bytes;
    args->saturated = saturated;
}

static void decode(const hack_block *block, const kvant_decode_args *args) {
    const kvant_mutable_view *rows = args->rows;
    for (uint32_t h = 0; h < rows->heads; h++) {
        const uint8_t *base =
            (const uint8_t *)args->extent->bytes + (args->first_head + h) * block->head_bytes;
        for (uint32_t t = 0; t < rows->tokens; t++)
            for (uint32_t c = 0; c < block->head_dim; c++) {
                uint32_t token = args->first_token + t;
                size_t index = hack_meta_index(block, token, c);
                float scale = hack_meta_load(block, base + block->scale_offset, index);
                float min = hack_meta_load(block, base + block->min_offset, index);
                float x = hack_value(block->levels, scale, min, hack_code_get(block, base, token, c));
                kvant_store_element(kvant_mutable_view_at(rows, t, h) + (int64_t)c * rows->channel_stride,
                                    rows->dtype, x);
            }
    }
}

static uint64_t scratch_bytes(const hack_block *block) {
    (void)block;
    return 0;
}

const hack_code_table hack_code_reference = {KVANT_ISA_SCALAR, encode, decode, scratch_bytes};
