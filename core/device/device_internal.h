/* Structs of core/device. See device.h and kvant/device.h. */
#ifndef KVANT_DEVICE_DEVICE_INTERNAL_H
#define KVANT_DEVICE_DEVICE_INTERNAL_H

#include "attend/attend.h"
#include "data/blocks.h"
#include "device/device.h"
#include "gpu/gpu_launch.h"
#include "pipeline/plan.h"

#include <kvant/kit/view.h>

#include <pthread.h>

enum { DEVICE_ALIGNMENT = 256, DEVICE_ROWS_SLOTS = 4, DEVICE_ROWS_JOBS = 256 };

/* ---- Device -------------------------------------------------------------------------------------------- */

/* Code of one plugin, or of the core. */
typedef struct device_module {
    struct device_module *next;
    const kvant_plugin *plugin; /* NULL = the core */
    gpu_module module;
} device_module;

/* A list of row jobs on its way: page-locked memory and the device's, free again when `done` has passed. */
typedef struct device_rows_slot {
    unsigned char *pinned;
    gpu_address list;
    gpu_event done;
    bool used;
} device_rows_slot;

struct kvant_device {
    gpu_device gpu;
    device_module core;
    gpu_launchable rows;
    gpu_launchable merge;
    pthread_mutex_t lock; /* guards what follows */
    device_module *modules;
    device_rows_slot slots[DEVICE_ROWS_SLOTS];
    uint32_t next_slot;
};

/* The plugin's code there, loaded at the first call. */
kvant_status device_module_find(kvant_device *device, const kvant_plugin *plugin, const gpu_module **module,
                                kvant_diag *diag);

/* ---- Layer --------------------------------------------------------------------------------------------- */

typedef struct device_side {
    const kvant_plan_entry *entry;
    const kvant_codec *codec; /* the host's */
    gpu_codec gpu;
    bool is_open;
    bool changes;             /* rows are turned or centred on their way */
    bool classes;             /* the codec wants them */
    bool passes;              /* rows may go to encode through a copy: changed, stand-ins, replaced */
    gpu_address center;       /* float [kv_heads, head_dim]; 0 = none */
    gpu_address turn_offsets; /* double [64, pairs, 2]; 0 = none */
    uint32_t pairs;
    uint64_t row_elements; /* of a block */
} device_side;

struct kvant_device_layer {
    kvant_device *device;
    const kvant_attention *attention;
    device_side sides[2];
    uint32_t attends; /* KVANT_DEVICE_ATTEND_* */
    /* Attention on rows by the core: raw runs in the geometry's dtype, and decoded blocks as floats. */
    gpu_launchable attend_rows;
    gpu_launchable soften;
    gpu_address rows_state;  /* core_attend_state */
    gpu_address float_state; /* likewise, dtype F32 */
};

/* ---- Work ---------------------------------------------------------------------------------------------- */

/* A list in device memory, and two copies of it in page-locked memory that take turns: a copy is written to
 * when what was copied from it last has arrived. */
typedef struct device_list {
    gpu_address address;
    unsigned char *pinned[2];
    gpu_event arrived[2];
    bool used[2];
    uint32_t turn;
    uint64_t bytes;
} device_list;

/* Offsets in the list of encode jobs of a side. Each begins on 256 bytes. */
typedef struct device_encode_places {
    uint64_t head;       /* core_rows_head, then uint32_t: encode jobs */
    uint64_t statuses;   /* device_encode_status [blocks] */
    uint64_t jobs;       /* kvant_gpu_encode_job [blocks] */
    uint64_t row_jobs;   /* core_rows_job [2 * blocks] */
    uint64_t classes;    /* [blocks, block_tokens] */
    uint64_t turn_bases; /* double [blocks, multiples, pairs, 2] */
    uint64_t bytes;
    uint64_t scratch_codec; /* in the scratch */
    uint64_t scratch_rows;  /* copies: [blocks] of row_bytes */
    uint64_t row_bytes;
    uint64_t scratch_bytes;
} device_encode_places;

typedef struct device_decode_places {
    uint64_t head; /* core_rows_head, then uint32_t: decode jobs */
    uint64_t jobs;
    uint64_t row_jobs;
    uint64_t turn_bases;
    uint64_t bytes;
    uint64_t scratch_codec;
    uint64_t scratch_rows; /* decoded floats that are changed on their way out */
    uint64_t row_bytes;
    uint64_t scratch_bytes;
} device_decode_places;

/* How a sequence is cut. Items of one (sequence, kv head) have partials one after another: those of its spans
 * of references, then one of its raw runs. */
enum { DEVICE_ITEM_ROWS = 64, DEVICE_SPAN_TOKENS = 512 };

typedef struct device_attend_places {
    uint64_t heads[2]; /* core_rows_head: of queries that become floats, of keys that are turned or moved */
    uint64_t counts;   /* uint32_t [DEVICE_COUNTS] */
    uint64_t layer;    /* kvant_gpu_layer */
    uint64_t coded_items; /* kvant_gpu_item [coded_room]: on codes, or on decoded blocks */
    uint64_t raw_items;   /* kvant_gpu_item [raw_room] */
    uint64_t merges;      /* core_merge_job [merge_room] */
    uint64_t references;  /* kvant_gpu_reference [references] */
    uint64_t runs;        /* kvant_gpu_run [runs] */
    uint64_t tile_runs;   /* kvant_gpu_run [references]: decoded blocks */
    uint64_t decodes[2];  /* kvant_gpu_decode_job [references] */
    uint64_t query_jobs;  /* core_rows_job [sequences] */
    uint64_t key_jobs;    /* core_rows_job [references] */
    uint64_t turn_bases;  /* double [references, multiples, pairs, 2] */
    uint64_t bytes;
    /* In the scratch. */
    uint64_t partials; /* float [partial_rows, partial_stride] */
    uint64_t logits;   /* float [logit_room] */
    uint64_t tiles[2]; /* float [references, block_tokens, kv_heads, dim] */
    uint64_t decoded;  /* keys before they are changed, likewise */
    uint64_t queries;  /* float [positions, q_heads, key_dim] */
    uint64_t codec[2];
    uint64_t scratch_bytes;
    uint64_t partial_rows, logit_room;
    uint32_t coded_room, raw_room, merge_room;
    uint32_t partial_stride; /* floats */
} device_attend_places;

enum { DEVICE_COUNT_CODED, DEVICE_COUNT_RAW, DEVICE_COUNT_MERGES, DEVICE_COUNT_DECODES, DEVICE_COUNTS };

struct kvant_device_work {
    kvant_device_layer *layer;
    kvant_device_limits limits; /* with defaults filled in */
    uint64_t scratch_bytes;
    gpu_address scratch;
    gpu_address own_scratch; /* 0 = the caller's */
    device_encode_places encode_at[2];
    device_decode_places decode_at[2];
    device_attend_places attend_at;
    device_list encode[2], decode[2], attend;
    uint32_t encoded[2]; /* blocks of the last prepare */
};

/* Positions of one item: as many as make DEVICE_ITEM_ROWS query rows. */
uint32_t device_item_positions(const kvant_device_layer *layer);

/* References of a span of a sequence with that many positions. */
uint64_t device_span_references(const kvant_device_work *work, uint32_t positions);

/* The next copy of a list to write to, when it is free. */
kvant_status device_list_begin(kvant_device *device, device_list *list, unsigned char **pinned,
                               kvant_diag *diag);
/* Part of a list that was written. */
typedef struct device_segment {
    uint64_t at, bytes;
} device_segment;

/* Copies them in stream order. */
kvant_status device_list_end(kvant_device *device, device_list *list, const device_segment *segments,
                             uint32_t count, void *stream, kvant_diag *diag);

/* ---- Rows ---------------------------------------------------------------------------------------------- */

/* Doubles of turn bases that a block of that many tokens needs at most. */
uint64_t device_turn_doubles(const device_side *side, uint32_t tokens);

/* Fills the bases of `tokens` positions from `first` on. */
void device_turn_bases(const device_side *side, uint64_t first, uint32_t tokens, double *bases);

/* The flags of rows on their way to the codec, and back. */
uint32_t device_flags_to_codec(const device_side *side, bool replaces);
uint32_t device_flags_from_codec(const device_side *side);

/* What does not depend on the job: dtypes, turn, centre. */
core_rows_job device_rows_job(const device_side *side, uint32_t flags);

/* Units of the largest job of that many tokens. */
uint32_t device_rows_units(uint32_t tokens);

/* ---- Arguments ----------------------------------------------------------------------------------------- */

/* `at`: what stands before the message, "block 3". */
kvant_status device_check_rows(const device_side *side, const kvant_view *rows, uint32_t tokens,
                               const char *at, kvant_diag *diag);
const char *device_side_name(uint32_t side);

#endif
