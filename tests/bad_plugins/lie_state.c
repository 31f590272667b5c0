/* Lie: encode writes to the state, which is const for it and shared by threads. */
#include "honest.h"

static kvant_status encode(const void *state, kvant_encode_args *args) {
    union {
        const void *given;
        honest *taken;
    } own = {.given = state};
    own.taken->isa ^= 1;
    return honest_encode(state, args);
}

LIAR("lie_state", .encode = encode)
