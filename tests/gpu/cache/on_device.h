/* A test of the host's cache, with its pool on a device: the calls of kvant/cache.h that are given rows,
 * queries or outputs are wrapped by the linker (-Wl,--wrap), and take the caller's memory to the device and
 * back. What is seen of them is what the host's cache shows, but for two things: outputs are within
 * tolerance, and queries are rounded to the geometry's dtype, in the caller's memory as well.
 *
 * Where the pipeline refuses numbers that are not finite, the wrapped calls look for them before and refuse
 * as the host does: that commit finds them is another test's matter. */
#ifndef KVANT_TEST_GPU_CACHE_ON_DEVICE_H
#define KVANT_TEST_GPU_CACHE_ON_DEVICE_H

#include <kvant/cache.h>

/* Caches that are opened from now on lie there; NULL = in the host's memory. */
void on_device(kvant_device *device);

/* The calls that a test program wraps, for CMake: kvant_cache_open, kvant_step_put, kvant_step_attend,
 * kvant_step_layer_begin, kvant_step_layer_end, kvant_step_abort, kvant_cache_attend,
 * kvant_cache_attend_scratch, kvant_sequence_read. */

#endif
