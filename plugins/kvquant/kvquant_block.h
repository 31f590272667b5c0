/* The bytes of a KVQuant extent, and the one function that computes where they lie.
 *
 *     extent   0               head 0 | head 1 | ... | head H-1   each head_bytes long, a multiple of 64
 *              token_offset    upper [tokens], lower [tokens]     axis = token: one range per token, for all
 *                                                                 heads, in the meta type
 *              index_offset    end [heads], u32                   with outliers: slots [end[h-1], end[h])
 *                                                                 belong to head h, from 0 on
 *              slot_offset     slots                              a multiple of 64
 *
 *     head     0               codes    planar order, code_bytes long, a multiple of 64
 *              range_offset    upper [head_dim], lower [head_dim] axis = channel with dynamic thresholds
 *              ...             zeros    up to a multiple of 64
 *
 *     slot     4 bytes   0 position u16     2 value, 16-bit meta type
 *              8 bytes   0 position u32     4 value, f32          where meta is f32, or tokens * head_dim are
 *                                                                 more than 65536
 *              position = token * head_dim + channel, ascending within a head; the value is the element as it
 *              was, rounded to the meta type
 *
 *     codes    keys      one matrix: free = tokens, summed = channels
 *              values    a run of matrices, matrix_bytes apart, one for every 64 tokens (the last may have
 *                        fewer): free = channels, summed = tokens
 *              3 bits    a 2-bit set of planes (code & 3), then a 1-bit set (code >> 2)
 *
 * Sizes: without outliers, or with a number of them that is fixed per token, one size. Otherwise size_min
 * ends at slot_offset and every step of 64 bytes adds 16 (8) slots, up to one for each element.
 *
 * For example values, 3 bits, 64 tokens, 3 heads of 64, meta F16, all outliers kept:
 *
 *     0        1536     3072     4608    4736    4864      4928
 *     | head 0 | head 1 | head 2 | upper | lower | end [3] | slots, 16 every 64 bytes
 */
#ifndef KVANT_KVQUANT_BLOCK_H
#define KVANT_KVQUANT_BLOCK_H

#include "kvquant_config.h"

#include <kvant/kit/planar.h>
#include <kvant/kit/view.h>

enum {
    KVQUANT_MATRIX_TOKENS = 64, /* tokens of a value's code matrix */
    KVQUANT_ALIGN = 64,
    KVQUANT_STEP = 64,    /* bytes by which an extent grows */
    KVQUANT_LANE_PAD = 16 /* rows of floats are padded to a multiple of this */
};

typedef struct kvquant_block {
    kvquant_config config;
    uint32_t side;
    uint32_t dtype; /* of the rows that encode gets */
    uint32_t tokens;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t padded;   /* head_dim rounded up to KVQUANT_LANE_PAD */
    uint32_t width;    /* heads * head_dim, the elements of a token */
    uint32_t levels;   /* 2^bits entries of the codebook */
    uint32_t per_tail; /* outliers of a token kept per tail; UINT32_MAX = all */
    uint32_t meta;     /* dtype of ranges and outliers */
    uint32_t meta_bytes;
    uint32_t slot_bytes;  /* 4 or 8 */
    uint64_t fixed_slots; /* slots in size_min */
    uint64_t steps;       /* 0 = one size */
    size_t matrix_bytes;  /* keys: = code_bytes; values: of a matrix of 64 tokens */
    size_t range_offset;  /* = code_bytes */
    size_t head_bytes;
    size_t token_offset;
    size_t index_offset;
    size_t slot_offset;
    size_t size_min;
} kvquant_block;

/* Whether encode takes ranges from the block, per channel or per token. */
static inline bool kvquant_channel_ranges(const kvquant_block *block) {
    return block->config.channel && !block->config.is_static;
}

static inline bool kvquant_token_ranges(const kvquant_block *block) {
    return !block->config.channel;
}

static inline size_t kvquant_round_up(size_t size, size_t multiple) {
    return (size + multiple - 1) / multiple * multiple;
}

static inline size_t kvquant_matrix_bytes(uint32_t bits, uint32_t free_count, uint32_t summed_count) {
    if (bits == 3)
        return kvant_planar_bytes(free_count, summed_count, 2) +
               kvant_planar_bytes(free_count, summed_count, 1);
    return kvant_planar_bytes(free_count, summed_count, bits);
}

/* Where the parts of a head lie. */
static inline void kvquant_block_head(kvquant_block *block) {
    uint32_t bits = block->config.bits;
    size_t code_bytes;
    if (block->side == KVANT_SIDE_KEY) {
        code_bytes = block->matrix_bytes = kvquant_matrix_bytes(bits, block->tokens, block->head_dim);
    } else {
        uint32_t rest = block->tokens % KVQUANT_MATRIX_TOKENS;
        block->matrix_bytes = kvquant_matrix_bytes(bits, block->head_dim, KVQUANT_MATRIX_TOKENS);
        code_bytes = block->tokens / KVQUANT_MATRIX_TOKENS * block->matrix_bytes;
        if (rest > 0) code_bytes += kvquant_matrix_bytes(bits, block->head_dim, rest);
    }
    size_t ranges = kvquant_channel_ranges(block) ? 2 * (size_t)block->head_dim * block->meta_bytes : 0;
    block->range_offset = code_bytes;
    block->head_bytes = kvquant_round_up(code_bytes + ranges, KVQUANT_ALIGN);
}

/* Fills `block` from a setup whose ranges were checked: tokens * heads * head_dim below 2^31. */
static inline void kvquant_block_make(kvquant_block *block, const kvquant_config *config,
                                      const kvant_setup *setup) {
    uint32_t meta = config->meta == KVANT_DTYPE_NONE ? setup->dtype : config->meta;
    *block = (kvquant_block){.config = *config,
                             .side = setup->side,
                             .dtype = setup->dtype,
                             .tokens = setup->block_tokens,
                             .heads = setup->kv_heads,
                             .head_dim = setup->head_dim,
                             .width = setup->kv_heads * setup->head_dim,
                             .levels = 1u << config->bits,
                             .meta = meta,
                             .meta_bytes = kvant_element_bytes(meta)};
    block->padded = (uint32_t)kvquant_round_up(block->head_dim, KVQUANT_LANE_PAD);
    block->per_tail = kvquant_per_tail(config, block->width);
    kvquant_block_head(block);

    uint64_t elements = (uint64_t)block->tokens * block->width;
    bool wide = meta == KVANT_DTYPE_F32 || (uint64_t)block->tokens * block->head_dim > 65536;
    block->slot_bytes = wide ? 8 : 4;
    block->token_offset = block->head_bytes * block->heads;
    size_t ranges = kvquant_token_ranges(block) ? 2 * (size_t)block->tokens * block->meta_bytes : 0;
    block->index_offset = kvquant_round_up(block->token_offset + ranges, sizeof(uint32_t));
    if (!config->sparse) {
        block->slot_offset = block->size_min = kvquant_round_up(block->index_offset, KVQUANT_ALIGN);
        return;
    }
    block->slot_offset =
        kvquant_round_up(block->index_offset + sizeof(uint32_t) * block->heads, KVQUANT_ALIGN);
    if (block->per_tail != UINT32_MAX) {
        uint64_t of_token = 2 * (uint64_t)block->per_tail;
        block->fixed_slots = block->tokens * (of_token < block->width ? of_token : block->width);
        block->size_min =
            kvquant_round_up(block->slot_offset + block->fixed_slots * block->slot_bytes, KVQUANT_ALIGN);
    } else {
        uint32_t in_step = KVQUANT_STEP / block->slot_bytes;
        block->size_min = block->slot_offset;
        block->steps = (elements + in_step - 1) / in_step;
    }
}

/* Slots that an extent of this size has. */
static inline uint64_t kvquant_capacity(const kvquant_block *block, uint64_t size) {
    if (block->steps == 0) return block->fixed_slots;
    return (size - block->size_min) / block->slot_bytes;
}

/* ---- One code ------------------------------------------------------------------------------------------ */

/* The matrix that holds a token, how many tokens or channels it sums over, and its first token. */
typedef struct kvquant_matrix {
    size_t offset; /* from the head's first byte */
    uint32_t free_count;
    uint32_t summed_count;
    uint32_t first_token;
} kvquant_matrix;

static inline kvquant_matrix kvquant_matrix_of(const kvquant_block *block, uint32_t token) {
    if (block->side == KVANT_SIDE_KEY) return (kvquant_matrix){0, block->tokens, block->head_dim, 0};
    uint32_t index = token / KVQUANT_MATRIX_TOKENS, first = index * KVQUANT_MATRIX_TOKENS;
    uint32_t left = block->tokens - first;
    return (kvquant_matrix){index * block->matrix_bytes, block->head_dim,
                            left < KVQUANT_MATRIX_TOKENS ? left : KVQUANT_MATRIX_TOKENS, first};
}

/* `head`: the head's first byte. */
static inline void kvquant_code_put(const kvquant_block *block, uint8_t *head, uint32_t token,
                                    uint32_t channel, uint32_t code) {
    kvquant_matrix m = kvquant_matrix_of(block, token);
    bool key = block->side == KVANT_SIDE_KEY;
    uint32_t f = key ? token : channel, c = key ? channel : token - m.first_token;
    uint32_t bits = block->config.bits;
    uint8_t *base = head + m.offset;
    kvant_planar_put(base, m.summed_count, bits == 3 ? 2 : bits, f, c, code);
    if (bits == 3)
        kvant_planar_put(base + kvant_planar_bytes(m.free_count, m.summed_count, 2), m.summed_count, 1, f, c,
                         code >> 2);
}

static inline uint32_t kvquant_code_get(const kvquant_block *block, const uint8_t *head, uint32_t token,
                                        uint32_t channel) {
    kvquant_matrix m = kvquant_matrix_of(block, token);
    bool key = block->side == KVANT_SIDE_KEY;
    uint32_t f = key ? token : channel, c = key ? channel : token - m.first_token;
    const uint8_t *base = head + m.offset;
    if (block->config.bits != 3) return kvant_planar_get(base, m.summed_count, block->config.bits, f, c);
    const uint8_t *high = base + kvant_planar_bytes(m.free_count, m.summed_count, 2);
    return kvant_planar_get(base, m.summed_count, 2, f, c) | kvant_planar_get(high, m.summed_count, 1, f, c)
                                                                 << 2;
}

/* ---- Ranges -------------------------------------------------------------------------------------------- */

/* Byte offset of the upper end of the range that an element's group stores; its lower end lies `count`
 * elements on. Only where ranges are stored. */
static inline size_t kvquant_range_at(const kvquant_block *block, uint32_t token, uint32_t head,
                                      uint32_t channel, uint32_t *count) {
    if (block->config.channel) {
        *count = block->head_dim;
        return head * block->head_bytes + block->range_offset + (size_t)channel * block->meta_bytes;
    }
    *count = block->tokens;
    return block->token_offset + (size_t)token * block->meta_bytes;
}

/* ---- Slots --------------------------------------------------------------------------------------------- */

static inline void kvquant_slot_put(const kvquant_block *block, uint8_t *extent, uint64_t slot,
                                    uint32_t position, float value) {
    uint8_t *at = extent + block->slot_offset + slot * block->slot_bytes;
    if (block->slot_bytes == 8) {
        memcpy(at, &position, 4);
        memcpy(at + 4, &value, 4);
    } else {
        uint16_t small = (uint16_t)position;
        memcpy(at, &small, 2);
        kvant_store_element(at + 2, block->meta, value);
    }
}

static inline uint32_t kvquant_slot_position(const kvquant_block *block, const uint8_t *extent,
                                             uint64_t slot) {
    const uint8_t *at = extent + block->slot_offset + slot * block->slot_bytes;
    uint32_t position;
    uint16_t small;
    if (block->slot_bytes == 8) {
        memcpy(&position, at, 4);
        return position;
    }
    memcpy(&small, at, 2);
    return small;
}

static inline float kvquant_slot_value(const kvquant_block *block, const uint8_t *extent, uint64_t slot) {
    const uint8_t *at = extent + block->slot_offset + slot * block->slot_bytes;
    return block->slot_bytes == 8 ? kvant_load_element(at + 4, KVANT_DTYPE_F32)
                                  : kvant_load_element(at + 2, block->meta);
}

/* The slots of a head, whatever the bytes say. */
typedef struct kvquant_slots {
    uint64_t first, end;
} kvquant_slots;

static inline kvquant_slots kvquant_slots_of(const kvquant_block *block, const uint8_t *extent, uint64_t size,
                                             uint32_t head) {
    kvquant_slots slots = {0, 0};
    if (!block->config.sparse) return slots;
    uint64_t capacity = kvquant_capacity(block, size);
    uint32_t ends[2] = {0, 0};
    if (head > 0)
        memcpy(ends, extent + block->index_offset + sizeof(uint32_t) * (head - 1), sizeof ends);
    else
        memcpy(&ends[1], extent + block->index_offset, sizeof ends[1]);
    slots.end = ends[1] < capacity ? ends[1] : capacity;
    slots.first = ends[0] < slots.end ? ends[0] : slots.end;
    return slots;
}

/* The first of them at or behind a position. */
static inline uint64_t kvquant_slots_from(const kvquant_block *block, const uint8_t *extent,
                                          kvquant_slots slots, uint32_t position) {
    uint64_t low = slots.first, high = slots.end;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (kvquant_slot_position(block, extent, middle) < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

#endif
