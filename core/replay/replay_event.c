/* What each line of a trace makes a replay do. */
#include "replay/replay_run.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>
#include <string.h>

/* ---- Sequences ----------------------------------------------------------------------------------------- */

static kvant_status out_of_memory(const replay_run *run) {
    return kvant_fail(run->diag, KVANT_ERROR_MEMORY, "", "out of memory");
}

/* What the trace says of a number, with room for it. */
static replay_sequence *sequence_at(replay_run *run, uint32_t number) {
    if (number >= run->sequence_count) {
        uint32_t count = number + 16;
        replay_sequence *more = realloc(run->sequences, count * sizeof *more);
        if (more == NULL) return NULL;
        memset(more + run->sequence_count, 0, (count - run->sequence_count) * sizeof *more);
        run->sequences = more;
        run->sequence_count = count;
    }
    return &run->sequences[number];
}

void replay_end_sequence(replay_run *run, replay_sequence *s) {
    double begun = replay_now();
    kvant_sequence_free(s->sequence);
    run->result->seconds += replay_now() - begun;
    s->sequence = NULL;
    replay_history_free(&s->history);
}

static void count_living(replay_run *run) {
    uint64_t sequences = 0, tokens = 0;
    for (uint32_t i = 0; i < run->sequence_count; i++) {
        sequences += run->sequences[i].sequence != NULL;
        tokens += run->sequences[i].history.length;
    }
    if (sequences > run->result->most_sequences) run->result->most_sequences = sequences;
    if (tokens > run->result->most_tokens) run->result->most_tokens = tokens;
}

/* The pool had no room: whoever asked ends here. */
static kvant_status refuse(replay_run *run, replay_sequence *s) {
    run->result->refused++;
    kvant_status status = replay_check(run, s, 0, s->history.length);
    replay_end_sequence(run, s);
    return status;
}

/* ---- Where a sequence begins --------------------------------------------------------------------------- */

static kvant_status look_up(replay_run *run, const kvant_prefix *prefix, replay_sequence *s) {
    kvant_match *match = NULL;
    kvant_status status = kvant_cache_lookup(run->cache, prefix, &match, run->diag);
    if (status == KVANT_ERROR_MISSING) /* no fingerprint: nothing is ever found */
        return kvant_sequence_create(run->cache, prefix->salt, prefix->salt_bytes, &s->sequence, run->diag);
    if (status == KVANT_OK) status = kvant_sequence_create_from(match, &s->sequence, run->diag);
    kvant_match_release(match);
    return status;
}

static kvant_status load(replay_run *run, const kvant_prefix *prefix, replay_sequence *s) {
    uint32_t reason = 0;
    if (run->store == NULL) return look_up(run, prefix, s);
    kvant_status status =
        kvant_sequence_load(run->cache, run->store, prefix, &s->sequence, &reason, run->diag);
    run->result->loads++;
    if (status != KVANT_OK || reason != KVANT_STORE_FOUND) return status;
    kvant_sequence_info info = {.struct_size = sizeof info};
    status = kvant_sequence_describe(s->sequence, &info);
    if (status == KVANT_OK && info.length != prefix->count)
        return kvant_fail(run->diag, KVANT_ERROR_MISMATCH, "",
                          "kvant_sequence_load says that all was found, and has %llu tokens of %llu",
                          (unsigned long long)info.length, (unsigned long long)prefix->count);
    return status;
}

/* What was found becomes the history: blocks before the tail, as the cache says, and the rest raw. */
static kvant_status adopt(replay_run *run, const kvant_trace_event *e, replay_sequence *s) {
    kvant_sequence_info info = {.struct_size = sizeof info};
    uint32_t block_tokens = run->info.block_tokens, recent = run->info.recent > 0 ? run->info.recent : 1;
    bool loaded = e->op == KVANT_TRACE_LOAD && run->store != NULL;
    kvant_status status = kvant_sequence_describe(s->sequence, &info);
    if (status != KVANT_OK) return kvant_fail(run->diag, status, "", "the sequence cannot be described");
    uint64_t tail = info.length - info.tail_first;
    if (info.length > e->text.count || info.tail_first > info.length || info.tail_first % block_tokens != 0 ||
        (!loaded && (tail != 0 || (info.length > 0 && info.length + recent > e->text.count))))
        return kvant_fail(
            run->diag, KVANT_ERROR_MISMATCH, "",
            "of %u tokens %llu are found, of which %llu are raw: blocks have %u, and a match ends %u "
            "before the end",
            e->text.count, (unsigned long long)info.length, (unsigned long long)tail, block_tokens, recent);
    uint64_t before = s->history.begin;
    for (uint64_t t = 0; t < info.length; t++) {
        before = kvant_replay_origin(run->rows, before, e->text.ids[t], 0);
        if (!replay_history_append(&s->history, &before, &e->text.tags[t], 1)) return out_of_memory(run);
    }
    if (!replay_history_seal(&s->history, info.tail_first)) return out_of_memory(run);
    run->result->found_tokens += info.length;
    if (loaded) run->result->loaded_tokens += info.length;
    return replay_check(run, s, 0, info.length);
}

static kvant_status start(replay_run *run, const kvant_trace_event *e, replay_sequence *s) {
    replay_history_init(&s->history, run->info.block_tokens, run->info.sinks, run->info.recent,
                        kvant_replay_origin_begin(run->rows, e->tenant));
    char salt[512];
    (void)snprintf(salt, sizeof salt, "%.300s/%s", run->options->salt, e->tenant);
    kvant_prefix prefix = {.struct_size = sizeof prefix,
                           .ids = e->text.ids,
                           .tags = e->text.tags,
                           .count = e->text.count,
                           .salt = salt,
                           .salt_bytes = strlen(salt),
                           .first_step_end = e->text.count};
    double begun = replay_now();
    kvant_status status = e->op == KVANT_TRACE_LOAD ? load(run, &prefix, s) : look_up(run, &prefix, s);
    double took = replay_now() - begun;
    run->result->lookup_seconds += took;
    run->result->seconds += took;
    run->result->asked_tokens += e->text.count;
    return status == KVANT_OK ? adopt(run, e, s) : status;
}

/* ---- Requests ------------------------------------------------------------------------------------------ */

/* Puts the text in from position `at` of it on. Steps end at multiples of the step, whatever was found; the
 * first one ends as far behind what was found as kvant_prefix asks for. */
static kvant_status prefill(replay_run *run, const kvant_trace_event *e, uint32_t at, replay_sequence *s) {
    uint32_t chunk = run->options->step, recent = run->info.recent > 0 ? run->info.recent : 1;
    uint64_t first = s->history.length - at; /* position of the text's first token */
    uint64_t end = first + e->text.count, least = 0;
    if (e->starts && at > 0 && s->history.tail_first == s->history.length) least = s->history.length + recent;
    kvant_status status = KVANT_OK;
    while (status == KVANT_OK && s->history.length < end) {
        uint64_t length = s->history.length, to = (length / chunk + 1) * chunk;
        if (to < least) to = (least + chunk - 1) / chunk * chunk;
        if (to > end) to = end;
        uint32_t from = (uint32_t)(length - first), count = (uint32_t)(to - length);
        replay_step step = {e->text.ids + from, e->text.tags + from, count, 0, count};
        status = replay_take_step(run, s, &step);
        if (status == KVANT_OK) run->result->prefilled_tokens += count;
    }
    return status;
}

/* A step of one sure token and a draft, of which `right` tokens are what comes next, and the others are
 * not. */
static kvant_status take_draft(replay_run *run, const kvant_trace_event *e, uint32_t at, uint32_t right,
                               replay_sequence *s) {
    uint32_t count = 1 + e->draft;
    for (uint32_t i = 0; i < count; i++) {
        bool wrong = i > right;
        uint32_t from = wrong ? at + right : at + i;
        run->draft_ids[i] =
            wrong ? kvant_replay_mix(e->generated.ids[at], i) | UINT64_C(1) << 63 : e->generated.ids[from];
        run->draft_tags[i] = e->generated.tags[from];
    }
    replay_step step = {run->draft_ids, run->draft_tags, count, e->draft, 1 + right};
    kvant_status status = replay_take_step(run, s, &step);
    if (status != KVANT_OK) return status;
    run->result->drafted_tokens += e->draft;
    run->result->rejected_tokens += e->draft - right;
    return status;
}

static kvant_status generate(replay_run *run, const kvant_trace_event *e, replay_sequence *s) {
    kvant_status status = KVANT_OK;
    for (uint32_t at = 0, turn = 0; status == KVANT_OK && at < e->generated.count; turn++) {
        uint32_t right = 0, left = e->generated.count - at - 1;
        if (e->draft > 0) {
            right = e->accepted_count > 0 ? e->accepted[turn % e->accepted_count] : e->draft;
            if (right > left) right = left;
            status = take_draft(run, e, at, right, s);
        } else {
            replay_step step = {e->generated.ids + at, e->generated.tags + at, 1, 0, 1};
            status = replay_take_step(run, s, &step);
        }
        if (status == KVANT_OK) run->result->generated_tokens += 1 + right;
        at += 1 + right;
    }
    return status;
}

static kvant_status do_request(replay_run *run, const kvant_trace_event *e, replay_sequence *s) {
    kvant_status status = KVANT_OK;
    uint32_t found = 0;
    run->result->requests++;
    if (e->starts) {
        status = start(run, e, s);
        found = (uint32_t)s->history.length;
    } else if (s->sequence == NULL) {
        run->result->skipped++;
        return KVANT_OK;
    }
    if (status == KVANT_OK) status = prefill(run, e, found, s);
    count_living(run);
    if (status == KVANT_OK) status = generate(run, e, s);
    count_living(run);
    if (status == KVANT_ERROR_NO_SPACE && s->sequence == NULL) { /* of a load */
        run->result->refused++;
        replay_end_sequence(run, s);
        return KVANT_OK;
    }
    if (status == KVANT_ERROR_NO_SPACE) return refuse(run, s);
    if (status == KVANT_OK) status = replay_check(run, s, 0, s->history.length);
    if (status == KVANT_OK) status = replay_check_beside(run, s);
    if (status == KVANT_OK) run->result->served++;
    return status;
}

/* ---- Changes ------------------------------------------------------------------------------------------- */

static kvant_status do_fork(replay_run *run, const kvant_trace_event *e) {
    replay_sequence *s = sequence_at(run, e->sequence);
    const replay_sequence *source = &run->sequences[e->source];
    if (source->sequence == NULL) {
        run->result->skipped++;
        return KVANT_OK;
    }
    double begun = replay_now();
    kvant_status status = kvant_sequence_fork(source->sequence, &s->sequence, run->diag);
    run->result->seconds += replay_now() - begun;
    if (status != KVANT_OK) return status;
    run->result->forks++;
    if (!replay_history_copy(&s->history, &source->history)) return out_of_memory(run);
    count_living(run);
    return replay_check(run, s, s->history.tail_first, s->history.length);
}

static kvant_status reorder_histories(replay_run *run, const kvant_trace_event *e) {
    replay_history *copies = calloc(e->count, sizeof *copies);
    bool fits = copies != NULL;
    for (uint32_t i = 0; fits && i < e->count; i++)
        fits = replay_history_copy(&copies[i], &run->sequences[e->sequences[e->sources[i]]].history);
    for (uint32_t i = 0; copies != NULL && i < e->count; i++) {
        replay_history *h = fits ? &run->sequences[e->sequences[i]].history : &copies[i];
        replay_history_free(h);
        if (fits) *h = copies[i];
    }
    free(copies);
    return fits ? KVANT_OK : out_of_memory(run);
}

static kvant_status do_reorder(replay_run *run, const kvant_trace_event *e) {
    kvant_sequence **sequences = calloc(e->count, sizeof *sequences);
    if (sequences == NULL) return out_of_memory(run);
    bool all = true;
    for (uint32_t i = 0; i < e->count; i++) {
        sequences[i] = run->sequences[e->sequences[i]].sequence;
        all = all && sequences[i] != NULL;
    }
    kvant_status status = KVANT_OK;
    if (all) {
        double begun = replay_now();
        status = kvant_sequence_reorder(sequences, e->sources, e->count, run->diag);
        run->result->seconds += replay_now() - begun;
        run->result->reorders++;
        if (status == KVANT_OK) status = reorder_histories(run, e);
    } else {
        run->result->skipped++;
    }
    free(sequences);
    for (uint32_t i = 0; all && status == KVANT_OK && i < e->count; i++) {
        const replay_sequence *s = &run->sequences[e->sequences[i]];
        status = replay_check(run, s, s->history.tail_first, s->history.length);
    }
    return status;
}

bool replay_has_windows(const replay_run *run) {
    for (uint32_t l = 0; l < run->info.geometry->layer_count; l++)
        if (replay_layer(run->oracle, l)->window != 0) return true;
    return false;
}

static kvant_status do_rollback(replay_run *run, const kvant_trace_event *e, replay_sequence *s) {
    uint64_t length = s->history.length - e->count;
    double begun = replay_now();
    kvant_status status = kvant_sequence_truncate(s->sequence, length, run->diag);
    run->result->seconds += replay_now() - begun;
    run->result->rollbacks++;
    if (status == KVANT_ERROR_NO_SPACE) return refuse(run, s); /* a page for the sinks */
    if (status == KVANT_ERROR_UNSUPPORTED && replay_has_windows(run)) {
        run->result->rollback_refusals++;
        status = replay_check(run, s, 0, s->history.length);
        replay_end_sequence(run, s); /* it would not be where the trace thinks it is */
        return status;
    }
    if (status != KVANT_OK) return status;
    if (!replay_history_truncate(&s->history, length)) return out_of_memory(run);
    return replay_check(run, s, 0, length);
}

static kvant_status do_drop(replay_run *run, const kvant_trace_event *e, replay_sequence *s) {
    double begun = replay_now();
    kvant_status status = kvant_sequence_drop(s->sequence, e->first, e->count, run->diag);
    run->result->seconds += replay_now() - begun;
    if (status != KVANT_OK) return status;
    run->result->drops++;
    if (!replay_history_drop(&s->history, e->first, e->count)) return out_of_memory(run);
    status = replay_check(run, s, 0, s->history.length);
    return status == KVANT_OK ? replay_check_beside(run, s) : status;
}

static kvant_status do_evict(replay_run *run, const kvant_trace_event *e) {
    kvant_cache_report report = {.struct_size = sizeof report};
    kvant_status status = kvant_cache_describe(run->cache, &report);
    if (status != KVANT_OK) return status;
    uint64_t bytes = e->fraction > 0 ? (uint64_t)(e->fraction * (double)report.capacity) : e->bytes;
    double begun = replay_now();
    status = kvant_cache_evict(run->cache, bytes, NULL, run->diag);
    run->result->seconds += replay_now() - begun;
    run->result->evicts++;
    return status == KVANT_ERROR_NO_SPACE ? KVANT_OK : status; /* what is left is held */
}

static kvant_status do_save(replay_run *run, replay_sequence *s) {
    kvant_saved saved = {.struct_size = sizeof saved};
    if (run->store == NULL) {
        run->result->store_skipped++;
        return KVANT_OK;
    }
    double begun = replay_now();
    kvant_status status = kvant_sequence_save(s->sequence, run->store, &saved, run->diag);
    run->result->seconds += replay_now() - begun;
    run->result->saves++;
    if (status == KVANT_ERROR_NO_SPACE || status == KVANT_ERROR_CAPACITY)
        return KVANT_OK; /* the store is full */
    if (status != KVANT_OK) return status;
    run->result->saved_tokens += saved.tokens;
    bool whole = s->history.private_first == UINT64_MAX;
    if (saved.tokens > s->history.length || (whole && saved.tokens != s->history.length))
        return kvant_fail(run->diag, KVANT_ERROR_MISMATCH, "",
                          "kvant_sequence_save: %llu tokens saved, of %llu", (unsigned long long)saved.tokens,
                          (unsigned long long)s->history.length);
    return KVANT_OK;
}

static kvant_status do_restart(replay_run *run) {
    for (uint32_t i = 0; i < run->sequence_count; i++) replay_end_sequence(run, &run->sequences[i]);
    replay_close_cache(run);
    run->result->restarts++;
    return replay_open_cache(run);
}

kvant_status replay_do(replay_run *run, const kvant_trace_event *e) {
    run->result->events++;
    replay_sequence *s = sequence_at(run, e->sequence);
    if (s == NULL) return out_of_memory(run);
    switch (e->op) {
    case KVANT_TRACE_REQUEST:
    case KVANT_TRACE_LOAD:
        return do_request(run, e, s);
    case KVANT_TRACE_FORK:
        return do_fork(run, e);
    case KVANT_TRACE_REORDER:
        return do_reorder(run, e);
    case KVANT_TRACE_EVICT:
        return do_evict(run, e);
    case KVANT_TRACE_RESTART:
        return do_restart(run);
    default:
        break;
    }
    kvant_status status = KVANT_OK;
    if (s->sequence == NULL)
        run->result->skipped += e->op != KVANT_TRACE_END;
    else if (e->op == KVANT_TRACE_ROLLBACK)
        status = do_rollback(run, e, s);
    else if (e->op == KVANT_TRACE_DROP)
        status = do_drop(run, e, s);
    else if (e->op == KVANT_TRACE_SAVE)
        status = do_save(run, s);
    else
        replay_end_sequence(run, s);
    return status;
}
