/* Calls of the simulated device: what it gives, and what it refuses and says so. */
#include "driver_bed.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static driver_bed bed;
#define A bed.streams[0]

static const sim_config eager = {.deferred = false};

/* ---- Devices and contexts ------------------------------------------------------------------------------ */

static void devices(void **state) {
    int count = 0, value = 0;
    gpu_device_number device = -1;
    gpu_context context = NULL;
    char name[8];
    size_t bytes = 0;
    (void)state;
    sim_end();
    assert_int_equal(sim_device_count(&count), 3); /* before it began */
    bed_begin(&bed, (sim_config){.memory_most = 1 << 20});
    WORKS(sim_device_count(&count));
    assert_int_equal(count, 1);
    WORKS(sim_device_get(&device, 0));
    assert_int_equal(sim_device_get(&device, 1), 101);
    assert_int_equal(sim_device_get(&device, -1), 101);
    assert_int_equal(sim_primary_retain(&context, 1), 101);
    WORKS(sim_device_name(name, sizeof name, 0));
    assert_string_equal(name, "PTX int");
    WORKS(sim_device_memory(&bytes, 0));
    assert_int_equal(bytes, 1 << 20);
    WORKS(sim_device_attribute(&value, GPU_ATTRIBUTE_SHARED_OPTIN, 0));
    assert_int_equal(value, 163 << 10);
    assert_int_equal(sim_device_attribute(&value, 999, 0), GPU_ERROR_INVALID_VALUE);
    kvant_assert_contains(bed_said(), "attribute 999");
    bed_end(&bed);
    assert_true(sim_begin(&(sim_config){.no_device = true}));
    assert_int_equal(sim_init(0), GPU_ERROR_NO_DEVICE);
    assert_int_equal(sim_device_get(&device, 0), 101);
    sim_end();
}

static void contexts(void **state) {
    gpu_context context = NULL;
    gpu_address address = 0;
    gpu_stream null = NULL;
    (void)state;
    bed_begin(&bed, eager);
    WORKS(sim_context_get(&context));
    assert_ptr_equal(context, bed.context);
    WORKS(sim_context_pop(&context));
    assert_ptr_equal(context, bed.context);
    WORKS(sim_context_get(&context));
    assert_null(context);
    assert_int_equal(sim_memory_alloc(&address, 1), 201);
    kvant_assert_contains(bed_said(), "cuMemAlloc without a current context");
    assert_int_equal(sim_context_pop(&context), 201);
    assert_int_equal(sim_stream_context(null, &context), 201);
    (void)bed_said();
    WORKS(sim_stream_context(A, &context));
    assert_ptr_equal(context, bed.context);
    WORKS(sim_context_set(context));
    WORKS(sim_context_set(context)); /* takes the place of what was current */
    WORKS(sim_context_pop(NULL));
    WORKS(sim_primary_release(0));
    assert_int_equal(sim_context_push(context), 201);
    kvant_assert_contains(bed_said(), "nobody retains");
    assert_int_equal(sim_primary_release(0), 201);
    assert_int_equal(sim_context_push((gpu_context)(void *)&address), 201);
    (void)bed_said();
    WORKS(sim_primary_retain(&context, 0));
    WORKS(sim_context_push(context));
    bed_end(&bed);
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static void memory_limit(void **state) {
    gpu_address first = 0, second = 0;
    size_t left = 0, total = 0;
    (void)state;
    bed_begin(&bed, (sim_config){.memory_most = 1 << 20});
    WORKS(sim_memory_info(&left, &total));
    assert_int_equal(total, 1 << 20);
    assert_int_equal(left, (1 << 20) - 2 * BED_BYTES);
    assert_int_equal(sim_memory_alloc(&first, left + 1), GPU_ERROR_OUT_OF_MEMORY);
    assert_true(first == 0);
    assert_int_equal(sim_memory_alloc(&first, SIZE_MAX), GPU_ERROR_OUT_OF_MEMORY);
    assert_int_equal(sim_memory_alloc(&first, 0), GPU_ERROR_INVALID_VALUE);
    WORKS(sim_memory_alloc(&first, left));
    assert_int_equal(sim_memory_alloc(&second, 1), GPU_ERROR_OUT_OF_MEMORY);
    assert_int_equal(sim_state()->bytes_most, 1 << 20);
    assert_true(first % 256 == 0);
    const unsigned char *bytes = (const unsigned char *)(uintptr_t)first;
    assert_int_equal(bytes[0], 0xcb); /* nothing that anybody wrote */
    assert_int_equal(bytes[left - 1], 0xcb);
    assert_int_equal(((const unsigned char *)bed.pinned)[BED_BYTES - 1], 0xa5);
    WORKS(sim_memory_free(first));
    WORKS(sim_memory_alloc(&second, 1));
    WORKS(sim_memory_free(second));
    WORKS(sim_memory_free(0));
    assert_int_equal(sim_memory_free(second), GPU_ERROR_INVALID_VALUE);
    kvant_assert_contains(bed_said(), "which is no allocation");
    assert_int_equal(sim_memory_free(bed.x + 256), GPU_ERROR_INVALID_VALUE);
    assert_int_equal(sim_host_free(bed.pinned + 1), GPU_ERROR_INVALID_VALUE);
    kvant_assert_contains(bed_said(), "is no page-locked memory");
    bed_end(&bed);
}

static void copies_out_of_bounds(void **state) {
    float host[BED_FLOATS + 1] = {0};
    (void)state;
    bed_begin(&bed, eager);
#define REFUSES(call, says)                                                                                  \
    do {                                                                                                     \
        assert_int_equal((call), GPU_ERROR_INVALID_VALUE);                                                   \
        kvant_assert_contains(bed_said(), says);                                                             \
    } while (0)
    REFUSES(sim_copy_to_device(bed.x, host, BED_BYTES + 1, A),
            "cuMemcpyHtoDAsync: 1025 bytes from byte 0 on of an allocation of 1024");
    REFUSES(sim_copy_to_host(host, bed.x + 4, BED_BYTES, A),
            "cuMemcpyDtoHAsync: 1024 bytes from byte 4 on of an allocation of 1024");
    REFUSES(sim_copy_on_device(bed.x, bed.y + 1, BED_BYTES, A), "cuMemcpyDtoDAsync: 1024 bytes from byte 1");
    REFUSES(sim_copy_on_device(bed.x + 8, bed.x, 16, A), "16 bytes over each other");
    REFUSES(sim_memory_set(bed.x + BED_BYTES, 0, 1, A), "cuMemsetD8Async: 1 bytes at 0x");
    REFUSES(sim_copy_to_device(12345, host, 4, A), "4 bytes at 0x3039, which is no device memory");
    REFUSES(sim_copy_to_device(bed.x, bed.pinned + 1, BED_BYTES, A),
            "1024 bytes from byte 4 on of page-locked memory of 1024");
    REFUSES(sim_copy_to_host(bed.pinned + 1, bed.x, BED_BYTES, A), "page-locked memory of 1024");
    REFUSES(sim_copy_to_device(bed.x, (void *)(uintptr_t)bed.y, 4, A), "is no memory of the host");
    REFUSES(sim_copy_to_host_now(NULL, bed.y, 4), "is no memory of the host");
    WORKS(sim_copy_to_device(bed.x, NULL, 0, A));
    host[0] = 3;
    WORKS(sim_copy_to_device_now(bed.x, host, BED_BYTES));
    WORKS(sim_copy_on_device(bed.x + 256, bed.x, 256, A));
    WORKS(sim_memory_set_now(bed.x, 0x40, 4));
    WORKS(sim_copy_to_host_now(host, bed.x, BED_BYTES));
    const uint32_t set = 0x40404040;
    kvant_assert_bytes(host, &set, sizeof set);
    assert_true(host[64] == 3);
    bed_end(&bed);
}

/* ---- Launches ------------------------------------------------------------------------------------------ */

static void launches(void **state) {
    uint32_t count = BED_FLOATS;
    int value = 0;
    (void)state;
    bed_begin(&bed, (sim_config){.resident = 5});
    gpu_address x = bed.x;
    void *arguments[] = {&x, &count};
    const gpu_launch_config good = {.grid = {4, 1, 1}, .block = {64, 1, 1}, .stream = A};
    gpu_launch_config config = good;
#define LAUNCH_REFUSES(change, result, says)                                                                 \
    do {                                                                                                     \
        config = good;                                                                                       \
        change;                                                                                              \
        assert_int_equal(sim_launch(&config, bed.increase, arguments, NULL), result);                        \
        kvant_assert_contains(bed_said(), says);                                                             \
    } while (0)
    LAUNCH_REFUSES(config.grid[1] = 0, 1, "a grid of (4,0,1) blocks of (64,1,1)");
    LAUNCH_REFUSES(config.block[0] = 2048, 1, "blocks of (2048,1,1)");
    LAUNCH_REFUSES(config.block[1] = 17, 1, "1088 threads; it allows 1024");
    LAUNCH_REFUSES(config.shared_bytes = (48 << 10) + 1, 1,
                   "49153 bytes of dynamic shared memory; 49152 were");
    LAUNCH_REFUSES(config.attribute_count = 1, 801, "attributes are not simulated");
    assert_int_equal(sim_launch(&good, bed.increase, NULL, NULL), 1);
    assert_int_equal(sim_launch(&good, bed.increase, NULL, arguments), 801);
    assert_int_equal(sim_launch(&good, (gpu_function)(void *)&x, arguments, NULL), 400);
    (void)bed_said();
    WORKS(sim_occupancy(&value, bed.increase, 128, 49152));
    assert_int_equal(value, 5);
    WORKS(sim_occupancy(&value, bed.increase, 128, 49153));
    assert_int_equal(value, 0);
    assert_int_equal(sim_function_set_attribute(bed.increase, 8, (163 << 10) + 1), 1);
    kvant_assert_contains(bed_said(), "a block has 166912");
    WORKS(sim_function_set_attribute(bed.increase, 8, 163 << 10));
    WORKS(sim_occupancy(&value, bed.increase, 128, 163 << 10));
    assert_int_equal(value, 5);
    config = good;
    config.shared_bytes = 163 << 10;
    WORKS(sim_launch(&config, bed.increase, arguments, NULL));
    assert_int_equal(sim_state()->last.grid[0], 4);
    WORKS(sim_launch_plain(bed.increase, 4, 1, 1, 64, 1, 1, 0, A, arguments, NULL));
    assert_true(bed_peek(bed.x) == 2 && bed_peek(bed.x + BED_BYTES - 4) == 2);
    WORKS(sim_function_attribute(&value, 0, bed.increase));
    assert_int_equal(value, 1024);
    bed_end(&bed);
}

/* A kernel's defect is reported whole, and every call returns its error from then on. */
static void defect(void **state) {
    gpu_address more = 0;
    (void)state;
    for (int i = 0; i < 2; i++) {
        bed_begin(&bed, (sim_config){.deferred = i == 1});
        gpu_result result = bed_launch(bed.stray, bed.x, A);
        if (i == 1) {
            WORKS(result);
            assert_string_equal(bed_said(), "");
            result = sim_stream_synchronize(A);
        }
        assert_int_equal(result, 719);
        const char *said = bed_said();
        kvant_assert_contains(said, "stray failed: a grid of (4,1,1) blocks of (64,1,1) threads, ");
        kvant_assert_contains(said,
                              "global memory out of bounds: block (3,0,0) thread (63,0,0) writes 4 bytes");
        kvant_assert_contains(said, "0 bytes behind allocation 1 (1024 bytes)");
        kvant_assert_contains(said, "PTX image 1:");
        kvant_assert_contains(said, "st.global.f32 [%d1+4], %f0;");
        assert_int_equal(bed_launch(bed.increase, bed.x, A), 719);
        assert_int_equal(sim_memory_alloc(&more, 4), 719);
        assert_int_equal(sim_stream_synchronize(A), 719);
        assert_int_equal(sim_memory_free(bed.y), 719);
        assert_int_equal(sim_state()->allocations, 1); /* freed all the same */
        bed.y = 0;
        bed_end(&bed);
    }
}

/* ---- Code ---------------------------------------------------------------------------------------------- */

#define HEAD(target) ".version 8.0\n.target " target "\n.address_size 64\n"

static gpu_result load(gpu_library *library, const char *text) {
    return sim_library_load(library, text, NULL, NULL, 0, NULL, NULL, 0);
}

static void images(void **state) {
    gpu_library library = NULL;
    gpu_kernel kernel = NULL;
    static const unsigned char fatbin[64] = {0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 48};
    (void)state;
    bed_begin(&bed, (sim_config){.folders = "/nonexistent:" KVANT_TEST_BUILD_DIR "/bin"});
    assert_int_equal(load(&library, (const char *)fatbin), GPU_ERROR_NO_BINARY_FOR_GPU);
    kvant_assert_contains(bed_said(), "set KVANT_PTX_FOLDER");
    assert_int_equal(load(&library, HEAD("sm_90") ".visible .entry k()\n{\nret;\n}\n"),
                     GPU_ERROR_INVALID_PTX);
    kvant_assert_contains(bed_said(), "PTX for sm_90 on a device of 8.0");
    assert_int_equal(load(&library, HEAD("sm_75a") ".visible .entry k()\n{\nret;\n}\n"),
                     GPU_ERROR_INVALID_PTX);
    kvant_assert_contains(bed_said(), "PTX for sm_75a on");
    assert_int_equal(load(&library, HEAD("sm_80") ".visible .entry k()\n{\nfly;\n}\n"),
                     GPU_ERROR_INVALID_PTX);
    kvant_assert_contains(bed_said(), "PTX image 2:6: ");
    assert_int_equal(load(&library, "\177ELF"), GPU_ERROR_INVALID_IMAGE);
    assert_int_equal(load(&library, ""), GPU_ERROR_INVALID_IMAGE);
    assert_int_equal(load(&library, NULL), GPU_ERROR_INVALID_VALUE);
    (void)bed_said();
    assert_int_equal(sim_library_kernel(&kernel, bed.library, "no_such"), GPU_ERROR_NOT_FOUND);
    assert_int_equal(sim_library_kernel(&kernel, (gpu_library)(void *)&bed, "increase"), 400);
    (void)bed_said();
    bed_end(&bed);
}

/* Two modules with a kernel of one name, at once; one goes before the other. */
static void two_modules(void **state) {
    char other[4096];
    gpu_library library = NULL;
    gpu_kernel kernel = NULL;
    gpu_function function = NULL;
    (void)state;
    bed_begin(&bed, eager);
    (void)snprintf(other, sizeof other, "%s", bed_ptx);
    char *add = strstr(other, "0f3F800000");
    assert_non_null(add);
    memcpy(add, "0f41200000", 10); /* adds 10 */
    WORKS(load(&library, other));
    WORKS(sim_library_kernel(&kernel, library, "increase"));
    WORKS(sim_kernel_function(&function, kernel));
    WORKS(bed_launch(function, bed.x, A));
    WORKS(bed_launch(bed.increase, bed.x, A));
    WORKS(bed_launch(function, bed.x, A));
    assert_true(bed_peek(bed.x) == 21);
    WORKS(sim_library_unload(bed.library));
    assert_int_equal(bed_launch(bed.increase, bed.x, A), 400);
    kvant_assert_contains(bed_said(), "the library of increase was unloaded");
    assert_int_equal(sim_library_unload(bed.library), 400);
    (void)bed_said();
    bed.library = NULL;
    WORKS(bed_launch(function, bed.x, A));
    assert_true(bed_peek(bed.x) == 31);
    char *counts = sim_counts();
    assert_non_null(counts);
    kvant_assert_contains(counts, "\nincrease\t4\t16\t"); /* of both */
    free(counts);
    WORKS(sim_library_unload(library));
    bed_end(&bed);
}

/* ---- Names --------------------------------------------------------------------------------------------- */

static void names(void **state) {
    bool is_known = false;
    const char *name = NULL;
    (void)state;
    assert_non_null(sim_find("cuMemAlloc", 12000, &is_known));
    assert_true(is_known);
    assert_null(sim_find("cuMemAlloc_v2", 12000, &is_known));
    assert_false(is_known);
    assert_null(sim_find("cuGraphInstantiate", 11000, &is_known)); /* had other arguments then */
    assert_true(is_known);
    assert_null(sim_find("cuMemAlloc", 2000, &is_known)); /* 32 bits */
    WORKS(sim_error_name(719, &name));
    assert_string_equal(name, "CUDA_ERROR_LAUNCH_FAILED");
    assert_int_equal(sim_error_text(12345, &name), GPU_ERROR_INVALID_VALUE);
    assert_null(name);
    for (size_t i = 0; i < sizeof sim_driver / sizeof(void *); i++) {
        void *member;
        memcpy(&member, (const unsigned char *)&sim_driver + i * sizeof member, sizeof member);
        assert_non_null(member);
    }
}

/* ---- Threads ------------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 60 };

static pthread_barrier_t all_here;

static void *work(void *result) {
    gpu_context context = NULL;
    gpu_stream stream = NULL;
    gpu_address x = 0;
    float got[BED_FLOATS];
    int wrong = sim_context_push(bed.context) != GPU_SUCCESS || sim_stream_create(&stream, 1) != GPU_SUCCESS;
    (void)pthread_barrier_wait(&all_here);
    for (int i = 0; i < ROUNDS && wrong == 0; i++) {
        wrong += sim_memory_alloc(&x, BED_BYTES) != GPU_SUCCESS;
        wrong += sim_memory_set(x, 0, BED_BYTES, stream) != GPU_SUCCESS;
        for (int j = 0; j <= i % 3; j++) wrong += bed_launch(bed.increase, x, stream) != GPU_SUCCESS;
        wrong += sim_copy_to_host(got, x, BED_BYTES, stream) != GPU_SUCCESS;
        wrong += sim_stream_synchronize(stream) != GPU_SUCCESS;
        for (int k = 0; k < BED_FLOATS; k++) wrong += got[k] != (float)(i % 3 + 1);
        wrong += sim_memory_free(x) != GPU_SUCCESS;
    }
    wrong += sim_stream_destroy(stream) != GPU_SUCCESS;
    wrong += sim_context_pop(&context) != GPU_SUCCESS;
    *(int *)result = wrong;
    return NULL;
}

static void threads(void **state) {
    pthread_t workers[THREADS];
    int wrong[THREADS];
    (void)state;
    assert_int_equal(pthread_barrier_init(&all_here, NULL, THREADS), 0);
    for (int i = 0; i < 2; i++) {
        bed_begin(&bed, (sim_config){.deferred = i == 1, .seed = i == 1 ? 9 : 0});
        for (int j = 0; j < THREADS; j++)
            assert_int_equal(pthread_create(&workers[j], NULL, work, &wrong[j]), 0);
        for (int j = 0; j < THREADS; j++) {
            assert_int_equal(pthread_join(workers[j], NULL), 0);
            assert_int_equal(wrong[j], 0);
        }
        bed_end(&bed);
    }
    assert_int_equal(pthread_barrier_destroy(&all_here), 0);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices),      cmocka_unit_test(contexts),
        cmocka_unit_test(memory_limit), cmocka_unit_test(copies_out_of_bounds),
        cmocka_unit_test(launches),     cmocka_unit_test(defect),
        cmocka_unit_test(images),       cmocka_unit_test(two_modules),
        cmocka_unit_test(names),        cmocka_unit_test(threads),
    };
    return kvant_run_tests(tests, argc, argv);
}
