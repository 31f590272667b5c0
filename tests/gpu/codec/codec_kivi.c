/* kivi's kernels against its CPU code: bytes of encode, floats of decode. */
#include "gpu_rig.h"

#include "support/test.h"

#include <kvant/kit/view.h>

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 2 };

/* Rows that reach every case of kivi_group.h: ordinary channels with outliers, constant groups, signed zeros,
 * groups whose range the type cannot hold, numbers whose scale is subnormal or 0. */
static void *rows_of(uint32_t dtype, uint32_t tokens, uint32_t heads, uint32_t head_dim, uint64_t seed) {
    size_t count = (size_t)BLOCKS * tokens * heads * head_dim;
    unsigned char *rows = calloc(count, 4);
    float most = dtype == KVANT_DTYPE_F16 ? 65504.0f : dtype == KVANT_DTYPE_F32 ? FLT_MAX : 0x1.fep127f;
    float least = dtype == KVANT_DTYPE_F16 ? 0x1p-24f : 0x1p-133f;
    assert_non_null(rows);
    for (size_t i = 0; i < count; i++) {
        uint32_t c = (uint32_t)(i % head_dim), h = (uint32_t)(i / head_dim % heads);
        uint32_t t = (uint32_t)(i / head_dim / heads);
        double x = kvant_test_normal(&seed) + 0.5;
        if ((c + h) % 11 == 3) x *= 40;
        if (c % 37 == 5) x = 2.5;
        if (c % 37 == 6) x = kvant_test_random(&seed) % 2 == 0 ? 0.0 : -0.0;
        if (c % 37 == 7 || t % 29 == 4) x = kvant_test_random(&seed) % 2 == 0 ? most : -most;
        if (c % 37 == 8 || t % 29 == 5) x = least * (double)(kvant_test_random(&seed) % 3);
        kvant_store_element(rows + i * kvant_element_bytes(dtype), dtype, (float)x);
    }
    return rows;
}

typedef struct shape {
    uint32_t side, dtype, tokens, heads, head_dim, bits, group;
    const char *meta;
} shape;

static void round_trip(gpu_rig *rig, const shape *s, uint32_t number) {
    static const uint32_t dtypes[] = {KVANT_DTYPE_F32, KVANT_DTYPE_F16, KVANT_DTYPE_BF16};
    char parameters[96];
    (void)snprintf(parameters, sizeof parameters, "bits=%u group=%u meta=%s", s->bits, s->group, s->meta);
    const kvant_setup setup = {.side = s->side,
                               .dtype = s->dtype,
                               .block_tokens = s->tokens,
                               .kv_heads = s->heads,
                               .head_dim = s->head_dim,
                               .isa = KVANT_ISA_SCALAR};
    if (getenv("KVANT_GPU_VERBOSE") != NULL)
        print_message("  side %u dtype %u [%u, %u, %u] %s\n", s->side, s->dtype, s->tokens, s->heads,
                      s->head_dim, parameters);
    gpu_rig_open(rig, "kivi", &setup, parameters);
    void *rows = rows_of(s->dtype, s->tokens, s->heads, s->head_dim, number);
    gpu_rig_encode(rig, rows, BLOCKS, number % GPU_ROWS_KINDS);
    for (uint32_t i = 0; i < 3; i++)
        gpu_rig_decode(rig, dtypes[i], 0, s->tokens, 0, s->heads, (number + i) % GPU_ROWS_KINDS);
    if (s->tokens > 5)
        gpu_rig_decode(rig, s->dtype, 3, s->tokens - 5, s->heads - 1, 1, number % GPU_ROWS_KINDS);
    gpu_rig_decode(rig, s->dtype, s->tokens - 1, 1, 0, s->heads, GPU_ROWS_DENSE);
    free(rows);
    gpu_rig_close(rig);
}

/* All pairs of two axes' values occur often among random tuples; the seed is fixed. */
static void random_shapes(gpu_rig *rig, uint32_t count, uint64_t seed) {
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256, 36, 7}, bits[] = {1, 2, 3, 4, 8};
    static const uint32_t groups[] = {32, 64, 128, 32, 64, 128, 24, 5};
    static const char *const metas[] = {"input", "f16", "bf16", "f32"};
    for (uint32_t i = 0; i < count; i++) {
        shape s = {.side = (uint32_t)(kvant_test_random(&seed) % 2),
                   .dtype = 1 + (uint32_t)(kvant_test_random(&seed) % 3),
                   .heads = 1 + (uint32_t)(kvant_test_random(&seed) % 2),
                   .head_dim = dims[kvant_test_random(&seed) % 8],
                   .bits = bits[kvant_test_random(&seed) % 5],
                   .group = groups[kvant_test_random(&seed) % 8],
                   .meta = metas[kvant_test_random(&seed) % 4]};
        uint32_t more = 1 + (uint32_t)(kvant_test_random(&seed) % 2);
        s.tokens = s.side == KVANT_SIDE_KEY ? s.group * more : 1 + (uint32_t)(kvant_test_random(&seed) % 140);
        round_trip(rig, &s, i);
    }
}

static void on(uint32_t architecture, uint32_t count) {
    gpu_rig rig;
    gpu_rig_begin(&rig, "kivi", architecture);
    if (!rig.is_real) assert_int_equal(gpu_fake_device.was_ptx, architecture == 110);
    assert_int_equal(rig.module.is_jit, 10 * rig.device.major + rig.device.minor == 110);
    random_shapes(&rig, count, architecture);
    gpu_rig_end(&rig);
}

/* A device that no cubin fits takes the PTX image that ships. */
static void shipped_ptx(void **state) {
    (void)state;
    on(110, 60);
}

/* The source of each cubin, as far as it can be interpreted. */
static void ptx_of_cubins(void **state) {
    (void)state;
    on(80, 12);
    on(90, 12);
    on(100, 12);
    on(120, 12);
}

/* The axes that the project states, each value with every width. */
static void stated_axes(void **state) {
    static const uint32_t dims[] = {32, 64, 80, 96, 128, 256}, groups[] = {32, 64, 128},
                          bits[] = {1, 2, 3, 4, 8};
    gpu_rig rig;
    (void)state;
    gpu_rig_begin(&rig, "kivi", 110);
    for (uint32_t d = 0; d < 6; d++)
        for (uint32_t b = 0; b < 5; b++) {
            uint32_t number = 5 * d + b, group = groups[(d + b) % 3];
            shape s = {.side = number % 2,
                       .dtype = 1 + (d + 2 * b) % 3,
                       .tokens = 128,
                       .heads = 1,
                       .head_dim = dims[d],
                       .bits = bits[b],
                       .group = group,
                       .meta = "input"};
            round_trip(&rig, &s, number);
            s.side = 1 - s.side;
            s.dtype = 1 + s.dtype % 3;
            round_trip(&rig, &s, number + 1);
        }
    gpu_rig_end(&rig);
}

/* Shapes at the ends: one token, one channel, groups of one, a head wider than a block of threads, more
 * groups of channels than a unit takes. */
static void corners(void **state) {
    static const shape shapes[] = {
        {KVANT_SIDE_KEY, KVANT_DTYPE_F16, 1, 1, 1, 2, 1, "input"},
        {KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 1, 3, 1, 8, 1, "input"},
        {KVANT_SIDE_KEY, KVANT_DTYPE_BF16, 17, 1, 9, 3, 1, "f32"},
        {KVANT_SIDE_VALUE, KVANT_DTYPE_F16, 65, 1, 70, 4, 1, "input"},
        {KVANT_SIDE_KEY, KVANT_DTYPE_F16, 4, 1, 2056, 1, 2, "f16"},
        {KVANT_SIDE_VALUE, KVANT_DTYPE_BF16, 3, 1, 1100, 3, 30, "input"},
        {KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 2, 1, 4096, 2, 4096, "bf16"},
        {KVANT_SIDE_KEY, KVANT_DTYPE_F32, 2, 1, 4096, 8, 2, "input"},
        {KVANT_SIDE_VALUE, KVANT_DTYPE_F16, 130, 2, 48, 1, 7, "input"},
    };
    gpu_rig rig;
    (void)state;
    gpu_rig_begin(&rig, "kivi", 110);
    for (uint32_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) round_trip(&rig, &shapes[i], i);
    gpu_rig_end(&rig);
}

/* The first element that is NaN or infinite is named, whichever thread met it first. */
static void not_finite(void **state) {
    enum { TOKENS = 64, HEADS = 2, DIM = 40 };
    static const uint32_t places[] = {4000, 1234, 5119, 1235};
    gpu_rig rig;
    (void)state;
    gpu_rig_begin(&rig, "kivi", 110);
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t dtype = 1; dtype < 4; dtype++) {
            const kvant_setup setup = {
                .side = side, .dtype = dtype, .block_tokens = TOKENS, .kv_heads = HEADS, .head_dim = DIM};
            gpu_rig_open(&rig, "kivi", &setup, "bits=2 group=32");
            unsigned char *rows = rows_of(dtype, TOKENS, HEADS, DIM, 7);
            uint32_t least = UINT32_MAX;
            assert_true(gpu_rig_status(&rig, rows).first_not_finite == UINT64_MAX);
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t bits = dtype == KVANT_DTYPE_F16 ? 0x7c00u + i % 2 : 0x7f80u + i % 2;
                unsigned char *at = rows + places[i] * kvant_element_bytes(dtype);
                if (dtype == KVANT_DTYPE_F32) at += 2; /* the upper half; a little-endian machine's */
                const uint16_t half = (uint16_t)(bits | (i == 2 ? 0x8000u : 0));
                memcpy(at, &half, sizeof half);
                least = places[i] < least ? places[i] : least;
                assert_int_equal(gpu_rig_status(&rig, rows).first_not_finite, least);
            }
            free(rows);
            gpu_rig_close(&rig);
        }
    gpu_rig_end(&rig);
}

/* What the usual shape costs: each byte of rows is fetched once, each byte of an extent written once. The
 * numbers are printed; ratios to the least possible are held. */
static void traffic(void **state) {
    enum { TOKENS = 64, HEADS = 4, DIM = 128, ELEMENTS = TOKENS * HEADS * DIM };
    gpu_rig rig;
    (void)state;
    (void)unsetenv("KVANT_GPU");
    gpu_rig_begin(&rig, "kivi", 110);
    gpu_fake_device.checks = PTX_CHECK_COUNT;
    void *rows = rows_of(KVANT_DTYPE_F16, TOKENS, HEADS, DIM, 1);
    for (uint32_t side = 0; side < 2; side++)
        for (uint32_t bits = 2; bits <= 4; bits += 2) {
            const kvant_setup setup = {.side = side,
                                       .dtype = KVANT_DTYPE_F16,
                                       .block_tokens = TOKENS,
                                       .kv_heads = HEADS,
                                       .head_dim = DIM};
            gpu_rig_open(&rig, "kivi", &setup, bits == 2 ? "bits=2 group=32" : "bits=4 group=32");
            gpu_rig_encode(&rig, rows, 1, GPU_ROWS_DENSE);
            const ptx_counters *n = &gpu_fake_device.counters;
            double fetched = (double)n->load.block_sectors * 32 / (2.0 * ELEMENTS);
            double written = (double)n->store.block_sectors * 32 / (double)rig.cpu->size;
            print_message("encode side %u, %u bits: rows fetched %.3f times, extent written %.3f times, %.2f "
                          "warp instructions an element\n",
                          side, bits, fetched, written, (double)n->warp_instructions / ELEMENTS);
            assert_true(fetched < 1.1 && written < 1.1);
            gpu_rig_decode(&rig, KVANT_DTYPE_F16, 0, TOKENS, 0, HEADS, GPU_ROWS_DENSE);
            fetched = (double)n->load.block_sectors * 32 / (double)rig.cpu->size;
            written = (double)n->store.block_sectors * 32 / (2.0 * ELEMENTS);
            print_message("decode side %u, %u bits: extent fetched %.3f times, rows written %.3f times, %.2f "
                          "warp instructions an element\n",
                          side, bits, fetched, written, (double)n->warp_instructions / ELEMENTS);
            assert_true(fetched < 1.1 && written < 1.1);
            gpu_rig_close(&rig);
        }
    free(rows);
    gpu_rig_end(&rig);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(corners),     cmocka_unit_test(not_finite),    cmocka_unit_test(stated_axes),
        cmocka_unit_test(shipped_ptx), cmocka_unit_test(ptx_of_cubins), cmocka_unit_test(traffic),
    };
    return kvant_run_tests(tests, argc, argv);
}
