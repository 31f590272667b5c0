/* One step of a sequence in a replay: rows made, handed over layer by layer, published, compared. */
#include "replay/replay_run.h"

#include "data/blocks.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stdlib.h>
#include <string.h>

enum { ABORT_EVERY = 16 }; /* steps for one that is begun and aborted first */

/* The time of a call that began then, as one of its kind and of all. */
static void count_time(replay_run *run, double *kind, double begun) {
    double took = replay_now() - begun;
    run->result->seconds += took;
    *kind += took;
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static bool reserve_step(replay_run *run, uint32_t count) {
    if (count <= run->step_room) return true;
    free(run->origins);
    run->origins = malloc(count * sizeof *run->origins);
    run->step_room = run->origins != NULL ? count : 0;
    return run->origins != NULL;
}

static void make_origins(replay_run *run, const replay_sequence *s, const replay_step *step) {
    uint64_t before = replay_history_last(&s->history), way = replay_history_way(&s->history);
    for (uint32_t i = 0; i < step->count; i++)
        run->origins[i] = before = kvant_replay_origin(run->rows, before, step->ids[i], way);
}

/* Keys, values and, unless they are only put, queries of one layer, with room for the outputs. */
static bool make_rows(replay_run *run, uint32_t layer, uint64_t first, uint32_t count) {
    const kvant_layer_geometry *g = replay_layer(run->oracle, layer);
    if (!replay_room_for(&run->keys, count * replay_row_bytes(run->oracle, layer, KVANT_SIDE_KEY)) ||
        !replay_room_for(&run->values, count * replay_row_bytes(run->oracle, layer, KVANT_SIDE_VALUE)))
        return false;
    kvant_replay_rows_fill(run->rows, layer, KVANT_SIDE_KEY, run->origins, first, count, run->keys.bytes);
    kvant_replay_rows_fill(run->rows, layer, KVANT_SIDE_VALUE, run->origins, first, count, run->values.bytes);
    if (run->options->put_only) return true;
    size_t heads = (size_t)count * g->q_heads;
    if (!replay_room_for(&run->queries, heads * g->key_dim * sizeof(float)) ||
        !replay_room_for(&run->outputs, heads * g->value_dim * sizeof(float)) ||
        !replay_room_for(&run->sums, heads * sizeof(float)))
        return false;
    kvant_replay_rows_fill(run->rows, layer, KVANT_REPLAY_QUERY, run->origins, first, count,
                           run->queries.bytes);
    memset(run->outputs.bytes, 0xa5, heads * g->value_dim * sizeof(float));
    memset(run->sums.bytes, 0xa5, heads * sizeof(float));
    return true;
}

static kvant_mutable_view output_view(const replay_run *run, uint32_t layer, uint32_t count) {
    const kvant_layer_geometry *g = replay_layer(run->oracle, layer);
    return (kvant_mutable_view){.struct_size = sizeof(kvant_mutable_view),
                                .dtype = KVANT_DTYPE_F32,
                                .data = run->outputs.bytes,
                                .tokens = count,
                                .heads = g->q_heads,
                                .head_dim = g->value_dim,
                                .token_stride = (int64_t)(g->q_heads * g->value_dim * sizeof(float)),
                                .head_stride = (int64_t)(g->value_dim * sizeof(float)),
                                .channel_stride = sizeof(float)};
}

/* ---- Layers -------------------------------------------------------------------------------------------- */

static kvant_status give_layer(replay_run *run, replay_sequence *s, uint32_t layer, uint32_t count) {
    const kvant_layer_geometry *g = replay_layer(run->oracle, layer);
    uint32_t dtype = run->info.geometry->dtype;
    kvant_view keys = kvant_rows_view(run->keys.bytes, dtype, count, g->kv_heads, g->key_dim);
    kvant_view values = kvant_rows_view(run->values.bytes, dtype, count, g->kv_heads, g->value_dim);
    double begun = replay_now();
    kvant_status status;
    if (run->options->put_only) {
        status = kvant_step_put(s->sequence, layer, &keys, &values, run->diag);
    } else {
        kvant_view queries =
            kvant_rows_view(run->queries.bytes, KVANT_DTYPE_F32, count, g->q_heads, g->key_dim);
        kvant_mutable_view outputs = output_view(run, layer, count);
        kvant_step_rows rows = {.struct_size = sizeof rows,
                                .sequence = s->sequence,
                                .keys = &keys,
                                .values = &values,
                                .queries = &queries,
                                .outputs = &outputs,
                                .log_sum_exp = (float *)(void *)run->sums.bytes};
        kvant_attention_options options = kvant_replay_attention_options(run->oracle, layer);
        status = kvant_step_attend(run->cache, layer, &rows, 1, &options, run->diag);
    }
    count_time(run, &run->result->attend_seconds, begun);
    return status;
}

static kvant_status check_layer(replay_run *run, const replay_sequence *s, uint32_t layer, uint32_t count) {
    replay_attended attended = {.layer = layer,
                                .count = count,
                                .queries = count,
                                .keys = run->keys.bytes,
                                .values = run->values.bytes,
                                .query_rows = (const float *)(const void *)run->queries.bytes,
                                .outputs = (const float *)(const void *)run->outputs.bytes,
                                .log_sum_exp = (const float *)(const void *)run->sums.bytes};
    return kvant_replay_check_attention(run->oracle, &s->history, &attended, run->diag);
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

static kvant_status begin(replay_run *run, replay_sequence *s, const replay_step *step) {
    kvant_step_options options = {.struct_size = sizeof options,
                                  .count = step->count,
                                  .tentative = step->tentative,
                                  .ids = step->ids,
                                  .tags = step->tags};
    double begun = replay_now();
    kvant_status status = kvant_step_begin(s->sequence, &options, run->diag);
    count_time(run, &run->result->begin_seconds, begun);
    return status;
}

/* Begins the step, gives half of the layers, and aborts: nothing of it may be left. */
static kvant_status abort_once(replay_run *run, replay_sequence *s, const replay_step *step) {
    uint32_t layers = (run->info.geometry->layer_count + 1) / 2;
    kvant_status status = begin(run, s, step);
    for (uint32_t l = 0; status == KVANT_OK && l < layers; l++) {
        if (!make_rows(run, l, s->history.length, step->count))
            return kvant_fail(run->diag, KVANT_ERROR_MEMORY, "", "out of memory");
        status = give_layer(run, s, l, step->count);
    }
    if (status != KVANT_OK) return status;
    kvant_step_abort(s->sequence);
    run->result->aborted_steps++;
    return replay_check(run, s, s->history.tail_first, s->history.length);
}

static kvant_status give_layers(replay_run *run, replay_sequence *s, const replay_step *step, bool compares) {
    kvant_status status = KVANT_OK;
    for (uint32_t l = 0; status == KVANT_OK && l < run->info.geometry->layer_count; l++) {
        if (!make_rows(run, l, s->history.length, step->count))
            return kvant_fail(run->diag, KVANT_ERROR_MEMORY, "", "out of memory");
        status = give_layer(run, s, l, step->count);
        if (status == KVANT_OK && compares) status = check_layer(run, s, l, step->count);
    }
    return status;
}

static kvant_status commit(replay_run *run, replay_sequence *s, const replay_step *step) {
    double begun = replay_now();
    kvant_status status = kvant_step_commit(s->sequence, step->keep, run->diag);
    count_time(run, &run->result->commit_seconds, begun);
    return status;
}

kvant_status replay_take_step(replay_run *run, replay_sequence *s, const replay_step *step) {
    replay_history *h = &s->history;
    bool all = run->options->check == KVANT_REPLAY_CHECK_ALL && !run->options->put_only;
    bool compares = all && run->result->steps % run->options->every == 0;
    uint64_t limit = replay_history_limit(h, step->count, step->tentative), old_tail = h->tail_first;
    uint64_t old_length = h->length;
    kvant_status status = KVANT_OK;
    if (!reserve_step(run, step->count))
        return kvant_fail(run->diag, KVANT_ERROR_MEMORY, "", "out of memory");
    make_origins(run, s, step);
    if (run->options->check == KVANT_REPLAY_CHECK_ALL && run->result->steps % ABORT_EVERY == ABORT_EVERY / 2)
        status = abort_once(run, s, step);
    if (status == KVANT_OK) status = begin(run, s, step);
    if (status != KVANT_OK) return status;
    /* What is older than the step is encoded when it begins, the rest when its layers are done. */
    bool fits = replay_history_seal(h, limit < h->length ? limit : h->length);
    status = give_layers(run, s, step, compares);
    if (status == KVANT_OK) status = commit(run, s, step);
    if (status != KVANT_OK) return status;
    fits = fits && replay_history_append(h, run->origins, step->tags, step->keep) &&
           replay_history_seal(h, limit);
    if (!fits) return kvant_fail(run->diag, KVANT_ERROR_MEMORY, "", "out of memory");
    run->result->steps++;
    /* Blocks that became encoded, then what came in. */
    status = replay_check(run, s, old_tail, h->tail_first);
    return status == KVANT_OK
               ? replay_check(run, s, old_length > h->tail_first ? old_length : h->tail_first, h->length)
               : status;
}

/* ---- Comparing ----------------------------------------------------------------------------------------- */

kvant_status replay_check(replay_run *run, const replay_sequence *s, uint64_t first, uint64_t end) {
    if (run->options->check == KVANT_REPLAY_CHECK_NONE) return KVANT_OK;
    kvant_status status = kvant_replay_check_state(s->sequence, &s->history, run->diag);
    run->result->compared_states++;
    if (status != KVANT_OK) return status;
    return kvant_replay_check_rows(run->oracle, s->sequence, run->read_scratch, &s->history, first, end,
                                   run->diag);
}

static kvant_status attend_beside(replay_run *run, const replay_sequence *s, uint32_t layer) {
    const kvant_layer_geometry *g = replay_layer(run->oracle, layer);
    uint64_t position = s->history.length - 1;
    kvant_view queries = kvant_rows_view(run->queries.bytes, KVANT_DTYPE_F32, 1, g->q_heads, g->key_dim);
    kvant_mutable_view outputs = output_view(run, layer, 1);
    kvant_token_range range;
    kvant_token_range_causal(position, 1, g->window, &range);
    kvant_attend_part part = {.struct_size = sizeof part,
                              .sequence = s->sequence,
                              .queries = &queries,
                              .ranges = &range,
                              .outputs = &outputs,
                              .log_sum_exp = (float *)(void *)run->sums.bytes};
    kvant_attention_options options = kvant_replay_attention_options(run->oracle, layer);
    size_t size = kvant_cache_attend_scratch(run->cache, layer, &part, 1, &options);
    if (size == 0)
        return kvant_fail(run->diag, KVANT_ERROR_ARGUMENT, "", "kvant_cache_attend_scratch gives 0");
    if (!replay_room_for(&run->scratch, size))
        return kvant_fail(run->diag, KVANT_ERROR_MEMORY, "", "out of memory");
    double begun = replay_now();
    kvant_status status = kvant_cache_attend(run->cache, layer, &part, 1, &options, run->scratch.bytes,
                                             run->scratch.size, run->diag);
    count_time(run, &run->result->attend_seconds, begun);
    return status;
}

kvant_status replay_check_beside(replay_run *run, const replay_sequence *s) {
    const replay_history *h = &s->history;
    if (run->options->check != KVANT_REPLAY_CHECK_ALL || run->options->put_only || h->length == 0)
        return KVANT_OK;
    if (!reserve_step(run, 1)) return kvant_fail(run->diag, KVANT_ERROR_MEMORY, "", "out of memory");
    run->origins[0] = h->origins[h->length - 1];
    kvant_status status = KVANT_OK;
    for (uint32_t l = 0; status == KVANT_OK && l < run->info.geometry->layer_count; l++) {
        if (!make_rows(run, l, h->length - 1, 1))
            return kvant_fail(run->diag, KVANT_ERROR_MEMORY, "", "out of memory");
        status = attend_beside(run, s, l);
        replay_attended attended = {.layer = l,
                                    .queries = 1,
                                    .query_rows = (const float *)(const void *)run->queries.bytes,
                                    .outputs = (const float *)(const void *)run->outputs.bytes,
                                    .log_sum_exp = (const float *)(const void *)run->sums.bytes};
        if (status == KVANT_OK) status = kvant_replay_check_attention(run->oracle, h, &attended, run->diag);
    }
    return status;
}
