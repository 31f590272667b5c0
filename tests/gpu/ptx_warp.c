/* Lanes of a warp together and apart: shuffles, votes, reductions, barriers, divergence, calls. */
#include "support/ptx_fixture.h"

#include <stdio.h>

typedef uint32_t u32;

/* y[thread] = %r9 after the text; %r1 is the thread, %r2 the lane, %r3 = x[thread]. */
#define BEGIN                                                                                                \
    ".version 9.0\n.target sm_100a\n.address_size 64\n%s\n.visible .entry k(.param .u64 x, .param .u64 "     \
    "y)\n{\n"                                                                                                \
    ".reg .pred %%p<8>; .reg .b32 %%r<16>; .reg .b64 %%d<8>; .reg .f32 %%f<4>;\n"                            \
    "ld.param.u64 %%d1, [x]; ld.param.u64 %%d2, [y]; mov.u32 %%r1, %%tid.x; mov.u32 %%r2, %%laneid; "        \
    "mul.wide.u32 %%d3, %%r1, 4;\n"                                                                          \
    "add.u64 %%d1, %%d1, %%d3; add.u64 %%d2, %%d2, %%d3; ld.global.u32 %%r3, [%%d1]; mov.u32 %%r9, 0;\n%s\n" \
    "st.global.u32 [%%d2], %%r9;\nret;\n}\n"

static void run_threads(const char *before, const char *text, const u32 *x, u32 *y, u32 threads) {
    static char whole[8192];
    snprintf(whole, sizeof whole, BEGIN, before, text);
    ptx_fixture f;
    ptx_fixture_open(&f, whole);
    u32 *in = ptx_memory_alloc(f.machine, 4 * threads, "x"),
        *out = ptx_memory_alloc(f.machine, 4 * threads, "y");
    memcpy(in, x, 4 * threads);
    void *const arguments[] = {&in, &out};
    ptx_fixture_run(&f, 1, threads, 0, arguments);
    memcpy(y, out, 4 * threads);
    ptx_fixture_close(&f);
}

static void fill(u32 *x, u32 count) {
    uint64_t seed = 6;
    for (u32 i = 0; i < count; i++) x[i] = (u32)kvant_test_random(&seed);
}

/* PTX's pseudocode, for every width of segment and some distances. */
static void shuffles(void **state) {
    (void)state;
    static const char *const modes[] = {"up", "down", "bfly", "idx"};
    u32 x[32], y[32];
    fill(x, 32);
    for (int mode = 0; mode < 4; mode++)
        for (u32 width = 1; width <= 32; width *= 2)
            for (u32 b = 0; b < 34; b += b < 5 ? 1 : 7) {
                u32 segment = 32 - width, clamp = mode == 0 ? 0 : 31, c = segment << 8 | clamp;
                char text[256];
                snprintf(text, sizeof text,
                         "shfl.sync.%s.b32 %%r9|%%p1, %%r3, %u, %u, 0xffffffff; @!%%p1 not.b32 %%r9, %%r9;",
                         modes[mode], b, c);
                run_threads("", text, x, y, 32);
                for (u32 lane = 0; lane < 32; lane++) {
                    u32 bval = b & 31, max_lane = (lane & segment) | (clamp & ~segment),
                        min_lane = lane & segment;
                    int j, ok;
                    if (mode == 0)
                        j = (int)lane - (int)bval, ok = j >= (int)max_lane;
                    else if (mode == 1)
                        j = (int)(lane + bval), ok = j <= (int)max_lane;
                    else if (mode == 2)
                        j = (int)(lane ^ bval), ok = j <= (int)max_lane;
                    else
                        j = (int)(min_lane | (bval & ~segment)), ok = j <= (int)max_lane;
                    u32 want = ok ? x[j] : ~x[lane];
                    if (y[lane] != want)
                        fail_msg("%s: lane %u: %08x, expected %08x", text, lane, y[lane], want);
                }
            }
    /* Distances and sources that differ from lane to lane. */
    run_threads("", "mul.lo.u32 %r4, %r2, 5; shfl.sync.idx.b32 %r9, %r3, %r4, 31, 0xffffffff;", x, y, 32);
    for (u32 lane = 0; lane < 32; lane++) assert_int_equal(y[lane], x[lane * 5 % 32]);
}

static void votes_and_matches(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int kind;
    } rows[] = {{"vote.sync.ballot.b32 %r9, %p1, 0xffffffff;", 0},
                {"vote.sync.all.pred %p2, %p1, 0xffffffff; selp.b32 %r9, 1, 0, %p2;", 1},
                {"vote.sync.any.pred %p2, %p1, 0xffffffff; selp.b32 %r9, 1, 0, %p2;", 2},
                {"vote.sync.uni.pred %p2, %p1, 0xffffffff; selp.b32 %r9, 1, 0, %p2;", 3},
                {"vote.sync.ballot.b32 %r9, !%p1, 0xffffffff;", 4},
                {"match.any.sync.b32 %r9, %r4, 0xffffffff;", 5},
                {"match.all.sync.b32 %r9|%p2, %r4, 0xffffffff; @%p2 or.b32 %r9, %r9, 0;", 6},
                {"cvt.u64.u32 %d4, %r4; shl.b64 %d4, %d4, 33; match.any.sync.b64 %r9, %d4, 0xffffffff;", 5},
                {"activemask.b32 %r9;", 7},
                {"elect.sync %r9|%p2, 0xffffffff; @%p2 add.u32 %r9, %r9, 100;", 8}};
    static const u32 patterns[] = {0, 0xffffffff, 1, 0x80000000, 0x5a5a1234};
    u32 x[32], y[32];
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        for (size_t p = 0; p < sizeof patterns / sizeof patterns[0]; p++) {
            char text[256];
            for (u32 i = 0; i < 32; i++) x[i] = patterns[p] >> i & 1;
            snprintf(text, sizeof text, "and.b32 %%r4, %%r3, 1; setp.ne.u32 %%p1, %%r4, 0; %s", rows[r].text);
            run_threads("", text, x, y, 32);
            for (u32 lane = 0; lane < 32; lane++) {
                u32 all = patterns[p] == 0xffffffff, none = patterns[p] == 0,
                    same = x[lane] ? patterns[p] : ~patterns[p];
                const u32 want[] = {patterns[p],
                                    all,
                                    !none,
                                    all || none,
                                    ~patterns[p],
                                    same,
                                    all || none ? 0xffffffff : 0,
                                    0xffffffff,
                                    lane == 0 ? 100 : 0};
                if (y[lane] != want[rows[r].kind])
                    fail_msg("%s: lane %u of %08x: %x", rows[r].text, lane, patterns[p], y[lane]);
            }
        }
    /* Two halves of a warp, each with its own members, at one instruction. */
    for (u32 i = 0; i < 32; i++) x[i] = i % 3 == 0;
    run_threads("",
                "setp.ne.u32 %p1, %r3, 0; setp.lt.u32 %p2, %r2, 16; selp.b32 %r4, 0x0000ffff, 0xffff0000, "
                "%p2; vote.sync.ballot.b32 %r9, %p1, %r4;",
                x, y, 32);
    for (u32 lane = 0; lane < 32; lane++)
        assert_int_equal(y[lane], 0x49249249 & (lane < 16 ? 0x0000ffff : 0xffff0000));
}

static void reductions(void **state) {
    (void)state;
    u32 x[32], y[32];
    fill(x, 32);
    u32 sum = 0, and = ~0u, or = 0, xor = 0, low = ~0u, high = 0;
    int32_t least = INT32_MAX;
    for (u32 i = 4; i < 20; i++) {
        sum += x[i], and &= x[i], or |= x[i], xor ^= x[i];
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
        if ((int32_t)x[i] < least) least = (int32_t)x[i];
    }
    const struct {
        const char *name;
        u32 want;
    } rows[] = {{"add.s32", sum}, {"add.u32", sum}, {"and.b32", and},  {"or.b32", or },
                {"xor.b32", xor}, {"min.u32", low}, {"max.u32", high}, {"min.s32", (u32)least}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        char text[256];
        snprintf(text, sizeof text,
                 "sub.u32 %%r4, %%r2, 4; setp.lt.u32 %%p1, %%r4, 16; @!%%p1 bra OUT; redux.sync.%s %%r9, "
                 "%%r3, 0x000ffff0; OUT:",
                 rows[r].name);
        run_threads("", text, x, y, 32);
        for (u32 lane = 0; lane < 32; lane++)
            assert_int_equal(y[lane], lane >= 4 && lane < 20 ? rows[r].want : 0);
    }
    float values[32], most = 0, nearest = 1e9f;
    for (int i = 0; i < 32; i++) {
        values[i] = (float)((i * 37 % 32) - 20);
        if (values[i] > most) most = values[i];
        if ((values[i] < 0 ? -values[i] : values[i]) < nearest)
            nearest = values[i] < 0 ? -values[i] : values[i];
    }
    memcpy(x, values, sizeof x);
    run_threads("", "mov.b32 %f2, %r3; redux.sync.max.f32 %f1, %f2, 0xffffffff; mov.b32 %r9, %f1;", x, y, 32);
    float got;
    memcpy(&got, &y[7], 4);
    assert_true(got == most);
    run_threads("", "mov.b32 %f2, %r3; redux.sync.min.abs.f32 %f1, %f2, 0xffffffff; mov.b32 %r9, %f1;", x, y,
                32);
    memcpy(&got, &y[0], 4);
    assert_true(got == nearest);
}

static void barriers(void **state) {
    (void)state;
    u32 x[160], y[160];
    for (u32 i = 0; i < 160; i++) x[i] = i % 3 == 0;
    run_threads("", "setp.ne.u32 %p1, %r3, 0; bar.red.popc.u32 %r9, 0, %p1;", x, y, 160);
    for (u32 i = 0; i < 160; i++) assert_int_equal(y[i], 54);
    run_threads(
        "", "setp.ne.u32 %p1, %r3, 0; barrier.cta.red.or.aligned.pred %p2, 1, !%p1; selp.b32 %r9, 1, 0, %p2;",
        x, y, 160);
    assert_int_equal(y[100], 1);
    run_threads("", "setp.ne.u32 %p1, %r3, 0; bar.red.and.pred %p2, 2, 160, %p1; selp.b32 %r9, 1, 0, %p2;", x,
                y, 160);
    assert_int_equal(y[0], 0);
    /* A block whose last warp is not full. */
    run_threads("", "setp.lt.u32 %p1, %r1, 1000; bar.red.popc.u32 %r9, 0, %p1;", x, y, 50);
    assert_int_equal(y[49], 50);
    /* Lanes of a warp that come to a barrier one by one, which only barrier (not bar) allows. */
    run_threads("",
                "setp.lt.u32 %p1, %r2, 7; @%p1 bra FEW; barrier.sync 3; mov.u32 %r9, 1; bra OUT; FEW: "
                "barrier.sync 3; mov.u32 %r9, 2; OUT:",
                x, y, 64);
    for (u32 i = 0; i < 64; i++) assert_int_equal(y[i], i % 32 < 7 ? 2 : 1);
    /* One warp hands on what another waits for, five times over two barriers. */
    run_threads("",
                ".shared .u32 place; mov.u32 %r5, place; mov.u32 %r6, 0; shr.u32 %r7, %r1, 5; setp.ne.u32 "
                "%p1, %r7, 0; setp.eq.u32 %p2, %r2, 0;\n"
                "@%p1 bra TAKE;\nGIVE: add.u32 %r6, %r6, 1; @%p2 st.shared.u32 [%r5], %r6; bar.arrive 1, 64; "
                "bar.sync 2, 64; setp.lt.u32 %p3, %r6, 5; @%p3 bra GIVE; bra OUT;\n"
                "TAKE: bar.sync 1, 64; ld.shared.u32 %r8, [%r5]; mad.lo.u32 %r9, %r9, 10, %r8; bar.arrive 2, "
                "64; add.u32 %r6, %r6, 1; setp.lt.u32 %p3, %r6, 5; @%p3 bra TAKE;\nOUT:",
                x, y, 64);
    for (u32 i = 32; i < 64; i++) assert_int_equal(y[i], 12345);
}

/* Lanes part and meet: uneven loops, jumps through a table, __syncwarp at different places, a lock. */
static void divergence(void **state) {
    (void)state;
    u32 x[32], y[32];
    for (u32 i = 0; i < 32; i++) x[i] = i * 7 % 13;
    run_threads("",
                "mov.u32 %r4, 0; LOOP: setp.ge.u32 %p1, %r4, %r3; @%p1 bra DONE; add.u32 %r4, %r4, 1; "
                "mad.lo.u32 %r9, %r4, %r4, %r9; bra LOOP;\n"
                "DONE: activemask.b32 %r5; setp.ne.u32 %p2, %r5, 0xffffffff; @%p2 mov.u32 %r9, 0;",
                x, y, 32);
    for (u32 i = 0; i < 32; i++) assert_int_equal(y[i], x[i] * (x[i] + 1) * (2 * x[i] + 1) / 6);
    run_threads("",
                "rem.u32 %r4, %r2, 3; table: .branchtargets A, B, C; brx.idx %r4, table;\nA: mov.u32 %r9, "
                "10; bra OUT;\nB: mov.u32 %r9, 20; bra OUT;\n"
                "C: mov.u32 %r9, 30;\nOUT: activemask.b32 %r5; setp.eq.u32 %p1, %r5, 0xffffffff; @%p1 "
                "add.u32 %r9, %r9, 1;",
                x, y, 32);
    for (u32 i = 0; i < 32; i++) assert_int_equal(y[i], 11 + 10 * (i % 3));
    run_threads("",
                ".shared .u32 m[32]; shl.b32 %r4, %r2, 2; add.u32 %r4, %r4, m; st.shared.u32 [%r4], %r2; "
                "setp.lt.u32 %p1, %r2, 16; @%p1 bra LOW;\n"
                "bar.warp.sync -1; add.u32 %r4, %r4, -64; bra OUT; LOW: bar.warp.sync -1; add.u32 %r4, %r4, "
                "64; OUT: ld.shared.u32 %r9, [%r4];",
                x, y, 32);
    for (u32 i = 0; i < 32; i++) assert_int_equal(y[i], i ^ 16);
    /* Each lane takes a lock in turn, adds to a sum and gives it back: needs progress of the lane that
     * holds it. */
    run_threads(".global .u32 lock; .global .u32 sum;",
                "mov.u64 %d4, lock; mov.u64 %d5, sum;\nAGAIN: atom.global.cas.b32 %r4, [%d4], 0, 1; "
                "setp.ne.u32 %p1, %r4, 0; @%p1 bra AGAIN;\n"
                "ld.volatile.global.u32 %r5, [%d5]; add.u32 %r5, %r5, %r2; st.volatile.global.u32 [%d5], "
                "%r5; atom.global.exch.b32 %r6, [%d4], 0; mov.u32 %r9, 1;",
                x, y, 32);
    for (u32 i = 0; i < 32; i++) assert_int_equal(y[i], 1);
    /* One lane waits for another one's flag, which lies behind it in the text. */
    run_threads(".global .u32 flag;",
                "mov.u64 %d4, flag; setp.eq.u32 %p1, %r2, 5; @%p1 bra RAISE;\nSPIN: ld.volatile.global.u32 "
                "%r4, [%d4]; setp.eq.u32 %p2, %r4, 0; @%p2 bra SPIN; bra OUT;\n"
                "RAISE: mov.u32 %r4, 7; st.volatile.global.u32 [%d4], %r4; OUT: mov.u32 %r9, %r4;",
                x, y, 32);
    for (u32 i = 0; i < 32; i++) assert_int_equal(y[i], 7);
}

/* Calls with parameters in memory and in registers, from diverged lanes, within calls, recursive. */
static void calls(void **state) {
    (void)state;
    static const char functions[] =
        ".func (.param .b32 result) power(.param .b32 base, .param .b32 exponent)\n{\n.reg .b32 %r<6>; .reg "
        ".pred %p;\n"
        "ld.param.u32 %r1, [base]; ld.param.u32 %r2, [exponent]; setp.ne.u32 %p, %r2, 0; @%p bra MORE; "
        "st.param.b32 [result], 1; ret;\nMORE: sub.u32 %r3, %r2, 1;\n"
        "{ .param .b32 a; st.param.b32 [a], %r1; .param .b32 b; st.param.b32 [b], %r3; .param .b32 r; "
        "call.uni (r), power, (a, b); ld.param.b32 %r4, [r]; }\n"
        "mul.lo.u32 %r5, %r4, %r1; st.param.b32 [result], %r5; ret;\n}\n"
        ".func (.reg .b32 %sum) add_pair(.param .align 8 .b8 pair[8], .reg .b32 %more)\n{\n.reg .b32 %r<4>;\n"
        "ld.param.v2.u32 {%r1, %r2}, [pair]; add.u32 %r3, %r1, %r2; add.u32 %sum, %r3, %more;\n}\n"
        ".func spread(.param .b64 place)\n{\n.local .align 8 .b8 keep[32]; .reg .b64 %d<4>; .reg .b32 "
        "%r<4>;\nld.param.u64 %d1, [place]; mov.u64 %d2, keep;\n"
        "ld.u32 %r1, [%d1]; add.u32 %r3, %r1, 1000; st.local.u32 [%d2+4], %r3; ld.u32 %r1, [%d1];\n"
        "{ .param .b32 a; st.param.b32 [a], %r1; .param .b32 b; st.param.b32 [b], 2; .param .b32 r; call "
        "(r), power, (a, b); ld.param.b32 %r2, [r]; }\n"
        "ld.local.u32 %r3, [%d2+4]; sub.u32 %r3, %r3, 1000; add.u32 %r2, %r2, %r3; st.u32 [%d1], %r2; "
        "ret;\n}\n";
    u32 x[32], y[32];
    for (u32 i = 0; i < 32; i++) x[i] = i % 5;
    run_threads(functions,
                "setp.gt.u32 %p1, %r3, 2; @%p1 bra OTHER;\n{ .param .b32 a; st.param.b32 [a], %r2; .param "
                ".b32 b; st.param.b32 [b], %r3; .param .b32 r;\n"
                "call.uni (r), power, (a, b); ld.param.b32 %r9, [r]; }\nbra OUT;\n"
                "OTHER: { .param .align 8 .b8 v[8]; st.param.v2.b32 [v], {%r2, %r3}; call (%r9), add_pair, "
                "(v, %r1); }\nOUT:",
                x, y, 32);
    for (u32 i = 0; i < 32; i++) {
        u32 power = 1;
        for (u32 k = 0; k < x[i]; k++) power *= i;
        assert_int_equal(y[i], x[i] > 2 ? i + x[i] + i : power);
    }
    run_threads(functions,
                ".local .align 4 .b8 mine[8]; mov.u64 %d4, mine; cvta.local.u64 %d5, %d4; st.local.u32 "
                "[%d4+4], %r2; add.u64 %d5, %d5, 4;\n"
                "{ .param .b64 a; st.param.b64 [a], %d5; call spread, (a); }\nld.local.u32 %r9, [%d4+4];",
                x, y, 32);
    for (u32 i = 0; i < 32; i++) assert_int_equal(y[i], i * i + i);
}

/* %tid and its like in three dimensions. */
static void special_registers(void **state) {
    (void)state;
    ptx_fixture f;
    ptx_fixture_open(
        &f,
        ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 y)\n{\n.reg .b32 "
        "%r<24>; .reg .b64 %d<4>; .reg .pred %p;\n"
        "mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z; mov.u32 %r4, %ntid.x; mov.u32 %r5, "
        "%ntid.y; mov.u32 %r6, %ctaid.x; mov.u32 %r7, %ctaid.y; mov.u32 %r8, %nctaid.x;\n"
        "mov.u32 %r9, %laneid; mov.u32 %r10, %warpid; mov.u32 %r11, %lanemask_lt; mov.u32 %r12, %clock; "
        "mov.u64 %d3, %clock64; mov.u32 %r20, %ntid.z;\n"
        "mad.lo.u32 %r13, %r3, %r5, %r2; mad.lo.u32 %r13, %r13, %r4, %r1; mad.lo.u32 %r14, %r10, 32, %r9; "
        "popc.b32 %r15, %r11;\n"
        "setp.eq.and.u32 %p, %r13, %r14, 1; sub.u32 %r16, %r15, %r9; selp.b32 %r16, %r16, 1, %p;\n"
        "mad.lo.u32 %r17, %r7, %r8, %r6; mul.lo.u32 %r18, %r4, %r5; mul.lo.u32 %r18, %r18, %r20; mad.lo.u32 "
        "%r17, %r17, %r18, %r13; ld.param.u64 %d1, [y]; mul.wide.u32 %d2, %r17, 4; add.u64 %d1, %d1, %d2;\n"
        "st.global.u32 [%d1], %r16;\nret;\n}\n");
    enum { N = 3 * 2 * 5 * 4 * 3 };
    u32 *y = ptx_memory_alloc(f.machine, 4 * N, "y");
    void *const arguments[] = {&y};
    ptx_launch launch = {
        .grid = {3, 2, 1}, .block = {5, 4, 3}, .arguments = arguments, .checks = PTX_CHECK_ALL, .seed = 3};
    assert_int_equal(ptx_kernel_launch(f.machine, ptx_module_kernel_at(f.module, 0), &launch), PTX_OK);
    for (u32 i = 0; i < N; i++) assert_int_equal(y[i], 0);
    ptx_fixture_close(&f);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(shuffles),         cmocka_unit_test(votes_and_matches), cmocka_unit_test(reductions),
        cmocka_unit_test(barriers),         cmocka_unit_test(divergence),        cmocka_unit_test(calls),
        cmocka_unit_test(special_registers)};
    return kvant_run_tests(tests, argc, argv);
}
