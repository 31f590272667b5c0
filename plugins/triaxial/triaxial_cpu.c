/* The fast code, compiled once per instruction set: the arithmetic of triaxial_group.h on whole rows, in
 * loops that the compiler turns into vector instructions.
 *
 * Runs are coded a stretch of places at a time: the quantum of narrow keys, else the 64 places of a value's
 * matrix. Rows of codes, one a byte, are packed by kvant/kit/planar.h.
 */
#include "triaxial.h"
#include "triaxial_group.h"

#include <kvant/kit/isa.h>

#include <string.h>

#define TRIAXIAL_INLINE static inline __attribute__((always_inline))

enum { LINE = 16, LANES = 16, STRETCH = TRIAXIAL_MATRIX_TOKENS, AHEAD = 3, AHEAD_BYTES = 1024 };

/* ---- Scratch ------------------------------------------------------------------------------------------- */

/* All of it is in the host's scratch; every array starts on a multiple of 64 bytes. */
typedef struct work {
    uint32_t *order;   /* [tokens] */
    float *row;        /* one row, as floats */
    float *low, *high; /* [head_dim] */
    float *scale;      /* [head_dim], or [groups][STRETCH] */
    float *min;        /* likewise */
    uint8_t *codes;    /* [quantum or STRETCH][code_stride] */
    size_t code_stride;
} work;

static size_t carve(const triaxial_block *block, void *scratch, work *w) {
    size_t order = triaxial_round_up(block->tokens * sizeof(uint32_t), 64);
    size_t row = triaxial_round_up(block->head_dim * sizeof(float), 64);
    size_t groups = (size_t)block->channel_groups * STRETCH * sizeof(float);
    size_t planes = groups > row ? groups : row;
    size_t places = block->group > STRETCH ? block->group : STRETCH;
    w->code_stride = triaxial_round_up(block->head_dim, 64);
    if (scratch != NULL) {
        uint8_t *at = scratch;
        w->order = (uint32_t *)(void *)at;
        w->row = (float *)(void *)(at += order);
        w->low = (float *)(void *)(at += row);
        w->high = (float *)(void *)(at += row);
        w->scale = (float *)(void *)(at += row);
        w->min = (float *)(void *)(at += planes);
        w->codes = at + planes;
    }
    return order + 3 * row + 2 * planes + places * w->code_stride;
}

static uint64_t scratch_bytes(const triaxial_block *block) {
    work w = {0};
    return carve(block, NULL, &w);
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

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

__attribute__((noinline)) static void load_row(const kvant_view *rows, uint32_t token, uint32_t head,
                                               float *row) {
    kvant_load_row(rows, token, head, row);
}

/* Rows of a run lie apart, where the processor does not expect them. */
TRIAXIAL_INLINE void fetch(const char *row, uint32_t bytes, int write) {
    for (uint32_t i = 0; i < bytes && i < AHEAD_BYTES; i += 64) {
        if (write)
            __builtin_prefetch(row + i, 1);
        else
            __builtin_prefetch(row + i, 0);
    }
}

/* The least and the largest of neighbours, in LANES at a time. Which zero comes out does not matter. */
TRIAXIAL_INLINE void range_of(const float *restrict x, uint32_t count, float *low, float *high) {
    float lows[LANES], highs[LANES];
    float least = x[0], most = x[0];
    uint32_t i = 0;
    if (count >= LANES) {
        for (uint32_t k = 0; k < LANES; k++) lows[k] = highs[k] = x[k];
        for (i = LANES; i + LANES <= count; i += LANES)
            for (uint32_t k = 0; k < LANES; k++) {
                lows[k] = x[i + k] < lows[k] ? x[i + k] : lows[k];
                highs[k] = x[i + k] > highs[k] ? x[i + k] : highs[k];
            }
        for (uint32_t half = LANES / 2; half > 0; half /= 2)
            for (uint32_t k = 0; k < half; k++) {
                lows[k] = lows[k + half] < lows[k] ? lows[k + half] : lows[k];
                highs[k] = highs[k + half] > highs[k] ? highs[k + half] : highs[k];
            }
        least = lows[0];
        most = highs[0];
    }
    for (; i < count; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
    }
    *low = least;
    *high = most;
}

/* Codes of neighbours that share a group. */
TRIAXIAL_INLINE void code_group(const float *restrict x, uint32_t count, float levels, triaxial_group group,
                                uint8_t *restrict codes) {
    for (uint32_t c = 0; c < count; c++) {
        float ratio = (x[c] - group.min) / group.scale;
        ratio = ratio > 0 ? ratio : 0;
        codes[c] = (uint8_t)kvant_float_bits((ratio < levels ? ratio : levels) + TRIAXIAL_ROUNDER);
    }
}

/* Codes of a row whose channels have groups of their own. */
TRIAXIAL_INLINE void code_row(const float *restrict x, uint32_t count, float levels,
                              const float *restrict scale, const float *restrict min,
                              uint8_t *restrict codes) {
    for (uint32_t c = 0; c < count; c++) {
        float ratio = (x[c] - min[c]) / scale[c];
        ratio = ratio > 0 ? ratio : 0;
        codes[c] = (uint8_t)kvant_float_bits((ratio < levels ? ratio : levels) + TRIAXIAL_ROUNDER);
    }
}

TRIAXIAL_INLINE void value_group(const uint8_t *restrict codes, uint32_t count, float scale, float min,
                                 float *restrict x) {
    for (uint32_t c = 0; c < count; c++) x[c] = (float)codes[c] * scale + min;
}

TRIAXIAL_INLINE void value_row(const uint8_t *restrict codes, uint32_t count, const float *restrict scale,
                               const float *restrict min, float *restrict x) {
    for (uint32_t c = 0; c < count; c++) x[c] = (float)codes[c] * scale[c] + min[c];
}

/* ---- Encode -------------------------------------------------------------------------------------------- */

/* One run of a head. */
typedef struct subject {
    const triaxial_block *block;
    const kvant_view *rows;
    const uint32_t *order; /* the token at each place of the run */
    const triaxial_run *run;
    uint8_t *bytes; /* of the head */
    uint32_t head;
} subject;

static void fetch_place(const subject *s, uint32_t place) {
    if (place >= s->run->count || s->rows->channel_stride != (int64_t)kvant_element_bytes(s->rows->dtype))
        return;
    fetch(kvant_view_at(s->rows, s->order[place], s->head),
          s->block->head_dim * kvant_element_bytes(s->rows->dtype), 0);
}

static void pack_stretch(const subject *s, uint32_t first, uint32_t count, const work *w) {
    uint8_t *codes = s->bytes + s->run->code_offset;
    uint32_t dim = s->block->head_dim, bits = s->run->bits;
    if (s->block->side == KVANT_SIDE_KEY)
        pack(codes + kvant_planar_bytes(first, dim, bits), count, dim, bits, w->codes, w->code_stride, 1);
    else
        pack(codes + kvant_planar_bytes(dim, first, bits), dim, count, bits, w->codes, 1, w->code_stride);
}

/* Narrow keys: a quantum from place `first` on, per channel. */
static void encode_quantum(const subject *s, uint32_t first, const work *w, uint64_t *saturated) {
    uint32_t dim = s->block->head_dim, group = s->block->group;
    float *restrict low = w->low, *restrict high = w->high;
    const float *restrict row = w->row;
    load_row(s->rows, s->order[first], s->head, w->low);
    memcpy(w->high, w->low, dim * sizeof *low);
    for (uint32_t p = 1; p < group; p++) {
        fetch_place(s, first + p + AHEAD);
        load_row(s->rows, s->order[first + p], s->head, w->row);
        for (uint32_t c = 0; c < dim; c++) {
            low[c] = row[c] < low[c] ? row[c] : low[c];
            high[c] = row[c] > high[c] ? row[c] : high[c];
        }
    }
    size_t plane = (size_t)(first / group) * s->run->plane_row * 2;
    uint8_t *scales = s->bytes + s->run->scale_offset + plane,
            *minima = s->bytes + s->run->min_offset + plane;
    for (uint32_t c = 0; c < dim; c++) {
        triaxial_group fitted = triaxial_fit(s->run->levels, low[c], high[c], saturated);
        w->scale[c] = fitted.scale;
        w->min[c] = fitted.min;
    }
    kvant_store_elements(scales, KVANT_DTYPE_F16, dim, w->scale);
    kvant_store_elements(minima, KVANT_DTYPE_F16, dim, w->min);
    memset(scales + 2 * (size_t)dim, 0, (s->run->plane_row - dim) * 2);
    memset(minima + 2 * (size_t)dim, 0, (s->run->plane_row - dim) * 2);
    for (uint32_t p = 0; p < group; p++) {
        load_row(s->rows, s->order[first + p], s->head, w->row);
        code_row(w->row, dim, (float)s->run->levels, w->scale, w->min, w->codes + p * w->code_stride);
    }
    pack_stretch(s, first, group, w);
}

/* All others: `count` places from `first` on, per token. */
static void encode_tokens(const subject *s, uint32_t first, uint32_t count, const work *w,
                          uint64_t *saturated) {
    uint32_t dim = s->block->head_dim, group = s->block->group;
    for (uint32_t p = 0; p < count; p++) {
        fetch_place(s, first + p + AHEAD);
        load_row(s->rows, s->order[first + p], s->head, w->row);
        for (uint32_t c = 0; c < dim; c += group) {
            uint32_t channels = dim - c < group ? dim - c : group;
            float low, high;
            range_of(w->row + c, channels, &low, &high);
            triaxial_group fitted = triaxial_fit(s->run->levels, low, high, saturated);
            code_group(w->row + c, channels, (float)s->run->levels, fitted,
                       w->codes + p * w->code_stride + c);
            size_t at = c / group * STRETCH + p;
            w->scale[at] = fitted.scale;
            w->min[at] = fitted.min;
        }
    }
    for (uint32_t g = 0; g < s->block->channel_groups; g++) {
        size_t index = g * s->run->plane_row + first;
        kvant_store_elements(s->bytes + s->run->scale_offset + 2 * index, KVANT_DTYPE_F16, count,
                             w->scale + (size_t)g * STRETCH);
        kvant_store_elements(s->bytes + s->run->min_offset + 2 * index, KVANT_DTYPE_F16, count,
                             w->min + (size_t)g * STRETCH);
    }
    pack_stretch(s, first, count, w);
}

static void encode(const triaxial_block *block, kvant_encode_args *args) {
    work w = {0};
    carve(block, args->scratch, &w);
    uint32_t wide = triaxial_order(block, args->classes, w.order), first_of[TRIAXIAL_WIDTHS] = {0, 0};
    uint64_t saturated = 0;
    triaxial_run runs[TRIAXIAL_WIDTHS];
    triaxial_runs(block, wide, runs);
    first_of[TRIAXIAL_WIDE] = block->tokens - wide;
    triaxial_map_write(block, args->extent, w.order, wide);
    for (uint32_t head = 0; head < block->heads; head++)
        for (uint32_t r = 0; r < TRIAXIAL_WIDTHS; r++) {
            const subject s = {.block = block,
                               .rows = args->rows,
                               .order = w.order + first_of[r],
                               .run = &runs[r],
                               .bytes = (uint8_t *)args->extent + block->map_bytes +
                                        head * triaxial_head_bytes(block, wide),
                               .head = head};
            uint32_t step = runs[r].per_channel ? block->group : STRETCH;
            for (uint32_t first = 0; first < runs[r].count; first += step) {
                uint32_t left = runs[r].count - first;
                if (runs[r].per_channel)
                    encode_quantum(&s, first, &w, &saturated);
                else
                    encode_tokens(&s, first, left < step ? left : step, &w, &saturated);
            }
        }
    args->size = triaxial_extent_bytes(block, wide);
    args->saturated = saturated;
}

/* ---- Decode -------------------------------------------------------------------------------------------- */

/* One run of a head on its way to a view. */
typedef struct target {
    const triaxial_block *block;
    const triaxial_run *run;
    const uint32_t *order;
    const uint8_t *bytes; /* of the head */
    const kvant_mutable_view *rows;
    uint32_t first_token;
    uint32_t head; /* of the view */
} target;

/* Where a decoded row is made: in the view itself where that can be, else in w. */
static float *row_out(const target *t, uint32_t token, const work *w) {
    const kvant_mutable_view *rows = t->rows;
    char *at = kvant_mutable_view_at(rows, token, t->head);
    bool here = rows->dtype == KVANT_DTYPE_F32 && rows->channel_stride == 4 && (uintptr_t)at % 4 == 0;
    return here ? (float *)(void *)at : w->row;
}

static void fetch_row(const target *t, uint32_t place, uint32_t end) {
    const kvant_mutable_view *rows = t->rows;
    if (place >= end || rows->channel_stride != (int64_t)kvant_element_bytes(rows->dtype)) return;
    fetch(kvant_mutable_view_at(rows, t->order[place] - t->first_token, t->head),
          t->block->head_dim * kvant_element_bytes(rows->dtype), 1);
}

/* Scales of `count` places from `first` on, per token; of the quantum of `first`, per channel. */
static void load_planes(const target *t, uint32_t first, uint32_t count, const work *w) {
    const triaxial_run *run = t->run;
    uint32_t planes = run->per_channel ? 1 : t->block->channel_groups;
    if (run->per_channel) count = t->block->head_dim;
    for (uint32_t g = 0; g < planes; g++) {
        size_t index =
            run->per_channel ? first / t->block->group * run->plane_row : g * run->plane_row + first;
        kvant_load_elements(t->bytes + run->scale_offset + 2 * index, KVANT_DTYPE_F16, count,
                            w->scale + (size_t)g * STRETCH);
        kvant_load_elements(t->bytes + run->min_offset + 2 * index, KVANT_DTYPE_F16, count,
                            w->min + (size_t)g * STRETCH);
    }
}

/* Codes of `count` places from `first` on. Values: a whole matrix. */
static void unpack_stretch(const target *t, uint32_t first, uint32_t count, const work *w) {
    const uint8_t *codes = t->bytes + t->run->code_offset;
    uint32_t dim = t->block->head_dim, bits = t->run->bits;
    if (t->block->side == KVANT_SIDE_KEY)
        unpack(codes + kvant_planar_bytes(first, dim, bits), count, dim, bits, w->codes, w->code_stride, 1);
    else
        unpack(codes + kvant_planar_bytes(dim, first, bits), dim, count, bits, w->codes, 1, w->code_stride);
}

static void decode_place(const target *t, uint32_t place, uint32_t column, const work *w) {
    uint32_t token = t->order[place] - t->first_token, dim = t->block->head_dim, group = t->block->group;
    const uint8_t *codes = w->codes + column * w->code_stride;
    float *out = row_out(t, token, w);
    if (t->run->per_channel)
        value_row(codes, dim, w->scale, w->min, out);
    else
        for (uint32_t c = 0; c < dim; c += group) {
            size_t at = c / group * STRETCH + column;
            value_group(codes + c, dim - c < group ? dim - c : group, w->scale[at], w->min[at], out + c);
        }
    if (out == w->row) kvant_store_row(t->rows, token, t->head, out);
}

/* The places [from, to), which hold the tokens that the view wants. */
static void decode_run(const target *t, uint32_t from, uint32_t to, const work *w) {
    uint32_t unit = t->block->side == KVANT_SIDE_KEY ? LINE : STRETCH;
    uint32_t step = t->run->per_channel && t->block->group < STRETCH ? t->block->group : STRETCH;
    for (uint32_t first = from - from % unit; first < to;) {
        uint32_t end = first - first % step + step; /* of what shares scales or fits the scratch */
        end = end < t->run->count ? end : t->run->count;
        /* Keys: lines that are wanted. Values: the matrix as it is. */
        if (unit == LINE && to < end) end = to + (LINE - to % LINE) % LINE;
        load_planes(t, first, end - first, w);
        unpack_stretch(t, first, end - first, w);
        for (uint32_t p = from > first ? from : first; p < end && p < to; p++) {
            fetch_row(t, p + AHEAD, to);
            decode_place(t, p, p - first, w);
        }
        first = end;
    }
}

static void decode(const triaxial_block *block, const kvant_decode_args *args) {
    work w = {0};
    carve(block, args->scratch, &w);
    const kvant_mutable_view *rows = args->rows;
    const uint8_t *extent = args->extent->bytes;
    uint32_t wide = triaxial_order_of_extent(block, extent, args->extent->size, w.order);
    uint32_t narrow = block->tokens - wide, last = args->first_token + rows->tokens;
    uint32_t first_of[TRIAXIAL_WIDTHS] = {0, narrow};
    triaxial_run runs[TRIAXIAL_WIDTHS];
    triaxial_runs(block, wide, runs);
    for (uint32_t h = 0; h < rows->heads; h++)
        for (uint32_t r = 0; r < TRIAXIAL_WIDTHS; r++) {
            const uint32_t *order = w.order + first_of[r];
            uint32_t from = 0, to = runs[r].count;
            /* Tokens ascend within a run. */
            while (from < to && order[from] < args->first_token) from++;
            while (to > from && order[to - 1] >= last) to--;
            if (from == to) continue;
            const target t = {.block = block,
                              .run = &runs[r],
                              .order = order,
                              .bytes = extent + block->map_bytes +
                                       (args->first_head + h) * triaxial_head_bytes(block, wide),
                              .rows = rows,
                              .first_token = args->first_token,
                              .head = h};
            decode_run(&t, from, to, &w);
        }
}

const triaxial_code_set KVANT_CPU(triaxial_code) = {KVANT_CPU_ISA, encode, decode, scratch_bytes};
