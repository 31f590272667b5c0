/* Lie: the device's state counts uploads. */
#include "gpu_lie.h"

static kvant_status upload_counted(const void *state, const kvant_gpu_plan *from, void *device_state) {
    static uint32_t count;
    kvant_status status = honest_upload(state, from, device_state);
    kivi_gpu_state *to = device_state;
    to->levels += count++;
    return status;
}

LYING_GPU(.upload = upload_counted)
