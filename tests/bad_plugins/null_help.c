/* A string that must be there is not. */
#include "honest.h"

static const kvant_param params[] = {{HONEST_PARAM, .help = NULL}};

MISDESCRIBED("null_help", .params = params)
