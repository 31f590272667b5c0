/* setp and set: comparisons, combined with a predicate if asked. */
#include "parse.h"
#include "run.h"

#include <stdalign.h>
#include <stdio.h>

enum { COMBINE_NONE, COMBINE_AND, COMBINE_OR, COMBINE_XOR };

static uint32_t combine(const ptx_warp *warp, const ptx_insn *insn, uint32_t compared) {
    if (insn->mode == COMBINE_NONE) return compared;
    uint32_t other = ptx_predicate(warp, insn->slots[insn->to_count + 2u]);
    if (insn->flags & PTX_NEGATE_C) other = ~other;
    return insn->mode == COMBINE_AND  ? compared & other
           : insn->mode == COMBINE_OR ? compared | other
                                      : compared ^ other;
}

static void compare(const ptx_warp *warp, const ptx_insn *insn, uint32_t masks[2]) {
    alignas(64) uint32_t flushed[2][PTX_LANES];
    const void *from[2];
    for (uint32_t i = 0; i < 2; i++) {
        from[i] = ptx_slot(warp, insn->slots[insn->to_count + i]);
        if (!(insn->flags & PTX_FTZ)) continue;
        ptx_flush_row((ptx_type)insn->type, flushed[i], from[i]);
        from[i] = flushed[i];
    }
    insn->lane(masks, from);
}

static bool is_pair(uint32_t type) {
    return type == PTX_F16X2 || type == PTX_BF16X2;
}

static ptx_step exec_setp(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    uint32_t masks[2] = {0, 0};
    compare(warp, insn, masks);
    uint32_t first = combine(warp, insn, masks[0]);
    uint32_t second =
        insn->to_count < 2 ? 0 : combine(warp, insn, is_pair(insn->type) ? masks[1] : ~masks[0]);
    ptx_set_predicate(warp, insn->slots[0], mask, first);
    if (insn->to_count > 1) ptx_set_predicate(warp, insn->slots[1], mask, second);
    return PTX_STEP_NEXT;
}

/* All ones or 1.0 where true. */
static ptx_step exec_set(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    uint32_t masks[2] = {0, 0};
    compare(warp, insn, masks);
    uint32_t low = combine(warp, insn, masks[0]),
             high = is_pair(insn->type) ? combine(warp, insn, masks[1]) : 0;
    uint32_t yes;
    switch (insn->type2) {
    case PTX_F32:
        yes = 0x3f800000u;
        break;
    case PTX_F16:
    case PTX_F16X2:
        yes = 0x3c00u;
        break;
    case PTX_BF16:
    case PTX_BF16X2:
        yes = 0x3f80u;
        break;
    case PTX_U16:
    case PTX_S16:
        yes = 0xffffu;
        break;
    default:
        yes = is_pair(insn->type) ? 0xffffu : UINT32_MAX;
        break;
    }
    uint32_t *to = ptx_slot(warp, insn->slots[0]);
    PTX_FOR_LANES(lane, mask)
    to[lane] = (low >> lane & 1u ? yes : 0) | (high >> lane & 1u ? yes << 16 : 0);
    return PTX_STEP_NEXT;
}

/* The comparison's row is "setp.lt.s32"; the type compared is the last one written. */
static void find_comparison(ptx_parser *parser, ptx_insn *insn, ptx_type type) {
    static const char *const names[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "lo",  "ls",  "hi", "hs",
                                        "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan", NULL};
    static const char *const combinations[] = {"and", "or", "xor", NULL};
    int name = ptx_take_word(parser, names);
    if (name < 0) ptx_refuse(parser, "a comparison is missing");
    insn->mode = (uint8_t)(1 + ptx_take_word(parser, combinations));
    if (ptx_take(parser, "ftz")) {
        if (type != PTX_F32 && type != PTX_F16 && type != PTX_F16X2) ptx_refuse(parser, "ftz of this type");
        insn->flags |= PTX_FTZ;
    }
    char text[64];
    snprintf(text, sizeof text, "setp.%s.%s", names[name], ptx_type_name(type));
    const ptx_row *row = ptx_find_row(text);
    if (!row) ptx_refuse(parser, "this comparison of this type is not known");
    insn->lane = row->lane;
    insn->type = (uint8_t)type;
    insn->class_ = (uint8_t)ptx_class_of(type);
}

static void add_sources(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn, ptx_type type) {
    uint32_t count = insn->mode == COMBINE_NONE ? 3 : 4;
    ptx_need_operands(parser, count, count);
    ptx_add_from(parser, insn, &s->operands[1], type, false);
    ptx_add_from(parser, insn, &s->operands[2], type, false);
    if (insn->flags & PTX_NEGATE_C) ptx_refuse(parser, "! before what is no predicate");
    if (insn->mode != COMBINE_NONE) ptx_add_from(parser, insn, &s->operands[3], PTX_PRED, false);
}

void ptx_select_setp(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    insn->exec = exec_setp;
    ptx_type type = ptx_need_type(parser);
    find_comparison(parser, insn, type);
    if (s->operand_count == 0) ptx_refuse(parser, "operands are missing");
    ptx_operand first = s->operands[0], second = {.kind = PTX_OPERAND_REGISTER};
    if (is_pair(type) && !first.has_second) ptx_refuse(parser, "two predicates expected, p|q");
    ptx_add_to(parser, insn, &first, 1, false);
    if (first.has_second) {
        second.slot = first.second_slot;
        second.bits = first.second_bits;
        if (second.slot == PTX_NO_SLOT) second.kind = PTX_OPERAND_SINK;
        ptx_add_to(parser, insn, &second, 1, false);
    }
    add_sources(parser, s, insn, type);
}

void ptx_select_set(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    insn->exec = exec_set;
    ptx_type to = ptx_need_type(parser), type = ptx_need_type(parser);
    uint32_t bits = ptx_type_bits(to);
    if (bits > 32) ptx_refuse(parser, "no such result type");
    find_comparison(parser, insn, type);
    insn->type2 = (uint8_t)to;
    if (s->operand_count == 0) ptx_refuse(parser, "operands are missing");
    ptx_add_to(parser, insn, &s->operands[0], bits, false);
    add_sources(parser, s, insn, type);
}
