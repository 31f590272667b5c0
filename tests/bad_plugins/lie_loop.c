/* Lie: decode does not return when the bytes are arbitrary: it waits for a mark that encode put there. */
#include "honest.h"

enum { MARK = 0x6b72616d };

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    kvant_status status = honest_plan(setup, layout, diag);
    layout->size_min += 4;
    layout->metadata_bits += 32;
    return status;
}

static kvant_status encode(const void *state, kvant_encode_args *args) {
    uint32_t mark = MARK;
    kvant_status status = honest_encode(state, args);
    memcpy((uint8_t *)args->extent + args->size, &mark, sizeof mark);
    args->size += sizeof mark;
    return status;
}

static kvant_status decode(const void *state, const kvant_decode_args *args) {
    const volatile uint8_t *at = (const uint8_t *)args->extent->bytes + honest_size(state);
    while ((at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24) != MARK) {
    }
    return honest_decode(state, args);
}

LIAR("lie_loop", .plan = plan, .encode = encode, .decode = decode)
