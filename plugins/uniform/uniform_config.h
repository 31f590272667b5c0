/* The parameters of `uniform`, checked, and the words for their values. */
#ifndef KVANT_UNIFORM_CONFIG_H
#define KVANT_UNIFORM_CONFIG_H

#include <kvant/plugin.h>

#include <stdbool.h>

/* Values of the choices, in the order of the schema. */
enum uniform_format {
    UNIFORM_E4M3,
    UNIFORM_E5M2,
    UNIFORM_INT8,
    UNIFORM_INT4,
    UNIFORM_INT3,
    UNIFORM_INT2,
    UNIFORM_INT1
};
enum uniform_granularity {
    UNIFORM_TENSOR,         /* the extent: all tokens, heads and channels */
    UNIFORM_HEAD,           /* all tokens and channels of a head */
    UNIFORM_CHANNEL,        /* all tokens of one channel of a head */
    UNIFORM_TOKEN,          /* all channels of one token of a head */
    UNIFORM_GROUP_CHANNELS, /* `group` channels of one token of a head */
    UNIFORM_GROUP_TOKENS    /* `group` tokens of one channel of a head */
};
enum uniform_symmetry { UNIFORM_SYMMETRIC, UNIFORM_ASYMMETRIC };
enum uniform_scaling { UNIFORM_DYNAMIC, UNIFORM_STATIC, UNIFORM_ARTIFACT };
enum uniform_rope { UNIFORM_KEYS_AFTER_ROPE, UNIFORM_KEYS_BEFORE_ROPE };

/* Index of each parameter in the schema. */
enum uniform_param {
    UNIFORM_PARAM_FORMAT,
    UNIFORM_PARAM_GRANULARITY,
    UNIFORM_PARAM_GROUP,
    UNIFORM_PARAM_SYMMETRY,
    UNIFORM_PARAM_SCALE,
    UNIFORM_PARAM_SCALING,
    UNIFORM_PARAM_STATIC_SCALE,
    UNIFORM_PARAM_STATIC_MIN,
    UNIFORM_PARAM_CONVENTION,
    UNIFORM_PARAM_ROPE,
    UNIFORM_PARAM_COUNT
};

extern const kvant_param uniform_params[UNIFORM_PARAM_COUNT];

typedef struct uniform_config {
    uint32_t format;
    uint32_t granularity;
    uint32_t group; /* of a grouped granularity */
    uint32_t symmetry;
    uint32_t scale; /* dtype of stored scales: F32, F16, BF16 or F8_E8M0 */
    uint32_t scaling;
    float static_scale;
    float static_min;
    uint32_t convention;
    uint32_t rope;
} uniform_config;

/* Reads setup->values. Refuses combinations that have no meaning: CONFLICT, naming the parameter to
 * change. */
kvant_status uniform_config_read(uniform_config *config, const kvant_setup *setup, kvant_diag *diag);

/* Bits of one code. */
uint32_t uniform_format_bits(uint32_t format);
bool uniform_format_is_float(uint32_t format);

/* The word of a choice, for messages. */
const char *uniform_word(uint32_t param, uint32_t value);

#endif
