/* One statement: guard, opcode, modifiers, operands. What it does is chosen in select.c. */
#include "parse.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name, *part;
    ptx_special special;
} specials[] = {
    {"%tid", "x", PTX_TID_X},
    {"%tid", "y", PTX_TID_Y},
    {"%tid", "z", PTX_TID_Z},
    {"%ntid", "x", PTX_NTID_X},
    {"%ntid", "y", PTX_NTID_Y},
    {"%ntid", "z", PTX_NTID_Z},
    {"%ctaid", "x", PTX_CTAID_X},
    {"%ctaid", "y", PTX_CTAID_Y},
    {"%ctaid", "z", PTX_CTAID_Z},
    {"%nctaid", "x", PTX_NCTAID_X},
    {"%nctaid", "y", PTX_NCTAID_Y},
    {"%nctaid", "z", PTX_NCTAID_Z},
    {"%laneid", "", PTX_LANEID},
    {"%warpid", "", PTX_WARPID},
    {"%nwarpid", "", PTX_NWARPID},
    {"%smid", "", PTX_SMID},
    {"%nsmid", "", PTX_NSMID},
    {"%gridid", "", PTX_GRIDID},
    {"%lanemask_eq", "", PTX_LANEMASK_EQ},
    {"%lanemask_lt", "", PTX_LANEMASK_LT},
    {"%lanemask_le", "", PTX_LANEMASK_LE},
    {"%lanemask_gt", "", PTX_LANEMASK_GT},
    {"%lanemask_ge", "", PTX_LANEMASK_GE},
    {"%total_smem_size", "", PTX_TOTAL_SHARED},
    {"%dynamic_smem_size", "", PTX_DYNAMIC_SHARED},
    {"WARP_SZ", "", PTX_WARP_SIZE},
    {"%clock", "", PTX_CLOCK},
    {"%clock_hi", "", PTX_CLOCK_HI},
    {"%clock64", "", PTX_CLOCK64},
    {"%globaltimer", "", PTX_GLOBALTIMER},
};

static bool name_is(const ptx_operand *operand, const char *name) {
    return operand->name_length == strlen(name) && memcmp(operand->name, name, operand->name_length) == 0;
}

static bool find_special(ptx_parser *parser, ptx_operand *operand) {
    if (operand->name[0] != '%' && operand->name[0] != 'W') return false;
    for (size_t i = 0; i < sizeof specials / sizeof specials[0]; i++) {
        if (!name_is(operand, specials[i].name)) continue;
        if (specials[i].part[0]) {
            if (!ptx_token_is_dot(parser, specials[i].part)) continue;
            ptx_advance(parser);
        }
        operand->kind = PTX_OPERAND_SPECIAL;
        operand->value = specials[i].special;
        operand->bits =
            specials[i].special == PTX_CLOCK64 || specials[i].special == PTX_GLOBALTIMER ? 64 : 32;
        return true;
    }
    return false;
}

/* The name in the current token. */
static void read_name(ptx_parser *parser, ptx_operand *operand) {
    operand->name = parser->token.text;
    operand->name_length = parser->token.length;
    uint32_t line = parser->token.line;
    ptx_advance(parser);
    if (name_is(operand, "_")) {
        operand->kind = PTX_OPERAND_SINK;
        return;
    }
    const ptx_registers *found =
        ptx_find_register(parser, operand->name, operand->name_length, &operand->slot);
    if (found) {
        operand->kind = PTX_OPERAND_REGISTER;
        operand->has_register = true;
        operand->bits = found->bits;
        return;
    }
    operand->symbol = ptx_find_symbol(parser, operand->name, operand->name_length);
    if (operand->symbol) {
        operand->kind = PTX_OPERAND_SYMBOL;
        return;
    }
    if (find_special(parser, operand)) return;
    if (operand->name[0] == '%')
        ptx_parse_error(parser, line, "unknown register %.*s", (int)operand->name_length, operand->name);
    operand->kind = PTX_OPERAND_LABEL;
}

/* +4, -4, +4+8 */
static uint64_t read_offset(ptx_parser *parser) {
    uint64_t value = 0;
    for (;;) {
        if (ptx_accept(parser, '+'))
            value += ptx_expect_integer(parser);
        else if (ptx_token_is(parser, "-"))
            value += ptx_expect_integer(parser);
        else
            return value;
    }
}

static void read_address(ptx_parser *parser, ptx_operand *operand) {
    ptx_expect(parser, '[');
    operand->kind = PTX_OPERAND_ADDRESS;
    if (parser->token.kind == PTX_TOKEN_INTEGER || ptx_token_is(parser, "-")) {
        operand->value = ptx_expect_integer(parser);
    } else {
        if (parser->token.kind != PTX_TOKEN_NAME)
            ptx_parse_error(parser, parser->token.line, "an address expected");
        uint32_t line = parser->token.line;
        read_name(parser, operand);
        if (operand->kind != PTX_OPERAND_REGISTER && operand->kind != PTX_OPERAND_SYMBOL)
            ptx_parse_error(parser, line, "unknown variable %.*s", (int)operand->name_length, operand->name);
        operand->kind = PTX_OPERAND_ADDRESS;
    }
    operand->value += read_offset(parser);
    ptx_expect(parser, ']');
}

static void read_number(ptx_parser *parser, ptx_operand *operand) {
    bool negative = ptx_accept(parser, '-');
    const ptx_token *token = &parser->token;
    operand->value = token->value;
    if (token->kind == PTX_TOKEN_INTEGER) {
        operand->kind = PTX_OPERAND_INTEGER;
        if (negative) operand->value = 0 - operand->value;
    } else if (token->kind == PTX_TOKEN_FLOAT32) {
        operand->kind = PTX_OPERAND_FLOAT32;
        if (negative) operand->value ^= 0x80000000u;
    } else if (token->kind == PTX_TOKEN_FLOAT64) {
        operand->kind = PTX_OPERAND_FLOAT64;
        if (negative) operand->value ^= 0x8000000000000000u;
    } else {
        ptx_parse_error(parser, token->line, "an operand expected, not \"%.*s\"",
                        (int)(token->length < 40 ? token->length : 40), token->text);
    }
    ptx_advance(parser);
}

static void read_simple(ptx_parser *parser, ptx_operand *operand) {
    operand->negated = ptx_accept(parser, '!');
    if (parser->token.kind != PTX_TOKEN_NAME) {
        read_number(parser, operand);
        return;
    }
    read_name(parser, operand);
    if (operand->kind == PTX_OPERAND_SYMBOL) operand->value = read_offset(parser);
    if ((operand->kind == PTX_OPERAND_REGISTER || operand->kind == PTX_OPERAND_SINK) &&
        ptx_accept(parser, '|')) {
        ptx_operand second = {.kind = PTX_OPERAND_REGISTER};
        if (parser->token.kind != PTX_TOKEN_NAME)
            ptx_parse_error(parser, parser->token.line, "a register expected");
        read_name(parser, &second);
        operand->has_second = true;
        operand->second_slot = second.kind == PTX_OPERAND_SINK ? PTX_NO_SLOT : second.slot;
        operand->second_bits = second.bits;
    }
}

static void read_operand(ptx_parser *parser, ptx_operand *operand) {
    ptx_statement *statement = &parser->statement;
    if (ptx_token_is(parser, "[")) {
        read_address(parser, operand);
    } else if (ptx_accept(parser, '{')) {
        operand->kind = PTX_OPERAND_VECTOR;
        operand->first = statement->element_count;
        do {
            if (statement->element_count == PTX_ELEMENTS)
                ptx_parse_error(parser, parser->token.line, "too many elements");
            read_simple(parser, &statement->elements[statement->element_count++]);
            operand->count++;
        } while (ptx_accept(parser, ','));
        ptx_expect(parser, '}');
    } else {
        read_simple(parser, operand);
    }
}

/* call{.uni} [(result),] function [, (arguments)]; : the lists become vectors. */
static void read_call(ptx_parser *parser) {
    ptx_statement *statement = &parser->statement;
    do {
        if (statement->operand_count == PTX_OPERANDS)
            ptx_parse_error(parser, parser->token.line, "too many operands");
        ptx_operand *operand = &statement->operands[statement->operand_count++];
        if (!ptx_accept(parser, '(')) {
            read_simple(parser, operand);
            continue;
        }
        operand->kind = PTX_OPERAND_VECTOR;
        operand->first = statement->element_count;
        while (!ptx_token_is(parser, ")")) {
            if (statement->element_count == PTX_ELEMENTS)
                ptx_parse_error(parser, parser->token.line, "too many arguments");
            read_simple(parser, &statement->elements[statement->element_count++]);
            operand->count++;
            if (!ptx_accept(parser, ',')) break;
        }
        ptx_expect(parser, ')');
    } while (ptx_accept(parser, ','));
}

static void read_guard(ptx_parser *parser) {
    ptx_statement *statement = &parser->statement;
    statement->guard = PTX_NO_SLOT;
    if (!ptx_accept(parser, '@')) return;
    statement->guard_not = ptx_accept(parser, '!');
    if (parser->token.kind != PTX_TOKEN_NAME)
        ptx_parse_error(parser, parser->token.line, "a predicate expected");
    const ptx_registers *found =
        ptx_find_register(parser, parser->token.text, parser->token.length, &statement->guard);
    if (!found || found->bits != 1)
        ptx_parse_error(parser, parser->token.line, "%.*s is no predicate", (int)parser->token.length,
                        parser->token.text);
    ptx_advance(parser);
}

static void read_word(ptx_parser *parser, char *word) {
    if (parser->token.length >= PTX_WORD)
        ptx_parse_error(parser, parser->token.line, "unknown word %.*s", (int)parser->token.length,
                        parser->token.text);
    memcpy(word, parser->token.text, parser->token.length);
    word[parser->token.length] = '\0';
    ptx_advance(parser);
}

static void add_instruction(ptx_parser *parser) {
    const ptx_statement *statement = &parser->statement;
    ptx_function *function = parser->function;
    function->code =
        ptx_grow(parser, function->code, function->code_count, &function->code_room, sizeof(ptx_insn));
    ptx_insn insn = {.guard = statement->guard, .guard_not = statement->guard_not, .line = statement->line};
    ptx_select_statement(parser, &insn);
    function->code[function->code_count++] = insn;
}

void ptx_add_return(ptx_parser *parser) {
    parser->statement = (ptx_statement){.line = parser->token.line, .guard = PTX_NO_SLOT, .opcode = "ret"};
    add_instruction(parser);
}

void ptx_parse_statement(ptx_parser *parser) {
    ptx_statement *statement = &parser->statement;
    memset(statement, 0, sizeof *statement);
    read_guard(parser);
    if (parser->token.kind != PTX_TOKEN_NAME)
        ptx_parse_error(parser, parser->token.line, "an instruction expected, not \"%.*s\"",
                        (int)(parser->token.length < 40 ? parser->token.length : 40), parser->token.text);
    statement->line = parser->token.line;
    read_word(parser, statement->opcode);
    while (parser->token.kind == PTX_TOKEN_DOT) {
        if (statement->modifier_count == PTX_MODIFIERS)
            ptx_parse_error(parser, statement->line, "too many modifiers");
        read_word(parser, statement->modifiers[statement->modifier_count++]);
    }
    if (strcmp(statement->opcode, "call") == 0) {
        read_call(parser);
    } else if (!ptx_token_is(parser, ";")) {
        do {
            if (statement->operand_count == PTX_OPERANDS)
                ptx_parse_error(parser, statement->line, "too many operands");
            read_operand(parser, &statement->operands[statement->operand_count++]);
        } while (ptx_accept(parser, ','));
    }

    add_instruction(parser);
    /* Looked at last: an unknown instruction is the better message. */
    ptx_expect(parser, ';');
}
