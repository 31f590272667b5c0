/* Lie: encode reports a size that plan did not announce. */
#include "honest.h"

static kvant_status encode(const void *state, kvant_encode_args *args) {
    kvant_status status = honest_encode(state, args);
    args->size -= 1;
    return status;
}

LIAR("lie_size", .encode = encode)
