/* How fast the interpreter is: warp instructions per second of kernels made of one kind of instruction, and
 * of the mixed kernel of a .ptx file if one is named (`ptx_speed FILE KERNEL BLOCKS`: all parameters point
 * to 16 MB, integers are 0). Not a test. */
#include <ptx.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* other work on the machine does not count */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double rate(ptx_machine *machine, const ptx_kernel *kernel, uint32_t blocks, void *const *arguments,
                   uint32_t checks) {
    double best = 0;
    for (int repeat = 0; repeat < 3; repeat++) {
        ptx_launch launch = {.grid = {blocks, 1, 1},
                             .block = {128, 1, 1},
                             .arguments = arguments,
                             .checks = checks,
                             .dynamic_shared = 32768};
        double start = now();
        int status = ptx_kernel_launch(machine, kernel, &launch);
        double seconds = now() - start;
        if (status == PTX_REFUSED) {
            fprintf(stderr, "%s\n", ptx_machine_message(machine));
            exit(2);
        }
        if (status != PTX_OK && repeat == 0) fprintf(stderr, "%s", ptx_machine_report(machine));
        double here = (double)ptx_machine_counters(machine)->warp_instructions / seconds;
        if (here > best) best = here;
    }
    return best;
}

static void measure(const char *name, const char *body) {
    static char text[16384];
    snprintf(text, sizeof text,
             ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 x)\n{\n"
             ".reg .pred %%p<4>; .reg .b32 %%r<16>; .reg .b64 %%d<8>; .reg .f32 %%f<16>; .reg .b16 %%h<8>;\n"
             ".shared .align 16 .b8 s[2048];\n"
             "ld.param.u64 %%d1, [x]; mov.u32 %%r1, %%tid.x; mul.wide.u32 %%d2, %%r1, 16; add.u64 %%d1, "
             "%%d1, %%d2;\n"
             "mov.u32 %%r2, s; shl.b32 %%r3, %%r1, 4; add.u32 %%r2, %%r2, %%r3; mov.f32 %%f1, 0f3F800000; "
             "mov.f32 %%f2, 0f3F000000;\n"
             "mov.f32 %%f3, 0f3F800000; mov.f32 %%f4, 0f3F000000; mov.u32 %%r4, 0x3c003c00; mov.u32 %%r5, "
             "0x3c003c00; mov.u32 %%r6, 0x3c003c00; mov.u32 %%r7, 7;\n"
             "st.shared.v4.f32 [%%r2], {%%f1, %%f2, %%f3, %%f4}; bar.sync 0; mov.u32 %%r0, 0;\nLOOP:\n");
    for (int i = 0; i < 16; i++) strcat(strcat(text, body), "\n");
    strcat(text, "add.u32 %r0, %r0, 1; setp.lt.u32 %p0, %r0, 500; @%p0 bra LOOP;\nret;\n}\n");
    ptx_machine *machine = ptx_machine_create();
    ptx_module *module = ptx_module_load(machine, name, text, strlen(text));
    if (!module) {
        fprintf(stderr, "%s\n", ptx_machine_message(machine));
        exit(2);
    }
    void *x = ptx_memory_alloc(machine, 1 << 16, "x");
    void *const arguments[] = {&x};
    const ptx_kernel *kernel = ptx_module_kernel(module, "k");
    double off = rate(machine, kernel, 4, arguments, PTX_CHECK_NONE),
           counted = rate(machine, kernel, 4, arguments, PTX_CHECK_COUNT),
           on = rate(machine, kernel, 4, arguments, PTX_CHECK_ALL);
    printf("%-28s %8.2f %8.2f %8.2f\n", name, off / 1e6, counted / 1e6, on / 1e6);
    ptx_machine_destroy(machine);
}

static int measure_file(const char *path, const char *name, uint32_t blocks) {
    FILE *file = fopen(path, "rb");
    if (!file) return 2;
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *text = malloc((size_t)size);
    if (!text || fread(text, 1, (size_t)size, file) != (size_t)size) return 2;
    fclose(file);
    ptx_machine *machine = ptx_machine_create();
    double start = now();
    ptx_module *module = ptx_module_load(machine, path, text, (size_t)size);
    if (!module) {
        fprintf(stderr, "%s\n", ptx_machine_message(machine));
        return 2;
    }
    printf("loaded in %.2f ms\n", (now() - start) * 1e3);
    const ptx_kernel *kernel = ptx_module_kernel(module, name);
    if (!kernel) return 2;
    void *memory[32], *arguments[32];
    for (uint32_t i = 0; i < ptx_kernel_parameter_count(kernel) && i < 32; i++) {
        memory[i] = NULL;
        if (ptx_kernel_parameter_size(kernel, i) == 8) {
            memory[i] = ptx_memory_alloc(machine, 16 << 20, "memory");
            memset(memory[i], 1, 16 << 20);
        } else {
            uint32_t most = 1u << 20;
            memcpy(&memory[i], &most, sizeof most);
        }
        arguments[i] = &memory[i];
    }
    static const uint32_t checks[] = {PTX_CHECK_NONE, PTX_CHECK_COUNT, PTX_CHECK_ALL};
    for (int i = 0; i < 3; i++) printf("%8.2f", rate(machine, kernel, blocks, arguments, checks[i]) / 1e6);
    printf("\n%s", ptx_machine_counter_text(machine));
    ptx_machine_destroy(machine);
    free(text);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 4) return measure_file(argv[1], argv[2], (uint32_t)atoi(argv[3]));
    printf("million warp instructions/s: checks off, counters, all checks\n");
    measure("add.s32", "add.s32 %r4, %r4, %r5;");
    measure("fma.rn.f32", "fma.rn.f32 %f1, %f1, %f2, %f2;");
    measure("fma.rn.ftz.f32", "fma.rn.ftz.f32 %f1, %f1, %f2, %f2;");
    measure("add.rz.f32", "add.rz.f32 %f1, %f1, %f2;");
    measure("fma.rn.f16x2", "fma.rn.f16x2 %r4, %r4, %r5, %r6;");
    measure("ex2.approx.f32", "ex2.approx.f32 %f1, %f2;");
    measure("lop3.b32", "lop3.b32 %r4, %r4, %r5, %r6, 0x96;");
    measure("setp + selp", "setp.lt.s32 %p1, %r4, %r5; selp.b32 %r6, %r4, %r5, %p1;");
    measure("cvt.rn.f16.f32", "cvt.rn.f16.f32 %h1, %f1;");
    measure("cvt e4m3x2", "cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;");
    measure("shfl.sync", "shfl.sync.bfly.b32 %r4, %r5, 1, 31, -1;");
    measure("ld.global.v4", "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%d1];");
    measure("ld.global.u32", "ld.global.u32 %r4, [%d1];");
    measure("ld.shared.v4", "ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r2];");
    measure("st.shared.f32", "st.shared.f32 [%r2], %f1;");
    measure("ldmatrix.x4", "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r8}, [%r2];");
    measure("mma f16", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, "
                       "{%r4,%r5,%r6,%r7}, {%r4,%r5}, {%f1,%f2,%f3,%f4};");
    measure("mma s8", "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%r8,%r9,%r10,%r11}, "
                      "{%r4,%r5,%r6,%r7}, {%r4,%r5}, {%r4,%r5,%r6,%r7};");
    measure("bar.sync", "bar.sync 0;");
    return 0;
}
