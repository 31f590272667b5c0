/* What the files of the NVFP4 codec share: its state and the two hot calls for each instruction set. */
#ifndef KVANT_NVFP4_H
#define KVANT_NVFP4_H

#include "nvfp4_block.h"
#include "nvfp4_config.h"

#include <kvant/plugin.h>

struct nvfp4_state;

/* Code for one instruction set. Strides, dtypes and ranges as plugin.h says for encode and decode. */
typedef struct nvfp4_code_table {
    uint32_t isa;
    void (*encode)(const struct nvfp4_state *state, kvant_encode_args *args);
    void (*decode)(const struct nvfp4_state *state, const kvant_decode_args *args);
    uint64_t (*scratch_bytes)(const nvfp4_block *block);
} nvfp4_code_table;

typedef struct nvfp4_state {
    nvfp4_config config;
    nvfp4_block block;
    const nvfp4_code_table *code;
    nvfp4_global globals[]; /* [heads], or 1; unset where extents have their own */
} nvfp4_state;

/* The global scale of a head that is not an extent's own: of mxfp4 it is 1. */
static inline nvfp4_global nvfp4_global_of(const nvfp4_state *state, uint32_t head) {
    if (state->config.format == NVFP4_FORMAT_MXFP4) return (nvfp4_global){1.0f, 1.0f};
    return state->globals[state->config.per == NVFP4_PER_HEAD ? head : 0];
}

/* What decoding a head of an extent multiplies by. */
static inline float nvfp4_multiplier_of(const nvfp4_state *state, const uint8_t *extent, uint32_t head) {
    if (state->block.globals == 0) return nvfp4_global_of(state, head).multiplier;
    float multiplier;
    size_t index = state->block.globals > 1 ? head : 0;
    memcpy(&multiplier, extent + state->block.global_offset + index * sizeof multiplier, sizeof multiplier);
    return multiplier;
}

extern const nvfp4_code_table nvfp4_code_reference;
extern const nvfp4_code_table nvfp4_code_v2, nvfp4_code_v3, nvfp4_code_v4,
    nvfp4_code_neon; /* those that were built */

extern const kvant_inspect nvfp4_inspect;
extern const kvant_calibrate nvfp4_calibrate;

#endif
