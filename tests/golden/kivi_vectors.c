/* KIVI against what its authors' code returned: every case of data/kivi.safetensors (float32) and
 * kivi_fp16.safetensors (float16, bfloat16), through the plugin's own encode, inspect and decode, at every
 * instruction set of this machine.
 *
 * A case has `input` and, for each configuration (side, bits, group), `codes`, `scale`, `min`, and some of
 *     words                what the authors pack: 32-bit words along the grouped axis, first code lowest
 *     dequant              their decoder's result, each operation rounded to the input type
 *     upstream_*           theirs where it is wrong or undefined (constant groups, overflow); the plain name
 *                          then has the right value. Compared only where it is defined.
 * A tensor or a key that is not known here fails the test, so nothing is passed over. */
#include "support/test_codec.h"
#include "support/test.h"

#include <data/safetensors.h>
#include <kvant/kit/view.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct config {
    const char *name; /* "normal_64x2x64/k_b2_g32" */
    uint32_t side, dtype, bits, group;
    uint32_t tokens, heads, dim, groups;
    bool undefined; /* upstream goes wrong somewhere in it */
} config;

static kvant_safetensors *file;
static uint32_t used; /* tensors that were looked at, of one instruction set */

static const kvant_array *find(const config *c, const char *what) {
    char name[160];
    assert_true(snprintf(name, sizeof name, "%s/%s", c->name, what) < (int)sizeof name);
    const kvant_array *array = kvant_safetensors_find(file, name);
    if (array != NULL) used++;
    return array;
}

static const void *need(const config *c, const char *what, uint32_t dtype, uint64_t a, uint64_t b,
                        uint64_t d) {
    const kvant_array *array = find(c, what);
    if (array == NULL) fail_msg("%s/%s is missing", c->name, what);
    if (array->dtype != dtype || array->rank != 3 || array->shape[0] != a || array->shape[1] != b ||
        array->shape[2] != d)
        fail_msg("%s/%s has another type or shape", c->name, what);
    return array->data;
}

static float number(const void *data, uint32_t dtype, size_t i) {
    return kvant_load_element((const char *)data + i * kvant_element_bytes(dtype), dtype);
}

static size_t group_of(const config *c, size_t t, size_t h, size_t d) {
    if (c->side == KVANT_SIDE_KEY) return (t / c->group * c->heads + h) * c->dim + d;
    return (t * c->heads + h) * c->groups + d / c->group;
}

static void same(const config *c, const char *what, const void *got, const void *want, size_t size) {
    if (memcmp(got, want, size) != 0) print_error("%s/%s:\n", c->name, what);
    kvant_assert_bytes(got, want, size);
}

static float round_to(uint32_t dtype, float x) {
    return dtype == KVANT_DTYPE_F16    ? kvant_round_f16(x)
           : dtype == KVANT_DTYPE_BF16 ? kvant_round_bf16(x)
                                       : x;
}

/* Codes in the authors' words: element j of a word in bits [bits*j, bits*j + bits), along the grouped axis.
 */
static void check_words(const config *c, const uint8_t *codes) {
    const kvant_array *words = find(c, "words");
    if (words == NULL) return;
    uint32_t per_word = 32 / c->bits;
    bool key = c->side == KVANT_SIDE_KEY;
    size_t rows = key ? c->tokens / per_word : c->tokens, columns = key ? c->dim : c->dim / per_word;
    assert_int_equal(words->bytes, 4 * c->heads * rows * columns);
    for (size_t h = 0; h < c->heads; h++)
        for (size_t r = 0; r < rows; r++)
            for (size_t w = 0; w < columns; w++) {
                uint32_t got = 0, want;
                for (size_t j = 0; j < per_word; j++) {
                    size_t t = key ? r * per_word + j : r, d = key ? w : w * per_word + j;
                    got |= (uint32_t)codes[(t * c->heads + h) * c->dim + d] << c->bits * j;
                }
                memcpy(&want, (const char *)words->data + 4 * ((h * rows + r) * columns + w), 4);
                if (got != want)
                    fail_msg("%s: word (%zu, %zu, %zu) is %08x, not %08x", c->name, h, r, w, got, want);
            }
}

/* The decoder computes in float32; theirs rounds each operation to the input type. With float32 input both
 * are one. */
static void check_dequant(const config *c, const uint8_t *codes, const float *scale, const float *min,
                          const float *got) {
    const kvant_array *dequant = find(c, "dequant");
    size_t count = (size_t)c->tokens * c->heads * c->dim;
    for (size_t i = 0; i < count; i++) {
        size_t g = group_of(c, i / c->dim / c->heads, i / c->dim % c->heads, i % c->dim);
        float product = (float)codes[i] * scale[g], sum = product + min[g];
        if (!isfinite(got[i])) fail_msg("%s: element %zu decodes to %g", c->name, i, (double)got[i]);
        if (!c->undefined && got[i] != sum)
            fail_msg("%s: element %zu decodes to %.9g, not %.9g", c->name, i, (double)got[i], (double)sum);
        if (scale[g] == 0 && got[i] != min[g]) fail_msg("%s: element %zu is not its minimum", c->name, i);
        if (dequant == NULL) continue;
        float want = number(dequant->data, c->dtype, i);
        float chain = round_to(c->dtype, round_to(c->dtype, product) + min[g]);
        if (!c->undefined && chain != want) fail_msg("%s: the test misreads the chain at %zu", c->name, i);
        if (c->dtype == KVANT_DTYPE_F32 && !c->undefined && got[i] != want)
            fail_msg("%s: element %zu decodes to %.9g, not %.9g", c->name, i, (double)got[i], (double)want);
        double unit = c->dtype == KVANT_DTYPE_F32 ? 0x1p-22 : c->dtype == KVANT_DTYPE_F16 ? 0x1p-10 : 0x1p-7;
        double size = fmax(fabs((double)codes[i] * (double)scale[g]), fabs((double)want));
        kvant_assert_close(got[i], want, unit * size);
    }
}

/* Where their code is defined it agrees also in the cases where it is not defined everywhere. */
static void check_upstream(const config *c, const uint8_t *codes, const void *scale, const float *got) {
    const kvant_array *their_codes = find(c, "upstream_codes"), *their_scale = find(c, "upstream_scale");
    const kvant_array *their_dequant = find(c, "upstream_dequant");
    (void)find(c, "upstream_words"); /* made of the undefined codes */
    size_t count = (size_t)c->tokens * c->heads * c->dim, compared = 0;
    if (their_codes == NULL) return;
    const uint8_t *theirs = their_codes->data;
    for (size_t i = 0; i < count; i++) {
        size_t g = group_of(c, i / c->dim / c->heads, i / c->dim % c->heads, i % c->dim);
        float stored = number(scale, c->dtype, g);
        if (their_scale != NULL && !isfinite(number(their_scale->data, c->dtype, g))) continue;
        if (!(stored > 0)) continue;
        if (theirs[i] != codes[i]) fail_msg("%s: code %zu is %u, not %u", c->name, i, codes[i], theirs[i]);
        if (their_scale != NULL && number(their_scale->data, c->dtype, g) != stored)
            fail_msg("%s: scale %zu differs", c->name, g);
        if (their_dequant != NULL && c->dtype == KVANT_DTYPE_F32 &&
            number(their_dequant->data, c->dtype, i) != got[i])
            fail_msg("%s: element %zu differs from theirs", c->name, i);
        compared++;
    }
    (void)compared;
}

static float *floats(const void *data, uint32_t dtype, size_t count) {
    float *out = malloc(count * sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < count; i++) out[i] = number(data, dtype, i);
    return out;
}

static void check_config(const config *c, const void *input, uint32_t isa) {
    char parameters[64];
    kvant_array array;
    size_t count = (size_t)c->tokens * c->heads * c->dim;
    (void)snprintf(parameters, sizeof parameters, "bits=%u group=%u", c->bits, c->group);
    kvant_test_codec *codec =
        kvant_test_codec_open("kivi", c->side, c->dtype, c->tokens, c->heads, c->dim, isa, parameters);
    kvant_test_codec_encode(codec, input, count);

    uint64_t first = c->side == KVANT_SIDE_KEY ? c->tokens / c->group : c->tokens;
    uint64_t last = c->side == KVANT_SIDE_KEY ? c->dim : c->groups;
    size_t groups = first * c->heads * last, meta = groups * kvant_element_bytes(c->dtype);
    uint8_t *codes = kvant_test_codec_inspect(codec, "codes", &array);
    assert_int_equal(array.bytes, count);
    same(c, "codes", codes, need(c, "codes", KVANT_DTYPE_U8, c->tokens, c->heads, c->dim), count);
    void *scale = kvant_test_codec_inspect(codec, "scale", &array);
    assert_int_equal(array.bytes, meta);
    same(c, "scale", scale, need(c, "scale", c->dtype, first, c->heads, last), meta);
    void *min = kvant_test_codec_inspect(codec, "min", &array);
    same(c, "min", min, need(c, "min", c->dtype, first, c->heads, last), meta);

    float *decoded = kvant_test_codec_decode(codec, KVANT_DTYPE_F32);
    float *scales = floats(scale, c->dtype, groups), *minima = floats(min, c->dtype, groups);
    check_words(c, codes);
    check_dequant(c, codes, scales, minima, decoded);
    check_upstream(c, codes, scale, decoded);
    free(scales);
    free(minima);
    free(decoded);
    free(min);
    free(scale);
    free(codes);
    kvant_test_codec_close(codec);
}

static uint32_t integer(json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) <= 0)
        fail_msg("\"%s\" is not a positive integer", key);
    return (uint32_t)json_integer_value(value);
}

static void known_keys(json_t *object, const char *const *known, const char *where) {
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value) {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], key) != 0) i++;
        if (known[i] == NULL) fail_msg("%s: unknown key \"%s\"", where, key);
    }
}

static uint32_t dtype_of(json_t *object, const char *where) {
    const char *name = json_string_value(json_object_get(object, "dtype"));
    if (name != NULL && strcmp(name, "float32") == 0) return KVANT_DTYPE_F32;
    if (name != NULL && strcmp(name, "float16") == 0) return KVANT_DTYPE_F16;
    if (name != NULL && strcmp(name, "bfloat16") == 0) return KVANT_DTYPE_BF16;
    fail_msg("%s: unknown dtype", where);
    return 0;
}

static uint32_t check_case(const char *name, json_t *object, uint32_t isa) {
    static const char *const case_keys[] = {"tokens", "heads", "head_dim", "dtype", "configs", NULL};
    static const char *const config_keys[] = {
        "side", "bits", "group", "axis", "upstream_invalid_codes", "words", "upstream_bug", NULL};
    known_keys(object, case_keys, name);
    config c = {.name = name,
                .dtype = dtype_of(object, name),
                .tokens = integer(object, "tokens"),
                .heads = integer(object, "heads"),
                .dim = integer(object, "head_dim")};
    const void *input = need(&c, "input", c.dtype, c.tokens, c.heads, c.dim);
    const char *key;
    json_t *value;
    uint32_t count = 0;
    json_object_foreach(json_object_get(object, "configs"), key, value) {
        char full[128];
        known_keys(value, config_keys, key);
        const char *side = json_string_value(json_object_get(value, "side"));
        assert_true(side != NULL && (strcmp(side, "k") == 0 || strcmp(side, "v") == 0));
        assert_true(snprintf(full, sizeof full, "%s/%s", name, key) < (int)sizeof full);
        config one = c;
        one.name = full;
        one.side = side[0] == 'k' ? KVANT_SIDE_KEY : KVANT_SIDE_VALUE;
        one.bits = integer(value, "bits");
        one.group = integer(value, "group");
        one.groups = (c.dim + one.group - 1) / one.group;
        one.undefined = json_is_true(json_object_get(value, "upstream_bug"));
        check_config(&one, input, isa);
        count++;
    }
    return count;
}

static void check_file(const char *name, uint32_t configs) {
    char path[512];
    kvant_diag diag = {.struct_size = sizeof diag};
    uint32_t isas[KVANT_TEST_ISA_MAX], isa_count = kvant_test_isas(isas);
    (void)snprintf(path, sizeof path, "%s/tests/golden/data/%s", KVANT_TEST_SOURCE_DIR, name);
    if (kvant_safetensors_open(path, &file, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    json_t *cases = json_loads(kvant_safetensors_metadata(file, "cases"), 0, NULL);
    assert_true(json_is_object(cases));
    for (uint32_t i = 0; i < isa_count; i++) {
        const char *key;
        json_t *value;
        uint32_t count = 0;
        used = 0;
        json_object_foreach(cases, key, value) count += check_case(key, value, isas[i]);
        assert_int_equal(count, configs);
        assert_int_equal(used, kvant_safetensors_count(file)); /* every tensor was looked at */
    }
    json_decref(cases);
    kvant_safetensors_close(file);
}

static void float32_cases(void **state) {
    (void)state;
    check_file("kivi.safetensors", 82);
}

static void float16_and_bfloat16_cases(void **state) {
    (void)state;
    check_file("kivi_fp16.safetensors", 90);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(float32_cases),
                                              cmocka_unit_test(float16_and_bfloat16_cases)};
    return kvant_run_tests(tests, argc, argv);
}
