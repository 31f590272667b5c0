/* The core's own kernels, one translation unit. core_kernels.h says what they do and what their jobs are. */
#include "attend_rows.cuh"
#include "merge.cuh"
#include "rows.cuh"
#include "soften.cuh"

#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)

KERNEL(CORE_ROWS_THREADS, 4) kvant_core_rows(const __grid_constant__ kvant_gpu_call call) {
    core_rows(call);
}

KERNEL(CORE_ATTEND_THREADS, 3) kvant_core_attend(const __grid_constant__ kvant_gpu_call call) {
    core_attend(call);
}

KERNEL(CORE_SOFTEN_THREADS, 8) kvant_core_soften(const __grid_constant__ kvant_gpu_call call) {
    core_soften(call);
}

KERNEL(CORE_MERGE_THREADS, 4) kvant_core_merge(const __grid_constant__ kvant_gpu_call call) {
    core_merge(call);
}
