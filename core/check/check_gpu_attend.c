/* Kernels that attend on the codes of both sides. See check_gpu.h. */
#include "check_gpu_scene.h"
#include "check_promise.h"

#include <kvant/kvant.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xa7 };

/* What lies between and behind the partials of rows is nobody's. */
static void look_at_gaps(check_scene *scene, const unsigned char *bytes) {
    size_t used = (2 + (size_t)scene->side[1].dim) * sizeof(float);
    for (uint32_t i = 0; i < scene->items; i++)
        for (uint32_t r = 0; r < scene->rows; r++) {
            size_t at = (i * scene->item_stride + r * scene->partial_stride) * sizeof(float);
            size_t end = r + 1 < scene->rows ? at + scene->partial_stride * sizeof(float)
                                             : (i + 1) * scene->item_stride * sizeof(float);
            for (at += used; at < end; at++)
                if (bytes[at] != POISON) {
                    check_fail(scene->context->worker, CHECK_BOUNDS,
                               "kernel attend wrote behind the partial of item %u, row %u", i, r);
                    return;
                }
        }
}

static kvant_gpu_item attend_item(const check_scene *scene, uint32_t number, gpu_address partials) {
    kvant_gpu_item item = check_scene_item(scene, number);
    item.partial = partials + (uint64_t)number * scene->item_stride * sizeof(float);
    item.partial_stride = scene->partial_stride;
    return item;
}

void check_scene_run(check_scene *scene, bool narrow, float *partials) {
    check_worker *worker = scene->context->worker;
    size_t size = scene->items * scene->item_stride * sizeof(float);
    kvant_gpu_item *jobs = calloc(scene->items, sizeof *jobs);
    check_room room;
    if (jobs == NULL) check_out_of_memory();
    check_room_create(worker, &room, "partials", size, (check_placing){.guarded = true});
    check_room_send(worker, &room);
    for (uint32_t i = 0; i < scene->items; i++)
        jobs[i] = attend_item(scene, narrow ? scene->items - 1 - i : i, room.data);
    const kvant_gpu_layer layer = check_scene_layer(scene);
    const check_launch launch = {.codec = &scene->side[0].codec,
                                 .call = KVANT_GPU_ATTEND,
                                 .count = scene->items,
                                 .jobs = jobs,
                                 .job_bytes = sizeof *jobs,
                                 .layer = &layer,
                                 .narrow = narrow};
    check_gpu_launch(worker, &launch);
    check_room_fetch(worker, &room, "attend");
    look_at_gaps(scene, check_room_bytes(&room));
    memcpy(partials, check_room_bytes(&room), size);
    check_room_free(worker, &room);
    free(jobs);
}

/* Grid and order of items are the host's: the bits do not depend on them. */
static void compare_runs(const check_scene *scene, const float *one, const float *two) {
    for (uint32_t i = 0; i < scene->items; i++)
        for (uint32_t r = 0; r < scene->rows; r++)
            for (uint32_t k = 0; k < 2 + scene->side[1].dim; k++) {
                size_t at = i * scene->item_stride + r * scene->partial_stride + k;
                if (memcmp(&one[at], &two[at], sizeof *one) == 0) continue;
                check_fail(
                    scene->context->worker, CHECK_GPU_ATTEND,
                    "item %u, row %u, float %u of the partial is %a, and %a with one block of threads and "
                    "items in another order",
                    i, r, k, (double)one[at], (double)two[at]);
                return;
            }
}

static bool has_pair(const check_worker *worker) {
    const kvant_gpu *table = worker->gpu->table;
    return table->pair != NULL && worker->plugin->descriptor->sides == KVANT_SIDES_BOTH;
}

static float *partials_of(const check_scene *scene) {
    float *partials = malloc((scene->items * scene->item_stride + 1) * sizeof *partials);
    if (partials == NULL) check_out_of_memory();
    return partials;
}

void check_gpu_attend(check_context *context) {
    check_worker *worker = context->worker;
    check_scene *scene = calloc(1, sizeof *scene);
    if (scene == NULL) check_out_of_memory();
    scene->context = context;
    if (has_pair(worker) && check_scene_create(context, scene, (check_scene_kind){.pair = true})) {
        float *one = partials_of(scene), *two = partials_of(scene);
        check_scene_run(scene, false, one);
        check_scene_compare(scene, one);
        if (!check_has_failed(worker, CHECK_GPU_ATTEND)) {
            check_scene_run(scene, true, two);
            compare_runs(scene, one, two);
        }
        free(two);
        free(one);
    } else {
        worker->ran &= ~((uint64_t)1 << CHECK_GPU_ATTEND);
    }
    check_scene_free(scene);
    free(scene);
}

/* What comes out is unspecified; that it comes, and where it is written, is not. */
void check_gpu_attend_arbitrary(check_context *context) {
    check_scene *scene = calloc(1, sizeof *scene);
    if (scene == NULL) check_out_of_memory();
    scene->context = context;
    if (has_pair(context->worker) &&
        check_scene_create(context, scene, (check_scene_kind){.pair = true, .arbitrary = true})) {
        float *partials = partials_of(scene);
        check_scene_run(scene, false, partials);
        free(partials);
    }
    check_scene_free(scene);
    free(scene);
}
