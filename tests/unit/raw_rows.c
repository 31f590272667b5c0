/* raw: every pair of input and format at every instruction set, against conversions made in this test. */
#include "support/test_codec.h"
#include "support/test.h"

#include <kvant/kit/view.h>

#include <stdlib.h>

static const uint32_t dtypes[] = {KVANT_DTYPE_F32, KVANT_DTYPE_F16, KVANT_DTYPE_BF16};
static const char *const formats[] = {"format=f32", "format=f16", "format=bf16"};

/* What must be stored for an element, and whether it left the range. */
static uint32_t stored(const void *element, uint32_t input, uint32_t format, uint64_t *saturated) {
    if (input == format) {
        uint32_t bits = 0;
        memcpy(&bits, element, kvant_element_bytes(input));
        return bits;
    }
    float x = kvant_load_element(element, input);
    double largest = format == KVANT_DTYPE_F16 ? 65504 : 0x1.fep127;
    double overflow = format == KVANT_DTYPE_F16 ? 65520 : 0x1.ffp127; /* where rounding gives infinity */
    if (format != KVANT_DTYPE_F32 && ((double)x >= overflow || (double)x <= -overflow)) {
        (*saturated)++;
        x = (float)(x < 0 ? -largest : largest);
    }
    uint32_t bits = 0;
    kvant_store_element(&bits, format, x);
    return bits;
}

/* Finite elements with everything in them: outliers, subnormals, signed zeros, ends of the range. */
static void fill(uint8_t *rows, size_t count, uint32_t dtype, uint64_t seed) {
    static const float special[] = {0.0f,      -0.0f,           65504.0f,    -65504.0f, 65519.99f, 65520.0f,
                                    -65536.0f, 0x1p-24f,        -0x1.8p-25f, 0x1p-140f, 1e-30f,    3e38f,
                                    -3.4e38f,  0x1.fefffep127f, 0x1.ffp127f, 1e5f};
    for (size_t i = 0; i < count; i++) {
        float x = (float)(kvant_test_normal(&seed) * (i % 7 == 3 ? 40 : 1) + (i % 5 == 0 ? 8 : 0));
        if (i % 11 == 4) x = special[kvant_test_random(&seed) % (sizeof special / sizeof special[0])];
        uint8_t *element = rows + i * kvant_element_bytes(dtype);
        kvant_store_element(element, dtype, x);
        float back = kvant_load_element(element, dtype);
        if (back - back != 0) kvant_store_element(element, dtype, 1.5f); /* special values overflow in F16 */
    }
}

static void check_pair(uint32_t input, size_t f, uint32_t isa, uint32_t tokens, uint32_t heads,
                       uint32_t dim) {
    size_t count = (size_t)tokens * heads * dim, in_bytes = kvant_element_bytes(input);
    size_t out_bytes = kvant_element_bytes(dtypes[f]);
    uint8_t *rows = malloc(count * in_bytes);
    assert_non_null(rows);
    fill(rows, count, input, 17 + dim);
    kvant_test_codec *codec =
        kvant_test_codec_open("raw", KVANT_SIDE_KEY, input, tokens, heads, dim, isa, formats[f]);
    kvant_test_codec_encode(codec, rows, count);
    assert_int_equal(codec->layout.isa, isa);

    size_t head_bytes = (tokens * dim * out_bytes + 63) / 64 * 64;
    assert_int_equal(codec->size, heads * head_bytes);
    assert_int_equal(codec->layout.size_min, codec->size);
    assert_int_equal(codec->layout.payload_bits, count * out_bytes * 8);
    assert_int_equal(codec->layout.metadata_bits, 0);
    int lossless = input == dtypes[f] || dtypes[f] == KVANT_DTYPE_F32;
    assert_int_equal(codec->layout.flags, lossless ? KVANT_LAYOUT_LOSSLESS : 0);

    uint64_t saturated = 0;
    uint8_t *want = calloc(codec->size, 1), *values = malloc(count * out_bytes);
    assert_true(want != NULL && values != NULL);
    for (size_t t = 0; t < tokens; t++)
        for (size_t h = 0; h < heads; h++)
            for (size_t c = 0; c < dim; c++) {
                size_t i = (t * heads + h) * dim + c;
                uint32_t bits = stored(rows + i * in_bytes, input, dtypes[f], &saturated);
                memcpy(want + h * head_bytes + (t * dim + c) * out_bytes, &bits, out_bytes);
                memcpy(values + i * out_bytes, &bits, out_bytes);
            }
    kvant_assert_bytes(codec->extent, want, codec->size);
    assert_int_equal(codec->saturated, saturated);
    if (dtypes[f] != KVANT_DTYPE_F32 && input == KVANT_DTYPE_F32 && count > 1000) assert_true(saturated > 5);

    kvant_array array;
    uint8_t *inspected = kvant_test_codec_inspect(codec, "values", &array);
    assert_int_equal(array.dtype, dtypes[f]);
    assert_true(array.rank == 3 && array.shape[0] == tokens && array.shape[1] == heads &&
                array.shape[2] == dim);
    assert_int_equal(array.bytes, count * out_bytes);
    kvant_assert_bytes(inspected, values, count * out_bytes);
    free(inspected);

    for (size_t k = 0; k < 3; k++) {
        size_t bytes = kvant_element_bytes(dtypes[k]);
        uint8_t *back = kvant_test_codec_decode(codec, dtypes[k]), *expected = malloc(count * bytes);
        assert_non_null(expected);
        for (size_t i = 0; i < count; i++) {
            float x = kvant_load_element(values + i * out_bytes, dtypes[f]);
            kvant_store_element(expected + i * bytes, dtypes[k], x);
        }
        kvant_assert_bytes(back, expected, count * bytes);
        if (lossless && dtypes[k] == input) kvant_assert_bytes(back, rows, count * bytes);
        free(back);
        free(expected);
    }
    free(rows);
    free(want);
    free(values);
    kvant_test_codec_close(codec);
}

static void stores_and_returns_every_pair(void **state) {
    (void)state;
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    static const uint32_t dims[] = {1, 7, 8, 46, 80, 128, 320, 1024, 4096};
    for (uint32_t k = 0; k < isa_count; k++)
        for (size_t i = 0; i < 3; i++)
            for (size_t f = 0; f < 3; f++)
                for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++)
                    check_pair(dtypes[i], f, isas[k], 1 + (uint32_t)d * 9, d < 7 ? 3 : 1, dims[d]);
}

/* All halves, NaN and infinity too, through the vector conversions: equal to the scalar code's bytes. */
static void every_half_at_every_isa(void **state) {
    (void)state;
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    uint16_t *halves = malloc(65536 * sizeof *halves);
    float *floats = malloc(65536 * sizeof *floats);
    assert_true(halves != NULL && floats != NULL);
    for (uint32_t i = 0; i < 65536; i++) {
        halves[i] = (uint16_t)i;
        floats[i] = kvant_bits_float(i << 16 | (i * 40503u & 0xffffu)); /* every BF16, with more bits below */
    }
    for (size_t input = 0; input < 3; input++) {
        for (size_t f = 0; f < 3; f++) {
            const void *rows = input == 0 ? (const void *)floats : (const void *)halves;
            uint8_t *want = NULL, *want_back[3] = {NULL, NULL, NULL};
            uint64_t want_saturated = 0;
            for (uint32_t k = 0; k < isa_count; k++) {
                kvant_test_codec *codec = kvant_test_codec_open("raw", KVANT_SIDE_VALUE, dtypes[input], 64, 1,
                                                                1024, isas[k], formats[f]);
                kvant_test_codec_encode(codec, rows, 65536);
                if (k == 0) {
                    want = malloc(codec->size);
                    assert_non_null(want);
                    memcpy(want, codec->extent, codec->size);
                    want_saturated = codec->saturated;
                }
                kvant_assert_bytes(codec->extent, want, codec->size);
                assert_int_equal(codec->saturated, want_saturated);
                for (size_t o = 0; o < 3; o++) {
                    uint8_t *back = kvant_test_codec_decode(codec, dtypes[o]);
                    if (k == 0) {
                        want_back[o] = back;
                        continue;
                    }
                    kvant_assert_bytes(back, want_back[o], 65536 * kvant_element_bytes(dtypes[o]));
                    free(back);
                }
                kvant_test_codec_close(codec);
            }
            free(want);
            for (size_t o = 0; o < 3; o++) free(want_back[o]);
        }
    }
    free(halves);
    free(floats);
}

/* Reversed channels, gaps, odd addresses, and a part of an extent. */
static void takes_any_stride_and_range(void **state) {
    (void)state;
    enum { TOKENS = 12, HEADS = 5, DIM = 46 };
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    for (uint32_t k = 0; k < isa_count; k++) {
        for (size_t i = 0; i < 9; i++) {
            uint32_t input = dtypes[i / 3], out = dtypes[(i + 1) % 3];
            size_t e = kvant_element_bytes(input), count = TOKENS * HEADS * DIM;
            uint8_t *dense = malloc(count * e), *spread = malloc(3 * count * e + 1);
            assert_true(dense != NULL && spread != NULL);
            fill(dense, count, input, 29);
            memset(spread, 0xff, 3 * count * e + 1); /* NaN between the elements */
            /* [head, token, channel] with channels backwards and two elements of gap, at an odd address. */
            kvant_view view = kvant_test_view(NULL, input, TOKENS, HEADS, DIM);
            view.channel_stride = -(int64_t)(3 * e);
            view.token_stride = (int64_t)(3 * e * DIM);
            view.head_stride = (int64_t)(3 * e * DIM * TOKENS);
            view.data = spread + 1 + 3 * e * (DIM - 1);
            for (uint32_t t = 0; t < TOKENS; t++)
                for (uint32_t h = 0; h < HEADS; h++)
                    for (uint32_t c = 0; c < DIM; c++)
                        memcpy(spread + 1 + 3 * e * ((h * TOKENS + t + 1) * DIM - 1 - c),
                               dense + ((t * HEADS + h) * DIM + c) * e, e);
            kvant_test_codec *codec = kvant_test_codec_open("raw", KVANT_SIDE_KEY, input, TOKENS, HEADS, DIM,
                                                            isas[k], formats[i % 3]);
            kvant_test_codec_encode(codec, dense, count);
            uint8_t *extent = malloc(codec->size);
            assert_non_null(extent);
            memset(extent, 0x5a, codec->size);
            kvant_encode_args args = {
                .struct_size = sizeof args, .rows = &view, .extent = extent, .scratch = codec->scratch};
            assert_int_equal(codec->plugin->encode(codec->state, &args), KVANT_OK);
            kvant_assert_bytes(extent, codec->extent, codec->size);

            /* Tokens 3 to 9 of heads 1 to 3, into the same kind of view. */
            uint8_t *whole = kvant_test_codec_decode(codec, out);
            size_t o = kvant_element_bytes(out);
            uint8_t *part = malloc(3 * 7 * 3 * DIM * o + 1);
            assert_non_null(part);
            memset(part, 0xa5, 3 * 7 * 3 * DIM * o + 1);
            kvant_mutable_view rows = kvant_test_mutable_view(part + 1 + 3 * o * (DIM - 1), out, 7, 3, DIM);
            rows.channel_stride = -(int64_t)(3 * o);
            rows.token_stride = (int64_t)(3 * o * DIM);
            rows.head_stride = (int64_t)(3 * o * DIM * 7);
            kvant_extent look = {.bytes = extent, .size = codec->size, .live_count = TOKENS};
            kvant_decode_args range = {.struct_size = sizeof range,
                                       .first_token = 3,
                                       .first_head = 1,
                                       .extent = &look,
                                       .rows = &rows,
                                       .scratch = codec->scratch};
            assert_int_equal(codec->plugin->decode(codec->state, &range), KVANT_OK);
            for (size_t t = 0; t < 7; t++)
                for (size_t h = 0; h < 3; h++)
                    for (size_t c = 0; c < DIM; c++) {
                        const uint8_t *got = part + 1 + 3 * o * ((h * 7 + t + 1) * DIM - 1 - c);
                        kvant_assert_bytes(got, whole + (((t + 3) * HEADS + h + 1) * DIM + c) * o, o);
                        for (size_t gap = o; gap < 3 * o && c > 0; gap++) assert_int_equal(got[gap], 0xa5);
                    }
            free(dense);
            free(spread);
            free(extent);
            free(whole);
            free(part);
            kvant_test_codec_close(codec);
        }
    }
}

static void input_is_the_default(void **state) {
    (void)state;
    kvant_diag diag = {.struct_size = sizeof diag};
    for (size_t i = 0; i < 3; i++) {
        kvant_layout layout;
        assert_int_equal(
            kvant_test_codec_plan("raw", KVANT_SIDE_VALUE, dtypes[i], 64, 2, 80, "", &layout, &diag),
            KVANT_OK);
        assert_int_equal(layout.payload_bits, 64 * 2 * 80 * 8 * kvant_element_bytes(dtypes[i]));
        assert_int_equal(layout.flags, KVANT_LAYOUT_LOSSLESS);
        assert_int_equal(layout.block_multiple, 1);
    }
}

static void refuses_what_cannot_be_addressed(void **state) {
    (void)state;
    kvant_layout layout;
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(kvant_test_codec_plan("raw", KVANT_SIDE_KEY, KVANT_DTYPE_F32, UINT32_MAX, UINT32_MAX,
                                           4096, "", &layout, &diag),
                     KVANT_ERROR_GEOMETRY);
    kvant_assert_contains(diag.message, "too large");
    assert_int_equal(
        kvant_test_codec_plan("raw", KVANT_SIDE_KEY, KVANT_DTYPE_F32, 0, 1, 64, "", &layout, &diag),
        KVANT_ERROR_GEOMETRY);
    kvant_assert_contains(diag.message, "block_tokens is 0");
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_and_returns_every_pair),    cmocka_unit_test(every_half_at_every_isa),
        cmocka_unit_test(takes_any_stride_and_range),       cmocka_unit_test(input_is_the_default),
        cmocka_unit_test(refuses_what_cannot_be_addressed),
    };
    return kvant_run_tests(tests, argc, argv);
}
