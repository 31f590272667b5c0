/* mov with its packing and unpacking, cvta, isspacep. */
#include "parse.h"
#include "run.h"

#include <stdalign.h>

static ptx_step exec_mov(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    const void *from = ptx_slot(warp, insn->slots[1]);
    void *to = ptx_slot(warp, insn->slots[0]);
    if (insn->to_bits == 1)
        ptx_set_predicate(warp, insn->slots[0], mask, *(const uint32_t *)from);
    else if (insn->to_bits == 64)
        ptx_store_wides(to, from, mask);
    else
        ptx_store_words(to, from, mask);
    return PTX_STEP_NEXT;
}

/* The warp's own count of instructions: it grows, and differs from warp to warp, as time does. */
static ptx_step exec_clock(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    uint64_t now = warp->instructions;
    PTX_FOR_LANES(lane, mask) {
        if (insn->to_bits == 64)
            ((uint64_t *)ptx_slot(warp, insn->slots[0]))[lane] = now;
        else
            ((uint32_t *)ptx_slot(warp, insn->slots[0]))[lane] =
                insn->mode ? (uint32_t)(now >> 32) : (uint32_t)now;
    }
    return PTX_STEP_NEXT;
}

static ptx_step exec_pack(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    uint32_t bits = insn->elements;
    uint64_t part = bits == 64 ? UINT64_MAX : ((uint64_t)1 << bits) - 1;
    PTX_FOR_LANES(lane, mask) {
        uint64_t value = 0;
        for (uint32_t i = 0; i < insn->vector; i++)
            value |= (ptx_word(warp, insn->slots[1 + i], lane) & part) << bits * i;
        if (insn->to_bits == 64)
            ((uint64_t *)ptx_slot(warp, insn->slots[0]))[lane] = value;
        else
            ((uint32_t *)ptx_slot(warp, insn->slots[0]))[lane] = (uint32_t)value;
    }
    return PTX_STEP_NEXT;
}

static ptx_step exec_unpack(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    uint32_t bits = insn->elements, from = insn->slots[insn->vector];
    uint64_t part = ((uint64_t)1 << bits) - 1;
    PTX_FOR_LANES(lane, mask) {
        uint64_t value = insn->type == PTX_B64 ? ptx_wide(warp, from, lane) : ptx_word(warp, from, lane);
        for (uint32_t i = 0; i < insn->vector; i++)
            ((uint32_t *)ptx_slot(warp, insn->slots[i]))[lane] = (uint32_t)(value >> bits * i & part);
    }
    return PTX_STEP_NEXT;
}

static ptx_type bits_type(uint32_t bits) {
    return bits == 8 ? PTX_B8 : bits == 16 ? PTX_B16 : bits == 32 ? PTX_B32 : PTX_B64;
}

static void select_pack(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn, uint32_t bits) {
    bool unpacks = s->operands[0].kind == PTX_OPERAND_VECTOR;
    const ptx_operand *vector = &s->operands[unpacks ? 0 : 1], *whole = &s->operands[unpacks ? 1 : 0];
    uint32_t count = vector->count;
    if (bits > 64 || bits < 16 || (count != 2 && count != 4) || bits / count < 8)
        ptx_refuse(parser, "vectors of this kind are not known here");
    insn->vector = (uint8_t)count;
    insn->elements = (uint16_t)(bits / count);
    insn->type = (uint8_t)bits_type(bits);
    insn->flags |= PTX_COPIES;
    if (unpacks) {
        insn->exec = exec_unpack;
        ptx_add_to_each(parser, insn, vector, count, bits / count, false);
        ptx_add_from(parser, insn, whole, bits_type(bits), false);
    } else {
        insn->exec = exec_pack;
        ptx_add_to(parser, insn, whole, bits, false);
        ptx_add_from_each(parser, insn, vector, count, bits_type(bits / count), false);
        insn->to_bits = (uint8_t)bits;
    }
}

void ptx_select_mov(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    ptx_type type = ptx_need_type(parser);
    uint32_t bits = ptx_type_bits(type);
    ptx_need_operands(parser, 2, 2);
    if (s->operands[0].kind == PTX_OPERAND_VECTOR || s->operands[1].kind == PTX_OPERAND_VECTOR) {
        select_pack(parser, s, insn, bits);
        return;
    }
    if (bits > 64) ptx_refuse(parser, "128-bit registers are not known here");
    ptx_add_to(parser, insn, &s->operands[0], bits, false);
    if (s->operands[1].kind == PTX_OPERAND_SPECIAL && s->operands[1].value >= PTX_CLOCK) {
        insn->exec = exec_clock;
        insn->mode = s->operands[1].value == PTX_CLOCK_HI;
        return;
    }
    insn->exec = exec_mov;
    insn->flags |= PTX_COPIES;
    ptx_add_from(parser, insn, &s->operands[1], type, false);
    if (insn->flags & PTX_NEGATE_C) ptx_refuse(parser, "! is not known here");
}

/* ---- Address spaces ------------------------------------------------------------------------------------ */

static uint64_t window_of(uint32_t space) {
    return space == PTX_SPACE_SHARED  ? PTX_SHARED_WINDOW
           : space == PTX_SPACE_LOCAL ? PTX_LOCAL_WINDOW
           : space == PTX_SPACE_PARAM ? PTX_PARAM_WINDOW
                                      : 0;
}

static ptx_step exec_cvta(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    uint64_t window = window_of(insn->space);
    const uint64_t *from = ptx_slot(warp, insn->slots[1]);
    alignas(64) uint64_t result[PTX_LANES];
    for (uint32_t lane = 0; lane < PTX_LANES; lane++)
        result[lane] = insn->mode == 0 ? from[lane] | window
                       : window        ? from[lane] & ~PTX_WINDOW_MASK
                                       : from[lane];
    ptx_store_wides(ptx_slot(warp, insn->slots[0]), result, mask);
    return PTX_STEP_NEXT;
}

void ptx_select_cvta(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    insn->exec = exec_cvta;
    insn->mode = ptx_take(parser, "to");
    insn->space = (uint8_t)ptx_take_space(parser);
    ptx_type type = ptx_need_type(parser);
    ptx_need_operands(parser, 2, 2);
    if (insn->space == PTX_SPACE_GENERIC) ptx_refuse(parser, "a state space is missing");
    if (type != PTX_U64) ptx_refuse(parser, "only 64-bit addresses are known here");
    ptx_add_to(parser, insn, &s->operands[0], 64, false);
    ptx_add_from(parser, insn, &s->operands[1], PTX_U64, false);
}

static ptx_step exec_isspacep(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    uint32_t result = 0;
    PTX_FOR_LANES(lane, mask) {
        uint64_t address = ptx_wide(warp, insn->slots[1], lane), window = address & PTX_WINDOW_MASK;
        bool is = window == window_of(insn->space);
        if (is && window == 0) {
            const ptx_range *range = ptx_range_find(warp->block->machine, address);
            is =
                range ? range->is_const == (insn->space == PTX_SPACE_CONST) : insn->space == PTX_SPACE_GLOBAL;
        }
        result |= (uint32_t)is << lane;
    }
    ptx_set_predicate(warp, insn->slots[0], mask, result);
    return PTX_STEP_NEXT;
}

void ptx_select_isspacep(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    insn->exec = exec_isspacep;
    insn->space = (uint8_t)ptx_take_space(parser);
    ptx_need_operands(parser, 2, 2);
    if (insn->space == PTX_SPACE_GENERIC) ptx_refuse(parser, "a state space is missing");
    ptx_add_to(parser, insn, &s->operands[0], 1, false);
    ptx_add_from(parser, insn, &s->operands[1], PTX_U64, false);
}
