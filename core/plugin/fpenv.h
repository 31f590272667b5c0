/* The floating-point environment that plugins may count on, and the caller's back afterwards.
 *
 *     kvant_fp_state saved = kvant_fp_enter();
 *     status = plugin->encode(state, &args);
 *     kvant_fp_leave(saved);
 *
 * Inside: rounding to nearest, ties to even; denormals are neither flushed nor taken for zero; no traps.
 * `leave` puts back everything that `enter` found, flags included, so that an application which runs with FTZ
 * and DAZ on (most do that compute audio or were linked with -ffast-math) neither changes a codec's bytes nor
 * notices us. The environment belongs to a thread: call both in the same one. Costs a few nanoseconds.
 */
#ifndef KVANT_PLUGIN_FPENV_H
#define KVANT_PLUGIN_FPENV_H

#include <stdint.h>

typedef struct kvant_fp_state {
    uint64_t control; /* MXCSR on x86-64, FPCR on AArch64 */
    uint64_t status;  /* the x87 control word on x86-64, FPSR on AArch64 */
} kvant_fp_state;

kvant_fp_state kvant_fp_enter(void);
void kvant_fp_leave(kvant_fp_state saved);

#endif
