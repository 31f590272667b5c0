/* What the parts of a running replay share. */
#ifndef KVANT_REPLAY_REPLAY_RUN_H
#define KVANT_REPLAY_REPLAY_RUN_H

#include "replay/replay.h"
#include "replay/replay_codes.h"
#include "replay/trace.h"

/* One sequence of the trace. */
typedef struct replay_sequence {
    kvant_sequence
        *sequence; /* NULL = there is none, or it was refused: lines that speak of it are skipped */
    replay_history history;
} replay_sequence;

typedef struct replay_run {
    const kvant_plan *plan;
    kvant_plan_info info;
    const kvant_replay_rows *rows;
    const kvant_replay_options *options;
    kvant_replay_oracle *oracle;
    kvant_store *store;
    kvant_cache *cache;
    size_t read_scratch;
    replay_sequence *sequences; /* by the trace's numbers */
    uint32_t sequence_count;
    kvant_replay_result *result;

    /* Of a step. */
    uint64_t *origins;
    uint32_t step_room; /* tokens */
    replay_room keys, values, queries, outputs, sums, scratch;

    uint64_t *draft_ids; /* [KVANT_TRACE_DRAFT_MAX + 1] */
    uint8_t *draft_tags;
    kvant_diag *diag;
} replay_run;

/* A step of a sequence: what it takes, and how much of it stays. */
typedef struct replay_step {
    const uint64_t *ids;
    const uint8_t *tags;
    uint32_t count, tentative, keep;
} replay_step;

/* Takes one step, and compares what the options ask for. NO_SPACE: the pool had no room, and the sequence
 * is as before. */
kvant_status replay_take_step(replay_run *run, replay_sequence *s, const replay_step *step);

/* The state of the sequence and the rows at [first, end), if rows are to be compared. */
kvant_status replay_check(replay_run *run, const replay_sequence *s, uint64_t first, uint64_t end);

/* Attention of one query at the last token, beside any step. */
kvant_status replay_check_beside(replay_run *run, const replay_sequence *s);

/* One line. */
kvant_status replay_do(replay_run *run, const kvant_trace_event *event);

/* Opens and closes store and cache. closing: counts what the cache's report says. */
kvant_status replay_open_cache(replay_run *run);
void replay_close_cache(replay_run *run);

/* Whether some layer has a window. */
bool replay_has_windows(const replay_run *run);

double replay_now(void);

/* Ends a sequence's life in the cache; the trace's number stays known. */
void replay_end_sequence(replay_run *run, replay_sequence *s);

#endif
