/* What the files of the KIVI codec share: its state and the two hot calls for each instruction set. */
#ifndef KVANT_KIVI_H
#define KVANT_KIVI_H

#include "kivi_block.h"

#include <kvant/plugin.h>

/* Code for one instruction set. Strides, dtypes and ranges as plugin.h says for encode and decode. */
typedef struct kivi_code {
    uint32_t isa;
    void (*encode)(const kivi_block *block, kvant_encode_args *args);
    void (*decode)(const kivi_block *block, const kvant_decode_args *args);
    uint64_t (*scratch_bytes)(const kivi_block *block);
} kivi_code;

typedef struct kivi_state {
    kivi_block block;
    const kivi_code *code;
} kivi_state;

extern const kivi_code kivi_code_reference;
extern const kivi_code kivi_code_v2, kivi_code_v3, kivi_code_v4, kivi_code_neon; /* those that were built */

/* What a setup asks for, checked; see kivi_block.h. */
kvant_status kivi_block_of(const kvant_setup *setup, kivi_block *block, kvant_diag *diag);

extern const kvant_inspect kivi_inspect;
extern const kvant_gpu kivi_gpu; /* where GPU code is built */

#endif
