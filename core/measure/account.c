/* See account.h. */
#include "measure/account.h"

#include <math.h>

void kvant_account_extent(kvant_account *account, const kvant_layout *layout, uint64_t size,
                          uint64_t elements) {
    uint64_t step = layout->size_step > 0 ? (size - layout->size_min) / layout->size_step : 0;
    account->payload_bits += layout->payload_bits + step * layout->payload_bits_step;
    account->metadata_bits += layout->metadata_bits + step * layout->metadata_bits_step;
    account->extent_bytes += size;
    account->extent_elements += elements;
}

void kvant_account_raw(kvant_account *account, uint64_t elements, uint32_t element_bytes) {
    account->raw_elements += elements;
    account->raw_bytes += elements * element_bytes;
}

void kvant_account_merge(kvant_account *into, const kvant_account *from) {
    into->payload_bits += from->payload_bits;
    into->metadata_bits += from->metadata_bits;
    into->extent_bytes += from->extent_bytes;
    into->extent_elements += from->extent_elements;
    into->raw_bytes += from->raw_bytes;
    into->raw_elements += from->raw_elements;
}

static double per_element(const kvant_account *account, double bits) {
    return account->extent_elements > 0 ? bits / (double)account->extent_elements : (double)NAN;
}

double kvant_account_payload(const kvant_account *account) {
    return per_element(account, (double)account->payload_bits);
}

double kvant_account_all(const kvant_account *account) {
    return per_element(account, 8 * (double)account->extent_bytes);
}

uint64_t kvant_account_bytes(const kvant_account *account) {
    return account->extent_bytes + account->raw_bytes;
}
