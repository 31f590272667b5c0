/* The conversions that kernels run most; op_cvt.c has all of them. A source of 8 or 16 bits is the low part
 * of its lane. */
#include "lanes.h"

#include <math.h>

LANE_1(wide_u, u64, u64, u32, u32, a)
LANE_1(wide_s, u64, u64, u32, s32, a)
LANE_1(narrow, u32, u32, u64, u64, a)
LANE_1(narrow_16, u32, u16, u64, u64, a)
LANE_1(low_16, u32, u16, u32, u32, a)
LANE_1(low_8, u32, uint8_t, u32, u32, a)
LANE_1(signed_16, u32, u32, u32, s16, a)
LANE_1(signed_8, u32, u32, u32, int8_t, a)
LANE_1(signed_8_in_16, u32, u16, u32, int8_t, a)
LANE_1(wide_u16, u64, u64, u32, u16, a)
LANE_1(wide_s16, u64, u64, u32, s16, a)

LANE_1(f32_from_s32, u32, u32, u32, s32, bits_of((float)a))
LANE_1(f32_from_u32, u32, u32, u32, u32, bits_of((float)a))
LANE_1(f32_from_f16, u32, u32, u32, u32, result_of(half_to_float(a & 0xffffu)))
LANE_1(f32_from_bf16, u32, u32, u32, u32, result_of(bfloat_to_float(a & 0xffffu)))
LANE_1(f16_from_f32, u32, u32, u32, u32, float_to_half(f32_of(a)))
LANE_1(bf16_from_f32, u32, u32, u32, u32, float_to_bfloat(f32_of(a)))
LANE_2(f16x2_from_f32, u32, u32, u32, u32, u32, u32,
       float_to_half(f32_of(a)) << 16 | float_to_half(f32_of(b)))
LANE_2(bf16x2_from_f32, u32, u32, u32, u32, u32, u32,
       float_to_bfloat(f32_of(a)) << 16 | float_to_bfloat(f32_of(b)))
LANE_1(f64_from_f32, u64, u64, u32, u32, wide_bits_of((double)f32_of(a)))
LANE_1(f32_from_f64, u32, u32, u64, u64, result_of((float)f64_of(a)))

/* Clamped, NaN is 0. */
static inline s32 clamp_s32(float x) {
    float y = x >= 0x1p31f ? 0.0f : x < -0x1p31f ? -0x1p31f : x;
    s32 whole = (s32)(y == y ? y : 0.0f);
    return x >= 0x1p31f ? INT32_MAX : whole;
}
static inline u32 clamp_u32(float x) {
    float y = x > 0.0f && x < 0x1p32f ? x : 0.0f;
    return x >= 0x1p32f ? UINT32_MAX : (u32)(s64)y;
}
/* Adding and taking off 1.5 * 2^23 leaves the nearest integer, ties to even. */
static inline float nearest(float x) {
    float magnitude = fabsf(x), sum = magnitude + 0x1p23f;
    float rounded = magnitude < 0x1p23f ? sum - 0x1p23f : magnitude;
    return x < 0 ? -rounded : rounded == rounded ? rounded : x;
}
LANE_1(s32_from_f32_near, u32, u32, u32, u32, clamp_s32(nearest(f32_of(a))))
LANE_1(s32_from_f32_zero, u32, u32, u32, u32, clamp_s32(f32_of(a)))
LANE_1(u32_from_f32_near, u32, u32, u32, u32, clamp_u32(nearest(f32_of(a))))
LANE_1(u32_from_f32_zero, u32, u32, u32, u32, clamp_u32(f32_of(a)))
LANE_1(f32_near, u32, u32, u32, u32, result_of(copysignf(nearest(f32_of(a)), f32_of(a))))

const ptx_row PTX_TABLE(ptx_convert)[] = {
    {"cvt.u64.u32", wide_u, "d=r"},
    {"cvt.s64.u32", wide_u, "d=r"},
    {"cvt.s64.s32", wide_s, "d=r"},
    {"cvt.u64.s32", wide_s, "d=r"},
    {"cvt.u32.u64", narrow, "r=d"},
    {"cvt.s32.s64", narrow, "r=d"},
    {"cvt.u32.s64", narrow, "r=d"},
    {"cvt.s32.u64", narrow, "r=d"},
    {"cvt.u16.u64", narrow_16, "h=d"},
    {"cvt.u64.u16", wide_u16, "d=h"},
    {"cvt.s64.s16", wide_s16, "d=h"},
    {"cvt.u16.u32", low_16, "h=r"},
    {"cvt.u16.s32", low_16, "h=r"},
    {"cvt.s16.s32", low_16, "h=r"},
    {"cvt.u32.u16", low_16, "r=h"},
    {"cvt.s32.u16", low_16, "r=h"},
    {"cvt.s32.s16", signed_16, "r=h"},
    {"cvt.u32.s16", signed_16, "r=h"},
    {"cvt.u32.u8", low_8, "r=h"},
    {"cvt.s32.u8", low_8, "r=h"},
    {"cvt.u16.u8", low_8, "h=h"},
    {"cvt.s16.u8", low_8, "h=h"},
    {"cvt.s32.s8", signed_8, "r=h"},
    {"cvt.u32.s8", signed_8, "r=h"},
    {"cvt.s16.s8", signed_8_in_16, "h=h"},
    {"cvt.rn.f32.s32", f32_from_s32, "r=r"},
    {"cvt.rn.f32.u32", f32_from_u32, "r=r"},
    {"cvt.f32.f16", f32_from_f16, "r=h"},
    {"cvt.f32.bf16", f32_from_bf16, "r=h"},
    {"cvt.rn.f16.f32", f16_from_f32, "h=r"},
    {"cvt.rn.bf16.f32", bf16_from_f32, "h=r"},
    {"cvt.rn.f16x2.f32", f16x2_from_f32, "r=rr"},
    {"cvt.rn.bf16x2.f32", bf16x2_from_f32, "r=rr"},
    {"cvt.f64.f32", f64_from_f32, "d=r"},
    {"cvt.rn.f32.f64", f32_from_f64, "r=d"},
    {"cvt.rni.s32.f32", s32_from_f32_near, "r=r"},
    {"cvt.rzi.s32.f32", s32_from_f32_zero, "r=r"},
    {"cvt.rni.u32.f32", u32_from_f32_near, "r=r"},
    {"cvt.rzi.u32.f32", u32_from_f32_zero, "r=r"},
    {"cvt.rni.f32.f32", f32_near, "r=r"},
    {NULL, NULL, NULL},
};
