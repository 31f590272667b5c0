/* What is refused, and the message; declarations and labels in the forms that nvcc writes them. */
#include "support/ptx_fixture.h"

#include <stdio.h>

#define HEAD ".version 9.0\n.target sm_90\n.address_size 64\n"
#define BODY(text)                                                                                           \
    HEAD ".visible .entry k(.param .u64 x)\n{\n.reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<4>; .reg "    \
         ".b64 %d<4>; .reg .f32 %f<4>;\n" text "\nret;\n}\n"

static void every_refusal_names_its_reason(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {BODY("frobnicate.b32 %r0, %r1;"), "test.ptx:7: unknown instruction frobnicate.b32"},
        {BODY("add.s33 %r0, %r1, %r2;"), "unknown instruction add.s33"},
        {BODY("add.rn.s32 %r0, %r1, %r2;"), "unknown instruction add.rn.s32"},
        {BODY("ld.global.L3::far.u32 %r0, [%d0];"), "ld.global.L3::far.u32: unknown modifier .L3::far"},
        {BODY("shfl.sync.left.b32 %r0, %r1, 1, 31, -1;"), "shfl.sync.left.b32: no such shuffle"},
        {BODY("shfl.bfly.b32 %r0, %r1, 1, 31;"), "sync is missing"},
        {BODY("wgmma.fence.sync.aligned;"), "unknown instruction wgmma.fence.sync.aligned"},
        {BODY("cp.async.bulk.commit_group;"), "cp.async.bulk.commit_group"},
        {BODY("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d0,%d1}, {%d2}, {%d3}, {%d0,%d1};"),
         "this shape is not known"},
        {BODY("mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32 {%f0,%f1,%f2,%f3}, {%r0,%r1,%r2,%r3}, "
              "{%r0,%r1}, {%f0,%f1,%f2,%f3};"),
         "these types with this shape are not known"},
        {BODY("cvt.f16.f32 %h0, %f0;"), "rounding is missing"},
        {BODY("cvt.s32.f32 %r0, %f0;"), "rounding to an integer is missing"},
        {BODY("cvt.rn.e4m3x2.f32 %h0, %f0, %f1;"), "satfinite is missing"},
        {BODY("add.s32 %r0, %r1, %d0;"), "a source register has another width"},
        {BODY("add.s32 %d0, %r1, %r2;"), "the result's register has another width"},
        {BODY("add.f32 %f0, %f1, 1;"), "an integer as a float"},
        {BODY("add.s32 %r0, %r1;"), "operands are missing"},
        {BODY("add.s32 %r0, %r1, %r2, %r3;"), "too many operands"},
        {BODY("add.s32 %r0, %r1, %r9;"), "unknown register %r9"},
        {BODY("mov.u32 %r0, nowhere;"), "a source operand is no value"},
        {BODY("ld.global.u32 %r0, [nowhere];"), "unknown variable nowhere"},
        {BODY("ld.global.v2.u32 {%r0, %r1, %r2}, [%d0];"), "a vector has another number of elements"},
        {BODY("ld.global.u32 %r0, [%h0];"), "an address register has 32 or 64 bits"},
        {BODY("bra ELSEWHERE;"), "test.ptx:7: no label ELSEWHERE"},
        {BODY("L: L: add.s32 %r0, %r1, %r2;"), "a second label L"},
        {BODY("@%r0 bra L; L:"), "%r0 is no predicate"},
        {BODY("ld.param.u64 %d0, [x+4];"), "reads behind the kernel's parameters"},
        {BODY("add.s32 %r0, %r1, %r2"), "';' expected"},
        {BODY("call.uni nobody, ();"), "call of nobody, which is no function"},
        {BODY("brx.idx %r0, nothing;"), "no such table of labels"},
        {BODY(".texref t;"), "unknown directive .texref"},
        {HEAD ".visible .entry k()\n.mystery 3\n{\nret;\n}\n", "unknown directive .mystery of a function"},
        {HEAD ".visible .entry k()\n{\nret;\n", "the function does not end"},
        {HEAD ".global .align 4 .u32 g[2] = {1, 2, 3};\n", "more values than elements"},
        {HEAD ".global .align 3 .u32 g;\n", "bad .align"},
        {HEAD
         ".func other(.param .b32 a);\n.visible .entry k()\n{\n.param .b32 p; call other, (p); ret;\n}\n",
         "k calls other, which has no body"},
        {".version 9.0\n.target sm_90\n.address_size 32\n", "only 64-bit addresses"},
        {HEAD "nonsense\n", "a directive expected"},
        {HEAD ".visible .entry k()\n{ /* no end", "a comment does not end"},
        {HEAD ".visible .entry k()\n{\nret;\n}\n.visible .entry k()\n{\nret;\n}\n", "a second body of k"},
    };
    ptx_machine *machine = ptx_machine_create();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ptx_module *module = ptx_module_load(machine, "test.ptx", rows[i].text, strlen(rows[i].text));
        if (module) fail_msg("accepted, expected \"%s\":\n%s", rows[i].message, rows[i].text);
        if (!strstr(ptx_machine_message(machine), rows[i].message))
            fail_msg("\"%s\" does not contain \"%s\"", ptx_machine_message(machine), rows[i].message);
    }
    ptx_machine_destroy(machine);
}

/* Cut off anywhere, or with any byte changed, a text is refused or taken; nothing else happens. */
static void damaged_text_is_harmless(void **state) {
    (void)state;
    static const char text[] =
        HEAD ".const .align 4 .b8 c[4] = {1, 2, 3, 4};\n.func (.param .b32 r) f(.param .b32 a)\n{\n.reg .b32 "
             "%r<3>;\n"
             "ld.param.u32 %r1, [a]; add.u32 %r2, %r1, 1; st.param.b32 [r], %r2; ret;\n}\n"
             ".visible .entry k(.param .u64 x, .param .align 8 .b8 s[24])\n.maxntid 128, 1, 1\n{\n.reg .pred "
             "%p<2>; .reg .b32 %r<8>; .reg .b64 %d<4>;\n"
             ".shared .align 16 .b8 m[64];\nld.param.u64 %d1, [x]; mov.u32 %r1, %tid.x; setp.lt.s32 %p1, "
             "%r1, 5; @!%p1 bra $L1;\n"
             "{ .param .b32 p0; st.param.b32 [p0+0], %r1; .param .b32 q; call.uni (q), f, (p0); ld.param.b32 "
             "%r2, [q]; }\n"
             "lop3.b32 %r3, %r2, %r1, 0xff, 0x96; mov.b64 {%r4, %r5}, %d1; ts: .branchtargets $L1, $L2; "
             "brx.idx %r1, ts;\n"
             "$L2: mov.f32 %r4, 0f3F800000;\n$L1: ret;\n}\n.section .debug_str\n{\n$str: .b8 95\n.b8 0\n}\n";
    ptx_machine *machine = ptx_machine_create();
    uint64_t seed = 12;
    char damaged[sizeof text];
    for (size_t cut = 0; cut < sizeof text; cut++)
        ptx_module_unload(ptx_module_load(machine, "cut", text, cut));
    for (int i = 0; i < 20000; i++) {
        memcpy(damaged, text, sizeof text);
        for (uint64_t n = kvant_test_random(&seed) % 3; n < 3; n++) {
            uint64_t r = kvant_test_random(&seed);
            damaged[r % (sizeof text - 1)] =
                r >> 32 & 1 ? (char)(r >> 40) : text[(r >> 40) % (sizeof text - 1)];
        }
        ptx_module_unload(ptx_module_load(machine, "damaged", damaged, sizeof text - 1));
    }
    ptx_machine_destroy(machine);
}

static void kernels_say_what_they_need(void **state) {
    (void)state;
    ptx_fixture f;
    ptx_fixture_open(&f, HEAD
                     ".extern .shared .align 16 .b8 dynamic[];\n.shared .align 4 .b8 common[12];\n"
                     ".visible .entry first(.param .u8 a, .param .u64 b, .param .align 16 .b8 "
                     "c[40])\n.maxntid 64, 2, 1\n.minnctapersm 2\n"
                     "{\n.local .align 8 .b8 __local_depot0[24];\n.shared .align 16 .b8 mine[100];\nret;\n}\n"
                     ".weak .entry second()\n{\nret;\n}\n");
    assert_int_equal(ptx_module_kernel_count(f.module), 2);
    const ptx_kernel *first = ptx_module_kernel(f.module, "first"),
                     *second = ptx_module_kernel_at(f.module, 1);
    assert_string_equal(ptx_kernel_name(second), "second");
    assert_null(ptx_module_kernel(f.module, "third"));
    assert_int_equal(ptx_kernel_parameter_count(first), 3);
    assert_int_equal(ptx_kernel_parameter_offset(first, 1), 8);
    assert_int_equal(ptx_kernel_parameter_offset(first, 2), 16);
    assert_int_equal(ptx_kernel_parameter_size(first, 2), 40);
    assert_int_equal(ptx_kernel_shared_bytes(first), 112);
    assert_int_equal(ptx_kernel_shared_bytes(second), 12);
    assert_int_equal(ptx_kernel_local_bytes(first), 24);
    assert_int_equal(ptx_kernel_max_threads(first), 128);
    assert_int_equal(ptx_kernel_max_threads(second), 1024);
    ptx_fixture_close(&f);
}

static void launches_are_refused(void **state) {
    (void)state;
    ptx_fixture f;
    ptx_fixture_open(&f, HEAD ".visible .entry k(.param .u64 x)\n.maxntid 64, 1, 1\n{\nret;\n}\n");
    void *x = NULL, *const arguments[] = {&x};
    static const struct {
        ptx_launch launch;
        const char *message;
    } rows[] = {
        {{.grid = {0, 1, 1}, .block = {32, 1, 1}}, "a dimension is 0"},
        {{.grid = {1, 1, 1}, .block = {65, 1, 1}}, "more threads than the kernel allows"},
        {{.grid = {1, 65536, 1}, .block = {32, 1, 1}}, "the grid is too large"},
        {{.grid = {1, 1, 1}, .block = {32, 1, 1}, .dynamic_shared = 1 << 20}, "too much shared memory"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ptx_launch launch = rows[i].launch;
        launch.arguments = arguments;
        assert_int_equal(ptx_kernel_launch(f.machine, ptx_module_kernel(f.module, "k"), &launch),
                         PTX_REFUSED);
        kvant_assert_contains(ptx_machine_message(f.machine), rows[i].message);
    }
    ptx_launch launch = {.grid = {1, 1, 1}, .block = {32, 1, 1}};
    assert_int_equal(ptx_kernel_launch(f.machine, ptx_module_kernel(f.module, "k"), &launch), PTX_REFUSED);
    kvant_assert_contains(ptx_machine_message(f.machine), "arguments are missing");
    assert_int_equal(ptx_kernel_launch(f.machine, NULL, &launch), PTX_REFUSED);
    ptx_fixture_close(&f);
}

/* Initialisers of module variables: numbers, floats by value and by bits, nested rows, addresses. */
static void variables_have_their_values(void **state) {
    (void)state;
    ptx_fixture f;
    ptx_fixture_open(
        &f,
        HEAD ".global .align 4 .u32 rows[2][2] = {{1, 2}, {3, -1}};\n.const .f32 floats[3] = {1.5, "
             "0fC0000000, -3.0};\n"
             ".global .align 8 .u64 address = generic(rows)+4;\n.global .align 1 .b8 text[6] = {104, 105};\n"
             ".global .f64 wide = 0d3FF8000000000000;\n.visible .entry k()\n{\nret;\n}\n");
    size_t size;
    const uint32_t *rows = ptx_module_variable(f.module, "rows", &size);
    assert_int_equal(size, 16);
    assert_int_equal(rows[0], 1);
    assert_int_equal(rows[2], 3);
    assert_int_equal(rows[3], 0xffffffff);
    const float *floats = ptx_module_variable(f.module, "floats", NULL);
    assert_true(floats[0] == 1.5f && floats[1] == -2.0f && floats[2] == -3.0f);
    const uint64_t *address = ptx_module_variable(f.module, "address", NULL);
    assert_int_equal(*address, (uint64_t)(uintptr_t)(rows + 1));
    assert_string_equal(ptx_module_variable(f.module, "text", NULL), "hi");
    const double *wide = ptx_module_variable(f.module, "wide", NULL);
    assert_true(*wide == 1.5);
    assert_null(ptx_module_variable(f.module, "k", NULL));
    ptx_fixture_close(&f);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_refusal_names_its_reason), cmocka_unit_test(damaged_text_is_harmless),
        cmocka_unit_test(kernels_say_what_they_need), cmocka_unit_test(launches_are_refused),
        cmocka_unit_test(variables_have_their_values)};
    return kvant_run_tests(tests, argc, argv);
}
