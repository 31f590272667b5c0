/* The schema of `nvfp4`, which combinations of its parameters mean something, and the conventions of the
 * global scale. */
#include "nvfp4_config.h"

#include <kvant/kit/diag.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define CHOICE(words, index)                                                                                 \
    .type = KVANT_PARAM_CHOICE, .choices = (words), .choice_count = COUNT(words), .integer_default = (index)

static const char *const formats[] = {"nvfp4", "mxfp4"};
static const char *const four_over_six[] = {"no", "mae", "mse"};
static const char *const exponents[] = {"floor", "even", "ceil", "rceil"};
static const char *const globals[] = {"extent", "parameter", "artifact"};
static const char *const conventions[] = {"multiplier", "inverse", "amax"};
static const char *const pers[] = {"layer", "head"};
static const int64_t divisors[] = {448, 1536, 2688};

const kvant_param nvfp4_params[NVFP4_PARAM_COUNT] = {
    [NVFP4_PARAM_FORMAT] = {.struct_size = sizeof(kvant_param),
                            .name = "format",
                            .unit = "",
                            .help = "nvfp4: blocks of 16, E4M3 scales and a global one; mxfp4: blocks of 32, "
                                    "powers of two",
                            CHOICE(formats, NVFP4_FORMAT_NVFP4)},
    [NVFP4_PARAM_FOUR_OVER_SIX] = {.struct_size = sizeof(kvant_param),
                                   .name = "four_over_six",
                                   .unit = "",
                                   .help =
                                       "also try the largest element at 4 instead of 6; the smaller error "
                                       "wins (mean absolute or squared); nvfp4 only",
                                   CHOICE(four_over_six, NVFP4_SIX)},
    [NVFP4_PARAM_EXPONENT] = {.struct_size = sizeof(kvant_param),
                              .name = "exponent",
                              .unit = "",
                              .help = "rule of the power of two: OCP floor, even, ceil, or rceil of amax/6; "
                                      "mxfp4 only",
                              CHOICE(exponents, NVFP4_EXPONENT_FLOOR)},
    [NVFP4_PARAM_GLOBAL] = {.struct_size = sizeof(kvant_param),
                            .name = "global_scale",
                            .unit = "",
                            .help = "from each extent's data, from global_value, or from the artifact",
                            CHOICE(globals, NVFP4_GLOBAL_EXTENT)},
    [NVFP4_PARAM_GLOBAL_VALUE] = {.struct_size = sizeof(kvant_param),
                                  .type = KVANT_PARAM_NUMBER,
                                  .name = "global_value",
                                  .unit = "",
                                  .help = "the number of global_convention; with global_scale = parameter",
                                  .number_min = 0x1p-112,
                                  .number_max = 0x1p120,
                                  .number_default = 1},
    [NVFP4_PARAM_GLOBAL_CONVENTION] =
        {.struct_size = sizeof(kvant_param),
         .name = "global_convention",
         .unit = "",
         .help = "global_value is what decoding multiplies by, its inverse, or the largest magnitude",
         CHOICE(conventions, NVFP4_CONVENTION_MULTIPLIER)},
    [NVFP4_PARAM_AMAX_DIVISOR] = {.struct_size = sizeof(kvant_param),
                                  .type = KVANT_PARAM_INTEGER,
                                  .name = "amax_divisor",
                                  .unit = "",
                                  .help = "multiplier = largest magnitude / this: 2688 = 6*448 uses all of "
                                          "E4M3, 1536 = 6*256 leaves room for four_over_six, 448 for "
                                          "growth by 6",
                                  .integers = divisors,
                                  .integer_count = COUNT(divisors),
                                  .integer_min = 448,
                                  .integer_max = 2688,
                                  .integer_default = 2688},
    [NVFP4_PARAM_GLOBAL_PER] = {.struct_size = sizeof(kvant_param),
                                .name = "global_per",
                                .unit = "",
                                .help = "one global scale for all heads, or one for each",
                                CHOICE(pers, NVFP4_PER_LAYER)},
};

/* ---- What goes together -------------------------------------------------------------------------------- */

static kvant_status idle(kvant_diag *diag, uint32_t param, const char *rule) {
    const char *name = nvfp4_params[param].name;
    return kvant_fail(diag, KVANT_ERROR_CONFLICT, name, "%s has no meaning here: %s", name, rule);
}

/* A parameter that would be ignored is an error, not a wish. */
static kvant_status check_idle(const nvfp4_config *c, const kvant_value *values, kvant_diag *diag) {
    if (c->format == NVFP4_FORMAT_MXFP4) {
        for (uint32_t p = 0; p < NVFP4_PARAM_COUNT; p++)
            if (values[p].given && p != NVFP4_PARAM_FORMAT && p != NVFP4_PARAM_EXPONENT)
                return idle(diag, p, "format = mxfp4 has one level of scales, powers of two");
        return KVANT_OK;
    }
    if (values[NVFP4_PARAM_EXPONENT].given)
        return idle(diag, NVFP4_PARAM_EXPONENT, "only format = mxfp4 has scales that are powers of two");
    bool parameter = c->global == NVFP4_GLOBAL_PARAMETER;
    if (!parameter && values[NVFP4_PARAM_GLOBAL_VALUE].given)
        return idle(diag, NVFP4_PARAM_GLOBAL_VALUE, "it takes global_scale = parameter");
    if (!parameter && values[NVFP4_PARAM_GLOBAL_CONVENTION].given)
        return idle(diag, NVFP4_PARAM_GLOBAL_CONVENTION,
                    "it takes global_scale = parameter (an artifact says it by the name of its tensor)");
    if (parameter && values[NVFP4_PARAM_GLOBAL_PER].given && c->per == NVFP4_PER_HEAD)
        return idle(diag, NVFP4_PARAM_GLOBAL_PER, "global_scale = parameter is one number for all heads");
    if (parameter && c->convention != NVFP4_CONVENTION_AMAX && values[NVFP4_PARAM_AMAX_DIVISOR].given)
        return idle(diag, NVFP4_PARAM_AMAX_DIVISOR,
                    "global_value is no magnitude: it takes "
                    "global_convention = amax");
    return KVANT_OK;
}

kvant_status nvfp4_config_read(nvfp4_config *c, const kvant_setup *setup, kvant_diag *diag) {
    if (setup->value_count != NVFP4_PARAM_COUNT)
        return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "%u parameter values where the schema has %d",
                          setup->value_count, NVFP4_PARAM_COUNT);
    const kvant_value *v = setup->values;
    *c = (nvfp4_config){.format = (uint32_t)v[NVFP4_PARAM_FORMAT].integer,
                        .four_over_six = (uint32_t)v[NVFP4_PARAM_FOUR_OVER_SIX].integer,
                        .exponent = (uint32_t)v[NVFP4_PARAM_EXPONENT].integer,
                        .global = (uint32_t)v[NVFP4_PARAM_GLOBAL].integer,
                        .convention = (uint32_t)v[NVFP4_PARAM_GLOBAL_CONVENTION].integer,
                        .per = (uint32_t)v[NVFP4_PARAM_GLOBAL_PER].integer,
                        .value = (float)v[NVFP4_PARAM_GLOBAL_VALUE].number,
                        .divisor = (float)v[NVFP4_PARAM_AMAX_DIVISOR].integer};
    kvant_status status = check_idle(c, v, diag);
    if (status != KVANT_OK || c->format == NVFP4_FORMAT_MXFP4 || c->global != NVFP4_GLOBAL_PARAMETER)
        return status;
    if (!nvfp4_global_is_usable(nvfp4_global_from(c, c->convention, c->value)))
        return kvant_fail(diag, KVANT_ERROR_VALUE, nvfp4_params[NVFP4_PARAM_GLOBAL_VALUE].name,
                          "global_value = %g as %s makes a multiplier that is not within 2^-112 and 2^120",
                          (double)c->value, conventions[c->convention]);
    return KVANT_OK;
}

/* ---- The global scale ---------------------------------------------------------------------------------- */

bool nvfp4_global_is_usable(nvfp4_global global) {
    return global.multiplier >= 0x1p-112f && global.multiplier <= 0x1p120f; /* not NaN */
}

nvfp4_global nvfp4_global_from_amax(const nvfp4_config *config, float amax) {
    const float least = 0x1p-100f, most = 0x1.fffffep127f;
    amax = amax > least ? amax : least;
    amax = amax < most ? amax : most;
    return nvfp4_global_from(config, NVFP4_CONVENTION_AMAX, amax);
}

nvfp4_global nvfp4_global_from(const nvfp4_config *config, uint32_t convention, float value) {
    if (convention == NVFP4_CONVENTION_MULTIPLIER) return (nvfp4_global){value, 1.0f / value};
    if (convention == NVFP4_CONVENTION_INVERSE) return (nvfp4_global){1.0f / value, value};
    float inverse = config->divisor / value;
    /* Each as the reference code of its rule has it. */
    if (config->four_over_six != NVFP4_SIX) return (nvfp4_global){1.0f / inverse, inverse};
    return (nvfp4_global){value / config->divisor, inverse};
}

uint32_t nvfp4_global_count(const nvfp4_config *config, uint32_t heads) {
    if (config->format == NVFP4_FORMAT_MXFP4) return 0;
    return config->per == NVFP4_PER_HEAD ? heads : 1;
}
