/* Encoding on the host: a block, a layer and a side at a time, on which thread. See place_host.h. */
#include "base/parallel.h"
#include "cache/place_host.h"

#include <kvant/kit/diag.h>

#include <stdatomic.h>

/* ---- Loops --------------------------------------------------------------------------------------------- */

typedef struct loop_call {
    kvant_loop_body *body;
    void *argument;
    uint32_t count, threads;
    atomic_uint done;
} loop_call;

static void loop_index(void *argument, uint32_t index, uint32_t thread) {
    loop_call *call = argument;
    if (index >= call->count || thread >= call->threads) return; /* not done: found below */
    call->body(call->argument, index, thread);
    atomic_fetch_add_explicit(&call->done, 1, memory_order_relaxed);
}

static kvant_status parallel_index(void *argument, uint32_t index, uint32_t thread) {
    loop_index(argument, index, thread);
    return KVANT_OK;
}

/* Every index below count, with the cache's loop or threads. False if the loop left one out. */
static bool run_loop(kvant_cache *cache, uint32_t count, kvant_loop_body *body, void *argument) {
    loop_call call = {.body = body, .argument = argument, .count = count, .threads = cache->threads};
    atomic_init(&call.done, 0);
    if (count <= 1 || cache->threads == 1)
        for (uint32_t i = 0; i < count; i++) loop_index(&call, i, 0);
    else if (cache->loop != NULL)
        cache->loop(cache->loop_context, count, cache->threads, loop_index, &call);
    else
        (void)kvant_parallel_for(cache->threads, count, parallel_index, &call);
    return atomic_load(&call.done) == count;
}

/* ---- One block, one layer, one side -------------------------------------------------------------------- */

typedef struct encode_call {
    kvant_sequence *s;
    uint32_t first, layer, layers; /* job index = (block * layers + layer) * 2 + side */
    pthread_mutex_t lock;          /* guards the rest */
    kvant_status status;
    uint32_t failed; /* the smallest index that failed */
    kvant_diag diag;
    uint64_t saturated, replaced;
} encode_call;

static void keep_sinks(const kvant_cache *cache, const cache_block *block, uint32_t layer, uint32_t side,
                       const kvant_view *rows) {
    if (block->sinks == NULL) return;
    kvant_view first = cache_view_part(rows, 0, cache->shape.sinks);
    kvant_mutable_view to = cache_sink_rows(cache, block->sinks, layer, side, cache->shape.sinks);
    host_copy_rows(&first, &to);
}

static void encode_job(void *argument, uint32_t index, uint32_t thread) {
    encode_call *call = argument;
    kvant_sequence *s = call->s;
    kvant_cache *cache = s->cache;
    uint32_t side = index % 2, layer = call->layer + index / 2 % call->layers;
    uint32_t place = call->first + index / 2 / call->layers;
    cache_block *block = s->step->sealed[place];
    cache_extent *extent = &block->extents[2 * (size_t)layer + side];
    kvant_view rows = step_block_rows(s, place, layer, side);
    kvant_encode_report report = {.struct_size = sizeof report};
    kvant_diag diag = {.struct_size = sizeof diag};
    keep_sinks(cache, block, layer, side, &rows);
    kvant_status status = kvant_codec_encode(
        kvant_attention_codec(cache->attention[layer], side), &rows, block->first_position, block->tags,
        kvant_pool_address(cache->pool, extent->index), (size_t)cache->shape.layers[layer].extent_max[side],
        s->step->buffer->bytes + thread * cache->shape.encode_scratch, &report, &diag);
    if (status == KVANT_OK) {
        const kvant_layout *layout = &cache->plan->entries[2 * (size_t)layer + side].layout;
        if (layout->size_step != 0)
            extent->steps = (uint32_t)((report.size - layout->size_min) / layout->size_step);
        if (report.saturated == 0 && report.replaced == 0) return;
    }
    pthread_mutex_lock(&call->lock);
    call->saturated += report.saturated;
    call->replaced += report.replaced;
    if (status != KVANT_OK && (call->status == KVANT_OK || index < call->failed)) {
        call->status = status;
        call->failed = index;
        call->diag = diag;
    }
    pthread_mutex_unlock(&call->lock);
}

kvant_status host_encode(kvant_sequence *s, uint32_t first, uint32_t count, uint32_t layer, uint32_t layers,
                         kvant_diag *diag) {
    if (count == 0) return KVANT_OK;
    encode_call call = {.s = s, .first = first, .layer = layer, .layers = layers};
    pthread_mutex_init(&call.lock, NULL);
    bool all = run_loop(s->cache, 2 * count * layers, encode_job, &call);
    pthread_mutex_destroy(&call.lock);
    if (!all && call.status == KVANT_OK)
        return kvant_fail(
            diag, KVANT_ERROR_ARGUMENT, "loop",
            "the cache's loop returned before every index was done, or gave it a thread number not "
            "below %u",
            s->cache->threads);
    if (call.status != KVANT_OK) {
        if (diag != NULL && diag->struct_size >= sizeof *diag) *diag = call.diag;
        return call.status;
    }
    s->step->saturated += call.saturated;
    s->step->replaced += call.replaced;
    step_shrink(s, first, count, layer, layers);
    return KVANT_OK;
}
