/* The tester tested: kernels with one defect each, which must be named at its line, and the same kernels
 * without it, of which nothing may be said. */
#include "support/ptx_fixture.h"

#include <stdio.h>
#include <stdlib.h>

/* Each kernel gets x and y, 1024 floats each, x filled with its indices. %t is the thread, %b the block, %X
 * and %Y the thread's own elements, %S four times the thread, %w the warp, %l the lane. */
#define BEGIN(variables)                                                                                     \
    ".version 9.0\n.target sm_90\n.address_size 64\n.const .f32 table[4] = {1.0, 2.0, 3.0, 4.0};\n"          \
    ".extern .shared .align 16 .b8 dynamic[];\n.visible .entry sample(.param .u64 x, .param .u64 y)\n{\n"    \
    ".reg .pred %p<8>; .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .f32 %f<16>; .reg .b64 %X, %Y;\n"             \
    ".reg .b32 %t, %b, %S, %w, %l;\n" variables "\n"                                                         \
    "mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; shl.b32 %S, %t, 2; shr.u32 %w, %t, 5; and.b32 %l, %t, 31;\n"  \
    "ld.param.u64 %X, [x]; ld.param.u64 %Y, [y]; mul.wide.u32 %d0, %t, 4; add.u64 %X, %X, %d0; add.u64 %Y, " \
    "%Y, %d0;\n"
#define END  "\nret;\n}\n"
#define HERE " // HERE\n"

typedef struct sample {
    const char *name, *text;
    ptx_defect_kind kind; /* PTX_DEFECT_KINDS: none */
    const char *says;     /* part of the report */
    uint32_t grid, block; /* 0: 1 block of 64 */
} sample;
#define NOTHING PTX_DEFECT_KINDS

#define SHARED_ROW ".shared .align 16 .b8 row[256]; .shared .align 16 .b8 other[256];"
#define PUT                                                                                                  \
    "mov.u32 %r0, row; add.u32 %r1, %r0, %S;\n"                                                              \
    "ld.global.f32 %f0, [%X]; st.shared.f32 [%r1], %f0;\n"
/* The element of the thread 32 further on, that is of the other warp. */
#define TURN "xor.b32 %r2, %S, 128; add.u32 %r2, %r0, %r2;\n"

static const sample samples[] = {
    {"copy", BEGIN("") "ld.global.f32 %f0, [%X]; st.global.f32 [%Y], %f0;" END, NOTHING, "", 1, 64},
    {"store behind an allocation",
     BEGIN("") "add.u64 %Y, %Y, 3844; mov.f32 %f0, 0f00000000;\nst.global.f32 [%Y], %f0;" HERE END,
     PTX_DEFECT_GLOBAL_BOUNDS, "thread (63,0,0) writes 4 bytes at 0x", 1, 64},
    {"load before an allocation", BEGIN("") "ld.global.f32 %f0, [%X+-4];" HERE "st.global.f32 [%Y], %f0;" END,
     PTX_DEFECT_GLOBAL_BOUNDS, "reads 4 bytes at 0x", 1, 64},
    {"load of a null pointer",
     BEGIN("") "mov.u64 %d1, 0;\nld.global.f32 %f0, [%d1];" HERE "st.global.f32 [%Y], %f0;" END,
     PTX_DEFECT_GLOBAL_BOUNDS, "reads 4 bytes at 0x0", 1, 64},
    {"vector across the end",
     BEGIN("") "ld.param.u64 %d1, [x];\nld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%d1+4096];" HERE END,
     PTX_DEFECT_GLOBAL_BOUNDS, "0 bytes behind x (4096 bytes)", 1, 64},
    {"shared index runs into the next array",
     BEGIN(SHARED_ROW) PUT "mov.u32 %r3, other; add.u32 %r3, %r3, %S; st.shared.f32 [%r3], %f0; bar.sync 0;\n"
                           "ld.shared.f32 %f1, [%r1+4];" HERE "st.global.f32 [%Y], %f1;" END,
     PTX_DEFECT_SHARED_BOUNDS, "0 bytes behind row (256 bytes)", 1, 64},
    {"behind dynamic shared memory",
     BEGIN("") "mov.u32 %r0, dynamic; add.u32 %r0, %r0, %S; mov.f32 %f0, 0f3F800000;\n"
               "st.shared.f32 [%r0+260], %f0;" HERE END,
     PTX_DEFECT_SHARED_BOUNDS, "behind dynamic shared memory (512 bytes)", 1, 64},
    {"local index",
     BEGIN(".local .align 4 .b8 mine[16];") "mov.u64 %d1, mine; mov.f32 %f0, 0f3F800000;\n"
                                            "st.local.f32 [%d1+16], %f0;" HERE END,
     PTX_DEFECT_LOCAL_BOUNDS, "local 0x10 of 16", 1, 64},
    {"local index, right",
     BEGIN(".local .align 4 .b8 mine[16];") "mov.u64 %d1, mine; ld.global.f32 %f0, [%X]; st.local.f32 "
                                            "[%d1+12], %f0;\n"
                                            "ld.local.f32 %f1, [%d1+12]; st.global.f32 [%Y], %f1;" END,
     NOTHING, "", 1, 64},
    {"parameter index", BEGIN("") "mov.u64 %d1, 16;\nld.param.u64 %d2, [%d1];" HERE END,
     PTX_DEFECT_PARAM_BOUNDS, "parameter 0x10 of 16", 1, 64},
    {"store to a constant",
     BEGIN(
         "") "mov.u64 %d1, table; cvta.const.u64 %d1, %d1; mov.f32 %f0, 0f3F800000;\nst.f32 [%d1], %f0;" HERE
         END,
     PTX_DEFECT_READ_ONLY, "in table", 1, 64},
    {"misaligned vector",
     BEGIN("") "ld.param.u64 %d1, [x];\nld.global.v2.f32 {%f0, %f1}, [%d1+4];" HERE
               "st.global.f32 [%Y], %f0;" END,
     PTX_DEFECT_MISALIGNED, "reads 8 bytes of global memory", 1, 64},
    {"misaligned shared word", BEGIN(SHARED_ROW) PUT "bar.sync 0;\nld.shared.f32 %f1, [row+2];" HERE END,
     PTX_DEFECT_MISALIGNED, "reads 4 bytes of shared memory", 1, 64},
    {"half of the row is never written",
     BEGIN(SHARED_ROW) PUT
     "bar.sync 0;\nmov.u32 %r3, other; add.u32 %r3, %r3, %S; ld.shared.f32 %f1, [%r3];" HERE
     "st.global.f32 [%Y], %f1;" END,
     PTX_DEFECT_UNINITIALISED_SHARED, "which no thread of the block wrote", 1, 64},
    {"what an earlier block wrote",
     BEGIN(SHARED_ROW) "setp.eq.u32 %p0, %b, 1; @%p0 bra SKIP; " PUT
                       "SKIP: mov.u32 %r0, row; add.u32 %r1, %r0, %S; bar.sync 0;\nld.shared.f32 %f1, "
                       "[%r1];" HERE END,
     PTX_DEFECT_UNINITIALISED_SHARED, "block (1,0,0)", 2, 64},

    /* ---- Races ---- */
    {"barrier is missing",
     BEGIN(SHARED_ROW) PUT TURN "bar.warp.sync 0xffffffff;\nld.shared.f32 %f1, [%r2];" HERE
                                "st.global.f32 [%Y], %f1;" END,
     PTX_DEFECT_SHARED_RACE, "which thread", 1, 64},
    {"barrier is there",
     BEGIN(SHARED_ROW) PUT TURN "bar.sync 0; ld.shared.f32 %f1, [%r2]; st.global.f32 [%Y], %f1;" END, NOTHING,
     "", 1, 64},
    {"__syncwarp is missing",
     BEGIN(SHARED_ROW) PUT "xor.b32 %r2, %S, 4; add.u32 %r2, %r0, %r2;\nld.shared.f32 %f1, [%r2];" HERE
                           "st.global.f32 [%Y], %f1;" END,
     PTX_DEFECT_SHARED_RACE, "which thread 1 wrote", 1, 32},
    {"__syncwarp is there",
     BEGIN(SHARED_ROW) PUT "xor.b32 %r2, %S, 4; add.u32 %r2, %r0, %r2; bar.warp.sync 0xffffffff;\n"
                           "ld.shared.f32 %f1, [%r2]; st.global.f32 [%Y], %f1;" END,
     NOTHING, "", 1, 32},
    {"buffer used again",
     BEGIN(SHARED_ROW) PUT TURN "bar.sync 0; ld.shared.f32 %f1, [%r2]; add.f32 %f1, %f1, %f0;\n"
                                "st.shared.f32 [%r1], %f1;" HERE END,
     PTX_DEFECT_SHARED_RACE, "read since the last barrier", 1, 64},
    {"buffer used again, behind a barrier",
     BEGIN(SHARED_ROW) PUT TURN
     "bar.sync 0; ld.shared.f32 %f1, [%r2]; add.f32 %f1, %f1, %f0; bar.sync 0; st.shared.f32 [%r1], %f1;" END,
     NOTHING, "", 1, 64},
    {"bytes of a word by four threads",
     BEGIN(SHARED_ROW) "mov.u32 %r0, row; and.b32 %r1, %S, 0xfffffff0; add.u32 %r1, %r1, %r0;\n"
                       "st.shared.u32 [%r1], %t;" HERE END,
     PTX_DEFECT_SHARED_RACE, "where another lane writes something else", 1, 64},
    {"bytes side by side",
     BEGIN(SHARED_ROW) "mov.u32 %r0, row; add.u32 %r1, %t, %r0; st.shared.u8 [%r1], %t;" END, NOTHING, "", 1,
     64},
    {"bytes of a word by two warps",
     BEGIN(SHARED_ROW) "mov.u32 %r0, row; mad.lo.u32 %r1, %l, 4, %r0; add.u32 %r1, %r1, %w;\n"
                       "st.shared.u8 [%r1], %t; ld.shared.u8 %r3, [%r1];" END,
     NOTHING, "", 1, 64},
    {"bytes of a global word by two warps",
     BEGIN("") "ld.param.u64 %d1, [y]; mad.lo.u32 %r1, %l, 4, %w; cvt.u64.u32 %d2, %r1; add.u64 %d1, %d1, "
               "%d2;\n"
               "st.global.u8 [%d1], %t; ld.global.u8 %r3, [%d1];" END,
     NOTHING, "", 1, 64},
    {"a word, and a byte of it",
     BEGIN(SHARED_ROW) "mov.u32 %r0, row; mad.lo.u32 %r1, %l, 4, %r0; setp.eq.u32 %p0, %w, 0;\n"
                       "@%p0 st.shared.u32 [%r1], %t;" HERE "@!%p0 st.shared.u8 [%r1+3], %t;" HERE END,
     PTX_DEFECT_SHARED_RACE, "since the last barrier between them", 1, 64},
    {"a global word, and a byte of it",
     BEGIN("") "ld.param.u64 %d1, [y]; mul.wide.u32 %d2, %l, 4; add.u64 %d1, %d1, %d2; setp.eq.u32 %p0, %w, "
               "0;\n"
               "@%p0 st.global.u32 [%d1], %t;" HERE "@!%p0 st.global.u8 [%d1+3], %t;" HERE END,
     PTX_DEFECT_GLOBAL_RACE, "since the last barrier between them", 1, 64},
    {"one value from many lanes",
     BEGIN(SHARED_ROW) "mov.u32 %r0, row; shl.b32 %r1, %w, 2; add.u32 %r0, %r0, %r1; st.shared.u32 [%r0], "
                       "7;" END,
     NOTHING, "", 1, 64},
    {"named barriers in a pipeline", /* warp 0 fills, warp 1 takes */
     BEGIN(SHARED_ROW) "shl.b32 %r5, %l, 2; mov.u32 %r0, row; add.u32 %r1, %r0, %r5; setp.ne.u32 %p0, %w, 0; "
                       "@%p0 bra TAKE;\n"
                       "st.shared.u32 [%r1], %l; bar.arrive 1, 64; bar.sync 2, 64; st.shared.u32 [%r1], %t; "
                       "bra OUT;\n"
                       "TAKE: bar.sync 1, 64; ld.shared.u32 %r3, [%r1]; bar.arrive 2, 64; OUT:" END,
     NOTHING, "", 1, 64},
    {"named barriers, the way back is missing",
     BEGIN(SHARED_ROW) "shl.b32 %r5, %l, 2; mov.u32 %r0, row; add.u32 %r1, %r0, %r5; setp.ne.u32 %p0, %w, 0; "
                       "@%p0 bra TAKE;\n"
                       "st.shared.u32 [%r1], %l; bar.arrive 1, 64;\nst.shared.u32 [%r1], %t;" HERE
                       "bra OUT;\n"
                       "TAKE: bar.sync 1, 64;\nld.shared.u32 %r3, [%r1];" HERE "OUT:" END,
     PTX_DEFECT_SHARED_RACE, "since the last barrier between them", 1, 64},
    {"two threads write a global word",
     BEGIN("") "ld.param.u64 %d1, [y]; shr.u32 %r0, %w, 1; mul.wide.u32 %d2, %r0, 4; add.u64 %d1, %d1, %d2;\n"
               "setp.eq.u32 %p0, %l, 0;\n@%p0 st.global.u32 [%d1], %t;" HERE END,
     PTX_DEFECT_GLOBAL_RACE, "writes y + 0, which thread", 1, 64},
    {"global memory as a buffer",
     BEGIN("") "st.global.u32 [%Y], %t; xor.b32 %r0, %t, 32; ld.param.u64 %d1, [y]; mul.wide.u32 %d2, %r0, "
               "4; add.u64 %d1, %d1, %d2;\n"
               "ld.global.u32 %r1, [%d1];" HERE END,
     PTX_DEFECT_GLOBAL_RACE, "reads y + ", 1, 64},
    {"global memory as a buffer, with a barrier",
     BEGIN("") "st.global.u32 [%Y], %t; xor.b32 %r0, %t, 32; ld.param.u64 %d1, [y]; mul.wide.u32 %d2, %r0, "
               "4; add.u64 %d1, %d1, %d2;\n"
               "bar.sync 0; ld.global.u32 %r1, [%d1];" END,
     NOTHING, "", 1, 64},
    {"two blocks add plainly",
     BEGIN("") "ld.global.f32 %f0, [%Y]; add.f32 %f0, %f0, 0f3F800000;\nst.global.f32 [%Y], %f0;" HERE END,
     PTX_DEFECT_GLOBAL_RACE, "without a fence", 2, 64},
    {"two blocks add atomically", BEGIN("") "red.global.add.f32 [%Y], 0f3F800000;" END, NOTHING, "", 2, 64},
    {"the last block sums up", /* the usual protocol: write, fence, count */
     BEGIN("") "mul.wide.u32 %d1, %b, 4; ld.param.u64 %d2, [y]; add.u64 %d3, %d2, %d1; setp.ne.u32 %p0, %t, "
               "0; @%p0 bra OUT;\n"
               "st.global.u32 [%d3], %b; membar.gl; atom.global.inc.u32 %r0, [%d2+1024], 0xffffffff; "
               "setp.ne.u32 %p1, %r0, 1; @%p1 bra OUT;\n"
               "membar.gl; ld.global.u32 %r1, [%d2]; ld.global.u32 %r2, [%d2+4]; OUT:" END,
     NOTHING, "", 2, 64},

    {"the last block sums up, by a release",
     BEGIN("") "mul.wide.u32 %d1, %b, 4; ld.param.u64 %d2, [y]; add.u64 %d3, %d2, %d1; setp.ne.u32 %p0, %t, "
               "0;\n"
               "@%p0 bra OUT; st.global.u32 [%d3], %b;\n"
               "atom.acq_rel.gpu.global.inc.u32 %r0, [%d2+1024], 0xffffffff; setp.ne.u32 %p1, %r0, 1;\n"
               "@%p1 bra OUT; ld.global.u32 %r1, [%d2]; ld.global.u32 %r2, [%d2+4]; OUT:" END,
     NOTHING, "", 2, 64},
    {"the last block sums up, without a fence",
     BEGIN("") "mul.wide.u32 %d1, %b, 4; ld.param.u64 %d2, [y]; add.u64 %d3, %d2, %d1; setp.ne.u32 %p0, %t, "
               "0;\n"
               "@%p0 bra OUT; st.global.u32 [%d3], %b;\n"
               "atom.global.inc.u32 %r0, [%d2+1024], 0xffffffff; setp.ne.u32 %p1, %r0, 1; @%p1 bra OUT;\n"
               "ld.global.v2.u32 {%r1, %r2}, [%d2];" HERE "OUT:" END,
     PTX_DEFECT_GLOBAL_RACE, "without a fence", 2, 64},

/* ---- Copies ---- */
#define COPY                                                                                                 \
    "mov.u32 %r0, row; add.u32 %r1, %r0, %S; cp.async.ca.shared.global [%r1], [%X], 4; "                     \
    "cp.async.commit_group;\n"
    {"copy without a wait",
     BEGIN(SHARED_ROW) COPY "ld.shared.f32 %f0, [%r1];" HERE "st.global.f32 [%Y], %f0;" END,
     PTX_DEFECT_ASYNC_NOT_WAITED, "to which a copy is under way", 1, 64},
    {"wait that leaves one group",
     BEGIN(SHARED_ROW) COPY "cp.async.wait_group 1;\nld.shared.f32 %f0, [%r1];" HERE END,
     PTX_DEFECT_ASYNC_NOT_WAITED, "", 1, 64},
    {"copy with a wait",
     BEGIN(SHARED_ROW) COPY "cp.async.wait_group 0; ld.shared.f32 %f0, [%r1]; st.global.f32 [%Y], %f0;" END,
     NOTHING, "", 1, 64},
    {"another thread's copy, no barrier",
     BEGIN(SHARED_ROW) COPY
     "cp.async.wait_all; xor.b32 %r2, %S, 4; add.u32 %r2, %r0, %r2;\nld.shared.f32 %f0, [%r2];" HERE END,
     PTX_DEFECT_SHARED_RACE, "", 1, 32},
    {"copy of too many bytes",
     BEGIN(SHARED_ROW) "mov.u32 %r0, row; add.u32 %r1, %r0, %S; mov.u32 %r2, 5;\ncp.async.ca.shared.global "
                       "[%r1], [%X], 4, %r2;" HERE END,
     PTX_DEFECT_OPERANDS, "asks for 5 of 4 bytes", 1, 64},

    /* ---- Barriers ---- */
    {"barrier in one branch",
     BEGIN("") "setp.lt.u32 %p0, %l, 16; @!%p0 bra OUT;\nbar.sync 0;" HERE "OUT: bar.sync 1;" END,
     PTX_DEFECT_DIVERGENT_BARRIER, "lanes 0x0000ffff of 0xffffffff", 1, 64},
    {"barriers of two warps",
     BEGIN("") "setp.eq.u32 %p0, %w, 0; @!%p0 bra SECOND;\nbar.sync 0;" HERE
               "bra OUT;\nSECOND: bar.sync 1; OUT:" END,
     PTX_DEFECT_DEADLOCK, "waits at barrier 0, to which 32 of 64 threads have come", 1, 64},
    {"barrier after an exit", BEGIN("") "setp.eq.u32 %p0, %w, 1; @%p0 ret;\nbar.sync 0;" HERE END,
     PTX_DEFECT_EXITED_BARRIER, "32 of 64 threads of the block have exited", 1, 64},
    {"threads disagree",
     BEGIN("") "mov.u32 %r0, 64; setp.eq.u32 %p0, %w, 1; @%p0 mov.u32 %r0, 96; setp.eq.u32 %p1, %w, 2; @%p1 "
               "bra OUT;\n"
               "bar.sync 0, %r0;" HERE "OUT:" END,
     PTX_DEFECT_BARRIER_COUNT, "asked for", 1, 96},
    {"no whole warps", BEGIN("") "setp.eq.u32 %p0, %w, 0; @!%p0 bra OUT;\nbar.sync 0, 16;" HERE "OUT:" END,
     PTX_DEFECT_BARRIER_COUNT, "no number of whole warps", 1, 64},
    {"no such barrier", BEGIN("") "mov.u32 %r0, 16;\nbar.sync %r0;" HERE END, PTX_DEFECT_OPERANDS,
     "names barrier 16 of 16", 1, 64},

    /* ---- Warps ---- */
    {"shuffle in one branch",
     BEGIN("") "setp.lt.u32 %p0, %l, 16; @!%p0 bra OUT;\nshfl.sync.bfly.b32 %r0, %t, 1, 31, -1;" HERE
               "OUT: bar.sync 0;" END,
     PTX_DEFECT_DEADLOCK, "waits with lanes 0x0000ffff for lanes that never come", 1, 64},
    {"shuffle with exited lanes",
     BEGIN("") "setp.ge.u32 %p0, %l, 16; @%p0 exit;\nshfl.sync.bfly.b32 %r0, %t, 1, 31, -1;" HERE END,
     PTX_DEFECT_MEMBER_MASK, "lanes 0xffff0000 take part that have exited", 1, 64},
    {"not in its own mask", BEGIN("") "shfl.sync.bfly.b32 %r0, %t, 1, 31, 0x7fffffff;" HERE END,
     PTX_DEFECT_MEMBER_MASK, "thread (31,0,0) is not in its own member mask 0x7fffffff", 1, 32},
    {"shuffle from outside",
     BEGIN("") "setp.lt.u32 %p0, %l, 16; @!%p0 bra OUT;\nshfl.sync.bfly.b32 %r0, %t, 16, 31, 0xffff;" HERE
               "OUT:" END,
     PTX_DEFECT_SHUFFLE_SOURCE, "reads lane 16, which takes no part", 1, 32},
    {"shuffle in one branch, right",
     BEGIN("") "setp.lt.u32 %p0, %l, 16; @!%p0 bra OUT; shfl.sync.bfly.b32 %r0, %t, 1, 31, 0xffff; OUT: "
               "bar.sync 0;" END,
     NOTHING, "", 1, 64},
    {"half a warp of matrices",
     BEGIN("") "setp.lt.u32 %p0, %l, 16; @!%p0 bra OUT;\n"
               "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, "
               "{%r4,%r5}, {%f4,%f5,%f6,%f7};" HERE "OUT:" END,
     PTX_DEFECT_MEMBER_MASK, "have exited", 1, 32},

    /* ---- The rest ---- */
    {"trap", BEGIN("") "setp.eq.u32 %p0, %t, 40;\n@%p0 trap;" HERE END, PTX_DEFECT_TRAP, "thread (40,0,0)", 1,
     64},
    {"no end", BEGIN("") "AGAIN: add.u32 %r0, %t, 1;" HERE "bra AGAIN;" END, PTX_DEFECT_ENDLESS, "still runs",
     1, 32},
    {"register of another path",
     BEGIN("") "setp.lt.u32 %p0, %l, 16; @%p0 mov.u32 %r0, 5;\nadd.u32 %r1, %r0, 1;" HERE END,
     PTX_DEFECT_UNINITIALISED_REGISTER, "thread (16,0,0)", 1, 32},
    {"copy of a register of another path",
     BEGIN(
         "") "setp.lt.u32 %p0, %l, 16; @%p0 mov.u32 %r0, 5; mov.u32 %r2, %r0;\n@%p0 add.u32 %r1, %r2, 1;" END,
     NOTHING, "", 1, 32},
};

static bool is_marked(const char *text, uint32_t line) {
    for (uint32_t i = 1; i < line; i++) text = strchr(text, '\n') + 1;
    const char *mark = strstr(text, "// HERE");
    return mark && !memchr(text, '\n', (size_t)(mark - text));
}

static void check_sample(const sample *s, uint32_t seed) {
    ptx_fixture f;
    ptx_fixture_open(&f, s->text);
    float *x = ptx_memory_alloc(f.machine, 4096, "x"), *y = ptx_memory_alloc(f.machine, 4096, "y");
    for (int i = 0; i < 1024; i++) x[i] = (float)i;
    memset(y, 0, 4096);
    void *const arguments[] = {&x, &y};
    ptx_launch launch = {.grid = {s->grid, 1, 1},
                         .block = {s->block, 1, 1},
                         .dynamic_shared = 512,
                         .arguments = arguments,
                         .checks = PTX_CHECK_ALL,
                         .seed = seed,
                         .instruction_limit = 100000};
    int status = ptx_kernel_launch(f.machine, ptx_module_kernel_at(f.module, 0), &launch);
    const char *report = ptx_machine_report(f.machine);
    if (s->kind == NOTHING) {
        if (status != PTX_OK) fail_msg("%s: %s%s", s->name, ptx_machine_message(f.machine), report);
        assert_string_equal(report, "");
    } else {
        if (status != PTX_DEFECTS) fail_msg("%s: no defect found", s->name);
        uint32_t found = 0;
        for (uint32_t i = 0; i < ptx_machine_defect_count(f.machine); i++) {
            const ptx_defect *defect = ptx_machine_defect(f.machine, i);
            if (defect->kind != s->kind || !is_marked(s->text, defect->line)) continue;
            found++;
            if (seed == 0 && !strstr(defect->text, s->says))
                fail_msg("%s: \"%s\" is not in\n%s", s->name, s->says, report);
        }
        if (!found)
            fail_msg("%s: not \"%s\" in the marked line, but\n%s", s->name, ptx_defect_name(s->kind), report);
    }
    ptx_fixture_close(&f);
}

static void every_defect_is_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++)
        for (uint32_t seed = 0; seed < 6; seed++) check_sample(&samples[i], seed);
}

/* Every kind of the table above has a sample. */
static void every_kind_has_a_sample(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < PTX_DEFECT_KINDS; kind++) {
        bool found = false;
        for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++)
            found = found || samples[i].kind == kind;
        if (!found) fail_msg("no sample of \"%s\"", ptx_defect_name((ptx_defect_kind)kind));
    }
}

/* Without the checks that can be left out, those defects pass unseen and the others do not. */
static void checks_can_be_left_out(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
        const sample *s = &samples[i];
        bool optional = s->kind == PTX_DEFECT_UNINITIALISED_SHARED ||
                        s->kind == PTX_DEFECT_UNINITIALISED_REGISTER ||
                        s->kind == PTX_DEFECT_ASYNC_NOT_WAITED || s->kind == PTX_DEFECT_SHARED_RACE ||
                        s->kind == PTX_DEFECT_GLOBAL_RACE;
        ptx_fixture f;
        ptx_fixture_open(&f, s->text);
        float *x = ptx_memory_alloc(f.machine, 4096, "x"), *y = ptx_memory_alloc(f.machine, 4096, "y");
        void *const arguments[] = {&x, &y};
        ptx_launch launch = {.grid = {s->grid, 1, 1},
                             .block = {s->block, 1, 1},
                             .dynamic_shared = 512,
                             .arguments = arguments,
                             .instruction_limit = 100000};
        int status = ptx_kernel_launch(f.machine, ptx_module_kernel_at(f.module, 0), &launch);
        if (status != (s->kind == NOTHING || optional ? PTX_OK : PTX_DEFECTS))
            fail_msg("%s: %s", s->name, ptx_machine_report(f.machine));
        ptx_fixture_close(&f);
    }
}

/* A report says where: kernel, kind, block, thread, address, allocation, file, line, the instruction. */
static void a_report_says_where(void **state) {
    (void)state;
    ptx_fixture f;
    ptx_fixture_open(
        &f, BEGIN("") "add.u64 %Y, %Y, 3844; mov.f32 %f0, 0f00000000;\nst.global.f32 [%Y], %f0;" HERE END);
    float *x = ptx_memory_alloc(f.machine, 4096, "the keys"),
          *y = ptx_memory_alloc(f.machine, 4096, "the values");
    void *const arguments[] = {&x, &y};
    assert_int_equal(ptx_fixture_launch(&f, 1, 64, 512, arguments), PTX_DEFECTS);
    const char *report = ptx_machine_report(f.machine);
    kvant_assert_contains(
        report, "sample: global memory out of bounds: block (0,0,0) thread (63,0,0) writes 4 bytes at 0x");
    kvant_assert_contains(report, "0 bytes behind the values (4096 bytes)");
    kvant_assert_contains(report, "test.ptx:14: st.global.f32 [%Y], %f0;");
    const ptx_defect *defect = ptx_machine_defect(f.machine, 0);
    assert_int_equal(ptx_machine_defect_count(f.machine), 1);
    assert_int_equal(defect->thread[0], 63);
    assert_int_equal(defect->address, (uint64_t)(uintptr_t)y + 4096);
    assert_int_equal(defect->count, 1);
    ptx_fixture_close(&f);
}

/* assert() and printf() call functions that the driver has: the first is a defect with its text, the second prints
 * nothing and returns 0. */
static void assertions_are_reported(void **state) {
    (void)state;
    ptx_fixture f;
    ptx_fixture_open(
        &f,
        ".version 9.0\n.target sm_90\n.address_size 64\n"
        ".extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 arguments);\n"
        ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 "
        "e);\n"
        ".global .align 1 .b8 text[8] = {116, 32, 60, 32, 57, 0};\n"
        ".visible .entry sample(.param .u64 x, .param .u64 y)\n{\n"
        ".reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p<2>;\n"
        "mov.u64 %d1, text; cvta.global.u64 %d1, %d1; mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 9;\n"
        "{ .param .b64 p; st.param.b64 [p], %d1; .param .b64 q; st.param.b64 [q], 0; .param .b32 r;\n"
        "call.uni (r), vprintf, (p, q); ld.param.b32 %r2, [r]; }\n"
        "ld.param.u64 %d2, [y]; mul.wide.u32 %d3, %r1, 4; add.u64 %d2, %d2, %d3; st.global.u32 [%d2], %r2;\n"
        "@%p1 bra OUT;\n{ .param .b64 p; st.param.b64 [p], %d1; .param .b64 q; st.param.b64 [q], %d1;\n"
        ".param .b32 l; st.param.b32 [l], 5; .param .b64 s; st.param.b64 [s], %d1; .param .b64 t;\n"
        "st.param.b64 [t], 1; call.uni __assertfail, (p, q, l, s, t); }\nOUT: ret;\n}\n");
    uint32_t *y = ptx_memory_alloc(f.machine, 4096, "y");
    void *const arguments[] = {&y, &y};
    ptx_fixture_run(&f, 1, 9, 0, arguments);
    for (int i = 0; i < 9; i++) assert_int_equal(y[i], 0);
    assert_int_equal(ptx_fixture_launch(&f, 1, 32, 0, arguments), PTX_DEFECTS);
    kvant_assert_contains(ptx_machine_report(f.machine),
                          "trap: block (0,0,0) thread (9,0,0) assertion failed: t < 9");
    assert_int_equal(ptx_machine_defect(f.machine, 0)->count, 23);
    ptx_fixture_close(&f);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_defect_is_named), cmocka_unit_test(every_kind_has_a_sample),
        cmocka_unit_test(checks_can_be_left_out), cmocka_unit_test(a_report_says_where),
        cmocka_unit_test(assertions_are_reported)};
    return kvant_run_tests(tests, argc, argv);
}
