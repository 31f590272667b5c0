/* Lie: encode ends the process where head_dim is odd, which plan accepted. */
#include "honest.h"

static kvant_status encode(const void *state, kvant_encode_args *args) {
    const honest *h = state;
    if (h->head_dim % 2 != 0) {
        volatile int *nowhere = NULL;
        *nowhere = 1;
    }
    return honest_encode(state, args);
}

LIAR("lie_crash", .encode = encode)
