/* Traces of requests to a cache, kvant-trace/1 (docs/replay.md): JSON lines, read one at a time, so that a
 * trace may be longer than memory.
 *
 * Everything that a line can be wrong in is found here, with file, line and rule: grammar, names that do
 * not live, rollbacks beyond the beginning. Whoever reads a trace to its end once knows that it can be
 * replayed. */
#ifndef KVANT_REPLAY_TRACE_H
#define KVANT_REPLAY_TRACE_H

#include <kvant/types.h>

enum {
    KVANT_TRACE_REQUEST, /* a new sequence or a continued one: text comes in, tokens are generated */
    KVANT_TRACE_LOAD,    /* the same, of a new sequence that may have been saved */
    KVANT_TRACE_FORK,
    KVANT_TRACE_REORDER,
    KVANT_TRACE_ROLLBACK,
    KVANT_TRACE_DROP,
    KVANT_TRACE_EVICT,
    KVANT_TRACE_SAVE,
    KVANT_TRACE_RESTART,
    KVANT_TRACE_END,
    KVANT_TRACE_OPS
};

/* Rules of the format. */
enum {
    KVANT_TRACE_TEXT_MAX = 1 << 24,  /* tokens of a sequence, or of a segment */
    KVANT_TRACE_DRAFT_MAX = 1024,    /* tokens that are proposed at a time */
    KVANT_TRACE_NAME_MAX = 128,      /* bytes of a name */
    KVANT_TRACE_NAMES_MAX = 1 << 16, /* sequences that live at once */
    KVANT_TRACE_LINE_MAX = 1 << 28   /* bytes */
};

/* Tokens side by side. */
typedef struct kvant_trace_text {
    uint64_t *ids;
    uint8_t *tags;
    uint32_t count;
    uint32_t capacity;
} kvant_trace_text;

/* One line. Everything lives until the next one is read. Sequences are numbered: a number is used again
 * after the sequence ended. */
typedef struct kvant_trace_event {
    uint32_t op;       /* KVANT_TRACE_* */
    uint32_t line;     /* from 1 */
    uint32_t sequence; /* its number; of REORDER, EVICT, RESTART: 0 */
    uint32_t source;   /* of FORK: the number of the other */
    const char *name;  /* of the sequence; "" where there is none */

    const char *tenant;         /* REQUEST, LOAD: "" = none */
    uint32_t starts;            /* REQUEST, LOAD: 1 = the sequence is new */
    uint32_t draft;             /* tokens that are proposed with every generated one; 0 = no speculation */
    kvant_trace_text text;      /* to be put in, may be none */
    kvant_trace_text generated; /* then generated, one after another */
    const uint32_t *accepted;   /* [accepted_count]: how many of a draft are right, in turn */
    uint32_t accepted_count;    /* 0 = all are */

    uint32_t count; /* ROLLBACK, DROP: tokens; REORDER: sequences */
    uint64_t first; /* DROP: position */

    const uint32_t *sequences; /* REORDER: [count], numbers */
    const uint32_t *sources;   /* REORDER: [count], indices into `sequences` */

    uint64_t bytes;  /* EVICT */
    double fraction; /* EVICT: of the pool; 0 = `bytes` says it */
} kvant_trace_event;

typedef struct kvant_trace kvant_trace;

/* Opens the file and reads its first line. Errors of this and of the next call: IO, SYNTAX, VERSION,
 * UNKNOWN_NAME, DUPLICATE, VALUE, MISSING, CONFLICT, MEMORY, all with file, line and rule. */
kvant_status kvant_trace_open(const char *file, kvant_trace **trace, kvant_diag *diag);

/* *event = NULL after the last line. */
kvant_status kvant_trace_next(kvant_trace *trace, const kvant_trace_event **event, kvant_diag *diag);

void kvant_trace_close(kvant_trace *trace);

/* "request", as the trace has it. */
const char *kvant_trace_op_name(uint32_t op);

#endif
