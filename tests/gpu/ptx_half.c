/* f16 and bf16 arithmetic: every operand pair of edges and random ones against exact sums rounded once. */
#include "support/ptx_fixture.h"
#include "support/ptx_formats.h"

typedef uint64_t u64;
typedef uint32_t u32;

/* The exact value of a*b + c need not fit a double for bf16: what is lost is below one part in 2^53, and
 * matters only at a tie, so the sum is nudged off it. */
static double exact_fma(double a, double b, double c) {
    double product = a * b, sum = product + c;
    if (!isfinite(sum)) return sum;
    double part = sum - product, error = (product - (sum - part)) + (c - part);
    return error == 0 ? sum : nextafter(sum, error > 0 ? INFINITY : -INFINITY);
}

typedef struct format {
    double (*value)(u32);
    double (*rounded)(double);
    u32 (*bits)(double);
    u32 infinity;
} format;
static u32 nan_16(double x, u32 bits) {
    return x != x ? 0x7fff : bits;
}
static u32 f16_bits(double x) {
    return nan_16(x, test_f16_bits(x));
}
static u32 bf16_bits(double x) {
    return nan_16(x, test_bf16_bits(x));
}
static const format f16 = {test_f16_value, test_f16, f16_bits, 0x7c00},
                    bf16 = {test_bf16_value, test_bf16, bf16_bits, 0x7f80};

enum { ADD, SUB, MUL, FMA, FMA_RELU, FMA_SAT, NEG, ABS, MIN, MAX, MIN_NAN, MAX_NAN, ADD_FTZ, LT, GEU, NE };

static u32 one(const format *f, int op, u32 x, u32 y, u32 z) {
    double a = f->value(x), b = f->value(y), c = f->value(z), r;
    int nan_x = a != a, nan_y = b != b;
    double least = f->value(f->infinity == 0x7c00 ? 0x400 : 0x80);
    switch (op) {
    case ADD:
        return f->bits(f->rounded(a + b));
    case SUB:
        return f->bits(f->rounded(a - b));
    case MUL:
        return f->bits(f->rounded(a * b));
    case FMA:
        return f->bits(f->rounded(exact_fma(a, b, c)));
    case FMA_RELU:
        r = f->rounded(exact_fma(a, b, c));
        return f->bits(r != r ? r : signbit(r) ? 0 : r);
    case FMA_SAT:
        r = f->rounded(exact_fma(a, b, c));
        return f->bits(r > 0 ? fmin(r, 1) : 0);
    case NEG:
        return x ^ 0x8000;
    case ABS:
        return x & 0x7fff;
    case MIN:
    case MAX:
        if (nan_x && nan_y) return 0x7fff;
        if (nan_x || nan_y) return nan_x ? y : x;
        if (a == b) return (signbit(a) != 0) == (op == MIN) ? x : y;
        return (a < b) == (op == MIN) ? x : y;
    case MIN_NAN:
        return nan_x || nan_y ? 0x7fff : one(f, MIN, x, y, z);
    case MAX_NAN:
        return nan_x || nan_y ? 0x7fff : one(f, MAX, x, y, z);
    case ADD_FTZ:
        if (fabs(a) < least) a = copysign(0, a);
        if (fabs(b) < least) b = copysign(0, b);
        r = f->rounded(a + b);
        return f->bits(fabs(r) < least ? copysign(0, r) : r);
    case LT:
        return (u32)(a < b);
    case GEU:
        return (u32) !(a < b);
    default:
        return (u32)(a < b || a > b);
    }
}
static u64 two(const format *f, int op, const u64 *x) {
    return (u64)one(f, op, (u32)x[0] >> 16, (u32)x[1] >> 16, (u32)x[2] >> 16) << 16 |
           one(f, op, (u32)x[0] & 0xffff, (u32)x[1] & 0xffff, (u32)x[2] & 0xffff);
}
#define ROWS(format, op)                                                                                     \
    static u64 format##_##op(const u64 *x) {                                                                 \
        return one(&format, op, (u32)x[0] & 0xffff, (u32)x[1] & 0xffff, (u32)x[2] & 0xffff);                 \
    }                                                                                                        \
    static u64 format##_##op##_x2(const u64 *x) {                                                            \
        return two(&format, op, x);                                                                          \
    }
#define BOTH(op) ROWS(f16, op) ROWS(bf16, op)
BOTH(ADD)
BOTH(SUB)
BOTH(MUL)
BOTH(FMA)
BOTH(FMA_RELU)
BOTH(NEG)
BOTH(ABS)
BOTH(MIN)
BOTH(MAX)
BOTH(MIN_NAN)
BOTH(MAX_NAN)
ROWS(f16, FMA_SAT)
ROWS(f16, ADD_FTZ)
BOTH(LT)
BOTH(GEU)
BOTH(NE)
/* p of the low halves, q of the high ones. */
static u64 f16_both_lt(const u64 *x) {
    u64 r = two(&f16, LT, x);
    return (r & 1) + (r >> 16 & 1) * 2;
}
static u64 f16_set(const u64 *x) {
    u64 r = two(&f16, LT, x);
    return (r & 1) * 0x3c00 + (r >> 16 & 1) * 0x3c000000;
}

#define TESTS(type, f)                                                                                       \
    {"add." type " %H, %h0, %h1;", 'h', f##_ADD}, {"add." type "x2 %R, %r0, %r1;", 'r', f##_ADD_x2},         \
        {"sub." type " %H, %h0, %h1;", 'h', f##_SUB}, {"sub.rn." type "x2 %R, %r0, %r1;", 'r', f##_SUB_x2},  \
        {"mul.rn." type " %H, %h0, %h1;", 'h', f##_MUL}, {"mul." type "x2 %R, %r0, %r1;", 'r', f##_MUL_x2},  \
        {"fma.rn." type " %H, %h0, %h1, %h2;", 'h', f##_FMA},                                                \
        {"fma.rn." type "x2 %R, %r0, %r1, %r2;", 'r', f##_FMA_x2},                                           \
        {"fma.rn.relu." type " %H, %h0, %h1, %h2;", 'h', f##_FMA_RELU},                                      \
        {"fma.rn.relu." type "x2 %R, %r0, %r1, %r2;", 'r', f##_FMA_RELU_x2},                                 \
        {"neg." type " %H, %h0;", 'h', f##_NEG}, {"neg." type "x2 %R, %r0;", 'r', f##_NEG_x2},               \
        {"abs." type " %H, %h0;", 'h', f##_ABS}, {"abs." type "x2 %R, %r0;", 'r', f##_ABS_x2},               \
        {"min." type " %H, %h0, %h1;", 'h', f##_MIN}, {"min." type "x2 %R, %r0, %r1;", 'r', f##_MIN_x2},     \
        {"max." type " %H, %h0, %h1;", 'h', f##_MAX}, {"max." type "x2 %R, %r0, %r1;", 'r', f##_MAX_x2},     \
        {"min.NaN." type "x2 %R, %r0, %r1;", 'r', f##_MIN_NAN_x2},                                           \
        {"max.NaN." type " %H, %h0, %h1;", 'h', f##_MAX_NAN},                                                \
        {"min.NaN." type " %H, %h0, %h1;", 'h', f##_MIN_NAN},                                                \
        {"max.NaN." type "x2 %R, %r0, %r1;", 'r', f##_MAX_NAN_x2},                                           \
        {"setp.lt." type " %P, %h0, %h1;", 'p', f##_LT}, {"setp.geu." type " %P, %h0, %h1;", 'p', f##_GEU},  \
    {                                                                                                        \
        "setp.ne." type " %P, %h0, %h1;", 'p', f##_NE                                                        \
    }

static const ptx_row_test f16_rows[] = {
    TESTS("f16", f16),
    {"fma.rn.sat.f16 %H, %h0, %h1, %h2;", 'h', f16_FMA_SAT},
    {"fma.rn.sat.f16x2 %R, %r0, %r1, %r2;", 'r', f16_FMA_SAT_x2},
    {"add.ftz.f16 %H, %h0, %h1;", 'h', f16_ADD_FTZ},
    {"add.ftz.f16x2 %R, %r0, %r1;", 'r', f16_ADD_FTZ_x2},
    {"setp.lt.f16x2 %p2|%p3, %r0, %r1; selp.b32 %R, 1, 0, %p2; selp.b32 %r2, 2, 0, %p3; add.u32 %R, %R, %r2;",
     'r', f16_both_lt},
    {"set.lt.f16x2.f16x2 %R, %r0, %r1;", 'r', f16_set},
};
static const ptx_row_test bf16_rows[] = {TESTS("bf16", bf16)};
/* Used only in pairs or alone. */
static ptx_expected *const unused[] = {f16_LT_x2, f16_GEU_x2, f16_NE_x2, bf16_LT_x2, bf16_GEU_x2, bf16_NE_x2};

static void f16_rounds_once(void **state) {
    (void)state;
    ptx_check_rows(f16_rows, sizeof f16_rows / sizeof f16_rows[0], PTX_INPUT_F16);
}

static void bf16_rounds_once(void **state) {
    (void)state;
    (void)unused;
    ptx_check_rows(bf16_rows, sizeof bf16_rows / sizeof bf16_rows[0], PTX_INPUT_BF16);
}

static void approximations_are_close(void **state) {
    (void)state;
    static const struct {
        const char *text;
        const format *f;
        double (*exact)(double), tolerance;
    } rows[] = {{"ex2.approx.f16 %H, %h0;", &f16, exp2, 0x1p-9},
                {"ex2.approx.ftz.bf16 %H, %h0;", &bf16, exp2, 0x1p-7},
                {"tanh.approx.f16 %H, %h0;", &f16, tanh, 0x1p-9},
                {"tanh.approx.bf16 %H, %h0;", &bf16, tanh, 0x1p-7}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        ptx_case cases[200];
        for (int i = 0; i < 200; i++) cases[i].in[0] = rows[r].f->bits(rows[r].f->rounded((i - 100) / 16.0));
        ptx_run_instruction(rows[r].text, 'h', cases, 200);
        for (int i = 0; i < 200; i++) {
            double want = rows[r].exact(rows[r].f->value((u32)cases[i].in[0])),
                   got = rows[r].f->value((u32)cases[i].out[0]);
            kvant_assert_close(got, want, rows[r].tolerance * fabs(want) + 1e-9);
        }
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(f16_rounds_once),
                                              cmocka_unit_test(bf16_rounds_once),
                                              cmocka_unit_test(approximations_are_close)};
    return kvant_run_tests(tests, argc, argv);
}
