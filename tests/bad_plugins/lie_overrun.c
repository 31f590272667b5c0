/* Lie: encode writes one byte beyond the size that it reports. */
#include "honest.h"

static kvant_status encode(const void *state, kvant_encode_args *args) {
    kvant_status status = honest_encode(state, args);
    ((uint8_t *)args->extent)[args->size] = 0x5a;
    return status;
}

LIAR("lie_overrun", .encode = encode)
