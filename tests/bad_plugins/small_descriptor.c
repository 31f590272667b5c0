/* The descriptor's struct_size does not cover its members. */
#include "honest.h"

MISDESCRIBED("small_descriptor", .struct_size = 8)
