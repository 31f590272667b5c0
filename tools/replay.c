/* `kvant replay`: a trace of requests against the cache, with every pipeline of the command line. */
#include "command.h"

#include "geometry.h"
#include "replay_make.h"
#include "replay_report.h"

#include "base/text.h"
#include "data/file.h"
#include "pipeline/pipeline.h"
#include "replay/trace.h"

#include <kvant/kit/diag.h>

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char help[] =
    "usage: kvant replay TRACE.jsonl PIPELINE... (DUMP.safetensors or --geometry G) [options]\n"
    "       kvant replay --generate NUMBERS -o TRACE.jsonl\n"
    "       kvant replay --from-dump DUMP -o TRACE.jsonl\n"
    "\n"
    "Runs a trace (docs/replay.md) against a cache, once for each pipeline, as an engine would: prompts are\n"
    "looked up, prefilled in chunks, generated token by token; sequences fork, roll back, speculate, are "
    "saved\n"
    "and loaded after a restart. Every answer is compared with an oracle's, bit for bit. A pipeline is an "
    "INI\n"
    "file, or a codec's name = its defaults on both sides.\n"
    "\n"
    "  --geometry G      layers=4,kv_heads=3,q_heads=9,head_dim=64,dtype=f16,rope=neox:100000: rows are made "
    "up\n"
    "  DUMP              its geometry; token t takes one of its rows\n"
    "  --model TEXT      the model that artifacts must be for (the dump's)\n"
    "  --rows-by WHAT    of what a token's rows are made: context (id and all before it, the strictest), "
    "id,\n"
    "                    position (context)\n"
    "  --seed N          of rows that are made up (1)\n"
    "  --bytes N[K|M|G]  of the cache's pool (256M)\n"
    "  --step N          tokens of a prefill step (512)\n"
    "  --store DIR       blocks that are evicted, and saved sequences, go there, each pipeline's into a "
    "folder\n"
    "  --store-kind K    lmdb or directory (lmdb)\n"
    "  --store-bytes N   of it (1G)\n"
    "  --check WHAT      none; reads: rows and states; all: attention outputs and aborted steps too (all)\n"
    "  --every N         one of N steps has its attention compared (8)\n"
    "  --put             keys and values only, no attention\n"
    "  --threads N       of the cache (1); answers do not depend on them\n"
    "  --json            one JSON document instead of the table (docs/json.md)\n"
    "\n"
    "  --generate NUMBERS  a trace made up from "
    "agents=8,turns=12,seed=1,tenants=1,kinds=2,system=200,tools=400,\n"
    "                    user=30,answer=60,observation=120,calls=2,context=4000 (tokens), and per cent of "
    "turns:\n"
    "                    keep=50,fork=10,draft=25,rollback=15,drop=5,evict=3,save=10,restart=2\n"
    "  --from-dump DUMP  a trace of the conversation that a dump's tags tell\n"
    "\n"
    "Columns. found: tokens that a lookup or a load spared; refused: requests that the pool had no room "
    "for;\n"
    "skipped: lines about sequences that ended so, or because a layer's window had released what a rollback\n"
    "needs; pool %: of its bytes; most at once: sequences that lived, and tokens that they had; blocks: "
    "evicted,\n"
    "put into the store on the way, and taken from it by lookups; seconds: in calls of the cache.\n"
    "\n"
    "Exit status 1 if the cache answered wrong: line, sequence, layer, side and token on stderr.\n"
    "\n"
    "example:\n"
    "  kvant replay --generate agents=8,turns=12,seed=1 -o day.jsonl\n"
    "  kvant replay day.jsonl raw pipelines/kivi-2.ini samples/sample.safetensors --bytes 8M\n";

typedef struct request {
    const char *trace, *dump_file, *geometry_text, *model;
    const char **pipelines;
    uint32_t pipeline_count;
    const char *generate, *from_dump, *output;
    const char *rows_by, *check, *store;
    uint64_t seed;
    kvant_replay_options how;
} request;

typedef struct job {
    kvant_dump *dump;
    parsed_geometry parsed;
    kvant_geometry geometry;
    char salt[300];
    kvant_replay_rows *rows;
} job;

/* ---- The command line ---------------------------------------------------------------------------------- */

static bool ends_in(const char *argument, const char *suffix) {
    size_t size = strlen(argument), tail = strlen(suffix);
    return size >= tail && strcmp(argument + size - tail, suffix) == 0;
}

/* 4096, 64K, 8M, 2G. False: none of these, or outside [least, most]. */
static bool read_number(const char *text, bool units, uint64_t least, uint64_t most, uint64_t *number) {
    char *end = NULL;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || errno != 0) return false;
    uint32_t shift = 0;
    if (units && *end != '\0' && end[1] == '\0') {
        shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
        end += shift != 0;
    }
    if (*end != '\0' || n > UINT64_MAX >> shift) return false;
    *number = (uint64_t)n << shift;
    return *number >= least && *number <= most;
}

/* The index of a word, and a usage error for any other. */
static int read_word(const char *option, const char *word, const char *const *words, uint32_t count,
                     uint32_t *index) {
    *index = 0;
    while (*index < count && strcmp(words[*index], word) != 0) ++*index;
    if (*index < count) return EXIT_DONE;
    const char *near = kvant_nearest(word, words, count);
    return usage_error("replay", "--%s: there is no \"%s\"; did you mean %s?", option, word,
                       near != NULL ? near : words[count - 1]);
}

static const char *const by_words[] = {"context", "id", "position"};
static const char *const check_words[] = {"none", "reads", "all"};
static const char *const kind_words[] = {"lmdb", "directory"};

static int read_option(request *r, int option, const char *name) {
    uint64_t number = 0;
    uint32_t index = 0;
    int result = EXIT_DONE;
    switch (option) {
    case 'g':
        r->geometry_text = optarg;
        break;
    case 'm':
        r->model = optarg;
        break;
    case 'G':
        r->generate = optarg;
        break;
    case 'F':
        r->from_dump = optarg;
        break;
    case 'o':
        r->output = optarg;
        break;
    case 'p':
        r->how.put_only = 1;
        break;
    case 's':
        r->store = optarg;
        break;
    case 'r':
        result = read_word(name, optarg, by_words, 3, &index);
        if (result == EXIT_DONE) r->rows_by = by_words[index];
        break;
    case 'c':
        result = read_word(name, optarg, check_words, 3, &r->how.check);
        if (result == EXIT_DONE) r->check = check_words[r->how.check];
        break;
    case 'k':
        result = read_word(name, optarg, kind_words, 2, &r->how.store_kind);
        break;
    case 'e':
    case 'n':
        if (!read_number(optarg, false, 1, 1u << 20, &number))
            return usage_error("replay", "--%s takes a number from 1 to 1048576, not \"%s\"", name, optarg);
        *(option == 'e' ? &r->how.every : &r->how.step) = (uint32_t)number;
        break;
    case 'S':
        if (!read_number(optarg, false, 0, INT64_MAX, &r->seed))
            return usage_error("replay", "--seed takes a number, not \"%s\"", optarg);
        break;
    default:
        if (!read_number(optarg, true, 1, UINT64_C(1) << 46, &number))
            return usage_error("replay", "--%s takes bytes as 4096, 64K, 8M or 2G, not \"%s\"", name, optarg);
        *(option == 'b' ? &r->how.bytes : &r->how.store_bytes) = number;
    }
    return result;
}

static int read_arguments(request *r, int argc, char **argv) {
    for (int i = optind; i < argc; i++) {
        const char **place = ends_in(argv[i], ".jsonl")         ? &r->trace
                             : ends_in(argv[i], ".safetensors") ? &r->dump_file
                                                                : NULL;
        if (place == NULL)
            r->pipelines[r->pipeline_count++] = argv[i];
        else if (*place != NULL)
            return usage_error("replay", "it takes one trace and one dump: %s is a second", argv[i]);
        else
            *place = argv[i];
    }
    if (r->generate != NULL || r->from_dump != NULL) {
        if (r->generate != NULL && r->from_dump != NULL)
            return usage_error("replay", "--generate and --from-dump exclude each other");
        if (r->output == NULL) return usage_error("replay", "-o TRACE.jsonl is missing");
        if (r->trace != NULL || r->dump_file != NULL || r->pipeline_count > 0)
            return usage_error("replay", "what writes a trace does not replay one as well");
        return EXIT_DONE;
    }
    if (r->output != NULL) return usage_error("replay", "-o goes with --generate and --from-dump");
    if (r->trace == NULL) return usage_error("replay", "no trace: an argument that ends in .jsonl");
    if (r->pipeline_count == 0)
        return usage_error("replay", "no pipeline: an INI file or the name of a codec");
    if ((r->dump_file == NULL) == (r->geometry_text == NULL))
        return usage_error("replay", "either a dump (.safetensors) or --geometry");
    if (r->how.store_bytes > 0 && r->store == NULL)
        return usage_error("replay", "--store-bytes goes with --store");
    return EXIT_DONE;
}

static int read_options(request *r, int argc, char **argv) {
    static const struct option known[] = {
        {"geometry", required_argument, NULL, 'g'},    {"model", required_argument, NULL, 'm'},
        {"rows-by", required_argument, NULL, 'r'},     {"seed", required_argument, NULL, 'S'},
        {"bytes", required_argument, NULL, 'b'},       {"step", required_argument, NULL, 'n'},
        {"store", required_argument, NULL, 's'},       {"store-kind", required_argument, NULL, 'k'},
        {"store-bytes", required_argument, NULL, 'B'}, {"check", required_argument, NULL, 'c'},
        {"every", required_argument, NULL, 'e'},       {"put", no_argument, NULL, 'p'},
        {"generate", required_argument, NULL, 'G'},    {"from-dump", required_argument, NULL, 'F'},
        {"output", required_argument, NULL, 'o'},      {NULL, 0, NULL, 0}};
    opterr = 0;
    for (int option, which = -1; (option = getopt_long(argc, argv, ":o:", known, &which)) != -1; which = -1) {
        if (option == ':') return usage_error("replay", "%s takes a value", argv[optind - 1]);
        if (option == '?') return usage_error("replay", "there is no option %s", argv[optind - 1]);
        int result = read_option(r, option, which >= 0 ? known[which].name : "output");
        if (result != EXIT_DONE) return result;
    }
    return read_arguments(r, argc, argv);
}

/* ---- Running ------------------------------------------------------------------------------------------- */

/* Reads the trace to its end, so that nothing of it is wrong when it is replayed. */
static kvant_status check_trace(const char *file, kvant_diag *diag) {
    kvant_trace *trace = NULL;
    const kvant_trace_event *event = NULL;
    kvant_status status = kvant_trace_open(file, &trace, diag);
    if (status == KVANT_OK) status = kvant_trace_next(trace, &event, diag);
    if (status == KVANT_OK && event == NULL)
        status = kvant_file_fail(diag, KVANT_ERROR_MISSING, file, "there is nothing in it to replay");
    while (status == KVANT_OK && event != NULL) status = kvant_trace_next(trace, &event, diag);
    kvant_trace_close(trace);
    return status;
}

/* Geometry and rows. What rows are made of is part of the salt: stored blocks of other rows are not found. */
static kvant_status prepare(const request *r, job *j, kvant_diag *diag) {
    const char *model = r->model != NULL ? r->model : "made up";
    uint32_t by = 0;
    kvant_status status = KVANT_OK;
    while (strcmp(by_words[by], r->rows_by) != 0) by++;
    if (r->dump_file != NULL) {
        status = kvant_dump_open(r->dump_file, &j->dump, diag);
        if (status != KVANT_OK) return status;
        j->geometry = *kvant_dump_geometry(j->dump);
        if (r->model == NULL && j->geometry.model != NULL) model = j->geometry.model;
    } else {
        status = geometry_parse(r->geometry_text, model, &j->parsed, diag);
        if (status != KVANT_OK) return status;
        j->geometry = j->parsed.value;
    }
    j->geometry.model = model;
    (void)snprintf(j->salt, sizeof j->salt, "%.200s by %s, seed %llu",
                   j->dump != NULL ? kvant_dump_describe(j->dump)->name : "made up", r->rows_by,
                   (unsigned long long)r->seed);
    return kvant_replay_rows_open(&j->geometry, j->dump, by, r->seed, &j->rows, diag);
}

typedef struct progress {
    const char *pipeline;
    double next;
    bool shown;
} progress;

static void show_progress(void *context, uint32_t line) {
    progress *p = context;
    if (!isatty(STDERR_FILENO)) return;
    p->shown = true;
    fprintf(stderr, "\r\033[K%.40s: line %u", p->pipeline, line);
}

static int refuse(const char *pipeline, kvant_diag *diag, kvant_status status) {
    if (diag->file[0] != '\0') return input_error(diag, status);
    kvant_diag full = {.struct_size = sizeof full};
    kvant_fail(&full, status, diag->key, "%.300s: %.1300s", pipeline,
               diag->message[0] != '\0' ? diag->message : kvant_status_text(status));
    return input_error(&full, status);
}

static int replay_pipeline(const request *r, const job *j, uint32_t index, replay_entry *entry) {
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    kvant_plan_info info = {.struct_size = sizeof info};
    kvant_diag diag = {.struct_size = sizeof diag};
    char folder[4096];
    kvant_replay_options how = r->how;
    progress p = {.pipeline = r->pipelines[index]};
    how.threads = options.threads > 0 ? options.threads : 1;
    how.salt = j->salt;
    how.progress = show_progress;
    how.context = &p;
    how.scale = j->dump != NULL ? (float)kvant_dump_describe(j->dump)->scale : 0;
    entry->source = r->pipelines[index];
    kvant_status status = kvant_pipeline_open(entry->source, &pipeline, &diag);
    if (status == KVANT_OK) status = kvant_pipeline_resolve(pipeline, &j->geometry, &plan, &diag);
    if (status == KVANT_OK) status = kvant_plan_describe(plan, &info);
    if (status == KVANT_OK) {
        entry->pipeline = strdup(info.name != NULL && info.name[0] != '\0' ? info.name : entry->source);
        if (entry->pipeline == NULL) status = KVANT_ERROR_MEMORY;
    }
    if (status == KVANT_OK && r->store != NULL) {
        (void)snprintf(folder, sizeof folder, "%.3900s/pipeline-%u", r->store, index);
        how.store_directory = folder;
        if (mkdir(r->store, 0777) != 0 && errno != EEXIST)
            status = kvant_file_fail(&diag, KVANT_ERROR_IO, r->store, "cannot make it: %s", strerror(errno));
    }
    if (status == KVANT_OK) status = kvant_replay_run(r->trace, plan, j->rows, &how, &entry->result, &diag);
    if (p.shown) fputs("\r\033[K", stderr);
    kvant_plan_free(plan);
    kvant_pipeline_free(pipeline);
    if (status == KVANT_OK) return EXIT_DONE;
    if (entry->result.failed_line == 0) return refuse(entry->source, &diag, status);
    fprintf(stderr, "kvant: %s:%u: %s: %s%s%s%s\n", r->trace, entry->result.failed_line, entry->pipeline,
            entry->result.failed_sequence[0] != '\0' ? "sequence \"" : "", entry->result.failed_sequence,
            entry->result.failed_sequence[0] != '\0' ? "\": " : "", entry->result.failure);
    return EXIT_FOUND;
}

static int replay(const request *r, replay_report *report) {
    job j = {0};
    kvant_diag diag = {.struct_size = sizeof diag};
    int exit_status = EXIT_DONE;
    kvant_status status = check_trace(r->trace, &diag);
    if (status == KVANT_OK) status = prepare(r, &j, &diag);
    if (status != KVANT_OK) exit_status = input_error(&diag, status);
    for (uint32_t i = 0; exit_status != EXIT_INPUT && i < r->pipeline_count; i++) {
        int one = replay_pipeline(r, &j, i, &report->entries[i]);
        if (one != EXIT_DONE) exit_status = one;
        if (one != EXIT_INPUT) report->count++;
    }
    report->model = j.geometry.model;
    if (exit_status != EXIT_INPUT && !options.json) replay_print_table(report);
    if (exit_status != EXIT_INPUT && options.json && !replay_print_json(report))
        exit_status = input_error(&diag, KVANT_ERROR_MEMORY);
    kvant_replay_rows_close(j.rows);
    kvant_dump_close(j.dump);
    geometry_free(&j.parsed);
    return exit_status;
}

static int run(int argc, char **argv) {
    request r = {.rows_by = "context",
                 .check = "all",
                 .seed = 1,
                 .pipelines = calloc((size_t)argc, sizeof *r.pipelines),
                 .how = {.bytes = UINT64_C(256) << 20,
                         .step = 512,
                         .check = KVANT_REPLAY_CHECK_ALL,
                         .every = 8,
                         .oracle_bytes = UINT64_C(64) << 20}};
    replay_report report = {.entries = calloc((size_t)argc, sizeof *report.entries)};
    kvant_diag diag = {.struct_size = sizeof diag};
    int exit_status = r.pipelines == NULL || report.entries == NULL ? input_error(&diag, KVANT_ERROR_MEMORY)
                                                                    : read_options(&r, argc, argv);
    report.trace = r.trace;
    report.rows = r.dump_file;
    report.rows_by = r.rows_by;
    report.store = r.store;
    report.seed = r.seed;
    report.step = r.how.step;
    report.check = r.check;
    if (exit_status == EXIT_DONE)
        exit_status = r.generate != NULL    ? replay_generate(r.generate, r.output)
                      : r.from_dump != NULL ? replay_from_dump(r.from_dump, r.output)
                                            : replay(&r, &report);
    for (uint32_t i = 0; report.entries != NULL && i < r.pipeline_count; i++)
        free(report.entries[i].pipeline);
    free(report.entries);
    free(r.pipelines);
    return exit_status;
}

const command command_replay = {
    .name = "replay",
    .summary = "a trace of requests against the cache: hits, bytes, evictions, checked against an oracle",
    .help = help,
    .run = run,
};
