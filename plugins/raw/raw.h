/* What the files of raw share: its state, and the hot calls for each instruction set. */
#ifndef KVANT_RAW_H
#define KVANT_RAW_H

#include "raw_block.h"

#include <kvant/plugin.h>

/* Code for one instruction set. The reference is normative: all others give its bytes and floats. */
typedef struct raw_code {
    uint32_t isa;
    /* Returns the number of elements whose value left the format's range. */
    uint64_t (*encode)(const raw_block *block, const kvant_view *rows, uint8_t *extent, void *scratch);
    void (*decode)(const raw_block *block, const kvant_decode_args *args);
    uint64_t (*scratch_bytes)(const raw_block *block);
} raw_code;

typedef struct raw_state {
    raw_block block;
    const raw_code *code;
} raw_state;

/* The byte map of an extent for this setup; GEOMETRY if there is none. */
kvant_status raw_block_of(const kvant_setup *setup, raw_block *block, kvant_diag *diag);

extern const raw_code raw_code_reference;
extern const raw_code raw_code_v2, raw_code_v3, raw_code_v4, raw_code_neon; /* those that were built */

extern const kvant_inspect raw_inspect;
extern const kvant_gpu raw_gpu; /* where GPU code is built */

#endif
