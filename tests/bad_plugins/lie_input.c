/* Lie: encode changes the rows that it was given to read. */
#include "honest.h"

static kvant_status encode(const void *state, kvant_encode_args *args) {
    union {
        const void *given;
        uint8_t *taken;
    } rows = {.given = args->rows->data};
    kvant_status status = honest_encode(state, args);
    rows.taken[0] ^= 1;
    return status;
}

LIAR("lie_input", .encode = encode)
