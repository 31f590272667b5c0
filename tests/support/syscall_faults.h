/* Runs code in a child process whose system calls are watched (ptrace), and at one of those that change a
 * file or flush it kills the child, lets it write half and then kills it, or lets the call fail.
 *
 *     for (uint32_t at = 1;; at++) {
 *         kvant_fault fault = {.action = KVANT_FAULT_KILL, .at = at};
 *         kvant_fault_result result = kvant_with_fault(body, context, &fault);
 *         if (!result.hit) break;
 *         ... look at what is on the disk ...
 *     }
 */
#ifndef KVANT_TEST_SYSCALL_FAULTS_H
#define KVANT_TEST_SYSCALL_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    KVANT_FAULT_KILL, /* SIGKILL instead of the call */
    KVANT_FAULT_HALF, /* a write writes half of its bytes, then SIGKILL; other calls happen, then SIGKILL */
    KVANT_FAULT_FAIL, /* the call does not happen and returns `error` */
    KVANT_FAULT_FULL  /* this call and every later write, creation and allocation return `error` */
};

typedef struct kvant_fault {
    uint32_t action;
    uint32_t at; /* counted from 1; 0 = nothing happens */
    int error;   /* an errno */
} kvant_fault;

enum { KVANT_FAULT_CALLS = 4096 };

typedef struct kvant_fault_result {
    bool hit;       /* there was such a call */
    int status;     /* exit status, or minus the signal that ended it */
    uint32_t count; /* of calls */
    /* A letter each: w write, t change of size, s flush, c creation of a file or folder, r rename, u unlink,
     * m change of times. */
    char calls[KVANT_FAULT_CALLS + 1];
} kvant_fault_result;

/* The child counts from where body calls kvant_fault_begin; it ends with status 0 if body returns. */
kvant_fault_result kvant_with_fault(void (*body)(void *context), void *context, const kvant_fault *fault);
void kvant_fault_begin(void);

/* False on machines where calls can be watched and not changed: KVANT_FAULT_KILL only. */
bool kvant_fault_can_change(void);

#endif
