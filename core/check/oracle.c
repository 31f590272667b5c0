/* Which formats the check knows, and how oracles read parameters. See oracle.h. */
#include "oracle.h"

#include "oracle_group.h"
#include "plugin/schema.h"

#include <stdlib.h>
#include <string.h>

static const oracle *const oracles[] = {&oracle_raw, &oracle_uniform, &oracle_kivi, &oracle_nvfp4,
                                        &oracle_hack};

const oracle *oracle_find(const kvant_descriptor *d) {
    for (size_t i = 0; i < sizeof oracles / sizeof oracles[0]; i++) {
        uint32_t id = 0;
        for (uint32_t c = 0; c < 4; c++) id |= (uint32_t)(unsigned char)oracles[i]->format[c] << 8 * c;
        if (d->format_id == id && d->format_version == 1) return oracles[i];
    }
    return NULL;
}

static const kvant_value *value_of(const kvant_descriptor *d, const kvant_setup *setup, const char *name,
                                   const kvant_param **param) {
    for (uint32_t i = 0; i < d->param_count; i++) {
        *param = kvant_schema_param(d, i);
        if (strcmp((*param)->name, name) == 0) return &setup->values[i];
    }
    return NULL;
}

int64_t oracle_integer(const kvant_descriptor *d, const kvant_setup *setup, const char *name,
                       int64_t otherwise) {
    const kvant_param *param;
    const kvant_value *value = value_of(d, setup, name, &param);
    return value != NULL ? value->integer : otherwise;
}

double oracle_number(const kvant_descriptor *d, const kvant_setup *setup, const char *name,
                     double otherwise) {
    const kvant_param *param;
    const kvant_value *value = value_of(d, setup, name, &param);
    return value != NULL ? value->number : otherwise;
}

bool oracle_is(const kvant_descriptor *d, const kvant_setup *setup, const char *name, const char *word) {
    const kvant_param *param;
    const kvant_value *value = value_of(d, setup, name, &param);
    return value != NULL && param->type == KVANT_PARAM_CHOICE &&
           value->integer < (int64_t)param->choice_count && strcmp(param->choices[value->integer], word) == 0;
}

/* ---- Groups ------------------------------------------------------------------------------------------ */

typedef struct box {
    uint32_t token, tokens, head, heads, channel, channels;
} box;

static void one_group(const kvant_setup *setup, box b, const float *values, double *expected, double *x,
                      double *out, oracle_fit *fit, const void *context) {
    size_t n = 0;
    for (uint32_t t = b.token; t < b.token + b.tokens; t++)
        for (uint32_t h = b.head; h < b.head + b.heads; h++)
            for (uint32_t c = b.channel; c < b.channel + b.channels; c++)
                x[n++] = (double)values[((size_t)t * setup->kv_heads + h) * setup->head_dim + c];
    fit(context, (oracle_place){b.token, b.head, b.channel}, x, out, n);
    n = 0;
    for (uint32_t t = b.token; t < b.token + b.tokens; t++)
        for (uint32_t h = b.head; h < b.head + b.heads; h++)
            for (uint32_t c = b.channel; c < b.channel + b.channels; c++)
                expected[((size_t)t * setup->kv_heads + h) * setup->head_dim + c] = out[n++];
}

bool oracle_each_group(const kvant_setup *setup, oracle_grouping grouping, uint32_t size, const float *values,
                       double *expected, oracle_fit *fit, const void *context) {
    uint32_t T = setup->block_tokens, H = setup->kv_heads, D = setup->head_dim;
    box step = {.tokens = T, .heads = H, .channels = D};
    if (grouping != ORACLE_ALL) step.heads = 1;
    if (grouping == ORACLE_CHANNEL || grouping == ORACLE_TOKENS) step.channels = 1;
    if (grouping == ORACLE_TOKEN || grouping == ORACLE_CHANNELS) step.tokens = 1;
    if (grouping == ORACLE_CHANNELS && size < D) step.channels = size;
    if (grouping == ORACLE_TOKENS && size < T) step.tokens = size;
    if (size == 0) return false;
    size_t most = (size_t)step.tokens * step.heads * step.channels;
    double *x = malloc(2 * most * sizeof *x);
    if (x == NULL) return false;
    for (uint32_t t = 0; t < T; t += step.tokens)
        for (uint32_t h = 0; h < H; h += step.heads)
            for (uint32_t c = 0; c < D; c += step.channels) {
                box b = step;
                b.token = t;
                b.head = h;
                b.channel = c;
                if (b.tokens > T - t) b.tokens = T - t;
                if (b.channels > D - c) b.channels = D - c;
                one_group(setup, b, values, expected, x, x + most, fit, context);
            }
    free(x);
    return true;
}
