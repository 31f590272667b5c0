/* See twin.h. */
#include "twin.h"

#include "support/test.h"

#include "cache/cache.h"
#include "gpu/core_image.h"

#include <kvant/kit/view.h>

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static kvant_device *opened;

kvant_device *twin_device(void) {
    kvant_diag diag = {.struct_size = sizeof diag};
    if (opened != NULL) return opened;
    if (core_gpu_table() == NULL) {
        print_message("skipped: built without nvcc, so there are no kernels\n");
        skip();
    }
    if (kvant_device_open(0, &opened, &diag) != KVANT_OK) fail_msg("%s", diag.message);
    return opened;
}

void twin_device_close(void) {
    kvant_device_close(opened);
    opened = NULL;
}

twin *twin_open(const twin_wish *wish) {
    kvant_device *device = twin_device();
    twin *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->device = device;
    t->host = rig_open(&wish->rig);
    uint64_t bytes = wish->rig.bytes != 0 ? wish->rig.bytes : UINT64_C(1) << 20;
    const kvant_cache_options options = {.struct_size = sizeof options,
                                         .bytes = wish->bytes != 0 ? wish->bytes : bytes,
                                         .store = wish->store,
                                         .device = device};
    rig_ok(kvant_cache_open(t->host->plan, &options, &t->cache, &rig_diag));
    return t;
}

void twin_close(twin *t) {
    if (getenv("KVANT_TEST_VERBOSE") != NULL)
        printf("worst error of outputs: %.3g of what is allowed\n", t->worst);
    kvant_cache_close(t->cache);
    rig_close(t->host);
    free(t);
}

twin_sequence twin_create(twin *t) {
    twin_sequence s = {0};
    rig_ok(kvant_sequence_create(t->host->cache, NULL, 0, &s.host, &rig_diag));
    rig_ok(kvant_sequence_create(t->cache, NULL, 0, &s.there, &rig_diag));
    return s;
}

void twin_free(twin_sequence *s) {
    kvant_sequence_free(s->host);
    kvant_sequence_free(s->there);
    *s = (twin_sequence){0};
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static kvant_view view_of(const kvant_mutable_view *v) {
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

twin_rows twin_lay_out(const twin *t, void *dense, uint32_t dtype, uint32_t tokens, uint32_t heads,
                       uint32_t dim, uint32_t layout) {
    kvant_mutable_view from = rig_view(dense, dtype, tokens, heads, dim), v = from;
    int64_t width = kvant_element_bytes(dtype);
    if (layout == TWIN_ODD) { /* head by head, channels apart, and nothing aligned */
        v.channel_stride = 2 * width + 1;
        v.token_stride = dim * v.channel_stride + 5;
        v.head_stride = tokens * v.token_stride + 3;
    } else if (layout == TWIN_BACKWARDS) {
        v.token_stride = -(v.token_stride + 6);
    }
    int64_t token = v.token_stride < 0 ? -v.token_stride : v.token_stride;
    twin_rows rows = {.size = (size_t)(tokens * token + heads * v.head_stride + dim * v.channel_stride + 16)};
    unsigned char *memory = malloc(rows.size);
    assert_non_null(memory);
    memset(memory, 0xff, rows.size); /* NaN of every float type */
    size_t at = layout == TWIN_DENSE ? 0 : 1;
    if (v.token_stride < 0) at += (size_t)((tokens - 1) * token);
    v.data = memory + at;
    for (uint32_t i = 0; i < tokens && dense != NULL; i++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t c = 0; c < dim; c++)
                memcpy(kvant_mutable_view_at(&v, i, h) + c * v.channel_stride,
                       kvant_mutable_view_at(&from, i, h) + c * width, (size_t)width);
    rows.memory = memory;
    rows.host = rows.there = view_of(&v);
    rig_ok(kvant_device_alloc(t->device, rows.size, &rows.address, &rig_diag));
    rig_ok(kvant_device_write(t->device, rows.address, memory, rows.size, NULL, &rig_diag));
    rows.there.data = (const void *)(uintptr_t)(rows.address + at);
    free(dense);
    return rows;
}

void twin_rows_free(const twin *t, twin_rows *rows) {
    kvant_device_free(t->device, rows->address);
    free(rows->memory);
}

static kvant_mutable_view writable(const kvant_view *v) {
    return (kvant_mutable_view){.struct_size = sizeof(kvant_mutable_view),
                                .dtype = v->dtype,
                                .data = (void *)(uintptr_t)v->data,
                                .tokens = v->tokens,
                                .heads = v->heads,
                                .head_dim = v->head_dim,
                                .token_stride = v->token_stride,
                                .head_stride = v->head_stride,
                                .channel_stride = v->channel_stride};
}

/* ---- Outputs ------------------------------------------------------------------------------------------- */

static double longest_row(const kvant_view *v, double *largest) {
    double most = 0;
    float row[256];
    for (uint32_t t = 0; t < v->tokens; t++)
        for (uint32_t h = 0; h < v->heads; h++) {
            double sum = 0;
            kvant_load_row(v, t, h, row);
            for (uint32_t c = 0; c < v->head_dim; c++) {
                sum += (double)row[c] * row[c];
                if (largest != NULL && fabs(row[c]) > *largest) *largest = fabs(row[c]);
            }
            if (sqrt(sum) > most) most = sqrt(sum);
        }
    return most;
}

static double told(const twin *t, uint32_t layer, uint32_t side) {
    return t->host->plan->entries[2 * (size_t)layer + side].layout.attend_tolerance;
}

/* Both are float, and m is far more than a logit's terms come to: twenty times what was measured. Kernels on
 * codes differ by what the layouts say besides. A row too many or too few shows a hundred times as much. */
static void compare_outputs(twin *t, uint32_t layer, const kvant_view *queries, float scale,
                            const twin_rows *outputs, const twin_rows *sums) {
    static const double key_norm = 40, value_norm = 24; /* of what rig_rows makes */
    double m = fabs((double)scale) * longest_row(queries, NULL) * key_norm;
    double logit = 1e-7 * (1 + m) + 2 * told(t, layer, 0) * m;
    double allowed = (2 * logit + 2 * told(t, layer, 1) + 1e-6) * value_norm;
    unsigned char *got = malloc(outputs->size + sums->size);
    assert_non_null(got);
    rig_ok(kvant_device_read(t->device, got, outputs->address, outputs->size, NULL, &rig_diag));
    rig_ok(kvant_device_read(t->device, got + outputs->size, sums->address, sums->size, NULL, &rig_diag));
    kvant_view there = outputs->host;
    there.data = got + ((const unsigned char *)there.data - (const unsigned char *)outputs->memory);
    const float *a = (const float *)(const void *)sums->host.data;
    float *b = malloc(sums->size);
    assert_non_null(b);
    memcpy(b, got + outputs->size, sums->size);
    for (uint32_t row = 0; row < there.tokens; row++)
        for (uint32_t h = 0; h < there.heads; h++) {
            float want[256], is[256];
            kvant_load_row(&outputs->host, row, h, want);
            kvant_load_row(&there, row, h, is);
            double lse = fabs((double)a[row * there.heads + h] - b[row * there.heads + h]) / (4 * logit);
            for (uint32_t c = 0; c < there.head_dim; c++) {
                double error = fabs((double)want[c] - is[c]) / allowed;
                if (!(error <= 1) || !(lse <= 1))
                    fail_msg(
                        "layer %u, row %u, head %u, channel %u: %g, log-sum-exp %g, and the host has %g, %g "
                        "(allowed %g, %g)",
                        layer, row, h, c, (double)is[c], (double)b[row * there.heads + h], (double)want[c],
                        (double)a[row * there.heads + h], allowed, logit);
                if (error > t->worst) t->worst = error;
                if (lse > t->worst) t->worst = lse;
            }
        }
    free(b);
    free(got);
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

void twin_begin(twin *t, const twin_step *step) {
    const kvant_step_options options = {.struct_size = sizeof options,
                                        .count = step->count,
                                        .tentative = step->tentative,
                                        .ids = step->unknown ? NULL : step->ids};
    (void)t;
    rig_ok(kvant_step_begin(step->s->host, &options, &rig_diag));
    rig_ok(kvant_step_begin(step->s->there, &options, &rig_diag));
}

static void spoil(void *rows, uint32_t dtype, uint32_t at, uint32_t count) {
    rows = (char *)rows + at * (size_t)kvant_element_bytes(dtype);
    for (uint32_t i = 0; i < count; i++) {
        float x = i == 0 ? NAN : i % 2 == 0 ? -INFINITY : INFINITY;
        if (dtype == KVANT_DTYPE_F32)
            memcpy((char *)rows + 4 * (size_t)i, &x, 4);
        else {
            uint16_t half = dtype == KVANT_DTYPE_F16 ? 0x7c00 : 0x7f80;
            half = (uint16_t)(half | (i == 0 ? 1 : 0) | (i > 0 && i % 2 == 0 ? 0x8000 : 0));
            memcpy((char *)rows + 2 * (size_t)i, &half, 2);
        }
    }
}

enum { SEQUENCES = 8 };

/* keys, values, queries, outputs, log-sum-exps of a step in one layer. */
enum { KEYS, VALUES, QUERIES, OUTPUTS, SUMS, KINDS };

static void make_rows(const twin *t, const twin_step *step, uint32_t layer, uint64_t first,
                      twin_rows rows[KINDS]) {
    const rig *r = t->host;
    const kvant_layer_geometry *g = &r->layers[layer];
    const uint32_t heads[KINDS] = {g->kv_heads, g->kv_heads, g->q_heads, g->q_heads, g->q_heads};
    const uint32_t dims[KINDS] = {g->key_dim, g->value_dim, g->key_dim, g->value_dim, 1};
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        bool floats = kind >= OUTPUTS;
        void *dense = floats ? NULL : rig_rows(r, layer, kind, step->ids, first, step->count);
        if (kind == step->spoiled_side && layer == step->spoiled_layer && step->spoiled > 0)
            spoil(dense, r->geometry.dtype, step->spoiled_at, step->spoiled);
        rows[kind] = twin_lay_out(t, dense, floats ? KVANT_DTYPE_F32 : r->geometry.dtype, step->count,
                                  heads[kind], dims[kind], kind == SUMS ? TWIN_DENSE : step->layout);
    }
}

static kvant_attention_options options_of(const twin *t, uint32_t layer) {
    return (kvant_attention_options){.struct_size = sizeof(kvant_attention_options),
                                     .scale = (float)(1 / sqrt(t->host->layers[layer].key_dim))};
}

/* One layer of one sequence, its parts one after another. */
static void take_apart(twin *t, const twin_step *step, uint32_t layer, const twin_rows rows[KINDS]) {
    const kvant_attention_options options = options_of(t, layer);
    const kvant_mutable_view out = writable(&rows[OUTPUTS].host), there = writable(&rows[OUTPUTS].there);
    kvant_attend_part part = {.struct_size = sizeof part,
                              .sequence = step->s->host,
                              .queries = &rows[QUERIES].host,
                              .outputs = &out,
                              .log_sum_exp = rows[SUMS].memory};
    rig_ok(kvant_step_layer_begin(step->s->host, layer, &rows[KEYS].host, &rows[VALUES].host, &rig_diag));
    size_t size = kvant_cache_attend_scratch(t->host->cache, layer, &part, 1, &options);
    void *scratch = aligned_alloc(64, (size + 64) / 64 * 64);
    assert_non_null(scratch);
    rig_ok(kvant_cache_attend(t->host->cache, layer, &part, 1, &options, scratch, size, &rig_diag));
    free(scratch);
    rig_ok(kvant_step_layer_end(step->s->host, layer, &rig_diag));

    part.sequence = step->s->there;
    part.queries = &rows[QUERIES].there;
    part.outputs = &there;
    part.log_sum_exp = (float *)(uintptr_t)rows[SUMS].address;
    rig_ok(kvant_step_layer_begin(step->s->there, layer, &rows[KEYS].there, &rows[VALUES].there, &rig_diag));
    assert_int_equal(kvant_cache_attend_scratch(t->cache, layer, &part, 1, &options), 0);
    rig_ok(kvant_cache_attend(t->cache, layer, &part, 1, &options, NULL, 0, &rig_diag));
    rig_ok(kvant_step_layer_end(step->s->there, layer, &rig_diag));
}

static void take_together(twin *t, const twin_step *steps, uint32_t count, uint32_t layer,
                          twin_rows rows[][KINDS]) {
    const kvant_attention_options options = options_of(t, layer);
    for (uint32_t there = 0; there < 2; there++) {
        kvant_step_rows parts[SEQUENCES];
        kvant_mutable_view outputs[SEQUENCES];
        for (uint32_t i = 0; i < count; i++) {
            twin_rows *of = rows[i];
            outputs[i] = writable(there ? &of[OUTPUTS].there : &of[OUTPUTS].host);
            parts[i] = (kvant_step_rows){.struct_size = sizeof parts[0],
                                         .sequence = there ? steps[i].s->there : steps[i].s->host,
                                         .keys = there ? &of[KEYS].there : &of[KEYS].host,
                                         .values = there ? &of[VALUES].there : &of[VALUES].host,
                                         .queries = there ? &of[QUERIES].there : &of[QUERIES].host,
                                         .outputs = &outputs[i],
                                         .log_sum_exp = there ? (float *)(uintptr_t)of[SUMS].address
                                                              : (float *)of[SUMS].memory};
        }
        rig_ok(
            kvant_step_attend(there ? t->cache : t->host->cache, layer, parts, count, &options, &rig_diag));
    }
}

void twin_layers(twin *t, const twin_step *steps, uint32_t count) {
    assert_true(count <= SEQUENCES);
    for (uint32_t layer = 0; layer < t->host->geometry.layer_count; layer++) {
        twin_rows rows[SEQUENCES][KINDS];
        for (uint32_t i = 0; i < count; i++)
            make_rows(t, &steps[i], layer, rig_info(steps[i].s->host).length, rows[i]);
        if (steps[0].quiet) {
            for (uint32_t i = 0; i < count; i++) {
                rig_ok(kvant_step_put(steps[i].s->host, layer, &rows[i][KEYS].host, &rows[i][VALUES].host,
                                      &rig_diag));
                rig_ok(kvant_step_put(steps[i].s->there, layer, &rows[i][KEYS].there, &rows[i][VALUES].there,
                                      &rig_diag));
            }
        } else if (steps[0].apart) {
            for (uint32_t i = 0; i < count; i++) take_apart(t, &steps[i], layer, rows[i]);
        } else {
            take_together(t, steps, count, layer, rows);
        }
        for (uint32_t i = 0; i < count; i++) {
            if (!steps[0].quiet)
                compare_outputs(t, layer, &rows[i][QUERIES].host, options_of(t, layer).scale,
                                &rows[i][OUTPUTS], &rows[i][SUMS]);
            for (uint32_t kind = 0; kind < KINDS; kind++) twin_rows_free(t, &rows[i][kind]);
        }
    }
}

void twin_put_there(twin *t, const twin_step *step) {
    for (uint32_t layer = 0; layer < t->host->geometry.layer_count; layer++) {
        twin_rows rows[KINDS];
        make_rows(t, step, layer, rig_info(step->s->there).length, rows);
        rig_ok(kvant_step_put(step->s->there, layer, &rows[KEYS].there, &rows[VALUES].there, &rig_diag));
        for (uint32_t kind = 0; kind < KINDS; kind++) twin_rows_free(t, &rows[kind]);
    }
}

void twin_commit(twin *t, const twin_step *step) {
    (void)t;
    rig_ok(kvant_step_commit(step->s->host, step->count - step->dropped, &rig_diag));
    rig_ok(kvant_step_commit(step->s->there, step->count - step->dropped, &rig_diag));
}

void twin_take(twin *t, const twin_step *steps, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) twin_begin(t, &steps[i]);
    twin_layers(t, steps, count);
    for (uint32_t i = 0; i < count; i++) twin_commit(t, &steps[i]);
}

void twin_grow(twin *t, twin_sequence *s, const uint64_t *ids, uint32_t count, uint32_t chunk) {
    for (uint32_t at = (uint32_t)rig_info(s->host).length; at < count; at += chunk)
        twin_take(t, &(twin_step){.s = s, .ids = ids + at, .count = count - at < chunk ? count - at : chunk},
                  1);
}

/* ---- Probes -------------------------------------------------------------------------------------------- */

void twin_probe(twin *t, const twin_sequence *s, uint32_t rows, uint32_t window) {
    static const uint64_t ids[8] = {4711, 42, 7, 99, 12345, 3, 20, 5};
    uint64_t length = rig_info(s->host).length;
    assert_true(rows <= 8 && length >= rows);
    for (uint32_t layer = 0; layer < t->host->geometry.layer_count; layer++) {
        const twin_step step = {.ids = ids, .count = rows};
        twin_rows of[KINDS];
        kvant_token_range ranges[8];
        make_rows(t, &step, layer, 3, of);
        kvant_token_range_causal(length - rows, rows, window != 0 ? window : t->host->layers[layer].window,
                                 ranges);
        kvant_attention_options options = options_of(t, layer);
        options.soft_cap = 20;
        const kvant_mutable_view out = writable(&of[OUTPUTS].host), there = writable(&of[OUTPUTS].there);
        kvant_attend_part part = {.struct_size = sizeof part,
                                  .sequence = s->host,
                                  .queries = &of[QUERIES].host,
                                  .ranges = ranges,
                                  .outputs = &out,
                                  .log_sum_exp = of[SUMS].memory};
        size_t size = kvant_cache_attend_scratch(t->host->cache, layer, &part, 1, &options);
        void *scratch = aligned_alloc(64, (size + 64) / 64 * 64);
        assert_non_null(scratch);
        rig_ok(kvant_cache_attend(t->host->cache, layer, &part, 1, &options, scratch, size, &rig_diag));
        free(scratch);
        part.sequence = s->there;
        part.queries = &of[QUERIES].there;
        part.outputs = &there;
        part.log_sum_exp = (float *)(uintptr_t)of[SUMS].address;
        rig_ok(kvant_cache_attend(t->cache, layer, &part, 1, &options, NULL, 0, &rig_diag));
        compare_outputs(t, layer, &of[QUERIES].host, options.scale, &of[OUTPUTS], &of[SUMS]);
        for (uint32_t kind = 0; kind < KINDS; kind++) twin_rows_free(t, &of[kind]);
    }
}

/* ---- Comparison ---------------------------------------------------------------------------------------- */

/* Bytes of both pools. */
static void compare_bytes(const twin *t, const void *host, const void *there, uint64_t size, const char *what,
                          uint32_t index, uint32_t layer, uint32_t side) {
    unsigned char *got = malloc((size_t)size + 1);
    assert_non_null(got);
    rig_ok(kvant_device_read(t->device, got, (uint64_t)(uintptr_t)there, size, NULL, &rig_diag));
    for (uint64_t i = 0; i < size; i++)
        if (got[i] != ((const unsigned char *)host)[i])
            fail_msg("%s %u, layer %u, side %u, byte %llu of %llu: %02x, and the host has %02x", what, index,
                     layer, side, (unsigned long long)i, (unsigned long long)size, got[i],
                     ((const unsigned char *)host)[i]);
    free(got);
}

static void compare_block(const twin *t, const cache_block *a, const cache_block *b, uint32_t index) {
    const kvant_cache *host = t->host->cache;
    assert_int_equal(a->first_position, b->first_position);
    assert_int_equal(a->identified, b->identified);
    assert_int_equal(a->entry.indexed, b->entry.indexed);
    assert_memory_equal(a->entry.key, b->entry.key, sizeof a->entry.key);
    assert_memory_equal(a->ids, b->ids, host->shape.block_tokens * sizeof *a->ids);
    assert_int_equal(a->sinks != NULL, b->sinks != NULL);
    for (uint32_t i = 0; i < 2 * host->shape.layer_count; i++) {
        uint32_t layer = i / 2, side = i % 2;
        assert_int_equal(cache_block_has(a, layer), cache_block_has(b, layer));
        if (cache_block_has(a, layer)) {
            assert_int_equal(a->extents[i].steps, b->extents[i].steps);
            compare_bytes(t, kvant_pool_address(host->pool, a->extents[i].index),
                          kvant_pool_address(t->cache->pool, b->extents[i].index),
                          cache_extent_size(host, a, layer, side), "block", index, layer, side);
        }
        if (a->sinks == NULL) continue;
        uint32_t sinks = host->shape.sinks;
        compare_bytes(t, cache_sink_rows(host, a->sinks, layer, side, sinks).data,
                      cache_sink_rows(t->cache, b->sinks, layer, side, sinks).data,
                      sinks * host->shape.layers[layer].row_bytes[side], "sinks of block", index, layer,
                      side);
    }
}

static void compare_pages(const twin *t, const twin_sequence *s) {
    const kvant_cache *host = t->host->cache;
    uint64_t left = s->host->length - s->host->tail_first;
    for (uint32_t page = 0; page < s->host->page_count; page++) {
        uint64_t tokens = left < host->shape.block_tokens ? left : host->shape.block_tokens;
        left -= tokens;
        for (uint32_t i = 0; i < 2 * host->shape.layer_count; i++)
            compare_bytes(
                t, cache_page_rows(host, s->host->pages[page], i / 2, i % 2, 0, (uint32_t)tokens).data,
                cache_page_rows(t->cache, s->there->pages[page], i / 2, i % 2, 0, (uint32_t)tokens).data,
                tokens * host->shape.layers[i / 2].row_bytes[i % 2], "page", page, i / 2, i % 2);
    }
}

/* Tokens [first, first + count), read into memory of this dtype. */
static void compare_reads(twin *t, const twin_sequence *s, uint32_t layer, uint32_t side, uint64_t first,
                          uint32_t count, uint32_t dtype, uint32_t layout) {
    const kvant_layer_geometry *g = &t->host->layers[layer];
    uint32_t dim = side == KVANT_SIDE_KEY ? g->key_dim : g->value_dim;
    twin_rows rows = twin_lay_out(t, NULL, dtype, count, g->kv_heads, dim, layout);
    const kvant_mutable_view host = writable(&rows.host), there = writable(&rows.there);
    size_t size = kvant_cache_read_scratch(t->host->cache);
    void *scratch = aligned_alloc(64, (size + 64) / 64 * 64);
    assert_non_null(scratch);
    assert_int_equal(kvant_cache_read_scratch(t->cache), 0);
    kvant_status here = kvant_sequence_read(s->host, layer, side, first, &host, scratch, &rig_diag);
    kvant_status status = kvant_sequence_read(s->there, layer, side, first, &there, NULL, &rig_diag);
    assert_int_equal(status, here);
    compare_bytes(t, rows.memory, (const void *)(uintptr_t)rows.address, rows.size, "read of dtype", dtype,
                  layer, side);
    free(scratch);
    twin_rows_free(t, &rows);
}

/* What can be read: from where no window or gap hides anything. */
static uint64_t readable(const twin *t, const twin_sequence *s, uint32_t layer) {
    uint64_t first = rig_readable(t->host, s->host, layer);
    for (uint32_t i = 0; i < s->host->dropped_count; i++)
        if (s->host->dropped[i].end > first) first = s->host->dropped[i].end;
    return first;
}

void twin_assert_same(twin *t, const twin_sequence *s) {
    kvant_sequence_info a = rig_info(s->host), b = rig_info(s->there);
    assert_memory_equal(&a, &b, sizeof a);
    kvant_bytes held = rig_bytes(s->host), there = rig_bytes(s->there); /* lists may have room left */
    assert_memory_equal(&held, &there, offsetof(kvant_bytes, tables));
    assert_int_equal(s->host->block_count, s->there->block_count);
    assert_int_equal(s->host->page_count, s->there->page_count);
    for (uint32_t i = 0; i < s->host->block_count; i++)
        compare_block(t, s->host->blocks[i], s->there->blocks[i], i);
    compare_pages(t, s);
    static const uint32_t dtypes[3] = {KVANT_DTYPE_F32, KVANT_DTYPE_F16, KVANT_DTYPE_BF16};
    for (uint32_t i = 0; i < 2 * t->host->geometry.layer_count; i++) {
        uint64_t first = readable(t, s, i / 2);
        if (first >= a.length) continue;
        uint32_t count = (uint32_t)(a.length - first);
        compare_reads(t, s, i / 2, i % 2, first, count, t->host->geometry.dtype, i % 3);
        if (count > 3) /* from the middle of a block to the middle of another */
            compare_reads(t, s, i / 2, i % 2, first + 1, count - 2, dtypes[i % 3], (i + 1) % 3);
    }
}

void twin_assert_reports(const twin *t) {
    kvant_cache_report a = rig_report(t->host), b = {.struct_size = sizeof b};
    rig_ok(kvant_cache_describe(t->cache, &b));
    assert_int_equal(a.sequences, b.sequences);
    assert_int_equal(a.bytes.payload, b.bytes.payload);
    assert_int_equal(a.bytes.metadata, b.bytes.metadata);
    assert_int_equal(a.bytes.padding, b.bytes.padding);
    assert_int_equal(a.bytes.raw, b.bytes.raw);
    assert_int_equal(a.blocks, b.blocks);
    assert_int_equal(a.indexed, b.indexed);
    assert_int_equal(a.pinned, b.pinned);
    assert_int_equal(a.lookups, b.lookups);
    assert_int_equal(a.found_tokens, b.found_tokens);
    assert_int_equal(a.stored_hits, b.stored_hits);
    assert_int_equal(a.saturated, b.saturated);
    assert_int_equal(a.replaced, b.replaced);
}
