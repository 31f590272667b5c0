/* The host's scratch of one encode or decode, cut into arrays, and what both codes do with it: which channels
 * are a head's outliers. */
#ifndef KVANT_TURBOQUANT_SCRATCH_H
#define KVANT_TURBOQUANT_SCRATCH_H

#include "turboquant_state.h"

#include <kvant/kit/root.h>
#include <kvant/kit/sum.h>

#include <string.h>

enum { TURBOQUANT_LANES = 16 }; /* sums of a gaussian sketch that are made side by side */

/* Every array begins on a multiple of 64 bytes. `room` is that of a halving tree over a part. */
typedef struct turboquant_scratch {
    float *row;       /* [head_dim]: a token's channels, the parts one after another */
    float *gathered;  /* [head_dim]: the same in the channels' own order */
    float *swap;      /* [room] */
    float *terms;     /* [room]: of a sum */
    float *sketch;    /* [room]: rotated residual, or the sketch turned back */
    float *products;  /* [room][TURBOQUANT_LANES] */
    float *scales;    /* [TURBOQUANT_PARTS][TURBOQUANT_STRETCH] */
    float *residuals; /* likewise */
    uint8_t *symbols; /* [TURBOQUANT_PARTS][TURBOQUANT_STRETCH][stride] */
    uint8_t *set;     /* [TURBOQUANT_STRETCH][stride]: the bits of one set of planes */
    size_t stride;
    uint32_t *channels; /* [head_dim] */
    float *columns;     /* [room of all tokens][head_dim]: energies, with outliers only */
    size_t bytes;
} turboquant_scratch;

static inline void *turboquant_take(char *base, size_t *used, size_t bytes) {
    void *array = base != NULL ? base + *used : NULL;
    *used += turboquant_round_up(bytes, 64);
    return array;
}

/* base = NULL only counts. */
static inline turboquant_scratch turboquant_scratch_cut(const turboquant_block *b, void *base) {
    uint32_t dim = b->parts[0].dim;
    if (b->part_count > 1 && b->parts[1].dim > dim) dim = b->parts[1].dim;
    size_t room = kvant_sum_room(dim), row = turboquant_round_up(b->head_dim, 16), used = 0;
    room = room < 16 ? 16 : room;
    turboquant_scratch s = {.stride = turboquant_round_up(dim, 64)};
    s.row = turboquant_take(base, &used, row * sizeof(float));
    s.gathered = turboquant_take(base, &used, row * sizeof(float));
    s.swap = turboquant_take(base, &used, room * sizeof(float));
    s.terms = turboquant_take(base, &used, room * sizeof(float));
    s.sketch = turboquant_take(base, &used, room * sizeof(float));
    s.products = turboquant_take(base, &used, b->prod ? room * TURBOQUANT_LANES * sizeof(float) : 0);
    s.scales = turboquant_take(base, &used, TURBOQUANT_PARTS * TURBOQUANT_STRETCH * sizeof(float));
    s.residuals = turboquant_take(base, &used, TURBOQUANT_PARTS * TURBOQUANT_STRETCH * sizeof(float));
    s.symbols = turboquant_take(base, &used, b->part_count * TURBOQUANT_STRETCH * s.stride);
    s.set = turboquant_take(base, &used, TURBOQUANT_STRETCH * s.stride);
    s.channels = turboquant_take(base, &used, b->head_dim * sizeof(uint32_t));
    if (b->part_count > 1)
        s.columns =
            turboquant_take(base, &used, (size_t)kvant_sum_room(b->tokens) * b->head_dim * sizeof(float));
    s.bytes = used;
    return s;
}

static inline uint8_t *turboquant_symbols(const turboquant_scratch *s, uint32_t part, uint32_t token) {
    return s->symbols + ((size_t)part * TURBOQUANT_STRETCH + token) * s->stride;
}

/* Channels sorted by energy, a tie to the lower one: the first parts[1].dim of them are outliers. */
static inline void turboquant_outliers_mark(const turboquant_block *b, const float *energies, uint8_t *head) {
    uint8_t *bits = head + b->outlier_offset;
    memset(bits, 0, (b->head_dim + 7) / 8);
    for (uint32_t c = 0; c < b->head_dim; c++) {
        uint32_t before = 0;
        for (uint32_t j = 0; j < c; j++) before += energies[j] >= energies[c];
        for (uint32_t j = c + 1; j < b->head_dim; j++) before += energies[j] > energies[c];
        if (before < b->parts[1].dim) bits[c / 8] = (uint8_t)(bits[c / 8] | 1u << c % 8);
    }
}

/* Finds a head's outliers: the channels of largest sum of squares over the block. Writes their bits. */
static inline void turboquant_outliers_find(const turboquant_block *b, const kvant_view *rows, uint32_t head,
                                            uint8_t *bytes, const turboquant_scratch *s) {
    size_t count = (size_t)b->tokens * b->head_dim;
    uint32_t largest = 0; /* magnitudes compare like their bits */
    for (uint32_t t = 0; t < b->tokens; t++)
        kvant_load_row(rows, t, head, s->columns + (size_t)t * b->head_dim);
    for (size_t i = 0; i < count; i++) {
        uint32_t magnitude = kvant_float_bits(s->columns[i]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    float power = turboquant_power_for(kvant_bits_float(largest));
    for (size_t i = 0; i < count; i++) {
        float x = s->columns[i] * power;
        s->columns[i] = x * x;
    }
    kvant_sum_columns(s->columns, b->tokens, b->head_dim);
    turboquant_outliers_mark(b, s->columns, bytes);
}

#endif
