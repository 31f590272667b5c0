/* The raw tail of a sequence to one record and back. See cache_record.h. */
#include "cache/cache_record.h"
#include "cache/place.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>
#include <string.h>

enum { KEPT_TENTATIVE = 4096 };

uint64_t cache_tail_max(const cache_shape *shape) {
    return (uint64_t)shape->recent + shape->block_tokens - 1 + KEPT_TENTATIVE;
}

/* How many of `tokens` tokens lie in page `index`. */
static uint32_t in_page(const cache_shape *shape, uint32_t tokens, uint32_t index) {
    uint32_t before = index * shape->block_tokens;
    return tokens - before < shape->block_tokens ? tokens - before : shape->block_tokens;
}

static uint32_t pages_of(const cache_shape *shape, uint32_t tokens) {
    return tokens / shape->block_tokens + (tokens % shape->block_tokens > 0);
}

/* ---- Put ----------------------------------------------------------------------------------------------- */

/* Ids, tags and classes of the pages' tokens, in one allocation that begins with the ids. */
typedef struct tail_tokens {
    uint64_t *ids;
    uint8_t *tags;
    uint8_t *classes;
} tail_tokens;

static bool gather(const kvant_sequence *sequence, uint32_t tokens, tail_tokens *t) {
    const cache_shape *shape = &sequence->cache->shape;
    t->ids = calloc(tokens, sizeof *t->ids + 2);
    if (t->ids == NULL) return false;
    t->tags = (uint8_t *)(t->ids + tokens);
    t->classes = t->tags + tokens;
    for (uint32_t i = 0, at = 0; at < tokens; at += in_page(shape, tokens, i++)) {
        uint32_t count = in_page(shape, tokens, i);
        memcpy(t->ids + at, cache_page_ids(sequence->pages[i]), count * sizeof *t->ids);
        memcpy(t->tags + at, cache_page_tags(shape, sequence->pages[i]), count);
    }
    for (uint32_t i = 0; i < tokens; i++) t->classes[i] = sequence->cache->tag_class[t->tags[i]];
    return true;
}

static size_t tail_bytes(const cache_shape *shape, uint32_t tokens) {
    uint64_t parts = 0;
    for (uint32_t i = 0; i < 2 * shape->layer_count; i++)
        parts += tokens * shape->layers[i / 2].row_bytes[i % 2] + KVANT_RECORD_ALIGNMENT;
    return kvant_record_size(tokens, shape->layer_count, parts);
}

/* All pages' rows of one layer and side, one behind the other: there after settle. */
static kvant_status put_rows(const kvant_sequence *sequence, uint32_t layer, uint32_t side, uint32_t tokens,
                             kvant_record_writer *writer, kvant_diag *diag) {
    kvant_cache *cache = sequence->cache;
    uint64_t row = cache->shape.layers[layer].row_bytes[side];
    unsigned char *to = kvant_record_room(writer, (size_t)(tokens * row));
    if (to == NULL) return KVANT_ERROR_MEMORY;
    for (uint32_t i = 0; i < pages_of(&cache->shape, tokens); i++) {
        uint32_t count = in_page(&cache->shape, tokens, i);
        kvant_mutable_view rows = cache_page_rows(cache, sequence->pages[i], layer, side, 0, count);
        kvant_status status = cache->place->out(cache, to, rows.data, count * row, diag);
        if (status != KVANT_OK) return status;
        to += count * row;
    }
    kvant_record_put_raw(writer, layer, side, (size_t)(tokens * row));
    return KVANT_OK;
}

static kvant_status write_tail(const kvant_sequence *sequence, const tail_tokens *t, kvant_record_head *head,
                               cache_buffer *buffer, size_t *size, kvant_diag *diag) {
    kvant_cache *cache = sequence->cache;
    kvant_record_writer writer;
    kvant_status status = kvant_record_start(&writer, buffer->bytes, buffer->size, head, t->ids, t->tags,
                                             t->classes, sequence->salt, (size_t)sequence->salt_bytes);
    if (status != KVANT_OK) return KVANT_ERROR_MEMORY;
    for (uint32_t i = 0; i < 2 * cache->shape.layer_count && status == KVANT_OK; i++)
        status = put_rows(sequence, i / 2, i % 2, head->tokens, &writer, diag);
    kvant_status settled = cache->place->settle(cache, status == KVANT_OK ? diag : NULL);
    if (status == KVANT_OK) status = settled;
    if (status != KVANT_OK) return status;
    *size = kvant_record_finish(&writer);
    return *size > 0 ? KVANT_OK : KVANT_ERROR_MEMORY;
}

static kvant_status anything(void *context, const void *record, size_t size) {
    (void)context;
    (void)record;
    (void)size;
    return KVANT_OK;
}

/* There, and whole: read, not only looked for, for the reasons of cache_record_save. */
static bool is_stored(kvant_store *store, const kvant_store_key *key) {
    return kvant_store_contains(store, key, NULL) == KVANT_OK &&
           kvant_store_get(store, key, anything, NULL, NULL, NULL) == KVANT_OK;
}

kvant_status cache_tail_put(const kvant_sequence *sequence, uint32_t tokens, kvant_store *store,
                            kvant_store_key *key, uint64_t *bytes, kvant_diag *diag) {
    kvant_cache *cache = sequence->cache;
    uint32_t blocks = sequence->block_count;
    kvant_record_head head = cache_record_head(cache, KVANT_RECORD_TAIL, blocks, tokens,
                                               blocks > 0 ? sequence->blocks[blocks - 1]->entry.key : NULL);
    tail_tokens t;
    cache_buffer *buffer = NULL;
    *bytes = 0;
    if (!gather(sequence, tokens, &t)) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    kvant_status status =
        kvant_record_key(&head, t.ids, t.classes, sequence->salt, (size_t)sequence->salt_bytes, head.key);
    if (status != KVANT_OK) goto out;
    *key = cache_store_key(cache, KVANT_STORE_TAIL, head.key, sequence->salt, sequence->salt_bytes);
    if (is_stored(store, key)) goto out;
    buffer = cache_buffer_take(cache, tail_bytes(&cache->shape, tokens));
    size_t size = 0;
    status = buffer != NULL ? write_tail(sequence, &t, &head, buffer, &size, diag) : KVANT_ERROR_MEMORY;
    if (status == KVANT_OK) status = kvant_store_put(store, key, buffer->bytes, size, diag);
    if (status == KVANT_OK) *bytes = size;
out:
    if (status == KVANT_ERROR_MEMORY) (void)kvant_fail(diag, status, "", "out of memory");
    cache_buffer_give(cache, buffer);
    free(t.ids);
    return status;
}

/* ---- Get ----------------------------------------------------------------------------------------------- */

static kvant_status fill_page(kvant_cache *cache, const kvant_record *record, const cache_wanted *wanted,
                              cache_page *page, uint32_t index, kvant_diag *diag) {
    const cache_shape *shape = &cache->shape;
    uint32_t first = index * shape->block_tokens, count = in_page(shape, wanted->tokens, index);
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < 2 * shape->layer_count && status == KVANT_OK; i++) {
        uint64_t row = shape->layers[i / 2].row_bytes[i % 2];
        kvant_record_part raw = kvant_record_raw(record, i / 2, i % 2);
        kvant_mutable_view rows = cache_page_rows(cache, page, i / 2, i % 2, 0, count);
        status = cache->place->in(cache, rows.data, raw.bytes + first * row, count * row, diag);
    }
    memcpy(cache_page_ids(page), wanted->ids + first, count * sizeof *wanted->ids);
    memcpy(cache_page_tags(shape, page), record->tags + first, count);
    return status;
}

kvant_status cache_tail_get(kvant_sequence *sequence, kvant_store *store, const cache_wanted *wanted,
                            uint32_t *reason, kvant_diag *diag) {
    kvant_cache *cache = wanted->cache;
    uint32_t pages = pages_of(&cache->shape, wanted->tokens);
    cache_fetched fetched = {.buffer = NULL};
    bool listed = cache_list_reserve(cache, (void **)&sequence->pages, &sequence->page_room, pages,
                                     sizeof *sequence->pages);
    kvant_status status = listed ? cache_fetch(store, wanted, &fetched) : KVANT_ERROR_MEMORY;
    if (status != KVANT_OK) return kvant_fail(diag, status, "", "out of memory");
    *reason = fetched.reason;
    if (fetched.buffer == NULL) return KVANT_OK;
    for (uint32_t i = 0; i < pages && status == KVANT_OK; i++) {
        cache_page *page = NULL;
        status = cache_page_new(cache, cache->shape.page_bytes, &page);
        if (status != KVANT_OK) break;
        sequence->pages[sequence->page_count++] = page;
        status = fill_page(cache, &fetched.record, wanted, page, i, diag);
    }
    kvant_status settled = cache->place->settle(cache, status == KVANT_OK ? diag : NULL);
    if (status == KVANT_OK) status = settled;
    cache_buffer_give(cache, fetched.buffer);
    if (status == KVANT_ERROR_NO_SPACE)
        return kvant_fail(
            diag, status, "",
            "the pool has no room for the raw tail of the store, %u tokens in pages of %llu bytes",
            wanted->tokens, (unsigned long long)cache->shape.page_bytes);
    return status == KVANT_ERROR_MEMORY ? kvant_fail(diag, status, "", "out of memory") : status;
}
