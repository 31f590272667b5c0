/* The file is called otherwise than the codec in it. */
#include "honest.h"

MISDESCRIBED("somebody_else", .offers_bits = 0)
