/* Lie: the bytes depend on what was in the scratch before. */
#include "honest.h"

static kvant_status encode(const void *state, kvant_encode_args *args) {
    uint8_t found = *(const uint8_t *)args->scratch;
    kvant_status status = honest_encode(state, args);
    ((uint8_t *)args->extent)[honest_codes(state)] ^= found & 1;
    return status;
}

LIAR("lie_scratch", .encode = encode)
