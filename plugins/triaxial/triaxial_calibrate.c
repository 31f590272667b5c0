/* kvant.calibrate/1: what each tag's tokens do to the attention output with 2 and with 4 bits.
 *
 * TriAxialKV's calibration: D_k(b) is the mean squared error of the attention output when only the tokens of
 * tag k have b bits; the largest over heads, the mean over texts, the sum over layers. One table serves all
 * layers and both sides, so every row of the artifact holds the same three tensors: see triaxial_policy.c,
 * which turns them into widths. Needs keys, values, queries and tags.
 */
#include "triaxial.h"
#include "triaxial_policy.h"
#include "triaxial_sensitivity.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <math.h>
#include <stdlib.h>

typedef struct session {
    const kvant_setup *const *setups;
    uint32_t setup_count;
    uint32_t group;
    bool idle;     /* policy = rules: nothing to learn */
    uint32_t *fed; /* [setup_count] texts of that row's layer */
    uint64_t tokens[TRIAXIAL_TAGS];
    double loss[TRIAXIAL_TAGS][2];
} session;

static void free_session(void *memory) {
    session *s = memory;
    if (s != NULL) free(s->fed);
    free(s);
}

static kvant_status begin(const kvant_setup *const *setups, uint32_t setup_count, void **memory,
                          kvant_diag *diag) {
    if (setup_count == 0) return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "no row to calibrate");
    session *s = calloc(1, sizeof *s);
    uint32_t *fed = calloc(setup_count, sizeof *fed);
    if (s == NULL || fed == NULL) {
        free(s);
        free(fed);
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    }
    const kvant_value *values = setups[0]->values;
    *s = (session){.setups = setups,
                   .setup_count = setup_count,
                   .group = (uint32_t)values[TRIAXIAL_PARAM_GROUP].integer,
                   .idle = values[TRIAXIAL_PARAM_POLICY].integer == TRIAXIAL_POLICY_RULES,
                   .fed = fed};
    *memory = s;
    return KVANT_OK;
}

/* ---- What a sample must be ----------------------------------------------------------------------------- */

static kvant_status look_at_rows(const kvant_view *rows, const kvant_sample *sample, const char *what,
                                 kvant_diag *diag) {
    bool all_zero = true;
    for (uint32_t t = 0; t < rows->tokens; t++)
        for (uint32_t h = 0; h < rows->heads; h++) {
            const char *at = kvant_view_at(rows, t, h);
            for (uint32_t c = 0; c < rows->head_dim; c++) {
                float x = kvant_load_element(at + (int64_t)c * rows->channel_stride, rows->dtype);
                if (!isfinite(x))
                    return kvant_fail(diag, KVANT_ERROR_NOT_FINITE, "",
                                      "layer %u, text %u: %s of token %u, head %u, channel %u is not finite",
                                      sample->layer, sample->text, what, t, h, c);
                all_zero = all_zero && x == 0;
            }
        }
    if (!all_zero) return KVANT_OK;
    return kvant_fail(diag, KVANT_ERROR_VALUE, "",
                      "layer %u, text %u: every %s is zero, which teaches nothing", sample->layer,
                      sample->text, what);
}

static kvant_status look_at_views(const kvant_sample *sample, uint32_t group, kvant_diag *diag) {
    const kvant_view *keys = sample->keys, *values = sample->values, *queries = sample->queries;
    static const char *const names[] = {"keys", "values", "queries", "tags"};
    const void *const parts[] = {keys, values, queries, sample->tags};
    for (uint32_t i = 0; i < 4; i++)
        if (parts[i] == NULL)
            return kvant_fail(
                diag, KVANT_ERROR_MISSING, names[i],
                "layer %u, text %u: no %s; triaxial measures the attention output by tag, which needs keys, "
                "values, queries and tags%s",
                sample->layer, sample->text, names[i], i == 3 ? " (`kvant tag` gives a dump tags)" : "");
    if (keys->tokens != values->tokens || keys->heads != values->heads || keys->heads == 0 ||
        queries->heads % keys->heads != 0 || queries->head_dim != keys->head_dim)
        return kvant_fail(diag, KVANT_ERROR_GEOMETRY, "",
                          "layer %u, text %u: keys, values and queries do not fit one another", sample->layer,
                          sample->text);
    if (queries->tokens == 0 || queries->heads == 0 || sample->sinks >= keys->tokens ||
        keys->tokens - sample->sinks < group)
        return kvant_fail(
            diag, KVANT_ERROR_VALUE, "group",
            "layer %u, text %u: %u tokens behind %u sinks, and %u queries; at least %u tokens and a query "
            "are needed",
            sample->layer, sample->text, keys->tokens, sample->sinks, queries->tokens, group);
    if (!(isfinite(sample->logit_scale) && sample->logit_scale > 0))
        return kvant_fail(diag, KVANT_ERROR_VALUE, "", "the logit scale must be a positive number");
    kvant_status status = look_at_rows(keys, sample, "key", diag);
    if (status == KVANT_OK) status = look_at_rows(values, sample, "value", diag);
    return status == KVANT_OK ? look_at_rows(queries, sample, "query", diag) : status;
}

/* ---- Learning ------------------------------------------------------------------------------------------ */

static kvant_status feed(void *memory, const kvant_sample *sample, kvant_diag *diag) {
    session *s = memory;
    uint32_t sides = 0;
    if (s->idle) return KVANT_OK;
    for (uint32_t i = 0; i < s->setup_count; i++)
        if (s->setups[i]->layer == sample->layer) sides |= 1u << s->setups[i]->side;
    if (sides == 0) return KVANT_OK;
    kvant_status status = look_at_views(sample, s->group, diag);
    if (status != KVANT_OK) return status;
    if (sample->layer == s->setups[0]->layer)
        for (uint32_t t = sample->sinks; t < sample->keys->tokens; t++) s->tokens[sample->tags[t]]++;
    if (!triaxial_sensitivity(sample, s->group, sides, s->loss))
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    for (uint32_t i = 0; i < s->setup_count; i++) s->fed[i] += s->setups[i]->layer == sample->layer;
    return KVANT_OK;
}

static kvant_status again(void *memory, uint32_t *again_too, kvant_diag *diag) {
    (void)memory;
    (void)diag;
    *again_too = 0;
    return KVANT_OK;
}

static kvant_status check_enough(const session *s, kvant_diag *diag) {
    double all = 0;
    for (uint32_t i = 0; i < s->setup_count; i++)
        if (s->fed[i] == 0)
            return kvant_fail(diag, KVANT_ERROR_MISSING, "", "layer %u: no sample to learn from",
                              s->setups[i]->layer);
    for (uint32_t tag = 0; tag < TRIAXIAL_TAGS; tag++) all += s->loss[tag][0] + s->loss[tag][1];
    if (!(all > 0 && all < 1e300))
        return kvant_fail(
            diag, KVANT_ERROR_VALUE, "",
            "no query feels a difference between exact and coded tokens, or too large a one: the total "
            "error is %g",
            all);
    return KVANT_OK;
}

static kvant_status end(void *memory, kvant_tensor_sink *sink, void *context, kvant_diag *diag) {
    session *s = memory;
    if (s->idle) return KVANT_OK;
    kvant_status status = check_enough(s, diag);
    if (status != KVANT_OK) return status;
    uint8_t tags[TRIAXIAL_TAGS];
    uint64_t tokens[TRIAXIAL_TAGS], count = 0;
    double loss[TRIAXIAL_TAGS][2];
    for (uint32_t tag = 0; tag < TRIAXIAL_TAGS; tag++) {
        if (s->tokens[tag] == 0) continue;
        tags[count] = (uint8_t)tag;
        tokens[count] = s->tokens[tag];
        for (uint32_t b = 0; b < 2; b++) loss[count][b] = s->loss[tag][b] / s->fed[0];
        count++;
    }
    const kvant_array tensors[] = {
        {.name = "loss",
         .data = loss,
         .shape = {count, 2},
         .bytes = 16 * count,
         .dtype = KVANT_DTYPE_F64,
         .rank = 2},
        {.name = "tag", .data = tags, .shape = {count}, .bytes = count, .dtype = KVANT_DTYPE_U8, .rank = 1},
        {.name = "tokens",
         .data = tokens,
         .shape = {count},
         .bytes = 8 * count,
         .dtype = KVANT_DTYPE_U64,
         .rank = 1}};
    for (uint32_t i = 0; i < s->setup_count; i++)
        for (uint32_t t = 0; t < 3; t++) sink(context, s->setups[i]->layer, s->setups[i]->side, &tensors[t]);
    return KVANT_OK;
}

const kvant_calibrate triaxial_calibrate = {.struct_size = sizeof(kvant_calibrate),
                                            .begin = begin,
                                            .feed = feed,
                                            .again = again,
                                            .end = end,
                                            .free = free_session};
