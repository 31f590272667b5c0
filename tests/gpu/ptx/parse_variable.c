/* Variables of modules and functions: where they lie, and their initialisers. */
#include "parse.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

/* Shared variables are laid out with a gap behind each, so that running over one's end is seen and does not
 * change its neighbour. A multiple of 128 leaves the banks as they are. */
enum { SHARED_GAP = 128 };

static uint64_t align_up(uint64_t value, uint64_t to) {
    return (value + to - 1) / to * to;
}

void ptx_parse_declaration(ptx_parser *parser, ptx_declaration *d) {
    while (parser->token.kind == PTX_TOKEN_DOT) {
        char word[PTX_WORD];
        snprintf(word, sizeof word, "%.*s", (int)parser->token.length, parser->token.text);
        uint32_t line = parser->token.line;
        ptx_advance(parser);
        if (strcmp(word, "align") == 0) {
            uint64_t align = ptx_expect_integer(parser);
            if (align == 0 || align > 4096 || (align & (align - 1)))
                ptx_parse_error(parser, line, "bad .align");
            d->align = (uint32_t)align;
        } else if (strcmp(word, "v2") == 0) {
            d->vector = 2;
        } else if (strcmp(word, "v4") == 0) {
            d->vector = 4;
        } else if (strcmp(word, "ptr") == 0) {
            d->is_pointer = true;
        } else if (d->is_pointer && (strcmp(word, "global") == 0 || strcmp(word, "shared") == 0 ||
                                     strcmp(word, "const") == 0 || strcmp(word, "local") == 0)) {
            continue;
        } else if (ptx_type_of(word) != PTX_NONE) {
            d->type = ptx_type_of(word);
        } else {
            ptx_parse_error(parser, line, "unknown attribute .%s of a variable", word);
        }
    }
    if (d->type == PTX_NONE) ptx_parse_error(parser, parser->token.line, "a type expected");
    if (parser->token.kind != PTX_TOKEN_NAME) ptx_parse_error(parser, parser->token.line, "a name expected");
    d->name = parser->token.text;
    d->name_length = parser->token.length;
    ptx_advance(parser);
    d->count = 1;
    while (ptx_accept(parser, '[')) {
        d->is_array = true;
        if (ptx_token_is(parser, "]")) {
            d->unsized = true;
        } else {
            uint64_t dimension = ptx_expect_integer(parser);
            if (dimension > UINT32_MAX || d->count * dimension > UINT32_MAX)
                ptx_parse_error(parser, parser->token.line, "too large an array");
            d->count *= dimension;
        }
        ptx_expect(parser, ']');
    }
    if (d->vector) d->count *= d->vector;
    uint32_t natural = ptx_type_bits(d->type) / 8 * (d->vector ? d->vector : 1);
    if (d->align == 0) d->align = natural ? natural : 1;
}

ptx_symbol *ptx_add_symbol(ptx_parser *parser, const ptx_declaration *d) {
    ptx_symbol symbol = {.name = d->name,
                         .name_length = d->name_length,
                         .space = (uint8_t)d->space,
                         .bits = (uint8_t)ptx_type_bits(d->type),
                         .size = d->count * (ptx_type_bits(d->type) / 8),
                         .slot = PTX_NO_SLOT};
    if (parser->function) {
        parser->symbols =
            ptx_grow(parser, parser->symbols, parser->symbol_count, &parser->symbol_room, sizeof symbol);
        parser->symbols[parser->symbol_count] = symbol;
        return &parser->symbols[parser->symbol_count++];
    }
    ptx_module *module = parser->module;
    ptx_symbol *moved = realloc(module->symbols, (module->symbol_count + 1) * sizeof symbol);
    if (!moved) ptx_parse_error(parser, parser->line, "out of memory");
    module->symbols = moved;
    module->symbols[module->symbol_count] = symbol;
    return &module->symbols[module->symbol_count++];
}

const ptx_symbol *ptx_find_symbol(const ptx_parser *parser, const char *name, uint32_t length) {
    for (uint32_t i = parser->symbol_count; i-- > 0;) {
        const ptx_symbol *symbol = &parser->symbols[i];
        if (symbol->name_length == length && memcmp(symbol->name, name, length) == 0) return symbol;
    }
    for (uint32_t i = 0; i < parser->module->symbol_count; i++) {
        const ptx_symbol *symbol = &parser->module->symbols[i];
        if (symbol->name_length == length && memcmp(symbol->name, name, length) == 0) return symbol;
    }
    return NULL;
}

static char *copy_name(ptx_parser *parser, const char *name, uint32_t length) {
    char *copy = malloc(length + 1u);
    if (!copy) ptx_parse_error(parser, parser->line, "out of memory");
    memcpy(copy, name, length);
    copy[length] = '\0';
    return copy;
}

static void place_shared(ptx_parser *parser, const ptx_declaration *d, ptx_symbol *symbol) {
    ptx_module *module = parser->module;
    ptx_function *function = parser->function;
    /* What other functions declare lies where no kernel's own variables lie. */
    bool own = function && function->is_kernel;
    uint32_t *bytes = own ? &function->shared_bytes : &module->shared_bytes;
    uint32_t *used = own ? &function->shared_used : &module->shared_used;
    ptx_extent **extents = own ? &function->shared_extents : &module->shared_extents;
    uint32_t *count = own ? &function->shared_extent_count : &module->shared_extent_count;
    uint64_t from = align_up(*bytes, d->align > 128 ? d->align : 128);
    if (from + symbol->size + SHARED_GAP > 1u << 24)
        ptx_parse_error(parser, parser->line, "too much shared memory");
    symbol->address = from;
    *bytes = (uint32_t)(from + symbol->size + SHARED_GAP);
    *used = (uint32_t)(align_up(*used, d->align) + symbol->size);
    ptx_extent *moved = realloc(*extents, (*count + 1) * sizeof *moved);
    if (!moved) ptx_parse_error(parser, parser->line, "out of memory");
    *extents = moved;
    moved[*count].from = (uint32_t)from;
    moved[*count].to = (uint32_t)(from + symbol->size);
    moved[*count].name = copy_name(parser, d->name, d->name_length);
    ++*count;
}

/* One value of an initialiser: a number, or the address of a variable, possibly generic(x). */
static uint64_t initial_value(ptx_parser *parser, ptx_type type) {
    bool negative = ptx_accept(parser, '-');
    ptx_token token = parser->token;
    ptx_advance(parser);
    if (token.kind == PTX_TOKEN_NAME) {
        bool generic = token.length == 7 && memcmp(token.text, "generic", 7) == 0;
        if (generic) {
            ptx_expect(parser, '(');
            token = parser->token;
            ptx_advance(parser);
            ptx_expect(parser, ')');
        }
        const ptx_symbol *symbol = ptx_find_symbol(parser, token.text, token.length);
        if (!symbol || (symbol->space != PTX_SPACE_GLOBAL && symbol->space != PTX_SPACE_CONST))
            ptx_parse_error(parser, token.line, "unknown variable %.*s", (int)token.length, token.text);
        uint64_t value = symbol->address;
        if (ptx_accept(parser, '+')) value += ptx_expect_integer(parser);
        return value;
    }
    uint64_t value = token.value;
    if (token.kind == PTX_TOKEN_FLOAT64 && type == PTX_F32) {
        double wide;
        memcpy(&wide, &value, sizeof wide);
        float narrow = (float)wide;
        uint32_t bits;
        memcpy(&bits, &narrow, sizeof bits);
        value = bits;
    } else if (token.kind != PTX_TOKEN_INTEGER && token.kind != PTX_TOKEN_FLOAT32 &&
               token.kind != PTX_TOKEN_FLOAT64) {
        ptx_parse_error(parser, token.line, "a value expected");
    }
    if (!negative) return value;
    if (token.kind == PTX_TOKEN_INTEGER) return 0 - value;
    return value ^ (uint64_t)1 << (ptx_type_bits(type) - 1);
}

/* Nested braces only group: values lie one after another. */
static void initial_values(ptx_parser *parser, const ptx_declaration *d, unsigned char *memory,
                           uint64_t *index) {
    uint32_t bytes = ptx_type_bits(d->type) / 8;
    do {
        if (ptx_accept(parser, '{')) {
            if (!ptx_token_is(parser, "}")) initial_values(parser, d, memory, index);
            ptx_expect(parser, '}');
            continue;
        }
        uint64_t value = initial_value(parser, d->type);
        if (*index >= d->count) ptx_parse_error(parser, parser->token.line, "more values than elements");
        memcpy(memory + *index * bytes, &value, bytes);
        ++*index;
    } while (ptx_accept(parser, ','));
}

static void place_global(ptx_parser *parser, const ptx_declaration *d, ptx_symbol *symbol) {
    ptx_module *module = parser->module;
    char name[256];
    snprintf(name, sizeof name, "%.*s", (int)d->name_length, d->name);
    void *memory = ptx_memory_alloc(parser->machine, symbol->size ? symbol->size : 1, name);
    void **moved = realloc(module->memory, (module->memory_count + 1) * sizeof *moved);
    if (moved) module->memory = moved;
    if (!memory || !moved) {
        ptx_memory_free(parser->machine, memory);
        ptx_parse_error(parser, parser->line, "out of memory");
    }
    module->memory[module->memory_count++] = memory;
    memset(memory, 0, symbol->size);
    ptx_range *range = ptx_range_find(parser->machine, (uint64_t)(uintptr_t)memory);
    range->is_const = d->space == PTX_SPACE_CONST;
    symbol->address = (uint64_t)(uintptr_t)memory;
}

void ptx_parse_variable(ptx_parser *parser, ptx_space space, bool is_extern) {
    do {
        ptx_declaration d = {.space = space};
        ptx_parse_declaration(parser, &d);
        uint32_t line = parser->token.line;
        ptx_symbol *symbol = ptx_add_symbol(parser, &d);
        if (space == PTX_SPACE_SHARED) {
            if (is_extern || d.unsized) {
                symbol->dynamic = true;
                symbol->size = 0;
            } else {
                place_shared(parser, &d, symbol);
            }
        } else if (space == PTX_SPACE_LOCAL) {
            if (!parser->function) ptx_parse_error(parser, line, ".local outside of a function");
            symbol->address = align_up(parser->function->local_bytes, d.align);
            parser->function->local_bytes = (uint32_t)(symbol->address + symbol->size);
        } else {
            if (is_extern)
                ptx_parse_error(parser, line, "no other module can define %.*s", (int)d.name_length, d.name);
            if (d.unsized) ptx_parse_error(parser, line, "%.*s has no size", (int)d.name_length, d.name);
            place_global(parser, &d, symbol);
            if (ptx_accept(parser, '=')) {
                uint64_t index = 0;
                initial_values(parser, &d, (unsigned char *)(uintptr_t)symbol->address, &index);
            }
        }
    } while (ptx_accept(parser, ','));
    ptx_expect(parser, ';');
}
