/* Integer instructions against their definitions, bit by bit where a formula would only repeat the
 * interpreter's. */
#include "support/ptx_fixture.h"

#include <stdlib.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint16_t u16;
typedef int64_t s64;
typedef int32_t s32;
typedef int16_t s16;
__extension__ typedef __int128 s128;
__extension__ typedef unsigned __int128 u128;

/* A row whose expectation is an expression in the inputs x[0] ... x[3]. */
#define ROW(name, expression)                                                                                \
    static u64 name(const u64 *x) {                                                                          \
        return (u64)(expression);                                                                            \
    }
#define A32            ((u32)x[0])
#define B32            ((u32)x[1])
#define C32            ((u32)x[2])
#define D32            ((u32)x[3])
#define A16            ((u16)x[0])
#define B16            ((u16)x[1])
#define C16            ((u16)x[2])
#define S(type, value) ((type)(value))

ROW(add32, (u32)(x[0] + x[1]))
ROW(add64, x[0] + x[1])
ROW(add16, (u16)(x[0] + x[1]))
ROW(sub32, (u32)(x[0] - x[1]))
ROW(sub64, x[0] - x[1])
ROW(sub16, (u16)(x[0] - x[1]))
ROW(mullo32, (u32)(x[0] * x[1]))
ROW(mullo64, x[0] * x[1])
ROW(mullo16, (u16)((u32)A16 *B16))
ROW(mulhiu32, (u64)A32 *B32 >> 32)
ROW(mulhis32, (u32)((s64)S(s32, A32) * S(s32, B32) >> 32))
ROW(mulhiu64, (u64)((u128)x[0] * x[1] >> 64))
ROW(mulhis64, (u64)((s128)S(s64, x[0]) * S(s64, x[1]) >> 64))
ROW(mulhiu16, (u32)A16 *B16 >> 16)
ROW(mulhis16, (u16)(S(s16, A16) * S(s16, B16) >> 16))
ROW(mulwideu32, (u64)A32 *B32)
ROW(mulwides32, (s64)S(s32, A32) * S(s32, B32))
ROW(mulwideu16, (u32)A16 *B16)
ROW(mulwides16, (u32)(S(s16, A16) * S(s16, B16)))
ROW(madlo32, (u32)(A32 *B32 + C32))
ROW(madlo64, x[0] * x[1] + x[2])
ROW(madhiu32, (u32)(((u64)A32 * B32 >> 32) + C32))
ROW(madhis32, (u32)(((s64)S(s32, A32) * S(s32, B32) >> 32) + C32))
ROW(madwideu32, (u64)A32 *B32 + x[2])
ROW(madwides32, (u64)((s64)S(s32, A32) * S(s32, B32)) + x[2])
ROW(madwideu16, (u32)((u32)A16 *B16 + C32))
static s64 saturated(s64 v) {
    return v < INT32_MIN ? INT32_MIN : v > INT32_MAX ? INT32_MAX : v;
}
ROW(addsat, (u32)saturated((s64)S(s32, A32) + S(s32, B32)))
ROW(subsat, (u32)saturated((s64)S(s32, A32) - S(s32, B32)))
ROW(mul24lo, (u32)((u64)(A32 & 0xffffff) * (B32 & 0xffffff)))
ROW(mul24his, (u32)((s64)((s32)(A32 << 8) >> 8) * ((s32)(B32 << 8) >> 8) >> 16))
ROW(divu32, B32 ? A32 / B32 : 0xffffffff)
ROW(divs32, B32 ? (u32)((s64)S(s32, A32) / S(s32, B32)) : 0xffffffff)
ROW(remu32, B32 ? A32 % B32 : A32)
ROW(rems32, B32 ? (u32)((s64)S(s32, A32) % S(s32, B32)) : A32)
ROW(divu64, x[1] ? x[0] / x[1] : UINT64_MAX)
ROW(divs64, x[1] ? (u64)((s128)S(s64, x[0]) / S(s64, x[1])) : UINT64_MAX)
ROW(rems64, x[1] ? (u64)((s128)S(s64, x[0]) % S(s64, x[1])) : x[0])
ROW(divs16, B16 ? (u16)(S(s16, A16) / S(s16, B16)) : 0xffff)
ROW(minu32, A32 < B32 ? A32 : B32)
ROW(mins32, (u32)(S(s32, A32) < S(s32, B32) ? A32 : B32))
ROW(maxu64, x[0] > x[1] ? x[0] : x[1])
ROW(maxs64, S(s64, x[0]) > S(s64, x[1]) ? x[0] : x[1])
ROW(mins16, S(s16, A16) < S(s16, B16) ? A16 : B16)
ROW(maxu16, A16 > B16 ? A16 : B16)
ROW(sadu32, (u32)(C32 + (A32 > B32 ? A32 - B32 : B32 - A32)))
ROW(sads32, (u32)(C32 + (u64)llabs((s64)S(s32, A32) - S(s32, B32))))
ROW(abss32, (u32)(S(s32, A32) < 0 ? 0 - A32 : A32))
ROW(abss64, S(s64, x[0]) < 0 ? 0 - x[0] : x[0])
ROW(negs32, (u32)(0 - A32))
ROW(negs16, (u16)(0 - A16))
ROW(and32, A32 &B32)
ROW(or64, x[0] | x[1])
ROW(xor16, (u16)(A16 ^ B16))
ROW(not32, (u32)~A32)
ROW(not16, (u16)~A16)
ROW(cnot32, A32 == 0)
ROW(andp, x[0] & x[1] & 1)
ROW(xorp, (x[0] ^ x[1]) & 1)
ROW(notp, ~x[0] & 1)
static u64 pair(u32 low, u32 high) {
    return (u64)(high & 0xffff) << 16 | (low & 0xffff);
}
ROW(addx2, pair((u32)(x[0] + x[1]), (u32)((A32 >> 16) + (B32 >> 16))))
ROW(minsx2, pair(S(s16, A32) < S(s16, B32) ? A32 : B32,
                 S(s16, A32 >> 16) < S(s16, B32 >> 16) ? A32 >> 16 : B32 >> 16))
ROW(maxsx2, pair(S(s16, A32) > S(s16, B32) ? A32 : B32,
                 S(s16, A32 >> 16) > S(s16, B32 >> 16) ? A32 >> 16 : B32 >> 16))
ROW(minux2, pair(A16 < B16 ? A32 : B32, A32 >> 16 < B32 >> 16 ? A32 >> 16 : B32 >> 16))

static u64 dot4(const u64 *x, int a_signed, int b_signed) {
    s64 sum = S(s32, C32);
    for (int i = 0; i < 4; i++) {
        int a = (int)(A32 >> 8 * i & 0xff), b = (int)(B32 >> 8 * i & 0xff);
        sum += (a_signed && a > 127 ? a - 256 : a) * (b_signed && b > 127 ? b - 256 : b);
    }
    return (u32)sum;
}
ROW(dp4auu, dot4(x, 0, 0))
ROW(dp4asu, dot4(x, 1, 0))
ROW(dp4aus, dot4(x, 0, 1))
ROW(dp4ass, dot4(x, 1, 1))
static u64 dot2(const u64 *x, int a_signed, int b_signed, int high) {
    s64 sum = S(s32, C32);
    for (int i = 0; i < 2; i++) {
        int a = (int)(A32 >> 16 * i & 0xffff), b = (int)(B32 >> (16 * high + 8 * i) & 0xff);
        sum += (s64)(a_signed && a > 32767 ? a - 65536 : a) * (b_signed && b > 127 ? b - 256 : b);
    }
    return (u32)sum;
}
ROW(dp2alouu, dot2(x, 0, 0, 0))
ROW(dp2aloss, dot2(x, 1, 1, 0))
ROW(dp2ahisu, dot2(x, 1, 0, 1))
ROW(dp2ahius, dot2(x, 0, 1, 1))

/* ---- Bits ---------------------------------------------------------------------------------------------- */

static u64 bit(u64 v, s64 i) {
    return i >= 0 && i < 64 ? v >> i & 1 : 0;
}
ROW(shl32, B32 > 31 ? 0 : (u32)(A32 << B32))
ROW(shl64, B32 > 63 ? 0 : x[0] << B32)
ROW(shl16, B32 > 15 ? 0 : (u16)((u32)A16 << B32))
ROW(shru32, B32 > 31 ? 0 : A32 >> B32)
ROW(shrs32, (u32)(S(s32, A32) >> (B32 > 31 ? 31 : B32)))
ROW(shrs64, S(s64, x[0]) >> (B32 > 63 ? 63 : B32))
ROW(shru64, B32 > 63 ? 0 : x[0] >> B32)
ROW(shrs16, (u16)(S(s16, A16) >> (B32 > 15 ? 15 : B32)))
static u64 funnel(const u64 *x, u32 by, int left) {
    u64 both = (u64)B32 << 32 | A32;
    if (by > 32) by = 32;
    return (u32)(left ? (both << by) >> 32 : by == 32 ? both >> 32 : both >> by);
}
ROW(shflwrap, funnel(x, C32 & 31, 1))
ROW(shflclamp, C32 > 31 ? A32 : funnel(x, C32, 1))
ROW(shfrwrap, funnel(x, C32 & 31, 0))
ROW(shfrclamp, funnel(x, C32, 0))
static u64 lookup(const u64 *x, u32 table) {
    u32 r = 0;
    for (int i = 0; i < 32; i++) r |= (table >> (bit(A32, i) << 2 | bit(B32, i) << 1 | bit(C32, i)) & 1) << i;
    return r;
}
ROW(lop3_e8, lookup(x, 0xe8))
ROW(lop3_96, lookup(x, 0x96))
ROW(lop3_1b, lookup(x, 0x1b))
static u64 prmt(const u64 *x, const int *bytes, const int *signs) {
    u32 r = 0;
    for (int i = 0; i < 4; i++) {
        u32 byte = (bytes[i] < 4 ? A32 >> 8 * bytes[i] : B32 >> 8 * (bytes[i] - 4)) & 0xff;
        if (signs[i]) byte = byte >> 7 ? 0xff : 0;
        r |= byte << 8 * i;
    }
    return r;
}
static u64 prmt_default(const u64 *x) {
    int bytes[4], signs[4];
    for (int i = 0; i < 4; i++) {
        bytes[i] = (int)(C32 >> 4 * i & 7);
        signs[i] = C32 >> (4 * i + 3) & 1;
    }
    return prmt(x, bytes, signs);
}
static u64 prmt_rows(const u64 *x, const int rows[4][4]) {
    static const int none[4];
    int bytes[4];
    for (int i = 0; i < 4; i++)
        bytes[i] = rows[C32 & 3][3 - i]; /* the tables are written most significant first */
    return prmt(x, bytes, none);
}
static const int f4e[4][4] = {{3, 2, 1, 0}, {4, 3, 2, 1}, {5, 4, 3, 2}, {6, 5, 4, 3}};
static const int b4e[4][4] = {{5, 6, 7, 0}, {6, 7, 0, 1}, {7, 0, 1, 2}, {0, 1, 2, 3}};
static const int rc8[4][4] = {{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}};
static const int ecl[4][4] = {{3, 2, 1, 0}, {3, 2, 1, 1}, {3, 2, 2, 2}, {3, 3, 3, 3}};
static const int ecr[4][4] = {{0, 0, 0, 0}, {1, 1, 1, 0}, {2, 2, 1, 0}, {3, 2, 1, 0}};
static const int rc16[4][4] = {{1, 0, 1, 0}, {3, 2, 3, 2}, {1, 0, 1, 0}, {3, 2, 3, 2}};
ROW(prmt_f4e, prmt_rows(x, f4e))
ROW(prmt_b4e, prmt_rows(x, b4e))
ROW(prmt_rc8, prmt_rows(x, rc8))
ROW(prmt_ecl, prmt_rows(x, ecl))
ROW(prmt_ecr, prmt_rows(x, ecr))
ROW(prmt_rc16, prmt_rows(x, rc16))

/* As PTX's pseudocode has it. */
static u64 field(u64 a, u32 position, u32 length, u32 width, int is_signed) {
    u32 msb = width - 1, pos = position & 0xff, len = length & 0xff;
    u64 sign = !is_signed || len == 0 ? 0 : bit(a, pos + len - 1 < msb ? pos + len - 1 : msb), r = 0;
    for (u32 i = 0; i <= msb; i++) r |= (i < len && pos + i <= msb ? bit(a, pos + i) : sign) << i;
    return r;
}
ROW(bfeu32, field(A32, B32, C32, 32, 0))
ROW(bfes32, field(A32, B32, C32, 32, 1))
ROW(bfeu64, field(x[0], B32, C32, 64, 0))
ROW(bfes64, field(x[0], B32, C32, 64, 1))
static u64 inserted(u64 a, u64 b, u32 position, u32 length, u32 width) {
    u32 pos = position & 0xff, len = length & 0xff;
    for (u32 i = 0; i < len && pos + i < width; i++)
        b = (b & ~((u64)1 << (pos + i))) | bit(a, i) << (pos + i);
    return b;
}
ROW(bfi32, (u32)inserted(A32, B32, C32, D32, 32))
ROW(bfi64, inserted(x[0], x[1], C32, D32, 64))
static u64 ones(u64 v) {
    u64 n = 0;
    for (; v; v >>= 1) n += v & 1;
    return n;
}
static u64 leading(u64 v, int width) {
    u64 n = 0;
    for (int i = width - 1; i >= 0 && !bit(v, i); i--) n++;
    return n;
}
static u64 reversed(u64 v, int width) {
    u64 r = 0;
    for (int i = 0; i < width; i++) r |= bit(v, i) << (width - 1 - i);
    return r;
}
ROW(popc32, ones(A32))
ROW(popc64, ones(x[0]))
ROW(clz32, leading(A32, 32))
ROW(clz64, leading(x[0], 64))
ROW(brev32, reversed(A32, 32))
ROW(brev64, reversed(x[0], 64))
static u64 highest(u64 v, int width, int is_signed, int amount) {
    if (is_signed && bit(v, width - 1)) v = ~v;
    for (int i = width - 1; i >= 0; i--)
        if (bit(v, i)) return (u32)(amount ? width - 1 - i : i);
    return 0xffffffff;
}
ROW(bfindu32, highest(A32, 32, 0, 0))
ROW(bfinds32, highest(A32, 32, 1, 0))
ROW(bfindu64, highest(x[0], 64, 0, 0))
ROW(bfinds64, highest(x[0], 64, 1, 0))
ROW(bfindshift, highest(A32, 32, 0, 1))
static u64 masked(u32 from, u32 count) {
    u32 r = 0;
    for (u32 i = from; i < 32 && i < from + count; i++) r |= 1u << i;
    return r;
}
ROW(bmskwrap, masked(A32 & 31, B32 & 31))
ROW(bmskclamp, masked(A32 > 32 ? 32 : A32, B32 > 32 ? 32 : B32))
ROW(szexts, (u32)(B32 > 31 ? A32 : B32 == 0 ? 0 : (u32)((s64)(x[0] << (64 - B32)) >> (64 - B32))))
ROW(szextu, (u32)(B32 > 31 ? A32 : A32 & (((u64)1 << B32) - 1)))
ROW(selp32, x[2] & 1 ? A32 : B32)
ROW(selp64, x[2] & 1 ? x[0] : x[1])
ROW(slct32, S(s32, C32) >= 0 ? A32 : B32)

/* Carries: 128-bit sums from halves; a third operand shows the carry itself. */
ROW(carry64, ((u64)B32 << 32 | A32) + ((u64)D32 << 32 | C32))
ROW(carryout, ((u64)A32 + B32) >> 32)
ROW(borrow64, ((u64)B32 << 32 | A32) - ((u64)D32 << 32 | C32))
ROW(carry128, x[1] + x[3] + (x[0] + x[2] < x[0]))
ROW(madcc, (u64)A32 *B32 + ((u64)D32 << 32 | C32))

static const ptx_row_test arithmetic[] = {
    {"add.s32 %R, %r0, %r1;", 'r', add32},
    {"add.u64 %D, %d0, %d1;", 'd', add64},
    {"add.s16 %H, %h0, %h1;", 'h', add16},
    {"sub.u32 %R, %r0, %r1;", 'r', sub32},
    {"sub.s64 %D, %d0, %d1;", 'd', sub64},
    {"sub.u16 %H, %h0, %h1;", 'h', sub16},
    {"mul.lo.s32 %R, %r0, %r1;", 'r', mullo32},
    {"mul.lo.u64 %D, %d0, %d1;", 'd', mullo64},
    {"mul.lo.s16 %H, %h0, %h1;", 'h', mullo16},
    {"mul.hi.u32 %R, %r0, %r1;", 'r', mulhiu32},
    {"mul.hi.s32 %R, %r0, %r1;", 'r', mulhis32},
    {"mul.hi.u64 %D, %d0, %d1;", 'd', mulhiu64},
    {"mul.hi.s64 %D, %d0, %d1;", 'd', mulhis64},
    {"mul.hi.u16 %H, %h0, %h1;", 'h', mulhiu16},
    {"mul.hi.s16 %H, %h0, %h1;", 'h', mulhis16},
    {"mul.wide.u32 %D, %r0, %r1;", 'd', mulwideu32},
    {"mul.wide.s32 %D, %r0, %r1;", 'd', mulwides32},
    {"mul.wide.u16 %R, %h0, %h1;", 'r', mulwideu16},
    {"mul.wide.s16 %R, %h0, %h1;", 'r', mulwides16},
    {"mad.lo.s32 %R, %r0, %r1, %r2;", 'r', madlo32},
    {"mad.lo.u64 %D, %d0, %d1, %d2;", 'd', madlo64},
    {"mad.hi.u32 %R, %r0, %r1, %r2;", 'r', madhiu32},
    {"mad.hi.s32 %R, %r0, %r1, %r2;", 'r', madhis32},
    {"mad.wide.u32 %D, %r0, %r1, %d2;", 'd', madwideu32},
    {"mad.wide.s32 %D, %r0, %r1, %d2;", 'd', madwides32},
    {"mad.wide.u16 %R, %h0, %h1, %r2;", 'r', madwideu16},
    {"add.sat.s32 %R, %r0, %r1;", 'r', addsat},
    {"sub.sat.s32 %R, %r0, %r1;", 'r', subsat},
    {"mul24.lo.u32 %R, %r0, %r1;", 'r', mul24lo},
    {"mul24.hi.s32 %R, %r0, %r1;", 'r', mul24his},
    {"div.u32 %R, %r0, %r1;", 'r', divu32},
    {"div.s32 %R, %r0, %r1;", 'r', divs32},
    {"rem.u32 %R, %r0, %r1;", 'r', remu32},
    {"rem.s32 %R, %r0, %r1;", 'r', rems32},
    {"div.u64 %D, %d0, %d1;", 'd', divu64},
    {"div.s64 %D, %d0, %d1;", 'd', divs64},
    {"rem.s64 %D, %d0, %d1;", 'd', rems64},
    {"div.s16 %H, %h0, %h1;", 'h', divs16},
    {"min.u32 %R, %r0, %r1;", 'r', minu32},
    {"min.s32 %R, %r0, %r1;", 'r', mins32},
    {"max.u64 %D, %d0, %d1;", 'd', maxu64},
    {"max.s64 %D, %d0, %d1;", 'd', maxs64},
    {"min.s16 %H, %h0, %h1;", 'h', mins16},
    {"max.u16 %H, %h0, %h1;", 'h', maxu16},
    {"sad.u32 %R, %r0, %r1, %r2;", 'r', sadu32},
    {"sad.s32 %R, %r0, %r1, %r2;", 'r', sads32},
    {"abs.s32 %R, %r0;", 'r', abss32},
    {"abs.s64 %D, %d0;", 'd', abss64},
    {"neg.s32 %R, %r0;", 'r', negs32},
    {"neg.s16 %H, %h0;", 'h', negs16},
    {"and.b32 %R, %r0, %r1;", 'r', and32},
    {"or.b64 %D, %d0, %d1;", 'd', or64},
    {"xor.b16 %H, %h0, %h1;", 'h', xor16},
    {"not.b32 %R, %r0;", 'r', not32},
    {"not.b16 %H, %h0;", 'h', not16},
    {"cnot.b32 %R, %r0;", 'r', cnot32},
    {"and.pred %P, %p0, %p1;", 'p', andp},
    {"xor.pred %P, %p0, %p1;", 'p', xorp},
    {"not.pred %P, %p0;", 'p', notp},
    {"add.u16x2 %R, %r0, %r1;", 'r', addx2},
    {"min.s16x2 %R, %r0, %r1;", 'r', minsx2},
    {"max.s16x2 %R, %r0, %r1;", 'r', maxsx2},
    {"min.u16x2 %R, %r0, %r1;", 'r', minux2},
    {"dp4a.u32.u32 %R, %r0, %r1, %r2;", 'r', dp4auu},
    {"dp4a.s32.u32 %R, %r0, %r1, %r2;", 'r', dp4asu},
    {"dp4a.u32.s32 %R, %r0, %r1, %r2;", 'r', dp4aus},
    {"dp4a.s32.s32 %R, %r0, %r1, %r2;", 'r', dp4ass},
    {"dp2a.lo.u32.u32 %R, %r0, %r1, %r2;", 'r', dp2alouu},
    {"dp2a.lo.s32.s32 %R, %r0, %r1, %r2;", 'r', dp2aloss},
    {"dp2a.hi.s32.u32 %R, %r0, %r1, %r2;", 'r', dp2ahisu},
    {"dp2a.hi.u32.s32 %R, %r0, %r1, %r2;", 'r', dp2ahius},
    {"add.cc.u32 %r0, %r0, %r2; addc.u32 %r1, %r1, %r3; mov.b64 %D, {%r0, %r1};", 'd', carry64},
    {"add.cc.u32 %r2, %r0, %r1; addc.u32 %R, 0, 0;", 'r', carryout},
    {"add.cc.u32 %r2, -1, 1; add.cc.u32 %r2, %r0, %r1; addc.u32 %R, 0, 0;", 'r', carryout},
    {"sub.cc.u32 %r0, %r0, %r2; subc.u32 %r1, %r1, %r3; mov.b64 %D, {%r0, %r1};", 'd', borrow64},
    {"add.cc.u64 %d0, %d0, %d2; addc.u64 %D, %d1, %d3;", 'd', carry128},
    {"mad.lo.cc.u32 %r2, %r0, %r1, %r2; madc.hi.u32 %r3, %r0, %r1, %r3; mov.b64 %D, {%r2, %r3};", 'd', madcc},
};

static const ptx_row_test bits[] = {
    {"shl.b32 %R, %r0, %r1;", 'r', shl32},
    {"shl.b64 %D, %d0, %r1;", 'd', shl64},
    {"shl.b16 %H, %h0, %r1;", 'h', shl16},
    {"shr.u32 %R, %r0, %r1;", 'r', shru32},
    {"shr.b32 %R, %r0, %r1;", 'r', shru32},
    {"shr.s32 %R, %r0, %r1;", 'r', shrs32},
    {"shr.s64 %D, %d0, %r1;", 'd', shrs64},
    {"shr.u64 %D, %d0, %r1;", 'd', shru64},
    {"shr.s16 %H, %h0, %r1;", 'h', shrs16},
    {"shf.l.wrap.b32 %R, %r0, %r1, %r2;", 'r', shflwrap},
    {"shf.l.clamp.b32 %R, %r0, %r1, %r2;", 'r', shflclamp},
    {"shf.r.wrap.b32 %R, %r0, %r1, %r2;", 'r', shfrwrap},
    {"shf.r.clamp.b32 %R, %r0, %r1, %r2;", 'r', shfrclamp},
    {"lop3.b32 %R, %r0, %r1, %r2, 0xe8;", 'r', lop3_e8},
    {"lop3.b32 %R, %r0, %r1, %r2, 0x96;", 'r', lop3_96},
    {"lop3.b32 %R, %r0, %r1, %r2, 27;", 'r', lop3_1b},
    {"prmt.b32 %R, %r0, %r1, %r2;", 'r', prmt_default},
    {"prmt.b32.f4e %R, %r0, %r1, %r2;", 'r', prmt_f4e},
    {"prmt.b32.b4e %R, %r0, %r1, %r2;", 'r', prmt_b4e},
    {"prmt.b32.rc8 %R, %r0, %r1, %r2;", 'r', prmt_rc8},
    {"prmt.b32.ecl %R, %r0, %r1, %r2;", 'r', prmt_ecl},
    {"prmt.b32.ecr %R, %r0, %r1, %r2;", 'r', prmt_ecr},
    {"prmt.b32.rc16 %R, %r0, %r1, %r2;", 'r', prmt_rc16},
    {"bfe.u32 %R, %r0, %r1, %r2;", 'r', bfeu32},
    {"bfe.s32 %R, %r0, %r1, %r2;", 'r', bfes32},
    {"bfe.u64 %D, %d0, %r1, %r2;", 'd', bfeu64},
    {"bfe.s64 %D, %d0, %r1, %r2;", 'd', bfes64},
    {"bfi.b32 %R, %r0, %r1, %r2, %r3;", 'r', bfi32},
    {"bfi.b64 %D, %d0, %d1, %r2, %r3;", 'd', bfi64},
    {"popc.b32 %R, %r0;", 'r', popc32},
    {"popc.b64 %R, %d0;", 'r', popc64},
    {"clz.b32 %R, %r0;", 'r', clz32},
    {"clz.b64 %R, %d0;", 'r', clz64},
    {"brev.b32 %R, %r0;", 'r', brev32},
    {"brev.b64 %D, %d0;", 'd', brev64},
    {"bfind.u32 %R, %r0;", 'r', bfindu32},
    {"bfind.s32 %R, %r0;", 'r', bfinds32},
    {"bfind.u64 %R, %d0;", 'r', bfindu64},
    {"bfind.s64 %R, %d0;", 'r', bfinds64},
    {"bfind.shiftamt.u32 %R, %r0;", 'r', bfindshift},
    {"bmsk.wrap.b32 %R, %r0, %r1;", 'r', bmskwrap},
    {"bmsk.clamp.b32 %R, %r0, %r1;", 'r', bmskclamp},
    {"szext.clamp.s32 %R, %r0, %r1;", 'r', szexts},
    {"szext.clamp.u32 %R, %r0, %r1;", 'r', szextu},
    {"selp.b32 %R, %r0, %r1, %p2;", 'r', selp32},
    {"selp.s64 %D, %d0, %d1, %p2;", 'd', selp64},
    {"slct.u32.s32 %R, %r0, %r1, %r2;", 'r', slct32},
};

/* ---- Comparisons --------------------------------------------------------------------------------------- */

ROW(eq16, A16 == B16)
ROW(lts16, S(s16, A16) < S(s16, B16))
ROW(ltu32, A32 < B32)
ROW(les32, S(s32, A32) <= S(s32, B32))
ROW(gtu64, x[0] > x[1])
ROW(ges64, S(s64, x[0]) >= S(s64, x[1]))
ROW(ne32, A32 != B32)
ROW(ltand, (S(s32, A32) < S(s32, B32)) & x[2])
ROW(ltornot, (S(s32, A32) < S(s32, B32)) | (~x[2] & 1))
ROW(second, (S(s32, A32) >= S(s32, B32)) & x[2])
ROW(set32, A32 > B32 ? 0xffffffff : 0)
ROW(setf32, A32 > B32 ? 0x3f800000 : 0)

static const ptx_row_test comparisons[] = {
    {"setp.eq.b16 %P, %h0, %h1;", 'p', eq16},
    {"setp.lt.s16 %P, %h0, %h1;", 'p', lts16},
    {"setp.lt.u32 %P, %r0, %r1;", 'p', ltu32},
    {"setp.lo.u32 %P, %r0, %r1;", 'p', ltu32},
    {"setp.le.s32 %P, %r0, %r1;", 'p', les32},
    {"setp.hi.u64 %P, %d0, %d1;", 'p', gtu64},
    {"setp.ge.s64 %P, %d0, %d1;", 'p', ges64},
    {"setp.ne.b32 %P, %r0, %r1;", 'p', ne32},
    {"setp.lt.and.s32 %P, %r0, %r1, %p2;", 'p', ltand},
    {"setp.lt.or.s32 %P, %r0, %r1, !%p2;", 'p', ltornot},
    {"setp.lt.and.s32 %Q|%P, %r0, %r1, %p2;", 'p', second},
    {"set.gt.u32.u32 %R, %r0, %r1;", 'r', set32},
    {"set.gt.f32.u32 %R, %r0, %r1;", 'r', setf32},
};

/* ---- Moves --------------------------------------------------------------------------------------------- */

ROW(packed, x[0] << 48 | (u64)B16 << 32 | (u64)C16 << 16 | (u16)x[3])
ROW(unpacked, A32 >> 16)
ROW(swapped, x[0] << 32 | x[0] >> 32)
ROW(bytes16, (x[0] & 0xff) | (x[1] & 0xff) << 8)
ROW(u8s32, (u32)(s32)(int8_t)x[0])
ROW(s8in16, (u16)(int8_t)x[0])
ROW(wide8, x[0] & 0xff)
ROW(sat_u8, S(s32, A32) < 0 ? 0 : S(s32, A32) > 255 ? 255 : A32)
ROW(sat_s16, (u16)(S(s64, x[0]) < -32768 ? -32768 : S(s64, x[0]) > 32767 ? 32767 : S(s64, x[0])))
ROW(sign64, (u64)(s64)S(s16, A16))
static u64 clamp_to(s64 v, s64 low, s64 high) {
    return (u64)(v < low ? low : v > high ? high : v);
}
ROW(packs16,
    (u32)(clamp_to(S(s32, A32), -32768, 32767) << 16 | (clamp_to(S(s32, B32), -32768, 32767) & 0xffff)))
ROW(packu8, (u32)((u64)C32 << 16 | clamp_to(S(s32, A32), 0, 255) << 8 | clamp_to(S(s32, B32), 0, 255)))

static const ptx_row_test moves[] = {
    {"mov.b64 %D, {%h3, %h2, %h1, %h0};", 'd', packed},
    {"mov.b32 {_, %H}, %r0;", 'h', unpacked},
    {"mov.b64 {%r1, %r2}, %d0; mov.b64 %D, {%r2, %r1};", 'd', swapped},
    {"mov.b16 %H, {%b0, %b1};", 'h', bytes16},
    {"cvt.s32.s8 %R, %r0;", 'r', u8s32},
    {"cvt.s16.s8 %H, %r0;", 'h', s8in16},
    {"cvt.s8.s32 %H, %r0;", 'h', s8in16},
    {"cvt.u8.u32 %R, %r0;", 'r', wide8},
    {"cvt.sat.u8.s32 %R, %r0;", 'r', sat_u8},
    {"cvt.sat.s16.s64 %H, %d0;", 'h', sat_s16},
    {"cvt.s64.s16 %D, %h0;", 'd', sign64},
    {"cvt.pack.sat.s16.s32 %R, %r0, %r1;", 'r', packs16},
    {"cvt.pack.sat.u8.s32.b32 %R, %r0, %r1, %r2;", 'r', packu8},
};

#define CHECK(name, table)                                                                                   \
    static void name(void **state) {                                                                         \
        (void)state;                                                                                         \
        ptx_check_rows(table, sizeof(table) / sizeof(table)[0], PTX_INPUT_INTEGERS);                         \
    }
CHECK(arithmetic_is_exact, arithmetic)
CHECK(bits_are_where_they_belong, bits)
CHECK(comparisons_and_their_combinations, comparisons)
CHECK(moves_and_integer_conversions, moves)

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(arithmetic_is_exact),
                                              cmocka_unit_test(bits_are_where_they_belong),
                                              cmocka_unit_test(comparisons_and_their_combinations),
                                              cmocka_unit_test(moves_and_integer_conversions)};
    return kvant_run_tests(tests, argc, argv);
}
