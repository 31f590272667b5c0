/* Blocks: their extents in the pool, who holds them, which layers still need them, and their eviction. See
 * cache.h. */
#include "cache/cache.h"

#include <string.h>

/* ---- Layout of one allocation: the struct, then its arrays --------------------------------------------- */

static cache_block *make_tables(kvant_cache *cache) {
    const cache_shape *shape = &cache->shape;
    cache_block *block = cache_take(cache, cache_block_tables(shape));
    if (block == NULL) return NULL;
    block->ids = (uint64_t *)(void *)(block + 1);
    block->extents = (cache_extent *)(void *)(block->ids + shape->block_tokens);
    block->needs = (uint32_t *)(void *)(block->extents + 2 * (size_t)shape->layer_count);
    block->tags = (uint8_t *)(block->needs + shape->layer_count);
    block->classes = block->tags + shape->block_tokens;
    for (uint32_t i = 0; i < 2 * shape->layer_count; i++) block->extents[i].index = KVANT_POOL_NONE;
    return block;
}

uint64_t cache_extent_size(const kvant_cache *cache, const cache_block *block, uint32_t layer,
                           uint32_t side) {
    const kvant_layout *layout = &cache->plan->entries[2 * (size_t)layer + side].layout;
    return layout->size_min + layout->size_step * block->extents[2 * (size_t)layer + side].steps;
}

/* ---- Make and free ------------------------------------------------------------------------------------- */

/* Evicts only for want of a hole: where the pool's tables cannot grow, nothing that is freed would help. */
kvant_status cache_pool_take(kvant_cache *cache, uint64_t bytes, uint32_t *index) {
    do {
        *index = kvant_pool_take(cache->pool, bytes);
        if (*index != KVANT_POOL_NONE) return KVANT_OK;
        if (kvant_pool_describe(cache->pool, 1).largest >= bytes) return KVANT_ERROR_MEMORY;
    } while (cache_evict_one(cache));
    return KVANT_ERROR_NO_SPACE;
}

static void give_extent(kvant_cache *cache, cache_block *block, uint32_t i) {
    cache_extent *extent = &block->extents[i];
    if (extent->index == KVANT_POOL_NONE) return;
    if (block->counted) {
        uint64_t payload = 0, metadata = 0;
        cache_extent_parts(&cache->plan->entries[i].layout, extent->steps, &payload, &metadata);
        cache->payload -= payload;
        cache->metadata -= metadata;
    }
    kvant_pool_give(cache->pool, extent->index);
    extent->index = KVANT_POOL_NONE;
}

void cache_block_count(kvant_cache *cache, cache_block *block) {
    for (uint32_t i = 0; i < 2 * cache->shape.layer_count && !block->counted; i++) {
        if (block->extents[i].index == KVANT_POOL_NONE) continue;
        uint64_t payload = 0, metadata = 0;
        cache_extent_parts(&cache->plan->entries[i].layout, block->extents[i].steps, &payload, &metadata);
        cache->payload += payload;
        cache->metadata += metadata;
    }
    block->counted = true;
}

bool cache_block_set_salt(kvant_cache *cache, cache_block *block, const void *salt, uint64_t bytes) {
    if (bytes == 0) return true;
    block->salt = cache_take(cache, bytes);
    if (block->salt == NULL) return false;
    memcpy(block->salt, salt, (size_t)bytes);
    block->salt_bytes = bytes;
    return true;
}

void cache_block_free(kvant_cache *cache, cache_block *block) {
    for (uint32_t i = 0; i < 2 * cache->shape.layer_count; i++) give_extent(cache, block, i);
    if (block->sinks != NULL) cache_page_release(cache, block->sinks);
    cache_give(cache, block->salt, block->salt_bytes);
    cache->blocks--;
    cache_give(cache, block, cache_block_tables(&cache->shape));
}

/* Extents at their largest size, or as given. */
static kvant_status take_extents(kvant_cache *cache, cache_block *block, const uint64_t *sizes) {
    for (uint32_t i = 0; i < 2 * cache->shape.layer_count; i++) {
        const kvant_layout *layout = &cache->plan->entries[i].layout;
        uint64_t size = sizes != NULL ? sizes[i] : cache->shape.layers[i / 2].extent_max[i % 2];
        if (size == 0) continue;
        uint32_t index = KVANT_POOL_NONE;
        kvant_status status = cache_pool_take(cache, size, &index);
        if (status != KVANT_OK) return status;
        uint64_t steps = layout->size_step != 0 ? (size - layout->size_min) / layout->size_step : 0;
        block->extents[i] = (cache_extent){.index = index, .steps = (uint32_t)steps};
    }
    return KVANT_OK;
}

kvant_status cache_block_new(kvant_cache *cache, const uint64_t *sizes, bool sinks, cache_block **block) {
    cache_block *made = make_tables(cache);
    if (made == NULL) return KVANT_ERROR_MEMORY;
    pthread_mutex_lock(&cache->lock);
    cache->blocks++;
    kvant_prefix_index_pin(cache->index, &made->entry);
    kvant_status status = take_extents(cache, made, sizes);
    if (status == KVANT_OK && sizes != NULL) cache_block_count(cache, made);
    pthread_mutex_unlock(&cache->lock);
    if (status == KVANT_OK && sinks && cache->shape.sinks > 0)
        status = cache_page_new(cache, cache->shape.sinks_bytes, &made->sinks);
    if (status == KVANT_OK) {
        *block = made;
        return KVANT_OK;
    }
    pthread_mutex_lock(&cache->lock);
    cache_block_release(cache, made);
    pthread_mutex_unlock(&cache->lock);
    return status;
}

/* ---- Holders and needs --------------------------------------------------------------------------------- */

void cache_block_release(kvant_cache *cache, cache_block *block) {
    kvant_prefix_index_unpin(cache->index, &block->entry);
    if (block->entry.pins == 0 && !block->entry.indexed) cache_block_free(cache, block);
}

void cache_block_need(cache_block *block, uint32_t layer) {
    block->needs[layer]++;
}

/* Called before the holder's own pin is given back: pins count it still, so "somebody else" is more than one
 * where it leaves and one or more where it stays. */
void cache_block_pass(kvant_cache *cache, cache_block *block, uint32_t layer, bool leaves) {
    block->needs[layer]--;
    if (block->needs[layer] != 0 || (leaves && block->entry.pins == 1)) return;
    give_extent(cache, block, 2 * layer + KVANT_SIDE_KEY);
    give_extent(cache, block, 2 * layer + KVANT_SIDE_VALUE);
}

bool cache_block_has(const cache_block *block, uint32_t layer) {
    return block->extents[2 * (size_t)layer].index != KVANT_POOL_NONE;
}

/* ---- Eviction ------------------------------------------------------------------------------------------ */

/* Into the store, the lock left meanwhile; true if the block may go still. */
static bool spill(kvant_cache *cache, cache_block *block) {
    uint64_t bytes = 0;
    kvant_prefix_index_pin(cache->index, &block->entry);
    pthread_mutex_unlock(&cache->lock);
    kvant_status status =
        cache_record_put(cache, block, cache->store, block->salt, block->salt_bytes, &bytes, NULL);
    pthread_mutex_lock(&cache->lock);
    if (status == KVANT_OK)
        cache->counters.spilled++;
    else
        cache->counters.spill_failures++;
    /* Whoever found it meanwhile keeps it. Its place among the oldest is lost with it, or not needed. */
    kvant_prefix_index_unpin(cache->index, &block->entry);
    return block->entry.pins == 0 && block->entry.children == 0;
}

bool cache_evict_one(kvant_cache *cache) {
    for (;;) {
        kvant_index_entry *entry = kvant_prefix_index_oldest(cache->index);
        if (entry == NULL) return false;
        cache_block *block = (cache_block *)(void *)entry;
        if (cache->store != NULL && !spill(cache, block)) continue;
        kvant_prefix_index_remove(cache->index, entry);
        cache->counters.evictions++;
        cache_block_free(cache, block);
        return true;
    }
}
