/* A loop over many threads, for the offline jobs (eval, check, bench, calibrate). Results must not depend on
 * which thread does which index: every index writes a place of its own. */
#ifndef KVANT_BASE_PARALLEL_H
#define KVANT_BASE_PARALLEL_H

#include <kvant/types.h>

/* Calls body(context, index, thread) for 0 <= index < count from `threads` threads (0 = one per online CPU;
 * the caller is one of them), 0 <= thread < threads. Stops handing out indices after the first failure and
 * returns the status of the smallest index that failed. */
kvant_status kvant_parallel_for(uint32_t threads, uint32_t count,
                                kvant_status (*body)(void *context, uint32_t index, uint32_t thread),
                                void *context);

/* What 0 threads means on this machine. */
uint32_t kvant_parallel_threads(uint32_t threads);

#endif
