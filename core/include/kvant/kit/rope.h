/* kvant/kit/rope.h: rotary position embedding (Su et al., RoFormer, arXiv 2104.09864) without libm.
 *
 * Pair i of a row at position p turns by the angle p * inverse_frequency[i], the exact product. A turn is the
 * angle's cosine and sine, each within 2^-52 of the exact value for every 64-bit position (products up to
 * 2^64) and then rounded once to float:
 *
 *     turns[2 i] = cos(p * inverse_frequency[i])     turns[2 i + 1] = sin(p * inverse_frequency[i])
 *
 * Rows are turned in float, one rounding for each * and +. A rope of style NONE, or none at all (NULL), turns
 * nothing and its tables have no entries. Channels from rotary_dim on are left alone.
 */
#ifndef KVANT_KIT_ROPE_H
#define KVANT_KIT_ROPE_H

#include "../types.h"
#include "math.h"

/* theta^(-2i/rotary_dim) for i < rotary_dim/2, within 1 ulp. theta > 0 and finite. */
static inline void kvant_rope_inverse_frequency(double theta, uint32_t rotary_dim, double *out) {
    kvant_double_double log_theta = kvant_double_double_log(theta);
    for (uint32_t i = 0; i < rotary_dim / 2; i++) {
        double factor = -2.0 * i;
        kvant_double_double power = kvant_two_product(log_theta.high, factor);
        power.low += log_theta.low * factor;
        out[i] = kvant_double_double_exp(kvant_double_double_divide(power, rotary_dim));
    }
}

/* Pairs of a row that turn, which are the entries of one position's table: each is two floats. */
static inline uint32_t kvant_rope_pairs(const kvant_rope *rope) {
    return rope == NULL || rope->style == KVANT_ROPE_NONE ? 0u : rope->rotary_dim / 2;
}

/* turns: [kvant_rope_pairs(rope), 2] */
static inline void kvant_rope_turns(const kvant_rope *rope, uint64_t position, float *turns) {
    uint32_t pairs = kvant_rope_pairs(rope);
    /* The position as two doubles, exact. */
    kvant_double_double p =
        kvant_two_sum((double)(position >> 32) * 0x1p32, (double)(position & 0xffffffffu));
    for (uint32_t i = 0; i < pairs; i++) {
        double frequency = rope->inverse_frequency[i];
        kvant_double_double angle = kvant_two_product(p.high, frequency);
        angle.low += p.low * frequency;
        double sine, cosine;
        kvant_sin_cos(angle, &sine, &cosine);
        turns[2 * i] = (float)cosine;
        turns[2 * i + 1] = (float)sine;
    }
}

/* Turns one row in place, and multiplies what it turns by the magnitude (as a float). */
static inline void kvant_rope_apply(const kvant_rope *rope, const float *turns, float *row) {
    uint32_t pairs = kvant_rope_pairs(rope);
    if (pairs == 0) return;
    float magnitude = (float)rope->magnitude;
    if (rope->style == KVANT_ROPE_NEOX) {
        float *second = row + pairs;
        for (uint32_t i = 0; i < pairs; i++) {
            float x = row[i], y = second[i];
            row[i] = (x * turns[2 * i] - y * turns[2 * i + 1]) * magnitude;
            second[i] = (y * turns[2 * i] + x * turns[2 * i + 1]) * magnitude;
        }
    } else {
        for (uint32_t i = 0; i < pairs; i++) {
            float x = row[2 * i], y = row[2 * i + 1];
            row[2 * i] = (x * turns[2 * i] - y * turns[2 * i + 1]) * magnitude;
            row[2 * i + 1] = (y * turns[2 * i] + x * turns[2 * i + 1]) * magnitude;
        }
    }
}

/* Turns one row back in place, and divides what it turns by the magnitude. */
static inline void kvant_rope_undo(const kvant_rope *rope, const float *turns, float *row) {
    uint32_t pairs = kvant_rope_pairs(rope);
    if (pairs == 0) return;
    float magnitude = (float)rope->magnitude;
    if (rope->style == KVANT_ROPE_NEOX) {
        float *second = row + pairs;
        for (uint32_t i = 0; i < pairs; i++) {
            float x = row[i], y = second[i];
            row[i] = (x * turns[2 * i] + y * turns[2 * i + 1]) / magnitude;
            second[i] = (y * turns[2 * i] - x * turns[2 * i + 1]) / magnitude;
        }
    } else {
        for (uint32_t i = 0; i < pairs; i++) {
            float x = row[2 * i], y = row[2 * i + 1];
            row[2 * i] = (x * turns[2 * i] + y * turns[2 * i + 1]) / magnitude;
            row[2 * i + 1] = (y * turns[2 * i] - x * turns[2 * i + 1]) / magnitude;
        }
    }
}

#endif
