/* Checks of kvant.gpu/1 that need no device: what plan, pair and upload answer. See check_gpu.h. */
#include "check_gpu.h"
#include "check_promise.h"

#include <ctype.h>
#include <dlfcn.h>
#include <kvant/kvant.h>
#include <stdlib.h>
#include <string.h>

enum { STATE_MOST = 1 << 30 };

static void not_counted(check_worker *worker, check_id id) {
    worker->ran &= ~((uint64_t)1 << id);
}

/* ---- Plan ---------------------------------------------------------------------------------------------- */

/* plan with all that it reads and writes between guard pages. */
static kvant_status guarded_plan(check_worker *worker, const check_case *c, const kvant_layout *layout,
                                 kvant_gpu_plan *plan, kvant_diag *diag) {
    check_buffer setup, input, answer;
    ptrdiff_t offset;
    if (!check_buffer_create(&worker->buffers, &setup, "setup", sizeof(kvant_setup), 8, 0) ||
        !check_buffer_create(&worker->buffers, &input, "layout", sizeof *layout, 8, 0) ||
        !check_buffer_create(&worker->buffers, &answer, "kvant_gpu_plan", sizeof *plan, 8, 0))
        check_out_of_memory();
    memcpy(setup.data, &c->setup, sizeof c->setup);
    memcpy(input.data, layout, sizeof *layout);
    *plan = (kvant_gpu_plan){.struct_size = sizeof *plan};
    memcpy(answer.data, plan, sizeof *plan);
    check_buffer_protect(&setup, true);
    check_buffer_protect(&input, true);
    kvant_status status = check_call_gpu_plan(
        worker, worker->gpu->table, (const kvant_setup *)(const void *)setup.data,
        (const kvant_layout *)(const void *)input.data, (kvant_gpu_plan *)(void *)answer.data, diag);
    memcpy(plan, answer.data, sizeof *plan);
    if (check_buffer_damaged(&answer, &offset))
        check_fail(worker, CHECK_BOUNDS, "plan of kvant.gpu/1 wrote at offset %td of a plan of %zu bytes",
                   offset, answer.size);
    check_buffer_free(&worker->buffers, &answer);
    check_buffer_free(&worker->buffers, &input);
    check_buffer_free(&worker->buffers, &setup);
    return status;
}

/* ".entry NAME" in PTX text. */
static bool has_entry(const char *text, const char *name) {
    size_t length = strlen(name);
    for (const char *at = text; (at = strstr(at, ".entry")) != NULL;) {
        at += strlen(".entry");
        while (isspace((unsigned char)*at)) at++;
        if (strncmp(at, name, length) != 0) continue;
        char next = at[length];
        if (!isalnum((unsigned char)next) && next != '_' && next != '$') return true;
    }
    return false;
}

static bool device_has(const check_gpu *gpu, const char *name) {
    gpu_kernel kernel = NULL;
    if (gpu_device_enter(&gpu->device, NULL) != KVANT_OK) return false;
    gpu_result result = gpu->driver->library_kernel(&kernel, gpu->module.library, name);
    gpu_device_leave(&gpu->device);
    return result == GPU_SUCCESS;
}

static void look_at_name(check_worker *worker, const kvant_gpu_kernel *kernel) {
    const check_gpu *gpu = worker->gpu;
    for (uint32_t i = 0; i < CHECK_GPU_TEXTS && gpu->texts[i] != NULL; i++)
        if (!has_entry(gpu->texts[i], kernel->name))
            check_fail(worker, CHECK_GPU_PLAN, "the plan names kernel %s, and a PTX image has none",
                       kernel->name);
    if (gpu->has_device && !device_has(gpu, kernel->name))
        check_fail(worker, CHECK_GPU_PLAN, "the plan names kernel %s, and the device's image has none",
                   kernel->name);
}

static void look_at_kernels(check_context *context, const kvant_gpu_plan *plan) {
    check_worker *worker = context->worker;
    uint32_t side = context->configuration.setup.side;
    uint64_t scratch[KVANT_GPU_ATTEND + 1] = {0};
    bool offered[KVANT_GPU_ATTEND + 1] = {false};
    for (uint32_t i = 0; i < plan->kernel_count; i++) {
        const kvant_gpu_kernel *k = &plan->kernels[i];
        bool keys = k->call == KVANT_GPU_QUERY || k->call == KVANT_GPU_SCORE;
        bool values = k->call == KVANT_GPU_MIX || k->call == KVANT_GPU_FINISH;
        if (k->call == KVANT_GPU_ATTEND)
            check_fail(worker, CHECK_GPU_PLAN,
                       "kernel %s attends: that one comes from pair, never from a plan", k->name);
        if ((keys && side != KVANT_SIDE_KEY) || (values && side != KVANT_SIDE_VALUE))
            check_fail(worker, CHECK_GPU_PLAN, "kernel %s serves %s, which is a matter of the other side",
                       k->name, check_gpu_call_name(k->call));
        if (offered[k->call] && scratch[k->call] != k->job_scratch_bytes)
            check_fail(worker, CHECK_GPU_PLAN, "the kernels of %s ask for %llu and for %llu bytes a job",
                       check_gpu_call_name(k->call), (unsigned long long)scratch[k->call],
                       (unsigned long long)k->job_scratch_bytes);
        offered[k->call] = true;
        scratch[k->call] = k->job_scratch_bytes;
        look_at_name(worker, k);
    }
    if (!offered[KVANT_GPU_DECODE]) check_fail(worker, CHECK_GPU_PLAN, "the plan has no kernel that decodes");
    if (plan->state_bytes > STATE_MOST)
        check_fail(worker, CHECK_GPU_PLAN, "state_bytes is %llu: more than 1 GiB",
                   (unsigned long long)plan->state_bytes);
}

static void look_at_refusal(check_context *context, kvant_status status, const kvant_diag *diag) {
    check_worker *worker = context->worker;
    const char *fault = check_refusal_fault(status, diag);
    if (fault != NULL)
        check_fail(worker, CHECK_GPU_PLAN, "plan of kvant.gpu/1 refuses with status %d, and %s", status,
                   fault);
    if (worker->options->gpu) context->over = true;
    if (check_has_failed(worker, CHECK_GPU_PLAN) || !(worker->ran >> CHECK_GPU_PLAN & 1)) return;
    not_counted(worker, CHECK_GPU_PLAN);
    atomic_fetch_add(&worker->board->tallies[CHECK_GPU_PLAN].refused, 1);
}

void check_gpu_plan(check_context *context) {
    check_worker *worker = context->worker;
    check_case copy;
    if (worker->gpu == NULL) (void)check_gpu_begin(worker, NULL);
    if (worker->gpu->table == NULL) {
        not_counted(worker, CHECK_GPU_PLAN);
        return;
    }
    kvant_gpu_plan *plan = &context->kernels, again;
    kvant_diag diag = check_fresh_diag();
    kvant_status status = guarded_plan(worker, &context->configuration, &context->layout, plan, &diag);
    if (!check_case_copy(&context->configuration, &copy)) check_out_of_memory();
    kvant_status again_status = guarded_plan(worker, &copy, &context->layout, &again, NULL);
    check_case_free(&copy);
    if (again_status != status)
        check_fail(
            worker, CHECK_GPU_PLAN,
            "plan of kvant.gpu/1 answers %d, then %d to an equal setup at another address, without a diag",
            status, again_status);
    if (status != KVANT_OK) {
        look_at_refusal(context, status, &diag);
        return;
    }
    if (!check_diag_is_fresh(&diag))
        check_fail(worker, CHECK_GPU_PLAN, "plan of kvant.gpu/1 accepted and wrote to the diag");
    if (memcmp(&again, plan, sizeof again) != 0)
        check_fail(worker, CHECK_GPU_PLAN,
                   "plan of kvant.gpu/1 says something else to an equal setup at another address");
    if (plan->struct_size != sizeof *plan)
        check_fail(worker, CHECK_GPU_PLAN, "kvant_gpu_plan.struct_size became %u", plan->struct_size);
    diag = (kvant_diag){.struct_size = sizeof diag};
    if (gpu_plan_vet(plan, &diag) != KVANT_OK)
        check_fail(worker, CHECK_GPU_PLAN, "%s", diag.message);
    else
        look_at_kernels(context, plan);
    context->has_kernels = !check_has_failed(worker, CHECK_GPU_PLAN);
    if (worker->options->gpu && !context->has_kernels) context->over = true;
}

/* ---- Upload -------------------------------------------------------------------------------------------- */

/* The words of the state that are addresses in memory of the host: of the codec's own state, or of anything
 * that the dynamic linker loaded. Chance makes a number look like one once in 2^40 or so. */
static bool find_address(const check_buffer *bytes, const check_subject *subject, size_t *offset) {
    uintptr_t from = (uintptr_t)subject->state.data, near = (uintptr_t)subject->worker->plugin;
    for (size_t i = 0; i + sizeof(uint64_t) <= bytes->size; i += 4) {
        uint64_t word;
        Dl_info info;
        memcpy(&word, bytes->data + i, sizeof word);
        bool in_state = word >= from && word < from + subject->state.size;
        bool in_object = (word ^ near) >> 36 == 0 && dladdr((const void *)(uintptr_t)word, &info) != 0;
        if (!in_state && !in_object) continue;
        *offset = i;
        return true;
    }
    return false;
}

static bool upload(check_context *context, const check_subject *subject, check_buffer *bytes) {
    check_worker *worker = context->worker;
    ptrdiff_t offset;
    if (!check_buffer_create(&worker->buffers, bytes, "device state", (size_t)context->kernels.state_bytes, 8,
                             0))
        check_out_of_memory();
    check_buffer_fill(bytes, 0);
    kvant_gpu_plan plan = context->kernels;
    kvant_status status =
        check_call_gpu_upload(worker, worker->gpu->table, subject->state.data, &plan, bytes->data);
    if (check_buffer_damaged(bytes, &offset))
        check_fail(worker, CHECK_BOUNDS, "upload wrote at offset %td of a state of %zu bytes", offset,
                   bytes->size);
    if (status != KVANT_OK)
        check_fail(worker, CHECK_GPU_UPLOAD, "upload returned %d (%s)", status, kvant_status_text(status));
    return status == KVANT_OK;
}

void check_gpu_upload(check_context *context) {
    check_worker *worker = context->worker;
    check_subject other;
    check_buffer first, second;
    size_t at;
    if (!context->has_kernels || context->kernels.state_bytes == 0) {
        not_counted(worker, CHECK_GPU_UPLOAD);
        return;
    }
    if (check_subject_open(worker, &other, &context->configuration.setup, &context->layout, NULL) != KVANT_OK)
        return; /* the second time: check "open" is about that */
    bool good = upload(context, &context->subject, &first);
    good = upload(context, &other, &second) && good;
    size_t size = first.size;
    if (good && memcmp(first.data, second.data, size) != 0) {
        for (at = 0; first.data[at] == second.data[at];) at++;
        check_fail(worker, CHECK_GPU_UPLOAD,
                   "uploads from two equal codecs differ, first at byte %zu of %zu: %02x and %02x", at, size,
                   first.data[at], second.data[at]);
    } else if (good && (find_address(&first, &context->subject, &at) || find_address(&second, &other, &at))) {
        check_fail(worker, CHECK_GPU_UPLOAD, "the device's state holds an address of the host at byte %zu",
                   at);
    }
    check_buffer_free(&worker->buffers, &second);
    check_buffer_free(&worker->buffers, &first);
    check_subject_close(&other);
}
