/* The reference: one number after another, as nvfp4_number.h and nvfp4_block.h define them. It is the scalar
 * level, the norm that every other level equals byte for byte, and meant to be read. */
#include "nvfp4.h"
#include "nvfp4_number.h"

#include <kvant/kit/view.h>

#include <string.h>

/* The numbers of one block, and what was found for it. */
typedef struct span {
    float x[NVFP4_BLOCK_MAX];
    uint32_t count;
    float amax;
    uint8_t scale; /* the byte */
    float factor;
    uint32_t overflows; /* 1 where the scale left its range */
} span;

/* ---- One block ----------------------------------------------------------------------------------------- */

static void find_amax(span *s) {
    int32_t most = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        int32_t magnitude = nvfp4_magnitude(s->x[i]);
        most = magnitude > most ? magnitude : most;
    }
    s->amax = kvant_bits_float((uint32_t)most);
}

static void fit_six(span *s, nvfp4_global global) {
    float exact = nvfp4_scale_six(s->amax, global.multiplier);
    s->scale = kvant_f32_to_e4m3(exact);
    s->factor = nvfp4_factor_six(kvant_e4m3_to_f32(s->scale), global.multiplier);
    s->overflows = nvfp4_scale_overflows(exact);
}

/* One candidate; its error. */
static float try_scale(span *s, nvfp4_global global, uint32_t rule, float exact) {
    s->scale = kvant_f32_to_e4m3(nvfp4_at_most(exact, 448.0f));
    float scale = kvant_e4m3_to_f32(s->scale), error = 0.0f;
    s->factor = nvfp4_factor_four_over_six(s->amax, scale, global.multiplier);
    s->overflows = nvfp4_scale_overflows(exact);
    for (uint32_t i = 0; i < s->count; i++)
        error += nvfp4_error(s->x[i], s->factor, scale, global.multiplier, rule);
    return error;
}

static void fit_four_over_six(span *s, nvfp4_global global, uint32_t rule) {
    float exact = s->amax / 6.0f * global.inverse;
    float error_six = try_scale(s, global, rule, exact);
    span four = *s;
    float error_four = try_scale(&four, global, rule, 1.5f * exact);
    if (error_four < error_six) *s = four;
}

static void fit(span *s, const nvfp4_config *config, nvfp4_global global) {
    find_amax(s);
    if (config->format == NVFP4_FORMAT_MXFP4) {
        int32_t exponent = nvfp4_exponent(config->exponent, s->amax);
        s->scale = (uint8_t)exponent;
        s->factor = nvfp4_factor_mx(exponent);
        s->overflows = 0;
    } else if (config->four_over_six == NVFP4_SIX) {
        fit_six(s, global);
    } else {
        fit_four_over_six(s, global, config->four_over_six);
    }
}

/* Metadata and elements that left their range. mxfp4 clips on purpose, and a scale of zero loses elements at
 * the other end. */
static uint32_t saturated(const span *s, const nvfp4_config *config) {
    uint32_t count = s->overflows;
    if (config->format == NVFP4_FORMAT_MXFP4 || s->scale == 0) return 0;
    for (uint32_t i = 0; i < s->count; i++) count += nvfp4_element_overflows(s->x[i], s->factor);
    return count;
}

/* ---- Encode -------------------------------------------------------------------------------------------- */

static void load(span *s, const nvfp4_block *block, const kvant_view *rows, uint32_t token, uint32_t head,
                 uint32_t channel) {
    uint32_t left = block->head_dim - channel;
    s->count = left < block->width ? left : block->width;
    for (uint32_t i = 0; i < s->count; i++)
        s->x[i] = kvant_load_element(
            kvant_view_at(rows, token, head) + (int64_t)(channel + i) * rows->channel_stride, rows->dtype);
}

/* Of one head, or of all. */
static float amax_of(const nvfp4_block *block, const kvant_view *rows, uint32_t first, uint32_t end) {
    float most = 0.0f;
    for (uint32_t h = first; h < end; h++)
        for (uint32_t t = 0; t < block->tokens; t++)
            for (uint32_t c = 0; c < block->head_dim; c += block->width) {
                span s;
                load(&s, block, rows, t, h, c);
                find_amax(&s);
                most = s.amax > most ? s.amax : most;
            }
    return most;
}

/* Of this head, from the data where the extent has its own, which is then stored. */
static nvfp4_global global_for(const nvfp4_state *state, const kvant_encode_args *args, uint32_t head) {
    const nvfp4_block *block = &state->block;
    if (block->globals == 0) return nvfp4_global_of(state, head);
    bool each = state->config.per == NVFP4_PER_HEAD;
    float amax = amax_of(block, args->rows, each ? head : 0, each ? head + 1 : block->heads);
    nvfp4_global global = nvfp4_global_from_amax(&state->config, amax);
    memcpy((uint8_t *)args->extent + block->global_offset + (each ? head : 0) * sizeof(float),
           &global.multiplier, sizeof(float));
    return global;
}

static uint32_t encode_block(const nvfp4_state *state, const kvant_encode_args *args, nvfp4_global global,
                             uint32_t token, uint32_t head, uint32_t channel) {
    const nvfp4_block *block = &state->block;
    uint8_t *base = (uint8_t *)args->extent + head * block->head_bytes;
    span s;
    load(&s, block, args->rows, token, head, channel);
    fit(&s, &state->config, global);
    base[block->scale_offset + nvfp4_scale_index(block, token, channel)] = s.scale;
    for (uint32_t i = 0; i < s.count; i++)
        nvfp4_code_put(block, base, token, channel + i, nvfp4_code(s.x[i], s.factor));
    return saturated(&s, &state->config);
}

static void encode(const nvfp4_state *state, kvant_encode_args *args) {
    const nvfp4_block *block = &state->block;
    uint64_t count = 0;
    memset(args->extent, 0, block->bytes); /* padding is zero */
    for (uint32_t head = 0; head < block->heads; head++) {
        nvfp4_global global = global_for(state, args, head);
        for (uint32_t t = 0; t < block->tokens; t++)
            for (uint32_t c = 0; c < block->head_dim; c += block->width)
                count += encode_block(state, args, global, t, head, c);
    }
    args->size = block->bytes;
    args->saturated = count;
}

/* ---- Decode -------------------------------------------------------------------------------------------- */

static void decode(const nvfp4_state *state, const kvant_decode_args *args) {
    const nvfp4_block *block = &state->block;
    const kvant_mutable_view *rows = args->rows;
    const uint8_t *extent = args->extent->bytes;
    bool mx = state->config.format == NVFP4_FORMAT_MXFP4;
    for (uint32_t h = 0; h < rows->heads; h++) {
        const uint8_t *base = extent + (args->first_head + h) * block->head_bytes;
        float multiplier = nvfp4_multiplier_of(state, extent, args->first_head + h);
        for (uint32_t t = 0; t < rows->tokens; t++)
            for (uint32_t c = 0; c < block->head_dim; c++) {
                uint32_t token = args->first_token + t;
                uint8_t byte = base[block->scale_offset + nvfp4_scale_index(block, token, c)];
                float scale = mx ? kvant_e8m0_to_f32(byte) : kvant_e4m3_to_f32(byte);
                float x = nvfp4_value((uint8_t)nvfp4_code_get(block, base, token, c), scale, multiplier);
                kvant_store_element(kvant_mutable_view_at(rows, t, h) + (int64_t)c * rows->channel_stride,
                                    rows->dtype, x);
            }
    }
}

static uint64_t scratch_bytes(const nvfp4_block *block) {
    (void)block;
    return 0;
}

const nvfp4_code_table nvfp4_code_reference = {KVANT_ISA_SCALAR, encode, decode, scratch_bytes};
