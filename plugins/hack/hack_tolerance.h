/* The attention tolerance that `plan` states: about 1.6 times the largest error that was measured, by the
 * length of what one 8-bit range covers. README.md, section "Attention error", has the measurement, and says
 * why no proof gives a useful bound. */
#ifndef KVANT_HACK_TOLERANCE_H
#define KVANT_HACK_TOLERANCE_H

#include "hack_block.h"

static inline double hack_tolerance(const hack_block *block) {
    if (block->flat > 0) return 1.0; /* a scale of 1 may be far above all others */
    if (block->side == KVANT_SIDE_KEY) return block->part <= 256 ? 0.08 : block->part <= 1024 ? 0.2 : 0.4;
    uint32_t count = block->partition;
    return count <= 64 ? 0.12 : count <= 128 ? 0.18 : count <= 256 ? 0.3 : count <= 1024 ? 0.5 : 0.7;
}

#endif
