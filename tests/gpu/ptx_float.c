/* Floating point: every rounding against sums in exact arithmetic (128-bit integers) or a wider type, the
 * order of min and max, NaN, denormals, the flags. */
#include "support/ptx_fixture.h"

#include <math.h>

typedef uint64_t u64;
typedef uint32_t u32;

static float f32(u64 bits) {
    u32 word = (u32)bits;
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}
static u64 bits32(float x) {
    u32 word;
    memcpy(&word, &x, sizeof word);
    return x != x ? 0x7fffffff : word;
}
static double f64(u64 bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static u64 bits64(double x) {
    u64 word;
    memcpy(&word, &x, sizeof word);
    return word;
}
static float flush(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}
static float unit(float x) {
    return !(x > 0) ? 0 : x > 1 ? 1 : x;
}
#define ROW(name, expression)                                                                                \
    static u64 name(const u64 *x) {                                                                          \
        const float a = f32(x[0]), b = f32(x[1]), c = f32(x[2]);                                             \
        (void)a, (void)b, (void)c;                                                                           \
        return (u64)(expression);                                                                            \
    }
#define WIDE(name, expression)                                                                               \
    static u64 name(const u64 *x) {                                                                          \
        const double a = f64(x[0]), b = f64(x[1]), c = f64(x[2]);                                            \
        (void)a, (void)b, (void)c;                                                                           \
        return (u64)(expression);                                                                            \
    }

ROW(add, bits32(a + b))
ROW(sub, bits32(a - b))
ROW(mul, bits32(a *b))
ROW(quotient, bits32(a / b))
ROW(reciprocal, bits32(1 / a))
ROW(root, bits32(sqrtf(a)))
ROW(neg, (u32)x[0] ^ 0x80000000)
ROW(absolute, (u32)x[0] & 0x7fffffff)
ROW(add_ftz, bits32(flush(flush(a) + flush(b))))
ROW(mul_ftz, bits32(flush(flush(a) * flush(b))))
ROW(mul_sat, bits32(unit(a *b)))
ROW(add_ftz_sat, bits32(unit(flush(flush(a) + flush(b)))))

/* fma in long double: 64 digits hold the product; the sum is exact unless the operands lie far apart, where
 * the rest is folded into the last bit (rounding to odd): the next rounding cannot mistake it for a tie. */
static float fused(float a, float b, float c) {
    long double product = (long double)a * b, sum = product + c;
    if (!(fabsl(sum) < 0x1p1000L)) return (float)((double)a * b + c);
    long double part = sum - product, error = (product - (sum - part)) + ((long double)c - part);
    if (error != 0) {
        long double other = nextafterl(sum, error > 0 ? INFINITY : -INFINITY);
        /* Of the two neighbours of the exact sum, the odd one. */
        int exponent;
        long double digits = ldexpl(frexpl(fabsl(sum), &exponent), 64);
        if (fmodl(digits, 2) == 0) sum = other;
    }
    return (float)sum;
}
ROW(fma_near, bits32(fused(a, b, c)))

/* Directed roundings: the nearest, moved by one step where it lies on the wrong side of the exact value. */
static float directed(long double exact, int sign_of_rest, int mode) {
    float near = (float)exact;
    if (near != near) return near;
    if (isinf((double)exact)) return near;
    long double difference = (long double)near - exact;
    int side = difference > 0 ? 1 : difference < 0 ? -1 : -sign_of_rest;
    if (mode == 'z') mode = exact > 0 ? 'm' : 'p';
    if (mode == 'm' && side > 0) near = nextafterf(near, -INFINITY);
    if (mode == 'p' && side < 0) near = nextafterf(near, INFINITY);
    if (near == 0 && exact == 0 && sign_of_rest == 0) near = (float)exact;
    return near;
}
static u64 sum_directed(float a, float b, int mode) {
    long double sum = (long double)a + b, part = sum - a,
                error = ((long double)a - (sum - part)) + ((long double)b - part);
    if (isinf(a) || isinf(b)) error = 0;
    if (sum == 0 && error == 0) { /* exact zero: the sign is the mode's, unless both agree */
        if (signbit(a) && signbit(b)) return 0x80000000;
        return mode == 'm' && (signbit(a) || signbit(b)) ? 0x80000000 : 0;
    }
    return bits32(directed(sum, error > 0 ? 1 : error < 0 ? -1 : 0, mode));
}
ROW(add_rz, sum_directed(a, b, 'z'))
ROW(add_rm, sum_directed(a, b, 'm'))
ROW(add_rp, sum_directed(a, b, 'p'))
static u64 product_directed(float a, float b, int mode) {
    long double product = (long double)a * b;
    float near = (float)product;
    if (product == 0 || near != near || isinf(a) || isinf(b)) return bits32(near);
    return bits32(directed(product, 0, mode));
}
ROW(mul_rz, product_directed(a, b, 'z'))
ROW(mul_rm, product_directed(a, b, 'm'))
ROW(mul_rp, product_directed(a, b, 'p'))
static u64 quotient_directed(float a, float b, int mode) {
    long double q = (long double)a / b;
    float near = (float)q;
    if (a == 0 || b == 0 || near != near || isinf(a) || isinf(b)) return bits32(near);
    /* 64 digits of a quotient of two 24-digit numbers: exact, or its rest does not change the side. */
    return bits32(directed(q, 0, mode));
}
ROW(div_rz, quotient_directed(a, b, 'z'))
ROW(div_rp, quotient_directed(a, b, 'p'))
ROW(rcp_rm, quotient_directed(1, a, 'm'))

static int below(float a, float b) {
    return a < b || (a == b && signbit(a) && !signbit(b));
}
ROW(smallest, a != a ? bits32(b) : b != b ? bits32(a) : below(a, b) ? bits32(a) : bits32(b))
ROW(largest, a != a ? bits32(b) : b != b ? bits32(a) : below(a, b) ? bits32(b) : bits32(a))
ROW(smallest_nan, a != a || b != b ? 0x7fffffff : smallest(x))
ROW(largest_nan, a != a || b != b ? 0x7fffffff : largest(x))
ROW(xorsign, (bits32(a != a                ? fabsf(b)
                     : b != b              ? fabsf(a)
                     : fabsf(a) > fabsf(b) ? fabsf(a)
                                           : fabsf(b)) &
              0x7fffffff) |
                 ((x[0] ^ x[1]) & 0x80000000))
ROW(copied, (x[1] & 0x7fffffff) | (x[0] & 0x80000000))
ROW(eq, a == b)
ROW(ne, a<b || a> b)
ROW(neu, !(a == b))
ROW(lt, a < b)
ROW(ltu, !(a >= b))
ROW(geu, !(a < b))
ROW(equ, a != a || b != b || a == b)
ROW(num, a == a && b == b)
ROW(nan_, a != a || b != b)
ROW(lt_ftz, flush(a) < flush(b))
ROW(set_f32, a < b ? 0x3f800000 : 0)
ROW(is_finite, isfinite(a))
ROW(normal, isnormal(a))
ROW(subnormal, fpclassify(a) == FP_SUBNORMAL)
ROW(slct_f, c >= 0 ? x[0] & 0xffffffff : x[1] & 0xffffffff)

WIDE(add64, bits64(a + b))
WIDE(mul64, bits64(a *b))
WIDE(fma64, bits64(fma(a, b, c)))
WIDE(div64, bits64(a / b))
WIDE(rcp64, bits64(1 / a))
WIDE(sqrt64, bits64(sqrt(a)))
WIDE(lt64, a < b)
WIDE(geu64, !(a < b))
WIDE(min64, a != a ? x[1] : b != b ? x[0] : a < b || (a == b && signbit(a)) ? x[0] : x[1])

static const ptx_row_test single[] = {
    {"add.f32 %R, %r0, %r1;", 'r', add},
    {"add.rn.f32 %R, %r0, %r1;", 'r', add},
    {"sub.f32 %R, %r0, %r1;", 'r', sub},
    {"mul.f32 %R, %r0, %r1;", 'r', mul},
    {"div.rn.f32 %R, %r0, %r1;", 'r', quotient},
    {"rcp.rn.f32 %R, %r0;", 'r', reciprocal},
    {"sqrt.rn.f32 %R, %r0;", 'r', root},
    {"fma.rn.f32 %R, %r0, %r1, %r2;", 'r', fma_near},
    {"neg.f32 %R, %r0;", 'r', neg},
    {"abs.f32 %R, %r0;", 'r', absolute},
    {"add.ftz.f32 %R, %r0, %r1;", 'r', add_ftz},
    {"mul.rn.ftz.f32 %R, %r0, %r1;", 'r', mul_ftz},
    {"mul.sat.f32 %R, %r0, %r1;", 'r', mul_sat},
    {"add.ftz.sat.f32 %R, %r0, %r1;", 'r', add_ftz_sat},
    {"add.rz.f32 %R, %r0, %r1;", 'r', add_rz},
    {"add.rm.f32 %R, %r0, %r1;", 'r', add_rm},
    {"add.rp.f32 %R, %r0, %r1;", 'r', add_rp},
    {"mul.rz.f32 %R, %r0, %r1;", 'r', mul_rz},
    {"mul.rm.f32 %R, %r0, %r1;", 'r', mul_rm},
    {"mul.rp.f32 %R, %r0, %r1;", 'r', mul_rp},
    {"div.rz.f32 %R, %r0, %r1;", 'r', div_rz},
    {"div.rp.f32 %R, %r0, %r1;", 'r', div_rp},
    {"rcp.rm.f32 %R, %r0;", 'r', rcp_rm},
    {"min.f32 %R, %r0, %r1;", 'r', smallest},
    {"max.f32 %R, %r0, %r1;", 'r', largest},
    {"min.NaN.f32 %R, %r0, %r1;", 'r', smallest_nan},
    {"max.NaN.f32 %R, %r0, %r1;", 'r', largest_nan},
    {"max.xorsign.abs.f32 %R, %r0, %r1;", 'r', xorsign},
    {"copysign.f32 %R, %r0, %r1;", 'r', copied},
    {"setp.eq.f32 %P, %r0, %r1;", 'p', eq},
    {"setp.ne.f32 %P, %r0, %r1;", 'p', ne},
    {"setp.neu.f32 %P, %r0, %r1;", 'p', neu},
    {"setp.lt.f32 %P, %r0, %r1;", 'p', lt},
    {"setp.ltu.f32 %P, %r0, %r1;", 'p', ltu},
    {"setp.geu.f32 %P, %r0, %r1;", 'p', geu},
    {"setp.equ.f32 %P, %r0, %r1;", 'p', equ},
    {"setp.num.f32 %P, %r0, %r1;", 'p', num},
    {"setp.nan.f32 %P, %r0, %r1;", 'p', nan_},
    {"setp.lt.ftz.f32 %P, %r0, %r1;", 'p', lt_ftz},
    {"set.lt.f32.f32 %R, %r0, %r1;", 'r', set_f32},
    {"testp.finite.f32 %P, %r0;", 'p', is_finite},
    {"testp.normal.f32 %P, %r0;", 'p', normal},
    {"testp.subnormal.f32 %P, %r0;", 'p', subnormal},
    {"slct.b32.f32 %R, %r0, %r1, %r2;", 'r', slct_f},
};
static const ptx_row_test wide[] = {
    {"setp.lt.f64 %P, %d0, %d1;", 'p', lt64},
    {"setp.geu.f64 %P, %d0, %d1;", 'p', geu64},
};

static void f32_rounds_once(void **state) {
    (void)state;
    ptx_check_rows(single, sizeof single / sizeof single[0], PTX_INPUT_F32);
}

static void f64_compares(void **state) {
    (void)state;
    ptx_check_rows(wide, sizeof wide / sizeof wide[0], PTX_INPUT_F64);
}

/* f64 is the host's own: NaN's bits may differ, nothing else. */
static void f64_is_ieee(void **state) {
    (void)state;
    static const ptx_row_test rows[] = {
        {"add.f64 %D, %d0, %d1;", 'd', add64},         {"mul.rn.f64 %D, %d0, %d1;", 'd', mul64},
        {"fma.rn.f64 %D, %d0, %d1, %d2;", 'd', fma64}, {"div.rn.f64 %D, %d0, %d1;", 'd', div64},
        {"rcp.rn.f64 %D, %d0;", 'd', rcp64},           {"sqrt.rn.f64 %D, %d0;", 'd', sqrt64},
        {"min.f64 %D, %d0, %d1;", 'd', min64},
    };
    static const double values[] = {0.0,       -0.0, 1.0,      -1.5,      1e300, -1e-300,
                                    0x1p-1074, 3.7,  INFINITY, -INFINITY, NAN,   0x1p1023};
    enum { N = sizeof values / sizeof values[0] };
    static ptx_case cases[N * N];
    for (uint32_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        for (uint32_t i = 0; i < N * N; i++) {
            cases[i].in[0] = bits64(values[i / N]);
            cases[i].in[1] = bits64(values[i % N]);
            cases[i].in[2] = bits64(values[i * 5 % N]);
        }
        ptx_run_instruction(rows[r].text, rows[r].kind, cases, N * N);
        for (uint32_t i = 0; i < N * N; i++) {
            u64 want = rows[r].expected(cases[i].in), got = cases[i].out[0];
            if (got != want && !(f64(got) != f64(got) && f64(want) != f64(want)))
                fail_msg("%s: case %u: %a, expected %a", rows[r].text, i, f64(got), f64(want));
        }
    }
}

/* Approximate functions: within what PTX allows, and exact where it says so. */
static void approximations_are_close(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double (*exact)(double);
        double low, high, tolerance;
    } rows[] = {
        {"ex2.approx.f32 %R, %r0;", exp2, -120, 120, 0x1p-22},
        {"ex2.approx.ftz.f32 %R, %r0;", exp2, -120, 120, 0x1p-22},
        {"lg2.approx.f32 %R, %r0;", log2, 2, 1e6, 0x1p-22},
        {"sqrt.approx.f32 %R, %r0;", sqrt, 0, 1e6, 0x1p-22},
        {"sin.approx.f32 %R, %r0;", sin, 0.1, 3, 0x1p-20},
        {"cos.approx.f32 %R, %r0;", cos, -1.5, 1.5, 0x1p-20},
        {"tanh.approx.f32 %R, %r0;", tanh, -8, 8, 0x1p-10},
    };
    enum { N = 500 };
    static ptx_case cases[N];
    for (uint32_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        for (uint32_t i = 0; i < N; i++)
            cases[i].in[0] = bits32((float)(rows[r].low + (rows[r].high - rows[r].low) * i / N));
        ptx_run_instruction(rows[r].text, 'r', cases, N);
        for (uint32_t i = 0; i < N; i++) {
            double want = rows[r].exact((double)f32(cases[i].in[0])), got = (double)f32(cases[i].out[0]);
            if (!(fabs(got - want) <= rows[r].tolerance * fabs(want) + 1e-30))
                fail_msg("%s: %g for %g", rows[r].text, got, want);
        }
    }
    ptx_case edge[3] = {{.in = {0xff800000}}, {.in = {0x7f800000}}, {.in = {0x80000000}}};
    ptx_run_instruction("ex2.approx.f32 %R, %r0;", 'r', edge, 3);
    assert_int_equal(edge[0].out[0], 0);
    assert_int_equal(edge[1].out[0], 0x7f800000);
    assert_int_equal(edge[2].out[0], 0x3f800000);
    ptx_case root[2] = {{.in = {0x40800000}}, {.in = {0x00000000}}};
    ptx_run_instruction("rsqrt.approx.f32 %R, %r0;", 'r', root, 2);
    assert_int_equal(root[0].out[0], 0x3f000000);
    assert_int_equal(root[1].out[0], 0x7f800000);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(f32_rounds_once),
                                              cmocka_unit_test(f64_compares), cmocka_unit_test(f64_is_ieee),
                                              cmocka_unit_test(approximations_are_close)};
    return kvant_run_tests(tests, argc, argv);
}
