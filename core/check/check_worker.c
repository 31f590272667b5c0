/* The life of a worker: load, then item after item. See check_worker.h. */
#include "check_worker.h"

#include "check_context.h"
#include "check_cover.h"
#include "check_gpu.h"
#include "check_promise.h"

#include <kvant/kvant.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

/* The one thing that a signal handler can reach. Only children have it. */
static check_worker *watched;
static pthread_t watched_thread;

static void on_fault(int number, siginfo_t *info, void *context) {
    check_worker *worker = watched;
    if (worker != NULL && (number == SIGSEGV || number == SIGBUS)) {
        check_fault *fault = &worker->slot->fault;
        const check_buffer *buffer = check_buffers_find(&worker->buffers, info->si_addr);
        fault->address = (uint64_t)(uintptr_t)info->si_addr;
        fault->is_write = -1;
#if defined(__x86_64__)
        fault->is_write = ((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] >> 1 & 1;
#else
        (void)context;
#endif
        if (buffer != NULL) {
            (void)strncpy(fault->buffer, buffer->name, sizeof fault->buffer - 1);
            fault->offset = (int64_t)(fault->address - (uint64_t)(uintptr_t)buffer->data);
            fault->size = buffer->size;
            fault->read_only = buffer->read_only;
        }
    }
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

#if defined(__x86_64__)
enum { MXCSR_CONTROL = 0xffc0, MXCSR_HOST = 0x1f80, SAMPLE_MICROSECONDS = 500 };

/* What the thread that was interrupted computes with. */
static void on_alarm(int number, siginfo_t *info, void *context) {
    check_worker *worker = watched;
    const ucontext_t *interrupted = context;
    (void)number;
    (void)info;
    if (worker == NULL || !worker->inside || !pthread_equal(pthread_self(), watched_thread)) return;
    if (interrupted->uc_mcontext.fpregs == NULL) return;
    uint32_t control = interrupted->uc_mcontext.fpregs->mxcsr & MXCSR_CONTROL;
    if (control != MXCSR_HOST) worker->disturbed = control;
}

/* A call may change the environment and put it back: only a look from outside, now and then, sees that. */
static void sample_environment(void) {
    struct sigaction action = {.sa_sigaction = on_alarm, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    const struct itimerval interval = {{0, SAMPLE_MICROSECONDS}, {0, SAMPLE_MICROSECONDS}};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGALRM, &action, NULL);
    (void)setitimer(ITIMER_REAL, &interval, NULL);
}
#else
static void sample_environment(void) {}
#endif

void check_worker_watch_signals(check_worker *worker) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    size_t size = 1 << 16;
    void *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t alternate = {.ss_sp = stack, .ss_size = size};
    if (stack != MAP_FAILED) (void)sigaltstack(&alternate, NULL);
    watched = worker;
    watched_thread = pthread_self();
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
        (void)sigemptyset(&action.sa_mask);
        (void)sigaction(signals[i], &action, NULL);
    }
    /* A driver need not like signals between its calls. */
    if (!worker->options->gpu) sample_environment();
}

bool check_has_failed(const check_worker *worker, check_id id) {
    return worker->failed >> id & 1;
}

bool check_is_wanted(const check_worker *worker, check_id id) {
    return !worker->options->only_one || worker->options->only == id;
}

static void emit(check_worker *worker, uint32_t kind, check_id id, const char *format, va_list arguments) {
    check_record record = {.kind = kind, .id = id, .number = worker->number};
    char message[2048];
    (void)vsnprintf(message, sizeof message, format, arguments);
    if (kind == CHECK_RECORD_FAILURE) check_record_add(&record, worker->slot->text);
    check_record_add(&record, message);
    worker->emit(worker->context, &record);
}

void check_fail(check_worker *worker, check_id id, const char *format, ...) {
    if (!check_is_wanted(worker, id) || check_has_failed(worker, id)) return;
    /* Counted at once: the next thing that happens may be the end of this process. */
    atomic_fetch_add(&worker->board->tallies[id].failed, 1);
    worker->failed |= (uint64_t)1 << id;
    va_list arguments;
    va_start(arguments, format);
    emit(worker, CHECK_RECORD_FAILURE, id, format, arguments);
    va_end(arguments);
}

void check_note(check_worker *worker, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    emit(worker, CHECK_RECORD_NOTE, CHECK_COUNT, format, arguments);
    va_end(arguments);
}

static void emit_refused(check_worker *worker, kvant_status status, const kvant_diag *diag) {
    check_record record = {.kind = CHECK_RECORD_REFUSED, .id = CHECK_LOAD, .number = -1, .status = status};
    check_record_add(&record, diag->file);
    check_record_add(&record, diag->message);
    worker->emit(worker->context, &record);
}

static bool is_file(const char *codec) {
    size_t length = strlen(codec);
    return strchr(codec, '/') != NULL || (length > 3 && strcmp(codec + length - 3, ".so") == 0);
}

static bool load(check_worker *worker) {
    kvant_diag diag = {.struct_size = sizeof diag};
    const char *codec = worker->options->codec;
    atomic_store(&worker->slot->check, CHECK_LOAD);
    atomic_store(&worker->slot->call, CHECK_CALL_LOAD);
    kvant_status status = is_file(codec) ? kvant_plugin_open_file(codec, &worker->plugin, &diag)
                                         : kvant_plugin_find(codec, &worker->plugin, &diag);
    if (status == KVANT_OK) {
        worker->file = kvant_plugin_file(worker->plugin);
        status = check_axes_create(worker->plugin->descriptor, worker->options, &worker->axes, &diag);
    }
    atomic_store(&worker->slot->call, CHECK_CALL_NONE);
    if (status == KVANT_OK && worker->options->gpu) status = check_gpu_begin(worker, &diag);
    if (status != KVANT_OK) {
        emit_refused(worker, status, &diag);
        return false;
    }
    worker->globals = check_globals_digest(worker);
    worker->threads = check_thread_count();
    return true;
}

static void emit_plugin(check_worker *worker) {
    check_record record = {.kind = CHECK_RECORD_PLUGIN, .number = -1};
    check_record_add(&record, worker->plugin->descriptor->name);
    check_record_add(&record, worker->plugin->descriptor->version);
    check_record_add(&record, worker->file);
    char device[256];
    check_gpu_device_text(worker, device, sizeof device);
    check_record_add(&record, device);
    worker->emit(worker->context, &record);
}

void check_item_begin(check_worker *worker, int64_t number) {
    worker->number = number;
    worker->failed = 0;
    worker->ran = 0;
    worker->slot->text[0] = '\0';
}

/* Every thread is a directory. ThreadSanitizer has threads of its own, which come late. */
uint64_t check_thread_count(void) {
#if defined(__SANITIZE_THREAD__)
    return 0;
#else
    struct stat tasks;
    return stat("/proc/self/task", &tasks) == 0 ? (uint64_t)tasks.st_nlink : 0;
#endif
}

void check_item_end(check_worker *worker) {
    /* A driver starts threads of its own when it likes. */
    if (check_thread_count() > worker->threads && !worker->options->gpu)
        check_fail(worker, CHECK_QUIET, "a thread is left that the check did not start");
    for (unsigned id = 0; id < CHECK_COUNT; id++)
        if ((worker->ran & ~worker->failed) >> id & 1)
            atomic_fetch_add(&worker->board->tallies[id].passed, 1);
    worker->ran = worker->failed = 0;
    worker->number = -1;
    worker->slot->text[0] = '\0';
}

bool check_begin(check_worker *worker, check_id id) {
    /* What is watched all the time is watched in all checks. */
    bool watching = worker->options->only_one && worker->options->only >= CHECK_BOUNDS;
    if (!check_is_wanted(worker, id) && !watching) return false;
    if (atomic_load(&worker->board->deaths[id]) >= CHECK_DEATHS) {
        atomic_fetch_add(&worker->board->tallies[id].skipped, 1);
        return false;
    }
    worker->running = id;
    if (check_is_wanted(worker, id)) worker->ran |= (uint64_t)1 << id;
    atomic_store(&worker->slot->check, id);
    return true;
}

static void plan_items(check_worker *worker, bool blind) {
    emit_plugin(worker);
    if (!blind) check_plugin(worker);
    /* Broken tables have been named; there is nothing to run. */
    bool gpu = worker->options->gpu, runs = !gpu || worker->gpu->has_device;
    check_item_begin(worker, -1);
    if (runs) check_cover(worker, blind);
    check_item_end(worker);
    check_board *board = worker->board;
    board->option_items = gpu ? 0 : worker->plugin->descriptor->param_count;
    board->fixed_items = gpu ? 0 : board->option_items + 1;
    board->items = board->fixed_items + (runs ? check_cover_count(worker) : 0);
    board->planned = 1;
}

static void run_item(check_worker *worker, uint64_t item, uint32_t from) {
    const check_board *board = worker->board;
    atomic_store(&worker->slot->item, item);
    if (item < board->option_items) {
        check_option(worker, (uint32_t)item);
    } else if (item < board->fixed_items) {
        if (worker->options->setting_count == 0) check_bands(worker);
    } else {
        check_configuration(worker, item - board->fixed_items, from);
    }
    atomic_fetch_add(&worker->board->done, 1);
}

static void work(check_worker *worker, const check_job *job) {
    if (job->plan) {
        plan_items(worker, job->blind);
        return;
    }
    if (job->resume) run_item(worker, job->item, job->from);
    const check_options *options = worker->options;
    for (;;) {
        uint64_t item = atomic_fetch_add(&worker->board->next, 1);
        if (item >= worker->board->items) break;
        bool fixed = item < worker->board->fixed_items;
        if (options->number >= 0 && (fixed || item - worker->board->fixed_items != (uint64_t)options->number))
            continue;
        run_item(worker, item, 0);
    }
}

void check_worker_run(check_worker *worker, const check_job *job) {
    worker->number = -1;
    if (load(worker)) work(worker, job);
    check_gpu_end(worker);
}
