/* A format id that is no text. */
#include "honest.h"

MISDESCRIBED("unprintable_format", .format_id = 7)
