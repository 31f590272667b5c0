/* kivi with one thing about its kernels replaced. A lie defines what it replaces, includes this file, and
 * ends with LYING_GPU(...): kivi's own calls, kernels and images are honest_*.
 *
 *     static kvant_status lie_plan(...) { ... honest_plan(...) ... }
 *     LYING_GPU(.plan = lie_plan)
 */
#ifndef KVANT_TEST_GPU_LIE_H
#define KVANT_TEST_GPU_LIE_H

#define kivi_gpu honest_gpu
#include "kivi_gpu.c"
#undef kivi_gpu

static inline kvant_status honest_plan(const kvant_setup *setup, const kvant_layout *layout, kvant_gpu_plan *to,
                                       kvant_diag *diag) {
    return honest_gpu.plan(setup, layout, to, diag);
}

static inline kvant_status honest_pair(const kvant_setup *key, const kvant_setup *value, kvant_gpu_kernel *to,
                                       kvant_diag *diag) {
    return honest_gpu.pair(key, value, to, diag);
}

static inline kvant_status honest_upload(const void *state, const kvant_gpu_plan *from, void *device_state) {
    return honest_gpu.upload(state, from, device_state);
}

#define LYING_GPU(...)                                                                                       \
    const kvant_gpu kivi_gpu = {.struct_size = sizeof(kvant_gpu),                                            \
                                .image_count = KVANT_GPU_IMAGE_COUNT,                                        \
                                .images = kvant_gpu_images,                                                  \
                                .plan = honest_plan,                                                         \
                                .upload = honest_upload,                                                     \
                                .pair = honest_pair,                                                         \
                                __VA_ARGS__};

/* An image of PTX text, from the file LIE_PTX, in place of kivi's two. */
#define LYING_IMAGE                                                                                          \
    __asm__(".section .rodata,\"a\",@progbits\n"                                                             \
            ".balign 64\n"                                                                                   \
            ".hidden lie_ptx, lie_ptx_end\n"                                                                 \
            ".globl lie_ptx, lie_ptx_end\n"                                                                  \
            "lie_ptx:\n"                                                                                     \
            ".incbin \"" LIE_PTX "\"\n"                                                                      \
            "lie_ptx_end:\n"                                                                                 \
            ".byte 0\n"                                                                                      \
            ".previous\n");                                                                                  \
    extern const unsigned char lie_ptx[], lie_ptx_end[];                                                     \
    static const kvant_gpu_image lie_image = {.struct_size = sizeof lie_image,                               \
                                              .kind = KVANT_IMAGE_PTX,                                       \
                                              .packing = KVANT_PACKING_NONE,                                 \
                                              .architecture_count = 1,                                       \
                                              .architectures = kvant_gpu_architectures,                      \
                                              .bytes = lie_ptx,                                              \
                                              .bytes_end = lie_ptx_end};

#endif
