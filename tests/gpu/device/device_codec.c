/* Encoding and decoding through kvant/device.h: the bytes and floats of the codec floor, with all that the
 * host does to rows on the way; what is refused. */
#include "device_bed.h"

#include "support/sanitized.h"
#include "support/test.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static kvant_device *device;

static int close_device(void **state) {
    (void)state;
    kvant_device_close(device);
    device = NULL;
    return 0;
}

static device_bed *open_on_device(bed *b) {
    if (device == NULL) device = device_bed_device();
    return device_bed_open(device, b, 0);
}

/* ---- Same bytes ---------------------------------------------------------------------------------------- */

static void encode_wish(bed_wish wish, uint32_t batch) {
    bed *b = bed_open(&wish);
    device_bed *d = open_on_device(b);
    device_bed_encode(d, batch);
    device_bed_close(d);
    bed_close(b);
}

static void test_bytes(void **state) {
    static float center[2 * 64];
    (void)state;
    for (uint32_t i = 0; i < 2 * 64; i++) center[i] = 0.5f - (float)(i % 11) * 0.125f;
    const bed_wish wishes[] = {
        {.key = "kivi bits=2 group=32", .value = "kivi bits=4 group=32", .tokens = 330},
        {.key = "kivi bits=4 group=32",
         .value = "kivi bits=2 group=32",
         .tokens = 200,
         .head = "sinks = 5",
         .dtype = KVANT_DTYPE_BF16,
         .kv_heads = 3,
         .key_dim = 96,
         .value_dim = 80},
        {.key = "kivi bits=4 group=32",
         .value = "kivi bits=8 group=32",
         .tokens = 130,
         .center = center,
         .dtype = KVANT_DTYPE_F16},
        {.key = "kivi bits=3 group=64",
         .value = "raw",
         .tokens = 130,
         .head = "sinks = 2",
         .center = center,
         .dtype = KVANT_DTYPE_F32},
        {.key = "raw", .value = "kivi bits=1 group=32", .tokens = 130, .first_position = 640},
    };
    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) encode_wish(wishes[i], i % 2 == 0 ? 2 : 7);
}

/* Lists that are written while others are on their way. */
static void test_no_waiting(void **state) {
    (void)state;
    bed *b = bed_open(&(bed_wish){
        .key = "kivi bits=2 group=32", .value = "kivi bits=4 group=32", .tokens = 400, .head = "sinks = 2"});
    device_bed *d = open_on_device(b);
    device_bed_encode_at_once(d);
    device_bed_close(d);
    bed_close(b);
}

/* ---- Numbers that are not finite ----------------------------------------------------------------------- */

static void poison(bed *b, uint32_t side, uint32_t token, uint32_t head, uint32_t channel, float x) {
    size_t at = ((size_t)token * b->wish.kv_heads + head) * bed_dim(b, side) + channel;
    uint32_t width = kvant_element_bytes(b->wish.dtype);
    kvant_store_element(b->raw[side] + at * width, b->wish.dtype, x);
}

/* Replaced and counted as on the host. */
static void test_saturate(void **state) {
    (void)state;
    bed *b = bed_open(&(bed_wish){.key = "kivi bits=4 group=32",
                                  .value = "kivi bits=4 group=32",
                                  .tokens = 200,
                                  .head = "on_nonfinite = saturate\nsinks = 2"});
    poison(b, KVANT_SIDE_KEY, 70, 1, 3, NAN);
    poison(b, KVANT_SIDE_KEY, 71, 0, 63, INFINITY);
    poison(b, KVANT_SIDE_VALUE, 1, 0, 0, -INFINITY); /* of a sink: not encoded */
    poison(b, KVANT_SIDE_VALUE, 5, 0, 0, -INFINITY);
    bed_encode_again(b);
    device_bed *d = open_on_device(b);
    device_bed_encode(d, 3);
    device_bed_close(d);
    bed_close(b);
}

static void refuse(uint32_t token, const char *head, const char *message) {
    bed *b = bed_open(&(bed_wish){
        .key = "kivi bits=4 group=32", .value = "kivi bits=4 group=32", .tokens = 200, .head = head});
    poison(b, KVANT_SIDE_KEY, token, 1, 3, NAN);
    poison(b, KVANT_SIDE_KEY, token, 1, 9, NAN);
    device_bed *d = open_on_device(b);
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_device_work *work = NULL;
    kvant_device_limits limits = {.struct_size = sizeof limits, .blocks = 2};
    kvant_view views[2];
    kvant_device_block blocks[2];
    kvant_encode_report reports[2] = {{.struct_size = sizeof reports[0]}};
    assert_int_equal(kvant_device_work_open(d->layer, &limits, 0, &work, &diag), KVANT_OK);
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t row = (uint64_t)b->wish.kv_heads * b->wish.key_dim * 2;
        views[i] = kvant_rows_view((const void *)(uintptr_t)(d->raw[0] + i * 64 * row), b->wish.dtype, 64,
                                   b->wish.kv_heads, b->wish.key_dim);
        blocks[i] = (kvant_device_block){.struct_size = sizeof blocks[0],
                                         .rows = &views[i],
                                         .extent = d->extents[0] + i * bed_extent_stride(b, 0),
                                         .first_position = i * 64};
    }
    assert_int_equal(kvant_device_encode_prepare(work, 0, blocks, 2, NULL, &diag), KVANT_OK);
    assert_int_equal(kvant_device_encode_launch(work, 0, NULL, &diag), KVANT_OK);
    assert_int_equal(kvant_device_encode_finish(work, 0, reports, 2, NULL, &diag), KVANT_ERROR_NOT_FINITE);
    assert_string_equal(diag.message, message);
    assert_int_equal(reports[token / 64].size, 0);
    assert_int_equal(reports[1 - token / 64].size, b->sizes[0][1 - token / 64]);
    kvant_device_work_close(work);
    device_bed_close(d);
    bed_close(b);
}

static void test_not_finite(void **state) {
    (void)state;
    refuse(70, "", "layer 0 key: block 1: token 6, head 1, channel 3 is NaN or infinite");
    refuse(1, "sinks = 4", "layer 0 key: block 0: token 1, head 1, channel 3 is NaN or infinite");
    refuse(4, "sinks = 4", "layer 0 key: block 0: token 4, head 1, channel 3 is NaN or infinite");
}

/* ---- Decode -------------------------------------------------------------------------------------------- */

/* Part of each block, into rows of any dtype, beside what the floor decodes. */
static void decode_case(const bed *b, device_bed *d, uint32_t side, uint32_t dtype) {
    enum { TOKENS = 9, FIRST = 3 };
    kvant_diag diag = {.struct_size = sizeof diag};
    const kvant_codec *codec = kvant_attention_codec(b->attention, side);
    uint32_t dim = bed_dim(b, side), width = kvant_element_bytes(dtype);
    size_t row = (size_t)dim * width, bytes = TOKENS * row;
    kvant_device_work *work = NULL;
    kvant_device_limits limits = {.struct_size = sizeof limits, .blocks = 4};
    unsigned char *got = malloc(b->blocks * bytes), *want = malloc(bytes);
    void *scratch = aligned_alloc(64, (kvant_codec_scratch_bytes(codec) + 127) / 64 * 64);
    uint64_t there = 0;
    memset(got, 0xEE, b->blocks * bytes);
    assert_int_equal(kvant_device_alloc(device, b->blocks * bytes, &there, &diag), KVANT_OK);
    assert_int_equal(kvant_device_work_open(d->layer, &limits, 0, &work, &diag), KVANT_OK);
    kvant_device_extent extents[4];
    kvant_mutable_view views[4];
    for (uint32_t k = 0; k < b->blocks; k++) {
        views[k] = (kvant_mutable_view){.struct_size = sizeof views[k],
                                        .dtype = dtype,
                                        .data = (void *)(uintptr_t)(there + k * bytes),
                                        .tokens = TOKENS,
                                        .heads = 1,
                                        .head_dim = dim,
                                        .token_stride = (int64_t)row,
                                        .head_stride = (int64_t)row,
                                        .channel_stride = width};
        extents[k] =
            (kvant_device_extent){.struct_size = sizeof extents[k],
                                  .first_token = FIRST,
                                  .first_head = 1,
                                  .extent = d->extents[side] + k * bed_extent_stride(b, side),
                                  .size = b->sizes[side][k],
                                  .first_position = b->wish.first_position + k * b->wish.block_tokens,
                                  .rows = &views[k]};
    }
    assert_int_equal(kvant_device_decode_prepare(work, side, extents, b->blocks, NULL, &diag), KVANT_OK);
    assert_int_equal(kvant_device_decode_launch(work, side, NULL, &diag), KVANT_OK);
    assert_int_equal(kvant_device_read(device, got, there, b->blocks * bytes, NULL, &diag), KVANT_OK);
    for (uint32_t k = 0; k < b->blocks; k++) {
        kvant_range range = {.struct_size = sizeof range, .first_token = FIRST, .first_head = 1};
        kvant_mutable_view out = views[k];
        out.data = want;
        assert_int_equal(kvant_codec_decode(codec, b->extents[side] + k * bed_extent_stride(b, side),
                                            (size_t)b->sizes[side][k], extents[k].first_position, &range,
                                            &out, scratch, &diag),
                         KVANT_OK);
        assert_memory_equal(got + k * bytes, want, bytes);
    }
    kvant_device_work_close(work);
    kvant_device_free(device, there);
    free(scratch);
    free(got);
    free(want);
}

static void test_decode(void **state) {
    static float center[2 * 64];
    (void)state;
    for (uint32_t i = 0; i < 2 * 64; i++) center[i] = (float)(i % 5) - 2;
    for (uint32_t i = 0; i < 2; i++) {
        bed *b = bed_open(&(bed_wish){.key = "kivi bits=2 group=32",
                                      .value = "kivi bits=4 group=32",
                                      .tokens = 200,
                                      .center = i == 0 ? NULL : center});
        device_bed *d = open_on_device(b);
        device_bed_encode(d, 4);
        for (uint32_t side = 0; side < 2; side++)
            for (uint32_t dtype = KVANT_DTYPE_F32; dtype <= KVANT_DTYPE_BF16; dtype++)
                decode_case(b, d, side, dtype);
        device_bed_close(d);
        bed_close(b);
    }
}

/* ---- Refusals ------------------------------------------------------------------------------------------ */

static void test_refusals(void **state) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_device_layer *layer = NULL;
    kvant_device_work *work = NULL;
    (void)state;
    if (device == NULL) device = device_bed_device();
    bed *b = bed_open(&(bed_wish){.key = "kivi bits=4 group=32", .value = "uniform", .tokens = 100});
    assert_int_equal(kvant_device_layer_open(device, b->attention, &layer, &diag), KVANT_ERROR_UNSUPPORTED);
    assert_string_equal(diag.message, "layer 0 value: codec uniform carries no kernels for a device");
    bed_close(b);

    b = bed_open(&(bed_wish){.key = "kivi bits=4 group=32", .value = "kivi bits=4 group=32", .tokens = 100});
    device_bed *d = open_on_device(b);
    kvant_device_limits limits = {.struct_size = sizeof limits, .blocks = 1};
    kvant_view view = kvant_rows_view((const void *)(uintptr_t)d->raw[0], b->wish.dtype, 64, b->wish.kv_heads,
                                      b->wish.key_dim);
    kvant_device_block blocks[2] = {
        {.struct_size = sizeof blocks[0], .rows = &view, .extent = d->extents[0]}};
    blocks[1] = blocks[0];
    assert_int_equal(kvant_device_work_open(d->layer, &limits, 128, &work, &diag), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_device_work_open(d->layer, &limits, 0, &work, &diag), KVANT_OK);
    assert_int_equal(kvant_device_encode_prepare(work, 0, blocks, 2, NULL, &diag), KVANT_ERROR_CAPACITY);
    assert_string_equal(diag.message, "kvant_device_encode_prepare: 2 blocks, and the work was opened for 1");
    blocks[0].extent += 1;
    assert_int_equal(kvant_device_encode_prepare(work, 0, blocks, 1, NULL, &diag), KVANT_ERROR_ARGUMENT);
    blocks[0].extent -= 1;
    view.tokens = 63;
    assert_int_equal(kvant_device_encode_prepare(work, 0, blocks, 1, NULL, &diag), KVANT_ERROR_ARGUMENT);
    view.tokens = 64;
    view.dtype = KVANT_DTYPE_F32;
    assert_int_equal(kvant_device_encode_prepare(work, 0, blocks, 1, NULL, &diag), KVANT_ERROR_DTYPE);
    assert_int_equal(kvant_device_attend_launch(work, NULL, &diag), KVANT_ERROR_ARGUMENT);
    kvant_device_work_close(work);

    limits = (kvant_device_limits){.struct_size = sizeof limits,
                                   .sequences = UINT32_MAX,
                                   .positions = UINT32_MAX,
                                   .references = UINT64_MAX / 8};
    assert_int_equal(kvant_device_work_open(d->layer, &limits, 0, &work, &diag), KVANT_ERROR_MEMORY);
    assert_string_equal(diag.message, "layer 0: a batch of these limits does not fit into memory");
    device_bed_close(d);
    bed_close(b);

    kvant_device *none = NULL;
    assert_int_equal(kvant_device_open(99, &none, &diag), KVANT_ERROR_DEVICE);
    assert_null(none);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_bytes, close_device),
        cmocka_unit_test_teardown(test_no_waiting, close_device),
        cmocka_unit_test_teardown(test_saturate, close_device),
        cmocka_unit_test_teardown(test_not_finite, close_device),
        cmocka_unit_test_teardown(test_decode, close_device),
        cmocka_unit_test_teardown(test_refusals, close_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
