/* What a quantized cache takes: bits and bytes counted from the layouts that encoders really used. */
#ifndef KVANT_MEASURE_ACCOUNT_H
#define KVANT_MEASURE_ACCOUNT_H

#include <kvant/plugin.h>

typedef struct kvant_account {
    uint64_t payload_bits;  /* codes of real elements */
    uint64_t metadata_bits; /* scales, minima, norms, outlier positions */
    uint64_t extent_bytes;  /* payload, metadata and padding */
    uint64_t extent_elements;
    uint64_t raw_bytes; /* sinks and tail, in the input's type */
    uint64_t raw_elements;
} kvant_account;

/* One extent of `elements` elements that took `size` bytes of this layout. */
void kvant_account_extent(kvant_account *account, const kvant_layout *layout, uint64_t size,
                          uint64_t elements);
void kvant_account_raw(kvant_account *account, uint64_t elements, uint32_t element_bytes);
void kvant_account_merge(kvant_account *into, const kvant_account *from);

/* Bits per element of the extents: the codes alone; everything in them. NaN without extents. */
double kvant_account_payload(const kvant_account *account);
double kvant_account_all(const kvant_account *account);

/* Everything stored, extents and raw rows. */
uint64_t kvant_account_bytes(const kvant_account *account);

#endif
