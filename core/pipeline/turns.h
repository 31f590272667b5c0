/* The cosines and sines by which the host turns keys, fast: the angle of a position is that of the last
 * multiple of 64 before it plus that of an offset from a table. Sums of angles are taken in double,
 * so that a turn is within 2^-51 of the exact value before it is rounded to float; kvant_rope_turns, which
 * computes each angle anew, is within 2^-52. The same position gives the same floats everywhere. */
#ifndef KVANT_PIPELINE_TURNS_H
#define KVANT_PIPELINE_TURNS_H

#include <kvant/types.h>

#include <stddef.h>

enum { KVANT_TURN_PERIOD = 64 };

/* The turns of one position in double, each within 2^-52: [pairs, 2], cosine and sine. */
void kvant_turn_exact(const kvant_rope *rope, uint64_t position, double *turns);

/* Doubles of the table of offsets: [KVANT_TURN_PERIOD, kvant_rope_pairs(rope), 2]. */
size_t kvant_turn_table_size(const kvant_rope *rope);
void kvant_turn_table_fill(const kvant_rope *rope, double *table);

/* Walks positions. `base` is scratch of the caller's, [pairs, 2]. */
typedef struct kvant_turn_walk {
    const kvant_rope *rope;
    const double *table;
    uint64_t multiple; /* whose angle `base` holds; UINT64_MAX = none yet */
    double *base;
} kvant_turn_walk;

kvant_turn_walk kvant_turn_walk_begin(const kvant_rope *rope, const double *table, double *base);

/* turns: [pairs, 2] floats, cosine and sine of the angle of `position`. */
void kvant_turn_walk_to(kvant_turn_walk *walk, uint64_t position, float *turns);

#endif
