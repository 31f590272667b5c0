/* kvant/kit/lloyd_max.h: the scalar quantizers of least mean squared error for two laws of unit variance.
 *
 *     dimension 0        N(0,1)
 *     dimension d >= 2   a coordinate of a point that is uniform on the unit sphere in d dimensions, times
 *                        sqrt(d):  density ~ (1 - t^2/d)^((d-3)/2) on [-sqrt(d), sqrt(d)]
 *
 * A quantizer of b bits has 2^b centroids, each the mean of its cell, and the cells meet in the middle
 * between neighbours (Lloyd 1957, Max 1960). For these symmetric laws it suffices to solve for the positive
 * half:
 *
 *     F_k = c_k - mean of [b_(k-1), b_k] = 0,   b_0 = 0,  b_k = (c_k + c_(k+1)) / 2,  the last cell unbounded
 *
 * by Newton's method: the Jacobian is tridiagonal. Means and masses of cells come from Gauss-Legendre
 * quadrature around the middle of each cell, so that narrow cells lose nothing to cancellation; the last
 * cell's from panels, with the end of the sphere's law, where its density is not smooth, straightened by t =
 * sqrt(d) - v^2. Everything is + - * / and sqrt with the exponential and logarithm of kit/math.h, the same
 * bits everywhere. Error: below 1e-11 up to 8 bits.
 */
#ifndef KVANT_KIT_LLOYD_MAX_H
#define KVANT_KIT_LLOYD_MAX_H

#include "math.h"

enum { KVANT_LLOYD_MAX_BITS = 8, KVANT_LLOYD_MAX_HALF = 1 << (KVANT_LLOYD_MAX_BITS - 1) };

typedef struct kvant_lloyd_law_ {
    uint32_t dimension; /* 0 = N(0,1) */
    double power;       /* (d - 3) / 2 */
    double end;         /* sqrt(d); of no meaning for N(0,1) */
} kvant_lloyd_law_;

/* A square root by Newton's method: no libm, not even where the compiler would call it. */
static inline double kvant_lloyd_root_(double x) {
    double root = x < 1 ? 1 : x;
    for (uint32_t i = 0; i < 40; i++) root = 0.5 * (root + x / root);
    return root;
}

/* Density at t over density at `reference`. */
static inline double kvant_lloyd_ratio_(const kvant_lloyd_law_ *law, double t, double reference) {
    if (law->dimension == 0) return kvant_exp(0.5 * (reference - t) * (reference + t));
    if (law->dimension == 3) return 1; /* uniform */
    double ratio = (law->end - t) * (law->end + t) / ((law->end - reference) * (law->end + reference));
    return ratio > 0 ? kvant_exp(law->power * kvant_log(ratio)) : 0;
}

/* Of a cell: its mean, and the density at either side over its mass. */
typedef struct kvant_lloyd_cell_ {
    double mean;
    double at_low;
    double at_high;
} kvant_lloyd_cell_;

/* Positive nodes and their weights of the rule with 16 points on [-1, 1]. */
static const double kvant_lloyd_nodes_[8][2] = {
    {0.9894009349916499326, 0.027152459411754094852}, {0.94457502307323257608, 0.062253523938647892863},
    {0.86563120238783174388, 0.09515851168249278481}, {0.7554044083550030339, 0.12462897125553387205},
    {0.61787624440264374845, 0.14959598881657673208}, {0.45801677765722738634, 0.16915651939500253819},
    {0.28160355077925891323, 0.18260341504492358887}, {0.095012509837637440185, 0.18945061045506849629},
};

/* A bounded cell. */
static inline kvant_lloyd_cell_ kvant_lloyd_inner_(const kvant_lloyd_law_ *law, double low, double high) {
    double middle = 0.5 * (low + high), half = 0.5 * (high - low), mass = 0, moment = 0;
    for (uint32_t i = 0; i < 8; i++) {
        double x = kvant_lloyd_nodes_[i][0], weight = kvant_lloyd_nodes_[i][1];
        double left = kvant_lloyd_ratio_(law, middle - half * x, middle);
        double right = kvant_lloyd_ratio_(law, middle + half * x, middle);
        mass += weight * (left + right);
        moment += weight * x * (right - left);
    }
    kvant_lloyd_cell_ cell;
    cell.mean = middle + half * (moment / mass);
    cell.at_low = kvant_lloyd_ratio_(law, low, middle) / (half * mass);
    cell.at_high = kvant_lloyd_ratio_(law, high, middle) / (half * mass);
    return cell;
}

/* Adds the panel [from, from + 2 half] of the last cell: mass, and moment around `low`. `end` > 0: the
 * variable is v, t = end - v^2; else it is t - low. */
static inline void kvant_lloyd_panel_(const kvant_lloyd_law_ *law, double low, double end, double from,
                                      double half, double *mass, double *moment) {
    for (uint32_t i = 0; i < 16; i++) {
        double x = kvant_lloyd_nodes_[i / 2][0], weight = kvant_lloyd_nodes_[i / 2][1];
        double at = from + half * (i % 2 == 0 ? 1 - x : 1 + x);
        double beyond = end > 0 ? (end - low) - at * at : at;
        double density = kvant_lloyd_ratio_(law, low + beyond, low) * (end > 0 ? 2 * at : 1);
        *mass += half * weight * density;
        *moment += half * weight * density * beyond;
    }
}

/* The last cell. Further than 10 from its side the density is below e^-50 of what it is there, up to the
 * factor by which sphere laws of few dimensions fall short of that; those end before. */
static inline kvant_lloyd_cell_ kvant_lloyd_outer_(const kvant_lloyd_law_ *law, double low) {
    enum { PANELS = 16 };
    int bounded = law->dimension > 0 && law->end - low < 10;
    double length = bounded ? kvant_lloyd_root_(law->end - low) : 10;
    double half = 0.5 * length / (double)PANELS, mass = 0, moment = 0;
    for (uint32_t p = 0; p < PANELS; p++)
        kvant_lloyd_panel_(law, low, bounded ? law->end : 0, 2 * half * p, half, &mass, &moment);
    kvant_lloyd_cell_ cell = {low + moment / mass, 1 / mass, 0};
    return cell;
}

/* Where the first guess lies: levels with the density's cube root as their own density (Panter and Dite
 * 1951). */
static inline void kvant_lloyd_guess_(const kvant_lloyd_law_ *law, uint32_t count, double *centroids) {
    enum { STEPS = 512 };
    double sums[STEPS + 1], reach = law->dimension > 0 && law->end < 8 ? law->end : 8;
    sums[0] = 0;
    for (uint32_t i = 0; i < STEPS; i++) {
        double ratio = kvant_lloyd_ratio_(law, reach * (i + 0.5) / (double)STEPS, 0);
        sums[i + 1] = sums[i] + (ratio > 0 ? kvant_exp(kvant_log(ratio) / 3) : 0);
    }
    uint32_t i = 0;
    for (uint32_t k = 0; k < count; k++) {
        double sum = sums[STEPS] * (k + 0.5) / count;
        while (i < STEPS - 1 && sums[i + 1] < sum) i++;
        centroids[k] = reach * (i + (sum - sums[i]) / (sums[i + 1] - sums[i])) / (double)STEPS;
    }
}

/* One Newton step: *step becomes what to take off the centroids. Returns the largest |F_k|. */
static inline double kvant_lloyd_step_(const kvant_lloyd_law_ *law, uint32_t count, const double *centroids,
                                       double *step) {
    double upper[KVANT_LLOYD_MAX_HALF], worst = 0, below = 0; /* of the elimination */
    for (uint32_t k = 0; k < count; k++) {
        double low = k == 0 ? 0 : 0.5 * (centroids[k - 1] + centroids[k]);
        kvant_lloyd_cell_ cell = k + 1 == count
                                     ? kvant_lloyd_outer_(law, low)
                                     : kvant_lloyd_inner_(law, low, 0.5 * (centroids[k] + centroids[k + 1]));
        double high = k + 1 == count ? 0 : 0.5 * (centroids[k] + centroids[k + 1]);
        double by_low = k == 0 ? 0 : 0.5 * cell.at_low * (cell.mean - low);
        double by_high = k + 1 == count ? 0 : 0.5 * cell.at_high * (high - cell.mean);
        double residual = centroids[k] - cell.mean;
        double pivot = 1 - by_low - by_high - by_low * below;
        upper[k] = by_high / pivot;
        step[k] = (residual + (k == 0 ? 0 : by_low * step[k - 1])) / pivot;
        below = upper[k];
        worst =
            residual < 0 ? (worst < -residual ? -residual : worst) : (worst < residual ? residual : worst);
    }
    for (uint32_t k = count - 1; k-- > 0;) step[k] += upper[k] * step[k + 1];
    return worst;
}

/* Takes the step, or as much of it as keeps the centroids positive and in order. */
static inline void kvant_lloyd_take_(uint32_t count, double *centroids, const double *step) {
    double next[KVANT_LLOYD_MAX_HALF], part = 1;
    for (uint32_t halvings = 0; halvings < 60; halvings++, part *= 0.5) {
        int ordered = 1;
        for (uint32_t k = 0; k < count; k++) {
            next[k] = centroids[k] - part * step[k];
            ordered &= next[k] > (k == 0 ? 0 : next[k - 1]);
        }
        if (ordered) break;
    }
    for (uint32_t k = 0; k < count; k++) centroids[k] = next[k];
}

/* Fills centroids[2^bits] and boundaries[2^bits - 1], both ascending; the middle boundary is +0. bits: 1 to
 * 8; dimension: 0, or at least 2. */
static inline void kvant_lloyd_max(uint32_t dimension, uint32_t bits, double *centroids, double *boundaries) {
    enum { STEPS_MAX = 50 };
    uint32_t count = 1u << (bits - 1);
    kvant_lloyd_law_ law = {dimension, 0.5 * ((double)dimension - 3), kvant_lloyd_root_(dimension)};
    double half[KVANT_LLOYD_MAX_HALF], step[KVANT_LLOYD_MAX_HALF];
    kvant_lloyd_guess_(&law, count, half);
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        double worst = kvant_lloyd_step_(&law, count, half, step);
        kvant_lloyd_take_(count, half, step);
        if (worst < 1e-12) break; /* and the step after it was quadratic */
    }
    for (uint32_t k = 0; k < count; k++) {
        centroids[count + k] = half[k];
        centroids[count - 1 - k] = -half[k];
    }
    for (uint32_t k = 0; k + 1 < 2 * count; k++)
        boundaries[k] = k + 1 == count ? 0 : 0.5 * (centroids[k] + centroids[k + 1]);
}

#endif
