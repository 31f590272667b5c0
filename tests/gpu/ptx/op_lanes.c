/* Instructions whose lanes know nothing of each other: rows of tables, applied under a mask. */
#include "parse.h"
#include "run.h"

#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- Tables -------------------------------------------------------------------------------------------- */

#define FAMILIES(X, level)                                                                                   \
    X(ptx_integer_##level)                                                                                   \
    X(ptx_bits_##level)                                                                                      \
    X(ptx_float_##level)                                                                                     \
    X(ptx_half_##level)                                                                                      \
    X(ptx_approx_##level)                                                                                    \
    X(ptx_rounded_##level)                                                                                   \
    X(ptx_convert_##level)                                                                                   \
    X(ptx_product_##level)
#define DECLARE(table) extern const ptx_row table[];
#define NAME(table)    table,
FAMILIES(DECLARE, base)
static const ptx_row *const base_tables[] = {FAMILIES(NAME, base) NULL};
#ifdef PTX_HAVE_V3
FAMILIES(DECLARE, v3)
static const ptx_row *const v3_tables[] = {FAMILIES(NAME, v3) NULL};
#endif

/* KVANT_ISA=scalar keeps to what every machine has, so that one machine can test both. */
static const ptx_row *const *tables(void) {
#ifdef PTX_HAVE_V3
    const char *level = getenv("KVANT_ISA");
    if (level && (strcmp(level, "scalar") == 0 || strcmp(level, "v2") == 0)) return base_tables;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return v3_tables;
#endif
    return base_tables;
}

const ptx_row *ptx_find_row(const char *name) {
    for (const ptx_row *const *table = tables(); *table; table++)
        for (const ptx_row *row = *table; row->name; row++)
            if (strcmp(row->name, name) == 0) return row;
    return NULL;
}

/* ---- Stores under a mask ------------------------------------------------------------------------------- */

void ptx_store_words(uint32_t *to, const uint32_t *from, uint32_t mask) {
    if (mask == UINT32_MAX) {
        memcpy(to, from, PTX_SLOT_BYTES);
        return;
    }
    PTX_FOR_LANES(lane, mask) to[lane] = from[lane];
}

void ptx_store_wides(uint64_t *to, const uint64_t *from, uint32_t mask) {
    if (mask == UINT32_MAX) {
        memcpy(to, from, (size_t)2 * PTX_SLOT_BYTES);
        return;
    }
    PTX_FOR_LANES(lane, mask) to[lane] = from[lane];
}

static void store_result(ptx_warp *warp, const ptx_insn *insn, uint32_t slot, const void *result,
                         uint32_t mask) {
    if (insn->to_bits == 64)
        ptx_store_wides(ptx_slot(warp, slot), result, mask);
    else if (insn->to_bits == 1)
        ptx_set_predicate(warp, slot, mask, *(const uint32_t *)result);
    else
        ptx_store_words(ptx_slot(warp, slot), result, mask);
}

/* ---- Execution ----------------------------------------------------------------------------------------- */

static ptx_step exec_lanes(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    alignas(64) uint8_t result[320];
    const void *from[4];
    for (uint32_t i = 0; i < insn->from_count; i++) from[i] = ptx_slot(warp, insn->slots[1 + i]);
    insn->lane(result, from);
    store_result(warp, insn, insn->slots[0], result, mask);
    return PTX_STEP_NEXT;
}

/* add.cc, addc and their like. The carry register is the last slot of both lists. */
static ptx_step exec_carry(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    alignas(64) uint8_t result[320];
    const void *from[4];
    static const uint32_t no_carry = 0;
    for (uint32_t i = 0; i < insn->from_count; i++) from[i] = ptx_slot(warp, insn->slots[2 + i]);
    if (!(insn->flags & PTX_CARRY_IN)) from[insn->from_count - 1u] = &no_carry;
    insn->lane(result, from);
    store_result(warp, insn, insn->slots[0], result, mask);
    if (insn->flags & PTX_CARRY_OUT) {
        uint32_t carries;
        memcpy(&carries, result + 256, sizeof carries);
        ptx_set_predicate(warp, insn->slots[1], mask, carries);
    }
    return PTX_STEP_NEXT;
}

static uint32_t flush_word(uint32_t x) {
    return (x & 0x7f800000u) == 0 ? x & 0x80000000u : x;
}
static uint32_t flush_half(uint32_t x, uint32_t exponent) {
    return (x & exponent) == 0 ? x & 0x8000u : x;
}

/* One value after its operation: denormals to zero, [0, 1], no negative number. */
static uint32_t finish_word(uint32_t x, uint32_t flags) {
    if (flags & PTX_FTZ) x = flush_word(x);
    if (flags & PTX_SAT)
        x = (x & 0x7fffffffu) > 0x7f800000u || x >> 31 ? 0 : x > 0x3f800000u ? 0x3f800000u : x;
    return x;
}
static uint32_t finish_half(uint32_t x, uint32_t flags, bool bfloat) {
    uint32_t exponent = bfloat ? 0x7f80u : 0x7c00u, one = bfloat ? 0x3f80u : 0x3c00u;
    bool nan = (x & 0x7fffu) > exponent;
    if (flags & PTX_FTZ) x = flush_half(x, exponent);
    if (flags & PTX_SAT) x = nan || x >> 15 ? 0 : x > one ? one : x;
    if (flags & PTX_RELU) x = nan ? 0x7fffu : x >> 15 ? 0 : x;
    return x;
}

void ptx_flush_row(ptx_type type, uint32_t *to, const uint32_t *from) {
    for (uint32_t l = 0; l < PTX_LANES; l++) {
        uint32_t x = from[l];
        if (type == PTX_F32)
            to[l] = flush_word(x);
        else
            to[l] = flush_half(x & 0xffffu, 0x7c00u) | flush_half(x >> 16, 0x7c00u) << 16;
    }
}

/* With ftz, sat or relu. */
static ptx_step exec_flags(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    alignas(64) uint32_t result[80], flushed[4][PTX_LANES];
    const void *from[4];
    ptx_type type = (ptx_type)insn->type;
    bool bfloat = type == PTX_BF16 || type == PTX_BF16X2, pair = type == PTX_F16X2 || type == PTX_BF16X2;
    for (uint32_t i = 0; i < insn->from_count; i++) {
        from[i] = ptx_slot(warp, insn->slots[1 + i]);
        if (!(insn->flags & PTX_FTZ) || bfloat) continue;
        ptx_flush_row(type, flushed[i], from[i]);
        from[i] = flushed[i];
    }
    insn->lane(result, from);
    if (insn->to_bits != 1)
        for (uint32_t l = 0; l < PTX_LANES; l++) {
            uint32_t x = result[l];
            if (type == PTX_F32)
                result[l] = finish_word(x, insn->flags);
            else if (pair)
                result[l] = finish_half(x & 0xffffu, insn->flags, bfloat) |
                            finish_half(x >> 16, insn->flags, bfloat) << 16;
            else
                result[l] = finish_half(x, insn->flags, bfloat);
        }
    store_result(warp, insn, insn->slots[0], result, mask);
    return PTX_STEP_NEXT;
}

/* ---- Selection ----------------------------------------------------------------------------------------- */

static ptx_type letter_type(char letter, ptx_type type) {
    switch (letter) {
    case 'h':
        return PTX_B16;
    case 'r':
        return type == PTX_F32 ? PTX_F32 : PTX_B32;
    case 'd':
        return type == PTX_F64 ? PTX_F64 : PTX_B64;
    default:
        return PTX_PRED;
    }
}

static ptx_class class_of(const char *opcode, ptx_type type) {
    static const char *const special[] = {"ex2", "lg2",  "rcp", "rsqrt", "sqrt", "sin",
                                          "cos", "tanh", "div", "rem",   NULL};
    for (uint32_t i = 0; special[i]; i++)
        if (strcmp(opcode, special[i]) == 0) return PTX_CLASS_SPECIAL;
    if (strcmp(opcode, "selp") == 0 || strcmp(opcode, "slct") == 0) return PTX_CLASS_MOVE;
    return ptx_class_of(type);
}

/* The name without the modifiers in `drop` (NULL: all of them), which become flags. */
static const ptx_row *find_without(const ptx_statement *s, const char *const *drop) {
    char name[256];
    int length = snprintf(name, sizeof name, "%s", s->opcode);
    for (uint32_t i = 0; i < s->modifier_count; i++) {
        bool dropped = false;
        for (uint32_t d = 0; drop && drop[d]; d++) dropped = dropped || strcmp(s->modifiers[i], drop[d]) == 0;
        if (!dropped && (size_t)length < sizeof name)
            length += snprintf(name + length, sizeof name - (size_t)length, ".%s", s->modifiers[i]);
    }
    return ptx_find_row(name);
}

static void take_all(ptx_parser *parser) {
    for (uint32_t i = 0; i < parser->statement.modifier_count; i++) parser->statement.taken[i] = true;
}

static void add_row_operands(ptx_parser *parser, const ptx_row *row, ptx_type type, ptx_insn *insn) {
    const ptx_statement *s = &parser->statement;
    const char *sources = strchr(row->operands, '=') + 1;
    uint32_t count = (uint32_t)strlen(sources);
    ptx_need_operands(parser, count + 1, count + 1);
    ptx_add_to(parser, insn, &s->operands[0], ptx_type_bits(letter_type(sources[-2], type)), false);
    for (uint32_t i = 0; i < count; i++)
        ptx_add_from(parser, insn, &s->operands[1 + i], letter_type(sources[i], type), false);
    if (insn->flags & PTX_NEGATE_C) ptx_refuse(parser, "! is not known here");
}

/* add.cc.u32, addc.u32, addc.cc.u32: all are addc with a carry in or out or both. */
static bool select_carry(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    static const char *const stems[] = {"add", "sub", "mad", NULL};
    static const char *const drop[] = {"cc", NULL};
    bool out = false, in = false;
    for (uint32_t i = 0; i < s->modifier_count; i++) out = out || strcmp(s->modifiers[i], "cc") == 0;
    ptx_statement carried = *s;
    for (uint32_t i = 0; stems[i]; i++) {
        if (strncmp(s->opcode, stems[i], 3) != 0) continue;
        in = strcmp(s->opcode + 3, "c") == 0;
        if (!in && (!out || s->opcode[3])) continue;
        snprintf(carried.opcode, sizeof carried.opcode, "%sc", stems[i]);
        const ptx_row *row = find_without(&carried, drop);
        if (!row) return false;
        take_all(parser);
        insn->exec = exec_carry;
        insn->lane = row->lane;
        insn->class_ = PTX_CLASS_INTEGER;
        insn->flags = (uint16_t)((in ? PTX_CARRY_IN : 0) | (out ? PTX_CARRY_OUT : 0));
        uint32_t cc;
        if (!ptx_find_register(parser, "carry register", 14, &cc)) ptx_refuse(parser, "no carry register");
        ptx_operand carry = {.kind = PTX_OPERAND_REGISTER, .slot = cc, .bits = 1};
        const char *sources = strchr(row->operands, '=') + 1;
        uint32_t count = (uint32_t)strlen(sources), bits = sources[0] == 'd' ? 64 : 32;
        ptx_need_operands(parser, count + 1, count + 1);
        ptx_add_to(parser, insn, &s->operands[0], bits, false);
        ptx_add_to(parser, insn, &carry, 1, false);
        insn->to_bits = (uint8_t)bits;
        for (uint32_t c = 0; c < count; c++)
            ptx_add_from(parser, insn, &s->operands[1 + c], bits == 64 ? PTX_B64 : PTX_B32, false);
        ptx_add_from(parser, insn, &carry, PTX_PRED, false);
        return true;
    }
    return false;
}

void ptx_select_lanes(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    ptx_type type = PTX_NONE;
    for (uint32_t i = 0; i < s->modifier_count; i++)
        if (ptx_type_of(s->modifiers[i]) != PTX_NONE) type = ptx_type_of(s->modifiers[i]);
    insn->exec = exec_lanes;
    insn->type = (uint8_t)type;
    insn->class_ = (uint8_t)class_of(s->opcode, type);
    const ptx_row *row = find_without(s, NULL);
    if (row && row->operands[0] == 'c') row = NULL;
    if (!row && select_carry(parser, s, insn)) return;
    if (!row && (ptx_type_is_float(type))) {
        static const char *const drop[] = {"ftz", "sat", "relu", "rn", NULL}, *const drop_flags[] = {
                                                                                  "ftz", "sat", "relu", NULL};
        static const char *const nearest_only[] = {"add", "sub", "mul", "fma", "mad", NULL};
        bool nearest = false;
        for (uint32_t i = 0; nearest_only[i]; i++)
            nearest = nearest || strcmp(s->opcode, nearest_only[i]) == 0;
        row = find_without(s, nearest ? drop : drop_flags);
        for (uint32_t i = 0; row && i < s->modifier_count; i++) {
            if (strcmp(s->modifiers[i], "ftz") == 0) insn->flags |= PTX_FTZ;
            if (strcmp(s->modifiers[i], "sat") == 0) insn->flags |= PTX_SAT;
            if (strcmp(s->modifiers[i], "relu") == 0) insn->flags |= PTX_RELU;
        }
        if ((insn->flags & (PTX_FTZ | PTX_SAT | PTX_RELU)) && type == PTX_F64) row = NULL;
        if ((insn->flags & PTX_RELU) && type == PTX_F32) row = NULL;
        if (insn->flags) insn->exec = exec_flags;
    }
    if (!row) {
        char text[256];
        ptx_parse_error(parser, s->line, "unknown instruction %s", ptx_statement_text(s, text, sizeof text));
    }
    take_all(parser);
    insn->lane = row->lane;
    add_row_operands(parser, row, type, insn);
}
