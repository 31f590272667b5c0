/* The bytes of a TurboQuant extent, and the one function that computes where they lie.
 *
 *     extent   | head 0 | head 1 | ... | head H-1 |          each head_bytes long, a multiple of 64
 *
 *     head     0                    codes of part 0      planar order, a multiple of 64 long
 *              part 1's code_offset codes of part 1      only with outliers: their channels
 *              scale_offset         scales of part 0     [tokens], scale_type, little endian
 *              ...                  scales of part 1     the next multiple of 16, likewise
 *              residual_offset      residuals            of part 0, then of part 1; only with mode = prod
 *              outlier_offset       which channels       one bit a channel, channel c is bit c%8 of byte c/8;
 *                                   are part 1           only with outliers
 *              ...                  zeros                up to a multiple of 64
 *
 *     codes    one matrix (keys: free = tokens, summed = coordinates), or a run of matrices, matrix_bytes
 *              apart, one for every 64 tokens (values: free = coordinates, summed = tokens; the last may have
 *              fewer)
 *     matrix   a run of sets of planes, kvant/kit/planar.h, by the bits of a symbol from the lowest up:
 *
 *              codebook bits   1  2  3    4  5    6    7      8      0 (prod of one bit)
 *              sets            1  2  2 1  4  4 1  4 2  4 2 1  8      -
 *
 *              then, with mode = prod, one set of single bits: the signs of the sketch
 *
 * A symbol is codebook index + (sign << codebook bits). Symbols belong to the coordinates of the rotated
 * part, not to channels: after a rotation every coordinate has something of every channel.
 *
 * For example keys, 3 bits, 64 tokens, head_dim 64, scales in F16, one head:
 *
 *     0               1024            1536     1664
 *     | 2-bit planes  | 1-bit planes  | scales |        1024 = 64*64*2/8, 512 = 64*64/8, 128 = 64*2
 */
#ifndef KVANT_TURBOQUANT_BLOCK_H
#define KVANT_TURBOQUANT_BLOCK_H

#include <kvant/kit/planar.h>
#include <kvant/kit/view.h>
#include <kvant/types.h>

#include <stdbool.h>

enum {
    TURBOQUANT_STRETCH = 64, /* tokens of a value's matrix; of a key's, what is packed at a time */
    TURBOQUANT_PLANE_ALIGN = 16,
    TURBOQUANT_HEAD_ALIGN = 64,
    TURBOQUANT_SETS = 4, /* of planes, at most */
    TURBOQUANT_PARTS = 2
};

/* Channels that are rotated, coded and scaled together. */
typedef struct turboquant_part {
    uint32_t dim;
    uint32_t bits;   /* of a symbol */
    uint32_t levels; /* of the codebook, 2^(codebook bits); 1 = there is none */
    uint32_t code_bits;
    uint32_t set_count;
    uint32_t set_width[TURBOQUANT_SETS];
    uint32_t set_shift[TURBOQUANT_SETS]; /* lowest bit of the symbol that the set holds */
    size_t matrix_bytes;                 /* keys: of all tokens; values: of 64 */
    size_t code_offset;
    size_t scale_offset;    /* of nothing where code_bits is 0 */
    size_t residual_offset; /* of nothing without prod */
} turboquant_part;

typedef struct turboquant_block {
    uint32_t side;
    uint32_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t scale_type; /* KVANT_DTYPE_* */
    uint32_t scale_bytes;
    uint32_t prod; /* 1 = the last bit of a symbol is a sketch's sign */
    uint32_t part_count;
    turboquant_part parts[TURBOQUANT_PARTS];
    size_t outlier_offset;
    size_t code_bytes; /* of all parts: where the planes of scales begin */
    size_t head_bytes;
    size_t bytes; /* of the extent */
} turboquant_block;

static inline size_t turboquant_round_up(size_t size, size_t multiple) {
    return (size + multiple - 1) / multiple * multiple;
}

/* Where a set lies within its matrix; set = set_count: the matrix's length. */
static inline size_t turboquant_set_offset(const turboquant_part *part, uint32_t free_count,
                                           uint32_t summed_count, uint32_t set) {
    size_t offset = 0;
    for (uint32_t s = 0; s < set; s++)
        offset += kvant_planar_bytes(free_count, summed_count, part->set_width[s]);
    return offset;
}

static inline void turboquant_part_make(turboquant_part *part, uint32_t dim, uint32_t bits, bool prod) {
    *part = (turboquant_part){.dim = dim, .bits = bits, .code_bits = prod ? bits - 1 : bits};
    part->levels = 1u << part->code_bits;
    for (uint32_t shift = 0; shift < bits; part->set_count++) {
        uint32_t left = shift < part->code_bits ? part->code_bits - shift : 1, width = 8;
        while (width > left) width /= 2;
        part->set_width[part->set_count] = width;
        part->set_shift[part->set_count] = shift;
        shift += width;
    }
}

/* Fills the offsets, from the side, counts, types and parts. Counts are in their ranges: head_dim at most
 * 2^12, tokens 2^20. False where the extent is too large to address. */
static inline bool turboquant_block_make(turboquant_block *b) {
    if (sizeof(size_t) < 8) return false;
    size_t at = 0, plane = (size_t)b->tokens * b->scale_bytes;
    for (uint32_t p = 0; p < b->part_count; p++) {
        turboquant_part *part = &b->parts[p];
        part->code_offset = at;
        if (b->side == KVANT_SIDE_KEY) {
            part->matrix_bytes = turboquant_set_offset(part, b->tokens, part->dim, part->set_count);
            at += part->matrix_bytes;
            continue;
        }
        uint32_t rest = b->tokens % TURBOQUANT_STRETCH;
        part->matrix_bytes = turboquant_set_offset(part, part->dim, TURBOQUANT_STRETCH, part->set_count);
        at += b->tokens / TURBOQUANT_STRETCH * part->matrix_bytes;
        if (rest > 0) at += turboquant_set_offset(part, part->dim, rest, part->set_count);
    }
    b->code_bytes = at;
    for (uint32_t p = 0; p < b->part_count; p++) {
        b->parts[p].scale_offset = at;
        if (b->parts[p].code_bits > 0) at += turboquant_round_up(plane, TURBOQUANT_PLANE_ALIGN);
    }
    for (uint32_t p = 0; p < b->part_count; p++) {
        b->parts[p].residual_offset = at;
        if (b->prod) at += turboquant_round_up(plane, TURBOQUANT_PLANE_ALIGN);
    }
    b->outlier_offset = at;
    if (b->part_count > 1) at += ((size_t)b->head_dim + 7) / 8;
    b->head_bytes = turboquant_round_up(at, TURBOQUANT_HEAD_ALIGN);
    if (b->head_bytes > ((size_t)1 << 56) / b->heads) return false;
    b->bytes = b->head_bytes * b->heads;
    return true;
}

/* The matrix that holds a token, and the token's place in it. `offset` counts from the head's first byte. */
typedef struct turboquant_matrix {
    size_t offset;
    uint32_t free_count;
    uint32_t summed_count;
    uint32_t first_token;
} turboquant_matrix;

static inline turboquant_matrix turboquant_matrix_of(const turboquant_block *b, const turboquant_part *part,
                                                     uint32_t token) {
    if (b->side == KVANT_SIDE_KEY) return (turboquant_matrix){part->code_offset, b->tokens, part->dim, 0};
    uint32_t index = token / TURBOQUANT_STRETCH, first = index * TURBOQUANT_STRETCH;
    uint32_t left = b->tokens - first;
    return (turboquant_matrix){part->code_offset + index * part->matrix_bytes, part->dim,
                               left < TURBOQUANT_STRETCH ? left : TURBOQUANT_STRETCH, first};
}

/* One symbol, set by set. `head`: the head's first byte. */
static inline void turboquant_symbol_put(const turboquant_block *b, const turboquant_part *part,
                                         uint8_t *head, uint32_t token, uint32_t coordinate,
                                         uint32_t symbol) {
    turboquant_matrix m = turboquant_matrix_of(b, part, token);
    bool key = b->side == KVANT_SIDE_KEY;
    uint32_t f = key ? token : coordinate, c = key ? coordinate : token - m.first_token;
    for (uint32_t s = 0; s < part->set_count; s++) {
        uint8_t *base = head + m.offset + turboquant_set_offset(part, m.free_count, m.summed_count, s);
        kvant_planar_put(base, m.summed_count, part->set_width[s], f, c, symbol >> part->set_shift[s]);
    }
}

static inline uint32_t turboquant_symbol_get(const turboquant_block *b, const turboquant_part *part,
                                             const uint8_t *head, uint32_t token, uint32_t coordinate) {
    turboquant_matrix m = turboquant_matrix_of(b, part, token);
    bool key = b->side == KVANT_SIDE_KEY;
    uint32_t f = key ? token : coordinate, c = key ? coordinate : token - m.first_token, symbol = 0;
    for (uint32_t s = 0; s < part->set_count; s++) {
        const uint8_t *base = head + m.offset + turboquant_set_offset(part, m.free_count, m.summed_count, s);
        symbol |= kvant_planar_get(base, m.summed_count, part->set_width[s], f, c) << part->set_shift[s];
    }
    return symbol;
}

#endif
