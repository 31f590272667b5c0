/* Attention in double precision over rows as a reader sees them: what a device's answers are compared
 * with. */
#ifndef KVANT_TEST_ATTENTION_DOUBLE_H
#define KVANT_TEST_ATTENTION_DOUBLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct attention_double {
    uint32_t tokens, heads, group, key_dim, value_dim;
    const float *rows[2];    /* keys, values: [tokens, heads, dim] */
    const bool *live;        /* [tokens] */
    const float *queries;    /* [positions, heads * group, key_dim] */
    const float *center;     /* [heads, key_dim], added to keys; NULL = none */
    uint64_t first_position; /* of token 0 */
    uint64_t query_position; /* of query position 0 */
    uint32_t window;         /* 0 = all */
    float scale, soft_cap;
} attention_double;

/* One row: `out` [value_dim], and `absolute` [value_dim], the sums of weights times |value|, which errors are
 * measured by. Returns the logarithm of the sum of exponentials: -infinity, and zeros, if it sees nothing. */
double attention_double_row(const attention_double *a, uint32_t position, uint32_t q_head, double *out,
                            double *absolute);

#endif
