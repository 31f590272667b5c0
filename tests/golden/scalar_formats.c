/* Scalar formats against golden vectors made by the host functions of CUDA 13.0.88's headers: every code
 * decoded, every F16 and BF16 pattern and a set of floats at and around all ties encoded. NaN is compared as
 * a class where decoders differ in its payload; encoders must give the very byte. */
#include "support/test.h"

#include "data/safetensors.h"

#include <kvant/kit/e8m0.h>
#include <kvant/kit/float4.h>
#include <kvant/kit/float8.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvant_safetensors *vectors;

static int open_vectors(void **state) {
    (void)state;
    kvant_diag diag = {.struct_size = sizeof diag};
    const char *file = KVANT_TEST_SOURCE_DIR "/tests/golden/data/scalar_formats.safetensors";
    if (kvant_safetensors_open(file, &vectors, &diag) == KVANT_OK) return 0;
    print_error("%s: %s\n", file, diag.message);
    return -1;
}

static int close_vectors(void **state) {
    (void)state;
    kvant_safetensors_close(vectors);
    return 0;
}

/* A copy of one array, which the caller frees: the file promises no alignment. */
static void *array_of(const char *name, uint32_t dtype, size_t element, size_t *count) {
    const kvant_array *array = kvant_safetensors_find(vectors, name);
    if (array == NULL) fail_msg("no array %s", name);
    assert_int_equal(array->dtype, dtype);
    assert_int_equal(array->rank, 1);
    *count = (size_t)array->shape[0];
    assert_true(*count >= 16);
    assert_int_equal(array->bytes, *count * element);
    void *copy = malloc(*count * element);
    assert_non_null(copy);
    memcpy(copy, array->data, *count * element);
    return copy;
}

/* ---- Decoders -------------------------------------------------------------------------------- */

typedef float decode_fn(uint8_t code);

static void check_decode(const char *name, decode_fn *decode, size_t codes, size_t nans) {
    size_t count;
    uint32_t *want = array_of(name, KVANT_DTYPE_U32, 4, &count);
    assert_int_equal(count, codes);
    for (size_t code = 0; code < count; code++) {
        uint32_t got = kvant_float_bits(decode((uint8_t)code));
        if ((want[code] & 0x7fffffffu) > 0x7f800000u) {
            nans--;
            if ((got & 0x7fffffffu) <= 0x7f800000u) fail_msg("%s[%zx] is %08x, not NaN", name, code, got);
        } else if (got != want[code]) {
            fail_msg("%s[%zx] is %08x, not %08x", name, code, got, want[code]);
        }
    }
    assert_int_equal(nans, 0);
    free(want);
}

static void decodes_every_code(void **state) {
    (void)state;
    check_decode("e4m3_decode_f32_bits", kvant_e4m3_to_f32, 256, 2);
    check_decode("e5m2_decode_f32_bits", kvant_e5m2_to_f32, 256, 6);
    check_decode("e2m1_decode_f32_bits", kvant_e2m1_to_f32, 16, 0);
    check_decode("ue8m0_decode_f32_bits", kvant_e8m0_to_f32, 256, 1);
}

static void decodes_every_f16(void **state) {
    (void)state;
    size_t count;
    uint32_t *want = array_of("f16_to_f32_bits", KVANT_DTYPE_U32, 4, &count);
    assert_int_equal(count, 65536);
    for (uint32_t half = 0; half < 65536; half++) {
        uint32_t got = kvant_float_bits(kvant_f16_to_f32((uint16_t)half));
        if (got != want[half]) fail_msg("f16 %04x is %08x, not %08x", half, got, want[half]);
    }
    free(want);
}

/* FP8 and FP4 images in F16, and E8M0's in BF16, are the decoded floats encoded again. */
static void decoded_images_agree(void **state) {
    (void)state;
    static const struct {
        const char *name;
        decode_fn *decode;
        uint16_t (*encode)(float);
    } images[] = {{"e4m3_decode_f16_bits", kvant_e4m3_to_f32, kvant_f32_to_f16},
                  {"e5m2_decode_f16_bits", kvant_e5m2_to_f32, kvant_f32_to_f16},
                  {"e2m1_decode_f16_bits", kvant_e2m1_to_f32, kvant_f32_to_f16},
                  {"ue8m0_decode_bf16_bits", kvant_e8m0_to_f32, kvant_f32_to_bf16}};
    for (size_t k = 0; k < sizeof images / sizeof images[0]; k++) {
        size_t count;
        uint16_t *want = array_of(images[k].name, KVANT_DTYPE_U16, 2, &count);
        for (size_t code = 0; code < count; code++) {
            float x = images[k].decode((uint8_t)code);
            uint16_t got = images[k].encode(x);
            int both_nan = x != x && (want[code] & 0x7fffu) > (k == 3 ? 0x7f80u : 0x7c00u);
            if (got != want[code] && !both_nan)
                fail_msg("%s[%zx] is %04x, not %04x", images[k].name, code, got, want[code]);
        }
        free(want);
    }
}

/* ---- Encoders -------------------------------------------------------------------------------- */

typedef uint8_t encode_fn(float x);

static const struct {
    const char *name;
    encode_fn *encode;
    int every_half; /* there are tables over all F16 and BF16 patterns, too */
} encoders[] = {
    {"e4m3_sat", kvant_f32_to_e4m3, 1},
    {"e5m2_sat", kvant_f32_to_e5m2, 1},
    {"e2m1", kvant_f32_to_e2m1, 1},
    {"ue8m0_rz_sat", kvant_f32_to_e8m0_down, 1},
    {"ue8m0_rp_sat", kvant_f32_to_e8m0_up, 1},
    {"e4m3_nosat", kvant_f32_to_e4m3_nosat, 0},
    {"e5m2_nosat", kvant_f32_to_e5m2_nosat, 0},
    {"ue8m0_rz_nosat", kvant_f32_to_e8m0_down_nosat, 0},
    {"ue8m0_rp_nosat", kvant_f32_to_e8m0_up_nosat, 0},
};

static void check_encode(const char *prefix, size_t k, const float *inputs, size_t input_count) {
    char name[64];
    snprintf(name, sizeof name, "%s%s", prefix, encoders[k].name);
    size_t count;
    uint8_t *want = array_of(name, KVANT_DTYPE_U8, 1, &count);
    assert_int_equal(count, input_count);
    for (size_t i = 0; i < count; i++) {
        uint8_t got = encoders[k].encode(inputs[i]);
        if (got != want[i])
            fail_msg("%s[%zu], input %08x, is %02x, not %02x", name, i, kvant_float_bits(inputs[i]), got,
                     want[i]);
    }
    free(want);
}

static void encodes_every_half(void **state) {
    (void)state;
    float *f16 = malloc(65536 * sizeof *f16), *bf16 = malloc(65536 * sizeof *bf16);
    assert_true(f16 != NULL && bf16 != NULL);
    for (uint32_t half = 0; half < 65536; half++) {
        f16[half] = kvant_f16_to_f32((uint16_t)half);
        bf16[half] = kvant_bf16_to_f32((uint16_t)half);
    }
    for (size_t k = 0; k < sizeof encoders / sizeof encoders[0]; k++) {
        if (!encoders[k].every_half) continue;
        check_encode("f16_to_", k, f16, 65536);
        check_encode("bf16_to_", k, bf16, 65536);
    }
    free(f16);
    free(bf16);
}

static void encodes_floats_at_ties(void **state) {
    (void)state;
    size_t count;
    uint32_t *bits = array_of("f32_in_bits", KVANT_DTYPE_U32, 4, &count);
    assert_true(count > 20000);
    float *inputs = malloc(count * sizeof *inputs);
    assert_non_null(inputs);
    for (size_t i = 0; i < count; i++) inputs[i] = kvant_bits_float(bits[i]);
    for (size_t k = 0; k < sizeof encoders / sizeof encoders[0]; k++)
        check_encode("f32_to_", k, inputs, count);
    free(inputs);
    free(bits);
}

static void check_halves(const char *name, const float *inputs, size_t input_count,
                         uint16_t (*encode)(float)) {
    size_t count;
    uint16_t *want = array_of(name, KVANT_DTYPE_U16, 2, &count);
    assert_int_equal(count, input_count);
    for (size_t i = 0; i < count; i++) {
        uint16_t got = encode(inputs[i]);
        if (got != want[i])
            fail_msg("%s[%zu], input %08x, is %04x, not %04x", name, i, kvant_float_bits(inputs[i]), got,
                     want[i]);
    }
    free(want);
}

static void encodes_halves(void **state) {
    (void)state;
    size_t count;
    uint32_t *bits = array_of("f32_in_bits", KVANT_DTYPE_U32, 4, &count);
    float *inputs = malloc((count > 65536 ? count : 65536) * sizeof *inputs);
    assert_non_null(inputs);
    for (size_t i = 0; i < count; i++) inputs[i] = kvant_bits_float(bits[i]);
    check_halves("f32_to_f16_bits", inputs, count, kvant_f32_to_f16);
    check_halves("f32_to_bf16_bits", inputs, count, kvant_f32_to_bf16);
    for (uint32_t half = 0; half < 65536; half++) inputs[half] = kvant_bf16_to_f32((uint16_t)half);
    check_halves("bf16_to_f16_bits", inputs, 65536, kvant_f32_to_f16);
    for (uint32_t half = 0; half < 65536; half++) inputs[half] = kvant_f16_to_f32((uint16_t)half);
    check_halves("f16_to_bf16_bits", inputs, 65536, kvant_f32_to_bf16);
    free(inputs);
    free(bits);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(decodes_every_code, open_vectors, close_vectors),
        cmocka_unit_test_setup_teardown(decodes_every_f16, open_vectors, close_vectors),
        cmocka_unit_test_setup_teardown(decoded_images_agree, open_vectors, close_vectors),
        cmocka_unit_test_setup_teardown(encodes_every_half, open_vectors, close_vectors),
        cmocka_unit_test_setup_teardown(encodes_floats_at_ties, open_vectors, close_vectors),
        cmocka_unit_test_setup_teardown(encodes_halves, open_vectors, close_vectors),
    };
    return kvant_run_tests(tests, argc, argv);
}
