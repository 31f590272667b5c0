/* Lie: logits are a thousandth too large. */
#include "honest_attend.h"

static kvant_status query(const void *state, const kvant_query_args *args) {
    const honest *h = state;
    kvant_status status = honest_query(state, args);
    float *to = args->query_state;
    for (size_t r = 0; r < (size_t)args->heads * args->rows; r++)
        for (uint32_t c = 0; c < h->head_dim; c++) to[r * honest_query_floats(h) + c] *= 1.001f;
    return status;
}

ATTENDING("lie_logits", .query = query)
