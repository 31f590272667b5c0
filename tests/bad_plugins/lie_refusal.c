/* Lie: plan refuses head dims without saying which parameter or rule is at fault. */
#include "honest.h"

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    return setup->head_dim % 32 == 0 ? honest_plan(setup, layout, diag) : KVANT_ERROR_GEOMETRY;
}

LIAR("lie_refusal", .plan = plan)
