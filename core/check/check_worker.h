/* A child of the check: it loads the plugin, takes items from the board and runs the checks on them. */
#ifndef KVANT_CHECK_WORKER_H
#define KVANT_CHECK_WORKER_H

#include "check_board.h"
#include "check_buffer.h"
#include "check_case.h"

typedef struct check_worker {
    const check_options *options;
    check_board *board;
    check_slot *slot;
    void (*emit)(void *context, const check_record *record);
    void *context; /* of emit */
    const kvant_plugin *plugin;
    const char *file; /* of the plugin */
    struct check_gpu *gpu; /* kernels: check_gpu.h; NULL until somebody asks */
    check_axes axes;
    check_buffers buffers;
    int64_t number;      /* of the configuration; -1 = the plugin as such */
    check_id running;    /* the check */
    uint64_t failed;     /* bit per check that failed on this item */
    uint64_t ran;        /* bit per check that ran on this item */
    uint64_t globals;    /* digest of the plugin's writable data after loading */
    uint64_t threads;    /* of the process, after loading */
    volatile int inside; /* a call of the plugin is running in the worker's thread */
    volatile uint32_t
        disturbed; /* a floating-point control word that a timer found inside a call; 0 = none */
} check_worker;

/* What to do: choose the configurations, or work through items, the first of them from a certain check on
 * (after another child died there). */
typedef struct check_job {
    bool plan;
    bool blind; /* plan() kills: choose configurations without asking it */
    bool resume;
    uint64_t item;
    uint32_t from;
} check_job;

/* Everything a child does. The caller fills options, board, slot, emit and context; the rest is zero.
 * Returns when no item is left. */
void check_worker_run(check_worker *worker, const check_job *job);

/* Signals that kill leave their place in the slot first. */
void check_worker_watch_signals(check_worker *worker);

/* Notes that a promise is broken, on this configuration: one line. */
__attribute__((format(printf, 3, 4))) void check_fail(check_worker *worker, check_id id, const char *format,
                                                      ...);

/* Notes what is worth knowing and breaks nothing. */
__attribute__((format(printf, 2, 3))) void check_note(check_worker *worker, const char *format, ...);

/* True if this check failed on this item. */
bool check_has_failed(const check_worker *worker, check_id id);

/* True where this check is wanted at all (--only). */
bool check_is_wanted(const check_worker *worker, check_id id);

/* ---- Calls of the plugin: the floating-point environment is set around them and looked at behind them  */

kvant_status check_call_plan(check_worker *worker, const kvant_setup *setup, kvant_layout *layout,
                             kvant_diag *diag);
kvant_status check_call_open(check_worker *worker, const kvant_setup *setup, const kvant_layout *layout,
                             void *state, kvant_diag *diag);
void check_call_close(check_worker *worker, void *state);
kvant_status check_call_encode(check_worker *worker, const void *state, kvant_encode_args *args);
kvant_status check_call_decode(check_worker *worker, const void *state, const kvant_decode_args *args);
const void *check_call_extension(check_worker *worker, const char *id);
kvant_status check_call_describe(check_worker *worker, const kvant_inspect *inspect, const void *state,
                                 const kvant_extent *extent, uint32_t index, kvant_array *array);
kvant_status check_call_read(check_worker *worker, const kvant_inspect *inspect, const void *state,
                             const kvant_extent *extent, uint32_t index, void *data, void *scratch);

kvant_status check_call_gpu_plan(check_worker *worker, const kvant_gpu *gpu, const kvant_setup *setup,
                                 const kvant_layout *layout, kvant_gpu_plan *plan, kvant_diag *diag);
kvant_status check_call_gpu_upload(check_worker *worker, const kvant_gpu *gpu, const void *state,
                                   const kvant_gpu_plan *plan, void *device_state);
kvant_status check_call_gpu_pair(check_worker *worker, const kvant_gpu *gpu, const kvant_setup *key,
                                 const kvant_setup *value, kvant_gpu_kernel *kernel, kvant_diag *diag);

/* Asks plan until block_tokens fits the axis of the configuration. */
kvant_status check_fit(check_worker *worker, check_case *c, kvant_layout *layout, kvant_diag *diag);

/* The system has no memory: the check cannot go on. Ends the process. */
__attribute__((noreturn)) void check_out_of_memory(void);

#endif
