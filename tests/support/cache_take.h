/* Whole steps on the model's rows (cache_model.h), for tests that compare sequences with each other rather
 * than with the model. Any number of threads may use one. */
#ifndef KVANT_TEST_CACHE_TAKE_H
#define KVANT_TEST_CACHE_TAKE_H

#include "support/cache_model.h"

enum { TAKE_OUTPUTS = MODEL_Q_HEADS * 16 }; /* floats of a token and layer */

/* Tokens of a text: ids, tags and contexts of positions [0, MODEL_TOKENS). */
typedef struct take_text {
    model_token tokens[MODEL_TOKENS];
    uint64_t ids[MODEL_TOKENS];
    uint8_t tags[MODEL_TOKENS];
} take_text;

/* Texts of different seeds are alike in their first `common` tokens. */
take_text *take_text_make(const cache_model *m, uint64_t seed, uint32_t common);

/* Positions [first, to) of the text as one step; outputs: [layers][to - first][TAKE_OUTPUTS], NULL = without
 * attention. What begin says; all else must work. */
kvant_status take_step(const cache_model *m, kvant_cache *cache, kvant_sequence *s, const take_text *text,
                       uint32_t first, uint32_t to, float *outputs);

/* As it hands them over; for the caller to free. */
void *take_rows(const cache_model *m, const take_text *text, uint32_t layer, uint32_t side, uint32_t first,
                uint32_t to, kvant_view *view);
float *take_queries(const take_text *text, uint32_t layer, uint32_t first, uint32_t to, kvant_view *view);
kvant_mutable_view take_outputs_view(const cache_model *m, uint32_t layer, uint32_t count, float *outputs);

/* Room for outputs of `count` tokens, zeros: for the caller to free. */
float *take_room(uint32_t count);
bool take_same(const float *a, const float *b, uint32_t count);

#endif
