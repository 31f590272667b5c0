/* Calls of the plugin. Each beats the heart that the parent listens to, runs in the floating-point
 * environment that the host promises, and shows whether the plugin left it alone. */
#include "check_worker.h"

#include "plugin/fpenv.h"

#include <stdio.h>
#include <stdlib.h>

#if defined(__x86_64__)
#include <immintrin.h>

/* The control bits of SSE in the low half, the x87 control word in the high half. */
static uint32_t environment(void) {
    uint16_t word;
    __asm__ volatile("fnstcw %0" : "=m"(word));
    return (_mm_getcsr() & 0xffc0u) | (uint32_t)word << 16;
}
#elif defined(__aarch64__)
static uint32_t environment(void) {
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr) : : "memory");
    return (uint32_t)fpcr;
}
#endif

typedef struct guard {
    kvant_fp_state saved;
    uint32_t before;
} guard;

static guard call_begin(check_worker *worker, uint32_t call) {
    atomic_store(&worker->slot->call, call);
    atomic_fetch_add(&worker->slot->beat, 1);
    guard g = {.saved = kvant_fp_enter()};
    g.before = environment();
    worker->inside = 1;
    return g;
}

static void call_end(check_worker *worker, guard g, const char *name) {
    worker->inside = 0;
    uint32_t after = environment();
    kvant_fp_leave(g.saved);
    if (worker->disturbed != 0)
        check_fail(worker, CHECK_ENVIRONMENT, "%s computes with MXCSR %04x, the host sets 1f80", name,
                   worker->disturbed);
    worker->disturbed = 0;
    if (after != g.before)
        check_fail(worker, CHECK_ENVIRONMENT, "%s changed the floating-point control word from %08x to %08x",
                   name, g.before, after);
    atomic_store(&worker->slot->call, CHECK_CALL_NONE);
}

kvant_status check_call_plan(check_worker *worker, const kvant_setup *setup, kvant_layout *layout,
                             kvant_diag *diag) {
    guard g = call_begin(worker, CHECK_CALL_PLAN);
    kvant_status status = worker->plugin->plan(setup, layout, diag);
    call_end(worker, g, "plan");
    return status;
}

kvant_status check_call_open(check_worker *worker, const kvant_setup *setup, const kvant_layout *layout,
                             void *state, kvant_diag *diag) {
    guard g = call_begin(worker, CHECK_CALL_OPEN);
    kvant_status status = worker->plugin->open(setup, layout, state, diag);
    call_end(worker, g, "open");
    return status;
}

void check_call_close(check_worker *worker, void *state) {
    guard g = call_begin(worker, CHECK_CALL_CLOSE);
    worker->plugin->close(state);
    call_end(worker, g, "close");
}

kvant_status check_call_encode(check_worker *worker, const void *state, kvant_encode_args *args) {
    guard g = call_begin(worker, CHECK_CALL_ENCODE);
    kvant_status status = worker->plugin->encode(state, args);
    call_end(worker, g, "encode");
    return status;
}

kvant_status check_call_decode(check_worker *worker, const void *state, const kvant_decode_args *args) {
    guard g = call_begin(worker, CHECK_CALL_DECODE);
    kvant_status status = worker->plugin->decode(state, args);
    call_end(worker, g, "decode");
    return status;
}

const void *check_call_extension(check_worker *worker, const char *id) {
    if (worker->plugin->extension == NULL) return NULL;
    guard g = call_begin(worker, CHECK_CALL_EXTENSION);
    const void *extension = worker->plugin->extension(id);
    call_end(worker, g, "extension");
    return extension;
}

kvant_status check_call_describe(check_worker *worker, const kvant_inspect *inspect, const void *state,
                                 const kvant_extent *extent, uint32_t index, kvant_array *array) {
    guard g = call_begin(worker, CHECK_CALL_INSPECT);
    kvant_status status = inspect->describe(state, extent, index, array);
    call_end(worker, g, "inspect.describe");
    return status;
}

kvant_status check_call_read(check_worker *worker, const kvant_inspect *inspect, const void *state,
                             const kvant_extent *extent, uint32_t index, void *data, void *scratch) {
    guard g = call_begin(worker, CHECK_CALL_INSPECT);
    kvant_status status = inspect->read(state, extent, index, data, scratch);
    call_end(worker, g, "inspect.read");
    return status;
}

kvant_status check_call_gpu_plan(check_worker *worker, const kvant_gpu *gpu, const kvant_setup *setup,
                                 const kvant_layout *layout, kvant_gpu_plan *plan, kvant_diag *diag) {
    guard g = call_begin(worker, CHECK_CALL_GPU_PLAN);
    kvant_status status = gpu->plan(setup, layout, plan, diag);
    call_end(worker, g, "plan of kvant.gpu/1");
    return status;
}

kvant_status check_call_gpu_upload(check_worker *worker, const kvant_gpu *gpu, const void *state,
                                   const kvant_gpu_plan *plan, void *device_state) {
    guard g = call_begin(worker, CHECK_CALL_GPU_UPLOAD);
    kvant_status status = gpu->upload(state, plan, device_state);
    call_end(worker, g, "upload");
    return status;
}

kvant_status check_call_gpu_pair(check_worker *worker, const kvant_gpu *gpu, const kvant_setup *key,
                                 const kvant_setup *value, kvant_gpu_kernel *kernel, kvant_diag *diag) {
    guard g = call_begin(worker, CHECK_CALL_GPU_PAIR);
    kvant_status status = gpu->pair(key, value, kernel, diag);
    call_end(worker, g, "pair");
    return status;
}

kvant_status check_fit(check_worker *worker, check_case *c, kvant_layout *layout, kvant_diag *diag) {
    kvant_status status = KVANT_OK;
    for (uint32_t round = 0; round < 3; round++) {
        *layout = (kvant_layout){.struct_size = sizeof *layout};
        status = check_call_plan(worker, &c->setup, layout, diag);
        if (status != KVANT_OK && status != KVANT_ERROR_BLOCK_TOKENS) return status;
        uint32_t tokens = check_case_block(c, layout->block_multiple);
        if (tokens == c->setup.block_tokens) break;
        c->setup.block_tokens = tokens;
    }
    return status;
}

void check_out_of_memory(void) {
    (void)fputs("kvant check: the system has no memory left\n", stderr);
    _Exit(CHECK_EXIT_MEMORY);
}
