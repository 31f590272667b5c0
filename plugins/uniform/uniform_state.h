/* What `open` makes of a setup, and the ways to encode and decode with it. */
#ifndef KVANT_UNIFORM_STATE_H
#define KVANT_UNIFORM_STATE_H

#include "uniform_block.h"
#include "uniform_convention.h"

#include <kvant/kit/isa.h>
#include <kvant/kit/sum.h>

typedef kvant_status uniform_encode_fn(const void *state, kvant_encode_args *args);
typedef kvant_status uniform_decode_fn(const void *state, const kvant_decode_args *args);

/* Static scales follow the struct: [heads][groups] scales, then as many minima; for tensor one of each. They
 * are floats that were rounded to the scale's type. */
typedef struct uniform_state {
    uniform_block block;
    uniform_arithmetic arithmetic;
    uint32_t fixed; /* 1 = static scales */
    uint32_t dtype; /* of the rows that encode gets */
    uniform_encode_fn *encode;
    uniform_decode_fn *decode;
} uniform_state;

enum { UNIFORM_STATE_FLOATS = (sizeof(uniform_state) + 63) / 64 * 64 };

static inline size_t uniform_state_bytes(const uniform_block *b, bool fixed) {
    return UNIFORM_STATE_FLOATS + (fixed ? 2 * (size_t)uniform_group_count(b) * sizeof(float) : 0);
}

static inline const float *uniform_fixed_scales(const uniform_state *s, uint32_t head) {
    const float *scales = (const float *)(const void *)((const char *)s + UNIFORM_STATE_FLOATS);
    return scales + (s->block.granularity == UNIFORM_TENSOR ? 0 : (size_t)head * s->block.groups);
}

static inline const float *uniform_fixed_minima(const uniform_state *s, uint32_t head) {
    return uniform_fixed_scales(s, head) + uniform_group_count(&s->block);
}

/* Scratch of one encode or decode, cut into its arrays. */
typedef struct uniform_scratch {
    float *tile;    /* [tokens][row]: one head as floats */
    uint8_t *codes; /* [tokens][row] */
    uint8_t *high;  /* [tokens][row]: the third bits of 3-bit codes */
    float *scale;   /* [groups], as the other planes: of one head */
    float *minimum;
    float *zero;
    float *subtract;
    float *divide;    /* or the factor to multiply by */
    int32_t *low_key; /* ranges, as sort keys or bits */
    int32_t *high_key;
    float *terms; /* magnitudes of one group, for means */
    size_t row;   /* head_dim, rounded up to 16 */
    size_t bytes;
} uniform_scratch;

static inline void *uniform_take(char *base, size_t *used, size_t bytes) {
    void *array = base != NULL ? base + *used : NULL;
    *used += uniform_round_up(bytes, 64);
    return array;
}

/* Elements of the largest group. */
static inline uint64_t uniform_group_elements(const uniform_block *b) {
    switch (b->granularity) {
    case UNIFORM_TENSOR:
        return (uint64_t)b->tokens * b->heads * b->head_dim;
    case UNIFORM_HEAD:
        return (uint64_t)b->tokens * b->head_dim;
    default:
        return b->group;
    }
}

/* base = NULL only counts. */
static inline uniform_scratch uniform_scratch_cut(const uniform_block *b, bool means, void *base) {
    uniform_scratch s = {.row = uniform_round_up(b->head_dim, 16)};
    size_t tile = s.row * b->tokens, plane = (size_t)b->groups * sizeof(float);
    s.tile = uniform_take(base, &s.bytes, tile * sizeof(float));
    s.codes = uniform_take(base, &s.bytes, tile);
    s.high = uniform_take(base, &s.bytes, b->bits == 3 ? tile : 0);
    s.scale = uniform_take(base, &s.bytes, plane);
    s.minimum = uniform_take(base, &s.bytes, plane);
    s.zero = uniform_take(base, &s.bytes, plane);
    s.subtract = uniform_take(base, &s.bytes, plane);
    s.divide = uniform_take(base, &s.bytes, plane);
    s.low_key = uniform_take(base, &s.bytes, plane);
    s.high_key = uniform_take(base, &s.bytes, plane);
    if (means) {
        size_t room = kvant_sum_room((uint32_t)uniform_group_elements(b));
        s.terms = uniform_take(base, &s.bytes, room * sizeof(float));
    }
    return s;
}

/* Reads one stored scale, minimum or zero of type `type`. */
float uniform_load_stored(const uint8_t *plane, size_t index, uint32_t type);

/* The quantizer of a group, as an extent or the state has it: scale, minimum and zero only. */
void uniform_read_group(const uniform_state *state, const uint8_t *extent, uint32_t head, size_t group,
                        uniform_quantizer *quantizer);

/* The norm: one element after the other. */
uniform_encode_fn uniform_encode_reference;
uniform_decode_fn uniform_decode_reference;

/* The same bytes and floats, compiled once per instruction set from uniform_cpu_*.c. */
uniform_encode_fn uniform_encode_v2, uniform_encode_v3, uniform_encode_v4, uniform_encode_neon;
uniform_decode_fn uniform_decode_v2, uniform_decode_v3, uniform_decode_v4, uniform_decode_neon;

extern const kvant_inspect uniform_inspect;

#endif
