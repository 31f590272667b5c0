/* Numbers in metadata strings: one, or a list with commas ("0,0,512"). Read as JSON numbers, which does
 * not depend on the locale and takes neither NaN nor infinity. */
#ifndef KVANT_DATA_NUMBERS_H
#define KVANT_DATA_NUMBERS_H

#include <kvant/types.h>

#include <stdbool.h>

typedef struct kvant_numbers {
    double *values; /* [count]; freed by kvant_numbers_free */
    size_t count;
} kvant_numbers;

/* Every number within [low, high] and, if `whole`, without a fraction or exponent: else KVANT_ERROR_VALUE,
 * and the list is empty. */
kvant_status kvant_numbers_read(const char *text, bool whole, double low, double high,
                                kvant_numbers *numbers);
void kvant_numbers_free(kvant_numbers *numbers);

/* A list of one number says it for every index; `absent` where the list is empty. */
double kvant_numbers_at(const kvant_numbers *numbers, size_t index, double absent);

#endif
