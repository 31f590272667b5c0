/* See quality.h. */
#include "measure/quality.h"

#include <math.h>
#include <stdlib.h>

void kvant_quality_add(kvant_quality *quality, const double *exact, const double *decoded, uint32_t dim) {
    double error = 0, xx = 0, xy = 0, yy = 0;
    for (uint32_t c = 0; c < dim; c++) {
        double difference = exact[c] - decoded[c];
        if (!isfinite(difference)) quality->not_finite++;
        error += difference * difference;
        xx += exact[c] * exact[c];
        xy += exact[c] * decoded[c];
        yy += decoded[c] * decoded[c];
        difference = fabs(difference);
        if (!(difference <= quality->max_error))
            quality->max_error = isnan(difference) ? INFINITY : difference;
    }
    quality->rows++;
    quality->elements += dim;
    quality->error += error;
    quality->energy += xx;
    if (xx == 0 && yy == 0)
        quality->cosines += 1;
    else if (xx > 0 && yy > 0)
        quality->cosines += xy / (sqrt(xx) * sqrt(yy));
}

/* Zero over zero is no error; anything else over zero, and NaN, is an infinite one. */
static double ratio(double error, double reference) {
    if (error == 0) return 0;
    double r = error / reference;
    return isnan(r) || r < 0 ? INFINITY : r;
}

double kvant_relative_error(double error, double reference) {
    return sqrt(ratio(error, reference));
}

double kvant_quality_nmse(const kvant_quality *quality) {
    if (quality->rows == 0) return NAN;
    return quality->not_finite > 0 ? INFINITY : ratio(quality->error, quality->energy);
}

double kvant_quality_cosine(const kvant_quality *quality) {
    return quality->rows > 0 ? quality->cosines / (double)quality->rows : (double)NAN;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double kvant_median(double *values, uint32_t count) {
    if (count == 0) return NAN;
    qsort(values, count, sizeof *values, ascending);
    double high = values[count / 2];
    if (count % 2 != 0) return high;
    double low = values[count / 2 - 1];
    return isinf(high) ? high : (low + high) / 2; /* low may be infinite too: their mean is, and not NaN */
}
