/* Lie: plan is not pure: every other answer asks for more scratch. */
#include "honest.h"

#include <stdatomic.h>

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    static atomic_uint calls;
    kvant_status status = honest_plan(setup, layout, diag);
    layout->scratch_bytes += atomic_fetch_add(&calls, 1) % 2 * 64;
    return status;
}

LIAR("lie_plan", .plan = plan)
