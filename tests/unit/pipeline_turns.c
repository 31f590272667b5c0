/* The turns that the host makes by adding angles, against those of the kit, which computes each anew. */
#include "support/test.h"

#include <kvant/kit/rope.h>
#include <math.h>
#include <pipeline/turns.h>
#include <stdlib.h>

enum { PAIRS = 20 };

typedef struct fixture {
    double frequency[PAIRS];
    kvant_rope rope;
    double *table;
    double base[2 * PAIRS];
} fixture;

static fixture make(double theta) {
    fixture f = {.rope = {.struct_size = sizeof(kvant_rope),
                          .style = KVANT_ROPE_NEOX,
                          .rotary_dim = 2 * PAIRS,
                          .magnitude = 1.25}}; /* not in the turns */
    kvant_rope_inverse_frequency(theta, 2 * PAIRS, f.frequency);
    f.rope.inverse_frequency = f.frequency;
    f.table = calloc(kvant_turn_table_size(&f.rope), sizeof *f.table);
    assert_non_null(f.table);
    kvant_turn_table_fill(&f.rope, f.table);
    return f;
}

/* Rounded to float, two doubles that close differ seldom, and by one unit in the last place. */
static void near_the_exact_ones(void **state) {
    static const uint64_t starts[] = {0, 1, 63, 64, 1000, 131071, 4294967290u, 1ull << 40};
    fixture f = make(100000.0);
    f.rope.inverse_frequency = f.frequency;
    uint32_t different = 0, count = 0;
    (void)state;
    for (size_t s = 0; s < sizeof starts / sizeof starts[0]; s++) {
        kvant_turn_walk walk = kvant_turn_walk_begin(&f.rope, f.table, f.base);
        for (uint32_t t = 0; t < 200; t++) {
            float got[2 * PAIRS], exact[2 * PAIRS];
            kvant_turn_walk_to(&walk, starts[s] + t, got);
            kvant_rope_turns(&f.rope, starts[s] + t, exact);
            for (uint32_t i = 0; i < 2 * PAIRS; i++, count++) {
                different += got[i] != exact[i];
                /* Beside a zero of the sine the error of 2^-51 is absolute. */
                kvant_assert_close(got[i], exact[i], fabs((double)exact[i]) * 0x1p-23 + 0x1p-50);
            }
        }
    }
    assert_in_range(different, 0, count / 10000);
    free(f.table);
}

/* A position has one turn, wherever the walk began and wherever it came from. */
static void the_same_from_everywhere(void **state) {
    fixture f = make(10000.0);
    f.rope.inverse_frequency = f.frequency;
    (void)state;
    for (uint64_t position = 0; position < 400; position += 37) {
        float alone[2 * PAIRS], walked[2 * PAIRS];
        kvant_turn_walk one = kvant_turn_walk_begin(&f.rope, f.table, f.base);
        kvant_turn_walk_to(&one, position, alone);
        kvant_turn_walk other = kvant_turn_walk_begin(&f.rope, f.table, f.base);
        kvant_turn_walk_to(&other, position + 100, walked);
        kvant_turn_walk_to(&other, position, walked);
        assert_memory_equal(alone, walked, sizeof alone);
        kvant_turn_walk_to(&other, position + 1, walked);
        assert_memory_not_equal(alone, walked, sizeof alone);
    }
    free(f.table);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(near_the_exact_ones),
        cmocka_unit_test(the_same_from_everywhere),
    };
    return kvant_run_tests(tests, argc, argv);
}
