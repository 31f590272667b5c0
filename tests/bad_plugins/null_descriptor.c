/* The root has no descriptor. */
#include "honest.h"

LIAR("null_descriptor", .descriptor = NULL)
