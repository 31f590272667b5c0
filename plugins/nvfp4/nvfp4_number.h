/* The arithmetic of one block: the norm. Straight lines of float and integer operations and selects, so that
 * loops around them vectorise; the reference calls the same functions one number at a time.
 *
 *     amax      largest magnitude of the block; NaN does not count
 *
 *     nvfp4     scale  = E4M3(amax / (6 g))                       to nearest even, at most 448
 *               factor = 1 / (scale g), 0 where scale is 0
 *     nvfp4, four over six, for h = (amax / 6) G and for h = 1.5 (amax / 6) G:
 *               scale  = E4M3(min(h, 448))
 *               factor = min(1 / (scale g), largest float), 0 where amax is 0
 *               error  = sum over channels in order of |x^ - x| or (x^ - x)^2
 *               the second one wins where its error is smaller
 *     mxfp4     scale  = 2^(b-127), b by one of four rules
 *               factor = 2^(127-b)
 *
 *     code      = E2M1(x factor)                                  to nearest even, at most 6; NaN -> 0
 *     x^        = (E2M1 value * scale) * g                        in this order; g = 1 for mxfp4
 *
 * g and G: nvfp4_config.h.
 */
#ifndef KVANT_NVFP4_NUMBER_H
#define KVANT_NVFP4_NUMBER_H

#include "nvfp4_config.h"

#include <kvant/kit/e8m0.h>
#include <kvant/kit/float4.h>
#include <kvant/kit/float8.h>

#define NVFP4_FLOAT_MAX 0x1.fffffep127f

/* The bits of |x|, in an integer, as magnitudes compare like those; NaN is nothing. */
static inline int32_t nvfp4_magnitude(float x) {
    int32_t bits = (int32_t)(kvant_float_bits(x) & 0x7fffffffu);
    return bits > 0x7f800000 ? 0 : bits;
}

/* ---- Scales -------------------------------------------------------------------------------------------- */

/* A scale that has no sign, infinity included. */
static inline float nvfp4_scale_six(float amax, float g) {
    return amax / (6.0f * g);
}

/* What lies above the last tie of E4M3 leaves its range. */
static inline uint32_t nvfp4_scale_overflows(float scale) {
    return scale > 464.0f;
}

static inline float nvfp4_factor_six(float scale, float g) {
    float factor = 1.0f / (scale * g);
    return scale > 0.0f ? factor : 0.0f;
}

static inline float nvfp4_at_most(float x, float limit) {
    return x < limit ? x : limit;
}

static inline float nvfp4_factor_four_over_six(float amax, float scale, float g) {
    float factor = nvfp4_at_most(1.0f / (scale * g), NVFP4_FLOAT_MAX);
    return amax > 0.0f ? factor : 0.0f;
}

/* The biased exponent b of mxfp4. */
static inline int32_t nvfp4_exponent(uint32_t rule, float amax) {
    int32_t bits = (int32_t)kvant_float_bits(amax), exponent;
    switch (rule) { /* a constant in every loop */
    case NVFP4_EXPONENT_RCEIL:
        return kvant_f32_to_e8m0_up(amax / 6.0f);
    case NVFP4_EXPONENT_EVEN: /* up where the fraction is 1.75 and more */
        exponent = (bits + 0x200000) >> 23;
        break;
    case NVFP4_EXPONENT_CEIL:
        exponent = (bits + 0x7fffff) >> 23;
        break;
    default:
        exponent = bits >> 23;
        break;
    }
    exponent -= 2;
    return exponent > 0 ? exponent : 0;
}

/* 2^(127-b), exactly; b is at most 253. */
static inline float nvfp4_factor_mx(int32_t exponent) {
    return kvant_bits_float((uint32_t)(254 - exponent) << 23);
}

/* ---- Elements ------------------------------------------------------------------------------------------ */

/* The sign of zeros and of what is rounded to zero stays. */
static inline uint8_t nvfp4_code(float x, float factor) {
    float y = x * factor;
    uint8_t code = kvant_f32_to_e2m1(y);
    return (uint8_t)(y != y ? kvant_float_bits(x) >> 28 & 8u : code);
}

static inline float nvfp4_value(uint8_t code, float scale, float g) {
    float x = kvant_e2m1_to_f32(code) * scale * g;
    /* A magnitude at the end of the range of floats may come out as infinity. */
    x = x < NVFP4_FLOAT_MAX ? x : NVFP4_FLOAT_MAX;
    return x > -NVFP4_FLOAT_MAX ? x : -NVFP4_FLOAT_MAX;
}

/* An element that E2M1, had it more bits, would round to 8 or above. In blocks whose scale is rounded to
 * nearest there is none; where the scale overflows, or is so small that it has few bits, there may be. */
static inline uint32_t nvfp4_element_overflows(float x, float factor) {
    float y = x * factor;
    return (kvant_float_bits(y) & 0x7fffffffu) > 0x40e00000u; /* 7 */
}

/* One more term of the error of four over six. */
static inline float nvfp4_error(float x, float factor, float scale, float g, uint32_t rule) {
    float d = kvant_e2m1_to_f32(kvant_f32_to_e2m1(x * factor)) * scale * g - x;
    float size = kvant_bits_float(kvant_float_bits(d) & 0x7fffffffu);
    return rule == NVFP4_FOUR_OVER_SIX_MAE ? size : d * d;
}

#endif
