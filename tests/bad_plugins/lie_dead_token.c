/* Lie: score writes logits of tokens that do not live. */
#include "honest_attend.h"

static kvant_status score(const void *state, const kvant_score_args *args) {
    const honest *h = state;
    for (size_t r = 0; r < (size_t)args->heads * args->rows; r++)
        for (size_t i = 0; i < (size_t)args->extent_count * h->tokens; i++)
            args->logits[r * args->logit_stride + i] = 0;
    return honest_score(state, args);
}

ATTENDING("lie_dead_token", .score = score)
