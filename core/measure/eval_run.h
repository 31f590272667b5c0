/* One pipeline measured on one dump: what `kvant eval` is made of.
 *
 * Every whole block of every layer goes through the real codec floor: kvant_codec_encode to an extent, and
 * kvant_codec_decode of all of that extent. Quality is that of coded tokens only; attention sees decoded rows
 * where tokens were coded and the dump's own rows elsewhere (sinks, and the tail that fills no block). The
 * pipeline's `recent` window plays no part in this, since raw rows flatter every codec, but in one number of
 * its own: `attention.recent`, in which a query at position p sees a block as codes only if all its tokens
 * are older than the max(recent, 1) newest of the p + 1 tokens there are, as a cache that grows token by
 * token would have it.
 *
 * Memory: the dump is mapped and not copied; besides it a run takes at most KVANT_EVAL_MEMORY bytes for its
 * threads, tables that codecs keep not counted. Layers are shared out among threads, fewer than asked for
 * where memory is short, and results do not depend on their number.
 *
 * With a device, blocks are encoded and decoded there, and every number above is the one that the CPU gives,
 * since bytes and floats are. Beside them the device's own attention over the extents and raw rows, for the
 * dump's queries, is held against attention in double precision over the decoded rows. Nothing is done by the
 * CPU in the device's place. */
#ifndef KVANT_MEASURE_EVAL_RUN_H
#define KVANT_MEASURE_EVAL_RUN_H

#include "data/dump.h"
#include "measure/account.h"
#include "measure/attention.h"
#include "measure/quality.h"

#include <kvant/kvant.h>

#include <stdbool.h>

enum { KVANT_EVAL_MEMORY = 40 << 20 };

typedef struct kvant_eval_options {
    uint32_t threads; /* 0 = one per CPU */
    void (*progress)(void *context, uint32_t layers_done,
                     uint32_t layers); /* NULL = none; never twice at once */
    void *context;
    kvant_device *device; /* NULL = the CPU */
} kvant_eval_options;

/* One side of one layer. */
typedef struct kvant_eval_side {
    bool measured;  /* the dump has this side */
    char codec[33]; /* the plugin that coded it */
    char asked[33]; /* the codec that the pipeline asked for, where another one replaced it; "" otherwise */
    kvant_account account;
    kvant_quality quality;
    uint64_t saturated; /* as encoders counted them */
    uint64_t
        input_not_finite; /* elements of the dump that were replaced (on_nonfinite = saturate) before anything
                                  was measured: NaN by 0, infinities by the largest number of the type */
    double encode_seconds; /* CPU time of the thread, over all extents; 0 on a device */
    double decode_seconds;
    double
        device_encode_seconds; /* of the wall, from launches to their end, over all extents; 0 on the CPU */
    double device_decode_seconds;
    bool jit; /* the driver compiled the codec's PTX, for want of a cubin */
} kvant_eval_side;

/* The device's attention against attention in double precision over the decoded rows. A row is a query row of
 * one head. */
typedef struct kvant_eval_device_attention {
    uint32_t attends;   /* KVANT_DEVICE_ATTEND_*; 0 = not measured, and the others are NaN or 0 */
    double rms;         /* root of the mean over rows of (||o - o'|| / ||o||)^2 */
    double largest;     /* ||o - o'|| / ||o|| of a row */
    double log_sum_exp; /* largest difference */
    double of_allowed;  /* largest error of a row over what float and attend_tolerance allow it
                           (attend_error.h): above 1 the device computes wrongly */
    double seconds;     /* of the wall, from launches to their end */
} kvant_eval_device_attention;

typedef struct kvant_eval_layer {
    kvant_eval_side sides[2];
    kvant_distortion_error attention; /* NaN where the dump does not have what it takes */
    kvant_distortion_sums *heads;     /* [q_heads], NULL without attention */
    uint32_t q_heads;
    kvant_eval_device_attention device;
} kvant_eval_layer;

typedef struct kvant_eval {
    uint32_t layer_count;
    uint32_t tokens;
    uint32_t coded_tokens; /* of `tokens`; the others stay raw */
    uint32_t query_tokens;
    uint32_t block_tokens, sinks, recent;
    uint32_t threads; /* that were used */
    bool on_device;
    bool has_divergence;   /* the dump has keys and queries */
    bool has_output_error; /* and values */
    kvant_eval_layer *layers;
} kvant_eval;

/* plan: resolved for kvant_dump_geometry(dump). Errors: NOT_FINITE names tensor, token, head and channel;
 * what codecs refuse comes with layer and side. */
kvant_status kvant_eval_run(const kvant_plan *plan, const kvant_dump *dump, const kvant_eval_options *options,
                            kvant_eval **eval, kvant_diag *diag);
void kvant_eval_free(kvant_eval *eval);

/* ---- Numbers of a whole run ---------------------------------------------------------------------------- */

/* Which number of a layer. */
typedef enum kvant_metric {
    KVANT_METRIC_KEY_NMSE,
    KVANT_METRIC_VALUE_NMSE,
    KVANT_METRIC_KEY_COSINE,
    KVANT_METRIC_VALUE_COSINE,
    KVANT_METRIC_KEY_ONLY,
    KVANT_METRIC_VALUE_ONLY,
    KVANT_METRIC_BOTH,
    KVANT_METRIC_RECENT,
    KVANT_METRIC_DIVERGENCE,
    KVANT_METRIC_DEVICE, /* rms of the device's attention */
    KVANT_METRIC_COUNT
} kvant_metric;

/* NaN where it was not measured; may be infinite. */
double kvant_eval_metric(const kvant_eval_layer *layer, kvant_metric metric);

typedef struct kvant_spread {
    double median; /* over layers; NaN where no layer has the number */
    double worst;  /* the largest, for cosines the smallest */
    uint32_t layer;
} kvant_spread;
kvant_status kvant_eval_spread(const kvant_eval *eval, kvant_metric metric, kvant_spread *spread);

/* The query head with the largest error of both sides; false without attention. */
bool kvant_eval_worst_head(const kvant_eval *eval, uint32_t *layer, uint32_t *head, double *error);

/* Both sides of all layers; and one side of all layers. */
kvant_account kvant_eval_account(const kvant_eval *eval);
kvant_account kvant_eval_side_account(const kvant_eval *eval, uint32_t side);

/* Gigabytes a second of one thread, or of a device, counting 4 bytes an element whatever the dump's type. NaN
 * where nothing was coded. */
double kvant_eval_encode_speed(const kvant_eval *eval);
double kvant_eval_decode_speed(const kvant_eval *eval);

/* The layer whose attention on the device is worst beside what is allowed; false where none was measured. */
bool kvant_eval_device_worst(const kvant_eval *eval, uint32_t *layer, double *of_allowed);

/* Decoded numbers that are not finite: the first layer and side that has some; false where there are none. */
bool kvant_eval_not_finite(const kvant_eval *eval, uint32_t *layer, uint32_t *side, uint64_t *count);

#endif
