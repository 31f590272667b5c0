/* A sequence whose keys and values two codecs hold, attended to by score, softmax and mix, three launches,
 * and by attention_double. Everything that goes wrong fails the test.
 *
 *     split_room_begin(&room, 110);
 *     split_scene_open(&scene, &room, &shape, seed);
 *     split_scene_attend(&scene);
 *     split_scene_compare(&scene);
 *     split_scene_close(&scene);
 *     split_room_end(&room);
 */
#ifndef KVANT_TEST_SPLIT_SCENE_H
#define KVANT_TEST_SPLIT_SCENE_H

#include "gpu_rig.h"

#include <gpu/gpu_launch.h>

/* A device with kivi, raw and the core's own kernels. */
typedef struct split_room {
    gpu_rig rig; /* kivi */
    gpu_module raw, core;
    gpu_launchable soften;
} split_room;

/* As gpu_rig_begin. */
void split_room_begin(split_room *room, uint32_t architecture);
void split_room_end(split_room *room);

typedef struct split_side {
    const char *plugin; /* "kivi" or "raw" */
    const char *parameters;
    uint32_t dim;
} split_side;

typedef struct split_shape {
    split_side sides[2];
    uint32_t heads, group, positions;
    uint32_t block, blocks, span; /* tokens; references; of an item at most */
    uint32_t dtype;
    uint32_t ahead;  /* live tokens behind the newest query position */
    uint32_t window; /* 0 = all */
    float soft_cap;  /* 0 = none */
    bool center;
    bool whole; /* every token lives; else each block has a live range of its own, and some have none */
    bool accumulators; /* mix gets them, as before a finish kernel */
    bool wide;         /* every sixteenth channel takes the largest numbers of F16, of both signs */
    bool spoilt;      /* two raw sides: the token that only the newest position sees has keys that are NaN and
                          values that are infinite */
    uint32_t queries; /* GPU_ROWS_* */
} split_shape;

enum { SPLIT_SCORE, SPLIT_SOFTEN, SPLIT_MIX, SPLIT_LAUNCHES };

typedef struct split_scene {
    split_room *room;
    split_shape shape;
    kvant_test_codec *cpu[2];
    gpu_codec codecs[2];
    uint32_t tokens, rows, items; /* rows of an item */
    kvant_gpu_reference *references;
    float *decoded[2]; /* [tokens, heads, dim] */
    bool *live;        /* [tokens] */
    float *queries, *center;
    void *query_memory;
    gpu_rows query_rows;
    /* On the device, with what the launches left there. */
    gpu_address pools[2], query_at, center_at, references_at, state_at;
    size_t logit_stride, partial_stride, accumulator_stride;
    float *logits, *partials, *accumulators; /* [items, rows, stride] */
    ptx_counters counters[SPLIT_LAUNCHES];
} split_scene;

/* Positions of the sequence begin here, beyond 2^32. */
#define SPLIT_FIRST_POSITION UINT64_C(0x123456789)

void split_scene_open(split_scene *scene, split_room *room, const split_shape *shape, uint64_t seed);
void split_scene_attend(split_scene *scene);
void split_scene_compare(const split_scene *scene);
void split_scene_close(split_scene *scene);

#endif
