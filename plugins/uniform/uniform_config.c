/* The schema of `uniform`, and which combinations of its parameters mean something. */
#include "uniform_config.h"

#include "uniform_convention.h"

#include <kvant/kit/diag.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define CHOICE(words, index)                                                                                 \
    .type = KVANT_PARAM_CHOICE, .choices = (words), .choice_count = COUNT(words), .integer_default = (index)

static const char *const formats[] = {"e4m3", "e5m2", "int8", "int4", "int3", "int2", "int1"};
static const char *const granularities[] = {"tensor", "head",           "channel",
                                            "token",  "group_channels", "group_tokens"};
static const char *const symmetries[] = {"symmetric", "asymmetric"};
static const char *const scales[] = {"f32", "f16", "bf16", "e8m0"};
static const char *const scalings[] = {"dynamic", "static", "artifact"};
static const char *const conventions[] = {"kvant", "reciprocal", "compressed_tensors", "quanto", "gguf"};
static const char *const ropes[] = {"after", "before"};

static const uint32_t scale_dtypes[] = {KVANT_DTYPE_F32, KVANT_DTYPE_F16, KVANT_DTYPE_BF16,
                                        KVANT_DTYPE_F8_E8M0};

enum { GROUP_MAX = 65536 };

const kvant_param uniform_params[UNIFORM_PARAM_COUNT] = {
    [UNIFORM_PARAM_FORMAT] = {.struct_size = sizeof(kvant_param),
                              .name = "format",
                              .unit = "",
                              .help = "element type: 8-bit float, integer, or (int1) sign or bit",
                              CHOICE(formats, UNIFORM_INT8)},
    [UNIFORM_PARAM_GRANULARITY] = {.struct_size = sizeof(kvant_param),
                                   .name = "granularity",
                                   .unit = "",
                                   .help =
                                       "which elements share a scale; tensor is the block with all its heads",
                                   CHOICE(granularities, UNIFORM_TOKEN)},
    [UNIFORM_PARAM_GROUP] = {.struct_size = sizeof(kvant_param),
                             .type = KVANT_PARAM_INTEGER,
                             .name = "group",
                             .unit = "channels or tokens",
                             .help = "elements of a group; only with group_channels and group_tokens",
                             .integer_min = 1,
                             .integer_max = GROUP_MAX,
                             .integer_default = 32},
    [UNIFORM_PARAM_SYMMETRY] = {.struct_size = sizeof(kvant_param),
                                .name = "symmetry",
                                .unit = "",
                                .help = "symmetric: a scale; asymmetric: a scale and a minimum or zero",
                                CHOICE(symmetries, UNIFORM_SYMMETRIC)},
    [UNIFORM_PARAM_SCALE] = {.struct_size = sizeof(kvant_param),
                             .name = "scale",
                             .unit = "",
                             .help = "type of stored scales and minima; e8m0 rounds up, its minima are bf16",
                             CHOICE(scales, 1)},
    [UNIFORM_PARAM_SCALING] = {.struct_size = sizeof(kvant_param),
                               .name = "scaling",
                               .unit = "",
                               .help =
                                   "scales from the block's data, from static_scale, or from the artifact",
                               CHOICE(scalings, UNIFORM_DYNAMIC)},
    [UNIFORM_PARAM_STATIC_SCALE] = {.struct_size = sizeof(kvant_param),
                                    .type = KVANT_PARAM_NUMBER,
                                    .name = "static_scale",
                                    .unit = "",
                                    .help = "the scale of every element; only with scaling = static",
                                    .number_min = 1e-37,
                                    .number_max = 1e38,
                                    .number_default = 1},
    [UNIFORM_PARAM_STATIC_MIN] = {.struct_size = sizeof(kvant_param),
                                  .type = KVANT_PARAM_NUMBER,
                                  .name = "static_min",
                                  .unit = "",
                                  .help = "the minimum of every element; only static and asymmetric",
                                  .number_min = -1e30, /* so that x - min stays finite */
                                  .number_max = 1e30,
                                  .number_default = 0},
    [UNIFORM_PARAM_CONVENTION] = {.struct_size = sizeof(kvant_param),
                                  .name = "convention",
                                  .unit = "",
                                  .help = "whose arithmetic: range, scale, zero, rounding (README)",
                                  CHOICE(conventions, UNIFORM_KVANT)},
    [UNIFORM_PARAM_ROPE] = {.struct_size = sizeof(kvant_param),
                            .name = "rope",
                            .unit = "",
                            .help = "keys are stored after or before RoPE",
                            CHOICE(ropes, UNIFORM_KEYS_AFTER_ROPE)},
};

const char *uniform_word(uint32_t param, uint32_t value) {
    const kvant_param *p = &uniform_params[param];
    return value < p->choice_count ? p->choices[value] : "?";
}

uint32_t uniform_format_bits(uint32_t format) {
    switch (format) {
    case UNIFORM_INT4:
        return 4;
    case UNIFORM_INT3:
        return 3;
    case UNIFORM_INT2:
        return 2;
    case UNIFORM_INT1:
        return 1;
    default:
        return 8;
    }
}

bool uniform_format_is_float(uint32_t format) {
    return format == UNIFORM_E4M3 || format == UNIFORM_E5M2;
}

/* ---- What goes together -------------------------------------------------------------------------------- */

#define CONFLICT(param, ...) kvant_fail(diag, KVANT_ERROR_CONFLICT, uniform_params[param].name, __VA_ARGS__)

/* A parameter that would be ignored is an error, not a wish. */
static kvant_status check_idle(const uniform_config *c, const kvant_value *values, kvant_diag *diag) {
    bool grouped = c->granularity == UNIFORM_GROUP_CHANNELS || c->granularity == UNIFORM_GROUP_TOKENS;
    if (values[UNIFORM_PARAM_GROUP].given && !grouped)
        return CONFLICT(
            UNIFORM_PARAM_GROUP,
            "group has no meaning with granularity = %s: group_channels and group_tokens have groups",
            uniform_word(UNIFORM_PARAM_GRANULARITY, c->granularity));
    if (values[UNIFORM_PARAM_STATIC_SCALE].given && c->scaling != UNIFORM_STATIC)
        return CONFLICT(UNIFORM_PARAM_STATIC_SCALE,
                        "static_scale has no meaning with scaling = %s: it takes static",
                        uniform_word(UNIFORM_PARAM_SCALING, c->scaling));
    if (values[UNIFORM_PARAM_STATIC_MIN].given &&
        (c->scaling != UNIFORM_STATIC || c->symmetry != UNIFORM_ASYMMETRIC))
        return CONFLICT(
            UNIFORM_PARAM_STATIC_MIN,
            "static_min has no meaning with scaling = %s, symmetry = %s: it takes static and asymmetric",
            uniform_word(UNIFORM_PARAM_SCALING, c->scaling),
            uniform_word(UNIFORM_PARAM_SYMMETRY, c->symmetry));
    return KVANT_OK;
}

static kvant_status check_scaling(const uniform_config *c, kvant_diag *diag) {
    if (c->scaling == UNIFORM_STATIC && c->granularity != UNIFORM_TENSOR)
        return CONFLICT(
            UNIFORM_PARAM_GRANULARITY,
            "scaling = static is one scale for everything: granularity = tensor, not %s (scaling = "
            "artifact has one for each head, channel or group of channels)",
            uniform_word(UNIFORM_PARAM_GRANULARITY, c->granularity));
    if (c->scaling == UNIFORM_ARTIFACT &&
        (c->granularity == UNIFORM_TOKEN || c->granularity == UNIFORM_GROUP_TOKENS))
        return CONFLICT(
            UNIFORM_PARAM_GRANULARITY,
            "scaling = artifact knows no tokens in advance: granularity = tensor, head, channel or "
            "group_channels, not %s",
            uniform_word(UNIFORM_PARAM_GRANULARITY, c->granularity));
    return KVANT_OK;
}

kvant_status uniform_config_read(uniform_config *c, const kvant_setup *setup, kvant_diag *diag) {
    if (setup->value_count != UNIFORM_PARAM_COUNT)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "%u parameter values where the schema has %d",
                          setup->value_count, UNIFORM_PARAM_COUNT);
    const kvant_value *v = setup->values;
    *c = (uniform_config){.format = (uint32_t)v[UNIFORM_PARAM_FORMAT].integer,
                          .granularity = (uint32_t)v[UNIFORM_PARAM_GRANULARITY].integer,
                          .group = (uint32_t)v[UNIFORM_PARAM_GROUP].integer,
                          .symmetry = (uint32_t)v[UNIFORM_PARAM_SYMMETRY].integer,
                          .scale = scale_dtypes[v[UNIFORM_PARAM_SCALE].integer],
                          .scaling = (uint32_t)v[UNIFORM_PARAM_SCALING].integer,
                          .static_scale = (float)v[UNIFORM_PARAM_STATIC_SCALE].number,
                          .static_min = (float)v[UNIFORM_PARAM_STATIC_MIN].number,
                          .convention = (uint32_t)v[UNIFORM_PARAM_CONVENTION].integer,
                          .rope = (uint32_t)v[UNIFORM_PARAM_ROPE].integer};
    if (uniform_format_is_float(c->format) && c->symmetry == UNIFORM_ASYMMETRIC)
        return CONFLICT(UNIFORM_PARAM_SYMMETRY, "format = %s is a float with a sign: symmetry = symmetric",
                        uniform_word(UNIFORM_PARAM_FORMAT, c->format));
    if (c->rope == UNIFORM_KEYS_BEFORE_ROPE && setup->side != KVANT_SIDE_KEY)
        return CONFLICT(UNIFORM_PARAM_ROPE,
                        "rope = before is for keys: values do not turn (give values a codec of "
                        "their own)");
    kvant_status status = check_idle(c, v, diag);
    if (status == KVANT_OK) status = check_scaling(c, diag);
    return status;
}
