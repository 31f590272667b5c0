/* What the parts of the trace reader share. */
#ifndef KVANT_REPLAY_TRACE_INTERNAL_H
#define KVANT_REPLAY_TRACE_INTERNAL_H

#include "replay/trace.h"

#include <jansson.h>

#include <stdbool.h>
#include <stdio.h>

typedef struct trace_segment {
    char *name;
    kvant_trace_text text;
} trace_segment;

typedef struct trace_name {
    char *name; /* NULL = the number is free */
    char *tenant;
    uint32_t length; /* tokens, as positions count */
} trace_name;

struct kvant_trace {
    char *file;
    FILE *stream;
    char *buffer; /* the line */
    size_t buffer_size;
    uint32_t line;
    json_t *json; /* of the line: the event's strings are its own */
    kvant_diag *diag;

    trace_segment *segments;
    uint32_t segment_count, segment_capacity;
    trace_name *names;
    uint32_t name_count; /* numbers ever used */
    uint32_t name_capacity;

    kvant_trace_event event;
    uint32_t *accepted;
    uint32_t *sequences, *sources;
    kvant_trace_text scratch;
};

/* Fails with file and line, and the key at fault. */
__attribute__((format(printf, 4, 5))) kvant_status trace_fail(const kvant_trace *t, kvant_status status,
                                                              const char *key, const char *format, ...);

/* Refuses a key of the object that is not in the list, with the nearest that is. */
kvant_status trace_check_keys(const kvant_trace *t, const json_t *object, const char *what,
                              const char *const *known, size_t count);

/* The whole number under `key`, within [least, most]; `absent` where there is none, unless it `must` be
 * there. */
kvant_status trace_number(const kvant_trace *t, const json_t *object, const char *key, bool must,
                          int64_t least, int64_t most, int64_t absent, int64_t *number);

/* The string under `key`, of 1 to KVANT_TRACE_NAME_MAX bytes; NULL where there is none, unless it `must` be
 * there. */
kvant_status trace_string(const kvant_trace *t, const json_t *object, const char *key, bool must,
                          const char **string);

/* A text (docs/replay.md, "Text") in place of what `out` held. Tokens without a role of their own are
 * `role`s; `generated`: all of them were. */
kvant_status trace_read_text(const kvant_trace *t, const json_t *json, const char *key, uint32_t role,
                             bool generated, kvant_trace_text *out);

/* Defines the segment of a line, in place of one of the same name. */
kvant_status trace_define_segment(kvant_trace *t);

/* ---- Names of sequences (trace.c) ---------------------------------------------------------------------- */

/* The number of a sequence that lives; name_count = there is none. */
uint32_t trace_find_name(const kvant_trace *t, const char *name);

/* The same for a name that must live, under that key of the line. */
kvant_status trace_live_name(const kvant_trace *t, const char *key, const char *name, uint32_t *number);

/* A number for a new name. */
kvant_status trace_add_name(kvant_trace *t, const char *name, const char *tenant, uint32_t *number);
void trace_end_name(kvant_trace *t, uint32_t number);

/* ---- Operations (trace_ops.c) -------------------------------------------------------------------------- */

/* Fills t->event with what the line says. */
kvant_status trace_read_event(kvant_trace *t, const char *op);

/* ---- Tokens (trace_text.c) ----------------------------------------------------------------------------- */

/* Room for `count` more tokens. */
bool trace_text_reserve(kvant_trace_text *text, uint32_t count);
void trace_text_free(kvant_trace_text *text);

#endif
