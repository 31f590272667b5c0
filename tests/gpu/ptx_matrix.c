/* ldmatrix, stmatrix, movmatrix and mma against matrices laid out by PTX's own formulas for each shape. */
#include "support/ptx_fixture.h"
#include "support/ptx_formats.h"

#include <stdio.h>

typedef uint32_t u32;

#define HEAD                                                                                                 \
    ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 x, .param .u64 y)\n{\n"    \
    ".reg .b32 %r<40>; .reg .f32 %f<8>; .reg .b64 %d<8>; .reg .pred %p;\n"                                   \
    "ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y]; mov.u32 %r30, %laneid; mul.wide.u32 %d3, %r30, 64; "      \
    "add.u64 %d4, %d1, %d3; add.u64 %d5, %d2, %d3;\n"

/* Each lane's 16 words of x in %r0.. (and as floats), 16 of y from %r16..: `text` in between. */
static void run_warp(const char *text, const u32 *x, u32 *y) {
    static char whole[8192];
    snprintf(whole, sizeof whole, "%s%s", HEAD, "");
    size_t at = strlen(whole);
    for (int i = 0; i < 16; i++)
        at += (size_t)snprintf(whole + at, sizeof whole - at,
                               "ld.global.u32 %%r%d, [%%d4+%d]; mov.u32 %%r%d, 0;\n", i, 4 * i,
                               16 + (i < 14 ? i : 0));
    at += (size_t)snprintf(whole + at, sizeof whole - at, "mov.u32 %%r30, %%laneid;\n%s\n", text);
    for (int i = 0; i < 8; i++)
        at += (size_t)snprintf(whole + at, sizeof whole - at, "st.global.u32 [%%d5+%d], %%r%d;\n", 4 * i,
                               16 + i);
    snprintf(whole + at, sizeof whole - at, "ret;\n}\n");
    ptx_fixture f;
    ptx_fixture_open(&f, whole);
    u32 *in = ptx_memory_alloc(f.machine, 2048, "x"), *out = ptx_memory_alloc(f.machine, 2048, "y");
    memcpy(in, x, 2048);
    void *const arguments[] = {&in, &out};
    ptx_fixture_run(&f, 1, 32, 0, arguments);
    memcpy(y, out, 2048);
    ptx_fixture_close(&f);
}

/* 32 rows of 16 bytes in shared memory, row r at 48 r; element e of row r is 256 r + e. Lane l loads row 31
 * - l. */
#define ROWS                                                                                                 \
    ".shared .align 16 .b8 m[1536]; mad.lo.u32 %r31, %r30, 48, m; st.shared.v4.u32 [%r31], {%r0, %r1, %r2, " \
    "%r3}; sub.u32 %r32, 31, %r30; mad.lo.u32 %r32, %r32, 48, m; bar.sync 0;\n"
static void matrices_are_loaded(void **state) {
    (void)state;
    u32 x[512] = {0}, y[512];
    for (u32 l = 0; l < 32; l++)
        for (u32 w = 0; w < 4; w++) x[l * 16 + w] = (256 * l + 2 * w) | (256 * l + 2 * w + 1) << 16;
    static const struct {
        const char *text;
        u32 count, transposed;
    } rows[] = {{"ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r16}, [%r32];", 1, 0},
                {"ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r16, %r17}, [%r32];", 2, 0},
                {"ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%r16, %r17, %r18, %r19}, [%r32];", 4, 0},
                {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r16, %r17, %r18, %r19}, [%r32];", 4, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[1024];
        snprintf(text, sizeof text, "%s%s", ROWS, rows[i].text);
        run_warp(text, x, y);
        for (u32 l = 0; l < 32; l++)
            for (u32 m = 0; m < rows[i].count; m++)
                for (u32 e = 0; e < 2; e++) {
                    u32 row = rows[i].transposed ? 2 * (l % 4) + e : l / 4,
                        column = rows[i].transposed ? l / 4 : 2 * (l % 4) + e;
                    assert_int_equal(y[l * 16 + m] >> 16 * e & 0xffff, 256 * (31 - (8 * m + row)) + column);
                }
    }
}

/* What stmatrix stores, ldmatrix loads; and rows lie where they should. */
static void matrices_are_stored(void **state) {
    (void)state;
    u32 x[512], y[512];
    for (u32 i = 0; i < 512; i++) x[i] = i * 0x01010203u;
    run_warp(".shared .align 16 .b8 m[512]; mad.lo.u32 %r31, %r30, 16, m; "
             "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r31], {%r0, %r1, %r2, %r3}; bar.sync 0;\n"
             "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r16, %r17, %r18, %r19}, [%r31]; ld.shared.v4.u32 "
             "{%r20, %r21, %r22, %r23}, [%r31];",
             x, y);
    for (u32 l = 0; l < 32; l++)
        for (u32 m = 0; m < 4; m++) {
            assert_int_equal(y[l * 16 + m], x[l * 16 + m]);
            assert_int_equal(y[l * 16 + 4 + m],
                             x[(l % 8 * 4 + m) * 16 + l / 8]); /* word m of row l%8 of matrix l/8 */
        }
    run_warp(".shared .align 16 .b8 m[512]; mad.lo.u32 %r31, %r30, 16, m; "
             "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%r31], {%r0, %r1}; bar.sync 0;\n"
             "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r16, %r17}, [%r31]; "
             "movmatrix.sync.aligned.m8n8.trans.b16 %r18, %r0;",
             x, y);
    for (u32 l = 0; l < 32; l++) {
        assert_int_equal(y[l * 16], y[l * 16 + 2]); /* transposed on its way, as movmatrix does */
        for (u32 e = 0; e < 2; e++) {
            u32 row = 2 * (l % 4) + e, column = l / 4;
            assert_int_equal(y[l * 16] >> 16 * e & 0xffff,
                             x[(row * 4 + column / 2) * 16] >> 16 * (column % 2) & 0xffff);
        }
    }
}

/* ---- mma ----------------------------------------------------------------------------------------------- */

typedef enum kind { F16, BF16, TF32, E4M3, E5M2, S8, U8, S4, U4 } kind;
static const u32 widths[] = {16, 16, 32, 8, 8, 8, 8, 4, 4};
static const char *const names[] = {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "s4", "u4"};

static double value(kind k, u32 bits) {
    float f;
    switch (k) {
    case F16:
        return test_f16_value(bits);
    case BF16:
        return test_bf16_value(bits);
    case TF32:
        bits &= 0xffffe000;
        memcpy(&f, &bits, 4);
        return (double)f;
    case E4M3:
        return test_code_value(bits, 4, 3, 7);
    case E5M2:
        return test_code_value(bits, 5, 2, 15);
    case S8:
        return (int8_t)bits;
    case S4:
        return bits > 7 ? (double)bits - 16 : bits;
    default:
        return bits;
    }
}
static u32 some_bits(kind k, uint64_t *seed) {
    u32 r = (u32)kvant_test_random(seed);
    double x = (double)(int)(r % 255) / 16 - 8;
    float f = (float)x;
    switch (k) {
    case F16:
        return test_f16_bits(test_f16(x));
    case BF16:
        return test_bf16_bits(test_bf16(x));
    case TF32:
        memcpy(&r, &f, 4);
        return r | 0xfff; /* low bits that are not looked at */
    case E4M3:
        return test_nearest_code(x, 4, 3, 7, 0x7e);
    case E5M2:
        return test_nearest_code(x, 5, 2, 15, 0x7b);
    default:
        return r & ((1u << widths[k]) - 1);
    }
}

/* Element (row, column) of A: lane and bit position by PTX's tables: groupID = row % 8, a register for each
 * half of the rows and (in the larger shapes) of the columns. */
static void put(u32 *registers, u32 lane, u32 reg, u32 position, u32 width, u32 bits) {
    registers[lane * 16 + reg] |= bits << position * width;
}

static void check_mma(const char *shape, kind a, kind b, u32 k, const char *sum, int saturate) {
    u32 width = widths[a], per = 32 / width, halves = k / (4 * per), integers = a >= S8,
        half_sums = strcmp(sum, "f16") == 0;
    uint64_t seed = k + a * 16 + b;
    u32 x[512] = {0}, y[512];
    double A[16][64], B[64][8], C[16][8];
    for (u32 i = 0; i < 16; i++)
        for (u32 j = 0; j < k; j++) {
            u32 bits = some_bits(a, &seed), inner = j % (4 * per);
            A[i][j] = value(a, bits);
            put(x, i % 8 * 4 + inner / per, i / 8 + 2 * (j / (4 * per)), inner % per, width, bits);
        }
    for (u32 j = 0; j < k; j++)
        for (u32 n = 0; n < 8; n++) {
            u32 bits = some_bits(b, &seed), inner = j % (4 * per);
            B[j][n] = value(b, bits);
            put(x, n * 4 + inner / per, 2 * halves + j / (4 * per), inner % per, width, bits);
        }
    u32 at = 3 * halves;
    for (u32 i = 0; i < 16; i++)
        for (u32 n = 0; n < 8; n++) {
            u32 lane = i % 8 * 4 + n / 2;
            if (integers) {
                int32_t c = saturate ? (i % 2 ? INT32_MAX - (int)n * 50 : INT32_MIN + (int)n * 50)
                                     : (int32_t)(kvant_test_random(&seed) % 20000) - 10000;
                C[i][n] = c;
                x[lane * 16 + at + n % 2 + 2 * (i / 8)] = (u32)c;
            } else if (half_sums) {
                C[i][n] = test_f16(kvant_test_normal(&seed));
                put(x, lane, at + i / 8, n % 2, 16, test_f16_bits(C[i][n]));
            } else {
                float c = (float)kvant_test_normal(&seed);
                C[i][n] = (double)c;
                memcpy(&x[lane * 16 + at + n % 2 + 2 * (i / 8)], &c, 4);
            }
        }
    char text[1024], list[4][64] = {"", "", "", ""};
    u32 next = 0;
    const u32 counts[3] = {2 * halves, halves, half_sums ? 2 : 4};
    for (int o = 0; o < 3; o++)
        for (u32 r = 0; r < counts[o]; r++) {
            size_t used = strlen(list[o]);
            snprintf(list[o] + used, sizeof list[o] - used, "%s%%r%u", r ? "," : "", next++);
        }
    snprintf(text, sizeof text, "mma.sync.aligned.%s.row.col%s.%s.%s.%s.%s {%s}, {%s}, {%s}, {%s};", shape,
             saturate ? ".satfinite" : "", sum, names[a], names[b], sum,
             half_sums ? "%r16,%r17" : "%r16,%r17,%r18,%r19", list[0], list[1], list[2]);
    run_warp(text, x, y);
    for (u32 i = 0; i < 16; i++)
        for (u32 n = 0; n < 8; n++) {
            double want = C[i][n];
            for (u32 j = 0; j < k; j++) want += A[i][j] * B[j][n];
            u32 lane = i % 8 * 4 + n / 2, word = y[lane * 16 + (half_sums ? i / 8 : n % 2 + 2 * (i / 8))];
            if (integers) {
                if (saturate) want = want > INT32_MAX ? INT32_MAX : want < INT32_MIN ? INT32_MIN : want;
                if ((int32_t)word != (int32_t)(int64_t)want)
                    fail_msg("%s: (%u,%u) is %d, expected %g", text, i, n, (int32_t)word, want);
            } else if (half_sums) {
                assert_int_equal(word >> 16 * (n % 2) & 0xffff, test_f16_bits(test_f16(want)));
            } else {
                float got;
                memcpy(&got, &word, 4);
                kvant_assert_close(got, want, 1e-6 * (fabs(want) + 1));
            }
        }
}

static void products_of_every_shape(void **state) {
    (void)state;
    check_mma("m16n8k16", F16, F16, 16, "f32", 0);
    check_mma("m16n8k8", F16, F16, 8, "f32", 0);
    check_mma("m16n8k16", F16, F16, 16, "f16", 0);
    check_mma("m16n8k8", F16, F16, 8, "f16", 0);
    check_mma("m16n8k16", BF16, BF16, 16, "f32", 0);
    check_mma("m16n8k8", BF16, BF16, 8, "f32", 0);
    check_mma("m16n8k8", TF32, TF32, 8, "f32", 0);
    check_mma("m16n8k4", TF32, TF32, 4, "f32", 0);
    check_mma("m16n8k32", E4M3, E4M3, 32, "f32", 0);
    check_mma("m16n8k32", E5M2, E4M3, 32, "f32", 0);
    check_mma("m16n8k16", E4M3, E5M2, 16, "f32", 0);
    static const kind eights[] = {S8, U8}, fours[] = {S4, U4};
    for (int a = 0; a < 2; a++)
        for (int b = 0; b < 2; b++)
            for (int saturate = 0; saturate < 2; saturate++) {
                check_mma("m16n8k32", eights[a], eights[b], 32, "s32", saturate);
                check_mma("m16n8k16", eights[a], eights[b], 16, "s32", saturate);
                check_mma("m16n8k64", fours[a], fours[b], 64, "s32", saturate);
                check_mma("m16n8k32", fours[a], fours[b], 32, "s32", saturate);
            }
}

/* One rounding of the exact sum: what a chain of roundings to f32 would lose. */
static void sums_are_rounded_once(void **state) {
    (void)state;
    u32 x[512] = {0}, y[512];
    float big = 0x1p24f;
    for (u32 l = 0; l < 32; l++) {
        for (u32 r = 0; r < 4; r++) x[l * 16 + r] = 0x3c003c00; /* 1 */
        for (u32 r = 4; r < 6; r++) x[l * 16 + r] = 0x38003800; /* 1/2 */
        for (u32 r = 6; r < 10; r++) memcpy(&x[l * 16 + r], &big, 4);
    }
    run_warp("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%r16,%r17,%r18,%r19}, {%r0,%r1,%r2,%r3}, "
             "{%r4,%r5}, {%r6,%r7,%r8,%r9};",
             x, y);
    float got;
    memcpy(&got, &y[3], 4);
    assert_true(got == 0x1p24f + 8);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_are_loaded), cmocka_unit_test(matrices_are_stored),
        cmocka_unit_test(products_of_every_shape), cmocka_unit_test(sums_are_rounded_once)};
    return kvant_run_tests(tests, argc, argv);
}
