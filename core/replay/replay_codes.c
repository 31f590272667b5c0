/* See replay_codes.h. Each layer and side keeps as many extents as it has slots; a block has one slot where
 * it may lie, by a hash of what it was encoded from, and takes it from whoever is there. */
#include "replay/replay_codes.h"

#include "data/blocks.h"
#include "pipeline/plan.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <stdlib.h>
#include <string.h>

enum { SLOTS_LEAST = 16, SLOTS_MOST = 1 << 16 };

bool replay_room_for(replay_room *room, size_t size) {
    if (size <= room->size) return true;
    size_t more = (size + size / 2 + 63) & ~(size_t)63;
    free(room->bytes);
    room->bytes = aligned_alloc(64, more);
    room->size = room->bytes != NULL ? more : 0;
    return room->bytes != NULL;
}

const kvant_layer_geometry *replay_layer(const kvant_replay_oracle *o, uint32_t layer) {
    return kvant_layer_at(o->geometry, layer);
}

uint32_t replay_dim(const kvant_replay_oracle *o, uint32_t layer, uint32_t side) {
    return side == KVANT_SIDE_KEY ? replay_layer(o, layer)->key_dim : replay_layer(o, layer)->value_dim;
}

size_t replay_row_bytes(const kvant_replay_oracle *o, uint32_t layer, uint32_t side) {
    return (size_t)replay_layer(o, layer)->kv_heads * replay_dim(o, layer, side) *
           kvant_element_bytes(o->geometry->dtype);
}

/* ---- Open ---------------------------------------------------------------------------------------------- */

kvant_status replay_codes_open(kvant_replay_oracle *o, uint64_t memory, kvant_diag *diag) {
    uint32_t layers = o->geometry->layer_count;
    uint64_t all = 0;
    o->kept = calloc((size_t)layers * 2, sizeof *o->kept);
    if (o->kept == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    for (uint32_t i = 0; i < layers * 2; i++) {
        size_t most = kvant_codec_extent_max(kvant_attention_codec(o->attention[i / 2], i % 2));
        o->kept[i].stride = (most + 63) & ~(size_t)63;
        all += o->kept[i].stride;
    }
    uint64_t slots = memory / all;
    o->slots = (uint32_t)(slots < SLOTS_LEAST ? SLOTS_LEAST : slots > SLOTS_MOST ? SLOTS_MOST : slots);
    for (uint32_t i = 0; i < layers * 2; i++) {
        replay_kept *k = &o->kept[i];
        k->extents = aligned_alloc(64, o->slots * k->stride);
        k->marks = calloc(o->slots, sizeof *k->marks);
        k->sizes = calloc(o->slots, sizeof *k->sizes);
        if (k->extents == NULL || k->marks == NULL || k->sizes == NULL)
            return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    }
    return KVANT_OK;
}

void replay_codes_close(kvant_replay_oracle *o) {
    for (uint32_t i = 0; o->kept != NULL && i < o->geometry->layer_count * 2; i++) {
        free(o->kept[i].extents);
        free(o->kept[i].marks);
        free(o->kept[i].sizes);
    }
    free(o->kept);
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

/* A hash of all that a block's bytes follow from, in a layer and side. Not 0. */
static uint64_t mark_of(const kvant_replay_oracle *o, const replay_history *h, uint32_t block) {
    const uint64_t *origins = replay_history_block_origins(h, block);
    const uint8_t *tags = replay_history_block_tags(h, block);
    uint64_t mark = kvant_replay_mix(2, h->blocks[block].first);
    for (uint32_t t = 0; t < o->info.block_tokens; t++)
        mark = kvant_replay_mix(mark, kvant_replay_mix(origins[t], tags[t]));
    return mark != 0 ? mark : 1;
}

kvant_status replay_codes_get(kvant_replay_oracle *o, uint32_t layer, uint32_t side, const replay_history *h,
                              uint32_t block, const void **extent, uint64_t *size, kvant_diag *diag) {
    replay_kept *k = &o->kept[layer * 2 + side];
    const kvant_codec *codec = kvant_attention_codec(o->attention[layer], side);
    const kvant_layer_geometry *g = replay_layer(o, layer);
    uint64_t mark = mark_of(o, h, block), first = h->blocks[block].first;
    uint32_t tokens = o->info.block_tokens, slot = (uint32_t)(mark % o->slots);
    *extent = k->extents + slot * k->stride;
    *size = k->sizes[slot];
    if (k->marks[slot] == mark) return KVANT_OK;
    if (!replay_room_for(&o->raw, tokens * replay_row_bytes(o, layer, side)) ||
        !replay_room_for(&o->scratch, kvant_codec_scratch_bytes(codec)))
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    kvant_replay_rows_fill(o->rows, layer, side, replay_history_block_origins(h, block), first, tokens,
                           o->raw.bytes);
    kvant_view rows =
        kvant_rows_view(o->raw.bytes, o->geometry->dtype, tokens, g->kv_heads, replay_dim(o, layer, side));
    kvant_encode_report report = {.struct_size = sizeof report};
    k->marks[slot] = 0;
    kvant_status status =
        kvant_codec_encode(codec, &rows, first, replay_history_block_tags(h, block),
                           k->extents + slot * k->stride, k->stride, o->scratch.bytes, &report, diag);
    if (status != KVANT_OK) return status;
    k->marks[slot] = mark;
    *size = k->sizes[slot] = report.size;
    return KVANT_OK;
}
