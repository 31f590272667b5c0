/* The fast code, compiled once per instruction set: the arithmetic of kivi_group.h on whole rows, in loops
 * that the compiler turns into vector instructions. Groups that leave the range of their type go through
 * kivi_group.h itself.
 *
 *     keys     for each group of tokens: least and largest of every channel, scales, then rows of codes
 *     values   for each 16 tokens: least and largest of every channel group, scales, then rows of codes
 *
 * Rows of codes, one a byte, are packed by kvant/kit/planar.h a stretch of tokens at a time.
 */
#include "kivi.h"
#include "kivi_group.h"
#include "kivi_rows.h"

#include <kvant/kit/isa.h>

#include <string.h>

enum {
    LINE = 16,         /* tokens that keys pack together at least */
    TILE = 16,         /* tokens whose values share a pass */
    AHEAD = 4,         /* rows that are fetched before they are needed */
    AHEAD_BYTES = 2048 /* of them, at most */
};

/* ---- Scratch ------------------------------------------------------------------------------------------- */

/* All of it is in the host's scratch; every array starts on a multiple of 64 bytes. */
typedef struct work {
    float *low, *high;  /* keys: [head_dim]; values: [groups][TILE] */
    float *scale, *min; /* the same shapes; as stored */
    float *divisor;     /* the scale, infinity where it is 0 so that codes are 0 */
    float *rows;        /* four rows that were gathered, or one that waits to be scattered */
    size_t row_stride;  /* bytes */
    uint8_t *codes;     /* [stretch][code_stride] */
    uint8_t *part;      /* the same, one half of 3-bit codes */
    size_t code_stride;
    uint32_t stretch; /* tokens packed together */
} work;

static uint32_t stretch_of(const kivi_block *block) {
    if (block->side == KVANT_SIDE_VALUE) return KIVI_MATRIX_TOKENS;
    uint32_t stretch =
        block->group; /* the least common multiple of group and LINE: group times 1, 2, 4, 8 or 16 */
    while (stretch % LINE != 0) stretch *= 2;
    return stretch < block->tokens ? stretch : block->tokens;
}

static size_t carve(const kivi_block *block, void *scratch, work *w) {
    bool key = block->side == KVANT_SIDE_KEY;
    size_t statistics =
        kivi_round_up(sizeof(float) * (key ? block->head_dim : (size_t)block->groups * TILE), 64);
    w->row_stride = kivi_round_up(sizeof(float) * block->head_dim, 64);
    w->stretch = stretch_of(block);
    w->code_stride = kivi_round_up(block->head_dim, 64);
    size_t tokens = w->stretch > LINE ? w->stretch : LINE;
    size_t codes = tokens * w->code_stride;
    size_t parts = block->bits == 3 ? codes : 0;
    if (scratch != NULL) {
        uint8_t *at = scratch;
        float **arrays[] = {&w->low, &w->high, &w->scale, &w->min, &w->divisor};
        for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++, at += statistics)
            *arrays[i] = (float *)(void *)at;
        w->rows = (float *)(void *)at;
        w->codes = at + 4 * w->row_stride;
        w->part = w->codes + codes;
    }
    return 5 * statistics + 4 * w->row_stride + codes + parts;
}

static uint64_t scratch_bytes(const kivi_block *block) {
    work w;
    return carve(block, NULL, &w);
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

/* The channels of a row side by side: where they lie, or, if they are strided, a copy in one of the four rows
 * of w. */
static const char *gather(const kvant_view *rows, uint32_t token, uint32_t head, uint32_t slot,
                          const work *w) {
    const char *from = kvant_view_at(rows, token, head);
    int64_t bytes = (int64_t)kvant_element_bytes(rows->dtype);
    if (rows->channel_stride == bytes) return from;
    char *to = (char *)w->rows + slot * w->row_stride;
    for (uint32_t c = 0; c < rows->head_dim; c++)
        memcpy(to + (int64_t)c * bytes, from + (int64_t)c * rows->channel_stride, (size_t)bytes);
    return to;
}

/* A head's rows lie apart, between those of the other heads, where the processor does not expect them. */
static void fetch_to_read(const kvant_view *rows, uint32_t token, uint32_t head) {
    int64_t bytes = (int64_t)kvant_element_bytes(rows->dtype) * rows->head_dim;
    if (token >= rows->tokens) { /* the next head follows */
        token -= rows->tokens;
        head += 1;
    }
    if (token >= rows->tokens || head >= rows->heads ||
        rows->channel_stride != (int64_t)kvant_element_bytes(rows->dtype))
        return;
    const char *row = kvant_view_at(rows, token, head);
    for (int64_t i = 0; i < bytes && i < AHEAD_BYTES; i += 64) __builtin_prefetch(row + i, 0);
}

static void fetch_to_write(const kvant_mutable_view *rows, uint32_t token, uint32_t head) {
    int64_t bytes = (int64_t)kvant_element_bytes(rows->dtype) * rows->head_dim;
    if (token >= rows->tokens || rows->channel_stride != (int64_t)kvant_element_bytes(rows->dtype)) return;
    const char *row = kvant_mutable_view_at(rows, token, head);
    for (int64_t i = 0; i < bytes && i < AHEAD_BYTES; i += 64) __builtin_prefetch(row + i, 1);
}

/* Where a decoded row goes: straight into the view, or into w until scatter() puts it there. */
static char *row_out(const kvant_mutable_view *rows, uint32_t t, uint32_t h, const work *w) {
    bool dense = rows->channel_stride == (int64_t)kvant_element_bytes(rows->dtype);
    return dense ? kvant_mutable_view_at(rows, t, h) : (char *)w->rows;
}

static void scatter(const kvant_mutable_view *rows, uint32_t t, uint32_t h, const work *w) {
    int64_t bytes = (int64_t)kvant_element_bytes(rows->dtype);
    if (rows->channel_stride == bytes) return;
    char *to = kvant_mutable_view_at(rows, t, h);
    const char *from = (const char *)w->rows;
    for (uint32_t c = 0; c < rows->head_dim; c++)
        memcpy(to + (int64_t)c * rows->channel_stride, from + (int64_t)c * bytes, (size_t)bytes);
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

/* Packs w's codes, `tokens` rows of them, of any width: `low` is where the 2-bit or only set of planes goes,
 * `high` that of the third bits. */
static void pack_codes(const kivi_block *block, uint8_t *low, uint8_t *high, uint32_t free_count,
                       uint32_t summed_count, uint32_t tokens, const work *w) {
    bool key = block->side == KVANT_SIDE_KEY;
    size_t free_stride = key ? w->code_stride : 1, summed_stride = key ? 1 : w->code_stride;
    size_t count = tokens * w->code_stride;
    if (block->bits != 3) {
        pack(low, free_count, summed_count, block->bits, w->codes, free_stride, summed_stride);
        return;
    }
    for (size_t i = 0; i < count; i++) w->part[i] = w->codes[i] >> 2 & 1;
    pack(high, free_count, summed_count, 1, w->part, free_stride, summed_stride);
    for (size_t i = 0; i < count; i++) w->part[i] = w->codes[i] & 3;
    pack(low, free_count, summed_count, 2, w->part, free_stride, summed_stride);
}

/* And back. */
static void unpack_codes(const kivi_block *block, const uint8_t *low, const uint8_t *high,
                         uint32_t free_count, uint32_t summed_count, uint32_t tokens, const work *w) {
    bool key = block->side == KVANT_SIDE_KEY;
    size_t free_stride = key ? w->code_stride : 1, summed_stride = key ? 1 : w->code_stride;
    if (block->bits != 3) {
        unpack(low, free_count, summed_count, block->bits, w->codes, free_stride, summed_stride);
        return;
    }
    unpack(low, free_count, summed_count, 2, w->codes, free_stride, summed_stride);
    unpack(high, free_count, summed_count, 1, w->part, free_stride, summed_stride);
    for (uint32_t t = 0; t < tokens; t++)
        for (size_t c = t * w->code_stride, end = c + block->head_dim; c < end; c++)
            w->codes[c] = (uint8_t)(w->codes[c] | w->part[c] << 2);
}

/* ---- Scales -------------------------------------------------------------------------------------------- */

/* The groups one by one, where one of them leaves the range of its types. */
static void fit_slowly(const kivi_block *block, uint32_t count, size_t at, const work *w,
                       uint64_t *saturated) {
    for (size_t i = at; i < at + count; i++) {
        kivi_group group = kivi_group_fit(block, w->low[i], w->high[i], saturated);
        w->scale[i] = group.scale;
        w->min[i] = group.min;
        w->divisor[i] = group.scale > 0 ? group.scale : INFINITY;
    }
}

/* `fit` for one pair of types, which are constants here. */
KIVI_INLINE bool fit_as(const kivi_block *block, uint32_t dtype, uint32_t meta, uint8_t *head, size_t index,
                        uint32_t count, size_t at, const work *w, uint64_t *saturated) {
    uint32_t trouble = kivi_fit_row(dtype, meta, count, (float)block->levels, w->low + at, w->high + at,
                                    w->scale + at, w->min + at, w->divisor + at);
    if (trouble != 0) fit_slowly(block, count, at, w, saturated);
    kivi_store_row(head + block->scale_offset + index * block->meta_bytes, meta, w->scale + at, count);
    kivi_store_row(head + block->min_offset + index * block->meta_bytes, meta, w->min + at, count);
    return (trouble & KIVI_FIT_WIDE) != 0;
}

KIVI_INLINE bool fit_rows_of(const kivi_block *block, uint32_t dtype, uint8_t *head, size_t index,
                             uint32_t count, size_t at, const work *w, uint64_t *saturated) {
    switch (block->meta) {
    case KVANT_DTYPE_F16:
        return fit_as(block, dtype, KVANT_DTYPE_F16, head, index, count, at, w, saturated);
    case KVANT_DTYPE_BF16:
        return fit_as(block, dtype, KVANT_DTYPE_BF16, head, index, count, at, w, saturated);
    default:
        return fit_as(block, dtype, KVANT_DTYPE_F32, head, index, count, at, w, saturated);
    }
}

/* Scales and minima of `count` groups that are neighbours in their planes, `index` the first, from w's low
 * and high from `at` on. True if the range of one overflows, so that its codes must be found one by one. */
static bool fit(const kivi_block *block, uint8_t *head, size_t index, uint32_t count, size_t at,
                const work *w, uint64_t *saturated) {
    switch (block->dtype) {
    case KVANT_DTYPE_F16:
        return fit_rows_of(block, KVANT_DTYPE_F16, head, index, count, at, w, saturated);
    case KVANT_DTYPE_BF16:
        return fit_rows_of(block, KVANT_DTYPE_BF16, head, index, count, at, w, saturated);
    default:
        return fit_rows_of(block, KVANT_DTYPE_F32, head, index, count, at, w, saturated);
    }
}

/* ---- Keys ---------------------------------------------------------------------------------------------- */

/* Where the two sets of planes of LINE tokens from `first` on begin. */
static size_t key_low(const kivi_block *block, uint32_t first) {
    return kvant_planar_bytes(first, block->head_dim, block->bits == 3 ? 2 : block->bits);
}

static size_t key_high(const kivi_block *block, uint32_t first) {
    return kvant_planar_bytes(block->tokens, block->head_dim, 2) +
           kvant_planar_bytes(first, block->head_dim, 1);
}

KIVI_INLINE void key_range(const kivi_block *block, const kvant_view *rows, uint32_t dtype, uint32_t head,
                           uint32_t first, const work *w) {
    uint32_t last = block->group - 1;
    for (uint32_t t = 0; t <= last; t += 4) {
        const char *four[4]; /* at the end of a group the last row again, which changes nothing */
        for (uint32_t r = 0; r < 4; r++)
            four[r] = gather(rows, first + (t + r < last ? t + r : last), head, r, w);
        kivi_range_down(four, dtype, block->head_dim, t == 0, w->low, w->high);
    }
}

/* Again, one by one, the codes of channels whose range overflows. */
static void recode_keys(const kivi_block *block, const kvant_view *rows, uint32_t head, uint32_t first,
                        uint8_t *codes, work *w) {
    for (uint32_t c = 0; c < block->head_dim; c++) {
        uint64_t counted = 0;
        kivi_group group = kivi_group_fit(block, w->low[c], w->high[c], &counted);
        if (!group.wide) continue;
        for (uint32_t t = 0; t < block->group; t++) {
            const char *at = kvant_view_at(rows, first + t, head) + (int64_t)c * rows->channel_stride;
            codes[t * w->code_stride + c] =
                (uint8_t)kivi_group_code(block, group, kvant_load_element(at, block->dtype));
        }
    }
}

KIVI_INLINE void encode_key_group(const kivi_block *block, const kvant_view *rows, uint32_t dtype,
                                  uint32_t head, uint8_t *base, uint32_t first, uint8_t *codes, work *w,
                                  uint64_t *saturated) {
    key_range(block, rows, dtype, head, first, w);
    bool wide = fit(block, base, kivi_plane_index(block, first, 0), block->head_dim, 0, w, saturated);
    for (uint32_t t = 0; t < block->group; t++) {
        fetch_to_read(rows, first + block->group + t, head);
        kivi_code_row(gather(rows, first + t, head, 0, w), dtype, 0, block->head_dim, true, w->min,
                      w->divisor, (float)block->levels, codes + t * w->code_stride);
    }
    if (wide) recode_keys(block, rows, head, first, codes, w);
}

KIVI_INLINE void encode_keys(const kivi_block *block, const kvant_encode_args *args, uint32_t dtype,
                             uint32_t head, work *w, uint64_t *saturated) {
    uint8_t *base = (uint8_t *)args->extent + head * block->head_bytes;
    for (uint32_t first = 0; first < block->tokens; first += w->stretch) {
        uint32_t left = block->tokens - first, tokens = left < w->stretch ? left : w->stretch;
        for (uint32_t t = 0; t < tokens; t += block->group)
            encode_key_group(block, args->rows, dtype, head, base, first + t, w->codes + t * w->code_stride,
                             w, saturated);
        pack_codes(block, base + key_low(block, first), base + key_high(block, first), tokens,
                   block->head_dim, tokens, w);
    }
}

/* ---- Values -------------------------------------------------------------------------------------------- */

KIVI_INLINE uint32_t group_size(const kivi_block *block, uint32_t group) {
    uint32_t left = block->head_dim - group * block->group;
    return left < block->group ? left : block->group;
}

static void recode_values(const kivi_block *block, const kvant_view *rows, uint32_t head, uint32_t first,
                          uint32_t tokens, uint8_t *codes, work *w) {
    for (uint32_t g = 0; g < block->groups; g++)
        for (uint32_t t = 0; t < tokens; t++) {
            uint64_t counted = 0;
            kivi_group group = kivi_group_fit(block, w->low[g * TILE + t], w->high[g * TILE + t], &counted);
            if (!group.wide) continue;
            const char *row = kvant_view_at(rows, first + t, head);
            for (uint32_t c = g * block->group; c < g * block->group + group_size(block, g); c++)
                codes[t * w->code_stride + c] = (uint8_t)kivi_group_code(
                    block, group, kvant_load_element(row + (int64_t)c * rows->channel_stride, block->dtype));
        }
}

/* At most TILE tokens from `first` on. */
KIVI_INLINE void encode_value_tile(const kivi_block *block, const kvant_view *rows, uint32_t dtype,
                                   uint32_t head, uint8_t *base, uint32_t first, uint32_t tokens,
                                   uint8_t *codes, work *w, uint64_t *saturated) {
    bool wide = false;
    for (uint32_t t = 0; t < tokens; t++) {
        const char *row = gather(rows, first + t, head, 0, w);
        for (uint32_t g = 0; g < block->groups; g++)
            kivi_range_along(row, dtype, g * block->group, g * block->group + group_size(block, g),
                             &w->low[g * TILE + t], &w->high[g * TILE + t]);
    }
    for (uint32_t g = 0; g < block->groups; g++)
        wide |= fit(block, base, kivi_plane_index(block, first, g * block->group), tokens, (size_t)g * TILE,
                    w, saturated);
    for (uint32_t t = 0; t < tokens; t++) {
        fetch_to_read(rows, first + tokens + t, head);
        const char *row = gather(rows, first + t, head, 0, w);
        for (uint32_t g = 0; g < block->groups; g++)
            kivi_code_row(row, dtype, g * block->group, g * block->group + group_size(block, g), false,
                          &w->min[g * TILE + t], &w->divisor[g * TILE + t], (float)block->levels,
                          codes + t * w->code_stride);
    }
    if (wide) recode_values(block, rows, head, first, tokens, codes, w);
}

KIVI_INLINE void encode_values(const kivi_block *block, const kvant_encode_args *args, uint32_t dtype,
                               uint32_t head, work *w, uint64_t *saturated) {
    uint8_t *base = (uint8_t *)args->extent + head * block->head_bytes;
    for (uint32_t first = 0; first < block->tokens; first += KIVI_MATRIX_TOKENS) {
        kivi_matrix m = kivi_matrix_of(block, first);
        for (uint32_t t = 0; t < m.summed_count; t += TILE) {
            uint32_t left = m.summed_count - t;
            encode_value_tile(block, args->rows, dtype, head, base, first + t, left < TILE ? left : TILE,
                              w->codes + t * w->code_stride, w, saturated);
        }
        uint8_t *matrix = base + m.offset;
        pack_codes(block, matrix, matrix + kvant_planar_bytes(m.free_count, m.summed_count, 2), m.free_count,
                   m.summed_count, m.summed_count, w);
    }
}

/* ---- Encode -------------------------------------------------------------------------------------------- */

static void clear_padding(const kivi_block *block, uint8_t *head) {
    size_t plane = (size_t)block->groups * block->plane_row * block->meta_bytes;
    size_t end = block->scale_offset + plane;
    memset(head + end, 0, block->min_offset - end);
    end = block->min_offset + plane;
    memset(head + end, 0, block->head_bytes - end);
}

KIVI_INLINE void encode_heads(const kivi_block *block, kvant_encode_args *args, uint32_t dtype) {
    work w;
    carve(block, args->scratch, &w);
    uint64_t saturated = 0;
    for (uint32_t head = 0; head < block->heads; head++) {
        clear_padding(block, (uint8_t *)args->extent + head * block->head_bytes);
        if (block->side == KVANT_SIDE_KEY)
            encode_keys(block, args, dtype, head, &w, &saturated);
        else
            encode_values(block, args, dtype, head, &w, &saturated);
    }
    args->size = block->bytes;
    args->saturated = saturated;
}

static void encode(const kivi_block *block, kvant_encode_args *args) {
    switch (block->dtype) {
    case KVANT_DTYPE_F16:
        encode_heads(block, args, KVANT_DTYPE_F16);
        break;
    case KVANT_DTYPE_BF16:
        encode_heads(block, args, KVANT_DTYPE_BF16);
        break;
    default:
        encode_heads(block, args, KVANT_DTYPE_F32);
        break;
    }
}

/* ---- Decode -------------------------------------------------------------------------------------------- */

static void load_plane(const uint8_t *plane, uint32_t meta, float *x, uint32_t count) {
    switch (meta) {
    case KVANT_DTYPE_F16:
        kivi_load_row(plane, KVANT_DTYPE_F16, x, count);
        break;
    case KVANT_DTYPE_BF16:
        kivi_load_row(plane, KVANT_DTYPE_BF16, x, count);
        break;
    default:
        kivi_load_row(plane, KVANT_DTYPE_F32, x, count);
        break;
    }
}

/* Reads scales and minima of `count` neighbours of a plane. True if one of the groups overflows when decoded.
 */
static bool load_groups(const kivi_block *block, const uint8_t *head, size_t index, uint32_t count,
                        float *scale, float *min) {
    load_plane(head + block->scale_offset + index * block->meta_bytes, block->meta, scale, count);
    load_plane(head + block->min_offset + index * block->meta_bytes, block->meta, min, count);
    int overflow = 0;
    for (uint32_t i = 0; i < count; i++) overflow |= kivi_group_overflows(block, scale[i], min[i]);
    return overflow != 0;
}

KIVI_INLINE void decode_keys(const kivi_block *block, const kvant_decode_args *args, uint32_t dtype,
                             uint32_t h, work *w) {
    const kvant_mutable_view *rows = args->rows;
    const uint8_t *base = (const uint8_t *)args->extent->bytes + (args->first_head + h) * block->head_bytes;
    const float *scale = w->scale, *min = w->min;
    uint32_t dim = block->head_dim, loaded = UINT32_MAX;
    bool overflows = false;
    for (uint32_t t = 0; t < rows->tokens; t++) {
        uint32_t token = args->first_token + t, line = token % LINE, group = token / block->group;
        fetch_to_write(rows, t + AHEAD, h);
        if (t == 0 || line == 0) {
            uint32_t first = token - line, left = block->tokens - first;
            left = left < LINE ? left : LINE;
            unpack_codes(block, base + key_low(block, first), base + key_high(block, first), left, dim, left,
                         w);
        }
        if (group != loaded) overflows = load_groups(block, base, (size_t)group * dim, dim, w->scale, w->min);
        loaded = group;
        const uint8_t *codes = w->codes + line * w->code_stride;
        char *out = row_out(rows, t, h, w);
        if (overflows)
            for (uint32_t c = 0; c < dim; c++)
                kivi_tail_store(out, c, dtype, kivi_group_value(block, scale[c], min[c], codes[c]));
        else
            kivi_value_row(codes, 0, dim, true, scale, min, out, dtype);
        scatter(rows, t, h, w);
    }
}

KIVI_INLINE void decode_value_row(const kivi_block *block, const uint8_t *codes, uint32_t dtype,
                                  uint32_t column, bool overflows, char *out, const work *w) {
    for (uint32_t g = 0; g < block->groups; g++) {
        const float *scale = &w->scale[g * TILE + column], *min = &w->min[g * TILE + column];
        uint32_t from = g * block->group, to = from + group_size(block, g);
        if (overflows)
            for (uint32_t c = from; c < to; c++)
                kivi_tail_store(out, c, dtype, kivi_group_value(block, *scale, *min, codes[c]));
        else
            kivi_value_row(codes, from, to, false, scale, min, out, dtype);
    }
}

KIVI_INLINE void decode_values(const kivi_block *block, const kvant_decode_args *args, uint32_t dtype,
                               uint32_t h, work *w) {
    const kvant_mutable_view *rows = args->rows;
    const uint8_t *base = (const uint8_t *)args->extent->bytes + (args->first_head + h) * block->head_bytes;
    bool overflows = false;
    for (uint32_t t = 0; t < rows->tokens; t++) {
        uint32_t token = args->first_token + t, column = token % TILE;
        fetch_to_write(rows, t + AHEAD, h);
        kivi_matrix m = kivi_matrix_of(block, token);
        if (t == 0 || token == m.first_token) {
            const uint8_t *low = base + m.offset,
                          *high = low + kvant_planar_bytes(m.free_count, m.summed_count, 2);
            unpack_codes(block, low, high, m.free_count, m.summed_count, m.summed_count, w);
        }
        if (t == 0 || column == 0) {
            uint32_t first = token - column, left = block->tokens - first;
            overflows = false;
            for (uint32_t g = 0; g < block->groups; g++)
                overflows |= load_groups(block, base, kivi_plane_index(block, first, g * block->group),
                                         left < TILE ? left : TILE, w->scale + g * TILE, w->min + g * TILE);
        }
        decode_value_row(block, w->codes + (token - m.first_token) * w->code_stride, dtype, column, overflows,
                         row_out(rows, t, h, w), w);
        scatter(rows, t, h, w);
    }
}

KIVI_INLINE void decode_heads(const kivi_block *block, const kvant_decode_args *args, uint32_t dtype) {
    work w;
    carve(block, args->scratch, &w);
    for (uint32_t h = 0; h < args->rows->heads; h++)
        if (block->side == KVANT_SIDE_KEY)
            decode_keys(block, args, dtype, h, &w);
        else
            decode_values(block, args, dtype, h, &w);
}

static void decode(const kivi_block *block, const kvant_decode_args *args) {
    switch (args->rows->dtype) {
    case KVANT_DTYPE_F16:
        decode_heads(block, args, KVANT_DTYPE_F16);
        break;
    case KVANT_DTYPE_BF16:
        decode_heads(block, args, KVANT_DTYPE_BF16);
        break;
    default:
        decode_heads(block, args, KVANT_DTYPE_F32);
        break;
    }
}

#define KIVI_ISA_v2   KVANT_ISA_X86_64_V2
#define KIVI_ISA_v3   KVANT_ISA_X86_64_V3
#define KIVI_ISA_v4   KVANT_ISA_X86_64_V4
#define KIVI_ISA_neon KVANT_ISA_AARCH64

const kivi_code KVANT_CPU(kivi_code) = {KVANT_CPU_JOIN(KIVI_ISA, KVANT_CPU_SUFFIX), encode, decode,
                                        scratch_bytes};
