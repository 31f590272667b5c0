/* The reference: one number after another, as kvquant_math.h and kvquant_block.h define them. It is the
 * scalar level, the norm that every other level equals byte for byte, and meant to be read. */
#include "kvquant_state.h"
#include "kvquant_work.h"

static float row_at(const kvant_view *rows, uint32_t token, uint32_t head, uint32_t channel) {
    return kvant_load_element(kvant_view_at(rows, token, head) + (int64_t)channel * rows->channel_stride,
                              rows->dtype);
}

/* ---- Ranges -------------------------------------------------------------------------------------------- */

static void fit_channels(const kvquant_block *block, const kvant_encode_args *args, kvquant_work *w,
                         uint64_t *saturated) {
    for (uint32_t h = 0; h < block->heads; h++)
        for (uint32_t c = 0; c < block->head_dim; c++) {
            for (uint32_t t = 0; t < block->tokens; t++) w->sorted[t] = row_at(args->rows, t, h, c);
            kvquant_sort(w->sorted, block->tokens);
            kvquant_cut cut = kvquant_cut_sorted(block, w->sorted, block->tokens);
            kvquant_range range = kvquant_store_range(block, args->extent, 0, h, c, &cut, saturated);
            size_t at = (size_t)h * block->padded + c;
            w->channels.high[at] = cut.high;
            w->channels.low[at] = cut.low;
            w->channels.middle[at] = w->channels.score_middle[at] = range.middle;
            w->channels.half[at] = w->channels.score_half[at] = range.half;
        }
}

static kvquant_cut fit_token(const kvquant_block *block, const kvant_encode_args *args, uint32_t token,
                             kvquant_work *w, uint64_t *saturated) {
    memcpy(w->sorted, w->row, sizeof(float) * block->width);
    kvquant_sort(w->sorted, block->width);
    kvquant_cut cut = kvquant_cut_sorted(block, w->sorted, block->width);
    w->ranges[token] = kvquant_store_range(block, args->extent, token, 0, 0, &cut, saturated);
    return cut;
}

/* ---- Outliers ------------------------------------------------------------------------------------------ */

/* Range and marks of one token. */
static void mark_token(const kvquant_block *block, const kvquant_channels *channels,
                       const kvant_encode_args *args, uint32_t token, kvquant_work *w, uint64_t *saturated) {
    kvquant_cut cut = {0};
    for (uint32_t h = 0; h < block->heads; h++)
        for (uint32_t c = 0; c < block->head_dim; c++)
            w->row[h * block->head_dim + c] = row_at(args->rows, token, h, c);
    if (kvquant_token_ranges(block)) cut = fit_token(block, args, token, w, saturated);
    for (uint32_t h = 0; h < block->heads; h++) {
        uint64_t *mask = kvquant_mask_row(block, w, token, h);
        memset(mask, 0, w->words * sizeof *mask);
        for (uint32_t c = 0; c < block->head_dim; c++) {
            size_t at = (size_t)h * block->padded + c;
            float x = w->row[h * block->head_dim + c];
            bool out = block->config.channel ? x > channels->high[at] || x < channels->low[at]
                                             : x > cut.high || x < cut.low;
            if (block->config.sparse)
                kvquant_mask_put(mask, c, out);
            else
                *saturated += out;
        }
    }
    kvquant_scorer scorer = {channels, {0, 0}};
    if (!block->config.channel) scorer = (kvquant_scorer){NULL, w->ranges[token]};
    if (kvquant_by_rank(&block->config)) kvquant_mark_equal(block, w, token, &cut);
    if (block->config.sparse) kvquant_keep(block, w, token, &scorer, saturated);
}

/* ---- Encode -------------------------------------------------------------------------------------------- */

static uint32_t code_of(const kvquant_state *state, kvquant_range range, bool out, float x) {
    const kvquant_block *block = &state->block;
    if (out && kvquant_by_rank(&block->config)) return state->hidden_code;
    if (out && !block->config.deployed) return range.half > 0 ? state->hidden_code : 0;
    return kvquant_code_of(block, state->book, range, x);
}

static void encode(const kvquant_state *state, kvant_encode_args *args) {
    const kvquant_block *block = &state->block;
    uint8_t *extent = args->extent;
    uint64_t saturated = 0;
    kvquant_work w = {0};
    (void)kvquant_carve(block, args->scratch, &w);
    const kvquant_channels *channels = block->config.is_static ? &state->channels : &w.channels;
    memset(extent, 0, block->size_min); /* padding is zero */
    if (kvquant_channel_ranges(block)) fit_channels(block, args, &w, &saturated);
    for (uint32_t t = 0; t < block->tokens; t++) mark_token(block, channels, args, t, &w, &saturated);
    args->size = kvquant_index_slots(block, &w, extent);

    uint64_t slot = 0;
    for (uint32_t h = 0; h < block->heads; h++)
        for (uint32_t t = 0; t < block->tokens; t++)
            for (uint32_t c = 0; c < block->head_dim; c++) {
                float x = row_at(args->rows, t, h, c);
                bool out = block->config.sparse && kvquant_mask_get(kvquant_mask_row(block, &w, t, h), c);
                kvquant_range range =
                    block->config.channel ? kvquant_channel_range(block, channels, h, c) : w.ranges[t];
                kvquant_code_put(block, extent + h * block->head_bytes, t, c, code_of(state, range, out, x));
                if (out)
                    kvquant_slot_put(block, extent, slot++, t * block->head_dim + c,
                                     kvquant_to_meta(block->meta, x, &saturated));
            }
    args->saturated = saturated;
}

/* ---- Decode -------------------------------------------------------------------------------------------- */

static float dense_at(const kvquant_state *state, const uint8_t *extent, uint32_t token, uint32_t head,
                      uint32_t channel, kvquant_range *range) {
    const kvquant_block *block = &state->block;
    *range = block->config.is_static ? kvquant_channel_range(block, &state->channels, head, channel)
                                     : kvquant_stored_range(block, extent, token, head, channel);
    uint32_t code = kvquant_code_get(block, extent + head * block->head_bytes, token, channel);
    return kvquant_value(state->table[code], *range);
}

/* The outliers of a row, over the dense values. */
static void restore_row(const kvquant_state *state, const kvant_decode_args *args, uint32_t t, uint32_t h) {
    const kvquant_block *block = &state->block;
    const kvant_extent *extent = args->extent;
    const kvant_mutable_view *rows = args->rows;
    uint32_t token = args->first_token + t, head = args->first_head + h, first = token * block->head_dim;
    kvquant_slots slots = kvquant_slots_of(block, extent->bytes, extent->size, head);
    for (uint64_t i = kvquant_slots_from(block, extent->bytes, slots, first); i < slots.end; i++) {
        uint32_t channel = kvquant_slot_position(block, extent->bytes, i) - first;
        if (channel >= block->head_dim) break;
        kvquant_range range;
        float dense = dense_at(state, extent->bytes, token, head, channel, &range);
        float x = kvquant_restored(block->config.deployed ? dense : range.middle,
                                   kvquant_slot_value(block, extent->bytes, i));
        kvant_store_element(kvant_mutable_view_at(rows, t, h) + (int64_t)channel * rows->channel_stride,
                            rows->dtype, x);
    }
}

static void decode(const kvquant_state *state, const kvant_decode_args *args) {
    const kvant_mutable_view *rows = args->rows;
    for (uint32_t h = 0; h < rows->heads; h++)
        for (uint32_t t = 0; t < rows->tokens; t++) {
            for (uint32_t c = 0; c < state->block.head_dim; c++) {
                kvquant_range range;
                float x = dense_at(state, args->extent->bytes, args->first_token + t, args->first_head + h, c,
                                   &range);
                kvant_store_element(kvant_mutable_view_at(rows, t, h) + (int64_t)c * rows->channel_stride,
                                    rows->dtype, x);
            }
            restore_row(state, args, t, h);
        }
}

const kvquant_code kvquant_code_reference = {KVANT_ISA_SCALAR, encode, decode};
