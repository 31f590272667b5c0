/* Lie: decode writes one element beyond the last row that was asked for. */
#include "honest.h"

static kvant_status decode(const void *state, const kvant_decode_args *args) {
    const kvant_mutable_view *rows = args->rows;
    kvant_status status = honest_decode(state, args);
    if (rows->tokens > 0 && rows->heads > 0)
        kvant_store_element(kvant_mutable_view_at(rows, rows->tokens - 1, rows->heads - 1) +
                                (int64_t)rows->head_dim * rows->channel_stride,
                            rows->dtype, 7.0f);
    return status;
}

LIAR("lie_spill", .decode = decode)
