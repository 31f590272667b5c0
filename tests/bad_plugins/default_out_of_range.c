/* A default that the parameter's own range does not allow. */
#include "honest.h"

static const kvant_param params[] = {{HONEST_PARAM, .integer_default = 9}};

MISDESCRIBED("default_out_of_range", .params = params)
