/* Blocks, sinks and tails; raw rows that are not finite; numbers in metadata; SHA-256. */
#include "data/blocks.h"
#include "data/digest.h"
#include "data/dump.h"
#include "data/finite.h"
#include "data/numbers.h"
#include "support/data.h"
#include "support/test.h"

#include <kvant/kit/half.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void splits(void **state) {
    (void)state;
    static const struct {
        uint32_t tokens, block_tokens, sinks, recent, count, tail;
    } cases[] = {{0, 64, 4, 0, 0, 0},
                 {1, 64, 4, 0, 0, 1},
                 {63, 64, 4, 0, 0, 63},
                 {64, 64, 4, 0, 1, 0},
                 {65, 64, 4, 0, 1, 1},
                 {128, 64, 4, 0, 2, 0},
                 {200, 64, 0, 0, 3, 8},
                 {200, 64, 4, 8, 3, 8},
                 {200, 64, 4, 9, 2, 72},
                 {200, 64, 4, 200, 0, 200},
                 {200, 64, 4, 4000000000u, 0, 200},
                 {7, 1, 0, 0, 7, 0},
                 {4294967295u, 65536, 1, 0, 65535, 65535}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        kvant_blocks b =
            kvant_blocks_split(cases[i].tokens, cases[i].block_tokens, cases[i].sinks, cases[i].recent);
        assert_int_equal(b.count, cases[i].count);
        assert_int_equal(b.tail_tokens, cases[i].tail);
        assert_int_equal(b.tail_first, cases[i].count * cases[i].block_tokens);
        assert_int_equal(b.tail_first + b.tail_tokens, cases[i].tokens);
        assert_int_equal(b.sinks, cases[i].count > 0 ? cases[i].sinks : 0);
    }
}

/* [9 tokens, 2 heads, 3 channels] of numbers that say where they are, in an order of axes that is not
 * dense. */
enum { TOKENS = 9, HEADS = 2, DIM = 3 };

static kvant_view strided(uint16_t *storage) {
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < HEADS; h++)
            for (uint32_t c = 0; c < DIM; c++)
                storage[(c * HEADS + h) * TOKENS + (TOKENS - 1 - t)] =
                    (uint16_t)(1000 + 100 * t + 10 * h + c);
    return (kvant_view){.struct_size = sizeof(kvant_view),
                        .dtype = KVANT_DTYPE_F16,
                        .data = storage + TOKENS - 1,
                        .tokens = TOKENS,
                        .heads = HEADS,
                        .head_dim = DIM,
                        .token_stride = -2,
                        .head_stride = 2 * TOKENS,
                        .channel_stride = 2 * TOKENS * HEADS};
}

static void slices(void **state) {
    (void)state;
    uint16_t storage[TOKENS * HEADS * DIM], dense[TOKENS * HEADS * DIM];
    kvant_view rows = strided(storage);
    assert_int_equal(kvant_rows_bytes(&rows), sizeof dense);
    kvant_rows_pack(&rows, dense);
    for (uint32_t i = 0; i < TOKENS * HEADS * DIM; i++)
        assert_int_equal(dense[i], 1000 + 100 * (i / 6) + 10 * (i / 3 % 2) + i % 3);

    kvant_blocks blocks = kvant_blocks_split(TOKENS, 4, 2, 0);
    for (uint32_t b = 0; b < blocks.count; b++) {
        uint16_t got[4 * HEADS * DIM];
        kvant_view block = kvant_blocks_view(&blocks, &rows, b);
        assert_int_equal(block.tokens, 4);
        kvant_rows_pack(&block, got);
        for (uint32_t i = 0; i < 4 * HEADS * DIM; i++) {
            uint32_t t = b * 4 + i / 6;
            assert_int_equal(got[i], 1000 + 100 * t + 10 * (i / 3 % 2) + i % 3);
        }
    }
}

static void finds_and_replaces_nonfinite(void **state) {
    (void)state;
    float f32[5] = {1.0f, -NAN, INFINITY, -INFINITY, 3.4e38f};
    uint16_t f16[4] = {0x3c00, 0x7c01, 0x7c00, 0xfc00}, bf16[4] = {0x3f80, 0xff81, 0x7f80, 0xff80};
    assert_int_equal(kvant_find_nonfinite(f32, KVANT_DTYPE_F32, 5), 1);
    assert_int_equal(kvant_find_nonfinite(f16, KVANT_DTYPE_F16, 4), 1);
    assert_int_equal(kvant_find_nonfinite(bf16, KVANT_DTYPE_BF16, 4), 1);
    assert_int_equal(kvant_find_nonfinite(bf16, KVANT_DTYPE_BF16, 1), 1);
    assert_int_equal(kvant_replace_nonfinite(f32, KVANT_DTYPE_F32, 5), 3);
    assert_int_equal(kvant_replace_nonfinite(f16, KVANT_DTYPE_F16, 4), 3);
    assert_int_equal(kvant_replace_nonfinite(bf16, KVANT_DTYPE_BF16, 4), 3);
    kvant_assert_close(f32[0], 1, 0);
    kvant_assert_close(f32[1], 0, 0);
    kvant_assert_close(f32[2], 3.4028234663852886e38, 0);
    kvant_assert_close(f32[3], -3.4028234663852886e38, 0);
    kvant_assert_close(f32[4], 3.4e38f, 0);
    assert_int_equal(f16[1], 0);
    kvant_assert_close(kvant_f16_to_f32(f16[2]), 65504, 0);
    kvant_assert_close(kvant_f16_to_f32(f16[3]), -65504, 0);
    kvant_assert_close(kvant_bf16_to_f32(bf16[2]), 3.3895313892515355e38, 0);
    assert_int_equal(kvant_find_nonfinite(bf16, KVANT_DTYPE_BF16, 4), 4);
}

static void reads_numbers(void **state) {
    (void)state;
    kvant_numbers numbers;
    assert_int_equal(kvant_numbers_read("0.125", false, 0, 1, &numbers), KVANT_OK);
    assert_int_equal(numbers.count, 1);
    kvant_assert_close(kvant_numbers_at(&numbers, 7, -1), 0.125, 0);
    kvant_numbers_free(&numbers);
    assert_int_equal(kvant_numbers_read("0, 512,\t0", true, 0, 1000, &numbers), KVANT_OK);
    assert_int_equal(numbers.count, 3);
    kvant_assert_close(kvant_numbers_at(&numbers, 1, -1), 512, 0);
    kvant_numbers_free(&numbers);
    static const char *const bad[] = {"",      ",",    "1,", "x",     "1;2", "nan",   "inf",
                                      "1e400", "0x10", "1]", "1],[2", "[1]", "\"1\"", "true",
                                      "+1",    "1001", "-1", "1.0",   "1e2", ".5",    "1 2"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (kvant_numbers_read(bad[i], true, 0, 1000, &numbers) == KVANT_OK)
            fail_msg("accepted \"%s\"", bad[i]);
        assert_int_equal(numbers.count, 0);
        kvant_assert_close(kvant_numbers_at(&numbers, 0, 5), 5, 0);
    }
}

static void hashes(void **state) {
    (void)state;
    /* FIPS 180-4: "abc", and the empty message. */
    static const unsigned char abc[32] = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40,
                                          0xde, 0x5d, 0xae, 0x22, 0x23, 0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17,
                                          0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad};
    static const unsigned char nothing[4] = {0xe3, 0xb0, 0xc4, 0x42};
    unsigned char digest[32], again[32];
    assert_int_equal(kvant_sha256("abc", 3, digest), KVANT_OK);
    kvant_assert_bytes(digest, abc, 32);
    kvant_sha256_context *context = kvant_sha256_begin();
    kvant_sha256_add(context, "a", 1);
    kvant_sha256_add(context, NULL, 0);
    kvant_sha256_add(context, "bc", 2);
    assert_int_equal(kvant_sha256_finish(context, again), KVANT_OK);
    kvant_assert_bytes(again, abc, 32);
    assert_int_equal(kvant_sha256(NULL, 0, digest), KVANT_OK);
    kvant_assert_bytes(digest, nothing, 4);
    /* Fields cannot run into one another. */
    context = kvant_sha256_begin();
    kvant_sha256_field(context, "ab", 2);
    kvant_sha256_field(context, "c", 1);
    assert_int_equal(kvant_sha256_finish(context, digest), KVANT_OK);
    context = kvant_sha256_begin();
    kvant_sha256_field(context, "a", 1);
    kvant_sha256_field(context, "bc", 2);
    assert_int_equal(kvant_sha256_finish(context, again), KVANT_OK);
    assert_memory_not_equal(digest, again, 32);
    assert_memory_not_equal(digest, abc, 32);

    char file[256];
    strcpy(file, kvant_test_directory());
    strcat(file, "/abc");
    kvant_test_write(file, "abc", 3);
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(kvant_sha256_file(file, digest, &diag), KVANT_OK);
    kvant_assert_bytes(digest, abc, 32);
    strcat(file, "d");
    kvant_assert_refused(kvant_sha256_file(file, digest, &diag), &diag, file);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(splits), cmocka_unit_test(slices),
                                              cmocka_unit_test(finds_and_replaces_nonfinite),
                                              cmocka_unit_test(reads_numbers), cmocka_unit_test(hashes)};
    return kvant_run_tests(tests, argc, argv);
}
