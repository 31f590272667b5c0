/* What the parent and its children share: memory that survives a child's death, and records through a pipe.
 *
 * The board lies in shared memory: which item is next, how often each check passed, the chosen
 * configurations, and what each worker is doing right now, so that the parent can name it when the worker
 * dies. Failures come through a pipe as records small enough to be written whole (PIPE_BUF).
 */
#ifndef KVANT_CHECK_BOARD_H
#define KVANT_CHECK_BOARD_H

#include "check.h"

#include <stdatomic.h>

enum {
    CHECK_AXES = 64,      /* most axes: the fixed ones and the parameters */
    CHECK_ROWS = 1 << 15, /* most configurations that are chosen beforehand */
    CHECK_WORKERS = 64,
    CHECK_DEATHS = 3, /* a check in which so many children died is left out from then on */
    CHECK_TEXT = 1536
};

/* Calls of the plugin, for messages. */
enum {
    CHECK_CALL_NONE,
    CHECK_CALL_LOAD,
    CHECK_CALL_PLAN,
    CHECK_CALL_OPEN,
    CHECK_CALL_ENCODE,
    CHECK_CALL_DECODE,
    CHECK_CALL_CLOSE,
    CHECK_CALL_EXTENSION,
    CHECK_CALL_INSPECT,
    CHECK_CALL_CALIBRATE,
    CHECK_CALL_ATTEND,
    CHECK_CALL_GPU_PLAN,
    CHECK_CALL_GPU_UPLOAD,
    CHECK_CALL_GPU_PAIR,
    CHECK_CALL_KERNEL /* a launch and what it waits for */
};

/* How a child ends that says why otherwise: the system has no memory; the device works no more, and another
 * child must find it anew. */
enum { CHECK_EXIT_MEMORY = 125, CHECK_EXIT_DEVICE = 124 };

/* Where a fault happened, from the signal handler. */
typedef struct check_fault {
    char buffer[32];   /* "" = in no buffer of the check */
    int64_t offset;    /* from the first byte of the buffer */
    uint64_t size;     /* of the buffer */
    int32_t is_write;  /* 1 yes, 0 no, -1 unknown */
    int32_t read_only; /* the buffer was */
    uint64_t address;
} check_fault;

/* What one worker is doing. */
typedef struct check_slot {
    _Atomic uint64_t beat; /* counts calls of the plugin: stands still while one does not return */
    _Atomic uint64_t item;
    _Atomic uint32_t check;
    _Atomic uint32_t call;
    _Atomic uint32_t finished; /* ended as it should */
    check_fault fault;
    char text[CHECK_TEXT]; /* the configuration */
} check_slot;

/* One chosen configuration: the index of the value on each axis. */
typedef struct check_row {
    uint8_t value[CHECK_AXES];
    uint8_t accepted; /* plan took it when it was chosen */
} check_row;

typedef struct check_board {
    _Atomic uint64_t next; /* item */
    _Atomic uint64_t done;
    uint64_t items;
    uint64_t option_items; /* the first items: one per parameter; none for kernels */
    uint64_t fixed_items;  /* those, and the one for error bands; configurations follow */
    uint64_t product;
    uint64_t pairs;
    uint64_t pairs_accepted;
    uint32_t planned; /* the planner came to its end */
    uint32_t row_count;
    struct {
        _Atomic uint64_t passed, failed, refused, skipped;
    } tallies[CHECK_COUNT];
    _Atomic uint32_t deaths[CHECK_COUNT];
    check_slot slots[CHECK_WORKERS];
    check_row rows[CHECK_ROWS];
} check_board;

/* Shared between this process and its children. NULL when there is no memory. */
check_board *check_board_create(void);
void check_board_free(check_board *board);

/* Records. */
enum {
    CHECK_RECORD_FAILURE = 1, /* configuration NUL message */
    CHECK_RECORD_NOTE = 2,    /* message */
    CHECK_RECORD_PLUGIN = 3,  /* name NUL version NUL file NUL device */
    CHECK_RECORD_REFUSED = 4  /* the loader's or --set's word; status in `status` */
};

typedef struct check_record {
    uint32_t kind;
    uint32_t id;
    int64_t number;
    int32_t status;
    uint32_t size; /* of text, NULs included */
    char text[4000];
} check_record;

/* Writes the record's head and the used part of its text in one piece. False if the other end is gone. */
bool check_record_send(int pipe, const check_record *record);

/* Appends a string with its NUL, cut to what is left. */
void check_record_add(check_record *record, const char *string);

/* Reads one record; false at the end. Blocks until it is there. */
bool check_record_receive(int pipe, check_record *record);

/* String `index` of the text, "" if there is none. */
const char *check_record_string(const check_record *record, uint32_t index);

#endif
