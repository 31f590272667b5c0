/* Error figures. */
#ifndef KVANT_CHECK_QUALITY_H
#define KVANT_CHECK_QUALITY_H

#include <stddef.h>
#include <stdint.h>

/* Sums over the elements of a block: x = what was given, y = what came back. */
typedef struct check_quality {
    double energy; /* sum x^2 */
    double error;  /* sum (y - x)^2 */
    double lean;   /* sum (y - x) x: negative where what comes back is too small */
    size_t count;
} check_quality;

void check_quality_add(check_quality *quality, const float *given, const uint32_t *bits, size_t count);
void check_quality_add_expected(check_quality *quality, const float *given, const double *expected,
                                size_t count);

/* error / energy; 0 where both are 0. */
double check_quality_nmse(const check_quality *quality);

#endif
