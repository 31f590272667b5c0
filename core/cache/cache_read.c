/* kvant_sequence_read: the rows that queries see, decoded or raw. See cache.h. */
#include "cache/place.h"
#include "cache/sequence.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

/* Scratch: the codec's | one row of floats. */
static size_t row_floats(const kvant_cache *cache) {
    uint32_t most = 0;
    for (uint32_t layer = 0; layer < cache->shape.layer_count; layer++) {
        const kvant_layer_geometry *l = kvant_layer_at(&cache->plan->geometry, layer);
        if (l->key_dim > most) most = l->key_dim;
        if (l->value_dim > most) most = l->value_dim;
    }
    return (most * sizeof(float) + 63) / 64 * 64;
}

size_t kvant_cache_read_scratch(const kvant_cache *cache) {
    return cache != NULL && cache->device == NULL ? (size_t)cache->shape.encode_scratch + row_floats(cache)
                                                  : 0;
}

/* Pieces of the read, handed to the place some at a time. */
enum { PIECES = 32 };
typedef struct read_call {
    const kvant_sequence *s;
    uint32_t layer, side;
    uint64_t first;
    const kvant_mutable_view *rows;
    void *scratch;
    kvant_diag *diag;
    kvant_status status;
    uint32_t count;
    cache_piece pieces[PIECES];
} read_call;

static void read_pieces(read_call *call) {
    if (call->status == KVANT_OK && call->count > 0)
        call->status = call->s->cache->place->read(call->s, call->layer, call->side, call->pieces,
                                                   call->count, call->scratch, call->diag);
    call->count = 0;
}

/* The next piece, with where the tokens [first, end) go. */
static cache_piece *add_piece(read_call *call, uint64_t first, uint64_t end) {
    if (call->count == PIECES) read_pieces(call);
    cache_piece *piece = &call->pieces[call->count++];
    *piece = (cache_piece){.to = *call->rows};
    piece->to.data = kvant_mutable_view_at(call->rows, (uint32_t)(first - call->first), 0);
    piece->to.tokens = (uint32_t)(end - first);
    return piece;
}

/* base: position of row 0 of `rows`. */
static void add_raw(read_call *call, kvant_mutable_view rows, uint64_t base, uint64_t first, uint64_t end) {
    kvant_view from = cache_view(rows);
    add_piece(call, first, end)->raw =
        cache_view_part(&from, (uint32_t)(first - base), (uint32_t)(end - first));
}

static void add_block(read_call *call, const cache_block *block, uint64_t first, uint64_t end) {
    const kvant_cache *cache = call->s->cache;
    uint64_t sinks = block->sinks != NULL ? cache->shape.sinks : 0;
    if (first < sinks) {
        uint64_t until = end < sinks ? end : sinks;
        add_raw(call, cache_sink_rows(cache, block->sinks, call->layer, call->side, (uint32_t)sinks), 0,
                first, until);
        first = until;
    }
    if (first >= end) return;
    cache_piece *piece = add_piece(call, first, end);
    piece->block = block;
    piece->first_token = (uint32_t)(first - block->first_position);
}

static kvant_status check(const kvant_sequence *s, uint32_t layer, uint32_t side, uint64_t first,
                          const kvant_mutable_view *rows, const void *scratch, kvant_diag *diag) {
    if (s == NULL || rows == NULL || rows->struct_size < sizeof *rows || rows->data == NULL)
        return REFUSE(
            KVANT_ERROR_ARGUMENT, "",
            "kvant_sequence_read: sequence or rows are NULL, hold no data, or their struct_size is not %zu",
            sizeof *rows);
    if (layer >= s->cache->shape.layer_count || side > KVANT_SIDE_VALUE)
        return REFUSE(KVANT_ERROR_ARGUMENT, "layer", "kvant_sequence_read: there is no layer %u, side %u",
                      layer, side);
    const kvant_layer_geometry *l = kvant_layer_at(&s->cache->plan->geometry, layer);
    uint32_t dim = side == KVANT_SIDE_KEY ? l->key_dim : l->value_dim;
    if (rows->dtype != KVANT_DTYPE_F32 && rows->dtype != KVANT_DTYPE_F16 && rows->dtype != KVANT_DTYPE_BF16)
        return REFUSE(KVANT_ERROR_DTYPE, "rows",
                      "kvant_sequence_read: rows of type %u; F32, F16 or BF16 are written", rows->dtype);
    if (rows->heads != l->kv_heads || rows->head_dim != dim)
        return REFUSE(KVANT_ERROR_ARGUMENT, "rows",
                      "kvant_sequence_read: rows of [%u, %u] for each token, and layer %u has [%u, %u]",
                      rows->heads, rows->head_dim, layer, l->kv_heads, dim);
    if (first > s->length || rows->tokens > s->length - first)
        return REFUSE(KVANT_ERROR_ARGUMENT, "first",
                      "kvant_sequence_read: positions %llu to %llu, and there are %llu",
                      (unsigned long long)first, (unsigned long long)(first + rows->tokens),
                      (unsigned long long)s->length);
    if (s->cache->device == NULL && (scratch == NULL || ((uintptr_t)scratch & 63) != 0))
        return REFUSE(KVANT_ERROR_ARGUMENT, "scratch",
                      "kvant_sequence_read: scratch is NULL or not aligned to 64 bytes");
    return KVANT_OK;
}

/* The first token of [first, end) that nobody sees. */
static kvant_status check_live(const kvant_sequence *s, uint32_t layer, uint64_t first, uint64_t end,
                               kvant_diag *diag) {
    uint64_t released = s->passed[layer] > 0 ? cache_block_end(s, s->passed[layer] - 1) : 0;
    for (uint32_t i = 0; i < s->dropped_count; i++)
        if (s->dropped[i].first < end && first < s->dropped[i].end) {
            uint64_t token = s->dropped[i].first > first ? s->dropped[i].first : first;
            if (first < released && first < token) break;
            return REFUSE(KVANT_ERROR_ARGUMENT, "first",
                          "kvant_sequence_read: the token at position %llu was dropped",
                          (unsigned long long)token);
        }
    if (first < end && first < released)
        return REFUSE(KVANT_ERROR_ARGUMENT, "first",
                      "kvant_sequence_read: the token at position %llu was released: layer %u sees %u tokens",
                      (unsigned long long)first, layer, s->cache->shape.layers[layer].window);
    return KVANT_OK;
}

kvant_status kvant_sequence_read(const kvant_sequence *sequence, uint32_t layer, uint32_t side,
                                 uint64_t first, const kvant_mutable_view *rows, void *scratch,
                                 kvant_diag *diag) {
    kvant_status status = check(sequence, layer, side, first, rows, scratch, diag);
    if (status == KVANT_OK) status = check_live(sequence, layer, first, first + rows->tokens, diag);
    if (status != KVANT_OK) return status;
    const kvant_sequence *s = sequence;
    uint32_t block_tokens = s->cache->shape.block_tokens;
    uint64_t end = first + rows->tokens;
    read_call call;
    call.s = s;
    call.layer = layer;
    call.side = side;
    call.first = first;
    call.rows = rows;
    call.scratch = scratch;
    call.diag = diag;
    call.status = KVANT_OK;
    call.count = 0;
    for (uint32_t i = 0; i < s->block_count && call.status == KVANT_OK; i++) {
        uint64_t from = s->blocks[i]->first_position, to = cache_block_end(s, i);
        if (from < first) from = first;
        if (to > end) to = end;
        if (from < to) add_block(&call, s->blocks[i], from, to);
    }
    for (uint32_t i = 0; i < s->page_count && call.status == KVANT_OK; i++) {
        uint64_t base = s->tail_first + (uint64_t)i * block_tokens, from = base, to = base + block_tokens;
        if (from < first) from = first;
        if (to > end) to = end;
        if (from >= to) continue;
        add_raw(&call, cache_page_rows(s->cache, s->pages[i], layer, side, 0, block_tokens), base, from, to);
    }
    read_pieces(&call);
    status = s->cache->place->settle(s->cache, call.status == KVANT_OK ? diag : NULL);
    return call.status != KVANT_OK ? call.status : status;
}
