/* See fpenv.h. Functions of a file of their own, so that no compiler moves arithmetic across them. */
#include "plugin/fpenv.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* All exceptions masked, rounding to nearest, no flush to zero, denormals are read as they are, no flags. */
enum { MXCSR_DEFAULT = 0x1f80 };

/* The x87 unit computes nothing here, but the C library asks it for the rounding mode when it reads or
 * writes decimal numbers. All exceptions masked, 64 bits of mantissa, rounding to nearest. */
enum { X87_DEFAULT = 0x037f };

static uint16_t x87_control(void) {
    uint16_t control;
    __asm__ volatile("fnstcw %0" : "=m"(control));
    return control;
}

static void set_x87_control(uint16_t control) {
    __asm__ volatile("fldcw %0" : : "m"(control));
}

kvant_fp_state kvant_fp_enter(void) {
    kvant_fp_state saved = {.control = _mm_getcsr(), .status = x87_control()};
    _mm_setcsr(MXCSR_DEFAULT);
    if (saved.status != X87_DEFAULT) set_x87_control(X87_DEFAULT);
    return saved;
}

void kvant_fp_leave(kvant_fp_state saved) {
    _mm_setcsr((unsigned)saved.control);
    /* A plugin may have changed it; loading it is slow, so only where it differs. */
    if (x87_control() != saved.status) set_x87_control((uint16_t)saved.status);
}

#elif defined(__aarch64__)

/* FPCR 0: rounding to nearest, no flush to zero (FZ, FZ16), no default NaN, no traps. */
kvant_fp_state kvant_fp_enter(void) {
    kvant_fp_state saved;
    uint64_t zero = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved.control) : : "memory");
    __asm__ volatile("mrs %0, fpsr" : "=r"(saved.status) : : "memory");
    __asm__ volatile("msr fpcr, %0" : : "r"(zero) : "memory");
    return saved;
}

void kvant_fp_leave(kvant_fp_state saved) {
    __asm__ volatile("msr fpcr, %0" : : "r"(saved.control) : "memory");
    __asm__ volatile("msr fpsr, %0" : : "r"(saved.status) : "memory");
}

#else
#error "kvant: say here how this machine's floating-point environment is read and set"
#endif
