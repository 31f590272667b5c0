/* How far decoded rows lie from the rows that were encoded: sums that grow row by row, in double precision.
 *
 *     kvant_quality q = {0};
 *     for (each token and head that was coded) kvant_quality_add(&q, exact, decoded, head_dim);
 *     printf("%g\n", kvant_quality_nmse(&q));
 */
#ifndef KVANT_MEASURE_QUALITY_H
#define KVANT_MEASURE_QUALITY_H

#include <stdint.h>

typedef struct kvant_quality {
    uint64_t rows; /* of one token and head */
    uint64_t elements;
    uint64_t not_finite; /* decoded elements that are NaN or infinite; each counts as an infinite error */
    double error;        /* sum (x - x^)^2 */
    double energy;       /* sum x^2 */
    double cosines;      /* sum over rows of cos(x, x^) */
    double max_error;    /* max |x - x^| */
} kvant_quality;

/* One token of one head; `exact` is finite. */
void kvant_quality_add(kvant_quality *quality, const double *exact, const double *decoded, uint32_t dim);

/* error / energy: 1 for a codec that gives zeros, 0 where nothing differs, infinite for errors about zeros
 * and for decoded numbers that are not finite. NaN without rows. */
double kvant_quality_nmse(const kvant_quality *quality);

/* Mean cosine over rows. Two zero rows have cosine 1, a zero and another row 0. NaN without rows. */
double kvant_quality_cosine(const kvant_quality *quality);

/* sqrt(error / reference) with the rules of kvant_quality_nmse: what every relative error here goes
 * through. */
double kvant_relative_error(double error, double reference);

/* The middle of `values`, the mean of both middles for even counts, NaN for none; sorts the array. */
double kvant_median(double *values, uint32_t count);

#endif
