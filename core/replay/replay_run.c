/* A replay from the first line of a trace to the last. See replay.h. */
#include "replay/replay.h"

#include "replay/replay_run.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

double replay_now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- Cache and store ----------------------------------------------------------------------------------- */

kvant_status replay_open_cache(replay_run *run) {
    const kvant_replay_options *o = run->options;
    kvant_status status = KVANT_OK;
    if (o->store_directory != NULL) {
        kvant_store_options store = {.struct_size = sizeof store, .capacity = o->store_bytes};
        status = (o->store_kind == KVANT_REPLAY_STORE_LMDB
                      ? kvant_store_open_lmdb
                      : kvant_store_open_directory)(o->store_directory, &store, &run->store, run->diag);
    }
    kvant_cache_options cache = {
        .struct_size = sizeof cache, .threads = o->threads, .bytes = o->bytes, .store = run->store};
    if (status == KVANT_OK) status = kvant_cache_open(run->plan, &cache, &run->cache, run->diag);
    if (status == KVANT_OK) run->read_scratch = kvant_cache_read_scratch(run->cache);
    return status;
}

static void count_store(replay_run *run) {
    kvant_store_stats stats = {.struct_size = sizeof stats}, *sum = &run->result->store;
    if (run->store == NULL || kvant_store_describe(run->store, &stats, NULL) != KVANT_OK) return;
    sum->records = stats.records;
    sum->bytes = stats.bytes;
    sum->capacity = stats.capacity;
    sum->hits += stats.hits;
    sum->puts += stats.puts;
    sum->evictions += stats.evictions;
    for (uint32_t i = 0; i < KVANT_STORE_REASONS; i++) sum->reasons[i] += stats.reasons[i];
}

void replay_close_cache(replay_run *run) {
    kvant_cache_report report = {.struct_size = sizeof report};
    kvant_replay_result *r = run->result;
    if (run->cache != NULL && kvant_cache_describe(run->cache, &report) == KVANT_OK) {
        r->lookups += report.lookups;
        r->stored_hits += report.stored_hits;
        r->evictions += report.evictions;
        r->spilled += report.spilled;
        r->spill_failures += report.spill_failures;
        r->capacity = report.capacity;
        if (report.peak > r->peak) r->peak = report.peak;
    }
    count_store(run);
    double begun = replay_now();
    kvant_cache_close(run->cache);
    kvant_store_close(run->store);
    r->seconds += replay_now() - begun;
    run->cache = NULL;
    run->store = NULL;
}

/* ---- Between lines ------------------------------------------------------------------------------------- */

static kvant_status count_bytes(replay_run *run) {
    kvant_cache_report report = {.struct_size = sizeof report};
    kvant_replay_result *r = run->result;
    kvant_status status = kvant_cache_describe(run->cache, &report);
    if (status != KVANT_OK) return kvant_fail(run->diag, status, "", "the cache cannot be described");
    r->bytes = report.bytes;
    if (report.bytes.total > r->peak_bytes.total) r->peak_bytes = report.bytes;
    if (report.unusable > r->unusable) r->unusable = report.unusable;
    uint64_t pool = report.bytes.payload + report.bytes.metadata + report.bytes.padding + report.bytes.raw;
    if (pool + report.free != report.capacity)
        return kvant_fail(
            run->diag, KVANT_ERROR_MISMATCH, "",
            "the report's %llu bytes in the pool and %llu free ones are not its capacity of %llu",
            (unsigned long long)pool, (unsigned long long)report.free, (unsigned long long)report.capacity);
    if (report.peak > report.capacity || report.pinned > report.indexed || report.indexed > report.blocks)
        return kvant_fail(run->diag, KVANT_ERROR_MISMATCH, "", "the report contradicts itself");
    return status;
}

/* Every sequence ends and everything is evicted: then nothing may be left, but blocks of which all layers'
 * windows released everything: they hold no byte that eviction could look for. */
static kvant_status check_empty(replay_run *run) {
    kvant_cache_report report = {.struct_size = sizeof report};
    for (uint32_t i = 0; i < run->sequence_count; i++) replay_end_sequence(run, &run->sequences[i]);
    kvant_status status = kvant_cache_describe(run->cache, &report);
    uint64_t evictions = report.evictions, spilled = report.spilled, failures = report.spill_failures;
    if (status == KVANT_OK) status = kvant_cache_evict(run->cache, report.capacity, NULL, run->diag);
    if (status == KVANT_OK) status = kvant_cache_describe(run->cache, &report);
    if (status != KVANT_OK) return status;
    /* These were not the trace's. */
    run->result->evictions -= report.evictions - evictions;
    run->result->spilled -= report.spilled - spilled;
    run->result->spill_failures -= report.spill_failures - failures;
    if (report.free == report.capacity && report.sequences == 0 && report.blocks == report.indexed &&
        (report.blocks == 0 || replay_has_windows(run)))
        return KVANT_OK;
    return kvant_fail(
        run->diag, KVANT_ERROR_MISMATCH, "",
        "after all sequences ended and everything was evicted, %llu bytes, %llu blocks (%llu indexed) "
        "and %u sequences are left",
        (unsigned long long)(report.capacity - report.free), (unsigned long long)report.blocks,
        (unsigned long long)report.indexed, report.sequences);
}

/* ---- The run ------------------------------------------------------------------------------------------- */

/* What a cache may not answer is what was looked for. */
static kvant_status found(replay_run *run, uint32_t line, const char *sequence, kvant_status status) {
    kvant_replay_result *r = run->result;
    if (status == KVANT_OK || status == KVANT_ERROR_MEMORY) return status;
    r->failed_line = line;
    (void)snprintf(r->failed_sequence, sizeof r->failed_sequence, "%s", sequence);
    (void)snprintf(r->failure, sizeof r->failure, "%s%s%.960s",
                   status == KVANT_ERROR_MISMATCH ? "" : kvant_status_text(status),
                   status == KVANT_ERROR_MISMATCH ? "" : ": ", run->diag->message);
    return KVANT_ERROR_MISMATCH;
}

static kvant_status play(replay_run *run, kvant_trace *trace) {
    uint32_t line = 0;
    for (;;) {
        const kvant_trace_event *event = NULL;
        kvant_status status = kvant_trace_next(trace, &event, run->diag);
        if (status != KVANT_OK) return status;
        if (event == NULL) break;
        line = event->line;
        run->diag->message[0] = '\0';
        status = replay_do(run, event);
        if (status == KVANT_OK) status = count_bytes(run);
        status = found(run, line, event->name, status);
        if (status != KVANT_OK) return status;
        if (run->options->progress != NULL) run->options->progress(run->options->context, line);
    }
    return found(run, line, "", check_empty(run));
}

static void close_run(replay_run *run) {
    for (uint32_t i = 0; i < run->sequence_count; i++) replay_end_sequence(run, &run->sequences[i]);
    replay_close_cache(run);
    if (run->oracle != NULL) {
        replay_compared compared = kvant_replay_oracle_compared(run->oracle);
        run->result->compared_rows = compared.rows;
        run->result->compared_outputs = compared.outputs;
    }
    kvant_replay_oracle_close(run->oracle);
    replay_room *rooms[] = {&run->keys,    &run->values, &run->queries,
                            &run->outputs, &run->sums,   &run->scratch};
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++) free(rooms[i]->bytes);
    free(run->sequences);
    free(run->origins);
    free(run->draft_ids);
    free(run->draft_tags);
}

kvant_status kvant_replay_run(const char *file, const kvant_plan *plan, const kvant_replay_rows *rows,
                              const kvant_replay_options *options, kvant_replay_result *result,
                              kvant_diag *diag) {
    kvant_diag own = {.struct_size = sizeof own};
    replay_run run = {.plan = plan,
                      .rows = rows,
                      .options = options,
                      .result = result,
                      .info = {.struct_size = sizeof run.info},
                      .diag = diag != NULL ? diag : &own};
    kvant_trace *trace = NULL;
    double begun = replay_now();
    *result = (kvant_replay_result){0};
    run.draft_ids = malloc((KVANT_TRACE_DRAFT_MAX + 1) * sizeof *run.draft_ids);
    run.draft_tags = malloc(KVANT_TRACE_DRAFT_MAX + 1);
    kvant_status status = kvant_plan_describe(plan, &run.info);
    if (run.draft_ids == NULL || run.draft_tags == NULL)
        status = kvant_fail(run.diag, KVANT_ERROR_MEMORY, "", "out of memory");
    if (status == KVANT_OK)
        status = kvant_replay_oracle_open(plan, rows, options->oracle_bytes, options->scale, &run.oracle,
                                          run.diag);
    if (status == KVANT_OK) status = replay_open_cache(&run);
    if (status == KVANT_OK) status = kvant_trace_open(file, &trace, run.diag);
    if (status == KVANT_OK) status = play(&run, trace);
    kvant_trace_close(trace);
    close_run(&run);
    result->wall_seconds = replay_now() - begun;
    return status;
}
