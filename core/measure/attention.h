/* What quantization does to the output of attention, its distortion: exact and coded attention of the same
 * queries, side by side.
 *
 * For one layer, query row r of head h (position query_start + r, logit scale s) sees the tokens t at or
 * before its position, within the layer's window:
 *
 *     o = sum_t p_t v_t,    p = softmax_t(s q.k_t)      query head h reads kv head h / (q_heads / kv_heads)
 *
 * in double precision, once with the rows as they were and four times with decoded ones: keys only, values
 * only, both, and both with the recent window raw. An error is ||o - o^|| / ||o||, the norms over all rows
 * (and heads) that it speaks of. The row divergence is KL(p || p^) in nats between exact and coded softmax
 * rows.
 *
 * Rows come in tiles of tokens, any number of tiles in ascending order, and are forgotten at once: the
 * softmax runs along (Milakov and Gimelshein, arXiv 1805.02867), so memory depends on the queries and never
 * on the context.
 */
#ifndef KVANT_MEASURE_ATTENTION_H
#define KVANT_MEASURE_ATTENTION_H

#include <kvant/types.h>

enum { KVANT_DISTORTION_TILE = 64 }; /* tokens of a tile at most */

typedef struct kvant_distortion_shape {
    uint32_t q_heads;
    uint32_t kv_heads;
    uint32_t key_dim;
    uint32_t value_dim; /* 0 = no values: only the divergence is measured */
    uint32_t window;    /* newest tokens that a query sees; 0 = all */
    uint32_t rows;      /* query rows of each head */
    uint64_t query_start;
    double scale;
} kvant_distortion_shape;

typedef struct kvant_distortion kvant_distortion;

/* Sums of one query head over its rows. Zeroed by the caller; kvant_distortion_finish adds to them, so that a
 * long series of query rows may be measured piece by piece with the same result. */
typedef struct kvant_distortion_sums {
    double output;   /* sum ||o||^2 */
    double key_only; /* sum ||o - o^||^2 */
    double value_only;
    double both;
    double recent;
    double divergence;
    double max_divergence;
    uint64_t rows;
} kvant_distortion_sums;

/* Tokens of one kv head. `coded_keys == keys` and `coded_values == values` say that the tile is raw. */
typedef struct kvant_distortion_tile {
    uint32_t kv_head;
    uint32_t tokens;
    uint64_t first_position;
    uint64_t
        coded_from; /* for `recent`: queries from this position on see the tile as codes, earlier ones raw */
    const double *keys; /* [tokens, key_dim] */
    const double *coded_keys;
    const double *values; /* [tokens, value_dim]; NULL where value_dim is 0 */
    const double *coded_values;
} kvant_distortion_tile;

/* Bytes that an object of this shape takes: linear in rows. */
size_t kvant_distortion_bytes(const kvant_distortion_shape *shape);

/* queries: [rows, q_heads, key_dim], copied; finite. NULL where memory ends. */
kvant_distortion *kvant_distortion_new(const kvant_distortion_shape *shape, const kvant_view *queries);
void kvant_distortion_free(kvant_distortion *attention);

void kvant_distortion_add(kvant_distortion *attention, const kvant_distortion_tile *tile);

/* The tokens [*first, *end) of the tile that query row `row` sees: none where *first >= *end. */
static inline void kvant_distortion_seen(const kvant_distortion_shape *shape,
                                         const kvant_distortion_tile *tile, uint32_t row, uint32_t *first,
                                         uint32_t *end) {
    uint64_t position = shape->query_start + row;
    *first = *end = 0;
    if (tile->first_position > position) return;
    uint64_t visible = position - tile->first_position + 1; /* tokens of the tile at or before the query */
    *end = visible < tile->tokens ? (uint32_t)visible : tile->tokens;
    if (shape->window == 0 || visible <= shape->window) return;
    *first = visible - shape->window < *end ? (uint32_t)(visible - shape->window) : *end;
}

/* Adds the errors of every row to sums[q_heads]. A row that saw no token is left out. */
void kvant_distortion_finish(const kvant_distortion *attention, kvant_distortion_sums *sums);

/* Relative errors of a head, or of a layer: `count` heads together. */
typedef struct kvant_distortion_error {
    double key_only, value_only, both, recent; /* NaN where there is no row */
    double divergence, max_divergence;         /* mean and largest of all rows */
} kvant_distortion_error;
kvant_distortion_error kvant_distortion_errors(const kvant_distortion_sums *sums, uint32_t count);

#endif
