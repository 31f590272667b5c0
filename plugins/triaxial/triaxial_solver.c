/* Minimise sum_k D_k(b_k) with sum_k N_k b_k <= B sum_k N_k and every b_k 2 or 4: which tags to lift from 2
 * to 4 bits. The gain of tag k is D_k(2) - D_k(4) and it takes 2 N_k bits of the 2-bit solution's spare
 * (B - 2) sum N, so this is a knapsack of gains by tokens, with room (B - 2) / 2 * sum N.
 *
 * Up to 22 items every subset is enumerated, depth first by falling gain per token, leaving out the subtrees
 * that provably hold nothing better: what may still be added is bounded by filling the room in that order,
 * the last item in part. More items are taken in that order while they fit.
 */
#include "triaxial_solver.h"

#include <string.h>

typedef struct search {
    const triaxial_item *items;
    uint32_t order[TRIAXIAL_ITEMS_MAX]; /* by falling gain per token */
    uint32_t count;
    bool taken[TRIAXIAL_ITEMS_MAX];
    bool best[TRIAXIAL_ITEMS_MAX];
    double best_gain;
} search;

/* More gain per token; of equals the one with the lower index. No division, which would round. */
static bool before(const triaxial_item *items, uint32_t a, uint32_t b) {
    double left = items[a].gain * items[b].tokens, right = items[b].gain * items[a].tokens;
    return left != right ? left > right : a < b;
}

static void sort(search *s) {
    for (uint32_t i = 1; i < s->count; i++) {
        uint32_t item = s->order[i], j = i;
        for (; j > 0 && before(s->items, item, s->order[j - 1]); j--) s->order[j] = s->order[j - 1];
        s->order[j] = item;
    }
}

/* The most that items from `depth` on can add; a little more than that, so that rounding never hides a better
 * subset. */
static double bound(const search *s, uint32_t depth, double room) {
    double gain = 0;
    for (uint32_t i = depth; i < s->count; i++) {
        const triaxial_item *item = &s->items[s->order[i]];
        if (item->tokens > room) return (gain + item->gain * (room / item->tokens)) * (1 + 1e-12);
        gain += item->gain;
        room -= item->tokens;
    }
    return gain * (1 + 1e-12);
}

static void enumerate(search *s, uint32_t depth, double room, double gain) {
    if (gain > s->best_gain) {
        s->best_gain = gain;
        memcpy(s->best, s->taken, sizeof s->best);
    }
    if (depth == s->count || gain + bound(s, depth, room) <= s->best_gain) return;
    const triaxial_item *item = &s->items[s->order[depth]];
    if (item->tokens <= room) {
        s->taken[s->order[depth]] = true;
        enumerate(s, depth + 1, room - item->tokens, gain + item->gain);
        s->taken[s->order[depth]] = false;
    }
    enumerate(s, depth + 1, room, gain);
}

static void take_greedily(search *s, double room) {
    for (uint32_t i = 0; i < s->count; i++) {
        const triaxial_item *item = &s->items[s->order[i]];
        if (item->tokens > room) continue;
        s->best[s->order[i]] = true;
        s->best_gain += item->gain;
        room -= item->tokens;
    }
}

double triaxial_solve(const triaxial_item *items, uint32_t count, double room, bool *chosen) {
    search s = {.items = items};
    for (uint32_t i = 0; i < count && i < TRIAXIAL_ITEMS_MAX; i++)
        if (items[i].gain > 0) s.order[s.count++] = i;
    sort(&s);
    if (s.count <= TRIAXIAL_EXACT_MAX)
        enumerate(&s, 0, room, 0);
    else
        take_greedily(&s, room);
    memcpy(chosen, s.best, count * sizeof *chosen);
    return s.best_gain;
}
