/* What nvcc makes of real kernels, for each architecture whose text differs, against C. All checks are on
 * and nothing may be reported. Without nvcc there is nothing to run. */
#include "support/ptx_fixture.h"
#include "support/ptx_formats.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct kernels {
    ptx_machine *machine;
    ptx_module *module;
    const char *name;
} kernels;

static void load(kernels *k, const char *name) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.ptx", KVANT_PTX_KERNEL_DIR, name);
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("cannot open %s", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    rewind(file);
    char *text = malloc((size_t)size);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)size, file), size);
    fclose(file);
    k->machine = ptx_machine_create();
    k->name = name;
    k->module = ptx_module_load(k->machine, name, text, (size_t)size);
    free(text);
    if (!k->module) fail_msg("%s", ptx_machine_message(k->machine));
}

/* In three orders of warps and blocks. */
static void run(kernels *k, const char *kernel, uint32_t blocks, size_t dynamic_shared,
                void *const *arguments, uint32_t seed) {
    ptx_launch launch = {.grid = {blocks, 1, 1},
                         .block = {128, 1, 1},
                         .dynamic_shared = dynamic_shared,
                         .arguments = arguments,
                         .checks = PTX_CHECK_ALL,
                         .seed = seed};
    int status = ptx_kernel_launch(k->machine, ptx_module_kernel(k->module, kernel), &launch);
    if (status == PTX_REFUSED) fail_msg("%s", ptx_machine_message(k->machine));
    if (status != PTX_OK) fail_msg("%s", ptx_machine_report(k->machine));
}

static void *take(kernels *k, size_t size, const char *name) {
    void *memory = ptx_memory_alloc(k->machine, size, name);
    assert_non_null(memory);
    return memory;
}

static const char *const architectures[] = {"samples_80", "samples_90", "samples_120a"};
static const char *const format_architectures[] = {"formats_89", "formats_100a", "formats_120a"};
#define EACH(name, list)                                                                                     \
    static void name(void **state) {                                                                         \
        (void)state;                                                                                         \
        for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)                                            \
            for (uint32_t seed = 0; seed < 3; seed++) name##_on(list[i], seed);                              \
    }

static void reduction_on(const char *name, uint32_t seed) {
    enum { ROWS = 9 };
    kernels k;
    load(&k, name);
    float *x = take(&k, sizeof(float) * 128 * ROWS, "x"), *low = take(&k, sizeof(float) * ROWS, "low"),
          *sum = take(&k, sizeof(float) * ROWS, "sum");
    uint64_t random = 5;
    for (int i = 0; i < 128 * ROWS; i++) x[i] = (float)kvant_test_normal(&random) * 3 + 1;
    void *const arguments[] = {&x, &low, &sum};
    run(&k, "reduce_rows", ROWS, 0, arguments, seed);
    for (int row = 0; row < ROWS; row++) {
        float want = INFINITY, sums[4];
        for (int w = 0; w < 4; w++) {
            float v[32];
            memcpy(v, x + row * 128 + w * 32, sizeof v);
            for (int o = 16; o; o /= 2)
                for (int l = 0; l < o; l++) v[l] += v[l + o];
            sums[w] = v[0];
        }
        for (int i = 0; i < 128; i++) want = fminf(want, x[row * 128 + i]);
        assert_true(low[row] == want);
        assert_true(sum[row] == (sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
    const ptx_counters *counters = ptx_machine_counters(k.machine);
    assert_int_equal(counters->load.sectors, ROWS * 16);
    assert_int_equal(counters->load.bytes, ROWS * 512);
    assert_int_equal(counters->by_class[PTX_CLASS_SHUFFLE], ROWS * 4 * 10);
    assert_int_equal(counters->shared_load.wavefronts, counters->shared_load.ideal);
    ptx_machine_destroy(k.machine);
}
EACH(reduction, architectures)

static void tiles_on(const char *name, uint32_t seed) {
    enum { TILES = 8 };
    kernels k;
    load(&k, name);
    uint16_t *a = take(&k, sizeof(uint16_t) * 1024 * TILES, "a"),
             *b = take(&k, sizeof(uint16_t) * 512 * TILES, "b");
    float *c = take(&k, sizeof(float) * 128 * TILES, "c");
    uint64_t random = 9;
    for (int i = 0; i < 1024 * TILES; i++)
        a[i] = (uint16_t)test_f16_bits(test_f16(kvant_test_normal(&random)));
    for (int i = 0; i < 512 * TILES; i++)
        b[i] = (uint16_t)test_f16_bits(test_f16(kvant_test_normal(&random) * 0.3));
    void *const arguments[] = {&a, &b, &c};
    run(&k, "tile_f16", TILES / 4, 0, arguments, seed);
    for (int t = 0; t < TILES; t++)
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                double want = 0;
                for (int d = 0; d < 64; d++)
                    want +=
                        test_f16_value(a[t * 1024 + i * 64 + d]) * test_f16_value(b[t * 512 + j * 64 + d]);
                kvant_assert_close(c[t * 128 + i * 8 + j], want, 1e-5);
            }
    const ptx_counters *counters = ptx_machine_counters(k.machine);
    assert_int_equal(counters->by_class[PTX_CLASS_MMA], TILES * 4);
    assert_int_equal(counters->matrix.wavefronts, counters->matrix.ideal);

    int8_t *qa = take(&k, 512 * TILES, "qa");
    uint8_t *qb = take(&k, 256 * TILES, "qb");
    int *qc = take(&k, sizeof(int) * 128 * TILES, "qc");
    for (int i = 0; i < 512 * TILES; i++) qa[i] = (int8_t)kvant_test_random(&random);
    for (int i = 0; i < 256 * TILES; i++) qb[i] = (uint8_t)kvant_test_random(&random);
    void *const integers[] = {&qa, &qb, &qc};
    run(&k, "tile_s8", TILES / 4, 0, integers, seed);
    for (int t = 0; t < TILES; t++)
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) {
                int want = 1 + j % 2 + (i >= 8 ? 2 : 0);
                for (int d = 0; d < 32; d++) want += qa[t * 512 + i * 32 + d] * qb[t * 256 + j * 32 + d];
                assert_int_equal(qc[t * 128 + i * 8 + j], want);
            }
    ptx_machine_destroy(k.machine);
}
EACH(tiles, architectures)

static uint32_t diverged(uint32_t v) {
    uint32_t r = 0;
    for (uint32_t n = v; n != 1 && r < 1000; r++) n = n & 1 ? 3 * n + 1 : n / 2;
    uint32_t reversed = 0;
    switch (v % 7) {
    case 0:
        r += 1;
        break;
    case 1:
        r *= 3;
        break;
    case 2:
        r ^= 0x55;
        break;
    case 3:
        for (int i = 0; i < 32; i++) reversed |= (r >> i & 1) << (31 - i);
        r = reversed;
        break;
    case 4:
        r -= v;
        break;
    case 5:
        r = r / ((v & 7) + 1);
        break;
    default:
        for (uint32_t i = 0; i < v % 5; i++)
            if (i != 3) r = r * 5 + i;
    }
    uint32_t factorial = 1;
    for (uint32_t i = 2; i <= v % 6; i++) factorial *= i;
    return r + factorial;
}

static void divergence_on(const char *name, uint32_t seed) {
    enum { N = 1000 };
    kernels k;
    load(&k, name);
    uint32_t *x = take(&k, sizeof *x * N, "x"), *y = take(&k, sizeof *y * N, "y"), n = N;
    for (uint32_t i = 0; i < N; i++) x[i] = i * 37 % 4001 + 1;
    void *const arguments[] = {&x, &y, &n};
    run(&k, "diverge", (N + 127) / 128, 0, arguments, seed);
    for (uint32_t i = 0; i < N; i++)
        if (y[i] != diverged(x[i]))
            fail_msg("%s: %u gives %u, expected %u", name, x[i], y[i], diverged(x[i]));
    assert_true(ptx_machine_counters(k.machine)->divergent > 0);
    ptx_machine_destroy(k.machine);
}
EACH(divergence, architectures)

static void spaces_on(const char *name, uint32_t seed) {
    enum { BLOCKS = 3 };
    kernels k;
    load(&k, name);
    float *x = take(&k, sizeof(float) * 512 * BLOCKS, "x"), *y = take(&k, sizeof(float) * 128 * BLOCKS, "y");
    uint32_t *histogram = take(&k, 64, "histogram"), want[16] = {0}, choose = 5;
    memset(histogram, 0, 64);
    for (int i = 0; i < 512 * BLOCKS; i++) x[i] = (float)(i * 7 % 61) - 30;
    void *const arguments[] = {&x, &y, &histogram, &choose};
    run(&k, "spaces", BLOCKS, 128 * 16, arguments, seed);
    static const float weights[8] = {1, -2, 4, -8, 16, -32, 64, -128};
    for (int b = 0; b < BLOCKS; b++)
        for (int t = 0; t < 128; t++) {
            const float *other = x + b * 512 + (t ^ 5) * 4;
            float keep[16], sum = 0;
            for (int i = 0; i < 16; i++) keep[i] = other[i & 3] * weights[(i + t) & 7];
            for (int i = 0; i < 16; i++) sum += keep[(i * 5 + t) & 15];
            sum += t & 1 ? x[b * 512 + t * 4 + 1] : x[t * 4 + 2];
            want[(uint32_t)fabsf(other[0]) & 15]++;
            assert_true(y[b * 128 + t] == sum);
        }
    for (int i = 0; i < 16; i++) assert_int_equal(histogram[i], want[i]);
    size_t size;
    const uint32_t *done = ptx_module_variable(k.module, "done", &size);
    assert_non_null(done);
    assert_int_equal(size, 4);
    assert_int_equal(*done, BLOCKS);
    ptx_machine_destroy(k.machine);
}
EACH(spaces, architectures)

/* Values at and beside every code and every tie, and random ones. */
static double probe(uint32_t i, uint64_t *random) {
    double value = test_code_value(i & 0x7f, 4, 3, 7), next = test_code_value((i & 0x7f) + 1, 4, 3, 7);
    double chosen = i / 128 % 4 == 0   ? value
                    : i / 128 % 4 == 1 ? (value + next) / 2
                    : i / 128 % 4 == 2 ? (value + next) / 2 * (1 + 0x1p-20)
                                       : kvant_test_normal(random) * 100;
    return (double)(float)(i & 1 ? -chosen : chosen);
}

static void formats_on(const char *name, uint32_t seed) {
    enum { N = 4096 };
    kernels k;
    load(&k, name);
    uint32_t n = N;
    uint64_t random = 3;
    float *x = take(&k, sizeof(float) * 2 * N, "x");
    uint16_t *e4m3 = take(&k, 2 * N, "e4m3"), *e5m2 = take(&k, 2 * N, "e5m2");
    for (uint32_t i = 0; i < 2 * N; i++) x[i] = (float)probe(i, &random);
    void *const arguments[] = {&x, &e4m3, &e5m2, &n};
    run(&k, "to_fp8", N / 128, 0, arguments, seed);
    for (uint32_t i = 0; i < 2 * N; i++) {
        assert_int_equal(e4m3[i / 2] >> 8 * (i & 1) & 0xff, test_nearest_code((double)x[i], 4, 3, 7, 0x7e));
        assert_int_equal(e5m2[i / 2] >> 8 * (i & 1) & 0xff, test_nearest_code((double)x[i], 5, 2, 15, 0x7b));
    }
    uint16_t *codes = take(&k, 2 * N, "codes");
    uint32_t *from4 = take(&k, 4 * N, "from e4m3"), *from5 = take(&k, 4 * N, "from e5m2");
    for (uint32_t i = 0; i < N; i++) codes[i] = (uint16_t)(i % 256 | (i * 7 % 256) << 8);
    void *const back[] = {&codes, &from4, &from5, &n};
    run(&k, "from_fp8", N / 128, 0, back, seed);
    for (uint32_t i = 0; i < 2 * N; i++) {
        uint32_t code = codes[i / 2] >> 8 * (i & 1) & 0xff, got4 = from4[i / 2] >> 16 * (i & 1) & 0xffff,
                 got5 = from5[i / 2] >> 16 * (i & 1) & 0xffff;
        if ((code & 0x7f) == 0x7f)
            assert_true(isnan(test_f16_value(got4)));
        else
            assert_int_equal(got4, test_f16_bits(test_code_value(code, 4, 3, 7)));
        if ((code & 0x7c) != 0x7c)
            assert_int_equal(got5, test_f16_bits(test_code_value(code, 5, 2, 15)));
        else
            assert_true(code & 3 ? isnan(test_f16_value(got5)) : isinf(test_f16_value(got5)));
    }
    uint8_t *fours = take(&k, N, "fours"), *scales = take(&k, N, "scales");
    uint32_t *halves = take(&k, 4 * N, "halves");
    void *const fp4[] = {&x, &fours, &halves, &scales, &n};
    run(&k, "fp4", N / 128, 0, fp4, seed);
    for (uint32_t i = 0; i < 2 * N; i++) {
        uint32_t code = test_nearest_code((double)x[i], 2, 1, 1, 7);
        assert_int_equal(fours[i / 2] >> 4 * (i & 1) & 15, code);
        assert_int_equal(halves[i / 2] >> 16 * (i & 1) & 0xffff,
                         test_f16_bits(test_code_value(code, 2, 1, 1)));
        if (i & 1 || x[i] == 0) continue;
        int power = ilogb((double)x[i]);
        if (ldexp(1, power) != fabs((double)x[i])) power++;
        assert_int_equal(scales[i / 2], power + 127);
    }
    ptx_machine_destroy(k.machine);
}
EACH(formats, format_architectures)

static void halves_on(const char *name, uint32_t seed) {
    enum { N = 2000 };
    kernels k;
    load(&k, name);
    uint32_t n = N, *a = take(&k, 4 * N, "a"), *b = take(&k, 4 * N, "b"), *f = take(&k, 4 * N, "f"),
             *w = take(&k, 4 * N, "w");
    uint64_t random = 21;
    for (uint32_t i = 0; i < N; i++) {
        a[i] = test_f16_bits(test_f16(kvant_test_normal(&random))) |
               test_f16_bits(test_f16(kvant_test_normal(&random) * 10)) << 16;
        b[i] = test_f16_bits(test_f16(kvant_test_normal(&random))) |
               test_f16_bits(test_f16(kvant_test_normal(&random) / 10)) << 16;
    }
    void *const arguments[] = {&a, &b, &f, &w, &n};
    run(&k, "halves", (N + 127) / 128, 0, arguments, seed);
    for (uint32_t i = 0; i < 2 * N; i++) {
        double x = test_f16_value(a[i / 2] >> 16 * (i & 1) & 0xffff),
               y = test_f16_value(b[i / 2] >> 16 * (i & 1) & 0xffff);
        double want = test_f16(test_f16(x * y) + test_f16(x * x + fmax(x, y)));
        assert_int_equal(f[i / 2] >> 16 * (i & 1) & 0xffff, test_f16_bits(want));
        double p = test_bf16(x), q = test_bf16(y);
        want = test_bf16(p * q + fmin(p, test_bf16(q - p)));
        assert_int_equal(w[i / 2] >> 16 * (i & 1) & 0xffff, test_bf16_bits(want));
    }
    ptx_machine_destroy(k.machine);
}
EACH(halves, format_architectures)

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(reduction),  cmocka_unit_test(tiles),
                                              cmocka_unit_test(divergence), cmocka_unit_test(spaces),
                                              cmocka_unit_test(formats),    cmocka_unit_test(halves)};
    if (!KVANT_HAVE_NVCC) {
        printf("%zu tests skipped: no nvcc when this was built\n", sizeof tests / sizeof tests[0]);
        return 0;
    }
    return kvant_run_tests(tests, argc, argv);
}
