/* Blocks to records and back. See cache_record.h, and core/store/record.h for the bytes. */
#include "cache/cache_record.h"
#include "cache/place.h"

#include "store/pack.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>
#include <string.h>

kvant_store_key cache_store_key(const kvant_cache *cache, uint32_t kind,
                                const uint8_t key[KVANT_BLOCK_KEY_BYTES], const void *salt,
                                uint64_t salt_bytes) {
    kvant_store_key asked = {
        .struct_size = sizeof asked, .kind = kind, .salt = salt, .salt_bytes = salt_bytes};
    memcpy(asked.key, key, sizeof asked.key);
    memcpy(asked.fingerprint, cache->plan->fingerprint, sizeof asked.fingerprint);
    return asked;
}

kvant_record_head cache_record_head(const kvant_cache *cache, uint32_t kind, uint64_t number, uint32_t tokens,
                                    const uint8_t *parent) {
    const cache_shape *shape = &cache->shape;
    kvant_record_head head = {.kind = kind,
                              .tokens = tokens,
                              .layers = shape->layer_count,
                              .sinks = kind == KVANT_RECORD_BLOCK && number == 0 ? shape->sinks : 0,
                              .dtype = cache->plan->geometry.dtype,
                              .block = number,
                              .first_position = number * shape->block_tokens};
    memcpy(head.fingerprint, cache->plan->fingerprint, sizeof head.fingerprint);
    if (parent != NULL) memcpy(head.parent, parent, sizeof head.parent);
    return head;
}

/* ---- Put ----------------------------------------------------------------------------------------------- */

/* The sizes of what is there, [layers][2], 0 = released; it stays until let_go. */
static uint64_t *hold_extents(kvant_cache *cache, cache_block *block) {
    const cache_shape *shape = &cache->shape;
    uint64_t *sizes = calloc(2 * (size_t)shape->layer_count, sizeof *sizes);
    if (sizes == NULL) return NULL;
    pthread_mutex_lock(&cache->lock);
    for (uint32_t layer = 0; layer < shape->layer_count; layer++) {
        if (!cache_block_has(block, layer)) continue;
        if (shape->layers[layer].window != 0) cache_block_need(block, layer);
        for (uint32_t side = 0; side < 2; side++)
            sizes[2 * layer + side] = cache_extent_size(cache, block, layer, side);
    }
    pthread_mutex_unlock(&cache->lock);
    return sizes;
}

static void let_go(kvant_cache *cache, cache_block *block, uint64_t *sizes) {
    const cache_shape *shape = &cache->shape;
    pthread_mutex_lock(&cache->lock);
    for (uint32_t layer = 0; layer < shape->layer_count; layer++)
        if (shape->layers[layer].window != 0 && sizes[2 * layer] > 0)
            cache_block_pass(cache, block, layer, true);
    pthread_mutex_unlock(&cache->lock);
    free(sizes);
}

static size_t record_bytes(const kvant_cache *cache, const cache_block *block, const uint64_t *sizes) {
    const cache_shape *shape = &cache->shape;
    uint64_t parts = 0;
    for (uint32_t i = 0; i < 2 * shape->layer_count; i++) {
        parts += (sizes[i] + KVANT_RECORD_ALIGNMENT - 1) / KVANT_RECORD_ALIGNMENT * KVANT_RECORD_ALIGNMENT;
        if (block->sinks != NULL)
            parts += shape->sinks * shape->layers[i / 2].row_bytes[i % 2] + KVANT_RECORD_ALIGNMENT;
    }
    return kvant_record_size(shape->block_tokens, shape->layer_count, parts);
}

/* Copies size bytes of the pool to where the record's next part goes: there after settle. */
static kvant_status put_bytes(kvant_cache *cache, kvant_record_writer *writer, const void *bytes,
                              uint64_t size, kvant_diag *diag) {
    void *room = kvant_record_room(writer, (size_t)size);
    if (room == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    return cache->place->out(cache, room, bytes, size, diag);
}

static kvant_status put_parts(kvant_cache *cache, const cache_block *block, const uint64_t *sizes,
                              kvant_record_writer *writer, kvant_diag *diag) {
    const cache_shape *shape = &cache->shape;
    for (uint32_t i = 0; i < 2 * shape->layer_count; i++) {
        if (sizes[i] > 0) {
            const void *extent = kvant_pool_address(cache->pool, block->extents[i].index);
            kvant_status status = put_bytes(cache, writer, extent, sizes[i], diag);
            if (status != KVANT_OK) return status;
            kvant_record_put_extent(writer, i / 2, i % 2, (size_t)sizes[i]);
        }
        if (block->sinks == NULL) continue;
        kvant_mutable_view sinks = cache_sink_rows(cache, block->sinks, i / 2, i % 2, shape->sinks);
        uint64_t bytes = shape->sinks * shape->layers[i / 2].row_bytes[i % 2];
        kvant_status status = put_bytes(cache, writer, sinks.data, bytes, diag);
        if (status != KVANT_OK) return status;
        kvant_record_put_raw(writer, i / 2, i % 2, (size_t)bytes);
    }
    return KVANT_OK;
}

static kvant_status write_record(kvant_cache *cache, const cache_block *block, const uint64_t *sizes,
                                 const void *salt, uint64_t salt_bytes, cache_buffer *buffer, size_t *size,
                                 kvant_diag *diag) {
    const cache_shape *shape = &cache->shape;
    kvant_record_writer writer;
    kvant_record_head head =
        cache_record_head(cache, KVANT_RECORD_BLOCK, block->first_position / shape->block_tokens,
                          shape->block_tokens, block->entry.parent);
    if (kvant_record_start(&writer, buffer->bytes, buffer->size, &head, block->ids, block->tags,
                           block->classes, salt, (size_t)salt_bytes) != KVANT_OK)
        return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    kvant_status status = put_parts(cache, block, sizes, &writer, diag);
    kvant_status settled = cache->place->settle(cache, status == KVANT_OK ? diag : NULL);
    if (status == KVANT_OK) status = settled;
    if (status != KVANT_OK) return status;
    *size = kvant_record_finish(&writer);
    return *size > 0 ? KVANT_OK : kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
}

/* Whether a record holds all that `sizes` say is there. */
typedef struct cover {
    const uint64_t *sizes;
    uint32_t rows;
} cover;

static kvant_status covers(void *context, const void *bytes, size_t size) {
    const cover *c = context;
    kvant_record record;
    const char *why = "";
    kvant_status status = kvant_record_read(bytes, size, &record, &why);
    for (uint32_t i = 0; i < c->rows && status == KVANT_OK; i++)
        if (c->sizes[i] > 0 && kvant_record_extent(&record, i / 2, i % 2).size == 0)
            status = KVANT_ERROR_MISMATCH;
    return status;
}

static bool is_covered(const kvant_cache *cache, kvant_store *store, const kvant_store_key *key,
                       const uint64_t *sizes) {
    cover c = {.sizes = sizes, .rows = 2 * cache->shape.layer_count};
    return kvant_store_contains(store, key, NULL) == KVANT_OK &&
           kvant_store_get(store, key, covers, &c, NULL, NULL) == KVANT_OK;
}

kvant_status cache_record_save(kvant_cache *cache, const cache_block *block, kvant_store *store,
                               const void *salt, uint64_t salt_bytes, uint64_t *bytes, kvant_diag *diag) {
    cache_block *held = (cache_block *)(uintptr_t)block; /* only its needs change, under the lock */
    kvant_store_key key = cache_store_key(cache, KVANT_STORE_BLOCK, block->entry.key, salt, salt_bytes);
    *bytes = 0;
    uint64_t *sizes = hold_extents(cache, held);
    if (sizes == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    bool covered = is_covered(cache, store, &key, sizes);
    cache_buffer *buffer = covered ? NULL : cache_buffer_take(cache, record_bytes(cache, block, sizes));
    size_t size = 0;
    kvant_status status = KVANT_OK;
    if (buffer != NULL)
        status = write_record(cache, block, sizes, salt, salt_bytes, buffer, &size, diag);
    else if (!covered)
        status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    let_go(cache, held, sizes);
    if (status == KVANT_OK && !covered) status = kvant_store_put(store, &key, buffer->bytes, size, diag);
    cache_buffer_give(cache, buffer);
    if (status == KVANT_OK) *bytes = size;
    return status;
}

kvant_status cache_record_put(kvant_cache *cache, const cache_block *block, kvant_store *store,
                              const void *salt, uint64_t salt_bytes, uint64_t *bytes, kvant_diag *diag) {
    kvant_store_key key = cache_store_key(cache, KVANT_STORE_BLOCK, block->entry.key, salt, salt_bytes);
    *bytes = 0;
    if (cache->shape.windowed == 0 && kvant_store_contains(store, &key, NULL) == KVANT_OK) return KVANT_OK;
    return cache_record_save(cache, block, store, salt, salt_bytes, bytes, diag);
}

/* ---- Get ----------------------------------------------------------------------------------------------- */

/* Tokens and place. A key is a hash over most of this; here it is compared, so that not even a collision
 * gives one sequence another's rows. */
static bool is_wanted(const cache_wanted *wanted, const kvant_record *record) {
    static const uint8_t none[KVANT_BLOCK_KEY_BYTES];
    const kvant_record_head *head = &record->head;
    const uint8_t *parent = wanted->parent != NULL ? wanted->parent : none;
    if (head->kind != wanted->kind || head->tokens != wanted->tokens || head->block != wanted->number ||
        head->first_position != wanted->number * wanted->cache->shape.block_tokens ||
        memcmp(head->parent, parent, sizeof none) != 0)
        return false;
    for (uint32_t t = 0; t < wanted->tokens; t++) {
        uint8_t tag = wanted->tags != NULL ? wanted->tags[t] : 0;
        if (kvant_record_id(record, t) != wanted->ids[t] ||
            record->classes[t] != wanted->cache->tag_class[tag] ||
            record->classes[t] != wanted->cache->tag_class[record->tags[t]])
            return false;
    }
    return true;
}

/* Both extents of a layer, of sizes that its codecs write, or neither where a window may have passed. */
static uint32_t check_extents(const kvant_cache *cache, const kvant_record *record, uint32_t layer) {
    uint32_t there = 0;
    for (uint32_t side = 0; side < 2; side++) {
        const kvant_codec *codec = kvant_attention_codec(cache->attention[layer], side);
        uint64_t size = kvant_record_extent(record, layer, side).size;
        if (size == 0) continue;
        there++;
        if (size > kvant_codec_extent_max(codec) || kvant_codec_extent_size(codec, (size_t)size) != size)
            return KVANT_STORE_CHECKSUM;
    }
    return there == 2 || (there == 0 && cache->shape.layers[layer].window != 0) ? KVANT_STORE_FOUND
                                                                                : KVANT_STORE_KEY;
}

static uint32_t check_parts(const kvant_cache *cache, const kvant_record *record) {
    const cache_shape *shape = &cache->shape;
    bool block = record->head.kind == KVANT_RECORD_BLOCK;
    uint32_t raw = block ? record->head.sinks : record->head.tokens;
    for (uint32_t layer = 0; layer < shape->layer_count; layer++) {
        uint32_t reason = block ? check_extents(cache, record, layer) : KVANT_STORE_FOUND;
        if (reason != KVANT_STORE_FOUND) return reason;
        bool passed = block && kvant_record_extent(record, layer, KVANT_SIDE_KEY).size == 0;
        for (uint32_t side = 0; side < 2; side++) {
            uint64_t size = kvant_record_raw(record, layer, side).size;
            if (size != raw * shape->layers[layer].row_bytes[side] && !(passed && size == 0))
                return KVANT_STORE_KEY;
        }
    }
    return KVANT_STORE_FOUND;
}

typedef struct fetch {
    const cache_wanted *wanted;
    cache_fetched *fetched;
} fetch;

/* The bytes were verified by the store; here they are compared with what is wanted, and copied. */
static kvant_status take_copy(void *context, const void *bytes, size_t size) {
    const fetch *f = context;
    kvant_cache *cache = f->wanted->cache;
    kvant_record *record = &f->fetched->record;
    const char *why = "";
    uint32_t reason = KVANT_STORE_FOUND;
    if (kvant_record_read(bytes, size, record, &why) != KVANT_OK)
        reason = KVANT_STORE_CHECKSUM;
    else if (kvant_unpack_check(cache->plan, record, "", NULL) != KVANT_OK || !is_wanted(f->wanted, record))
        reason = KVANT_STORE_KEY;
    else
        reason = check_parts(cache, record);
    f->fetched->reason = reason;
    if (reason != KVANT_STORE_FOUND) return KVANT_OK;
    cache_buffer *buffer = cache_buffer_take(cache, size);
    if (buffer == NULL) return KVANT_ERROR_MEMORY;
    memcpy(buffer->bytes, bytes, size);
    f->fetched->buffer = buffer;
    const unsigned char *from = bytes;
    record->ids = buffer->bytes + (record->ids - from);
    record->tags = buffer->bytes + (record->tags - from);
    record->classes = buffer->bytes + (record->classes - from);
    record->bytes = buffer->bytes;
    return KVANT_OK;
}

kvant_status cache_fetch(kvant_store *store, const cache_wanted *wanted, cache_fetched *fetched) {
    kvant_store_key key =
        cache_store_key(wanted->cache, wanted->kind, wanted->key, wanted->salt, wanted->salt_bytes);
    fetch f = {.wanted = wanted, .fetched = fetched};
    uint32_t reason = KVANT_STORE_UNREADABLE;
    *fetched = (cache_fetched){.reason = KVANT_STORE_FOUND};
    kvant_status status = kvant_store_get(store, &key, take_copy, &f, &reason, NULL);
    if (status == KVANT_ERROR_MEMORY) return status;
    if (status != KVANT_OK) fetched->reason = reason;
    return KVANT_OK;
}

static kvant_status copy_parts(kvant_cache *cache, const kvant_record *record, const cache_block *block,
                               kvant_diag *diag) {
    const cache_shape *shape = &cache->shape;
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < 2 * shape->layer_count && status == KVANT_OK; i++) {
        kvant_record_part extent = kvant_record_extent(record, i / 2, i % 2);
        kvant_record_part raw = kvant_record_raw(record, i / 2, i % 2);
        if (extent.size > 0)
            status = cache->place->in(cache, kvant_pool_address(cache->pool, block->extents[i].index),
                                      extent.bytes, extent.size, diag);
        if (block->sinks == NULL || status != KVANT_OK) continue;
        kvant_mutable_view sinks = cache_sink_rows(cache, block->sinks, i / 2, i % 2, shape->sinks);
        uint64_t bytes = shape->sinks * shape->layers[i / 2].row_bytes[i % 2];
        if (raw.size > 0)
            status = cache->place->in(cache, sinks.data, raw.bytes, raw.size, diag);
        else /* beyond the window with the block */
            status = cache->place->zero(cache, sinks.data, bytes, diag);
    }
    kvant_status settled = cache->place->settle(cache, status == KVANT_OK ? diag : NULL);
    return status != KVANT_OK ? status : settled;
}

static void release(kvant_cache *cache, cache_block *block) {
    pthread_mutex_lock(&cache->lock);
    cache_block_release(cache, block);
    pthread_mutex_unlock(&cache->lock);
}

/* Room for what the record holds, and its bytes. */
static kvant_status make_block(kvant_cache *cache, const kvant_record *record, cache_block **block,
                               kvant_diag *diag) {
    const cache_shape *shape = &cache->shape;
    uint64_t *sizes = calloc(2 * (size_t)shape->layer_count, sizeof *sizes);
    if (sizes == NULL) return KVANT_ERROR_MEMORY;
    for (uint32_t i = 0; i < 2 * shape->layer_count; i++)
        sizes[i] = kvant_record_extent(record, i / 2, i % 2).size;
    kvant_status status = cache_block_new(cache, sizes, record->head.sinks > 0, block);
    free(sizes);
    if (status != KVANT_OK) return status;
    status = copy_parts(cache, record, *block, diag);
    if (status != KVANT_OK) release(cache, *block);
    return status;
}

static void identify(cache_block *block, const cache_wanted *wanted, const kvant_record *record) {
    block->first_position = record->head.first_position;
    for (uint32_t t = 0; t < wanted->tokens; t++) block->ids[t] = wanted->ids[t];
    memcpy(block->tags, record->tags, wanted->tokens);
    memcpy(block->classes, record->classes, wanted->tokens);
    memcpy(block->entry.key, record->head.key, sizeof block->entry.key);
    memcpy(block->entry.parent, record->head.parent, sizeof block->entry.parent);
    block->identified = true;
}

kvant_status cache_record_get(kvant_cache *cache, kvant_store *store,
                              const uint8_t key[KVANT_BLOCK_KEY_BYTES], const uint8_t *parent,
                              uint64_t number, const uint64_t *ids, const uint8_t *tags, const void *salt,
                              uint64_t salt_bytes, cache_block **block, uint32_t *reason, kvant_diag *diag) {
    cache_wanted wanted = {.cache = cache,
                           .kind = KVANT_STORE_BLOCK,
                           .tokens = cache->shape.block_tokens,
                           .number = number,
                           .key = key,
                           .parent = parent,
                           .ids = ids,
                           .tags = tags,
                           .salt = salt,
                           .salt_bytes = salt_bytes};
    cache_fetched fetched;
    *block = NULL;
    kvant_status status = cache_fetch(store, &wanted, &fetched);
    if (status != KVANT_OK) return kvant_fail(diag, status, "", "out of memory");
    *reason = fetched.reason;
    if (fetched.buffer == NULL) return KVANT_OK;
    cache_block *made = NULL;
    status = make_block(cache, &fetched.record, &made, diag);
    if (status == KVANT_OK && !cache_block_set_salt(cache, made, salt, number == 0 ? salt_bytes : 0)) {
        release(cache, made);
        status = KVANT_ERROR_MEMORY;
    }
    if (status == KVANT_OK) {
        identify(made, &wanted, &fetched.record);
        *block = made;
    } else if (status == KVANT_ERROR_NO_SPACE) {
        (void)kvant_fail(diag, status, "",
                         "the pool has no room for block %llu of the store, a record of %llu bytes",
                         (unsigned long long)number, (unsigned long long)fetched.record.size);
    } else if (status == KVANT_ERROR_MEMORY) {
        (void)kvant_fail(diag, status, "", "out of memory");
    }
    cache_buffer_give(cache, fetched.buffer);
    return status;
}
