/* Encode, one head at a time. See uniform_cpu.h. */
#include "uniform_cpu.h"

#include <kvant/kit/float8.h>

/* ---- Codes --------------------------------------------------------------------------------------------- */

/* The numbers that a kernel needs, in registers. */
typedef struct constants {
    float low, high, up;
    int32_t bias;
} constants;

static inline uint8_t even(const constants *k, float y) {
    y = uniform_clamp(y, k->low, k->high) + 0x1.8p23f; /* the integer stands in the low bits */
    return (uint8_t)((int32_t)kvant_float_bits(y) + k->bias);
}

static inline uint8_t code_divide(const constants *k, float x, float subtract, float divide, float add) {
    return even(k, (x - subtract) / divide + add);
}

static inline uint8_t code_multiply(const constants *k, float x, float subtract, float factor, float add) {
    return even(k, (x - subtract) * factor + add);
}

static inline uint8_t code_away(const constants *k, float x, float subtract, float factor, float add) {
    (void)subtract, (void)add;
    float y = uniform_clamp(x * factor, k->low, k->high);
    int32_t whole = (int32_t)y;
    float rest = y - (float)whole;
    return (uint8_t)(whole + (rest >= 0.5f) - (rest <= -0.5f) + k->bias);
}

static inline uint8_t code_up(const constants *k, float x, float subtract, float factor, float add) {
    (void)add;
    float y = (x - subtract) * factor;
    return (uint8_t)(int32_t)uniform_clamp(y + k->up, 0.0f, k->high);
}

static inline uint8_t code_sign(const constants *k, float x, float subtract, float divide, float add) {
    (void)k, (void)subtract, (void)divide, (void)add;
    return x >= 0.0f;
}

static inline uint8_t code_e4m3(const constants *k, float x, float subtract, float divide, float add) {
    (void)k, (void)subtract, (void)add;
    return kvant_f32_to_e4m3(x / divide);
}

static inline uint8_t code_e4m3_multiply(const constants *k, float x, float subtract, float factor,
                                         float add) {
    (void)k, (void)subtract, (void)add;
    return kvant_f32_to_e4m3(x * factor);
}

static inline uint8_t code_e5m2(const constants *k, float x, float subtract, float divide, float add) {
    (void)k, (void)subtract, (void)add;
    return kvant_f32_to_e5m2(x / divide);
}

static inline uint8_t code_e5m2_multiply(const constants *k, float x, float subtract, float factor,
                                         float add) {
    (void)k, (void)subtract, (void)add;
    return kvant_f32_to_e5m2(x * factor);
}

/* Two loops for each: n elements of one group, and n elements of a group each. */
#define CODE_LOOPS(name)                                                                                     \
    static void name##_one(const constants *constant, const float *restrict x, size_t n,                     \
                           const float *restrict subtract, const float *restrict divide,                     \
                           const float *restrict add, uint8_t *restrict codes) {                             \
        const constants k = *constant;                                                                       \
        const float s = *subtract, d = *divide, z = *add;                                                    \
        for (size_t i = 0; i < n; i++) codes[i] = name(&k, x[i], s, d, z);                                   \
    }                                                                                                        \
    static void name##_each(const constants *constant, const float *restrict x, size_t n,                    \
                            const float *restrict subtract, const float *restrict divide,                    \
                            const float *restrict add, uint8_t *restrict codes) {                            \
        const constants k = *constant;                                                                       \
        for (size_t i = 0; i < n; i++) codes[i] = name(&k, x[i], subtract[i], divide[i], add[i]);            \
    }

CODE_LOOPS(code_divide)
CODE_LOOPS(code_multiply)
CODE_LOOPS(code_away)
CODE_LOOPS(code_up)
CODE_LOOPS(code_sign)
CODE_LOOPS(code_e4m3)
CODE_LOOPS(code_e4m3_multiply)
CODE_LOOPS(code_e5m2)
CODE_LOOPS(code_e5m2_multiply)

typedef void code_loop(const constants *, const float *, size_t, const float *, const float *, const float *,
                       uint8_t *);
typedef struct code_kernel {
    code_loop *one, *each;
    constants k;
} code_kernel;

static code_kernel choose_codes(const uniform_arithmetic *a) {
    bool multiply = a->rule.quotient == UNIFORM_MULTIPLY;
    code_kernel c = {.k = {a->code_low, a->code_high, (float)a->bias + 0.5f, a->bias}};
#define CHOOSE(name) return c.one = name##_one, c.each = name##_each, c
    if (a->rule.codes == UNIFORM_CODES_SIGN) CHOOSE(code_sign);
    if (a->rule.codes == UNIFORM_CODES_FLOAT && a->format == UNIFORM_E4M3 && multiply)
        CHOOSE(code_e4m3_multiply);
    if (a->rule.codes == UNIFORM_CODES_FLOAT && a->format == UNIFORM_E4M3) CHOOSE(code_e4m3);
    if (a->rule.codes == UNIFORM_CODES_FLOAT && multiply) CHOOSE(code_e5m2_multiply);
    if (a->rule.codes == UNIFORM_CODES_FLOAT) CHOOSE(code_e5m2);
    if (a->rule.rounding == UNIFORM_HALF_UP) {
        c.k.high += (float)a->bias;
        CHOOSE(code_up);
    }
    if (a->rule.rounding == UNIFORM_HALF_AWAY) CHOOSE(code_away);
    if (multiply) CHOOSE(code_multiply);
    CHOOSE(code_divide);
#undef CHOOSE
}

static inline uint32_t is_clipped(const uniform_arithmetic *a, float x, float subtract, float divide) {
    float y = x - subtract;
    y = a->rule.quotient == UNIFORM_MULTIPLY ? y * divide : y / divide;
    return y > a->clip_high || y < a->clip_low ? 1 : 0;
}

/* How many quotients leave the code range: only static scales ask. step 0: all elements have one group, and
 * since a quotient grows with its element, the extremes tell whether there is anything to count. */
static uint64_t count_clipped(const uniform_arithmetic *a, const float *x, size_t n, const float *subtract,
                              const float *divide, size_t step) {
    uint64_t clipped = 0;
    if (a->rule.codes == UNIFORM_CODES_SIGN) return 0;
    if (step == 0) {
        int32_t low = INT32_MAX, high = INT32_MIN;
        KVANT_CPU(uniform_widen)(false, x, n, &low, &high);
        if (!is_clipped(a, uniform_float_of(low), *subtract, *divide) &&
            !is_clipped(a, uniform_float_of(high), *subtract, *divide))
            return 0;
    }
    for (size_t i = 0; i < n; i++) clipped += is_clipped(a, x[i], subtract[i * step], divide[i * step]);
    return clipped;
}

/* The tile's codes. Returns how many elements were cut. */
static uint64_t code_tile(const uniform_state *s, uniform_scratch *w) {
    const uniform_block *b = &s->block;
    code_kernel kernel = choose_codes(&s->arithmetic);
    bool columns = b->granularity == UNIFORM_CHANNEL || b->granularity == UNIFORM_GROUP_TOKENS;
    bool rows = b->granularity == UNIFORM_TOKEN || b->granularity == UNIFORM_GROUP_CHANNELS;
    size_t width = rows ? b->group : b->head_dim; /* channels of a loop */
    uint64_t clipped = 0;
    for (uint32_t t = 0; t < b->tokens; t++) {
        const float *x = w->tile + t * w->row;
        uint8_t *codes = w->codes + t * w->row;
        size_t at = rows ? t : columns ? t / b->group * b->head_dim : 0;
        for (size_t c = 0; c < b->head_dim; c += width, at += b->tokens) {
            size_t n = b->head_dim - c < width ? b->head_dim - c : width;
            (columns ? kernel.each : kernel.one)(&kernel.k, x + c, n, w->subtract + at, w->divide + at,
                                                 w->zero + at, codes + c);
            if (s->fixed)
                clipped += count_clipped(&s->arithmetic, x + c, n, w->subtract + at, w->divide + at,
                                         columns ? 1 : 0);
        }
    }
    return clipped;
}

/* ---- Encode -------------------------------------------------------------------------------------------- */

static void prefetch(const char *row, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 0);
}

/* One head of the block. */
static void load_tile(const kvant_view *rows, uint32_t head, float *tile, size_t stride) {
    size_t bytes = (size_t)rows->head_dim * kvant_element_bytes(rows->dtype);
    for (uint32_t t = 0; t < rows->tokens; t++) {
        if (t + UNIFORM_AHEAD < rows->tokens) prefetch(kvant_view_at(rows, t + UNIFORM_AHEAD, head), bytes);
        kvant_load_row(rows, t, head, tile + t * stride);
    }
}

static void pack_tile(const uniform_block *b, uniform_scratch *w, uint8_t *head) {
    bool key = b->side == KVANT_SIDE_KEY;
    size_t free_stride = key ? w->row : 1, summed_stride = key ? 1 : w->row;
    if (b->bits == 3)
        for (size_t i = 0; i < b->tokens * w->row; i++) {
            w->high[i] = w->codes[i] >> 2 & 1;
            w->codes[i] &= 3;
        }
    for (uint32_t t = 0; t < b->tokens;) {
        uniform_matrix m = uniform_matrix_of(b, t);
        uint32_t bits = b->bits == 3 ? 2 : b->bits;
        kvant_planar_pack(head + m.offset, m.free_count, m.summed_count, bits, w->codes + t * w->row,
                          free_stride, summed_stride);
        if (b->bits == 3)
            kvant_planar_pack(head + m.offset + kvant_planar_bytes(m.free_count, m.summed_count, 2),
                              m.free_count, m.summed_count, 1, w->high + t * w->row, free_stride,
                              summed_stride);
        t += m.tokens;
    }
}

kvant_status KVANT_CPU(uniform_encode)(const void *state, kvant_encode_args *args) {
    const uniform_state *s = state;
    const uniform_block *b = &s->block;
    uniform_scratch w = uniform_scratch_cut(b, s->arithmetic.rule.range == UNIFORM_RANGE_MEAN, args->scratch);
    uint8_t *extent = args->extent;
    uint64_t saturated = 0;
    bool tensor = b->granularity == UNIFORM_TENSOR;
    if (tensor && !s->fixed) {
        memset(extent + b->scale_offset, 0, UNIFORM_TAIL_BYTES);
        KVANT_CPU(uniform_range_heads)(s, &w, args->rows, 0, b->heads);
        saturated += KVANT_CPU(uniform_fit_planes)(s, &w, 1, extent, 0);
    }
    for (uint32_t h = 0; h < b->heads; h++) {
        uint8_t *head = extent + h * b->head_bytes;
        if (!tensor) memset(head + b->code_bytes, 0, b->head_bytes - b->code_bytes);
        if (b->granularity == UNIFORM_HEAD && !s->fixed)
            KVANT_CPU(uniform_range_heads)(s, &w, args->rows, h, 1);
        load_tile(args->rows, h, w.tile, w.row);
        if (s->fixed) {
            KVANT_CPU(uniform_fix_planes)(s, &w, b->groups, h);
        } else if (!tensor) {
            if (b->granularity != UNIFORM_HEAD) KVANT_CPU(uniform_range_tile)(s, &w);
            saturated += KVANT_CPU(uniform_fit_planes)(s, &w, b->groups, extent, h);
        }
        saturated += code_tile(s, &w);
        pack_tile(b, &w, head);
    }
    args->size = b->bytes;
    args->saturated = saturated;
    return KVANT_OK;
}
