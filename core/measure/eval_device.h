/* Internal to core/measure: one layer of kvant_eval_run on a device.
 *
 * Device memory: the extents of both sides of the layer, its raw rows, of each side one batch of rows as they
 * were and as they are decoded (EVAL_DEVICE_BATCH bytes of floats, or one block or run), queries and outputs
 * of one call, and a work whose attention's scratch stays below EVAL_DEVICE_SCRATCH bytes if one query row
 * does not need more. Host memory: a batch of decoded rows of each side. All of it for each of at most
 * EVAL_DEVICE_THREADS layers at a time, which share the device under a lock: threads measure on the host what
 * it gave them. */
#ifndef KVANT_MEASURE_EVAL_DEVICE_H
#define KVANT_MEASURE_EVAL_DEVICE_H

#include "measure/attend_error.h"
#include "measure/eval_layer.h"

enum {
    EVAL_DEVICE_BATCH = 4 << 20,
    EVAL_DEVICE_BLOCKS = 64,
    EVAL_DEVICE_SCRATCH = 256 << 20,
    EVAL_DEVICE_THREADS = 4
};

/* What a device's arithmetic may add to a codec's attend_tolerance: sums of floats in its own order, its exp.
 * The same that `kvant check --gpu` grants. */
#define EVAL_DEVICE_ROUNDING 0x1p-18

typedef struct eval_device eval_device;

/* Opens both codecs of the layer there. `run_tokens`: of one decode, if a block is longer; `attends`: the
 * dump has what attention takes. Errors name the layer. */
kvant_status eval_device_open(const eval_job *job, uint32_t layer, uint32_t run_tokens, bool attends,
                              eval_device **device, kvant_diag *diag);
void eval_device_close(eval_device *device);

/* KVANT_DEVICE_ATTEND_*, and whether the driver compiled the code of a side's plugin. */
kvant_device_layer_info eval_device_describe(const eval_device *device);

/* Encodes every block of a side, once, and counts bytes, saturated numbers and seconds. `rows` are those of
 * the dump; replaced: some of their elements are not finite. Raw rows go to the device as well. */
kvant_status eval_device_encode(eval_device *device, uint32_t side, const kvant_view *rows, bool replaced,
                                kvant_eval_side *result, kvant_diag *diag);

/* Tokens [first, first + count) of a block that was encoded, as floats [count, kv_heads, head_dim] that live
 * until the next call for this side. Blocks are decoded some at a time; a call that goes on from the last one
 * may find its rows there already. Adds to *seconds what the device took. */
kvant_status eval_device_decode(eval_device *device, uint32_t side, uint32_t block, uint32_t first,
                                uint32_t count, const float **rows, double *seconds, kvant_diag *diag);

/* What the codecs and the device's arithmetic allow. */
attend_allowance eval_device_allowance(const eval_device *device);

/* Queries, of any dtype, in that of the geometry: what the device attends with. `rounded` is room for
 * queries->tokens rows of all heads, of at most 4 bytes an element. */
kvant_view eval_device_round_queries(const eval_device *device, const kvant_view *queries, void *rounded);

/* Attends with query rows of the geometry's dtype, the first of which is number `first` of the dump, over all
 * blocks and raw rows, and holds each call's outputs against `truth`, whose first row is `queries`' first. */
kvant_status eval_device_attend(eval_device *device, const kvant_view *queries, uint32_t first,
                                const attend_error *truth, attend_error_sums *sums, double *seconds,
                                kvant_diag *diag);

#endif
