/* What error a formula must show, computed in double precision from the published formula alone: no code,
 * constant or header of a plugin. Oracles are found by the format's id, so that a codec of another name
 * that claims the format is held to it too. */
#ifndef KVANT_CHECK_ORACLE_H
#define KVANT_CHECK_ORACLE_H

#include <kvant/plugin.h>

#include <stdbool.h>

enum { ORACLE_ARRAYS = 4 };

typedef struct oracle {
    const char *format; /* four characters: descriptor.format_id */
    /* Quantizes values[block_tokens * kv_heads * head_dim] and fills expected[] with what must come back,
     * up to the rounding of single operations. False where it does not know this setup. */
    bool (*quantize)(const kvant_descriptor *descriptor, const kvant_setup *setup, const float *values,
                     double *expected);
    /* What an artifact must hold for this setup: fills arrays[], whose data it takes from malloc, and
     * returns how many. 0 where the setup asks for none. NULL for a format that never does. */
    uint32_t (*learn)(const kvant_descriptor *descriptor, const kvant_setup *setup,
                      kvant_array arrays[ORACLE_ARRAYS]);
    /* Published error bands; ends with an entry without settings. */
    const struct oracle_band *bands;
} oracle;

/* Relative L2 error on 1 of CHECK_DATA_NORMAL, OUTLIER, OFFSET; 0 = no figure. */
typedef struct oracle_band {
    const char *settings; /* "side=key bits=2 group=32" */
    double error[3];
} oracle_band;

/* NULL for a format that the check does not know. */
const oracle *oracle_find(const kvant_descriptor *descriptor);

/* Value of parameter `name` of a setup. Numbers: see oracle_number. A choice is compared by its word. */
int64_t oracle_integer(const kvant_descriptor *descriptor, const kvant_setup *setup, const char *name,
                       int64_t otherwise);
double oracle_number(const kvant_descriptor *descriptor, const kvant_setup *setup, const char *name,
                     double otherwise);
bool oracle_is(const kvant_descriptor *descriptor, const kvant_setup *setup, const char *name,
               const char *word);

extern const oracle oracle_raw;
extern const oracle oracle_uniform;
extern const oracle oracle_kivi;
extern const oracle oracle_nvfp4;
extern const oracle oracle_hack;

#endif
