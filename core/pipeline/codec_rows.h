/* Rows on their way into and out of a codec: the search for what is not finite, and what the host does to
 * keys. */
#ifndef KVANT_PIPELINE_CODEC_ROWS_H
#define KVANT_PIPELINE_CODEC_ROWS_H

#include "pipeline/plan.h"

/* The first element, in the order token, head, channel, that is NaN or infinite; false if there is none. */
typedef struct kvant_place {
    uint32_t token;
    uint32_t head;
    uint32_t channel;
} kvant_place;
bool kvant_find_not_finite(const kvant_view *rows, kvant_place *place);

/* A dense view [tokens, heads, head_dim] over memory of the caller's, to be written (kvant_rows_view reads).
 */
kvant_mutable_view kvant_dense_mutable_view(void *data, uint32_t dtype, uint32_t tokens, uint32_t heads,
                                            uint32_t head_dim);

/* Scratch of the two calls below. */
typedef struct kvant_row_scratch {
    float *row;   /* [head_dim] */
    float *turns; /* [rotary_dim]; NULL where nothing turns */
    double *base; /* [rotary_dim]; NULL where nothing turns */
} kvant_row_scratch;

/* Caller's rows -> rows for the codec, in the same dtype: NaN by 0 and infinities by the dtype's largest
 * number (counted in *replaced; NULL = all are finite), keys turned and centred in float, rounded once;
 * what then leaves the dtype's range becomes its largest number (counted in *saturated). */
void kvant_rows_to_codec(const kvant_plan_entry *entry, const kvant_view *from, const kvant_mutable_view *to,
                         uint64_t first_position, kvant_row_scratch scratch, uint64_t *replaced,
                         uint64_t *saturated);

/* The way back, from decoded floats: means added, keys turned, rounded once into the caller's dtype. Row 0
 * is the token at `position`, head 0 is first_head. */
void kvant_rows_from_codec(const kvant_plan_entry *entry, const kvant_view *from,
                           const kvant_mutable_view *to, uint64_t position, uint32_t first_head,
                           kvant_row_scratch scratch);

#endif
