/* kit/lloyd_max.h against every table of data/lloyd_max.safetensors, which were solved in arithmetic of 40
 * digits: N(0,1) and coordinates of unit spheres, 1 to 8 bits, centroids and boundaries within 1e-9. */
#include "support/test.h"

#include <data/safetensors.h>
#include <kvant/kit/lloyd_max.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvant_safetensors *file;

static double at(const kvant_array *array, size_t index) {
    double x;
    memcpy(&x, (const char *)array->data + index * sizeof x, sizeof x);
    return x;
}

static void every_table(void **state) {
    (void)state;
    uint32_t checked = 0;
    double worst = 0;
    for (uint32_t i = 0; i < kvant_safetensors_count(file); i++) {
        const kvant_array *want = kvant_safetensors_at(file, i);
        char law[16], what[16];
        unsigned bits, dimension = 0;
        if (sscanf(want->name, "%15[a-z0-9].b%u.%15s", law, &bits, what) != 3 ||
            (strcmp(law, "gauss") != 0 && sscanf(law, "d%u", &dimension) != 1))
            fail_msg("%s: unknown tensor", want->name);
        double centroids[256], boundaries[256];
        kvant_lloyd_max(dimension, bits, centroids, boundaries);
        int middle = strcmp(what, "boundaries") == 0;
        size_t count = ((size_t)1 << bits) - (size_t)middle;
        assert_int_equal(want->dtype, KVANT_DTYPE_F64);
        assert_int_equal(want->bytes, count * sizeof(double));
        for (size_t k = 0; k < count; k++) {
            double error = fabs((middle ? boundaries : centroids)[k] - at(want, k));
            if (!(error <= 1e-9)) fail_msg("%s[%zu]: error %g", want->name, k, error);
            if (error > worst) worst = error;
        }
        checked++;
    }
    print_message("[          ] largest error %.2g over %u tables\n", worst, checked);
    assert_true(worst < 1e-11); /* what the header promises */
    assert_int_equal(checked, kvant_safetensors_count(file));
    assert_true(checked >= 100);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(every_table)};
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_safetensors_open(KVANT_TEST_SOURCE_DIR "/tests/golden/data/lloyd_max.safetensors", &file,
                               &diag) != KVANT_OK) {
        fprintf(stderr, "%s\n", diag.message);
        return EXIT_FAILURE;
    }
    int status = kvant_run_tests(tests, argc, argv);
    kvant_safetensors_close(file);
    return status;
}
