/* Encoding on a device: blocks to jobs, jobs to launches, statuses back. See kvant/device.h. */
#include "device/device_internal.h"

#include "pipeline/codec_floor.h"

#include <kvant/kit/diag.h>

#include <stdlib.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

static const kvant_device_block *block_at(const kvant_device_block *blocks, uint32_t index) {
    return (const kvant_device_block *)(const void *)((const char *)blocks +
                                                      (size_t)index * blocks[0].struct_size);
}

/* ---- Arguments ----------------------------------------------------------------------------------------- */

static kvant_status check(const kvant_device_work *work, uint32_t side, const kvant_device_block *blocks,
                          uint32_t count, kvant_diag *diag) {
    if (work == NULL || side > KVANT_SIDE_VALUE || (count > 0 && blocks == NULL))
        return REFUSE(KVANT_ERROR_ARGUMENT, "",
                      "kvant_device_encode_prepare: work or blocks are NULL, or there is no side %u", side);
    if (count > 0 && blocks[0].struct_size < sizeof *blocks)
        return REFUSE(KVANT_ERROR_ARGUMENT, "blocks",
                      "kvant_device_encode_prepare: struct_size of the first block is %u, not %zu",
                      blocks[0].struct_size, sizeof *blocks);
    if (count > work->limits.blocks)
        return REFUSE(KVANT_ERROR_CAPACITY, "blocks",
                      "kvant_device_encode_prepare: %u blocks, and the work was opened for %u", count,
                      work->limits.blocks);
    const device_side *s = &work->layer->sides[side];
    const kvant_setup *setup = &s->entry->setup;
    for (uint32_t i = 0; i < count; i++) {
        const kvant_device_block *b = block_at(blocks, i);
        char at[32];
        (void)snprintf(at, sizeof at, "block %u", i);
        kvant_status status = device_check_rows(s, b->rows, setup->block_tokens, at, diag);
        if (status != KVANT_OK) return status;
        if (b->extent == 0 || b->extent % s->entry->layout.alignment != 0)
            return REFUSE(KVANT_ERROR_ARGUMENT, "extent",
                          "layer %u %s: block %u: the extent is 0 or not aligned to %u bytes", setup->layer,
                          device_side_name(side), i, s->entry->layout.alignment);
        if (b->first_position > UINT64_MAX - setup->block_tokens)
            return REFUSE(KVANT_ERROR_ARGUMENT, "first_position",
                          "layer %u %s: block %u: first position %llu + %u tokens overflows", setup->layer,
                          device_side_name(side), i, (unsigned long long)b->first_position,
                          setup->block_tokens);
    }
    return KVANT_OK;
}

/* ---- Prepare ------------------------------------------------------------------------------------------- */

typedef struct encode_list {
    const kvant_device_work *work;
    const device_side *side;
    const device_encode_places *at;
    gpu_address list, scratch; /* on the device */
    unsigned char *pinned;
    uint32_t row_jobs;
} encode_list;

static gpu_address status_of(const encode_list *l, uint32_t index) {
    return l->list + l->at->statuses + index * sizeof(device_encode_status);
}

static void add_rows(encode_list *l, const core_rows_job *job) {
    core_rows_job *jobs = (core_rows_job *)(void *)(l->pinned + l->at->row_jobs);
    jobs[l->row_jobs++] = *job;
}

/* Rows through a copy, with stand-ins for sinks, whose own rows are looked at alone. */
static kvant_gpu_view pass(encode_list *l, const kvant_device_block *b, uint32_t index, uint32_t sinks,
                           bool replaces) {
    const kvant_setup *setup = &l->side->entry->setup;
    const kvant_view *rows = b->rows;
    uint32_t flags = device_flags_to_codec(l->side, replaces);
    core_rows_job job = device_rows_job(l->side, flags);
    kvant_view dense =
        kvant_rows_view(NULL, setup->dtype, setup->block_tokens, setup->kv_heads, setup->head_dim);
    job.from = device_view(rows->data, rows->token_stride, rows->head_stride, rows->channel_stride);
    job.to = device_view(NULL, dense.token_stride, dense.head_stride, dense.channel_stride);
    job.to.data = l->scratch + l->at->scratch_rows + index * l->at->row_bytes;
    job.status = status_of(l, index) + offsetof(device_encode_status, rows);
    job.first_position = b->first_position;
    job.tokens = setup->block_tokens;
    job.stand_in = sinks;
    if (job.turn_offsets != 0) {
        uint64_t doubles = device_turn_doubles(l->side, setup->block_tokens) * index;
        job.turn_bases = l->list + l->at->turn_bases + doubles * sizeof(double);
        device_turn_bases(l->side, b->first_position, setup->block_tokens,
                          (double *)(void *)(l->pinned + l->at->turn_bases) + doubles);
    }
    add_rows(l, &job);
    if (sinks > 0 && !replaces) {
        core_rows_job look = device_rows_job(l->side, 0);
        look.from = job.from;
        look.status = job.status;
        look.tokens = sinks;
        add_rows(l, &look);
    }
    return job.to;
}

static void put_classes(encode_list *l, const kvant_device_block *b, uint32_t index, uint32_t sinks) {
    uint32_t tokens = l->side->entry->setup.block_tokens;
    uint8_t *classes = l->pinned + l->at->classes + (size_t)index * tokens;
    for (uint32_t t = 0; t < tokens; t++)
        classes[t] = l->side->entry->layout.tag_class[b->tags != NULL ? b->tags[t > sinks ? t : sinks] : 0];
}

static void add_block(encode_list *l, const kvant_device_block *b, uint32_t index) {
    const kvant_plan *plan = kvant_codec_plan(l->side->codec);
    bool replaces = plan->on_nonfinite == KVANT_ON_NONFINITE_SATURATE;
    uint32_t sinks = kvant_codec_sinks(l->side->codec, b->first_position);
    device_encode_status *status = (device_encode_status *)(void *)(l->pinned + l->at->statuses) + index;
    kvant_gpu_encode_job *job = (kvant_gpu_encode_job *)(void *)(l->pinned + l->at->jobs) + index;
    *status = (device_encode_status){.codec = {.first_not_finite = UINT64_MAX},
                                     .rows = {.first_not_finite = UINT64_MAX}};
    *job = (kvant_gpu_encode_job){
        .extent = b->extent, .first_position = b->first_position, .status = status_of(l, index)};
    if (l->side->changes || sinks > 0 || replaces)
        job->rows = pass(l, b, index, sinks, replaces);
    else
        job->rows =
            device_view(b->rows->data, b->rows->token_stride, b->rows->head_stride, b->rows->channel_stride);
    if (!l->side->classes) return;
    put_classes(l, b, index, sinks);
    job->classes = l->list + l->at->classes + (uint64_t)index * l->side->entry->setup.block_tokens;
}

kvant_status kvant_device_encode_prepare(kvant_device_work *work, uint32_t side,
                                         const kvant_device_block *blocks, uint32_t count, void *stream,
                                         kvant_diag *diag) {
    kvant_status status = check(work, side, blocks, count, diag);
    if (status != KVANT_OK || work->limits.blocks == 0) return status;
    kvant_device *device = work->layer->device;
    encode_list l = {.work = work,
                     .side = &work->layer->sides[side],
                     .at = &work->encode_at[side],
                     .list = work->encode[side].address,
                     .scratch = work->scratch};
    status = device_list_begin(device, &work->encode[side], &l.pinned, diag);
    if (status != KVANT_OK) return status;
    for (uint32_t i = 0; i < count; i++) add_block(&l, block_at(blocks, i), i);
    const core_rows_head head = {.jobs = l.row_jobs,
                                 .units = device_rows_units(l.side->entry->setup.block_tokens)};
    memcpy(l.pinned + l.at->head, &head, sizeof head);
    memcpy(l.pinned + l.at->head + sizeof head, &count, sizeof count);
    work->encoded[side] = count;
    uint64_t tokens = l.side->entry->setup.block_tokens;
    const device_segment written[] = {
        {l.at->head, sizeof head + sizeof count},
        {l.at->statuses, count * sizeof(device_encode_status)},
        {l.at->jobs, count * sizeof(kvant_gpu_encode_job)},
        {l.at->row_jobs, l.row_jobs * sizeof(core_rows_job)},
        {l.at->classes, l.side->classes ? count * tokens : 0},
        {l.at->turn_bases,
         count * device_turn_doubles(l.side, l.side->entry->setup.block_tokens) * sizeof(double)}};
    return device_list_end(device, &work->encode[side], written, sizeof written / sizeof written[0], stream,
                           diag);
}

/* ---- Launch and finish --------------------------------------------------------------------------------- */

kvant_status kvant_device_encode_launch(kvant_device_work *work, uint32_t side, void *stream,
                                        kvant_diag *diag) {
    if (work == NULL || side > KVANT_SIDE_VALUE || work->limits.blocks == 0)
        return REFUSE(
            KVANT_ERROR_ARGUMENT, "",
            "kvant_device_encode_launch: work is NULL, was opened for no blocks, or there is no side %u",
            side);
    const device_side *s = &work->layer->sides[side];
    const device_encode_places *at = &work->encode_at[side];
    gpu_address list = work->encode[side].address;
    kvant_device *device = work->layer->device;
    kvant_status status = KVANT_OK;
    if (s->passes) {
        uint64_t units = (uint64_t)device_rows_units(s->entry->setup.block_tokens) * 2 * work->limits.blocks;
        const kvant_gpu_call call = {.jobs = list + at->row_jobs, .job_count = list + at->head};
        status = gpu_device_enter(&device->gpu, diag);
        if (status != KVANT_OK) return status;
        status = gpu_launchable_launch(&device->core.module, &device->rows, units, &call, stream, diag);
        gpu_device_leave(&device->gpu);
    }
    const gpu_batch batch = {.jobs = list + at->jobs,
                             .job_count = list + at->head + sizeof(core_rows_head),
                             .scratch = work->scratch + at->scratch_codec,
                             .jobs_most = work->limits.blocks};
    return status == KVANT_OK ? gpu_codec_launch(&s->gpu, KVANT_GPU_ENCODE, &batch, stream, diag) : status;
}

kvant_status device_encode_statuses(kvant_device_work *work, uint32_t side, device_encode_status *pinned,
                                    uint32_t count, void *stream, kvant_diag *diag) {
    return device_copy_out(work->layer->device, pinned,
                           work->encode[side].address + work->encode_at[side].statuses,
                           count * sizeof *pinned, stream, diag);
}

/* A row that stands in for others brings its numbers to places before its own, where the codec finds them
 * first. */
uint64_t device_encode_bad(const device_encode_status *status, bool replaces) {
    if (replaces || status->rows.first_not_finite == UINT64_MAX) return status->codec.first_not_finite;
    return status->rows.first_not_finite;
}

static kvant_encode_report *report_at(kvant_encode_report *reports, uint32_t index) {
    return (kvant_encode_report *)(void *)((char *)reports + (size_t)index * reports[0].struct_size);
}

static kvant_status report_all(const kvant_device_work *work, uint32_t side,
                               const device_encode_status *statuses, kvant_encode_report *reports,
                               uint32_t count, kvant_diag *diag) {
    const kvant_setup *setup = &work->layer->sides[side].entry->setup;
    const kvant_plan *plan = kvant_codec_plan(work->layer->sides[side].codec);
    bool replaces = plan->on_nonfinite == KVANT_ON_NONFINITE_SATURATE;
    kvant_status status = KVANT_OK;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t bad = device_encode_bad(&statuses[i], replaces), row = bad / setup->head_dim;
        kvant_encode_report *r = report_at(reports, i);
        r->size = bad == UINT64_MAX ? statuses[i].codec.size : 0;
        r->saturated = statuses[i].codec.saturated + statuses[i].rows.saturated;
        r->replaced = statuses[i].rows.replaced;
        if (bad == UINT64_MAX || status != KVANT_OK) continue;
        status =
            REFUSE(KVANT_ERROR_NOT_FINITE, "",
                   "layer %u %s: block %u: token %llu, head %llu, channel %llu is NaN or infinite",
                   setup->layer, device_side_name(side), i, (unsigned long long)(row / setup->kv_heads),
                   (unsigned long long)(row % setup->kv_heads), (unsigned long long)(bad % setup->head_dim));
    }
    return status;
}

kvant_status kvant_device_encode_finish(kvant_device_work *work, uint32_t side, kvant_encode_report *reports,
                                        uint32_t count, void *stream, kvant_diag *diag) {
    if (work == NULL || side > KVANT_SIDE_VALUE || (count > 0 && reports == NULL) ||
        (count > 0 && reports[0].struct_size < sizeof *reports) || count > work->encoded[side])
        return REFUSE(
            KVANT_ERROR_ARGUMENT, "",
            "kvant_device_encode_finish: work or reports are NULL, their struct_size is not %zu, there "
            "is no side %u, or %u blocks were not prepared",
            sizeof *reports, side, count);
    device_encode_status *statuses = calloc(count + 1, sizeof *statuses);
    if (statuses == NULL) return REFUSE(KVANT_ERROR_MEMORY, "", "out of memory");
    kvant_status status = device_encode_statuses(work, side, statuses, count, stream, diag);
    if (status == KVANT_OK) status = device_wait(work->layer->device, stream, diag);
    if (status == KVANT_OK) status = report_all(work, side, statuses, reports, count, diag);
    free(statuses);
    return status;
}
