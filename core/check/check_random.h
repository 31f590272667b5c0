/* Pseudo-random numbers for the conformance check: the same seed, the same sequence, on every machine. */
#ifndef KVANT_CHECK_RANDOM_H
#define KVANT_CHECK_RANDOM_H

#include <math.h>
#include <stdint.h>

typedef struct check_random {
    uint64_t state;
} check_random;

/* SplitMix64 (Steele, Lea, Flood 2014). */
static inline uint64_t check_random_next(check_random *random) {
    uint64_t z = random->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* A sequence of its own for each (seed, stream). */
static inline check_random check_random_stream(uint64_t seed, uint64_t stream) {
    check_random random = {seed ^ 0x5851f42d4c957f2du};
    random.state = check_random_next(&random) + stream * 0xd1342543de82ef95u;
    (void)check_random_next(&random);
    return random;
}

/* 0 <= result < count; 0 for count 0. */
static inline uint32_t check_random_below(check_random *random, uint32_t count) {
    return (uint32_t)((check_random_next(random) >> 32) * count >> 32);
}

/* In [0, 1). */
static inline double check_random_unit(check_random *random) {
    return (double)(check_random_next(random) >> 11) * 0x1p-53;
}

/* N(0, 1) by Marsaglia's polar method. */
static inline double check_random_normal(check_random *random) {
    for (;;) {
        double x = 2 * check_random_unit(random) - 1, y = 2 * check_random_unit(random) - 1;
        double square = x * x + y * y;
        if (square > 0 && square < 1) return x * sqrt(-2 * log(square) / square);
    }
}

#endif
