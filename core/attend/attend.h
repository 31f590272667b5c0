/* The attention floor from within. How a call is cut up:
 *
 *     call     sequences of one layer
 *     unit     some query rows of one sequence, for one kv head: all rows of its group at up to 64 / group
 *              positions, row = position * group + query head within the group
 *     span     consecutive tokens of the sequence whose positions have the same quotient by span_tokens
 *              (2048): references and raw runs in the order of their arrays, wherever the quotient changes
 *     item     unit x span: its softmax and its sums, a partial; independent of all others
 *     step     within a span, tokens with the same quotient by step_tokens (256, or one block): scored,
 *              weighed against the largest logit so far, mixed
 *
 * Partials of a unit are merged in the order of its spans. Positions alone say where spans, steps and tiles
 * begin, so that a row's numbers depend on its own tokens, never on what else is in the call nor on who
 * computes which item. */
#ifndef KVANT_ATTEND_ATTEND_H
#define KVANT_ATTEND_ATTEND_H

#include "attend/attend_kernels.h"

#include <kvant/kvant.h>

#include <stdbool.h>

enum {
    KVANT_ATTEND_TILE = 64,   /* tokens that are decoded at a time */
    KVANT_ATTEND_STEP = 256,  /* tokens of a step, unless a block has more */
    KVANT_ATTEND_SPAN = 2048, /* tokens of a span, likewise */
    KVANT_ATTEND_ROWS = 64,   /* query rows of a unit, unless a group has more heads */
    KVANT_ATTEND_THREADS_MAX = 1024
};

struct kvant_attention {
    kvant_codec *codecs[2];
    const kvant_row *rows[2];
    const void *states[2];
    const kvant_attend *codes[2]; /* NULL = this side is decoded */
    const kvant_attend_kernels *kernels;
    const float *center;      /* [kv_heads, key_dim]; NULL = logits of codes lack nothing */
    const kvant_rope *rope;   /* NULL = nothing turns here */
    const double *turn_table; /* see pipeline/turns.h; NULL = nothing turns here */
    /* For a key codec that attends on codes before RoPE, else NULL: turns of a block's offsets,
     * [block_tokens, pairs, 2], and of multiples of 64 and of 4096, [2, 64, pairs, 2]. */
    float *offset_turns;
    double *coarse_turns;
    bool turns_raw;     /* raw keys are before RoPE */
    bool turns_decoded; /* decoded keys are */
    uint32_t pairs;     /* of a turn */
    uint32_t layer, dtype, block_tokens, sinks;
    uint32_t kv_heads, q_heads, group;
    uint32_t key_dim, value_dim;
    uint32_t key_width, value_width; /* rounded up to lanes */
    uint32_t mix_width;              /* floats of an accumulator in the codec's space, rounded up; 0 = none */
    uint32_t step_extents, step_tokens, span_tokens;
};

/* ---- Scratch ------------------------------------------------------------------------------------------- */

/* Softmax and sums of a unit over some tokens. A row that saw none has largest = -infinity and sum = 0. */
typedef struct attend_partial {
    float *largest; /* [rows] */
    float *sum;     /* [rows], of exp(logit - largest) */
    float *coded;   /* [rows, mix_width], in the value codec's space */
    float *plain;   /* [rows, value_width] */
} attend_partial;

/* What a unit keeps from its first item to its last. */
typedef struct attend_unit_state {
    float *queries;          /* [rows, key_width], logit scale in */
    unsigned char *prepared; /* [rows] of query_state_bytes */
    float *bias;             /* [rows]: query . mean */
    attend_partial total;
} attend_unit_state;

/* Tokens of one reference, or of one raw run: those at the positions [position, position + hi), of which [lo,
 * hi) live. */
typedef struct attend_segment {
    const kvant_reference *reference; /* NULL = raw */
    const kvant_raw_run *run;
    uint32_t first; /* token of the run that is token 0 here */
    uint32_t lo, hi;
    uint64_t position;
    uint32_t seen_from, seen_to; /* what some row of the unit sees: reads stay within */
} attend_segment;

/* One thread's. */
typedef struct attend_work {
    float *logits;  /* [rows, step_tokens]; weights later */
    float *tile;    /* [TILE, key_width or value_width] */
    float *outputs; /* [rows, value_width] */
    uint32_t *seen; /* [step_extents, positions, 2]: tokens [from, to) of a segment that a position sees */
    attend_segment *segments; /* [step_extents] */
    kvant_extent *extents;    /* [step_extents] */
    float *first_turns;       /* [step_extents, pairs, 2] */
    float *turns;             /* [pairs, 2] */
    double *base;             /* [pairs, 2] */
    double *first_base;       /* [pairs, 2]: see attend_turns.c */
    unsigned char *plugin;
} attend_work;

/* Where everything lies in a call's scratch: a pure function of the layer, threads and rows. */
typedef struct attend_room {
    uint32_t threads, positions, rows; /* of a unit at most */
    uint32_t slots;                    /* items of a wave, and partials */
    uint32_t states;                   /* units that are under way at once, two waves' */
    size_t slots_at, slot_bytes;
    size_t states_at, state_bytes;
    size_t works_at, work_bytes;
    size_t waves_at; /* the items and units of two waves, and the marks of a loop */
    size_t total;
} attend_room;

/* False if it does not fit into the address space. */
bool attend_room_make(const kvant_attention *a, uint32_t threads, uint32_t rows, attend_room *room);
attend_partial attend_room_slot(const kvant_attention *a, const attend_room *room, void *scratch,
                                uint32_t slot);
attend_unit_state attend_room_state(const kvant_attention *a, const attend_room *room, void *scratch,
                                    uint64_t unit);
attend_work attend_room_work(const kvant_attention *a, const attend_room *room, void *scratch,
                             uint32_t thread);

/* ---- Pieces -------------------------------------------------------------------------------------------- */

/* A place in a sequence: references, then the tokens of the runs. */
typedef struct attend_place {
    uint32_t reference; /* reference_count = in the runs */
    uint32_t run;
    uint32_t token; /* of the run */
} attend_place;

typedef struct attend_unit {
    const kvant_attention_sequence *sequence;
    uint64_t number; /* in the call; its state lies at number % states */
    uint32_t head;
    uint32_t first_row, positions;
    uint64_t from, to;               /* what all of its rows see lies between */
    uint32_t item_first, item_count; /* of the wave */
    bool begins, ends;               /* in this wave */
    kvant_status status;
    const char *call; /* the plugin's that failed */
} attend_unit;

typedef struct attend_item {
    uint32_t unit; /* of the wave */
    attend_place begin, end;
    kvant_status status;
    const char *call;
} attend_item;

/* The first place with tokens, or the end. */
attend_place attend_place_first(const kvant_attention_sequence *s);
/* The next reference, or the next multiple of `period` in a run, or the next run. */
attend_place attend_place_next(const kvant_attention_sequence *s, attend_place place, uint32_t period);
bool attend_place_is(attend_place x, attend_place y);
bool attend_place_is_end(const kvant_attention_sequence *s, attend_place place);
/* The end of the span that begins at a place that is not the end. */
attend_place attend_span_end(const kvant_attention *a, const kvant_attention_sequence *s, attend_place begin);
/* Whether some token of [begin, end) lies in the unit's range. */
bool attend_span_is_seen(const kvant_attention *a, const attend_unit *unit, attend_place begin,
                         attend_place end);

void attend_partial_clear(const kvant_attention *a, const attend_partial *p, uint32_t rows);

/* Loads and prepares the queries, and sets the total to nothing. */
kvant_status attend_unit_begin(const kvant_attention *a, attend_unit *unit, float scale,
                               const attend_unit_state *state, const attend_work *work);
/* The item's partial. */
kvant_status attend_item_run(const kvant_attention *a, const attend_unit *unit, attend_item *item,
                             float soft_cap, const attend_unit_state *state, const attend_work *work,
                             const attend_partial *partial);
void attend_unit_merge(const kvant_attention *a, const attend_unit *unit, const attend_unit_state *state,
                       const attend_partial *partial);
/* Writes outputs and log-sum-exps. */
kvant_status attend_unit_end(const kvant_attention *a, attend_unit *unit, const attend_unit_state *state,
                             const attend_work *work);

/* ---- Turns --------------------------------------------------------------------------------------------- */

/* Fills offset_turns and coarse_turns. */
kvant_status attend_turns_make(kvant_attention *a);

/* first_turns of kvant_score_args for one extent. `base` holds the turns of *multiple; UINT64_MAX = nothing
 * yet. */
void attend_turns_first(const kvant_attention *a, uint64_t position, uint64_t *multiple, double *base,
                        float *turns);

/* ---- Arguments ----------------------------------------------------------------------------------------- */

/* The sequence, walked by the first one's struct_size. */
const kvant_attention_sequence *attend_sequence_at(const kvant_attention_sequence *sequences, uint32_t index);

/* After the last kv head that a call serves. */
uint32_t attend_heads_end(const kvant_attention *a, const kvant_attention_options *options);

kvant_status attend_check(const kvant_attention *a, const kvant_attention_sequence *sequences, uint32_t count,
                          const kvant_attention_options *options, kvant_diag *diag);

#endif
