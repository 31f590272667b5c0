/* An engine on a GPU that keeps its own pages there: kvant/device.h; docs/gpu.md explains it.
 *
 * The "model" is sines, computed on the host and copied: one layer, one sequence. Whole blocks of a prompt
 * are encoded from the device's memory into its pages; then tokens are generated, one a step, each attending
 * over pages and raw tail. What changes from step to step goes through prepare; the launches are the same
 * ones every time, so that a real engine captures them in a CUDA graph. Exits with 77 where there is no
 * device. */
#include <kvant/kvant.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    KV_HEADS = 2,
    GROUP = 4,
    Q_HEADS = KV_HEADS * GROUP,
    DIM = 64,
    BLOCK = 64,
    PROMPT = 200,
    TOKENS = 210
};
enum { ROW = KV_HEADS * DIM, BLOCKS = PROMPT / BLOCK, TAIL = BLOCKS * BLOCK };

static const char pipeline_text[] = "[pipeline]\nblock_tokens = 64\n"
                                    "[codec k]\nplugin = kivi\nbits = 4\n"
                                    "[layers]\nkey = k\nvalue = k\n";

static float rows[2][TOKENS][ROW], queries[Q_HEADS * DIM], outputs[Q_HEADS * DIM]; /* the model's */
static kvant_diag diag = {.struct_size = sizeof diag};

static void check(kvant_status status) {
    if (status == KVANT_OK) return;
    fprintf(stderr, "%s\n", diag.message);
    exit(1);
}

/* Rows that lie at a device address. */
static kvant_view view_of(uint64_t address, uint32_t tokens, uint32_t heads) {
    return (kvant_view){.struct_size = sizeof(kvant_view),
                        .dtype = KVANT_DTYPE_F32,
                        .data = (const void *)(uintptr_t)address,
                        .tokens = tokens,
                        .heads = heads,
                        .head_dim = DIM,
                        .token_stride = (int64_t)(4 * heads * DIM),
                        .head_stride = 4 * DIM,
                        .channel_stride = 4};
}

static double error_of_outputs(int tokens) {
    double error = 0, size = 0;
    for (int h = 0; h < Q_HEADS; h++) {
        double sum = 0, exact[DIM] = {0};
        for (int t = 0; t < tokens; t++) {
            double logit = 0;
            for (int c = 0; c < DIM; c++)
                logit += queries[h * DIM + c] * rows[0][t][h / GROUP * DIM + c] / 8.0;
            sum += exp(logit);
            for (int c = 0; c < DIM; c++) exact[c] += exp(logit) * rows[1][t][h / GROUP * DIM + c];
        }
        for (int c = 0; c < DIM; c++) {
            error += pow(outputs[h * DIM + c] - exact[c] / sum, 2);
            size += pow(exact[c] / sum, 2);
        }
    }
    return sqrt(error / size);
}

/* The engine's memory there. */
typedef struct memory {
    uint64_t rows[2], pages[2], queries, outputs;
    uint64_t page[2]; /* bytes of one */
} memory;

/* All whole blocks of the prompt, both sides. */
static void seal(kvant_device_work *work, const memory *m) {
    for (uint32_t side = KVANT_SIDE_KEY; side <= KVANT_SIDE_VALUE; side++) {
        kvant_view views[BLOCKS];
        kvant_device_block blocks[BLOCKS];
        kvant_encode_report reports[BLOCKS] = {{.struct_size = sizeof reports[0]}};
        for (uint32_t i = 0; i < BLOCKS; i++) {
            views[i] = view_of(m->rows[side] + 4 * ROW * BLOCK * i, BLOCK, KV_HEADS);
            blocks[i] = (kvant_device_block){.struct_size = sizeof blocks[0],
                                             .rows = &views[i],
                                             .extent = m->pages[side] + i * m->page[side],
                                             .first_position = (uint64_t)BLOCK * i};
        }
        check(kvant_device_encode_prepare(work, side, blocks, BLOCKS, NULL, &diag));
        check(kvant_device_encode_launch(work, side, NULL, &diag));
        check(kvant_device_encode_finish(work, side, reports, BLOCKS, NULL, &diag)); /* waits */
    }
}

/* The token at `position` over pages and tail. */
static void attend(kvant_device_work *work, const memory *m, uint32_t position) {
    kvant_gpu_reference references[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++) /* block table: page i of both pools */
        references[i] = (kvant_gpu_reference){
            .first_position = (uint64_t)BLOCK * i, .key_index = i, .value_index = i, .live_count = BLOCK};
    kvant_view keys = view_of(m->rows[0] + 4 * ROW * TAIL, position + 1 - TAIL, KV_HEADS);
    kvant_view values = view_of(m->rows[1] + 4 * ROW * TAIL, position + 1 - TAIL, KV_HEADS);
    kvant_raw_run tail = {&keys, &values, TAIL};
    kvant_view query = view_of(m->queries, 1, Q_HEADS);
    kvant_mutable_view output = {.struct_size = sizeof output,
                                 .dtype = KVANT_DTYPE_F32,
                                 .data = (void *)(uintptr_t)m->outputs,
                                 .tokens = 1,
                                 .heads = Q_HEADS,
                                 .head_dim = DIM,
                                 .token_stride = query.token_stride,
                                 .head_stride = query.head_stride,
                                 .channel_stride = 4};
    kvant_device_sequence sequence = {.struct_size = sizeof sequence,
                                      .reference_count = BLOCKS,
                                      .run_count = 1,
                                      .references = references,
                                      .runs = &tail,
                                      .queries = &query,
                                      .outputs = &output,
                                      .query_position = position};
    kvant_device_attend_options options = {.struct_size = sizeof options,
                                           .scale = 1 / sqrtf(DIM),
                                           .key_base = m->pages[0],
                                           .key_stride = m->page[0],
                                           .value_base = m->pages[1],
                                           .value_stride = m->page[1]};
    check(kvant_device_attend_prepare(work, &sequence, 1, &options, NULL, &diag));
    check(kvant_device_attend_launch(work, NULL, &diag)); /* or the graph that captured it */
}

int main(void) {
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    kvant_attention *attention = NULL;
    kvant_device *device = NULL;
    kvant_device_layer *layer = NULL;
    kvant_device_work *work = NULL;
    kvant_layer_geometry heads = {.struct_size = sizeof heads,
                                  .kv_heads = KV_HEADS,
                                  .q_heads = Q_HEADS,
                                  .total_kv_heads = KV_HEADS,
                                  .key_dim = DIM,
                                  .value_dim = DIM};
    kvant_geometry geometry = {.struct_size = sizeof geometry,
                               .layer_count = 1,
                               .dtype = KVANT_DTYPE_F32,
                               .keys = KVANT_KEYS_AFTER_ROPE,
                               .layers = &heads};
    if (kvant_device_open(0, &device, &diag) != KVANT_OK) {
        printf("%s\n", diag.message);
        return 77;
    }
    check(kvant_pipeline_parse(pipeline_text, sizeof pipeline_text - 1, "engine_device", NULL, &pipeline,
                               &diag));
    check(kvant_pipeline_resolve(pipeline, &geometry, &plan, &diag));
    check(kvant_attention_open(plan, 0, &attention, &diag));
    check(kvant_device_layer_open(device, attention, &layer, &diag));

    kvant_device_limits limits = {.struct_size = sizeof limits,
                                  .blocks = BLOCKS,
                                  .sequences = 1,
                                  .positions = 1,
                                  .runs = 1,
                                  .references = BLOCKS};
    check(kvant_device_work_open(layer, &limits, 0, &work, &diag));

    memory m;
    for (uint32_t side = KVANT_SIDE_KEY; side <= KVANT_SIDE_VALUE; side++) {
        m.page[side] = (kvant_codec_extent_max(kvant_attention_codec(attention, side)) + 255) / 256 * 256;
        check(kvant_device_alloc(device, sizeof rows[0], &m.rows[side], &diag));
        check(kvant_device_alloc(device, BLOCKS * m.page[side], &m.pages[side], &diag));
    }
    check(kvant_device_alloc(device, sizeof queries, &m.queries, &diag));
    check(kvant_device_alloc(device, sizeof outputs, &m.outputs, &diag));

    double worst = 0;
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (int i = 0; i < ROW; i++) {
            rows[0][t][i] = sinf(0.37f * (float)(t * (uint32_t)(i % 7 + 1))) + 0.02f * (float)i;
            rows[1][t][i] = cosf(0.11f * (float)t + (float)i);
        }
        if (t < PROMPT - 1) continue;
        if (t == PROMPT - 1) {
            for (uint32_t side = 0; side < 2; side++)
                check(kvant_device_write(device, m.rows[side], rows[side], sizeof rows[0], NULL, &diag));
            seal(work, &m);
            continue;
        }
        for (int i = 0; i < Q_HEADS * DIM; i++) queries[i] = sinf((float)(t + 3 * (uint32_t)i));
        for (uint32_t side = 0; side < 2; side++)
            check(
                kvant_device_write(device, m.rows[side] + 4 * ROW * t, rows[side][t], 4 * ROW, NULL, &diag));
        check(kvant_device_write(device, m.queries, queries, sizeof queries, NULL, &diag));
        attend(work, &m, t);
        check(kvant_device_read(device, outputs, m.outputs, sizeof outputs, NULL, &diag));
        double error = error_of_outputs((int)t + 1);
        if (error > worst) worst = error;
    }
    printf("%d blocks of %d tokens in pages of the device; outputs of %d steps are off by %.2f %% at most\n",
           BLOCKS, BLOCK, TOKENS - PROMPT, 100 * worst);

    for (uint32_t side = 0; side < 2; side++) {
        kvant_device_free(device, m.rows[side]);
        kvant_device_free(device, m.pages[side]);
    }
    kvant_device_free(device, m.queries);
    kvant_device_free(device, m.outputs);
    kvant_device_work_close(work);
    kvant_device_layer_close(layer);
    kvant_attention_close(attention);
    kvant_plan_free(plan);
    kvant_pipeline_free(pipeline);
    kvant_device_close(device);
    return worst > 0.0001 && worst < 0.05 ? 0 : 1;
}
