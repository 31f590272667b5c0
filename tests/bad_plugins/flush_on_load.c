/* Its constructor turns denormals off, as crtfastmath does in what is linked with -ffast-math: accepted,
 * and the host puts the caller's floating-point environment back. */
#include "honest.h"

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((constructor)) static void flush(void) {
    _mm_setcsr(_mm_getcsr() | 0x8040);
}
#endif

LIAR("flush_on_load", .extension = NULL)
