/* See attend_bed.h. */
#include "support/attend_bed.h"

#include "support/floor.h"
#include "support/test.h"

#include "data/blocks.h"
#include "pipeline/plan.h"

#include <kvant/kit/rope.h>
#include <kvant/kit/view.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

double bed_worst;

static void *room(size_t count, size_t size) {
    void *memory = aligned_alloc(4096, (count * size + 4096) / 4096 * 4096);
    assert_non_null(memory);
    memset(memory, 0xff, count * size); /* NaN */
    return memory;
}

uint32_t bed_dim(const bed *b, uint32_t side) {
    return side == KVANT_SIDE_KEY ? b->wish.key_dim : b->wish.value_dim;
}

size_t bed_extent_stride(const bed *b, uint32_t side) {
    return (kvant_codec_extent_max(kvant_attention_codec(b->attention, side)) + 4095) / 4096 * 4096;
}

/* ---- Open ---------------------------------------------------------------------------------------------- */

static bed_wish complete(const bed_wish *wish) {
    bed_wish w = *wish;
    if (w.key == NULL) w.key = "raw";
    if (w.value == NULL) w.value = "raw";
    if (w.head == NULL) w.head = "";
    if (w.dtype == 0) w.dtype = KVANT_DTYPE_F16;
    if (w.kv_heads == 0) w.kv_heads = 2;
    if (w.group == 0) w.group = 3;
    if (w.key_dim == 0) w.key_dim = 64;
    if (w.value_dim == 0) w.value_dim = 32;
    if (w.block_tokens == 0) w.block_tokens = 64;
    return w;
}

/* "plugin a=1 b=2" becomes a section of that name, which `layer` then names; a mere name stays. */
static void put_codec(const char *wish, const char *name, char sections[512], char layer[64]) {
    const char *space = strchr(wish, ' ');
    size_t used = strlen(sections);
    (void)snprintf(layer, 64, "%s", space != NULL ? name : wish);
    if (space == NULL) return;
    (void)snprintf(sections + used, 512 - used, "[codec %s]\nplugin=%.*s%s\n", name, (int)(space - wish),
                   wish, space);
    for (char *at = sections + used + strlen("[codec ") + strlen(name) + 2; *at != '\0'; at++)
        if (*at == ' ' && at[1] >= 'a' && at[1] <= 'z') *at = '\n';
}

static kvant_status resolve(const bed_wish *w, kvant_plan **plan, kvant_diag *diag) {
    char text[2048], sections[512] = "", key[64], value[64];
    kvant_pipeline *pipeline = NULL;
    kvant_layer_geometry layer = {.struct_size = sizeof layer,
                                  .kv_heads = w->kv_heads,
                                  .q_heads = w->kv_heads * w->group,
                                  .total_kv_heads = w->kv_heads,
                                  .key_dim = w->key_dim,
                                  .value_dim = w->value_dim,
                                  .rope = w->rope};
    kvant_rope none = {.struct_size = sizeof none};
    if (layer.rope == NULL) layer.rope = &none; /* said: they do not turn */
    kvant_geometry geometry = {.struct_size = sizeof geometry,
                               .layer_count = 1,
                               .dtype = w->dtype,
                               .keys = w->keys,
                               .layers = &layer};
    put_codec(w->key, "of_keys", sections, key);
    put_codec(w->value, "of_values", sections, value);
    (void)snprintf(text, sizeof text, "[pipeline]\nblock_tokens = %u\n%s\n%s[layers]\nkey = %s\nvalue = %s\n",
                   w->block_tokens, w->head, sections, key, value);
    kvant_status status = kvant_pipeline_parse(text, strlen(text), "bed.ini", NULL, &pipeline, diag);
    if (status == KVANT_OK) status = kvant_pipeline_resolve(pipeline, &geometry, plan, diag);
    kvant_pipeline_free(pipeline);
    return status;
}

/* Far from zero, one loud channel, one constant, slow drift along tokens. */
static void make_rows(bed *b, uint32_t side) {
    uint32_t dim = bed_dim(b, side), width = kvant_element_bytes(b->wish.dtype);
    size_t rows = (size_t)b->wish.tokens * b->wish.kv_heads, count = rows * dim;
    uint64_t seed = b->wish.seed + 77 * side + 1;
    b->raw[side] = room(count + 1, width);
    b->exact[side] = room(count + 1, sizeof(float));
    for (size_t i = 0; i < count; i++) {
        uint32_t c = (uint32_t)(i % dim);
        double t = (double)(i / dim / b->wish.kv_heads), x = 0.7 * kvant_test_normal(&seed) + sin(t / 50 + c);
        if (c == 1) x *= 6;
        if (c == 2) x = 1.25;
        kvant_store_element(b->raw[side] + i * width, b->wish.dtype, (float)x);
    }
}

static void make_exact(bed *b, uint32_t side) {
    uint32_t width = kvant_element_bytes(b->wish.dtype);
    size_t count = (size_t)b->wish.tokens * b->wish.kv_heads * bed_dim(b, side);
    for (size_t i = 0; i < count; i++)
        b->exact[side][i] = kvant_load_element(b->raw[side] + i * width, b->wish.dtype);
}

/* Rows that are as the caller has them, brought after RoPE. */
static void bring_after(const bed *b, float *rows, uint32_t tokens) {
    if (b->wish.rope == NULL || b->wish.keys == KVANT_KEYS_AFTER_ROPE) return;
    float *turns = room(b->wish.rope->rotary_dim + 1, sizeof *turns);
    for (uint32_t t = 0; t < tokens; t++) {
        kvant_rope_turns(b->wish.rope, b->wish.first_position + t, turns);
        for (uint32_t h = 0; h < b->wish.kv_heads; h++)
            kvant_rope_apply(b->wish.rope, turns,
                             rows + ((size_t)t * b->wish.kv_heads + h) * b->wish.key_dim);
    }
    free(turns);
}

static kvant_view rows_from(const bed *b, uint32_t side, uint32_t first, uint32_t tokens) {
    uint32_t dim = bed_dim(b, side);
    size_t row = (size_t)b->wish.kv_heads * dim * kvant_element_bytes(b->wish.dtype);
    return kvant_rows_view(b->raw[side] + first * row, b->wish.dtype, tokens, b->wish.kv_heads, dim);
}

static void encode_side(bed *b, uint32_t side) {
    const kvant_codec *codec = kvant_attention_codec(b->attention, side);
    size_t stride = bed_extent_stride(b, side), count = (size_t)b->wish.kv_heads * bed_dim(b, side);
    void *scratch = room(kvant_codec_scratch_bytes(codec) + 1, 1);
    for (uint32_t k = 0; k < b->blocks; k++) {
        uint32_t first = k * b->wish.block_tokens;
        kvant_view rows = rows_from(b, side, first, b->wish.block_tokens);
        kvant_encode_report report = {.struct_size = sizeof report};
        kvant_diag diag = {.struct_size = sizeof diag};
        kvant_mutable_view out = {.struct_size = sizeof out,
                                  .dtype = KVANT_DTYPE_F32,
                                  .data = b->decoded[side] + first * count,
                                  .tokens = b->wish.block_tokens,
                                  .heads = b->wish.kv_heads,
                                  .head_dim = bed_dim(b, side),
                                  .token_stride = (int64_t)(count * sizeof(float)),
                                  .head_stride = (int64_t)(bed_dim(b, side) * sizeof(float)),
                                  .channel_stride = sizeof(float)};
        unsigned char *extent = b->extents[side] + k * stride;
        if (kvant_codec_encode(codec, &rows, b->wish.first_position + first, NULL, extent, stride, scratch,
                               &report, &diag) != KVANT_OK ||
            kvant_codec_decode(codec, extent, report.size, b->wish.first_position + first, NULL, &out,
                               scratch, &diag) != KVANT_OK)
            fail_msg("%s", diag.message);
        b->sizes[side][k] = report.size;
    }
    free(scratch);
}

bed *bed_try_open(const bed_wish *wish, kvant_diag *diag) {
    bed *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->wish = complete(wish);
    kvant_status status = resolve(&b->wish, &b->plan, diag);
    if (status == KVANT_OK) {
        b->plan->entries[KVANT_SIDE_KEY].center = wish->center;
        status = kvant_attention_open(b->plan, 0, &b->attention, diag);
    }
    if (status != KVANT_OK) {
        if (status != KVANT_ERROR_MISSING && status != KVANT_ERROR_GEOMETRY &&
            status != KVANT_ERROR_UNSUPPORTED)
            fail_msg("%s", diag->message);
        bed_close(b);
        return NULL;
    }
    b->sinks = b->plan->sinks;
    b->blocks = b->wish.tokens / b->wish.block_tokens;
    for (uint32_t side = 0; side < 2; side++) {
        size_t tokens = (size_t)b->blocks * b->wish.block_tokens;
        b->extents[side] = room(b->blocks + 1, bed_extent_stride(b, side));
        b->sizes[side] = room(b->blocks + 1, sizeof(uint64_t));
        b->decoded[side] = room(tokens * b->wish.kv_heads * bed_dim(b, side) + 1, sizeof(float));
        make_rows(b, side);
    }
    bed_encode_again(b);
    return b;
}

void bed_encode_again(bed *b) {
    for (uint32_t side = 0; side < 2; side++) {
        make_exact(b, side);
        encode_side(b, side);
    }
    bring_after(b, b->exact[KVANT_SIDE_KEY], b->wish.tokens);
    bring_after(b, b->decoded[KVANT_SIDE_KEY], b->blocks * b->wish.block_tokens);
}

bed *bed_open(const bed_wish *wish) {
    kvant_diag diag = {.struct_size = sizeof diag};
    bed *b = bed_try_open(wish, &diag);
    if (b == NULL) fail_msg("%s", diag.message);
    return b;
}

void bed_close(bed *b) {
    if (b == NULL) return;
    kvant_attention_close(b->attention);
    kvant_plan_free(b->plan);
    for (uint32_t side = 0; side < 2; side++) {
        free(b->raw[side]);
        free(b->extents[side]);
        free(b->sizes[side]);
        free(b->exact[side]);
        free(b->decoded[side]);
    }
    free(b);
}

/* ---- Calls --------------------------------------------------------------------------------------------- */

void bed_call_add_run(const bed *b, bed_call *c, uint32_t first, uint32_t count) {
    uint32_t i = c->sequence.run_count++;
    assert_true(i < BED_RUNS);
    for (uint32_t side = 0; side < 2; side++) c->run_views[i][side] = rows_from(b, side, first, count);
    c->runs[i] = (kvant_raw_run){.keys = &c->run_views[i][KVANT_SIDE_KEY],
                                 .values = &c->run_views[i][KVANT_SIDE_VALUE],
                                 .first_position = b->wish.first_position + first};
}

static void add_references(const bed *b, bed_call *c, uint32_t coded) {
    uint32_t block = b->wish.block_tokens;
    assert_true(coded % block == 0 && coded / block <= b->blocks && coded / block <= BED_REFERENCES);
    for (uint32_t k = 0; k < coded / block; k++) {
        uint32_t live = k == 0 && b->wish.first_position == 0 ? b->sinks : 0;
        c->references[c->sequence.reference_count++] = (kvant_reference){
            .key = b->extents[KVANT_SIDE_KEY] + k * bed_extent_stride(b, KVANT_SIDE_KEY),
            .value = b->extents[KVANT_SIDE_VALUE] + k * bed_extent_stride(b, KVANT_SIDE_VALUE),
            .key_size = b->sizes[KVANT_SIDE_KEY][k],
            .value_size = b->sizes[KVANT_SIDE_VALUE][k],
            .first_position = b->wish.first_position + (uint64_t)k * block,
            .live_first = live,
            .live_count = block - live};
    }
}

static void add_rows(const bed *b, bed_call *c) {
    uint32_t q_heads = b->wish.kv_heads * b->wish.group;
    size_t queries = (size_t)c->rows * q_heads * b->wish.key_dim;
    size_t outputs = (size_t)c->rows * q_heads * b->wish.value_dim;
    uint64_t seed = b->wish.seed + 5 * c->tokens + c->rows + 1000;
    c->query_rows = room(queries + 1, sizeof(float));
    c->output_rows = room(outputs + 1, sizeof(float));
    c->log_sum_exp = room((size_t)c->rows * q_heads + 1, sizeof(float));
    c->ranges = room(c->rows + 1, sizeof *c->ranges);
    for (size_t i = 0; i < queries; i++) c->query_rows[i] = (float)kvant_test_normal(&seed);
    c->queries = kvant_rows_view(c->query_rows, KVANT_DTYPE_F32, c->rows, q_heads, b->wish.key_dim);
    c->outputs = (kvant_mutable_view){.struct_size = sizeof c->outputs,
                                      .dtype = KVANT_DTYPE_F32,
                                      .data = c->output_rows,
                                      .tokens = c->rows,
                                      .heads = q_heads,
                                      .head_dim = b->wish.value_dim,
                                      .token_stride = (int64_t)(4 * (size_t)q_heads * b->wish.value_dim),
                                      .head_stride = (int64_t)(4 * (size_t)b->wish.value_dim),
                                      .channel_stride = 4};
    for (uint32_t r = 0; r < c->rows; r++) {
        uint32_t hidden = c->rows - 1 - r, to = c->tokens > hidden ? c->tokens - hidden : 0;
        c->ranges[r] = (kvant_token_range){.from = 0, .to = b->wish.first_position + to};
    }
}

bed_call *bed_call_make(const bed *b, uint32_t tokens, uint32_t coded, uint32_t rows) {
    bed_call *c = calloc(1, sizeof *c);
    assert_non_null(c);
    c->tokens = tokens;
    c->rows = rows;
    add_references(b, c, coded);
    uint32_t sinks = b->wish.first_position == 0 ? b->sinks : 0;
    if (coded != 0 && sinks != 0) bed_call_add_run(b, c, 0, sinks);
    if (tokens > coded) bed_call_add_run(b, c, coded, tokens - coded);
    add_rows(b, c);
    c->sequence.struct_size = sizeof c->sequence;
    c->sequence.references = c->references;
    c->sequence.runs = c->runs;
    c->sequence.queries = &c->queries;
    c->sequence.ranges = c->ranges;
    c->sequence.outputs = &c->outputs;
    c->sequence.log_sum_exp = c->log_sum_exp;
    return c;
}

void bed_call_free(bed_call *c) {
    free(c->query_rows);
    free(c->output_rows);
    free(c->log_sum_exp);
    free(c->ranges);
    free(c);
}

kvant_attention_options bed_options(const bed *b) {
    return (kvant_attention_options){.struct_size = sizeof(kvant_attention_options),
                                     .threads = 1,
                                     .scale = (float)(1 / sqrt(b->wish.key_dim))};
}

kvant_status bed_try_run(const bed *b, bed_call *const *calls, uint32_t count,
                         const kvant_attention_options *options, kvant_diag *diag) {
    kvant_attention_sequence *sequences = calloc(count + 1, sizeof *sequences);
    uint32_t rows = 0;
    size_t heads = (size_t)b->wish.kv_heads * b->wish.group;
    for (uint32_t i = 0; i < count; i++) {
        sequences[i] = calls[i]->sequence;
        if (calls[i]->rows > rows) rows = calls[i]->rows;
        memset(calls[i]->output_rows, 0xff, calls[i]->rows * heads * b->wish.value_dim * sizeof(float));
        memset(calls[i]->log_sum_exp, 0xff, calls[i]->rows * heads * sizeof(float));
    }
    size_t size = kvant_attention_scratch_bytes(b->attention, options->threads, rows);
    unsigned char *memory, *scratch = floor_guarded(size, &memory);
    memset(scratch, 0xff, size);
    kvant_status status = kvant_attention_run(b->attention, sequences, count, options, scratch, size, diag);
    floor_check_guards(memory, size);
    free(memory);
    free(sequences);
    return status;
}

void bed_run(const bed *b, bed_call *const *calls, uint32_t count, const kvant_attention_options *options) {
    kvant_diag diag = {.struct_size = sizeof diag};
    if (bed_try_run(b, calls, count, options, &diag) != KVANT_OK) fail_msg("%s", diag.message);
}

/* ---- Double precision ---------------------------------------------------------------------------------- */

/* What one query row sees of one kv head. */
typedef struct seen {
    const float **keys, **values; /* [count] */
    bool *coded;
    uint32_t count;
} seen;

static void see(const bed *b, seen *s, const float *const rows[2], uint32_t token, uint32_t head,
                bool coded) {
    size_t row = (size_t)token * b->wish.kv_heads + head;
    s->keys[s->count] = rows[KVANT_SIDE_KEY] + row * b->wish.key_dim;
    s->values[s->count] = rows[KVANT_SIDE_VALUE] + row * b->wish.value_dim;
    s->coded[s->count++] = coded;
}

static void see_all(const bed *b, const bed_call *c, uint32_t row, uint32_t head, seen *s) {
    kvant_token_range range = c->ranges[row];
    const float *const decoded[2] = {b->decoded[0], b->decoded[1]}, *const exact[2] = {b->exact[0],
                                                                                       b->exact[1]};
    s->count = 0;
    for (uint32_t i = 0; i < c->sequence.reference_count; i++) {
        const kvant_reference *r = &c->references[i];
        for (uint32_t t = r->live_first; t < r->live_first + r->live_count; t++) {
            uint64_t position = r->first_position + t;
            if (position >= range.from && position < range.to)
                see(b, s, decoded, (uint32_t)(position - b->wish.first_position), head, true);
        }
    }
    for (uint32_t i = 0; i < c->sequence.run_count; i++)
        for (uint32_t t = 0; t < c->runs[i].keys->tokens; t++) {
            uint64_t position = c->runs[i].first_position + t;
            if (position >= range.from && position < range.to)
                see(b, s, exact, (uint32_t)(position - b->wish.first_position), head, false);
        }
}

/* What the host and the codecs may differ by. */
typedef struct allowed {
    double logit;  /* of a logit */
    double output; /* L2, of the output, besides what logits bring */
} allowed;

static double tolerance_of(const bed *b, uint32_t side) {
    kvant_attention_info info = {.struct_size = sizeof info};
    if (b->tolerance[side] > 0) return b->tolerance[side];
    assert_int_equal(kvant_attention_describe(b->attention, &info), KVANT_OK);
    bool codes = side == KVANT_SIDE_KEY ? info.keys_on_codes : info.values_on_codes;
    return codes ? kvant_codec_row(kvant_attention_codec(b->attention, side))->layout->attend_tolerance : 0;
}

typedef struct row_result {
    double *logits, *absolute; /* [count] */
    double *output;            /* [value_dim] */
    double log_sum_exp;
    allowed allowed;
} row_result;

static void attend_row(const bed *b, const seen *s, const float *query,
                       const kvant_attention_options *options, row_result *result) {
    double most = -INFINITY, sum = 0, largest = 0, spread = 0, values = 0;
    for (uint32_t t = 0; t < s->count; t++) {
        double x = 0, absolute = 0;
        for (uint32_t c = 0; c < b->wish.key_dim; c++) {
            double product = (double)options->scale * (double)query[c] * (double)s->keys[t][c];
            x += product;
            absolute += fabs(product);
        }
        result->logits[t] = options->soft_cap != 0 ? options->soft_cap * tanh(x / options->soft_cap) : x;
        most = fmax(most, result->logits[t]);
        largest = fmax(largest, absolute);
        if (s->coded[t]) spread += absolute * absolute;
    }
    for (uint32_t c = 0; c < b->wish.value_dim; c++) result->output[c] = 0;
    for (uint32_t t = 0; t < s->count; t++) sum += exp(result->logits[t] - most);
    double absolute = 0;
    for (uint32_t c = 0; c < b->wish.value_dim; c++) {
        double total = 0;
        for (uint32_t t = 0; t < s->count; t++) {
            double part = exp(result->logits[t] - most) / sum * (double)s->values[t][c];
            result->output[c] += part;
            total += fabs(part);
        }
        absolute += total * total;
    }
    for (uint32_t t = 0; t < s->count; t++) {
        double norm = 0;
        for (uint32_t c = 0; c < b->wish.value_dim; c++)
            norm += (double)s->values[t][c] * (double)s->values[t][c];
        values += exp(result->logits[t] - most) / sum * sqrt(norm);
    }
    result->log_sum_exp = s->count != 0 ? most + log(sum) : -INFINITY;
    result->allowed.logit = 5e-7 * (1 + largest) + tolerance_of(b, KVANT_SIDE_KEY) * sqrt(spread);
    /* Weights differ by that much of themselves, before and after they are divided by their sum. */
    result->allowed.output = 5e-7 * values + 2 * result->allowed.logit * values +
                             tolerance_of(b, KVANT_SIDE_VALUE) * sqrt(absolute);
}

static void assert_row(const bed *b, const bed_call *c, uint32_t row, uint32_t head, const row_result *want) {
    size_t at = (size_t)row * b->wish.kv_heads * b->wish.group + head;
    const float *got = c->output_rows + at * b->wish.value_dim;
    float log_sum_exp = c->log_sum_exp[at];
    double error = 0;
    if (want->log_sum_exp == -INFINITY) {
        if (log_sum_exp != -INFINITY)
            fail_msg("row %u, head %u sees nothing: %g", row, head, (double)log_sum_exp);
        for (uint32_t i = 0; i < b->wish.value_dim; i++) assert_true(got[i] == 0);
        return;
    }
    for (uint32_t i = 0; i < b->wish.value_dim; i++)
        error += ((double)got[i] - want->output[i]) * ((double)got[i] - want->output[i]);
    error = sqrt(error);
    double off = fabs((double)log_sum_exp - want->log_sum_exp);
    bed_worst = fmax(bed_worst, error / want->allowed.output);
    bed_worst = fmax(bed_worst, off / want->allowed.logit);
    if (!(error <= want->allowed.output) || !(off <= want->allowed.logit))
        fail_msg("%s, %s: %u tokens, row %u, head %u: output off by %g (allowed %g), log-sum-exp %g, not %g "
                 "(allowed %g)",
                 b->wish.key, b->wish.value, c->tokens, row, head, error, want->allowed.output,
                 (double)log_sum_exp, want->log_sum_exp, want->allowed.logit);
}

void bed_assert_right(const bed *b, const bed_call *c, const kvant_attention_options *options) {
    size_t most = (size_t)c->sequence.reference_count * b->wish.block_tokens + b->wish.tokens * BED_RUNS + 1;
    seen s = {.keys = room(most, sizeof *s.keys),
              .values = room(most, sizeof *s.values),
              .coded = room(most, sizeof *s.coded)};
    row_result want = {.logits = room(most, sizeof(double)),
                       .output = room(b->wish.value_dim, sizeof(double))};
    uint32_t q_heads = b->wish.kv_heads * b->wish.group;
    for (uint32_t row = 0; row < c->rows; row++)
        for (uint32_t head = 0; head < q_heads; head++) {
            float *query = room(b->wish.key_dim, sizeof *query);
            see_all(b, c, row, head / b->wish.group, &s);
            kvant_load_row(&c->queries, row, head, query);
            attend_row(b, &s, query, options, &want);
            assert_row(b, c, row, head, &want);
            free(query);
        }
    free(s.keys);
    free(s.values);
    free(s.coded);
    free(want.logits);
    free(want.output);
}

void bed_assert_same(const bed_call *a, const bed_call *b) {
    assert_int_equal(a->rows, b->rows);
    size_t heads = a->queries.heads;
    kvant_assert_bytes(a->log_sum_exp, b->log_sum_exp, a->rows * heads * sizeof(float));
    kvant_assert_bytes(a->output_rows, b->output_rows, a->rows * heads * a->outputs.head_dim * sizeof(float));
}
