/* kvant_step_begin: everything that the step can need is taken here; then the blocks of the tail that have
 * become old enough are encoded. See step.h. */
#include "cache/place.h"
#include "cache/step.h"

#include <kvant/kit/diag.h>

#include <string.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

enum { STEP_MAX = 1 << 30 };

/* ---- Arguments and counts ------------------------------------------------------------------------------ */

static kvant_status check(const kvant_sequence *s, const kvant_step_options *options, kvant_diag *diag) {
    if (s == NULL || options == NULL || options->struct_size < sizeof *options)
        return REFUSE(KVANT_ERROR_ARGUMENT, "",
                      "kvant_step_begin: sequence or options are NULL, or their struct_size is not set");
    if (s->step != NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT, "", "kvant_step_begin: the sequence is in a step already");
    if (options->count == 0 || options->count > STEP_MAX)
        return REFUSE(KVANT_ERROR_ARGUMENT, "count", "a step of %u tokens; steps have 1 to %d",
                      options->count, STEP_MAX);
    if (options->tentative > options->count)
        return REFUSE(KVANT_ERROR_ARGUMENT, "tentative", "%u of %u tokens are tentative", options->tentative,
                      options->count);
    if (options->count > UINT64_MAX / 2 - s->length)
        return REFUSE(KVANT_ERROR_ARGUMENT, "count", "%u tokens more than %llu are beyond all positions",
                      options->count, (unsigned long long)s->length);
    return KVANT_OK;
}

/* Whole blocks of the tail and the step, all of whose tokens are older than the newest `recent` of those that
 * are not tentative. */
static uint64_t count_sealed(const kvant_sequence *s, uint64_t settled) {
    uint32_t recent = s->cache->shape.recent;
    if (settled < recent || settled - recent <= s->tail_first) return 0;
    return (settled - recent - s->tail_first) / s->cache->shape.block_tokens;
}

cache_page *step_page(const kvant_sequence *s, uint32_t place) {
    const cache_step *step = s->step;
    if (place + 1 == s->page_count && step->copy != NULL) return step->copy;
    if (place < s->page_count) return s->pages[place];
    return place >= step->fresh_first && place - step->fresh_first < step->fresh_count
               ? step->fresh[place - step->fresh_first]
               : NULL;
}

/* ---- Taking -------------------------------------------------------------------------------------------- */

/* The step with its arrays in one allocation. NULL without memory. */
static cache_step *make_step(kvant_sequence *s, const kvant_step_options *options) {
    const cache_shape *shape = &s->cache->shape;
    uint64_t end = s->length + options->count, sealed = count_sealed(s, end - options->tentative);
    uint32_t grid = step_places(s, end),
             whole = (uint32_t)((s->length - s->tail_first) / shape->block_tokens);
    uint32_t first_fresh = sealed > s->page_count ? (uint32_t)sealed : s->page_count;
    uint32_t fresh = grid > first_fresh ? grid - first_fresh : 0;
    uint64_t bytes = sizeof(cache_step) + shape->layer_count * sizeof(cache_step_layer) +
                     (sealed + fresh) * sizeof(void *);
    cache_step *step = cache_take(s->cache, bytes);
    if (step == NULL) return NULL;
    step->layers = (cache_step_layer *)(void *)(step + 1);
    step->sealed = (cache_block **)(void *)(step->layers + shape->layer_count);
    step->fresh = (cache_page **)(void *)(step->sealed + sealed);
    step->first = s->length;
    step->end = end;
    step->count = options->count;
    step->tentative = options->tentative;
    step->identified = options->ids != NULL;
    step->sealed_count = (uint32_t)sealed;
    step->old_count = sealed < whole ? (uint32_t)sealed : whole;
    step->fresh_first = first_fresh;
    step->fresh_count = fresh;
    step->table_bytes = bytes;
    return step;
}

static kvant_status take_lists(kvant_sequence *s) {
    const cache_step *step = s->step;
    uint64_t pages = step_places(s, step->end) - step->sealed_count;
    uint32_t steady = cache_steady_pages(&s->cache->shape);
    if (pages < steady) pages = steady;
    bool taken = cache_list_reserve(s->cache, (void **)&s->blocks, &s->block_room,
                                    (uint64_t)s->block_count + step->sealed_count, sizeof *s->blocks) &&
                 cache_list_reserve(s->cache, (void **)&s->pages, &s->page_room, pages, sizeof *s->pages);
    return taken ? KVANT_OK : KVANT_ERROR_MEMORY;
}

/* The tail's last page gets rows of the step: a copy of it does, where others hold it too. */
static kvant_status take_copy(kvant_sequence *s, kvant_diag *diag) {
    kvant_cache *cache = s->cache;
    uint32_t filled = (uint32_t)((s->length - s->tail_first) % cache->shape.block_tokens);
    if (filled == 0) return KVANT_OK;
    cache_page *last = s->pages[s->page_count - 1];
    pthread_mutex_lock(&cache->lock);
    bool shared = last->holders > 1;
    pthread_mutex_unlock(&cache->lock);
    if (!shared) return KVANT_OK;
    cache_page *copy = NULL;
    kvant_status status = cache_page_new(cache, cache->shape.page_bytes, &copy);
    if (status != KVANT_OK) return status;
    s->step->copy = copy;
    status = cache_page_copy(cache, last, false, copy, filled, diag);
    memcpy(cache_page_ids(copy), cache_page_ids(last), filled * sizeof(uint64_t));
    memcpy(cache_page_tags(&cache->shape, copy), cache_page_tags(&cache->shape, last), filled);
    return status;
}

static kvant_status take_room(kvant_sequence *s, kvant_diag *diag) {
    cache_step *step = s->step;
    kvant_status status = take_lists(s);
    if (status == KVANT_OK) status = s->cache->place->begin(s, diag);
    if (status == KVANT_OK) status = take_copy(s, diag);
    for (uint32_t i = 0; i < step->fresh_count && status == KVANT_OK; i++)
        status = cache_page_new(s->cache, s->cache->shape.page_bytes, &step->fresh[i]);
    for (uint32_t i = 0; i < step->sealed_count && status == KVANT_OK; i++) {
        uint64_t first = s->tail_first + (uint64_t)i * s->cache->shape.block_tokens;
        status = cache_block_new(s->cache, NULL, first == 0, &step->sealed[i]);
        if (status == KVANT_OK) step->sealed[i]->first_position = first;
    }
    return status;
}

/* ---- Ids, tags, keys ----------------------------------------------------------------------------------- */

/* Ids and tags of the step's tokens in [first, end) go to a page or a block whose token 0 is at `base`. */
static void put_tokens(const cache_step *step, const kvant_step_options *options, uint64_t base,
                       uint64_t first, uint64_t end, uint64_t *ids, uint8_t *tags) {
    if (first < step->first) first = step->first;
    if (end > step->end) end = step->end;
    for (uint64_t p = first; p < end; p++) {
        ids[p - base] = options->ids != NULL ? options->ids[p - step->first] : 0;
        tags[p - base] = options->tags != NULL ? options->tags[p - step->first] : 0;
    }
}

static void put_ids(kvant_sequence *s, const kvant_step_options *options) {
    const cache_shape *shape = &s->cache->shape;
    cache_step *step = s->step;
    uint32_t block_tokens = shape->block_tokens;
    for (uint32_t place = step->old_count; place < step_places(s, step->end); place++) {
        uint64_t base = s->tail_first + (uint64_t)place * block_tokens;
        cache_page *page = step_page(s, place);
        if (page != NULL)
            put_tokens(step, options, base, base, base + block_tokens, cache_page_ids(page),
                       cache_page_tags(shape, page));
        else
            put_tokens(step, options, base, base, base + block_tokens, step->sealed[place]->ids,
                       step->sealed[place]->tags);
    }
    for (uint32_t i = 0; i < step->sealed_count; i++) {
        cache_block *block = step->sealed[i];
        cache_page *page = step_page(s, i);
        if (page != NULL) {
            memcpy(block->ids, cache_page_ids(page), block_tokens * sizeof(uint64_t));
            memcpy(block->tags, cache_page_tags(shape, page), block_tokens);
        }
        for (uint32_t t = 0; t < block_tokens; t++) block->classes[t] = s->cache->tag_class[block->tags[t]];
    }
}

/* A block is like those of other sequences if all before it is: whole blocks of known ids from 0 on. */
static kvant_status put_key(kvant_sequence *s, kvant_block_hasher *hasher, uint32_t i) {
    const cache_step *step = s->step;
    uint32_t block_tokens = s->cache->shape.block_tokens;
    cache_block *block = step->sealed[i], *parent = NULL;
    uint64_t shared = step->identified || s->private_first < step->first ? s->private_first : step->first;
    if (block->first_position + block_tokens > shared) return KVANT_OK;
    if (block->first_position > 0) {
        if (i > 0)
            parent = step->sealed[i - 1];
        else if (s->block_count > 0)
            parent = s->blocks[s->block_count - 1];
        if (parent == NULL || !parent->identified ||
            parent->first_position + block_tokens != block->first_position)
            return KVANT_OK;
        memcpy(block->entry.parent, parent->entry.key, sizeof block->entry.parent);
    } else if (!cache_block_set_salt(s->cache, block, s->salt, s->salt_bytes)) {
        return KVANT_ERROR_MEMORY;
    }
    block->identified = true;
    return kvant_block_key(hasher, parent != NULL ? parent->entry.key : NULL, block->ids, block->classes,
                           block_tokens, parent != NULL ? NULL : s->salt, parent != NULL ? 0 : s->salt_bytes,
                           block->entry.key);
}

static kvant_status put_keys(kvant_sequence *s) {
    cache_step *step = s->step;
    kvant_block_hasher *hasher = NULL;
    if (step->sealed_count == 0 || s->cache->plan->canonical == NULL) return KVANT_OK;
    kvant_status status = cache_hasher_take(s->cache, &hasher);
    for (uint32_t i = 0; i < step->sealed_count && status == KVANT_OK; i++) {
        status = put_key(s, hasher, i);
        if (step->sealed[i]->identified) step->reserved++;
    }
    if (hasher != NULL) cache_hasher_give(s->cache, hasher);
    if (status != KVANT_OK || step->reserved == 0) {
        step->reserved = 0;
        return status;
    }
    pthread_mutex_lock(&s->cache->lock);
    status = kvant_prefix_index_reserve(s->cache->index, step->reserved);
    pthread_mutex_unlock(&s->cache->lock);
    if (status != KVANT_OK) step->reserved = 0;
    return status;
}

/* ---- The call ------------------------------------------------------------------------------------------ */

static kvant_status no_room(const kvant_sequence *s, const cache_step *step, kvant_status status,
                            kvant_diag *diag) {
    if (status == KVANT_ERROR_DEVICE) return status; /* who says it knows what went wrong */
    if (status != KVANT_ERROR_NO_SPACE) return REFUSE(status, "", "%s", kvant_status_text(status));
    const cache_shape *shape = &s->cache->shape;
    uint64_t block = 0, page = cache_rounded(shape, shape->page_bytes);
    for (uint32_t i = 0; i < 2 * shape->layer_count; i++)
        block += cache_rounded(shape, shape->layers[i / 2].extent_max[i % 2]);
    pthread_mutex_lock(&s->cache->lock);
    kvant_pool_state pool = kvant_pool_describe(s->cache->pool, 1);
    pthread_mutex_unlock(&s->cache->lock);
    return REFUSE(
        status, "bytes",
        "the pool is full: a step of %u tokens takes %u blocks of up to %llu bytes and %u pages of %llu, "
        "%llu of %llu bytes are free, and sequences or matches hold all the rest",
        step->count, step->sealed_count, (unsigned long long)block, step->fresh_count + 1,
        (unsigned long long)page, (unsigned long long)(pool.capacity - pool.used),
        (unsigned long long)pool.capacity);
}

kvant_status kvant_step_begin(kvant_sequence *sequence, const kvant_step_options *options, kvant_diag *diag) {
    kvant_status status = check(sequence, options, diag);
    if (status != KVANT_OK) return status;
    kvant_sequence *s = sequence;
    s->step = make_step(s, options);
    if (s->step == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    cache_step counts = *s->step;
    status = take_room(s, diag);
    if (status == KVANT_OK) {
        put_ids(s, options);
        status = put_keys(s);
    }
    if (status != KVANT_OK) {
        kvant_step_abort(s);
        return no_room(s, &counts, status, diag);
    }
    status = s->cache->place->encode(s, 0, s->step->old_count, 0, s->cache->shape.layer_count, diag);
    if (status != KVANT_OK) kvant_step_abort(s);
    return status;
}
