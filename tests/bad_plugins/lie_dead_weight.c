/* Lie: mix reads the weights of tokens that do not live. */
#include "honest_attend.h"

static kvant_status mix(const void *state, const kvant_mix_args *args) {
    const honest *h = state;
    for (size_t r = 0; r < (size_t)args->heads * args->rows; r++)
        for (size_t i = 0; i < (size_t)args->extent_count * h->tokens; i++)
            args->accumulators[r * args->accumulator_stride] +=
                0 * args->weights[r * args->weight_stride + i];
    return honest_mix(state, args);
}

ATTENDING("lie_dead_weight", .mix = mix)
