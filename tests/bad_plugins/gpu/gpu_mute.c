/* Lie: head dims beyond 96 are refused without a word. */
#include "gpu_lie.h"

static kvant_status plan_mute(const kvant_setup *setup, const kvant_layout *layout, kvant_gpu_plan *to,
                              kvant_diag *diag) {
    if (setup->head_dim > 96) return KVANT_ERROR_UNSUPPORTED;
    return honest_plan(setup, layout, to, diag);
}

LYING_GPU(.plan = plan_mute)
