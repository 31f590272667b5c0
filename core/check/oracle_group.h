/* Groups of elements that share a scale: every way to cut a block that the formulas name. */
#ifndef KVANT_CHECK_ORACLE_GROUP_H
#define KVANT_CHECK_ORACLE_GROUP_H

#include <kvant/plugin.h>

#include <stdbool.h>

typedef enum oracle_grouping {
    ORACLE_ALL,      /* the block */
    ORACLE_HEAD,     /* all of a head */
    ORACLE_CHANNEL,  /* all tokens of one channel of a head */
    ORACLE_TOKEN,    /* all channels of one token of a head */
    ORACLE_CHANNELS, /* `size` channels of one token of a head; the last group may be short */
    ORACLE_TOKENS    /* `size` tokens of one channel of a head */
} oracle_grouping;

/* Where a group begins. */
typedef struct oracle_place {
    uint32_t token, head, channel;
} oracle_place;

/* What comes back for a group x[0..n). */
typedef void oracle_fit(const void *context, oracle_place place, const double *x, double *out, size_t n);

/* Calls fit for every group. False when there is no memory. */
bool oracle_each_group(const kvant_setup *setup, oracle_grouping grouping, uint32_t size, const float *values,
                       double *expected, oracle_fit *fit, const void *context);

#endif
