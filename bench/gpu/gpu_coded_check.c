/* Attention on codes against attention in double precision over the rows before they were coded: that both
 * sides of the benchmark compute the same thing. How exact it is, tests say. */
#include "gpu_coded.h"
#include "gpu_reference.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/half.h>

#include <math.h>
#include <stdlib.h>

static kvant_status compare(const gpu_coded_step *s, gpu_address rows, double *error, kvant_diag *diag) {
    const gpu_coded *c = s->coded;
    gpu_clock *clock = c->clock;
    uint32_t q_heads = c->kv_heads * c->group, count = s->sequences * q_heads;
    size_t side = (size_t)s->sequences * s->tokens * c->kv_heads * CODED_DIM;
    uint16_t *kv = NULL, *queries = NULL, *outputs = NULL;
    double *logits = malloc(s->tokens * sizeof *logits);
    kvant_status status =
        logits != NULL ? KVANT_OK : kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    if (status == KVANT_OK) status = gpu_read(clock, rows, 2 * side * 2, (void **)&kv, diag);
    if (status == KVANT_OK)
        status = gpu_read(clock, s->queries, (size_t)count * CODED_DIM * 2, (void **)&queries, diag);
    if (status == KVANT_OK)
        status = gpu_read(clock, s->outputs, (size_t)count * CODED_DIM * 2, (void **)&outputs, diag);
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        size_t head = (size_t)(i / q_heads) * s->tokens * c->kv_heads + i % q_heads / c->group;
        const gpu_reference_rows of = {.keys = kv + head * CODED_DIM,
                                       .values = kv + side + head * CODED_DIM,
                                       .stride = (size_t)c->kv_heads * CODED_DIM,
                                       .tokens = s->tokens,
                                       .dim = CODED_DIM,
                                       .scale = 0.08838835};
        float output[CODED_DIM];
        for (uint32_t k = 0; k < CODED_DIM; k++)
            output[k] = kvant_bf16_to_f32(outputs[(size_t)i * CODED_DIM + k]);
        double one = gpu_reference_error(&of, queries + (size_t)i * CODED_DIM, output, logits);
        if (!(one <= *error) && !isnan(*error)) *error = one; /* NaN stays */
    }
    free(kv);
    free(queries);
    free(outputs);
    free(logits);
    return status;
}

kvant_status gpu_coded_check(const gpu_coded *coded, double *error, kvant_diag *diag) {
    enum { SEQUENCES = 2, TOKENS = 4 * CODED_BLOCK };
    gpu_room room = {.clock = coded->clock};
    uint64_t bytes = (uint64_t)2 * SEQUENCES * TOKENS * coded->kv_heads * CODED_DIM * 2;
    gpu_coded_step s;
    gpu_address rows = 0;
    *error = 0;
    kvant_status status = gpu_room_take(&room, bytes, &rows, diag);
    if (status == KVANT_OK) status = gpu_fill(coded->clock, rows, bytes, coded->dtype, 29, diag);
    if (status == KVANT_OK)
        status = gpu_coded_step_open(coded, &room, SEQUENCES, TOKENS, 1, 2 * CODED_BLOCK, rows, &s, diag);
    if (status == KVANT_OK) {
        status = s.timed.launch(&s, 0, coded->clock->stream, diag);
        if (status == KVANT_OK) status = compare(&s, rows, error, diag);
        gpu_coded_step_close(&s);
    }
    gpu_room_free(&room);
    return status;
}
