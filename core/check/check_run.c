/* The parent: forks workers, listens to them, ends those that hang or grow, and puts another in a dead
 * one's place. */
#include "check_report.h"
#include "check_worker.h"

#include <errno.h>
#include <fcntl.h>
#include <kvant/kit/diag.h>
#include <kvant/kvant.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { POLL_MILLISECONDS = 20, DEATHS_MAX = 100, DEVICE_WORKERS = 4 };
static const uint64_t memory_default = (uint64_t)2 << 30;

/* Why the parent ended a child. */
typedef enum verdict { VERDICT_NONE, VERDICT_HANGS, VERDICT_GROWS } verdict;

typedef struct child {
    pid_t pid; /* 0 = none */
    int pipe;
    int output; /* what it prints, in a file that has no name */
    check_job job;
    check_slot *slot;
    uint64_t beat;
    double since; /* when the beat changed */
    verdict verdict;
} child;

typedef struct runner {
    const check_options *options;
    check_board *board;
    check_report *report;
    kvant_diag *diag;
    kvant_status status; /* of the loader or of a setting */
    uint32_t deaths;
    child children[CHECK_WORKERS];
    uint32_t child_count;
} runner;

static double now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- Records ----------------------------------------------------------------------------------------- */

static void take_record(runner *r, const check_record *record) {
    bool good = true;
    const char *first = check_record_string(record, 0), *second = check_record_string(record, 1);
    switch (record->kind) {
    case CHECK_RECORD_FAILURE:
        good = check_report_add_failure(r->report, (check_id)record->id, record->number, first, second);
        break;
    case CHECK_RECORD_NOTE:
        good = check_report_add_note(r->report, first);
        break;
    case CHECK_RECORD_PLUGIN:
        good = check_report_set_plugin(r->report, first, second, check_record_string(record, 2),
                                       check_record_string(record, 3));
        break;
    case CHECK_RECORD_REFUSED:
        r->status = kvant_fail(r->diag, record->status, "", "%s", second);
        if (r->diag != NULL) (void)snprintf(r->diag->file, sizeof r->diag->file, "%s", first);
        break;
    default:
        break;
    }
    if (!good) check_out_of_memory();
}

static void emit_to_parent(void *context, const check_record *record) {
    const int *pipe = context;
    if (!check_record_send(*pipe, record)) _exit(126);
}

static void emit_to_report(void *context, const check_record *record) {
    take_record(context, record);
}

/* ---- Children ---------------------------------------------------------------------------------------- */

__attribute__((noreturn)) static void child_main(runner *r, const child *self, int pipe) {
    const struct rlimit no_core = {0, 0};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setrlimit(RLIMIT_CORE, &no_core);
    (void)signal(SIGPIPE, SIG_IGN);
    if (self->output >= 0) {
        (void)dup2(self->output, STDOUT_FILENO);
        (void)dup2(self->output, STDERR_FILENO);
    }
    check_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL) check_out_of_memory();
    worker->options = r->options;
    worker->board = r->board;
    worker->slot = self->slot;
    worker->emit = emit_to_parent;
    worker->context = &pipe;
    check_worker_watch_signals(worker);
    check_worker_run(worker, &self->job);
    atomic_store(&self->slot->finished, 1);
    _exit(0);
}

static void child_start(runner *r, uint32_t index, const check_job *job) {
    child *c = &r->children[index];
    int ends[2];
    *c = (child){.job = *job, .slot = &r->board->slots[index], .since = now()};
    memset(c->slot, 0, sizeof *c->slot);
    c->output = memfd_create("kvant-check", MFD_CLOEXEC);
    if (pipe(ends) != 0) check_out_of_memory();
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) check_out_of_memory();
    if (pid == 0) {
        (void)close(ends[0]);
        child_main(r, c, ends[1]);
    }
    (void)close(ends[1]);
    c->pipe = ends[0];
    c->pid = pid;
}

/* The end of what a dead child printed, for example a sanitizer's report. */
static void printed_words(const child *c, char *text, size_t capacity) {
    text[0] = '\0';
    if (c->output < 0) return;
    off_t size = lseek(c->output, 0, SEEK_END);
    off_t from = size > (off_t)(capacity - 1) ? size - (off_t)(capacity - 1) : 0;
    ssize_t got = pread(c->output, text, capacity - 1, from);
    text[got > 0 ? got : 0] = '\0';
}

static const char *call_name(uint32_t call) {
    static const char *const names[] = {"the check itself", "loading",   "plan",    "open",
                                        "encode",           "decode",    "close",   "extension",
                                        "inspect",          "calibrate", "attend",  "plan of kvant.gpu/1",
                                        "upload",           "pair",      "a kernel"};
    return call < sizeof names / sizeof names[0] ? names[call] : "?";
}

static void describe_fault(const check_fault *fault, char *text, size_t capacity) {
    const char *access = fault->is_write == 1 ? "a write" : fault->is_write == 0 ? "a read" : "an access";
    text[0] = '\0';
    if (fault->buffer[0] != '\0')
        (void)snprintf(text, capacity, ", %s at offset %lld of %s %s of %llu bytes", access,
                       (long long)fault->offset, fault->read_only ? "the read-only" : "the", fault->buffer,
                       (unsigned long long)fault->size);
    else if (fault->address != 0)
        (void)snprintf(text, capacity, ", %s at %#llx, which is no memory of the call", access,
                       (unsigned long long)fault->address);
}

/* The promise that a fault breaks: what it touched says more than the check that was running. */
static check_id fault_id(const check_fault *fault, check_id running) {
    bool inside = fault->offset >= 0 && (uint64_t)fault->offset < fault->size;
    if (fault->buffer[0] == '\0' || running == CHECK_ARBITRARY) return running;
    return fault->read_only && inside ? CHECK_STATE : CHECK_BOUNDS;
}

/* A dead child is a failed check. */
static void note_death(runner *r, const child *c, int wait_status) {
    const check_slot *slot = c->slot;
    check_id running = (check_id)atomic_load(&slot->check), id = running;
    const char *call = call_name(atomic_load(&slot->call));
    char message[2400], fault[256], printed[1200];
    uint64_t item = atomic_load(&slot->item);
    bool fixed = c->job.plan || item < r->board->fixed_items;
    describe_fault(&slot->fault, fault, sizeof fault);
    printed_words(c, printed, sizeof printed);
    if (c->verdict == VERDICT_HANGS)
        (void)snprintf(message, sizeof message, "%s did not return within %g s", call, r->options->timeout);
    else if (c->verdict == VERDICT_GROWS)
        (void)snprintf(message, sizeof message, "%s took more memory than %llu MiB", call,
                       (unsigned long long)(r->options->memory_limit >> 20));
    else if (WIFSIGNALED(wait_status)) {
        id = fault_id(&slot->fault, running);
        (void)snprintf(message, sizeof message, "%s died of signal %d (%s)%s (during check \"%s\")", call,
                       WTERMSIG(wait_status), strsignal(WTERMSIG(wait_status)), fault, check_name(running));
    } else
        (void)snprintf(message, sizeof message, "%s ended the process with status %d", call,
                       WEXITSTATUS(wait_status));
    if (printed[0] != '\0') {
        size_t used = strlen(message);
        (void)snprintf(message + used, sizeof message - used, "; it printed: %s", printed);
    }
    atomic_fetch_add(&r->board->tallies[id].failed, 1);
    atomic_fetch_add(&r->board->deaths[running], 1);
    r->deaths++;
    if (!check_report_add_failure(r->report, id, fixed ? -1 : (int64_t)(item - r->board->fixed_items),
                                  slot->text, message))
        check_out_of_memory();
}

/* Checks that make what the others of a configuration look at: without them there is nothing to go on
 * with. */
static bool is_needed(check_id id) {
    return id == CHECK_PLAN || id == CHECK_LAYOUT || id == CHECK_OPEN || id == CHECK_ENCODE ||
           id == CHECK_DECODE || id == CHECK_GPU_PLAN;
}

static void stop(runner *r, const char *why) {
    char note[160];
    (void)snprintf(note, sizeof note, "stopped before the end: %s", why);
    atomic_store(&r->board->next, r->board->items);
    if (!check_report_add_note(r->report, note)) check_out_of_memory();
}

static void child_replace(runner *r, uint32_t index) {
    const child old = r->children[index];
    check_id running = (check_id)atomic_load(&old.slot->check);
    uint64_t item = atomic_load(&old.slot->item);
    check_job job = {0};
    if (item >= r->board->fixed_items && !is_needed(running))
        job = (check_job){.resume = true, .item = item, .from = (uint32_t)running + 1};
    if (r->deaths >= DEATHS_MAX) stop(r, "too many children died");
    if (old.verdict != VERDICT_NONE && is_needed(running) &&
        atomic_load(&r->board->deaths[running]) >= CHECK_DEATHS)
        stop(r, "a call that everything needs does not return");
    child_start(r, index, &job);
}

static void child_end(runner *r, uint32_t index) {
    child *c = &r->children[index];
    int wait_status = 0;
    while (waitpid(c->pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
    c->pid = 0;
    (void)close(c->pipe);
    bool good = c->verdict == VERDICT_NONE && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0 &&
                atomic_load(&c->slot->finished);
    int exit_status = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 0;
    if (exit_status == CHECK_EXIT_MEMORY) check_out_of_memory();
    if (exit_status == CHECK_EXIT_DEVICE) /* it has said why */
        atomic_fetch_add(&r->board->deaths[atomic_load(&c->slot->check)], 1);
    else if (!good)
        note_death(r, c, wait_status);
    char printed[200];
    printed_words(c, printed, sizeof printed);
    if (good && printed[0] != '\0') {
        atomic_fetch_add(&r->board->tallies[CHECK_QUIET].failed, 1);
        if (!check_report_add_failure(r->report, CHECK_QUIET, -1, "",
                                      "the plugin prints to stdout or stderr") ||
            !check_report_add_note(r->report, printed))
            check_out_of_memory();
    }
    if (c->output >= 0) (void)close(c->output);
    if (!good && !c->job.plan) child_replace(r, index);
}

static uint64_t resident_bytes(pid_t pid) {
    char path[64], text[128] = "";
    unsigned long long size = 0, resident = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t got = read(file, text, sizeof text - 1);
    (void)close(file);
    if (got <= 0 || sscanf(text, "%llu %llu", &size, &resident) != 2) return 0;
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* A heart that stands still, or memory beyond the limit. */
static void child_watch(const runner *r, child *c, double time) {
    uint64_t beat = atomic_load(&c->slot->beat);
    if (beat != c->beat || atomic_load(&c->slot->call) == CHECK_CALL_NONE) {
        c->beat = beat;
        c->since = time;
    }
    if (c->verdict != VERDICT_NONE) return;
    if (time - c->since > r->options->timeout) c->verdict = VERDICT_HANGS;
    if (resident_bytes(c->pid) > r->options->memory_limit) c->verdict = VERDICT_GROWS;
    if (c->verdict != VERDICT_NONE) (void)kill(c->pid, SIGKILL);
}

/* Until no child is left. */
static void listen_to_children(runner *r) {
    struct pollfd polls[CHECK_WORKERS];
    for (;;) {
        uint32_t living = 0;
        for (uint32_t i = 0; i < r->child_count; i++) {
            polls[i] =
                (struct pollfd){.fd = r->children[i].pid != 0 ? r->children[i].pipe : -1, .events = POLLIN};
            living += r->children[i].pid != 0;
        }
        if (living == 0) return;
        if (poll(polls, r->child_count, POLL_MILLISECONDS) < 0 && errno != EINTR) check_out_of_memory();
        double time = now();
        for (uint32_t i = 0; i < r->child_count; i++) {
            if (r->children[i].pid == 0) continue;
            check_record record;
            if (polls[i].revents & (POLLIN | POLLHUP)) {
                if (check_record_receive(r->children[i].pipe, &record))
                    take_record(r, &record);
                else
                    child_end(r, i);
            } else
                child_watch(r, &r->children[i], time);
        }
        if (r->options->progress != NULL && r->board->items > 0)
            r->options->progress(r->options->context, atomic_load(&r->board->done), r->board->items);
    }
}

/* ---- The run ----------------------------------------------------------------------------------------- */

static void run_planner(runner *r, bool blind) {
    check_job job = {.plan = true, .blind = blind};
    r->child_count = 1;
    child_start(r, 0, &job);
    listen_to_children(r);
}

static void run_children(runner *r) {
    run_planner(r, false);
    if (r->status != KVANT_OK) return;
    if (!r->board->planned) run_planner(r, true);
    if (!r->board->planned || r->status != KVANT_OK) return;
    uint64_t workers = r->options->workers, cpus = (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (workers == 0) workers = r->options->gpu && cpus > DEVICE_WORKERS ? DEVICE_WORKERS : cpus;
    if (workers > CHECK_WORKERS) workers = CHECK_WORKERS;
    if (workers > r->board->items) workers = r->board->items;
    r->child_count = (uint32_t)workers;
    const check_job job = {0};
    for (uint32_t i = 0; i < r->child_count; i++) child_start(r, i, &job);
    listen_to_children(r);
}

static void run_here(runner *r) {
    check_job job = {.plan = true};
    check_worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL) check_out_of_memory();
    worker->options = r->options;
    worker->board = r->board;
    worker->slot = &r->board->slots[0];
    worker->emit = emit_to_report;
    worker->context = r;
    check_worker_run(worker, &job);
    job.plan = false;
    if (r->status == KVANT_OK) check_worker_run(worker, &job);
    free(worker);
}

kvant_status check_run(const check_options *options, check_report *report, kvant_diag *diag) {
    double start = now();
    *report = (check_report){.seed = options->seed};
    check_options filled = *options;
    if (filled.number >= 0) filled.fraction = 1; /* any of them */
    if (filled.memory_limit == 0) filled.memory_limit = memory_default;
    runner *r = calloc(1, sizeof *r);
    check_board *board = check_board_create();
    if (r == NULL || board == NULL) {
        free(r);
        check_board_free(board);
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "there is no memory for the check");
    }
    *r = (runner){.options = &filled, .board = board, .report = report, .diag = diag};
    if (filled.in_process)
        run_here(r);
    else
        run_children(r);
    /* A plugin that kills its process while it loads has not said its name. */
    if (!check_report_set_plugin(report, options->codec, "?", options->codec, "")) check_out_of_memory();
    check_report_finish(report, board);
    report->seconds = now() - start;
    kvant_status status = r->status;
    check_board_free(board);
    free(r);
    if (status != KVANT_OK) check_report_free(report);
    return status;
}
