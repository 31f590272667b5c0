/* kvant/kit/attend_shape.h: which pairs of codecs kit/attend_codes.cuh serves, and where its shared memory
 * goes. Plain arithmetic, for the host that asks for the memory and for the kernel that carves it up.
 *
 *     queries   [8 rows][query_stride] floats                                                once a block
 *     warps     each: weights [8][KVANT_ATTEND_WEIGHTS] floats, minima [passes][8] floats,
 *               keys of a tile, values of a tile                                             four times
 *
 * A side of a tile: code lines of 64 bytes, then a row of scales for each group, then as many of minima.
 * Before partials are written, the warps' memory holds [4 warps][8 rows][value dim] sums.
 */
#ifndef KVANT_KIT_ATTEND_SHAPE_H
#define KVANT_KIT_ATTEND_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define KVANT_SHAPE static __device__ __forceinline__
#else
#define KVANT_SHAPE static inline
#endif

enum {
    KVANT_ATTEND_WARPS = 4,
    KVANT_ATTEND_COLUMNS = 8,  /* of an mma: query rows, times groups */
    KVANT_ATTEND_TOKENS = 64,  /* of a tile */
    KVANT_ATTEND_RAW = 16,     /* tokens of a tile of raw rows */
    KVANT_ATTEND_WEIGHTS = 68, /* floats of a row of weights: 4 mod 32, so that rows lie in other banks */
    KVANT_ATTEND_STEPS = 2,    /* of 32 summed indices, between two foldings */
    KVANT_ATTEND_CHUNK = 64,   /* key channels that are folded at once */
    KVANT_ATTEND_SHARED_MOST = 99 << 10 /* of a block, on every architecture from 8.0 on */
};

/* A side of a layer as the kernel reads it. */
typedef struct kvant_attend_side {
    uint32_t tokens; /* of a block */
    uint32_t head_dim;
    uint32_t bits;       /* 1, 2, 3, 4 or 8 */
    uint32_t group;      /* keys: tokens; values: channels */
    uint32_t meta_bytes; /* of a scale */
} kvant_attend_side;

KVANT_SHAPE uint32_t kvant_attend_up(uint32_t x, uint32_t multiple) {
    return (x + multiple - 1) / multiple * multiple;
}

/* Code lines of 16 free indices in shared memory; an even number, as lines trade places in pairs. */
KVANT_SHAPE uint32_t kvant_attend_lines(uint32_t summed, uint32_t bits) {
    return kvant_attend_up((summed * bits + 31) / 32, 2);
}

/* Bytes of the codes of a tile of free x summed numbers; 3 bits are a set of 2 and one of 1. */
KVANT_SHAPE uint32_t kvant_attend_code_bytes(uint32_t free_count, uint32_t summed, uint32_t bits) {
    uint32_t lines = bits == 3 ? kvant_attend_lines(summed, 2) + kvant_attend_lines(summed, 1)
                               : kvant_attend_lines(summed, bits);
    return (free_count + 15) / 16 * lines * 64;
}

KVANT_SHAPE uint32_t kvant_attend_tile_tokens(const kvant_attend_side *s) {
    return s->tokens < KVANT_ATTEND_TOKENS ? s->tokens : (uint32_t)KVANT_ATTEND_TOKENS;
}

/* Groups of tokens that a tile of keys can touch. */
KVANT_SHAPE uint32_t kvant_attend_key_groups(const kvant_attend_side *s) {
    if (KVANT_ATTEND_TOKENS % s->group == 0) return kvant_attend_tile_tokens(s) / s->group;
    if (s->group % KVANT_ATTEND_TOKENS == 0) return 1;
    return (KVANT_ATTEND_TOKENS - 2) / s->group + 2;
}

KVANT_SHAPE uint32_t kvant_attend_value_groups(const kvant_attend_side *s) {
    return (s->head_dim + s->group - 1) / s->group;
}

KVANT_SHAPE uint32_t kvant_attend_key_code_bytes(const kvant_attend_side *s) {
    return kvant_attend_code_bytes(kvant_attend_tile_tokens(s), s->head_dim, s->bits);
}
KVANT_SHAPE uint32_t kvant_attend_value_code_bytes(const kvant_attend_side *s) {
    return kvant_attend_code_bytes(s->head_dim, kvant_attend_tile_tokens(s), s->bits);
}
KVANT_SHAPE uint32_t kvant_attend_key_plane_bytes(const kvant_attend_side *s) {
    return kvant_attend_key_groups(s) * s->head_dim * s->meta_bytes;
}
KVANT_SHAPE uint32_t kvant_attend_value_plane_bytes(const kvant_attend_side *s) {
    return kvant_attend_value_groups(s) * kvant_attend_tile_tokens(s) * s->meta_bytes;
}

KVANT_SHAPE uint32_t kvant_attend_query_stride(const kvant_attend_side *key) {
    return kvant_attend_up(key->head_dim, KVANT_ATTEND_CHUNK) + 4;
}

/* Offsets within a warp's memory; a multiple of 16 each. */
KVANT_SHAPE uint32_t kvant_attend_minima_at(void) {
    return KVANT_ATTEND_COLUMNS * KVANT_ATTEND_WEIGHTS * 4;
}
KVANT_SHAPE uint32_t kvant_attend_keys_at(const kvant_attend_side *value) {
    return kvant_attend_minima_at() + kvant_attend_value_groups(value) * KVANT_ATTEND_COLUMNS * 4;
}
KVANT_SHAPE uint32_t kvant_attend_values_at(const kvant_attend_side *key, const kvant_attend_side *value) {
    return kvant_attend_keys_at(value) + kvant_attend_key_code_bytes(key) +
           2 * kvant_attend_key_plane_bytes(key);
}
KVANT_SHAPE uint32_t kvant_attend_warp_bytes(const kvant_attend_side *key, const kvant_attend_side *value) {
    uint32_t bytes = kvant_attend_values_at(key, value) + kvant_attend_value_code_bytes(value) +
                     2 * kvant_attend_value_plane_bytes(value);
    uint32_t sums = KVANT_ATTEND_COLUMNS * value->head_dim * 4;
    return bytes > sums ? bytes : sums;
}

/* Dynamic shared memory of a block. */
KVANT_SHAPE uint32_t kvant_attend_codes_bytes(const kvant_attend_side *key, const kvant_attend_side *value) {
    return KVANT_ATTEND_COLUMNS * kvant_attend_query_stride(key) * 4 +
           KVANT_ATTEND_WARPS * kvant_attend_warp_bytes(key, value);
}

/* Value channels of the smallest kernel that serves the pair: 128, 256, or 0 where none does. Rows of scales
 * are copied 16 bytes at a time, and four neighbours of the free index share a group. */
KVANT_SHAPE uint32_t kvant_attend_codes_class(const kvant_attend_side *key, const kvant_attend_side *value) {
    bool fits = key->head_dim % 8 == 0 && value->head_dim % 8 == 0 && key->head_dim <= 256 &&
                value->head_dim <= 256 && key->tokens % 8 == 0 && key->tokens == value->tokens &&
                key->group % 4 == 0 && value->group % 4 == 0;
    if (!fits || kvant_attend_codes_bytes(key, value) > KVANT_ATTEND_SHARED_MOST) return 0;
    return value->head_dim <= 128 ? 128 : 256;
}

#endif
