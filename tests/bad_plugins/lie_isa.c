/* Lie: plan claims an instruction set above the one that it may use. */
#include "honest.h"

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    kvant_status status = honest_plan(setup, layout, diag);
    layout->isa = KVANT_ISA_X86_64_V4;
    return status;
}

LIAR("lie_isa", .plan = plan)
