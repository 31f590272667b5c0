/* Where plain quantization breaks elsewhere: zeros, constants, denormals, the ends of the ranges, ragged
 * shapes, parts of an extent, strided and unaligned rows, hostile bytes. For every format, convention and
 * instruction set: finite output, the value that the formula gives, and the reference's bytes and floats. */
#include "support/test_codec.h"
#include "support/test.h"

#include <kvant/kit/half.h>
#include <kvant/kit/view.h>

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every row of the table of conventions, in f16 and (where it takes them) other scales. */
static const char *const rules[] = {
    "format=int8",
    "format=int4",
    "format=int3",
    "format=int2",
    "format=int1",
    "format=e4m3",
    "format=e5m2",
    "format=int8 symmetry=asymmetric",
    "format=int4 symmetry=asymmetric",
    "format=int3 symmetry=asymmetric",
    "format=int2 symmetry=asymmetric",
    "format=int1 symmetry=asymmetric",
    "format=int8 convention=reciprocal",
    "format=int4 symmetry=asymmetric convention=reciprocal",
    "format=e4m3 convention=reciprocal",
    "format=e5m2 convention=reciprocal",
    "format=int8 convention=compressed_tensors",
    "format=int4 convention=compressed_tensors",
    "format=int3 convention=compressed_tensors",
    "format=int2 symmetry=asymmetric convention=compressed_tensors",
    "format=int8 symmetry=asymmetric convention=compressed_tensors",
    "format=e4m3 convention=compressed_tensors",
    "format=int8 convention=quanto",
    "format=int3 symmetry=asymmetric convention=quanto",
    "format=int8 convention=gguf",
    "format=int4 convention=gguf",
    "format=int4 symmetry=asymmetric convention=gguf",
};
static const char *const scales[] = {"f32", "f16", "bf16", "e8m0"};
static const char *const granularities[] = {
    "tensor", "head", "channel", "token", "group_channels group=32", "group_tokens group=2"};

static bool legal(const char *parameters, uint32_t tokens) {
    kvant_layout layout;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status status =
        kvant_test_codec_plan("uniform", 0, KVANT_DTYPE_F32, tokens, 1, 8, parameters, &layout, &diag);
    if (status != KVANT_OK && status != KVANT_ERROR_BLOCK_TOKENS)
        assert_int_equal(status, KVANT_ERROR_CONFLICT);
    return status == KVANT_OK;
}

/* Rows of `dtype` from floats; the caller frees. */
static void *rows_of(const float *x, size_t count, uint32_t dtype) {
    char *rows = malloc(count * kvant_element_bytes(dtype));
    assert_non_null(rows);
    for (size_t i = 0; i < count; i++)
        kvant_store_element(rows + i * kvant_element_bytes(dtype), dtype, x[i]);
    return rows;
}

/* Sanitizers are slow: they see one combination of this many. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SAMPLE = 7 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { SAMPLE = 7 };
#else
enum { SAMPLE = 1 };
#endif
#else
enum { SAMPLE = 1 };
#endif

/* ---- Special values ------------------------------------------------------------------------------------ */

enum { TOKENS = 6, HEADS = 2, DIM = 46, COUNT = TOKENS * HEADS * DIM };

enum special {
    ZERO,
    NEGATIVE_ZERO,
    CONSTANT,
    NEGATIVE,
    TOP,
    BOTTOM,
    TINY,
    DENORMAL,
    ENDS,
    ONE_HOT,
    NARROW,
    SPECIALS
};

static float special(uint32_t kind, size_t i, uint32_t dtype) {
    float largest = dtype == KVANT_DTYPE_F16 ? 65504.0f : dtype == KVANT_DTYPE_BF16 ? 0x1.fep127f : FLT_MAX;
    switch (kind) {
    case ZERO:
        return 0.0f;
    case NEGATIVE_ZERO:
        return -0.0f;
    case CONSTANT:
        return 1.5f;
    case NEGATIVE:
        return -2.25f;
    case TOP:
        return largest;
    case BOTTOM:
        return -largest;
    case TINY:
        return i % 3 == 0 ? 1e-30f : -1e-31f;
    case DENORMAL:
        return i % 2 == 0 ? 0x1p-149f : 0x1.8p-130f;
    case ENDS:
        return i % 5 == 0 ? -largest : i % 5 == 1 ? largest : (float)(i % 7);
    case ONE_HOT:
        return i % DIM == 3 ? 65504.0f : 0.0f;
    default:
        return 1000.0f + (float)(i % 3) * 0.25f; /* a range far from zero, small beside it */
    }
}

static void check_values(const char *parameters, uint32_t kind, uint32_t dtype, const float *x,
                         const float *got, kvant_test_codec *codec) {
    bool asymmetric = strstr(parameters, "asymmetric") != NULL;
    bool minimum = asymmetric && strstr(parameters, "compressed_tensors") == NULL;
    for (size_t i = 0; i < COUNT; i++) {
        if (!isfinite(got[i]))
            fail_msg("%s, data %u, dtype %u: %g comes back as %g", parameters, kind, dtype, (double)x[i],
                     (double)got[i]);
        if (kind <= NEGATIVE_ZERO && got[i] != 0.0f)
            fail_msg("%s: zero comes back as %g", parameters, (double)got[i]);
    }
    if (minimum && (kind == CONSTANT || kind == NEGATIVE || kind == TOP || kind == BOTTOM)) {
        kvant_array array;
        uint8_t *min = kvant_test_codec_inspect(codec, "min", &array);
        float stored;
        if (array.dtype == KVANT_DTYPE_F32)
            memcpy(&stored, min, sizeof stored);
        else
            stored = kvant_load_element(min, array.dtype);
        /* bf16 has no 65504: what would leave the rows' own range comes back as its end. */
        float largest = special(TOP, 0, dtype);
        stored = fminf(fmaxf(stored, -largest), largest);
        for (size_t i = 0; i < COUNT; i++)
            if (got[i] != stored)
                fail_msg("%s: a constant %g with minimum %g comes back as %g", parameters, (double)x[i],
                         (double)stored, (double)got[i]);
        free(min);
    }
}

/* Both, as every level of this machine has it. */
static void check_special(const char *parameters, uint32_t kind, uint32_t dtype) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    float x[COUNT];
    uint8_t *bytes = NULL;
    float *values = NULL;
    for (size_t i = 0; i < COUNT; i++) x[i] = special(kind, i, dtype);
    void *rows = rows_of(x, COUNT, dtype);
    for (uint32_t i = 0; i < isa_count; i++) {
        kvant_test_codec *codec =
            kvant_test_codec_open("uniform", kind & 1, dtype, TOKENS, HEADS, DIM, isas[i], parameters);
        kvant_test_codec_encode(codec, rows, COUNT);
        float *got = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
        check_values(parameters, kind, dtype, x, got, codec);
        char *own = kvant_test_codec_decode(codec, dtype); /* rounded once more, and still finite */
        for (size_t e = 0; e < COUNT; e++) {
            float value = kvant_load_element(own + e * kvant_element_bytes(dtype), dtype);
            if (!isfinite(value))
                fail_msg("%s, data %u: %g becomes infinite in dtype %u", parameters, kind, (double)got[e],
                         dtype);
        }
        free(own);
        if (i == 0) {
            bytes = malloc(codec->size);
            assert_non_null(bytes);
            memcpy(bytes, codec->extent, codec->size);
            values = got;
        } else {
            if (memcmp(bytes, codec->extent, codec->size) != 0)
                print_error("%s, data %u, dtype %u, isa %u:\n", parameters, kind, dtype, isas[i]);
            kvant_assert_bytes(codec->extent, bytes, codec->size);
            kvant_assert_bytes(got, values, COUNT * sizeof *got);
            free(got);
        }
        kvant_test_codec_close(codec);
    }
    free(bytes);
    free(values);
    free(rows);
}

static void special_values(void **state) {
    uint32_t checked = 0, number = 0;
    (void)state;
    for (size_t r = 0; r < sizeof rules / sizeof rules[0]; r++)
        for (size_t s = 0; s < 4; s++)
            for (size_t g = 0; g < 6; g++) {
                char parameters[160];
                snprintf(parameters, sizeof parameters, "%s scale=%s granularity=%s", rules[r], scales[s],
                         granularities[g]);
                if (!legal(parameters, TOKENS)) continue;
                for (uint32_t kind = 0; kind < SPECIALS; kind++)
                    for (uint32_t dtype = KVANT_DTYPE_F32; dtype <= KVANT_DTYPE_BF16; dtype++) {
                        if (++number % SAMPLE != 0) continue;
                        check_special(parameters, kind, dtype);
                        checked++;
                    }
            }
    assert_true(checked > 10000 / SAMPLE);
}

/* The finite value that each formula gives a constant of 1.5 and of -2.25. */
static void constants(void **state) {
    static const struct {
        const char *parameters;
        float positive, negative;
    } cases[] = {
        {"format=int8 scale=f32", 1.5f, -2.25f},
        {"format=int4 scale=f32 convention=compressed_tensors", 1.4f, -2.1f}, /* cut to 7; -7.4999998 */
        {"format=int4 scale=f32 symmetry=asymmetric convention=compressed_tensors", 1.5f, -2.25f},
        {"format=int4 scale=f32 symmetry=asymmetric", 1.5f, -2.25f},
        {"format=int4 scale=f32 symmetry=asymmetric convention=quanto", 1.5f, -2.25f},
        {"format=int1 scale=f16", 1.5f, -2.25f},
        {"format=int2 scale=e8m0", 2.0f, -4.0f}, /* one step of the next power of two */
        {"format=e4m3 scale=f32", 1.5f, -2.25f},
        {"format=int4 scale=f16 granularity=group_channels convention=gguf", 1.5f, -2.25f},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint32_t negative = 0; negative < 2; negative++) {
            float x[COUNT], want = negative ? cases[i].negative : cases[i].positive;
            for (size_t e = 0; e < COUNT; e++) x[e] = negative ? -2.25f : 1.5f;
            kvant_test_codec *codec = kvant_test_codec_open("uniform", 1, KVANT_DTYPE_F32, TOKENS, HEADS, DIM,
                                                            KVANT_ISA_SCALAR, cases[i].parameters);
            kvant_test_codec_encode(codec, x, COUNT);
            float *got = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
            for (size_t e = 0; e < COUNT; e++)
                if (fabsf(got[e] - want) > 1e-6f)
                    fail_msg("%s: %g comes back as %g", cases[i].parameters, (double)x[e], (double)got[e]);
            free(got);
            kvant_test_codec_close(codec);
        }
}

/* A scale or minimum past the end of its type is set to that end, and counted. */
static void saturation(void **state) {
    static const struct {
        const char *parameters;
        float low, high;
        uint32_t groups; /* that saturate; a token has one group */
    } cases[] = {
        {"format=int8 scale=f16", 0, 127 * 65504.0f, 0},
        {"format=int8 scale=f16", 0, 127 * 65536.0f, TOKENS * HEADS},
        {"format=int1 symmetry=asymmetric scale=f16", -65504, 65504, TOKENS * HEADS},
        {"format=int4 symmetry=asymmetric scale=f16", -1e6f, -1e6f, TOKENS * HEADS},
        {"format=int4 symmetry=asymmetric scale=f32", -3e38f, 3e38f, TOKENS * HEADS},
        {"format=int1 scale=e8m0", 3e38f, 3e38f, TOKENS * HEADS},
        {"format=int8 granularity=tensor scaling=static static_scale=1 scale=f32", -127.25f, 127.25f, 0},
        {"format=int8 granularity=tensor scaling=static static_scale=1 scale=f32", -127.5f, 1,
         TOKENS * HEADS},
        {"format=e4m3 granularity=tensor scaling=static static_scale=1 scale=f32", -464, 464, 0},
        {"format=e4m3 granularity=tensor scaling=static static_scale=1 scale=f32", -465, 465,
         2 * TOKENS * HEADS},
        {"format=e5m2 granularity=tensor scaling=static static_scale=1 scale=f32", -61440, 61439,
         TOKENS * HEADS},
    };
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint32_t k = 0; k < isa_count; k++) {
            float x[COUNT];
            for (size_t e = 0; e < COUNT; e++)
                x[e] = e % DIM == 7 ? cases[i].low : e % DIM == 9 ? cases[i].high : 0.0f;
            for (size_t e = 0; e < COUNT && cases[i].low == cases[i].high; e++) x[e] = cases[i].low;
            kvant_test_codec *codec = kvant_test_codec_open("uniform", 0, KVANT_DTYPE_F32, TOKENS, HEADS, DIM,
                                                            isas[k], cases[i].parameters);
            kvant_test_codec_encode(codec, x, COUNT);
            if (codec->saturated != cases[i].groups)
                fail_msg("%s with %g and %g: %llu saturated, not %u", cases[i].parameters,
                         (double)cases[i].low, (double)cases[i].high, (unsigned long long)codec->saturated,
                         cases[i].groups);
            kvant_test_codec_close(codec);
        }
}

/* ---- Shapes, parts, strides ---------------------------------------------------------------------------- */

/* Tokens [first, first + tokens) and heads likewise, into rows that are reversed, spread and unaligned. */
static void check_part(kvant_test_codec *codec, const float *whole, uint32_t first_token, uint32_t tokens,
                       uint32_t first_head, uint32_t heads, uint32_t dtype) {
    uint32_t dim = codec->setup.head_dim, all = codec->setup.kv_heads;
    int64_t element = kvant_element_bytes(dtype), channel = element + 3;
    size_t bytes = (size_t)tokens * heads * dim * (size_t)channel + 8;
    uint8_t *memory = malloc(bytes);
    assert_non_null(memory);
    memset(memory, 0xA5, bytes);
    kvant_mutable_view rows = kvant_test_mutable_view(memory + 1, dtype, tokens, heads, dim);
    rows.channel_stride = channel;
    rows.token_stride = channel * dim;
    rows.head_stride = channel * dim * tokens;
    kvant_extent extent = {
        .bytes = codec->extent, .size = codec->size, .live_count = codec->setup.block_tokens};
    kvant_decode_args args = {.struct_size = sizeof args,
                              .first_token = first_token,
                              .first_head = first_head,
                              .extent = &extent,
                              .rows = &rows,
                              .scratch = codec->scratch};
    memset(codec->scratch, 0x5A, codec->layout.scratch_bytes);
    assert_int_equal(codec->plugin->decode(codec->state, &args), KVANT_OK);
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t c = 0; c < dim; c++) {
                uint8_t want[4], *got = (uint8_t *)kvant_mutable_view_at(&rows, t, h) + c * channel;
                size_t i = ((size_t)(first_token + t) * all + first_head + h) * dim + c;
                kvant_store_element(want, dtype, whole[i]);
                assert_memory_equal(got, want, (size_t)element);
                memset(got, 0xA5, (size_t)element);
            }
    for (size_t i = 0; i < bytes; i++) assert_int_equal(memory[i], 0xA5); /* nothing beside them */
    free(memory);
}

/* The same rows, spread: same bytes. */
static void check_strided_encode(kvant_test_codec *codec, const float *x) {
    uint32_t tokens = codec->setup.block_tokens, heads = codec->setup.kv_heads, dim = codec->setup.head_dim;
    uint32_t dtype = codec->setup.dtype;
    int64_t channel = kvant_element_bytes(dtype) + 3;
    uint8_t *memory = malloc((size_t)tokens * heads * dim * (size_t)channel + 8);
    uint8_t *before = malloc(codec->size);
    assert_non_null(memory);
    assert_non_null(before);
    kvant_view rows = kvant_test_view(memory + 1, dtype, tokens, heads, dim);
    rows.channel_stride = -channel; /* backwards */
    rows.data = memory + 1 + channel * (dim - 1);
    rows.token_stride = channel * dim;
    rows.head_stride = channel * dim * tokens;
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t c = 0; c < dim; c++)
                kvant_store_element((char *)memory + (kvant_view_at(&rows, t, h) + c * rows.channel_stride -
                                                      (const char *)memory),
                                    dtype, x[((size_t)t * heads + h) * dim + c]);
    memcpy(before, codec->extent, codec->size);
    memset(codec->extent, 0x5A, codec->size);
    memset(codec->scratch, 0x5A, codec->layout.scratch_bytes);
    kvant_encode_args args = {
        .struct_size = sizeof args, .rows = &rows, .extent = codec->extent, .scratch = codec->scratch};
    assert_int_equal(codec->plugin->encode(codec->state, &args), KVANT_OK);
    kvant_assert_bytes(codec->extent, before, codec->size);
    free(memory);
    free(before);
}

static void check_shape(const char *parameters, uint32_t side, uint32_t tokens, uint32_t heads, uint32_t dim,
                        uint64_t seed) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    uint32_t dtype = KVANT_DTYPE_F32 + (uint32_t)(seed % 3);
    size_t count = (size_t)tokens * heads * dim;
    float *x = malloc(count * sizeof *x), *values = NULL;
    uint8_t *bytes = NULL;
    assert_non_null(x);
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(kvant_test_normal(&seed) * (i % 17 == 0 ? 9 : 1) + (i % dim == 2 ? 5 : 0));
    void *rows = rows_of(x, count, dtype);
    for (uint32_t i = 0; i < isa_count; i++) {
        kvant_test_codec *codec =
            kvant_test_codec_open("uniform", side, dtype, tokens, heads, dim, isas[i], parameters);
        const kvant_layout *l = &codec->layout;
        assert_true(l->payload_bits + l->metadata_bits <= 8 * l->size_min);
        kvant_test_codec_encode(codec, rows, count);
        float *got = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
        if (i == 0) {
            bytes = malloc(codec->size);
            assert_non_null(bytes);
            memcpy(bytes, codec->extent, codec->size);
            values = got;
        } else {
            if (memcmp(bytes, codec->extent, codec->size) != 0)
                print_error("%s, %u x %u x %u, isa %u:\n", parameters, tokens, heads, dim, isas[i]);
            kvant_assert_bytes(codec->extent, bytes, codec->size);
            kvant_assert_bytes(got, values, count * sizeof *got);
            free(got);
        }
        check_strided_encode(codec, x);
        check_part(codec, values, 0, 1, heads - 1, 1, KVANT_DTYPE_F32);
        check_part(codec, values, tokens - 1, 1, 0, heads, KVANT_DTYPE_BF16);
        check_part(codec, values, tokens / 3, tokens - tokens / 3, 0, 1, KVANT_DTYPE_F16);
        kvant_test_codec_close(codec);
    }
    free(x);
    free(rows);
    free(bytes);
    free(values);
}

static void shapes(void **state) {
    static const uint32_t dims[] = {1, 46, 80, 100, 576}, tokens[] = {1, 6, 64, 100}, heads[] = {1, 3};
    uint64_t seed = 1;
    (void)state;
    for (size_t r = 0; r < sizeof rules / sizeof rules[0]; r++)
        for (size_t g = 0; g < 6; g++)
            for (size_t d = 0; d < 5; d++)
                for (size_t t = 0; t < 4; t++) {
                    char parameters[160];
                    seed++;
                    snprintf(parameters, sizeof parameters, "%s granularity=%s", rules[r], granularities[g]);
                    if (!legal(parameters, tokens[t])) continue;
                    /* Half of the combinations, another half for each rule; 576 channels only with few
                     * tokens. */
                    if ((r + g + d + t) % 2 != 0 || (dims[d] == 576 && tokens[t] == 100)) continue;
                    if (seed % SAMPLE != 0) continue;
                    check_shape(parameters, (uint32_t)(d + t) & 1, tokens[t], heads[(g + t) & 1], dims[d],
                                seed);
                }
}

/* ---- Hostile bytes ------------------------------------------------------------------------------------- */

static void arbitrary_bytes(void **state) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    uint64_t seed = 5;
    (void)state;
    for (size_t r = 0; r < sizeof rules / sizeof rules[0]; r++)
        for (size_t s = 0; s < 4; s++) {
            char parameters[160];
            snprintf(parameters, sizeof parameters, "%s scale=%s granularity=%s", rules[r], scales[s],
                     strstr(rules[r], "gguf") != NULL ? granularities[4] : granularities[r % 6]);
            if (!legal(parameters, TOKENS)) continue;
            float *values = NULL;
            for (uint32_t k = 0; k < isa_count; k++) {
                kvant_test_codec *codec = kvant_test_codec_open("uniform", r & 1, KVANT_DTYPE_F16, TOKENS,
                                                                HEADS, DIM, isas[k], parameters);
                uint64_t again = seed;
                codec->size = codec->layout.size_min;
                for (uint64_t i = 0; i < codec->size; i++)
                    codec->extent[i] = (uint8_t)kvant_test_random(&again);
                float *got = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
                for (size_t i = 0; i < COUNT; i++)
                    if (!isfinite(got[i])) fail_msg("%s: hostile bytes give %g", parameters, (double)got[i]);
                kvant_array array;
                free(kvant_test_codec_inspect(codec, "codes", &array));
                free(kvant_test_codec_inspect(codec, "scale", &array));
                if (values == NULL)
                    values = got;
                else {
                    kvant_assert_bytes(got, values, COUNT * sizeof *got);
                    free(got);
                }
                kvant_test_codec_close(codec);
            }
            free(values);
            seed += 7919;
        }
}

/* The mean of a 1-bit group, where the sum of its magnitudes leaves the range of floats. */
static void means_of_the_largest(void **state) {
    (void)state;
    enum { MEAN_COUNT = 32 * 2 * 64 };
    static const char *const cells[] = {"token",   "group_channels", "group_tokens",
                                        "channel", "head",           "tensor"};
    static float rows[MEAN_COUNT];
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    for (int i = 0; i < MEAN_COUNT; i++) rows[i] = i % 3 == 0 ? -3e38f : 1e38f;
    for (size_t g = 0; g < sizeof cells / sizeof *cells; g++)
        for (uint32_t l = 0; l < isa_count; l++) {
            char parameters[96];
            (void)snprintf(parameters, sizeof parameters, "format=int1 scale=f32 granularity=%s%s", cells[g],
                           strncmp(cells[g], "group", 5) == 0 ? " group=32" : "");
            kvant_test_codec *c = kvant_test_codec_open("uniform", KVANT_SIDE_VALUE, KVANT_DTYPE_F32, 32, 2,
                                                        64, isas[l], parameters);
            kvant_test_codec_encode(c, rows, MEAN_COUNT);
            float *back = kvant_test_codec_decode(c, KVANT_DTYPE_F32);
            for (int i = 0; i < MEAN_COUNT;
                 i++) /* a third of them of 3e38: 1.6e38 to 1.7e38 by the group's count */
                kvant_assert_within(back[i], rows[i] < 0 ? -1.66e38 : 1.66e38, 0.05);
            free(back);
            kvant_test_codec_close(c);
        }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(special_values),  cmocka_unit_test(constants),
        cmocka_unit_test(saturation),      cmocka_unit_test(shapes),
        cmocka_unit_test(arbitrary_bytes), cmocka_unit_test(means_of_the_largest),
    };
    return kvant_run_tests(tests, argc, argv);
}
