/* Lie: decode trusts an offset that stands in the extent, and reads outside when the bytes are arbitrary.
 * The extent is the honest one behind four bytes: where it begins. */
#include "honest.h"

static kvant_status plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    kvant_status status = honest_plan(setup, layout, diag);
    layout->size_min += 4;
    layout->metadata_bits += 32;
    return status;
}

static kvant_status encode(const void *state, kvant_encode_args *args) {
    kvant_encode_args behind = *args;
    uint32_t offset = 4;
    memcpy(args->extent, &offset, sizeof offset);
    behind.extent = (uint8_t *)args->extent + offset;
    kvant_status status = honest_encode(state, &behind);
    args->size = behind.size + offset;
    args->saturated = 0;
    return status;
}

static kvant_status decode(const void *state, const kvant_decode_args *args) {
    kvant_extent behind = *args->extent;
    kvant_decode_args with_behind = *args;
    uint32_t offset;
    memcpy(&offset, behind.bytes, sizeof offset);
    behind.bytes = (const uint8_t *)behind.bytes + offset;
    with_behind.extent = &behind;
    return honest_decode(state, &with_behind);
}

LIAR("lie_outside", .plan = plan, .encode = encode, .decode = decode)
