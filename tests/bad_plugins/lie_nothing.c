/* Lie: encode writes zeros: right sizes, no canary hurt, nothing kept. */
#include "honest.h"

static kvant_status encode(const void *state, kvant_encode_args *args) {
    args->size = honest_size(state);
    args->saturated = 0;
    memset(args->extent, 0, args->size);
    return KVANT_OK;
}

LIAR("lie_nothing", .encode = encode)
