/* See driver_bed.h. */
#include "driver_bed.h"

#include <stdio.h>
#include <string.h>

/* %d1 is the thread's own float. */
#define KERNEL(name, body)                                                                                   \
    ".visible .entry " name "(.param .u64 x, .param .u32 n)\n{\n"                                            \
    ".reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .f32 %f<4>;\n"                                    \
    "ld.param.u64 %d0, [x]; ld.param.u32 %r0, [n];\n"                                                        \
    "mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mad.lo.u32 %r1, %r2, %r3, %r1;\n"     \
    "setp.ge.u32 %p, %r1, %r0; @%p ret;\n"                                                                   \
    "mul.wide.u32 %d1, %r1, 4; add.u64 %d1, %d0, %d1;\n" body "\nret;\n}\n"

#define LOAD  "ld.global.f32 %f0, [%d1]; "
#define STORE "st.global.f32 [%d1], %f0;"

/* clang-format off */
const char bed_ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
    KERNEL("increase", LOAD "add.f32 %f0, %f0, 0f3F800000; " STORE)
    KERNEL("twice", LOAD "add.f32 %f0, %f0, %f0; " STORE)
    KERNEL("stray", "mov.f32 %f0, 0f3F800000;\nst.global.f32 [%d1+4], %f0;")
    KERNEL("unwritten", ".shared .align 4 .b8 row[4];\nld.shared.f32 %f0, [row]; " STORE)
    KERNEL("never", "");
/* clang-format on */

static char said[16384], last_said[16384];

static void keep(const char *text) {
    size_t length = strlen(said);
    (void)snprintf(said + length, sizeof said - length, "%s", text);
}

const char *bed_said(void) {
    memcpy(last_said, said, sizeof said);
    said[0] = '\0';
    return last_said;
}

static void function(driver_bed *bed, gpu_function *function, const char *name) {
    gpu_kernel kernel = NULL;
    WORKS(sim_library_kernel(&kernel, bed->library, name));
    WORKS(sim_kernel_function(function, kernel));
}

static void floats(gpu_address *address) {
    WORKS(sim_memory_alloc(address, BED_BYTES));
    WORKS(sim_memory_set(*address, 0, BED_BYTES, NULL));
    WORKS(sim_stream_synchronize(NULL));
}

static float *page_locked(void) {
    void *memory = NULL;
    WORKS(sim_host_alloc(&memory, BED_BYTES, 0));
    return memory;
}

void bed_begin(driver_bed *bed, sim_config config) {
    sim_end();
    memset(bed, 0, sizeof *bed);
    (void)bed_said();
    config.major = 8;
    config.checks = PTX_CHECK_ALL;
    config.complain = keep;
    assert_true(sim_begin(&config));
    WORKS(sim_init(0));
    WORKS(sim_primary_retain(&bed->context, 0));
    WORKS(sim_context_push(bed->context));
    WORKS(sim_library_load(&bed->library, bed_ptx, NULL, NULL, 0, NULL, NULL, 0));
    function(bed, &bed->increase, "increase");
    function(bed, &bed->twice, "twice");
    function(bed, &bed->stray, "stray");
    for (int i = 0; i < 2; i++) WORKS(sim_stream_create(&bed->streams[i], 1));
    floats(&bed->x);
    floats(&bed->y);
    bed->pinned = page_locked();
    bed->pinned2 = page_locked();
    assert_string_equal(bed_said(), "");
}

void bed_end(driver_bed *bed) {
    gpu_context popped = NULL;
    assert_string_equal(bed_said(), "");
    for (int i = 0; i < 2; i++) (void)sim_stream_destroy(bed->streams[i]);
    (void)sim_memory_free(bed->x);
    (void)sim_memory_free(bed->y);
    (void)sim_host_free(bed->pinned);
    (void)sim_host_free(bed->pinned2);
    if (bed->library != NULL) (void)sim_library_unload(bed->library);
    WORKS(sim_context_pop(&popped));
    WORKS(sim_primary_release(0));
    const sim_totals left = *sim_state();
    assert_int_equal(left.allocations + left.host_allocations + left.streams + left.events, 0);
    assert_int_equal(left.contexts + left.retained, 0);
    assert_int_equal(left.bytes, 0);
    assert_string_equal(bed_said(), "");
    sim_end();
}

gpu_result bed_launch(gpu_function function_, gpu_address x, gpu_stream stream) {
    uint32_t count = BED_FLOATS;
    void *arguments[] = {&x, &count};
    const gpu_launch_config config = {
        .grid = {(BED_FLOATS + 63) / 64, 1, 1}, .block = {64, 1, 1}, .stream = stream};
    gpu_result result = sim_launch(&config, function_, arguments, NULL);
    x = 0; /* the arguments are the caller's again */
    count = 0;
    return result;
}

float bed_peek(gpu_address x) {
    return *(const float *)(uintptr_t)x;
}
