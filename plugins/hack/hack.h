/* What the files of the HACK codec share: its state and the hot calls for each instruction set. */
#ifndef KVANT_HACK_H
#define KVANT_HACK_H

#include "hack_block.h"

#include <kvant/plugin.h>

/* Code for one instruction set. As plugin.h says for each call. */
typedef struct hack_code_table {
    uint32_t isa;
    void (*encode)(const hack_block *block, kvant_encode_args *args);
    void (*decode)(const hack_block *block, const kvant_decode_args *args);
    uint64_t (*scratch_bytes)(const hack_block *block);
} hack_code_table;

typedef struct hack_attend_table {
    void (*query)(const hack_block *block, const kvant_query_args *args);
    void (*score)(const hack_block *block, const kvant_score_args *args);
    void (*mix)(const hack_block *block, const kvant_mix_args *args);
    uint64_t (*scratch_bytes)(const hack_block *block);
    uint64_t (*scratch_row)(const hack_block *block);
} hack_attend_table;

typedef struct hack_state {
    hack_block block;
    const hack_code_table *code;
    const hack_attend_table *attend;
} hack_state;

extern const hack_code_table hack_code_reference;
extern const hack_code_table hack_code_v2, hack_code_v3, hack_code_v4, hack_code_neon; /* that were built */

/* Once per step, the same for all levels. */
void hack_query(const hack_block *block, const kvant_query_args *args);

extern const hack_attend_table hack_attend_reference;
extern const hack_attend_table hack_attend_v2, hack_attend_v3, hack_attend_v4, hack_attend_neon;

extern const kvant_inspect hack_inspect;

#endif
