/* Arithmetic that rounds towards zero, down or up: the host's rounding mode, set for one row at a time.
 * Compiled with -frounding-math. */
#include "lanes.h"

#include <fenv.h>
#include <math.h>

/* volatile keeps the operation between the two calls. */
#define ROUNDED(name, t, real_t, view, back, count, expression, mode)                                        \
    static void name(void *restrict to_, const void *const *from) {                                          \
        t *restrict to = to_;                                                                                \
        const t *a_ = from[0], *b_ = from[(count) > 1], *c_ = from[(count) > 2 ? 2 : 0];                     \
        fesetround(mode);                                                                                    \
        for (int l = 0; l < PTX_LANES; l++) {                                                                \
            volatile real_t a = view(a_[l]), b = view(b_[l]), c = view(c_[l]);                               \
            (void)b, (void)c;                                                                                \
            volatile real_t r = (expression);                                                                \
            to[l] = back(r);                                                                                 \
        }                                                                                                    \
        fesetround(FE_TONEAREST);                                                                            \
    }
#define MODES(op, count, expression, wide_expression)                                                        \
    ROUNDED(op##_rz_f32, u32, float, f32_of, result_of, count, expression, FE_TOWARDZERO)                    \
    ROUNDED(op##_rm_f32, u32, float, f32_of, result_of, count, expression, FE_DOWNWARD)                      \
    ROUNDED(op##_rp_f32, u32, float, f32_of, result_of, count, expression, FE_UPWARD)                        \
    ROUNDED(op##_rz_f64, u64, double, f64_of, wide_bits_of, count, wide_expression, FE_TOWARDZERO)           \
    ROUNDED(op##_rm_f64, u64, double, f64_of, wide_bits_of, count, wide_expression, FE_DOWNWARD)             \
    ROUNDED(op##_rp_f64, u64, double, f64_of, wide_bits_of, count, wide_expression, FE_UPWARD)
MODES(add, 2, a + b, a + b)
MODES(sub, 2, a - b, a - b)
MODES(mul, 2, a *b, a *b)
MODES(div, 2, a / b, a / b)
MODES(fma, 3, fmaf(a, b, c), fma(a, b, c))
MODES(rcp, 1, 1.0f / a, 1.0 / a)
MODES(sqrt, 1, sqrtf(a), sqrt(a))

#define ROWS(op, r, d)                                                                                       \
    {#op ".rz.f32", op##_rz_f32, r}, {#op ".rm.f32", op##_rm_f32, r}, {#op ".rp.f32", op##_rp_f32, r},       \
        {#op ".rz.f64", op##_rz_f64, d}, {#op ".rm.f64", op##_rm_f64, d}, {                                  \
#op ".rp.f64", op##_rp_f64, d                                                                        \
    }
const ptx_row PTX_TABLE(ptx_rounded)[] = {
    ROWS(add, "r=rr", "d=dd"), ROWS(sub, "r=rr", "d=dd"),   ROWS(mul, "r=rr", "d=dd"),
    ROWS(div, "r=rr", "d=dd"), ROWS(fma, "r=rrr", "d=ddd"), ROWS(rcp, "r=r", "d=d"),
    ROWS(sqrt, "r=r", "d=d"),  {NULL, NULL, NULL},
};
