/* What kvquant learns, against data/kvquant.safetensors: thresholds bit for bit; codebooks by their weighted
 * squared error, which must lie between the optimum and the authors' local one; moments of Q-Norm. And what
 * it refuses to learn from. */
#include "support/test.h"
#include "support/test_codec.h"

#include <data/safetensors.h>
#include <kvant/kit/view.h>
#include <kvant/kvant.h>
#include <kvquant/kvquant_math.h>
#include <plugin/schema.h>

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvant_safetensors *file;

/* What a session handed over. */
typedef struct learned {
    float upper[512], lower[512], book[16], norm[2];
    size_t upper_count, lower_count, book_count;
} learned;

static void take(void *context, uint32_t layer, uint32_t side, const kvant_array *tensor) {
    learned *l = context;
    size_t count = tensor->bytes / sizeof(float);
    (void)side;
    assert_int_equal(layer, 0);
    assert_int_equal(tensor->dtype, KVANT_DTYPE_F32);
    if (strcmp(tensor->name, "codebook") == 0) {
        memcpy(l->book, tensor->data, tensor->bytes);
        l->book_count = count;
    } else if (strcmp(tensor->name, "upper") == 0) {
        memcpy(l->upper, tensor->data, tensor->bytes);
        l->upper_count = count;
    } else if (strcmp(tensor->name, "lower") == 0) {
        memcpy(l->lower, tensor->data, tensor->bytes);
        l->lower_count = count;
    } else if (strcmp(tensor->name, "normscale") == 0) {
        memcpy(&l->norm[0], tensor->data, sizeof(float));
    } else if (strcmp(tensor->name, "normoffset") == 0) {
        memcpy(&l->norm[1], tensor->data, sizeof(float));
    } else {
        fail_msg("an unknown tensor, %s", tensor->name);
    }
}

static const kvant_array *find(const char *set, const char *name) {
    char path[96];
    (void)snprintf(path, sizeof path, "%s/%s", set, name);
    const kvant_array *array = kvant_safetensors_find(file, path);
    if (array == NULL) fail_msg("%s is missing", path);
    return array;
}

static float number(const kvant_array *array, size_t i) {
    return kvant_load_element((const char *)array->data + i * kvant_element_bytes(array->dtype),
                              array->dtype);
}

/* "a=1 b=2" through the plugin's own schema. */
static void set_values(const kvant_descriptor *d, const char *parameters, kvant_value *values) {
    char text[160], *rest = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(d->param_count, KVQUANT_PARAM_COUNT);
    for (uint32_t i = 0; i < d->param_count; i++) kvant_schema_default(kvant_schema_param(d, i), &values[i]);
    (void)snprintf(text, sizeof text, "%s", parameters);
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(word, '=');
        uint32_t index = 0;
        assert_non_null(equals);
        *equals = '\0';
        if (kvant_schema_find(d, word, &index, &diag) != KVANT_OK ||
            kvant_schema_parse(kvant_schema_param(d, index), equals + 1, &values[index], &diag) != KVANT_OK)
            fail_msg("%s", diag.message);
    }
}

/* One text of one layer. rows: [tokens, heads, 64]. */
static kvant_status learn_from(uint32_t dtype, uint32_t side, const void *rows, uint32_t tokens,
                               uint32_t heads, const kvant_array *fisher, uint32_t sinks,
                               const char *parameters, learned *result, kvant_diag *diag) {
    memset(result, 0, sizeof *result);
    const kvant_plugin *plugin;
    kvant_value values[KVQUANT_PARAM_COUNT];
    assert_int_equal(kvant_plugin_find("kvquant", &plugin, diag), KVANT_OK);
    set_values(plugin->descriptor, parameters, values);
    const kvant_setup shape = {.struct_size = sizeof shape,
                               .side = side,
                               .layer_count = 1,
                               .dtype = dtype,
                               .block_tokens = 64,
                               .head_dim = 64,
                               .kv_heads = heads,
                               .total_kv_heads = heads,
                               .q_heads = heads,
                               .isa = KVANT_ISA_SCALAR,
                               .value_count = KVQUANT_PARAM_COUNT,
                               .values = values};
    const kvant_setup *setup = &shape;
    const kvant_calibrate *calibrate = plugin->extension(KVANT_EXT_CALIBRATE);
    assert_non_null(calibrate);
    kvant_view view = kvant_test_view(rows, dtype, tokens, heads, 64);
    kvant_array importance = {0};
    if (fisher != NULL) {
        importance = *fisher;
        importance.name = side == KVANT_SIDE_KEY ? "key_squared_gradient" : "value_squared_gradient";
        importance.rank = 3;
        importance.shape[0] = tokens;
        importance.shape[1] = heads;
        importance.shape[2] = 64;
    }
    kvant_sample sample = {.struct_size = sizeof sample,
                           .keys = side == KVANT_SIDE_KEY ? &view : NULL,
                           .values = side == KVANT_SIDE_VALUE ? &view : NULL,
                           .importance = &importance,
                           .importance_count = fisher != NULL,
                           .sinks = sinks,
                           .logit_scale = 0.125};
    void *session = NULL;
    uint32_t more = 0;
    kvant_status status = calibrate->begin(&setup, 1, &session, diag);
    if (status == KVANT_OK) status = calibrate->feed(session, &sample, diag);
    if (status == KVANT_OK) status = calibrate->again(session, &more, diag);
    assert_int_equal(more, 0);
    if (status == KVANT_OK) status = calibrate->end(session, take, result, diag);
    calibrate->free(session);
    return status;
}

static kvant_status learn(uint32_t side, const void *rows, uint32_t tokens, uint32_t heads,
                          const kvant_array *fisher, uint32_t sinks, const char *parameters, learned *result,
                          kvant_diag *diag) {
    return learn_from(KVANT_DTYPE_F16, side, rows, tokens, heads, fisher, sinks, parameters, result, diag);
}

/* ---- Thresholds and codebooks -------------------------------------------------------------------------- */

static void same_floats(const char *set, const char *name, const float *got, size_t count) {
    const kvant_array *want = find(set, name);
    assert_int_equal(want->bytes / sizeof(float), count);
    for (size_t i = 0; i < count; i++)
        if (got[i] != number(want, i))
            fail_msg("%s/%s: number %zu is %.9g, not %.9g", set, name, i, (double)got[i],
                     (double)number(want, i));
}

/* The weighted squared error of a codebook on the elements within their group's range, in double. */
static double error_of(const char *set, bool key, const float *book, uint32_t levels, const char *weights,
                       const kvant_array *mask) {
    const kvant_array *rows = find(set, "calibration"), *fisher = find(set, "fisher");
    const kvant_array *upper = find(set, "upper"), *lower = find(set, "lower");
    size_t width = rows->shape[1], count = rows->shape[0] * width;
    double error = 0;
    for (size_t i = 0; i < count; i++) {
        size_t group = key ? i % width : i / width;
        kvquant_range range = kvquant_range_of(number(upper, group), number(lower, group));
        float a = (number(rows, i) - range.middle) / range.half;
        bool out = !(fabsf(a) <= 1);
        if (mask != NULL) assert_int_equal(out, ((const uint8_t *)mask->data)[i]);
        if (out) continue;
        double weight = strcmp(weights, "none") == 0 ? 1 : (double)number(fisher, i);
        if (strcmp(weights, "paper") == 0) weight *= (double)range.half * (double)range.half;
        double least = INFINITY;
        for (uint32_t k = 0; k < levels; k++) least = fmin(least, fabs((double)book[k] - (double)a));
        error += weight * least * least;
    }
    return error;
}

static void check_fit(const char *set, uint32_t bits, const char *weights, const char *their_name,
                      const json_t *fits) {
    bool key = strstr(set, "_k") != NULL, synthetic = set[0] == 's';
    const kvant_array *rows = find(set, "calibration");
    uint32_t heads = (uint32_t)rows->shape[1] / 64;
    char parameters[64], name[32];
    learned got;
    kvant_diag diag = {.struct_size = sizeof diag};
    (void)snprintf(parameters, sizeof parameters, "bits=%u weights=%s", bits, weights);
    (void)snprintf(name, sizeof name, "nuq%u_%s", bits, their_name);
    if (learn(key ? KVANT_SIDE_KEY : KVANT_SIDE_VALUE, rows->data, (uint32_t)rows->shape[0], heads,
              find(set, "fisher"), 0, parameters, &got, &diag) != KVANT_OK)
        fail_msg("%s: %s", set, diag.message);
    assert_int_equal(got.book_count, (size_t)1 << bits);
    assert_int_equal(got.upper_count, key ? rows->shape[1] : 0);
    if (key) {
        same_floats(set, "upper", got.upper, got.upper_count);
        same_floats(set, "lower", got.lower, got.lower_count);
    }
    const json_t *fit = json_object_get(fits, name);
    assert_non_null(fit);
    double best = json_number_value(json_object_get(fit, "sse_optimal"));
    double theirs = json_number_value(json_object_get(fit, "sse_upstream"));
    double error =
        error_of(set, key, got.book, 1u << bits, weights, synthetic ? find(set, "calibration_mask") : NULL);
    if (!(error >= best * (1 - 1e-6) && error <= theirs))
        fail_msg("%s/%s: weighted squared error %.9g, optimum %.9g, theirs %.9g", set, name, error, best,
                 theirs);
    if (!(error <= best * (1 + 1e-6)))
        fail_msg("%s/%s: %.9g is not the optimum %.9g", set, name, error, best);
    for (uint32_t i = 1; i < 1u << bits; i++) assert_true(got.book[i] > got.book[i - 1]);
}

static void codebooks_are_optimal(void **state) {
    static const char *const sets[] = {"synthetic_k", "synthetic_v", "real_k", "real_v"};
    static const char *const weights[] = {"code", "paper", "none"};
    static const char *const theirs[] = {"fisher", "fisher_r2", "plain"};
    (void)state;
    json_t *cases = json_loads(kvant_safetensors_metadata(file, "cases"), 0, NULL);
    assert_non_null(cases);
    for (size_t s = 0; s < sizeof sets / sizeof sets[0]; s++)
        for (uint32_t bits = 2; bits <= 4; bits++)
            for (size_t w = 0; w < 3; w++)
                check_fit(sets[s], bits, weights[w], theirs[w],
                          json_object_get(json_object_get(cases, sets[s]), "fits"));
    json_decref(cases);
}

static void dense_thresholds_are_the_extremes(void **state) {
    (void)state;
    const kvant_array *rows = find("synthetic_k", "calibration");
    learned got;
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(learn(KVANT_SIDE_KEY, rows->data, (uint32_t)rows->shape[0], 2,
                           find("synthetic_k", "fisher"), 0, "bits=3 weights=code outliers=none", &got,
                           &diag),
                     KVANT_OK);
    same_floats("synthetic_k", "dense_upper", got.upper, got.upper_count);
    same_floats("synthetic_k", "dense_lower", got.lower, got.lower_count);
}

/* An end of a float32 range may be rounded to slightly more than 1; the authors' mask takes it out then. What
 * is left here are four points, which four entries fit exactly. */
static void ends_rounded_beyond_the_range_do_not_count(void **state) {
    enum { TOKENS = 100 };
    static float rows[TOKENS * 64];
    const float points[5] = {3.3f, 3.35f, 3.4f, 3.45f, 3.4917998f};
    const kvquant_range range = kvquant_range_of(points[4], points[0]);
    (void)state;
    assert_true((points[4] - range.middle) / range.half > 1);
    assert_true((points[0] - range.middle) / range.half > -1);
    for (size_t i = 0; i < TOKENS * 64; i++) rows[i] = points[i / 64 % 5];
    learned got;
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(learn_from(KVANT_DTYPE_F32, KVANT_SIDE_KEY, rows, TOKENS, 1, NULL, 0,
                                "bits=2 outliers=none", &got, &diag),
                     KVANT_OK);
    assert_true(got.upper[0] == points[4] && got.lower[0] == points[0]);
    for (uint32_t i = 0; i < 4; i++)
        kvant_assert_close(got.book[i], (points[i] - range.middle) / range.half, 1e-6);
}

/* Sinks do not count: the same as a text that begins after them. */
static void sinks_are_left_out(void **state) {
    (void)state;
    const kvant_array *rows = find("real_k", "calibration");
    learned with, without;
    kvant_diag diag = {.struct_size = sizeof diag};
    uint32_t tokens = (uint32_t)rows->shape[0];
    assert_int_equal(learn(KVANT_SIDE_KEY, rows->data, tokens, 3, NULL, 4, "bits=3", &with, &diag), KVANT_OK);
    assert_int_equal(learn(KVANT_SIDE_KEY, (const uint16_t *)rows->data + 4 * rows->shape[1], tokens - 4, 3,
                           NULL, 0, "bits=3", &without, &diag),
                     KVANT_OK);
    assert_memory_equal(&with, &without, sizeof with);
    assert_int_equal(learn(KVANT_SIDE_KEY, rows->data, tokens, 3, NULL, 0, "bits=3", &without, &diag),
                     KVANT_OK);
    assert_memory_not_equal(&with, &without, sizeof with);
}

/* normscale and normoffset, as the authors' for their codebook: the optimum differs by less than 1 %. */
static void moments_match(void **state) {
    static const char *const sets[] = {"synthetic_k", "synthetic_v"};
    (void)state;
    for (size_t s = 0; s < 2; s++) {
        const kvant_array *rows = find(sets[s], "calibration");
        learned got;
        kvant_diag diag = {.struct_size = sizeof diag};
        assert_int_equal(learn(s == 0 ? KVANT_SIDE_KEY : KVANT_SIDE_VALUE, rows->data,
                               (uint32_t)rows->shape[0], 2, find(sets[s], "fisher"), 0,
                               "bits=2 weights=code qnorm=yes", &got, &diag),
                         KVANT_OK);
        kvant_assert_within(got.norm[0], number(find(sets[s], "nuq2_qnorm/normscale"), 0), .01);
        kvant_assert_close(got.norm[1], number(find(sets[s], "nuq2_qnorm/normoffset"), 0), .01);
        assert_true(got.norm[0] != 1 && got.norm[1] != 0);
    }
}

/* ---- Refusals ------------------------------------------------------------------------------------------ */

static void refuses(const void *rows, uint32_t tokens, const kvant_array *fisher, kvant_status want,
                    const char *word) {
    learned got;
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(learn(KVANT_SIDE_VALUE, rows, tokens, 1, fisher, 0, "bits=4", &got, &diag), want);
    kvant_assert_contains(diag.message, word);
    kvant_assert_contains(diag.message, "layer 0, value");
}

static void bad_texts_are_refused(void **state) {
    enum { TOKENS = 128 };
    static uint16_t rows[TOKENS * 64];
    static float gradients[TOKENS * 64];
    uint64_t seed = 4;
    (void)state;
    refuses(rows, TOKENS, NULL, KVANT_ERROR_VALUE, "zero");
    for (size_t i = 0; i < TOKENS * 64; i++) rows[i] = kvant_f32_to_f16(i % 64 < 32 ? 1.0f : -2.0f);
    refuses(rows, TOKENS, NULL, KVANT_ERROR_VALUE, "different elements");
    for (size_t i = 0; i < TOKENS * 64; i++) rows[i] = kvant_f32_to_f16((float)kvant_test_normal(&seed));
    refuses(rows, 63, NULL, KVANT_ERROR_MISSING, "63 tokens");
    kvant_array fisher = {.dtype = KVANT_DTYPE_F32, .data = gradients, .bytes = sizeof gradients};
    refuses(rows, TOKENS, &fisher, KVANT_ERROR_VALUE, "positive weight");
    gradients[5 * 64 + 7] = -1;
    refuses(rows, TOKENS, &fisher, KVANT_ERROR_VALUE, "token 5, head 0, channel 7");
    rows[100 * 64 + 9] = 0x7e00;
    refuses(rows, TOKENS, NULL, KVANT_ERROR_NOT_FINITE, "token 100, head 0, channel 9");
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(codebooks_are_optimal),
        cmocka_unit_test(dense_thresholds_are_the_extremes),
        cmocka_unit_test(ends_rounded_beyond_the_range_do_not_count),
        cmocka_unit_test(sinks_are_left_out),
        cmocka_unit_test(moments_match),
        cmocka_unit_test(bad_texts_are_refused),
    };
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_safetensors_open(KVANT_TEST_SOURCE_DIR "/tests/golden/data/kvquant.safetensors", &file,
                               &diag) != KVANT_OK) {
        fprintf(stderr, "%s\n", diag.message);
        return 1;
    }
    int failed = kvant_run_tests(tests, argc, argv);
    kvant_safetensors_close(file);
    return failed;
}
