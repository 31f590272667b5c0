/* Its name is none. */
#include "honest.h"

MISDESCRIBED("Malformed-Name", .offers_bits = 0)
