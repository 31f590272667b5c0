/* core/gpu without a GPU: which image a device takes, what an error says, and that contexts are left as they
 * were found. */
#include "gpu_rig.h"

#include "support/test.h"

#include <kvant/kvant.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

static kvant_diag diag;

static void fresh_diag(void) {
    diag = (kvant_diag){.struct_size = sizeof diag};
}

static const kvant_gpu *kivi(void) {
    const kvant_plugin *plugin = NULL;
    fresh_diag();
    assert_int_equal(kvant_plugin_find("kivi", &plugin, &diag), KVANT_OK);
    const kvant_gpu *gpu = plugin->extension(KVANT_EXT_GPU);
    if (gpu == NULL) {
        print_message("skipped: kivi was built without GPU code\n");
        skip();
    }
    return gpu;
}

/* ---- Images -------------------------------------------------------------------------------------------- */

static const char ptx_text[] = "// made\n.version 7.0\n.target sm_80\n.address_size 64\n";

static kvant_status no_plan(const kvant_setup *setup, const kvant_layout *layout, kvant_gpu_plan *plan,
                            kvant_diag *d) {
    (void)setup, (void)layout, (void)plan, (void)d;
    return KVANT_ERROR_UNSUPPORTED;
}

static kvant_status no_upload(const void *state, const kvant_gpu_plan *plan, void *device_state) {
    (void)state, (void)plan, (void)device_state;
    return KVANT_OK;
}

/* Cubins of 8.0, 9.0 and of 10.0 alone, then PTX of 8.0 in a frame that does not say how long it is. */
static kvant_gpu made_images(kvant_gpu_image images[2], char *fatbin, char *packed, size_t *packed_size) {
    static const uint32_t cubins[] = {80, 90, 100 | KVANT_ARCHITECTURE_EXACT}, ptx[] = {80};
    const uint64_t body = 48;
    memset(fatbin, 0, 64);
    memcpy(fatbin, "\x50\xed\x55\xba\x01\x00\x10\x00", 8);
    memcpy(fatbin + 8, &body, sizeof body);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_inBuffer in = {ptx_text, sizeof ptx_text - 1, 0};
    ZSTD_outBuffer out = {packed, 256, 0};
    assert_int_equal(ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush), 0);
    assert_int_equal(ZSTD_compressStream2(context, &out, &in, ZSTD_e_end), 0);
    ZSTD_freeCCtx(context);
    *packed_size = out.pos;
    images[0] = (kvant_gpu_image){sizeof *images, KVANT_IMAGE_FATBIN, 0, 3, cubins, fatbin, fatbin + 64};
    images[1] = (kvant_gpu_image){sizeof *images, KVANT_IMAGE_PTX, KVANT_PACKING_ZSTD, 1, ptx,
                                  packed,         packed + out.pos};
    return (kvant_gpu){sizeof(kvant_gpu), 2, images, no_plan, no_upload, NULL};
}

static void choice(void **state) {
    static const struct {
        uint32_t major, minor, kind;
    } devices[] = {{8, 0, KVANT_IMAGE_FATBIN},
                   {8, 9, KVANT_IMAGE_FATBIN},
                   {9, 0, KVANT_IMAGE_FATBIN},
                   {10, 0, KVANT_IMAGE_FATBIN},
                   {10, 3, KVANT_IMAGE_PTX},
                   {11, 0, KVANT_IMAGE_PTX},
                   {12, 1, KVANT_IMAGE_PTX},
                   {7, 5, 0},
                   {5, 0, 0}};
    kvant_gpu_image images[2];
    char fatbin[64], packed[256], text[128];
    size_t size = 0;
    kvant_gpu gpu = made_images(images, fatbin, packed, &size);
    (void)state;
    fresh_diag();
    assert_int_equal(gpu_vet(&gpu, &diag), KVANT_OK);
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        const kvant_gpu_image *image = NULL;
        kvant_status status = gpu_image_choose(&gpu, devices[i].major, devices[i].minor, &image, &diag);
        assert_int_equal(status, devices[i].kind != 0 ? KVANT_OK : KVANT_ERROR_UNSUPPORTED);
        assert_int_equal(image != NULL ? image->kind : 0, devices[i].kind);
    }
    kvant_assert_contains(diag.message, "capability 5.0; the plugin carries sm_80 sm_90 sm_100a compute_80");
    gpu_images_text(&gpu, text, 9);
    assert_string_equal(text, "sm_80 sm");
    char *bytes = NULL;
    assert_int_equal(gpu_image_bytes(&images[1], &bytes, &size, &diag), KVANT_OK);
    assert_int_equal(size, sizeof ptx_text - 1);
    assert_string_equal(bytes, ptx_text);
    free(bytes);
}

/* Every broken table is refused with the fault's name. */
static void broken_tables(void **state) {
    kvant_gpu_image images[2];
    char fatbin[64], packed[256];
    size_t size = 0;
    (void)state;
#define REFUSES(change, says)                                                                                \
    do {                                                                                                     \
        kvant_gpu gpu = made_images(images, fatbin, packed, &size);                                          \
        change;                                                                                              \
        fresh_diag();                                                                                        \
        assert_int_equal(gpu_vet(&gpu, &diag), KVANT_ERROR_PLUGIN_BROKEN);                                   \
        kvant_assert_contains(diag.message, says);                                                           \
    } while (0)
    REFUSES(gpu.struct_size = 8, "struct_size is 8");
    REFUSES(gpu.plan = NULL, ".plan");
    REFUSES(gpu.upload = NULL, ".upload");
    REFUSES(gpu.image_count = 0, "0 images");
    REFUSES(images[0].struct_size = 16, "struct_size is 16");
    REFUSES(images[1].kind = 7, "image 1 is of kind 7");
    REFUSES(images[1].packing = 9, "packing 9");
    REFUSES(images[0].architecture_count = 0, "names 0 architectures");
    REFUSES(images[1].architecture_count = 2, "PTX for 2");
    REFUSES(images[0].bytes_end = fatbin, "image 0 is empty");
    REFUSES(fatbin[0] = 0, "no fat binary");
    REFUSES(images[0].bytes_end = fatbin + 63, "no fat binary, or is cut short");
    REFUSES(images[1].bytes_end = packed + size - 3, "ends early");
    REFUSES(images[1].bytes_end = packed + size + 1, "behind its frame");
    REFUSES(packed[1] ^= 0x40, "does not unpack");
    REFUSES(images[1].packing = KVANT_PACKING_NONE, "no PTX text");
    REFUSES(((images[1].architectures = images[0].architectures + 1)), "PTX for sm_80 and says 90");
}

static void broken_plans(void **state) {
    (void)state;
#define PLAN_REFUSES(change, says)                                                                           \
    do {                                                                                                     \
        kvant_gpu_plan plan = {.struct_size = sizeof plan, .kernel_count = 1};                               \
        plan.kernels[0] =                                                                                    \
            (kvant_gpu_kernel){.name = "k", .call = KVANT_GPU_ENCODE, .threads = 64, .units = 1};            \
        fresh_diag();                                                                                        \
        assert_int_equal(gpu_plan_vet(&plan, &diag), KVANT_OK);                                              \
        change;                                                                                              \
        assert_int_equal(gpu_plan_vet(&plan, &diag), KVANT_ERROR_PLUGIN_BROKEN);                             \
        kvant_assert_contains(diag.message, says);                                                           \
    } while (0)
    PLAN_REFUSES(plan.kernel_count = 17, "17 kernels");
    PLAN_REFUSES(plan.kernels[0].name[0] = '\0', "no name");
    PLAN_REFUSES(memset(plan.kernels[0].name, 'x', 64), "no name, or one without an end");
    PLAN_REFUSES(plan.kernels[0].call = 8, "call 8");
    PLAN_REFUSES(plan.kernels[0].threads = 48, "48 threads");
    PLAN_REFUSES(plan.kernels[0].threads = 1056, "1056 threads");
    PLAN_REFUSES(plan.kernels[0].units = 0, "0 units");
    PLAN_REFUSES(plan.kernels[0].units = (uint64_t)1 << 31, "2147483648 units");
    PLAN_REFUSES(plan.kernels[0].block_scratch_bytes = 100, "scratch");
    PLAN_REFUSES(plan.kernels[0].job_scratch_bytes = 100, "scratch");
}

/* ---- Devices ------------------------------------------------------------------------------------------- */

/* This machine may have a driver; if it has none, the message says so and names the library. */
static void no_driver(void **state) {
    const gpu_driver *driver = NULL;
    (void)state;
    fresh_diag();
    kvant_status status = gpu_driver_find(&driver, &diag);
    if (status == KVANT_OK) {
        assert_non_null(driver->launch);
        return;
    }
    assert_int_equal(status, KVANT_ERROR_DEVICE);
    if (strstr(diag.message, "no CUDA driver") != NULL) kvant_assert_contains(diag.message, "libcuda.so.1");
}

static const gpu_driver *begin(uint32_t major, uint32_t minor) {
    return gpu_fake_begin(&(gpu_fake){.major = major, .minor = minor});
}

static void no_such_device(void **state) {
    const gpu_driver *driver = begin(9, 0);
    gpu_device device;
    (void)state;
    fresh_diag();
    assert_int_equal(gpu_device_open(driver, 3, &device, &diag), KVANT_ERROR_DEVICE);
    assert_string_equal(diag.message, "there is no device 3; the driver has 1");
    gpu_fake_device.fail = "primary_retain";
    gpu_fake_device.fail_with = GPU_ERROR_OUT_OF_MEMORY;
    assert_int_equal(gpu_device_open(driver, 0, &device, &diag), KVANT_ERROR_MEMORY);
    kvant_assert_contains(diag.message, "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (2)");
    gpu_device_close(&device);
    gpu_fake_end();
}

/* The stream's context is used as it is: nothing is retained, and afterwards none is current. */
static void stream_context(void **state) {
    const gpu_driver *driver = begin(9, 0);
    gpu_device device;
    (void)state;
    fresh_diag();
    gpu_context context = NULL, popped = NULL;
    gpu_stream stream = NULL;
    assert_int_equal(driver->primary_retain(&context, 0), GPU_SUCCESS);
    assert_int_equal(driver->context_push(context), GPU_SUCCESS);
    assert_int_equal(driver->stream_create(&stream, 1), GPU_SUCCESS);
    assert_int_equal(driver->context_pop(&popped), GPU_SUCCESS);
    assert_int_equal(gpu_device_of_stream(driver, stream, &device, &diag), KVANT_OK);
    assert_int_equal(device.major, 9);
    assert_int_equal(gpu_fake_device.retained, 1);
    assert_int_equal(gpu_fake_device.contexts, 0);
    gpu_device_close(&device);
    assert_int_equal(gpu_fake_device.retained, 1);
    assert_int_equal(driver->context_push(context), GPU_SUCCESS);
    assert_int_equal(driver->stream_destroy(stream), GPU_SUCCESS);
    assert_int_equal(driver->context_pop(&popped), GPU_SUCCESS);
    assert_int_equal(driver->primary_release(0), GPU_SUCCESS);
    gpu_fake_end();
}

static void refused_images(void **state) {
    static const struct {
        uint32_t major;
        gpu_result result;
        const char *message;
    } cases[] = {
        {9, GPU_ERROR_NO_BINARY_FOR_GPU, "the driver (CUDA 13.0) does not take the plugin's image"},
        {11, GPU_ERROR_UNSUPPORTED_PTX_VERSION,
         "is older than the plugin's PTX; no cubin of the plugin fits"},
        {9, GPU_ERROR_OUT_OF_MEMORY, "cuLibraryLoadData: CUDA_ERROR_OUT_OF_MEMORY"},
    };
    const kvant_gpu *gpu = kivi();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const gpu_driver *driver = begin(cases[i].major, 0);
        gpu_device device;
        gpu_module module;
        fresh_diag();
        assert_int_equal(gpu_device_open(driver, 0, &device, &diag), KVANT_OK);
        gpu_fake_device.fail = "library_load";
        gpu_fake_device.fail_with = cases[i].result;
        assert_int_not_equal(gpu_module_load(&device, "kivi", gpu, &module, &diag), KVANT_OK);
        kvant_assert_contains(diag.message, cases[i].message);
        gpu_module_unload(&module);
        gpu_device_close(&device);
        gpu_fake_end();
    }
    const gpu_driver *driver = begin(7, 5);
    gpu_device device;
    gpu_module module;
    assert_int_equal(gpu_device_open(driver, 0, &device, &diag), KVANT_OK);
    assert_int_equal(gpu_module_load(&device, "kivi", gpu, &module, &diag), KVANT_ERROR_UNSUPPORTED);
    kvant_assert_contains(diag.message,
                          "no image for a device of compute capability 7.5; the plugin carries sm_80");
    gpu_device_close(&device);
    gpu_fake_end();
}

static const kvant_setup small = {
    .side = KVANT_SIDE_KEY, .dtype = KVANT_DTYPE_F16, .block_tokens = 32, .kv_heads = 1, .head_dim = 64};

static void refused_codecs(void **state) {
    gpu_rig rig;
    (void)state;
    (void)unsetenv("KVANT_GPU");
    gpu_rig_begin(&rig, "kivi", 90);
    kvant_test_codec *cpu = kvant_test_codec_open_setup("kivi", &small, "bits=2 group=32");
    gpu_codec codec;
    fresh_diag();
    gpu_fake_device.fail = "memory_alloc";
    gpu_fake_device.fail_with = GPU_ERROR_OUT_OF_MEMORY;
    assert_int_equal(
        gpu_codec_open(&rig.module, &cpu->setup, &cpu->layout, cpu->state, rig.stream, &codec, &diag),
        KVANT_ERROR_MEMORY);
    kvant_assert_contains(diag.message, "memory of a codec's state: CUDA_ERROR_OUT_OF_MEMORY");
    rig.device.shared_most = 100;
    assert_int_equal(
        gpu_codec_open(&rig.module, &cpu->setup, &cpu->layout, cpu->state, rig.stream, &codec, &diag),
        KVANT_ERROR_UNSUPPORTED);
    kvant_assert_contains(diag.message, "kivi_encode_keys_f16 needs 512 bytes of shared memory");
    kvant_test_codec_close(cpu);
    gpu_rig_end(&rig);
}

/* The grid follows from the batch's limit, not from how many jobs there are; a failed launch names its
 * kernel. */
static void launches(void **state) {
    gpu_rig rig;
    (void)state;
    (void)unsetenv("KVANT_GPU");
    gpu_rig_begin(&rig, "kivi", 90);
    gpu_rig_open(&rig, "kivi", &small, "bits=2 group=8");
    uint16_t rows[3 * 32 * 64] = {0};
    gpu_rig_encode(&rig, rows, 1, GPU_ROWS_DENSE);
    assert_int_equal(gpu_fake_device.last.grid[0], 6); /* 3 multiprocessors, 2 blocks each; 20 units */
    gpu_rig_encode(&rig, rows, 3, GPU_ROWS_DENSE);
    assert_int_equal(gpu_fake_device.last.grid[0], 6);
    gpu_rig_decode(&rig, KVANT_DTYPE_F32, 0, 1, 0, 1, GPU_ROWS_DENSE);
    assert_int_equal(gpu_fake_device.last.grid[0], 5); /* one unit a job, five jobs at most */
    assert_false(gpu_codec_offers(&rig.codec, KVANT_GPU_ATTEND));
    gpu_batch batch = {.jobs_most = 1};
    fresh_diag();
    assert_int_equal(gpu_codec_launch(&rig.codec, KVANT_GPU_ATTEND, &batch, rig.stream, &diag),
                     KVANT_ERROR_UNSUPPORTED);
    gpu_fake_device.fail = "launch";
    gpu_fake_device.fail_with = GPU_ERROR_LAUNCH_OUT_OF_RESOURCES;
    assert_int_equal(gpu_codec_launch(&rig.codec, KVANT_GPU_ENCODE, &batch, rig.stream, &diag),
                     KVANT_ERROR_DEVICE);
    kvant_assert_contains(diag.message, "launch of kivi_encode_keys_f16: ");
    batch.jobs_most = 1u << 30;
    assert_int_equal(gpu_codec_launch(&rig.codec, KVANT_GPU_ENCODE, &batch, rig.stream, &diag),
                     KVANT_ERROR_UNSUPPORTED);
    gpu_rig_close(&rig);
    gpu_rig_end(&rig);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(choice),         cmocka_unit_test(broken_tables),  cmocka_unit_test(broken_plans),
        cmocka_unit_test(no_driver),      cmocka_unit_test(no_such_device), cmocka_unit_test(stream_context),
        cmocka_unit_test(refused_images), cmocka_unit_test(refused_codecs), cmocka_unit_test(launches),
    };
    return kvant_run_tests(tests, argc, argv);
}
