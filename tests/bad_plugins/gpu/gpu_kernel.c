/* Lie: keys are encoded by the kernel of values. */
#include "gpu_lie.h"

static kvant_status plan_values(const kvant_setup *setup, const kvant_layout *layout, kvant_gpu_plan *to,
                                kvant_diag *diag) {
    kvant_status status = honest_plan(setup, layout, to, diag);
    for (uint32_t i = 0; i < to->kernel_count; i++) {
        kvant_gpu_kernel *k = &to->kernels[i];
        if (k->call != KVANT_GPU_ENCODE || setup->side != KVANT_SIDE_KEY) continue;
        static const char *const names[] = {"", "kivi_encode_values_f32", "kivi_encode_values_f16",
                                            "kivi_encode_values_bf16"};
        memset(k->name, 0, sizeof k->name);
        (void)snprintf(k->name, sizeof k->name, "%s", names[setup->dtype]);
        k->shared_bytes = KIVI_GPU_GROUPS * KIVI_GPU_TOKENS * 2 * (uint32_t)sizeof(float);
    }
    return status;
}

LYING_GPU(.plan = plan_values)
