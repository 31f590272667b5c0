/* PTX's tokens. Opcodes come as a name and words with a dot: `ld.global.v4.u32` is five tokens. */
#include "parse.h"
#include "run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void ptx_parse_error(ptx_parser *parser, uint32_t line, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    snprintf(parser->machine->message, sizeof parser->machine->message, "%s:%u: %s", parser->module->name,
             line, text);
    longjmp(parser->give_up, 1);
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$' || c == '%';
}

static char at(const ptx_parser *parser, size_t ahead) {
    return (size_t)(parser->end - parser->next) > ahead ? parser->next[ahead] : '\0';
}

static void skip_space(ptx_parser *parser) {
    for (;;) {
        char c = at(parser, 0);
        if (parser->next >= parser->end) return;
        if (c == '\n') {
            parser->line++;
            parser->next++;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\0') {
            parser->next++;
        } else if (c == '/' && at(parser, 1) == '/') {
            while (parser->next < parser->end && *parser->next != '\n') parser->next++;
        } else if (c == '/' && at(parser, 1) == '*') {
            parser->next += 2;
            while (parser->next < parser->end && !(at(parser, 0) == '*' && at(parser, 1) == '/')) {
                if (*parser->next == '\n') parser->line++;
                parser->next++;
            }
            if (parser->next >= parser->end) ptx_parse_error(parser, parser->line, "a comment does not end");
            parser->next += 2;
        } else {
            return;
        }
    }
}

static uint64_t read_hex_digits(ptx_parser *parser, uint32_t digits) {
    uint64_t value = 0;
    for (uint32_t i = 0; i < digits; i++) {
        char c = at(parser, i);
        uint32_t digit;
        if (is_digit(c))
            digit = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint32_t)(c - 'a') + 10;
        else if (c >= 'A' && c <= 'F')
            digit = (uint32_t)(c - 'A') + 10;
        else
            ptx_parse_error(parser, parser->line, "a number of %u hexadecimal digits is too short", digits);
        value = value << 4 | digit;
    }
    parser->next += digits;
    return value;
}

/* Integers in bases 2, 8, 10, 16, floats by their bits, decimal fractions. */
static void read_number(ptx_parser *parser, ptx_token *token) {
    char second = at(parser, 1);
    if (at(parser, 0) == '0' && (second == 'f' || second == 'F' || second == 'd' || second == 'D')) {
        bool is_double = second == 'd' || second == 'D';
        parser->next += 2;
        token->value = read_hex_digits(parser, is_double ? 16 : 8);
        token->kind = is_double ? PTX_TOKEN_FLOAT64 : PTX_TOKEN_FLOAT32;
        return;
    }
    char text[80];
    uint32_t length = 0;
    bool fraction = false, hex = at(parser, 0) == '0' && (second == 'x' || second == 'X');
    while (length + 1 < sizeof text) {
        char c = at(parser, 0);
        bool exponent_sign =
            (c == '+' || c == '-') && length && !hex && (text[length - 1] == 'e' || text[length - 1] == 'E');
        if (!is_digit(c) && !is_letter(c) && c != '.' && !exponent_sign) break;
        if (c == '.' && !is_digit(at(parser, 1))) break;
        if (c == '.' || (!hex && (c == 'e' || c == 'E'))) fraction = true;
        text[length++] = c;
        parser->next++;
    }
    text[length] = '\0';
    char *end;
    if (fraction) {
        double value = strtod(text, &end);
        memcpy(&token->value, &value, sizeof value);
        token->kind = PTX_TOKEN_FLOAT64;
    } else {
        bool binary = text[0] == '0' && (text[1] == 'b' || text[1] == 'B');
        token->value = strtoull(binary ? text + 2 : text, &end, binary ? 2 : 0);
        if (*end == 'U') end++;
        token->kind = PTX_TOKEN_INTEGER;
    }
    if (*end) ptx_parse_error(parser, parser->line, "%s is no number", text);
}

void ptx_advance(ptx_parser *parser) {
    skip_space(parser);
    ptx_token *token = &parser->token;
    *token = (ptx_token){.line = parser->line, .text = parser->next};
    char c = at(parser, 0);
    if (parser->next >= parser->end) {
        token->kind = PTX_TOKEN_END;
    } else if (is_letter(c)) {
        token->kind = PTX_TOKEN_NAME;
        while (is_letter(at(parser, 0)) || is_digit(at(parser, 0))) parser->next++;
    } else if (c == '.' && (is_letter(at(parser, 1)) || is_digit(at(parser, 1)))) {
        token->kind = PTX_TOKEN_DOT;
        token->text = ++parser->next;
        while (is_letter(at(parser, 0)) || is_digit(at(parser, 0)) ||
               (at(parser, 0) == ':' && at(parser, 1) == ':')) {
            parser->next += at(parser, 0) == ':' ? 2 : 1;
        }
    } else if (is_digit(c)) {
        read_number(parser, token);
    } else if (c == '"') {
        token->kind = PTX_TOKEN_STRING;
        parser->next++;
        while (parser->next < parser->end && *parser->next != '"' && *parser->next != '\n') {
            if (*parser->next == '\\' && at(parser, 1) != '\n') parser->next++;
            parser->next++;
        }
        if (at(parser, 0) != '"') ptx_parse_error(parser, parser->line, "a string does not end");
        parser->next++;
    } else {
        token->kind = PTX_TOKEN_SIGN;
        parser->next++;
    }
    token->length = (uint32_t)(parser->next - token->text);
}

bool ptx_token_is(const ptx_parser *parser, const char *text) {
    const ptx_token *token = &parser->token;
    return (token->kind == PTX_TOKEN_NAME || token->kind == PTX_TOKEN_SIGN) &&
           token->length == strlen(text) && memcmp(token->text, text, token->length) == 0;
}

bool ptx_token_is_dot(const ptx_parser *parser, const char *word) {
    const ptx_token *token = &parser->token;
    return token->kind == PTX_TOKEN_DOT && token->length == strlen(word) &&
           memcmp(token->text, word, token->length) == 0;
}

bool ptx_accept(ptx_parser *parser, char sign) {
    if (parser->token.kind != PTX_TOKEN_SIGN || parser->token.text[0] != sign) return false;
    ptx_advance(parser);
    return true;
}

void ptx_expect(ptx_parser *parser, char sign) {
    if (!ptx_accept(parser, sign)) {
        uint32_t shown = parser->token.length < 40 ? parser->token.length : 40;
        ptx_parse_error(parser, parser->token.line, "'%c' expected, not \"%.*s\"", sign, (int)shown,
                        parser->token.text);
    }
}

uint64_t ptx_expect_integer(ptx_parser *parser) {
    bool negative = ptx_accept(parser, '-');
    if (parser->token.kind != PTX_TOKEN_INTEGER)
        ptx_parse_error(parser, parser->token.line, "a number expected");
    uint64_t value = parser->token.value;
    ptx_advance(parser);
    return negative ? 0 - value : value;
}

void ptx_skip_line(ptx_parser *parser) {
    while (parser->next < parser->end && *parser->next != '\n') parser->next++;
    ptx_advance(parser);
}

void *ptx_grow(ptx_parser *parser, void *array, uint32_t count, uint32_t *room, size_t size) {
    if (count < *room) return array;
    uint32_t more = *room ? *room * 2 : 32;
    void *moved = realloc(array, more * size);
    if (!moved) ptx_parse_error(parser, parser->line, "out of memory");
    memset((char *)moved + *room * size, 0, (more - *room) * size);
    *room = more;
    return moved;
}
