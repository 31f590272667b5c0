/* Lie: decode takes the tokens from 0 on, whatever first_token says. */
#include "honest.h"

static kvant_status decode(const void *state, const kvant_decode_args *args) {
    kvant_decode_args from_zero = *args;
    from_zero.first_token = 0;
    return honest_decode(state, &from_zero);
}

LIAR("lie_token_range", .decode = decode)
