/* Internal to core/measure: one layer of kvant_eval_run. */
#ifndef KVANT_MEASURE_EVAL_LAYER_H
#define KVANT_MEASURE_EVAL_LAYER_H

#include "data/blocks.h"
#include "measure/eval_run.h"

#include <pthread.h>

typedef struct eval_job {
    const kvant_plan *plan;
    const kvant_dump *dump;
    kvant_plan_info info;
    kvant_blocks blocks;          /* of the main columns: recent = 0 */
    kvant_device *device;         /* NULL = the CPU */
    pthread_mutex_t *device_lock; /* who has it uses the device: its times are nobody else's */
} eval_job;

/* Bytes that eval_layer takes at once for this layer, without the codecs' own state; SIZE_MAX if they
 * overflow. */
size_t eval_layer_bytes(const eval_job *job, uint32_t layer);

/* result->heads is allocated where there is attention. */
kvant_status eval_layer(const eval_job *job, uint32_t layer, kvant_eval_layer *result, kvant_diag *diag);

/* Counts elements that are not finite and says where the first one is. */
typedef struct eval_bad {
    uint64_t count;
    uint32_t token, head, channel;
    float value;
} eval_bad;
eval_bad eval_scan(const kvant_view *rows);

/* What on_nonfinite = saturate makes of an element of this type. */
float eval_replacement(float x, uint32_t dtype);

#endif
