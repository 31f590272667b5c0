/* Lie: the device image is no fat binary. */
#include "honest.h"

#include <string.h>

static const unsigned char bytes[] = "no code of any device";
static const uint32_t architectures[] = {80};

static const kvant_gpu_image images[] = {{.struct_size = sizeof(kvant_gpu_image),
                                          .kind = KVANT_IMAGE_FATBIN,
                                          .architecture_count = 1,
                                          .architectures = architectures,
                                          .bytes = bytes,
                                          .bytes_end = bytes + sizeof bytes}};

static kvant_status plan_kernels(const kvant_setup *setup, const kvant_layout *layout, kvant_gpu_plan *answer,
                                 kvant_diag *diag) {
    (void)setup, (void)layout, (void)answer, (void)diag;
    return KVANT_ERROR_UNSUPPORTED;
}

static kvant_status upload(const void *state, const kvant_gpu_plan *answer, void *device_state) {
    (void)state, (void)answer, (void)device_state;
    return KVANT_OK;
}

static const kvant_gpu gpu = {
    .struct_size = sizeof gpu, .image_count = 1, .images = images, .plan = plan_kernels, .upload = upload};

static const void *extension(const char *id) {
    return strcmp(id, KVANT_EXT_GPU) == 0 ? &gpu : NULL;
}

LIAR("lie_image", .extension = extension)
