/* See finite.h. By bits, so that no floating-point mode has a say. */
#include "finite.h"

#include <string.h>

/* Masks of a dtype: the exponent, all ones in what is not finite, and the fraction. */
typedef struct float_bits {
    uint32_t bytes;
    uint32_t exponent;
    uint32_t fraction;
} float_bits;

static float_bits bits_of(uint32_t dtype) {
    if (dtype == KVANT_DTYPE_F32) return (float_bits){4, 0x7f800000u, 0x007fffffu};
    if (dtype == KVANT_DTYPE_F16) return (float_bits){2, 0x7c00u, 0x03ffu};
    return (float_bits){2, 0x7f80u, 0x007fu};
}

static uint32_t load(const unsigned char *element, uint32_t bytes) {
    uint32_t word = 0;
    uint16_t half;
    if (bytes == 4) {
        memcpy(&word, element, sizeof word);
        return word;
    }
    memcpy(&half, element, sizeof half);
    return half;
}

static void store(unsigned char *element, uint32_t bytes, uint32_t word) {
    uint16_t half = (uint16_t)word;
    if (bytes == 4)
        memcpy(element, &word, sizeof word);
    else
        memcpy(element, &half, sizeof half);
}

uint64_t kvant_find_nonfinite(const void *elements, uint32_t dtype, uint64_t count) {
    const float_bits f = bits_of(dtype);
    const unsigned char *element = elements;
    for (uint64_t i = 0; i < count; i++, element += f.bytes)
        if ((load(element, f.bytes) & f.exponent) == f.exponent) return i;
    return count;
}

uint64_t kvant_replace_nonfinite(void *elements, uint32_t dtype, uint64_t count) {
    const float_bits f = bits_of(dtype);
    unsigned char *element = elements;
    uint64_t replaced = 0;
    for (uint64_t i = 0; i < count; i++, element += f.bytes) {
        uint32_t word = load(element, f.bytes);
        if ((word & f.exponent) != f.exponent) continue;
        uint32_t lowest_of_exponent = f.fraction + 1;
        bool nan = (word & f.fraction) != 0;
        /* Infinity less one unit in the last place is the largest number. */
        store(element, f.bytes, nan ? 0 : (word - lowest_of_exponent) | f.fraction);
        replaced++;
    }
    return replaced;
}
