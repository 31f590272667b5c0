/* What the files of the triaxial codec share: its state and the two hot calls for each instruction set. */
#ifndef KVANT_TRIAXIAL_H
#define KVANT_TRIAXIAL_H

#include "triaxial_block.h"

#include <kvant/plugin.h>

/* Parameters, in the order of the schema. */
enum {
    TRIAXIAL_PARAM_GROUP,
    TRIAXIAL_PARAM_SPACE,
    TRIAXIAL_PARAM_POLICY,
    TRIAXIAL_PARAM_BUDGET,
    TRIAXIAL_PARAM_TAGS,
    TRIAXIAL_PARAM_COUNT
};
enum { TRIAXIAL_POLICY_RULES, TRIAXIAL_POLICY_ARTIFACT };

/* Code for one instruction set. Strides, dtypes and ranges as plugin.h says for encode and decode. The
 * scratch of a call begins with the order of the tokens, uint32_t [tokens]. */
typedef struct triaxial_code_set {
    uint32_t isa;
    void (*encode)(const triaxial_block *block, kvant_encode_args *args);
    void (*decode)(const triaxial_block *block, const kvant_decode_args *args);
    uint64_t (*scratch_bytes)(const triaxial_block *block);
} triaxial_code_set;

typedef struct triaxial_state {
    triaxial_block block;
    const triaxial_code_set *code;
} triaxial_state;

extern const triaxial_code_set triaxial_code_reference;
extern const triaxial_code_set triaxial_code_v2, triaxial_code_v3, triaxial_code_v4,
    triaxial_code_neon; /* those that were built */

extern const kvant_inspect triaxial_inspect;
extern const kvant_calibrate triaxial_calibrate;

/* The map of widths at the head of an extent, with its padding. */
static inline void triaxial_map_write(const triaxial_block *block, uint8_t *extent, const uint32_t *order,
                                      uint32_t wide) {
    memset(extent, 0, block->map_bytes);
    for (uint32_t i = block->tokens - wide; i < block->tokens; i++)
        extent[order[i] / 8] = (uint8_t)(extent[order[i] / 8] | 1u << order[i] % 8);
}

#endif
