/* Fast encode and decode, compiled once per instruction set: the arithmetic of hack_quantize.h on whole rows.
 * Partitions whose range leaves float32 go through hack_quantize.h itself.
 *
 *     partitions along tokens     least and largest of every channel over the partition, then rows of codes
 *     partitions along channels   row by row
 *
 * Rows of codes, one a byte, are packed by kvant/kit/planar.h a stretch of tokens at a time: 16 of keys, a
 * matrix of up to 64 of values.
 */
#include "hack.h"
#include "hack_lanes.h"
#include "hack_quantize.h"

#include <kvant/kit/isa.h>

#include <string.h>

enum { LINE = HACK_STEP, AHEAD = 6, AHEAD_BYTES = 2048 };

/* ---- Scratch ------------------------------------------------------------------------------------------- */

/* All of it is in the host's scratch; every array starts on a multiple of 64 bytes and has room up to the
 * next. */
typedef struct work {
    float *row;         /* [head_dim] */
    float *low, *high;  /* [head_dim] */
    float *scale, *min; /* [head_dim]; as stored, when encoding 0 where codes are 0 */
    float *divisor;     /* the scale, infinity where it is 0 so that codes are 0 */
    uint32_t *sums;     /* values: [head_dim] */
    uint8_t *codes;     /* [stretch][code_stride] */
    size_t code_stride;
} work;

static uint32_t stretch_of(const hack_block *block) {
    return block->side == KVANT_SIDE_KEY ? LINE : HACK_MATRIX_TOKENS;
}

static size_t carve(const hack_block *block, void *scratch, work *w) {
    size_t floats = hack_round_up(sizeof(float) * block->head_dim, 64);
    w->code_stride = hack_round_up(block->head_dim, 64);
    if (scratch != NULL) {
        uint8_t *at = scratch;
        float **arrays[] = {&w->row, &w->low, &w->high, &w->scale, &w->min, &w->divisor};
        for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++, at += floats)
            *arrays[i] = (float *)(void *)at;
        w->sums = (uint32_t *)(void *)at;
        w->codes = at + floats;
    }
    return 7 * floats + stretch_of(block) * w->code_stride;
}

static uint64_t scratch_bytes(const hack_block *block) {
    work w = {0};
    return carve(block, NULL, &w);
}

/* A head's rows lie apart, between those of the other heads, where the processor does not expect them. */
static void fetch_to_read(const kvant_view *rows, uint32_t token, uint32_t head) {
    int64_t bytes = (int64_t)kvant_element_bytes(rows->dtype) * rows->head_dim;
    if (token >= rows->tokens || rows->channel_stride != (int64_t)kvant_element_bytes(rows->dtype)) return;
    const char *row = kvant_view_at(rows, token, head);
    for (int64_t i = 0; i < bytes && i < AHEAD_BYTES; i += 64) __builtin_prefetch(row + i, 0);
}

static void fetch_to_write(const kvant_mutable_view *rows, uint32_t token, uint32_t head) {
    int64_t bytes = (int64_t)kvant_element_bytes(rows->dtype) * rows->head_dim;
    if (token >= rows->tokens || rows->channel_stride != (int64_t)kvant_element_bytes(rows->dtype)) return;
    const char *row = kvant_mutable_view_at(rows, token, head);
    for (int64_t i = 0; i < bytes && i < AHEAD_BYTES; i += 64) __builtin_prefetch(row + i, 1);
}

/* A row as floats: where it lies, if it is of aligned floats side by side, else a copy. */
static const float *row_of(const kvant_view *rows, uint32_t token, uint32_t head, const work *w) {
    const char *from = kvant_view_at(rows, token, head);
    if (rows->dtype == KVANT_DTYPE_F32 && rows->channel_stride == (int64_t)sizeof(float) &&
        (uintptr_t)from % sizeof(float) == 0)
        return (const float *)(const void *)from;
    kvant_load_row(rows, token, head, w->row);
    return w->row;
}

/* ---- Codes --------------------------------------------------------------------------------------------- */

/* How a row becomes codes; constant in every use of the functions below. */
typedef struct manner {
    bool each;       /* every channel has its own minimum and divisor; else one for all */
    bool stochastic; /* else to nearest even */
} manner;

HACK_INLINE hack_floats noise_lanes(uint32_t seed, uint32_t c) {
    hack_words h = (hack_lane_numbers() + c) * 0x9E3779B1u ^ seed;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    h ^= h >> 16;
    return hack_from_ints((hack_ints)(h >> 8)) * 0x1p-24f;
}

/* The codes of HACK_WIDTH numbers, in the lowest byte of each lane. */
HACK_INLINE hack_ints code_lanes(hack_floats x, hack_floats min, hack_floats divisor, float levels,
                                 bool stochastic, uint32_t seed, uint32_t c) {
    const hack_floats zero = {0};
    hack_floats u = hack_least(hack_splat(levels), hack_most(zero, (x - min) / divisor));
    if (!stochastic) return (hack_ints)(u + 0x1p23f);
    hack_ints whole = hack_truncate(u);
    hack_floats rest = u - hack_from_ints(whole);
    return whole - (hack_ints)(noise_lanes(seed, c) < rest);
}

HACK_INLINE void code_row(const float *x, uint32_t from, uint32_t to, manner how, const float *scale,
                          const float *min, const float *divisor, uint32_t levels, uint32_t seed,
                          uint8_t *codes) {
    const float top = (float)levels;
    const hack_floats one_min = hack_splat(min[0]), one_divisor = hack_splat(divisor[0]);
    uint32_t c = from;
    for (; c + 4 * HACK_WIDTH <= to; c += 4 * HACK_WIDTH) {
        hack_ints four[4];
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t at = c + k * HACK_WIDTH;
            four[k] =
                code_lanes(hack_load(x + at), how.each ? hack_load(min + at) : one_min,
                           how.each ? hack_load(divisor + at) : one_divisor, top, how.stochastic, seed, at);
        }
        hack_store_bytes4(codes + c, four);
    }
    for (; c + HACK_WIDTH <= to; c += HACK_WIDTH)
        hack_store_bytes(codes + c, code_lanes(hack_load(x + c), how.each ? hack_load(min + c) : one_min,
                                               how.each ? hack_load(divisor + c) : one_divisor, top,
                                               how.stochastic, seed, c));
    for (; c < to; c++) {
        hack_fit fit = {.scale = scale[how.each ? c : 0], .min = min[how.each ? c : 0]};
        codes[c] = (uint8_t)hack_code(fit, levels, x[c], how.stochastic ? hack_noise(seed, c) : -1.0f);
    }
}

/* The channels [from, to) of a row one by one, where a range overflows; low and high as found. */
static void code_row_slowly(const hack_block *block, const float *x, uint32_t from, uint32_t to, bool each,
                            const float *low, const float *high, uint32_t seed, uint8_t *codes) {
    bool stochastic = block->rounding == HACK_STOCHASTIC;
    for (uint32_t c = from; c < to; c++) {
        uint64_t counted = 0;
        hack_fit fit =
            hack_fit_range(block->meta, block->levels, low[each ? c : 0], high[each ? c : 0], &counted);
        codes[c] = (uint8_t)hack_code(fit, block->levels, x[c], stochastic ? hack_noise(seed, c) : -1.0f);
    }
}

/* ---- Partitions along tokens --------------------------------------------------------------------------- */

static void range_down(const hack_block *block, const kvant_view *rows, uint32_t head, uint32_t first,
                       const work *w) {
    uint32_t dim = block->head_dim;
    for (uint32_t t = first; t < first + block->partition; t++) {
        const float *x = row_of(rows, t, head, w);
        fetch_to_read(rows, t + AHEAD, head);
        if (t == first) {
            memcpy(w->low, x, dim * sizeof *x);
            memcpy(w->high, x, dim * sizeof *x);
            continue;
        }
        uint32_t c = 0;
        for (; c + HACK_WIDTH <= dim; c += HACK_WIDTH) {
            hack_store(w->low + c, hack_least(hack_load(w->low + c), hack_load(x + c)));
            hack_store(w->high + c, hack_most(hack_load(w->high + c), hack_load(x + c)));
        }
        for (; c < dim; c++) {
            w->low[c] = x[c] < w->low[c] ? x[c] : w->low[c];
            w->high[c] = x[c] > w->high[c] ? x[c] : w->high[c];
        }
    }
}

/* Scales and minima of every channel; true if a range overflows. */
static bool fit_channels(const hack_block *block, uint8_t *head, uint32_t first, const work *w,
                         uint64_t *saturated) {
    bool wide = false;
    size_t index = hack_meta_index(block, first, 0);
    for (uint32_t c = 0; c < block->head_dim; c++) {
        hack_fit fit = hack_fit_range(block->meta, block->levels, w->low[c], w->high[c], saturated);
        w->scale[c] = fit.scale;
        w->row[c] = hack_stored_scale(block, fit);
        w->min[c] = fit.min;
        w->divisor[c] = fit.scale > 0 ? fit.scale : INFINITY;
        wide |= fit.wide;
    }
    size_t offset = index * block->meta_bytes;
    kvant_store_elements(head + block->scale_offset + offset, block->meta, block->head_dim, w->row);
    kvant_store_elements(head + block->min_offset + offset, block->meta, block->head_dim, w->min);
    return wide;
}

/* ---- Partitions along channels ------------------------------------------------------------------------- */

static void range_along(const float *x, uint32_t count, float *low, float *high) {
    float least = x[0], most = x[0];
    uint32_t i = 0;
    if (count >= HACK_WIDTH) {
        hack_floats leasts = hack_load(x), mosts = leasts;
        for (i = HACK_WIDTH; i + HACK_WIDTH <= count; i += HACK_WIDTH) {
            leasts = hack_least(leasts, hack_load(x + i));
            mosts = hack_most(mosts, hack_load(x + i));
        }
        least = hack_least_lane(leasts);
        most = hack_most_lane(mosts);
    }
    for (; i < count; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    *low = least;
    *high = most;
}

HACK_INLINE void code_parts(const hack_block *block, const float *x, uint8_t *head, uint32_t token,
                            bool stochastic, uint32_t seed, uint8_t *codes, uint64_t *saturated) {
    for (uint32_t p = 0; p < block->parts; p++) {
        uint32_t from = p * block->part;
        float low, high;
        range_along(x + from, block->part, &low, &high);
        hack_fit fit = hack_fit_range(block->meta, block->levels, low, high, saturated);
        float divisor = fit.scale > 0 ? fit.scale : INFINITY;
        size_t index = (size_t)p * block->tokens + token;
        hack_meta_store(block, head + block->scale_offset, index, hack_stored_scale(block, fit));
        hack_meta_store(block, head + block->min_offset, index, fit.min);
        if (fit.wide)
            code_row_slowly(block, x, from, from + block->part, false, &low, &high, seed, codes);
        else
            code_row(x, from, from + block->part, (manner){.each = false, .stochastic = stochastic},
                     &fit.scale, &fit.min, &divisor, block->levels, seed, codes);
    }
}

/* ---- Encode -------------------------------------------------------------------------------------------- */

HACK_INLINE void code_token(const hack_block *block, const float *x, uint8_t *head, uint32_t token,
                            bool stochastic, bool wide, uint32_t seed, uint8_t *codes, const work *w,
                            uint64_t *saturated) {
    if (!block->per_channel)
        code_parts(block, x, head, token, stochastic, seed, codes, saturated);
    else if (wide)
        code_row_slowly(block, x, 0, block->head_dim, true, w->low, w->high, seed, codes);
    else
        code_row(x, 0, block->head_dim, (manner){.each = true, .stochastic = stochastic}, w->scale, w->min,
                 w->divisor, block->levels, seed, codes);
}

static void add_key_sums(const hack_block *block, uint8_t *head, uint32_t token, const uint8_t *codes) {
    for (uint32_t p = 0; p < block->parts; p++) {
        uint32_t sum = 0;
        for (uint32_t c = p * block->part; c < (p + 1) * block->part; c++) sum += codes[c];
        hack_sum_store(block, head + block->sum_offset, (size_t)p * block->tokens + token, sum);
    }
}

static void add_value_sums(const hack_block *block, const uint8_t *codes, uint32_t *sums) {
    for (uint32_t c = 0; c < block->head_dim; c++) sums[c] += codes[c];
}

static void store_value_sums(const hack_block *block, uint8_t *head, uint32_t first, const uint32_t *sums) {
    uint8_t *plane = head + block->sum_offset;
    size_t index = (size_t)(first / block->partition) * block->head_dim;
    for (uint32_t c = 0; c < block->head_dim; c++) hack_sum_store(block, plane, index + c, sums[c]);
}

__attribute__((noinline)) static void pack(const hack_block *block, uint8_t *head, uint32_t first,
                                           uint32_t tokens, const work *w) {
    if (block->side == KVANT_SIDE_KEY)
        kvant_planar_pack(head + kvant_planar_bytes(first, block->head_dim, block->bits), tokens,
                          block->head_dim, block->bits, w->codes, w->code_stride, 1);
    else
        kvant_planar_pack(head + hack_matrix_of(block, first).offset, block->head_dim, tokens, block->bits,
                          w->codes, 1, w->code_stride);
}

HACK_INLINE void encode_head(const hack_block *block, const kvant_encode_args *args, uint32_t h,
                             bool stochastic, const work *w, uint64_t *saturated) {
    uint8_t *head = (uint8_t *)args->extent + h * block->head_bytes;
    uint32_t stretch = stretch_of(block), partition = block->partition;
    bool key = block->side == KVANT_SIDE_KEY, wide = false;
    for (uint32_t t = 0; t < block->tokens; t++) {
        uint32_t slot = t % stretch;
        if (t % partition == 0) {
            if (block->per_channel) {
                range_down(block, args->rows, h, t, w);
                wide = fit_channels(block, head, t, w, saturated);
            }
            if (!key) memset(w->sums, 0, block->head_dim * sizeof *w->sums);
        }
        uint32_t seed =
            stochastic ? hack_noise_row(block->noise_base, args->first_position + t, block->first_head + h)
                       : 0;
        uint8_t *codes = w->codes + slot * w->code_stride;
        fetch_to_read(args->rows, t + AHEAD, h);
        code_token(block, row_of(args->rows, t, h, w), head, t, stochastic, wide, seed, codes, w, saturated);
        if (key)
            add_key_sums(block, head, t, codes);
        else
            add_value_sums(block, codes, w->sums);
        if (!key && t % partition == partition - 1)
            store_value_sums(block, head, t - (partition - 1), w->sums);
        if (slot == stretch - 1 || t == block->tokens - 1) pack(block, head, t - slot, slot + 1, w);
    }
}

static void clear_padding(const hack_block *block, uint8_t *head) {
    size_t plane = block->meta_count * block->meta_bytes;
    size_t end = block->scale_offset + plane;
    memset(head + end, 0, block->min_offset - end);
    end = block->min_offset + plane;
    memset(head + end, 0, block->sum_offset - end);
    end = block->sum_offset + block->sum_count * block->sum_bytes;
    memset(head + end, 0, block->head_bytes - end);
}

static void encode(const hack_block *block, kvant_encode_args *args) {
    work w = {0};
    carve(block, args->scratch, &w);
    uint64_t saturated = 0;
    for (uint32_t h = 0; h < block->heads; h++) {
        clear_padding(block, (uint8_t *)args->extent + h * block->head_bytes);
        if (block->rounding == HACK_STOCHASTIC)
            encode_head(block, args, h, true, &w, &saturated);
        else
            encode_head(block, args, h, false, &w, &saturated);
    }
    args->size = block->bytes;
    args->saturated = saturated;
}

/* ---- Decode -------------------------------------------------------------------------------------------- */

HACK_INLINE void value_row(const hack_block *block, const uint8_t *codes, uint32_t from, uint32_t to,
                           bool each, const float *scale, const float *min, bool overflows, float *x) {
    const hack_floats one_scale = hack_splat(scale[0]), one_min = hack_splat(min[0]);
    uint32_t c = from;
    if (!overflows)
        for (; c + HACK_WIDTH <= to; c += HACK_WIDTH) {
            hack_floats s = each ? hack_load(scale + c) : one_scale;
            hack_floats m = each ? hack_load(min + c) : one_min;
            hack_store(x + c, hack_load_bytes(codes + c) * s + m);
        }
    for (; c < to; c++) x[c] = hack_value(block->levels, scale[each ? c : 0], min[each ? c : 0], codes[c]);
}

/* Scales and minima of every channel; true if one of the partitions overflows when decoded. */
static bool load_channels(const hack_block *block, const uint8_t *head, uint32_t token, const work *w) {
    size_t offset = hack_meta_index(block, token, 0) * block->meta_bytes;
    kvant_load_elements(head + block->scale_offset + offset, block->meta, block->head_dim, w->scale);
    kvant_load_elements(head + block->min_offset + offset, block->meta, block->head_dim, w->min);
    int overflow = 0;
    for (uint32_t c = 0; c < block->head_dim; c++)
        overflow |= hack_overflows(block->levels, w->scale[c], w->min[c]);
    return overflow != 0;
}

static void decode_parts(const hack_block *block, const uint8_t *head, uint32_t token, const uint8_t *codes,
                         float *x) {
    for (uint32_t p = 0; p < block->parts; p++) {
        size_t index = (size_t)p * block->tokens + token;
        float scale = hack_meta_load(block, head + block->scale_offset, index);
        float min = hack_meta_load(block, head + block->min_offset, index);
        bool overflows = hack_overflows(block->levels, scale, min);
        value_row(block, codes, p * block->part, (p + 1) * block->part, false, &scale, &min, overflows, x);
    }
}

__attribute__((noinline)) static void unpack(const hack_block *block, const uint8_t *head, uint32_t first,
                                             const work *w) {
    hack_matrix m = hack_matrix_of(block, first);
    if (block->side == KVANT_SIDE_KEY)
        kvant_planar_unpack(head + kvant_planar_bytes(first, block->head_dim, block->bits), LINE,
                            block->head_dim, block->bits, w->codes, w->code_stride, 1);
    else
        kvant_planar_unpack(head + m.offset, block->head_dim, m.summed_count, block->bits, w->codes, 1,
                            w->code_stride);
}

/* Where a decoded row goes: straight into the view, or into w until kvant_store_row puts it there. */
static float *row_out(const kvant_mutable_view *rows, uint32_t t, uint32_t h, const work *w) {
    char *to = kvant_mutable_view_at(rows, t, h);
    bool straight = rows->dtype == KVANT_DTYPE_F32 && rows->channel_stride == (int64_t)sizeof(float) &&
                    (uintptr_t)to % sizeof(float) == 0;
    return straight ? (float *)(void *)to : w->row;
}

static void decode_head(const hack_block *block, const kvant_decode_args *args, uint32_t h, const work *w) {
    const kvant_mutable_view *rows = args->rows;
    const uint8_t *head = (const uint8_t *)args->extent->bytes + (args->first_head + h) * block->head_bytes;
    uint32_t stretch = stretch_of(block);
    bool overflows = false;
    for (uint32_t t = 0; t < rows->tokens; t++) {
        uint32_t token = args->first_token + t, slot = token % stretch;
        fetch_to_write(rows, t + AHEAD, h);
        if (t == 0 || slot == 0) unpack(block, head, token - slot, w);
        const uint8_t *codes = w->codes + slot * w->code_stride;
        float *x = row_out(rows, t, h, w);
        if (block->per_channel) {
            if (t == 0 || token % block->partition == 0) overflows = load_channels(block, head, token, w);
            value_row(block, codes, 0, block->head_dim, true, w->scale, w->min, overflows, x);
        } else {
            decode_parts(block, head, token, codes, x);
        }
        if (x == w->row) kvant_store_row(rows, t, h, x);
    }
}

static void decode(const hack_block *block, const kvant_decode_args *args) {
    work w = {0};
    carve(block, args->scratch, &w);
    for (uint32_t h = 0; h < args->rows->heads; h++) decode_head(block, args, h, &w);
}

const hack_code_table KVANT_CPU(hack_code) = {KVANT_CPU_ISA, encode, decode, scratch_bytes};
