/* A step on a device: its rows are kept and encoded in the stream's order, and commit learns what came of it.
 * See place_device.h.
 *
 *     the step's buffer    core_rows_status [layers][2] | device_encode_status [layers][2][sealed] | sight
 *     its memory there     core_rows_status [layers][2] | rows of a layer without what was not finite
 *
 * Row statuses lie on the device until all layers are done, and are copied back then; those of encoded blocks
 * are copied out of the work right after each launch. */
#include "cache/place_device.h"

#include "data/blocks.h"
#include "pipeline/codec_rows.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/view.h>

#include <string.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

static bool replaces(const kvant_cache *cache) {
    return cache->plan->on_nonfinite == KVANT_ON_NONFINITE_SATURATE;
}

static uint64_t rounded(uint64_t bytes) {
    return (bytes + 255) / 256 * 256;
}

/* ---- Begin and end ------------------------------------------------------------------------------------- */

static uint64_t row_statuses(const kvant_cache *cache) {
    return 2 * (uint64_t)cache->shape.layer_count * sizeof(core_rows_status);
}

/* Both sides' rows of a layer, dense. */
static uint64_t layer_bytes(const kvant_sequence *s, uint32_t layer) {
    const cache_layer *l = &s->cache->shape.layers[layer];
    return rounded(s->step->count * l->row_bytes[0]) + rounded(s->step->count * l->row_bytes[1]);
}

static kvant_status take_memory(kvant_sequence *s, cache_device_step *d, kvant_diag *diag) {
    kvant_cache *cache = s->cache;
    uint64_t most = 0;
    for (uint32_t layer = 0; layer < cache->shape.layer_count && replaces(cache); layer++)
        if (layer_bytes(s, layer) > most) most = layer_bytes(s, layer);
    d->rows_at = rounded(row_statuses(cache));
    return cache_memory_take(cache, d->rows_at + most, &d->memory, diag);
}

static kvant_status take_buffer(kvant_sequence *s, cache_device_step *d, kvant_diag *diag) {
    cache_step *step = s->step;
    uint32_t references = (uint32_t)d->demand.references, runs = (uint32_t)d->demand.runs;
    uint64_t encoded =
        2 * (uint64_t)s->cache->shape.layer_count * step->sealed_count * sizeof(device_encode_status);
    d->encoded_at = (size_t)rounded(row_statuses(s->cache));
    step->sight_at = d->encoded_at + (size_t)rounded(encoded);
    step->buffer = cache_buffer_take(s->cache, step->sight_at + sight_bytes(references, runs, 0));
    return step->buffer != NULL ? KVANT_OK
                                : REFUSE(KVANT_ERROR_MEMORY, "", "no page-locked memory for a step");
}

static void add_demand(cache_demand *sum, const cache_demand *demand, int sign) {
    uint64_t *to[4] = {&sum->sequences, &sum->positions, &sum->runs, &sum->references};
    const uint64_t by[4] = {demand->sequences, demand->positions, demand->runs, demand->references};
    for (uint32_t i = 0; i < 4; i++) *to[i] = sign > 0 ? *to[i] + by[i] : *to[i] - by[i];
}

/* What the step takes of the lists, alone and together with the others under way. */
static kvant_status take_lists(kvant_sequence *s, cache_device_step *d, kvant_diag *diag) {
    static const cache_demand most = {.sequences = CACHE_TOGETHER_SEQUENCES,
                                      .positions = CACHE_TOGETHER_POSITIONS,
                                      .runs = CACHE_TOGETHER_RUNS,
                                      .references = CACHE_TOGETHER_REFERENCES};
    cache_device *device = s->cache->device;
    uint32_t references = 0, runs = 0;
    sight_room(s, &references, &runs);
    d->demand = (cache_demand){.sequences = 1,
                               .positions = s->step->count < device->chunk ? s->step->count : device->chunk,
                               .runs = runs,
                               .references = references};
    pthread_mutex_lock(&device->lock);
    add_demand(&device->open, &d->demand, 1);
    cache_demand need = device->open;
    need.of_one = d->demand.positions;
    const uint64_t room[4] = {most.sequences, most.positions, most.runs, most.references};
    const uint64_t alone[4] = {1, d->demand.positions, runs, references};
    uint64_t *needed[4] = {&need.sequences, &need.positions, &need.runs, &need.references};
    for (uint32_t i = 0; i < 4; i++) {
        if (*needed[i] > room[i]) *needed[i] = room[i];
        if (*needed[i] < alone[i]) *needed[i] = alone[i];
    }
    kvant_status status = cache_works_grow(s->cache, need, diag);
    pthread_mutex_unlock(&device->lock);
    return status;
}

kvant_status cache_device_begin(kvant_sequence *s, kvant_diag *diag) {
    kvant_cache *cache = s->cache;
    cache_step *step = s->step;
    cache_device_step *d = cache_take(cache, sizeof *d);
    if (d == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    step->device = d;
    kvant_status status = take_lists(s, d, diag);
    if (status == KVANT_OK) status = take_buffer(s, d, diag);
    if (status == KVANT_OK) status = take_memory(s, d, diag);
    if (status != KVANT_OK) return status;
    core_rows_status *statuses = (core_rows_status *)(void *)step->buffer->bytes;
    for (uint32_t i = 0; i < 2 * cache->shape.layer_count; i++)
        statuses[i] = (core_rows_status){.first_not_finite = UINT64_MAX};
    d->queued = true;
    return device_copy_in(cache->device->device, d->memory->address, statuses, row_statuses(cache),
                          cache->device->stream, diag);
}

/* The buffer is somebody else's afterwards: nothing may still be on its way to it. */
void cache_device_end(kvant_sequence *s) {
    kvant_cache *cache = s->cache;
    cache_device_step *d = s->step->device;
    if (d == NULL) return;
    if (d->queued) (void)device_wait(cache->device->device, cache->device->stream, NULL);
    for (uint32_t layer = 0; layer < cache->shape.layer_count; layer++) cache_device_close_rows(s, layer);
    cache_memory_give(cache, d->memory);
    cache_buffer_give(cache, s->step->buffer);
    pthread_mutex_lock(&cache->device->lock);
    add_demand(&cache->device->open, &d->demand, -1);
    pthread_mutex_unlock(&cache->device->lock);
    cache_give(cache, d, sizeof *d);
    s->step->device = NULL;
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

static uint64_t status_at(const kvant_sequence *s, uint32_t layer, uint32_t side) {
    return s->step->device->memory->address + (2 * (uint64_t)layer + side) * sizeof(core_rows_status);
}

/* The step's own room, or, where another layer that is open has that, more of the device. */
static kvant_status take_rows(kvant_sequence *s, uint32_t layer, uint64_t *address, kvant_diag *diag) {
    cache_device_step *d = s->step->device;
    cache_memory *memory = d->memory;
    if (d->rows_taken) {
        kvant_status status = cache_memory_take(s->cache, layer_bytes(s, layer), &memory, diag);
        if (status != KVANT_OK) return status;
    }
    *address = memory->address + (d->rows_taken ? 0 : d->rows_at);
    d->rows_taken = true;
    s->step->layers[layer].replaced[0] = memory;
    return KVANT_OK;
}

kvant_status cache_device_open_rows(kvant_sequence *s, uint32_t layer, kvant_diag *diag) {
    kvant_cache *cache = s->cache;
    cache_step_layer *l = &s->step->layers[layer];
    uint64_t address = 0;
    if (!replaces(cache)) return KVANT_OK; /* looked at when the rows are kept */
    kvant_status status = take_rows(s, layer, &address, diag);
    if (status != KVANT_OK) return status;
    cache_jobs list;
    list.cache = cache;
    list.count = 0;
    for (uint32_t side = 0; side < 2 && status == KVANT_OK; side++) {
        const kvant_view *rows = &l->rows[side];
        kvant_mutable_view copy = kvant_dense_mutable_view((void *)(uintptr_t)address, rows->dtype,
                                                           rows->tokens, rows->heads, rows->head_dim);
        core_rows_job job = cache_rows_job(rows, &copy);
        job.flags = CORE_ROWS_REPLACE;
        job.status = status_at(s, layer, side);
        status = cache_jobs_add(&list, &job, diag);
        l->rows[side] = cache_view(copy);
        address += rounded(s->step->count * cache->shape.layers[layer].row_bytes[side]);
    }
    return status == KVANT_OK ? cache_jobs_put(&list, diag) : status;
}

void cache_device_close_rows(kvant_sequence *s, uint32_t layer) {
    cache_device_step *d = s->step->device;
    cache_memory *memory = s->step->layers[layer].replaced[0];
    s->step->layers[layer].replaced[0] = NULL;
    if (memory == NULL) return;
    if (memory == d->memory)
        d->rows_taken = false;
    else
        cache_memory_give(s->cache, memory);
}

/* Rows to pages. Those that all go to one page are looked at on their way; else they are looked at
 * besides. */
static kvant_status keep(kvant_sequence *s, uint32_t layer, cache_jobs *list, kvant_diag *diag) {
    const cache_step *step = s->step;
    bool looks = !replaces(s->cache), looked = false;
    kvant_status status = KVANT_OK;
    uint32_t end = step_places(s, step->end);
    uint32_t place = (uint32_t)((step->first - s->tail_first) / s->cache->shape.block_tokens);
    for (; place < end && status == KVANT_OK; place++) {
        cache_copy copies[2];
        if (!step_kept(s, place, layer, copies)) continue;
        for (uint32_t side = 0; side < 2 && status == KVANT_OK; side++) {
            core_rows_job job = cache_rows_job(&copies[side].from, &copies[side].to);
            looked = looks && job.tokens == step->count;
            if (looked) job.status = status_at(s, layer, side);
            status = cache_jobs_add(list, &job, diag);
        }
    }
    for (uint32_t side = 0; side < 2 && looks && !looked && status == KVANT_OK; side++) {
        core_rows_job job = cache_rows_job(&step->layers[layer].rows[side], NULL);
        job.status = status_at(s, layer, side);
        status = cache_jobs_add(list, &job, diag);
    }
    return status;
}

kvant_status cache_device_keep_rows(kvant_sequence *const *sequences, uint32_t count, uint32_t layer,
                                    kvant_diag *diag) {
    kvant_cache *cache = sequences[0]->cache;
    const cache_device *device = cache->device;
    kvant_status status = KVANT_OK;
    cache_jobs list;
    list.cache = cache;
    list.count = 0;
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++)
        status = keep(sequences[i], layer, &list, diag);
    if (status == KVANT_OK) status = cache_jobs_put(&list, diag);
    for (uint32_t i = 0; i < count && status == KVANT_OK; i++) {
        cache_step *step = sequences[i]->step;
        if (++step->device->layers_done < cache->shape.layer_count) continue;
        status = device_copy_out(device->device, step->buffer->bytes, step->device->memory->address,
                                 row_statuses(cache), device->stream, diag);
    }
    return status;
}

/* ---- Encoding ------------------------------------------------------------------------------------------ */

static device_encode_status *encoded(const kvant_sequence *s, uint32_t layer, uint32_t side, uint32_t place) {
    const cache_step *step = s->step;
    device_encode_status *all =
        (device_encode_status *)(void *)(step->buffer->bytes + step->device->encoded_at);
    return all + (2 * (size_t)layer + side) * step->sealed_count + place;
}

static kvant_status keep_sinks(kvant_sequence *s, uint32_t place, uint32_t layer, uint32_t layers,
                               kvant_diag *diag) {
    kvant_cache *cache = s->cache;
    const cache_block *block = s->step->sealed[place];
    kvant_status status = KVANT_OK;
    cache_jobs list;
    list.cache = cache;
    list.count = 0;
    if (block->sinks == NULL) return KVANT_OK;
    for (uint32_t i = 2 * layer; i < 2 * (layer + layers) && status == KVANT_OK; i++) {
        kvant_view rows = step_block_rows(s, place, i / 2, i % 2);
        kvant_view first = cache_view_part(&rows, 0, cache->shape.sinks);
        kvant_mutable_view to = cache_sink_rows(cache, block->sinks, i / 2, i % 2, cache->shape.sinks);
        core_rows_job job = cache_rows_job(&first, &to);
        status = cache_jobs_add(&list, &job, diag);
    }
    return status == KVANT_OK ? cache_jobs_put(&list, diag) : status;
}

/* At most CACHE_BLOCKS blocks of a layer and side. */
static kvant_status encode_some(kvant_sequence *s, uint32_t first, uint32_t count, uint32_t layer,
                                uint32_t side, kvant_diag *diag) {
    kvant_cache *cache = s->cache;
    cache_device *d = cache->device;
    kvant_device_block blocks[CACHE_BLOCKS];
    kvant_view rows[CACHE_BLOCKS];
    for (uint32_t i = 0; i < count; i++) {
        const cache_block *block = s->step->sealed[first + i];
        const cache_extent *extent = &block->extents[2 * (size_t)layer + side];
        rows[i] = step_block_rows(s, first + i, layer, side);
        blocks[i] = (kvant_device_block){
            .struct_size = sizeof blocks[0],
            .rows = &rows[i],
            .extent = (uint64_t)(uintptr_t)kvant_pool_address(cache->pool, extent->index),
            .first_position = block->first_position,
            .tags = block->tags};
    }
    pthread_mutex_lock(&d->lock);
    kvant_device_work *work = d->works[layer];
    kvant_status status = kvant_device_encode_prepare(work, side, blocks, count, d->stream, diag);
    if (status == KVANT_OK) status = kvant_device_encode_launch(work, side, d->stream, diag);
    if (status == KVANT_OK)
        status = device_encode_statuses(work, side, encoded(s, layer, side, first), count, d->stream, diag);
    pthread_mutex_unlock(&d->lock);
    return status;
}

/* Sizes of blocks, as far as they are not all alike. The stream was waited for. */
static void take_sizes(kvant_sequence *s, uint32_t first, uint32_t count) {
    const kvant_cache *cache = s->cache;
    for (uint32_t i = 0; i < 2 * cache->shape.layer_count; i++) {
        const kvant_layout *layout = &cache->plan->entries[i].layout;
        for (uint32_t place = first; place < first + count && layout->size_step != 0; place++) {
            uint64_t size = encoded(s, i / 2, i % 2, place)->codec.size;
            uint64_t steps = size > layout->size_min ? (size - layout->size_min) / layout->size_step : 0;
            if (steps > layout->size_steps) steps = layout->size_steps;
            s->step->sealed[place]->extents[i].steps = (uint32_t)steps;
        }
    }
}

static bool sizes_vary(const kvant_cache *cache) {
    for (uint32_t i = 0; i < 2 * cache->shape.layer_count; i++)
        if (cache->plan->entries[i].layout.size_step != 0) return true;
    return false;
}

kvant_status cache_device_encode(kvant_sequence *s, uint32_t first, uint32_t count, uint32_t layer,
                                 uint32_t layers, kvant_diag *diag) {
    kvant_status status = KVANT_OK;
    if (count == 0) return KVANT_OK;
    if (s->step->sealed[first]->first_position == 0) status = keep_sinks(s, first, layer, layers, diag);
    for (uint32_t i = 2 * layer; i < 2 * (layer + layers); i++)
        for (uint32_t done = 0; done < count && status == KVANT_OK; done += CACHE_BLOCKS)
            status = encode_some(s, first + done, count - done < CACHE_BLOCKS ? count - done : CACHE_BLOCKS,
                                 i / 2, i % 2, diag);
    /* Blocks of the tail are seen as codes by the step's queries, which are told their sizes. */
    if (status != KVANT_OK || first >= s->step->old_count || !sizes_vary(s->cache)) return status;
    status = device_wait(s->cache->device->device, s->cache->device->stream, diag);
    if (status == KVANT_OK) take_sizes(s, first, count);
    return status;
}

/* ---- Commit -------------------------------------------------------------------------------------------- */

/* element: (token * heads + head) * dim + channel of rows whose first is at `position`. */
static kvant_status refuse(const kvant_sequence *s, uint32_t layer, uint32_t side, uint64_t position,
                           uint64_t element, kvant_diag *diag) {
    const kvant_layer_geometry *l = kvant_layer_at(&s->cache->plan->geometry, layer);
    uint64_t dim = side == KVANT_SIDE_KEY ? l->key_dim : l->value_dim, row = element / dim;
    return REFUSE(KVANT_ERROR_NOT_FINITE, step_side_names[side],
                  "layer %u %s: position %llu, head %llu, channel %llu is NaN or infinite", layer,
                  step_side_names[side], (unsigned long long)(position + row / l->kv_heads),
                  (unsigned long long)(row % l->kv_heads), (unsigned long long)(element % dim));
}

/* Rows that the step was given, each layer and side looked at or replaced. */
static kvant_status take_rows_statuses(kvant_sequence *s, kvant_diag *diag) {
    const core_rows_status *statuses = (const core_rows_status *)(const void *)s->step->buffer->bytes;
    for (uint32_t i = 0; i < 2 * s->cache->shape.layer_count; i++) {
        s->step->replaced += statuses[i].replaced;
        if (!replaces(s->cache) && statuses[i].first_not_finite != UINT64_MAX)
            return refuse(s, i / 2, i % 2, s->step->first, statuses[i].first_not_finite, diag);
    }
    return KVANT_OK;
}

/* Blocks: they may hold raw rows of a store's, which nobody has looked at yet. */
static kvant_status take_encoded(kvant_sequence *s, kvant_diag *diag) {
    cache_step *step = s->step;
    for (uint32_t i = 0; i < 2 * s->cache->shape.layer_count; i++)
        for (uint32_t place = 0; place < step->sealed_count; place++) {
            const device_encode_status *e = encoded(s, i / 2, i % 2, place);
            uint64_t bad = device_encode_bad(e, replaces(s->cache));
            step->saturated += e->codec.saturated + e->rows.saturated;
            step->replaced += e->rows.replaced;
            if (bad != UINT64_MAX)
                return refuse(s, i / 2, i % 2, step->sealed[place]->first_position, bad, diag);
        }
    return KVANT_OK;
}

kvant_status cache_device_commit(kvant_sequence *s, kvant_diag *diag) {
    kvant_cache *cache = s->cache;
    kvant_status status = device_wait(cache->device->device, cache->device->stream, diag);
    if (status == KVANT_OK) s->step->device->queued = false;
    if (status == KVANT_OK) status = take_rows_statuses(s, diag);
    if (status == KVANT_OK) status = take_encoded(s, diag);
    if (status != KVANT_OK || s->step->sealed_count == 0) return status;
    take_sizes(s, 0, s->step->sealed_count);
    step_shrink(s, 0, s->step->sealed_count, 0, cache->shape.layer_count);
    return KVANT_OK;
}
