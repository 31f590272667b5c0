/* Needs something that this host does not know, so cannot provide. */
#include "honest.h"

MISDESCRIBED("unknown_requirement", .requires_bits = 1u << 31)
