/* The rows of one text and layer, made ready for one codec: kvant_sample of plugin.h. */
#ifndef KVANT_CALIBRATE_SAMPLE_H
#define KVANT_CALIBRATE_SAMPLE_H

#include "calibrate/calibrate_texts.h"
#include "pipeline/plan.h"

/* Holds the memory of one sample at a time; starts as zeros. */
typedef struct calibrate_sample {
    kvant_sample sample; /* what a plugin gets; points into this struct and the dump */
    kvant_view views[3]; /* keys, values, queries */
    kvant_array *importance;
    void *keys; /* changed rows: turned, centred */
    size_t keys_size;
    const kvant_rope *rope; /* of which `table` is (core/pipeline/turns.h) */
    double *table;
} calibrate_sample;

/* Fills it for the codec that codes the sides of this layer for which codes[side] is true. Keys that the
 * codec codes come as encode gets them: on its side of RoPE, centred, in the dump's dtype. Keys that another
 * codec codes are context: after RoPE, not centred. */
kvant_status calibrate_sample_fill(calibrate_sample *sample, const kvant_plan *plan,
                                   const calibrate_text *text, uint32_t text_index, uint32_t layer,
                                   const bool codes[2], kvant_diag *diag);
void calibrate_sample_free(calibrate_sample *sample);

/* Means per kv head and channel of the keys of one layer, over all texts, without sinks, on the side of RoPE
 * on which the row stores them: center[kv_heads, key_dim]. Sums in double, text by text and token by token.
 */
kvant_status calibrate_center(const calibrate_texts *texts, const kvant_plan_entry *entry, uint32_t sinks,
                              float *center, kvant_diag *diag);

#endif
