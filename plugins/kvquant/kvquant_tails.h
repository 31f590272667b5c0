/* Dynamic ranges in vectors: what kvquant_cut_sorted (kvquant_work.h) finds in a sorted group, from the few
 * numbers at its ends alone. Included by kvquant_cpu.c. */
#ifndef KVANT_KVQUANT_TAILS_H
#define KVANT_KVQUANT_TAILS_H

#include "kvquant_lanes.h"
#include "kvquant_work.h"

enum {
    SHORT_TAIL = 3,   /* of up to 400 tokens of a channel at 1 % */
    INSERT_MAX = 256, /* longer tails are sorted whole */
};

/* Of the distance between the tails, how far the next group's may begin within. */
static const float GUESS = 0.1f;

static const kvquant_cut no_guess = {-INFINITY, INFINITY, 0, 0};

/* ---- Cuts ---------------------------------------------------------------------------------------------- */

/* Largest and least numbers of a group, ascending. */
typedef struct tails {
    float *top, *bottom;
    uint32_t top_count, bottom_count;
} tails;

static void insert_top(const tails *s, float x) {
    uint32_t i = 0;
    for (; i + 1 < s->top_count && s->top[i + 1] < x; i++) s->top[i] = s->top[i + 1];
    s->top[i] = x;
}

static void insert_bottom(const tails *s, float x) {
    uint32_t i = s->bottom_count - 1;
    for (; i > 0 && s->bottom[i - 1] > x; i--) s->bottom[i] = s->bottom[i - 1];
    s->bottom[i] = x;
}

/* Numbers of one vector that may belong to the tails. */
KVQUANT_INLINE void insert_vector(const float *x, const tails *s, kvquant_ints above, kvquant_ints below) {
    for (uint32_t bits = kvquant_bits_of(above); bits != 0; bits &= bits - 1) {
        float v = x[__builtin_ctz(bits)];
        if (v > s->top[0]) insert_top(s, v);
    }
    for (uint32_t bits = kvquant_bits_of(below); bits != 0; bits &= bits - 1) {
        float v = x[__builtin_ctz(bits)];
        if (v < s->bottom[s->bottom_count - 1]) insert_bottom(s, v);
    }
}

/* The tails of x[0, n), which hold n numbers together at most. Numbers between the two guesses are not looked
 * at; false where a tail is not full therefore. */
static bool find_tails(const float *x, uint32_t n, float high, float low, const tails *s) {
    const float *last = &s->bottom[s->bottom_count - 1];
    for (uint32_t i = 0; i < s->top_count; i++) s->top[i] = -INFINITY;
    for (uint32_t i = 0; i < s->bottom_count; i++) s->bottom[i] = INFINITY;
    uint32_t i = 0;
    for (; i + 4 * KVQUANT_LANES <= n; i += 4 * KVQUANT_LANES) {
        kvquant_floats v[4], most = kvquant_splat(s->top[0] > high ? s->top[0] : high);
        kvquant_floats least = kvquant_splat(*last < low ? *last : low);
        kvquant_ints found = {0};
        for (uint32_t k = 0; k < 4; k++) {
            v[k] = kvquant_load(x + i + k * KVQUANT_LANES);
            found |= (v[k] > most) | (v[k] < least);
        }
        if (!kvquant_any(found)) continue;
        for (uint32_t k = 0; k < 4; k++)
            insert_vector(x + i + k * KVQUANT_LANES, s, v[k] > most, v[k] < least);
    }
    for (; i < n; i++) {
        if (x[i] > s->top[0] && x[i] > high) insert_top(s, x[i]);
        if (x[i] < *last && x[i] < low) insert_bottom(s, x[i]);
    }
    return s->top[0] > -INFINITY && *last < INFINITY;
}

typedef struct between {
    float upper, lower;    /* of the numbers strictly between high and low */
    uint32_t above, below; /* numbers at or beyond them */
} between;

static between scan_between(const float *x, uint32_t n, float high, float low) {
    kvquant_floats upper = kvquant_splat(-INFINITY), lower = kvquant_splat(INFINITY);
    kvquant_floats highs = kvquant_splat(high), lows = kvquant_splat(low);
    kvquant_ints above = {0}, below = {0};
    between b = {-INFINITY, INFINITY, 0, 0};
    uint32_t i = 0;
    for (; i + KVQUANT_LANES <= n; i += KVQUANT_LANES) {
        kvquant_floats v = kvquant_load(x + i);
        kvquant_ints up = v >= highs, down = v <= lows, out = up | down;
        above -= up;
        below -= down;
        upper = kvquant_most(upper, kvquant_select_floats(out, upper, v));
        lower = kvquant_least(lower, kvquant_select_floats(out, lower, v));
    }
    for (uint32_t k = 0; k < KVQUANT_LANES; k++) {
        b.upper = upper[k] > b.upper ? upper[k] : b.upper;
        b.lower = lower[k] < b.lower ? lower[k] : b.lower;
        b.above += (uint32_t)above[k];
        b.below += (uint32_t)below[k];
    }
    for (; i < n; i++) {
        bool up = x[i] >= high, down = x[i] <= low;
        b.above += up;
        b.below += down;
        if (up || down) continue;
        b.upper = x[i] > b.upper ? x[i] : b.upper;
        b.lower = x[i] < b.lower ? x[i] : b.lower;
    }
    return b;
}

static kvquant_cut cut_slowly(const kvquant_block *block, const float *x, uint32_t n, kvquant_work *w) {
    memmove(w->sorted, x, sizeof(float) * n);
    kvquant_sort(w->sorted, n);
    return kvquant_cut_sorted(block, w->sorted, n);
}

/* What kvquant_cut_sorted gives for the sorted group. `guess` has the tails' ends of a group like this one,
 * drawn in a little, or infinities; it gets those of this one. */
static kvquant_cut cut_of(const kvquant_block *block, const float *x, uint32_t n, kvquant_work *w,
                          kvquant_cut *guess) {
    const kvquant_config *config = &block->config;
    bool by_rank = kvquant_by_rank(config);
    double q = kvquant_upper_quantile(config);
    kvquant_place up = kvquant_place_of(q, n), down = kvquant_place_of(1 - q, n);
    tails s = {.top_count = n - up.index, .bottom_count = down.next + 1};
    if (by_rank) s.top_count = s.bottom_count = block->per_tail + 1;
    if (!config->sparse) s.top_count = s.bottom_count = 1;
    if (s.top_count > INSERT_MAX || s.bottom_count > INSERT_MAX || s.top_count + s.bottom_count > n)
        return cut_slowly(block, x, n, w);
    s.bottom = w->sorted;
    s.top = w->sorted + (s.top_count > s.bottom_count ? s.top_count : s.bottom_count);
    if (!find_tails(x, n, guess->high, guess->low, &s)) (void)find_tails(x, n, -INFINITY, INFINITY, &s);
    float upper = s.top[0], lower = s.bottom[s.bottom_count - 1];
    float reach = (upper - lower) * GUESS;
    guess->high = upper - reach;
    guess->low = lower + reach;
    if (!config->sparse) return (kvquant_cut){INFINITY, -INFINITY, upper, lower};
    if (by_rank) return (kvquant_cut){upper, lower, upper, lower};
    float high = kvquant_lerp(s.top[0], s.top[up.next - up.index], up.weight);
    float low = kvquant_lerp(s.bottom[down.index], s.bottom[down.next], down.weight);
    between b = scan_between(x, n, high, low);
    uint32_t median = (n - 1) / 2;
    if (median < b.below || median >= n - b.above) return cut_slowly(block, x, n, w);
    return kvquant_cut_of(high, low, b.upper, b.lower, false, 0);
}

/* ---- Channels side by side
 * ------------------------------------------------------------------------------ */

/* KVQUANT_LANES channels side by side, as floats. */
KVQUANT_INLINE kvquant_floats load_channels_of(const kvant_view *rows, uint32_t token, uint32_t head,
                                               uint32_t c) {
    const char *from = kvant_view_at(rows, token, head) + (int64_t)c * kvant_element_bytes(rows->dtype);
    if (rows->dtype == KVANT_DTYPE_F32) return kvquant_load(from);
    float x[KVQUANT_LANES];
    kvant_load_elements(from, rows->dtype, KVQUANT_LANES, x);
    return kvquant_load(x);
}

/* What cut_of gives for KVQUANT_LANES channels at once, whose tails are short: [0] the highest or lowest.
 * False where a median is an outlier. */
static bool cut_channels(const kvquant_block *block, const kvant_view *rows, uint32_t h, uint32_t c,
                         kvquant_cut cuts[KVQUANT_LANES]) {
    uint32_t n = block->tokens, median = (n - 1) / 2;
    double q = kvquant_upper_quantile(&block->config);
    kvquant_place up = kvquant_place_of(q, n), down = kvquant_place_of(1 - q, n);
    uint32_t top_count = n - up.index, bottom_count = down.next + 1;
    kvquant_floats top[SHORT_TAIL], bottom[SHORT_TAIL];
    for (uint32_t i = 0; i < SHORT_TAIL; i++) {
        top[i] = kvquant_splat(-INFINITY);
        bottom[i] = kvquant_splat(INFINITY);
    }
    for (uint32_t t = 0; t < n; t++) {
        kvquant_floats x = load_channels_of(rows, t, h, c), y = x;
        for (uint32_t i = 0; i < SHORT_TAIL; i++) {
            kvquant_floats most = kvquant_most(top[i], x), least = kvquant_least(bottom[i], y);
            x = kvquant_least(top[i], x);
            y = kvquant_most(bottom[i], y);
            top[i] = most;
            bottom[i] = least;
        }
    }
    kvquant_floats high = {0}, low = {0};
    for (uint32_t l = 0; l < KVQUANT_LANES; l++) {
        high[l] = kvquant_lerp(top[top_count - 1][l], top[n - 1 - up.next][l], up.weight);
        low[l] = kvquant_lerp(bottom[down.index][l], bottom[bottom_count - 1][l], down.weight);
    }
    kvquant_floats upper = kvquant_splat(-INFINITY), lower = kvquant_splat(INFINITY);
    kvquant_ints above = {0}, below = {0};
    for (uint32_t t = 0; t < n; t++) {
        kvquant_floats x = load_channels_of(rows, t, h, c);
        kvquant_ints over = x >= high, under = x <= low, out = over | under;
        above -= over;
        below -= under;
        upper = kvquant_most(upper, kvquant_select_floats(out, upper, x));
        lower = kvquant_least(lower, kvquant_select_floats(out, lower, x));
    }
    for (uint32_t l = 0; l < KVQUANT_LANES; l++) {
        if (median < (uint32_t)below[l] || median >= n - (uint32_t)above[l]) return false;
        cuts[l] = kvquant_cut_of(high[l], low[l], upper[l], lower[l], false, 0);
    }
    return true;
}

#endif
