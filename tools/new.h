/* The files of plugins/template/, embedded into the command at build time. */
#ifndef KVANT_TOOLS_NEW_H
#define KVANT_TOOLS_NEW_H

#include <stddef.h>

struct embedded_file {
    const char *name; /* NULL ends the table */
    const char *text;
};

extern const struct embedded_file template_files[];

#endif
