/* See turns.h. */
#include "pipeline/turns.h"

#include <kvant/kit/rope.h>

void kvant_turn_exact(const kvant_rope *rope, uint64_t position, double *turns) {
    uint32_t pairs = kvant_rope_pairs(rope);
    /* The position as two doubles, exact. */
    kvant_double_double p =
        kvant_two_sum((double)(position >> 32) * 0x1p32, (double)(position & 0xffffffffu));
    for (uint32_t i = 0; i < pairs; i++) {
        double frequency = rope->inverse_frequency[i];
        kvant_double_double angle = kvant_two_product(p.high, frequency);
        angle.low += p.low * frequency;
        kvant_sin_cos(angle, &turns[2 * i + 1], &turns[2 * i]);
    }
}

/* Doubles of one position. */
static size_t width_of(const kvant_rope *rope) {
    return (size_t)kvant_rope_pairs(rope) * 2;
}

size_t kvant_turn_table_size(const kvant_rope *rope) {
    return KVANT_TURN_PERIOD * width_of(rope);
}

void kvant_turn_table_fill(const kvant_rope *rope, double *table) {
    for (uint32_t t = 0; t < KVANT_TURN_PERIOD; t++) kvant_turn_exact(rope, t, table + t * width_of(rope));
}

kvant_turn_walk kvant_turn_walk_begin(const kvant_rope *rope, const double *table, double *base) {
    return (kvant_turn_walk){rope, table, UINT64_MAX, base};
}

void kvant_turn_walk_to(kvant_turn_walk *walk, uint64_t position, float *turns) {
    uint64_t multiple = position - position % KVANT_TURN_PERIOD;
    if (multiple != walk->multiple) {
        kvant_turn_exact(walk->rope, multiple, walk->base);
        walk->multiple = multiple;
    }
    uint32_t pairs = kvant_rope_pairs(walk->rope);
    const double *restrict base = walk->base;
    const double *restrict offset = walk->table + position % KVANT_TURN_PERIOD * width_of(walk->rope);
    for (uint32_t i = 0; i < pairs; i++) {
        double c = base[2 * i] * offset[2 * i] - base[2 * i + 1] * offset[2 * i + 1];
        double s = base[2 * i + 1] * offset[2 * i] + base[2 * i] * offset[2 * i + 1];
        turns[2 * i] = (float)c;
        turns[2 * i + 1] = (float)s;
    }
}
