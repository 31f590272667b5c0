/* Device, memory and launches for the checks of kernels. See check_gpu.h. */
#include "check_gpu.h"

#include "check_promise.h"

#include <kvant/kit/diag.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { POISON = 0xa7, ALIGNED = 256, JOBS_MORE = 2 };

/* ---- Device -------------------------------------------------------------------------------------------- */

/* What was printed, by a driver that explains itself there: a child's standard error is a file. */
static void add_printed(const check_worker *worker, char *message, size_t capacity) {
    char text[1200];
    if (worker->options->in_process) return;
    ssize_t got = pread(STDERR_FILENO, text, sizeof text - 1, 0);
    size_t used = strlen(message);
    if (got <= 0) return;
    text[got] = '\0';
    (void)snprintf(message + used, capacity - used, "; printed: %s", text);
}

/* The device works no more for this process: says why and ends it; the parent puts another in its place. */
__attribute__((noreturn, format(printf, 2, 3))) static void give_up(check_worker *worker, const char *format,
                                                                    ...) {
    char message[1800];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    add_printed(worker, message, sizeof message);
    for (char *c = message; *c != '\0'; c++)
        if (*c == '\n') *c = ' ';
    check_fail(worker, worker->running, "%s", message);
    /* What this configuration kept up to here; the next child goes on behind it. */
    for (unsigned id = 0; id < CHECK_BOUNDS; id++)
        if ((worker->ran & ~worker->failed) >> id & 1)
            atomic_fetch_add(&worker->board->tallies[id].passed, 1);
    if (worker->options->in_process) {
        (void)fprintf(stderr, "kvant check: %s\n", message);
        _Exit(1);
    }
    _exit(CHECK_EXIT_DEVICE);
}

static void must(check_worker *worker, gpu_result result, const char *what) {
    kvant_diag diag = {.struct_size = sizeof diag};
    if (gpu_check(worker->gpu->driver, result, what, &diag) != KVANT_OK) give_up(worker, "%s", diag.message);
}

static void enter(check_worker *worker) {
    kvant_diag diag = {.struct_size = sizeof diag};
    if (gpu_device_enter(&worker->gpu->device, &diag) != KVANT_OK) give_up(worker, "%s", diag.message);
}

static void leave(check_worker *worker) {
    gpu_device_leave(&worker->gpu->device);
}

static void read_texts(check_gpu *gpu) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < gpu->table->image_count && count < CHECK_GPU_TEXTS; i++) {
        const kvant_gpu_image *image = gpu_image_at(gpu->table, i);
        size_t size;
        if (image->kind == KVANT_IMAGE_PTX &&
            gpu_image_bytes(image, &gpu->texts[count], &size, NULL) == KVANT_OK)
            count++;
    }
}

static kvant_status open_device(check_worker *worker, kvant_diag *diag) {
    check_gpu *gpu = worker->gpu;
    kvant_status status = gpu_driver_find(&gpu->driver, diag);
    if (status == KVANT_OK) status = gpu_device_open(gpu->driver, 0, &gpu->device, diag);
    if (status != KVANT_OK) return status;
    status = gpu_module_load(&gpu->device, worker->plugin->descriptor->name, gpu->table, &gpu->module, diag);
    if (status == KVANT_OK && (status = gpu_device_enter(&gpu->device, diag)) == KVANT_OK) {
        status = gpu_check(gpu->driver, gpu->driver->stream_create(&gpu->stream, 1), "cuStreamCreate", diag);
        gpu_device_leave(&gpu->device);
    }
    gpu->has_device = status == KVANT_OK;
    if (status != KVANT_OK) {
        gpu_module_unload(&gpu->module);
        gpu_device_close(&gpu->device);
    }
    return status;
}

kvant_status check_gpu_begin(check_worker *worker, kvant_diag *diag) {
    if (worker->gpu != NULL) return KVANT_OK;
    const kvant_gpu *table = check_call_extension(worker, KVANT_EXT_GPU);
    worker->gpu = calloc(1, sizeof *worker->gpu);
    if (worker->gpu == NULL) check_out_of_memory();
    if (table == NULL)
        return kvant_fail(diag, KVANT_ERROR_UNSUPPORTED, "", "codec %s has no GPU code (" KVANT_EXT_GPU ")",
                          worker->plugin->descriptor->name);
    /* What is wrong with tables is a failure of CHECK_EXTENSION, and no refusal. */
    if (gpu_vet(table, NULL) != KVANT_OK) return KVANT_OK;
    worker->gpu->table = table;
    read_texts(worker->gpu);
    return worker->options->gpu ? open_device(worker, diag) : KVANT_OK;
}

void check_gpu_end(check_worker *worker) {
    check_gpu *gpu = worker->gpu;
    if (gpu == NULL) return;
    if (gpu->has_device) {
        if (gpu_device_enter(&gpu->device, NULL) == KVANT_OK) {
            (void)gpu->driver->stream_destroy(gpu->stream);
            gpu_device_leave(&gpu->device);
        }
        gpu_module_unload(&gpu->module);
        gpu_device_close(&gpu->device);
    }
    for (uint32_t i = 0; i < CHECK_GPU_TEXTS; i++) free(gpu->texts[i]);
    free(gpu);
    worker->gpu = NULL;
}

void check_gpu_device_text(const check_worker *worker, char *text, size_t capacity) {
    const check_gpu *gpu = worker->gpu;
    text[0] = '\0';
    if (gpu == NULL || !gpu->has_device) return;
    (void)snprintf(text, capacity, "%s, compute capability %u.%u, %s", gpu->device.name, gpu->device.major,
                   gpu->device.minor, gpu->module.is_jit ? "PTX" : "cubin");
}

bool check_gpu_accepts(check_worker *worker, const kvant_setup *setup, const kvant_layout *layout) {
    kvant_gpu_plan plan = {.struct_size = sizeof plan};
    return worker->gpu->table != NULL &&
           check_call_gpu_plan(worker, worker->gpu->table, setup, layout, &plan, NULL) == KVANT_OK;
}

kvant_status check_gpu_open(check_worker *worker, const check_subject *subject, gpu_codec *codec) {
    kvant_diag diag = {.struct_size = sizeof diag};
    atomic_store(&worker->slot->call, CHECK_CALL_GPU_UPLOAD);
    kvant_status status = gpu_codec_open(&worker->gpu->module, subject->setup, &subject->layout,
                                         subject->state.data, worker->gpu->stream, codec, &diag);
    atomic_store(&worker->slot->call, CHECK_CALL_NONE);
    if (status == KVANT_ERROR_UNSUPPORTED)
        check_note(worker, "%s", diag.message);
    else if (status == KVANT_ERROR_PLUGIN_BROKEN)
        check_fail(worker, CHECK_GPU_PLAN, "%s", diag.message);
    else if (status != KVANT_OK)
        give_up(worker, "%s", diag.message);
    return status;
}

/* ---- Memory -------------------------------------------------------------------------------------------- */

void check_room_create(check_worker *worker, check_room *room, const char *name, size_t size,
                       check_placing placing) {
    size_t alignment = placing.alignment > ALIGNED ? placing.alignment : ALIGNED;
    size_t guard = placing.guarded ? CHECK_GUARD : 0, before = alignment > ALIGNED ? alignment : guard;
    *room = (check_room){.name = name, .size = size};
    room->total = before + placing.skew + size + guard;
    if (room->total == 0) room->total = 1;
    enter(worker);
    must(worker, worker->gpu->driver->memory_alloc(&room->base, room->total), "cuMemAlloc");
    leave(worker);
    room->data = (room->base + before) / alignment * alignment + placing.skew;
    room->lead = (size_t)(room->data - room->base);
    room->image = malloc(room->total);
    if (room->image == NULL) check_out_of_memory();
    memset(room->image, POISON, room->total);
}

void check_room_send(check_worker *worker, check_room *room) {
    const check_gpu *gpu = worker->gpu;
    enter(worker);
    must(worker, gpu->driver->copy_to_device(room->base, room->image, room->total, gpu->stream),
         "cuMemcpyHtoDAsync");
    must(worker, gpu->driver->stream_synchronize(gpu->stream), "cuStreamSynchronize");
    leave(worker);
}

void check_room_put(check_worker *worker, check_room *room, const char *name, const void *bytes, size_t size,
                    check_placing placing) {
    check_room_create(worker, room, name, size, placing);
    if (size > 0) memcpy(room->image + room->lead, bytes, size);
    check_room_send(worker, room);
}

unsigned char *check_room_bytes(const check_room *room) {
    return room->image + room->lead;
}

void check_room_fetch(check_worker *worker, check_room *room, const char *kernel) {
    const check_gpu *gpu = worker->gpu;
    enter(worker);
    must(worker, gpu->driver->copy_to_host(room->image, room->base, room->total, gpu->stream),
         "cuMemcpyDtoHAsync");
    must(worker, gpu->driver->stream_synchronize(gpu->stream), "cuStreamSynchronize");
    leave(worker);
    for (size_t i = 0; i < room->total; i++) {
        if (i == room->lead) i += room->size;
        if (i < room->total && room->image[i] != POISON) {
            check_fail(worker, CHECK_BOUNDS, "kernel %s wrote at offset %td of %s of %zu bytes", kernel,
                       (ptrdiff_t)i - (ptrdiff_t)room->lead, room->name, room->size);
            return;
        }
    }
}

void check_room_free(check_worker *worker, check_room *room) {
    if (room->image == NULL) return;
    enter(worker);
    must(worker, worker->gpu->driver->memory_free(room->base), "cuMemFree");
    leave(worker);
    free(room->image);
    *room = (check_room){0};
}

/* ---- Launches ------------------------------------------------------------------------------------------ */

const char *check_gpu_call_name(uint32_t call) {
    static const char *const names[] = {"", "encode", "decode", "query", "score", "mix", "finish", "attend"};
    return call < sizeof names / sizeof names[0] ? names[call] : "";
}

static void run(check_worker *worker, const check_launch *launch, const gpu_codec *codec,
                const gpu_batch *batch) {
    const check_gpu *gpu = worker->gpu;
    kvant_diag diag = {.struct_size = sizeof diag};
    atomic_store(&worker->slot->call, CHECK_CALL_KERNEL);
    atomic_fetch_add(&worker->slot->beat, 1);
    kvant_status status = gpu_codec_launch(codec, launch->call, batch, gpu->stream, &diag);
    if (status != KVANT_OK) give_up(worker, "%s", diag.message);
    enter(worker);
    gpu_result result = gpu->driver->stream_synchronize(gpu->stream);
    leave(worker);
    if (gpu_check(gpu->driver, result, "", &diag) != KVANT_OK)
        give_up(worker, "kernel %s ends with an error%s", check_gpu_call_name(launch->call), diag.message);
    atomic_store(&worker->slot->call, CHECK_CALL_NONE);
}

/* There is room for more jobs than there are: a kernel must believe the count in memory. */
void check_gpu_launch(check_worker *worker, const check_launch *launch) {
    const char *kernel = check_gpu_call_name(launch->call);
    uint32_t most = launch->count + JOBS_MORE;
    gpu_codec codec = *launch->codec;
    for (uint32_t i = 0; i < codec.plan.kernel_count && launch->narrow; i++) codec.kernels[i].resident = 1;
    check_room jobs, count, scratch, layer = {0};
    check_room_create(worker, &jobs, "jobs", most * launch->job_bytes, (check_placing){.guarded = false});
    memcpy(check_room_bytes(&jobs), launch->jobs, launch->count * launch->job_bytes);
    check_room_send(worker, &jobs);
    check_room_put(worker, &count, "job_count", &launch->count, sizeof launch->count, (check_placing){0});
    check_room_create(worker, &scratch, "scratch", gpu_codec_scratch_bytes(&codec, launch->call, most),
                      (check_placing){.guarded = true});
    check_room_send(worker, &scratch);
    if (launch->layer != NULL)
        check_room_put(worker, &layer, "layer", launch->layer, sizeof *launch->layer, (check_placing){0});
    const gpu_batch batch = {.jobs = jobs.data,
                             .job_count = count.data,
                             .scratch = scratch.data,
                             .layer = layer.data,
                             .jobs_most = most};
    run(worker, launch, &codec, &batch);
    check_room_fetch(worker, &scratch, kernel);
    check_room_free(worker, &layer);
    check_room_free(worker, &scratch);
    check_room_free(worker, &count);
    check_room_free(worker, &jobs);
}

/* ---- Rows ---------------------------------------------------------------------------------------------- */

void check_gpu_rows_put(check_worker *worker, check_room *room, const check_rows *rows, bool guarded) {
    /* As far from an aligned address as on the host. */
    size_t skew = (size_t)((uintptr_t)rows->buffer.data % 16);
    check_room_put(worker, room, "rows", rows->buffer.data, rows->buffer.size,
                   (check_placing){.skew = skew, .guarded = guarded});
}

kvant_gpu_view check_gpu_rows_view(const check_room *room, const check_rows *rows) {
    return (kvant_gpu_view){room->data + (gpu_address)(rows->first - rows->buffer.data), rows->token_stride,
                            rows->head_stride, rows->channel_stride};
}

/* ---- Blocks -------------------------------------------------------------------------------------------- */

static bool make_blocks(check_context *context, check_sample *blocks) {
    check_worker *worker = context->worker;
    const check_case *c = &context->configuration;
    check_random random = check_random_stream(c->seed, 77);
    uint32_t family = check_random_below(&random, CHECK_DATA_COUNT);
    for (uint32_t i = 0; i < CHECK_BLOCKS_COUNT; i++) {
        const check_encoding how = {.poison = POISON, .scratch = POISON, .first_position = 1000 * i};
        check_data data =
            c->data < CHECK_DATA_COUNT ? c->data : (check_data)((family + 5 * i) % CHECK_DATA_COUNT);
        blocks->values[i] = calloc(context->elements + 1, sizeof(float));
        if (blocks->values[i] == NULL) check_out_of_memory();
        check_data_fill(data, c->setup.dtype, c->setup.block_tokens, c->setup.kv_heads, c->setup.head_dim,
                        &random, blocks->values[i]);
        if (!check_subject_encode(&context->subject, blocks->values[i], &how, &blocks->coded[i], NULL))
            return false;
    }
    blocks->is_open = check_gpu_open(worker, &context->subject, &blocks->codec) == KVANT_OK;
    return blocks->is_open;
}

check_sample *check_sample_get(check_context *context) {
    if (context->blocks == NULL) {
        context->blocks = calloc(1, sizeof *context->blocks);
        if (context->blocks == NULL) check_out_of_memory();
        if (!make_blocks(context, context->blocks)) context->over = true;
    }
    if (context->over) context->worker->ran &= ~((uint64_t)1 << context->worker->running);
    return context->over ? NULL : context->blocks;
}

void check_sample_free(check_context *context) {
    check_sample *blocks = context->blocks;
    if (blocks == NULL) return;
    if (blocks->is_open) gpu_codec_close(&blocks->codec);
    for (uint32_t i = 0; i < CHECK_BLOCKS_COUNT; i++) {
        check_extent_free(context->worker, &blocks->coded[i]);
        free(blocks->values[i]);
    }
    free(blocks);
    context->blocks = NULL;
}

bool check_gpu_offers(check_context *context, uint32_t call) {
    for (uint32_t i = 0; i < context->kernels.kernel_count; i++)
        if (context->kernels.kernels[i].call == call) return true;
    context->worker->ran &= ~((uint64_t)1 << context->worker->running);
    return false;
}
