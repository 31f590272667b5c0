/* See cache_take.h. */
#include "support/cache_take.h"

#include "data/blocks.h"

#include <stdlib.h>
#include <string.h>

static void *take(size_t count, size_t size) {
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL) MODEL_FAIL("out of memory");
    return memory;
}

take_text *take_text_make(const cache_model *m, uint64_t seed, uint32_t common) {
    take_text *text = take(1, sizeof *text);
    uint64_t context = 4711;
    for (uint32_t t = 0; t < MODEL_TOKENS; t++) {
        text->ids[t] = t < common ? 3 * t + 1 : model_hash(seed, t);
        text->tags[t] = (uint8_t)(t / 5 % 6);
        context = model_hash(model_hash(context, text->ids[t]), m->classes[text->tags[t]]);
        text->tokens[t] = (model_token){.id = text->ids[t], .tag = text->tags[t], .context = context};
    }
    return text;
}

void *take_rows(const cache_model *m, const take_text *text, uint32_t layer, uint32_t side, uint32_t first,
                uint32_t to, kvant_view *view) {
    void *rows = take(to - first, (size_t)model_row_bytes(m, layer, side));
    model_rows(m, layer, side, text->tokens + first, to - first, rows);
    *view = kvant_rows_view(rows, m->setting->dtype, to - first, MODEL_HEADS, model_dim(m, layer, side));
    return rows;
}

float *take_queries(const take_text *text, uint32_t layer, uint32_t first, uint32_t to, kvant_view *view) {
    enum { ROW = MODEL_Q_HEADS * MODEL_KEY_DIM };
    float *queries = take((size_t)(to - first) * ROW, sizeof *queries);
    for (uint32_t i = 0; i < (to - first) * ROW; i++)
        queries[i] =
            (float)(int16_t)model_hash(text->tokens[first + i / ROW].context, layer * ROW + i % ROW) *
            0x1p-15f;
    *view = kvant_rows_view(queries, KVANT_DTYPE_F32, to - first, MODEL_Q_HEADS, MODEL_KEY_DIM);
    return queries;
}

kvant_mutable_view take_outputs_view(const cache_model *m, uint32_t layer, uint32_t count, float *outputs) {
    uint32_t dim = model_dim(m, layer, KVANT_SIDE_VALUE);
    return (kvant_mutable_view){.struct_size = sizeof(kvant_mutable_view),
                                .dtype = KVANT_DTYPE_F32,
                                .data = outputs + (size_t)layer * count * TAKE_OUTPUTS,
                                .tokens = count,
                                .heads = MODEL_Q_HEADS,
                                .head_dim = dim,
                                .token_stride = TAKE_OUTPUTS * sizeof(float),
                                .head_stride = (int64_t)(dim * sizeof(float)),
                                .channel_stride = sizeof(float)};
}

float *take_room(uint32_t count) {
    return take((size_t)MODEL_LAYERS * count * TAKE_OUTPUTS, sizeof(float));
}

bool take_same(const float *a, const float *b, uint32_t count) {
    return model_same_floats(a, b, (size_t)MODEL_LAYERS * count * TAKE_OUTPUTS);
}

static void take_layer(const cache_model *m, kvant_cache *cache, kvant_sequence *s, const take_text *text,
                       uint32_t layer, uint32_t first, uint32_t to, float *outputs) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_attention_options options = {.struct_size = sizeof options, .scale = 0.25f};
    kvant_view views[3];
    void *rows[2];
    for (uint32_t side = 0; side < 2; side++)
        rows[side] = take_rows(m, text, layer, side, first, to, &views[side]);
    if (outputs == NULL) {
        if (kvant_step_put(s, layer, &views[0], &views[1], &diag) != KVANT_OK)
            MODEL_FAIL("put: %s", diag.message);
    } else {
        float *queries = take_queries(text, layer, first, to, &views[2]);
        kvant_mutable_view view = take_outputs_view(m, layer, to - first, outputs);
        kvant_step_rows part = {.struct_size = sizeof part,
                                .sequence = s,
                                .keys = &views[0],
                                .values = &views[1],
                                .queries = &views[2],
                                .outputs = &view};
        if (kvant_step_attend(cache, layer, &part, 1, &options, &diag) != KVANT_OK)
            MODEL_FAIL("step_attend: %s", diag.message);
        free(queries);
    }
    free(rows[0]);
    free(rows[1]);
}

kvant_status take_step(const cache_model *m, kvant_cache *cache, kvant_sequence *s, const take_text *text,
                       uint32_t first, uint32_t to, float *outputs) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_step_options step = {.struct_size = sizeof step,
                               .count = to - first,
                               .ids = text->ids + first,
                               .tags = text->tags + first};
    kvant_status status = kvant_step_begin(s, &step, &diag);
    if (status != KVANT_OK) return status;
    for (uint32_t layer = 0; layer < MODEL_LAYERS; layer++)
        take_layer(m, cache, s, text, layer, first, to, outputs);
    if (kvant_step_commit(s, to - first, &diag) != KVANT_OK) MODEL_FAIL("commit: %s", diag.message);
    return KVANT_OK;
}
