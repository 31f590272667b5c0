/* A sequence whose keys and values lie on the device, coded and raw, and query rows that attend to it. */
#ifndef KVANT_CHECK_GPU_SCENE_H
#define KVANT_CHECK_GPU_SCENE_H

#include "check_gpu.h"

/* Of sums of some hundred float32 products, exp and tanh, in proportion to the sum of absolute products. */
#define CHECK_GPU_ROUNDING 0x1p-18

/* Keys or values. */
typedef struct check_scene_side {
    check_subject *subject; /* the context's, or `own`; NULL = this side is not there */
    check_subject own;
    check_case partner; /* what `own` was opened for */
    gpu_codec codec;
    bool is_open;
    uint32_t dim;
    check_data data; /* family of its rows */
    float *raw;      /* [tokens, heads, dim], as they were given to encode */
    float *seen;     /* the same as attention sees them: decoded or raw, turned */
    uint32_t *index; /* [blocks] of an extent in the pool */
    uint32_t *step;  /* [blocks] of its size */
    size_t stride;   /* of extents in the pool */
    check_room pool;
    check_rows rows[2]; /* raw runs: the first tokens, those behind the last block */
    check_room on_device[2];
} check_scene_side;

typedef struct check_scene {
    check_context *context;
    check_scene_side side[2]; /* KVANT_SIDE_* */
    uint32_t heads, group, positions, block, tokens, blocks;
    uint32_t sinks, window, span; /* raw tokens at the front; 0 = all; references of an item */
    uint32_t spans, items, rows;  /* items = spans * heads; rows of an item */
    uint64_t first_position;
    float soft_cap, scale;
    uint32_t *live_first, *live_count; /* [blocks] */
    bool *lives;                       /* [tokens] */
    float *center;                     /* [heads, key dim]; NULL = none */
    float *queries;                    /* [positions, heads * group, key dim] */
    check_rows query_rows;
    check_room queries_room, center_room, references, runs, first_turns, offset_turns;
    size_t partial_stride, item_stride; /* floats */
} check_scene;

typedef struct check_scene_kind {
    bool pair;      /* both sides, and the kernel that attends on them; else the configuration's side alone */
    bool arbitrary; /* extents hold random bytes */
} check_scene_kind;

/* Makes the scene that the configuration describes. False: the codec has no kernel that attends on a pair of
 * which the configuration is one side, or something failed and was noted. */
bool check_scene_create(check_context *context, check_scene *scene, check_scene_kind kind);
void check_scene_free(check_scene *scene);

/* Whether the row at this position of the step sees the token; whether the token is one of an extent. */
bool check_scene_sees(const check_scene *scene, uint32_t position, uint32_t token);
bool check_scene_is_coded(const check_scene *scene, uint32_t token);

/* The logit of a token before the soft cap, and the same of absolute products. */
double check_scene_logit(const check_scene *scene, uint32_t position, uint32_t q_head, uint32_t token,
                         double *absolute);

/* What all jobs of a launch name; of an item, all but what it writes. */
kvant_gpu_layer check_scene_layer(const check_scene *scene);
kvant_gpu_item check_scene_item(const check_scene *scene, uint32_t number);

/* Where token `token` of head `head` stands in the rows of a side. */
const float *check_scene_row(const check_scene *scene, uint32_t side, uint32_t token, uint32_t head);

/* Attends: partials [items][rows][partial_stride], an item every item_stride floats. `narrow`: with one block
 * of threads, items in another order. */
void check_scene_run(check_scene *scene, bool narrow, float *partials);

/* Merges partials in double precision and compares with attention on what the CPU decoded. */
void check_scene_compare(const check_scene *scene, const float *partials);

#endif
