/* PTX in the form that runs: parsed once, names gone.
 *
 * A register, an immediate and a special register are all a **slot** of a frame: 128 bytes, a row of 32
 * lanes of 32 bits. 64-bit registers take two slots, 128-bit ones four (the low halves of all lanes, then
 * the high ones). A value of 8 or 16 bits lies zero-extended in 32. A predicate is a mask of lanes in the
 * first word of its slot. So every operand of every instruction is read the same way, and 32 lanes are one
 * loop. / */
#ifndef KVANT_TEST_PTX_CODE_H
#define KVANT_TEST_PTX_CODE_H

#include "ptx.h"

enum { PTX_LANES = 32, PTX_SLOT_BYTES = 128, PTX_MAX_SLOTS = 24 };
#define PTX_NO_SLOT UINT32_MAX

typedef enum ptx_space {
    PTX_SPACE_GENERIC,
    PTX_SPACE_GLOBAL,
    PTX_SPACE_SHARED,
    PTX_SPACE_LOCAL,
    PTX_SPACE_CONST,
    PTX_SPACE_PARAM,
    PTX_SPACE_REG
} ptx_space;

/* Generic addresses: no user process has memory at these. The offset within the window is the low 32 bits. */
#define PTX_SHARED_WINDOW 0x0100000000000000u
#define PTX_LOCAL_WINDOW  0x0200000000000000u
#define PTX_PARAM_WINDOW  0x0300000000000000u
#define PTX_WINDOW_MASK   0xff00000000000000u

/* Number formats; the order is that of the table in type.c. */
typedef enum ptx_type {
    PTX_NONE,
    PTX_PRED,
    PTX_B8,
    PTX_U8,
    PTX_S8,
    PTX_B16,
    PTX_U16,
    PTX_S16,
    PTX_F16,
    PTX_BF16,
    PTX_B32,
    PTX_U32,
    PTX_S32,
    PTX_F32,
    PTX_TF32,
    PTX_F16X2,
    PTX_BF16X2,
    PTX_U16X2,
    PTX_S16X2,
    PTX_B64,
    PTX_U64,
    PTX_S64,
    PTX_F64,
    PTX_B128,
    PTX_S4,
    PTX_U4,
    PTX_B1,
    PTX_E4M3,
    PTX_E5M2,
    PTX_E2M1,
    PTX_E2M3,
    PTX_E3M2,
    PTX_UE8M0,
    PTX_E4M3X2,
    PTX_E5M2X2,
    PTX_E2M1X2,
    PTX_E2M3X2,
    PTX_E3M2X2,
    PTX_UE8M0X2,
    PTX_TYPES
} ptx_type;

uint32_t ptx_type_bits(ptx_type type); /* 0 for PTX_NONE */
bool ptx_type_is_signed(ptx_type type);
bool ptx_type_is_float(ptx_type type); /* scalar formats and packed ones */
const char *ptx_type_name(ptx_type type);
/* PTX_NONE for a word that names no type. */
ptx_type ptx_type_of(const char *word);

typedef struct ptx_insn ptx_insn;
typedef struct ptx_warp ptx_warp;
typedef struct ptx_function ptx_function;

/* What became of an instruction. */
typedef enum ptx_step {
    PTX_STEP_NEXT, /* done, go on behind it */
    PTX_STEP_WAIT, /* not done: the lanes wait here */
    PTX_STEP_JUMP, /* the lanes' places have been set */
    PTX_STEP_STOP  /* the launch ends */
} ptx_step;

/* Runs one instruction for the lanes of `mask`, those of the current group whose guard holds. */
typedef ptx_step ptx_exec(ptx_warp *warp, const ptx_insn *insn, uint32_t mask);

/* Computes all 32 lanes: `to` is as wide as the result, sources in the order of the operands. A predicate is
 * one word, a mask. */
typedef void ptx_lane(void *restrict to, const void *const *from);

/* Bits of ptx_insn.flags, for floating-point results and operands. */
enum {
    PTX_FTZ = 1 << 0,
    PTX_SAT = 1 << 1,
    PTX_RELU = 1 << 2,
    PTX_SATFINITE = 1 << 3,
    PTX_NEGATE_C = 1 << 4, /* the predicate operand is !p */
    PTX_SIGNED_LOAD = 1 << 5,
    PTX_STRONG = 1 << 6, /* volatile, relaxed, acquire, release: not a data race with others of the kind */
    PTX_ALIGNED = 1 << 7,
    PTX_TRANSPOSED = 1 << 8,
    PTX_CARRY_IN = 1 << 9,
    PTX_CARRY_OUT = 1 << 10,
    PTX_HIGH = 1 << 11,
    PTX_RELEASES = 1 << 13, /* what came before it is meant to be seen by other blocks */
    PTX_COPIES = 1 << 12    /* a mere copy: what was never written may pass */
};

struct ptx_insn {
    ptx_exec *exec;
    ptx_lane *lane;
    uint32_t guard; /* slot of a predicate, or PTX_NO_SLOT */
    bool guard_not;
    uint8_t class_;
    uint8_t space;
    uint8_t mode; /* what each family of instructions needs: comparison, atomic operation, shape ... */
    uint8_t type, type2;
    bool wide_address;
    uint8_t vector; /* elements of a vector access, matrices of ldmatrix */
    uint8_t to_count, from_count;
    uint8_t to_bits; /* width of the register(s) written */
    uint16_t flags;
    uint16_t elements; /* of one register and instruction-specific sizes */
    uint32_t line;
    uint32_t target;               /* of a branch; index of the call or branch table in the function */
    int64_t offset;                /* of an address */
    uint32_t slots[PTX_MAX_SLOTS]; /* results, then sources */
};

/* How a slot gets its value when a frame begins. */
typedef enum ptx_fill_kind {
    PTX_FILL_VALUE,     /* a constant in all lanes */
    PTX_FILL_PREDICATE, /* a constant mask */
    PTX_FILL_LOCAL,     /* a constant plus the frame's place in local memory */
    PTX_FILL_SPECIAL    /* value: enum ptx_special */
} ptx_fill_kind;

typedef struct ptx_fill {
    uint32_t slot;
    uint8_t kind;
    uint8_t bits;
    bool from_dynamic_shared; /* the place of dynamic shared memory is added when the module is complete */
    uint64_t value;
} ptx_fill;

typedef enum ptx_special {
    PTX_TID_X,
    PTX_TID_Y,
    PTX_TID_Z,
    PTX_NTID_X,
    PTX_NTID_Y,
    PTX_NTID_Z,
    PTX_CTAID_X,
    PTX_CTAID_Y,
    PTX_CTAID_Z,
    PTX_NCTAID_X,
    PTX_NCTAID_Y,
    PTX_NCTAID_Z,
    PTX_LANEID,
    PTX_WARPID,
    PTX_NWARPID,
    PTX_SMID,
    PTX_NSMID,
    PTX_GRIDID,
    PTX_LANEMASK_EQ,
    PTX_LANEMASK_LT,
    PTX_LANEMASK_LE,
    PTX_LANEMASK_GT,
    PTX_LANEMASK_GE,
    PTX_TOTAL_SHARED,
    PTX_DYNAMIC_SHARED,
    PTX_WARP_SIZE,
    PTX_CLOCK, /* the specials from here on change as the warp runs: read by an instruction of their own */
    PTX_CLOCK_HI,
    PTX_CLOCK64,
    PTX_GLOBALTIMER,
    PTX_SPECIALS
} ptx_special;

/* A variable, or a formal parameter. */
typedef struct ptx_symbol {
    const char *name; /* not terminated */
    uint32_t name_length;
    uint8_t space;
    bool dynamic;     /* extern .shared x[] */
    uint8_t bits;     /* of an element */
    uint32_t slot;    /* of a parameter that is a register */
    uint64_t address; /* host address; offset in shared, local or parameter memory */
    size_t size;
    struct ptx_function *function; /* name of a function */
} ptx_symbol;

typedef struct ptx_formal {
    bool is_register;
    uint8_t bits;
    uint32_t slot;
    uint32_t offset, size; /* in the frame's parameter memory */
} ptx_formal;

typedef struct ptx_call {
    ptx_function *callee;
    uint32_t result_count, argument_count;
    ptx_formal results[2], arguments[32]; /* the caller's own variables or registers */
} ptx_call;

typedef struct ptx_branch_table {
    uint32_t *targets;
    uint32_t count;
} ptx_branch_table;

/* A kernel or a function. */
struct ptx_function {
    char *name;
    ptx_module *module;
    bool is_kernel, has_body;
    uint32_t line;
    ptx_insn *code;
    uint32_t code_count, code_room;
    uint32_t slot_count;
    uint32_t *initial; /* lanes in which a slot counts as written when a frame begins: all or none */
    ptx_fill *fills;
    uint32_t fill_count, fill_room;
    uint32_t parameter_bytes; /* formal ones first, then those declared for calls */
    uint32_t formal_bytes;
    ptx_formal *formals;
    uint32_t formal_count, result_count; /* a function's results are the first of its formals */
    uint32_t local_bytes;
    uint32_t shared_bytes; /* static, with the module's and with gaps behind each variable */
    uint32_t shared_used;  /* what the hardware would reserve */
    struct ptx_extent *shared_extents;
    uint32_t shared_extent_count;
    uint32_t max_threads;
    ptx_call **calls;
    uint32_t call_count;
    ptx_branch_table *tables;
    uint32_t table_count;
};

/* A variable's part of shared memory. */
typedef struct ptx_extent {
    uint32_t from, to;
    char *name;
} ptx_extent;

struct ptx_kernel {
    ptx_function function;
};

struct ptx_module {
    ptx_machine *machine;
    ptx_module *next;
    char *name, *text;
    size_t text_size;
    ptx_function **functions;
    uint32_t function_count;
    ptx_symbol *symbols;
    uint32_t symbol_count;
    uint32_t shared_bytes, shared_used; /* of variables outside of functions */
    ptx_extent *shared_extents;
    uint32_t shared_extent_count;
    uint32_t dynamic_at; /* where dynamic shared memory begins, in every kernel */
    void **memory;       /* of variables */
    uint32_t memory_count;
};

#endif
