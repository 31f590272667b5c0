/* Lie: calibrate wants the samples again, always. */
#include "honest_calibrate.h"

static kvant_status again(void *session, uint32_t *wanted, kvant_diag *diag) {
    (void)session;
    (void)diag;
    *wanted = 1;
    return KVANT_OK;
}

LEARNING("lie_insatiable", .again = again)
