/* How far somebody else's attention is from attention over the decoded rows in double precision, and how far
 * it may be: what holds a device's kernels to what codecs promise.
 *
 * Of a query row that sees tokens t with logits x_t, weights p_t = softmax(x)_t, and decoded values v_t:
 *
 *     m          largest sum over channels of |scale q k_t|
 *     log-sum-exp may differ by   5e-7 (1 + m)                            float, as kvant.h says
 *                              +  key tolerance * ||absolute logits||     L2, of tokens that are codes
 *     output, L2, may differ by   2e-6 (1 + m) sum p_t ||v_t||
 *                              +  2 key tolerance ||absolute logits|| sum p_t ||v_t||
 *                              +  value tolerance ||sum p_t |v_t| ||
 *
 * The tolerances are those of whoever attends: layout.attend_tolerance of both codecs where it is on codes,
 * and what its own arithmetic adds. An error of logits moves a weight by as much of itself, before and after
 * it is divided by the sum: hence the 2.
 *
 * Fed with the same tiles as kvant_distortion, of which it sees the coded rows. */
#ifndef KVANT_MEASURE_ATTEND_ERROR_H
#define KVANT_MEASURE_ATTEND_ERROR_H

#include "measure/attention.h"

typedef struct attend_error attend_error;

/* What is allowed beside the rounding of floats. */
typedef struct attend_allowance {
    double tolerance[2]; /* of the key's, the value's codec */
    const float *center; /* [kv_heads, key_dim]: a codec's logits are those of keys without these, and the
                            query times these is added; NULL = none */
} attend_allowance;

/* Over query rows of one head each. Zeroed by the caller. */
typedef struct attend_error_sums {
    uint64_t rows;
    double squares;     /* sum of squares of ||o - o'|| / ||o|| */
    double largest;     /* of them */
    double log_sum_exp; /* largest absolute difference */
    double of_allowed;  /* largest quotient of an error and what is allowed, log-sum-exps included; infinite
                           where a number is NaN */
} attend_error_sums;

size_t attend_error_bytes(const kvant_distortion_shape *shape);

/* queries: [rows, q_heads, key_dim], copied. shape->value_dim is not 0; the scale is rounded to float, as
 * kernels have it. allowance->center outlives the object. NULL where memory ends. */
attend_error *attend_error_new(const kvant_distortion_shape *shape, const kvant_view *queries,
                               const attend_allowance *allowance);
void attend_error_free(attend_error *e);

/* The first `raw` tokens of the tile are raw. */
void attend_error_add(attend_error *e, const kvant_distortion_tile *tile, uint32_t raw);

/* Rows [first, first + count) of what is to be held against it: outputs [count, q_heads, value_dim] and
 * log-sum-exps [count, q_heads]. */
void attend_error_compare(const attend_error *e, uint32_t first, uint32_t count, const float *outputs,
                          const float *log_sum_exp, attend_error_sums *sums);

#endif
