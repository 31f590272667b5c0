/* All checks of one configuration, in order. */
#include "check_cover.h"
#include "check_gpu.h"
#include "check_promise.h"

#include <stdlib.h>
#include <string.h>

/* `needed` steps make what others look at: they run even where they are not wanted. */
typedef struct step {
    check_id id;
    bool needed;
    void (*run)(check_context *context);
} step;

static const step host_steps[] = {{CHECK_PLAN, true, check_plan_is_pure},
                                  {CHECK_LAYOUT, true, check_layout_is_sane},
                                  {CHECK_BLOCKS, false, check_blocks},
                                  {CHECK_OPEN, true, check_open},
                                  {CHECK_CALIBRATE, false, check_calibrate},
                                  {CHECK_ENCODE, true, check_encode},
                                  {CHECK_DECODE, true, check_decode},
                                  {CHECK_FINITE, false, check_finite},
                                  {CHECK_LOSSLESS, false, check_lossless},
                                  {CHECK_ERROR, false, check_error},
                                  {CHECK_BITS, false, check_bits},
                                  {CHECK_REPEAT, false, check_repeat},
                                  {CHECK_VIEWS, false, check_views},
                                  {CHECK_SLICES, false, check_slices},
                                  {CHECK_ROUNDING, false, check_rounding},
                                  {CHECK_ISA, false, check_isa},
                                  {CHECK_THREADS, false, check_threads},
                                  {CHECK_INSPECT, false, check_inspect},
                                  {CHECK_ATTEND, false, check_attend},
                                  {CHECK_ARBITRARY, false, check_arbitrary},
                                  {CHECK_QUIET, false, check_quiet},
                                  {CHECK_GPU_PLAN, true, check_gpu_plan},
                                  {CHECK_GPU_UPLOAD, false, check_gpu_upload}};

/* With a device: the host's part as far as kernels are compared with it. */
static const step device_steps[] = {{CHECK_PLAN, true, check_plan_is_pure},
                                    {CHECK_LAYOUT, true, check_layout_is_sane},
                                    {CHECK_OPEN, true, check_open},
                                    {CHECK_GPU_PLAN, true, check_gpu_plan},
                                    {CHECK_GPU_UPLOAD, false, check_gpu_upload},
                                    {CHECK_GPU_ENCODE, false, check_gpu_encode},
                                    {CHECK_GPU_FINITE, false, check_gpu_finite},
                                    {CHECK_GPU_DECODE, false, check_gpu_decode},
                                    {CHECK_GPU_ATTEND, false, check_gpu_attend},
                                    {CHECK_GPU_SCORE, false, check_gpu_score},
                                    {CHECK_GPU_MIX, false, check_gpu_mix},
                                    {CHECK_GPU_ARBITRARY, false, check_gpu_arbitrary}};

static void context_create(check_context *context, check_worker *worker, uint64_t number) {
    *context = (check_context){.worker = worker};
    check_cover_row(worker, number, &context->row);
    context->random = check_random_stream(worker->options->seed, number + 1000);
    uint64_t seed = check_random_next(&context->random);
    if (!check_case_create(&worker->axes, &context->row, seed, &context->configuration))
        check_out_of_memory();
    check_case_text(&worker->axes, &context->row, &context->configuration, worker->slot->text, CHECK_TEXT);
}

static void context_free(check_context *context) {
    check_worker *worker = context->worker;
    check_sample_free(context);
    check_extent_free(worker, &context->extent);
    check_subject_close(&context->subject);
    check_case_free(&context->configuration);
    free(context->values);
    free(context->decoded);
}

void check_configuration(check_worker *worker, uint64_t number, uint32_t from) {
    check_item_begin(worker, (int64_t)number);
    /* What is watched all the time counts once per configuration. */
    for (unsigned id = CHECK_BOUNDS; id < CHECK_COUNT; id++)
        if (check_is_wanted(worker, (check_id)id)) worker->ran |= (uint64_t)1 << id;
    check_context context;
    context_create(&context, worker, number);
    const step *steps = worker->options->gpu ? device_steps : host_steps;
    size_t count = worker->options->gpu ? sizeof device_steps / sizeof device_steps[0]
                                        : sizeof host_steps / sizeof host_steps[0];
    for (size_t i = 0; i < count && !context.over; i++) {
        check_id id = steps[i].id;
        bool repeated = (uint32_t)id < from; /* done before another child died */
        if (repeated && !steps[i].needed) continue;
        bool counts = !repeated && check_begin(worker, id);
        if (!counts && !steps[i].needed) continue;
        worker->running = id;
        atomic_store(&worker->slot->check, id);
        steps[i].run(&context);
    }
    atomic_store(&worker->slot->check, CHECK_OPEN); /* close */
    context_free(&context);
    if (check_is_wanted(worker, CHECK_GLOBALS) && check_globals_digest(worker) != worker->globals) {
        worker->globals = check_globals_digest(worker);
        check_fail(worker, CHECK_GLOBALS, "the plugin's writable data changed during this configuration");
    }
    check_item_end(worker);
}
