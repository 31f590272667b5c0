/* `kvant eval`: every pipeline measured on every dump of the command line. */
#include "command.h"

#include "eval_report.h"

#include "pipeline/pipeline.h"

#include <kvant/kit/diag.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char help[] =
    "usage: kvant eval PIPELINE... DUMP... [--layers] [--csv | --json] [--html FILE] [--threads N]\n"
    "                  [--device N]\n"
    "\n"
    "Measures pipelines on keys, values and queries of a real run. What ends in .safetensors is a dump, a\n"
    "plain name is a codec with its defaults on both sides, everything else is a pipeline's INI file.\n"
    "\n"
    "  --layers      a line per layer as well\n"
    "  --json        one JSON document instead of the table (docs/json.md)\n"
    "  --csv         comma-separated values instead of the table\n"
    "  --html FILE   also writes a page with tables and plots; needs gnuplot\n"
    "  --threads N   threads; results do not depend on them\n"
    "  --device N    encodes, decodes and attends on GPU N, from 0. Nothing is left to the CPU: a codec\n"
    "                without kernels is an error. All numbers but times are those that the CPU gives\n"
    "\n"
    "Columns. bits: codes alone, and with scales and padding, per element of an extent; bytes: everything\n"
    "stored, raw rows too. NMSE: sum (x-x')^2 / sum x^2 of coded tokens. Attention error: ||o-o'|| / ||o||\n"
    "over all query rows and heads of a layer, with keys, values, or both coded; median over layers and the\n"
    "worst one. recent: the same with the pipeline's recent window raw, as a growing cache would have it;\n"
    "all other columns code every whole block. head: layer.head with the largest error. row KL: between\n"
    "exact and coded softmax rows, in nats. raw: tokens that stayed raw (sinks and tail). GB/s of one\n"
    "thread, at 4 bytes an element; on a device from launches to their end, copies not counted. \"-\": the\n"
    "dump lacks what it takes.\n"
    "\n"
    "Exit status 1 if a codec decoded numbers that are not finite, or if a device's own attention differs\n"
    "from that of the decoded rows in double precision by more than its codecs allow.\n"
    "\n"
    "example: kvant eval pipelines/kivi-2.ini pipelines/int8.ini samples/sample.safetensors --html "
    "report.html\n";

typedef struct candidate {
    const char *argument;
    kvant_pipeline *pipeline;
} candidate;

typedef struct request {
    bool layers, csv;
    bool on_device;
    uint32_t ordinal;
    const char *html;
    candidate *pipelines;
    uint32_t pipeline_count;
    const char **dumps;
    uint32_t dump_count;
} request;

/* ---- The command line ---------------------------------------------------------------------------------- */

static bool is_dump(const char *argument) {
    static const char suffix[] = ".safetensors";
    size_t size = strlen(argument), tail = sizeof suffix - 1;
    return size >= tail && strcmp(argument + size - tail, suffix) == 0;
}

static int unknown_option(const char *option) {
    static const char *const known[] = {"--layers", "--csv",     "--html", "--device",
                                        "--json",   "--threads", "--isa",  "--plugin-path"};
    const char *near = kvant_nearest(option, known, sizeof known / sizeof known[0]);
    if (near != NULL) return usage_error("eval", "unknown option %s; did you mean %s?", option, near);
    return usage_error("eval", "unknown option %s", option);
}

static int take_device(request *r, const char *value) {
    char *end = NULL;
    errno = 0;
    unsigned long ordinal = value != NULL ? strtoul(value, &end, 10) : 0;
    bool good = value != NULL && value[0] >= '0' && value[0] <= '9' && *end == '\0' && errno == 0;
    if (!good || ordinal > INT32_MAX)
        return usage_error("eval", "--device takes the number of a GPU, from 0, not \"%s\"",
                           value != NULL ? value : "");
    r->on_device = true;
    r->ordinal = (uint32_t)ordinal;
    return EXIT_DONE;
}

static int parse(int argc, char **argv, request *r) {
    bool only_arguments = false;
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i];
        if (only_arguments || argument[0] != '-') {
            if (is_dump(argument))
                r->dumps[r->dump_count++] = argument;
            else
                r->pipelines[r->pipeline_count++].argument = argument;
        } else if (strcmp(argument, "--") == 0) {
            only_arguments = true;
        } else if (strcmp(argument, "--layers") == 0) {
            r->layers = true;
        } else if (strcmp(argument, "--csv") == 0) {
            r->csv = true;
        } else if (strncmp(argument, "--html=", 7) == 0 && argument[7] != '\0') {
            r->html = argument + 7;
        } else if (strcmp(argument, "--html") == 0) {
            if (++i >= argc) return usage_error("eval", "--html takes a file");
            r->html = argv[i];
        } else if (strcmp(argument, "--device") == 0 || strncmp(argument, "--device=", 9) == 0) {
            int taken = take_device(r, argument[8] == '=' ? argument + 9 : i + 1 < argc ? argv[++i] : NULL);
            if (taken != EXIT_DONE) return taken;
        } else {
            return unknown_option(argument);
        }
    }
    if (r->csv && options.json) return usage_error("eval", "--csv and --json exclude each other");
    if (r->dump_count == 0) return usage_error("eval", "no dump: an argument that ends in .safetensors");
    if (r->pipeline_count == 0) return usage_error("eval", "no pipeline: an INI file or the name of a codec");
    return EXIT_DONE;
}

static int load_pipelines(request *r) {
    for (uint32_t i = 0; i < r->pipeline_count; i++) {
        candidate *c = &r->pipelines[i];
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_status status = kvant_pipeline_open(c->argument, &c->pipeline, &diag);
        if (status != KVANT_OK) return input_error(&diag, status);
    }
    return EXIT_DONE;
}

/* ---- Running ------------------------------------------------------------------------------------------- */

typedef struct progress {
    const char *pipeline, *dump;
    bool shown;
} progress;

static void show_progress(void *context, uint32_t done, uint32_t total) {
    progress *p = context;
    if (!isatty(STDERR_FILENO)) return;
    p->shown = true;
    fprintf(stderr, "\r\033[K%.40s on %.40s: layer %u of %u", p->pipeline, p->dump, done, total);
    fflush(stderr);
}

static void clear_progress(progress *p) {
    if (p->shown) fputs("\r\033[K", stderr);
    p->shown = false;
}

/* Puts the pipeline in front of what the library says, unless it names a file already. */
static int refuse(const char *pipeline, const char *dump, kvant_diag *diag, kvant_status status) {
    if (diag->file[0] != '\0') return input_error(diag, status);
    kvant_diag full = {.struct_size = sizeof full};
    kvant_fail(&full, status, diag->key, "%.300s on %.300s: %.1300s", pipeline, dump,
               diag->message[0] != '\0' ? diag->message : kvant_status_text(status));
    return input_error(&full, status);
}

static int measure(const candidate *c, const kvant_dump *dump, const eval_dump *description,
                   kvant_device *device, eval_result *result) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_plan *plan = NULL;
    kvant_plan_info info = {.struct_size = sizeof info};
    int exit_status = EXIT_DONE;
    kvant_status status = kvant_pipeline_resolve(c->pipeline, kvant_dump_geometry(dump), &plan, &diag);
    if (status == KVANT_OK) status = kvant_plan_describe(plan, &info);
    if (status == KVANT_OK) {
        result->source = strdup(c->argument);
        result->pipeline = strdup(info.name != NULL && info.name[0] != '\0' ? info.name : c->argument);
        if (result->source == NULL || result->pipeline == NULL) status = KVANT_ERROR_MEMORY;
    }
    if (status == KVANT_OK) {
        progress p = {.pipeline = result->pipeline, .dump = description->name};
        kvant_eval_options how = {
            .threads = options.threads, .progress = show_progress, .context = &p, .device = device};
        status = kvant_eval_run(plan, dump, &how, &result->eval, &diag);
        clear_progress(&p);
    }
    if (status != KVANT_OK) exit_status = refuse(c->argument, description->file, &diag, status);
    kvant_plan_free(plan);
    return exit_status;
}

static bool describe(const kvant_dump *dump, eval_dump *d) {
    const kvant_dump_info *info = kvant_dump_describe(dump);
    const kvant_geometry *geometry = kvant_dump_geometry(dump);
    d->file = strdup(info->file);
    d->name = strdup(info->name);
    d->model = strdup(geometry->model != NULL ? geometry->model : "");
    d->layers = geometry->layer_count;
    d->tokens = info->tokens;
    d->query_tokens = info->has_queries ? info->query_tokens : 0;
    d->keys_before_rope = geometry->keys == KVANT_KEYS_BEFORE_ROPE;
    d->has_keys = info->has_keys;
    d->has_values = info->has_values;
    d->has_queries = info->has_queries;
    return d->file != NULL && d->name != NULL && d->model != NULL;
}

/* One dump is open at a time: memory is bounded by the largest. */
static int measure_dump(const request *r, uint32_t index, kvant_device *device, eval_report *report) {
    kvant_dump *dump = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    eval_dump *description = &report->dumps[index];
    kvant_status status = kvant_dump_open(r->dumps[index], &dump, &diag);
    if (status != KVANT_OK) return input_error(&diag, status);
    report->dump_count = index + 1;
    int exit_status = EXIT_DONE;
    if (!describe(dump, description))
        exit_status = refuse(r->dumps[index], r->dumps[index], &diag, KVANT_ERROR_MEMORY);
    for (uint32_t i = 0; exit_status == EXIT_DONE && i < r->pipeline_count; i++) {
        eval_result *result = &report->results[report->result_count++];
        result->dump = index;
        exit_status = measure(&r->pipelines[i], dump, description, device, result);
    }
    kvant_dump_close(dump);
    return exit_status;
}

/* Where two pipelines have the same name, their arguments tell them apart. */
static void tell_apart(eval_report *report) {
    for (uint32_t i = 0; i < report->result_count; i++) {
        eval_result *a = &report->results[i];
        bool twice = false;
        for (uint32_t j = 0; j < report->result_count; j++) {
            const eval_result *b = &report->results[j];
            twice = twice || (strcmp(a->source, b->source) != 0 && strcmp(a->pipeline, b->pipeline) == 0);
        }
        char *name = twice ? strdup(a->source) : NULL;
        if (name == NULL) continue;
        /* Compared by name until all are decided: the others of that name must still find each other. */
        for (uint32_t j = 0; j < report->result_count; j++) {
            eval_result *b = &report->results[j];
            if (j == i || strcmp(b->pipeline, a->pipeline) != 0) continue;
            char *other = strdup(b->source);
            if (other == NULL) continue;
            free(b->pipeline);
            b->pipeline = other;
        }
        free(a->pipeline);
        a->pipeline = name;
    }
}

static int open_device(const request *r, kvant_device **device, eval_report *report) {
    if (!r->on_device) return EXIT_DONE;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status status = kvant_device_open(r->ordinal, device, &diag);
    report->on_device = true;
    report->ordinal = r->ordinal;
    report->device.struct_size = sizeof report->device;
    if (status == KVANT_OK) status = kvant_device_describe(*device, &report->device);
    return status == KVANT_OK ? EXIT_DONE : input_error(&diag, status);
}

/* ---- Results ------------------------------------------------------------------------------------------- */

/* What makes the exit status 1. */
static bool find_fault(const eval_report *report, const eval_result *result) {
    const char *dump = report->dumps[result->dump].name;
    uint32_t layer, side;
    uint64_t count;
    double of_allowed;
    bool found = kvant_eval_not_finite(result->eval, &layer, &side, &count);
    if (found)
        fprintf(stderr, "kvant: %s on %s: layer %u %s: %llu decoded numbers are not finite\n",
                result->pipeline, dump, layer, side == KVANT_SIDE_KEY ? "key" : "value",
                (unsigned long long)count);
    if (!kvant_eval_device_worst(result->eval, &layer, &of_allowed) || of_allowed <= 1) return found;
    fprintf(stderr,
            "kvant: %s on %s: layer %u: attention of device %u differs from that of the decoded rows by %.3g "
            "times what float and attend_tolerance allow\n",
            result->pipeline, dump, layer, report->ordinal, of_allowed);
    return true;
}

static int print_report(const request *r, eval_report *report) {
    int exit_status = EXIT_DONE;
    kvant_diag diag = {.struct_size = sizeof diag};
    tell_apart(report);
    if (r->html != NULL) {
        kvant_status status = eval_write_html(report, r->html, &diag);
        if (status != KVANT_OK) return input_error(&diag, status);
    }
    if (options.json && !eval_print_json(report, stdout)) return input_error(&diag, KVANT_ERROR_MEMORY);
    if (r->csv) eval_print_csv(report, r->layers, stdout);
    if (!options.json && !r->csv) eval_print_table(report, r->layers);
    for (uint32_t i = 0; i < report->result_count; i++)
        if (find_fault(report, &report->results[i])) exit_status = EXIT_FOUND;
    return exit_status;
}

static void free_all(request *r, eval_report *report) {
    for (uint32_t i = 0; r->pipelines != NULL && i < r->pipeline_count; i++)
        kvant_pipeline_free(r->pipelines[i].pipeline);
    for (uint32_t i = 0; i < report->dump_count; i++) {
        free(report->dumps[i].file);
        free(report->dumps[i].name);
        free(report->dumps[i].model);
    }
    for (uint32_t i = 0; i < report->result_count; i++) {
        free(report->results[i].pipeline);
        free(report->results[i].source);
        kvant_eval_free(report->results[i].eval);
    }
    free(r->pipelines);
    free(r->dumps);
    free(report->dumps);
    free(report->results);
}

static int run(int argc, char **argv) {
    request r = {.pipelines = calloc((size_t)argc, sizeof *r.pipelines),
                 .dumps = calloc((size_t)argc, sizeof *r.dumps)};
    eval_report report = {0};
    kvant_device *device = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    int exit_status = EXIT_DONE;
    if (r.pipelines == NULL || r.dumps == NULL)
        exit_status = input_error(&diag, KVANT_ERROR_MEMORY);
    else
        exit_status = parse(argc, argv, &r);
    if (exit_status == EXIT_DONE) exit_status = open_device(&r, &device, &report);
    if (exit_status == EXIT_DONE) exit_status = load_pipelines(&r);
    if (exit_status == EXIT_DONE) {
        report.dumps = calloc(r.dump_count, sizeof *report.dumps);
        report.results = calloc((size_t)r.dump_count * r.pipeline_count, sizeof *report.results);
        if (report.dumps == NULL || report.results == NULL)
            exit_status = input_error(&diag, KVANT_ERROR_MEMORY);
    }
    for (uint32_t i = 0; exit_status == EXIT_DONE && i < r.dump_count; i++)
        exit_status = measure_dump(&r, i, device, &report);
    if (exit_status == EXIT_DONE) exit_status = print_report(&r, &report);
    free_all(&r, &report);
    kvant_device_close(device);
    return exit_status;
}

const command command_eval = {
    .name = "eval",
    .summary = "bits, errors and attention errors of pipelines on real keys and values",
    .help = help,
    .run = run,
};
