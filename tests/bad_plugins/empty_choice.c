/* A choice between nothing. */
#include "honest.h"

static const kvant_param params[] = {{HONEST_PARAM, .type = KVANT_PARAM_CHOICE, .integer_default = 0}};

MISDESCRIBED("empty_choice", .params = params)
