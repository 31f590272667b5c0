/* Plain integers against compressed-tensors, optimum-quanto and llama.cpp: every tensor of
 * data/uniform.safetensors whose oracle is claimed, through the plugin's own encode, inspect and decode, on
 * both sides, at every instruction set of this machine, from float32 and, where the input allows, bfloat16
 * rows.
 *
 *     <input>.<oracle>.<mode>.b<bits>.<granularity>.{codes,scale,zero,dq}
 *     <input>.gguf.<Q8_0|Q4_0|Q4_1>.{bytes,dq}
 *
 * claims[] says which parameters stand for an oracle. Other oracles of the file are listed in unclaimed[];
 * a tensor in neither list fails the test. */
#include "support/test_codec.h"
#include "support/test.h"

#include <data/safetensors.h>
#include <kvant/kit/half.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 64, DIM = 128, COUNT = TOKENS * DIM };

static const struct claim {
    const char *oracle, *parameters; /* format and granularity come from the name */
} claims[] = {
    {"ct.sym", "scale=f32 convention=compressed_tensors symmetry=symmetric"},
    {"ct.asym", "scale=f32 convention=compressed_tensors symmetry=asymmetric"},
    {"quanto.affine", "scale=f32 convention=quanto symmetry=asymmetric"},
    {"quanto.absmax", "scale=f32 convention=quanto symmetry=symmetric"},
};
static const char *const unclaimed[] = {"torchao.sym", "torchao.symnc", "torchao.asym",
                                        "hqq.fz",      "hqq.rz",        "quanto.zeropoint"};

static kvant_safetensors *file;

static const float *input(const char *name) {
    char key[16];
    snprintf(key, sizeof key, "%.*s.x", (int)strcspn(name, "."), name);
    const kvant_array *x = kvant_safetensors_find(file, key);
    if (x == NULL || x->bytes != COUNT * sizeof(float)) fail_msg("%s: no input %s", name, key);
    return x->data;
}

/* The rows as bfloat16, exactly; NULL where they are none. */
static uint16_t *halves(const float *x) {
    uint16_t *rows = malloc(COUNT * sizeof *rows);
    assert_non_null(rows);
    for (size_t i = 0; i < COUNT; i++) {
        float value;
        memcpy(&value, (const char *)x + i * sizeof value, sizeof value);
        rows[i] = kvant_f32_to_bf16(value);
        if (kvant_bf16_to_f32(rows[i]) == value) continue;
        free(rows);
        return NULL;
    }
    return rows;
}

static kvant_test_codec *coded(const char *name, const char *parameters, uint32_t side, uint32_t isa,
                               bool bf16) {
    const float *x = input(name);
    uint16_t *half = bf16 ? halves(x) : NULL;
    if (bf16 && half == NULL) return NULL;
    kvant_test_codec *codec = kvant_test_codec_open(
        "uniform", side, bf16 ? KVANT_DTYPE_BF16 : KVANT_DTYPE_F32, TOKENS, 1, DIM, isa, parameters);
    kvant_test_codec_encode(codec, bf16 ? (const void *)half : (const void *)x, COUNT);
    free(half);
    return codec;
}

static void same(const char *name, const char *parameters, const void *got, const void *want, size_t size) {
    if (memcmp(got, want, size) != 0) print_error("%s with %s:\n", name, parameters);
    kvant_assert_bytes(got, want, size);
}

/* ---- Integers ------------------------------------------------------------------------------------------ */

/* The oracle's zero is an int32, ours an int8; quanto's is the negated minimum. */
static void check_zero(kvant_test_codec *codec, const kvant_array *want) {
    kvant_array array;
    bool shift = want->dtype == KVANT_DTYPE_F32;
    void *got = kvant_test_codec_inspect(codec, shift ? "min" : "zero", &array);
    for (size_t i = 0; i < want->bytes / 4; i++) {
        int32_t integer;
        float number;
        memcpy(&integer, (const char *)want->data + 4 * i, sizeof integer);
        memcpy(&number, (const char *)want->data + 4 * i, sizeof number);
        if (shift ? number != -((const float *)got)[i] : integer != ((const int8_t *)got)[i])
            fail_msg("%s: number %zu differs", want->name, i);
    }
    free(got);
}

static void check_tensor(const kvant_array *want, const char *parameters, kvant_test_codec *codec) {
    const char *what = strrchr(want->name, '.') + 1;
    kvant_array array;
    if (strcmp(what, "zero") == 0) {
        bool none = strstr(parameters, "=symmetric") != NULL;
        if (!none) check_zero(codec, want);
        for (size_t i = 0; none && i < want->bytes; i++)
            assert_int_equal(((const uint8_t *)want->data)[i], 0);
        return;
    }
    if (strcmp(what, "dq") == 0) {
        void *dq = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
        assert_int_equal(want->bytes, COUNT * sizeof(float));
        same(want->name, parameters, dq, want->data, want->bytes);
        free(dq);
        return;
    }
    if (strcmp(what, "codes") != 0 && strcmp(what, "scale") != 0) fail_msg("%s: unknown tensor", want->name);
    void *got = kvant_test_codec_inspect(codec, what, &array);
    assert_int_equal(array.bytes, want->bytes);
    assert_int_equal(array.dtype, want->dtype);
    same(want->name, parameters, got, want->data, want->bytes);
    free(got);
}

/* "b4.g32" -> "format=int4 granularity=group_channels group=32" */
static void words_of(const char *name, const char *cell, char *text, size_t capacity) {
    char bits, granularity[16];
    unsigned group = 0;
    if (sscanf(cell, "b%c.%15[a-z0-9]", &bits, granularity) != 2) fail_msg("%s: unknown tensor", name);
    int used = snprintf(text, capacity, "format=int%c ", bits);
    text += used;
    capacity -= (size_t)used;
    if (sscanf(granularity, "g%u", &group) == 1)
        snprintf(text, capacity, "granularity=group_channels group=%u", group);
    else if (sscanf(granularity, "tok%u", &group) == 1 && group > 0)
        snprintf(text, capacity, "granularity=group_tokens group=%u", group);
    else
        snprintf(text, capacity, "granularity=%s", granularity);
}

static void every_integer(void **state) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas), checked = 0, passed_over = 0;
    (void)state;
    for (uint32_t i = 0; i < kvant_safetensors_count(file); i++) {
        const kvant_array *want = kvant_safetensors_at(file, i);
        const char *oracle = strchr(want->name, '.') + 1;
        if (strcmp(oracle, "x") == 0 || strncmp(oracle, "gguf.", 5) == 0) continue;
        const struct claim *claim = NULL;
        for (size_t c = 0; c < sizeof claims / sizeof claims[0]; c++) {
            size_t length = strlen(claims[c].oracle);
            if (strncmp(oracle, claims[c].oracle, length) == 0 && oracle[length] == '.') claim = &claims[c];
        }
        bool known = false;
        for (size_t u = 0; u < sizeof unclaimed / sizeof unclaimed[0]; u++)
            known |= strncmp(oracle, unclaimed[u], strlen(unclaimed[u])) == 0;
        passed_over += claim == NULL;
        if (claim == NULL && !known) fail_msg("%s: unknown oracle", want->name);
        if (claim == NULL) continue;
        char cell[64], parameters[192];
        words_of(want->name, oracle + strlen(claim->oracle) + 1, cell, sizeof cell);
        snprintf(parameters, sizeof parameters, "%s %s", cell, claim->parameters);
        checked++;
        for (uint32_t k = 0; k < 4 * isa_count; k++) {
            kvant_test_codec *codec = coded(want->name, parameters, k & 1, isas[k / 4], (k & 2) != 0);
            if (codec == NULL) continue;
            check_tensor(want, parameters, codec);
            kvant_test_codec_close(codec);
        }
    }
    assert_int_equal(checked, 130);
    assert_int_equal(passed_over, 321);
}

/* ---- llama.cpp's blocks -------------------------------------------------------------------------------- */

typedef struct block_type {
    const char *name, *parameters;
    uint32_t bytes; /* of a block of 32 */
} block_type;

static const block_type block_types[] = {
    {"Q8_0", "format=int8 granularity=group_channels group=32 scale=f16 convention=gguf", 34},
    {"Q4_0", "format=int4 granularity=group_channels group=32 scale=f16 convention=gguf", 18},
    {"Q4_1", "format=int4 granularity=group_channels group=32 scale=f16 convention=gguf symmetry=asymmetric",
     20},
};

/* Their bytes from our arrays: scale, minimum, then codes or nibbles j and j + 16. */
static void check_bytes(const kvant_array *want, const block_type *type, kvant_test_codec *codec) {
    kvant_array array;
    uint8_t *codes = kvant_test_codec_inspect(codec, "codes", &array);
    uint8_t *scale = kvant_test_codec_inspect(codec, "scale", &array);
    uint8_t *minimum = type->bytes == 20 ? kvant_test_codec_inspect(codec, "min", &array) : NULL;
    assert_int_equal(want->bytes, COUNT / 32 * type->bytes);
    for (size_t b = 0; b < COUNT / 32; b++) {
        uint8_t block[34], *at = block + 2;
        memcpy(block, scale + 2 * b, 2);
        if (minimum != NULL) {
            memcpy(at, minimum + 2 * b, 2);
            at += 2;
        }
        if (type->bytes == 34) memcpy(at, codes + 32 * b, 32);
        for (size_t j = 0; j < 16 && type->bytes < 34; j++)
            at[j] = (uint8_t)(codes[32 * b + j] | codes[32 * b + 16 + j] << 4);
        if (memcmp(block, (const uint8_t *)want->data + b * type->bytes, type->bytes) != 0)
            print_error("%s, block %zu:\n", want->name, b);
        kvant_assert_bytes(block, (const uint8_t *)want->data + b * type->bytes, type->bytes);
    }
    free(codes);
    free(scale);
    free(minimum);
}

static void every_block(void **state) {
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas), checked = 0;
    (void)state;
    for (uint32_t i = 0; i < kvant_safetensors_count(file); i++) {
        const kvant_array *want = kvant_safetensors_at(file, i);
        const char *oracle = strchr(want->name, '.') + 1, *what = strrchr(want->name, '.') + 1;
        if (strncmp(oracle, "gguf.", 5) != 0) continue;
        const block_type *type = NULL;
        for (size_t t = 0; t < sizeof block_types / sizeof block_types[0]; t++)
            if (strncmp(oracle + 5, block_types[t].name, 4) == 0) type = &block_types[t];
        if (type == NULL) fail_msg("%s: unknown block type", want->name);
        checked++;
        for (uint32_t k = 0; k < 4 * isa_count; k++) {
            kvant_test_codec *codec = coded(want->name, type->parameters, k & 1, isas[k / 4], (k & 2) != 0);
            if (codec == NULL) continue;
            if (strcmp(what, "bytes") == 0)
                check_bytes(want, type, codec);
            else
                check_tensor(want, type->parameters, codec);
            assert_int_equal(codec->size * 8, COUNT / 32 * type->bytes * 8); /* 8.5, 4.5, 5 bits an element */
            kvant_test_codec_close(codec);
        }
    }
    assert_int_equal(checked, 7);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(every_integer), cmocka_unit_test(every_block)};
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_safetensors_open(KVANT_TEST_SOURCE_DIR "/tests/golden/data/uniform.safetensors", &file,
                               &diag) != KVANT_OK) {
        fprintf(stderr, "%s\n", diag.message);
        return EXIT_FAILURE;
    }
    int status = kvant_run_tests(tests, argc, argv);
    kvant_safetensors_close(file);
    return status;
}
