/* Kernels that score and mix, each alone: the softmax between them is the core's. See check_gpu.h. */
#include "check_gpu_scene.h"
#include "check_promise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xa7, LOGIT_GAP = 5 };

/* Logits or weights [items][rows][stride], and the mix's partials beside them. */
typedef struct split {
    check_scene scene;
    uint32_t call;
    size_t stride, item_stride; /* floats */
    check_room logits, partials;
} split;

static float *logit_row(const split *s, uint32_t item, uint32_t row) {
    return (float *)(void *)check_room_bytes(&s->logits) + item * s->item_stride + row * s->stride;
}

static float *partial_row(const split *s, uint32_t item, uint32_t row) {
    const check_scene *scene = &s->scene;
    return (float *)(void *)check_room_bytes(&s->partials) + item * scene->item_stride +
           row * scene->partial_stride;
}

/* The first token of an item's references, and how many it has. */
static uint32_t tokens_of(const check_scene *scene, uint32_t item, uint32_t *count) {
    uint32_t first = item / scene->heads * scene->span, left = scene->blocks - first;
    *count = (left < scene->span ? left : scene->span) * scene->block;
    return first * scene->block;
}

static void launch(split *s, bool narrow) {
    check_scene *scene = &s->scene;
    check_worker *worker = scene->context->worker;
    const check_scene_side *side = &scene->side[s->call == KVANT_GPU_MIX];
    const char *name = check_gpu_call_name(s->call);
    kvant_gpu_item *jobs = calloc(scene->items, sizeof *jobs);
    if (jobs == NULL) check_out_of_memory();
    for (uint32_t i = 0; i < scene->items; i++) {
        uint32_t number = narrow ? scene->items - 1 - i : i;
        jobs[i] = check_scene_item(scene, number);
        jobs[i].runs = jobs[i].run_count = 0;
        jobs[i].logits = s->logits.data + number * s->item_stride * sizeof(float);
        jobs[i].logit_stride = s->stride;
        jobs[i].partial = s->partials.data + number * scene->item_stride * sizeof(float);
        jobs[i].partial_stride = scene->partial_stride;
    }
    const kvant_gpu_layer layer = check_scene_layer(scene);
    const check_launch how = {.codec = &side->codec,
                              .call = s->call,
                              .count = scene->items,
                              .jobs = jobs,
                              .job_bytes = sizeof *jobs,
                              .layer = &layer,
                              .narrow = narrow};
    check_gpu_launch(worker, &how);
    check_room_fetch(worker, &s->logits, name);
    check_room_fetch(worker, &s->partials, name);
    free(jobs);
}

static bool split_create(check_context *context, split *s, uint32_t call) {
    check_scene *scene = &s->scene;
    s->call = call;
    scene->context = context;
    if (!check_scene_create(context, scene, (check_scene_kind){.pair = false})) return false;
    s->stride = (size_t)scene->span * scene->block + LOGIT_GAP;
    s->item_stride = (scene->rows * s->stride + 63) / 64 * 64;
    const check_placing placing = {.guarded = true};
    check_room_create(context->worker, &s->logits, "logits", scene->items * s->item_stride * sizeof(float),
                      placing);
    check_room_create(context->worker, &s->partials, "partials",
                      scene->items * scene->item_stride * sizeof(float), placing);
    return true;
}

static void split_free(split *s) {
    check_room_free(s->scene.context->worker, &s->logits);
    check_room_free(s->scene.context->worker, &s->partials);
    check_scene_free(&s->scene);
}

/* Runs it twice, with another grid and order: the same bytes must come out of the same that went in. */
static void run_twice(split *s, check_id id) {
    check_worker *worker = s->scene.context->worker;
    check_room *const rooms[] = {&s->logits, &s->partials};
    unsigned char *before[2], *first[2];
    for (uint32_t i = 0; i < 2; i++) {
        before[i] = malloc(rooms[i]->total);
        first[i] = malloc(rooms[i]->total);
        if (before[i] == NULL || first[i] == NULL) check_out_of_memory();
        memcpy(before[i], rooms[i]->image, rooms[i]->total);
        check_room_send(worker, rooms[i]);
    }
    launch(s, true);
    for (uint32_t i = 0; i < 2; i++) {
        memcpy(first[i], rooms[i]->image, rooms[i]->total);
        memcpy(rooms[i]->image, before[i], rooms[i]->total);
        check_room_send(worker, rooms[i]);
    }
    launch(s, false);
    for (uint32_t i = 0; i < 2; i++) {
        if (memcmp(first[i], rooms[i]->image, rooms[i]->total) != 0)
            check_fail(worker, id, "%s differ with one block of threads and items in another order",
                       rooms[i]->name);
        free(before[i]);
        free(first[i]);
    }
}

static void not_written(split *s, const check_room *room, size_t from, size_t to, const char *what) {
    for (size_t i = from * sizeof(float); i < to * sizeof(float); i++)
        if (check_room_bytes(room)[i] != POISON) {
            check_fail(s->scene.context->worker, CHECK_BOUNDS, "kernel %s wrote %s",
                       check_gpu_call_name(s->call), what);
            return;
        }
}

/* ---- Score --------------------------------------------------------------------------------------------- */

/* The tolerance is one of a row's logits together. */
static void compare_logits(split *s, uint32_t head, uint32_t row) {
    const check_scene *scene = &s->scene;
    uint32_t position = row / scene->group;
    double error = 0, size = 0, tolerance = scene->side[0].subject->layout.attend_tolerance;
    for (uint32_t item = head; item < scene->items; item += scene->heads) {
        uint32_t count, first = tokens_of(scene, item, &count);
        for (uint32_t t = 0; t < count; t++) {
            if (!check_scene_is_coded(scene, first + t) || !check_scene_sees(scene, position, first + t))
                continue;
            double absolute,
                want = check_scene_logit(scene, position, head * scene->group + row % scene->group, first + t,
                                         &absolute);
            double off = (double)logit_row(s, item, row)[t] - want;
            error += off * off;
            size += absolute * absolute;
        }
        size_t at = item * s->item_stride + row * s->stride;
        not_written(s, &s->logits, at + count, at + s->stride, "behind a row of logits");
    }
    if (!(sqrt(error) <= (tolerance + CHECK_GPU_ROUNDING) * sqrt(size)))
        check_fail(scene->context->worker, CHECK_GPU_SCORE,
                   "kv head %u, row %u: the error of its logits is %.3g of the sums of absolute products, "
                   "attend_tolerance is %.3g",
                   head, row, sqrt(error / size), tolerance);
}

void check_gpu_score(check_context *context) {
    if (!check_gpu_offers(context, KVANT_GPU_SCORE)) return;
    split *s = calloc(1, sizeof *s);
    if (s == NULL) check_out_of_memory();
    if (split_create(context, s, KVANT_GPU_SCORE)) {
        run_twice(s, CHECK_GPU_SCORE);
        for (uint32_t head = 0; head < s->scene.heads; head++)
            for (uint32_t row = 0; row < s->scene.rows; row++) compare_logits(s, head, row);
        not_written(s, &s->partials, 0, s->partials.size / sizeof(float), "to partials");
    } else {
        context->worker->ran &= ~((uint64_t)1 << CHECK_GPU_SCORE);
    }
    split_free(s);
    free(s);
}

/* ---- Mix ----------------------------------------------------------------------------------------------- */

/* Weights like those of a softmax; 0 where a row sees nothing. The first two floats of a partial are the
 * softmax's, and stay. */
static void fill_weights(split *s) {
    const check_scene *scene = &s->scene;
    check_random *random = &scene->context->random;
    for (uint32_t item = 0; item < scene->items; item++)
        for (uint32_t row = 0; row < scene->rows; row++) {
            uint32_t count, first = tokens_of(scene, item, &count);
            for (uint32_t t = 0; t < count; t++) {
                bool seen = check_scene_is_coded(scene, first + t) &&
                            check_scene_sees(scene, row / scene->group, first + t);
                double x = exp(2 * check_random_normal(random) - 4);
                logit_row(s, item, row)[t] = !seen || t % 7 == 3 ? 0 : (float)(x > 1 ? 1 : x);
            }
            partial_row(s, item, row)[0] = 3;
            partial_row(s, item, row)[1] = 2;
        }
}

static void compare_mix(split *s, const float *weights, uint32_t item, uint32_t row) {
    const check_scene *scene = &s->scene;
    check_worker *worker = scene->context->worker;
    uint32_t count, first = tokens_of(scene, item, &count), dim = scene->side[1].dim;
    const float *got = partial_row(s, item, row);
    double error = 0, size = 0, tolerance = scene->side[1].subject->layout.attend_tolerance;
    for (uint32_t v = 0; v < dim; v++) {
        double want = 0, absolute = 0;
        for (uint32_t t = 0; t < count; t++) {
            if (weights[t] == 0) continue;
            double x =
                (double)weights[t] * (double)check_scene_row(scene, 1, first + t, item % scene->heads)[v];
            want += x;
            absolute += fabs(x);
        }
        error += ((double)got[2 + v] - want) * ((double)got[2 + v] - want);
        size += absolute * absolute;
    }
    if (got[0] != 3 || got[1] != 2)
        check_fail(worker, CHECK_BOUNDS, "kernel mix wrote to the softmax's part of a partial");
    if (!(sqrt(error) <= (tolerance + CHECK_GPU_ROUNDING) * sqrt(size)))
        check_fail(
            worker, CHECK_GPU_MIX,
            "item %u, row %u: the error of the mix is %.3g, the sums of absolute products have norm %.3g, "
            "attend_tolerance is %.3g",
            item, row, sqrt(error), sqrt(size), tolerance);
    size_t at = item * scene->item_stride + row * scene->partial_stride;
    not_written(s, &s->partials, at + 2 + dim, at + scene->partial_stride, "behind a partial");
}

void check_gpu_mix(check_context *context) {
    if (!check_gpu_offers(context, KVANT_GPU_MIX)) return;
    split *s = calloc(1, sizeof *s);
    if (s == NULL) check_out_of_memory();
    if (split_create(context, s, KVANT_GPU_MIX)) {
        fill_weights(s);
        unsigned char *weights = malloc(s->logits.size + 1);
        if (weights == NULL) check_out_of_memory();
        memcpy(weights, check_room_bytes(&s->logits), s->logits.size);
        run_twice(s, CHECK_GPU_MIX);
        if (memcmp(weights, check_room_bytes(&s->logits), s->logits.size) != 0)
            check_fail(context->worker, CHECK_STATE, "kernel mix wrote to the weights that it reads");
        for (uint32_t item = 0; item < s->scene.items; item++)
            for (uint32_t row = 0; row < s->scene.rows; row++)
                compare_mix(s, (const float *)(const void *)weights + item * s->item_stride + row * s->stride,
                            item, row);
        free(weights);
    } else {
        context->worker->ran &= ~((uint64_t)1 << CHECK_GPU_MIX);
    }
    split_free(s);
    free(s);
}
