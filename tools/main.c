/* The `kvant` command: common options, help, and the table of sub-commands. */
#include "command.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

command_options options;

/* One line per file in tools/. */
extern const command command_calibrate;
extern const command command_check;
extern const command command_decode;
extern const command command_encode;
extern const command command_eval;
extern const command command_import;
extern const command command_info;
extern const command command_inspect;
extern const command command_list;
extern const command command_new;
extern const command command_replay;
extern const command command_resolve;
extern const command command_tag;

static const command *const commands[] = {
    &command_calibrate, &command_check,   &command_decode, &command_encode, &command_eval,    &command_import,
    &command_info,      &command_inspect, &command_list,   &command_new,    &command_replay,  &command_resolve,
    &command_tag,
};
enum { COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static const command *find_command(const char *name) {
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

int usage_error(const char *name, const char *format, ...) {
    va_list arguments;
    fprintf(stderr, "kvant %s: ", name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\nsee `kvant help %s`\n", name);
    return EXIT_USAGE;
}

int input_error(const kvant_diag *diag, kvant_status status) {
    fputs("kvant: ", stderr);
    if (diag->file[0] != '\0') {
        fprintf(stderr, "%s:", diag->file);
        if (diag->line > 0) fprintf(stderr, "%d:", (int)diag->line);
        fputc(' ', stderr);
    }
    fprintf(stderr, "%s\n", diag->message[0] != '\0' ? diag->message : kvant_status_text(status));
    return EXIT_INPUT;
}

static int print_overview(FILE *stream) {
    fputs("usage: kvant [--plugin-path DIR[:DIR]] [--isa LEVEL] [--threads N] [--json] COMMAND ...\n\n",
          stream);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(stream, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fputs("\n`kvant help COMMAND` explains one; `kvant --version` prints the version.\n", stream);
    return EXIT_DONE;
}

static int print_help(const char *name) {
    const command *c = find_command(name);
    if (c == NULL) {
        fprintf(stderr, "kvant: there is no command \"%s\"; `kvant help` lists them\n", name);
        return EXIT_USAGE;
    }
    printf("kvant %s: %s\n\n%s", c->name, c->summary, c->help);
    return EXIT_DONE;
}

/* Adds every directory of a colon-separated list, so that the first one is searched first. */
static int add_plugin_path(char *list) {
    for (;;) {
        kvant_diag diag = {.struct_size = sizeof diag};
        char *last = strrchr(list, ':');
        kvant_status status = kvant_plugin_path_add(last != NULL ? last + 1 : list, &diag);
        if (status != KVANT_OK) return input_error(&diag, status);
        if (last == NULL) return EXIT_DONE;
        *last = '\0';
    }
}

static int apply_option(const char *option, char *value) {
    kvant_diag diag = {.struct_size = sizeof diag};
    if (strcmp(option, "--plugin-path") == 0) return add_plugin_path(value);
    if (strcmp(option, "--isa") == 0)
        return kvant_isa_limit(value, &diag) == KVANT_OK ? EXIT_DONE : input_error(&diag, KVANT_ERROR_VALUE);
    char *end = NULL;
    errno = 0;
    unsigned long threads = strtoul(value, &end, 10);
    if (errno != 0 || end == value || *end != '\0' || value[0] == '-' || threads < 1 || threads > 1024) {
        fprintf(stderr, "kvant: --threads takes a number from 1 to 1024, not \"%s\"\n", value);
        return EXIT_USAGE;
    }
    options.threads = (uint32_t)threads;
    return EXIT_DONE;
}

/* Takes the common options out of argv, wherever they stand before "--". */
static int take_common_options(int *argc, char **argv) {
    static const char *const with_value[] = {"--plugin-path", "--isa", "--threads"};
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            while (i < *argc) argv[kept++] = argv[i++];
            break;
        }
        if (strcmp(argv[i], "--json") == 0) {
            options.json = true;
            continue;
        }
        size_t known = 0;
        while (known < 3 && strncmp(argv[i], with_value[known], strlen(with_value[known])) != 0) known++;
        const char *rest = known < 3 ? argv[i] + strlen(with_value[known]) : NULL;
        if (rest == NULL || (*rest != '\0' && *rest != '=')) {
            argv[kept++] = argv[i];
            continue;
        }
        char *value = *rest == '=' ? argv[i] + (rest - argv[i]) + 1 : i + 1 < *argc ? argv[++i] : NULL;
        if (value == NULL) {
            fprintf(stderr, "kvant: %s takes a value\n", with_value[known]);
            return EXIT_USAGE;
        }
        int result = apply_option(with_value[known], value);
        if (result != EXIT_DONE) return result;
    }
    *argc = kept;
    argv[kept] = NULL;
    return EXIT_DONE;
}

int main(int argc, char **argv) {
    int result = take_common_options(&argc, argv);
    if (result != EXIT_DONE) return result;
    if (argc < 2) {
        print_overview(stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("kvant %s, plugin ABI %d.%d\n", kvant_version(), KVANT_ABI_MAJOR, KVANT_ABI_MINOR);
        return EXIT_DONE;
    }
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return argc > 2 ? print_help(argv[2]) : print_overview(stdout);
    const command *c = find_command(argv[1]);
    if (c == NULL) {
        fprintf(stderr, "kvant: there is no command \"%s\"; `kvant help` lists them\n", argv[1]);
        return EXIT_USAGE;
    }
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return print_help(c->name);
    result = c->run(argc - 1, argv + 1);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("kvant: cannot write to standard output\n", stderr);
        return EXIT_INPUT;
    }
    return result;
}
