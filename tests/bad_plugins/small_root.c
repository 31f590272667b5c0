/* The root's struct_size does not cover the five calls. */
#include "honest.h"

LIAR("small_root", .struct_size = offsetof(kvant_plugin, encode))
