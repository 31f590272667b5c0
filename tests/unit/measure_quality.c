/* core/measure/quality and account against the formulas, written out once more. */
#include "support/test.h"

#include "measure/account.h"
#include "measure/quality.h"

#include <math.h>

enum { ROWS = 37, DIM = 46 };

static void nmse_and_cosine_are_the_formulas(void **state) {
    (void)state;
    static double x[ROWS][DIM], y[ROWS][DIM];
    uint64_t seed = 11;
    double error = 0, energy = 0, cosines = 0, worst = 0;
    kvant_quality quality = {0};
    for (int r = 0; r < ROWS; r++) {
        double xy = 0, xx = 0, yy = 0;
        for (int c = 0; c < DIM; c++) {
            x[r][c] = 8 + (c == 5 ? 40 : 1) * kvant_test_normal(&seed); /* away from zero, one loud channel */
            y[r][c] = x[r][c] + 0.3 * kvant_test_normal(&seed);
            error += pow(x[r][c] - y[r][c], 2);
            energy += pow(x[r][c], 2);
            xy += x[r][c] * y[r][c];
            xx += x[r][c] * x[r][c];
            yy += y[r][c] * y[r][c];
            worst = fmax(worst, fabs(x[r][c] - y[r][c]));
        }
        cosines += xy / sqrt(xx * yy);
        kvant_quality_add(&quality, x[r], y[r], DIM);
    }
    kvant_assert_within(kvant_quality_nmse(&quality), error / energy, 1e-12);
    kvant_assert_within(kvant_quality_cosine(&quality), cosines / ROWS, 1e-12);
    kvant_assert_close(quality.max_error, worst, 0);
    assert_int_equal(quality.rows, ROWS);
    assert_int_equal(quality.elements, ROWS * DIM);
    assert_int_equal(quality.not_finite, 0);
}

static void a_codec_that_gives_zeros_has_nmse_one(void **state) {
    (void)state;
    const double x[3] = {1, -2, 3}, zeros[3] = {0};
    kvant_quality quality = {0};
    kvant_quality_add(&quality, x, zeros, 3);
    kvant_assert_close(kvant_quality_nmse(&quality), 1, 0);
    kvant_assert_close(kvant_quality_cosine(&quality), 0, 0);
    kvant_assert_close(quality.max_error, 3, 0);
}

static void identical_rows_have_no_error(void **state) {
    (void)state;
    const double x[3] = {1e-30, -65504, 3}, zeros[3] = {0};
    kvant_quality quality = {0};
    kvant_quality_add(&quality, x, x, 3);
    kvant_quality_add(&quality, zeros, zeros, 3);
    kvant_assert_close(kvant_quality_nmse(&quality), 0, 0);
    kvant_assert_close(kvant_quality_cosine(&quality), 1, 1e-15);
    kvant_quality silent = {0};
    kvant_quality_add(&silent, zeros, zeros, 3);
    kvant_assert_close(kvant_quality_nmse(&silent), 0, 0);
}

static void what_cannot_be_a_number_is_infinite_or_nan(void **state) {
    (void)state;
    const double x[3] = {1, 2, 3}, zeros[3] = {0}, broken[3] = {1, NAN, INFINITY};
    kvant_quality quality = {0};
    assert_true(isnan(kvant_quality_nmse(&quality)));
    assert_true(isnan(kvant_quality_cosine(&quality)));
    kvant_quality_add(&quality, zeros, x, 3);
    assert_true(kvant_quality_nmse(&quality) == INFINITY);
    kvant_assert_close(kvant_quality_cosine(&quality), 0, 0);
    quality = (kvant_quality){0};
    kvant_quality_add(&quality, x, broken, 3);
    kvant_quality_add(&quality, x, x, 3);
    assert_int_equal(quality.not_finite, 2);
    assert_true(kvant_quality_nmse(&quality) == INFINITY);
    assert_true(quality.max_error == INFINITY);
    assert_true(kvant_relative_error(NAN, 1) == INFINITY);
    kvant_assert_close(kvant_relative_error(4, 16), 0.5, 0);
    kvant_assert_close(kvant_relative_error(0, 0), 0, 0);
}

static void the_median_of_an_even_count_is_a_mean(void **state) {
    (void)state;
    double odd[] = {5, 1, 3}, even[] = {9, 1, 3, 4}, infinite[] = {INFINITY, INFINITY, 1, INFINITY},
           one[] = {7};
    kvant_assert_close(kvant_median(odd, 3), 3, 0);
    kvant_assert_close(kvant_median(even, 4), 3.5, 0);
    kvant_assert_close(kvant_median(one, 1), 7, 0);
    assert_true(kvant_median(infinite, 4) == INFINITY);
    assert_true(isnan(kvant_median(one, 0)));
}

static void bits_are_those_of_the_layout(void **state) {
    (void)state;
    /* 32 tokens, 2 heads, 46 channels at 2 bits, promoted in steps; metadata 600 bits; the rest padding. */
    const uint64_t elements = 32 * 2 * 46;
    const kvant_layout layout = {.struct_size = sizeof layout,
                                 .size_min = 1000,
                                 .size_step = 128,
                                 .size_steps = 4,
                                 .payload_bits = 2 * elements,
                                 .metadata_bits = 600,
                                 .payload_bits_step = 1000,
                                 .metadata_bits_step = 24};
    kvant_account account = {0};
    kvant_account_extent(&account, &layout, 1000, elements);
    kvant_assert_within(kvant_account_payload(&account), 2, 1e-15);
    kvant_assert_within(kvant_account_all(&account), 8000.0 / (double)elements, 1e-15);
    assert_int_equal(account.metadata_bits, 600);
    kvant_account_extent(&account, &layout, 1000 + 3 * 128, elements);
    assert_int_equal(account.payload_bits, 4 * elements + 3000);
    assert_int_equal(account.metadata_bits, 600 + 600 + 72);
    kvant_account_raw(&account, 100, 2);
    kvant_account other = {0};
    kvant_account_raw(&other, 10, 4);
    kvant_account_merge(&account, &other);
    assert_int_equal(account.raw_elements, 110);
    assert_int_equal(kvant_account_bytes(&account), 1000 + 1384 + 200 + 40);
    assert_true(isnan(kvant_account_all(&other)));
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(nmse_and_cosine_are_the_formulas),
        cmocka_unit_test(a_codec_that_gives_zeros_has_nmse_one),
        cmocka_unit_test(identical_rows_have_no_error),
        cmocka_unit_test(what_cannot_be_a_number_is_infinite_or_nan),
        cmocka_unit_test(the_median_of_an_even_count_is_a_mean),
        cmocka_unit_test(bits_are_those_of_the_layout),
    };
    return kvant_run_tests(tests, argc, argv);
}
