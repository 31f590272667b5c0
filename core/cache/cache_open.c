/* A cache: made, asked, emptied, freed. See cache.h. */
#include "cache/place.h"
#include "store/tag_classes.h"

#include <kvant/kit/diag.h>

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 1024 };

static kvant_status check_options(const kvant_plan *plan, const kvant_cache_options *options,
                                  kvant_diag *diag) {
    if (options == NULL || options->struct_size < offsetof(kvant_cache_options, device))
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "options",
                          "kvant_cache_open: options are NULL, or their "
                          "struct_size is not set");
    if (plan->learns)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "plan", "a plan to learn from has no codecs to open");
    if (options->threads > THREADS_MAX)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "threads", "%u threads, and at most %d are served",
                          options->threads, THREADS_MAX);
    return KVANT_OK;
}

static kvant_status open_layers(kvant_cache *cache, kvant_diag *diag) {
    cache->attention = calloc(cache->shape.layer_count, sizeof(kvant_attention *));
    if (cache->attention == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    for (uint32_t layer = 0; layer < cache->shape.layer_count; layer++) {
        kvant_status status = kvant_attention_open(cache->plan, layer, &cache->attention[layer], diag);
        if (status != KVANT_OK) return status;
        for (uint32_t many = 0; many < 2; many++) {
            size_t scratch =
                kvant_attention_scratch_bytes(cache->attention[layer], cache->threads, many ? UINT32_MAX : 1);
            if (scratch > cache->attend_scratch[many]) cache->attend_scratch[many] = scratch;
        }
        for (uint32_t side = 0; side < 2; side++) {
            size_t bytes = kvant_codec_scratch_bytes(kvant_attention_codec(cache->attention[layer], side));
            if (bytes > cache->shape.encode_scratch) cache->shape.encode_scratch = bytes;
        }
    }
    cache->shape.encode_scratch = (cache->shape.encode_scratch + 63) / 64 * 64;
    return KVANT_OK;
}

/* The least that serves a sequence: one block, its sinks, a page of raw rows. */
static kvant_status check_bytes(const kvant_cache *cache, uint64_t bytes, kvant_diag *diag) {
    const cache_shape *shape = &cache->shape;
    uint64_t least = cache_rounded(shape, shape->page_bytes);
    if (shape->sinks > 0) least += cache_rounded(shape, shape->sinks_bytes);
    for (uint32_t i = 0; i < 2 * shape->layer_count; i++)
        least += cache_rounded(shape, shape->layers[i / 2].extent_max[i % 2]);
    if (bytes < least)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "bytes",
                          "a pool of %llu bytes; one block of all layers and its raw rows take %llu",
                          (unsigned long long)bytes, (unsigned long long)least);
    return KVANT_OK;
}

kvant_status kvant_cache_open(const kvant_plan *plan, const kvant_cache_options *options, kvant_cache **cache,
                              kvant_diag *diag) {
    if (plan == NULL || cache == NULL)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_cache_open: plan or cache is NULL");
    kvant_status status = check_options(plan, options, diag);
    if (status != KVANT_OK) return status;
    bool on_device = options->struct_size >= sizeof *options && options->device != NULL;
    kvant_cache *made = calloc(1, sizeof *made);
    if (made == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    pthread_mutex_init(&made->lock, NULL);
    atomic_init(&made->tables, 0);
    made->plan = kvant_plan_hold(plan);
    made->store = options->store;
    made->place = on_device ? &cache_place_device : &cache_place_host;
    made->threads = options->threads > 0 ? options->threads : 1;
    made->loop = options->loop;
    made->loop_context = options->loop_context;
    status = cache_shape_make(plan, &made->shape, diag);
    if (status == KVANT_OK) status = kvant_tag_classes(plan, made->tag_class);
    if (status == KVANT_OK) status = open_layers(made, diag);
    if (status == KVANT_OK) status = check_bytes(made, options->bytes, diag);
    if (status == KVANT_OK) status = made->place->open(made, options, diag);
    if (status == KVANT_OK && kvant_prefix_index_open(&made->index) != KVANT_OK)
        status = kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    if (status == KVANT_OK)
        *cache = made;
    else
        kvant_cache_close(made);
    return status;
}

/* What nobody holds, without a word to the store. */
static void free_indexed(kvant_cache *cache) {
    kvant_index_entry *entry = NULL;
    pthread_mutex_lock(&cache->lock);
    while ((entry = kvant_prefix_index_oldest(cache->index)) != NULL) {
        kvant_prefix_index_remove(cache->index, entry);
        cache_block_free(cache, (cache_block *)(void *)entry);
    }
    pthread_mutex_unlock(&cache->lock);
}

void kvant_cache_close(kvant_cache *cache) {
    if (cache == NULL) return;
    if (cache->index != NULL && cache->pool != NULL) free_indexed(cache);
    while (cache->buffers != NULL) {
        cache_buffer *buffer = cache->buffers;
        cache->buffers = buffer->next;
        cache->place->give(cache, buffer->bytes);
        free(buffer);
    }
    for (uint32_t i = 0; i < cache->hasher_count; i++) kvant_block_hasher_close(cache->hashers[i]);
    kvant_prefix_index_close(cache->index);
    kvant_pool_close(cache->pool);
    cache->place->close(cache);
    for (uint32_t layer = 0; cache->attention != NULL && layer < cache->shape.layer_count; layer++)
        kvant_attention_close(cache->attention[layer]);
    free(cache->attention);
    cache_shape_free(&cache->shape);
    kvant_plan_free(cache->plan);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

/* ---- Questions ----------------------------------------------------------------------------------------- */

static kvant_bytes all_bytes(const kvant_cache *cache, const kvant_pool_state *pool, uint64_t index_bytes) {
    kvant_bytes bytes = {.struct_size = sizeof bytes,
                         .payload = cache->payload,
                         .metadata = cache->metadata,
                         .padding = pool->used - cache->raw - cache->payload - cache->metadata,
                         .raw = cache->raw,
                         .tables = atomic_load(&((kvant_cache *)(uintptr_t)cache)->tables) +
                                   pool->table_bytes + index_bytes + sizeof *cache};
    bytes.total = pool->used + bytes.tables;
    return bytes;
}

kvant_status kvant_cache_describe(const kvant_cache *cache, kvant_cache_report *report) {
    if (cache == NULL || report == NULL || report->struct_size < offsetof(kvant_cache_report, bytes))
        return KVANT_ERROR_ARGUMENT;
    pthread_mutex_t *lock = &((kvant_cache *)(uintptr_t)cache)->lock;
    pthread_mutex_lock(lock);
    kvant_pool_state pool = kvant_pool_describe(cache->pool, cache->shape.smallest_extent);
    kvant_prefix_index_state index = kvant_prefix_index_describe(cache->index);
    kvant_cache_report all = cache->counters;
    all.sequences = cache->sequences;
    all.bytes = all_bytes(cache, &pool, index.table_bytes);
    all.blocks = cache->blocks;
    pthread_mutex_unlock(lock);
    all.capacity = pool.capacity;
    all.free = pool.capacity - pool.used;
    all.unusable = pool.unusable;
    all.peak = pool.peak;
    all.indexed = index.entries;
    all.pinned = index.pinned;
    all.struct_size = report->struct_size;
    memcpy(report, &all, report->struct_size < sizeof all ? report->struct_size : sizeof all);
    return KVANT_OK;
}

kvant_status kvant_cache_evict(kvant_cache *cache, uint64_t bytes, uint64_t *freed, kvant_diag *diag) {
    if (cache == NULL) return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_cache_evict: cache is NULL");
    pthread_mutex_lock(&cache->lock);
    kvant_pool_state before = kvant_pool_describe(cache->pool, 1), now = before;
    bool any = true;
    while (any && now.capacity - now.used < bytes) {
        any = cache_evict_one(cache);
        now = kvant_pool_describe(cache->pool, 1);
    }
    pthread_mutex_unlock(&cache->lock);
    if (freed != NULL) *freed = now.used < before.used ? before.used - now.used : 0;
    if (now.capacity - now.used >= bytes) return KVANT_OK;
    return kvant_fail(diag, KVANT_ERROR_NO_SPACE, "bytes",
                      "%llu of %llu bytes are free; the rest is held by sequences and matches",
                      (unsigned long long)(now.capacity - now.used), (unsigned long long)now.capacity);
}
