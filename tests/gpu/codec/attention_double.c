/* See attention_double.h. */
#include "attention_double.h"

#include "support/test.h"

#include <math.h>
#include <stdlib.h>

static bool sees(const attention_double *a, uint32_t token, uint64_t own) {
    uint64_t position = a->first_position + token;
    return a->live[token] && position <= own && (a->window == 0 || own - position < a->window);
}

static double logit_of(const attention_double *a, uint32_t token, uint32_t head, const float *query) {
    const float *key = a->rows[0] + ((size_t)token * a->heads + head) * a->key_dim;
    double dot = 0;
    for (uint32_t c = 0; c < a->key_dim; c++) {
        double center = a->center != NULL ? (double)a->center[head * a->key_dim + c] : 0;
        dot += ((double)key[c] + center) * (double)query[c];
    }
    dot *= (double)a->scale;
    return a->soft_cap > 0 ? (double)a->soft_cap * tanh(dot / (double)a->soft_cap) : dot;
}

double attention_double_row(const attention_double *a, uint32_t position, uint32_t q_head, double *out,
                            double *absolute) {
    uint32_t head = q_head / a->group;
    const float *query = a->queries + ((size_t)position * a->heads * a->group + q_head) * a->key_dim;
    double *logits = calloc(a->tokens, sizeof *logits), most = -INFINITY, sum = 0;
    assert_non_null(logits);
    for (uint32_t t = 0; t < a->tokens; t++) {
        bool seen = sees(a, t, a->query_position + position);
        logits[t] = seen ? logit_of(a, t, head, query) : -INFINITY;
        most = logits[t] > most ? logits[t] : most;
    }
    for (uint32_t c = 0; c < a->value_dim; c++) out[c] = absolute[c] = 0;
    for (uint32_t t = 0; t < a->tokens; t++) {
        if (!(logits[t] > -INFINITY)) continue;
        const float *value = a->rows[1] + ((size_t)t * a->heads + head) * a->value_dim;
        double weight = exp(logits[t] - most);
        sum += weight;
        for (uint32_t c = 0; c < a->value_dim; c++) {
            out[c] += weight * (double)value[c];
            absolute[c] += weight * fabs((double)value[c]);
        }
    }
    free(logits);
    if (sum == 0) return -INFINITY;
    for (uint32_t c = 0; c < a->value_dim; c++) {
        out[c] /= sum;
        absolute[c] /= sum;
    }
    return most + log(sum);
}
