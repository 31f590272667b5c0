/* Lie: calibrate learns something else each time. */
#include "honest_calibrate.h"

static uint32_t sessions;

static kvant_status end(void *session, kvant_tensor_sink *sink, void *context, kvant_diag *diag) {
    honest_session *s = session;
    s->most[0] += (float)++sessions;
    return honest_end(session, sink, context, diag);
}

LEARNING("lie_mood", .end = end)
