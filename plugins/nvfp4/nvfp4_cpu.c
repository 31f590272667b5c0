/* The fast code, compiled once per instruction set: the functions of nvfp4_number.h in loops that the
 * compiler turns into vector instructions.
 *
 *     encode   for each 16 tokens of a head: rows as floats, largest magnitude of every block, then, with the
 *              tokens side by side, scales and factors, then codes row by row; 64 tokens of codes are packed
 *              at once
 *     decode   64 tokens of codes are unpacked and their scales widened at once, then row by row
 */
#include "nvfp4.h"
#include "nvfp4_lanes.h"

#include <kvant/kit/isa.h>
#include <kvant/kit/view.h>

#include <string.h>

enum {
    TILE = 16,         /* tokens that share a pass of encode */
    STRETCH = 64,      /* tokens that are packed at once: a matrix of values, four lines of keys */
    AHEAD = 4,         /* rows that are fetched before they are needed */
    AHEAD_BYTES = 2048 /* of them, at most */
};

/* ---- Scratch ------------------------------------------------------------------------------------------- */

/* All of it is in the host's scratch; every array starts on a multiple of 64 bytes. */
typedef struct work {
    float *rows;    /* [TILE][row]; zeros behind head_dim */
    float *amax;    /* [blocks][STRETCH], of encode; scales of decode */
    float *factors; /* [blocks][TILE] */
    uint8_t *codes; /* [STRETCH][row] */
    size_t row;     /* blocks * width, padded to 64 */
} work;

static size_t row_of(const nvfp4_block *block) {
    return nvfp4_round_up((size_t)block->blocks * block->width, 64);
}

static uint64_t scratch_bytes(const nvfp4_block *block) {
    size_t floats = TILE * row_of(block) + (size_t)block->blocks * (STRETCH + TILE);
    return floats * sizeof(float) + STRETCH * row_of(block);
}

static work carve(const nvfp4_block *block, void *scratch) {
    work w = {.rows = scratch, .row = row_of(block)};
    w.amax = w.rows + TILE * w.row;
    w.factors = w.amax + (size_t)block->blocks * STRETCH;
    w.codes = (uint8_t *)(w.factors + (size_t)block->blocks * TILE);
    return w;
}

/* One copy each of what are large functions. */
__attribute__((noinline)) static void pack(uint8_t *base, uint32_t free_count, uint32_t summed_count,
                                           const uint8_t *codes, size_t free_stride, size_t summed_stride) {
    kvant_planar_pack(base, free_count, summed_count, NVFP4_BITS, codes, free_stride, summed_stride);
}

__attribute__((noinline)) static void unpack(const uint8_t *base, uint32_t free_count, uint32_t summed_count,
                                             uint8_t *codes, size_t free_stride, size_t summed_stride) {
    kvant_planar_unpack(base, free_count, summed_count, NVFP4_BITS, codes, free_stride, summed_stride);
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

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

/* ---- Largest magnitudes -------------------------------------------------------------------------------- */

/* `count` is a multiple of 16. NaN does not count. */
NVFP4_INLINE float largest(const float *restrict x, size_t count) {
    nvfp4_floats most = {0};
    for (size_t i = 0; i < count; i += NVFP4_LANES)
        most = nvfp4_greater(nvfp4_absolute(nvfp4_load(x + i)), most);
    return nvfp4_greatest_lane(most);
}

/* Of one head, or of all. */
static float amax_of(const nvfp4_block *block, const kvant_view *rows, uint32_t first, uint32_t end,
                     const work *w) {
    float most = 0.0f;
    for (uint32_t t = 0; t < block->tokens; t++)
        for (uint32_t h = first; h < end; h++) {
            fetch_to_read(rows, t + (h + AHEAD >= end), h + AHEAD < end ? h + AHEAD : first);
            kvant_load_row(rows, t, h, w->rows);
            float amax = largest(w->rows, w->row);
            most = amax > most ? amax : most;
        }
    return most;
}

/* ---- Scales of TILE tokens ----------------------------------------------------------------------------- */

/* A scale and its factor for each of the tokens of a vector, and where something may have left its range. */
typedef struct fitted {
    nvfp4_ints scales; /* codes */
    nvfp4_floats factors;
    nvfp4_ints trouble;
} fitted;

NVFP4_INLINE fitted fit_scale(nvfp4_floats exact, nvfp4_floats amax, nvfp4_floats factor_of_none, float g) {
    fitted f = {.scales = nvfp4_scale_codes(nvfp4_lesser(exact, nvfp4_splat(448.0f)))};
    nvfp4_floats factors = 1.0f / (nvfp4_scale_values(f.scales) * g);
    f.factors = nvfp4_choose_floats(f.scales > 0, factors, factor_of_none);
    f.trouble = (exact > 464.0f) | (amax * f.factors > 7.0f);
    return f;
}

NVFP4_INLINE fitted fit_mx(nvfp4_floats amax, uint32_t rule) {
    nvfp4_ints bits = (nvfp4_ints)amax, exponent;
    if (rule == NVFP4_EXPONENT_RCEIL) {
        bits = (nvfp4_ints)(amax / 6.0f);
        nvfp4_ints none = {0};
        nvfp4_ints least = nvfp4_choose(bits < 0x00800000, none + 0x400000, none);
        exponent = (bits >> 23) - ((bits & 0x7fffff) > least); /* a comparison gives -1 */
        exponent = nvfp4_choose(exponent > 254, none + 254, exponent);
    } else {
        exponent = bits + (rule == NVFP4_EXPONENT_EVEN   ? 0x200000
                           : rule == NVFP4_EXPONENT_CEIL ? 0x7fffff
                                                         : 0);
        exponent = (exponent >> 23) - 2;
        exponent &= exponent > 0;
    }
    return (fitted){.scales = exponent, .factors = (nvfp4_floats)((254 - exponent) << 23)};
}

/* The error of a candidate, token beside token, in the order of the channels. Magnitudes are enough: a number
 * and what it decodes to have one sign. */
NVFP4_INLINE nvfp4_floats error_of(float column[NVFP4_BLOCK_NV][TILE], uint32_t t, uint32_t rule, float g,
                                   const fitted *f) {
    const nvfp4_floats scales = nvfp4_scale_values(f->scales);
    nvfp4_floats error = {0};
    for (uint32_t i = 0; i < NVFP4_BLOCK_NV; i++) {
        nvfp4_floats x = nvfp4_load(&column[i][t]);
        nvfp4_floats d = nvfp4_rounded_magnitude(x, f->factors) * scales * g - x;
        error += rule == NVFP4_FOUR_OVER_SIX_MAE ? nvfp4_absolute(d) : d * d;
    }
    return error;
}

NVFP4_INLINE fitted fit_four_over_six(float column[NVFP4_BLOCK_NV][TILE], uint32_t t, nvfp4_floats amax,
                                      nvfp4_global global, uint32_t rule) {
    const float g = global.multiplier;
    nvfp4_floats exact = amax / 6.0f * global.inverse;
    /* Under a scale of zero the codes are the largest; a block of zeros has codes 0. */
    nvfp4_floats none = (nvfp4_floats)((nvfp4_ints)nvfp4_splat(NVFP4_FLOAT_MAX) & (amax > 0.0f));
    fitted six = fit_scale(exact, amax, none, g), four = fit_scale(1.5f * exact, amax, none, g);
    nvfp4_ints wins = error_of(column, t, rule, g, &four) < error_of(column, t, rule, g, &six);
    return (fitted){.scales = nvfp4_choose(wins, four.scales, six.scales),
                    .factors = nvfp4_choose_floats(wins, four.factors, six.factors),
                    .trouble = nvfp4_choose(wins, four.trouble, six.trouble)};
}

/* Channel after channel, the magnitudes of the tokens side by side. */
NVFP4_INLINE void turn(const float *restrict x, size_t row, float column[NVFP4_BLOCK_NV][TILE]) {
    for (uint32_t i = 0; i < NVFP4_BLOCK_NV; i++)
        for (uint32_t t = 0; t < TILE; t++)
            column[i][t] = kvant_bits_float(kvant_float_bits(x[t * row + i]) & 0x7fffffffu);
}

/* Of one block of TILE tokens. True if something may have left its range. */
NVFP4_INLINE bool fit_block(nvfp4_config rule, nvfp4_global global, const float *x, size_t row,
                            const float *amax, uint8_t *scales, float *factors) {
    float column[NVFP4_BLOCK_NV][TILE];
    const nvfp4_floats zero = {0};
    nvfp4_ints codes[NVFP4_VECTORS], trouble = {0};
    const bool mx = rule.format == NVFP4_FORMAT_MXFP4;
    if (!mx && rule.four_over_six != NVFP4_SIX) turn(x, row, column);
    for (uint32_t v = 0; v < NVFP4_VECTORS; v++) {
        nvfp4_floats most = nvfp4_load(amax + v * NVFP4_LANES);
        fitted f;
        if (mx)
            f = fit_mx(most, rule.exponent);
        else if (rule.four_over_six == NVFP4_SIX)
            f = fit_scale(most / (6.0f * global.multiplier), most, zero, global.multiplier);
        else
            f = fit_four_over_six(column, v * NVFP4_LANES, most, global, rule.four_over_six);
        codes[v] = f.scales;
        nvfp4_store(factors + v * NVFP4_LANES, f.factors);
        trouble |= f.trouble;
    }
    nvfp4_store_codes(scales, codes);
    return !mx && nvfp4_any(trouble);
}

/* ---- What left its range ------------------------------------------------------------------------------- */

/* Rare, and slow. */
static uint64_t count_saturated(const nvfp4_state *state, nvfp4_global global, const float *x, size_t row,
                                const float *amax, const uint8_t *scales, const float *factors,
                                uint32_t tokens) {
    uint64_t count = 0;
    for (uint32_t t = 0; t < tokens; t++) {
        if (scales[t] == 0) continue;
        float exact = nvfp4_scale_six(amax[t], global.multiplier);
        if (state->config.four_over_six != NVFP4_SIX) {
            exact = amax[t] / 6.0f * global.inverse;
            float scale = kvant_e4m3_to_f32(kvant_f32_to_e4m3(nvfp4_at_most(exact, 448.0f)));
            /* Where both candidates are 448, the first one is chosen. */
            if (factors[t] != nvfp4_factor_four_over_six(amax[t], scale, global.multiplier)) exact *= 1.5f;
        }
        count += nvfp4_scale_overflows(exact);
        for (uint32_t i = 0; i < state->block.width; i++)
            count += nvfp4_element_overflows(x[t * row + i], factors[t]);
    }
    return count;
}

/* ---- Encode -------------------------------------------------------------------------------------------- */

NVFP4_INLINE void codes_of(const float *restrict x, float factor, uint32_t width, uint8_t *restrict codes) {
    const nvfp4_floats factors = nvfp4_splat(factor);
    for (uint32_t i = 0; i < width; i += NVFP4_BLOCK_NV) {
        nvfp4_ints sixteen[NVFP4_VECTORS];
        for (uint32_t v = 0; v < NVFP4_VECTORS; v++)
            sixteen[v] = nvfp4_codes(nvfp4_load(x + i + v * NVFP4_LANES), factors);
        nvfp4_store_codes(codes + i, sixteen);
    }
}

/* Rows of the tile as floats, and the largest magnitudes of their blocks. Tokens beyond `tokens` are zeros.
 */
NVFP4_INLINE void load_tile(const nvfp4_block *block, const kvant_view *rows, uint32_t head, uint32_t first,
                            uint32_t tokens, uint32_t width, const work *w) {
    for (uint32_t t = 0; t < TILE; t++) {
        float *row = w->rows + t * w->row;
        if (t < tokens) {
            fetch_to_read(rows, first + t + AHEAD, head);
            kvant_load_row(rows, first + t, head, row);
        } else {
            memset(row, 0, w->row * sizeof *row);
        }
        for (uint32_t b = 0; b < block->blocks; b++)
            w->amax[b * TILE + t] = largest(row + (size_t)b * width, width);
    }
}

/* `format`, `four_over_six` and `exponent` are constants in every use, so that each has loops of its own. */
NVFP4_INLINE uint64_t encode_tile(const nvfp4_state *state, nvfp4_config rule, nvfp4_global global,
                                  uint8_t *base, uint32_t first, uint32_t tokens, uint8_t *codes,
                                  const work *w) {
    const nvfp4_block *block = &state->block;
    const bool mx = rule.format == NVFP4_FORMAT_MXFP4;
    const uint32_t width = mx ? NVFP4_BLOCK_MX : NVFP4_BLOCK_NV;
    uint64_t saturated = 0;
    for (uint32_t b = 0; b < block->blocks; b++) {
        const float *x = w->rows + (size_t)b * width, *amax = w->amax + (size_t)b * TILE;
        float *factors = w->factors + (size_t)b * TILE;
        uint8_t scales[TILE];
        if (fit_block(rule, global, x, w->row, amax, scales, factors))
            saturated += count_saturated(state, global, x, w->row, amax, scales, factors, tokens);
        memcpy(base + block->scale_offset + (size_t)b * block->tokens + first, scales, tokens);
    }
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t b = 0; b < block->blocks; b++)
            codes_of(w->rows + t * w->row + (size_t)b * width, w->factors[(size_t)b * TILE + t], width,
                     codes + t * w->row + (size_t)b * width);
    return saturated;
}

NVFP4_INLINE uint64_t encode_head(const nvfp4_state *state, const kvant_encode_args *args, nvfp4_config rule,
                                  nvfp4_global global, uint32_t head, const work *w) {
    const nvfp4_block *block = &state->block;
    const bool key = block->side == KVANT_SIDE_KEY;
    const uint32_t width = rule.format == NVFP4_FORMAT_MXFP4 ? NVFP4_BLOCK_MX : NVFP4_BLOCK_NV;
    uint8_t *base = (uint8_t *)args->extent + head * block->head_bytes;
    uint64_t saturated = 0;
    for (uint32_t first = 0; first < block->tokens; first += STRETCH) {
        uint32_t left = block->tokens - first, tokens = left < STRETCH ? left : STRETCH;
        for (uint32_t t = 0; t < tokens; t += TILE) {
            uint32_t here = tokens - t < TILE ? tokens - t : TILE;
            load_tile(block, args->rows, head, first + t, here, width, w);
            saturated += encode_tile(state, rule, global, base, first + t, here, w->codes + t * w->row, w);
        }
        if (key)
            pack(base + kvant_planar_bytes(first, block->head_dim, NVFP4_BITS), tokens, block->head_dim,
                 w->codes, w->row, 1);
        else
            pack(base + first / STRETCH * block->matrix_bytes, block->head_dim, tokens, w->codes, 1, w->row);
    }
    size_t end = block->scale_offset + (size_t)block->blocks * block->tokens;
    memset(base + end, 0, block->head_bytes - end);
    return saturated;
}

#define ENCODE(name, ...)                                                                                    \
    __attribute__((noinline)) static uint64_t name(const nvfp4_state *state, const kvant_encode_args *args,  \
                                                   nvfp4_global global, uint32_t head, const work *w) {      \
        return encode_head(state, args, (nvfp4_config){__VA_ARGS__}, global, head, w);                       \
    }

ENCODE(encode_six, .format = NVFP4_FORMAT_NVFP4, .four_over_six = NVFP4_SIX)
ENCODE(encode_mae, .format = NVFP4_FORMAT_NVFP4, .four_over_six = NVFP4_FOUR_OVER_SIX_MAE)
ENCODE(encode_mse, .format = NVFP4_FORMAT_NVFP4, .four_over_six = NVFP4_FOUR_OVER_SIX_MSE)
ENCODE(encode_floor, .format = NVFP4_FORMAT_MXFP4, .exponent = NVFP4_EXPONENT_FLOOR)
ENCODE(encode_even, .format = NVFP4_FORMAT_MXFP4, .exponent = NVFP4_EXPONENT_EVEN)
ENCODE(encode_ceil, .format = NVFP4_FORMAT_MXFP4, .exponent = NVFP4_EXPONENT_CEIL)
ENCODE(encode_rceil, .format = NVFP4_FORMAT_MXFP4, .exponent = NVFP4_EXPONENT_RCEIL)

typedef uint64_t head_encoder(const nvfp4_state *, const kvant_encode_args *, nvfp4_global, uint32_t,
                              const work *);

static head_encoder *encoder_of(const nvfp4_config *config) {
    static head_encoder *const nv[] = {encode_six, encode_mae, encode_mse};
    static head_encoder *const mx[] = {encode_floor, encode_even, encode_ceil, encode_rceil};
    return config->format == NVFP4_FORMAT_MXFP4 ? mx[config->exponent] : nv[config->four_over_six];
}

/* The global scale of a head from the data, stored in the extent. */
static nvfp4_global measure(const nvfp4_state *state, const kvant_encode_args *args, uint32_t head,
                            const work *w) {
    const nvfp4_block *block = &state->block;
    bool each = state->config.per == NVFP4_PER_HEAD;
    float amax = amax_of(block, args->rows, each ? head : 0, each ? head + 1 : block->heads, w);
    nvfp4_global global = nvfp4_global_from_amax(&state->config, amax);
    memcpy((uint8_t *)args->extent + block->global_offset + head * sizeof(float), &global.multiplier,
           sizeof(float));
    return global;
}

static void encode(const nvfp4_state *state, kvant_encode_args *args) {
    const nvfp4_block *block = &state->block;
    head_encoder *encode_one = encoder_of(&state->config);
    nvfp4_global global = {1.0f, 1.0f};
    uint64_t saturated = 0;
    const work w = carve(block, args->scratch);
    /* What lies behind head_dim in a row stays zero. */
    memset(w.rows, 0, TILE * w.row * sizeof *w.rows);
    memset((uint8_t *)args->extent + block->global_offset, 0, block->bytes - block->global_offset);
    for (uint32_t head = 0; head < block->heads; head++) {
        if (block->globals == 0)
            global = nvfp4_global_of(state, head);
        else if (head < block->globals)
            global = measure(state, args, head, &w);
        saturated += encode_one(state, args, global, head, &w);
    }
    args->size = block->bytes;
    args->saturated = saturated;
}

/* ---- Decode -------------------------------------------------------------------------------------------- */

/* Tokens of a head that are unpacked together, a part of one matrix. */
typedef struct stretch {
    uint32_t first; /* token of the first row of codes */
    uint32_t count;
} stretch;

static stretch unpack_stretch(const nvfp4_block *block, const uint8_t *head, uint32_t token, const work *w) {
    nvfp4_matrix m = nvfp4_matrix_of(block, token);
    const uint8_t *base = head + m.offset;
    if (block->side == KVANT_SIDE_VALUE) {
        unpack(base, m.free_count, m.summed_count, w->codes, 1, w->row);
        return (stretch){m.first_token, m.summed_count};
    }
    uint32_t first = token / 16 * 16, left = block->tokens - first; /* a line of words has 16 tokens */
    uint32_t count = left < STRETCH ? left : STRETCH;
    unpack(base + kvant_planar_bytes(first, block->head_dim, NVFP4_BITS), count, block->head_dim, w->codes,
           w->row, 1);
    return (stretch){first, count};
}

NVFP4_INLINE void widen_scales(const nvfp4_block *block, const uint8_t *head, stretch s, bool mx,
                               const work *w) {
    for (uint32_t b = 0; b < block->blocks; b++) {
        const uint8_t *restrict from = head + block->scale_offset + (size_t)b * block->tokens + s.first;
        float *restrict to = w->amax + (size_t)b * STRETCH;
        if (mx)
            for (uint32_t t = 0; t < s.count; t++) to[t] = kvant_e8m0_to_f32(from[t]);
        else
            for (uint32_t t = 0; t < s.count; t++) to[t] = kvant_e4m3_to_f32(from[t]);
    }
}

NVFP4_INLINE void values_of(const uint8_t *restrict codes, float scale, float g, uint32_t width,
                            float *restrict x) {
    const nvfp4_floats scales = nvfp4_splat(scale), globals = nvfp4_splat(g);
    for (uint32_t i = 0; i < width; i += NVFP4_LANES)
        nvfp4_store(x + i, nvfp4_values(nvfp4_load_codes(codes + i), scales, globals));
}

NVFP4_INLINE void decode_head(const nvfp4_state *state, const kvant_decode_args *args, bool mx, uint32_t h,
                              const work *w) {
    const nvfp4_block *block = &state->block;
    const kvant_mutable_view *rows = args->rows;
    const uint32_t width = mx ? NVFP4_BLOCK_MX : NVFP4_BLOCK_NV;
    const uint8_t *extent = args->extent->bytes;
    const uint8_t *head = extent + (args->first_head + h) * block->head_bytes;
    const float g = nvfp4_multiplier_of(state, extent, args->first_head + h);
    stretch s = {0, 0};
    for (uint32_t t = 0; t < rows->tokens; t++) {
        uint32_t token = args->first_token + t;
        if (token < s.first || token >= s.first + s.count) {
            s = unpack_stretch(block, head, token, w);
            widen_scales(block, head, s, mx, w);
        }
        fetch_to_write(rows, t + AHEAD, h);
        for (uint32_t b = 0; b < block->blocks; b++)
            values_of(w->codes + (token - s.first) * w->row + (size_t)b * width,
                      w->amax[(size_t)b * STRETCH + token - s.first], g, width, w->rows + (size_t)b * width);
        kvant_store_row(rows, t, h, w->rows);
    }
}

__attribute__((noinline)) static void decode_nv(const nvfp4_state *state, const kvant_decode_args *args,
                                                uint32_t h, const work *w) {
    decode_head(state, args, false, h, w);
}

__attribute__((noinline)) static void decode_mx(const nvfp4_state *state, const kvant_decode_args *args,
                                                uint32_t h, const work *w) {
    decode_head(state, args, true, h, w);
}

static void decode(const nvfp4_state *state, const kvant_decode_args *args) {
    const work w = carve(&state->block, args->scratch);
    /* What lies behind head_dim in a row of codes is decoded too. */
    memset(w.codes, 0, STRETCH * w.row);
    for (uint32_t h = 0; h < args->rows->heads; h++)
        if (state->config.format == NVFP4_FORMAT_MXFP4)
            decode_mx(state, args, h, &w);
        else
            decode_nv(state, args, h, &w);
}

const nvfp4_code_table KVANT_CPU(nvfp4_code) = {KVANT_CPU_ISA, encode, decode, scratch_bytes};
