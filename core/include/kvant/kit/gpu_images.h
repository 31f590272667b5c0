/* kvant/kit/gpu_images.h: the table of images that kvant_add_plugin(... CUDA x.cu) links into a plugin.
 *
 *     KVANT_GPU_IMAGES(x)                    the name that kvant_add_plugin was given
 *     const kvant_gpu x_gpu = {.struct_size = sizeof(kvant_gpu),
 *                              .image_count = KVANT_GPU_IMAGE_COUNT,
 *                              .images = kvant_gpu_images, ...};
 */
#ifndef KVANT_KIT_GPU_IMAGES_H
#define KVANT_KIT_GPU_IMAGES_H

#include "../plugin_gpu.h"

enum { KVANT_GPU_IMAGE_COUNT = 2 };

/* Cubins of all architectures of the build, and packed PTX of the first. */
#define KVANT_GPU_IMAGES(name)                                                                               \
    extern const unsigned char kvant_##name##_fatbin[], kvant_##name##_fatbin_end[];                         \
    extern const unsigned char kvant_##name##_ptx[], kvant_##name##_ptx_end[];                               \
    static const uint32_t kvant_gpu_architectures[] = {KVANT_GPU_ARCHITECTURES};                             \
    static const kvant_gpu_image kvant_gpu_images[KVANT_GPU_IMAGE_COUNT] = {                                 \
        {.struct_size = sizeof(kvant_gpu_image),                                                             \
         .kind = KVANT_IMAGE_FATBIN,                                                                         \
         .packing = KVANT_PACKING_NONE,                                                                      \
         .architecture_count = sizeof kvant_gpu_architectures / sizeof kvant_gpu_architectures[0],           \
         .architectures = kvant_gpu_architectures,                                                           \
         .bytes = kvant_##name##_fatbin,                                                                     \
         .bytes_end = kvant_##name##_fatbin_end},                                                            \
        {.struct_size = sizeof(kvant_gpu_image),                                                             \
         .kind = KVANT_IMAGE_PTX,                                                                            \
         .packing = KVANT_PACKING_ZSTD,                                                                      \
         .architecture_count = 1,                                                                            \
         .architectures = kvant_gpu_architectures,                                                           \
         .bytes = kvant_##name##_ptx,                                                                        \
         .bytes_end = kvant_##name##_ptx_end},                                                               \
    }

#endif
