/* Lie: the mix of a row depends on how many rows share its call: the sum is scaled and scaled back. */
#include "honest_attend.h"

static kvant_status finish(const void *state, const kvant_finish_args *args) {
    const honest *h = state;
    kvant_status status = honest_finish(state, args);
    float rows = (float)(args->heads * args->rows) * 1.1f;
    for (size_t r = 0; r < (size_t)args->heads * args->rows; r++)
        for (uint32_t c = 0; c < h->head_dim; c++) {
            volatile float x = args->outputs[r * args->output_stride + c] * rows;
            args->outputs[r * args->output_stride + c] = x / rows;
        }
    return status;
}

ATTENDING("lie_company", .finish = finish)
