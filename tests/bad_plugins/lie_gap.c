/* Lie: encode leaves the last byte of the extent as it found it. */
#include "honest.h"

static kvant_status encode(const void *state, kvant_encode_args *args) {
    const honest *h = state;
    uint8_t *last = (uint8_t *)args->extent + honest_size(h) - 1, found = *last;
    kvant_status status = honest_encode(state, args);
    *last = found;
    return status;
}

LIAR("lie_gap", .encode = encode)
