/* From text to code: tokens, statements, and the choice of what runs each statement.
 *
 * An error jumps out of the parser (ptx_parse_error): a module is taken whole or not at all. */
#ifndef KVANT_TEST_PTX_PARSE_H
#define KVANT_TEST_PTX_PARSE_H

#include "code.h"

#include <setjmp.h>

typedef enum ptx_token_kind {
    PTX_TOKEN_END,
    PTX_TOKEN_NAME, /* letters, digits, _ $ % */
    PTX_TOKEN_DOT,  /* .word; text holds the word */
    PTX_TOKEN_INTEGER,
    PTX_TOKEN_FLOAT32, /* 0f3F800000 */
    PTX_TOKEN_FLOAT64, /* 0d..., and decimal fractions */
    PTX_TOKEN_STRING,
    PTX_TOKEN_SIGN /* any other character; text[0] */
} ptx_token_kind;

enum { PTX_WORD = 32, PTX_MODIFIERS = 16, PTX_OPERANDS = 12, PTX_ELEMENTS = 48 };

typedef struct ptx_token {
    ptx_token_kind kind;
    const char *text;
    uint32_t length, line;
    uint64_t value;
} ptx_token;

typedef enum ptx_operand_kind {
    PTX_OPERAND_REGISTER,
    PTX_OPERAND_INTEGER,
    PTX_OPERAND_FLOAT32,
    PTX_OPERAND_FLOAT64,
    PTX_OPERAND_SYMBOL, /* its address, plus value */
    PTX_OPERAND_SPECIAL,
    PTX_OPERAND_VECTOR,
    PTX_OPERAND_ADDRESS, /* [register + value] or [symbol + value] or [value] */
    PTX_OPERAND_LABEL,   /* a name that is nothing else */
    PTX_OPERAND_SINK     /* _ */
} ptx_operand_kind;

typedef struct ptx_operand {
    ptx_operand_kind kind;
    bool negated;    /* !p */
    bool has_second; /* a|p */
    bool has_register;
    uint32_t slot, bits, second_slot, second_bits;
    uint64_t value;
    const ptx_symbol *symbol;
    uint32_t first, count; /* of a vector, among the statement's elements */
    const char *name;
    uint32_t name_length;
} ptx_operand;

typedef struct ptx_statement {
    uint32_t line;
    uint32_t guard;
    bool guard_not;
    char opcode[PTX_WORD];
    char modifiers[PTX_MODIFIERS][PTX_WORD];
    bool taken[PTX_MODIFIERS];
    uint32_t modifier_count;
    ptx_operand operands[PTX_OPERANDS];
    uint32_t operand_count;
    ptx_operand elements[PTX_ELEMENTS];
    uint32_t element_count;
} ptx_statement;

typedef struct ptx_registers { /* .reg .b32 %r<10>; */
    const char *name;
    uint32_t name_length;
    uint32_t count; /* 0: one register with just this name */
    uint32_t slot, bits;
} ptx_registers;

typedef struct ptx_label {
    const char *name;
    uint32_t length, at;
} ptx_label;

typedef struct ptx_reference { /* to a label that may come later */
    const char *name;
    uint32_t length, depth, insn, table, entry, line;
} ptx_reference;

typedef struct ptx_scope {
    uint32_t registers, symbols, labels;
} ptx_scope;

typedef struct ptx_parser {
    ptx_machine *machine;
    ptx_module *module;
    const char *next, *end;
    uint32_t line;
    ptx_token token; /* the one being looked at */
    jmp_buf give_up;
    /* Of the function being read. */
    ptx_function *function;
    ptx_registers *registers;
    uint32_t register_count, register_room;
    ptx_symbol *symbols;
    uint32_t symbol_count, symbol_room;
    ptx_label *labels;
    uint32_t label_count, label_room;
    ptx_reference *references;
    uint32_t reference_count, reference_room;
    ptx_scope scopes[32];
    uint32_t depth;
    struct {
        const char *name;
        uint32_t length, table;
    } tables[64];
    uint32_t table_count;
    ptx_statement statement;
} ptx_parser;

_Noreturn void ptx_parse_error(ptx_parser *parser, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- Tokens (lexer.c) ---------------------------------------------------------------------------------- */

void ptx_advance(ptx_parser *parser);
bool ptx_token_is(const ptx_parser *parser, const char *text); /* a sign or a name */
bool ptx_token_is_dot(const ptx_parser *parser, const char *word);
bool ptx_accept(ptx_parser *parser, char sign);
void ptx_expect(ptx_parser *parser, char sign);
uint64_t ptx_expect_integer(ptx_parser *parser);
void ptx_skip_line(ptx_parser *parser);

/* Makes room for one more element; the array moves. */
void *ptx_grow(ptx_parser *parser, void *array, uint32_t count, uint32_t *room, size_t size);

/* ---- Declarations (parse_variable.c) ------------------------------------------------------------------- */

typedef struct ptx_declaration {
    ptx_space space;
    ptx_type type;
    uint32_t align, vector;
    const char *name;
    uint32_t name_length;
    uint64_t count; /* elements; 1 without brackets */
    bool is_array, unsized, is_pointer;
} ptx_declaration;

/* [.align n] .type [.ptr ...] name [dims], the state space having been read. */
void ptx_parse_declaration(ptx_parser *parser, ptx_declaration *declaration);
/* A variable of any space but .reg and .param, with its initialiser and the semicolon. */
void ptx_parse_variable(ptx_parser *parser, ptx_space space, bool is_extern);
ptx_symbol *ptx_add_symbol(ptx_parser *parser, const ptx_declaration *declaration);
const ptx_symbol *ptx_find_symbol(const ptx_parser *parser, const char *name, uint32_t length);

/* ---- Functions (parse_function.c) ---------------------------------------------------------------------- */

void ptx_parse_function(ptx_parser *parser, bool is_kernel);
void ptx_parse_body(ptx_parser *parser);
void ptx_parse_statement(ptx_parser *parser);
/* Behind the last statement of a body: labels may stand there. */
void ptx_add_return(ptx_parser *parser);
uint32_t ptx_new_slots(ptx_parser *parser, uint32_t bits);
uint32_t ptx_add_registers(ptx_parser *parser, const char *name, uint32_t length, uint32_t count,
                           uint32_t bits);
const ptx_registers *ptx_find_register(const ptx_parser *parser, const char *name, uint32_t length,
                                       uint32_t *slot);
void ptx_add_reference(ptx_parser *parser, const ptx_operand *label, uint32_t insn, uint32_t table,
                       uint32_t entry);

/* ---- Statements to instructions (select.c) ------------------------------------------------------------- */

/* A family of instructions: makes one of the statement, or ends in ptx_parse_error. */
typedef void ptx_select(ptx_parser *parser, const ptx_statement *statement, ptx_insn *insn);

void ptx_select_statement(ptx_parser *parser, ptx_insn *insn);

/* Takes a modifier if it is there. What nobody takes is an error. */
bool ptx_take(ptx_parser *parser, const char *modifier);
/* Takes the first modifier that is a type; PTX_NONE without. */
ptx_type ptx_take_type(ptx_parser *parser);
ptx_type ptx_need_type(ptx_parser *parser);
/* Takes one of the words: its index, or -1. The list ends with NULL. */
int ptx_take_word(ptx_parser *parser, const char *const *words);
_Noreturn void ptx_refuse(ptx_parser *parser, const char *why);
/* opcode.modifiers as written */
const char *ptx_statement_text(const ptx_statement *statement, char *text, size_t size);

void ptx_need_operands(ptx_parser *parser, uint32_t least, uint32_t most);
/* Adds operand `index` to the instruction's results or sources; it must be `bits` wide (a register of exactly
 * that width unless `wider` allows more). */
void ptx_add_to(ptx_parser *parser, ptx_insn *insn, const ptx_operand *operand, uint32_t bits, bool wider);
void ptx_add_from(ptx_parser *parser, ptx_insn *insn, const ptx_operand *operand, ptx_type type, bool wider);
/* Each element of a vector operand, or the operand itself if it is none. */
void ptx_add_to_each(ptx_parser *parser, ptx_insn *insn, const ptx_operand *operand, uint32_t count,
                     uint32_t bits, bool wider);
void ptx_add_from_each(ptx_parser *parser, ptx_insn *insn, const ptx_operand *operand, uint32_t count,
                       ptx_type type, bool wider);
/* A slot that holds a value in all lanes. */
uint32_t ptx_constant(ptx_parser *parser, ptx_fill_kind kind, uint32_t bits, uint64_t value, bool dynamic);
/* The address operand: base into the sources, insn->offset, and whether the base is 64 bits wide. */
void ptx_add_address(ptx_parser *parser, ptx_insn *insn, const ptx_operand *operand);
/* Takes .global, .shared::cta ...: generic without one. */
ptx_space ptx_take_space(ptx_parser *parser);

/* A row of a table of lane functions: what the statement's text must be, and its operands: result = sources,
 * h 16 bits, r 32, d 64, p predicate. */
typedef struct ptx_row {
    const char *name;
    ptx_lane *lane;
    const char *operands;
} ptx_row;

const ptx_row *ptx_find_row(const char *name);
/* Opcodes with a selection of their own. */
ptx_select ptx_select_lanes; /* everything that is in the tables */
ptx_select ptx_select_mov, ptx_select_cvt, ptx_select_setp, ptx_select_set, ptx_select_cvta,
    ptx_select_isspacep, ptx_select_load, ptx_select_store, ptx_select_atomic, ptx_select_cp,
    ptx_select_ldmatrix, ptx_select_stmatrix, ptx_select_mma, ptx_select_movmatrix, ptx_select_shfl,
    ptx_select_vote, ptx_select_match, ptx_select_redux, ptx_select_elect, ptx_select_activemask,
    ptx_select_barrier, ptx_select_fence, ptx_select_branch, ptx_select_brx, ptx_select_call,
    ptx_select_return, ptx_select_nothing, ptx_select_trap, ptx_select_griddepcontrol;

/* The class of an instruction that works on this type. */
ptx_class ptx_class_of(ptx_type type);

#endif
