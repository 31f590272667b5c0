/* Lie: the encoder says that it used a byte less than it did. */
#include "gpu_lie.h"

static kvant_status upload_short(const void *state, const kvant_gpu_plan *from, void *device_state) {
    kvant_status status = honest_upload(state, from, device_state);
    ((kivi_gpu_state *)device_state)->bytes--;
    return status;
}

LYING_GPU(.upload = upload_short)
