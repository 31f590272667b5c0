/* raw's kernels against its CPU code: bytes of encode, floats of decode. */
#include "gpu_rig.h"

#include "support/sanitized.h"
#include "support/test.h"

#include <kvant/kit/view.h>

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 2, F32 = KVANT_DTYPE_F32, F16 = KVANT_DTYPE_F16, BF16 = KVANT_DTYPE_BF16 };

static const char *const formats[] = {"input", "f32", "f16", "bf16"};
static const float largest[] = {[F32] = FLT_MAX, [F16] = 65504.0f, [BF16] = 0x1.fep127f};

/* Ordinary numbers, zeros of both signs, subnormal ones, and what other types round up to infinity. */
static void *rows_of(uint32_t dtype, size_t count, uint64_t seed) {
    static const float edges[] = {0.0f,     -0.0f,    0x1p-24f,  0x1.8p-25f, 0x1p-133f,    0x1p-149f,
                                  65504.0f, 65519.0f, -65520.0f, 65536.0f,   0x1.fe8p127f, -0x1.ffp127f};
    unsigned char *rows = calloc(count, 4);
    assert_non_null(rows);
    for (size_t i = 0; i < count; i++) {
        uint64_t kind = kvant_test_random(&seed);
        float x = (float)(kvant_test_normal(&seed) + 0.5);
        if (kind % 5 == 0) x = edges[kind / 5 % 12];
        if (kind % 5 == 1) x *= 0x1p13f;
        if (x > largest[dtype]) x = largest[dtype];
        if (x < -largest[dtype]) x = -largest[dtype];
        kvant_store_element(rows + i * kvant_element_bytes(dtype), dtype, x);
    }
    return rows;
}

typedef struct shape {
    uint32_t dtype, format, tokens, heads, head_dim;
} shape;

/* Returns how many elements saturated, on the CPU as on the device. */
static uint64_t round_trip(gpu_rig *rig, const shape *s, uint32_t number) {
    char parameters[32];
    (void)snprintf(parameters, sizeof parameters, "format=%s", formats[s->format]);
    const kvant_setup setup = {.side = number % 2,
                               .dtype = s->dtype,
                               .block_tokens = s->tokens,
                               .kv_heads = s->heads,
                               .head_dim = s->head_dim,
                               .isa = KVANT_ISA_SCALAR};
    if (getenv("KVANT_GPU_VERBOSE") != NULL)
        print_message("  dtype %u [%u, %u, %u] %s\n", s->dtype, s->tokens, s->heads, s->head_dim, parameters);
    gpu_rig_open(rig, "raw", &setup, parameters);
    void *rows = rows_of(s->dtype, (size_t)BLOCKS * s->tokens * s->heads * s->head_dim, number + 1);
    gpu_rig_encode(rig, rows, BLOCKS, number % GPU_ROWS_KINDS);
    uint64_t saturated = rig->cpu->saturated;
    for (uint32_t dtype = F32; dtype <= BF16; dtype++)
        gpu_rig_decode(rig, dtype, 0, s->tokens, 0, s->heads, (number + dtype) % GPU_ROWS_KINDS);
    if (s->tokens > 5)
        gpu_rig_decode(rig, s->dtype, 3, s->tokens - 5, s->heads - 1, 1, number % GPU_ROWS_KINDS);
    free(rows);
    gpu_rig_close(rig);
    return saturated;
}

static void on(uint32_t architecture, uint32_t count) {
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256, 36, 7}, tokens[] = {1, 63, 64, 65, 150, 24};
    uint64_t saturated = 0;
    gpu_rig rig;
    gpu_rig_begin(&rig, "raw", architecture);
    for (uint32_t i = 0; i < count; i++) {
        const shape s = {.dtype = 1 + i % 3,
                         .format = i / 3 % 4,
                         .tokens = tokens[(i / 2 + i / 12) % 6],
                         .heads = 1 + i % 2,
                         .head_dim = dims[(i + i / 8) % 8]};
        saturated += round_trip(&rig, &s, i);
    }
    assert_true(saturated > 0);
    gpu_rig_end(&rig);
}

static void shipped_ptx(void **state) {
    (void)state;
    on(110, KVANT_TEST_SANITIZED ? 12 : 48);
}

static void ptx_of_cubins(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 4 && !KVANT_TEST_SANITIZED; i++) on((const uint32_t[]){80, 90, 100, 120}[i], 12);
}

/* One token, one channel; the widest head; more tokens than a unit of work takes, by one. */
static void corners(void **state) {
    static const shape shapes[] = {{F16, 0, 1, 1, 1}, {F32, 2, 3, 1, 4096}, {BF16, 1, 129, 3, 9}};
    gpu_rig rig;
    (void)state;
    gpu_rig_begin(&rig, "raw", 110);
    for (uint32_t i = 0; i < 3; i++) (void)round_trip(&rig, &shapes[i], i);
    gpu_rig_end(&rig);
}

/* The first element that is NaN or infinite is named; infinity is not counted as saturated. */
static void not_finite(void **state) {
    enum { TOKENS = 70, HEADS = 2, DIM = 40, COUNT = TOKENS * HEADS * DIM };
    static const uint32_t places[] = {4000, 1234, 5119, 1235, 7};
    gpu_rig rig;
    (void)state;
    gpu_rig_begin(&rig, "raw", 110);
    for (uint32_t dtype = F32; dtype <= BF16; dtype++) {
        const kvant_setup setup = {
            .dtype = dtype, .block_tokens = TOKENS, .kv_heads = HEADS, .head_dim = DIM};
        gpu_rig_open(&rig, "raw", &setup, dtype == F16 ? "format=f32" : "format=f16");
        unsigned char *rows = calloc(COUNT, 4);
        uint32_t least = UINT32_MAX;
        assert_non_null(rows);
        assert_true(gpu_rig_status(&rig, rows).first_not_finite == UINT64_MAX);
        for (uint32_t i = 0; i < 5; i++) {
            uint32_t bits = dtype == F16 ? 0x7c00u + i % 2 : 0x7f80u + i % 2;
            unsigned char *at = rows + places[i] * kvant_element_bytes(dtype);
            if (dtype == F32) at += 2; /* the upper half; a little-endian machine's */
            const uint16_t half = (uint16_t)(bits | (i == 2 ? 0x8000u : 0));
            memcpy(at, &half, sizeof half);
            least = places[i] < least ? places[i] : least;
            kvant_gpu_status status = gpu_rig_status(&rig, rows);
            assert_int_equal(status.first_not_finite, least);
            assert_int_equal(status.saturated, 0);
        }
        free(rows);
        gpu_rig_close(&rig);
    }
    gpu_rig_end(&rig);
}

/* Rows are fetched once and written once. */
static void traffic(void **state) {
    enum { TOKENS = 64, HEADS = 4, DIM = 128, ELEMENTS = TOKENS * HEADS * DIM };
    gpu_rig rig;
    (void)state;
    (void)unsetenv("KVANT_GPU");
    gpu_rig_begin(&rig, "raw", 110);
    gpu_fake_device.checks = PTX_CHECK_COUNT;
    const kvant_setup setup = {.dtype = F16, .block_tokens = TOKENS, .kv_heads = HEADS, .head_dim = DIM};
    void *rows = rows_of(F16, ELEMENTS, 1);
    gpu_rig_open(&rig, "raw", &setup, "");
    for (uint32_t decode = 0; decode < 2; decode++) {
        if (decode == 0)
            gpu_rig_encode(&rig, rows, 1, GPU_ROWS_DENSE);
        else
            gpu_rig_decode(&rig, F16, 0, TOKENS, 0, HEADS, GPU_ROWS_DENSE);
        const ptx_counters *n = &gpu_fake_device.counters;
        double fetched = (double)n->load.block_sectors * 32 / (2.0 * ELEMENTS);
        double written = (double)n->store.block_sectors * 32 / (2.0 * ELEMENTS);
        print_message("%s: fetched %.3f times, written %.3f times, %.2f warp instructions an element\n",
                      decode == 0 ? "encode" : "decode", fetched, written,
                      (double)n->warp_instructions / ELEMENTS);
        assert_true(fetched < 1.1 && written < 1.1);
    }
    gpu_rig_close(&rig);
    free(rows);
    gpu_rig_end(&rig);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(corners), cmocka_unit_test(not_finite),
                                              cmocka_unit_test(shipped_ptx), cmocka_unit_test(ptx_of_cubins),
                                              cmocka_unit_test(traffic)};
    return kvant_run_tests(tests, argc, argv);
}
