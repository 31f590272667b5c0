/* Number formats in double precision. See oracle_float.h. */
#include "oracle_float.h"

#include <float.h>
#include <math.h>

double oracle_round_to(double x, int precision, int least) {
    if (x == 0 || !isfinite(x)) return x;
    int exponent;
    (void)frexp(x, &exponent); /* |x| in [2^(exponent-1), 2^exponent) */
    int place = (exponent - 1 < least ? least : exponent - 1) - (precision - 1);
    return ldexp(rint(ldexp(x, -place)), place);
}

double oracle_round(double x, uint32_t dtype) {
    switch (dtype) {
    case KVANT_DTYPE_F32:
        return oracle_round_to(x, 24, -126);
    case KVANT_DTYPE_F16:
        return oracle_round_to(x, 11, -14);
    case KVANT_DTYPE_BF16:
        return oracle_round_to(x, 8, -126);
    case KVANT_DTYPE_F8_E4M3:
        return oracle_round_to(x, 4, -6);
    case KVANT_DTYPE_F8_E5M2:
        return oracle_round_to(x, 3, -14);
    default:
        return x;
    }
}

double oracle_largest(uint32_t dtype) {
    switch (dtype) {
    case KVANT_DTYPE_F32:
        return (double)FLT_MAX;
    case KVANT_DTYPE_F16:
        return 65504;
    case KVANT_DTYPE_BF16:
        return 0x1.fep127;
    case KVANT_DTYPE_F8_E4M3:
        return 448;
    case KVANT_DTYPE_F8_E5M2:
        return 57344;
    default:
        return DBL_MAX;
    }
}

double oracle_saturate(double x, uint32_t dtype) {
    double largest = oracle_largest(dtype), rounded = oracle_round(x, dtype);
    return rounded > largest ? largest : rounded < -largest ? -largest : rounded;
}

double oracle_sum(const double *x, size_t n) {
    double sum = 0, lost = 0;
    for (size_t i = 0; i < n; i++) {
        double y = x[i] - lost, next = sum + y;
        lost = (next - sum) - y;
        sum = next;
    }
    return sum;
}
