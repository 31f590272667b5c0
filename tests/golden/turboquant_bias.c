/* Algorithm 2 is unbiased and algorithm 1 is not: <q, decoded k> averaged over many seeds, for the unit
 * vectors of data/turboquant.safetensors, whose exact products and whose averages over 4000 matrices of other
 * programs the file has.
 *
 *     unbias.{q_unit,k_unit,true}            8 queries, one key, <q,k>
 *     unbias.mse_only                        2 bits of algorithm 1 alone, one rotation
 *     unbias.{gauss,ortho,qjl1}.{mean,var}   3 bits of algorithm 2; qjl1: the sketch alone
 */
#include "support/test.h"
#include "support/test_codec.h"

#include <data/safetensors.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 64, QUERIES = 8, SEEDS = 2000, TOKENS = 2 };

static kvant_safetensors *file;

static double number(const char *name, size_t i) {
    const kvant_array *array = kvant_safetensors_find(file, name);
    double x;
    if (array == NULL) fail_msg("no tensor %s", name);
    memcpy(&x, (const char *)array->data + 8 * i, 8);
    return x;
}

typedef struct estimate {
    double mean, variance, truth;
} estimate;

/* Over SEEDS seeds; odd ones through the values' side of the format. */
static void estimate_all(const char *parameters, uint32_t isa, estimate out[QUERIES]) {
    float k[TOKENS * DIM];
    double sums[QUERIES] = {0}, squares[QUERIES] = {0};
    for (size_t i = 0; i < DIM; i++) {
        k[i] = (float)number("unbias.k_unit", i);
        k[DIM + i] = k[DIM - 1 - i]; /* beside it, another row */
    }
    for (uint32_t seed = 1; seed <= SEEDS; seed++) {
        char text[128];
        snprintf(text, sizeof text, "%s seed=%u", parameters, seed * 7919);
        kvant_test_codec *codec =
            kvant_test_codec_open("turboquant", seed & 1, KVANT_DTYPE_F32, TOKENS, 1, DIM, isa, text);
        kvant_test_codec_encode(codec, k, TOKENS * DIM);
        float *x = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
        for (size_t q = 0; q < QUERIES; q++) {
            double dot = 0;
            for (size_t i = 0; i < DIM; i++) dot += number("unbias.q_unit", q * DIM + i) * (double)x[i];
            sums[q] += dot;
            squares[q] += dot * dot;
        }
        free(x);
        kvant_test_codec_close(codec);
    }
    for (size_t q = 0; q < QUERIES; q++) {
        double mean = sums[q] / SEEDS;
        out[q] = (estimate){mean, squares[q] / SEEDS - mean * mean, number("unbias.true", q)};
    }
}

static uint32_t best_isa(void) {
    uint32_t isas[KVANT_TEST_ISA_MAX], count = kvant_test_isas(isas);
    return isas[count - 1];
}

/* Slope of the means on the true products, fitted through 0. */
static double slope(const estimate e[QUERIES]) {
    double along = 0, own = 0;
    for (size_t q = 0; q < QUERIES; q++) along += e[q].mean * e[q].truth, own += e[q].truth * e[q].truth;
    return along / own;
}

/* The mean within what chance allows, and a variance as in the theory: `variance` times |q|^2 / d, both
 * sides. */
static void check_unbiased(const char *parameters, double variance) {
    estimate e[QUERIES];
    double sum = 0;
    estimate_all(parameters, best_isa(), e);
    for (size_t q = 0; q < QUERIES; q++) {
        kvant_assert_close(e[q].mean, e[q].truth, 4 * sqrt(e[q].variance / SEEDS));
        sum += e[q].variance * DIM / QUERIES;
    }
    print_message("[          ] %s: slope %.4f, d Var %.4f\n", parameters, slope(e), sum);
    kvant_assert_within(sum, variance, 0.15);
}

static void prod_is_unbiased(void **state) {
    (void)state;
    /* (pi/2 - 1) D and pi/2 D, D that of 2 bits and of none; a rotation that varies with the seed adds a
     * little. */
    check_unbiased("mode=prod bits=3", 0.5708 * 0.1145);
    check_unbiased("mode=prod bits=3 scale_mode=raw", 0.5708 * 0.1145);
    check_unbiased("mode=prod bits=3 scale_mode=raw sketch=gaussian", 1.5708 * 0.1145);
    check_unbiased("mode=prod bits=1", 0.5708);
}

static void mse_is_biased(void **state) {
    (void)state;
    estimate e[QUERIES];
    uint32_t off = 0;
    estimate_all("mode=mse bits=2 scale_mode=raw", best_isa(), e);
    for (size_t q = 0; q < QUERIES; q++)
        off += fabs(e[q].mean - e[q].truth) > 4 * sqrt(e[q].variance / SEEDS);
    kvant_assert_within(slope(e), 1 - 0.1145, 0.01); /* shrunk by the distortion */
    assert_true(off >= 4);
    estimate_all("mode=mse bits=2", best_isa(), e);
    kvant_assert_within(slope(e), sqrt(1 - 0.1145), 0.01);
    estimate_all("mode=mse bits=2 scale_mode=unbiased", best_isa(), e);
    kvant_assert_within(slope(e), 1, 0.01);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(prod_is_unbiased),
                                              cmocka_unit_test(mse_is_biased)};
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_safetensors_open(KVANT_TEST_SOURCE_DIR "/tests/golden/data/turboquant.safetensors", &file,
                               &diag) != KVANT_OK) {
        fprintf(stderr, "%s\n", diag.message);
        return EXIT_FAILURE;
    }
    int status = kvant_run_tests(tests, argc, argv);
    kvant_safetensors_close(file);
    return status;
}
