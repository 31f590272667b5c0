/* A module's directives; loading and unloading. */
#include "parse.h"
#include "run.h"

#include <stdio.h>
#include <stdlib.h>

/* .section name { ... }: debugging information. */
static void skip_section(ptx_parser *parser) {
    while (!ptx_token_is(parser, "{")) {
        if (parser->token.kind == PTX_TOKEN_END)
            ptx_parse_error(parser, parser->line, "a section without braces");
        ptx_advance(parser);
    }
    uint32_t line = parser->token.line;
    while (!ptx_token_is(parser, "}")) {
        if (parser->token.kind == PTX_TOKEN_END) ptx_parse_error(parser, line, "the section does not end");
        ptx_advance(parser);
    }
    ptx_advance(parser);
}

static void parse_linked(ptx_parser *parser, bool is_extern);

static void parse_directive(ptx_parser *parser) {
    if (parser->token.kind != PTX_TOKEN_DOT)
        ptx_parse_error(parser, parser->token.line, "a directive expected, not \"%.*s\"",
                        (int)(parser->token.length < 40 ? parser->token.length : 40), parser->token.text);
    if (ptx_token_is_dot(parser, "version") || ptx_token_is_dot(parser, "target") ||
        ptx_token_is_dot(parser, "file") || ptx_token_is_dot(parser, "pragma") ||
        ptx_token_is_dot(parser, "loc")) {
        ptx_skip_line(parser);
    } else if (ptx_token_is_dot(parser, "address_size")) {
        ptx_advance(parser);
        if (ptx_expect_integer(parser) != 64)
            ptx_parse_error(parser, parser->line, "only 64-bit addresses are known here");
    } else if (ptx_token_is_dot(parser, "section")) {
        skip_section(parser);
    } else if (ptx_token_is_dot(parser, "visible") || ptx_token_is_dot(parser, "weak") ||
               ptx_token_is_dot(parser, "common")) {
        ptx_advance(parser);
        parse_linked(parser, false);
    } else if (ptx_token_is_dot(parser, "extern")) {
        ptx_advance(parser);
        parse_linked(parser, true);
    } else {
        parse_linked(parser, false);
    }
}

static void parse_linked(ptx_parser *parser, bool is_extern) {
    bool is_kernel = ptx_token_is_dot(parser, "entry");
    if (is_kernel || ptx_token_is_dot(parser, "func")) {
        ptx_advance(parser);
        ptx_parse_function(parser, is_kernel);
        return;
    }
    static const struct {
        const char *word;
        ptx_space space;
    } spaces[] = {{"global", PTX_SPACE_GLOBAL}, {"const", PTX_SPACE_CONST}, {"shared", PTX_SPACE_SHARED}};
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++) {
        if (!ptx_token_is_dot(parser, spaces[i].word)) continue;
        ptx_advance(parser);
        ptx_parse_variable(parser, spaces[i].space, is_extern);
        return;
    }
    ptx_parse_error(parser, parser->token.line, "unknown directive .%.*s", (int)parser->token.length,
                    parser->token.text);
}

/* Dynamic shared memory begins behind the largest kernel's own, so that the address of an extern array is the
 * same in functions that several kernels call. */
static void place_dynamic_shared(ptx_parser *parser) {
    ptx_module *module = parser->module;
    uint32_t at = module->shared_bytes;
    for (uint32_t i = 0; i < module->function_count; i++) {
        ptx_function *function = module->functions[i];
        if (!function->is_kernel) continue;
        for (uint32_t e = 0; e < function->shared_extent_count; e++) {
            function->shared_extents[e].from += module->shared_bytes;
            function->shared_extents[e].to += module->shared_bytes;
        }
        if (module->shared_bytes + function->shared_bytes > at)
            at = module->shared_bytes + function->shared_bytes;
    }
    module->dynamic_at = (at + 1023) / 1024 * 1024;
    for (uint32_t i = 0; i < module->function_count; i++) {
        ptx_function *function = module->functions[i];
        for (uint32_t f = 0; f < function->fill_count; f++) {
            ptx_fill *fill = &function->fills[f];
            if (fill->from_dynamic_shared) fill->value += module->dynamic_at;
        }
    }
}

static void check_calls(ptx_parser *parser) {
    for (uint32_t i = 0; i < parser->module->function_count; i++) {
        const ptx_function *function = parser->module->functions[i];
        for (uint32_t c = 0; c < function->call_count; c++) {
            const ptx_function *callee = function->calls[c]->callee;
            if (!callee->has_body && strcmp(callee->name, "vprintf") != 0 &&
                strcmp(callee->name, "__assertfail") != 0)
                ptx_parse_error(parser, function->line, "%s calls %s, which has no body", function->name,
                                callee->name);
        }
    }
}

static bool parse_text(ptx_parser *parser) {
    if (setjmp(parser->give_up) != 0) return false;
    ptx_advance(parser);
    while (parser->token.kind != PTX_TOKEN_END) parse_directive(parser);
    place_dynamic_shared(parser);
    check_calls(parser);
    return true;
}

ptx_module *ptx_module_load(ptx_machine *machine, const char *name, const char *text, size_t size) {
    machine->message[0] = '\0';
    ptx_module *module = calloc(1, sizeof *module);
    ptx_parser *parser = calloc(1, sizeof *parser);
    if (module) {
        module->machine = machine;
        module->name = malloc(strlen(name) + 1);
        module->text = malloc(size + 1);
    }
    if (!module || !parser || !module->name || !module->text) {
        snprintf(machine->message, sizeof machine->message, "%s: out of memory", name);
        if (module) {
            free(module->name);
            free(module->text);
        }
        free(module);
        free(parser);
        return NULL;
    }
    memcpy(module->name, name, strlen(name) + 1);
    memcpy(module->text, text, size);
    module->text[size] = '\0';
    module->text_size = size;
    module->next = machine->modules;
    machine->modules = module;

    *parser = (ptx_parser){
        .machine = machine, .module = module, .next = module->text, .end = module->text + size, .line = 1};
    bool loaded = parse_text(parser);
    free(parser->registers);
    free(parser->symbols);
    free(parser->labels);
    free(parser->references);
    free(parser);
    if (loaded) return module;
    ptx_module_unload(module);
    return NULL;
}

static void free_extents(ptx_extent *extents, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) free(extents[i].name);
    free(extents);
}

void ptx_module_unload(ptx_module *module) {
    if (!module) return;
    ptx_module **link = &module->machine->modules;
    while (*link != module) link = &(*link)->next;
    *link = module->next;
    for (uint32_t i = 0; i < module->function_count; i++) {
        ptx_function *function = module->functions[i];
        for (uint32_t c = 0; c < function->call_count; c++) free(function->calls[c]);
        for (uint32_t t = 0; t < function->table_count; t++) free(function->tables[t].targets);
        free_extents(function->shared_extents, function->shared_extent_count);
        free(function->calls);
        free(function->tables);
        free(function->formals);
        free(function->fills);
        free(function->initial);
        free(function->code);
        free(function->name);
        free(function);
    }
    for (uint32_t i = 0; i < module->memory_count; i++) ptx_memory_free(module->machine, module->memory[i]);
    free_extents(module->shared_extents, module->shared_extent_count);
    free(module->memory);
    free(module->functions);
    free(module->symbols);
    free(module->text);
    free(module->name);
    free(module);
}

const ptx_kernel *ptx_module_kernel(const ptx_module *module, const char *name) {
    for (uint32_t i = 0; i < module->function_count; i++)
        if (module->functions[i]->is_kernel && strcmp(module->functions[i]->name, name) == 0)
            return (const ptx_kernel *)module->functions[i];
    return NULL;
}

uint32_t ptx_module_kernel_count(const ptx_module *module) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < module->function_count; i++) count += module->functions[i]->is_kernel;
    return count;
}

const ptx_kernel *ptx_module_kernel_at(const ptx_module *module, uint32_t index) {
    for (uint32_t i = 0; i < module->function_count; i++)
        if (module->functions[i]->is_kernel && index-- == 0) return (const ptx_kernel *)module->functions[i];
    return NULL;
}

void *ptx_module_variable(const ptx_module *module, const char *name, size_t *size) {
    for (uint32_t i = 0; i < module->symbol_count; i++) {
        const ptx_symbol *symbol = &module->symbols[i];
        if (symbol->name_length != strlen(name) || memcmp(symbol->name, name, symbol->name_length) != 0)
            continue;
        if (symbol->space != PTX_SPACE_GLOBAL && symbol->space != PTX_SPACE_CONST) continue;
        if (size) *size = symbol->size;
        return (void *)(uintptr_t)symbol->address;
    }
    return NULL;
}

const char *ptx_kernel_name(const ptx_kernel *kernel) {
    return kernel->function.name;
}
size_t ptx_kernel_shared_bytes(const ptx_kernel *kernel) {
    return (size_t)kernel->function.shared_used + kernel->function.module->shared_used;
}
size_t ptx_kernel_local_bytes(const ptx_kernel *kernel) {
    return kernel->function.local_bytes;
}
uint32_t ptx_kernel_max_threads(const ptx_kernel *kernel) {
    return kernel->function.max_threads;
}
uint32_t ptx_kernel_parameter_count(const ptx_kernel *kernel) {
    return kernel->function.formal_count;
}
size_t ptx_kernel_parameter_size(const ptx_kernel *kernel, uint32_t index) {
    return index < kernel->function.formal_count ? kernel->function.formals[index].size : 0;
}
size_t ptx_kernel_parameter_offset(const ptx_kernel *kernel, uint32_t index) {
    return index < kernel->function.formal_count ? kernel->function.formals[index].offset : 0;
}
