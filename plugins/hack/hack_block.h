/* The bytes of a HACK extent, and the one function that computes where they lie.
 *
 *     extent   | head 0 | head 1 | ... | head H-1 |          each head_bytes long, a multiple of 64
 *
 *     head     0                codes      planar order, a multiple of 64
 *              scale_offset     scales     meta type, little endian; scale_offset is the end of the codes
 *              min_offset       minima     the same shape, from the next multiple of 16 on
 *              sum_offset       sums       u8, i16 or i32, from the next multiple of 16 on
 *              ...              zeros      up to a multiple of 64
 *
 *     keys     codes            one matrix: free = tokens, summed = channels
 *              sums             [parts][tokens]: per partition of channels, the tokens side by side
 *     values   codes            a run of matrices, matrix_bytes apart, one for every 64 tokens (the last may
 *                               have fewer): free = channels, summed = tokens
 *              sums             [tokens / partition][head_dim]: the channels side by side
 *
 *     scales and minima
 *       partitions along tokens      [tokens / partition][head_dim]    keys of axes = artifact, values of
 *                                                                      axes = paper
 *       partitions along channels    [parts][tokens]                   the other two
 *
 * For example keys, 2 bits, partitions of 64, 64 tokens, head_dim 128, minima and scales in BF16, one head:
 *
 *     0       2048       2304       2560     2688
 *     | codes |  scales  |  minima  |  sums  |       2048 = 64 * 128 * 2 / 8,  256 = 128 channels * 2,
 *                                                    128 = 2 partitions of channels * 64 tokens
 *
 * Sums run over what a dot product runs over: channels of a key, tokens of a value. They have the smallest
 * of the three types that holds partition size times largest code.
 */
#ifndef KVANT_HACK_BLOCK_H
#define KVANT_HACK_BLOCK_H

#include <kvant/kit/planar.h>
#include <kvant/kit/view.h>
#include <kvant/types.h>

#include <stdbool.h>

enum {
    HACK_MATRIX_TOKENS = 64, /* tokens of a value's code matrix */
    HACK_STEP = 16,          /* of partitions; tokens of a line of keys, channels of a line of values */
    HACK_PLANE_ALIGN = 16,
    HACK_HEAD_ALIGN = 64
};

enum { HACK_AXES_ARTIFACT = 0, HACK_AXES_PAPER = 1 };
enum { HACK_NEAREST = 0, HACK_STOCHASTIC = 1 };

typedef struct hack_block {
    uint32_t side;
    uint32_t bits;
    uint32_t levels; /* 2^bits - 1, the largest code */
    uint32_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t partition;  /* tokens of a partition; divides tokens */
    uint32_t part;       /* channels of a partition; divides head_dim; a multiple of 16, or head_dim */
    uint32_t parts;      /* head_dim / part */
    bool per_channel;    /* scales and minima: one per channel and partition of tokens; else one per token
                             and partition of channels */
    uint32_t dtype;      /* of the rows that encode gets */
    uint32_t meta;       /* dtype of scales and minima */
    uint32_t meta_bytes; /* of one scale */
    uint32_t sum_bytes;  /* of one sum: 1, 2 or 4 */
    uint32_t rounding;   /* HACK_NEAREST or HACK_STOCHASTIC */
    float flat;          /* scale that is stored for a partition without range: 0 or 1 */
    uint32_t first_head; /* of the rank, among all */
    uint64_t noise_base; /* of seed, layer and side */
    size_t meta_count;   /* scales of a head */
    size_t sum_count;    /* sums of a head */
    size_t matrix_bytes; /* keys: all codes; values: of a matrix of 64 tokens */
    size_t scale_offset;
    size_t min_offset;
    size_t sum_offset;
    size_t head_bytes;
    size_t bytes; /* of the extent */
} hack_block;

static inline size_t hack_round_up(size_t size, size_t multiple) {
    return (size + multiple - 1) / multiple * multiple;
}

/* Channels of a partition: all of them where they fit, else the largest number below `partition` in steps of
 * 16 that divides them. 0 where there is none. */
static inline uint32_t hack_part(uint32_t partition, uint32_t head_dim) {
    if (head_dim <= partition) return head_dim;
    for (uint32_t part = partition; part >= HACK_STEP; part -= HACK_STEP)
        if (head_dim % part == 0) return part;
    return 0;
}

/* Fills in sizes and offsets. The caller has set side, bits, tokens, heads, head_dim, partition, part,
 * per_channel and meta, all within range, tokens a multiple of partition. False where that is too much to
 * address. */
static inline bool hack_block_make(hack_block *block) {
    bool key = block->side == KVANT_SIDE_KEY;
    uint32_t tokens = block->tokens, dim = block->head_dim;
    /* 2^40 numbers a head and 2^56 bytes an extent: nothing that is computed from them wraps. */
    if (sizeof(size_t) < 8 || (uint64_t)tokens * dim > (uint64_t)1 << 40) return false;
    block->levels = (1u << block->bits) - 1;
    block->parts = dim / block->part;
    block->meta_bytes = kvant_element_bytes(block->meta);
    uint32_t largest = (key ? block->part : block->partition) * block->levels;
    block->sum_bytes = largest <= UINT8_MAX ? 1 : largest <= INT16_MAX ? 2 : 4;
    size_t blocks = tokens / block->partition;
    block->meta_count = block->per_channel ? blocks * dim : (size_t)block->parts * tokens;
    block->sum_count = key ? (size_t)block->parts * tokens : blocks * dim;

    size_t code_bytes;
    if (key) {
        code_bytes = block->matrix_bytes = kvant_planar_bytes(tokens, dim, block->bits);
    } else {
        uint32_t rest = tokens % HACK_MATRIX_TOKENS;
        block->matrix_bytes = kvant_planar_bytes(dim, HACK_MATRIX_TOKENS, block->bits);
        code_bytes = tokens / HACK_MATRIX_TOKENS * block->matrix_bytes;
        if (rest > 0) code_bytes += kvant_planar_bytes(dim, rest, block->bits);
    }
    size_t plane = block->meta_count * block->meta_bytes;
    block->scale_offset = code_bytes;
    block->min_offset = hack_round_up(block->scale_offset + plane, HACK_PLANE_ALIGN);
    block->sum_offset = hack_round_up(block->min_offset + plane, HACK_PLANE_ALIGN);
    block->head_bytes =
        hack_round_up(block->sum_offset + block->sum_count * block->sum_bytes, HACK_HEAD_ALIGN);
    if (block->head_bytes > ((size_t)1 << 56) / block->heads) return false;
    block->bytes = block->head_bytes * block->heads;
    return true;
}

/* The matrix that holds a token. */
typedef struct hack_matrix {
    size_t offset; /* from the head's first byte */
    uint32_t free_count;
    uint32_t summed_count;
    uint32_t first_token; /* of the matrix */
} hack_matrix;

static inline hack_matrix hack_matrix_of(const hack_block *block, uint32_t token) {
    if (block->side == KVANT_SIDE_KEY) return (hack_matrix){0, block->tokens, block->head_dim, 0};
    uint32_t index = token / HACK_MATRIX_TOKENS, first = index * HACK_MATRIX_TOKENS;
    uint32_t left = block->tokens - first;
    return (hack_matrix){index * block->matrix_bytes, block->head_dim,
                         left < HACK_MATRIX_TOKENS ? left : HACK_MATRIX_TOKENS, first};
}

/* `head`: the head's first byte. */
static inline void hack_code_put(const hack_block *block, uint8_t *head, uint32_t token, uint32_t channel,
                                 uint32_t code) {
    hack_matrix m = hack_matrix_of(block, token);
    bool key = block->side == KVANT_SIDE_KEY;
    kvant_planar_put(head + m.offset, m.summed_count, block->bits, key ? token : channel,
                     key ? channel : token - m.first_token, code);
}

static inline uint32_t hack_code_get(const hack_block *block, const uint8_t *head, uint32_t token,
                                     uint32_t channel) {
    hack_matrix m = hack_matrix_of(block, token);
    bool key = block->side == KVANT_SIDE_KEY;
    return kvant_planar_get(head + m.offset, m.summed_count, block->bits, key ? token : channel,
                            key ? channel : token - m.first_token);
}

/* Index of a scale and minimum within their planes. */
static inline size_t hack_meta_index(const hack_block *block, uint32_t token, uint32_t channel) {
    if (block->per_channel) return (size_t)(token / block->partition) * block->head_dim + channel;
    return (size_t)(channel / block->part) * block->tokens + token;
}

/* Index of a sum within its plane. */
static inline size_t hack_sum_index(const hack_block *block, uint32_t token, uint32_t channel) {
    if (block->side == KVANT_SIDE_KEY) return (size_t)(channel / block->part) * block->tokens + token;
    return (size_t)(token / block->partition) * block->head_dim + channel;
}

static inline float hack_meta_load(const hack_block *block, const uint8_t *plane, size_t index) {
    return kvant_load_element(plane + index * block->meta_bytes, block->meta);
}

static inline void hack_meta_store(const hack_block *block, uint8_t *plane, size_t index, float x) {
    kvant_store_element(plane + index * block->meta_bytes, block->meta, x);
}

static inline uint32_t hack_sum_load(const hack_block *block, const uint8_t *plane, size_t index) {
    uint16_t two;
    uint32_t four;
    switch (block->sum_bytes) {
    case 1:
        return plane[index];
    case 2:
        memcpy(&two, plane + index * sizeof two, sizeof two);
        return two;
    default:
        memcpy(&four, plane + index * sizeof four, sizeof four);
        return four;
    }
}

static inline void hack_sum_store(const hack_block *block, uint8_t *plane, size_t index, uint32_t sum) {
    uint16_t two = (uint16_t)sum;
    switch (block->sum_bytes) {
    case 1:
        plane[index] = (uint8_t)sum;
        break;
    case 2:
        memcpy(plane + index * sizeof two, &two, sizeof two);
        break;
    default:
        memcpy(plane + index * sizeof sum, &sum, sizeof sum);
        break;
    }
}

#endif
