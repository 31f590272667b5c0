/* Any number format into any other, with any rounding: through a number of 64 bits and an exponent. Slow and
 * plain; the common conversions have lane functions of their own (lanes_convert.c). */
#ifndef KVANT_TEST_PTX_FORMATS_H
#define KVANT_TEST_PTX_FORMATS_H

#include "code.h"

typedef enum ptx_rounding {
    PTX_ROUND_NEAREST, /* ties to even */
    PTX_ROUND_ZERO,
    PTX_ROUND_DOWN,
    PTX_ROUND_UP,
    PTX_ROUND_AWAY /* nearest, ties away from zero */
} ptx_rounding;

typedef enum ptx_number_kind { PTX_ZERO, PTX_FINITE, PTX_INFINITE, PTX_NAN } ptx_number_kind;

typedef struct ptx_number { /* (-1)^negative * digits * 2^exponent */
    ptx_number_kind kind;
    bool negative;
    int32_t exponent;
    uint64_t digits;
} ptx_number;

ptx_number ptx_number_from(ptx_type type, uint64_t bits);

/* To a floating-point format: overflow goes to infinity or, with `saturate` or where there is none, to the
 * largest number. */
uint64_t ptx_number_to_float(ptx_type type, ptx_number number, ptx_rounding rounding, bool saturate);
/* To an integer format: rounded, then clamped; NaN as PTX says for the source's type. */
uint64_t ptx_number_to_integer(ptx_type type, ptx_number number, ptx_rounding rounding, ptx_type source);
/* Rounded to an integer that stays a number (cvt.rni.f32.f32). */
ptx_number ptx_number_whole(ptx_number number, ptx_rounding rounding);

/* The bits of a value of 32 bits, in float: for matrices. */
float ptx_float_of(ptx_type type, uint32_t bits);

#endif
