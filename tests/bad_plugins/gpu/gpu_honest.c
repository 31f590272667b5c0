/* No lie: the others are this one with one thing replaced. */
#include "gpu_lie.h"

LYING_GPU(.struct_size = sizeof(kvant_gpu))
