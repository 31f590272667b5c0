/* Shifts, bit fields, permutations, selection. */
#include "lanes.h"

/* ---- Shifts: amounts beyond the width shift everything out --------------------------------------------- */

LANE_2(shl_16, u32, u16, u32, u32, u32, u32, b > 15 ? 0 : a << b)
LANE_2(shl_32, u32, u32, u32, u32, u32, u32, b > 31 ? 0 : a << (b & 31))
LANE_2(shl_64, u64, u64, u64, u64, u32, u32, b > 63 ? 0 : a << (b & 63))
LANE_2(shr_u_16, u32, u16, u32, u32, u32, u32, b > 15 ? 0 : a >> b)
LANE_2(shr_u_32, u32, u32, u32, u32, u32, u32, b > 31 ? 0 : a >> (b & 31))
LANE_2(shr_u_64, u64, u64, u64, u64, u32, u32, b > 63 ? 0 : a >> (b & 63))
LANE_2(shr_s_16, u32, u16, u32, s16, u32, u32, a >> (b > 15 ? 15 : b))
LANE_2(shr_s_32, u32, u32, u32, s32, u32, u32, a >> (b > 31 ? 31 : b))
LANE_2(shr_s_64, u64, u64, u64, s64, u32, u32, a >> (b > 63 ? 63 : b))

static inline u32 funnel_left(u32 low, u32 high, u32 by) {
    return by == 0 ? high : by > 31 ? low : high << by | low >> (32 - by);
}
static inline u32 funnel_right(u32 low, u32 high, u32 by) {
    return by == 0 ? low : by > 31 ? high : low >> by | high << (32 - by);
}
LANE_3(shf_l_wrap, u32, u32, u32, u32, u32, u32, u32, u32, funnel_left(a, b, c & 31))
LANE_3(shf_l_clamp, u32, u32, u32, u32, u32, u32, u32, u32, funnel_left(a, b, c))
LANE_3(shf_r_wrap, u32, u32, u32, u32, u32, u32, u32, u32, funnel_right(a, b, c & 31))
LANE_3(shf_r_clamp, u32, u32, u32, u32, u32, u32, u32, u32, funnel_right(a, b, c))

/* ---- Any function of three bits ------------------------------------------------------------------------ */

static void lop3(void *restrict to_, const void *const *from) {
    u32 *restrict to = to_;
    const u32 *a = from[0], *b = from[1], *c = from[2];
    u32 table = *(const u32 *)from[3];
    u32 minterm[8];
    for (u32 i = 0; i < 8; i++) minterm[i] = 0u - (table >> i & 1u);
    for (int l = 0; l < PTX_LANES; l++) {
        u32 x = a[l], y = b[l], z = c[l];
        to[l] = (minterm[0] & ~x & ~y & ~z) | (minterm[1] & ~x & ~y & z) | (minterm[2] & ~x & y & ~z) |
                (minterm[3] & ~x & y & z) | (minterm[4] & x & ~y & ~z) | (minterm[5] & x & ~y & z) |
                (minterm[6] & x & y & ~z) | (minterm[7] & x & y & z);
    }
}

/* ---- Bytes --------------------------------------------------------------------------------------------- */

static inline u32 permute(u32 a, u32 b, u32 selector) {
    u64 both = (u64)b << 32 | a;
    u32 result = 0;
    for (u32 i = 0; i < 4; i++) {
        u32 pick = selector >> 4 * i;
        u32 byte = (u32)(both >> 8 * (pick & 7u)) & 0xffu;
        u32 sign = byte & 0x80u ? 0xffu : 0u;
        result |= (pick & 8u ? sign : byte) << 8 * i;
    }
    return result;
}
LANE_3(prmt, u32, u32, u32, u32, u32, u32, u32, u32, permute(a, b, c))
/* The other modes put a selector together from the low two bits of c. */
static inline u32 selector_f4e(u32 c) {
    return 0x3210u + 0x1111u * (c & 3u);
}
static inline u32 selector_b4e(u32 c) {
    static const u32 selectors[4] = {0x5670, 0x6701, 0x7012, 0x0123};
    return selectors[c & 3u];
}
static inline u32 selector_rc8(u32 c) {
    return 0x1111u * (c & 3u);
}
static inline u32 selector_ecl(u32 c) {
    static const u32 selectors[4] = {0x3210, 0x3211, 0x3222, 0x3333};
    return selectors[c & 3u];
}
static inline u32 selector_ecr(u32 c) {
    static const u32 selectors[4] = {0x0000, 0x1110, 0x2210, 0x3210};
    return selectors[c & 3u];
}
static inline u32 selector_rc16(u32 c) {
    return c & 1u ? 0x3232u : 0x1010u;
}
LANE_3(prmt_f4e, u32, u32, u32, u32, u32, u32, u32, u32, permute(a, b, selector_f4e(c)))
LANE_3(prmt_b4e, u32, u32, u32, u32, u32, u32, u32, u32, permute(a, b, selector_b4e(c)))
LANE_3(prmt_rc8, u32, u32, u32, u32, u32, u32, u32, u32, permute(a, b, selector_rc8(c)))
LANE_3(prmt_ecl, u32, u32, u32, u32, u32, u32, u32, u32, permute(a, b, selector_ecl(c)))
LANE_3(prmt_ecr, u32, u32, u32, u32, u32, u32, u32, u32, permute(a, b, selector_ecr(c)))
LANE_3(prmt_rc16, u32, u32, u32, u32, u32, u32, u32, u32, permute(a, b, selector_rc16(c)))

/* ---- Bit fields: position and length are bytes of their operands --------------------------------------- */

static inline u64 low_bits(u32 count) {
    return count > 63 ? ~(u64)0 : ((u64)1 << count) - 1;
}
static inline u32 bfe_u32(u32 a, u32 position, u32 length) {
    position &= 0xffu, length &= 0xffu;
    return position > 31 ? 0 : (u32)(a >> position & low_bits(length));
}
static inline u64 bfe_u64(u64 a, u32 position, u32 length) {
    position &= 0xffu, length &= 0xffu;
    return position > 63 ? 0 : a >> position & low_bits(length);
}
/* The sign is the field's last bit, or the number's where the field reaches beyond it. */
static inline u64 bfe_signed(u64 a, u32 position, u32 length, u32 width) {
    position &= 0xffu, length &= 0xffu;
    if (length == 0) return 0;
    u32 last = position + length - 1 < width - 1 ? position + length - 1 : width - 1;
    u64 sign = a >> last & 1u;
    u64 field = position >= width ? 0 : a >> position & low_bits(length < width ? length : width);
    u32 taken = position >= width ? 0 : position + length > width ? width - position : length;
    return sign && taken < 64 ? field | ~low_bits(taken) : field;
}
LANE_3(bfe_u_32, u32, u32, u32, u32, u32, u32, u32, u32, bfe_u32(a, b, c))
LANE_3(bfe_u_64, u64, u64, u64, u64, u32, u32, u32, u32, bfe_u64(a, b, c))
LANE_3(bfe_s_32, u32, u32, u32, u32, u32, u32, u32, u32, bfe_signed(a, b, c, 32))
LANE_3(bfe_s_64, u64, u64, u64, u64, u32, u32, u32, u32, bfe_signed(a, b, c, 64))

static inline u64 insert(u64 a, u64 b, u32 position, u32 length, u32 width) {
    position &= 0xffu, length &= 0xffu;
    if (position >= width) return b;
    u64 mask = low_bits(length) << position;
    return (b & ~mask) | (a << position & mask);
}
LANE_4(bfi_32, u32, u32, u32, u32, u32, u32, u32, u32, u32, u32, insert(a, b, c, d, 32))
LANE_4(bfi_64, u64, u64, u64, u64, u64, u64, u32, u32, u32, u32, insert(a, b, c, d, 64))

LANE_1(popc_32, u32, u32, u32, u32, __builtin_popcount(a))
LANE_1(popc_64, u32, u32, u64, u64, __builtin_popcountll(a))
LANE_1(clz_32, u32, u32, u32, u32, a ? __builtin_clz(a) : 32)
LANE_1(clz_64, u32, u32, u64, u64, a ? __builtin_clzll(a) : 64)
static inline u32 reverse(u32 x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
LANE_1(brev_32, u32, u32, u32, u32, reverse(a))
LANE_1(brev_64, u64, u64, u64, u64, (u64)reverse((u32)a) << 32 | reverse((u32)(a >> 32)))

/* The highest bit that differs from the sign; all ones without one. */
static inline u32 find(u64 x, u32 width, u32 amount) {
    if (x == 0) return 0xffffffffu;
    u32 bit = 63 - (u32)__builtin_clzll(x);
    return amount ? width - 1 - bit : bit;
}
LANE_1(bfind_u_32, u32, u32, u32, u32, find(a, 32, 0))
LANE_1(bfind_s_32, u32, u32, u32, u32, find(a >> 31 ? ~a : a, 32, 0))
LANE_1(bfind_u_64, u32, u32, u64, u64, find(a, 64, 0))
LANE_1(bfind_s_64, u32, u32, u64, u64, find(a >> 63 ? ~a : a, 64, 0))
LANE_1(bfind_shift_u_32, u32, u32, u32, u32, find(a, 32, 1))
LANE_1(bfind_shift_s_32, u32, u32, u32, u32, find(a >> 31 ? ~a : a, 32, 1))
LANE_1(bfind_shift_u_64, u32, u32, u64, u64, find(a, 64, 1))
LANE_1(bfind_shift_s_64, u32, u32, u64, u64, find(a >> 63 ? ~a : a, 64, 1))

/* The place of the n-th set bit from `base` on: upwards for n > 0, downwards for n < 0. */
static inline u32 find_nth(u32 mask, u32 base, s32 offset) {
    if (offset == 0) return base < 32 && mask >> base & 1u ? base : 0xffffffffu;
    s32 left = offset > 0 ? offset - 1 : -offset - 1, step = offset > 0 ? 1 : -1;
    for (s32 at = (s32)(base & 31u); at >= 0 && at < 32; at += step)
        if (mask >> at & 1u && left-- == 0) return (u32)at;
    return 0xffffffffu;
}
LANE_3(fns, u32, u32, u32, u32, u32, u32, u32, s32, find_nth(a, b, c))

static inline u32 bit_mask(u32 from, u32 count) {
    return from > 31 ? 0 : (u32)(low_bits(count) << from);
}
LANE_2(bmsk_wrap, u32, u32, u32, u32, u32, u32, bit_mask(a & 31, b & 31))
LANE_2(bmsk_clamp, u32, u32, u32, u32, u32, u32, bit_mask(a, b > 32 ? 32 : b))
static inline u32 sign_from(u32 a, u32 width, u32 is_signed) {
    if (width == 0) return 0;
    if (width > 31) return a;
    u32 low = a & (u32)low_bits(width);
    return is_signed && low >> (width - 1) & 1u ? low | ~(u32)low_bits(width) : low;
}
LANE_2(szext_wrap_u, u32, u32, u32, u32, u32, u32, sign_from(a, b & 31, 0))
LANE_2(szext_wrap_s, u32, u32, u32, u32, u32, u32, sign_from(a, b & 31, 1))
LANE_2(szext_clamp_u, u32, u32, u32, u32, u32, u32, sign_from(a, b, 0))
LANE_2(szext_clamp_s, u32, u32, u32, u32, u32, u32, sign_from(a, b, 1))

/* ---- Selection ----------------------------------------------------------------------------------------- */

static const u32 lane_bit[PTX_LANES] = {1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,
                                        1u << 7,  1u << 8,  1u << 9,  1u << 10, 1u << 11, 1u << 12, 1u << 13,
                                        1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20,
                                        1u << 21, 1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27,
                                        1u << 28, 1u << 29, 1u << 30, 1u << 31};

static void selp_32(void *restrict to_, const void *const *from) {
    u32 *restrict to = to_;
    const u32 *a = from[0], *b = from[1];
    u32 mask = *(const u32 *)from[2];
    for (int l = 0; l < PTX_LANES; l++) to[l] = mask & lane_bit[l] ? a[l] : b[l];
}
static void selp_64(void *restrict to_, const void *const *from) {
    u64 *restrict to = to_;
    const u64 *a = from[0], *b = from[1];
    u32 mask = *(const u32 *)from[2];
    for (int l = 0; l < PTX_LANES; l++) to[l] = mask & lane_bit[l] ? a[l] : b[l];
}
LANE_3(slct_s_32, u32, u32, u32, u32, u32, u32, u32, s32, c >= 0 ? a : b)
LANE_3(slct_s_64, u64, u64, u64, u64, u64, u64, u32, s32, c >= 0 ? a : b)
LANE_3(slct_f_32, u32, u32, u32, u32, u32, u32, u32, u32, f32_of(c) >= 0.0f ? a : b)
LANE_3(slct_f_64, u64, u64, u64, u64, u64, u64, u32, u32, f32_of(c) >= 0.0f ? a : b)

#define SELP(type, function, letter)                                                                         \
    { "selp." type, function, letter "=" letter letter "p" }
#define SLCT(type, width, letter)                                                                            \
    {"slct." type ".s32", slct_s_##width, letter "=" letter letter "r"}, {                                   \
        "slct." type ".f32", slct_f_##width, letter "=" letter letter "r"                                    \
    }

const ptx_row PTX_TABLE(ptx_bits)[] = {
    {"shl.b16", shl_16, "h=hr"},
    {"shl.b32", shl_32, "r=rr"},
    {"shl.b64", shl_64, "d=dr"},
    {"shr.b16", shr_u_16, "h=hr"},
    {"shr.b32", shr_u_32, "r=rr"},
    {"shr.b64", shr_u_64, "d=dr"},
    {"shr.u16", shr_u_16, "h=hr"},
    {"shr.u32", shr_u_32, "r=rr"},
    {"shr.u64", shr_u_64, "d=dr"},
    {"shr.s16", shr_s_16, "h=hr"},
    {"shr.s32", shr_s_32, "r=rr"},
    {"shr.s64", shr_s_64, "d=dr"},
    {"shf.l.wrap.b32", shf_l_wrap, "r=rrr"},
    {"shf.l.clamp.b32", shf_l_clamp, "r=rrr"},
    {"shf.r.wrap.b32", shf_r_wrap, "r=rrr"},
    {"shf.r.clamp.b32", shf_r_clamp, "r=rrr"},
    {"lop3.b32", lop3, "r=rrrr"},
    {"prmt.b32", prmt, "r=rrr"},
    {"prmt.b32.f4e", prmt_f4e, "r=rrr"},
    {"prmt.b32.b4e", prmt_b4e, "r=rrr"},
    {"prmt.b32.rc8", prmt_rc8, "r=rrr"},
    {"prmt.b32.ecl", prmt_ecl, "r=rrr"},
    {"prmt.b32.ecr", prmt_ecr, "r=rrr"},
    {"prmt.b32.rc16", prmt_rc16, "r=rrr"},
    {"bfe.u32", bfe_u_32, "r=rrr"},
    {"bfe.s32", bfe_s_32, "r=rrr"},
    {"bfe.u64", bfe_u_64, "d=drr"},
    {"bfe.s64", bfe_s_64, "d=drr"},
    {"bfi.b32", bfi_32, "r=rrrr"},
    {"bfi.b64", bfi_64, "d=ddrr"},
    {"popc.b32", popc_32, "r=r"},
    {"popc.b64", popc_64, "r=d"},
    {"clz.b32", clz_32, "r=r"},
    {"clz.b64", clz_64, "r=d"},
    {"brev.b32", brev_32, "r=r"},
    {"brev.b64", brev_64, "d=d"},
    {"bfind.u32", bfind_u_32, "r=r"},
    {"bfind.s32", bfind_s_32, "r=r"},
    {"bfind.u64", bfind_u_64, "r=d"},
    {"bfind.s64", bfind_s_64, "r=d"},
    {"bfind.shiftamt.u32", bfind_shift_u_32, "r=r"},
    {"bfind.shiftamt.s32", bfind_shift_s_32, "r=r"},
    {"bfind.shiftamt.u64", bfind_shift_u_64, "r=d"},
    {"bfind.shiftamt.s64", bfind_shift_s_64, "r=d"},
    {"fns.b32", fns, "r=rrr"},
    {"bmsk.wrap.b32", bmsk_wrap, "r=rr"},
    {"bmsk.clamp.b32", bmsk_clamp, "r=rr"},
    {"szext.wrap.u32", szext_wrap_u, "r=rr"},
    {"szext.wrap.s32", szext_wrap_s, "r=rr"},
    {"szext.clamp.u32", szext_clamp_u, "r=rr"},
    {"szext.clamp.s32", szext_clamp_s, "r=rr"},
    SELP("b16", selp_32, "h"),
    SELP("u16", selp_32, "h"),
    SELP("s16", selp_32, "h"),
    SELP("f16", selp_32, "h"),
    SELP("bf16", selp_32, "h"),
    SELP("b32", selp_32, "r"),
    SELP("u32", selp_32, "r"),
    SELP("s32", selp_32, "r"),
    SELP("f32", selp_32, "r"),
    SELP("b64", selp_64, "d"),
    SELP("u64", selp_64, "d"),
    SELP("s64", selp_64, "d"),
    SELP("f64", selp_64, "d"),
    SLCT("b16", 32, "h"),
    SLCT("u16", 32, "h"),
    SLCT("s16", 32, "h"),
    SLCT("b32", 32, "r"),
    SLCT("u32", 32, "r"),
    SLCT("s32", 32, "r"),
    SLCT("f32", 32, "r"),
    SLCT("b64", 64, "d"),
    SLCT("u64", 64, "d"),
    SLCT("s64", 64, "d"),
    SLCT("f64", 64, "d"),
    {NULL, NULL, NULL},
};
