/* The codec floor: plain rows, numbers that are not finite, sizes, refusals, lifetimes. The test's own
 * codec keeps the floats that it gets. */
#include "support/floor.h"
#include "support/test.h"
#include "support/tester.h"

#include <kvant/kit/view.h>
#include <kvant/kvant.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS = FLOOR_TOKENS,
    HEADS = FLOOR_HEADS,
    DIM = FLOOR_DIM,
    COUNT = FLOOR_COUNT,
    FIRST = FLOOR_FIRST
};

/* ---- Plain rows ---------------------------------------------------------------------------------------- */

static void rows_pass_as_they_are_whatever_their_strides(void **state) {
    (void)state;
    float rows[COUNT], back[COUNT];
    for (size_t d = 0; d < 3; d++) {
        uint32_t dtype = floor_dtypes[d];
        int64_t width = kvant_element_bytes(dtype), plane = width * DIM * HEADS;
        const floor_strides layouts[] = {floor_dense(dtype),
                                         {width * DIM, width * DIM * TOKENS, width},    /* head first */
                                         {width, width * DIM * TOKENS, width * TOKENS}, /* transposed */
                                         {-plane, width * DIM, width},
                                         {plane, -width * DIM, width},
                                         {plane, width * DIM, -width},
                                         {-plane, -width * DIM, -width},
                                         {plane + 1, width * DIM, width}, /* unaligned */
                                         {16 * plane, 5 * width * DIM + 3, width + 1}};
        floor_rows(rows, dtype);
        for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
            floor_codec o = floor_open((floor_wish){.dtype = dtype, .side = i % 2});
            kvant_view view;
            kvant_diag diag;
            unsigned char *memory = floor_lay_out(rows, &view, dtype, layouts[i]);
            if (floor_encode(&o, &view, NULL, &diag) != KVANT_OK)
                fail_msg("dtype %u, layout %zu: %s", dtype, i, diag.message);
            kvant_assert_bytes(o.extent, rows, sizeof rows);
            assert_int_equal(o.report.size, 4 * COUNT + TOKENS);
            assert_int_equal(o.report.saturated, 0);
            assert_int_equal(o.report.replaced, 0);
            floor_decode_floats(&o, back);
            kvant_assert_bytes(back, rows, sizeof rows);
            free(memory);
            floor_close(&o);
        }
    }
}

/* A stride of zero repeats: one row for all heads, one number for all channels. */
static void zero_strides_repeat(void **state) {
    (void)state;
    float row[DIM], got[COUNT];
    floor_codec o = floor_open((floor_wish){.dtype = KVANT_DTYPE_F32});
    kvant_diag diag;
    for (int c = 0; c < DIM; c++) row[c] = (float)c + 0.5f;
    kvant_view view = {.struct_size = sizeof view,
                       .dtype = KVANT_DTYPE_F32,
                       .data = row,
                       .tokens = TOKENS,
                       .heads = HEADS,
                       .head_dim = DIM,
                       .channel_stride = 4};
    assert_int_equal(floor_encode(&o, &view, NULL, &diag), KVANT_OK);
    memcpy(got, o.extent, sizeof got);
    for (int i = 0; i < COUNT; i++) kvant_assert_close(got[i], row[i % DIM], 0);
    view.channel_stride = 0;
    assert_int_equal(floor_encode(&o, &view, NULL, &diag), KVANT_OK);
    memcpy(got, o.extent, sizeof got);
    for (int i = 0; i < COUNT; i++) kvant_assert_close(got[i], 0.5, 0);
    row[0] = INFINITY;
    assert_int_equal(floor_encode(&o, &view, NULL, &diag), KVANT_ERROR_NOT_FINITE);
    floor_close(&o);
}

static void any_range_decodes_into_any_dtype(void **state) {
    (void)state;
    float rows[COUNT];
    floor_rows(rows, KVANT_DTYPE_F32);
    for (int centred = 0; centred < 2; centred++) {
        static const float zeros[HEADS * DIM];
        floor_codec o = floor_open((floor_wish){.dtype = KVANT_DTYPE_F32, .center = centred ? zeros : NULL});
        floor_encode_floats(&o, rows, KVANT_DTYPE_F32);
        for (size_t d = 0; d < 3; d++)
            for (uint32_t n = 0; n < 60; n++) {
                uint32_t t0 = n % TOKENS, h0 = n / TOKENS % HEADS,
                         width = kvant_element_bytes(floor_dtypes[d]);
                kvant_range range = {.struct_size = sizeof range, .first_token = t0, .first_head = h0};
                unsigned char out[COUNT * 4 + 8];
                kvant_mutable_view view = {.struct_size = sizeof view,
                                           .dtype = floor_dtypes[d],
                                           .data = out + 1, /* unaligned */
                                           .tokens = TOKENS - t0 > 3 ? 3 : TOKENS - t0,
                                           .heads = HEADS - h0,
                                           .head_dim = DIM,
                                           .token_stride = (int64_t)width * DIM * HEADS,
                                           .head_stride = (int64_t)width * DIM,
                                           .channel_stride = width};
                memset(out, 0xbb, sizeof out);
                kvant_diag diag = {.struct_size = sizeof diag};
                assert_int_equal(kvant_codec_decode(o.codec, o.extent, o.report.size, FIRST, &range, &view,
                                                    o.scratch, &diag),
                                 KVANT_OK);
                unsigned char want[COUNT * 4 + 8];
                memset(want, 0xbb, sizeof want);
                for (uint32_t t = 0; t < view.tokens; t++)
                    for (uint32_t h = 0; h < view.heads; h++)
                        for (uint32_t c = 0; c < DIM; c++)
                            kvant_store_element(want + 1 + (((size_t)t * HEADS + h) * DIM + c) * width,
                                                floor_dtypes[d], rows[((t0 + t) * HEADS + h0 + h) * DIM + c]);
                kvant_assert_bytes(out, want, sizeof out); /* and nothing else is written */
            }
        floor_close(&o);
    }
}

/* ---- Numbers that are not finite ----------------------------------------------------------------------- */

static void not_finite_is_refused_with_its_place(void **state) {
    (void)state;
    static const struct {
        float x;
        const char *word;
    } values[] = {{NAN, "is NaN"}, {INFINITY, "is infinity"}, {-INFINITY, "is -infinity"}};
    float rows[COUNT];
    for (size_t d = 0; d < 3; d++)
        for (uint32_t at = 0; at < COUNT; at += 7)
            for (size_t v = 0; v < 3; v++) {
                uint32_t dtype = floor_dtypes[d];
                int64_t width = kvant_element_bytes(dtype);
                floor_codec o = floor_open((floor_wish){.dtype = dtype});
                kvant_view view;
                kvant_diag diag;
                char want[96];
                floor_rows(rows, dtype);
                rows[at] = values[v].x;
                if (at + 1 < COUNT) rows[COUNT - 1] = NAN; /* a later one is not told */
                (void)snprintf(want, sizeof want,
                               "layer 0 key: token %u (position %u), head %u, channel %u %s",
                               at / (HEADS * DIM), FIRST + at / (HEADS * DIM), at / DIM % HEADS, at % DIM,
                               values[v].word);
                floor_strides layout = at % 2 ? floor_dense(dtype)
                                              : (floor_strides){width, width * DIM * TOKENS, width * TOKENS};
                if (at % 3 == 0) layout = (floor_strides){width * DIM, width * DIM * TOKENS, width};
                unsigned char *memory = floor_lay_out(rows, &view, dtype, layout);
                assert_int_equal(floor_encode(&o, &view, NULL, &diag), KVANT_ERROR_NOT_FINITE);
                assert_string_equal(diag.message, want);
                free(memory);
                floor_close(&o);
            }
}

static void not_finite_is_replaced_where_asked(void **state) {
    (void)state;
    static const float most[] = {FLT_MAX, 65504.0f, 0x1.fep127f};
    float rows[COUNT], got[COUNT];
    for (size_t d = 0; d < 3; d++) {
        floor_codec o = floor_open((floor_wish){.dtype = floor_dtypes[d], .head = "on_nonfinite = saturate"});
        floor_rows(rows, floor_dtypes[d]);
        floor_encode_floats(&o, rows, floor_dtypes[d]);
        kvant_assert_bytes(o.extent, rows, sizeof rows);
        assert_int_equal(o.report.replaced, 0);
        rows[0] = NAN;
        rows[COUNT - 1] = -NAN;
        rows[17] = INFINITY;
        rows[18] = -INFINITY;
        rows[19] = -0.0f;
        floor_encode_floats(&o, rows, floor_dtypes[d]);
        assert_int_equal(o.report.replaced, 4);
        rows[0] = rows[COUNT - 1] = 0;
        rows[17] = most[d];
        rows[18] = -most[d];
        kvant_assert_bytes(o.extent, rows, sizeof rows);
        floor_decode_floats(&o, got);
        kvant_assert_bytes(got, rows, sizeof rows);
        floor_close(&o);
    }
}

/* ---- Tags, sizes, refusals ----------------------------------------------------------------------------- */

static void tags_become_classes(void **state) {
    (void)state;
    static const uint8_t tags[TOKENS] = {0, 1, 6, 7, 8, 200, 255, 13};
    float rows[COUNT];
    kvant_view view;
    kvant_diag diag;
    floor_rows(rows, KVANT_DTYPE_F32);
    unsigned char *memory = floor_lay_out(rows, &view, KVANT_DTYPE_F32, floor_dense(KVANT_DTYPE_F32));
    floor_codec o = floor_open((floor_wish){.dtype = KVANT_DTYPE_F32, .codec = "tester_tags"});
    assert_int_equal(floor_encode(&o, &view, tags, &diag), KVANT_OK);
    for (int t = 0; t < TOKENS; t++) assert_int_equal(o.extent[4 * COUNT + t], tags[t] % 7);
    assert_int_equal(floor_encode(&o, &view, NULL, &diag), KVANT_OK);
    for (int t = 0; t < TOKENS; t++) assert_int_equal(o.extent[4 * COUNT + t], 0);
    floor_close(&o);
    o = floor_open((floor_wish){.dtype = KVANT_DTYPE_F32}); /* did not ask */
    assert_int_equal(floor_encode(&o, &view, tags, &diag), KVANT_OK);
    for (int t = 0; t < TOKENS; t++) assert_int_equal(o.extent[4 * COUNT + t], 0);
    floor_close(&o);
    free(memory);
}

static void sizes_are_those_of_the_layout(void **state) {
    (void)state;
    float rows[COUNT];
    floor_rows(rows, KVANT_DTYPE_F32);
    tester.size_steps = 3;
    floor_codec o = floor_open((floor_wish){.dtype = KVANT_DTYPE_F32});
    size_t least = 4 * COUNT + TOKENS;
    assert_int_equal(kvant_codec_extent_max(o.codec), least + 48);
    assert_int_equal(kvant_codec_extent_size(o.codec, 0), least);
    assert_int_equal(kvant_codec_extent_size(o.codec, least), least);
    assert_int_equal(kvant_codec_extent_size(o.codec, least + 1), least + 16);
    assert_int_equal(kvant_codec_extent_size(o.codec, least + 16), least + 16);
    assert_int_equal(kvant_codec_extent_size(o.codec, least + 33), least + 48);
    assert_int_equal(kvant_codec_extent_size(o.codec, least + 49), 0);
    floor_encode_floats(&o, rows, KVANT_DTYPE_F32);
    assert_int_equal(o.report.size, least + 16);
    kvant_view view;
    kvant_diag diag;
    unsigned char *memory = floor_lay_out(rows, &view, KVANT_DTYPE_F32, floor_dense(KVANT_DTYPE_F32));
    static const uint64_t lies[] = {1, 4 * COUNT, 4 * COUNT + TOKENS + 17, 4 * COUNT + TOKENS + 64,
                                    UINT64_MAX};
    for (size_t i = 0; i < 5; i++) {
        tester.encode_size = lies[i];
        assert_int_equal(floor_encode(&o, &view, NULL, &diag), KVANT_ERROR_PLUGIN_BROKEN);
        kvant_assert_contains(diag.message, "layer 0 key: codec tester: encode used");
    }
    tester.encode_size = 0;
    tester.encode_fails = KVANT_ERROR_IO;
    assert_int_equal(floor_encode(&o, &view, NULL, &diag), KVANT_ERROR_PLUGIN_BROKEN);
    kvant_assert_contains(diag.message, "encode failed on finite rows");
    free(memory);
    floor_close(&o);
}

static void wrong_arguments_are_refused(void **state) {
    (void)state;
    float rows[COUNT];
    kvant_view good, view;
    kvant_diag diag;
    floor_rows(rows, KVANT_DTYPE_F16);
    unsigned char *memory = floor_lay_out(rows, &good, KVANT_DTYPE_F16, floor_dense(KVANT_DTYPE_F16));
    floor_codec o = floor_open((floor_wish){.dtype = KVANT_DTYPE_F16});
#define REFUSED(change, status)                                                                              \
    do {                                                                                                     \
        view = good;                                                                                         \
        change;                                                                                              \
        assert_int_equal(floor_encode(&o, &view, NULL, &diag), status);                                      \
        assert_true(diag.message[0] != '\0');                                                                \
    } while (0)
    REFUSED(view.tokens--, KVANT_ERROR_ARGUMENT);
    REFUSED(view.tokens = 0, KVANT_ERROR_ARGUMENT);
    REFUSED(view.heads++, KVANT_ERROR_ARGUMENT);
    REFUSED(view.head_dim = 8, KVANT_ERROR_ARGUMENT);
    REFUSED(view.dtype = KVANT_DTYPE_F32, KVANT_ERROR_DTYPE);
    REFUSED(view.dtype = 99, KVANT_ERROR_DTYPE);
    REFUSED(view.data = NULL, KVANT_ERROR_ARGUMENT);
    REFUSED(view.struct_size = 8, KVANT_ERROR_ARGUMENT);
    diag = (kvant_diag){.struct_size = sizeof diag};
    kvant_encode_report report = {.struct_size = sizeof report, .size = 77};
#define ENCODE(codec, v, first, extent, capacity, scratch, r)                                                \
    kvant_codec_encode(codec, v, first, NULL, extent, capacity, scratch, r, &diag)
    assert_int_equal(ENCODE(NULL, &good, 0, o.extent, o.capacity, o.scratch, &report), KVANT_ERROR_ARGUMENT);
    assert_int_equal(ENCODE(o.codec, NULL, 0, o.extent, o.capacity, o.scratch, &report),
                     KVANT_ERROR_ARGUMENT);
    assert_int_equal(ENCODE(o.codec, &good, 0, NULL, o.capacity, o.scratch, &report), KVANT_ERROR_ARGUMENT);
    assert_int_equal(ENCODE(o.codec, &good, 0, o.extent + 32, o.capacity, o.scratch, &report),
                     KVANT_ERROR_ARGUMENT);
    assert_int_equal(ENCODE(o.codec, &good, 0, o.extent, o.capacity - 1, o.scratch, &report),
                     KVANT_ERROR_CAPACITY);
    assert_int_equal(ENCODE(o.codec, &good, 0, o.extent, o.capacity, NULL, &report), KVANT_ERROR_ARGUMENT);
    assert_int_equal(ENCODE(o.codec, &good, 0, o.extent, o.capacity, o.scratch + 8, &report),
                     KVANT_ERROR_ARGUMENT);
    assert_int_equal(ENCODE(o.codec, &good, UINT64_MAX - 3, o.extent, o.capacity, o.scratch, &report),
                     KVANT_ERROR_ARGUMENT);
    assert_int_equal(ENCODE(o.codec, &good, 0, o.extent, o.capacity, o.scratch, NULL), KVANT_ERROR_ARGUMENT);
    assert_int_equal(report.size, 77); /* untouched on failure */
    assert_int_equal(ENCODE(o.codec, &good, UINT64_MAX - TOKENS, o.extent, o.capacity, o.scratch, &report),
                     KVANT_OK);
    assert_int_equal(report.size, 4 * COUNT + TOKENS);

    float out[COUNT];
    kvant_mutable_view to = {.struct_size = sizeof to,
                             .dtype = KVANT_DTYPE_F32,
                             .data = out,
                             .tokens = 2,
                             .heads = 1,
                             .head_dim = DIM,
                             .token_stride = 4 * DIM,
                             .head_stride = 4 * DIM,
                             .channel_stride = 4};
    kvant_range range = {.struct_size = sizeof range, .first_token = TOKENS - 2, .first_head = HEADS - 1};
#define DECODE() kvant_codec_decode(o.codec, o.extent, report.size, FIRST, &range, &to, o.scratch, &diag)
    assert_int_equal(DECODE(), KVANT_OK);
    range.first_token++;
    assert_int_equal(DECODE(), KVANT_ERROR_ARGUMENT);
    range.first_token = UINT32_MAX;
    assert_int_equal(DECODE(), KVANT_ERROR_ARGUMENT);
    range.first_token = 0;
    range.first_head = HEADS;
    assert_int_equal(DECODE(), KVANT_ERROR_ARGUMENT);
    range.first_head = 0;
    to.head_dim--;
    assert_int_equal(DECODE(), KVANT_ERROR_ARGUMENT);
    to.head_dim++;
    to.dtype = KVANT_DTYPE_F64;
    assert_int_equal(DECODE(), KVANT_ERROR_DTYPE);
    to.dtype = KVANT_DTYPE_F32;
    report.size++;
    assert_int_equal(DECODE(), KVANT_ERROR_ARGUMENT);
    report.size = 0;
    assert_int_equal(DECODE(), KVANT_ERROR_ARGUMENT);
    report.size = 4 * COUNT + TOKENS;
    to.tokens = 0;
    assert_int_equal(DECODE(), KVANT_OK);
    free(memory);
    floor_close(&o);
}

static void open_says_why_not(void **state) {
    (void)state;
    floor_codec o = floor_open((floor_wish){.dtype = KVANT_DTYPE_F32});
    kvant_codec *codec = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    tester.closed = 0;
    tester.open_fails = KVANT_ERROR_MISSING;
    assert_int_equal(kvant_codec_open(o.plan, 0, KVANT_SIDE_VALUE, &codec, &diag), KVANT_ERROR_MISSING);
    assert_string_equal(diag.message, "layer 0 value: codec tester: not opened by the test");
    assert_string_equal(diag.key, "bits");
    assert_null(codec);
    assert_int_equal(tester.closed, 0); /* what did not open is not closed */
    tester.open_fails = 3;
    assert_int_equal(kvant_codec_open(o.plan, 0, KVANT_SIDE_VALUE, &codec, &diag), KVANT_ERROR_PLUGIN_BROKEN);
    tester.open_fails = KVANT_OK;
    assert_int_equal(kvant_codec_open(o.plan, 1, KVANT_SIDE_VALUE, &codec, &diag), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_codec_open(o.plan, 0, 2, &codec, &diag), KVANT_ERROR_ARGUMENT);
    assert_int_equal(kvant_codec_open(NULL, 0, 0, &codec, &diag), KVANT_ERROR_ARGUMENT);
    floor_close(&o);
    assert_int_equal(tester.closed, 1);
    kvant_codec_close(NULL);
}

/* A codec outlives the plan that it came from. */
static void a_codec_keeps_its_plan_alive(void **state) {
    (void)state;
    float rows[COUNT], got[COUNT];
    floor_codec o = floor_open((floor_wish){.dtype = KVANT_DTYPE_F32});
    kvant_plan_free(o.plan);
    o.plan = NULL;
    floor_rows(rows, KVANT_DTYPE_F32);
    floor_encode_floats(&o, rows, KVANT_DTYPE_F32);
    floor_decode_floats(&o, got);
    kvant_assert_bytes(got, rows, sizeof rows);
    assert_string_equal(kvant_codec_row(o.codec)->codec, "tester");
    assert_ptr_equal(kvant_codec_row(o.codec)->setup, tester.last_setup);
    assert_non_null(kvant_codec_state(o.codec));
    floor_close(&o);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(rows_pass_as_they_are_whatever_their_strides, floor_setup),
        cmocka_unit_test_setup(zero_strides_repeat, floor_setup),
        cmocka_unit_test_setup(any_range_decodes_into_any_dtype, floor_setup),
        cmocka_unit_test_setup(not_finite_is_refused_with_its_place, floor_setup),
        cmocka_unit_test_setup(not_finite_is_replaced_where_asked, floor_setup),
        cmocka_unit_test_setup(tags_become_classes, floor_setup),
        cmocka_unit_test_setup(sizes_are_those_of_the_layout, floor_setup),
        cmocka_unit_test_setup(wrong_arguments_are_refused, floor_setup),
        cmocka_unit_test_setup(open_says_why_not, floor_setup),
        cmocka_unit_test_setup(a_codec_keeps_its_plan_alive, floor_setup),
    };
    return kvant_run_tests(tests, argc, argv);
}
