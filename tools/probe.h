/* What a codec would take: plan asked for one side of a geometry, as `kvant list` and `kvant info` show
 * it. */
#ifndef KVANT_TOOLS_PROBE_H
#define KVANT_TOOLS_PROBE_H

#include "geometry.h"

#include <jansson.h>

typedef struct probe {
    kvant_layout layout;
    uint32_t block_tokens;
    double elements;    /* of an extent */
    double payload_min; /* bits per element, codes alone, of the smallest and the largest extent */
    double payload_max;
    double all_in_min; /* every byte of the extent */
    double all_in_max;
} probe;

/* The defaults of a plugin's parameters, param_count values, for the caller to change and free; NULL
 * without memory. */
kvant_value *probe_defaults(const kvant_plugin *plugin);

/* Plans layer 0 of a geometry. block_tokens = 0: 64, or the next number that the codec takes. Errors are
 * the plugin's. PLUGIN_BROKEN if what it answers makes no sense. */
kvant_status probe_plan(const kvant_plugin *plugin, const kvant_geometry *geometry, uint32_t side,
                        uint32_t block_tokens, const kvant_value *values, probe *out, kvant_diag *diag);

/* "key", "value" for a side, "f16" for a dtype of rows. */
const char *side_name(uint32_t side);
const char *dtype_name(uint32_t dtype);

/* A string for JSON, which holds UTF-8 only, of bytes that may be none (a path): then with "?" for what is
 * not ASCII. */
json_t *json_of_bytes(const char *bytes);

/* The extension with this id, or NULL. */
const void *probe_extension(const kvant_plugin *plugin, const char *id);

#endif
