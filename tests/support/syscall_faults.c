/* See syscall_faults.h. */
#include "support/syscall_faults.h"

#include "support/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- Which calls --------------------------------------------------------------------------------------- */

/* The letter of a call, 0 if it changes nothing. */
static char letter(const struct __ptrace_syscall_info *info) {
    const __typeof__(info->entry.args[0]) *args = info->entry.args;
    switch (info->entry.nr) {
    case SYS_write:
    case SYS_writev:
        return args[0] > 2 ? 'w' : 0;
    case SYS_pwrite64:
    case SYS_pwritev:
    case SYS_pwritev2:
        return 'w';
    case SYS_ftruncate:
    case SYS_fallocate:
        return 't';
    case SYS_fsync:
    case SYS_fdatasync:
    case SYS_msync:
        return 's';
    case SYS_openat:
        return (args[2] & O_CREAT) != 0 ? 'c' : 0;
    case SYS_mkdirat:
        return 'c';
#ifdef SYS_open
    case SYS_open:
        return (args[1] & O_CREAT) != 0 ? 'c' : 0;
    case SYS_mkdir:
        return 'c';
    case SYS_rename:
        return 'r';
    case SYS_unlink:
        return 'u';
#endif
#ifdef SYS_renameat
    case SYS_renameat:
        return 'r';
#endif
    case SYS_renameat2:
        return 'r';
    case SYS_unlinkat:
        return 'u';
    case SYS_utimensat:
        return 'm';
    default:
        return 0;
    }
}

/* ---- Changing them ------------------------------------------------------------------------------------- */

#ifdef __x86_64__
bool kvant_fault_can_change(void) {
    return true;
}
static void poke(pid_t child, size_t at, unsigned long value) {
    if (ptrace(PTRACE_POKEUSER, child, at, value) != 0) fail_msg("ptrace cannot write registers");
}
static void skip_call(pid_t child) {
    poke(child, offsetof(struct user_regs_struct, orig_rax), (unsigned long)-1);
}
static void set_result(pid_t child, int error) {
    poke(child, offsetof(struct user_regs_struct, rax), (unsigned long)-error);
}
static void set_size(pid_t child, unsigned long size) {
    poke(child, offsetof(struct user_regs_struct, rdx), size);
}
#else
bool kvant_fault_can_change(void) {
    return false;
}
static void skip_call(pid_t child) {
    (void)child;
}
static void set_result(pid_t child, int error) {
    (void)child;
    (void)error;
}
static void set_size(pid_t child, unsigned long size) {
    (void)child;
    (void)size;
}
#endif

/* ---- The loop ------------------------------------------------------------------------------------------ */

void kvant_fault_begin(void) {
    (void)raise(SIGSTOP);
}

static _Noreturn void child_runs(void (*body)(void *context), void *context) {
    if (ptrace(PTRACE_TRACEME, 0, 0, 0) != 0) {
        (void)fputs("syscall_faults: ptrace is not allowed here\n", stderr);
        _exit(99);
    }
    body(context);
    _exit(0);
}

/* Lets the child go on to its next stop. Returns the status of waitpid. */
static int go_on(pid_t child, int request, int signal) {
    int status = 0;
    if (ptrace((enum __ptrace_request)request, child, 0, signal) != 0 && errno != ESRCH)
        fail_msg("ptrace does not go on");
    if (waitpid(child, &status, 0) != child) fail_msg("waitpid");
    return status;
}

/* At the entry of a call: what the fault wants. True = set the result when it returns. */
static bool meddle(pid_t child, const struct __ptrace_syscall_info *info, char is, const kvant_fault *fault,
                   bool first) {
    if (fault->action == KVANT_FAULT_KILL) {
        (void)kill(child, SIGKILL);
    } else if (fault->action == KVANT_FAULT_HALF) {
        if (is == 'w' && (info->entry.nr == SYS_write || info->entry.nr == SYS_pwrite64))
            set_size(child, (unsigned long)info->entry.args[2] / 2);
    } else if (first || is == 'w' || is == 'c' || is == 't') {
        skip_call(child);
        return true;
    }
    return false;
}

kvant_fault_result kvant_with_fault(void (*body)(void *context), void *context, const kvant_fault *fault) {
    kvant_fault_result r = {0};
    (void)fflush(NULL);
    pid_t child = fork();
    if (child < 0) fail_msg("fork");
    if (child == 0) child_runs(body, context);
    int status = 0;
    bool counting = false, change_result = false;
    if (waitpid(child, &status, 0) != child) fail_msg("waitpid");
    while (WIFSTOPPED(status)) {
        struct __ptrace_syscall_info info;
        int signal = WSTOPSIG(status);
        if (signal == SIGSTOP && !counting) {
            counting = true;
            signal = 0;
            if (ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) != 0)
                fail_msg("ptrace takes no options");
        } else if (signal == (SIGTRAP | 0x80)) {
            signal = 0;
            if (ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info) <= 0) fail_msg("no system call");
            char is = info.op == PTRACE_SYSCALL_INFO_ENTRY ? letter(&info) : 0;
            if (is != 0) {
                if (r.count < KVANT_FAULT_CALLS) r.calls[r.count] = is;
                r.count++;
                bool first = r.count == fault->at;
                r.hit = r.hit || first;
                if (first || (r.hit && fault->action == KVANT_FAULT_FULL))
                    change_result = meddle(child, &info, is, fault, first);
            } else if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
                if (change_result) set_result(child, fault->error);
                change_result = false;
                if (r.hit && fault->action == KVANT_FAULT_HALF) (void)kill(child, SIGKILL);
            }
        }
        status = go_on(child, counting ? PTRACE_SYSCALL : PTRACE_CONT, signal);
    }
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    if (r.status == 99) fail_msg("ptrace is not allowed here, and this test is nothing without it");
    if (!counting) fail_msg("the child never called kvant_fault_begin");
    return r;
}
