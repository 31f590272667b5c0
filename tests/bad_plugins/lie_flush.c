/* Lie: computes with denormals flushed to zero, whatever the host set: what is below 1.2e-38 is lost. */
#include "honest.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static kvant_status encode(const void *state, kvant_encode_args *args) {
#if defined(__x86_64__)
    unsigned found = _mm_getcsr();
    _mm_setcsr(found | 0x8040);
    kvant_status status = honest_encode(state, args);
    _mm_setcsr(found);
    return status;
#else
    return honest_encode(state, args);
#endif
}

LIAR("lie_flush", .encode = encode)
