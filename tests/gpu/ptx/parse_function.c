/* Functions: parameters, the scopes of their bodies, registers, labels. (Statements: parse_statement.c.) */
#include "parse.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

uint32_t ptx_new_slots(ptx_parser *parser, uint32_t bits) {
    uint32_t slot = parser->function->slot_count;
    parser->function->slot_count += bits <= 32 ? 1 : bits / 32;
    if (parser->function->slot_count > 1u << 20) ptx_parse_error(parser, parser->line, "too many registers");
    return slot;
}

uint32_t ptx_add_registers(ptx_parser *parser, const char *name, uint32_t length, uint32_t count,
                           uint32_t bits) {
    parser->registers = ptx_grow(parser, parser->registers, parser->register_count, &parser->register_room,
                                 sizeof *parser->registers);
    ptx_registers *added = &parser->registers[parser->register_count++];
    *added = (ptx_registers){.name = name, .name_length = length, .count = count, .bits = bits};
    if (count > 1u << 20) ptx_parse_error(parser, parser->line, "too many registers");
    added->slot = ptx_new_slots(parser, bits);
    for (uint32_t i = 1; i < count; i++) ptx_new_slots(parser, bits);
    return added->slot;
}

const ptx_registers *ptx_find_register(const ptx_parser *parser, const char *name, uint32_t length,
                                       uint32_t *slot) {
    uint32_t stem = length;
    while (stem > 0 && name[stem - 1] >= '0' && name[stem - 1] <= '9') stem--;
    uint32_t number = 0;
    for (uint32_t i = stem; i < length && number < 1u << 24; i++)
        number = number * 10 + (uint32_t)(name[i] - '0');
    for (uint32_t i = parser->register_count; i-- > 0;) {
        const ptx_registers *r = &parser->registers[i];
        if (r->count == 0) {
            if (r->name_length != length || memcmp(r->name, name, length) != 0) continue;
            *slot = r->slot;
            return r;
        }
        /* A name may end in digits before its number, as in %r1<4>: any split of the digits counts. */
        if (r->name_length < stem || r->name_length >= length || memcmp(r->name, name, r->name_length) != 0)
            continue;
        uint32_t index = 0;
        if (r->name_length == stem)
            index = number;
        else
            for (uint32_t c = r->name_length; c < length; c++) index = index * 10 + (uint32_t)(name[c] - '0');
        if (index >= r->count) continue;
        *slot = r->slot + index * (r->bits <= 32 ? 1 : r->bits / 32);
        return r;
    }
    return NULL;
}

/* ---- Formal parameters --------------------------------------------------------------------------------- */

static void add_formal(ptx_parser *parser, bool is_register, const ptx_declaration *d) {
    ptx_function *function = parser->function;
    ptx_formal formal = {.is_register = is_register, .bits = (uint8_t)ptx_type_bits(d->type)};
    if (is_register) {
        formal.slot = ptx_add_registers(parser, d->name, d->name_length, 0, formal.bits);
    } else {
        ptx_symbol *symbol = ptx_add_symbol(parser, d);
        formal.offset = (function->parameter_bytes + d->align - 1) / d->align * d->align;
        formal.size = (uint32_t)symbol->size;
        symbol->address = formal.offset;
        function->parameter_bytes = formal.offset + formal.size;
    }
    ptx_formal *moved = realloc(function->formals, (function->formal_count + 1) * sizeof *moved);
    if (!moved) ptx_parse_error(parser, parser->line, "out of memory");
    function->formals = moved;
    moved[function->formal_count++] = formal;
}

static void parse_formals(ptx_parser *parser) {
    if (!ptx_accept(parser, '(')) return;
    while (!ptx_token_is(parser, ")")) {
        bool is_register = ptx_token_is_dot(parser, "reg");
        if (!is_register && !ptx_token_is_dot(parser, "param"))
            ptx_parse_error(parser, parser->token.line, ".param expected");
        ptx_advance(parser);
        ptx_declaration d = {.space = is_register ? PTX_SPACE_REG : PTX_SPACE_PARAM};
        ptx_parse_declaration(parser, &d);
        add_formal(parser, is_register, &d);
        if (!ptx_accept(parser, ',')) break;
    }
    ptx_expect(parser, ')');
}

/* .maxntid and its like, between the parameters and the body. */
static void parse_attributes(ptx_parser *parser, ptx_function *function) {
    while (parser->token.kind == PTX_TOKEN_DOT) {
        char word[PTX_WORD];
        snprintf(word, sizeof word, "%.*s", (int)parser->token.length, parser->token.text);
        uint32_t line = parser->token.line;
        ptx_advance(parser);
        if (strcmp(word, "noreturn") == 0 || strcmp(word, "blocksareclusters") == 0) continue;
        if (strcmp(word, "pragma") == 0 && parser->token.kind == PTX_TOKEN_STRING) {
            ptx_advance(parser);
            ptx_expect(parser, ';');
            continue;
        }
        bool threads = strcmp(word, "maxntid") == 0 || strcmp(word, "reqntid") == 0;
        if (!threads && strcmp(word, "minnctapersm") != 0 && strcmp(word, "maxnreg") != 0)
            ptx_parse_error(parser, line, "unknown directive .%s of a function", word);
        uint64_t product = 1;
        do product *= ptx_expect_integer(parser);
        while (ptx_accept(parser, ','));
        if (threads && product > 0 && product < 1024) function->max_threads = (uint32_t)product;
    }
}

/* ---- Scopes and labels --------------------------------------------------------------------------------- */

static void open_scope(ptx_parser *parser) {
    if (parser->depth == sizeof parser->scopes / sizeof parser->scopes[0])
        ptx_parse_error(parser, parser->token.line, "braces are nested too deep");
    parser->scopes[parser->depth++] =
        (ptx_scope){parser->register_count, parser->symbol_count, parser->label_count};
}

/* References that this scope's labels answer are resolved; the others become its parent's. */
static void close_scope(ptx_parser *parser) {
    ptx_scope *scope = &parser->scopes[--parser->depth];
    uint32_t left = 0;
    for (uint32_t i = 0; i < parser->reference_count; i++) {
        ptx_reference *reference = &parser->references[i];
        bool found = false;
        if (reference->depth > parser->depth) {
            reference->depth = parser->depth;
            for (uint32_t l = scope->labels; l < parser->label_count && !found; l++) {
                const ptx_label *label = &parser->labels[l];
                if (label->length != reference->length ||
                    memcmp(label->name, reference->name, label->length) != 0)
                    continue;
                found = true;
                if (reference->table == UINT32_MAX)
                    parser->function->code[reference->insn].target = label->at;
                else
                    parser->function->tables[reference->table].targets[reference->entry] = label->at;
            }
        }
        if (!found) parser->references[left++] = *reference;
    }
    parser->reference_count = left;
    if (parser->depth == 0 && left > 0)
        ptx_parse_error(parser, parser->references[0].line, "no label %.*s",
                        (int)parser->references[0].length, parser->references[0].name);
    parser->register_count = scope->registers;
    parser->symbol_count = scope->symbols;
    parser->label_count = scope->labels;
}

void ptx_add_reference(ptx_parser *parser, const ptx_operand *label, uint32_t insn, uint32_t table,
                       uint32_t entry) {
    parser->references = ptx_grow(parser, parser->references, parser->reference_count,
                                  &parser->reference_room, sizeof *parser->references);
    parser->references[parser->reference_count++] = (ptx_reference){.name = label->name,
                                                                    .length = label->name_length,
                                                                    .depth = parser->depth,
                                                                    .insn = insn,
                                                                    .table = table,
                                                                    .entry = entry,
                                                                    .line = parser->token.line};
}

static void add_label(ptx_parser *parser, const char *name, uint32_t length) {
    for (uint32_t i = parser->scopes[parser->depth - 1].labels; i < parser->label_count; i++)
        if (parser->labels[i].length == length && memcmp(parser->labels[i].name, name, length) == 0)
            ptx_parse_error(parser, parser->token.line, "a second label %.*s", (int)length, name);
    parser->labels =
        ptx_grow(parser, parser->labels, parser->label_count, &parser->label_room, sizeof *parser->labels);
    parser->labels[parser->label_count++] = (ptx_label){name, length, parser->function->code_count};
}

/* name: .branchtargets a, b, c; */
static void parse_branch_targets(ptx_parser *parser, const char *name, uint32_t length) {
    ptx_function *function = parser->function;
    if (parser->table_count == sizeof parser->tables / sizeof parser->tables[0])
        ptx_parse_error(parser, parser->token.line, "too many branch tables");
    ptx_branch_table *moved = realloc(function->tables, (function->table_count + 1) * sizeof *moved);
    if (!moved) ptx_parse_error(parser, parser->line, "out of memory");
    function->tables = moved;
    ptx_branch_table *table = &moved[function->table_count];
    *table = (ptx_branch_table){NULL, 0};
    uint32_t number = function->table_count++;
    parser->tables[parser->table_count].name = name;
    parser->tables[parser->table_count].length = length;
    parser->tables[parser->table_count++].table = number;
    do {
        if (parser->token.kind != PTX_TOKEN_NAME)
            ptx_parse_error(parser, parser->token.line, "a label expected");
        uint32_t *targets = realloc(table->targets, (table->count + 1) * sizeof *targets);
        if (!targets) ptx_parse_error(parser, parser->line, "out of memory");
        table->targets = targets;
        ptx_operand label = {.name = parser->token.text, .name_length = parser->token.length};
        ptx_add_reference(parser, &label, 0, number, table->count++);
        ptx_advance(parser);
    } while (ptx_accept(parser, ','));
    ptx_expect(parser, ';');
}

/* ---- Bodies -------------------------------------------------------------------------------------------- */

static void parse_reg(ptx_parser *parser) {
    if (parser->token.kind != PTX_TOKEN_DOT) ptx_parse_error(parser, parser->token.line, "a type expected");
    char word[PTX_WORD];
    snprintf(word, sizeof word, "%.*s", (int)parser->token.length, parser->token.text);
    ptx_type type = ptx_type_of(word);
    if (type == PTX_NONE) ptx_parse_error(parser, parser->token.line, "unknown type .%s of a register", word);
    ptx_advance(parser);
    do {
        const char *name = parser->token.text;
        uint32_t length = parser->token.length, count = 0;
        if (parser->token.kind != PTX_TOKEN_NAME)
            ptx_parse_error(parser, parser->token.line, "a name expected");
        ptx_advance(parser);
        if (ptx_accept(parser, '<')) {
            count = (uint32_t)ptx_expect_integer(parser);
            ptx_expect(parser, '>');
        }
        ptx_add_registers(parser, name, length, count, ptx_type_bits(type));
    } while (ptx_accept(parser, ','));
    ptx_expect(parser, ';');
}

/* .param in a body: memory in which a call's arguments are put together. */
static void parse_call_parameter(ptx_parser *parser) {
    ptx_declaration d = {.space = PTX_SPACE_PARAM};
    ptx_parse_declaration(parser, &d);
    ptx_symbol *symbol = ptx_add_symbol(parser, &d);
    ptx_function *function = parser->function;
    symbol->address = (function->parameter_bytes + d.align - 1) / d.align * d.align;
    function->parameter_bytes = (uint32_t)(symbol->address + symbol->size);
    ptx_expect(parser, ';');
}

static void parse_body_directive(ptx_parser *parser) {
    if (ptx_token_is_dot(parser, "loc") || ptx_token_is_dot(parser, "pragma") ||
        ptx_token_is_dot(parser, "file")) {
        ptx_skip_line(parser);
        return;
    }
    static const struct {
        const char *word;
        ptx_space space;
    } spaces[] = {{"shared", PTX_SPACE_SHARED}, {"local", PTX_SPACE_LOCAL}, {"global", PTX_SPACE_GLOBAL},
                  {"const", PTX_SPACE_CONST},   {"reg", PTX_SPACE_REG},     {"param", PTX_SPACE_PARAM}};
    bool is_extern = ptx_token_is_dot(parser, "extern");
    if (is_extern) ptx_advance(parser);
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++) {
        if (!ptx_token_is_dot(parser, spaces[i].word)) continue;
        ptx_advance(parser);
        if (spaces[i].space == PTX_SPACE_REG)
            parse_reg(parser);
        else if (spaces[i].space == PTX_SPACE_PARAM)
            parse_call_parameter(parser);
        else
            ptx_parse_variable(parser, spaces[i].space, is_extern);
        return;
    }
    ptx_parse_error(parser, parser->token.line, "unknown directive .%.*s", (int)parser->token.length,
                    parser->token.text);
}

/* A name and a colon: a label, or a table of labels. False: the name is an opcode. */
static bool parse_label(ptx_parser *parser) {
    const char *after = parser->next;
    while (after < parser->end && (*after == ' ' || *after == '\t')) after++;
    if (after >= parser->end || *after != ':') return false;
    const char *name = parser->token.text;
    uint32_t length = parser->token.length;
    ptx_advance(parser);
    ptx_expect(parser, ':');
    if (ptx_token_is_dot(parser, "branchtargets")) {
        ptx_advance(parser);
        parse_branch_targets(parser, name, length);
    } else if (ptx_token_is_dot(parser, "callprototype") || ptx_token_is_dot(parser, "calltargets")) {
        ptx_parse_error(parser, parser->token.line, "calls through pointers are not known here");
    } else {
        add_label(parser, name, length);
    }
    return true;
}

void ptx_parse_body(ptx_parser *parser) {
    uint32_t outer = parser->depth;
    uint32_t line = parser->token.line;
    ptx_expect(parser, '{');
    open_scope(parser);
    while (parser->depth > outer) {
        if (parser->token.kind == PTX_TOKEN_END) ptx_parse_error(parser, line, "the function does not end");
        if (ptx_accept(parser, '{'))
            open_scope(parser);
        else if (ptx_token_is(parser, "}")) {
            close_scope(parser);
            ptx_advance(parser);
        } else if (parser->token.kind == PTX_TOKEN_DOT)
            parse_body_directive(parser);
        else if (parser->token.kind == PTX_TOKEN_NAME && parse_label(parser))
            continue;
        else if (ptx_accept(parser, ';'))
            continue;
        else
            ptx_parse_statement(parser);
    }
}

static ptx_function *find_function(ptx_parser *parser, const char *name) {
    for (uint32_t i = 0; i < parser->module->function_count; i++)
        if (strcmp(parser->module->functions[i]->name, name) == 0) return parser->module->functions[i];
    return NULL;
}

static ptx_function *add_function(ptx_parser *parser, const char *name, bool is_kernel) {
    ptx_module *module = parser->module;
    ptx_function **moved = realloc(module->functions, (module->function_count + 1) * sizeof *moved);
    if (moved) module->functions = moved;
    ptx_kernel *kernel = calloc(1, sizeof *kernel);
    char *copy = malloc(strlen(name) + 1);
    if (!moved || !kernel || !copy) {
        free(kernel);
        free(copy);
        ptx_parse_error(parser, parser->line, "out of memory");
    }
    memcpy(copy, name, strlen(name) + 1);
    ptx_function *function = &kernel->function;
    module->functions[module->function_count++] = function;
    function->name = copy;
    function->module = module;
    function->is_kernel = is_kernel;
    function->max_threads = 1024;
    return function;
}

/* Registers that nothing in the text writes are what the compiler makes of values it knows nobody needs:
 * they count as written. Those that are written on another path do not. */
static void find_unwritten(ptx_parser *parser, ptx_function *function) {
    uint32_t *initial = malloc(function->slot_count * sizeof *initial);
    if (!initial) ptx_parse_error(parser, parser->line, "out of memory");
    memset(initial, 0xff, function->slot_count * sizeof *initial);
    for (uint32_t i = 0; i < function->code_count; i++)
        for (uint32_t s = 0; s < function->code[i].to_count; s++) initial[function->code[i].slots[s]] = 0;
    for (uint32_t i = 0; i < function->formal_count; i++)
        if (function->formals[i].is_register) initial[function->formals[i].slot] = 0;
    for (uint32_t c = 0; c < function->call_count; c++)
        for (uint32_t i = 0; i < function->calls[c]->result_count; i++)
            if (function->calls[c]->results[i].is_register) initial[function->calls[c]->results[i].slot] = 0;
    initial[0] = UINT32_MAX; /* the carry */
    function->initial = initial;
}

/* The name stands behind the results, which belong to the function: it is looked up first. */
static void read_name(ptx_parser *parser, char *name, size_t size) {
    const char *next = parser->next;
    uint32_t line = parser->line;
    ptx_token token = parser->token;
    while (parser->token.kind != PTX_TOKEN_END && parser->token.kind != PTX_TOKEN_NAME) {
        if (!ptx_accept(parser, '(')) break;
        while (parser->token.kind != PTX_TOKEN_END && !ptx_token_is(parser, ")")) ptx_advance(parser);
        ptx_expect(parser, ')');
    }
    if (parser->token.kind != PTX_TOKEN_NAME) ptx_parse_error(parser, parser->token.line, "a name expected");
    snprintf(name, size, "%.*s", (int)parser->token.length, parser->token.text);
    parser->next = next;
    parser->line = line;
    parser->token = token;
}

/* [(result)] name (parameters) attributes, and a body or a semicolon. */
void ptx_parse_function(ptx_parser *parser, bool is_kernel) {
    char name[1024];
    uint32_t line = parser->token.line;
    read_name(parser, name, sizeof name);
    ptx_function *function = find_function(parser, name);
    if (function && function->has_body) ptx_parse_error(parser, line, "a second body of %s", name);
    if (!function) function = add_function(parser, name, is_kernel);
    function->formal_count = 0;
    function->parameter_bytes = function->slot_count = 0;
    function->line = line;
    parser->function = function;
    ptx_add_registers(parser, "carry register", 14, 0, 1); /* slot 0, a name that no text can hold */
    parse_formals(parser);
    function->result_count = function->formal_count;
    ptx_advance(parser); /* the name */
    parse_formals(parser);
    function->formal_bytes = function->parameter_bytes;
    parse_attributes(parser, function);
    if (!ptx_accept(parser, ';')) {
        ptx_parse_body(parser);
        ptx_add_return(parser);
        find_unwritten(parser, function);
        function->has_body = true;
    }
    parser->function = NULL;
    parser->register_count = parser->symbol_count = parser->label_count = 0;
    parser->table_count = 0;
}
