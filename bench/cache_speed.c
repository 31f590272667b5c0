/* What the cache floor costs beside the work itself: decode steps of one sequence through kvant_step_begin,
 * kvant_step_attend and kvant_step_commit, against the same encoding and the same attention called directly
 * on extents and rows that lie ready; in turn in the same run, processor time of one thread, the best of
 * several rounds. Prints a Markdown row: us a step both ways, and the difference in per cent of the work.
 *
 *     cache_speed [--tokens N] [--layers N] [--kv-heads N] [--group N] [--dim N] [--rounds N]
 * [KEY[:VALUE]]...
 *
 * One round is block_tokens (64) steps of one token behind `tokens` (4096): in it one block of every layer is
 * encoded. recent = 64, sinks = 4. */
#include <kvant/kvant.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BLOCK = 64, RECENT = 64, SINKS = 4 };

typedef struct bench {
    uint32_t tokens, layers, kv_heads, group, dim, rounds;
    float *rows[2]; /* [layers, tokens + BLOCK, kv_heads, dim] */
    float *queries, *outputs;
} bench;

static kvant_diag diag = {.struct_size = sizeof diag};

static void check(kvant_status status) {
    if (status == KVANT_OK) return;
    fprintf(stderr, "cache_speed: %s\n", diag.message);
    exit(2);
}

static void *allocate(size_t size) {
    void *memory = aligned_alloc(4096, (size + 4096) / 4096 * 4096);
    if (memory == NULL) exit(2);
    memset(memory, 0, size);
    return memory;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static kvant_view view(float *data, uint32_t tokens, uint32_t heads, uint32_t dim) {
    int64_t head = 4 * (int64_t)dim;
    return (kvant_view){.struct_size = sizeof(kvant_view),
                        .dtype = KVANT_DTYPE_F32,
                        .data = data,
                        .tokens = tokens,
                        .heads = heads,
                        .head_dim = dim,
                        .token_stride = head * heads,
                        .head_stride = head,
                        .channel_stride = 4};
}

static kvant_view rows_at(const bench *b, uint32_t layer, uint32_t side, uint32_t first, uint32_t tokens) {
    size_t row = (size_t)layer * (b->tokens + BLOCK) + first;
    return view(b->rows[side] + row * b->kv_heads * b->dim, tokens, b->kv_heads, b->dim);
}

static kvant_mutable_view outputs_of(const bench *b, uint32_t tokens) {
    uint32_t heads = b->kv_heads * b->group;
    kvant_view v = view(b->outputs, tokens, heads, b->dim);
    return (kvant_mutable_view){.struct_size = sizeof(kvant_mutable_view),
                                .dtype = KVANT_DTYPE_F32,
                                .data = b->outputs,
                                .tokens = tokens,
                                .heads = heads,
                                .head_dim = b->dim,
                                .token_stride = v.token_stride,
                                .head_stride = v.head_stride,
                                .channel_stride = 4};
}

static kvant_attention_options options_of(void) {
    return (kvant_attention_options){.struct_size = sizeof(kvant_attention_options), .scale = 0.125f};
}

/* ---- Through the cache --------------------------------------------------------------------------------- */

static void take_step(const bench *b, kvant_cache *cache, kvant_sequence *sequence, uint32_t first,
                      uint32_t count, bool attend) {
    uint64_t *ids = calloc(count, sizeof *ids);
    for (uint32_t t = 0; t < count; t++) ids[t] = first + t;
    kvant_step_options step = {.struct_size = sizeof step, .count = count, .ids = ids};
    check(kvant_step_begin(sequence, &step, &diag));
    for (uint32_t layer = 0; layer < b->layers; layer++) {
        kvant_view keys = rows_at(b, layer, KVANT_SIDE_KEY, first, count),
                   values = rows_at(b, layer, KVANT_SIDE_VALUE, first, count);
        if (!attend) {
            check(kvant_step_put(sequence, layer, &keys, &values, &diag));
            continue;
        }
        kvant_view queries = view(b->queries, count, b->kv_heads * b->group, b->dim);
        kvant_mutable_view outputs = outputs_of(b, count);
        kvant_attention_options options = options_of();
        kvant_step_rows rows = {.struct_size = sizeof rows,
                                .sequence = sequence,
                                .keys = &keys,
                                .values = &values,
                                .queries = &queries,
                                .outputs = &outputs};
        check(kvant_step_attend(cache, layer, &rows, 1, &options, &diag));
    }
    check(kvant_step_commit(sequence, count, &diag));
    free(ids);
}

static double cache_round(const bench *b, kvant_cache *cache, kvant_sequence *sequence) {
    kvant_sequence *fork = NULL;
    check(kvant_sequence_fork(sequence, &fork, &diag)); /* so that every round begins alike */
    double start = now();
    for (uint32_t t = 0; t < BLOCK; t++) take_step(b, cache, fork, b->tokens + t, 1, true);
    double took = now() - start;
    kvant_sequence_free(fork);
    return took;
}

/* ---- Without it ---------------------------------------------------------------------------------------- */

typedef struct direct {
    kvant_attention **attention;
    unsigned char *extents; /* [layers][2][blocks], each of `room` bytes */
    size_t room;
    uint32_t blocks;
    kvant_reference *references; /* [layers][blocks] */
    void *scratch;
    size_t scratch_size;
} direct;

static void encode(const bench *b, direct *d, uint32_t layer, uint32_t block) {
    kvant_reference *r = &d->references[layer * d->blocks + block];
    *r = (kvant_reference){.first_position = (uint64_t)block * BLOCK,
                           .live_first = block == 0 ? SINKS : 0,
                           .live_count = block == 0 ? BLOCK - SINKS : BLOCK};
    for (uint32_t side = 0; side < 2; side++) {
        kvant_view rows = rows_at(b, layer, side, block * BLOCK, BLOCK);
        kvant_encode_report report = {.struct_size = sizeof report};
        unsigned char *extent = d->extents + ((2 * (size_t)layer + side) * d->blocks + block) * d->room;
        check(kvant_codec_encode(kvant_attention_codec(d->attention[layer], side), &rows, r->first_position,
                                 NULL, extent, d->room, d->scratch, &report, &diag));
        *(side == KVANT_SIDE_KEY ? &r->key : &r->value) = extent;
        *(side == KVANT_SIDE_KEY ? &r->key_size : &r->value_size) = report.size;
    }
}

static direct make_direct(const bench *b, const kvant_plan *plan) {
    direct d = {.blocks = (b->tokens + BLOCK) / BLOCK};
    d.attention = allocate(b->layers * sizeof(void *));
    for (uint32_t layer = 0; layer < b->layers; layer++) {
        check(kvant_attention_open(plan, layer, &d.attention[layer], &diag));
        for (uint32_t side = 0; side < 2; side++) {
            size_t room = kvant_codec_extent_max(kvant_attention_codec(d.attention[layer], side));
            size_t scratch = kvant_codec_scratch_bytes(kvant_attention_codec(d.attention[layer], side));
            if (room > d.room) d.room = (room + 63) / 64 * 64;
            if (scratch > d.scratch_size) d.scratch_size = scratch;
        }
        size_t scratch = kvant_attention_scratch_bytes(d.attention[layer], 1, 1);
        if (scratch > d.scratch_size) d.scratch_size = scratch;
    }
    d.scratch = allocate(d.scratch_size);
    d.extents = allocate(2 * (size_t)b->layers * d.blocks * d.room);
    d.references = allocate((size_t)b->layers * d.blocks * sizeof *d.references);
    for (uint32_t layer = 0; layer < b->layers; layer++)
        for (uint32_t block = 0; block < (b->tokens - RECENT) / BLOCK; block++) encode(b, &d, layer, block);
    return d;
}

static double direct_round(const bench *b, direct *d) {
    kvant_view queries = view(b->queries, 1, b->kv_heads * b->group, b->dim);
    kvant_mutable_view outputs = outputs_of(b, 1);
    kvant_attention_options options = options_of();
    double start = now();
    for (uint32_t t = 0; t < BLOCK; t++) {
        uint32_t position = b->tokens + t, sealed = (position + 1 - RECENT) / BLOCK;
        bool seals = (position + 1 - RECENT) % BLOCK == 0;
        kvant_token_range range = {0, position + 1};
        for (uint32_t layer = 0; layer < b->layers; layer++) {
            if (seals) encode(b, d, layer, sealed - 1);
            kvant_view rows[4] = {rows_at(b, layer, 0, 0, SINKS), rows_at(b, layer, 1, 0, SINKS),
                                  rows_at(b, layer, 0, sealed * BLOCK, position + 1 - sealed * BLOCK),
                                  rows_at(b, layer, 1, sealed * BLOCK, position + 1 - sealed * BLOCK)};
            kvant_raw_run runs[2] = {{&rows[0], &rows[1], 0}, {&rows[2], &rows[3], (uint64_t)sealed * BLOCK}};
            kvant_attention_sequence s = {.struct_size = sizeof s,
                                          .reference_count = sealed,
                                          .run_count = 2,
                                          .references = d->references + layer * d->blocks,
                                          .runs = runs,
                                          .queries = &queries,
                                          .ranges = &range,
                                          .outputs = &outputs};
            check(kvant_attention_run(d->attention[layer], &s, 1, &options, d->scratch, d->scratch_size,
                                      &diag));
        }
    }
    return now() - start;
}

/* ---- One pipeline -------------------------------------------------------------------------------------- */

static kvant_plan *resolve(const bench *b, const char *name) {
    char text[512], key[64];
    const char *value = strchr(name, ':');
    snprintf(key, sizeof key, "%.*s", value != NULL ? (int)(value - name) : (int)strlen(name), name);
    snprintf(text, sizeof text,
             "[pipeline]\nblock_tokens = %d\nrecent = %d\nsinks = %d\n[layers]\nkey = %s\nvalue = %s\n",
             BLOCK, RECENT, SINKS, key, value != NULL ? value + 1 : key);
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    check(kvant_pipeline_parse(text, strlen(text), name, NULL, &pipeline, &diag));
    kvant_layer_geometry *layers = allocate(b->layers * sizeof *layers);
    for (uint32_t i = 0; i < b->layers; i++)
        layers[i] = (kvant_layer_geometry){.struct_size = sizeof *layers,
                                           .kv_heads = b->kv_heads,
                                           .q_heads = b->kv_heads * b->group,
                                           .total_kv_heads = b->kv_heads,
                                           .key_dim = b->dim,
                                           .value_dim = b->dim};
    kvant_geometry geometry = {.struct_size = sizeof geometry,
                               .layer_count = b->layers,
                               .dtype = KVANT_DTYPE_F32,
                               .layers = layers,
                               .model = "bench"};
    check(kvant_pipeline_resolve(pipeline, &geometry, &plan, &diag));
    kvant_pipeline_free(pipeline);
    free(layers);
    return plan;
}

static void run(const bench *b, const char *name) {
    kvant_plan *plan = resolve(b, name);
    kvant_cache_options options = {.struct_size = sizeof options, .bytes = UINT64_C(4) << 30};
    kvant_cache *cache = NULL;
    kvant_sequence *sequence = NULL;
    check(kvant_cache_open(plan, &options, &cache, &diag));
    check(kvant_sequence_create(cache, NULL, 0, &sequence, &diag));
    take_step(b, cache, sequence, 0, b->tokens, false);
    direct d = make_direct(b, plan);
    double best[2] = {1e30, 1e30};
    for (uint32_t round = 0; round < b->rounds; round++) {
        double cached = cache_round(b, cache, sequence), bare = direct_round(b, &d);
        if (cached < best[0]) best[0] = cached;
        if (bare < best[1]) best[1] = bare;
    }
    printf("| %s | %.0f | %.0f | %+.1f %% |\n", name, best[0] / BLOCK, best[1] / BLOCK,
           100 * (best[0] / best[1] - 1));
    for (uint32_t layer = 0; layer < b->layers; layer++) kvant_attention_close(d.attention[layer]);
    free(d.attention);
    free(d.extents);
    free(d.references);
    free(d.scratch);
    kvant_sequence_free(sequence);
    kvant_cache_close(cache);
    kvant_plan_free(plan);
}

static uint32_t number(const char *text) {
    long n = strtol(text, NULL, 10);
    if (n < 1 || n > 1000000) exit(2);
    return (uint32_t)n;
}

int main(int argc, char **argv) {
    bench b = {.tokens = 4096, .layers = 30, .kv_heads = 3, .group = 3, .dim = 64, .rounds = 5};
    const struct {
        const char *name;
        uint32_t *value;
    } flags[] = {{"--tokens", &b.tokens}, {"--layers", &b.layers}, {"--kv-heads", &b.kv_heads},
                 {"--group", &b.group},   {"--dim", &b.dim},       {"--rounds", &b.rounds}};
    int first = 1;
    for (; first + 1 < argc && argv[first][0] == '-'; first += 2) {
        size_t i = 0;
        while (i < sizeof flags / sizeof *flags && strcmp(flags[i].name, argv[first]) != 0) i++;
        if (i == sizeof flags / sizeof *flags) exit(2);
        *flags[i].value = number(argv[first + 1]);
    }
    b.tokens = b.tokens / BLOCK * BLOCK;
    size_t elements = (size_t)b.layers * (b.tokens + BLOCK) * b.kv_heads * b.dim;
    for (uint32_t side = 0; side < 2; side++) {
        b.rows[side] = allocate(elements * sizeof(float));
        for (size_t i = 0; i < elements; i++)
            b.rows[side][i] = (float)((i * 2654435761u >> 8) % 2000) / 1000.0f - 0.7f;
    }
    size_t outputs = (size_t)b.kv_heads * b.group * b.dim;
    b.queries = allocate(outputs * sizeof(float));
    b.outputs = allocate(outputs * sizeof(float));
    for (size_t i = 0; i < outputs; i++) b.queries[i] = (float)(i % 17) / 17.0f - 0.4f;
    printf("| pipeline | cache, us a step | work alone, us | bookkeeping |\n|---|---|---|---|\n");
    for (int i = first; i < argc; i++) run(&b, argv[i]);
    if (first == argc) run(&b, "kivi");
    for (uint32_t side = 0; side < 2; side++) free(b.rows[side]);
    free(b.queries);
    free(b.outputs);
    return 0;
}
