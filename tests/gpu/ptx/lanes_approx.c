/* Approximate functions: libm's, rounded once. The hardware's differ within the errors that PTX states. */
#include "lanes.h"

#include <math.h>

#define A                     f32_of(a)
#define B                     f32_of(b)
#define F32(name, expression) LANE_1(name, u32, u32, u32, u32, result_of(expression))
F32(ex2, exp2f(A))
F32(lg2, log2f(A))
F32(rcp, 1.0f / A)
F32(rsqrt, (float)(1.0 / sqrt((double)A)))
F32(square_root, sqrtf(A))
F32(sine, sinf(A))
F32(cosine, cosf(A))
F32(hyperbolic, tanhf(A))
LANE_2(division, u32, u32, u32, u32, u32, u32, result_of(A / B))
LANE_1(rsqrt_f64, u64, u64, u64, u64, wide_bits_of(1.0 / sqrt(f64_of(a))))
/* The upper half of the result, the lower one zero. */
LANE_1(rcp_f64, u64, u64, u64, u64, wide_bits_of(1.0 / f64_of(a)) & 0xffffffff00000000u)

const ptx_row PTX_TABLE(ptx_approx)[] = {
    {"ex2.approx.f32", ex2, "r=r"},          {"lg2.approx.f32", lg2, "r=r"},
    {"rcp.approx.f32", rcp, "r=r"},          {"rsqrt.approx.f32", rsqrt, "r=r"},
    {"rsqrt.approx.f64", rsqrt_f64, "d=d"},  {"rcp.approx.ftz.f64", rcp_f64, "d=d"},
    {"sqrt.approx.f32", square_root, "r=r"}, {"sin.approx.f32", sine, "r=r"},
    {"cos.approx.f32", cosine, "r=r"},       {"tanh.approx.f32", hyperbolic, "r=r"},
    {"div.approx.f32", division, "r=rr"},    {NULL, NULL, NULL},
};
