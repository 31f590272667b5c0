/* See kvquant_config.h. */
#include "kvquant_config.h"

#include <kvant/kit/diag.h>

static const int64_t bits_allowed[] = {2, 3, 4};
static const char *const codebooks[] = {"nuq", "nf", "uniform"};
static const char *const axes[] = {"auto", "channel", "token"};
static const char *const thresholds[] = {"auto", "static", "dynamic"};
static const char *const outliers[] = {"all", "none"};
static const char *const arithmetics[] = {"auto", "simulated", "deployed"};
static const char *const weights[] = {"paper", "code", "none"};
static const char *const metas[] = {"input", "f16", "bf16", "f32"};

#define CHOICE(list, index)                                                                                  \
    .type = KVANT_PARAM_CHOICE, .unit = "", .choices = list, .choice_count = sizeof list / sizeof list[0],   \
    .integer_default = index

const kvant_param kvquant_params[KVQUANT_PARAM_COUNT] = {
    [KVQUANT_PARAM_BITS] = {.struct_size = sizeof(kvant_param),
                            .type = KVANT_PARAM_INTEGER,
                            .name = "bits",
                            .unit = "bits",
                            .help = "width of a code",
                            .integers = bits_allowed,
                            .integer_count = sizeof bits_allowed / sizeof bits_allowed[0],
                            .integer_min = 2,
                            .integer_max = 4,
                            .integer_default = 3},
    [KVQUANT_PARAM_CODEBOOK] = {.struct_size = sizeof(kvant_param),
                                .name = "codebook",
                                .help = "levels in a group's range: learned (nuq), NormalFloat, or evenly "
                                        "spaced",
                                CHOICE(codebooks, KVQUANT_NUQ)},
    [KVQUANT_PARAM_AXIS] = {.struct_size = sizeof(kvant_param),
                            .name = "axis",
                            .help = "what shares a range: a channel's tokens, or a token's channels over all "
                                    "heads; auto = channel for keys, token for values",
                            CHOICE(axes, KVQUANT_AXIS_AUTO)},
    [KVQUANT_PARAM_THRESHOLDS] = {.struct_size = sizeof(kvant_param),
                                  .name = "thresholds",
                                  .help = "ranges from calibration or from the block; auto = static for "
                                          "channels, dynamic for tokens",
                                  CHOICE(thresholds, KVQUANT_THRESHOLDS_AUTO)},
    [KVQUANT_PARAM_OUTLIERS] = {.struct_size = sizeof(kvant_param),
                                .name = "outliers",
                                .help = "elements beyond a group's range are kept apart, in the meta type",
                                CHOICE(outliers, KVQUANT_OUTLIERS_ALL)},
    [KVQUANT_PARAM_FRACTION] = {.struct_size = sizeof(kvant_param),
                                .type = KVANT_PARAM_NUMBER,
                                .name = "fraction",
                                .unit = "",
                                .help = "of a group's elements that lie beyond its range, both tails "
                                        "together; only with outliers = all",
                                .number_min = 0.0001,
                                .number_max = 0.5,
                                .number_default = 0.01},
    [KVQUANT_PARAM_CAP] = {.struct_size = sizeof(kvant_param),
                           .type = KVANT_PARAM_INTEGER,
                           .flags = KVANT_PARAM_UNLEARNED,
                           .name = "cap",
                           .unit = "",
                           .help = "outliers kept per token and tail, what is beyond saturates; 0 = all",
                           .integer_min = 0,
                           .integer_max = 65535,
                           .integer_default = 0},
    [KVQUANT_PARAM_ARITHMETIC] = {.struct_size = sizeof(kvant_param),
                                  .flags = KVANT_PARAM_UNLEARNED,
                                  .name = "arithmetic",
                                  .help = "of the authors' simulation or of their deployed cache (README); "
                                          "auto = deployed with a cap, where that cache has the case",
                                  CHOICE(arithmetics, KVQUANT_ARITHMETIC_AUTO)},
    [KVQUANT_PARAM_QNORM] = {.struct_size = sizeof(kvant_param),
                             .type = KVANT_PARAM_SWITCH,
                             .name = "qnorm",
                             .unit = "",
                             .help = "decode with a codebook whose mean and deviation were matched",
                             .integer_default = 0},
    [KVQUANT_PARAM_WEIGHTS] = {.struct_size = sizeof(kvant_param),
                               .name = "weights",
                               .help = "calibration: an element counts F r^2 (paper), F (the authors' code), "
                                       "or 1; F = its squared gradient, 1 where the dump has none",
                               CHOICE(weights, KVQUANT_WEIGHTS_PAPER)},
    [KVQUANT_PARAM_META] = {.struct_size = sizeof(kvant_param),
                            .flags = KVANT_PARAM_UNLEARNED,
                            .name = "meta",
                            .help = "type of stored ranges and outliers; input = the type of the rows",
                            CHOICE(metas, 0)},
};

#define CONFLICT(param, ...) kvant_fail(diag, KVANT_ERROR_CONFLICT, kvquant_params[param].name, __VA_ARGS__)

/* A parameter that would be ignored is an error, not a wish. */
static kvant_status check_idle(const kvquant_config *c, const kvant_value *v, kvant_diag *diag) {
    if (!c->sparse && v[KVQUANT_PARAM_FRACTION].given)
        return CONFLICT(KVQUANT_PARAM_FRACTION, "fraction has no meaning with outliers = none: the range is "
                                                "that of all elements");
    if (!c->sparse && c->cap > 0)
        return CONFLICT(KVQUANT_PARAM_CAP, "cap has no meaning with outliers = none");
    return KVANT_OK;
}

static kvant_status check_ranges(const kvquant_config *c, uint32_t asked, uint32_t arithmetic,
                                 kvant_diag *diag) {
    if (!c->channel && asked == KVQUANT_THRESHOLDS_STATIC)
        return CONFLICT(KVQUANT_PARAM_THRESHOLDS,
                        "thresholds = static knows no tokens in advance: axis = channel, or dynamic");
    if (arithmetic == KVQUANT_ARITHMETIC_DEPLOYED && c->channel && !c->is_static)
        return CONFLICT(KVQUANT_PARAM_ARITHMETIC,
                        "arithmetic = deployed has static thresholds per channel: thresholds = static, or "
                        "arithmetic = simulated");
    return KVANT_OK;
}

kvant_status kvquant_config_read(kvquant_config *c, const kvant_setup *setup, kvant_diag *diag) {
    static const uint32_t dtypes[] = {KVANT_DTYPE_NONE, KVANT_DTYPE_F16, KVANT_DTYPE_BF16, KVANT_DTYPE_F32};
    if (setup->value_count != KVQUANT_PARAM_COUNT)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "%u parameter values where the schema has %d",
                          setup->value_count, KVQUANT_PARAM_COUNT);
    const kvant_value *v = setup->values;
    uint32_t axis = (uint32_t)v[KVQUANT_PARAM_AXIS].integer;
    uint32_t asked = (uint32_t)v[KVQUANT_PARAM_THRESHOLDS].integer;
    uint32_t arithmetic = (uint32_t)v[KVQUANT_PARAM_ARITHMETIC].integer;
    *c = (kvquant_config){.bits = (uint32_t)v[KVQUANT_PARAM_BITS].integer,
                          .codebook = (uint32_t)v[KVQUANT_PARAM_CODEBOOK].integer,
                          .sparse = v[KVQUANT_PARAM_OUTLIERS].integer == KVQUANT_OUTLIERS_ALL,
                          .qnorm = v[KVQUANT_PARAM_QNORM].integer != 0,
                          .cap = (uint32_t)v[KVQUANT_PARAM_CAP].integer,
                          .weights = (uint32_t)v[KVQUANT_PARAM_WEIGHTS].integer,
                          .meta = dtypes[v[KVQUANT_PARAM_META].integer],
                          .fraction = v[KVQUANT_PARAM_FRACTION].number};
    c->channel = axis == KVQUANT_AXIS_CHANNEL || (axis == KVQUANT_AXIS_AUTO && setup->side == KVANT_SIDE_KEY);
    c->is_static = c->channel && asked != KVQUANT_THRESHOLDS_DYNAMIC;
    bool has_case = !c->channel || c->is_static;
    c->deployed = arithmetic == KVQUANT_ARITHMETIC_DEPLOYED ||
                  (arithmetic == KVQUANT_ARITHMETIC_AUTO && c->cap > 0 && has_case);
    kvant_status status = check_idle(c, v, diag);
    return status == KVANT_OK ? check_ranges(c, asked, arithmetic, diag) : status;
}
