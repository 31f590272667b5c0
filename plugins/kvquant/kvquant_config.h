/* The parameters of `kvquant`, checked. */
#ifndef KVANT_KVQUANT_CONFIG_H
#define KVANT_KVQUANT_CONFIG_H

#include <kvant/plugin.h>

#include <stdbool.h>

/* Index of each parameter in the schema. */
enum {
    KVQUANT_PARAM_BITS,
    KVQUANT_PARAM_CODEBOOK,
    KVQUANT_PARAM_AXIS,
    KVQUANT_PARAM_THRESHOLDS,
    KVQUANT_PARAM_OUTLIERS,
    KVQUANT_PARAM_FRACTION,
    KVQUANT_PARAM_CAP,
    KVQUANT_PARAM_ARITHMETIC,
    KVQUANT_PARAM_QNORM,
    KVQUANT_PARAM_WEIGHTS,
    KVQUANT_PARAM_META,
    KVQUANT_PARAM_COUNT
};

/* Values of the choices, in the order of the schema. */
enum { KVQUANT_NUQ, KVQUANT_NF, KVQUANT_UNIFORM };
enum { KVQUANT_AXIS_AUTO, KVQUANT_AXIS_CHANNEL, KVQUANT_AXIS_TOKEN };
enum { KVQUANT_THRESHOLDS_AUTO, KVQUANT_THRESHOLDS_STATIC, KVQUANT_THRESHOLDS_DYNAMIC };
enum { KVQUANT_OUTLIERS_ALL, KVQUANT_OUTLIERS_NONE };
enum { KVQUANT_ARITHMETIC_AUTO, KVQUANT_ARITHMETIC_SIMULATED, KVQUANT_ARITHMETIC_DEPLOYED };
enum { KVQUANT_WEIGHTS_PAPER, KVQUANT_WEIGHTS_CODE, KVQUANT_WEIGHTS_NONE };

extern const kvant_param kvquant_params[KVQUANT_PARAM_COUNT];

/* What they mean for one side. */
typedef struct kvquant_config {
    uint32_t bits;
    uint32_t codebook;
    bool channel;   /* a range for every channel, else one for every token */
    bool is_static; /* ranges from the artifact; channels only */
    bool sparse;    /* outliers are kept */
    bool deployed;  /* arithmetic of the deployed cache, else of the simulation */
    bool qnorm;
    uint32_t cap; /* outliers of a token and tail; 0 = all */
    uint32_t weights;
    uint32_t meta;   /* dtype; KVANT_DTYPE_NONE = that of the rows */
    double fraction; /* of a group's elements that lie beyond its range, both tails together */
} kvquant_config;

/* Reads setup->values. Refuses combinations that have no meaning, naming the parameter to change. */
kvant_status kvquant_config_read(kvquant_config *config, const kvant_setup *setup, kvant_diag *diag);

/* Whether open needs these tensors: upper and lower; codebook; normscale and normoffset. */
static inline bool kvquant_needs_thresholds(const kvquant_config *config) {
    return config->is_static;
}

static inline bool kvquant_needs_codebook(const kvquant_config *config) {
    return config->codebook == KVQUANT_NUQ;
}

/* Whether outliers are the first so many of each tail, not those beyond thresholds. */
static inline bool kvquant_by_rank(const kvquant_config *config) {
    return config->sparse && config->deployed && !config->channel;
}

/* Outliers of one token that are kept per tail, UINT32_MAX where all are. By rank: the deployed cache's
 * int((1 - sparsity)/2 * width) + 1 with sparsity = 1 - fraction (in this order, which decides where the
 * product is whole: 16 at .1 and 320), or the cap; at least one element stays between the tails. */
static inline uint32_t kvquant_per_tail(const kvquant_config *config, uint32_t width) {
    if (!kvquant_by_rank(config)) return config->cap > 0 ? config->cap : UINT32_MAX;
    uint32_t count = config->cap > 0 ? config->cap : (uint32_t)((1 - (1 - config->fraction)) / 2 * width) + 1;
    uint32_t most = (width - 1) / 2;
    return count < most ? count : most;
}

#endif
