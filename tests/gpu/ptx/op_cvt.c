/* cvt: one value, two values into a pair, pairs of 16 bits from and to pairs of 8 and fewer, cvt.pack. */
#include "formats.h"
#include "parse.h"
#include "run.h"

#include <stdalign.h>
#include <stdio.h>

enum { WHOLE_NEAREST = 8 }; /* in insn->mode: rounded to an integer that stays a float */

static uint64_t flush(ptx_type type, uint64_t bits) {
    return type == PTX_F32 && (bits & 0x7f800000u) == 0 ? bits & 0x80000000u : bits;
}

static uint64_t clamp_unit(ptx_type type, ptx_number number, uint64_t bits) {
    if (number.kind == PTX_NAN || number.negative) return 0;
    ptx_number one = {.kind = PTX_FINITE, .digits = 1};
    uint64_t limit = ptx_number_to_float(type, one, PTX_ROUND_NEAREST, false);
    return bits > limit ? limit : bits;
}

static uint64_t clamp_integer(ptx_type to, ptx_type from, ptx_number number, uint32_t flags) {
    if (flags & PTX_SAT) return ptx_number_to_integer(to, number, PTX_ROUND_ZERO, from);
    uint64_t value = number.negative ? 0 - number.digits : number.digits;
    uint32_t bits = ptx_type_bits(to);
    return bits == 64 ? value : value & (((uint64_t)1 << bits) - 1);
}

static uint64_t convert(ptx_type to, ptx_type from, uint64_t bits, uint32_t mode, uint32_t flags) {
    if (flags & PTX_FTZ) bits = flush(from, bits);
    ptx_number number = ptx_number_from(from, bits);
    ptx_rounding rounding = (ptx_rounding)(mode & 7u);
    if (!ptx_type_is_float(to)) {
        if (!ptx_type_is_float(from)) return clamp_integer(to, from, number, flags);
        return ptx_number_to_integer(to, number, rounding, from);
    }
    if (mode & WHOLE_NEAREST) number = ptx_number_whole(number, rounding);
    if ((flags & PTX_RELU) && number.negative && number.kind != PTX_NAN)
        number = (ptx_number){.kind = PTX_ZERO};
    uint64_t result = ptx_number_to_float(to, number, rounding, flags & PTX_SATFINITE);
    if (flags & PTX_FTZ) result = flush(to, result);
    return flags & PTX_SAT ? clamp_unit(to, number, result) : result;
}

/* A narrow integer fills its register: sign or zeros. */
static uint64_t widen(ptx_type type, uint64_t value, uint32_t register_bits) {
    uint32_t bits = ptx_type_bits(type);
    if (ptx_type_is_signed(type) && bits < register_bits && value >> (bits - 1) & 1)
        value |= ~(uint64_t)0 << bits;
    return register_bits == 64 ? value : value & (((uint64_t)1 << register_bits) - 1);
}

static ptx_step exec_cvt(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    ptx_type to = (ptx_type)insn->type, from = (ptx_type)insn->type2;
    uint32_t bits = ptx_type_bits(from);
    PTX_FOR_LANES(lane, mask) {
        uint64_t value = insn->elements == 64 ? ptx_wide(warp, insn->slots[1], lane)
                                              : ptx_word(warp, insn->slots[1], lane);
        if (bits < 64) value &= ((uint64_t)1 << bits) - 1;
        value = widen(to, convert(to, from, value, insn->mode, insn->flags), insn->to_bits);
        if (insn->to_bits == 64)
            ((uint64_t *)ptx_slot(warp, insn->slots[0]))[lane] = value;
        else
            ((uint32_t *)ptx_slot(warp, insn->slots[0]))[lane] = (uint32_t)value;
    }
    return PTX_STEP_NEXT;
}

static ptx_step exec_cvt_lanes(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    alignas(64) uint8_t result[256];
    const void *from[2] = {ptx_slot(warp, insn->slots[1]), ptx_slot(warp, insn->slots[insn->from_count])};
    insn->lane(result, from);
    void *to = ptx_slot(warp, insn->slots[0]);
    if (insn->to_bits == 64)
        ptx_store_wides(to, (const uint64_t *)(const void *)result, mask);
    else
        ptx_store_words(to, (const uint32_t *)(const void *)result, mask);
    return PTX_STEP_NEXT;
}

/* ---- Pairs --------------------------------------------------------------------------------------------- */

/* The format of one element, and what kind of pair it is. */
static ptx_type element_of(ptx_type pair) {
    switch (pair) {
    case PTX_F16X2:
        return PTX_F16;
    case PTX_BF16X2:
        return PTX_BF16;
    case PTX_E4M3X2:
        return PTX_E4M3;
    case PTX_E5M2X2:
        return PTX_E5M2;
    case PTX_E2M1X2:
        return PTX_E2M1;
    case PTX_E2M3X2:
        return PTX_E2M3;
    case PTX_E3M2X2:
        return PTX_E3M2;
    case PTX_UE8M0X2:
        return PTX_UE8M0;
    default:
        return PTX_NONE;
    }
}

/* The first source (or the upper half) becomes the upper half. */
static ptx_step exec_cvt_pair(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    ptx_type to = (ptx_type)insn->type, from = (ptx_type)insn->type2;
    uint32_t to_bits = ptx_type_bits(to), from_bits = ptx_type_bits(from);
    uint32_t part = from_bits == 32 ? UINT32_MAX : ((uint32_t)1 << from_bits) - 1;
    PTX_FOR_LANES(lane, mask) {
        uint32_t high = ptx_word(warp, insn->slots[1], lane), low;
        if (insn->from_count == 2)
            low = ptx_word(warp, insn->slots[2], lane);
        else {
            low = high & part;
            high = high >> from_bits & part;
        }
        uint64_t value = convert(to, from, high, insn->mode, insn->flags) << to_bits |
                         convert(to, from, low, insn->mode, insn->flags);
        ((uint32_t *)ptx_slot(warp, insn->slots[0]))[lane] = (uint32_t)value;
    }
    return PTX_STEP_NEXT;
}

static void select_pair(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn, ptx_type to,
                        ptx_type from) {
    bool two = element_of(from) == PTX_NONE;
    if (two && from != PTX_F32) ptx_refuse(parser, "no such conversion");
    bool to_half = to == PTX_F16X2 || to == PTX_BF16X2, from_half = from == PTX_F16X2 || from == PTX_BF16X2;
    if (!two && to_half == from_half) ptx_refuse(parser, "no such conversion");
    if (!to_half && to != PTX_UE8M0X2 && !(insn->flags & PTX_SATFINITE))
        ptx_refuse(parser, "satfinite is missing");
    if (to == PTX_UE8M0X2 && insn->mode != PTX_ROUND_ZERO && insn->mode != PTX_ROUND_UP)
        ptx_refuse(parser, "rz or rp is missing");
    if (to != PTX_UE8M0X2 && !(to_half && two) && insn->mode != PTX_ROUND_NEAREST)
        ptx_refuse(parser, "no such rounding");
    if (from == PTX_UE8M0X2 && to != PTX_BF16X2) ptx_refuse(parser, "no such conversion");
    insn->exec = exec_cvt_pair;
    insn->type = (uint8_t)element_of(to);
    insn->type2 = (uint8_t)(two ? from : element_of(from));
    ptx_need_operands(parser, two ? 3 : 2, two ? 3 : 2);
    /* A pair of four bits is a .b8 register; one of more is .b16 or .b32. */
    ptx_add_to(parser, insn, &s->operands[0], ptx_type_bits(to), false);
    for (uint32_t i = 1; i < s->operand_count; i++) ptx_add_from(parser, insn, &s->operands[i], from, false);
}

/* ---- cvt.pack ------------------------------------------------------------------------------------------ */

/* Both sources clamped to the type, side by side below c shifted up. */
static ptx_step exec_cvt_pack(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    ptx_type to = (ptx_type)insn->type;
    uint32_t bits = ptx_type_bits(to), part = ((uint32_t)1 << bits) - 1;
    PTX_FOR_LANES(lane, mask) {
        uint32_t pair = 0;
        for (uint32_t i = 0; i < 2; i++) {
            ptx_number number = ptx_number_from(PTX_S32, ptx_word(warp, insn->slots[2 - i], lane));
            pair |= ((uint32_t)ptx_number_to_integer(to, number, PTX_ROUND_ZERO, PTX_S32) & part) << bits * i;
        }
        if (insn->from_count == 3) pair |= ptx_word(warp, insn->slots[3], lane) << 2 * bits;
        ((uint32_t *)ptx_slot(warp, insn->slots[0]))[lane] = pair;
    }
    return PTX_STEP_NEXT;
}

static void select_pack(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    if (!ptx_take(parser, "sat")) ptx_refuse(parser, "sat is missing");
    ptx_type to = ptx_need_type(parser), from = ptx_need_type(parser);
    bool with_c = ptx_take_type(parser) == PTX_B32;
    bool short_type = to == PTX_U16 || to == PTX_S16;
    if (from != PTX_S32 || (!short_type && to != PTX_U8 && to != PTX_S8 && to != PTX_U4 && to != PTX_S4) ||
        short_type == with_c)
        ptx_refuse(parser, "no such conversion");
    insn->exec = exec_cvt_pack;
    insn->type = (uint8_t)to;
    ptx_need_operands(parser, with_c ? 4 : 3, with_c ? 4 : 3);
    ptx_add_to(parser, insn, &s->operands[0], 32, false);
    for (uint32_t i = 1; i < s->operand_count; i++)
        ptx_add_from(parser, insn, &s->operands[i], PTX_B32, false);
}

/* ---- Selection ----------------------------------------------------------------------------------------- */

static bool use_row(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    char text[128];
    const ptx_row *row = ptx_find_row(ptx_statement_text(s, text, sizeof text));
    if (!row) return false;
    const char *letters = strchr(row->operands, '=') + 1;
    if (s->operand_count != strlen(letters) + 1) return false;
    uint32_t to_bits = row->operands[0] == 'd' ? 64 : row->operands[0] == 'h' ? 16 : 32;
    if (s->operands[0].kind != PTX_OPERAND_REGISTER || s->operands[0].bits != to_bits) return false;
    for (uint32_t i = 1; i < s->operand_count; i++) {
        const ptx_operand *source = &s->operands[i];
        if (source->kind != PTX_OPERAND_REGISTER || (source->bits == 64) != (letters[i - 1] == 'd'))
            return false;
        if (letters[i - 1] == 'r' && source->bits != 32) return false;
    }
    for (uint32_t i = 0; i < s->modifier_count; i++) parser->statement.taken[i] = true;
    insn->exec = exec_cvt_lanes;
    insn->lane = row->lane;
    ptx_add_to(parser, insn, &s->operands[0], to_bits, false);
    for (uint32_t i = 1; i < s->operand_count; i++) ptx_add_from(parser, insn, &s->operands[i], PTX_B8, true);
    return true;
}

static void take_rounding(ptx_parser *parser, ptx_insn *insn, bool *is_integer, bool *given) {
    static const char *const words[] = {"rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi", NULL};
    int word = ptx_take_word(parser, words);
    *given = word >= 0;
    *is_integer = word > 4;
    insn->mode = (uint8_t)(word < 0 ? PTX_ROUND_NEAREST : word > 4 ? word - 5 : word);
}

static void check_rounding(ptx_parser *parser, ptx_insn *insn, ptx_type to, ptx_type from, bool integer,
                           bool given) {
    bool to_float = ptx_type_is_float(to), from_float = ptx_type_is_float(from);
    bool narrows = to_float && (!from_float || ptx_type_bits(to) < ptx_type_bits(from) || to == PTX_TF32 ||
                                (to == PTX_F16) != (from == PTX_F16 && ptx_type_bits(to) == 16));
    if (to_float && from_float && ptx_type_bits(to) > ptx_type_bits(from)) narrows = false;
    if (!to_float && from_float && !integer) ptx_refuse(parser, "rounding to an integer is missing");
    if (!to_float && !from_float && given) ptx_refuse(parser, "no rounding between integers");
    if (to_float && !from_float && (integer || !given)) ptx_refuse(parser, "rounding is missing");
    if (to_float && from_float && narrows && to != from && (integer || !given))
        ptx_refuse(parser, "rounding is missing");
    if (to_float && from_float && integer) insn->mode |= WHOLE_NEAREST;
}

void ptx_select_cvt(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    if (use_row(parser, s, insn)) return;
    if (ptx_take(parser, "pack")) {
        select_pack(parser, s, insn);
        return;
    }
    bool integer, given;
    take_rounding(parser, insn, &integer, &given);
    if (ptx_take(parser, "ftz")) insn->flags |= PTX_FTZ;
    if (ptx_take(parser, "satfinite")) insn->flags |= PTX_SATFINITE;
    if (ptx_take(parser, "sat")) insn->flags |= PTX_SAT;
    if (ptx_take(parser, "relu")) insn->flags |= PTX_RELU;
    ptx_type to = ptx_need_type(parser), from = ptx_need_type(parser);
    if (element_of(to) != PTX_NONE || element_of(from) != PTX_NONE) {
        if (integer || element_of(to) == PTX_NONE) ptx_refuse(parser, "no such conversion");
        select_pair(parser, s, insn, to, from);
        return;
    }
    uint32_t bits = ptx_type_bits(to);
    if (bits < 8 || ptx_type_bits(from) < 8 || ptx_type_bits(to) > 64 || to == PTX_PRED || from == PTX_PRED)
        ptx_refuse(parser, "no such conversion");
    check_rounding(parser, insn, to, from, integer, given);
    insn->exec = exec_cvt;
    insn->type = (uint8_t)to;
    insn->type2 = (uint8_t)from;
    ptx_need_operands(parser, 2, 2);
    ptx_add_to(parser, insn, &s->operands[0], bits, true);
    ptx_add_from(parser, insn, &s->operands[1], from, true);
    insn->elements = s->operands[1].kind == PTX_OPERAND_REGISTER ? (uint16_t)s->operands[1].bits
                                                                 : (uint16_t)ptx_type_bits(from);
}
