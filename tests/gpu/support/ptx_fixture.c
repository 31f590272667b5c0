/* See ptx_fixture.h. */
#include "support/ptx_fixture.h"

#include <stdio.h>
#include <stdlib.h>

void ptx_fixture_open(ptx_fixture *fixture, const char *text) {
    fixture->machine = ptx_machine_create();
    assert_non_null(fixture->machine);
    fixture->module = ptx_module_load(fixture->machine, "test.ptx", text, strlen(text));
    if (!fixture->module) fail_msg("%s", ptx_machine_message(fixture->machine));
}

void ptx_fixture_close(ptx_fixture *fixture) {
    ptx_machine_destroy(fixture->machine);
}

int ptx_fixture_launch(ptx_fixture *fixture, uint32_t grid, uint32_t block, size_t dynamic_shared,
                       void *const *arguments) {
    ptx_launch launch = {.grid = {grid, 1, 1},
                         .block = {block, 1, 1},
                         .dynamic_shared = dynamic_shared,
                         .arguments = arguments,
                         .checks = PTX_CHECK_ALL,
                         .instruction_limit = 100000000};
    int status = ptx_kernel_launch(fixture->machine, ptx_module_kernel_at(fixture->module, 0), &launch);
    if (status == PTX_REFUSED) fail_msg("%s", ptx_machine_message(fixture->machine));
    return status;
}

void ptx_fixture_run(ptx_fixture *fixture, uint32_t grid, uint32_t block, size_t dynamic_shared,
                     void *const *arguments) {
    if (ptx_fixture_launch(fixture, grid, block, dynamic_shared, arguments) != PTX_OK)
        fail_msg("%s", ptx_machine_report(fixture->machine));
}

/* ---- One instruction ----------------------------------------------------------------------------------- */

static const char head[] =
    ".version 9.0\n.target sm_120a\n.address_size 64\n"
    ".visible .entry one(.param .u64 cases, .param .u32 count)\n{\n"
    ".reg .pred %p<4>; .reg .pred %P, %Q, %over; .reg .b8 %b<4>; .reg .b8 %B;\n"
    ".reg .b16 %h<4>; .reg .b16 %H; .reg .b32 %r<4>; .reg .b32 %R, %t, %n;\n"
    ".reg .b64 %d<4>; .reg .b64 %D, %at, %o;\n"
    "mov.u32 %t, %ctaid.x; shl.b32 %t, %t, 7; mov.u32 %n, %tid.x; add.u32 %t, %t, %n;\n"
    "ld.param.u32 %n, [count]; setp.ge.u32 %over, %t, %n; @%over ret;\n"
    "ld.param.u64 %at, [cases]; mad.wide.u32 %at, %t, 48, %at;\n"
    "mov.b64 %D, 0; mov.b32 %R, 0; mov.b16 %H, 0; cvt.u8.u32 %B, 0;\n"
    "setp.ne.u32 %P, 0, 0; setp.ne.u32 %Q, 0, 0;\n";

static void append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t size, const char *format, ...) {
    size_t at = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + at, size - at, format, arguments);
    va_end(arguments);
}

void ptx_run_instruction(const char *instruction, char kind, ptx_case *cases, uint32_t count) {
    char text[8192];
    snprintf(text, sizeof text, "%s", head);
    for (int j = 0; j < 4; j++)
        append(text, sizeof text,
               "ld.global.u64 %%d%d, [%%at+%d]; cvt.u32.u64 %%r%d, %%d%d; cvt.u16.u64 %%h%d, %%d%d; "
               "cvt.u8.u64 %%b%d, %%d%d;\n"
               "and.b32 %%n, %%r%d, 1; setp.ne.u32 %%p%d, %%n, 0;\n",
               j, 8 * j, j, j, j, j, j, j, j, j);
    append(text, sizeof text, "%s\n", instruction);
    switch (kind) {
    case 'd':
        append(text, sizeof text, "mov.b64 %%o, %%D;\n");
        break;
    case 'r':
        append(text, sizeof text, "cvt.u64.u32 %%o, %%R;\n");
        break;
    case 'h':
        append(text, sizeof text, "cvt.u64.u16 %%o, %%H;\n");
        break;
    case 'b':
        append(text, sizeof text, "cvt.u64.u8 %%o, %%B;\n");
        break;
    default:
        append(text, sizeof text, "selp.u64 %%o, 1, 0, %%P;\n");
        break;
    }
    append(text, sizeof text,
           "st.global.u64 [%%at+32], %%o; selp.u64 %%o, 1, 0, %%Q; st.global.u64 [%%at+40], %%o;\nret;\n}\n");
    ptx_fixture fixture;
    ptx_fixture_open(&fixture, text);
    assert_true(ptx_memory_add(fixture.machine, cases, count * sizeof *cases, "cases", false));
    void *const arguments[] = {&cases, &count};
    ptx_fixture_run(&fixture, (count + 127) / 128, 128, 0, arguments);
    ptx_fixture_close(&fixture);
}

/* ---- Inputs -------------------------------------------------------------------------------------------- */

static const uint64_t integer_edges[] = {0,
                                         1,
                                         2,
                                         3,
                                         7,
                                         8,
                                         15,
                                         16,
                                         17,
                                         31,
                                         32,
                                         33,
                                         63,
                                         64,
                                         65,
                                         0x7f,
                                         0x80,
                                         0xff,
                                         0x100,
                                         0x7fff,
                                         0x8000,
                                         0x8001,
                                         0xffff,
                                         0x10000,
                                         0x7fffffff,
                                         0x80000000,
                                         0x80000001,
                                         0xffffffff,
                                         0x100000000,
                                         0x7fffffffffffffff,
                                         0x8000000000000000,
                                         0x8000000000000001,
                                         0xfffffffffffffffe,
                                         0xffffffffffffffff,
                                         0x00ff00ff00ff00ff,
                                         0xaaaaaaaa55555555};
static const uint64_t f32_edges[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007fffff, 0x807fffff, 0x00800000, 0x80800000,
    0x3f800000, 0xbf800000, 0x3f7fffff, 0x3f800001, 0x3fc00000, 0x3f000000, 0x40000000, 0x4b000000,
    0x4b000001, 0x4affffff, 0x4f000000, 0xcf000000, 0x4f800000, 0x5f000000, 0x7f7fffff, 0xff7fffff,
    0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001, 0x477fefff, 0x477ff000, 0x38800000,
    0x33800000, 0x33000000, 0x33000001, 0x40200000, 0xc0200000};
static const uint64_t f64_edges[] = {0,
                                     0x8000000000000000,
                                     1,
                                     0x8000000000000001,
                                     0x000fffffffffffff,
                                     0x0010000000000000,
                                     0x3ff0000000000000,
                                     0xbff0000000000000,
                                     0x3ff0000000000001,
                                     0x3fefffffffffffff,
                                     0x4000000000000000,
                                     0x3fe0000000000000,
                                     0x3ff8000000000000,
                                     0x7fefffffffffffff,
                                     0xffefffffffffffff,
                                     0x7ff0000000000000,
                                     0xfff0000000000000,
                                     0x7ff8000000000000,
                                     0xfff8000000000001,
                                     0x41e0000000000000,
                                     0xc1e0000000200000,
                                     0x43e0000000000000,
                                     0x47efffffe0000000,
                                     0x47effffff0000000,
                                     0x36a0000000000000,
                                     0x3690000000000001,
                                     0x4004000000000000,
                                     0xc004000000000000};
static const uint64_t f16_edges[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x8400, 0x3c00,
                                     0xbc00, 0x3bff, 0x3c01, 0x3e00, 0x3800, 0x4000, 0x6400, 0x6401, 0x63ff,
                                     0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x1400, 0x0200};
static const uint64_t bf16_edges[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x807f, 0x0080, 0x8080, 0x3f80,
                                      0xbf80, 0x3f7f, 0x3f81, 0x3fc0, 0x3f00, 0x4000, 0x4300, 0x4380, 0x7f7f,
                                      0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0x2000, 0x1f81};

#define TABLE(edges) edges, (uint32_t)(sizeof(edges) / sizeof(edges)[0])
static const struct {
    const uint64_t *edges;
    uint32_t count, bits;
} tables[] = {{TABLE(integer_edges), 64},
              {TABLE(f32_edges), 32},
              {TABLE(f64_edges), 64},
              {TABLE(f16_edges), 16},
              {TABLE(bf16_edges), 16}};

static uint64_t draw(ptx_inputs inputs, uint64_t *seed) {
    uint64_t value = kvant_test_random(seed);
    if (kvant_test_random(seed) % 4 == 0)
        value = tables[inputs].edges[value % tables[inputs].count];
    else if (inputs == PTX_INPUT_INTEGERS)
        value >>= kvant_test_random(seed) % 64;
    else if (inputs == PTX_INPUT_F32 && kvant_test_random(seed) % 2) /* near 1, few digits: ties */
        value = (value & 0x80fff000u) | (uint32_t)(110 + kvant_test_random(seed) % 35) << 23;
    /* Pairs of 16 bits find something in their upper half too. */
    if (tables[inputs].bits == 16)
        value = (value & 0xffffu) |
                (uint64_t)tables[inputs].edges[kvant_test_random(seed) % tables[inputs].count] << 16;
    if (tables[inputs].bits == 16 && kvant_test_random(seed) % 2)
        value = (value & 0xffffu) | (kvant_test_random(seed) & 0xffffu) << 16;
    return value;
}

void ptx_check_rows(const ptx_row_test *rows, uint32_t count, ptx_inputs inputs) {
    uint32_t edges = tables[inputs].count, pairs = edges * edges, total = pairs + 3000;
    ptx_case *cases = calloc(total, sizeof *cases), *given = calloc(total, sizeof *given);
    assert_non_null(cases);
    assert_non_null(given);
    for (uint32_t r = 0; r < count; r++) {
        uint64_t seed = 11 + r;
        for (uint32_t i = 0; i < total; i++) {
            for (uint32_t j = 0; j < 4; j++) cases[i].in[j] = draw(inputs, &seed);
            if (i >= pairs) continue;
            cases[i].in[0] = tables[inputs].edges[i / edges];
            cases[i].in[1] = tables[inputs].edges[i % edges];
        }
        memcpy(given, cases, total * sizeof *cases); /* an instruction may store to its inputs */
        ptx_run_instruction(rows[r].text, rows[r].kind, cases, total);
        for (uint32_t i = 0; i < total; i++) {
            uint64_t want = rows[r].expected(given[i].in);
            if (cases[i].out[0] != want)
                fail_msg("%s\na %016llx b %016llx c %016llx d %016llx\ngives %llx, expected %llx",
                         rows[r].text, (unsigned long long)given[i].in[0], (unsigned long long)given[i].in[1],
                         (unsigned long long)given[i].in[2], (unsigned long long)given[i].in[3],
                         (unsigned long long)cases[i].out[0], (unsigned long long)want);
        }
    }
    free(cases);
    free(given);
}
