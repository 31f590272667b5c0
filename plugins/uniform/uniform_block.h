/* The bytes of a uniform extent, and the one function that computes where they lie.
 *
 *     extent   | head 0 | head 1 | ... | head H-1 | tail |      heads are head_bytes long, a multiple of 64
 *
 *     head     0                codes      planar order, code_bytes long, a multiple of 64
 *              scale_offset     scales     one per group, little endian
 *              offset_offset    minima or zeros, one per group: at the next multiple of 16
 *              ...              zero bytes up to a multiple of 64
 *
 *     tail     only for granularity = tensor, whose one group spans all heads: the scale at 0, the minimum or
 *              zero at 16, zero bytes up to 64
 *
 *     keys     codes            one matrix: free = tokens, summed = channels
 *     values   codes            a run of matrices, one for every 64 tokens (the last may have fewer):
 *                               free = channels, summed = tokens; each matrix_bytes long
 *
 *     matrix   1, 2, 4, 8 bits  one set of planes, kvant/kit/planar.h; FP8 counts as 8 bits
 *              3 bits           a 2-bit set (code & 3), then a 1-bit set (code >> 2)
 *
 *     granularity       groups of a head, in the order of their scales
 *     tensor            none: the tail
 *     head              1
 *     channel           [head_dim]
 *     token             [tokens]
 *     group_channels    [head_dim / group, rounded up][tokens]
 *     group_tokens      [tokens / group][head_dim]
 *
 * So scales run along tokens where a group lies within one token, and along channels where it lies within one
 * channel. Groups of channels count from channel 0; the last one is short where group does not divide
 * head_dim and holds real channels only. With static scales there are no planes and no tail: scales are in
 * the codec's state.
 *
 * A code is stored without sign: a signed code q of b bits as q + 2^(b-1), FP8 as its byte, a 1-bit sign as 1
 * for x >= 0.
 *
 * For example keys, int4 asymmetric, group_channels of 32, scales in F16, 64 tokens, head_dim 64, one head:
 *
 *     0       2048       2304       2560
 *     | codes |  scales  |  minima  |           2048 = 64 * 64 * 4 / 8,  256 = 64/32 groups * 64 tokens * 2
 */
#ifndef KVANT_UNIFORM_BLOCK_H
#define KVANT_UNIFORM_BLOCK_H

#include "uniform_config.h"

#include <kvant/kit/planar.h>

enum {
    UNIFORM_MATRIX_TOKENS = 64, /* tokens of a value's code matrix */
    UNIFORM_PLANE_ALIGN = 16,   /* of minima and zeros, so that a 16-byte load does not straddle two planes */
    UNIFORM_HEAD_ALIGN = 64,
    UNIFORM_TAIL_BYTES = 64
};

typedef struct uniform_block {
    uint32_t side;
    uint32_t bits;
    uint32_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t granularity;
    uint32_t group;        /* tokens or channels of one group, at most as many as there are */
    uint32_t groups;       /* of one head; 1 for tensor */
    uint32_t scale_bytes;  /* of one scale; 0 where scales are static */
    uint32_t offset_bytes; /* of one minimum or zero; 0 where there is none */
    size_t matrix_bytes;   /* keys: = code_bytes; values: of a matrix of 64 tokens */
    size_t code_bytes;     /* of one head */
    size_t scale_offset;   /* within a head; for tensor within the extent */
    size_t offset_offset;
    size_t head_bytes;
    size_t bytes; /* of the extent */
} uniform_block;

static inline size_t uniform_round_up(size_t size, size_t multiple) {
    return (size + multiple - 1) / multiple * multiple;
}

static inline uint32_t uniform_ceil_div(uint32_t n, uint32_t d) {
    return n / d + (n % d != 0);
}

/* Codes of a matrix of free_count x summed_count. */
static inline size_t uniform_matrix_bytes(uint32_t bits, uint32_t free_count, uint32_t summed_count) {
    if (bits == 3)
        return kvant_planar_bytes(free_count, summed_count, 2) +
               kvant_planar_bytes(free_count, summed_count, 1);
    return kvant_planar_bytes(free_count, summed_count, bits);
}

static inline void uniform_block_groups(uniform_block *b, uint32_t group) {
    b->group = 0;
    b->groups = 1;
    switch (b->granularity) {
    case UNIFORM_CHANNEL:
        b->group = b->tokens;
        b->groups = b->head_dim;
        break;
    case UNIFORM_TOKEN:
        b->group = b->head_dim;
        b->groups = b->tokens;
        break;
    case UNIFORM_GROUP_CHANNELS:
        b->group = group < b->head_dim ? group : b->head_dim;
        b->groups = uniform_ceil_div(b->head_dim, b->group) * b->tokens;
        break;
    case UNIFORM_GROUP_TOKENS:
        b->group = group;
        b->groups = b->tokens / group * b->head_dim;
        break;
    default:
        break;
    }
}

/* Fills `b`, whose members up to `granularity` and whose scale_bytes and offset_bytes the caller has set.
 * Every count is at least 1 and at most 2^24, tokens * head_dim * heads at most 2^31, and for group_tokens
 * tokens is a multiple of group: then nothing here can wrap in 64 bits. */
static inline void uniform_block_make(uniform_block *b, uint32_t group) {
    uniform_block_groups(b, group);
    if (b->side == KVANT_SIDE_KEY) {
        b->code_bytes = b->matrix_bytes = uniform_matrix_bytes(b->bits, b->tokens, b->head_dim);
    } else {
        uint32_t rest = b->tokens % UNIFORM_MATRIX_TOKENS;
        b->matrix_bytes = uniform_matrix_bytes(b->bits, b->head_dim, UNIFORM_MATRIX_TOKENS);
        b->code_bytes = b->tokens / UNIFORM_MATRIX_TOKENS * b->matrix_bytes;
        if (rest > 0) b->code_bytes += uniform_matrix_bytes(b->bits, b->head_dim, rest);
    }
    if (b->granularity == UNIFORM_TENSOR || b->scale_bytes == 0) {
        b->head_bytes = b->code_bytes;
        b->scale_offset = b->head_bytes * b->heads;
        b->offset_offset = b->scale_offset + UNIFORM_PLANE_ALIGN;
        b->bytes = b->scale_offset + (b->scale_bytes > 0 ? UNIFORM_TAIL_BYTES : 0);
        return;
    }
    b->scale_offset = b->code_bytes;
    b->offset_offset =
        uniform_round_up(b->scale_offset + (size_t)b->groups * b->scale_bytes, UNIFORM_PLANE_ALIGN);
    b->head_bytes =
        uniform_round_up(b->offset_offset + (size_t)b->groups * b->offset_bytes, UNIFORM_HEAD_ALIGN);
    b->bytes = b->head_bytes * b->heads;
}

/* The first scale, and the first minimum or zero, of a head: from the extent's first byte. */
static inline size_t uniform_scale_at(const uniform_block *b, uint32_t head) {
    return b->scale_offset + (b->granularity == UNIFORM_TENSOR ? 0 : head * b->head_bytes);
}

static inline size_t uniform_offset_at(const uniform_block *b, uint32_t head) {
    return b->offset_offset + (b->granularity == UNIFORM_TENSOR ? 0 : head * b->head_bytes);
}

/* Which of a head's groups an element belongs to. */
static inline size_t uniform_group_of(const uniform_block *b, uint32_t token, uint32_t channel) {
    switch (b->granularity) {
    case UNIFORM_CHANNEL:
        return channel;
    case UNIFORM_TOKEN:
        return token;
    case UNIFORM_GROUP_CHANNELS:
        return (size_t)(channel / b->group) * b->tokens + token;
    case UNIFORM_GROUP_TOKENS:
        return (size_t)(token / b->group) * b->head_dim + channel;
    default:
        return 0;
    }
}

/* Groups of the whole extent. */
static inline uint64_t uniform_group_count(const uniform_block *b) {
    return (uint64_t)b->groups * (b->granularity == UNIFORM_TENSOR ? 1 : b->heads);
}

/* The matrix that holds a token, and its shape. */
typedef struct uniform_matrix {
    size_t offset; /* from the head's first byte */
    uint32_t free_count;
    uint32_t summed_count;
    uint32_t first_token;
    uint32_t tokens;
} uniform_matrix;

static inline uniform_matrix uniform_matrix_of(const uniform_block *b, uint32_t token) {
    if (b->side == KVANT_SIDE_KEY) return (uniform_matrix){0, b->tokens, b->head_dim, 0, b->tokens};
    uint32_t index = token / UNIFORM_MATRIX_TOKENS, first = index * UNIFORM_MATRIX_TOKENS;
    uint32_t left = b->tokens - first;
    uint32_t tokens = left < UNIFORM_MATRIX_TOKENS ? left : UNIFORM_MATRIX_TOKENS;
    return (uniform_matrix){index * b->matrix_bytes, b->head_dim, tokens, first, tokens};
}

/* One code, by the formula: what every faster way must agree with. `head` is the head's first byte. */
static inline uint32_t uniform_get_code(const uniform_block *b, const uint8_t *head, uint32_t token,
                                        uint32_t channel) {
    uniform_matrix m = uniform_matrix_of(b, token);
    uint32_t f = b->side == KVANT_SIDE_KEY ? token : channel;
    uint32_t c = b->side == KVANT_SIDE_KEY ? channel : token - m.first_token;
    const uint8_t *base = head + m.offset;
    if (b->bits != 3) return kvant_planar_get(base, m.summed_count, b->bits, f, c);
    const uint8_t *high = base + kvant_planar_bytes(m.free_count, m.summed_count, 2);
    return kvant_planar_get(base, m.summed_count, 2, f, c) | kvant_planar_get(high, m.summed_count, 1, f, c)
                                                                 << 2;
}

static inline void uniform_put_code(const uniform_block *b, uint8_t *head, uint32_t token, uint32_t channel,
                                    uint32_t code) {
    uniform_matrix m = uniform_matrix_of(b, token);
    uint32_t f = b->side == KVANT_SIDE_KEY ? token : channel;
    uint32_t c = b->side == KVANT_SIDE_KEY ? channel : token - m.first_token;
    uint8_t *base = head + m.offset;
    if (b->bits != 3) {
        kvant_planar_put(base, m.summed_count, b->bits, f, c, code);
        return;
    }
    kvant_planar_put(base, m.summed_count, 2, f, c, code & 3);
    kvant_planar_put(base + kvant_planar_bytes(m.free_count, m.summed_count, 2), m.summed_count, 1, f, c,
                     code >> 2);
}

#endif
