/* f32 and f64 arithmetic to nearest, comparisons, and the flags ftz and sat. */
#include "lanes.h"

#include <math.h>

#define F32_1(name, expression) LANE_1(name, u32, u32, u32, u32, result_of(expression))
#define A                       f32_of(a)
#define B                       f32_of(b)
#define C                       f32_of(c)
#define DA                      f64_of(a)
#define DB                      f64_of(b)
#define DC                      f64_of(c)

LANE_2(add_f32, u32, u32, u32, u32, u32, u32, result_of(A + B))
LANE_2(sub_f32, u32, u32, u32, u32, u32, u32, result_of(A - B))
LANE_2(mul_f32, u32, u32, u32, u32, u32, u32, result_of(A *B))
LANE_2(div_f32, u32, u32, u32, u32, u32, u32, result_of(A / B))
LANE_3(fma_f32, u32, u32, u32, u32, u32, u32, u32, u32, result_of(fmaf(A, B, C)))
LANE_1(neg_f32, u32, u32, u32, u32, a ^ 0x80000000u)
LANE_1(abs_f32, u32, u32, u32, u32, a & 0x7fffffffu)
F32_1(rcp_f32, 1.0f / A)
F32_1(sqrt_f32, sqrtf(A))

LANE_2(add_f64, u64, u64, u64, u64, u64, u64, wide_bits_of(DA + DB))
LANE_2(sub_f64, u64, u64, u64, u64, u64, u64, wide_bits_of(DA - DB))
LANE_2(mul_f64, u64, u64, u64, u64, u64, u64, wide_bits_of(DA *DB))
LANE_2(div_f64, u64, u64, u64, u64, u64, u64, wide_bits_of(DA / DB))
LANE_3(fma_f64, u64, u64, u64, u64, u64, u64, u64, u64, wide_bits_of(fma(DA, DB, DC)))
LANE_1(neg_f64, u64, u64, u64, u64, a ^ (u64)1 << 63)
LANE_1(abs_f64, u64, u64, u64, u64, a & ~((u64)1 << 63))
LANE_1(rcp_f64, u64, u64, u64, u64, wide_bits_of(1.0 / DA))
LANE_1(sqrt_f64, u64, u64, u64, u64, wide_bits_of(sqrt(DA)))

/* -0 is less than +0; one NaN gives the other operand, or NaN where the name says so. */
static inline u32 smaller(u32 a, u32 b) {
    return A < B || (A == B && a >> 31) || B != B ? a : b;
}
static inline u32 larger(u32 a, u32 b) {
    return A > B || (A == B && b >> 31) || B != B ? a : b;
}
static inline u32 one_nan(u32 x) {
    return (x & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : x;
}
static inline u32 nan_if_any(u32 a, u32 b, u32 x) {
    return A != A || B != B ? 0x7fffffffu : x;
}
static inline u32 sign_of_both(u32 a, u32 b, u32 x) {
    return (x & 0x7fffffffu) | ((a ^ b) & 0x80000000u);
}
#define ABS(x) ((x)&0x7fffffffu)
LANE_2(min_f32, u32, u32, u32, u32, u32, u32, one_nan(smaller(a, b)))
LANE_2(max_f32, u32, u32, u32, u32, u32, u32, one_nan(larger(a, b)))
LANE_2(min_nan_f32, u32, u32, u32, u32, u32, u32, nan_if_any(a, b, smaller(a, b)))
LANE_2(max_nan_f32, u32, u32, u32, u32, u32, u32, nan_if_any(a, b, larger(a, b)))
LANE_2(min_xor_f32, u32, u32, u32, u32, u32, u32, sign_of_both(a, b, one_nan(smaller(ABS(a), ABS(b)))))
LANE_2(max_xor_f32, u32, u32, u32, u32, u32, u32, sign_of_both(a, b, one_nan(larger(ABS(a), ABS(b)))))
LANE_3(min3_f32, u32, u32, u32, u32, u32, u32, u32, u32, one_nan(smaller(smaller(a, b), c)))
LANE_3(max3_f32, u32, u32, u32, u32, u32, u32, u32, u32, one_nan(larger(larger(a, b), c)))
static inline u64 smaller_f64(u64 a, u64 b) {
    return DA < DB || (DA == DB && a >> 63) || DB != DB ? a : b;
}
static inline u64 larger_f64(u64 a, u64 b) {
    return DA > DB || (DA == DB && b >> 63) || DB != DB ? a : b;
}
LANE_2(min_f64, u64, u64, u64, u64, u64, u64, smaller_f64(a, b))
LANE_2(max_f64, u64, u64, u64, u64, u64, u64, larger_f64(a, b))
/* 4 bits of tests: NaN, number; infinite, finite. */
LANE_2(copysign_f32, u32, u32, u32, u32, u32, u32, (b & 0x7fffffffu) | (a & 0x80000000u))
LANE_2(copysign_f64, u64, u64, u64, u64, u64, u64, (b & ~((u64)1 << 63)) | (a & (u64)1 << 63))

#define TEST(name, t, width, expression)                                                                     \
    static void name(void *restrict to, const void *const *from) {                                           \
        const t *a_ = from[0];                                                                               \
        u32 mask = 0;                                                                                        \
        for (u32 l = 0; l < PTX_LANES; l++) {                                                                \
            t a = a_[l];                                                                                     \
            mask |= (u32)((expression) ? 1 : 0) << l;                                                        \
        }                                                                                                    \
        *(u32 *)to = mask;                                                                                   \
    }
TEST(finite_f32, u32, 32, ABS(a) < 0x7f800000u)
TEST(infinite_f32, u32, 32, ABS(a) == 0x7f800000u)
TEST(number_f32, u32, 32, ABS(a) <= 0x7f800000u)
TEST(notanumber_f32, u32, 32, ABS(a) > 0x7f800000u)
TEST(normal_f32, u32, 32, ABS(a) < 0x7f800000u && ABS(a) >= 0x00800000u)
TEST(subnormal_f32, u32, 32, ABS(a) < 0x00800000u && ABS(a) != 0)

/* ---- Comparisons: a mask of lanes ---------------------------------------------------------------------- */

#define COMPARE(name, t, value_t, view, expression)                                                          \
    static void name(void *restrict to, const void *const *from) {                                           \
        const t *a_ = from[0], *b_ = from[1];                                                                \
        u32 mask = 0;                                                                                        \
        for (u32 l = 0; l < PTX_LANES; l++) {                                                                \
            value_t a = view(a_[l]), b = view(b_[l]);                                                        \
            mask |= (u32)((expression) ? 1 : 0) << l;                                                        \
        }                                                                                                    \
        *(u32 *)to = mask;                                                                                   \
    }
#define ORDERED(type, t, value_t, view)                                                                      \
    COMPARE(eq_##type, t, value_t, view, a == b)                                                             \
    COMPARE(ne_##type, t, value_t, view, a != b)                                                             \
    COMPARE(lt_##type, t, value_t, view, a < b)                                                              \
    COMPARE(le_##type, t, value_t, view, a <= b)                                                             \
    COMPARE(gt_##type, t, value_t, view, a > b)                                                              \
    COMPARE(ge_##type, t, value_t, view, a >= b)
#define UNORDERED(type, t, value_t, view)                                                                    \
    COMPARE(fne_##type, t, value_t, view, (a < b) | (a > b))                                                 \
    COMPARE(ltu_##type, t, value_t, view, !(a >= b))                                                         \
    COMPARE(leu_##type, t, value_t, view, !(a > b))                                                          \
    COMPARE(gtu_##type, t, value_t, view, !(a <= b))                                                         \
    COMPARE(geu_##type, t, value_t, view, !(a < b))                                                          \
    COMPARE(equ_##type, t, value_t, view, !((a < b) | (a > b)))                                              \
    COMPARE(num_##type, t, value_t, view, (a == a) & (b == b))                                               \
    COMPARE(nan_##type, t, value_t, view, (a != a) | (b != b))
ORDERED(u32, u32, u32, (u32))
ORDERED(s32, u32, s32, (s32))
ORDERED(s16, u32, s16, (s16))
ORDERED(u64, u64, u64, (u64))
ORDERED(s64, u64, s64, (s64))
ORDERED(f32, u32, float, f32_of)
UNORDERED(f32, u32, float, f32_of)
ORDERED(f64, u64, double, f64_of)
UNORDERED(f64, u64, double, f64_of)
ORDERED(f16, u32, float, half_to_float)
UNORDERED(f16, u32, float, half_to_float)
ORDERED(bf16, u32, float, bfloat_to_float)
UNORDERED(bf16, u32, float, bfloat_to_float)

#define ROWS_ORDERED(name, type, letter)                                                                     \
    {"setp.eq." name, eq_##type, "p=" letter letter}, {"setp.ne." name, ne_##type, "p=" letter letter},      \
        {"setp.lt." name, lt_##type, "p=" letter letter}, {"setp.le." name, le_##type, "p=" letter letter},  \
        {"setp.gt." name, gt_##type, "p=" letter letter}, {                                                  \
        "setp.ge." name, ge_##type, "p=" letter letter                                                       \
    }
#define ROWS_UNSIGNED(name, type, letter)                                                                    \
    {"setp.lo." name, lt_##type, "p=" letter letter}, {"setp.ls." name, le_##type, "p=" letter letter},      \
        {"setp.hi." name, gt_##type, "p=" letter letter}, {                                                  \
        "setp.hs." name, ge_##type, "p=" letter letter                                                       \
    }
#define ROWS_BITS(name, type, letter)                                                                        \
    {"setp.eq." name, eq_##type, "p=" letter letter}, {                                                      \
        "setp.ne." name, ne_##type, "p=" letter letter                                                       \
    }
/* ne is ordered for floats: false with a NaN. neu is C's !=. */
#define ROWS_FLOAT(name, type, letter)                                                                       \
    {"setp.eq." name, eq_##type, "p=" letter letter}, {"setp.ne." name, fne_##type, "p=" letter letter},     \
        {"setp.lt." name, lt_##type, "p=" letter letter}, {"setp.le." name, le_##type, "p=" letter letter},  \
        {"setp.gt." name, gt_##type, "p=" letter letter}, {"setp.ge." name, ge_##type, "p=" letter letter},  \
        {"setp.equ." name, equ_##type, "p=" letter letter},                                                  \
        {"setp.neu." name, ne_##type, "p=" letter letter},                                                   \
        {"setp.ltu." name, ltu_##type, "p=" letter letter},                                                  \
        {"setp.leu." name, leu_##type, "p=" letter letter},                                                  \
        {"setp.gtu." name, gtu_##type, "p=" letter letter},                                                  \
        {"setp.geu." name, geu_##type, "p=" letter letter},                                                  \
        {"setp.num." name, num_##type, "p=" letter letter}, {                                                \
        "setp.nan." name, nan_##type, "p=" letter letter                                                     \
    }

const ptx_row PTX_TABLE(ptx_float)[] = {
    {"add.f32", add_f32, "r=rr"},
    {"sub.f32", sub_f32, "r=rr"},
    {"mul.f32", mul_f32, "r=rr"},
    {"fma.f32", fma_f32, "r=rrr"},
    {"mad.f32", fma_f32, "r=rrr"},
    {"div.rn.f32", div_f32, "r=rr"},
    {"div.full.f32", div_f32, "r=rr"},
    {"neg.f32", neg_f32, "r=r"},
    {"abs.f32", abs_f32, "r=r"},
    {"rcp.rn.f32", rcp_f32, "r=r"},
    {"sqrt.rn.f32", sqrt_f32, "r=r"},
    {"min.f32", min_f32, "r=rr"},
    {"max.f32", max_f32, "r=rr"},
    {"min.NaN.f32", min_nan_f32, "r=rr"},
    {"max.NaN.f32", max_nan_f32, "r=rr"},
    {"min.xorsign.abs.f32", min_xor_f32, "r=rr"},
    {"max.xorsign.abs.f32", max_xor_f32, "r=rr"},
    {"min3.f32", min3_f32, "r=rrr"},
    {"max3.f32", max3_f32, "r=rrr"},
    {"copysign.f32", copysign_f32, "r=rr"},
    {"copysign.f64", copysign_f64, "d=dd"},
    {"testp.finite.f32", finite_f32, "p=r"},
    {"testp.infinite.f32", infinite_f32, "p=r"},
    {"testp.number.f32", number_f32, "p=r"},
    {"testp.notanumber.f32", notanumber_f32, "p=r"},
    {"testp.normal.f32", normal_f32, "p=r"},
    {"testp.subnormal.f32", subnormal_f32, "p=r"},
    {"add.f64", add_f64, "d=dd"},
    {"sub.f64", sub_f64, "d=dd"},
    {"mul.f64", mul_f64, "d=dd"},
    {"fma.f64", fma_f64, "d=ddd"},
    {"mad.f64", fma_f64, "d=ddd"},
    {"div.rn.f64", div_f64, "d=dd"},
    {"neg.f64", neg_f64, "d=d"},
    {"abs.f64", abs_f64, "d=d"},
    {"rcp.rn.f64", rcp_f64, "d=d"},
    {"sqrt.rn.f64", sqrt_f64, "d=d"},
    {"min.f64", min_f64, "d=dd"},
    {"max.f64", max_f64, "d=dd"},
    ROWS_BITS("b16", u32, "h"),
    ROWS_BITS("b32", u32, "r"),
    ROWS_BITS("b64", u64, "d"),
    ROWS_ORDERED("u16", u32, "h"),
    ROWS_UNSIGNED("u16", u32, "h"),
    ROWS_ORDERED("s16", s16, "h"),
    ROWS_ORDERED("u32", u32, "r"),
    ROWS_UNSIGNED("u32", u32, "r"),
    ROWS_ORDERED("s32", s32, "r"),
    ROWS_ORDERED("u64", u64, "d"),
    ROWS_UNSIGNED("u64", u64, "d"),
    ROWS_ORDERED("s64", s64, "d"),
    ROWS_FLOAT("f32", f32, "r"),
    ROWS_FLOAT("f64", f64, "d"),
    ROWS_FLOAT("f16", f16, "h"),
    ROWS_FLOAT("bf16", bf16, "h"),
    {NULL, NULL, NULL},
};
