/* Optimal weighted k-means of numbers on a line, by dynamic programming.
 *
 * Clusters of an optimum are intervals of the sorted points, so the least cost of the first j points in k
 * clusters is the least over i of (the first i in k - 1) + cost(i, j). The best i does not fall as j rises
 * (cost is concave Monge), so each row is filled by halving: O(k n log n). Equal points are merged, which
 * loses nothing. More than KVQUANT_POINTS_MAX points are first merged, with their weighted mean and spread,
 * in 65536 equal cells of [-1, 1]: the cost grows by at most the weight times (2^-15)^2 / 4, and centres are
 * means of their points still.
 *
 * Xiaolin Wu, "Optimal quantization by matrix searching", J. Algorithms 12 (1991); Wang and Song,
 * "Ckmeans.1d.dp", The R Journal 3 (2011).
 */
#ifndef KVANT_KVQUANT_KMEANS_H
#define KVANT_KVQUANT_KMEANS_H

#include <kvant/kit/half.h>

#include <stdbool.h>
#include <stdlib.h>

enum { KVQUANT_POINTS_MAX = 1 << 17, KVQUANT_CELLS = 1 << 16, KVQUANT_CLUSTERS_MAX = 16 };

typedef struct kvquant_point {
    float x; /* within [-1, 1] */
    float weight;
} kvquant_point;

/* Sums over the points before each: [count + 1]. */
typedef struct kvquant_sums {
    double *weight, *first, *second;
    uint32_t count;
} kvquant_sums;

/* ---- Sorting ------------------------------------------------------------------------------------------- */

static inline uint32_t kvquant_order(float x) {
    uint32_t bits = kvant_float_bits(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Ascending by x, stable: three passes of 11 bits. `other` has the same room and receives half-way
 * results. */
static inline void kvquant_sort_points(kvquant_point *points, kvquant_point *other, uint32_t count) {
    for (uint32_t shift = 0; shift < 44;
         shift += 11) { /* a fourth pass, which moves nothing, brings it home */
        uint32_t starts[2049] = {0};
        for (uint32_t i = 0; i < count; i++)
            starts[(shift < 33 ? kvquant_order(points[i].x) >> shift & 2047 : 0) + 1]++;
        for (uint32_t b = 0; b < 2048; b++) starts[b + 1] += starts[b];
        for (uint32_t i = 0; i < count; i++)
            other[starts[shift < 33 ? kvquant_order(points[i].x) >> shift & 2047 : 0]++] = points[i];
        kvquant_point *swapped = points;
        points = other;
        other = swapped;
    }
}

/* ---- Sums ---------------------------------------------------------------------------------------------- */

static inline void kvquant_sums_close(kvquant_sums *s, uint32_t at, double weight, double first,
                                      double second) {
    s->weight[at + 1] = s->weight[at] + weight;
    s->first[at + 1] = s->first[at] + first;
    s->second[at + 1] = s->second[at] + second;
}

/* Of sorted points, equal ones together. */
static inline void kvquant_sums_exact(kvquant_sums *s, const kvquant_point *points, uint32_t count) {
    s->count = 0;
    for (uint32_t i = 0; i < count;) {
        double weight = 0, x = (double)points[i].x;
        uint32_t end = i;
        for (; end < count && points[end].x == points[i].x; end++) weight += (double)points[end].weight;
        kvquant_sums_close(s, s->count++, weight, weight * x, weight * x * x);
        i = end;
    }
}

/* Of cells of [-1, 1]. */
static inline void kvquant_sums_cells(kvquant_sums *s, const kvquant_point *points, size_t count) {
    double *weight = s->weight + 1, *first = s->first + 1, *second = s->second + 1;
    for (uint32_t i = 0; i < KVQUANT_CELLS; i++) weight[i] = first[i] = second[i] = 0;
    for (size_t i = 0; i < count; i++) {
        double x = (double)points[i].x, w = (double)points[i].weight;
        double cell = (x + 1) * (KVQUANT_CELLS / 2);
        uint32_t at = cell < KVQUANT_CELLS - 1 ? (uint32_t)cell : KVQUANT_CELLS - 1;
        weight[at] += w;
        first[at] += w * x;
        second[at] += w * x * x;
    }
    s->count = 0;
    for (uint32_t i = 0; i < KVQUANT_CELLS; i++)
        if (weight[i] > 0) kvquant_sums_close(s, s->count++, weight[i], first[i], second[i]);
}

/* Squared error of the points [i, j) about their mean. */
static inline double kvquant_cost(const kvquant_sums *s, uint32_t i, uint32_t j) {
    double weight = s->weight[j] - s->weight[i];
    if (!(weight > 0)) return 0;
    double first = s->first[j] - s->first[i];
    double cost = s->second[j] - s->second[i] - first * first / weight;
    return cost > 0 ? cost : 0;
}

/* ---- Dynamic programming ------------------------------------------------------------------------------- */

/* Fills best[j] and split[j] for j in [from, to], whose splits lie in [least, most]. */
static inline void kvquant_fill(const kvquant_sums *s, const double *before, double *best, uint32_t *split,
                                uint32_t from, uint32_t to, uint32_t least, uint32_t most) {
    while (from <= to) {
        uint32_t j = from + (to - from) / 2, end = most < j - 1 ? most : j - 1, at = least;
        double lowest = before[least] + kvquant_cost(s, least, j);
        for (uint32_t i = least + 1; i <= end; i++) {
            double cost = before[i] + kvquant_cost(s, i, j);
            if (cost < lowest) {
                lowest = cost;
                at = i;
            }
        }
        best[j] = lowest;
        split[j] = at;
        if (j > from) kvquant_fill(s, before, best, split, from, j - 1, least, at);
        from = j + 1;
        least = at;
    }
}

/* Centres, ascending, from sums of at least `clusters` points. False: out of memory. */
static inline bool kvquant_partition(const kvquant_sums *s, uint32_t clusters, float *centres) {
    uint32_t n = s->count;
    double *rows = malloc(2 * ((size_t)n + 1) * sizeof *rows);
    uint32_t *splits = malloc(((size_t)n + 1) * clusters * sizeof *splits);
    if (rows == NULL || splits == NULL) {
        free(rows);
        free(splits);
        return false;
    }
    double *best = rows, *before = rows + n + 1;
    for (uint32_t j = 0; j <= n; j++) {
        best[j] = kvquant_cost(s, 0, j);
        splits[j] = 0;
    }
    for (uint32_t k = 1; k < clusters; k++) {
        double *swapped = before;
        before = best;
        best = swapped;
        kvquant_fill(s, before, best, splits + k * ((size_t)n + 1), k + 1, n, k, n - 1);
    }
    for (uint32_t k = clusters, end = n; k-- > 0;) {
        uint32_t first = splits[k * ((size_t)n + 1) + end];
        centres[k] = (float)((s->first[end] - s->first[first]) / (s->weight[end] - s->weight[first]));
        end = first;
    }
    free(rows);
    free(splits);
    return true;
}

typedef enum kvquant_fit { KVQUANT_FIT_DONE, KVQUANT_FIT_FEW, KVQUANT_FIT_MEMORY } kvquant_fit;

/* The optimal centres of weighted points in [-1, 1], ascending. Reorders the points. FEW: less different
 * points of positive weight than clusters; *distinct says how many. */
static inline kvquant_fit kvquant_kmeans(kvquant_point *points, size_t count, uint32_t clusters,
                                         float *centres, uint32_t *distinct) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (points[i].weight > 0) points[kept++] = points[i];
    size_t room = kept > KVQUANT_POINTS_MAX ? (size_t)KVQUANT_CELLS : kept;
    bool exact = kept <= KVQUANT_POINTS_MAX;
    kvquant_sums s = {0};
    double *memory = calloc(3 * (room + 1), sizeof *memory);
    kvquant_point *other = exact ? malloc((kept + 1) * sizeof *other) : NULL;
    kvquant_fit result = memory == NULL || (exact && other == NULL) ? KVQUANT_FIT_MEMORY : KVQUANT_FIT_DONE;
    if (result == KVQUANT_FIT_DONE) {
        s.weight = memory;
        s.first = memory + room + 1;
        s.second = memory + 2 * (room + 1);
        if (exact) {
            kvquant_sort_points(points, other, (uint32_t)kept);
            kvquant_sums_exact(&s, points, (uint32_t)kept);
        } else {
            kvquant_sums_cells(&s, points, kept);
        }
        *distinct = s.count;
        if (s.count < clusters)
            result = KVQUANT_FIT_FEW;
        else if (!kvquant_partition(&s, clusters, centres))
            result = KVQUANT_FIT_MEMORY;
    }
    free(memory);
    free(other);
    return result;
}

#endif
