/* kvant/kit/e8m0.h: the OCP scale format, a power of two in a byte, as CUDA's cuda_fp8.h converts it.
 *
 *     E8M0  eeeeeeee     value 2^(code - 127), code 0 to 254; 255 is NaN. No sign, no zero.
 *
 * The encoders take the magnitude of x and clamp the code to 0..254: `down` goes to the next lower power of
 * two (toward zero), `up` to the next higher one. Zero and what lies below 2^-127 give 0, infinity gives 254
 * (255 in the _nosat encoders, as does what `up` would round above 2^127), NaN gives 255.
 */
#ifndef KVANT_KIT_E8M0_H
#define KVANT_KIT_E8M0_H

#include "half.h"

static inline float kvant_e8m0_to_f32(uint8_t code) {
    uint32_t bits = code != 0u ? (uint32_t)code << 23 : 0x00400000u;
    return kvant_bits_float(code == 255u ? 0x7fffffffu : bits);
}

static inline uint8_t kvant_f32_to_e8m0_down_nosat(float x) {
    return (uint8_t)(kvant_float_bits(x) >> 23);
}

static inline uint8_t kvant_f32_to_e8m0_up_nosat(float x) {
    uint32_t magnitude = kvant_float_bits(x) & 0x7fffffffu;
    uint32_t exponent = magnitude >> 23;
    uint32_t fraction = magnitude & 0x7fffffu;
    /* A subnormal float is above code 0, 2^-127, where its fraction is above one half. */
    uint32_t up = fraction > (exponent == 0u ? 0x400000u : 0u);
    uint32_t code = exponent + up;
    return (uint8_t)(code < 255u ? code : 255u);
}

static inline uint8_t kvant_f32_to_e8m0_down(float x) {
    uint32_t magnitude = kvant_float_bits(x) & 0x7fffffffu;
    uint32_t code = kvant_f32_to_e8m0_down_nosat(x);
    code = code < 254u ? code : 254u;
    return (uint8_t)(magnitude > 0x7f800000u ? 255u : code);
}

static inline uint8_t kvant_f32_to_e8m0_up(float x) {
    uint32_t magnitude = kvant_float_bits(x) & 0x7fffffffu;
    uint32_t code = kvant_f32_to_e8m0_up_nosat(x);
    code = code < 254u ? code : 254u;
    return (uint8_t)(magnitude > 0x7f800000u ? 255u : code);
}

#endif
