/* What `kivi` must give back (arXiv 2402.02750, section 3): keys in groups along the tokens of a channel,
 * values in groups along the channels of a token, each with its minimum and its range:
 *
 *     scale = (max - min) / (2^bits - 1)      code = rint((x - min) / scale)      value = code * scale + min
 *
 * Every arrow rounds to the dtype of the rows, as the reference implementation computes; scale and minimum
 * are stored as `meta` says. A group without a scale is its minimum. */
#include "oracle.h"
#include "oracle_float.h"
#include "oracle_group.h"

#include <math.h>

typedef struct kivi_formula {
    double levels;
    uint32_t rows; /* dtype */
    uint32_t meta; /* dtype */
} kivi_formula;

static void fit(const void *context, oracle_place place, const double *x, double *out, size_t n) {
    (void)place;
    const kivi_formula *f = context;
    double low = x[0], high = x[0];
    for (size_t i = 1; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    double range = high - low;
    bool wide = fabs(oracle_round(range, f->rows)) > oracle_largest(f->rows);
    if (!wide) range = oracle_round(range, f->rows);
    double scale = oracle_saturate(oracle_saturate(range / f->levels, f->rows), f->meta);
    double minimum = oracle_saturate(low, f->meta);
    for (size_t i = 0; i < n; i++) {
        double ratio = x[i] - minimum;
        if (!wide) ratio = oracle_round(ratio, f->rows);
        ratio = scale > 0 ? ratio / scale : 0;
        if (!wide) ratio = oracle_round(ratio, f->rows);
        ratio = ratio < 0 ? 0 : ratio > f->levels ? f->levels : ratio;
        double value = rint(ratio) * scale + minimum, largest = oracle_largest(f->rows);
        out[i] = value > largest ? largest : value < -largest ? -largest : value;
    }
}

static bool quantize(const kvant_descriptor *d, const kvant_setup *setup, const float *values,
                     double *expected) {
    kivi_formula f = {.levels = ldexp(1, (int)oracle_integer(d, setup, "bits", 2)) - 1, .rows = setup->dtype};
    f.meta = oracle_is(d, setup, "meta", "f32")    ? KVANT_DTYPE_F32
             : oracle_is(d, setup, "meta", "f16")  ? KVANT_DTYPE_F16
             : oracle_is(d, setup, "meta", "bf16") ? KVANT_DTYPE_BF16
                                                   : setup->dtype;
    oracle_grouping grouping = setup->side == KVANT_SIDE_KEY ? ORACLE_TOKENS : ORACLE_CHANNELS;
    return oracle_each_group(setup, grouping, (uint32_t)oracle_integer(d, setup, "group", 32), values,
                             expected, fit, &f);
}

/* sqrt of the NMSE on N(0, 1): .1544, .2024, .2507 at 2 bit, .00611, .00804, .00994 at 4 bit. Values see
 * their outlier channel in one group per token, keys only in groups of its own. */
static const oracle_band bands[] = {
    {"side=value bits=2 group=32 head_dim=128 dtype=f32 meta=f16", {0.3929, 0.459, 0.543}},
    {"side=value bits=2 group=64 head_dim=128 dtype=f32 meta=f16", {0.4499, 0, 0}},
    {"side=value bits=2 group=128 head_dim=128 dtype=f32 meta=f16", {0.5007, 1.11, 0.790}},
    {"side=value bits=4 group=32 head_dim=128 dtype=f32 meta=f16", {0.0782, 0.110, 0.102}},
    {"side=value bits=4 group=64 head_dim=128 dtype=f32 meta=f16", {0.0897, 0.156, 0.139}},
    {"side=value bits=4 group=128 head_dim=128 dtype=f32 meta=f16", {0.0997, 0.229, 0.151}},
    {"side=value bits=3 group=32 head_dim=128 dtype=f32 meta=f16", {0.168, 0.255, 0.219}},
    {"side=value bits=3 group=128 head_dim=128 dtype=f32 meta=f16", {0.214, 0.523, 0.324}},
    {"side=key bits=2 group=32 head_dim=128 dtype=f32 meta=f16", {0.3929, 0.3929, 0}},
    {"side=key bits=4 group=64 head_dim=128 dtype=f32 meta=f16", {0.0897, 0.0897, 0}},
    {NULL, {0, 0, 0}},
};

const oracle oracle_kivi = {.format = "KIVI", .quantize = quantize, .bands = bands};
