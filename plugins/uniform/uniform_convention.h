/* The arithmetic of plain quantization: from the numbers of a group to its scale, its codes, and back.
 *
 * Projects that quantize "to int4, symmetric" agree on the words and differ in five places: what they take
 * for the range, what they divide it by, whether codes come from the stored scale or from the one before
 * rounding, whether they divide or multiply by a rounded reciprocal, and how a tie is rounded. A convention
 * is one bundle of answers; every bundle is a row of the table in uniform_convention.c, and nothing else in
 * this plugin knows a project's name.
 *
 * A group goes through these steps, in float, one IEEE operation at a time:
 *
 *     range     low, high of the group's elements                          rule.range
 *     span      high - low, at most FLT_MAX
 *     scale     span / divisor, rounded to the stored type, at its end     rule.divisor, rule.empty
 *               where it would overflow
 *     offset    none, the minimum (stored type), or an integer zero        rule.offset
 *     quotient  (x - minimum) / scale + zero, or times 1 / scale           rule.source, rule.quotient
 *     code      rounded and cut to the code range                          rule.rounding, rule.codes
 *     value     code * scale, code * scale + minimum, or                   rule.offset
 *               (code - zero) * scale
 *
 * Where the range is empty or the stored scale is 0, all codes are those of the quotient 0: no 0/0 ever
 * arises, and with a minimum the group comes back as its stored minimum.
 */
#ifndef KVANT_UNIFORM_CONVENTION_H
#define KVANT_UNIFORM_CONVENTION_H

#include "uniform_config.h"

#include <kvant/kit/e8m0.h>
#include <kvant/kit/sum.h>

enum uniform_convention {
    UNIFORM_KVANT,
    UNIFORM_RECIPROCAL,
    UNIFORM_COMPRESSED_TENSORS,
    UNIFORM_QUANTO,
    UNIFORM_GGUF
};

enum uniform_range {
    UNIFORM_RANGE_MAGNITUDE, /* 0 .. max|x| */
    UNIFORM_RANGE_MEAN,     /* 0 .. mean|x|, summed by kvant_sum in the order [token][head][channel] */
    UNIFORM_RANGE_SIGNED,   /* 0 .. the first x of largest |x|, with its sign */
    UNIFORM_RANGE_SPAN,     /* min x .. max x */
    UNIFORM_RANGE_SPAN_ZERO /* min(x, 0) .. max(x, 0) */
};
enum uniform_divisor {
    UNIFORM_BY_POSITIVE, /* 2^(b-1) - 1: 127, 7, 3, 1 */
    UNIFORM_BY_HALF,     /* (2^b - 1) / 2: 127.5, 7.5, 3.5, 1.5 */
    UNIFORM_BY_NEGATIVE, /* -2^(b-1) */
    UNIFORM_BY_ALL,      /* 2^b - 1 */
    UNIFORM_BY_LARGEST,  /* the largest number of the float format: 448, 57344 */
    UNIFORM_BY_ONE
};
enum uniform_codes {
    UNIFORM_CODES_BALANCED, /* -(2^(b-1) - 1) .. 2^(b-1) - 1 */
    UNIFORM_CODES_SIGNED,   /* -2^(b-1) .. 2^(b-1) - 1 */
    UNIFORM_CODES_UNSIGNED, /* 0 .. 2^b - 1 */
    UNIFORM_CODES_FLOAT,    /* the bytes of an 8-bit float */
    UNIFORM_CODES_SIGN      /* 1 for x >= 0 (-0 too), else 0; value +scale, -scale */
};
enum uniform_offset { UNIFORM_OFFSET_NONE, UNIFORM_OFFSET_MINIMUM, UNIFORM_OFFSET_ZERO };
enum uniform_source { UNIFORM_FROM_STORED, UNIFORM_FROM_EXACT };
enum uniform_quotient { UNIFORM_DIVIDE, UNIFORM_MULTIPLY };
enum uniform_rounding {
    UNIFORM_HALF_EVEN,
    UNIFORM_HALF_AWAY, /* C's roundf */
    UNIFORM_HALF_UP    /* truncates quotient + (2^(b-1) or 0) + 0.5 */
};

typedef struct uniform_rule {
    /* Where the row holds. */
    uint32_t convention;
    uint32_t symmetry;
    uint32_t formats; /* bits 1 << format */
    uint32_t
        only_scale; /* the one dtype of scales; 0 = F32, F16, BF16; KVANT_DTYPE_F8_E8M0 = those and E8M0 */
    uint32_t only_group; /* the one group of channels; 0 = every granularity */
    uint32_t fixed;      /* 1 = static scales are possible */
    /* What it says. */
    uint32_t range, divisor, codes, offset, source, quotient, rounding;
    float empty; /* stands for a stored scale of 0; 0 = none does */
} uniform_rule;

/* A rule with the numbers of one format. */
typedef struct uniform_arithmetic {
    uniform_rule rule;
    uint32_t format;
    uint32_t bits;
    uint32_t scale_type;  /* KVANT_DTYPE_* */
    uint32_t offset_type; /* of the minimum: that of the scale, BF16 beside E8M0; of the zero: I8 */
    int32_t bias;         /* stored code = code + bias */
    float divisor;
    float code_low, code_high;
    float clip_low, clip_high; /* a quotient below or above these leaves the code range even after rounding */
    float limit;               /* values come back within +-limit, the range of the rows' own dtype */
} uniform_arithmetic;

/* What quantizes one group: as stored, and as the quotient takes it. */
typedef struct uniform_quantizer {
    float scale, minimum, zero; /* as a decoder reads them */
    float subtract, divide, factor, add;
} uniform_quantizer;

/* Finds the row of a configuration. CONFLICT, naming the parameter to change, if there is none. */
kvant_status uniform_arithmetic_make(uniform_arithmetic *arithmetic, const uniform_config *config,
                                     uint32_t dtype, kvant_diag *diag);

/* A stored E8M0 scale. They are rounded up, so that no element is cut, and byte 0 stands for a scale of 0:
 * E8M0 itself has none, and 2^-127 is below anything that a scale has to say. */
static inline float uniform_e8m0_to_f32(uint8_t code) {
    return code == 0 ? 0.0f : kvant_e8m0_to_f32(code);
}

/* Rounds to a stored type, at its end where it would overflow: then *saturated grows. */
float uniform_round_stored(float x, uint32_t type, uint32_t *saturated);

/* The quantizer of a group with this range. Returns how many numbers saturated. */
uint32_t uniform_fit(const uniform_arithmetic *arithmetic, float low, float high,
                     uniform_quantizer *quantizer);

/* The quantizer of a stored scale and minimum. */
void uniform_quantizer_fixed(const uniform_arithmetic *arithmetic, float scale, float minimum,
                             uniform_quantizer *quantizer);

/* The stored code of an element; *clipped grows where it was cut to the code range. */
uint8_t uniform_code(const uniform_arithmetic *arithmetic, const uniform_quantizer *quantizer, float x,
                     uint64_t *clipped);

/* The value of a stored code. */
float uniform_value(const uniform_arithmetic *arithmetic, const uniform_quantizer *quantizer, uint8_t code);

/* The mean of magnitudes, which it destroys; room for kvant_sum_room(n). Where their sum could leave the
 * range of floats they are added 2^-32 times as large, which is exact but for what then vanishes beside
 * them. */
static inline float uniform_mean(float *magnitudes, uint32_t n) {
    float largest = 0.0f;
    for (uint32_t i = 0; i < n; i++) largest = magnitudes[i] > largest ? magnitudes[i] : largest;
    if (largest <= 0x1p96f) return kvant_sum(magnitudes, n) / (float)n;
    for (uint32_t i = 0; i < n; i++) magnitudes[i] *= 0x1p-32f;
    float mean = kvant_sum(magnitudes, n) / (float)n;
    return mean < largest * 0x1p-32f ? mean * 0x1p32f : largest;
}

#endif
