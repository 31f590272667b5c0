/* See attention.h. A row's state is a running softmax per variant:
 *
 *     weights     exact   exact    coded   coded   recent     each {max, sum} of exp(logit - max)
 *     values      exact   coded    exact   coded   recent
 *     output[]    PLAIN   VALUE    KEY     BOTH    RECENT     [value_dim] each, not yet divided by the sum
 *
 * A tile first becomes a partial of its own (largest logit, sum, outputs), then partials are merged: that is
 * one exponential per logit, and what `recent` sees of a tile is one of two partials that exist already. */
#include "measure/attention.h"

#include "measure/quality.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { PLAIN, VALUE, KEY, BOTH, RECENT, OUTPUTS };

typedef struct running {
    double max; /* -INFINITY before the first token */
    double sum;
} running;

typedef struct row_state {
    running exact, coded, recent;
    double gap; /* sum exp(exact logit - exact.max) (exact logit - coded logit) */
} row_state;

/* A tile's share of one row. */
typedef struct partial {
    running softmax;
    double gap;
    double *plain; /* [value_dim], with exact values */
    double *coded; /* [value_dim], with decoded values */
} partial;

struct kvant_distortion {
    kvant_distortion_shape shape;
    double *queries;   /* [q_heads, rows, key_dim], times the scale */
    double *outputs;   /* [q_heads, rows, OUTPUTS, value_dim] */
    double *partials;  /* [4, value_dim] */
    row_state *states; /* [q_heads, rows] */
};

static size_t row_bytes(const kvant_distortion_shape *shape) {
    return sizeof(row_state) + sizeof(double) * ((size_t)shape->key_dim + OUTPUTS * (size_t)shape->value_dim);
}

size_t kvant_distortion_bytes(const kvant_distortion_shape *shape) {
    size_t rows, bytes;
    if (__builtin_mul_overflow((size_t)shape->q_heads, (size_t)shape->rows, &rows) ||
        __builtin_mul_overflow(rows, row_bytes(shape), &bytes))
        return SIZE_MAX;
    return bytes;
}

static void load_queries(kvant_distortion *a, const kvant_view *queries) {
    const kvant_distortion_shape *shape = &a->shape;
    for (uint32_t h = 0; h < shape->q_heads; h++)
        for (uint32_t r = 0; r < shape->rows; r++) {
            const char *from = kvant_view_at(queries, r, h);
            double *to = a->queries + ((size_t)h * shape->rows + r) * shape->key_dim;
            for (uint32_t c = 0; c < shape->key_dim; c++)
                to[c] = shape->scale * (double)kvant_load_element(from + (int64_t)c * queries->channel_stride,
                                                                  queries->dtype);
        }
}

kvant_distortion *kvant_distortion_new(const kvant_distortion_shape *shape, const kvant_view *queries) {
    if (kvant_distortion_bytes(shape) == SIZE_MAX) return NULL;
    size_t rows = (size_t)shape->q_heads * shape->rows;
    kvant_distortion *a = calloc(1, sizeof *a);
    if (a == NULL) return NULL;
    a->shape = *shape;
    a->queries = calloc(rows * shape->key_dim + 1, sizeof *a->queries);
    a->outputs = calloc(rows * OUTPUTS * shape->value_dim + 1, sizeof *a->outputs);
    a->partials = calloc(4 * (size_t)shape->value_dim + 1, sizeof *a->partials);
    a->states = calloc(rows + 1, sizeof *a->states);
    if (a->queries == NULL || a->outputs == NULL || a->partials == NULL || a->states == NULL) {
        kvant_distortion_free(a);
        return NULL;
    }
    load_queries(a, queries);
    for (size_t i = 0; i < rows; i++) {
        running nothing = {.max = -INFINITY, .sum = 0};
        a->states[i] = (row_state){.exact = nothing, .coded = nothing, .recent = nothing};
    }
    return a;
}

void kvant_distortion_free(kvant_distortion *a) {
    if (a == NULL) return;
    free(a->queries);
    free(a->outputs);
    free(a->partials);
    free(a->states);
    free(a);
}

/* Eight sums that the compiler keeps in vector registers, in an order that no instruction set changes. */
static double dot(const double *x, const double *y, uint32_t n) {
    double sums[8] = {0};
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (uint32_t j = 0; j < 8; j++) sums[j] += x[i + j] * y[i + j];
    for (uint32_t j = 0; i + j < n; j++) sums[j] += x[i + j] * y[i + j];
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

/* out += sum of weights[t] rows[t], token after token; four tokens a turn, so that `out` is loaded and stored
 * once. */
static void add_weighted(double *restrict out, const double *restrict weights, const double *restrict rows,
                         uint32_t tokens, uint32_t n) {
    uint32_t t = 0;
    for (; t + 4 <= tokens; t += 4) {
        const double *a = rows + (size_t)t * n, *b = a + n, *c = b + n, *d = c + n;
        double wa = weights[t], wb = weights[t + 1], wc = weights[t + 2], wd = weights[t + 3];
        for (uint32_t i = 0; i < n; i++)
            out[i] = (((out[i] + wa * a[i]) + wb * b[i]) + wc * c[i]) + wd * d[i];
    }
    for (; t < tokens; t++)
        for (uint32_t i = 0; i < n; i++) out[i] += weights[t] * rows[(size_t)t * n + i];
}

/* Logits to exp(logit - max), with their sum. */
static running soften(double *logits, uint32_t n) {
    running s = {.max = -INFINITY, .sum = 0};
    for (uint32_t t = 0; t < n; t++)
        if (logits[t] > s.max) s.max = logits[t];
    for (uint32_t t = 0; t < n; t++) {
        logits[t] = exp(logits[t] - s.max);
        s.sum += logits[t];
    }
    return s;
}

static void mix(const kvant_distortion *a, const kvant_distortion_tile *tile, uint32_t first, uint32_t n,
                const double *weights, partial *p) {
    uint32_t dim = a->shape.value_dim;
    if (dim == 0) return;
    for (uint32_t c = 0; c < dim; c++) p->plain[c] = p->coded[c] = 0;
    add_weighted(p->plain, weights, tile->values + (size_t)first * dim, n, dim);
    if (tile->coded_values != tile->values)
        add_weighted(p->coded, weights, tile->coded_values + (size_t)first * dim, n, dim);
    else
        memcpy(p->coded, p->plain, dim * sizeof *p->coded);
}

/* The tile's tokens [first, first + n) as this query row sees them, exactly and through decoded keys. */
static void tile_partials(const kvant_distortion *a, const kvant_distortion_tile *tile, const double *query,
                          uint32_t first, uint32_t n, partial *exact, partial *coded) {
    double plain_logits[KVANT_DISTORTION_TILE], coded_logits[KVANT_DISTORTION_TILE],
        gaps[KVANT_DISTORTION_TILE];
    uint32_t dim = a->shape.key_dim;
    for (uint32_t t = 0; t < n; t++) {
        plain_logits[t] = dot(query, tile->keys + (size_t)(first + t) * dim, dim);
        coded_logits[t] = tile->coded_keys == tile->keys
                              ? plain_logits[t]
                              : dot(query, tile->coded_keys + (size_t)(first + t) * dim, dim);
        gaps[t] = plain_logits[t] - coded_logits[t];
    }
    exact->softmax = soften(plain_logits, n);
    exact->gap = 0;
    for (uint32_t t = 0; t < n; t++) exact->gap += plain_logits[t] * gaps[t];
    mix(a, tile, first, n, plain_logits, exact);
    if (tile->coded_keys == tile->keys) {
        coded->softmax = exact->softmax;
        memcpy(coded->plain, exact->plain, a->shape.value_dim * sizeof *coded->plain);
        memcpy(coded->coded, exact->coded, a->shape.value_dim * sizeof *coded->coded);
        return;
    }
    coded->softmax = soften(coded_logits, n);
    mix(a, tile, first, n, coded_logits, coded);
}

/* Two sets of weights brought to a common maximum: what each must be multiplied by. */
static void join(running *into, const running *from, double *scale_into, double *scale_from) {
    double max = from->max > into->max ? from->max : into->max;
    *scale_into = exp(into->max - max);
    *scale_from = exp(from->max - max);
    into->max = max;
    into->sum = into->sum * *scale_into + from->sum * *scale_from;
}

static void merge_output(double *into, double scale_into, const double *from, double scale_from, uint32_t n) {
    for (uint32_t c = 0; c < n; c++) into[c] = into[c] * scale_into + from[c] * scale_from;
}

static void merge_row(const kvant_distortion *a, size_t row, const partial *exact, const partial *coded,
                      bool recent_is_coded) {
    row_state *state = &a->states[row];
    uint32_t dim = a->shape.value_dim;
    double *outputs = a->outputs + row * OUTPUTS * dim;
    double into, from;
    join(&state->exact, &exact->softmax, &into, &from);
    state->gap = state->gap * into + exact->gap * from;
    merge_output(outputs + PLAIN * dim, into, exact->plain, from, dim);
    merge_output(outputs + VALUE * dim, into, exact->coded, from, dim);
    join(&state->coded, &coded->softmax, &into, &from);
    merge_output(outputs + KEY * dim, into, coded->plain, from, dim);
    merge_output(outputs + BOTH * dim, into, coded->coded, from, dim);
    const partial *seen = recent_is_coded ? coded : exact;
    join(&state->recent, &seen->softmax, &into, &from);
    merge_output(outputs + RECENT * dim, into, recent_is_coded ? seen->coded : seen->plain, from, dim);
}

void kvant_distortion_add(kvant_distortion *a, const kvant_distortion_tile *tile) {
    const kvant_distortion_shape *shape = &a->shape;
    uint32_t dim = shape->value_dim;
    size_t group_rows =
        (size_t)(shape->q_heads / shape->kv_heads) * shape->rows; /* its heads stand side by side */
    partial exact = {.plain = a->partials, .coded = a->partials + dim};
    partial coded = {.plain = a->partials + 2 * (size_t)dim, .coded = a->partials + 3 * (size_t)dim};
    for (size_t i = 0; i < group_rows; i++) {
        size_t row = tile->kv_head * group_rows + i;
        uint32_t r = (uint32_t)(i % shape->rows), first, end;
        kvant_distortion_seen(shape, tile, r, &first, &end);
        if (first >= end) continue;
        tile_partials(a, tile, a->queries + row * shape->key_dim, first, end - first, &exact, &coded);
        merge_row(a, row, &exact, &coded, shape->query_start + r >= tile->coded_from);
    }
}

/* ||o - o^||^2 of one row and one variant. */
static double squared_error(const double *plain, double plain_sum, const double *other, double other_sum,
                            uint32_t n) {
    double error = 0;
    for (uint32_t c = 0; c < n; c++) {
        double difference = plain[c] / plain_sum - other[c] / other_sum;
        error += difference * difference;
    }
    return error;
}

void kvant_distortion_finish(const kvant_distortion *a, kvant_distortion_sums *sums) {
    const kvant_distortion_shape *shape = &a->shape;
    uint32_t dim = shape->value_dim;
    for (size_t row = 0; row < (size_t)shape->q_heads * shape->rows; row++) {
        const row_state *s = &a->states[row];
        const double *o = a->outputs + row * OUTPUTS * dim;
        kvant_distortion_sums *sum = &sums[row / shape->rows];
        if (s->exact.max == -INFINITY) continue;
        for (uint32_t c = 0; c < dim; c++) {
            double output = o[c] / s->exact.sum;
            sum->output += output * output;
        }
        sum->key_only += squared_error(o, s->exact.sum, o + KEY * dim, s->coded.sum, dim);
        sum->value_only += squared_error(o, s->exact.sum, o + VALUE * dim, s->exact.sum, dim);
        sum->both += squared_error(o, s->exact.sum, o + BOTH * dim, s->coded.sum, dim);
        sum->recent += squared_error(o, s->exact.sum, o + RECENT * dim, s->recent.sum, dim);
        double divergence =
            s->gap / s->exact.sum + (s->coded.max - s->exact.max) + log(s->coded.sum / s->exact.sum);
        if (divergence < 0) divergence = 0; /* rounding: it is never negative */
        if (isnan(divergence)) divergence = INFINITY;
        sum->divergence += divergence;
        if (divergence > sum->max_divergence) sum->max_divergence = divergence;
        sum->rows++;
    }
}

kvant_distortion_error kvant_distortion_errors(const kvant_distortion_sums *sums, uint32_t count) {
    kvant_distortion_sums all = {0};
    for (uint32_t h = 0; h < count; h++) {
        all.output += sums[h].output;
        all.key_only += sums[h].key_only;
        all.value_only += sums[h].value_only;
        all.both += sums[h].both;
        all.recent += sums[h].recent;
        all.divergence += sums[h].divergence;
        if (sums[h].max_divergence > all.max_divergence) all.max_divergence = sums[h].max_divergence;
        all.rows += sums[h].rows;
    }
    if (all.rows == 0) return (kvant_distortion_error){NAN, NAN, NAN, NAN, NAN, NAN};
    return (kvant_distortion_error){
        .key_only = kvant_relative_error(all.key_only, all.output),
        .value_only = kvant_relative_error(all.value_only, all.output),
        .both = kvant_relative_error(all.both, all.output),
        .recent = kvant_relative_error(all.recent, all.output),
        .divergence = all.divergence / (double)all.rows,
        .max_divergence = all.max_divergence,
    };
}
