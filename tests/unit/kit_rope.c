/* Rotary embedding: tables against long double libm, rows against the definition, there and back again. */
#include "support/test.h"

#include <kvant/kit/rope.h>

#include <math.h>

enum { PAIRS_MAX = 160 };

static kvant_rope rope_of(uint32_t style, uint32_t rotary_dim, double magnitude, const double *frequencies) {
    kvant_rope rope = {.struct_size = sizeof rope,
                       .style = style,
                       .rotary_dim = rotary_dim,
                       .magnitude = magnitude,
                       .inverse_frequency = frequencies};
    return rope;
}

static void inverse_frequencies(void **state) {
    (void)state;
    static const double thetas[] = {10000, 100000, 500000, 1e6, 8e6, 2, 1.5, 1e-3, 3e300};
    static const uint32_t dims[] = {2, 6, 32, 46, 64, 80, 96, 128, 256, 320};
    double frequencies[PAIRS_MAX + 1];
    for (size_t k = 0; k < sizeof thetas / sizeof thetas[0]; k++) {
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
            frequencies[dims[d] / 2] = -7;
            kvant_rope_inverse_frequency(thetas[k], dims[d], frequencies);
            assert_true(frequencies[0] == 1 && frequencies[dims[d] / 2] == -7);
            for (uint32_t i = 0; i < dims[d] / 2; i++) {
                long double want = powl(thetas[k], -2.0L * i / dims[d]);
                double error = (double)fabsl((long double)frequencies[i] / want - 1);
                if (!(error <= 0x1p-52))
                    fail_msg("theta %g, dim %u, pair %u: off by %g", thetas[k], dims[d], i, error);
            }
        }
    }
}

/* position * frequency has up to 117 bits: as a sum of two long doubles it is exact to 128. */
static void exact_turn(uint64_t position, double frequency, long double *cosine, long double *sine) {
    long double p = (long double)position;
    long double high = p * frequency, low = fmal(p, frequency, -high);
    *sine = sinl(high) * cosl(low) + cosl(high) * sinl(low);
    *cosine = cosl(high) * cosl(low) - sinl(high) * sinl(low);
}

static void turns_are_rounded_once(void **state) {
    (void)state;
    static const uint64_t positions[] = {0,
                                         1,
                                         2,
                                         63,
                                         64,
                                         4095,
                                         131071,
                                         1048577,
                                         16777217,
                                         33554433,
                                         2147483647,
                                         4294967295u,
                                         4294967297,
                                         1ull << 40,
                                         (1ull << 53) + 1,
                                         (1ull << 60) + 12345,
                                         UINT64_MAX};
    double frequencies[PAIRS_MAX];
    float turns[2 * PAIRS_MAX];
    double worst = 0;
    uint64_t seed = 51;
    for (uint32_t round = 0; round < 40; round++) {
        uint32_t dim = 2 * (1 + (uint32_t)(kvant_test_random(&seed) % PAIRS_MAX));
        kvant_rope_inverse_frequency(round % 2 ? 1e4 : 1e6, dim, frequencies);
        if (round % 4 == 3) frequencies[0] = 1.7; /* any table will do */
        kvant_rope rope = rope_of(round % 3 ? KVANT_ROPE_NEOX : KVANT_ROPE_GPTJ, dim, 1.3, frequencies);
        for (size_t k = 0; k < sizeof positions / sizeof positions[0] + 20; k++) {
            uint64_t position =
                k < sizeof positions / sizeof positions[0] ? positions[k] : kvant_test_random(&seed) >> 32;
            kvant_rope_turns(&rope, position, turns);
            for (uint32_t i = 0; i < dim / 2; i++) {
                long double cosine, sine;
                exact_turn(position, frequencies[i], &cosine, &sine);
                for (int part = 0; part < 2; part++) {
                    long double want = part == 0 ? cosine : sine;
                    float got = turns[2 * i + (uint32_t)part];
                    long double unit = ldexpl(1, want == 0 ? -149 : ilogbl(want) - 23);
                    double error = (double)(fabsl(got - want) / unit);
                    if (error > worst) worst = error;
                    /* Half a unit for the one rounding, and what the double before it may be off. */
                    if (!(error <= 0.5 + 1e-8))
                        fail_msg("position %llu, frequency %a: %a, not %La", (unsigned long long)position,
                                 frequencies[i], (double)got, want);
                }
            }
        }
    }
    assert_true(worst > 0.49);
}

static void fill(float *row, uint32_t dim, uint64_t *seed) {
    for (uint32_t c = 0; c < dim; c++)
        row[c] = (float)(kvant_test_normal(seed) * (c % 9 == 4 ? 30 : 1) + (c % 4 == 1 ? 8 : 0));
}

/* Which channels are pair i. */
static void pair_of(uint32_t style, uint32_t rotary_dim, uint32_t i, uint32_t *x, uint32_t *y) {
    *x = style == KVANT_ROPE_NEOX ? i : 2 * i;
    *y = style == KVANT_ROPE_NEOX ? i + rotary_dim / 2 : 2 * i + 1;
}

static void rows_turn_by_the_definition(void **state) {
    (void)state;
    static const uint32_t dims[][2] = {{2, 2},   {64, 64}, {128, 128}, {80, 32},
                                       {96, 96}, {46, 46}, {47, 46},   {320, 64}};
    static const double magnitudes[] = {1, 1.3, 0.75};
    double frequencies[PAIRS_MAX];
    float turns[2 * PAIRS_MAX], row[320], given[320];
    uint64_t seed = 52;
    for (uint32_t style = KVANT_ROPE_NEOX; style <= KVANT_ROPE_GPTJ; style++) {
        for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
            for (size_t m = 0; m < 3; m++) {
                uint32_t dim = dims[d][0], rotary = dims[d][1];
                kvant_rope_inverse_frequency(1e4, rotary, frequencies);
                kvant_rope rope = rope_of(style, rotary, magnitudes[m], frequencies);
                assert_int_equal(kvant_rope_pairs(&rope), rotary / 2);
                uint64_t position = kvant_test_random(&seed) >> 44;
                kvant_rope_turns(&rope, position, turns);
                fill(given, dim, &seed);
                memcpy(row, given, sizeof row);
                kvant_rope_apply(&rope, turns, row);
                for (uint32_t i = 0; i < rotary / 2; i++) {
                    uint32_t a, b;
                    pair_of(style, rotary, i, &a, &b);
                    long double cosine, sine;
                    exact_turn(position, frequencies[i], &cosine, &sine);
                    long double x = (given[a] * cosine - given[b] * sine) * magnitudes[m];
                    long double y = (given[b] * cosine + given[a] * sine) * magnitudes[m];
                    kvant_assert_close(row[a], x, 2e-5);
                    kvant_assert_close(row[b], y, 2e-5);
                    /* One rounding for each operation, in the order of the definition. */
                    float c = turns[2 * i], s = turns[2 * i + 1], scale = (float)magnitudes[m];
                    float product_1 = given[a] * c, product_2 = given[b] * s;
                    float difference = product_1 - product_2;
                    assert_true(row[a] == difference * scale);
                }
                for (uint32_t c = rotary; c < dim; c++) assert_true(row[c] == given[c]);
                kvant_rope_undo(&rope, turns, row);
                double moved = 0;
                for (uint32_t c = 0; c < dim; c++) {
                    kvant_assert_close(row[c], given[c], 3e-5);
                    moved += row[c] != given[c];
                }
                assert_true(rotary < 32 || moved > 0); /* rounding leaves traces: it did turn */
            }
        }
    }
}

/* The scores of rope: a query and a key turned alike keep their product, and turning is relative. */
static void products_depend_on_distance(void **state) {
    (void)state;
    enum { DIM = 64 };
    double frequencies[DIM / 2];
    float near[DIM], far[DIM], query[DIM], key[DIM], turns[DIM];
    uint64_t seed = 53;
    kvant_rope_inverse_frequency(1e5, DIM, frequencies);
    for (uint32_t style = KVANT_ROPE_NEOX; style <= KVANT_ROPE_GPTJ; style++) {
        kvant_rope rope = rope_of(style, DIM, 1, frequencies);
        fill(query, DIM, &seed);
        fill(key, DIM, &seed);
        double products[2] = {0, 0}, unturned = 0;
        for (uint32_t k = 0; k < 2; k++) {
            uint64_t base = k == 0 ? 0 : 4000000000u;
            memcpy(near, query, sizeof near);
            memcpy(far, key, sizeof far);
            kvant_rope_turns(&rope, base + 17, turns);
            kvant_rope_apply(&rope, turns, near);
            kvant_rope_turns(&rope, base, turns);
            kvant_rope_apply(&rope, turns, far);
            for (uint32_t c = 0; c < DIM; c++) products[k] += (double)near[c] * far[c];
        }
        for (uint32_t c = 0; c < DIM; c++) unturned += (double)query[c] * key[c];
        kvant_assert_within(products[1], products[0], 1e-5);
        assert_true(fabs(products[0] - unturned) > 1e-2 * fabs(unturned));
    }
}

static void none_turns_nothing(void **state) {
    (void)state;
    float row[4] = {1, 2, 3, 4}, turns[4] = {0.5f, 0.25f, 0.5f, 0.25f};
    kvant_rope none = rope_of(KVANT_ROPE_NONE, 4, 2, NULL);
    const kvant_rope *ropes[] = {&none, NULL};
    for (size_t k = 0; k < 2; k++) {
        assert_int_equal(kvant_rope_pairs(ropes[k]), 0);
        kvant_rope_turns(ropes[k], 5, turns);
        kvant_rope_apply(ropes[k], turns, row);
        kvant_rope_undo(ropes[k], turns, row);
        assert_true(turns[0] == 0.5f && turns[1] == 0.25f);
        assert_true(row[0] == 1 && row[1] == 2 && row[2] == 3 && row[3] == 4);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(inverse_frequencies),         cmocka_unit_test(turns_are_rounded_once),
        cmocka_unit_test(rows_turn_by_the_definition), cmocka_unit_test(products_depend_on_distance),
        cmocka_unit_test(none_turns_nothing),
    };
    return kvant_run_tests(tests, argc, argv);
}
