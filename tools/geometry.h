/* A geometry on the command line:
 *
 *     layers=30,kv_heads=3,q_heads=9,head_dim=64[,value_dim=64],dtype=f16,rope=neox:100000[:rotary_dim]
 *
 * The same for every layer. Parts stand in any order, each once. rope is `none`, or a style (neox, gptj),
 * theta and, where not the whole head turns, the number of channels that do.
 */
#ifndef KVANT_TOOLS_GEOMETRY_H
#define KVANT_TOOLS_GEOMETRY_H

#include <kvant/kvant.h>

/* `value` is what the library takes; the rest is its memory. Does not move: value points into it. */
typedef struct parsed_geometry {
    kvant_geometry value;
    kvant_layer_geometry *layers;
    kvant_rope rope;
    double *inverse_frequency;
} parsed_geometry;

/* Fills *out, whose keys are after RoPE and whose model is `model` (not copied; NULL = unknown). SYNTAX,
 * UNKNOWN_NAME, DUPLICATE, MISSING, VALUE or GEOMETRY, with key = the part and a message that names the
 * rule. */
kvant_status geometry_parse(const char *text, const char *model, parsed_geometry *out, kvant_diag *diag);
void geometry_free(parsed_geometry *g);

#endif
