/* A simulated device with one small module, for tests of the device itself. What it complains of is kept
 * instead of failing the test. */
#ifndef KVANT_TEST_DRIVER_BED_H
#define KVANT_TEST_DRIVER_BED_H

#include "sim.h"
#include "sim_calls.h"

#include "support/test.h"

/* Kernels, each of (address of floats, count): `increase` adds 1 to each, `twice` doubles, `stray` writes one
 * float behind them, `unwritten` reads shared memory that nobody wrote, `never` is not looked up by
 * bed_begin. */
extern const char bed_ptx[];

enum { BED_FLOATS = 256, BED_BYTES = BED_FLOATS * (int)sizeof(float) };

typedef struct driver_bed {
    gpu_context context;
    gpu_library library;
    gpu_function increase, twice, stray;
    gpu_stream streams[2];   /* do not block with the NULL stream */
    gpu_address x, y;        /* BED_FLOATS each, all 0 */
    float *pinned, *pinned2; /* as many, page-locked */
} driver_bed;

/* Compute capability 8.0 and full checks; other members as they are given. */
void bed_begin(driver_bed *bed, sim_config config);
/* Everything must have been given back. */
void bed_end(driver_bed *bed);

/* What was complained of since the last call; "" if nothing. */
const char *bed_said(void);

gpu_result bed_launch(gpu_function function, gpu_address x, gpu_stream stream);
/* The first float there, at once: without the driver, and without waiting. */
float bed_peek(gpu_address x);

#define WORKS(call) assert_int_equal((call), GPU_SUCCESS)

#endif
