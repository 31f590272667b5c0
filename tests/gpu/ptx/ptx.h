/* Runs PTX, the text that nvcc emits, on the CPU, and looks at what a GPU does not show: accesses outside of
 * allocations, reads of shared memory that nobody wrote, races, deadlocks. It also counts what a kernel
 * costs: memory sectors, shared-memory wavefronts, warp instructions.
 *
 *     ptx_machine *machine = ptx_machine_create();
 *     ptx_module *module = ptx_module_load(machine, "copy.ptx", text, strlen(text));
 *     if (!module) fail(ptx_machine_message(machine));
 *     float *x = ptx_memory_alloc(machine, 1024 * sizeof *x, "x");
 *     uint32_t n = 1024;
 *     void *arguments[] = {&x, &n};
 *     ptx_launch launch = {.grid = {8, 1, 1}, .block = {128, 1, 1}, .arguments = arguments,
 *                          .checks = PTX_CHECK_ALL};
 *     if (ptx_kernel_launch(machine, ptx_module_kernel(module, "copy"), &launch) != PTX_OK)
 *         puts(ptx_machine_report(machine));
 *
 * A global address is a host address: x above is both. Only ranges that were allocated or registered here
 * exist for a kernel. Warps run 32 lanes in lock step, each lane with a program counter of its own: lanes at
 * the same place run together, the ones furthest behind first, so that they meet again. Warps take turns;
 * blocks run one after another.
 *
 * What it cannot see: ptxas and what it makes of the text, memory ordering between blocks, the rounding of
 * tensor cores (sums are exact here and rounded once) and of approximate functions, time.
 *
 * One thread at a time may use a machine and its modules; machines are independent of each other.
 */
#ifndef KVANT_TEST_PTX_H
#define KVANT_TEST_PTX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ptx_machine ptx_machine;
typedef struct ptx_module ptx_module;
typedef struct ptx_kernel ptx_kernel;

enum {
    PTX_OK = 0,
    PTX_DEFECTS = 1, /* it ran, as far as it could: see ptx_machine_report() */
    PTX_REFUSED = 2  /* it did not run: see ptx_machine_message() */
};

ptx_machine *ptx_machine_create(void);
/* Also unloads its modules and frees its memory. */
void ptx_machine_destroy(ptx_machine *machine);
/* Why the last load or launch was refused; "" if it was not. */
const char *ptx_machine_message(const ptx_machine *machine);

/* ---- Modules ------------------------------------------------------------------------------------------- */

/* The text is copied. `name` stands for it in messages. NULL and a message "name:line: ..." when the text
 * holds anything that this interpreter does not know: no instruction is skipped. */
ptx_module *ptx_module_load(ptx_machine *machine, const char *name, const char *text, size_t size);
void ptx_module_unload(ptx_module *module);

/* NULL if there is none of this name. */
const ptx_kernel *ptx_module_kernel(const ptx_module *module, const char *name);
uint32_t ptx_module_kernel_count(const ptx_module *module);
const ptx_kernel *ptx_module_kernel_at(const ptx_module *module, uint32_t index);
/* A .global or .const variable. */
void *ptx_module_variable(const ptx_module *module, const char *name, size_t *size);

const char *ptx_kernel_name(const ptx_kernel *kernel);
size_t ptx_kernel_shared_bytes(const ptx_kernel *kernel);  /* static */
size_t ptx_kernel_local_bytes(const ptx_kernel *kernel);   /* of one thread, without functions called */
uint32_t ptx_kernel_max_threads(const ptx_kernel *kernel); /* .maxntid or .reqntid, else 1024 */
uint32_t ptx_kernel_parameter_count(const ptx_kernel *kernel);
size_t ptx_kernel_parameter_size(const ptx_kernel *kernel, uint32_t index);
size_t ptx_kernel_parameter_offset(const ptx_kernel *kernel, uint32_t index);

/* ---- Global memory ------------------------------------------------------------------------------------- */

/* 256-byte aligned, filled with bytes 0xCB. `name` (copied) stands for it in reports. */
void *ptx_memory_alloc(ptx_machine *machine, size_t size, const char *name);
void ptx_memory_free(ptx_machine *machine, void *memory);

/* Memory of the caller, which kernels may read and (unless read_only) write until it is removed. False if it
 * overlaps with a range that is registered. */
bool ptx_memory_add(ptx_machine *machine, void *memory, size_t size, const char *name, bool read_only);
void ptx_memory_remove(ptx_machine *machine, const void *memory);
/* Whether [address, address + size) lies within one range. */
bool ptx_memory_contains(const ptx_machine *machine, const void *address, size_t size);

/* ---- Launches ------------------------------------------------------------------------------------------ */

/* Bounds, alignment, deadlock and misuse of *.sync instructions are always looked at. */
enum {
    PTX_CHECK_SHARED_INIT =
        1 << 0, /* shared bytes that no thread of the block wrote, or still being copied */
    PTX_CHECK_SHARED_RACE = 1 << 1,
    PTX_CHECK_GLOBAL_RACE = 1 << 2, /* between threads of a block; and of blocks, unless the writer fences */
    PTX_CHECK_REGISTERS = 1 << 3,   /* registers read before they were written */
    PTX_CHECK_COUNT = 1 << 4,       /* memory counters; instructions are always counted */
    PTX_CHECK_NONE = 0,
    PTX_CHECK_ALL = 31
};

typedef struct ptx_launch {
    uint32_t grid[3];
    uint32_t block[3];
    size_t dynamic_shared;
    void *const *arguments; /* one pointer per parameter, as for cuLaunchKernel */
    uint32_t checks;
    uint32_t seed;              /* 0: warps and blocks in order; others permute both */
    uint64_t instruction_limit; /* warp instructions; 0 = 2^40. A kernel that never ends is a defect */
    uint32_t defect_limit;      /* stops after so many; 0 = 16 */
} ptx_launch;

int ptx_kernel_launch(ptx_machine *machine, const ptx_kernel *kernel, const ptx_launch *launch);

typedef enum ptx_defect_kind {
    PTX_DEFECT_GLOBAL_BOUNDS,
    PTX_DEFECT_SHARED_BOUNDS,
    PTX_DEFECT_LOCAL_BOUNDS,
    PTX_DEFECT_PARAM_BOUNDS,
    PTX_DEFECT_READ_ONLY, /* a store to .const or to a range registered as read-only */
    PTX_DEFECT_MISALIGNED,
    PTX_DEFECT_UNINITIALISED_SHARED,
    PTX_DEFECT_UNINITIALISED_REGISTER,
    PTX_DEFECT_ASYNC_NOT_WAITED, /* shared bytes whose cp.async has not been waited for */
    PTX_DEFECT_SHARED_RACE,
    PTX_DEFECT_GLOBAL_RACE,
    PTX_DEFECT_DEADLOCK,
    PTX_DEFECT_DIVERGENT_BARRIER,
    PTX_DEFECT_EXITED_BARRIER, /* some threads wait at a barrier, others have exited */
    PTX_DEFECT_BARRIER_COUNT,  /* threads disagree about how many take part, or the number is no whole warp */
    PTX_DEFECT_MEMBER_MASK,    /* *.sync: the lane is not in its mask, or the mask names lanes that exited */
    PTX_DEFECT_SHUFFLE_SOURCE, /* shfl from a lane outside of the mask */
    PTX_DEFECT_OPERANDS,       /* values an instruction may not have: lanes disagree, sizes out of range */
    PTX_DEFECT_TRAP,
    PTX_DEFECT_ENDLESS, /* instruction_limit */
    PTX_DEFECT_KINDS
} ptx_defect_kind;

const char *ptx_defect_name(ptx_defect_kind kind);

/* The first of its kind at its line; `count` says how many threads met the same. */
typedef struct ptx_defect {
    ptx_defect_kind kind;
    uint32_t line; /* of the PTX text */
    uint32_t block[3];
    uint32_t thread[3];
    uint64_t address; /* generic address or, for shared and local memory, the offset; 0 without one */
    uint64_t count;
    char text[512]; /* one line: kernel, what happened, where, to what memory */
} ptx_defect;

/* Of the last launch. The report is one line per defect followed by the instruction's text; "" without. */
const char *ptx_machine_report(const ptx_machine *machine);
uint32_t ptx_machine_defect_count(const ptx_machine *machine);
const ptx_defect *ptx_machine_defect(const ptx_machine *machine, uint32_t index);

/* ---- Counters ------------------------------------------------------------------------------------------ */

typedef enum ptx_class {
    PTX_CLASS_INTEGER,
    PTX_CLASS_FLOAT,   /* f32, f64 */
    PTX_CLASS_HALF,    /* f16, bf16 and pairs of them */
    PTX_CLASS_SPECIAL, /* ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh, division */
    PTX_CLASS_CONVERT,
    PTX_CLASS_MOVE, /* mov, selp, cvta, parameters and constants */
    PTX_CLASS_MMA,
    PTX_CLASS_GLOBAL_LOAD,
    PTX_CLASS_GLOBAL_STORE,
    PTX_CLASS_GLOBAL_ATOMIC,
    PTX_CLASS_ASYNC_COPY, /* cp.async: counted among global loads' and shared stores' bytes too */
    PTX_CLASS_SHARED_LOAD,
    PTX_CLASS_SHARED_STORE,
    PTX_CLASS_SHARED_ATOMIC,
    PTX_CLASS_MATRIX_LOAD, /* ldmatrix, stmatrix */
    PTX_CLASS_LOCAL,
    PTX_CLASS_SHUFFLE, /* shfl, vote, match, redux, elect, activemask */
    PTX_CLASS_BARRIER,
    PTX_CLASS_BRANCH, /* bra, brx, call, ret, exit */
    PTX_CLASS_OTHER,
    PTX_CLASSES
} ptx_class;

const char *ptx_class_name(ptx_class class_);

typedef struct ptx_memory_counters {
    uint64_t instructions;  /* of a warp */
    uint64_t bytes;         /* asked for by active lanes */
    uint64_t sectors;       /* 32-byte sectors touched, counted anew in each instruction (what L1 serves) */
    uint64_t block_sectors; /* the same, each sector once per block: what an L1 that keeps all fetches */
} ptx_memory_counters;

typedef struct ptx_shared_counters {
    uint64_t instructions;
    uint64_t bytes;
    uint64_t wavefronts; /* passes of at most one word from each of the 32 banks */
    uint64_t ideal;      /* passes without bank conflicts */
} ptx_shared_counters;

/* Of the last launch. Without PTX_CHECK_COUNT only the first four members. */
typedef struct ptx_counters {
    uint64_t warp_instructions;
    uint64_t thread_instructions;
    uint64_t divergent; /* warp instructions that only part of a warp's live lanes ran */
    uint64_t by_class[PTX_CLASSES];
    ptx_memory_counters load, store, atomic; /* global; cp.async is among loads */
    ptx_shared_counters shared_load, shared_store, shared_atomic, matrix;
} ptx_counters;

const ptx_counters *ptx_machine_counters(const ptx_machine *machine);
/* As a table; the text lives until the next launch. */
const char *ptx_machine_counter_text(ptx_machine *machine);

#endif
