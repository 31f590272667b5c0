/* A trace of requests run against a cache, as an engine would: sequences looked up, prefilled in chunks,
 * generated token by token, forked, rolled back, dropped from, evicted, saved, and loaded after a restart;
 * every answer of the cache compared with an oracle's (replay_oracle.h). Memory: the cache's pool, nine
 * bytes for each token that lives, and what the oracle may keep. */
#ifndef KVANT_REPLAY_REPLAY_H
#define KVANT_REPLAY_REPLAY_H

#include "replay/replay_oracle.h"

#include <kvant/cache.h>

enum {
    KVANT_REPLAY_CHECK_NONE,
    KVANT_REPLAY_CHECK_READS, /* rows and states */
    KVANT_REPLAY_CHECK_ALL    /* and attention outputs, and steps that are aborted */
};
enum { KVANT_REPLAY_STORE_LMDB, KVANT_REPLAY_STORE_DIRECTORY };

typedef struct kvant_replay_options {
    uint64_t bytes;    /* of the cache's pool */
    uint32_t threads;  /* of the cache */
    uint32_t step;     /* tokens of a prefill step at most, > 0; the first one after a hit may have up to
                                    `recent` more */
    uint32_t check;    /* KVANT_REPLAY_CHECK_* */
    uint32_t every;    /* how many steps for one whose attention is compared, > 0 */
    uint32_t put_only; /* 1 = keys and values are put, nothing is attended */
    const char *salt;  /* what sets these rows apart from others of the same ids; before each tenant */
    const char *store_directory; /* NULL = no store */
    uint32_t store_kind;         /* KVANT_REPLAY_STORE_* */
    uint32_t reserved;
    uint64_t store_bytes;                           /* 0 = the store's default */
    uint64_t oracle_bytes;                          /* for encoded blocks that are kept */
    float scale;                                    /* of logits; 0 = 1 / sqrt(key_dim) */
    void (*progress)(void *context, uint32_t line); /* NULL = none; called after each line */
    void *context;
} kvant_replay_options;

/* CPU-independent counts, then times. */
typedef struct kvant_replay_result {
    uint64_t events;
    uint64_t requests; /* of them: request and load */
    uint64_t served;
    uint64_t refused; /* the pool had no room: the sequence ended there */
    uint64_t skipped; /* events that speak of a sequence that ended so, or by a refused rollback */

    uint64_t asked_tokens;     /* texts of new sequences */
    uint64_t found_tokens;     /* of those, found by lookups and loads */
    uint64_t prefilled_tokens; /* computed, of all texts */
    uint64_t generated_tokens;
    uint64_t drafted_tokens; /* proposed */
    uint64_t rejected_tokens;
    uint64_t steps, aborted_steps;
    uint64_t most_sequences; /* that lived at once */
    uint64_t most_tokens;    /* that they had */

    uint64_t forks, reorders, rollbacks, rollback_refusals, drops, evicts, restarts;
    uint64_t saves, saved_tokens, loads, loaded_tokens, store_skipped; /* saves without a store */
    /* As kvant_cache_report, over restarts. */
    uint64_t lookups, stored_hits, evictions, spilled, spill_failures;

    uint64_t capacity, peak, unusable; /* of the pool; peak and unusable at most */
    kvant_bytes bytes;                 /* after the last line */
    kvant_bytes peak_bytes;            /* where their total was largest between lines */
    kvant_store_stats store;           /* at the end; reasons over restarts */

    uint64_t compared_rows, compared_outputs, compared_states;

    double seconds; /* in calls of the cache */
    double begin_seconds, attend_seconds, commit_seconds, lookup_seconds;
    double wall_seconds; /* with rows made and answers compared */

    uint32_t failed_line; /* 0 = nothing was wrong */
    char failed_sequence[132];
    char failure[1024];
} kvant_replay_result;

/* MISMATCH: the cache answered wrong, or failed where it must not; result->failure says what, and
 * everything up to there is counted. Other errors are those of the trace and of opening things. rows: for
 * the plan's geometry. */
kvant_status kvant_replay_run(const char *trace, const kvant_plan *plan, const kvant_replay_rows *rows,
                              const kvant_replay_options *options, kvant_replay_result *result,
                              kvant_diag *diag);

#endif
