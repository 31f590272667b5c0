/* See core_image.h. */
#include "gpu/core_image.h"

#include <kvant/kit/diag.h>

#ifdef KVANT_HAVE_GPU

extern const unsigned char kvant_core_fatbin[], kvant_core_fatbin_end[];
extern const unsigned char kvant_core_ptx[], kvant_core_ptx_end[];

static const uint32_t architectures[] = {KVANT_GPU_ARCHITECTURES};

static const kvant_gpu_image images[] = {
    {.struct_size = sizeof(kvant_gpu_image),
     .kind = KVANT_IMAGE_FATBIN,
     .packing = KVANT_PACKING_NONE,
     .architecture_count = sizeof architectures / sizeof architectures[0],
     .architectures = architectures,
     .bytes = kvant_core_fatbin,
     .bytes_end = kvant_core_fatbin_end},
    {.struct_size = sizeof(kvant_gpu_image),
     .kind = KVANT_IMAGE_PTX,
     .packing = KVANT_PACKING_ZSTD,
     .architecture_count = 1,
     .architectures = architectures,
     .bytes = kvant_core_ptx,
     .bytes_end = kvant_core_ptx_end},
};

static kvant_status plan(const kvant_setup *setup, const kvant_layout *layout, kvant_gpu_plan *plan_out,
                         kvant_diag *diag) {
    (void)setup, (void)layout, (void)plan_out;
    return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "", "the core's kernels are no codec's");
}

static kvant_status upload(const void *state, const kvant_gpu_plan *plan_in, void *device_state) {
    (void)state, (void)plan_in, (void)device_state;
    return KVANT_ERROR_UNSUPPORTED;
}

static const kvant_gpu table = {.struct_size = sizeof(kvant_gpu),
                                .image_count = sizeof images / sizeof images[0],
                                .images = images,
                                .plan = plan,
                                .upload = upload};

const kvant_gpu *core_gpu_table(void) {
    return &table;
}

#else

const kvant_gpu *core_gpu_table(void) {
    return NULL;
}

#endif
