/* The tables and images of a plugin's kvant.gpu/1: what is wrong with them, which image a device takes, and
 * the image as the driver wants it. Nothing here needs a driver. */
#ifndef KVANT_GPU_GPU_IMAGE_H
#define KVANT_GPU_GPU_IMAGE_H

#include <kvant/plugin.h>

#include <stdbool.h>
#include <stddef.h>

/* Image `index`, walked by the first one's struct_size. */
const kvant_gpu_image *gpu_image_at(const kvant_gpu *gpu, uint32_t index);

/* PLUGIN_BROKEN: a table that breaks the rules of plugin_gpu.h; images without their formats' headers. */
kvant_status gpu_vet(const kvant_gpu *gpu, kvant_diag *diag);

/* PLUGIN_BROKEN: a plan that breaks them. */
kvant_status gpu_plan_vet(const kvant_gpu_plan *plan, kvant_diag *diag);

/* The image for compute capability major.minor. UNSUPPORTED, naming what there is, if none fits. */
kvant_status gpu_image_choose(const kvant_gpu *gpu, uint32_t major, uint32_t minor,
                              const kvant_gpu_image **image, kvant_diag *diag);

/* The image's bytes, unpacked, and a NUL behind them; the caller frees. */
kvant_status gpu_image_bytes(const kvant_gpu_image *image, char **bytes, size_t *size, kvant_diag *diag);

/* "sm_80 sm_90 compute_80 (PTX)", cut to `size`. */
void gpu_images_text(const kvant_gpu *gpu, char *text, size_t size);

#endif
