/* A resolved pipeline: one row per layer and side. Everything it points to is its own, so that pipeline
 * and geometry may go; codecs opened from it keep it alive. */
#ifndef KVANT_PIPELINE_PLAN_H
#define KVANT_PIPELINE_PLAN_H

#include <kvant/kvant.h>

#include "base/text.h"
#include "data/artifact.h"
#include "pipeline/arena.h"
#include "pipeline/pipeline.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { KVANT_HEADS_MAX = 65536, KVANT_DIM_MAX = 65536 };

/* Where the caller's keys and the codec's lie on different sides of RoPE. */
enum {
    KVANT_TURN_NONE = 0,
    KVANT_TURN_APPLY = 1 /* before encode */,
    KVANT_TURN_UNDO = 2 /* before encode */
};

/* A plan's own copy of a RoPE. Distinct ones are numbered from 0 in the order of their first layer; layers
 * that turn alike share one. */
typedef struct kvant_plan_rope {
    kvant_rope rope; /* what layers point to; first */
    uint32_t number;
} kvant_plan_rope;

typedef struct kvant_plan_entry {
    kvant_row row;
    kvant_setup setup;
    kvant_layout layout;
    const float *center; /* [kv_heads, head_dim]: subtracted from what is encoded; NULL = nothing is */
    uint32_t turn;       /* KVANT_TURN_* */
    /* See turns.h; of keys that the caller has or the codec keeps before RoPE, else NULL. Rows that turn
     * alike share one. */
    const double *turn_table;
    bool centers;        /* rows are centred; in a plan to learn from, `center` is not there yet */
    bool lacks_artifact; /* in a plan to learn from: plan() answered MISSING, so the layout has no sizes */
} kvant_plan_entry;

struct kvant_plan {
    struct kvant_plan *self; /* for codecs, which hold a reference to a plan that they got as const */
    atomic_uint references;
    kvant_arena arena;
    kvant_artifact *artifact; /* NULL = none */
    kvant_geometry geometry;
    const char *name;
    uint32_t block_tokens;
    uint32_t sinks;
    uint32_t recent;
    uint32_t key_center;
    uint32_t on_nonfinite;
    bool learns;               /* to learn an artifact with: see kvant_pipeline_resolve_to_learn */
    kvant_plan_entry *entries; /* [layer_count][2] */
    const char *canonical;     /* NULL without a model */
    uint8_t fingerprint[32];
};

/* What calibration resolves: the pipeline without its artifact, whether there is a file of that name or
 * not. Rows have no tensors, plugins may answer MISSING, centred keys have no means yet, and there is no
 * fingerprint. Not for codecs. */
kvant_status kvant_pipeline_resolve_to_learn(const kvant_pipeline *pipeline, const kvant_geometry *geometry,
                                             kvant_plan **plan, kvant_diag *diag);

/* As kvant_pipeline_resolve, with an artifact that takes the place of the one that the pipeline names, if
 * any. The plan takes it over, whatever comes of it. */
kvant_status kvant_pipeline_resolve_with(const kvant_pipeline *pipeline, const kvant_geometry *geometry,
                                         kvant_artifact *artifact, kvant_plan **plan, kvant_diag *diag);

/* The layer, walked by the first one's struct_size. */
const kvant_layer_geometry *kvant_layer_at(const kvant_geometry *geometry, uint32_t layer);

/* Checks a caller's geometry (counts, dims, RoPE, limits) and copies it into the plan. */
kvant_status kvant_plan_take_geometry(kvant_plan *plan, const kvant_geometry *geometry, kvant_diag *diag);

/* Refuses a layout that contradicts plugin.h or itself: PLUGIN_BROKEN, with the lie. `setup` is what it
 * answers. */
kvant_status kvant_layout_check(const kvant_plugin *plugin, const kvant_setup *setup,
                                const kvant_layout *layout, kvant_diag *diag);

/* A codec as canonical text, as the fingerprint has it: format id and version, `"FMT " version=1`, then
 * ` bits=4 group=32 ...`, the parameters that change bytes and have none of the `unless` flags
 * (KVANT_PARAM_*), in the order of their names. */
void kvant_plan_put_format(kvant_text *text, const kvant_descriptor *descriptor);
void kvant_plan_put_values(kvant_text *text, const kvant_row *row, uint32_t unless);

/* What a row's tensors are learned for, as an artifact's metadata "layers.<l>.<side>.codec" have it: format,
 * for keys whether they are centred, parameters. Uses row->plugin and row->setup. */
void kvant_plan_put_learned(kvant_text *text, const kvant_plan *plan, const kvant_row *row);

/* Refuses tensors that the artifact says were learned for another codec, or for the same one with other
 * parameters. */
kvant_status kvant_plan_check_learned(const kvant_plan *plan, const kvant_plugin *plugin,
                                      const kvant_setup *setup, kvant_diag *diag);

/* Finds the center of an after-RoPE key row in the artifact. */
kvant_status kvant_plan_find_center(kvant_plan *plan, kvant_plan_entry *entry, kvant_diag *diag);

/* Writes canonical text and fingerprint; without a model does nothing. */
kvant_status kvant_plan_hash(kvant_plan *plan, kvant_diag *diag);

/* One more owner. kvant_plan_free is one less. */
kvant_plan *kvant_plan_hold(const kvant_plan *plan);

#endif
