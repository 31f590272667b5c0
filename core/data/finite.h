/* Numbers that are not finite, in rows that are kept raw (the codec floor looks at those it encodes). */
#ifndef KVANT_DATA_FINITE_H
#define KVANT_DATA_FINITE_H

#include <kvant/types.h>

#include <stdbool.h>

/* Elements of F32, F16 or BF16, dense. Returns the index of the first that is not finite, or `count`. */
uint64_t kvant_find_nonfinite(const void *elements, uint32_t dtype, uint64_t count);

/* NaN becomes 0, infinities the largest number of the dtype. Returns how many. */
uint64_t kvant_replace_nonfinite(void *elements, uint32_t dtype, uint64_t count);

#endif
