/* Integer arithmetic and logic. */
#include "lanes.h"

/* The same expression at 16, 32 and 64 bits, on unsigned numbers (a 16-bit one as 32 bits: no overflow). */
#define UNSIGNED_1(op, expression)                                                                           \
    LANE_1(op##_16, u32, u16, u32, u32, expression)                                                          \
    LANE_1(op##_32, u32, u32, u32, u32, expression)                                                          \
    LANE_1(op##_64, u64, u64, u64, u64, expression)
#define UNSIGNED_2(op, expression)                                                                           \
    LANE_2(op##_16, u32, u16, u32, u32, u32, u32, expression)                                                \
    LANE_2(op##_32, u32, u32, u32, u32, u32, u32, expression)                                                \
    LANE_2(op##_64, u64, u64, u64, u64, u64, u64, expression)
#define SIGNED_2(op, expression)                                                                             \
    LANE_2(op##_16, u32, u16, u32, s16, u32, s16, expression)                                                \
    LANE_2(op##_32, u32, u32, u32, s32, u32, s32, expression)                                                \
    LANE_2(op##_64, u64, u64, u64, s64, u64, s64, expression)
#define UNSIGNED_3(op, expression)                                                                           \
    LANE_3(op##_16, u32, u16, u32, u32, u32, u32, u32, u32, expression)                                      \
    LANE_3(op##_32, u32, u32, u32, u32, u32, u32, u32, u32, expression)                                      \
    LANE_3(op##_64, u64, u64, u64, u64, u64, u64, u64, u64, expression)

UNSIGNED_2(add, a + b)
UNSIGNED_2(sub, a - b)
UNSIGNED_2(mul_lo, a *b)
UNSIGNED_3(mad_lo, a *b + c)
UNSIGNED_2(and, a &b)
UNSIGNED_2(or, a | b)
UNSIGNED_2(xor, a ^ b)
UNSIGNED_1(not, ~a)
UNSIGNED_1(neg, 0u - a)
UNSIGNED_1(cnot, a == 0)
UNSIGNED_2(min_u, a < b ? a : b)
UNSIGNED_2(max_u, a > b ? a : b)
SIGNED_2(min_s, a < b ? a : b)
SIGNED_2(max_s, a > b ? a : b)
LANE_1(abs_16, u32, u16, u32, s16, a < 0 ? -a : a)
LANE_1(abs_32, u32, u32, u32, u32, a >> 31 ? 0u - a : a)
LANE_1(abs_64, u64, u64, u64, u64, a >> 63 ? 0u - a : a)

/* Division by zero gives all ones, as the hardware does; the remainder is the dividend. */
UNSIGNED_2(div_u, b == 0 ? ~(a ^ a) : a / b)
UNSIGNED_2(rem_u, b == 0 ? a : a % b)
LANE_2(div_s_16, u32, u16, u32, s16, u32, s16, b == 0 ? -1 : a / b)
LANE_2(rem_s_16, u32, u16, u32, s16, u32, s16, b == 0 ? a : a % b)
LANE_2(div_s_32, u32, u32, u32, s32, u32, s32, b == 0 ? -1 : b == -1 ? (s32)(0u - (u32)a) : a / b)
LANE_2(rem_s_32, u32, u32, u32, s32, u32, s32, b == 0 ? a : b == -1 ? 0 : a % b)
LANE_2(div_s_64, u64, u64, u64, s64, u64, s64, b == 0 ? -1 : b == -1 ? (s64)(0u - (u64)a) : a / b)
LANE_2(rem_s_64, u64, u64, u64, s64, u64, s64, b == 0 ? a : b == -1 ? 0 : a % b)

/* ---- High halves and wide products --------------------------------------------------------------------- */

__extension__ typedef __int128 s128;
__extension__ typedef unsigned __int128 u128;

LANE_2(mul_hi_u_16, u32, u16, u32, u32, u32, u32, a *b >> 16)
LANE_2(mul_hi_s_16, u32, u16, u32, s16, u32, s16, (a * b) >> 16)
LANE_2(mul_hi_u_32, u32, u32, u32, u64, u32, u64, a *b >> 32)
LANE_2(mul_hi_s_32, u32, u32, u32, s32, u32, s32, ((s64)a * b) >> 32)
LANE_2(mul_hi_u_64, u64, u64, u64, u128, u64, u128, a *b >> 64)
LANE_2(mul_hi_s_64, u64, u64, u64, s64, u64, s64, ((s128)a * b) >> 64)
LANE_2(mul_wide_u_16, u32, u32, u32, u32, u32, u32, a *b)
LANE_2(mul_wide_s_16, u32, u32, u32, s16, u32, s16, a *b)
LANE_2(mul_wide_u_32, u64, u64, u32, u64, u32, u64, a *b)
LANE_2(mul_wide_s_32, u64, u64, u32, s32, u32, s32, (s64)a *b)
LANE_3(mad_hi_u_16, u32, u16, u32, u32, u32, u32, u32, u32, (a * b >> 16) + c)
LANE_3(mad_hi_s_16, u32, u16, u32, s16, u32, s16, u32, s16, ((a * b) >> 16) + c)
LANE_3(mad_hi_u_32, u32, u32, u32, u64, u32, u64, u32, u64, (a * b >> 32) + c)
LANE_3(mad_hi_s_32, u32, u32, u32, s32, u32, s32, u32, s32, (((s64)a * b) >> 32) + c)
LANE_3(mad_hi_u_64, u64, u64, u64, u128, u64, u128, u64, u64, (u64)(a *b >> 64) + c)
LANE_3(mad_hi_s_64, u64, u64, u64, s64, u64, s64, u64, u64, (u64)(((s128)a * b) >> 64) + c)
LANE_3(mad_wide_u_16, u32, u32, u32, u32, u32, u32, u32, u32, a *b + c)
LANE_3(mad_wide_s_16, u32, u32, u32, s16, u32, s16, u32, u32, (u32)(a *b) + c)
LANE_3(mad_wide_u_32, u64, u64, u32, u64, u32, u64, u64, u64, a *b + c)
LANE_3(mad_wide_s_32, u64, u64, u32, s32, u32, s32, u64, u64, (u64)((s64)a *b) + c)

/* Signed 24 bits: the low 24 of each operand, sign-extended. */
static inline s32 low24(u32 x) {
    return (s32)(x << 8) >> 8;
}
LANE_2(mul24_lo_u, u32, u32, u32, u64, u32, u64, (a & 0xffffffu) * (b & 0xffffffu))
LANE_2(mul24_hi_u, u32, u32, u32, u64, u32, u64, (a & 0xffffffu) * (b & 0xffffffu) >> 16)
LANE_2(mul24_lo_s, u32, u32, u32, u32, u32, u32, (s64)low24(a) * low24(b))
LANE_2(mul24_hi_s, u32, u32, u32, u32, u32, u32, ((s64)low24(a) * low24(b)) >> 16)
LANE_3(mad24_lo_u, u32, u32, u32, u64, u32, u64, u32, u64, (a & 0xffffffu) * (b & 0xffffffu) + c)
LANE_3(mad24_lo_s, u32, u32, u32, u32, u32, u32, u32, u32, (u64)((s64)low24(a) * low24(b)) + c)

/* ---- Saturation, sums of differences, products of bytes ------------------------------------------------ */

static inline s32 clamp_32(s64 x) {
    return x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : (s32)x;
}
LANE_2(add_sat, u32, u32, u32, s32, u32, s32, clamp_32((s64)a + b))
LANE_2(sub_sat, u32, u32, u32, s32, u32, s32, clamp_32((s64)a - b))
LANE_3(mad_hi_sat, u32, u32, u32, s32, u32, s32, u32, s32, clamp_32((((s64)a * b) >> 32) + c))
LANE_3(sad_u_16, u32, u16, u32, u32, u32, u32, u32, u32, c + (a < b ? b - a : a - b))
LANE_3(sad_u_32, u32, u32, u32, u32, u32, u32, u32, u32, c + (a < b ? b - a : a - b))
LANE_3(sad_u_64, u64, u64, u64, u64, u64, u64, u64, u64, c + (a < b ? b - a : a - b))
LANE_3(sad_s_16, u32, u16, u32, s16, u32, s16, u32, u32, c + (u32)(a < b ? b - a : a - b))
LANE_3(sad_s_32, u32, u32, u32, s32, u32, s32, u32, u32, c + (a < b ? (u32)b - (u32)a : (u32)a - (u32)b))
LANE_3(sad_s_64, u64, u64, u64, s64, u64, s64, u64, u64, c + (a < b ? (u64)b - (u64)a : (u64)a - (u64)b))

static inline s32 byte_u(u32 x, u32 i) {
    return (s32)(x >> 8 * i & 0xffu);
}
static inline s32 byte_s(u32 x, u32 i) {
    return (s32)(x << (24 - 8 * i)) >> 24;
}
#define DOT4(x, y) (u32)(x(a, 0) * y(b, 0) + x(a, 1) * y(b, 1) + x(a, 2) * y(b, 2) + x(a, 3) * y(b, 3)) + c
LANE_3(dp4a_uu, u32, u32, u32, u32, u32, u32, u32, u32, DOT4(byte_u, byte_u))
LANE_3(dp4a_us, u32, u32, u32, u32, u32, u32, u32, u32, DOT4(byte_u, byte_s))
LANE_3(dp4a_su, u32, u32, u32, u32, u32, u32, u32, u32, DOT4(byte_s, byte_u))
LANE_3(dp4a_ss, u32, u32, u32, u32, u32, u32, u32, u32, DOT4(byte_s, byte_s))
static inline s64 half_u(u32 x, u32 i) {
    return x >> 16 * i & 0xffffu;
}
static inline s64 half_s(u32 x, u32 i) {
    return (s32)(x << (16 - 16 * i)) >> 16;
}
#define DOT2(x, y, first) (u64)(x(a, 0) * y(b, first) + x(a, 1) * y(b, first + 1)) + c
LANE_3(dp2a_lo_uu, u32, u32, u32, u32, u32, u32, u32, u32, DOT2(half_u, byte_u, 0))
LANE_3(dp2a_lo_us, u32, u32, u32, u32, u32, u32, u32, u32, DOT2(half_u, byte_s, 0))
LANE_3(dp2a_lo_su, u32, u32, u32, u32, u32, u32, u32, u32, DOT2(half_s, byte_u, 0))
LANE_3(dp2a_lo_ss, u32, u32, u32, u32, u32, u32, u32, u32, DOT2(half_s, byte_s, 0))
LANE_3(dp2a_hi_uu, u32, u32, u32, u32, u32, u32, u32, u32, DOT2(half_u, byte_u, 2))
LANE_3(dp2a_hi_us, u32, u32, u32, u32, u32, u32, u32, u32, DOT2(half_u, byte_s, 2))
LANE_3(dp2a_hi_su, u32, u32, u32, u32, u32, u32, u32, u32, DOT2(half_s, byte_u, 2))
LANE_3(dp2a_hi_ss, u32, u32, u32, u32, u32, u32, u32, u32, DOT2(half_s, byte_s, 2))

/* Pairs of 16 bits. */
#define PAIR(low, high) (((u32)(high) << 16) | ((u32)(low)&0xffffu))
LANE_2(add_x2, u32, u32, u32, u32, u32, u32, PAIR(a + b, (a >> 16) + (b >> 16)))
LANE_2(min_u_x2, u32, u32, u32, u32, u32, u32,
       PAIR((a & 0xffffu) < (b & 0xffffu) ? a : b, (a >> 16) < (b >> 16) ? a >> 16 : b >> 16))
LANE_2(max_u_x2, u32, u32, u32, u32, u32, u32,
       PAIR((a & 0xffffu) > (b & 0xffffu) ? a : b, (a >> 16) > (b >> 16) ? a >> 16 : b >> 16))
LANE_2(min_s_x2, u32, u32, u32, u32, u32, u32,
       PAIR((s16)a<(s16)b ? a : b, (s32)a<(s32)((b >> 16) << 16) ? a >> 16 : b>> 16))
LANE_2(max_s_x2, u32, u32, u32, u32, u32, u32,
       PAIR((s16)a > (s16)b ? a : b, (s32)b < (s32)((a >> 16) << 16) ? a >> 16 : b >> 16))

/* ---- Carry chains: the carry is a mask behind the row of results --------------------------------------- */

#define CARRY(name, t, wide_t, value, out)                                                                   \
    static void name(void *restrict to_, const void *const *from_) {                                         \
        t *restrict to = to_;                                                                                \
        const t *a_ = from_[0], *b_ = from_[1];                                                              \
        u32 in = *(const u32 *)from_[2], carries = 0;                                                        \
        for (u32 l = 0; l < PTX_LANES; l++) {                                                                \
            wide_t a = a_[l], b = b_[l], k = in >> l & 1u, r = (value);                                      \
            to[l] = (t)r;                                                                                    \
            carries |= (u32)((out)&1u) << l;                                                                 \
        }                                                                                                    \
        *(u32 *)(void *)((char *)to_ + 256) = carries;                                                       \
    }
CARRY(addc_32, u32, u64, a + b + k, r >> 32)
CARRY(addc_64, u64, u128, a + b + k, (u32)(r >> 64))
CARRY(subc_32, u32, u64, a - b - k, r >> 32)
CARRY(subc_64, u64, u128, a - b - k, (u32)(r >> 64))
#define CARRY_MAD(name, t, wide_t, part)                                                                     \
    static void name(void *restrict to_, const void *const *from_) {                                         \
        t *restrict to = to_;                                                                                \
        const t *a_ = from_[0], *b_ = from_[1], *c_ = from_[2];                                              \
        u32 in = *(const u32 *)from_[3], carries = 0;                                                        \
        for (u32 l = 0; l < PTX_LANES; l++) {                                                                \
            wide_t product = (wide_t)a_[l] * b_[l], r = (wide_t)(t)(part) + c_[l] + (in >> l & 1u);          \
            to[l] = (t)r;                                                                                    \
            carries |= (u32)(r >> 8 * sizeof(t) & 1u) << l;                                                  \
        }                                                                                                    \
        *(u32 *)(void *)((char *)to_ + 256) = carries;                                                       \
    }
CARRY_MAD(madc_lo_32, u32, u64, product)
CARRY_MAD(madc_hi_32, u32, u64, product >> 32)
CARRY_MAD(madc_lo_64, u64, u128, product)
CARRY_MAD(madc_hi_64, u64, u128, product >> 64)
static void madc_hi_s_32(void *restrict to_, const void *const *from_) {
    u32 high[PTX_LANES], one[PTX_LANES];
    const s32 *a = from_[0], *b = from_[1];
    for (u32 l = 0; l < PTX_LANES; l++) {
        high[l] = (u32)(((s64)a[l] * b[l]) >> 32);
        one[l] = 1;
    }
    const void *const from[4] = {high, one, from_[2], from_[3]};
    madc_lo_32(to_, from);
}

/* ---- Predicates ---------------------------------------------------------------------------------------- */

static void and_p(void *restrict to, const void *const *from) {
    *(u32 *)to = *(const u32 *)from[0] & *(const u32 *)from[1];
}
static void or_p(void *restrict to, const void *const *from) {
    *(u32 *)to = *(const u32 *)from[0] | *(const u32 *)from[1];
}
static void xor_p(void *restrict to, const void *const *from) {
    *(u32 *)to = *(const u32 *)from[0] ^ *(const u32 *)from[1];
}
static void not_p(void *restrict to, const void *const *from) {
    *(u32 *)to = ~*(const u32 *)from[0];
}

/* ---- Table --------------------------------------------------------------------------------------------- */

#define SAME_US(op, function, from)                                                                          \
    {op ".u16", function##_16, "h=" from##_H}, {op ".s16", function##_16, "h=" from##_H},                    \
        {op ".u32", function##_32, "r=" from##_R}, {op ".s32", function##_32, "r=" from##_R},                \
        {op ".u64", function##_64, "d=" from##_D}, {                                                         \
        op ".s64", function##_64, "d=" from##_D                                                              \
    }
#define BOTH_US(op, u, s, from)                                                                              \
    {op ".u16", u##_16, "h=" from##_H}, {op ".s16", s##_16, "h=" from##_H},                                  \
        {op ".u32", u##_32, "r=" from##_R}, {op ".s32", s##_32, "r=" from##_R},                              \
        {op ".u64", u##_64, "d=" from##_D}, {                                                                \
        op ".s64", s##_64, "d=" from##_D                                                                     \
    }
#define BITS(op, function, from)                                                                             \
    {op ".b16", function##_16, "h=" from##_H}, {op ".b32", function##_32, "r=" from##_R}, {                  \
        op ".b64", function##_64, "d=" from##_D                                                              \
    }
#define TWO_H   "hh"
#define TWO_R   "rr"
#define TWO_D   "dd"
#define THREE_H "hhh"
#define THREE_R "rrr"
#define THREE_D "ddd"
#define ONE_H   "h"
#define ONE_R   "r"
#define ONE_D   "d"

const ptx_row PTX_TABLE(ptx_integer)[] = {
    SAME_US("add", add, TWO),
    SAME_US("sub", sub, TWO),
    SAME_US("mul.lo", mul_lo, TWO),
    SAME_US("mad.lo", mad_lo, THREE),
    BOTH_US("mul.hi", mul_hi_u, mul_hi_s, TWO),
    BOTH_US("mad.hi", mad_hi_u, mad_hi_s, THREE),
    {"mul.wide.u16", mul_wide_u_16, "r=hh"},
    {"mul.wide.s16", mul_wide_s_16, "r=hh"},
    {"mul.wide.u32", mul_wide_u_32, "d=rr"},
    {"mul.wide.s32", mul_wide_s_32, "d=rr"},
    {"mad.wide.u16", mad_wide_u_16, "r=hhr"},
    {"mad.wide.s16", mad_wide_s_16, "r=hhr"},
    {"mad.wide.u32", mad_wide_u_32, "d=rrd"},
    {"mad.wide.s32", mad_wide_s_32, "d=rrd"},
    {"mul24.lo.u32", mul24_lo_u, "r=rr"},
    {"mul24.hi.u32", mul24_hi_u, "r=rr"},
    {"mul24.lo.s32", mul24_lo_s, "r=rr"},
    {"mul24.hi.s32", mul24_hi_s, "r=rr"},
    {"mad24.lo.u32", mad24_lo_u, "r=rrr"},
    {"mad24.lo.s32", mad24_lo_s, "r=rrr"},
    {"add.sat.s32", add_sat, "r=rr"},
    {"sub.sat.s32", sub_sat, "r=rr"},
    {"mad.hi.sat.s32", mad_hi_sat, "r=rrr"},
    BOTH_US("div", div_u, div_s, TWO),
    BOTH_US("rem", rem_u, rem_s, TWO),
    BOTH_US("min", min_u, min_s, TWO),
    BOTH_US("max", max_u, max_s, TWO),
    BOTH_US("sad", sad_u, sad_s, THREE),
    {"abs.s16", abs_16, "h=h"},
    {"abs.s32", abs_32, "r=r"},
    {"abs.s64", abs_64, "d=d"},
    {"neg.s16", neg_16, "h=h"},
    {"neg.s32", neg_32, "r=r"},
    {"neg.s64", neg_64, "d=d"},
    BITS("and", and, TWO),
    BITS("or", or, TWO),
    BITS("xor", xor, TWO),
    BITS("not", not, ONE),
    BITS("cnot", cnot, ONE),
    {"and.pred", and_p, "p=pp"},
    {"or.pred", or_p, "p=pp"},
    {"xor.pred", xor_p, "p=pp"},
    {"not.pred", not_p, "p=p"},
    {"add.u16x2", add_x2, "r=rr"},
    {"add.s16x2", add_x2, "r=rr"},
    {"min.u16x2", min_u_x2, "r=rr"},
    {"max.u16x2", max_u_x2, "r=rr"},
    {"min.s16x2", min_s_x2, "r=rr"},
    {"max.s16x2", max_s_x2, "r=rr"},
    {"dp4a.u32.u32", dp4a_uu, "r=rrr"},
    {"dp4a.u32.s32", dp4a_us, "r=rrr"},
    {"dp4a.s32.u32", dp4a_su, "r=rrr"},
    {"dp4a.s32.s32", dp4a_ss, "r=rrr"},
    {"dp2a.lo.u32.u32", dp2a_lo_uu, "r=rrr"},
    {"dp2a.lo.u32.s32", dp2a_lo_us, "r=rrr"},
    {"dp2a.lo.s32.u32", dp2a_lo_su, "r=rrr"},
    {"dp2a.lo.s32.s32", dp2a_lo_ss, "r=rrr"},
    {"dp2a.hi.u32.u32", dp2a_hi_uu, "r=rrr"},
    {"dp2a.hi.u32.s32", dp2a_hi_us, "r=rrr"},
    {"dp2a.hi.s32.u32", dp2a_hi_su, "r=rrr"},
    {"dp2a.hi.s32.s32", dp2a_hi_ss, "r=rrr"},
    /* "c" in front: a carry goes in behind the sources and comes out behind the result. */
    {"addc.u32", addc_32, "cr=rr"},
    {"addc.s32", addc_32, "cr=rr"},
    {"addc.u64", addc_64, "cd=dd"},
    {"addc.s64", addc_64, "cd=dd"},
    {"subc.u32", subc_32, "cr=rr"},
    {"subc.s32", subc_32, "cr=rr"},
    {"subc.u64", subc_64, "cd=dd"},
    {"subc.s64", subc_64, "cd=dd"},
    {"madc.lo.u32", madc_lo_32, "cr=rrr"},
    {"madc.lo.s32", madc_lo_32, "cr=rrr"},
    {"madc.hi.u32", madc_hi_32, "cr=rrr"},
    {"madc.hi.s32", madc_hi_s_32, "cr=rrr"},
    {"madc.lo.u64", madc_lo_64, "cd=ddd"},
    {"madc.lo.s64", madc_lo_64, "cd=ddd"},
    {"madc.hi.u64", madc_hi_64, "cd=ddd"},
    {NULL, NULL, NULL},
};
