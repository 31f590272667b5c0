/* Ordered sums against their definition. */
#include "support/test.h"

#include <kvant/kit/sum.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The definition by recursion: x[0..room) is the sum of its lower and upper halves, element by element. */
static float defined(const float *x, uint32_t n, uint32_t first, uint32_t step, uint32_t room) {
    if (step == room) return first < n ? x[first] : 0.0f;
    return defined(x, n, first, 2 * step, room) + defined(x, n, first + step, 2 * step, room);
}

static void fill(float *x, uint32_t n, uint64_t *seed) {
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)(kvant_test_normal(seed) * (i % 13 == 5 ? 1000 : 1) + (i % 3 == 0 ? 8 : 0));
}

static void sums_as_defined(void **state) {
    (void)state;
    uint64_t seed = 31;
    float x[1024 + 1], copy[1024];
    uint32_t differs_from_serial = 0;
    for (uint32_t n = 0; n <= 600; n++) {
        uint32_t room = kvant_sum_room(n);
        assert_true(room >= n && (room & (room - 1)) == 0 && (n < 2 || room / 2 < n));
        fill(copy, n, &seed);
        for (uint32_t i = 0; i <= 1024; i++) x[i] = i < n ? copy[i] : NAN;
        float got = kvant_sum(x, n), serial = 0;
        float want = defined(copy, n, 0, 1, room);
        if (got != want) fail_msg("the sum of %u is %a, not %a", n, (double)got, (double)want);
        for (uint32_t i = 0; i < n; i++) serial += copy[i];
        differs_from_serial += serial != got;
        kvant_assert_close(got, serial, 0.05);
        for (uint32_t i = room; i <= 1024; i++) assert_true(isnan(x[i])); /* nothing beyond the room */
    }
    assert_true(differs_from_serial > 300);
}

static void small_sums(void **state) {
    (void)state;
    float x[8] = {0x1p24f, 1, -0x1p24f, 1};
    assert_true(kvant_sum(x, 4) == 2); /* (2^24 - 2^24) + (1 + 1); in a row it would be 1 */
    x[0] = -0.0f;
    assert_true(signbit(kvant_sum(x, 1)));
    assert_true(kvant_sum(x, 0) == 0 && !signbit(kvant_sum(x, 0)));
    float three[4] = {-0.0f, -0.0f, -0.0f, 99};
    assert_true(!signbit(kvant_sum(three, 3))); /* the padding is +0 */
    assert_int_equal(kvant_sum_room(0), 1);
    assert_int_equal(kvant_sum_room(1), 1);
    assert_int_equal(kvant_sum_room(1u << 31), 1u << 31);
}

static void columns_sum_alike(void **state) {
    (void)state;
    uint64_t seed = 32;
    for (uint32_t n = 0; n <= 70; n++) {
        uint32_t width = 1 + (n * 7) % 23, room = kvant_sum_room(n);
        float *x = malloc((room * width + 1) * sizeof *x), *column = malloc(room * sizeof *column);
        float *copy = malloc((room * width + 1) * sizeof *copy);
        assert_true(x != NULL && column != NULL && copy != NULL);
        fill(x, n * width, &seed);
        for (uint32_t i = n * width; i <= room * width; i++) x[i] = NAN;
        memcpy(copy, x, (room * width + 1) * sizeof *x);
        kvant_sum_columns(x, n, width);
        assert_true(isnan(x[room * width]));
        for (uint32_t c = 0; c < width; c++) {
            for (uint32_t i = 0; i < n; i++) column[i] = copy[i * width + c];
            assert_true(x[c] == kvant_sum(column, n));
        }
        free(x);
        free(column);
        free(copy);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_as_defined),
        cmocka_unit_test(small_sums),
        cmocka_unit_test(columns_sum_alike),
    };
    return kvant_run_tests(tests, argc, argv);
}
