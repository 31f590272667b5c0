/* The insides of eval_device.h. A side on the device:
 *
 *     extents   block b at b * stride
 *     input     rows of a batch, as the dump has them
 *     decoded   floats of a batch
 *     raw       the sinks' rows, then the tail's
 *
 * Everything happens in the default stream, and every call waits for it. Seconds are those of the wall
 * between a launch and the end of what it launched. */
#ifndef KVANT_MEASURE_EVAL_DEVICE_INTERNAL_H
#define KVANT_MEASURE_EVAL_DEVICE_INTERNAL_H

#include "measure/eval_device.h"

typedef struct eval_device_side {
    const kvant_codec *codec;
    const kvant_layout *layout;
    uint32_t heads, dim;
    uint64_t row_elements;                 /* of a token */
    uint64_t stride;                       /* of extents */
    uint64_t extents_at;                   /* aligned; within `extents` */
    uint64_t extents, input, decoded, raw; /* device memory; 0 = none */
    uint64_t *sizes;                       /* [blocks], as encode said */
    float *host;                           /* a batch of decoded rows */
    uint32_t block, first, blocks, count;  /* what is in it: tokens [first, first + count) of these blocks */
} eval_device_side;

struct eval_device {
    const eval_job *job;
    kvant_device *device;
    const kvant_layer_geometry *geometry;
    uint32_t layer, dtype;
    uint32_t batch;     /* blocks */
    uint32_t positions; /* query rows of a call; 0 = no attention */
    kvant_attention *attention;
    kvant_device_layer *on_device;
    kvant_device_work *work;
    kvant_device_layer_info info;
    eval_device_side sides[2];
    uint64_t queries, outputs, log_sum_exp; /* device memory */
    float *host_outputs, *host_log_sum_exp;
    /* Lists of one call; [batch], but for the references. */
    kvant_device_block *blocks;
    kvant_device_extent *extents;
    kvant_view *views;
    kvant_mutable_view *mutable_views;
    kvant_encode_report *reports;
    kvant_gpu_reference *references; /* [blocks] */
};

/* Puts layer and `what` in front of what the device said, unless it named the layer itself. */
kvant_status eval_device_blame(const eval_device *d, const char *what, kvant_status status, kvant_diag *diag);

/* Puts the kernels of one prepared call into the stream and waits; adds the time to *seconds. */
kvant_status eval_device_time(eval_device *d, uint32_t side,
                              kvant_status (*launch)(kvant_device_work *, uint32_t, void *, kvant_diag *),
                              double *seconds, kvant_diag *diag);

/* Dense rows in device memory. */
kvant_view eval_device_rows(uint64_t address, uint32_t dtype, uint32_t tokens, uint32_t heads, uint32_t dim);
kvant_mutable_view eval_device_floats(uint64_t address, uint32_t tokens, uint32_t heads, uint32_t dim);

#endif
