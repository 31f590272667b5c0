/* Kernels that encode: bytes, sizes and status words against the CPU's. See check_gpu.h. */
#include "check_gpu.h"
#include "check_promise.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xa7, BLOCKS = CHECK_BLOCKS_COUNT };

/* A batch: all blocks, in some order. */
typedef struct batch {
    check_context *context;
    check_sample *blocks;
    uint32_t order[BLOCKS]; /* block of job i */
    check_form form;
    bool narrow;
    const char *situation;
    const float *other; /* rows of block 0 in place of its own, which are not finite; NULL = none */
    size_t stride;      /* of extents, which have guards before and behind */
    check_rows rows[BLOCKS];
    check_room on_device[BLOCKS], extents, statuses, classes;
} batch;

static void batch_create(batch *b) {
    check_context *context = b->context;
    check_worker *worker = context->worker;
    const kvant_setup *s = &context->configuration.setup;
    const kvant_gpu_status fresh = {.first_not_finite = UINT64_MAX};
    size_t alignment = context->layout.alignment > CHECK_GUARD ? context->layout.alignment : CHECK_GUARD;
    size_t largest = (size_t)check_layout_largest(&context->layout);
    b->stride = (largest + CHECK_GUARD + alignment - 1) / alignment * alignment;
    check_room_create(worker, &b->extents, "extents", BLOCKS * b->stride,
                      (check_placing){.alignment = context->layout.alignment, .guarded = true});
    check_room_send(worker, &b->extents);
    check_room_create(worker, &b->statuses, "statuses", BLOCKS * sizeof fresh,
                      (check_placing){.guarded = true});
    for (uint32_t i = 0; i < BLOCKS; i++)
        memcpy(check_room_bytes(&b->statuses) + i * sizeof fresh, &fresh, sizeof fresh);
    check_room_send(worker, &b->statuses);
    if (context->subject.classes != NULL)
        check_room_put(worker, &b->classes, "classes", context->subject.classes, s->block_tokens,
                       (check_placing){0});
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t block = b->order[i];
        check_rows_create(worker, &b->rows[i], s->dtype, s->block_tokens, s->kv_heads, s->head_dim, b->form);
        check_buffer_fill(&b->rows[i].buffer, POISON);
        check_rows_store(&b->rows[i], block == 0 && b->other != NULL ? b->other : b->blocks->values[block]);
        check_gpu_rows_put(worker, &b->on_device[i], &b->rows[i], false);
    }
}

static void batch_run(batch *b) {
    kvant_gpu_encode_job jobs[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++)
        jobs[i] = (kvant_gpu_encode_job){.rows = check_gpu_rows_view(&b->on_device[i], &b->rows[i]),
                                         .extent = b->extents.data + i * b->stride,
                                         .first_position = b->blocks->coded[b->order[i]].first_position,
                                         .classes = b->classes.data,
                                         .status = b->statuses.data + i * sizeof(kvant_gpu_status)};
    const check_launch launch = {.codec = &b->blocks->codec,
                                 .call = KVANT_GPU_ENCODE,
                                 .count = BLOCKS,
                                 .jobs = jobs,
                                 .job_bytes = sizeof *jobs,
                                 .narrow = b->narrow};
    check_worker *worker = b->context->worker;
    check_gpu_launch(worker, &launch);
    check_room_fetch(worker, &b->extents, "encode");
    check_room_fetch(worker, &b->statuses, "encode");
}

static void batch_free(batch *b) {
    check_worker *worker = b->context->worker;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        check_room_free(worker, &b->on_device[i]);
        check_rows_free(worker, &b->rows[i]);
    }
    check_room_free(worker, &b->classes);
    check_room_free(worker, &b->statuses);
    check_room_free(worker, &b->extents);
}

/* ---- What came out ------------------------------------------------------------------------------------- */

static kvant_gpu_status status_of(const batch *b, uint32_t job) {
    kvant_gpu_status status;
    memcpy(&status, check_room_bytes(&b->statuses) + job * sizeof status, sizeof status);
    return status;
}

static const unsigned char *extent_of(const batch *b, uint32_t job) {
    return check_room_bytes(&b->extents) + job * b->stride;
}

/* Behind the used bytes nobody writes, whether the extent could have been longer or not. */
static void compare_behind(const batch *b, uint32_t job, size_t used) {
    const unsigned char *bytes = extent_of(b, job);
    for (size_t i = used; i < b->stride; i++)
        if (bytes[i] != POISON) {
            check_fail(b->context->worker, CHECK_BOUNDS,
                       "kernel encode wrote at offset %zu of an extent of %zu bytes", i, used);
            return;
        }
}

static void compare_block(const batch *b, uint32_t job) {
    check_worker *worker = b->context->worker;
    uint32_t block = b->order[job];
    const check_extent *want = &b->blocks->coded[block];
    const kvant_gpu_status got = status_of(b, job);
    const unsigned char *bytes = extent_of(b, job), *wanted = want->buffer.data;
    size_t size = (size_t)want->size, at = 0, differing = 0;
    for (size_t i = size; i-- > 0;)
        if (bytes[i] != wanted[i]) {
            differing++;
            at = i;
        }
    if (differing > 0)
        check_fail(worker, CHECK_GPU_ENCODE,
                   "block %u, %s rows, %s: byte %zu of %zu is %02x, the CPU writes %02x; %zu bytes differ",
                   block, check_form_name(b->form), b->situation, at, size, bytes[at], wanted[at], differing);
    if (got.size != want->size)
        check_fail(worker, CHECK_GPU_ENCODE, "block %u, %s: status.size is %llu, the CPU uses %llu bytes",
                   block, b->situation, (unsigned long long)got.size, (unsigned long long)want->size);
    if (got.saturated != want->saturated)
        check_fail(worker, CHECK_GPU_ENCODE, "block %u, %s: status.saturated is %llu, the CPU counts %llu",
                   block, b->situation, (unsigned long long)got.saturated,
                   (unsigned long long)want->saturated);
    if (got.first_not_finite != UINT64_MAX)
        check_fail(worker, CHECK_GPU_FINITE, "block %u is finite, and status.first_not_finite is %llu", block,
                   (unsigned long long)got.first_not_finite);
    compare_behind(b, job, size);
}

void check_gpu_encode(check_context *context) {
    if (!check_gpu_offers(context, KVANT_GPU_ENCODE)) return;
    check_sample *blocks = check_sample_get(context);
    if (blocks == NULL) return;
    check_worker *worker = context->worker;
    check_form form = (check_form)check_random_below(&context->random, CHECK_FORM_COUNT - 1);
    batch batches[] = {{.form = CHECK_FORM_DENSE, .order = {0, 1, 2}, .situation = "a full grid"},
                       {.form = (check_form)(form + 1),
                        .order = {2, 0, 1},
                        .narrow = true,
                        .situation = "one block of threads, jobs in another order"}};
    for (uint32_t i = 0; i < 2 && !check_has_failed(worker, CHECK_GPU_ENCODE); i++) {
        batch *b = &batches[i];
        b->context = context;
        b->blocks = blocks;
        batch_create(b);
        batch_run(b);
        for (uint32_t job = 0; job < BLOCKS; job++) compare_block(b, job);
        for (uint32_t job = 0; job < BLOCKS; job++) {
            check_room_fetch(worker, &b->on_device[job], "encode");
            if (memcmp(check_room_bytes(&b->on_device[job]), b->rows[job].buffer.data,
                       b->rows[job].buffer.size) != 0)
                check_fail(worker, CHECK_STATE, "kernel encode wrote to the rows that it reads");
        }
        batch_free(b);
    }
}

/* ---- What is not finite -------------------------------------------------------------------------------- */

/* Two bad elements in block 0, none in the others: the first of the two is named, and the others are encoded
 * as ever. */
static void try_places(check_context *context, check_sample *blocks, uint32_t first, uint32_t second) {
    check_worker *worker = context->worker;
    float *values = malloc(context->elements * sizeof *values);
    if (values == NULL) check_out_of_memory();
    memcpy(values, blocks->values[0], context->elements * sizeof *values);
    uint32_t kind = check_random_below(&context->random, 3);
    values[second] = kind == 0 ? NAN : -INFINITY;
    values[first] = kind == 1 ? NAN : kind == 2 ? -NAN : INFINITY;
    batch b = {.context = context,
               .blocks = blocks,
               .order = {1, 0, 2},
               .form = (check_form)check_random_below(&context->random, CHECK_FORM_COUNT),
               .situation = "beside a block that is not finite",
               .other = values};
    batch_create(&b);
    batch_run(&b);
    uint64_t got = status_of(&b, 1).first_not_finite;
    if (got != first)
        check_fail(
            worker, CHECK_GPU_FINITE,
            "elements %u (%f) and %u (%f) of a block are not finite, and status.first_not_finite is %lld",
            first, (double)values[first], second, (double)values[second], (long long)got);
    compare_block(&b, 0);
    compare_block(&b, 2);
    compare_behind(&b, 1, (size_t)check_layout_largest(&context->layout));
    batch_free(&b);
    free(values);
}

void check_gpu_finite(check_context *context) {
    if (!check_gpu_offers(context, KVANT_GPU_ENCODE)) return;
    check_sample *blocks = check_sample_get(context);
    if (blocks == NULL) return;
    uint32_t count = (uint32_t)context->elements;
    uint32_t a = check_random_below(&context->random, count), b = check_random_below(&context->random, count);
    try_places(context, blocks, a < b ? a : b, a < b ? b : a);
    if (!check_has_failed(context->worker, CHECK_GPU_FINITE))
        try_places(context, blocks, count - 1, count - 1);
}
