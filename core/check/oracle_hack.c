/* What `hack` must give back (arXiv 2502.03589, section 5; its artifact's quantize_partitions), rounding to
 * nearest: with axes = artifact keys in partitions along the tokens of a channel, values along the channels
 * of a token; with axes = paper the other way round.
 *
 *     minimum = M(min)     scale = M((max - minimum) / (2^bits - 1))
 *     code = rint((x - minimum) / scale)     value = code * scale + minimum
 *
 * M rounds to the type of the metadata. A partition without a scale is its minimum. */
#include "oracle.h"
#include "oracle_float.h"
#include "oracle_group.h"

#include <math.h>

typedef struct hack_formula {
    double levels;
    uint32_t meta; /* dtype */
} hack_formula;

static void fit(const void *context, oracle_place place, const double *x, double *out, size_t n) {
    (void)place;
    const hack_formula *f = context;
    double low = x[0], high = x[0];
    for (size_t i = 1; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    double minimum = oracle_saturate(low, f->meta);
    double scale = oracle_saturate((high - minimum) / f->levels, f->meta);
    for (size_t i = 0; i < n; i++) {
        double ratio = scale > 0 ? (x[i] - minimum) / scale : 0;
        ratio = rint(ratio < 0 ? 0 : ratio > f->levels ? f->levels : ratio);
        out[i] = ratio * scale + minimum;
    }
}

/* Channels that share a scale: all that fit, else fewer in steps of 16 until they divide the head. */
static uint32_t channels_of(uint32_t partition, uint32_t head_dim) {
    if (head_dim <= partition) return head_dim;
    while (partition > 16 && head_dim % partition != 0) partition -= 16;
    return partition;
}

static bool quantize(const kvant_descriptor *d, const kvant_setup *setup, const float *values,
                     double *expected) {
    hack_formula f = {.levels = ldexp(1, (int)oracle_integer(d, setup, "bits", 2)) - 1};
    uint32_t partition = (uint32_t)oracle_integer(d, setup, "partition", 64);
    if (oracle_is(d, setup, "rounding", "stochastic")) return false;
    f.meta = oracle_is(d, setup, "meta", "f32")   ? KVANT_DTYPE_F32
             : oracle_is(d, setup, "meta", "f16") ? KVANT_DTYPE_F16
                                                  : KVANT_DTYPE_BF16;
    bool along_tokens = (setup->side == KVANT_SIDE_KEY) != oracle_is(d, setup, "axes", "paper");
    if (along_tokens) return oracle_each_group(setup, ORACLE_TOKENS, partition, values, expected, fit, &f);
    return oracle_each_group(setup, ORACLE_CHANNELS, channels_of(partition, setup->head_dim), values,
                             expected, fit, &f);
}

/* sqrt of the NMSE on N(0, 1): .1544, .2024, .2507 at 2 bit, .00611, .00804, .00994 at 4 bit. */
static const oracle_band bands[] = {
    {"side=key bits=2 partition=32 head_dim=128 dtype=f32", {0.3929, 0.3929, 0}},
    {"side=key bits=4 partition=64 head_dim=128 dtype=f32", {0.0897, 0.0897, 0}},
    {"side=value bits=2 partition=64 head_dim=128 dtype=f32", {0.4499, 0, 0}},
    {"side=value bits=4 partition=128 head_dim=128 dtype=f32", {0.0997, 0.229, 0.151}},
    {"side=key bits=2 partition=64 head_dim=128 dtype=f32 axes=paper meta=f16", {0.4499, 0, 0}},
    {"side=value bits=2 partition=32 head_dim=128 dtype=f32 axes=paper meta=f16", {0.3929, 0.3929, 0}},
    {NULL, {0, 0, 0}},
};

const oracle oracle_hack = {.format = "HACK", .quantize = quantize, .bands = bands};
