/* See formats.h. */
#include "formats.h"

#include <string.h>

typedef struct format {
    uint32_t exponent_bits, digit_bits;
    int32_t bias;
    uint64_t largest, infinity, nan; /* without sign; infinity 0: there is none */
    uint32_t shift;                  /* tf32 lies in the upper bits of its word */
} format;

static const format formats[PTX_TYPES] = {
    [PTX_F16] = {5, 10, 15, 0x7bff, 0x7c00, 0x7fff, 0},
    [PTX_BF16] = {8, 7, 127, 0x7f7f, 0x7f80, 0x7fff, 0},
    [PTX_TF32] = {8, 10, 127, 0x3fbff, 0x3fc00, 0x3ffff, 13},
    [PTX_F32] = {8, 23, 127, 0x7f7fffff, 0x7f800000, 0x7fffffff, 0},
    [PTX_F64] = {11, 52, 1023, 0x7fefffffffffffff, 0x7ff0000000000000, 0x7ff8000000000000, 0},
    [PTX_E4M3] = {4, 3, 7, 0x7e, 0, 0x7f, 0},
    [PTX_E5M2] = {5, 2, 15, 0x7b, 0x7c, 0x7f, 0},
    [PTX_E2M1] = {2, 1, 1, 0x7, 0, 0x7, 0},
    [PTX_E2M3] = {2, 3, 1, 0x1f, 0, 0x1f, 0},
    [PTX_E3M2] = {3, 2, 3, 0x1f, 0, 0x1f, 0},
};

static uint32_t bits_of_format(const format *f) {
    return 1 + f->exponent_bits + f->digit_bits;
}

static ptx_number number_from_integer(ptx_type type, uint64_t bits) {
    uint32_t width = ptx_type_bits(type);
    if (width < 64) bits &= ((uint64_t)1 << width) - 1;
    ptx_number number = {.kind = PTX_FINITE, .digits = bits};
    if (ptx_type_is_signed(type) && bits >> (width - 1) & 1) {
        number.negative = true;
        number.digits = 0 - bits;
        if (width < 64) number.digits &= ((uint64_t)1 << width) - 1;
    }
    if (number.digits == 0) number.kind = PTX_ZERO;
    return number;
}

/* Powers of two from 2^-127; 255 is NaN. */
static ptx_number number_from_e8m0(uint64_t bits) {
    bits &= 0xff;
    if (bits == 0xff) return (ptx_number){.kind = PTX_NAN};
    return (ptx_number){.kind = PTX_FINITE, .digits = 1, .exponent = (int32_t)bits - 127};
}

ptx_number ptx_number_from(ptx_type type, uint64_t bits) {
    if (type == PTX_UE8M0) return number_from_e8m0(bits);
    const format *f = &formats[type];
    if (f->exponent_bits == 0) return number_from_integer(type, bits);
    bits >>= f->shift;
    uint32_t width = bits_of_format(f);
    ptx_number number = {.kind = PTX_FINITE, .negative = bits >> (width - 1) & 1};
    uint64_t magnitude = bits & (((uint64_t)1 << (width - 1)) - 1);
    if (magnitude > f->largest) {
        number.kind = magnitude == f->infinity ? PTX_INFINITE : PTX_NAN;
        return number;
    }
    uint64_t digits = magnitude & (((uint64_t)1 << f->digit_bits) - 1);
    int32_t exponent = (int32_t)(magnitude >> f->digit_bits);
    number.digits = exponent ? digits | (uint64_t)1 << f->digit_bits : digits;
    number.exponent = (exponent ? exponent : 1) - f->bias - (int32_t)f->digit_bits;
    if (number.digits == 0) number.kind = PTX_ZERO;
    return number;
}

/* digits / 2^drop, rounded. */
static uint64_t drop_bits(uint64_t digits, int64_t drop, bool negative, ptx_rounding rounding) {
    if (drop <= 0) return digits << -drop;
    uint64_t kept = drop > 63 ? 0 : digits >> drop;
    /* The part dropped against one half of the last place: 0 none, 1 less, 2 equal, 3 more. */
    uint32_t rest;
    if (drop > 64)
        rest = digits != 0;
    else {
        uint64_t half = (uint64_t)1 << (drop - 1);
        uint64_t dropped = drop == 64 ? digits : digits & ((half << 1) - 1);
        rest = dropped == 0 ? 0 : dropped < half ? 1 : dropped == half ? 2 : 3;
    }
    bool up = false;
    switch (rounding) {
    case PTX_ROUND_NEAREST:
        up = rest == 3 || (rest == 2 && (kept & 1));
        break;
    case PTX_ROUND_AWAY:
        up = rest >= 2;
        break;
    case PTX_ROUND_ZERO:
        break;
    case PTX_ROUND_DOWN:
        up = rest && negative;
        break;
    case PTX_ROUND_UP:
        up = rest && !negative;
        break;
    }
    return kept + up;
}

static uint64_t number_to_e8m0(ptx_number number, ptx_rounding rounding, bool saturate) {
    if (number.kind == PTX_NAN) return 0xff;
    if (number.kind == PTX_INFINITE) return saturate ? 0xfe : 0xff;
    if (number.kind == PTX_ZERO) return 0;
    int32_t top = 63 - __builtin_clzll(number.digits);
    bool whole = (number.digits & (number.digits - 1)) == 0;
    int64_t power = (int64_t)number.exponent + top + (rounding == PTX_ROUND_UP && !whole) + 127;
    if (power > 0xfe) return saturate || rounding == PTX_ROUND_ZERO ? 0xfe : 0xff;
    return power < 0 ? 0 : (uint64_t)power;
}

uint64_t ptx_number_to_float(ptx_type type, ptx_number number, ptx_rounding rounding, bool saturate) {
    if (type == PTX_UE8M0) return number_to_e8m0(number, rounding, saturate);
    const format *f = &formats[type];
    uint64_t sign = (uint64_t)number.negative << (bits_of_format(f) - 1);
    if (number.kind == PTX_NAN) return f->nan << f->shift;
    if (number.kind == PTX_ZERO) return sign << f->shift;
    if (number.kind == PTX_INFINITE)
        return (sign | (saturate || f->infinity == 0 ? f->largest : f->infinity)) << f->shift;
    int32_t top = number.exponent + 63 - __builtin_clzll(number.digits); /* of the first digit */
    int32_t least = 1 - f->bias;
    int32_t place = (top > least ? top : least) - (int32_t)f->digit_bits; /* of the last digit kept */
    uint64_t kept = drop_bits(number.digits, (int64_t)place - number.exponent, number.negative, rounding);
    /* The leading digit adds one to the exponent; a carry out of the digits does too. */
    uint64_t magnitude = ((uint64_t)(top > least ? top - least : 0) << f->digit_bits) + kept;
    if (magnitude > f->largest) {
        bool inward = rounding == PTX_ROUND_ZERO || (rounding == PTX_ROUND_DOWN && !number.negative) ||
                      (rounding == PTX_ROUND_UP && number.negative);
        magnitude = saturate || inward || f->infinity == 0 ? f->largest : f->infinity;
    }
    return (sign | magnitude) << f->shift;
}

ptx_number ptx_number_whole(ptx_number number, ptx_rounding rounding) {
    if (number.kind != PTX_FINITE || number.exponent >= 0) return number;
    number.digits = drop_bits(number.digits, -(int64_t)number.exponent, number.negative, rounding);
    number.exponent = 0;
    if (number.digits == 0) number.kind = PTX_ZERO;
    return number;
}

uint64_t ptx_number_to_integer(ptx_type type, ptx_number number, ptx_rounding rounding, ptx_type source) {
    uint32_t width = ptx_type_bits(type);
    bool is_signed = ptx_type_is_signed(type);
    uint64_t largest = is_signed     ? ((uint64_t)1 << (width - 1)) - 1
                       : width == 64 ? UINT64_MAX
                                     : ((uint64_t)1 << width) - 1;
    uint64_t mask = width == 64 ? UINT64_MAX : ((uint64_t)1 << width) - 1;
    if (number.kind == PTX_NAN) return source == PTX_F64 || width == 64 ? (uint64_t)1 << (width - 1) : 0;
    number = ptx_number_whole(number, rounding);
    if (number.kind == PTX_ZERO) return 0;
    bool huge = number.kind == PTX_INFINITE || number.exponent > 63 ||
                (number.exponent > 0 && number.digits >> (64 - number.exponent) != 0);
    uint64_t magnitude = huge ? UINT64_MAX : number.digits << (number.exponent > 0 ? number.exponent : 0);
    if (!number.negative) return magnitude < largest ? magnitude : largest;
    if (!is_signed) return 0;
    return (0 - (magnitude <= largest ? magnitude : largest + 1)) & mask;
}

float ptx_float_of(ptx_type type, uint32_t bits) {
    uint32_t word =
        (uint32_t)ptx_number_to_float(PTX_F32, ptx_number_from(type, bits), PTX_ROUND_NEAREST, false);
    float x;
    memcpy(&x, &word, sizeof x);
    return x;
}
