/* Rows of views as floats: every dtype, stride and alignment, against loads made one by one in this test.
 * (The vector conversions of higher instruction sets are compared with the scalar ones by
 * tests/unit/raw_rows.c.) */
#include "support/test.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <stdlib.h>

static const uint32_t dtypes[] = {KVANT_DTYPE_F32, KVANT_DTYPE_F16, KVANT_DTYPE_BF16};

enum { TOKENS = 3, HEADS = 2, ROOM = 1 << 16 };

typedef struct strides {
    int64_t token, head, channel;
    size_t start; /* where element (0, 0, 0) lies */
} strides;

/* Returns how many of the numbers it stored were beyond the type's range. */
static uint32_t check_view(uint32_t dtype, uint32_t dim, const strides *s, uint64_t *seed) {
    uint32_t over = 0;
    uint8_t *memory = malloc(ROOM), *copy = malloc(ROOM);
    float *row = malloc((dim + 1) * sizeof *row);
    assert_true(memory != NULL && copy != NULL && row != NULL);
    for (size_t i = 0; i < ROOM; i++) memory[i] = (uint8_t)(kvant_test_random(seed) >> 24);
    memcpy(copy, memory, ROOM);
    kvant_view view = {.struct_size = sizeof view,
                       .dtype = dtype,
                       .data = memory + s->start,
                       .tokens = TOKENS,
                       .heads = HEADS,
                       .head_dim = dim,
                       .token_stride = s->token,
                       .head_stride = s->head,
                       .channel_stride = s->channel};
    kvant_mutable_view out = {.struct_size = sizeof out,
                              .dtype = dtype,
                              .data = copy + s->start,
                              .tokens = TOKENS,
                              .heads = HEADS,
                              .head_dim = dim,
                              .token_stride = s->token,
                              .head_stride = s->head,
                              .channel_stride = s->channel};
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t h = 0; h < HEADS; h++) {
            row[dim] = 123;
            kvant_load_row(&view, t, h, row);
            assert_true(row[dim] == 123);
            int64_t start = (int64_t)s->start + t * s->token + h * s->head;
            for (uint32_t c = 0; c < dim; c++) {
                const uint8_t *element = memory + start + c * s->channel;
                uint32_t want;
                if (dtype == KVANT_DTYPE_F32) {
                    memcpy(&want, element, 4);
                } else {
                    uint16_t half = (uint16_t)(element[0] | element[1] << 8);
                    want = kvant_float_bits(dtype == KVANT_DTYPE_F16 ? kvant_f16_to_f32(half)
                                                                     : kvant_bf16_to_f32(half));
                }
                if (kvant_float_bits(row[c]) != want)
                    fail_msg("dtype %u, dim %u, stride %d: (%u, %u, %u) is %08x, not %08x", dtype, dim,
                             (int)s->channel, t, h, c, kvant_float_bits(row[c]), want);
                /* What will be stored: a number with more bits than halves have. */
                row[c] = (float)(kvant_test_normal(seed) * (c % 5 == 0 ? 40000 : 1));
            }
            uint8_t *expected = malloc(ROOM);
            assert_non_null(expected);
            memcpy(expected, copy, ROOM);
            kvant_store_row(&out, t, h, row);
            for (uint32_t c = 0; c < dim; c++) {
                float x = row[c];
                if (dtype == KVANT_DTYPE_F16 && (x > 65504 || x < -65504)) {
                    x = x > 0 ? 65504.0f : -65504.0f;
                    over++;
                }
                uint16_t half = dtype == KVANT_DTYPE_F16 ? kvant_f32_to_f16(x) : kvant_f32_to_bf16(x);
                if (dtype == KVANT_DTYPE_F32)
                    memcpy(expected + start + c * s->channel, &row[c], 4);
                else
                    memcpy(expected + start + c * s->channel, &half, 2);
            }
            kvant_assert_bytes(copy, expected, ROOM); /* these channels and nothing else */
            free(expected);
        }
    }
    free(memory);
    free(copy);
    free(row);
    return over;
}

static void rows_of_any_stride(void **state) {
    (void)state;
    static const uint32_t dims[] = {1, 2, 7, 8, 9, 46, 64, 100, 128, 320};
    uint64_t seed = 61;
    uint32_t over = 0;
    for (size_t k = 0; k < 3; k++) {
        int64_t e = kvant_element_bytes(dtypes[k]);
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
            int64_t dim = dims[d];
            const strides all[] = {
                {HEADS * dim * e, dim * e, e, 64},                     /* dense */
                {HEADS * dim * e + 1, dim * e, e, 3},                  /* rows at odd addresses */
                {dim * e, TOKENS * dim * e, e, 0},                     /* [head, token, channel] */
                {e, e * TOKENS, e * TOKENS * HEADS, 8},                /* [channel, head, token] */
                {-HEADS * dim * 3 * e, -dim * 3 * e, 3 * e, 60000},    /* downwards, with gaps */
                {HEADS * dim * e, dim * e, -e, (size_t)(dim * e) + 7}, /* channels backwards */
            };
            for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
                over += check_view(dtypes[k], dims[d], &all[i], &seed);
        }
    }
    assert_true(over > 100);
}

/* A finite number beyond the range becomes the largest, infinity and NaN stay. */
static void stores_saturate(void **state) {
    (void)state;
    static const struct {
        float x;
        uint16_t f16, bf16;
    } cases[] = {
        {65504, 0x7bff, 0x4780},
        {65519.99f, 0x7bff, 0x4780},
        {65520, 0x7bff, 0x4780},
        {-65520, 0xfbff, 0xc780},
        {-1e30f, 0xfbff, 0xf14a},
        {0x1.fdp127f, 0x7bff, 0x7f7e},
        {0x1.fefffep127f, 0x7bff, 0x7f7f},
        {0x1.ffp127f, 0x7bff, 0x7f7f},
        {INFINITY, 0x7c00, 0x7f80},
        {-INFINITY, 0xfc00, 0xff80},
        {NAN, 0x7fff, 0x7fff},
        {-0x1.fffffep127f, 0xfbff, 0xff7f},
        {1.5f, 0x3e00, 0x3fc0},
    };
    enum { COUNT = sizeof cases / sizeof cases[0] };
    float row[COUNT];
    uint16_t f16[COUNT], bf16[COUNT], half;
    for (int i = 0; i < COUNT; i++) row[i] = cases[i].x;
    kvant_store_elements(f16, KVANT_DTYPE_F16, COUNT, row);
    kvant_store_elements(bf16, KVANT_DTYPE_BF16, COUNT, row);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(f16[i], cases[i].f16);
        assert_int_equal(bf16[i], cases[i].bf16);
        kvant_store_element(&half, KVANT_DTYPE_F16, row[i]);
        assert_int_equal(half, cases[i].f16);
        kvant_store_element(&half, KVANT_DTYPE_BF16, row[i]);
        assert_int_equal(half, cases[i].bf16);
    }
}

/* Stride 0 is legal to read: one row for every token, one element for every channel. */
static void strides_of_zero(void **state) {
    (void)state;
    float x[2] = {2.5f, -3.5f}, row[5];
    kvant_view view = {.struct_size = sizeof view,
                       .dtype = KVANT_DTYPE_F32,
                       .data = x,
                       .tokens = 4,
                       .heads = 2,
                       .head_dim = 5,
                       .head_stride = sizeof x[0]};
    kvant_load_row(&view, 3, 1, row);
    for (int c = 0; c < 5; c++) assert_true(row[c] == -3.5f);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_any_stride),
        cmocka_unit_test(stores_saturate),
        cmocka_unit_test(strides_of_zero),
    };
    return kvant_run_tests(tests, argc, argv);
}
