/* What `uniform` must give back, from the formulas of its conventions, all in double precision but for what
 * is stored:
 *
 *   convention          range            scale                    code                          value
 *   kvant, reciprocal
 *          sym          max|x|           range / (2^(b-1) - 1)    rint(x / s), balanced         q * s
 *          asym         max - min        range / (2^b - 1)        rint((x - min) / s)           q * s + min
 *          1 bit        mean|x|          range                    x >= 0                        +-s
 *          float        max|x|           range / largest          nearest float of x / s        q * s
 *   compressed_tensors
 *          sym          max|x|           range / ((2^b - 1) / 2)  rint(x / s), from -2^(b-1)    q * s
 *          asym         with 0 in it     range / (2^b - 1)        rint(x / s + zero)          (q - zero) * s
 *   quanto asym         max - min        range / (2^b - 1)        rint((x - min) / s)           q * s + min
 *          sym          max|x|           range / 127              rint(x / s), from -128        q * s
 *   gguf   int8         max|x|           range / 127              half away, s not rounded      q * s
 *          int4         the x of max|x|  x / -8                   trunc(x / s + 8.5)            (q - 8) * s
 *          int4 asym    max - min        range / 15               trunc((x - min) / s + 0.5)    q * s + min
 *
 * The scale is stored as F32, F16, BF16, or as the power of two above it; minima as the scale, BF16 beside
 * a power of two. Values stay within the dtype of the rows. */
#include "oracle.h"
#include "oracle_float.h"
#include "oracle_group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum convention { KVANT, RECIPROCAL, COMPRESSED_TENSORS, QUANTO, GGUF } convention;

enum { E8M0 = KVANT_DTYPE_F8_E8M0 };

typedef struct uniform_formula {
    convention convention;
    int bits;
    uint32_t element; /* KVANT_DTYPE_F8_E4M3, F8_E5M2, or NONE for integers */
    bool asymmetric;
    bool fixed; /* static scale, or one from the artifact */
    double fixed_scale, fixed_minimum;
    const kvant_setup *setup;
    oracle_grouping grouping;
    uint32_t group;
    const float *scales, *minima; /* of the artifact; NULL = fixed_scale, fixed_minimum */
    uint32_t scale_type;
    double largest; /* of the rows' dtype */
} uniform_formula;

typedef struct statistics {
    double low, high, magnitude, signed_magnitude, mean;
} statistics;

static statistics look(const double *x, size_t n) {
    statistics s = {.low = x[0], .high = x[0]};
    for (size_t i = 0; i < n; i++) {
        if (x[i] < s.low) s.low = x[i];
        if (x[i] > s.high) s.high = x[i];
        if (fabs(x[i]) > s.magnitude) {
            s.magnitude = fabs(x[i]);
            s.signed_magnitude = x[i];
        }
        s.mean += fabs(x[i]);
    }
    s.mean /= (double)n;
    return s;
}

static double store_scale(double x, uint32_t type) {
    if (type != E8M0) return oracle_saturate(x, type);
    if (x <= 0x1p-127) return 0x1p-127;
    double power = ldexp(1, (int)ceil(log2(x)));
    while (power < x) power *= 2; /* log2 may be off by a last place */
    while (power / 2 >= x) power /= 2;
    return power > 0x1p127 ? 0x1p127 : power;
}

static double store_minimum(double x, uint32_t scale_type) {
    return oracle_saturate(x, scale_type == E8M0 ? (uint32_t)KVANT_DTYPE_BF16 : scale_type);
}

static double clamp(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

/* Scale before it is stored. */
static double exact_scale(const uniform_formula *f, const statistics *s) {
    double half = ldexp(1, f->bits - 1), span = s->high - s->low;
    if (f->element != 0) return s->magnitude / oracle_largest(f->element);
    if (f->convention == COMPRESSED_TENSORS) {
        if (!f->asymmetric) return s->magnitude / (half - 0.5);
        return ((s->high > 0 ? s->high : 0) - (s->low < 0 ? s->low : 0)) / (2 * half - 1);
    }
    if (f->asymmetric) return (span > 0x1.fffffep127 ? 0x1.fffffep127 : span) / (2 * half - 1);
    if (f->convention == GGUF && f->bits == 4) return s->signed_magnitude / -half;
    return f->bits == 1 ? s->mean : s->magnitude / (half - 1);
}

/* Offset forms: value = (code - zero) * scale + minimum. */
typedef struct grid {
    double scale, minimum, zero; /* as a decoder has them */
    double by, from;             /* what a code is made with */
    double lowest, highest;      /* codes */
    double shift;                /* added before truncation; 0 = rint */
} grid;

/* Which number of the artifact's tensors is a group's. */
static size_t tensor_index(const uniform_formula *f, oracle_place place) {
    size_t head = f->setup->first_kv_head + place.head, dim = f->setup->head_dim;
    switch (f->grouping) {
    case ORACLE_ALL:
        return 0;
    case ORACLE_CHANNEL:
        return head * dim + place.channel;
    case ORACLE_CHANNELS:
        return head * ((dim + f->group - 1) / f->group) + place.channel / f->group;
    default:
        return head;
    }
}

static grid make_grid(const uniform_formula *f, oracle_place place, const statistics *s) {
    double half = ldexp(1, f->bits - 1), exact = f->fixed ? f->fixed_scale : exact_scale(f, s);
    double low = f->fixed ? f->fixed_minimum : s->low;
    if (f->scales != NULL) exact = (double)f->scales[tensor_index(f, place)];
    if (f->minima != NULL) low = (double)f->minima[tensor_index(f, place)];
    grid g = {.scale = store_scale(exact, f->scale_type)};
    if (f->convention == COMPRESSED_TENSORS && g.scale == 0)
        g.scale = oracle_saturate(0x1p-23, f->scale_type);
    bool minimum = f->asymmetric && f->convention != COMPRESSED_TENSORS;
    if (minimum) g.minimum = store_minimum(low, f->scale_type);
    g.by = f->convention == GGUF ? exact : g.scale;
    g.from = f->convention == GGUF && minimum ? low : g.minimum;
    bool balanced =
        f->convention == KVANT || f->convention == RECIPROCAL || (f->convention == GGUF && f->bits == 8);
    g.lowest = minimum ? 0 : balanced ? 1 - half : -half;
    g.highest = minimum ? 2 * half - 1 : half - 1;
    if (f->convention == GGUF && f->bits == 4) g.shift = minimum ? 0.5 : half + 0.5;
    if (f->asymmetric && !minimum && exact > 0) {
        double least = s->low < 0 ? s->low : 0;
        g.zero = rint(clamp(-half - least / g.scale, -half, half - 1));
    }
    return g;
}

static double integer_code(const uniform_formula *f, const grid *g, double x) {
    if (g->by == 0) return clamp(g->zero, g->lowest, g->highest);
    double ratio = (x - g->from) / g->by + g->zero;
    if (g->shift != 0) {
        double bias = g->shift - 0.5;
        return clamp(trunc(ratio + g->shift), 0, g->highest + bias) - bias;
    }
    if (f->convention == GGUF) return clamp(round(ratio), g->lowest, g->highest);
    return rint(clamp(ratio, g->lowest, g->highest));
}

static void fit(const void *context, oracle_place place, const double *x, double *out, size_t n) {
    const uniform_formula *f = context;
    const statistics s = look(x, n);
    const grid g = make_grid(f, place, &s);
    bool sign = f->bits == 1 && !f->asymmetric;
    /* A group of one value keeps its stored minimum, whatever that is. */
    bool flat = f->asymmetric && !f->fixed && f->convention != COMPRESSED_TENSORS && s.high == s.low;
    for (size_t i = 0; i < n; i++) {
        double value;
        if (sign)
            value = x[i] >= 0 ? g.scale : -g.scale;
        else if (f->element != 0)
            value = g.scale > 0 ? oracle_saturate(x[i] / g.scale, f->element) * g.scale : 0;
        else
            value = flat ? g.minimum : (integer_code(f, &g, x[i]) - g.zero) * g.scale + g.minimum;
        out[i] = clamp(value, -f->largest, f->largest);
    }
}

static const float *find_array(const kvant_setup *setup, const char *name) {
    for (uint32_t i = 0; i < setup->tensor_count; i++)
        if (strcmp(setup->tensors[i].name, name) == 0) return setup->tensors[i].data;
    return NULL;
}

/* The words of a choice in the order of their numbers; -1 if it is none of them. */
static int word_index(const kvant_descriptor *d, const kvant_setup *setup, const char *name,
                      const char *const *words, int count) {
    for (int i = 0; i < count; i++)
        if (oracle_is(d, setup, name, words[i])) return i;
    return -1;
}

static bool read_formula(const kvant_descriptor *d, const kvant_setup *setup, uniform_formula *f) {
    static const char *const formats[] = {"e4m3", "e5m2", "int8", "int4", "int3", "int2", "int1"};
    static const int bits[] = {8, 8, 8, 4, 3, 2, 1};
    static const char *const conventions[] = {"kvant", "reciprocal", "compressed_tensors", "quanto", "gguf"};
    static const char *const scales[] = {"f32", "f16", "bf16", "e8m0"};
    static const uint32_t scale_types[] = {KVANT_DTYPE_F32, KVANT_DTYPE_F16, KVANT_DTYPE_BF16, E8M0};
    static const char *const groupings[] = {"tensor", "head",           "channel",
                                            "token",  "group_channels", "group_tokens"};
    int format = word_index(d, setup, "format", formats, 7), scale = word_index(d, setup, "scale", scales, 4);
    int rule = word_index(d, setup, "convention", conventions, 5);
    int grouping = word_index(d, setup, "granularity", groupings, 6);
    if (format < 0 || scale < 0 || rule < 0 || grouping < 0) return false;
    *f = (uniform_formula){.convention = (convention)rule,
                           .bits = bits[format],
                           .element = format == 0   ? KVANT_DTYPE_F8_E4M3
                                      : format == 1 ? KVANT_DTYPE_F8_E5M2
                                                    : KVANT_DTYPE_NONE,
                           .asymmetric = oracle_is(d, setup, "symmetry", "asymmetric"),
                           .fixed = !oracle_is(d, setup, "scaling", "dynamic"),
                           .fixed_scale = oracle_number(d, setup, "static_scale", 1),
                           .fixed_minimum = oracle_number(d, setup, "static_min", 0),
                           .setup = setup,
                           .grouping = (oracle_grouping)grouping,
                           .group = (uint32_t)oracle_integer(d, setup, "group", 32),
                           .scale_type = scale_types[scale],
                           .largest = oracle_largest(setup->dtype)};
    if (!oracle_is(d, setup, "scaling", "artifact")) return true;
    f->scales = find_array(setup, "scale");
    f->minima = find_array(setup, "min");
    return f->scales != NULL;
}

static bool quantize(const kvant_descriptor *d, const kvant_setup *setup, const float *values,
                     double *expected) {
    uniform_formula f;
    if (!read_formula(d, setup, &f)) return false;
    return oracle_each_group(setup, f.grouping, f.group, values, expected, fit, &f);
}

/* Scales that cut some of N(0, 1) and waste some: each another one, so that a wrong head or channel shows. */
static uint32_t learn(const kvant_descriptor *d, const kvant_setup *setup,
                      kvant_array arrays[ORACLE_ARRAYS]) {
    uniform_formula f;
    (void)read_formula(d, setup, &f);
    if (!oracle_is(d, setup, "scaling", "artifact")) return 0;
    uint64_t columns = f.grouping == ORACLE_CHANNEL    ? setup->head_dim
                       : f.grouping == ORACLE_CHANNELS ? (setup->head_dim + f.group - 1) / f.group
                                                       : 1;
    uint64_t rows = f.grouping == ORACLE_ALL ? 1 : setup->total_kv_heads;
    bool two = f.grouping == ORACLE_CHANNEL || f.grouping == ORACLE_CHANNELS;
    double levels = f.element != 0 ? oracle_largest(f.element) : f.bits == 1 ? 3 : ldexp(1, f.bits - 1);
    for (uint32_t a = 0; a < 2; a++) {
        float *numbers = malloc(rows * columns * sizeof *numbers);
        if (numbers == NULL) return 0;
        for (uint64_t i = 0; i < rows * columns; i++)
            numbers[i] =
                a == 0 ? (float)(-0.3 * (double)(5 + i % 7)) /* min comes before scale in the alphabet */
                       : (float)((2 + (double)(i % 5)) / levels);
        arrays[a] = (kvant_array){.name = a == 0 ? "min" : "scale",
                                  .data = numbers,
                                  .shape = {rows, columns},
                                  .bytes = rows * columns * sizeof *numbers,
                                  .dtype = KVANT_DTYPE_F32,
                                  .rank = two ? 2 : 1};
    }
    return 2;
}

/* Published rows (the same data, relative L2 error), and what follows from them. */
static const oracle_band bands[] = {
    {"format=int8 granularity=group_channels group=32 scale=f16 dtype=f32 head_dim=128",
     {0.0054, 0.0119, 0.0094}},
    {"format=e4m3 granularity=tensor scaling=static static_scale=1 scale=f32 dtype=f32 head_dim=128",
     {0.0266, 0.0266, 0.0274}},
    {"format=e5m2 granularity=tensor scaling=static static_scale=1 scale=f32 dtype=f32 head_dim=128",
     {0.0528, 0.0522, 0.0547}},
    {"format=e4m3 granularity=token scale=f32 dtype=f32 head_dim=128", {0.0257, 0.0144, 0.0216}},
    {"format=int4 granularity=group_channels symmetry=asymmetric group=32 scale=f16 dtype=f32 head_dim=128",
     {0.078, 0.110, 0.102}},
    {"format=int4 granularity=group_channels symmetry=asymmetric group=64 scale=f16 dtype=f32 head_dim=128",
     {0.090, 0.156, 0.139}},
    {"format=int4 granularity=group_channels symmetry=asymmetric group=128 scale=f16 dtype=f32 head_dim=128",
     {0.100, 0.229, 0.151}},
    {"format=int4 granularity=group_channels group=32 scale=f16 dtype=f32 head_dim=128",
     {0.097, 0.166, 0.171}},
    {"format=int3 granularity=group_channels symmetry=asymmetric group=32 scale=f16 dtype=f32 head_dim=128",
     {0.168, 0.255, 0.219}},
    {"format=int3 granularity=group_channels symmetry=asymmetric group=128 scale=f16 dtype=f32 head_dim=128",
     {0.214, 0.523, 0.324}},
    {"format=int2 granularity=group_channels symmetry=asymmetric group=32 scale=f16 dtype=f32 head_dim=128",
     {0.393, 0.459, 0.543}},
    {"format=int2 granularity=group_channels symmetry=asymmetric group=128 scale=f16 dtype=f32 head_dim=128",
     {0.502, 1.11, 0.790}},
    {NULL, {0, 0, 0}},
};

const oracle oracle_uniform = {.format = "UNIF", .quantize = quantize, .learn = learn, .bands = bands};
