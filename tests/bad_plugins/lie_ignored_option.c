/* Lie: the parameter `bits` changes nothing. */
#include "honest.h"

static const kvant_value eight = {.integer = 8};

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    kvant_setup always = *setup;
    always.values = &eight;
    return honest_plan(&always, layout, diag);
}

static kvant_status open_it(const kvant_setup *setup, const kvant_layout *layout, void *state,
                            kvant_diag *diag) {
    kvant_setup always = *setup;
    always.values = &eight;
    return honest_open(&always, layout, state, diag);
}

LIAR("lie_ignored_option", .plan = plan, .open = open_it)
