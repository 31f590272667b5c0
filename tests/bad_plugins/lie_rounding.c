/* Lie: decode cuts to half floats instead of rounding to nearest even. */
#include "honest.h"

static kvant_status decode(const void *state, const kvant_decode_args *args) {
    const kvant_mutable_view *rows = args->rows;
    if (rows->dtype == KVANT_DTYPE_F32) return honest_decode(state, args);
    for (uint32_t t = 0; t < rows->tokens; t++)
        for (uint32_t k = 0; k < rows->heads; k++) {
            float *row = args->scratch, scale;
            const honest *h = state;
            const uint8_t *bytes = args->extent->bytes;
            size_t index = (size_t)(args->first_token + t) * h->heads + args->first_head + k;
            memcpy(&scale, bytes + index * sizeof scale, sizeof scale);
            honest_get_row(h, bytes + honest_codes(h) + index * honest_row_bytes(h), scale, row);
            for (uint32_t c = 0; c < h->head_dim; c++) {
                uint32_t kept = rows->dtype == KVANT_DTYPE_F16 ? 0xffffe000u : 0xffff0000u;
                row[c] = honest_cut(kvant_bits_float(kvant_float_bits(row[c]) & kept), rows->dtype);
            }
            kvant_store_row(rows, t, k, row);
        }
    return KVANT_OK;
}

LIAR("lie_rounding", .decode = decode)
