/* The choice of tags that get 4 bits, against all subsets. */
#include "support/test.h"

#include <triaxial/triaxial_solver.c>

#include <math.h>

/* The most gain that fits, over all 2^count subsets. */
static double brute_force(const triaxial_item *items, uint32_t count, double room) {
    double best = 0;
    for (uint32_t mask = 0; mask < 1u << count; mask++) {
        double gain = 0, tokens = 0;
        for (uint32_t i = 0; i < count; i++)
            if (mask >> i & 1) {
                gain += items[i].gain;
                tokens += items[i].tokens;
            }
        if (tokens <= room && gain > best) best = gain;
    }
    return best;
}

/* What was chosen fits and gains what was said. */
static void check_choice(const triaxial_item *items, uint32_t count, double room, const bool *chosen,
                         double said) {
    double gain = 0, tokens = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!chosen[i]) continue;
        assert_true(items[i].gain > 0);
        gain += items[i].gain;
        tokens += items[i].tokens;
    }
    assert_true(tokens <= room);
    kvant_assert_close(gain, said, 1e-12 * (1 + said));
}

static void equals_all_subsets(void **state) {
    (void)state;
    uint64_t seed = 11;
    uint32_t not_greedy = 0;
    for (uint32_t round = 0; round < 400; round++) {
        triaxial_item items[14];
        bool chosen[14];
        uint32_t count = 1 + round % 14;
        double all = 0;
        for (uint32_t i = 0; i < count; i++) {
            items[i].tokens = (double)(1 + kvant_test_random(&seed) % 60);
            items[i].gain = kvant_test_normal(&seed) + 0.5;
            if (round % 5 == 0) items[i].gain = (double)(kvant_test_random(&seed) % 4); /* ties */
            if (round % 7 == 0) items[i].gain *= pow(10, (double)i - 7);
            all += items[i].tokens;
        }
        double room = all * (double)(kvant_test_random(&seed) % 101) / 100;
        double got = triaxial_solve(items, count, room, chosen), best = brute_force(items, count, room);
        kvant_assert_close(got, best, 1e-12 * best);
        check_choice(items, count, room, chosen, got);
        search greedy = {.items = items};
        for (uint32_t i = 0; i < count; i++)
            if (items[i].gain > 0) greedy.order[greedy.count++] = i;
        sort(&greedy);
        take_greedily(&greedy, room);
        not_greedy += greedy.best_gain < got * (1 - 1e-9);
    }
    assert_true(not_greedy > 20); /* the cases are not all trivial */
}

/* A case that the greedy order gets wrong: the densest item keeps the best pair out. */
static void is_exact_to_22_and_greedy_beyond(void **state) {
    (void)state;
    triaxial_item items[23];
    bool chosen[23];
    items[0] = (triaxial_item){6, 5};
    items[1] = items[2] = (triaxial_item){5, 5};
    items[0].tokens = 4;
    for (uint32_t i = 3; i < 23; i++) items[i] = (triaxial_item){1e-6, 100};
    kvant_assert_close(triaxial_solve(items, 22, 10, chosen), 11, 0);
    items[0] = (triaxial_item){6, 6};
    items[1] = items[2] = (triaxial_item){4.9, 5};
    kvant_assert_close(triaxial_solve(items, 22, 10, chosen), 9.8, 1e-12);
    assert_false(chosen[0]);
    kvant_assert_close(triaxial_solve(items, 23, 10, chosen), 6, 0); /* 23 items with a gain: greedy */
    assert_true(chosen[0]);
    items[22].gain = 0;
    kvant_assert_close(triaxial_solve(items, 23, 10, chosen), 9.8, 1e-12);
}

/* All 22 items alike but for a little: nothing prunes well. */
static void takes_no_time(void **state) {
    (void)state;
    triaxial_item items[22];
    bool chosen[22], again[22];
    uint64_t seed = 3;
    double all = 0;
    for (uint32_t i = 0; i < 22; i++) {
        items[i].tokens = 1000 + (double)(kvant_test_random(&seed) % 7);
        items[i].gain = items[i].tokens * (1 + 1e-9 * kvant_test_normal(&seed));
        all += items[i].tokens;
    }
    double got = triaxial_solve(items, 22, all / 2 + 0.5, chosen);
    check_choice(items, 22, all / 2 + 0.5, chosen, got);
    assert_true(got > 0.45 * all);
    assert_true(triaxial_solve(items, 22, all / 2 + 0.5, again) == got);
    assert_memory_equal(chosen, again, sizeof chosen);
}

static void edges(void **state) {
    (void)state;
    triaxial_item items[2] = {{1, 10}, {-1, 10}};
    bool chosen[2] = {true, true};
    kvant_assert_close(triaxial_solve(items, 2, 9.99, chosen), 0, 0);
    assert_false(chosen[0] || chosen[1]);
    kvant_assert_close(triaxial_solve(items, 2, 1000, chosen), 1, 0);
    assert_true(chosen[0] && !chosen[1]);
    kvant_assert_close(triaxial_solve(items, 0, 5, chosen), 0, 0);
    items[1] = items[0]; /* of equals the lower index */
    (void)triaxial_solve(items, 2, 10, chosen);
    assert_true(chosen[0] && !chosen[1]);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(equals_all_subsets),
                                              cmocka_unit_test(is_exact_to_22_and_greedy_beyond),
                                              cmocka_unit_test(takes_no_time), cmocka_unit_test(edges)};
    return kvant_run_tests(tests, argc, argv);
}
