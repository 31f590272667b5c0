/* Little-endian numbers in byte maps, whatever the machine's order and alignment. */
#ifndef KVANT_STORE_BYTES_H
#define KVANT_STORE_BYTES_H

#include <stdint.h>

static inline uint32_t kvant_get32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t kvant_get64(const unsigned char *p) {
    return (uint64_t)kvant_get32(p) | (uint64_t)kvant_get32(p + 4) << 32;
}

static inline void kvant_put32(unsigned char *p, uint32_t x) {
    for (unsigned i = 0; i < 4; i++) p[i] = (unsigned char)(x >> 8 * i);
}

static inline void kvant_put64(unsigned char *p, uint64_t x) {
    for (unsigned i = 0; i < 8; i++) p[i] = (unsigned char)(x >> 8 * i);
}

#endif
