/* kvant.calibrate/1 of the honest codec: the largest magnitude of each head, which nobody uses. Liars of
 * calibration replace a call. */
#ifndef KVANT_TEST_HONEST_CALIBRATE_H
#define KVANT_TEST_HONEST_CALIBRATE_H

#include "honest.h"

#include <stdlib.h>

enum { HONEST_LEAST = 8 };

typedef struct honest_session {
    const kvant_setup *setup;
    uint64_t tokens;
    float *most; /* [total_kv_heads] */
    float *row;  /* [head_dim] */
} honest_session;

HONEST void honest_session_free(void *session) {
    honest_session *s = session;
    free(s->most);
    free(s->row);
    free(s);
}

HONEST kvant_status honest_begin(const kvant_setup *const *setups, uint32_t count, void **session,
                                 kvant_diag *diag) {
    honest_session *s = calloc(1, sizeof *s);
    if (s == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    s->setup = setups[count - 1];
    s->most = calloc(s->setup->total_kv_heads, sizeof *s->most);
    s->row = calloc(s->setup->head_dim, sizeof *s->row);
    *session = s;
    if (s->most != NULL && s->row != NULL) return KVANT_OK;
    honest_session_free(s);
    return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
}

HONEST kvant_status honest_feed(void *session, const kvant_sample *sample, kvant_diag *diag) {
    honest_session *s = session;
    const kvant_view *rows = s->setup->side == KVANT_SIDE_KEY ? sample->keys : sample->values;
    if (sample->layer != s->setup->layer || rows == NULL) return KVANT_OK;
    for (uint32_t t = sample->sinks; t < rows->tokens; t++)
        for (uint32_t h = 0; h < rows->heads; h++) {
            kvant_load_row(rows, t, h, s->row);
            for (uint32_t c = 0; c < rows->head_dim; c++) {
                float x = s->row[c] < 0 ? -s->row[c] : s->row[c];
                if (!(x <= 0x1.fffffep127f))
                    return kvant_fail(diag, KVANT_ERROR_NOT_FINITE, "", "token %u, head %u is not finite", t,
                                      h);
                if (x > s->most[h]) s->most[h] = x;
            }
        }
    s->tokens += rows->tokens;
    return KVANT_OK;
}

HONEST kvant_status honest_again(void *session, uint32_t *again, kvant_diag *diag) {
    (void)session;
    (void)diag;
    *again = 0;
    return KVANT_OK;
}

HONEST kvant_status honest_end(void *session, kvant_tensor_sink *sink, void *context, kvant_diag *diag) {
    const honest_session *s = session;
    uint32_t heads = s->setup->total_kv_heads;
    if (s->tokens < HONEST_LEAST)
        return kvant_fail(diag, KVANT_ERROR_MISSING, "", "%llu tokens, at least %d are needed",
                          (unsigned long long)s->tokens, HONEST_LEAST);
    for (uint32_t h = 0; h < heads; h++)
        if (s->most[h] == 0.0f)
            return kvant_fail(diag, KVANT_ERROR_MISSING, "", "head %u is all zeros", h);
    const kvant_array tensor = {.name = "most",
                                .data = s->most,
                                .shape = {heads},
                                .bytes = heads * sizeof *s->most,
                                .dtype = KVANT_DTYPE_F32,
                                .rank = 1};
    sink(context, s->setup->layer, s->setup->side, &tensor);
    return KVANT_OK;
}

#define HONEST_CALIBRATE                                                                                     \
    .struct_size = sizeof(kvant_calibrate), .begin = honest_begin, .feed = honest_feed,                      \
    .again = honest_again, .end = honest_end, .free = honest_session_free

/* A codec that learns; the rest are members of kvant_calibrate to replace. */
#define LEARNING(NAME, ...)                                                                                  \
    static const kvant_calibrate calibrate = {HONEST_CALIBRATE, __VA_ARGS__};                                \
    static const void *extension(const char *id) {                                                           \
        return strcmp(id, KVANT_EXT_CALIBRATE) == 0 ? &calibrate : NULL;                                     \
    }                                                                                                        \
    LIAR(NAME, .extension = extension)

#endif
