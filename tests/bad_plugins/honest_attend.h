/* kvant.attend/1 of the honest codec: plain floats over rows that are unpacked one by one. Liars of attention
 * replace a call. */
#ifndef KVANT_TEST_HONEST_ATTEND_H
#define KVANT_TEST_HONEST_ATTEND_H

#include "honest.h"

HONEST kvant_status honest_attend_plan(const kvant_setup *setup, kvant_layout *layout, kvant_diag *diag) {
    kvant_status status = honest_plan(setup, layout, diag);
    if (status != KVANT_OK) return status;
    layout->flags = KVANT_LAYOUT_ATTEND;
    layout->mix_width = setup->side == KVANT_SIDE_VALUE ? setup->head_dim : 0;
    layout->attend_scratch_bytes = ((uint64_t)setup->head_dim * sizeof(float) + 63) / 64 * 64;
    layout->query_state_bytes = ((uint64_t)setup->head_dim * sizeof(float) + 63) / 64 * 64;
    layout->attend_tolerance = 1e-4; /* of 4096 sums in float */
    return KVANT_OK;
}

HONEST size_t honest_query_floats(const honest *h) {
    return (h->head_dim + 15u) / 16 * 16;
}

/* One row of an extent, unpacked into scratch. */
HONEST const float *honest_row(const honest *h, const kvant_extent *extent, uint32_t token, uint32_t head,
                               float *scratch) {
    const uint8_t *bytes = extent->bytes;
    size_t index = (size_t)token * h->heads + head;
    float scale;
    memcpy(&scale, bytes + index * sizeof scale, sizeof scale);
    honest_get_row(h, bytes + honest_codes(h) + index * honest_row_bytes(h), scale, scratch);
    for (uint32_t c = 0; c < h->head_dim; c++) scratch[c] = honest_cut(scratch[c], KVANT_DTYPE_F32);
    return scratch;
}

HONEST kvant_status honest_query(const void *state, const kvant_query_args *args) {
    const honest *h = state;
    float *to = args->query_state;
    for (size_t r = 0; r < (size_t)args->heads * args->rows; r++)
        memcpy(to + r * honest_query_floats(h), args->queries + r * args->query_stride,
               h->head_dim * sizeof *to);
    return KVANT_OK;
}

HONEST kvant_status honest_score(const void *state, const kvant_score_args *args) {
    const honest *h = state;
    for (uint32_t e = 0; e < args->extent_count; e++)
        for (uint32_t i = 0; i < args->extents[e].live_count; i++)
            for (uint32_t k = 0; k < args->heads; k++) {
                uint32_t t = args->extents[e].live_first + i;
                const float *row = honest_row(h, &args->extents[e], t, args->first_head + k, args->scratch);
                for (uint32_t r = 0; r < args->rows; r++) {
                    size_t at = (size_t)k * args->rows + r;
                    const float *query = (const float *)args->query_state + at * honest_query_floats(h);
                    float sum = 0;
                    for (uint32_t c = 0; c < h->head_dim; c++) sum += query[c] * row[c];
                    args->logits[at * args->logit_stride + (size_t)e * h->tokens + t] = sum;
                }
            }
    return KVANT_OK;
}

HONEST kvant_status honest_mix(const void *state, const kvant_mix_args *args) {
    const honest *h = state;
    for (uint32_t e = 0; e < args->extent_count; e++)
        for (uint32_t i = 0; i < args->extents[e].live_count; i++)
            for (uint32_t k = 0; k < args->heads; k++) {
                uint32_t t = args->extents[e].live_first + i;
                const float *row = honest_row(h, &args->extents[e], t, args->first_head + k, args->scratch);
                for (uint32_t r = 0; r < args->rows; r++) {
                    size_t at = (size_t)k * args->rows + r;
                    float weight = args->weights[at * args->weight_stride + (size_t)e * h->tokens + t];
                    float *sum = args->accumulators + at * args->accumulator_stride;
                    for (uint32_t c = 0; c < h->head_dim; c++) sum[c] += weight * row[c];
                }
            }
    return KVANT_OK;
}

HONEST kvant_status honest_finish(const void *state, const kvant_finish_args *args) {
    const honest *h = state;
    for (size_t r = 0; r < (size_t)args->heads * args->rows; r++)
        memcpy(args->outputs + r * args->output_stride, args->accumulators + r * args->accumulator_stride,
               h->head_dim * sizeof *args->outputs);
    return KVANT_OK;
}

#define HONEST_ATTEND                                                                                        \
    .struct_size = sizeof(kvant_attend), .query = honest_query, .score = honest_score, .mix = honest_mix,    \
    .finish = honest_finish

/* A codec with attention; the rest are members of kvant_attend to replace. */
#define ATTENDING(NAME, ...)                                                                                 \
    static const kvant_attend attend = {HONEST_ATTEND, __VA_ARGS__};                                         \
    static const void *extension(const char *id) {                                                           \
        return strcmp(id, KVANT_EXT_ATTEND) == 0 ? &attend : NULL;                                           \
    }                                                                                                        \
    LIAR(NAME, .plan = honest_attend_plan, .extension = extension)

#endif
