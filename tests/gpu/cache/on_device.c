/* See on_device.h. */
#include "on_device.h"

#include "cache/step.h"
#include "pipeline/codec_rows.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WRAP(name) __wrap_##name
#define REAL(name) __real_##name

/* Declared twice: the linker gives these names to the calls and to what they were. */
#define WRAPPED(type, name, arguments)                                                                       \
    type REAL(name) arguments;                                                                               \
    type WRAP(name)                                                                                          \
    arguments

WRAPPED(kvant_status, kvant_cache_open,
        (const kvant_plan *, const kvant_cache_options *, kvant_cache **, kvant_diag *));
WRAPPED(kvant_status, kvant_step_put,
        (kvant_sequence *, uint32_t, const kvant_view *, const kvant_view *, kvant_diag *));
WRAPPED(kvant_status, kvant_step_layer_begin,
        (kvant_sequence *, uint32_t, const kvant_view *, const kvant_view *, kvant_diag *));
WRAPPED(kvant_status, kvant_step_layer_end, (kvant_sequence *, uint32_t, kvant_diag *));
WRAPPED(void, kvant_step_abort, (kvant_sequence *));
WRAPPED(kvant_status, kvant_step_attend,
        (kvant_cache *, uint32_t, const kvant_step_rows *, uint32_t, const kvant_attention_options *,
         kvant_diag *));
WRAPPED(kvant_status, kvant_cache_attend,
        (const kvant_cache *, uint32_t, const kvant_attend_part *, uint32_t, const kvant_attention_options *,
         void *, size_t, kvant_diag *));
WRAPPED(size_t, kvant_cache_attend_scratch,
        (const kvant_cache *, uint32_t, const kvant_attend_part *, uint32_t,
         const kvant_attention_options *));
WRAPPED(kvant_status, kvant_sequence_read,
        (const kvant_sequence *, uint32_t, uint32_t, uint64_t, const kvant_mutable_view *, void *,
         kvant_diag *));

static kvant_device *there;

void on_device(kvant_device *device) {
    there = device;
}

static void must(kvant_status status, const char *what) {
    if (status == KVANT_OK) return;
    fprintf(stderr, "on_device: %s: %d\n", what, (int)status);
    abort();
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

/* The bytes that a view shows, there: which of the host's they are. */
typedef struct copied {
    uint64_t address;
    unsigned char *first;
    size_t size;
} copied;

static copied copy_of(const kvant_view *v) {
    int64_t low = 0, high = kvant_element_bytes(v->dtype);
    const int64_t ends[3] = {v->token_stride * ((int64_t)v->tokens - 1),
                             v->head_stride * ((int64_t)v->heads - 1),
                             v->channel_stride * ((int64_t)v->head_dim - 1)};
    for (uint32_t i = 0; i < 3; i++) {
        if (ends[i] < 0) low += ends[i];
        if (ends[i] > 0) high += ends[i];
    }
    copied c = {.first = (unsigned char *)(uintptr_t)v->data + low, .size = (size_t)(high - low)};
    must(kvant_device_alloc(there, c.size, &c.address, NULL), "alloc");
    must(kvant_device_write(there, c.address, c.first, c.size, NULL, NULL), "write");
    return c;
}

static const void *moved(const copied *c, const void *host) {
    return (const void *)(uintptr_t)(c->address + (uint64_t)((const unsigned char *)host - c->first));
}

static void give(copied *c) {
    if (c->address != 0) kvant_device_free(there, c->address);
    c->address = 0;
}

static kvant_view read_only(const kvant_mutable_view *v) {
    kvant_view view;
    memcpy(&view, v, sizeof view);
    return view;
}

/* ---- Steps --------------------------------------------------------------------------------------------- */

/* Rows of layers that are open, until they are closed. */
typedef struct open_layer {
    const kvant_sequence *sequence;
    uint32_t layer;
    copied rows[2];
} open_layer;

enum { OPEN = 64 };
static open_layer layers[OPEN];

static void close_layers(const kvant_sequence *s, uint32_t layer) {
    for (uint32_t i = 0; i < OPEN; i++) {
        if (layers[i].sequence != s || (layer != UINT32_MAX && layers[i].layer != layer)) continue;
        for (uint32_t side = 0; side < 2; side++) give(&layers[i].rows[side]);
        layers[i].sequence = NULL;
    }
}

static bool is_there(const kvant_sequence *s) {
    return there != NULL && s != NULL && s->cache->device != NULL;
}

/* Whether the step takes these rows: others are refused before they are looked at. */
static bool is_taken(const kvant_sequence *s, uint32_t layer, uint32_t side, const kvant_view *v) {
    if (v == NULL || s->step == NULL || layer >= s->cache->shape.layer_count) return false;
    const kvant_layer_geometry *l = kvant_layer_at(&s->cache->plan->geometry, layer);
    return v->data != NULL && v->dtype == s->cache->plan->geometry.dtype && v->tokens == s->step->count &&
           v->heads == l->kv_heads && v->head_dim == (side == 0 ? l->key_dim : l->value_dim);
}

static bool is_refused(const kvant_sequence *s, const kvant_view *v) {
    kvant_place place;
    return s->cache->plan->on_nonfinite == KVANT_ON_NONFINITE_ERROR && kvant_find_not_finite(v, &place);
}

typedef struct given {
    bool taken, refused;
    copied rows[2];
    kvant_view views[2];
} given;

static given take(const kvant_sequence *s, uint32_t layer, const kvant_view *keys, const kvant_view *values) {
    const kvant_view *host[2] = {keys, values};
    given g = {.taken = is_taken(s, layer, 0, keys) && is_taken(s, layer, 1, values)};
    for (uint32_t side = 0; side < 2 && g.taken; side++) {
        g.refused = g.refused || is_refused(s, host[side]);
        g.rows[side] = copy_of(host[side]);
        g.views[side] = *host[side];
        g.views[side].data = moved(&g.rows[side], host[side]->data);
    }
    return g;
}

static kvant_status refuse(kvant_sequence *s, kvant_diag *diag) {
    kvant_step_abort(s);
    return kvant_fail(diag, KVANT_ERROR_NOT_FINITE, "", "a row holds a number that is not finite");
}

kvant_status WRAP(kvant_step_put)(kvant_sequence *s, uint32_t layer, const kvant_view *keys,
                                  const kvant_view *values, kvant_diag *diag) {
    if (!is_there(s)) return REAL(kvant_step_put)(s, layer, keys, values, diag);
    given g = take(s, layer, keys, values);
    if (g.taken) {
        keys = &g.views[0];
        values = &g.views[1];
    }
    kvant_status status = REAL(kvant_step_put)(s, layer, keys, values, diag);
    for (uint32_t side = 0; side < 2; side++) give(&g.rows[side]);
    if (status == KVANT_OK && g.refused) status = refuse(s, diag);
    return status;
}

kvant_status WRAP(kvant_step_layer_begin)(kvant_sequence *s, uint32_t layer, const kvant_view *keys,
                                          const kvant_view *values, kvant_diag *diag) {
    if (!is_there(s)) return REAL(kvant_step_layer_begin)(s, layer, keys, values, diag);
    given g = take(s, layer, keys, values);
    if (!g.taken) return REAL(kvant_step_layer_begin)(s, layer, keys, values, diag);
    kvant_status status = REAL(kvant_step_layer_begin)(s, layer, &g.views[0], &g.views[1], diag);
    uint32_t at = 0;
    while (layers[at].sequence != NULL) at++;
    layers[at] = (open_layer){.sequence = s, .layer = layer, .rows = {g.rows[0], g.rows[1]}};
    if (status == KVANT_OK && g.refused) status = refuse(s, diag);
    if (status != KVANT_OK) close_layers(s, layer);
    return status;
}

kvant_status WRAP(kvant_step_layer_end)(kvant_sequence *s, uint32_t layer, kvant_diag *diag) {
    kvant_status status = REAL(kvant_step_layer_end)(s, layer, diag);
    if (is_there(s)) close_layers(s, status == KVANT_OK ? layer : UINT32_MAX);
    return status;
}

void WRAP(kvant_step_abort)(kvant_sequence *s) {
    REAL(kvant_step_abort)(s);
    if (is_there(s)) close_layers(s, UINT32_MAX);
}

/* ---- Attention ----------------------------------------------------------------------------------------- */

/* Queries in the geometry's dtype, dense; outputs and sums, dense floats. */
typedef struct asked {
    copied queries, outputs, sums;
    void *memory[3];
    kvant_view view;
    kvant_mutable_view out;
} asked;

static kvant_mutable_view dense(void *data, uint32_t dtype, uint32_t tokens, uint32_t heads, uint32_t dim) {
    return kvant_dense_mutable_view(data, dtype, tokens, heads, dim);
}

static asked ask(const kvant_cache *cache, uint32_t layer, const kvant_view *queries, uint32_t first,
                 uint32_t rows) {
    const kvant_layer_geometry *l = kvant_layer_at(&cache->plan->geometry, layer);
    uint32_t dtype = cache->plan->geometry.dtype;
    size_t heads = (size_t)rows * l->q_heads;
    asked a = {
        .memory = {malloc(heads * l->key_dim * 4), malloc(heads * l->value_dim * 4), malloc(heads * 4)}};
    if (a.memory[0] == NULL || a.memory[1] == NULL || a.memory[2] == NULL) abort();
    memset(a.memory[1], 0xff, heads * l->value_dim * 4);
    memset(a.memory[2], 0xff, heads * 4);
    kvant_mutable_view q = dense(a.memory[0], dtype, rows, l->q_heads, l->key_dim), back;
    memcpy(&back, queries, sizeof back);
    float row[256];
    for (uint32_t t = 0; t < rows; t++)
        for (uint32_t h = 0; h < l->q_heads; h++) {
            kvant_load_row(queries, first + t, h, row);
            kvant_store_row(&q, t, h, row);
            a.view = read_only(&q);
            kvant_load_row(&a.view, t, h, row);
            kvant_store_row(&back, first + t, h, row); /* rounded */
        }
    a.queries = copy_of(&a.view);
    a.view.data = (const void *)(uintptr_t)a.queries.address;
    a.out = dense(a.memory[1], KVANT_DTYPE_F32, rows, l->q_heads, l->value_dim);
    kvant_view out = read_only(&a.out);
    a.outputs = copy_of(&out);
    a.out.data = (void *)(uintptr_t)a.outputs.address;
    kvant_mutable_view sums = dense(a.memory[2], KVANT_DTYPE_F32, rows, l->q_heads, 1);
    out = read_only(&sums);
    a.sums = copy_of(&out);
    return a;
}

/* Rows of the query heads [head, head + heads) to where the caller wants them. */
static void answer(const asked *a, const kvant_mutable_view *to, float *sums, uint32_t first, uint32_t head,
                   uint32_t heads) {
    must(kvant_device_read(there, a->memory[1], a->outputs.address, a->outputs.size, NULL, NULL), "read");
    must(kvant_device_read(there, a->memory[2], a->sums.address, a->sums.size, NULL, NULL), "read");
    kvant_view out = read_only(&a->out);
    out.data = a->memory[1];
    float row[256];
    for (uint32_t t = 0; t < out.tokens; t++)
        for (uint32_t h = head; h < head + heads; h++) {
            kvant_load_row(&out, t, h, row);
            kvant_store_row(to, first + t, h, row);
            if (sums == NULL) continue;
            memcpy(&sums[(size_t)(first + t) * out.heads + h],
                   (float *)a->memory[2] + (size_t)t * out.heads + h, sizeof *sums);
        }
}

static void forget(asked *a) {
    give(&a->queries);
    give(&a->outputs);
    give(&a->sums);
    for (uint32_t i = 0; i < 3; i++) free(a->memory[i]);
}

enum { PARTS = 8 };

kvant_status WRAP(kvant_step_attend)(kvant_cache *cache, uint32_t layer, const kvant_step_rows *rows,
                                     uint32_t count, const kvant_attention_options *options,
                                     kvant_diag *diag) {
    kvant_step_rows parts[PARTS] = {0};
    given g[PARTS];
    asked a[PARTS];
    bool known = there != NULL && cache != NULL && cache->device != NULL && count > 0 && count <= PARTS;
    bool refused = false;
    for (uint32_t i = 0; i < count && known; i++) {
        const kvant_step_rows *r = step_rows_at(rows, i);
        known = is_taken(r->sequence, layer, 0, r->keys) && is_taken(r->sequence, layer, 1, r->values);
    }
    if (!known) return REAL(kvant_step_attend)(cache, layer, rows, count, options, diag);
    for (uint32_t i = 0; i < count; i++) {
        const kvant_step_rows *r = step_rows_at(rows, i);
        g[i] = take(r->sequence, layer, r->keys, r->values);
        a[i] = ask(cache, layer, r->queries, 0, r->queries->tokens);
        parts[i] = *r;
        parts[i].struct_size = sizeof parts[i];
        parts[i].keys = &g[i].views[0];
        parts[i].values = &g[i].views[1];
        parts[i].queries = &a[i].view;
        parts[i].outputs = &a[i].out;
        parts[i].log_sum_exp = r->log_sum_exp != NULL ? (float *)(uintptr_t)a[i].sums.address : NULL;
        refused = refused || g[i].refused;
    }
    kvant_status status = REAL(kvant_step_attend)(cache, layer, parts, count, options, diag);
    for (uint32_t i = 0; i < count; i++) {
        const kvant_step_rows *r = step_rows_at(rows, i);
        if (status == KVANT_OK) answer(&a[i], r->outputs, r->log_sum_exp, 0, 0, a[i].out.heads);
        forget(&a[i]);
        for (uint32_t side = 0; side < 2; side++) give(&g[i].rows[side]);
        if (refused) (void)refuse(r->sequence, diag);
    }
    return status == KVANT_OK && refused ? KVANT_ERROR_NOT_FINITE : status;
}

/* Any ranges: each row is one of its own, whose window is what it sees; those that see nothing are not
 * asked. */
static kvant_status attend_part(const kvant_cache *cache, uint32_t layer, const kvant_attend_part *part,
                                const kvant_attention_options *options, kvant_diag *diag) {
    const kvant_layer_geometry *l = kvant_layer_at(&cache->plan->geometry, layer);
    uint32_t group = l->q_heads / l->kv_heads,
             kv_heads = options->kv_heads != 0 ? options->kv_heads : l->kv_heads;
    uint32_t head = options->first_kv_head * group, heads = kv_heads * group;
    uint32_t step = part->ranges != NULL ? 1 : part->queries->tokens;
    kvant_attention_options all = *options;
    all.first_kv_head = all.kv_heads = 0;
    kvant_status status = KVANT_OK;
    for (uint32_t first = 0; first < part->queries->tokens && status == KVANT_OK; first += step) {
        asked a = ask(cache, layer, part->queries, first, step);
        kvant_attend_part own = *part;
        own.struct_size = sizeof own;
        own.queries = &a.view;
        own.outputs = &a.out;
        own.log_sum_exp = (float *)(uintptr_t)a.sums.address;
        const kvant_token_range *range = part->ranges != NULL ? &part->ranges[first] : NULL;
        if (range != NULL) own.ranges = range;
        if (range != NULL && range->from >= range->to) {
            float nothing[4096] = {0};
            for (uint32_t h = 0; h < l->q_heads; h++) nothing[h] = -INFINITY;
            must(kvant_device_write(there, a.sums.address, nothing, a.sums.size, NULL, NULL), "write");
            memset(nothing, 0, sizeof nothing);
            must(kvant_device_write(there, a.outputs.address, nothing, a.outputs.size, NULL, NULL), "write");
        } else {
            status = REAL(kvant_cache_attend)(cache, layer, &own, 1, &all, NULL, 0, diag);
        }
        if (status == KVANT_OK) answer(&a, part->outputs, part->log_sum_exp, first, head, heads);
        forget(&a);
    }
    return status;
}

kvant_status WRAP(kvant_cache_attend)(const kvant_cache *cache, uint32_t layer,
                                      const kvant_attend_part *parts, uint32_t count,
                                      const kvant_attention_options *options, void *scratch, size_t size,
                                      kvant_diag *diag) {
    if (there == NULL || cache == NULL || cache->device == NULL)
        return REAL(kvant_cache_attend)(cache, layer, parts, count, options, scratch, size, diag);
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++)
        status = attend_part(cache, layer, attend_part_at(parts, i), options, diag);
    return status;
}

size_t WRAP(kvant_cache_attend_scratch)(const kvant_cache *cache, uint32_t layer,
                                        const kvant_attend_part *parts, uint32_t count,
                                        const kvant_attention_options *options) {
    size_t bytes = REAL(kvant_cache_attend_scratch)(cache, layer, parts, count, options);
    return there != NULL && cache->device != NULL ? 64 : bytes;
}

/* ---- Reads and caches ---------------------------------------------------------------------------------- */

kvant_status WRAP(kvant_sequence_read)(const kvant_sequence *s, uint32_t layer, uint32_t side, uint64_t first,
                                       const kvant_mutable_view *rows, void *scratch, kvant_diag *diag) {
    if (!is_there(s) || rows == NULL || rows->data == NULL || rows->tokens == 0)
        return REAL(kvant_sequence_read)(s, layer, side, first, rows, scratch, diag);
    kvant_view view = read_only(rows);
    kvant_mutable_view to = *rows;
    copied c = copy_of(&view);
    to.data = (void *)(uintptr_t)moved(&c, rows->data);
    kvant_status status = REAL(kvant_sequence_read)(s, layer, side, first, &to, NULL, diag);
    if (status == KVANT_OK) must(kvant_device_read(there, c.first, c.address, c.size, NULL, NULL), "read");
    give(&c);
    return status;
}

kvant_status WRAP(kvant_cache_open)(const kvant_plan *plan, const kvant_cache_options *options,
                                    kvant_cache **cache, kvant_diag *diag) {
    kvant_cache_options own = {0};
    if (there == NULL || options == NULL) return REAL(kvant_cache_open)(plan, options, cache, diag);
    memcpy(&own, options, options->struct_size < sizeof own ? options->struct_size : sizeof own);
    own.device = there;
    return REAL(kvant_cache_open)(plan, &own, cache, diag);
}
