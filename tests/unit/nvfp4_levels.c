/* The fast code of nvfp4 against its reference: the same bytes, counts and decoded numbers at every
 * instruction set, for shapes with ragged ends and numbers from the whole range of their type. */
#include "support/test.h"
#include "support/test_codec.h"

#include <kvant/kit/view.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const settings[] = {
    "",
    "amax_divisor=448 global_per=head",
    "global_scale=parameter",
    "global_scale=parameter global_value=0.001",
    "global_scale=parameter global_convention=inverse global_value=3",
    "four_over_six=mae amax_divisor=1536",
    "four_over_six=mse",
    "four_over_six=mse global_scale=parameter global_value=0.02",
    "format=mxfp4",
    "format=mxfp4 exponent=even",
    "format=mxfp4 exponent=ceil",
    "format=mxfp4 exponent=rceil",
};

/* Patterns of rows. */
enum { NORMAL, WIDE, BITS, SPARSE, ZERO, PATTERNS };

static float number(uint32_t pattern, uint64_t *seed, size_t i) {
    float x = (float)kvant_test_normal(seed);
    uint64_t random = kvant_test_random(seed);
    switch (pattern) {
    case WIDE: /* magnitudes from 2^-40 to 2^40, blocks of several scales */
        return x * kvant_bits_float((uint32_t)(127 + (int32_t)(i / 16 * 2654435761u % 81) - 40) << 23);
    case BITS: /* any finite float */
        return kvant_bits_float((uint32_t)random & ((random >> 60) % 4 == 0 ? 0x807fffffu : 0xff7fffffu));
    case SPARSE:
        return random % 37 == 0 ? x * 100.0f : (random & 1) != 0 ? 0.0f : -0.0f;
    case ZERO:
        return (random & 1) != 0 ? 0.0f : -0.0f;
    default:
        return i % 29 == 3 ? 20.0f * x : x;
    }
}

static void *rows_of(uint32_t pattern, uint32_t dtype, size_t count) {
    uint64_t seed = 7 + pattern;
    uint8_t *rows = malloc(count * kvant_element_bytes(dtype));
    assert_non_null(rows);
    for (size_t i = 0; i < count; i++)
        kvant_store_element(rows + i * kvant_element_bytes(dtype), dtype, number(pattern, &seed, i));
    return rows;
}

typedef struct result {
    uint8_t *extent;
    uint64_t size, saturated;
    float *decoded;
    uint16_t *half;
} result;

static result run(const char *setting, uint32_t side, uint32_t dtype, uint32_t tokens, uint32_t heads,
                  uint32_t dim, uint32_t isa, const void *rows) {
    kvant_test_codec *codec = kvant_test_codec_open("nvfp4", side, dtype, tokens, heads, dim, isa, setting);
    kvant_test_codec_encode(codec, rows, (size_t)tokens * heads * dim);
    result r = {.size = codec->size, .saturated = codec->saturated};
    r.extent = malloc(r.size);
    assert_non_null(r.extent);
    memcpy(r.extent, codec->extent, r.size);
    r.decoded = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
    r.half = kvant_test_codec_decode(codec, KVANT_DTYPE_F16);
    kvant_test_codec_close(codec);
    return r;
}

static void discard(result *r) {
    free(r->extent);
    free(r->decoded);
    free(r->half);
}

static void compare(const char *setting, uint32_t side, uint32_t dtype, uint32_t tokens, uint32_t heads,
                    uint32_t dim, const uint32_t *isas, uint32_t isa_count) {
    size_t count = (size_t)tokens * heads * dim;
    for (uint32_t pattern = 0; pattern < PATTERNS; pattern++) {
        void *rows = rows_of(pattern, dtype, count);
        result want = run(setting, side, dtype, tokens, heads, dim, KVANT_ISA_SCALAR, rows);
        for (size_t i = 0; i < count; i++)
            if (!(want.decoded[i] - want.decoded[i] == 0.0f)) fail_msg("%s: not finite", setting);
        for (uint32_t k = 1; k < isa_count; k++) {
            result got = run(setting, side, dtype, tokens, heads, dim, isas[k], rows);
            if (got.size != want.size || got.saturated != want.saturated ||
                memcmp(got.extent, want.extent, want.size) != 0 ||
                memcmp(got.decoded, want.decoded, count * sizeof(float)) != 0 ||
                memcmp(got.half, want.half, count * sizeof(uint16_t)) != 0)
                fail_msg("\"%s\", side %u, dtype %u, %u tokens, %u heads of %u, pattern %u: isa %u differs "
                         "(saturated %llu, %llu)",
                         setting, side, dtype, tokens, heads, dim, pattern, isas[k],
                         (unsigned long long)got.saturated, (unsigned long long)want.saturated);
            discard(&got);
        }
        discard(&want);
        free(rows);
    }
}

static void levels_agree(void **state) {
    static const struct {
        uint32_t tokens, heads, dim, dtype;
    } shapes[] = {{64, 2, 64, KVANT_DTYPE_F32},   {65, 1, 80, KVANT_DTYPE_BF16},
                  {1, 3, 1, KVANT_DTYPE_F32},     {17, 2, 100, KVANT_DTYPE_F16},
                  {130, 1, 33, KVANT_DTYPE_F32},  {16, 1, 15, KVANT_DTYPE_BF16},
                  {128, 1, 112, KVANT_DTYPE_F16}, {3, 2, 256, KVANT_DTYPE_F32}};
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    (void)state;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (size_t p = 0; p < sizeof settings / sizeof settings[0]; p++)
            for (uint32_t side = KVANT_SIDE_KEY; side <= KVANT_SIDE_VALUE; side++)
                compare(settings[p], side, shapes[s].dtype, shapes[s].tokens, shapes[s].heads, shapes[s].dim,
                        isas, isa_count);
}

/* Any range of tokens and heads, into rows with strides of their own. */
static void ranges(void **state) {
    enum { TOKENS = 150, HEADS = 3, DIM = 40, COUNT = TOKENS * HEADS * DIM };
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    uint64_t seed = 5;
    float *rows = rows_of(NORMAL, KVANT_DTYPE_F32, COUNT);
    (void)state;
    for (uint32_t k = 0; k < isa_count; k++)
        for (uint32_t side = KVANT_SIDE_KEY; side <= KVANT_SIDE_VALUE; side++) {
            kvant_test_codec *codec =
                kvant_test_codec_open("nvfp4", side, KVANT_DTYPE_F32, TOKENS, HEADS, DIM, isas[k], "");
            kvant_test_codec_encode(codec, rows, COUNT);
            float *all = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
            for (uint32_t round = 0; round < 40; round++) {
                uint32_t first = (uint32_t)(kvant_test_random(&seed) % TOKENS);
                uint32_t tokens = 1 + (uint32_t)(kvant_test_random(&seed) % (TOKENS - first));
                uint32_t head = (uint32_t)(kvant_test_random(&seed) % HEADS);
                uint32_t heads = 1 + (uint32_t)(kvant_test_random(&seed) % (HEADS - head));
                /* Channels two floats apart, rows backwards, one byte off. */
                static uint8_t memory[COUNT * 8 + 1];
                memset(memory, 0xA5, sizeof memory);
                const int64_t channel = 8, by_token = (int64_t)DIM * channel, by_head = by_token * tokens;
                kvant_mutable_view view = {.struct_size = sizeof view,
                                           .dtype = KVANT_DTYPE_F32,
                                           .data = memory + 1 + (tokens - 1) * by_token,
                                           .tokens = tokens,
                                           .heads = heads,
                                           .head_dim = DIM,
                                           .token_stride = -by_token,
                                           .head_stride = by_head,
                                           .channel_stride = channel};
                const kvant_extent extent = {.bytes = codec->extent, .size = codec->size};
                const kvant_decode_args args = {.struct_size = sizeof args,
                                                .first_token = first,
                                                .first_head = head,
                                                .extent = &extent,
                                                .rows = &view,
                                                .scratch = codec->scratch};
                assert_int_equal(codec->plugin->decode(codec->state, &args), KVANT_OK);
                for (uint32_t t = 0; t < tokens; t++)
                    for (uint32_t h = 0; h < heads; h++)
                        for (uint32_t c = 0; c < DIM; c++) {
                            const char *at = kvant_mutable_view_at(&view, t, h) + c * channel;
                            kvant_assert_bytes(at, &all[((first + t) * HEADS + head + h) * DIM + c], 4);
                            if (at + 4 < (const char *)memory + sizeof memory)
                                assert_int_equal((uint8_t)at[4], 0xA5);
                        }
            }
            free(all);
            kvant_test_codec_close(codec);
        }
    free(rows);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(levels_agree), cmocka_unit_test(ranges)};
    return kvant_run_tests(tests, argc, argv);
}
