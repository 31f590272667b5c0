/* Parameters of nvfp4: each changes bytes, what goes not together is refused by name, and global scales mean
 * what their convention says, whoever gives them. */
#include "support/test.h"
#include "support/test_codec.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 64, HEADS = 2, DIM = 48, COUNT = TOKENS * HEADS * DIM };

static void fill(float *rows) {
    uint64_t seed = 11;
    for (size_t i = 0; i < COUNT; i++)
        rows[i] = (float)kvant_test_normal(&seed) * (i / DIM % HEADS == 0 ? 1.0f : 5.0f);
}

static kvant_test_codec *encoded(const char *parameters, const float *rows) {
    kvant_test_codec *codec = kvant_test_codec_open("nvfp4", KVANT_SIDE_KEY, KVANT_DTYPE_F32, TOKENS, HEADS,
                                                    DIM, KVANT_ISA_SCALAR, parameters);
    kvant_test_codec_encode(codec, rows, COUNT);
    return codec;
}

static bool same_bytes(const char *a, const char *b, const float *rows) {
    kvant_test_codec *one = encoded(a, rows), *two = encoded(b, rows);
    bool same = one->size == two->size && memcmp(one->extent, two->extent, one->size) == 0;
    kvant_test_codec_close(one);
    kvant_test_codec_close(two);
    return same;
}

/* Pairs that differ in one parameter. */
static void options_change_bytes(void **state) {
    static const char *const pairs[][2] = {
        {"", "format=mxfp4"},
        {"", "four_over_six=mae"},
        {"amax_divisor=1536 four_over_six=mae", "amax_divisor=1536 four_over_six=mse"},
        {"format=mxfp4", "format=mxfp4 exponent=even"},
        {"format=mxfp4 exponent=even", "format=mxfp4 exponent=ceil"},
        {"format=mxfp4 exponent=ceil", "format=mxfp4 exponent=rceil"},
        {"", "global_scale=parameter"},
        {"global_scale=parameter global_value=0.01", "global_scale=parameter global_value=0.011"},
        {"global_scale=parameter global_value=3",
         "global_scale=parameter global_value=3 global_convention=inverse"},
        {"global_scale=parameter global_value=3 global_convention=amax",
         "global_scale=parameter global_value=3 global_convention=inverse"},
        {"", "amax_divisor=1536"},
        {"", "amax_divisor=448"},
        {"", "global_per=head"},
    };
    float rows[COUNT];
    (void)state;
    fill(rows);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        assert_true(same_bytes(pairs[i][0], pairs[i][0], rows));
        if (same_bytes(pairs[i][0], pairs[i][1], rows))
            fail_msg("\"%s\" and \"%s\" give the same bytes", pairs[i][0], pairs[i][1]);
    }
}

/* One scale said in three ways, and the same as the extent's own. */
static void conventions_agree(void **state) {
    float rows[COUNT], amax = 0.0f;
    (void)state;
    fill(rows);
    for (size_t i = 0; i < COUNT; i++) amax = fmaxf(amax, fabsf(rows[i]));
    rows[7] = amax = 10.5f; /* 10.5 / 2688 = 2^-8 */
    for (size_t i = 0; i < COUNT; i++) rows[i] = fmaxf(-amax, fminf(amax, rows[i]));
#define GIVEN "global_scale=parameter global_convention="
    static const char *const same[] = {GIVEN "multiplier global_value=0.00390625",
                                       GIVEN "inverse global_value=256", GIVEN "amax global_value=10.5",
                                       GIVEN "amax global_value=1.75 amax_divisor=448"};
    for (size_t i = 1; i < sizeof same / sizeof same[0]; i++) assert_true(same_bytes(same[0], same[i], rows));
    kvant_test_codec *own = encoded("", rows), *given = encoded(same[0], rows);
    kvant_array array;
    float *global = kvant_test_codec_inspect(own, "global", &array);
    assert_true(*global == 0.00390625f);
    float *a = kvant_test_codec_decode(own, KVANT_DTYPE_F32),
          *b = kvant_test_codec_decode(given, KVANT_DTYPE_F32);
    kvant_assert_bytes(a, b, sizeof rows);
    /* Heads as they are without it, and 64 bytes more for the scale. */
    assert_int_equal(own->size, given->size + 64);
    kvant_assert_bytes(own->extent, given->extent, given->size);
    free(global);
    free(a);
    free(b);
    kvant_test_codec_close(own);
    kvant_test_codec_close(given);
}

static void per_head(void **state) {
    float rows[COUNT], amax[HEADS] = {0, 0};
    kvant_array array;
    (void)state;
    fill(rows);
    for (size_t i = 0; i < COUNT; i++) amax[i / DIM % HEADS] = fmaxf(amax[i / DIM % HEADS], fabsf(rows[i]));
    kvant_test_codec *codec = encoded("global_per=head", rows);
    float *global = kvant_test_codec_inspect(codec, "global", &array);
    assert_int_equal(array.shape[0], HEADS);
    for (size_t h = 0; h < HEADS; h++) assert_true(global[h] == amax[h] / 2688.0f);
    free(global);
    kvant_test_codec_close(codec);
}

/* ---- Refusals ------------------------------------------------------------------------------------------ */

static void refuses(const char *parameters, kvant_status want, const char *key, const char *part) {
    kvant_layout layout;
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_status status = kvant_test_codec_plan("nvfp4", KVANT_SIDE_KEY, KVANT_DTYPE_F32, TOKENS, HEADS, DIM,
                                                parameters, &layout, &diag);
    if (status != want) fail_msg("\"%s\": %d, not %d", parameters, status, want);
    assert_string_equal(diag.key, key);
    kvant_assert_contains(diag.message, part);
    assert_int_equal(layout.block_multiple, 1);
}

static void conflicts_are_named(void **state) {
    (void)state;
    const kvant_status conflict = KVANT_ERROR_CONFLICT;
    refuses("exponent=even", conflict, "exponent", "only format = mxfp4");
    refuses("exponent=floor", conflict, "exponent", "only format = mxfp4");
    refuses("format=mxfp4 four_over_six=mae", conflict, "four_over_six", "format = mxfp4");
    refuses("format=mxfp4 global_scale=artifact", conflict, "global_scale", "format = mxfp4");
    refuses("format=mxfp4 global_per=head", conflict, "global_per", "format = mxfp4");
    refuses("format=mxfp4 amax_divisor=448", conflict, "amax_divisor", "format = mxfp4");
    refuses("global_value=2", conflict, "global_value", "global_scale = parameter");
    refuses("global_scale=artifact global_value=2", conflict, "global_value", "global_scale = parameter");
    refuses("global_convention=inverse", conflict, "global_convention", "global_scale = parameter");
    refuses("global_scale=parameter global_per=head", conflict, "global_per", "one number");
    refuses("global_scale=parameter amax_divisor=448", conflict, "amax_divisor", "global_convention = amax");
    refuses("global_scale=parameter global_convention=inverse global_value=1e36", KVANT_ERROR_VALUE,
            "global_value", "inverse");
}

static void sizes(void **state) {
    static const struct {
        const char *parameters;
        uint32_t dim;
        uint64_t size, payload, metadata;
    } all[] = {
        /* 64 tokens, 2 heads: a head has 32 bytes of codes a channel and 64 bytes of scales a block. */
        {"", 64, 2 * (2048 + 256) + 64, 2 * 64 * 64 * 4, 2 * 64 * 4 * 8 + 32},
        {"global_per=head", 64, 2 * (2048 + 256) + 64, 2 * 64 * 64 * 4, 2 * 64 * 4 * 8 + 64},
        {"global_scale=parameter", 64, 2 * (2048 + 256), 2 * 64 * 64 * 4, 2 * 64 * 4 * 8},
        {"global_scale=artifact", 64, 2 * (2048 + 256), 2 * 64 * 64 * 4, 2 * 64 * 4 * 8},
        {"format=mxfp4", 64, 2 * (2048 + 128), 2 * 64 * 64 * 4, 2 * 64 * 2 * 8},
        /* 100 channels are 7 blocks, the last of 4, and 13 words of 8 a row. */
        {"global_scale=parameter", 100, 2 * (64 * 13 * 4 + 448), 2 * 64 * 100 * 4, 2 * 64 * 7 * 8},
        {"format=mxfp4", 100, 2 * (64 * 13 * 4 + 256), 2 * 64 * 100 * 4, 2 * 64 * 4 * 8},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        kvant_layout layout;
        kvant_diag diag = {.struct_size = sizeof diag};
        assert_int_equal(kvant_test_codec_plan("nvfp4", KVANT_SIDE_KEY, KVANT_DTYPE_F32, TOKENS, HEADS,
                                               all[i].dim, all[i].parameters, &layout, &diag),
                         KVANT_OK);
        assert_int_equal(layout.size_min, all[i].size);
        assert_int_equal(layout.payload_bits, all[i].payload);
        assert_int_equal(layout.metadata_bits, all[i].metadata);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(options_change_bytes),
                                              cmocka_unit_test(conventions_agree), cmocka_unit_test(per_head),
                                              cmocka_unit_test(conflicts_are_named), cmocka_unit_test(sizes)};
    return kvant_run_tests(tests, argc, argv);
}
