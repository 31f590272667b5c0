/* What `kvant replay` prints. */
#ifndef KVANT_TOOLS_REPLAY_REPORT_H
#define KVANT_TOOLS_REPLAY_REPORT_H

#include "replay/replay.h"

#include <stdbool.h>

typedef struct replay_entry {
    const char *source; /* the argument */
    char *pipeline;     /* its name */
    kvant_replay_result result;
} replay_entry;

typedef struct replay_report {
    const char *trace;
    const char *rows;    /* the dump's file, or NULL = made up */
    const char *rows_by; /* "context" */
    const char *store;   /* NULL = none */
    const char *model;   /* as it enters the fingerprint */
    uint64_t seed;
    uint32_t step;
    const char *check; /* "all" */
    replay_entry *entries;
    uint32_t count;
} replay_report;

void replay_print_table(const replay_report *report);

/* False without memory. */
bool replay_print_json(const replay_report *report);

#endif
