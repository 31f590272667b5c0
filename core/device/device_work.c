/* A work: limits to places in lists and scratch, and their memory. See kvant/device.h.
 *
 * All calls of a work share its scratch, from its first byte on: they follow one another in a stream. */
#include "device/device_internal.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

/* ---- Places -------------------------------------------------------------------------------------------- */

/* An end that grows; `overflow` once it is beyond what can be. */
typedef struct place_end {
    uint64_t bytes;
    bool overflow;
} place_end;

static uint64_t place(place_end *end, uint64_t count, uint64_t size) {
    uint64_t at = end->bytes, bytes = 0;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > INT64_MAX - DEVICE_ALIGNMENT ||
        __builtin_add_overflow(at, (bytes + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT,
                               &end->bytes) ||
        end->bytes > INT64_MAX)
        end->overflow = true;
    return end->overflow ? 0 : at;
}

static void place_encode(const kvant_device_work *work, const device_side *s, device_encode_places *at,
                         place_end *list, place_end *scratch) {
    const kvant_setup *setup = &s->entry->setup;
    uint64_t blocks = work->limits.blocks;
    at->head = place(list, 1, sizeof(core_rows_head) + sizeof(uint32_t));
    at->statuses = place(list, blocks, sizeof(device_encode_status));
    at->jobs = place(list, blocks, sizeof(kvant_gpu_encode_job));
    at->row_jobs = place(list, s->passes ? 2 * blocks : 0, sizeof(core_rows_job));
    at->classes = place(list, s->classes ? blocks : 0, setup->block_tokens);
    at->turn_bases = place(list, blocks, device_turn_doubles(s, setup->block_tokens) * sizeof(double));
    at->bytes = list->bytes;
    at->row_bytes = s->row_elements * kvant_element_bytes(setup->dtype);
    at->row_bytes = (at->row_bytes + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
    at->scratch_codec =
        place(scratch, 1, gpu_codec_scratch_bytes(&s->gpu, KVANT_GPU_ENCODE, work->limits.blocks));
    at->scratch_rows = place(scratch, s->passes ? blocks : 0, at->row_bytes);
}

static void place_decode(const kvant_device_work *work, const device_side *s, device_decode_places *at,
                         place_end *list, place_end *scratch) {
    const kvant_setup *setup = &s->entry->setup;
    uint64_t blocks = work->limits.blocks;
    at->head = place(list, 1, sizeof(core_rows_head) + sizeof(uint32_t));
    at->jobs = place(list, blocks, sizeof(kvant_gpu_decode_job));
    at->row_jobs = place(list, s->changes ? blocks : 0, sizeof(core_rows_job));
    at->turn_bases = place(list, blocks, device_turn_doubles(s, setup->block_tokens) * sizeof(double));
    at->bytes = list->bytes;
    at->row_bytes =
        (s->row_elements * sizeof(float) + DEVICE_ALIGNMENT - 1) / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
    at->scratch_codec =
        place(scratch, 1, gpu_codec_scratch_bytes(&s->gpu, KVANT_GPU_DECODE, work->limits.blocks));
    at->scratch_rows = place(scratch, s->changes ? blocks : 0, at->row_bytes);
}

uint32_t device_item_positions(const kvant_device_layer *layer) {
    uint32_t group = layer->attention->group;
    return group < DEVICE_ITEM_ROWS ? DEVICE_ITEM_ROWS / group : 1;
}

uint64_t device_span_references(const kvant_device_work *work, uint32_t positions) {
    uint64_t block_tokens = work->layer->attention->block_tokens;
    return ((uint64_t)work->limits.span_tokens * positions + block_tokens - 1) / block_tokens;
}

static uint32_t narrow(uint64_t count, place_end *end) {
    if (count >= UINT32_MAX / 2) end->overflow = true;
    return end->overflow ? 0 : (uint32_t)count;
}

/* A sequence of R references and p positions has R / (span * p) + 1 spans at most, and p / item positions + 1
 * items for each: sums of that over sequences. */
static void place_rooms(const kvant_device_work *work, device_attend_places *at, place_end *end) {
    const kvant_attention *a = work->layer->attention;
    const kvant_device_limits *limits = &work->limits;
    uint64_t chunks = limits->positions / device_item_positions(work->layer) + limits->sequences;
    uint64_t spans = 0, tokens = 0;
    if (__builtin_mul_overflow(limits->references, (uint64_t)a->block_tokens, &tokens) ||
        tokens > INT64_MAX / 4)
        end->overflow = true;
    else
        spans = tokens / limits->span_tokens + 1;
    at->raw_room = narrow(a->kv_heads * chunks, end);
    at->coded_room =
        narrow(a->kv_heads * (limits->references > 0 ? 2 * spans + chunks + limits->sequences : 0) +
                   (work->layer->attends == KVANT_DEVICE_ATTEND_FUSED ? at->raw_room : 0),
               end);
    at->merge_room = narrow((uint64_t)a->kv_heads * limits->sequences, end);
    at->partial_rows = a->q_heads * (spans + 2 * (uint64_t)limits->positions + limits->sequences);
    at->partial_stride = (a->value_dim + 2 + 3) / 4 * 4;
    at->logit_room = 0;
    if (work->layer->attends == KVANT_DEVICE_ATTEND_SPLIT &&
        __builtin_mul_overflow(tokens, (uint64_t)a->q_heads * limits->positions_of_one, &at->logit_room))
        end->overflow = true;
    if (at->logit_room > 0) at->logit_room += 4 * (uint64_t)at->coded_room; /* each item begins on 16 bytes */
}

static void place_attend(const kvant_device_work *work, device_attend_places *at, place_end *list,
                         place_end *scratch) {
    const kvant_device_layer *layer = work->layer;
    const kvant_attention *a = layer->attention;
    const kvant_device_limits *limits = &work->limits;
    uint64_t decoded = layer->attends == KVANT_DEVICE_ATTEND_ROWS ? limits->references : 0;
    const device_side *key = &layer->sides[KVANT_SIDE_KEY];
    place_rooms(work, at, list);
    for (uint32_t i = 0; i < 2; i++) at->heads[i] = place(list, 1, sizeof(core_rows_head));
    at->counts = place(list, DEVICE_COUNTS, sizeof(uint32_t));
    at->layer = place(list, 1, sizeof(kvant_gpu_layer));
    at->coded_items = place(list, at->coded_room, sizeof(kvant_gpu_item));
    at->raw_items = place(list, at->raw_room, sizeof(kvant_gpu_item));
    at->merges = place(list, at->merge_room, sizeof(core_merge_job));
    at->references = place(list, limits->references, sizeof(kvant_gpu_reference));
    at->runs = place(list, limits->runs, sizeof(kvant_gpu_run));
    at->tile_runs = place(list, decoded, sizeof(kvant_gpu_run));
    for (uint32_t side = 0; side < 2; side++)
        at->decodes[side] = place(list, decoded, sizeof(kvant_gpu_decode_job));
    at->query_jobs = place(list, decoded > 0 ? limits->sequences : 0, sizeof(core_rows_job));
    at->key_jobs = place(list, key->changes ? decoded : 0, sizeof(core_rows_job));
    at->turn_bases = place(list, decoded, device_turn_doubles(key, a->block_tokens) * sizeof(double));
    at->bytes = list->bytes;
    at->partials = place(scratch, at->partial_rows, at->partial_stride * sizeof(float));
    at->logits = place(scratch, at->logit_room, sizeof(float));
    for (uint32_t side = 0; side < 2; side++)
        at->tiles[side] = place(scratch, decoded, layer->sides[side].row_elements * sizeof(float));
    at->decoded = place(scratch, key->changes ? decoded : 0, key->row_elements * sizeof(float));
    at->queries = place(scratch, decoded > 0 ? limits->positions : 0,
                        (uint64_t)a->q_heads * a->key_dim * sizeof(float));
    for (uint32_t side = 0; side < 2; side++) {
        uint64_t most = 0;
        for (uint32_t call = KVANT_GPU_DECODE; call <= KVANT_GPU_ATTEND; call++) {
            uint64_t jobs = call == KVANT_GPU_DECODE ? decoded : at->coded_room;
            if (!gpu_codec_offers(&layer->sides[side].gpu, call)) continue;
            uint64_t bytes = gpu_codec_scratch_bytes(&layer->sides[side].gpu, call, narrow(jobs, scratch));
            if (bytes > most) most = bytes;
        }
        at->codec[side] = place(scratch, 1, most);
    }
}

static kvant_status place_all(const kvant_device_layer *layer, const kvant_device_limits *limits,
                              kvant_device_work *work, kvant_diag *diag) {
    if (layer == NULL || limits == NULL || limits->struct_size < sizeof *limits)
        return REFUSE(KVANT_ERROR_ARGUMENT, "limits",
                      "layer or limits are NULL, or limits.struct_size is not %zu", sizeof *limits);
    work->layer = (kvant_device_layer *)(uintptr_t)layer;
    work->limits = *limits;
    work->limits.struct_size = sizeof *limits;
    if (limits->span_tokens == 0) work->limits.span_tokens = DEVICE_SPAN_TOKENS;
    if (limits->positions_of_one == 0) work->limits.positions_of_one = limits->positions;
    bool overflow = false;
    uint64_t most = 0;
    for (uint32_t i = 0; i < 5; i++) {
        place_end list = {0}, scratch = {0};
        const device_side *s = &layer->sides[i % 2];
        if (i == 4)
            place_attend(work, &work->attend_at, &list, &scratch);
        else if (i < 2)
            place_encode(work, s, &work->encode_at[i], &list, &scratch);
        else
            place_decode(work, s, &work->decode_at[i - 2], &list, &scratch);
        overflow = overflow || list.overflow || scratch.overflow;
        if (scratch.bytes > most) most = scratch.bytes;
    }
    if (overflow)
        return REFUSE(KVANT_ERROR_MEMORY, "limits",
                      "layer %u: a batch of these limits does not fit into memory", layer->attention->layer);
    work->scratch_bytes = most;
    return KVANT_OK;
}

/* The lists of a work, and what they hold. */
static uint32_t lists_of(kvant_device_work *work, device_list *lists[5], uint64_t bytes[5]) {
    uint32_t count = 0;
    for (uint32_t side = 0; side < 2 && work->limits.blocks > 0; side++) {
        lists[count] = &work->encode[side];
        bytes[count++] = work->encode_at[side].bytes;
        lists[count] = &work->decode[side];
        bytes[count++] = work->decode_at[side].bytes;
    }
    if (work->limits.sequences > 0) {
        lists[count] = &work->attend;
        bytes[count++] = work->attend_at.bytes;
    }
    return count;
}

kvant_status kvant_device_work_bytes(const kvant_device_layer *layer, const kvant_device_limits *limits,
                                     uint64_t *lists, uint64_t *scratch, kvant_diag *diag) {
    kvant_device_work work = {0};
    device_list *all[5];
    uint64_t bytes[5], sum = 0;
    kvant_status status = place_all(layer, limits, &work, diag);
    if (status != KVANT_OK) return status;
    for (uint32_t i = 0, count = lists_of(&work, all, bytes); i < count; i++) sum += bytes[i];
    if (lists != NULL) *lists = sum;
    if (scratch != NULL) *scratch = work.scratch_bytes;
    return KVANT_OK;
}

/* ---- Open and close ------------------------------------------------------------------------------------ */

static kvant_status take_list(kvant_device *device, device_list *list, uint64_t bytes, kvant_diag *diag) {
    const gpu_driver *d = device->gpu.driver;
    uint64_t address = 0;
    kvant_status status = kvant_device_alloc(device, bytes, &address, diag);
    list->address = address;
    list->bytes = bytes;
    for (uint32_t i = 0; i < 2 && status == KVANT_OK; i++) {
        list->pinned[i] = device_pinned_take(device, (size_t)bytes);
        if (list->pinned[i] == NULL)
            return REFUSE(KVANT_ERROR_MEMORY, "", "no room for %llu bytes of page-locked memory",
                          (unsigned long long)bytes);
        memset(list->pinned[i], 0, (size_t)bytes);
        status = gpu_device_enter(&device->gpu, diag);
        if (status != KVANT_OK) return status;
        status =
            gpu_check(d, d->event_create(&list->arrived[i], GPU_EVENT_DISABLE_TIMING), "cuEventCreate", diag);
        gpu_device_leave(&device->gpu);
    }
    /* A launch before the first prepare finds no jobs. */
    if (status == KVANT_OK) status = kvant_device_write(device, address, list->pinned[0], bytes, NULL, diag);
    return status;
}

static void give_list(kvant_device *device, device_list *list) {
    const gpu_driver *d = device->gpu.driver;
    for (uint32_t i = 0; i < 2; i++) {
        if (gpu_device_enter(&device->gpu, NULL) == KVANT_OK) {
            if (list->used[i]) (void)d->event_synchronize(list->arrived[i]);
            if (list->arrived[i] != NULL) (void)d->event_destroy(list->arrived[i]);
            gpu_device_leave(&device->gpu);
        }
        device_pinned_give(device, list->pinned[i]);
    }
    kvant_device_free(device, list->address);
}

kvant_status kvant_device_work_open(kvant_device_layer *layer, const kvant_device_limits *limits,
                                    uint64_t scratch, kvant_device_work **work, kvant_diag *diag) {
    device_list *all[5];
    uint64_t bytes[5];
    if (work == NULL || scratch % DEVICE_ALIGNMENT != 0)
        return REFUSE(KVANT_ERROR_ARGUMENT, "scratch",
                      "kvant_device_work_open: work is NULL, or scratch is not aligned to %d bytes",
                      DEVICE_ALIGNMENT);
    kvant_device_work *made = calloc(1, sizeof *made);
    if (made == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    kvant_status status = place_all(layer, limits, made, diag);
    if (status != KVANT_OK) {
        free(made);
        return status;
    }
    if (scratch == 0 && made->scratch_bytes > 0) {
        uint64_t own = 0;
        status = kvant_device_alloc(layer->device, made->scratch_bytes, &own, diag);
        made->own_scratch = own;
    }
    made->scratch = scratch != 0 ? scratch : made->own_scratch;
    for (uint32_t i = 0, count = lists_of(made, all, bytes); i < count && status == KVANT_OK; i++)
        status = take_list(layer->device, all[i], bytes[i], diag);
    if (status == KVANT_OK)
        *work = made;
    else
        kvant_device_work_close(made);
    return status;
}

void kvant_device_work_close(kvant_device_work *work) {
    if (work == NULL) return;
    kvant_device *device = work->layer->device;
    for (uint32_t side = 0; side < 2; side++) {
        give_list(device, &work->encode[side]);
        give_list(device, &work->decode[side]);
    }
    give_list(device, &work->attend);
    kvant_device_free(device, work->own_scratch);
    free(work);
}
