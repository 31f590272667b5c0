/* See replay_history.h. */
#include "replay/replay_history.h"

#include "replay/replay_rows.h"

#include <stdlib.h>
#include <string.h>

void replay_history_init(replay_history *h, uint32_t block_tokens, uint32_t sinks, uint32_t recent,
                         uint64_t begin) {
    *h = (replay_history){.block_tokens = block_tokens,
                          .sinks = sinks,
                          .recent = recent,
                          .begin = begin,
                          .private_first = UINT64_MAX};
}

void replay_history_free(replay_history *h) {
    for (uint32_t i = 0; i < h->block_count; i++) free(h->blocks[i].origins);
    free(h->blocks);
    free(h->origins);
    free(h->tags);
    free(h->dropped);
    *h = (replay_history){0};
}

/* ---- Growing ------------------------------------------------------------------------------------------- */

static bool reserve(void **memory, uint64_t count, size_t size) {
    void *more = realloc(*memory, (size_t)count * size);
    if (more == NULL) return false;
    *memory = more;
    return true;
}

static bool reserve_tokens(replay_history *h, uint64_t need) {
    uint64_t capacity = h->capacity < 64 ? 64 : h->capacity;
    if (need <= h->capacity) return true;
    while (capacity < need) capacity += capacity / 2;
    if (!reserve((void **)&h->origins, capacity, sizeof *h->origins) ||
        !reserve((void **)&h->tags, capacity, 1))
        return false;
    h->capacity = capacity;
    return true;
}

bool replay_history_append(replay_history *h, const uint64_t *origins, const uint8_t *tags, uint32_t count) {
    if (!reserve_tokens(h, h->length + count)) return false;
    memcpy(h->origins + h->length, origins, count * sizeof *origins);
    memcpy(h->tags + h->length, tags, count);
    h->length += count;
    return true;
}

uint64_t replay_history_limit(const replay_history *h, uint32_t count, uint32_t tentative) {
    uint64_t sure = h->length + count - tentative;
    return sure < h->recent ? 0 : sure - h->recent;
}

static bool add_block(replay_history *h, replay_block block) {
    if (h->block_count == h->block_capacity) {
        uint32_t capacity = h->block_capacity < 8 ? 8 : 2 * h->block_capacity;
        if (!reserve((void **)&h->blocks, capacity, sizeof *h->blocks)) return false;
        h->block_capacity = capacity;
    }
    h->blocks[h->block_count++] = block;
    return true;
}

bool replay_history_seal(replay_history *h, uint64_t limit) {
    for (; h->tail_first + h->block_tokens <= limit; h->tail_first += h->block_tokens)
        if (!add_block(h, (replay_block){.first = h->tail_first})) return false;
    return true;
}

/* ---- Cutting ------------------------------------------------------------------------------------------- */

static void cut_dropped(replay_history *h, uint64_t length) {
    while (h->dropped_count > 0 && h->dropped[h->dropped_count - 1].first >= length) h->dropped_count--;
    if (h->dropped_count > 0 && h->dropped[h->dropped_count - 1].end > length)
        h->dropped[h->dropped_count - 1].end = length;
}

/* The block's tokens in memory of its own, before the sequence forgets the last of them. */
static bool keep_block(const replay_history *h, replay_block *block) {
    if (block->origins != NULL) return true;
    uint64_t *own = malloc(h->block_tokens * (sizeof *own + 1u));
    if (own == NULL) return false;
    block->tags = (uint8_t *)(own + h->block_tokens);
    memcpy(own, h->origins + block->first, h->block_tokens * sizeof *own);
    memcpy(block->tags, h->tags + block->first, h->block_tokens);
    block->origins = own;
    return true;
}

static void pop_block(replay_history *h) {
    free(h->blocks[--h->block_count].origins);
}

bool replay_history_truncate(replay_history *h, uint64_t length) {
    bool inside = false;
    if (length < h->tail_first) {
        while (h->block_count > 0 && h->blocks[h->block_count - 1].first >= length) pop_block(h);
        h->tail_first = length;
        if (length <= h->sinks) { /* all that is left are sinks, which are raw */
            while (h->block_count > 0) pop_block(h);
            h->tail_first = 0;
        } else {
            replay_block *last = &h->blocks[h->block_count - 1];
            inside = last->first + h->block_tokens > length;
            if (inside && !keep_block(h, last)) return false;
        }
    }
    h->length = length;
    cut_dropped(h, length);
    if (h->private_first >= length) h->private_first = h->dropped_count > 0 ? length : UINT64_MAX;
    if (inside && length < h->private_first) h->private_first = length;
    return true;
}

bool replay_history_drop(replay_history *h, uint64_t first, uint64_t count) {
    replay_span span = {first, first + count};
    uint32_t at = 0, swallowed = 0;
    while (at < h->dropped_count && h->dropped[at].end < span.first) at++;
    while (at + swallowed < h->dropped_count && h->dropped[at + swallowed].first <= span.end) {
        const replay_span *old = &h->dropped[at + swallowed++];
        if (old->first < span.first) span.first = old->first;
        if (old->end > span.end) span.end = old->end;
    }
    if (h->dropped_count == h->dropped_capacity) {
        uint32_t capacity = h->dropped_capacity < 4 ? 4 : 2 * h->dropped_capacity;
        if (!reserve((void **)&h->dropped, capacity, sizeof *h->dropped)) return false;
        h->dropped_capacity = capacity;
    }
    memmove(h->dropped + at + 1, h->dropped + at + swallowed,
            (h->dropped_count - at - swallowed) * sizeof *h->dropped);
    h->dropped[at] = span;
    h->dropped_count = h->dropped_count + 1 - swallowed;
    if (h->length < h->private_first) h->private_first = h->length;
    return true;
}

bool replay_history_copy(replay_history *to, const replay_history *from) {
    *to = *from;
    to->origins = NULL;
    to->tags = NULL;
    to->blocks = NULL;
    to->dropped = NULL;
    to->capacity = to->length = to->block_count = to->block_capacity = to->dropped_capacity = 0;
    to->dropped_count = 0;
    if (from->length > 0 && !replay_history_append(to, from->origins, from->tags, (uint32_t)from->length))
        return false;
    for (uint32_t i = 0; i < from->block_count; i++) {
        const replay_block *block = &from->blocks[i];
        if (!add_block(to, (replay_block){.first = block->first})) return false;
        if (block->origins == NULL) continue;
        replay_block *copy = &to->blocks[i];
        copy->origins = malloc(from->block_tokens * (sizeof *copy->origins + 1u));
        if (copy->origins == NULL) return false;
        copy->tags = (uint8_t *)(copy->origins + from->block_tokens);
        memcpy(copy->origins, block->origins, from->block_tokens * (sizeof *copy->origins + 1u));
    }
    if (from->dropped_count == 0) return true;
    if (!reserve((void **)&to->dropped, from->dropped_count, sizeof *to->dropped)) return false;
    memcpy(to->dropped, from->dropped, from->dropped_count * sizeof *to->dropped);
    to->dropped_count = to->dropped_capacity = from->dropped_count;
    return true;
}

/* ---- Questions ----------------------------------------------------------------------------------------- */

uint64_t replay_history_block_end(const replay_history *h, uint32_t block) {
    return block + 1 < h->block_count ? h->blocks[block + 1].first : h->tail_first;
}

const uint64_t *replay_history_block_origins(const replay_history *h, uint32_t block) {
    const replay_block *b = &h->blocks[block];
    return b->origins != NULL ? b->origins : h->origins + b->first;
}

const uint8_t *replay_history_block_tags(const replay_history *h, uint32_t block) {
    const replay_block *b = &h->blocks[block];
    return b->origins != NULL ? b->tags : h->tags + b->first;
}

uint64_t replay_history_run(const replay_history *h, uint64_t position, uint64_t end, bool *live) {
    *live = true;
    for (uint32_t i = 0; i < h->dropped_count; i++) {
        const replay_span *d = &h->dropped[i];
        if (d->end <= position) continue;
        *live = d->first > position;
        uint64_t border = *live ? d->first : d->end;
        return border < end ? border : end;
    }
    return end;
}

uint64_t replay_history_live(const replay_history *h) {
    uint64_t live = h->length;
    for (uint32_t i = 0; i < h->dropped_count; i++) live -= h->dropped[i].end - h->dropped[i].first;
    return live;
}

uint64_t replay_history_last(const replay_history *h) {
    return h->length > 0 ? h->origins[h->length - 1] : h->begin;
}

/* Something was dropped, or cut within a block: other rows follow than in a sequence with the same tokens. */
uint64_t replay_history_way(const replay_history *h) {
    uint64_t way = h->private_first == UINT64_MAX ? 0 : kvant_replay_mix(1, h->private_first);
    for (uint32_t i = 0; i < h->dropped_count; i++)
        way = kvant_replay_mix(way, kvant_replay_mix(h->dropped[i].first, h->dropped[i].end));
    return way;
}
