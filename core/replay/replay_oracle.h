/* The oracle of a replay: what a cache must answer, worked out from origins of tokens alone, with the codec
 * floor and the attention floor and nothing of the cache.
 *
 * Whatever is to be encoded is encoded again from raw rows; what was encoded lately is kept, in memory of a
 * fixed size. Everything is compared bit for bit. */
#ifndef KVANT_REPLAY_REPLAY_ORACLE_H
#define KVANT_REPLAY_REPLAY_ORACLE_H

#include "replay/replay_history.h"
#include "replay/replay_rows.h"

#include <kvant/kvant.h>

typedef struct kvant_replay_oracle kvant_replay_oracle;

/* `memory`: bytes for encoded blocks that are kept, at least 16 of them whatever it says. scale: of logits,
 * 0 = 1 / sqrt(key_dim) of each layer. rows must outlive it. */
kvant_status kvant_replay_oracle_open(const kvant_plan *plan, const kvant_replay_rows *rows, uint64_t memory,
                                      float scale, kvant_replay_oracle **oracle, kvant_diag *diag);
void kvant_replay_oracle_close(kvant_replay_oracle *oracle);

/* What was compared so far. */
typedef struct replay_compared {
    uint64_t rows;    /* keys and values of one token and layer, each one */
    uint64_t outputs; /* attention outputs of one query row and layer */
} replay_compared;
replay_compared kvant_replay_oracle_compared(const kvant_replay_oracle *oracle);

/* Reads the tokens at positions [first, end) through the cache, as far as queries of every layer may see
 * them, and compares. MISMATCH names layer, side, token, head and channel; others are what the cache
 * answers. */
kvant_status kvant_replay_check_rows(kvant_replay_oracle *oracle, const kvant_sequence *sequence,
                                     size_t scratch, const replay_history *history, uint64_t first,
                                     uint64_t end, kvant_diag *diag);

/* Length, tail and counts. MISMATCH. */
kvant_status kvant_replay_check_state(const kvant_sequence *sequence, const replay_history *history,
                                      kvant_diag *diag);

/* Rows of a step of one layer, and what the cache gave for its queries. */
typedef struct replay_attended {
    uint32_t layer;
    uint32_t count; /* rows of the step; 0 = none: the queries see what is there */
    uint32_t
        queries; /* of them, the last ones, that have a query; consecutive positions up to the last token */
    const void *keys; /* dense, of the geometry's dtype */
    const void *values;
    const float *query_rows;  /* [queries, q_heads, key_dim] */
    const float *outputs;     /* [queries, q_heads, value_dim] */
    const float *log_sum_exp; /* [queries, q_heads] */
} replay_attended;

/* Compares attention outputs. history: as when the step's queries were attended: without the step's own
 * tokens, with what its begin had encoded. MISMATCH names layer, token, head and channel. */
kvant_status kvant_replay_check_attention(kvant_replay_oracle *oracle, const replay_history *history,
                                          const replay_attended *attended, kvant_diag *diag);

/* Options for attending a layer as the oracle does. */
kvant_attention_options kvant_replay_attention_options(const kvant_replay_oracle *oracle, uint32_t layer);

#endif
