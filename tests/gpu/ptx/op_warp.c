/* What lanes of a warp do together: shfl, vote, match, redux, elect, activemask. Lanes that name the same
 * members run together when all of those are here; others wait. */
#include "parse.h"
#include "run.h"

enum { UP, DOWN, BFLY, IDX };
enum { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };

/* Runs `work` for each set of lanes with the same member mask (operand `slot`) that is complete. */
typedef void work_fn(ptx_warp *warp, const ptx_insn *insn, uint32_t lanes);
static ptx_step each_mask(ptx_warp *warp, const ptx_insn *insn, uint32_t mask, uint32_t slot, work_fn *work) {
    uint32_t rest = mask;
    while (rest) {
        uint32_t members = ptx_word(warp, slot, ptx_lowest(rest)), same = 0;
        PTX_FOR_LANES(lane, rest) same |= (uint32_t)(ptx_word(warp, slot, lane) == members) << lane;
        rest &= ~same;
        if (same & ~members)
            ptx_defect_add(warp, insn, PTX_DEFECT_MEMBER_MASK, ptx_lowest(same & ~members), 0,
                           "is not in its own member mask 0x%08x", members);
        if (ptx_warp_gather(warp, insn, same, members)) work(warp, insn, same);
    }
    return PTX_STEP_NEXT;
}

/* ---- shfl: d[|p], a, b, c, members --------------------------------------------------------------------- */

static void shuffle(ptx_warp *warp, const ptx_insn *insn, uint32_t lanes) {
    const uint32_t *from = &insn->slots[insn->to_count];
    uint32_t a[PTX_LANES], result[PTX_LANES], valid = 0;
    memcpy(a, ptx_slot(warp, from[0]), sizeof a);
    PTX_FOR_LANES(lane, lanes) {
        uint32_t b = ptx_word(warp, from[1], lane) & 31u, c = ptx_word(warp, from[2], lane);
        uint32_t segment = c >> 8 & 31u, last = (lane & segment) | (c & 31u & ~segment);
        int32_t source;
        bool in_range;
        switch (insn->mode) {
        case UP:
            source = (int32_t)lane - (int32_t)b;
            in_range = source >= (int32_t)last;
            break;
        case DOWN:
            source = (int32_t)(lane + b);
            in_range = source <= (int32_t)last;
            break;
        case BFLY:
            source = (int32_t)(lane ^ b);
            in_range = source <= (int32_t)last;
            break;
        default:
            source = (int32_t)((lane & segment) | (b & ~segment));
            in_range = source <= (int32_t)last;
            break;
        }
        if (!in_range) source = (int32_t)lane;
        valid |= (uint32_t)in_range << lane;
        if (!(lanes >> source & 1u))
            ptx_defect_add(warp, insn, PTX_DEFECT_SHUFFLE_SOURCE, lane, 0, "reads lane %d, which %s", source,
                           warp->live >> source & 1u ? "takes no part" : "has exited or does not exist");
        result[lane] = a[source];
    }
    ptx_store_words(ptx_slot(warp, insn->slots[0]), result, lanes);
    if (insn->to_count > 1) ptx_set_predicate(warp, insn->slots[1], lanes, valid);
}

static ptx_step exec_shfl(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    return each_mask(warp, insn, mask, insn->slots[insn->to_count + 3u], shuffle);
}

static void add_second(ptx_parser *parser, ptx_insn *insn, const ptx_operand *operand) {
    if (!operand->has_second) return;
    uint8_t bits = insn->to_bits;
    ptx_operand second = {
        .kind = PTX_OPERAND_REGISTER, .slot = operand->second_slot, .bits = operand->second_bits};
    if (second.slot == PTX_NO_SLOT) second.kind = PTX_OPERAND_SINK;
    ptx_add_to(parser, insn, &second, 1, false);
    insn->to_bits = bits;
}

void ptx_select_shfl(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    static const char *const modes[] = {"up", "down", "bfly", "idx", NULL};
    if (!ptx_take(parser, "sync")) ptx_refuse(parser, "sync is missing");
    int mode = ptx_take_word(parser, modes);
    if (mode < 0 || ptx_need_type(parser) != PTX_B32) ptx_refuse(parser, "no such shuffle");
    insn->exec = exec_shfl;
    insn->mode = (uint8_t)mode;
    ptx_need_operands(parser, 5, 5);
    ptx_add_to(parser, insn, &s->operands[0], 32, false);
    add_second(parser, insn, &s->operands[0]);
    for (uint32_t i = 1; i < 5; i++) ptx_add_from(parser, insn, &s->operands[i], PTX_B32, false);
}

/* ---- vote: d, {!}a, members ---------------------------------------------------------------------------- */

static void vote(ptx_warp *warp, const ptx_insn *insn, uint32_t lanes) {
    uint32_t a = ptx_predicate(warp, insn->slots[1]);
    if (insn->flags & PTX_NEGATE_C) a = ~a;
    a &= lanes;
    bool result = insn->mode == VOTE_ALL   ? a == lanes
                  : insn->mode == VOTE_ANY ? a != 0
                                           : a == lanes || a == 0;
    if (insn->mode != VOTE_BALLOT) {
        ptx_set_predicate(warp, insn->slots[0], lanes, result ? UINT32_MAX : 0);
        return;
    }
    uint32_t *to = ptx_slot(warp, insn->slots[0]);
    PTX_FOR_LANES(lane, lanes) to[lane] = a;
}

static ptx_step exec_vote(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    return each_mask(warp, insn, mask, insn->slots[2], vote);
}

void ptx_select_vote(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    static const char *const modes[] = {"all", "any", "uni", "ballot", NULL};
    if (!ptx_take(parser, "sync")) ptx_refuse(parser, "sync is missing");
    int mode = ptx_take_word(parser, modes);
    ptx_type type = ptx_need_type(parser);
    if (mode < 0 || type != (mode == VOTE_BALLOT ? PTX_B32 : PTX_PRED)) ptx_refuse(parser, "no such vote");
    insn->exec = exec_vote;
    insn->mode = (uint8_t)mode;
    ptx_need_operands(parser, 3, 3);
    ptx_add_to(parser, insn, &s->operands[0], ptx_type_bits(type), false);
    ptx_add_from(parser, insn, &s->operands[1], PTX_PRED, false);
    ptx_add_from(parser, insn, &s->operands[2], PTX_B32, false);
}

/* ---- match: d[|p], a, members -------------------------------------------------------------------------- */

static void match(ptx_warp *warp, const ptx_insn *insn, uint32_t lanes) {
    uint64_t a[PTX_LANES];
    bool all = true, wide = insn->type == PTX_B64;
    PTX_FOR_LANES(lane, lanes) {
        a[lane] = wide ? ptx_wide(warp, insn->slots[insn->to_count], lane)
                       : ptx_word(warp, insn->slots[insn->to_count], lane);
        all = all && a[lane] == a[ptx_lowest(lanes)];
    }
    uint32_t *to = ptx_slot(warp, insn->slots[0]);
    PTX_FOR_LANES(lane, lanes) {
        uint32_t same = 0;
        PTX_FOR_LANES(other, lanes) same |= (uint32_t)(a[other] == a[lane]) << other;
        to[lane] = insn->mode == 0 ? same : all ? lanes : 0;
    }
    if (insn->to_count > 1) ptx_set_predicate(warp, insn->slots[1], lanes, all ? UINT32_MAX : 0);
}

static ptx_step exec_match(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    return each_mask(warp, insn, mask, insn->slots[insn->to_count + 1u], match);
}

void ptx_select_match(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    static const char *const modes[] = {"any", "all", NULL};
    int mode = ptx_take_word(parser, modes);
    if (mode < 0 || !ptx_take(parser, "sync")) ptx_refuse(parser, "any.sync or all.sync expected");
    ptx_type type = ptx_need_type(parser);
    if (type != PTX_B32 && type != PTX_B64) ptx_refuse(parser, "no such type");
    insn->exec = exec_match;
    insn->mode = (uint8_t)mode;
    insn->type = (uint8_t)type;
    ptx_need_operands(parser, 3, 3);
    ptx_add_to(parser, insn, &s->operands[0], 32, false);
    if (mode == 1) add_second(parser, insn, &s->operands[0]);
    ptx_add_from(parser, insn, &s->operands[1], type, false);
    ptx_add_from(parser, insn, &s->operands[2], PTX_B32, false);
}

/* ---- redux: d, a, members ------------------------------------------------------------------------------ */

enum { REDUX_ADD, REDUX_AND, REDUX_OR, REDUX_XOR, REDUX_MIN, REDUX_MAX };

static float word_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t reduce_float(const ptx_insn *insn, uint32_t x, uint32_t y) {
    if (insn->flags & PTX_RELU) x &= 0x7fffffffu, y &= 0x7fffffffu; /* .abs */
    float a = word_float(x), b = word_float(y);
    if (a != a || b != b) {
        if (insn->flags & PTX_SATFINITE) return 0x7fffffffu; /* .NaN */
        return a != a ? b != b ? 0x7fffffffu : y : x;
    }
    bool less = a < b || (a == b && x >> 31 && !(y >> 31));
    return less == (insn->mode == REDUX_MIN) ? x : y;
}

static uint32_t reduce_two(const ptx_insn *insn, uint32_t x, uint32_t y) {
    bool is_signed = insn->type == PTX_S32, less = is_signed ? (int32_t)x < (int32_t)y : x < y;
    if (insn->type == PTX_F32) return reduce_float(insn, x, y);
    switch (insn->mode) {
    case REDUX_ADD:
        return x + y;
    case REDUX_AND:
        return x & y;
    case REDUX_OR:
        return x | y;
    case REDUX_XOR:
        return x ^ y;
    case REDUX_MIN:
        return less ? x : y;
    default:
        return less ? y : x;
    }
}

static void reduce(ptx_warp *warp, const ptx_insn *insn, uint32_t lanes) {
    uint32_t result = ptx_word(warp, insn->slots[1], ptx_lowest(lanes));
    if (insn->type == PTX_F32) result = reduce_float(insn, result, result);
    PTX_FOR_LANES(lane, lanes & (lanes - 1))
    result = reduce_two(insn, result, ptx_word(warp, insn->slots[1], lane));
    uint32_t *to = ptx_slot(warp, insn->slots[0]);
    PTX_FOR_LANES(lane, lanes) to[lane] = result;
}

static ptx_step exec_redux(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    return each_mask(warp, insn, mask, insn->slots[2], reduce);
}

void ptx_select_redux(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    static const char *const ops[] = {"add", "and", "or", "xor", "min", "max", NULL};
    if (!ptx_take(parser, "sync")) ptx_refuse(parser, "sync is missing");
    int op = ptx_take_word(parser, ops);
    ptx_type type = ptx_need_type(parser);
    bool bits = op == REDUX_AND || op == REDUX_OR || op == REDUX_XOR;
    bool extreme = op == REDUX_MIN || op == REDUX_MAX;
    if (op < 0 ||
        (bits ? type != PTX_B32 : type != PTX_U32 && type != PTX_S32 && !(extreme && type == PTX_F32)))
        ptx_refuse(parser, "no such reduction");
    if (type == PTX_F32 && ptx_take(parser, "abs")) insn->flags |= PTX_RELU;
    if (type == PTX_F32 && ptx_take(parser, "NaN")) insn->flags |= PTX_SATFINITE;
    insn->exec = exec_redux;
    insn->mode = (uint8_t)op;
    insn->type = (uint8_t)type;
    ptx_need_operands(parser, 3, 3);
    ptx_add_to(parser, insn, &s->operands[0], 32, false);
    ptx_add_from(parser, insn, &s->operands[1], type, false);
    ptx_add_from(parser, insn, &s->operands[2], PTX_B32, false);
}

/* ---- elect d|p, members; activemask d ------------------------------------------------------------------ */

static void elect(ptx_warp *warp, const ptx_insn *insn, uint32_t lanes) {
    uint32_t leader = ptx_lowest(lanes), *to = ptx_slot(warp, insn->slots[0]);
    PTX_FOR_LANES(lane, lanes) to[lane] = leader;
    ptx_set_predicate(warp, insn->slots[1], lanes, 1u << leader);
}

static ptx_step exec_elect(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    return each_mask(warp, insn, mask, insn->slots[2], elect);
}

void ptx_select_elect(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    if (!ptx_take(parser, "sync")) ptx_refuse(parser, "sync is missing");
    insn->exec = exec_elect;
    ptx_need_operands(parser, 2, 2);
    if (!s->operands[0].has_second) ptx_refuse(parser, "d|p expected");
    ptx_add_to(parser, insn, &s->operands[0], 32, false);
    add_second(parser, insn, &s->operands[0]);
    ptx_add_from(parser, insn, &s->operands[1], PTX_B32, false);
}

static ptx_step exec_activemask(ptx_warp *warp, const ptx_insn *insn, uint32_t mask) {
    uint32_t *to = ptx_slot(warp, insn->slots[0]);
    PTX_FOR_LANES(lane, mask) to[lane] = mask;
    return PTX_STEP_NEXT;
}

void ptx_select_activemask(ptx_parser *parser, const ptx_statement *s, ptx_insn *insn) {
    if (ptx_need_type(parser) != PTX_B32) ptx_refuse(parser, "no such type");
    insn->exec = exec_activemask;
    ptx_need_operands(parser, 1, 1);
    ptx_add_to(parser, insn, &s->operands[0], 32, false);
}
