/* Lie: no kernel does anything. */
#include "gpu_lie.h"

LYING_IMAGE
LYING_GPU(.image_count = 1, .images = &lie_image)
