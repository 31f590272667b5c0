/* Lie: encode is not deterministic: every other call codes the first row one unit lower. */
#include "honest.h"

#include <stdatomic.h>

static kvant_status encode(const void *state, kvant_encode_args *args) {
    static atomic_uint calls;
    kvant_status status = honest_encode(state, args);
    if (atomic_fetch_add(&calls, 1) % 2 == 1) ((uint8_t *)args->extent)[honest_codes(state)] ^= 1;
    return status;
}

LIAR("lie_counter", .encode = encode)
