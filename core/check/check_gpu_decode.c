/* Kernels that decode: floats against the CPU's, and arbitrary bytes. See check_gpu.h. */
#include "check_gpu.h"
#include "check_promise.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xa7, JOBS = 6 };

/* One job: part of an extent into rows of some form. */
typedef struct part {
    uint32_t dtype, first_token, tokens, first_head, heads;
    check_form form;
    const unsigned char *extent;
    uint64_t size, first_position;
    check_rows rows; /* on the host: as the CPU decodes them, over poison */
    check_room on_device, coded;
} part;

static void part_create(check_context *context, part *p) {
    check_worker *worker = context->worker;
    check_rows_create(worker, &p->rows, p->dtype, p->tokens, p->heads, context->configuration.setup.head_dim,
                      p->form);
    check_buffer_fill(&p->rows.buffer, POISON);
    check_gpu_rows_put(worker, &p->on_device, &p->rows, true);
    check_room_put(worker, &p->coded, "an extent", p->extent, (size_t)p->size,
                   (check_placing){.alignment = context->layout.alignment});
}

static void part_free(check_worker *worker, part *p) {
    check_room_free(worker, &p->coded);
    check_room_free(worker, &p->on_device);
    check_rows_free(worker, &p->rows);
}

static void launch_parts(check_context *context, part *parts, uint32_t count, bool narrow) {
    check_worker *worker = context->worker;
    kvant_gpu_decode_job jobs[JOBS];
    for (uint32_t i = 0; i < count; i++) {
        const part *p = &parts[narrow ? count - 1 - i : i];
        jobs[i] = (kvant_gpu_decode_job){.rows = check_gpu_rows_view(&p->on_device, &p->rows),
                                         .extent = p->coded.data,
                                         .size = p->size,
                                         .first_position = p->first_position,
                                         .dtype = p->dtype,
                                         .first_token = p->first_token,
                                         .tokens = p->tokens,
                                         .first_head = p->first_head,
                                         .heads = p->heads};
    }
    const check_launch launch = {.codec = &context->blocks->codec,
                                 .call = KVANT_GPU_DECODE,
                                 .count = count,
                                 .jobs = jobs,
                                 .job_bytes = sizeof *jobs,
                                 .narrow = narrow};
    check_gpu_launch(worker, &launch);
    for (uint32_t i = 0; i < count; i++) {
        part *p = &parts[i];
        check_room_fetch(worker, &p->on_device, "decode");
        check_room_fetch(worker, &p->coded, "decode");
        if (memcmp(check_room_bytes(&p->coded), p->extent, (size_t)p->size) != 0)
            check_fail(worker, CHECK_STATE, "kernel decode wrote to the extent that it reads");
    }
}

/* ---- Against the CPU ----------------------------------------------------------------------------------- */

static void decode_here(check_context *context, part *p) {
    kvant_mutable_view view = check_rows_mutable_view(&p->rows);
    const kvant_extent extent = {.bytes = p->extent,
                                 .size = p->size,
                                 .first_position = p->first_position,
                                 .live_count = context->configuration.setup.block_tokens};
    const kvant_decode_args args = {.struct_size = sizeof args,
                                    .first_token = p->first_token,
                                    .first_head = p->first_head,
                                    .extent = &extent,
                                    .rows = &view,
                                    .scratch = context->subject.scratch.data};
    kvant_status status = check_call_decode(context->worker, context->subject.state.data, &args);
    if (status != KVANT_OK) {
        check_fail(context->worker, CHECK_DECODE, "decode returned %d on an extent that encode wrote",
                   status);
        context->over = true;
    }
}

/* The element that byte `at` of the rows belongs to; false for a gap. */
static bool element_of(const part *p, size_t at, uint32_t place[3]) {
    for (place[0] = 0; place[0] < p->tokens; place[0]++)
        for (place[1] = 0; place[1] < p->heads; place[1]++)
            for (place[2] = 0; place[2] < p->rows.head_dim; place[2]++) {
                ptrdiff_t offset = (p->rows.first - p->rows.buffer.data) + place[0] * p->rows.token_stride +
                                   place[1] * p->rows.head_stride + place[2] * p->rows.channel_stride;
                ptrdiff_t size = p->dtype == KVANT_DTYPE_F32 ? 4 : 2;
                if ((ptrdiff_t)at >= offset && (ptrdiff_t)at < offset + size) return true;
            }
    return false;
}

static void compare_part(check_context *context, const part *p, bool narrow) {
    static const char *const dtypes[] = {"", "F32", "F16", "BF16"};
    const unsigned char *got = check_room_bytes(&p->on_device), *want = p->rows.buffer.data;
    size_t at = 0, size = p->rows.buffer.size;
    uint32_t place[3];
    while (at < size && got[at] == want[at]) at++;
    if (at == size) return;
    if (element_of(p, at, place))
        check_fail(context->worker, CHECK_GPU_DECODE,
                   "%s rows of %s, tokens %u+%u, heads %u+%u, %s: token %u, head %u, channel %u is not the "
                   "CPU's (byte %zu is %02x instead of %02x)",
                   check_form_name(p->form), dtypes[p->dtype], p->first_token, p->tokens, p->first_head,
                   p->heads, narrow ? "one block of threads" : "a full grid", p->first_token + place[0],
                   p->first_head + place[1], place[2], at, got[at], want[at]);
    else
        check_fail(context->worker, CHECK_BOUNDS,
                   "kernel decode wrote between the elements of %s rows, at byte %zu (tokens %u+%u, heads "
                   "%u+%u)",
                   check_form_name(p->form), at, p->first_token, p->tokens, p->first_head, p->heads);
}

/* The whole of each block in each dtype, and three ranges. */
static void choose_parts(check_context *context, const check_sample *blocks, part parts[JOBS]) {
    const kvant_setup *s = &context->configuration.setup;
    check_random *random = &context->random;
    uint32_t form = check_random_below(random, CHECK_FORM_COUNT);
    for (uint32_t i = 0; i < JOBS; i++) {
        const check_extent *coded = &blocks->coded[i % CHECK_BLOCKS_COUNT];
        uint32_t first = check_random_below(random, s->block_tokens),
                 head = check_random_below(random, s->kv_heads);
        parts[i] = (part){.dtype = 1 + i % 3,
                          .tokens = s->block_tokens,
                          .heads = s->kv_heads,
                          .form = (check_form)((form + i) % CHECK_FORM_COUNT),
                          .extent = coded->buffer.data,
                          .size = coded->size,
                          .first_position = coded->first_position};
        if (i < 3) continue;
        parts[i].dtype = 1 + check_random_below(random, 3);
        parts[i].first_token = i == 5 ? s->block_tokens - 1 : first;
        parts[i].tokens = i == 5 ? 1 : 1 + check_random_below(random, s->block_tokens - first);
        parts[i].first_head = i == 3 ? 0 : head;
        parts[i].heads = i == 3 ? s->kv_heads : i == 4 ? 1 : s->kv_heads - head;
    }
}

void check_gpu_decode(check_context *context) {
    check_worker *worker = context->worker;
    if (!check_gpu_offers(context, KVANT_GPU_DECODE)) return;
    const check_sample *blocks = check_sample_get(context);
    if (blocks == NULL) return;
    part parts[JOBS];
    choose_parts(context, blocks, parts);
    for (uint32_t round = 0; round < 2 && !check_has_failed(worker, CHECK_GPU_DECODE); round++) {
        for (uint32_t i = 0; i < JOBS; i++) part_create(context, &parts[i]);
        launch_parts(context, parts, JOBS, round == 1);
        for (uint32_t i = 0; i < JOBS; i++) {
            decode_here(context, &parts[i]);
            if (!context->over) compare_part(context, &parts[i], round == 1);
        }
        for (uint32_t i = 0; i < JOBS; i++) part_free(worker, &parts[i]);
    }
}

/* ---- Arbitrary bytes ----------------------------------------------------------------------------------- */

/* Random, ones, zeros, what encode wrote with some bits turned. */
static void fill_arbitrary(check_context *context, const check_extent *written, uint32_t kind,
                           unsigned char *bytes, size_t size) {
    check_random *random = &context->random;
    for (size_t i = 0; i < size; i++)
        bytes[i] = kind == 0   ? (unsigned char)check_random_next(random)
                   : kind == 1 ? 0xff
                   : kind == 2 ? 0
                               : written->buffer.data[i % written->size];
    for (size_t n = kind < 3 ? 0 : 1 + size / 50; n > 0; n--)
        bytes[check_random_below(random, (uint32_t)size)] ^=
            (unsigned char)(1u << check_random_below(random, 8));
}

void check_gpu_arbitrary(check_context *context) {
    enum { KINDS = 4 };
    check_worker *worker = context->worker;
    const kvant_setup *s = &context->configuration.setup;
    const kvant_layout *l = &context->layout;
    if (!check_gpu_offers(context, KVANT_GPU_DECODE)) return;
    const check_sample *blocks = check_sample_get(context);
    if (blocks == NULL) return;
    part parts[KINDS];
    unsigned char *bytes[KINDS];
    uint32_t steps = l->size_steps < UINT32_MAX ? (uint32_t)l->size_steps + 1 : UINT32_MAX;
    for (uint32_t i = 0; i < KINDS; i++) {
        uint64_t size = l->size_min + check_random_below(&context->random, steps) * l->size_step;
        bytes[i] = malloc((size_t)size + 1);
        if (bytes[i] == NULL) check_out_of_memory();
        fill_arbitrary(context, &blocks->coded[0], i, bytes[i], (size_t)size);
        parts[i] = (part){.dtype = 1 + i % 3,
                          .tokens = s->block_tokens,
                          .heads = s->kv_heads,
                          .form = i % 2 == 0 ? CHECK_FORM_DENSE : CHECK_FORM_PADDED,
                          .extent = bytes[i],
                          .size = size,
                          .first_position = check_random_next(&context->random)};
        part_create(context, &parts[i]);
    }
    launch_parts(context, parts, KINDS, false);
    for (uint32_t i = 0; i < KINDS; i++) {
        size_t gap;
        memcpy(parts[i].rows.buffer.data, check_room_bytes(&parts[i].on_device), parts[i].rows.buffer.size);
        if (check_rows_gap_written(&parts[i].rows, POISON, &gap))
            check_fail(worker, CHECK_BOUNDS,
                       "kernel decode wrote between the elements of rows, at byte %zu, on arbitrary bytes",
                       gap);
        part_free(worker, &parts[i]);
        free(bytes[i]);
    }
    check_gpu_attend_arbitrary(context);
}
