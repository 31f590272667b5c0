/* What every test program includes: cmocka in its order, comparisons that cmocka gets wrong, and a main that
 * fails when a filter matches nothing.
 *
 *     static void adds(void **state) { (void)state; kvant_assert_close(1 + 1, 2, 0); }
 *     int main(int argc, char **argv) {
 *         static const struct CMUnitTest tests[] = {cmocka_unit_test(adds)};
 *         return kvant_run_tests(tests, argc, argv);
 *     }
 */
#ifndef KVANT_TEST_H
#define KVANT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* |got - want| <= tolerance, both finite (cmocka's assert_float_equal passes NaN). */
#define kvant_assert_close(got, want, tolerance)                                                             \
    kvant_assert_close_at((double)(got), (double)(want), (double)(tolerance), #got, __FILE__, __LINE__)
void kvant_assert_close_at(double got, double want, double tolerance, const char *what, const char *file,
                           int line);

/* got within `fraction` of want, both ways: an encoder that does nothing fails it. */
#define kvant_assert_within(got, want, fraction)                                                             \
    kvant_assert_within_at((double)(got), (double)(want), (double)(fraction), #got, __FILE__, __LINE__)
void kvant_assert_within_at(double got, double want, double fraction, const char *what, const char *file,
                            int line);

/* Two buffers, byte for byte; names the first place that differs. */
#define kvant_assert_bytes(got, want, size)                                                                  \
    kvant_assert_bytes_at((got), (want), (size), #got, __FILE__, __LINE__)
void kvant_assert_bytes_at(const void *got, const void *want, size_t size, const char *what, const char *file,
                           int line);

/* `text` contains `part`. */
#define kvant_assert_contains(text, part) kvant_assert_contains_at((text), (part), __FILE__, __LINE__)
void kvant_assert_contains_at(const char *text, const char *part, const char *file, int line);

/* Runs the tests whose name contains argv[1] (all without). No match is a failure. */
#define kvant_run_tests(tests, argc, argv)                                                                   \
    kvant_run_tests_named(__FILE__, (tests), sizeof(tests) / sizeof(tests)[0], (argc), (argv))
int kvant_run_tests_named(const char *group, const struct CMUnitTest *tests, size_t count, int argc,
                          char **argv);

/* Uniform 64 bits, and N(0,1), from a seed: the same numbers on every machine. */
uint64_t kvant_test_random(uint64_t *state);
double kvant_test_normal(uint64_t *state);

#endif
