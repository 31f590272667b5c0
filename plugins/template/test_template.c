/* One block through the codec and back, in memory of our own: also the shortest program that uses kvant. */
#include <kvant/kvant.h>

#include <stdio.h>
#include <stdlib.h>

extern kvant_plugin_query_fn kvant_plugin_query_template;

enum { TOKENS = 64, HEADS = 2, DIM = 80 };

static float input[TOKENS][HEADS][DIM], output[TOKENS][HEADS][DIM];

static int fail(const kvant_diag *diag) {
    fprintf(stderr, "%s\n", diag->message);
    return EXIT_FAILURE;
}

int main(void) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_layer_geometry layer = {.struct_size = sizeof layer,
                                  .kv_heads = HEADS,
                                  .q_heads = HEADS,
                                  .total_kv_heads = HEADS,
                                  .key_dim = DIM,
                                  .value_dim = DIM};
    kvant_geometry geometry = {
        .struct_size = sizeof geometry, .layer_count = 1, .dtype = KVANT_DTYPE_F32, .layers = &layer};
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    kvant_codec *codec = NULL;
    if (kvant_plugin_register(kvant_plugin_query_template, &diag) != KVANT_OK ||
        kvant_pipeline_of_codec("template", &pipeline, &diag) != KVANT_OK ||
        kvant_pipeline_resolve(pipeline, &geometry, &plan, &diag) != KVANT_OK ||
        kvant_codec_open(plan, 0, KVANT_SIDE_VALUE, &codec, &diag) != KVANT_OK)
        return fail(&diag);

    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HEADS; h++)
            for (int c = 0; c < DIM; c++)
                input[t][h][c] = (float)((t * 31 + h * 17 + c * 7) % 101) / 10.0f - 3.0f;

    size_t scratch_bytes = (kvant_codec_scratch_bytes(codec) + 63) / 64 * 64;
    size_t capacity = kvant_codec_extent_max(codec);
    void *extent = aligned_alloc(4096, (capacity + 4095) / 4096 * 4096);
    void *scratch = aligned_alloc(64, scratch_bytes ? scratch_bytes : 64);
    kvant_view rows = {.struct_size = sizeof rows,
                       .dtype = KVANT_DTYPE_F32,
                       .data = input,
                       .tokens = TOKENS,
                       .heads = HEADS,
                       .head_dim = DIM,
                       .token_stride = sizeof input[0],
                       .head_stride = sizeof input[0][0],
                       .channel_stride = sizeof(float)};
    kvant_mutable_view back = {.struct_size = sizeof back,
                               .dtype = KVANT_DTYPE_F32,
                               .data = output,
                               .tokens = TOKENS,
                               .heads = HEADS,
                               .head_dim = DIM,
                               .token_stride = sizeof output[0],
                               .head_stride = sizeof output[0][0],
                               .channel_stride = sizeof(float)};
    kvant_encode_report report = {.struct_size = sizeof report};
    if (extent == NULL || scratch == NULL ||
        kvant_codec_encode(codec, &rows, 0, NULL, extent, capacity, scratch, &report, &diag) != KVANT_OK ||
        kvant_codec_decode(codec, extent, report.size, 0, NULL, &back, scratch, &diag) != KVANT_OK)
        return fail(&diag);

    double error = 0, energy = 0;
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HEADS; h++)
            for (int c = 0; c < DIM; c++) {
                double d = (double)input[t][h][c] - (double)output[t][h][c];
                error += d * d;
                energy += (double)input[t][h][c] * (double)input[t][h][c];
            }
    printf("%zu bytes, relative squared error %.3g\n", (size_t)report.size, error / energy);

    free(extent);
    free(scratch);
    kvant_codec_close(codec);
    kvant_plan_free(plan);
    kvant_pipeline_free(pipeline);
    /* Two-sided: an encoder that loses everything fails, and so does a test that looks at nothing. */
    return error > 1e-7 * energy && error < 1e-3 * energy ? EXIT_SUCCESS : EXIT_FAILURE;
}
