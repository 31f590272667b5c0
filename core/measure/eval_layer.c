/* One layer of kvant_eval_run: see eval_run.h for what is measured and eval_layer.h for the border.
 *
 * Blocks are coded one at a time; of a block, a run of tokens is decoded at a time; of a run, a tile of at
 * most KVANT_DISTORTION_TILE tokens of one head is widened to double, measured, and handed to attention. Many
 * query rows are taken in pieces, each a pass over the layer of its own, so that nothing here grows with the
 * dump. On a device all blocks are encoded first, and it hands over decoded rows in the place of a codec. */
#include "measure/eval_layer.h"

#include "measure/eval_device.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/rope.h>
#include <kvant/kit/view.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

enum {
    TILE = KVANT_DISTORTION_TILE,
    RUN_BYTES = 2 << 20,       /* decoded rows of one side at most, if a tile of tokens does not need more */
    ATTENTION_BYTES = 4 << 20, /* query rows of one pass, if one row does not need more */
    EXACT = 0,
    CODED = 1
};

typedef struct side_work {
    bool present;
    kvant_view rows; /* the dump's tensor */
    const kvant_layout *layout;
    kvant_codec *codec; /* as all up to own_decoded NULL on a device */
    void *extent;
    size_t capacity;
    uint64_t size;        /* of the extent now in `extent` */
    float *own_decoded;   /* [run_tokens, heads, head_dim] */
    const float *decoded; /* the same, or the device's */
    double *tile[2];      /* EXACT, CODED: [TILE, head_dim] */
    kvant_eval_side *result;
} side_work;

typedef struct layer_work {
    const eval_job *job;
    uint32_t layer;
    const kvant_layer_geometry *geometry;
    side_work sides[2];
    uint32_t run_tokens;
    void *scratch;
    float *
        turns; /* [TILE, rotary_dim / 2, 2] where the dump's keys are before RoPE and attention is measured */
    kvant_distortion *attention; /* of this pass, or NULL */
    eval_device *device;         /* NULL = the CPU */
    attend_error *truth;         /* what the device's attention of this pass is held against, or NULL */
    bool first_pass;             /* the pass that measures quality, bytes and time */
} layer_work;

static const char *const side_names[2] = {"key", "value"};

/* ---- Sizes --------------------------------------------------------------------------------------------- */

static uint32_t run_tokens_of(const kvant_layer_geometry *g, uint32_t block_tokens) {
    uint32_t dim = g->key_dim > g->value_dim ? g->key_dim : g->value_dim;
    uint64_t token = (uint64_t)g->kv_heads * dim * sizeof(float);
    uint64_t tiles = RUN_BYTES / (token * TILE);
    uint64_t run = (tiles > 0 ? tiles : 1) * TILE;
    return run < block_tokens ? (uint32_t)run : block_tokens;
}

/* Of one query row of every head; on a device also what its attention is held against, and the row itself. */
static size_t query_row_bytes(const kvant_layer_geometry *g, bool on_device) {
    kvant_distortion_shape shape = {.q_heads = g->q_heads,
                                    .kv_heads = g->kv_heads,
                                    .key_dim = g->key_dim,
                                    .value_dim = g->value_dim,
                                    .rows = 1};
    size_t more = attend_error_bytes(&shape) + (size_t)g->q_heads * g->key_dim * sizeof(float);
    return kvant_distortion_bytes(&shape) + (on_device ? more : 0);
}

static uint32_t rows_of_a_pass(const kvant_layer_geometry *g, uint32_t query_tokens, bool on_device) {
    size_t rows = ATTENTION_BYTES / query_row_bytes(g, on_device);
    if (rows == 0) rows = 1;
    return rows < query_tokens ? (uint32_t)rows : query_tokens;
}

size_t eval_layer_bytes(const eval_job *job, uint32_t layer) {
    const kvant_layer_geometry *g = &kvant_dump_geometry(job->dump)->layers[layer];
    uint64_t run = run_tokens_of(g, job->info.block_tokens);
    uint64_t block = (uint64_t)job->info.block_tokens * g->kv_heads, total = 0, scratch = 0;
    for (uint32_t side = 0; side < 2; side++) {
        kvant_row row = {.struct_size = sizeof row};
        uint64_t dim = side == KVANT_SIDE_KEY ? g->key_dim : g->value_dim;
        if (kvant_plan_row(job->plan, layer, side, &row) != KVANT_OK) continue;
        total += row.layout->size_min + row.layout->size_step * row.layout->size_steps;
        total += run * g->kv_heads * dim * sizeof(float) + 2 * TILE * dim * sizeof(double);
        /* The codec floor may keep a block of rows that it changed besides what the codec asks for. */
        uint64_t needs = row.layout->scratch_bytes + block * dim * sizeof(float);
        if (needs > scratch) scratch = needs;
    }
    uint32_t queries = kvant_dump_describe(job->dump)->query_tokens;
    bool on_device = job->device != NULL;
    total += scratch + (uint64_t)rows_of_a_pass(g, queries, on_device) * query_row_bytes(g, on_device);
    if (on_device) total += 2 * (uint64_t)EVAL_DEVICE_BATCH;
    return total < SIZE_MAX ? (size_t)total : SIZE_MAX;
}

/* ---- Input that is not finite -------------------------------------------------------------------------- */

eval_bad eval_scan(const kvant_view *rows) {
    eval_bad bad = {0};
    for (uint32_t t = 0; t < rows->tokens; t++)
        for (uint32_t h = 0; h < rows->heads; h++) {
            const char *address = kvant_view_at(rows, t, h);
            for (uint32_t c = 0; c < rows->head_dim; c++) {
                float x = kvant_load_element(address + (int64_t)c * rows->channel_stride, rows->dtype);
                if (isfinite(x)) continue;
                if (bad.count++ == 0)
                    bad = (eval_bad){.count = 1, .token = t, .head = h, .channel = c, .value = x};
            }
        }
    return bad;
}

static kvant_status refuse(const layer_work *w, const char *tensor, const eval_bad *bad, const char *hint,
                           kvant_diag *diag) {
    kvant_status status =
        kvant_fail(diag, KVANT_ERROR_NOT_FINITE, "", "layers.%u.%s: %s at token %u, head %u, channel %u%s%s",
                   w->layer, tensor, isnan(bad->value) ? "NaN" : "an infinity", bad->token, bad->head,
                   bad->channel, bad->count > 1 ? " and elsewhere" : "", hint);
    if (diag != NULL)
        (void)snprintf(diag->file, sizeof diag->file, "%s", kvant_dump_describe(w->job->dump)->file);
    return status;
}

float eval_replacement(float x, uint32_t dtype) {
    static const float largest[] = {
        [KVANT_DTYPE_F32] = FLT_MAX, [KVANT_DTYPE_F16] = 65504.0f, [KVANT_DTYPE_BF16] = 0x1.fep127f};
    if (isfinite(x)) return x;
    if (isnan(x)) return 0;
    return x > 0 ? largest[dtype] : -largest[dtype];
}

/* ---- Coding -------------------------------------------------------------------------------------------- */

static double thread_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Puts layer, side and block in front of what the codec floor said. */
static kvant_status blame(const layer_work *w, uint32_t side, uint32_t block, kvant_status status,
                          kvant_diag *diag) {
    if (diag == NULL) return status;
    kvant_diag inner = *diag;
    kvant_fail(diag, status, inner.key, "layer %u %s, block %u: %.1900s", w->layer, side_names[side], block,
               inner.message[0] != '\0' ? inner.message : kvant_status_text(status));
    return status;
}

static kvant_status encode_block(layer_work *w, uint32_t side, uint32_t block, kvant_diag *diag) {
    side_work *s = &w->sides[side];
    const kvant_blocks *blocks = &w->job->blocks;
    const uint8_t *tags = kvant_dump_describe(w->job->dump)->tags;
    uint32_t first = block * blocks->block_tokens;
    kvant_view rows = kvant_blocks_view(blocks, &s->rows, block);
    kvant_encode_report report = {.struct_size = sizeof report};
    double start = thread_seconds();
    kvant_status status = kvant_codec_encode(s->codec, &rows, first, tags != NULL ? tags + first : NULL,
                                             s->extent, s->capacity, w->scratch, &report, diag);
    double seconds = thread_seconds() - start;
    if (status != KVANT_OK) return blame(w, side, block, status, diag);
    s->size = report.size;
    if (!w->first_pass) return KVANT_OK;
    s->result->encode_seconds += seconds;
    s->result->saturated += report.saturated;
    kvant_account_extent(&s->result->account, s->layout, report.size,
                         (uint64_t)rows.tokens * rows.heads * rows.head_dim);
    return KVANT_OK;
}

/* Tokens [first, first + count) of the block, which is the one that was encoded last. */
static kvant_status decode_run(layer_work *w, uint32_t side, uint32_t block, uint32_t first, uint32_t count,
                               kvant_diag *diag) {
    side_work *s = &w->sides[side];
    if (w->device != NULL) {
        double ignored = 0;
        return eval_device_decode(w->device, side, block, first, count, &s->decoded,
                                  w->first_pass ? &s->result->device_decode_seconds : &ignored, diag);
    }
    uint32_t heads = s->rows.heads, dim = s->rows.head_dim;
    int64_t element = sizeof(float);
    kvant_mutable_view rows = {.struct_size = sizeof rows,
                               .dtype = KVANT_DTYPE_F32,
                               .data = s->own_decoded,
                               .tokens = count,
                               .heads = heads,
                               .head_dim = dim,
                               .token_stride = element * heads * dim,
                               .head_stride = element * dim,
                               .channel_stride = element};
    kvant_range range = {.struct_size = sizeof range, .first_token = first};
    /* All ones is NaN: what a decoder leaves out cannot pass for a number. */
    memset(s->own_decoded, 0xff, (size_t)count * heads * dim * sizeof(float));
    double start = thread_seconds();
    kvant_status status =
        kvant_codec_decode(s->codec, s->extent, (size_t)s->size,
                           (uint64_t)block * w->job->blocks.block_tokens, &range, &rows, w->scratch, diag);
    double seconds = thread_seconds() - start;
    if (status != KVANT_OK) return blame(w, side, block, status, diag);
    if (w->first_pass) s->result->decode_seconds += seconds;
    return KVANT_OK;
}

/* ---- Measuring tiles ----------------------------------------------------------------------------------- */

/* Keys that a dump holds before RoPE, exact and decoded alike, meet queries that were turned. */
static void turn_rows(const layer_work *w, double *rows, uint32_t count, float *row) {
    const kvant_rope *rope = w->geometry->rope;
    uint32_t dim = w->geometry->key_dim;
    for (uint32_t t = 0; t < count; t++) {
        for (uint32_t c = 0; c < dim; c++) row[c] = (float)rows[(size_t)t * dim + c];
        kvant_rope_apply(rope, w->turns + (size_t)t * rope->rotary_dim, row);
        for (uint32_t c = 0; c < dim; c++) rows[(size_t)t * dim + c] = (double)row[c];
    }
}

/* Exact rows of tokens [first, first + count) of the dump. */
static void load_exact(const layer_work *w, uint32_t side, uint32_t head, uint32_t first, uint32_t count) {
    const side_work *s = &w->sides[side];
    const kvant_view *rows = &s->rows;
    bool clean = s->result->input_not_finite == 0;
    for (uint32_t t = 0; t < count; t++) {
        const char *address = kvant_view_at(rows, first + t, head);
        double *to = s->tile[EXACT] + (size_t)t * rows->head_dim;
        for (uint32_t c = 0; c < rows->head_dim; c++) {
            float x = kvant_load_element(address + (int64_t)c * rows->channel_stride, rows->dtype);
            to[c] = (double)(clean ? x : eval_replacement(x, rows->dtype));
        }
    }
}

/* Decoded rows of the run's tokens [offset, offset + count), and the dump's own at tokens before `sinks`,
 * which stay raw beside block 0. */
static void load_coded(const layer_work *w, uint32_t side, uint32_t head, uint32_t offset, uint32_t count,
                       uint32_t raw) {
    const side_work *s = &w->sides[side];
    uint32_t dim = s->rows.head_dim;
    for (uint32_t t = 0; t < count; t++) {
        double *to = s->tile[CODED] + (size_t)t * dim;
        const float *from = s->decoded + ((size_t)(offset + t) * s->rows.heads + head) * dim;
        const double *exact = s->tile[EXACT] + (size_t)t * dim;
        for (uint32_t c = 0; c < dim; c++) to[c] = t < raw ? exact[c] : (double)from[c];
    }
}

/* A tile of one head: `offset` of its first token in the decoded run, or UINT32_MAX for raw tokens.
 * `scratch_row` is room for one key. */
static void measure_tile(layer_work *w, uint32_t head, uint32_t first, uint32_t offset, uint32_t count,
                         float *scratch_row) {
    const kvant_blocks *blocks = &w->job->blocks;
    bool coded = offset != UINT32_MAX;
    uint32_t raw = first < blocks->sinks ? blocks->sinks - first : 0;
    if (raw > count) raw = count;
    for (uint32_t side = 0; side < 2; side++) {
        side_work *s = &w->sides[side];
        if (!s->present) continue;
        load_exact(w, side, head, first, count);
        if (!coded) continue;
        load_coded(w, side, head, offset, count, raw);
        size_t dim = s->rows.head_dim;
        for (uint32_t t = raw; t < count && w->first_pass; t++)
            kvant_quality_add(&s->result->quality, s->tile[EXACT] + t * dim, s->tile[CODED] + t * dim,
                              (uint32_t)dim);
    }
    if (w->attention == NULL) return;
    const side_work *key = &w->sides[KVANT_SIDE_KEY], *value = &w->sides[KVANT_SIDE_VALUE];
    if (w->turns != NULL) turn_rows(w, key->tile[EXACT], count, scratch_row);
    if (w->turns != NULL && coded) turn_rows(w, key->tile[CODED], count, scratch_row);
    uint64_t block_end = ((uint64_t)first / blocks->block_tokens + 1) * blocks->block_tokens;
    uint32_t recent = w->job->info.recent > 0 ? w->job->info.recent : 1;
    kvant_distortion_tile tile = {.kv_head = head,
                                  .tokens = count,
                                  .first_position = first,
                                  .coded_from = coded ? block_end - 1 + recent : UINT64_MAX,
                                  .keys = key->tile[EXACT],
                                  .coded_keys = key->tile[coded ? CODED : EXACT]};
    if (value->present) {
        tile.values = value->tile[EXACT];
        tile.coded_values = value->tile[coded ? CODED : EXACT];
    }
    kvant_distortion_add(w->attention, &tile);
    if (w->truth != NULL) attend_error_add(w->truth, &tile, coded ? raw : count);
}

/* Tokens [first, first + count) of the dump; `offset` as above. */
static void measure_run(layer_work *w, uint32_t first, uint32_t offset, uint32_t count, float *scratch_row) {
    for (uint32_t done = 0; done < count; done += TILE) {
        uint32_t tokens = count - done < TILE ? count - done : TILE;
        if (w->turns != NULL && w->attention != NULL)
            for (uint32_t t = 0; t < tokens; t++)
                kvant_rope_turns(w->geometry->rope, (uint64_t)first + done + t,
                                 w->turns + (size_t)t * w->geometry->rope->rotary_dim);
        for (uint32_t head = 0; head < w->geometry->kv_heads; head++)
            measure_tile(w, head, first + done, offset == UINT32_MAX ? offset : offset + done, tokens,
                         scratch_row);
    }
}

static kvant_status measure_blocks(layer_work *w, float *scratch_row, kvant_diag *diag) {
    const kvant_blocks *blocks = &w->job->blocks;
    for (uint32_t block = 0; block < blocks->count; block++) {
        for (uint32_t side = 0; side < 2; side++) {
            if (!w->sides[side].present || w->device != NULL) continue;
            kvant_status status = encode_block(w, side, block, diag);
            if (status != KVANT_OK) return status;
        }
        for (uint32_t run = 0; run < blocks->block_tokens; run += w->run_tokens) {
            uint32_t left = blocks->block_tokens - run, count = left < w->run_tokens ? left : w->run_tokens;
            for (uint32_t side = 0; side < 2; side++) {
                if (!w->sides[side].present) continue;
                kvant_status status = decode_run(w, side, block, run, count, diag);
                if (status != KVANT_OK) return status;
            }
            measure_run(w, block * blocks->block_tokens + run, 0, count, scratch_row);
        }
    }
    measure_run(w, blocks->tail_first, UINT32_MAX, blocks->tail_tokens, scratch_row);
    return KVANT_OK;
}

/* ---- A layer ------------------------------------------------------------------------------------------- */

/* Aligned and not zeroed; at least one byte, so that NULL means one thing. */
static void *aligned(size_t alignment, size_t size) {
    void *memory = NULL;
    if (alignment < 64) alignment = 64;
    return posix_memalign(&memory, alignment, size > 0 ? size : 1) == 0 ? memory : NULL;
}

static kvant_status open_codec(layer_work *w, uint32_t side, kvant_diag *diag) {
    side_work *s = &w->sides[side];
    kvant_status status = kvant_codec_open(w->job->plan, w->layer, side, &s->codec, diag);
    if (status != KVANT_OK) return status;
    s->capacity = kvant_codec_extent_max(s->codec);
    s->extent = aligned(s->layout->alignment, s->capacity);
    s->own_decoded = aligned(64, (size_t)w->run_tokens * s->rows.heads * s->rows.head_dim * sizeof(float));
    s->decoded = s->own_decoded;
    return s->extent != NULL && s->own_decoded != NULL
               ? KVANT_OK
               : kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no memory for a block of layer %u", w->layer);
}

static kvant_status open_side(layer_work *w, uint32_t side, kvant_eval_side *result, kvant_diag *diag) {
    side_work *s = &w->sides[side];
    s->result = result;
    s->present = kvant_dump_view(w->job->dump, w->layer, side, &s->rows);
    if (!s->present) return KVANT_OK;
    result->measured = true;
    eval_bad bad = eval_scan(&s->rows);
    if (bad.count > 0 && w->job->info.on_nonfinite != KVANT_ON_NONFINITE_SATURATE)
        return refuse(w, side_names[side], &bad,
                      " (a pipeline with on_nonfinite = saturate would replace it)", diag);
    result->input_not_finite = bad.count;

    kvant_row row = {.struct_size = sizeof row};
    kvant_status status = kvant_plan_row(w->job->plan, w->layer, side, &row);
    if (status != KVANT_OK) return kvant_fail(diag, status, "", "the plan lacks layer %u", w->layer);
    s->layout = row.layout;
    (void)snprintf(result->codec, sizeof result->codec, "%s", row.plugin->descriptor->name);
    if (row.replaced) (void)snprintf(result->asked, sizeof result->asked, "%s", row.codec);
    for (uint32_t i = 0; i < 2; i++)
        s->tile[i] = aligned(64, TILE * (size_t)s->rows.head_dim * sizeof(double));
    if (s->tile[0] == NULL || s->tile[1] == NULL)
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no memory for a tile of layer %u", w->layer);
    uint32_t raw = w->job->blocks.sinks + w->job->blocks.tail_tokens;
    kvant_account_raw(&result->account, (uint64_t)raw * s->rows.heads * s->rows.head_dim,
                      kvant_element_bytes(s->rows.dtype));
    if (w->device == NULL) return open_codec(w, side, diag);
    result->jit = eval_device_describe(w->device).jit[side] != 0;
    return eval_device_encode(w->device, side, &s->rows, bad.count > 0, result, diag);
}

static void close_layer(layer_work *w) {
    for (uint32_t side = 0; side < 2; side++) {
        side_work *s = &w->sides[side];
        if (s->codec != NULL) kvant_codec_close(s->codec);
        free(s->extent);
        free(s->own_decoded);
        free(s->tile[EXACT]);
        free(s->tile[CODED]);
    }
    kvant_distortion_free(w->attention);
    attend_error_free(w->truth);
    eval_device_close(w->device);
    free(w->scratch);
    free(w->turns);
}

/* What a device's attention came to, over all passes. */
typedef struct device_pass {
    attend_error_sums sums;
    double seconds;
} device_pass;

/* A pass on a device: its own attention besides, for the same query rows. */
static kvant_status measure_on_device(layer_work *w, const kvant_distortion_shape *shape,
                                      const kvant_view *queries, uint32_t first, float *scratch_row,
                                      device_pass *pass, kvant_diag *diag) {
    attend_allowance allowance = eval_device_allowance(w->device);
    size_t elements = (size_t)queries->tokens * queries->heads * queries->head_dim;
    void *memory = aligned(64, elements * sizeof(float));
    kvant_status status = KVANT_OK;
    if (memory != NULL) {
        kvant_view rounded = eval_device_round_queries(w->device, queries, memory);
        w->truth = attend_error_new(shape, &rounded, &allowance);
        if (w->truth != NULL) status = measure_blocks(w, scratch_row, diag);
        if (w->truth != NULL && status == KVANT_OK)
            status =
                eval_device_attend(w->device, &rounded, first, w->truth, &pass->sums, &pass->seconds, diag);
    }
    if (memory == NULL || w->truth == NULL)
        status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no memory for the queries of layer %u", w->layer);
    attend_error_free(w->truth);
    w->truth = NULL;
    free(memory);
    return status;
}

static kvant_eval_device_attention device_attention_of(const layer_work *w, const device_pass *pass) {
    return (kvant_eval_device_attention){.attends = eval_device_describe(w->device).attends,
                                         .rms = sqrt(pass->sums.squares / (double)pass->sums.rows),
                                         .largest = pass->sums.largest,
                                         .log_sum_exp = pass->sums.log_sum_exp,
                                         .of_allowed = pass->sums.of_allowed,
                                         .seconds = pass->seconds};
}

/* All query rows, a piece at a time. */
static kvant_status measure_attention(layer_work *w, const kvant_view *queries, kvant_eval_layer *result,
                                      float *scratch_row, kvant_diag *diag) {
    const kvant_dump_info *info = kvant_dump_describe(w->job->dump);
    const kvant_layer_geometry *g = w->geometry;
    uint32_t rows = rows_of_a_pass(g, queries->tokens, w->device != NULL);
    device_pass device = {.seconds = 0};
    for (uint32_t first = 0; first < queries->tokens; first += rows) {
        uint32_t count = queries->tokens - first < rows ? queries->tokens - first : rows;
        kvant_distortion_shape shape = {.q_heads = g->q_heads,
                                        .kv_heads = g->kv_heads,
                                        .key_dim = g->key_dim,
                                        .value_dim = w->sides[KVANT_SIDE_VALUE].present ? g->value_dim : 0,
                                        .window = g->window,
                                        .rows = count,
                                        .query_start = info->query_start + first,
                                        .scale = info->scale};
        kvant_view piece = kvant_view_slice(queries, first, count);
        w->attention = kvant_distortion_new(&shape, &piece);
        if (w->attention == NULL)
            return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no memory for the queries of layer %u",
                              w->layer);
        w->first_pass = first == 0;
        kvant_status status = w->device != NULL && shape.value_dim > 0
                                  ? measure_on_device(w, &shape, &piece, first, scratch_row, &device, diag)
                                  : measure_blocks(w, scratch_row, diag);
        if (status != KVANT_OK) return status;
        kvant_distortion_finish(w->attention, result->heads);
        kvant_distortion_free(w->attention);
        w->attention = NULL;
    }
    result->attention = kvant_distortion_errors(result->heads, g->q_heads);
    if (device.sums.rows > 0) result->device = device_attention_of(w, &device);
    return KVANT_OK;
}

static kvant_status prepare(layer_work *w, const kvant_view *queries, kvant_eval_layer *result,
                            float **scratch_row, kvant_diag *diag) {
    const kvant_geometry *model = kvant_dump_geometry(w->job->dump);
    const kvant_rope *rope = w->geometry->rope;
    size_t scratch = 0;
    if (w->job->device != NULL) {
        bool attends = queries != NULL && kvant_dump_describe(w->job->dump)->has_values;
        kvant_status status = eval_device_open(w->job, w->layer, w->run_tokens, attends, &w->device, diag);
        if (status != KVANT_OK) return status;
    }
    for (uint32_t side = 0; side < 2; side++) {
        kvant_status status = open_side(w, side, &result->sides[side], diag);
        if (status != KVANT_OK) return status;
        if (w->sides[side].codec == NULL) continue;
        size_t needs = kvant_codec_scratch_bytes(w->sides[side].codec);
        if (needs > scratch) scratch = needs;
    }
    w->scratch = aligned(64, scratch);
    *scratch_row = aligned(64, w->geometry->key_dim * sizeof(float));
    bool failed = w->scratch == NULL || *scratch_row == NULL;
    if (queries != NULL) {
        eval_bad bad = eval_scan(queries);
        if (bad.count > 0) return refuse(w, "query", &bad, "", diag);
        result->heads = calloc(w->geometry->q_heads, sizeof *result->heads);
        failed = failed || result->heads == NULL;
        if (model->keys == KVANT_KEYS_BEFORE_ROPE && rope != NULL && rope->style != KVANT_ROPE_NONE) {
            w->turns = aligned(64, TILE * (size_t)rope->rotary_dim * sizeof(float));
            failed = failed || w->turns == NULL;
        }
    }
    return failed ? kvant_fail(diag, KVANT_ERROR_MEMORY, "", "no memory for layer %u", w->layer) : KVANT_OK;
}

kvant_status eval_layer(const eval_job *job, uint32_t layer, kvant_eval_layer *result, kvant_diag *diag) {
    const kvant_layer_geometry *g = &kvant_dump_geometry(job->dump)->layers[layer];
    layer_work w = {.job = job, .layer = layer, .geometry = g, .first_pass = true};
    w.run_tokens = run_tokens_of(g, job->blocks.block_tokens);
    float *scratch_row = NULL;
    kvant_view queries, keys;
    bool attends = kvant_dump_view(job->dump, layer, KVANT_DUMP_QUERY, &queries) &&
                   kvant_dump_view(job->dump, layer, KVANT_DUMP_KEY, &keys);
    *result = (kvant_eval_layer){.attention = {NAN, NAN, NAN, NAN, NAN, NAN}, .q_heads = g->q_heads};
    result->device.rms = result->device.largest = result->device.log_sum_exp = NAN;
    kvant_status status = prepare(&w, attends ? &queries : NULL, result, &scratch_row, diag);
    if (status == KVANT_OK)
        status = attends ? measure_attention(&w, &queries, result, scratch_row, diag)
                         : measure_blocks(&w, scratch_row, diag);
    free(scratch_row);
    close_layer(&w);
    return status;
}
