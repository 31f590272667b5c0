/* See cache_rig.h. */
#include "support/cache_rig.h"

#include "support/test.h"

#include "pipeline/plan.h"

#include <kvant/kit/rope.h>
#include <kvant/kit/view.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

kvant_diag rig_diag = {.struct_size = sizeof rig_diag};

const char rig_kivi[] = "[pipeline]\nblock_tokens = 32\nsinks = 3\nrecent = 20\n"
                        "[codec k]\nplugin = kivi\nbits = 2\ngroup = 32\n"
                        "[codec v]\nplugin = kivi\nbits = 2\ngroup = 8\n"
                        "[layers]\nkey = k\nvalue = v\n";

void rig_ok_at(kvant_status status, const char *call, const char *file, int line) {
    if (status == KVANT_OK) return;
    print_error("%s: %d, %s\n", call, (int)status, rig_diag.message);
    _fail(file, line);
}

void rig_refused_at(kvant_status status, kvant_status want, const char *words, const char *call,
                    const char *file, int line) {
    if (status == want && strstr(rig_diag.message, words) != NULL) return;
    print_error("%s: %d, \"%s\"; expected %d and \"%s\"\n", call, (int)status, rig_diag.message, (int)want,
                words);
    _fail(file, line);
}

/* NaN of every float type. */
static void *poisoned(size_t size) {
    void *memory = aligned_alloc(64, (size + 64) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0xff, (size + 64) / 64 * 64);
    return memory;
}

/* ---- Open ---------------------------------------------------------------------------------------------- */

static void take_geometry(rig *r, const rig_wish *wish) {
    static const kvant_layer_geometry unlike[2] = {{.struct_size = sizeof unlike[0],
                                                    .kv_heads = 2,
                                                    .q_heads = 6,
                                                    .total_kv_heads = 2,
                                                    .key_dim = 32,
                                                    .value_dim = 16},
                                                   {.struct_size = sizeof unlike[0],
                                                    .kv_heads = 1,
                                                    .q_heads = 2,
                                                    .total_kv_heads = 1,
                                                    .key_dim = 24,
                                                    .value_dim = 40}};
    uint32_t count = wish->layers != NULL ? wish->layer_count : 2;
    assert_true(count <= RIG_LAYERS_MAX);
    memcpy(r->layers, wish->layers != NULL ? wish->layers : unlike, count * sizeof r->layers[0]);
    const char *model = wish->model == NULL ? "rig/model@1" : wish->model;
    r->geometry = (kvant_geometry){.struct_size = sizeof r->geometry,
                                   .layer_count = count,
                                   .dtype = wish->dtype != 0 ? wish->dtype : KVANT_DTYPE_F16,
                                   .keys = wish->keys,
                                   .layers = r->layers,
                                   .model = model[0] != '\0' ? model : NULL};
}

static kvant_plan *resolve(rig *r, const rig_wish *wish) {
    const char *text = wish->text != NULL ? wish->text : rig_kivi;
    kvant_pipeline *pipeline = NULL;
    kvant_plan *plan = NULL;
    take_geometry(r, wish);
    rig_ok(kvant_pipeline_parse(text, strlen(text), "rig.ini", wish->directory, &pipeline, &rig_diag));
    rig_ok(kvant_pipeline_resolve(pipeline, &r->geometry, &plan, &rig_diag));
    kvant_pipeline_free(pipeline);
    if (wish->center != NULL) plan->entries[KVANT_SIDE_KEY].center = wish->center;
    return plan;
}

kvant_plan *rig_plan(const rig_wish *wish) {
    rig r;
    return resolve(&r, wish);
}

rig *rig_open(const rig_wish *wish) {
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->wish = *wish;
    r->plan = resolve(r, wish);
    kvant_plan_info info = {.struct_size = sizeof info};
    rig_ok(kvant_plan_describe(r->plan, &info));
    r->block_tokens = info.block_tokens;
    r->sinks = info.sinks;
    r->recent = info.recent;
    kvant_cache_options options = {.struct_size = sizeof options,
                                   .threads = wish->threads,
                                   .bytes = wish->bytes != 0 ? wish->bytes : UINT64_C(32) << 20,
                                   .loop = wish->loop,
                                   .loop_context = wish->loop_context,
                                   .store = wish->store};
    rig_ok(kvant_cache_open(r->plan, &options, &r->cache, &rig_diag));
    return r;
}

void rig_close(rig *r) {
    kvant_cache_close(r->cache);
    kvant_plan_free(r->plan);
    free(r);
}

kvant_sequence *rig_sequence(rig *r) {
    kvant_sequence *s = NULL;
    rig_ok(kvant_sequence_create(r->cache, NULL, 0, &s, &rig_diag));
    return s;
}

uint64_t *rig_ids(uint32_t count, uint64_t seed) {
    uint64_t *ids = malloc((count + 1) * sizeof *ids);
    assert_non_null(ids);
    for (uint32_t i = 0; i < count; i++) ids[i] = kvant_test_random(&seed) % 50000;
    return ids;
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static uint32_t heads_of(const rig *r, uint32_t layer, uint32_t what) {
    return what == RIG_QUERY ? r->layers[layer].q_heads : r->layers[layer].kv_heads;
}

static uint32_t dim_of(const rig *r, uint32_t layer, uint32_t what) {
    return what == KVANT_SIDE_VALUE ? r->layers[layer].value_dim : r->layers[layer].key_dim;
}

/* Away from zero, one loud channel, one constant. */
static float element(uint64_t *seed, uint32_t channel) {
    float x = (float)((double)(kvant_test_random(seed) >> 11) * 0x1p-52 - 1);
    if (channel == 2) return 1.25f;
    return (x + 0.4f * (float)(channel % 5)) * (channel == 1 ? 6.0f : 1.0f);
}

void *rig_rows(const rig *r, uint32_t layer, uint32_t what, const uint64_t *ids, uint64_t first,
               uint32_t count) {
    uint32_t heads = heads_of(r, layer, what), dim = dim_of(r, layer, what), dtype = r->geometry.dtype;
    size_t width = kvant_element_bytes(dtype), row = (size_t)heads * dim;
    unsigned char *rows = poisoned(count * row * width);
    for (uint32_t t = 0; t < count; t++) {
        uint64_t seed = ids[t] * 1000003 + (first + t) * 7919 + layer * 31 + what + 1;
        for (uint32_t i = 0; i < row; i++)
            kvant_store_element(rows + (t * row + i) * width, dtype, element(&seed, i % dim));
    }
    return rows;
}

kvant_mutable_view rig_view(void *data, uint32_t dtype, uint32_t tokens, uint32_t heads, uint32_t dim) {
    int64_t width = kvant_element_bytes(dtype);
    return (kvant_mutable_view){.struct_size = sizeof(kvant_mutable_view),
                                .dtype = dtype,
                                .data = data,
                                .tokens = tokens,
                                .heads = heads,
                                .head_dim = dim,
                                .token_stride = (int64_t)heads * dim * width,
                                .head_stride = dim * width,
                                .channel_stride = width};
}

static kvant_view const_view(const kvant_mutable_view *v) {
    return (kvant_view){.struct_size = sizeof(kvant_view),
                        .dtype = v->dtype,
                        .data = v->data,
                        .tokens = v->tokens,
                        .heads = v->heads,
                        .head_dim = v->head_dim,
                        .token_stride = v->token_stride,
                        .head_stride = v->head_stride,
                        .channel_stride = v->channel_stride};
}

/* Dense rows, laid out anew in memory that takes the place of theirs; NaN between them. */
static kvant_view lay_out(const rig *r, uint32_t layer, uint32_t what, void **rows, uint32_t count,
                          uint32_t layout) {
    uint32_t heads = heads_of(r, layer, what), dim = dim_of(r, layer, what), dtype = r->geometry.dtype;
    kvant_mutable_view dense = rig_view(*rows, dtype, count, heads, dim), v = dense;
    int64_t width = kvant_element_bytes(dtype);
    if (layout == RIG_DENSE) return const_view(&dense);
    if (layout == RIG_ODD) { /* head by head, channels apart, and nothing aligned */
        v.channel_stride = 2 * width + 1;
        v.token_stride = dim * v.channel_stride + 5;
        v.head_stride = count * v.token_stride + 3;
    } else {
        v.token_stride = -(v.token_stride + 6);
    }
    int64_t token = v.token_stride < 0 ? -v.token_stride : v.token_stride;
    size_t size = (size_t)(count * token + heads * v.head_stride + dim * v.channel_stride + 8);
    unsigned char *memory = poisoned(size);
    v.data = memory + 1 + (v.token_stride < 0 ? (int64_t)(count - 1) * token : 0);
    for (uint32_t t = 0; t < count; t++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t c = 0; c < dim; c++)
                memcpy(kvant_mutable_view_at(&v, t, h) + c * v.channel_stride,
                       kvant_mutable_view_at(&dense, t, h) + c * width, (size_t)width);
    free(*rows);
    *rows = memory;
    return const_view(&v);
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

size_t rig_outputs(const rig *r, uint32_t count) {
    size_t all = 0;
    for (uint32_t l = 0; l < r->geometry.layer_count; l++)
        all += (size_t)count * r->layers[l].q_heads * r->layers[l].value_dim;
    return all;
}

static kvant_attention_options attention_options(const rig *r, uint32_t layer) {
    return (kvant_attention_options){.struct_size = sizeof(kvant_attention_options),
                                     .threads = 1,
                                     .scale = (float)(1 / sqrt(r->layers[layer].key_dim))};
}

kvant_status rig_begin(kvant_sequence *s, const rig_step *step) {
    const kvant_step_options options = {.struct_size = sizeof options,
                                        .count = step->count,
                                        .tentative = step->tentative,
                                        .ids = step->unknown ? NULL : step->ids,
                                        .tags = step->tags};
    return kvant_step_begin(s, &options, &rig_diag);
}

void rig_layers(rig *r, kvant_sequence *s, const rig_step *step) {
    uint64_t first = rig_info(s).length;
    float *outputs = step->outputs;
    for (uint32_t l = 0; l < r->geometry.layer_count; l++) {
        void *rows[3];
        kvant_view views[3];
        for (uint32_t what = 0; what < 3; what++) {
            rows[what] = rig_rows(r, l, what, step->ids, first, step->count);
            views[what] = lay_out(r, l, what, &rows[what], step->count, step->layout);
        }
        if (outputs == NULL) {
            rig_ok(kvant_step_put(s, l, &views[0], &views[1], &rig_diag));
        } else {
            size_t size = (size_t)step->count * r->layers[l].q_heads * r->layers[l].value_dim;
            memset(outputs, 0xff, size * sizeof *outputs);
            const kvant_mutable_view out =
                rig_view(outputs, KVANT_DTYPE_F32, step->count, r->layers[l].q_heads, r->layers[l].value_dim);
            const kvant_step_rows part = {.struct_size = sizeof part,
                                          .sequence = s,
                                          .keys = &views[0],
                                          .values = &views[1],
                                          .queries = &views[2],
                                          .outputs = &out};
            const kvant_attention_options options = attention_options(r, l);
            rig_ok(kvant_step_attend(r->cache, l, &part, 1, &options, &rig_diag));
            outputs += size;
        }
        for (uint32_t what = 0; what < 3; what++) free(rows[what]);
    }
}

void rig_take(rig *r, kvant_sequence *s, const rig_step *step) {
    rig_ok(rig_begin(s, step));
    rig_layers(r, s, step);
    rig_ok(kvant_step_commit(s, step->count - step->dropped, &rig_diag));
}

void rig_grow(rig *r, kvant_sequence *s, const uint64_t *ids, uint32_t count, uint32_t chunk) {
    for (uint32_t at = (uint32_t)rig_info(s).length; at < count; at += chunk)
        rig_take(r, s, &(rig_step){.ids = ids + at, .count = count - at < chunk ? count - at : chunk});
}

/* ---- Questions ----------------------------------------------------------------------------------------- */

kvant_sequence_info rig_info(const kvant_sequence *s) {
    kvant_sequence_info info;
    memset(&info, 0xee, sizeof info);
    info.struct_size = sizeof info;
    rig_ok(kvant_sequence_describe(s, &info));
    return info;
}

kvant_bytes rig_bytes(const kvant_sequence *s) {
    kvant_bytes bytes;
    memset(&bytes, 0xee, sizeof bytes);
    bytes.struct_size = sizeof bytes;
    rig_ok(kvant_sequence_bytes(s, &bytes));
    return bytes;
}

kvant_cache_report rig_report(const rig *r) {
    kvant_cache_report report;
    memset(&report, 0xee, sizeof report);
    report.struct_size = sizeof report;
    rig_ok(kvant_cache_describe(r->cache, &report));
    return report;
}

kvant_match *rig_lookup(rig *r, const uint64_t *ids, const uint8_t *tags, uint32_t count, const char *salt,
                        uint64_t first_step_end) {
    const kvant_prefix prefix = {.struct_size = sizeof prefix,
                                 .ids = ids,
                                 .tags = tags,
                                 .count = count,
                                 .salt = salt,
                                 .salt_bytes = salt != NULL ? strlen(salt) : 0,
                                 .first_step_end = first_step_end};
    kvant_match *match = NULL;
    rig_ok(kvant_cache_lookup(r->cache, &prefix, &match, &rig_diag));
    return match;
}

uint64_t rig_found(rig *r, const uint64_t *ids, const uint8_t *tags, uint32_t count, const char *salt) {
    kvant_match *match = rig_lookup(r, ids, tags, count, salt, count);
    uint64_t tokens = kvant_match_tokens(match);
    kvant_match_release(match);
    return tokens;
}

float *rig_read(const rig *r, const kvant_sequence *s, uint32_t layer, uint32_t side, uint64_t first,
                uint32_t count) {
    uint32_t heads = heads_of(r, layer, side), dim = dim_of(r, layer, side);
    float *rows = poisoned((size_t)count * heads * dim * sizeof *rows);
    void *scratch = poisoned(kvant_cache_read_scratch(r->cache));
    kvant_mutable_view view = rig_view(rows, KVANT_DTYPE_F32, count, heads, dim);
    rig_ok(kvant_sequence_read(s, layer, side, first, &view, scratch, &rig_diag));
    free(scratch);
    return rows;
}

uint64_t rig_readable(const rig *r, const kvant_sequence *s, uint32_t layer) {
    uint64_t length = rig_info(s).length, window = r->layers[layer].window;
    return window != 0 && length + 1 > window ? length + 1 - window : 0;
}

/* ---- What must be read --------------------------------------------------------------------------------- */

/* Whole blocks up to `coded`, through the codec floor: encoded and decoded over what stands there. */
static void recode(const rig *r, uint32_t layer, uint32_t side, uint32_t coded, const unsigned char *rows,
                   float *out) {
    kvant_codec *codec = NULL;
    uint32_t heads = heads_of(r, layer, side), dim = dim_of(r, layer, side), n = r->block_tokens;
    size_t row = (size_t)heads * dim, width = kvant_element_bytes(r->geometry.dtype);
    rig_ok(kvant_codec_open(r->plan, layer, side, &codec, &rig_diag));
    size_t capacity = kvant_codec_extent_max(codec);
    void *extent = aligned_alloc(4096, (capacity + 4095) / 4096 * 4096);
    void *scratch = poisoned(kvant_codec_scratch_bytes(codec));
    assert_non_null(extent);
    for (uint32_t first = 0; first < coded; first += n) {
        kvant_encode_report report = {.struct_size = sizeof report};
        kvant_mutable_view in = rig_view((void *)(uintptr_t)(rows + first * row * width), r->geometry.dtype,
                                         n, heads, dim),
                           to = rig_view(out + first * row, KVANT_DTYPE_F32, n, heads, dim);
        kvant_view view = const_view(&in);
        rig_ok(kvant_codec_encode(codec, &view, first, NULL, extent, capacity, scratch, &report, &rig_diag));
        rig_ok(kvant_codec_decode(codec, extent, report.size, first, NULL, &to, scratch, &rig_diag));
    }
    free(extent);
    free(scratch);
    kvant_codec_close(codec);
}

float *rig_expected(const rig *r, uint32_t layer, uint32_t side, const uint64_t *ids, uint32_t count,
                    uint32_t coded) {
    uint32_t heads = heads_of(r, layer, side), dim = dim_of(r, layer, side), dtype = r->geometry.dtype;
    size_t row = (size_t)heads * dim, width = kvant_element_bytes(dtype);
    uint32_t whole = (coded + r->block_tokens - 1) / r->block_tokens * r->block_tokens;
    uint32_t all = whole > count ? whole : count;
    unsigned char *rows = rig_rows(r, layer, side, ids, 0, all);
    float *out = poisoned(all * row * sizeof *out);
    recode(r, layer, side, coded, rows, out);
    for (uint32_t t = 0; t < count; t++)
        if (t >= coded || t < r->sinks)
            for (size_t i = 0; i < row; i++)
                out[t * row + i] = kvant_load_element(rows + (t * row + i) * width, dtype);
    free(rows);
    return out;
}

void rig_assert_rows(const rig *r, const kvant_sequence *s, const uint64_t *ids) {
    kvant_sequence_info info = rig_info(s);
    for (uint32_t l = 0; l < r->geometry.layer_count; l++)
        for (uint32_t side = 0; side < 2; side++) {
            uint32_t first = (uint32_t)rig_readable(r, s, l), count = (uint32_t)info.length;
            size_t row = (size_t)heads_of(r, l, side) * dim_of(r, l, side);
            if (first >= count) continue;
            float *want = rig_expected(r, l, side, ids, count, (uint32_t)info.tail_first);
            float *got = rig_read(r, s, l, side, first, count - first);
            kvant_assert_bytes(got, want + first * row, (count - first) * row * sizeof *got);
            free(want);
            free(got);
        }
}

/* Brings key rows that the caller has before RoPE to where logits are. */
static void turn_keys(const rig *r, uint32_t layer, float *keys, uint32_t count) {
    const kvant_rope *rope = r->layers[layer].rope;
    uint32_t heads = r->layers[layer].kv_heads, dim = r->layers[layer].key_dim;
    if (rope == NULL || r->geometry.keys == KVANT_KEYS_AFTER_ROPE) return;
    float *turns = poisoned((rope->rotary_dim + 1) * sizeof *turns);
    for (uint32_t t = 0; t < count; t++) {
        kvant_rope_turns(rope, t, turns);
        for (uint32_t h = 0; h < heads; h++)
            kvant_rope_apply(rope, turns, keys + (t * heads + h) * (size_t)dim);
    }
    free(turns);
}

static void assert_row(const rig *r, uint32_t layer, const float *query, const float *keys,
                       const float *values, uint32_t from, uint32_t to, uint32_t head, const float *got) {
    const kvant_layer_geometry *g = &r->layers[layer];
    double sum = 0, largest = -INFINITY, exact[256] = {0}, size = 0;
    assert_true(g->value_dim <= 256);
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t t = from; t < to; t++) {
            size_t at = (size_t)t * g->kv_heads + head;
            double logit = 0;
            for (uint32_t c = 0; c < g->key_dim; c++)
                logit += (double)query[c] * (double)keys[at * g->key_dim + c];
            logit /= sqrt(g->key_dim);
            if (pass == 0 && logit > largest) largest = logit;
            if (pass == 0) continue;
            double weight = exp(logit - largest);
            sum += weight;
            for (uint32_t c = 0; c < g->value_dim; c++)
                exact[c] += weight * (double)values[at * g->value_dim + c];
        }
    for (uint32_t c = 0; c < g->value_dim; c++) size += exact[c] / sum * (exact[c] / sum);
    for (uint32_t c = 0; c < g->value_dim; c++)
        kvant_assert_close(got[c], exact[c] / sum, 2e-4 * (1 + sqrt(size)));
}

/* Whole blocks before the step that begin encodes. */
static uint32_t coded_at(const rig *r, uint32_t first, uint32_t end) {
    uint32_t old = end > r->recent ? end - r->recent : 0;
    return (old < first ? old : first) / r->block_tokens * r->block_tokens;
}

void rig_assert_outputs(const rig *r, const uint64_t *ids, uint32_t first, uint32_t count, uint32_t tentative,
                        const float *outputs) {
    rig_assert_outputs_over(r, ids, first, count, coded_at(r, first, first + count - tentative), outputs);
}

void rig_assert_outputs_over(const rig *r, const uint64_t *ids, uint32_t first, uint32_t count,
                             uint32_t coded, const float *outputs) {
    uint32_t end = first + count;
    for (uint32_t l = 0; l < r->geometry.layer_count; l++) {
        const kvant_layer_geometry *g = &r->layers[l];
        float *keys = rig_expected(r, l, KVANT_SIDE_KEY, ids, end, coded);
        float *values = rig_expected(r, l, KVANT_SIDE_VALUE, ids, end, coded);
        unsigned char *rows = rig_rows(r, l, RIG_QUERY, ids + first, first, count);
        float *query = poisoned(g->key_dim * sizeof *query);
        size_t width = kvant_element_bytes(r->geometry.dtype);
        turn_keys(r, l, keys, end);
        for (uint32_t i = 0; i < count * g->q_heads; i++) {
            uint32_t to = first + i / g->q_heads + 1,
                     from = g->window != 0 && to > g->window ? to - g->window : 0;
            for (uint32_t c = 0; c < g->key_dim; c++)
                query[c] = kvant_load_element(rows + (i * (size_t)g->key_dim + c) * width, r->geometry.dtype);
            assert_row(r, l, query, keys, values, from, to, i % g->q_heads / (g->q_heads / g->kv_heads),
                       outputs + (size_t)i * g->value_dim);
        }
        outputs += (size_t)count * g->q_heads * g->value_dim;
        free(keys);
        free(values);
        free(rows);
        free(query);
    }
}

/* ---- Wrong calls --------------------------------------------------------------------------------------- */

rig_pair rig_pair_open(uint32_t tokens, uint32_t more) {
    rig_pair pair = {
        .r = rig_open(&(rig_wish){0}), .other = rig_open(&(rig_wish){0}), .ids = rig_ids(tokens + more, 7)};
    pair.s = rig_sequence(pair.r);
    pair.foreign = rig_sequence(pair.other);
    rig_grow(pair.r, pair.s, pair.ids, tokens, 40);
    return pair;
}

void rig_pair_close(rig_pair *pair) {
    kvant_sequence_free(pair->s);
    kvant_sequence_free(pair->foreign);
    rig_close(pair->r);
    rig_close(pair->other);
    free(pair->ids);
}
