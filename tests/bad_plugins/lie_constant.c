/* Lie: a row of equal elements divides by its range, which is zero, and comes back as NaN. */
#include "honest.h"

static kvant_status encode(const void *state, kvant_encode_args *args) {
    const honest *h = state;
    kvant_status status = honest_encode(state, args);
    float *row = args->scratch, nan = kvant_bits_float(0x7fc00000);
    for (uint32_t t = 0; t < h->tokens; t++)
        for (uint32_t k = 0; k < h->heads; k++) {
            uint32_t c = 1;
            kvant_load_row(args->rows, t, k, row);
            while (c < h->head_dim && row[c] == row[0]) c++;
            if (c >= h->head_dim)
                memcpy((uint8_t *)args->extent + ((size_t)t * h->heads + k) * sizeof nan, &nan, sizeof nan);
        }
    return status;
}

LIAR("lie_constant", .encode = encode)
