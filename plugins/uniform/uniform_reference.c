/* The reference encoder and decoder: group after group, element after element, straight from
 * uniform_convention.c and the byte map. Slow on purpose; every other level must give the same bytes and
 * floats. */
#include "uniform_state.h"

#include <kvant/kit/view.h>

#include <string.h>

/* The elements of a group: a box of the extent. */
typedef struct box {
    uint32_t token, tokens, head, heads, channel, channels;
} box;

static box box_of(const uniform_block *b, uint32_t head, size_t group) {
    box x = {0, b->tokens, head, 1, 0, b->head_dim};
    switch (b->granularity) {
    case UNIFORM_TENSOR:
        x.head = 0;
        x.heads = b->heads;
        break;
    case UNIFORM_CHANNEL:
        x.channel = (uint32_t)group;
        x.channels = 1;
        break;
    case UNIFORM_TOKEN:
        x.token = (uint32_t)group;
        x.tokens = 1;
        break;
    case UNIFORM_GROUP_CHANNELS:
        x.token = (uint32_t)(group % b->tokens);
        x.tokens = 1;
        x.channel = (uint32_t)(group / b->tokens) * b->group;
        x.channels = b->head_dim - x.channel < b->group ? b->head_dim - x.channel : b->group;
        break;
    case UNIFORM_GROUP_TOKENS:
        x.token = (uint32_t)(group / b->head_dim) * b->group;
        x.tokens = b->group;
        x.channel = (uint32_t)(group % b->head_dim);
        x.channels = 1;
        break;
    default:
        break;
    }
    return x;
}

static float element(const kvant_view *rows, uint32_t token, uint32_t head, uint32_t channel) {
    return kvant_load_element(kvant_view_at(rows, token, head) + (int64_t)channel * rows->channel_stride,
                              rows->dtype);
}

typedef struct range {
    float low, high, signed_largest, magnitude;
    uint32_t count;
} range;

/* One element enters. A zero of either sign counts as +0, so that the order of the elements does not
 * matter. */
static void widen(range *r, float x) {
    float magnitude = x < 0.0f ? -x : x;
    x += 0.0f;
    if (r->count == 0 || x < r->low) r->low = x;
    if (r->count == 0 || x > r->high) r->high = x;
    if (r->count == 0 || magnitude > r->magnitude) r->signed_largest = x;
    if (r->count == 0 || magnitude > r->magnitude) r->magnitude = magnitude + 0.0f;
    r->count++;
}

static uint32_t fit_group(const uniform_state *s, const kvant_view *rows, const box *x, float *terms,
                          uniform_quantizer *q) {
    const uniform_arithmetic *a = &s->arithmetic;
    range r = {0};
    for (uint32_t t = x->token; t < x->token + x->tokens; t++)
        for (uint32_t h = x->head; h < x->head + x->heads; h++)
            for (uint32_t c = x->channel; c < x->channel + x->channels; c++) {
                float e = element(rows, t, h, c);
                if (a->rule.range == UNIFORM_RANGE_MEAN) terms[r.count] = (e < 0.0f ? -e : e) + 0.0f;
                widen(&r, e);
            }
    switch (a->rule.range) {
    case UNIFORM_RANGE_MAGNITUDE:
        return uniform_fit(a, 0.0f, r.magnitude, q);
    case UNIFORM_RANGE_MEAN:
        return uniform_fit(a, 0.0f, uniform_mean(terms, r.count), q);
    case UNIFORM_RANGE_SIGNED:
        return uniform_fit(a, 0.0f, r.signed_largest, q);
    case UNIFORM_RANGE_SPAN:
        return uniform_fit(a, r.low, r.high, q);
    default:
        return uniform_fit(a, r.low < 0.0f ? r.low : 0.0f, r.high > 0.0f ? r.high : 0.0f, q);
    }
}

/* ---- Stored numbers ------------------------------------------------------------------------------------ */

float uniform_load_stored(const uint8_t *plane, size_t index, uint32_t type) {
    uint16_t half;
    float x;
    switch (type) {
    case KVANT_DTYPE_F32:
        memcpy(&x, plane + index * sizeof x, sizeof x);
        return x;
    case KVANT_DTYPE_F16:
        memcpy(&half, plane + index * sizeof half, sizeof half);
        return kvant_f16_to_f32(half);
    case KVANT_DTYPE_BF16:
        memcpy(&half, plane + index * sizeof half, sizeof half);
        return kvant_bf16_to_f32(half);
    case KVANT_DTYPE_F8_E8M0:
        return uniform_e8m0_to_f32(plane[index]);
    default:
        return (float)(int8_t)plane[index];
    }
}

/* `x` is a number of the type already. */
static void store(uint8_t *plane, size_t index, uint32_t type, float x) {
    uint16_t half;
    switch (type) {
    case KVANT_DTYPE_F32:
        memcpy(plane + index * sizeof x, &x, sizeof x);
        break;
    case KVANT_DTYPE_F16:
    case KVANT_DTYPE_BF16:
        half = type == KVANT_DTYPE_F16 ? kvant_f32_to_f16(x) : kvant_f32_to_bf16(x);
        memcpy(plane + index * sizeof half, &half, sizeof half);
        break;
    case KVANT_DTYPE_F8_E8M0:
        plane[index] = kvant_f32_to_e8m0_up(x);
        break;
    default:
        plane[index] = (uint8_t)(int8_t)x;
        break;
    }
}

void uniform_read_group(const uniform_state *s, const uint8_t *extent, uint32_t head, size_t group,
                        uniform_quantizer *q) {
    const uniform_block *b = &s->block;
    *q = (uniform_quantizer){0};
    if (s->fixed) {
        q->scale = uniform_fixed_scales(s, head)[group];
        q->minimum = uniform_fixed_minima(s, head)[group];
        return;
    }
    q->scale = uniform_load_stored(extent + uniform_scale_at(b, head), group, s->arithmetic.scale_type);
    if (b->offset_bytes == 0) return;
    float offset = uniform_load_stored(extent + uniform_offset_at(b, head), group, s->arithmetic.offset_type);
    if (s->arithmetic.rule.offset == UNIFORM_OFFSET_MINIMUM)
        q->minimum = offset;
    else
        q->zero = offset;
}

/* ---- Encode and decode --------------------------------------------------------------------------------- */

static void encode_group(const uniform_state *s, const kvant_encode_args *args, const box *x,
                         const uniform_quantizer *q, uint64_t *clipped) {
    for (uint32_t h = x->head; h < x->head + x->heads; h++) {
        uint8_t *head = (uint8_t *)args->extent + h * s->block.head_bytes;
        for (uint32_t t = x->token; t < x->token + x->tokens; t++)
            for (uint32_t c = x->channel; c < x->channel + x->channels; c++)
                uniform_put_code(&s->block, head, t, c,
                                 uniform_code(&s->arithmetic, q, element(args->rows, t, h, c), clipped));
    }
}

kvant_status uniform_encode_reference(const void *state, kvant_encode_args *args) {
    const uniform_state *s = state;
    const uniform_block *b = &s->block;
    const uniform_arithmetic *a = &s->arithmetic;
    uniform_scratch scratch = uniform_scratch_cut(b, a->rule.range == UNIFORM_RANGE_MEAN, args->scratch);
    uint8_t *extent = args->extent;
    uint64_t clipped = 0;
    memset(extent, 0, b->bytes); /* padding too */
    args->size = b->bytes;
    args->saturated = 0;
    for (uint32_t h = 0; h < (b->granularity == UNIFORM_TENSOR ? 1 : b->heads); h++)
        for (size_t group = 0; group < b->groups; group++) {
            box x = box_of(b, h, group);
            uniform_quantizer q;
            if (s->fixed) {
                uniform_quantizer_fixed(a, uniform_fixed_scales(s, h)[group],
                                        uniform_fixed_minima(s, h)[group], &q);
            } else {
                args->saturated += fit_group(s, args->rows, &x, scratch.terms, &q);
                store(extent + uniform_scale_at(b, h), group, a->scale_type, q.scale);
                if (b->offset_bytes > 0)
                    store(extent + uniform_offset_at(b, h), group, a->offset_type,
                          a->rule.offset == UNIFORM_OFFSET_MINIMUM ? q.minimum : q.zero);
            }
            encode_group(s, args, &x, &q, &clipped);
        }
    /* A dynamic scale cuts nothing by more than its own rounding, unless it saturated, which was counted. */
    if (s->fixed) args->saturated = clipped;
    return KVANT_OK;
}

kvant_status uniform_decode_reference(const void *state, const kvant_decode_args *args) {
    const uniform_state *s = state;
    const uniform_block *b = &s->block;
    const uint8_t *extent = args->extent->bytes;
    const kvant_mutable_view *rows = args->rows;
    for (uint32_t h = 0; h < rows->heads; h++) {
        const uint8_t *head = extent + (args->first_head + h) * b->head_bytes;
        for (uint32_t t = 0; t < rows->tokens; t++) {
            uint32_t token = args->first_token + t;
            char *row = kvant_mutable_view_at(rows, t, h);
            for (uint32_t c = 0; c < rows->head_dim; c++) {
                uniform_quantizer q;
                uniform_read_group(s, extent, args->first_head + h, uniform_group_of(b, token, c), &q);
                uint8_t code = (uint8_t)uniform_get_code(b, head, token, c);
                kvant_store_element(row + (int64_t)c * rows->channel_stride, rows->dtype,
                                    uniform_value(&s->arithmetic, &q, code));
            }
        }
    }
    return KVANT_OK;
}
