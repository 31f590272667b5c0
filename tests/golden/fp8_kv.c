/* FP8 against compressed-tensors and torch: every tensor of data/fp8_kv.safetensors through the plugin's own
 * encode, inspect and decode, on both sides, at every instruction set of this machine.
 *
 *     ct.e4m3.<tensor|token|g32>.{codes,scale,dq}   convention = compressed_tensors
 *     ct.e4m3.<...>.codes_recip                     convention = reciprocal
 *     static.<format>.s<scale>.codes                scaling = static, static_scale = <scale>
 *
 * A tensor that is not known here fails the test. */
#include "support/test_codec.h"
#include "support/test.h"

#include <data/safetensors.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 64, DIM = 128, COUNT = TOKENS * DIM };

static kvant_safetensors *file;

static const float *input(void) {
    const kvant_array *x = kvant_safetensors_find(file, "x");
    assert_non_null(x);
    assert_int_equal(x->bytes, COUNT * sizeof(float));
    return x->data;
}

/* "int name(...)": parameters for what stands between the oracle and the last dot. */
static bool parameters_of(const char *name, char *text, size_t capacity) {
    char granularity[16], format[8], number[16], what[16];
    if (sscanf(name, "ct.e4m3.%15[a-z0-9].%15[a-z_]", granularity, what) == 2) {
        const char *convention = strcmp(what, "codes_recip") == 0 ? "reciprocal" : "compressed_tensors";
        if (strcmp(granularity, "g32") == 0) strcpy(granularity, "32");
        bool group = strcmp(granularity, "32") == 0;
        snprintf(text, capacity, "format=e4m3 scale=f32 convention=%s granularity=%s%s", convention,
                 group ? "group_channels" : granularity, group ? " group=32" : "");
        return true;
    }
    if (sscanf(name, "static.%7[a-z0-9].s%15[0-9.]", format, number) != 2) return false;
    char *end = strrchr(number, '.'); /* "0.05.codes" */
    if (end != NULL && end[1] == '\0') *end = '\0';
    snprintf(text, capacity, "format=%s scale=f32 granularity=tensor scaling=static static_scale=%s", format,
             number);
    return true;
}

static void check_tensor(const kvant_array *want, uint32_t side, uint32_t isa) {
    char parameters[160];
    const char *what = strrchr(want->name, '.') + 1;
    if (!parameters_of(want->name, parameters, sizeof parameters)) fail_msg("%s: unknown tensor", want->name);
    kvant_test_codec *codec =
        kvant_test_codec_open("uniform", side, KVANT_DTYPE_F32, TOKENS, 1, DIM, isa, parameters);
    kvant_test_codec_encode(codec, input(), COUNT);
    kvant_array got;
    void *data;
    if (strcmp(what, "dq") == 0) {
        data = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
        got.bytes = COUNT * sizeof(float);
    } else {
        data = kvant_test_codec_inspect(codec, strcmp(what, "scale") == 0 ? "scale" : "codes", &got);
    }
    assert_int_equal(got.bytes, want->bytes);
    if (memcmp(data, want->data, want->bytes) != 0) print_error("%s with %s:\n", want->name, parameters);
    kvant_assert_bytes(data, want->data, want->bytes);
    free(data);
    kvant_test_codec_close(codec);
}

static void every_tensor(void **state) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas), checked = 0;
    (void)state;
    for (uint32_t i = 0; i < kvant_safetensors_count(file); i++) {
        const kvant_array *want = kvant_safetensors_at(file, i);
        if (strcmp(want->name, "x") == 0) continue;
        checked++;
        for (uint32_t k = 0; k < isa_count; k++)
            for (uint32_t side = KVANT_SIDE_KEY; side <= KVANT_SIDE_VALUE; side++)
                check_tensor(want, side, isas[k]);
    }
    assert_int_equal(checked, 18);
}

/* The two conventions differ where the oracles do, and nowhere else: 2, 1 and 0 codes. */
static void reciprocal_differs(void **state) {
    static const char *const granularities[] = {"granularity=tensor", "granularity=token",
                                                "granularity=group_channels group=32"};
    static const uint32_t want[] = {2, 1, 0};
    (void)state;
    for (size_t g = 0; g < 3; g++) {
        uint8_t *codes[2];
        for (size_t c = 0; c < 2; c++) {
            char parameters[128];
            kvant_array array;
            snprintf(parameters, sizeof parameters, "format=e4m3 scale=f32 convention=%s %s",
                     c == 0 ? "kvant" : "reciprocal", granularities[g]);
            kvant_test_codec *codec = kvant_test_codec_open("uniform", KVANT_SIDE_VALUE, KVANT_DTYPE_F32,
                                                            TOKENS, 1, DIM, KVANT_ISA_SCALAR, parameters);
            kvant_test_codec_encode(codec, input(), COUNT);
            codes[c] = kvant_test_codec_inspect(codec, "codes", &array);
            kvant_test_codec_close(codec);
        }
        uint32_t differ = 0;
        for (size_t i = 0; i < COUNT; i++) differ += codes[0][i] != codes[1][i];
        assert_int_equal(differ, want[g]);
        free(codes[0]);
        free(codes[1]);
    }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(every_tensor),
                                              cmocka_unit_test(reciprocal_differs)};
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_safetensors_open(KVANT_TEST_SOURCE_DIR "/tests/golden/data/fp8_kv.safetensors", &file, &diag) !=
        KVANT_OK) {
        fprintf(stderr, "%s\n", diag.message);
        return EXIT_FAILURE;
    }
    int status = kvant_run_tests(tests, argc, argv);
    kvant_safetensors_close(file);
    return status;
}
