/* What `open` makes of a setup, and the arithmetic that the reference and the fast code share: rotations,
 * powers of two, stored scales. */
#ifndef KVANT_TURBOQUANT_STATE_H
#define KVANT_TURBOQUANT_STATE_H

#include "turboquant_block.h"

#include <kvant/plugin.h>

enum { TURBOQUANT_RAW, TURBOQUANT_NORM_CORRECTED, TURBOQUANT_UNBIASED };
enum { TURBOQUANT_SKETCH_HADAMARD, TURBOQUANT_SKETCH_GAUSSIAN };
enum { TURBOQUANT_CODEBOOK_GAUSS, TURBOQUANT_CODEBOOK_SPHERE };

/* An orthogonal matrix of `dim` x `dim`, as `rounds` of
 *
 *     reorder     x[i] <- x[order[i]]                 not in round 0, and not where dim is a power of two
 *     flip        x[i] <- x[i] * sign of weights[i]
 *     transform   kvant_hadamard on every chunk       the powers of two that sum to dim, largest first
 *     shrink      x[i] <- x[i] * |weights[i]|         1 / sqrt(length of the chunk of i)
 *
 * Nothing is rounded before the sums, so that those of integers, or of numbers that are all of one magnitude
 * of F16 or BF16, are exact: where they cancel, the coordinate is 0, which is a boundary of every codebook.
 *
 * Round r's arrays begin at r * dim. The transpose goes the other way: transform, multiply by weights, put
 * back. */
typedef struct turboquant_rotation {
    uint32_t dim;
    uint32_t rounds;
    bool reorders;
    float *weights; /* +-1 / sqrt(length of the chunk) */
    uint32_t *order;
} turboquant_rotation;

/* Finding a code from a number in one step: cell (int)(t * slope + offset), with t first cut to [low, high],
 * has at most one boundary, so that code = first[cell] + (t >= edge[cell]). */
enum { TURBOQUANT_CELLS = 2048 };
typedef struct turboquant_search {
    uint32_t cells; /* 0 = compare with all boundaries */
    float low, high, slope, offset;
    float *edge;
    uint32_t *first;
} turboquant_search;

/* Tables of one part. */
typedef struct turboquant_tables {
    turboquant_rotation rotation;
    turboquant_rotation sketch; /* prod, hadamard */
    float *matrix;              /* prod, gaussian: [dim][dim], row i is what coordinate i adds to each sum */
    float root;                 /* sqrt(dim) */
    float inverse_root;
    float *centroids;  /* [levels], ascending, in units of the root mean square */
    float *boundaries; /* [levels - 1] */
    turboquant_search search;
} turboquant_tables;

typedef struct turboquant_code turboquant_code;

typedef struct turboquant_state {
    turboquant_block block;
    uint32_t scale_mode;
    uint32_t sketch_kind;
    uint32_t codebook;
    uint32_t doubled; /* rotation = double */
    uint64_t seed;
    turboquant_tables tables[TURBOQUANT_PARTS];
    const turboquant_code *code;
} turboquant_state;

/* Code for one instruction set. */
struct turboquant_code {
    uint32_t isa;
    kvant_status (*encode)(const void *state, kvant_encode_args *args);
    kvant_status (*decode)(const void *state, const kvant_decode_args *args);
};

extern const turboquant_code turboquant_code_reference;
extern const turboquant_code turboquant_code_v2, turboquant_code_v3, turboquant_code_v4, turboquant_code_neon;
extern const kvant_inspect turboquant_inspect;

/* Bytes of a state, its tables included, which follow the struct. */
uint64_t turboquant_state_bytes(const turboquant_state *state);
/* Points the state's tables behind itself and fills them. */
void turboquant_tables_make(turboquant_state *state);

/* ---- Shared arithmetic --------------------------------------------------------------------------------- */

/* The two halves of a product with a rotation's weight. */
static inline float turboquant_flip(float x, float weight) {
    return kvant_bits_float(kvant_float_bits(x) ^ (kvant_float_bits(weight) & 0x80000000u));
}

static inline float turboquant_shrink(float x, float weight) {
    return x * kvant_bits_float(kvant_float_bits(weight) & 0x7fffffffu);
}

/* A power of two that brings a positive magnitude into [2, 4), or as near as it goes for subnormal ones; any
 * power for 0. Products with it are exact but for what then is too small to matter. */
static inline float turboquant_power_for(float magnitude) {
    uint32_t exponent = kvant_float_bits(magnitude) >> 23 & 255u;
    return kvant_bits_float((255u - (exponent < 1 ? 1 : exponent)) << 23);
}

/* Rounds to a stored type, at its end where it would overflow: then *saturated grows. */
static inline float turboquant_round_stored(float x, uint32_t type, uint64_t *saturated) {
    static const float ends[] = {
        [KVANT_DTYPE_F32] = 0x1.fffffep127f, [KVANT_DTYPE_F16] = 65504.0f, [KVANT_DTYPE_BF16] = 0x1.fep127f};
    float y = x;
    if (type == KVANT_DTYPE_F16) y = kvant_round_f16(x);
    if (type == KVANT_DTYPE_BF16) y = kvant_round_bf16(x);
    if (y <= ends[type]) return y;
    *saturated += 1;
    return ends[type];
}

/* A scale or residual as a decoder takes it: no encoder writes one that is not finite. */
static inline float turboquant_load_stored(const uint8_t *plane, uint32_t index, uint32_t type) {
    float x = kvant_load_element(plane + (size_t)index * kvant_element_bytes(type), type);
    return (kvant_float_bits(x) & 0x7f800000u) == 0x7f800000u ? 0.0f : x;
}

/* The channels of each part, ascending: `channels` has head_dim of them, part 1's from parts[0].dim on.
 * Arbitrary bytes fill the parts all the same. */
static inline void turboquant_channels_read(const turboquant_block *b, const uint8_t *head,
                                            uint32_t *channels) {
    uint32_t low = 0, high = 0;
    for (uint32_t c = 0; c < b->head_dim; c++) {
        bool outlier = b->part_count > 1 && (head[b->outlier_offset + c / 8] >> c % 8 & 1) != 0;
        if ((outlier && high < b->parts[1].dim) || low == b->parts[0].dim)
            channels[b->parts[0].dim + high++] = c;
        else
            channels[low++] = c;
    }
}

#endif
