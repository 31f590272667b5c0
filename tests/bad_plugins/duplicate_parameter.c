/* Two parameters of one name. */
#include "honest.h"

static const kvant_param params[] = {{HONEST_PARAM}, {HONEST_PARAM}};

MISDESCRIBED("duplicate_parameter", .params = params, .param_count = 2)
