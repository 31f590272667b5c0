/* Do hot calls keep quiet? They are run in a process of their own, in a thread that has never allocated:
 * its first allocation must ask the system for an arena, as any lock, log or I/O must ask it for something.
 * Linux hands every system call of the thread to a handler (syscall user dispatch, Linux 5.11), which
 * remembers the first and lets it pass. */
#include "check_promise.h"

#include "plugin/fpenv.h"

#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

enum {
    EVERY = 4,
    DISPATCH = 59,
    DISPATCH_OFF = 0,
    DISPATCH_ON = 1,
    ALLOW = 0,
    BLOCK = 1,
    NO_CALL = -1,
    NO_WATCH = -2
};
enum { OCCUPIED = 10, ARENAS = 1000 };

#if defined(__x86_64__)

/* One process makes one run: what its handler must reach. */
static volatile char selector;
static volatile int first_call;

static void on_call(int number, siginfo_t *info, void *context) {
    (void)number;
    selector = ALLOW;
    if (first_call == NO_CALL) first_call = info->si_syscall;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] -= 2; /* once more, now that it may */
}

typedef struct quiet_job {
    const check_context *context;
    kvant_view rows;
    void *extent, *scratch, *output;
    kvant_status status;
} quiet_job;

static void run_hot_calls(quiet_job *job) {
    const check_context *context = job->context;
    const kvant_setup *setup = &context->configuration.setup;
    const void *state = context->subject.state.data;
    kvant_encode_args encode = {.struct_size = sizeof encode,
                                .rows = &job->rows,
                                .classes = context->subject.classes,
                                .extent = job->extent,
                                .scratch = job->scratch};
    job->status = context->worker->plugin->encode(state, &encode);
    if (job->status != KVANT_OK) return;
    const kvant_extent extent = {
        .bytes = job->extent, .size = encode.size, .live_count = setup->block_tokens};
    const kvant_mutable_view output = {.struct_size = sizeof output,
                                       .dtype = KVANT_DTYPE_F32,
                                       .data = job->output,
                                       .tokens = setup->block_tokens,
                                       .heads = setup->kv_heads,
                                       .head_dim = setup->head_dim,
                                       .token_stride = (int64_t)4 * setup->kv_heads * setup->head_dim,
                                       .head_stride = (int64_t)4 * setup->head_dim,
                                       .channel_stride = 4};
    const kvant_decode_args decode = {
        .struct_size = sizeof decode, .extent = &extent, .rows = &output, .scratch = job->scratch};
    job->status = context->worker->plugin->decode(state, &decode);
}

static void *watch_hot_calls(void *argument) {
    quiet_job *job = argument;
    first_call = NO_CALL;
    selector = ALLOW;
    if (prctl(DISPATCH, DISPATCH_ON, 0, 0, &selector) != 0) {
        first_call = NO_WATCH;
        return NULL;
    }
    kvant_fp_state saved = kvant_fp_enter();
    selector = BLOCK;
    run_hot_calls(job);
    selector = ALLOW;
    kvant_fp_leave(saved);
    (void)prctl(DISPATCH, DISPATCH_OFF, 0, 0, NULL);
    return NULL;
}

/* Takes an arena that earlier threads may have left, and keeps it. */
static void *occupy_arena(void *argument) {
    void *volatile memory = malloc(1);
    (void)memory;
    (void)sem_post(argument);
    while (pause() != 0) {
    } /* always */
    return argument;
}

static void occupy_arenas(void) {
    sem_t occupied;
    (void)sem_init(&occupied, 0, 0);
    (void)mallopt(M_ARENA_MAX, ARENAS);
    for (uint32_t i = 0; i < OCCUPIED; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, occupy_arena, &occupied) != 0) return;
        while (sem_wait(&occupied) != 0) {
        }
    }
}

/* In the process that is made for it. Never returns. */
__attribute__((noreturn)) static void quiet_process(quiet_job *job, int pipe) {
    struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO | SA_NODEFER};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGSYS, &action, NULL);
    occupy_arenas();
    pthread_t thread;
    int result = NO_WATCH;
    if (pthread_create(&thread, NULL, watch_hot_calls, job) == 0 && pthread_join(thread, NULL) == 0)
        result = first_call;
    (void)!write(pipe, &result, sizeof result);
    _exit(0);
}

static const char *call_name(int number) {
    switch (number) {
    case SYS_mmap:
    case SYS_brk:
    case SYS_mprotect:
    case SYS_munmap:
        return "allocates memory";
    case SYS_futex:
        return "takes a lock";
    case SYS_write:
    case SYS_writev:
    case SYS_read:
    case SYS_open:
    case SYS_openat:
        return "does I/O";
    case SYS_clone:
        return "starts a thread";
    default:
        return "calls the system";
    }
}

static int run_watched(check_context *context, check_rows *rows) {
    check_worker *worker = context->worker;
    int ends[2], result = NO_WATCH;
    quiet_job job = {.context = context, .rows = check_rows_view(rows)};
    check_buffer extent, output;
    if (!check_buffer_create(&worker->buffers, &extent, "extent", check_layout_largest(&context->layout),
                             context->layout.alignment, 0) ||
        !check_buffer_create(&worker->buffers, &output, "rows", context->elements * 4, 1, 0) ||
        pipe(ends) != 0)
        check_out_of_memory();
    job.extent = extent.data;
    job.output = output.data;
    job.scratch = context->subject.scratch.data;
    pid_t child = fork();
    if (child == 0) quiet_process(&job, ends[1]);
    (void)close(ends[1]);
    if (child < 0 || read(ends[0], &result, sizeof result) != (ssize_t)sizeof result) result = NO_WATCH;
    (void)close(ends[0]);
    if (child > 0) (void)waitpid(child, NULL, 0);
    check_buffer_free(&worker->buffers, &extent);
    check_buffer_free(&worker->buffers, &output);
    return result;
}

void check_quiet(check_context *context) {
    check_worker *worker = context->worker;
    const kvant_setup *setup = &context->configuration.setup;
    if (worker->number % EVERY != 0 || check_is_sanitized()) {
        worker->ran &= ~((uint64_t)1 << CHECK_QUIET);
        return;
    }
    check_rows rows;
    check_rows_create(worker, &rows, setup->dtype, setup->block_tokens, setup->kv_heads, setup->head_dim,
                      CHECK_FORM_DENSE);
    check_rows_store(&rows, context->values);
    int call = run_watched(context, &rows);
    check_rows_free(worker, &rows);
    if (call == NO_WATCH)
        worker->ran &= ~((uint64_t)1 << CHECK_QUIET);
    else if (call != NO_CALL)
        check_fail(worker, CHECK_QUIET, "a hot call %s (system call %d)", call_name(call), call);
}

#else

void check_quiet(check_context *context) {
    context->worker->ran &= ~((uint64_t)1 << CHECK_QUIET);
}

#endif
