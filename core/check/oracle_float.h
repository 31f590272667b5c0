/* Number formats in double precision, from their definitions: radix 2, p bits of precision, smallest and
 * largest exponent. What the kit does with integers is done here with frexp and rint, so that neither can
 * hide the other's mistake. */
#ifndef KVANT_CHECK_ORACLE_FLOAT_H
#define KVANT_CHECK_ORACLE_FLOAT_H

#include <kvant/types.h>

/* x to the nearest multiple of the last place of a format with `precision` bits and least normal exponent
 * `least` (2^least is its smallest normal number), ties to even, exponent unbounded above. */
double oracle_round_to(double x, int precision, int least);

/* The same by dtype: F32, F16, BF16, F8_E4M3, F8_E5M2. Values beyond the range stay beyond: the caller
 * saturates. */
double oracle_round(double x, uint32_t dtype);

/* The largest finite number of the dtype. */
double oracle_largest(uint32_t dtype);

/* Rounded, then limited to the finite range. */
double oracle_saturate(double x, uint32_t dtype);

/* Where sums have an order: the sum of x[0..n) exactly enough for a comparison, compensated. */
double oracle_sum(const double *x, size_t n);

#endif
