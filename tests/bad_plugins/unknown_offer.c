/* An optional bit that this host does not know: accepted, it is ignored. */
#include "honest.h"

MISDESCRIBED("unknown_offer", .offers_bits = 1u << 30)
