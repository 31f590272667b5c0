/* One of the five calls is missing. */
#include "honest.h"

LIAR("no_encode", .encode = NULL)
