/* The host's float kernels: right against double precision, and the same bits on every instruction set. */
#include "attend/attend_kernels.h"
#include "attend/attend_math.h"

#include "support/test.h"

#include <kvant/kvant.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 112, ROWS = 39 };

static double ulps(float got, double want) {
    int exponent;
    (void)frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1, exponent - 24);
}

static void exponential_and_tangent(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits <= 0x42ae0000u; bits += 4099) { /* 0 to 87 */
        float x = kvant_bits_float(bits);
        assert_true(ulps(kvant_attend_exp(-x), exp(-(double)x)) < 1.1);
        assert_true(ulps(kvant_attend_tanh(x), tanh((double)x)) < 1.6 || x < 1e-30f);
        assert_true(kvant_attend_tanh(-x) == -kvant_attend_tanh(x));
    }
    assert_true(kvant_attend_exp(0) == 1 && kvant_attend_exp(-0.0f) == 1);
    assert_true(kvant_attend_exp(-87.5f) == 0 && kvant_attend_exp(-INFINITY) == 0);
    assert_true(isnan(kvant_attend_exp(NAN)) && isnan(kvant_attend_tanh(NAN)));
    assert_true(kvant_attend_tanh(INFINITY) == 1 && kvant_attend_tanh(-1e30f) == -1);
}

static void random_rows(float *rows, size_t count, uint64_t seed) {
    for (size_t i = 0; i < count; i++) rows[i] = (float)kvant_test_normal(&seed);
}

/* Each kernel on every count, against the definition in attend_kernels.h written out. */
static float sum_of_lanes(const float *terms, uint32_t count) {
    float lanes[16] = {0};
    for (uint32_t i = 0; i < count; i++) lanes[i % 16] += terms[i];
    for (uint32_t half = 8; half >= 1; half /= 2)
        for (uint32_t j = 0; j < half; j++) lanes[j] += lanes[j + half];
    return lanes[0];
}

static void check_dot(const kvant_attend_kernels *k) {
    float query[WIDTH], rows[ROWS * WIDTH], products[ROWS + 1], terms[WIDTH];
    random_rows(query, WIDTH, 1);
    random_rows(rows, ROWS * WIDTH, 2);
    for (uint32_t count = 0; count <= ROWS; count++) {
        products[count] = 77;
        k->dot(query, rows, count, WIDTH, products);
        assert_true(products[count] == 77);
        for (uint32_t t = 0; t < count; t++) {
            for (uint32_t c = 0; c < WIDTH; c++) terms[c] = query[c] * rows[t * WIDTH + c];
            assert_true(products[t] == sum_of_lanes(terms, WIDTH));
        }
    }
}

static void check_softmax(const kvant_attend_kernels *k) {
    for (uint32_t count = 0; count <= ROWS; count++)
        for (int capped = 0; capped < 2; capped++) {
            float x[ROWS + 1], want[ROWS], most = -INFINITY, cap = capped ? 1.5f : 0;
            random_rows(x, ROWS, 3 + count);
            x[count] = 77;
            for (uint32_t i = 0; i < count; i++) {
                want[i] = x[i] + 0.375f;
                if (capped) want[i] = cap * kvant_attend_tanh(want[i] / cap);
                if (want[i] > most) most = want[i];
            }
            assert_true(k->settle(x, count, 0.375f, cap) == most);
            for (uint32_t i = 0; i < count; i++) assert_true(x[i] == want[i]);
            for (uint32_t i = 0; i < count; i++) want[i] = kvant_attend_exp(want[i] - 3);
            assert_true(k->weigh(x, count, 3) == sum_of_lanes(want, count));
            for (uint32_t i = 0; i < count; i++) assert_true(x[i] == want[i]);
            assert_true(x[count] == 77);
        }
    float x[20];
    random_rows(x, 20, 9);
    x[4] = NAN;
    x[17] = 50;
    assert_true(k->settle(x, 20, 0, 0) == 50 && isnan(k->weigh(x, 20, 50)));
}

static void check_sums(const kvant_attend_kernels *k) {
    float rows[ROWS * WIDTH], weights[ROWS], into[WIDTH], want[WIDTH];
    random_rows(rows, ROWS * WIDTH, 4);
    random_rows(weights, ROWS, 5);
    for (uint32_t count = 0; count <= ROWS; count++) {
        random_rows(into, WIDTH, 6);
        memcpy(want, into, sizeof want);
        for (uint32_t c = 0; c < WIDTH; c++) {
            uint32_t t = 0;
            const float *w = weights, *r = rows + c;
            for (; t + 4 <= count; t += 4)
                want[c] += (w[t] * r[t * WIDTH] + w[t + 1] * r[(t + 1) * WIDTH]) +
                           (w[t + 2] * r[(t + 2) * WIDTH] + w[t + 3] * r[(t + 3) * WIDTH]);
            for (; t < count; t++) want[c] += w[t] * r[t * WIDTH];
        }
        k->mix(into, weights, rows, count, WIDTH);
        kvant_assert_bytes(into, want, sizeof want);
    }
    k->scale(into, WIDTH - 5, 0.3f);
    for (uint32_t c = 0; c < WIDTH; c++) assert_true(into[c] == (c < WIDTH - 5 ? want[c] * 0.3f : want[c]));
    memcpy(want, into, sizeof want);
    k->merge(into, 0.7f, rows, 0.9f, WIDTH - 3);
    for (uint32_t c = 0; c < WIDTH; c++)
        assert_true(into[c] == (c < WIDTH - 3 ? want[c] * 0.7f + rows[c] * 0.9f : want[c]));
}

static void every_instruction_set_has_the_same_bits(void **state) {
    (void)state;
    static const uint32_t levels[] = {KVANT_ISA_SCALAR, KVANT_ISA_X86_64_V2, KVANT_ISA_X86_64_V3,
                                      KVANT_ISA_X86_64_V4};
    for (size_t i = 0; i < 4; i++) {
        if (levels[i] > kvant_isa()) continue;
        const kvant_attend_kernels *k = kvant_attend_kernels_for(levels[i]);
        assert_true(k->isa <= levels[i]);
        print_message("%s: kernels of %s\n", kvant_isa_name(levels[i]), kvant_isa_name(k->isa));
        check_dot(k);
        check_softmax(k);
        check_sums(k);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponential_and_tangent),
        cmocka_unit_test(every_instruction_set_has_the_same_bits),
    };
    return kvant_run_tests(tests, argc, argv);
}
