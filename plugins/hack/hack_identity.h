/* The product of two quantized vectors from integers alone (arXiv 2502.03589, section 5, equation 4), and the
 * order in which attention adds its parts.
 *
 * With a = sa a' + ma and b = sb b' + mb over n numbers of one partition
 *
 *     sum a b = sa sb sum a'b' + mb sa sum a' + ma sb sum b' + n ma mb
 *
 * is an identity: nothing but the quantization of a and b is lost. Sums of b' are stored with the codes.
 *
 * Where b's scale and minimum vary along the summed index (axes = artifact) they cannot be taken out of the
 * sum. The scale is then folded into a before a is quantized, the term of the minimum is a plain float sum:
 *
 *     sum a (sb b' + mb) = sum (a sb) b' + sum a mb      a sb = sx x' + mx, quantized to 8 bits
 *                        = sx sum x'b' + mx sum b' + sum a mb
 *
 *     keys     a = query, summed over the channels of a partition; the last sum runs over all channels
 *     values   a = weights, summed over the tokens of a partition
 *
 * Floats are added in this order, on every instruction set:
 *
 *     keys     logit = ((0 + part 0) + part 1) + ...;   axes = artifact: + the sum of a mb at the end
 *     values   accumulator += part, partition after partition
 *     a sum of floats: number i goes to lane i mod 16, then the halving tree of kit/sum.h over 16 lanes
 */
#ifndef KVANT_HACK_IDENTITY_H
#define KVANT_HACK_IDENTITY_H

#include "hack_quantize.h"

/* Sums of codes and of products: unsigned, so that arbitrary bytes cannot overflow; true ones are below 2^31.
 */
static inline float hack_count(uint32_t sum) {
    return (float)(int32_t)sum;
}

/* sx sum x'b' + mx sum b' */
static inline float hack_folded(hack_operand x, uint32_t dot, uint32_t sum) {
    return x.scale * hack_count(dot) + x.min * hack_count(sum);
}

/* The four terms. a_sum, b_sum: of the codes; count: n. */
static inline float hack_product(hack_operand a, uint32_t a_sum, float b_scale, float b_min, uint32_t b_sum,
                                 uint32_t dot, uint32_t count) {
    return b_scale * hack_folded(a, dot, b_sum) + b_min * hack_folded(a, a_sum, count);
}

enum { HACK_LANES = 16 };

/* kvant_sum(lanes, HACK_LANES), with a count that compilers see. Destroys lanes. */
static inline float hack_lane_sum(float lanes[HACK_LANES]) {
    for (uint32_t half = HACK_LANES / 2; half >= 1; half /= 2)
        for (uint32_t i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

#endif
