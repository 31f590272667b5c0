/* Arguments of an attention on a device. See device_attend.h. */
#include "device/device_attend.h"

#include <kvant/kit/diag.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)
#define CALL                     "kvant_device_attend_prepare: "

static kvant_status check_view(const void *data, uint32_t size, uint32_t least, uint32_t tokens,
                               uint32_t heads, uint32_t dim, const uint32_t want[3], uint32_t index,
                               const char *what, kvant_diag *diag) {
    if (data == NULL || size < least)
        return REFUSE(KVANT_ERROR_ARGUMENT, what,
                      CALL "sequence %u: %s are NULL, hold no data, or their struct_size is not %u", index,
                      what, least);
    if (tokens != want[0] || heads != want[1] || dim != want[2])
        return REFUSE(KVANT_ERROR_ARGUMENT, what,
                      CALL "sequence %u: %s [%u, %u, %u], and [%u, %u, %u] are needed", index, what, tokens,
                      heads, dim, want[0], want[1], want[2]);
    return KVANT_OK;
}

static kvant_status check_queries(const kvant_attention *a, const kvant_device_sequence *s, uint32_t index,
                                  kvant_diag *diag) {
    const kvant_view *q = s->queries;
    const kvant_mutable_view *o = s->outputs;
    if (q == NULL || o == NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT, "queries", CALL "sequence %u: queries or outputs are NULL",
                      index);
    const uint32_t want_q[3] = {q->tokens, a->q_heads, a->key_dim};
    const uint32_t want_o[3] = {q->tokens, a->q_heads, a->value_dim};
    kvant_status status = check_view(q->data, q->struct_size, sizeof *q, q->tokens, q->heads, q->head_dim,
                                     want_q, index, "queries", diag);
    if (status == KVANT_OK)
        status = check_view(o->data, o->struct_size, sizeof *o, o->tokens, o->heads, o->head_dim, want_o,
                            index, "outputs", diag);
    if (status != KVANT_OK) return status;
    if (q->dtype != a->dtype)
        return REFUSE(KVANT_ERROR_DTYPE, "queries",
                      CALL "sequence %u: queries of type %u, and the geometry says %u", index, q->dtype,
                      a->dtype);
    if (o->dtype != KVANT_DTYPE_F32 && o->dtype != KVANT_DTYPE_F16 && o->dtype != KVANT_DTYPE_BF16)
        return REFUSE(KVANT_ERROR_DTYPE, "outputs",
                      CALL "sequence %u: outputs of type %u; F32, F16 or BF16 are written", index, o->dtype);
    if (s->query_position > UINT64_MAX - q->tokens)
        return REFUSE(KVANT_ERROR_ARGUMENT, "query_position",
                      CALL "sequence %u: position %llu + %u rows overflows", index,
                      (unsigned long long)s->query_position, q->tokens);
    return KVANT_OK;
}

static kvant_status check_references(const kvant_device_layer *layer, const kvant_device_sequence *s,
                                     uint32_t index, kvant_diag *diag) {
    const kvant_attention *a = layer->attention;
    if (s->reference_count > 0 && s->references == NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT, "references", CALL "sequence %u: references are NULL", index);
    for (uint32_t i = 0; i < s->reference_count; i++) {
        const kvant_gpu_reference *r = &s->references[i];
        const kvant_layout *key = &layer->sides[0].entry->layout, *value = &layer->sides[1].entry->layout;
        if (r->live_first > a->block_tokens || r->live_count > a->block_tokens - r->live_first)
            return REFUSE(KVANT_ERROR_ARGUMENT, "references",
                          CALL "sequence %u: reference %u: live tokens %u + %u of a block of %u", index, i,
                          r->live_first, r->live_count, a->block_tokens);
        if (r->key_step > key->size_steps || r->value_step > value->size_steps)
            return REFUSE(KVANT_ERROR_ARGUMENT, "references",
                          CALL
                          "sequence %u: reference %u: sizes of %u and %u steps, and extents have %llu and "
                          "%llu at most",
                          index, i, r->key_step, r->value_step, (unsigned long long)key->size_steps,
                          (unsigned long long)value->size_steps);
        if (r->first_position > UINT64_MAX - a->block_tokens)
            return REFUSE(KVANT_ERROR_ARGUMENT, "references",
                          CALL "sequence %u: reference %u: position %llu + %u tokens overflows", index, i,
                          (unsigned long long)r->first_position, a->block_tokens);
        if (i > 0 && r->first_position < r[-1].first_position)
            return REFUSE(KVANT_ERROR_ARGUMENT, "references",
                          CALL "sequence %u: reference %u: position %llu comes after %llu", index, i,
                          (unsigned long long)r->first_position, (unsigned long long)r[-1].first_position);
    }
    return KVANT_OK;
}

static kvant_status check_runs(const kvant_device_layer *layer, const kvant_device_sequence *s,
                               uint32_t index, kvant_diag *diag) {
    if (s->run_count > 0 && s->runs == NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT, "runs", CALL "sequence %u: runs are NULL", index);
    for (uint32_t i = 0; i < s->run_count; i++) {
        const kvant_raw_run *r = &s->runs[i];
        char at[64];
        (void)snprintf(at, sizeof at, "sequence %u, run %u", index, i);
        if (r->keys == NULL || r->values == NULL)
            return REFUSE(KVANT_ERROR_ARGUMENT, "runs", CALL "%s: keys or values are NULL", at);
        kvant_status status =
            device_check_rows(&layer->sides[KVANT_SIDE_KEY], r->keys, r->keys->tokens, at, diag);
        if (status == KVANT_OK)
            status = device_check_rows(&layer->sides[KVANT_SIDE_VALUE], r->values, r->keys->tokens, at, diag);
        if (status != KVANT_OK) return status;
        if (r->first_position > UINT64_MAX - r->keys->tokens)
            return REFUSE(KVANT_ERROR_ARGUMENT, "runs", CALL "%s: position %llu + %u tokens overflows", at,
                          (unsigned long long)r->first_position, r->keys->tokens);
    }
    return KVANT_OK;
}

/* Sums of a call beside what the work was opened for. */
typedef struct attend_sums {
    uint64_t positions, references, runs;
    uint64_t coded, raw, rows, logits; /* as prepare will count them */
} attend_sums;

static void count_rooms(const kvant_device_work *work, const kvant_device_sequence *s, attend_sums *sums) {
    const kvant_attention *a = work->layer->attention;
    uint64_t positions = s->queries->tokens, step = device_item_positions(work->layer);
    if (positions == 0) return;
    uint64_t span = device_span_references(work, (uint32_t)positions);
    uint64_t spans = (s->reference_count + span - 1) / span, chunks = (positions + step - 1) / step;
    sums->coded += a->kv_heads * spans * chunks;
    if (s->run_count > 0) sums->raw += a->kv_heads * chunks;
    sums->rows += a->q_heads * positions * (spans + (s->run_count > 0));
    sums->logits +=
        a->q_heads * positions * s->reference_count * a->block_tokens + 4 * a->kv_heads * spans * chunks;
}

static kvant_status check_room(const kvant_device_work *work, const attend_sums *sums, kvant_diag *diag) {
    const kvant_device_limits *limits = &work->limits;
    const device_attend_places *at = &work->attend_at;
    const struct {
        const char *what;
        uint64_t count, room;
    } rooms[] = {{"positions", sums->positions, limits->positions},
                 {"references", sums->references, limits->references},
                 {"runs", sums->runs, limits->runs}};
    for (uint32_t i = 0; i < 3; i++)
        if (rooms[i].count > rooms[i].room)
            return REFUSE(
                KVANT_ERROR_CAPACITY, rooms[i].what, CALL "%llu %s, and the work was opened for %llu",
                (unsigned long long)rooms[i].count, rooms[i].what, (unsigned long long)rooms[i].room);
    bool fused = work->layer->attends == KVANT_DEVICE_ATTEND_FUSED;
    if (sums->coded + (fused ? sums->raw : 0) > at->coded_room || (!fused && sums->raw > at->raw_room) ||
        sums->rows > at->partial_rows || (at->logit_room > 0 && sums->logits > at->logit_room))
        return REFUSE(KVANT_ERROR_CAPACITY, "positions_of_one",
                      CALL "a sequence has more positions than the work was opened for");
    return KVANT_OK;
}

kvant_status device_attend_check(const kvant_device_work *work, const kvant_device_sequence *sequences,
                                 uint32_t count, const kvant_device_attend_options *options,
                                 kvant_diag *diag) {
    if (work == NULL || options == NULL || (count > 0 && sequences == NULL))
        return REFUSE(KVANT_ERROR_ARGUMENT, "", CALL "work, sequences or options are NULL");
    if (options->struct_size < sizeof *options)
        return REFUSE(KVANT_ERROR_ARGUMENT, "options", CALL "options.struct_size is %u, not %zu",
                      options->struct_size, sizeof *options);
    if (!(options->scale != 0) || options->scale - options->scale != 0)
        return REFUSE(KVANT_ERROR_ARGUMENT, "scale", CALL "the scale is 0 or not finite");
    if (!(options->soft_cap >= 0) || options->soft_cap - options->soft_cap != 0)
        return REFUSE(KVANT_ERROR_ARGUMENT, "soft_cap", CALL "the soft cap is negative or not finite");
    if (count > 0 && sequences[0].struct_size < sizeof *sequences)
        return REFUSE(KVANT_ERROR_ARGUMENT, "sequences",
                      CALL "struct_size of the first sequence is %u, not %zu", sequences[0].struct_size,
                      sizeof *sequences);
    if (count > work->limits.sequences)
        return REFUSE(KVANT_ERROR_CAPACITY, "sequences", CALL "%u sequences, and the work was opened for %u",
                      count, work->limits.sequences);
    attend_sums sums = {0};
    for (uint32_t i = 0; i < count; i++) {
        const kvant_device_sequence *s = device_sequence_at(sequences, i);
        kvant_status status = check_queries(work->layer->attention, s, i, diag);
        if (status == KVANT_OK) status = check_references(work->layer, s, i, diag);
        if (status == KVANT_OK) status = check_runs(work->layer, s, i, diag);
        if (status != KVANT_OK) return status;
        if (s->queries->tokens > work->limits.positions_of_one)
            return REFUSE(KVANT_ERROR_CAPACITY, "positions_of_one",
                          CALL "sequence %u: %u positions, and the work was opened for %u of one", i,
                          s->queries->tokens, work->limits.positions_of_one);
        sums.positions += s->queries->tokens;
        sums.references += s->reference_count;
        sums.runs += s->run_count;
        count_rooms(work, s, &sums);
    }
    return check_room(work, &sums, diag);
}
