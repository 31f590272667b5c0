/* Checks across instruction sets and threads. */
#include "check_compare.h"
#include "check_promise.h"

#include "plugin/fpenv.h"

#include <kvant/kvant.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xa5, THREADS = 4, ROUNDS = 4, THREADS_LIMIT = 1 << 17 };

static void compare_level(check_context *context, uint32_t isa) {
    check_worker *worker = context->worker;
    kvant_setup setup = context->configuration.setup;
    kvant_layout layout = {.struct_size = sizeof layout};
    setup.isa = isa;
    check_subject other;
    if (check_call_plan(worker, &setup, &layout, NULL) != KVANT_OK) return; /* check_layout has said so */
    if (layout.isa == context->layout.isa && isa != KVANT_ISA_SCALAR) return;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status status = check_subject_open(worker, &other, &setup, &layout, &diag);
    if (status != KVANT_OK) {
        check_fail(worker, CHECK_ISA, "open refuses isa %s with %d: %.200s", kvant_isa_name(isa), status,
                   diag.message);
        return;
    }
    char situation[64];
    (void)snprintf(situation, sizeof situation, "isa %s against %s", kvant_isa_name(layout.isa),
                   kvant_isa_name(context->layout.isa));
    const check_encoding encoding = {.poison = POISON, .scratch = POISON};
    check_encode_again(context, CHECK_ISA, &other, &encoding, situation);
    const check_decoding whole = check_whole(context, CHECK_ISA);
    check_decode_again(context, &other, &whole, situation);
    check_subject_close(&other);
}

void check_isa(check_context *context) {
    static const uint32_t levels[] = {KVANT_ISA_SCALAR, KVANT_ISA_X86_64_V2, KVANT_ISA_X86_64_V3,
                                      KVANT_ISA_X86_64_V4, KVANT_ISA_AARCH64};
    uint32_t best = kvant_isa();
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        uint32_t isa = levels[i];
        bool can_run = isa == KVANT_ISA_SCALAR || (isa / 32 == best / 32 && isa <= best);
        if (can_run && isa != context->configuration.setup.isa) compare_level(context, isa);
    }
}

/* One thread: encodes and decodes with memory of its own and compares with what the worker's thread got. */
typedef struct thread_job {
    const check_context *context;
    pthread_barrier_t *start;
    const kvant_view *rows;
    check_buffer extent, scratch, output;
    const char *complaint;
} thread_job;

static void thread_decode(thread_job *job) {
    const check_context *context = job->context;
    const kvant_setup *setup = &context->configuration.setup;
    const kvant_extent extent = {.bytes = context->extent.buffer.data,
                                 .size = context->extent.size,
                                 .live_count = setup->block_tokens};
    const kvant_mutable_view rows = {.struct_size = sizeof rows,
                                     .dtype = KVANT_DTYPE_F32,
                                     .data = job->output.data,
                                     .tokens = setup->block_tokens,
                                     .heads = setup->kv_heads,
                                     .head_dim = setup->head_dim,
                                     .token_stride = (int64_t)4 * setup->kv_heads * setup->head_dim,
                                     .head_stride = (int64_t)4 * setup->head_dim,
                                     .channel_stride = 4};
    const kvant_decode_args args = {
        .struct_size = sizeof args, .extent = &extent, .rows = &rows, .scratch = job->scratch.data};
    if (context->worker->plugin->decode(context->subject.state.data, &args) != KVANT_OK)
        job->complaint = "decode failed";
    else if (memcmp(job->output.data, context->decoded, job->output.size) != 0)
        job->complaint = "the floats differ";
}

static void *thread_run(void *argument) {
    thread_job *job = argument;
    const check_context *context = job->context;
    kvant_fp_state saved = kvant_fp_enter();
    (void)pthread_barrier_wait(job->start);
    for (uint32_t round = 0; round < ROUNDS && job->complaint == NULL; round++) {
        kvant_encode_args args = {.struct_size = sizeof args,
                                  .rows = job->rows,
                                  .classes = context->subject.classes,
                                  .extent = job->extent.data,
                                  .scratch = job->scratch.data};
        if (context->worker->plugin->encode(context->subject.state.data, &args) != KVANT_OK)
            job->complaint = "encode failed";
        else if (args.size != context->extent.size ||
                 memcmp(job->extent.data, context->extent.buffer.data, args.size) != 0)
            job->complaint = "the bytes differ";
        else
            thread_decode(job);
    }
    kvant_fp_leave(saved);
    return NULL;
}

static void run_threads(check_context *context, const kvant_view *rows) {
    check_worker *worker = context->worker;
    pthread_t threads[THREADS];
    thread_job jobs[THREADS];
    pthread_barrier_t start;
    (void)pthread_barrier_init(&start, NULL, THREADS);
    for (uint32_t i = 0; i < THREADS; i++) {
        jobs[i] = (thread_job){.context = context, .start = &start, .rows = rows};
        if (!check_buffer_create(&worker->buffers, &jobs[i].extent, "extent",
                                 check_layout_largest(&context->layout), context->layout.alignment, 0) ||
            !check_buffer_create(&worker->buffers, &jobs[i].scratch, "scratch", context->layout.scratch_bytes,
                                 64, 0) ||
            !check_buffer_create(&worker->buffers, &jobs[i].output, "rows", context->elements * 4, 1, 0))
            check_out_of_memory();
    }
    atomic_store(&worker->slot->call, CHECK_CALL_ENCODE);
    for (uint32_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, thread_run, &jobs[i]) != 0) check_out_of_memory();
    for (uint32_t i = 0; i < THREADS; i++) {
        ptrdiff_t offset;
        (void)pthread_join(threads[i], NULL);
        atomic_fetch_add(&worker->slot->beat, 1);
        if (jobs[i].complaint != NULL)
            check_fail(worker, CHECK_THREADS, "with %d threads at once on one state: %s", THREADS,
                       jobs[i].complaint);
        if (check_buffer_damaged(&jobs[i].extent, &offset) ||
            check_buffer_damaged(&jobs[i].scratch, &offset) || check_buffer_damaged(&jobs[i].output, &offset))
            check_fail(worker, CHECK_BOUNDS, "with %d threads at once: a write outside, at offset %td",
                       THREADS, offset);
    }
    atomic_store(&worker->slot->call, CHECK_CALL_NONE);
    for (uint32_t i = 0; i < THREADS; i++) {
        check_buffer_free(&worker->buffers, &jobs[i].extent);
        check_buffer_free(&worker->buffers, &jobs[i].scratch);
        check_buffer_free(&worker->buffers, &jobs[i].output);
    }
    (void)pthread_barrier_destroy(&start);
}

void check_threads(check_context *context) {
    check_worker *worker = context->worker;
    const kvant_setup *setup = &context->configuration.setup;
    if (context->elements > THREADS_LIMIT && worker->number % 8 != 0) {
        worker->ran &= ~((uint64_t)1 << CHECK_THREADS);
        return;
    }
    check_rows rows;
    check_rows_create(worker, &rows, setup->dtype, setup->block_tokens, setup->kv_heads, setup->head_dim,
                      CHECK_FORM_DENSE);
    check_rows_store(&rows, context->values);
    check_buffer_protect(&rows.buffer, true);
    const kvant_view view = check_rows_view(&rows);
    run_threads(context, &view);
    check_rows_free(worker, &rows);
}
