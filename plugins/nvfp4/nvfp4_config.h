/* The parameters of the codec as plain members, and where the global scale comes from. */
#ifndef KVANT_NVFP4_CONFIG_H
#define KVANT_NVFP4_CONFIG_H

#include <kvant/plugin.h>

#include <stdbool.h>

enum {
    NVFP4_PARAM_FORMAT,
    NVFP4_PARAM_FOUR_OVER_SIX,
    NVFP4_PARAM_EXPONENT,
    NVFP4_PARAM_GLOBAL,
    NVFP4_PARAM_GLOBAL_VALUE,
    NVFP4_PARAM_GLOBAL_CONVENTION,
    NVFP4_PARAM_AMAX_DIVISOR,
    NVFP4_PARAM_GLOBAL_PER,
    NVFP4_PARAM_COUNT
};

/* The choices, in the order of the schema. */
enum { NVFP4_FORMAT_NVFP4, NVFP4_FORMAT_MXFP4 };
enum { NVFP4_SIX, NVFP4_FOUR_OVER_SIX_MAE, NVFP4_FOUR_OVER_SIX_MSE };
enum { NVFP4_EXPONENT_FLOOR, NVFP4_EXPONENT_EVEN, NVFP4_EXPONENT_CEIL, NVFP4_EXPONENT_RCEIL };
enum { NVFP4_GLOBAL_EXTENT, NVFP4_GLOBAL_PARAMETER, NVFP4_GLOBAL_ARTIFACT };
enum { NVFP4_CONVENTION_MULTIPLIER, NVFP4_CONVENTION_INVERSE, NVFP4_CONVENTION_AMAX };
enum { NVFP4_PER_LAYER, NVFP4_PER_HEAD };

enum { NVFP4_BLOCK_NV = 16, NVFP4_BLOCK_MX = 32, NVFP4_BLOCK_MAX = 32 }; /* channels of a block */

typedef struct nvfp4_config {
    uint32_t format;
    uint32_t four_over_six;
    uint32_t exponent;
    uint32_t global;
    uint32_t convention;
    uint32_t per;
    float value; /* of global_value */
    float divisor;
} nvfp4_config;

/* The second level of scaling. x^ = e2m1(code) * scale * multiplier; the inverse is what encoders of other
 * projects multiply by. Each is the other's reciprocal up to one rounding; which one is rounded depends on
 * where they come from. */
typedef struct nvfp4_global {
    float multiplier; /* g */
    float inverse;    /* G = 1/g */
} nvfp4_global;

extern const kvant_param nvfp4_params[NVFP4_PARAM_COUNT];

/* Reads setup.values and refuses what does not go together. */
kvant_status nvfp4_config_read(nvfp4_config *config, const kvant_setup *setup, kvant_diag *diag);

/* Global scales that the codec takes: within [2^-112, 2^120] no intermediate result over- or underflows. */
bool nvfp4_global_is_usable(nvfp4_global global);

/* From a number of the convention. */
nvfp4_global nvfp4_global_from(const nvfp4_config *config, uint32_t convention, float value);

/* From the largest magnitude of the data: of a tensor, an extent or what calibration saw. Magnitudes below
 * 2^-100 count as 2^-100, so that a tensor of zeros has a scale too. */
nvfp4_global nvfp4_global_from_amax(const nvfp4_config *config, float amax);

/* How many global scales a layer of `heads` heads has. */
uint32_t nvfp4_global_count(const nvfp4_config *config, uint32_t heads);

#endif
