/* kvant check: conformance of a codec. */
#include "command.h"

#include "check/check.h"

#include <jansson.h>

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { SETTINGS_MAX = 64, FAILURES_SHOWN = 3 };

typedef struct arguments {
    check_options options;
    const char *settings[SETTINGS_MAX];
    bool list;
    bool verbose;
    bool had_seed;
} arguments;

/* ---- Arguments --------------------------------------------------------------------------------------- */

static bool read_unsigned(const char *text, uint64_t *value) {
    char *end = NULL;
    errno = 0;
    *value = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0' && text[0] != '-' && text[0] != '+';
}

static bool read_positive(const char *text, double most, double *value) {
    char *end = NULL;
    errno = 0;
    *value = strtod(text, &end);
    return errno == 0 && end != text && *end == '\0' && *value > 0 && *value <= most;
}

static int read_only(arguments *a, const char *name) {
    a->options.only = check_find(name);
    a->options.only_one = true;
    if (a->options.only != CHECK_COUNT) return EXIT_DONE;
    return usage_error("check", "there is no check \"%s\"; `kvant check --list` shows them", name);
}

static int read_setting(arguments *a, const char *text) {
    if (a->options.setting_count == SETTINGS_MAX)
        return usage_error("check", "at most %d --set", SETTINGS_MAX);
    if (strchr(text, '=') == NULL) return usage_error("check", "--set takes KEY=VALUE, not \"%s\"", text);
    a->settings[a->options.setting_count++] = text;
    return EXIT_DONE;
}

static int read_option(arguments *a, int option, const char *value) {
    uint64_t number = 0;
    switch (option) {
    case 's':
        a->had_seed = true;
        if (read_unsigned(value, &a->options.seed)) return EXIT_DONE;
        return usage_error("check", "--seed takes a number, not \"%s\"", value);
    case 'c':
        if (!read_unsigned(value, &number) || number > INT64_MAX)
            return usage_error("check", "--case takes a number, not \"%s\"", value);
        a->options.number = (int64_t)number;
        return EXIT_DONE;
    case 'f':
        if (read_positive(value, 1, &a->options.fraction)) return EXIT_DONE;
        return usage_error("check", "--fraction takes a number above 0 and up to 1, not \"%s\"", value);
    case 't':
        if (read_positive(value, 3600, &a->options.timeout)) return EXIT_DONE;
        return usage_error("check", "--timeout takes seconds, up to 3600, not \"%s\"", value);
    case 'm':
        if (!read_unsigned(value, &number) || number < 1 || number > 1 << 20)
            return usage_error("check", "--memory takes MiB, not \"%s\"", value);
        a->options.memory_limit = number << 20;
        return EXIT_DONE;
    case 'o':
        return read_only(a, value);
    case 'k':
        return read_setting(a, value);
    case 'a':
        a->options.all = true;
        return EXIT_DONE;
    case 'g':
        a->options.gpu = true;
        return EXIT_DONE;
    case 'i':
        a->options.in_process = true;
        return EXIT_DONE;
    case 'l':
        a->list = true;
        return EXIT_DONE;
    case 'v':
        a->verbose = true;
        return EXIT_DONE;
    default:
        return usage_error("check", "unknown option, or a value is missing");
    }
}

static int read_arguments(int argc, char **argv, arguments *a) {
    static const struct option known[] = {{"seed", required_argument, NULL, 's'},
                                          {"case", required_argument, NULL, 'c'},
                                          {"fraction", required_argument, NULL, 'f'},
                                          {"timeout", required_argument, NULL, 't'},
                                          {"memory", required_argument, NULL, 'm'},
                                          {"only", required_argument, NULL, 'o'},
                                          {"set", required_argument, NULL, 'k'},
                                          {"all", no_argument, NULL, 'a'},
                                          {"in-process", no_argument, NULL, 'i'},
                                          {"list", no_argument, NULL, 'l'},
                                          {"verbose", no_argument, NULL, 'v'},
                                          {"gpu", no_argument, NULL, 'g'},
                                          {NULL, 0, NULL, 0}};
    *a = (arguments){.options = {.fraction = 1, .number = -1, .workers = options.threads}};
    opterr = 0;
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        int result = read_option(a, option, optarg);
        if (result != EXIT_DONE) return result;
    }
    a->options.settings = a->settings;
    if (a->options.timeout == 0) a->options.timeout = a->options.gpu ? 60 : 10;
    if (a->list) return EXIT_DONE;
    if (a->options.only_one && check_needs_device(a->options.only) && !a->options.gpu)
        return usage_error("check", "the check \"%s\" runs kernels: it needs --gpu",
                           check_name(a->options.only));
    if (optind == argc) return usage_error("check", "which codec? A name, or a file kvant_NAME.so");
    if (optind + 1 < argc)
        return usage_error("check", "one codec at a time, not also \"%s\"", argv[optind + 1]);
    a->options.codec = argv[optind];
    return EXIT_DONE;
}

/* ---- Output ------------------------------------------------------------------------------------------ */

static int print_list(void) {
    for (unsigned id = 0; id < CHECK_COUNT; id++)
        printf("%-12s %s\n", check_name((check_id)id), check_promise((check_id)id));
    return EXIT_DONE;
}

static void print_tallies(const check_report *report) {
    for (unsigned id = 0; id < CHECK_COUNT; id++) {
        const check_tally *t = &report->tallies[id];
        if (t->passed + t->failed + t->refused + t->skipped == 0) continue;
        printf("  %-12s %-5s %7" PRIu64, check_name((check_id)id), t->failed > 0 ? "FAIL" : "ok", t->passed);
        if (t->failed > 0) printf(", %" PRIu64 " failed", t->failed);
        if (t->refused > 0) printf(", %" PRIu64 " refused with a reason", t->refused);
        if (t->skipped > 0) printf(", %" PRIu64 " left out after %s", t->skipped, "three children died");
        putchar('\n');
    }
}

static void print_failure(const check_report *report, const arguments *a, const check_failure *f) {
    printf("    %s\n", f->message);
    if (f->configuration[0] != '\0') printf("      in %s\n", f->configuration);
    if (f->number < 0) return;
    printf("      again: kvant check %s --seed %" PRIu64 " --case %" PRId64 " --only %s", a->options.codec,
           report->seed, f->number, check_name(f->id));
    /* What else decides which configuration has this number. */
    if (a->options.gpu) printf(" --gpu");
    if (a->options.all) printf(" --all");
    for (uint32_t i = 0; i < a->options.setting_count; i++) printf(" --set %s", a->settings[i]);
    putchar('\n');
}

static void print_failures(const check_report *report, const arguments *a) {
    for (uint32_t i = 0; i < report->failure_count;) {
        check_id id = report->failures[i].id;
        uint32_t shown = 0, count = 0;
        printf("\n%s: %s\n", check_name(id), check_promise(id));
        for (; i < report->failure_count && report->failures[i].id == id; i++, count++)
            if (a->verbose || shown < FAILURES_SHOWN) {
                print_failure(report, a, &report->failures[i]);
                shown++;
            }
        if (count > shown) printf("    and %u more (--verbose shows them)\n", count - shown);
    }
}

static void print_report(const check_report *report, const arguments *a) {
    printf("%s %s, %s\n", report->name, report->version,
           report->file[0] != '\0' ? report->file : "registered");
    if (report->device[0] != '\0') printf("on %s\n", report->device);
    printf("seed %" PRIu64 ", %" PRIu64 " configurations", report->seed, report->configurations);
    if (a->options.all)
        printf(", the full product has %" PRIu64 "\n", report->product);
    else
        printf(": %" PRIu64 " of %" PRIu64
               " pairs of values in one that plan accepts, it refuses the others\n",
               report->pairs_accepted, report->pairs);
    print_tallies(report);
    for (uint32_t i = 0; i < report->note_count; i++) printf("  note: %s\n", report->notes[i]);
    const check_tally *only = a->options.only_one ? &report->tallies[a->options.only] : NULL;
    if (only != NULL && only->passed + only->failed + only->refused + only->skipped == 0)
        printf("  note: nothing here asks for the check \"%s\"\n", check_name(a->options.only));
    print_failures(report, a);
    uint32_t broken = 0;
    for (unsigned id = 0; id < CHECK_COUNT; id++) broken += report->tallies[id].failed > 0;
    if (check_report_failed(report))
        printf("\n%s breaks %u promise%s (%.1f s)\n", report->name, broken, broken == 1 ? "" : "s",
               report->seconds);
    else
        printf("%s keeps its promises (%.1f s)\n", report->name, report->seconds);
}

static json_t *checks_json(const check_report *report) {
    json_t *checks = json_object();
    for (unsigned id = 0; id < CHECK_COUNT; id++) {
        const check_tally *t = &report->tallies[id];
        json_object_set_new(checks, check_name((check_id)id),
                            json_pack("{s:s, s:I, s:I, s:I, s:I}", "promise", check_promise((check_id)id),
                                      "passed", (json_int_t)t->passed, "failed", (json_int_t)t->failed,
                                      "refused", (json_int_t)t->refused, "skipped", (json_int_t)t->skipped));
    }
    return checks;
}

/* Numbers beyond 2^53 are strings: many readers of JSON have doubles only. */
static int print_json(const check_report *report) {
    json_t *failures = json_array(), *notes = json_array();
    for (uint32_t i = 0; i < report->failure_count; i++) {
        const check_failure *f = &report->failures[i];
        json_array_append_new(failures, json_pack("{s:s, s:o, s:s, s:s}", "check", check_name(f->id), "case",
                                                  f->number >= 0 ? json_integer(f->number) : json_null(),
                                                  "configuration", f->configuration, "message", f->message));
    }
    for (uint32_t i = 0; i < report->note_count; i++)
        json_array_append_new(notes, json_string(report->notes[i]));
    char seed[24];
    (void)snprintf(seed, sizeof seed, "%" PRIu64, report->seed);
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:b, s:o, s:o, s:o, s:f}", "codec", report->name, "version",
        report->version, "file", report->file, "device", report->device, "seed", seed, "configurations",
        (json_int_t)report->configurations, "pairs", (json_int_t)report->pairs, "pairs_accepted",
        (json_int_t)report->pairs_accepted, "passed", !check_report_failed(report), "checks",
        checks_json(report), "failures", failures, "notes", notes, "seconds", report->seconds);
    if (root == NULL) {
        fputs("kvant check: the report is no valid UTF-8\n", stderr);
        return EXIT_INPUT;
    }
    (void)json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
    return EXIT_DONE;
}

static void show_progress(void *context, uint64_t done, uint64_t count) {
    const arguments *a = context;
    fprintf(stderr, "\r%s: %" PRIu64 " of %" PRIu64 " ", a->options.codec, done, count);
}

/* ---- Command ----------------------------------------------------------------------------------------- */

static int run(int argc, char **argv) {
    arguments a;
    int result = read_arguments(argc, argv, &a);
    if (result != EXIT_DONE) return result;
    if (a.list) return print_list();
    if (!a.had_seed && getrandom(&a.options.seed, sizeof a.options.seed, 0) != (ssize_t)sizeof a.options.seed)
        a.options.seed = (uint64_t)getpid();
    if (!a.had_seed) a.options.seed %= 1000000000; /* short enough to type */
    bool terminal = isatty(STDERR_FILENO) && !options.json;
    if (terminal) {
        a.options.progress = show_progress;
        a.options.context = &a;
    }
    check_report report;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status status = check_run(&a.options, &report, &diag);
    if (terminal) fputs("\r\033[K", stderr);
    if (status == KVANT_ERROR_ARGUMENT || status == KVANT_ERROR_VALUE || status == KVANT_ERROR_UNKNOWN_NAME)
        return usage_error("check", "--set: %s", diag.message);
    if (status != KVANT_OK) return input_error(&diag, status);
    if (a.options.number >= 0 && (uint64_t)a.options.number >= report.configurations) {
        result = usage_error("check", "--case %" PRId64 ": there are %" PRIu64 " configurations, from 0 on",
                             a.options.number, report.configurations);
        check_report_free(&report);
        return result;
    }
    if (options.json)
        result = print_json(&report);
    else
        print_report(&report, &a);
    if (result == EXIT_DONE) result = check_report_failed(&report) ? EXIT_FOUND : EXIT_DONE;
    check_report_free(&report);
    return result;
}

const command command_check = {
    .name = "check",
    .summary = "put every promise of a codec to the test",
    .help =
        "usage: kvant check [options] CODEC\n"
        "       kvant check [options] FILE.so\n"
        "       kvant check --list\n"
        "\n"
        "Runs the codec in child processes, between guard pages, on configurations that hold every value of "
        "every\n"
        "parameter and every pair of values. A child that crashes, hangs or eats memory is a failed check.\n"
        "\n"
        "  --seed N         draw configurations and data from N; without it the seed is random, and printed\n"
        "  --case N         only configuration N of that seed\n"
        "  --only NAME      only this check (and what it needs); --list shows the names\n"
        "  --set KEY=VALUE  only this value: a parameter, or side, dtype, kv_heads, head_dim, block_tokens, "
        "data, rope,\n"
        "                   isa; may be given often\n"
        "  --gpu            compare kernels on the CUDA driver's first device with the CPU: bytes, floats,\n"
        "                   attention; the codec's other checks are left out. --set takes also gqa, other_dim,\n"
        "                   tokens (1, block-1, block, block+1, 10*block+7), sight (all, window, live, cap,\n"
        "                   mixed)\n"
        "  --fraction F     only this part of the configurations, 0 < F <= 1; those with new values come "
        "first\n"
        "  --all            the full product of all values, in an order drawn from the seed (may take days; "
        "combine\n"
        "                   with --set or --fraction)\n"
        "  --timeout S      seconds that one call may take; 10, with --gpu 60\n"
        "  --memory M       MiB that one child may use; 2048\n"
        "  --in-process     no children, for debuggers\n"
        "  --verbose        all failures, not three of each check\n"
        "\n"
        "Exit status: 0 all promises kept, 1 one was broken, 2 wrong usage, 3 the plugin does not load, or\n"
        "--gpu finds no driver, no device or no image for it.\n"
        "\n"
        "  kvant check kivi --seed 7\n"
        "  kvant check ./kvant_mine.so --only slices --set head_dim=80\n"
        "  kvant check --gpu kivi\n",
    .run = run,
};
