/* Conversions to and from 8 and 4 bits by the toolkit's own functions, for ptx_nvcc.c. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#include <stdint.h>

extern "C" __global__ void __launch_bounds__(128)
    to_fp8(const float2 *__restrict__ x, uint16_t *__restrict__ e4m3, uint16_t *__restrict__ e5m2,
           uint32_t n) {
    uint32_t i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    e4m3[i] = __nv_cvt_float2_to_fp8x2(x[i], __NV_SATFINITE, __NV_E4M3);
    e5m2[i] = __nv_cvt_float2_to_fp8x2(x[i], __NV_SATFINITE, __NV_E5M2);
}

extern "C" __global__ void __launch_bounds__(128)
    from_fp8(const uint16_t *__restrict__ x, __half2 *__restrict__ e4m3, __half2 *__restrict__ e5m2,
             uint32_t n) {
    uint32_t i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    e4m3[i] = __half2(__nv_cvt_fp8x2_to_halfraw2(x[i], __NV_E4M3));
    e5m2[i] = __half2(__nv_cvt_fp8x2_to_halfraw2(x[i], __NV_E5M2));
}

extern "C" __global__ void __launch_bounds__(128)
    fp4(const float2 *__restrict__ x, uint8_t *__restrict__ codes, __half2 *__restrict__ back,
        uint8_t *__restrict__ scales, uint32_t n) {
    uint32_t i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    codes[i] = __nv_cvt_float2_to_fp4x2(x[i], __NV_E2M1, cudaRoundNearest);
    back[i] = __half2(__nv_cvt_fp4x2_to_halfraw2(codes[i], __NV_E2M1));
    scales[i] = __nv_cvt_float_to_e8m0(x[i].x, __NV_SATFINITE, cudaRoundPosInf);
}

/* Half arithmetic in pairs, through the toolkit's operators. */
extern "C" __global__ void __launch_bounds__(128)
    halves(const __half2 *__restrict__ a, const __half2 *__restrict__ b, __half2 *__restrict__ f,
           __nv_bfloat162 *__restrict__ w, uint32_t n) {
    uint32_t i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    __half2 x = a[i], y = b[i];
    f[i] = __hadd2(__hmul2_rn(x, y), __hfma2(x, x, __hmax2(x, y)));
    __nv_bfloat162 p = __float22bfloat162_rn(__half22float2(x)), q = __float22bfloat162_rn(__half22float2(y));
    w[i] = __hfma2(p, q, __hmin2(p, __hsub2(q, p)));
}
