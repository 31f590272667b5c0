/* Lie: calibrate learns from zeros. */
#include "honest_calibrate.h"

static kvant_status end(void *session, kvant_tensor_sink *sink, void *context, kvant_diag *diag) {
    honest_session *s = session;
    for (uint32_t h = 0; h < s->setup->total_kv_heads; h++)
        if (s->most[h] == 0.0f) s->most[h] = 1;
    return honest_end(session, sink, context, diag);
}

LEARNING("lie_zeros", .end = end)
