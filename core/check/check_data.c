/* Families of rows. See check_data.h. */
#include "check_data.h"

#include "oracle_float.h"

#include <float.h>

static const char *const names[CHECK_DATA_COUNT] = {"normal",   "outlier",  "offset", "away",
                                                    "range",    "constant", "zeros",  "ties",
                                                    "denormal", "tiny",     "huge",   "maximum"};

const char *check_data_name(check_data data) {
    return data < CHECK_DATA_COUNT ? names[data] : "?";
}

bool check_data_is_ordinary(check_data data) {
    return data <= CHECK_DATA_RANGE;
}

float check_data_round(double x, uint32_t dtype) {
    double largest = dtype == KVANT_DTYPE_F32   ? (double)FLT_MAX
                     : dtype == KVANT_DTYPE_F16 ? 65504.0
                                                : 0x1.fep127;
    double rounded = oracle_round(x, dtype);
    return (float)(rounded > largest ? largest : rounded < -largest ? -largest : rounded);
}

static double smallest(uint32_t dtype, bool denormal) {
    if (dtype == KVANT_DTYPE_F16) return denormal ? 0x1p-24 : 0x1p-14;
    if (dtype == KVANT_DTYPE_BF16) return denormal ? 0x1p-133 : 0x1p-126;
    return denormal ? 0x1p-149 : 0x1p-126;
}

static double largest(uint32_t dtype) {
    return dtype == KVANT_DTYPE_F32 ? (double)FLT_MAX : dtype == KVANT_DTYPE_F16 ? 65504.0 : 0x1.fep127;
}

/* Where an element stands; `pattern` varies from head to head and from one set of rows to the next. */
typedef struct place {
    uint32_t token, head, channel, pattern;
} place;

static double constant_value(place at) {
    static const double runs[] = {9, -9, 1.5, 0.7, 0, -2.25, 1.0 / 3, 65504};
    uint32_t run = at.pattern == 0   ? at.channel * 5 + at.token / 32 /* along tokens */
                   : at.pattern == 1 ? at.token * 3 + at.channel / 32 /* along channels, in runs */
                                     : at.token;                      /* whole rows */
    return runs[(run + at.head) % 8];
}

static double zeros_value(place at, double x) {
    bool lives = at.pattern == 0   ? at.token % 8 == 5 || at.channel % 32 == 7
                 : at.pattern == 1 ? at.token % 16 == 3
                                   : at.channel % 64 == 9;
    return lives ? x : x < 0 ? -0.0 : 0.0;
}

static double element(check_data data, uint32_t dtype, place at, check_random *random) {
    double x = check_random_normal(random);
    switch (data) {
    case CHECK_DATA_OUTLIER:
        return at.channel % 64 == 5 ? 20 * x : x;
    case CHECK_DATA_OFFSET:
        return at.channel % 64 == 5 ? x + 8 : x;
    case CHECK_DATA_AWAY:
        return 1 + 2 * check_random_unit(random);
    case CHECK_DATA_RANGE:
        return ldexp(x, (int)(at.token * 7 % 13) - 6 + (at.channel % 16 == 3 ? 3 : 0));
    case CHECK_DATA_CONSTANT:
        return constant_value(at);
    case CHECK_DATA_ZEROS:
        return zeros_value(at, x);
    case CHECK_DATA_TIES:
        return (double)(int)(x * 20) / (at.token % 2 == 0 ? 2 : 4);
    case CHECK_DATA_DENORMAL:
        if (at.token % 16 == 9) return x;
        return x * smallest(dtype, at.channel % 2 == 0) * (at.token % 4 == 1 ? 1 : 100);
    case CHECK_DATA_TINY:
        return x * (dtype == KVANT_DTYPE_F16 ? 1e-6 : 1e-30);
    case CHECK_DATA_HUGE:
        return at.token % 8 == 2 || at.channel % 32 == 4 ? (x < 0 ? -65504 : 65504) : x;
    case CHECK_DATA_MAXIMUM:
        if (at.token % 4 == 3) return x < 0 ? -largest(dtype) : largest(dtype);
        return at.token % 4 == 1 ? x * 0.25 * largest(dtype) : x;
    default:
        return x;
    }
}

void check_data_fill(check_data data, uint32_t dtype, uint32_t tokens, uint32_t heads, uint32_t head_dim,
                     check_random *random, float *values) {
    uint32_t pattern = check_random_below(random, 3);
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t c = 0; c < head_dim; c++)
                *values++ = check_data_round(
                    element(data, dtype, (place){t, h, c, (h + pattern) % 3}, random), dtype);
}
