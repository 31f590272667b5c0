/* The arithmetic of one group, kivi_group.h for kernels: the same operations, one rounding each. What DTYPE,
 * the type of the rows, decides is decided when compiling. */
#ifndef KVANT_KIVI_GROUP_CUH
#define KVANT_KIVI_GROUP_CUH

#include "kivi_gpu.h"

#include <kvant/kit/rows.cuh>

/* As stored. A scale is never negative: its sign says that max - min overflows the rows' type. */
struct kivi_fit {
    float scale;
    float min;
};

__device__ __forceinline__ float kivi_saturate(float x, float largest, uint32_t &saturated) {
    if (x >= -largest && x <= largest) return x;
    saturated += 1;
    return copysignf(largest, x);
}

template <uint32_t DTYPE>
__device__ __forceinline__ kivi_fit kivi_fit_group(const kivi_gpu_state &s, float min, float max,
                                                   uint32_t &saturated) {
    float levels = (float)s.levels, range = kvant_round(DTYPE, __fsub_rn(max, min));
    bool wide = range > kvant_largest(DTYPE);
    float scale = wide ? __double2float_rn(__ddiv_rn(__dsub_rn((double)max, (double)min), (double)s.levels))
                       : __fdiv_rn(range, levels);
    uint32_t overflows = 0;
    scale = kivi_saturate(kvant_round(DTYPE, scale), kvant_largest(DTYPE), overflows);
    scale = kivi_saturate(kvant_round(s.meta, scale), kvant_largest(s.meta), overflows);
    saturated += overflows > 0;
    min = kivi_saturate(kvant_round(s.meta, __fadd_rn(min, 0.0f)), kvant_largest(s.meta), saturated);
    kivi_fit fit = {wide ? -scale : scale, min};
    return fit;
}

template <uint32_t DTYPE> __device__ __forceinline__ uint32_t kivi_code(float levels, kivi_fit fit, float x) {
    if (fit.scale > 0) {
        float ratio = kvant_round(DTYPE, __fdiv_rn(kvant_round(DTYPE, __fsub_rn(x, fit.min)), fit.scale));
        ratio = ratio > 0 ? ratio : 0;
        ratio = ratio < levels ? ratio : levels;
        return __float_as_uint(__fadd_rn(ratio, 0x1p23f)) & 0xffu; /* to an integer, ties to even */
    }
    if (fit.scale < 0) {
        double ratio = __ddiv_rn(__dsub_rn((double)x, (double)fit.min), -(double)fit.scale);
        ratio = ratio > 0 ? ratio : 0;
        ratio = ratio < (double)levels ? ratio : (double)levels;
        return (uint32_t)__dsub_rn(__dadd_rn(ratio, 0x1p52), 0x1p52);
    }
    return 0;
}

/* `largest`: of the rows' type. */
__device__ __forceinline__ float kivi_value(float levels, float largest, float scale, float min,
                                            uint32_t code) {
    float top = __fadd_rn(__fmul_rn(levels, scale), min);
    if (top >= -largest && top <= largest) return __fadd_rn(__fmul_rn((float)code, scale), min);
    double x = __dadd_rn(__dmul_rn((double)code, (double)scale), (double)min), most = (double)largest;
    x = x > most ? most : x;
    return __double2float_rn(x < -most ? -most : x);
}

#endif
