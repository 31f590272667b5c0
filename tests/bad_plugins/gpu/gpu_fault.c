/* Lie: attention writes to memory that is none. Its kernel is in lie_attend.cu. */
#include "gpu_lie.h"

static kvant_status pair_fault(const kvant_setup *key, const kvant_setup *value, kvant_gpu_kernel *to,
                               kvant_diag *diag) {
    kvant_status status = honest_pair(key, value, to, diag);
    memset(to->name, 0, sizeof to->name);
    (void)snprintf(to->name, sizeof to->name, "lie_fault");
    return status;
}

LYING_IMAGE
LYING_GPU(.image_count = 1, .images = &lie_image, .pair = pair_fault)
