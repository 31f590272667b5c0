/* The fast code, compiled once per instruction set: the arithmetic of turboquant_reference.c row by row, in
 * loops that the compiler turns into vector instructions.
 *
 *     encode   a row of channels -> coordinates -> symbols, one a byte; packed 64 tokens at a time
 *     decode   64 tokens of symbols unpacked -> centroids -> a row of channels
 */
#include "turboquant_lanes.h"

#include <kvant/kit/isa.h>

#include <float.h>

#ifdef __SSSE3__
#include <immintrin.h>
#endif

/* Flags and counts that are constants where it is used. */
#define TURBOQUANT_INLINE static inline __attribute__((always_inline))

enum {
    AHEAD = 2, /* rows that are fetched before they are needed */
    COUNT_PIECE = 32
};

/* ---- Codes --------------------------------------------------------------------------------------------- */

/* How many boundaries are not above t, for `bits` bits. The boundaries are symmetric, so that it takes only
 * the positive ones: counted among magnitudes, as integers, with those of negative numbers one step smaller,
 * which turns "below" into "not above"; then mirrored. */
TURBOQUANT_INLINE void count_piece(const int32_t *limits, uint32_t half, const float *__restrict t, size_t n,
                                   uint8_t *__restrict codes) {
    int32_t counts[COUNT_PIECE];
    for (size_t i = 0; i < n; i++) {
        int32_t negative = -(int32_t)(t[i] < 0.0f), count = (int32_t)half;
        int32_t magnitude = (int32_t)(kvant_float_bits(t[i]) & 0x7fffffffu) + negative;
        for (uint32_t k = 0; k + 1 < half; k++) count += magnitude > limits[k];
        counts[i] = count ^ (negative & (int32_t)(2 * half - 1));
    }
    for (size_t i = 0; i < n; i++) codes[i] = (uint8_t)counts[i];
}

TURBOQUANT_INLINE void count_codes(const float *boundaries, uint32_t bits, const float *__restrict t,
                                   size_t n, uint8_t *__restrict codes) {
    const uint32_t half = 1u << (bits - 1);
    int32_t limits[16];
    for (uint32_t k = 0; k + 1 < half; k++) limits[k] = (int32_t)kvant_float_bits(boundaries[half + k]) - 1;
    size_t i = 0;
    for (; i + COUNT_PIECE <= n; i += COUNT_PIECE) count_piece(limits, half, t + i, COUNT_PIECE, codes + i);
    count_piece(limits, half, t + i, n - i, codes + i);
}

/* The same by one look into a table of cells. */
static void search_codes(const turboquant_search *search, const float *__restrict t, uint32_t n,
                         uint8_t *__restrict codes) {
    const float low = search->low, high = search->high, slope = search->slope, offset = search->offset;
    const float *edge = search->edge;
    const uint32_t *first = search->first;
    for (uint32_t i = 0; i < n; i++) {
        float cut = t[i] > low ? t[i] : low;
        cut = cut < high ? cut : high;
        int32_t cell = (int32_t)(cut * slope + offset);
        codes[i] = (uint8_t)(first[cell] + (t[i] >= edge[cell]));
    }
}

static void find_codes(const turboquant_tables *tables, const turboquant_part *part, const float *t,
                       uint8_t *codes) {
    switch (part->code_bits) { /* a copy for each width, with all comparisons in a row */
    case 1:
        count_codes(tables->boundaries, 1, t, part->dim, codes);
        break;
    case 2:
        count_codes(tables->boundaries, 2, t, part->dim, codes);
        break;
    case 3:
        count_codes(tables->boundaries, 3, t, part->dim, codes);
        break;
    case 4:
        count_codes(tables->boundaries, 4, t, part->dim, codes);
        break;
    case 5:
        count_codes(tables->boundaries, 5, t, part->dim, codes);
        break;
    default:
        if (tables->search.cells > 0) {
            search_codes(&tables->search, t, part->dim, codes);
            break;
        }
        for (uint32_t i = 0; i < part->dim; i++) {
            uint32_t code = 0;
            for (uint32_t k = 0; k + 1 < part->levels; k++) code += t[i] >= tables->boundaries[k];
            codes[i] = (uint8_t)code;
        }
    }
}

/* A table of up to 16 floats as four tables of their bytes, which one instruction looks up 16 codes in. */
typedef struct lookup {
    const float *values;
    uint32_t mask; /* what of a symbol is the code */
    uint8_t bytes[4][16];
} lookup;

static lookup lookup_make(const float *values, uint32_t levels) {
    lookup table = {values, levels - 1, {{0}}};
    for (uint32_t k = 0; k < levels && k < 16; k++)
        for (uint32_t j = 0; j < 4; j++) table.bytes[j][k] = (uint8_t)(kvant_float_bits(values[k]) >> 8 * j);
    return table;
}

#ifdef __SSSE3__
/* 16 symbols. */
TURBOQUANT_INLINE void look_up_16(const __m128i table[4], __m128i mask, const uint8_t *symbols, float *out) {
    __m128i codes = _mm_and_si128(_mm_loadu_si128((const __m128i *)(const void *)symbols), mask);
    __m128i b0 = _mm_shuffle_epi8(table[0], codes), b1 = _mm_shuffle_epi8(table[1], codes);
    __m128i b2 = _mm_shuffle_epi8(table[2], codes), b3 = _mm_shuffle_epi8(table[3], codes);
    __m128i low = _mm_unpacklo_epi8(b0, b1), high = _mm_unpacklo_epi8(b2, b3);
    __m128i low2 = _mm_unpackhi_epi8(b0, b1), high2 = _mm_unpackhi_epi8(b2, b3);
    __m128i *to = (__m128i *)(void *)out;
    _mm_storeu_si128(to, _mm_unpacklo_epi16(low, high));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(low, high));
    _mm_storeu_si128(to + 2, _mm_unpacklo_epi16(low2, high2));
    _mm_storeu_si128(to + 3, _mm_unpackhi_epi16(low2, high2));
}
#endif

/* out[i] = the table's value of symbols[i]. */
static void look_up(const lookup *table, const uint8_t *symbols, uint32_t n, float *__restrict out) {
    uint32_t i = 0;
#ifdef __SSSE3__
    if (table->mask < 16) {
        __m128i mask = _mm_set1_epi8((char)table->mask), bytes[4];
        for (uint32_t j = 0; j < 4; j++)
            bytes[j] = _mm_loadu_si128((const __m128i *)(const void *)table->bytes[j]);
        for (; i + 16 <= n; i += 16) look_up_16(bytes, mask, symbols + i, out + i);
    }
#endif
    const float *values = table->values;
    const uint32_t mask = table->mask;
    for (; i + 4 <= n; i += 4) { /* four loads, not what a compiler makes of a gather */
        float a = values[symbols[i] & mask], b = values[symbols[i + 1] & mask];
        float c = values[symbols[i + 2] & mask], d = values[symbols[i + 3] & mask];
        out[i] = a;
        out[i + 1] = b;
        out[i + 2] = c;
        out[i + 3] = d;
    }
    for (; i < n; i++) out[i] = values[symbols[i] & mask];
}

/* ---- One row ------------------------------------------------------------------------------------------- */

/* What a part's rows share within one call. */
typedef struct work {
    const turboquant_state *state;
    const turboquant_part *part;
    const turboquant_tables *tables;
    lookup centroids;
    float squares[256]; /* of the centroids; of nothing but norm_corrected */
    lookup square;
} work;

static void work_make(work *w, const turboquant_state *state, uint32_t p) {
    w->state = state;
    w->part = &state->block.parts[p];
    w->tables = &state->tables[p];
    if (w->part->code_bits == 0) return;
    for (uint32_t k = 0; k < w->part->levels; k++)
        w->squares[k] = w->tables->centroids[k] * w->tables->centroids[k];
    w->centroids = lookup_make(w->tables->centroids, w->part->levels);
    w->square = lookup_make(w->squares, w->part->levels);
}

static float sum_of_products(const float *a, const float *b, uint32_t n, float *__restrict terms) {
    for (uint32_t i = 0; i < n; i++) terms[i] = a[i] * b[i];
    return sum_of(terms, n);
}

static float largest_magnitude(const float *x, uint32_t n) {
    int32_t largest = 0; /* magnitudes compare like their bits */
    for (uint32_t i = 0; i < n; i++) {
        int32_t magnitude = (int32_t)(kvant_float_bits(x[i]) & 0x7fffffffu);
        largest = magnitude > largest ? magnitude : largest;
    }
    return kvant_bits_float((uint32_t)largest);
}

/* x <- x * power * sign of weight; terms <- the squares. */
static void scale_and_flip(float *__restrict x, const float *__restrict weights, uint32_t n, float power,
                           float *__restrict terms) {
    for (uint32_t i = 0; i < n; i++) {
        float y = x[i] * power;
        terms[i] = y * y;
        x[i] = turboquant_flip(y, weights[i]);
    }
}

static float fit_scale(const work *w, float r, const float *t, const uint8_t *symbols, float *c,
                       float *terms) {
    const uint32_t n = w->part->dim;
    if (r == 0.0f) return 0.0f;
    if (w->state->scale_mode == TURBOQUANT_RAW) return r * w->tables->inverse_root;
    if (w->state->scale_mode == TURBOQUANT_UNBIASED) {
        look_up(&w->centroids, symbols, n, c);
        return r * w->tables->root / sum_of_products(t, c, n, terms);
    }
    look_up(&w->square, symbols, n, terms);
    return r / kvant_root_f32(sum_of(terms, n));
}

/* The signs of the sketch of what the centroids leave of the rotated row x; returns the residual. */
static float encode_residual(const work *w, const float *x, float taken, uint8_t *symbols,
                             const turboquant_scratch *s) {
    const uint32_t n = w->part->dim, one = 1u << w->part->code_bits;
    float *__restrict e = s->sketch;
    if (w->part->code_bits > 0) {
        look_up(&w->centroids, symbols, n, e);
        for (uint32_t i = 0; i < n; i++) e[i] = x[i] - e[i] * taken;
    } else {
        for (uint32_t i = 0; i < n; i++) e[i] = x[i] - 0.0f * taken;
    }
    float length = kvant_root_f32(sum_of_products(e, e, n, s->terms)) * w->tables->inverse_root;
    sketch(w->tables, n, e, s);
    for (uint32_t i = 0; i < n; i++) symbols[i] = (uint8_t)(symbols[i] | (e[i] >= 0.0f ? one : 0u));
    return length;
}

/* x: the channels, destroyed. Symbols and scales go to that token of the stretch in scratch. */
static void encode_row(const work *w, uint32_t p, float *x, uint32_t token, const turboquant_scratch *s,
                       uint64_t *saturated) {
    const turboquant_tables *tables = w->tables;
    const uint32_t n = w->part->dim, slot = p * TURBOQUANT_STRETCH + token;
    const uint32_t type = w->state->block.scale_type;
    uint8_t *symbols = turboquant_symbols(s, p, token);
    float *__restrict t = s->gathered;

    float power = turboquant_power_for(largest_magnitude(x, n)), back = 1.0f / power, scale = 0.0f;
    scale_and_flip(x, tables->rotation.weights, n, power, s->terms);
    float r = kvant_root_f32(sum_of(s->terms, n));
    rotate_flipped(&tables->rotation, x, s->swap);
    if (w->part->code_bits > 0) {
        float unit = r > 0.0f ? tables->root / r : 0.0f;
        for (uint32_t i = 0; i < n; i++) t[i] = x[i] * unit;
        find_codes(tables, w->part, t, symbols);
        scale =
            turboquant_round_stored(fit_scale(w, r, t, symbols, s->sketch, s->terms) * back, type, saturated);
        s->scales[slot] = scale;
    } else {
        memset(symbols, 0, n);
    }
    if (!w->state->block.prod) return;
    float length = encode_residual(w, x, scale * power, symbols, s);
    s->residuals[slot] = turboquant_round_stored(length * back, type, saturated);
}

/* out[i] = x[i] * weights[i] * factor, within +-FLT_MAX. Coordinates turned back are below 2^20. */
static void finish(const float *__restrict x, const float *__restrict weights, uint32_t n, float factor,
                   float *__restrict out) {
    if (factor <= 0x1p100f && factor >= -0x1p100f) {
        for (uint32_t i = 0; i < n; i++) out[i] = x[i] * weights[i] * factor;
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        float y = x[i] * weights[i] * factor;
        y = y < FLT_MAX ? y : FLT_MAX;
        out[i] = y > -FLT_MAX ? y : -FLT_MAX;
    }
}

static void decode_row(const work *w, const uint8_t *symbols, float scale, float residual,
                       float *__restrict out, const turboquant_scratch *s) {
    const turboquant_tables *tables = w->tables;
    const uint32_t n = w->part->dim, code_bits = w->part->code_bits;
    float *__restrict x = s->terms, *__restrict q = s->sketch;
    if (!w->state->block.prod) {
        look_up(&w->centroids, symbols, n, x);
        rotate_back_unweighed(&tables->rotation, x, s->swap);
        finish(x, tables->rotation.weights, n, scale, out);
        return;
    }
    for (uint32_t i = 0; i < n; i++) q[i] = (symbols[i] >> code_bits & 1) != 0 ? 1.0f : -1.0f;
    sketch_back(tables, n, q, s); /* which has its terms where x comes */
    if (code_bits > 0)
        look_up(&w->centroids, symbols, n, x);
    else
        memset(x, 0, n * sizeof *x);
    float power = turboquant_power_for(scale > residual ? scale : residual);
    scale = scale * power;
    residual = residual * power * 0x1.40d932p+0f; /* sqrt(pi/2) */
    for (uint32_t i = 0; i < n; i++) x[i] = x[i] * scale + q[i] * residual;
    rotate_back_unweighed(&tables->rotation, x, s->swap);
    finish(x, tables->rotation.weights, n, 1.0f / power, out);
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

/* Where set `set` of the stretch of tokens from `first` on lies, from the head's first byte. */
static size_t set_place(const turboquant_block *b, const turboquant_part *part, uint32_t first,
                        uint32_t set) {
    turboquant_matrix m = turboquant_matrix_of(b, part, first);
    size_t offset = m.offset + turboquant_set_offset(part, m.free_count, m.summed_count, set);
    if (b->side == KVANT_SIDE_VALUE) return offset;
    return offset + kvant_planar_bytes(first, part->dim, part->set_width[set]);
}

static void pack_stretch(const turboquant_block *b, uint32_t p, uint8_t *bytes, uint32_t first,
                         uint32_t count, const turboquant_scratch *s) {
    const turboquant_part *part = &b->parts[p];
    const uint8_t *symbols = turboquant_symbols(s, p, 0);
    bool key = b->side == KVANT_SIDE_KEY;
    for (uint32_t set = 0; set < part->set_count; set++) {
        const uint8_t *codes = symbols;
        uint32_t width = part->set_width[set], shift = part->set_shift[set], mask = (1u << width) - 1;
        if (part->set_count > 1) {
            codes = s->set;
            for (size_t i = 0; i < count * s->stride; i++) s->set[i] = (uint8_t)(symbols[i] >> shift & mask);
        }
        uint8_t *base = bytes + set_place(b, part, first, set);
        if (key)
            pack(base, count, part->dim, width, codes, s->stride, 1);
        else
            pack(base, part->dim, count, width, codes, 1, s->stride);
    }
}

/* What lies between the rows is joined, too, and never looked at. */
static void join(uint8_t *__restrict symbols, const uint8_t *__restrict set, uint32_t shift, size_t count) {
    for (size_t i = 0; i < count; i++) symbols[i] = (uint8_t)(symbols[i] | set[i] << shift);
}

static void unpack_stretch(const turboquant_block *b, uint32_t p, const uint8_t *bytes, uint32_t first,
                           uint32_t count, const turboquant_scratch *s) {
    const turboquant_part *part = &b->parts[p];
    uint8_t *symbols = turboquant_symbols(s, p, 0);
    bool key = b->side == KVANT_SIDE_KEY;
    for (uint32_t set = 0; set < part->set_count; set++) {
        uint8_t *codes = set == 0 ? symbols : s->set;
        const uint8_t *base = bytes + set_place(b, part, first, set);
        if (key)
            unpack(base, count, part->dim, part->set_width[set], codes, s->stride, 1);
        else
            unpack(base, part->dim, count, part->set_width[set], codes, 1, s->stride);
        if (set == 0) continue;
        join(symbols, s->set, part->set_shift[set], count * s->stride);
    }
}

/* ---- Extents ------------------------------------------------------------------------------------------- */

static void fetch_to_read(const kvant_view *rows, uint32_t token, uint32_t head) {
    int64_t bytes = (int64_t)kvant_element_bytes(rows->dtype) * rows->head_dim;
    if (token >= rows->tokens || rows->channel_stride != (int64_t)kvant_element_bytes(rows->dtype)) return;
    const char *row = kvant_view_at(rows, token, head);
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0);
}

static void fetch_to_write(const kvant_mutable_view *rows, uint32_t token, uint32_t head) {
    int64_t bytes = (int64_t)kvant_element_bytes(rows->dtype) * rows->head_dim;
    if (token >= rows->tokens || rows->channel_stride != (int64_t)kvant_element_bytes(rows->dtype)) return;
    const char *row = kvant_mutable_view_at(rows, token, head);
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 1);
}

/* A token's channels in the order of the parts. */
static void load_row(const turboquant_block *b, const kvant_view *rows, uint32_t token, uint32_t head,
                     const turboquant_scratch *s) {
    if (b->part_count == 1) {
        kvant_load_row(rows, token, head, s->row);
        return;
    }
    kvant_load_row(rows, token, head, s->gathered);
    for (uint32_t i = 0; i < b->head_dim; i++) s->row[i] = s->gathered[s->channels[i]];
}

static void encode_stretch(const work *works, const kvant_view *rows, uint32_t head, uint32_t first,
                           uint32_t count, uint8_t *bytes, const turboquant_scratch *s, uint64_t *saturated) {
    const turboquant_block *b = &works->state->block;
    size_t at = (size_t)first * b->scale_bytes;
    for (uint32_t t = 0; t < count; t++) {
        fetch_to_read(rows, first + t + AHEAD, head);
        load_row(b, rows, first + t, head, s);
        float *x = s->row;
        for (uint32_t p = 0; p < b->part_count; x += b->parts[p++].dim)
            encode_row(&works[p], p, x, t, s, saturated);
    }
    for (uint32_t p = 0; p < b->part_count; p++) {
        const turboquant_part *part = &b->parts[p];
        const uint32_t slot = p * TURBOQUANT_STRETCH;
        pack_stretch(b, p, bytes, first, count, s);
        if (part->code_bits > 0)
            kvant_store_elements(bytes + part->scale_offset + at, b->scale_type, count, s->scales + slot);
        if (b->prod)
            kvant_store_elements(bytes + part->residual_offset + at, b->scale_type, count,
                                 s->residuals + slot);
    }
}

static kvant_status encode(const void *memory, kvant_encode_args *args) {
    const turboquant_state *state = memory;
    const turboquant_block *b = &state->block;
    turboquant_scratch s = turboquant_scratch_cut(b, args->scratch);
    work works[TURBOQUANT_PARTS];
    for (uint32_t p = 0; p < b->part_count; p++) work_make(&works[p], state, p);
    args->size = b->bytes;
    args->saturated = 0;
    for (uint32_t h = 0; h < b->heads; h++) {
        uint8_t *bytes = (uint8_t *)args->extent + h * b->head_bytes;
        memset(bytes + b->code_bytes, 0, b->head_bytes - b->code_bytes);
        if (b->part_count > 1) {
            turboquant_outliers_find(b, args->rows, h, bytes, &s);
            turboquant_channels_read(b, bytes, s.channels);
        }
        for (uint32_t first = 0; first < b->tokens; first += TURBOQUANT_STRETCH) {
            uint32_t left = b->tokens - first, count = left < TURBOQUANT_STRETCH ? left : TURBOQUANT_STRETCH;
            encode_stretch(works, args->rows, h, first, count, bytes, &s, &args->saturated);
        }
    }
    return KVANT_OK;
}

/* Rows that are floats side by side are decoded in place; others pass through scratch. */
static void decode_token(const work *works, const uint8_t *bytes, uint32_t first, uint32_t t,
                         const kvant_mutable_view *rows, uint32_t row, uint32_t head,
                         const turboquant_scratch *s) {
    const turboquant_block *b = &works->state->block;
    char *to = kvant_mutable_view_at(rows, row, head);
    bool in_place = b->part_count == 1 && rows->dtype == KVANT_DTYPE_F32 &&
                    rows->channel_stride == (int64_t)sizeof(float) && (uintptr_t)to % sizeof(float) == 0;
    float *x = in_place ? (float *)(void *)to : s->row;
    for (uint32_t p = 0; p < b->part_count; x += b->parts[p++].dim) {
        const turboquant_part *part = &b->parts[p];
        float scale = 0.0f, residual = 0.0f;
        if (part->code_bits > 0)
            scale = turboquant_load_stored(bytes + part->scale_offset, first + t, b->scale_type);
        if (b->prod)
            residual = turboquant_load_stored(bytes + part->residual_offset, first + t, b->scale_type);
        decode_row(&works[p], turboquant_symbols(s, p, t), scale, residual, x, s);
    }
    if (in_place) return;
    if (b->part_count > 1)
        for (uint32_t i = 0; i < b->head_dim; i++) s->gathered[s->channels[i]] = s->row[i];
    kvant_store_row(rows, row, head, b->part_count > 1 ? s->gathered : s->row);
}

static void decode_head(const work *works, const kvant_decode_args *args, uint32_t head,
                        const turboquant_scratch *s) {
    const turboquant_block *b = &works->state->block;
    const uint8_t *bytes = (const uint8_t *)args->extent->bytes + (args->first_head + head) * b->head_bytes;
    const uint32_t begin = args->first_token, end = begin + args->rows->tokens;
    if (b->part_count > 1) turboquant_channels_read(b, bytes, s->channels);
    for (uint32_t first = begin / TURBOQUANT_STRETCH * TURBOQUANT_STRETCH; first < end;
         first += TURBOQUANT_STRETCH) {
        uint32_t left = b->tokens - first, count = left < TURBOQUANT_STRETCH ? left : TURBOQUANT_STRETCH;
        for (uint32_t p = 0; p < b->part_count; p++) unpack_stretch(b, p, bytes, first, count, s);
        uint32_t t = begin > first ? begin - first : 0;
        for (uint32_t last = end - first < count ? end - first : count; t < last; t++) {
            fetch_to_write(args->rows, first + t - begin + AHEAD, head);
            decode_token(works, bytes, first, t, args->rows, first + t - begin, head, s);
        }
    }
}

static kvant_status decode(const void *memory, const kvant_decode_args *args) {
    const turboquant_state *state = memory;
    const turboquant_block *b = &state->block;
    turboquant_scratch s = turboquant_scratch_cut(b, args->scratch);
    work works[TURBOQUANT_PARTS];
    for (uint32_t p = 0; p < b->part_count; p++) work_make(&works[p], state, p);
    for (uint32_t h = 0; h < args->rows->heads; h++) decode_head(works, args, h, &s);
    return KVANT_OK;
}

const turboquant_code KVANT_CPU(turboquant_code) = {KVANT_CPU_ISA, encode, decode};
