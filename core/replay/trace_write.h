/* Traces written line by line: for the generator and for traces made of dumps. */
#ifndef KVANT_REPLAY_TRACE_WRITE_H
#define KVANT_REPLAY_TRACE_WRITE_H

#include "base/text.h"
#include "data/file.h"

#include <stdbool.h>

/* A run of ids with one tag: [first, first + count), or, where ids is set, ids[0, count). */
typedef struct trace_piece {
    const char *segment; /* not NULL: the whole segment, and nothing else counts */
    const uint64_t *ids;
    uint64_t first;
    uint32_t count;
    uint32_t role; /* KVANT_TAG_INST, ... */
    bool generated;
} trace_piece;

typedef struct trace_writer {
    kvant_file_writer *file;
    kvant_text line;
} trace_writer;

/* Opens the file and writes its first line, with a note. */
kvant_status trace_writer_open(const char *file, const char *note, trace_writer *writer, kvant_diag *diag);

/* The file is there when this returns KVANT_OK. `status`: not KVANT_OK = it is to be thrown away; returned
 * then. */
kvant_status trace_writer_close(trace_writer *writer, kvant_status status, kvant_diag *diag);

/* Parts of a line: its beginning {"op": "OP", "sequence": "NAME" (NULL = none), a text under a key, and its
 * end. What stands between is put into writer->line. */
void trace_write_op(trace_writer *writer, const char *op, const char *sequence);
void trace_write_text(trace_writer *writer, const char *key, const trace_piece *pieces, uint32_t count);
void trace_write_end(trace_writer *writer);

/* A whole line {"segment": "NAME", "text": ..}. */
void trace_write_segment(trace_writer *writer, const char *name, const trace_piece *pieces, uint32_t count);

#endif
