/* Many threads resolve one pipeline, open codecs of one plan and encode with one codec, all at once. */
#include "support/test.h"

#include <kvant/kvant.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 6, ROUNDS = 12, TOKENS = 64, HEADS = 2, DIM = 32, COUNT = TOKENS * HEADS * DIM };

typedef struct shared {
    const kvant_pipeline *pipeline;
    const kvant_geometry *geometry;
    const kvant_plan *plan;
    const kvant_codec *codec;
    const kvant_view *rows;
    const unsigned char *want; /* the extent */
    size_t size;
} shared;

static unsigned char *room(size_t size) {
    return aligned_alloc(64, (size + 63) / 64 * 64 + 64);
}

/* Encodes and decodes once; false if anything differs. */
static bool round_trip(const shared *s, const kvant_codec *codec) {
    kvant_encode_report report = {.struct_size = sizeof report};
    unsigned char *extent = room(s->size), *scratch = room(kvant_codec_scratch_bytes(codec));
    float *out = malloc(COUNT * sizeof *out);
    kvant_mutable_view to = {.struct_size = sizeof to,
                             .dtype = KVANT_DTYPE_F32,
                             .data = out,
                             .tokens = TOKENS,
                             .heads = HEADS,
                             .head_dim = DIM,
                             .token_stride = 4 * HEADS * DIM,
                             .head_stride = 4 * DIM,
                             .channel_stride = 4};
    bool good =
        kvant_codec_encode(codec, s->rows, 640, NULL, extent, s->size, scratch, &report, NULL) == KVANT_OK &&
        report.size == s->size && memcmp(extent, s->want, s->size) == 0 &&
        kvant_codec_decode(codec, extent, s->size, 640, NULL, &to, scratch, NULL) == KVANT_OK;
    free(out);
    free(scratch);
    free(extent);
    return good;
}

static void *work(void *context) {
    const shared *s = context;
    bool good = true;
    for (int i = 0; i < ROUNDS && good; i++) {
        kvant_plan *plan = NULL;
        kvant_codec *own = NULL, *of_own_plan = NULL;
        good = round_trip(s, s->codec) &&
               kvant_codec_open(s->plan, 0, KVANT_SIDE_KEY, &own, NULL) == KVANT_OK &&
               kvant_pipeline_resolve(s->pipeline, s->geometry, &plan, NULL) == KVANT_OK &&
               kvant_codec_open(plan, 1, KVANT_SIDE_KEY, &of_own_plan, NULL) == KVANT_OK;
        kvant_plan_free(plan); /* before its codec */
        good = good && round_trip(s, own) && round_trip(s, of_own_plan);
        kvant_codec_close(own);
        kvant_codec_close(of_own_plan);
    }
    return good ? context : NULL;
}

static void threads_share_pipelines_plans_and_codecs(void **state) {
    (void)state;
    float *rows = malloc(COUNT * sizeof *rows);
    uint64_t seed = 3;
    for (int i = 0; i < COUNT; i++) rows[i] = (float)kvant_test_normal(&seed) + 2;
    kvant_view view = {.struct_size = sizeof view,
                       .dtype = KVANT_DTYPE_F32,
                       .data = rows,
                       .tokens = TOKENS,
                       .heads = HEADS,
                       .head_dim = DIM,
                       .token_stride = 4 * HEADS * DIM,
                       .head_stride = 4 * DIM,
                       .channel_stride = 4};
    double frequency[DIM / 2];
    for (int i = 0; i < DIM / 2; i++) frequency[i] = 1.0 / (1 + i);
    kvant_rope rope = {.struct_size = sizeof rope,
                       .style = KVANT_ROPE_NEOX,
                       .rotary_dim = DIM,
                       .magnitude = 1,
                       .inverse_frequency = frequency};
    kvant_layer_geometry layers[2];
    for (int i = 0; i < 2; i++)
        layers[i] = (kvant_layer_geometry){.struct_size = sizeof layers[i],
                                           .kv_heads = HEADS,
                                           .q_heads = HEADS,
                                           .total_kv_heads = HEADS,
                                           .key_dim = DIM,
                                           .value_dim = DIM,
                                           .rope = &rope};
    /* Keys before RoPE: the host turns them in every call. */
    kvant_geometry geometry = {.struct_size = sizeof geometry,
                               .layer_count = 2,
                               .dtype = KVANT_DTYPE_F32,
                               .keys = KVANT_KEYS_BEFORE_ROPE,
                               .layers = layers,
                               .model = "threads"};
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    kvant_codec *codec = NULL;
    kvant_diag diag = {.struct_size = sizeof diag};
    if (kvant_pipeline_of_codec("kivi", &pipeline, &diag) != KVANT_OK ||
        kvant_pipeline_resolve(pipeline, &geometry, &plan, &diag) != KVANT_OK ||
        kvant_codec_open(plan, 0, KVANT_SIDE_KEY, &codec, &diag) != KVANT_OK)
        fail_msg("%s", diag.message);
    size_t size = kvant_codec_extent_max(codec);
    unsigned char *want = room(size), *scratch = room(kvant_codec_scratch_bytes(codec));
    kvant_encode_report report = {.struct_size = sizeof report};
    assert_int_equal(kvant_codec_encode(codec, &view, 640, NULL, want, size, scratch, &report, &diag),
                     KVANT_OK);
    shared s = {pipeline, &geometry, plan, codec, &view, want, size};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, work, &s), 0);
    int good = 0;
    for (int i = 0; i < THREADS; i++) {
        void *result = NULL;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        good += result != NULL;
    }
    assert_int_equal(good, THREADS);
    kvant_codec_close(codec);
    kvant_plan_free(plan);
    kvant_pipeline_free(pipeline);
    free(scratch);
    free(want);
    free(rows);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(threads_share_pipelines_plans_and_codecs)};
    return kvant_run_tests(tests, argc, argv);
}
