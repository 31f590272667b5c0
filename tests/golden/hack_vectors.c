/* HACK's quantizers, noise and homomorphic product against what the artifact's code returned
 * (data/hack.safetensors): quantize_*, partitions_* and ties_* through the plugin's own encode, inspect and
 * decode at every instruction set of this machine; stochastic_* and noise_hash through its arithmetic, since
 * their noise is another; matmul_* through its identity. The attn_* cases are in hack_attention.c.
 *
 * A case is a matrix [rows, columns]. Partitions along rows are what keys have with axes = artifact and
 * values with axes = paper; along columns values have them with axes = artifact and keys with axes = paper.
 * `sums` run along the partition, as the paper's sides have them. The artifact stores scale 1 where a
 * partition has no range, which is flat = one; the default stores 0. */
#include "support/test.h"
#include "support/test_codec.h"

#include <data/safetensors.h>
#include <hack/hack_identity.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct config {
    const char *name; /* "quantize_mixed_128x64/tokens_p32_b2" */
    uint32_t rows, columns, partition, bits;
    bool along_rows;
    uint32_t dtype, meta;
} config;

static kvant_safetensors *file;
static uint32_t used; /* tensors that were looked at */

static const kvant_array *find(const char *where, const char *what) {
    char name[160];
    assert_true(snprintf(name, sizeof name, "%s/%s", where, what) < (int)sizeof name);
    const kvant_array *array = kvant_safetensors_find(file, name);
    if (array != NULL) used++;
    return array;
}

static const kvant_array *need(const char *where, const char *what) {
    const kvant_array *array = find(where, what);
    if (array == NULL) fail_msg("%s/%s is missing", where, what);
    return array;
}

static float number(const void *data, uint32_t dtype, size_t i) {
    return kvant_load_element((const char *)data + i * kvant_element_bytes(dtype), dtype);
}

static uint32_t whole(const kvant_array *array, size_t i) {
    uint32_t x = 0;
    uint32_t bytes = kvant_dtype_bytes(array->dtype);
    memcpy(&x, (const char *)array->data + i * bytes, bytes);
    return x;
}

static size_t group_of(const config *c, size_t i) {
    size_t row = i / c->columns, column = i % c->columns;
    return c->along_rows ? row / c->partition * c->columns + column
                         : row * (c->columns / c->partition) + column / c->partition;
}

static size_t groups_of(const config *c) {
    return (size_t)c->rows * c->columns / c->partition;
}

/* Scales bit for bit; with flat = zero 0 where all codes of a partition without range are 0 and theirs is 1.
 */
static void check_scale(const config *c, const void *got, const void *want, const uint8_t *codes, bool one) {
    size_t groups = groups_of(c);
    uint8_t *used_code = calloc(groups, 1);
    assert_non_null(used_code);
    for (size_t i = 0; i < (size_t)c->rows * c->columns; i++) used_code[group_of(c, i)] |= codes[i];
    for (size_t g = 0; g < groups; g++) {
        float a = number(got, c->meta, g), b = number(want, c->meta, g);
        bool flat = !one && a == 0 && b == 1 && used_code[g] == 0;
        if (!flat &&
            memcmp((const char *)got + g * kvant_element_bytes(c->meta),
                   (const char *)want + g * kvant_element_bytes(c->meta), kvant_element_bytes(c->meta)) != 0)
            fail_msg("%s: scale %zu is %.9g, not %.9g", c->name, g, (double)a, (double)b);
    }
    free(used_code);
}

static void check_packed(const config *c, const uint8_t *codes) {
    const kvant_array *packed = find(c->name, "packed");
    if (packed == NULL) return;
    uint32_t per_byte = 8 / c->bits;
    for (size_t i = 0; i < packed->bytes; i++) {
        uint32_t byte = 0;
        for (uint32_t j = 0; j < per_byte; j++) byte |= (uint32_t)codes[i * per_byte + j] << j * c->bits;
        assert_int_equal(byte, whole(packed, i));
    }
}

static void check_decoded(const config *c, const float *decoded, const uint8_t *codes, const void *scale,
                          const void *min) {
    const kvant_array *dequant = find(c->name, "dequant");
    for (size_t i = 0; i < (size_t)c->rows * c->columns; i++) {
        size_t g = group_of(c, i);
        float x = (float)codes[i] * number(scale, c->meta, g) + number(min, c->meta, g);
        if (dequant != NULL) x = number(dequant->data, KVANT_DTYPE_F32, i);
        if (decoded[i] != x)
            fail_msg("%s: element %zu decodes to %.9g, not %.9g", c->name, i, (double)decoded[i], (double)x);
    }
}

/* One config with one of the two pairs of side and axes. */
static void check_side(const config *c, const void *input, bool artifact, bool one, uint32_t isa) {
    uint32_t side = c->along_rows == artifact ? KVANT_SIDE_KEY : KVANT_SIDE_VALUE;
    char parameters[128];
    kvant_array array;
    /* The partition along the other axis, of whatever size, is the same parameter. */
    (void)snprintf(parameters, sizeof parameters, "bits=%u partition=%u axes=%s meta=%s flat=%s", c->bits,
                   c->partition, artifact ? "artifact" : "paper", c->meta == KVANT_DTYPE_F32 ? "f32" : "bf16",
                   one ? "one" : "zero");
    kvant_test_codec *codec =
        kvant_test_codec_open("hack", side, c->dtype, c->rows, 1, c->columns, isa, parameters);
    kvant_test_codec_encode(codec, input, (size_t)c->rows * c->columns);
    assert_int_equal(codec->saturated, 0);

    uint8_t *codes = kvant_test_codec_inspect(codec, "codes", &array);
    assert_int_equal(array.bytes, (size_t)c->rows * c->columns);
    const kvant_array *want = need(c->name, "codes");
    assert_int_equal(want->bytes, array.bytes);
    for (size_t i = 0; i < array.bytes; i++)
        if (codes[i] != whole(want, i))
            fail_msg("%s: code %zu is %u, not %u", c->name, i, codes[i], whole(want, i));
    void *scale = kvant_test_codec_inspect(codec, "scale", &array);
    assert_int_equal(array.bytes, groups_of(c) * kvant_element_bytes(c->meta));
    assert_int_equal(need(c->name, "scale")->dtype, c->meta);
    check_scale(c, scale, need(c->name, "scale")->data, codes, one);
    void *min = kvant_test_codec_inspect(codec, "min", &array);
    kvant_assert_bytes(min, need(c->name, "min")->data, array.bytes);
    const kvant_array *sums = find(c->name, "sums");
    if (sums != NULL && !artifact) {
        void *got = kvant_test_codec_inspect(codec, "sums", &array);
        assert_int_equal(array.dtype, sums->dtype);
        assert_int_equal(array.bytes, sums->bytes);
        kvant_assert_bytes(got, sums->data, array.bytes);
        free(got);
    }
    float *decoded = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
    check_packed(c, codes);
    check_decoded(c, decoded, codes, scale, min);
    free(decoded);
    free(min);
    free(scale);
    free(codes);
    kvant_test_codec_close(codec);
}

/* The codes that the noise of the file gives, by the plugin's arithmetic. */
static void check_stochastic(const config *c, const float *input, const float *noise) {
    const float *scale = need(c->name, "scale")->data, *min = need(c->name, "min")->data;
    const uint8_t *codes = need(c->name, "codes")->data;
    uint32_t up = 0;
    for (size_t i = 0; i < (size_t)c->rows * c->columns; i++) {
        size_t g = group_of(c, i);
        hack_fit fit = {.scale = scale[g], .min = min[g]};
        uint32_t code = hack_code(fit, (1u << c->bits) - 1, input[i], noise[i]);
        if (code != codes[i]) fail_msg("%s: code %zu is %u, not %u", c->name, i, code, codes[i]);
        up += code != hack_code(fit, (1u << c->bits) - 1, input[i], -1.0f);
    }
    assert_true(up > 100); /* another rule than to nearest */
}

static config config_of(const char *name, json_t *object, const kvant_array *input, bool stored) {
    config c = {.name = name,
                .rows = (uint32_t)input->shape[0],
                .columns = (uint32_t)input->shape[1],
                .partition = (uint32_t)json_integer_value(json_object_get(object, "partition")),
                .bits = (uint32_t)json_integer_value(json_object_get(object, "bits")),
                .along_rows = json_integer_value(json_object_get(object, "dim")) == 0,
                .dtype = input->dtype,
                .meta = stored ? KVANT_DTYPE_BF16 : KVANT_DTYPE_F32};
    assert_true(json_is_integer(json_object_get(object, "dim")));
    return c;
}

static void check_case(const char *name, json_t *object, uint32_t isa, uint32_t *configs) {
    const kvant_array *input = need(name, "input");
    bool stochastic = strncmp(name, "stochastic", 10) == 0, stored = strncmp(name, "partitions", 10) == 0;
    const kvant_array *noise = stochastic ? need(name, "noise") : NULL;
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(object, "configs"), key, value) {
        char full[128];
        assert_true(snprintf(full, sizeof full, "%s/%s", name, key) < (int)sizeof full);
        config c = config_of(full, value, input, stored);
        if (stochastic) {
            check_stochastic(&c, input->data, noise->data);
        } else {
            for (uint32_t i = 0; i < 4; i++) check_side(&c, input->data, i % 2 == 0, i / 2 == 0, isa);
        }
        *configs += 1;
    }
}

static void open_file(void) {
    char path[512];
    kvant_diag diag = {.struct_size = sizeof diag};
    (void)snprintf(path, sizeof path, "%s/tests/golden/data/hack.safetensors", KVANT_TEST_SOURCE_DIR);
    if (kvant_safetensors_open(path, &file, &diag) != KVANT_OK) fail_msg("%s", diag.message);
}

static void quantizers(void **state) {
    (void)state;
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    open_file();
    json_t *cases = json_loads(kvant_safetensors_metadata(file, "cases"), 0, NULL);
    assert_true(json_is_object(cases));
    for (uint32_t i = 0; i < isa_count; i++) {
        const char *key;
        json_t *value;
        uint32_t configs = 0;
        json_object_foreach(cases, key, value) if (json_object_get(value, "configs") != NULL)
            check_case(key, value, isas[i], &configs);
        assert_int_equal(configs, 60);
    }
    json_decref(cases);
    kvant_safetensors_close(file);
}

static void noise(void **state) {
    (void)state;
    static const uint32_t seeds[] = {0, 1, 12345, 2147483647};
    open_file();
    for (size_t s = 0; s < sizeof seeds / sizeof seeds[0]; s++) {
        char name[32];
        (void)snprintf(name, sizeof name, "seed_%u", seeds[s]);
        const kvant_array *want = need("noise_hash", name);
        for (uint32_t i = 0; i < 256; i++)
            assert_true(hack_noise(seeds[s], i) == number(want->data, KVANT_DTYPE_F32, i));
    }
    kvant_safetensors_close(file);
}

/* C_ij = sum over partitions of the four terms, from integers. */
static void check_matmul(const char *name, uint32_t size, uint32_t b_bits) {
    const kvant_array *a = need(name, "a"), *b = need(name, "b"), *exact = need(name, "exact_dequant");
    const float *a_scale = need(name, "a_scale")->data, *a_min = need(name, "a_min")->data;
    const float *b_scale = need(name, "b_scale")->data, *b_min = need(name, "b_min")->data;
    const uint8_t *a_codes = need(name, "a_codes")->data, *b_codes = need(name, "b_codes")->data;
    const kvant_array *dots = need(name, "dot"), *a_sums = need(name, "a_sums"),
                      *b_sums = need(name, "b_sums");
    const float *result = need(name, "result")->data, *x = a->data;
    size_t m = a->shape[0], z = a->shape[1], n = b->shape[1], parts = z / size;
    const double *want = exact->data;
    double largest = 0;
    for (size_t i = 0; i < m * n; i++) largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            float sum = 0;
            for (size_t p = 0; p < parts; p++) {
                hack_operand o = {a_scale[i * parts + p], a_min[i * parts + p]};
                uint32_t dot = 0, a_sum = 0, b_sum = 0;
                for (size_t k = p * size; k < (p + 1) * size; k++) {
                    uint32_t code = hack_operand_code(o, x[i * z + k]);
                    assert_int_equal(code, a_codes[i * z + k]);
                    assert_in_range(b_codes[k * n + j], 0, (1u << b_bits) - 1);
                    dot += code * b_codes[k * n + j];
                    a_sum += code;
                    b_sum += b_codes[k * n + j];
                }
                assert_int_equal(dot, whole(dots, (p * m + i) * n + j));
                assert_int_equal(a_sum, whole(a_sums, i * parts + p));
                assert_int_equal(b_sum, whole(b_sums, p * n + j));
                sum += hack_product(o, a_sum, b_scale[p * n + j], b_min[p * n + j], b_sum, dot, size);
            }
            kvant_assert_close(sum, want[i * n + j], 1e-5 * largest);
            kvant_assert_close(sum, result[i * n + j], 1e-5 * largest);
        }
}

static void product(void **state) {
    (void)state;
    open_file();
    check_matmul("matmul_p64_a8_b2", 64, 2);
    check_matmul("matmul_p32_a8_b2", 32, 2);
    check_matmul("matmul_p32_a8_b4", 32, 4);
    check_matmul("matmul_p64_a8_b8", 64, 8);
    kvant_safetensors_close(file);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(quantizers), cmocka_unit_test(noise),
                                              cmocka_unit_test(product)};
    return kvant_run_tests(tests, argc, argv);
}
