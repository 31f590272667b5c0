/* See attend_error.h. Per row a running softmax: `max` is the largest logit so far, sums are of
 * exp(logit - max). */
#include "measure/attend_error.h"

#include "measure/quality.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

typedef struct row_state {
    double max; /* -INFINITY before the first token */
    double sum;
    double norms;    /* sum of weights times ||v|| */
    double largest;  /* sum over channels of |scale q k| */
    double absolute; /* sum of squares of the same, of codes */
} row_state;

struct attend_error {
    kvant_distortion_shape shape;
    attend_allowance allowance;
    double *queries;   /* [q_heads, rows, key_dim], times the scale */
    double *outputs;   /* [q_heads, rows, 2, value_dim]: sums of weights times v, and times |v| */
    row_state *states; /* [q_heads, rows] */
};

size_t attend_error_bytes(const kvant_distortion_shape *shape) {
    size_t row = sizeof(row_state) + sizeof(double) * ((size_t)shape->key_dim + 2 * (size_t)shape->value_dim);
    size_t rows, bytes;
    if (__builtin_mul_overflow((size_t)shape->q_heads, (size_t)shape->rows, &rows) ||
        __builtin_mul_overflow(rows, row, &bytes))
        return SIZE_MAX;
    return bytes;
}

attend_error *attend_error_new(const kvant_distortion_shape *shape, const kvant_view *queries,
                               const attend_allowance *allowance) {
    if (attend_error_bytes(shape) == SIZE_MAX) return NULL;
    size_t rows = (size_t)shape->q_heads * shape->rows;
    attend_error *e = calloc(1, sizeof *e);
    if (e == NULL) return NULL;
    e->shape = *shape;
    e->allowance = *allowance;
    e->queries = calloc(rows * shape->key_dim + 1, sizeof *e->queries);
    e->outputs = calloc(rows * 2 * shape->value_dim + 1, sizeof *e->outputs);
    e->states = calloc(rows + 1, sizeof *e->states);
    if (e->queries == NULL || e->outputs == NULL || e->states == NULL) {
        attend_error_free(e);
        return NULL;
    }
    double scale = (double)(float)shape->scale;
    for (size_t row = 0; row < rows; row++) {
        const char *from =
            kvant_view_at(queries, (uint32_t)(row % shape->rows), (uint32_t)(row / shape->rows));
        for (uint32_t c = 0; c < shape->key_dim; c++)
            e->queries[row * shape->key_dim + c] =
                scale *
                (double)kvant_load_element(from + (int64_t)c * queries->channel_stride, queries->dtype);
        e->states[row].max = -INFINITY;
    }
    return e;
}

void attend_error_free(attend_error *e) {
    if (e == NULL) return;
    free(e->queries);
    free(e->outputs);
    free(e->states);
    free(e);
}

/* ---- Attention ----------------------------------------------------------------------------------------- */

/* The logit of one token, and the sum of absolute products that made it. */
static double logit_of(const double *query, const double *key, const float *center, uint32_t dim,
                       double *absolute) {
    double sum = 0, all = 0;
    for (uint32_t c = 0; c < dim; c++) {
        sum += query[c] * key[c];
        all += center == NULL ? fabs(query[c] * key[c])
                              : fabs(query[c]) * (fabs(key[c] - (double)center[c]) + fabs((double)center[c]));
    }
    *absolute = all;
    return sum;
}

static void add_row(attend_error *e, size_t row, const kvant_distortion_tile *tile, uint32_t raw,
                    uint32_t first, uint32_t end, const double *norms) {
    const kvant_distortion_shape *shape = &e->shape;
    row_state *s = &e->states[row];
    const double *query = e->queries + row * shape->key_dim;
    const float *center = e->allowance.center;
    double *plain = e->outputs + row * 2 * shape->value_dim, *absolute = plain + shape->value_dim;
    double logits[KVANT_DISTORTION_TILE], max = s->max;
    if (center != NULL) center += (size_t)tile->kv_head * shape->key_dim;
    for (uint32_t t = first; t < end; t++) {
        double all;
        logits[t] = logit_of(query, tile->coded_keys + (size_t)t * shape->key_dim, t < raw ? NULL : center,
                             shape->key_dim, &all);
        if (!(logits[t] <= max)) max = logits[t];
        if (!(all <= s->largest)) s->largest = all;
        if (t >= raw) s->absolute += all * all;
    }
    double factor = s->max > (double)-INFINITY ? exp(s->max - max) : 0;
    s->max = max;
    s->sum *= factor;
    s->norms *= factor;
    for (uint32_t c = 0; c < 2 * shape->value_dim; c++) plain[c] *= factor;
    for (uint32_t t = first; t < end; t++) {
        double weight = exp(logits[t] - max);
        const double *value = tile->coded_values + (size_t)t * shape->value_dim;
        s->sum += weight;
        s->norms += weight * norms[t];
        for (uint32_t c = 0; c < shape->value_dim; c++) {
            plain[c] += weight * value[c];
            absolute[c] += weight * fabs(value[c]);
        }
    }
}

static double norm_of(const double *x, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

void attend_error_add(attend_error *e, const kvant_distortion_tile *tile, uint32_t raw) {
    const kvant_distortion_shape *shape = &e->shape;
    size_t group_rows = (size_t)(shape->q_heads / shape->kv_heads) * shape->rows;
    double norms[KVANT_DISTORTION_TILE];
    for (uint32_t t = 0; t < tile->tokens; t++)
        norms[t] = norm_of(tile->coded_values + (size_t)t * shape->value_dim, shape->value_dim);
    for (size_t i = 0; i < group_rows; i++) {
        size_t row = tile->kv_head * group_rows + i;
        uint32_t first, end;
        kvant_distortion_seen(shape, tile, (uint32_t)(i % shape->rows), &first, &end);
        if (first < end) add_row(e, row, tile, raw, first, end, norms);
    }
}

/* ---- Comparison ---------------------------------------------------------------------------------------- */

static void note(double *largest, double x) {
    if (isnan(x)) x = INFINITY;
    if (x > *largest) *largest = x;
}

static double quotient(double error, double allowed) {
    return error == 0 ? 0 : error / allowed;
}

static void compare_row(const attend_error *e, size_t row, const float *output, float log_sum_exp,
                        attend_error_sums *sums) {
    const row_state *s = &e->states[row];
    uint32_t dim = e->shape.value_dim;
    const double *plain = e->outputs + row * 2 * dim, *absolute = plain + dim;
    bool sees = s->max > (double)-INFINITY;
    double error = 0, size = 0, absolutes = 0;
    for (uint32_t c = 0; c < dim; c++) {
        double want = sees ? plain[c] / s->sum : 0, difference = (double)output[c] - want;
        error += difference * difference;
        size += want * want;
        if (sees) absolutes += absolute[c] / s->sum * (absolute[c] / s->sum);
    }
    double relative = kvant_relative_error(error, size);
    sums->rows++;
    sums->squares += relative * relative;
    note(&sums->largest, relative);
    if (!sees) { /* exactly nothing */
        note(&sums->of_allowed, error == 0 && log_sum_exp == -INFINITY ? 0 : (double)INFINITY);
        return;
    }
    double norms = s->norms / s->sum, codes = e->allowance.tolerance[0] * sqrt(s->absolute);
    double off = fabs((double)log_sum_exp - (s->max + log(s->sum)));
    note(&sums->log_sum_exp, off);
    note(&sums->of_allowed, quotient(off, 5e-7 * (1 + s->largest) + codes));
    note(&sums->of_allowed, quotient(sqrt(error), (2e-6 * (1 + s->largest) + 2 * codes) * norms +
                                                      e->allowance.tolerance[1] * sqrt(absolutes)));
}

void attend_error_compare(const attend_error *e, uint32_t first, uint32_t count, const float *outputs,
                          const float *log_sum_exp, attend_error_sums *sums) {
    const kvant_distortion_shape *shape = &e->shape;
    for (uint32_t r = 0; r < count; r++)
        for (uint32_t h = 0; h < shape->q_heads; h++) {
            size_t at = (size_t)r * shape->q_heads + h;
            compare_row(e, (size_t)h * shape->rows + first + r, outputs + at * shape->value_dim,
                        log_sum_exp[at], sums);
        }
}
