/* Loads, stores, atomics and copies of every space. */
#include "support/ptx_fixture.h"
#include "support/ptx_formats.h"

#include <stdio.h>

typedef uint64_t u64;
typedef uint32_t u32;

/* ---- Loads and stores ---------------------------------------------------------------------------------- */

#define ROW(name, expression)                                                                                \
    static u64 name(const u64 *x) {                                                                          \
        return (u64)(expression);                                                                            \
    }
ROW(u8, x[0] & 0xff)
ROW(s8, (u32)(int32_t)(int8_t)x[0])
ROW(s8_wide, (int64_t)(int8_t)x[0])
ROW(s8_short, (uint16_t)(int8_t)x[0])
ROW(u16, x[0] >> 16 & 0xffff)
ROW(s16, (u32)(int32_t)(int16_t)(x[0] >> 16))
ROW(s32_wide, (int64_t)(int32_t)x[0])
ROW(u32_wide, x[0] & 0xffffffff)
ROW(whole, x[1])
ROW(second_word, x[0] >> 32)
ROW(sum_of_bytes,
    (x[0] & 0xff) + (x[0] >> 8 & 0xff) * 256 + (x[0] >> 16 & 0xff) * 65536 + ((x[0] >> 24 & 0xff) << 24))
ROW(patched_byte, (x[1] & ~(u64)0xff00) | (x[0] & 0xff) << 8)
ROW(patched_half, (x[1] & 0xffffffff0000ffff) | (x[0] & 0xffff) << 16)
ROW(patched_vector, x[0] << 32 | (x[2] & 0xffffffff))
ROW(sum, x[0] + x[1])

#define SHARED                                                                                               \
    "{ .shared .align 16 .b8 m[4096]; .reg .b32 %s; .reg .b64 %g; mov.u32 %s, %tid.x; mad.lo.u32 %s, %s, "   \
    "32, m;\n"
#define LOCAL "{ .local .align 16 .b8 m[32]; .reg .b64 %s, %g; mov.u64 %s, m;\n"

static const ptx_row_test accesses[] = {
    {"ld.global.u8 %R, [%at];", 'r', u8},
    {"ld.global.b8 %B, [%at];", 'b', u8},
    {"ld.global.s8 %R, [%at];", 'r', s8},
    {"ld.global.s8 %D, [%at];", 'd', s8_wide},
    {"ld.global.s8 %H, [%at];", 'h', s8_short},
    {"ld.global.nc.u16 %H, [%at+2];", 'h', u16},
    {"ld.global.ca.s16 %R, [%at+2];", 'r', s16},
    {"ld.global.cg.s32 %D, [%at];", 'd', s32_wide},
    {"ld.global.u32 %D, [%at];", 'd', u32_wide},
    {"ld.volatile.global.u64 %D, [%at+8];", 'd', whole},
    {"ld.relaxed.gpu.global.u64 %D, [%at+8];", 'd', whole},
    {"ld.global.L1::no_allocate.L2::128B.v2.u32 {_, %R}, [%at];", 'r', second_word},
    {"ld.u64 %D, [%at+8];", 'd', whole},
    {"ldu.global.u64 %D, [%at+8];", 'd', whole},
    {"ld.global.nc.L1::evict_last.v2.b64 {%d2, %d3}, [%at]; add.u64 %D, %d2, %d3;", 'd', sum},
    {"{ .reg .b32 %w, %v, %u; ld.global.v4.u8 {%w, %v, %u, %R}, [%at]; shl.b32 %v, %v, 8; shl.b32 %u, %u, "
     "16; shl.b32 %R, %R, 24;\n"
     "or.b32 %R, %R, %w; or.b32 %R, %R, %v; or.b32 %R, %R, %u; }",
     'r', sum_of_bytes},
    {"st.global.u8 [%at+9], %r0; ld.global.u64 %D, [%at+8];", 'd', patched_byte},
    {"st.global.wt.b16 [%at+10], %h0; ld.global.u64 %D, [%at+8];", 'd', patched_half},
    {"st.global.v2.u32 [%at+8], {%r2, %r0}; ld.global.u64 %D, [%at+8];", 'd', patched_vector},
    {"st.volatile.global.u64 [%at+8], %d0; st.release.gpu.global.u64 [%at+8], %d1; ld.acquire.gpu.u64 %D, "
     "[%at+8];",
     'd', whole},
    {SHARED "st.shared.u64 [%s], %d1; st.shared.u8 [%s+1], %d0; ld.shared.u64 %D, [%s]; }", 'd',
     patched_byte},
    {SHARED "st.shared::cta.v2.b32 [%s+8], {%r2, %r0}; ld.shared.b64 %D, [%s+8]; }", 'd', patched_vector},
    {SHARED "cvt.u64.u32 %g, %s; cvta.shared.u64 %g, %g; st.u64 [%g+16], %d1; ld.shared.u64 %D, [%s+16]; }",
     'd', whole},
    {SHARED "cvt.u64.u32 %g, %s; cvta.shared.u64 %g, %g; cvta.to.shared.u64 %d3, %g; st.shared.u64 [%d3], "
            "%d1; ld.u64 %D, [%g]; }",
     'd', whole},
    {LOCAL "st.local.u64 [%s+8], %d1; st.local.u8 [%s+9], %d0; ld.local.u64 %D, [m+8]; }", 'd', patched_byte},
    {LOCAL "cvta.local.u64 %g, %s; st.u64 [%g+24], %d1; ld.local.u64 %D, [%s+24]; }", 'd', whole},
    /* Lanes of one instruction in different spaces. */
    {SHARED "cvt.u64.u32 %g, %s; cvta.shared.u64 %g, %g; selp.u64 %g, %g, %at, %p0; st.u64 [%g], %d1; ld.u64 "
            "%D, [%g]; }",
     'd', whole},
    {SHARED "cvt.u64.u32 %g, %s; cvta.shared.u64 %g, %g; isspacep.shared %P, %g; isspacep.global %p3, %at; "
            "and.pred %P, %P, %p3; isspacep.local %p3, %g;\n"
            "not.pred %p3, %p3; and.pred %P, %P, %p3; selp.u64 %D, %d1, 0, %P; }",
     'd', whole},
    {"prefetch.global.L2 [%at]; nanosleep.u32 100; mov.b64 %D, %d1;", 'd', whole},
};

static void loads_and_stores(void **state) {
    (void)state;
    ptx_check_rows(accesses, sizeof accesses / sizeof accesses[0], PTX_INPUT_INTEGERS);
}

/* ---- Atomics: each thread on memory of its own, then many on one place --------------------------------- */

ROW(old, x[0] & 0xffffffff)
ROW(old64, x[0])
#define NEW32(name, expression)                                                                              \
    static u64 name(const u64 *x) {                                                                          \
        u32 a = (u32)x[0], b = (u32)x[1], c = (u32)x[2];                                                     \
        (void)a, (void)c;                                                                                    \
        return (x[0] & 0xffffffff00000000) | (u32)(expression);                                              \
    }
NEW32(add, a + b)
NEW32(and, a &b)
NEW32(or, a | b)
NEW32(xor, a ^ b)
NEW32(exchange, b)
NEW32(min_u, a < b ? a : b)
NEW32(max_s, (u32)((int32_t)a > (int32_t)b ? a : b))
NEW32(inc, a >= b ? 0 : a + 1)
NEW32(dec, a == 0 || a > b ? b : a - 1)
NEW32(cas, a == (b & 3) ? c : a)
ROW(add64, x[0] + x[1])
ROW(min64, (int64_t)x[0] < (int64_t)x[1] ? x[0] : x[1])
ROW(cas64, x[0] == x[1] ? x[2] : x[0])

#define AFTER " ld.global.u64 %D, [%at];"
static const ptx_row_test atomics[] = {
    {"atom.global.add.u32 %R, [%at], %r1;", 'r', old},
    {"atom.add.u64 %D, [%at], %d1;", 'd', old64},
    {"atom.global.add.u32 %R, [%at], %r1;" AFTER, 'd', add},
    {"red.global.add.s32 [%at], %r1;" AFTER, 'd', add},
    {"red.relaxed.gpu.global.and.b32 [%at], %r1;" AFTER, 'd', and},
    {"atom.acq_rel.cta.or.b32 %R, [%at], %r1;" AFTER, 'd', or },
    {"atom.global.xor.b32 %R, [%at], %r1;" AFTER, 'd', xor},
    {"atom.exch.b32 %R, [%at], %r1;" AFTER, 'd', exchange},
    {"atom.global.min.u32 %R, [%at], %r1;" AFTER, 'd', min_u},
    {"red.max.s32 [%at], %r1;" AFTER, 'd', max_s},
    {"atom.inc.u32 %R, [%at], %r1;" AFTER, 'd', inc},
    {"atom.dec.u32 %R, [%at], %r1;" AFTER, 'd', dec},
    {"and.b32 %r1, %r1, 3; atom.cas.b32 %R, [%at], %r1, %r2;" AFTER, 'd', cas},
    {"red.add.u64 [%at], %d1;" AFTER, 'd', add64},
    {"atom.min.s64 %d3, [%at], %d1;" AFTER, 'd', min64},
    {"atom.cas.b64 %d3, [%at], %d1, %d2;" AFTER, 'd', cas64},
};

static void atomics_by_one(void **state) {
    (void)state;
    ptx_check_rows(atomics, sizeof atomics / sizeof atomics[0], PTX_INPUT_INTEGERS);
}

static u64 sum_f32(const u64 *x) {
    u32 a = (u32)x[0], b = (u32)x[1];
    float f, g;
    memcpy(&f, &a, 4);
    memcpy(&g, &b, 4);
    f += g;
    memcpy(&a, &f, 4);
    return f != f ? 0x7fffffff : a;
}
static u64 sum_f16x2(const u64 *x) {
    u64 r = 0;
    for (int i = 0; i < 2; i++) {
        double s =
            test_f16_value((u32)x[0] >> 16 * i & 0xffff) + test_f16_value((u32)x[1] >> 16 * i & 0xffff);
        r |= (u64)(s != s ? 0x7fff : test_f16_bits(test_f16(s))) << 16 * i;
    }
    return r;
}
static void atomics_of_floats(void **state) {
    (void)state;
    static const ptx_row_test f32[] = {
        {"red.global.add.f32 [%at], %r1; ld.global.u32 %R, [%at];", 'r', sum_f32}};
    static const ptx_row_test f16[] = {
        {"red.global.add.noftz.f16x2 [%at], %r1; ld.global.u32 %R, [%at];", 'r', sum_f16x2}};
    ptx_check_rows(f32, 1, PTX_INPUT_F32);
    ptx_check_rows(f16, 1, PTX_INPUT_F16);
}

#define HEAD                                                                                                 \
    ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 x, .param .u64 y)\n{\n"
static void atomics_by_many(void **state) {
    (void)state;
    ptx_fixture f;
    ptx_fixture_open(&f, HEAD ".reg .b32 %r<8>; .reg .b64 %d<4>; .reg .pred %p; .shared .u32 total;\n"
                              "ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y]; mov.u32 %r1, %tid.x; "
                              "setp.ne.u32 %p, %r1, 0; mov.u32 %r2, total;\n"
                              "@!%p st.shared.u32 [%r2], 0; bar.sync 0; atom.shared.add.u32 %r3, [%r2], %r1; "
                              "atom.global.inc.u32 %r4, [%d1], 0xffffffff;\n"
                              "mul.wide.u32 %d3, %r4, 4; add.u64 %d3, %d2, %d3; st.global.u32 [%d3], %r4;\n"
                              "red.global.max.u32 [%d1+4], %r1; bar.sync 0; ld.shared.u32 %r5, [%r2]; @!%p "
                              "red.global.add.u32 [%d1+8], %r5;\nret;\n}\n");
    u32 *x = ptx_memory_alloc(f.machine, 16, "x"), *y = ptx_memory_alloc(f.machine, 4 * 3 * 96, "y");
    memset(x, 0, 16);
    void *const arguments[] = {&x, &y};
    ptx_fixture_run(&f, 3, 96, 0, arguments);
    assert_int_equal(x[0], 288);
    assert_int_equal(x[1], 95);
    assert_int_equal(x[2], 3 * 96 * 95 / 2);
    for (u32 i = 0; i < 288; i++) assert_int_equal(y[i], i);
    ptx_fixture_close(&f);
}

/* ---- cp.async ------------------------------------------------------------------------------------------ */

/* 16 bytes per case from its inputs to shared memory and back. */
#define COPY(copies)                                                                                         \
    SHARED copies " cp.async.commit_group; cp.async.wait_group 0; ld.shared.v2.u64 {%d2, %d3}, [%s]; "       \
                  "xor.b64 %D, %d2, %d3; }"
ROW(both, x[0] ^ x[1])
ROW(first_only, x[0])
ROW(first_12, x[0] ^ (x[1] & 0xffffffff))
ROW(if_even, x[2] & 1 ? 0 : x[0] ^ x[1])

static void copies(void **state) {
    (void)state;
    static const ptx_row_test rows[] = {
        {COPY("cp.async.cg.shared.global [%s], [%at], 16;"), 'd', both},
        {COPY("cp.async.ca.shared::cta.global.L2::128B [%s], [%at], 8; cp.async.ca.shared.global [%s+8], "
              "[%at+8], 8;"),
         'd', both},
        {COPY("cp.async.ca.shared.global [%s], [%at], 4; cp.async.ca.shared.global [%s+4], [%at+4], 4; "
              "cp.async.ca.shared.global [%s+8], [%at+8], 8;"),
         'd', both},
        {COPY("mov.u32 %r2, 8; cp.async.cg.shared.global [%s], [%at], 16, %r2;"), 'd', first_only},
        {COPY("cp.async.cg.shared.global [%s], [%at], 16, 12;"), 'd', first_12},
        {COPY("cp.async.cg.shared.global [%s], [%at], 16, %p2;"), 'd', if_even},
        {COPY("not.pred %p3, %p2; cp.async.cg.shared.global [%s], [%at], 16, !%p3;"), 'd', if_even},
    };
    ptx_check_rows(rows, sizeof rows / sizeof rows[0], PTX_INPUT_INTEGERS);
}

/* A source of no bytes is not looked at; groups end in order. */
static void copies_end_in_order(void **state) {
    (void)state;
    ptx_fixture f;
    ptx_fixture_open(&f, HEAD ".reg .b32 %r<8>; .reg .b64 %d<8>; .shared .align 16 .b8 a[512]; .shared "
                              ".align 16 .b8 b[512]; .shared .align 16 .b8 c[512];\n"
                              "ld.param.u64 %d1, [x]; ld.param.u64 %d2, [y]; mov.u32 %r1, %tid.x; "
                              "mul.wide.u32 %d3, %r1, 16; add.u64 %d1, %d1, %d3; add.u64 %d2, %d2, %d3;\n"
                              "mad.lo.u32 %r2, %r1, 16, a; mad.lo.u32 %r3, %r1, 16, b; mad.lo.u32 %r4, %r1, "
                              "16, c; mov.u64 %d6, 0;\n"
                              "cp.async.cg.shared.global [%r2], [%d1], 16; cp.async.commit_group; "
                              "cp.async.cg.shared.global [%r3], [%d1+512], 16; cp.async.commit_group;\n"
                              "cp.async.cg.shared.global [%r4], [%d6], 16, 0; cp.async.commit_group; "
                              "cp.async.wait_group 2; ld.shared.v2.u64 {%d4, %d5}, [%r2];\n"
                              "st.global.v2.u64 [%d2], {%d4, %d5}; cp.async.wait_group 1; ld.shared.v2.u64 "
                              "{%d4, %d5}, [%r3]; st.global.v2.u64 [%d2+512], {%d4, %d5};\n"
                              "cp.async.wait_all; ld.shared.v2.u64 {%d4, %d5}, [%r4]; st.global.v2.u64 "
                              "[%d2+1024], {%d4, %d5};\nret;\n}\n");
    uint8_t *x = ptx_memory_alloc(f.machine, 1024, "x"), *y = ptx_memory_alloc(f.machine, 1536, "y");
    for (int i = 0; i < 1024; i++) x[i] = (uint8_t)(i * 7 + i / 256);
    void *const arguments[] = {&x, &y};
    ptx_fixture_run(&f, 1, 32, 0, arguments);
    kvant_assert_bytes(y, x, 1024);
    for (int i = 1024; i < 1536; i++) assert_int_equal(y[i], 0);
    ptx_fixture_close(&f);
}

/* ---- Counters ------------------------------------------------------------------------------------------ */

/* One access of one warp: lanes read `stride` bytes apart. */
static void accesses_are_counted(void **state) {
    (void)state;
    static const struct {
        u32 stride, size, sectors, wavefronts, ideal;
        const char *type;
    } rows[] = {{4, 4, 4, 1, 1, "u32"},     {8, 4, 8, 2, 1, "u32"},   {32, 4, 32, 8, 1, "u32"},
                {128, 4, 32, 32, 1, "u32"}, {0, 4, 1, 1, 1, "u32"},   {2, 2, 2, 1, 1, "u16"},
                {1, 1, 1, 1, 1, "u8"},      {8, 8, 8, 2, 2, "u64"},   {16, 8, 16, 4, 2, "u64"},
                {132, 4, 32, 1, 1, "u32"},  {16, 16, 16, 4, 4, "v4"}, {32, 16, 32, 8, 4, "v4"},
                {144, 16, 32, 4, 4, "v4"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[2048];
        const char *load = rows[i].size == 16  ? "v4.u32 {%r4, %r5, %r6, %r7}"
                           : rows[i].size == 8 ? "u64 %d3"
                           : rows[i].size == 4 ? "u32 %r4"
                           : rows[i].size == 2 ? "u16 %r4"
                                               : "u8 %r4";
        snprintf(text, sizeof text,
                 HEAD ".reg .b32 %%r<8>; .reg .b64 %%d<4>; .extern .shared .align 128 .b8 m[];\n"
                      "ld.param.u64 %%d1, [x]; mov.u32 %%r1, %%tid.x; mul.lo.u32 %%r1, %%r1, %u; cvt.u64.u32 "
                      "%%d2, %%r1; add.u64 %%d1, %%d1, %%d2; mov.u32 %%r2, m; add.u32 %%r2, %%r2, %%r1;\n"
                      "ld.global.%s, [%%d1]; ld.shared.%s, [%%r2];\nret;\n}\n",
                 rows[i].stride, load, load);
        ptx_fixture f;
        ptx_fixture_open(&f, text);
        void *x = ptx_memory_alloc(f.machine, 8192, "x"), *const arguments[] = {&x, &x};
        ptx_launch launch = {.grid = {2, 1, 1},
                             .block = {32, 1, 1},
                             .dynamic_shared = 8192,
                             .arguments = arguments,
                             .checks = PTX_CHECK_COUNT};
        assert_int_equal(ptx_kernel_launch(f.machine, ptx_module_kernel_at(f.module, 0), &launch), PTX_OK);
        const ptx_counters *c = ptx_machine_counters(f.machine);
        assert_int_equal(c->load.instructions, 2);
        assert_int_equal(c->load.bytes, 2 * 32 * rows[i].size);
        assert_int_equal(c->load.sectors, 2 * rows[i].sectors);
        assert_int_equal(c->load.block_sectors, 2 * rows[i].sectors);
        assert_int_equal(c->shared_load.wavefronts, 2 * rows[i].wavefronts);
        assert_int_equal(c->shared_load.ideal, 2 * rows[i].ideal);
        assert_int_equal(c->by_class[PTX_CLASS_GLOBAL_LOAD], 2);
        assert_int_equal(c->by_class[PTX_CLASS_SHARED_LOAD], 2);
        kvant_assert_contains(ptx_machine_counter_text(f.machine), "global loads");
        ptx_fixture_close(&f);
    }
}

/* A sector that a block reads again counts as an access, not as one more sector of the block. */
static void sectors_of_a_block(void **state) {
    (void)state;
    ptx_fixture f;
    ptx_fixture_open(&f, HEAD ".reg .b32 %r<4>; .reg .b64 %d<4>;\n"
                              "ld.param.u64 %d1, [x]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4;\n"
                              "add.u64 %d1, %d1, %d2; ld.global.u32 %r2, [%d1]; ld.global.u32 %r2, [%d1];\n"
                              "st.global.u32 [%d1+2048], %r2; st.global.u32 [%d1+2048], %r2;\nret;\n}\n");
    void *x = ptx_memory_alloc(f.machine, 4096, "x"), *const arguments[] = {&x, &x};
    ptx_launch launch = {
        .grid = {3, 1, 1}, .block = {64, 1, 1}, .arguments = arguments, .checks = PTX_CHECK_COUNT};
    assert_int_equal(ptx_kernel_launch(f.machine, ptx_module_kernel_at(f.module, 0), &launch), PTX_OK);
    const ptx_counters *c = ptx_machine_counters(f.machine);
    assert_int_equal(c->load.sectors, 3 * 16);
    assert_int_equal(c->load.block_sectors, 3 * 8);
    assert_int_equal(c->store.sectors, 3 * 16);
    assert_int_equal(c->store.block_sectors, 3 * 8);
    assert_int_equal(c->thread_instructions, c->warp_instructions * 32);
    ptx_fixture_close(&f);
}

/* What is registered, and where addresses lie. */
static void ranges(void **state) {
    (void)state;
    ptx_machine *machine = ptx_machine_create();
    static uint8_t memory[100];
    assert_true(ptx_memory_add(machine, memory + 10, 20, "a", false));
    assert_false(ptx_memory_add(machine, memory + 29, 20, "b", false));
    assert_false(ptx_memory_add(machine, memory, 11, "c", false));
    assert_true(ptx_memory_add(machine, memory + 30, 20, "d", true));
    assert_true(ptx_memory_contains(machine, memory + 10, 20));
    assert_false(ptx_memory_contains(machine, memory + 10, 21));
    assert_false(ptx_memory_contains(machine, memory + 9, 1));
    ptx_memory_remove(machine, memory + 10);
    assert_false(ptx_memory_contains(machine, memory + 10, 1));
    assert_true(ptx_memory_contains(machine, memory + 49, 1));
    assert_null(ptx_memory_alloc(machine, 0, "nothing"));
    void *own = ptx_memory_alloc(machine, 10, "own");
    ptx_memory_free(machine, own);
    ptx_memory_free(machine, NULL);
    ptx_machine_destroy(machine);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(loads_and_stores),
                                              cmocka_unit_test(atomics_by_one),
                                              cmocka_unit_test(atomics_of_floats),
                                              cmocka_unit_test(atomics_by_many),
                                              cmocka_unit_test(copies),
                                              cmocka_unit_test(copies_end_in_order),
                                              cmocka_unit_test(accesses_are_counted),
                                              cmocka_unit_test(sectors_of_a_block),
                                              cmocka_unit_test(ranges)};
    return kvant_run_tests(tests, argc, argv);
}
