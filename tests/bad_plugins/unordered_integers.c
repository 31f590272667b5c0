/* Allowed integers that do not ascend. */
#include "honest.h"

static const int64_t integers[] = {8, 4};
static const kvant_param params[] = {{HONEST_PARAM, .integers = integers}};

MISDESCRIBED("unordered_integers", .params = params)
