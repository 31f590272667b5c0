/* Turns for codecs that attend on keys before RoPE: see kvant_score_args.
 *
 * A block's first position is cut into digits of 6 bits, and what is above 18 bits: its angle is the sum of
 * theirs. Three come from tables, the last is computed once for 262144 positions. Sums of angles are taken in
 * double, so that a turn is within 2^-50 before it is rounded to float. */
#include "attend/attend.h"

#include "pipeline/turns.h"

#include <stdlib.h>

enum { DIGIT = KVANT_TURN_PERIOD, TABLES = DIGIT * DIGIT * DIGIT };

kvant_status attend_turns_make(kvant_attention *a) {
    size_t width = 2 * (size_t)a->pairs;
    double *base = malloc(width * sizeof *base);
    a->offset_turns = calloc((size_t)a->block_tokens * width, sizeof *a->offset_turns);
    a->coarse_turns = calloc(2 * DIGIT * width, sizeof *a->coarse_turns);
    bool made = base != NULL && a->offset_turns != NULL && a->coarse_turns != NULL;
    if (made) {
        kvant_turn_walk walk = kvant_turn_walk_begin(a->rope, a->turn_table, base);
        for (uint32_t t = 0; t < a->block_tokens; t++)
            kvant_turn_walk_to(&walk, t, a->offset_turns + t * width);
        for (uint32_t i = 0; i < DIGIT; i++) {
            kvant_turn_exact(a->rope, (uint64_t)i * DIGIT, a->coarse_turns + i * width);
            kvant_turn_exact(a->rope, (uint64_t)i * DIGIT * DIGIT, a->coarse_turns + (DIGIT + i) * width);
        }
    }
    free(base);
    return made ? KVANT_OK : KVANT_ERROR_MEMORY;
}

void attend_turns_first(const kvant_attention *a, uint64_t position, uint64_t *multiple, double *base,
                        float *turns) {
    size_t width = 2 * (size_t)a->pairs;
    float magnitude = (float)a->rope->magnitude;
    uint64_t above = position - position % TABLES;
    if (above != *multiple) {
        kvant_turn_exact(a->rope, above, base);
        *multiple = above;
    }
    const double *x = a->coarse_turns + (DIGIT + position / (DIGIT * DIGIT) % DIGIT) * width;
    const double *y = a->coarse_turns + position / DIGIT % DIGIT * width;
    const double *z = a->turn_table + position % DIGIT * width;
    for (uint32_t i = 0; i < a->pairs; i++) {
        double c = base[2 * i], s = base[2 * i + 1];
        double cx = c * x[2 * i] - s * x[2 * i + 1], sx = s * x[2 * i] + c * x[2 * i + 1];
        double cy = cx * y[2 * i] - sx * y[2 * i + 1], sy = sx * y[2 * i] + cx * y[2 * i + 1];
        turns[2 * i] = (float)(cy * z[2 * i] - sy * z[2 * i + 1]) * magnitude;
        turns[2 * i + 1] = (float)(sy * z[2 * i] + cy * z[2 * i + 1]) * magnitude;
    }
}
