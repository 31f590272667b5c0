/* What is encoded: families of rows, each of which has caught a real fault somewhere. */
#ifndef KVANT_CHECK_DATA_H
#define KVANT_CHECK_DATA_H

#include "check_random.h"

#include <kvant/types.h>

#include <stdbool.h>

typedef enum check_data {
    CHECK_DATA_NORMAL,  /* N(0, 1) */
    CHECK_DATA_OUTLIER, /* N(0, 1), channel 5 of every 64 times 20 */
    CHECK_DATA_OFFSET,  /* N(0, 1), channel 5 of every 64 plus 8 */
    CHECK_DATA_AWAY,    /* uniform in [1, 3]: no group straddles zero, padding taken for a value shows */
    CHECK_DATA_RANGE,   /* magnitudes from 2^-6 to 2^6 per token, and per channel */
    CHECK_DATA_CONSTANT, /* runs of one value along tokens, channels, whole rows: 9, -9, 1.5, 0.7, 0 */
    CHECK_DATA_ZEROS,    /* zeros of both signs, with a few tokens or a channel that are not */
    CHECK_DATA_TIES,     /* multiples of 1/2 and 1/4 up to 15, -0 among them */
    CHECK_DATA_DENORMAL, /* smallest numbers of the dtype, denormals among normal rows */
    CHECK_DATA_TINY,     /* around 1e-30 (F16: around 1e-6) */
    CHECK_DATA_HUGE,     /* +-65504 among N(0, 1) */
    CHECK_DATA_MAXIMUM,  /* +-largest number of the dtype */
    CHECK_DATA_COUNT
} check_data;

const char *check_data_name(check_data data);

/* Data on which an error relative to the energy of the rows says something. */
bool check_data_is_ordinary(check_data data);

/* Fills values[tokens * heads * head_dim], all finite and exact in `dtype`. */
void check_data_fill(check_data data, uint32_t dtype, uint32_t tokens, uint32_t heads, uint32_t head_dim,
                     check_random *random, float *values);

/* The nearest number of the dtype, saturated to the largest: in double precision, by the formula of the
 * formats. */
float check_data_round(double x, uint32_t dtype);

#endif
