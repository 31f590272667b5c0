/* What the files of the KVQuant codec share: its state and the hot calls for each instruction set. */
#ifndef KVANT_KVQUANT_STATE_H
#define KVANT_KVQUANT_STATE_H

#include "kvquant_math.h"

typedef struct kvquant_state kvquant_state;

/* Code for one instruction set. */
typedef struct kvquant_code {
    uint32_t isa;
    void (*encode)(const kvquant_state *state, kvant_encode_args *args);
    void (*decode)(const kvquant_state *state, const kvant_decode_args *args);
} kvquant_code;

/* Ranges of channels, one array for each member: [heads][padded]. Channels that only pad never have
 * outliers. */
typedef struct kvquant_channels {
    float *high, *low;                /* beyond is an outlier */
    float *middle, *half;             /* z and r */
    float *score_middle, *score_half; /* outliers of a capped token are ranked by (x - middle) / half */
} kvquant_channels;

enum { KVQUANT_CHANNEL_ARRAYS = 6 };

struct kvquant_state {
    kvquant_block block;
    const kvquant_code *code;
    float book[16];            /* that codes are found with, ascending */
    float table[16];           /* that codes are decoded with: book, or after Q-Norm */
    float edges[16];           /* [k]: the least a whose code is k or more, for k from 1 on; */
    bool has_edges;            /*   where no two entries are so close that rounding mixes them up */
    uint32_t hidden_code;      /* of an outlier: simulated and by rank */
    kvquant_channels channels; /* static ranges, behind the state */
};

/* Points the arrays into `memory`. Returns the bytes they take, a multiple of 64; memory may be NULL. */
static inline size_t kvquant_channels_carve(const kvquant_block *block, void *memory,
                                            kvquant_channels *channels) {
    size_t count = (size_t)block->heads * block->padded;
    float **arrays[KVQUANT_CHANNEL_ARRAYS] = {&channels->high,         &channels->low,
                                              &channels->middle,       &channels->half,
                                              &channels->score_middle, &channels->score_half};
    if (memory != NULL)
        for (size_t i = 0; i < KVQUANT_CHANNEL_ARRAYS; i++) *arrays[i] = (float *)memory + i * count;
    return KVQUANT_CHANNEL_ARRAYS * count * sizeof(float);
}

static inline kvquant_range kvquant_channel_range(const kvquant_block *block,
                                                  const kvquant_channels *channels, uint32_t head,
                                                  uint32_t channel) {
    size_t at = (size_t)head * block->padded + channel;
    return (kvquant_range){channels->middle[at], channels->half[at]};
}

/* Reads the range that an extent stores for an element's group. */
static inline kvquant_range kvquant_stored_range(const kvquant_block *block, const uint8_t *extent,
                                                 uint32_t token, uint32_t head, uint32_t channel) {
    uint32_t count;
    const uint8_t *at = extent + kvquant_range_at(block, token, head, channel, &count);
    return kvquant_range_of(kvant_load_element(at, block->meta),
                            kvant_load_element(at + (size_t)count * block->meta_bytes, block->meta));
}

/* Stores a group's range, rounded to the meta type, and returns it as stored. */
static inline kvquant_range kvquant_store_range(const kvquant_block *block, uint8_t *extent, uint32_t token,
                                                uint32_t head, uint32_t channel, const kvquant_cut *cut,
                                                uint64_t *saturated) {
    uint32_t count;
    uint8_t *at = extent + kvquant_range_at(block, token, head, channel, &count);
    float upper = kvquant_to_meta(block->meta, cut->upper + 0.0f, saturated);
    float lower = kvquant_to_meta(block->meta, cut->lower + 0.0f, saturated);
    kvant_store_element(at, block->meta, upper);
    kvant_store_element(at + (size_t)count * block->meta_bytes, block->meta, lower);
    return kvquant_range_of(upper, lower);
}

/* Fills state->book, table, hidden_code and channels. */
kvant_status kvquant_tables_open(kvquant_state *state, const kvant_setup *setup, kvant_diag *diag);

/* The levels of nf and uniform. */
void kvquant_fixed_book(uint32_t codebook, uint32_t bits, float book[16]);

extern const kvquant_code kvquant_code_reference;
extern const kvquant_code kvquant_code_v2, kvquant_code_v3, kvquant_code_v4,
    kvquant_code_neon; /* those that were built */

extern const kvant_inspect kvquant_inspect;
extern const kvant_calibrate kvquant_calibrate;

#endif
