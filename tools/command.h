/* What main.c and the sub-commands share: the table of sub-commands, common options, exit statuses,
 * messages. */
#ifndef KVANT_TOOLS_COMMAND_H
#define KVANT_TOOLS_COMMAND_H

#include <kvant/kvant.h>

#include <stdbool.h>

/* Exit statuses. */
enum {
    EXIT_DONE = 0,  /* done */
    EXIT_FOUND = 1, /* it ran and found what it was asked to find: a failed check, a mismatch */
    EXIT_USAGE = 2, /* wrong usage */
    EXIT_INPUT = 3  /* bad input: a file, INI, plugin, tensor */
};

/* One sub-command; each file in tools/ defines one and main.c lists it. run() gets argv[0] = its own name,
 * and finds the common options already taken out of argv. */
typedef struct command {
    const char *name;
    const char *summary; /* one line */
    const char
        *help; /* usage, every option, an example; printed by `kvant help NAME` and `kvant NAME --help` */
    int (*run)(int argc, char **argv);
} command;

/* Options that every sub-command takes: --json, --plugin-path DIR[:DIR], --isa LEVEL, --threads N. */
typedef struct command_options {
    bool json;
    uint32_t threads; /* 0 = one per CPU */
} command_options;
extern command_options options;

/* "kvant NAME: ..." on stderr, then "see `kvant help NAME`"; returns EXIT_USAGE. */
__attribute__((format(printf, 2, 3))) int usage_error(const char *name, const char *format, ...);

/* One line on stderr: file, line, rule; returns EXIT_INPUT. */
int input_error(const kvant_diag *diag, kvant_status status);

#endif
