/* Ranges of groups, and from them scales, minima and zeros. See uniform_cpu.h. */
#include "uniform_cpu.h"

/* ---- Ranges -------------------------------------------------------------------------------------------- */

void KVANT_CPU(uniform_widen)(bool magnitude, const float *x, size_t n, int32_t *low, int32_t *high) {
    int32_t l = *low, h = *high;
    if (magnitude) {
        for (size_t i = 0; i < n; i++) {
            int32_t k = (int32_t)(kvant_float_bits(x[i]) & 0x7fffffffu);
            h = k > h ? k : h;
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            int32_t k = uniform_key_of(x[i]);
            l = k < l ? k : l;
            h = k > h ? k : h;
        }
    }
    *low = l;
    *high = h;
}

static void widen_each(bool magnitude, const float *x, size_t n, int32_t *low, int32_t *high) {
    if (magnitude) {
        for (size_t i = 0; i < n; i++) {
            int32_t k = (int32_t)(kvant_float_bits(x[i]) & 0x7fffffffu);
            high[i] = k > high[i] ? k : high[i];
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            int32_t k = uniform_key_of(x[i]);
            low[i] = k < low[i] ? k : low[i];
            high[i] = k > high[i] ? k : high[i];
        }
    }
}

static void start_ranges(bool magnitude, size_t n, int32_t *low, int32_t *high) {
    for (size_t i = 0; i < n; i++) low[i] = magnitude ? 0 : INT32_MAX;
    for (size_t i = 0; i < n; i++) high[i] = magnitude ? 0 : INT32_MIN;
}

static void magnitudes(const float *x, size_t n, float *terms) {
    for (size_t i = 0; i < n; i++) terms[i] = kvant_bits_float(kvant_float_bits(x[i]) & 0x7fffffffu);
}

static int32_t mean_key(float *terms, size_t n) {
    return uniform_key_of(uniform_mean(terms, (uint32_t)n));
}

/* The first element of largest magnitude, with its sign: only where both signs reach it does it need a
 * look. */
static int32_t signed_key(const float *x, size_t n, int32_t low, int32_t high) {
    float l = uniform_float_of(low) + 0.0f, h = uniform_float_of(high) + 0.0f;
    if (h > -l) return uniform_key_of(h);
    if (-l > h) return uniform_key_of(l);
    for (size_t i = 0; i < n; i++)
        if (x[i] == l || x[i] == h) return uniform_key_of(x[i] + 0.0f);
    return 0;
}

static void range_rows(const uniform_state *s, uniform_scratch *w, size_t group, size_t stride) {
    const uniform_block *b = &s->block;
    uint32_t rule = s->arithmetic.rule.range;
    bool magnitude = rule == UNIFORM_RANGE_MAGNITUDE;
    for (uint32_t t = 0; t < b->tokens; t++) {
        const float *x = w->tile + t * w->row;
        size_t at = t;
        for (size_t c = 0; c < b->head_dim; c += group, at += stride) {
            size_t n = b->head_dim - c < group ? b->head_dim - c : group;
            if (rule == UNIFORM_RANGE_MEAN) {
                magnitudes(x + c, n, w->terms);
                w->low_key[at] = 0;
                w->high_key[at] = mean_key(w->terms, n);
                continue;
            }
            int32_t low = magnitude ? 0 : INT32_MAX, high = magnitude ? 0 : INT32_MIN;
            KVANT_CPU(uniform_widen)(magnitude, x + c, n, &low, &high);
            if (rule == UNIFORM_RANGE_SIGNED) {
                high = signed_key(x + c, n, low, high);
                low = 0;
            }
            w->low_key[at] = low;
            w->high_key[at] = high;
        }
    }
}

static void range_columns(const uniform_state *s, uniform_scratch *w, size_t group) {
    const uniform_block *b = &s->block;
    bool magnitude = s->arithmetic.rule.range == UNIFORM_RANGE_MAGNITUDE;
    for (size_t t = 0, at = 0; t < b->tokens; t += group, at += b->head_dim) {
        if (s->arithmetic.rule.range == UNIFORM_RANGE_MEAN) {
            for (size_t c = 0; c < b->head_dim; c++) {
                for (size_t i = 0; i < group; i++)
                    magnitudes(w->tile + (t + i) * w->row + c, 1, w->terms + i);
                w->low_key[at + c] = 0;
                w->high_key[at + c] = mean_key(w->terms, group);
            }
            continue;
        }
        start_ranges(magnitude, b->head_dim, w->low_key + at, w->high_key + at);
        for (size_t i = 0; i < group; i++)
            widen_each(magnitude, w->tile + (t + i) * w->row, b->head_dim, w->low_key + at, w->high_key + at);
    }
}

void KVANT_CPU(uniform_range_tile)(const uniform_state *s, uniform_scratch *w) {
    const uniform_block *b = &s->block;
    if (b->granularity == UNIFORM_TOKEN || b->granularity == UNIFORM_GROUP_CHANNELS)
        range_rows(s, w, b->group, b->tokens);
    else
        range_columns(s, w, b->group);
}

/* A mean's terms lie in the order [token][head][channel]. */
void KVANT_CPU(uniform_range_heads)(const uniform_state *s, uniform_scratch *w, const kvant_view *rows,
                                    uint32_t first, uint32_t heads) {
    const uniform_block *b = &s->block;
    bool magnitude = s->arithmetic.rule.range == UNIFORM_RANGE_MAGNITUDE;
    start_ranges(magnitude, 1, w->low_key, w->high_key);
    float *x = w->tile, *terms = w->terms;
    for (uint32_t t = 0; t < b->tokens; t++)
        for (uint32_t h = first; h < first + heads; h++) {
            kvant_load_row(rows, t, h, x);
            if (s->arithmetic.rule.range == UNIFORM_RANGE_MEAN) {
                magnitudes(x, b->head_dim, terms);
                terms += b->head_dim;
            } else {
                KVANT_CPU(uniform_widen)(magnitude, x, b->head_dim, w->low_key, w->high_key);
            }
        }
    if (s->arithmetic.rule.range == UNIFORM_RANGE_MEAN) {
        w->low_key[0] = 0;
        w->high_key[0] = mean_key(w->terms, (size_t)(terms - w->terms));
    }
}
/* ---- Planes of scales, minima and zeros ---------------------------------------------------------------- */

/* `empty` in place of a 0; where it is 0 itself, the 0 keeps its sign. */
static inline float or_empty(float x, float empty) {
    return kvant_bits_float(kvant_float_bits(x) | (x == 0.0f ? kvant_float_bits(empty) : 0));
}

/* Rounds x to the stored type, in place, and writes the plane; over[i] becomes 1 where a number saturates. */
static void store_floats(float *restrict x, size_t n, float empty, uint8_t *restrict plane,
                         int32_t *restrict over) {
    for (size_t i = 0; i < n; i++) {
        float r = x[i];
        over[i] |= r > FLT_MAX || r < -FLT_MAX;
        r = r < FLT_MAX ? r : FLT_MAX;
        r = r > -FLT_MAX ? r : -FLT_MAX;
        x[i] = or_empty(r, empty);
    }
    memcpy(plane, x, n * sizeof *x);
}

UNIFORM_INLINE void store_halves(float *restrict x, size_t n, float empty, bool f16, uint8_t *restrict plane,
                                 int32_t *restrict over) {
    const uint32_t infinity = f16 ? 0x7c00u : 0x7f80u;
    for (size_t i = 0; i < n; i++) {
        uint32_t half = f16 ? kvant_f32_to_f16(x[i]) : kvant_f32_to_bf16(x[i]);
        uint32_t past = (half & 0x7fffu) >= infinity ? 1 : 0;
        over[i] |= (int32_t)past;
        half -= past; /* the largest finite number comes just before infinity */
        x[i] = or_empty(f16 ? kvant_f16_to_f32((uint16_t)half) : kvant_bf16_to_f32((uint16_t)half), empty);
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t half = f16 ? kvant_f32_to_f16(x[i]) : kvant_f32_to_bf16(x[i]); /* exact */
        memcpy(plane + i * sizeof half, &half, sizeof half);
    }
}

static void store_powers(float *restrict x, size_t n, uint8_t *restrict plane, int32_t *restrict over) {
    for (size_t i = 0; i < n; i++) {
        over[i] |= x[i] > 0x1p127f;
        plane[i] = kvant_f32_to_e8m0_up(x[i]);
        x[i] = uniform_e8m0_to_f32(plane[i]);
    }
}

/* Returns how many over[] are 1 then. */
static uint32_t store_plane(float *x, size_t n, uint32_t type, float empty, uint8_t *plane, int32_t *over) {
    switch (type) {
    case KVANT_DTYPE_F32:
        store_floats(x, n, empty, plane, over);
        break;
    case KVANT_DTYPE_F16:
        store_halves(x, n, empty, true, plane, over);
        break;
    case KVANT_DTYPE_BF16:
        store_halves(x, n, empty, false, plane, over);
        break;
    default:
        store_powers(x, n, plane, over);
        break;
    }
    uint32_t saturated = 0;
    for (size_t i = 0; i < n; i++) saturated += (uint32_t)over[i];
    return saturated;
}

/* From scales to what the quotient takes; where `divide` comes in as 0 the group is flat or lost. */
static void set_quotients(const uniform_arithmetic *a, float *divide, size_t n) {
    if (a->rule.quotient == UNIFORM_DIVIDE) {
        for (size_t i = 0; i < n; i++) divide[i] = divide[i] == 0.0f ? INFINITY : divide[i];
    } else {
        for (size_t i = 0; i < n; i++) {
            float factor = uniform_clamp(1.0f / divide[i], -FLT_MAX, FLT_MAX);
            divide[i] = divide[i] == 0.0f ? 0.0f : factor;
        }
    }
}

/* Ranges to exact scales and minima. A group whose span overflows is marked in low_key then, a flat one in
 * high_key. */
UNIFORM_INLINE void fit_spans(float divisor, bool with_zero, int32_t *restrict low_key,
                              int32_t *restrict high_key, float *restrict scale, float *restrict minimum,
                              size_t n) {
    for (size_t i = 0; i < n; i++) {
        float low = uniform_float_of(low_key[i]) + 0.0f, high = uniform_float_of(high_key[i]) + 0.0f;
        if (with_zero) {
            low = low < 0.0f ? low : 0.0f;
            high = high > 0.0f ? high : 0.0f;
        }
        float span = high - low;
        low_key[i] = span > FLT_MAX;
        span = span < FLT_MAX ? span : FLT_MAX;
        scale[i] = span / divisor;
        minimum[i] = low;
        high_key[i] = high == low;
    }
}

/* The integer zero of each group: minimum and scale in, zero out. */
static void fit_zeros(const uniform_arithmetic *a, uniform_scratch *w, size_t n, uint8_t *plane) {
    for (size_t i = 0; i < n; i++) {
        float zero = uniform_round_half_even(
            uniform_clamp(a->code_low - w->minimum[i] / w->scale[i], a->code_low, a->code_high));
        w->zero[i] = w->high_key[i] ? 0.0f : zero;
    }
    for (size_t i = 0; i < n; i++) plane[i] = (uint8_t)(int8_t)w->zero[i];
}

uint32_t KVANT_CPU(uniform_fit_planes)(const uniform_state *s, uniform_scratch *w, size_t n, uint8_t *extent,
                                       uint32_t head) {
    const uniform_arithmetic *a = &s->arithmetic;
    const uniform_rule *rule = &a->rule;
    uint8_t *offsets = extent + uniform_offset_at(&s->block, head);
    uint32_t saturated = 0;
    if (rule->range == UNIFORM_RANGE_SPAN_ZERO)
        fit_spans(a->divisor, true, w->low_key, w->high_key, w->scale, w->minimum, n);
    else
        fit_spans(a->divisor, false, w->low_key, w->high_key, w->scale, w->minimum, n);
    bool stored = rule->source == UNIFORM_FROM_STORED, minimum = rule->offset == UNIFORM_OFFSET_MINIMUM;
    if (!stored) memcpy(w->divide, w->scale, n * sizeof(float));
    if (!stored && minimum) memcpy(w->subtract, w->minimum, n * sizeof(float));

    float empty = rule->empty > 0.0f ? uniform_round_stored(rule->empty, a->scale_type, &saturated) : 0.0f;
    uint8_t *scales = extent + uniform_scale_at(&s->block, head);
    saturated += store_plane(w->scale, n, a->scale_type, empty, scales, w->low_key);
    memset(w->low_key, 0, n * sizeof *w->low_key);
    if (minimum) saturated += store_plane(w->minimum, n, a->offset_type, 0.0f, offsets, w->low_key);
    memset(w->zero, 0, n * sizeof(float));
    if (rule->offset == UNIFORM_OFFSET_ZERO) fit_zeros(a, w, n, offsets);

    if (stored) memcpy(w->divide, w->scale, n * sizeof(float));
    if (stored && minimum) memcpy(w->subtract, w->minimum, n * sizeof(float));
    if (!minimum) memset(w->subtract, 0, n * sizeof(float));
    for (size_t i = 0; i < n; i++) w->divide[i] = w->high_key[i] ? 0.0f : w->divide[i];
    set_quotients(a, w->divide, n);
    return saturated;
}

void KVANT_CPU(uniform_fix_planes)(const uniform_state *s, uniform_scratch *w, size_t n, uint32_t head) {
    bool minimum = s->arithmetic.rule.offset == UNIFORM_OFFSET_MINIMUM;
    memcpy(w->divide, uniform_fixed_scales(s, head), n * sizeof(float));
    memcpy(w->subtract, uniform_fixed_minima(s, head), n * sizeof(float));
    for (size_t i = 0; i < n; i++) w->subtract[i] = minimum ? w->subtract[i] : 0.0f;
    for (size_t i = 0; i < n; i++) w->zero[i] = 0.0f;
    set_quotients(&s->arithmetic, w->divide, n);
}
