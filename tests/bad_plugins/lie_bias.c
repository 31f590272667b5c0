/* Lie: encode rounds towards zero: every test of bounds passes, the error is twice what 8 bits must show. */
#include "honest.h"

static kvant_status encode(const void *state, kvant_encode_args *args) {
    const honest *h = state;
    kvant_status status = honest_encode(state, args);
    float *row = args->scratch, scale;
    for (uint32_t t = 0; t < h->tokens; t++)
        for (uint32_t k = 0; k < h->heads; k++) {
            size_t index = (size_t)t * h->heads + k;
            kvant_load_row(args->rows, t, k, row);
            memcpy(&scale, (uint8_t *)args->extent + index * sizeof scale, sizeof scale);
            for (uint32_t c = 0; c < h->head_dim && scale > 0.0f; c++)
                row[c] = (float)(int32_t)(row[c] / scale) * scale;
            honest_put_row(h, (uint8_t *)args->extent + honest_codes(h) + index * honest_row_bytes(h), row,
                           scale);
        }
    return status;
}

LIAR("lie_bias", .encode = encode)
