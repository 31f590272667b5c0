/* atom and red. Lanes take their turns in order. */
#include "formats.h"
#include "parse.h"
#include "run.h"

enum { OP_ADD, OP_AND, OP_OR, OP_XOR, OP_MIN, OP_MAX, OP_EXCH, OP_CAS, OP_INC, OP_DEC };

static double real(ptx_type type, uint64_t bits) {
    uint64_t wide = ptx_number_to_float(PTX_F64, ptx_number_from(type, bits), PTX_ROUND_NEAREST, false);
    double x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

static uint64_t from_real(ptx_type type, double x) {
    uint64_t wide;
    memcpy(&wide, &x, sizeof wide);
    return ptx_number_to_float(type, ptx_number_from(PTX_F64, wide), PTX_ROUND_NEAREST, false);
}

/* A double holds the sum of two shorter floats exactly enough: one rounding of the sum to double and one to
 * the type give what one rounding would. f64 itself rounds once. */
static uint64_t add_floats(ptx_type type, uint64_t a, uint64_t b) {
    switch (type) {
    case PTX_F16X2:
        return add_floats(PTX_F16, a & 0xffffu, b & 0xffffu) | add_floats(PTX_F16, a >> 16, b >> 16) << 16;
    case PTX_BF16X2:
        return add_floats(PTX_BF16, a & 0xffffu, b & 0xffffu) | add_floats(PTX_BF16, a >> 16, b >> 16) << 16;
    default:
        return from_real(type, real(type, a) + real(type, b));
    }
}

static bool less(ptx_type type, uint64_t a, uint64_t b) {
    switch (type) {
    case PTX_S32:
        return (int32_t)a < (int32_t)b;
    case PTX_S64:
        return (int64_t)a < (int64_t)b;
    case PTX_F16:
    case PTX_BF16:
        return real(type, a) < real(type, b);
    default:
        return a < b;
    }
}

static uint64_t apply(const ptx_insn *insn, uint64_t old, uint64_t b, uint64_t c) {
    ptx_type type = (ptx_type)insn->type;
    switch (insn->mode) {
    case OP_ADD:
        return ptx_type_is_float(type) ? add_floats(type, old, b) : old + b;
    case OP_AND:
        return old & b;
    case OP_OR:
        return old | b;
    case OP_XOR:
        return old ^ b;
    case OP_MIN:
        return less(type, b, old) ? b : old;
    case OP_MAX:
        return less(type, old, b) ? b : old;
    case OP_EXCH:
        return b;
    case OP_CAS:
        return old == b ? c : old;
    case OP_INC:
        return old >= b ? 0 : old + 1;
    default:
        return old == 0 || old > b ? b : old - 1;
    }
}

static void run_part(ptx_warp *warp, const ptx_insn *insn, ptx_access *part) {
    ptx_access_resolve(warp, insn, part);
    uint32_t bytes = insn->elements, at = insn->to_count; /* of the address among the slots */
    PTX_FOR_LANES(lane, part->mask) {
        uint64_t old = 0, b, c = 0;
        memcpy(&old, part->host[lane], bytes);
        bool wide = bytes == 8;
        b = wide ? ptx_wide(warp, insn->slots[at + 1], lane) : ptx_word(warp, insn->slots[at + 1], lane);
        if (insn->mode == OP_CAS)
            c = wide ? ptx_wide(warp, insn->slots[at + 2], lane) : ptx_word(warp, insn->slots[at + 2], lane);
        uint64_t value = apply(insn, old, b, c);
        memcpy(part->host[lane], &value, bytes);
        if (insn->to_count == 0) continue;
        if (wide)
            ((uint64_t *)ptx_slot(warp, insn->slots[0]))[lane] = old;
        else
            ((uint32_t *)ptx_slot(warp, insn->slots[0]))[lane] = (uint32_t)old;
    }
}

static ptx_step exec_atomic(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    ptx_access access = {
        .mask = mask, .size = insn->elements, .kind = PTX_ATOMIC, .space = insn->space, .strong = true};
    if (insn->flags & PTX_RELEASES) ptx_block_fence(warp->block);
    ptx_access_addresses(warp, insn, insn->slots[insn->to_count], insn->wide_address, &access);
    if (insn->space != PTX_SPACE_GENERIC) {
        run_part(warp, insn, &access);
        return PTX_STEP_NEXT;
    }
    ptx_access part;
    uint32_t rest = mask;
    while (ptx_access_next_space(&access, &rest, &part)) run_part(warp, insn, &part);
    return PTX_STEP_NEXT;
}

static bool known(uint32_t op, ptx_type type) {
    bool word = type == PTX_U32 || type == PTX_S32, wide = type == PTX_U64 || type == PTX_S64;
    switch (op) {
    case OP_ADD:
        return word || type == PTX_U64 || (ptx_type_is_float(type) && type != PTX_TF32);
    case OP_AND:
    case OP_OR:
    case OP_XOR:
        return type == PTX_B32 || type == PTX_B64;
    case OP_MIN:
    case OP_MAX:
        return word || wide;
    case OP_EXCH:
        return type == PTX_B32 || type == PTX_B64;
    case OP_CAS:
        return type == PTX_B32 || type == PTX_B64 || type == PTX_B16;
    default:
        return type == PTX_U32;
    }
}

void ptx_select_atomic(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    static const char *const ops[] = {"add",  "and", "or",  "xor", "min", "max",
                                      "exch", "cas", "inc", "dec", NULL};
    static const char *const orders[] = {"relaxed", "acquire", "release", "acq_rel", NULL};
    static const char *const scopes[] = {"cta", "cluster", "gpu", "sys", NULL};
    bool returns = strcmp(s->opcode, "atom") == 0;
    insn->exec = exec_atomic;
    if (ptx_take_word(parser, orders) >= 2) insn->flags |= PTX_RELEASES;
    ptx_take_word(parser, scopes);
    insn->space = (uint8_t)ptx_take_space(parser);
    int op = ptx_take_word(parser, ops);
    bool noftz = ptx_take(parser, "noftz"), policy = ptx_take(parser, "L2::cache_hint");
    ptx_type type = ptx_need_type(parser);
    if (op < 0 || !known((uint32_t)op, type)) ptx_refuse(parser, "this operation on this type is not known");
    if (noftz && ptx_class_of(type) != PTX_CLASS_HALF) ptx_refuse(parser, "noftz of this type");
    if (insn->space != PTX_SPACE_GENERIC && insn->space != PTX_SPACE_GLOBAL &&
        insn->space != PTX_SPACE_SHARED)
        ptx_refuse(parser, "no atomics in this state space");
    if (insn->space == PTX_SPACE_SHARED) insn->class_ = PTX_CLASS_SHARED_ATOMIC;
    insn->mode = (uint8_t)op;
    insn->type = (uint8_t)type;
    insn->elements = (uint16_t)(ptx_type_bits(type) / 8);
    uint32_t values = op == OP_CAS ? 2 : 1, count = returns + 1u + values + policy;
    if (!returns && (op == OP_CAS || op == OP_EXCH)) ptx_refuse(parser, "red does not return the old value");
    ptx_need_operands(parser, count, count);
    if (returns) ptx_add_to(parser, insn, &s->operands[0], ptx_type_bits(type), false);
    ptx_add_address(parser, insn, &s->operands[returns]);
    for (uint32_t i = 0; i < values; i++)
        ptx_add_from(parser, insn, &s->operands[returns + 1u + i], type, false);
}
