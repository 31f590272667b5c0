/* kvant.calibrate/1: learns the global scale of each layer and side from the largest magnitude that the
 * texts have, sinks left out.
 *
 *     multiplier   f32 [1], or [total_kv_heads] with global_per = head: largest magnitude / amax_divisor
 *
 * Only rows of the pipeline with global_scale = artifact learn anything; the others have nothing to learn.
 * One pass. A row that is not finite, a layer without enough tokens and a layer (or head) that holds only
 * zeros are refused.
 */
#include "nvfp4.h"
#include "nvfp4_number.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stdlib.h>

enum { TOKENS_MIN = 64 };

/* One layer and side. */
typedef struct lesson {
    const kvant_setup *setup;
    nvfp4_config config;
    uint64_t tokens;
    float *amax; /* [heads] */
} lesson;

typedef struct session {
    uint32_t count;
    float *row;
    lesson lessons[];
} session;

static const char *side_of(const kvant_setup *setup) {
    return setup->side == KVANT_SIDE_KEY ? "keys" : "values";
}

static void free_session(void *memory) {
    session *s = memory;
    if (s == NULL) return;
    for (uint32_t i = 0; i < s->count; i++) free(s->lessons[i].amax);
    free(s->row);
    free(s);
}

static kvant_status begin(const kvant_setup *const *setups, uint32_t setup_count, void **out,
                          kvant_diag *diag) {
    kvant_status status = KVANT_OK;
    uint32_t widest = 1;
    session *s = calloc(1, sizeof *s + setup_count * sizeof s->lessons[0]);
    if (s == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    for (uint32_t i = 0; i < setup_count && status == KVANT_OK; i++) {
        lesson *l = &s->lessons[s->count];
        status = nvfp4_config_read(&l->config, setups[i], diag);
        if (status != KVANT_OK || l->config.format == NVFP4_FORMAT_MXFP4 ||
            l->config.global != NVFP4_GLOBAL_ARTIFACT)
            continue;
        l->setup = setups[i];
        l->amax = calloc(setups[i]->kv_heads, sizeof *l->amax);
        s->count++;
        widest = setups[i]->head_dim > widest ? setups[i]->head_dim : widest;
        if (l->amax == NULL) status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    }
    s->row = malloc(widest * sizeof *s->row);
    if (status == KVANT_OK && s->row == NULL)
        status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    if (status != KVANT_OK) {
        free_session(s);
        return status;
    }
    *out = s;
    return KVANT_OK;
}

static kvant_status learn(lesson *l, const kvant_view *rows, uint32_t sinks, float *row, kvant_diag *diag) {
    const kvant_setup *setup = l->setup;
    if (rows->heads != setup->kv_heads || rows->head_dim != setup->head_dim)
        return kvant_fail(diag, KVANT_ERROR_MISMATCH, "",
                          "layer %u: a sample has %u heads of %u channels, the pipeline %u of %u",
                          setup->layer, rows->heads, rows->head_dim, setup->kv_heads, setup->head_dim);
    for (uint32_t t = sinks; t < rows->tokens; t++) {
        for (uint32_t h = 0; h < rows->heads; h++) {
            kvant_load_row(rows, t, h, row);
            for (uint32_t c = 0; c < rows->head_dim; c++) {
                int32_t bits = (int32_t)(kvant_float_bits(row[c]) & 0x7fffffffu);
                if (bits >= 0x7f800000)
                    return kvant_fail(diag, KVANT_ERROR_NOT_FINITE, "",
                                      "layer %u, %s: token %u, head %u, channel %u is not finite",
                                      setup->layer, side_of(setup), t, h, c);
                float magnitude = kvant_bits_float((uint32_t)bits);
                l->amax[h] = magnitude > l->amax[h] ? magnitude : l->amax[h];
            }
        }
        l->tokens++;
    }
    return KVANT_OK;
}

static kvant_status feed(void *memory, const kvant_sample *sample, kvant_diag *diag) {
    session *s = memory;
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < s->count && status == KVANT_OK; i++) {
        lesson *l = &s->lessons[i];
        const kvant_view *rows = l->setup->side == KVANT_SIDE_KEY ? sample->keys : sample->values;
        if (l->setup->layer != sample->layer || rows == NULL) continue;
        status = learn(l, rows, sample->sinks, s->row, diag);
    }
    return status;
}

static kvant_status again(void *memory, uint32_t *more, kvant_diag *diag) {
    (void)memory;
    (void)diag;
    *more = 0;
    return KVANT_OK;
}

/* Multipliers take the place of the magnitudes. */
static kvant_status conclude(lesson *l, uint32_t *count, kvant_diag *diag) {
    const kvant_setup *setup = l->setup;
    if (l->tokens < TOKENS_MIN)
        return kvant_fail(diag, KVANT_ERROR_MISSING, "global_scale",
                          "layer %u, %s: %llu tokens to learn from, at least %d are needed", setup->layer,
                          side_of(setup), (unsigned long long)l->tokens, TOKENS_MIN);
    *count = l->config.per == NVFP4_PER_HEAD ? setup->kv_heads : 1;
    if (*count == 1)
        for (uint32_t h = 1; h < setup->kv_heads; h++)
            l->amax[0] = l->amax[h] > l->amax[0] ? l->amax[h] : l->amax[0];
    for (uint32_t h = 0; h < *count; h++) {
        if (l->amax[h] == 0.0f)
            return kvant_fail(diag, KVANT_ERROR_VALUE, "global_scale",
                              "layer %u, %s, head %u: all numbers are zero, there is no scale to learn",
                              setup->layer, side_of(setup), h);
        l->amax[h] = nvfp4_global_from_amax(&l->config, l->amax[h]).multiplier;
    }
    return KVANT_OK;
}

static kvant_status end(void *memory, kvant_tensor_sink *sink, void *context, kvant_diag *diag) {
    session *s = memory;
    for (uint32_t i = 0; i < s->count; i++) {
        lesson *l = &s->lessons[i];
        uint32_t count = 0;
        kvant_status status = conclude(l, &count, diag);
        if (status != KVANT_OK) return status;
        const kvant_array tensor = {.name = "multiplier",
                                    .data = l->amax,
                                    .shape = {count},
                                    .bytes = (uint64_t)count * sizeof(float),
                                    .dtype = KVANT_DTYPE_F32,
                                    .rank = 1};
        sink(context, l->setup->layer, l->setup->side, &tensor);
    }
    return KVANT_OK;
}

const kvant_calibrate nvfp4_calibrate = {.struct_size = sizeof(kvant_calibrate),
                                         .begin = begin,
                                         .feed = feed,
                                         .again = again,
                                         .end = end,
                                         .free = free_session};
