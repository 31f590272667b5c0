/* Planar order: every code has a place of its own, the places are those of an index computation made another
 * way, and the packers agree with the formula for every width, many shapes and both directions of rows. */
#include "support/test.h"

#include <kvant/kit/planar.h>

#include <stdlib.h>

static const uint32_t widths[] = {1, 2, 4, 8};
enum { WIDTHS = 4 };

/* ---- The formula ----------------------------------------------------------------------------- */

/* Where the codes of one row lie, by dealing the row out: to every part of the units in turn, two units a
 * word. place[c] = 8 * (byte within the words of the row, 4 a word) + lowest bit. */
static void deal_row(uint32_t summed_count, uint32_t bits, uint32_t *place) {
    uint32_t per_word = 32 / bits;
    uint32_t words = (summed_count + per_word - 1) / per_word;
    uint32_t c = 0;
    if (bits == 8) {
        for (; c < summed_count; c++) place[c] = 8 * c;
        return;
    }
    for (uint32_t part = 0; part < 4 / bits; part++)
        for (uint32_t word = 0; word < words; word++)
            for (uint32_t plane = 2 * part; plane < 2 * part + 2; plane++)
                for (uint32_t j = 0; j < 4; j++, c++)
                    if (c < summed_count) place[c] = 8 * (4 * word + j) + plane * bits;
    assert_true(c >= summed_count);
}

static void places_are_those_of_dealing_out(void **state) {
    (void)state;
    uint32_t *place = malloc(300 * sizeof *place);
    assert_non_null(place);
    for (uint32_t k = 0; k < WIDTHS; k++) {
        uint32_t bits = widths[k];
        for (uint32_t summed = 1; summed <= 300; summed++) {
            deal_row(summed, bits, place);
            size_t row_words = kvant_planar_bytes(16, summed, bits) / 64;
            for (uint32_t f = 0; f < 40; f += 13) { /* 0, 13, 26, 39: three groups */
                for (uint32_t c = 0; c < summed; c++) {
                    size_t byte = kvant_planar_byte(summed, bits, f, c);
                    uint32_t shift = kvant_planar_shift(summed, bits, f, c);
                    size_t line = f / 16 * row_words + place[c] / 32;
                    size_t want = line * 64 + f % 16 * 4 + place[c] / 8 % 4;
                    if (byte != want || shift != place[c] % 8)
                        fail_msg("%u bits, %u summed, (%u, %u): byte %zu bit %u, not %zu bit %u", bits,
                                 summed, f, c, byte, shift, want, place[c] % 8);
                }
            }
        }
    }
    free(place);
}

/* Bytes by hand, from the picture in planar.h. */
static void known_places(void **state) {
    (void)state;
    /* 4 bits, 16 codes a row: 2 words; units 0 and 1 share word 0. */
    assert_int_equal(kvant_planar_bytes(1, 16, 4), 128);
    assert_int_equal(kvant_planar_byte(16, 4, 3, 2), 3 * 4 + 2);
    assert_int_equal(kvant_planar_byte(16, 4, 3, 6), 3 * 4 + 2);
    assert_int_equal(kvant_planar_shift(16, 4, 3, 2), 0);
    assert_int_equal(kvant_planar_shift(16, 4, 3, 6), 4);
    assert_int_equal(kvant_planar_byte(16, 4, 3, 9), 64 + 3 * 4 + 1);
    /* 2 bits, 32 codes: 2 words; the second half of the units is on planes 2 and 3. */
    assert_int_equal(kvant_planar_byte(32, 2, 17, 16), 2 * 64 + 4);
    assert_int_equal(kvant_planar_shift(32, 2, 17, 16), 4);
    assert_int_equal(kvant_planar_shift(32, 2, 17, 20), 6);
    assert_int_equal(kvant_planar_byte(32, 2, 17, 31), 3 * 64 + 4 + 3);
    /* 1 bit, 64 codes: 2 words, quarters of 4 units. */
    assert_int_equal(kvant_planar_byte(64, 1, 0, 44), 64 + 0);
    assert_int_equal(kvant_planar_shift(64, 1, 0, 44), 5);
    /* 8 bits: codes lie as they come, 4 to a line. */
    assert_int_equal(kvant_planar_byte(12, 8, 16, 5), 3 * 64 + 64 + 1);
    /* Sizes that leave 32 bits. */
    assert_true(kvant_planar_bytes(UINT32_MAX, 1, 8) == (size_t)1 << 34);
    assert_true(kvant_planar_bytes(16, UINT32_MAX, 8) == (size_t)1 << 36);
    assert_true(kvant_planar_byte(UINT32_MAX, 8, 0, UINT32_MAX - 1) == ((size_t)1 << 36) - 64 + 2);
}

static void every_code_has_a_place_of_its_own(void **state) {
    (void)state;
    for (uint32_t k = 0; k < WIDTHS; k++) {
        uint32_t bits = widths[k];
        for (uint32_t summed = 1; summed <= 300; summed++) {
            uint32_t free_count = 1 + summed % 37;
            size_t size = kvant_planar_bytes(free_count, summed, bits);
            uint8_t *used = calloc(size, 1);
            assert_non_null(used);
            for (uint32_t f = 0; f < free_count; f++) {
                for (uint32_t c = 0; c < summed; c++) {
                    size_t byte = kvant_planar_byte(summed, bits, f, c);
                    uint32_t shift = kvant_planar_shift(summed, bits, f, c);
                    assert_true(byte < size && shift + bits <= 8);
                    uint32_t mask = ((1u << bits) - 1u) << shift;
                    if (used[byte] & mask)
                        fail_msg("%u bits, %u summed: (%u, %u) is taken", bits, summed, f, c);
                    used[byte] = (uint8_t)(used[byte] | mask);
                }
            }
            /* No padding where none is needed. */
            if (free_count % 16 == 0 && summed % (32 / bits) == 0)
                for (size_t i = 0; i < size; i++) assert_int_equal(used[i], 255);
            free(used);
        }
    }
}

/* ---- The packers ----------------------------------------------------------------------------- */

enum { GUARD = 64, POISON = 0xa5 };

typedef struct shape {
    uint32_t free_count, summed_count, bits;
    size_t free_stride, summed_stride;
} shape;

/* Packs and unpacks codes at random, at an odd address, and compares with put and get. */
static void check_packers(const shape *s, uint64_t *seed) {
    size_t count = (s->free_count - 1) * s->free_stride + (s->summed_count - 1) * s->summed_stride + 1;
    size_t size = kvant_planar_bytes(s->free_count, s->summed_count, s->bits);
    uint8_t *codes = malloc(count), *back = malloc(count + 2 * GUARD), *covered = calloc(count, 1);
    uint8_t *packed = malloc(size + 2 * GUARD), *want = calloc(size, 1);
    assert_true(codes != NULL && back != NULL && covered != NULL && packed != NULL && want != NULL);
    memset(codes, 255, count); /* what lies between the codes must not be read into the result */
    memset(back, POISON, count + 2 * GUARD);
    memset(packed, POISON, size + 2 * GUARD);
    for (uint32_t f = 0; f < s->free_count; f++) {
        for (uint32_t c = 0; c < s->summed_count; c++) {
            size_t at = f * s->free_stride + c * s->summed_stride;
            codes[at] = (uint8_t)(kvant_test_random(seed) >> 40 & ((1u << s->bits) - 1u));
            covered[at] = 1;
            kvant_planar_put(want, s->summed_count, s->bits, f, c, codes[at]);
        }
    }
    kvant_planar_pack(packed + GUARD, s->free_count, s->summed_count, s->bits, codes, s->free_stride,
                      s->summed_stride);
    kvant_assert_bytes(packed + GUARD, want, size);
    kvant_planar_unpack(packed + GUARD, s->free_count, s->summed_count, s->bits, back + GUARD, s->free_stride,
                        s->summed_stride);
    for (uint32_t f = 0; f < s->free_count; f++)
        for (uint32_t c = 0; c < s->summed_count; c++)
            assert_int_equal(kvant_planar_get(want, s->summed_count, s->bits, f, c),
                             codes[f * s->free_stride + c * s->summed_stride]);
    for (size_t i = 0; i < count; i++)
        if (back[GUARD + i] != (covered[i] ? codes[i] : POISON))
            fail_msg("%u bits, %u x %u, strides %zu and %zu: code %zu is %u", s->bits, s->free_count,
                     s->summed_count, s->free_stride, s->summed_stride, i, back[GUARD + i]);
    for (size_t i = 0; i < GUARD; i++) {
        assert_true(packed[i] == POISON && packed[GUARD + size + i] == POISON);
        assert_true(back[i] == POISON && back[GUARD + count + i] == POISON);
    }
    free(codes);
    free(back);
    free(covered);
    free(packed);
    free(want);
}

static void packers_agree_with_the_formula(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (uint32_t k = 0; k < WIDTHS; k++) {
        for (uint32_t dim = 1; dim <= 300; dim++) {
            uint32_t other = 1 + (uint32_t)(kvant_test_random(&seed) % 70);
            uint32_t tokens = dim % 3 == 0 ? 64 : other;
            shape shapes[] = {
                {tokens, dim, widths[k], dim, 1},                 /* keys, token by token */
                {tokens, dim, widths[k], dim + dim % 5, 1},       /* with gaps */
                {tokens, dim, widths[k], 1, tokens},              /* keys, channel by channel */
                {dim, tokens, widths[k], 1, dim + dim % 7},       /* values, token by token */
                {dim, tokens, widths[k], tokens, 1},              /* values, channel by channel */
                {tokens, dim, widths[k], 3 * (size_t)dim + 1, 3}, /* neither */
            };
            for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check_packers(&shapes[i], &seed);
        }
    }
}

static void packers_take_long_rows(void **state) {
    (void)state;
    uint64_t seed = 4;
    static const uint32_t lengths[] = {1023, 1024, 1056, 1087, 1088, 1089, 1120, 1500, 2048, 3001};
    for (uint32_t k = 0; k < WIDTHS; k++) {
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            for (uint32_t free_count = 15; free_count <= 17; free_count++) {
                shape along_c = {free_count, lengths[i], widths[k], lengths[i] + 3, 1};
                shape along_f = {free_count, lengths[i], widths[k], 1, free_count};
                check_packers(&along_c, &seed);
                check_packers(&along_f, &seed);
            }
        }
    }
}

/* A block of 96 values tokens is two matrices, of 64 and of 32 tokens. */
static void long_blocks_are_runs_of_matrices(void **state) {
    (void)state;
    enum { DIM = 80, TOKENS = 96 };
    uint8_t *codes = malloc(DIM * TOKENS), *back = malloc(DIM * TOKENS);
    assert_true(codes != NULL && back != NULL);
    uint64_t seed = 5;
    for (uint32_t k = 0; k < WIDTHS; k++) {
        uint32_t bits = widths[k];
        for (size_t i = 0; i < DIM * TOKENS; i++)
            codes[i] = (uint8_t)(kvant_test_random(&seed) >> 30 & ((1u << bits) - 1u));
        size_t first = kvant_planar_bytes(DIM, 64, bits);
        size_t size = first + kvant_planar_bytes(DIM, TOKENS - 64, bits);
        assert_int_equal(size, (size_t)DIM * TOKENS * bits / 8);
        uint8_t *packed = malloc(size);
        assert_non_null(packed);
        memset(packed, POISON, size);
        memset(back, POISON, DIM * TOKENS);
        kvant_planar_pack(packed, DIM, 64, bits, codes, 1, DIM);
        kvant_planar_pack(packed + first, DIM, TOKENS - 64, bits, codes + 64 * DIM, 1, DIM);
        kvant_planar_unpack(packed, DIM, 64, bits, back, 1, DIM);
        kvant_planar_unpack(packed + first, DIM, TOKENS - 64, bits, back + 64 * DIM, 1, DIM);
        kvant_assert_bytes(back, codes, DIM * TOKENS);
        assert_int_equal(kvant_planar_get(packed + first, 32, bits, 79, 31), codes[95 * DIM + 79]);
        free(packed);
    }
    free(codes);
    free(back);
}

static void put_leaves_neighbours_alone(void **state) {
    (void)state;
    uint8_t bytes[128];
    memset(bytes, 255, sizeof bytes);
    kvant_planar_put(bytes, 32, 2, 5, 18, 1);
    for (uint32_t f = 0; f < 16; f++)
        for (uint32_t c = 0; c < 32; c++)
            assert_int_equal(kvant_planar_get(bytes, 32, 2, f, c), f == 5 && c == 18 ? 1 : 3);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_are_those_of_dealing_out),
        cmocka_unit_test(known_places),
        cmocka_unit_test(every_code_has_a_place_of_its_own),
        cmocka_unit_test(packers_agree_with_the_formula),
        cmocka_unit_test(packers_take_long_rows),
        cmocka_unit_test(long_blocks_are_runs_of_matrices),
        cmocka_unit_test(put_leaves_neighbours_alone),
    };
    return kvant_run_tests(tests, argc, argv);
}
