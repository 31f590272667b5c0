/* See gpu_rig.h. */
#include "gpu_rig.h"

#include "support/test.h"

#include <kvant/kit/view.h>
#include <kvant/kvant.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xA7, GUARD = 256, JOBS_MOST = 5 };

#define OK(call) check((call), &diag, #call)

static void check(kvant_status status, const kvant_diag *diag, const char *what) {
    if (status != KVANT_OK) fail_msg("%s: %d: %s", what, status, diag->message);
}

/* ---- Device -------------------------------------------------------------------------------------------- */

void gpu_rig_begin(gpu_rig *rig, const char *plugin, uint32_t architecture) {
    kvant_diag diag = {.struct_size = sizeof diag};
    const kvant_plugin *found = NULL;
    const char *where = getenv("KVANT_GPU");
    memset(rig, 0, sizeof *rig);
    OK(kvant_plugin_find(plugin, &found, &diag));
    const kvant_gpu *gpu = found->extension != NULL ? found->extension(KVANT_EXT_GPU) : NULL;
    if (gpu == NULL) {
        print_message("skipped: %s was built without GPU code\n", plugin);
        skip();
    }
    rig->is_real = where != NULL && strcmp(where, "real") == 0;
    if (!rig->is_real && where != NULL && strcmp(where, "interp") != 0)
        fail_msg("KVANT_GPU=%s: it is interp or real", where);
    if (rig->is_real) {
        OK(gpu_driver_find(&rig->driver, &diag));
    } else {
        rig->driver = gpu_fake_begin(&(gpu_fake){.major = architecture / 10,
                                                 .minor = architecture % 10,
                                                 .checks = PTX_CHECK_ALL & ~PTX_CHECK_COUNT,
                                                 .seed = architecture});
    }
    OK(gpu_device_open(rig->driver, 0, &rig->device, &diag));
    OK(gpu_module_load(&rig->device, plugin, gpu, &rig->module, &diag));
    OK(gpu_device_enter(&rig->device, &diag));
    OK(gpu_check(rig->driver, rig->driver->stream_create(&rig->stream, 1), "cuStreamCreate", &diag));
    gpu_device_leave(&rig->device);
}

void gpu_rig_end(gpu_rig *rig) {
    kvant_diag diag = {.struct_size = sizeof diag};
    OK(gpu_device_enter(&rig->device, &diag));
    (void)rig->driver->stream_destroy(rig->stream);
    gpu_device_leave(&rig->device);
    gpu_module_unload(&rig->module);
    gpu_device_close(&rig->device);
    if (!rig->is_real) gpu_fake_end();
}

void gpu_rig_open(gpu_rig *rig, const char *plugin, const kvant_setup *setup, const char *parameters) {
    kvant_diag diag = {.struct_size = sizeof diag};
    rig->cpu = kvant_test_codec_open_setup(plugin, setup, parameters);
    OK(gpu_codec_open(&rig->module, &rig->cpu->setup, &rig->cpu->layout, rig->cpu->state, rig->stream,
                      &rig->codec, &diag));
}

void gpu_rig_close(gpu_rig *rig) {
    gpu_codec_close(&rig->codec);
    kvant_test_codec_close(rig->cpu);
    rig->cpu = NULL;
}

gpu_address gpu_rig_to_device(gpu_rig *rig, const void *bytes, size_t size) {
    kvant_diag diag = {.struct_size = sizeof diag};
    gpu_address at = 0;
    OK(gpu_device_enter(&rig->device, &diag));
    OK(gpu_check(rig->driver, rig->driver->memory_alloc(&at, size), "cuMemAlloc", &diag));
    OK(gpu_check(rig->driver, rig->driver->copy_to_device(at, bytes, size, rig->stream), "copy", &diag));
    OK(gpu_check(rig->driver, rig->driver->stream_synchronize(rig->stream), "wait", &diag));
    gpu_device_leave(&rig->device);
    return at;
}

void gpu_rig_from_device(gpu_rig *rig, gpu_address at, void *bytes, size_t size) {
    kvant_diag diag = {.struct_size = sizeof diag};
    OK(gpu_device_enter(&rig->device, &diag));
    if (bytes != NULL)
        OK(gpu_check(rig->driver, rig->driver->copy_to_host(bytes, at, size, rig->stream), "copy", &diag));
    OK(gpu_check(rig->driver, rig->driver->stream_synchronize(rig->stream), "wait", &diag));
    OK(gpu_check(rig->driver, rig->driver->memory_free(at), "cuMemFree", &diag));
    gpu_device_leave(&rig->device);
}

/* More jobs than there are could come: the kernel must believe the count in memory. */
static void run(gpu_rig *rig, uint32_t call, const void *jobs, size_t job_bytes, uint32_t count) {
    kvant_diag diag = {.struct_size = sizeof diag};
    unsigned char *room = malloc(JOBS_MOST * job_bytes);
    assert_non_null(room);
    memset(room, POISON, JOBS_MOST * job_bytes);
    memcpy(room, jobs, count * job_bytes);
    size_t scratch_bytes = gpu_codec_scratch_bytes(&rig->codec, call, JOBS_MOST);
    unsigned char *scratch = calloc(1, scratch_bytes + 1);
    assert_non_null(scratch);
    gpu_batch batch = {.jobs = gpu_rig_to_device(rig, room, JOBS_MOST * job_bytes),
                       .job_count = gpu_rig_to_device(rig, &count, sizeof count),
                       .scratch = gpu_rig_to_device(rig, scratch, scratch_bytes + 1),
                       .jobs_most = JOBS_MOST};
    OK(gpu_codec_launch(&rig->codec, call, &batch, rig->stream, &diag));
    gpu_rig_from_device(rig, batch.scratch, NULL, 0);
    gpu_rig_from_device(rig, batch.job_count, NULL, 0);
    gpu_rig_from_device(rig, batch.jobs, NULL, 0);
    free(scratch);
    free(room);
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

gpu_rows gpu_rows_of(uint32_t kind, uint32_t dtype, uint32_t tokens, uint32_t heads, uint32_t head_dim) {
    int64_t element = kvant_element_bytes(dtype), row = element * head_dim;
    gpu_rows r = {.dtype = dtype,
                  .tokens = tokens,
                  .heads = heads,
                  .head_dim = head_dim,
                  .channel_stride = element,
                  .head_stride = row,
                  .token_stride = row * heads};
    if (kind == GPU_ROWS_HEAD_MAJOR) {
        r.token_stride = row + 16;
        r.head_stride = r.token_stride * tokens;
    } else if (kind == GPU_ROWS_ELEMENT) {
        r.offset = (size_t)element;
    } else if (kind == GPU_ROWS_ODD) {
        r.offset = 1;
        r.token_stride += 3;
    } else if (kind == GPU_ROWS_SPREAD) {
        r.channel_stride *= 2;
        r.head_stride *= 2;
        r.token_stride *= 2;
    } else if (kind == GPU_ROWS_BACKWARD) {
        r.offset = (size_t)r.token_stride * (tokens - 1);
        r.token_stride = -r.token_stride;
    }
    int64_t last = r.head_stride * (heads - 1) + r.channel_stride * (head_dim - 1) + element;
    if (r.token_stride > 0) last += r.token_stride * (tokens - 1);
    r.bytes = r.offset + (size_t)last;
    return r;
}

void gpu_rows_scatter(const gpu_rows *r, const void *dense, void *memory) {
    size_t element = kvant_element_bytes(r->dtype);
    const unsigned char *from = dense;
    for (int64_t t = 0; t < r->tokens; t++)
        for (int64_t h = 0; h < r->heads; h++)
            for (int64_t c = 0; c < r->head_dim; c++, from += element)
                memcpy((unsigned char *)memory + (ptrdiff_t)r->offset + t * r->token_stride +
                           h * r->head_stride + c * r->channel_stride,
                       from, element);
}

static kvant_gpu_view view_of(const gpu_rows *r, gpu_address memory) {
    return (kvant_gpu_view){memory + r->offset, r->token_stride, r->head_stride, r->channel_stride};
}

/* ---- Encode -------------------------------------------------------------------------------------------- */

static const kvant_gpu_status fresh = {.first_not_finite = UINT64_MAX};

void gpu_rig_encode(gpu_rig *rig, const void *dense, uint32_t count, uint32_t kind) {
    const kvant_setup *s = &rig->cpu->setup;
    gpu_rows rows = gpu_rows_of(kind, s->dtype, s->block_tokens, s->kv_heads, s->head_dim);
    size_t elements = (size_t)s->block_tokens * s->kv_heads * s->head_dim;
    size_t block = elements * kvant_element_bytes(s->dtype), size = rig->cpu->layout.size_min;
    size_t stride = (size + 2 * GUARD + 255) / 256 * 256;
    unsigned char *memory = malloc(rows.bytes), *extents = malloc(count * stride);
    kvant_gpu_encode_job jobs[JOBS_MOST] = {{{0, 0, 0, 0}, 0, 0, 0, 0}};
    kvant_gpu_status statuses[JOBS_MOST];
    assert_true(memory != NULL && extents != NULL && count <= JOBS_MOST);
    memset(extents, POISON, count * stride);
    for (uint32_t i = 0; i < count; i++) statuses[i] = fresh;
    gpu_address extents_at = gpu_rig_to_device(rig, extents, count * stride);
    gpu_address statuses_at = gpu_rig_to_device(rig, statuses, count * sizeof *statuses);
    for (uint32_t i = 0; i < count; i++) {
        memset(memory, POISON, rows.bytes);
        gpu_rows_scatter(&rows, (const unsigned char *)dense + i * block, memory);
        jobs[i].rows = view_of(&rows, gpu_rig_to_device(rig, memory, rows.bytes));
        jobs[i].extent = extents_at + i * stride + GUARD;
        jobs[i].first_position = 1000 * i;
        jobs[i].status = statuses_at + i * sizeof *statuses;
    }
    run(rig, KVANT_GPU_ENCODE, jobs, sizeof *jobs, count);
    for (uint32_t i = 0; i < count; i++) gpu_rig_from_device(rig, jobs[i].rows.data - rows.offset, NULL, 0);
    gpu_rig_from_device(rig, extents_at, extents, count * stride);
    gpu_rig_from_device(rig, statuses_at, statuses, count * sizeof *statuses);
    for (uint32_t i = 0; i < count; i++) {
        const unsigned char *extent = extents + i * stride + GUARD;
        rig->cpu->first_position = 1000 * i;
        kvant_test_codec_encode(rig->cpu, (const unsigned char *)dense + i * block, elements);
        kvant_assert_bytes(extent, rig->cpu->extent, rig->cpu->size);
        assert_int_equal(statuses[i].size, rig->cpu->size);
        assert_int_equal(statuses[i].saturated, rig->cpu->saturated);
        assert_true(statuses[i].first_not_finite == UINT64_MAX);
        for (size_t j = 0; j < stride; j++)
            if ((j < GUARD || j >= GUARD + rig->cpu->size) && extents[i * stride + j] != POISON)
                fail_msg("byte %td beside an extent was written", (ptrdiff_t)j - GUARD);
    }
    free(extents);
    free(memory);
}

kvant_gpu_status gpu_rig_status(gpu_rig *rig, const void *dense) {
    const kvant_setup *s = &rig->cpu->setup;
    gpu_rows rows = gpu_rows_of(GPU_ROWS_DENSE, s->dtype, s->block_tokens, s->kv_heads, s->head_dim);
    unsigned char *extent = calloc(1, rig->cpu->layout.size_min);
    kvant_gpu_status status = fresh;
    gpu_address rows_at = gpu_rig_to_device(rig, dense, rows.bytes);
    gpu_address extent_at = gpu_rig_to_device(rig, extent, rig->cpu->layout.size_min);
    kvant_gpu_encode_job job = {.rows = view_of(&rows, rows_at),
                                .extent = extent_at,
                                .status = gpu_rig_to_device(rig, &status, sizeof status)};
    run(rig, KVANT_GPU_ENCODE, &job, sizeof job, 1);
    gpu_rig_from_device(rig, job.status, &status, sizeof status);
    gpu_rig_from_device(rig, extent_at, NULL, 0);
    gpu_rig_from_device(rig, rows_at, NULL, 0);
    free(extent);
    return status;
}

/* ---- Decode -------------------------------------------------------------------------------------------- */

void gpu_rig_decode(gpu_rig *rig, uint32_t dtype, uint32_t first_token, uint32_t tokens, uint32_t first_head,
                    uint32_t heads, uint32_t kind) {
    const kvant_test_codec *cpu = rig->cpu;
    gpu_rows rows = gpu_rows_of(kind, dtype, tokens, heads, cpu->setup.head_dim);
    unsigned char *got = malloc(rows.bytes), *want = malloc(rows.bytes);
    void *dense = calloc((size_t)tokens * heads * cpu->setup.head_dim, 4);
    assert_true(got != NULL && want != NULL && dense != NULL);
    memset(got, POISON, rows.bytes);
    memset(want, POISON, rows.bytes);
    gpu_address rows_at = gpu_rig_to_device(rig, got, rows.bytes);
    gpu_address extent_at = gpu_rig_to_device(rig, cpu->extent, cpu->size);
    const kvant_gpu_decode_job job = {.rows = view_of(&rows, rows_at),
                                      .extent = extent_at,
                                      .size = cpu->size,
                                      .first_position = cpu->first_position,
                                      .dtype = dtype,
                                      .first_token = first_token,
                                      .tokens = tokens,
                                      .first_head = first_head,
                                      .heads = heads};
    run(rig, KVANT_GPU_DECODE, &job, sizeof job, 1);
    gpu_rig_from_device(rig, extent_at, NULL, 0);
    gpu_rig_from_device(rig, rows_at, got, rows.bytes);
    kvant_mutable_view view = kvant_test_mutable_view(dense, dtype, tokens, heads, cpu->setup.head_dim);
    const kvant_extent extent = {.bytes = cpu->extent,
                                 .size = cpu->size,
                                 .first_position = cpu->first_position,
                                 .live_count = cpu->setup.block_tokens};
    const kvant_decode_args args = {.struct_size = sizeof args,
                                    .first_token = first_token,
                                    .first_head = first_head,
                                    .extent = &extent,
                                    .rows = &view,
                                    .scratch = cpu->scratch};
    assert_int_equal(cpu->plugin->decode(cpu->state, &args), KVANT_OK);
    gpu_rows_scatter(&rows, dense, want);
    kvant_assert_bytes(got, want, rows.bytes);
    free(dense);
    free(want);
    free(got);
}
