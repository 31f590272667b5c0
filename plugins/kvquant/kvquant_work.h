/* Scratch of one call, and what the reference and the fast code do alike: ranges of sorted groups, bits that
 * mark outliers, the choice of those that a cap leaves, their slots. */
#ifndef KVANT_KVQUANT_WORK_H
#define KVANT_KVQUANT_WORK_H

#include "kvquant_state.h"

/* Every array starts on a multiple of 64 bytes. */
typedef struct kvquant_work {
    uint64_t *mask;            /* [tokens][heads][words]: bit c of a row marks an outlier */
    uint32_t *ends;            /* [heads]: outliers of a head, then the slots up to its end */
    float *row;                /* [width + KVQUANT_LANE_PAD], a token's rows of all heads side by side */
    float *out;                /* [padded + KVQUANT_LANE_PAD], a row that waits to be written */
    float *sorted;             /* [longest group + 2 KVQUANT_LANE_PAD] */
    float *column;             /* [tokens] */
    kvquant_range *ranges;     /* [tokens], of tokens */
    kvquant_channels channels; /* of channels, where they are dynamic */
    float *score;              /* [kept]: of the outliers that a cap leaves */
    uint32_t *place;           /* [kept] */
    uint8_t *codes;            /* [64][code_stride] */
    uint8_t *part;             /* the same, one half of 3-bit codes */
    size_t code_stride;
    uint32_t words; /* of 64 bits in a row's mask */
    uint32_t kept;
} kvquant_work;

static inline size_t kvquant_carve(const kvquant_block *block, void *scratch, kvquant_work *w) {
    uint8_t *at = scratch;
    size_t used = 0;
    uint32_t longest = block->width > block->tokens ? block->width : block->tokens;
    w->words = (block->head_dim + 63) / 64;
    w->kept = block->per_tail < block->width ? block->per_tail : block->width;
    w->code_stride = kvquant_round_up(block->head_dim, 64);
#define KVQUANT_CARVE(member, bytes)                                                                         \
    do {                                                                                                     \
        if (at != NULL) w->member = (void *)(at + used);                                                     \
        used += kvquant_round_up(bytes, 64);                                                                 \
    } while (0)
    KVQUANT_CARVE(mask, sizeof(uint64_t) * block->tokens * block->heads * w->words);
    KVQUANT_CARVE(ends, sizeof(uint32_t) * block->heads);
    KVQUANT_CARVE(row, sizeof(float) * ((size_t)block->width + KVQUANT_LANE_PAD));
    KVQUANT_CARVE(out, sizeof(float) * ((size_t)block->padded + KVQUANT_LANE_PAD));
    KVQUANT_CARVE(sorted, sizeof(float) * ((size_t)longest + 2 * KVQUANT_LANE_PAD));
    KVQUANT_CARVE(column, sizeof(float) * block->tokens);
    KVQUANT_CARVE(ranges, sizeof(kvquant_range) * block->tokens);
    KVQUANT_CARVE(score, sizeof(float) * w->kept);
    KVQUANT_CARVE(place, sizeof(uint32_t) * w->kept);
    KVQUANT_CARVE(codes, KVQUANT_MATRIX_TOKENS * w->code_stride);
    KVQUANT_CARVE(part, KVQUANT_MATRIX_TOKENS * w->code_stride);
#undef KVQUANT_CARVE
    if (kvquant_channel_ranges(block))
        used += kvquant_channels_carve(block, at != NULL ? at + used : NULL, &w->channels);
    return used;
}

static inline uint64_t kvquant_work_bytes(const kvquant_block *block) {
    kvquant_work w = {0};
    return kvquant_carve(block, NULL, &w);
}

static inline uint64_t *kvquant_mask_row(const kvquant_block *block, const kvquant_work *w, uint32_t token,
                                         uint32_t head) {
    return w->mask + ((size_t)token * block->heads + head) * w->words;
}

static inline bool kvquant_mask_get(const uint64_t *mask, uint32_t channel) {
    return mask[channel / 64] >> channel % 64 & 1;
}

static inline void kvquant_mask_put(uint64_t *mask, uint32_t channel, bool bit) {
    uint64_t one = (uint64_t)1 << channel % 64;
    mask[channel / 64] = bit ? mask[channel / 64] | one : mask[channel / 64] & ~one;
}

/* ---- Cuts of sorted groups ----------------------------------------------------------------------------- */

/* Heap sort, ascending. */
static inline void kvquant_sink(float *x, uint32_t at, uint32_t n) {
    float moved = x[at];
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && x[child + 1] > x[child]) child++;
        if (!(x[child] > moved)) break;
        x[at] = x[child];
    }
    x[at] = moved;
}

static inline void kvquant_sort(float *x, uint32_t n) {
    for (uint32_t i = n / 2; i-- > 0;) kvquant_sink(x, i, n);
    for (uint32_t end = n; end-- > 1;) {
        float largest = x[0];
        x[0] = x[end];
        x[end] = largest;
        kvquant_sink(x, 0, end);
    }
}

static inline kvquant_cut kvquant_cut_sorted(const kvquant_block *block, const float *x, uint32_t n) {
    const kvquant_config *config = &block->config;
    if (!config->sparse) return (kvquant_cut){INFINITY, -INFINITY, x[n - 1], x[0]};
    if (kvquant_by_rank(config)) {
        float upper = x[n - 1 - block->per_tail], lower = x[block->per_tail];
        return (kvquant_cut){upper, lower, upper, lower};
    }
    double q = kvquant_upper_quantile(config);
    kvquant_place up = kvquant_place_of(q, n), down = kvquant_place_of(1 - q, n);
    float high = kvquant_lerp(x[up.index], x[up.next], up.weight);
    float low = kvquant_lerp(x[down.index], x[down.next], down.weight);
    uint32_t above = 0, below = 0;
    float upper = -INFINITY, lower = INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        above += x[i] >= high;
        below += x[i] <= low;
        if (x[i] >= high || x[i] <= low) continue;
        upper = x[i] > upper ? x[i] : upper;
        lower = x[i] < lower ? x[i] : lower;
    }
    uint32_t median = (n - 1) / 2;
    return kvquant_cut_of(high, low, upper, lower, median < below || median >= n - above, x[median]);
}

/* ---- Which outliers stay ------------------------------------------------------------------------------- */

/* By rank exactly per_tail elements of each tail are outliers. What is strictly beyond is marked; numbers
 * that equal the edge fill up, lower index first. */
static inline void kvquant_mark_equal(const kvquant_block *block, const kvquant_work *w, uint32_t token,
                                      const kvquant_cut *cut) {
    uint32_t above = 0, below = 0;
    for (uint32_t h = 0; h < block->heads; h++) {
        const uint64_t *mask = kvquant_mask_row(block, w, token, h);
        for (uint32_t i = 0; i < w->words; i++)
            for (uint64_t bits = mask[i]; bits != 0; bits &= bits - 1) {
                uint32_t c = i * 64 + (uint32_t)__builtin_ctzll(bits);
                bool up = w->row[(size_t)h * block->head_dim + c] > cut->upper;
                above += up;
                below += !up;
            }
    }
    for (uint32_t tail = 0; tail < 2; tail++) {
        uint32_t count = tail == 0 ? above : below;
        float edge = tail == 0 ? cut->upper : cut->lower;
        for (uint32_t e = 0; e < block->width && count < block->per_tail; e++) {
            uint64_t *mask = kvquant_mask_row(block, w, token, e / block->head_dim);
            uint32_t c = e % block->head_dim;
            if (w->row[e] != edge || kvquant_mask_get(mask, c)) continue;
            kvquant_mask_put(mask, c, true);
            count++;
        }
    }
}

/* Where the normalized values of a token's elements come from: its range, or its channels'. */
typedef struct kvquant_scorer {
    const kvquant_channels *channels; /* NULL: `range` */
    kvquant_range range;
} kvquant_scorer;

static inline float kvquant_score(const kvquant_block *block, const kvquant_scorer *scorer, uint32_t head,
                                  uint32_t channel, float x) {
    kvquant_range range = scorer->range;
    if (scorer->channels != NULL) {
        size_t at = (size_t)head * block->padded + channel;
        range = (kvquant_range){scorer->channels->score_middle[at], scorer->channels->score_half[at]};
    }
    float score = (x - range.middle) / range.half;
    return score == score ? score : 0; /* 0 / 0 */
}

static inline void kvquant_drop(const kvquant_block *block, const kvquant_work *w, uint32_t token,
                                uint32_t place, uint64_t *dropped) {
    kvquant_mask_put(kvquant_mask_row(block, w, token, place / block->head_dim), place % block->head_dim,
                     false);
    *dropped += 1;
}

/* Keeps the `kept` of highest score among the outliers of one tail (lower index first), unmarks the
 * others. */
static inline void kvquant_keep_tail(const kvquant_block *block, const kvquant_work *w, uint32_t token,
                                     const kvquant_scorer *scorer, float sign, uint64_t *dropped) {
    uint32_t count = 0;
    for (uint32_t h = 0; h < block->heads; h++)
        for (uint32_t i = 0; i < w->words; i++)
            for (uint64_t bits = kvquant_mask_row(block, w, token, h)[i]; bits != 0; bits &= bits - 1) {
                uint32_t c = i * 64 + (uint32_t)__builtin_ctzll(bits), place = h * block->head_dim + c;
                float score = sign * kvquant_score(block, scorer, h, c, w->row[place]);
                if (!(score > 0) && !(score == 0 && sign > 0)) continue; /* of the other tail */
                uint32_t at = count;
                if (count == w->kept) {
                    if (!(score > w->score[count - 1])) {
                        kvquant_drop(block, w, token, place, dropped);
                        continue;
                    }
                    kvquant_drop(block, w, token, w->place[--at], dropped);
                } else {
                    count++;
                }
                for (; at > 0 && score > w->score[at - 1]; at--) {
                    w->score[at] = w->score[at - 1];
                    w->place[at] = w->place[at - 1];
                }
                w->score[at] = score;
                w->place[at] = place;
            }
}

/* Applies the cap to a token whose row is in w->row. */
static inline void kvquant_keep(const kvquant_block *block, const kvquant_work *w, uint32_t token,
                                const kvquant_scorer *scorer, uint64_t *dropped) {
    if (block->per_tail == UINT32_MAX || kvquant_by_rank(&block->config)) return;
    kvquant_keep_tail(block, w, token, scorer, 1, dropped);
    kvquant_keep_tail(block, w, token, scorer, -1, dropped);
}

/* ---- Slots --------------------------------------------------------------------------------------------- */

/* Counts marks into w->ends, writes the index, and returns the size of the extent. What no slot fills at its
 * end is zeroed. */
static inline uint64_t kvquant_index_slots(const kvquant_block *block, const kvquant_work *w,
                                           uint8_t *extent) {
    if (!block->config.sparse) return block->size_min;
    uint32_t total = 0;
    for (uint32_t h = 0; h < block->heads; h++) {
        for (uint32_t t = 0; t < block->tokens; t++) {
            const uint64_t *mask = kvquant_mask_row(block, w, t, h);
            for (uint32_t i = 0; i < w->words; i++) total += (uint32_t)__builtin_popcountll(mask[i]);
        }
        w->ends[h] = total;
    }
    memcpy(extent + block->index_offset, w->ends, sizeof(uint32_t) * block->heads);
    uint64_t end = block->slot_offset + (uint64_t)total * block->slot_bytes;
    uint64_t size = block->steps == 0 ? block->size_min : kvquant_round_up(end, KVQUANT_STEP);
    memset(extent + end, 0, size - end);
    return size;
}

/* Everything before the first slot that codes do not fill. */
static inline void kvquant_clear(const kvquant_block *block, uint8_t *extent) {
    for (uint32_t h = 0; h < block->heads; h++)
        memset(extent + h * block->head_bytes + block->range_offset, 0,
               block->head_bytes - block->range_offset);
    memset(extent + block->token_offset, 0, block->slot_offset - block->token_offset);
}

#endif
