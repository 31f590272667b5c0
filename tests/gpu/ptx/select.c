/* Which instruction a statement is. Every modifier must be taken by somebody: one that is left over is
 * unknown, and the module is refused. */
#include "parse.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

const char *ptx_statement_text(const ptx_statement *statement, char *text, size_t size) {
    int length = snprintf(text, size, "%s", statement->opcode);
    for (uint32_t i = 0; i < statement->modifier_count && (size_t)length < size; i++)
        length += snprintf(text + length, size - (size_t)length, ".%s", statement->modifiers[i]);
    return text;
}

void ptx_refuse(ptx_parser *parser, const char *why) {
    char text[256];
    ptx_parse_error(parser, parser->statement.line, "%s: %s",
                    ptx_statement_text(&parser->statement, text, sizeof text), why);
}

/* ---- Modifiers ----------------------------------------------------------------------------------------- */

bool ptx_take(ptx_parser *parser, const char *modifier) {
    ptx_statement *s = &parser->statement;
    for (uint32_t i = 0; i < s->modifier_count; i++) {
        if (s->taken[i] || strcmp(s->modifiers[i], modifier) != 0) continue;
        s->taken[i] = true;
        return true;
    }
    return false;
}

ptx_type ptx_take_type(ptx_parser *parser) {
    ptx_statement *s = &parser->statement;
    for (uint32_t i = 0; i < s->modifier_count; i++) {
        ptx_type type = s->taken[i] ? PTX_NONE : ptx_type_of(s->modifiers[i]);
        if (type == PTX_NONE) continue;
        s->taken[i] = true;
        return type;
    }
    return PTX_NONE;
}

ptx_type ptx_need_type(ptx_parser *parser) {
    ptx_type type = ptx_take_type(parser);
    if (type == PTX_NONE) ptx_refuse(parser, "a type is missing");
    return type;
}

int ptx_take_word(ptx_parser *parser, const char *const *words) {
    for (int i = 0; words[i]; i++)
        if (ptx_take(parser, words[i])) return i;
    return -1;
}

ptx_space ptx_take_space(ptx_parser *parser) {
    static const struct {
        const char *word;
        ptx_space space;
    } spaces[] = {{"global", PTX_SPACE_GLOBAL},      {"shared", PTX_SPACE_SHARED},
                  {"shared::cta", PTX_SPACE_SHARED}, {"local", PTX_SPACE_LOCAL},
                  {"const", PTX_SPACE_CONST},        {"param", PTX_SPACE_PARAM},
                  {"param::entry", PTX_SPACE_PARAM}, {"param::func", PTX_SPACE_PARAM}};
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++)
        if (ptx_take(parser, spaces[i].word)) return spaces[i].space;
    return PTX_SPACE_GENERIC;
}

/* ---- Operands ------------------------------------------------------------------------------------------ */

void ptx_need_operands(ptx_parser *parser, uint32_t least, uint32_t most) {
    if (parser->statement.operand_count < least) ptx_refuse(parser, "operands are missing");
    if (parser->statement.operand_count > most) ptx_refuse(parser, "too many operands");
}

uint32_t ptx_constant(ptx_parser *parser, ptx_fill_kind kind, uint32_t bits, uint64_t value, bool dynamic) {
    ptx_function *function = parser->function;
    uint32_t lane_bits = bits <= 32 ? 32 : 64;
    for (uint32_t i = 0; i < function->fill_count; i++) {
        const ptx_fill *fill = &function->fills[i];
        if (fill->kind == kind && fill->bits == lane_bits && fill->value == value &&
            fill->from_dynamic_shared == dynamic)
            return fill->slot;
    }
    function->fills =
        ptx_grow(parser, function->fills, function->fill_count, &function->fill_room, sizeof(ptx_fill));
    ptx_fill *fill = &function->fills[function->fill_count++];
    *fill = (ptx_fill){.slot = ptx_new_slots(parser, lane_bits),
                       .kind = (uint8_t)kind,
                       .bits = (uint8_t)lane_bits,
                       .from_dynamic_shared = dynamic,
                       .value = value};
    return fill->slot;
}

static void add_slot(ptx_parser *parser, ptx_insn *insn, uint32_t slot, bool result) {
    if (insn->to_count + insn->from_count == PTX_MAX_SLOTS) ptx_refuse(parser, "too many operands");
    insn->slots[insn->to_count + insn->from_count] = slot;
    if (result)
        insn->to_count++;
    else
        insn->from_count++;
}

void ptx_add_to(ptx_parser *parser, ptx_insn *insn, const ptx_operand *operand, uint32_t bits, bool wider) {
    if (operand->kind == PTX_OPERAND_SINK) {
        /* A place that nobody reads. */
        add_slot(parser, insn, ptx_new_slots(parser, 64), true);
        if (insn->to_bits == 0) insn->to_bits = (uint8_t)bits;
        return;
    }
    if (operand->kind != PTX_OPERAND_REGISTER) ptx_refuse(parser, "the result is no register");
    if (wider ? operand->bits < bits || operand->bits == 1 : operand->bits != bits)
        ptx_refuse(parser, "the result's register has another width");
    insn->to_bits = (uint8_t)operand->bits;
    add_slot(parser, insn, operand->slot, true);
}

static uint64_t float_constant(ptx_parser *parser, const ptx_operand *operand, ptx_type type) {
    uint32_t bits = ptx_type_bits(type);
    if (operand->kind == PTX_OPERAND_FLOAT32) {
        if (bits == 32) return operand->value;
        float narrow;
        uint32_t word = (uint32_t)operand->value;
        memcpy(&narrow, &word, sizeof narrow);
        double wide = narrow;
        uint64_t value;
        memcpy(&value, &wide, sizeof value);
        if (bits != 64) ptx_refuse(parser, "a float of another width");
        return value;
    }
    if (bits == 64) return operand->value;
    if (bits != 32) ptx_refuse(parser, "a float of another width");
    double wide;
    memcpy(&wide, &operand->value, sizeof wide);
    float narrow = (float)wide;
    uint32_t word;
    memcpy(&word, &narrow, sizeof word);
    return word;
}

static uint32_t symbol_constant(ptx_parser *parser, const ptx_operand *operand, uint32_t bits) {
    const ptx_symbol *symbol = operand->symbol;
    if (symbol->function) ptx_refuse(parser, "addresses of functions are not known here");
    bool in_memory = symbol->space == PTX_SPACE_GLOBAL || symbol->space == PTX_SPACE_CONST;
    if (bits < (in_memory ? 64u : 32u)) ptx_refuse(parser, "the address does not fit");
    ptx_fill_kind kind = symbol->space == PTX_SPACE_LOCAL ? PTX_FILL_LOCAL : PTX_FILL_VALUE;
    return ptx_constant(parser, kind, bits, symbol->address + operand->value, symbol->dynamic);
}

void ptx_add_from(ptx_parser *parser, ptx_insn *insn, const ptx_operand *operand, ptx_type type, bool wider) {
    uint32_t bits = ptx_type_bits(type), slot = PTX_NO_SLOT;
    uint64_t mask = bits >= 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
    switch (operand->kind) {
    case PTX_OPERAND_REGISTER:
        if (wider ? operand->bits < bits || (operand->bits == 1) != (bits == 1) : operand->bits != bits)
            ptx_refuse(parser, "a source register has another width");
        slot = operand->slot;
        break;
    case PTX_OPERAND_INTEGER:
        if (type == PTX_F32 || type == PTX_F64) ptx_refuse(parser, "an integer as a float");
        if (type == PTX_PRED)
            slot = ptx_constant(parser, PTX_FILL_PREDICATE, 32, operand->value ? UINT32_MAX : 0, false);
        else
            slot = ptx_constant(parser, PTX_FILL_VALUE, bits, operand->value & mask, false);
        break;
    case PTX_OPERAND_FLOAT32:
    case PTX_OPERAND_FLOAT64:
        slot = ptx_constant(parser, PTX_FILL_VALUE, bits, float_constant(parser, operand, type), false);
        break;
    case PTX_OPERAND_SYMBOL:
        slot = symbol_constant(parser, operand, bits);
        break;
    case PTX_OPERAND_SPECIAL:
        if (operand->value >= PTX_CLOCK) ptx_refuse(parser, "only mov may read this special register");
        slot = ptx_constant(parser, PTX_FILL_SPECIAL, bits, operand->value, false);
        break;
    case PTX_OPERAND_VECTOR:
    case PTX_OPERAND_ADDRESS:
    case PTX_OPERAND_LABEL:
    case PTX_OPERAND_SINK:
        ptx_refuse(parser, "a source operand is no value");
    }
    if (operand->negated) {
        if (bits != 1) ptx_refuse(parser, "! before what is no predicate");
        insn->flags |= PTX_NEGATE_C;
    }
    add_slot(parser, insn, slot, false);
}

static const ptx_operand *elements_of(ptx_parser *parser, const ptx_operand *operand, uint32_t count) {
    const ptx_operand *first =
        operand->kind == PTX_OPERAND_VECTOR ? &parser->statement.elements[operand->first] : operand;
    if ((operand->kind == PTX_OPERAND_VECTOR ? operand->count : 1) != count)
        ptx_refuse(parser, "a vector has another number of elements");
    return first;
}

void ptx_add_to_each(ptx_parser *parser, ptx_insn *insn, const ptx_operand *operand, uint32_t count,
                     uint32_t bits, bool wider) {
    const ptx_operand *each = elements_of(parser, operand, count);
    uint8_t widest = 0;
    for (uint32_t i = 0; i < count; i++) {
        ptx_add_to(parser, insn, &each[i], bits, wider);
        if (each[i].kind != PTX_OPERAND_SINK) {
            if (widest && widest != insn->to_bits)
                ptx_refuse(parser, "a vector of registers of several widths");
            widest = insn->to_bits;
        }
    }
    if (widest) insn->to_bits = widest;
}

void ptx_add_from_each(ptx_parser *parser, ptx_insn *insn, const ptx_operand *operand, uint32_t count,
                       ptx_type type, bool wider) {
    const ptx_operand *each = elements_of(parser, operand, count);
    for (uint32_t i = 0; i < count; i++) ptx_add_from(parser, insn, &each[i], type, wider);
}

void ptx_add_address(ptx_parser *parser, ptx_insn *insn, const ptx_operand *operand) {
    if (operand->kind != PTX_OPERAND_ADDRESS) ptx_refuse(parser, "an address in brackets expected");
    insn->wide_address = true;
    insn->offset = (int64_t)operand->value;
    if (operand->has_register) {
        if (operand->bits != 32 && operand->bits != 64)
            ptx_refuse(parser, "an address register has 32 or 64 bits");
        insn->wide_address = operand->bits == 64;
        add_slot(parser, insn, operand->slot, false);
    } else if (operand->symbol) {
        ptx_operand base = *operand;
        base.value = 0;
        if (insn->space == PTX_SPACE_GENERIC && operand->symbol->space == PTX_SPACE_PARAM)
            insn->space = PTX_SPACE_PARAM;
        add_slot(parser, insn, symbol_constant(parser, &base, 64), false);
    } else {
        add_slot(parser, insn, ptx_constant(parser, PTX_FILL_VALUE, 64, 0, false), false);
    }
}

/* ---- Opcodes ------------------------------------------------------------------------------------------- */

ptx_class ptx_class_of(ptx_type type) {
    switch (type) {
    case PTX_F16:
    case PTX_BF16:
    case PTX_F16X2:
    case PTX_BF16X2:
        return PTX_CLASS_HALF;
    case PTX_F32:
    case PTX_F64:
    case PTX_TF32:
        return PTX_CLASS_FLOAT;
    default:
        return PTX_CLASS_INTEGER;
    }
}

static const struct {
    const char *opcode;
    ptx_select *select;
    uint8_t class_;
} opcodes[] = {
    {"mov", ptx_select_mov, PTX_CLASS_MOVE},
    {"cvt", ptx_select_cvt, PTX_CLASS_CONVERT},
    {"cvta", ptx_select_cvta, PTX_CLASS_MOVE},
    {"isspacep", ptx_select_isspacep, PTX_CLASS_INTEGER},
    {"setp", ptx_select_setp, PTX_CLASS_INTEGER},
    {"set", ptx_select_set, PTX_CLASS_INTEGER},
    {"ld", ptx_select_load, PTX_CLASS_OTHER},
    {"ldu", ptx_select_load, PTX_CLASS_OTHER},
    {"st", ptx_select_store, PTX_CLASS_OTHER},
    {"atom", ptx_select_atomic, PTX_CLASS_GLOBAL_ATOMIC},
    {"red", ptx_select_atomic, PTX_CLASS_GLOBAL_ATOMIC},
    {"cp", ptx_select_cp, PTX_CLASS_ASYNC_COPY},
    {"ldmatrix", ptx_select_ldmatrix, PTX_CLASS_MATRIX_LOAD},
    {"stmatrix", ptx_select_stmatrix, PTX_CLASS_MATRIX_LOAD},
    {"movmatrix", ptx_select_movmatrix, PTX_CLASS_SHUFFLE},
    {"mma", ptx_select_mma, PTX_CLASS_MMA},
    {"shfl", ptx_select_shfl, PTX_CLASS_SHUFFLE},
    {"vote", ptx_select_vote, PTX_CLASS_SHUFFLE},
    {"match", ptx_select_match, PTX_CLASS_SHUFFLE},
    {"redux", ptx_select_redux, PTX_CLASS_SHUFFLE},
    {"elect", ptx_select_elect, PTX_CLASS_SHUFFLE},
    {"activemask", ptx_select_activemask, PTX_CLASS_SHUFFLE},
    {"bar", ptx_select_barrier, PTX_CLASS_BARRIER},
    {"barrier", ptx_select_barrier, PTX_CLASS_BARRIER},
    {"membar", ptx_select_fence, PTX_CLASS_BARRIER},
    {"fence", ptx_select_fence, PTX_CLASS_BARRIER},
    {"bra", ptx_select_branch, PTX_CLASS_BRANCH},
    {"brx", ptx_select_brx, PTX_CLASS_BRANCH},
    {"call", ptx_select_call, PTX_CLASS_BRANCH},
    {"ret", ptx_select_return, PTX_CLASS_BRANCH},
    {"exit", ptx_select_return, PTX_CLASS_BRANCH},
    {"trap", ptx_select_trap, PTX_CLASS_OTHER},
    {"brkpt", ptx_select_trap, PTX_CLASS_OTHER},
    {"nanosleep", ptx_select_nothing, PTX_CLASS_OTHER},
    {"prefetch", ptx_select_nothing, PTX_CLASS_OTHER},
    {"prefetchu", ptx_select_nothing, PTX_CLASS_OTHER},
    {"discard", ptx_select_nothing, PTX_CLASS_OTHER},
    {"applypriority", ptx_select_nothing, PTX_CLASS_OTHER},
    {"pmevent", ptx_select_nothing, PTX_CLASS_OTHER},
    {"griddepcontrol", ptx_select_griddepcontrol, PTX_CLASS_BARRIER},
};

void ptx_select_statement(ptx_parser *parser, ptx_insn *insn) {
    const ptx_statement *statement = &parser->statement;
    ptx_select *select = ptx_select_lanes;
    for (size_t i = 0; i < sizeof opcodes / sizeof opcodes[0]; i++) {
        if (strcmp(opcodes[i].opcode, statement->opcode) != 0) continue;
        select = opcodes[i].select;
        insn->class_ = opcodes[i].class_;
        break;
    }
    select(parser, statement, insn);
    for (uint32_t i = 0; i < statement->modifier_count; i++) {
        if (statement->taken[i]) continue;
        char text[256], why[PTX_WORD + 40];
        snprintf(why, sizeof why, "unknown modifier .%s", statement->modifiers[i]);
        ptx_parse_error(parser, statement->line, "%s: %s", ptx_statement_text(statement, text, sizeof text),
                        why);
    }
}
