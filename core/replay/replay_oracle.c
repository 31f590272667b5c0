/* The oracle opened, and the comparison of rows and of a sequence's state. See replay_oracle.h. */
#include "replay/replay_oracle.h"

#include "data/blocks.h"
#include "replay/replay_codes.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 256 }; /* tokens that are read at a time */

/* ---- Open ---------------------------------------------------------------------------------------------- */

kvant_status kvant_replay_oracle_open(const kvant_plan *plan, const kvant_replay_rows *rows, uint64_t memory,
                                      float scale, kvant_replay_oracle **out, kvant_diag *diag) {
    *out = NULL;
    kvant_replay_oracle *o = calloc(1, sizeof *o);
    if (o == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    o->plan = plan;
    o->rows = rows;
    o->scale = scale;
    o->info.struct_size = sizeof o->info;
    kvant_status status = kvant_plan_describe(plan, &o->info);
    if (status == KVANT_OK) {
        o->geometry = o->info.geometry;
        o->attention = calloc(o->geometry->layer_count, sizeof *o->attention);
        if (o->attention == NULL) status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    }
    for (uint32_t l = 0; status == KVANT_OK && l < o->geometry->layer_count; l++)
        status = kvant_attention_open(plan, l, &o->attention[l], diag);
    if (status == KVANT_OK) status = replay_codes_open(o, memory, diag);
    if (status == KVANT_OK)
        *out = o;
    else
        kvant_replay_oracle_close(o);
    return status;
}

void kvant_replay_oracle_close(kvant_replay_oracle *o) {
    if (o == NULL) return;
    replay_codes_close(o);
    for (uint32_t l = 0; o->attention != NULL && l < o->geometry->layer_count; l++)
        kvant_attention_close(o->attention[l]);
    free(o->attention);
    replay_room *rooms[] = {&o->raw,      &o->scratch, &o->expected, &o->got,    &o->coded[0],
                            &o->coded[1], &o->lists,   &o->tail[0],  &o->tail[1]};
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++) free(rooms[i]->bytes);
    free(o);
}

replay_compared kvant_replay_oracle_compared(const kvant_replay_oracle *o) {
    return o->compared;
}

/* ---- Expected rows ------------------------------------------------------------------------------------- */

/* Tokens [first, end) of one block, decoded to floats. */
static kvant_status expect_decoded(kvant_replay_oracle *o, uint32_t layer, uint32_t side,
                                   const replay_history *h, uint32_t block, uint64_t first, uint64_t end,
                                   float *out, kvant_diag *diag) {
    const kvant_codec *codec = kvant_attention_codec(o->attention[layer], side);
    const void *extent = NULL;
    uint64_t size = 0, position = h->blocks[block].first;
    kvant_status status = replay_codes_get(o, layer, side, h, block, &extent, &size, diag);
    if (status != KVANT_OK) return status;
    if (!replay_room_for(&o->scratch, kvant_codec_scratch_bytes(codec)))
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    uint32_t heads = replay_layer(o, layer)->kv_heads, dim = replay_dim(o, layer, side);
    kvant_range range = {.struct_size = sizeof range, .first_token = (uint32_t)(first - position)};
    kvant_mutable_view rows = {.struct_size = sizeof rows,
                               .dtype = KVANT_DTYPE_F32,
                               .data = out,
                               .tokens = (uint32_t)(end - first),
                               .heads = heads,
                               .head_dim = dim,
                               .token_stride = (int64_t)(heads * dim * sizeof *out),
                               .head_stride = (int64_t)(dim * sizeof *out),
                               .channel_stride = sizeof *out};
    return kvant_codec_decode(codec, extent, (size_t)size, position, &range, &rows, o->scratch.bytes, diag);
}

/* Tokens that are raw: sinks and tail. */
static kvant_status expect_raw(kvant_replay_oracle *o, uint32_t layer, uint32_t side, const replay_history *h,
                               uint64_t first, uint64_t end, float *out, kvant_diag *diag) {
    uint32_t count = (uint32_t)(end - first), dtype = o->geometry->dtype;
    size_t elements = (size_t)replay_layer(o, layer)->kv_heads * replay_dim(o, layer, side) * count;
    if (!replay_room_for(&o->raw, elements * kvant_element_bytes(dtype)))
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    kvant_replay_rows_fill(o->rows, layer, side, h->origins + first, first, count, o->raw.bytes);
    for (size_t i = 0; i < elements; i++)
        out[i] = kvant_load_element(o->raw.bytes + i * kvant_element_bytes(dtype), dtype);
    return KVANT_OK;
}

/* The end of the tokens from `position` on, below `end`, that lie in the same place; *block = which block, or
 * block_count: they are raw. */
static uint64_t place_of(const replay_history *h, uint64_t position, uint64_t end, uint32_t *block) {
    *block = h->block_count;
    if (position >= h->tail_first) return end;
    uint64_t border = h->sinks;
    if (position >= h->sinks) {
        *block = 0;
        while (replay_history_block_end(h, *block) <= position) ++*block;
        border = replay_history_block_end(h, *block);
    }
    if (border > h->tail_first) border = h->tail_first;
    return border < end ? border : end;
}

static kvant_status expect_rows(kvant_replay_oracle *o, uint32_t layer, uint32_t side,
                                const replay_history *h, uint64_t first, uint64_t end, kvant_diag *diag) {
    size_t row = (size_t)replay_layer(o, layer)->kv_heads * replay_dim(o, layer, side);
    if (!replay_room_for(&o->expected, (end - first) * row * sizeof(float)))
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    kvant_status status = KVANT_OK;
    for (uint64_t p = first, next; status == KVANT_OK && p < end; p = next) {
        uint32_t block;
        next = place_of(h, p, end, &block);
        float *out = (float *)(void *)o->expected.bytes + (p - first) * row;
        status = block < h->block_count ? expect_decoded(o, layer, side, h, block, p, next, out, diag)
                                        : expect_raw(o, layer, side, h, p, next, out, diag);
    }
    return status;
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static const char *side_name(uint32_t side) {
    return side == KVANT_SIDE_KEY ? "key" : "value";
}

static kvant_status compare_rows(const kvant_replay_oracle *o, uint32_t layer, uint32_t side,
                                 const replay_history *h, uint64_t first, uint32_t count, kvant_diag *diag) {
    uint32_t heads = replay_layer(o, layer)->kv_heads, dim = replay_dim(o, layer, side);
    const float *got = (const float *)(const void *)o->got.bytes;
    const float *expected = (const float *)(const void *)o->expected.bytes;
    if (memcmp(got, expected, (size_t)count * heads * dim * sizeof *got) == 0) return KVANT_OK;
    size_t i = 0;
    while (memcmp(got + i, expected + i, sizeof *got) == 0) i++;
    uint64_t token = first + i / (heads * dim);
    return kvant_fail(
        diag, KVANT_ERROR_MISMATCH, side_name(side),
        "layer %u %s, token %llu (%s), head %zu, channel %zu: the cache has %.9g, and %.9g is right", layer,
        side_name(side), (unsigned long long)token, token < h->tail_first ? "encoded" : "raw",
        i / dim % heads, i % dim, (double)got[i], (double)expected[i]);
}

/* At most CHUNK tokens that live. */
static kvant_status check_chunk(kvant_replay_oracle *o, const kvant_sequence *sequence, size_t scratch,
                                const replay_history *h, uint32_t layer, uint32_t side, uint64_t first,
                                uint32_t count, kvant_diag *diag) {
    uint32_t heads = replay_layer(o, layer)->kv_heads, dim = replay_dim(o, layer, side);
    size_t bytes = (size_t)count * heads * dim * sizeof(float);
    kvant_status status = expect_rows(o, layer, side, h, first, first + count, diag);
    if (status != KVANT_OK) return status;
    if (!replay_room_for(&o->got, bytes) || !replay_room_for(&o->scratch, scratch))
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    memset(o->got.bytes, 0xa5, bytes);
    kvant_mutable_view rows = {.struct_size = sizeof rows,
                               .dtype = KVANT_DTYPE_F32,
                               .data = o->got.bytes,
                               .tokens = count,
                               .heads = heads,
                               .head_dim = dim,
                               .token_stride = (int64_t)(heads * dim * sizeof(float)),
                               .head_stride = (int64_t)(dim * sizeof(float)),
                               .channel_stride = sizeof(float)};
    status = kvant_sequence_read(sequence, layer, side, first, &rows, o->scratch.bytes, diag);
    if (status == KVANT_OK) status = compare_rows(o, layer, side, h, first, count, diag);
    o->compared.rows += count;
    return status;
}

/* The first position that a query after the last token sees. */
static uint64_t seen_from(const kvant_replay_oracle *o, uint32_t layer, const replay_history *h) {
    uint32_t window = replay_layer(o, layer)->window;
    return window == 0 || h->length < window ? 0 : h->length + 1 - window;
}

kvant_status kvant_replay_check_rows(kvant_replay_oracle *o, const kvant_sequence *sequence, size_t scratch,
                                     const replay_history *h, uint64_t first, uint64_t end,
                                     kvant_diag *diag) {
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < o->geometry->layer_count * 2; i++) {
        uint64_t from = seen_from(o, i / 2, h), next;
        for (uint64_t p = first > from ? first : from; status == KVANT_OK && p < end; p = next) {
            bool live;
            next = replay_history_run(h, p, end, &live);
            if (next - p > CHUNK) next = p + CHUNK;
            if (live)
                status = check_chunk(o, sequence, scratch, h, i / 2, i % 2, p, (uint32_t)(next - p), diag);
        }
    }
    return status;
}

/* ---- State --------------------------------------------------------------------------------------------- */

kvant_status kvant_replay_check_state(const kvant_sequence *sequence, const replay_history *h,
                                      kvant_diag *diag) {
    kvant_sequence_info info = {.struct_size = sizeof info};
    kvant_status status = kvant_sequence_describe(sequence, &info);
    if (status != KVANT_OK) return kvant_fail(diag, status, "", "the sequence cannot be described");
    const struct {
        const char *what;
        uint64_t got, right;
    } all[] = {{"length", info.length, h->length},
               {"tail_first", info.tail_first, h->tail_first},
               {"live_tokens", info.live_tokens, replay_history_live(h)},
               {"in_step", info.in_step, 0},
               {"private (1 = yes)", info.private_first != UINT64_MAX, h->private_first != UINT64_MAX},
               /* Blocks of which nothing lives need not be there. */
               {"blocks", h->dropped_count > 0 ? h->block_count : info.blocks, h->block_count}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].got != all[i].right)
            return kvant_fail(diag, KVANT_ERROR_MISMATCH, "", "%s of the sequence is %llu, and %llu is right",
                              all[i].what, (unsigned long long)all[i].got, (unsigned long long)all[i].right);
    return KVANT_OK;
}
