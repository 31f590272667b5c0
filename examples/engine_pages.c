/* An engine that keeps its own pages: encoded blocks in pages of a pool, the newest tokens raw, attention
 * over both. Codec floor and attention floor of kvant.h; docs/host.md explains them.
 *
 * The "model" is sines: one layer, one sequence, a token a step. At the end the last output is
 * compared with attention over all raw rows, which a real engine does not have any more. */
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
    TOKENS = 1000,
    BLOCK = 64,
    BLOCKS = TOKENS / BLOCK
};
enum { ROW = KV_HEADS * DIM, SINKS = 4, RECENT = 32 };

static const char pipeline_text[] = "[pipeline]\nblock_tokens = 64\nsinks = 4\nrecent = 32\n"
                                    "[codec k]\nplugin = kivi\nbits = 4\n"
                                    "[layers]\nkey = k\nvalue = k\n";

static float rows[2][TOKENS][ROW], queries[Q_HEADS * DIM], outputs[Q_HEADS * DIM]; /* the model's */

static void check(kvant_status status, const kvant_diag *diag) {
    if (status == KVANT_OK) return;
    fprintf(stderr, "%s\n", diag->message);
    exit(1);
}

/* The calls want scratch that is aligned to 64 bytes. */
static void *allocate(size_t size) {
    void *memory = aligned_alloc(4096, (size + 4096) / 4096 * 4096);
    if (memory == NULL) exit(1);
    return memory;
}

/* Rows [first, first + tokens) as [tokens, heads, DIM]. An engine's own strides go here. */
static kvant_view view_of(float *data, uint32_t tokens, uint32_t heads) {
    return (kvant_view){.struct_size = sizeof(kvant_view),
                        .dtype = KVANT_DTYPE_F32,
                        .data = data,
                        .tokens = tokens,
                        .heads = heads,
                        .head_dim = DIM,
                        .token_stride = (int64_t)(4 * heads * DIM),
                        .head_stride = 4 * DIM,
                        .channel_stride = 4};
}

/* Block `index` into two pages, and its reference. */
static kvant_reference seal(const kvant_attention *attention, uint32_t index, unsigned char *pages,
                            size_t page, void *scratch, kvant_diag *diag) {
    kvant_reference r = {.first_position = (uint64_t)index * BLOCK,
                         .live_first = index == 0 ? SINKS : 0, /* the sinks stay raw */
                         .live_count = index == 0 ? BLOCK - SINKS : BLOCK};
    for (uint32_t side = KVANT_SIDE_KEY; side <= KVANT_SIDE_VALUE; side++) {
        kvant_view block = view_of(rows[side][index * BLOCK], BLOCK, KV_HEADS);
        kvant_encode_report report = {.struct_size = sizeof report};
        unsigned char *extent = pages + (2 * (size_t)index + side) * page;
        check(kvant_codec_encode(kvant_attention_codec(attention, side), &block, r.first_position, NULL,
                                 extent, page, scratch, &report, diag),
              diag);
        if (side == KVANT_SIDE_KEY) {
            r.key = extent;
            r.key_size = report.size;
        } else {
            r.value = extent;
            r.value_size = report.size;
        }
    }
    return r;
}

/* What the outputs would be without quantization. */
static double error_of_outputs(void) {
    double error = 0, size = 0;
    for (int h = 0; h < Q_HEADS; h++) {
        double sum = 0, exact[DIM] = {0};
        for (int t = 0; t < TOKENS; t++) {
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

int main(void) {
    kvant_diag diag = {.struct_size = sizeof diag};
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    kvant_attention *attention = NULL;
    kvant_layer_geometry layer = {.struct_size = sizeof layer,
                                  .kv_heads = KV_HEADS,
                                  .q_heads = Q_HEADS,
                                  .total_kv_heads = KV_HEADS,
                                  .key_dim = DIM,
                                  .value_dim = DIM};
    kvant_geometry geometry = {.struct_size = sizeof geometry,
                               .layer_count = 1,
                               .dtype = KVANT_DTYPE_F32,
                               .keys = KVANT_KEYS_AFTER_ROPE,
                               .layers = &layer};
    check(
        kvant_pipeline_parse(pipeline_text, sizeof pipeline_text - 1, "engine_pages", NULL, &pipeline, &diag),
        &diag);
    check(kvant_pipeline_resolve(pipeline, &geometry, &plan, &diag), &diag);
    check(kvant_attention_open(plan, 0, &attention, &diag), &diag);

    /* Pages of one size, and scratch for everything that this thread will do. */
    size_t page = 0, codec_scratch = 0;
    for (uint32_t side = KVANT_SIDE_KEY; side <= KVANT_SIDE_VALUE; side++) {
        const kvant_codec *codec = kvant_attention_codec(attention, side);
        if (kvant_codec_extent_max(codec) > page) page = (kvant_codec_extent_max(codec) + 4095) / 4096 * 4096;
        if (kvant_codec_scratch_bytes(codec) > codec_scratch)
            codec_scratch = kvant_codec_scratch_bytes(codec);
    }
    size_t attention_scratch = kvant_attention_scratch_bytes(attention, 1, 1);
    unsigned char *pages = allocate(2 * (size_t)BLOCKS * page);
    void *scratch = allocate(attention_scratch > codec_scratch ? attention_scratch : codec_scratch);

    kvant_reference references[BLOCKS];
    uint32_t sealed = 0;
    for (uint32_t t = 0; t < TOKENS; t++) {
        for (int i = 0; i < ROW; i++) { /* the step's keys and values, and its queries */
            rows[0][t][i] = sinf(0.37f * (float)(t * (uint32_t)(i % 7 + 1))) + 0.02f * (float)i;
            rows[1][t][i] = cosf(0.11f * (float)t + (float)i);
        }
        for (int i = 0; i < Q_HEADS * DIM; i++) queries[i] = sinf((float)(t + 3 * (uint32_t)i));

        while ((sealed + 1) * BLOCK + RECENT <= t + 1) { /* blocks whose tokens are all older than RECENT */
            references[sealed] = seal(attention, sealed, pages, page, scratch, &diag);
            sealed++;
        }
        uint32_t first = sealed * BLOCK; /* the tail, raw; the sinks too, once block 0 is sealed */
        kvant_view keys = view_of(rows[0][first], t + 1 - first, KV_HEADS),
                   sink_keys = view_of(rows[0][0], SINKS, KV_HEADS);
        kvant_view values = view_of(rows[1][first], t + 1 - first, KV_HEADS),
                   sink_values = view_of(rows[1][0], SINKS, KV_HEADS);
        kvant_raw_run runs[2] = {{&keys, &values, first}, {&sink_keys, &sink_values, 0}};
        kvant_token_range range;
        kvant_token_range_causal(t, 1, 0, &range);
        kvant_view query = view_of(queries, 1, Q_HEADS);
        kvant_mutable_view output = {.struct_size = sizeof output,
                                     .dtype = KVANT_DTYPE_F32,
                                     .data = outputs,
                                     .tokens = 1,
                                     .heads = Q_HEADS,
                                     .head_dim = DIM,
                                     .token_stride = query.token_stride,
                                     .head_stride = query.head_stride,
                                     .channel_stride = 4};
        kvant_attention_sequence sequence = {.struct_size = sizeof sequence,
                                             .references = references,
                                             .reference_count = sealed,
                                             .runs = runs,
                                             .run_count = sealed > 0 ? 2 : 1,
                                             .queries = &query,
                                             .ranges = &range,
                                             .outputs = &output};
        kvant_attention_options options = {.struct_size = sizeof options, .scale = 1 / sqrtf(DIM)};
        check(kvant_attention_run(attention, &sequence, 1, &options, scratch, attention_scratch, &diag),
              &diag);
    }
    double error = error_of_outputs(), raw = 2.0 * sealed * BLOCK * ROW * sizeof(float);
    double coded = 0;
    for (uint32_t i = 0; i < sealed; i++)
        coded += (double)(references[i].key_size + references[i].value_size);
    printf(
        "%u of %d tokens lie in %u pages, in %.1f %% of their raw bytes; the last output is off by %.2f %%\n",
        sealed * BLOCK, TOKENS, 2 * sealed, 100 * coded / raw, 100 * error);

    free(scratch);
    free(pages);
    kvant_attention_close(attention);
    kvant_plan_free(plan);
    kvant_pipeline_free(pipeline);
    return sealed == (TOKENS - RECENT) / BLOCK && error > 0.0001 && error < 0.05 ? 0 : 1;
}
