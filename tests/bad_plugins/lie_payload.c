/* Lie: plan claims half of the payload bits that the codes take, so that the codec looks better than it
 * is. */
#include "honest.h"

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    kvant_status status = honest_plan(setup, layout, diag);
    layout->payload_bits /= 2;
    return status;
}

LIAR("lie_payload", .plan = plan)
