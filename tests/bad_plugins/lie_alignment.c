/* Lie: the bytes depend on where the rows lie in memory. */
#include "honest.h"

static kvant_status encode(const void *state, kvant_encode_args *args) {
    kvant_status status = honest_encode(state, args);
    if ((uintptr_t)args->rows->data % 16 != 0) ((uint8_t *)args->extent)[honest_codes(state)] ^= 1;
    return status;
}

LIAR("lie_alignment", .encode = encode)
