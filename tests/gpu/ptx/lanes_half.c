/* f16 and bf16, single and in pairs. Sums and products go through float, which holds an f16 product exactly
 * and has more than twice the digits of a sum; fma and bf16's products go through double and lose only what
 * the last digit says (rounding to odd), so that the one rounding to 16 bits is the right one. */
#include "lanes.h"

#include <math.h>

/* The float towards zero from x, with its last bit set if something was cut off. */
static inline float odd_float(double x) {
    float f = (float)x;
    u32 bits = bits_of(f);
    u32 inexact = (double)f != x;
    u32 away = (double)f > x ? (u32)(x > 0) : (u32)(x < 0);
    /* Infinity from a finite number steps back to the largest float, which is odd. */
    return f32_of(inexact && x == x ? (bits - away) | 1u : bits);
}
static inline float fma_odd(double a, double b, double c) {
    double product = a * b; /* exact: at most 22 digits */
    double sum = product + c;
    double part = sum - product;
    double error = (product - (sum - part)) + (c - part);
    u64 bits = wide_bits_of(sum);
    u64 away = error < 0 ? (u64)(sum > 0) : (u64)(sum < 0);
    u64 odd = error != 0 && error == error ? (bits - away) | 1u : bits;
    return odd_float(f64_of(odd));
}

/* One expression for f16, bf16 and their pairs; `to_float` and `from_float` are the format's. */
#define PAIR(low, high) ((u32)(low) | (u32)(high) << 16)
#define HALF_1(name, expression)                                                                             \
    static inline u32 name##_one(u32 a) {                                                                    \
        return (expression);                                                                                 \
    }                                                                                                        \
    LANE_1(name, u32, u32, u32, u32, name##_one(a))                                                          \
    LANE_1(name##_x2, u32, u32, u32, u32, PAIR(name##_one(a & 0xffffu), name##_one(a >> 16)))
#define HALF_2(name, expression)                                                                             \
    static inline u32 name##_one(u32 a, u32 b) {                                                             \
        return (expression);                                                                                 \
    }                                                                                                        \
    LANE_2(name, u32, u32, u32, u32, u32, u32, name##_one(a, b))                                             \
    LANE_2(name##_x2, u32, u32, u32, u32, u32, u32,                                                          \
           PAIR(name##_one(a & 0xffffu, b & 0xffffu), name##_one(a >> 16, b >> 16)))
#define HALF_3(name, expression)                                                                             \
    static inline u32 name##_one(u32 a, u32 b, u32 c) {                                                      \
        return (expression);                                                                                 \
    }                                                                                                        \
    LANE_3(name, u32, u32, u32, u32, u32, u32, u32, u32, name##_one(a, b, c))                                \
    LANE_3(name##_x2, u32, u32, u32, u32, u32, u32, u32, u32,                                                \
           PAIR(name##_one(a & 0xffffu, b & 0xffffu, c & 0xffffu), name##_one(a >> 16, b >> 16, c >> 16)))
#define H(x) half_to_float(x)
#define W(x) bfloat_to_float(x)

HALF_2(add_f16, float_to_half(H(a) + H(b)))
HALF_2(sub_f16, float_to_half(H(a) - H(b)))
HALF_2(mul_f16, float_to_half(H(a) * H(b)))
/* In double the sum is exact, but where one operand is too small to matter: no tie is lost. */
HALF_3(fma_f16, float_to_half(odd_float((double)H(a) * (double)H(b) + (double)H(c))))
HALF_2(add_bf16, float_to_bfloat(W(a) + W(b)))
HALF_2(sub_bf16, float_to_bfloat(W(a) - W(b)))
HALF_2(mul_bf16, float_to_bfloat(odd_float((double)W(a) * (double)W(b))))
HALF_3(fma_bf16, float_to_bfloat(fma_odd((double)W(a), (double)W(b), (double)W(c))))
HALF_1(neg_16, a ^ 0x8000u)
HALF_1(abs_16, a & 0x7fffu)

/* Ordering is that of the bits, sign and magnitude: -0 below +0. */
#define NAN_16(x, infinity) (((x)&0x7fffu) > (infinity))
static inline s32 order(u32 x) {
    return x & 0x8000u ? -(s32)(x & 0x7fffu) - 1 : (s32)x;
}
static inline u32 pick(u32 a, u32 b, u32 infinity, u32 want_a) {
    u32 x = NAN_16(a, infinity) ? b : NAN_16(b, infinity) ? a : want_a ? a : b;
    return NAN_16(x, infinity) ? 0x7fffu : x;
}
static inline u32 pick_nan(u32 a, u32 b, u32 infinity, u32 want_a) {
    return NAN_16(a, infinity) || NAN_16(b, infinity) ? 0x7fffu : want_a ? a : b;
}
#define MAG(x)      ((x)&0x7fffu)
#define SIGNS(a, b) (((a) ^ (b)) & 0x8000u)
HALF_2(min_f16, pick(a, b, 0x7c00u, order(a) < order(b)))
HALF_2(max_f16, pick(a, b, 0x7c00u, order(a) > order(b)))
HALF_2(min_nan_f16, pick_nan(a, b, 0x7c00u, order(a) < order(b)))
HALF_2(max_nan_f16, pick_nan(a, b, 0x7c00u, order(a) > order(b)))
HALF_2(min_bf16, pick(a, b, 0x7f80u, order(a) < order(b)))
HALF_2(max_bf16, pick(a, b, 0x7f80u, order(a) > order(b)))
HALF_2(min_nan_bf16, pick_nan(a, b, 0x7f80u, order(a) < order(b)))
HALF_2(max_nan_bf16, pick_nan(a, b, 0x7f80u, order(a) > order(b)))
HALF_2(min_xor_f16, (pick(MAG(a), MAG(b), 0x7c00u, MAG(a) < MAG(b)) & 0x7fffu) | SIGNS(a, b))
HALF_2(max_xor_f16, (pick(MAG(a), MAG(b), 0x7c00u, MAG(a) > MAG(b)) & 0x7fffu) | SIGNS(a, b))
HALF_2(min_xor_bf16, (pick(MAG(a), MAG(b), 0x7f80u, MAG(a) < MAG(b)) & 0x7fffu) | SIGNS(a, b))
HALF_2(max_xor_bf16, (pick(MAG(a), MAG(b), 0x7f80u, MAG(a) > MAG(b)) & 0x7fffu) | SIGNS(a, b))

HALF_1(ex2_f16, float_to_half(exp2f(H(a))))
HALF_1(ex2_bf16, float_to_bfloat(exp2f(W(a))))
HALF_1(tanh_f16, float_to_half(tanhf(H(a))))
HALF_1(tanh_bf16, float_to_bfloat(tanhf(W(a))))

/* ---- Comparisons of pairs: two masks, the low halves' first -------------------------------------------- */

#define COMPARE_X2(name, view, expression)                                                                   \
    static void name(void *restrict to, const void *const *from) {                                           \
        const u32 *a_ = from[0], *b_ = from[1];                                                              \
        u32 masks[2] = {0, 0};                                                                               \
        for (u32 l = 0; l < 2 * PTX_LANES; l++) {                                                            \
            float a = view(a_[l / 2] >> 16 * (l & 1u) & 0xffffu),                                            \
                  b = view(b_[l / 2] >> 16 * (l & 1u) & 0xffffu);                                            \
            masks[l & 1u] |= (u32)((expression) ? 1 : 0) << l / 2;                                           \
        }                                                                                                    \
        ((u32 *)to)[0] = masks[0];                                                                           \
        ((u32 *)to)[1] = masks[1];                                                                           \
    }
#define COMPARISONS(X, type, view)                                                                           \
    X(eq_##type, view, a == b)                                                                               \
    X(ne_##type, view, (a < b) | (a > b))                                                                    \
    X(lt_##type, view, a < b)                                                                                \
    X(le_##type, view, a <= b)                                                                               \
    X(gt_##type, view, a > b)                                                                                \
    X(ge_##type, view, a >= b)                                                                               \
    X(equ_##type, view, !((a < b) | (a > b)))                                                                \
    X(neu_##type, view, a != b)                                                                              \
    X(ltu_##type, view, !(a >= b))                                                                           \
    X(leu_##type, view, !(a > b))                                                                            \
    X(gtu_##type, view, !(a <= b))                                                                           \
    X(geu_##type, view, !(a < b))                                                                            \
    X(num_##type, view, (a == a) & (b == b))                                                                 \
    X(nan_##type, view, (a != a) | (b != b))
COMPARISONS(COMPARE_X2, f16, half_to_float)
COMPARISONS(COMPARE_X2, bf16, bfloat_to_float)
#define ROWS_COMPARE(type)                                                                                   \
    {"setp.eq." #type "x2", eq_##type, "p=rr"}, {"setp.ne." #type "x2", ne_##type, "p=rr"},                  \
        {"setp.lt." #type "x2", lt_##type, "p=rr"}, {"setp.le." #type "x2", le_##type, "p=rr"},              \
        {"setp.gt." #type "x2", gt_##type, "p=rr"}, {"setp.ge." #type "x2", ge_##type, "p=rr"},              \
        {"setp.equ." #type "x2", equ_##type, "p=rr"}, {"setp.neu." #type "x2", neu_##type, "p=rr"},          \
        {"setp.ltu." #type "x2", ltu_##type, "p=rr"}, {"setp.leu." #type "x2", leu_##type, "p=rr"},          \
        {"setp.gtu." #type "x2", gtu_##type, "p=rr"}, {"setp.geu." #type "x2", geu_##type, "p=rr"},          \
        {"setp.num." #type "x2", num_##type, "p=rr"}, {                                                      \
        "setp.nan." #type "x2", nan_##type, "p=rr"                                                           \
    }

#define TWO(op, type, function)                                                                              \
    {op "." type, function, "h=hh"}, {                                                                       \
        op "." type "x2", function##_x2, "r=rr"                                                              \
    }
#define THREE(op, type, function)                                                                            \
    {op "." type, function, "h=hhh"}, {                                                                      \
        op "." type "x2", function##_x2, "r=rrr"                                                             \
    }
#define ONE(op, type, function)                                                                              \
    {op "." type, function, "h=h"}, {                                                                        \
        op "." type "x2", function##_x2, "r=r"                                                               \
    }

const ptx_row PTX_TABLE(ptx_half)[] = {
    TWO("add", "f16", add_f16),
    TWO("sub", "f16", sub_f16),
    TWO("mul", "f16", mul_f16),
    THREE("fma", "f16", fma_f16),
    TWO("add", "bf16", add_bf16),
    TWO("sub", "bf16", sub_bf16),
    TWO("mul", "bf16", mul_bf16),
    THREE("fma", "bf16", fma_bf16),
    ONE("neg", "f16", neg_16),
    ONE("neg", "bf16", neg_16),
    ONE("abs", "f16", abs_16),
    ONE("abs", "bf16", abs_16),
    TWO("min", "f16", min_f16),
    TWO("max", "f16", max_f16),
    TWO("min.NaN", "f16", min_nan_f16),
    TWO("max.NaN", "f16", max_nan_f16),
    TWO("min.xorsign.abs", "f16", min_xor_f16),
    TWO("max.xorsign.abs", "f16", max_xor_f16),
    TWO("min", "bf16", min_bf16),
    TWO("max", "bf16", max_bf16),
    TWO("min.NaN", "bf16", min_nan_bf16),
    TWO("max.NaN", "bf16", max_nan_bf16),
    TWO("min.xorsign.abs", "bf16", min_xor_bf16),
    TWO("max.xorsign.abs", "bf16", max_xor_bf16),
    ONE("ex2.approx", "f16", ex2_f16),
    ONE("ex2.approx.ftz", "bf16", ex2_bf16),
    ONE("tanh.approx", "f16", tanh_f16),
    ONE("tanh.approx", "bf16", tanh_bf16),
    ROWS_COMPARE(f16),
    ROWS_COMPARE(bf16),
    {NULL, NULL, NULL},
};
