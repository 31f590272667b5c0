/* See gpu_plain_run.h. */
#include "gpu_plain_run.h"

#include "gpu_reference.h"

#include <kvant/kit/diag.h>
#include <kvant/kit/gpu_images.h>

#include <math.h>
#include <stdlib.h>

#define TRY(call, what) gpu_check(clock->device.driver, (call), (what), diag)

/* ---- Code ---------------------------------------------------------------------------------------------- */

KVANT_GPU_IMAGES(plain);

static kvant_status no_plan(const kvant_setup *setup, const kvant_layout *layout, kvant_gpu_plan *plan,
                            kvant_diag *diag) {
    (void)setup, (void)layout, (void)plan, (void)diag;
    return KVANT_ERROR_UNSUPPORTED;
}

static kvant_status no_upload(const void *state, const kvant_gpu_plan *plan, void *device_state) {
    (void)state, (void)plan, (void)device_state;
    return KVANT_ERROR_UNSUPPORTED;
}

static const kvant_gpu table = {.struct_size = sizeof table,
                                .image_count = KVANT_GPU_IMAGE_COUNT,
                                .images = kvant_gpu_images,
                                .plan = no_plan,
                                .upload = no_upload};

kvant_status gpu_plain_open(gpu_clock *clock, gpu_plain *plain, kvant_diag *diag) {
    *plain = (gpu_plain){.clock = clock};
    kvant_status status = gpu_module_load(&clock->device, "plain", &table, &plain->module, diag);
    if (status == KVANT_OK)
        status = gpu_launchable_open(&plain->module, "plain_attend", PLAIN_THREADS, 0, &plain->attend, diag);
    if (status == KVANT_OK)
        status = gpu_launchable_open(&plain->module, "plain_merge", PLAIN_THREADS, 0, &plain->merge, diag);
    if (status != KVANT_OK) gpu_plain_close(plain);
    return status;
}

void gpu_plain_close(gpu_plain *plain) {
    gpu_module_unload(&plain->module);
    *plain = (gpu_plain){0};
}

static kvant_status launch(const gpu_plain *plain, const gpu_launchable *kernel, uint32_t blocks,
                           plain_call *call, gpu_stream stream, kvant_diag *diag) {
    const gpu_clock *clock = plain->clock;
    void *arguments[] = {call};
    const gpu_launch_config how = {
        .grid = {blocks, 1, 1}, .block = {kernel->threads, 1, 1}, .stream = stream};
    return TRY(clock->device.driver->launch(&how, kernel->function, arguments, NULL), kernel->name);
}

static kvant_status launch_both(void *context, uint32_t set, gpu_stream stream, kvant_diag *diag) {
    const gpu_plain_sets *s = context;
    plain_call *call = &s->calls[set];
    uint32_t heads = s->shape.sequences * s->shape.kv_heads;
    kvant_status status = launch(s->plain, &s->plain->attend, heads * call->splits, call, stream, diag);
    if (status != KVANT_OK) return status;
    return launch(s->plain, &s->plain->merge, heads * s->shape.group, call, stream, diag);
}

/* ---- Sets ---------------------------------------------------------------------------------------------- */

static uint32_t splits_of(const gpu_plain_sets *s, uint32_t waves) {
    uint32_t heads = s->shape.sequences * s->shape.kv_heads;
    uint32_t splits = waves * s->plain->attend.resident / heads;
    uint32_t most = (s->shape.tokens + PLAIN_TOKENS - 1) / PLAIN_TOKENS;
    return splits == 0 ? 1 : splits < most ? splits : most;
}

static void split(gpu_plain_sets *s, uint32_t waves) {
    for (uint32_t set = 0; set < s->timed.sets; set++) s->calls[set].splits = splits_of(s, waves);
}

static kvant_status choose(gpu_plain_sets *s, kvant_diag *diag) {
    double best = INFINITY;
    uint32_t chosen = 1;
    kvant_status status = KVANT_OK;
    for (uint32_t waves = 1; waves <= 4 && status == KVANT_OK; waves *= 2) {
        double one = 0;
        split(s, waves);
        status = gpu_clock_glance(s->plain->clock, &s->timed, &one, diag);
        if (one < best) {
            best = one;
            chosen = waves;
        }
    }
    split(s, chosen);
    return status;
}

kvant_status gpu_plain_sets_open(const gpu_plain *plain, gpu_room *room, const gpu_plain_shape *shape,
                                 uint32_t sets, uint32_t waves, gpu_plain_sets *made, kvant_diag *diag) {
    *made = (gpu_plain_sets){.plain = plain, .shape = *shape, .calls = calloc(sets, sizeof *made->calls)};
    made->timed = (gpu_timed){.launch = launch_both, .context = made, .sets = sets};
    if (made->calls == NULL) return kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    uint64_t heads = (uint64_t)shape->sequences * shape->kv_heads, rows = heads * shape->group;
    uint64_t side = heads * shape->tokens * 2 * PLAIN_DIM;
    made->bytes = 2 * side;
    gpu_address at = 0, queries = 0, partials = 0, outputs = 0;
    kvant_status status = gpu_room_take(room, sets * made->bytes, &at, diag);
    if (status == KVANT_OK) status = gpu_room_take(room, rows * 2 * PLAIN_DIM, &queries, diag);
    if (status == KVANT_OK)
        status = gpu_room_take(room, rows * splits_of(made, 4) * PLAIN_PARTIAL * 4, &partials, diag);
    if (status == KVANT_OK) status = gpu_room_take(room, rows * PLAIN_DIM * 4, &outputs, diag);
    if (status == KVANT_OK)
        status = gpu_fill(plain->clock, at, sets * made->bytes, KVANT_DTYPE_BF16, 3, diag);
    if (status == KVANT_OK)
        status = gpu_fill(plain->clock, queries, rows * 2 * PLAIN_DIM, KVANT_DTYPE_BF16, 5, diag);
    for (uint32_t set = 0; set < sets; set++)
        made->calls[set] = (plain_call){.queries = queries,
                                        .keys = at + set * made->bytes,
                                        .values = at + set * made->bytes + side,
                                        .partials = partials,
                                        .outputs = outputs,
                                        .tokens = shape->tokens,
                                        .kv_heads = shape->kv_heads,
                                        .group = shape->group,
                                        .splits = 1,
                                        .scale = 0.08838835f};
    if (status == KVANT_OK && waves > 0) split(made, waves);
    if (status == KVANT_OK && waves == 0) status = choose(made, diag);
    if (status != KVANT_OK) gpu_plain_sets_close(made);
    return status;
}

void gpu_plain_sets_close(gpu_plain_sets *made) {
    free(made->calls);
    made->calls = NULL;
}

/* ---- Check --------------------------------------------------------------------------------------------- */

/* The device's rows, read back: what the kernels read is what is compared. */
static kvant_status compare(const gpu_plain_sets *s, double *error, kvant_diag *diag) {
    gpu_clock *clock = s->plain->clock;
    uint32_t rows = s->shape.sequences * s->shape.kv_heads * s->shape.group;
    uint16_t *kv = NULL, *queries = NULL;
    float *outputs = NULL;
    double *logits = malloc(s->shape.tokens * sizeof *logits);
    kvant_status status =
        logits != NULL ? KVANT_OK : kvant_fail(diag, KVANT_ERROR_MEMORY, "", "out of memory");
    if (status == KVANT_OK) status = gpu_read(clock, s->calls[0].keys, s->bytes, (void **)&kv, diag);
    if (status == KVANT_OK)
        status = gpu_read(clock, s->calls[0].queries, (size_t)rows * PLAIN_DIM * 2, (void **)&queries, diag);
    if (status == KVANT_OK)
        status = gpu_read(clock, s->calls[0].outputs, (size_t)rows * PLAIN_DIM * 4, (void **)&outputs, diag);
    for (uint32_t row = 0; row < rows && status == KVANT_OK; row++) {
        size_t head = (size_t)(row / s->shape.group) * s->shape.tokens * PLAIN_DIM;
        const gpu_reference_rows of = {.keys = kv + head,
                                       .values = kv + s->bytes / 4 + head,
                                       .stride = PLAIN_DIM,
                                       .tokens = s->shape.tokens,
                                       .dim = PLAIN_DIM,
                                       .scale = (double)s->calls[0].scale};
        double one = gpu_reference_error(&of, queries + (size_t)row * PLAIN_DIM,
                                         outputs + (size_t)row * PLAIN_DIM, logits);
        if (!(one <= *error) && !isnan(*error)) *error = one; /* NaN stays */
    }
    free(kv);
    free(queries);
    free(outputs);
    free(logits);
    return status;
}

static kvant_status check_shape(const gpu_plain *plain, const gpu_plain_shape *shape, uint32_t waves,
                                double *error, kvant_diag *diag) {
    const gpu_clock *clock = plain->clock;
    gpu_room room = {.clock = plain->clock};
    gpu_plain_sets s;
    size_t output_bytes = (size_t)shape->sequences * shape->kv_heads * shape->group * PLAIN_DIM * 4;
    kvant_status status = gpu_plain_sets_open(plain, &room, shape, 1, waves, &s, diag);
    if (status == KVANT_OK) {
        status = TRY(clock->device.driver->memory_set(s.calls[0].outputs, 0xff, output_bytes, clock->stream),
                     "cuMemsetD8Async");
        if (status == KVANT_OK) status = launch_both(&s, 0, clock->stream, diag);
        if (status == KVANT_OK) status = compare(&s, error, diag);
        gpu_plain_sets_close(&s);
    }
    gpu_room_free(&room);
    return status;
}

kvant_status gpu_plain_check(const gpu_plain *plain, double *error, kvant_diag *diag) {
    static const gpu_plain_shape shapes[] = {
        {1, 1, 1, 7}, {2, 2, 8, 65}, {1, 2, 4, 200}, {1, 3, 3, 64}, {1, 1, 5, 385}};
    kvant_status status = KVANT_OK;
    *error = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] && status == KVANT_OK; i++)
        status = check_shape(plain, &shapes[i], 1 + (uint32_t)i % 2, error, diag);
    return status;
}
