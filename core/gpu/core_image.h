/* The core's own kernels (core_kernels.h) as a table of images, to be loaded like a plugin's. */
#ifndef KVANT_GPU_CORE_IMAGE_H
#define KVANT_GPU_CORE_IMAGE_H

#include <kvant/plugin.h>

/* For gpu_module_load; its plan serves no setup, since no codec is among the kernels. NULL: this library was
 * built without nvcc. */
const kvant_gpu *core_gpu_table(void);

#endif
