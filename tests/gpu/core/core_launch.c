/* The core's table of images and launches by name (core/gpu/gpu_launch.h): what is refused, and how. */
#include "core_rig.h"

#include "support/test.h"

#include <gpu/core_image.h>
#include <gpu/gpu_launch.h>
#include <string.h>

static kvant_diag diag;

static void begin(gpu_rig *rig, uint32_t architecture) {
    if (core_rig_is_real()) skip();
    core_rig_begin(rig, architecture);
    diag = (kvant_diag){.struct_size = sizeof diag};
}

/* The table keeps to the rules of every plugin's, and serves no codec. */
static void table(void **state) {
    const kvant_gpu *core = core_gpu_table();
    kvant_gpu_plan plan = {.struct_size = sizeof plan};
    (void)state;
    if (core == NULL) skip();
    diag = (kvant_diag){.struct_size = sizeof diag};
    assert_int_equal(gpu_vet(core, &diag), KVANT_OK);
    assert_int_equal(core->plan(NULL, NULL, &plan, &diag), KVANT_ERROR_UNSUPPORTED);
    kvant_assert_contains(diag.message, "no codec's");
    assert_int_equal(plan.kernel_count, 0);
    assert_int_equal(core->upload(NULL, &plan, NULL), KVANT_ERROR_UNSUPPORTED);
}

/* Devices of the architectures that are built for get a cubin, others PTX; every image has every kernel. */
static void images(void **state) {
    static const uint32_t architectures[] = {80, 86, 90, 100, 103, 110, 120};
    static const char *const names[] = {"kvant_core_rows", "kvant_core_attend", "kvant_core_soften",
                                        "kvant_core_merge"};
    (void)state;
    for (uint32_t i = 0; i < sizeof architectures / sizeof architectures[0]; i++) {
        gpu_rig rig;
        gpu_launchable kernel;
        const kvant_gpu_image *image = NULL;
        uint32_t major = architectures[i] / 10, minor = architectures[i] % 10;
        if (core_gpu_table() == NULL || core_rig_is_real()) skip();
        assert_int_equal(gpu_image_choose(core_gpu_table(), major, minor, &image, &diag), KVANT_OK);
        assert_int_equal(image->kind, architectures[i] == 110 ? KVANT_IMAGE_PTX : KVANT_IMAGE_FATBIN);
        if (minor == 3) continue; /* no PTX of its own is left by the build */
        begin(&rig, architectures[i]);
        assert_int_equal(rig.module.is_jit, architectures[i] == 110);
        for (uint32_t k = 0; k < sizeof names / sizeof names[0]; k++)
            assert_int_equal(gpu_launchable_open(&rig.module, names[k], 128, 0, &kernel, &diag), KVANT_OK);
        gpu_rig_end(&rig);
    }
}

static void refused_kernels(void **state) {
    gpu_rig rig;
    gpu_launchable kernel;
    (void)state;
    begin(&rig, 110);
    assert_int_equal(gpu_launchable_open(&rig.module, "kvant_core_raws", 128, 0, &kernel, &diag),
                     KVANT_ERROR_PLUGIN_BROKEN);
    kvant_assert_contains(diag.message, "no kernel kvant_core_raws");
    assert_int_equal(gpu_launchable_open(&rig.module, "kvant_core_rows", 128, 1 << 20, &kernel, &diag),
                     KVANT_ERROR_UNSUPPORTED);
    kvant_assert_contains(diag.message, "needs 1048576 bytes of shared memory");
    gpu_fake_device.resident = -1;
    assert_int_equal(gpu_launchable_open(&rig.module, "kvant_core_rows", 128, 0, &kernel, &diag),
                     KVANT_ERROR_UNSUPPORTED);
    kvant_assert_contains(diag.message, "does not fit onto");
    gpu_fake_device.resident = 0;
    gpu_rig_end(&rig);
}

static void launches(void **state) {
    gpu_rig rig;
    gpu_launchable kernel;
    (void)state;
    begin(&rig, 110);
    uint64_t nothing[2] = {0, 0};
    const kvant_gpu_call call = {.job_count = gpu_rig_to_device(&rig, nothing, sizeof nothing)};
    assert_int_equal(
        gpu_launchable_open(&rig.module, "kvant_core_rows", CORE_ROWS_THREADS, 0, &kernel, &diag), KVANT_OK);
    assert_int_equal(gpu_launchable_grid(&kernel, 1), 1);
    assert_int_equal(gpu_launchable_grid(&kernel, UINT64_MAX), kernel.resident);
    assert_int_equal(gpu_launchable_launch(&rig.module, &kernel, 0, &call, rig.stream, &diag), KVANT_OK);
    assert_int_equal(gpu_fake_device.launches, 0);
    assert_int_equal(gpu_launchable_launch(&rig.module, &kernel, 1ull << 31, &call, rig.stream, &diag),
                     KVANT_ERROR_UNSUPPORTED);
    kvant_assert_contains(diag.message, "2147483648 units of work");
    assert_int_equal(gpu_launchable_launch(&rig.module, &kernel, (1ull << 31) - 1, &call, rig.stream, &diag),
                     KVANT_OK);
    assert_int_equal(gpu_fake_device.launches, 1);
    assert_int_equal(gpu_fake_device.last.grid[0], kernel.resident);
    assert_int_equal(gpu_fake_device.last.block[0], CORE_ROWS_THREADS);
    gpu_fake_device.fail = "launch";
    gpu_fake_device.fail_with = GPU_ERROR_LAUNCH_OUT_OF_RESOURCES;
    assert_int_equal(gpu_launchable_launch(&rig.module, &kernel, 1, &call, rig.stream, &diag),
                     KVANT_ERROR_DEVICE);
    kvant_assert_contains(diag.message, "launch of kvant_core_rows");
    gpu_rig_from_device(&rig, call.job_count, NULL, 0);
    gpu_rig_end(&rig); /* fails if a context was left */
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(table), cmocka_unit_test(images),
                                              cmocka_unit_test(refused_kernels), cmocka_unit_test(launches)};
    return kvant_run_tests(tests, argc, argv);
}
