/* The products of mma (op_mma.c, where the layout of the fragments is drawn). from[]: the slots of A, then
 * of B; from[6] is the instruction. Integers: to is int32_t [16][8], written. Floats: to is double [16][8],
 * added to. */
#include "formats.h"
#include "lanes.h"

enum { MAX_K = 64 };

/* Fills a[16][] and b[][8] by an expression in the element's bits `v`: first all lanes of each register,
 * then each element to its place. */
#define UNPACK(t, bits, value_a, value_b)                                                                    \
    const uint32_t per = 32 / (bits), a_count = k / (2 * per), b_count = a_count / 2;                        \
    t values[6][32 / (bits)][PTX_LANES];                                                                     \
    for (uint32_t r = 0; r < a_count + b_count; r++)                                                         \
        for (uint32_t e = 0; e < per; e++) {                                                                 \
            if (r < a_count)                                                                                 \
                for (uint32_t l = 0; l < PTX_LANES; l++) {                                                   \
                    const uint32_t v = ELEMENT(r, bits);                                                     \
                    values[r][e][l] = (value_a);                                                             \
                }                                                                                            \
            else                                                                                             \
                for (uint32_t l = 0; l < PTX_LANES; l++) {                                                   \
                    const uint32_t v = ELEMENT(r, bits);                                                     \
                    values[r][e][l] = (value_b);                                                             \
                }                                                                                            \
        }                                                                                                    \
    for (uint32_t r = 0; r < a_count; r++)                                                                   \
        for (uint32_t l = 0; l < PTX_LANES; l++)                                                             \
            for (uint32_t e = 0; e < per; e++)                                                               \
                a[l / 4 + 8 * (r % 2)][4 * per * (r / 2) + per * (l % 4) + e] = values[r][e][l];             \
    for (uint32_t r = 0; r < b_count; r++)                                                                   \
        for (uint32_t l = 0; l < PTX_LANES; l++)                                                             \
            for (uint32_t e = 0; e < per; e++)                                                               \
                b[4 * per * r + per * (l % 4) + e][l / 4] = values[a_count + r][e][l];
#define ELEMENT(r, bits)                                                                                     \
    ((bits) == 32 ? ((const uint32_t *)from[r])[l]                                                           \
                  : ((const uint32_t *)from[r])[l] >> ((bits)*e & 31u) & (uint32_t)(((u64)1 << (bits)) - 1))

/* A row of eight sums; without the type, gcc vectorises along k, with shuffles. */
typedef int32_t row_s32 __attribute__((vector_size(32)));
typedef double row_f64 __attribute__((vector_size(64)));
#define MULTIPLY(row_t)                                                                                      \
    for (uint32_t i = 0; i < 16; i += 4) { /* four rows at once: their sums do not wait for each other */    \
        row_t sum[4], row;                                                                                   \
        memcpy(sum, sums[i], sizeof sum);                                                                    \
        for (uint32_t c = 0; c < k; c++) {                                                                   \
            memcpy(&row, b[c], sizeof row);                                                                  \
            for (uint32_t n = 0; n < 4; n++) sum[n] += SPLAT(row_t, a[i + n][c]) * row;                      \
        }                                                                                                    \
        memcpy(sums[i], sum, sizeof sum);                                                                    \
    }
#define SPLAT(row_t, x) ((row_t){(x), (x), (x), (x), (x), (x), (x), (x)})

static inline int32_t whole(uint32_t v, uint32_t bits, uint32_t is_signed) {
    uint32_t sign = is_signed << (bits - 1);
    return (int32_t)((v ^ sign) - sign);
}

/* 64 products of 8 bits fit 32. */
#define INTEGERS(name, bits)                                                                                 \
    static void name(void *restrict to, const void *const *from) {                                           \
        const ptx_insn *insn = from[6];                                                                      \
        const uint32_t k = insn->elements;                                                                   \
        const uint32_t a_signed = ptx_type_is_signed((ptx_type)insn->type),                                  \
                       b_signed = ptx_type_is_signed((ptx_type)insn->type2);                                 \
        int32_t a[16][MAX_K], b[MAX_K][8], (*sums)[8] = to;                                                  \
        memset(to, 0, sizeof(int32_t[16][8]));                                                               \
        UNPACK(int32_t, bits, whole(v, bits, a_signed), whole(v, bits, b_signed))                            \
        MULTIPLY(row_s32)                                                                                    \
    }
INTEGERS(bytes, 8)
INTEGERS(nibbles, 4)

#define REALS(name, bits, value_a, value_b)                                                                  \
    static void name(void *restrict to, const void *const *from) {                                           \
        const ptx_insn *insn = from[6];                                                                      \
        const uint32_t k = insn->elements;                                                                   \
        double a[16][MAX_K], b[MAX_K][8], (*sums)[8] = to;                                                   \
        UNPACK(double, bits, (double)(value_a), (double)(value_b))                                           \
        MULTIPLY(row_f64)                                                                                    \
    }
REALS(f16, 16, half_to_float(v), half_to_float(v))
REALS(bf16, 16, bfloat_to_float(v), bfloat_to_float(v))
/* tf32: the low 13 bits are not looked at. */
REALS(tf32, 32, f32_of(v & ~0x1fffu), f32_of(v & ~0x1fffu))
REALS(fp8, 8, ptx_float_of((ptx_type)insn->type, v), ptx_float_of((ptx_type)insn->type2, v))
static void others(void *restrict to, const void *const *from) {
    const ptx_insn *insn = from[6];
    if (insn->type == PTX_TF32)
        tf32(to, from);
    else
        fp8(to, from);
}

const ptx_row PTX_TABLE(ptx_product)[] = {
    {"product of bytes", bytes, ""}, {"product of nibbles", nibbles, ""}, {"product of f16", f16, ""},
    {"product of bf16", bf16, ""},   {"product of others", others, ""},   {NULL, NULL, NULL},
};
