/* The fast code, compiled once per instruction set: the arithmetic of kvquant_math.h on whole rows, in
 * vectors.
 *
 *     encode   token by token: range and outliers, over all heads; then head by head, 64 tokens at a time:
 *              rows of codes, one a byte, which kvant/kit/planar.h packs, and outliers into their slots
 *     decode   head by head: unpack, look up, one product and one sum; then the row's outliers
 */
#include "kvquant_lanes.h"
#include "kvquant_state.h"
#include "kvquant_tails.h"
#include "kvquant_work.h"

#include <kvant/kit/isa.h>

enum {
    LINE = 16, /* tokens that share a line of a key's planes */
    AHEAD = 4, /* rows that are fetched before they are needed */
    AHEAD_BYTES = 2048
};

/* ---- Outliers ------------------------------------------------------------------------------------------ */

/* Marks of one head's row, from arrays of one limit per channel or from one for all. Returns how many. */
KVQUANT_INLINE uint32_t mark_row(const float *x, uint32_t dim, bool each, const float *high, const float *low,
                                 uint64_t *mask) {
    uint32_t count = 0;
    for (uint32_t first = 0; first < dim; first += 64, mask++) {
        uint32_t end = dim - first < 64 ? dim - first : 64;
        uint64_t bits = 0;
        for (uint32_t i = 0; i < end; i += KVQUANT_LANES) {
            kvquant_floats v = kvquant_load(x + first + i);
            kvquant_floats up = each ? kvquant_load(high + first + i) : kvquant_splat(*high);
            kvquant_floats down = each ? kvquant_load(low + first + i) : kvquant_splat(*low);
            bits |= (uint64_t)kvquant_bits_of((v > up) | (v < down)) << i;
        }
        *mask = end == 64 ? bits : bits & (((uint64_t)1 << end) - 1);
        count += (uint32_t)__builtin_popcountll(*mask);
    }
    return count;
}

/* Range and marks of one token. */
static void mark_token(const kvquant_block *block, const kvquant_channels *channels,
                       const kvant_encode_args *args, uint32_t token, kvquant_work *w, kvquant_cut *guess,
                       uint64_t *saturated) {
    kvquant_cut cut = {0};
    kvquant_scorer scorer = {channels, {0, 0}};
    uint32_t dim = block->head_dim, marked = 0;
    for (uint32_t h = 0; h < block->heads; h++)
        kvant_load_row(args->rows, token, h, w->row + (size_t)h * dim);
    if (kvquant_token_ranges(block)) {
        cut = cut_of(block, w->row, block->width, w, guess);
        w->ranges[token] = kvquant_store_range(block, args->extent, token, 0, 0, &cut, saturated);
        scorer = (kvquant_scorer){NULL, w->ranges[token]};
    }
    for (uint32_t h = 0; h < block->heads; h++) {
        uint64_t *mask = kvquant_mask_row(block, w, token, h);
        size_t at = (size_t)h * block->padded;
        marked +=
            block->config.channel
                ? mark_row(w->row + (size_t)h * dim, dim, true, channels->high + at, channels->low + at, mask)
                : mark_row(w->row + (size_t)h * dim, dim, false, &cut.high, &cut.low, mask);
    }
    if (!block->config.sparse) {
        *saturated += marked;
        return;
    }
    if (kvquant_by_rank(&block->config) && marked < 2 * block->per_tail)
        kvquant_mark_equal(block, w, token, &cut);
    if (marked > block->per_tail) kvquant_keep(block, w, token, &scorer, saturated);
}

/* ---- Codes --------------------------------------------------------------------------------------------- */

/* Codes of a row. `each`: arrays of one range per channel, else one for all; `how`: one of CODE_*. They and
 * levels are constants in every use. Reads and writes up to the next multiple of KVQUANT_LANES. */
enum { CODE_EDGES, CODE_SIMULATED, CODE_DEPLOYED };

/* The number of edges at or below x. */
KVQUANT_INLINE kvquant_ints code_by_edges(kvquant_floats x, uint32_t levels, const float *edges) {
    kvquant_ints code = {0};
    for (uint32_t k = 1; k < levels; k++) code -= x >= kvquant_splat(edges[k]);
    return code;
}

KVQUANT_INLINE kvquant_ints code_by_distance(kvquant_floats x, uint32_t levels, const kvquant_floats *table) {
    x = kvquant_least(kvquant_most(x, table[0]), table[levels - 1]);
    kvquant_ints code = {0};
    kvquant_floats least = kvquant_magnitude(table[0] - x);
    for (uint32_t k = 1; k < levels; k++) {
        kvquant_floats distance = kvquant_magnitude(table[k] - x);
        kvquant_ints nearer = distance < least, this = {0};
        code = kvquant_select(nearer, this + (int32_t)k, code);
        least = kvquant_least(distance, least);
    }
    return code;
}

KVQUANT_INLINE void code_table(const kvquant_state *state, uint32_t levels, uint32_t how, bool each,
                               kvquant_floats z, kvquant_floats r, kvquant_floats *table) {
    const kvquant_floats limit = kvquant_splat(FLT_MAX);
    for (uint32_t k = 0; k < levels; k++) {
        table[k] = kvquant_splat(state->book[k]);
        if (how != CODE_DEPLOYED) continue;
        table[k] = table[k] * r + z; /* static ranges are far from overflow */
        if (!each) table[k] = kvquant_least(kvquant_most(table[k], -limit), limit);
    }
}

KVQUANT_INLINE void code_row(const kvquant_state *state, const char *row, uint32_t levels, uint32_t how,
                             bool each, const float *middle, const float *half, uint8_t *codes) {
    const kvquant_floats nan = kvquant_splat(NAN), zero = {0};
    kvquant_floats z = kvquant_splat(*middle), r = kvquant_splat(*half), table[16];
    uint32_t dim = state->block.head_dim;
    if (how != CODE_EDGES && !each) code_table(state, levels, how, each, z, r, table);
    for (uint32_t i = 0; i < dim; i += KVQUANT_LANES) {
        kvquant_floats x = kvquant_load(row + (size_t)i * sizeof(float));
        if (each) z = kvquant_load(middle + i);
        if (each) r = kvquant_load(half + i);
        if (how != CODE_DEPLOYED) x = (x - z) / kvquant_select_floats(r > zero, r, nan);
        if (how == CODE_EDGES) {
            kvquant_store_codes(codes + i, code_by_edges(x, levels, state->edges));
            continue;
        }
        if (each) code_table(state, levels, how, each, z, r, table);
        kvquant_store_codes(codes + i, code_by_distance(x, levels, table));
    }
}

KVQUANT_INLINE void code_row_levels(const kvquant_state *state, const char *row, uint32_t how, bool each,
                                    const float *middle, const float *half, uint8_t *codes) {
    switch (state->block.levels) {
    case 4:
        code_row(state, row, 4, how, each, middle, half, codes);
        break;
    case 8:
        code_row(state, row, 8, how, each, middle, half, codes);
        break;
    default:
        code_row(state, row, 16, how, each, middle, half, codes);
        break;
    }
}

KVQUANT_INLINE void code_row_each(const kvquant_state *state, const char *row, uint32_t how,
                                  const float *middle, const float *half, uint8_t *codes) {
    if (state->block.config.channel)
        code_row_levels(state, row, how, true, middle, half, codes);
    else
        code_row_levels(state, row, how, false, middle, half, codes);
}

static void code_any_row(const kvquant_state *state, const char *row, const float *middle, const float *half,
                         uint8_t *codes) {
    if (state->block.config.deployed)
        code_row_each(state, row, CODE_DEPLOYED, middle, half, codes);
    else if (state->has_edges)
        code_row_each(state, row, CODE_EDGES, middle, half, codes);
    else
        code_row_each(state, row, CODE_SIMULATED, middle, half, codes);
}

/* ---- Packing ------------------------------------------------------------------------------------------- */

/* One copy each of what are large functions. */
__attribute__((noinline)) static void pack(uint8_t *base, uint32_t free_count, uint32_t summed_count,
                                           uint32_t bits, const uint8_t *codes, size_t free_stride,
                                           size_t summed_stride) {
    kvant_planar_pack(base, free_count, summed_count, bits, codes, free_stride, summed_stride);
}

__attribute__((noinline)) static void unpack(const uint8_t *base, uint32_t free_count, uint32_t summed_count,
                                             uint32_t bits, uint8_t *codes, size_t free_stride,
                                             size_t summed_stride) {
    kvant_planar_unpack(base, free_count, summed_count, bits, codes, free_stride, summed_stride);
}

/* Tokens that are packed or unpacked together, from `first` on: where their planes begin. Keys: whole lines
 * of 16 tokens; values: one matrix. */
typedef struct stretch {
    size_t low, high; /* the 2-bit or only set of planes, and that of the third bits; from the head on */
    uint32_t first, tokens;
    uint32_t free_count, summed_count;
} stretch;

static stretch stretch_of(const kvquant_block *block, uint32_t token, uint32_t key_tokens) {
    uint32_t bits = block->config.bits == 3 ? 2 : block->config.bits;
    stretch s = {0};
    if (block->side == KVANT_SIDE_VALUE) {
        kvquant_matrix m = kvquant_matrix_of(block, token);
        s.first = m.first_token;
        s.tokens = s.summed_count = m.summed_count;
        s.free_count = m.free_count;
        s.low = m.offset;
        s.high = m.offset + kvant_planar_bytes(m.free_count, m.summed_count, 2);
        return s;
    }
    s.first = token / key_tokens * key_tokens;
    uint32_t left = block->tokens - s.first;
    s.tokens = s.free_count = left < key_tokens ? left : key_tokens;
    s.summed_count = block->head_dim;
    s.low = kvant_planar_bytes(s.first, block->head_dim, bits);
    s.high = kvant_planar_bytes(block->tokens, block->head_dim, 2) +
             kvant_planar_bytes(s.first, block->head_dim, 1);
    return s;
}

static void pack_codes(const kvquant_block *block, uint8_t *head, const stretch *s, const kvquant_work *w) {
    bool key = block->side == KVANT_SIDE_KEY;
    size_t free_stride = key ? w->code_stride : 1, summed_stride = key ? 1 : w->code_stride;
    size_t count = s->tokens * w->code_stride;
    if (block->config.bits != 3) {
        pack(head + s->low, s->free_count, s->summed_count, block->config.bits, w->codes, free_stride,
             summed_stride);
        return;
    }
    for (size_t i = 0; i < count; i++) w->part[i] = w->codes[i] >> 2 & 1;
    pack(head + s->high, s->free_count, s->summed_count, 1, w->part, free_stride, summed_stride);
    for (size_t i = 0; i < count; i++) w->part[i] = w->codes[i] & 3;
    pack(head + s->low, s->free_count, s->summed_count, 2, w->part, free_stride, summed_stride);
}

static void unpack_codes(const kvquant_block *block, const uint8_t *head, const stretch *s,
                         const kvquant_work *w) {
    bool key = block->side == KVANT_SIDE_KEY;
    size_t free_stride = key ? w->code_stride : 1, summed_stride = key ? 1 : w->code_stride;
    if (block->config.bits != 3) {
        unpack(head + s->low, s->free_count, s->summed_count, block->config.bits, w->codes, free_stride,
               summed_stride);
        return;
    }
    unpack(head + s->low, s->free_count, s->summed_count, 2, w->codes, free_stride, summed_stride);
    unpack(head + s->high, s->free_count, s->summed_count, 1, w->part, free_stride, summed_stride);
    for (uint32_t t = 0; t < s->tokens; t++)
        for (size_t c = t * w->code_stride, end = c + block->head_dim; c < end; c++)
            w->codes[c] = (uint8_t)(w->codes[c] | w->part[c] << 2);
}

/* ---- Encode -------------------------------------------------------------------------------------------- */

/* Codes and slots of the outliers of a row. */
static void put_outliers(const kvquant_state *state, const kvquant_work *w, uint8_t *extent, uint32_t token,
                         uint32_t head, const char *row, const float *half, uint8_t *codes, uint64_t *slot,
                         uint64_t *saturated) {
    const kvquant_block *block = &state->block;
    const uint64_t *mask = kvquant_mask_row(block, w, token, head);
    bool nearest = block->config.deployed && !kvquant_by_rank(&block->config);
    bool zero_if_flat = !block->config.deployed;
    for (uint32_t i = 0; i < w->words; i++)
        for (uint64_t bits = mask[i]; bits != 0; bits &= bits - 1) {
            uint32_t c = i * 64 + (uint32_t)__builtin_ctzll(bits);
            float x, r = half[block->config.channel ? c : 0];
            memcpy(&x, row + (size_t)c * sizeof x, sizeof x);
            if (!nearest) codes[c] = (uint8_t)(zero_if_flat && !(r > 0) ? 0 : state->hidden_code);
            kvquant_slot_put(block, extent, (*slot)++, token * block->head_dim + c,
                             kvquant_to_meta(block->meta, x, saturated));
        }
}

/* A head's rows lie apart, between those of the other heads, where the processor does not expect them. */
static void fetch_to_read(const kvant_view *rows, uint32_t token, uint32_t head) {
    int64_t bytes = (int64_t)kvant_element_bytes(rows->dtype) * rows->head_dim;
    if (token >= rows->tokens || rows->channel_stride != (int64_t)kvant_element_bytes(rows->dtype)) return;
    const char *row = kvant_view_at(rows, token, head);
    for (int64_t i = 0; i < bytes && i < AHEAD_BYTES; i += 64) __builtin_prefetch(row + i, 0);
}

static void encode_head(const kvquant_state *state, const kvant_encode_args *args,
                        const kvquant_channels *channels, uint32_t head, kvquant_work *w, uint64_t *slot,
                        uint64_t *saturated) {
    const kvquant_block *block = &state->block;
    const kvant_view *rows = args->rows;
    uint8_t *extent = args->extent;
    bool direct = rows->dtype == KVANT_DTYPE_F32 && rows->channel_stride == sizeof(float) &&
                  block->head_dim % KVQUANT_LANES == 0;
    size_t at = (size_t)head * block->padded;
    for (uint32_t first = 0; first < block->tokens; first += KVQUANT_MATRIX_TOKENS) {
        stretch s = stretch_of(block, first, KVQUANT_MATRIX_TOKENS);
        for (uint32_t t = 0; t < s.tokens; t++) {
            uint32_t token = first + t;
            uint8_t *codes = w->codes + t * w->code_stride;
            const char *row = (const char *)w->row;
            fetch_to_read(rows, token + AHEAD, head);
            if (direct)
                row = kvant_view_at(rows, token, head);
            else
                kvant_load_row(rows, token, head, w->row);
            const kvquant_range *range = &w->ranges[token];
            const float *middle = block->config.channel ? channels->middle + at : &range->middle;
            const float *half = block->config.channel ? channels->half + at : &range->half;
            code_any_row(state, row, middle, half, codes);
            if (block->config.sparse)
                put_outliers(state, w, extent, token, head, row, half, codes, slot, saturated);
        }
        pack_codes(block, extent + head * block->head_bytes, &s, w);
    }
}

static void store_channel(const kvquant_block *block, const kvant_encode_args *args, const kvquant_work *w,
                          uint32_t h, uint32_t c, const kvquant_cut *cut, uint64_t *saturated) {
    kvquant_range range = kvquant_store_range(block, args->extent, 0, h, c, cut, saturated);
    size_t at = (size_t)h * block->padded + c;
    w->channels.high[at] = cut->high;
    w->channels.low[at] = cut->low;
    w->channels.middle[at] = w->channels.score_middle[at] = range.middle;
    w->channels.half[at] = w->channels.score_half[at] = range.half;
}

static void fit_channel(const kvquant_block *block, const kvant_encode_args *args, kvquant_work *w,
                        uint32_t h, uint32_t c, uint64_t *saturated) {
    const kvant_view *rows = args->rows;
    for (uint32_t t = 0; t < block->tokens; t++)
        w->column[t] =
            kvant_load_element(kvant_view_at(rows, t, h) + (int64_t)c * rows->channel_stride, rows->dtype);
    kvquant_cut guess = no_guess, cut = cut_of(block, w->column, block->tokens, w, &guess);
    store_channel(block, args, w, h, c, &cut, saturated);
}

static void fit_channels(const kvquant_block *block, const kvant_encode_args *args, kvquant_work *w,
                         uint64_t *saturated) {
    const kvant_view *rows = args->rows;
    double q = kvquant_upper_quantile(&block->config);
    uint32_t n = block->tokens;
    bool together = block->config.sparse && n - kvquant_place_of(q, n).index <= SHORT_TAIL &&
                    kvquant_place_of(1 - q, n).next < SHORT_TAIL &&
                    rows->channel_stride == (int64_t)kvant_element_bytes(rows->dtype);
    for (uint32_t h = 0; h < block->heads; h++)
        for (uint32_t c = 0; c < block->head_dim;) {
            kvquant_cut cuts[KVQUANT_LANES];
            uint32_t count = block->head_dim - c < KVQUANT_LANES ? block->head_dim - c : KVQUANT_LANES;
            bool done = together && count == KVQUANT_LANES && cut_channels(block, rows, h, c, cuts);
            for (uint32_t l = 0; l < count; l++, c++)
                if (done)
                    store_channel(block, args, w, h, c, &cuts[l], saturated);
                else
                    fit_channel(block, args, w, h, c, saturated);
        }
}

static void encode(const kvquant_state *state, kvant_encode_args *args) {
    const kvquant_block *block = &state->block;
    uint64_t saturated = 0, slot = 0;
    kvquant_work w = {0};
    (void)kvquant_carve(block, args->scratch, &w);
    const kvquant_channels *channels = block->config.is_static ? &state->channels : &w.channels;
    kvquant_clear(block, args->extent);
    /* What vectors read beyond rows and channels does not enter results. */
    memset(w.row + block->width, 0, sizeof(float) * KVQUANT_LANE_PAD);
    if (kvquant_channel_ranges(block)) {
        kvquant_channels all;
        size_t bytes = kvquant_channels_carve(block, NULL, &all);
        memset(w.channels.high, 0, bytes);
        fit_channels(block, args, &w, &saturated);
    }
    kvquant_cut guess = no_guess;
    for (uint32_t t = 0; t < block->tokens; t++) mark_token(block, channels, args, t, &w, &guess, &saturated);
    args->size = kvquant_index_slots(block, &w, args->extent);
    for (uint32_t h = 0; h < block->heads; h++) encode_head(state, args, channels, h, &w, &slot, &saturated);
    args->saturated = saturated;
}

/* ---- Decode -------------------------------------------------------------------------------------------- */

/* Writes up to the next multiple of KVQUANT_LANES. */
KVQUANT_INLINE void value_row(const uint8_t *codes, uint32_t dim, uint32_t levels, bool each,
                              const float *table, const float *middle, const float *half, char *out) {
    const kvquant_registers registers = kvquant_table_load(table);
    const kvquant_floats limit = kvquant_splat(FLT_MAX);
    const kvquant_floats one_middle = kvquant_splat(*middle), one_half = kvquant_splat(*half);
    for (uint32_t i = 0; i < dim; i += KVQUANT_LANES) {
        kvquant_floats z = each ? kvquant_load(middle + i) : one_middle;
        kvquant_floats r = each ? kvquant_load(half + i) : one_half;
        kvquant_floats x = kvquant_look_up(registers, levels, codes + i) * r + z;
        kvquant_store(out + (size_t)i * sizeof(float), kvquant_least(kvquant_most(x, -limit), limit));
    }
}

static void value_any_row(const kvquant_state *state, const uint8_t *codes, const float *middle,
                          const float *half, char *out) {
    uint32_t dim = state->block.head_dim;
    bool wide = state->block.levels == 16;
    if (state->block.config.channel && wide)
        value_row(codes, dim, 16, true, state->table, middle, half, out);
    else if (state->block.config.channel)
        value_row(codes, dim, 8, true, state->table, middle, half, out);
    else if (wide)
        value_row(codes, dim, 16, false, state->table, middle, half, out);
    else
        value_row(codes, dim, 8, false, state->table, middle, half, out);
}

/* Ranges of a head's channels from the extent. */
static void load_channels(const kvquant_block *block, const uint8_t *extent, uint32_t head,
                          const kvquant_work *w) {
    size_t at = (size_t)head * block->padded;
    for (uint32_t c = 0; c < block->head_dim; c++) {
        kvquant_range range = kvquant_stored_range(block, extent, 0, head, c);
        w->channels.middle[at + c] = range.middle;
        w->channels.half[at + c] = range.half;
    }
    for (uint32_t c = block->head_dim; c < block->padded; c++)
        w->channels.middle[at + c] = w->channels.half[at + c] = 0;
}

/* The outliers of a row, over the dense values. Returns the slot behind them. */
static uint64_t restore_row(const kvquant_state *state, const kvant_decode_args *args, uint32_t t, uint32_t h,
                            kvquant_slots slots, uint64_t slot, const uint8_t *codes, const float *middle,
                            const float *half) {
    const kvquant_block *block = &state->block;
    const kvant_mutable_view *rows = args->rows;
    const uint8_t *extent = args->extent->bytes;
    uint32_t first = (args->first_token + t) * block->head_dim;
    char *row = kvant_mutable_view_at(rows, t, h);
    for (; slot < slots.end; slot++) {
        uint32_t c = kvquant_slot_position(block, extent, slot) - first;
        if (c >= block->head_dim) break;
        uint32_t of = block->config.channel ? c : 0;
        kvquant_range range = {middle[of], half[of]};
        float base = block->config.deployed ? kvquant_value(state->table[codes[c]], range) : range.middle;
        float x = kvquant_restored(base, kvquant_slot_value(block, extent, slot));
        kvant_store_element(row + (int64_t)c * rows->channel_stride, rows->dtype, x);
    }
    return slot;
}

static void decode_head(const kvquant_state *state, const kvant_decode_args *args, uint32_t h,
                        kvquant_work *w) {
    const kvquant_block *block = &state->block;
    const kvant_mutable_view *rows = args->rows;
    const uint8_t *extent = args->extent->bytes;
    uint32_t head = args->first_head + h;
    size_t at = (size_t)head * block->padded;
    const kvquant_channels *channels = block->config.is_static ? &state->channels : &w->channels;
    bool direct = rows->dtype == KVANT_DTYPE_F32 && rows->channel_stride == sizeof(float) &&
                  block->head_dim % KVQUANT_LANES == 0;
    if (kvquant_channel_ranges(block)) load_channels(block, extent, head, w);
    kvquant_slots slots = kvquant_slots_of(block, extent, args->extent->size, head);
    uint64_t slot = kvquant_slots_from(block, extent, slots, args->first_token * block->head_dim);
    stretch s = {0};
    for (uint32_t t = 0; t < rows->tokens; t++) {
        uint32_t token = args->first_token + t;
        if (t == 0 || token == s.first + s.tokens) {
            s = stretch_of(block, token, LINE);
            unpack_codes(block, extent + head * block->head_bytes, &s, w);
        }
        const uint8_t *codes = w->codes + (token - s.first) * w->code_stride;
        kvquant_range range = {0, 0};
        if (!block->config.channel) range = kvquant_stored_range(block, extent, token, head, 0);
        const float *middle = block->config.channel ? channels->middle + at : &range.middle;
        const float *half = block->config.channel ? channels->half + at : &range.half;
        value_any_row(state, codes, middle, half,
                      direct ? kvant_mutable_view_at(rows, t, h) : (char *)w->out);
        if (!direct) kvant_store_row(rows, t, h, w->out);
        slot = restore_row(state, args, t, h, slots, slot, codes, middle, half);
    }
}

static void decode(const kvquant_state *state, const kvant_decode_args *args) {
    kvquant_work w = {0};
    (void)kvquant_carve(&state->block, args->scratch, &w);
    for (uint32_t h = 0; h < args->rows->heads; h++) decode_head(state, args, h, &w);
}

const kvquant_code KVANT_CPU(kvquant_code) = {KVANT_CPU_ISA, encode, decode};
