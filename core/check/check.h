/* `kvant check`: every promise of plugin.h put to the test.
 *
 *     check_options options = {.codec = "kivi", .seed = 1, .fraction = 1, .timeout = 10};
 *     check_report report;
 *     kvant_status status = check_run(&options, &report, &diag); // the loader's refusal is an error
 *     ... report.tallies[id].failed, report.failures[i].message ...
 *     check_report_free(&report);
 *
 * The plugin is loaded and driven in forked children only. A child that crashes, hangs or eats memory is a
 * failed check; another child goes on behind it. Everything is drawn from the seed: same seed, same
 * configurations, same data.
 *
 * The parts: check_run (parent), check_worker (child), check_board (memory that both see), check_axes and
 * check_cover (which configurations), check_case (one of them), check_data (what is encoded), check_subject
 * (an opened codec), check_promise_*.c (the checks), oracle_*.c (what error a formula must show),
 * check_gpu*.c (kernels against the CPU).
 */
#ifndef KVANT_CHECK_CHECK_H
#define KVANT_CHECK_CHECK_H

#include <kvant/plugin.h>

#include <stdbool.h>

/* The checks, in the order in which they are reported. */
typedef enum check_id {
    /* Once per plugin. */
    CHECK_LOAD,
    CHECK_DESCRIPTOR,
    CHECK_EXPORTS,
    CHECK_EXTENSION,
    CHECK_HEAD_DIMS,
    CHECK_OPTIONS,
    CHECK_BANDS,
    /* Once per configuration. */
    CHECK_PLAN,
    CHECK_LAYOUT,
    CHECK_BLOCKS,
    CHECK_OPEN,
    CHECK_CALIBRATE,
    CHECK_ENCODE,
    CHECK_DECODE,
    CHECK_FINITE,
    CHECK_LOSSLESS,
    CHECK_ERROR,
    CHECK_BITS,
    CHECK_REPEAT,
    CHECK_VIEWS,
    CHECK_SLICES,
    CHECK_ROUNDING,
    CHECK_ISA,
    CHECK_THREADS,
    CHECK_INSPECT,
    CHECK_ATTEND,
    CHECK_ARBITRARY,
    CHECK_QUIET,
    /* Of kvant.gpu/1: the host's part always, kernels with `gpu`. */
    CHECK_GPU_PLAN,
    CHECK_GPU_UPLOAD,
    CHECK_GPU_ENCODE,
    CHECK_GPU_FINITE,
    CHECK_GPU_DECODE,
    CHECK_GPU_ATTEND,
    CHECK_GPU_SCORE,
    CHECK_GPU_MIX,
    CHECK_GPU_ARBITRARY,
    /* Watched during all of them. */
    CHECK_BOUNDS,
    CHECK_STATE,
    CHECK_ENVIRONMENT,
    CHECK_GLOBALS,
    CHECK_COUNT
} check_id;

/* The name ("slices") and the promise in one sentence. */
const char *check_name(check_id id);
const char *check_promise(check_id id);

/* The check called `name`, or CHECK_COUNT. */
check_id check_find(const char *name);

/* True for checks that run kernels. */
bool check_needs_device(check_id id);

typedef struct check_options {
    const char *codec; /* a codec's name, or a file: anything with a slash or ending in ".so" */
    uint64_t seed;
    double fraction;       /* of the configurations, in (0, 1] */
    double timeout;        /* seconds that one call may take */
    uint64_t memory_limit; /* resident bytes of one child; 0 = 2 GiB */
    uint32_t workers;      /* 0 = one per CPU; with `gpu` at most four: each has a context of its own */
    bool all;              /* the full product instead of all pairs */
    bool in_process;       /* no children: for debuggers */
    bool gpu;              /* kernels on the driver's first device against the CPU, in place of the CPU's own
                              checks */
    bool only_one;         /* run only check `only`, besides what it needs */
    check_id only;
    int64_t number; /* run only this configuration; -1 = all */
    const char *const
        *settings; /* "key=value": a parameter, or side, dtype, kv_heads, head_dim, block_tokens, ... */
    uint32_t setting_count;
    void (*progress)(void *context, uint64_t done, uint64_t count);
    void *context;
} check_options;

typedef struct check_tally {
    uint64_t passed;
    uint64_t failed;
    uint64_t refused; /* configurations that plan or open refused, with a reason */
    uint64_t skipped; /* after three children died in this check */
} check_tally;

/* What was found. Strings belong to the report. */
typedef struct check_failure {
    check_id id;
    int64_t number;      /* of the configuration; -1 = the plugin as such */
    char *configuration; /* "side=key dtype=f16 kv_heads=3 head_dim=64 ... bits=2"; "" = the plugin as such */
    char *message;
} check_failure;

typedef struct check_report {
    char *name;
    char *version;
    char *file;
    char *device; /* with `gpu`: its name, compute capability and the kind of image it took; else "" */
    uint64_t seed;
    uint64_t configurations;
    uint64_t product; /* size of the full product, saturated */
    uint64_t pairs;   /* of values of two axes: */
    uint64_t
        pairs_accepted; /*   how many occur in a configuration that plan accepts; plan refuses the others */
    check_tally tallies[CHECK_COUNT];
    check_failure *failures; /* sorted by check, then by number */
    uint32_t failure_count;
    char **notes; /* what is worth knowing and breaks no promise */
    uint32_t note_count;
    double seconds;
} check_report;

/* PLUGIN_*: the loader's word on a plugin that does not load. ARGUMENT, VALUE, UNKNOWN_NAME: a setting that
 * names no axis or value. With `gpu`: DEVICE without a driver or a device, UNSUPPORTED without an image for
 * it. MEMORY, IO: the system refused. A failed check is no error: it is in the report. */
kvant_status check_run(const check_options *options, check_report *report, kvant_diag *diag);

void check_report_free(check_report *report);

/* True if any check failed. */
bool check_report_failed(const check_report *report);

#endif
