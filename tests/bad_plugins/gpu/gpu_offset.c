/* Lie: kernels look for the scales of values where the minima are. */
#include "gpu_lie.h"

static kvant_status upload_shifted(const void *state, const kvant_gpu_plan *from, void *device_state) {
    kvant_status status = honest_upload(state, from, device_state);
    kivi_gpu_state *to = device_state;
    if (((const kivi_state *)state)->block.side == KVANT_SIDE_VALUE) to->scale_offset = to->min_offset;
    return status;
}

LYING_GPU(.upload = upload_shifted)
