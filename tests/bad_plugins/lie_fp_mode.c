/* Lie: leaves the thread with denormals flushed and rounding towards zero. */
#include "honest.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static kvant_status encode(const void *state, kvant_encode_args *args) {
    kvant_status status = honest_encode(state, args);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0xe040);
#endif
    return status;
}

LIAR("lie_fp_mode", .encode = encode)
