/* Decoding on a device: extents to jobs, jobs to launches. See kvant/device.h. */
#include "device/device_internal.h"

#include "pipeline/codec_floor.h"

#include <kvant/kit/diag.h>

#define REFUSE(status, key, ...) kvant_fail(diag, (status), (key), __VA_ARGS__)

static const kvant_device_extent *extent_at(const kvant_device_extent *extents, uint32_t index) {
    return (const kvant_device_extent *)(const void *)((const char *)extents +
                                                       (size_t)index * extents[0].struct_size);
}

/* ---- Arguments ----------------------------------------------------------------------------------------- */

static kvant_status check_extent(const device_side *s, const kvant_device_extent *e, uint32_t index,
                                 kvant_diag *diag) {
    const kvant_setup *setup = &s->entry->setup;
    const char *side = device_side_name(setup->side);
    const kvant_mutable_view *rows = e->rows;
    if (e->extent == 0 || e->extent % s->entry->layout.alignment != 0)
        return REFUSE(KVANT_ERROR_ARGUMENT, "extent",
                      "layer %u %s: extent %u: its address is 0 or not aligned to %u bytes", setup->layer,
                      side, index, s->entry->layout.alignment);
    if (e->size == 0 || e->size > SIZE_MAX / 2 ||
        kvant_codec_extent_size(s->codec, (size_t)e->size) != (size_t)e->size)
        return REFUSE(KVANT_ERROR_ARGUMENT, "size",
                      "layer %u %s: extent %u: %llu bytes are no size of this codec's extents", setup->layer,
                      side, index, (unsigned long long)e->size);
    if (e->first_position > UINT64_MAX - setup->block_tokens)
        return REFUSE(KVANT_ERROR_ARGUMENT, "first_position",
                      "layer %u %s: extent %u: first position %llu + %u tokens overflows", setup->layer, side,
                      index, (unsigned long long)e->first_position, setup->block_tokens);
    if (rows == NULL || rows->struct_size < sizeof *rows || rows->data == NULL)
        return REFUSE(KVANT_ERROR_ARGUMENT, "rows",
                      "layer %u %s: extent %u: rows are NULL, hold no room, or their struct_size is not %zu",
                      setup->layer, side, index, sizeof *rows);
    if (rows->dtype != KVANT_DTYPE_F32 && rows->dtype != KVANT_DTYPE_F16 && rows->dtype != KVANT_DTYPE_BF16)
        return REFUSE(KVANT_ERROR_DTYPE, "rows",
                      "layer %u %s: extent %u: rows of type %u; F32, F16 or BF16 are written", setup->layer,
                      side, index, rows->dtype);
    if (rows->head_dim != setup->head_dim || e->first_token > setup->block_tokens ||
        rows->tokens > setup->block_tokens - e->first_token || e->first_head > setup->kv_heads ||
        rows->heads > setup->kv_heads - e->first_head)
        return REFUSE(KVANT_ERROR_ARGUMENT, "rows",
                      "layer %u %s: extent %u: tokens %u + %u, heads %u + %u of %u channels, and a block is "
                      "[%u, %u, %u]",
                      setup->layer, side, index, e->first_token, rows->tokens, e->first_head, rows->heads,
                      rows->head_dim, setup->block_tokens, setup->kv_heads, setup->head_dim);
    return KVANT_OK;
}

static kvant_status check(const kvant_device_work *work, uint32_t side, const kvant_device_extent *extents,
                          uint32_t count, kvant_diag *diag) {
    if (work == NULL || side > KVANT_SIDE_VALUE || (count > 0 && extents == NULL))
        return REFUSE(KVANT_ERROR_ARGUMENT, "",
                      "kvant_device_decode_prepare: work or extents are NULL, or there is no side %u", side);
    if (count > 0 && extents[0].struct_size < sizeof *extents)
        return REFUSE(KVANT_ERROR_ARGUMENT, "extents",
                      "kvant_device_decode_prepare: struct_size of the first extent is %u, not %zu",
                      extents[0].struct_size, sizeof *extents);
    if (count > work->limits.blocks)
        return REFUSE(KVANT_ERROR_CAPACITY, "extents",
                      "kvant_device_decode_prepare: %u extents, and the work was opened for %u", count,
                      work->limits.blocks);
    for (uint32_t i = 0; i < count; i++) {
        kvant_status status = check_extent(&work->layer->sides[side], extent_at(extents, i), i, diag);
        if (status != KVANT_OK) return status;
    }
    return KVANT_OK;
}

/* ---- Prepare ------------------------------------------------------------------------------------------- */

typedef struct decode_list {
    const device_side *side;
    const device_decode_places *at;
    gpu_address list, scratch;
    unsigned char *pinned;
} decode_list;

/* Decoded to floats, then changed on the way to the caller's rows. */
static void pass(const decode_list *l, const kvant_device_extent *e, uint32_t index,
                 kvant_gpu_decode_job *job) {
    const kvant_mutable_view *rows = e->rows;
    const kvant_setup *setup = &l->side->entry->setup;
    kvant_view dense = kvant_rows_view(NULL, KVANT_DTYPE_F32, rows->tokens, rows->heads, setup->head_dim);
    core_rows_job *out = (core_rows_job *)(void *)(l->pinned + l->at->row_jobs) + index;
    job->rows = device_view(NULL, dense.token_stride, dense.head_stride, dense.channel_stride);
    job->rows.data = l->scratch + l->at->scratch_rows + index * l->at->row_bytes;
    job->dtype = KVANT_DTYPE_F32;
    *out = device_rows_job(l->side, device_flags_from_codec(l->side));
    out->from = job->rows;
    out->to = device_view(rows->data, rows->token_stride, rows->head_stride, rows->channel_stride);
    out->from_dtype = KVANT_DTYPE_F32;
    out->to_dtype = rows->dtype;
    out->first_position = e->first_position + e->first_token;
    out->tokens = rows->tokens;
    out->heads = rows->heads;
    if (out->center != 0) out->center += (uint64_t)e->first_head * setup->head_dim * sizeof(float);
    if (out->turn_offsets == 0) return;
    uint64_t doubles = device_turn_doubles(l->side, setup->block_tokens) * index;
    out->turn_bases = l->list + l->at->turn_bases + doubles * sizeof(double);
    device_turn_bases(l->side, out->first_position, rows->tokens,
                      (double *)(void *)(l->pinned + l->at->turn_bases) + doubles);
}

static void add_extent(const decode_list *l, const kvant_device_extent *e, uint32_t index) {
    kvant_gpu_decode_job *job = (kvant_gpu_decode_job *)(void *)(l->pinned + l->at->jobs) + index;
    *job = (kvant_gpu_decode_job){.extent = e->extent,
                                  .size = e->size,
                                  .first_position = e->first_position,
                                  .dtype = e->rows->dtype,
                                  .first_token = e->first_token,
                                  .tokens = e->rows->tokens,
                                  .first_head = e->first_head,
                                  .heads = e->rows->heads};
    if (l->side->changes)
        pass(l, e, index, job);
    else
        job->rows =
            device_view(e->rows->data, e->rows->token_stride, e->rows->head_stride, e->rows->channel_stride);
}

kvant_status kvant_device_decode_prepare(kvant_device_work *work, uint32_t side,
                                         const kvant_device_extent *extents, uint32_t count, void *stream,
                                         kvant_diag *diag) {
    kvant_status status = check(work, side, extents, count, diag);
    if (status != KVANT_OK || work->limits.blocks == 0) return status;
    kvant_device *device = work->layer->device;
    decode_list l = {.side = &work->layer->sides[side],
                     .at = &work->decode_at[side],
                     .list = work->decode[side].address,
                     .scratch = work->scratch};
    status = device_list_begin(device, &work->decode[side], &l.pinned, diag);
    if (status != KVANT_OK) return status;
    for (uint32_t i = 0; i < count; i++) add_extent(&l, extent_at(extents, i), i);
    const core_rows_head head = {.jobs = l.side->changes ? count : 0,
                                 .units = device_rows_units(l.side->entry->setup.block_tokens)};
    memcpy(l.pinned + l.at->head, &head, sizeof head);
    memcpy(l.pinned + l.at->head + sizeof head, &count, sizeof count);
    const device_segment written[] = {
        {l.at->head, sizeof head + sizeof count},
        {l.at->jobs, count * sizeof(kvant_gpu_decode_job)},
        {l.at->row_jobs, head.jobs * sizeof(core_rows_job)},
        {l.at->turn_bases,
         count * device_turn_doubles(l.side, l.side->entry->setup.block_tokens) * sizeof(double)}};
    return device_list_end(device, &work->decode[side], written, sizeof written / sizeof written[0], stream,
                           diag);
}

/* ---- Launch -------------------------------------------------------------------------------------------- */

kvant_status kvant_device_decode_launch(kvant_device_work *work, uint32_t side, void *stream,
                                        kvant_diag *diag) {
    if (work == NULL || side > KVANT_SIDE_VALUE || work->limits.blocks == 0)
        return REFUSE(
            KVANT_ERROR_ARGUMENT, "",
            "kvant_device_decode_launch: work is NULL, was opened for no blocks, or there is no side %u",
            side);
    const device_side *s = &work->layer->sides[side];
    const device_decode_places *at = &work->decode_at[side];
    gpu_address list = work->decode[side].address;
    kvant_device *device = work->layer->device;
    const gpu_batch batch = {.jobs = list + at->jobs,
                             .job_count = list + at->head + sizeof(core_rows_head),
                             .scratch = work->scratch + at->scratch_codec,
                             .jobs_most = work->limits.blocks};
    kvant_status status = gpu_codec_launch(&s->gpu, KVANT_GPU_DECODE, &batch, stream, diag);
    if (status != KVANT_OK || !s->changes) return status;
    uint64_t units = (uint64_t)device_rows_units(s->entry->setup.block_tokens) * work->limits.blocks;
    const kvant_gpu_call call = {.jobs = list + at->row_jobs, .job_count = list + at->head};
    status = gpu_device_enter(&device->gpu, diag);
    if (status != KVANT_OK) return status;
    status = gpu_launchable_launch(&device->core.module, &device->rows, units, &call, stream, diag);
    gpu_device_leave(&device->gpu);
    return status;
}
