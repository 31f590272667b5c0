/* Memory beside the pool: tables, counted; buffers, used again. See cache.h. */
#include "cache/place.h"

#include <stdlib.h>
#include <string.h>

void *cache_take(kvant_cache *cache, uint64_t bytes) {
    void *memory = bytes <= SIZE_MAX / 2 ? calloc(1, bytes > 0 ? (size_t)bytes : 1) : NULL;
    if (memory != NULL) atomic_fetch_add_explicit(&cache->tables, bytes, memory_order_relaxed);
    return memory;
}

void cache_give(kvant_cache *cache, void *memory, uint64_t bytes) {
    if (memory == NULL) return;
    atomic_fetch_sub_explicit(&cache->tables, bytes, memory_order_relaxed);
    free(memory);
}

bool cache_list_reserve(kvant_cache *cache, void **list, uint32_t *room, uint64_t entries, size_t entry) {
    if (entries <= *room) return true;
    if (entries > UINT32_MAX / 2) return false;
    uint32_t more = cache_list_room(entries);
    void *larger = cache_take(cache, more * (uint64_t)entry);
    if (larger == NULL) return false;
    if (*list != NULL) memcpy(larger, *list, *room * entry);
    cache_give(cache, *list, *room * (uint64_t)entry);
    *list = larger;
    *room = more;
    return true;
}

/* The smallest idle buffer that is large enough: first the list is searched, then memory is asked for. */
cache_buffer *cache_buffer_take(kvant_cache *cache, size_t size) {
    pthread_mutex_lock(&cache->lock);
    cache_buffer **best = NULL;
    for (cache_buffer **at = &cache->buffers; *at != NULL; at = &(*at)->next)
        if ((*at)->size >= size && (best == NULL || (*at)->size < (*best)->size)) best = at;
    cache_buffer *buffer = best != NULL ? *best : NULL;
    if (buffer != NULL) *best = buffer->next;
    pthread_mutex_unlock(&cache->lock);
    if (buffer != NULL || size > SIZE_MAX / 2) return buffer;
    size_t rounded = (size + 4095) / 4096 * 4096; /* so that steps of about the same size share */
    buffer = malloc(sizeof *buffer);
    unsigned char *bytes = buffer != NULL ? cache->place->take(cache, rounded > 0 ? rounded : 4096) : NULL;
    if (bytes == NULL) {
        free(buffer);
        return NULL;
    }
    *buffer = (cache_buffer){.size = rounded, .bytes = bytes};
    return buffer;
}

enum { IDLE_BUFFERS = 64 };

/* Keeps some, the smaller ones rather than those of a long step. */
void cache_buffer_give(kvant_cache *cache, cache_buffer *buffer) {
    if (buffer == NULL) return;
    pthread_mutex_lock(&cache->lock);
    uint32_t idle = 0;
    cache_buffer **largest = NULL;
    buffer->next = cache->buffers;
    cache->buffers = buffer;
    for (cache_buffer **at = &cache->buffers; *at != NULL; at = &(*at)->next) {
        idle++;
        if (largest == NULL || (*at)->size > (*largest)->size) largest = at;
    }
    cache_buffer *surplus = NULL;
    if (idle > IDLE_BUFFERS) {
        surplus = *largest;
        *largest = surplus->next;
    }
    pthread_mutex_unlock(&cache->lock);
    if (surplus == NULL) return;
    cache->place->give(cache, surplus->bytes);
    free(surplus);
}
