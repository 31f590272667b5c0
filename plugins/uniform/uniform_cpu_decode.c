/* Decode, one head at a time. See uniform_cpu.h. */
#include "uniform_cpu.h"

#include <kvant/kit/float8.h>

/* ---- Values -------------------------------------------------------------------------------------------- */

/* Two statements, two instructions; NaN becomes limit. */
static inline float limited(float value, float limit) {
    float y = value < limit ? value : limit;
    return y > -limit ? y : -limit;
}

/* (code - bias) - zero is exact, and so is code - (bias + zero): `offset` is the sum. */
static inline float value_integer(uint8_t code, float scale, float offset) {
    return ((float)code - offset) * scale;
}

static inline float value_minimum(uint8_t code, float scale, float offset) {
    return (float)code * scale + offset;
}

static inline float value_sign(uint8_t code, float scale, float offset) {
    (void)offset;
    return code != 0 ? scale : -scale;
}

static inline float value_e4m3(uint8_t code, float scale, float offset) {
    (void)offset;
    return kvant_e4m3_to_f32(code) * scale;
}

static inline float value_e5m2(uint8_t code, float scale, float offset) {
    (void)offset;
    return kvant_e5m2_to_f32(code) * scale;
}

/* As for codes, and a pair for scales that keep every code within the limit. */
#define VALUE_LOOPS(name)                                                                                    \
    static void name##_one(float limit, const uint8_t *restrict codes, size_t n,                             \
                           const float *restrict scale, const float *restrict offset, float *restrict x) {   \
        const float s = *scale, o = *offset;                                                                 \
        for (size_t i = 0; i < n; i++) x[i] = limited(name(codes[i], s, o), limit);                          \
    }                                                                                                        \
    static void name##_each(float limit, const uint8_t *restrict codes, size_t n,                            \
                            const float *restrict scale, const float *restrict offset, float *restrict x) {  \
        for (size_t i = 0; i < n; i++) x[i] = limited(name(codes[i], scale[i], offset[i]), limit);           \
    }

#define TAME_LOOPS(name)                                                                                     \
    static void name##_tame_one(float limit, const uint8_t *restrict codes, size_t n,                        \
                                const float *restrict scale, const float *restrict offset,                   \
                                float *restrict x) {                                                         \
        const float s = *scale, o = *offset;                                                                 \
        (void)limit;                                                                                         \
        for (size_t i = 0; i < n; i++) x[i] = name(codes[i], s, o);                                          \
    }                                                                                                        \
    static void name##_tame_each(float limit, const uint8_t *restrict codes, size_t n,                       \
                                 const float *restrict scale, const float *restrict offset,                  \
                                 float *restrict x) {                                                        \
        (void)limit;                                                                                         \
        for (size_t i = 0; i < n; i++) x[i] = name(codes[i], scale[i], offset[i]);                           \
    }

VALUE_LOOPS(value_integer)
VALUE_LOOPS(value_minimum)
VALUE_LOOPS(value_sign)
VALUE_LOOPS(value_e4m3)
VALUE_LOOPS(value_e5m2)
TAME_LOOPS(value_integer)
TAME_LOOPS(value_minimum)

/* Without the look for infinities and NaN. */
static inline float value_e4m3_finite(uint8_t code, float scale, float offset) {
    (void)offset;
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, magnitude = code & 0x7fu;
    uint32_t subnormal = kvant_float_bits(kvant_bits_float((magnitude << 20) + 0x3c800000u) - 0x1p-6f);
    return kvant_bits_float(sign | (magnitude < 8u ? subnormal : (magnitude << 20) + 0x3c000000u)) * scale;
}

static inline float value_e5m2_finite(uint8_t code, float scale, float offset) {
    (void)offset;
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, magnitude = code & 0x7fu;
    uint32_t subnormal = kvant_float_bits(kvant_bits_float((magnitude << 21) + 0x38800000u) - 0x1p-14f);
    return kvant_bits_float(sign | (magnitude < 4u ? subnormal : (magnitude << 21) + 0x38000000u)) * scale;
}

TAME_LOOPS(value_e4m3_finite)
TAME_LOOPS(value_e5m2_finite)

typedef void value_loop(float, const uint8_t *, size_t, const float *, const float *, float *);

static value_loop *choose_values(const uniform_arithmetic *a, bool each, bool tame) {
#define CHOOSE(name) return each ? name##_each : name##_one
    if (a->rule.codes == UNIFORM_CODES_SIGN) CHOOSE(value_sign);
    if (a->format == UNIFORM_E4M3 && tame) CHOOSE(value_e4m3_finite_tame);
    if (a->format == UNIFORM_E5M2 && tame) CHOOSE(value_e5m2_finite_tame);
    if (a->format == UNIFORM_E4M3) CHOOSE(value_e4m3);
    if (a->format == UNIFORM_E5M2) CHOOSE(value_e5m2);
    if (a->rule.offset == UNIFORM_OFFSET_MINIMUM && tame) CHOOSE(value_minimum_tame);
    if (a->rule.offset == UNIFORM_OFFSET_MINIMUM) CHOOSE(value_minimum);
    if (tame) CHOOSE(value_integer_tame);
    CHOOSE(value_integer);
#undef CHOOSE
}

/* True if no code of these groups can leave the limit. */
static bool are_tame(const uniform_arithmetic *a, const float *scale, const float *offset, size_t n) {
    uint32_t wild = 0;
    float largest = a->rule.codes == UNIFORM_CODES_FLOAT ? a->divisor : 512.0f; /* of a code and its zero */
    bool minimum = a->rule.offset == UNIFORM_OFFSET_MINIMUM;
    for (size_t i = 0; i < n; i++) {
        float reach = kvant_bits_float(kvant_float_bits(scale[i]) & 0x7fffffffu) * largest;
        float shift = minimum ? kvant_bits_float(kvant_float_bits(offset[i]) & 0x7fffffffu) : 0.0f;
        wild += reach + shift < a->limit ? 0 : 1; /* NaN is wild */
    }
    return wild == 0;
}

/* True if all are bytes of finite numbers. */
static bool are_finite(const uint8_t *codes, size_t n, uint8_t largest) {
    uint8_t wild = 0;
    for (size_t i = 0; i < n; i++) wild |= (uint8_t)((codes[i] & 0x7fu) > largest);
    return wild == 0;
}

/* ---- Decode -------------------------------------------------------------------------------------------- */

/* The codes of tokens [first, end), at their place in the tile. May unpack their neighbours in the same
 * line. */
static void unpack_tile(const uniform_block *b, uniform_scratch *w, const uint8_t *head, uint32_t first,
                        uint32_t end) {
    bool key = b->side == KVANT_SIDE_KEY;
    size_t free_stride = key ? w->row : 1, summed_stride = key ? 1 : w->row;
    uint32_t bits = b->bits == 3 ? 2 : b->bits;
    for (uint32_t t = first; t < end;) {
        uniform_matrix m = uniform_matrix_of(b, t);
        uint32_t from = key ? first / 16 * 16 : m.first_token; /* of the tile */
        uint32_t free_count = key ? end - from : m.free_count;
        size_t line =
            key ? from / 16 * 64 : 0; /* of one word; a key's lines of 16 tokens lie one after another */
        const uint8_t *low = head + m.offset,
                      *high = low + kvant_planar_bytes(m.free_count, m.summed_count, 2);
        kvant_planar_unpack(low + line * kvant_planar_words(m.summed_count, bits), free_count, m.summed_count,
                            bits, w->codes + from * w->row, free_stride, summed_stride);
        if (b->bits == 3)
            kvant_planar_unpack(high + line * kvant_planar_words(m.summed_count, 1), free_count,
                                m.summed_count, 1, w->high + from * w->row, free_stride, summed_stride);
        t = m.first_token + m.tokens;
    }
    if (b->bits == 3)
        for (size_t i = first * w->row; i < end * w->row; i++)
            w->codes[i] = (uint8_t)(w->codes[i] | w->high[i] << 2);
}

static void load_plane(const uint8_t *plane, size_t n, uint32_t type, float *x) {
    uint16_t half;
    if (type == KVANT_DTYPE_F32) memcpy(x, plane, n * sizeof *x);
    if (type == KVANT_DTYPE_F16)
        for (size_t i = 0; i < n; i++) {
            memcpy(&half, plane + i * sizeof half, sizeof half);
            x[i] = kvant_f16_to_f32(half);
        }
    if (type == KVANT_DTYPE_BF16)
        for (size_t i = 0; i < n; i++) {
            memcpy(&half, plane + i * sizeof half, sizeof half);
            x[i] = kvant_bf16_to_f32(half);
        }
    if (type == KVANT_DTYPE_F8_E8M0)
        for (size_t i = 0; i < n; i++) x[i] = uniform_e8m0_to_f32(plane[i]);
    if (type == KVANT_DTYPE_I8)
        for (size_t i = 0; i < n; i++) x[i] = (float)(int8_t)plane[i];
}
/* Scales and offsets of one head, the offset of an integer code with its bias in it. */
static void load_planes(const uniform_state *s, uniform_scratch *w, const uint8_t *extent, uint32_t head) {
    const uniform_block *b = &s->block;
    const uniform_arithmetic *a = &s->arithmetic;
    size_t n = b->groups;
    if (s->fixed) {
        memcpy(w->scale, uniform_fixed_scales(s, head), n * sizeof(float));
        memcpy(w->minimum, uniform_fixed_minima(s, head), n * sizeof(float));
    } else {
        load_plane(extent + uniform_scale_at(b, head), n, a->scale_type, w->scale);
        if (b->offset_bytes > 0)
            load_plane(extent + uniform_offset_at(b, head), n, a->offset_type, w->minimum);
    }
    if (a->rule.offset == UNIFORM_OFFSET_MINIMUM) return;
    float bias = (float)a->bias;
    if (a->rule.offset == UNIFORM_OFFSET_NONE)
        for (size_t i = 0; i < n; i++) w->minimum[i] = bias;
    else
        for (size_t i = 0; i < n; i++) w->minimum[i] += bias;
}

static void prefetch_to_write(const char *row, size_t bytes) {
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i, 1);
}

/* Where the values of a row may be written: in place, if it is dense and aligned. */
static float *row_of(const kvant_mutable_view *rows, uint32_t token, uint32_t head, float *spare) {
    char *address = kvant_mutable_view_at(rows, token, head);
    bool direct = rows->dtype == KVANT_DTYPE_F32 && rows->channel_stride == sizeof(float) &&
                  (uintptr_t)address % sizeof(float) == 0;
    return direct ? (float *)(void *)address : spare;
}

kvant_status KVANT_CPU(uniform_decode)(const void *state, const kvant_decode_args *args) {
    const uniform_state *s = state;
    const uniform_block *b = &s->block;
    const uniform_arithmetic *a = &s->arithmetic;
    uniform_scratch w = uniform_scratch_cut(b, a->rule.range == UNIFORM_RANGE_MEAN, args->scratch);
    bool columns = b->granularity == UNIFORM_CHANNEL || b->granularity == UNIFORM_GROUP_TOKENS;
    bool rows = b->granularity == UNIFORM_TOKEN || b->granularity == UNIFORM_GROUP_CHANNELS;
    size_t width = rows ? b->group : b->head_dim;
    const uint8_t *extent = args->extent->bytes;
    uint32_t first = args->first_token, end = first + args->rows->tokens;
    size_t row_bytes = (size_t)b->head_dim * kvant_element_bytes(args->rows->dtype);
    for (uint32_t h = 0; h < args->rows->heads; h++) {
        uint32_t head = args->first_head + h;
        load_planes(s, &w, extent, head);
        unpack_tile(b, &w, extent + head * b->head_bytes, first, end);
        bool tame = are_tame(a, w.scale, w.minimum, b->groups);
        if (a->rule.codes == UNIFORM_CODES_FLOAT && tame)
            for (size_t t = first; t < end && tame; t++)
                tame = are_finite(w.codes + t * w.row, b->head_dim, a->format == UNIFORM_E4M3 ? 0x7e : 0x7b);
        value_loop *loop = choose_values(a, columns, tame);
        for (uint32_t i = 0; i < args->rows->tokens; i++) {
            uint32_t t = args->first_token + i;
            size_t at = rows ? t : columns ? t / b->group * b->head_dim : 0;
            float *x = row_of(args->rows, i, h, w.tile);
            if (i + UNIFORM_AHEAD < args->rows->tokens)
                prefetch_to_write(kvant_mutable_view_at(args->rows, i + UNIFORM_AHEAD, h), row_bytes);
            for (size_t c = 0; c < b->head_dim; c += width, at += b->tokens) {
                size_t n = b->head_dim - c < width ? b->head_dim - c : width;
                loop(a->limit, w.codes + t * w.row + c, n, w.scale + at, w.minimum + at, x + c);
            }
            if (x == w.tile) kvant_store_row(args->rows, i, h, x);
        }
    }
    return KVANT_OK;
}
