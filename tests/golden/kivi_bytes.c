/* KIVI's bytes: the same at every instruction set, for every stride and alignment of the rows, and for any
 * range of tokens and heads that is decoded; sizes and bits as the byte map says; options change them; what
 * cannot be done is refused with the parameter named. */
#include "support/test_codec.h"
#include "support/test.h"

#include <kivi/kivi_block.h>
#include <kvant/kit/view.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct shape {
    uint32_t side, dtype, tokens, heads, dim;
    const char *parameters;
} shape;

static kvant_test_codec *open_shape(const shape *s, uint32_t isa) {
    return kvant_test_codec_open("kivi", s->side, s->dtype, s->tokens, s->heads, s->dim, isa, s->parameters);
}

static size_t count_of(const shape *s) {
    return (size_t)s->tokens * s->heads * s->dim;
}

static uint64_t extent_max(const kvant_test_codec *codec) {
    return codec->layout.size_min + codec->layout.size_step * codec->layout.size_steps;
}

enum { ORDINARY, ANY_BITS, COARSE, NARROW, KINDS };

/* ANY_BITS: every finite bit pattern of the type alike, subnormals to overflow; COARSE: few values, so many
 * constant groups and ties; NARROW: small differences at a large offset. */
static void *rows_of(const shape *s, int kind, uint64_t seed) {
    uint32_t bytes = kvant_element_bytes(s->dtype);
    uint8_t *rows = malloc(count_of(s) * bytes);
    assert_non_null(rows);
    for (size_t i = 0; i < count_of(s); i++) {
        uint64_t r = kvant_test_random(&seed);
        float x = (float)kvant_test_normal(&seed);
        if (kind == COARSE) x = (float)(int)(r % 4) * 0.5f - 1;
        if (kind == NARROW) x = 100 + x / 64;
        kvant_store_element(rows + i * bytes, s->dtype, x);
        if (kind != ANY_BITS) continue;
        do {
            r = kvant_test_random(&seed);
            memcpy(rows + i * bytes, &r, bytes);
            if (i % 3 != 0) { /* and many of like size, so that not every group overflows */
                x = kvant_load_element(rows + i * bytes, s->dtype);
                kvant_store_element(rows + i * bytes, s->dtype,
                                    x * (s->dtype == KVANT_DTYPE_F16 ? 0x1p-10f : 0x1p-90f));
            }
        } while (!isfinite(kvant_load_element(rows + i * bytes, s->dtype)));
    }
    return rows;
}

/* The scalar level is the norm. */
static void check_levels(const shape *s, int kind, uint64_t seed) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    void *rows = rows_of(s, kind, seed);
    kvant_test_codec *norm = open_shape(s, KVANT_ISA_SCALAR);
    kvant_test_codec_encode(norm, rows, count_of(s));
    for (uint32_t i = 0; i < isa_count; i++) {
        kvant_test_codec *codec = open_shape(s, isas[i]);
        assert_int_equal(codec->layout.isa, isas[i]); /* every level of this machine was built */
        kvant_test_codec_encode(codec, rows, count_of(s));
        assert_int_equal(codec->size, norm->size);
        assert_int_equal(codec->saturated, norm->saturated);
        kvant_assert_bytes(codec->extent, norm->extent, norm->size);
        for (uint32_t dtype = KVANT_DTYPE_F32; dtype <= KVANT_DTYPE_BF16; dtype++) {
            void *want = kvant_test_codec_decode(norm, dtype), *got = kvant_test_codec_decode(codec, dtype);
            if (memcmp(got, want, count_of(s) * kvant_element_bytes(dtype)) != 0)
                print_error("side %u, rows %u as %u, %u x %u x %u, %s, kind %d, isa %u:\n", s->side, s->dtype,
                            dtype, s->tokens, s->heads, s->dim, s->parameters, kind, isas[i]);
            kvant_assert_bytes(got, want, count_of(s) * kvant_element_bytes(dtype));
            free(got);
            free(want);
        }
        kvant_test_codec_close(codec);
    }
    kvant_test_codec_close(norm);
    free(rows);
}

static void levels_agree(void **state) {
    static const uint32_t bits[] = {1, 2, 3, 4, 8};
    static const char *const metas[] = {"input", "f16", "bf16", "f32"};
    static const uint32_t dims[] = {64, 46, 1, 100, 8, 33, 128};
    static const uint32_t groups[] = {32, 5, 16, 1, 64, 3, 20}, tokens[] = {64, 35, 48, 7, 128, 69, 100};
    uint64_t seed = 1;
    (void)state;
    for (uint32_t n = 0; n < 600; n++) {
        char parameters[64];
        uint32_t g = n % 7, side = n / 7 % 2;
        (void)snprintf(parameters, sizeof parameters, "bits=%u group=%u meta=%s",
                       bits[kvant_test_random(&seed) % 5], groups[g], metas[kvant_test_random(&seed) % 4]);
        shape s = {side,
                   KVANT_DTYPE_F32 + (uint32_t)(kvant_test_random(&seed) % 3),
                   side == KVANT_SIDE_KEY ? tokens[g] / groups[g] * groups[g] : tokens[g],
                   1 + (uint32_t)(kvant_test_random(&seed) % 2),
                   dims[kvant_test_random(&seed) % 7],
                   parameters};
        check_levels(&s, (int)(n / 14 % KINDS), n);
    }
}

/* ---- Views --------------------------------------------------------------------------------------------- */

/* Rows of `s` spread in memory: `element` bytes apart along channels, heads before tokens, from an odd
 * address on. */
static uint8_t *spread(const shape *s, const void *rows, int64_t channel_stride, kvant_view *view) {
    int64_t bytes = kvant_element_bytes(s->dtype), token = llabs(channel_stride) * s->dim + 3;
    size_t room = (size_t)(token * s->tokens * s->heads) + 64;
    uint8_t *memory = malloc(room);
    assert_non_null(memory);
    memset(memory, 0xFF, room); /* NaN */
    uint8_t *start = memory + 1 + (channel_stride < 0 ? -channel_stride * (s->dim - 1) : 0);
    *view = (kvant_view){.struct_size = sizeof *view,
                         .dtype = s->dtype,
                         .data = start,
                         .tokens = s->tokens,
                         .heads = s->heads,
                         .head_dim = s->dim,
                         .token_stride = token,
                         .head_stride = token * s->tokens,
                         .channel_stride = channel_stride};
    for (uint32_t t = 0; t < s->tokens; t++)
        for (uint32_t h = 0; h < s->heads; h++)
            for (uint32_t c = 0; c < s->dim; c++)
                memcpy(start + t * view->token_stride + h * view->head_stride + c * channel_stride,
                       (const uint8_t *)rows + (((size_t)t * s->heads + h) * s->dim + c) * (size_t)bytes,
                       (size_t)bytes);
    return memory;
}

static void encode_view(kvant_test_codec *codec, const kvant_view *view) {
    kvant_encode_args args = {
        .struct_size = sizeof args, .rows = view, .extent = codec->extent, .scratch = codec->scratch};
    memset(codec->extent, 0x5A, extent_max(codec));
    assert_int_equal(codec->plugin->encode(codec->state, &args), KVANT_OK);
    assert_int_equal(args.size, codec->size);
}

static void strides_do_not_matter(void **state) {
    static const shape shapes[] = {{KVANT_SIDE_KEY, KVANT_DTYPE_F32, 64, 2, 70, "bits=2"},
                                   {KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 64, 2, 70, "bits=2"},
                                   {KVANT_SIDE_KEY, KVANT_DTYPE_F16, 32, 3, 46, "bits=4"},
                                   {KVANT_SIDE_VALUE, KVANT_DTYPE_F16, 33, 3, 46, "bits=4"},
                                   {KVANT_SIDE_KEY, KVANT_DTYPE_BF16, 96, 1, 128, "bits=3"},
                                   {KVANT_SIDE_VALUE, KVANT_DTYPE_BF16, 9, 1, 128, "bits=3"}};
    static const int64_t steps[] = {1, 2, 5, -1, -3};
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    (void)state;
    for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++)
        for (uint32_t i = 0; i < isa_count; i++) {
            const shape *s = &shapes[n];
            void *rows = rows_of(s, ORDINARY, n);
            kvant_test_codec *codec = open_shape(s, isas[i]);
            kvant_test_codec_encode(codec, rows, count_of(s));
            uint8_t *want = malloc(codec->size);
            assert_non_null(want);
            memcpy(want, codec->extent, codec->size);
            for (size_t k = 0; k < sizeof steps / sizeof steps[0]; k++) {
                kvant_view view;
                int64_t stride = steps[k] * (int64_t)kvant_element_bytes(s->dtype);
                uint8_t *memory = spread(s, rows, stride, &view);
                encode_view(codec, &view);
                kvant_assert_bytes(codec->extent, want, codec->size);
                free(memory);
            }
            free(want);
            free(rows);
            kvant_test_codec_close(codec);
        }
}

/* Any range of tokens and heads, into rows of any stride: what the whole block decodes to, and nothing beside
 * it. */
static void check_range(kvant_test_codec *codec, const shape *s, const uint8_t *whole, uint32_t dtype,
                        uint64_t *seed) {
    uint32_t bytes = kvant_element_bytes(dtype);
    uint32_t t0 = (uint32_t)(kvant_test_random(seed) % s->tokens),
             h0 = (uint32_t)(kvant_test_random(seed) % s->heads);
    uint32_t tokens = 1 + (uint32_t)(kvant_test_random(seed) % (s->tokens - t0));
    uint32_t heads = 1 + (uint32_t)(kvant_test_random(seed) % (s->heads - h0));
    int64_t channel = (int64_t)bytes * (1 + (int64_t)(kvant_test_random(seed) % 2));
    int64_t head = channel * s->dim + 1, token = head * heads + 5;
    size_t room = (size_t)(token * tokens) + 64;
    uint8_t *memory = malloc(room), *want = malloc(room);
    assert_true(memory != NULL && want != NULL);
    memset(memory, 0xA5, room);
    memset(want, 0xA5, room);
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t c = 0; c < s->dim; c++)
                memcpy(want + 1 + t * token + h * head + c * channel,
                       whole + (((size_t)(t0 + t) * s->heads + h0 + h) * s->dim + c) * bytes, bytes);
    kvant_mutable_view view = {.struct_size = sizeof view,
                               .dtype = dtype,
                               .data = memory + 1,
                               .tokens = tokens,
                               .heads = heads,
                               .head_dim = s->dim,
                               .token_stride = token,
                               .head_stride = head,
                               .channel_stride = channel};
    kvant_extent extent = {.bytes = codec->extent, .size = codec->size, .live_count = s->tokens};
    kvant_decode_args args = {.struct_size = sizeof args,
                              .first_token = t0,
                              .first_head = h0,
                              .extent = &extent,
                              .rows = &view,
                              .scratch = codec->scratch};
    assert_int_equal(codec->plugin->decode(codec->state, &args), KVANT_OK);
    kvant_assert_bytes(memory, want, room);
    free(want);
    free(memory);
}

static void any_range_decodes(void **state) {
    static const shape shapes[] = {{KVANT_SIDE_KEY, KVANT_DTYPE_F32, 40, 3, 70, "bits=2 group=5"},
                                   {KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 150, 3, 70, "bits=2 group=16"},
                                   {KVANT_SIDE_KEY, KVANT_DTYPE_F16, 64, 2, 33, "bits=3"},
                                   {KVANT_SIDE_VALUE, KVANT_DTYPE_F16, 70, 2, 33, "bits=3"}};
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    uint64_t seed = 5;
    (void)state;
    for (size_t n = 0; n < sizeof shapes / sizeof shapes[0]; n++)
        for (uint32_t i = 0; i < isa_count; i++)
            for (uint32_t dtype = KVANT_DTYPE_F32; dtype <= KVANT_DTYPE_BF16; dtype++) {
                const shape *s = &shapes[n];
                void *rows = rows_of(s, ORDINARY, n);
                kvant_test_codec *codec = open_shape(s, isas[i]);
                kvant_test_codec_encode(codec, rows, count_of(s));
                uint8_t *whole = kvant_test_codec_decode(codec, dtype);
                for (int k = 0; k < 20; k++) check_range(codec, s, whole, dtype, &seed);
                free(whole);
                free(rows);
                kvant_test_codec_close(codec);
            }
}

static bool is_nan(uint32_t bits) {
    return (bits & 0x7fffffff) > 0x7f800000;
}

/* Arbitrary bytes decode to something, at every level to the same (the guards watch what is written). */
static void arbitrary_bytes_are_safe(void **state) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    uint64_t seed = 9;
    (void)state;
    for (uint32_t n = 0; n < 60; n++) {
        static const char *const parameters[] = {"bits=2", "bits=3 meta=f32", "bits=8 meta=f16",
                                                 "bits=1 group=16"};
        shape s = {n % 2, KVANT_DTYPE_F32 + n % 3, n % 2 ? 70 : 64, 2, 50, parameters[n % 4]};
        kvant_test_codec *norm = open_shape(&s, KVANT_ISA_SCALAR);
        norm->size = norm->layout.size_min;
        for (size_t i = 0; i < norm->size; i++) norm->extent[i] = (uint8_t)kvant_test_random(&seed);
        uint32_t *want = kvant_test_codec_decode(norm, KVANT_DTYPE_F32);
        for (uint32_t i = 0; i < isa_count; i++) {
            kvant_test_codec *codec = open_shape(&s, isas[i]);
            kvant_array array;
            codec->size = norm->size;
            memcpy(codec->extent, norm->extent, norm->size);
            uint32_t *got = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
            for (size_t k = 0; k < count_of(&s); k++)
                if (got[k] != want[k] && !(is_nan(got[k]) && is_nan(want[k])))
                    fail_msg("n %u isa %u element %zu: %08x, not %08x", n, isas[i], k, got[k], want[k]);
            free(got);
            free(kvant_test_codec_inspect(codec, "codes", &array));
            free(kvant_test_codec_inspect(codec, "min", &array));
            kvant_test_codec_close(codec);
        }
        free(want);
        kvant_test_codec_close(norm);
    }
}

/* ---- Layout -------------------------------------------------------------------------------------------- */

static void sizes_and_bits(void **state) {
    static const struct {
        shape s;
        uint64_t size, payload, metadata;
    } rows[] = {
        /* 1024 bytes of codes, 2 groups x 64 channels x 2 bytes of scales, as many of minima */
        {{KVANT_SIDE_KEY, KVANT_DTYPE_F16, 64, 1, 64, "bits=2"}, 1024 + 256 + 256, 64 * 64 * 2, 2 * 128 * 16},
        {{KVANT_SIDE_VALUE, KVANT_DTYPE_F16, 64, 3, 64, "bits=2"},
         3 * 1536,
         3 * 64 * 64 * 2,
         3 * 2 * 128 * 16},
        /* 4 groups, the last of 4 channels; 112 channels and 64 tokens of codes */
        {{KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 64, 1, 100, "bits=4"},
         112 * 32 + 2 * 1024,
         6400 * 4,
         2 * 256 * 32},
        {{KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 64, 1, 64, "bits=4 group=4096"},
         2048 + 512,
         4096 * 4,
         2 * 64 * 32},
        /* 3 bits are 2 and 1; 80 channels take 5 + 3 words, 16 tokens are a line */
        {{KVANT_SIDE_KEY, KVANT_DTYPE_F32, 32, 1, 80, "bits=3 meta=f16"},
         2 * 8 * 64 + 320,
         2560 * 3,
         2 * 80 * 16},
        {{KVANT_SIDE_KEY, KVANT_DTYPE_F32, 3, 1, 1, "bits=8 group=3"}, 64 + 64, 24, 64},
        /* two matrices: 64 tokens and 6 */
        {{KVANT_SIDE_VALUE, KVANT_DTYPE_BF16, 70, 1, 16, "bits=2"}, 256 + 64 + 320, 70 * 16 * 2, 2 * 70 * 16},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const shape *s = &rows[i].s;
        kvant_layout layout;
        kvant_diag diag = {.struct_size = sizeof diag};
        assert_int_equal(kvant_test_codec_plan("kivi", s->side, s->dtype, s->tokens, s->heads, s->dim,
                                               s->parameters, &layout, &diag),
                         KVANT_OK);
        assert_int_equal(layout.size_min, rows[i].size);
        assert_int_equal(layout.size_steps, 0);
        assert_int_equal(layout.payload_bits, rows[i].payload);
        assert_int_equal(layout.metadata_bits, rows[i].metadata);
        assert_true(layout.payload_bits + layout.metadata_bits <= 8 * layout.size_min);
        assert_int_equal(layout.block_multiple, s->side == KVANT_SIDE_VALUE ? 1 : i == 5 ? 3 : 32);
    }
}

/* Where kivi_block.h says a number lies, flipping it changes that number and no other. */
static void byte_map(void **state) {
    static const shape shapes[] = {{KVANT_SIDE_KEY, KVANT_DTYPE_F32, 10, 2, 37, "bits=3 group=5"},
                                   {KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 70, 2, 37, "bits=3 group=16"}};
    (void)state;
    for (size_t n = 0; n < 2; n++) {
        const shape *s = &shapes[n];
        kivi_block block = {0};
        uint32_t group = n == 0 ? 5 : 16;
        uint64_t seed = 3;
        assert_true(
            kivi_block_make(&block, s->side, 3, group, s->dtype, s->dtype, s->tokens, s->heads, s->dim));
        kvant_test_codec *codec = open_shape(s, KVANT_ISA_SCALAR);
        void *rows = rows_of(s, ORDINARY, 1);
        kvant_test_codec_encode(codec, rows, count_of(s));
        assert_int_equal(block.bytes, codec->size);
        float *before = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
        for (uint32_t k = 0; k < 50; k++) {
            uint32_t t = (uint32_t)(kvant_test_random(&seed) % s->tokens), h = k % 2;
            uint32_t c = (uint32_t)(kvant_test_random(&seed) % s->dim);
            uint8_t *head = codec->extent + h * block.head_bytes;
            uint32_t code = kivi_code_get(&block, head, t, c);
            kivi_code_put(&block, head, t, c, code ^ 4);
            float *after = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
            for (size_t i = 0; i < count_of(s); i++)
                assert_int_equal(after[i] != before[i], i == ((size_t)t * s->heads + h) * s->dim + c);
            free(after);
            kivi_code_put(&block, head, t, c, code);
        }
        free(before);
        free(rows);
        kvant_test_codec_close(codec);
    }
}

static void options_change_bytes(void **state) {
    static const char *const options[] = {"",         "bits=1",   "bits=3",    "bits=4",  "bits=8",
                                          "group=16", "group=64", "meta=bf16", "meta=f32"};
    enum { COUNT = sizeof options / sizeof options[0] };
    (void)state;
    for (uint32_t side = 0; side < 2; side++) {
        uint8_t *bytes[COUNT];
        uint64_t sizes[COUNT];
        for (size_t i = 0; i < COUNT; i++) {
            shape s = {side, KVANT_DTYPE_F16, 64, 2, 128, options[i]};
            void *rows = rows_of(&s, ORDINARY, 4);
            kvant_test_codec *codec = open_shape(&s, KVANT_ISA_SCALAR);
            kvant_test_codec_encode(codec, rows, count_of(&s));
            sizes[i] = codec->size;
            bytes[i] = malloc(codec->size);
            assert_non_null(bytes[i]);
            memcpy(bytes[i], codec->extent, codec->size);
            kvant_test_codec_close(codec);
            free(rows);
            for (size_t k = 0; k < i; k++)
                assert_true(sizes[k] != sizes[i] || memcmp(bytes[k], bytes[i], sizes[i]) != 0);
        }
        for (size_t i = 0; i < COUNT; i++) free(bytes[i]);
    }
}

static void refusals(void **state) {
    kvant_layout layout;
    kvant_diag diag = {.struct_size = sizeof diag};
    (void)state;
    assert_int_equal(
        kvant_test_codec_plan("kivi", KVANT_SIDE_KEY, KVANT_DTYPE_F32, 48, 1, 64, "group=32", &layout, &diag),
        KVANT_ERROR_BLOCK_TOKENS);
    assert_string_equal(diag.key, "group");
    kvant_assert_contains(diag.message, "group = 32 must divide block_tokens = 48");
    assert_int_equal(layout.block_multiple, 32);
    assert_int_equal(kvant_test_codec_plan("kivi", KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 48, 1, 64, "group=32",
                                           &layout, &diag),
                     KVANT_OK);
    assert_int_equal(
        kvant_test_codec_plan("kivi", KVANT_SIDE_KEY, KVANT_DTYPE_F32, 32, 1, 5000, "", &layout, &diag),
        KVANT_ERROR_GEOMETRY);
    kvant_assert_contains(diag.message, "5000");
    assert_int_equal(
        kvant_test_codec_plan("kivi", KVANT_SIDE_KEY, KVANT_DTYPE_F32, 1u << 31, 1, 64, "", &layout, &diag),
        KVANT_ERROR_GEOMETRY);
    kvant_assert_contains(diag.message, "block_tokens");
    assert_int_equal(kvant_test_codec_plan("kivi", KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 1u << 20, UINT32_MAX,
                                           4096, "bits=8", &layout, &diag),
                     KVANT_ERROR_GEOMETRY);
    kvant_assert_contains(diag.message, "too large");
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_agree),         cmocka_unit_test(strides_do_not_matter),
        cmocka_unit_test(any_range_decodes),    cmocka_unit_test(arbitrary_bytes_are_safe),
        cmocka_unit_test(sizes_and_bits),       cmocka_unit_test(byte_map),
        cmocka_unit_test(options_change_bytes), cmocka_unit_test(refusals),
    };
    return kvant_run_tests(tests, argc, argv);
}
