/* cvt: all codes of the short formats, all pairs of formats on edges and random values, each rounding.
 * Expectations come from values in long double, from looking at all codes, or from integer arithmetic. */
#include "support/ptx_fixture.h"
#include "support/ptx_formats.h"

#include <stdio.h>
#include <stdlib.h>

typedef uint64_t u64;
typedef uint32_t u32;

/* ---- Formats, as the tests know them ------------------------------------------------------------------- */

typedef struct format {
    const char *name;
    char kind;                           /* where its register is: d, r, h, b */
    int exponent_bits, digit_bits, bias; /* 0: an integer */
    int bits, is_signed;
} format;
static const format formats[] = {
    {"f16", 'h', 5, 10, 15, 16, 1},    {"bf16", 'h', 8, 7, 127, 16, 1}, {"f32", 'r', 8, 23, 127, 32, 1},
    {"f64", 'd', 11, 52, 1023, 64, 1}, {"s8", 'h', 0, 0, 0, 8, 1},      {"u8", 'h', 0, 0, 0, 8, 0},
    {"s16", 'h', 0, 0, 0, 16, 1},      {"u16", 'h', 0, 0, 0, 16, 0},    {"s32", 'r', 0, 0, 0, 32, 1},
    {"u32", 'r', 0, 0, 0, 32, 0},      {"s64", 'd', 0, 0, 0, 64, 1},    {"u64", 'd', 0, 0, 0, 64, 0}};
enum { FORMATS = sizeof formats / sizeof formats[0] };

static long double value_of(const format *f, u64 bits) {
    if (f->bits < 64) bits &= ((u64)1 << f->bits) - 1;
    if (f->exponent_bits == 0) {
        if (f->is_signed && bits >> (f->bits - 1))
            return -(long double)((~bits & (((u64)1 << (f->bits - 1)) - 1)) + 1);
        return (long double)bits;
    }
    u64 digits = bits & (((u64)1 << f->digit_bits) - 1),
        exponent = bits >> f->digit_bits & (((u64)1 << f->exponent_bits) - 1);
    long double sign = bits >> (f->bits - 1) ? -1 : 1;
    if (exponent == ((u64)1 << f->exponent_bits) - 1) return digits ? (long double)NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexpl((long double)digits, 1 - f->bias - f->digit_bits);
    return sign *
           ldexpl((long double)(digits | (u64)1 << f->digit_bits), (int)exponent - f->bias - f->digit_bits);
}

static long double whole(long double x, char mode) {
    switch (mode) {
    case 'n':
        return rintl(x);
    case 'z':
        return truncl(x);
    case 'm':
        return floorl(x);
    default:
        return ceill(x);
    }
}

static u64 to_integer(const format *f, long double x, const format *source, char mode) {
    if (x != x) return source->bits == 64 || f->bits == 64 ? (u64)1 << (f->bits - 1) : 0;
    long double low = f->is_signed ? -ldexpl(1, f->bits - 1) : 0,
                high = ldexpl(1, f->bits - f->is_signed) - 1;
    long double r = whole(x, mode);
    r = r < low ? low : r > high ? high : r;
    u64 bits = r < 0 ? 0 - (u64)-r : (u64)r;
    return f->bits == 64 ? bits : bits & (((u64)1 << f->bits) - 1);
}

static u64 to_float(const format *f, long double x, char mode) {
    u64 sign = (u64)(signbit(x) ? 1 : 0) << (f->bits - 1), top = (((u64)1 << f->exponent_bits) - 1)
                                                                 << f->digit_bits;
    if (x != x) return f->bits == 64 ? 0x7ff8000000000000 : f->bits == 32 ? 0x7fffffff : 0x7fff;
    if (isinf(x)) return sign | top;
    if (x == 0) return sign;
    int exponent = ilogbl(x) < 1 - f->bias ? 1 - f->bias : ilogbl(x);
    long double units = whole(ldexpl(x, f->digit_bits - exponent), mode);
    if (units == 0) return sign;
    x = ldexpl(units, exponent - f->digit_bits);
    exponent = ilogbl(x) < 1 - f->bias ? 1 - f->bias : ilogbl(x);
    if (exponent > f->bias) { /* beyond the largest */
        int inward = mode == 'z' || (mode == 'm' && x > 0) || (mode == 'p' && x < 0);
        return sign | (inward ? top - 1 : top);
    }
    u64 digits = (u64)fabsl(ldexpl(x, f->digit_bits - exponent));
    if (!(digits >> f->digit_bits)) return sign | digits;
    return sign | (((u64)(exponent + f->bias) << f->digit_bits) + digits - ((u64)1 << f->digit_bits));
}

/* ---- Every pair, every rounding ------------------------------------------------------------------------ */

static const long double probes[] = {0,
                                     0.25L,
                                     0.5L,
                                     0.75L,
                                     1,
                                     1.5L,
                                     2.5L,
                                     3.5L,
                                     126.5L,
                                     127,
                                     127.5L,
                                     128,
                                     255,
                                     255.5L,
                                     256,
                                     32767,
                                     32767.5L,
                                     32768,
                                     65503,
                                     65504,
                                     65519,
                                     65520,
                                     65535,
                                     65536,
                                     2147483647.0L,
                                     2147483647.5L,
                                     2147483648.0L,
                                     4294967295.0L,
                                     4294967296.0L,
                                     0x1p63L,
                                     0x1p64L,
                                     1e10L,
                                     1e30L,
                                     3.39e38L,
                                     1e300L,
                                     0x1p-14L,
                                     0x1p-24L,
                                     0x1.8p-25L,
                                     0x1p-25L,
                                     0x1p-126L,
                                     0x1p-133L,
                                     0x1p-149L,
                                     0x1.8p-150L,
                                     1.0009765625L,
                                     1.00048828125L,
                                     1.0004882813L,
                                     1.00390625L,
                                     16777217.0L};
enum { PROBES = sizeof probes / sizeof probes[0], CASES = 4 * PROBES + 400 };

/* Values of the source format: near the probes, of both signs, and any bits. */
static void fill(const format *from, ptx_case *cases) {
    u64 seed = 77;
    for (u32 i = 0; i < CASES; i++) {
        u64 bits = kvant_test_random(&seed);
        if (i < 4 * PROBES) {
            long double x = probes[i / 4] * (i & 1 ? -1 : 1);
            bits = from->exponent_bits ? to_float(from, x, i & 2 ? 'z' : 'n')
                                       : to_integer(from, x, &formats[2], 'n');
        } else if (i % 4 == 0 && from->exponent_bits) {
            bits = to_float(from, (long double)kvant_test_normal(&seed) * 1000, 'n');
        }
        cases[i].in[0] = bits;
    }
}

static void check_pair(const format *to, const format *from, const char *rounding, char mode, int integer,
                       ptx_case *cases) {
    char text[128];
    snprintf(text, sizeof text, "cvt%s.%s.%s %%%c, %%%c0;", rounding, to->name, from->name,
             to->kind - 'a' + 'A', from->kind);
    fill(from, cases);
    ptx_run_instruction(text, to->kind, cases, CASES);
    for (u32 i = 0; i < CASES; i++) {
        long double x = value_of(from, cases[i].in[0]);
        u64 want;
        if (to->exponent_bits)
            want = to_float(to, integer ? copysignl(whole(x, mode), x) : x, integer ? 'n' : mode);
        else if (from->exponent_bits)
            want = to_integer(to, x, from, mode);
        else
            want = (u64)(x < 0 ? 0 - (u64)-x : (u64)x); /* cut off */
        int register_bits = to->kind == 'd' ? 64 : to->kind == 'r' ? 32 : 16;
        if (!to->exponent_bits && to->is_signed && to->bits < 64) { /* the sign fills the register */
            want &= ((u64)1 << to->bits) - 1;
            if (want >> (to->bits - 1)) want |= ~(u64)0 << to->bits;
        } else if (to->bits < 64) {
            want &= ((u64)1 << to->bits) - 1;
        }
        if (register_bits < 64) want &= ((u64)1 << register_bits) - 1;
        u64 got = cases[i].out[0];
        if (to->bits == 64 && to->exponent_bits && x != x &&
            (got & 0x7ff0000000000000) == 0x7ff0000000000000 && got << 12)
            continue;
        if (got != want)
            fail_msg("%s of %llx (%Lg) gives %llx, expected %llx", text, (unsigned long long)cases[i].in[0],
                     x, (unsigned long long)got, (unsigned long long)want);
    }
}

static void every_pair_of_formats(void **state) {
    (void)state;
    ptx_case *cases = calloc(CASES, sizeof *cases);
    assert_non_null(cases);
    static const char modes[] = "nzmp";
    for (int t = 0; t < FORMATS; t++)
        for (int s = 0; s < FORMATS; s++) {
            const format *to = &formats[t], *from = &formats[s];
            int halves = to->bits == 16 && to->exponent_bits && from->bits == 16 && from->exponent_bits;
            if (t == s || halves) continue;
            for (int m = 0; m < 4; m++) {
                char rounding[8];
                int to_whole = !to->exponent_bits && from->exponent_bits,
                    exact = to->exponent_bits && from->exponent_bits && to->bits > from->bits;
                if (!to->exponent_bits && !from->exponent_bits && m > 0) continue;
                if (exact && m > 0) continue;
                if (exact || (!to->exponent_bits && !from->exponent_bits))
                    rounding[0] = '\0';
                else
                    snprintf(rounding, sizeof rounding, ".r%c%s", modes[m], to_whole ? "i" : "");
                check_pair(to, from, rounding, modes[m], 0, cases);
            }
        }
    for (int m = 0; m < 4; m++) { /* rounded to whole numbers that stay floats */
        char rounding[8];
        snprintf(rounding, sizeof rounding, ".r%ci", modes[m]);
        check_pair(&formats[0], &formats[0], rounding, modes[m], 1, cases);
        check_pair(&formats[2], &formats[2], rounding, modes[m], 1, cases);
        check_pair(&formats[3], &formats[3], rounding, modes[m], 1, cases);
    }
    free(cases);
}

/* ---- All 65536 halves, all codes of 8 bits ------------------------------------------------------------- */

static void every_half(void **state) {
    (void)state;
    static ptx_case cases[65536];
    static const struct {
        const char *text;
        int source, target;
        char mode;
    } rows[] = {{"cvt.f32.f16 %R, %h0;", 0, 2, 'n'},     {"cvt.f32.bf16 %R, %h0;", 1, 2, 'n'},
                {"cvt.rni.s16.f16 %H, %h0;", 0, 6, 'n'}, {"cvt.rzi.u8.f16 %H, %h0;", 0, 5, 'z'},
                {"cvt.rn.f16.s16 %H, %h0;", 6, 0, 'n'},  {"cvt.rp.f16.u16 %H, %h0;", 7, 0, 'p'},
                {"cvt.rz.bf16.s16 %H, %h0;", 6, 1, 'z'}, {"cvt.f64.f16 %D, %h0;", 0, 3, 'n'}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        const format *from = &formats[rows[r].source], *to = &formats[rows[r].target];
        for (u32 i = 0; i < 65536; i++) cases[i].in[0] = i;
        ptx_run_instruction(rows[r].text, to->kind, cases, 65536);
        for (u32 i = 0; i < 65536; i++) {
            long double x = value_of(from, i);
            u64 want =
                to->exponent_bits ? to_float(to, x, rows[r].mode) : to_integer(to, x, from, rows[r].mode);
            if (cases[i].out[0] != want)
                fail_msg("%s of %04x gives %llx, expected %llx", rows[r].text, i,
                         (unsigned long long)cases[i].out[0], (unsigned long long)want);
        }
    }
}

typedef struct small { /* a format of 8 bits or fewer */
    const char *name;
    int exponent_bits, digit_bits, bias;
    u32 largest, infinity; /* 0: there is none */
    int bits;              /* of an element in a pair */
    u32 nan;               /* what NaN becomes */
} small;
static const small smalls[] = {{"e4m3x2", 4, 3, 7, 0x7e, 0, 8, 0x7f},
                               {"e5m2x2", 5, 2, 15, 0x7b, 0x7c, 8, 0x7f},
                               {"e2m1x2", 2, 1, 1, 7, 0, 4, 7},
                               {"e2m3x2", 2, 3, 1, 0x1f, 0, 8, 0x1f},
                               {"e3m2x2", 3, 2, 3, 0x1f, 0, 8, 0x1f}};

static char register_of(const small *f) {
    return f->bits == 4 ? 'b' : 'h';
}
static u32 nearest(const small *f, double x) {
    if (x != x) return f->nan;
    return test_nearest_code(x, f->exponent_bits, f->digit_bits, f->bias, f->largest);
}

/* Every half as source of both elements, with and without relu. */
static void halves_to_small_formats(void **state) {
    (void)state;
    static ptx_case cases[65536];
    for (size_t s = 0; s < sizeof smalls / sizeof smalls[0]; s++)
        for (int relu = 0; relu < 2; relu++)
            for (int from_f32 = 0; from_f32 < 2; from_f32++) {
                const small *f = &smalls[s];
                if (!from_f32 && s > 1) continue; /* only fp8 takes f16x2 in all of PTX's versions */
                char text[128];
                snprintf(text, sizeof text, "cvt.rn.satfinite%s.%s.%s %%%c, %s;", relu ? ".relu" : "",
                         f->name, from_f32 ? "f32" : "f16x2", register_of(f) - 'a' + 'A',
                         from_f32 ? "%r0, %r1" : "%r2");
                for (u32 i = 0; i < 65536; i++) {
                    u32 low = (i * 40503u + 7) & 0xffff;
                    cases[i].in[0] = to_float(&formats[2], value_of(&formats[0], i), 'n');
                    cases[i].in[1] = to_float(&formats[2], value_of(&formats[0], low), 'n');
                    cases[i].in[2] = (u64)i << 16 | low;
                }
                ptx_run_instruction(text, register_of(f), cases, 65536);
                for (u32 i = 0; i < 65536; i++) {
                    double high = test_f16_value(i), low = test_f16_value((u32)cases[i].in[2] & 0xffff);
                    if (relu)
                        high = high < 0 || (high == 0 && signbit(high)) ? 0 : high,
                        low = low < 0 || (low == 0 && signbit(low)) ? 0 : low;
                    u64 want = (u64)nearest(f, high) << f->bits | nearest(f, low);
                    if (cases[i].out[0] != want)
                        fail_msg("%s of %g, %g gives %llx, expected %llx", text, high, low,
                                 (unsigned long long)cases[i].out[0], (unsigned long long)want);
                }
            }
}

/* Beside every tie of every format, where a second rounding would show. */
static void ties_of_small_formats(void **state) {
    (void)state;
    for (size_t s = 0; s < sizeof smalls / sizeof smalls[0]; s++) {
        const small *f = &smalls[s];
        static ptx_case cases[3 * 256];
        u32 count = 0;
        for (u32 code = 0; code < f->largest; code++)
            for (int side = -1; side <= 1; side++) {
                double tie = (test_code_value(code, f->exponent_bits, f->digit_bits, f->bias) +
                              test_code_value(code + 1, f->exponent_bits, f->digit_bits, f->bias)) /
                             2;
                float x = (float)tie;
                if (side) x = nextafterf(x, side > 0 ? INFINITY : 0);
                cases[count].in[0] = to_float(&formats[2], (long double)x, 'n');
                cases[count].in[1] = to_float(&formats[2], -(long double)x, 'n');
                count++;
            }
        char text[128];
        snprintf(text, sizeof text, "cvt.rn.satfinite.%s.f32 %%%c, %%r0, %%r1;", f->name,
                 register_of(f) - 'a' + 'A');
        ptx_run_instruction(text, register_of(f), cases, count);
        for (u32 i = 0; i < count; i++) {
            double x = (double)value_of(&formats[2], cases[i].in[0]);
            assert_int_equal(cases[i].out[0], (u64)nearest(f, x) << f->bits | nearest(f, -x));
        }
    }
}

static void small_formats_to_halves(void **state) {
    (void)state;
    static ptx_case cases[65536];
    for (size_t s = 0; s < sizeof smalls / sizeof smalls[0]; s++) {
        const small *f = &smalls[s];
        u32 count = f->bits == 4 ? 256 : 65536, codes = 1u << (1 + f->exponent_bits + f->digit_bits);
        char text[128];
        snprintf(text, sizeof text, "cvt.rn.f16x2.%s %%R, %%%c0;", f->name, register_of(f));
        for (u32 i = 0; i < count; i++) cases[i].in[0] = i;
        ptx_run_instruction(text, 'r', cases, count);
        for (u32 i = 0; i < count; i++) {
            u64 want = 0;
            if ((i & ((1u << f->bits) - 1)) >= codes || i >> f->bits >= codes)
                continue; /* bits that the format does not have */
            for (int e = 0; e < 2; e++) {
                u32 code = i >> f->bits * e & ((1u << f->bits) - 1), magnitude = code & (codes / 2 - 1);
                double x = test_code_value(code, f->exponent_bits, f->digit_bits, f->bias);
                if (magnitude > f->largest)
                    x = magnitude == f->infinity ? copysign(INFINITY, code >= codes / 2 ? -1 : 1)
                                                 : (double)NAN;
                want |= (u64)(x != x ? 0x7fff : test_f16_bits(x)) << 16 * e;
            }
            if (cases[i].out[0] != want)
                fail_msg("%s of %x gives %llx, expected %llx", text, i, (unsigned long long)cases[i].out[0],
                         (unsigned long long)want);
        }
    }
}

/* Powers of two without sign, from 2^-127: rounded down or up, 255 is NaN. */
static void powers_of_two(void **state) {
    (void)state;
    static ptx_case cases[2000];
    u64 seed = 4;
    for (int up = 0; up < 2; up++) {
        for (int i = 0; i < 2000; i++) {
            u32 bits = (u32)kvant_test_random(&seed);
            if (i % 3 == 0) bits &= 0x7f800000;
            if (i % 7 == 0) bits &= 0x00ffffff;
            cases[i].in[0] = bits;
            cases[i].in[1] = 0x3f800000;
        }
        cases[0].in[0] = 0x7f800000;
        cases[1].in[0] = 0x7fc00000;
        cases[2].in[0] = 0;
        cases[3].in[0] = 0x7f7fffff;
        ptx_run_instruction(up ? "cvt.rp.satfinite.ue8m0x2.f32 %H, %r1, %r0;"
                               : "cvt.rz.satfinite.ue8m0x2.f32 %H, %r1, %r0;",
                            'h', cases, 2000);
        for (int i = 0; i < 2000; i++) {
            double x = fabs((double)value_of(&formats[2], cases[i].in[0]));
            int code;
            if (x != x)
                code = 255;
            else if (isinf(x))
                code = 254;
            else if (x == 0)
                code = 0;
            else {
                code = ilogb(x) + 127;
                if (up && ldexp(1, code - 127) != x) code++;
                code = code < 0 ? 0 : code > 254 ? 254 : code;
            }
            if (cases[i].out[0] != (u64)(127 << 8 | code))
                fail_msg("ue8m0 of %a gives %llx, expected %x", x, (unsigned long long)cases[i].out[0], code);
        }
    }
    for (u32 i = 0; i < 256; i++) cases[i].in[0] = i | (255 - i) << 8;
    ptx_run_instruction("cvt.rn.bf16x2.ue8m0x2 %R, %h0;", 'r', cases, 256);
    for (u32 i = 0; i < 256; i++)
        for (int e = 0; e < 2; e++) {
            u32 code = e ? 255 - i : i, got = (u32)(cases[i].out[0] >> 16 * e) & 0xffff;
            if (code == 255)
                assert_int_equal(got, 0x7fff);
            else
                assert_int_equal(got, test_bf16_bits(ldexp(1, (int)code - 127)));
        }
}

/* ---- Flags --------------------------------------------------------------------------------------------- */

static void flags(void **state) {
    (void)state;
    static const struct {
        const char *text;
        char kind;
        u64 in[2], want;
    } rows[] = {
        {"cvt.sat.f32.f32 %R, %r0;", 'r', {0xbf800000}, 0},
        {"cvt.sat.f32.f32 %R, %r0;", 'r', {0x40000000}, 0x3f800000},
        {"cvt.sat.f32.f32 %R, %r0;", 'r', {0x7fc00000}, 0},
        {"cvt.sat.f32.f32 %R, %r0;", 'r', {0x3f000000}, 0x3f000000},
        {"cvt.ftz.f32.f32 %R, %r0;", 'r', {0x80000001}, 0x80000000},
        {"cvt.rn.ftz.f32.f64 %R, %d0;", 'r', {0x3680000000000000}, 0},
        {"cvt.rzi.ftz.s32.f32 %R, %r0;", 'r', {0x00000001}, 0},
        {"cvt.rpi.s32.f32 %R, %r0;", 'r', {0x00000001}, 1},
        {"cvt.rpi.ftz.s32.f32 %R, %r0;", 'r', {0x00000001}, 0},
        {"cvt.rn.relu.f16.f32 %H, %r0;", 'h', {0xbf800000}, 0},
        {"cvt.rn.relu.f16.f32 %H, %r0;", 'h', {0x7fc00000}, 0x7fff},
        {"cvt.rn.satfinite.f16.f32 %H, %r0;", 'h', {0x7f800000}, 0x7bff},
        {"cvt.rn.satfinite.bf16.f32 %H, %r0;", 'h', {0xff7fffff}, 0xff7f},
        {"cvt.rz.bf16.f32 %H, %r0;", 'h', {0x3f80ffff}, 0x3f80},
        {"cvt.rn.bf16.f32 %H, %r0;", 'h', {0x3f80ffff}, 0x3f81},
        {"cvt.rn.relu.bf16x2.f32 %R, %r0, %r1;", 'r', {0xc0000000, 0x40000000}, 0x00004000},
        {"cvt.rz.f16x2.f32 %R, %r0, %r1;", 'r', {0x477fffff, 0x3f800001}, 0x7bff3c00},
        {"cvt.rna.tf32.f32 %R, %r0;", 'r', {0x3f801000}, 0x3f802000},
        {"cvt.rn.tf32.f32 %R, %r0;", 'r', {0x3f801000}, 0x3f800000},
        {"cvt.rn.tf32.f32 %R, %r0;", 'r', {0x3f803000}, 0x3f804000},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ptx_case one = {.in = {rows[i].in[0], rows[i].in[1]}};
        ptx_run_instruction(rows[i].text, rows[i].kind, &one, 1);
        if (one.out[0] != rows[i].want)
            fail_msg("%s of %llx gives %llx, expected %llx", rows[i].text, (unsigned long long)rows[i].in[0],
                     (unsigned long long)one.out[0], (unsigned long long)rows[i].want);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(every_pair_of_formats),
                                              cmocka_unit_test(every_half),
                                              cmocka_unit_test(halves_to_small_formats),
                                              cmocka_unit_test(ties_of_small_formats),
                                              cmocka_unit_test(small_formats_to_halves),
                                              cmocka_unit_test(powers_of_two),
                                              cmocka_unit_test(flags)};
    return kvant_run_tests(tests, argc, argv);
}
