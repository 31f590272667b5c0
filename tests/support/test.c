/* See test.h. */
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kvant_assert_close_at(double got, double want, double tolerance, const char *what, const char *file,
                           int line) {
    if (isfinite(got) && isfinite(want) && fabs(got - want) <= tolerance) return;
    print_error("%s = %.17g, not %.17g +- %.3g\n", what, got, want, tolerance);
    _fail(file, line);
}

void kvant_assert_within_at(double got, double want, double fraction, const char *what, const char *file,
                            int line) {
    if (isfinite(got) && isfinite(want) && fabs(got - want) <= fraction * fabs(want)) return;
    print_error("%s = %.17g, not within %.3g %% of %.17g\n", what, got, 100 * fraction, want);
    _fail(file, line);
}

void kvant_assert_bytes_at(const void *got, const void *want, size_t size, const char *what, const char *file,
                           int line) {
    const unsigned char *g = got, *w = want;
    size_t differ = 0, first = 0;
    for (size_t i = 0; i < size; i++)
        if (g[i] != w[i] && differ++ == 0) first = i;
    if (differ == 0) return;
    print_error("%s: %zu of %zu bytes differ, the first at %zu: %02x, not %02x\n", what, differ, size, first,
                g[first], w[first]);
    _fail(file, line);
}

void kvant_assert_contains_at(const char *text, const char *part, const char *file, int line) {
    if (text != NULL && strstr(text, part) != NULL) return;
    print_error("\"%s\" does not contain \"%s\"\n", text != NULL ? text : "(null)", part);
    _fail(file, line);
}

int kvant_run_tests_named(const char *group, const struct CMUnitTest *tests, size_t count, int argc,
                          char **argv) {
    struct CMUnitTest *chosen = calloc(count ? count : 1, sizeof *chosen);
    size_t n = 0;
    if (chosen == NULL) return 1;
    for (size_t i = 0; i < count; i++)
        if (argc < 2 || strstr(tests[i].name, argv[1]) != NULL) chosen[n++] = tests[i];
    if (n == 0) {
        fprintf(stderr, "%s: no test matches\n", group);
        free(chosen);
        return 1;
    }
    int failures = _cmocka_run_group_tests(group, chosen, n, NULL, NULL);
    free(chosen);
    return failures != 0;
}

uint64_t kvant_test_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

double kvant_test_normal(uint64_t *state) { /* Box-Muller; u is never 0 */
    double u = ((double)(kvant_test_random(state) >> 11) + 0.5) * 0x1p-53;
    double v = (double)(kvant_test_random(state) >> 11) * 0x1p-53;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}
