/* Attention on a device (kvant/device.h) against double precision: every way in which a layer attends,
 * lengths from one raw token to several spans, windows, caps, batches. */
#include "device_bed.h"

#include "support/sanitized.h"
#include "support/test.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <string.h>

static kvant_device *device;

static int open_device(void **state) {
    (void)state;
    device = NULL;
    return 0;
}

static int close_device(void **state) {
    (void)state;
    kvant_device_close(device);
    return 0;
}

/* Sums of floats in another order, exp and tanh of the device; on these rows folding adds less than that. */
static void allow(bed *b) {
    for (uint32_t side = 0; side < 2; side++) b->tolerance[side] = 2e-6;
}

typedef struct attend_case {
    bed_wish wish;
    uint32_t attends;
    uint32_t coded, tokens, rows;
    device_bed_options options;
} attend_case;

/* The floor's own arithmetic is float as well: its bounds, and the device's exp beside them. */
static void assert_right(const bed *b, bed_call *c, const device_bed_options *options) {
    kvant_attention_options o = bed_options(b);
    o.soft_cap = options->soft_cap;
    kvant_token_range_causal(b->wish.first_position + c->tokens - c->rows, c->rows, options->window,
                             c->ranges);
    bed_assert_right(b, c, &o);
}

static void run_case(const attend_case *k) {
    if (device == NULL) device = device_bed_device();
    bed *b = bed_open(&k->wish);
    device_bed *d = device_bed_open(device, b, k->attends);
    kvant_device_layer_info info = {.struct_size = sizeof info};
    assert_int_equal(kvant_device_layer_describe(d->layer, &info), KVANT_OK);
    if (k->attends != 0) assert_int_equal(info.attends, k->attends);
    allow(b);
    device_bed_encode(d, 3);
    bed_call *c = bed_call_make(b, k->tokens, k->coded, k->rows);
    device_bed_run(d, &c, 1, &k->options);
    assert_right(b, c, &k->options);
    bed_call_free(c);
    device_bed_close(d);
    bed_close(b);
}

/* ---- Ways and geometries ------------------------------------------------------------------------------- */

static void test_ways(void **state) {
    (void)state;
    const attend_case cases[] = {
        {.wish = {.key = "kivi bits=4 group=32", .value = "kivi bits=4 group=32", .tokens = 300},
         .attends = KVANT_DEVICE_ATTEND_FUSED,
         .coded = 256,
         .tokens = 299,
         .rows = 1},
        {.wish = {.key = "kivi bits=2 group=32",
                  .value = "kivi bits=2 group=32",
                  .tokens = 300,
                  .group = 8,
                  .kv_heads = 1,
                  .key_dim = 96,
                  .value_dim = 80,
                  .dtype = KVANT_DTYPE_BF16},
         .attends = KVANT_DEVICE_ATTEND_FUSED,
         .coded = 192,
         .tokens = 300,
         .rows = 5,
         .options = {.span_tokens = 64}},
        {.wish = {.key = "kivi bits=4 group=32", .value = "kivi bits=2 group=32", .tokens = 300, .group = 4},
         .attends = KVANT_DEVICE_ATTEND_SPLIT,
         .coded = 256,
         .tokens = 299,
         .rows = 2,
         .options = {.span_tokens = 64}},
        {.wish = {.key = "kivi bits=4 group=32", .value = "raw", .tokens = 300, .group = 1},
         .attends = KVANT_DEVICE_ATTEND_SPLIT,
         .coded = 256,
         .tokens = 256,
         .rows = 1},
        {.wish = {.key = "raw", .value = "kivi bits=2 group=32", .tokens = 300, .dtype = KVANT_DTYPE_F32},
         .attends = KVANT_DEVICE_ATTEND_SPLIT,
         .coded = 64,
         .tokens = 100,
         .rows = 3},
        {.wish = {.key = "kivi bits=4 group=32",
                  .value = "kivi bits=4 group=32",
                  .tokens = 300,
                  .group = 3,
                  .key_dim = 96,
                  .value_dim = 64,
                  .dtype = KVANT_DTYPE_BF16},
         .attends = KVANT_DEVICE_ATTEND_ROWS,
         .coded = 256,
         .tokens = 290,
         .rows = 2,
         .options = {.span_tokens = 64}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (KVANT_TEST_SANITIZED && i % 2 != 0) continue;
        run_case(&cases[i]);
    }
}

static void test_window_cap_and_center(void **state) {
    static float center[2 * 64];
    (void)state;
    for (uint32_t i = 0; i < 2 * 64; i++) center[i] = (float)(i % 7) * 0.25f - 0.5f;
    for (uint32_t attends = KVANT_DEVICE_ATTEND_FUSED; attends <= KVANT_DEVICE_ATTEND_ROWS; attends++) {
        attend_case k = {.wish = {.key = "kivi bits=4 group=32",
                                  .value = "kivi bits=4 group=32",
                                  .tokens = 300,
                                  .head = "sinks = 3",
                                  .center = center},
                         .attends = attends,
                         .coded = 256,
                         .tokens = 290,
                         .rows = 3,
                         .options = {.span_tokens = 128}};
        run_case(&k);
        k.options.soft_cap = 5;
        run_case(&k);
        if (KVANT_TEST_SANITIZED) continue;
        k.options.window = 100;
        run_case(&k);
        k.options.window = 270; /* from within the block of the sinks */
        run_case(&k);
        k.options.window = 20; /* raw rows alone */
        run_case(&k);
        k.wish.first_position = UINT64_C(1) << 33;
        k.options.window = 130;
        run_case(&k);
    }
}

/* More positions than one item takes. */
static void test_prompts(void **state) {
    (void)state;
    for (uint32_t attends = KVANT_DEVICE_ATTEND_FUSED; attends <= KVANT_DEVICE_ATTEND_ROWS; attends++)
        run_case(&(attend_case){.wish = {.key = "kivi bits=4 group=32",
                                         .value = "kivi bits=2 group=32",
                                         .tokens = 200,
                                         .block_tokens = 32,
                                         .kv_heads = 1,
                                         .group = 4,
                                         .key_dim = 32,
                                         .value_dim = 64},
                                .attends = attends,
                                .coded = 96,
                                .tokens = 150,
                                .rows = 50,
                                .options = {.window = attends == KVANT_DEVICE_ATTEND_FUSED ? 0 : 70}});
}

static void test_lengths(void **state) {
    const uint32_t blocks[] = {0, 1, 2, 10}, rest[] = {0, 1, 7, 31};
    (void)state;
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t coded = blocks[i / 4] * 32, tokens = coded + rest[i % 4];
        if (tokens == 0 || (KVANT_TEST_SANITIZED && i % 5 != 0)) continue;
        run_case(&(attend_case){.wish = {.key = "kivi bits=2 group=32",
                                         .value = "kivi bits=4 group=32",
                                         .tokens = 400,
                                         .block_tokens = 32,
                                         .key_dim = 32,
                                         .value_dim = 32},
                                .attends = i % 3 + 1,
                                .coded = coded,
                                .tokens = tokens,
                                .rows = 1,
                                .options = {.span_tokens = i % 2 == 0 ? 96 : 0}});
    }
}

/* ---- Batches ------------------------------------------------------------------------------------------- */

/* A sequence gets the same bits alone and in any company. */
static void test_company(void **state) {
    (void)state;
    if (device == NULL) device = device_bed_device();
    for (uint32_t attends = KVANT_DEVICE_ATTEND_FUSED; attends <= KVANT_DEVICE_ATTEND_ROWS; attends++) {
        bed *b = bed_open(&(bed_wish){.key = "kivi bits=4 group=32",
                                      .value = "kivi bits=4 group=32",
                                      .tokens = 300,
                                      .key_dim = 64,
                                      .value_dim = 32});
        device_bed *d = device_bed_open(device, b, attends);
        allow(b);
        device_bed_encode(d, 8);
        const device_bed_options options = {.span_tokens = 64};
        bed_call *alone = bed_call_make(b, 270, 256, 2),
                 *calls[3] = {bed_call_make(b, 40, 0, 3), bed_call_make(b, 270, 256, 2),
                              bed_call_make(b, 192, 192, 1)};
        device_bed_run(d, &alone, 1, &options);
        device_bed_run(d, calls, 3, &options);
        bed_assert_same(alone, calls[1]);
        for (uint32_t i = 0; i < 3; i++) {
            assert_right(b, calls[i], &options);
            bed_call_free(calls[i]);
        }
        bed_call_free(alone);
        device_bed_close(d);
        bed_close(b);
    }
}

/* Outputs in halves are the floats, rounded. */
static void test_output_dtypes(void **state) {
    (void)state;
    if (device == NULL) device = device_bed_device();
    bed *b =
        bed_open(&(bed_wish){.key = "kivi bits=4 group=32", .value = "kivi bits=4 group=32", .tokens = 200});
    device_bed *d = device_bed_open(device, b, 0);
    device_bed_encode(d, 8);
    bed_call *want = bed_call_make(b, 200, 192, 2), *got = bed_call_make(b, 200, 192, 2);
    device_bed_run(d, &want, 1, &(device_bed_options){0});
    size_t count = (size_t)want->rows * b->wish.kv_heads * b->wish.group * b->wish.value_dim;
    const uint32_t dtypes[] = {KVANT_DTYPE_F16, KVANT_DTYPE_BF16};
    for (uint32_t i = 0; i < 2; i++) {
        device_bed_run(d, &got, 1, &(device_bed_options){.output_dtype = dtypes[i]});
        for (size_t j = 0; j < count; j++) {
            unsigned char half[4];
            kvant_store_element(half, dtypes[i], want->output_rows[j]);
            assert_true(got->output_rows[j] == kvant_load_element(half, dtypes[i]));
        }
    }
    bed_call_free(want);
    bed_call_free(got);
    device_bed_close(d);
    bed_close(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_ways, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_window_cap_and_center, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_prompts, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_lengths, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_company, open_device, close_device),
        cmocka_unit_test_setup_teardown(test_output_dtypes, open_device, close_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
