/* The oracle's attention: kvant_attention_run on references and raw rows of its own, compared bit for bit
 * with what a cache gave. Runs are cut where a cache has its pages, every block_tokens from the tail's
 * first token on: the order in which the floor adds depends on where runs begin. */
#include "data/blocks.h"
#include "replay/replay_codes.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <math.h>
#include <string.h>

kvant_attention_options kvant_replay_attention_options(const kvant_replay_oracle *o, uint32_t layer) {
    float scale = o->scale != 0 ? o->scale : 1.0f / sqrtf((float)replay_layer(o, layer)->key_dim);
    return (kvant_attention_options){.struct_size = sizeof(kvant_attention_options), .scale = scale};
}

/* The arguments of one call, in memory of the oracle's. */
typedef struct lists {
    kvant_reference *references;
    uint32_t reference_count, reference_room;
    kvant_raw_run *runs;
    kvant_view (*views)[2];
    uint32_t run_count, run_room;
    kvant_token_range *ranges;
    uint64_t first; /* position of raw row 0 in tail[] */
} lists;

static bool make_lists(kvant_replay_oracle *o, const replay_history *h, uint32_t queries, lists *l) {
    uint64_t pages = (h->length - h->tail_first) / o->info.block_tokens + 1;
    l->reference_room = h->block_count + h->dropped_count + 1;
    l->run_room = (uint32_t)pages + 2 * h->dropped_count + 3;
    size_t references = l->reference_room * sizeof *l->references, runs = l->run_room * sizeof *l->runs,
           views = l->run_room * sizeof *l->views, ranges = (queries + 1) * sizeof *l->ranges;
    if (!replay_room_for(&o->lists, references + runs + views + ranges)) return false;
    l->references = (kvant_reference *)(void *)o->lists.bytes;
    l->runs = (kvant_raw_run *)(void *)(o->lists.bytes + references);
    l->views = (kvant_view(*)[2])(void *)(o->lists.bytes + references + runs);
    l->ranges = (kvant_token_range *)(void *)(o->lists.bytes + references + runs + views);
    return true;
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

/* What lives of a block, a reference for each piece. */
static void refer_to(const kvant_replay_oracle *o, const replay_history *h, uint32_t block, kvant_reference r,
                     lists *l) {
    uint64_t end = replay_history_block_end(h, block), next;
    uint64_t p = r.first_position < o->info.sinks ? o->info.sinks : r.first_position;
    for (; p < end; p = next) {
        bool live;
        next = replay_history_run(h, p, end, &live);
        if (!live) continue;
        r.live_first = (uint32_t)(p - r.first_position);
        r.live_count = (uint32_t)(next - p);
        l->references[l->reference_count++] = r;
    }
}

static kvant_status add_blocks(kvant_replay_oracle *o, uint32_t layer, const replay_history *h, uint64_t from,
                               lists *l, kvant_diag *diag) {
    for (uint32_t side = 0; side < 2; side++)
        if (!replay_room_for(&o->coded[side], (size_t)h->block_count * o->kept[layer * 2 + side].stride))
            return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    for (uint32_t b = 0; b < h->block_count; b++) {
        kvant_reference r = {.first_position = h->blocks[b].first};
        if (replay_history_block_end(h, b) <= from) continue; /* no query's window reaches it */
        for (uint32_t side = 0; side < 2; side++) {
            const void *extent = NULL;
            uint64_t size = 0;
            unsigned char *own = o->coded[side].bytes + b * o->kept[layer * 2 + side].stride;
            kvant_status status = replay_codes_get(o, layer, side, h, b, &extent, &size, diag);
            if (status != KVANT_OK) return status;
            memcpy(own, extent, (size_t)size);
            *(side == KVANT_SIDE_KEY ? &r.key : &r.value) = own;
            *(side == KVANT_SIDE_KEY ? &r.key_size : &r.value_size) = size;
        }
        refer_to(o, h, b, r, l);
    }
    return KVANT_OK;
}

/* ---- Raw rows ------------------------------------------------------------------------------------------ */

static void add_run(const kvant_replay_oracle *o, uint32_t layer, const void *keys, const void *values,
                    uint64_t position, uint32_t count, lists *l) {
    uint32_t i = l->run_count++, heads = replay_layer(o, layer)->kv_heads, dtype = o->geometry->dtype;
    l->views[i][0] = kvant_rows_view(keys, dtype, count, heads, replay_dim(o, layer, KVANT_SIDE_KEY));
    l->views[i][1] = kvant_rows_view(values, dtype, count, heads, replay_dim(o, layer, KVANT_SIDE_VALUE));
    l->runs[i] =
        (kvant_raw_run){.keys = &l->views[i][0], .values = &l->views[i][1], .first_position = position};
}

/* What lives of [first, end), whose rows lie in tail[] from row `at` on. */
static void add_live(const kvant_replay_oracle *o, uint32_t layer, const replay_history *h, uint64_t first,
                     uint64_t end, uint64_t at, lists *l) {
    size_t key = replay_row_bytes(o, layer, KVANT_SIDE_KEY),
           value = replay_row_bytes(o, layer, KVANT_SIDE_VALUE);
    for (uint64_t p = first, next; p < end; p = next) {
        bool live;
        next = replay_history_run(h, p, end, &live);
        uint64_t row = at + p - first;
        if (live)
            add_run(o, layer, o->tail[0].bytes + row * key, o->tail[1].bytes + row * value, p,
                    (uint32_t)(next - p), l);
    }
}

static kvant_status add_raw(kvant_replay_oracle *o, uint32_t layer, const replay_history *h, lists *l,
                            kvant_diag *diag) {
    uint32_t sinks = h->block_count > 0 ? o->info.sinks : 0;
    uint64_t tail = h->length - h->tail_first;
    for (uint32_t side = 0; side < 2; side++) {
        size_t row = replay_row_bytes(o, layer, side);
        if (!replay_room_for(&o->tail[side], (size_t)(sinks + tail) * row + 1))
            return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
        kvant_replay_rows_fill(o->rows, layer, side, h->origins, 0, sinks, o->tail[side].bytes);
        kvant_replay_rows_fill(o->rows, layer, side, h->origins + h->tail_first, h->tail_first,
                               (uint32_t)tail, o->tail[side].bytes + sinks * row);
    }
    add_live(o, layer, h, 0, sinks, 0, l);
    for (uint64_t p = h->tail_first; p < h->length; p += o->info.block_tokens) {
        uint64_t end = p + o->info.block_tokens < h->length ? p + o->info.block_tokens : h->length;
        add_live(o, layer, h, p, end, sinks + p - h->tail_first, l);
    }
    return KVANT_OK;
}

/* ---- The call ------------------------------------------------------------------------------------------ */

static kvant_status compare(const kvant_replay_oracle *o, const replay_attended *a, uint64_t position,
                            const float *outputs, const float *log_sum_exp, kvant_diag *diag) {
    const kvant_layer_geometry *g = replay_layer(o, a->layer);
    uint32_t heads = g->q_heads, dim = g->value_dim;
    size_t sums = (size_t)a->queries * heads, elements = sums * dim, i = 0;
    if (memcmp(a->log_sum_exp, log_sum_exp, sums * sizeof(float)) != 0) {
        while (memcmp(a->log_sum_exp + i, log_sum_exp + i, sizeof(float)) == 0) i++;
        return kvant_fail(
            diag, KVANT_ERROR_MISMATCH, "attention",
            "layer %u, log-sum-exp of the query at token %llu, head %zu: the cache gives %.9g, and "
            "%.9g is right",
            a->layer, (unsigned long long)(position + i / heads), i % heads, (double)a->log_sum_exp[i],
            (double)log_sum_exp[i]);
    }
    if (memcmp(a->outputs, outputs, elements * sizeof(float)) == 0) return KVANT_OK;
    while (memcmp(a->outputs + i, outputs + i, sizeof(float)) == 0) i++;
    return kvant_fail(diag, KVANT_ERROR_MISMATCH, "attention",
                      "layer %u, output of the query at token %llu, head %zu, channel %zu: the cache gives "
                      "%.9g, and %.9g is right",
                      a->layer, (unsigned long long)(position + i / dim / heads), i / dim % heads, i % dim,
                      (double)a->outputs[i], (double)outputs[i]);
}

static kvant_status run(kvant_replay_oracle *o, const replay_attended *a, lists *l, uint64_t position,
                        kvant_diag *diag) {
    const kvant_layer_geometry *g = replay_layer(o, a->layer);
    size_t sums = (size_t)a->queries * g->q_heads, outputs = sums * g->value_dim;
    size_t scratch = kvant_attention_scratch_bytes(o->attention[a->layer], 1, a->queries);
    if (!replay_room_for(&o->expected, (outputs + sums) * sizeof(float)) ||
        !replay_room_for(&o->scratch, scratch))
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    float *rows = (float *)(void *)o->expected.bytes;
    memset(rows, 0xa5, (outputs + sums) * sizeof *rows);
    kvant_view queries = kvant_rows_view(a->query_rows, KVANT_DTYPE_F32, a->queries, g->q_heads, g->key_dim);
    kvant_mutable_view out = {.struct_size = sizeof out,
                              .dtype = KVANT_DTYPE_F32,
                              .data = rows,
                              .tokens = a->queries,
                              .heads = g->q_heads,
                              .head_dim = g->value_dim,
                              .token_stride = (int64_t)(g->q_heads * g->value_dim * sizeof *rows),
                              .head_stride = (int64_t)(g->value_dim * sizeof *rows),
                              .channel_stride = sizeof *rows};
    kvant_token_range_causal(position, a->queries, g->window, l->ranges);
    kvant_attention_sequence sequence = {.struct_size = sizeof sequence,
                                         .reference_count = l->reference_count,
                                         .run_count = l->run_count,
                                         .references = l->references,
                                         .runs = l->runs,
                                         .queries = &queries,
                                         .ranges = l->ranges,
                                         .outputs = &out,
                                         .log_sum_exp = rows + outputs};
    kvant_attention_options options = kvant_replay_attention_options(o, a->layer);
    kvant_status status = kvant_attention_run(o->attention[a->layer], &sequence, 1, &options,
                                              o->scratch.bytes, o->scratch.size, diag);
    o->compared.outputs += a->queries;
    return status == KVANT_OK ? compare(o, a, position, rows, rows + outputs, diag) : status;
}

kvant_status kvant_replay_check_attention(kvant_replay_oracle *o, const replay_history *h,
                                          const replay_attended *a, kvant_diag *diag) {
    lists l = {0};
    uint32_t window = replay_layer(o, a->layer)->window;
    uint64_t position = h->length + a->count - a->queries; /* of the first query */
    uint64_t from = window == 0 || position + 1 < window ? 0 : position + 1 - window;
    if (!make_lists(o, h, a->queries, &l)) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    kvant_status status = add_blocks(o, a->layer, h, from, &l, diag);
    if (status == KVANT_OK) status = add_raw(o, a->layer, h, &l, diag);
    if (status != KVANT_OK) return status;
    if (a->count > 0) add_run(o, a->layer, a->keys, a->values, h->length, a->count, &l);
    return run(o, a, &l, position, diag);
}
