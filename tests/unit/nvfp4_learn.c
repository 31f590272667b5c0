/* Global scales of nvfp4 that come from an artifact: what calibration learns, what it refuses to learn from,
 * what open reads and refuses, and that a rank reads its own heads. */
#include "support/test.h"
#include "support/test_codec.h"

#include <kvant/kvant.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 64, HEADS = 4, DIM = 32, COUNT = TOKENS * HEADS * DIM };

static const kvant_setup full = {.struct_size = sizeof(kvant_setup),
                                 .side = KVANT_SIDE_VALUE,
                                 .layer = 5,
                                 .layer_count = 8,
                                 .dtype = KVANT_DTYPE_F32,
                                 .block_tokens = TOKENS,
                                 .kv_heads = HEADS,
                                 .total_kv_heads = HEADS,
                                 .q_heads = HEADS,
                                 .head_dim = DIM};

/* ---- Learning ------------------------------------------------------------------------------------------ */

typedef struct learned {
    uint32_t tensors, layer, side, count;
    char name[32];
    float values[HEADS];
} learned;

static void take(void *context, uint32_t layer, uint32_t side, const kvant_array *tensor) {
    learned *l = context;
    assert_int_equal(tensor->dtype, KVANT_DTYPE_F32);
    assert_int_equal(tensor->rank, 1);
    assert_true(tensor->shape[0] <= HEADS && tensor->bytes == tensor->shape[0] * sizeof(float));
    l->tensors++;
    l->layer = layer;
    l->side = side;
    l->count = (uint32_t)tensor->shape[0];
    (void)snprintf(l->name, sizeof l->name, "%s", tensor->name);
    memcpy(l->values, tensor->data, tensor->bytes);
}

/* One session over `texts` texts of `tokens` rows. */
static kvant_status learn(const char *parameters, const float *rows, uint32_t tokens, uint32_t texts,
                          uint32_t sinks, learned *l, kvant_diag *diag) {
    kvant_test_codec *plain =
        kvant_test_codec_open("nvfp4", full.side, full.dtype, TOKENS, HEADS, DIM, KVANT_ISA_SCALAR, "");
    const kvant_calibrate *calibrate = plain->plugin->extension(KVANT_EXT_CALIBRATE);
    kvant_test_codec_close(plain);
    /* The values come from a codec of the test that is open with the same parameters. */
    float one = 1.0f;
    const kvant_array tensor = {.name = "multiplier", .data = &one, .bytes = 4, .dtype = KVANT_DTYPE_F32};
    float ones[HEADS] = {1, 1, 1, 1};
    const kvant_array each = {.name = "multiplier",
                              .data = ones,
                              .shape = {HEADS},
                              .bytes = sizeof ones,
                              .dtype = KVANT_DTYPE_F32,
                              .rank = 1};
    kvant_setup setup = full;
    setup.tensors = strstr(parameters, "head") != NULL ? &each : &tensor;
    setup.tensor_count = 1;
    kvant_test_codec *codec = kvant_test_codec_open_setup("nvfp4", &setup, parameters);
    kvant_setup bare = codec->setup;
    bare.tensors = NULL;
    bare.tensor_count = 0;
    const kvant_setup *setups[] = {&bare};
    void *session = NULL;
    uint32_t more = 1;
    kvant_status status = calibrate->begin(setups, 1, &session, diag);
    assert_int_equal(status, KVANT_OK);
    *l = (learned){0};
    const kvant_view view = kvant_test_view(rows, KVANT_DTYPE_F32, tokens, HEADS, DIM);
    for (uint32_t text = 0; text < texts && status == KVANT_OK; text++) {
        const kvant_sample sample = {
            .struct_size = sizeof sample, .layer = full.layer, .values = &view, .sinks = sinks, .text = text};
        status = calibrate->feed(session, &sample, diag);
    }
    if (status == KVANT_OK) {
        assert_int_equal(calibrate->again(session, &more, diag), KVANT_OK);
        assert_int_equal(more, 0);
        status = calibrate->end(session, take, l, diag);
    }
    calibrate->free(session);
    kvant_test_codec_close(codec);
    return status;
}

static void fill(float *rows, uint32_t tokens) {
    uint64_t seed = 3;
    for (size_t i = 0; i < (size_t)tokens * HEADS * DIM; i++)
        rows[i] = (float)kvant_test_normal(&seed) * (float)(1 + i / DIM % HEADS);
}

static void learns_the_largest(void **state) {
    static float rows[100 * HEADS * DIM];
    float amax[HEADS] = {0}, all = 0.0f;
    learned l;
    kvant_diag diag = {.struct_size = sizeof diag};
    (void)state;
    fill(rows, 100);
    for (size_t i = 4 * HEADS * DIM; i < 100 * HEADS * DIM; i++) {
        float x = fabsf(rows[i]);
        amax[i / DIM % HEADS] = fmaxf(amax[i / DIM % HEADS], x);
        all = fmaxf(all, x);
    }
    rows[2 * HEADS * DIM + 1] = 1000.0f; /* a sink */
    assert_int_equal(learn("global_scale=artifact", rows, 100, 1, 4, &l, &diag), KVANT_OK);
    assert_int_equal(l.tensors, 1);
    assert_string_equal(l.name, "multiplier");
    assert_int_equal(l.layer, full.layer);
    assert_int_equal(l.side, full.side);
    assert_int_equal(l.count, 1);
    assert_true(l.values[0] == all / 2688.0f);
    assert_int_equal(learn("global_scale=artifact amax_divisor=448", rows, 100, 2, 4, &l, &diag), KVANT_OK);
    assert_true(l.values[0] == all / 448.0f);
    assert_int_equal(learn("global_scale=artifact global_per=head", rows, 100, 1, 4, &l, &diag), KVANT_OK);
    assert_int_equal(l.count, HEADS);
    for (size_t h = 0; h < HEADS; h++) assert_true(l.values[h] == amax[h] / 2688.0f);
    assert_int_equal(learn("global_scale=artifact", rows, 100, 1, 0, &l, &diag), KVANT_OK);
    assert_true(l.values[0] == 1000.0f / 2688.0f);
    /* Nothing to learn: no tensor, no error. */
    assert_int_equal(learn("global_scale=parameter", rows, 100, 1, 4, &l, &diag), KVANT_OK);
    assert_int_equal(l.tensors, 0);
    assert_int_equal(learn("format=mxfp4", rows, 100, 1, 4, &l, &diag), KVANT_OK);
    assert_int_equal(l.tensors, 0);
}

static void refuses_to_learn(const float *rows, const char *parameters, uint32_t tokens, uint32_t texts,
                             kvant_status want, const char *part) {
    learned l;
    kvant_diag diag = {.struct_size = sizeof diag};
    assert_int_equal(learn(parameters, rows, tokens, texts, 4, &l, &diag), want);
    kvant_assert_contains(diag.message, part);
    kvant_assert_contains(diag.message, "layer 5");
    assert_int_equal(l.tensors, 0);
}

static void refuses_what_teaches_nothing(void **state) {
    static float rows[100 * HEADS * DIM];
    (void)state;
    refuses_to_learn(rows, "global_scale=artifact", 100, 1, KVANT_ERROR_VALUE, "zero");
    fill(rows, 100);
    refuses_to_learn(rows, "global_scale=artifact", 67, 1, KVANT_ERROR_MISSING, "63 tokens");
    refuses_to_learn(rows, "global_scale=artifact", 3, 10, KVANT_ERROR_MISSING, "0 tokens");
    refuses_to_learn(rows, "global_scale=artifact", 100, 0, KVANT_ERROR_MISSING, "0 tokens");
    for (size_t t = 0; t < 100; t++)
        for (size_t c = 0; c < DIM; c++) rows[(t * HEADS + 2) * DIM + c] = 0.0f;
    refuses_to_learn(rows, "global_scale=artifact global_per=head", 100, 1, KVANT_ERROR_VALUE, "head 2");
    rows[(50 * HEADS + 1) * DIM + 9] = NAN;
    refuses_to_learn(rows, "global_scale=artifact", 100, 1, KVANT_ERROR_NOT_FINITE,
                     "token 50, head 1, channel 9");
    rows[(50 * HEADS + 1) * DIM + 9] = -INFINITY;
    refuses_to_learn(rows, "global_scale=artifact", 100, 1, KVANT_ERROR_NOT_FINITE, "not finite");
}

/* ---- Reading ------------------------------------------------------------------------------------------- */

static float global_of(kvant_setup setup, const char *parameters, const kvant_array *tensor, uint32_t index) {
    kvant_array array;
    setup.tensors = tensor;
    setup.tensor_count = 1;
    kvant_test_codec *codec = kvant_test_codec_open_setup("nvfp4", &setup, parameters);
    float rows[COUNT];
    fill(rows, TOKENS);
    kvant_test_codec_encode(codec, rows, (size_t)TOKENS * setup.kv_heads * DIM);
    float *global = kvant_test_codec_inspect(codec, "global", &array), value = global[index];
    free(global);
    kvant_test_codec_close(codec);
    return value;
}

/* The name of the tensor is the convention; a rank takes the heads that it has. */
static void reads_by_name(void **state) {
    float numbers[HEADS] = {0.25f, 0.5f, 3.0f, 8.0f};
    kvant_array tensor = {.data = numbers, .shape = {1}, .bytes = 4, .dtype = KVANT_DTYPE_F32, .rank = 1};
    (void)state;
    tensor.name = "multiplier";
    assert_true(global_of(full, "global_scale=artifact", &tensor, 0) == 0.25f);
    tensor.name = "inverse";
    assert_true(global_of(full, "global_scale=artifact", &tensor, 0) == 4.0f);
    tensor.name = "amax";
    assert_true(global_of(full, "global_scale=artifact", &tensor, 0) == 0.25f / 2688.0f);
    assert_true(global_of(full, "global_scale=artifact amax_divisor=448", &tensor, 0) == 0.25f / 448.0f);
    tensor.name = "multiplier";
    tensor.rank = 0;
    assert_true(global_of(full, "global_scale=artifact", &tensor, 0) == 0.25f);
    tensor = (kvant_array){.name = "multiplier",
                           .data = numbers,
                           .shape = {HEADS},
                           .bytes = sizeof numbers,
                           .dtype = KVANT_DTYPE_F32,
                           .rank = 1};
    kvant_setup rank = full;
    rank.kv_heads = rank.q_heads = 2;
    rank.first_kv_head = 2;
    assert_true(global_of(rank, "global_scale=artifact global_per=head", &tensor, 0) == 3.0f);
    assert_true(global_of(rank, "global_scale=artifact global_per=head", &tensor, 1) == 8.0f);
}

static void refuses_to_open(const char *parameters, const kvant_array *good, const kvant_array *tensors,
                            uint32_t count, kvant_status want, const char *part) {
    kvant_setup setup = full;
    kvant_diag diag = {.struct_size = sizeof diag};
    setup.tensors = good;
    setup.tensor_count = 1;
    kvant_test_codec *codec = kvant_test_codec_open_setup("nvfp4", &setup, parameters);
    setup = codec->setup;
    setup.tensors = tensors;
    setup.tensor_count = count;
    void *memory = aligned_alloc(64, (codec->layout.state_bytes + 63) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0, codec->layout.state_bytes);
    assert_int_equal(codec->plugin->open(&setup, &codec->layout, memory, &diag), want);
    kvant_assert_contains(diag.message, part);
    free(memory);
    kvant_test_codec_close(codec);
}

static void refuses_what_does_not_fit(void **state) {
    const char *const layer = "global_scale=artifact", *const head = "global_scale=artifact global_per=head";
    static float numbers[HEADS] = {1, 1, 1, 1};
    static float bad[] = {0.0f, -1.0f, NAN, INFINITY, 1e-38f, 3e38f};
    const kvant_array one = {
        .name = "multiplier", .data = numbers, .shape = {1}, .bytes = 4, .dtype = KVANT_DTYPE_F32, .rank = 1};
    kvant_array four = one, other = one;
    (void)state;
    four.shape[0] = HEADS;
    four.bytes = sizeof numbers;
    refuses_to_open(layer, &one, NULL, 0, KVANT_ERROR_MISSING, "\"multiplier\", \"inverse\" or \"amax\"");
    refuses_to_open(layer, &one, &four, 1, KVANT_ERROR_MISMATCH, "F32 [1]");
    refuses_to_open(head, &four, &one, 1, KVANT_ERROR_MISMATCH, "F32 [4]");
    other.name = "scale";
    refuses_to_open(layer, &one, &other, 1, KVANT_ERROR_MISSING, "multiplier");
    other = one;
    other.dtype = KVANT_DTYPE_I32;
    refuses_to_open(layer, &one, &other, 1, KVANT_ERROR_MISMATCH, "F32 [1]");
    other = one;
    other.rank = 2;
    other.shape[1] = 1;
    refuses_to_open(layer, &one, &other, 1, KVANT_ERROR_MISMATCH, "F32 [1]");
    kvant_array both[2] = {one, one};
    both[0].name = "inverse";
    refuses_to_open(layer, &one, both, 2, KVANT_ERROR_CONFLICT, "both");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        for (size_t n = 0; n < 2; n++) {
            other = one;
            other.name = n == 0 ? "multiplier" : "inverse";
            other.data = &bad[i];
            refuses_to_open(layer, &one, &other, 1, KVANT_ERROR_VALUE, other.name);
        }
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(learns_the_largest), cmocka_unit_test(refuses_what_teaches_nothing),
        cmocka_unit_test(reads_by_name), cmocka_unit_test(refuses_what_does_not_fit)};
    return kvant_run_tests(tests, argc, argv);
}
