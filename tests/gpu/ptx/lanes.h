/* For the files that compute whole rows of lanes. They are compiled once per instruction set (PTX_LEVEL is
 * base or v3): each exports a table ptx_<family>_<level>, and select.c picks the level.
 *
 * A lane function is a loop over 32 lanes of an expression in a, b, c, d; the compiler vectorises it. */
#ifndef KVANT_TEST_PTX_LANES_H
#define KVANT_TEST_PTX_LANES_H

#include "parse.h"

#include <string.h>

#define PTX_PASTE2(a, b)  a##_##b
#define PTX_PASTE(a, b)   PTX_PASTE2(a, b)
#define PTX_TABLE(family) PTX_PASTE(family, PTX_LEVEL)

/* to_t, from_t: how the lanes are stored; to_v, a_v: as what they are computed. */
#define LANE_1(name, to_t, to_v, a_t, a_v, expression)                                                       \
    static void name(void *restrict to_, const void *const *from_) {                                         \
        to_t *restrict to = to_;                                                                             \
        const a_t *a_ = from_[0];                                                                            \
        for (int l = 0; l < PTX_LANES; l++) {                                                                \
            const a_v a = (a_v)a_[l];                                                                        \
            to[l] = (to_t)(to_v)(expression);                                                                \
        }                                                                                                    \
    }
#define LANE_2(name, to_t, to_v, a_t, a_v, b_t, b_v, expression)                                             \
    static void name(void *restrict to_, const void *const *from_) {                                         \
        to_t *restrict to = to_;                                                                             \
        const a_t *a_ = from_[0];                                                                            \
        const b_t *b_ = from_[1];                                                                            \
        for (int l = 0; l < PTX_LANES; l++) {                                                                \
            const a_v a = (a_v)a_[l];                                                                        \
            const b_v b = (b_v)b_[l];                                                                        \
            to[l] = (to_t)(to_v)(expression);                                                                \
        }                                                                                                    \
    }
#define LANE_3(name, to_t, to_v, a_t, a_v, b_t, b_v, c_t, c_v, expression)                                   \
    static void name(void *restrict to_, const void *const *from_) {                                         \
        to_t *restrict to = to_;                                                                             \
        const a_t *a_ = from_[0];                                                                            \
        const b_t *b_ = from_[1];                                                                            \
        const c_t *c_ = from_[2];                                                                            \
        for (int l = 0; l < PTX_LANES; l++) {                                                                \
            const a_v a = (a_v)a_[l];                                                                        \
            const b_v b = (b_v)b_[l];                                                                        \
            const c_v c = (c_v)c_[l];                                                                        \
            to[l] = (to_t)(to_v)(expression);                                                                \
        }                                                                                                    \
    }
#define LANE_4(name, to_t, to_v, a_t, a_v, b_t, b_v, c_t, c_v, d_t, d_v, expression)                         \
    static void name(void *restrict to_, const void *const *from_) {                                         \
        to_t *restrict to = to_;                                                                             \
        const a_t *a_ = from_[0];                                                                            \
        const b_t *b_ = from_[1];                                                                            \
        const c_t *c_ = from_[2];                                                                            \
        const d_t *d_ = from_[3];                                                                            \
        for (int l = 0; l < PTX_LANES; l++) {                                                                \
            const a_v a = (a_v)a_[l];                                                                        \
            const b_v b = (b_v)b_[l];                                                                        \
            const c_v c = (c_v)c_[l];                                                                        \
            const d_v d = (d_v)d_[l];                                                                        \
            to[l] = (to_t)(to_v)(expression);                                                                \
        }                                                                                                    \
    }

typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t s32;
typedef int64_t s64;
typedef uint16_t u16;
typedef int16_t s16;

static inline float f32_of(u32 bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline u32 bits_of(float x) {
    u32 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline double f64_of(u64 bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline u64 wide_bits_of(double x) {
    u64 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
/* A float result: NaN is one pattern, whatever its operands were. */
static inline u32 result_of(float x) {
    return x != x ? 0x7fffffffu : bits_of(x);
}

/* ---- Half floats. Straight lines of integer operations, so that loops of them vectorise. --------------- */

static inline float half_to_float(u32 half) {
    u32 sign = (half & 0x8000u) << 16, rest = half & 0x7fffu;
    /* The exponent is 112 too small; multiplying mends it, for subnormals too. */
    float x = f32_of(rest << 13) * 0x1p112f;
    u32 bits = rest >= 0x7c00u ? 0x7f800000u | rest << 13 : bits_of(x);
    return f32_of(bits | sign);
}
static inline u32 float_to_half(float x) {
    u32 bits = bits_of(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    u32 normal = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13;
    /* A multiple of 2^-24: in the last place of a sum with 1/2, rounded there. */
    u32 small = bits_of(f32_of(rest < 0x38800000u ? rest : 0u) + 0.5f) - 0x3f000000u;
    u32 half = rest < 0x38800000u ? small : rest >= 0x477ff000u ? 0x7c00u : normal;
    return rest > 0x7f800000u ? 0x7fffu : half | sign;
}
static inline float bfloat_to_float(u32 half) {
    return f32_of(half << 16);
}
static inline u32 float_to_bfloat(float x) {
    u32 bits = bits_of(x);
    return x != x ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16 & 0xffffu;
}

#endif
