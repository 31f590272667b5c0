/* A device's memory as a cache's place: the pool, works, copies, reads. See place_device.h. */
#include "cache/place_device.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

enum {
    ADDRESSES = 256, /* what kvant_device_alloc aligns to */
    /* Query rows of a sequence at once: the scratch grows with them, with products of them and of tokens
     * where logits lie in memory. */
    CHUNK = 1024,
    CHUNK_LOGITS = 16,
    IDLE = 32 /* memories that are kept */
};

static uint64_t address_of(const void *pool) {
    return (uint64_t)(uintptr_t)pool;
}

/* ---- Works --------------------------------------------------------------------------------------------- */

static void close_works(kvant_cache *cache, kvant_device_work **works) {
    for (uint32_t layer = 0; works != NULL && layer < cache->shape.layer_count; layer++)
        kvant_device_work_close(works[layer]);
    free(works);
}

static kvant_status open_works(kvant_cache *cache, const kvant_device_limits *limits, uint64_t *scratch,
                               kvant_device_work ***works, kvant_diag *diag) {
    const cache_device *d = cache->device;
    uint64_t most = 0;
    kvant_status status = KVANT_OK;
    *scratch = 0;
    *works = calloc(cache->shape.layer_count, sizeof(kvant_device_work *));
    if (*works == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    for (uint32_t layer = 0; layer < cache->shape.layer_count && status == KVANT_OK; layer++) {
        uint64_t bytes = 0;
        status = kvant_device_work_bytes(d->layers[layer], limits, NULL, &bytes, diag);
        if (bytes > most) most = bytes;
    }
    if (status == KVANT_OK && most > 0) status = kvant_device_alloc(d->device, most, scratch, diag);
    for (uint32_t layer = 0; layer < cache->shape.layer_count && status == KVANT_OK; layer++)
        status = kvant_device_work_open(d->layers[layer], limits, *scratch, &(*works)[layer], diag);
    if (status == KVANT_OK) return KVANT_OK;
    close_works(cache, *works);
    kvant_device_free(d->device, *scratch);
    *works = NULL;
    *scratch = 0;
    return status;
}

/* In powers of two, so that growing costs little in all. */
static uint64_t grown(uint64_t now, uint64_t asked) {
    uint64_t to = now > 0 ? now : 1;
    while (to < asked) to *= 2;
    return to;
}

kvant_status cache_works_grow(kvant_cache *cache, cache_demand demand, kvant_diag *diag) {
    cache_device *d = cache->device;
    kvant_device_limits limits = d->limits;
    if (demand.positions > UINT32_MAX / 4 || demand.runs > UINT32_MAX / 4 ||
        demand.references > UINT32_MAX / 4)
        return REFUSE(KVANT_ERROR_MEMORY, "", "a step of %llu query rows, %llu blocks and %llu raw runs",
                      (unsigned long long)demand.positions, (unsigned long long)demand.references,
                      (unsigned long long)demand.runs);
    limits.sequences = (uint32_t)grown(limits.sequences, demand.sequences);
    limits.positions = (uint32_t)grown(limits.positions, demand.positions);
    limits.runs = (uint32_t)grown(limits.runs, demand.runs);
    limits.references = grown(limits.references, demand.references);
    limits.positions_of_one = (uint32_t)grown(limits.positions_of_one, demand.of_one);
    if (d->works != NULL && limits.sequences == d->limits.sequences &&
        limits.positions == d->limits.positions && limits.runs == d->limits.runs &&
        limits.references == d->limits.references && limits.positions_of_one == d->limits.positions_of_one)
        return KVANT_OK;
    kvant_device_work **works = NULL;
    uint64_t scratch = 0;
    kvant_status status = open_works(cache, &limits, &scratch, &works, diag);
    /* Launches that are under way read the old lists. */
    if (status == KVANT_OK && d->works != NULL) {
        status = device_wait(d->device, d->stream, diag);
        close_works(cache, d->works);
        kvant_device_free(d->device, d->scratch);
    }
    if (works == NULL) return status;
    d->works = works;
    d->scratch = scratch;
    d->limits = limits;
    return status;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static kvant_status open_layers(kvant_cache *cache, kvant_diag *diag) {
    cache_device *d = cache->device;
    d->layers = calloc(cache->shape.layer_count, sizeof(kvant_device_layer *));
    if (d->layers == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    d->chunk = CHUNK;
    for (uint32_t layer = 0; layer < cache->shape.layer_count; layer++) {
        kvant_status status =
            kvant_device_layer_open(d->device, cache->attention[layer], &d->layers[layer], diag);
        if (status != KVANT_OK) return status;
        kvant_device_layer_info info = {.struct_size = sizeof info};
        status = kvant_device_layer_describe(d->layers[layer], &info);
        if (status != KVANT_OK) return REFUSE(status, "", "layer %u: how it attends is not known", layer);
        if (info.attends == KVANT_DEVICE_ATTEND_SPLIT) d->chunk = CHUNK_LOGITS;
    }
    return KVANT_OK;
}

static kvant_status open_pool(kvant_cache *cache, uint64_t bytes, kvant_diag *diag) {
    cache_device *d = cache->device;
    uint32_t alignment = cache->shape.alignment;
    uint64_t slack = alignment > ADDRESSES ? alignment : 0;
    if (bytes > UINT64_MAX - slack)
        return REFUSE(KVANT_ERROR_MEMORY, "bytes", "a pool of %llu bytes", (unsigned long long)bytes);
    kvant_status status = kvant_device_alloc(d->device, bytes + slack, &d->pool, diag);
    if (status != KVANT_OK) return status;
    uint64_t base = (d->pool + alignment - 1) / alignment * alignment;
    return kvant_pool_open_at((void *)(uintptr_t)base, bytes, alignment, &cache->pool, diag);
}

static kvant_status open_device(kvant_cache *cache, const kvant_cache_options *options, kvant_diag *diag) {
    cache_device *d = calloc(1, sizeof *d);
    if (d == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    pthread_mutex_init(&d->lock, NULL);
    cache->device = d;
    d->device = options->device;
    d->stream = options->stream;
    d->limits = (kvant_device_limits){.struct_size = sizeof d->limits, .blocks = CACHE_BLOCKS};
    kvant_status status = open_layers(cache, diag);
    if (status == KVANT_OK) status = open_pool(cache, options->bytes, diag);
    const cache_demand demand = {.sequences = 4, .positions = 4, .of_one = 1, .runs = 32, .references = 64};
    return status == KVANT_OK ? cache_works_grow(cache, demand, diag) : status;
}

static void close_device(kvant_cache *cache) {
    cache_device *d = cache->device;
    if (d == NULL) return;
    (void)device_wait(d->device, d->stream, NULL);
    close_works(cache, d->works);
    kvant_device_free(d->device, d->scratch);
    for (uint32_t layer = 0; d->layers != NULL && layer < cache->shape.layer_count; layer++)
        kvant_device_layer_close(d->layers[layer]);
    free(d->layers);
    while (d->idle != NULL) {
        cache_memory *memory = d->idle;
        d->idle = memory->next;
        kvant_device_free(d->device, memory->address);
        free(memory);
    }
    kvant_device_free(d->device, d->pool);
    pthread_mutex_destroy(&d->lock);
    free(d);
    cache->device = NULL;
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

static void *take_pinned(kvant_cache *cache, size_t bytes) {
    return device_pinned_take(cache->device->device, bytes);
}

static void give_pinned(kvant_cache *cache, void *memory) {
    device_pinned_give(cache->device->device, memory);
}

kvant_status cache_memory_take(kvant_cache *cache, uint64_t size, cache_memory **memory, kvant_diag *diag) {
    cache_device *d = cache->device;
    pthread_mutex_lock(&d->lock);
    cache_memory **best = NULL;
    for (cache_memory **at = &d->idle; *at != NULL; at = &(*at)->next)
        if ((*at)->size >= size && (best == NULL || (*at)->size < (*best)->size)) best = at;
    cache_memory *found = best != NULL ? *best : NULL;
    if (found != NULL) *best = found->next;
    pthread_mutex_unlock(&d->lock);
    *memory = found;
    if (found != NULL) return KVANT_OK;
    cache_memory *made = calloc(1, sizeof *made);
    if (made == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    made->size = (size + 4095) / 4096 * 4096; /* so that steps of about the same size share */
    kvant_status status = kvant_device_alloc(d->device, made->size, &made->address, diag);
    if (status == KVANT_OK)
        *memory = made;
    else
        free(made);
    return status;
}

void cache_memory_give(kvant_cache *cache, cache_memory *memory) {
    cache_device *d = cache->device;
    if (memory == NULL) return;
    pthread_mutex_lock(&d->lock);
    uint32_t idle = 0;
    cache_memory **largest = NULL, *surplus = NULL;
    memory->next = d->idle;
    d->idle = memory;
    for (cache_memory **at = &d->idle; *at != NULL; at = &(*at)->next, idle++)
        if (largest == NULL || (*at)->size > (*largest)->size) largest = at;
    if (idle > IDLE) {
        surplus = *largest;
        *largest = surplus->next;
    }
    pthread_mutex_unlock(&d->lock);
    if (surplus == NULL) return;
    kvant_device_free(d->device, surplus->address);
    free(surplus);
}

/* ---- Copies -------------------------------------------------------------------------------------------- */

core_rows_job cache_rows_job(const kvant_view *from, const kvant_mutable_view *to) {
    core_rows_job job = {
        .from = device_view(from->data, from->token_stride, from->head_stride, from->channel_stride),
        .from_dtype = from->dtype,
        .to_dtype = to != NULL ? to->dtype : from->dtype,
        .tokens = from->tokens,
        .heads = from->heads,
        .dim = from->head_dim,
        .magnitude = 1};
    if (to != NULL) job.to = device_view(to->data, to->token_stride, to->head_stride, to->channel_stride);
    return job;
}

kvant_status cache_jobs_put(cache_jobs *list, kvant_diag *diag) {
    const cache_device *d = list->cache->device;
    kvant_status status =
        list->count > 0 ? device_rows(d->device, list->jobs, list->count, d->stream, diag) : KVANT_OK;
    list->count = 0;
    return status;
}

kvant_status cache_jobs_add(cache_jobs *list, const core_rows_job *job, kvant_diag *diag) {
    kvant_status status = list->count == CACHE_JOBS ? cache_jobs_put(list, diag) : KVANT_OK;
    if (status == KVANT_OK) list->jobs[list->count++] = *job;
    return status;
}

static kvant_status copy_rows(kvant_cache *cache, const cache_copy *copies, uint32_t count,
                              kvant_diag *diag) {
    cache_jobs list;
    list.cache = cache;
    list.count = 0;
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        core_rows_job job = cache_rows_job(&copies[i].from, &copies[i].to);
        status = cache_jobs_add(&list, &job, diag);
    }
    return status == KVANT_OK ? cache_jobs_put(&list, diag) : status;
}

static kvant_status zero_bytes(kvant_cache *cache, void *pool, uint64_t bytes, kvant_diag *diag) {
    const cache_device *d = cache->device;
    return bytes > 0 ? device_set(d->device, address_of(pool), 0, bytes, d->stream, diag) : KVANT_OK;
}

static kvant_status bytes_out(kvant_cache *cache, void *buffer, const void *pool, uint64_t bytes,
                              kvant_diag *diag) {
    const cache_device *d = cache->device;
    return device_copy_out(d->device, buffer, address_of(pool), bytes, d->stream, diag);
}

static kvant_status bytes_in(kvant_cache *cache, void *pool, const void *buffer, uint64_t bytes,
                             kvant_diag *diag) {
    const cache_device *d = cache->device;
    return device_copy_in(d->device, address_of(pool), buffer, bytes, d->stream, diag);
}

static kvant_status settle(kvant_cache *cache, kvant_diag *diag) {
    return device_wait(cache->device->device, cache->device->stream, diag);
}

/* ---- Read ---------------------------------------------------------------------------------------------- */

static kvant_status decode(kvant_cache *cache, uint32_t layer, uint32_t side,
                           const kvant_device_extent *extents, uint32_t count, kvant_diag *diag) {
    cache_device *d = cache->device;
    pthread_mutex_lock(&d->lock);
    kvant_device_work *work = d->works[layer];
    kvant_status status = kvant_device_decode_prepare(work, side, extents, count, d->stream, diag);
    if (status == KVANT_OK) status = kvant_device_decode_launch(work, side, d->stream, diag);
    pthread_mutex_unlock(&d->lock);
    return status;
}

static kvant_status read_pieces(const kvant_sequence *s, uint32_t layer, uint32_t side,
                                const cache_piece *pieces, uint32_t count, void *scratch, kvant_diag *diag) {
    kvant_cache *cache = s->cache;
    kvant_device_extent extents[CACHE_BLOCKS];
    cache_jobs list;
    uint32_t coded = 0;
    kvant_status status = KVANT_OK;
    (void)scratch;
    list.cache = cache;
    list.count = 0;
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        const cache_piece *piece = &pieces[i];
        if (piece->raw.struct_size != 0) {
            core_rows_job job = cache_rows_job(&piece->raw, &piece->to);
            status = cache_jobs_add(&list, &job, diag);
            continue;
        }
        const cache_block *block = piece->block;
        const cache_extent *extent = &block->extents[2 * (size_t)layer + side];
        extents[coded++] =
            (kvant_device_extent){.struct_size = sizeof extents[0],
                                  .first_token = piece->first_token,
                                  .extent = address_of(kvant_pool_address(cache->pool, extent->index)),
                                  .size = cache_extent_size(cache, block, layer, side),
                                  .first_position = block->first_position,
                                  .rows = &piece->to};
        if (coded < CACHE_BLOCKS) continue;
        status = decode(cache, layer, side, extents, coded, diag);
        coded = 0;
    }
    if (status == KVANT_OK && coded > 0) status = decode(cache, layer, side, extents, coded, diag);
    return status == KVANT_OK ? cache_jobs_put(&list, diag) : status;
}

static size_t attend_scratch(const kvant_cache *cache, uint32_t layer, const kvant_attend_part *parts,
                             uint32_t count, const kvant_attention_options *options) {
    (void)cache;
    (void)layer;
    (void)parts;
    (void)count;
    (void)options;
    return 0;
}

const cache_place cache_place_device = {
    .open = open_device,
    .close = close_device,
    .take = take_pinned,
    .give = give_pinned,
    .copy = copy_rows,
    .zero = zero_bytes,
    .out = bytes_out,
    .in = bytes_in,
    .read = read_pieces,
    .settle = settle,
    .begin = cache_device_begin,
    .end = cache_device_end,
    .open_rows = cache_device_open_rows,
    .keep_rows = cache_device_keep_rows,
    .encode = cache_device_encode,
    .close_rows = cache_device_close_rows,
    .commit = cache_device_commit,
    .attend_scratch = attend_scratch,
    .attend = cache_device_attend,
    .attend_steps = cache_device_attend_steps,
};
