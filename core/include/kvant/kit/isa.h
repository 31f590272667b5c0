/* kvant/kit/isa.h: one source, compiled once per instruction set.
 *
 * kvant_add_plugin(... CPU foo_cpu.c) compiles foo_cpu.c several times with KVANT_CPU_SUFFIX = v2, v3, v4 (or
 * neon) and the matching compiler flags. Names that must differ go through KVANT_CPU:
 *
 *     void KVANT_CPU(foo_encode)(const foo_state *state, kvant_encode_args *args) { ... }   // foo_encode_v3
 *     const foo_code KVANT_CPU(foo_code) = {KVANT_CPU_ISA, encode, decode};   // KVANT_ISA_X86_64_V3
 *
 * and foo.c picks one by setup.isa. A level that the compiler or the target cannot build is missing:
 * KVANT_HAVE_V2, KVANT_HAVE_V3, KVANT_HAVE_V4, KVANT_HAVE_NEON say which exist. The scalar level is the
 * plugin's reference code, a source of its own (foo_reference.c).
 */
#ifndef KVANT_KIT_ISA_H
#define KVANT_KIT_ISA_H

#define KVANT_CPU_JOIN_(name, suffix) name##_##suffix
#define KVANT_CPU_JOIN(name, suffix)  KVANT_CPU_JOIN_(name, suffix)
#ifdef KVANT_CPU_SUFFIX
#define KVANT_CPU(name) KVANT_CPU_JOIN(name, KVANT_CPU_SUFFIX)
#define KVANT_CPU_ISA   KVANT_CPU_JOIN(KVANT_CPU_ISA_OF, KVANT_CPU_SUFFIX)
#endif

#define KVANT_CPU_ISA_OF_v2   KVANT_ISA_X86_64_V2
#define KVANT_CPU_ISA_OF_v3   KVANT_ISA_X86_64_V3
#define KVANT_CPU_ISA_OF_v4   KVANT_ISA_X86_64_V4
#define KVANT_CPU_ISA_OF_neon KVANT_ISA_AARCH64

#endif
