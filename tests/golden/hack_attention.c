/* HACK's cache and attention against what the artifact's code returned: the attn_* cases of
 * data/hack.safetensors, through the plugin's encode, inspect, score and mix at every instruction set of this
 * machine.
 *
 * A case has keys, values and queries (after RoPE); the first `sinks` tokens and what is left behind the last
 * whole partition stay in 16 bit, the partitions between are extents of one partition each. Queries are
 * handed over without the logit scale, as the artifact quantizes them. Raw tokens are added here, in double.
 *
 * With flat = one everything is theirs bit for bit, and results within rounding. With the default, scale 0
 * where theirs is 1, operands have other ranges: the result is compared with attention on the dequantized
 * keys and values, which is the same. In the case with two constant tokens of 8-bit values theirs is 23 %
 * off. */
#include "support/test.h"
#include "support/test_attend.h"

#include <data/safetensors.h>
#include <hack/hack_identity.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXTENTS_MAX = 8 };

typedef struct attention {
    const char *name;
    uint32_t partition, bits, tokens, kv_heads, q_heads, dim, q_len, sinks, dtype, part, coded;
    uint32_t parts, blocks;
    double scaling;
    bool stochastic;
    bool one; /* flat = one */
    const kvant_array *k, *v;
    const float *q;
} attention;

static kvant_safetensors *file;

static const kvant_array *find(const attention *a, const char *what) {
    char name[128];
    (void)snprintf(name, sizeof name, "%s/%s", a->name, what);
    return kvant_safetensors_find(file, name);
}

static const kvant_array *need(const attention *a, const char *what) {
    const kvant_array *array = find(a, what);
    if (array == NULL) fail_msg("%s/%s is missing", a->name, what);
    return array;
}

static float number(const kvant_array *array, size_t i) {
    return kvant_load_element((const char *)array->data + i * kvant_element_bytes(array->dtype),
                              array->dtype);
}

static uint32_t whole(const kvant_array *array, size_t i) {
    int32_t x = 0;
    uint32_t bytes = kvant_dtype_bytes(array->dtype);
    memcpy(&x, (const char *)array->data + i * bytes, bytes);
    return (uint32_t)x;
}

/* ---- What is stored ------------------------------------------------------------------------------------ */

/* An inspected array [rows, heads, columns] of extent `e` against theirs [heads, all rows, columns]. */
static void check_plane(const attention *a, kvant_test_codec *codec, const char *ours, const char *theirs,
                        uint32_t e) {
    kvant_array array;
    uint8_t *got = kvant_test_codec_inspect(codec, ours, &array);
    const kvant_array *want = need(a, theirs);
    size_t rows = array.shape[0], columns = array.shape[2], size = kvant_dtype_bytes(array.dtype);
    assert_int_equal(array.dtype, want->dtype);
    assert_int_equal(want->shape[1], rows * a->blocks);
    assert_int_equal(want->shape[2], columns);
    for (size_t r = 0; r < rows; r++)
        for (size_t h = 0; h < a->kv_heads; h++)
            for (size_t c = 0; c < columns; c++) {
                const uint8_t *x = got + ((r * a->kv_heads + h) * columns + c) * size;
                size_t at = (h * rows * a->blocks + e * rows + r) * columns + c;
                const char *y = (const char *)want->data + at * size;
                bool flat =
                    !a->one && strcmp(ours, "scale") == 0 && number(want, at) == 1 && x[0] == 0 && x[1] == 0;
                if (!flat && memcmp(x, y, size) != 0)
                    fail_msg("%s/%s: extent %u, row %zu, head %zu, column %zu differs", a->name, theirs, e, r,
                             h, c);
            }
    free(got);
}

static void check_codes(const attention *a, kvant_test_codec *codec, const char *bytes, const char *packed,
                        uint32_t e) {
    kvant_array array;
    uint8_t *got = kvant_test_codec_inspect(codec, "codes", &array);
    const kvant_array *want = need(a, bytes), *rows = need(a, packed);
    kvant_assert_bytes(got, (const uint8_t *)want->data + e * array.bytes, array.bytes);
    size_t per_byte = 8 / a->bits, width = a->dim / per_byte;
    for (size_t t = 0; t < a->partition; t++)
        for (size_t h = 0; h < a->kv_heads; h++)
            for (size_t i = 0; i < width; i++) {
                uint32_t byte = 0;
                for (size_t j = 0; j < per_byte; j++)
                    byte |= (uint32_t)got[(t * a->kv_heads + h) * a->dim + i * per_byte + j] << j * a->bits;
                assert_int_equal(byte, whole(rows, (h * a->coded + e * a->partition + t) * width + i));
            }
    free(got);
}

static kvant_test_codec *open_side(const attention *a, uint32_t side, uint32_t isa) {
    char parameters[64];
    (void)snprintf(parameters, sizeof parameters, "bits=%u partition=%u flat=%s", a->bits, a->partition,
                   a->one ? "one" : "zero");
    return kvant_test_codec_open("hack", side, a->dtype, a->partition, a->kv_heads, a->dim, isa, parameters);
}

static void encode_side(const attention *a, kvant_test_codec *codec, kvant_extent *extents) {
    bool key = codec->setup.side == KVANT_SIDE_KEY;
    const kvant_array *rows = key ? a->k : a->v;
    size_t count = (size_t)a->partition * a->kv_heads * a->dim;
    for (uint32_t e = 0; e < a->blocks; e++) {
        const char *first =
            (const char *)rows->data + 2 * ((size_t)a->sinks * a->kv_heads * a->dim + e * count);
        kvant_test_codec_encode(codec, first, count);
        check_codes(a, codec, key ? "k_codes_u8" : "v_codes_u8", key ? "k_codes" : "v_codes", e);
        check_plane(a, codec, "scale", key ? "k_scale" : "v_scale", e);
        check_plane(a, codec, "min", key ? "k_min" : "v_min", e);
        check_plane(a, codec, "sums", key ? "k_sums" : "v_sums", e);
        extents[e] = kvant_test_extent_copy(codec);
    }
}

/* ---- Queries and weights ------------------------------------------------------------------------------- */

/* Their 8-bit codes of an operand, from the numbers that are quantized. */
static void check_operand(const attention *a, const char *what, const float *x, uint32_t count,
                          size_t code_at, size_t fit_at) {
    char name[32];
    float low = x[0], high = x[0];
    for (uint32_t i = 0; i < count; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    hack_operand o = hack_operand_fit(low, high);
    (void)snprintf(name, sizeof name, "%s_scale", what);
    assert_true(number(need(a, name), fit_at) == (o.scale > 0 ? o.scale : 1));
    (void)snprintf(name, sizeof name, "%s_min", what);
    assert_true(number(need(a, name), fit_at) == o.min);
    (void)snprintf(name, sizeof name, "%s_codes", what);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t code = hack_operand_code(o, x[i]), want = whole(need(a, name), code_at + i);
        if (code != want) fail_msg("%s/%s: code %u is %u, not %u", a->name, name, i, code, want);
    }
}

/* Of all queries, with their scales. */
static void check_queries(const attention *a) {
    const kvant_array *scale = find(a, "k_scale");
    float x[512];
    uint32_t group = a->q_heads / a->kv_heads;
    if (a->blocks == 0) return;
    for (size_t h = 0; h < a->q_heads; h++)
        for (size_t b = 0; b < a->blocks; b++)
            for (size_t i = 0; i < a->q_len; i++) {
                for (size_t c = 0; c < a->dim; c++)
                    x[c] = a->q[(i * a->q_heads + h) * a->dim + c] *
                           number(scale, (h / group * a->blocks + b) * a->dim + c);
                size_t row = (h * a->blocks + b) * a->q_len + i;
                for (size_t p = 0; p < a->parts; p++)
                    check_operand(a, "q", x + p * a->part, a->part, row * a->dim + p * a->part,
                                  row * a->parts + p);
            }
}

/* Of all weights, from the stored ones. */
static void check_weights(const attention *a) {
    const kvant_array *scale = find(a, "v_scale"), *probs = need(a, "probs");
    float x[512];
    uint32_t group = a->q_heads / a->kv_heads;
    if (a->blocks == 0) return;
    for (size_t h = 0; h < a->q_heads; h++)
        for (size_t p = 0; p < a->parts; p++)
            for (size_t i = 0; i < a->q_len; i++)
                for (size_t b = 0; b < a->blocks; b++) {
                    for (size_t t = 0; t < a->partition; t++) {
                        size_t token = b * a->partition + t;
                        x[t] = number(probs, (i * a->q_heads + h) * a->tokens + a->sinks + token) *
                               number(scale, (h / group * a->coded + token) * a->parts + p);
                    }
                    size_t row = (h * a->parts + p) * a->q_len + i;
                    check_operand(a, "p", x, a->partition, row * a->coded + b * a->partition,
                                  row * a->blocks + b);
                }
}

/* ---- Attention ----------------------------------------------------------------------------------------- */

static bool is_raw(const attention *a, size_t t) {
    return t < a->sinks || t >= a->sinks + a->coded;
}

/* Row r of kv head h: query head and position. */
static size_t query_row(const attention *a, size_t h, size_t r) {
    size_t group = a->q_heads / a->kv_heads;
    return (r % a->q_len) * a->q_heads + h * group + r / a->q_len;
}

/* Logits as [q_len, q_heads, tokens], scaled. */
static double *score_all(const attention *a, kvant_test_codec *key, const kvant_extent *extents) {
    size_t rows = (size_t)(a->q_heads / a->kv_heads) * a->q_len, all = a->kv_heads * rows;
    float *queries = malloc(all * a->dim * sizeof *queries),
          *logits = malloc((all * a->coded + 1) * sizeof *logits);
    double *out = malloc(all * a->tokens * sizeof *out);
    assert_true(queries != NULL && logits != NULL && out != NULL);
    for (size_t h = 0; h < a->kv_heads; h++)
        for (size_t r = 0; r < rows; r++)
            memcpy(queries + (h * rows + r) * a->dim, a->q + query_row(a, h, r) * a->dim,
                   a->dim * sizeof *queries);
    kvant_test_group group = {extents, a->blocks, 0, a->kv_heads, (uint32_t)rows};
    if (a->blocks > 0) kvant_test_score(key, &group, queries, logits);
    for (size_t h = 0; h < a->kv_heads; h++)
        for (size_t r = 0; r < rows; r++)
            for (size_t t = 0; t < a->tokens; t++) {
                double sum = 0;
                for (size_t c = 0; is_raw(a, t) && c < a->dim; c++)
                    sum += (double)queries[(h * rows + r) * a->dim + c] *
                           (double)number(a->k, (t * a->kv_heads + h) * a->dim + c);
                if (!is_raw(a, t)) sum = (double)logits[(h * rows + r) * a->coded + t - a->sinks];
                out[query_row(a, h, r) * a->tokens + t] = sum * a->scaling;
            }
    free(logits);
    free(queries);
    return out;
}

/* Outputs as [q_len, q_heads, dim], from weights [q_len, q_heads, tokens]. */
static double *mix_all(const attention *a, kvant_test_codec *value, const kvant_extent *extents,
                       const float *probs) {
    size_t rows = (size_t)(a->q_heads / a->kv_heads) * a->q_len, all = a->kv_heads * rows;
    float *weights = malloc((all * a->coded + 1) * sizeof *weights),
          *sums = calloc(all * a->dim, sizeof *sums);
    double *out = malloc(all * a->dim * sizeof *out);
    assert_true(weights != NULL && sums != NULL && out != NULL);
    for (size_t h = 0; h < a->kv_heads; h++)
        for (size_t r = 0; r < rows; r++)
            for (size_t t = 0; t < a->coded; t++)
                weights[(h * rows + r) * a->coded + t] = probs[query_row(a, h, r) * a->tokens + a->sinks + t];
    kvant_test_group group = {extents, a->blocks, 0, a->kv_heads, (uint32_t)rows};
    if (a->blocks > 0) kvant_test_mix(value, &group, weights, sums);
    for (size_t h = 0; h < a->kv_heads; h++)
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < a->dim; c++) {
                double sum = (double)sums[(h * rows + r) * a->dim + c];
                for (size_t t = 0; t < a->tokens; t++)
                    if (is_raw(a, t))
                        sum += (double)probs[query_row(a, h, r) * a->tokens + t] *
                               (double)number(a->v, (t * a->kv_heads + h) * a->dim + c);
                out[query_row(a, h, r) * a->dim + c] = sum;
            }
    free(sums);
    free(weights);
    return out;
}

static double relative(const double *got, const float *want, size_t count) {
    double error = 0, energy = 0;
    for (size_t i = 0; i < count; i++) {
        error += (got[i] - (double)want[i]) * (got[i] - (double)want[i]);
        energy += (double)want[i] * (double)want[i];
    }
    return sqrt(error / energy);
}

static void softmax(const attention *a, const double *logits, const float *mask, float *probs) {
    for (size_t r = 0; r < (size_t)a->q_len * a->q_heads; r++) {
        double most = -INFINITY, sum = 0;
        for (size_t t = 0; t < a->tokens; t++)
            if (isfinite(mask[r * a->tokens + t])) most = fmax(most, logits[r * a->tokens + t]);
        for (size_t t = 0; t < a->tokens; t++)
            if (isfinite(mask[r * a->tokens + t])) sum += exp(logits[r * a->tokens + t] - most);
        for (size_t t = 0; t < a->tokens; t++)
            probs[r * a->tokens + t] =
                isfinite(mask[r * a->tokens + t]) ? (float)(exp(logits[r * a->tokens + t] - most) / sum) : 0;
    }
}

static void check_attention(const attention *a, kvant_test_codec *key, const kvant_extent *keys,
                            kvant_test_codec *value, const kvant_extent *values, json_t *object) {
    size_t rows = (size_t)a->q_len * a->q_heads;
    const float *scores = need(a, "scores")->data, *probs = need(a, "probs")->data;
    const float *out = need(a, "out")->data, *exact = need(a, "out_dequant")->data;
    double *logits = score_all(a, key, keys);
    for (size_t i = 0; i < rows * a->tokens; i++)
        if (isfinite(scores[i]) && (a->one || strstr(a->name, "outlier") == NULL))
            kvant_assert_close(logits[i], scores[i], 2e-5);
    double *mixed = mix_all(a, value, values, probs);
    /* Theirs is up to 1.9e-6 off a sum in double, ours adds roundings of numbers near 4. */
    for (size_t i = 0; i < rows * a->dim && a->one; i++) kvant_assert_close(mixed[i], out[i], 3e-6);

    /* All the way, with our own weights: a code of an operand may flip. */
    float *own = malloc(rows * a->tokens * sizeof *own);
    assert_non_null(own);
    softmax(a, logits, scores, own);
    double *ours = mix_all(a, value, values, own);
    double error = relative(ours, exact, rows * a->dim);
    double theirs = json_real_value(json_object_get(object, "rel_err_out_vs_dequant"));
    if (a->one) {
        assert_true(relative(ours, out, rows * a->dim) < 5e-3);
        kvant_assert_close(error, theirs, 5e-3);
    } else {
        assert_true(error < (theirs > 0.2 ? 0.015 : 0.03));
    }
    assert_true(a->blocks == 0 || error > 1e-3); /* operands have 8 bits: not the float path */
    free(ours);
    free(own);
    free(mixed);
    free(logits);
}

/* The two pages of the case that has them, out of inspected arrays: [heads] first. */
static void check_page_field(const attention *a, kvant_test_codec *codec, const char *what, json_t *field,
                             uint32_t e) {
    kvant_array array;
    const kvant_array *pages = need(a, "pages");
    const uint8_t *page = (const uint8_t *)pages->data + e * pages->shape[1];
    uint8_t *got = kvant_test_codec_inspect(codec, what, &array);
    size_t offset = (size_t)json_integer_value(json_object_get(field, "offset"));
    size_t size = kvant_dtype_bytes(array.dtype), row = array.shape[2] * size;
    bool codes = strcmp(what, "codes") == 0;
    size_t per_byte = codes ? 8 / a->bits : 1, width = row / per_byte;
    assert_int_equal(json_integer_value(json_object_get(field, "nbytes")),
                     array.shape[0] * array.shape[1] * width);
    for (size_t h = 0; h < a->kv_heads; h++)
        for (size_t r = 0; r < array.shape[0]; r++)
            for (size_t i = 0; i < width; i++) {
                const uint8_t *x = got + (r * a->kv_heads + h) * row + i * per_byte;
                uint32_t byte = 0;
                for (size_t j = 0; j < per_byte; j++) byte |= (uint32_t)x[j] << j * a->bits;
                assert_int_equal(byte, page[offset + (h * array.shape[0] + r) * width + i]);
            }
    free(got);
}

static void check_pages(const attention *a, kvant_test_codec *codec, json_t *page) {
    static const char *const names[] = {"codes", "scale", "min", "sums"};
    bool key = codec->setup.side == KVANT_SIDE_KEY;
    size_t count = (size_t)a->partition * a->kv_heads * a->dim;
    for (uint32_t e = 0; e < a->blocks; e++) {
        const kvant_array *rows = key ? a->k : a->v;
        kvant_test_codec_encode(
            codec, (const char *)rows->data + 2 * ((size_t)a->sinks * a->kv_heads * a->dim + e * count),
            count);
        for (size_t i = 0; i < 4; i++) {
            char name[16];
            (void)snprintf(name, sizeof name, "%c_%s", key ? 'k' : 'v', names[i]);
            check_page_field(a, codec, names[i], json_object_get(page, name), e);
        }
    }
}

/* ---- Cases --------------------------------------------------------------------------------------------- */

static uint32_t integer(json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) fail_msg("\"%s\" is not an integer", key);
    return (uint32_t)json_integer_value(value);
}

static attention attention_of(const char *name, json_t *object, bool one) {
    attention a = {.name = name,
                   .partition = integer(object, "partition"),
                   .bits = integer(object, "kv_bits"),
                   .tokens = integer(object, "tokens"),
                   .kv_heads = integer(object, "kv_heads"),
                   .q_heads = integer(object, "q_heads"),
                   .dim = integer(object, "head_dim"),
                   .q_len = integer(object, "q_len"),
                   .sinks = integer(object, "sink_tokens"),
                   .part = integer(object, "channel_part"),
                   .coded = integer(object, "quantized_tokens"),
                   .scaling = json_real_value(json_object_get(object, "scaling")),
                   .stochastic = json_is_true(json_object_get(object, "stochastic")),
                   .one = one};
    a.parts = a.dim / a.part;
    a.blocks = a.coded / a.partition;
    a.k = need(&a, "k");
    a.v = need(&a, "v");
    a.q = need(&a, "q")->data;
    a.dtype = a.k->dtype;
    assert_true(a.blocks <= EXTENTS_MAX && a.dim <= 512 && a.partition <= 512);
    assert_int_equal(hack_part(a.partition, a.dim), a.part);
    return a;
}

static void check_case(const attention *a, json_t *object, uint32_t isa) {
    kvant_extent keys[EXTENTS_MAX], values[EXTENTS_MAX];
    kvant_test_codec *key = open_side(a, KVANT_SIDE_KEY, isa), *value = open_side(a, KVANT_SIDE_VALUE, isa);
    encode_side(a, key, keys);
    encode_side(a, value, values);
    check_attention(a, key, keys, value, values, object);
    json_t *page = json_object_get(object, "page");
    if (page != NULL && a->one) {
        check_pages(a, key, page);
        check_pages(a, value, page);
    }
    for (uint32_t e = 0; e < a->blocks; e++) {
        kvant_test_extent_free(&keys[e]);
        kvant_test_extent_free(&values[e]);
    }
    kvant_test_codec_close(key);
    kvant_test_codec_close(value);
}

/* Rounding with the noise of the file, by the plugin's arithmetic: keys and values in the order [heads, coded
 * tokens, channels]. */
static void check_noise(const attention *a, bool key) {
    const kvant_array *rows = key ? a->k : a->v, *noise = need(a, key ? "noise_k" : "noise_v");
    const kvant_array *scale = need(a, key ? "k_scale" : "v_scale"), *min = need(a, key ? "k_min" : "v_min");
    const kvant_array *codes = need(a, key ? "k_codes_u8" : "v_codes_u8");
    for (size_t h = 0; h < a->kv_heads; h++)
        for (size_t t = 0; t < a->coded; t++)
            for (size_t c = 0; c < a->dim; c++) {
                size_t group = key ? (h * a->blocks + t / a->partition) * a->dim + c
                                   : (h * a->coded + t) * a->parts + c / a->part;
                hack_fit fit = {.scale = number(scale, group), .min = number(min, group)};
                float x = number(rows, ((a->sinks + t) * a->kv_heads + h) * a->dim + c);
                uint32_t code =
                    hack_code(fit, (1u << a->bits) - 1, x, number(noise, (h * a->coded + t) * a->dim + c));
                assert_int_equal(code, whole(codes, (t * a->kv_heads + h) * a->dim + c));
            }
}

static void each_case(uint32_t isa, bool stochastic, bool one, uint32_t expected) {
    char path[512];
    kvant_diag diag = {.struct_size = sizeof diag};
    (void)snprintf(path, sizeof path, "%s/tests/golden/data/hack.safetensors", KVANT_TEST_SOURCE_DIR);
    if (kvant_safetensors_open(path, &file, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    json_t *cases = json_loads(kvant_safetensors_metadata(file, "cases"), 0, NULL);
    assert_true(json_is_object(cases));
    const char *key;
    json_t *value;
    uint32_t count = 0;
    json_object_foreach(cases, key, value) {
        if (strncmp(key, "attn_", 5) != 0) continue;
        attention a = attention_of(key, value, one);
        if (a.stochastic != stochastic) continue;
        count++;
        if (stochastic) {
            check_noise(&a, true);
            check_noise(&a, false);
            continue;
        }
        check_queries(&a);
        check_weights(&a);
        check_case(&a, value, isa);
    }
    assert_int_equal(count, expected);
    json_decref(cases);
    kvant_safetensors_close(file);
}

static void flat_one(void **state) {
    (void)state;
    uint32_t isas[KVANT_TEST_ISA_MAX], count = kvant_test_isas(isas);
    for (uint32_t i = 0; i < count; i++) each_case(isas[i], false, true, 9);
}

static void flat_zero(void **state) {
    (void)state;
    uint32_t isas[KVANT_TEST_ISA_MAX], count = kvant_test_isas(isas);
    for (uint32_t i = 0; i < count; i++) each_case(isas[i], false, false, 9);
}

static void stochastic(void **state) {
    (void)state;
    each_case(KVANT_ISA_SCALAR, true, true, 1);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(flat_one), cmocka_unit_test(flat_zero),
                                              cmocka_unit_test(stochastic)};
    return kvant_run_tests(tests, argc, argv);
}
