/* Instruction sets: what this machine has, and what the caller allows. See isa_level.h and kvant.h.
 *
 * A level is the whole of a psABI level (x86-64-v2, v3, v4; v4 here includes VNNI), and of the operating
 * system's willingness to save its registers. The limit is the variable KVANT_ISA until kvant_isa_limit says
 * otherwise.
 */
#include "plugin/isa_level.h"

#include "base/text.h"

#include <kvant/kit/diag.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

typedef struct level {
    const char *name;
    uint32_t isa;
} level;

/* Every level that has a name, on whatever machine, from low to high. */
static const level levels[] = {
    {"scalar", KVANT_ISA_SCALAR}, {"v2", KVANT_ISA_X86_64_V2}, {"v3", KVANT_ISA_X86_64_V3},
    {"v4", KVANT_ISA_X86_64_V4},  {"neon", KVANT_ISA_AARCH64},
};
enum { LEVEL_COUNT = sizeof levels / sizeof levels[0], NO_LIMIT = INT32_MAX };

/* ---- The machine --------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
typedef struct registers {
    unsigned a, b, c, d;
} registers;

static int has(unsigned word, unsigned mask) {
    return (word & mask) == mask;
}

static uint64_t saved_registers(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static uint32_t detect(void) {
    registers one = {0}, seven = {0}, extended = {0};
    if (!__get_cpuid(1, &one.a, &one.b, &one.c, &one.d)) return KVANT_ISA_SCALAR;
    (void)__get_cpuid_count(7, 0, &seven.a, &seven.b, &seven.c, &seven.d);
    (void)__get_cpuid(0x80000001u, &extended.a, &extended.b, &extended.c, &extended.d);

    /* SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF */
    if (!has(one.c, 1u << 0 | 1u << 9 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 23) ||
        !has(extended.c, 1u << 0))
        return KVANT_ISA_SCALAR;
    /* FMA, MOVBE, OSXSAVE, AVX, F16C; LZCNT; BMI1, AVX2, BMI2; the system saves XMM and YMM */
    if (!has(one.c, 1u << 12 | 1u << 22 | 1u << 27 | 1u << 28 | 1u << 29) || !has(extended.c, 1u << 5) ||
        !has(seven.b, 1u << 3 | 1u << 5 | 1u << 8) || (saved_registers() & 0x06) != 0x06)
        return KVANT_ISA_X86_64_V2;
    /* AVX-512 F, DQ, CD, BW, VL; VNNI; the system saves masks and ZMM */
    if (!has(seven.b, 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31) || !has(seven.c, 1u << 11) ||
        (saved_registers() & 0xe6) != 0xe6)
        return KVANT_ISA_X86_64_V3;
    return KVANT_ISA_X86_64_V4;
}

static int belongs_here(uint32_t isa) {
    return isa <= KVANT_ISA_X86_64_V4;
}
#else
static uint32_t detect(void) {
    return KVANT_ISA_AARCH64;
}

static int belongs_here(uint32_t isa) {
    return isa == KVANT_ISA_SCALAR || isa == KVANT_ISA_AARCH64;
}
#endif

/* ---- The limit ----------------------------------------------------------------------------------------- */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t best;                /* of the machine; written once */
static kvant_status variable_status; /* what the variable KVANT_ISA was worth; written once */
static kvant_diag variable_diag;     /* written once */
static atomic_uint limit = NO_LIMIT;

/* "scalar, v2 or v3": what this machine has. */
static void append_levels(kvant_text *list, uint32_t highest) {
    for (size_t i = 0; i < LEVEL_COUNT && levels[i].isa <= highest; i++)
        if (belongs_here(levels[i].isa))
            kvant_text_printf(list, "%s%s",
                              i == 0                     ? ""
                              : levels[i].isa == highest ? " or "
                                                         : ", ",
                              levels[i].name);
}

static kvant_status parse(const char *name, const char *source, uint32_t *isa, kvant_diag *diag) {
    kvant_text list = {0};
    append_levels(&list, best);
    const char *valid = list.data != NULL ? list.data : "";
    kvant_status status = KVANT_OK;
    size_t i = 0;
    while (i < LEVEL_COUNT && strcmp(levels[i].name, name) != 0) i++;
    if (i == LEVEL_COUNT)
        status =
            kvant_fail(diag, KVANT_ERROR_VALUE, source,
                       "%s: there is no instruction set \"%.64s\"; this machine has %s", source, name, valid);
    else if (!belongs_here(levels[i].isa))
        status = kvant_fail(diag, KVANT_ERROR_VALUE, source,
                            "%s: instruction set \"%s\" is of another processor family; this machine has %s",
                            source, name, valid);
    else if (levels[i].isa > best)
        status = kvant_fail(diag, KVANT_ERROR_VALUE, source,
                            "%s: instruction set \"%s\" is above the best of this machine, which has %s",
                            source, name, valid);
    else
        *isa = levels[i].isa;
    kvant_text_free(&list);
    return status;
}

static void start(void) {
    best = detect();
    const char *variable = secure_getenv("KVANT_ISA");
    if (variable == NULL) return;
    uint32_t isa = NO_LIMIT;
    variable_diag.struct_size = sizeof variable_diag;
    variable_status = parse(variable, "KVANT_ISA", &isa, &variable_diag);
    if (variable_status == KVANT_OK) atomic_store(&limit, isa);
}

uint32_t kvant_isa(void) {
    (void)pthread_once(&once, start);
    uint32_t most = atomic_load(&limit);
    return most < best ? most : best;
}

kvant_status kvant_isa_check(kvant_diag *diag) {
    (void)pthread_once(&once, start);
    if (variable_status == KVANT_OK) return KVANT_OK;
    return kvant_fail(diag, variable_status, variable_diag.key, "%s", variable_diag.message);
}

kvant_status kvant_isa_limit(const char *name, kvant_diag *diag) {
    (void)pthread_once(&once, start);
    if (name == NULL) return kvant_fail(diag, KVANT_ERROR_ARGUMENT, "", "kvant_isa_limit: name is NULL");
    uint32_t isa = NO_LIMIT;
    kvant_status status = parse(name, "isa", &isa, diag);
    if (status == KVANT_OK) atomic_store(&limit, isa);
    return status;
}

const char *kvant_isa_name(uint32_t isa) {
    for (size_t i = 0; i < LEVEL_COUNT; i++)
        if (levels[i].isa == isa) return levels[i].name;
    return "unknown";
}
