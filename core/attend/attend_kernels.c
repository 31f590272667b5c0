/* Which sets of kernels this build has. See attend_kernels.h. */
#include "attend/attend_kernels.h"

#include <kvant/plugin.h>

#include <stddef.h>

extern const kvant_attend_kernels kvant_attend_kernels_base; /* of the instruction set of the build */
#ifdef KVANT_HAVE_V2
extern const kvant_attend_kernels kvant_attend_kernels_v2;
#endif
#ifdef KVANT_HAVE_V3
extern const kvant_attend_kernels kvant_attend_kernels_v3;
#endif
#ifdef KVANT_HAVE_V4
extern const kvant_attend_kernels kvant_attend_kernels_v4;
#endif

const kvant_attend_kernels *kvant_attend_kernels_for(uint32_t isa) {
    static const kvant_attend_kernels *const sets[] = {
        &kvant_attend_kernels_base,
#ifdef KVANT_HAVE_V2
        &kvant_attend_kernels_v2,
#endif
#ifdef KVANT_HAVE_V3
        &kvant_attend_kernels_v3,
#endif
#ifdef KVANT_HAVE_V4
        &kvant_attend_kernels_v4,
#endif
    };
    const kvant_attend_kernels *best = sets[0];
    for (size_t i = 1; i < sizeof sets / sizeof sets[0]; i++)
        if (sets[i]->isa <= isa && isa < KVANT_ISA_AARCH64) best = sets[i];
    return best;
}
