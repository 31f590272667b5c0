/* Serves neither keys nor values. */
#include "honest.h"

MISDESCRIBED("no_sides", .sides = 0)
