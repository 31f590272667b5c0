/* `kvant replay` as a table and as JSON (docs/json.md). */
#include "replay_report.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Table --------------------------------------------------------------------------------------------- */

static double per_cent(uint64_t part, uint64_t all) {
    return all > 0 ? 100.0 * (double)part / (double)all : 0;
}

static double megabytes(uint64_t bytes) {
    return (double)bytes / 1e6;
}

static unsigned long long wide(uint64_t n) {
    return (unsigned long long)n;
}

static void print_entry(const replay_entry *e, int width) {
    const kvant_replay_result *r = &e->result;
    printf("%-*s %7llu %7llu %7llu %9llu %9llu %5.1f %9llu %7.2f %5.1f %5llu %8llu %8llu %7llu %7llu %8.3f "
           "%7.3f %7.3f "
           "%7.3f %7.3f  %s\n",
           width, e->pipeline, wide(r->served), wide(r->refused), wide(r->skipped), wide(r->asked_tokens),
           wide(r->found_tokens), per_cent(r->found_tokens, r->asked_tokens), wide(r->generated_tokens),
           megabytes(r->peak), per_cent(r->peak, r->capacity), wide(r->most_sequences), wide(r->most_tokens),
           wide(r->evictions), wide(r->spilled), wide(r->stored_hits), r->seconds, r->begin_seconds,
           r->attend_seconds, r->commit_seconds, r->lookup_seconds, r->failed_line == 0 ? "ok" : "WRONG");
}

static void print_bytes(const char *name, const char *when, const kvant_bytes *b, int width) {
    printf("%-*s %-5s %11.3f %11.3f %11.3f %11.3f %11.3f %11.3f\n", width, name, when, megabytes(b->payload),
           megabytes(b->metadata), megabytes(b->padding), megabytes(b->raw), megabytes(b->tables),
           megabytes(b->total));
}

static void print_compared(const replay_report *report) {
    uint64_t rows = 0, outputs = 0, states = 0;
    for (uint32_t i = 0; i < report->count; i++) {
        rows += report->entries[i].result.compared_rows;
        outputs += report->entries[i].result.compared_outputs;
        states += report->entries[i].result.compared_states;
    }
    printf("\ncompared with the oracle (%s): %llu rows, %llu attention outputs, %llu states\n", report->check,
           wide(rows), wide(outputs), wide(states));
}

void replay_print_table(const replay_report *report) {
    int width = 8;
    for (uint32_t i = 0; i < report->count; i++) {
        int length = (int)strlen(report->entries[i].pipeline);
        if (length > width) width = length;
    }
    if (report->count == 0) return;
    const kvant_replay_result *first = &report->entries[0].result;
    printf("%s: %llu lines, a pool of %.2f MB, %s%s, rows %s%s by %s\n\n", report->trace, wide(first->events),
           megabytes(first->capacity), report->store != NULL ? "store " : "no store",
           report->store != NULL ? report->store : "", report->rows != NULL ? "of " : "made up",
           report->rows != NULL ? report->rows : "", report->rows_by);
    printf("%*s %23s %35s %13s %14s %24s %s\n", width, "", "requests", "tokens", "pool", "most at once",
           "blocks", "                                  seconds");
    printf("%-*s %7s %7s %7s %9s %9s %5s %9s %7s %5s %5s %8s %8s %7s %7s %8s %7s %7s %7s %7s\n", width,
           "pipeline", "served", "refused", "skipped", "asked", "found", "%", "generated", "peak MB", "%",
           "seqs", "tokens", "evicted", "spilled", "loaded", "total", "begin", "attend", "commit", "lookup");
    for (uint32_t i = 0; i < report->count; i++) print_entry(&report->entries[i], width);
    printf("\n%-*s %-5s %11s %11s %11s %11s %11s %11s\n", width, "MB", "", "payload", "metadata", "padding",
           "raw", "tables", "total");
    for (uint32_t i = 0; i < report->count; i++) {
        print_bytes(report->entries[i].pipeline, "peak", &report->entries[i].result.peak_bytes, width);
        print_bytes("", "end", &report->entries[i].result.bytes, width);
    }
    print_compared(report);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

/* Text that is no UTF-8 keeps its ASCII. */
static json_t *text(const char *string) {
    if (string == NULL) return json_null();
    json_t *json = json_string(string);
    char *ascii = json == NULL ? strdup(string) : NULL;
    if (ascii == NULL) return json;
    for (char *c = ascii; *c != '\0'; c++)
        if ((unsigned char)*c >= 0x80) *c = '?';
    json = json_string(ascii);
    free(ascii);
    return json;
}

static void put(json_t *object, const char *name, uint64_t number) {
    json_object_set_new(object, name, json_integer((json_int_t)number));
}

static json_t *bytes_json(const kvant_bytes *b) {
    json_t *object = json_object();
    put(object, "payload", b->payload);
    put(object, "metadata", b->metadata);
    put(object, "padding", b->padding);
    put(object, "raw", b->raw);
    put(object, "tables", b->tables);
    put(object, "total", b->total);
    return object;
}

static void put_counts(json_t *object, const kvant_replay_result *r) {
    const struct {
        const char *name;
        uint64_t number;
    } all[] = {{"lines", r->events},
               {"requests", r->requests},
               {"served", r->served},
               {"refused", r->refused},
               {"skipped", r->skipped},
               {"asked_tokens", r->asked_tokens},
               {"found_tokens", r->found_tokens},
               {"prefilled_tokens", r->prefilled_tokens},
               {"generated_tokens", r->generated_tokens},
               {"drafted_tokens", r->drafted_tokens},
               {"rejected_tokens", r->rejected_tokens},
               {"steps", r->steps},
               {"aborted_steps", r->aborted_steps},
               {"most_sequences", r->most_sequences},
               {"most_tokens", r->most_tokens},
               {"forks", r->forks},
               {"reorders", r->reorders},
               {"rollbacks", r->rollbacks},
               {"rollback_refusals", r->rollback_refusals},
               {"drops", r->drops},
               {"evicts", r->evicts},
               {"restarts", r->restarts},
               {"saves", r->saves},
               {"saved_tokens", r->saved_tokens},
               {"loads", r->loads},
               {"loaded_tokens", r->loaded_tokens},
               {"saves_without_store", r->store_skipped},
               {"lookups", r->lookups},
               {"stored_hits", r->stored_hits},
               {"evictions", r->evictions},
               {"spilled", r->spilled},
               {"spill_failures", r->spill_failures},
               {"capacity", r->capacity},
               {"peak", r->peak},
               {"unusable", r->unusable}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) put(object, all[i].name, all[i].number);
}

static json_t *store_json(const replay_report *report, const kvant_replay_result *r) {
    if (report->store == NULL) return json_null();
    json_t *object = json_object(), *misses = json_object();
    put(object, "records", r->store.records);
    put(object, "bytes", r->store.bytes);
    put(object, "hits", r->store.hits);
    put(object, "puts", r->store.puts);
    put(object, "evictions", r->store.evictions);
    for (uint32_t i = 1; i < KVANT_STORE_REASONS; i++)
        put(misses, kvant_store_reason_text(i), r->store.reasons[i]);
    json_object_set_new(object, "misses", misses);
    return object;
}

static json_t *entry_json(const replay_report *report, const replay_entry *e) {
    const kvant_replay_result *r = &e->result;
    json_t *object = json_object();
    json_object_set_new(object, "pipeline", text(e->pipeline));
    json_object_set_new(object, "source", text(e->source));
    put_counts(object, r);
    json_object_set_new(object, "hit_rate",
                        r->asked_tokens > 0 ? json_real((double)r->found_tokens / (double)r->asked_tokens)
                                            : json_null());
    json_object_set_new(object, "bytes", bytes_json(&r->bytes));
    json_object_set_new(object, "peak_bytes", bytes_json(&r->peak_bytes));
    json_object_set_new(object, "store", store_json(report, r));
    json_object_set_new(object, "seconds",
                        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "total", r->seconds, "begin",
                                  r->begin_seconds, "attend", r->attend_seconds, "commit", r->commit_seconds,
                                  "lookup", r->lookup_seconds, "wall", r->wall_seconds));
    json_object_set_new(object, "compared",
                        json_pack("{s:I, s:I, s:I}", "rows", (json_int_t)r->compared_rows, "outputs",
                                  (json_int_t)r->compared_outputs, "states", (json_int_t)r->compared_states));
    json_object_set_new(object, "failure",
                        r->failed_line == 0
                            ? json_null()
                            : json_pack("{s:I, s:o, s:o}", "line", (json_int_t)r->failed_line, "sequence",
                                        text(r->failed_sequence), "message", text(r->failure)));
    return object;
}

bool replay_print_json(const replay_report *report) {
    json_t *results = json_array();
    for (uint32_t i = 0; i < report->count; i++)
        json_array_append_new(results, entry_json(report, &report->entries[i]));
    json_t *root = json_pack("{s:s, s:s, s:o, s:o, s:s, s:o, s:I, s:I, s:s, s:o, s:o}", "kvant",
                             kvant_version(), "command", "replay", "trace", text(report->trace), "rows",
                             text(report->rows), "rows_by", report->rows_by, "model", text(report->model),
                             "seed", (json_int_t)report->seed, "step", (json_int_t)report->step, "check",
                             report->check, "store", text(report->store), "results", results);
    if (root == NULL) return false;
    bool fine = json_dumpf(root, stdout, JSON_INDENT(2)) == 0;
    putchar('\n');
    json_decref(root);
    return fine;
}
