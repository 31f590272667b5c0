/* Made for another ABI. */
#include "honest.h"

LIAR("wrong_major", .abi = (KVANT_ABI_MAJOR + 1u) << 16 | 3)
