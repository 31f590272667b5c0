/* See codec_rows.h. */
#include "pipeline/codec_rows.h"

#include "data/blocks.h"
#include "pipeline/turns.h"

#include <kvant/kit/rope.h>
#include <kvant/kit/view.h>

/* ---- Not finite ---------------------------------------------------------------------------------------- */

/* A number is finite unless its exponent is all ones. Loops without an exit, so that they vectorise. */
static bool run_is_finite_16(const char *at, size_t count, uint16_t exponent) {
    uint16_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, at + 2 * i, sizeof bits);
        bad = (uint16_t)(bad | ((bits & exponent) == exponent));
    }
    return bad == 0;
}

static bool run_is_finite_32(const char *at, size_t count) {
    uint32_t bad = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, at + 4 * i, sizeof bits);
        bad |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return bad == 0;
}

static bool run_is_finite(const char *at, size_t count, uint32_t dtype) {
    if (dtype == KVANT_DTYPE_F32) return run_is_finite_32(at, count);
    return run_is_finite_16(at, count, dtype == KVANT_DTYPE_F16 ? 0x7c00u : 0x7f80u);
}

/* The first bad channel of a row; head_dim if there is none. */
static uint32_t find_channel(const kvant_view *rows, const char *row) {
    for (uint32_t c = 0; c < rows->head_dim; c++)
        if (!run_is_finite(row + (int64_t)c * rows->channel_stride, 1, rows->dtype)) return c;
    return rows->head_dim;
}

bool kvant_find_not_finite(const kvant_view *rows, kvant_place *place) {
    uint32_t width = kvant_element_bytes(rows->dtype);
    bool dense = rows->channel_stride == (int64_t)width;
    bool dense_heads = dense && rows->head_stride == (int64_t)width * rows->head_dim;
    for (uint32_t t = 0; t < rows->tokens; t++) {
        if (dense_heads &&
            run_is_finite(kvant_view_at(rows, t, 0), (size_t)rows->heads * rows->head_dim, rows->dtype))
            continue;
        for (uint32_t h = 0; h < rows->heads; h++) {
            const char *row = kvant_view_at(rows, t, h);
            if (dense && run_is_finite(row, rows->head_dim, rows->dtype)) continue;
            uint32_t channel = find_channel(rows, row);
            if (channel == rows->head_dim) continue;
            *place = (kvant_place){t, h, channel};
            return true;
        }
    }
    return false;
}

/* ---- Views --------------------------------------------------------------------------------------------- */

kvant_mutable_view kvant_dense_mutable_view(void *data, uint32_t dtype, uint32_t tokens, uint32_t heads,
                                            uint32_t head_dim) {
    kvant_view view = kvant_rows_view(NULL, dtype, tokens, heads, head_dim);
    return (kvant_mutable_view){.struct_size = sizeof(kvant_mutable_view),
                                .dtype = dtype,
                                .data = data,
                                .tokens = tokens,
                                .heads = heads,
                                .head_dim = head_dim,
                                .token_stride = view.token_stride,
                                .head_stride = view.head_stride,
                                .channel_stride = view.channel_stride};
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

/* The largest number of a dtype, and the least magnitude that rounds to its infinity, as bits of floats. */
typedef struct dtype_range {
    uint32_t largest;
    uint32_t infinite;
} dtype_range;

static dtype_range range_of(uint32_t dtype) {
    if (dtype == KVANT_DTYPE_F32) return (dtype_range){0x7f7fffffu, 0x7f800000u};
    return dtype == KVANT_DTYPE_F16 ? (dtype_range){0x477fe000u, 0x477ff000u} /* 65504, 65520 */
                                    : (dtype_range){0x7f7f0000u, 0x7f7f8000u};
}

/* NaN by 0, infinity by the largest number of its sign. */
static uint64_t replace_not_finite(float *row, uint32_t count, dtype_range range) {
    uint64_t replaced = 0;
    for (uint32_t c = 0; c < count; c++) {
        uint32_t bits = kvant_float_bits(row[c]), magnitude = bits & 0x7fffffffu;
        if (magnitude < 0x7f800000u) continue;
        row[c] = kvant_bits_float(magnitude > 0x7f800000u ? 0 : (bits & 0x80000000u) | range.largest);
        replaced++;
    }
    return replaced;
}

/* What would round to infinity becomes the largest number, so that rounding ends in the range. NaN, which
 * arbitrary extents may decode to, stays. */
static uint64_t saturate(float *row, uint32_t count, dtype_range range) {
    uint32_t saturated = 0;
    for (uint32_t c = 0; c < count; c++) {
        uint32_t bits = kvant_float_bits(row[c]);
        int32_t magnitude = (int32_t)(bits & 0x7fffffffu);
        int32_t over = (magnitude >= (int32_t)range.infinite) & (magnitude <= 0x7f800000);
        row[c] = kvant_bits_float(over ? (bits & 0x80000000u) | range.largest : bits);
        saturated += (uint32_t)over;
    }
    return saturated;
}

static void turn(const kvant_plan_entry *entry, uint32_t way, const float *turns, float *row) {
    if (way == KVANT_TURN_APPLY) kvant_rope_apply(entry->setup.rope, turns, row);
    if (way == KVANT_TURN_UNDO) kvant_rope_undo(entry->setup.rope, turns, row);
}

void kvant_rows_to_codec(const kvant_plan_entry *entry, const kvant_view *from, const kvant_mutable_view *to,
                         uint64_t first_position, kvant_row_scratch scratch, uint64_t *replaced,
                         uint64_t *saturated) {
    uint32_t head_dim = from->head_dim;
    dtype_range range = range_of(from->dtype);
    float *restrict row = scratch.row;
    kvant_turn_walk walk = kvant_turn_walk_begin(entry->setup.rope, entry->turn_table, scratch.base);
    for (uint32_t t = 0; t < from->tokens; t++) {
        if (entry->turn != KVANT_TURN_NONE) kvant_turn_walk_to(&walk, first_position + t, scratch.turns);
        for (uint32_t h = 0; h < from->heads; h++) {
            kvant_load_row(from, t, h, row);
            if (replaced != NULL) *replaced += replace_not_finite(row, head_dim, range);
            turn(entry, entry->turn, scratch.turns, row);
            if (entry->center != NULL) {
                const float *restrict center = entry->center + (size_t)h * head_dim;
                for (uint32_t c = 0; c < head_dim; c++) row[c] -= center[c];
            }
            *saturated += saturate(row, head_dim, range);
            kvant_store_row(to, t, h, row);
        }
    }
}

void kvant_rows_from_codec(const kvant_plan_entry *entry, const kvant_view *from,
                           const kvant_mutable_view *to, uint64_t position, uint32_t first_head,
                           kvant_row_scratch scratch) {
    uint32_t head_dim = from->head_dim;
    uint32_t back = entry->turn == KVANT_TURN_APPLY  ? KVANT_TURN_UNDO
                    : entry->turn == KVANT_TURN_UNDO ? KVANT_TURN_APPLY
                                                     : KVANT_TURN_NONE;
    dtype_range range = range_of(to->dtype);
    float *restrict row = scratch.row;
    kvant_turn_walk walk = kvant_turn_walk_begin(entry->setup.rope, entry->turn_table, scratch.base);
    for (uint32_t t = 0; t < from->tokens; t++) {
        if (back != KVANT_TURN_NONE) kvant_turn_walk_to(&walk, position + t, scratch.turns);
        for (uint32_t h = 0; h < from->heads; h++) {
            kvant_load_row(from, t, h, row);
            if (entry->center != NULL) {
                const float *restrict center = entry->center + ((size_t)first_head + h) * head_dim;
                for (uint32_t c = 0; c < head_dim; c++) row[c] += center[c];
            }
            turn(entry, back, scratch.turns, row);
            (void)saturate(row, head_dim, range);
            kvant_store_row(to, t, h, row);
        }
    }
}
