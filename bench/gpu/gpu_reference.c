/* See gpu_reference.h. */
#include "gpu_reference.h"

#include <kvant/kit/half.h>

#include <math.h>

enum { DIM_MOST = 256 };

double gpu_reference_error(const gpu_reference_rows *rows, const uint16_t *query, const float *output,
                           double *logits) {
    double most = -INFINITY, sum = 0, size = 0, error = 0, want[DIM_MOST] = {0};
    for (uint32_t t = 0; t < rows->tokens; t++) {
        const uint16_t *key = rows->keys + t * rows->stride;
        double dot = 0;
        for (uint32_t c = 0; c < rows->dim; c++)
            dot += (double)kvant_bf16_to_f32(query[c]) * (double)kvant_bf16_to_f32(key[c]);
        logits[t] = rows->scale * dot;
        most = fmax(most, logits[t]);
    }
    for (uint32_t t = 0; t < rows->tokens; t++) {
        const uint16_t *value = rows->values + t * rows->stride;
        double weight = exp(logits[t] - most), square = 0;
        for (uint32_t c = 0; c < rows->dim; c++) {
            double v = (double)kvant_bf16_to_f32(value[c]);
            want[c] += weight * v;
            square += v * v;
        }
        sum += weight;
        size += weight * sqrt(square);
    }
    for (uint32_t c = 0; c < rows->dim; c++) {
        double off = (double)output[c] - want[c] / sum;
        error += off * off;
    }
    return sqrt(error) / (size / sum);
}
