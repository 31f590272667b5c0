/* The table of conventions, and its meaning in scalar code: the norm that uniform_cpu_*.c must equal bit for
 * bit. */
#include "uniform_convention.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/e8m0.h>
#include <kvant/kit/float8.h>

#include <float.h>
#include <math.h>

#define BIT(format) (1u << UNIFORM_##format)
#define INTS        (BIT(INT8) | BIT(INT4) | BIT(INT3) | BIT(INT2))
#define FLOATS      (BIT(E4M3) | BIT(E5M2))

enum { F16 = KVANT_DTYPE_F16, ANY_TYPE = KVANT_DTYPE_F8_E8M0, IEEE_TYPE = 0, ANY_GROUP = 0, BLOCK_32 = 32 };
enum { DYNAMIC_ONLY = 0, STATIC_TOO = 1 };

#define SYM     UNIFORM_SYMMETRIC
#define ASYM    UNIFORM_ASYMMETRIC
#define EPSILON 0x1p-23f

/* Sources of the rows that are not ours: compressed-tensors 0.20 `calculate_qparams` and `quantize`;
 * optimum-quanto 0.2 `MaxOptimizer` with a float shift and `AbsmaxOptimizer`; llama.cpp
 * `quantize_row_q8_0_ref`, `_q4_0_ref`, `_q4_1_ref`.
 *
 *  convention  symmetry  formats              scales     groups     scaling
 *      range       divisor   codes     offset   source  quotient  rounding   empty
 */
#define ROW(convention, symmetry, formats, scales, groups, scaling, range, divisor, codes, offset, source,   \
            quotient, rounding, empty)                                                                       \
    {                                                                                                        \
        UNIFORM_##convention, symmetry, formats, scales, groups, scaling, UNIFORM_RANGE_##range,             \
            UNIFORM_BY_##divisor, UNIFORM_CODES_##codes, UNIFORM_OFFSET_##offset, UNIFORM_FROM_##source,     \
            UNIFORM_##quotient, UNIFORM_HALF_##rounding, empty                                               \
    }

static const uniform_rule table[] = {
    /* clang-format off */
    ROW(KVANT, SYM, INTS, ANY_TYPE, ANY_GROUP, STATIC_TOO,
        MAGNITUDE, POSITIVE, BALANCED, NONE, STORED, DIVIDE, EVEN, 0),
    ROW(KVANT, ASYM, INTS | BIT(INT1), ANY_TYPE, ANY_GROUP, STATIC_TOO,
        SPAN, ALL, UNSIGNED, MINIMUM, STORED, DIVIDE, EVEN, 0),
    ROW(KVANT, SYM, BIT(INT1), ANY_TYPE, ANY_GROUP, STATIC_TOO,
        MEAN, ONE, SIGN, NONE, STORED, DIVIDE, EVEN, 0),
    ROW(KVANT, SYM, FLOATS, ANY_TYPE, ANY_GROUP, STATIC_TOO,
        MAGNITUDE, LARGEST, FLOAT, NONE, STORED, DIVIDE, EVEN, 0),

    ROW(RECIPROCAL, SYM, INTS, ANY_TYPE, ANY_GROUP, STATIC_TOO,
        MAGNITUDE, POSITIVE, BALANCED, NONE, STORED, MULTIPLY, EVEN, 0),
    ROW(RECIPROCAL, ASYM, INTS | BIT(INT1), ANY_TYPE, ANY_GROUP, STATIC_TOO,
        SPAN, ALL, UNSIGNED, MINIMUM, STORED, MULTIPLY, EVEN, 0),
    ROW(RECIPROCAL, SYM, FLOATS, ANY_TYPE, ANY_GROUP, STATIC_TOO,
        MAGNITUDE, LARGEST, FLOAT, NONE, STORED, MULTIPLY, EVEN, 0),

    ROW(COMPRESSED_TENSORS, SYM, INTS, IEEE_TYPE, ANY_GROUP, STATIC_TOO,
        MAGNITUDE, HALF, SIGNED, NONE, STORED, DIVIDE, EVEN, EPSILON),
    ROW(COMPRESSED_TENSORS, ASYM, INTS, IEEE_TYPE, ANY_GROUP, DYNAMIC_ONLY,
        SPAN_ZERO, ALL, SIGNED, ZERO, STORED, DIVIDE, EVEN, EPSILON),
    ROW(COMPRESSED_TENSORS, SYM, FLOATS, IEEE_TYPE, ANY_GROUP, STATIC_TOO,
        MAGNITUDE, LARGEST, FLOAT, NONE, STORED, DIVIDE, EVEN, EPSILON),

    ROW(QUANTO, ASYM, INTS, IEEE_TYPE, ANY_GROUP, STATIC_TOO,
        SPAN, ALL, UNSIGNED, MINIMUM, STORED, DIVIDE, EVEN, 0),
    ROW(QUANTO, SYM, BIT(INT8), IEEE_TYPE, ANY_GROUP, STATIC_TOO,
        MAGNITUDE, POSITIVE, SIGNED, NONE, STORED, DIVIDE, EVEN, 0),

    ROW(GGUF, SYM, BIT(INT8), F16, BLOCK_32, DYNAMIC_ONLY,   /* Q8_0 */
        MAGNITUDE, POSITIVE, BALANCED, NONE, EXACT, MULTIPLY, AWAY, 0),
    ROW(GGUF, SYM, BIT(INT4), F16, BLOCK_32, DYNAMIC_ONLY,   /* Q4_0 */
        SIGNED, NEGATIVE, SIGNED, NONE, EXACT, MULTIPLY, UP, 0),
    ROW(GGUF, ASYM, BIT(INT4), F16, BLOCK_32, DYNAMIC_ONLY,  /* Q4_1 */
        SPAN, ALL, UNSIGNED, MINIMUM, EXACT, MULTIPLY, UP, 0),
    /* clang-format on */
};

/* ---- Finding a row ------------------------------------------------------------------------------------- */

static const char *type_word(uint32_t type) {
    switch (type) {
    case KVANT_DTYPE_F32:
        return "f32";
    case KVANT_DTYPE_F16:
        return "f16";
    case KVANT_DTYPE_BF16:
        return "bf16";
    default:
        return "e8m0";
    }
}

static const uniform_rule *find_rule(const uniform_config *config) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (table[i].convention == config->convention && table[i].symmetry == config->symmetry &&
            (table[i].formats >> config->format & 1u) != 0)
            return &table[i];
    return NULL;
}

static kvant_status check_rule(const uniform_rule *rule, const uniform_config *config, kvant_diag *diag) {
    const char *name = uniform_word(UNIFORM_PARAM_CONVENTION, config->convention);
    if (rule == NULL)
        return kvant_fail(diag, KVANT_ERROR_CONFLICT, "convention",
                          "convention = %s has no rule for format = %s, symmetry = %s; kvant has", name,
                          uniform_word(UNIFORM_PARAM_FORMAT, config->format),
                          uniform_word(UNIFORM_PARAM_SYMMETRY, config->symmetry));
    if (rule->only_scale == F16 && config->scale != KVANT_DTYPE_F16)
        return kvant_fail(diag, KVANT_ERROR_CONFLICT, "scale", "convention = %s stores f16 scales, not %s",
                          name, type_word(config->scale));
    if (rule->only_scale == IEEE_TYPE && config->scale == KVANT_DTYPE_F8_E8M0)
        return kvant_fail(diag, KVANT_ERROR_CONFLICT, "scale",
                          "convention = %s has no e8m0 scales: f32, f16 or bf16, or convention = kvant",
                          name);
    if (rule->only_group != 0 &&
        (config->granularity != UNIFORM_GROUP_CHANNELS || config->group != rule->only_group))
        return kvant_fail(
            diag, KVANT_ERROR_CONFLICT,
            config->granularity != UNIFORM_GROUP_CHANNELS ? "granularity" : "group",
            "convention = %s has blocks of 32 channels: granularity = group_channels, group = 32", name);
    if (config->scaling != UNIFORM_DYNAMIC && !rule->fixed)
        return kvant_fail(diag, KVANT_ERROR_CONFLICT, "scaling",
                          "convention = %s has only dynamic scales for format = %s, symmetry = %s", name,
                          uniform_word(UNIFORM_PARAM_FORMAT, config->format),
                          uniform_word(UNIFORM_PARAM_SYMMETRY, config->symmetry));
    return KVANT_OK;
}

static float divisor_of(uint32_t divisor, uint32_t format, uint32_t bits) {
    float half = (float)(1u << (bits - 1));
    switch (divisor) {
    case UNIFORM_BY_POSITIVE:
        return half - 1.0f;
    case UNIFORM_BY_HALF:
        return half - 0.5f;
    case UNIFORM_BY_NEGATIVE:
        return -half;
    case UNIFORM_BY_ALL:
        return 2.0f * half - 1.0f;
    case UNIFORM_BY_LARGEST:
        return format == UNIFORM_E4M3 ? 448.0f : 57344.0f;
    default:
        return 1.0f;
    }
}

/* The largest quotients that still round into the code range: ties go to the even side. */
static void clips(uniform_arithmetic *a) {
    if (a->rule.codes == UNIFORM_CODES_FLOAT) {
        a->clip_high =
            a->format == UNIFORM_E4M3 ? 464.0f : 0x1.dffffep15f; /* 464 rounds to 448, 61440 to infinity */
        a->clip_low = -a->clip_high;
    } else if (a->rule.codes == UNIFORM_CODES_SIGN) {
        a->clip_high = INFINITY;
        a->clip_low = -INFINITY;
    } else {
        /* The highest code is odd: a tie leaves the range. The lowest is odd only in the balanced range. */
        uint32_t below = kvant_float_bits(a->code_high + 0.5f) - 1;
        a->clip_high = kvant_bits_float(below);
        a->clip_low = a->rule.codes == UNIFORM_CODES_BALANCED ? -a->clip_high : a->code_low - 0.5f;
    }
}

kvant_status uniform_arithmetic_make(uniform_arithmetic *a, const uniform_config *config, uint32_t dtype,
                                     kvant_diag *diag) {
    const uniform_rule *rule = find_rule(config);
    kvant_status status = check_rule(rule, config, diag);
    if (status != KVANT_OK) return status;
    uint32_t bits = uniform_format_bits(config->format);
    float half = (float)(1u << (bits - 1));
    *a = (uniform_arithmetic){
        .rule = *rule, .format = config->format, .bits = bits, .scale_type = config->scale};
    a->offset_type = rule->offset == UNIFORM_OFFSET_ZERO    ? KVANT_DTYPE_I8
                     : config->scale == KVANT_DTYPE_F8_E8M0 ? KVANT_DTYPE_BF16
                                                            : config->scale;
    a->divisor = divisor_of(rule->divisor, config->format, bits);
    switch (rule->codes) {
    case UNIFORM_CODES_BALANCED:
        a->code_low = 1.0f - half;
        a->code_high = half - 1.0f;
        a->bias = 1 << (bits - 1);
        break;
    case UNIFORM_CODES_SIGNED:
        a->code_low = -half;
        a->code_high = half - 1.0f;
        a->bias = 1 << (bits - 1);
        break;
    case UNIFORM_CODES_UNSIGNED:
        a->code_high = 2.0f * half - 1.0f;
        break;
    default:
        break;
    }
    clips(a);
    a->limit = dtype == KVANT_DTYPE_F16 ? 65504.0f : dtype == KVANT_DTYPE_BF16 ? 0x1.fep127f : FLT_MAX;
    return KVANT_OK;
}

/* ---- Scale and offset ---------------------------------------------------------------------------------- */

float uniform_round_stored(float x, uint32_t type, uint32_t *saturated) {
    float limit = type == KVANT_DTYPE_F16 ? 65504.0f : type == KVANT_DTYPE_BF16 ? 0x1.fep127f : FLT_MAX;
    float rounded = x;
    if (type == KVANT_DTYPE_F16) rounded = kvant_round_f16(x);
    if (type == KVANT_DTYPE_BF16) rounded = kvant_round_bf16(x);
    if (type == KVANT_DTYPE_F8_E8M0) {
        *saturated += x > 0x1p127f;
        return uniform_e8m0_to_f32(kvant_f32_to_e8m0_up(x));
    }
    if (rounded > limit || rounded < -limit) {
        *saturated += 1;
        rounded = rounded > 0 ? limit : -limit;
    }
    return rounded;
}

static void set_quotient(const uniform_arithmetic *a, float scale, float minimum, bool flat,
                         uniform_quantizer *q) {
    bool none = flat || scale == 0.0f;
    float factor = 1.0f / scale;
    factor = factor > FLT_MAX ? FLT_MAX : factor < -FLT_MAX ? -FLT_MAX : factor;
    q->divide = none ? INFINITY : scale;
    q->factor = none ? 0.0f : factor;
    q->subtract = a->rule.offset == UNIFORM_OFFSET_MINIMUM ? minimum : 0.0f;
    q->add = q->zero;
}

/* To the nearest integer, ties to even, for |x| below 2^22: the sum has no room for a fraction. */
static float round_half_even(float x) {
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

/* NaN, which only hostile static minima can cause, becomes low. */
static float clamp(float x, float low, float high) {
    return x > low ? (x < high ? x : high) : low;
}

uint32_t uniform_fit(const uniform_arithmetic *a, float low, float high, uniform_quantizer *q) {
    uint32_t wide = 0, low_end = 0;
    float span = high - low;
    if (span > FLT_MAX) {
        span = FLT_MAX;
        wide = 1;
    }
    float exact = span / a->divisor;
    q->scale = uniform_round_stored(exact, a->scale_type, &wide);
    if (q->scale == 0.0f && a->rule.empty > 0.0f)
        q->scale = uniform_round_stored(a->rule.empty, a->scale_type, &wide);
    q->minimum =
        a->rule.offset == UNIFORM_OFFSET_MINIMUM ? uniform_round_stored(low, a->offset_type, &low_end) : 0.0f;
    q->zero = 0.0f;
    if (a->rule.offset == UNIFORM_OFFSET_ZERO && high > low)
        q->zero = round_half_even(clamp(a->code_low - low / q->scale, a->code_low, a->code_high));
    if (a->rule.source == UNIFORM_FROM_STORED)
        set_quotient(a, q->scale, q->minimum, high == low, q);
    else
        set_quotient(a, exact, low, high == low, q);
    return (wide > 0 ? 1u : 0u) + low_end;
}

void uniform_quantizer_fixed(const uniform_arithmetic *a, float scale, float minimum, uniform_quantizer *q) {
    q->scale = scale;
    q->minimum = minimum;
    q->zero = 0.0f;
    set_quotient(a, scale, minimum, false, q);
}

/* ---- Codes and values ---------------------------------------------------------------------------------- */

/* C's roundf: ties away from zero. For |x| below 2^22. */
static float round_half_away(float x) {
    float whole = (float)(int32_t)x;
    float rest = x - whole; /* exact */
    return rest >= 0.5f ? whole + 1.0f : rest <= -0.5f ? whole - 1.0f : whole;
}

uint8_t uniform_code(const uniform_arithmetic *a, const uniform_quantizer *q, float x, uint64_t *clipped) {
    if (a->rule.codes == UNIFORM_CODES_SIGN) return x >= 0.0f ? 1 : 0;
    float y = x - q->subtract;
    y = a->rule.quotient == UNIFORM_DIVIDE ? y / q->divide : y * q->factor;
    if (a->rule.codes == UNIFORM_CODES_FLOAT) {
        *clipped += y > a->clip_high || y < a->clip_low;
        return a->format == UNIFORM_E4M3 ? kvant_f32_to_e4m3(y) : kvant_f32_to_e5m2(y);
    }
    y = y + q->add;
    *clipped += y > a->clip_high || y < a->clip_low;
    if (a->rule.rounding == UNIFORM_HALF_UP) {
        float shifted = y + ((float)a->bias + 0.5f);
        return (uint8_t)(int32_t)clamp(shifted, 0.0f, a->code_high + (float)a->bias);
    }
    y = clamp(y, a->code_low, a->code_high);
    y = a->rule.rounding == UNIFORM_HALF_EVEN ? round_half_even(y) : round_half_away(y);
    return (uint8_t)((int32_t)y + a->bias);
}

float uniform_value(const uniform_arithmetic *a, const uniform_quantizer *q, uint8_t code) {
    float value;
    if (a->rule.codes == UNIFORM_CODES_SIGN)
        value = code != 0 ? q->scale : -q->scale;
    else if (a->rule.codes == UNIFORM_CODES_FLOAT)
        value = (a->format == UNIFORM_E4M3 ? kvant_e4m3_to_f32(code) : kvant_e5m2_to_f32(code)) * q->scale;
    else if (a->rule.offset == UNIFORM_OFFSET_MINIMUM)
        value = (float)code * q->scale + q->minimum;
    else
        value = ((float)((int32_t)code - a->bias) - q->zero) * q->scale;
    /* A product may end just past the range of the rows' dtype, where rounding to it would give infinity. */
    return value < a->limit ? (value > -a->limit ? value : -a->limit) : a->limit;
}
